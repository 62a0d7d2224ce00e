"""Sentences for the user, and numbers as they stand in them.

Text goes to stderr, so that a script's output stays its own; in a notebook, which paints stderr as
errors, to stdout.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TextIO

from hotloop import _core
from hotloop.errors import HotloopWarning

__all__ = [
    "counted",
    "format_bytes",
    "format_count",
    "format_seconds",
    "is_notebook",
    "named",
    "once",
    "show",
    "show_warnings",
    "stream",
    "warn",
]

_told: ContextVar[set[str] | None] = ContextVar("told", default=None)
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def show(text: str) -> None:
    """Shows a sentence to the user, also from a signal handler.

    A stream whose reader is gone or whose disk is full loses the sentence: that is no reason to
    end a run.
    """
    to = stream()
    try:
        print(text, file=to, flush=True)
    except RuntimeError:
        # Python's streams refuse a handler that comes in the middle of a write to the same one.
        with contextlib.suppress(OSError, ValueError):
            os.write(to.fileno(), f"{text}\n".encode(errors="backslashreplace"))
    except (OSError, ValueError):
        pass


@contextlib.contextmanager
def once(told: set[str]) -> Iterator[None]:
    """In the block no warning is given whose text is in ``told``, which takes them up."""
    before = _told.set(told)
    try:
        yield
    finally:
        _told.reset(before)


def warn(text: str, category: type[HotloopWarning] | type[FutureWarning]) -> None:
    """Warns at the line of the user's program that called hotloop.

    Parameters
    ----------
    text : str
    category : type
        By which the user can filter it; FutureWarning is torch's of what it deprecates.
    """
    told = _told.get()
    if told is not None:
        if text in told:
            return
        told.add(text)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def show_warnings() -> None:
    """Shows the core's warnings since the last time."""
    while (line := _core.log_take()) is not None:
        level, text = line
        if level == "warning":
            show(f"hotloop: warning: {text}")


def format_count(n: float) -> str:
    """``12345678`` as ``12.3 M``."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if n >= limit:
            return f"{n / limit:.3g}{unit}"
    return f"{n:.3g}" if isinstance(n, float) else str(n)


def counted(n: int, what: str, several: str = "") -> str:
    """A number with its noun: ``1 epoch``, ``1,000 epochs``."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {several or what + 's'}"


def named(names: Sequence[str], most: int = 3) -> str:
    """The first names of a list, and how many more there are: ``a, b and 4 more``."""
    if len(names) <= most + 1:
        return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def format_bytes(n: int) -> str:
    """Bytes as ``1.5 MB`` (powers of 1000)."""
    for limit, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if n >= limit:
            return f"{n / limit:.3g} {unit}"
    return f"{n} bytes"


def format_seconds(seconds: float) -> str:
    """``0.0123`` as ``12 ms``, ``75.2`` as ``1 min 15 s``."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.2g} ms" if seconds < 0.00995 else f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def stream() -> TextIO:
    """Where sentences go."""
    return sys.stdout if is_notebook() else sys.stderr


def is_notebook() -> bool:
    """Whether the code runs in a notebook."""
    shell = sys.modules.get("IPython")
    if shell is None:
        return False
    running = shell.get_ipython()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(running).__mro__)
