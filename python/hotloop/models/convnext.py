"""ConvNeXt (Liu et al. 2022), timm's structure and names."""

from __future__ import annotations

import os
from typing import Any

from hotloop import nn
from hotloop.errors import ShapeError
from hotloop.models.weights import load_weights
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Count, Probability
from hotloop.nn.module import Module

__all__ = ["convnext_base", "convnext_small", "convnext_tiny"]

_EPS = 1e-6


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of images ``(N, C, H, W)``."""

    def __init__(self, num_channels: int) -> None:
        super().__init__(num_channels, eps=_EPS)

    def forward(self, input: Any) -> Any:
        if input.ndim != 4:
            raise ShapeError(f"input must be (N, C, H, W), got input of shape {input.shape}")
        x = input.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Mlp(Module):
    """Two linear layers with GELU in between."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Any) -> Any:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(Module):
    """A depthwise 7 x 7 convolution and an MLP over channels, scaled, beside a shortcut."""

    def __init__(self, dim: int, drop_path: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(_filled(dim, 1e-6))
        self.conv_dw = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=_EPS)
        self.mlp = Mlp(dim)
        self.drop_path = nn.DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Any) -> Any:
        y = self.conv_dw(x).permute(0, 2, 3, 1)
        y = self.mlp(self.norm(y)) * self.gamma
        return self.drop_path(y.permute(0, 3, 1, 2)) + x


def _filled(n: int, value: float) -> Any:
    import numpy as np

    return np.full(n, value, np.float32)


class Stage(Module):
    """Downsampling, where there is one, and blocks."""

    def __init__(self, dim_in: int, dim: int, drop_paths: list[float], downsamples: bool) -> None:
        super().__init__()
        self.downsample: Module = nn.Identity()
        if downsamples:
            self.downsample = nn.Sequential(LayerNorm2d(dim_in), nn.Conv2d(dim_in, dim, 2, 2))
        self.blocks = nn.Sequential(*(Block(dim, rate) for rate in drop_paths))

    def forward(self, x: Any) -> Any:
        return self.blocks(self.downsample(x))


class Head(Module):
    """Mean of the pixels, norm, linear layer."""

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.norm = LayerNorm2d(dim)
        self.fc = nn.Linear(dim, num_classes)

    def forward(self, x: Any) -> Any:
        x = self.norm(x.mean((2, 3), keepdim=True))
        return self.fc(x.flatten(1))


class ConvNeXt(Module):
    """Stem of patches, four stages, head."""

    def __init__(
        self,
        depths: tuple[int, ...],
        dims: tuple[int, ...],
        num_classes: Count,
        in_channels: Count,
        drop_path_rate: Probability,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(in_channels, dims[0], 4, 4), LayerNorm2d(dims[0]))
        total, first, stages = sum(depths), 0, []
        for i, (depth, dim) in enumerate(zip(depths, dims)):
            rates = [drop_path_rate * k / (total - 1) for k in range(first, first + depth)]
            stages.append(Stage(dims[max(i - 1, 0)], dim, rates, downsamples=i > 0))
            first += depth
        self.stages = nn.Sequential(*stages)
        self.head = Head(dims[-1], num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Any) -> Any:
        return self.head(self.stages(self.stem(x)))


def convnext_tiny(
    num_classes: int = 1000,
    in_channels: int = 3,
    drop_path_rate: float = 0.0,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """ConvNeXt-Tiny (Liu et al. 2022, arXiv 2201.03545).

    Parameters
    ----------
    num_classes : int
        Outputs: logits of so many classes.
    in_channels : int
        Channels of the images.
    drop_path_rate : float
        Probability that the last block's branch is dropped in training; it grows to it from 0.
    weights : path-like, optional
        A local file of timm's weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``head.fc``, the last layer, new.
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
    28,589,128 parameters, 4.46 G multiply-adds for an image of 224 x 224.
    Structure and names are those of timm's ``convnext_tiny``.
    """
    model = ConvNeXt((3, 3, 9, 3), (96, 192, 384, 768), num_classes, in_channels, drop_path_rate)
    return load_weights(model, weights, "head.fc", replace_head, strip_prefix, "timm")


def convnext_small(
    num_classes: int = 1000,
    in_channels: int = 3,
    drop_path_rate: float = 0.0,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """ConvNeXt-Small (Liu et al. 2022, arXiv 2201.03545).

    Parameters
    ----------
    num_classes : int
        Outputs: logits of so many classes.
    in_channels : int
        Channels of the images.
    drop_path_rate : float
        Probability that the last block's branch is dropped in training; it grows to it from 0.
    weights : path-like, optional
        A local file of timm's weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``head.fc``, the last layer, new.
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
    50,223,688 parameters, 8.68 G multiply-adds for an image of 224 x 224.
    Structure and names are those of timm's ``convnext_small``.
    """
    model = ConvNeXt((3, 3, 27, 3), (96, 192, 384, 768), num_classes, in_channels, drop_path_rate)
    return load_weights(model, weights, "head.fc", replace_head, strip_prefix, "timm")


def convnext_base(
    num_classes: int = 1000,
    in_channels: int = 3,
    drop_path_rate: float = 0.0,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """ConvNeXt-Base (Liu et al. 2022, arXiv 2201.03545).

    Parameters
    ----------
    num_classes : int
        Outputs: logits of so many classes.
    in_channels : int
        Channels of the images.
    drop_path_rate : float
        Probability that the last block's branch is dropped in training; it grows to it from 0.
    weights : path-like, optional
        A local file of timm's weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``head.fc``, the last layer, new.
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
    88,591,464 parameters, 15.35 G multiply-adds for an image of 224 x 224.
    Structure and names are those of timm's ``convnext_base``.
    """
    model = ConvNeXt((3, 3, 27, 3), (128, 256, 512, 1024), num_classes, in_channels, drop_path_rate)
    return load_weights(model, weights, "head.fc", replace_head, strip_prefix, "timm")
