"""How fast batches of data are made, without a model, and how many threads should make them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from hotloop import _core
from hotloop.base.generators import random_states, restore_random_states
from hotloop.base.messages import format_count
from hotloop.base.watching import pause
from hotloop.data.auto_workers import AutoWorkers
from hotloop.data.batching import Group
from hotloop.data.module import DataModule
from hotloop.data.parallel import parallel_map
from hotloop.data.split import Split
from hotloop.errors import HotloopError
from hotloop.graph.trace import Trace
from hotloop.nn.module import Module
from hotloop.training.plans.runtime import MAX_LOADERS, Runtime, gather_batch

__all__ = ["BatchMaker", "LoadingRates", "choose_workers", "time_batches"]

_SLICE_SECONDS = 0.05
_NEAR = 0.95  # of the best rate: fewer workers that reach it are better
_EACH_SECONDS = 0.15  # for each number of threads that is tried
_COMPARED = 64  # samples that are read again, by several threads


class LoadingRates(dict[int, float]):
    """Samples a second by ``num_workers``.

    Attributes
    ----------
    best : int
        The fewest workers whose rate is within 5 % of the highest.
    """

    @property
    def best(self) -> int:
        """The fewest workers whose rate is within 5 % of the highest."""
        most = max(self.values())
        return min(n for n, rate in self.items() if rate >= _NEAR * most)

    def __str__(self) -> str:
        lines = [f"{'num_workers':>11}{'samples/s':>12}"]
        for n, rate in self.items():
            mark = "  best" if n == self.best else ""
            lines.append(f"{n:>11}{format_count(rate):>12}{mark}")
        return "\n".join(lines)


class BatchMaker:
    """Makes the batches of a split as training has them, for nobody.

    Parameters
    ----------
    data : DataModule
    name : {"train", "val", "test"}
        The split; of its groups of equal batches the first.
    workers : int
    rows : int, optional
        Samples in a batch, in the place of the DataModule's.
    first : int
        The batch of epoch 0 that is made first.

    Attributes
    ----------
    rows : int
        Samples in a batch.
    count : int
        Batches of an epoch.
    """

    def __init__(
        self, data: DataModule, name: str, workers: int, *, rows: int | None = None, first: int = 0
    ) -> None:
        training = name == "train"
        group = data.batches(name, training=training, merge_tail=False)[0]
        split = data.split(name)
        assert split is not None  # batches has checked
        if rows is not None:
            group = Group(rows, group.rows * group.batches // rows, group.part)
        self.rows, self.count, number_of = group
        part = split.parts[number_of]
        self._nothing = Module()  # which the runtime does not keep
        self._runtime = Runtime(self._nothing, _core.Device("cpu"))
        self._runtime.upload()
        ring = self._runtime.ring(workers, self.rows, **data.loading(name))
        self._feed = data.feeds(name, [group], training=training, **ring)[0]

        def build(trace: Trace) -> None:
            for field in gather_batch(trace, part, self.rows, data.transforms).values():
                trace.graph.output(field.id_in(trace))

        graph, _ = self._runtime.trace(build, training=False)
        self._plan = self._runtime.plan(graph, part, self._feed)
        self._epoch = 0
        self._feed.seek(0, first)

    def make(self, seconds: float, most: int | None = None) -> int:
        """Makes batches for about so long, to the end of an epoch at most; how many."""
        how, made = self._plan.run(max(1, self.count if most is None else most), seconds)
        if how == "feed_end":
            self._epoch += 1
            self._feed.seek(self._epoch)
        return made

    def close(self) -> None:
        """Gives back what it holds, after the samples that are being made."""
        self._feed.seek(0)
        self._runtime.close()


def time_batches(
    maker: BatchMaker, seconds: float, *, most: int | None = None, is_patient: bool = True
) -> tuple[int, float]:
    """How many batches are made in a time, and the seconds until the last of them was there.

    Parameters
    ----------
    maker : BatchMaker
    seconds : float
    most : int, optional
        Batches after which it ends.
    is_patient : bool
        Whether the first batch is waited for, however long it takes.
    """
    done, began = 0, time.perf_counter()
    last = now = began
    while True:
        left = began + seconds - now
        slice_seconds = min(_SLICE_SECONDS, left) if left > 0 else _SLICE_SECONDS
        made = maker.make(slice_seconds, None if most is None else most - done)
        now = time.perf_counter()
        if made:
            done, last = done + made, now
        is_late = now - began >= seconds and (done > 0 or not is_patient)
        if is_late or (most is not None and done >= most):
            return done, last - began


# ---- num_workers="auto"


def choose_workers(data: DataModule) -> None:
    """Measures how many threads are to make the samples of training, where that is to be measured
    and was not yet.

    Single samples are made, as training's first epoch has them, by 1, 2, 4, ... threads; the fewest
    that reach 95 % of the best rate are chosen. What fails ends it: the run meets the same failure
    and says what it is. Numbers that samples draw from the generators which all code shares leave
    no trace there, and are a reason for one thread, since several draw them in another order each
    time; so are samples that differ when several threads read them again.

    Parameters
    ----------
    data : DataModule
        Its ``auto_workers`` are told.
    """
    auto = data.auto_workers
    if auto is None or not auto.is_open:
        return
    if _enter(auto):
        before = random_states()
        try:
            _choose(auto, data, before)
        finally:
            restore_random_states(before)
    auto.is_open = False


def _enter(auto: AutoWorkers) -> bool:
    """Begins the first epoch, as the run would otherwise: what that draws stays drawn."""
    try:
        if auto.enter is not None:
            auto.enter()
    except Exception:  # of the user's set_epoch, which the run calls again
        return False
    return True


def _choose(auto: AutoWorkers, data: DataModule, before: dict[str, Any]) -> None:
    rates = LoadingRates()
    for n, rate in _measure(data):
        rates[n] = rate
        if random_states() != before:
            auto.threads, auto.words = 1, "samples draw random numbers in the order of calls"
            return
    if not rates:
        return
    best = rates.best
    if auto.is_python and best > 1 and not _are_the_same(data, best, rates[best]):
        auto.threads, auto.words = 1, "samples differ when several threads read them again"
        return
    found = ", ".join(f"{n}: {format_count(rate)}/s" for n, rate in rates.items())
    auto.threads, auto.words = best, f"measured {found}"


def _counts() -> list[int]:
    """Numbers of threads to try."""
    most = min(int(_core.cpu_info()["threads"]), MAX_LOADERS)
    return [*(2**i for i in range(most.bit_length()) if 2**i < most), most]


def _measure(data: DataModule) -> Iterator[tuple[int, float]]:
    """Samples a second for each number of threads, as far as samples come in time and are good."""
    position, is_warm = 0, False
    for n in _counts():
        pause()
        try:
            maker = BatchMaker(data, "train", n, rows=1, first=position)
            try:
                if not is_warm:  # what a first sample opens or imports is nobody's rate
                    made, _ = time_batches(maker, _EACH_SECONDS, most=1, is_patient=False)
                    if not made or maker.count < 2:
                        return
                    position, is_warm = 1, True
                made, seconds = time_batches(
                    maker, _EACH_SECONDS, most=maker.count - position, is_patient=False
                )
            finally:
                maker.close()
        except HotloopError:
            return
        if not made:
            return
        position = (position + made) % maker.count
        yield n, made / seconds


def _are_the_same(data: DataModule, n: int, rate: float) -> bool:
    """Whether samples that n threads read at once are those that one reads, as far as time goes."""
    split = data.split("train")
    assert split is not None  # DataModule always has training rows
    part = split.parts[0]
    rows = np.arange(part.n) if part.rows is None else part.rows

    def read(row: np.int64) -> list[bytes]:
        return _sample(part, row)

    try:
        compared = min(_COMPARED, max(n, int(rate * _EACH_SECONDS)))
        together = parallel_map(read, rows[:compared], n, progress=False)
        end = time.perf_counter() + _EACH_SECONDS
        for row, sample in zip(rows, together):
            if read(row) != sample:
                return False
            if time.perf_counter() > end:
                break
    except HotloopError:
        return False
    return True


def _sample(part: Split, row: np.int64) -> list[bytes]:
    made = part.gather(np.array([row], np.int64), is_training=True)
    return [array.tobytes() for array in made.values()]
