"""How fast batches of data are made, without a model."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hotloop.base.messages import format_count, show
from hotloop.base.rules import flag, items, number, whole

if TYPE_CHECKING:
    from hotloop import _core
    from hotloop.data.module import DataModule

__all__ = ["LoadingRates", "bench_data"]

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


def _time(data: DataModule, name: str, workers: int, seconds: float) -> float:
    """Samples a second."""
    from hotloop import _core
    from hotloop.nn.module import Module
    from hotloop.training.plans.runtime import Runtime, gather_batch

    training = name == "train"
    groups = data.batches(name, training=training, merge_tail=False)
    split = data.split(name)
    assert split is not None  # batches has checked
    rows, count, number_of = groups[0]
    part = split.parts[number_of]
    nothing = Module()  # which the runtime does not keep
    runtime = Runtime(nothing, _core.Device("cpu"))
    try:
        runtime.upload()
        ring = runtime.ring(workers, rows, **data.loading(name))
        feed = data.feeds(name, groups[:1], training=training, **ring)[0]

        def build(trace: Any) -> None:
            for field in gather_batch(trace, part, rows, []).values():
                trace.graph.output(field.id_in(trace))

        graph, _ = runtime.trace(build, training=False)
        plan = runtime.plan(graph, part, feed)
        return _run(plan, feed, rows, count, seconds)
    finally:
        runtime.close()


def _run(plan: _core.Plan, feed: _core.Feed, rows: int, count: int, seconds: float) -> float:
    slice_seconds = 0.05
    done, epoch = 0, 0
    began, warm = time.perf_counter(), False
    feed.seek(epoch)
    while True:
        how, ran = plan.run(max(1, count), slice_seconds)
        done += ran
        now = time.perf_counter()
        if how == "feed_end":
            epoch += 1
            feed.seek(epoch)
        if not warm and now - began > 0.2 * seconds and done:
            began, done, warm = now, 0, True
        elif warm and done and now - began > seconds:
            return done * rows / (now - began)
