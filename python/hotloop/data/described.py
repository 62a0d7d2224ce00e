"""A DataModule as text: one line, or all of its splits, fields and classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotloop.base.messages import counted
from hotloop.data.split import Field, Split
from hotloop.data.streams import stream_of
from hotloop.data.targets import describe_classes, name_of_target

if TYPE_CHECKING:
    from hotloop.data.splits import DataSplits

__all__ = ["describe_all", "describe_line", "name_shape"]

_SPLITS = ("train", "val", "test")
_MAX_SHOWN = 3  # inputs that the line lists


def _splits_of(data: DataSplits) -> dict[str, Split]:
    found = {name: data.split(name) for name in _SPLITS}
    return {name: split for name, split in found.items() if split is not None}


def _describe_buckets(split: Split) -> str:
    """The buckets of training's samples, each with how many it has; of sequences in memory how much
    is padding.
    """
    parts = split.parts[::-1]
    shown = ", ".join(f"{name_shape(part)}: {part.n:,}" for part in parts)
    padding = split.fields[0].padding
    if padding is None or padding.sequences is None:
        return f"buckets     {shown} samples"
    rows = int(padding.sequences.left[split.rows].sum())
    share = 1.0 - rows / sum(part.fields[0].shape[0] * part.n for part in parts)
    return f"buckets     {shown} sequences; {share:.0%} of the rows are padding"


def name_shape(part: Split) -> str:
    """The shape that tells a bucket from others: the length of sequences, "192 x 256" of images."""
    field = part.fields[0]
    if field.padding is not None:
        return str(field.shape[0])
    return " x ".join(map(str, field.shape[1:]))


def _describe_field(field: Field) -> str:
    shape: object = field.array.shape[1:]
    if field.padding is not None and field.padding.role == "rows":
        shape = f"({', '.join(['rows', *map(str, field.array.shape[2:])])})"
    return f"{field.label} {field.array.dtype} {shape}"


def describe_line(data: DataSplits) -> str:
    """Rows by split, inputs, targets and batch size."""
    splits = _splits_of(data)
    rows = ", ".join(f"{name} {split.n:,}" for name, split in splits.items())
    fields = splits["train"].fields
    shown = [_describe_field(field) for field in fields if field.is_input]
    inputs = ", ".join(shown) if len(shown) <= _MAX_SHOWN else f"{len(shown)} inputs"
    goals = [_describe_target(data, field) for field in fields if field.name in _y_fields(data)]
    targets = ", ".join(goals) if len(goals) <= _MAX_SHOWN else f"{len(goals)} targets"
    return (
        f"{type(data).__name__}({rows} rows; {inputs}; {targets or 'no y'}; "
        f"batch_size={data.batch_size})"
    )


def _y_fields(data: DataSplits) -> set[str]:
    return {f"y.{name}" if name else "y" for name in data.targets}


def _describe_target(data: DataSplits, field: Field) -> str:
    target = data.targets[name_of_target(field.name) or ""]
    if target.kind == "class":
        is_by_row = field.padding is not None and field.padding.role == "rows"
        at = f" at {field.array.shape[1:]} positions" if field.array.ndim > 1 else ""
        at = " in each row" if is_by_row else at
        if target.n_classes is None:
            return f"{field.label} of classes{at}"
        return f"{field.label} of {counted(target.n_classes, 'class', 'classes')}{at}"
    if target.kind == "multilabel":
        return f"{field.label} 0 or 1 in {field.array.shape[1:]}"
    return _describe_field(field)


def describe_all(data: DataSplits, standardized: str) -> str:
    """The line, then a table of the splits, a line per field, the classes, what is standardised."""
    splits = _splits_of(data)
    lines = [describe_line(data), f"{'split':<6}{'rows':>12}{'batches':>10}{'last':>8}"]
    for name, split in splits.items():
        groups = data.batches(name, training=name == "train", merge_tail=False)
        n = sum(group.batches for group in groups)
        lines.append(f"{name:<6}{split.n:>12,}{n:>10,}{groups[-1].rows:>8,}")
    lines.append("")
    if splits["train"].buckets:
        lines += [_describe_buckets(splits["train"]), ""]
    fields = splits["train"].fields
    width = max(12, *(len(field.name) + 2 for field in fields))
    for field in fields:
        shape = ", ".join(map(str, field.shape))
        lines.append(
            f"{field.name:<{width}}{field.array.dtype} ({shape}) -> {field.dtype}, "
            f"{'made in batches' if field.stream else f'{field.source[0].nbytes:,} bytes'}"
        )
    for key, target in data.targets.items():
        if target.n_classes is not None and stream_of(target.array) is None:
            lines.append(describe_classes(key, target, data.class_counts(key)))
    if data.encoding is not None:
        lines += ["", *data.encoding.describe()]
    train = splits["train"]
    if train.weights is not None:
        lines.append(f"drawn       {train.n_draws:,} rows an epoch, with replacement")
    if standardized:
        lines.append(f"standardize {standardized}")
    lines += [f"{name:<11} {fact}" for name, fact in data.facts]
    if splits["train"].is_streamed:
        lines.append(f"workers     samples made by {counted(data.num_workers, 'thread')}")
    elif data.num_workers:
        lines.append("workers     none on a CPU: batches are gathered inside the step")
    return "\n".join(lines)
