"""Channels that are chosen by training: soft weights, and Gumbel-softmax mixtures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.errors import ConfigError
from hotloop.graph.creation import scalar
from hotloop.graph.elementary import log
from hotloop.graph.reduction import softmax
from hotloop.graph.trace import current
from hotloop.nn.functional.activations import gumbel_softmax
from hotloop.nn.init import normal_
from hotloop.nn.parameter import Parameter
from hotloop.stats.node import PixelNode, StatisticalNode
from hotloop.stats.statistics import Statistics

__all__ = ["ConcreteChannelMixer", "SoftChannelSelector", "annealed"]


def annealed(name: str, ends: tuple[float, float], steps: int) -> Any:
    """A temperature that falls from one end to the other by the same factor each step.

    Parameters
    ----------
    name : str
        Of the number, after the path of the module that runs.
    ends : (float, float)
    steps : int
        Optimizer steps until it is at the second; then it stays.
    """
    first, last = ends

    def at(step: int) -> float:
        return float(first * (last / first) ** min(step / steps, 1.0))

    return scalar(f"{current(name).path}.{name}", at)


def _check_temperature(node: str, ends: Any, steps: Any) -> tuple[float, float]:
    first, last = (ends, ends) if isinstance(ends, (int, float)) else ends
    if not (0 < first < float("inf") and 0 < last < float("inf")):
        raise ConfigError(f"{node}: temperature must be positive numbers, got {ends!r}")
    if type(steps) is not int or steps < 1:
        raise ConfigError(f"{node}: steps must be an integer, at least 1, got {steps!r}")
    return float(first), float(last)


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
        self.k, self.init, self.steps = k, init, steps
        self.temperature = _check_temperature("SoftChannelSelector", temperature, steps)
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
        temperature = annealed("temperature", self.temperature, self.steps)
        return softmax(self.logits / temperature, -1)

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
        self.steps = steps
        self.temperature = _check_temperature("ConcreteChannelMixer", temperature, steps)
        self.logits = Parameter(np.zeros((k, num_channels), np.float32))
        normal_(self.logits, 0.0, 0.01)  # rows that are equal would stay so but for noise

    def weights(self) -> Any:
        """In forward: the share of each input channel, (k, channels), rows of sum 1."""
        temperature = annealed("temperature", self.temperature, self.steps)
        if self.training:
            return gumbel_softmax(self.logits, tau=temperature, dim=-1)
        return softmax(self.logits / temperature, -1)

    def transform(self, x: Any) -> Any:
        """The mixtures of each pixel."""
        return x @ self.weights().T


def entropy(shares: Any) -> Any:
    """Of shares of sum 1 along the last dim, in nats."""
    return -(shares * log(shares.clamp(min=1e-12))).sum(-1)
