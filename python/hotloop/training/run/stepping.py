"""``stepper``: the planned training step, one call per batch, for hand-written loops."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.messages import named, show, warn
from hotloop.base.rules import reject
from hotloop.base.suggest import did_you_mean
from hotloop.data.padding import ROLES, inside_of
from hotloop.data.shorthand import as_datamodule
from hotloop.data.split import Field, Split, paddings_of
from hotloop.errors import (
    ConfigError,
    DataError,
    ModelWarning,
    NotFiniteError,
    NotFiniteWarning,
)
from hotloop.nn.module import Module
from hotloop.nn.parameter import latest_change
from hotloop.training.config import TrainingConfig
from hotloop.training.config.phases import has_phases
from hotloop.training.config.schedule import count_steps, rates
from hotloop.training.plans.accelerator import check_gpu_options, choose_device, losing_device
from hotloop.training.plans.fitted import (
    check_model,
    exclusive,
    set_metadata,
    warn_of_untrained_norms,
)
from hotloop.training.plans.limit import Open, check_by_node
from hotloop.training.plans.operands import check_operands
from hotloop.training.plans.precision import choose, start_scale, wants_scale
from hotloop.training.plans.runtime import Runtime, Sums, resolve_by_batch, run_whole
from hotloop.training.plans.steps import Steps, graphs_of_parts, run_plans
from hotloop.training.run.anomaly import Found, explain, tell
from hotloop.training.run.weights import Weights
from hotloop.training.scoring.losses import loss_modules

__all__ = ["Stepper", "stepper"]


def stepper(
    model: Module, config: TrainingConfig | None = None, data: Any = None, **overrides: Any
) -> Stepper:
    """The plan that ``train`` would run, for loops of your own.

    Parameters
    ----------
    model : Module
        Its weights are in the plan's memory until ``sync()`` writes them back. What is set in the
        model meanwhile counts from the next step on, so that steppers of models that share
        modules can alternate: each syncs after its steps.
    config : TrainingConfig, optional
        As for :func:`hotloop.train`.
    data : DataModule or tuple (X, y)
        Says what batches look like, and how long the schedule is.
    **overrides
        Fields of the configuration. One call of ``step`` is one optimizer step, and what is left
        to the loop (early stopping, validation, callbacks, limits of time and batches) is refused.

    Returns
    -------
    Stepper
        ``step(batch)`` trains on a batch, ``evaluate(split)`` scores, ``sync()`` gives the weights
        to the model: before it, the model has those that it began with.

    Raises
    ------
    ConfigError, ShapeError, DataError, TraceError
        As ``train`` would; ConfigError also for a setting that a stepper cannot honour.

    Examples
    --------
    >>> X, y = hl.load_digits()
    >>> data = hl.DataModule.from_arrays(X, y, val=0.2, batch_size=128)
    >>> model = nn.Linear(64, 10)
    >>> stepper = hl.stepper(model, hl.TrainingConfig(lr=1e-2), data)
    >>> losses = [stepper.step(batch)["loss"] for batch in data.train_batches()]
    >>> losses[-1] < losses[0]
    True
    >>> stepper.sync() is model
    True
    """
    model = check_model("stepper", model)
    if data is None:
        raise ConfigError("stepper: data is missing; give the DataModule or a tuple (X, y)")
    resolved = TrainingConfig.resolve(config, overrides)
    resolved.check_supported()
    _check_settings(resolved)
    with losing_device():
        return Stepper(model, resolved, as_datamodule(data))


# What the loop around a stepper decides: the values that ask nothing of the stepper, and the fix.
_OF_THE_LOOP: dict[str, tuple[tuple[Any, ...], str]] = {
    "accumulate_grad_batches": ((1,), "give step batches of that many times the rows"),
    "max_time": ((None,), "end your loop when the time is over"),
    "early_stopping": ((None,), "compare what evaluate() returns in your loop"),
    "monitor": ((None,), "compare what evaluate() returns in your loop"),
    "mode": (("auto",), "compare what evaluate() returns in your loop"),
    "check_val_every_n_epoch": ((1,), "call evaluate() where you want it"),
    "val_check_interval": ((None,), "call evaluate() where you want it"),
    "train_metrics": ((False,), "call evaluate() with training rows where you want it"),
    "swa": ((False,), "average what sync() gives the model at the ends of your epochs"),
    "limit_batches": ((None,), "end your loop after so many batches"),
    "overfit_batches": ((None,), "give step the same batches again"),
    "on_interrupt": (("auto", "raise"), "catch KeyboardInterrupt in your loop"),
    "callbacks": (((),), "call them in your loop"),
    "output_dir": ((None,), "write what step() and evaluate() return in your loop"),
    "save_every": ((None,), "write what state_dict() gives in your loop"),
    "save_top_k": ((1,), "write what state_dict() gives in your loop"),
    "save_last": ((True,), "write what state_dict() gives in your loop"),
    "max_disk": ((None,), "write what state_dict() gives in your loop"),
    "resume_strict": ((True,), "load_state_dict() what state_dict() gave in your loop"),
    "logger": (("auto", None), "write what step() and evaluate() return in your loop"),
    "log_every_n_steps": ((50,), "write what step() and evaluate() return in your loop"),
    "verbose": (("auto",), "show what step() returns in your loop"),
    "enable_progress_bar": (("auto", False), "show what step() returns in your loop"),
}


def _check_settings(config: TrainingConfig) -> None:
    """Refuses settings of ``train``'s own loop."""
    for field, (allowed, fix) in _OF_THE_LOOP.items():
        value = getattr(config, field)
        if value not in allowed:
            reject(field, "is the loop's, and a stepper has none", value, fix)
    if has_phases(config):
        field = "freeze" if isinstance(config.freeze, dict) else "unfreeze"
        reject(
            field,
            "may hold for a number of epochs in train alone: a stepper knows of none",
            getattr(config, field),
            "write the patterns, and make a stepper for each phase",
        )
    if config.scheduler_config.name == "plateau":
        reject(
            "scheduler",
            "follows the validations of train, which a stepper does not run",
            "plateau",
            "choose a schedule of steps, such as 'cosine'",
        )


_ADVICE = "the weights are those of before. Lower lr, clip gradients or look for bad data"


class _Staged(NamedTuple):
    """A plan, its feed of one batch, and the arrays that this is gathered from."""

    plan: _core.Plan
    feed: _core.Feed
    arrays: dict[str, npt.NDArray[Any]]
    split: Split  # of the arrays


class Stepper:
    """See :func:`stepper`. Weights live in the plan's memory; ``sync`` writes them to the model.

    Parameters
    ----------
    model, config, data
        As for :func:`stepper`.
    """

    def __init__(self, model: Module, config: TrainingConfig, data: Any) -> None:
        self.model = model
        self.config = config
        self._data = data
        resolve_by_batch(model, data)
        device, _ = choose_device(config.accelerator, config.precision, config.devices)
        check_gpu_options(config, device)
        self._runtime = Runtime(model, device, seed=config.seed, config=config, trains=True)
        self._weights = Weights(self._runtime, config)
        self._open = Open(self._runtime, config)
        self._steps = Steps(self._runtime, data, config)
        self._parts: tuple[Split, ...] = data.split("train").parts
        self._plans: dict[tuple[int, int], _Staged] = {}
        groups = data.batches("train", training=True, merge_tail=False)
        counts = count_steps(config, sum(group.batches for group in groups))
        self._total = max(counts.total, 1)
        self._choose_precision(groups[0].rows)
        self._plan(groups[0].rows, 0)
        if config.recompute == "auto":
            self.config = self.config.replace(recompute=self._runtime.recompute)
        self._steps.warn_of_training()
        self._runtime.upload()
        self._runtime.write_tables(rates(config, counts), self._total)
        nan_mode = "skip" if config.on_nan == "skip" else "stop"
        self._runtime.session.control_set(nan_mode=nan_mode)
        start_scale(self._runtime.session, self.config.precision)
        self._weights.begin_average()
        self._seen = -1  # the latest change of some value that was looked at
        self._is_ahead = False  # whether steps were taken since the model had all values
        self._n_applied = 0  # as repr shows it, which must not wait for another thread's step
        self._by_node: dict[int, _core.Runner] = {}  # by the id of a plan, with detect_anomaly
        self._not_finite: str | None = None  # what is known of the first such step

    def _choose_precision(self, rows: int) -> None:
        """As ``train`` does, by the data's first batch."""
        split = self._parts[0]
        graph = self._steps.train_graph(split, rows, self._total)
        choice = choose(self._steps.config, self._runtime, self._data, graph, split, rows)
        if choice.warning:
            show(f"hotloop: warning: {choice.warning}")
        self._runtime.compute_dtype = choice.compute_dtype
        self.config = self.config.replace(precision=choice.precision)

    if not TYPE_CHECKING:  # else type checkers would take every misspelt name for Any

        def __getattr__(self, name: str) -> Any:
            does = ": step(batch) computes loss and gradients and takes the optimizer step"
            hint = (
                does if name in ("zero_grad", "backward") else did_you_mean(name, dir(type(self)))
            )
            raise AttributeError(f"Stepper has no {name!r}{hint}")

    def __repr__(self) -> str:
        return f"Stepper({type(self.model).__name__}, {self._n_applied} of {self._total} steps)"

    def _part_of(self, named: dict[str, Any]) -> int:
        """The number of the part that a batch is of, by the shape of its first input."""
        if len(self._parts) == 1:
            return 0
        first = self._parts[0].fields[0]
        shapes = [part.fields[0].shape for part in self._parts]
        got = np.shape(named.get(first.name, ()))[1:]
        if got in shapes:
            return shapes.index(got)
        what = "(sequences, lengths or mask)" if first.padding is not None else "images"
        raise DataError(
            f"step: x must be {what}, as data.train_batches() yields them, of the shape of a "
            f"bucket, one of {', '.join(map(str, sorted(shapes)))}, got "
            f"{got or 'another structure'}"
        )

    def _plan(self, rows: int, number: int) -> _Staged:
        """The plan for batches of ``rows`` of a part: its datasets are buffers that ``step`` fills.

        Of what says which rows are padding, lengths are staged, as in the data.
        """
        if (rows, number) not in self._plans:
            split = self._parts[number]
            staged = {
                field.name: np.zeros((rows, *field.array.shape[1:]), field.gathered_dtype)
                for field in split.fields
            }
            fields = tuple(
                Field(f.name, staged[f.name], f.dtype, padding=f.padding) for f in split.fields
            )
            batch = Split(fields, None, rows)
            plan, feed = self._plan_of(batch)
            self._runtime.tune(plan)
            self._plans[rows, number] = _Staged(plan, feed, staged, batch)
        return self._plans[rows, number]

    def _plan_of(self, batch: Split, *, by_node: bool = False) -> tuple[_core.Plan, _core.Feed]:
        """The plan of a step on the rows of a split."""
        feed = _core.Feed(batch.n, batch.n, n_slots=self._runtime.ring(0, batch.n)["n_slots"])
        graph = self._steps.train_graph(batch, batch.n, self._total)
        if by_node:
            check_by_node(self._runtime, [graph], n_slots=feed.n_slots)
        else:
            self._open.fit(graph, n_slots=feed.n_slots)
        return self._runtime.plan(graph, batch, feed, by_node=by_node), feed

    def _follow_model(self, what: str) -> None:
        """Takes what was set in the model since the last time, and says what that ends."""
        if (latest := latest_change()) == self._seen:
            return
        changed = self._runtime.refresh()
        self._weights.set_average(changed)
        trained = self._runtime.layout.trainable if self._is_ahead else []
        lost = [slot.name for slot in changed if slot in trained]
        if lost:
            warn(
                f"{what}: {named(lost)} of the model got other values "
                "since this stepper's last sync(), which count from now on, in place of what its "
                "steps made of them; call sync() before setting weights and before another "
                "training or stepper of them",
                ModelWarning,
            )
        self._runtime.warn_of_steppers(what, self)
        self._seen = latest

    def _note_ahead(self, is_ahead: bool) -> None:
        """Notes at the weights whether this stepper has later values than the model."""
        if is_ahead == self._is_ahead:
            return
        self._is_ahead = is_ahead
        for slot in self._runtime.layout.slots:
            slot.owner.keep()
        for slot in self._runtime.layout.trainable:
            if is_ahead or slot.owner.ahead is self:
                slot.owner.ahead = self if is_ahead else None

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
        NotFiniteError
            With ``on_nan="raise"``, if the loss or a gradient was not finite, with the node that
            made it so; the next step can be taken. With ``on_nan="stop"``, at the steps after such
            a one. With ``detect_anomaly``, for each anomaly; nothing was computed of that step.
        DataError
            If the batch lacks a field of the data, or has one of another shape or kind of number.
        ConfigError
            If the model's modules or parameters were replaced since the stepper was made.
        """
        named = _fields_of(batch)
        rows = len(next(iter(named.values())))
        self._runtime.check_unchanged("step", "sync() and make a new hl.stepper of the model")
        session = self._runtime.session
        with exclusive(self.model, "step"), losing_device():
            control = session.control()
            if control["stopped"]:
                why, fix = "on_nan is 'stop'", "write on_nan='skip' to leave such batches out, or "
                if self.config.on_nan == "skip":
                    why, fix = f"{control['skipped_in_row']} steps in a row were skipped", ""
                raise NotFiniteError(
                    f"step: stopped, since {self._not_finite}, and {why}; {fix}load_state_dict an "
                    "earlier state"
                )
            self._follow_model("step")
            self._note_ahead(True)
            if not self._runtime.steps_in_tables(control["applied"]):
                self._runtime.move_tables(control["applied"])
            number = self._part_of(named)
            staged = self._plan(rows, number)
            self._take_lengths(named, number)
            for name, buffer in staged.arrays.items():
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
            if self.config.detect_anomaly:
                self._look_ahead(staged, control)
            staged.feed.seek(0)
            run_whole(staged.plan, 2)  # to the end of the feed, which reports a wrong index
            done = session.snapshot()  # of this step: the run waited for its end
            self._n_applied = done["applied"]
            is_scaled = math.isfinite(done["loss"]) and control["loss_scale"] != 1
            if not done["apply"] and not is_scaled:  # an overflow of the scale is usual
                self._end_not_finite(staged, done)
        return {
            "loss": done["loss"],
            "grad_norm": done["grad_norm"],
            "lr": done["lr"],
            "step": done["applied"],
            "applied": bool(done["apply"]),
        }

    def _look_ahead(self, staged: _Staged, control: dict[str, Any]) -> None:
        """Looks into the step before it is taken."""
        for plan in (known.plan for known in self._plans.values()):
            if plan.unfinished:  # what Ctrl-C cut short is forgotten
                plan.abandon()
        key = id(staged.plan)
        if key not in self._by_node:
            self._by_node[key] = _core.Runner([(self._plan_of(staged.split, by_node=True)[0], 1)])
        found = _check(self._by_node[key], control["attempted"] + 1, everything=True)
        if found is not None:
            names = [slot.name for slot in self._runtime.layout.trainable]
            text = tell(found, control["applied"] + 1, names)
            raise NotFiniteError(f"step: {text}; {_ADVICE}")

    def _end_not_finite(self, staged: _Staged, done: dict[str, Any]) -> None:
        """What follows a step whose loss or gradients are not finite."""
        on_nan, step = self.config.on_nan, done["attempted"]

        def check_by_node() -> Found:
            plan, _ = self._plan_of(staged.split, by_node=True)
            try:
                return _check(_core.Runner([(plan, 1)]), step)
            finally:
                self._runtime.drop(plan)

        def check_as_planned() -> Found:
            return _check(_core.Runner([(staged.plan, 1)]), step)

        if on_nan != "skip" or self._not_finite is None:
            self._not_finite = explain(
                self._runtime, done["applied"] + 1, check_by_node, check_as_planned
            )
            if on_nan == "skip":
                warn(f"step: {self._not_finite}; the batch is left out", NotFiniteWarning)
        if on_nan == "raise":
            self._runtime.session.control_set(stopped=0)
            raise NotFiniteError(f"step: {self._not_finite}; {_ADVICE}")

    def _take_lengths(self, named: dict[str, Any], number: int) -> None:
        """Makes lengths of a mask of padding."""
        for name, padding in paddings_of(self._parts[number].fields).items():
            mask = named.get(name)
            if padding.role not in ROLES[1:] or mask is None:
                continue
            if mask.shape[1:] != (padding.length,):
                raise DataError(
                    f"step: {name} must have shape (batch, {padding.length}), got {mask.shape}"
                )
            inside = inside_of(padding.role, mask, padding.length)
            lengths = inside.sum(1)
            if (inside != inside_of("lengths", lengths, padding.length)).any():
                raise DataError(f"step: {name} must have padding behind each sequence alone")
            named[name] = lengths

    def evaluate(self, split: str = "val") -> dict[str, Any]:
        """Loss and metrics on a split of the data, with the weights as they are.

        With ``ema`` they are those of the moving average, as ``train``'s validation.

        Parameters
        ----------
        split : {"val", "test", "train"}
            Which one.

        Returns
        -------
        dict of str to float
            ``loss`` and metrics by name, as :func:`hotloop.evaluate` gives them.

        Raises
        ------
        ConfigError
            If the data has no such split.
        """
        if self._data.split(split) is None:
            raise ConfigError(f"evaluate: the data has no {split} split")
        sums = Sums(f"step.{split}")
        groups = self._data.batches(split, training=False, merge_tail=False)
        with exclusive(self.model, "evaluate"), losing_device():
            self._follow_model("evaluate")
            if not self._runtime.session.control()["attempted"]:  # later they are the session's
                warn_of_untrained_norms("evaluate", self.model)
            plans = self._steps.eval_plans(split, groups, sums, fit=self._open.fit)
            for traced in graphs_of_parts(plan.traced for plan in plans):
                check_operands(self._runtime, *traced)
            sums.clear(self._runtime.session)
            with self._weights.averaged(), self._not_stopped():
                outputs = run_plans(plans, collect=self._steps.n_collected)
            for plan in plans:
                self._runtime.drop(plan.plan)
            totals = sums.read(self._runtime.session)
        values = self._steps.values(totals) | self._steps.collected_values(split, outputs)
        return values | self._steps.matrices(totals, asked=True)

    @contextlib.contextmanager
    def _not_stopped(self) -> Iterator[None]:
        """In the block plans run after a loss that was not finite, too, which ended steps alone."""
        session = self._runtime.session
        stopped = session.control()["stopped"]
        session.control_set(stopped=0)
        try:
            yield
        finally:
            session.control_set(stopped=stopped)

    def sync(self) -> Module:
        """Writes the weights, with ``ema`` their moving average, to the model and returns it.

        What was set in the model since the last time counts and stays: ``copy_``,
        ``load_state_dict``, another training, the sync of another stepper.
        With them goes what the data taught, as after ``train``: class names, standardisation.

        Returns
        -------
        Module
            The model.
        """
        with exclusive(self.model, "sync"), losing_device():
            self._sync()
        return self.model

    def _sync(self) -> None:
        self._follow_model("sync")
        fitted = self._steps.metadata(self.config)
        with self._weights.averaged():
            self._runtime.download()
        set_metadata(self.model, fitted)
        self._note_ahead(False)

    def state_dict(self) -> dict[str, Any]:
        """All that a loop needs to go on, by name; the model is synced.

        Returns
        -------
        dict
            The trained weights and buffers under the model's own names and those of a loss module
            under "loss.", ``optimizer.<moment>`` and with ``ema`` the moving average as flat
            arrays, ``steps`` (attempted, applied) and, in float16, ``loss_scale`` (scale, optimizer
            steps since it changed).
        """
        session = self._runtime.session
        with exclusive(self.model, "state_dict"), losing_device():
            self._follow_model("state_dict")
            self._runtime.download()
            state: dict[str, Any] = dict(self.model.state_dict())
            for prefix, module in loss_modules(self.config.loss).items():
                state.update(module.state_dict(prefix=f"{prefix}."))
            for name, (dtype, _) in self._own_stores().items():
                state[name] = session.read(name, dtype)
            control = session.control()
            for name, fields in self._own_control().items():
                state[name] = tuple(control[field] for field in fields)
            self._sync()
        return state

    def _own_stores(self) -> dict[str, tuple[str, int]]:
        """The stores that a state has beside the model's values."""
        stores = self._runtime.session.stores().items()
        return {k: v for k, v in stores if k.startswith("optimizer.") or k == "ema"}

    def _own_control(self) -> dict[str, tuple[str, str]]:
        """Entries of a state, and the fields of the control block that each has."""
        scale = {"loss_scale": ("loss_scale", "good_steps")}
        return {
            "steps": ("attempted", "applied"),
            **(scale if wants_scale(self.config.precision) else {}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state, also after a loss that was not finite.

        Parameters
        ----------
        state : dict
            As :meth:`state_dict` of a stepper with the same model, loss, optimizer, ``ema`` and
            precision gives it.

        Raises
        ------
        ConfigError, ShapeError
            If it does not fit; nothing of the model has changed then.
        """
        with exclusive(self.model, "load_state_dict"), losing_device():
            self._load(state)

    def _load(self, state: Mapping[str, Any]) -> None:
        session, stores, control = self._runtime.session, self._own_stores(), self._own_control()
        modules = loss_modules(self.config.loss)
        of_losses = {
            f"{prefix}.{name}" for prefix, module in modules.items() for name in module.state_dict()
        }
        known = {*stores, *control, *of_losses}
        found = {k for k in state if k.startswith("optimizer.") or k in ("ema", "loss_scale")}
        missing, unexpected = sorted(known - set(state)), sorted(found - known)
        faults = [f"missing keys: {', '.join(missing)}"] if missing else []
        if unexpected:
            faults.append(f"unexpected keys: {', '.join(unexpected)}")
        if faults:
            raise ConfigError(
                "load_state_dict: must be the state of a stepper with this loss, optimizer, ema "
                f"and precision, got {'; '.join(faults)}"
            )
        for name, (_, n) in stores.items():
            if np.size(state[name]) != n:
                raise ConfigError(
                    f"load_state_dict: {name} must have {n} values, got {np.size(state[name])}"
                )
        self.model.load_state_dict({k: v for k, v in state.items() if k not in known})
        for prefix, module in modules.items():
            module.load_state_dict({k: state[f"{prefix}.{k}"] for k in module.state_dict()})
        self._runtime.refresh()
        self._note_ahead(False)
        for name in stores:
            session.write(name, np.asarray(state[name]))
        values = {
            field: value
            for name, fields in control.items()
            for field, value in zip(fields, state[name], strict=True)
        }
        session.control_set(stopped=0, **values)
        self._n_applied = session.control()["applied"]


def _check(runner: _core.Runner, step: int, *, everything: bool = False) -> Found:
    """What of the staged batch's step is not finite; its rows have no other numbers."""
    runner.seek(0)
    found = runner.check(step, everything)
    return found and {**found, "first": {**found["first"], "row": -1}}


def _fields_of(batch: Any) -> dict[str, Any]:
    """``x``, ``x.a``, ``x.0``, ``y`` ... of a batch as users see it."""
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
            named.update({f"{key}.{tail}": item for tail, item in value.items()})
        elif isinstance(value, tuple):
            named.update({f"{key}.{i}": item for i, item in enumerate(value)})
        else:
            named[key] = value
    return {name: _as_array(name, value) for name, value in named.items()}


def _as_array(name: str, value: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError as error:  # rows of several lengths
        raise DataError(
            f"step: {name} must be an array, got a list that is none ({error}); "
            "data.train_batches() yields batches as they have to be"
        ) from None
