"""Images sampled at any places: grids of an affine map, and interpolation there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import comparison, indexing, pointwise, views
from hotloop.graph.build import Operand, cast, lift, lift_float
from hotloop.graph.contraction import matmul
from hotloop.graph.dtypes import int64
from hotloop.graph.value import Tensor
from hotloop.nn.functional.arguments import make_functions
from hotloop.nn.functional.windows import sizes_of

__all__ = ["affine_grid", "grid_sample"]

_CUBIC = -0.75  # Keys' parameter, as torch has it


def affine_grid(theta: Operand, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """Where an affine map takes the pixels of an image: a grid for ``grid_sample``.

    Parameters
    ----------
    theta : Tensor
        ``(N, 2, 3)`` for images, ``(N, 3, 4)`` for volumes: from places of the output to those of
        the input, x before y before z, both in [-1, 1].
    size : sequence of int
        Of the output: ``(N, C, H, W)`` or ``(N, C, D, H, W)``.
    align_corners : bool, optional
        Whether -1 and 1 are the centres of the pixels at the edges, or the edges themselves
        (False, the default).

    Returns
    -------
    Tensor
        ``(N, H, W, 2)`` or ``(N, D, H, W, 3)``.

    Raises
    ------
    ShapeError
        If theta and size do not fit.
    ConfigError
        If size is no sequence of integers.
    """
    maps, sizes = lift_float(theta, "affine_grid"), sizes_of("affine_grid", "size", size)
    n = len(sizes) - 2
    if n not in (2, 3) or maps.shape != (sizes[0], n, n + 1) or min(sizes) < 1:
        want = f"({sizes[0]}, {n}, {n + 1})" if n in (2, 3) else "of (N, 2, 3) or (N, 3, 4)"
        raise ShapeError(
            f"affine_grid: theta must be {want} for size {sizes}, got shape {maps.shape}"
        )
    axes = []
    for length in sizes[2:]:
        places = np.linspace(-1.0, 1.0, length) if length > 1 else np.zeros(1)
        axes.append(places if align_corners else places * ((length - 1) / length))
    grid = np.meshgrid(*axes, indexing="ij")[::-1]
    base = np.stack([*grid, np.ones_like(grid[0])], -1).reshape(-1, n + 1)
    placed = matmul(cast(lift(base, what="affine_grid"), maps.dtype), views.transpose(maps, 1, 2))
    return views.reshape(placed, (sizes[0], *sizes[2:], n))


def _reflect(at: Tensor, low: float, high: float) -> Tensor:
    """Places beyond two edges, mirrored there as often as it takes."""
    span = high - low
    if span <= 0:
        return at * 0.0
    distance = pointwise.abs(at - low)
    turns = pointwise.floor(distance / span)
    rest = distance - turns * span
    is_back = turns - pointwise.floor(turns * 0.5) * 2.0 > 0.5
    return pointwise.where(is_back, span - rest, rest) + low


def _pad(at: Tensor, length: int, padding_mode: str, align_corners: bool) -> Tensor:
    """Places as the padding has them; zeros are for who reads there."""
    if padding_mode == "reflection":
        at = _reflect(at, 0.0, length - 1.0) if align_corners else _reflect(at, -0.5, length - 0.5)
    return at if padding_mode == "zeros" else pointwise.clamp(at, 0.0, length - 1.0)


def _cubic_weights(t: Tensor) -> list[Tensor]:
    """Of the pixels at -1, 0, 1 and 2 for a place t in [0, 1) behind 0."""

    def near(d: Tensor) -> Tensor:
        return ((_CUBIC + 2.0) * d - (_CUBIC + 3.0)) * d * d + 1.0

    def far(d: Tensor) -> Tensor:
        return ((_CUBIC * d - 5.0 * _CUBIC) * d + 8.0 * _CUBIC) * d - 4.0 * _CUBIC

    return [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]


def _taps(
    at: Tensor, length: int, mode: str, padding_mode: str, align_corners: bool
) -> list[tuple[Tensor, Tensor | None]]:
    """Along a dim, the pixels that a place takes from and their shares; None: all of it."""
    if mode == "bicubic":
        begin = pointwise.floor(at)
        weights = _cubic_weights(at - begin)
        return [
            (_pad(begin + (i - 1.0), length, padding_mode, align_corners), weight)
            for i, weight in enumerate(weights)
        ]
    at = _pad(at, length, padding_mode, align_corners)
    if mode == "nearest":
        return [(pointwise.round(at), None)]
    begin = pointwise.floor(at)
    return [(begin, begin + 1.0 - at), (begin + 1.0, at - begin)]


def grid_sample(
    input: Operand,
    grid: Operand,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Images at places between their pixels (Jaderberg et al. 2015).

    Parameters
    ----------
    input : Tensor
        ``(N, C, H, W)`` or ``(N, C, D, H, W)``.
    grid : Tensor
        ``(N, H', W', 2)`` or ``(N, D', H', W', 3)``: for each output its place in the input, x
        before y before z, where -1 and 1 are the edges.
    mode : str
        ``"bilinear"`` (of volumes trilinear), ``"nearest"`` or, of images, ``"bicubic"``.
    padding_mode : str
        What lies beyond the edges: ``"zeros"``, ``"border"`` (the pixel at the edge) or
        ``"reflection"``.
    align_corners : bool, optional
        Whether -1 and 1 are the centres of the pixels at the edges, or the edges themselves
        (False, the default).

    Returns
    -------
    Tensor
        ``(N, C, H', W')`` or ``(N, C, D', H', W')``; 0 where a place is no number.

    Raises
    ------
    ConfigError
        For an unknown mode.
    ShapeError
        If input and grid do not fit.
    """
    x, places = lift_float(input, "grid_sample"), lift_float(grid, "grid_sample")
    n = x.ndim - 2
    modes = ("bilinear", "nearest", "bicubic") if n == 2 else ("bilinear", "nearest")
    if mode not in modes:
        raise ConfigError(f"grid_sample: mode must be one of {', '.join(modes)}, got {mode!r}")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ConfigError(
            f"grid_sample: padding_mode must be zeros, border or reflection, got {padding_mode!r}"
        )
    fits = places.ndim == n + 2 and places.shape[0] == x.shape[0] and places.shape[-1] == n
    if n not in (2, 3) or not fits or min(x.shape[2:]) < 1:
        raise ShapeError(
            "grid_sample: input (N, C, H, W) needs a grid (N, H', W', 2), and (N, C, D, H, W) one "
            f"of (N, D', H', W', 3), got {x.shape} and {places.shape}"
        )
    batch, channels, lengths = x.shape[0], x.shape[1], x.shape[2:]
    count = math.prod(places.shape[1:-1])
    choices = []
    for d, length in enumerate(lengths):
        at = views.reshape(views.select(places, -1, n - 1 - d), (batch, count))
        span, edge = (length - 1, 0.0) if align_corners else (length, 0.5)
        at = (at + 1.0) * (span / 2.0) - edge
        choices.append(_taps(at, length, mode, padding_mode, bool(align_corners)))
    order = (0, *range(2, n + 2), 1)
    pixels = views.reshape(views.permute(x, order), (batch * math.prod(lengths), channels))
    first = lift(np.arange(batch, dtype=np.int64)[:, None] * math.prod(lengths), what="grid_sample")
    total: Tensor | None = None
    for corner in itertools.product(*choices):
        index, share, inside = first, None, None
        for d, ((at, weight), length) in enumerate(zip(corner, lengths)):
            # A place that is no number is outside, so that every index is valid.
            here = comparison.logical_and(at >= 0.0, at <= length - 1.0)
            inside = here if inside is None else comparison.logical_and(inside, here)
            pixel = cast(pointwise.where(here, at, 0.0), int64)
            index = index + pixel * math.prod(lengths[d + 1 :])
            if weight is not None:
                share = weight if share is None else share * weight
        assert inside is not None
        read = indexing.index_select(pixels, 0, views.reshape(index, (batch * count,)))
        if share is not None:
            read = read * views.reshape(cast(share, x.dtype), (batch * count, 1))
        read = pointwise.where(views.reshape(inside, (batch * count, 1)), read, 0.0)
        total = read if total is None else total + read
    assert total is not None
    y = views.reshape(total, (batch, *places.shape[1:-1], channels))
    return views.permute(y, (0, n + 1, *range(1, n + 1)))


make_functions(globals(), __all__)
