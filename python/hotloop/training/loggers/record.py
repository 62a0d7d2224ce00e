"""What a logger is, and what it is given."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hotloop.training.checkpoints.folder import RunFolder

__all__ = ["Logger", "Record", "Start"]


class Record(NamedTuple):
    """Values of one step, or of an epoch or validation that ended with it.

    Attributes
    ----------
    step : int
        That was attempted, from 1.
    values : dict of str to float
        By the names that trackers have: ``train/loss``.
    is_row : bool
        Whether it is a row of the history.
    epoch : int
        Of which the step is, from 1.
    """

    step: int
    values: Mapping[str, float]
    is_row: bool
    epoch: int


class Start(NamedTuple):
    """What a logger knows when a run begins.

    Attributes
    ----------
    folder : RunFolder
    name : str
        Of the run.
    config : dict of str to object
        The configuration as plain values, nested.
    step : int
        Steps that were attempted before, of a run that goes on; else 0.
    known : dict of str to str
        What this logger's ``state`` was then.
    fold : int
        Of a cross-validation, from 1; 0: it is of none.
    """

    folder: RunFolder
    name: str
    config: Mapping[str, Any]
    step: int
    known: Mapping[str, str]
    fold: int


class Logger(abc.ABC):
    """Writes records somewhere. What it raises ends it, and never training.

    Attributes
    ----------
    name : str
        As the configuration has it.
    path : str or None
        Of its file, where it has one.
    state : dict of str to str
        By which it finds what it began when the run goes on.
    is_cut : bool
        Whether what was logged behind the step that a run goes on from is gone; else a record is
        logged once, also where its step is trained again.
    is_shared : bool
        Whether it writes to what the user has begun, which the other folds of a cross-validation
        write to as well.
    """

    name = ""
    is_cut = True
    is_shared = False

    def __init__(self) -> None:
        self.path: str | None = None
        self.state: dict[str, str] = {}

    def begin(self, start: Start) -> None:  # noqa: B027  some have nothing to do
        """Before the first step."""

    @abc.abstractmethod
    def log(self, record: Record) -> None:
        """Writes a record; steps never fall."""

    def end(self, *, failed: bool) -> None:  # noqa: B027  likewise
        """When training has ended, or failed."""
