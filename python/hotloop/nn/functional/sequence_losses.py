"""Losses of sequences whose targets are known, but not when each of them comes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotloop.errors import ConfigError, DataError, ShapeError
from hotloop.graph import dtypes, indexing, pointwise
from hotloop.graph import reduction as reducing
from hotloop.graph.build import (
    Operand,
    add_nodes,
    cast,
    is_tensor,
    lift,
    lift_float,
    not_integers,
    to_array,
)
from hotloop.graph.symbolic import Tensor
from hotloop.nn.functional.arguments import make_functions
from hotloop.nn.functional.reductions import check_reduction, reduced

__all__ = ["ctc_loss"]

_WHAT = "ctc_loss"
_WRONG_SUM = np.iinfo(np.int64).min  # plus the sum: hl_fault_ctc_loss


def _known(value: Any) -> np.ndarray[Any, Any] | None:
    """The numbers themselves, where they are no tensors of a trace."""
    if is_tensor(value) or (isinstance(value, list | tuple) and any(map(is_tensor, value))):
        return None
    return to_array(value, _WHAT)


def _integers(value: Operand, name: str) -> Tensor:
    x = lift(value, what=_WHAT)
    known = _known(value)
    is_whole = known is None or known.dtype.kind in "iu" or known.size == 0
    if not is_whole or x.dtype == dtypes.bool_ or (x.dtype.is_floating_point and x.numel()):
        raise ConfigError(f"{_WHAT}: {name} must be integers, {not_integers(x)}")
    return cast(x, dtypes.int64) if x.dtype.is_floating_point else x


def _lengths(value: Operand, name: str, n: int, most: int | None) -> Tensor:
    """(N,), checked as far as the numbers are known."""
    x = _integers(value, name)
    if x.numel() != n or x.ndim > 1 or (x.ndim == 0 and n != 1):
        raise ShapeError(f"{_WHAT}: {name} must have shape ({n},), got {x.shape}")
    known = _known(value)
    if known is not None:
        wrong = (known < 0) | (known > (np.inf if most is None else most))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            end = "" if most is None else f" and at most {most}"
            raise DataError(
                f"{_WHAT}: {name} must be at least 0{end}, got {known.flat[row]} in row {row}"
            )
    return x.reshape(n)


def _rows_of_targets(
    y: Tensor, lengths: Tensor, known: np.ndarray[Any, Any] | None
) -> tuple[Tensor, Tensor]:
    """(N, S) from targets one behind another, and their lengths.

    Where the lengths are known only in the step, a row has room for all there are, and a wrong sum
    leaves lengths that no row can have, of which the op's error reads the sum.
    """
    n, total = lengths.shape[0], y.numel()
    if known is not None:
        counts = known.reshape(-1).astype(np.int64)
        if counts.sum() != total:
            raise DataError(
                f"{_WHAT}: target_lengths must add up to the {total} targets, which stand one "
                f"behind another, got {counts.sum()}"
            )
        width = int(counts.max(initial=0))
        places = (np.cumsum(counts) - counts)[:, None] + np.arange(width)
        places = np.where(np.arange(width) < counts[:, None], places, 0)
        return _picked(y, lengths.trace.const(places), (n, width)), lengths
    counts_now = cast(lengths, dtypes.int64)
    added = reducing.sum(counts_now)
    fits = added == total
    is_negative = reducing.sum(cast(counts_now < 0, dtypes.int64)) > 0  # which is the better reason
    begins = (reducing.cumsum(counts_now, 0) - counts_now).unsqueeze(1)
    steps = lengths.trace.const(np.arange(total))
    used = (steps.unsqueeze(0) < counts_now.unsqueeze(1)) & fits
    rows = _picked(y, pointwise.where(used, begins + steps.unsqueeze(0), 0), (n, total))
    wrong = added + lengths.trace.const(np.array(_WRONG_SUM))
    return rows, pointwise.where(fits | is_negative, counts_now, wrong)


def _picked(y: Tensor, places: Tensor, shape: tuple[int, int]) -> Tensor:
    if not y.numel():
        return y.trace.const(np.zeros(shape, np.int64))
    return indexing.index_select(y, 0, places.reshape(-1)).reshape(shape)


def first_bad_target(
    targets: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any], n_classes: int, blank: int
) -> tuple[int, int, int] | None:
    """Row, position and value of the first target that counts and is no class, or the blank.

    Parameters
    ----------
    targets : ndarray of integers
        ``(N, S)``, or those of all rows one behind another.
    lengths : ndarray of integers
        How many of each row count, ``(N,)``.
    n_classes, blank : int
        As of ``ctc_loss``.
    """
    rows = lengths.reshape(-1)
    if targets.ndim == 1:
        row, values = np.repeat(np.arange(rows.size), rows), targets
        place = np.arange(targets.size) - np.repeat(np.cumsum(rows) - rows, rows)
    else:
        row, place = np.nonzero(np.arange(targets.shape[1]) < rows[:, None])
        values = targets[row, place]
    wrong = (values < 0) | (values >= n_classes) | (values == blank)
    if not wrong.any():
        return None
    at = int(np.flatnonzero(wrong)[0])
    return int(row[at]), int(place[at]), int(values[at])


def _check_targets(
    targets: Operand, lengths: np.ndarray[Any, Any] | None, n_classes: int, blank: int
) -> None:
    """Refuses what is seen to be no class while tracing."""
    known = _known(targets)
    if known is None or lengths is None or not known.size:
        return
    found = first_bad_target(known, lengths, n_classes, blank)
    if found is not None:
        row, place, value = found
        raise DataError(
            f"{_WHAT}: a target must be a class, at least 0 and below {n_classes}, and not the "
            f"blank {blank}, got {value} at position {place} of row {row}"
        )


def ctc_loss(
    log_probs: Operand,
    targets: Operand,
    input_lengths: Operand,
    target_lengths: Operand,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Connectionist temporal classification (Graves et al. 2006).

    The loss of a sequence is ``-log`` of the probability that it gives its targets, over all
    alignments: one class at each time, of which repetitions count once unless a blank stands
    between them, and blanks count nothing. The gradient is torch's: right for what
    ``log_softmax`` gives, whose classes add up to 1 at each time.

    Parameters
    ----------
    log_probs : Tensor
        Logarithms of probabilities, ``(T, N, C)``: time, sequence, class; ``(T, C)`` of one.
    targets : Tensor of integers
        Classes ``(N, S)``, of which each row's first ``target_lengths`` count; or those of all
        sequences one behind another, ``(sum of target_lengths,)``; ``(S,)`` of one.
    input_lengths, target_lengths : Tensor of integers or tuple of int
        How many times and targets of each sequence count, ``(N,)``.
    blank : int
        The class that stands for no target.
    reduction : {"mean", "sum", "none"}
        "mean" divides each loss by the number of its targets, at least 1, and then by N.
    zero_infinity : bool
        Makes loss and gradient 0 where no alignment is short enough for its times.

    Returns
    -------
    Tensor
        A scalar; with "none" the losses ``(N,)``.

    Raises
    ------
    ConfigError
        If targets or lengths are no integers, or blank is no class.
    ShapeError
        If shapes do not fit.
    DataError
        For a length beyond what there is, a target that is the blank or no class, or lengths that
        do not add up to the targets that stand one behind another: at once where the numbers are
        known, else in the step, with the row.
    """
    check_reduction(_WHAT, reduction)
    x, y = lift_float(log_probs, _WHAT), _integers(targets, "targets")
    if x.ndim not in (2, 3):
        raise ShapeError(f"{_WHAT}: log_probs must be (T, N, C) or (T, C), got shape {x.shape}")
    is_one = x.ndim == 2
    x = x.unsqueeze(1) if is_one else x
    n_times, n, n_classes = x.shape
    if not 0 <= blank < n_classes:
        raise ConfigError(
            f"{_WHAT}: blank must be a class, at least 0 and below {n_classes}, got {blank}"
        )
    if y.ndim not in (1, 2) or (y.ndim == 2 and y.shape[0] != n):
        raise ShapeError(
            f"{_WHAT}: targets must have shape ({n}, S) or stand one behind another, got {y.shape}"
        )
    times = _lengths(input_lengths, "input_lengths", n, n_times)
    counts = _lengths(target_lengths, "target_lengths", n, y.shape[1] if y.ndim == 2 else None)
    known = _known(target_lengths)
    if y.ndim == 1:
        y, counts = _rows_of_targets(y, counts, known)
    _check_targets(targets, known, n_classes, int(blank))
    flags = {"blank": int(blank), "zero_infinity": int(bool(zero_infinity))}
    per = add_nodes("ctc_loss", x, y, times, counts, **flags)[0]
    if reduction == "mean":
        own = dtypes.promote(x.dtype, dtypes.default_float)
        shares = cast(per, own) / pointwise.clamp(cast(counts, own), min=1.0)
        return reduced(cast(shares, x.dtype), reduction)
    return per.reshape(()) if is_one and reduction == "none" else reduced(per, reduction)


make_functions(globals(), __all__)
