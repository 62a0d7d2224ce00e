"""Channels that are chosen by training: soft weights, and Gumbel-softmax mixtures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph.build import is_number
from hotloop.graph.creation import scalar
from hotloop.graph.elementary import log
from hotloop.graph.reduction import softmax
from hotloop.graph.trace import current
from hotloop.nn.functional.activations import gumbel_softmax
from hotloop.nn.init import normal_
from hotloop.nn.module import Module
from hotloop.nn.parameter import Parameter
from hotloop.stats.node import PixelNode, StatisticalNode
from hotloop.stats.statistics import Statistics

__all__ = ["ConcreteChannelMixer", "SoftChannelSelector", "entropy", "shares_of"]


class _Annealing:
    """A temperature that falls from one end to the other by the same factor each step.

    Parameters
    ----------
    node : str
        The class that has it.
    ends : float or (float, float)
    steps : int
        Optimizer steps until it is at the second; then it stays.

    Raises
    ------
    ConfigError
    """

    def __init__(self, node: str, ends: Any, steps: Any) -> None:
        pair = (ends, ends) if is_number(ends) else ends
        if not (
            isinstance(pair, (tuple, list))
            and len(pair) == 2
            and all(is_number(end) and 0 < end < math.inf for end in pair)
        ):
            raise ConfigError(
                f"{node}: temperature must be a positive number, or two of them for the first step "
                f"and the last, got {ends!r}"
            )
        if type(steps) is not int or steps < 1:
            raise ConfigError(f"{node}: steps must be an integer, at least 1, got {steps!r}")
        self.ends, self.steps = (float(pair[0]), float(pair[1])), steps

    def __call__(self, step: int) -> float:
        first, last = self.ends
        return float(first * (last / first) ** min(step / self.steps, 1.0))

    def now(self) -> Any:
        """In forward: the temperature of the step."""
        return scalar(f"{current('temperature').path}.temperature", self)


def shares_of(module: Any) -> Any:
    """The shares by which a selector chose, in the loss of the batch that it ran for."""
    found = current("shares").noted("shares", module)
    return module.weights() if found is None else found  # a subclass may not note them


def _noted(module: Module, shares: Any) -> Any:
    """Shares that the losses of this batch are to read: of Gumbel's noise there are others each
    time.
    """
    current("shares").note("shares", shares, module)
    return shares


class SoftChannelSelector(StatisticalNode):
    """``x * k * softmax(logits / temperature)``: training finds the k channels that matter.

    Parameters
    ----------
    k : int
        How many channels are to be selected.
    num_channels : int, optional
        Of the cubes; by default what the first one has.
    init : {"uniform", "variance"}
        The logits that training begins with: all 0, or the logarithm of each channel's share of
        the variance.
    temperature : float or (float, float)
        From the first step to the last of ``steps``.
    steps : int
        Optimizer steps for which the temperature falls.

    Attributes
    ----------
    logits : Parameter (channels)
        Trained; it needs no ``unfreeze``.

    Notes
    -----
    ``(..., channels)`` in and out. After training the temperature is that of
    the weights: the last one, or that of the best epoch.
    """

    needs = "variance"

    def __init__(
        self,
        k: int,
        num_channels: int | None = None,
        *,
        init: str = "uniform",
        temperature: float | tuple[float, float] = (5.0, 0.1),
        steps: int = 1000,
    ) -> None:
        super().__init__(num_channels)
        if init not in ("uniform", "variance"):
            raise ConfigError(
                f"SoftChannelSelector: init must be 'uniform' or 'variance', got {init!r}"
            )
        if type(k) is not int or k < 1:
            raise ConfigError(f"SoftChannelSelector: k must be an integer, at least 1, got {k!r}")
        self.k, self.init = k, init
        self.temperature = _Annealing("SoftChannelSelector", temperature, steps)
        self.declare("logits")
        self.logits.requires_grad_(True)

    def shapes(self, n_channels: int) -> Mapping[str, tuple[int, ...]]:
        """One of each channel."""
        if self.k > n_channels:
            raise ConfigError(
                f"SoftChannelSelector: k must be at most the number of channels, {n_channels}, "
                f"got {self.k}"
            )
        return {"logits": (n_channels,)}

    @property
    def is_fitted(self) -> bool:
        """Whether there were statistics, or none are wanted."""
        return self.init == "uniform" or super().is_fitted

    def fit(self, found: Statistics) -> Mapping[str, npt.ArrayLike]:
        """The shares of the variance."""
        variance = np.maximum(found.variance, np.finfo(np.float64).tiny)
        return {"logits": np.log(variance / variance.sum())}

    def weights(self) -> Any:
        """In forward: the share of each channel, (channels), of sum 1."""
        return _noted(self, softmax(self.logits / self.temperature.now(), -1))

    def transform(self, x: Any) -> Any:
        """The weighted channels."""
        return x * (self.weights() * float(self.k))

    def selected(self) -> list[int]:
        """The k channels of the largest logits, the largest first."""
        logits = np.asarray(self.logits.numpy())
        return [int(i) for i in np.argsort(-logits, kind="stable")[: self.k]]


class ConcreteChannelMixer(PixelNode):
    """k channels, each one of the input's in the end: rows of a Gumbel-softmax over channels.

    In training ``x @ gumbel_softmax(logits, temperature).T``, with other noise each step; else the
    softmax without noise.

    Parameters
    ----------
    k : int
        Output channels.
    num_channels : int
        Input channels.
    temperature : float or (float, float)
        From the first step to the last of ``steps``.
    steps : int
        Optimizer steps for which the temperature falls.

    Attributes
    ----------
    logits : Parameter (k, channels)

    Notes
    -----
    ``(..., channels)`` in, ``(..., k)`` out (Jang et al., 2017; Maddison et al., 2017).
    """

    def __init__(
        self,
        k: int,
        num_channels: int,
        *,
        temperature: float | tuple[float, float] = (10.0, 0.1),
        steps: int = 1000,
    ) -> None:
        super().__init__()
        for name, value in (("k", k), ("num_channels", num_channels)):
            if type(value) is not int or value < 1:
                raise ConfigError(
                    f"ConcreteChannelMixer: {name} must be an integer, at least 1, got {value!r}"
                )
        self.temperature = _Annealing("ConcreteChannelMixer", temperature, steps)
        self.logits = Parameter(np.zeros((k, num_channels), np.float32))
        normal_(self.logits, 0.0, 0.01)  # rows that are equal would stay so but for noise

    def weights(self) -> Any:
        """In forward: the share of each input channel, (k, channels), rows of sum 1."""
        temperature = self.temperature.now()
        if self.training:
            return _noted(self, gumbel_softmax(self.logits, tau=temperature, dim=-1))
        return _noted(self, softmax(self.logits / temperature, -1))

    def transform(self, x: Any) -> Any:
        """The mixtures of each pixel.

        Raises
        ------
        ShapeError
            For another number of channels.
        """
        n = self.logits.shape[1]
        if x.shape[-1] != n:
            raise ShapeError(
                f"ConcreteChannelMixer has {n} channels, got a cube with {x.shape[-1]} (shape "
                f"{x.shape})"
            )
        return x @ self.weights().T


def entropy(shares: Any) -> Any:
    """Of shares of sum 1 along the last dim, in nats."""
    return -(shares * log(shares.clamp(min=1e-12))).sum(-1)
