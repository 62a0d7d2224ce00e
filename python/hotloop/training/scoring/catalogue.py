"""Metrics by name.

``METRICS`` has one name of each; behind precision and its kin, auc and average_precision may stand
how they are averaged ("f1_weighted", "auc_per_class"), and "top5_accuracy" and "pck@0.1" hold a
number. Names that scikit-learn and others have for the same are names too, where they are exact.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

from hotloop.base.rules import reject
from hotloop.errors import ConfigError
from hotloop.training.scoring import classification, ranking, values
from hotloop.training.scoring.metric import Metric

__all__ = ["METRICS", "NAMES", "find", "is_name", "list_names", "stem_of"]

_OTHER_NAMES = {
    "jaccard": "iou",
    "roc_auc": "auc",
    "auroc": "auc",
    "ap": "average_precision",
    "qwk": "quadratic_kappa",
    "cohen_kappa": "kappa",
    "matthews_corrcoef": "mcc",
}
_TOP = re.compile(r"top[_-]?(\d+)(?:[_-]acc(?:uracy)?)?")
_PCK = re.compile(r"pck(?:@(\d*\.?\d+))?")
_PCK_THRESHOLD = 0.2


def _by_cells(name: str, compute: Callable[[Any], Any], form: str = "number") -> Metric:
    """A metric of the confusion matrix."""
    form = "classes" if name.endswith("_per_class") else form
    return Metric(name, classification.count_cells, compute, group="confusion", form=form)


def _of_ids(metric: Metric) -> Metric:
    return dataclasses.replace(metric, takes="ids")


def _by_order(name: str, compute: Callable[[Any], Any], takes: str = "classes") -> Metric:
    """A metric of the scores of a whole split."""
    form = "classes" if name.endswith("_per_class") else "number"
    return Metric(name, None, compute, group="", takes=takes, needs="scores", form=form)


def _of_values(name: str, compute: Callable[[Any], float], mode: str = "min") -> Metric:
    return Metric(
        name, values.add_errors, compute, mode, group="errors", takes="values", needs="output"
    )


def _top(k: int, name: str) -> Metric:
    if k < 1:
        reject(f"metrics: {name}", "k must be at least 1", k)
    update = classification.count_top(k, name)
    return Metric(name, update, classification.accuracy, group=f"top{k}", takes="ids")


def _pck(threshold: float, name: str) -> Metric:
    if threshold <= 0:
        reject(f"metrics: {name}", "the share must be above 0", threshold)
    update = values.count_near_points(threshold)
    return Metric(
        name, update, values.near_points, group=f"pck{threshold!r}", takes="values", needs="output"
    )


def _averaged(name: str) -> Iterator[Metric]:
    """precision or one of its kin under all averages."""
    share = classification.SHARES[name]
    yield _by_cells(name, classification.average(share, ""))
    for how in classification.AVERAGES:
        yield _by_cells(f"{name}_{how}", classification.average(share, how))


def _ordered(name: str, measure: Any, infix: str = "") -> Iterator[Metric]:
    """auc or average_precision under all averages."""
    yield _by_order(name + infix, ranking.of_labels(measure, ""))
    for how in classification.AVERAGES:
        yield _by_order(f"{name}{infix}_{how}", ranking.of_labels(measure, how))


def _list_metrics() -> Iterator[Metric]:
    yield Metric("accuracy", classification.count_hits, classification.accuracy, group="hits")
    yield _by_cells("balanced_accuracy", classification.balanced_accuracy)
    yield _top(5, "top5_accuracy")
    for name in classification.SHARES:
        yield from _averaged(name)
    yield from _ordered("auc", ranking.area_under_roc)
    yield from _ordered("auc", ranking.area_under_roc, "_ovr")
    for how in ("", "_macro", "_weighted"):
        pairs = ranking.of_pairs(ranking.area_under_roc, how[1:])
        yield _by_order(f"auc_ovo{how}", pairs, takes="ids")
    yield from _ordered("average_precision", ranking.average_precision)
    yield Metric(
        "log_loss",
        classification.add_log_losses,
        classification.mean("loss"),
        "min",
        group="log_loss",
        needs="proba",
    )
    yield _of_ids(_by_cells("kappa", classification.kappa(is_quadratic=False)))
    yield _of_ids(_by_cells("quadratic_kappa", classification.kappa(is_quadratic=True)))
    yield _of_ids(_by_cells("mcc", classification.correlation))
    yield _of_ids(_by_cells("confusion_matrix", classification.confusion_matrix, "matrix"))
    mse = values.column_mean("square")
    yield _of_values("mse", mse)
    yield _of_values("rmse", values.root(mse))
    yield _of_values("mae", values.column_mean("absolute"))
    yield _of_values("r2", values.explained, "max")
    yield _pck(_PCK_THRESHOLD, "pck")


NAMES: dict[str, Metric] = {metric.name: metric for metric in _list_metrics()}
_VARIANTS = ("_ovr", "_ovo", *(f"_{how}" for how in classification.AVERAGES))
# One name of each.
METRICS: dict[str, Metric] = {
    name: metric for name, metric in NAMES.items() if not name.endswith(_VARIANTS)
}


def stem_of(name: str) -> str:
    """A metric's name without that it is of each class: "f1" of "f1_per_class"."""
    return name.removesuffix("_per_class")


def find(name: str) -> Metric | None:
    """The metric of a name, under that name; None: there is none.

    Raises
    ------
    ConfigError
        For a number in the name that can be none.
    """
    known = NAMES.get(name)
    if known is not None:
        return known
    if (top := _TOP.fullmatch(name)) is not None:
        return _top(int(top[1]), name)
    if (near := _PCK.fullmatch(name)) is not None and near[1] is not None:
        return _pck(float(near[1]), name)
    for other, own in _OTHER_NAMES.items():
        known = NAMES.get(own + name.removeprefix(other)) if name.startswith(other) else None
        if known is not None:
            return dataclasses.replace(known, name=name)
    return None


def is_name(name: str) -> bool:
    """Whether it is a metric's."""
    try:
        return find(name) is not None
    except ConfigError:
        return False


def list_names() -> str:
    """What there is, for messages."""
    return (
        f"{', '.join(METRICS)}, with an average behind precision, recall, f1, iou, auc or "
        f"average_precision ({', '.join(f'_{how}' for how in classification.AVERAGES)})"
    )
