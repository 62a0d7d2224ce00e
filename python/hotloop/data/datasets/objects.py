"""Objects that give data: datasets of other libraries, their loaders, and modules of loaders.

What holds arrays is read as arrays; what makes its samples one by one becomes a table whose rows
are made when a batch needs them (see data/datasets/samples.py). Of a loader the dataset is taken,
with its batch size, its order and what makes its batches.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import show
from hotloop.data.datasets.samples import SampleOptions, Samples, read_samples
from hotloop.data.datasets.workers import Processes
from hotloop.data.tables import Source, Table, holds_arrays, read_table, unpack_dataset
from hotloop.errors import ConfigError, DataError

__all__ = [
    "Generated",
    "Loaded",
    "Ordered",
    "has_loaders",
    "read_dataset",
    "settle_order",
    "take_loader",
    "take_loaders",
]

Rows = npt.NDArray[np.int64]


# ---- loaders


class Loaded(NamedTuple):
    """What a loader says.

    Attributes
    ----------
    dataset : object
    options : dict
        Options of a DataModule that it sets.
    """

    dataset: Any
    options: dict[str, Any]


def is_loader(value: Any) -> bool:
    """Whether it is a loader in PyTorch's manner, which makes batches of a dataset."""
    return hasattr(value, "dataset") and hasattr(value, "batch_size")


def has_loaders(value: Any) -> bool:
    """Whether it is a module of loaders in Lightning's manner."""
    return callable(getattr(value, "train_dataloader", None))


def take_loader(loader: Any, label: str) -> Loaded:
    """A loader's dataset and what it does with it.

    Raises
    ------
    ConfigError
        If batches have no size of their own.
    """
    if not is_loader(loader):
        return Loaded(loader, {})
    options: dict[str, Any] = {"drop_last": bool(getattr(loader, "drop_last", False))}
    sampler = getattr(loader, "sampler", None)
    name = type(sampler).__name__
    if loader.batch_size is not None:
        options["batch_size"] = int(loader.batch_size)
        options["shuffle"] = name == "RandomSampler" and not getattr(sampler, "replacement", False)
        is_usual = options["shuffle"] or name in ("SequentialSampler", "_InfiniteConstantSampler")
        if sampler is not None and not is_usual:
            options["sampler"] = sampler
    elif getattr(loader, "batch_sampler", None) is not None:
        options["batch_sampler"] = loader.batch_sampler
    else:
        raise ConfigError(
            f"{label}: a loader must make batches, got batch_size=None; give its dataset and "
            "batch_size=..."
        )
    collate = getattr(loader, "collate_fn", None)
    if collate is not None and getattr(collate, "__name__", "") != "default_collate":
        options["collate_fn"] = collate
    return Loaded(loader.dataset, options)


def take_loaders(module: Any) -> dict[str, Any]:
    """The loaders or datasets of a module in Lightning's manner, by split, after its setup.

    Raises
    ------
    ConfigError
        If it gives several loaders for a split.
    """
    prepare, setup = getattr(module, "prepare_data", None), getattr(module, "setup", None)
    if callable(prepare):
        prepare()
    for stage in ("fit", "test") if callable(setup) else ():
        _call_setup(setup, stage)
    found = {}
    for name in ("train", "val", "test"):
        make = getattr(module, f"{name}_dataloader", None)
        loader = make() if callable(make) else None
        several = list(loader.values()) if isinstance(loader, dict) else loader
        if isinstance(several, (list, tuple)) and all(map(is_loader, several)):
            if len(several) > 1:
                raise ConfigError(
                    f"{name}_dataloader: must give one loader, got {len(several)}; make a "
                    "DataModule of each"
                )
            loader = several[0] if several else None
        if loader is not None:
            found[name] = loader
    return found


def _call_setup(setup: Any, stage: str) -> None:
    try:
        inspect.signature(setup).bind(stage)
    except TypeError:
        if stage == "fit":
            setup()
        return
    setup(stage)


# ---- datasets in another order, or without one


class Ordered:
    """A dataset in the order of a sampler: sample i is the i-th of an epoch.

    Parameters
    ----------
    dataset : object
    sampler : iterable of int, or of lists of them
        Gone through anew for each epoch, and told the epoch if it has ``set_epoch``.
    label : str
    """

    def __init__(self, dataset: Any, sampler: Iterable[Any], label: str) -> None:
        self._dataset, self._sampler, self._label = dataset, sampler, label
        self._lock = threading.Lock()
        self._epoch = -1
        self._order = self._draw(0)
        self._n = len(self._order)

    def _draw(self, epoch: int) -> list[int]:
        set_epoch = getattr(self._sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
        order: list[int] = []
        sizes: list[int] = []
        for item in self._sampler:
            if isinstance(item, (list, tuple, np.ndarray)):
                sizes.append(len(item))
                order += [int(i) for i in item]
            else:
                order.append(int(item))
        if sizes and (len(set(sizes[:-1])) > 1 or sizes[-1] > sizes[0]):
            raise ConfigError(
                f"batch_sampler: batches must have one size, the last one apart, got {show(sizes)}"
            )
        if not order:
            raise DataError(f"{self._label}: the sampler gives no samples")
        self.batch_size = sizes[0] if sizes else None
        return order

    def __len__(self) -> int:
        return self._n

    def set_epoch(self, epoch: int) -> None:
        """Draws the order of an epoch."""
        inner = getattr(self._dataset, "set_epoch", None)
        if callable(inner):
            inner(epoch)
        with self._lock:
            if epoch == self._epoch:
                return
            order = self._draw(epoch)
            if len(order) != self._n:
                raise ConfigError(
                    f"sampler: must give as many samples in each epoch, got {self._n} and then "
                    f"{len(order)}"
                )
            self._epoch, self._order = epoch, order

    def __getitem__(self, index: int) -> Any:
        return self._dataset[self._order[index]]


class Generated:
    """What a function generates, as a dataset that is read in order.

    Parameters
    ----------
    make : callable
        Returns an iterator of samples; called again for each epoch, with its number if it takes an
        argument.
    n : int
        Samples of an epoch.
    label : str
    """

    def __init__(self, make: Callable[..., Iterable[Any]], n: int, label: str) -> None:
        self._make, self._n, self._label = make, n, label
        self._lock = threading.Lock()
        self._epoch, self._wanted, self._at = -1, 0, 0
        self._left: Iterator[Any] = iter(())
        self._takes_epoch = _takes_argument(make)

    def __len__(self) -> int:
        return self._n

    def set_epoch(self, epoch: int) -> None:
        """The samples that are read next are of this epoch."""
        self._wanted = epoch

    def __getitem__(self, index: int) -> Any:
        with self._lock:
            if self._epoch != self._wanted or index < self._at:
                made = self._make(self._wanted) if self._takes_epoch else self._make()
                self._left, self._epoch, self._at = iter(made), self._wanted, 0
            sample = None
            while self._at <= index:
                try:
                    sample = next(self._left)
                except StopIteration:
                    raise DataError(
                        f"{self._label}: must generate {self._n} samples in each epoch, got "
                        f"{self._at} in epoch {self._epoch}; write n={self._at}"
                    ) from None
                self._at += 1
            return sample


def _takes_argument(make: Callable[..., Any]) -> bool:
    try:
        inspect.signature(make).bind(0)
    except (TypeError, ValueError):
        return False
    return True


def settle_order(loaded: Loaded, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Training's dataset, in the order of a sampler where there is one, and its options.

    Parameters
    ----------
    loaded : Loaded
    given : dict
        "batch_size", "shuffle", "drop_last", "collate_fn", "sampler" and "batch_sampler" as
        the user has them: None is what the loader says.

    Raises
    ------
    ConfigError, DataError
    """
    options = {
        key: loaded.options.get(key) if value is None else value for key, value in given.items()
    }
    by_sample, by_batch = options["sampler"], options["batch_sampler"]
    order = by_sample if by_batch is None else by_batch
    if order is None:
        return loaded.dataset, options
    if by_sample is not None and by_batch is not None:
        raise ConfigError("sampler: batch_sampler gives the order already; leave one out")
    if holds_arrays(loaded.dataset):
        raise ConfigError(
            "sampler: orders a dataset that makes samples, got arrays; give sample_weight, or the "
            "rows in the order that is wanted"
        )
    if given["shuffle"]:
        raise ConfigError("sampler: gives the order, got shuffle=True beside it")
    ordered = Ordered(loaded.dataset, order, "train_dataset")
    options["shuffle"] = False
    options["batch_size"] = ordered.batch_size or options["batch_size"]
    return ordered, options


# ---- one dataset


def read_dataset(
    dataset: Any,
    label: str,
    options: SampleOptions,
    *,
    like: tuple[Table, Samples | None] | None = None,
    standardize: bool | frozenset[str] = False,
) -> tuple[Table, Rows | None, Samples | None]:
    """A dataset's table, which of its rows it means, and what makes them where they are made.

    Parameters
    ----------
    dataset : object
        Arrays, an object that holds some, or one with ``len`` and ``[i]``.
    label : str
    options : SampleOptions
        Of the second kind.
    like : (Table, Samples or None), optional
        Training's.
    standardize
        As :func:`read_table` takes it.

    Raises
    ------
    ConfigError, DataError
    """
    known = None if like is None else like[0]
    if holds_arrays(dataset):
        source: Source = unpack_dataset(dataset, label)
        table = read_table(
            source.X, source.y, source.weight, prefix=f"{label} ", like=known,
            standardize=standardize,
        )  # fmt: skip
        return table, source.rows, None
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        unpack_dataset(dataset, label)  # raises
    samples = Samples(dataset, label, options, None if like is None else like[1])
    make = Processes(samples, label).read if options.processes else None
    table = read_samples(samples, "" if like is None else f"{label} ", make)
    if known is not None and like is not None and like[1] is None:
        raise ConfigError(
            f"{label}: training has arrays, and so must this, got a {type(dataset).__name__} that "
            "makes samples; give both in one way"
        )
    return table, None, samples
