"""Reductions over dims: sums, extremes, moments, softmax, norms."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from hotloop.base.scalars import plain
from hotloop.errors import ConfigError
from hotloop.graph import comparison, dtypes, elementary, pointwise
from hotloop.graph.build import (
    Operand,
    add_node,
    add_nodes,
    axes_of,
    axis_of,
    cast,
    is_tensor,
    lift,
    lift_float,
)
from hotloop.graph.eager import make_eager
from hotloop.graph.value import Tensor

__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "count_nonzero", "cumsum", "log_softmax",
    "logsumexp", "max", "mean", "median", "min", "norm", "prod", "softmax", "std", "std_mean",
    "sum", "var", "var_mean",
]  # fmt: skip

Dim: TypeAlias = int | Sequence[int] | None


class Extreme(NamedTuple):
    """What ``max``, ``min`` and ``median`` along one dim return."""

    values: Any
    indices: Any


def _reduce(op: str, x: Tensor, dim: Dim, keepdim: bool) -> Tensor:
    axes = axes_of(x, dim, op)
    if not axes:
        return x
    return add_node(op, x, axes=axes, keepdim=int(keepdim))


def _count(x: Tensor, dim: Dim, what: str) -> int:
    return math.prod(x.shape[axis] for axis in axes_of(x, dim, what))


def sum(input: Operand, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Sum over one, several or all dims.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int, sequence of int, optional
        The dims that go; all of them by default.
    keepdim : bool
        Leaves the dims as 1.
    dtype : dtype, optional
        The input is converted first.

    Returns
    -------
    Tensor
        Without the dims, or with size 1 there. Integers and bools add up in int64.
    """
    x = _summand(lift(input, what="sum"), dtype)
    return _reduce("sum", x, dim, keepdim)


def _summand(x: Tensor, dtype: Any) -> Tensor:
    if dtype is not None:
        return cast(x, dtypes.parse(dtype))
    return x if x.dtype.is_floating_point else cast(x, dtypes.int64)


def mean(input: Operand, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Mean over one, several or all dims.

    Parameters
    ----------
    input : Tensor
        Floats of any shape.
    dim : int, sequence of int, optional
        The dims that go; all of them by default.
    keepdim : bool
        Leaves the dims as 1.
    dtype : dtype, optional
        The input is converted first.

    Returns
    -------
    Tensor
        Without the dims, or with size 1 there.

    Raises
    ------
    ConfigError
        If the input holds no floats and no dtype is given.
    """
    x = lift(input, what="mean")
    x = cast(x, dtypes.parse(dtype)) if dtype is not None else x
    if not x.dtype.is_floating_point:
        raise ConfigError(f"mean: must be given floats, got {x.dtype}; use x.float().mean()")
    return sum(x, dim, keepdim) / _count(x, dim, "mean")


def prod(
    input: Operand, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """Product over one or all dims.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int, optional
        The dim that goes; all of them by default.
    keepdim : bool
        Leaves the dim as 1.
    dtype : dtype, optional
        The input is converted first.

    Returns
    -------
    Tensor
        Without the dims, or with size 1 there. Integers and bools multiply in int64.
    """
    return _reduce("prod", _summand(lift(input, what="prod"), dtype), dim, keepdim)


def amax(input: Operand, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Largest value over one, several or all dims; ties share the gradient.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int, sequence of int, optional
        The dims that go; all of them by default.
    keepdim : bool
        Leaves the dims as 1.

    Returns
    -------
    Tensor
        Without the dims, or with size 1 there.
    """
    return _reduce("amax", lift(input, what="amax"), dim, keepdim)


def amin(input: Operand, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Smallest value over one, several or all dims; ties share the gradient.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int, sequence of int, optional
        The dims that go; all of them by default.
    keepdim : bool
        Leaves the dims as 1.

    Returns
    -------
    Tensor
        Without the dims, or with size 1 there.
    """
    return _reduce("amin", lift(input, what="amin"), dim, keepdim)


def argmax(input: Operand, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Index of the first largest value.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int, optional
        The dim that goes; without one, the index in the flattened tensor.
    keepdim : bool
        Leaves the dim as 1.

    Returns
    -------
    Tensor
        Without the dims, or with size 1 there. int64, no gradient.
    """
    return _arg("argmax", lift(input, what="argmax"), dim, keepdim)


def argmin(input: Operand, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Index of the first smallest value.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int, optional
        The dim that goes; without one, the index in the flattened tensor.
    keepdim : bool
        Leaves the dim as 1.

    Returns
    -------
    Tensor
        Without the dims, or with size 1 there. int64, no gradient.
    """
    return _arg("argmin", lift(input, what="argmin"), dim, keepdim)


def _arg(op: str, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    if x.dtype == dtypes.bool_:
        x = cast(x, dtypes.uint8)
    if dim is None or not x.ndim:
        flat = add_node(op, x.reshape(-1), axis=0, keepdim=0)
        return flat.reshape((1,) * x.ndim) if keepdim else flat
    return add_node(op, x, axis=axis_of(x, dim, op), keepdim=int(keepdim))


def max(input: Operand, dim: Any = None, keepdim: bool = False) -> Any:
    """Largest of all (a tensor), along a dim (values and indices), or of two tensors.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int or Tensor, optional
        A dim gives ``(values, indices)``, the gradient going to the first largest; a tensor
        gives :func:`maximum`; nothing gives the largest of all, ties sharing the gradient.
    keepdim : bool
        Leaves the dim as 1.

    Returns
    -------
    Tensor or (values, indices)
        See ``dim``; indices are int64.
    """
    return _extreme("max", input, dim, keepdim)


def min(input: Operand, dim: Any = None, keepdim: bool = False) -> Any:
    """Smallest of all (a tensor), along a dim (values and indices), or of two tensors.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int or Tensor, optional
        As for :func:`max`.
    keepdim : bool
        Leaves the dim as 1.

    Returns
    -------
    Tensor or (values, indices)
        As for :func:`max`.
    """
    return _extreme("min", input, dim, keepdim)


def _extreme(which: str, input: Operand, dim: Any, keepdim: bool) -> Any:
    x = lift(input, what=which)
    if dim is None:
        return _reduce("a" + which, x, None, False)
    if is_tensor(dim) or hasattr(dim, "dtype"):
        return getattr(pointwise, which + "imum")(x, dim)
    indices = _arg("arg" + which, x, dim, True)
    if not x.ndim:
        return Extreme(x, indices)
    axis = axis_of(x, dim, which)
    values = add_node("gather", x, indices, axis=axis)
    if keepdim:
        return Extreme(values, indices)
    return Extreme(values.squeeze(axis), indices.squeeze(axis))


def median(input: Operand, dim: int | None = None, keepdim: bool = False) -> Any:
    """Median of all (a tensor), or along a dim (values and indices).

    Of an even number of elements it is the lower one of the two in the middle; where there is a
    NaN it is that.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int, optional
        A dim gives ``(values, indices)``; nothing gives the median of all. The index is that of
        the first element that equals the median, or of the first NaN; all of the gradient goes
        there.
    keepdim : bool
        Leaves the dim as 1.

    Returns
    -------
    Tensor or (values, indices)
        See ``dim``; indices are int64.
    """
    x = lift(input, what="median")
    if dim is None:
        return add_node("median", x.reshape(-1), axis=0)
    axis = axis_of(x, dim, "median")
    if not x.ndim:
        return Extreme(*add_nodes("median", x.reshape(1), axis=axis))
    return Extreme(*add_nodes("median", x, axis=axis, keepdim=int(keepdim)))


def any(input: Operand, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether one element at least differs from 0.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int, sequence of int, optional
        The dims that go; all of them by default.
    keepdim : bool
        Leaves the dims as 1.

    Returns
    -------
    Tensor
        Without the dims, or with size 1 there. Bool.
    """
    x = cast(lift(input, what="any"), dtypes.bool_)
    return sum(x, dim, keepdim) > 0


def all(input: Operand, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether every element differs from 0.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int, sequence of int, optional
        The dims that go; all of them by default.
    keepdim : bool
        Leaves the dims as 1.

    Returns
    -------
    Tensor
        Without the dims, or with size 1 there. Bool.
    """
    return ~any(~cast(lift(input, what="all"), dtypes.bool_), dim, keepdim)


def count_nonzero(input: Operand, dim: Dim = None) -> Tensor:
    """How many elements differ from 0.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int, sequence of int, optional
        The dims that go; all of them by default.

    Returns
    -------
    Tensor
        Without the dims; int64.
    """
    return sum(cast(lift(input, what="count_nonzero"), dtypes.bool_), dim)


def var_mean(
    input: Operand,
    dim: Any = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Variance and mean over dims, from one pass that merges (n, mean, M2).

    Parameters
    ----------
    input : Tensor
        Floats of any shape.
    dim : int, sequence of int, optional
        The dims that go; all of them by default.
    unbiased : bool, optional
        False is ``correction=0``.
    correction : float, optional
        The divisor is n minus this; 1 by default.
    keepdim : bool
        Leaves the dims as 1.

    Returns
    -------
    (Tensor, Tensor)
        Without the dims, or with size 1 there.

    Raises
    ------
    ConfigError
        If the input holds no floats.
    """
    dim, unbiased = plain(dim), plain(unbiased)
    if isinstance(dim, bool):  # torch's var(unbiased)
        dim, unbiased = None, dim
    x = lift(input, what="var")
    if not x.dtype.is_floating_point:
        raise ConfigError(f"var: must be given floats, got {x.dtype}; use x.float().var()")
    if correction is None:
        correction = 0.0 if unbiased is False else 1.0
    axes = axes_of(x, dim, "var")
    n = _count(x, dim, "var")
    if axes:
        mean, var = add_nodes("moments", x, axes=axes)
    else:
        mean, var = x, x * 0.0
    rest = builtins.max(n - correction, 0.0)
    if correction:
        var = var * (n / rest if rest else math.nan)
    if keepdim:
        shape = tuple(1 if i in axes else size for i, size in enumerate(x.shape))
        mean, var = mean.reshape(shape), var.reshape(shape)
    return var, mean


def var(
    input: Operand,
    dim: Any = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    """Variance over dims; see :func:`var_mean`.

    Parameters
    ----------
    input : Tensor
        Floats of any shape.
    dim : int, sequence of int, optional
        The dims that go; all of them by default.
    unbiased : bool, optional
        False is ``correction=0``.
    correction : float, optional
        The divisor is n minus this; 1 by default.
    keepdim : bool
        Leaves the dims as 1.

    Returns
    -------
    Tensor
        Without the dims, or with size 1 there.

    Raises
    ------
    ConfigError
        If the input holds no floats.
    """
    return var_mean(input, dim, unbiased, correction=correction, keepdim=keepdim)[0]


def std(
    input: Operand,
    dim: Any = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    """Standard deviation over dims; see :func:`var_mean`.

    Parameters
    ----------
    input : Tensor
        Floats of any shape.
    dim : int, sequence of int, optional
        The dims that go; all of them by default.
    unbiased : bool, optional
        False is ``correction=0``.
    correction : float, optional
        The divisor is n minus this; 1 by default.
    keepdim : bool
        Leaves the dims as 1.

    Returns
    -------
    Tensor
        Without the dims, or with size 1 there.

    Raises
    ------
    ConfigError
        If the input holds no floats.
    """
    return pointwise.sqrt(var(input, dim, unbiased, correction=correction, keepdim=keepdim))


def std_mean(
    input: Operand,
    dim: Any = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean over dims; see :func:`var_mean`.

    Parameters
    ----------
    input : Tensor
        Floats of any shape.
    dim : int, sequence of int, optional
        The dims that go; all of them by default.
    unbiased : bool, optional
        False is ``correction=0``.
    correction : float, optional
        The divisor is n minus this; 1 by default.
    keepdim : bool
        Leaves the dims as 1.

    Returns
    -------
    (Tensor, Tensor)
        Without the dims, or with size 1 there.

    Raises
    ------
    ConfigError
        If the input holds no floats.
    """
    var, mean = var_mean(input, dim, unbiased, correction=correction, keepdim=keepdim)
    return pointwise.sqrt(var), mean


def logsumexp(input: Operand, dim: Dim, keepdim: bool = False) -> Tensor:
    """``log(sum(e**x))`` over dims without overflow; -inf, with gradient 0, where all are -inf.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int or sequence of int
        The dims that go.
    keepdim : bool
        Leaves the dims as 1.

    Returns
    -------
    Tensor
        Without the dims, or with size 1 there.
    """
    x = lift_float(input, "logsumexp")
    axes = axes_of(x, dim, "logsumexp")
    largest = pointwise.detach(amax(x, axes, keepdim=True))
    shift = pointwise.where(comparison.isfinite(largest), largest, 0.0)
    total = sum(elementary.exp(x - shift), axes, keepdim=True)
    positive = total > 0
    result = pointwise.where(
        positive, elementary.log(pointwise.where(positive, total, 1.0)) + shift, largest
    )
    if keepdim or not axes:
        return result
    return result.reshape(tuple(size for i, size in enumerate(x.shape) if i not in axes))


def _along_last(op: str, x: Tensor, dim: int) -> Tensor:
    axis = axis_of(x, dim, op)
    if not x.ndim:
        return add_node(op, x.reshape(1)).reshape(())
    if axis == x.ndim - 1:
        return add_node(op, x)
    return add_node(op, x.movedim(axis, -1)).movedim(-1, axis)


def softmax(input: Operand, dim: int, *, dtype: Any = None) -> Tensor:
    """``e**x / sum(e**x)`` along a dim, without overflow.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The dim along which it sums to 1.
    dtype : dtype, optional
        The input is converted first.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "softmax")
    return _along_last("softmax", x if dtype is None else cast(x, dtypes.parse(dtype)), dim)


def log_softmax(input: Operand, dim: int, *, dtype: Any = None) -> Tensor:
    """``log(softmax(x))`` along a dim, without overflow.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The dim along which the softmax sums to 1.
    dtype : dtype, optional
        The input is converted first.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "log_softmax")
    return _along_last("log_softmax", x if dtype is None else cast(x, dtypes.parse(dtype)), dim)


def cumsum(input: Operand, dim: int, *, dtype: Any = None) -> Tensor:
    """Running sum along a dim.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The dim.
    dtype : dtype, optional
        The input is converted first.

    Returns
    -------
    Tensor
        The same shape. Integers and bools add up in int64.
    """
    x = _summand(lift(input, what="cumsum"), dtype)
    axis = axis_of(x, dim, "cumsum")
    return add_node("cumsum", x, axis=axis) if x.ndim else x


def norm(
    input: Operand, p: float | str | None = "fro", dim: Dim = None, keepdim: bool = False
) -> Tensor:
    """Vector norm over dims, ``(sum |x|**p) ** (1/p)``; the gradient at a zero vector is 0.

    Parameters
    ----------
    input : Tensor
        Any shape.
    p : float or "fro"
        Which norm; "fro" is 2. inf is the largest absolute value, -inf the smallest, 0 the number
        of elements that differ from 0.
    dim : int, sequence of int, optional
        The dims that go; all of them by default.
    keepdim : bool
        Leaves the dims as 1.

    Returns
    -------
    Tensor
        Without the dims, or with size 1 there.

    Raises
    ------
    ConfigError
        For another word as p.
    """
    x = lift_float(input, "norm")
    if p in ("fro", None) or p == 2:
        total = sum(pointwise.square(x), dim, keepdim)
        return _root(total, pointwise.sqrt)
    if isinstance(p, str):
        raise ConfigError(f'norm: p must be a number or "fro", got {p!r}')
    size = pointwise.abs(x)
    if p == math.inf:
        return amax(size, dim, keepdim)
    if p == -math.inf:
        return amin(size, dim, keepdim)
    if p == 0:
        return sum(cast(x != 0, x.dtype), dim, keepdim)
    if p == 1:
        return sum(size, dim, keepdim)
    zero = size == 0
    power = pointwise.where(zero, 0.0, pointwise.pow(pointwise.where(zero, 1.0, size), p))
    return _root(sum(power, dim, keepdim), lambda t: pointwise.pow(t, 1.0 / p))


def _root(total: Tensor, root: Any) -> Tensor:
    """root(total) with gradient 0 instead of infinity at 0."""
    zero = total == 0
    return pointwise.where(zero, 0.0, root(pointwise.where(zero, 1.0, total)))


make_eager(globals(), __all__)
