"""The logger "tensorboard": an event file in the run's folder, ``tensorboard --logdir runs``.

Messages and records are TensorBoard's own. Its EventFileWriter is not used: it imports TensorFlow
where that is installed, which takes seconds, and writes by a thread that a kill cuts within a
record. torch.utils.tensorboard needs PyTorch, tensorboardX is a second package for the same bytes.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from hotloop.training.loggers.files import append_whole
from hotloop.training.loggers.record import Logger, Record, Start

__all__ = ["EventFile"]


class _Whole:
    """A file whose every write is whole or none."""

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644)

    def write(self, data: bytes) -> None:
        """Adds a record."""
        append_whole(self._file, data)

    def close(self) -> None:
        """Nothing is written afterwards."""
        os.close(self._file)


class EventFile(Logger):
    """Scalars for TensorBoard."""

    name = "tensorboard"

    def __init__(self) -> None:
        super().__init__()
        self._writer: Any = None

    def begin(self, start: Start) -> None:
        """Makes the file; of a run that goes on it says from which step on others are void."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        if (folder := start.folder.open()) is None:
            return
        host, n = socket.gethostname(), 0
        while True:
            name = f"events.out.tfevents.{int(time.time()):010d}.{host}.{os.getpid()}.{n}"
            self.path = os.path.join(folder, name)
            try:
                self._writer = RecordWriter(_Whole(self.path))
            except FileExistsError:  # of the same second
                n += 1
            else:
                break
        self._write(file_version="brain.Event:2")
        if start.step:
            restart = SessionLog(status=SessionLog.START)
            self._write(step=start.step + 1, session_log=restart)

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time.time(), **fields).SerializeToString())

    def log(self, record: Record) -> None:
        """Adds an event of all values."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._writer is None:  # the folder was refused, which was said
            return
        values = [Summary.Value(tag=k, simple_value=v) for k, v in record.values.items()]
        self._write(step=record.step, summary=Summary(value=values))

    def end(self, *, failed: bool) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
