"""``stepper``: the planned training step, one call per batch, for hand-written loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hotloop import _core
from hotloop.errors import ConfigError, DataError
from hotloop.nn.layout import resolve_lazy
from hotloop.training.accelerator import check_gpu_options, choose_device, losing_device
from hotloop.training.config import TrainingConfig
from hotloop.training.fitted import check_model, collect_metadata, exclusive, set_metadata
from hotloop.training.lookups import check_lookups
from hotloop.training.precision import choose, start_scale
from hotloop.training.progress import show
from hotloop.training.runtime import Runtime, Sums, run_plans
from hotloop.training.schedule import count_steps, lr_table
from hotloop.training.steps import Steps

if TYPE_CHECKING:
    import numpy.typing as npt

    from hotloop.nn.module import Module

__all__ = ["Stepper", "stepper"]


def stepper(
    model: Module, config: TrainingConfig | None = None, data: Any = None, **overrides: Any
) -> Stepper:
    """The plan that ``train`` would run, for loops of your own.

    Parameters
    ----------
    model : Module
    config : TrainingConfig, optional
    data : DataModule or tuple (X, y)
        Says what batches look like, and how long the schedule is.
    **overrides
        Fields of the configuration.

    Returns
    -------
    Stepper
        ``step(batch)`` trains on a batch, ``evaluate(split)`` scores, ``sync()`` gives the weights
        to the model: before it, the model has those that it began with.

    Examples
    --------
    >>> step = hl.stepper(net, hl.TrainingConfig(lr=1e-3), data)  # doctest: +SKIP
    >>> for batch in data.train_batches():  # doctest: +SKIP
    ...     print(step.step(batch)["loss"])
    >>> step.sync()  # doctest: +SKIP
    """
    from hotloop.data.module import as_datamodule

    model = check_model("stepper", model)
    if data is None:
        raise ConfigError("stepper: data is missing; give the DataModule or a tuple (X, y)")
    resolved = TrainingConfig.resolve(config, overrides)
    resolved.check_supported()
    with losing_device():
        return Stepper(model, resolved, as_datamodule(data))


class _Staged(NamedTuple):
    """A plan, its feed of one batch, and the arrays that this is gathered from."""

    plan: _core.Plan
    feed: _core.Feed
    arrays: dict[str, npt.NDArray[Any]]


class Stepper:
    """See :func:`stepper`. Weights live in the plan's memory; ``sync`` writes them to the model."""

    def __init__(self, model: Module, config: TrainingConfig, data: Any) -> None:
        self.model = model
        self.config = config
        self._data = data
        resolve_lazy(model, data.example_inputs())
        device, _ = choose_device(config.accelerator, config.precision, config.devices)
        check_gpu_options(config, device)
        self._runtime = Runtime(model, device, seed=config.seed, config=config, trains=True)
        self._steps = Steps(self._runtime, data, config.replace(accumulate_grad_batches=1))
        self._plans: dict[int, _Staged] = {}
        groups = data.batches("train", training=True, merge_tail=False)
        counts = count_steps(config, sum(count for _, count in groups))
        self._total = max(counts.total, 1)
        self._choose_precision(groups[0][0])
        self._plan(groups[0][0])
        self._runtime.upload()
        self._runtime.write_tables(lr_table(config, self._total, counts.per_epoch) * config.lr)
        nan_mode = "skip" if config.on_nan == "skip" else "stop"
        self._runtime.session.control_set(nan_mode=nan_mode)
        start_scale(self._runtime.session, self.config.precision)

    def _choose_precision(self, rows: int) -> None:
        """As ``train`` does, by the data's first batch."""
        split = self._data.split("train")
        graph = self._steps.train_graph(split, rows, self._total)
        choice = choose(self._steps.config, self._runtime, self._steps, graph, split, rows)
        if choice.warning:
            show(f"hotloop: warning: {choice.warning}")
        self._runtime.compute_dtype = choice.compute_dtype
        self.config = self.config.replace(precision=choice.precision)

    def __repr__(self) -> str:
        done = self._runtime.session.control()["applied"]
        return f"Stepper({type(self.model).__name__}, {done} of {self._total} steps)"

    def _plan(self, rows: int) -> _Staged:
        """The plan for batches of ``rows``: its datasets are buffers that ``step`` fills."""
        import numpy as np

        if rows not in self._plans:
            from hotloop.data.split import Field, Split

            split = self._data.split("train")
            staged = {
                field.name: np.zeros((rows, *field.array.shape[1:]), field.dtype)
                for field in split.fields
            }
            fields = tuple(Field(f.name, staged[f.name], f.dtype) for f in split.fields)
            batch = Split(fields, None, rows)
            feed = _core.Feed(rows, rows, n_slots=self._runtime.ring(0, rows)["n_slots"])
            graph = self._steps.train_graph(batch, rows, self._total)
            plan = self._runtime.plan(graph, batch, feed)
            self._runtime.tune(plan)
            self._plans[rows] = _Staged(plan, feed, staged)
        return self._plans[rows]

    def step(self, batch: Mapping[str, Any] | tuple[Any, Any]) -> dict[str, Any]:
        """One training step.

        Parameters
        ----------
        batch : dict or tuple (x, y)
            As ``data.train_batches()`` yields them.

        Returns
        -------
        dict
            ``loss``, ``grad_norm``, ``lr``, ``step`` (optimizer steps) and ``applied`` (False: a
            loss or gradient was not finite and nothing changed).

        Raises
        ------
        DataError
            If the batch lacks a field of the data, or has one of another shape or kind of number.
        """
        import numpy as np

        named = _fields_of(batch)
        rows = len(next(iter(named.values())))
        with exclusive(self.model, "step"), losing_device():
            plan, feed, staged = self._plan(rows)
            for name, buffer in staged.items():
                if name not in named:
                    raise DataError(f"step: the batch lacks {name!r}, got {', '.join(named)}")
                if named[name].shape != buffer.shape:
                    raise DataError(
                        f"step: {name} must have shape {buffer.shape}, got {named[name].shape}"
                    )
                if not np.can_cast(named[name].dtype, buffer.dtype, "same_kind"):
                    raise DataError(
                        f"step: {name} must hold {buffer.dtype} or what converts to it without "
                        f"loss, got {named[name].dtype}"
                    )
                buffer[...] = named[name]
            feed.seek(0)
            how = "deadline"
            while how == "deadline":  # runs to the end of the feed, which reports a wrong index
                how, _ = plan.run(2, 0.05)
            done = self._runtime.session.snapshot()  # of this step: the run waited for its end
        return {
            "loss": done["loss"],
            "grad_norm": done["grad_norm"],
            "lr": done["lr"],
            "step": done["applied"],
            "applied": bool(done["apply"]),
        }

    def evaluate(self, split: str = "val") -> dict[str, float]:
        """Loss and metrics on a split of the data, with the weights as they are."""
        if self._data.split(split) is None:
            raise ConfigError(f"evaluate: the data has no {split} split")
        sums = Sums(f"step.{split}")
        groups = self._data.batches(split, training=False, merge_tail=False)
        plans = self._steps.eval_plans(split, groups, sums)
        check_lookups(self._runtime, *plans[0].traced)
        sums.clear(self._runtime.session)
        with exclusive(self.model, "evaluate"), losing_device():
            outputs = run_plans(plans, collect=self._steps.has_functions)
        for plan in plans:
            self._runtime.drop(plan.plan)
        values = self._steps.values(sums.read(self._runtime.session))
        return values | self._steps.function_values(split, outputs)

    def sync(self) -> Module:
        """Writes the weights to the model and returns it.

        With them goes what the data taught, as after ``train``: class names, standardisation.
        """
        fitted = collect_metadata(self._data, self._steps.loss, self._runtime)
        self._runtime.download()
        set_metadata(self.model, fitted)
        return self.model

    def state_dict(self) -> dict[str, Any]:
        """The model's values and the optimizer's, as arrays by name."""
        session = self._runtime.session
        state: dict[str, Any] = dict(self.sync().state_dict())
        for name, (dtype, _) in session.stores().items():
            if name.startswith("optimizer."):
                state[name] = session.read(name, dtype)
        control = session.control()
        state["steps"] = (control["attempted"], control["applied"])
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state_dict`."""
        session = self._runtime.session
        own = {k: v for k, v in state.items() if not k.startswith("optimizer.") and k != "steps"}
        self.model.load_state_dict(own)
        self._runtime.upload()
        for name, value in state.items():
            if name.startswith("optimizer."):
                session.write(name, value)
        attempted, applied = state["steps"]
        session.control_set(attempted=int(attempted), applied=int(applied))


def _fields_of(batch: Any) -> dict[str, Any]:
    """``x``, ``x.a``, ``x.0``, ``y`` ... of a batch as users see it."""
    import numpy as np

    if isinstance(batch, (tuple, list)):
        batch = dict(zip(("x", "y", "weight"), batch, strict=False))
    if not isinstance(batch, Mapping) or not batch:
        raise DataError(
            f"step: a batch must be (x, y) or a dict as data.train_batches() yields, got "
            f"{type(batch).__name__}"
        )
    named: dict[str, Any] = {}
    for key, value in batch.items():
        if isinstance(value, Mapping):
            named.update({f"{key}.{tail}": np.asarray(item) for tail, item in value.items()})
        elif isinstance(value, tuple):
            named.update({f"{key}.{i}": np.asarray(item) for i, item in enumerate(value)})
        else:
            named[key] = np.asarray(value)
    return named
