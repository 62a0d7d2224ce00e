"""What a loss is made of: sums and denominators that divide once, by the window's total.

A mean over a batch is not the mean over a window of micro-batches of different sizes, class
weights or ignored rows. So a library loss carries its terms: (sum, denominator, weight). Multiples
and sums of losses keep them; any other operation drops them, and then the scalar counts as a mean
over the batch's rows.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from hotloop.graph.value import Tensor

__all__ = ["Parts", "Term", "added", "loss_terms", "scaled", "with_parts"]


class Term(NamedTuple):
    """``weight * total / denominator``; denominator None: ``total`` is a mean over rows."""

    total: Tensor
    denominator: Tensor | None
    weight: float


Parts: TypeAlias = tuple[Term, ...]


def with_parts(loss: Tensor, total: Tensor, denominator: Tensor | float) -> Tensor:
    """``loss`` marked as ``total / denominator``."""
    if isinstance(denominator, int | float):
        denominator = total.trace.number(total.dtype, denominator)
    loss._parts = (Term(total, denominator, 1.0),)
    return loss


def loss_terms(loss: Tensor) -> Parts:
    """The terms of a scalar: those it carries, or itself as a mean over rows.

    They are what ``_core.Graph.training_step`` takes, as (total's id, denominator's id, weight).
    """
    return loss._parts or (Term(loss, None, 1.0),)


def scaled(result: Tensor, loss: Tensor, factor: float) -> Tensor:
    """``result``, with the terms of ``loss`` times a number."""
    if loss._parts is not None:
        result._parts = tuple(t._replace(weight=t.weight * factor) for t in loss._parts)
    return result


def added(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``result``, with the terms of both addends, when one of them carries any."""
    if (a._parts or b._parts) and not a.ndim and not b.ndim:
        result._parts = loss_terms(a) + loss_terms(b)
    return result
