"""Objects that give data: datasets of other libraries, their loaders, and modules of loaders.

What holds arrays is read as arrays, unless code of a user's makes samples of them; what makes its
samples one by one becomes a table whose rows are made when a batch needs them (see
data/datasets/samples.py). Of a loader the dataset is taken, with its batch size, its order and what
makes its batches.

A sampler of training gives an order in each epoch. It is drawn in this process, which hands numbers
of the dataset to the threads and processes that make samples, so that bad ones are known by these.
A sampler of validation and test says which samples these are, and is drawn once.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import show
from hotloop.data.datasets.samples import SampleOptions, Samples, read_samples
from hotloop.data.datasets.workers import Processes
from hotloop.data.streams import Make
from hotloop.data.tables import (
    Source,
    Table,
    has_samples,
    holds_arrays,
    pick_rows,
    read_table,
    unpack_dataset,
)
from hotloop.errors import ConfigError, DataError

__all__ = [
    "Generated",
    "Loaded",
    "Order",
    "choose_makers",
    "has_loaders",
    "read_dataset",
    "settle_order",
    "settle_rows",
    "take_loader",
    "take_loaders",
]

Rows = npt.NDArray[np.int64]

_LIBRARIES = ("torch", "torchdata")  # whose samplers are known by their names
_KEPT_EPOCHS = 2  # whose orders are kept: batches of the next one may be asked for already


# ---- loaders


class Loaded(NamedTuple):
    """What a loader says.

    Attributes
    ----------
    dataset : object
    options : dict
        Options of a DataModule that it sets; of a loader "collate_fn" is always among them.
    order : Order or None
        Of training's sampler.
    rows : int64 array or None
        Which samples these are, of validation and test; None: all.
    """

    dataset: Any
    options: dict[str, Any]
    order: Order | None = None
    rows: Rows | None = None

    @property
    def numbers(self) -> Rows | None:
        """Of the samples that are read, as far as it is known beforehand; None: all."""
        return self.rows if self.order is None else self.order.first

    def read_by(self, make: Make) -> Make:
        """What makes the samples of rows, by what makes those of numbers of the dataset."""
        return make if self.order is None else self.order.read_by(make)


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
    if loader.batch_size is not None:
        options["batch_size"] = int(loader.batch_size)
        options["shuffle"] = False
        if sampler is not None and not _has_all(sampler, loader.dataset):
            options["sampler"] = sampler
        elif type(sampler).__name__ == "RandomSampler":
            options["shuffle"] = True
    elif getattr(loader, "batch_sampler", None) is not None:
        options["batch_sampler"] = loader.batch_sampler
    else:
        raise ConfigError(
            f"{label}: a loader must make batches, got batch_size=None; give its dataset and "
            "batch_size=..."
        )
    collate = getattr(loader, "collate_fn", None)
    options["collate_fn"] = None if _is_known(collate, "default_collate") else collate
    return Loaded(loader.dataset, options)


def _is_known(value: Any, *names: str) -> bool:
    """Whether it is a function or class of such a name of PyTorch's, not one of a user's."""
    package = str(getattr(value, "__module__", "")).partition(".")[0]
    return getattr(value, "__name__", "") in names and package in _LIBRARIES


def _has_all(sampler: Any, dataset: Any) -> bool:
    """Whether it is a sampler that gives every sample once, in order or shuffled."""
    if _is_known(type(sampler), "_InfiniteConstantSampler"):
        return True  # of a dataset without numbers, which is refused
    if not _is_known(type(sampler), "RandomSampler", "SequentialSampler"):
        return False
    return not getattr(sampler, "replacement", False) and len(sampler) == len(dataset)


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


# ---- samplers, and datasets without an order


def _draw(sampler: Iterable[Any], epoch: int, label: str) -> tuple[Rows, list[int]]:
    """The numbers that a sampler gives in an epoch, and the sizes of its batches if it has some."""
    set_epoch = getattr(sampler, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)
    order: list[int] = []
    sizes: list[int] = []
    for item in sampler:
        if isinstance(item, (list, tuple, np.ndarray)):
            sizes.append(len(item))
            order += [int(i) for i in item]
        else:
            order.append(int(item))
    if not order:
        raise DataError(f"{label}: the sampler gives no samples")
    return np.array(order, np.int64), sizes


class Order:
    """The order in which a sampler has training take its samples.

    Parameters
    ----------
    sampler : iterable of int, or of lists of them
        Gone through anew for each epoch, and told the epoch if it has ``set_epoch``.
    label : str

    Attributes
    ----------
    first : int64 array (n,)
        Numbers of the samples of the first epoch, which are those that are evaluated too.
    batch_size : int or None
        Of batches that the sampler gives.

    Raises
    ------
    ConfigError, DataError
    """

    def __init__(self, sampler: Iterable[Any], label: str) -> None:
        self._sampler, self._label = sampler, label
        self._lock = threading.Lock()
        self._later: dict[int, tuple[Rows, Rows]] = {}
        self.first, sizes = _draw(sampler, 0, label)
        if sizes and (len(set(sizes[:-1])) > 1 or sizes[-1] > sizes[0]):
            raise ConfigError(
                f"batch_sampler: batches must have one size, the last one apart, got {show(sizes)}"
            )
        self.batch_size = sizes[0] if sizes else None
        self._first = self.first, np.unique(self.first)

    def _of_epoch(self, epoch: int) -> tuple[Rows, Rows]:
        """The order of an epoch, and which samples these are, ascending."""
        with self._lock:
            found = self._first if epoch == 0 else self._later.get(epoch)
            if found is None:
                order, _ = _draw(self._sampler, epoch, self._label)
                if len(order) != len(self.first):
                    raise ConfigError(
                        "sampler: must give as many samples in each epoch, got "
                        f"{len(self.first)} and then {len(order)}"
                    )
                self._later[epoch] = found = order, np.unique(order)
                while len(self._later) > _KEPT_EPOCHS:
                    del self._later[next(iter(self._later))]
            return found

    def read_by(self, make: Make) -> Make:
        """What makes the samples at positions of an epoch, by what makes those of numbers."""

        def read(rows: Rows, epoch: int, is_training: bool, peers: Rows | None = None) -> Any:
            # rows are positions, and so are their peers
            order, peers = self._of_epoch(epoch if is_training else 0)
            return make(order[rows], epoch, is_training, peers)

        return read


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


def settle_order(loaded: Loaded, given: dict[str, Any]) -> tuple[Loaded, dict[str, Any]]:
    """Training's dataset, with the order of a sampler where there is one, and its options.

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
        return loaded, options
    if by_sample is not None and by_batch is not None:
        raise ConfigError("sampler: batch_sampler gives the order already; leave one out")
    if given["shuffle"]:
        raise ConfigError("sampler: gives the order, got shuffle=True beside it")
    if holds_arrays(loaded.dataset) and not has_samples(loaded.dataset):
        raise ConfigError(
            "sampler: orders a dataset that makes samples, got arrays; give sample_weight, or the "
            "rows in the order that is wanted"
        )
    drawn = Order(order, "train_dataset")
    options["shuffle"] = False
    options["batch_size"] = drawn.batch_size or options["batch_size"]
    return loaded._replace(order=drawn), options


def settle_rows(loaded: Loaded, label: str) -> Loaded:
    """Validation's or test's dataset, with the samples that a loader's sampler gives.

    Raises
    ------
    DataError
        If it gives none.
    """
    sampler = loaded.options.get("sampler", loaded.options.get("batch_sampler"))
    return loaded if sampler is None else loaded._replace(rows=_draw(sampler, 0, label)[0])


# ---- one dataset


def choose_makers(
    given: Mapping[str, Loaded], options: Mapping[str, SampleOptions]
) -> dict[str, bool]:
    """By split, whether its samples are made one by one; else it is read as arrays.

    Parameters
    ----------
    given, options : dict
        By split, "train" among them.

    Raises
    ------
    ConfigError
        For options of samples beside arrays, which would do nothing.
    """
    made = {}
    for name, loaded in given.items():
        asked = _asked_of_samples(options[name])
        if loaded.order is not None:
            asked = ["sampler", *asked]
        made[name] = not holds_arrays(loaded.dataset)
        if asked and has_samples(loaded.dataset):
            made[name] = True
        elif not made[name] and (name == "train" or "collate_fn" in asked) and asked:
            raise ConfigError(
                f"{asked[0]}: is of datasets that make samples, got arrays as {name}_dataset; "
                "leave it out, or give a dataset with len and [i]"
            )
    if any(made.values()) and has_samples(given["train"].dataset):
        made["train"] = True  # beside which others may be arrays, but not the other way round
    return made


def _asked_of_samples(options: SampleOptions) -> list[str]:
    """The names of the options that arrays have no use for."""
    given = {
        "collate_fn": options.collate is not None,
        "target": options.target is not None,
        "on_bad_sample": options.on_bad != "raise",
        "worker_type": options.processes,
    }
    return [name for name, is_asked in given.items() if is_asked]


def read_dataset(
    loaded: Loaded,
    label: str,
    options: SampleOptions,
    *,
    is_made: bool,
    like: tuple[Table, Samples | None] | None = None,
    standardize: bool | frozenset[str] = False,
) -> tuple[Table, Rows | None, Samples | None]:
    """A dataset's table, which of its rows it means, and what makes them where they are made.

    Parameters
    ----------
    loaded : Loaded
        Arrays, an object that holds some, or one with ``len`` and ``[i]``.
    label : str
    options : SampleOptions
        Of the second kind.
    is_made : bool
        Whether its samples are made one by one.
    like : (Table, Samples or None), optional
        Training's.
    standardize
        As :func:`read_table` takes it.

    Raises
    ------
    ConfigError, DataError
    """
    known = None if like is None else like[0]
    dataset = loaded.dataset
    if not is_made:
        source: Source = unpack_dataset(dataset, label)
        table = read_table(
            source.X, source.y, source.weight, prefix=f"{label} ", like=known,
            standardize=standardize,
        )  # fmt: skip
        if loaded.rows is None or source.rows is None:
            return table, source.rows if loaded.rows is None else loaded.rows, None
        return table, pick_rows(source.rows, loaded.rows, label), None
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        unpack_dataset(dataset, label)  # raises
    samples = Samples(dataset, label, options, None if like is None else like[1], loaded.numbers)
    make = loaded.read_by(Processes(samples, label).read if options.processes else samples.read)
    n = len(samples) if loaded.order is None else len(loaded.order.first)
    table = read_samples(samples, "" if like is None else f"{label} ", make, n)
    if known is not None and like is not None and like[1] is None:
        raise ConfigError(
            f"{label}: training has arrays, and so must this, got a {type(dataset).__name__} that "
            "makes samples; give both in one way"
        )
    return table, loaded.rows, samples
