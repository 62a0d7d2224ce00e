"""Metrics: sums that a traced update adds to per batch, and a value computed from them per epoch.

The sums are states of the plan in float64, so a metric is exact over the split however it was cut
into batches, sample weights included, and costs nothing in Python per step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hotloop._suggest import did_you_mean
from hotloop.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hotloop.graph.symbolic import Tensor

    Sums = dict[str, Tensor]
    Totals = Mapping[str, npt.NDArray[np.float64]]

__all__ = ["METRICS", "Metric", "resolve_metrics"]


class Metric:
    """A named value of a split.

    Parameters
    ----------
    name : str
        As it stands in the history, after ``val_``.
    update : callable
        ``update(output, target, weight) -> dict of str to Tensor``: sums of this batch. Two
        metrics may share a sum by its name. ``weight`` is a tensor (N,) or None.
    compute : callable
        ``compute(totals) -> float`` from the sums over the split, as NumPy arrays.
    """

    def __init__(
        self,
        name: str,
        update: Callable[[Tensor, Tensor, Tensor | None], Sums],
        compute: Callable[[Totals], float],
    ) -> None:
        self.name = name
        self.update = update
        self.compute = compute

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
    from hotloop.graph.creation import full

    rows: Tensor = full((), float(output.shape[0]))
    return rows


def _share(top: str, bottom: str) -> Callable[[Totals], float]:
    def compute(totals: Totals) -> float:
        return float(totals[top]) / max(float(totals[bottom]), 1e-300)

    return compute


def _confusion(output: Tensor, target: Tensor, weight: Tensor | None) -> Sums:
    from hotloop.graph.creation import zeros

    n = output.shape[1] if output.ndim == 2 and output.shape[1] > 1 else 2
    cell = target.reshape(target.shape[0]).cast("int64") * n + predicted_class(output)
    share = weight
    if share is None:
        share = output.reshape(output.shape[0], -1).sum(1) * 0.0 + 1.0
    return {"confusion": zeros((n * n,)).scatter_add(0, cell, share)}


def _table(totals: Totals) -> tuple[Any, Any, Any]:
    """True positives, predicted and actual counts per class."""
    flat = totals["confusion"]
    n = round(flat.size**0.5)
    table = flat.reshape(n, n)
    return table.diagonal(), table.sum(0), table.sum(1)


def _mean_over_classes(share: Callable[[Any, Any, Any], Any]) -> Callable[[Totals], float]:
    """Macro average over the classes that occur; of two classes, the value of class 1."""

    def compute(totals: Totals) -> float:
        import numpy as np

        hit, predicted, actual = _table(totals)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = np.nan_to_num(share(hit, predicted, actual))
        if len(hit) == 2:
            return float(values[1])
        present = (predicted + actual) > 0
        return float(values[present].mean()) if present.any() else 0.0

    return compute


def _recall_mean(totals: Totals) -> float:
    import numpy as np

    hit, _, actual = _table(totals)
    present = actual > 0
    return float(np.mean(hit[present] / actual[present])) if present.any() else 0.0


def _errors(output: Tensor, target: Tensor, weight: Tensor | None) -> Sums:
    goal = match_shape(target.cast("float32"), output)
    error = (output - goal).reshape(output.shape[0], -1)
    flat = goal.reshape(output.shape[0], -1)
    columns = {"square": error * error, "absolute": error.abs(), "y": flat, "yy": flat * flat}
    sums: Sums = {}
    for name, column in columns.items():
        per_row = column.mean(1)
        sums[name] = (per_row if weight is None else per_row * weight).sum()
    return {**sums, "weight": _rows_weight(output, weight)}


def match_shape(target: Tensor, output: Tensor) -> Tensor:
    """The target in the output's shape where both hold the same numbers: (N,) and (N, 1).

    Broadcasting (N,) against (N, 1) to (N, N) is the classic silent mistake; it is an error here.
    """
    if target.shape == output.shape:
        return target
    if target.numel() == output.numel() and target.shape[:1] == output.shape[:1]:
        return target.reshape(output.shape)
    fix = "check the last layer's size"
    if target.ndim == 1 and output.ndim == 2:
        fix = "for one value per row end in Linear(..., 1), for classes give integers as targets"
    raise ShapeError(
        f"target: must have the output's shape {output.shape}, got {target.shape}; {fix}"
    )


def _r2(totals: Totals) -> float:
    n = float(totals["weight"])
    spread = float(totals["yy"]) - float(totals["y"]) ** 2 / max(n, 1e-300)
    return 1.0 - float(totals["square"]) / spread if spread > 0 else 0.0


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
        Metric("mse", _errors, _MSE),
        Metric("rmse", _errors, _root(_MSE)),
        Metric("mae", _errors, _share("absolute", "weight")),
        Metric("r2", _errors, _r2),
    )
}


class PythonMetric:
    """A function ``(y_true, y_pred) -> float`` over the whole validation split."""

    def __init__(self, name: str, function: Callable[[Any, Any], float]) -> None:
        self.name = name
        self.function = function


def resolve_metrics(
    metrics: tuple[Any, ...] | Mapping[str, Any], target_kind: str
) -> list[Metric | PythonMetric]:
    """The metrics that a config names; accuracy for class targets when it names none.

    Raises
    ------
    ConfigError
        For an unknown name, with the list of those there are.
    """
    named: list[tuple[str, Any]]
    if isinstance(metrics, Mapping):
        named = list(metrics.items())
    else:
        named = [(str(getattr(m, "__name__", None) or getattr(m, "name", m)), m) for m in metrics]
    if not named and target_kind in ("class", "multilabel"):
        return [METRICS["accuracy"]]
    found: list[Metric | PythonMetric] = []
    for name, metric in named:
        if isinstance(metric, Metric):
            found.append(metric)
        elif callable(metric):
            found.append(PythonMetric(name, metric))
        elif metric in METRICS:
            known = METRICS[metric]
            found.append(Metric(name, known.update, known.compute))
        else:
            raise ConfigError(
                f"metrics: must be one of {', '.join(METRICS)}, a Metric or a function "
                f"(y_true, y_pred), got {metric!r}{did_you_mean(str(metric), METRICS)}"
            )
    return found


def check_metrics(metrics: Sequence[Metric | PythonMetric], target_kind: str) -> None:
    """Refuses what compares classes where targets are values, and the other way round.

    Raises
    ------
    ConfigError
    """
    refused = {
        "float": (_hits, _confusion, "class targets", "mse, rmse, mae or r2"),
        "class": (_errors, _errors, "values as targets", "accuracy, f1 and the like"),
    }.get(target_kind)
    for metric in metrics:
        if refused and isinstance(metric, Metric) and metric.update in refused[:2]:
            raise ConfigError(
                f"metrics: {metric.name} needs {refused[2]}, got {target_kind} targets; choose "
                f"{refused[3]}"
            )


def python_metrics(
    metrics: Sequence[Metric | PythonMetric],
    target_kind: str,
    batches: Iterable[Mapping[str, Any]],
    outputs: Sequence[Any],
) -> dict[str, float]:
    """The functions among the metrics, over a whole split.

    Parameters
    ----------
    metrics : sequence of Metric or PythonMetric
    target_kind : str
    batches : iterable of dict
        The split's, in order, for their "y".
    outputs : sequence of array
        What the model made of them.
    """
    import numpy as np

    functions = [metric for metric in metrics if isinstance(metric, PythonMetric)]
    if not functions:
        return {}
    predicted = np.concatenate(list(outputs))
    target = np.concatenate([batch["y"] for batch in batches])[: len(predicted)]
    if target_kind == "class":
        many = predicted.ndim == 2 and predicted.shape[1] > 1
        predicted = predicted.argmax(1) if many else (predicted.reshape(-1) > 0).astype(int)
    return {metric.name: float(metric.function(target, predicted)) for metric in functions}
