"""The metrics of a run: what the configuration names, for which targets, and whether they fit."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hotloop.errors import ConfigError
from hotloop.training.scoring import catalogue
from hotloop.training.scoring.functions import FunctionMetric, name_of
from hotloop.training.scoring.metric import Metric
from hotloop.training.scoring.suggestions import suggest_metric

__all__ = ["check_metrics", "check_needs", "metrics_by_target", "resolve_metrics"]


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
        if isinstance(metric, FunctionMetric):
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
        is_of_classes = target_kind in ("class", "multilabel")
        return [catalogue.METRICS["accuracy"]] if is_of_classes else []
    if isinstance(metrics, Mapping):
        named = list(metrics.items())
    else:
        named = [(m if isinstance(m, str) else name_of(m), m) for m in metrics]
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
    return [_resolve(name, given) for name, given in named]


def _resolve(name: str, given: Any) -> Metric | FunctionMetric:
    """A metric as it is given, under a name."""
    if isinstance(given, FunctionMetric):
        return dataclasses.replace(given, name=name)
    if isinstance(given, tuple):
        raise ConfigError(
            f"metrics: a list of metrics for {name!r} is for several targets, got one target; "
            "write metrics=[...] with all of them"
        )
    if callable(given):
        return FunctionMetric(name, given)
    known = catalogue.find(given)
    if known is None:
        raise ConfigError(
            f"metrics: must be one of {catalogue.list_names()}, or a function (y_true, y_pred), "
            f"got {given!r}{suggest_metric(str(given))}"
        )
    return dataclasses.replace(known, name=name)


# For each kind of targets, what a built-in metric needs that does not fit them, and what fits.
_NEEDED = {
    "float": ("class targets", "mse, rmse, mae or r2"),
    "class": ("values as targets", "accuracy, f1 and the like"),
    "multilabel": ("one class in each row", "accuracy, f1, auc and the like, which take columns"),
}
_REFUSED = {"float": ("classes", "ids"), "class": ("values",)}


def _fits(metric: Metric | FunctionMetric, target_kind: str) -> bool:
    """Whether a metric compares what such targets are."""
    return isinstance(metric, FunctionMetric) or metric.takes not in _REFUSED.get(target_kind, ())


def refuse_metric(metric: Metric, target_kind: str, beside: str = "") -> ConfigError:
    """The error of a metric that does not fit its targets."""
    needs, choose = _NEEDED[target_kind]
    what = "yes-or-no columns" if target_kind == "multilabel" else f"{target_kind} targets"
    return ConfigError(f"metrics: {metric.name} needs {needs}, got {what}{beside}; choose {choose}")


def check_metrics(metrics: Sequence[Metric | FunctionMetric], target_kind: str) -> None:
    """Refuses what compares classes where targets are values, and the other way round.

    Raises
    ------
    ConfigError
    """
    for metric in metrics:
        if isinstance(metric, Metric) and not _fits(metric, target_kind):
            raise refuse_metric(metric, target_kind)


def check_needs(
    metrics: Sequence[Metric | FunctionMetric],
    target_kind: str,
    loss: str | None,
    link: str | None,
    *,
    has_labels: bool,
    has_order: bool,
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
    has_order : bool
        Whether outputs are in the order of probabilities, whatever these are.

    Raises
    ------
    ConfigError
    """
    what = "training_step" if loss is None else f"the loss {loss}"
    fix = "write loss='bce' for logits or loss=nn.BCELoss() for probabilities"
    if loss is None:
        fix = "return it from training_step beside the loss"
    for each in metrics:
        need = each.need_for(target_kind) if isinstance(each, FunctionMetric) else each.needs
        if need == "scores" and not has_order:
            need = "proba"
        if need == "labels" and not has_labels:
            raise ConfigError(
                f"metrics: {each.name}: needs labels, and {what} does not say from which value on "
                f"one output is a yes; {fix}, or compare the outputs in a function of your own, "
                "hl.metric(fn, needs='output')"
            )
        if need != "proba" or link:
            continue
        if isinstance(each, Metric) and target_kind == "float":
            raise refuse_metric(each, target_kind, f" beside {what}")
        asks, fix = "needs", "leave the metric out"
        if isinstance(each, FunctionMetric):
            asks, fix = "needs='proba' asks for", "write needs='output'"
        raise ConfigError(
            f"metrics: {each.name}: {asks} probabilities, and {what} does not say how outputs "
            f"become them; give the loss by name ('cross_entropy', 'bce') or {fix}"
        )
