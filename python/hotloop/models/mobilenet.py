"""MobileNetV3 (Howard et al. 2019), torchvision's structure and names."""

from __future__ import annotations

import functools
import os
from typing import Any

from hotloop import nn
from hotloop.models.mobile_blocks import SqueezeExcitation, make_conv
from hotloop.models.weights import load_weights
from hotloop.nn.functional.arguments import Count, Probability
from hotloop.nn.module import Module

__all__ = ["mobilenet_v3_large", "mobilenet_v3_small"]

# Kernel, expanded channels, channels out, squeeze and excitation, hard swish, stride.
_Settings = tuple[tuple[int, int, int, bool, bool, int], ...]
_LARGE: _Settings = (
    (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
)  # fmt: skip
_SMALL: _Settings = (
    (3, 16, 16, True, False, 2), (3, 72, 24, False, False, 2), (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2), (5, 240, 40, True, True, 1), (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1), (5, 144, 48, True, True, 1), (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1), (5, 576, 96, True, True, 1),
)  # fmt: skip

_norm = functools.partial(nn.BatchNorm2d, eps=0.001, momentum=0.01)


def _to_eights(channels: float) -> int:
    """The nearest multiple of 8 that is not below nine tenths."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near


class InvertedResidual(Module):
    """Wider by a 1 x 1 convolution, depthwise, narrower; a shortcut."""

    def __init__(
        self,
        channels: int,
        kernel: int,
        wide: int,
        out: int,
        excites: bool,
        hard: bool,
        stride: int,
    ) -> None:
        super().__init__()
        activation = nn.Hardswish if hard else nn.ReLU
        layers = []
        if wide != channels:
            layers.append(make_conv(channels, wide, 1, activation=activation, norm=_norm))
        layers.append(
            make_conv(wide, wide, kernel, stride, groups=wide, activation=activation, norm=_norm)
        )
        if excites:
            squeezed = _to_eights(wide // 4)
            layers.append(SqueezeExcitation(wide, squeezed, nn.ReLU, nn.Hardsigmoid))
        layers.append(make_conv(wide, out, 1, activation=None, norm=_norm))
        self.block = nn.Sequential(*layers)
        self.use_res_connect = stride == 1 and channels == out

    def forward(self, x: Any) -> Any:
        y = self.block(x)
        return y + x if self.use_res_connect else y


class MobileNetV3(Module):
    """Stem, blocks, 1 x 1 convolution, mean of the pixels, two linear layers."""

    def __init__(
        self,
        settings: _Settings,
        last: int,
        num_classes: Count,
        in_channels: Count,
        dropout: Probability,
    ) -> None:
        super().__init__()
        features = [make_conv(in_channels, 16, 3, 2, activation=nn.Hardswish, norm=_norm)]
        channels = 16
        for kernel, wide, out, excites, hard, stride in settings:
            block = InvertedResidual(channels, kernel, wide, out, excites, hard, stride)
            features.append(block)
            channels = out
        features.append(make_conv(channels, 6 * channels, 1, activation=nn.Hardswish, norm=_norm))
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(6 * channels, last),
            nn.Hardswish(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(last, num_classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def mobilenet_v3_large(
    num_classes: int = 1000,
    in_channels: int = 3,
    dropout: float = 0.2,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """MobileNetV3-Large (Howard et al. 2019, arXiv 1905.02244).

    Parameters
    ----------
    num_classes : int
        Outputs: logits of so many classes.
    in_channels : int
        Channels of the images.
    dropout : float
        Probability before the last layer.
    weights : path-like, optional
        A local file of torchvision's weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``classifier.3``, the last layer, new.
    strip_prefix : str
        What the names in the file begin with, as ``"module."``.

    Returns
    -------
    Module
        ``(N, in_channels, H, W)`` in, ``(N, num_classes)`` out.

    Raises
    ------
    ConfigError, ShapeError
        If the sizes are out of range, or the weights do not fit.
    CheckpointError
        If the file cannot be read.

    Notes
    -----
    5,483,032 parameters, 0.22 G multiply-adds for an image of 224 x 224.
    Structure and names are those of ``torchvision.models.mobilenet_v3_large``.
    """
    model = MobileNetV3(_LARGE, 1280, num_classes, in_channels, dropout)
    return load_weights(model, weights, "classifier.3", replace_head, strip_prefix)


def mobilenet_v3_small(
    num_classes: int = 1000,
    in_channels: int = 3,
    dropout: float = 0.2,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """MobileNetV3-Small (Howard et al. 2019, arXiv 1905.02244).

    Parameters
    ----------
    num_classes : int
        Outputs: logits of so many classes.
    in_channels : int
        Channels of the images.
    dropout : float
        Probability before the last layer.
    weights : path-like, optional
        A local file of torchvision's weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``classifier.3``, the last layer, new.
    strip_prefix : str
        What the names in the file begin with, as ``"module."``.

    Returns
    -------
    Module
        ``(N, in_channels, H, W)`` in, ``(N, num_classes)`` out.

    Raises
    ------
    ConfigError, ShapeError
        If the sizes are out of range, or the weights do not fit.
    CheckpointError
        If the file cannot be read.

    Notes
    -----
    2,542,856 parameters, 0.06 G multiply-adds for an image of 224 x 224.
    Structure and names are those of ``torchvision.models.mobilenet_v3_small``.
    """
    model = MobileNetV3(_SMALL, 1024, num_classes, in_channels, dropout)
    return load_weights(model, weights, "classifier.3", replace_head, strip_prefix)
