"""Normalisation by batch statistics, by rows, by root mean square."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import pointwise, reduction
from hotloop.graph.build import Operand, add_node, add_nodes, cast, lift, lift_float
from hotloop.graph.creation import full
from hotloop.graph.dtypes import float32
from hotloop.nn.functional.arguments import NonNegative, Shape, make_functions

if TYPE_CHECKING:
    from hotloop.graph.dtypes import DType
    from hotloop.graph.symbolic import Tensor

__all__ = ["batch_norm", "layer_norm", "rms_norm"]

# The distance from 1 to the next number, torch's default of rms_norm's eps.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def batch_norm(
    input: Operand,
    running_mean: Any,
    running_var: Any,
    weight: Operand | None = None,
    bias: Operand | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: NonNegative = 1e-5,
) -> Tensor:
    """``(x - mean) / sqrt(var + eps) · weight + bias`` per channel (Ioffe and Szegedy 2015).

    Parameters
    ----------
    input : Tensor
        ``(N, C)`` or ``(N, C, ...)``.
    running_mean, running_var : Buffer, optional
        ``(C,)``. In training they move towards the batch's statistics (the variance unbiased)
        by ``momentum``; else they are what is normalised by.
    weight, bias : Tensor, optional
        ``(C,)``.
    training : bool
        Whether the batch's statistics are used.
    momentum : float or Tensor
        The share of the batch in the running statistics.
    eps : float
        Added to the variance.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ShapeError
        If the channels do not fit, or in training if there is one value per channel only.
    ConfigError
        If the running statistics are no buffers in training.
    """
    x = lift_float(input, "batch_norm")
    if x.ndim < 2:
        raise ShapeError(f"batch_norm: input must have at least 2 dims, got shape {x.shape}")
    channels = x.shape[1]
    for name, value in (("running_mean", running_mean), ("weight", weight), ("bias", bias)):
        shape = None if value is None else tuple(lift(value, what="batch_norm").shape)
        if shape is not None and shape != (channels,):
            raise ShapeError(
                f"batch_norm: {name} must have shape ({channels},) for input of shape "
                f"{x.shape}, got {shape}"
            )
    w = _of_channels(x, weight, 1.0)
    b = _of_channels(x, bias, 0.0)
    if not training:
        scale = w * pointwise.rsqrt(lift(running_var, what="batch_norm") + eps)
        shift = b - lift(running_mean, what="batch_norm") * scale
        spread = (channels, *(1,) * (x.ndim - 2))
        return cast(x * scale.reshape(spread) + shift.reshape(spread), x.dtype)
    n = x.numel() // channels if channels else 0
    x.trace.least_values = min(n, x.trace.least_values or n)
    if n < 2:
        raise ShapeError(
            "batch_norm: training needs more than one value per channel, got input of shape "
            f"{x.shape}; use a larger batch"
        )
    for name, running in (("running_mean", running_mean), ("running_var", running_var)):
        if running is not None and not hasattr(running, "assign"):
            raise ConfigError(
                f"batch_norm: {name} must be an nn.Buffer, which training moves, got "
                f"{type(running).__name__}; use nn.Buffer(array), or None"
            )
    y, mean, var = add_nodes("batch_norm", x, w, b, eps=float(eps), dtype=x.dtype)
    for running, value, unbiased in ((running_mean, mean, 1.0), (running_var, var, n / (n - 1))):
        if running is not None:
            # Written as a sum of two products, torch's form: a + m (b - a) rounds differently.
            running.assign(running * (1.0 - momentum) + value * (momentum * unbiased))
    return y


def _of_channels(x: Tensor, value: Operand | None, default: float) -> Tensor:
    if value is None:
        made: Tensor = full((x.shape[1],), default, dtype=_own(x))
        return made
    return cast(lift(value, what="batch_norm"), _own(x))


def _own(x: Tensor) -> DType:
    """What a norm of x computes in: its parameters' and statistics' dtype."""
    return float32 if x.dtype in ("bfloat16", "float16") else x.dtype


def _check_trailing(x: Tensor, shape: tuple[int, ...], what: str) -> None:
    if not shape or x.shape[-len(shape) :] != shape:
        raise ShapeError(
            f"{what}: the input's last dims must be normalized_shape={shape}, got input of "
            f"shape {x.shape}"
        )


def _as_shape(normalized_shape: Shape) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


def layer_norm(
    input: Operand,
    normalized_shape: Shape,
    weight: Operand | None = None,
    bias: Operand | None = None,
    eps: NonNegative = 1e-5,
) -> Tensor:
    """``(x - mean) / sqrt(var + eps) · weight + bias`` over the last dims (Ba et al. 2016).

    Parameters
    ----------
    input : Tensor
        ``(..., *normalized_shape)``.
    normalized_shape : int or sequence of int
        The dims that are normalised together.
    weight, bias : Tensor, optional
        Of normalized_shape.
    eps : float
        Added to the variance.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ShapeError
        If the input does not end in normalized_shape.
    """
    x, shape = lift_float(input, "layer_norm"), _as_shape(normalized_shape)
    _check_trailing(x, shape, "layer_norm")
    inputs = [x]
    if weight is not None or bias is not None:
        if weight is None:
            inputs.append(full(shape, 1.0, dtype=_own(x)))
        else:
            inputs.append(cast(lift(weight, what="layer_norm"), _own(x)))
    if bias is not None:
        inputs.append(cast(lift(bias, what="layer_norm"), _own(x)))
    return add_node("layer_norm", *inputs, n_axes=len(shape), eps=float(eps), dtype=x.dtype)


def rms_norm(
    input: Operand,
    normalized_shape: Shape,
    weight: Operand | None = None,
    eps: NonNegative | None = None,
) -> Tensor:
    """``x / sqrt(mean(x²) + eps) · weight`` over the last dims (Zhang and Sennrich 2019).

    Parameters
    ----------
    input : Tensor
        ``(..., *normalized_shape)``.
    normalized_shape : int or sequence of int
        The dims that are normalised together.
    weight : Tensor, optional
        Of normalized_shape.
    eps : float, optional
        Added to the mean square; by default the dtype's distance from 1 to the next number.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ShapeError
        If the input does not end in normalized_shape.
    """
    x, shape = lift_float(input, "rms_norm"), _as_shape(normalized_shape)
    _check_trailing(x, shape, "rms_norm")
    axes = list(range(x.ndim - len(shape), x.ndim))
    total = reduction.sum(pointwise.square(x), axes, keepdim=True)
    added = EPSILON[x.dtype] if eps is None else eps
    y = x * pointwise.rsqrt(total / math.prod(shape) + added)
    return y if weight is None else y * weight


make_functions(globals(), __all__)
