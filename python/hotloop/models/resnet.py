"""ResNets (He et al. 2016), torchvision's structure and names; and those for small images."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hotloop import nn
from hotloop.errors import ConfigError
from hotloop.models.weights import load_weights
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Count
from hotloop.nn.module import Module

__all__ = ["resnet101", "resnet18", "resnet34", "resnet50", "resnet_cifar"]


class BasicBlock(Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int,
        downsample: Module | None,
        norm_layer: Callable[[int], Module],
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, padding=1, bias=False)
        self.bn1 = norm_layer(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = norm_layer(planes)
        self.downsample = downsample

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(Module):
    """1 x 1, 3 x 3 (with the stride) and 1 x 1 convolutions beside a shortcut."""

    expansion = 4

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int,
        downsample: Module | None,
        norm_layer: Callable[[int], Module],
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = norm_layer(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, padding=1, bias=False)
        self.bn2 = norm_layer(planes)
        self.conv3 = nn.Conv2d(planes, planes * 4, 1, bias=False)
        self.bn3 = norm_layer(planes * 4)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def _init_convolutions(model: Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class ResNet(Module):
    """Stem, four stages of blocks, mean of the pixels, linear layer."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        layers: tuple[int, ...],
        num_classes: Count,
        in_channels: Count,
        norm_layer: Callable[[int], Module] = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        self.inplanes = 64
        self.norm_layer = norm_layer
        self.conv1 = nn.Conv2d(in_channels, 64, 7, 2, padding=3, bias=False)
        self.bn1 = norm_layer(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = self._make_layer(block, 64, layers[0], 1)
        self.layer2 = self._make_layer(block, 128, layers[1], 2)
        self.layer3 = self._make_layer(block, 256, layers[2], 2)
        self.layer4 = self._make_layer(block, 512, layers[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        _init_convolutions(self)

    def _make_layer(
        self, block: type[BasicBlock] | type[Bottleneck], planes: int, n: int, stride: int
    ) -> Module:
        out, downsample = planes * block.expansion, None
        if stride != 1 or self.inplanes != out:
            conv = nn.Conv2d(self.inplanes, out, 1, stride, bias=False)
            downsample = nn.Sequential(conv, self.norm_layer(out))
        blocks = [block(self.inplanes, planes, stride, downsample, self.norm_layer)]
        self.inplanes = out
        blocks += [block(out, planes, 1, None, self.norm_layer) for _ in range(1, n)]
        return nn.Sequential(*blocks)

    def forward(self, x: Any) -> Any:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def resnet18(
    num_classes: int = 1000,
    in_channels: int = 3,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """ResNet of 18 layers (He et al. 2016, arXiv 1512.03385).

    Parameters
    ----------
    num_classes : int
        Outputs: logits of so many classes.
    in_channels : int
        Channels of the images.
    weights : path-like, optional
        A local file of torchvision's weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``fc``, the last layer, new.
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
    11,689,512 parameters, 1.81 G multiply-adds for an image of 224 x 224.
    Structure and names are those of ``torchvision.models.resnet18``.
    """
    model = ResNet(BasicBlock, (2, 2, 2, 2), num_classes, in_channels)
    return load_weights(model, weights, "fc", replace_head, strip_prefix)


def resnet34(
    num_classes: int = 1000,
    in_channels: int = 3,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """ResNet of 34 layers (He et al. 2016, arXiv 1512.03385).

    Parameters
    ----------
    num_classes : int
        Outputs: logits of so many classes.
    in_channels : int
        Channels of the images.
    weights : path-like, optional
        A local file of torchvision's weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``fc``, the last layer, new.
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
    21,797,672 parameters, 3.66 G multiply-adds for an image of 224 x 224.
    Structure and names are those of ``torchvision.models.resnet34``.
    """
    model = ResNet(BasicBlock, (3, 4, 6, 3), num_classes, in_channels)
    return load_weights(model, weights, "fc", replace_head, strip_prefix)


def resnet50(
    num_classes: int = 1000,
    in_channels: int = 3,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """ResNet of 50 layers (He et al. 2016, arXiv 1512.03385).

    Parameters
    ----------
    num_classes : int
        Outputs: logits of so many classes.
    in_channels : int
        Channels of the images.
    weights : path-like, optional
        A local file of torchvision's weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``fc``, the last layer, new.
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
    25,557,032 parameters, 4.09 G multiply-adds for an image of 224 x 224.
    Structure and names are those of ``torchvision.models.resnet50``.
    """
    model = ResNet(Bottleneck, (3, 4, 6, 3), num_classes, in_channels)
    return load_weights(model, weights, "fc", replace_head, strip_prefix)


def resnet101(
    num_classes: int = 1000,
    in_channels: int = 3,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """ResNet of 101 layers (He et al. 2016, arXiv 1512.03385).

    Parameters
    ----------
    num_classes : int
        Outputs: logits of so many classes.
    in_channels : int
        Channels of the images.
    weights : path-like, optional
        A local file of torchvision's weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``fc``, the last layer, new.
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
    44,549,160 parameters, 7.80 G multiply-adds for an image of 224 x 224.
    Structure and names are those of ``torchvision.models.resnet101``.
    """
    model = ResNet(Bottleneck, (3, 4, 23, 3), num_classes, in_channels)
    return load_weights(model, weights, "fc", replace_head, strip_prefix)


class CifarBlock(Module):
    """Two 3 x 3 convolutions beside a shortcut without parameters."""

    def __init__(self, inplanes: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.stride = stride
        self.added = planes - inplanes

    def forward(self, x: Any) -> Any:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y))
        if self.stride > 1 or self.added:
            x = x[:, :, :: self.stride, :: self.stride]
            x = F.pad(x, (0, 0, 0, 0, self.added // 2, self.added - self.added // 2))
        return (y + x).relu()


class CifarResNet(Module):
    """A 3 x 3 stem, three stages of 16, 32 and 64 channels, mean of the pixels, linear layer."""

    def __init__(self, depth: int, num_classes: Count, in_channels: Count) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ConfigError(f"resnet_cifar: depth must be 6 n + 2 (20, 32, 44, 56), got {depth}")
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        channels, n = 16, (depth - 2) // 6
        for stage, planes in enumerate((16, 32, 64), start=1):
            blocks = []
            for i in range(n):
                blocks.append(CifarBlock(channels, planes, 2 if i == 0 and stage > 1 else 1))
                channels = planes
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
        self.linear = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Any) -> Any:
        x = self.bn1(self.conv1(x)).relu()
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))


def resnet_cifar(
    num_classes: int = 10,
    in_channels: int = 3,
    depth: int = 20,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """ResNet for images of 32 x 32 (He et al. 2016, section 4.2).

    Parameters
    ----------
    num_classes : int
        Outputs: logits of so many classes.
    in_channels : int
        Channels of the images.
    depth : int
        Layers: 6 n + 2, as 20, 32, 44, 56, 110.
    weights : path-like, optional
        A local file of such weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``linear``, the last layer, new.
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
    269,722 parameters and 40.6 M multiply-adds for depth 20. Where a stage begins, the shortcut
    takes every second pixel and adds channels of zeros (the paper's option A).
    Names are those of the files of Yerlan Idelbayev's ``pytorch_resnet_cifar10``.
    """
    model = CifarResNet(depth, num_classes, in_channels)
    return load_weights(model, weights, "linear", replace_head, strip_prefix, "")
