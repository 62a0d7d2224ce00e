"""Activation layers; see the functions of the same names in :mod:`hotloop.nn.functional`.

``inplace`` is taken and shown as in torch and means nothing: values never change.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import elementary, pointwise
from hotloop.nn import functional as F
from hotloop.nn.functional.activations import check_slopes
from hotloop.nn.functional.arguments import Approximation, Count, NonNegative, NonZero, Real
from hotloop.nn.module import Module
from hotloop.nn.parameter import Parameter
from hotloop.nn.recipes import Constant

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh",
    "LeakyReLU", "LogSigmoid", "LogSoftmax", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SELU",
    "SiLU", "Sigmoid", "Softmax", "Softmax2d", "Softmin", "Softplus", "Softshrink", "Softsign",
    "Tanh", "Tanhshrink", "Threshold",
]  # fmt: skip


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
    """Rectified linear unit, ``max(x, 0)``.

    Parameters
    ----------
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.relu`.
    """

    def forward(self, input: Any) -> Any:
        return pointwise.relu(input)


class ReLU6(_InPlace):
    """x limited to ``[0, 6]``.

    Parameters
    ----------
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.relu6`.
    """

    def forward(self, input: Any) -> Any:
        return F.relu6(input)


class SiLU(_InPlace):
    """Swish, ``x · sigmoid(x)``.

    Parameters
    ----------
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.silu`.
    """

    def forward(self, input: Any) -> Any:
        return F.silu(input)


class Mish(_InPlace):
    """``x · tanh(softplus(x))``.

    Parameters
    ----------
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.mish`.
    """

    def forward(self, input: Any) -> Any:
        return F.mish(input)


class SELU(_InPlace):
    """``scale · elu(x, alpha)`` with constants that keep mean and variance.

    Parameters
    ----------
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.selu`.
    """

    def forward(self, input: Any) -> Any:
        return F.selu(input)


class Hardsigmoid(_InPlace):
    """``relu6(x + 3) / 6``.

    Parameters
    ----------
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.hardsigmoid`.
    """

    def forward(self, input: Any) -> Any:
        return F.hardsigmoid(input)


class Hardswish(_InPlace):
    """``x · relu6(x + 3) / 6``.

    Parameters
    ----------
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.hardswish`.
    """

    def forward(self, input: Any) -> Any:
        return F.hardswish(input)


class Sigmoid(_Activation):
    """``1 / (1 + e**-x)``."""

    def forward(self, input: Any) -> Any:
        return elementary.sigmoid(input)


class Tanh(_Activation):
    """Hyperbolic tangent."""

    def forward(self, input: Any) -> Any:
        return elementary.tanh(input)


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
    """Gaussian error linear unit, ``x · Φ(x)``.

    Parameters
    ----------
    approximate : {"none", "tanh"}
        "tanh" approximates Φ by a tanh, which a GPU may compute within a product.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.gelu`.
    """

    def __init__(self, approximate: Approximation = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Any) -> Any:
        return F.gelu(input, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class ELU(_Activation):
    """x where positive, else ``alpha · (e**x - 1)``.

    Parameters
    ----------
    alpha : float
        Minus the limit for x towards minus infinity.
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.elu`.
    """

    shown = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.elu(input, self.alpha)


class CELU(_Activation):
    """x where positive, else ``alpha · (e**(x / alpha) - 1)``.

    Parameters
    ----------
    alpha : float
        Minus the limit for x towards minus infinity; not 0.
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.celu`.
    """

    shown = ("alpha",)

    def __init__(self, alpha: NonZero = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.celu(input, self.alpha)


class LeakyReLU(_Activation):
    """x where positive, else ``negative_slope · x``.

    Parameters
    ----------
    negative_slope : float
        Slope of the negative side.
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.leaky_relu`.
    """

    shown = ("negative_slope",)

    def __init__(self, negative_slope: float = 1e-2, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope = negative_slope
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.leaky_relu(input, self.negative_slope)


class RReLU(_Activation):
    """leaky_relu with a random slope in training, the mean one else.

    Parameters
    ----------
    lower, upper : float
        In training the slope is uniform in ``[lower, upper)``, one per element.
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.rrelu`.
    """

    shown = ("lower", "upper")

    def __init__(
        self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False
    ) -> None:
        super().__init__()
        check_slopes("RReLU", lower, upper)
        self.lower = lower
        self.upper = upper
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.rrelu(input, self.lower, self.upper, self.training)


class PReLU(Module):
    """x where positive, else ``weight · x``; the weight learns (He et al. 2015).

    Parameters
    ----------
    num_parameters : int
        1, or one per channel (dim 1).
    init : float
        The initial weight.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    weight : Parameter
        ``(num_parameters,)``.

    Notes
    -----
    ``(N, C, ...)`` in, the same out.
    """

    weight: Parameter

    def __init__(
        self, num_parameters: Count = 1, init: float = 0.25, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter.of_recipe((num_parameters,), Constant(init))

    def reset_parameters(self) -> None:
        """The initial weight again."""
        self.weight.set_recipe(Constant(self.init))

    def forward(self, input: Any) -> Any:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class Hardtanh(_Activation):
    """x limited to ``[min_val, max_val]``.

    Parameters
    ----------
    min_val, max_val : float
        The limits.
    inplace : bool
        Taken and shown as in torch: values never change.
    min_value, max_value : float, optional
        torch's old names of the limits.

    Raises
    ------
    ConfigError
        If max_val is not above min_val.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.hardtanh`.
    """

    shown = ("min_val", "max_val")

    def __init__(
        self,
        min_val: Real = -1.0,
        max_val: Real = 1.0,
        inplace: bool = False,
        min_value: Real | None = None,
        max_value: Real | None = None,
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
    """``log(1 + e**(beta·x)) / beta``.

    Parameters
    ----------
    beta : float
        Sharpness: the larger, the nearer to relu.
    threshold : float
        Where ``beta·x`` is above it the result is x itself.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.softplus`.
    """

    shown = ("beta", "threshold")

    def __init__(self, beta: NonZero = 1.0, threshold: Real = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, input: Any) -> Any:
        return F.softplus(input, self.beta, self.threshold)


class Softshrink(_Activation):
    """x moved towards 0 by ``lambd``, 0 within it.

    Parameters
    ----------
    lambd : float
        At least 0.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.softshrink`.
    """

    def __init__(self, lambd: NonNegative = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Any) -> Any:
        return F.softshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return str(self.lambd)


class Hardshrink(_Activation):
    """x outside ``[-lambd, lambd]``, 0 within.

    Parameters
    ----------
    lambd : float
        Half the width of what becomes 0.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.hardshrink`.
    """

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Any) -> Any:
        return F.hardshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return str(self.lambd)


class Threshold(_Activation):
    """x where above ``threshold``, else ``value``.

    Parameters
    ----------
    threshold : float
        What x is compared with.
    value : float
        What stands where x is not above it.
    inplace : bool
        Taken and shown as in torch: values never change.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.threshold`.
    """

    shown = ("threshold", "value")

    def __init__(self, threshold: Real, value: Real, inplace: bool = False) -> None:
        super().__init__()
        self.threshold = threshold
        self.value = value
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        return F.threshold(input, self.threshold, self.value)


class GLU(_Activation):
    """Gated linear unit, ``a · sigmoid(b)``, a and b the halves along a dim.

    Parameters
    ----------
    dim : int
        The dim that is halved; of even size.

    Notes
    -----
    The output is half as long along the dim.
    The formula: :func:`hotloop.nn.functional.glu`.
    """

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
    """``e**x / sum(e**x)`` along a dim. Before a loss of logits it is to be left out.

    Parameters
    ----------
    dim : int, optional
        The dim of what sums to 1; without one, torch's rule: dim 0 of 1 or 3 dims, else dim 1.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.softmax`.
    """

    def forward(self, input: Any) -> Any:
        return F.softmax(input, self.dim)


class Softmin(_AlongDim):
    """``softmax(-x)`` along a dim.

    Parameters
    ----------
    dim : int, optional
        The dim of what sums to 1; without one, torch's rule: dim 0 of 1 or 3 dims, else dim 1.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.softmin`.
    """

    def forward(self, input: Any) -> Any:
        return F.softmin(input, self.dim)


class LogSoftmax(_AlongDim):
    """``log(softmax(x))`` along a dim.

    Parameters
    ----------
    dim : int, optional
        The dim of what sums to 1; without one, torch's rule: dim 0 of 1 or 3 dims, else dim 1.

    Notes
    -----
    Any shape in, the same out.
    The formula: :func:`hotloop.nn.functional.log_softmax`.
    """

    def forward(self, input: Any) -> Any:
        return F.log_softmax(input, self.dim)


class Softmax2d(_Activation):
    """Softmax over the channels of ``(N, C, H, W)`` or ``(C, H, W)``."""

    def forward(self, input: Any) -> Any:
        if input.ndim not in (3, 4):
            raise ShapeError(f"input must be (N, C, H, W) or (C, H, W), got {input.shape}")
        return F.softmax(input, -3)
