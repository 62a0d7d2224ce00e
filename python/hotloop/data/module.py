"""DataModule: what to train, validate and test on, and the ways to make it of arrays."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.rules import choice, flag, number, reject, show, whole
from hotloop.base.scalars import plain
from hotloop.data.auto_workers import AutoWorkers
from hotloop.data.datasets.mapping import MappedData
from hotloop.data.datasets.objects import (
    Generated,
    Loaded,
    choose_makers,
    has_loaders,
    read_dataset,
    settle_order,
    settle_rows,
    take_loader,
    take_loaders,
)
from hotloop.data.datasets.padded import plan_padding
from hotloop.data.datasets.samples import SampleOptions, Samples
from hotloop.data.episodes import EpisodeData
from hotloop.data.folds import RowOrigin
from hotloop.data.frames.table_data import TableData
from hotloop.data.images.pictures import ImageData
from hotloop.data.options import read_standardize, refuse_options
from hotloop.data.stored.mapped import FileData
from hotloop.data.tables import Table, read_table, subset_rows, unpack_dataset
from hotloop.data.targets import ids_of
from hotloop.errors import ConfigError, DataError

__all__ = ["DataModule", "GraphDataModule"]

Rows = npt.NDArray[np.int64]


class DataModule(ImageData, FileData, TableData, EpisodeData, MappedData):
    """Training, validation and test data with their order and batch size.

    Parameters
    ----------
    train_dataset, val_dataset, test_dataset
        Each ``(X, y)``, ``(X, y, sample_weight)``, an array ``X``, an object with ``.tensors`` or
        ``.arrays`` (as torch's TensorDataset) and no ``__getitem__`` of its own, or a subset of
        one. X and y are as in :meth:`from_arrays`. Or a dataset that makes its samples one by
        one, a loader of one, or a module of loaders, as :meth:`from_datasets` takes them.
    batch_size : int
        Samples in a step. The last batch of an epoch has what is left.
    num_workers : int or "auto"
        Threads that make batches ahead, of samples that are made one by one, or for a GPU whose
        memory the data does not fit; 0: the training loop's thread does it. On a CPU arrays are
        gathered within the step, without workers. Any number gives the same batches. "auto": 0 for
        arrays; for samples that are made one by one, what the first training with the DataModule
        measures, in about 0.15 s for each of 1, 2, 4, ... threads: the fewest that reach 95 % of
        the best rate, shown in the header of the run. For that ``[i]`` of a dataset is called for
        samples beyond those of training, by several threads. Python's, NumPy's and PyTorch's shared
        generators are put back afterwards; a dataset that draws from them, and one whose samples
        differ when several threads read them again, gets 1 thread. Code that must never be called
        by several wants ``num_workers=1``. 1 for generators, which cannot be read before training
        without being consumed; up to 4 for ``worker_type="process"``, not measured.
    pin_memory : bool or "auto"
        Accepted for code that comes from other libraries: what is sent to a GPU is pinned.
    prefetch_factor : int
        Batches of samples made one by one that are ready before they are needed.
    persistent_workers : bool
        Accepted likewise: threads cost nothing to start.
    sampler : {"balanced", "weighted"}, optional
        Training rows are drawn with replacement: every class as often, or by ``weights``. Without
        it an epoch has each row once. An iterable is of datasets that make samples.
    weights : array_like (N,), optional
        With ``sampler="weighted"``, how likely each row is, at least 0; they need not add up to 1.
        Those of validation and test rows do not count.
    samples_per_epoch : int, optional
        Samples that are drawn in an epoch. Without it as many as there are training rows.
    collate_fn, target, batch_sampler, on_bad_sample, max_bad_share, worker_type, buckets
        Of datasets that make samples, as for :meth:`from_datasets`.
    lengths_as, pad_value
        Of datasets that make samples, as for :meth:`from_datasets`.
    shuffle : bool
        Whether training sees the rows in a new order every epoch.
    drop_last : bool
        Leave a smaller last batch out of training epochs; never the only one.
    seed : int
        Decides splits and order.
    standardize : bool, {"x", "y", "both"} or sequence of str
        Bring features to mean 0 and standard deviation 1, by the training rows. True, "x": every
        input that forward receives as float, and an X of integers; names: these columns of a dict.
        "y": float targets, "both": features and targets. It is part of the model: the arrays stay
        as they are, ``predict`` does the same with features, and what the model makes of scaled
        targets is scaled back in predictions and metrics. The loss is that of scaled targets. Of
        images each pixel of each channel is a feature, which ties the model to their size; for a
        mean per channel normalise in forward.
    classes : sequence, or dict of them, optional
        Names of the class ids of an integer or bool y, by id; of a y of names their order. Of
        several targets by the targets' names.
    allow_nonfinite : bool
        Let NaN and infinities in X and y pass.
    **unknown
        Refused by name, with the option that is meant.

    Raises
    ------
    ConfigError
        For an option out of its range or a dataset of an unknown kind.
    DataError
        For data that cannot be trained on, by row and column.

    Examples
    --------
    >>> X, y = np.random.rand(100, 4).astype("float32"), np.arange(100) % 3
    >>> data = hl.DataModule.from_arrays(X, y, val=0.2, batch_size=16)
    >>> len(data), data.n_classes
    (80, 3)
    """

    def __init__(
        self,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        *,
        batch_size: int | None = None,
        num_workers: int | str = "auto",
        pin_memory: bool | str = "auto",
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
        seed: int = 42,
        standardize: bool | str | Sequence[str] = False,
        classes: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
        allow_nonfinite: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        target: str | Sequence[str] | None = None,
        sampler: Iterable[Any] | str | None = None,
        weights: Any = None,
        samples_per_epoch: int | None = None,
        batch_sampler: Iterable[Any] | None = None,
        on_bad_sample: str = "raise",
        max_bad_share: float = 0.001,
        worker_type: str = "thread",
        buckets: str | int | Sequence[int] | None = None,
        lengths_as: str | None = None,
        pad_value: float | None = None,
        **unknown: Any,
    ) -> None:
        refuse_options(unknown, type(self).__init__)
        wanted, scales_targets = read_standardize(standardize)
        drawn, sampler = (sampler, None) if isinstance(sampler, str) else (None, sampler)
        given = self._unpack_datasets(train_dataset, val_dataset, test_dataset)
        given["train"], options = settle_order(
            given["train"],
            {
                "batch_size": batch_size,
                "shuffle": shuffle,
                "drop_last": drop_last,
                "collate_fn": collate_fn,
                "sampler": sampler,
                "batch_sampler": batch_sampler,
            },
        )
        if drawn is not None and given["train"].order is not None:
            raise ConfigError(
                f"sampler: {drawn!r} draws training rows, got a loader with a sampler of its own; "
                "give its dataset, or leave sampler out"
            )
        given |= {
            name: settle_rows(loaded, f"{name}_dataset")
            for name, loaded in given.items()
            if name != "train"
        }
        makes = SampleOptions(
            collate=options["collate_fn"],
            target=target,
            classes=None if isinstance(classes, Mapping) or classes is None else list(classes),
            on_bad=choice("raise", "skip", "replace")("on_bad_sample", on_bad_sample),
            cap=number(at_least=0.0, at_most=1.0)("max_bad_share", max_bad_share),
            allow_nonfinite=flag("allow_nonfinite", allow_nonfinite),
            processes=choice("thread", "process")("worker_type", worker_type) == "process",
        )
        self._set_options(
            64 if options["batch_size"] is None else options["batch_size"],
            num_workers,
            pin_memory,
            True if options["shuffle"] is None else options["shuffle"],
            bool(options["drop_last"]),
            seed,
            allow_nonfinite,
        )
        self._set_loading(prefetch_factor, persistent_workers)
        own = {
            name: makes
            if name == "train"
            else makes._replace(collate=_collate_of(loaded, given["train"], collate_fn))
            for name, loaded in given.items()
        }
        made = choose_makers(given, own)
        self._replaces = makes.on_bad == "replace"
        parts: dict[str, tuple[Table, Rows | None]] = {}
        like: tuple[Table, Samples | None] | None = None
        pad = None
        for name, value in (("lengths_as", lengths_as), ("pad_value", pad_value)):
            if buckets is None and value is not None:
                reject(name, "is of buckets, which there are none of", value, "write buckets=...")
        if buckets is not None:
            if wanted:
                raise ConfigError(
                    "standardize: padding would count as rows, got buckets too; standardise in the "
                    "dataset"
                )
            pad = plan_padding(given, made, own, buckets, lengths_as, pad_value, self._batch_size)
        for name, loaded in given.items():
            samples: Samples | None
            if pad is not None:
                table, rows, samples = pad.read(name, loaded, own[name], like)
            else:
                table, rows, samples = read_dataset(
                    loaded, f"{name}_dataset", own[name], is_made=made[name], like=like,
                    standardize=wanted,
                )  # fmt: skip
            like = like or (table, samples)
            if samples is not None:
                self._bad_samples[name] = samples.bad
            if samples is not None and name == "train":
                enter = functools.partial(samples.enter_epoch, 0, True)
                self._auto = AutoWorkers(1, is_python=True, enter=enter)
                if makes.processes:  # which take longer to start than measuring may
                    self._auto = AutoWorkers(min(_core.cpu_info()["threads"], 4), is_open=False)
            parts[name] = table, _check_rows(rows, table.n, name)
        self._set_splits(parts, wanted, scales_targets)
        table = parts["train"][0]
        if (order := given["train"].order) is not None:
            self._splits["train"] = dataclasses.replace(self._splits["train"], numbers=order.first)
            self._is_random = True
        elif not isinstance(given["train"].dataset, Generated):
            ids = None if self._splits["train"].is_streamed else ids_of(table.targets)
            of = subset_rows(given["train"].dataset, "train_dataset") if made["train"] else None
            self._origin = RowOrigin(table.n, self.rows("train"), ids, sources=of)
        self._set_sampling(drawn, weights, samples_per_epoch)
        self._name_classes(classes)

    def _unpack_datasets(self, train: Any, val: Any, test: Any) -> dict[str, Loaded]:
        """What each split is of, out of loaders and modules of loaders."""
        given = {"train": train, "val": val, "test": test}
        is_own = type(self).train_dataloader is not DataModule.train_dataloader
        if has_loaders(train) or (train is None and is_own):
            found = take_loaders(self if train is None else train)
            given |= {name: of for name, of in found.items() if given[name] is None}
            given["train"] = found.get("train")
        if given["train"] is None:
            raise DataError("train_dataset: data to train on is needed, got None")
        return {
            name: take_loader(dataset, f"{name}_dataset")
            for name, dataset in given.items()
            if dataset is not None
        }

    # ---- for subclasses in Lightning's manner

    def prepare_data(self) -> None:
        """For subclasses: called once, before :meth:`setup`."""

    def setup(self, stage: str | None = None) -> None:
        """For subclasses: makes what the ``*_dataloader`` methods give.

        Parameters
        ----------
        stage : {"fit", "test"}
        """

    def train_dataloader(self) -> Any:
        """For subclasses: what train data is.

        Returns
        -------
        loader or dataset
            Something to train on.
        """
        return None

    def val_dataloader(self) -> Any:
        """For subclasses: what val data is.

        Returns
        -------
        loader or dataset
            Something to validate on, or None.
        """
        return None

    def test_dataloader(self) -> Any:
        """For subclasses: what test data is.

        Returns
        -------
        loader or dataset
            Something to test on, or None.
        """
        return None

    @property
    def bad_samples(self) -> dict[str, dict[int, str]]:
        """By split, the samples that could not be made so far, with the reason, by index."""
        return {name: bad.found for name, bad in self._bad_samples.items() if bad.found}

    @classmethod
    def from_datasets(
        cls,
        train: Any,
        val: Any = None,
        test: Any = None,
        *,
        split: str | None = None,
        gap: int = 0,
        stratify: bool | str = "auto",
        groups: Any = None,
        seed: int = 42,
        **options: Any,
    ) -> DataModule:
        """A DataModule of datasets that make their samples one by one, as PyTorch's do.

        Parameters
        ----------
        train : dataset, loader, or module of loaders
            A dataset has ``len`` and ``[i]``; what it gives is ``(x, y)``, ``(x, y, weight)``, x
            alone, or a dict: of "x", "y" and "weight", or of any names, of which "y", "label",
            "labels", "target" or "targets" is the target and the others enter forward as a dict.
            Parts are arrays, tensors or numbers, each of one shape in all samples, nested as
            forward takes them. Integers are class ids, floats values, as for :meth:`from_arrays`;
            bools of several a yes-or-no question each. Of a loader the dataset, batch size, order
            and ``collate_fn`` are taken, of a module in Lightning's manner its loaders, after
            ``prepare_data`` and ``setup``. The sampler of a validation or test loader is gone
            through once: it says which samples these are.
        val, test : dataset, loader, float or int, optional
            A fraction or number of training's samples, which no sampler orders, or data of its
            own.
        split : {"random", "time"}, optional
            Which samples these are: any ["random"], or the last ones.
        gap, stratify, groups
            As for :meth:`from_arrays`; groups has one entry for each sample of train. Samples that
            are made one by one have no classes to stratify by.
        seed : int
            Decides splits and order.
        **options
            Those of the class; and of these:

            collate_fn : callable
                ``collate_fn(samples)`` makes a batch of a list of samples, with a row for each;
                without it they are stacked. All batches must have one shape, rows apart.
            target : str or list of str
                Keys of samples that are targets.
            sampler, batch_sampler : iterable
                Indices of an epoch's samples, or lists of them, in the order in which training
                takes them; gone through anew for each epoch, of which ``set_epoch`` is told.
            on_bad_sample : {"raise", "skip", "replace"}
                What becomes of a sample that raises, is None, or has another shape: an error with
                its index; weight 0; or the next good one of its split in its place.
            max_bad_share : float
                Share of the samples that may be bad, one at least, 0: none; ``bad_samples`` says
                which were.
            buckets : "auto", int or list of int
                Samples whose x has several lengths, ``(rows, ...)``, are padded to that of their
                bucket, as for ``from_sequences``. One length pads everything to it; several, or
                "auto", make each sample once beforehand, with progress, to see how long it is.
            lengths_as, pad_value
                With buckets: forward's second argument, ``forward(x, lengths)``, and what stands in
                padding, as for ``from_sequences``. A y as long as x in each sample has a target for
                each row: integers are classes, of which those in padding count nothing; values need
                a training_step, where they are 0 in padding.
            worker_type : {"thread", "process"}
                "process" is for datasets whose Python code is slow and keeps other threads waiting:
                each of the ``num_workers`` threads has a process with a copy of the dataset, which
                must be picklable and importable there: a class of a module, not of a notebook.

        Returns
        -------
        DataModule

        Raises
        ------
        ConfigError
            For options that contradict.
        DataError
            For samples that are not as the first one, with the index. Samples are looked at when a
            batch needs them; the first one when the DataModule is made.

        Notes
        -----
        Batches are made ahead by ``num_workers`` threads of this process, without pickling and
        shared memory. A dataset's own random numbers depend on the order of calls, which with
        several threads is not the same in each run, and ``num_workers="auto"`` calls it before
        training; ``set_epoch(epoch)``, where there is one, is
        told which epoch begins.

        Examples
        --------
        >>> class Squares:
        ...     def __len__(self):
        ...         return 1000
        ...
        ...     def __getitem__(self, i):
        ...         x = np.float32([i / 1000, 1.0])
        ...         return x, x[0] ** 2
        >>> data = hl.DataModule.from_datasets(Squares(), val=0.2, batch_size=50)
        >>> len(data), data.example_batch()["x"]
        (800, ('float32', (50, 2)))
        """
        given = {"val": val, "test": test}
        shares = {
            name: part for name, part in given.items() if isinstance(plain(part), (int, float))
        }
        if split is not None and not shares:
            raise ConfigError(
                f"split: says which samples val and test are, got {split!r} without a fraction "
                "or count; leave it out"
            )
        own = {name: part for name, part in given.items() if name not in shares}
        self = cls(train, own.get("val"), own.get("test"), seed=seed, **options)
        bad = [name for name in ("val", "test") if name in self._splits]
        if shares and bad:
            raise ConfigError(
                f"{bad[0]}: fractions and datasets of their own do not go together; give both in "
                "one way"
            )
        if not shares and groups is None and stratify == "auto" and gap == 0:
            return self
        whole_split = self._splits["train"]
        origin = self._origin
        if not isinstance(origin, RowOrigin):
            raise ConfigError(
                f"{next(iter(shares), 'groups')}: is of rows that are divided once, got a sampler "
                "of train, which says in each epoch which samples these are; give val and test "
                "datasets or loaders of their own, or leave the sampler out (sampler='weighted' "
                "with weights=... draws training's rows alone)"
            )
        if shares:
            origin.check_once(next(iter(shares)))
        _, rows = self._divide(
            origin.n,
            {name: shares.get(name) for name in given},
            origin.ids,
            groups,
            "random" if shares and split is None else split,
            gap,
            stratify,
            among=whole_split.rows,
        )
        for name, of in rows.items():
            if of is not None:
                self._splits[name] = whole_split.take(of)
        self._draw_training()
        return self

    @classmethod
    def from_generator(
        cls, make: Callable[..., Iterable[Any]], n: int, *, val: Any = None, **options: Any
    ) -> DataModule:
        """A DataModule of samples that a function generates, in its order.

        Parameters
        ----------
        make : callable
            ``make()``, or ``make(epoch)``, returns an iterable of samples as
            :meth:`from_datasets` has them. It is called anew for each epoch.
        n : int
            Samples of an epoch. What comes behind them is not used.
        val : optional
            As for the class: data of its own.
        **options
            As for :meth:`from_datasets`, but for ``shuffle`` and samplers: shuffle in the
            generator. One thread makes the samples.

        Returns
        -------
        DataModule

        Raises
        ------
        ConfigError
            For an option out of its range.
        DataError
            If fewer samples come.

        Notes
        -----
        Training that goes on in the middle of an epoch generates what lies before it again.

        Examples
        --------
        >>> def numbers(epoch):
        ...     rng = np.random.default_rng(epoch)
        ...     while True:
        ...         x = rng.random(4, np.float32)
        ...         yield x, int(x.sum() > 2)
        >>> data = hl.DataModule.from_generator(numbers, 500, batch_size=50)
        >>> len(data)
        500
        """
        if not callable(make):
            raise ConfigError(
                f"make: must be a function that returns an iterable, got {show(make)}; write "
                "lambda: ..."
            )
        if options.get("shuffle") or options.get("sampler") or options.get("batch_sampler"):
            raise ConfigError(
                "shuffle: samples come in the order in which they are generated; shuffle in the "
                "generator"
            )
        workers = options.pop("num_workers", 1)
        if workers not in (0, 1, "auto"):
            raise ConfigError(
                f"num_workers: one thread makes the samples of a generator, got {show(workers)}"
            )
        n = whole(1)("n", n)
        options |= {"shuffle": False, "num_workers": 1 if workers == "auto" else workers}
        return cls(Generated(make, n, "generator"), val, **options)

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any = None,
        *,
        val: Any = None,
        test: Any = None,
        batch_size: int = 64,
        shuffle: bool = True,
        split: str | None = None,
        gap: int = 0,
        stratify: bool | str = "auto",
        groups: Any = None,
        sample_weight: Any = None,
        sampler: str | None = None,
        weights: Any = None,
        samples_per_epoch: int | None = None,
        standardize: bool | str | Sequence[str] = False,
        classes: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
        allow_nonfinite: bool = False,
        drop_last: bool = False,
        seed: int = 42,
        num_workers: int = 0,
        pin_memory: bool | str = "auto",
        **unknown: Any,
    ) -> DataModule:
        """A DataModule of arrays in memory.

        Parameters
        ----------
        X : array_like, dict or tuple
            ``(N, ...)`` features: a NumPy array, anything with the buffer protocol, ``__array__``
            or DLPack, a data frame, nested lists. Floats, bools and uint8 enter forward as
            float32, other integers as int64 (ids for embeddings). A dict of columns enters it as
            a dict, a tuple as separate arguments. Native, contiguous arrays are used in place
            and never written to; others are copied once.
        y : array_like, optional
            ``(N,)`` integers, bools or strings: classes; integers are ids from 0, strings are
            numbered in sorted order and kept as names. Floats of any shape: values. A 2-d array
            of 0 and 1: one yes-or-no question per column. Other integers and strings ``(N, ...)``:
            a class at each position, -100 or None where none counts. A dict or tuple of arrays:
            several targets, each of a kind of its own.
        val, test : float, int, tuple or array, optional
            A fraction of all rows, a number of rows, row numbers, a mask, or data of its own:
            ``(X, y)`` or ``(X, y, weight)``. None, 0 and 0.0: no such split.
        batch_size : int
            Samples in a step.
        shuffle : bool
            Whether training sees the rows in a new order every epoch. It decides nothing about
            which rows are held out.
        split : {"random", "time"}, optional
            How rows are drawn where val or test is a fraction or a count. "random" [where training
            is shuffled; else say it]. "time", for time series: the last rows are the test, those
            before them validation, those before these are trained on.
        gap : int
            With ``split="time"``: rows before validation and before the test that are in no split.
            Windows of n rows overlap unless n - 1 are left out.
        stratify : bool or "auto"
            Every class has its share in every split, to within one row. "auto": for classes, when
            each has a row for each split.
        groups : array_like (N,), optional
            Rows of one group (patient, recording, document) never are in two splits; the splits'
            sizes are met as nearly as whole groups allow.
        sample_weight : array_like (N,), optional
            Weights of rows in loss and metrics, at least 0.
        sampler, weights, samples_per_epoch
            As for the class.
        standardize, classes, allow_nonfinite, drop_last, seed, num_workers, pin_memory
            As for the class.
        **unknown
            Refused by name, with the option that is meant.

        Returns
        -------
        DataModule

        Raises
        ------
        ConfigError
            For an option out of its range, or two that contradict.
        DataError
            For lengths that differ, empty data or splits, dtypes that hold no numbers, labels that
            are no class ids. NaN and infinities are found on first use.
        """
        refuse_options(unknown, cls.from_arrays)
        self = cls.__new__(cls)
        self._set_options(
            batch_size, num_workers, pin_memory, shuffle, drop_last, seed, allow_nonfinite
        )
        wanted, scales_targets = read_standardize(standardize)
        table = read_table(X, y, sample_weight, standardize=wanted)
        shares = {"val": val, "test": test}
        own, rows = self._divide(
            table.n, shares, ids_of(table.targets), groups, split, gap, stratify
        )
        parts: dict[str, tuple[Table, Rows | None]] = {"train": (table, rows["train"])}
        for name in ("val", "test"):
            if name in own:
                source = unpack_dataset(own[name], name)
                part = read_table(source.X, source.y, source.weight, prefix=f"{name} ", like=table)
                parts[name] = part, None
            elif rows[name] is not None:
                parts[name] = table, rows[name]
        self._set_splits(parts, wanted, scales_targets)
        self._set_sampling(sampler, weights, samples_per_epoch)
        self._name_classes(classes)
        return self


GraphDataModule = DataModule


def _collate_of(loaded: Loaded, train: Loaded, given: Any) -> Any:
    """What makes the batches of validation or test: their own loader, else what the user gave, else
    what training's loader says of a dataset without one.
    """
    own = loaded.options.get("collate_fn")
    if own is not None or given is not None:
        return given if own is None else own
    return None if "collate_fn" in loaded.options else train.options.get("collate_fn")


def _check_rows(rows: Rows | None, n: int, name: str) -> Rows | None:
    if rows is None:
        return None
    if rows.ndim != 1 or not rows.size:
        raise DataError(f"{name}_dataset: has no rows")
    if rows.min() < 0 or rows.max() >= n:
        bad = rows.min() if rows.min() < 0 else rows.max()
        raise DataError(f"{name}_dataset: row numbers must lie between 0 and {n - 1}, got {bad}")
    return np.ascontiguousarray(rows)
