"""Writes files beside the training, on one thread, one at a time."""

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
    """Runs jobs, each of which writes a file and returns its path.

    There is no queue: whoever has something to write looks whether the thread is free, and else
    comes again with what is the latest then. So a slow disk holds up nothing, and there is one copy
    of a run's values at most.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._job: tuple[str, Callable[[], str]] | None = None
        self._is_closed = False
        self._done: list[Done] = []
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a job runs."""
        return self._job is not None

    def submit(self, kind: str, job: Callable[[], str]) -> None:
        """Hands over a job, once the one before has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._job is None)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="hotloop-checkpoints", daemon=True
                )
                self._thread.start()
            self._job = kind, job
            self._changed.notify_all()

    def take_done(self) -> list[Done]:
        """The jobs that ended since the last time."""
        with self._changed:
            done, self._done = self._done, []
        return done

    def wait(self) -> None:
        """Waits until no job runs."""
        with self._changed:
            self._changed.wait_for(lambda: self._job is None)

    def close(self) -> None:
        """Ends the thread after the job that runs."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job is not None or self._is_closed)
                if self._job is None:
                    return
                kind, job = self._job
            try:
                done = Done(kind, job(), "")
            except (HotloopError, OSError, MemoryError) as error:
                done = Done(kind, None, str(error) or type(error).__name__)
            except Exception as error:  # of a defect: said, as the thread has nobody to raise to
                done = Done(kind, None, f"{type(error).__name__}: {error}")
            del job  # with the values that it wrote
            with self._changed:
                self._job = None
                self._done.append(done)
                self._changed.notify_all()
