"""Metrics by name, on given outputs and targets, and scikit-learn's values of them.

A case is a task with outputs, targets and weights, drawn from a seed. Whole rows come several times
with targets of their own, so that scores are tied, and one class is never predicted. What
scikit-learn makes of it is stored in metric_cases.json with its version. Run as a script in an
environment with scikit-learn, this file writes it anew; test_metric_names.py holds the file to it.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

STORED = Path(__file__).with_suffix(".json")
AVERAGES = {"macro": "macro", "micro": "micro", "weighted": "weighted", "per_class": None}

Array = np.ndarray[Any, Any]


class Case(NamedTuple):
    """Outputs (N, C), (N, 1) of one logit, or (N, K) beside columns; targets; weights or None."""

    outputs: Array
    y: Array
    weight: Array | None

    @property
    def is_columns(self) -> bool:
        """Whether targets are yes-or-no columns."""
        return self.y.ndim == 2

    @property
    def proba(self) -> Array:
        """Probabilities: of each class; of class 1; of each column."""
        scores = self.outputs.astype(np.float64)
        if self.is_columns or scores.shape[1] == 1:
            proba = 1 / (1 + np.exp(-scores))
            return proba if self.is_columns else proba[:, 0]
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        return shares[:, 1] if shares.shape[1] == 2 else shares

    @property
    def labels(self) -> Array:
        """What is predicted."""
        if self.is_columns or self.outputs.shape[1] == 1:
            said = (self.outputs > 0).astype(np.int64)
            return said if self.is_columns else said[:, 0]
        return np.asarray(self.outputs.argmax(1))


def draw() -> dict[str, Case]:
    """The cases by name."""
    found = {}
    for n_outputs, kind in ((1, "one logit"), (2, "two"), (5, "five"), (4, "columns")):
        rng = np.random.default_rng(n_outputs)
        rows = rng.standard_normal((60, n_outputs)).astype(np.float32)
        if kind == "five":
            rows[:, 3] -= 9.0  # never the likeliest
        outputs = rows[rng.integers(0, 60, 200)]
        pull = outputs[:, -1:] + rng.standard_normal((200, 1))
        y = (pull[:, 0] > 0.3).astype(np.int64)
        if kind == "five":
            noisy = outputs + 2.0 * rng.standard_normal(outputs.shape)
            noisy[:, 3] += 9.0
            y = noisy.argmax(1)
        if kind == "columns":
            y = (outputs + rng.standard_normal(outputs.shape) > 0.4).astype(np.int64)
        weight = rng.uniform(0.1, 2.0, 200).astype(np.float32)
        found[kind] = Case(outputs, y, None)
        found[f"{kind}, weighted"] = Case(outputs, y, weight)
    return found


def names_of(case: Case) -> Iterator[str]:
    """The metrics that the case has."""
    yield from ("accuracy", "balanced_accuracy", "log_loss")
    for name in ("precision", "recall", "f1", "iou", "auc", "average_precision"):
        yield name
        yield from (f"{name}_{how}" for how in AVERAGES)
    if not case.is_columns:
        yield from ("kappa", "quadratic_kappa", "mcc", "confusion_matrix")
        if case.outputs.shape[1] == 5:
            yield from ("top1", "top2_accuracy", "top_3_accuracy", "top-4")
            if case.weight is None:  # scikit-learn has no weights there
                yield from ("auc_ovo", "auc_ovo_weighted")


def answers() -> dict[str, dict[str, Any]]:
    """scikit-learn's values by case and metric."""
    return {
        name: {metric: _by_sklearn(case, metric) for metric in names_of(case)}
        for name, case in draw().items()
    }


def _by_sklearn(case: Case, metric: str) -> Any:
    from sklearn import metrics

    y, said, proba = case.y, case.labels, case.proba
    weight = None if case.weight is None else case.weight.astype(np.float64)
    stem, _, how = metric.partition("_")
    if stem == "average":
        stem, how = "average_precision", metric.removeprefix("average_precision").lstrip("_")
    if metric in ("accuracy", "balanced_accuracy", "log_loss") and case.is_columns:
        return float(np.mean([_by_sklearn(column, metric) for column in _columns(case)]))
    share: Callable[..., Any] | None = {
        "precision": metrics.precision_score,
        "recall": metrics.recall_score,
        "f1": metrics.f1_score,
        "iou": metrics.jaccard_score,
    }.get(stem)
    if share is not None:
        usual = "macro" if case.is_columns or case.outputs.shape[1] == 5 else "binary"
        average = AVERAGES[how] if how else usual
        made = share(y, said, average=average, sample_weight=weight, zero_division=0)
    elif stem == "auc" and how.startswith("ovo"):
        average = "weighted" if how == "ovo_weighted" else "macro"
        made = metrics.roc_auc_score(y, proba, multi_class="ovo", average=average)
    elif stem in ("auc", "average_precision"):
        average = AVERAGES[how] if how else "macro"
        area = metrics.roc_auc_score if stem == "auc" else metrics.average_precision_score
        if proba.ndim == 1 and how == "per_class":
            both = np.stack([1.0 - proba, proba], 1)
            made = [area(y == k, both[:, k], sample_weight=weight) for k in range(2)]
        else:
            goal = np.eye(5, dtype=int)[y] if proba.ndim == 2 and y.ndim == 1 else y
            made = area(goal, proba, average=average, sample_weight=weight)
    elif stem.startswith(("top1", "top2", "top-4")) or metric == "top_3_accuracy":
        k = int("".join(c for c in metric if c.isdigit()))
        made = metrics.top_k_accuracy_score(y, proba, k=k, labels=range(5), sample_weight=weight)
    elif metric == "log_loss":
        made = metrics.log_loss(y, proba, sample_weight=weight)
    elif metric == "confusion_matrix":
        made = metrics.confusion_matrix(y, said, sample_weight=weight)
    else:
        score = {
            "accuracy": metrics.accuracy_score,
            "balanced_accuracy": metrics.balanced_accuracy_score,
            "kappa": metrics.cohen_kappa_score,
            "quadratic_kappa": metrics.cohen_kappa_score,
            "mcc": metrics.matthews_corrcoef,
        }[metric]
        rest = {"weights": "quadratic"} if metric == "quadratic_kappa" else {}
        made = score(y, said, sample_weight=weight, **rest)
    return np.asarray(made).tolist()


def _columns(case: Case) -> Iterator[Case]:
    for k in range(case.y.shape[1]):
        yield Case(case.outputs[:, k : k + 1], case.y[:, k], case.weight)


if __name__ == "__main__":
    import sklearn

    lines = [f' "scikit-learn": "{sklearn.__version__}"']
    for name, values in answers().items():
        listed = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in values.items())
        lines.append(f' "{name}": {{\n{listed}\n }}')
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
