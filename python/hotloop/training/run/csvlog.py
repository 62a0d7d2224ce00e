"""The "csv" logger: one row per epoch in ``<output_dir>/<number>/metrics.csv``.

Each run takes the next free number. The atomic writer replaces the file, so that a
reader never sees half a row and a new column gets its header; once a second at most, and at the
end, for a durable write takes longer than many an epoch.
"""

from __future__ import annotations

import csv
import io
import os
import time
from typing import TYPE_CHECKING

from hotloop import _core
from hotloop.base.messages import show
from hotloop.errors import CheckpointError

if TYPE_CHECKING:
    from hotloop.training.result.history import History

__all__ = ["CsvLog"]

_SECONDS_BETWEEN = 1.0
_SHARE = 0.02  # of the time at most, where a write takes long


class CsvLog:
    """Writes a run's history; an error of the disk is reported once and never ends training.

    Parameters
    ----------
    output_dir : str
        Where runs go.

    Attributes
    ----------
    path : str or None
        The file; None after the disk refused it.
    """

    def __init__(self, output_dir: str) -> None:
        self.path: str | None = None
        self._due = time.perf_counter() + _SECONDS_BETWEEN
        try:
            os.makedirs(output_dir, exist_ok=True)
            taken = [int(name) for name in os.listdir(output_dir) if name.isdecimal()]
            number = max(taken, default=0) + 1
            while True:
                try:
                    os.mkdir(os.path.join(output_dir, str(number)))
                    break
                except FileExistsError:  # another process took it
                    number += 1
            self.path = os.path.join(output_dir, str(number), "metrics.csv")
        except OSError as error:
            show(f"hotloop: warning: no CSV log, {output_dir!r} cannot be used: {error}")

    def write(self, history: History, *, last: bool = False) -> None:
        """Writes the whole history where a write is due or training ends."""
        began = time.perf_counter()
        if self.path is None or not history or not (last or began >= self._due):
            return
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(history)
        for row in history.rows():
            writer.writerow(["" if row[name] != row[name] else repr(row[name]) for name in history])
        try:
            _core.write_file(self.path, [text.getvalue().encode()])
        except CheckpointError as error:
            show(f"hotloop: warning: the CSV log stops here: {error}")
            self.path = None
        now = time.perf_counter()
        self._due = now + max(_SECONDS_BETWEEN, (now - began) / _SHARE)
