"""U-Net (Ronneberger et al. 2015) for images of any size: a class for each pixel."""

from __future__ import annotations

import os
from typing import Any

import hotloop.nn.functional as F
from hotloop import nn
from hotloop.errors import ShapeError
from hotloop.graph import views
from hotloop.models.weights import load_weights
from hotloop.nn.functional.arguments import Count
from hotloop.nn.module import Module

__all__ = ["unet"]


class DoubleConv(Module):
    """Twice a 3 x 3 convolution, batch norm and ReLU."""

    def __init__(self, in_channels: int, out_channels: int, mid_channels: int = 0) -> None:
        super().__init__()
        middle = mid_channels or out_channels
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, middle, 3, padding=1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(inplace=True),
            nn.Conv2d(middle, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Any) -> Any:
        return self.double_conv(x)


class Down(Module):
    """Half the size, then two convolutions."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(in_channels, out_channels))

    def forward(self, x: Any) -> Any:
        return self.maxpool_conv(x)


class Up(Module):
    """Twice the size, joined with what had it on the way down, then two convolutions."""

    def __init__(self, in_channels: int, out_channels: int, bilinear: bool) -> None:
        super().__init__()
        self.up: Module
        if bilinear:
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.conv = DoubleConv(in_channels, out_channels, in_channels // 2)
        else:
            self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, 2, 2)
            self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, x: Any, skip: Any) -> Any:
        x = self.up(x)
        rows, columns = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
        if rows or columns:  # odd sizes lost an element on the way down
            x = F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        return self.conv(views.concat([skip, x], 1))


class OutConv(Module):
    """Classes of each pixel."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Any) -> Any:
        return self.conv(x)


class UNet(Module):
    """Four times down, four times up."""

    def __init__(self, num_classes: Count, in_channels: Count, bilinear: bool) -> None:
        super().__init__()
        factor = 2 if bilinear else 1
        self.inc = DoubleConv(in_channels, 64)
        self.down1 = Down(64, 128)
        self.down2 = Down(128, 256)
        self.down3 = Down(256, 512)
        self.down4 = Down(512, 1024 // factor)
        self.up1 = Up(1024, 512 // factor, bilinear)
        self.up2 = Up(512, 256 // factor, bilinear)
        self.up3 = Up(256, 128 // factor, bilinear)
        self.up4 = Up(128, 64, bilinear)
        self.outc = OutConv(64, num_classes)

    def forward(self, x: Any) -> Any:
        if x.ndim >= 2 and min(x.shape[-2:]) < 16:  # it is halved four times
            raise ShapeError(
                f"images must have 16 or more rows and columns, got input of shape {x.shape}"
            )
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        x = self.up1(self.down4(x4), x4)
        return self.outc(self.up4(self.up3(self.up2(x, x3), x2), x1))


def unet(
    num_classes: int = 2,
    in_channels: int = 3,
    bilinear: bool = False,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """U-Net (Ronneberger et al. 2015, arXiv 1505.04597), with padding and batch norm.

    Parameters
    ----------
    num_classes : int
        Outputs: logits of so many classes for each pixel.
    in_channels : int
        Channels of the images.
    bilinear : bool
        Interpolation on the way up, instead of transposed convolutions.
    weights : path-like, optional
        A local file of such weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``outc``, the last layer, new.
    strip_prefix : str
        What the names in the file begin with, as ``"module."``.

    Returns
    -------
    Module
        ``(N, in_channels, H, W)`` in, ``(N, num_classes, H, W)`` out; H and W of 16 or more.

    Raises
    ------
    ConfigError, ShapeError
        If the sizes are out of range, or the weights do not fit.
    CheckpointError
        If the file cannot be read.

    Notes
    -----
    31,037,698 parameters (17,263,042 with ``bilinear=True``), 36.9 G multiply-adds for an image of
    224 x 224.
    Names are those of the files of ``milesial/Pytorch-UNet``.
    """
    model = UNet(num_classes, in_channels, bilinear)
    return load_weights(model, weights, "outc", replace_head, strip_prefix, "")
