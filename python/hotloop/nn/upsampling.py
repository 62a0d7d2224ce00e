"""Layers that give images other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Count, Interpolation
from hotloop.nn.module import Module

__all__ = [
    "ChannelShuffle", "PixelShuffle", "PixelUnshuffle", "Upsample", "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
]  # fmt: skip


class Upsample(Module):
    """The input at another size, as F.interpolate.

    Parameters
    ----------
    size : int or sequence of int, optional
        The spatial dims of the result.
    scale_factor : float or sequence of float, optional
        Or what they are multiplied by, rounded down.
    mode : {"nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area"}
        How values between elements are made.
    align_corners : bool, optional
        Whether the centres of the outer elements fall together, instead of the images' edges.
    recompute_scale_factor : bool, optional
        Whether places follow from the sizes, instead of from scale_factor.

    Notes
    -----
    ``(N, C, ...)`` in, ``(N, C, *sizes)`` out.
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: Interpolation = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size = size
        if isinstance(scale_factor, Sequence):
            self.scale_factor: Any = tuple(float(f) for f in scale_factor)
        else:
            self.scale_factor = None if scale_factor is None else float(scale_factor)
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Any) -> Any:
        return F.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners,
            self.recompute_scale_factor,
        )  # fmt: skip

    def extra_repr(self) -> str:
        name = "size" if self.scale_factor is None else "scale_factor"
        return f"{name}={getattr(self, name)!r}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Upsample with mode "nearest".

    Parameters
    ----------
    size : int or (int, int), optional
        H and W of the result.
    scale_factor : float or (float, float), optional
        Or what they are multiplied by.

    Notes
    -----
    ``(N, C, H, W)`` in, ``(N, C, H', W')`` out.
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """Upsample with mode "bilinear" and aligned corners.

    Parameters
    ----------
    size : int or (int, int), optional
        H and W of the result.
    scale_factor : float or (float, float), optional
        Or what they are multiplied by.

    Notes
    -----
    ``(N, C, H, W)`` in, ``(N, C, H', W')`` out.
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class PixelShuffle(Module):
    """Channels as pixels: r * r of them become r rows of r (Shi et al. 2016).

    Parameters
    ----------
    upscale_factor : int
        r.

    Notes
    -----
    ``(..., C r², H, W)`` in, ``(..., C, H r, W r)`` out.
    """

    def __init__(self, upscale_factor: Count) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Any) -> Any:
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Pixels as channels, the reverse of PixelShuffle.

    Parameters
    ----------
    downscale_factor : int
        r.

    Notes
    -----
    ``(..., C, H r, W r)`` in, ``(..., C r², H, W)`` out.
    """

    def __init__(self, downscale_factor: Count) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Any) -> Any:
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Channels of g groups in turn: one of each, then the next (Zhang et al. 2018).

    Parameters
    ----------
    groups : int
        g, which divides the channels.

    Notes
    -----
    ``(N, C, ...)`` in, the same out.
    """

    def __init__(self, groups: Count) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Any) -> Any:
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"
