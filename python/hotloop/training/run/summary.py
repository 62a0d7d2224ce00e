"""The table of a model's layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from hotloop.base.messages import format_bytes

if TYPE_CHECKING:
    from hotloop.nn.module import Module

__all__ = ["summarize"]

_MAX_ROWS = 40
_MAX_SHAPES = 4  # of a layer: a recurrent one may have dozens

_HEADER = ("layer", "type", "output", "parameters", "")


def summarize(model: Module, output_shapes: Mapping[int, str], trained: Collection[int]) -> str:
    """Layers with parameters of their own: name, type, shapes, number of parameters.

    Parameters
    ----------
    model : Module
    output_shapes : mapping of int to str
        ``id`` of each module that ran to the shapes of its output.
    trained : collection of int
        ``id`` of each parameter that is trained.

    Returns
    -------
    str
        At most 40 rows, of at most 4 shapes of parameters each; what is left out is counted.
    """
    rows: list[tuple[str, ...]] = []
    seen: set[int] = set()
    total = learning = 0
    for name, module in model.named_modules():
        own = [(n, p) for n, p in module.named_parameters(recurse=False) if id(p) not in seen]
        seen.update(id(p) for _, p in own)
        if not own:
            continue
        n = sum(p.numel() for _, p in own)
        total += n
        learning += sum(p.numel() for _, p in own if id(p) in trained)
        shapes = ", ".join(f"{key} {tuple(p.shape)}" for key, p in own[:_MAX_SHAPES])
        if len(own) > _MAX_SHAPES:
            shapes += f", ... {len(own) - _MAX_SHAPES} more"
        made = output_shapes.get(id(module), "")
        rows.append((name or "(model)", type(module).__name__, made, shapes, f"{n:,}"))
    left_out = len(rows) - _MAX_ROWS
    if left_out > 0:
        more = (f"... {left_out + 1} more layers", "", "", "", "")
        rows = [*rows[: _MAX_ROWS - 1], more, rows[-1]]
    if rows:
        rows.insert(0, _HEADER)
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths)]
        lines.append("  ".join((*cells, row[-1].rjust(widths[-1]))).rstrip())
    frozen = f", {total - learning:,} of them frozen" if learning < total else ""
    lines.append(f"{total:,} parameters{frozen}, {format_bytes(4 * total)}")
    return "\n".join(lines)
