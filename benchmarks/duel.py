"""Sides that take turns: processes, rounds, ratios."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Ratio", "Side", "Slice", "clean_environment", "compete", "compete_in", "ratio_of"]

ROOT = Path(__file__).resolve().parents[1]

# They choose OpenBLAS's kernels, OpenMP's waiting or the number of threads behind a side's back.
_UNSET = (
    "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
    "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "HOTLOOP_CPU",
    "HOTLOOP_NUM_THREADS", "LD_PRELOAD", "ONEDNN_MAX_CPU_ISA",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Side:
    """One contestant: a worker's command line and what its environment adds."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Slice:
    """What a side did in one slice: samples per second, and the cores it kept busy for that."""

    rate: float
    cores: float


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How many times as fast the first side is.

    Attributes
    ----------
    median, lowest : float
        Over the rounds, slice by neighbouring slice.
    best : float
        Of the best slices of both sides: what is left when other programs disturb the rest.
    """

    median: float
    lowest: float
    best: float


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without what would bend a measurement."""
    kept = {name: value for name, value in os.environ.items() if name not in _UNSET}
    return {**kept, "PYTHONHASHSEED": "0", **more}


class _Worker:
    """A side's process between slices."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._process = subprocess.Popen(
            [sys.executable, "-m", *side.command],
            cwd=ROOT,
            env=clean_environment(**side.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def await_ready(self) -> None:
        """Until it has warmed up; RuntimeError where it ends before."""
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"{self.side.name}: ended with status {self._process.wait()}")

    def run(self, seconds: float, case: str) -> Slice:
        """One slice."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds} {case}\n")
        self._process.stdin.flush()
        answer = self._read()
        length = answer["seconds"]
        return Slice(answer["samples"] / length, answer["processor"] / length)

    def close(self) -> None:
        """Ends the process; it stops after what it is doing."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=60)


@contextlib.contextmanager
def _workers(sides: Sequence[Side]) -> Iterator[tuple[list[_Worker], dict[str, str]]]:
    """The sides that start, and why the others did not; without the first there is no race."""
    made: list[_Worker] = []
    absent: dict[str, str] = {}
    try:
        # The first by itself, since it may measure what is fastest; the others together.
        for together in (sides[:1], sides[1:]):
            started = [_Worker(side) for side in together]
            made += started
            for worker in started:
                try:
                    worker.await_ready()
                except RuntimeError as error:
                    if worker.side is sides[0]:
                        raise
                    absent[worker.side.name] = str(error)
        yield [worker for worker in made if worker.side.name not in absent], absent
    finally:
        for worker in made:
            worker.close()


def compete(
    sides: Sequence[Side], rounds: int, seconds: float
) -> tuple[dict[str, list[Slice]], dict[str, str]]:
    """Runs all sides in turn.

    Parameters
    ----------
    sides : sequence of Side
        One slice each per round, in turn, every second round backwards; a slice before the first
        round is thrown away.
    rounds : int
    seconds : float
        Of a slice.

    Returns
    -------
    slices : dict of str to list of Slice
        Of every side that started, one per round.
    absent : dict of str to str
        Why the others did not start.

    Raises
    ------
    RuntimeError
        When the first side does not start, or any ends within the race.
    """
    with _workers(sides) as (workers, absent):
        return _race(workers, "", rounds, seconds), absent


def compete_in(
    cases: Iterable[str], sides: Sequence[Side], rounds: int, seconds: float
) -> Iterator[tuple[str, dict[str, list[Slice]]]]:
    """The same for many short cases, which each side knows by name (worker.serve_cases).

    Yields
    ------
    case : str
    slices : dict of str to list of Slice
        Of every side that started, one per round.
    """
    with _workers(sides) as (workers, _):
        for case in cases:
            yield case, _race(workers, case, rounds, seconds)


def _race(
    workers: Sequence[_Worker], case: str, rounds: int, seconds: float
) -> dict[str, list[Slice]]:
    slices: dict[str, list[Slice]] = {worker.side.name: [] for worker in workers}
    for worker in workers:
        worker.run(min(seconds, 0.5), case)
    for number in range(rounds):
        for worker in workers if number % 2 == 0 else reversed(workers):
            slices[worker.side.name].append(worker.run(seconds, case))
    return slices


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Ratio of rates."""
    each = [a / b for a, b in zip(ours, theirs, strict=True)]
    return Ratio(statistics.median(each), min(each), max(ours) / max(theirs))
