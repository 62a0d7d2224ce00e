"""The largest of windows that are no regular ones: adaptive, drawn at random; and the way back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hotloop.base.scalars import plain
from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import creation, indexing, reduction, views
from hotloop.graph.build import Operand, cast, lift
from hotloop.graph.dtypes import int64
from hotloop.graph.value import Tensor
from hotloop.nn.functional.arguments import make_functions
from hotloop.nn.functional.pooling import adaptive_sizes, largest_at, pool_largest
from hotloop.nn.functional.windows import Pads, Sizes, give_images, lift_images, per_dim, sizes_of

__all__ = [
    "adaptive_max_pool1d", "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d",
    "adaptive_max_pool2d_with_indices", "adaptive_max_pool3d", "adaptive_max_pool3d_with_indices",
    "fractional_max_pool2d", "fractional_max_pool2d_with_indices", "fractional_max_pool3d",
    "fractional_max_pool3d_with_indices", "max_unpool1d", "max_unpool2d", "max_unpool3d",
]  # fmt: skip

Sizing = int | Sequence[int | None] | None
Pooled = Tensor | tuple[Tensor, Tensor]


def _give(y: Tensor, index: Tensor, without_batch: bool, with_indices: bool) -> Pooled:
    y = give_images(y, without_batch)
    return (y, give_images(index, without_batch)) if with_indices else y


# ---------------------------------------------------------------------------- adaptive


def _adaptive(n: int, input: Operand, output_size: Sizing, with_indices: bool) -> Pooled:
    what = f"adaptive_max_pool{n}d"
    x, without_batch = lift_images(input, what, n, chooses=True)
    sizes = adaptive_sizes(what, x, n, output_size)
    lengths = x.shape[2:]
    if all(length % size == 0 for length, size in zip(lengths, sizes)):
        kernel = tuple(length // size for length, size in zip(lengths, sizes))
        y, index = pool_largest(n, input, kernel, kernel, 0, 1, False, with_indices)
        return y if index is None else (y, index)
    elements = []
    for length, size in zip(lengths, sizes):
        begin = np.arange(size) * length // size
        end = -(-(np.arange(size) + 1) * length // size)
        # Shorter windows repeat their last element, which changes neither the largest nor where
        # the first of equal ones is.
        own = np.minimum(begin[:, None] + np.arange(max(end - begin)), end[:, None] - 1)
        elements.append(own.astype(np.int64))
    y, index = largest_at(what, x, elements)
    return _give(y, index, without_batch, with_indices)


def adaptive_max_pool1d(
    input: Operand, output_size: Sizing, return_indices: bool = False
) -> Pooled:
    """The largest of windows that are as large as it takes to have an output of this size.

    Parameters
    ----------
    input : Tensor
        ``(N, C, L)``, or without N.
    output_size : int
        The spatial dims of the result; None: as they are.
    return_indices : bool
        Whether to return where they are, too.

    Returns
    -------
    Tensor or (Tensor, Tensor)
        ``(N, C, *output_size)``; window o of n covers elements ``floor(o L / n)`` to
        ``ceil((o + 1) L / n)``. With return_indices also each one's place among the spatial
        elements of its channel, int64.

    Raises
    ------
    ConfigError
        For sizes below 1, or too many.
    ShapeError
        If the input has other dims.
    """
    return _adaptive(1, input, output_size, return_indices)


def adaptive_max_pool1d_with_indices(
    input: Operand, output_size: Sizing, return_indices: bool = False
) -> Pooled:
    """As adaptive_max_pool1d with ``return_indices=True``.

    Parameters
    ----------
    input, output_size
        As of adaptive_max_pool1d.
    return_indices : bool
        Taken for torch's sake: they are returned.

    Returns
    -------
    (Tensor, Tensor)
        As of adaptive_max_pool1d.

    Raises
    ------
    ConfigError, ShapeError
        As of adaptive_max_pool1d.
    """
    return _adaptive(1, input, output_size, True)


def adaptive_max_pool2d(
    input: Operand, output_size: Sizing, return_indices: bool = False
) -> Pooled:
    """The largest of windows that are as large as it takes to have an output of this size.

    Parameters
    ----------
    input : Tensor
        ``(N, C, H, W)``, or without N.
    output_size : int or (int, int)
        The spatial dims of the result; None: as they are.
    return_indices : bool
        Whether to return where they are, too.

    Returns
    -------
    Tensor or (Tensor, Tensor)
        As of adaptive_max_pool1d, along each spatial dim.

    Raises
    ------
    ConfigError
        For sizes below 1, or too many.
    ShapeError
        If the input has other dims.
    """
    return _adaptive(2, input, output_size, return_indices)


def adaptive_max_pool2d_with_indices(
    input: Operand, output_size: Sizing, return_indices: bool = False
) -> Pooled:
    """As adaptive_max_pool2d with ``return_indices=True``.

    Parameters
    ----------
    input, output_size
        As of adaptive_max_pool2d.
    return_indices : bool
        Taken for torch's sake: they are returned.

    Returns
    -------
    (Tensor, Tensor)
        As of adaptive_max_pool1d.

    Raises
    ------
    ConfigError, ShapeError
        As of adaptive_max_pool2d.
    """
    return _adaptive(2, input, output_size, True)


def adaptive_max_pool3d(
    input: Operand, output_size: Sizing, return_indices: bool = False
) -> Pooled:
    """The largest of windows that are as large as it takes to have an output of this size.

    Parameters
    ----------
    input : Tensor
        ``(N, C, D, H, W)``, or without N.
    output_size : int or (int, int, int)
        The spatial dims of the result; None: as they are.
    return_indices : bool
        Whether to return where they are, too.

    Returns
    -------
    Tensor or (Tensor, Tensor)
        As of adaptive_max_pool1d, along each spatial dim.

    Raises
    ------
    ConfigError
        For sizes below 1, or too many.
    ShapeError
        If the input has other dims.
    """
    return _adaptive(3, input, output_size, return_indices)


def adaptive_max_pool3d_with_indices(
    input: Operand, output_size: Sizing, return_indices: bool = False
) -> Pooled:
    """As adaptive_max_pool3d with ``return_indices=True``.

    Parameters
    ----------
    input, output_size
        As of adaptive_max_pool3d.
    return_indices : bool
        Taken for torch's sake: they are returned.

    Returns
    -------
    (Tensor, Tensor)
        As of adaptive_max_pool1d.

    Raises
    ------
    ConfigError, ShapeError
        As of adaptive_max_pool3d.
    """
    return _adaptive(3, input, output_size, True)


# ---------------------------------------------------------------------------- fractional


def _output_size(
    what: str, x: Tensor, n: int, output_size: Sizes | None, output_ratio: Any
) -> tuple[int, ...]:
    if (output_size is None) == (output_ratio is None):
        given = "neither" if output_size is None else "both"
        raise ConfigError(f"{what}: needs output_size or output_ratio, one of them, got {given}")
    if output_size is not None:
        return per_dim(what, "output_size", output_size, n, 1)
    ratios = output_ratio if isinstance(output_ratio, Sequence) else [output_ratio] * n
    if len(ratios) != n or not all(0 < ratio < 1 for ratio in ratios):
        raise ConfigError(
            f"{what}: output_ratio must be a number between 0 and 1 or {n} of them, got "
            f"{output_ratio!r}"
        )
    sizes = [int(length * ratio) for length, ratio in zip(x.shape[2:], ratios)]
    return per_dim(what, f"output_size, of output_ratio {output_ratio!r},", sizes, n, 1)


def _begins(sample: Tensor, length: int, size: int, kernel: int) -> Tensor:
    """Where windows of a dim begin: steps of two sizes in a random order, the last at the end."""
    last = lift(np.full((1, 1, 1), length - kernel, np.int64), what="fractional_max_pool")
    ends = views.expand(last, (*sample.shape[:2], 1))
    if size == 1:
        return ends
    alpha = (length - kernel) / (size - 1)
    shifted = views.unsqueeze(sample, 2)
    steps = lift(np.arange(size - 1, dtype=np.float32), what="fractional_max_pool")
    begin = cast((steps + shifted) * alpha, int64) - cast(shifted * alpha, int64)
    return views.concat([begin, ends], 2)


def _fractional(
    n: int,
    input: Operand,
    kernel_size: Sizes,
    output_size: Sizes | None,
    output_ratio: Any,
    with_indices: bool,
    samples: Any,
) -> Pooled:
    what = f"fractional_max_pool{n}d"
    x, without_batch = lift_images(input, what, n, chooses=True)
    kernel = per_dim(what, "kernel_size", kernel_size, n, 1)
    sizes = _output_size(what, x, n, plain(output_size), plain(output_ratio))
    lengths = x.shape[2:]
    if any(size + k - 1 > length for size, k, length in zip(sizes, kernel, lengths)):
        raise ShapeError(
            f"{what}: output_size + kernel_size - 1 must be at most the input's size, got "
            f"output_size {sizes}, kernel_size {kernel} and input of shape {x.shape}"
        )
    shape = (*x.shape[:2], n)
    drawn = creation.uniform_bits(shape, what) if samples is None else lift(samples, what=what)
    if tuple(drawn.shape) != shape:
        raise ShapeError(f"{what}: _random_samples must be {shape}, got {tuple(drawn.shape)}")
    ranks = (*x.shape[:2], *(1,) * (2 * n))
    flat_index: Tensor | None = None
    for d, (length, size, k) in enumerate(zip(lengths, sizes, kernel)):
        # torch's order: of images the last dim's number is the first.
        sample = views.select(drawn, 2, n - 1 - d if n == 2 else d)
        begin = views.unsqueeze(_begins(sample, length, size, k), 3)
        own = begin + lift(np.arange(k, dtype=np.int64), what=what)
        dims = [*ranks]
        dims[2 + d], dims[2 + n + d] = size, k
        own = views.reshape(own, dims)
        flat_index = own if flat_index is None else flat_index * length + own
    assert flat_index is not None
    windows, taps = math.prod(sizes), math.prod(kernel)
    places = views.reshape(flat_index, (*x.shape[:2], windows * taps))
    flat = views.reshape(x, (*x.shape[:2], math.prod(lengths)))
    by_window = (*x.shape[:2], windows, taps)
    values = views.reshape(indexing.gather(flat, 2, places), by_window)
    chosen = reduction.argmax(values, 3, keepdim=True)
    index = views.squeeze(indexing.gather(views.reshape(places, by_window), 3, chosen), 3)
    shape = (*x.shape[:2], *sizes)
    y = views.reshape(indexing.gather(flat, 2, index), shape)
    return _give(y, views.reshape(index, shape), without_batch, with_indices)


def fractional_max_pool2d(
    input: Operand,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Any = None,
) -> Pooled:
    """The largest of windows whose steps are drawn at random (Graham 2014).

    Parameters
    ----------
    input : Tensor
        ``(N, C, H, W)``, or without N.
    kernel_size : int or (int, int)
        Size of a window.
    output_size : int or (int, int), optional
        The spatial dims of the result; or
    output_ratio : float or (float, float), optional
        what they are of the input's.
    return_indices : bool
        Whether to return where they are, too.
    _random_samples : Tensor, optional
        ``(N, C, 2)`` in [0, 1), the last dim's first; drawn anew in each step by default.

    Returns
    -------
    Tensor or (Tensor, Tensor)
        ``(N, C, *output_size)``; with return_indices also each one's place among the spatial
        elements of its channel, int64.

    Raises
    ------
    ConfigError
        For sizes out of range, or both of size and ratio, or neither.
    ShapeError
        If the input has other dims, or so many windows do not fit.
    """
    return _fractional(
        2, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )


def fractional_max_pool2d_with_indices(
    input: Operand,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Any = None,
) -> Pooled:
    """As fractional_max_pool2d with ``return_indices=True``.

    Parameters
    ----------
    input, kernel_size, output_size, output_ratio, _random_samples
        As of fractional_max_pool2d.
    return_indices : bool
        Taken for torch's sake: they are returned.

    Returns
    -------
    (Tensor, Tensor)
        As of fractional_max_pool2d.

    Raises
    ------
    ConfigError, ShapeError
        As of fractional_max_pool2d.
    """
    return _fractional(2, input, kernel_size, output_size, output_ratio, True, _random_samples)


def fractional_max_pool3d(
    input: Operand,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Any = None,
) -> Pooled:
    """The largest of windows whose steps are drawn at random (Graham 2014).

    Parameters
    ----------
    input : Tensor
        ``(N, C, D, H, W)``, or without N.
    kernel_size : int or (int, int, int)
        Size of a window.
    output_size : int or (int, int, int), optional
        The spatial dims of the result; or
    output_ratio : float or (float, float, float), optional
        what they are of the input's.
    return_indices : bool
        Whether to return where they are, too.
    _random_samples : Tensor, optional
        ``(N, C, 3)`` in [0, 1); drawn anew in each step by default.

    Returns
    -------
    Tensor or (Tensor, Tensor)
        As of fractional_max_pool2d.

    Raises
    ------
    ConfigError
        For sizes out of range, or both of size and ratio, or neither.
    ShapeError
        If the input has other dims, or so many windows do not fit.
    """
    return _fractional(
        3, input, kernel_size, output_size, output_ratio, return_indices, _random_samples
    )


def fractional_max_pool3d_with_indices(
    input: Operand,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Any = None,
) -> Pooled:
    """As fractional_max_pool3d with ``return_indices=True``.

    Parameters
    ----------
    input, kernel_size, output_size, output_ratio, _random_samples
        As of fractional_max_pool3d.
    return_indices : bool
        Taken for torch's sake: they are returned.

    Returns
    -------
    (Tensor, Tensor)
        As of fractional_max_pool2d.

    Raises
    ------
    ConfigError, ShapeError
        As of fractional_max_pool3d.
    """
    return _fractional(3, input, kernel_size, output_size, output_ratio, True, _random_samples)


# ---------------------------------------------------------------------------- unpooling


def _unpool(
    n: int,
    input: Operand,
    indices: Operand,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Pads,
    output_size: Sequence[int] | None,
) -> Tensor:
    what = f"max_unpool{n}d"
    x, without_batch = lift_images(input, what, n, chooses=True)
    at = lift(indices, what=what)
    kernel = per_dim(what, "kernel_size", kernel_size, n, 1)
    steps = kernel if stride is None else per_dim(what, "stride", stride, n, 1)
    pads = per_dim(what, "padding", padding, n, 0)
    lists = zip(x.shape[2:], steps, kernel, pads)
    usual = tuple((length - 1) * s + k - 2 * p for length, s, k, p in lists)
    given = None if output_size is None else sizes_of(what, "output_size", output_size)
    sizes = usual if given is None else given[-n:]
    is_near = all(abs(size - u) < s for size, u, s in zip(sizes, usual, steps))
    if given is not None and (len(given) not in (n, n + 1, n + 2) or not is_near):
        raise ConfigError(
            f"{what}: output_size must have {n} numbers, each less than the stride {steps} away "
            f"from {usual}, got {given}"
        )
    if min(sizes) < 1:
        raise ShapeError(f"{what}: the output must have elements, got size {sizes}")
    if (tuple(at.shape) if not without_batch else (1, *at.shape)) != x.shape:
        raise ShapeError(
            f"{what}: indices must have the input's shape, got {tuple(at.shape)} and "
            f"{tuple(x.shape[1:] if without_batch else x.shape)}"
        )
    flat = (*x.shape[:2], math.prod(x.shape[2:]))
    empty = views.expand(cast(lift(np.zeros((1, 1, 1), np.float32), what=what), x.dtype),
                         (*x.shape[:2], math.prod(sizes)))  # fmt: skip
    y = indexing.scatter(empty, 2, views.reshape(at, flat), views.reshape(x, flat))
    return give_images(views.reshape(y, (*x.shape[:2], *sizes)), without_batch)


def max_unpool1d(
    input: Operand,
    indices: Operand,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Pads = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """What max pooling gave at the places where it was found, and 0 elsewhere.

    Parameters
    ----------
    input : Tensor
        ``(N, C, L)``, or without N.
    indices : Tensor of integers
        Of the same shape: as max pooling returns them.
    kernel_size, stride, padding
        Of that pooling.
    output_size : sequence of int, optional
        The result's shape, or its spatial dims; by default the least that pooling can have had.

    Returns
    -------
    Tensor
        ``(N, C, *output_size)``.

    Raises
    ------
    ConfigError
        For sizes out of range.
    ShapeError
        If input and indices do not fit.
    DataError
        In the step, for an index out of range.
    """
    return _unpool(1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Operand,
    indices: Operand,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Pads = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """What max pooling gave at the places where it was found, and 0 elsewhere.

    Parameters
    ----------
    input : Tensor
        ``(N, C, H, W)``, or without N.
    indices, kernel_size, stride, padding, output_size
        As of max_unpool1d.

    Returns
    -------
    Tensor
        ``(N, C, *output_size)``.

    Raises
    ------
    ConfigError, ShapeError, DataError
        As of max_unpool1d.
    """
    return _unpool(2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    input: Operand,
    indices: Operand,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Pads = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """What max pooling gave at the places where it was found, and 0 elsewhere.

    Parameters
    ----------
    input : Tensor
        ``(N, C, D, H, W)``, or without N.
    indices, kernel_size, stride, padding, output_size
        As of max_unpool1d.

    Returns
    -------
    Tensor
        ``(N, C, *output_size)``.

    Raises
    ------
    ConfigError, ShapeError, DataError
        As of max_unpool1d.
    """
    return _unpool(3, input, indices, kernel_size, stride, padding, output_size)


make_functions(globals(), __all__)
