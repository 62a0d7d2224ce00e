"""Initialisation schemes: those of torch.nn.init.

On a parameter they set the recipe of its initial value, drawn when it is first needed from
(seed, qualified name). On a NumPy array they draw at once, from ``hl.manual_seed``'s seed.
Both hand back what they were given. ``generator`` is not taken: seeds are hotloop's own.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from hotloop.base.suggest import did_you_mean
from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import seeds
from hotloop.nn import recipes
from hotloop.nn.parameter import Variable
from hotloop.nn.recipes import Recipe

__all__ = [
    *("calculate_gain", "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_"),
    *("normal_", "ones_", "orthogonal_", "sparse_", "trunc_normal_", "uniform_"),
    *("xavier_normal_", "xavier_uniform_", "zeros_"),
]

T = TypeVar("T")


def _set(target: T, recipe: Recipe, what: str) -> T:
    if isinstance(target, Variable):
        target.set_recipe(recipe)
    elif isinstance(target, np.ndarray):
        target[...] = recipe.draw(target.shape, seeds.initial_seed(), seeds.next_stream(what))
    else:
        raise ConfigError(
            f"{what}: must be given a parameter, buffer or array, got {type(target).__name__}"
        )
    return target


def _shape(target: object, what: str, least: int, most: int = 8) -> tuple[int, ...]:
    shape: tuple[int, ...] = tuple(getattr(target, "shape", ()))
    if not least <= len(shape) <= most:
        rule = f"{least}" if least == most else f"{least} to {most}"
        raise ShapeError(f"{what}: must have {rule} dims, got shape {shape}")
    return shape


def _fans(target: object, what: str) -> tuple[int, int]:
    """Inputs and outputs of a unit: a weight is (out, in, *kernel)."""
    shape = _shape(target, what, 2)
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps the variance through a nonlinearity, by torch's table.

    Parameters
    ----------
    nonlinearity : str
        "linear", "conv1d" ..., "sigmoid", "tanh", "relu", "leaky_relu" or "selu".
    param : float, optional
        leaky_relu's negative slope, 0.01 by default.

    Returns
    -------
    float
        1 for what is linear, ``√2`` for relu, ``5 / 3`` for tanh.

    Raises
    ------
    ConfigError
        For an unknown nonlinearity.
    """
    slope = 0.01 if param is None else param
    gains = {
        **dict.fromkeys(("linear", "sigmoid"), 1.0),
        **{f"conv{t}{d}d": 1.0 for t in ("", "_transpose") for d in (1, 2, 3)},
        "tanh": 5.0 / 3.0,
        "relu": math.sqrt(2.0),
        "selu": 0.75,
        "leaky_relu": math.sqrt(2.0 / (1.0 + slope**2)),
    }
    if nonlinearity not in gains:
        raise ConfigError(
            f"nonlinearity: must be one of {', '.join(gains)}, got {nonlinearity!r}"
            f"{did_you_mean(nonlinearity, gains)}"
        )
    return gains[nonlinearity]


def uniform_(tensor: T, a: float = 0.0, b: float = 1.0) -> T:
    """Uniform numbers.

    Parameters
    ----------
    tensor : Parameter, Buffer or array
        Any shape.
    a, b : float
        From a to below b.

    Returns
    -------
    Parameter, Buffer or array
        What was given.
    """
    return _set(tensor, recipes.Uniform(a, b), "uniform_")


def normal_(tensor: T, mean: float = 0.0, std: float = 1.0) -> T:
    """Normal numbers.

    Parameters
    ----------
    tensor : Parameter, Buffer or array
        Any shape.
    mean, std : float
        Mean and standard deviation.

    Returns
    -------
    Parameter, Buffer or array
        What was given.
    """
    return _set(tensor, recipes.Normal(mean, std), "normal_")


def trunc_normal_(
    tensor: T, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> T:
    """Normal numbers; those outside of an interval are drawn again.

    Parameters
    ----------
    tensor : Parameter, Buffer or array
        Any shape.
    mean, std : float
        Mean and standard deviation of the whole normal distribution.
    a, b : float
        The interval, both ends in it.

    Returns
    -------
    Parameter, Buffer or array
        What was given.

    Raises
    ------
    ConfigError
        If a is not below b.
    """
    if not a < b:
        raise ConfigError(f"trunc_normal_: a must be below b, got {a} and {b}")
    return _set(tensor, recipes.TruncNormal(mean, std, a, b), "trunc_normal_")


def constant_(tensor: T, val: float) -> T:
    """One number everywhere.

    Parameters
    ----------
    tensor : Parameter, Buffer or array
        Any shape.
    val : float
        The number.

    Returns
    -------
    Parameter, Buffer or array
        What was given.
    """
    return _set(tensor, recipes.Constant(float(val)), "constant_")


def ones_(tensor: T) -> T:
    """Ones everywhere.

    Parameters
    ----------
    tensor : Parameter, Buffer or array
        Any shape.

    Returns
    -------
    Parameter, Buffer or array
        What was given.
    """
    return _set(tensor, recipes.Constant(1.0), "ones_")


def zeros_(tensor: T) -> T:
    """Zeros everywhere.

    Parameters
    ----------
    tensor : Parameter, Buffer or array
        Any shape.

    Returns
    -------
    Parameter, Buffer or array
        What was given.
    """
    return _set(tensor, recipes.Constant(0.0), "zeros_")


def eye_(tensor: T) -> T:
    """Ones on the diagonal, else zeros.

    Parameters
    ----------
    tensor : Parameter, Buffer or array
        A matrix ``(n, m)``.

    Returns
    -------
    Parameter, Buffer or array
        What was given.
    """
    _shape(tensor, "eye_", 2, 2)
    return _set(tensor, recipes.Eye(), "eye_")


def dirac_(tensor: T, groups: int = 1) -> T:
    """A convolution's weight that passes channels on.

    Parameters
    ----------
    tensor : Parameter, Buffer or array
        ``(out, in, *kernel)``.
    groups : int
        Groups of channels, each of which is passed on.

    Returns
    -------
    Parameter, Buffer or array
        What was given.

    Raises
    ------
    ConfigError
        If groups does not divide dim 0.
    ShapeError
        If there are fewer than 3 or more than 5 dims.
    """
    shape = _shape(tensor, "dirac_", 3, 5)
    if groups < 1 or shape[0] % groups:
        raise ConfigError(f"dirac_: groups must divide dim 0, {shape[0]}, got {groups}")
    return _set(tensor, recipes.Dirac(groups), "dirac_")


def xavier_uniform_(tensor: T, gain: float = 1.0) -> T:
    """Uniform numbers of variance ``gain² · 2 / (fan_in + fan_out)`` (Glorot and Bengio 2010).

    Parameters
    ----------
    tensor : Parameter, Buffer or array
        ``(out, in)`` or ``(out, in, *kernel)``.
    gain : float
        Factor of the standard deviation; see :func:`calculate_gain`.

    Returns
    -------
    Parameter, Buffer or array
        What was given.
    """
    bound = math.sqrt(3.0) * _xavier_std(tensor, gain, "xavier_uniform_")
    return _set(tensor, recipes.Uniform(-bound, bound), "xavier_uniform_")


def xavier_normal_(tensor: T, gain: float = 1.0) -> T:
    """Normal numbers of variance ``gain² · 2 / (fan_in + fan_out)`` (Glorot and Bengio 2010).

    Parameters
    ----------
    tensor : Parameter, Buffer or array
        ``(out, in)`` or ``(out, in, *kernel)``.
    gain : float
        Factor of the standard deviation; see :func:`calculate_gain`.

    Returns
    -------
    Parameter, Buffer or array
        What was given.
    """
    std = _xavier_std(tensor, gain, "xavier_normal_")
    return _set(tensor, recipes.Normal(0.0, std), "xavier_normal_")


def _xavier_std(tensor: object, gain: float, what: str) -> float:
    fan_in, fan_out = _fans(tensor, what)
    return gain * math.sqrt(2.0 / max(fan_in + fan_out, 1))


def _kaiming_std(tensor: object, a: float, mode: str, nonlinearity: str, what: str) -> float:
    fans = dict(zip(("fan_in", "fan_out"), _fans(tensor, what)))
    if mode.lower() not in fans:
        raise ConfigError(f'{what}: mode must be "fan_in" or "fan_out", got {mode!r}')
    return calculate_gain(nonlinearity, a) / math.sqrt(max(fans[mode.lower()], 1))


def kaiming_uniform_(
    tensor: T, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> T:
    """Uniform numbers of variance ``gain² / fan`` (He et al. 2015).

    Parameters
    ----------
    tensor : Parameter, Buffer or array
        ``(out, in)`` or ``(out, in, *kernel)``.
    a : float
        leaky_relu's negative slope.
    mode : {"fan_in", "fan_out"}
        "fan_in" keeps the variance forward, "fan_out" backward.
    nonlinearity : str
        What follows the layer; see :func:`calculate_gain`.

    Returns
    -------
    Parameter, Buffer or array
        What was given.

    Raises
    ------
    ConfigError
        For an unknown mode or nonlinearity.
    """
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity, "kaiming_uniform_")
    return _set(tensor, recipes.Uniform(-bound, bound), "kaiming_uniform_")


def kaiming_normal_(
    tensor: T, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> T:
    """Normal numbers of variance ``gain² / fan`` (He et al. 2015).

    Parameters
    ----------
    tensor : Parameter, Buffer or array
        ``(out, in)`` or ``(out, in, *kernel)``.
    a : float
        leaky_relu's negative slope.
    mode : {"fan_in", "fan_out"}
        "fan_in" keeps the variance forward, "fan_out" backward.
    nonlinearity : str
        What follows the layer; see :func:`calculate_gain`.

    Returns
    -------
    Parameter, Buffer or array
        What was given.

    Raises
    ------
    ConfigError
        For an unknown mode or nonlinearity.
    """
    std = _kaiming_std(tensor, a, mode, nonlinearity, "kaiming_normal_")
    return _set(tensor, recipes.Normal(0.0, std), "kaiming_normal_")


def orthogonal_(tensor: T, gain: float = 1.0) -> T:
    """Orthonormal rows, or columns if those are fewer, times a gain (Saxe et al. 2014).

    Parameters
    ----------
    tensor : Parameter, Buffer or array
        At least 2 dims; all but the first count as columns.
    gain : float
        The factor.

    Returns
    -------
    Parameter, Buffer or array
        What was given.
    """
    _shape(tensor, "orthogonal_", 2)
    return _set(tensor, recipes.Orthogonal(gain), "orthogonal_")


def sparse_(tensor: T, sparsity: float, std: float = 0.01) -> T:
    """Normal numbers, a share of each column zero (Martens 2010).

    Parameters
    ----------
    tensor : Parameter, Buffer or array
        A matrix ``(n, m)``.
    sparsity : float
        The share, in [0, 1].
    std : float
        Standard deviation of the others.

    Returns
    -------
    Parameter, Buffer or array
        What was given.

    Raises
    ------
    ConfigError
        If sparsity is not in [0, 1].
    """
    _shape(tensor, "sparse_", 2, 2)
    if not 0.0 <= sparsity <= 1.0:
        raise ConfigError(f"sparse_: sparsity must lie in [0, 1], got {sparsity}")
    return _set(tensor, recipes.Sparse(sparsity, std), "sparse_")
