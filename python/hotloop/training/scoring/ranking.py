"""Areas under curves of scores: exact over a whole split, ties and weights included.

They ask for the order of all scores, which no sum over batches has. Rows of one score enter a curve
together, so that their order does not count. Averages are scikit-learn's: of two classes the value
is that of class 1 whatever the average; of more classes each is compared with the rest ("ovr") or
with each of the others in turn ("ovo", Hand and Till 2001).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hotloop.training.scoring.metric import WholeRows

__all__ = ["area_under_roc", "average_precision", "of_labels", "of_pairs", "without_value"]

Array: TypeAlias = npt.NDArray[Any]
Measure: TypeAlias = Callable[[Array, Array, "Array | None"], float]


# ---- of one column: who is a yes, scores, weights


def area_under_roc(is_yes: Array, scores: Array, weight: Array | None) -> float:
    """The share of pairs of a yes and a no in which the yes has the larger score; a tie is a half.

    Parameters
    ----------
    is_yes : array (N,) of bool
    scores : array (N,)
    weight : array (N,) or None

    Returns
    -------
    float
        NaN without a yes or without a no, and of scores that are NaN.
    """
    yes, no = _by_score(is_yes, scores, weight)
    pairs = yes.sum() * no.sum()
    if not pairs > 0:
        return float("nan")
    below = np.cumsum(no) - no
    return float((yes * (below + 0.5 * no)).sum() / pairs)


def average_precision(is_yes: Array, scores: Array, weight: Array | None) -> float:
    """The mean over yeses of the precision among all rows that have no smaller score.

    Parameters, Returns
    -------------------
    As of :func:`area_under_roc`; NaN without a yes.
    """
    yes, no = (each[::-1] for each in _by_score(is_yes, scores, weight))
    total = yes.sum()
    if not total > 0:
        return float("nan")
    hits = np.cumsum(yes)
    return float((yes * hits / np.maximum(hits + np.cumsum(no), 1e-300)).sum() / total)


def _by_score(is_yes: Array, scores: Array, weight: Array | None) -> tuple[Array, Array]:
    """What yeses and noes count at each score, from the smallest on; NaN of scores that are NaN."""
    if not len(scores) or np.isnan(scores).any():
        return np.full(1, np.nan), np.full(1, np.nan)
    order = np.argsort(scores)
    ordered = scores[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    counts = is_yes[order].astype(np.float64)
    share = np.ones(len(order)) if weight is None else weight[order]
    of_yes = np.add.reduceat(counts * share, begins)
    return of_yes, np.add.reduceat((1.0 - counts) * share, begins)


# ---- of classes and columns


def _columns(rows: WholeRows) -> Iterator[tuple[Array, Array]]:
    """Who is a yes, and scores, of each class or column."""
    scores, target = rows.scores, rows.target
    if target.ndim == 2:
        yield from ((target[:, k] > 0.5, scores[:, k]) for k in range(target.shape[1]))
    elif scores.ndim == 1:
        yield from ((target == 0, -scores), (target == 1, scores))
    else:
        yield from ((target == k, scores[:, k]) for k in range(scores.shape[1]))


def _is_of_two(rows: WholeRows) -> bool:
    return rows.target.ndim == 1 and (rows.scores.ndim == 1 or rows.scores.shape[1] == 2)


def of_labels(measure: Measure, how: str) -> Callable[[WholeRows], Any]:
    """A measure over classes, each against the rest, or columns.

    Parameters
    ----------
    measure : callable
    how : {"", "macro", "micro", "weighted", "per_class"}
        "" is "macro". Classes without a value are in no mean.
    """

    def compute(rows: WholeRows) -> Any:
        columns = list(_columns(rows))
        if _is_of_two(rows) and how != "per_class":
            return measure(*columns[1], rows.weight)
        if how == "micro":
            is_yes, scores = (np.stack(each, 1).reshape(-1) for each in zip(*columns, strict=True))
            weight = None if rows.weight is None else np.repeat(rows.weight, len(columns))
            return measure(is_yes, scores, weight)
        values = np.array([measure(*column, rows.weight) for column in columns])
        if how == "per_class":
            return values
        share = _counts(columns, rows.weight) if how == "weighted" else np.ones(len(values))
        return _mean(values, share)

    return compute


def of_pairs(measure: Measure, how: str) -> Callable[[WholeRows], float]:
    """A measure over pairs of classes: of each the mean of its two directions, among their rows.

    Parameters
    ----------
    measure : callable
    how : {"", "macro", "weighted"}
        "weighted": by the pairs' shares of the rows; "" is "macro". Pairs of which one class has no
        rows are in no mean.
    """

    def compute(rows: WholeRows) -> float:
        if _is_of_two(rows):
            return measure(*list(_columns(rows))[1], rows.weight)
        values, shares = [], []
        for a, b in itertools.combinations(range(rows.scores.shape[1]), 2):
            among = (rows.target == a) | (rows.target == b)
            weight = None if rows.weight is None else rows.weight[among]
            is_a, scores = rows.target[among] == a, rows.scores[among]
            both = measure(is_a, scores[:, a], weight), measure(~is_a, scores[:, b], weight)
            values.append((both[0] + both[1]) / 2)
            shares.append(float(among.sum()) if weight is None else float(weight.sum()))
        return _mean(np.array(values), np.array(shares) if how == "weighted" else None)

    return compute


def _counts(columns: Sequence[tuple[Array, Array]], weight: Array | None) -> Array:
    """What the yeses of each column count."""
    share = 1.0 if weight is None else weight
    return np.array([(is_yes * share).sum() for is_yes, _ in columns], np.float64)


def _mean(values: Array, share: Array | None) -> float:
    """The mean of the values that are known; NaN where none is."""
    known = ~np.isnan(values)
    counted = known.astype(np.float64) if share is None else np.where(known, share, 0.0)
    if not counted.sum() > 0:
        return float("nan")
    return float((np.where(known, values, 0.0) * counted).sum() / counted.sum())


def without_value(rows: WholeRows) -> list[int]:
    """Classes or columns that have no yes, or nothing but yeses."""
    columns = list(_columns(rows))
    n = float(len(rows.target)) if rows.weight is None else float(rows.weight.sum())
    counts = _counts(columns, rows.weight)
    return [k for k, count in enumerate(counts) if count <= 0 or count >= n]
