"""Norms of images: per sample, per group, of neighbours, frozen, and under torch's other names."""

from __future__ import annotations

from typing import Any

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph.build import add_node
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Count, NonNegative, Size
from hotloop.nn.functional.bands import apply_band
from hotloop.nn.module import Module
from hotloop.nn.norm import BatchNorm, ChannelNorm, LazyNorm, start_at
from hotloop.nn.parameter import Buffer, Parameter
from hotloop.nn.recipes import Constant

__all__ = [
    "CrossMapLRN2d",
    "FrozenBatchNorm2d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d",
    "InstanceNorm3d", "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d",
    "LazyInstanceNorm1d", "LazyInstanceNorm2d", "LazyInstanceNorm3d", "LocalResponseNorm",
    "SyncBatchNorm",
]  # fmt: skip


class GroupNorm(Module):
    """Normalisation per sample and group of channels (Wu and He 2018).

    Parameters
    ----------
    num_groups : int
        Groups of neighbouring channels; it divides num_channels.
    num_channels : int
        C of the input ``(N, C, ...)``.
    eps : float
        Added to the variance.
    affine : bool
        Whether weight and bias are learnt.
    device, dtype
        Taken for torch's sake.
    bias : bool
        Whether there is a bias beside the weight.

    Raises
    ------
    ConfigError
        If the groups do not divide the channels.

    Notes
    -----
    ``(N, C, ...)`` in, the same out.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        num_groups: Count,
        num_channels: Size,
        eps: NonNegative = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_groups, self.num_channels = num_groups, num_channels
        if num_channels % num_groups:
            raise ConfigError(
                f"GroupNorm: num_groups must divide num_channels={num_channels}, got {num_groups}"
            )
        self.eps = eps
        self.affine = affine
        shape = (self.num_channels,)
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
        if input.ndim < 2 or input.shape[1] != self.num_channels:
            raise ShapeError(
                f"input must be (N, {self.num_channels}, ...), got input of shape "
                f"{tuple(input.shape)}"
            )
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class _InstanceNorm(ChannelNorm):
    """What instance norms share: they differ in the dims that they take."""

    needs_channels = False  # as in torch

    def __init__(
        self,
        num_features: Size,
        eps: NonNegative = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self._set_up(num_features, eps, momentum, affine, track_running_stats, bias)

    def forward(self, input: Any) -> Any:
        self._check_input(input, without_batch=True)
        without_batch = input.ndim == 2 + max(shape.count(",") for shape in self.shapes) - 1
        own = self.training or not self.track_running_stats
        updates = own and self.training
        y = F.instance_norm(
            input.unsqueeze(0) if without_batch else input,
            self.running_mean if updates or not own else None,
            self.running_var if updates or not own else None,
            self.weight,
            self.bias,
            use_input_stats=own,
            momentum=0.0 if self.momentum is None else self.momentum,
            eps=self.eps,
        )
        return y.squeeze(0) if without_batch else y


class InstanceNorm1d(_InstanceNorm):
    """Normalisation per sample and channel (Ulyanov et al. 2016).

    Parameters
    ----------
    num_features : int
        C of the input ``(N, C, L)``; without affine and running statistics it is not used.
    eps : float
        Added to the variance.
    momentum : float or None
        The share of the batch in the running statistics; None: they stay as they are.
    affine : bool
        Whether weight and bias are learnt.
    track_running_stats : bool
        Whether there are running statistics, used in evaluation.
    device, dtype
        Taken for torch's sake.
    bias : bool
        Whether there is a bias beside the weight.

    Notes
    -----
    ``(N, C, L)`` or ``(C, L)`` in, the same out.
    """

    shapes = (", L",)


class InstanceNorm2d(_InstanceNorm):
    """Normalisation per sample and channel (Ulyanov et al. 2016).

    Parameters
    ----------
    num_features : int
        C of the input ``(N, C, H, W)``; without affine and running statistics it is not used.
    eps : float
        Added to the variance.
    momentum : float or None
        The share of the batch in the running statistics; None: they stay as they are.
    affine : bool
        Whether weight and bias are learnt.
    track_running_stats : bool
        Whether there are running statistics, used in evaluation.
    device, dtype
        Taken for torch's sake.
    bias : bool
        Whether there is a bias beside the weight.

    Notes
    -----
    ``(N, C, H, W)`` or ``(C, H, W)`` in, the same out.
    """

    shapes = (", H, W",)


class InstanceNorm3d(_InstanceNorm):
    """Normalisation per sample and channel (Ulyanov et al. 2016).

    Parameters
    ----------
    num_features : int
        C of the input ``(N, C, D, H, W)``; without affine and running statistics it is not used.
    eps : float
        Added to the variance.
    momentum : float or None
        The share of the batch in the running statistics; None: they stay as they are.
    affine : bool
        Whether weight and bias are learnt.
    track_running_stats : bool
        Whether there are running statistics, used in evaluation.
    device, dtype
        Taken for torch's sake.
    bias : bool
        Whether there is a bias beside the weight.

    Notes
    -----
    ``(N, C, D, H, W)`` or ``(C, D, H, W)`` in, the same out.
    """

    shapes = (", D, H, W",)


class LazyBatchNorm1d(LazyNorm, BatchNorm):
    """A BatchNorm1d whose num_features is that of its first input.

    Parameters
    ----------
    eps, momentum, affine, track_running_stats, bias
        As of BatchNorm1d.
    device, dtype
        Taken for torch's sake.

    Notes
    -----
    As BatchNorm1d. Its parameters have their shapes after the first batch.
    """

    shapes = ("", ", L")

    def __init__(
        self,
        eps: NonNegative = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        Module.__init__(self)
        self._set_up(None, eps, momentum, affine, track_running_stats, bias)


class LazyBatchNorm2d(LazyNorm, BatchNorm):
    """A BatchNorm2d whose num_features is that of its first input.

    Parameters
    ----------
    eps, momentum, affine, track_running_stats, bias
        As of BatchNorm2d.
    device, dtype
        Taken for torch's sake.

    Notes
    -----
    As BatchNorm2d. Its parameters have their shapes after the first batch.
    """

    shapes = (", H, W",)

    def __init__(
        self,
        eps: NonNegative = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        Module.__init__(self)
        self._set_up(None, eps, momentum, affine, track_running_stats, bias)


class LazyBatchNorm3d(LazyNorm, BatchNorm):
    """A BatchNorm3d whose num_features is that of its first input.

    Parameters
    ----------
    eps, momentum, affine, track_running_stats, bias
        As of BatchNorm3d.
    device, dtype
        Taken for torch's sake.

    Notes
    -----
    As BatchNorm3d. Its parameters have their shapes after the first batch.
    """

    shapes = (", D, H, W",)

    def __init__(
        self,
        eps: NonNegative = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        Module.__init__(self)
        self._set_up(None, eps, momentum, affine, track_running_stats, bias)


class LazyInstanceNorm1d(LazyNorm, _InstanceNorm):
    """An InstanceNorm1d whose num_features is that of its first input.

    Parameters
    ----------
    eps, momentum, affine, track_running_stats, bias
        As of InstanceNorm1d.
    device, dtype
        Taken for torch's sake.

    Notes
    -----
    As InstanceNorm1d. Its parameters have their shapes after the first batch.
    """

    shapes = (", L",)

    def __init__(
        self,
        eps: NonNegative = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        Module.__init__(self)
        self._set_up(None, eps, momentum, affine, track_running_stats, bias)


class LazyInstanceNorm2d(LazyNorm, _InstanceNorm):
    """An InstanceNorm2d whose num_features is that of its first input.

    Parameters
    ----------
    eps, momentum, affine, track_running_stats, bias
        As of InstanceNorm2d.
    device, dtype
        Taken for torch's sake.

    Notes
    -----
    As InstanceNorm2d. Its parameters have their shapes after the first batch.
    """

    shapes = (", H, W",)

    def __init__(
        self,
        eps: NonNegative = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        Module.__init__(self)
        self._set_up(None, eps, momentum, affine, track_running_stats, bias)


class LazyInstanceNorm3d(LazyNorm, _InstanceNorm):
    """An InstanceNorm3d whose num_features is that of its first input.

    Parameters
    ----------
    eps, momentum, affine, track_running_stats, bias
        As of InstanceNorm3d.
    device, dtype
        Taken for torch's sake.

    Notes
    -----
    As InstanceNorm3d. Its parameters have their shapes after the first batch.
    """

    shapes = (", D, H, W",)

    def __init__(
        self,
        eps: NonNegative = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        Module.__init__(self)
        self._set_up(None, eps, momentum, affine, track_running_stats, bias)


class SyncBatchNorm(BatchNorm):
    """Batch norm of any number of dims, under torch's name for that over several processes.

    hotloop trains in one process: the statistics are those of the batch, as BatchNorm's are.

    Parameters
    ----------
    num_features : int
        C of the input ``(N, C, ...)``.
    eps : float
        Added to the variance.
    momentum : float or None
        The share of the batch in the running statistics; None: their plain average.
    affine : bool
        Whether weight and bias are learnt.
    track_running_stats : bool
        Whether there are running statistics, used in evaluation.
    process_group
        None: there are no processes to choose from.
    device, dtype
        Taken for torch's sake.
    bias : bool
        Whether there is a bias beside the weight.

    Raises
    ------
    ConfigError
        For a process group.

    Notes
    -----
    ``(N, C, ...)`` in, the same out.
    """

    shapes = ("", ", L", ", H, W", ", D, H, W")

    def __init__(
        self,
        num_features: Size,
        eps: NonNegative = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        if process_group is not None:
            raise ConfigError(
                "SyncBatchNorm: process_group must be None, since hotloop trains in one process, "
                f"got {type(process_group).__name__}"
            )
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias=bias)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """The model with a SyncBatchNorm of the same values in each batch norm's place.

        Parameters
        ----------
        module : Module
            The model, which is changed; itself a batch norm, it is left.
        process_group
            None, as of the constructor.

        Returns
        -------
        Module
            The model, or the one that takes the place of a batch norm.
        """
        made = module
        if isinstance(module, BatchNorm) and not isinstance(module, cls):
            made = cls(
                module.num_features, module.eps, module.momentum, module.affine,
                module.track_running_stats, process_group, bias=module.bias is not None,
            )  # fmt: skip
            made.load_state_dict(module.state_dict())
            made.train(module.training)
        for name, child in module.named_children():
            setattr(made, name, cls.convert_sync_batchnorm(child, process_group))
        return made


class FrozenBatchNorm2d(Module):
    """Batch norm by given statistics and factors, which never change (torchvision's).

    Parameters
    ----------
    num_features : int
        C of the input ``(N, C, H, W)``.
    eps : float
        Added to the variance.

    Attributes
    ----------
    weight, bias, running_mean, running_var : Buffer
        ``(C,)``; load_state_dict sets them.

    Notes
    -----
    ``(N, C, H, W)`` in, the same out.
    """

    def __init__(self, num_features: Size, eps: NonNegative = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        for name, number in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
            self.register_buffer(name, Buffer.of_recipe((num_features,), Constant(number)))

    def forward(self, input: Any) -> Any:
        channels = self.weight.shape[0]
        if input.ndim != 4 or input.shape[1] != channels:
            raise ShapeError(
                f"input must be (N, {channels}, H, W), got input of shape {tuple(input.shape)}"
            )
        return F.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )

    def before_load(self, state: dict[str, Any], prefix: str) -> None:
        """Takes a batch norm's values, all but the count of batches, which it does not have.

        Parameters
        ----------
        state, prefix
            As of Module.before_load.
        """
        state.pop(f"{prefix}num_batches_tracked", None)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


class LocalResponseNorm(Module):
    """Division by a power of the mean square of neighbouring channels (Krizhevsky et al. 2012).

    Parameters
    ----------
    size : int
        Channels that are summed.
    alpha, beta, k : float
        As of F.local_response_norm.

    Notes
    -----
    ``(N, C, ...)`` in, the same out.
    """

    def __init__(
        self, size: Count, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
    ) -> None:
        super().__init__()
        self.size = size
        self.alpha, self.beta, self.k = alpha, beta, k

    def forward(self, input: Any) -> Any:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class CrossMapLRN2d(Module):
    """torch's older form of local response norm, with its sums and its gradient.

    Parameters
    ----------
    size : int
        Channels that are summed.
    alpha, beta, k : float
        ``x / (k + alpha / size · sum) ** beta``.

    Notes
    -----
    ``(N, C, H, W)`` in, the same out.

    The sum is what torch's adds up, which is no window: with ``h = (size + 1) // 2``, rounded down,
    that of channel c has x² of the channels from ``c - h + 1`` to ``c + h - 1``, and from channel h
    on that of channel 0 besides, which torch never takes out again. The gradient is torch's too,
    which is not that of this sum: x² of channel c counts as part of size sums, the first of them
    that of channel ``c - size // 2 - 1``, of an even size ``c - size // 2``. For weights of old
    files; :class:`LocalResponseNorm` has the right sums, and their gradient.
    """

    def __init__(self, size: Count, alpha: float = 1e-4, beta: float = 0.75, k: float = 1) -> None:
        super().__init__()
        self.size = size
        self.alpha, self.beta, self.k = alpha, beta, k

    def forward(self, input: Any) -> Any:
        if input.ndim != 4:
            raise ShapeError(f"input must be (N, C, H, W), got input of shape {input.shape}")
        x, share = input, self.alpha / self.size
        sums, gradients = self._bands(x.shape[1])
        scale = apply_band(x * x, 1, sums) * share + self.k
        factor = (scale**-self.beta).detach()
        y = x * factor
        inside = apply_band(x * x, 1, gradients)
        # What torch's backward is the gradient of.
        like = x * factor - (share * self.beta) * (y / scale).detach() * inside
        return add_node("surrogate", y, like)

    def _bands(self, channels: int) -> tuple[list[dict[int, float]], list[dict[int, float]]]:
        """By channel: which squares its sum has; and in backward, whose squares it has a share of.

        Both are torch's loops over channels (torch.nn.modules._functions), term by term.
        """
        half = int((self.size - 1) / 2 + 1)
        sums = [dict.fromkeys(range(min(half, channels)), 1.0)]
        for c in range(1, channels):
            row = dict(sums[-1])
            if c < channels - half + 1:
                row[c + half - 1] = row.get(c + half - 1, 0.0) + 1.0
            if c > half:
                row[c - half] = row.get(c - half, 0.0) - 1.0
            sums.append({at: weight for at, weight in row.items() if weight})
        first = min(int(self.size - (self.size - 1) / 2), self.size - 1)
        shared: list[dict[int, float]] = [{} for _ in range(channels)]
        for c in range(channels):
            for other in range(max(c - first, 0), min(c - first + self.size, channels)):
                shared[other][c] = 1.0
        return sums, shared

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
