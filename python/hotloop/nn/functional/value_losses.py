"""Losses against values, distributions and distances."""

from __future__ import annotations

import math
from collections.abc import Callable

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import elementary, pointwise
from hotloop.graph import reduction as reducing
from hotloop.graph.build import Operand, is_number, lift, lift_float, unify
from hotloop.graph.pointwise import clamp, where
from hotloop.graph.symbolic import Tensor
from hotloop.nn.functional.arguments import NonNegative, Order, Positive, make_functions
from hotloop.nn.functional.deprecated import with_deprecated
from hotloop.nn.functional.distances import pairwise_distance
from hotloop.nn.functional.reductions import check_reduction, reduced, same_shape

__all__ = [
    "cosine_embedding_loss", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div",
    "l1_loss", "margin_ranking_loss", "mse_loss", "poisson_nll_loss", "smooth_l1_loss",
    "triplet_margin_loss", "triplet_margin_with_distance_loss",
]  # fmt: skip


def _weighted(what: str, per: Tensor, weight: Operand | None, reduction: str) -> Tensor:
    """Mean by the sum of the weights, which have the losses' shape."""
    if weight is None:
        return reduced(per, reduction)
    w = lift(weight, what=what)
    if w.shape != per.shape:
        raise ShapeError(f"{what}: weight must have shape {per.shape}, got {w.shape}")
    return reduced(per * w, reduction, reducing.sum(w))


@with_deprecated
def mse_loss(
    input: Operand,
    target: Operand,
    *,
    reduction: str = "mean",
    weight: Operand | None = None,
) -> Tensor:
    """Mean squared error, ``(x - y)²``.

    Parameters
    ----------
    input, target : Tensor
        Predictions and values, of one shape.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements, with weights by their sum.
    weight : Tensor, optional
        Of each element, in the input's shape.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses in the input's shape.

    Raises
    ------
    ShapeError
        If the shapes differ: they are never broadcast to one another.
    """
    check_reduction("mse_loss", reduction)
    x, y = same_shape("mse_loss", input, target)
    return _weighted("mse_loss", pointwise.square(x - y), weight, reduction)


@with_deprecated
def l1_loss(
    input: Operand,
    target: Operand,
    *,
    reduction: str = "mean",
    weight: Operand | None = None,
) -> Tensor:
    """Mean absolute error, ``|x - y|``.

    Parameters
    ----------
    input, target : Tensor
        Predictions and values, of one shape.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements, with weights by their sum.
    weight : Tensor, optional
        Of each element, in the input's shape.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses in the input's shape.

    Raises
    ------
    ShapeError
        If the shapes differ: they are never broadcast to one another.
    """
    check_reduction("l1_loss", reduction)
    x, y = same_shape("l1_loss", input, target)
    return _weighted("l1_loss", pointwise.abs(x - y), weight, reduction)


@with_deprecated
def smooth_l1_loss(
    input: Operand,
    target: Operand,
    *,
    reduction: str = "mean",
    beta: NonNegative = 1.0,
) -> Tensor:
    """``(x - y)² / (2 beta)`` within beta of 0, ``|x - y| - beta / 2`` beyond (Girshick 2015).

    Parameters
    ----------
    input, target : Tensor
        Predictions and values, of one shape.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.
    beta : float
        Where the square ends; 0 is :func:`l1_loss`.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses in the input's shape.

    Raises
    ------
    ConfigError
        If beta is negative.
    ShapeError
        If the shapes differ: they are never broadcast to one another.
    """
    check_reduction("smooth_l1_loss", reduction)
    x, y = same_shape("smooth_l1_loss", input, target)
    size = pointwise.abs(x - y)
    if beta == 0:
        return reduced(size, reduction)
    per = where(size < beta, size * size * (0.5 / beta), size - 0.5 * beta)
    return reduced(per, reduction)


def huber_loss(
    input: Operand,
    target: Operand,
    reduction: str = "mean",
    delta: Positive = 1.0,
    weight: Operand | None = None,
) -> Tensor:
    """``(x - y)² / 2`` within delta of 0, ``delta (|x - y| - delta / 2)`` beyond (Huber 1964).

    Parameters
    ----------
    input, target : Tensor
        Predictions and values, of one shape.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements, with weights too, as in torch.
    delta : float
        Where the square ends.
    weight : Tensor, optional
        Of each element, in the input's shape.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses in the input's shape.

    Raises
    ------
    ConfigError
        If delta is not positive.
    ShapeError
        If the shapes differ, the weight's too.
    """
    check_reduction("huber_loss", reduction)
    x, y = same_shape("huber_loss", input, target)
    size = pointwise.abs(x - y)
    per = where(size < delta, size * size * 0.5, (size - 0.5 * delta) * delta)
    if weight is not None:
        w = lift(weight, what="huber_loss")
        if w.shape != per.shape:
            raise ShapeError(f"huber_loss: weight must have shape {per.shape}, got {w.shape}")
        per = per * w
    return reduced(per, reduction)


@with_deprecated
def kl_div(
    input: Operand,
    target: Operand,
    *,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """Kullback-Leibler divergence, ``y (log y - x)``, x being log probabilities.

    Parameters
    ----------
    input, target : Tensor
        Log probabilities, and probabilities (with ``log_target`` their logarithms), of one shape.
    reduction : {"mean", "batchmean", "sum", "none"}
        "mean" divides by the number of elements, "batchmean" by the rows: the divergence per row.
    log_target : bool
        Whether the target holds logarithms.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses in the input's shape.

    Raises
    ------
    ShapeError
        If the shapes differ: they are never broadcast to one another.
    """
    check_reduction("kl_div", reduction, ("batchmean",))
    x, y = same_shape("kl_div", input, target)
    per = elementary.exp(y) * (y - x) if log_target else elementary.xlogy(y, y) - y * x
    if reduction == "batchmean":
        return reduced(per, "mean", x.shape[0] if x.ndim else 1)
    return reduced(per, reduction)


@with_deprecated
def hinge_embedding_loss(
    input: Operand,
    target: Operand,
    margin: float = 1.0,
    *,
    reduction: str = "mean",
) -> Tensor:
    """``x`` where y is 1, ``max(0, margin - x)`` where it is -1.

    Parameters
    ----------
    input : Tensor
        Distances, any shape.
    target : Tensor
        1 for pairs that belong together, else -1; the input's shape.
    margin : float
        Distance that pairs which do not belong together shall have at least.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses in the input's shape.

    Raises
    ------
    ShapeError
        If the shapes differ: they are never broadcast to one another.
    """
    check_reduction("hinge_embedding_loss", reduction)
    x, y = same_shape("hinge_embedding_loss", input, target)
    far = where(y != 1, clamp(margin - x, min=0.0), 0.0)
    near = where(y != -1, x, 0.0)
    return reduced(far + near, reduction)


@with_deprecated
def margin_ranking_loss(
    input1: Operand,
    input2: Operand,
    target: Operand,
    margin: float = 0.0,
    *,
    reduction: str = "mean",
) -> Tensor:
    """``max(0, -y (x1 - x2) + margin)``.

    Parameters
    ----------
    input1, input2 : Tensor
        Scores, of one shape.
    target : Tensor
        1 where the first shall rank higher, -1 where the second shall; the same shape.
    margin : float
        What the higher one is to be ahead by.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses in the input's shape.

    Raises
    ------
    ShapeError
        If the shapes differ: they are never broadcast to one another.
    """
    check_reduction("margin_ranking_loss", reduction)
    a, b = same_shape("margin_ranking_loss", input1, input2)
    a, y = same_shape("margin_ranking_loss", a, target)
    return reduced(clamp(-y * (a - b) + margin, min=0.0), reduction)


@with_deprecated
def cosine_embedding_loss(
    input1: Operand,
    input2: Operand,
    target: Operand,
    margin: float = 0.0,
    *,
    reduction: str = "mean",
) -> Tensor:
    """``1 - cos(x1, x2)`` where y is 1, ``max(0, cos - margin)`` where it is -1.

    Parameters
    ----------
    input1, input2 : Tensor
        ``(N, D)`` or ``(D,)``.
    target : Tensor
        1 or -1, ``(N,)`` or ``()``.
    margin : float
        Cosine that pairs which do not belong together shall stay below.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses in the target's shape.

    Raises
    ------
    ShapeError
        If the inputs differ in shape or the target is not one number per row.
    """
    check_reduction("cosine_embedding_loss", reduction)
    a, b = same_shape("cosine_embedding_loss", input1, input2)
    y = lift(target, what="cosine_embedding_loss")
    if a.ndim not in (1, 2) or y.shape != a.shape[:-1]:
        raise ShapeError(
            f"cosine_embedding_loss: inputs (N, D) need a target (N,), got {a.shape} and {y.shape}"
        )
    tiny = 1e-12  # torch's, added to both squares
    squares = [reducing.sum(pointwise.square(v), -1) + tiny for v in (a, b)]
    cosine = reducing.sum(a * b, -1) / pointwise.sqrt(squares[0] * squares[1])
    near = where(y == 1, 1.0 - cosine, 0.0)
    far = where(y == -1, clamp(cosine - margin, min=0.0), 0.0)
    return reduced(near + far, reduction)


@with_deprecated
def triplet_margin_loss(
    anchor: Operand,
    positive: Operand,
    negative: Operand,
    margin: Positive = 1.0,
    p: Order = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    *,
    reduction: str = "mean",
) -> Tensor:
    """``max(0, d(anchor, positive) - d(anchor, negative) + margin)`` (Balntas et al. 2016).

    Parameters
    ----------
    anchor, positive, negative : Tensor
        ``(N, D)`` or ``(D,)``.
    margin : float
        What the negative is to be farther by.
    p, eps : float
        Of :func:`pairwise_distance`.
    swap : bool
        Whether the nearer of anchor and positive counts for the negative.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses ``(N,)``.

    Raises
    ------
    ConfigError
        If the margin is not positive.
    ShapeError
        If the numbers of dims differ.
    """
    check_reduction("triplet_margin_loss", reduction)
    return _triplet(
        *(anchor, positive, negative),
        lambda a, b: pairwise_distance(a, b, p, eps),
        *(margin, swap, reduction),
    )


def triplet_margin_with_distance_loss(
    anchor: Operand,
    positive: Operand,
    negative: Operand,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: Positive = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """As :func:`triplet_margin_loss` with a distance of one's own.

    Parameters
    ----------
    anchor, positive, negative : Tensor
        ``(N, D)`` or ``(D,)``.
    distance_function : callable, optional
        Two tensors to one, ``(N,)``; :func:`pairwise_distance` by default.
    margin : float
        What the negative is to be farther by.
    swap : bool
        Whether the nearer of anchor and positive counts for the negative.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses ``(N,)``.

    Raises
    ------
    ConfigError
        If the margin is not positive.
    ShapeError
        If the numbers of dims differ.
    """
    check_reduction("triplet_margin_with_distance_loss", reduction)
    distance = distance_function or pairwise_distance
    return _triplet(anchor, positive, negative, distance, margin, swap, reduction)


def _triplet(
    anchor: Operand,
    positive: Operand,
    negative: Operand,
    distance: Callable[[Tensor, Tensor], Tensor],
    margin: float,
    swap: bool,
    reduction: str,
) -> Tensor:
    a, b, c = unify(anchor, positive, negative, what="triplet_margin_loss")
    if not a.ndim == b.ndim == c.ndim:
        raise ShapeError(
            "triplet_margin_loss: anchor, positive and negative must have the same number of "
            f"dims, got shapes {a.shape}, {b.shape} and {c.shape}"
        )
    near, far = distance(a, b), distance(a, c)
    if swap:
        far = pointwise.minimum(far, distance(b, c))
    return reduced(clamp(margin + near - far, min=0.0), reduction)


@with_deprecated
def poisson_nll_loss(
    input: Operand,
    target: Operand,
    log_input: bool = True,
    full: bool = False,
    *,
    eps: NonNegative = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """Negative log likelihood of counts, ``e**x - y x``, x being the log rate.

    Parameters
    ----------
    input, target : Tensor
        Log rates (see ``log_input``) and counts, of one shape.
    log_input : bool
        False: the input is the rate itself, and the loss ``x - y log(x + eps)``.
    full : bool
        Adds Stirling's approximation of ``log(y!)`` where y > 1.
    eps : float
        Keeps the logarithm of a rate of 0 finite.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses in the input's shape.

    Raises
    ------
    ShapeError
        If the shapes differ: they are never broadcast to one another.
    """
    check_reduction("poisson_nll_loss", reduction)
    x, y = same_shape("poisson_nll_loss", input, target)
    per = elementary.exp(x) - y * x if log_input else x - y * elementary.log(x + eps)
    if full:
        large = y > 1
        safe = where(large, y, 2.0)
        stirling = safe * elementary.log(safe) - safe + elementary.log(safe * (2 * math.pi)) * 0.5
        per = per + where(large, stirling, 0.0)
    return reduced(per, reduction)


def gaussian_nll_loss(
    input: Operand,
    target: Operand,
    var: Operand,
    full: bool = False,
    eps: NonNegative = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Negative log likelihood, ``(log var + (x - y)² / var) / 2`` (Nix and Weigend 1994).

    Parameters
    ----------
    input, target : Tensor
        Mean and observation, of one shape.
    var : Tensor or float
        The variance: of the same shape, without the last dim, or with one dim of size 1.
    full : bool
        Adds the constant ``log(2π) / 2``.
    eps : float
        The least variance; the gradient passes as if it were not limited, as in torch.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses in the input's shape.

    Raises
    ------
    ConfigError
        If a number as variance is negative.
    ShapeError
        If the shapes do not fit.
    """
    check_reduction("gaussian_nll_loss", reduction)
    x, y = same_shape("gaussian_nll_loss", input, target)
    if is_number(var):
        if var < 0:  # type: ignore[operator]
            raise ConfigError(f"gaussian_nll_loss: var must not be negative, got {var}")
        v = x.new_full(x.shape, var)  # type: ignore[arg-type]
    else:
        v = lift_float(var, "gaussian_nll_loss")
    if v.shape != x.shape:
        if v.shape == x.shape[:-1]:
            v = v.unsqueeze(-1)
        elif not (v.ndim == x.ndim and all(a in (1, b) for a, b in zip(v.shape, x.shape))):
            raise ShapeError(
                f"gaussian_nll_loss: var must fit the input's shape {x.shape}, got {v.shape}"
            )
    v = v + (clamp(v, min=eps) - v).detach()
    per = (elementary.log(v) + pointwise.square(x - y) / v) * 0.5
    if full:
        per = per + 0.5 * math.log(2 * math.pi)
    return reduced(per, reduction)


make_functions(globals(), __all__)
