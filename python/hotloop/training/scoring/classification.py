"""Metrics of classes by sums: counts of hits, the confusion matrix and what it gives, log-loss.

Averages are scikit-learn's. Of two classes precision and its kin are those of class 1 where no
average is named; of more, and of yes-or-no columns, the mean: "macro". A class that occurs neither
among the targets nor among the predictions is in no mean; of columns each is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.errors import ConfigError
from hotloop.graph.creation import arange, zeros
from hotloop.graph.elementary import log
from hotloop.graph.reduction import log_softmax
from hotloop.nn import functional as F
from hotloop.training.scoring.metric import Rows, Sums, Totals

__all__ = [
    "AVERAGES",
    "SHARES",
    "accuracy",
    "add_log_losses",
    "average",
    "balanced_accuracy",
    "confusion_matrix",
    "correlation",
    "count_cells",
    "count_hits",
    "count_top",
    "kappa",
    "mean",
]

Array = npt.NDArray[Any]

_EPS = float(np.finfo(np.float32).eps)  # as scikit-learn clips probabilities of float32


# ---- sums of a batch


def count_hits(rows: Rows) -> Sums:
    """Rows whose label is right; of columns the share of those that are."""
    if rows.has_columns:
        hits = ((rows.decisions > 0.0) == (rows.target > 0.5)).cast("float64").sum(1)
    else:
        hits = (rows.predicted == rows.ids).cast("float64")
    n_columns = rows.n_labels if rows.has_columns else 1
    return {"hits": (hits * rows.share).sum(), "weight": rows.total * float(n_columns)}


def count_cells(rows: Rows) -> Sums:
    """The confusion matrix (C, C), rows true and columns predicted; of columns the counts of yes
    among targets, among predictions and among both.
    """
    if rows.has_columns:
        said, real = (rows.decisions > 0.0).cast("float64"), (rows.target > 0.5).cast("float64")
        share = rows.share.reshape(-1, 1)
        sums = {"hit": said * real * share, "said": said * share, "real": real * share}
        return {**{name: column.sum(0) for name, column in sums.items()}, "weight": rows.total}
    n, m = rows.n_labels, rows.scores.shape[0]
    cells = (rows.ids * n + rows.predicted).reshape(1, m)
    # Along dim 1: of a vector, each of the blocks that share its work would read all indices.
    counts = zeros((1, n * n), dtype="float64").scatter_add(1, cells, rows.share.reshape(1, m))
    return {"confusion": counts.reshape(n, n)}


def count_top(k: int, name: str) -> Callable[[Rows], Sums]:
    """Rows whose class has one of the k largest scores; of equal scores the last classes' come
    first, as in scikit-learn.

    Parameters
    ----------
    k : int
    name : str
        Of the metric, for messages.
    """

    def update(rows: Rows) -> Sums:
        n = rows.n_labels
        if k > n:
            raise ConfigError(f"metrics: {name}: k must be at most the number of classes, got {n}")
        if rows.scores.ndim == 1 or rows.scores.shape[1] == 1:
            right = (rows.predicted == rows.ids) if k == 1 else (rows.ids == rows.ids)
        else:
            scores, ids = rows.scores, rows.ids.reshape(-1, 1)
            own = scores.gather(1, ids)
            ties = (scores == own) & (arange(n).reshape(1, n) > ids)
            above = ((scores > own) | ties).cast("float32").sum(1, keepdim=True)
            right = ((above < float(k)) & (own == own)).reshape(-1)
        return {"hits": (right.cast("float64") * rows.share).sum(), "weight": rows.total}

    return update


def add_log_losses(rows: Rows) -> Sums:
    """Minus the logarithms of the targets' probabilities; of columns their mean."""
    scores = rows.scores if rows.scores.dtype.is_floating_point else rows.scores.cast("float32")
    if not rows.has_columns and scores.ndim == 2 and scores.shape[1] > 1:
        likely = scores
        if rows.link == "softmax":
            likely = log_softmax(scores, 1)
        elif rows.link != "exp":
            likely = log(rows.ranks.clamp(_EPS, 1.0))
        losses = -likely.gather(1, rows.ids.reshape(-1, 1)).reshape(-1)
    else:
        goal = rows.target.reshape(scores.shape).cast("float32")
        if rows.link == "sigmoid":
            losses = F.binary_cross_entropy_with_logits(scores, goal, reduction="none")
        else:
            proba = scores.clamp(_EPS, 1.0 - _EPS)
            losses = -(goal * log(proba) + (1.0 - goal) * log(1.0 - proba))
        losses = losses.reshape(losses.shape[0], -1).mean(1)
    return {"loss": (losses.cast("float64") * rows.share).sum(), "weight": rows.total}


# ---- what they give


def mean(name: str) -> Callable[[Totals], float]:
    """What the rows have of a sum in the mean; 0 where no row counts."""

    def compute(totals: Totals) -> float:
        return float(totals[name]) / max(float(totals["weight"]), 1e-300)

    return compute


accuracy = mean("hits")


def _table(totals: Totals) -> tuple[Array, Array, Array]:
    """True positives, predicted and actual counts per class, or of yes per column."""
    if "hit" in totals:
        return totals["hit"], totals["said"], totals["real"]
    table = confusion_matrix(totals)
    return table.diagonal(), table.sum(0), table.sum(1)


def confusion_matrix(totals: Totals) -> npt.NDArray[np.float64]:
    """The matrix (C, C), rows true and columns predicted."""
    return totals["confusion"]


# A class's value by its true positives, predicted and actual counts.
SHARES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "precision": lambda hit, said, real: hit / said,
    "recall": lambda hit, said, real: hit / real,
    "f1": lambda hit, said, real: 2 * hit / (said + real),
    "iou": lambda hit, said, real: hit / (said + real - hit),
}
AVERAGES = ("macro", "micro", "weighted", "per_class")


def average(share: Callable[[Any, Any, Any], Any], how: str) -> Callable[[Totals], Any]:
    """What a share of classes gives over all of them; 0 of what is a share of nothing.

    Parameters
    ----------
    share : callable
        Of ``SHARES``.
    how : str
        Of ``AVERAGES``, or "": of two classes that of class 1, else "macro".
    """

    def compute(totals: Totals) -> Any:
        hit, said, real = _table(totals)
        if how == "micro":
            hit, said, real = hit.sum(), said.sum(), real.sum()
        with np.errstate(invalid="ignore", divide="ignore"):
            values = np.nan_to_num(share(hit, said, real))
        if how in ("micro", "per_class"):
            return values if how == "per_class" else float(values)
        if how == "weighted":
            return float((values * real).sum() / max(real.sum(), 1e-300))
        if "hit" in totals:
            return float(values.mean())
        if len(hit) == 2 and not how:
            return float(values[1])
        occurs = (said + real) > 0
        return float(values[occurs].mean()) if occurs.any() else 0.0

    return compute


def balanced_accuracy(totals: Totals) -> float:
    """The mean recall of classes that have rows; of columns the mean over theirs."""
    hit, said, real = _table(totals)
    if "hit" in totals:  # of each column, whose recalls are those of yes and of no
        no = totals["weight"] - real
        recalls = np.stack([hit, no - (said - hit)]) / np.maximum(np.stack([real, no]), 1e-300)
        occurs = np.stack([real, no]) > 0
        return float(np.mean((recalls * occurs).sum(0) / np.maximum(occurs.sum(0), 1)))
    has_rows = real > 0
    return float(np.mean(hit[has_rows] / real[has_rows])) if has_rows.any() else 0.0


def kappa(*, is_quadratic: bool) -> Callable[[Totals], float]:
    """Cohen's kappa: agreement above that of chance. NaN where chance alone leaves no disagreement.

    Parameters
    ----------
    is_quadratic : bool
        Whether a disagreement counts by the square of the distance of the class ids.
    """

    def compute(totals: Totals) -> float:
        table = confusion_matrix(totals)
        ids = np.arange(len(table))
        apart = (ids[:, None] - ids[None, :]).astype(np.float64) ** 2
        cost = apart if is_quadratic else (apart > 0).astype(np.float64)
        n = max(float(table.sum()), 1e-300)
        by_chance = float((cost * np.outer(table.sum(1), table.sum(0))).sum()) / n
        return 1.0 - float((cost * table).sum()) / by_chance if by_chance else float("nan")

    return compute


def correlation(totals: Totals) -> float:
    """Matthews' correlation coefficient; 0 where targets or predictions are of one class."""
    hit, said, real = _table(totals)
    n = said.sum()
    spreads = (n * n - (said * said).sum()) * (n * n - (real * real).sum())
    return float((hit.sum() * n - (said * real).sum()) / spreads**0.5) if spreads > 0 else 0.0
