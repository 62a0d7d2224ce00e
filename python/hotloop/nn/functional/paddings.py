"""Padding: by constants, reflections, copies of the edge, and around."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph.build import Operand, add_node, lift
from hotloop.graph.eager import make_eager
from hotloop.graph.symbolic import Tensor

__all__ = ["pad"]

MODES = {"constant": 0, "reflect": 1, "replicate": 2, "circular": 3}


def pad(
    input: Operand, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """More elements (with negative counts: fewer) at the ends of the last dims.

    Parameters
    ----------
    input : Tensor
        Any shape.
    pad : sequence of int
        Before and after for the last dim, then for the one before it, and so on.
    mode : {"constant", "reflect", "replicate", "circular"}
        What stands there. Only "constant" takes negative counts.
    value : float, optional
        For "constant", 0 by default.

    Returns
    -------
    Tensor
        Each padded dim is longer by its two counts.

    Raises
    ------
    ConfigError
        For an unknown mode, or a value with another mode than "constant".
    ShapeError
        If there are more counts than dims, or the mode's source is too short.
    """
    x = lift(input, what="pad")
    counts = [int(n) for n in pad]
    if mode not in MODES:
        raise ConfigError(f"pad: mode must be one of {', '.join(MODES)}, got {mode!r}")
    if len(counts) % 2 or len(counts) > 2 * x.ndim:
        raise ShapeError(
            f"pad: counts must come in pairs, at most {x.ndim} for shape {x.shape}, got {counts}"
        )
    full = [0] * (2 * x.ndim)
    for i in range(len(counts) // 2):
        axis = x.ndim - 1 - i
        full[2 * axis : 2 * axis + 2] = counts[2 * i : 2 * i + 2]
    if mode != "constant":
        if value:
            raise ConfigError(f"pad: value must be given for mode constant alone, got {mode!r}")
        _check_source(x, full, mode)
    if not any(full):
        return x
    return add_node(
        "pad", x, before=full[::2], after=full[1::2], value=float(value or 0.0), mode=MODES[mode]
    )


def _check_source(x: Tensor, full: list[int], mode: str) -> None:
    for axis, size in enumerate(x.shape):
        before, after = full[2 * axis : 2 * axis + 2]
        most = {"reflect": size - 1, "circular": size}.get(mode, max(before, after))
        if min(before, after) < 0 or max(before, after) > most or (size == 0 and before + after):
            limit = "" if mode == "replicate" else f" and at most {max(most, 0)}"
            raise ShapeError(
                f"pad: counts of mode {mode} must not be negative{limit} in dim {axis} of shape "
                f"{x.shape}, got ({before}, {after})"
            )


make_eager(globals(), __all__)
