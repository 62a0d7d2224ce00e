"""Comparisons and logic, element by element; the result is bool."""

from __future__ import annotations

import math

from hotloop.graph import dtypes
from hotloop.graph.build import Operand, add_node, cast, lift, lift_float, unify
from hotloop.graph.eager import make_eager
from hotloop.graph.value import Tensor

__all__ = [
    "eq", "ge", "gt", "isclose", "isfinite", "isinf", "isnan", "le", "logical_and", "logical_not",
    "logical_or", "logical_xor", "lt", "ne",
]  # fmt: skip


def _compare(op: str, a: Operand, b: Operand) -> Tensor:
    return add_node(op, *unify(a, b, what=op))


def eq(input: Operand, other: Operand) -> Tensor:
    """Where ``a == b``.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.

    Returns
    -------
    Tensor
        The common shape; bool.
    """
    return _compare("eq", input, other)


def ne(input: Operand, other: Operand) -> Tensor:
    """Where ``a != b``.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.

    Returns
    -------
    Tensor
        The common shape; bool.
    """
    return _compare("ne", input, other)


def lt(input: Operand, other: Operand) -> Tensor:
    """Where ``a < b``.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.

    Returns
    -------
    Tensor
        The common shape; bool.
    """
    return _compare("lt", input, other)


def le(input: Operand, other: Operand) -> Tensor:
    """Where ``a <= b``.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.

    Returns
    -------
    Tensor
        The common shape; bool.
    """
    return _compare("le", input, other)


def gt(input: Operand, other: Operand) -> Tensor:
    """Where ``a > b``.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.

    Returns
    -------
    Tensor
        The common shape; bool.
    """
    return _compare("gt", input, other)


def ge(input: Operand, other: Operand) -> Tensor:
    """Where ``a >= b``.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.

    Returns
    -------
    Tensor
        The common shape; bool.
    """
    return _compare("ge", input, other)


def isclose(
    input: Operand,
    other: Operand,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Tensor:
    """``|a - b| <= atol + rtol * |b|``; infinities are close to themselves.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.
    rtol, atol : float
        Relative and absolute tolerance.
    equal_nan : bool
        Whether NaN is close to NaN.

    Returns
    -------
    Tensor
        The common shape. Bool.
    """
    a, b = unify(input, other, what="isclose")
    near = (add_node("abs", a - b) <= add_node("abs", b) * rtol + atol) & isfinite(a) & isfinite(b)
    close = near | (a == b)
    return close | (isnan(a) & isnan(b)) if equal_nan else close


def isfinite(input: Operand) -> Tensor:
    """Where x is neither NaN nor infinite.

    Parameters
    ----------
    input : Tensor
        Any shape.

    Returns
    -------
    Tensor
        The same shape; bool.
    """
    return add_node("isfinite", lift_float(input, "isfinite"))


def isinf(input: Operand) -> Tensor:
    """Where x is infinite.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.

    Returns
    -------
    Tensor
        The same shape; bool.
    """
    return add_node("abs", lift_float(input, "isinf")) == math.inf


def isnan(input: Operand) -> Tensor:
    """Where x is NaN.

    Parameters
    ----------
    input : Tensor
        Any shape.

    Returns
    -------
    Tensor
        The same shape; bool.
    """
    x = lift(input, what="isnan")
    return x != x


def logical_and(input: Operand, other: Operand) -> Tensor:
    """Where both differ from 0.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.

    Returns
    -------
    Tensor
        The common shape; bool.
    """
    return _compare("logical_and", input, other)


def logical_not(input: Operand) -> Tensor:
    """Where ``x == 0``.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.

    Returns
    -------
    Tensor
        The same shape; bool.
    """
    return add_node("logical_not", lift(input, what="logical_not"))


def logical_or(input: Operand, other: Operand) -> Tensor:
    """Where one of them differs from 0, or both.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.

    Returns
    -------
    Tensor
        The common shape; bool.
    """
    return _compare("logical_or", input, other)


def logical_xor(input: Operand, other: Operand) -> Tensor:
    """Where exactly one differs from 0.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.

    Returns
    -------
    Tensor
        The common shape; bool.
    """
    a, b = unify(input, other, what="logical_xor")
    return cast(a, dtypes.bool_) != cast(b, dtypes.bool_)


make_eager(globals(), __all__)
