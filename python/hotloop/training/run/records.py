"""What a run leaves on disk: its folder, the log, checkpoints, best models; and going on from one.

The loop says when a step, an epoch, a run has ended; when something is written, and what of it is
kept, is for the keeper to say (training/checkpoints/keeper.py).
"""

from __future__ import annotations

import functools
import hashlib
import re
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from hotloop._version import __version__
from hotloop.base.messages import counted, named, warn
from hotloop.data.fingerprint import fingerprint, row_numbers
from hotloop.errors import CheckpointError, CheckpointWarning, ConfigError
from hotloop.nn.state import state_items
from hotloop.training.checkpoints.folder import RunFolder
from hotloop.training.checkpoints.keeper import Keeper
from hotloop.training.checkpoints.resuming import Resumed, check_same_data
from hotloop.training.checkpoints.snapshot import (
    Snapshot,
    capture,
    find_ages,
    moments_of,
    plain,
    restore,
    snapshot_bytes,
)
from hotloop.training.config import TrainingConfig
from hotloop.training.loggers.loggers import Loggers
from hotloop.training.plans.runtime import Sums, trace_two_rows
from hotloop.training.result.saving import describe_model

if TYPE_CHECKING:
    from hotloop.training.run.loop import Run
    from hotloop.training.run.planner import Planner
    from hotloop.training.run.progress import Progress

__all__ = ["Records"]

_ROWS = "hotloop.rows."
_CHECKPOINT = re.compile(r"  \| checkpoint \d+")  # of a node, in a graph's text
_P = ParamSpec("_P")
_T = TypeVar("_T")


def _timed(
    method: Callable[Concatenate[Records, _P], _T],
) -> Callable[Concatenate[Records, _P], _T]:
    """The method, whose time counts as that of checkpoints; once, where one calls another."""

    @functools.wraps(method)
    def run(self: Records, /, *args: _P.args, **options: _P.kwargs) -> _T:
        before, began = self.seconds, time.perf_counter()
        try:
            return method(self, *args, **options)
        finally:
            self.seconds = before + time.perf_counter() - began

    return run


class Records:
    """The files of one run.

    Parameters
    ----------
    run : Run
    planner : Planner
        After ``prepare``.
    asked : TrainingConfig
        The configuration as it was given, before "auto" was resolved.
    began : float
        When ``train`` was called, by ``time.perf_counter``.
    progress : Progress
        Shows lines.
    resumed : Resumed, optional
        What the run goes on from.

    Attributes
    ----------
    log : Loggers
    keeper : Keeper
    seconds : float
        That training stood still for checkpoints.
    """

    def __init__(
        self,
        run: Run,
        planner: Planner,
        asked: TrainingConfig,
        began: float,
        progress: Progress,
        resumed: Resumed | None,
    ) -> None:
        self._run: Run = weakref.proxy(run)  # which holds this
        self._planner, self._progress = planner, progress
        self._resumed = resumed
        config = planner.config
        self.folder = RunFolder(
            config,
            began,
            progress.show,
            device=planner.device.name,
            continued=resumed.folder if resumed is not None else None,
            is_quiet=progress.is_quiet,
        )
        self.seconds = 0.0
        self._resting: dict[str, Any] = {}  # moments of what is trained again later
        self._ages: dict[str, int] = {}  # of them
        self.keeper = Keeper(
            config,
            self.folder,
            progress.show,
            monitor=planner.monitor.name,
            larger_is_better=planner.monitor.larger_is_better,
        )
        self.log = Loggers(config, self.folder, progress.show)
        self._known = {name for name, _ in state_items(planner.model)}
        self._asked = asked
        self._id = resumed.snapshot.run["id"] if resumed is not None else uuid.uuid4().hex
        self._data: dict[str, Any] | None = None
        self._rows: dict[str, Any] | None = None
        self._described: tuple[dict[str, str], dict[str, Any]] | None = None
        self._can_describe = True

    # ---- before the first step

    def begin(self) -> None:
        """Looks whether there is room, and opens the folder where output was asked for."""
        runtime, config = self._planner.runtime, self._planner.config
        best = sum(slot.size for slot in runtime.layout.slots) * 4
        self.keeper.begin(
            snapshot_bytes(
                runtime,
                copies=self._planner.weights.n_copies,
                n_moments=self._planner.phases.most_moments(),
            ),
            best,
            self._run.steps_attempted,
            self._run.epoch,
            self._scores(),
            self._resumed.damaged if self._resumed is not None else (),
            self._run.averaging.first,
        )
        if self.folder.is_asked and (config.logger is not None or config.enable_checkpointing):
            self.folder.open(announce=False)
        self.log.begin(runtime.session, self._name(), self._run.steps_attempted)

    def _name(self) -> str:
        """Of the run, in trackers."""
        return f"{type(self._planner.model).__name__}-{self._id[:8]}"

    def _scores(self) -> dict[float, float]:
        """From epoch to what is monitored, of the run that is continued."""
        history = self._run.history
        column = history.get(self._planner.monitor.name, [])
        return dict(zip(history.get("epoch", []), column, strict=False))

    def describe(self) -> str:
        """Where output is or will be, for the header; "": nowhere."""
        config = self._planner.config
        if config.logger is None and not config.enable_checkpointing:
            return ""
        return self.folder.describe()

    def go_on(self) -> None:
        """Puts the state of the run that is continued into the session and the run.

        Raises
        ------
        ConfigError
            If the data is other data.
        CheckpointError
            If the values do not fit the model.
        """
        resumed = self._resumed
        assert resumed is not None
        strict = self._planner.config.resume_strict
        snapshot = resumed.snapshot
        check_same_data(resumed, plain(self._fingerprint()), strict=strict)
        if strict:
            self._check_rows(snapshot)
        is_within_epoch = snapshot.run["position"]["batches"] > 0
        sums = self._sums().stores if is_within_epoch else {}
        missing = self._restore(snapshot, sums, strict=strict)
        if strict:
            self._check_model(snapshot)
        if missing:
            warn(
                f"resume: the checkpoint lacks {counted(len(missing), 'value')}, {missing[0]} the "
                "first; they begin with zeros",
                CheckpointWarning,
            )
        state = snapshot.run
        has_best = any(name.startswith("hotloop.best.") for name in snapshot.tensors)
        if self._planner.config.restore_best and not has_best:
            # Its best weights were not kept: the best of this run is that of the epochs to come.
            monitor = state["monitor"]
            unknown = monitor["best"] | {"best": None, "best_epoch": None, "n_judged": 0}
            state = state | {"monitor": monitor | {"best": unknown}}
        self._run.load_state_dict(state)
        self.log.load_state_dict(state.get("loggers", {}))
        self._run.matrices.load(snapshot.tensors)

    def begin_phase(self, snapshot: Snapshot) -> None:
        """Goes on in the session of another phase, with the values of the end of that before."""
        self._restore(snapshot, {}, strict=True)
        self.log.follow(self._planner.runtime.session)

    def _restore(self, snapshot: Snapshot, sums: Mapping[str, int], *, strict: bool) -> list[str]:
        """Puts values into the session; the names of those that are missing."""
        planner = self._planner
        phases, then = planner.phases, snapshot.run.get("phase", 1)
        joining = phases.trained(planner.phase).keys() - phases.trained(then).keys()
        missing = restore(planner.runtime, snapshot, sums, strict=strict, joining=joining)
        resting = phases.resting(planner.phase)
        self._resting = moments_of(snapshot, resting)
        self._ages = {k: age for k, age in find_ages(snapshot).items() if k in resting}
        return missing

    def _sums(self) -> Sums:
        return self._planner.steps.train_sums

    def _fingerprint(self) -> dict[str, Any]:
        if self._data is None:
            self._data = fingerprint(self._planner.data)
        return self._data

    def _row_numbers(self) -> dict[str, Any]:
        if self._rows is None:
            found = row_numbers(self._planner.data)
            self._rows = {_ROWS + name: _narrow(rows) for name, rows in found.items()}
        return self._rows

    def _check_rows(self, snapshot: Snapshot) -> None:
        now = self._row_numbers()
        then = {k: rows for k, rows in snapshot.tensors.items() if k.startswith(_ROWS)}
        for name in sorted({*now, *then}):
            if name in now and name in then and np.array_equal(now[name], then[name]):
                continue
            raise CheckpointError(
                f"resume: {name.removeprefix(_ROWS)} has other rows than when the run began; "
                "divide the data as then, or write resume_strict=False"
            )

    def _check_model(self, snapshot: Snapshot) -> None:
        """Refuses a model of the same weights that computes or trains something else."""
        then = snapshot.run["trainable"]
        wanted = self._planner.phases.trained(snapshot.run.get("phase", 1))
        if changed := sorted(set(then) ^ wanted.keys()):
            raise ConfigError(
                f"resume: what is trained must be what it was, got {named(changed)}, which "
                f"{'was' if changed[0] in then else 'was not'} trained then; write "
                "resume_strict=False to go on anyway"
            )
        model = snapshot.run["model"]
        if model and model != self._model_digest:
            raise ConfigError(
                "resume: the model must be the one that the run began with, got one of the same "
                "weights that computes something else (another activation, dropout or forward); "
                "write resume_strict=False to go on anyway"
            )

    @property
    def _trainable(self) -> list[str]:
        return [slot.name for slot in self._planner.runtime.layout.trainable]

    @functools.cached_property
    def _model_digest(self) -> str:
        """By which what the model computes is known again; "": it cannot be traced on two rows."""
        try:
            trace = trace_two_rows(self._planner.model, self._planner.data)
        except Exception:  # the user's forward may raise anything
            return ""
        text = _CHECKPOINT.sub("", str(trace.graph))  # what is recomputed has the same bits
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    # ---- what is saved

    @_timed
    def take(self, *, for_file: bool) -> Snapshot:
        """The run between two steps, as arrays of its own.

        Parameters
        ----------
        for_file : bool
            Whether the model's predict graph goes along.
        """
        self.keeper.wait()  # for there is memory for one copy
        run, planner = self._run, self._planner
        self.log.heed_steps(run.steps_attempted, run.epoch + 1, now=True)  # none is lost
        sums = list(self._sums().stores) if run.is_within_epoch else []
        kinds = {"with_best": run.has_best, "with_average": planner.weights.n_averaged > 0}
        tensors, control = capture(planner.runtime, self._known, sums, **kinds)
        planner.note_copy(planner.copy_bytes(sum(kinds.values())))
        tensors.update(self._resting)
        tensors.update(self._row_numbers())
        tensors.update(run.matrices.tensors())
        model: dict[str, str] = {}
        if for_file:
            model, constants = self._describe()
            tensors.update(constants)
        state = {
            "version": 1,
            "id": self._id,
            "hotloop": __version__,
            "asked": self._asked.to_toml(strict=False),
            "config": planner.config.to_toml(strict=False),
            "unwritten": self._asked.unwritable(),
            "device": planner.device.name,
            "autotune_cache": planner.device.autotune_cache(),
            "data": self._fingerprint(),
            "trainable": self._trainable,
            "phase": planner.phase,
            "ages": {name: control["applied"] - step for name, step in planner.began.items()}
            | self._ages,
            "model": self._model_digest if for_file else "",
            "loggers": self.log.state_dict(),
            # An abandoned step had begun, and begins again.
            "control": control | {"attempted": run.steps_attempted},
            **run.state_dict(),
        }
        return Snapshot(tensors, state, model)

    def take_between(self) -> Snapshot:
        """The same between two phases: for a file, if the next one cannot be planned."""
        return self.take(for_file=self.keeper.saves_last and self.folder.open() is not None)

    def _describe(self) -> tuple[dict[str, str], dict[str, Any]]:
        """What ``hl.load`` needs beside the weights; the graph stays as long as no number moves."""
        if self._described is None or len(self._planner.runtime.numbers) > 1:
            with self._run.showing_weights():
                self._described = self._describe_now()
        return self._described

    def _describe_now(self) -> tuple[dict[str, str], dict[str, Any]]:
        model = self._planner.model
        try:
            described, constants = describe_model(model, with_graph=self._can_describe)
        except Exception as error:  # the user's forward may raise anything
            self._can_describe = False
            self._progress.show(
                "hotloop: warning: files of this run hold values without a predict graph, so that "
                f"hl.load refuses them and load_state_dict takes them: {error}"
            )
            described, constants = describe_model(model, with_graph=False)
        return {"format": "pt", "hotloop": described}, constants

    @_timed
    def heed_step(self, *, ended_epoch: int | None = None, may_save: bool = True) -> None:
        """Saves where that is due after steps; says what was written or failed since."""
        steps = self._run.steps_attempted
        if may_save and self.keeper.is_due(steps, ended_epoch=ended_epoch):
            self.keeper.save(self.take(for_file=True), steps, self._run.epoch)
        self._tell(self.keeper.poll())

    @_timed
    def heed_best(self, score: float, epoch: float, *, is_best: bool) -> None:
        """Saves the model of an epoch that may be among the best, unless that can wait.

        Parameters
        ----------
        epoch : float
            Or of a validation within one.
        score : float
            Of what is monitored.
        is_best : bool
            Whether no epoch was better, by the monitor.
        """
        keeper, config = self.keeper, self._planner.config
        if not keeper.is_wanted(score) or (config.save_top_k == 1 and not is_best):
            return
        if not keeper.is_best_due():
            return
        with self._run.showing_weights():
            self._hand_best(score, epoch)
        self._tell(self.keeper.poll())

    def _hand_best(self, score: float, epoch: float) -> None:
        metadata, constants = self._describe_now()
        tensors = {**self._planner.model.state_dict(), **constants}
        self.keeper.save_best(tensors, metadata, epoch, score)

    @_timed
    def finish(self, snapshot: Snapshot | None) -> None:
        """Saves where the run ended, and logs its last steps.

        Parameters
        ----------
        snapshot : Snapshot or None
            Of its end; None: nothing is to be saved, since it went wrong.
        """
        self.log.heed_steps(self._run.steps_attempted, self._run.epoch + 1, now=True)
        if snapshot is None or not self.keeper.saves_last:
            return
        steps = snapshot.run["position"]["attempted"]
        if steps == self.keeper.handed_at or self.folder.open() is None:
            return
        if not snapshot.model:
            model, constants = self._describe()
            snapshot.tensors.update(constants)
            snapshot.run["model"] = self._model_digest
            snapshot = snapshot._replace(model=model)
        self.keeper.save(snapshot, steps, snapshot.run["epoch"])

    @_timed
    def finish_best(self) -> None:
        """Saves the best model, where it is not on disk and the model has its weights."""
        monitor = self._planner.monitor
        epoch, best = monitor.best_epoch, monitor.best
        if not self._planner.config.restore_best or best is None or epoch is None:
            return
        self.keeper.wait()  # a write that failed is tried again
        if self.keeper.is_wanted(best) and self.folder.open() is not None:
            self._hand_best(best, epoch)

    def close(self, *, failed: bool = False) -> None:
        """Waits until everything is on disk, says so, and lets other calls go on with the run.

        Parameters
        ----------
        failed : bool
            Whether an error ended it.
        """
        try:
            self.keeper.wait()
            self._tell(self.keeper.poll(is_over=True, has_result=not failed))
        finally:
            self.log.close(failed=failed)
            self.keeper.close()
            self.folder.close()

    def _tell(self, written: Iterable[str]) -> None:
        for path in written:
            self._run.note_file(path)


def _narrow(rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Row numbers in half the bytes, where they fit."""
    return rows.astype(np.int32) if not len(rows) or rows.max() < 2**31 else rows
