"""What EfficientNet and MobileNetV3 are made of, under torchvision's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotloop import nn
from hotloop.nn.module import Module

__all__ = ["SqueezeExcitation", "make_conv"]


def make_conv(
    in_channels: int,
    out_channels: int,
    kernel_size: int = 3,
    stride: int = 1,
    *,
    groups: int = 1,
    activation: Callable[[], Module] | None,
    norm: Callable[[int], Module] = nn.BatchNorm2d,
) -> Module:
    """Convolution that keeps the size but for its stride, norm and activation."""
    padding = (kernel_size - 1) // 2
    conv = nn.Conv2d(
        in_channels, out_channels, kernel_size, stride, padding, groups=groups, bias=False
    )
    layers = [conv, norm(out_channels)]
    return nn.Sequential(*layers, *([] if activation is None else [activation()]))


class SqueezeExcitation(Module):
    """A factor for each channel from the means of all (Hu et al. 2018)."""

    def __init__(
        self,
        channels: int,
        squeeze_channels: int,
        activation: Callable[[], Module],
        scale_activation: Callable[[], Module],
    ) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeeze_channels, 1)
        self.fc2 = nn.Conv2d(squeeze_channels, channels, 1)
        self.activation = activation()
        self.scale_activation = scale_activation()

    def forward(self, x: Any) -> Any:
        scale = self.fc2(self.activation(self.fc1(self.avgpool(x))))
        return x * self.scale_activation(scale)
