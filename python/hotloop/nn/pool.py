"""Pooling layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Divisor
from hotloop.nn.functional.windows import Pads, Sizes
from hotloop.nn.module import Module

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AvgPool1d", "AvgPool2d",
    "AvgPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d",
]  # fmt: skip


class _MaxPool(Module):
    """What max pooling layers share."""

    n_dims: ClassVar[int]

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Pads = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Any) -> Any:
        pool = getattr(F, f"max_pool{self.n_dims}d")
        return pool(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
            self.return_indices,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class _AdaptiveAvgPool(Module):
    """What adaptive pooling layers share."""

    n_dims: ClassVar[int]

    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Any) -> Any:
        return getattr(F, f"adaptive_avg_pool{self.n_dims}d")(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class MaxPool1d(_MaxPool):
    """The largest of each window.

    Parameters
    ----------
    kernel_size : int
        Size of a window.
    stride : int, optional
        Elements from one window to the next; kernel_size by default.
    padding : int
        Elements on both sides that no window takes for the largest.
    dilation : int
        Elements from one of a window's to the next.
    return_indices : bool
        Whether to return where the largest are, too.
    ceil_mode : bool
        Whether a last window may hang over the end.

    Notes
    -----
    ``(N, C, L)`` in, or one without N; ``(N, C, L')`` out, sizes as of F.max_pool1d.
    """

    n_dims = 1


class MaxPool2d(_MaxPool):
    """The largest of each window.

    Parameters
    ----------
    kernel_size : int or (int, int)
        Size of a window.
    stride : int or (int, int), optional
        Elements from one window to the next; kernel_size by default.
    padding : int or (int, int)
        Elements on both sides that no window takes for the largest.
    dilation : int or (int, int)
        Elements from one of a window's to the next.
    return_indices : bool
        Whether to return where the largest are, too.
    ceil_mode : bool
        Whether a last window may hang over the end.

    Notes
    -----
    ``(N, C, H, W)`` in, or one without N; ``(N, C, H', W')`` out, sizes as of F.max_pool2d.
    """

    n_dims = 2


class MaxPool3d(_MaxPool):
    """The largest of each window.

    Parameters
    ----------
    kernel_size : int or (int, int, int)
        Size of a window.
    stride : int or (int, int, int), optional
        Elements from one window to the next; kernel_size by default.
    padding : int or (int, int, int)
        Elements on both sides that no window takes for the largest.
    dilation : int or (int, int, int)
        Elements from one of a window's to the next.
    return_indices : bool
        Whether to return where the largest are, too.
    ceil_mode : bool
        Whether a last window may hang over the end.

    Notes
    -----
    ``(N, C, D, H, W)`` in, or one without N; ``(N, C, D', H', W')`` out, sizes as of F.max_pool3d.
    """

    n_dims = 3


class AvgPool1d(Module):
    """The mean of each window.

    Parameters
    ----------
    kernel_size : int
        Size of a window.
    stride : int, optional
        Elements from one window to the next; kernel_size by default.
    padding : int
        Zeros on both sides.
    ceil_mode : bool
        Whether a last window may hang over the end.
    count_include_pad : bool
        Whether zeros of the padding count as elements.

    Notes
    -----
    ``(N, C, L)`` in, or one without N; ``(N, C, L')`` out, sizes as of F.max_pool1d.
    """

    n_dims = 1

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Pads = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Any) -> Any:
        return F.avg_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad,
        )  # fmt: skip

    def extra_repr(self) -> str:
        one = [
            value[0] if isinstance(value, Sequence) else value
            for value in (self.kernel_size, self.stride, self.padding)
        ]
        return f"kernel_size=({one[0]},), stride=({one[1]},), padding=({one[2]},)"


class AvgPool2d(Module):
    """The mean of each window.

    Parameters
    ----------
    kernel_size : int or (int, int)
        Size of a window.
    stride : int or (int, int), optional
        Elements from one window to the next; kernel_size by default.
    padding : int or (int, int)
        Zeros on both sides.
    ceil_mode : bool
        Whether a last window may hang over the end.
    count_include_pad : bool
        Whether zeros of the padding count as elements.
    divisor_override : int, optional
        What sums are divided by, whatever the windows.

    Notes
    -----
    ``(N, C, H, W)`` in, or one without N; ``(N, C, H', W')`` out, sizes as of F.max_pool2d.
    """

    n_dims = 2

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Pads = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Divisor | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Any) -> Any:
        return F.avg_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad, self.divisor_override,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool3d(Module):
    """The mean of each window.

    Parameters
    ----------
    kernel_size : int or (int, int, int)
        Size of a window.
    stride : int or (int, int, int), optional
        Elements from one window to the next; kernel_size by default.
    padding : int or (int, int, int)
        Zeros on both sides.
    ceil_mode : bool
        Whether a last window may hang over the end.
    count_include_pad : bool
        Whether zeros of the padding count as elements.
    divisor_override : int, optional
        What sums are divided by, whatever the windows.

    Notes
    -----
    ``(N, C, D, H, W)`` in, or one without N; ``(N, C, D', H', W')`` out, sizes as of F.max_pool3d.
    """

    n_dims = 3

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Pads = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Divisor | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Any) -> Any:
        return F.avg_pool3d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad, self.divisor_override,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Means of windows that are as large as it takes to have an output of this size.

    Parameters
    ----------
    output_size : int
        The spatial dims of the result; None: as they are.

    Notes
    -----
    ``(N, C, L)`` in, or one without N; ``(N, C, *output_size)`` out.
    """

    n_dims = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Means of windows that are as large as it takes to have an output of this size.

    Parameters
    ----------
    output_size : int or (int, int)
        The spatial dims of the result; None: as they are.

    Notes
    -----
    ``(N, C, H, W)`` in, or one without N; ``(N, C, *output_size)`` out.
    """

    n_dims = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Means of windows that are as large as it takes to have an output of this size.

    Parameters
    ----------
    output_size : int or (int, int, int)
        The spatial dims of the result; None: as they are.

    Notes
    -----
    ``(N, C, D, H, W)`` in, or one without N; ``(N, C, *output_size)`` out.
    """

    n_dims = 3
