"""Activations. ``inplace`` is taken for torch's sake and means nothing: values never change.

At the corners of piecewise functions the gradient is torch's. A branch that would overflow is
computed from masked input, because the gradient of an infinity that ``where`` drops is NaN.
"""

from __future__ import annotations

from typing import Any

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import elementary, pointwise, reduction
from hotloop.graph.build import Operand, add_node, axis_of, lift, lift_float
from hotloop.graph.creation import uniform_bits
from hotloop.graph.pointwise import where
from hotloop.graph.symbolic import Tensor
from hotloop.nn.functional.arguments import (
    Approximation,
    NonNegative,
    NonZero,
    Positive,
    Real,
    make_functions,
)

__all__ = [
    "celu", "elu", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish",
    "hardtanh", "leaky_relu", "log_softmax", "logsigmoid", "mish", "prelu", "relu", "relu6",
    "rrelu", "selu", "silu", "softmax", "softmin", "softplus", "softshrink", "softsign",
    "tanhshrink", "threshold",
]  # fmt: skip

# Klambauer et al. 2017, as torch rounds them.
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def gelu(input: Operand, approximate: Approximation = "none") -> Tensor:
    """Gaussian error linear unit, ``x · Φ(x)`` (Hendrycks and Gimpel 2016).

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    approximate : {"none", "tanh"}
        "none" is exact on every device. "tanh" approximates Φ by a tanh; on a GPU it may be the
        epilogue of a product (cuBLASLt has that form alone), which saves a pass over memory,
        forward and backward.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ConfigError
        For another approximation.
    """
    x = lift_float(input, "gelu")
    if approximate == "none":
        return add_node("gelu_erf", x)
    if approximate == "tanh":
        return add_node("gelu", x)
    raise ConfigError(f'gelu: approximate must be "none" or "tanh", got {approximate!r}')


def silu(input: Operand, inplace: bool = False) -> Tensor:
    """Swish, ``x · sigmoid(x)``.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "silu")
    return x * elementary.sigmoid(x)


def mish(input: Operand, inplace: bool = False) -> Tensor:
    """``x · tanh(softplus(x))`` (Misra 2019).

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "mish")
    return x * elementary.tanh(add_node("softplus", x))


def softplus(input: Operand, beta: NonZero = 1.0, threshold: Real = 20.0) -> Tensor:
    """``log(1 + e**(beta·x)) / beta``.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    beta : float
        Sharpness: the larger, the nearer to relu.
    threshold : float
        Where ``beta·x`` is above it the result is x itself.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "softplus")
    scaled = x if beta == 1 else x * beta
    smooth = add_node("softplus", scaled)
    return where(scaled > threshold, x, smooth if beta == 1 else smooth / beta)


def logsigmoid(input: Operand) -> Tensor:
    """``log(sigmoid(x))`` without overflow.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    return -add_node("softplus", -lift_float(input, "logsigmoid"))


def softsign(input: Operand) -> Tensor:
    """``x / (1 + |x|)``.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "softsign")
    return x / (pointwise.abs(x) + 1.0)


def tanhshrink(input: Operand) -> Tensor:
    """``x - tanh(x)``.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "tanhshrink")
    return x - elementary.tanh(x)


def hardtanh(
    input: Operand, min_val: Real = -1.0, max_val: Real = 1.0, inplace: bool = False
) -> Tensor:
    """x limited to ``[min_val, max_val]``; gradient 0 at the ends.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.
    min_val, max_val : float
        The limits.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ConfigError
        If min_val is above max_val.
    """
    if not min_val <= max_val:
        raise ConfigError(f"hardtanh: min_val must not exceed max_val, got {min_val}, {max_val}")
    x = lift(input, what="hardtanh")
    return where(x <= min_val, min_val, where(x >= max_val, max_val, x))


def relu(input: Operand, inplace: bool = False) -> Tensor:
    """Rectified linear unit, ``max(x, 0)``; gradient 0 at 0, and NaN stays NaN.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.
    """
    return pointwise.relu(input)


def relu6(input: Operand, inplace: bool = False) -> Tensor:
    """x limited to ``[0, 6]``; gradient 0 at the ends.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.
    """
    return hardtanh(input, 0.0, 6.0)


def hardsigmoid(input: Operand, inplace: bool = False) -> Tensor:
    """``relu6(x + 3) / 6``.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.
    """
    return hardtanh(lift_float(input, "hardsigmoid") + 3.0, 0.0, 6.0) / 6.0


def hardswish(input: Operand, inplace: bool = False) -> Tensor:
    """``x · relu6(x + 3) / 6`` (Howard et al. 2019).

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "hardswish")
    return where(x <= -3.0, 0.0, where(x >= 3.0, x, x * (x + 3.0) / 6.0))


def leaky_relu(input: Operand, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where positive, else ``negative_slope · x``.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.
    negative_slope : float
        Slope of the negative side.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift(input, what="leaky_relu")
    return where(x > 0, x, x * negative_slope)


def prelu(input: Operand, weight: Operand) -> Tensor:
    """x where positive, else ``weight · x``.

    Parameters
    ----------
    input : Tensor
        ``(N, C, ...)``, or ``(N,)``.
    weight : Tensor
        One number, or one per channel ``(C,)`` (dim 1).

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ShapeError
        If the weight has neither one number nor one per channel.
    """
    x, slope = lift(input, what="prelu"), lift(weight, what="prelu")
    if slope.numel() != 1:
        channels = x.shape[1] if x.ndim > 1 else 1
        if slope.ndim != 1 or slope.shape[0] != channels:
            raise ShapeError(
                f"prelu: weight must be one number or one per channel, {channels} for input of "
                f"shape {x.shape}, got shape {slope.shape}"
            )
        slope = slope.reshape(-1, *(1,) * (x.ndim - 2))
    else:
        slope = slope.reshape(())
    return where(x > 0, x, x * slope)


def check_slopes(what: str, lower: float, upper: float) -> None:
    """Refuses a range of slopes without any.

    Raises
    ------
    ConfigError
    """
    if lower > upper:
        raise ConfigError(f"{what}: lower must not exceed upper, got {lower} and {upper}")


def rrelu(
    input: Operand,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    """As :func:`leaky_relu` with a random slope in training.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    lower, upper : float
        The slope is uniform in ``[lower, upper)``, one per element, new ones in every step.
    training : bool
        False: their mean is the slope.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ConfigError
        If lower is above upper.
    """
    check_slopes("rrelu", lower, upper)
    x = lift_float(input, "rrelu")
    if not training:
        return leaky_relu(x, (lower + upper) / 2)
    slope = uniform_bits(x.shape, "rrelu") * (upper - lower) + lower
    return where(x > 0, x, x * slope.to(x.dtype))


def _negative(x: Tensor) -> Tensor:
    """x where not positive, else 0: the input of a branch for negative x alone."""
    return where(x > 0, 0.0, x)


def elu(input: Operand, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where positive, else ``alpha · (e**x - 1)`` (Clevert et al. 2016).

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    alpha : float
        Minus the limit for x towards minus infinity.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "elu")
    return where(x > 0, x, elementary.expm1(_negative(x)) * alpha)


def celu(input: Operand, alpha: NonZero = 1.0, inplace: bool = False) -> Tensor:
    """x where positive, else ``alpha · (e**(x / alpha) - 1)`` (Barron 2017).

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    alpha : float
        Minus the limit for x towards minus infinity.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ConfigError
        If alpha is 0.
    """
    x = lift_float(input, "celu")
    return where(x > 0, x, elementary.expm1(_negative(x) / alpha) * alpha)


def selu(input: Operand, inplace: bool = False) -> Tensor:
    """``scale · elu(x, alpha)`` with constants that keep mean 0 and variance 1 from layer to
    layer (Klambauer et al. 2017).

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.
    """
    return elu(input, SELU_ALPHA) * SELU_SCALE


def softshrink(input: Operand, lambd: NonNegative = 0.5) -> Tensor:
    """x moved towards 0 by ``lambd``, 0 within it.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    lambd : float
        At least 0.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ConfigError
        If lambd is negative.
    """
    x = lift_float(input, "softshrink")
    return where(x > lambd, x - lambd, where(x < -lambd, x + lambd, x * 0.0))


def hardshrink(input: Operand, lambd: float = 0.5) -> Tensor:
    """x outside ``[-lambd, lambd]``, 0 within.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    lambd : float
        Half the width of what becomes 0.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "hardshrink")
    return where((x >= -lambd) & (x <= lambd), 0.0, x)


def threshold(input: Operand, threshold: Real, value: Real, inplace: bool = False) -> Tensor:
    """x where above ``threshold``, else ``value``.

    Parameters
    ----------
    input : Tensor
        Any shape and dtype.
    threshold : float
        What x is compared with.
    value : float
        What stands where x is not above it.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift(input, what="threshold")
    return where(x <= threshold, value, x)


def glu(input: Operand, dim: int = -1) -> Tensor:
    """Gated linear unit, ``a · sigmoid(b)``, a and b the halves along a dim (Dauphin et al. 2017).

    Parameters
    ----------
    input : Tensor
        A dim of even size; integers and bools become float32.
    dim : int
        The dim that is halved.

    Returns
    -------
    Tensor
        Half as long along the dim.

    Raises
    ------
    ShapeError
        If the dim's size is odd.
    """
    x = lift_float(input, "glu")
    axis = axis_of(x, dim, "glu")
    if not x.ndim or x.shape[axis] % 2:
        raise ShapeError(f"glu: dim {dim} must be even, got shape {x.shape}")
    a, b = x.chunk(2, axis)
    return a * elementary.sigmoid(b)


def _softmax_dim(x: Tensor, dim: int | None) -> int:
    """torch's rule where no dim is given: 0 for 0, 1 or 3 dims, else 1."""
    if dim is not None:
        return dim
    return 0 if x.ndim in (0, 1, 3) else 1


def softmax(
    input: Operand, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """``e**x / sum(e**x)`` along a dim, without overflow.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    dim : int, optional
        The dim along which it sums to 1; without one, torch's rule: dim 0 of 0, 1 or 3 dims,
        else dim 1.
    dtype : dtype, optional
        The input is converted first.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "softmax")
    return reduction.softmax(x, _softmax_dim(x, dim), dtype=dtype)


def softmin(
    input: Operand, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """``softmax(-x)`` along a dim.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    dim : int, optional
        The dim along which it sums to 1; without one, torch's rule: dim 0 of 0, 1 or 3 dims,
        else dim 1.
    dtype : dtype, optional
        The input is converted first.

    Returns
    -------
    Tensor
        The same shape.
    """
    return softmax(-lift_float(input, "softmin"), dim, dtype=dtype)


def log_softmax(
    input: Operand, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """``log(softmax(x))`` along a dim, without overflow.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    dim : int, optional
        The dim along which the softmax sums to 1; without one, torch's rule: dim 0 of 0, 1 or 3
        dims, else dim 1.
    dtype : dtype, optional
        The input is converted first.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "log_softmax")
    return reduction.log_softmax(x, _softmax_dim(x, dim), dtype=dtype)


def gumbel_softmax(
    logits: Operand, tau: Positive = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """A sample near one-hot, differentiable (Jang et al. 2017); new noise in each step.

    Parameters
    ----------
    logits : Tensor
        Unnormalised log probabilities, any shape.
    tau : float or Tensor
        Temperature; ``hl.scalar`` anneals it.
    hard : bool
        One-hot, with the soft sample's gradient.
    eps : float
        Taken for torch's sake.
    dim : int
        The classes' dim.

    Returns
    -------
    Tensor
        The same shape; sums to 1 along the dim.
    """
    x = lift_float(logits, "gumbel_softmax")
    noise = -elementary.log(-elementary.log(uniform_bits(x.shape, "gumbel_softmax")))
    soft = reduction.softmax((x + noise.to(x.dtype)) / tau, dim)
    if not hard:
        return soft
    axis = axis_of(x, dim, "gumbel_softmax")
    best = reduction.argmax(soft, axis, keepdim=True)
    one: Tensor = x.new_zeros(x.shape).scatter(axis, best, 1.0)
    return one + (soft - soft.detach())


make_functions(globals(), __all__)
