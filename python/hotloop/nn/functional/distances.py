"""Norms of rows and what measures how far apart they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotloop.graph import pointwise, reduction, views
from hotloop.graph.build import Operand, lift_float, unify

if TYPE_CHECKING:
    from hotloop.graph.symbolic import Tensor

__all__ = ["cosine_similarity", "normalize", "pairwise_distance"]


def normalize(input: Operand, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """``x / max(‖x‖_p, eps)`` along a dim."""
    x = lift_float(input, "normalize")
    return x / pointwise.clamp(reduction.norm(x, p, dim, keepdim=True), min=eps)


def cosine_similarity(x1: Operand, x2: Operand, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """``x1 · x2 / (max(‖x1‖, eps) · max(‖x2‖, eps))`` along a dim; shapes broadcast."""
    a, b = views.broadcast_tensors(*unify(x1, x2, what="cosine_similarity"))
    return reduction.sum(normalize(a, 2.0, dim, eps) * normalize(b, 2.0, dim, eps), dim)


def pairwise_distance(
    x1: Operand, x2: Operand, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """``‖x1 - x2 + eps‖_p`` over the last dim; shapes broadcast."""
    a, b = unify(x1, x2, what="pairwise_distance")
    return reduction.norm(a - b + eps, p, -1, keepdim)
