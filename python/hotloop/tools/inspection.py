"""``hotloop inspect``: what a safetensors file holds, read without loading its tensors."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from hotloop.base.messages import counted, format_bytes
from hotloop.errors import CheckpointError, HotloopError
from hotloop.interop.weights import read_weights
from hotloop.training.config import TrainingConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["inspect_file"]

_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32,
    "F32": 32, "U64": 64, "I64": 64, "F64": 64,
}  # fmt: skip
_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "float16": "F16", "int32": "I32",
    "float32": "F32", "int64": "I64", "float64": "F64",
}  # fmt: skip
_MAX_CHARACTERS = 200


def inspect_file(path: str | os.PathLike[str]) -> str:
    """Describes a file: who wrote it, what it predicts, its tensors.

    Parameters
    ----------
    path : path-like
        A safetensors file, hotloop's or another program's, or what ``torch.save`` wrote.

    Returns
    -------
    str

    Raises
    ------
    CheckpointError
        If it cannot be read as either.
    """
    from safetensors import SafetensorError, safe_open

    path = os.fspath(path)
    if path.endswith((".pth", ".pt", ".bin")):  # as for read_weights
        return _inspect_torch_file(path)
    if os.path.isdir(path):
        raise CheckpointError(
            f"inspect: must be a file, got the folder {path}; the files of a run are in its folder "
            "checkpoints"
        )
    try:
        size = os.path.getsize(path)
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            names = list(file.keys())
            slices = [(name, file.get_slice(name)) for name in names]
            tensors = [(name, s.get_dtype(), tuple(s.get_shape())) for name, s in slices]
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"inspect: {path} cannot be read: {error}") from error
    lines = [f"{path}: {format_bytes(size)}"]
    lines += _describe_model(metadata.pop("hotloop", None))
    lines += _describe_run(metadata.pop("run", None))
    for name in ("crc32", "checksums"):
        metadata.pop(name, None)
    lines += [f"{name}: {_shorten(text)}" for name, text in metadata.items()]
    lines += ["", *_table(tensors)]
    return "\n".join(lines)


def _inspect_torch_file(path: str) -> str:
    """What ``read_weights`` would give of it."""
    state = read_weights(path)
    tensors = [(name, _NAMES.get(a.dtype.name, a.dtype.name), a.shape) for name, a in state.items()]
    head = [f"{path}: {format_bytes(os.path.getsize(path))}", "written by torch.save", ""]
    return "\n".join([*head, *_table(tensors)])


def _shorten(text: str) -> str:
    cut = len(text) - _MAX_CHARACTERS
    return text if cut <= 0 else f"{text[:_MAX_CHARACTERS]}... ({cut:,} more characters)"


def _describe_model(text: str | None) -> Iterator[str]:
    """What hotloop wrote about the model; the file is untrusted input, so everything is checked."""
    if text is None:
        yield "not written by hotloop"
        return
    try:
        described: dict[str, Any] = json.loads(text)
        yield f"model: {described['class']} (format {described['format']})"
        fitted = described.get("fitted")
        if fitted is None:
            yield "holds values, no predict graph"
            return
        for name, dtype, shape in fitted["fields"]:
            yield f"input {name}: {dtype} ({', '.join(map(str, ['rows', *shape]))})"
        if fitted["classes"] is not None:
            yield f"classes: {_shorten(', '.join(map(str, fitted['classes'])))}"
        if fitted["link"] is not None:
            yield f"probabilities by: {fitted['link']}"
        for graph in described["graphs"]:
            yield f"predict graph: batch {graph['batch']}, {len(graph['nodes'])} nodes"
    except (ValueError, KeyError, TypeError, AttributeError):
        yield "model: hotloop's description of it is damaged"


def _describe_run(text: str | None) -> Iterator[str]:
    """Where the run of a checkpoint was, and by which settings."""
    if text is None:
        return
    try:
        run: dict[str, Any] = json.loads(text)
        control, at = run["control"], run["position"]
        within = (
            f", {counted(at['batches'], 'batch', 'batches')} of the next" if at["batches"] else ""
        )
        yield f"run: {counted(run['epoch'], 'epoch')} ended{within}; resume goes on from here"
        skipped = f", {control['skipped']:,} skipped" if control["skipped"] else ""
        yield f"optimizer steps: {control['applied']:,}{skipped}"
        best = run["monitor"]["best"]
        if best["best"] is not None:
            yield f"best {best['name']}: {best['best']:.6g} in epoch {best['best_epoch']:g}"
        yield f"on: {run['device']}, by hotloop {run['hotloop']}"
        yield f"settings: {TrainingConfig.from_toml(run['asked'])}"
    except (HotloopError, ValueError, KeyError, TypeError, AttributeError):
        yield "run: hotloop's description of it is damaged"


def _table(tensors: list[tuple[str, str, tuple[int, ...]]]) -> Iterator[str]:
    rows = []
    n_values = n_bytes = 0
    for name, dtype, shape in tensors:
        count = 1
        for dim in shape:
            count *= dim
        n_values += count
        n_bytes += count * _BITS.get(dtype, 0) // 8
        rows.append((name, dtype, str(shape), f"{count:,}"))
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    for name, dtype, shape_text, count_text in rows:
        yield (
            f"{name:<{widths[0]}}  {dtype:<{widths[1]}}  {shape_text:<{widths[2]}}  "
            f"{count_text:>{widths[3]}}"
        )
    yield f"{len(rows)} tensors, {n_values:,} values, {format_bytes(n_bytes)}"
