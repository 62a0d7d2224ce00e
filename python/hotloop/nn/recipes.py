"""How initial values are made: a scheme and its numbers, drawn when first needed.

A parameter keeps its recipe, so that equal scripts give equal weights however and in whatever
order they ask for them: the numbers come from (seed, qualified name) alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    *("Array", "Constant", "Dirac", "Eye", "Normal", "Orthogonal", "Recipe", "Sparse"),
    *("TruncNormal", "Uniform", "Values"),
]

Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int, ...]


class Recipe(Protocol):
    """A scheme for initial values."""

    def draw(self, shape: Shape, seed: int, stream: str) -> Array:
        """The values; the same for the same arguments."""


@dataclass(frozen=True)
class Constant:
    """One number everywhere."""

    value: float

    def draw(self, shape: Shape, seed: int, stream: str) -> Array:
        """See :class:`Recipe`."""
        return np.full(shape, self.value, np.float32)


@dataclass(frozen=True, eq=False)
class Values:
    """Given numbers, which are never written to."""

    array: Array

    def draw(self, shape: Shape, seed: int, stream: str) -> Array:
        """See :class:`Recipe`."""
        return self.array


@dataclass(frozen=True)
class Uniform:
    """Uniform on ``[low, high)``."""

    low: float
    high: float

    def draw(self, shape: Shape, seed: int, stream: str) -> Array:
        """See :class:`Recipe`."""
        from hotloop import _core

        return _core.random_uniform(seed, stream, math.prod(shape), self.low, self.high).reshape(
            shape
        )


@dataclass(frozen=True)
class Normal:
    """Normal of a mean and standard deviation."""

    mean: float
    std: float

    def draw(self, shape: Shape, seed: int, stream: str) -> Array:
        """See :class:`Recipe`."""
        from hotloop import _core

        return _core.random_normal(seed, stream, math.prod(shape), self.mean, self.std).reshape(
            shape
        )


@dataclass(frozen=True)
class TruncNormal:
    """Normal, values outside ``[low, high]`` drawn again."""

    mean: float
    std: float
    low: float
    high: float

    def draw(self, shape: Shape, seed: int, stream: str) -> Array:
        """See :class:`Recipe`."""
        from hotloop import _core

        n = math.prod(shape)
        drawn = _core.random_trunc_normal(seed, stream, n, self.mean, self.std, self.low, self.high)
        return drawn.reshape(shape)


@dataclass(frozen=True)
class Eye:
    """Ones on a matrix's diagonal."""

    def draw(self, shape: Shape, seed: int, stream: str) -> Array:
        """See :class:`Recipe`."""
        return np.eye(*shape, dtype=np.float32)


@dataclass(frozen=True)
class Dirac:
    """A convolution's kernel that passes its input on, in each of ``groups``."""

    groups: int

    def draw(self, shape: Shape, seed: int, stream: str) -> Array:
        """See :class:`Recipe`."""
        values = np.zeros(shape, np.float32)
        per_group = shape[0] // self.groups
        centre = tuple(size // 2 for size in shape[2:])
        for group in range(self.groups):
            for d in range(min(per_group, shape[1])):
                values[(group * per_group + d, d, *centre)] = 1.0
        return values


@dataclass(frozen=True)
class Orthogonal:
    """Rows or columns orthonormal, times a gain (Saxe et al. 2014)."""

    gain: float

    def draw(self, shape: Shape, seed: int, stream: str) -> Array:
        """See :class:`Recipe`."""
        rows, cols = shape[0], math.prod(shape[1:])
        normal = Normal(0.0, 1.0).draw((rows, cols), seed, stream)
        q, r = np.linalg.qr(normal.T if rows < cols else normal)
        q = q * np.sign(np.diag(r))  # else the distribution is not uniform
        return (self.gain * (q.T if rows < cols else q)).reshape(shape)


@dataclass(frozen=True)
class Sparse:
    """Normal with a share of zeros in each column (Martens 2010)."""

    sparsity: float
    std: float

    def draw(self, shape: Shape, seed: int, stream: str) -> Array:
        """See :class:`Recipe`."""
        values = Normal(0.0, self.std).draw(shape, seed, stream).copy()
        n_zeros = math.ceil(self.sparsity * shape[0])
        order = np.argsort(Uniform(0.0, 1.0).draw(shape, seed, f"{stream}.zeros"), axis=0)
        np.put_along_axis(values, order[:n_zeros], 0.0, axis=0)
        return values
