"""Pooling layers beside those of regular windows: p-norms, adaptive, fractional, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from hotloop.errors import ConfigError
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Order
from hotloop.nn.functional.windows import Pads, Sizes, per_dim
from hotloop.nn.module import Module

__all__ = [
    "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "FractionalMaxPool2d",
    "FractionalMaxPool3d", "LPPool1d", "LPPool2d", "LPPool3d", "MaxUnpool1d", "MaxUnpool2d",
    "MaxUnpool3d",
]  # fmt: skip


class _AdaptiveMaxPool(Module):
    """What adaptive max pooling layers share."""

    n_dims: ClassVar[int]

    def __init__(
        self, output_size: int | Sequence[int | None] | None, return_indices: bool = False
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.return_indices = return_indices

    def forward(self, input: Any) -> Any:
        pool = getattr(F, f"adaptive_max_pool{self.n_dims}d")
        return pool(input, self.output_size, self.return_indices)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class _FractionalMaxPool(Module):
    """What fractional max pooling layers share."""

    n_dims: ClassVar[int]

    def __init__(
        self,
        kernel_size: Sizes,
        output_size: Sizes | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False,
        _random_samples: Any = None,
    ) -> None:
        super().__init__()
        if (output_size is None) == (output_ratio is None):
            given = "neither" if output_size is None else "both"
            raise ConfigError(
                f"{type(self).__name__}: needs output_size or output_ratio, one of them, got "
                f"{given}"
            )
        self.kernel_size = kernel_size
        self.output_size = output_size
        self.output_ratio = output_ratio
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)

    def forward(self, input: Any) -> Any:
        pool = getattr(F, f"fractional_max_pool{self.n_dims}d")
        return pool(
            input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices,
            self._random_samples,
        )  # fmt: skip


class _LPPool(Module):
    """What p-norm pooling layers share."""

    n_dims: ClassVar[int]

    def __init__(
        self,
        norm_type: Order,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Any) -> Any:
        pool = getattr(F, f"lp_pool{self.n_dims}d")
        return pool(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class _MaxUnpool(Module):
    """What unpooling layers share."""

    n_dims: ClassVar[int]

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Pads = 0) -> None:
        super().__init__()
        name, n = type(self).__name__, self.n_dims
        self.kernel_size = per_dim(name, "kernel_size", kernel_size, n, 1)
        given = kernel_size if stride is None else stride
        self.stride = per_dim(name, "stride", given, n, 1)
        self.padding = per_dim(name, "padding", padding, n, 0)

    def forward(self, input: Any, indices: Any, output_size: Sequence[int] | None = None) -> Any:
        unpool = getattr(F, f"max_unpool{self.n_dims}d")
        return unpool(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest of windows that are as large as it takes to have an output of this size.

    Parameters
    ----------
    output_size : int
        The spatial dims of the result; None: as they are.
    return_indices : bool
        Whether to return where the largest are, too.

    Notes
    -----
    ``(N, C, L)`` in, or one without N; ``(N, C, *output_size)`` out.
    """

    n_dims = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest of windows that are as large as it takes to have an output of this size.

    Parameters
    ----------
    output_size : int or (int, int)
        The spatial dims of the result; None: as they are.
    return_indices : bool
        Whether to return where the largest are, too.

    Notes
    -----
    ``(N, C, H, W)`` in, or one without N; ``(N, C, *output_size)`` out.
    """

    n_dims = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest of windows that are as large as it takes to have an output of this size.

    Parameters
    ----------
    output_size : int or (int, int, int)
        The spatial dims of the result; None: as they are.
    return_indices : bool
        Whether to return where the largest are, too.

    Notes
    -----
    ``(N, C, D, H, W)`` in, or one without N; ``(N, C, *output_size)`` out.
    """

    n_dims = 3


class FractionalMaxPool2d(_FractionalMaxPool):
    """The largest of windows whose steps are drawn at random in each step (Graham 2014).

    Parameters
    ----------
    kernel_size : int or (int, int)
        Size of a window.
    output_size : int or (int, int), optional
        The spatial dims of the result; or
    output_ratio : float or so many of them, optional
        what they are of the input's.
    return_indices : bool
        Whether to return where the largest are, too.
    _random_samples : array, optional
        ``(N, C, 2)`` in [0, 1) instead of those drawn.

    Notes
    -----
    ``(N, C, H, W)`` in, or one without N; ``(N, C, *output_size)`` out. As in torch
    the windows are drawn in evaluation, too.
    """

    n_dims = 2


class FractionalMaxPool3d(_FractionalMaxPool):
    """The largest of windows whose steps are drawn at random in each step (Graham 2014).

    Parameters
    ----------
    kernel_size : int or (int, int, int)
        Size of a window.
    output_size : int or (int, int, int), optional
        The spatial dims of the result; or
    output_ratio : float or so many of them, optional
        what they are of the input's.
    return_indices : bool
        Whether to return where the largest are, too.
    _random_samples : array, optional
        ``(N, C, 3)`` in [0, 1) instead of those drawn.

    Notes
    -----
    ``(N, C, D, H, W)`` in, or one without N; ``(N, C, *output_size)`` out. As in torch
    the windows are drawn in evaluation, too.
    """

    n_dims = 3


class LPPool1d(_LPPool):
    """The p-norm of each window: ``(sum of x ** p) ** (1 / p)``.

    Parameters
    ----------
    norm_type : float
        p, not 0; infinity: the largest magnitude.
    kernel_size : int
        Size of a window.
    stride : int, optional
        Elements from one window to the next; kernel_size by default.
    ceil_mode : bool
        Whether a last window may hang over the end.

    Notes
    -----
    ``(N, C, L)`` in, or one without N; sizes as of F.avg_pool1d.
    """

    n_dims = 1


class LPPool2d(_LPPool):
    """The p-norm of each window: ``(sum of x ** p) ** (1 / p)``.

    Parameters
    ----------
    norm_type : float
        p, not 0; infinity: the largest magnitude.
    kernel_size : int or (int, int)
        Size of a window.
    stride : int or (int, int), optional
        Elements from one window to the next; kernel_size by default.
    ceil_mode : bool
        Whether a last window may hang over the end.

    Notes
    -----
    ``(N, C, H, W)`` in, or one without N; sizes as of F.avg_pool2d.
    """

    n_dims = 2


class LPPool3d(_LPPool):
    """The p-norm of each window: ``(sum of x ** p) ** (1 / p)``.

    Parameters
    ----------
    norm_type : float
        p, not 0; infinity: the largest magnitude.
    kernel_size : int or (int, int, int)
        Size of a window.
    stride : int or (int, int, int), optional
        Elements from one window to the next; kernel_size by default.
    ceil_mode : bool
        Whether a last window may hang over the end.

    Notes
    -----
    ``(N, C, D, H, W)`` in, or one without N; sizes as of F.avg_pool3d.
    """

    n_dims = 3


class MaxUnpool1d(_MaxUnpool):
    """What max pooling gave at the places where it was found, and 0 elsewhere.

    Parameters
    ----------
    kernel_size, stride, padding : int
        Of the pooling.

    Notes
    -----
    Called with the pooled values, their indices and, where pooling dropped elements, the
    ``output_size``. ``(N, C, L)`` in, or one without N.
    """

    n_dims = 1


class MaxUnpool2d(_MaxUnpool):
    """What max pooling gave at the places where it was found, and 0 elsewhere.

    Parameters
    ----------
    kernel_size, stride, padding : int or (int, int)
        Of the pooling.

    Notes
    -----
    Called with the pooled values, their indices and, where pooling dropped elements, the
    ``output_size``. ``(N, C, H, W)`` in, or one without N.
    """

    n_dims = 2


class MaxUnpool3d(_MaxUnpool):
    """What max pooling gave at the places where it was found, and 0 elsewhere.

    Parameters
    ----------
    kernel_size, stride, padding : int or (int, int, int)
        Of the pooling.

    Notes
    -----
    Called with the pooled values, their indices and, where pooling dropped elements, the
    ``output_size``. ``(N, C, D, H, W)`` in, or one without N.
    """

    n_dims = 3
