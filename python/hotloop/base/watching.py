"""Who watches long work: told how far it is, and asked between its parts whether to go on.

What looks through data and what plans lie far below the run that shows progress and knows of
Ctrl-C, and also work without one (``predict``): so they report to whoever watches, if anybody.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol

__all__ = ["Watcher", "pause", "report", "watched"]


class Watcher(Protocol):
    """Both may raise, to end what is being done."""

    def look(self, what: str, done: int, total: int) -> None:
        """Of ``what`` ("checking X"), ``done`` of ``total`` bytes were looked at."""

    def pause(self) -> None:
        """A part of what has no bytes to count, as planning, is over."""


_watcher: ContextVar[Watcher | None] = ContextVar("hotloop_watcher", default=None)


@contextlib.contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """While the block runs, ``watcher`` is told what is done in it."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def report(what: str, done: int, total: int) -> None:
    """Tells how far a look through data is.

    Parameters
    ----------
    what : str
        "checking X".
    done, total : int
        Bytes.
    """
    watcher = _watcher.get()
    if watcher is not None:
        watcher.look(what, done, total)


def pause() -> None:
    """Asks whether to go on."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher.pause()
