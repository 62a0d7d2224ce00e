"""What a metric is: what it takes of each batch, and what it makes of all of them at the end.

Most are sums that a traced update adds to per batch, states of the plan in float64, so that they
are exact over the split however it was cut into batches, sample weights included, and cost nothing
in Python per step. What asks for the order of all scores (auc) takes the rows of the whole split
instead, which the run collects as it does for functions of the user's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hotloop.graph.creation import full
from hotloop.graph.elementary import exp, sigmoid
from hotloop.graph.reduction import softmax
from hotloop.graph.symbolic import Tensor

Sums: TypeAlias = dict[str, Tensor]
Totals: TypeAlias = Mapping[str, npt.NDArray[np.float64]]

__all__ = ["Metric", "Rows", "Sums", "Totals", "WholeRows", "cut_at_zero", "predicted_class"]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A value of a split, or one for each class, or a matrix.

    Attributes
    ----------
    name : str
        As it stands in the history, after ``val_``; of a value for each class ``name[class]``.
    update : callable or None
        ``update(rows) -> dict of str to Tensor``: sums of a batch's :class:`Rows`. None: the metric
        is computed from all rows of the split.
    compute : callable
        From the sums over the split, as NumPy arrays, or from :class:`WholeRows`: a number, a value
        for each class or column, or a matrix.
    mode : {"min", "max"}
        Whether a smaller or a larger value is better.
    group : str
        Name of the sums; metrics of one group share them.
    takes : {"classes", "ids", "values"}
        What targets are: classes, one in each row or a yes or no in each of several columns; one
        class in each row; values.
    needs : {"labels", "scores", "proba", "output"}
        What it compares the targets with: labels; scores that are in the order of probabilities;
        probabilities; outputs as they are.
    form : {"number", "classes", "matrix"}
    """

    name: str
    update: Callable[[Rows], Sums] | None
    compute: Callable[[Any], Any]
    mode: str = "max"
    _: dataclasses.KW_ONLY
    group: str
    takes: str = "classes"
    needs: str = "labels"
    form: str = "number"


class WholeRows(NamedTuple):
    """What a whole split has for metrics: a row for each target.

    Attributes
    ----------
    scores : array
        (M, C) of each class, or (M,) of class 1 where the model has one output; (N, K) of
        yes-or-no columns. Probabilities where it is known how outputs become them.
    target : array
        Class ids (M,), or 0 and 1 (N, K).
    weight : array (M,) of float64 or None
        0 of what is ignored.
    """

    scores: npt.NDArray[Any]
    target: npt.NDArray[Any]
    weight: npt.NDArray[np.float64] | None


@dataclasses.dataclass(frozen=True)
class Rows:
    """What a batch has for metrics: a row for each target.

    Attributes
    ----------
    scores : Tensor
        Outputs. Beside class ids, of which each position (token, pixel) is a row, (M, C), or (M,)
        of one logit each; beside yes-or-no columns (N, K); beside values as they are.
    target : Tensor
        Class ids (M,), 0 and 1 (N, K), or values.
    weight : Tensor (M,) or None
        0 of what is ignored.
    link : str or None
        How outputs become probabilities.
    centre : array or None
        Beside values: one that is near the targets where those lie together, in a row's shape.
    """

    scores: Tensor
    target: Tensor
    weight: Tensor | None
    link: str | None = None
    centre: npt.NDArray[np.float64] | None = None

    @property
    def has_columns(self) -> bool:
        """Whether targets are a yes or no in each of several columns."""
        return self.scores.ndim == 2 and self.target.ndim == 2

    @property
    def n_labels(self) -> int:
        """Classes, 2 of one logit, or columns."""
        if self.has_columns:
            return int(self.target.shape[1])
        return int(self.scores.shape[1]) if self._has_classes else 2

    @property
    def _has_classes(self) -> bool:
        return self.scores.ndim == 2 and self.scores.shape[1] > 1

    @functools.cached_property
    def decisions(self) -> Tensor:
        """Scores that are positive for a yes."""
        return cut_at_zero(self.scores, self.link)

    @functools.cached_property
    def predicted(self) -> Tensor:
        """Class ids (M,)."""
        return predicted_class(self.decisions)

    @functools.cached_property
    def ids(self) -> Tensor:
        """The targets' class ids (M,)."""
        target = self.target.reshape(self.target.shape[0])
        if target.dtype.is_floating_point:  # of two classes, shares of class 1
            target = target > 0.5
        found: Tensor = target.cast("int64")
        return found

    @functools.cached_property
    def share(self) -> Tensor:
        """What each row counts (M,): its weight, or 1."""
        if self.weight is not None:
            return self.weight.cast("float64")
        ones: Tensor = full((self.scores.shape[0],), 1.0, dtype="float64")
        return ones

    @functools.cached_property
    def total(self) -> Tensor:
        """What all rows count."""
        if self.weight is not None:
            return self.share.sum()
        n_rows: Tensor = full((), float(self.scores.shape[0]), dtype="float64")
        return n_rows

    @functools.cached_property
    def ranks(self) -> Tensor:
        """As ``WholeRows.scores``. Where nothing says how two outputs become probabilities, that of
        class 1 less the other, one for each row.
        """
        scores = self.scores if self.scores.dtype.is_floating_point else self.scores.cast("float32")
        if self._has_classes and not self.has_columns:
            if self.link in ("softmax", "exp"):
                return softmax(scores, 1) if self.link == "softmax" else exp(scores)
            if self.link is None and scores.shape[1] == 2:
                return scores[:, 1] - scores[:, 0]
        if self.link == "sigmoid":
            scores = sigmoid(scores)
        return scores if self.has_columns or self._has_classes else scores.reshape(scores.shape[0])


def predicted_class(output: Tensor) -> Tensor:
    """Class ids (N,) of logits (N, C), or of one logit per row (N,) or (N, 1): positive is 1."""
    if output.ndim == 2 and output.shape[1] > 1:
        best: Tensor = output.argmax(1)
        return best
    positive: Tensor = output.reshape(output.shape[0]) > 0.0
    ids: Tensor = positive.cast("int64")
    return ids


def cut_at_zero(output: Tensor, link: str | None) -> Tensor:
    """Scores that are positive for a yes: logits as they are, probabilities less a half."""
    return output - 0.5 if link == "identity" else output
