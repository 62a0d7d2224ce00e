"""Statistics of a stream of pixels, in float64, and what affine maps make of them.

Mean and covariance of ``A x + b`` follow from those of x, so that nodes which follow one another by
affine maps need one pass over the data. The least and the largest value follow where each output is
of one input.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from hotloop.errors import DataError, HotloopError

__all__ = ["Affine", "Statistics"]

_Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Affine:
    """``matrix @ x + offset`` of each pixel x.

    Attributes
    ----------
    matrix : array (D, C) of float64
    offset : array (D,) of float64
    """

    matrix: _Array
    offset: _Array

    @classmethod
    def scaling(cls, scale: npt.ArrayLike, offset: npt.ArrayLike, n_channels: int) -> Affine:
        """``scale * x + offset``, of numbers or of one for each channel."""
        return cls(
            np.diag(np.broadcast_to(np.asarray(scale, np.float64), n_channels)),
            np.broadcast_to(np.asarray(offset, np.float64), n_channels).copy(),
        )

    def after(self, first: Affine) -> Affine:
        """This one of what ``first`` gives."""
        return Affine(self.matrix @ first.matrix, self.matrix @ first.offset + self.offset)

    @property
    def is_per_channel(self) -> bool:
        """Whether each output is of one channel."""
        return bool((np.count_nonzero(self.matrix, axis=1) <= 1).all())


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What is known of all pixels that a node was given.

    Attributes
    ----------
    count : int
        Pixels.
    lowest, highest : array (C,) of float64 or None
        None: not known, behind a map that mixes channels.
    mean : array (C,) of float64
    spread : array (C, C) or (C,) of float64, or None
        The covariance, or the variances alone, divided by ``count - 1``. None: not known, as
        variances are behind a map that mixes channels.
    """

    count: int
    lowest: _Array | None
    highest: _Array | None
    mean: _Array
    spread: _Array | None

    @classmethod
    def of_sums(
        cls, count: float, lowest: _Array, highest: _Array, sums: _Array, products: _Array,
        shift: _Array,
    ) -> Statistics:  # fmt: skip
        """From sums of what was shifted by about the mean, which keeps them small.

        Parameters
        ----------
        count : float
        lowest, highest : array (C,)
        sums : array (C,)
            Of ``x - shift``.
        products : array (C, C) or (C,)
            Of ``(x - shift) (x - shift)^T``, or its diagonal.
        shift : array (C,)
        """
        of_means = sums * sums if products.ndim == 1 else np.outer(sums, sums)
        spread = (products - of_means / count) / max(count - 1, 1)
        return cls(int(count), lowest, highest, shift + sums / count, spread)

    @property
    def covariance(self) -> _Array:
        """Of the channels, (C, C); divided by ``count - 1``.

        Raises
        ------
        HotloopError
            If the node did not ask for it.
        """
        if self.spread is None or self.spread.ndim == 1:
            raise _not_asked("covariance")
        return self.spread

    @property
    def variance(self) -> _Array:
        """Of each channel, (C,); divided by ``count - 1``.

        Raises
        ------
        HotloopError
            If the node did not ask for it.
        """
        if self.spread is None:
            raise _not_asked("variance")
        return np.maximum(np.diag(self.spread) if self.spread.ndim == 2 else self.spread, 0.0)

    @property
    def std(self) -> _Array:
        """The square root of the variance, (C,)."""
        return np.sqrt(self.variance)

    def check_finite(self, name: str) -> None:
        """Refuses statistics of NaN and infinity.

        Raises
        ------
        DataError
            With the first channel that has some; ``name`` is the node's.
        """
        bad = np.flatnonzero(~np.isfinite(self.mean))
        if len(bad):
            raise DataError(
                f"{name}: statistics of its input must be finite, got NaN or infinity in "
                f"{len(bad)} of {len(self.mean)} channels, the first {bad[0]}; leave such pixels "
                "out by a mask (the entry 'mask' of a batch's x), or mend them"
            )

    def through(self, affine: Affine) -> Statistics:
        """The statistics of what the map makes of the pixels."""
        matrix, offset = affine.matrix, affine.offset
        spread = self.spread
        if spread is not None and spread.ndim == 2:
            spread = matrix @ spread @ matrix.T
            spread = (spread + spread.T) / 2
        elif spread is not None:
            spread = matrix**2 @ spread if affine.is_per_channel else None
        low, high = self.lowest, self.highest
        if low is None or high is None or not affine.is_per_channel:
            low = high = None
        else:
            # With one factor that is not 0 in each row.
            least = np.where(matrix > 0, matrix * low, matrix * high).sum(1) + offset
            most = np.where(matrix > 0, matrix * high, matrix * low).sum(1) + offset
            low, high = least, most
        return Statistics(self.count, low, high, matrix @ self.mean + offset, spread)


def _not_asked(name: str) -> HotloopError:
    return HotloopError(
        f"statistics: the {name} is known to nodes that ask for it, write needs = {name!r} in the "
        "class"
    )
