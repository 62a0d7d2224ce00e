"""Exponentials, logarithms, trigonometric and hyperbolic functions, element by element.

What the op table lacks is composed here.
"""

from __future__ import annotations

import math

from hotloop.graph.build import Operand, lift_float, unify
from hotloop.graph.eager import make_eager
from hotloop.graph.pointwise import binary_float, clamp, unary_float, where
from hotloop.graph.value import Tensor

__all__ = [
    "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2",
    "logaddexp", "logit", "sigmoid", "sin", "sinh", "tan", "tanh", "xlogy",
]  # fmt: skip


def exp(input: Operand) -> Tensor:
    """``e**x``.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return unary_float("exp", input)


def exp2(input: Operand) -> Tensor:
    """``2**x``.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return exp(lift_float(input, "exp2") * math.log(2.0))


def expm1(input: Operand) -> Tensor:
    """``e**x - 1``, exact near 0.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return unary_float("expm1", input)


def log(input: Operand) -> Tensor:
    """Natural logarithm; -inf at 0, NaN below.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return unary_float("log", input)


def log1p(input: Operand) -> Tensor:
    """``log(1 + x)``, exact near 0.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return unary_float("log1p", input)


def log2(input: Operand) -> Tensor:
    """Logarithm to base 2; -inf at 0, NaN below.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return log(input) * (1.0 / math.log(2.0))


def log10(input: Operand) -> Tensor:
    """Logarithm to base 10; -inf at 0, NaN below.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return log(input) * (1.0 / math.log(10.0))


def logit(input: Operand, eps: float | None = None) -> Tensor:
    """``log(x / (1 - x))``.

    Parameters
    ----------
    input : Tensor
        Probabilities, any shape.
    eps : float, optional
        Clamps them to ``[eps, 1 - eps]``.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "logit")
    if eps is not None:
        x = clamp(x, eps, 1.0 - eps)
    return log(x / (1.0 - x))


def logaddexp(input: Operand, other: Operand) -> Tensor:
    """``log(e**a + e**b)`` without overflow.

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype, integers and bools to float32.

    Returns
    -------
    Tensor
        The common shape.

    Notes
    -----
    Equal operands share the gradient, equal infinities too, where torch's is NaN.
    """
    return binary_float("logaddexp", input, other)


def xlogy(input: Operand, other: Operand) -> Tensor:
    """``a * log(b)``, 0 where a is 0 (and b is not NaN).

    Parameters
    ----------
    input, other : Tensor or number
        Shapes that broadcast; brought to one dtype, integers and bools to float32.

    Returns
    -------
    Tensor
        The common shape.
    """
    a, b = unify(input, other, what="xlogy")
    zero = (a == 0) & ((b <= 0) | (b == math.inf))  # elsewhere 0 * log(b) is 0 by itself
    return where(zero, 0.0, a * log(where(zero, 1.0, b)))


def sin(input: Operand) -> Tensor:
    """Sine of radians.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return unary_float("sin", input)


def cos(input: Operand) -> Tensor:
    """Cosine of radians.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return unary_float("cos", input)


def tan(input: Operand) -> Tensor:
    """Tangent of radians.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return sin(input) / cos(input)


def sinh(input: Operand) -> Tensor:
    """Hyperbolic sine, exact near 0.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "sinh")
    return (expm1(x) - expm1(-x)) * 0.5


def cosh(input: Operand) -> Tensor:
    """Hyperbolic cosine.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "cosh")
    return (exp(x) + exp(-x)) * 0.5


def tanh(input: Operand) -> Tensor:
    """Hyperbolic tangent.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return unary_float("tanh", input)


def sigmoid(input: Operand) -> Tensor:
    """``1 / (1 + e**-x)``.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return unary_float("sigmoid", input)


def erf(input: Operand) -> Tensor:
    """Error function.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return unary_float("erf", input)


def erfc(input: Operand) -> Tensor:
    """``1 - erf(x)``; not accurate relative to tiny results, as the difference it is.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return 1.0 - erf(input)


make_eager(globals(), __all__)
