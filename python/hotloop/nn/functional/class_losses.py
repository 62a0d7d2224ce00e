"""Losses against classes: cross-entropy and its relatives, margins over classes."""

from __future__ import annotations

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import dtypes, elementary, indexing, pointwise, views
from hotloop.graph import reduction as reducing
from hotloop.graph.build import (
    Operand,
    add_node,
    add_nodes,
    cast,
    lift,
    lift_float,
    not_integers,
)
from hotloop.graph.pointwise import where
from hotloop.graph.symbolic import Tensor
from hotloop.nn.functional.arguments import Power, Probability, make_functions
from hotloop.nn.functional.deprecated import with_deprecated
from hotloop.nn.functional.reductions import check_reduction, reduced, same_shape

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy",
    "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss",
    "soft_margin_loss",
]  # fmt: skip


def _classes_last(x: Tensor) -> Tensor:
    """(N, C, d...) as (N * d..., C); (C,) as (1, C)."""
    if x.ndim == 1:
        return x.reshape(1, -1)
    return x if x.ndim == 2 else x.movedim(1, -1).reshape(-1, x.shape[1])


def _class_axis(x: Tensor) -> int:
    return 0 if x.ndim == 1 else 1


def _check_classes(what: str, x: Tensor, target: Tensor) -> tuple[int, ...]:
    """The targets' shape: the input's without its classes."""
    if not x.ndim:
        raise ShapeError(f"{what}: input must be (C,), (N, C) or (N, C, ...), got a scalar")
    axis = _class_axis(x)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    if target.shape != shape:
        hint = "; use target.squeeze(-1)" if target.shape == (*shape, 1) else ""
        if target.shape == x.shape[:-1]:
            hint = (
                "; its classes seem to stand last: write input.movedim(-1, 1), or "
                "loss='cross_entropy', which takes both"
            )
        raise ShapeError(
            f"{what}: class targets must have shape {shape} for input of shape {x.shape}, got "
            f"{target.shape}{hint}"
        )
    if target.dtype.is_floating_point:
        raise ConfigError(
            f"{what}: class targets must be integers, {not_integers(target)}, or give "
            f"probabilities of shape {x.shape}"
        )
    return shape


def _check_weight(what: str, x: Tensor, weight: Operand | None) -> Tensor | None:
    if weight is None:
        return None
    w = cast(lift(weight, what=what), x.dtype)
    n_classes = x.shape[_class_axis(x)]
    if w.shape != (n_classes,):
        raise ShapeError(f"{what}: weight must have shape ({n_classes},), got {w.shape}")
    return w


@with_deprecated
def cross_entropy(
    input: Operand,
    target: Operand,
    weight: Operand | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: Probability = 0.0,
) -> Tensor:
    """Cross-entropy of logits, ``-log softmax(x)[target]``.

    Parameters
    ----------
    input : Tensor
        Logits ``(C,)``, ``(N, C)`` or ``(N, C, ...)``.
    target : Tensor
        Class numbers without the dim C, or probabilities in the input's shape.
    weight : Tensor, optional
        One per class, ``(C,)``.
    ignore_index : int
        Targets of this value count nothing.
    reduction : {"mean", "sum", "none"}
        The mean divides by the sum of the targets' weights (probabilities: by their number).
    label_smoothing : float
        The share spread over all classes (Szegedy et al. 2016).

    Returns
    -------
    Tensor
        A scalar; with "none" the losses in the targets' shape.

    Raises
    ------
    ShapeError
        If targets or weight do not have the shape that the input asks for.
    ConfigError
        If class targets are no integers, label_smoothing is not in [0, 1], or there is an
        ignore_index from 0 on beside probabilities.
    """
    check_reduction("cross_entropy", reduction)
    x, y = lift_float(input, "cross_entropy"), lift(target, what="cross_entropy")
    w = _check_weight("cross_entropy", x, weight)
    if y.dtype.is_floating_point and y.shape == x.shape:
        if ignore_index >= 0:
            raise ConfigError(
                "cross_entropy: ignore_index goes with class numbers, and the targets are "
                f"probabilities, got ignore_index={ignore_index}; give rows that are to count "
                "nothing a sample_weight of 0"
            )
        return _soft_cross_entropy(x, y, w, reduction, label_smoothing)
    shape = _check_classes("cross_entropy", x, y)
    inputs = [_classes_last(x), y.reshape(-1)] + ([] if w is None else [w])
    per, weights = add_nodes(
        "cross_entropy",
        *inputs,
        label_smoothing=float(label_smoothing),
        ignore_index=int(ignore_index),
    )
    if reduction == "none":
        return per.reshape(shape)
    total = reducing.sum(weights)
    if reduction == "mean":  # of all outputs that have these targets the same
        data = tuple(t.id_in(x.trace) for t in ([y] if w is None else [y, w]))
        total = x.trace.denominator((x.dtype, ignore_index, label_smoothing, *data), total)
    return reduced(per, reduction, total)


def _soft_cross_entropy(
    x: Tensor, y: Tensor, w: Tensor | None, reduction: str, label_smoothing: Probability
) -> Tensor:
    axis = _class_axis(x)
    if label_smoothing:
        y = y * (1.0 - label_smoothing) + label_smoothing / x.shape[axis]
    logs = reducing.log_softmax(x, axis)
    terms = -(cast(y, x.dtype) * logs)
    if w is not None:
        terms = terms * w.reshape(-1, *(1,) * (x.ndim - axis - 1))
    return reduced(reducing.sum(terms, axis), reduction)


@with_deprecated
def nll_loss(
    input: Operand,
    target: Operand,
    weight: Operand | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Negative log likelihood, ``-x[target]``, x being log probabilities.

    Parameters
    ----------
    input : Tensor
        Log probabilities ``(C,)``, ``(N, C)`` or ``(N, C, ...)``.
    target : Tensor
        Class numbers without the dim C.
    weight : Tensor, optional
        One per class, ``(C,)``.
    ignore_index : int
        Targets of this value count nothing.
    reduction : {"mean", "sum", "none"}
        The mean divides by the sum of the targets' weights.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses in the targets' shape.

    Raises
    ------
    ShapeError
        If targets or weight do not have the shape that the input asks for.
    ConfigError
        If class targets are no integers.
    """
    check_reduction("nll_loss", reduction)
    x, y = lift_float(input, "nll_loss"), lift(target, what="nll_loss")
    w = _check_weight("nll_loss", x, weight)
    shape = _check_classes("nll_loss", x, y)
    flat = y.reshape(-1)
    counts = flat != ignore_index
    safe = where(counts, flat, 0)
    picked = indexing.gather(_classes_last(x), 1, safe.unsqueeze(1)).squeeze(1)
    weights = cast(counts, x.dtype)
    if w is not None:
        weights = where(counts, add_node("index_select", w, safe, axis=0), 0.0)
    per = where(counts, -picked * weights, 0.0)
    if reduction == "none":
        return per.reshape(shape)
    return reduced(per, reduction, reducing.sum(weights))


@with_deprecated
def binary_cross_entropy(
    input: Operand,
    target: Operand,
    weight: Operand | None = None,
    *,
    reduction: str = "mean",
) -> Tensor:
    """``-(y log x + (1 - y) log(1 - x))``, x being probabilities; the logarithms are at least -100.

    Parameters
    ----------
    input, target : Tensor
        Of one shape, from 0 to 1.
    weight : Tensor, optional
        Of each element, broadcast.
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
    check_reduction("binary_cross_entropy", reduction)
    x, y = same_shape("binary_cross_entropy", input, target)
    fixed = x.detach()
    hit = pointwise.clamp(elementary.log(fixed), min=-100.0)
    miss = pointwise.clamp(elementary.log(1.0 - fixed), min=-100.0)
    # torch's gradient, finite at 0 and 1, where that of the clamped logarithm is 0 times infinity:
    # the added term is 0 and carries it.
    slope = (fixed - y.detach()) / pointwise.clamp(fixed * (1.0 - fixed), min=1e-12)
    per = (y - 1.0) * miss - y * hit + (x - fixed) * slope
    return reduced(per if weight is None else per * weight, reduction)


@with_deprecated
def binary_cross_entropy_with_logits(
    input: Operand,
    target: Operand,
    weight: Operand | None = None,
    *,
    reduction: str = "mean",
    pos_weight: Operand | None = None,
) -> Tensor:
    """Binary cross-entropy of ``sigmoid(x)``, without overflow.

    Parameters
    ----------
    input, target : Tensor
        Logits and targets from 0 to 1, of one shape.
    weight : Tensor, optional
        Of each element, broadcast.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of elements.
    pos_weight : Tensor, optional
        Of the positive part, broadcast: one per class, ``(C,)``.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses in the input's shape.

    Raises
    ------
    ShapeError
        If the shapes differ: they are never broadcast to one another.
    """
    check_reduction("binary_cross_entropy_with_logits", reduction)
    x, y = same_shape("binary_cross_entropy_with_logits", input, target)
    softplus = add_node("softplus", -x)  # -log sigmoid(x); that of 1 - sigmoid adds x
    if pos_weight is None:
        per = (1.0 - y) * x + softplus
    else:
        factor = (lift(pos_weight, what="pos_weight") - 1.0) * y + 1.0
        per = (1.0 - y) * x + factor * softplus
    return reduced(per if weight is None else per * weight, reduction)


@with_deprecated
def soft_margin_loss(
    input: Operand,
    target: Operand,
    *,
    reduction: str = "mean",
) -> Tensor:
    """``log(1 + e**(-y x))``.

    Parameters
    ----------
    input : Tensor
        Scores, any shape.
    target : Tensor
        -1 or 1, in the same shape.
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
    check_reduction("soft_margin_loss", reduction)
    x, y = same_shape("soft_margin_loss", input, target)
    return reduced(add_node("softplus", -y * x), reduction)


@with_deprecated
def multilabel_soft_margin_loss(
    input: Operand,
    target: Operand,
    weight: Operand | None = None,
    *,
    reduction: str = "mean",
) -> Tensor:
    """Binary cross-entropy of logits, its mean over the classes taken first.

    Parameters
    ----------
    input, target : Tensor
        Logits and 0 or 1, ``(..., C)``.
    weight : Tensor, optional
        One per class, ``(C,)``.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of rows.

    Returns
    -------
    Tensor
        A scalar; with "none" one loss per row.

    Raises
    ------
    ShapeError
        If the shapes differ: they are never broadcast to one another.
    """
    check_reduction("multilabel_soft_margin_loss", reduction)
    x, y = same_shape("multilabel_soft_margin_loss", input, target)
    per = (1.0 - y) * x + add_node("softplus", -x)
    per = per if weight is None else per * weight
    return reduced(reducing.sum(per, -1) / x.shape[-1], reduction)


def _rows_of_classes(what: str, input: Operand) -> tuple[Tensor, bool]:
    """(N, C) from (C,) or (N, C), and whether there was no N."""
    x = lift_float(input, what)
    if x.ndim not in (1, 2):
        raise ShapeError(f"{what}: input must be (C,) or (N, C), got shape {x.shape}")
    return (x.reshape(1, -1), True) if x.ndim == 1 else (x, False)


@with_deprecated
def multi_margin_loss(
    input: Operand,
    target: Operand,
    p: Power = 1,
    margin: float = 1.0,
    weight: Operand | None = None,
    *,
    reduction: str = "mean",
) -> Tensor:
    """``sum over j ≠ y of max(0, margin - x[y] + x[j])**p / C``, times the class's weight.

    Parameters
    ----------
    input : Tensor
        Scores ``(C,)`` or ``(N, C)``.
    target : Tensor of integers
        ``()`` or ``(N,)``.
    p : {1, 2}
        The power.
    margin : float
        What the right class is to be ahead by.
    weight : Tensor, optional
        One per class; inside the power, as in torch.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of rows.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses ``(N,)``.

    Raises
    ------
    ConfigError
        If p is neither 1 nor 2.
    ShapeError
        If the shapes do not fit.
    """
    check_reduction("multi_margin_loss", reduction)
    x, single = _rows_of_classes("multi_margin_loss", input)
    y = lift(target, what="multi_margin_loss")
    y = y.reshape(1) if single and y.ndim == 0 else y
    _check_classes("multi_margin_loss", x, y)
    n_classes = x.shape[1]
    right = indexing.gather(x, 1, y.unsqueeze(1))
    gap = pointwise.clamp(margin - right + x, min=0.0)
    gap = gap * gap if p == 2 else gap
    w = _check_weight("multi_margin_loss", x, weight)
    if w is not None:
        gap = gap * add_node("index_select", w, y, axis=0).unsqueeze(1)
    others = where(indexing.one_hot(y, n_classes) > 0, 0.0, gap)
    per = reducing.sum(others, 1) / n_classes
    return reduced(per.reshape(()) if single else per, reduction)


@with_deprecated
def multilabel_margin_loss(
    input: Operand,
    target: Operand,
    *,
    reduction: str = "mean",
) -> Tensor:
    """``sum over targets j, others i of max(0, 1 - x[j] + x[i]) / C``.

    Parameters
    ----------
    input : Tensor
        Scores ``(C,)`` or ``(N, C)``.
    target : Tensor of integers
        The same shape: the target classes first, then -1.
    reduction : {"mean", "sum", "none"}
        "mean" divides by the number of rows.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses ``(N,)``.

    Raises
    ------
    ShapeError
        If the shapes differ.
    """
    check_reduction("multilabel_margin_loss", reduction)
    x, single = _rows_of_classes("multilabel_margin_loss", input)
    y = cast(lift(target, what="multilabel_margin_loss"), dtypes.int64)
    y = y.reshape(1, -1) if single and y.ndim == 1 else y
    if y.shape != x.shape:
        raise ShapeError(
            f"multilabel_margin_loss: target must have the input's shape {x.shape}, got {y.shape}"
        )
    ended = reducing.cumsum(cast(y < 0, dtypes.int64), 1)
    listed = ended == 0
    safe = where(listed, y, 0)
    zeros = views.expand(x.trace.number(x.dtype, 0.0), x.shape)
    is_target = indexing.scatter_add(zeros, 1, safe, cast(listed, x.dtype)) > 0
    scores = indexing.gather(x, 1, safe)
    gaps = pointwise.clamp(1.0 - scores.unsqueeze(2) + x.unsqueeze(1), min=0.0)
    pairs = listed.unsqueeze(2) & ~is_target.unsqueeze(1)
    per = reducing.sum(where(pairs, gaps, 0.0), (1, 2)) / x.shape[1]
    return reduced(per.reshape(()) if single else per, reduction)


make_functions(globals(), __all__)
