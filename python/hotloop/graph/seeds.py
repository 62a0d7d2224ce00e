"""Random numbers outside of ``forward``: the global seed, and draws from the core's generator.

Parameters draw by (seed, qualified name) and know nothing of each other's order. Arrays made by
``hl.rand`` and the like have no name: each call since ``hl.manual_seed`` is a stream of its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hotloop.base.memory import allocating
from hotloop.base.scalars import plain
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    *("DEFAULT_SEED", "initial_seed", "manual_seed", "next_stream", "normal", "permutation"),
    *("seed_or", "uniform"),
]

DEFAULT_SEED = 42


class _State:
    """The global seed and the number of streams taken from it."""

    seed: int | None = None
    n_streams: int = 0


def manual_seed(seed: int) -> None:
    """Sets the seed of initial weights and of arrays made outside ``forward``.

    Parameters
    ----------
    seed : int
        From 0 to 2**63 - 1. Without a call, weights take the configuration's seed, else 42.

    Raises
    ------
    ConfigError
        If it is no such integer.

    Examples
    --------
    >>> hl.manual_seed(1)
    >>> first = hl.rand(3)
    >>> hl.manual_seed(1)
    >>> bool((hl.rand(3) == first).all())
    True
    """
    seed = plain(seed)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ConfigError(f"manual_seed: must be an integer from 0 to 2**63 - 1, got {seed!r}")
    _State.seed = seed
    _State.n_streams = 0


def initial_seed() -> int:
    """The seed that is in force.

    Returns
    -------
    int
        :func:`manual_seed`'s, else 42.
    """
    return DEFAULT_SEED if _State.seed is None else _State.seed


def seed_or(default: int | None) -> int:
    """:func:`manual_seed`'s seed, else ``default``, else 42."""
    if _State.seed is not None:
        return _State.seed
    return DEFAULT_SEED if default is None else default


def next_stream(kind: str) -> str:
    """A stream's name that no call had since the seed was set."""
    _State.n_streams += 1
    return f"array.{kind}.{_State.n_streams}"


def uniform(shape: tuple[int, ...], low: float, high: float) -> npt.NDArray[Any]:
    """Uniform float64 numbers from the next stream."""
    from hotloop import _core

    seed, stream = initial_seed(), next_stream("uniform")
    with allocating("uniform numbers", shape):
        return _core.random_uniform(seed, stream, math.prod(shape), low, high).reshape(shape)


def normal(shape: tuple[int, ...], mean: float, std: float) -> npt.NDArray[Any]:
    """Normal float64 numbers from the next stream."""
    from hotloop import _core

    seed, stream = initial_seed(), next_stream("normal")
    with allocating("normal numbers", shape):
        return _core.random_normal(seed, stream, math.prod(shape), mean, std).reshape(shape)


def permutation(n: int) -> npt.NDArray[Any]:
    """0 .. n - 1 in an order from the next stream."""
    from hotloop import _core

    with allocating("randperm", (n,)):
        return _core.permutation(initial_seed(), next_stream("permutation"), 0, n)
