"""Activations whose names end in ``_``, which in torch change their argument.

Here a tensor in ``forward`` never changes: the function gives the new one, and its argument cannot
be used again, so that a call whose result is dropped is an error and not a layer without its
activation. An array outside of ``forward`` is changed, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hotloop.errors import ConfigError
from hotloop.graph.build import is_tensor
from hotloop.nn.functional import activations
from hotloop.nn.functional.arguments import NonZero, Real

__all__ = [
    "celu_", "elu_", "hardtanh_", "leaky_relu_", "relu_", "rrelu_", "selu_", "threshold_",
]  # fmt: skip


def _replaced(function: Callable[..., Any], x: Any, *settings: Any) -> Any:
    name = f"{function.__name__}_"
    if is_tensor(x):
        made = function(x, *settings)
        x.give_up(f"F.{name}", f"x = F.{name}(x)")
        return made
    is_array = isinstance(x, np.ndarray) and x.dtype.kind == "f"
    if not is_array or not x.flags.writeable:
        kind = f"a read-only one of {x.dtype}" if is_array else type(x).__name__
        raise ConfigError(
            f"{name}: must be given a tensor, or an array of floats to write to, got {kind}; use "
            f"{function.__name__}"
        )
    x[...] = function(x, *settings)
    return x


def celu_(input: Any, alpha: NonZero = 1.0) -> Any:
    """:func:`celu` in place of its argument.

    Parameters
    ----------
    input : Tensor or array
        Any shape. An array of floats is changed; a tensor cannot be used afterwards.
    alpha : float
        As of :func:`celu`.

    Returns
    -------
    Tensor or array
        The new tensor; of an array, itself.

    Raises
    ------
    ConfigError
        For an array that cannot be written to, or is none of floats.
    TraceError
        Where the argument is used afterwards.
    """
    return _replaced(activations.celu, input, alpha)


def elu_(input: Any, alpha: float = 1.0) -> Any:
    """:func:`elu` in place of its argument.

    Parameters
    ----------
    input : Tensor or array
        Any shape. An array of floats is changed; a tensor cannot be used afterwards.
    alpha : float
        As of :func:`elu`.

    Returns
    -------
    Tensor or array
        The new tensor; of an array, itself.

    Raises
    ------
    ConfigError
        For an array that cannot be written to, or is none of floats.
    TraceError
        Where the argument is used afterwards.
    """
    return _replaced(activations.elu, input, alpha)


def hardtanh_(input: Any, min_val: Real = -1.0, max_val: Real = 1.0) -> Any:
    """:func:`hardtanh` in place of its argument.

    Parameters
    ----------
    input : Tensor or array
        Any shape. An array of floats is changed; a tensor cannot be used afterwards.
    min_val, max_val : float
        As of :func:`hardtanh`.

    Returns
    -------
    Tensor or array
        The new tensor; of an array, itself.

    Raises
    ------
    ConfigError
        For an array that cannot be written to, or is none of floats.
    TraceError
        Where the argument is used afterwards.
    """
    return _replaced(activations.hardtanh, input, min_val, max_val)


def leaky_relu_(input: Any, negative_slope: float = 0.01) -> Any:
    """:func:`leaky_relu` in place of its argument.

    Parameters
    ----------
    input : Tensor or array
        Any shape. An array of floats is changed; a tensor cannot be used afterwards.
    negative_slope : float
        As of :func:`leaky_relu`.

    Returns
    -------
    Tensor or array
        The new tensor; of an array, itself.

    Raises
    ------
    ConfigError
        For an array that cannot be written to, or is none of floats.
    TraceError
        Where the argument is used afterwards.
    """
    return _replaced(activations.leaky_relu, input, negative_slope)


def relu_(input: Any) -> Any:
    """:func:`relu` in place of its argument.

    Parameters
    ----------
    input : Tensor or array
        Any shape. An array of floats is changed; a tensor cannot be used afterwards.

    Returns
    -------
    Tensor or array
        The new tensor; of an array, itself.

    Raises
    ------
    ConfigError
        For an array that cannot be written to, or is none of floats.
    TraceError
        Where the argument is used afterwards.
    """
    return _replaced(activations.relu, input)


def rrelu_(
    input: Any, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False
) -> Any:
    """:func:`rrelu` in place of its argument.

    Parameters
    ----------
    input : Tensor or array
        Any shape. An array of floats is changed; a tensor cannot be used afterwards.
    lower : float
        As of :func:`rrelu`.
    upper : float
        As of :func:`rrelu`.
    training : bool
        As of :func:`rrelu`.

    Returns
    -------
    Tensor or array
        The new tensor; of an array, itself.

    Raises
    ------
    ConfigError
        For an array that cannot be written to, or is none of floats.
    TraceError
        Where the argument is used afterwards.
    """
    return _replaced(activations.rrelu, input, lower, upper, training)


def selu_(input: Any) -> Any:
    """:func:`selu` in place of its argument.

    Parameters
    ----------
    input : Tensor or array
        Any shape. An array of floats is changed; a tensor cannot be used afterwards.

    Returns
    -------
    Tensor or array
        The new tensor; of an array, itself.

    Raises
    ------
    ConfigError
        For an array that cannot be written to, or is none of floats.
    TraceError
        Where the argument is used afterwards.
    """
    return _replaced(activations.selu, input)


def threshold_(input: Any, threshold: Real, value: Real) -> Any:
    """:func:`threshold` in place of its argument.

    Parameters
    ----------
    input : Tensor or array
        Any shape. An array of floats is changed; a tensor cannot be used afterwards.
    threshold, value : float
        As of :func:`threshold`.

    Returns
    -------
    Tensor or array
        The new tensor; of an array, itself.

    Raises
    ------
    ConfigError
        For an array that cannot be written to, or is none of floats.
    TraceError
        Where the argument is used afterwards.
    """
    return _replaced(activations.threshold, input, threshold, value)
