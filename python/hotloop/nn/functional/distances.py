"""Norms and distances of rows."""

from __future__ import annotations

import numpy as np

from hotloop.errors import ShapeError
from hotloop.graph import pointwise, reduction, views
from hotloop.graph.build import Operand, add_node, lift_float, unify
from hotloop.graph.symbolic import Tensor
from hotloop.nn.functional.arguments import NonNegative, Order, make_functions

__all__ = ["cosine_similarity", "normalize", "pairwise_distance", "pdist"]


def normalize(input: Operand, p: Order = 2.0, dim: int = 1, eps: NonNegative = 1e-12) -> Tensor:
    """``x / max(‖x‖_p, eps)`` along a dim.

    Parameters
    ----------
    input : Tensor
        Any shape; integers and bools become float32.
    p : float
        Which norm; 2 is the Euclidean.
    dim : int
        The dim whose norm becomes 1.
    eps : float
        The least divisor.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift_float(input, "normalize")
    return x / pointwise.clamp(reduction.norm(x, p, dim, keepdim=True), min=eps)


def cosine_similarity(x1: Operand, x2: Operand, dim: int = 1, eps: NonNegative = 1e-8) -> Tensor:
    """``x1 · x2 / (max(‖x1‖, eps) · max(‖x2‖, eps))`` along a dim.

    Parameters
    ----------
    x1, x2 : Tensor
        Shapes that broadcast.
    dim : int
        The dim of the vectors, in the common shape.
    eps : float
        The least norm.

    Returns
    -------
    Tensor
        The common shape without the dim; from -1 to 1.
    """
    a, b = views.broadcast_tensors(*unify(x1, x2, what="cosine_similarity"))
    return reduction.sum(normalize(a, 2.0, dim, eps) * normalize(b, 2.0, dim, eps), dim)


def pairwise_distance(
    x1: Operand, x2: Operand, p: Order = 2.0, eps: NonNegative = 1e-6, keepdim: bool = False
) -> Tensor:
    """``‖x1 - x2 + eps‖_p`` over the last dim.

    Parameters
    ----------
    x1, x2 : Tensor
        ``(..., D)``; shapes broadcast.
    p : float
        Which norm; 2 is the Euclidean.
    eps : float
        Keeps the gradient finite where both are equal.
    keepdim : bool
        Leaves the last dim as 1.

    Returns
    -------
    Tensor
        The common shape without its last dim.
    """
    a, b = unify(x1, x2, what="pairwise_distance")
    return reduction.norm(a - b + eps, p, -1, keepdim)


def pdist(input: Operand, p: Order = 2.0) -> Tensor:
    """The distance of each pair of rows; the gradient at a distance of 0 is 0.

    Parameters
    ----------
    input : Tensor
        ``(N, M)``; integers and bools become float32.
    p : float
        Which norm; 2 is the Euclidean.

    Returns
    -------
    Tensor
        ``(N * (N - 1) / 2,)``: rows 0 and 1, 0 and 2, ..., 1 and 2, .... Its differences take M
        times as many elements.

    Raises
    ------
    ShapeError
        If the input does not have 2 dims.
    """
    x = lift_float(input, "pdist")
    if x.ndim != 2:
        raise ShapeError(f"pdist: the input must be (N, M), got shape {x.shape}")
    first, second = (x.trace.const(i) for i in np.triu_indices(x.shape[0], 1))
    a, b = (add_node("index_select", x, rows, axis=0) for rows in (first, second))
    return reduction.norm(a - b, p, -1)


make_functions(globals(), __all__)
