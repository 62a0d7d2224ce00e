"""What the metrics that go by other names elsewhere are called here.

Keras, torchmetrics and scikit-learn have names of their own for the built-in ones; what is not
built in is a function of scikit-learn, which a run takes as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from hotloop.base.suggest import closest, squeeze

__all__ = ["MetricName", "find_metric", "suggest_metric"]

_BUILT_IN = {
    "acc": "accuracy",
    "accuracyscore": "accuracy",
    "binaryaccuracy": "accuracy",
    "categoricalaccuracy": "accuracy",
    "sparsecategoricalaccuracy": "accuracy",
    "top1": "accuracy",
    "balancedaccuracyscore": "balanced_accuracy",
    "bacc": "balanced_accuracy",
    "precisionscore": "precision",
    "ppv": "precision",
    "recallscore": "recall",
    "sensitivity": "recall",
    "tpr": "recall",
    "f1score": "f1",
    "f1macro": "f1",
    "macrof1": "f1",
    "fscore": "f1",
    "dice": "f1",
    "jaccard": "iou",
    "jaccardscore": "iou",
    "meaniou": "iou",
    "miou": "iou",
    "meansquarederror": "mse",
    "rootmeansquarederror": "rmse",
    "meanabsoluteerror": "mae",
    "l1": "mae",
    "r2score": "r2",
    "rsquared": "r2",
}
_OF_SKLEARN = {
    "auc": "roc_auc_score",
    "auroc": "roc_auc_score",
    "rocauc": "roc_auc_score",
    "aucroc": "roc_auc_score",
    "rocaucscore": "roc_auc_score",
    "ap": "average_precision_score",
    "auprc": "average_precision_score",
    "averageprecision": "average_precision_score",
    "averageprecisionscore": "average_precision_score",
    "prauc": "average_precision_score",
    "logloss": "log_loss",
    "brier": "brier_score_loss",
    "brierscore": "brier_score_loss",
    "mcc": "matthews_corrcoef",
    "matthewscorrcoef": "matthews_corrcoef",
    "kappa": "cohen_kappa_score",
    "cohenkappa": "cohen_kappa_score",
    "topk": "top_k_accuracy_score",
    "topkaccuracy": "top_k_accuracy_score",
    "top5": "top_k_accuracy_score",
    "top5accuracy": "top_k_accuracy_score",
    "mape": "mean_absolute_percentage_error",
    "meanabsolutepercentageerror": "mean_absolute_percentage_error",
    "explainedvariance": "explained_variance_score",
    "medianabsoluteerror": "median_absolute_error",
}


class MetricName(NamedTuple):
    """A metric as it is asked for.

    Attributes
    ----------
    name : str
        In the history, after ``val_``.
    written : str
        What stands in ``metrics=[...]``.
    is_certain : bool
        Whether the name is that of a metric elsewhere, not only one that looks like it.
    """

    name: str
    written: str
    is_certain: bool


def find_metric(name: str, built_in: Collection[str]) -> MetricName | None:
    """The metric that is meant by a name, or None.

    Parameters
    ----------
    name : str
        As it was written, without ``val_``.
    built_in : collection of str
        The metrics that there are.

    Returns
    -------
    MetricName or None
    """
    squeezed = squeeze(name)
    if squeezed in _OF_SKLEARN:
        function = _OF_SKLEARN[squeezed]
        return MetricName(function, f"sklearn.metrics.{function}", True)
    exact = name if name in built_in else _BUILT_IN.get(squeezed)
    near = exact or closest(name, built_in)
    return None if near is None else MetricName(near, repr(near), exact is not None)


def suggest_metric(name: str, built_in: Collection[str]) -> str:
    """The end of an error message about a metric that there is not, or an empty string.

    Parameters
    ----------
    name : str
        As it was written.
    built_in : collection of str
        The metrics that there are.
    """
    if squeeze(name) in ("loss", "crossentropy", "nll", "ce", "bce"):
        return "; leave it out: the loss is in the history as 'val_loss' in any case"
    found = find_metric(name, built_in)
    if found is None:
        return ""
    if found.written == repr(found.name):
        return f"; did you mean {found.written}?"
    return f"; write metrics=[{found.written}], which is 'val_{found.name}' in the history"
