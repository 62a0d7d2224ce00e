"""EfficientNet (Tan and Le 2019), torchvision's structure and names."""

from __future__ import annotations

import math
import os
from typing import Any

from hotloop import nn
from hotloop.models.mobile_blocks import SqueezeExcitation, make_conv
from hotloop.models.weights import load_weights
from hotloop.nn.functional.arguments import Count, Probability
from hotloop.nn.module import Module

__all__ = ["efficientnet_b0"]

# Expansion, kernel, stride, channels in, channels out, blocks.
_STAGES = (
    (1, 3, 1, 32, 16, 1), (6, 3, 2, 16, 24, 2), (6, 5, 2, 24, 40, 2), (6, 3, 2, 40, 80, 3),
    (6, 5, 1, 80, 112, 3), (6, 5, 2, 112, 192, 4), (6, 3, 1, 192, 320, 1),
)  # fmt: skip


class MBConv(Module):
    """Wider by a 1 x 1 convolution, depthwise, squeeze and excitation, narrower; a shortcut."""

    def __init__(
        self, expand: int, kernel: int, stride: int, channels: int, out: int, drop_path: float
    ) -> None:
        super().__init__()
        wide = channels * expand
        layers = [make_conv(channels, wide, 1, activation=nn.SiLU)] if expand > 1 else []
        layers += [
            make_conv(wide, wide, kernel, stride, groups=wide, activation=nn.SiLU),
            SqueezeExcitation(wide, max(1, channels // 4), nn.SiLU, nn.Sigmoid),
            make_conv(wide, out, 1, activation=None),
        ]
        self.block = nn.Sequential(*layers)
        self.stochastic_depth = nn.DropPath(drop_path)
        self.use_res_connect = stride == 1 and channels == out

    def forward(self, x: Any) -> Any:
        y = self.block(x)
        return self.stochastic_depth(y) + x if self.use_res_connect else y


class EfficientNet(Module):
    """Stem, stages of blocks, 1 x 1 convolution, mean of the pixels, linear layer."""

    def __init__(
        self, num_classes: Count, in_channels: Count, dropout: Probability, drop_path: Probability
    ) -> None:
        super().__init__()
        features: list[Module] = [make_conv(in_channels, 32, 3, 2, activation=nn.SiLU)]
        total, number = sum(stage[-1] for stage in _STAGES), 0
        for expand, kernel, stride, channels, out, n in _STAGES:
            blocks = []
            for i in range(n):
                rate = drop_path * number / total
                own = (stride, channels) if i == 0 else (1, out)
                blocks.append(MBConv(expand, kernel, *own, out, rate))
                number += 1
            features.append(nn.Sequential(*blocks))
        features.append(make_conv(320, 1280, 1, activation=nn.SiLU))
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(1280, num_classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                bound = 1.0 / math.sqrt(module.out_features)
                nn.init.uniform_(module.weight, -bound, bound)
                nn.init.zeros_(module.bias)

    def forward(self, x: Any) -> Any:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def efficientnet_b0(
    num_classes: int = 1000,
    in_channels: int = 3,
    dropout: float = 0.2,
    drop_path_rate: float = 0.2,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """EfficientNet-B0 (Tan and Le 2019, arXiv 1905.11946).

    Parameters
    ----------
    num_classes : int
        Outputs: logits of so many classes.
    in_channels : int
        Channels of the images.
    dropout : float
        Probability before the last layer.
    drop_path_rate : float
        Probability that a block's branch is dropped in training; it grows to it from 0.
    weights : path-like, optional
        A local file of torchvision's weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``classifier.1``, the last layer, new.
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
    5,288,548 parameters, 0.39 G multiply-adds for an image of 224 x 224.
    Structure and names are those of ``torchvision.models.efficientnet_b0``.
    """
    model = EfficientNet(num_classes, in_channels, dropout, drop_path_rate)
    return load_weights(model, weights, "classifier.1", replace_head, strip_prefix)
