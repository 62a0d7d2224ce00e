"""Dropout: masks by hotloop's counter-based generator, never stored.

Each call has a stream of its own (module path and count), so the same model draws the same masks
for a sample whatever the batch size, the number of threads or of micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hotloop.errors import ShapeError
from hotloop.graph import pointwise
from hotloop.graph.build import Operand, cast, lift_float
from hotloop.graph.creation import drawn
from hotloop.graph.symbolic import Tensor
from hotloop.graph.views import reshape
from hotloop.nn.functional.arguments import Probability, make_functions

__all__ = [
    "alpha_dropout", "drop_path", "dropout", "dropout1d", "dropout2d", "dropout3d",
    "feature_alpha_dropout",
]  # fmt: skip


def _mask(shape: Sequence[int], p: float, kind: str) -> Tensor:
    """0 with probability p, else 1 / (1 - p)."""
    return drawn("dropout_mask", shape, kind, p=float(p))


def _without_numbers(x: Tensor, p: float, training: bool) -> Tensor | None:
    """The result where it takes no random number, else None."""
    if not training or p == 0.0:
        return x
    return x * 0.0 if p == 1.0 else None


def dropout(
    input: Operand, p: Probability = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """In training: each element 0 with probability p, else times ``1 / (1 - p)``.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    p : float
        Probability of 0, in [0, 1]; met to within 2**-16.
    training : bool
        False: the input is returned as it is.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ConfigError
        If p is not in [0, 1].

    Notes
    -----
    Srivastava et al. 2014. The mask is a function of seed, step, sample and element: the same
    at any number of threads and in any micro-batch.
    """
    x = lift_float(input, "dropout")
    known = _without_numbers(x, p, training)
    if known is not None:
        return known
    return x * cast(_mask(x.shape, p, "dropout"), x.dtype)


def dropout1d(
    input: Operand, p: Probability = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """In training: whole channels 0 with probability p, else times ``1 / (1 - p)``.

    Parameters
    ----------
    input : Tensor
        ``(N, C, L)``, or of one sample ``(C, L)``.
    p : float
        Probability of 0, in [0, 1]; met to within 2**-16.
    training : bool
        False: the input is returned as it is.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ConfigError
        If p is not in [0, 1].
    ShapeError
        If the input has neither 2 nor 3 dims.
    """
    return _dropout_channels("dropout1d", input, p, training, {2: "(C, L)", 3: "(N, C, L)"})


def dropout2d(
    input: Operand, p: Probability = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """In training: whole channels 0 with probability p, else times ``1 / (1 - p)``.

    Parameters
    ----------
    input : Tensor
        ``(N, C, H, W)``, or as in torch ``(N, C, L)``.
    p : float
        Probability of 0, in [0, 1]; met to within 2**-16.
    training : bool
        False: the input is returned as it is.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ConfigError
        If p is not in [0, 1].
    ShapeError
        If the input has neither 3 nor 4 dims.
    """
    shapes = {3: "(N, C, L)", 4: "(N, C, H, W)"}
    return _dropout_channels("dropout2d", input, p, training, shapes)


def dropout3d(
    input: Operand, p: Probability = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """In training: whole channels 0 with probability p, else times ``1 / (1 - p)``.

    Parameters
    ----------
    input : Tensor
        ``(N, C, D, H, W)``, or of one sample ``(C, D, H, W)``.
    p : float
        Probability of 0, in [0, 1]; met to within 2**-16.
    training : bool
        False: the input is returned as it is.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ConfigError
        If p is not in [0, 1].
    ShapeError
        If the input has neither 4 nor 5 dims.
    """
    shapes = {4: "(C, D, H, W)", 5: "(N, C, D, H, W)"}
    return _dropout_channels("dropout3d", input, p, training, shapes)


def _dropout_channels(
    what: str, input: Operand, p: float, training: bool, shapes: dict[int, str]
) -> Tensor:
    """``shapes``: what the input may be, by its number of dims."""
    x = lift_float(input, what)
    if x.ndim not in shapes:
        raise ShapeError(
            f"{what}: input must be {' or '.join(reversed(shapes.values()))}, got shape {x.shape}"
        )
    known = _without_numbers(x, p, training)
    if known is not None:
        return known
    sample = shapes[x.ndim].startswith("(C")
    drawn = (1, x.shape[0]) if sample else x.shape[:2]
    ones = (1,) * (x.ndim - (1 if sample else 2))
    mask = reshape(_mask((*drawn, *ones), p, what), (*drawn[1 if sample else 0 :], *ones))
    return x * cast(mask, x.dtype)


def alpha_dropout(
    input: Operand, p: Probability = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Dropout that keeps SELU's mean and variance (Klambauer et al. 2017).

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    p : float
        Probability of SELU's negative limit, in [0, 1]; met to within 2**-16.
    training : bool
        False: the input is returned as it is.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ConfigError
        If p is not in [0, 1].
    """
    x = lift_float(input, "alpha_dropout")
    return _alpha_dropout("alpha_dropout", x, x.shape, p, training)


def feature_alpha_dropout(
    input: Operand, p: Probability = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    """Alpha dropout of whole channels: SELU's mean and variance stay (Klambauer et al. 2017).

    Parameters
    ----------
    input : Tensor
        ``(N, C, ...)``.
    p : float
        Probability of SELU's negative limit, in [0, 1]; met to within 2**-16.
    training : bool
        False: the input is returned as it is.
    inplace : bool
        Taken for torch's sake: values never change.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ConfigError
        If p is not in [0, 1].
    ShapeError
        If the input has fewer than 2 dims.
    """
    what = "feature_alpha_dropout"
    x = lift_float(input, what)
    if x.ndim < 2:
        raise ShapeError(f"{what}: input must be (N, C, ...), got shape {x.shape}")
    return _alpha_dropout(what, x, (*x.shape[:2], *(1,) * (x.ndim - 2)), p, training)


def _alpha_dropout(
    what: str, x: Tensor, drawn_shape: Sequence[int], p: float, training: bool
) -> Tensor:
    known = _without_numbers(x, p, training)
    if known is not None:
        return known
    alpha = -1.7580993408473766
    a = 1.0 / math.sqrt((1.0 - p) * (1.0 + p * alpha * alpha))
    b = -a * alpha * p
    kept = _mask(drawn_shape, p, what) > 0
    return pointwise.where(kept, x, alpha) * a + b


def drop_path(
    input: Operand, drop_prob: Probability = 0.0, training: bool = False, scale_by_keep: bool = True
) -> Tensor:
    """In training: whole samples 0 with a probability (stochastic depth, Huang et al. 2016).

    Parameters
    ----------
    input : Tensor
        ``(N, ...)``: what a residual branch gives.
    drop_prob : float
        Probability of 0, in [0, 1]; met to within 2**-16.
    training : bool
        False: the input is returned as it is.
    scale_by_keep : bool
        Whether samples that stay are times ``1 / (1 - drop_prob)``.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ConfigError
        If drop_prob is not in [0, 1].
    ShapeError
        If the input has no dims.
    """
    x = lift_float(input, "drop_path")
    if x.ndim < 1:
        raise ShapeError("drop_path: input must be (N, ...), got a scalar")
    known = _without_numbers(x, drop_prob, training)
    if known is not None:
        return known
    mask = _mask((x.shape[0], *(1,) * (x.ndim - 1)), drop_prob, "drop_path")
    return x * cast(mask if scale_by_keep else mask > 0, x.dtype)


make_functions(globals(), __all__)
