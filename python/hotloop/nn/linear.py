"""Linear and bilinear layers."""

from __future__ import annotations

import math
from typing import Any

from hotloop.errors import ConfigError, ShapeError
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Size
from hotloop.nn.module import Module
from hotloop.nn.parameter import Parameter
from hotloop.nn.recipes import Uniform
from hotloop.nn.uninitialized import UninitializedParameter

__all__ = ["Bilinear", "LazyLinear", "Linear"]


def _bound(fan_in: int) -> Uniform:
    bound = 1.0 / math.sqrt(fan_in) if fan_in else 0.0
    return Uniform(-bound, bound)


class Linear(Module):
    """``y = x @ weight.T + bias``.

    Parameters
    ----------
    in_features, out_features : int
        Sizes of the last dim of input and output.
    bias : bool
        Whether there is one.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    weight : Parameter
        ``(out_features, in_features)``, uniform on ±1/√in_features as torch's.
    bias : Parameter or None
        ``(out_features,)``, the same.

    Notes
    -----
    ``(..., in_features)`` in, ``(..., out_features)`` out.
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_features: Size,
        out_features: Size,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter.of_recipe((out_features, in_features), _bound(in_features))
        self.register_parameter(
            "bias", Parameter.of_recipe((out_features,), _bound(in_features)) if bias else None
        )

    def reset_parameters(self) -> None:
        """torch's initial values again."""
        self.weight.set_recipe(_bound(self.in_features))
        if self.bias is not None:
            self.bias.set_recipe(_bound(self.in_features))

    def forward(self, input: Any) -> Any:
        shape = input.shape
        if not shape or shape[-1] != self.in_features:
            raise ShapeError(
                f"the input's last dim must be in_features={self.in_features}, got input of shape "
                f"{tuple(shape)} and weight of shape {self.weight.shape}"
            )
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class LazyLinear(Linear):
    """A Linear whose in_features is the last dim of its first input.

    Parameters
    ----------
    out_features : int
        Size of the output's last dim.
    bias : bool
        Whether there is one.
    device, dtype
        Taken for torch's sake.

    Notes
    -----
    ``(..., in_features)`` in, ``(..., out_features)`` out. Its parameters have their
    shapes after the first batch.
    """

    def __init__(
        self, out_features: Size, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(0, out_features, bias)
        self.weight = UninitializedParameter()
        if bias:
            self.bias = UninitializedParameter()

    def forward(self, input: Any) -> Any:
        if self.weight.is_lazy:
            if not input.shape:
                raise ShapeError("the input must have a dim, got a scalar")
            self._resolve(input.shape[-1])
        return super().forward(input)

    def _resolve(self, in_features: int) -> None:
        self.in_features = in_features
        self.weight.resolve((self.out_features, in_features), _bound(in_features))
        if self.bias is not None:
            self.bias.resolve((self.out_features,), _bound(in_features))

    def _get_name(self) -> str:
        return "LazyLinear" if self.weight.is_lazy else "Linear"

    def after_load(self) -> None:
        """Takes in_features from a loaded weight."""
        if not self.weight.is_lazy:
            self.in_features = self.weight.shape[1]


class Bilinear(Module):
    """``y[k] = x1 · weight[k] · x2 + bias[k]``.

    Parameters
    ----------
    in1_features, in2_features, out_features : int
        Sizes of the last dims of the inputs and of the output.
    bias : bool
        Whether there is one.
    device, dtype
        Taken for torch's sake.

    Raises
    ------
    ConfigError
        For sizes that are negative, or 0 for in1_features.

    Notes
    -----
    ``(..., in1_features)`` and ``(..., in2_features)`` in, ``(..., out_features)`` out.
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in1_features: Size,
        in2_features: Size,
        out_features: Size,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if in1_features == 0:
            raise ConfigError(f"Bilinear: in1_features must be positive, got {in1_features}")
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        recipe = _bound(in1_features)
        self.weight = Parameter.of_recipe((out_features, in1_features, in2_features), recipe)
        self.register_parameter(
            "bias", Parameter.of_recipe((out_features,), recipe) if bias else None
        )

    def reset_parameters(self) -> None:
        """torch's initial values again."""
        for parameter in self.parameters():
            parameter.set_recipe(_bound(self.in1_features))

    def forward(self, input1: Any, input2: Any) -> Any:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )
