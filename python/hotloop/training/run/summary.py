"""The table of a model's layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotloop.base.messages import format_bytes

if TYPE_CHECKING:
    from hotloop.nn.module import Module

__all__ = ["summarize"]

_MAX_ROWS = 40


def summarize(model: Module) -> str:
    """Layers with parameters of their own: name, type, shapes, number of parameters.

    Parameters
    ----------
    model : Module

    Returns
    -------
    str
        At most 40 rows; what is left out is counted.
    """
    rows: list[tuple[str, str, str, str]] = []
    seen: set[int] = set()
    total = learning = 0
    for name, module in model.named_modules():
        own = [(n, p) for n, p in module.named_parameters(recurse=False) if id(p) not in seen]
        seen.update(id(p) for _, p in own)
        if not own:
            continue
        n = sum(p.numel() for _, p in own)
        total += n
        learning += sum(p.numel() for _, p in own if p.requires_grad)
        shapes = ", ".join(f"{key} {tuple(p.shape)}" for key, p in own)
        rows.append((name or "(model)", type(module).__name__, shapes, f"{n:,}"))
    left_out = len(rows) - _MAX_ROWS
    if left_out > 0:
        rows = [*rows[: _MAX_ROWS - 1], (f"... {left_out + 1} more layers", "", "", ""), rows[-1]]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    lines = [
        "  ".join(
            (
                row[0].ljust(widths[0]),
                row[1].ljust(widths[1]),
                row[2].ljust(widths[2]),
                row[3].rjust(widths[3]),
            )
        )
        for row in rows
    ]
    frozen = f", {total - learning:,} of them frozen" if learning < total else ""
    lines.append(f"{total:,} parameters{frozen}, {format_bytes(4 * total)}")
    return "\n".join(lines)
