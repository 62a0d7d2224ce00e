"""Rows of a table by number, alone and in bags.

A bag is reduced by what each place is in which bag: a bag of a matrix is a row, a bag of a vector
goes from its offset to the next. Places that do not count (padding) are left out of sum, mean and
maximum alike.

Rejected: an op for bags. Sums of runs are what ``index_add`` is fast at, with any repetition.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hotloop.errors import ConfigError, DataError, ShapeError, TraceError
from hotloop.graph import dtypes, pointwise, reduction, views
from hotloop.graph.build import Operand, add_node, cast, is_tensor, lift, not_integers
from hotloop.graph.creation import zeros
from hotloop.graph.indexing import check_below, index_add, index_select
from hotloop.graph.symbolic import Tensor
from hotloop.nn.functional.arguments import NonNegative, Order, make_functions
from hotloop.nn.parameter import Variable

__all__ = ["embedding", "embedding_bag"]

_LEAST = 1e-7  # torch's, added to a norm that divides


def check_dense(what: str, sparse: bool) -> None:
    """Refuses gradients of another form.

    Raises
    ------
    ConfigError
    """
    if sparse:
        raise ConfigError(f"{what}: sparse must be False, got True: gradients are dense arrays")


def padding_row(what: str, padding_idx: int, n: int) -> int:
    """The row of a padding_idx, which counts from the end where it is negative.

    Raises
    ------
    ConfigError
    """
    if not -n <= padding_idx < n:
        raise ConfigError(f"{what}: padding_idx must lie in [{-n}, {n - 1}], got {padding_idx}")
    return padding_idx % n


def _look_up(what: str, input: Operand, weight: Operand) -> tuple[Tensor, Tensor]:
    index, table = lift(input, what=what), lift(weight, what=what)
    if index.dtype.is_floating_point or index.dtype == dtypes.bool_:
        raise TraceError(f"{what}: indices must be integers, {not_integers(index)}")
    if table.ndim != 2:
        raise ShapeError(f"{what}: weight must have 2 dims, got shape {table.shape}")
    return index, table


def _rows(table: Tensor, index: Tensor, max_norm: float | None, norm_type: float) -> Tensor:
    """The rows that the index names, none longer than max_norm.

    The gradient is that of a plain look-up of a table in which the rows are as short as that, and
    where the table is a parameter it becomes so: what forward reads of it afterwards, what the
    optimizer begins with, and what a later step finds. It is a commit as that of running statistics
    is, so a step that is held back changes nothing.
    """
    rows = add_node("index_select", table, index, axis=0)
    if max_norm is None:
        return rows
    still = rows.detach()
    size = reduction.norm(still, norm_type, -1, keepdim=True)
    short = still * pointwise.where(size > max_norm, max_norm / (size + _LEAST), 1.0)
    if isinstance(table, Variable):
        flat = views.reshape(index, (index.numel(),))
        written = views.reshape(short, (index.numel(), table.shape[1]))
        changed = add_node("index_copy", table.detach(), flat, written, axis=0)
        table.trace.assign(table, add_node("surrogate", changed, table))
    return add_node("surrogate", short, rows)


def _by_frequency(rows: Tensor, index: Tensor, n: int) -> Tensor:
    """The same rows, whose gradient is divided by how often the index names each."""
    flat = views.reshape(index, (index.numel(),))
    ones = views.expand(lift(1.0, index.trace), flat.shape)
    counts = index_select(index_add(zeros(n), 0, flat, ones), 0, flat)
    still = rows.detach()
    return still + (rows - still) / views.reshape(counts, (*index.shape, 1))


def embedding(
    input: Operand,
    weight: Operand,
    padding_idx: int | None = None,
    max_norm: NonNegative | None = None,
    norm_type: Order = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of a table.

    Parameters
    ----------
    input : Tensor of integers
        Any shape; from 0 to num_embeddings - 1.
    weight : Tensor
        ``(num_embeddings, embedding_dim)``.
    padding_idx : int, optional
        A row that gets no gradient.
    max_norm : float, optional
        Rows that are longer are scaled to this length before they are looked up. A parameter keeps
        them so; a tensor or array, which torch would change, stays as it is.
    norm_type : float
        Which norm max_norm is of.
    sparse : bool
        Must be False.
    scale_grad_by_freq : bool
        Divides the gradient of a row by the number of times that it is looked up.

    Returns
    -------
    Tensor
        ``(*input.shape, embedding_dim)``.

    Raises
    ------
    TraceError
        If the input holds no integers.
    ShapeError
        If the weight is no matrix.
    ConfigError
        For an argument that must have torch's default, or a padding_idx outside of the table.
    DataError
        In the step, for an index outside of the table: it names the row.
    """
    check_dense("embedding", sparse)
    index, table = _look_up("embedding", input, weight)
    rows = _rows(table, index, max_norm, norm_type)
    if scale_grad_by_freq:
        rows = _by_frequency(rows, index, table.shape[0])
    if padding_idx is None:
        return rows
    row = padding_row("embedding", padding_idx, table.shape[0])
    return pointwise.where(views.unsqueeze(index == row, -1), rows.detach(), rows)


def _check_offsets(given: Operand, index: Tensor, is_array: bool) -> Tensor:
    offsets = lift(given, what="embedding_bag")
    if offsets.dtype.is_floating_point or offsets.dtype == dtypes.bool_:
        raise TraceError(f"embedding_bag: offsets must be integers, {not_integers(offsets)}")
    if offsets.ndim != 1 or not offsets.shape[0]:
        raise ShapeError(
            f"embedding_bag: offsets must be a vector of a number or more, got {offsets.shape}"
        )
    if is_array:
        array = np.asarray(given)
        if array[0] != 0 or (np.diff(array) < 0).any() or array[-1] > index.shape[0]:
            raise DataError(
                f"embedding_bag: offsets must rise from 0 to at most {index.shape[0]}, the number "
                f"of indices, got {array.tolist() if array.size < 10 else array}"
            )
        return offsets
    n, trace = index.shape[0], offsets.trace
    rule = f"embedding_bag: offsets must rise from 0 to at most {n}, the number of indices"
    # Offsets of 0 to n have places, and one that does not rise has none: the step says the rule.
    with trace.labelled(f"{trace.path}: {rule}" if trace.path else rule):
        least = views.concat([offsets[:1] * 0, offsets[:-1]], 0)
        rises = (offsets >= least) & (offsets[0] == 0)
        places = pointwise.where(rises, offsets, -1)
        return cast(offsets, dtypes.int64) + check_below(places, n + 1)


def _bags_of(offsets: Tensor, n: int, n_bags: int) -> Tensor:
    """The number of the bag of each of n places: how many bags but the first began before it."""
    ones = views.expand(lift(1, offsets.trace), offsets.shape)
    starts = index_add(zeros(n + 1, dtype=dtypes.int64), 0, offsets, cast(ones, dtypes.int64))
    return (reduction.cumsum(starts, 0) - 1)[:n]


def _sums(rows: Tensor, bags: Tensor, n_bags: int) -> Tensor:
    return index_add(zeros(n_bags, *rows.shape[1:]), 0, bags, rows)


def _maxima(rows: Tensor, bags: Tensor, counts: Tensor) -> Tensor:
    """The maximum of each run of rows: doubling steps bring it to the run's last row."""
    n, width = rows.shape
    step = 1
    while step < n:
        before = views.concat([views.expand(lift(-math.inf, rows.trace), (step, width)),
                               rows[:-step]], 0)  # fmt: skip
        other = views.expand(lift(-1, bags.trace), (step,))
        is_same = bags == views.concat([cast(other, dtypes.int64), bags[:-step]], 0)
        larger = pointwise.maximum(rows, before)
        rows = pointwise.where(views.unsqueeze(is_same, 1), larger, rows)
        step *= 2
    last = reduction.cumsum(counts, 0) - 1
    last = pointwise.where(last < 0, 0, last)  # of empty bags before the first row
    return index_select(rows, 0, last)


def embedding_bag(
    input: Operand,
    weight: Operand,
    offsets: Operand | None = None,
    max_norm: NonNegative | None = None,
    norm_type: Order = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Operand | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, means or maxima of bags of rows of a table.

    Parameters
    ----------
    input : Tensor of integers
        ``(B, N)``: B bags of N indices; or ``(n,)``, cut into bags by the offsets.
    weight : Tensor
        ``(num_embeddings, embedding_dim)``.
    offsets : Tensor of integers, optional
        ``(B,)``, of a vector: where each bag begins, rising from 0.
    max_norm : float, optional
        Rows that are longer are scaled to this length before they are looked up. A parameter keeps
        them so; a tensor or array, which torch would change, stays as it is.
    norm_type : float
        Which norm max_norm is of.
    sparse : bool
        Must be False.
    scale_grad_by_freq : bool
        Divides the gradient of a row by the number of times that it is looked up.
    mode : {"mean", "sum", "max"}
        How a bag becomes one row.
    per_sample_weights : Tensor, optional
        Of the input's shape: factors of the rows, with "sum" alone.
    include_last_offset : bool
        Whether the offsets are ``(B + 1,)``, the last one the number of indices.
    padding_idx : int, optional
        An index that no bag counts, and whose row gets no gradient.

    Returns
    -------
    Tensor
        ``(B, embedding_dim)``; a bag without indices is 0.

    Raises
    ------
    TraceError
        If input or offsets hold no integers.
    ShapeError
        If the input has neither one dim nor two, or other shapes do not fit.
    ConfigError
        For another mode, or arguments that do not go together.
    DataError
        For offsets that do not rise from 0, in the step where they are of the batch; there also for
        an index outside of the table.
    """
    check_dense("embedding_bag", sparse)
    index, table = _look_up("embedding_bag", input, weight)
    if mode not in ("sum", "mean", "max"):
        raise ConfigError(f"embedding_bag: mode must be 'sum', 'mean' or 'max', got {mode!r}")
    if index.ndim not in (1, 2):
        raise ShapeError(f"embedding_bag: input must be (B, N) or (n,), got shape {index.shape}")
    if (offsets is None) == (index.ndim == 1):
        raise ConfigError(
            "embedding_bag: offsets go with an input of one dim, and only with that, got "
            f"{'none' if offsets is None else 'some'} and shape {index.shape}"
        )
    if include_last_offset and offsets is None:
        raise ConfigError("embedding_bag: include_last_offset goes with offsets, got none")
    if scale_grad_by_freq and mode == "max":
        raise ConfigError("embedding_bag: scale_grad_by_freq goes with 'sum' and 'mean', got 'max'")
    rows = _rows(table, index, max_norm, norm_type)
    if scale_grad_by_freq:
        rows = _by_frequency(rows, index, table.shape[0])
    if per_sample_weights is not None:
        factors = lift(per_sample_weights, what="embedding_bag")
        if mode != "sum":
            raise ConfigError(
                f"embedding_bag: per_sample_weights go with mode='sum', got mode={mode!r}"
            )
        if factors.shape != index.shape:
            raise ShapeError(
                f"embedding_bag: per_sample_weights must have the input's shape {index.shape}, got "
                f"{factors.shape}"
            )
        rows = rows * views.unsqueeze(factors, -1)
    counted: Any = None
    if padding_idx is not None:
        row = padding_row("embedding_bag", padding_idx, table.shape[0])
        counted = views.unsqueeze(index != row, -1)
        rows = pointwise.where(counted, rows, -math.inf if mode == "max" else 0.0)
    if index.ndim == 2:
        return _of_rows(rows, counted, mode)
    given = _check_offsets(offsets, index, not is_tensor(offsets))  # type: ignore[arg-type]
    return _of_runs(rows, counted, mode, given, given.shape[0] - bool(include_last_offset))


def _of_rows(rows: Tensor, counted: Any, mode: str) -> Tensor:
    """Bags ``(B, N, width)`` over N."""
    n_bags, n, width = rows.shape
    if not n:
        return views.reshape(reduction.sum(rows, 1), (n_bags, width))
    if mode == "max":
        largest = reduction.amax(rows, 1)
        return largest if counted is None else pointwise.where(
            reduction.amax(cast(counted, dtypes.float32), 1) > 0, largest, 0.0
        )  # fmt: skip
    total = reduction.sum(rows, 1)
    if mode == "sum":
        return total
    if counted is None:
        return total / n
    return total / pointwise.maximum(reduction.sum(cast(counted, dtypes.float32), 1), 1.0)


def _of_runs(rows: Tensor, counted: Any, mode: str, offsets: Tensor, n_bags: int) -> Tensor:
    """Bags from each offset to the next."""
    n = rows.shape[0]
    if not n or not n_bags:
        return views.expand(reduction.sum(rows), (n_bags, rows.shape[1]))
    bags = _bags_of(offsets[:n_bags], n, n_bags)
    if mode == "sum":
        return _sums(rows, bags, n_bags)
    ones: Any = views.expand(lift(1.0, rows.trace), (n, 1))
    counts = _sums(ones if counted is None else cast(counted, dtypes.float32), bags, n_bags)
    if mode == "mean":
        return _sums(rows, bags, n_bags) / pointwise.maximum(counts, 1.0)
    lengths = counts if counted is None else _sums(ones, bags, n_bags)
    places = cast(views.reshape(lengths, (n_bags,)), dtypes.int64)
    return pointwise.where(counts > 0, _maxima(rows, bags, places), 0.0)


make_functions(globals(), __all__)
