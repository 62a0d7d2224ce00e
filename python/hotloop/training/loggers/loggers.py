"""All loggers of a run: what they are given, when, and what becomes of one that fails.

Values of steps lie in the core's ring, which holds the last 256. They are read from it when a step
that is to be logged has ended and a second has passed since the last time, or the ring would lose
one: so the loop stays in the core however short steps are, and the device is waited for once a
second at most, and never more often than ``log_every_n_steps`` says.

A row of the history follows the steps before it. Of a run that goes on, files lose what was written
behind the step that it goes on from; trackers cannot forget, so that what they have is not logged
again: it has the same bits. How far they came says the file ``.logged`` of the run's folder.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from hotloop.base.rules import reject, show
from hotloop.training.config.schema import listed_loggers
from hotloop.training.loggers.event_file import EventFile
from hotloop.training.loggers.files import JsonLines, StepsFile
from hotloop.training.loggers.history_file import HistoryFile
from hotloop.training.loggers.own import Own
from hotloop.training.loggers.record import Logger, Record, Start
from hotloop.training.loggers.trackers import Mlflow, Trackio, Wandb
from hotloop.training.scoring.names import COLUMNS

if TYPE_CHECKING:
    from hotloop import _core
    from hotloop.training.checkpoints.folder import RunFolder
    from hotloop.training.config import TrainingConfig
    from hotloop.training.result.history import History

__all__ = ["Loggers", "check_loggers", "of_fold"]

_RING = 256  # HL_CONTROL_RING
_BETWEEN = 1.0  # seconds between two readings of the ring, unless it is full
_KINDS: Mapping[str, Callable[[], Logger]] = {
    "auto": StepsFile, "csv": StepsFile, "jsonl": JsonLines, "tensorboard": EventFile,
    "wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio,
}  # fmt: skip
# What is imported of each package; its name is what pip installs.
_PACKAGES = {
    "tensorboard": (
        "tensorboard.compat.proto.event_pb2", "tensorboard.summary.writer.record_writer",
    ),
    "wandb": ("wandb",), "mlflow": ("mlflow",), "trackio": ("trackio",),
}  # fmt: skip
# Reports to the makers of a package, which would be the network by default.
_QUIET = {
    "wandb": ("WANDB_ERROR_REPORTING", "false"),
    "mlflow": ("MLFLOW_DISABLE_TELEMETRY", "true"),
}
_fold: ContextVar[tuple[int, int]] = ContextVar("fold", default=(0, 0))
_OTHER_NAMES = {name: name for name in COLUMNS} | {"lr": "learning_rate"}


@contextlib.contextmanager
def of_fold(number: int, steps: int) -> Iterator[None]:
    """In the block the next run is one of the folds of a cross-validation.

    Loggers that these share, objects and trackers' runs that the user has begun, get the fold's
    number beside the values, and steps that go on behind those of the folds before: a tracker
    refuses steps that fall.

    Parameters
    ----------
    number : int
        From 1.
    steps : int
        That were attempted in the folds before.
    """
    before = _fold.set((number, steps))
    try:
        yield
    finally:
        _fold.reset(before)


def check_loggers(value: Any) -> None:
    """Imports what the loggers of a configuration need.

    Parameters
    ----------
    value : object
        Its field ``logger``.

    Raises
    ------
    ConfigError
        If a package is missing or cannot be imported.
    """
    for name in listed_loggers(value):
        for module in _PACKAGES.get(name, ()) if isinstance(name, str) else ():
            if name in _QUIET and name not in sys.modules:
                os.environ.setdefault(*_QUIET[name])
            try:
                importlib.import_module(module)
            except Exception as error:  # a broken package may raise anything
                reject(
                    "logger",
                    f"{name!r} needs the package {name}, which cannot be imported ({error})",
                    value,
                    f"run pip install {name}, or write logger='csv'",
                )


class Loggers:
    """The loggers of one run.

    Parameters
    ----------
    config : TrainingConfig
    folder : RunFolder
    say : callable
        Shows a line.
    """

    def __init__(
        self, config: TrainingConfig, folder: RunFolder, say: Callable[[str], None]
    ) -> None:
        asked = listed_loggers(config.logger)
        self._config, self._folder, self._say = config, folder, say
        self._history = HistoryFile(folder, is_wanted="csv" in asked or "auto" in asked)
        self._loggers = [_KINDS[one]() if isinstance(one, str) else Own(one) for one in asked]
        self._live = list(self._loggers)
        self._every = config.log_every_n_steps
        self._known: Mapping[str, Mapping[str, str]] = {}
        self._session: _core.Session | None = None
        self._read = self._logged_step = 0
        self._read_at = 0.0
        self._logged_names: Collection[str] = ()
        self._mark: _Mark | None = None
        self._fold, self._steps_before = _fold.get()
        _fold.set((0, 0))  # a run that one of its callbacks begins is none of a fold

    @property
    def path(self) -> str | None:
        """The log that a result names: metrics.csv, else metrics.jsonl."""
        if self._history.path is not None:
            return self._history.path
        return next((one.path for one in self._loggers if isinstance(one, JsonLines)), None)

    def state_dict(self) -> dict[str, dict[str, str]]:
        """By which trackers find their runs again."""
        return {one.name: dict(one.state) for one in self._loggers if one.state}

    def load_state_dict(self, state: Mapping[str, Mapping[str, str]]) -> None:
        """Goes on with the trackers' runs of before."""
        self._known = state

    # ---- while training

    def begin(self, session: _core.Session, name: str, steps: int) -> None:
        """Begins all of them.

        Parameters
        ----------
        session : Session
            Whose ring has the values of steps.
        name : str
            Of the run, for trackers.
        steps : int
            That were attempted before.
        """
        self._session, self._read, self._read_at = session, steps, time.perf_counter()
        config = _plain(self._config.to_dict())
        name += f"-fold{self._fold}" if self._fold else ""
        for one in self._loggers:
            known = self._known.get(one.name, {})
            start = Start(self._folder, name, config, steps, known, self._fold)
            self._try(one, lambda one=one, start=start: one.begin(start))  # type: ignore[misc]
        if any(not one.is_cut for one in self._live):
            goes_on = self._config.resume_strict and bool(self._known)
            self._mark = _Mark(self._folder, goes_on=goes_on)

    def follow(self, session: _core.Session) -> None:
        """Reads the ring of another session from now on, in which the run goes on."""
        self._session = session

    def _first_waiting(self) -> int:
        """The first step to be logged that was not read."""
        return (self._read // self._every + 1) * self._every

    def steps_until_due(self, steps: int) -> int:
        """Steps that may be run before the ring has to be read.

        Parameters
        ----------
        steps : int
            That were attempted.
        """
        if not self._live:
            return sys.maxsize
        first = self._first_waiting()
        if time.perf_counter() - self._read_at >= _BETWEEN:
            return max(first - steps, 1)
        return max(first + _RING - 1 - steps, 1)

    def heed_steps(self, steps: int, epoch: int, *, now: bool = False) -> None:
        """Logs the steps that have ended, unless that can wait.

        Parameters
        ----------
        steps : int
            That were attempted.
        epoch : int
            Of which they are, from 1.
        now : bool
            Whether it cannot.
        """
        first = self._first_waiting()
        if not self._live or steps < first or self._session is None:
            return
        at = time.perf_counter()
        if not now and steps < first + _RING - 1 and at - self._read_at < _BETWEEN:
            return
        for step, loss, grad_norm, lr, _ in self._session.control_log(0):
            if self._read < step <= steps and step % self._every == 0:
                values = {
                    "train/loss_step": loss,
                    "train/grad_norm": grad_norm,
                    "learning_rate": lr,
                }
                self._log(Record(step, values, is_row=False, epoch=epoch))
        self._read, self._read_at = steps, at

    def log_row(
        self, row: Mapping[str, float], history: History, steps: int, own: Collection[str]
    ) -> None:
        """Logs a row of the history, behind the steps before it.

        Parameters
        ----------
        row : mapping of str to float
        history : History
            That ends with it.
        steps : int
            That were attempted.
        own : collection of str
            Names of values that are callbacks'.
        """
        epoch = math.ceil(row["epoch"])
        self.heed_steps(steps, epoch, now=True)
        values = {_name(name, own): value for name, value in row.items()}
        if steps == self._logged_step:
            values = {k: v for k, v in values.items() if k not in self._logged_names}
        self._log(Record(steps, values, is_row=True, epoch=epoch))
        self.write(history)

    def write(self, history: History, *, last: bool = False) -> None:
        """Writes the history's file where that is due or training ends."""
        self._history.write(history, last=last)

    def _log(self, record: Record) -> None:
        mark = self._mark
        is_known = mark is not None and mark.has(record)
        shared = record
        if self._fold:
            values = {**record.values, "fold": float(self._fold)}
            shared = record._replace(step=self._steps_before + record.step, values=values)
        for one in list(self._live):
            if one.is_cut or not is_known or not self._known.get(one.name):
                given = shared if one.is_shared else record
                self._try(one, lambda one=one, given=given: one.log(given))  # type: ignore[misc]
        if mark is not None:
            mark.note(record)
        self._logged_step, self._logged_names = record.step, record.values

    def _try(self, one: Logger, call: Callable[[], None]) -> None:
        """Calls a logger; one that fails is said, and not called again."""
        try:
            call()
        except Exception as error:
            with contextlib.suppress(ValueError):
                self._live.remove(one)
            self._say(
                f"hotloop: warning: the logger {one.name} stops here: {type(error).__name__}: "
                f"{error}; training goes on"
            )

    def close(self, *, failed: bool) -> None:
        """Ends all of them."""
        live, self._session = list(self._live), None
        for one in live:
            self._try(one, lambda one=one: one.end(failed=failed))  # type: ignore[misc]
        self._live.clear()
        if self._mark is not None:
            self._mark.close()


class _Mark:
    """How far trackers came, in a file of the run's folder.

    Parameters
    ----------
    folder : RunFolder
    goes_on : bool
        Whether what is there counts.
    """

    _DIGITS = 20

    def __init__(self, folder: RunFolder, *, goes_on: bool) -> None:
        self._folder = folder
        self._file: int | None = None
        self._is_refused = False
        self._known = -1
        if goes_on and (path := folder.open()) is not None:
            with contextlib.suppress(OSError, ValueError), open(self._in(path)) as file:
                self._known = int(file.read())

    @staticmethod
    def _in(folder: str) -> str:
        return os.path.join(folder, ".logged")

    @staticmethod
    def _number(record: Record) -> int:
        """Orders records: a row stands behind its step."""
        return 2 * record.step + record.is_row

    def has(self, record: Record) -> bool:
        """Whether trackers had the record before the run went on."""
        return self._number(record) <= self._known

    def note(self, record: Record) -> None:
        """Trackers have the record."""
        number = self._number(record)
        if number <= self._known or self._is_refused or (path := self._folder.open()) is None:
            return
        try:
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(self._in(path), flags, 0o644)
            os.pwrite(self._file, f"{number:0{self._DIGITS}d}".encode(), 0)
        except OSError:  # then what is trained again is logged again
            self._is_refused = True

    def close(self) -> None:
        """Nothing is noted afterwards."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _name(name: str, own: Collection[str]) -> str:
    """The name that trackers' users know."""
    if name in own:
        return name
    if name.startswith("val_"):
        return f"val/{name.removeprefix('val_')}"
    return _OTHER_NAMES.get(name, f"train/{name}")


def _plain(value: Any) -> Any:
    """A configuration's values as trackers take them."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "__name__", None) or show(value)
