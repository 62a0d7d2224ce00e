"""Metrics: sums that a traced update adds to per batch, and a value computed from them per epoch.

The sums are states of the plan in float64, so a metric is exact over the split however it was cut
into batches, sample weights included, and costs nothing in Python per step.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import choice, optional, reject, show
from hotloop.errors import ConfigError, ShapeError
from hotloop.graph.creation import full, tensor, zeros
from hotloop.graph.elementary import exp, sigmoid
from hotloop.graph.reduction import softmax
from hotloop.graph.symbolic import Tensor
from hotloop.training.scoring.matching import match_shape
from hotloop.training.scoring.suggestions import suggest_metric

Sums: TypeAlias = dict[str, Tensor]
Totals: TypeAlias = Mapping[str, npt.NDArray[np.float64]]

__all__ = ["METRICS", "FunctionMetric", "Metric", "metric", "resolve_metrics"]


class Metric:
    """A named value of a split.

    Parameters
    ----------
    name : str
        As it stands in the history, after ``val_``.
    update : callable
        ``update(output, target, weight) -> dict of str to Tensor``: sums of this batch. Two
        metrics may share a sum by its name. ``weight`` is a tensor (N,) or None. Of class ids per
        position (token, pixel) each position is a row: output (M, C) or (M,), target (M,), and
        those that are ignored have the weight 0.
    compute : callable
        ``compute(totals) -> float`` from the sums over the split, as NumPy arrays.
    mode : {"min", "max"}
        Whether a smaller or a larger value is better.
    is_centred : bool
        Whether output and target come in one shape, and ``update`` takes a fourth argument: a
        float64 tensor in the shape of a row, near the targets where those lie together.
    """

    def __init__(
        self,
        name: str,
        update: Callable[..., Sums],
        compute: Callable[[Totals], float],
        mode: str = "max",
        *,
        is_centred: bool = False,
    ) -> None:
        self.name = name
        self.mode = mode
        self.update = update
        self.compute = compute
        self.is_centred = is_centred

    @property
    def compares_classes(self) -> bool:
        """Whether it takes positive scores for a yes, as the metrics of classes by name do."""
        return self.update in (_hits, _confusion)

    def __repr__(self) -> str:
        return f"Metric({self.name!r})"


def predicted_class(output: Tensor) -> Tensor:
    """Class ids (N,) of logits (N, C), or of one logit per row (N,) or (N, 1): positive is 1."""
    if output.ndim == 2 and output.shape[1] > 1:
        best: Tensor = output.argmax(1)
        return best
    positive: Tensor = output.reshape(output.shape[0]) > 0.0
    ids: Tensor = positive.cast("int64")
    return ids


def _hits(output: Tensor, target: Tensor, weight: Tensor | None) -> Sums:
    if output.ndim == 2 and target.ndim == 2:  # one logit per column: a row counts by its share
        right = ((output > 0.0).cast("float32") == target.cast("float32")).cast("float32").mean(1)
    else:
        right = (predicted_class(output) == target.reshape(target.shape[0])).cast("float32")
    hits = right if weight is None else right * weight
    return {"hits": hits.sum(), "weight": _rows_weight(output, weight)}


def _rows_weight(output: Tensor, weight: Tensor | None) -> Tensor:
    if weight is not None:
        return weight.sum()
    rows: Tensor = full((), float(output.shape[0]))
    return rows


def _share(top: str, bottom: str) -> Callable[[Totals], float]:
    def compute(totals: Totals) -> float:
        return float(np.mean(totals[top])) / max(float(totals[bottom]), 1e-300)

    return compute


def _confusion(output: Tensor, target: Tensor, weight: Tensor | None) -> Sums:
    if output.ndim == 2 and target.ndim == 2:  # one logit per column: yes or no of each
        said, real = (output > 0.0).cast("float32"), target.cast("float32")
        rows = full((), 1.0) if weight is None else weight.reshape(-1, 1)
        sums = {"hit": said * real * rows, "said": said * rows, "real": real * rows}
        counted: Sums = {name: column.sum(0) for name, column in sums.items()}
        return {**counted, "weight": _rows_weight(output, weight)}
    n = output.shape[1] if output.ndim == 2 and output.shape[1] > 1 else 2
    cell = target.reshape(target.shape[0]).cast("int64") * n + predicted_class(output)
    share = weight
    if share is None:
        share = output.reshape(output.shape[0], -1).sum(1) * 0.0 + 1.0
    return {"confusion": zeros((n * n,)).scatter_add(0, cell, share)}


def _table(totals: Totals) -> tuple[Any, Any, Any]:
    """True positives, predicted and actual counts per class, or of yes per column."""
    if "hit" in totals:
        return totals["hit"], totals["said"], totals["real"]
    flat = totals["confusion"]
    n = round(flat.size**0.5)
    table = flat.reshape(n, n)
    return table.diagonal(), table.sum(0), table.sum(1)


def _mean_over_classes(share: Callable[[Any, Any, Any], Any]) -> Callable[[Totals], float]:
    """The mean over the classes or columns that occur; of two classes, the value of class 1."""

    def compute(totals: Totals) -> float:
        hit, predicted, actual = _table(totals)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = np.nan_to_num(share(hit, predicted, actual))
        if len(hit) == 2 and "confusion" in totals:
            return float(values[1])
        present = (predicted + actual) > 0
        return float(values[present].mean()) if present.any() else 0.0

    return compute


def _recall_mean(totals: Totals) -> float:
    hit, said, actual = _table(totals)
    if "hit" in totals:  # of each column, whose recalls are those of yes and of no
        no = totals["weight"] - actual
        recalls = np.stack([hit, no - (said - hit)]) / np.maximum(np.stack([actual, no]), 1e-300)
        occurs = np.stack([actual, no]) > 0
        return float(np.mean((recalls * occurs).sum(0) / np.maximum(occurs.sum(0), 1)))
    present = actual > 0
    return float(np.mean(hit[present] / actual[present])) if present.any() else 0.0


def _errors(output: Tensor, target: Tensor, weight: Tensor | None, centre: Tensor) -> Sums:
    """Sums of each column in float64. A sum of squares about the mean has no digits left where
    targets are large against their spread, so that those of targets are of what is left of them
    less the centre. Errors are small as they are, and a centre far away would cost their digits.
    """
    rows = output.shape[0]
    goal = target.cast("float64")
    error = (output.cast("float64") - goal).reshape(rows, -1)
    left = (goal - centre).reshape(rows, -1)
    share = None if weight is None else weight.cast("float64").reshape(rows, 1)
    columns = {"square": error * error, "absolute": error.abs(), "y": left, "yy": left * left}
    sums: Sums = {
        name: (column if share is None else column * share).sum(0)
        for name, column in columns.items()
    }
    return {**sums, "weight": _rows_weight(output, weight)}


def update_sums(
    metric: Metric,
    output: Tensor,
    target: Tensor,
    weight: Tensor | None,
    centre: npt.NDArray[np.float64],
) -> Sums:
    """A metric's sums of a batch.

    Parameters
    ----------
    metric : Metric
    output, target : Tensor
        (N, ...)
    weight : Tensor (N,) or None
    centre : array
        A value among the split's targets, in the shape of a row.
    """
    if not metric.is_centred:
        return metric.update(output, target, weight)
    goal = match_shape(target.cast("float32"), output)
    return metric.update(output, goal, weight, tensor(centre.reshape(output.shape[1:])))


def _r2(totals: Totals) -> float:
    """The mean over columns, as in scikit-learn; 1 or 0 for a column that is constant."""
    square, y = totals["square"], totals["y"]
    spread = totals["yy"] - y * y / max(float(totals["weight"]), 1e-300)
    varies = spread > 0
    scores = np.where(square == 0, 1.0, 0.0)
    scores[varies] = 1.0 - square[varies] / spread[varies]
    return float(scores.mean())


def _root(compute: Callable[[Totals], float]) -> Callable[[Totals], float]:
    return lambda totals: compute(totals) ** 0.5


_MSE = _share("square", "weight")

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", _hits, _share("hits", "weight")),
        Metric("balanced_accuracy", _confusion, _recall_mean),
        Metric("precision", _confusion, _mean_over_classes(lambda hit, said, real: hit / said)),
        Metric("recall", _confusion, _mean_over_classes(lambda hit, said, real: hit / real)),
        Metric(
            "f1", _confusion, _mean_over_classes(lambda hit, said, real: 2 * hit / (said + real))
        ),
        Metric(
            "iou", _confusion, _mean_over_classes(lambda hit, said, real: hit / (said + real - hit))
        ),
        Metric("mse", _errors, _MSE, "min", is_centred=True),
        Metric("rmse", _errors, _root(_MSE), "min", is_centred=True),
        Metric("mae", _errors, _share("absolute", "weight"), "min", is_centred=True),
        Metric("r2", _errors, _r2, is_centred=True),
    )
}


# ---- functions of the user's

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


def metrics_by_target(
    metrics: str | tuple[Any, ...] | Mapping[str, Any], kinds: Mapping[str, str]
) -> dict[str, list[Metric | FunctionMetric]]:
    """The metrics of each target.

    Parameters
    ----------
    metrics : "auto", sequence or dict
        As the configuration has them. Of several targets a dict is from their names to a metric or
        several; what is in a list is computed for all targets that it fits.
    kinds : mapping of str to str
        The kind of each target by its name; "" is that of a single one.

    Raises
    ------
    ConfigError
        As :func:`resolve_metrics`; for a target that there is not, and a metric that fits none.
    """
    if not kinds or "" in kinds:
        return {"": resolve_metrics(metrics, kinds.get("", "none"))}
    if isinstance(metrics, Mapping):
        if set(metrics) - set(kinds):
            raise ConfigError(
                f"metrics: a dict has the metrics of each of the targets {', '.join(kinds)}, got "
                f"{', '.join(metrics)}; name them as in the data"
            )
        given = {k: (v,) if not isinstance(v, tuple) else v for k, v in metrics.items()}
        found = {name: resolve_metrics(given.get(name, ()), kind) for name, kind in kinds.items()}
        for name, kind in kinds.items():
            check_metrics(found[name], kind)
        return found
    if metrics == "auto":
        return {name: resolve_metrics(metrics, kind) for name, kind in kinds.items()}
    listed = resolve_metrics(metrics, "several")
    for metric in listed:
        if metric.name not in METRICS:
            raise ConfigError(
                f"metrics: {metric.name} compares one target with its predictions, got several "
                f"targets; write metrics={{{next(iter(kinds))!r}: ...}} with the one that is meant"
            )
        if not any(_fits(metric, kind) for kind in kinds.values()):
            raise ConfigError(
                f"metrics: {metric.name} fits none of the targets, got "
                f"{', '.join(f'{name} ({kind})' for name, kind in kinds.items())}; leave it out"
            )
    return {
        name: [metric for metric in listed if _fits(metric, kind)] for name, kind in kinds.items()
    }


def resolve_metrics(
    metrics: str | tuple[Any, ...] | Mapping[str, Any], target_kind: str
) -> list[Metric | FunctionMetric]:
    """The metrics that a config names; with "auto" accuracy for class targets.

    Raises
    ------
    ConfigError
        For an unknown name, with the list of those there are; for two of one name; for metrics
        without targets.
    """
    named: list[tuple[str, Any]]
    if metrics == "auto":
        return [METRICS["accuracy"]] if target_kind in ("class", "multilabel") else []
    if isinstance(metrics, Mapping):
        named = list(metrics.items())
    else:
        named = [(m if isinstance(m, str) else _own_name(m), m) for m in metrics]
    if named and target_kind == "none":
        raise ConfigError(
            f"metrics: compare outputs with targets, got {', '.join(name for name, _ in named)} "
            "beside data without targets; leave them out"
        )
    twice = [name for name, n in Counter(name for name, _ in named).items() if n > 1]
    if twice:
        raise ConfigError(
            f"metrics: names must differ, got two metrics {twice[0]!r}; give a dict from names to "
            "metrics"
        )
    found: list[Metric | FunctionMetric] = []
    for name, given in named:
        if isinstance(given, Metric):
            found.append(given)
        elif isinstance(given, FunctionMetric):
            found.append(dataclasses.replace(given, name=name))
        elif isinstance(given, tuple):
            raise ConfigError(
                f"metrics: a list of metrics for {name!r} is for several targets, got one target; "
                "write metrics=[...] with all of them"
            )
        elif callable(given):
            found.append(FunctionMetric(name, given))
        elif given in METRICS:
            known = METRICS[given]
            found.append(
                Metric(name, known.update, known.compute, known.mode, is_centred=known.is_centred)
            )
        else:
            raise ConfigError(
                f"metrics: must be one of {', '.join(METRICS)}, a Metric or a function "
                f"(y_true, y_pred), got {given!r}{suggest_metric(str(given), METRICS)}"
            )
    return found


def _own_name(given: Any) -> str:
    return str(given.name) if isinstance(given, (Metric, FunctionMetric)) else _name_of(given)


# For each kind of targets, what a built-in metric needs that does not fit them, and what fits.
_NEEDED = {
    "float": ("class targets", "mse, rmse, mae or r2"),
    "class": ("values as targets", "accuracy, f1 and the like"),
}


def _fits(metric: Metric | FunctionMetric, target_kind: str) -> bool:
    """Whether a metric compares what such targets are."""
    if not isinstance(metric, Metric):
        return True
    refused = {"float": (_hits, _confusion), "class": (_errors,)}.get(target_kind, ())
    return metric.update not in refused


def check_metrics(metrics: Sequence[Metric | FunctionMetric], target_kind: str) -> None:
    """Refuses what compares classes where targets are values, and the other way round.

    Raises
    ------
    ConfigError
    """
    for metric in metrics:
        if isinstance(metric, Metric) and not _fits(metric, target_kind):
            needs, choose = _NEEDED[target_kind]
            raise ConfigError(
                f"metrics: {metric.name} needs {needs}, got {target_kind} targets; choose {choose}"
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


def cut_at_zero(output: Tensor, link: str | None) -> Tensor:
    """Scores that are positive for a yes: logits as they are, probabilities less a half."""
    return output - 0.5 if link == "identity" else output


def needs_of(metric: Metric | FunctionMetric, target_kind: str) -> str:
    """What a metric compares the targets with: "labels", "proba", "output", ..."""
    if isinstance(metric, FunctionMetric):
        return metric.need_for(target_kind)
    return "labels" if metric.compares_classes else "output"


def check_needs(
    metrics: Sequence[Metric | FunctionMetric],
    target_kind: str,
    loss: str | None,
    link: str | None,
    *,
    has_labels: bool,
) -> None:
    """Refuses metrics that need labels or probabilities where nothing says how outputs become them.

    Parameters
    ----------
    metrics : sequence of Metric or FunctionMetric
    target_kind : str
    loss : str or None
        Its name; None: training_step makes it.
    link : str or None
        How outputs become probabilities.
    has_labels : bool
        Whether it is known how outputs become labels.

    Raises
    ------
    ConfigError
    """
    what = "training_step" if loss is None else f"the loss {loss}"
    fix = "write loss='bce' for logits or loss=nn.BCELoss() for probabilities"
    if loss is None:
        fix = "return it from training_step beside the loss"
    for each in metrics:
        need = needs_of(each, target_kind)
        if need == "labels" and not has_labels:
            raise ConfigError(
                f"metrics: {each.name}: needs labels, and {what} does not say from which value on "
                f"one output is a yes; {fix}, or compare the outputs in a function of your own, "
                "hl.metric(fn, needs='output')"
            )
        if need == "proba" and not link:
            raise ConfigError(
                f"metrics: {each.name}: needs='proba' asks for probabilities, and {what} does not "
                "say how outputs become them; give the loss by name ('cross_entropy', 'bce') or "
                "write needs='output'"
            )


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
