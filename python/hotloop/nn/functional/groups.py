"""Products of matrices in groups, as of the experts of a mixture.

Where the groups' ends are known while tracing each product has its rows alone. Ends that a step
computes are no shapes: then each group's product has all rows, and those of other groups are left
out of its result.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from hotloop.errors import ConfigError, DataError, ShapeError
from hotloop.graph import contraction, creation, pointwise, views
from hotloop.graph.build import Operand, cast, is_tensor, lift, lift_float, stack
from hotloop.graph.dtypes import parse
from hotloop.graph.symbolic import Tensor
from hotloop.nn.functional.arguments import make_functions

__all__ = ["grouped_mm"]


def grouped_mm(
    mat_a: Operand,
    mat_b: Operand,
    *,
    offs: Operand | None = None,
    bias: Operand | None = None,
    out_dtype: Any = None,
) -> Tensor:
    """Matrix products of groups: of matrices, of rows, of columns, or of parts of both.

    Parameters
    ----------
    mat_a : Tensor
        ``(M, K)`` or ``(G, M, K)``.
    mat_b : Tensor
        ``(K, N)`` or ``(G, K, N)``.
    offs : Tensor of integers, optional
        ``(G,)``, rising: where each group ends, of the dim of a matrix of two dims that is cut into
        groups: rows of ``mat_a`` for a ``mat_b`` of three dims, columns of ``mat_b`` for such a
        ``mat_a``, and K of two matrices of two dims. None where both have three.
    bias : Tensor, optional
        Added to the result, broadcast.
    out_dtype : dtype, optional
        Of the result.

    Returns
    -------
    Tensor
        ``(M, N)``; ``(G, M, N)`` of two matrices that have as many dims. What is in no group is 0,
        in torch anything.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    ConfigError
        If offs are given with two matrices of three dims, or are not given.
    DataError
        For offs, known while tracing, that do not rise or reach beyond the dim.

    Notes
    -----
    Offs that are known while tracing, arrays, cost each product its group's rows; offs that are
    computed cost each group all rows.
    """
    a, b = lift_float(mat_a, "grouped_mm"), lift_float(mat_b, "grouped_mm")
    fits = a.ndim in (2, 3) and b.ndim in (2, 3) and a.shape[-1] == b.shape[-2]
    if fits and a.ndim == b.ndim == 3:
        fits = a.shape[0] == b.shape[0]
    if not fits:
        raise ShapeError(
            "grouped_mm: must be ([G,] M, K) and ([G,] K, N) of as many groups, got "
            f"{a.shape} and {b.shape}"
        )
    if (offs is None) != (a.ndim == b.ndim == 3):
        raise ConfigError(
            "grouped_mm: offs go with a matrix of two dims, and only with one, got "
            f"{'none' if offs is None else 'some'} and shapes {a.shape}, {b.shape}"
        )
    made = contraction.bmm(a, b) if offs is None else _of_groups(a, b, offs)
    made = made if bias is None else made + lift_float(bias, "grouped_mm")
    return made if out_dtype is None else cast(made, parse(out_dtype))


def _of_groups(a: Tensor, b: Tensor, offs: Operand) -> Tensor:
    n = a.shape[0] if b.ndim == 3 else b.shape[-1] if a.ndim == 3 else a.shape[1]
    n_groups = b.shape[0] if b.ndim == 3 else a.shape[0] if a.ndim == 3 else None
    ends = lift(offs, what="grouped_mm")
    if ends.ndim != 1 or not ends.shape[0] or n_groups not in (None, ends.shape[0]):
        raise ShapeError(
            f"grouped_mm: offs must have shape ({'G' if n_groups is None else n_groups},), got "
            f"{ends.shape}"
        )
    if ends.dtype.is_floating_point or ends.dtype == "bool":
        raise ConfigError(f"grouped_mm: offs must be integers, got {ends.dtype}")
    if not is_tensor(offs):
        return _of_known(a, b, np.asarray(offs), n)
    place = creation.arange(n)
    begins = views.cat([ends[:1] * 0, ends[:-1]], 0)
    inside = [(place >= begins[g]) & (place < ends[g]) for g in range(ends.shape[0])]
    if a.ndim == b.ndim:
        halves = [(pointwise.where(i, a, 0.0), pointwise.where(i[:, None], b, 0.0)) for i in inside]
        return stack([contraction.matmul(x, y) for x, y in halves])
    rows = b.ndim == 3
    made = [contraction.matmul(*((a, b[g]) if rows else (a[g], b))) for g in range(len(inside))]
    parts = [pointwise.where(i[:, None] if rows else i, m, 0.0) for i, m in zip(inside, made)]
    return sum(parts[1:], parts[0])


def _of_known(a: Tensor, b: Tensor, ends: Any, n: int) -> Tensor:
    if (np.diff(ends) < 0).any() or ends[0] < 0 or ends[-1] > n:
        raise DataError(
            f"grouped_mm: offs must rise from 0 to at most {n}, got "
            f"{ends.tolist() if ends.size < 10 else ends}"
        )
    cuts = [0, *map(int, ends)]
    spans = list(itertools.pairwise(cuts))
    if a.ndim == b.ndim:
        return stack([contraction.matmul(a[:, i:j], b[i:j]) for i, j in spans])
    if b.ndim == 3:
        parts = [contraction.matmul(a[i:j], b[g]) for g, (i, j) in enumerate(spans)]
        rest = creation.zeros(n - cuts[-1], b.shape[2])
        return views.cat([*parts, rest], 0)
    parts = [contraction.matmul(a[g], b[:, i:j]) for g, (i, j) in enumerate(spans)]
    return views.cat([*parts, creation.zeros(a.shape[1], n - cuts[-1])], 1)


make_functions(globals(), __all__)
