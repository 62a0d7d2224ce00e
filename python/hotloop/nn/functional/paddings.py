"""Padding: by constants, reflections, copies of the edge, and around."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph.build import Operand, add_node, lift
from hotloop.graph.symbolic import Tensor
from hotloop.nn.functional.arguments import Real, make_functions

__all__ = ["pad"]

MODES = {"constant": 0, "reflect": 1, "replicate": 2, "circular": 3}


def pad(
    input: Operand, pad: Sequence[int], mode: str = "constant", value: Real | None = None
) -> Tensor:
    """More elements (with negative counts: fewer) at the ends of the last dims.

    Parameters
    ----------
    input : Tensor
        Any shape.
    pad : sequence of int
        Before and after for the last dim, then for the one before it, and so on.
    mode : {"constant", "reflect", "replicate", "circular"}
        What stands there.
    value : float, optional
        For "constant", 0 by default.

    Returns
    -------
    Tensor
        Each padded dim is longer by its two counts.

    Raises
    ------
    ConfigError
        For an unknown mode, a value with another mode than "constant", or one that the input's
        dtype does not have.
    ShapeError
        If there are more counts than dims, nothing is left, or the mode's source is too short.
    """
    x = lift(input, what="pad")
    counts = list(pad)
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
    _check_sizes(x, full)
    added = [max(count, 0) for count in full]
    cut = [min(count, 0) for count in full]
    if mode == "constant":
        _check_value(x, value)
        added, cut = full, [0] * len(full)  # the op does both at once
    elif value:
        raise ConfigError(f"pad: value must be given for mode constant alone, got {mode!r}")
    # torch's order: what goes around is taken from what is left, the others from all there was.
    steps = [(cut, "constant"), (added, mode)] if mode == "circular" else [(added, mode), (cut, "")]
    for counts, how in steps:
        if how in ("reflect", "replicate", "circular"):
            _check_source(x, counts, how)
        if any(counts):
            number = float(value or 0.0)
            places = {"before": counts[::2], "after": counts[1::2]}
            x = add_node("pad", x, **places, value=number, mode=MODES.get(how, 0))
    return x


def _check_sizes(x: Tensor, full: list[int]) -> None:
    """Each dim keeps a size that is no less than 0, and can be counted."""
    for axis, size in enumerate(x.shape):
        pair = (full[2 * axis], full[2 * axis + 1])
        if not 0 <= size + sum(pair) < 2**63 or size + min(*pair, 0) < 0:
            raise ShapeError(
                f"pad: dim {axis} of shape {x.shape} must have a size of at least 0 and below "
                f"2**63 afterwards, got counts {pair}"
            )


def _check_value(x: Tensor, value: float | None) -> None:
    """An integer dtype must have the value: it would wrap around, or lose its fraction."""
    if value is None or x.dtype.is_floating_point:
        return
    least, most = (0, 1) if x.dtype == "bool" else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    if not least <= value <= most or int(value) != value or int(float(value)) != value:
        raise ConfigError(f"pad: value must be one that {x.dtype} has exactly, got {value!r}")


def _check_source(x: Tensor, full: list[int], mode: str) -> None:
    for axis, size in enumerate(x.shape):
        before, after = full[2 * axis : 2 * axis + 2]
        most = {"reflect": size - 1, "circular": size}.get(mode, max(before, after))
        if max(before, after) > most or (size == 0 and before + after):
            limit = "need elements" if size == 0 else f"must be at most {max(most, 0)}"
            raise ShapeError(
                f"pad: counts of mode {mode} {limit} in dim {axis} of shape {x.shape}, got "
                f"({before}, {after})"
            )


make_functions(globals(), __all__)
