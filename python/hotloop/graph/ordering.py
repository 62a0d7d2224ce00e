"""Order: sorting, the largest few, places in what is sorted, distinct values.

One op sorts, whatever is asked of the order; a second one searches. A NaN is the greatest number
and zeros of both signs are equal, in both of them, as in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hotloop.base.memory import allocating
from hotloop.base.scalars import plain
from hotloop.errors import ConfigError, ShapeError, TraceError
from hotloop.graph import comparison, pointwise, reduction, views
from hotloop.graph.build import (
    Operand,
    add_node,
    add_nodes,
    axis_of,
    cast,
    cat,
    is_int,
    is_number,
    is_tensor,
    lift,
    number,
    stack,
)
from hotloop.graph.eager import make_eager
from hotloop.graph.indexing import check_below
from hotloop.graph.value import Tensor

__all__ = [
    "argsort", "bucketize", "kthvalue", "msort", "quantile", "searchsorted", "sort", "topk",
    "unique",
]  # fmt: skip


class Sorted(NamedTuple):
    """What ``sort``, ``topk`` and ``kthvalue`` return."""

    values: Any
    indices: Any


def _sort(x: Tensor, axis: int, descending: bool = False, k: int = -1) -> Sorted:
    if not x.ndim:
        values, indices = _sort(x.reshape(1), 0, descending, k)
        return Sorted(values.reshape(()), indices.reshape(()))
    return Sorted(*add_nodes("sort", x, axis=axis, descending=int(descending), k=k))


def sort(input: Operand, dim: int = -1, descending: bool = False, stable: bool = False) -> Sorted:
    """The elements along a dim in order, and where each of them stood.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The dim that is sorted.
    descending : bool
        From the greatest down.
    stable : bool
        Taken for torch's sake: equal elements always keep their order.

    Returns
    -------
    (values, indices)
        The input's shape; indices are int64. A NaN is the greatest. Each value carries its
        gradient to where it stood.

    Raises
    ------
    ShapeError
        If dim is out of range.

    Examples
    --------
    >>> values, indices = hl.sort([0.3, 0.1, 0.2])
    >>> indices.tolist()
    [1, 2, 0]
    """
    x = lift(input, what="sort")
    return _sort(x, axis_of(x, dim, "sort"), descending)


def argsort(
    input: Operand, dim: int = -1, descending: bool = False, stable: bool = False
) -> Tensor:
    """The indices that :func:`sort` gives.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The dim that is sorted.
    descending : bool
        From the greatest down.
    stable : bool
        Taken for torch's sake: equal elements always keep their order.

    Returns
    -------
    Tensor
        The input's shape, int64, no gradient.

    Examples
    --------
    >>> hl.argsort([3, 1, 2], descending=True).tolist()
    [0, 2, 1]
    """
    x = lift(input, what="argsort")
    return _sort(x, axis_of(x, dim, "argsort"), descending).indices  # type: ignore[no-any-return]


def msort(input: Operand) -> Tensor:
    """The elements along the first dim in ascending order.

    Parameters
    ----------
    input : Tensor
        Any shape.

    Returns
    -------
    Tensor
        The input's shape: the values of ``sort(input, dim=0)``.
    """
    x = lift(input, what="msort")
    return _sort(x, 0).values  # type: ignore[no-any-return]


def _count_of(x: Tensor, axis: int, k: Any, least: int, what: str) -> int:
    """A number of elements along an axis, which ``k`` has to be."""
    n = x.shape[axis] if x.ndim else 1
    if not is_int(k) or not least <= k <= n:
        raise ShapeError(
            f"{what}: k must be an integer in [{least}, {n}], the elements along dim {axis} of "
            f"shape {tuple(x.shape)}, got {k!r}"
        )
    return int(k)


def topk(
    input: Operand, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Sorted:
    """The k largest or smallest elements along a dim, and where they stood.

    Parameters
    ----------
    input : Tensor
        Any shape.
    k : int
        How many, up to the elements along the dim.
    dim : int
        The dim.
    largest : bool
        False: the smallest.
    sorted : bool
        Taken for torch's sake: they are always in order, the best first.

    Returns
    -------
    (values, indices)
        k along the dim; indices are int64. A NaN is the greatest; of equal elements the first are
        taken. Each value carries its gradient to where it stood.

    Raises
    ------
    ShapeError
        If k or dim is out of range.

    Examples
    --------
    >>> values, indices = hl.topk([0.1, 0.7, 0.2], 2)
    >>> indices.tolist()
    [1, 2]
    """
    x = lift(input, what="topk")
    axis = axis_of(x, dim, "topk")
    count = _count_of(x, axis, k, 0, "topk")
    if not x.ndim and not count:
        x = x.reshape(1)
    return _sort(x, axis, largest, count)


def kthvalue(input: Operand, k: int, dim: int = -1, keepdim: bool = False) -> Sorted:
    """The k-th smallest element along a dim, and where it stood.

    Parameters
    ----------
    input : Tensor
        Any shape.
    k : int
        From 1, the smallest, to the elements along the dim.
    dim : int
        The dim that goes.
    keepdim : bool
        Leaves the dim as 1.

    Returns
    -------
    (values, indices)
        Without the dim, or with size 1 there; indices are int64.

    Raises
    ------
    ShapeError
        If k or dim is out of range.

    Examples
    --------
    >>> hl.kthvalue([5, 1, 3], 2).values.item()
    3
    """
    x = lift(input, what="kthvalue")
    axis = axis_of(x, dim, "kthvalue")
    count = _count_of(x, axis, k, 1, "kthvalue")
    found = _sort(x, axis, False, count)
    if not x.ndim:
        return found
    pick = views.narrow if keepdim else views.select
    at = (axis, count - 1, 1) if keepdim else (axis, count - 1)
    return Sorted(*(pick(part, *at) for part in found))


def quantile(
    input: Operand,
    q: float | Sequence[float],
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """Quantiles along a dim, or of all elements.

    Parameters
    ----------
    input : Tensor
        Floats of any shape.
    q : float or sequence of float
        Which ones, each in [0, 1].
    dim : int, optional
        The dim that goes; without one, all of them.
    keepdim : bool
        Leaves dims as 1.
    interpolation : {"linear", "lower", "higher", "nearest", "midpoint"}
        What is between the two elements next to a quantile.

    Returns
    -------
    Tensor
        Without the dim, or with size 1 there; of several q with their number in front. A NaN
        along the dim gives NaN.

    Raises
    ------
    ConfigError
        If the input holds no floats, q is outside of [0, 1], or the interpolation is another one.
    ShapeError
        If dim is out of range or has no elements.

    Examples
    --------
    >>> hl.quantile([0.0, 1.0, 2.0, 4.0], 0.5).item()
    1.5
    """
    x = lift(input, what="quantile")
    if not x.dtype.is_floating_point:
        raise ConfigError(f"quantile: must be given floats, got {x.dtype}; use x.float()")
    wanted: list[Any] = [q] if is_number(q) else list(q)  # type: ignore[arg-type]
    for one in wanted:
        if not is_number(one) or not 0 <= plain(one) <= 1:
            raise ConfigError(f"quantile: q must be numbers in [0, 1], got {one!r}")
    if interpolation not in _ROUNDED:
        raise ConfigError(
            f"quantile: interpolation must be one of {', '.join(map(repr, _ROUNDED))}, "
            f"got {interpolation!r}"
        )
    rank = x.ndim
    axis = 0 if dim is None else axis_of(x, dim, "quantile")
    if dim is None or not rank:
        x = x.reshape(-1)
    n = x.shape[axis]
    if not n:
        raise ShapeError(f"quantile: dim {axis} must have elements, got shape {tuple(x.shape)}")
    ordered = _sort(x, axis).values
    last = views.select(ordered, axis, n - 1)
    found = []
    for one in wanted:
        place = _ROUNDED[interpolation](float(one) * (n - 1))
        low, rest = int(place), place - int(place)
        value = views.select(ordered, axis, low)
        if rest:
            value = pointwise.lerp(value, views.select(ordered, axis, low + 1), rest)
        found.append(pointwise.where(last != last, last, value))
    if keepdim:
        shape = (1,) * rank if dim is None else (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        found = [value.reshape(shape if rank else ()) for value in found]
    return found[0] if is_number(q) else stack(found)


_ROUNDED: dict[str, Any] = {
    "linear": lambda place: place,
    "lower": math.floor,
    "higher": math.ceil,
    "nearest": round,
    "midpoint": lambda place: (math.floor(place) + math.ceil(place)) / 2,
}


# ---------------------------------------------------------------------------- search


def searchsorted(
    sorted_sequence: Operand,
    input: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Operand | None = None,
) -> Tensor:
    """Where values would have to be put into ascending rows that they leave in order.

    Parameters
    ----------
    sorted_sequence : Tensor
        ``(n,)`` for all values, or ``(..., n)``: a row for each row of them. That its rows ascend
        is not checked; by a ``sorter`` they need not.
    input : Tensor or number
        Values of the sequence's dtype: any shape, or ``(..., m)``.
    out_int32 : bool
        int32 in the place of int64.
    right : bool
        Behind equal elements, as ``side="right"``; else in front of them.
    side : {None, "left", "right"}
        Overrides ``right``.
    sorter : Tensor of integers, optional
        What :func:`argsort` gives of a sequence that is not in order; of its shape.

    Returns
    -------
    Tensor
        The values' shape, from 0 to n; no gradient. A NaN is the greatest.

    Raises
    ------
    ShapeError
        If the dims but for the last differ.
    TraceError
        If the dtypes differ, or ``side`` contradicts ``right`` or is another word.

    Examples
    --------
    >>> hl.searchsorted([1.0, 3.0, 5.0], [0.0, 3.0, 9.0]).tolist()
    [0, 1, 3]
    """
    rows = lift(sorted_sequence, what="searchsorted")
    if side not in (None, "left", "right"):
        raise TraceError(f'searchsorted: side must be "left" or "right", got {side!r}')
    if side == "left" and right:
        raise TraceError('searchsorted: side and right must agree, got side="left" and right=True')
    if sorter is not None:
        order = lift(sorter, what="searchsorted")
        if order.shape != rows.shape:
            raise ShapeError(
                "searchsorted: the sorter must have the sorted sequence's shape "
                f"{tuple(rows.shape)}, got {tuple(order.shape)}"
            )
        rows = add_node("gather", rows, order, axis=rows.ndim - 1)
    return _search(rows, input, out_int32, right or side == "right", "searchsorted")


def _search(rows: Tensor, input: Operand, out_int32: bool, right: bool, what: str) -> Tensor:
    # numbers and lists take the sequence's dtype, as they have none of their own
    plain_list = isinstance(input, list | tuple) and not any(is_tensor(v) for v in input)
    if is_number(input):
        values = number(rows.trace, rows.dtype, input)  # type: ignore[arg-type]
    else:
        values = lift(input, rows.trace, what)
        if plain_list and rows.dtype.is_floating_point:
            values = cast(values, rows.dtype)
    if values.dtype != rows.dtype:
        raise TraceError(
            f"{what}: the values must have the dtype of the sorted elements, {rows.dtype}, got "
            f"{values.dtype}; cast one of them"
        )
    return add_node("searchsorted", rows, values, right=int(right), int32_out=int(out_int32))


def bucketize(
    input: Operand, boundaries: Operand, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """Which of the intervals between ascending boundaries each value lies in.

    Parameters
    ----------
    input : Tensor or number
        Any shape.
    boundaries : Tensor
        ``(n,)``, ascending, of the values' dtype. That they ascend is not checked.
    out_int32 : bool
        int32 in the place of int64.
    right : bool
        An interval has its lower boundary, not its upper one.

    Returns
    -------
    Tensor
        The input's shape, from 0 (before all boundaries) to n; no gradient.

    Raises
    ------
    ShapeError
        If the boundaries are no vector.
    TraceError
        If the dtypes differ.

    Examples
    --------
    >>> hl.bucketize([0.5, 1.0, 7.0], [1.0, 2.0]).tolist()
    [0, 0, 2]
    """
    rows = lift(boundaries, what="bucketize")
    if rows.ndim != 1:
        raise ShapeError(
            f"bucketize: the boundaries must be a vector, got shape {tuple(rows.shape)}"
        )
    return _search(rows, input, out_int32, right, "bucketize")


# ---------------------------------------------------------------------------- distinct values


def unique(
    input: Operand,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
    *,
    size: int | None = None,
    fill_value: float | None = None,
) -> Any:
    """The distinct elements in ascending order, filled up to a size that is known before.

    How many there are is no shape here, as shapes are fixed while tracing: it is
    ``(counts > 0).sum()``.

    Parameters
    ----------
    input : Tensor
        Any shape, flattened.
    sorted : bool
        Taken for torch's sake: they are always in order.
    return_inverse : bool
        Gives which of the distinct elements each element is, too.
    return_counts : bool
        Gives how often each one occurs, too.
    dim : None
        For torch's sake; there is no other.
    size : int, optional
        Distinct elements at most; the input's elements by default, which is always enough.
    fill_value : number, optional
        What stands behind the last distinct element; the smallest one by default, as in
        ``jax.numpy.unique``.

    Returns
    -------
    Tensor, or a tuple of values, inverse and counts, as asked for
        Values ``(size,)``; the inverse has the input's shape, int64; counts ``(size,)``, int64, 0
        behind the last distinct element. Zeros of both signs are one element, each NaN is one of
        its own, as in torch. The gradient goes to the first of equal elements.

    Raises
    ------
    DataError
        When it runs, if there are more distinct elements than ``size``; the message names how
        many.
    ShapeError
        If ``size`` is no positive integer, or the input has no elements.
    TraceError
        For a ``dim``.

    Examples
    --------
    >>> values, counts = hl.unique([3, 1, 3], return_counts=True, size=4, fill_value=-1)
    >>> values.tolist(), counts.tolist()
    ([1, 3, -1, -1], [1, 2, 0, 0])
    """
    given = lift(input, what="unique")
    x = views.ravel(given)
    n = x.shape[0]
    if dim is not None:
        raise TraceError(f"unique: dim must be None, the elements of all dims, got {dim!r}")
    if size is not None and (not is_int(size) or size < 1):
        raise ShapeError(f"unique: size must be a positive integer, got {size!r}")
    if not n:
        raise ShapeError(f"unique: the input must have elements, got shape {tuple(given.shape)}")
    count = n if size is None else int(size)
    ordered, order = _sort(x, 0)
    begins = comparison.ne(ordered[1:], ordered[:-1]) if n > 1 else None
    zero = x.trace.const(np.zeros(1, np.int64))
    rank = zero if begins is None else cat([zero, reduction.cumsum(begins, 0)])
    # where each distinct element begins, and where the last one ends; n for those there are not
    with allocating("unique", (count + 1,)):
        numbers = x.trace.const(np.arange(count + 1))
    first = _search(rank, numbers, False, False, "unique")
    if count < n:
        first = first + _check_size(rank[-1:] + 1, count)
    counts = first[1:] - first[:-1]
    values = ordered[pointwise.minimum(first[:-1], n - 1)]
    fill = ordered[:1] if fill_value is None else fill_value
    made = [pointwise.where(counts > 0, values, fill)]
    if return_inverse:
        back = add_node("scatter", rank, order, rank, axis=0)
        made.append(back.reshape(given.shape))
    if return_counts:
        made.append(counts)
    return tuple(made) if len(made) > 1 else made[0]


def _check_size(found: Tensor, size: int) -> Tensor:
    """0, read at the number of distinct elements of an array with one for each possible number."""
    trace = found.trace
    with trace.scope(f"{trace.path}.unique(size={size})".lstrip(".")):
        return check_below(found, size + 1)


make_eager(globals(), __all__)
