"""Processes that make samples, for datasets whose Python holds the GIL.

Threads are the default. A process is started afresh ("spawn"), so that no lock and no thread of
this one is in it; it gets the dataset once, pickled, and answers over a pipe. It ends when its pipe
or its parent does. Nothing is shared: no memory under /dev/shm, no file descriptors.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import weakref
from collections.abc import Sequence
from multiprocessing import connection
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hotloop.errors import ConfigError, DataError

__all__ = ["Processes"]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]

_END_SECONDS = 2.0  # for a process to end by itself


class Reader(Protocol):
    """What makes batches of samples, and can be pickled."""

    def read(
        self, rows: Rows, epoch: int, is_training: bool, peers: Rows | None = None
    ) -> list[Array]:
        """The fields of some samples of a split, whose samples are peers; None: all."""

    def note(self) -> Any:
        """What it learned while reading, to be told to the one in the first process."""

    def take(self, note: Any) -> None:
        """Takes what another has learned."""


class _Worker:
    """A process, and the end of its pipe that is here."""

    def __init__(self, blob: bytes) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, blob), daemon=True)
        self.process.start()
        other.close()
        self._peers: Rows | None = None  # that the process knows

    def ask(self, rows: Rows, epoch: int, is_training: bool, peers: Rows | None) -> Any:
        """What the process answers. It is told the samples of a split once, when they change: they
        are all of a dataset's, and the same array for each batch.

        Raises
        ------
        EOFError, OSError
            If it is gone.
        """
        told = () if peers is self._peers else (peers,)
        self.pipe.send(((rows, epoch, is_training), told))
        self._peers = peers
        return self.pipe.recv()

    def close(self) -> None:
        """Ends the process."""
        self.pipe.close()
        self.process.join(_END_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(_END_SECONDS)


class Processes:
    """As many processes as are asked at once, each with a copy of a reader.

    Parameters
    ----------
    reader : Reader
    label : str
        For messages.

    Raises
    ------
    ConfigError
        If the reader cannot be pickled.
    """

    def __init__(self, reader: Reader, label: str) -> None:
        self._reader, self._label = reader, label
        try:
            self._blob = pickle.dumps(reader, protocol=5)
        except Exception as error:
            raise ConfigError(
                f"worker_type: {label} must be picklable to go to other processes, got "
                f"{type(error).__name__}: {error}; define its class in a module, or leave "
                "worker_type='thread'"
            ) from error
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._all: list[_Worker] = []
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _close_all, self._all, self._owner)

    def read(
        self, rows: Rows, epoch: int, is_training: bool, peers: Rows | None = None
    ) -> Sequence[Array]:
        """The fields of these samples, made by a process that has nothing else to do.

        Raises
        ------
        DataError
            As the reader; or if the process died.
        """
        worker = self._take()
        try:
            good, value, note = worker.ask(rows, epoch, is_training, peers)
        except (EOFError, OSError) as error:
            self._drop(worker)
            raise DataError(
                f"{self._label}: a worker process {_how_it_ended(worker.process)} while it made "
                f"the samples {rows[:3].tolist()}{' ...' if len(rows) > 3 else ''}"
            ) from error
        self._idle.put(worker)
        self._reader.take(note)
        if not good:
            raise value
        return value  # type: ignore[no-any-return]

    def _take(self) -> _Worker:
        if self._owner != os.getpid():  # a fork has none of them
            self._idle, self._owner = queue.SimpleQueue(), os.getpid()
            self._all.clear()
        with contextlib.suppress(queue.Empty):
            return self._idle.get_nowait()
        with self._lock:
            worker = _Worker(self._blob)
            self._all.append(worker)
        return worker

    def _drop(self, worker: _Worker) -> None:
        with self._lock:
            self._all.remove(worker)
        worker.close()


def _close_all(workers: list[_Worker], owner: int) -> None:
    if owner == os.getpid():
        for worker in workers:
            worker.close()


def _how_it_ended(process: Any) -> str:
    process.join(_END_SECONDS)
    code = process.exitcode
    if code is None:
        return "closed its pipe"
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"
    return f"ended with status {code}"


# ---- in the process


def _serve(pipe: connection.Connection, blob: bytes) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to see
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        reader: Reader = pickle.loads(blob)
    except Exception as error:
        reader = _Unreadable(
            f"worker_type: the dataset must be importable in a new process, got "
            f"{type(error).__name__}: {error}; define its class in a module, or leave "
            "worker_type='thread'"
        )
    peers: Rows | None = None
    while True:
        try:
            (rows, epoch, is_training), told = pipe.recv()
        except EOFError:
            return
        peers = told[0] if told else peers
        answer: tuple[bool, Any, Any]
        try:
            answer = True, list(reader.read(rows, epoch, is_training, peers)), reader.note()
        except Exception as error:
            answer = False, _portable(error), reader.note()
        pipe.send(answer)


class _Unreadable:
    """Stands for a reader that did not arrive."""

    def __init__(self, why: str) -> None:
        self._why = why

    def read(
        self, rows: Rows, epoch: int, is_training: bool, peers: Rows | None = None
    ) -> list[Array]:
        raise DataError(self._why)

    def note(self) -> Any:
        return None

    def take(self, note: Any) -> None: ...


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _portable(error: Exception) -> Exception:
    """The error as one that can be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return DataError(f"{type(error).__name__}: {error}")
    return error
