"""Matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hotloop.base.scalars import plain
from hotloop.errors import ShapeError
from hotloop.graph import dtypes, reduction, views
from hotloop.graph.build import Operand, add_node, axis_of, cast, is_int, lift, unify
from hotloop.graph.eager import make_eager
from hotloop.graph.value import Tensor

__all__ = [
    "baddbmm", "bmm", "cdist", "dot", "matmul", "mm", "mv", "outer", "tensordot",
]  # fmt: skip


def floats_of(what: str, *values: Operand) -> tuple[Tensor, ...]:
    """The operands in one dtype, which is a floating one."""
    tensors = unify(*values, what=what)
    if tensors[0].dtype.is_floating_point:
        return tensors
    return tuple(cast(x, dtypes.default_float) for x in tensors)


def matmul(input: Operand, other: Operand) -> Tensor:
    """Matrix product; leading dims broadcast.

    Parameters
    ----------
    input : Tensor
        ``(..., M, K)``, or a vector ``(K,)``.
    other : Tensor
        ``(..., K, N)``, or a vector ``(K,)``.

    Returns
    -------
    Tensor
        ``(..., M, N)``, without the dim of a vector.

    Raises
    ------
    ShapeError
        If the inner sizes differ or the leading dims do not broadcast.
    """
    a, b = floats_of("matmul", input, other)
    if not a.ndim or not b.ndim:
        raise ShapeError(f"matmul: must have dims, got shapes {a.shape} and {b.shape}")
    a_vector, b_vector = a.ndim == 1, b.ndim == 1
    if a.shape[-1] != b.shape[0 if b_vector else -2]:
        raise ShapeError(f"matmul: inner sizes must agree, got shapes {a.shape} and {b.shape}")
    left = views.unsqueeze(a, 0) if a_vector else a
    right = views.unsqueeze(b, 1) if b_vector else b
    views.broadcast_shapes(left.shape[:-2], right.shape[:-2], what="matmul")
    out = add_node("matmul", left, right)
    shape = out.shape[: -2 if a_vector or b_vector else None]
    if a_vector and not b_vector:
        shape = (*shape, out.shape[-1])
    elif b_vector and not a_vector:
        shape = (*shape, out.shape[-2])
    return views.reshape(out, shape)


def linear_map(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` in one node; x (..., K), weight (N, K), bias (N,)."""
    vector = x.ndim == 1
    x = views.unsqueeze(x, 0) if vector else x
    inputs = (x, weight) if bias is None else (x, weight, bias)
    out = add_node("matmul", *inputs, trans_b=1)
    return views.reshape(out, out.shape[1:]) if vector else out


def mm(input: Operand, mat2: Operand) -> Tensor:
    """Product of two matrices.

    Parameters
    ----------
    input, mat2 : Tensor
        ``(M, K)`` and ``(K, N)``.

    Returns
    -------
    Tensor
        ``(M, N)``.

    Raises
    ------
    ShapeError
        If the numbers of dims or the inner sizes do not fit.
    """
    return _ranked("mm", input, mat2, 2, 2)


def bmm(input: Operand, mat2: Operand) -> Tensor:
    """Products of two batches of matrices.

    Parameters
    ----------
    input, mat2 : Tensor
        ``(B, M, K)`` and ``(B, K, N)``.

    Returns
    -------
    Tensor
        ``(B, M, N)``.

    Raises
    ------
    ShapeError
        If the numbers of dims or the inner sizes do not fit.
    """
    a, b = lift(input, what="bmm"), lift(mat2, what="bmm")
    if a.ndim == 3 and b.ndim == 3 and a.shape[0] != b.shape[0]:
        raise ShapeError(f"bmm: batch sizes must agree, got shapes {a.shape} and {b.shape}")
    return _ranked("bmm", a, b, 3, 3)


def mv(input: Operand, vec: Operand) -> Tensor:
    """Product of a matrix and a vector.

    Parameters
    ----------
    input, vec : Tensor
        ``(M, K)`` and ``(K,)``.

    Returns
    -------
    Tensor
        ``(M,)``.

    Raises
    ------
    ShapeError
        If the numbers of dims or the inner sizes do not fit.
    """
    return _ranked("mv", input, vec, 2, 1)


def dot(input: Operand, tensor: Operand) -> Tensor:
    """Inner product of two vectors.

    Parameters
    ----------
    input, tensor : Tensor
        ``(K,)`` each.

    Returns
    -------
    Tensor
        A scalar.

    Raises
    ------
    ShapeError
        If the numbers of dims or the inner sizes do not fit.
    """
    return _ranked("dot", input, tensor, 1, 1)


def _ranked(what: str, a: Operand, b: Operand, a_rank: int, b_rank: int) -> Tensor:
    a, b = lift(a, what=what), lift(b, what=what)
    if a.ndim != a_rank or b.ndim != b_rank:
        raise ShapeError(
            f"{what}: must have {a_rank} and {b_rank} dims, got shapes {a.shape} and {b.shape}"
        )
    return matmul(a, b)


def outer(input: Operand, vec2: Operand) -> Tensor:
    """Every product of an element of one vector with an element of the other.

    Parameters
    ----------
    input, vec2 : Tensor
        ``(M,)`` and ``(N,)``.

    Returns
    -------
    Tensor
        ``(M, N)``.
    """
    return views.unsqueeze(input, 1) * views.unsqueeze(vec2, 0)


def baddbmm(
    input: Operand, batch1: Operand, batch2: Operand, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """``beta * input + alpha * bmm(batch1, batch2)``.

    Parameters
    ----------
    input : Tensor
        Broadcast to ``(B, M, N)``.
    batch1, batch2 : Tensor
        ``(B, M, K)`` and ``(B, K, N)``.
    beta, alpha : float
        The factors.

    Returns
    -------
    Tensor
        ``(B, M, N)``.

    Raises
    ------
    ShapeError
        If the numbers of dims or the inner sizes do not fit.
    """
    product = bmm(batch1, batch2)
    product = product if alpha == 1 else product * alpha
    addend = lift(input, what="baddbmm")
    return (addend if beta == 1 else addend * beta) + product


def tensordot(a: Operand, b: Operand, dims: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """The product summed over several dims of both.

    Parameters
    ----------
    a, b : Tensor
        Any shapes.
    dims : int or (sequence of int, sequence of int)
        So many last dims of a with the first of b, or a's dims and b's.

    Returns
    -------
    Tensor
        a's other dims, then b's.

    Raises
    ------
    ShapeError
        If the dims do not pair off, or their sizes differ.
    """
    x, y = floats_of("tensordot", a, b)
    dims = plain(dims)
    if isinstance(dims, int):
        n = dims
        if not 0 <= n <= min(x.ndim, y.ndim):
            raise ShapeError(
                f"tensordot: dims must be in [0, {min(x.ndim, y.ndim)}] for shapes {x.shape} and "
                f"{y.shape}, got {n}"
            )
        pairs = [list(range(x.ndim - n, x.ndim)), list(range(n))]
    else:
        given: list[Any] = [(one,) if is_int(one) else tuple(one) for one in dims]
        if len(given) != 2:
            raise ShapeError(f"tensordot: dims must be a number or two lists, got {dims!r}")
        pairs = [
            [axis_of(value, dim, "tensordot") for dim in own] for value, own in zip((x, y), given)
        ]
    first, second = pairs
    are_pairs = len(first) == len(second) == len(set(first)) == len(set(second))
    if not are_pairs or [x.shape[i] for i in first] != [y.shape[i] for i in second]:
        raise ShapeError(
            f"tensordot: summed dims must be pairs of equal size, got {first} of {x.shape} and "
            f"{second} of {y.shape}"
        )
    rows = [i for i in range(x.ndim) if i not in first]
    columns = [i for i in range(y.ndim) if i not in second]
    inner = math.prod(x.shape[i] for i in first)
    above, beside = tuple(x.shape[i] for i in rows), tuple(y.shape[i] for i in columns)
    left = views.reshape(views.permute(x, rows + first), (math.prod(above), inner))
    right = views.reshape(views.permute(y, second + columns), (inner, math.prod(beside)))
    return views.reshape(matmul(left, right), (*above, *beside))


def cdist(x1: Operand, x2: Operand, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """The distance of each row from each row; the gradient at a distance of 0 is 0.

    Parameters
    ----------
    x1 : Tensor
        ``(..., P, M)``.
    x2 : Tensor
        ``(..., R, M)``; dims before these broadcast.
    p : float
        Which norm, as of :func:`norm`.
    compute_mode : str, optional
        Taken for torch's sake: differences are taken, which is exact where rows are near.

    Returns
    -------
    Tensor
        ``(..., P, R)``. Its differences take P · R · M elements.

    Raises
    ------
    ShapeError
        If one has less than 2 dims, or the rows differ in length.
    """
    a, b = floats_of("cdist", x1, x2)
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-1]:
        raise ShapeError(
            f"cdist: must be (..., P, M) and (..., R, M), got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    return reduction.norm(views.unsqueeze(a, -2) - views.unsqueeze(b, -3), p, -1)


make_eager(globals(), __all__)
