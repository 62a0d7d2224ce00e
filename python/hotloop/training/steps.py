"""From a model, data and a configuration to the graphs of training and evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hotloop.data.split import nest_fields
from hotloop.errors import ConfigError, TraceError
from hotloop.graph.loss_parts import loss_terms
from hotloop.training.losses import Loss, check_scalar, count_outputs, doubt_of_link, resolve_loss
from hotloop.training.metrics import (
    Metric,
    PythonMetric,
    check_metrics,
    python_metrics,
    resolve_metrics,
)
from hotloop.training.patterns import matches, select
from hotloop.training.precision import wants_scale
from hotloop.training.runtime import Runtime, Sums, call_model, check_output, flatten, gather_batch

if TYPE_CHECKING:
    from hotloop import _core
    from hotloop.data.module import DataModule
    from hotloop.data.split import Split
    from hotloop.graph.symbolic import Tensor
    from hotloop.graph.trace import Trace
    from hotloop.training.config import TrainingConfig
    from hotloop.training.parts import ParamGroup

__all__ = ["Steps"]


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


Groups = list[tuple[int, int]]
EvalPlans = list[EvalPlan]


class Steps:
    """Builds the plans of a run.

    Parameters
    ----------
    runtime : Runtime
    data : DataModule
    config : TrainingConfig
    transforms : list, optional
        Fitted transforms of the inputs; without it, the data's own.

    Attributes
    ----------
    loss : Loss or None
        Known after the first trace; None where training_step makes the loss itself.
    metrics : list of Metric or PythonMetric
    no_grad : list of str
        Parameters that the loss does not reach, after ``train_graph``.
    n_outputs : int or None
        Classes that the outputs tell apart, where the loss is cross-entropy: 2 of a single logit.
    doubt : str
        What is probably wrong with the loss, after the first trace; empty: nothing.
    """

    def __init__(
        self,
        runtime: Runtime,
        data: DataModule,
        config: TrainingConfig,
        transforms: list[Any] | None = None,
    ) -> None:
        self.runtime = runtime
        self.data = data
        self.config = config
        self.loss: Loss | None = None
        self.metrics = resolve_metrics(config.metrics, data.target_kind)
        self.train_sums = Sums("train")
        self.no_grad: list[str] = []
        self.n_outputs: int | None = None
        self.doubt = ""
        self._transforms = data.transforms if transforms is None else transforms
        self._user_step = getattr(runtime.model, "training_step", None)
        for field, given in (
            ("loss", config.loss != "auto"),
            ("metrics", bool(config.metrics)),
            ("class_weight", config.class_weight is not None),
            ("label_smoothing", bool(config.label_smoothing)),
        ):
            if given and self._user_step is not None:
                raise ConfigError(
                    f"{field}: the model's training_step makes the losses and returns no output, "
                    f"got {field}={getattr(config, field)!r} beside it; leave one of them out"
                )

    # ---- one batch

    def _batch(self, trace: Trace, split: Split, rows: int) -> dict[str, Any]:
        return nest_fields(gather_batch(trace, split, rows, self._transforms))

    def _losses(self, batch: dict[str, Any]) -> tuple[dict[str, Tensor], Any]:
        """Named losses of a batch, and the output where the default step ran."""
        if self._user_step is not None:
            made = self._user_step(batch)
            output = None
        else:
            output = call_model(self.runtime.model, batch["x"])
            check_output(self.runtime.model, output)
            if self.loss is None:
                self.loss = resolve_loss(self.config, self.data, output)
                self.doubt = doubt_of_link(self.loss, output)
                if self.config.loss == "auto":
                    check_metrics(self.metrics, self.data.target_kind)
            if self.loss.link is not None:
                self.n_outputs = count_outputs(output)
            made = self.loss(output, batch.get("y"), batch.get("weight"))
        what = "training_step" if self._user_step is not None else "loss"
        losses = dict(made) if isinstance(made, Mapping) else {"loss": made}
        if not losses:
            raise TraceError(f"{what}: must return a loss or a dict of losses, got an empty dict")
        for name, loss in losses.items():
            check_scalar(loss, f"{what} {name!r}" if len(losses) > 1 else what)
        return losses, output

    def _add_losses(self, trace: Trace, sums: Sums, losses: dict[str, Tensor], rows: int) -> None:
        """Each term's sum and denominator, so that an epoch's mean divides once."""
        for name, loss in losses.items():
            for i, term in enumerate(loss_terms(loss)):
                scale = 1.0 if term.denominator is not None else float(rows)
                below = term.denominator
                if below is None:
                    below = trace.number("float32", float(rows))
                sums.add(trace, f"loss.{name}.{i}.sum", term.total * (scale * term.weight))
                sums.add(trace, f"loss.{name}.{i}.of", below)

    def _add_metrics(self, trace: Trace, sums: Sums, output: Any, batch: dict[str, Any]) -> None:
        done: set[str] = set()
        first = flatten(output)[0][0]
        for metric in self.metrics:
            if not isinstance(metric, Metric):
                continue
            for name, value in metric.update(first, batch["y"], batch.get("weight")).items():
                key = f"{_prefix_of(metric)}{name}"
                if key not in done:
                    sums.add(trace, key, value)
                    done.add(key)

    # ---- training

    def train_graph(self, split: Split, rows: int, total_steps: int) -> _core.Graph:
        """The training step's graph for micro-batches of ``rows`` samples."""
        layout = self.runtime.layout

        def build(trace: Trace) -> tuple[list[tuple[int, int | None, float]], list[int]]:
            batch = self._batch(trace, split, rows)
            losses, _ = self._losses(batch)
            self._add_losses(trace, self.train_sums, losses, rows)
            terms = [
                (
                    term.total.id_in(trace),
                    None if term.denominator is None else term.denominator.id_in(trace),
                    term.weight,
                )
                for loss in losses.values()
                for term in loss_terms(loss)
            ]
            return terms, [trace.leaf(slot.owner).id_in(trace) for slot in layout.trainable]

        graph, (terms, params) = self.runtime.trace(build, training=True)
        untouched = graph.clone()
        made = graph.training_step(terms, params, self._spec(rows, total_steps, graph))
        self.no_grad = [layout.trainable[i].name for i in made["no_grad"]]
        if self.no_grad:  # the optimizer leaves them alone, decay included, as torch does
            graph = untouched
            graph.training_step(terms, params, self._spec(rows, total_steps, graph))
        return graph

    def _spec(self, rows: int, total_steps: int, graph: _core.Graph) -> dict[str, Any]:
        config = self.config
        optimizer = config.optimizer_config
        name, attrs = _optimizer_op(optimizer)
        clip = config.gradient_clip_val or 0.0
        by_norm = config.gradient_clip_algorithm == "norm"
        ema = config.ema if config.ema else None
        return {
            "rows": rows,
            "optimizer": name,
            "attrs": attrs,
            "segments": self._segments(),
            "accumulate": config.accumulate_grad_batches > 1,
            "clip_norm": clip if by_norm else 0.0,
            "clip_value": 0.0 if by_norm else clip,
            "ema": None if ema is None else getattr(ema, "decay", 0.999),
            "ema_ramp": False,
            "table": (len(self.runtime.numbers), max(total_steps, 1)),
            "scales_loss": wants_scale(config.precision, self.runtime.device),
        }

    def _segments(self) -> list[tuple[int, int, float, float]]:
        """Runs of parameters with the same learning-rate scale and weight decay.

        Parameters that get no gradient are in none: the optimizer does not touch them.
        """
        config = self.config
        optimizer = config.optimizer_config
        segments: list[tuple[int, int, float, float]] = []
        names = [name for name, _ in self.runtime.model.named_parameters()]
        for group in config.param_groups or ():
            select("param_groups", group.params, names)  # refuses a pattern that matches nothing
        for slot in self.runtime.layout.trainable:
            begin, end = slot.offset, slot.offset + slot.size
            scale, decay = 1.0, float(optimizer.weight_decay or 0.0)
            if not config.decay_norm_and_bias and len(slot.owner.shape) < 2:
                decay = 0.0
            for group in config.param_groups or ():
                if any(matches(pattern, slot.name) for pattern in group.params):
                    scale = _scale_of(group, config.lr)
                    decay = decay if group.weight_decay is None else group.weight_decay
                    break
            if slot.name in self.no_grad:
                continue
            if segments and segments[-1][1:] == (begin, scale, decay):
                segments[-1] = (segments[-1][0], end, scale, decay)
            elif slot.size:
                segments.append((begin, end, scale, decay))
        return segments

    # ---- evaluation

    def eval_graph(self, split: Split, rows: int, sums: Sums) -> _core.Graph:
        """Losses, metrics and, for Python metrics, outputs of a batch of ``rows`` samples."""

        def build(trace: Trace) -> None:
            batch = self._batch(trace, split, rows)
            losses, output = self._losses(batch)
            self._add_losses(trace, sums, losses, rows)
            if output is None:
                return
            if "y" in batch:
                self._add_metrics(trace, sums, output, batch)
            if self.has_functions:
                trace.graph.output(flatten(output)[0][0].id_in(trace))

        graph, _ = self.runtime.trace(build, training=False)
        return graph

    def eval_plans(self, name: str, groups: Groups, sums: Sums) -> EvalPlans:
        """The plans of a split cut into ``groups``: (batch size, number of batches) each."""
        split = self.data.split(name)
        assert split is not None  # callers have checked
        made: EvalPlans = []
        ring = self.runtime.ring(self.data.num_workers, groups[0][0] if groups else 1)
        feeds = self.data.feeds(name, groups, training=False, **ring)
        for (size, count), feed in zip(groups, feeds):
            graph = self.eval_graph(split, size, sums)
            plan = self.runtime.plan(graph, split, feed)
            made.append(EvalPlan(plan, count, feed, Traced(graph, split, size)))
        return made

    @property
    def has_functions(self) -> bool:
        """Whether functions are among the metrics: evaluation then has outputs to read."""
        default = self._user_step is None
        return default and any(isinstance(metric, PythonMetric) for metric in self.metrics)

    def function_values(self, split: str, outputs: list[Any]) -> dict[str, float]:
        """The functions among the metrics, over a split whose ``outputs`` were collected."""
        if not outputs:
            return {}
        batches = self.data.batches_in_order(split)
        return python_metrics(self.metrics, self.data.target_kind, batches, outputs)

    def value_names(self, sums: Sums, *, functions: bool = False) -> list[str]:
        """The names in ``values(sums.read(...))``; with ``functions``, the functions' as well."""
        losses = dict.fromkeys(_loss_of(key) for key in sums.names if _is_loss(key))
        names = ["loss", *(losses if len(losses) > 1 else ())]
        for metric in self.metrics:
            if isinstance(metric, PythonMetric):
                known = functions and self.has_functions
            else:
                known = any(key.startswith(_prefix_of(metric)) for key in sums.names)
            names += [metric.name] if known else []
        return names

    def values(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Losses and metrics from sums: ``loss``, each named loss, each metric."""
        losses: dict[str, float] = {}
        for key, total in totals.items():
            if _is_loss(key):
                name = _loss_of(key)
                below = float(totals[key[: -len("sum")] + "of"])
                share = float(total) / below if below else 0.0
                losses[name] = losses.get(name, 0.0) + share
        values = {"loss": sum(losses.values())}
        if len(losses) > 1:
            values.update(losses)
        for metric in self.metrics:
            if not isinstance(metric, Metric):
                continue
            prefix = _prefix_of(metric)
            own = {k[len(prefix) :]: v for k, v in totals.items() if k.startswith(prefix)}
            if own:
                values[metric.name] = metric.compute(own)
        return values


def _is_loss(key: str) -> bool:
    return key.startswith("loss.") and key.endswith(".sum")


def _loss_of(key: str) -> str:
    """The loss whose sum ``loss.<name>.<term>.sum`` is."""
    return key.removeprefix("loss.").removesuffix(".sum").rpartition(".")[0]


def _prefix_of(metric: Metric) -> str:
    """Of the names of a metric's sums, which metrics of one update share."""
    return f"metric.{metric.update.__name__}."


def _scale_of(group: ParamGroup, lr: float) -> float:
    """A group's learning rate as a multiple of the configuration's."""
    if group.lr is not None:
        return group.lr / lr
    return 1.0 if group.lr_scale is None else group.lr_scale


def _optimizer_op(optimizer: Any) -> tuple[str, dict[str, Any]]:
    """The op and its attributes."""
    name = optimizer.name
    if name in ("adam", "adamw"):
        beta1, beta2 = optimizer.betas
        return "adam", {
            "beta1": beta1,
            "beta2": beta2,
            "eps": optimizer.eps,
            "decoupled": int(name == "adamw"),
        }
    if name == "sgd":
        return "sgd", {
            "momentum": optimizer.momentum,
            "dampening": optimizer.dampening,
            "nesterov": int(optimizer.nesterov),
        }
    if name == "rmsprop":
        return "rmsprop", {
            "alpha": optimizer.alpha,
            "eps": optimizer.eps,
            "momentum": optimizer.momentum,
            "centered": int(optimizer.centered),
        }
    beta1, beta2 = optimizer.betas
    return "lion", {"beta1": beta1, "beta2": beta2}
