"""Normalisation layers."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from hotloop.base.messages import warn
from hotloop.errors import ModelWarning, ShapeError
from hotloop.graph import trace as tracing
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import NonNegative, Shape, Size
from hotloop.nn.module import Module
from hotloop.nn.parameter import Buffer, Parameter
from hotloop.nn.recipes import Constant
from hotloop.nn.uninitialized import UninitializedBuffer, UninitializedParameter

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LayerNorm", "RMSNorm"]


def start_at(*values: tuple[Parameter | Buffer | None, float]) -> None:
    """Gives each value that is there, and has a shape, its initial number."""
    for value, number in values:
        if value is not None and not value.is_lazy:
            value.set_recipe(Constant(number))


class ChannelNorm(Module):
    """What norms per channel share: parameters, running statistics, how they are shown.

    ``num_features`` of None is that of the first input.
    """

    shapes: ClassVar[tuple[str, ...]]  # of inputs, behind (N, C
    needs_channels: ClassVar[bool] = True  # also where no value has one number for each

    weight: Parameter | None
    bias: Parameter | None
    running_mean: Buffer | None
    running_var: Buffer | None
    num_batches_tracked: Buffer | None

    def _set_up(
        self,
        num_features: int | None,
        eps: NonNegative,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        bias: bool,
    ) -> None:
        self.num_features = 0 if num_features is None else num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track = track_running_stats
        shape = None if num_features is None else (self.num_features,)
        kinds: tuple[Any, Any] = Parameter, Buffer
        if num_features is None:
            kinds = UninitializedParameter, UninitializedBuffer
        for name, number, has in (("weight", 1.0, affine), ("bias", 0.0, affine and bias)):
            one = kinds[0].of_recipe(shape, Constant(number)) if has else None
            self.register_parameter(name, one)
        for name, number in (("running_mean", 0.0), ("running_var", 1.0)):
            one = kinds[1].of_recipe(shape, Constant(number)) if track else None
            self.register_buffer(name, one)
        self.register_buffer("num_batches_tracked", np.zeros((), np.int64) if track else None)

    def reset_running_stats(self) -> None:
        """The running statistics of no batch: mean 0, variance 1. Nothing where there are none."""
        start_at((self.running_mean, 0.0), (self.running_var, 1.0))
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.copy_(np.zeros((), np.int64))

    def reset_parameters(self) -> None:
        """torch's initial values again, and the running statistics of no batch."""
        self.reset_running_stats()
        start_at((self.weight, 1.0), (self.bias, 0.0))

    def _resolve(self, channels: int) -> None:
        """Gives lazy values their shapes."""
        self.num_features = channels
        for value, number in (
            (self.weight, 1.0), (self.bias, 0.0), (self.running_mean, 0.0), (self.running_var, 1.0),
        ):  # fmt: skip
            if value is not None and value.is_lazy:
                value.resolve((channels,), Constant(number))

    def _check_input(self, input: Any, without_batch: bool = False) -> None:
        """``without_batch``: whether one sample may come without N."""
        n_dims = {2 + shape.count(",") for shape in self.shapes}
        n_dims |= {n - 1 for n in n_dims} if without_batch else set()
        channels = -max(shape.count(",") for shape in self.shapes) - 1 if without_batch else 1
        fits = input.ndim in n_dims
        if fits and input.shape[channels] != self.num_features:
            fits = self.weight is None and self.running_mean is None and not self.needs_channels
            if fits:
                warn(
                    f"{type(self).__name__}: the input has {input.shape[channels]} channels and "
                    f"num_features is {self.num_features}, which is not used without affine and "
                    "track_running_stats",
                    ModelWarning,
                )
        if not fits:
            shapes = " or ".join(f"(N, {self.num_features}{shape})" for shape in self.shapes)
            raise ShapeError(f"input must be {shapes}, got input of shape {tuple(input.shape)}")

    def before_load(self, state: dict[str, Any], prefix: str) -> None:
        """Files of torch before 0.4.1 have no count of batches: it stays as it is."""
        count = self._buffers.get("num_batches_tracked")
        if count is not None and f"{prefix}running_mean" in state:
            state.setdefault(f"{prefix}num_batches_tracked", count)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )


class LazyNorm(ChannelNorm):
    """A norm whose channels are those of the first input, its dim 1."""

    def forward(self, input: Any) -> Any:
        if not self.num_features:
            n_dims = {2 + shape.count(",") for shape in self.shapes}
            if input.ndim not in n_dims:
                shapes = " or ".join(f"(N, C{shape})" for shape in self.shapes)
                raise ShapeError(f"input must be {shapes}, got input of shape {input.shape}")
            self._resolve(input.shape[1])
        return super().forward(input)

    def _get_name(self) -> str:
        name = type(self).__name__
        return name.removeprefix("Lazy") if self.num_features else name

    def after_load(self) -> None:
        """Takes num_features from loaded values."""
        known = [v for v in (self.weight, self.running_mean) if v is not None and not v.is_lazy]
        if known:
            self.num_features = known[0].shape[0]


class BatchNorm(ChannelNorm):
    """What batch norms share: they differ in the dims that they take."""

    uses_batch_statistics = True

    def __init__(
        self,
        num_features: Size,
        eps: NonNegative = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self._set_up(num_features, eps, momentum, affine, track_running_stats, bias)

    def forward(self, input: Any) -> Any:
        self._check_input(input)
        momentum: Any = 0.0 if self.momentum is None else self.momentum  # None: it is counted
        trace = tracing.active()
        collects = trace is not None and trace.collects(self.running_mean)
        own = self.training or collects
        updates = own and self.track_running_stats
        if updates and self.num_batches_tracked is not None:
            count = self.num_batches_tracked + 1
            self.num_batches_tracked.assign(count)
            if self.momentum is None or collects:
                momentum = 1.0 / count.float()
        return F.batch_norm(
            input,
            self.running_mean if updates or not own else None,
            self.running_var if updates or not own else None,
            self.weight,
            self.bias,
            training=own or self.running_mean is None,
            momentum=momentum,
            eps=self.eps,
        )

    def statistics(self) -> list[Buffer]:
        """The running statistics that training moves, and their count."""
        values = (self.running_mean, self.running_var, self.num_batches_tracked)
        moves = self.track_running_stats and self._training is not False
        return [value for value in values if value is not None] if moves else []


class BatchNorm1d(BatchNorm):
    """Normalisation per channel by batch statistics (Ioffe and Szegedy 2015).

    Parameters
    ----------
    num_features : int
        C of the input ``(N, C)`` or ``(N, C, L)``.
    eps : float
        Added to the variance.
    momentum : float or None
        The share of the batch in the running statistics; None: their plain average.
    affine : bool
        Whether weight and bias are learnt.
    track_running_stats : bool
        Whether there are running statistics, used in evaluation.
    device, dtype
        Taken for torch's sake.
    bias : bool
        Whether there is a bias beside the weight.

    Attributes
    ----------
    running_mean, running_var, num_batches_tracked : Buffer or None
        Statistics, the variance unbiased, and the training steps so far.

    Notes
    -----
    ``(N, C)`` or ``(N, C, L)`` in, the same out. Training needs two values per channel at least: a
    last batch of one row joins the one before it.
    """

    shapes = ("", ", L")


class BatchNorm2d(BatchNorm):
    """Normalisation per channel by batch statistics (Ioffe and Szegedy 2015).

    Parameters
    ----------
    num_features : int
        C of the input ``(N, C, H, W)``.
    eps : float
        Added to the variance.
    momentum : float or None
        The share of the batch in the running statistics; None: their plain average.
    affine : bool
        Whether weight and bias are learnt.
    track_running_stats : bool
        Whether there are running statistics, used in evaluation.
    device, dtype
        Taken for torch's sake.
    bias : bool
        Whether there is a bias beside the weight.

    Attributes
    ----------
    running_mean, running_var, num_batches_tracked : Buffer or None
        Statistics, the variance unbiased, and the training steps so far.

    Notes
    -----
    ``(N, C, H, W)`` in, the same out.
    """

    shapes = (", H, W",)


class BatchNorm3d(BatchNorm):
    """Normalisation per channel by batch statistics (Ioffe and Szegedy 2015).

    Parameters
    ----------
    num_features : int
        C of the input ``(N, C, D, H, W)``.
    eps : float
        Added to the variance.
    momentum : float or None
        The share of the batch in the running statistics; None: their plain average.
    affine : bool
        Whether weight and bias are learnt.
    track_running_stats : bool
        Whether there are running statistics, used in evaluation.
    device, dtype
        Taken for torch's sake.
    bias : bool
        Whether there is a bias beside the weight.

    Attributes
    ----------
    running_mean, running_var, num_batches_tracked : Buffer or None
        Statistics, the variance unbiased, and the training steps so far.

    Notes
    -----
    ``(N, C, D, H, W)`` in, the same out.
    """

    shapes = (", D, H, W",)


def _trailing(normalized_shape: Shape) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


class LayerNorm(Module):
    """Normalisation over the last dims (Ba et al. 2016).

    Parameters
    ----------
    normalized_shape : int or sequence of int
        The last dims of the input, normalised together.
    eps : float
        Added to the variance.
    elementwise_affine : bool
        Whether weight (and bias) are learnt.
    bias : bool
        Whether there is a bias beside the weight.
    device, dtype
        Taken for torch's sake.

    Notes
    -----
    ``(..., *normalized_shape)`` in, the same out.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        normalized_shape: Shape,
        eps: NonNegative = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = shape = _trailing(normalized_shape)
        self.eps = eps
        self.elementwise_affine = affine = elementwise_affine
        self.register_parameter(
            "weight", Parameter.of_recipe(shape, Constant(1.0)) if affine else None
        )
        self.register_parameter(
            "bias", Parameter.of_recipe(shape, Constant(0.0)) if affine and bias else None
        )

    def reset_parameters(self) -> None:
        """torch's initial values again."""
        start_at((self.weight, 1.0), (self.bias, 0.0))

    def forward(self, input: Any) -> Any:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}"
            + (f", bias={self.bias is not None}" if self.elementwise_affine else "")
        )


class RMSNorm(Module):
    """Division by the root mean square of the last dims (Zhang and Sennrich 2019).

    Parameters
    ----------
    normalized_shape : int or sequence of int
        The last dims of the input, normalised together.
    eps : float, optional
        Added to the mean square; by default the dtype's distance from 1 to the next number.
    elementwise_affine : bool
        Whether a weight is learnt.
    device, dtype
        Taken for torch's sake.

    Notes
    -----
    ``(..., *normalized_shape)`` in, the same out.
    """

    weight: Parameter | None

    def __init__(
        self,
        normalized_shape: Shape,
        eps: NonNegative | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = shape = _trailing(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        self.register_parameter(
            "weight", Parameter.of_recipe(shape, Constant(1.0)) if elementwise_affine else None
        )

    def reset_parameters(self) -> None:
        """torch's initial values again."""
        start_at((self.weight, 1.0))

    def forward(self, input: Any) -> Any:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )
