"""The "csv" logger: one row per epoch in ``<output_dir>/<number>/metrics.csv``.

Each run takes the next free number. The atomic writer replaces the file, so that a
reader never sees half a row and a new column gets its header; once a second at most, and at the
end, for a durable write takes longer than many an epoch.

A run that asked for a log, by ``logger`` or ``output_dir``, has its folder before the first epoch.
Any other has one once it has taken a minute, and then holds all epochs so far: short runs, of which
a notebook makes hundreds, leave nothing behind.
"""

from __future__ import annotations

import csv
import io
import os
import time
from typing import TYPE_CHECKING

from hotloop import _core
from hotloop.errors import CheckpointError

if TYPE_CHECKING:
    from hotloop.training.config import TrainingConfig
    from hotloop.training.result.history import History
    from hotloop.training.run.progress import Progress

__all__ = ["CsvLog"]

UNASKED_AFTER = 60.0  # seconds of a run that did not ask for a log
_DIRECTORY = "runs"  # where none is asked for
_SECONDS_BETWEEN = 1.0
_SHARE = 0.02  # of the time at most, where a write takes long


class CsvLog:
    """Writes a run's history; an error of the disk is reported once and never ends training.

    Parameters
    ----------
    config : TrainingConfig
        Its ``logger`` and ``output_dir``.
    began : float
        When ``train`` was called, by ``time.perf_counter``.
    progress : Progress
        Shows where the log is and that the disk refused it.

    Attributes
    ----------
    path : str or None
        The file, absolute; None before there is one and after the disk refused it.
    """

    def __init__(self, config: TrainingConfig, began: float, progress: Progress) -> None:
        self.path: str | None = None
        self._progress = progress
        self._shown = _DIRECTORY if config.output_dir is None else config.output_dir
        self._directory = os.path.abspath(self._shown)
        self._began = began
        self._is_wanted = config.logger is not None
        self._is_asked = config.logger == "csv" or config.output_dir is not None
        self._due = time.perf_counter() + _SECONDS_BETWEEN if self._is_asked else began
        if self._is_wanted and self._is_asked:
            self.path = self._open()

    def describe(self) -> str:
        """Where the log is or will be, for the header; "" where there is none."""
        if not self._is_wanted:
            return ""
        return self._shown if self._is_asked else f"in {self._shown} after a minute"

    def write(self, history: History, *, last: bool = False) -> None:
        """Writes the whole history where a write is due or training ends."""
        now = time.perf_counter()
        if not (self._is_wanted and history and (last or now >= self._due)):
            return
        if not self._is_asked and now < self._began + UNASKED_AFTER:
            return
        if self.path is None:
            self.path = self._open()
            if self.path is None:
                return
            if not self._progress.is_quiet:
                self._progress.show(f"hotloop: log {self._shown}")
        self._write(self.path, history)

    def _open(self) -> str | None:
        """The file under the next free number, in a folder that is made."""
        try:
            os.makedirs(self._directory, exist_ok=True)
            taken = [int(name) for name in os.listdir(self._directory) if name.isdecimal()]
            number = max(taken, default=0) + 1
            while True:
                try:
                    os.mkdir(os.path.join(self._directory, str(number)))
                    break
                except FileExistsError:  # another process took it
                    number += 1
        except OSError as error:
            self._refuse(f"no CSV log, {self._shown!r} cannot be used: {error}")
            return None
        self._shown = os.path.join(self._shown, str(number), "metrics.csv")
        return os.path.join(self._directory, str(number), "metrics.csv")

    def _write(self, path: str, history: History) -> None:
        began = time.perf_counter()
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(history)
        for row in history.rows():
            writer.writerow(["" if row[name] != row[name] else repr(row[name]) for name in history])
        try:
            _core.write_file(path, [text.getvalue().encode()])
        except CheckpointError as error:
            self._refuse(f"the CSV log stops here: {error}")
        now = time.perf_counter()
        self._due = now + max(_SECONDS_BETWEEN, (now - began) / _SHARE)

    def _refuse(self, text: str) -> None:
        self._progress.show(f"hotloop: warning: {text}")
        self.path, self._is_wanted = None, False
