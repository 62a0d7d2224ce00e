"""Ctrl-C and SIGTERM while training.

Handlers are installed on the main thread only, for the time of ``train`` alone, and the user's own
are put back; what the process ignores, as a shell's job in the background does Ctrl-C, stays
ignored. Before the first step Ctrl-C ends what prepares it. Then the first one ends the step and
training; the second abandons the step; apply itself is never cut, because the run returns between
regions only.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

from hotloop.base.messages import show
from hotloop.errors import TrainingInterrupted

__all__ = ["Interrupts", "end_as_interrupted", "is_interactive"]


class Interrupts:
    """Counts Ctrl-C and records SIGTERM, as a context manager.

    Attributes
    ----------
    count : int
        How often Ctrl-C was pressed.
    terminated : bool
        Whether SIGTERM came.
    preparing : str
        What is done before the first step, which Ctrl-C stops; "" from that step on.
    """

    def __init__(self) -> None:
        self.count = 0
        self.terminated = False
        self.preparing = ""
        self._old: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether training is to end after this step."""
        return self.count > 0 or self.terminated

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number, handler in ((signal.SIGINT, self._on_int), (signal.SIGTERM, self._on_term)):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._old[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._old.clear()
        if self.terminated:
            os.kill(os.getpid(), signal.SIGTERM)  # so that the process ends as it would have

    def _on_int(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1:
            what = "; finishing this step (Ctrl-C again abandons it)"
            if self.preparing:
                what = f" during {self.preparing}; nothing is trained"
            show(f"\nhotloop: interrupted{what}")
        old = self._old.get(signal.SIGINT)
        if callable(old) and old is not signal.default_int_handler:
            old(number, frame)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self.terminated = True


def is_interactive() -> bool:
    """Whether someone types at this process: a REPL or a notebook."""
    return hasattr(sys, "ps1") or "IPython" in sys.modules or bool(sys.flags.interactive)


def end_as_interrupted() -> None:
    """From now on a TrainingInterrupted that nobody catches ends the process as Ctrl-C would have.

    By SIGINT: a shell then ends a loop or a script around it. Python does that for
    KeyboardInterrupt itself, and ends with status 1 for a class that derives from it.
    """
    if sys.excepthook is not _end:
        _hooks.append(sys.excepthook)
        sys.excepthook = _end


_hooks: list[Any] = []  # that stood before _end


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _hooks[-1](kind, error, trace)
    if not isinstance(error, TrainingInterrupted) or is_interactive():
        return
    # What the interpreter does at its end, since this process has none of its own.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
