"""Writes files beside the training, on one thread.

A job waits in the slot of its kind ("last", "best") until the one before it is on disk; a later job
of the kind takes its place there, so that saves never queue up behind a slow disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from hotloop.errors import HotloopError

__all__ = ["Done", "Writer"]


class Done(NamedTuple):
    """How a job ended.

    Attributes
    ----------
    kind : str
    path : str or None
        The file; None where it could not be written.
    error : str
        Why not, or "".
    """

    kind: str
    path: str | None
    error: str


class Writer:
    """Runs jobs, each of which writes a file and returns its path."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, Callable[[], str | None]] = {}
        self._running = False
        self._is_closed = False
        self._done: list[Done] = []
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a job runs or waits."""
        return self._running or bool(self._waiting)

    def submit(self, kind: str, job: Callable[[], str | None]) -> None:
        """Hands over a job, in the place of one of this kind that has not begun."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="hotloop-checkpoints", daemon=True
                )
                self._thread.start()
            self._waiting[kind] = job
            self._changed.notify_all()

    def take_done(self) -> list[Done]:
        """The jobs that ended since the last time."""
        with self._changed:
            done, self._done = self._done, []
        return done

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until nothing runs or waits; whether that came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.is_busy, seconds)

    def close(self) -> None:
        """Ends the thread after what it has to do."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._running = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                kind = next(iter(self._waiting))
                job = self._waiting.pop(kind)
                self._running = True
            try:
                done = Done(kind, job(), "")
            except (HotloopError, OSError, MemoryError) as error:
                done = Done(kind, None, str(error) or type(error).__name__)
            except Exception as error:  # of a defect: said, as the thread has nobody to raise to
                done = Done(kind, None, f"{type(error).__name__}: {error}")
            del job  # its arrays
            with self._changed:
                self._done.append(done)
