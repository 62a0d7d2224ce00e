"""A worker's side of the conversation: one line of JSON when ready, then one per slice.

The parent writes the seconds of a slice, and which of its cases it is about where a worker has
several; the worker works about that long and answers with samples, seconds and the processor time
it took for them; the end of its input ends the worker.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.workloads import Workload, find

__all__ = ["Slices", "parser_of", "serve", "serve_cases", "workload_of"]

_SECONDS_BEHIND = 0.02


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """The command line that both sides share: which workload, and where."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("name")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", help="in place of the workload's")
    parser.add_argument("--smoke", action="store_true", help="the workload in miniature")
    return parser


def workload_of(options: argparse.Namespace) -> Workload:
    """The workload that a command line names."""
    workload = find(options.name)
    return workload.at(options.precision or workload.precision, smoke=options.smoke)


class Slices:
    """Counts samples within slices; blocks between them.

    Parameters
    ----------
    synchronize : callable, optional
        Waits until what was counted is done, where a device runs behind.
    **facts
        For the parent, in the first line.

    Attributes
    ----------
    case : str
        What the slice is about; "" where the worker has one case.
    """

    def __init__(self, synchronize: Callable[[], None] | None = None, **facts: Any) -> None:
        self._synchronize = synchronize
        self._facts: dict[str, Any] | None = facts
        self._samples = 0
        self._began = self._end = self._processor = 0.0
        self.case = ""

    def done(self, samples: int) -> bool:
        """Notes finished samples. At a slice's end answers, and waits for the next one.

        Returns
        -------
        bool
            False when no further slice is wanted. The first call ends the warm-up.
        """
        self._samples += samples
        if self._facts is None and time.perf_counter() < self._end:
            return True
        if self._synchronize is not None:
            self._synchronize()
        answer = self._facts or {
            "samples": self._samples,
            "seconds": time.perf_counter() - self._began,
            "processor": time.process_time() - self._processor,
        }
        self._facts = None
        print(json.dumps(answer), flush=True)
        line = sys.stdin.readline()
        if not line:
            return False
        seconds, _, self.case = line.strip().partition(" ")
        self._samples = 0
        self._processor = time.process_time()
        self._began = time.perf_counter()
        self._end = self._began + float(seconds)
        return True


def serve(
    step: Callable[[], int], synchronize: Callable[[], None] | None = None, **facts: Any
) -> None:
    """Runs ``step``, which returns its samples, slice after slice.

    A device may run far behind: thousands of launches are waiting when a slice's time is over. So
    steps are waited for, every 20 milliseconds or so of them.
    """
    n_steps = 1
    if synchronize is not None:
        synchronize()
        began = time.perf_counter()
        step()
        synchronize()
        n_steps = max(1, int(_SECONDS_BEHIND / (time.perf_counter() - began)))
    slices = Slices(synchronize, **facts)
    while slices.done(sum(step() for _ in range(n_steps))):
        if synchronize is not None:
            synchronize()


def serve_cases(make: Callable[[str], Callable[[], int]], **facts: Any) -> None:
    """Runs the step that ``make`` gives for a slice's case; it is made in the case's first slice,
    which is a warm-up.
    """
    steps: dict[str, Callable[[], int]] = {}
    slices = Slices(**facts)
    samples = 0
    while slices.done(samples):
        if slices.case not in steps:
            steps[slices.case] = make(slices.case)
        samples = steps[slices.case]()
