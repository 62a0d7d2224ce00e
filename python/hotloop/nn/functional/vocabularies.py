"""Losses over very many classes."""

from __future__ import annotations

from typing import Any

from hotloop.base.messages import warn
from hotloop.errors import ConfigError, ModelWarning, ShapeError
from hotloop.graph.build import Operand, lift, lift_float
from hotloop.graph.symbolic import Tensor
from hotloop.nn.functional.arguments import Probability, make_functions
from hotloop.nn.functional.chunks import LinearCrossEntropyOptions, cross_entropy_in_chunks
from hotloop.nn.functional.class_losses import cross_entropy
from hotloop.nn.functional.linears import linear
from hotloop.nn.functional.reductions import check_reduction

__all__ = ["linear_cross_entropy"]


def linear_cross_entropy(
    input: Operand,
    linear_weight: Operand,
    target: Operand,
    *,
    linear_bias: Operand | None = None,
    weight: Operand | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: Probability = 0.0,
    options: Any = None,
) -> Tensor:
    """Cross-entropy of the logits that a linear map makes of the input.

    Parameters
    ----------
    input : Tensor
        ``(in_features,)`` or ``(N, in_features)``.
    linear_weight : Tensor
        ``(C, in_features)``, or ``(C, d1, ..., in_features)`` for logits ``(N, C, d1, ...)``.
    target : Tensor
        Class numbers ``(N, d1, ...)``, or probabilities ``(N, C, d1, ...)``; of one row without N.
    linear_bias : Tensor, optional
        ``(C, d1, ...)``.
    weight : Tensor, optional
        One per class, ``(C,)``.
    reduction : {"mean", "sum", "none"}
        As of :func:`cross_entropy`.
    ignore_index : int, optional
        Targets of this value count nothing; -100 by default.
    label_smoothing : float
        The share spread over all classes, in [0, 1].
    options : LinearCrossEntropyOptions, optional
        Chunks of rows, of which one's logits are in memory at a time. None: those of all rows are.
        With ``reduction="none"`` they are too, which warns.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses in the targets' shape.

    Raises
    ------
    ShapeError
        If the shapes do not fit.
    ConfigError
        As of :func:`cross_entropy`, or if options are no LinearCrossEntropyOptions.
    """
    what = "linear_cross_entropy"
    if not isinstance(options, LinearCrossEntropyOptions | None):
        raise ConfigError(f"{what}: options must be LinearCrossEntropyOptions, got {options!r}")
    x, w = lift_float(input, what), lift_float(linear_weight, what)
    if w.ndim < 2 or x.ndim not in (1, 2) or x.shape[-1] != w.shape[-1]:
        raise ShapeError(
            f"{what}: must be input (N, in_features) and weight (C, ..., in_features), got "
            f"{x.shape} and {w.shape}"
        )
    if x.ndim == 1 and w.ndim > 2:
        raise ShapeError(f"{what}: a weight of more than 2 dims needs input (N, in_features)")
    sizes = w.shape[:-1]
    bias = None if linear_bias is None else lift_float(linear_bias, what)
    if bias is not None and bias.shape != sizes:
        raise ShapeError(f"{what}: linear_bias must have shape {sizes}, got {bias.shape}")
    flat = w.reshape(-1, w.shape[-1])
    flat_bias = None if bias is None else bias.reshape(-1)
    ignored = -100 if ignore_index is None else ignore_index
    check_reduction(what, reduction)
    if options is not None and reduction == "none":
        warn(
            f"{what}: with reduction='none' options do nothing, and the logits of all rows are in "
            "memory; 'mean' and 'sum' are computed in chunks",
            ModelWarning,
        )
    elif options is not None and x.ndim == 2 and x.shape[0]:
        return _in_chunks(options, x, flat, flat_bias, target, weight, sizes, {
            "reduction": reduction, "ignore_index": ignored, "label_smoothing": label_smoothing,
        })  # fmt: skip
    logits = linear(x, flat, flat_bias)
    if w.ndim > 2:
        logits = logits.reshape(x.shape[0], *sizes)
    return cross_entropy(
        logits,
        target,
        weight,
        ignore_index=ignored,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def _in_chunks(
    options: LinearCrossEntropyOptions,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    target: Operand,
    weight: Operand | None,
    sizes: tuple[int, ...],
    settings: dict[str, Any],
) -> Tensor:
    y = lift(target, what="linear_cross_entropy")
    n = x.shape[0]
    if y.shape not in ((n, *sizes), (n, *sizes[1:])):
        raise ShapeError(
            f"linear_cross_entropy: targets must be classes {(n, *sizes[1:])} or probabilities "
            f"{(n, *sizes)}, got shape {y.shape}"
        )
    c = None if weight is None else lift_float(weight, "linear_cross_entropy")
    rows = options.rows(n, x.shape[1], w.shape[0])
    return cross_entropy_in_chunks(rows, x, w, bias, y, c, sizes=sizes, **settings)


make_functions(globals(), __all__)
