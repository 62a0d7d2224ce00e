"""Normalizers of channels-last cubes: by statistics of the training data, or of each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import counted, warn
from hotloop.errors import ConfigError, DataWarning, ShapeError
from hotloop.graph.elementary import sigmoid
from hotloop.stats.node import PixelNode, StatisticalNode, not_negative, refuse_mask
from hotloop.stats.statistics import Affine, Statistics

__all__ = [
    "BandpassByWavelength",
    "MinMaxNormalizer",
    "PerPixelUnitNorm",
    "SigmoidNormalizer",
    "ZScoreNormalizer",
    "ZScoreNormalizerGlobal",
]


def _spatial(x: Any, node: str) -> tuple[int, ...]:
    """The dims of an image's pixels."""
    if x.ndim < 3:
        raise ShapeError(f"{node}: the input must be (batch, ..., channels), got shape {x.shape}")
    refuse_mask(x, node)
    return tuple(range(1, x.ndim - 1))


class MinMaxNormalizer(StatisticalNode):
    """``(x - minimum) / max(maximum - minimum, eps)``, of one minimum and one maximum of all.

    Parameters
    ----------
    eps : float
        The least that is divided by.
    use_running_stats : bool
        Whether minimum and maximum are those of the training data. False: each image's own, by
        channel; nothing is fitted.

    Attributes
    ----------
    minimum, maximum : Buffer ()

    Notes
    -----
    ``(batch, ..., channels)`` in and out.
    """

    needs = "range"

    def __init__(self, eps: float = 1e-6, use_running_stats: bool = True) -> None:
        super().__init__()
        self.eps = not_negative("MinMaxNormalizer", "eps", eps)
        self.use_running_stats = bool(use_running_stats)
        self.is_affine = self.is_per_channel = self.use_running_stats
        self.declare(buffers=("minimum", "maximum"))

    def shapes(self, n_channels: int) -> Mapping[str, tuple[int, ...]]:
        """Two numbers."""
        return {"minimum": (), "maximum": ()}

    @property
    def is_fitted(self) -> bool:
        """Whether there were statistics, or none are wanted."""
        return not self.use_running_stats or super().is_fitted

    def fit(self, found: Statistics) -> Mapping[str, npt.ArrayLike]:
        """The least and the largest value of all channels."""
        assert found.lowest is not None
        assert found.highest is not None
        if found.lowest.min() == found.highest.max():
            warn(
                f"{self.title}: its input is {found.lowest.min():g} throughout: what new data "
                f"have beside that is divided by eps={self.eps:g}",
                DataWarning,
            )
        return {"minimum": found.lowest.min(), "maximum": found.highest.max()}

    def affine(self) -> Affine | None:
        """One scale and one offset of all channels."""
        low, high = (self.fitted(name) for name in ("minimum", "maximum"))
        scale = 1 / max(float(high - low), self.eps)
        assert self.num_channels is not None
        return Affine.scaling(scale, -low * scale, self.num_channels)

    def transform(self, x: Any) -> Any:
        """The normalized pixels."""
        if self.use_running_stats:
            low, high = self.minimum, self.maximum
        else:
            dims = _spatial(x, "MinMaxNormalizer")
            low, high = x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)
        return (x - low) / (high - low).clamp(min=self.eps)


class ZScoreNormalizerGlobal(StatisticalNode):
    """``(x - mean) / (std + eps)`` by channel, of the training data.

    Parameters
    ----------
    num_channels : int, optional
        Of the cubes; by default what the first one has.
    eps : float
        Added to the standard deviation.

    Attributes
    ----------
    mean, std : Parameter (channels)
        The standard deviation is that of a sample, divided by ``n - 1``.

    Notes
    -----
    ``(..., channels)`` in and out.
    """

    needs = "variance"
    is_affine = is_per_channel = True

    def __init__(self, num_channels: int | None = None, eps: float = 1e-8) -> None:
        super().__init__(num_channels)
        self.eps = not_negative("ZScoreNormalizerGlobal", "eps", eps)
        self.declare("mean", "std")

    def shapes(self, n_channels: int) -> Mapping[str, tuple[int, ...]]:
        """One of each channel."""
        return {"mean": (n_channels,), "std": (n_channels,)}

    def fit(self, found: Statistics) -> Mapping[str, npt.ArrayLike]:
        """Mean and standard deviation."""
        constant = np.flatnonzero(found.std == 0)
        if len(constant):
            warn(
                f"{self.title}: {counted(len(constant), 'channel')} of its input "
                f"{'is' if len(constant) == 1 else 'are'} constant, the first {constant[0]}: what "
                f"new data have there is divided by eps={self.eps:g}",
                DataWarning,
            )
        return {"mean": found.mean, "std": found.std}

    def affine(self) -> Affine | None:
        """A scale and an offset of each channel."""
        mean, std = self.fitted("mean"), self.fitted("std")
        return Affine.scaling(1 / (std + self.eps), -mean / (std + self.eps), len(mean))

    def transform(self, x: Any) -> Any:
        """The normalized pixels."""
        return (x - self.mean) / (self.std + self.eps)


class ZScoreNormalizer(PixelNode):
    """``(x - mean) / (std + eps)`` by image and channel; nothing is fitted.

    Parameters
    ----------
    eps : float
        Added to the standard deviation.

    Notes
    -----
    ``(batch, ..., channels)`` in and out.
    """

    def __init__(self, eps: float = 1e-8) -> None:
        super().__init__()
        self.eps = not_negative("ZScoreNormalizer", "eps", eps)

    def transform(self, x: Any) -> Any:
        """The normalized pixels."""
        dims = _spatial(x, "ZScoreNormalizer")
        return (x - x.mean(dims, keepdim=True)) / (x.std(dims, keepdim=True) + self.eps)


class SigmoidNormalizer(PixelNode):
    """``sigmoid((x - median) / (std + eps))`` by image and channel; nothing is fitted.

    Of an even number of pixels the median is the lower of the two in the middle, as torch.median's.

    Parameters
    ----------
    eps : float
        Added to the standard deviation.

    Notes
    -----
    ``(batch, ..., channels)`` in and out, between 0 and 1.
    """

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = not_negative("SigmoidNormalizer", "eps", eps)

    def transform(self, x: Any) -> Any:
        """The normalized pixels."""
        dims = _spatial(x, "SigmoidNormalizer")
        flat = x.reshape(x.shape[0], -1, x.shape[-1])
        shape = (x.shape[0], *(1 for _ in dims), x.shape[-1])
        middle = flat.median(1).values.reshape(shape)
        return sigmoid((x - middle) / (x.std(dims, keepdim=True) + self.eps))


class PerPixelUnitNorm(PixelNode):
    """``x / max(||x||, eps)``: the spectrum of each pixel with norm 1.

    Parameters
    ----------
    eps : float
        The least that is divided by.

    Notes
    -----
    ``(..., channels)`` in and out.
    """

    def __init__(self, eps: float = 1e-8) -> None:
        super().__init__()
        self.eps = not_negative("PerPixelUnitNorm", "eps", eps)

    def transform(self, x: Any) -> Any:
        """The normalized pixels."""
        return x / (x * x).sum(-1, keepdim=True).sqrt().clamp(min=self.eps)


class BandpassByWavelength(PixelNode):
    """The channels between two wavelengths.

    Parameters
    ----------
    wavelengths : sequence of float
        Of the cubes' channels, ascending, in nanometres.
    low, high : float
        The ends, which belong to it, in nanometres; by default the first or last channel.

    Attributes
    ----------
    wavelengths : float64 array (channels,)
    channels : slice
        Of the cube.

    Notes
    -----
    ``(..., channels)`` in, ``(..., channels between)`` out.
    """

    def __init__(
        self, wavelengths: Sequence[float], low: float | None = None, high: float | None = None
    ) -> None:
        super().__init__()
        waves = np.asarray(wavelengths, np.float64)
        name = "BandpassByWavelength"
        if waves.ndim != 1 or not len(waves) or not (np.diff(waves) > 0).all():
            raise ConfigError(
                f"{name}: wavelengths must be ascending numbers, one for each channel, got "
                f"{waves.tolist()!r:.80}"
            )
        inside = np.flatnonzero(
            (waves >= (-np.inf if low is None else low))
            & (waves <= (np.inf if high is None else high))
        )
        if not len(inside):
            raise ConfigError(
                f"{name}: some channel must lie between low={low!r} and high={high!r}, got "
                f"wavelengths from {waves[0]:g} to {waves[-1]:g}"
            )
        self.channels = slice(int(inside[0]), int(inside[-1]) + 1)
        self.wavelengths = waves

    def transform(self, x: Any) -> Any:
        """The channels between.

        Raises
        ------
        ShapeError
            For another number of channels than there are wavelengths.
        """
        if x.shape[-1] != len(self.wavelengths):
            raise ShapeError(
                f"BandpassByWavelength has {len(self.wavelengths)} wavelengths, got a cube with "
                f"{x.shape[-1]} channels (shape {x.shape})"
            )
        return x[..., self.channels]

    def extra_repr(self) -> str:
        """The channels."""
        return f"{self.channels.start}:{self.channels.stop} of {len(self.wavelengths)}"
