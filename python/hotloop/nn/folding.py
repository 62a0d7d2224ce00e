"""Layers that take windows of images apart and put them together."""

from __future__ import annotations

from typing import Any

from hotloop.nn import functional as F
from hotloop.nn.functional.windows import Pads, Sizes
from hotloop.nn.module import Module

__all__ = ["Fold", "Unfold"]


class Unfold(Module):
    """The windows of an image, a column each (im2col).

    Parameters
    ----------
    kernel_size : int or (int, int)
        Size of a window.
    dilation : int or (int, int)
        Elements from one of a window's to the next.
    padding : int or (int, int)
        Zeros on both sides.
    stride : int or (int, int)
        Elements from one window to the next.

    Notes
    -----
    ``(N, C, H, W)`` in, or one without N; ``(N, C * kH * kW, L)`` out for L windows.
    """

    n_dims = 2

    def __init__(
        self, kernel_size: Sizes, dilation: Sizes = 1, padding: Pads = 0, stride: Sizes = 1
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Any) -> Any:
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, "
            f"stride={self.stride}"
        )


class Fold(Module):
    """The image whose windows are given, a column each; where they overlap their sum (col2im).

    Parameters
    ----------
    output_size : int or (int, int)
        H and W of the image.
    kernel_size, dilation, padding, stride
        As of Unfold.

    Notes
    -----
    ``(N, C * kH * kW, L)`` in, or one without N; ``(N, C, H, W)`` out.
    """

    n_dims = 2

    def __init__(
        self,
        output_size: Sizes,
        kernel_size: Sizes,
        dilation: Sizes = 1,
        padding: Pads = 0,
        stride: Sizes = 1,
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Any) -> Any:
        return F.fold(
            input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride
        )

    def extra_repr(self) -> str:
        return (
            f"output_size={self.output_size}, kernel_size={self.kernel_size}, "
            f"dilation={self.dilation}, padding={self.padding}, stride={self.stride}"
        )
