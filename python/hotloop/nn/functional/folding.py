"""Windows of images as columns, and their sums back."""

from __future__ import annotations

import math

from hotloop.errors import ShapeError
from hotloop.graph import views
from hotloop.graph.build import Operand, add_node
from hotloop.graph.value import Tensor
from hotloop.nn.functional.arguments import make_functions
from hotloop.nn.functional.windows import Pads, Sizes, give_images, lift_images, per_dim

__all__ = ["fold", "unfold"]


def _sizes(
    what: str, kernel_size: Sizes, dilation: Sizes, padding: Pads, stride: Sizes
) -> dict[str, tuple[int, ...]]:
    pads = per_dim(what, "padding", padding, 2, 0)
    return {
        "kernel": per_dim(what, "kernel_size", kernel_size, 2, 1),
        "dilation": per_dim(what, "dilation", dilation, 2, 1),
        "stride": per_dim(what, "stride", stride, 2, 1),
        "before": pads,
        "after": pads,
    }


def _counts(size: tuple[int, ...], sizes: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Windows along each dim."""
    lists = zip(size, sizes["kernel"], sizes["dilation"], sizes["before"], sizes["stride"])
    return tuple((length + 2 * p - d * (k - 1) - 1) // s + 1 for length, k, d, p, s in lists)


def unfold(
    input: Operand, kernel_size: Sizes, dilation: Sizes = 1, padding: Pads = 0, stride: Sizes = 1
) -> Tensor:
    """The windows of an image, a column each (im2col).

    Parameters
    ----------
    input : Tensor
        ``(N, C, H, W)``, or without N.
    kernel_size : int or (int, int)
        Size of a window.
    dilation : int or (int, int)
        Elements from one of a window's to the next.
    padding : int or (int, int)
        Zeros on both sides.
    stride : int or (int, int)
        Elements from one window to the next.

    Returns
    -------
    Tensor
        ``(N, C * kH * kW, L)`` for L windows, row by row.

    Raises
    ------
    ConfigError
        For sizes out of range.
    ShapeError
        If the input has other dims, or no window fits.
    """
    x, without_batch = lift_images(input, "unfold", 2)
    sizes = _sizes("unfold", kernel_size, dilation, padding, stride)
    counts = _counts(x.shape[2:], sizes)
    if min(counts) < 1:
        raise ShapeError(
            f"unfold: the kernel must fit into the padded input, got kernel_size "
            f"{sizes['kernel']}, padding {sizes['before']} and input of shape {x.shape}"
        )
    windows = add_node("unfold", views.permute(x, (0, 2, 3, 1)), **sizes)
    n, channels = x.shape[:2]
    columns = views.reshape(windows, (n, math.prod(counts), math.prod(sizes["kernel"]), channels))
    columns = views.permute(columns, (0, 3, 2, 1))
    return give_images(
        views.reshape(columns, (n, channels * math.prod(sizes["kernel"]), math.prod(counts))),
        without_batch,
    )


def fold(
    input: Operand,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Pads = 0,
    stride: Sizes = 1,
) -> Tensor:
    """The image whose windows are given, a column each; where they overlap their sum (col2im).

    Parameters
    ----------
    input : Tensor
        ``(N, C * kH * kW, L)``, or without N: windows as ``unfold`` gives them.
    output_size : int or (int, int)
        H and W of the image.
    kernel_size, dilation, padding, stride
        As of ``unfold``.

    Returns
    -------
    Tensor
        ``(N, C, H, W)``.

    Raises
    ------
    ConfigError
        For sizes out of range.
    ShapeError
        If the input has other dims, or L is not the number of windows of such an image.
    """
    x, without_batch = lift_images(input, "fold", 1)
    sizes = _sizes("fold", kernel_size, dilation, padding, stride)
    size = per_dim("fold", "output_size", output_size, 2, 1)
    taps, counts = math.prod(sizes["kernel"]), _counts(size, sizes)
    n, rows, n_windows = x.shape
    if rows % taps:
        raise ShapeError(
            f"fold: the input's dim 1 must be a multiple of {taps}, the kernel's elements, got "
            f"input of shape {x.shape}"
        )
    if min(counts) < 1 or math.prod(counts) != n_windows:
        raise ShapeError(
            f"fold: an image of {size} has {max(counts[0], 0)} x {max(counts[1], 0)} windows, as "
            f"the input's last dim must have, got input of shape {x.shape}"
        )
    windows = views.permute(views.reshape(x, (n, rows // taps, taps, n_windows)), (0, 3, 2, 1))
    windows = views.reshape(windows, (n, *counts, taps, rows // taps))
    y = views.permute(add_node("fold", windows, size=size, **sizes), (0, 3, 1, 2))
    return give_images(y, without_batch)


make_functions(globals(), __all__)
