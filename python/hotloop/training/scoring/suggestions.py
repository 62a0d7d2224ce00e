"""What the metrics that go by other names elsewhere are called here.

Keras, torchmetrics and scikit-learn have names of their own for the built-in ones; what is not
built in is a function of scikit-learn, which a run takes as it is.
"""

from __future__ import annotations

from typing import NamedTuple

from hotloop.base.suggest import closest, squeeze
from hotloop.training.scoring import catalogue

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
    "topk": "top5_accuracy",
    "topkaccuracy": "top5_accuracy",
    "topkcategoricalaccuracy": "top5_accuracy",
    "topkaccuracyscore": "top5_accuracy",
    "precisionscore": "precision",
    "ppv": "precision",
    "recallscore": "recall",
    "sensitivity": "recall",
    "tpr": "recall",
    "f1score": "f1",
    "macrof1": "f1_macro",
    "microf1": "f1_micro",
    "weightedf1": "f1_weighted",
    "fscore": "f1",
    "dice": "f1",
    "jaccardscore": "iou",
    "jaccardindex": "iou",
    "meaniou": "iou_macro",
    "miou": "iou_macro",
    "aucroc": "auc",
    "rocaucscore": "auc",
    "auprc": "average_precision",
    "prauc": "average_precision",
    "aucpr": "average_precision",
    "averageprecisionscore": "average_precision",
    "logloss": "log_loss",
    "cohenkappascore": "kappa",
    "quadraticweightedkappa": "quadratic_kappa",
    "matthews": "mcc",
    "confusion": "confusion_matrix",
    "confmat": "confusion_matrix",
    "meansquarederror": "mse",
    "rootmeansquarederror": "rmse",
    "meanabsoluteerror": "mae",
    "l1": "mae",
    "r2score": "r2",
    "rsquared": "r2",
    "percentageofcorrectkeypoints": "pck",
}
_OF_SKLEARN = {
    "brier": "brier_score_loss",
    "brierscore": "brier_score_loss",
    "brierscoreloss": "brier_score_loss",
    "fbeta": "fbeta_score",
    "fbetascore": "fbeta_score",
    "hammingloss": "hamming_loss",
    "hinge": "hinge_loss",
    "ndcg": "ndcg_score",
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


def find_metric(name: str) -> MetricName | None:
    """The metric that is meant by a name, or None.

    Parameters
    ----------
    name : str
        As it was written, without ``val_``.

    Returns
    -------
    MetricName or None
    """
    squeezed = squeeze(name)
    if squeezed in _OF_SKLEARN:
        function = _OF_SKLEARN[squeezed]
        return MetricName(function, f"sklearn.metrics.{function}", True)
    exact = next((each for each in (name, name.lower()) if catalogue.is_name(each)), None)
    exact = exact or _BUILT_IN.get(squeezed)
    near = exact or closest(name, catalogue.NAMES)
    return None if near is None else MetricName(near, repr(near), exact is not None)


def suggest_metric(name: str) -> str:
    """The end of an error message about a metric that there is not, or an empty string.

    Parameters
    ----------
    name : str
        As it was written.
    """
    if squeeze(name) in ("loss", "crossentropy", "nll", "ce", "bce"):
        return "; leave it out: the loss is in the history as 'val_loss' in any case"
    found = find_metric(name)
    if found is None:
        return ""
    if found.written == repr(found.name):
        return f"; did you mean {found.written}?"
    return f"; write metrics=[{found.written}], which is 'val_{found.name}' in the history"
