"""Tasks: each target with the output that it is compared with, its loss and its metrics.

A model has one task, or, where y is a dict or tuple, one for each target. Losses and metrics of
several tasks are named ``<target>_<name>``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hotloop.data.targets import IGNORED, Targets
from hotloop.errors import ShapeError
from hotloop.graph.symbolic import Tensor
from hotloop.training.scoring.losses import Loss, Reading, read_output
from hotloop.training.scoring.matching import by_position, count_classes, match_shape, pick_output
from hotloop.training.scoring.metrics import (
    FunctionMetric,
    Metric,
    check_metrics,
    check_needs,
    cut_at_zero,
    find_prediction,
    function_metrics,
    metrics_by_target,
    update_sums,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hotloop.data.module import DataModule
    from hotloop.training.config import TrainingConfig

__all__ = ["Task", "make_tasks"]

_OF_CLASSES = ("softmax", "exp")  # links of outputs that have a number for each class
_OF_YES = ("sigmoid", "identity")  # links of outputs that are a yes from some value on


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
    """

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        target: Targets,
        metrics: list[Metric | FunctionMetric],
        *,
        is_default: bool,
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
        self._is_read = False

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
        has_labels = self._has_labels(self._pick(output))
        if self._is_default and not has_labels:
            self.metrics = []
        name = own.name if own is not None else loss.name if loss is not None else None
        check_needs(self.metrics, self.kind, name, self.link, has_labels=has_labels)

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
        if self.kind == "multilabel":
            return match_shape(found, target), target, weight
        if self.kind != "class":
            return found, target, weight
        return by_position(found, target.cast("int64"), weight, self.axis, self.ignored)

    # ---- metrics

    def sums(
        self, output: Any, y: Any, weight: Tensor | None, centre: npt.NDArray[np.float64]
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
        """
        known = [metric for metric in self.metrics if isinstance(metric, Metric)]
        if not known:
            return
        for metric in known:
            read = self.rows if metric.is_centred else self._class_rows
            try:
                found = update_sums(metric, *read(output, y, weight), centre)
            except ShapeError as error:  # beside a loss that takes such outputs
                raise ShapeError(
                    f"metrics: {metric.name} must get outputs like the targets: {error}; "
                    "hl.metric(function, needs='output') takes outputs of any shape"
                ) from error
            for name, value in found.items():
                yield f"{self.prefix(metric)}{name}", value

    def _class_rows(
        self, output: Any, y: Any, weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """As ``rows``, for metrics that compare classes: scores that are positive for a yes; of
        float targets what they say of classes.
        """
        scores, target, weight = self.rows(output, y, weight)
        if self.kind == "float" and self.link in _OF_CLASSES and scores.shape == target.shape:
            return by_position(scores, target.argmax(1), weight, 1, None)
        if self.kind == "float" and target.ndim > 2:
            scores, target, weight = by_position(
                match_shape(scores, target), target, weight, None, None
            )
        return cut_at_zero(scores, self.link), target, weight

    def prefix(self, metric: Metric) -> str:
        """Of the names of a metric's sums, which metrics of one update share."""
        at = self._names.index(self.name)
        return f"metric.{at}.{metric.update.__name__}."

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

    def predicted(self, output: Any, y: Any) -> Iterator[Tensor]:
        """What functions among the metrics are given of a batch, in the order of ``needs``."""
        if not self.needs:
            return
        scores, target, _ = self.rows(output, y, None)
        for metric, need in self.needs.items():
            try:
                yield find_prediction(need, scores, target, self.kind, self.link)
            except ShapeError as error:
                raise ShapeError(f"metrics: {self.label(metric)} {error}") from None

    def function_values(
        self, batches: Iterable[Mapping[str, Any]], outputs: Sequence[Sequence[Any]]
    ) -> dict[str, float]:
        """The functions among the metrics, over a split of which ``predicted`` was collected."""
        own = ({**batch, "y": self.target_of(batch["y"])} for batch in batches)
        needs = list(self.needs.values())
        found = function_metrics(self.metrics, needs, self.kind, own, outputs, self.ignored)
        return {self.label(name): value for name, value in found.items()}


def make_tasks(config: TrainingConfig, data: DataModule, *, is_own_step: bool) -> list[Task]:
    """The tasks of a run, before its first trace.

    Parameters
    ----------
    config : TrainingConfig
    data : DataModule
    is_own_step : bool
        Whether training_step makes the loss, beside which no metrics are the default.

    Raises
    ------
    ConfigError
        If the metrics do not fit the targets.
    """
    targets = data.targets
    metrics = () if is_own_step and config.metrics == "auto" else config.metrics
    named = metrics_by_target(metrics, {name: target.kind for name, target in targets.items()})
    return [
        Task(name, list(targets), target, named[name], is_default=metrics == "auto")
        for name, target in targets.items()
    ]
