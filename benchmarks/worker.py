"""A worker's side of the conversation: one line of JSON when ready, then one per slice.

The parent writes the seconds of a slice; the worker works about that long and answers with samples
and seconds; the end of its input ends the worker.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Slices", "serve"]


class Slices:
    """Counts samples within slices; blocks between them."""

    def __init__(self, **facts: Any) -> None:
        self._facts: dict[str, Any] | None = facts
        self._samples = 0
        self._began = self._end = 0.0

    def done(self, samples: int) -> bool:
        """Notes finished samples. At a slice's end answers, and waits for the next one.

        Returns
        -------
        bool
            False when no further slice is wanted. The first call ends the warm-up.
        """
        now = time.perf_counter()
        self._samples += samples
        if self._facts is None and now < self._end:
            return True
        answer = self._facts or {"samples": self._samples, "seconds": now - self._began}
        self._facts = None
        print(json.dumps(answer), flush=True)
        line = sys.stdin.readline()
        if not line:
            return False
        self._samples = 0
        self._began = time.perf_counter()
        self._end = self._began + float(line)
        return True


def serve(step: Callable[[], int], **facts: Any) -> None:
    """Runs ``step``, which returns its samples, slice after slice."""
    slices = Slices(**facts)
    while slices.done(step()):
        pass
