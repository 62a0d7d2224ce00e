"""Anomaly scores of pixels: how far a pixel is from what the training data have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import warn
from hotloop.errors import DataError, DataWarning, ShapeError
from hotloop.graph.creation import eye
from hotloop.graph.factorization import cholesky, solve_triangular
from hotloop.stats.node import PixelNode, StatisticalNode, not_negative, refuse_mask
from hotloop.stats.statistics import Affine, Statistics

__all__ = ["LADGlobal", "RXGlobal", "RXPerBatch", "ScoreToLogit"]


class RXGlobal(StatisticalNode):
    """The squared Mahalanobis distance of each pixel from the training data (Reed and Yu, 1990).

    Parameters
    ----------
    num_channels : int, optional
        Of the cubes; by default what the first one has.
    eps : float
        Added to each variance.

    Attributes
    ----------
    mean : Parameter (channels)
    whitening : Parameter (channels, channels)
        W with ``W.T @ W = inverse(covariance + eps * I)``; the covariance is divided by ``n - 1``.
        So a covariance that is trained is positive definite throughout.

    Notes
    -----
    ``(..., channels)`` in, ``(..., 1)`` out: ``||W (x - mean)||^2``. A covariance that is singular
    but for ``eps`` warns, with its rank.
    """

    def __init__(self, num_channels: int | None = None, eps: float = 1e-6) -> None:
        super().__init__(num_channels)
        self.eps = not_negative("RXGlobal", "eps", eps)
        self.declare("mean", "whitening")

    def shapes(self, n_channels: int) -> Mapping[str, tuple[int, ...]]:
        """By channels."""
        return {"mean": (n_channels,), "whitening": (n_channels, n_channels)}

    def fit(self, found: Statistics) -> Mapping[str, npt.ArrayLike]:
        """The inverse of the covariance's Cholesky factor.

        Raises
        ------
        DataError
            If the covariance is singular, eps included.
        """
        values = np.linalg.eigvalsh(found.covariance)
        n, rank = len(values), int((values > max(values[-1], 0.0) * 1e-12).sum())
        if rank < n:
            text = (
                f"{self.title}: the covariance of its input has rank {rank} of {n} (constant "
                f"channels, or ones that depend on others), and eps={self.eps:g}"
            )
            if self.eps <= max(values[-1], 0.0) * 1e-14:
                raise DataError(f"{text} does not make it invertible; use a larger eps, or a PCA")
            warn(f"{text} decides the scores in the other directions", DataWarning)
        factor = np.linalg.cholesky(found.covariance + self.eps * np.eye(n))
        return {"mean": found.mean, "whitening": np.linalg.inv(factor)}

    @property
    def covariance(self) -> npt.NDArray[np.float64]:
        """The covariance, eps included, (channels, channels) of float64."""
        factor = np.linalg.inv(self.fitted("whitening"))
        made: npt.NDArray[np.float64] = factor @ factor.T
        return made

    def transform(self, x: Any) -> Any:
        """The score of each pixel."""
        white = (x - self.mean) @ self.whitening.T
        return (white * white).sum(-1, keepdim=True)


class RXPerBatch(PixelNode):
    """The squared Mahalanobis distance of each pixel from its own image; nothing is fitted.

    Parameters
    ----------
    eps : float
        Added to each variance.

    Notes
    -----
    ``(batch, ..., channels)`` in, ``(batch, ..., 1)`` out. An image whose float32 covariance is not
    positive definite, eps included, is an error: one with fewer pixels than channels, or channels
    that depend on others, needs an eps of about a millionth of the variances, or a PCA before.
    """

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = not_negative("RXPerBatch", "eps", eps)

    def transform(self, x: Any) -> Any:
        """The score of each pixel."""
        if x.ndim < 3:
            raise ShapeError(
                f"RXPerBatch: the input must be (batch, ..., channels), got shape {x.shape}"
            )
        refuse_mask(x, "RXPerBatch")
        flat = x.reshape(x.shape[0], -1, x.shape[-1])
        centred = flat - flat.mean(1, keepdim=True)
        covariance = centred.transpose(1, 2) @ centred / max(flat.shape[1] - 1, 1)
        factor = cholesky(covariance + self.eps * eye(x.shape[-1]))
        white = solve_triangular(factor, centred.transpose(1, 2), upper=False)
        return (white * white).sum(1).reshape(*x.shape[:-1], 1)


class LADGlobal(StatisticalNode):
    """The Laplacian anomaly detector (Verdoja and Grangetto, 2020), by the mean spectrum.

    Parameters
    ----------
    num_channels : int, optional
        Of the cubes; by default what the first one has.

    Attributes
    ----------
    mean : Parameter (channels)
        The mean spectrum M.
    laplacian : Parameter (channels, channels)
        The normalized Laplacian ``I - D^-1/2 A D^-1/2`` of the channels' graph with the weights
        ``A_ij = 1 / (1 + (|M_i - M_j| / mean(M))^2)``, without loops.

    Notes
    -----
    ``(..., channels)`` in, ``(..., 1)`` out: ``(x - M)^T L (x - M)``.
    """

    needs = "mean"

    def __init__(self, num_channels: int | None = None) -> None:
        super().__init__(num_channels)
        self.declare("mean", "laplacian")

    def shapes(self, n_channels: int) -> Mapping[str, tuple[int, ...]]:
        """By channels."""
        return {"mean": (n_channels,), "laplacian": (n_channels, n_channels)}

    def fit(self, found: Statistics) -> Mapping[str, npt.ArrayLike]:
        """The Laplacian by the mean spectrum.

        Raises
        ------
        DataError
            If the mean of the mean spectrum is 0.
        """
        mean = found.mean
        middle = mean.mean()
        if middle == 0:
            raise DataError(f"{self.title}: the mean of its input must not be 0, got 0")
        weights = 1 / (1 + ((mean[:, None] - mean) / middle) ** 2)
        np.fill_diagonal(weights, 0.0)
        degree = np.maximum(weights.sum(1), np.finfo(np.float64).tiny)
        laplacian = np.eye(len(mean)) - weights / np.sqrt(np.outer(degree, degree))
        return {"mean": mean, "laplacian": laplacian}

    def transform(self, x: Any) -> Any:
        """The score of each pixel."""
        centred = x - self.mean
        return ((centred @ self.laplacian) * centred).sum(-1, keepdim=True)


class ScoreToLogit(StatisticalNode):
    """``scale * (score - bias)``: a logit of scores, whose bias begins at mean + 2 std.

    Parameters
    ----------
    num_channels : int
        Of the scores.

    Attributes
    ----------
    scale, bias : Parameter (channels)

    Notes
    -----
    ``(..., channels)`` in and out.
    """

    needs = "variance"
    is_affine = is_per_channel = True

    def __init__(self, num_channels: int = 1) -> None:
        super().__init__(num_channels)
        self.declare("scale", "bias")

    def shapes(self, n_channels: int) -> Mapping[str, tuple[int, ...]]:
        """One of each channel."""
        return {"scale": (n_channels,), "bias": (n_channels,)}

    def fit(self, found: Statistics) -> Mapping[str, npt.ArrayLike]:
        """Scale 1, and the bias."""
        if not found.std.any():
            warn(f"{self.title}: the scores are {found.mean[0]:g} throughout", DataWarning)
        return {"scale": np.ones_like(found.mean), "bias": found.mean + 2 * found.std}

    def affine(self) -> Affine | None:
        """A scale and an offset of each channel."""
        scale, bias = self.fitted("scale"), self.fitted("bias")
        return Affine.scaling(scale, -scale * bias, len(scale))

    def transform(self, x: Any) -> Any:
        """The logits."""
        return self.scale * (x - self.bias)
