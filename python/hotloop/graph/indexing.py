"""Access by index: gather and its family, and the meaning of ``x[...]``.

An index out of range cannot be seen while tracing; the step reports it (node, row and value).
Indices are integers of any width. In ``x[...]`` they may be negative, as in torch; the named
functions take what torch's take: 0 .. size - 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hotloop.base.scalars import plain
from hotloop.errors import ShapeError, TraceError
from hotloop.graph import dtypes, pointwise, views
from hotloop.graph.build import (
    Operand,
    add_node,
    axis_of,
    cast,
    is_int,
    is_tensor,
    lift,
    not_integers,
    to_array,
)
from hotloop.graph.eager import make_eager
from hotloop.graph.value import Tensor

__all__ = [
    "gather", "index_add", "index_copy", "index_fill", "index_select", "one_hot", "scatter",
    "scatter_add", "take_along_dim", "tril", "triu",
]  # fmt: skip


def _index(value: Operand, what: str) -> Tensor:
    index = lift(value, what=what)
    if index.dtype.is_floating_point or index.dtype == dtypes.bool_:
        raise TraceError(f"{what}: the index must hold integers, {not_integers(index)}")
    return index


def gather(input: Operand, dim: int, index: Operand) -> Tensor:
    """``out[i][j] = input[i][index[i][j]]`` for dim 1, and so for each dim.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The indexed dim.
    index : Tensor of integers
        As many dims as ``input``, no other dim longer than ``input``'s.

    Returns
    -------
    Tensor
        The index's shape.

    Raises
    ------
    DataError
        In the step, for an index out of range: it names node, row and value.
    """
    x, at = lift(input, what="gather"), _index(index, "gather")
    return add_node("gather", x, at, axis=axis_of(x, dim, "gather"))


def take_along_dim(input: Operand, indices: Operand, dim: int | None = None) -> Tensor:
    """As :func:`gather`, with the other dims broadcast.

    Parameters
    ----------
    input : Tensor
        Any shape.
    indices : Tensor of integers
        As many dims as ``input``.
    dim : int, optional
        The indexed dim; without one, both are flattened.

    Returns
    -------
    Tensor
        The indices' size along the dim.

    Raises
    ------
    ShapeError
        If the numbers of dims differ, or the others do not broadcast.
    """
    x, at = lift(input, what="take_along_dim"), _index(indices, "take_along_dim")
    if dim is None:
        return gather(views.ravel(x), 0, views.ravel(at))
    axis = axis_of(x, dim, "take_along_dim")
    if x.ndim != at.ndim:
        raise ShapeError(f"take_along_dim: must have equal ranks, got {x.shape} and {at.shape}")
    rest = views.broadcast_shapes(
        (*x.shape[:axis], 1, *x.shape[axis + 1 :]),
        (*at.shape[:axis], 1, *at.shape[axis + 1 :]),
        what="take_along_dim",
    )
    x = views.expand(x, (*rest[:axis], x.shape[axis], *rest[axis + 1 :]))
    at = views.expand(at, (*rest[:axis], at.shape[axis], *rest[axis + 1 :]))
    return add_node("gather", x, at, axis=axis)


def _write(op: str, what: str, input: Operand, dim: int, index: Operand, src: Operand) -> Tensor:
    x, at = lift(input, what=what), _index(index, what)
    value = cast(lift(src, what=what), x.dtype)
    if not value.ndim and at.ndim:
        value = views.expand(value, at.shape)
    return add_node(op, x, at, value, axis=axis_of(x, dim, what))


def scatter(
    input: Operand, dim: int, index: Operand, src: Operand, *, reduce: str | None = None
) -> Tensor:
    """``input`` with ``out[i][index[i][j]] = src[i][j]`` for dim 1, and so for each dim.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The indexed dim.
    index : Tensor of integers
        As many dims as ``input``.
    src : Tensor or number
        Of the index's shape.
    reduce : {None, "add"}
        "add" is :func:`scatter_add`. Else the last of equal indices wins.

    Returns
    -------
    Tensor
        The input's shape.

    Raises
    ------
    TraceError
        For another reduction.
    """
    if reduce not in (None, "add"):
        raise TraceError(f'scatter: reduce must be None or "add", got {reduce!r}')
    op = "scatter_add" if reduce else "scatter"
    return _write(op, "scatter", input, dim, index, src)


def scatter_add(input: Operand, dim: int, index: Operand, src: Operand) -> Tensor:
    """As :func:`scatter`, adding to what is there, in index order.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The indexed dim.
    index : Tensor of integers
        As many dims as ``input``.
    src : Tensor or number
        Of the index's shape.

    Returns
    -------
    Tensor
        The input's shape.

    Notes
    -----
    A GPU adds many at one index by partial sums, each of them in that order.
    """
    return _write("scatter_add", "scatter_add", input, dim, index, src)


def check_below(values: Tensor, n: int) -> Tensor:
    """0 for each integer, by a node that the step refuses where one is not at least 0 and below n.

    Parameters
    ----------
    values : Tensor of integers
        A vector.
    n : int

    Returns
    -------
    Tensor
        int64, as many; what is checked is added to it, so that the node has a use.
    """
    return add_node("index_select", values.trace.const(np.zeros(n, np.int64)), values, axis=0)


def index_select(input: Operand, dim: int, index: Operand) -> Tensor:
    """Rows along a dim by a vector of indices.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The indexed dim.
    index : Tensor of integers
        ``(n,)``.

    Returns
    -------
    Tensor
        n along the dim.

    Raises
    ------
    ShapeError
        If the index is no vector.
    """
    x, at = lift(input, what="index_select"), _index(index, "index_select")
    if at.ndim > 1:
        raise ShapeError(f"index_select: the index must be a vector, got shape {at.shape}")
    at = views.reshape(at, (1,)) if not at.ndim else at
    return add_node("index_select", x, at, axis=axis_of(x, dim, "index_select"))


def index_add(
    input: Operand, dim: int, index: Operand, source: Operand, *, alpha: float = 1
) -> Tensor:
    """``input`` with rows added at a vector of indices along a dim, in index order.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The indexed dim.
    index : Tensor of integers
        ``(n,)``.
    source : Tensor
        n along the dim, else the input's shape.
    alpha : float
        Factor of the source.

    Returns
    -------
    Tensor
        The input's shape.
    """
    rows = source if alpha == 1 else pointwise.mul(source, alpha)
    return _write("index_add", "index_add", input, dim, index, rows)


def index_copy(input: Operand, dim: int, index: Operand, source: Operand) -> Tensor:
    """``input`` with other rows at a vector of indices along a dim; of equal indices the last wins.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The indexed dim.
    index : Tensor of integers
        ``(n,)``.
    source : Tensor
        n along the dim, else the input's shape.

    Returns
    -------
    Tensor
        The input's shape.
    """
    return _write("index_copy", "index_copy", input, dim, index, source)


def index_fill(input: Operand, dim: int, index: Operand, value: float) -> Tensor:
    """``input`` with a number in the rows at a vector of indices along a dim.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The indexed dim.
    index : Tensor of integers
        ``(n,)``.
    value : float
        The number.

    Returns
    -------
    Tensor
        The input's shape.
    """
    x, at = lift(input, what="index_fill"), _index(index, "index_fill")
    axis = axis_of(x, dim, "index_fill")
    fill = cast(lift(value, x.trace), x.dtype)
    rows = views.expand(fill, (*x.shape[:axis], at.numel(), *x.shape[axis + 1 :]))
    return add_node("index_copy", x, at, rows, axis=axis)


def one_hot(input: Operand, num_classes: int = -1) -> Tensor:
    """1 at the class of each element, else 0.

    Parameters
    ----------
    input : Tensor of integers
        Classes, any shape.
    num_classes : int
        How many there are; of an array, one more than the largest where it is not given.

    Returns
    -------
    Tensor
        ``(*input.shape, num_classes)``, int64. A class outside of ``[0, num_classes)`` gives zeros.

    Raises
    ------
    TraceError
        If ``num_classes`` is not given and the classes are those of a tensor in ``forward``, whose
        largest is not known while tracing, or of an array without elements.
    DataError
        When it runs, for a class below 0 or not below ``num_classes``.
    """
    index = _index(input, "one_hot")
    if num_classes < 1 and not is_tensor(input):
        classes = np.asarray(input)
        num_classes = int(classes.max()) + 1 if classes.size else 0
    if num_classes < 1:
        raise TraceError(
            "one_hot: num_classes must be given (the classes in a batch are not known while "
            f"tracing), got {num_classes}"
        )
    zero = index.trace.const(np.zeros((), np.int64))
    zeros = views.expand(zero, (*index.shape, num_classes))
    return scatter(zeros, -1, views.unsqueeze(index, -1), 1)


def tril(input: Operand, diagonal: int = 0) -> Tensor:
    """Matrices with zeros above a diagonal.

    Parameters
    ----------
    input : Tensor
        ``(..., rows, columns)``.
    diagonal : int
        Which one: 0 is the main diagonal, 1 the one above it.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ShapeError
        If there are fewer than two dims.
    """
    return _triangle("tril", input, diagonal)


def triu(input: Operand, diagonal: int = 0) -> Tensor:
    """Matrices with zeros below a diagonal.

    Parameters
    ----------
    input : Tensor
        ``(..., rows, columns)``.
    diagonal : int
        Which one: 0 is the main diagonal, 1 the one above it.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ShapeError
        If there are fewer than two dims.
    """
    return _triangle("triu", input, diagonal)


def _triangle(what: str, input: Operand, diagonal: int) -> Tensor:
    x = lift(input, what=what)
    if x.ndim < 2:
        raise ShapeError(f"{what}: must have at least two dims, got shape {x.shape}")
    keep = np.tri(x.shape[-2], x.shape[-1], diagonal - (what == "triu"), dtype=np.bool_)
    mask = x.trace.const(keep if what == "tril" else ~keep)
    return pointwise.where(mask, x, 0)


# ---------------------------------------------------------------------------- x[...]


def get_item(x: Tensor, key: Any) -> Tensor:
    """What ``x[key]`` is: integers, slices, None, Ellipsis, and integer arrays in adjacent dims.

    Raises
    ------
    TraceError
        For boolean masks of tensors: the mask's values would decide the result's shape.
    ShapeError
        For more indices than dims, or a number out of range.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    parts = [_normalised(part, x) for part in parts]
    used = sum(part is not None and part is not Ellipsis for part in parts)
    if sum(part is Ellipsis for part in parts) > 1:
        raise ShapeError("index: at most one Ellipsis, got several")
    if used > x.ndim:
        raise ShapeError(f"index: at most {x.ndim} indices fit shape {x.shape}, got {used}")
    fill = [slice(None)] * (x.ndim - used)
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), None)
    parts = parts + fill if at is None else parts[:at] + fill + parts[at + 1 :]
    axis = 0
    advanced: list[tuple[int, Tensor]] = []
    for part in parts:
        if part is None:
            x = views.unsqueeze(x, axis)
        elif isinstance(part, slice):
            x = _slice(x, axis, part)
        elif isinstance(part, int):
            x = views.select(x, axis, part)
            continue
        else:
            advanced.append((axis, part))
        axis += 1
    return _advanced(x, advanced) if advanced else x


def _normalised(part: Any, x: Tensor) -> Any:
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    part = plain(part)
    if isinstance(part, bool):
        raise TraceError("index: must be integers, slices or integer tensors, got a bool")
    if is_int(part):
        return int(part)
    if is_tensor(part):
        if part.dtype == dtypes.bool_:
            raise TraceError(
                f"index: a boolean mask of shape {part.shape} cannot select: how many elements it "
                "keeps would depend on values, and shapes are fixed while tracing; use "
                "hl.where(mask, x, 0), or multiply by mask.float()"
            )
        return _index(part, "index")
    array = to_array(part, "index")
    if array.dtype == np.bool_ and array.ndim == 1:
        array = np.flatnonzero(array)
    if array.dtype.kind not in "iu":
        raise TraceError(f"index: an array must hold integers, got {array.dtype}")
    return x.trace.const(array)


def _slice(x: Tensor, axis: int, part: slice) -> Tensor:
    for bound in (part.start, part.stop, part.step):
        if bound is not None and not is_int(bound):
            raise TraceError(
                "index: bounds of a slice must be integers (shapes are fixed while tracing), "
                f"got {bound!r}"
            )
    if part.step is not None and part.step < 1:
        raise ShapeError(f"index: a slice's step must be positive, got {part.step}; use x.flip()")
    start, stop, step = part.indices(x.shape[axis])
    return views.cut(x, axis, start, max(start, stop), step)


def _advanced(x: Tensor, indices: Sequence[tuple[int, Tensor]]) -> Tensor:
    """Index tensors, broadcast together, in adjacent axes: one lookup in the joined axis."""
    axes = [axis for axis, _ in indices]
    first, last = axes[0], axes[-1]
    if axes != list(range(first, last + 1)):
        raise TraceError(
            f"index: index tensors must stand in adjacent dims, got dims {axes} of {x.shape}; "
            "permute first"
        )
    flat: Tensor | None = None
    for axis, index in indices:
        size = x.shape[axis]
        index = cast(index, dtypes.int64)
        index = pointwise.where(index < 0, index + size, index)
        flat = index if flat is None else flat * size + index
    assert flat is not None
    if last > first:
        joined = math.prod(x.shape[first : last + 1])
        x = views.reshape(x, (*x.shape[:first], joined, *x.shape[last + 1 :]))
    return add_node("index_select", x, flat, axis=first)


make_eager(globals(), [*__all__, "get_item"])
