"""How fast batches of data are made, without a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hotloop.base.messages import show
from hotloop.base.rules import flag, items, number, whole
from hotloop.data.module import DataModule
from hotloop.data.shorthand import as_datamodule
from hotloop.training.plans.loading import BatchMaker, LoadingRates, time_batches

__all__ = ["bench_data"]

_WARM_UP = 0.2  # of the seconds


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
    maker = BatchMaker(data, name, workers)
    try:
        time_batches(maker, _WARM_UP * seconds)
        made, taken = time_batches(maker, seconds)
    finally:
        maker.close()
    return made * maker.rows / taken
