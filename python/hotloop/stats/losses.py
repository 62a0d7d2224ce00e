"""Losses of hyperspectral pipelines: entries of ``losses=``, which name modules of the model."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotloop.errors import ConfigError
from hotloop.graph.creation import eye
from hotloop.graph.elementary import sigmoid
from hotloop.graph.symbolic import Tensor
from hotloop.nn import functional as F
from hotloop.nn.parameter import Parameter
from hotloop.stats.calls import Calls, ModuleLoss
from hotloop.stats.node import counted, mean_over_pixels
from hotloop.stats.selection import (
    ConcreteChannelMixer,
    SoftChannelSelector,
    entropy,
    shares_of,
)
from hotloop.stats.svdd import DeepSVDDCenterTracker

__all__ = [
    "DeepSVDDSoftBoundaryLoss",
    "DistinctnessLoss",
    "OrthogonalityLoss",
    "ReconstructionLoss",
    "SelectorDiversityLoss",
    "SelectorEntropyLoss",
    "SoftIoULoss",
]

_SELECTORS = (SoftChannelSelector, ConcreteChannelMixer)


def _rows_of(calls: Calls, name: str) -> Any:
    """The matrix of a module whose rows are components."""
    module = calls[name].module
    for attribute in ("components", "weight"):
        found = getattr(module, attribute, None)
        if found is not None and found.ndim == 2:
            return found
    raise ConfigError(
        f"{name!r} must have components or a weight of two dims, got a {type(module).__name__}"
    )


class OrthogonalityLoss(ModuleLoss):
    """``||W W^T - I||^2``, squared Frobenius norm, of a module's components or weight.

    Parameters
    ----------
    module : str
        Its name in the model.
    """

    def __init__(self, module: str) -> None:
        super().__init__(f"{module}_orthogonality")
        self.module = module

    def compute(self, calls: Calls) -> Any:
        """See :meth:`ModuleLoss.compute`."""
        w = _rows_of(calls, self.module)
        away = w @ w.T - eye(w.shape[0])
        return (away * away).sum()


class ReconstructionLoss(ModuleLoss):
    """The mean squared error between what two modules return.

    Parameters
    ----------
    target : str
        The module whose output is to be met; it is a constant to the loss.
    output : str
        The other one; by default the model's output.
    """

    def __init__(self, target: str, output: str = "") -> None:
        super().__init__("reconstruction")
        self.target, self.output = target, output

    def compute(self, calls: Calls) -> Any:
        """See :meth:`ModuleLoss.compute`."""
        made = calls[self.output].output if self.output else calls.output
        wanted = calls[self.target].output.detach()
        if made.shape != wanted.shape:
            raise ConfigError(
                f"{self.output or 'the model'!r} must return the shape of {self.target!r}, "
                f"{wanted.shape}, got {made.shape}"
            )
        if counted(made) is None:
            return F.mse_loss(made, wanted)
        return mean_over_pixels(F.mse_loss(made, wanted, reduction="none"))


class SelectorEntropyLoss(ModuleLoss):
    """``(H - target)^2``, of the entropy H of a selector's shares in nats; of rows, their mean.

    Parameters
    ----------
    module : str
        A SoftChannelSelector or ConcreteChannelMixer.
    target : float
        The entropy to be met; 0 is one channel alone, ``log(k)`` k channels alike.
    """

    def __init__(self, module: str, target: float = 0.0) -> None:
        super().__init__(f"{module}_entropy")
        self.module, self.target = module, float(target)

    def compute(self, calls: Calls) -> Any:
        """See :meth:`ModuleLoss.compute`."""
        away = entropy(_shares(calls, self.module)) - self.target
        return (away * away).mean()


class SelectorDiversityLoss(ModuleLoss):
    """``-Var`` of a selector's shares over the channels: less, the more they differ.

    Parameters
    ----------
    module : str
        A SoftChannelSelector or ConcreteChannelMixer.
    """

    def __init__(self, module: str) -> None:
        super().__init__(f"{module}_diversity")
        self.module = module

    def compute(self, calls: Calls) -> Any:
        """See :meth:`ModuleLoss.compute`."""
        return -_shares(calls, self.module).var(-1, correction=0).mean()


def _shares(calls: Calls, name: str) -> Any:
    module = calls[name].module
    if not isinstance(module, _SELECTORS):
        raise ConfigError(
            f"{name!r} must be a SoftChannelSelector or ConcreteChannelMixer, got a "
            f"{type(module).__name__}"
        )
    return shares_of(module)


class DistinctnessLoss(ModuleLoss):
    """The mean cosine between the rows of a module's components, weight or shares, in pairs.

    Parameters
    ----------
    module : str
        With at least two rows.
    """

    def __init__(self, module: str) -> None:
        super().__init__(f"{module}_distinctness")
        self.module = module

    def compute(self, calls: Calls) -> Any:
        """See :meth:`ModuleLoss.compute`."""
        found = calls[self.module].module
        mixes = isinstance(found, ConcreteChannelMixer)
        rows = shares_of(found) if mixes else _rows_of(calls, self.module)
        n = rows.shape[0]
        if n < 2:
            raise ConfigError(f"{self.module!r} must have at least two rows, got {n}")
        unit = rows / (rows * rows).sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
        cosines = unit @ unit.T
        return (cosines.sum() - float(n)) / float(n * (n - 1))


class DeepSVDDSoftBoundaryLoss(ModuleLoss):
    """``R^2 + mean(max(0, distance^2 - R^2)) / nu``, with the radius R learned.

    Parameters
    ----------
    module : str
        A DeepSVDDCenterTracker.
    nu : float
        The share of pixels that may lie outside, about; above 0, at most 1.

    Attributes
    ----------
    radius : Parameter ()
        ``R = softplus(radius)``.
    """

    def __init__(self, module: str, nu: float = 0.05) -> None:
        super().__init__("soft_boundary")
        if not 0 < nu <= 1:
            raise ConfigError(
                f"DeepSVDDSoftBoundaryLoss: nu must be above 0 and at most 1, got {nu!r}"
            )
        self.module, self.nu = module, float(nu)
        self.radius = Parameter(np.zeros((), np.float32))

    def compute(self, calls: Calls) -> Any:
        """See :meth:`ModuleLoss.compute`."""
        calls.module(self.module, DeepSVDDCenterTracker)
        distance = calls[self.module].output
        r = F.softplus(self.radius)
        return r * r + mean_over_pixels((distance - r * r).relu()) * (1 / self.nu)


class SoftIoULoss(ModuleLoss):
    """``1 - intersection / union`` of the sigmoid of the model's logits and a mask.

    Parameters
    ----------
    output : str
        The module whose output are logits; by default the model's.
    eps : float
        Added to both.
    """

    def __init__(self, output: str = "", eps: float = 1e-6) -> None:
        super().__init__("soft_iou")
        self.output, self.eps = output, float(eps)

    def compute(self, calls: Calls) -> Any:
        """See :meth:`ModuleLoss.compute`."""
        logits = calls[self.output].output if self.output else calls.output
        p, y = sigmoid(logits), _like(calls.target, logits)
        if (counts := counted(logits)) is not None:
            p, y = p * counts, y * counts
        both = (p * y).sum()
        return 1.0 - (both + self.eps) / (p.sum() + y.sum() - both + self.eps)


def _like(target: Any, logits: Any) -> Any:
    """A mask in the shape of logits, which may have a dim of one channel more."""
    if not isinstance(target, Tensor):
        raise ConfigError("one target is needed, a mask, got several; give the masks alone")
    if [n for n in logits.shape if n != 1] != [n for n in target.shape if n != 1]:
        raise ConfigError(
            f"the target must have the logits' shape {logits.shape}, but for dims of 1, got "
            f"{target.shape}"
        )
    if not target.dtype.is_floating_point:
        target = target > 0  # -100 is the id of what counts nothing
    return target.cast("float32").reshape(logits.shape)
