"""Statistics of channels: what means, ranges and covariances of a stream of batches are made of.

A module adds them to its totals by ``assign``: with one shift for all batches, counts, sums and
products add up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hotloop.graph import trace as tracing
from hotloop.graph.build import Operand, add_nodes, is_tensor, lift, to_array
from hotloop.graph.eager import make_eager
from hotloop.graph.value import Tensor

__all__ = ["ChannelStatistics", "channel_statistics"]


class ChannelStatistics(NamedTuple):
    """What ``channel_statistics`` returns."""

    count: Any
    lowest: Any
    highest: Any
    sums: Any
    products: Any


def _lift_double(value: Operand, what: str) -> Tensor:
    """As lift, but an array of floats becomes a float64 constant, with every digit it has."""
    if is_tensor(value) or (isinstance(value, list | tuple) and any(map(is_tensor, value))):
        return lift(value, what=what)
    array = to_array(value, what)
    if array.dtype != np.float32:
        return lift(array, what=what)
    exact = np.asarray(value) if isinstance(value, np.ndarray | list | tuple) else array
    return tracing.current(what).const(exact.astype(np.float64, order="C"))


def channel_statistics(
    x: Operand, shift: Operand, mask: Operand | None = None, *, products: bool = True
) -> ChannelStatistics:
    """Count, extremes, sums and sums of products of the channels over all rows, in float64.

    Each element is converted as it is read: there is no float64 copy of ``x``. Mixed precision
    leaves all of it float64. Of batches with one shift, counts, sums and products add up to those
    of all rows.

    Parameters
    ----------
    x : Tensor
        Floats of shape ``(..., C)``: rows of C channels.
    shift : Tensor
        float64 of shape ``(C,)``, subtracted from each row: near the means, so that
        ``products / count - (sums / count)²`` does not cancel.
    mask : Tensor, optional
        Bools in the shape of ``x`` without its last dim: a row where it is false is left out,
        whatever it holds.
    products : bool
        Whether every two channels are multiplied, else each with itself alone.

    Returns
    -------
    (count, lowest, highest, sums, products)
        All float64 and without a gradient. ``count ()`` of the rows; ``lowest (C,)`` and
        ``highest (C,)`` of ``x``, inf and -inf where no row counts, NaN in a channel that holds
        one; ``sums (C,)`` of ``x - shift``; ``products (C, C)``, the sum of
        ``(x - shift)ᵀ (x - shift)`` over rows, symmetric bit by bit, or ``(C,)``, its diagonal.

    Raises
    ------
    TraceError
        If ``x`` holds no floats, ``shift`` is not float64 or ``mask`` not bool.
    ShapeError
        If ``shift`` has not one element for each channel, or ``mask`` not one for each row.
    """
    what = "channel_statistics"
    operands = [lift(x, what=what), _lift_double(shift, what)]
    if mask is not None:
        operands.append(lift(mask, what=what))
    return ChannelStatistics(*add_nodes(what, *operands, products=int(bool(products))))


make_eager(globals(), ["channel_statistics"])
