"""Deep SVDD (Ruff et al., 2018): embeddings of normal pixels near one centre."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from hotloop.errors import ConfigError
from hotloop.graph.pointwise import where
from hotloop.nn.linear import Linear
from hotloop.stats.node import PixelNode, StatisticalNode, counted
from hotloop.stats.statistics import Statistics

__all__ = ["DeepSVDDCenterTracker", "DeepSVDDProjection"]


class DeepSVDDProjection(PixelNode):
    """Two linear layers of each pixel, without bias, with which the centre could be reached by 0.

    Parameters
    ----------
    num_channels : int
        Of the cubes.
    hidden : int
        Width of the hidden layer.
    num_features : int
        Of the embedding.

    Notes
    -----
    ``(..., channels)`` in, ``(..., num_features)`` out.
    """

    def __init__(self, num_channels: int, hidden: int = 128, num_features: int = 32) -> None:
        super().__init__()
        self.hidden = Linear(num_channels, hidden, bias=False)
        self.output = Linear(hidden, num_features, bias=False)

    def transform(self, x: Any) -> Any:
        """The embeddings."""
        return self.output(self.hidden(x).relu())


class DeepSVDDCenterTracker(StatisticalNode):
    """The squared distance of embeddings from a centre that follows their mean.

    The centre begins as the mean embedding of the training data, and in training moves towards each
    batch's by ``alpha``.

    Parameters
    ----------
    num_channels : int, optional
        Of the embeddings; by default what the first ones have.
    alpha : float
        Between 0 (it stays) and 1.

    Attributes
    ----------
    center : Buffer (channels)

    Notes
    -----
    ``(..., channels)`` in, ``(..., 1)`` out, by the centre before the batch.
    """

    needs = "mean"

    def __init__(self, num_channels: int | None = None, alpha: float = 0.1) -> None:
        super().__init__(num_channels)
        if not 0 <= alpha <= 1:
            raise ConfigError(
                f"DeepSVDDCenterTracker: alpha must lie between 0 and 1, got {alpha!r}"
            )
        self.alpha = float(alpha)
        self.declare(buffers=("center",))

    def shapes(self, n_channels: int) -> Mapping[str, tuple[int, ...]]:
        """One of each channel."""
        return {"center": (n_channels,)}

    def fit(self, found: Statistics) -> Mapping[str, npt.ArrayLike]:
        """The mean embedding."""
        return {"center": found.mean}

    def transform(self, x: Any) -> Any:
        """The squared distances."""
        away = x - self.center  # as it was before this batch
        if self.training:
            self.center.assign(self._moved(x.detach()))
        return (away * away).sum(-1, keepdim=True)

    def _moved(self, x: Any) -> Any:
        """The centre after a batch; where its mask leaves no pixel, as it was."""
        dims, counts = tuple(range(x.ndim - 1)), counted(x)
        if counts is None:
            return self.center * (1 - self.alpha) + x.mean(dims) * self.alpha
        n = counts.sum()
        mean = (x * counts).sum(dims) / n.clamp(min=1.0)
        return where(n > 0, self.center * (1 - self.alpha) + mean * self.alpha, self.center)
