"""From a model, data and a configuration to the graphs of training and evaluation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotloop.base.messages import show_warnings, warn
from hotloop.base.patterns import select
from hotloop.base.structure import flatten
from hotloop.data.checks import check_bounds
from hotloop.data.scaling import doubt_of_values
from hotloop.data.split import nest_fields, padding_of
from hotloop.data.targets import name_of_target
from hotloop.errors import ConfigError, DataWarning, ModelWarning, TraceError
from hotloop.graph.loss_parts import loss_terms, with_parts
from hotloop.graph.symbolic import Tensor
from hotloop.stats.calls import Calls, ModuleMetric
from hotloop.training.config.parts import EMAConfig
from hotloop.training.plans.batch import call_step
from hotloop.training.plans.fitted import Fitted
from hotloop.training.plans.layers import scales_of_layers
from hotloop.training.plans.masks import masked_ids, masked_inputs, masked_targets, refuse_functions
from hotloop.training.plans.methods import check_methods, check_sequences
from hotloop.training.plans.mixing import check_mixing, mix_batch, mix_losses
from hotloop.training.plans.optimizers import optimizer_op
from hotloop.training.plans.precision import wants_scale
from hotloop.training.plans.runtime import (
    Runtime,
    Sums,
    call_model,
    check_output,
    gather_batch,
    table_columns,
)
from hotloop.training.plans.target_scale import TargetScale
from hotloop.training.plans.wavelengths import wavelengths_of
from hotloop.training.scoring.functions import FunctionMetric
from hotloop.training.scoring.losses import (
    Loss,
    check_scalar,
    doubt_of_link,
    is_auto,
    resolve_loss,
    to_logged,
)
from hotloop.training.scoring.matching import check_rows, pick_output
from hotloop.training.scoring.metric import Metric
from hotloop.training.scoring.names import check_names
from hotloop.training.scoring.saved import scoring_of
from hotloop.training.scoring.tasks import Task, make_tasks

if TYPE_CHECKING:
    from hotloop import _core
    from hotloop.data.batching import Group
    from hotloop.data.module import DataModule
    from hotloop.data.split import Split
    from hotloop.graph.trace import Trace
    from hotloop.nn.module import Module
    from hotloop.nn.parameter import Variable
    from hotloop.training.config import TrainingConfig
    from hotloop.training.config.parts import ParamGroup

__all__ = [
    "EvalPlan",
    "EvalPlans",
    "Steps",
    "Traced",
    "graphs_of_parts",
    "metadata_of",
    "run_plans",
]


class Traced(NamedTuple):
    """A graph, the split that it was made for, and the rows of its batches."""

    graph: _core.Graph
    split: Split
    rows: int


class EvalPlan(NamedTuple):
    """A plan of evaluation and its part of the split."""

    plan: _core.Plan
    n_batches: int
    feed: _core.Feed
    traced: Traced


class Made(NamedTuple):
    """What the model makes of a batch.

    Attributes
    ----------
    losses : dict of str to Tensor
        What is trained: their sum.
    logged : dict of str to Tensor
        Other numbers of training_step, as means over the rows in the history.
    output : Tensor, structure of them, or None
        Where the default step ran.
    """

    losses: dict[str, Tensor]
    logged: dict[str, Tensor]
    output: Any


Terms = tuple[int, int | None, float]  # as Graph.training_step takes them
EvalPlans = list[EvalPlan]
_MAX_NAMES = 10  # that a warning lists


def metadata_of(model: Module, data: DataModule, config: TrainingConfig) -> Fitted:
    """What is known of the data that a model is fitted to, whatever its loss.

    Parameters
    ----------
    model : Module
    data : DataModule
    config : TrainingConfig
    """
    split = data.split("train")
    assert split is not None  # training always has this split
    inputs = [field for field in split.fields if field.is_input]
    return Fitted(
        classes=data.classes,
        target_kind="none",
        link=None,
        transforms=list(data.transforms),
        fields=[(f.name, f.dtype, f.shape) for f in inputs],
        columns=list(inputs[0].columns) if len(inputs) == 1 and inputs[0].columns else None,
        config=config.replace(callbacks=()),
        scoring=scoring_of(config),
        pixels={f.name: f.array.dtype == np.uint8 for f in inputs},
        padding=padding_of(split.fields),
        encoding=data.encoding,
        wavelengths=wavelengths_of(model, data),
    )


class Steps:
    """Builds the plans of a run.

    Parameters
    ----------
    runtime : Runtime
    data : DataModule
    config : TrainingConfig
    transforms : list, optional
        Fitted transforms; without it, the data's own.
    keeps_matrix : bool
        Whether evaluation counts the confusion matrix unasked, where that is cheap.
    began : mapping of str to int, optional
        Optimizer steps before the moments of a parameter began with zeros, where there were any.

    Attributes
    ----------
    target_scale : TargetScale
        Of the targets: the loss gets them scaled, metrics get outputs scaled back.
    loss : Loss or None
        Known after the first trace; None where training_step makes the loss itself.
    tasks : list of Task
        The targets with their metrics; what they know of outputs is known after the first trace.
    no_grad : list of str
        Parameters that the loss does not reach, after ``train_graph``.
    loss_names : list of str
        Losses that are summed, after ``train_graph``; a single one is "loss".
    logged_names : list of str
        What training_step has logged beside the loss.
    output_shapes : dict of int to str
        ``id`` of each module that ran in training to the shapes of its output, after
        ``train_graph``.
    doubt : str
        What is probably wrong with the loss, after the first trace; empty: nothing.
    """

    def __init__(
        self,
        runtime: Runtime,
        data: DataModule,
        config: TrainingConfig,
        transforms: list[Any] | None = None,
        *,
        keeps_matrix: bool = False,
        began: Mapping[str, int] | None = None,
    ) -> None:
        check_methods(runtime.model, config.callbacks)
        self.runtime = runtime
        self.data = data
        self.config = config
        self._began = began or {}
        self.loss: Loss | None = None
        self.train_sums = Sums("train")
        self.no_grad: list[str] = []
        self._eval_groups: dict[str, list[Group]] = {}  # by split, as they were planned last
        self.doubt = ""
        self._known: tuple[TrainingConfig, Fitted] | None = None
        self._is_unweighted = False  # sample weights, and a training_step that leaves them out
        self.output_shapes: dict[int, str] = {}
        self.loss_names: list[str] = []
        self.logged_names: list[str] = []
        metrics = config.metrics if isinstance(config.metrics, tuple) else ()
        self._module_metrics = [each for each in metrics if isinstance(each, ModuleMetric)]
        self._measured: dict[str, list[str]] = {}  # values' names, by that of their metric
        self._transforms = data.transforms if transforms is None else transforms
        self.target_scale = TargetScale(self._transforms, list(data.targets))
        self._user_step = getattr(runtime.model, "training_step", None)
        is_own_step = self._user_step is not None
        self._targets, of_pixels = masked_targets(data)
        self._padding = _padding_of(data)
        if self._padding is not None and self._user_step is None:
            check_sequences(runtime.model, self._padding[0])
        self._ignores_lengths = False  # a forward that counts padding as it does rows
        check_mixing(config, is_own_step=is_own_step, has_lengths=self._padding is not None)
        self.tasks = make_tasks(
            config, self._targets, is_own_step=is_own_step, keeps_matrix=keeps_matrix
        )
        refuse_functions([task.needs for task in self.tasks if task.name in of_pixels])
        for field, given in (
            ("loss", config.loss != "auto"),
            ("class_weight", config.class_weight is not None),
            ("label_smoothing", bool(config.label_smoothing)),
            ("metrics", bool(self._module_metrics)),
        ):
            if given and self._user_step is not None:
                raise ConfigError(
                    f"{field}: the model's training_step makes the losses, got "
                    f" {field}={getattr(config, field)!r} beside it; leave one of them out"
                )

    # ---- what training teaches of the data

    def metadata(self, config: TrainingConfig, step: int | None = None) -> Fitted:
        """The metadata of a run, for ``set_metadata`` once the model has its new weights.

        Parameters
        ----------
        config : TrainingConfig
            With what was chosen for "auto".
        step : int, optional
            The optimizer steps that the weights have had; by default all of the run.
        """
        loss, runtime = self.loss, self.runtime
        if self._known is None or self._known[0] is not config:  # callbacks ask in each epoch
            self._known = config, metadata_of(runtime.model, self.data, config)
        return dataclasses.replace(
            self._known[1],
            target_kind=self._of_tasks({task.name: task.kind for task in self.tasks}, "none"),
            link=self._of_tasks({task.name: task.link for task in self.tasks}, None),
            class_axis=self._of_tasks({task.name: task.axis for task in self.tasks}, None),
            numbers=runtime.last_numbers(step),
            loss=loss.saved_name if loss is not None else "training_step",
            autotune_cache=runtime.device.autotune_cache(),
        )

    @staticmethod
    def _of_tasks(values: dict[str, Any], default: Any) -> Any:
        """One value for one target, or the dict for several."""
        return values if values and "" not in values else values.get("", default)

    # ---- one batch

    def _batch(
        self, trace: Trace, split: Split, rows: int, *, training: bool = False
    ) -> dict[str, Any]:
        steps = self.data.augment_steps if training else ()
        fields = gather_batch(trace, split, rows, self._transforms, steps)
        trace.note_batch(fields.values())
        return (made := nest_fields(fields)) | {"x": masked_inputs(made["x"])}

    def _make(self, batch: dict[str, Any], *, training: bool = False) -> Made:
        """The losses of a batch, by training_step or from forward's output."""
        batch = self.target_scale.scale(batch)
        mixed = None
        if training:
            batch, mixed = mix_batch(batch, self.config)
        if self._user_step is not None:
            return self._make_own(self._user_step, batch)
        self._check_rows_of_values()
        calls = self._watch_modules(batch)
        output = call_model(self.runtime.model, batch["x"])
        check_output(self.runtime.model, output)
        calls.output = output
        if self.loss is None:
            shapes = _shapes_of_targets(batch)
            self.loss = resolve_loss(self.config, self.data, self._targets, output, shapes)
            self._read_tasks(output, batch)
            self.doubt = self._find_doubt(output)
            self._check_scaled(output)
        trace = flatten(output)[0][0].trace
        with trace.labelled("loss"), calls.running():
            made = self.loss(output, self._ids(trace, batch), batch.get("weight"))
            if mixed is not None:
                ids = self._ids(trace, mixed.batch)
                other = self.loss(output, ids, mixed.batch.get("weight"))
                made = mix_losses(made, other, mixed.own)
        losses = dict(made) if isinstance(made, Mapping) else {"loss": made}
        for name, loss in losses.items():
            check_scalar(loss, f"loss {name!r}" if len(losses) > 1 else "loss")
        is_measured = not training or self.config.train_metrics
        measured = self._measure(calls) if is_measured else {}
        return Made(losses, self._take_logged(losses, measured, trace), output)

    def _ids(self, trace: Trace, batch: dict[str, Any]) -> Any:
        """The targets, of which those beside a mask count nothing."""
        return masked_ids(trace.noted("mask"), batch.get("y"), self._targets)

    def _watch_modules(self, batch: dict[str, Any]) -> Calls:
        """What losses and metrics of modules read, from now on."""
        calls = Calls(self.runtime.model, flatten(batch["x"])[0][0].trace)
        calls.batch = batch
        return calls

    def _measure(self, calls: Calls) -> dict[str, Any]:
        """The values of the metrics that read modules."""
        found: dict[str, Any] = {}
        for metric in self._module_metrics:
            try:
                values = metric.compute(calls)
            except ConfigError as error:
                raise ConfigError(f"{type(metric).__name__}: {error}") from None
            self._measured[metric.name] = list(values)
            for name, value in values.items():
                if isinstance(value, tuple):
                    value = with_parts(value[0] / value[1], *value)
                found[name] = value
        return found

    def _check_rows_of_values(self) -> None:
        """Refuses values for each row of padded sequences, which no loss here leaves padding of."""
        kinds = [task.kind for task in self.tasks]
        if self._padding is not None and self._padding[2] and kinds != ["class"]:
            raise ConfigError(
                f"y: each row of the sequences has a target of kind {kinds[0]}, whose padding the "
                "losses here would count; write a training_step that leaves it out: batch['x'] is "
                "(sequences, lengths or mask), and padding is 0 in batch['y']"
            )

    def _read_tasks(self, output: Any, batch: dict[str, Any]) -> None:
        shapes = _shapes_of_targets(batch)
        for task in self.tasks:
            is_own = is_auto(self.config.loss, task.name)
            task.read(self.loss, output, shapes[task.name], is_auto=is_own)

    def _check_scaled(self, output: Any) -> None:
        """Refuses scaled targets that nothing compares as values, or that are not scaled back."""
        for task in self.tasks:
            if self.target_scale.has(task.name) and task.link is not None and task.loss is not None:
                raise ConfigError(
                    "standardize: y is scaled for losses that compare values ('mse', 'l1', "
                    f"'huber'), got the loss {task.loss.name}; write standardize='x'"
                )
        self.target_scale.check(output)

    def _find_doubt(self, output: Any) -> str:
        """What is probably wrong with the losses of the targets; "": nothing."""
        doubts = [
            doubt_of_link(task.loss, pick_output(output, task.name, list(self.data.targets)))
            for task in self.tasks
            if task.loss is not None and task.link is not None
        ]
        return next((doubt for doubt in doubts if doubt), "")

    def _make_own(self, step: Callable[[Any], Any], batch: dict[str, Any]) -> Made:
        x, *others = (flatten(batch[name])[0] for name in ("x", "y", "weight") if name in batch)
        seen = x[0].trace.watch(self.runtime.model)
        made = call_step(step, batch)
        if seen and not any(self._metrics()):  # those read what forward makes of x alone
            self._read_tasks(seen[-1].output, batch)
        check_rows("training_step", x[0].trace, x, [leaf for part in others for leaf in part])
        values = dict(made) if isinstance(made, Mapping) else {"loss": made}
        if not values:
            raise TraceError(
                "training_step: must return a loss or a dict of losses, got an empty dict"
            )
        losses = {"loss": values.pop("loss")} if "loss" in values else values
        logged = {} if losses is values else values
        for name, loss in losses.items():
            check_scalar(loss, f"training_step {name!r}" if len(losses) > 1 else "training_step")
        return Made(losses, self._take_logged(losses, logged, x[0].trace), None)

    def _take_logged(
        self, losses: Mapping[str, Any], values: Mapping[str, Any], trace: Trace
    ) -> dict[str, Tensor]:
        """The values beside the losses, and those of ``self.log``, as tensors."""
        metrics = [(label, metric.name) for _, metric, label in self._metrics()]
        check_names(losses if len(losses) > 1 else (), values, trace.logged, metrics)
        logged = {**values, **trace.logged}
        self.logged_names = list(logged)
        return {name: to_logged(name, value, trace) for name, value in logged.items()}

    def _add_losses(self, trace: Trace, sums: Sums, made: Made, rows: int) -> None:
        """Each term's sum and denominator, so that an epoch's mean divides once."""
        named = [("loss", *item) for item in made.losses.items()]
        named += [("log", *item) for item in made.logged.items()]
        for kind, name, loss in named:
            for i, term in enumerate(loss_terms(loss)):
                scale = 1.0 if term.denominator is not None else float(rows)
                below = term.denominator
                if below is None:
                    below = trace.number("float32", float(rows))
                sums.add(trace, f"{kind}.{name}.{i}.sum", term.total * (scale * term.weight))
                sums.add(trace, f"{kind}.{name}.{i}.of", below)

    def _add_metrics(
        self,
        trace: Trace,
        sums: Sums,
        output: Any,
        batch: dict[str, Any],
        centres: Mapping[str, Any],
        *,
        training: bool = False,
    ) -> None:
        ids, weight = self._ids(trace, batch), batch.get("weight")
        for task in self.tasks:
            if not task.metrics:
                continue
            centre = centres[task.name]
            found = task.sums(output, ids, weight, centre, has_matrix=not training)
            for key, value in found:
                sums.add(trace, key, value)

    def _centres(self, split: Split) -> dict[str, Any]:
        """A value among each target's. A dataset's own code may draw random numbers: no trace."""
        named = {task.name: f"y.{task.name}" if task.name else "y" for task in self.tasks}
        return {name: split.middle(field) for name, field in named.items()}

    def _check_trained_metrics(self) -> None:
        """Refuses to compute metrics of training where there are none, or none can be.

        Raises
        ------
        ConfigError
        """
        if not self.config.train_metrics:
            return
        if self._user_step is not None:
            raise ConfigError(
                "train_metrics: the model's training_step makes the losses, got train_metrics=True "
                "beside it; return the values beside the loss: {'loss': loss, 'accuracy': hits}"
            )
        known = [metric for _, metric, _ in self._metrics() if isinstance(metric, Metric)]
        has_some = any(metric.update is not None and metric.form != "matrix" for metric in known)
        if has_some or self._module_metrics:
            return
        names = ", ".join(label for _, _, label in self._metrics()) or "none"
        raise ConfigError(
            "train_metrics: metrics must be sums over rows, such as accuracy, f1 or rmse, got "
            f"{names}; add one to metrics, or leave train_metrics out"
        )

    def _metrics(self) -> Iterator[tuple[Task, Metric | FunctionMetric, str]]:
        """Every metric with its task, and its name in the history."""
        for task in self.tasks:
            for metric in task.metrics:
                yield task, metric, task.label(metric.name)

    # ---- training

    def train_graph(self, split: Split, rows: int, total_steps: int) -> _core.Graph:
        """The training step's graph for micro-batches of ``rows`` samples."""
        layout = self.runtime.layout
        has_metrics = self.config.train_metrics and self._user_step is None
        centres = self._centres(split) if has_metrics else {}

        def build(trace: Trace) -> tuple[dict[str, list[Terms]], list[int], list[int], list[int]]:
            batch = self._batch(trace, split, rows, training=True)
            said = _told(batch) if self._padding is not None else []
            told = [tensor.id_in(trace) for tensor in said]
            weights = [batch["weight"].id_in(trace)] if "weight" in batch else []
            made = self._make(batch, training=True)
            self.output_shapes = self.output_shapes or trace.output_shapes
            self._add_losses(trace, self.train_sums, made, rows)
            self._check_trained_metrics()
            if has_metrics:
                output = self.target_scale.undo(made.output)
                self._add_metrics(trace, self.train_sums, output, batch, centres, training=True)
            terms = {
                name: [
                    (
                        term.total.id_in(trace),
                        None if term.denominator is None else term.denominator.id_in(trace),
                        term.weight,
                    )
                    for term in loss_terms(loss)
                ]
                for name, loss in made.losses.items()
            }
            params = [trace.own_leaf(slot.owner).id_in(trace) for slot in layout.trainable]
            return terms, params, weights, told

        graph, (named, params, weights, told) = self.runtime.trace(build, training=True)
        self._check_reached(graph, named, params)
        terms = [term for of_loss in named.values() for term in of_loss]
        weighted = [value for term in terms for value in term[:2] if value is not None]
        self._is_unweighted = bool(weights) and not any(
            graph.depends(value, weights)[0] for value in weighted
        )
        self._ignores_lengths = bool(told) and not any(
            graph.depends(value, told)[0] for value in weighted
        )
        untouched = graph.clone()
        made = graph.training_step(terms, params, self._spec(rows, total_steps, graph))
        self.no_grad = [layout.trainable[i].name for i in made["no_grad"]]
        if self.no_grad:  # the optimizer leaves them alone, decay included, as torch does
            graph = untouched
            graph.training_step(terms, params, self._spec(rows, total_steps, graph))
        return graph

    def _check_reached(
        self, graph: _core.Graph, named: dict[str, list[Terms]], params: list[int]
    ) -> None:
        """Refuses a loss from which no gradient comes: it would be in the sum and not be trained.

        Raises
        ------
        TraceError
        """
        if self.loss_names or not params:
            return  # seen at the first trace, or nothing is trained
        what = "loss" if self._user_step is None else "training_step"
        for name, terms in named.items():
            scratch = graph.clone()
            if any(grad is not None for t, _, _ in terms for grad in scratch.backward(t, params)):
                continue
            if len(named) == 1:
                raise TraceError(
                    f"{what}: the loss must depend on the parameters that are trained, got one "
                    "with no gradient for any of them; is it detached, or made by argmax, a "
                    "comparison or a cast?"
                )
            fix = "leave it out"
            if self._user_step is not None:
                fix = 'name what is to be trained "loss"; the other values are then logged alone'
            raise TraceError(
                f"{what} {name!r}: all values of a dict are losses, which are summed, got one with "
                f"no gradient for any parameter that is trained; {fix}"
            )
        self.loss_names = list(named)

    def _spec(self, rows: int, total_steps: int, graph: _core.Graph) -> dict[str, Any]:
        config = self.config
        optimizer = config.optimizer_config
        name, attrs = optimizer_op(optimizer)
        clip = config.gradient_clip_val or 0.0
        by_norm = config.gradient_clip_algorithm == "norm"
        ema = config.ema if isinstance(config.ema, EMAConfig) else None
        return {
            "rows": rows,
            "optimizer": name,
            "attrs": attrs,
            "segments": self._segments(),
            "accumulate": config.accumulate_grad_batches > 1,
            "clip_norm": clip if by_norm else 0.0,
            "clip_value": 0.0 if by_norm else clip,
            "ema": None if ema is None else ema.decay,
            "ema_ramp": ema is not None and ema.ramp,
            "table": (len(self.runtime.numbers), table_columns(total_steps)),
            "scales_loss": wants_scale(config.precision, self.runtime.device),
        }

    def _segments(self) -> list[tuple[int, int, float, float, int]]:
        """Runs of parameters with the same learning-rate scale, weight decay and age of moments.

        Parameters that get no gradient are in none: the optimizer does not touch them.
        """
        config = self.config
        optimizer = config.optimizer_config
        segments: list[tuple[int, int, float, float, int]] = []
        slots = [slot for slot in self.runtime.layout.slots if slot.store == "param"]
        names = [name for slot in slots for name in slot.names]
        for group in config.param_groups or ():
            select("param_groups", group.params, names)  # refuses a pattern that matches nothing
        by_layer = scales_of_layers(self.runtime.model, config.layer_decay)
        for slot in self.runtime.layout.trainable:
            begin, end = slot.offset, slot.offset + slot.size
            scale = by_layer.get(id(slot.owner), 1.0)
            decay = float(optimizer.weight_decay or 0.0)
            if not config.decay_norm_and_bias and len(slot.owner.shape) < 2:
                decay = 0.0
            for group in config.param_groups or ():
                if any(map(group.covers, slot.names)):
                    scale = _scale_of(group, config.lr, scale)
                    decay = decay if group.weight_decay is None else group.weight_decay
                    break
            if slot.name in self.no_grad:
                continue
            began = self._began.get(slot.name, 0)
            if segments and segments[-1][1:] == (begin, scale, decay, began):
                segments[-1] = (segments[-1][0], end, scale, decay, began)
            elif slot.size:
                segments.append((begin, end, scale, decay, began))
        return segments

    # ---- evaluation

    def eval_graph(
        self, split: Split, rows: int, sums: Sums, whole: Split | None = None
    ) -> _core.Graph:
        """Losses, metrics and what is collected for others of a batch of ``rows`` samples.

        Parameters
        ----------
        split : Split
        rows : int
        sums : Sums
        whole : Split, optional
            That the split is a part of, which adds to the same sums as the others.
        """

        centres = self._centres(whole or split)

        def build(trace: Trace) -> None:
            batch = self._batch(trace, split, rows)
            made = self._make(batch)
            self._add_losses(trace, sums, made, rows)
            if not any(self._metrics()):
                return
            output = made.output
            if output is None:  # training_step has its own; metrics compare forward's
                output = call_model(self.runtime.model, batch["x"])
                check_output(self.runtime.model, output)
                self._read_tasks(output, batch)
            output = self.target_scale.undo(output)
            self._add_metrics(trace, sums, output, batch, centres)
            ids = self._ids(trace, batch)
            for task in self.tasks:
                for value in task.collected(output, ids, batch.get("weight")):
                    trace.graph.output(value.id_in(trace))

        graph, _ = self.runtime.trace(build, training=False)
        return graph

    def statistics_graph(self, split: Split, rows: int, collected: list[Variable]) -> _core.Graph:
        """What ``collected``, running statistics, become with a batch of ``rows`` samples.

        Rows are augmented as in training. Nothing is mixed and dropout drops nothing, for the
        statistics are to be those of what evaluation computes.
        """

        def build(trace: Trace) -> None:
            batch = self.target_scale.scale(self._batch(trace, split, rows, training=True))
            if self._user_step is not None:
                call_step(self._user_step, batch)
            else:
                call_model(self.runtime.model, batch["x"])

        return self.runtime.trace(build, training=False, collected=collected)[0]

    def eval_plans(
        self,
        name: str,
        groups: list[Group],
        sums: Sums,
        fit: Callable[..., None] = lambda graph, **options: None,
    ) -> EvalPlans:
        """The plans of a split cut into ``groups``; ``fit`` is told of each before it is made."""
        split = self.data.split(name)
        assert split is not None  # callers have checked
        made: EvalPlans = []
        self._eval_groups[name] = groups
        ring = self.runtime.ring(
            self.data.num_workers, groups[0].rows if groups else 1, **self.data.loading(name)
        )
        feeds = self.data.feeds(name, groups, training=False, **ring)
        for (size, count, number), feed in zip(groups, feeds):
            part = split.parts[number]
            graph = self.eval_graph(part, size, sums, split)
            fit(graph, n_slots=feed.n_slots)
            plan = self.runtime.plan(graph, part, feed)
            made.append(EvalPlan(plan, count, feed, Traced(graph, part, size)))
        return made

    @property
    def n_collected(self) -> int:
        """How many outputs of an evaluation plan metrics of the whole split are made from."""
        return sum(task.n_collected for task in self.tasks)

    def collected_values(self, split: str, outputs: list[list[Any]]) -> dict[str, float]:
        """The metrics over a whole split, of which ``outputs`` were collected."""
        values: dict[str, float] = {}
        begin = 0
        for task in self.tasks if outputs else ():
            end = begin + task.n_collected
            if end > begin:
                own = [collected[begin:end] for collected in outputs]
                batches = self.data.batches_in_order(split, self._eval_groups[split])
                values |= task.collected_values(batches, own)
            begin = end
        return values

    def warn_of_training(self) -> None:
        """Says, after ``train_graph``, what is probably wrong with the losses and their targets."""
        if self.doubt:
            warn(self.doubt, ModelWarning)
        if names := self.no_grad:
            more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
            listed = ", ".join(names[:_MAX_NAMES]) + more
            warn(f"parameters {listed} get no gradient: the loss does not use them", ModelWarning)
        k = self.config.accumulate_grad_batches
        if k > 1 and self.loss is not None and self.loss.is_sum:
            warn(
                f"loss: reduction='sum' in steps of {k} batches is the mean of their sums, not the "
                "sum over all rows; write reduction='mean', which is the same however rows are "
                "divided",
                ModelWarning,
            )
        if self._ignores_lengths and self._padding is not None and not self._padding[2]:
            warn(
                "forward: makes nothing of its second argument, so that padding counts as rows do "
                "in all it computes over steps (means, attention, the last step); give it to the "
                "layers that take it, or leave padding out by it",
                ModelWarning,
            )
        if self._is_unweighted:
            warn(
                "training_step: the data has sample weights, and the loss does not depend on "
                "batch['weight']: all rows count alike; return (losses * batch['weight']).sum() / "
                "batch['weight'].sum(), or leave out what gives them, sample_weight or "
                "on_bad_sample='skip'",
                ModelWarning,
            )
        for name in self._compared_as_values():
            self.data.warn_of_values(name)

    def warn_of_evaluation(self, split: str) -> None:
        """As :meth:`warn_of_training`, after ``eval_graph``: what concerns the score of a split."""
        if self.doubt:
            warn(self.doubt, ModelWarning)
        part = self.data.split(split)
        assert part is not None  # it was planned
        for field in part.fields:
            if name_of_target(field.name) in self._compared_as_values() and (
                doubt := doubt_of_values(field, part.rows, is_scaled=True)
            ):
                warn(doubt, DataWarning)

    def _compared_as_values(self) -> list[str]:
        """Names of the float targets whose loss measures how far outputs are from them."""
        return [
            task.name
            for task in self.tasks
            if task.kind == "float" and task.loss is not None and task.loss.compares_values
        ]

    def check_labels(self, data: DataModule, split: str) -> None:
        """Checks that every class id of a split has an output of the model, and that probabilities
        and counts are some.

        Parameters
        ----------
        data : DataModule
            Of the same targets.
        split : {"train", "val", "test"}

        Raises
        ------
        DataError
            With the row, the value and what is allowed.
        """
        part = data.split(split)
        assert part is not None  # it was planned
        fields = {name_of_target(field.name): field for field in part.fields}
        for task in self.tasks:
            if task.n_outputs is not None:
                data.check_labels(split, task.n_outputs, target=task.name, ignored=task.ignored)
            if task.kind == "float" and task.loss is not None and task.loss.bounds is not None:
                check_bounds(fields[task.name], part.rows, *task.loss.bounds, task.loss.name)

    def directions(self) -> dict[str, str]:
        """Whether a smaller or a larger value is better, "min" or "max", where that is known."""
        known = {
            label: metric.mode
            for task, metric, _ in self._metrics()
            for label in task.value_labels(metric)
        }
        known |= {metric.name: metric.mode for metric in self._module_metrics}
        known |= dict.fromkeys(("loss", *self.loss_names), "min")
        return {name: mode for name, mode in known.items() if mode is not None}

    def value_names(self, sums: Sums, *, collected: bool = False) -> list[str]:
        """The names in ``values(sums.read(...))``; with ``collected``, also of
        ``collected_values``.
        """
        losses = dict.fromkeys(_loss_of(key) for key in sums.names if _is_sum(key, "loss"))
        logged = dict.fromkeys(_loss_of(key) for key in sums.names if _is_sum(key, "log"))
        names = ["loss", *(losses if len(losses) > 1 else ()), *logged]
        for task, metric, _ in self._metrics():
            known = collected
            if isinstance(metric, Metric) and metric.update is not None:
                known = task.is_summed(metric, sums.names)
            names += task.value_labels(metric) if known else []
        return names

    def class_names(self) -> list[str]:
        """The names of values of single classes, after ``eval_graph``."""
        return [
            label
            for task, metric, _ in self._metrics()
            if isinstance(metric, Metric) and metric.form == "classes"
            for label in task.value_labels(metric)
        ]

    def values(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Losses and metrics from sums: ``loss``, each named loss, what is logged, each metric."""
        losses, logged = _means(totals, "loss"), _means(totals, "log")
        values = {"loss": sum(losses.values())}
        if len(losses) > 1:
            values.update(losses)
        values.update(logged)
        for metric in self._module_metrics:
            named = [name for name in self._measured.get(metric.name, ()) if name in logged]
            if named:
                values.update(metric.finish({name: logged[name] for name in named}))
        for task in self.tasks:
            values.update(task.values(totals))
        return values

    def matrices(self, totals: Mapping[str, Any], *, asked: bool = False) -> dict[str, Any]:
        """Confusion matrices from sums, by target; ``asked``: by the names that ask for them."""
        found: dict[str, Any] = {}
        for task in self.tasks:
            found |= task.matrices(totals, asked=asked)
        return found


def graphs_of_parts(traced: Iterable[Traced]) -> list[Traced]:
    """The first graph of each part of a split, of those of all its groups."""
    return list({id(one.split): one for one in reversed(list(traced))}.values())[::-1]


def run_plans(plans: Iterable[EvalPlan], *, collect: int) -> list[list[Any]]:
    """Runs plans over their batches; the first ``collect`` outputs of each batch."""
    outputs: list[list[Any]] = []
    for plan, count, _, _ in plans:
        done = 0
        while done < count:
            ran = plan.run(1 if collect else count - done, 0.05)[1]
            done += ran
            if collect and ran:
                outputs.append([plan.output(i) for i in range(collect)])
    show_warnings()
    return outputs


def _padding_of(data: DataModule) -> tuple[str, float, bool] | None:
    """How sequences of several lengths are padded."""
    split = data.split("train")
    return None if split is None else padding_of(split.fields)


def _told(batch: Mapping[str, Any]) -> list[Tensor]:
    """What says which rows are padding, of a batch of sequences of several lengths."""
    x = batch["x"]
    return [x[1]] if isinstance(x, tuple) and len(x) > 1 else []


def _shapes_of_targets(batch: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The targets' shapes in a batch, by name; that of a single one is ""."""
    y = batch.get("y")
    if isinstance(y, Mapping):
        return {name: target.shape for name, target in y.items()}
    if isinstance(y, tuple):
        return {str(i): target.shape for i, target in enumerate(y)}
    return {} if y is None else {"": y.shape}


def _is_sum(key: str, kind: str) -> bool:
    """Whether it is the sum of a term of a "loss", or of a number of the "log"."""
    return key.startswith(f"{kind}.") and key.endswith(".sum")


def _loss_of(key: str) -> str:
    """The name in ``<kind>.<name>.<term>.sum``."""
    return key.partition(".")[2].removesuffix(".sum").rpartition(".")[0]


def _means(totals: Mapping[str, Any], kind: str) -> dict[str, float]:
    """The mean of each name: what its terms' sums and denominators give."""
    means: dict[str, float] = {}
    for key, total in totals.items():
        if _is_sum(key, kind):
            below = float(totals[key[: -len("sum")] + "of"])
            share = float(total) / below if below else math.nan  # no step was applied
            means[_loss_of(key)] = means.get(_loss_of(key), 0.0) + share
    return means


def _scale_of(group: ParamGroup, lr: float, otherwise: float) -> float:
    """A group's learning rate as a multiple of the configuration's; ``otherwise``: it has none."""
    if group.lr is not None:
        return group.lr / lr
    return otherwise if group.lr_scale is None else group.lr_scale
