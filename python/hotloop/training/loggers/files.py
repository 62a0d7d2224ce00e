"""Loggers that write files of a run's folder: whole lines, at the end of the file.

A line is written by one call of the system. Where a disk refuses one in its middle, what it took of
it is taken back. A process that is killed may leave a part of its last line, if that goes from one
page of the file to the next; the run that goes on cuts it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable

from hotloop import _core
from hotloop.training.checkpoints.folder import RunFolder
from hotloop.training.loggers.record import Logger, Record, Start

__all__ = ["JsonLines", "StepsFile", "append_whole"]


def append_whole(file: int, data: bytes) -> None:
    """Writes all of the data to the end of a file, or none.

    Parameters
    ----------
    file : int
        Opened to append.
    data : bytes

    Raises
    ------
    OSError
        If the disk refuses it.
    """
    before = os.fstat(file).st_size
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file, before)
        raise


class _Lines(Logger):
    """A file of lines, each of one step.

    Parameters
    ----------
    file_name : str
    step_of : callable
        The step of a line, from its bytes; ValueError: it is not whole, or is the header.
    header : str
        The first line.
    """

    def __init__(self, file_name: str, step_of: Callable[[bytes], int], header: str = "") -> None:
        super().__init__()
        self._name, self._step_of, self._header = file_name, step_of, header
        self._folder: RunFolder | None = None
        self._file: int | None = None
        self._waiting: list[str] = []  # until there is a folder
        self._step = 0

    def begin(self, start: Start) -> None:
        """Takes away what a run that goes on had written behind its step."""
        self._folder, self._step = start.folder, start.step
        folder = start.folder.open() if start.step else None
        if folder is not None and os.path.exists(os.path.join(folder, self._name)):
            self._open(folder)

    def _open(self, folder: str) -> int:
        path = os.path.join(folder, self._name)
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as written:
            before = written.read()
            kept = b"".join(line for line in before.splitlines(True) if self._is_kept(line))
            if kept != before:
                _core.write_file(path, [kept])
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644)
        self.path = path
        if self._header and not os.fstat(self._file).st_size:
            append_whole(self._file, self._header.encode())
        return self._file

    def _is_kept(self, line: bytes) -> bool:
        if not line.endswith(b"\n"):
            return False
        try:
            return self._step_of(line) <= self._step
        except ValueError:
            return line == self._header.encode()

    def _append(self, line: str) -> None:
        self._waiting.append(line)
        self._write_waiting()

    def _write_waiting(self) -> None:
        assert self._folder is not None  # since begin
        if (folder := self._folder.open()) is None:
            if self._folder.is_refused:
                self._waiting.clear()
            return
        file = self._open(folder) if self._file is None else self._file
        for each in self._waiting:
            append_whole(file, each.encode())
        self._waiting.clear()

    def end(self, *, failed: bool) -> None:
        """Closes the file; ``path`` stays."""
        if self._waiting:  # the run's minute may be over since
            self._write_waiting()
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _step_of_row(line: bytes) -> int:
    return int(line.split(b",", 1)[0])


class StepsFile(_Lines):
    """``steps.csv``, of the logger "csv" beside the history: a row for each step that is logged."""

    name = "csv"
    _COLUMNS = ("train/loss_step", "train/grad_norm", "learning_rate")

    def __init__(self) -> None:
        super().__init__("steps.csv", _step_of_row, "step,epoch,loss,grad_norm,lr\n")

    def log(self, record: Record) -> None:
        """Adds the row of a step; those of the history are in ``metrics.csv``."""
        if record.is_row:
            return
        values = (record.values[name] for name in self._COLUMNS)
        shown = ("" if math.isnan(value) else repr(value) for value in values)
        self._append(",".join([str(record.step), str(record.epoch), *shown]) + "\n")


def _step_of_json(line: bytes) -> int:
    found = json.loads(line)
    if not isinstance(found, dict) or type(found.get("step")) is not int:
        raise ValueError("no step")
    step: int = found["step"]
    return step


class JsonLines(_Lines):
    """The logger "jsonl": ``metrics.jsonl``, an object of JSON a line. What is not finite is null,
    as JSON has no other numbers.
    """

    name = "jsonl"

    def __init__(self) -> None:
        super().__init__("metrics.jsonl", _step_of_json)

    def log(self, record: Record) -> None:
        """Adds a line."""
        values = {k: v if math.isfinite(v) else None for k, v in record.values.items()}
        line = {"step": record.step, "time": round(time.time(), 3), **values}
        self._append(json.dumps(line, allow_nan=False) + "\n")
