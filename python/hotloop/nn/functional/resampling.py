"""Images of other sizes: interpolation, and channels that become pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from hotloop.base.scalars import plain
from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import indexing, views
from hotloop.graph.build import Operand, lift, lift_float
from hotloop.graph.value import Tensor
from hotloop.nn.functional.arguments import Count, Interpolation, make_functions
from hotloop.nn.functional.bands import MAX_SIZE, apply_band
from hotloop.nn.functional.pooling import adaptive_mean

__all__ = [
    "channel_shuffle", "interpolate", "native_channel_shuffle", "pixel_shuffle",
    "pixel_unshuffle", "upsample", "upsample_bilinear", "upsample_nearest",
]  # fmt: skip

Row = dict[int, float]
_DIMS = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}


def _add(row: Row, at: int, size: int, weight: float) -> None:
    """What lies outside counts for the element at the edge."""
    at = min(max(at, 0), size - 1)
    row[at] = row.get(at, 0.0) + weight


def _triangle(distance: float) -> float:
    return max(0.0, 1.0 - abs(distance))


def _cubic(a: float) -> Callable[[float], float]:
    """Keys' kernel (1981)."""

    def weight(distance: float) -> float:
        d = abs(distance)
        if d < 1:
            return ((a + 2) * d - (a + 3)) * d * d + 1
        return (((d - 5) * d + 8) * d - 4) * a if d < 2 else 0.0

    return weight


def _nearest_rows(size: int, n: int, scale: float, exact: bool) -> list[Row]:
    """torch's choice, which is made in float32."""
    shift, step = np.float32(0.5 if exact else 0.0), np.float32(scale)
    places = np.floor((np.arange(n, dtype=np.float32) + shift) * step)
    return [{int(min(place, size - 1)): 1.0} for place in places]


def _smooth_rows(size: int, n: int, scale: float, align_corners: bool, cubic: bool) -> list[Row]:
    rows: list[Row] = []
    weigh = _cubic(-0.75) if cubic else _triangle
    for o in range(n):
        at = o * scale if align_corners else (o + 0.5) * scale - 0.5
        if not cubic:
            at = max(at, 0.0)
        begin, row = math.floor(at), dict[int, float]()
        for tap in range(-1, 3) if cubic else range(2):
            _add(row, begin + tap, size, weigh(at - begin - tap))
        rows.append(row)
    return rows


def _antialias_rows(size: int, n: int, scale: float, cubic: bool) -> list[Row]:
    """Each output's filter is as wide as what it stands for (Pillow's)."""
    rows: list[Row] = []
    stretch = max(scale, 1.0)
    reach = (2.0 if cubic else 1.0) * stretch
    weigh = _cubic(-0.5) if cubic else _triangle
    for o in range(n):
        centre = scale * (o + 0.5)
        first, last = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), size)
        shares = [weigh((at - centre + 0.5) / stretch) for at in range(first, last)]
        total = sum(shares)
        rows.append({first + t: share / total for t, share in enumerate(shares)})
    return rows


def _list(name: str, value: object, n: int) -> list[float]:
    given = plain(value)
    values = list(given) if isinstance(given, Sequence) else [given] * n
    if len(values) != n or not all(isinstance(v, int | float) and 0 < v < math.inf for v in values):
        several = f" or {n} of them" if n > 1 else ""
        raise ConfigError(
            f"interpolate: {name} must be a number above 0{several} for an input of {n + 2} dims "
            f"(N, C, ...), got {value!r}"
            + ("; of one image write x[None]" if len(values) == n + 1 else "")
        )
    return values


def _find_sizes(
    x: Tensor, size: object, scale_factor: object, recompute: bool | None
) -> tuple[list[int], list[float | None]]:
    """The result's spatial dims, and by dim the factor that sets the places, if one does."""
    n = x.ndim - 2
    if (size is None) == (scale_factor is None):
        given = "neither" if size is None else "both"
        raise ConfigError(
            f"interpolate: size or scale_factor must be given, one of them, got {given}"
        )
    if size is not None:
        if recompute:
            raise ConfigError("interpolate: recompute_scale_factor needs scale_factor, got size")
        sizes = _list("size", size, n)
        if any(v != int(v) for v in sizes):
            raise ConfigError(f"interpolate: size must be integers, got {size!r}")
        return [int(v) for v in sizes], [None] * n
    factors = _list("scale_factor", scale_factor, n)
    sizes_of = [math.floor(length * f) for length, f in zip(x.shape[2:], factors)]
    if min(sizes_of) < 1:
        raise ShapeError(
            f"interpolate: the result must have elements, got sizes {tuple(sizes_of)} from input "
            f"of shape {x.shape} and scale_factor {scale_factor!r}"
        )
    return sizes_of, [None if recompute else f for f in factors]


def _check_mode(x: Tensor, mode: str, align_corners: bool | None, antialias: bool) -> None:
    if x.ndim not in (3, 4, 5) or _DIMS.get(mode, x.ndim - 2) != x.ndim - 2:
        n = _DIMS.get(mode)
        dims = f"{n + 2} dims" if n else "3 to 5 dims"
        raise ShapeError(
            f"interpolate: the input of mode {mode!r} must have {dims} (N, C, ...), got shape "
            f"{x.shape}" + ("; of one image write x[None]" if n and x.ndim == n + 1 else "")
        )
    if align_corners is not None and mode not in _DIMS:
        raise ConfigError(f"interpolate: align_corners is of no use to mode {mode!r}")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ConfigError(f"interpolate: antialias is for bilinear and bicubic, got {mode!r}")


def interpolate(
    input: Operand,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: Interpolation = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """The input at another size.

    Parameters
    ----------
    input : Tensor
        ``(N, C, L)``, ``(N, C, H, W)`` or ``(N, C, D, H, W)``. Integers and bools keep their
        dtype in the modes "nearest" and "nearest-exact" and become float32 in the others.
    size : int or sequence of int, optional
        The spatial dims of the result.
    scale_factor : float or sequence of float, optional
        Or what they are multiplied by, rounded down.
    mode : {"nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area"}
        How values between elements are made; linear, bilinear and trilinear are for 1, 2 and 3
        spatial dims, bicubic for 2.
    align_corners : bool, optional
        Whether the centres of the outer elements fall together, instead of the images' edges.
    recompute_scale_factor : bool, optional
        Whether places follow from the sizes, instead of from scale_factor.
    antialias : bool
        Whether a smaller result averages over all that it stands for; bilinear and bicubic.

    Returns
    -------
    Tensor
        ``(N, C, *sizes)``.

    Raises
    ------
    ConfigError
        For an unknown mode, or arguments that do not go together.
    ShapeError
        If the input's dims are not the mode's, or nothing is left.
    """
    x = lift(input, what="interpolate")
    if not mode.startswith("nearest"):
        x = lift_float(x, "interpolate")
    _check_mode(x, mode, align_corners, antialias)
    sizes, factors = _find_sizes(x, size, scale_factor, recompute_scale_factor)
    if max(sizes) > MAX_SIZE:
        raise ShapeError(
            f"interpolate: a dim may have up to {MAX_SIZE} elements, got {max(sizes)} from input "
            f"of shape {x.shape}"
        )
    if mode == "area":
        return adaptive_mean(x, sizes)
    for d, (n, factor) in enumerate(zip(sizes, factors)):
        length = x.shape[2 + d]
        scale = length / n if factor is None else 1.0 / factor
        if align_corners:
            scale = (length - 1) / (n - 1) if n > 1 else 0.0
        cubic = mode == "bicubic"
        if n == length and scale == 1.0:
            continue
        if mode.startswith("nearest"):
            rows = _nearest_rows(length, n, scale, mode == "nearest-exact")
            if not x.dtype.is_floating_point:  # a sum in float32 would round large ones
                chosen = np.asarray([next(iter(row)) for row in rows], np.int64)
                x = indexing.index_select(x, 2 + d, lift(chosen, what="interpolate"))
                continue
        elif antialias:
            rows = _antialias_rows(length, n, scale, cubic)
        else:
            rows = _smooth_rows(length, n, scale, bool(align_corners), cubic)
        x = apply_band(x, 2 + d, rows)
    return x


def upsample(
    input: Operand,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: Interpolation = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """As interpolate, the older name.

    Parameters
    ----------
    input, size, scale_factor, mode, align_corners
        As of interpolate.

    Returns
    -------
    Tensor
        ``(N, C, *sizes)``.

    Raises
    ------
    ConfigError
        As interpolate.
    """
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(
    input: Operand,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """As interpolate with mode "nearest".

    Parameters
    ----------
    input, size, scale_factor
        As of interpolate.

    Returns
    -------
    Tensor
        ``(N, C, *sizes)``.

    Raises
    ------
    ConfigError
        As interpolate.
    """
    return interpolate(input, size, scale_factor)


def upsample_bilinear(
    input: Operand,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """As interpolate with mode "bilinear" and aligned corners.

    Parameters
    ----------
    input, size, scale_factor
        As of interpolate.

    Returns
    -------
    Tensor
        ``(N, C, *sizes)``.

    Raises
    ------
    ConfigError
        As interpolate.
    """
    return interpolate(input, size, scale_factor, "bilinear", True)


def _factor(what: str, value: int) -> int:
    factor = plain(value)
    if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
        raise ConfigError(f"{what}: the factor must be an integer, at least 1, got {value!r}")
    return factor


def pixel_shuffle(input: Operand, upscale_factor: Count) -> Tensor:
    """Channels as pixels: r * r of them become r rows of r (Shi et al. 2016).

    Parameters
    ----------
    input : Tensor
        ``(..., C r², H, W)``.
    upscale_factor : int
        r.

    Returns
    -------
    Tensor
        ``(..., C, H r, W r)``.

    Raises
    ------
    ConfigError
        For a factor below 1.
    ShapeError
        If the factor's square does not divide the channels.
    """
    x, r = lift(input, what="pixel_shuffle"), _factor("pixel_shuffle", upscale_factor)
    if x.ndim < 3 or x.shape[-3] % (r * r):
        raise ShapeError(
            f"pixel_shuffle: dim -3 of the input must be a multiple of {r * r}, got shape {x.shape}"
        )
    *lead, c, h, w = x.shape
    n = len(lead)
    parts = views.reshape(x, (*lead, c // (r * r), r, r, h, w))
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return views.reshape(views.permute(parts, order), (*lead, c // (r * r), h * r, w * r))


def pixel_unshuffle(input: Operand, downscale_factor: Count) -> Tensor:
    """Pixels as channels, the reverse of pixel_shuffle.

    Parameters
    ----------
    input : Tensor
        ``(..., C, H r, W r)``.
    downscale_factor : int
        r.

    Returns
    -------
    Tensor
        ``(..., C r², H, W)``.

    Raises
    ------
    ConfigError
        For a factor below 1.
    ShapeError
        If the factor does not divide height and width.
    """
    x, r = lift(input, what="pixel_unshuffle"), _factor("pixel_unshuffle", downscale_factor)
    if x.ndim < 3 or x.shape[-1] % r or x.shape[-2] % r:
        raise ShapeError(
            f"pixel_unshuffle: the last two dims of the input must be multiples of {r}, got shape "
            f"{x.shape}"
        )
    *lead, c, h, w = x.shape
    n = len(lead)
    parts = views.reshape(x, (*lead, c, h // r, r, w // r, r))
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return views.reshape(views.permute(parts, order), (*lead, c * r * r, h // r, w // r))


def channel_shuffle(input: Operand, groups: Count) -> Tensor:
    """Channels of g groups in turn: one of each, then the next (Zhang et al. 2018).

    Parameters
    ----------
    input : Tensor
        ``(N, C, ...)``.
    groups : int
        g, which divides C.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ConfigError
        For fewer than one group.
    ShapeError
        If the groups do not divide the channels.
    """
    x, g = lift(input, what="channel_shuffle"), _factor("channel_shuffle", groups)
    if x.ndim < 2 or x.shape[1] % g:
        raise ShapeError(
            f"channel_shuffle: groups must divide the channels, got {g} and shape {x.shape}"
        )
    n, c, *dims = x.shape
    parts = views.transpose(views.reshape(x, (n, g, c // g, *dims)), 1, 2)
    return views.reshape(parts, x.shape)


def native_channel_shuffle(input: Operand, groups: Count) -> Tensor:
    """channel_shuffle under torch's other name.

    Parameters
    ----------
    input, groups
        As of channel_shuffle.

    Returns
    -------
    Tensor
        As of channel_shuffle.

    Raises
    ------
    ConfigError, ShapeError
        As of channel_shuffle.
    """
    return channel_shuffle(input, groups)


make_functions(globals(), __all__)
