"""What the inputs of cases are filled with. All floats are float32 values held in float64."""

import numpy as np
from ops.harness import Array, Fill, single

# Around the widths of vectors (4, 8, 16, 32, 64 lanes), and one that threads share.
SIZES = (1, 3, 7, 15, 16, 17, 31, 33, 63, 65, 1003)
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 3e38, -3e38, 0.5, 2.0, 1e4]


def normal(*shape: int) -> Fill:
    """Standard normal."""
    return lambda rng: single(rng.standard_normal(shape))


def uniform(low: float, high: float, *shape: int) -> Fill:
    """Uniform in [low, high)."""
    return lambda rng: single(rng.uniform(low, high, shape))


def apart(*shape: int, gap: float = 0.03, offset: float = 0.011) -> Fill:
    """In random order, of both signs, no two nearer than ``gap``, none nearer to 0 than offset."""

    def fill(rng: np.random.Generator) -> Array:
        n = int(np.prod(shape))
        grid = (np.arange(n) - n // 2) * gap + offset
        return single(rng.permutation(grid).reshape(shape))

    return fill


def whole(low: int, high: int, *shape: int) -> Fill:
    """Integer-valued floats in [low, high]: sums and products of a few are exact."""
    return lambda rng: rng.integers(low, high, shape, endpoint=True).astype(np.float64)


def ints(low: int, high: int, *shape: int, dtype: str = "int64") -> Fill:
    """Integers in [low, high]."""
    return lambda rng: rng.integers(low, high, shape, endpoint=True).astype(dtype)


def bits(*shape: int) -> Fill:
    """Random bools."""
    return lambda rng: rng.integers(0, 2, shape).astype(np.bool_)


def given(values: object, dtype: str = "float64") -> Fill:
    """These values."""
    array = np.asarray(values, dtype)
    return lambda rng: single(array) if array.dtype.kind == "f" else array.copy()


def sprinkled(fill: Fill, values: object, every: int = 5) -> Fill:
    """Another fill with special values at every so many places."""

    def filled(rng: np.random.Generator) -> Array:
        array = fill(rng)
        flat = array.reshape(-1)
        chosen = np.asarray(values, np.float64)
        places = np.arange(0, flat.size, every)
        flat[places] = chosen[np.arange(places.size) % chosen.size]
        return single(array)

    return filled


def pairs(values: object) -> tuple[Fill, Fill]:
    """Two inputs that meet in every combination of the values."""
    array = np.asarray(values, np.float64)
    a, b = np.meshgrid(array, array)
    return given(a.ravel()), given(b.ravel())
