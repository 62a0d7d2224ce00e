"""Principal components, and mixtures of channels that begin with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import warn
from hotloop.errors import ConfigError, DataWarning
from hotloop.stats.node import StatisticalNode, not_negative
from hotloop.stats.statistics import Affine, Statistics

__all__ = ["LearnableChannelMixer", "TrainablePCA"]


_Array = npt.NDArray[np.float64]


def principal_components(covariance: _Array, k: int) -> tuple[_Array, _Array]:
    """The k components of the largest variance, as rows, and these variances.

    Each has the sign with which its entry of the largest magnitude is positive.
    """
    values, vectors = np.linalg.eigh(covariance)
    components = vectors[:, ::-1].T[:k]
    largest = np.abs(components).argmax(1)
    signs = np.sign(components[np.arange(len(components)), largest])
    return components * signs[:, None], np.maximum(values[::-1][:k], 0.0)


def _count(node: str, name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{node}: {name} must be an integer, at least 1, got {value!r}")
    return value


class _Components(StatisticalNode):
    """Fits the first components of its input."""

    is_affine = True

    def __init__(self, n_components: int, num_channels: int | None) -> None:
        super().__init__(num_channels)
        self.n_components = _count(type(self).__name__, "n_components", n_components)

    def _resolve(self, n_channels: int) -> None:
        if self.n_components > n_channels:
            raise ConfigError(
                f"{type(self).__name__}: n_components must be at most the number of channels, "
                f"{n_channels}, got {self.n_components}"
            )
        super()._resolve(n_channels)

    def _components(self, found: Statistics) -> tuple[_Array, _Array]:
        """The first components and their variances; warns where there are not as many."""
        least = np.trace(found.covariance) * 1e-14
        rank = int((np.linalg.eigvalsh(found.covariance) > least).sum())
        if rank < self.n_components:
            warn(
                f"{self.title}: its input has variance in {rank} directions alone, got "
                f"n_components={self.n_components}: the others are arbitrary",
                DataWarning,
            )
        return principal_components(found.covariance, self.n_components)


class TrainablePCA(_Components):
    """Principal components of the training data's pixels, which may be trained on.

    Parameters
    ----------
    n_components : int
        How many; at most the number of channels.
    num_channels : int, optional
        Of the cubes; by default what the first one has.
    whiten : bool
        Whether outputs are divided by ``sqrt(explained_variance + eps)``.
    eps : float
        With ``whiten``.

    Attributes
    ----------
    mean : Buffer (channels)
    components : Parameter (n_components, channels)
        Of unit length, by descending variance; the entry of the largest magnitude is positive.
        ``unfreeze`` trains it.
    explained_variance : Buffer (n_components)
        The variance of each component's output, divided by ``n - 1``.
    total_variance : Buffer ()
        Of all channels.

    Notes
    -----
    ``(..., channels)`` in, ``(..., n_components)`` out: ``(x - mean) @ components.T``.
    """

    def __init__(
        self,
        n_components: int,
        num_channels: int | None = None,
        *,
        whiten: bool = False,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(n_components, num_channels)
        self.whiten, self.eps = bool(whiten), not_negative("TrainablePCA", "eps", eps)
        self.declare("components", buffers=("mean", "explained_variance", "total_variance"))

    def shapes(self, n_channels: int) -> Mapping[str, tuple[int, ...]]:
        """By components and channels."""
        k = self.n_components
        return {
            "mean": (n_channels,),
            "components": (k, n_channels),
            "explained_variance": (k,),
            "total_variance": (),
        }

    def fit(self, found: Statistics) -> Mapping[str, npt.ArrayLike]:
        """The eigenvectors of the covariance."""
        components, variance = self._components(found)
        return {
            "mean": found.mean,
            "components": components,
            "explained_variance": variance,
            "total_variance": np.trace(found.covariance),
        }

    def affine(self) -> Affine | None:
        """The projection."""
        matrix = self.fitted("components")
        if self.whiten:
            matrix = matrix / np.sqrt(self.fitted("explained_variance") + self.eps)[:, None]
        return Affine(matrix, -matrix @ self.fitted("mean"))

    def transform(self, x: Any) -> Any:
        """The components of each pixel."""
        y = (x - self.mean) @ self.components.T
        return y / (self.explained_variance + self.eps).sqrt() if self.whiten else y


class LearnableChannelMixer(_Components):
    """A 1x1 convolution whose weights begin with the principal components.

    Parameters
    ----------
    n_components : int
        Output channels.
    num_channels : int, optional
        Input channels; by default what the first cube has.

    Attributes
    ----------
    weight : Parameter (n_components, channels)
        ``unfreeze`` trains it.

    Notes
    -----
    ``(..., channels)`` in, ``(..., n_components)`` out: ``x @ weight.T``.
    """

    def __init__(self, n_components: int, num_channels: int | None = None) -> None:
        super().__init__(n_components, num_channels)
        self.declare("weight")

    def shapes(self, n_channels: int) -> Mapping[str, tuple[int, ...]]:
        """A row of each output channel."""
        return {"weight": (self.n_components, n_channels)}

    def fit(self, found: Statistics) -> Mapping[str, npt.ArrayLike]:
        """The eigenvectors of the covariance."""
        return {"weight": self._components(found)[0]}

    def affine(self) -> Affine | None:
        """The mixture."""
        weight = self.fitted("weight")
        return Affine(weight, np.zeros(len(weight)))

    def transform(self, x: Any) -> Any:
        """The mixtures of each pixel."""
        return x @ self.weight.T
