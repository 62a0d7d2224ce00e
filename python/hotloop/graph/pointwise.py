"""Arithmetic, rounding, bounds and choices, element by element, by torch's names and rules.

What the op table lacks is composed here. Where a formula is only right on part of the line, the
other part is masked before the formula, not after: the gradient of a masked infinity is NaN.
"""

from __future__ import annotations

import math
from typing import Any

from hotloop.base.scalars import plain
from hotloop.errors import TraceError
from hotloop.graph import dtypes
from hotloop.graph.build import Number, Operand, add_node, cast, is_number, lift, lift_float, unify
from hotloop.graph.comparison import isnan
from hotloop.graph.eager import make_eager
from hotloop.graph.value import Tensor

__all__ = [
    "abs", "add", "addcmul", "ceil", "clamp", "clamp_max", "clamp_min", "clip", "div", "floor",
    "floor_divide", "frac", "lerp", "masked_fill", "maximum", "minimum", "mul", "nan_to_num",
    "neg", "pow", "reciprocal", "relu", "remainder", "round", "rsqrt", "sign", "sqrt", "square",
    "sub", "true_divide", "trunc", "where",
]  # fmt: skip


def _unary(op: str, x: Operand) -> Tensor:
    return add_node(op, lift(x, what=op))


def unary_float(op: str, x: Operand) -> Tensor:
    """A pointwise op of one tensor; integers and bools become float32."""
    return add_node(op, lift_float(x, op))


def _binary(op: str, a: Operand, b: Operand) -> Tensor:
    return add_node(op, *unify(a, b, what=op))


def binary_float(op: str, a: Operand, b: Operand) -> Tensor:
    """A pointwise op of two operands in one dtype; integers and bools become float32."""
    a, b = unify(a, b, what=op)
    if not a.dtype.is_floating_point:
        a, b = cast(a, dtypes.default_float), cast(b, dtypes.default_float)
    return add_node(op, a, b)


# ---------------------------------------------------------------------------- of one tensor


def abs(input: Operand) -> Tensor:
    """``|x|``; gradient 0 at 0.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.

    Returns
    -------
    Tensor
        The same shape and dtype.
    """
    return _unary("abs", input)


def neg(input: Operand) -> Tensor:
    """``-x``.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.

    Returns
    -------
    Tensor
        The same shape and dtype.
    """
    return _unary("neg", input)


def sign(input: Operand) -> Tensor:
    """-1, 0 or 1.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.

    Returns
    -------
    Tensor
        The same shape and dtype.
    """
    return _unary("sign", input)


def sqrt(input: Operand) -> Tensor:
    """Square root; NaN below 0.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return unary_float("sqrt", input)


def rsqrt(input: Operand) -> Tensor:
    """``1 / sqrt(x)``; infinity at 0, NaN below.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return unary_float("rsqrt", input)


def reciprocal(input: Operand) -> Tensor:
    """``1 / x``.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return unary_float("reciprocal", input)


def square(input: Operand) -> Tensor:
    """``x * x``.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.

    Returns
    -------
    Tensor
        The same shape and dtype.
    """
    x = lift(input, what="square")
    return add_node("mul", x, x)


def relu(input: Operand) -> Tensor:
    """``max(x, 0)``; gradient 0 at 0, and NaN stays NaN.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.

    Returns
    -------
    Tensor
        The same shape and dtype.
    """
    return _unary("relu", input)


def floor(input: Operand) -> Tensor:
    """Largest integer not above x; no gradient.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.

    Returns
    -------
    Tensor
        The same shape and dtype.
    """
    return _rounded("floor", input)


def ceil(input: Operand) -> Tensor:
    """Smallest integer not below x; no gradient.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.

    Returns
    -------
    Tensor
        The same shape and dtype.
    """
    return _rounded("ceil", input)


def round(input: Operand, *, decimals: int = 0) -> Tensor:
    """The nearest integer, halves to even; no gradient.

    Parameters
    ----------
    input : Tensor
        Any shape.
    decimals : int
        Places after the point that are kept.

    Returns
    -------
    Tensor
        The same shape and dtype.
    """
    if decimals:
        return _rounded("round", lift(input, what="round") * 10.0**decimals) / 10.0**decimals
    return _rounded("round", input)


def _rounded(op: str, x: Operand) -> Tensor:
    x = lift(x, what=op)
    return add_node(op, x) if x.dtype.is_floating_point else x


def trunc(input: Operand) -> Tensor:
    """To the integer nearest towards 0; no gradient.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.

    Returns
    -------
    Tensor
        The same shape and dtype.
    """
    x = lift(input, what="trunc")
    return where(x < 0, ceil(x), floor(x))


def frac(input: Operand) -> Tensor:
    """``x - trunc(x)``.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.

    Returns
    -------
    Tensor
        The same shape and dtype.
    """
    x = lift(input, what="frac")
    return x - trunc(x)


def detach(input: Operand) -> Tensor:
    """The same value; no gradient passes.

    Parameters
    ----------
    input : Tensor
        Any shape.

    Returns
    -------
    Tensor
        The same shape and dtype.
    """
    x = lift(input, what="detach")
    return add_node("detach", x) if x.dtype.is_floating_point else x


def nan_to_num(
    input: Operand, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN and infinities replaced.

    Parameters
    ----------
    input : Tensor
        Any shape.
    nan : float
        In place of NaN.
    posinf, neginf : float, optional
        In place of infinities; the largest finite float32 and its negative by default.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "nan_to_num")
    largest = 3.4028234663852886e38
    x = where(isnan(x), nan, x)
    x = where(x == math.inf, largest if posinf is None else posinf, x)
    return where(x == -math.inf, -largest if neginf is None else neginf, x)


# ---------------------------------------------------------------------------- of two tensors


def add(input: Operand, other: Operand, *, alpha: Number = 1) -> Tensor:
    """``a + alpha * b``.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.
    alpha : number
        Factor of the second.

    Returns
    -------
    Tensor
        The common shape.
    """
    return _binary("add", input, other if alpha == 1 else mul(other, alpha))


def sub(input: Operand, other: Operand, *, alpha: Number = 1) -> Tensor:
    """``a - alpha * b``.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.
    alpha : number
        Factor of the second.

    Returns
    -------
    Tensor
        The common shape.

    Raises
    ------
    TraceError
        For two bool tensors.
    """
    a, b = unify(input, other if alpha == 1 else mul(other, alpha), what="sub")
    if a.dtype == dtypes.bool_:
        raise TraceError("sub: must be given numbers, got two bool tensors; use ^ or logical_xor")
    return add_node("sub", a, b)


def mul(input: Operand, other: Operand) -> Tensor:
    """``a * b``.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.

    Returns
    -------
    Tensor
        The common shape.
    """
    return _binary("mul", input, other)


def div(input: Operand, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
    """``a / b``.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.
    rounding_mode : {None, "floor", "trunc"}
        None: in floating point; "floor" rounds the quotient down, "trunc" towards 0.

    Returns
    -------
    Tensor
        The common shape.

    Raises
    ------
    TraceError
        For another rounding_mode.
    """
    if rounding_mode is None:
        return binary_float("div", input, other)
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if rounding_mode != "trunc":
        raise TraceError(
            f'div: rounding_mode must be None, "floor" or "trunc", got {rounding_mode!r}'
        )
    a, b = unify(input, other, what="div")
    return cast(trunc(binary_float("div", a, b)), a.dtype)


def true_divide(input: Operand, other: Operand) -> Tensor:
    """``a / b`` in floating point.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype, integers and bools to float32.

    Returns
    -------
    Tensor
        The common shape.
    """
    return div(input, other)


def floor_divide(input: Operand, other: Operand) -> Tensor:
    """``floor(a / b)`` in the operands' dtype; no gradient.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.

    Returns
    -------
    Tensor
        The common shape.

    Notes
    -----
    Integers are divided exactly: by ``(a - a mod b) / b``, rounded.
    """
    a, b = unify(input, other, what="floor_divide")
    if a.dtype.is_floating_point:
        return floor(add_node("div", a, b))
    whole = add_node("sub", a, add_node("remainder", a, b))
    quotient = binary_float("div", cast(whole, dtypes.float64), cast(b, dtypes.float64))
    return cast(round(quotient), a.dtype)


def remainder(input: Operand, other: Operand) -> Tensor:
    """``a - floor(a / b) * b``, with the sign of b.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.

    Returns
    -------
    Tensor
        The common shape.

    Notes
    -----
    The gradient of a is 1; b gets none for numbers, else ``-floor(a / b)``.
    """
    a, b = unify(input, other, what="remainder")
    value = add_node("remainder", a, b)
    if not a.dtype.is_floating_point:
        return value
    # The op has no gradient of its own: this adds zero, with the right one.
    linear = a if is_number(other) else a - b * detach(floor(a / b))
    return detach(value) + (linear - detach(linear))


def pow(input: Operand, exponent: Operand) -> Tensor:
    """``a ** b``. Squares and small powers of numbers are products.

    Parameters
    ----------
    input, exponent : Tensor or number
        Shapes that broadcast.

    Returns
    -------
    Tensor
        The common shape.
    """
    exponent = plain(exponent)
    if is_number(exponent) and not isinstance(exponent, bool):
        x = lift(input, what="pow")
        if exponent == 1:
            return x
        if exponent == 2:
            return square(x)
        if exponent == 3:
            return square(x) * x
        if exponent == 0.5 and x.dtype.is_floating_point:
            return sqrt(x)
        if exponent == -1 and x.dtype.is_floating_point:
            return reciprocal(x)
    return binary_float("pow", input, exponent)


def maximum(input: Operand, other: Operand) -> Tensor:
    """The larger of two; NaN if either is; ties share the gradient.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.

    Returns
    -------
    Tensor
        The common shape.
    """
    return _binary("maximum", input, other)


def minimum(input: Operand, other: Operand) -> Tensor:
    """The smaller of two; NaN if either is; ties share the gradient.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype.

    Returns
    -------
    Tensor
        The common shape.
    """
    return _binary("minimum", input, other)


# ---------------------------------------------------------------------------- of three


def where(condition: Operand, input: Operand, other: Operand) -> Tensor:
    """One value where a condition holds, else another.

    Parameters
    ----------
    condition : Tensor
        Bool.
    input, other : Tensor or number
        Brought to one dtype; all three broadcast.

    Returns
    -------
    Tensor
        The common shape.
    """
    mask = lift(condition, what="where")
    a, b = unify(input, other, what="where")
    return add_node("where", cast(mask, dtypes.bool_), a, b)


def masked_fill(input: Operand, mask: Operand, value: Operand) -> Tensor:
    """``input`` with a value where a mask holds.

    Parameters
    ----------
    input : Tensor
        Any shape.
    mask : Tensor
        Bool; broadcasts with it.
    value : Tensor or number
        Converted to the input's dtype.

    Returns
    -------
    Tensor
        The common shape.
    """
    x = lift(input, what="masked_fill")
    return where(mask, cast(lift(value, what="masked_fill"), x.dtype), x)


def clamp(input: Operand, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """x limited to ``[min, max]``; the gradient passes inside, ends included.

    Parameters
    ----------
    input : Tensor
        Any shape.
    min, max : Tensor or number, optional
        At least one of them; where min > max, max wins.

    Returns
    -------
    Tensor
        The common shape.

    Raises
    ------
    TraceError
        If neither is given.
    """
    x = lift(input, what="clamp")
    if min is None and max is None:
        raise TraceError("clamp: must be given min, max or both, got neither")
    if min is not None:
        x = where(x < min, min, x)
    if max is not None:
        x = where(x > max, max, x)
    return x


def clamp_min(input: Operand, min: Operand) -> Tensor:
    """x, but at least ``min``, as of :func:`clamp`.

    Parameters
    ----------
    input : Tensor
        Any shape.
    min : Tensor or number
        The least value.

    Returns
    -------
    Tensor
        The common shape.
    """
    return clamp(input, min=min)


def clamp_max(input: Operand, max: Operand) -> Tensor:
    """x, but at most ``max``, as of :func:`clamp`.

    Parameters
    ----------
    input : Tensor
        Any shape.
    max : Tensor or number
        The largest value.

    Returns
    -------
    Tensor
        The common shape.
    """
    return clamp(input, max=max)


def clip(input: Operand, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """The same as :func:`clamp`.

    Parameters
    ----------
    input : Tensor
        Any shape.
    min, max : Tensor or number, optional
        As for :func:`clamp`.

    Returns
    -------
    Tensor
        The common shape.
    """
    return clamp(input, min, max)


def lerp(input: Operand, end: Operand, weight: Operand) -> Tensor:
    """``input + weight * (end - input)``.

    Parameters
    ----------
    input, end : Tensor
        The values at weight 0 and 1.
    weight : Tensor or number
        All three broadcast.

    Returns
    -------
    Tensor
        The common shape.
    """
    a, b = unify(input, end, what="lerp")
    return a + weight * (b - a)


def addcmul(input: Operand, tensor1: Operand, tensor2: Operand, *, value: Number = 1) -> Tensor:
    """``input + value * tensor1 * tensor2``.

    Parameters
    ----------
    input, tensor1, tensor2 : Tensor
        Shapes that broadcast.
    value : number
        The factor.

    Returns
    -------
    Tensor
        The common shape.
    """
    product: Any = mul(tensor1, tensor2)
    return _binary("add", input, product if value == 1 else product * value)


make_eager(globals(), __all__)
