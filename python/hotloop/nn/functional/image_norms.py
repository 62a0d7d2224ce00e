"""Normalisation by statistics of each sample: of groups of channels, of channels, of neighbours."""

from __future__ import annotations

import math
from typing import Any

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import pointwise, reduction, views
from hotloop.graph.build import Operand, cast, lift, lift_float
from hotloop.graph.dtypes import float32
from hotloop.graph.value import Tensor
from hotloop.nn.functional.arguments import Count, NonNegative, make_functions
from hotloop.nn.functional.bands import apply_band

__all__ = ["group_norm", "instance_norm", "local_response_norm"]


def _spread(x: Tensor, values: Tensor) -> Tensor:
    """Values (C) or (N, C) beside x (N, C, ...)."""
    return views.reshape(values, (*values.shape, *(1,) * (x.ndim - 2)))


def _affine(x: Tensor, weight: Operand | None, bias: Operand | None, what: str) -> Tensor:
    channels = x.shape[1]
    for name, value in (("weight", weight), ("bias", bias)):
        if value is None:
            continue
        one = lift(value, what=what)
        if one.shape != (channels,):
            raise ShapeError(
                f"{what}: {name} must have shape ({channels},) for input of {channels} channels, "
                f"got {tuple(one.shape)}"
            )
        x = x * _spread(x, one) if name == "weight" else x + _spread(x, one)
    return x


def _moments(x: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """x (N, C, ...) less the mean of its group of channels, and the groups' variances (N, C).

    Sums are taken over the dims behind the channels first, in whatever order these lie, and over
    the channels of a group, which are few, afterwards.
    """
    n, channels = x.shape[:2]
    count = math.prod(x.shape[2:]) * (channels // num_groups)
    space = list(range(2, x.ndim))

    def mean_of(value: Tensor) -> Tensor:
        total = reduction.sum(value, space) if space else value
        total = views.reshape(total, (n, num_groups, channels // num_groups))
        mean = reduction.sum(total, 2, keepdim=True) * (1.0 / count)
        return views.reshape(views.expand(mean, total.shape), (n, channels))

    mean = mean_of(x)
    centred = x - _spread(x, mean)
    return centred, mean_of(centred * centred)


def _in_float32(x: Tensor) -> Tensor:
    return cast(x, float32) if x.dtype in ("bfloat16", "float16") else x


def group_norm(
    input: Operand,
    num_groups: Count,
    weight: Operand | None = None,
    bias: Operand | None = None,
    eps: NonNegative = 1e-5,
) -> Tensor:
    """``(x - mean) / sqrt(var + eps) · weight + bias`` per group of channels (Wu and He 2018).

    Parameters
    ----------
    input : Tensor
        ``(N, C, ...)``.
    num_groups : int
        Groups of neighbouring channels; it divides C.
    weight, bias : Tensor, optional
        ``(C,)``.
    eps : float
        Added to the variance.

    Returns
    -------
    Tensor
        The same shape; computed in float32 of 16-bit floats.

    Raises
    ------
    ShapeError
        If the input has fewer than 2 dims, no elements, or channels that the groups do not divide.
    ConfigError
        For fewer than one group.
    """
    x = lift_float(input, "group_norm")
    if x.ndim < 2:
        raise ShapeError(f"group_norm: input must be (N, C, ...), got shape {x.shape}")
    groups = num_groups
    if x.shape[1] % groups or 0 in x.shape[1:]:
        raise ShapeError(
            f"group_norm: num_groups must divide the {x.shape[1]} channels of input of shape "
            f"{x.shape}, and each group have elements, got {groups}"
        )
    centred, var = _moments(_in_float32(x), groups)
    y = centred * _spread(x, pointwise.rsqrt(var + eps))
    return cast(_affine(y, weight, bias, "group_norm"), x.dtype)


def instance_norm(
    input: Operand,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Operand | None = None,
    bias: Operand | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: NonNegative = 1e-5,
) -> Tensor:
    """``(x - mean) / sqrt(var + eps) · weight + bias`` per sample and channel.

    Parameters
    ----------
    input : Tensor
        ``(N, C, ...)``.
    running_mean, running_var : Buffer, optional
        ``(C,)``. With ``use_input_stats`` they move towards the mean over the batch of the
        statistics (the variance unbiased) by ``momentum``; else they are what is normalised by.
    weight, bias : Tensor, optional
        ``(C,)``.
    use_input_stats : bool
        Whether each sample's own statistics are used.
    momentum : float
        The share of the batch in the running statistics.
    eps : float
        Added to the variance.

    Returns
    -------
    Tensor
        The same shape; computed in float32 of 16-bit floats.

    Raises
    ------
    ShapeError
        If the input has fewer than 3 dims, or one value per channel and sample only.
    ConfigError
        If running statistics are needed and missing, or are no buffers where they move.

    Notes
    -----
    Ulyanov et al. 2016.
    """
    what = "instance_norm"
    x = lift_float(input, what)
    if x.ndim < 3 or x.shape[1] == 0:
        raise ShapeError(
            f"{what}: input must be (N, C, ...), at least 3 dims with channels, got {x.shape}"
        )
    wide = _in_float32(x)
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise ConfigError(
                f"{what}: use_input_stats=False needs running_mean and running_var, got None"
            )
        scale = pointwise.rsqrt(lift(running_var, what=what) + eps)
        y = (wide - _spread(x, lift(running_mean, what=what))) * _spread(x, scale)
        return cast(_affine(y, weight, bias, what), x.dtype)
    n = math.prod(x.shape[2:])
    if n < 2:
        raise ShapeError(
            f"{what}: needs more than one value per channel and sample, got input of shape "
            f"{x.shape}"
        )
    centred, var = _moments(wide, x.shape[1])
    mean = reduction.mean(wide, list(range(2, x.ndim)))
    for name, running, value in (
        ("running_mean", running_mean, mean), ("running_var", running_var, var * (n / (n - 1))),
    ):  # fmt: skip
        if running is None:
            continue
        if not hasattr(running, "assign"):
            raise ConfigError(
                f"{what}: {name} must be an nn.Buffer, which training moves, got "
                f"{type(running).__name__}; use nn.Buffer(array), or None"
            )
        running.assign(running * (1.0 - momentum) + reduction.mean(value, 0) * momentum)
    y = centred * _spread(x, pointwise.rsqrt(var + eps))
    return cast(_affine(y, weight, bias, what), x.dtype)


def local_response_norm(
    input: Operand, size: Count, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """``x / (k + alpha / size · sum of x² of neighbouring channels) ** beta``.

    Parameters
    ----------
    input : Tensor
        ``(N, C, ...)``.
    size : int
        Channels that are summed: ``size // 2`` before a channel, itself, and those behind it.
    alpha, beta, k : float
        As above.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ShapeError
        If the input has fewer than 3 dims.
    ConfigError
        If size is below 1, or a factor is no number.

    Notes
    -----
    Krizhevsky et al. 2012.
    """
    x = lift_float(input, "local_response_norm")
    if x.ndim < 3:
        raise ShapeError(
            f"local_response_norm: input must be (N, C, ...), at least 3 dims, got {x.shape}"
        )
    n, channels = size, x.shape[1]
    ranges = [(max(c - n // 2, 0), min(c + (n + 1) // 2, channels)) for c in range(channels)]
    band = [dict.fromkeys(range(first, end), float(alpha) / n) for first, end in ranges]
    return x / (apply_band(x * x, 1, band) + k) ** beta


make_functions(globals(), __all__)
