"""The convolutions that ``make bench-kernels`` measures, known to all sides: ResNet's, ConvNeXt's.

A case is a layer, a pass and a precision, as text: "64x56 3x3|forward|float32". Values are random;
time does not depend on them.
"""

from __future__ import annotations

import dataclasses

__all__ = ["LAYERS", "PASSES", "PRECISIONS", "Layer", "name_of", "parse_case"]

BATCH = 8
PASSES = ("forward", "dx", "dw")
PRECISIONS = ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Layer:
    """A square convolution of a batch of square images.

    Attributes
    ----------
    name : str
    channels, out : int
        Of the source and of the result.
    size, kernel, stride, padding : int
        Of each of the two spatial dims.
    groups : int
    """

    name: str
    channels: int
    out: int
    size: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def result(self) -> int:
        """The result's height and width."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is by itself."""
        return self.groups == self.channels


LAYERS = (
    Layer("64x56 3x3", 64, 64, 56, 3, padding=1),
    Layer("128x28 3x3", 128, 128, 28, 3, padding=1),
    Layer("256x14 3x3", 256, 256, 14, 3, padding=1),
    Layer("512x7 3x3", 512, 512, 7, 3, padding=1),
    Layer("stem 7x7/2", 3, 64, 224, 7, stride=2, padding=3),
    Layer("1x1 256>64 @56", 256, 64, 56, 1),
    Layer("depthwise 7x7 96 @56", 96, 96, 56, 7, padding=3, groups=96),
)


def name_of(layer: Layer, which: str, precision: str) -> str:
    """A case's name."""
    return f"{layer.name}|{which}|{precision}"


def parse_case(name: str) -> tuple[Layer, str, str]:
    """(layer, pass, precision) of a case's name."""
    layer, which, precision = name.split("|")
    return next(one for one in LAYERS if one.name == layer), which, precision
