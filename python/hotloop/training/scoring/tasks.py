"""Tasks: each target with the output that it is compared with, its loss and its metrics.

A model has one task, or, where y is a dict or tuple, one for each target. Losses and metrics of
several tasks are named ``<target>_<name>``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.messages import named, warn
from hotloop.data.targets import IGNORED, Targets
from hotloop.errors import DataWarning, ShapeError
from hotloop.graph.symbolic import Tensor
from hotloop.stats.calls import ModuleMetric
from hotloop.training.scoring.catalogue import METRICS, stem_of
from hotloop.training.scoring.functions import FunctionMetric, find_prediction, function_metrics
from hotloop.training.scoring.losses import Loss, Reading, read_output
from hotloop.training.scoring.matching import (
    by_position,
    check_unmasked,
    count_classes,
    match_shape,
    pick_output,
)
from hotloop.training.scoring.metric import Metric, Rows, WholeRows
from hotloop.training.scoring.metrics import (
    check_metrics,
    check_needs,
    metrics_by_target,
    refuse_metric,
)
from hotloop.training.scoring.ranking import without_value

if TYPE_CHECKING:
    import numpy.typing as npt

    from hotloop.training.config import TrainingConfig

__all__ = ["Task", "make_tasks"]

_OF_CLASSES = ("softmax", "exp")  # links of outputs that have a number for each class
_OF_YES = ("sigmoid", "identity")  # links of outputs that are a yes from some value on
_MAX_CLASSES = 256  # of which the confusion matrix costs a batch as much as its likeliest classes


class Task:
    """A target, and how outputs are compared with it.

    Parameters
    ----------
    name : str
        Of the target; "" where there is one.
    names : sequence of str
        Of all targets, in their order.
    target : Targets
    metrics : list of Metric or FunctionMetric
    is_default : bool
        Whether the metrics are those of metrics="auto", which are left out where outputs have no
        classes, or the loss does not say how they become labels.
    keeps_matrix : bool
        Whether the confusion matrix is counted unasked, of up to 256 classes beside some metric.

    Attributes
    ----------
    kind : str
        Of the target: "class", "multilabel" or "float". After ``read``, "class" also for a matrix
        of 0 and 1 whose output has classes for each of them.
    loss : Loss or None
        After ``read``; None where training_step makes the loss.
    axis : int or None
        The output's dim of classes, after ``read``; None: it has one logit for each id.
    n_outputs : int or None
        Classes of the output, after ``read``, where the loss is about classes.
    matrix : Metric or None
        The confusion matrix, after ``read``, where it is counted.
    """

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        target: Targets,
        metrics: list[Metric | FunctionMetric],
        *,
        is_default: bool,
        keeps_matrix: bool = False,
    ) -> None:
        self.name = name
        self.kind = target.kind
        self.metrics = metrics
        self.loss: Loss | None = None
        self.axis: int | None = 1
        self.n_outputs: int | None = None
        self._names = list(names)
        self._target = target
        self._is_default = is_default
        self._keeps_matrix = keeps_matrix
        self._is_read = False
        self.matrix: Metric | None = None
        self._labels: list[str] = []  # of classes or columns, once metrics were traced
        self._has_weights = False
        self._n_whole = 0  # of what is collected, for metrics of all rows
        self._is_warned = False

    def label(self, metric: str) -> str:
        """A metric's or loss's name in the history."""
        return f"{self.name}_{metric}" if self.name else metric

    @property
    def link(self) -> str | None:
        """How outputs become probabilities."""
        return self.loss.link if self.loss is not None else None

    @property
    def ignored(self) -> int | None:
        """The class id that counts nothing; None: there are no such ids."""
        if self.kind != "class":
            return None
        if self.loss is not None and self.loss.ignored is not None and self.loss.ignored >= 0:
            return self.loss.ignored
        return IGNORED if self._target.has_ignored else None

    def read(self, loss: Loss | None, output: Any, shape: Sequence[int], *, is_auto: bool) -> None:
        """Finds, at the first trace, how the output is compared with the target.

        Parameters
        ----------
        loss : Loss or None
            Of all targets; None: training_step makes it.
        output : Tensor or structure of them
            What forward returns.
        shape : sequence of int
            Of the target in the same batch.
        is_auto : bool
            Whether the loss was chosen by the targets, so that metrics have to fit them.

        Raises
        ------
        ConfigError, ShapeError
            If there is no output for the metrics that are asked for, or they do not fit.
        """
        if self._is_read:
            return
        self._is_read = True
        own = self.loss = loss.part(self.name) if loss is not None else None
        found = read_output(
            self._target.kind,
            shape,
            output,
            self.name,
            self._names,
            is_second=bool(own and own.is_second),
        )
        self.kind, self.axis = found.kind, found.axis
        if self.kind == "float" and self.link in _OF_CLASSES:
            self.axis = 1  # the targets are shares of the classes, in the output's shape
        if found.trouble is not None:
            self._accept(found)
        if own is not None and own.link is not None and found.trouble is None:
            self.n_outputs = count_classes(self._pick(output).shape, self.axis)
        if is_auto:
            check_metrics(self.metrics, self.kind)
        if found.trouble is not None:
            return
        picked = self._pick(output)
        has_labels = self._has_labels(picked)
        if self._is_default and not has_labels:
            self.metrics = []
        name = own.name if own is not None else loss.name if loss is not None else None
        n = count_classes(picked.shape, self.axis)
        has_order = self.kind == "multilabel" or (self.kind == "class" and n == 2)
        check_needs(
            self.metrics,
            self.kind,
            name,
            self.link,
            has_labels=has_labels,
            has_order=has_order or bool(self.link),
        )
        asked = [m for m in self.metrics if isinstance(m, Metric) and m.form == "matrix"]
        is_cheap = self._keeps_matrix and self.kind == "class" and n <= _MAX_CLASSES
        if asked or (is_cheap and has_labels):
            self.matrix = METRICS["confusion_matrix"]

    def _has_labels(self, output: Tensor) -> bool:
        """Whether it is known how the output becomes labels: by its largest value of several, else
        by what the loss says of one.
        """
        has_classes = self.kind == "class" or (self.kind == "float" and self.link in _OF_CLASSES)
        if (
            has_classes
            and self.axis is not None
            and output.ndim > 1
            and output.shape[self.axis] > 1
        ):
            return True
        return self.link in _OF_YES

    def _accept(self, found: Reading) -> None:
        """Goes on without the default metrics; others need an output."""
        assert found.trouble is not None  # the caller has checked
        if self._is_default:
            self.metrics = []
        if self.metrics:
            raise type(found.trouble)(f"metrics: {found.trouble}") from None

    def _pick(self, output: Any) -> Tensor:
        tensor: Tensor = pick_output(output, self.name, self._names)
        return tensor

    def target_of(self, y: Any) -> Any:
        """Its target of a batch's "y"."""
        if not self.name:
            return y
        return y[self._names.index(self.name)] if isinstance(y, tuple) else y[self.name]

    def rows(
        self, output: Any, y: Any, weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Output, target and weight as metrics take them: of class ids a row for each."""
        found, target = self._pick(output), self.target_of(y)
        if self.kind != "class":
            check_unmasked("metrics", "", target)
        if self.kind == "multilabel":
            return match_shape(found, target), target, weight
        if self.kind != "class":
            return found, target, weight
        return by_position(found, target.cast("int64"), weight, self.axis, self.ignored)

    # ---- metrics

    def sums(
        self,
        output: Any,
        y: Any,
        weight: Tensor | None,
        centre: npt.NDArray[np.float64],
        *,
        has_matrix: bool = True,
    ) -> Iterator[tuple[str, Tensor]]:
        """Names and values of the sums that its metrics need of a batch.

        Parameters
        ----------
        output : Tensor or structure of them
            What forward returns.
        y : Tensor, dict or tuple of them
            (N, ...)
        weight : Tensor (N,) or None
        centre : array
            A value among the split's targets.
        has_matrix : bool
            Whether those of the confusion matrix too.
        """
        self._has_weights = self._has_weights or weight is not None
        made: dict[str, Rows] = {}
        done: set[str] = set()
        for metric in self._summed():
            if metric.group in done or (metric.form == "matrix" and not has_matrix):
                continue
            done.add(metric.group)
            try:
                what = "values" if metric.takes == "values" else "classes"
                if what not in made:
                    of_values = Rows(*self.rows(output, y, weight), self.link, centre)
                    made[what] = of_values if what == "values" else self._read_classes(of_values)
                self._check_rows(metric, made[what])
                assert metric.update is not None  # it is summed
                found = metric.update(made[what])
            except ShapeError as error:  # beside a loss that takes such outputs
                raise ShapeError(
                    f"metrics: {metric.name} must get outputs like the targets: {error}; "
                    "hl.metric(function, needs='output') takes outputs of any shape"
                ) from error
            for name, value in found.items():
                yield f"{self._prefix(metric)}{name}", value

    def _summed(self) -> list[Metric]:
        """The metrics that are sums."""
        known = [metric for metric in self.metrics if isinstance(metric, Metric)]
        known += [] if self.matrix is None else [self.matrix]
        return [metric for metric in known if metric.update is not None]

    def _whole(self) -> list[Metric]:
        """The metrics of all rows of a split."""
        known = [metric for metric in self.metrics if isinstance(metric, Metric)]
        return [metric for metric in known if metric.update is None]

    def _read_classes(self, rows: Rows) -> Rows:
        """The rows for metrics that compare classes; of float targets what they say of classes."""
        scores, target, weight = rows.scores, rows.target, rows.weight
        if self.kind == "float" and self.link in _OF_CLASSES and scores.shape == target.shape:
            scores, target, weight = by_position(scores, target.argmax(1), weight, 1, None)
        elif self.kind == "float" and target.ndim > 2:
            matched = match_shape(scores, target)
            scores, target, weight = by_position(matched, target, weight, None, None)
        elif self.kind == "float" and target.numel() == target.shape[0]:
            target = target.reshape(target.shape[0])  # a column is no matrix
        return Rows(scores, target, weight, self.link)

    def _check_rows(self, metric: Metric, rows: Rows) -> None:
        """Refuses columns for a metric of one class in each row; takes the names of the classes."""
        if metric.takes == "values":
            return
        if metric.takes == "ids" and rows.has_columns:
            raise refuse_metric(metric, "multilabel")
        names = () if rows.has_columns else self._target.classes or ()
        self._labels = [str(k if k >= len(names) else names[k]) for k in range(rows.n_labels)]

    def _prefix(self, metric: Metric) -> str:
        """Of the names of a metric's sums, which metrics of one group share."""
        return f"metric.{self._names.index(self.name)}.{metric.group}."

    def value_labels(self, metric: Metric | FunctionMetric) -> list[str]:
        """The names in the history of a metric's values: one, or one for each class; none of a
        matrix. Those of classes are known once metrics were traced.
        """
        if isinstance(metric, FunctionMetric) or metric.form == "number":
            return [self.label(metric.name)]
        if metric.form == "matrix":
            return []
        return [self.label(f"{stem_of(metric.name)}[{name}]") for name in self._labels]

    def is_summed(self, metric: Metric, sums: Iterable[str]) -> bool:
        """Whether the sums of some names have those of a metric."""
        prefix = self._prefix(metric)
        return metric.update is not None and any(name.startswith(prefix) for name in sums)

    def values(self, totals: Mapping[str, npt.NDArray[np.float64]]) -> dict[str, float]:
        """The metrics that are sums, by their names in the history, from sums over a split."""
        found: dict[str, float] = {}
        for metric in self.metrics:
            if isinstance(metric, Metric) and self.is_summed(metric, totals):
                found |= self._by_label(metric, metric.compute(self._own(metric, totals)))
        return found

    def matrices(
        self, totals: Mapping[str, npt.NDArray[np.float64]], *, asked: bool
    ) -> dict[str, npt.NDArray[Any]]:
        """The confusion matrix (C, C), of integers where rows have no weights.

        Parameters
        ----------
        totals : mapping of str to array
            Sums over a split.
        asked : bool
            Whether under each name that asks for it; else, and unasked too, under the target's.
        """
        if self.matrix is None or not self.is_summed(self.matrix, totals):
            return {}
        made = self.matrix.compute(self._own(self.matrix, totals))
        made = made if self._has_weights else made.astype(np.int64)
        if not asked:
            return {self.name: made}
        asking = [m for m in self.metrics if isinstance(m, Metric) and m.form == "matrix"]
        return {self.label(metric.name): made for metric in asking}

    def _own(
        self, metric: Metric, totals: Mapping[str, npt.NDArray[np.float64]]
    ) -> dict[str, npt.NDArray[np.float64]]:
        prefix = self._prefix(metric)
        return {k.removeprefix(prefix): v for k, v in totals.items() if k.startswith(prefix)}

    def _by_label(self, metric: Metric, made: Any) -> dict[str, float]:
        """What a metric computed, by names in the history."""
        each = () if metric.form == "matrix" else np.atleast_1d(made)
        return {k: float(v) for k, v in zip(self.value_labels(metric), each, strict=True)}

    @property
    def needs(self) -> dict[str, str]:
        """What the functions among the metrics are given, each once, by the first of them."""
        needs: dict[str, str] = {}
        for metric in self.metrics:
            if isinstance(metric, FunctionMetric):
                need = metric.need_for(self.kind)
                if need not in needs.values():
                    needs[metric.name] = need
        return needs

    def _predicted(self, output: Any, y: Any) -> Iterator[Tensor]:
        """What functions among the metrics are given of a batch, in the order of ``needs``."""
        if not self.needs:
            return
        scores, target, _ = self.rows(output, y, None)
        for metric, need in self.needs.items():
            try:
                yield find_prediction(need, scores, target, self.kind, self.link)
            except ShapeError as error:
                raise ShapeError(f"metrics: {self.label(metric)} {error}") from None

    def collected(self, output: Any, y: Any, weight: Tensor | None) -> Iterator[Tensor]:
        """What is kept of each batch until the split's end: for functions what ``needs`` says, for
        metrics of all rows their scores, targets and, where there are some, weights.
        """
        yield from self._predicted(output, y)
        known = self._whole()
        if not known:
            return
        rows = self._read_classes(Rows(*self.rows(output, y, weight), self.link))
        for metric in known:
            self._check_rows(metric, rows)
        kept = [rows.ranks, rows.target if rows.has_columns else rows.ids]
        kept += [] if rows.weight is None else [rows.weight]
        self._n_whole = len(kept)
        yield from kept

    @property
    def n_collected(self) -> int:
        """How many tensors ``collected`` gave."""
        return len(self.needs) + self._n_whole

    def collected_values(
        self, batches: Iterable[Mapping[str, Any]], outputs: Sequence[Sequence[Any]]
    ) -> dict[str, float]:
        """The metrics by name of a split, in ``batches``, of which ``outputs`` were collected."""
        own = ({**batch, "y": self.target_of(batch["y"])} for batch in batches)
        needs = list(self.needs.values())
        found = function_metrics(self.metrics, needs, self.kind, own, outputs, self.ignored)
        values = {self.label(name): value for name, value in found.items()}
        known = self._whole()
        if known:
            parts = zip(*(made[len(needs) :] for made in outputs), strict=True)
            scores, target, *weight = (np.concatenate(part) for part in parts)
            rows = WholeRows(scores, target, weight[0].astype(np.float64) if weight else None)
            self._warn_of_one_kind(rows, [metric.name for metric in known])
            for metric in known:
                values |= self._by_label(metric, metric.compute(rows))
        return values

    def _warn_of_one_kind(self, rows: WholeRows, metrics: Sequence[str]) -> None:
        """Says, once, that some classes have no value, as the split's rows are all of one kind."""
        missing = [] if self._is_warned else without_value(rows)
        if not missing:
            return
        self._is_warned = True
        what = "class" if rows.target.ndim == 1 else "column"
        several = "es" if what == "class" else "s"
        which = f"{what}{several if len(missing) > 1 else ''} "
        warn(
            f"metrics: {named(list(metrics))} compare rows of a {what} with the others, and of "
            f"{which}{named([self._labels[k] for k in missing])} the split has all or none: NaN, "
            "which is left out of means; draw the split with rows of each (stratified)",
            DataWarning,
        )


def make_tasks(
    config: TrainingConfig,
    targets: Mapping[str, Targets],
    *,
    is_own_step: bool,
    keeps_matrix: bool,
) -> list[Task]:
    """The tasks of a run, before its first trace.

    Parameters
    ----------
    config : TrainingConfig
    targets : dict of str to Targets
    is_own_step : bool
        Whether training_step makes the loss, beside which no metrics are the default.
    keeps_matrix : bool
        As :class:`Task` takes it.

    Raises
    ------
    ConfigError
        If the metrics do not fit the targets.
    """
    metrics: Any = () if is_own_step and config.metrics == "auto" else config.metrics
    if isinstance(metrics, tuple):  # those of modules are no target's
        metrics = tuple(metric for metric in metrics if not isinstance(metric, ModuleMetric))
    found = metrics_by_target(metrics, {name: target.kind for name, target in targets.items()})
    return [
        Task(
            name,
            list(targets),
            target,
            found[name],
            is_default=metrics == "auto",
            keeps_matrix=keeps_matrix,
        )
        for name, target in targets.items()
    ]
