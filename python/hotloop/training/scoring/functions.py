"""Functions of the user's as metrics: what they are given of a whole split, and return."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hotloop.base.rules import choice, optional, reject, show
from hotloop.errors import ConfigError, ShapeError
from hotloop.graph.elementary import exp, sigmoid
from hotloop.graph.reduction import softmax
from hotloop.graph.symbolic import Tensor
from hotloop.training.scoring.matching import match_shape
from hotloop.training.scoring.metric import Metric, cut_at_zero, predicted_class

__all__ = [
    "FunctionMetric",
    "describe_functions",
    "find_prediction",
    "function_metrics",
    "metric",
    "name_of",
]

# What functions of scikit-learn need that compare with something else than predicted labels.
_NEEDS = dict.fromkeys(
    (
        "average_precision_score",
        "brier_score_loss",
        "coverage_error",
        "d2_brier_score",
        "d2_log_loss_score",
        "dcg_score",
        "label_ranking_average_precision_score",
        "label_ranking_loss",
        "log_loss",
        "ndcg_score",
        "roc_auc_score",
        "top_k_accuracy_score",
    ),
    "proba",
) | {"hinge_loss": "decision"}


@dataclasses.dataclass(frozen=True)
class FunctionMetric:
    """A function over a whole split, and what it is given; see :func:`metric`.

    Attributes
    ----------
    name : str
    function : callable
    needs : {"labels", "proba", "output"} or None
        None: by the function's name and the targets.
    mode : {"min", "max"} or None
        None: by the name.
    """

    name: str
    function: Callable[..., Any]
    needs: str | None = None
    mode: str | None = None

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def need_for(self, target_kind: str) -> str:
        """What it is given: labels, proba, output, "decision" (outputs, of two classes one value
        that is positive for class 1), or "values" in the shape of float targets.

        Raises
        ------
        ConfigError
            If such targets have none.
        """
        is_float = target_kind == "float"
        need = self.needs or _NEEDS.get(_name_of(self.function))
        if need in ("labels", "proba") and is_float:
            raise ConfigError(
                f"metrics: {self.name}: needs={need!r} is for classes, got {target_kind} targets; "
                "give integers or strings as targets, or write needs='output'"
            )
        return need or ("values" if is_float else "labels")

    @property
    def takes_weights(self) -> bool:
        """Whether the function has an argument "sample_weight", as scikit-learn's do."""
        try:
            return "sample_weight" in inspect.signature(self.function).parameters
        except (TypeError, ValueError):  # a builtin without a signature
            return False


def name_of(given: Any) -> str:
    """A function's name in the history, after ``val_``."""
    return given.name if isinstance(given, FunctionMetric) else _name_of(given)


def _name_of(function: Any) -> str:
    while isinstance(function, (functools.partial, FunctionMetric)):
        function = function.func if isinstance(function, functools.partial) else function.function
    return str(getattr(function, "__name__", type(function).__name__))


def metric(
    function: Callable[..., Any] | None = None,
    *,
    needs: str | None = None,
    mode: str | None = None,
    name: str | None = None,
) -> Any:
    """A function as a metric, with what it compares the targets with.

    Parameters
    ----------
    function : callable
        ``function(y_true, y_pred) -> float``, called once with the whole split; class targets are
        ids. One with an argument ``sample_weight`` gets the weights, where the data has some. Of
        class ids per position (token, pixel) each position is a row, and those that are ignored
        are left out. Without a function, ``metric`` is a decorator.
    needs : {"labels", "proba", "output"}, optional
        What ``y_pred`` is. "labels": predicted class ids (N,), or 0 and 1 per column. "proba":
        probabilities, (N, C), or of two classes those of class 1 (N,). "output": what the model
        gives, in the targets' shape where it holds as many numbers. Without it, functions that have
        the name of one of scikit-learn's get what that needs (``roc_auc_score`` probabilities);
        others get labels, and of float targets outputs in the targets' shape.
    mode : {"min", "max"}, optional
        Whether a smaller or a larger value is better, for ``monitor``. Without it the name decides,
        where it has a word such as "loss", "error", "accuracy" or "score".
    name : str, optional
        As it stands in the history, after ``val_``; else the function's.

    Returns
    -------
    FunctionMetric
        For ``TrainingConfig(metrics=...)``; it is called as the function is.

    Raises
    ------
    ConfigError
        If function, needs or mode is none of these.

    Examples
    --------
    >>> def gini(y_true, p):
    ...     return 2 * roc_auc_score(y_true, p) - 1
    >>> config = hl.TrainingConfig(metrics=[hl.metric(gini, needs="proba", mode="max")])
    """
    if function is None:
        return functools.partial(metric, needs=needs, mode=mode, name=name)
    if not callable(function):
        reject("metric", "needs a function (y_true, y_pred)", function)
    return FunctionMetric(
        name or _name_of(function),
        function,
        optional(choice("labels", "proba", "output"))("needs", needs),
        optional(choice("min", "max"))("mode", mode),
    )


def find_prediction(
    need: str, output: Tensor, target: Tensor, kind: str, link: str | None
) -> Tensor:
    """What a function is given beside the targets.

    Parameters
    ----------
    need : {"labels", "proba", "output", "decision", "values"}
    output, target : Tensor
        Of a batch.
    kind : str
        Of the targets.
    link : str or None
        How outputs become probabilities.

    Raises
    ------
    ShapeError
        If "values" and targets do not hold the same numbers.
    """
    if need == "labels":
        scores = cut_at_zero(output, link)
        return predicted_class(scores) if kind == "class" else (scores > 0.0).cast("int64")
    if need == "proba":
        proba = output
        if link in ("softmax", "exp"):
            proba = softmax(output, 1) if link == "softmax" else exp(output)
            return proba[:, 1] if proba.shape[1] == 2 else proba
        if link == "sigmoid":
            proba = sigmoid(output)
        return proba.reshape(proba.shape[0]) if kind == "class" else proba
    if need == "decision" and kind == "class":
        if output.ndim == 2 and output.shape[1] == 2:
            return output[:, 1] - output[:, 0]
        output = cut_at_zero(output, link)
    try:
        return match_shape(output, target)
    except ShapeError:
        if need != "values":
            return output
        raise ShapeError(
            f"must get outputs in the targets' shape, got output {output.shape} and target "
            f"{target.shape}; write hl.metric(function, needs='output') to get them as they are"
        ) from None


def function_metrics(
    metrics: Sequence[Metric | FunctionMetric],
    needs: Sequence[str],
    target_kind: str,
    batches: Iterable[Mapping[str, Any]],
    outputs: Sequence[Sequence[Any]],
    ignored: int | None,
) -> dict[str, float]:
    """The functions among the metrics, over a whole split.

    Parameters
    ----------
    metrics : sequence of Metric or FunctionMetric
    needs : sequence of str
        What each batch has in ``outputs``.
    target_kind : str
    batches : iterable of dict
        The split's, in order, for the target as "y", and "weight".
    outputs : sequence of sequences of arrays
        What was found of each batch, by need.

    ignored : int or None
        The class id of positions that are left out.

    Raises
    ------
    ConfigError
        If a function does not return a number.
    """
    functions = [each for each in metrics if isinstance(each, FunctionMetric)]
    if not functions:
        return {}
    predicted = {need: np.concatenate(found) for need, found in zip(needs, zip(*outputs))}
    fields: dict[str, list[Any]] = {"y": [], "weight": []}
    for batch in batches:
        y, own = batch["y"], batch.get("weight")
        if target_kind == "class":  # a row for each position, of which batches may have several
            own = None if own is None else np.repeat(own, y[:1].size)
            y = y.reshape(-1)
        fields["y"].append(y)
        fields["weight"] += [] if own is None else [own]
    target = np.concatenate(fields["y"])
    weight = np.concatenate(fields["weight"]) if fields["weight"] else None
    if ignored is not None:
        counts = target != ignored
        target, weight = target[counts], None if weight is None else weight[counts]
        predicted = {need: values[counts] for need, values in predicted.items()}
    scores = {}
    for each in functions:
        # copies: a function may write to what it is given
        options = {}
        if weight is not None and each.takes_weights:
            options["sample_weight"] = weight.copy()
        made = predicted[each.need_for(target_kind)].copy()
        try:
            value = each.function(target.copy(), made, **options)
        except Exception as error:
            error.add_note(
                f"metrics: {each.name}(y_true, y_pred) got y_true {target.shape} and, as y_pred, "
                f"the {each.need_for(target_kind)} {made.shape}; hl.metric(function, needs=...) "
                "says what else it needs"
            )
            raise
        try:
            scores[each.name] = float(value)
        except (TypeError, ValueError):
            raise ConfigError(
                f"metrics: {each.name}: must return a number, got {type(value).__name__} "
                f"{show(value)}"
            ) from None
    return scores


def describe_functions(
    metrics: Sequence[Metric | FunctionMetric], target_kind: str, name: str, *, weighted: bool
) -> list[str]:
    """What each function among the metrics of a target is given, for the header."""
    described = []
    for each in metrics:
        if isinstance(each, FunctionMetric):
            blind = " without sample weights" if weighted and not each.takes_weights else ""
            of = f"{name} " if name else ""
            described.append(f"{of}{each.name}(y_true, {each.need_for(target_kind)}){blind}")
    return described
