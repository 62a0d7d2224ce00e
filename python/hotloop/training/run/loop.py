"""The loop of a run: epochs and validation, until something ends it; then the result.

Everything is planned before. The loop only hands slices of at most 50 ms to the core, checks for
Ctrl-C and moves the bar.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hotloop import _core
from hotloop.base.messages import counted, show
from hotloop.errors import CheckpointError, HotloopError
from hotloop.nn.module import Module
from hotloop.nn.parameter import Variable, frozen, lent, release
from hotloop.training.checkpoints.resuming import Resumed
from hotloop.training.checkpoints.snapshot import Snapshot
from hotloop.training.config import TrainingConfig
from hotloop.training.config.parts import LR
from hotloop.training.config.schedule import rates
from hotloop.training.plans.fitted import fitted_of, set_metadata
from hotloop.training.plans.methods import STEP_METHOD
from hotloop.training.plans.precision import wants_scale
from hotloop.training.plans.runtime import SLICE_SECONDS, Runtime
from hotloop.training.plans.steps import Steps
from hotloop.training.result.history import History
from hotloop.training.result.result import TrainResult
from hotloop.training.run.anomaly import end_error
from hotloop.training.run.averaging import Averaging
from hotloop.training.run.checks import ValidationTimes
from hotloop.training.run.events import Events, Logged
from hotloop.training.run.header import describe_run
from hotloop.training.run.matrices import Matrices
from hotloop.training.run.pace import Pace, warn_of_warmup, warn_of_what_is_left
from hotloop.training.run.planner import Planner
from hotloop.training.run.position import Position
from hotloop.training.run.progress import Progress
from hotloop.training.run.records import Records
from hotloop.training.run.signals import Interrupts
from hotloop.training.run.summary import summarize
from hotloop.training.run.weights import Weights

__all__ = ["Run"]

TIMINGS = ("plan", "statistics", "train", "validate", "checkpoint", "other")


class Run:
    """One call of ``train`` as callbacks see it.

    Parameters
    ----------
    planner : Planner
        After ``prepare``.
    interrupts : Interrupts
    began : float
        When ``train`` was called, by ``time.perf_counter``.
    asked : TrainingConfig
        As it was given, before "auto" was resolved.
    resumed : Resumed, optional
        What it goes on from.

    Attributes
    ----------
    epoch : int
        Epochs in the history.
    best_path, last_path : str or None
        The model of the best epoch and the latest checkpoint, as far as they are on disk.
    step : int
        Optimizer steps that were applied.
    history : History
    logs : dict of str to float
        The latest values: of the step in ``on_train_batch_end``, else of the epoch.
    exception : BaseException or None
        What ended training, in ``on_exception``.
    matrices : Matrices
        Confusion matrices of its validations.
    averaging : Averaging
        Of the last epochs, by ``swa``.
    model : Module
        Reading it gives the weights of now, as validation uses them; setting them raises.

    What a run holds on the device is given back when ``train`` returns or raises.
    """

    def __init__(
        self,
        planner: Planner,
        interrupts: Interrupts,
        began: float,
        asked: TrainingConfig,
        resumed: Resumed | None = None,
    ) -> None:
        self._planner, self._asked = planner, asked
        self.model: Module = planner.model
        self.history = History()
        self.epoch = 0
        self.best_path: str | None = None
        self.last_path: str | None = None
        self._monitor = planner.monitor
        self._interrupts = interrupts
        self._began = began
        self._pace = Pace(planner.config, planner.counts)
        self._checks = self._make_checks()
        self._stop_reason = ""
        self._events = Events(planner.config.callbacks)
        self._logged = Logged(planner.row_names)
        self.logs: dict[str, float] = {}
        self.exception: BaseException | None = None
        self._has_begun = self._has_ended = False
        self._timings = dict.fromkeys(TIMINGS, 0.0)
        self._trains_since = time.perf_counter()
        self._timings["statistics"] = planner.looking_seconds
        self._timings["plan"] = self._trains_since - began - planner.looking_seconds
        self._order: list[tuple[int, int]] = []  # of the epoch's batches, as the runner has it
        self.matrices = Matrices()
        self.averaging = Averaging(planner)
        self._at = Position()
        self._best_step: int | None = None  # optimizer steps of the best weights
        self._samples_before = 0  # of earlier calls
        self._end: Snapshot | None = None  # of an epoch that the run ended within
        self._between: Snapshot | None = None  # while the plans of another phase are made
        self._resumed = resumed

    def __setattr__(self, name: str, value: object) -> None:
        """Refuses what a callback sets, of which nobody would hear."""
        if self.__dict__.get("_is_lent") and not name.startswith("_"):
            raise AttributeError(
                f"run.{name}: callbacks change a run by run.stop(reason), run.set_lr(rate) and "
                "run.log(name, value); what they note belongs to themselves"
            )
        super().__setattr__(name, value)

    @property
    def config(self) -> TrainingConfig:
        """With what was chosen for "auto"."""
        return self._planner.config

    @property
    def runtime(self) -> Runtime:
        """Of the phase that is trained."""
        return self._planner.runtime

    @property
    def train_plans(self) -> list[tuple[_core.Plan, int, int]]:
        """The training step's plans, each with its batch size and number of batches in an epoch:
        full batches, then what is left.
        """
        return self._planner.train_plans

    @property
    def _steps(self) -> Steps:
        return self._planner.steps

    @property
    def _weights(self) -> Weights:
        return self._planner.weights

    def log(self, name: str, value: float) -> None:
        """Adds a value to the history's row of the epoch that is being trained.

        Parameters
        ----------
        name : str
            A loss, metric or column of the run, such as "lr", keeps its own value.
        value : float
            The last one of an epoch counts, that of ``on_epoch_end`` too.
        """
        self._logged.note(name, float(value))

    def set_lr(self, lr: float) -> None:
        """Sets the learning rate from the next step on, in the place of the schedule's.

        Parameters
        ----------
        lr : float
            Of groups too, each with its scale.

        Raises
        ------
        ConfigError
            If it is no rate.
        """
        self._at.held_lr = LR("run.set_lr", lr)
        self._hold_lr()

    def stop(self, reason: str = "interrupted") -> None:
        """Ends training after the current step; may be called from any thread.

        Parameters
        ----------
        reason : str
            For ``result.stop_reason``.
        """
        self._stop_reason = self._stop_reason or reason
        self._planner.runner.stop()

    def execute(self) -> TrainResult:
        """Runs the epochs, restores the best weights and gives them to the model."""
        config = self.config
        is_shown = config.enable_progress_bar is not False
        if self._resumed is None and config.max_time is None:
            warn_of_warmup(config, self._planner.counts)
        if config.enable_model_summary and is_shown:
            trained = {id(slot.owner) for slot in self.runtime.layout.trainable}
            show(summarize(self.model, self._steps.output_shapes, trained))
        self._progress = Progress(
            config.enable_progress_bar,
            config.max_epochs,
            expected=-(-self._planner.counts.total // self._planner.counts.per_epoch),
            is_open=config.max_time is not None or config.early_stopping is not None,
            hidden=[f"val_{name}" for name in self._steps.class_names()],
            rows_per_epoch=self._checks.per_epoch,
            lines=config.verbose == "lines",
        )
        self._records = Records(
            self, self._planner, self._asked, self._began, self._progress, self._resumed
        )
        try:
            if self._resumed is not None:
                self._records.go_on()
            self._records.begin()
            if is_shown:
                output = self._records.describe()
                show(describe_run(self._planner, output, self._describe_resumed()))
            if self._resumed is not None:
                then = self._resumed.asked.max_epochs
                warn_of_what_is_left(config, then, self._planner.counts, self.epoch, self.step)
            self._planner.anomalies.begin(self._at.attempted)
            self._has_begun = True
            self._call("on_train_begin")
            self._trains_since = time.perf_counter() - self._at.seconds
            while self.epoch < config.max_epochs and not self._is_over():
                self._run_epoch()
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._progress.close()
            self._records.log.write(self.history, last=True)
            self._records.keeper.wait()
        return self._conclude()

    def _fail(self, error: BaseException) -> None:
        """Saves what was reached before an error, as far as that can be had."""
        self.exception = error
        try:
            with contextlib.suppress(HotloopError):  # a lost device has no weights to show
                self._call("on_exception")
        finally:
            with contextlib.suppress(Exception):  # the error is the one to be raised
                if self._between is not None:
                    self._records.finish(self._between)
                elif self._has_begun:
                    self._planner.runner.abandon()
                    self._count_on()
                    self._records.finish(self._records.take(for_file=False))
            with contextlib.suppress(Exception):
                self._records.close(failed=True)

    def _describe_resumed(self) -> str:
        """What the run goes on from, for the header."""
        if self._resumed is None:
            return ""
        of = "the result" if self._resumed.path is None else os.path.relpath(self._resumed.path)
        at = self._at
        within = f" after {counted(at.batches, 'batch', 'batches')}" if at.batches else ""
        return f"{of}, epoch {self.epoch + 1}{within}"

    def _call(self, name: str, called: Sequence[Any] | None = None) -> None:
        """Calls a method of callbacks, of all that have it or of some."""
        called = self._events.having(name) if called is None else called
        if not called:
            return
        if self._has_ended:  # the model has its weights
            for callback in called:
                self._lend(callback, name)
            return
        with self.showing_weights():
            for callback in called:
                self._lend(callback, name)
                self.runtime.check_unchanged(
                    f"callbacks: {type(callback).__name__}.{name}",
                    "end training with run.stop(), change the model and train it again",
                )

    def _lend(self, callback: Any, name: str) -> None:
        self._is_lent = True
        try:
            getattr(callback, name)(self)
        finally:
            self._is_lent = False

    @contextlib.contextmanager
    def showing_weights(self) -> Iterator[None]:
        """In the block the model is read as it would be if training ended now.

        Only read: where training fails afterwards, the model is the one of before. What no one
        reads is not fetched from the device.
        """
        found: dict[int, Any] = {}

        def value_of(variable: Variable) -> Any:
            if not found:
                with self._weights.averaged():
                    read = self.runtime.read()
                found.update((id(owner), frozen(values)) for owner, values in read)
            return found[id(variable)]

        before = fitted_of(self.model)
        set_metadata(self.model, self._steps.metadata(self.config))
        try:
            with lent(self.runtime.layout.variables(), value_of):
                yield
        finally:
            set_metadata(self.model, before)

    # ---- an epoch

    def _make_checks(self) -> ValidationTimes:
        planner = self._planner
        n_batches = sum(count for _, _, count in planner.train_plans)
        return ValidationTimes(planner.config, n_batches, planner.batches_per_step)

    def _begin_phase(self, epoch: int) -> None:
        """Plans anew where something else is trained from this epoch on, and goes on so."""
        planner, text, began = self._planner, self._planner.anomalies.text, time.perf_counter()
        saving = self._records.seconds
        self._between = snapshot = self._records.take_between()
        n_averaged = self._weights.n_averaged
        planner.begin_phase(epoch, snapshot)
        self._records.begin_phase(snapshot)
        self._weights.n_averaged = n_averaged
        planner.anomalies.go_on(text)
        self._checks = self._make_checks()
        self._take_up(snapshot.run["control"])
        planner.anomalies.begin(self._at.attempted)
        self._between = None
        self._timings["plan"] += time.perf_counter() - began - (self._records.seconds - saving)
        if not self._progress.is_quiet:
            n = counted(self.runtime.n_trainable, "parameter")
            self._progress.show(f"hotloop: epoch {epoch}: {n} trained from now on")

    def _take_up(self, control: Mapping[str, Any]) -> None:
        """Lets a session's steps go on as those before: their counters and rates."""
        self.runtime.session.control_set(**control)
        if self._pace.is_by_time:
            self.runtime.hold_rate(self.config.lr)
        self._set_factor()
        self._hold_lr()
        self._follow_averaging()

    def _run_epoch(self) -> None:
        epoch = self.epoch + 1
        if self._planner.phases.at(epoch) != self._planner.phase:
            self._begin_phase(epoch)
        session, at = self.runtime.session, self._at
        began = time.perf_counter()
        self._epoch_began, self._epoch_waited = began, self._planner.data_wait
        self._epoch_other = self._timings["validate"] + self._records.seconds
        if not at.batches:
            self._steps.train_sums.clear(session)
            self._begin_averaging(epoch)
        total = sum(size * count for _, size, count in self.train_plans)
        self._progress.begin_epoch(epoch, total, done=at.epoch_samples)
        self._call("on_epoch_begin")
        runner = self._planner.runner
        self._order = self._planner.order(self.epoch)
        if at.batches:
            self._find_place()
        runner.seek(self.epoch, at.batches, self._order)
        self._planner.anomalies.begin_epoch(self.epoch, self._order, at.attempted, at.batches)
        with self._planner.explaining_memory():
            complete = self._run_batches(runner)
        now = time.perf_counter()
        trained = self._trained_seconds(now)
        self._timings["train"] += trained - at.epoch_seconds
        at.epoch_seconds += now - began
        at.epoch_wait += self._planner.data_wait - self._epoch_waited
        self._epoch_waited = self._planner.data_wait
        out_of_budget = self._is_over() and self._stop_reason in ("max_steps", "max_time")
        if not complete and self._stop_reason != "nan":
            self._end = self._records.take(for_file=False)  # so that it can go on within the epoch
        if not at.epoch_samples or not (complete or out_of_budget):
            return
        is_due = self._checks.is_due_at_end(at, epoch)
        if not self._take_average(epoch):
            return
        row = self._make_row(epoch, now, trained, validates=is_due or out_of_budget)
        if row is None:
            return
        self.epoch = epoch
        at.end_epoch()
        self._note_row(epoch, row, trained)
        own = {name: value for name, value in row.items() if name not in self._logged}
        has_validation = bool(self._planner.val_plans)
        self._heed(epoch, own | self._logged.take() if has_validation else own)
        try:
            self._call("on_epoch_end")
        finally:
            row.update(self._logged)
            self._log_row(row)
            late = self._logged.take()
            self._logged.clear()
        if not has_validation:  # behind which callbacks would log what is monitored
            self._events.check_logged(self._monitor.names, own | late, "on_epoch_end")
            self._heed(epoch, late)
        if self._end is None:  # after the callbacks, which hear of an epoch once
            self._records.heed_step(ended_epoch=epoch)

    def _begin_averaging(self, epoch: int) -> None:
        """Begins the epochs whose weights are averaged, where they begin with this one."""
        config, seconds = self.config, time.perf_counter() - self._trains_since
        share = seconds / config.max_time if config.max_time else 0.0
        if not self.averaging.is_due(epoch, self._applied_at_most, share):
            return
        self._count_applied()
        step = self._applied_at_most
        table = rates(config, self._planner.counts)(np.array([step]))[0]
        rate = config.lr if self._pace.is_by_time else float(table)
        self.averaging.begin(step, rate * self._at.plateau_factor * self._at.pace_factor)
        self._follow_averaging()

    def _follow_averaging(self) -> None:
        """Has the rates and validations of averaged epochs, if they have begun."""
        if not self.averaging.is_on:
            return
        self._checks.leave_out_within()  # the average moves at ends of epochs alone
        self.averaging.set_rates()
        self._set_factor()
        self._hold_lr()

    def _take_average(self, epoch: int) -> bool:
        """Adds the epoch's weights to the average; False: that was interrupted."""
        before, has_first = self.averaging.seconds, self.averaging.first > 0
        with self._planner.explaining_memory():
            is_taken = self.averaging.take(epoch, lambda: self._interrupts.asked)
        if not is_taken:
            self._stop_reason = "interrupted"
        self._timings["validate"] += self.averaging.seconds - before
        if self.averaging.first and not has_first:  # what was best is no average
            self._monitor.begin_again()
            self._records.keeper.begin_again()
        return is_taken

    def _trained_seconds(self, now: float) -> float:
        """Of the epoch up to now, without the validations and saves within it."""
        other = self._timings["validate"] + self._records.seconds - self._epoch_other
        return now - self._epoch_began - other + self._at.epoch_seconds

    def _make_row(
        self, epoch: float, since: float, trained: float, *, validates: bool
    ) -> dict[str, float] | None:
        """The history's row of an epoch or of what has been trained of it; None: validation was
        interrupted, and its pass over the split is incomplete.

        Parameters
        ----------
        epoch : float
            From 1, or how many have been trained.
        since : float
            Up to when the epoch's time is counted, by ``time.perf_counter``.
        trained : float
            Seconds of its training.
        validates : bool
        """
        session = self.runtime.session
        values = self._steps.values(self._steps.train_sums.read(session))
        row = {"epoch": float(epoch), "loss": values.pop("loss"), **values}
        if self._planner.val_plans and validates:
            with self._planner.explaining_memory():
                row.update(self._validate())
            if self._interrupts.asked:
                self._stop_reason = "interrupted"
                return None
            self.logs = dict(row)
            self._call("on_validation_end")
            new = {*row, *self._logged.new}
            self._events.check_logged(self._monitor.names, new, "on_validation_end")
        row.update(self._logged)
        row["lr"] = self._current_lr()
        if wants_scale(self.config.precision):
            control = session.control()
            row["loss_scale"] = control["loss_scale"]
            row["skipped"] = float(control["skipped"])
        row["samples_per_second"] = self._at.epoch_samples / max(trained, 1e-9)
        row["data_wait"] = self._at.epoch_wait + self._planner.data_wait - self._epoch_waited
        row["peak_bytes"] = float(self._planner.peak_bytes())
        row["seconds"] = self._at.epoch_seconds + time.perf_counter() - since
        return row

    def _note_row(self, epoch: float, row: dict[str, float], trained: float) -> None:
        """Adds a row to the history, and shows it."""
        self.history.append(row)
        self.logs = dict(row)
        self._progress.end_epoch(epoch, row, trained, len(self.history["epoch"]))

    def _log_row(self, row: dict[str, float]) -> None:
        """Gives the history's last row to the loggers, with what was logged since."""
        self.history.complete(self._logged)
        self._records.log.log_row(row, self.history, self._at.attempted, self._logged)

    def _validates_within(self, more: int = 0) -> bool:
        """Whether a validation within the epoch is due, when so many more batches have run."""
        is_due = self._checks.is_due(self._at, self.epoch + 1, more)
        return bool(self._planner.val_plans) and is_due

    def _validate_within(self) -> None:
        """Validates in the middle of an epoch."""
        at, trained = self._at, self._trained_seconds(time.perf_counter())
        epoch = self.epoch + self._checks.share(at)
        row = self._make_row(epoch, self._epoch_began, trained, validates=True)
        if row is None:
            return
        self._checks.note(at)
        self._note_row(epoch, row, trained)
        self._log_row(row)
        validated = {k: v for k, v in row.items() if k.startswith("val_") and k not in self._logged}
        self._heed(epoch, validated | self._logged.take())
        self._records.heed_step()

    def _find_place(self) -> None:
        """Finds the batch that follows the samples of the epoch that were trained on: they may have
        been cut into other micro-batches then.

        Raises
        ------
        CheckpointError
            If no step ends there.
        """
        at, per_step = self._at, self._planner.batches_per_step
        left, batches = at.epoch_samples, 0
        for number, count in self._order:
            fit = min(count, left // self.train_plans[number][1])
            batches, left = batches + fit, left - fit * self.train_plans[number][1]
            if fit < count:
                break
        total = sum(count for _, count in self._order)
        is_between = left or (batches < total and batches % per_step)
        if is_between and self.config.resume_strict:
            raise CheckpointError(
                f"resume: {at.epoch_samples:,} samples of epoch {self.epoch + 1} were trained on, "
                "and no step ends there as batches are cut now; go on with the memory of then, or "
                "write resume_strict=False to train some of them again"
            )
        at.batches = batches - batches % per_step if is_between else batches
        at.epoch_samples = self._count_rows(at.batches)

    def _heed(self, epoch: float, row: dict[str, float]) -> None:
        """Does what the monitor makes of the new values of an epoch, or of a validation within one:
        what callbacks logged before the row before was judged with that.
        """
        verdict = self._monitor.judge(epoch, row)
        if verdict.factor is not None:
            self._at.plateau_factor = verdict.factor
            self._set_factor()
        if verdict.is_best:
            self._weights.keep_best()
            self._best_step = self.step
            self.matrices.keep_best(is_validated="val_loss" in row)
        if self._monitor.name in row and math.isfinite(row[self._monitor.name]):
            self._records.heed_best(row[self._monitor.name], epoch, is_best=verdict.is_best)
        if verdict.is_last:
            self._stop_reason = self._stop_reason or "early_stopping"

    def _hold_lr(self) -> None:
        """Makes the rate the one that a callback has set."""
        if self._at.held_lr is not None:
            self.runtime.hold_rate(self._at.held_lr)
            self._set_factor()

    def _set_factor(self) -> None:
        if self._at.held_lr is not None or self.averaging.is_on:
            self.runtime.session.control_set(factor=[1.0])
            return
        self.runtime.session.control_set(factor=[self._at.plateau_factor * self._at.pace_factor])

    def _follow_time(self) -> None:
        """Moves the learning rate where time, not steps, ends training."""
        was_by_time = self._pace.is_by_time
        steps = self._applied_at_most
        if self._at.held_lr is not None or self.averaging.is_on:
            return
        multiplier = self._pace.follow(steps, time.perf_counter() - self._trains_since)
        if multiplier is None:
            return
        if not was_by_time:
            self.runtime.hold_rate(self.config.lr)
        self._at.pace_factor = multiplier
        self._set_factor()

    def _current_lr(self) -> float:
        log = self.runtime.session.control_log(0)  # empty where it went on behind its last step
        return float(log[-1][3] if log else self.runtime.session.control()["lr"])

    def _run_batches(self, runner: _core.Runner) -> bool:
        """All steps of the epoch; False when training ends in between."""
        at, anomalies = self._at, self._planner.anomalies
        n_batches = sum(count for _, _, count in self.train_plans)
        while at.batches < n_batches:
            if self._is_over():
                return False
            if self._validates_within():  # whole steps alone are counted: none is cut
                self._validate_within()
                continue
            if anomalies.is_on and not runner.unfinished and anomalies.look_ahead(at.batches):
                self._stop_reason = "nan"
                return False
            how, ran, batches = runner.run(self._steps_to_run(), SLICE_SECONDS)
            if self._interrupts.asked:
                self._stop_reason = self._stop_reason or "interrupted"
            if self._is_over():
                how, more, more_batches = self._finish_step(runner, how)
                ran, batches = ran + more, batches + more_batches
            ends_step = ran > 0 and not runner.unfinished
            may_save = ends_step and self._records.keeper.is_due(at.attempted + ran)
            is_read = may_save or (
                ends_step
                and (self._validates_within(batches) or self._events.due_after(at.attempted + ran))
            )
            if (is_read or self._stop_reason) and self.runtime.session.control()["stopped"]:
                how = "stopped"  # by a step of which the device had not told yet
            behind = None
            if how == "stopped":
                behind = anomalies.explain(is_hurried=self._interrupts.asked)
            if behind is not None:  # steps behind it were queued, and did nothing
                left = at.batches + batches - behind
                how, ran, batches = "done", ran - -(-left // anomalies.k), batches - left
            samples = self._advance(ran, batches)
            if behind is not None:
                self._count_applied()
            self._follow_time()
            if not self._progress.is_quiet and ran:
                now = self.runtime.session.snapshot()
                self._progress.advance(samples, {"loss": now["loss"], "lr": now["lr"]})
            if how == "stopped":
                self._stop_reason = "nan"
                return False
            if ran > 0 and not runner.unfinished:
                self._records.log.heed_steps(at.attempted, self.epoch + 1)
                self._end_step()
                if at.batches < n_batches and not self._validates_within():
                    # else after validation
                    self._records.heed_step(may_save=may_save)
        return True

    def _end_step(self) -> None:
        """Calls the callbacks that want to hear of this step."""
        if due := self._events.due_after(self._at.attempted):
            (*_, (_, loss, grad_norm, lr, _)) = self.runtime.session.control_log(0)
            self.logs = {"loss": loss, "grad_norm": grad_norm, "lr": lr}
            self._call(STEP_METHOD, due)

    def _advance(self, steps: int, batches: int) -> int:
        """Counts what was run; the samples of it."""
        at = self._at
        samples = self._count_rows(at.batches + batches) - self._count_rows(at.batches)
        at.batches += batches
        at.attempted += steps
        at.samples += samples
        at.epoch_samples += samples
        return samples

    def _count_on(self) -> None:
        """Counts steps that were done by a call which raised before it could say so."""
        steps = int(self.runtime.session.control()["attempted"]) - self._at.attempted
        left = sum(count for _, count in self._order) - self._at.batches
        if steps > 0:
            self._advance(steps, min(steps * self._planner.batches_per_step, left))

    def _count_rows(self, n_batches: int) -> int:
        """Samples in the first batches of an epoch."""
        rows = 0
        for number, count in self._order:
            rows += self.train_plans[number][1] * min(count, n_batches)
            n_batches -= min(count, n_batches)
        return rows

    def _finish_step(self, runner: _core.Runner, how: str) -> tuple[str, int, int]:
        """Finishes the step that was begun, unless Ctrl-C is pressed again; as ``runner.run``."""
        more = more_batches = 0
        while runner.unfinished and self._interrupts.count < 2:
            how, ran, batches = runner.run(1, SLICE_SECONDS)
            more, more_batches = more + ran, more_batches + batches
        runner.abandon()
        return how, more, more_batches

    def _is_over(self) -> bool:
        config = self.config
        if self._stop_reason:
            return True
        seconds = time.perf_counter() - self._trains_since
        if config.max_time is not None and self._at.samples and seconds >= config.max_time:
            self._stop_reason = "max_time"  # not before the first step
        elif config.max_steps is not None and self._steps_left() <= 0:
            self._count_applied()
            if self._steps_left() <= 0:
                self._stop_reason = "max_steps"
        return bool(self._stop_reason)

    def _steps_left(self) -> int:
        """Steps that may be run before the device has to be asked how many were applied."""
        most = self.config.max_steps
        return sys.maxsize if most is None else most - self._applied_at_most

    @property
    def _applied_at_most(self) -> int:
        return self._at.attempted - self._at.not_applied

    def _count_applied(self) -> None:
        """Asks the device, which alone knows how many steps were skipped."""
        applied = int(self.runtime.session.control()["applied"])
        self._at.not_applied = self._at.attempted - applied

    def _steps_to_run(self) -> int:
        """Steps that may be run in one call, whose learning rates the device has."""
        runtime = self.runtime
        most = 1 if self._planner.anomalies.is_on else sys.maxsize
        if not runtime.steps_in_tables(self._applied_at_most):
            self._count_applied()
            runtime.move_tables(self._applied_at_most)
        return min(
            most,
            self._steps_left(),
            runtime.steps_in_tables(self._applied_at_most),
            self._records.keeper.steps_until_due(self._at.attempted),
            self._events.steps_until_due(self._at.attempted),
            self._checks.steps_until_due(self._at, self.epoch + 1),
            self._records.log.steps_until_due(self._at.attempted),
        )

    # ---- its state

    @property
    def step(self) -> int:
        """Optimizer steps that were applied."""
        return int(self.runtime.session.control()["applied"])

    @property
    def steps_attempted(self) -> int:
        """Optimizer steps that began, skipped ones among them."""
        return self._at.attempted

    @property
    def is_within_epoch(self) -> bool:
        """Whether an epoch has begun that has not ended."""
        return self._at.batches > 0

    @property
    def has_best(self) -> bool:
        """Whether the weights of the best epoch are kept."""
        return self.config.restore_best and self._monitor.best is not None

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, as plain values."""
        return {
            "epoch": self.epoch,
            "position": self._at.to_dict() | {"seconds": time.perf_counter() - self._trains_since},
            "monitor": self._monitor.state_dict(),
            "pace": self._pace.state_dict(),
            "swa": self.averaging.state_dict(),
            "best_step": self._best_step,
            "logged": self._logged.state_dict(),
            "not_finite": self._planner.anomalies.text,
            "history": {name: list(column) for name, column in self.history.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state whose arrays the session has."""
        self.epoch = state["epoch"]
        self.history.update({name: list(column) for name, column in state["history"].items()})
        self._at = Position.from_dict(state["position"])
        self._best_step = state.get("best_step")
        self._logged.load_state_dict(state["logged"])
        self._planner.anomalies.go_on(state.get("not_finite"))
        self._samples_before = self._at.samples
        self._monitor.load_state_dict(state["monitor"])
        if not self._pace.load_state_dict(state["pace"]):
            multiplier = self._pace.follow(self._applied_at_most, self._at.seconds)
            self._at.pace_factor = 1.0 if multiplier is None else multiplier
        if state.get("swa"):
            self.averaging.load_state_dict(state["swa"])
        self._take_up(state["control"])
        if self._monitor.is_over:
            self._stop_reason = "early_stopping"

    def note_file(self, path: str) -> None:
        """A file of the run is on disk."""
        self.last_path = self._records.keeper.last_path
        self.best_path = self._records.keeper.best_path
        self._call("on_checkpoint")

    # ---- validation

    def _validate(self) -> dict[str, float]:
        began = time.perf_counter()
        session, sums = self.runtime.session, self._planner.val_sums
        outputs: list[list[Any]] = []
        collect = self._steps.n_collected
        with self._weights.averaged():
            sums.clear(session)
            for plan, count, feed, _ in self._planner.val_plans:
                feed.seek(0)
                done = 0
                while done < count and not self._interrupts.asked:
                    _, ran = plan.run(1 if collect else count - done, SLICE_SECONDS)
                    done += ran
                    if collect and ran:
                        outputs.append([plan.output(i) for i in range(collect)])
                plan.abandon()
        totals = sums.read(session)
        values = self._steps.values(totals)
        if not self._interrupts.asked:
            self.matrices.note(self._steps.matrices(totals))
            if collect:
                split = self._planner.validation_split
                values.update(self._steps.collected_values(split, outputs))
        self._timings["validate"] += time.perf_counter() - began
        return {f"val_{name}": value for name, value in values.items()}

    # ---- the end

    @property
    def monitored_in_vain(self) -> str:
        """Which monitored values were finite at no epoch, and what follows; "": there are none."""
        return self._monitor.in_vain

    def _conclude(self) -> TrainResult:
        monitor, planner = self._monitor, self._planner
        control = self.runtime.session.control()
        end = self._end
        if end is None and self._stop_reason != "nan":
            end = self._records.take(for_file=False)
        self._end = None
        self._records.finish(end)
        self._weights.finish(has_best=monitor.best is not None)
        step = self._best_step if self.has_best else None
        fitted, peak_bytes = self._steps.metadata(self.config, step), planner.peak_bytes()
        plan = str(self.train_plans[0][0])
        release(self.runtime.layout.variables())
        self.runtime.download()  # the last that can fail: the model is new as a whole or not at all
        set_metadata(self.model, fitted)
        self._has_ended = True
        self._records.finish_best()
        config = self.config
        fails = self._stop_reason == "nan" and (config.on_nan == "raise" or config.detect_anomaly)
        self._records.close(failed=fails)
        keeper = self._records.keeper
        is_saved = end is not None and keeper.saved_at == end.run["position"]["attempted"]
        seconds = time.perf_counter() - self._began
        timings = self._timings
        timings["checkpoint"] = self._records.seconds
        timings["other"] = seconds - sum(timings.values())
        result = TrainResult(
            model=self.model,
            history=self.history,
            config=self.config,
            device=planner.device.name,
            state=None if is_saved else end,
            best_path=keeper.best_path,
            last_path=keeper.last_path,
            log_path=self._records.log.path,
            written=keeper.mark if is_saved else (),
            plan=plan,
            confusion_matrix=self.matrices.of_result(has_best=self.has_best),
            monitor=monitor.name if monitor.best is not None else None,
            best_score=monitor.best,
            best_epoch=monitor.best_epoch,
            stop_reason=self._stop_reason or "completed",
            epochs=self.epoch,
            steps=control["applied"],
            skipped_steps=control["skipped"],
            not_finite=planner.anomalies.text,
            schedule_by="time" if self._pace.is_by_time else "steps",
            seconds=seconds,
            timings=timings,
            data_wait=planner.data_wait,
            samples_per_second=(self._at.samples - self._samples_before)
            / max(timings["train"], 1e-9),
            peak_bytes=peak_bytes,
            n_averaged=planner.weights.n_averaged,
            predicted_peak_bytes=planner.predicted_bytes,
        )
        if fails:  # train raises it
            self.exception = end_error(result.not_finite, result.steps)
        self._call("on_exception" if fails else "on_train_end")
        return result
