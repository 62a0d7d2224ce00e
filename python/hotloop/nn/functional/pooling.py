"""Pooling: the largest and the mean of windows, fixed ones and ones that adapt to a size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hotloop.base.scalars import plain
from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import indexing, pointwise, reduction, views
from hotloop.graph.build import Operand, add_node, lift
from hotloop.graph.value import Tensor
from hotloop.nn.functional import activations
from hotloop.nn.functional.arguments import Divisor, Order, make_functions
from hotloop.nn.functional.bands import MAX_SIZE, apply_band
from hotloop.nn.functional.windows import Pads, Sizes, give_images, lift_images, per_dim

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "avg_pool1d",
    "avg_pool2d", "avg_pool3d", "lp_pool1d", "lp_pool2d", "lp_pool3d", "max_pool1d",
    "max_pool1d_with_indices", "max_pool2d", "max_pool2d_with_indices", "max_pool3d",
    "max_pool3d_with_indices",
]  # fmt: skip

Places: TypeAlias = npt.NDArray[np.int64]


def _count(size: int, k: int, s: int, p: int, d: int, ceil_mode: bool) -> int:
    """Windows along a dim; with ceil_mode the last one may hang over, but begins inside."""
    room = size + 2 * p - d * (k - 1) - 1
    n = (room + (s - 1 if ceil_mode else 0)) // s + 1
    return n - 1 if ceil_mode and (n - 1) * s >= size + p else n


def _windows(
    what: str,
    x: Tensor,
    n: int,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Pads,
    dilation: Sizes,
    ceil_mode: bool,
) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """Kernel, stride, padding and dilation by dim, and the numbers of windows."""
    kernel = per_dim(what, "kernel_size", kernel_size, n, 1)
    steps = kernel if stride is None else per_dim(what, "stride", stride, n, 1)
    pads = per_dim(what, "padding", padding, n, 0)
    dilations = per_dim(what, "dilation", dilation, n, 1)
    if any(p > (d * (k - 1) + 1) // 2 for p, k, d in zip(pads, kernel, dilations)):
        raise ConfigError(
            f"{what}: padding must be at most half of the kernel, got padding {pads} and "
            f"kernel_size {kernel}"
        )
    counts = tuple(
        _count(size, k, s, p, d, ceil_mode)
        for size, k, s, p, d in zip(x.shape[2:], kernel, steps, pads, dilations)
    )
    if min(counts) < 1:
        raise ShapeError(
            f"{what}: the kernel must fit into the padded input, got kernel_size {kernel}, padding "
            f"{pads} and input of shape {x.shape}"
        )
    return [kernel, steps, pads, dilations], counts


def _elements(size: int, count: int, k: int, s: int, p: int, d: int) -> Places:
    """The elements of each window along a dim, (windows, taps). In place of those that lie in the
    padding the nearest one of the window stands."""
    begin = np.arange(count, dtype=np.int64)[:, None] * s - p
    first = np.maximum(-(begin // d), 0)  # the first tap that lies inside
    last = (size - 1 - begin) // d
    return begin + d * np.clip(np.arange(k), first, last)


def largest_at(what: str, x: Tensor, elements: Sequence[Places]) -> tuple[Tensor, Tensor]:
    """The largest of each window of x (N, C, ...), and its place among a channel's elements.

    ``elements`` has for each spatial dim those of every window, (windows, taps).
    """
    lengths = x.shape[2:]
    places = np.zeros((1, 1), np.int64)  # by window: the elements that it has
    for length, own in zip(lengths, elements):
        both = places[:, None, :, None] * length + own[None, :, None, :]
        places = both.reshape(len(places) * len(own), -1)
    flat = views.reshape(x, (*x.shape[:2], math.prod(lengths)))
    table = lift(places.ravel(), what=what)
    windows = views.reshape(indexing.index_select(flat, 2, table), (*x.shape[:2], *places.shape))
    first = lift(np.arange(len(places), dtype=np.int64) * places.shape[1], what=what)
    chosen = reduction.argmax(windows, 3) + first
    index = indexing.index_select(table, 0, views.reshape(chosen, (chosen.numel(),)))
    index = views.reshape(index, chosen.shape)
    shape = (*x.shape[:2], *(len(own) for own in elements))
    y = views.reshape(indexing.gather(flat, 2, index), shape)
    return y, views.reshape(index, shape)


def pool_largest(
    n: int,
    input: Operand,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Pads,
    dilation: Sizes,
    ceil_mode: bool,
    with_indices: bool,
) -> tuple[Tensor, Tensor | None]:
    """Max pooling over n spatial dims; also where the largest are, or None."""
    what = f"max_pool{n}d"
    x, without_batch = lift_images(input, what, n, chooses=True)
    (kernel, steps, pads, dilations), counts = _windows(
        what, x, n, kernel_size, stride, padding, dilation, ceil_mode
    )
    if not x.dtype.is_floating_point:
        own = [_elements(*one) for one in zip(x.shape[2:], counts, kernel, steps, pads, dilations)]
        y, index = largest_at(what, x, own)
        index = give_images(index, without_batch)
        return give_images(y, without_batch), index if with_indices else None
    lists = zip(x.shape[2:], counts, kernel, steps, pads, dilations)
    after = [max((c - 1) * s + d * (k - 1) + 1 - size - p, 0) for size, c, k, s, p, d in lists]
    attrs = {
        "kernel": kernel, "stride": steps, "dilation": dilations, "before": pads, "after": after,
    }  # fmt: skip
    y = give_images(add_node("max_pool", x, **attrs), without_batch)
    if not with_indices:
        return y, None
    return y, give_images(add_node("max_pool_index", x, **attrs), without_batch)


def _mean_band(
    size: int, k: int, s: int, p: int, count: int, include_pad: bool, is_sum: bool
) -> list[dict[int, float]]:
    """For each window the elements that it reads and their shares."""
    band = []
    for o in range(count):
        begin, end = o * s - p, min(o * s - p + k, size + p)
        first, last = max(begin, 0), min(end, size)
        share = 1.0 if is_sum else 1.0 / ((end - begin) if include_pad else (last - first))
        band.append(dict.fromkeys(range(first, last), share))
    return band


def _avg_pool(
    n: int,
    input: Operand,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Pads,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: Divisor | None,
) -> Tensor:
    what = f"avg_pool{n}d"
    x, without_batch = lift_images(input, what, n)
    (kernel, steps, pads, _), counts = _windows(
        what, x, n, kernel_size, stride, padding, 1, ceil_mode
    )
    is_sum = divisor_override is not None
    for d in range(n):
        band = _mean_band(
            x.shape[2 + d], kernel[d], steps[d], pads[d], counts[d], count_include_pad, is_sum
        )
        x = apply_band(x, 2 + d, band)
    if divisor_override is not None:
        x = x / float(divisor_override)
    return give_images(x, without_batch)


def adaptive_mean(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Means of windows that cover each of the last dims so many times, for x (N, C, ...)."""
    first = x.ndim - len(sizes)
    whole = [first + d for d, size in enumerate(sizes) if size == 1 and x.shape[first + d] > 1]
    if whole:
        x = x.mean(whole, keepdim=True)
    for d, size in enumerate(sizes):
        length = x.shape[first + d]
        if size == length:
            continue
        ends = [(o * length // size, -(-(o + 1) * length // size)) for o in range(size)]
        x = apply_band(x, first + d, [dict.fromkeys(range(a, b), 1.0 / (b - a)) for a, b in ends])
    return x


def adaptive_sizes(
    what: str, x: Tensor, n: int, output_size: int | Sequence[int | None] | None
) -> tuple[int, ...]:
    """The output's size along each spatial dim."""
    given = plain(output_size)
    wanted = list(given) if isinstance(given, Sequence) else [given] * n
    if len(wanted) == 1:
        wanted *= n
    if len(wanted) != n:
        raise ConfigError(f"{what}: output_size must have {n} numbers, got {output_size!r}")
    sizes = [old if size is None else size for size, old in zip(wanted, x.shape[2:])]
    found = per_dim(what, "output_size", sizes, n, 1)
    if max(found) > MAX_SIZE:
        raise ShapeError(
            f"{what}: a dim may have up to {MAX_SIZE} elements, got output_size {output_size!r}"
        )
    if 0 in x.shape[2:]:
        raise ShapeError(f"{what}: the input must have elements, got shape {x.shape}")
    return found


def _adaptive_avg_pool(
    n: int, input: Operand, output_size: int | Sequence[int | None] | None
) -> Tensor:
    what = f"adaptive_avg_pool{n}d"
    x, without_batch = lift_images(input, what, n)
    sizes = adaptive_sizes(what, x, n, output_size)
    return give_images(adaptive_mean(x, sizes), without_batch)


def max_pool1d(
    input: Operand,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Pads = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The largest of each window over one spatial dim; a NaN is the largest.

    Parameters
    ----------
    input : Tensor
        ``(N, C, L)``, or without N.
    kernel_size : int
        Size of a window.
    stride : int, optional
        Elements from one window to the next; kernel_size by default.
    padding : int
        Elements on both sides that no window takes for the largest.
    dilation : int
        Elements from one of a window's to the next.
    ceil_mode : bool
        Whether a last window may hang over the end.
    return_indices : bool
        Whether to return where they are, too.

    Returns
    -------
    Tensor or (Tensor, Tensor)
        A number for each window, of the input's dtype, integers too; with return_indices also its
        place among the spatial elements of its channel, int64.

    Raises
    ------
    ConfigError
        For sizes out of range, or padding of more than half a window.
    ShapeError
        If the input has other dims, or no window fits.
    """
    y, index = pool_largest(
        1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )
    return y if index is None else (y, index)


def max_pool1d_with_indices(
    input: Operand,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Pads = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Tensor, Tensor]:
    """As max_pool1d with ``return_indices=True``.

    Parameters
    ----------
    input, kernel_size, stride, padding, dilation, ceil_mode
        As of max_pool1d.
    return_indices : bool
        Taken for torch's sake: they are returned.

    Returns
    -------
    (Tensor, Tensor)
        A number for each window, and its place among the spatial elements of its channel, int64.

    Raises
    ------
    ConfigError
        For sizes out of range, or padding of more than half a window.
    ShapeError
        If the input has other dims, or no window fits.
    """
    y, index = pool_largest(1, input, kernel_size, stride, padding, dilation, ceil_mode, True)
    assert index is not None
    return y, index


def avg_pool1d(
    input: Operand,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Pads = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window over one spatial dim.

    Parameters
    ----------
    input : Tensor
        ``(N, C, L)``, or without N.
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

    Returns
    -------
    Tensor
        A number for each window.

    Raises
    ------
    ConfigError
        For sizes out of range, or padding of more than half a window.
    ShapeError
        If the input has other dims, or no window fits.
    """
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def adaptive_avg_pool1d(input: Operand, output_size: int | Sequence[int | None] | None) -> Tensor:
    """Means of windows that are as large as it takes to have an output of this size.

    Parameters
    ----------
    input : Tensor
        ``(N, C, L)``, or without N.
    output_size : int
        The spatial dims of the result; None: as they are.

    Returns
    -------
    Tensor
        ``(N, C, *output_size)``; window o of n covers elements ``floor(o L / n)`` to
        ``ceil((o + 1) L / n)``.

    Raises
    ------
    ConfigError
        For sizes below 1, or too many.
    ShapeError
        If the input has other dims.
    """
    return _adaptive_avg_pool(1, input, output_size)


def max_pool2d(
    input: Operand,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Pads = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The largest of each window over two spatial dims; a NaN is the largest.

    Parameters
    ----------
    input : Tensor
        ``(N, C, H, W)``, or without N.
    kernel_size : int or (int, int)
        Size of a window.
    stride : int or (int, int), optional
        Elements from one window to the next; kernel_size by default.
    padding : int or (int, int)
        Elements on both sides that no window takes for the largest.
    dilation : int or (int, int)
        Elements from one of a window's to the next.
    ceil_mode : bool
        Whether a last window may hang over the end.
    return_indices : bool
        Whether to return where they are, too.

    Returns
    -------
    Tensor or (Tensor, Tensor)
        A number for each window; with return_indices also its place among the spatial elements of
        its channel, int64.

    Raises
    ------
    ConfigError
        For sizes out of range, or padding of more than half a window.
    ShapeError
        If the input has other dims, or no window fits.
    """
    y, index = pool_largest(
        2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )
    return y if index is None else (y, index)


def max_pool2d_with_indices(
    input: Operand,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Pads = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Tensor, Tensor]:
    """As max_pool2d with ``return_indices=True``.

    Parameters
    ----------
    input, kernel_size, stride, padding, dilation, ceil_mode
        As of max_pool2d.
    return_indices : bool
        Taken for torch's sake: they are returned.

    Returns
    -------
    (Tensor, Tensor)
        A number for each window, and its place among the spatial elements of its channel, int64.

    Raises
    ------
    ConfigError
        For sizes out of range, or padding of more than half a window.
    ShapeError
        If the input has other dims, or no window fits.
    """
    y, index = pool_largest(2, input, kernel_size, stride, padding, dilation, ceil_mode, True)
    assert index is not None
    return y, index


def avg_pool2d(
    input: Operand,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Pads = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Divisor | None = None,
) -> Tensor:
    """The mean of each window over two spatial dims.

    Parameters
    ----------
    input : Tensor
        ``(N, C, H, W)``, or without N.
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

    Returns
    -------
    Tensor
        A number for each window.

    Raises
    ------
    ConfigError
        For sizes out of range, or padding of more than half a window.
    ShapeError
        If the input has other dims, or no window fits.
    """
    return _avg_pool(
        2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def adaptive_avg_pool2d(input: Operand, output_size: int | Sequence[int | None] | None) -> Tensor:
    """Means of windows that are as large as it takes to have an output of this size.

    Parameters
    ----------
    input : Tensor
        ``(N, C, H, W)``, or without N.
    output_size : int or (int, int)
        The spatial dims of the result; None: as they are.

    Returns
    -------
    Tensor
        ``(N, C, *output_size)``; window o of n covers elements ``floor(o L / n)`` to
        ``ceil((o + 1) L / n)``.

    Raises
    ------
    ConfigError
        For sizes below 1, or too many.
    ShapeError
        If the input has other dims.
    """
    return _adaptive_avg_pool(2, input, output_size)


def max_pool3d(
    input: Operand,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Pads = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The largest of each window over three spatial dims; a NaN is the largest.

    Parameters
    ----------
    input : Tensor
        ``(N, C, D, H, W)``, or without N.
    kernel_size : int or (int, int, int)
        Size of a window.
    stride : int or (int, int, int), optional
        Elements from one window to the next; kernel_size by default.
    padding : int or (int, int, int)
        Elements on both sides that no window takes for the largest.
    dilation : int or (int, int, int)
        Elements from one of a window's to the next.
    ceil_mode : bool
        Whether a last window may hang over the end.
    return_indices : bool
        Whether to return where they are, too.

    Returns
    -------
    Tensor or (Tensor, Tensor)
        A number for each window; with return_indices also its place among the spatial elements of
        its channel, int64.

    Raises
    ------
    ConfigError
        For sizes out of range, or padding of more than half a window.
    ShapeError
        If the input has other dims, or no window fits.
    """
    y, index = pool_largest(
        3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )
    return y if index is None else (y, index)


def max_pool3d_with_indices(
    input: Operand,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Pads = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Tensor, Tensor]:
    """As max_pool3d with ``return_indices=True``.

    Parameters
    ----------
    input, kernel_size, stride, padding, dilation, ceil_mode
        As of max_pool3d.
    return_indices : bool
        Taken for torch's sake: they are returned.

    Returns
    -------
    (Tensor, Tensor)
        A number for each window, and its place among the spatial elements of its channel, int64.

    Raises
    ------
    ConfigError
        For sizes out of range, or padding of more than half a window.
    ShapeError
        If the input has other dims, or no window fits.
    """
    y, index = pool_largest(3, input, kernel_size, stride, padding, dilation, ceil_mode, True)
    assert index is not None
    return y, index


def avg_pool3d(
    input: Operand,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Pads = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Divisor | None = None,
) -> Tensor:
    """The mean of each window over three spatial dims.

    Parameters
    ----------
    input : Tensor
        ``(N, C, D, H, W)``, or without N.
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

    Returns
    -------
    Tensor
        A number for each window.

    Raises
    ------
    ConfigError
        For sizes out of range, or padding of more than half a window.
    ShapeError
        If the input has other dims, or no window fits.
    """
    return _avg_pool(
        3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def adaptive_avg_pool3d(input: Operand, output_size: int | Sequence[int | None] | None) -> Tensor:
    """Means of windows that are as large as it takes to have an output of this size.

    Parameters
    ----------
    input : Tensor
        ``(N, C, D, H, W)``, or without N.
    output_size : int or (int, int, int)
        The spatial dims of the result; None: as they are.

    Returns
    -------
    Tensor
        ``(N, C, *output_size)``; window o of n covers elements ``floor(o L / n)`` to
        ``ceil((o + 1) L / n)``.

    Raises
    ------
    ConfigError
        For sizes below 1, or too many.
    ShapeError
        If the input has other dims.
    """
    return _adaptive_avg_pool(3, input, output_size)


def _lp_pool(
    n: int,
    input: Operand,
    norm_type: Order,
    kernel_size: Sizes,
    stride: Sizes | None,
    ceil_mode: bool,
) -> Tensor:
    what = f"lp_pool{n}d"
    x, without_batch = lift_images(input, what, n)
    norm_type = plain(norm_type)
    if isinstance(norm_type, bool) or not isinstance(norm_type, int | float):
        raise ConfigError(f"{what}: norm_type must be a number, got {norm_type!r}")
    if math.isinf(norm_type):
        sign = 1.0 if norm_type > 0 else -1.0
        y, _ = pool_largest(n, pointwise.abs(x) * sign, kernel_size, stride, 0, 1, ceil_mode, False)
        return give_images(y * sign, without_batch)
    if not norm_type:
        raise ConfigError(f"{what}: norm_type must not be 0")
    taps = math.prod(per_dim(what, "kernel_size", kernel_size, n, 1))
    mean = _avg_pool(n, x**norm_type, kernel_size, stride, 0, ceil_mode, True, None)
    # Where all are 0, a power below 1 has no gradient, and relu's is 0.
    total = pointwise.sign(mean) * activations.relu(pointwise.abs(mean)) * float(taps)
    return give_images(total ** (1.0 / norm_type), without_batch)


def lp_pool1d(
    input: Operand,
    norm_type: Order,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The p-norm of each window: ``(sum of x ** p) ** (1 / p)``.

    Parameters
    ----------
    input : Tensor
        ``(N, C, L)``, or without N.
    norm_type : float
        p, not 0; infinity: the largest magnitude.
    kernel_size : int
        Size of a window.
    stride : int, optional
        Elements from one window to the next; kernel_size by default.
    ceil_mode : bool
        Whether a last window may hang over the end; its mean counts for what it lacks.

    Returns
    -------
    Tensor
        A number for each window.

    Raises
    ------
    ConfigError
        For sizes out of range, or p of 0.
    ShapeError
        If the input has other dims, or no window fits.

    Notes
    -----
    As in torch no magnitudes are taken: for an odd p terms of both signs cancel, and for one that
    is no integer those of negative numbers are NaN.
    """
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(
    input: Operand,
    norm_type: Order,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The p-norm of each window: ``(sum of x ** p) ** (1 / p)``.

    Parameters
    ----------
    input : Tensor
        ``(N, C, H, W)``, or without N.
    norm_type : float
        p, not 0; infinity: the largest magnitude.
    kernel_size : int or (int, int)
        Size of a window.
    stride : int or (int, int), optional
        Elements from one window to the next; kernel_size by default.
    ceil_mode : bool
        Whether a last window may hang over the end; its mean counts for what it lacks.

    Returns
    -------
    Tensor
        A number for each window.

    Raises
    ------
    ConfigError
        For sizes out of range, or p of 0.
    ShapeError
        If the input has other dims, or no window fits.

    Notes
    -----
    As in torch no magnitudes are taken: for an odd p terms of both signs cancel, and for one that
    is no integer those of negative numbers are NaN.
    """
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(
    input: Operand,
    norm_type: Order,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The p-norm of each window: ``(sum of x ** p) ** (1 / p)``.

    Parameters
    ----------
    input : Tensor
        ``(N, C, D, H, W)``, or without N.
    norm_type : float
        p, not 0; infinity: the largest magnitude.
    kernel_size : int or (int, int, int)
        Size of a window.
    stride : int or (int, int, int), optional
        Elements from one window to the next; kernel_size by default.
    ceil_mode : bool
        Whether a last window may hang over the end; its mean counts for what it lacks.

    Returns
    -------
    Tensor
        A number for each window.

    Raises
    ------
    ConfigError
        For sizes out of range, or p of 0.
    ShapeError
        If the input has other dims, or no window fits.

    Notes
    -----
    As in torch no magnitudes are taken: for an odd p terms of both signs cancel, and for one that
    is no integer those of negative numbers are NaN.
    """
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)


make_functions(globals(), __all__)
