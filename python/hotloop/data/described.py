"""A DataModule as text: one line, or all of its splits, fields and classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hotloop.base.messages import counted
from hotloop.data.split import Field, Split

if TYPE_CHECKING:
    from hotloop.data.module import DataModule

__all__ = ["describe_all", "describe_line"]

_SPLITS = ("train", "val", "test")
_MAX_SHOWN = 3  # inputs that the line lists
_MAX_CLASSES = 20


def _splits_of(data: DataModule) -> dict[str, Split]:
    found = {name: data.split(name) for name in _SPLITS}
    return {name: split for name, split in found.items() if split is not None}


def _describe_field(field: Field) -> str:
    return f"{field.label} {field.array.dtype} {field.array.shape[1:]}"


def describe_line(data: DataModule) -> str:
    """Rows by split, inputs, targets and batch size."""
    splits = _splits_of(data)
    rows = ", ".join(f"{name} {split.n:,}" for name, split in splits.items())
    fields = splits["train"].fields
    shown = [_describe_field(field) for field in fields if field.is_input]
    inputs = ", ".join(shown) if len(shown) <= _MAX_SHOWN else f"{len(shown)} inputs"
    y = next((field for field in fields if field.name == "y"), None)
    targets = "no y" if y is None else _describe_field(y)
    if y is not None and data.target_kind == "class":
        targets = f"y of {counted(data.n_classes or 0, 'class', 'classes')}"
    elif y is not None and data.target_kind == "multilabel":
        targets = f"y 0 or 1 in {y.array.shape[1:]}"
    return f"{type(data).__name__}({rows} rows; {inputs}; {targets}; batch_size={data.batch_size})"


def describe_all(data: DataModule, standardized: str) -> str:
    """The line, then a table of the splits, a line per field, the classes, what is standardised."""
    splits = _splits_of(data)
    lines = [describe_line(data), f"{'split':<6}{'rows':>12}{'batches':>10}{'last':>8}"]
    for name, split in splits.items():
        groups = data.batches(name, training=name == "train", merge_tail=False)
        n = sum(count for _, count in groups)
        lines.append(f"{name:<6}{split.n:>12,}{n:>10,}{groups[-1][0]:>8,}")
    lines.append("")
    for field in splits["train"].fields:
        shape = ", ".join(map(str, field.array.shape[1:]))
        lines.append(
            f"{field.name:<12}{field.array.dtype} ({shape}) -> {field.dtype}, "
            f"{field.array.nbytes:,} bytes"
        )
    if data.n_classes is not None:
        names: Sequence[Any] = data.classes or range(data.n_classes)
        shown = [f"{name}: {n:,}" for name, n in zip(names, data.class_counts())]
        more = f", and {len(shown) - _MAX_CLASSES} more" if len(shown) > _MAX_CLASSES else ""
        lines.append(f"classes     {', '.join(shown[:_MAX_CLASSES])}{more} training rows")
    if standardized:
        lines.append(f"standardize {standardized}")
    if data.num_workers:
        lines.append("workers     none on a CPU: batches are gathered inside the step")
    return "\n".join(lines)
