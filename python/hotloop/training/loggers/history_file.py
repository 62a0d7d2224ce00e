"""The history of a run as ``metrics.csv`` of its folder: a row per epoch or validation.

The atomic writer replaces the file, so that a reader never sees half a row and a new column gets
its header; once a second at most, and at the end, for a durable write takes longer than many an
epoch.
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
    from hotloop.training.checkpoints.folder import RunFolder
    from hotloop.training.result.history import History

__all__ = ["HistoryFile"]

_SECONDS_BETWEEN = 1.0
_SHARE = 0.02  # of the time at most, where a write takes long


class HistoryFile:
    """Writes a run's history; an error of the disk is reported once and never ends training.

    Parameters
    ----------
    folder : RunFolder
    is_wanted : bool
        Whether the configuration names it.

    Attributes
    ----------
    path : str or None
        The file, absolute; None before there is one and after the disk refused it.
    """

    def __init__(self, folder: RunFolder, *, is_wanted: bool) -> None:
        self.path: str | None = None
        self._folder = folder
        self._is_wanted = is_wanted
        self._due = time.perf_counter() + (_SECONDS_BETWEEN if folder.is_asked else 0.0)

    def write(self, history: History, *, last: bool = False) -> None:
        """Writes the whole history where a write is due or training ends."""
        now = time.perf_counter()
        if not (self._is_wanted and history and (last or now >= self._due)):
            return
        if (folder := self._folder.open()) is None:
            return
        self.path = os.path.join(folder, "metrics.csv")
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(history)
        for row in history.rows():
            writer.writerow(["" if row[name] != row[name] else repr(row[name]) for name in history])
        try:
            _core.write_file(self.path, [text.getvalue().encode()])
        except CheckpointError as error:
            self._folder.say(f"hotloop: warning: metrics.csv stops here: {error}")
            self.path, self._is_wanted = None, False
        done = time.perf_counter()
        self._due = done + max(_SECONDS_BETWEEN, (done - now) / _SHARE)
