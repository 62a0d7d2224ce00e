"""Progress and Ctrl-C before the first step: while the data is looked through and plans are made.

What looks through large arrays reports each block, and planning asks between its parts
(:mod:`hotloop.base.watching`). Both end there, by an exception, when Ctrl-C was pressed.
"""

from __future__ import annotations

import time

from hotloop.base.messages import format_bytes, show
from hotloop.training.run.signals import Interrupts

__all__ = ["Stopped", "Watch"]

SILENT = 1.0  # seconds of a look that nothing is said of
BETWEEN = 5.0  # seconds from one line to the next


class Stopped(Exception):
    """Ctrl-C came before the first step."""


class Watch:
    """What training does before its first step.

    Parameters
    ----------
    interrupts : Interrupts, optional
        Without it nothing ends it.
    is_quiet : bool
        Whether nothing is to be shown.
    """

    def __init__(self, interrupts: Interrupts | None = None, *, is_quiet: bool = True) -> None:
        self._interrupts = interrupts
        self._is_quiet = is_quiet
        self._due = time.perf_counter() + SILENT

    @property
    def is_over(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._interrupts is not None and self._interrupts.asked

    def begin(self, what: str) -> None:
        """Something else begins, of which Ctrl-C says that it stops it.

        Raises
        ------
        Stopped
            If Ctrl-C was pressed before.
        """
        self.pause()
        if self._interrupts is not None:
            self._interrupts.preparing = what

    def pause(self) -> None:
        """What was begun is not over yet.

        Raises
        ------
        Stopped
            If Ctrl-C was pressed.
        """
        if self.is_over:
            raise Stopped

    def look(self, what: str, done: int, total: int) -> None:
        """A part of the data's bytes was looked at.

        Raises
        ------
        Stopped
            If Ctrl-C was pressed.
        """
        self.begin(what)
        now = time.perf_counter()
        if self._is_quiet or now < self._due:
            return
        self._due = now + BETWEEN
        show(f"hotloop: {what}: {format_bytes(done)} of {format_bytes(total)}")
        self.begin(what)
