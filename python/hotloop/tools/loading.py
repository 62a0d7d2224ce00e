"""How fast batches of data are made, without a model."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hotloop.base.messages import format_count, show
from hotloop.base.rules import flag, items, number, whole

if TYPE_CHECKING:
    from hotloop.data.module import DataModule

__all__ = ["BatchMaker", "LoadingRates", "bench_data"]

_SLICE_SECONDS = 0.05
_WARM_UP = 0.2  # of the seconds
_NEAR = 0.95  # of the best rate: fewer workers that reach it are better


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


def bench_data(
    datamodule: DataModule | Any,
    num_workers: Iterable[int] = (0, 1, 2, 4, 8),
    *,
    split: str = "train",
    seconds: float = 2.0,
    verbose: bool = True,
) -> LoadingRates:
    """Times how fast the batches of a split are made, with several numbers of workers.

    Parameters
    ----------
    datamodule : DataModule, or what ``train`` takes as data
    num_workers : iterable of int
        Numbers of threads to try.
    split : {"train", "val", "test"}
        Which split; of "train" with its order and augmentation.
    seconds : float
        For each number, behind a warm-up of its first batches.
    verbose : bool
        Whether the table is printed.

    Returns
    -------
    LoadingRates
        A dict of samples a second; ``.best`` is the number to give a DataModule.

    Raises
    ------
    ConfigError
        If there is no such split.
    DataError
        For samples that cannot be made.

    Notes
    -----
    Nothing else runs meanwhile. In training on a CPU the step computes on the same processors, so
    that more workers than are needed to keep up slow it down: compare with the samples a second
    that ``train`` reaches on data in memory.

    Examples
    --------
    >>> X, y = hl.load_digits()
    >>> rates = hl.bench_data((X, y), [0], seconds=0.05, verbose=False)
    >>> rates[0] > 1000, rates.best
    (True, 0)
    """
    from hotloop.data.shorthand import as_datamodule

    data = as_datamodule(datamodule)
    is_shown = flag("verbose", verbose)
    limit = number(above=0.0)("seconds", seconds)
    rates = LoadingRates()
    for n in items("num_workers", num_workers, "a list of numbers"):
        workers = whole(0)("num_workers", n)
        rates[workers] = _time(data, split, workers, limit)
    if is_shown:
        show(str(rates))
    return rates


class BatchMaker:
    """Makes the batches of a split as training has them, for nobody.

    Parameters
    ----------
    data : DataModule
    name : {"train", "val", "test"}
        The split; of its groups of equal batches the first.
    workers : int

    Attributes
    ----------
    rows : int
        Samples in a batch.
    """

    def __init__(self, data: DataModule, name: str, workers: int) -> None:
        from hotloop import _core
        from hotloop.nn.module import Module
        from hotloop.training.plans.runtime import Runtime, gather_batch

        training = name == "train"
        groups = data.batches(name, training=training, merge_tail=False)
        split = data.split(name)
        assert split is not None  # batches has checked
        self.rows, self._count, number_of = groups[0]
        part = split.parts[number_of]
        self._nothing = Module()  # which the runtime does not keep
        self._runtime = Runtime(self._nothing, _core.Device("cpu"))
        self._runtime.upload()
        ring = self._runtime.ring(workers, self.rows, **data.loading(name))
        self._feed = data.feeds(name, groups[:1], training=training, **ring)[0]

        def build(trace: Any) -> None:
            for field in gather_batch(trace, part, self.rows, data.transforms).values():
                trace.graph.output(field.id_in(trace))

        graph, _ = self._runtime.trace(build, training=False)
        self._plan = self._runtime.plan(graph, part, self._feed)
        self._epoch = 0
        self._feed.seek(0)

    def make(self, seconds: float) -> int:
        """Makes batches for about so long; how many."""
        how, made = self._plan.run(max(1, self._count), seconds)
        if how == "feed_end":
            self._epoch += 1
            self._feed.seek(self._epoch)
        return made

    def close(self) -> None:
        """Gives back what it holds."""
        self._runtime.close()


def _time(data: DataModule, name: str, workers: int, seconds: float) -> float:
    """Samples a second."""
    maker = BatchMaker(data, name, workers)
    done, warm, began = 0, False, time.perf_counter()
    try:
        while True:
            done += maker.make(_SLICE_SECONDS)
            now = time.perf_counter()
            if not warm and now - began > _WARM_UP * seconds and done:
                began, done, warm = now, 0, True
            elif warm and done and now - began > seconds:
                return done * maker.rows / (now - began)
    finally:
        maker.close()
