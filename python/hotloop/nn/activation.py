"""Activation layers; see the functions of the same names in :mod:`hotloop.nn.functional`.

``inplace`` is taken and shown as in torch and means nothing: values never change.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import pointwise
from hotloop.nn import functional as F
from hotloop.nn.module import Module
from hotloop.nn.parameter import Parameter
from hotloop.nn.recipes import Constant

__all__ = [
    *("CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh"),
    *("LeakyReLU", "LogSigmoid", "LogSoftmax", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SELU"),
    *("SiLU", "Sigmoid", "Softmax", "Softmax2d", "Softmin", "Softplus", "Softshrink", "Softsign"),
    *("Tanh", "Tanhshrink", "Threshold"),
]


class _Activation(Module):
    """A layer without parameters; its repr shows the attributes named in ``shown``."""

    shown: ClassVar[tuple[str, ...]] = ()
    inplace: bool

    def extra_repr(self) -> str:
        parts = [f"{name}={getattr(self, name)}" for name in self.shown]
        return ", ".join([*parts, "inplace=True"] if getattr(self, "inplace", False) else parts)


class _InPlace(_Activation):
    """An activation whose only argument is ``inplace``."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


class ReLU(_InPlace):
    """``max(x, 0)``."""

    def forward(self, input: Any) -> Any:
        return pointwise.relu(input)


class ReLU6(_InPlace):
    """x limited to ``[0, 6]``."""

    def forward(self, input: Any) -> Any:
        return F.relu6(input)


class SiLU(_InPlace):
    """``x · sigmoid(x)``."""

    def forward(self, input: Any) -> Any:
        return F.silu(input)


class Mish(_InPlace):
    """``x · tanh(softplus(x))``."""

    def forward(self, input: Any) -> Any:
        return F.mish(input)


class SELU(_InPlace):
    """``scale · elu(x, alpha)`` with constants that keep mean and variance."""

    def forward(self, input: Any) -> Any:
        return F.selu(input)


class Hardsigmoid(_InPlace):
    """``relu6(x + 3) / 6``."""

    def forward(self, input: Any) -> Any:
        return F.hardsigmoid(input)


class Hardswish(_InPlace):
    """``x · relu6(x + 3) / 6``."""

    def forward(self, input: Any) -> Any:
        return F.hardswish(input)


class Sigmoid(_Activation):
    """``1 / (1 + e**-x)``."""

    def forward(self, input: Any) -> Any:
        return pointwise.sigmoid(input)


class Tanh(_Activation):
    """Hyperbolic tangent."""

    def forward(self, input: Any) -> Any:
        return pointwise.tanh(input)


class LogSigmoid(_Activation):
    """``log(sigmoid(x))``."""

    def forward(self, input: Any) -> Any:
        return F.logsigmoid(input)


class Softsign(_Activation):
    """``x / (1 + |x|)``."""

    def forward(self, input: Any) -> Any:
        return F.softsign(input)


class Tanhshrink(_Activation):
    """``x - tanh(x)``."""

    def forward(self, input: Any) -> Any:
        return F.tanhshrink(input)


class GELU(_Activation):
    """``x · Φ(x)``; ``approximate="tanh"`` by a tanh."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Any) -> Any:
        return F.gelu(input, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class ELU(_Activation):
    """x where positive, else ``alpha · (e**x - 1)``."""

    shown = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.elu(input, self.alpha)


class CELU(_Activation):
    """x where positive, else ``alpha · (e**(x / alpha) - 1)``."""

    shown = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.celu(input, self.alpha)


class LeakyReLU(_Activation):
    """x where positive, else ``negative_slope · x``."""

    shown = ("negative_slope",)

    def __init__(self, negative_slope: float = 1e-2, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope = negative_slope
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.leaky_relu(input, self.negative_slope)


class RReLU(_Activation):
    """leaky_relu with a random slope in training, the mean one else."""

    shown = ("lower", "upper")

    def __init__(
        self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False
    ) -> None:
        super().__init__()
        self.lower = lower
        self.upper = upper
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.rrelu(input, self.lower, self.upper, self.training)


class PReLU(Module):
    """x where positive, else ``weight · x``; the weight learns.

    Parameters
    ----------
    num_parameters : int
        1, or one per channel (dim 1).
    init : float
        The initial weight.
    device, dtype
        Taken for torch's sake.
    """

    weight: Parameter

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter.of_recipe((num_parameters,), Constant(init))

    def forward(self, input: Any) -> Any:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class Hardtanh(_Activation):
    """x limited to ``[min_val, max_val]``; ``min_value`` and ``max_value`` are old names."""

    shown = ("min_val", "max_val")

    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        inplace: bool = False,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__()
        self.min_val = min_val if min_value is None else min_value
        self.max_val = max_val if max_value is None else max_value
        self.inplace = inplace
        if not self.max_val > self.min_val:
            raise ConfigError(
                f"Hardtanh: max_val must be above min_val, got {self.max_val}, {self.min_val}"
            )

    def forward(self, input: Any) -> Any:
        return F.hardtanh(input, self.min_val, self.max_val)


class Softplus(_Activation):
    """``log(1 + e**(beta·x)) / beta``; x itself where ``beta·x > threshold``."""

    shown = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, input: Any) -> Any:
        return F.softplus(input, self.beta, self.threshold)


class Softshrink(_Activation):
    """x moved towards 0 by ``lambd``, 0 within it."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Any) -> Any:
        return F.softshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return str(self.lambd)


class Hardshrink(_Activation):
    """x outside ``[-lambd, lambd]``, 0 within."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Any) -> Any:
        return F.hardshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return str(self.lambd)


class Threshold(_Activation):
    """x where above ``threshold``, else ``value``."""

    shown = ("threshold", "value")

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__()
        self.threshold = threshold
        self.value = value
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.threshold(input, self.threshold, self.value)


class GLU(_Activation):
    """``a · sigmoid(b)``, a and b the halves along a dim."""

    shown = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Any) -> Any:
        return F.glu(input, self.dim)


class _AlongDim(_Activation):
    """An activation along one dim; without one, torch's rule: 0 for 1 or 3 dims, else 1."""

    shown = ("dim",)

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim


class Softmax(_AlongDim):
    """``e**x / sum(e**x)`` along a dim."""

    def forward(self, input: Any) -> Any:
        return F.softmax(input, self.dim)


class Softmin(_AlongDim):
    """``softmax(-x)`` along a dim."""

    def forward(self, input: Any) -> Any:
        return F.softmin(input, self.dim)


class LogSoftmax(_AlongDim):
    """``log(softmax(x))`` along a dim."""

    def forward(self, input: Any) -> Any:
        return F.log_softmax(input, self.dim)


class Softmax2d(_Activation):
    """Softmax over the channels of ``(N, C, H, W)`` or ``(C, H, W)``."""

    def forward(self, input: Any) -> Any:
        if input.ndim not in (3, 4):
            raise ShapeError(f"input must be (N, C, H, W) or (C, H, W), got {input.shape}")
        return F.softmax(input, -3)
