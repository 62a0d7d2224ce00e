"""Episodes for few-shot learning: of a category some rows as support, others as queries.

An episode is a row that is made when a batch needs it: which categories and which of their rows is
a function of (seed, epoch, number of the episode), so that any number of threads gives the same
ones, and validation the same ones always. Rows are taken from the fields of another DataModule, in
memory or made themselves; nothing is copied but into a batch.

Rejected: a list of episodes drawn ahead, which costs memory and repeats itself each epoch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.messages import counted, named
from hotloop.base.rules import choice, reject, show, whole
from hotloop.base.scalars import plain
from hotloop.data.auto_workers import AutoWorkers
from hotloop.data.contents import digest_rows, digest_texts
from hotloop.data.folding import FoldedSplits
from hotloop.data.options import refuse_options
from hotloop.data.partition import read_groups
from hotloop.data.split import Field, Split
from hotloop.data.streams import gather_streams, make_streams
from hotloop.data.tables import Table
from hotloop.data.targets import Targets, name_of_target
from hotloop.errors import ConfigError, DataError

__all__ = ["EpisodeData"]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]


class _Episodes:
    """The episodes of a split.

    Parameters
    ----------
    split : Split
        Whose rows they are of.
    categories : array (n,)
        Names or numbers of those of its rows.
    counts : (int, int, int)
        Categories of an episode, and rows of each as support and as queries.
    seed : int
    name : str
        Of the split.
    skips : bool
        Whether categories with too few rows are left out.

    Raises
    ------
    DataError
        For categories with too few rows, or too few categories.
    """

    def __init__(
        self,
        split: Split,
        categories: Array,
        counts: tuple[int, int, int],
        seed: int,
        name: str,
        *,
        skips: bool,
    ) -> None:
        self.ways, self.support, self.query = counts
        self._seed, self._stream = seed, f"episodes/{name}"
        self.fields = [field for field in split.fields if field.name != "weight"]
        rows = np.arange(split.n) if split.rows is None else split.rows
        least = self.support + self.query
        names, codes = np.unique(categories, return_inverse=True)
        order = np.argsort(codes, kind="stable")
        found = np.split(rows[order], np.cumsum(np.bincount(codes))[:-1])
        small = [
            f"{len(each)} of category {show(plain(category))}"
            for category, each in zip(names, found, strict=True)
            if len(each) < least
        ]
        self._rows = [each for each in found if len(each) >= least]
        if small and not skips:
            raise DataError(
                f"{name}: each category must have {counted(least, 'row')} at least, {self.support} "
                f"for the support and {self.query} for queries, got {named(small)}; take fewer "
                "rows, add some, or write on_small_category='skip', which draws no episodes of "
                "such categories"
            )
        if len(self._rows) < self.ways:
            raise DataError(
                f"{name}: an episode needs {counted(self.ways, 'category', 'categories')} of "
                f"{counted(least, 'row')} at least, got {len(self._rows)} of {len(found)}; take "
                "fewer rows"
            )

    def draw(self, number: int, epoch: int) -> tuple[Rows, Rows, Rows]:
        """Rows of an episode, their categories' numbers in it, and their categories: the support of
        each category in turn, then the queries in any order, so that where one stands does not say
        what it is.
        """
        n, at = len(self._rows), epoch * 2**32 + number
        chosen = _core.permutation(self._seed, self._stream, at, n)[: self.ways]
        support, query = [], []
        for way, category in enumerate(chosen):
            rows = self._rows[category]
            order = _core.permutation(self._seed, f"{self._stream}/{way}", at, len(rows))
            support.append(rows[order[: self.support]])
            query.append(rows[order[self.support : self.support + self.query]])
        mixed = _core.permutation(self._seed, f"{self._stream}/order", at, self.ways * self.query)
        ways = [np.repeat(np.arange(self.ways), k) for k in (self.support, self.query)]
        rows = np.concatenate([*support, np.concatenate(query)[mixed]])
        numbers = np.concatenate([ways[0], ways[1][mixed]])
        return rows, numbers, chosen[numbers]

    def _gather(
        self, rows: Rows, categories: Rows, epoch: int, is_training: bool
    ) -> dict[int, Array]:
        """Rows of the fields that are made batch by batch. What stands in the place of a bad one is
        of its category.
        """
        gathered: dict[int, Array] = {}
        if all(field.stream is None for field in self.fields):
            return gathered
        arrays = [field.array for field in self.fields]
        for category in np.unique(categories):
            at = np.flatnonzero(categories == category)
            peers = self._rows[category]
            for i, made in gather_streams(arrays, rows[at], epoch, is_training, peers).items():
                if i not in gathered:
                    gathered[i] = np.empty((len(rows), *made.shape[1:]), made.dtype)
                gathered[i][at] = made
        return gathered

    def digest(self) -> str:
        """By what the episodes are known again: the rows that they are drawn from."""
        return digest_texts(
            *(digest_rows(rows) for rows in self._rows),
            *(field.digest() for field in self.fields),
        )

    def make(
        self, numbers: Rows, epoch: int, is_training: bool, peers: Rows | None = None
    ) -> list[Array]:
        """The fields of some episodes; called by several threads."""
        epoch = epoch if is_training else 0
        drawn = [self.draw(int(number), epoch) for number in numbers]
        rows, ways, categories = (np.concatenate(part) for part in zip(*drawn))
        gathered = self._gather(rows, categories, epoch, is_training)
        n, n_support = len(numbers), self.ways * self.support
        made: list[Array] = []
        for i, field in enumerate(self.fields):
            values = (
                gathered[i].astype(field.dtype, copy=False)
                if i in gathered
                else _core.gather_rows(field.source[0], rows, field.dtype, field.source[1])
            )
            if self.ways > 1 and not field.is_input:
                values = ways
            of_episode = values.reshape(n, -1, *values.shape[1:])
            made += [
                np.ascontiguousarray(of_episode[:, :n_support]),
                np.ascontiguousarray(of_episode[:, n_support:]),
            ]
        return made

    def table(self, n: int, targets: dict[str, Targets]) -> Table:
        """n episodes of an epoch, as rows."""
        types = [
            (field.dtype, (self.ways * k, *field.shape))
            for field in self.fields
            for k in (self.support, self.query)
        ]
        streams = make_streams(n, types, self.make, self.digest)
        inputs: list[Field] = []
        goals: list[Field] = []
        known: dict[str, Targets] = {}
        for i, field in enumerate(self.fields):
            support, query = streams[2 * i], streams[2 * i + 1]
            head, _, key = field.name.partition(".")
            end = f"_{key or 'y'}" if head == "y" else f"_{key}" if key else ""
            inputs.append(
                Field(f"x.support{end}", support, field.dtype, f"support of {field.label}")
            )
            if field.is_input:
                inputs.append(Field(f"x.query{end}", query, field.dtype, f"query of {field.label}"))
                continue
            goals.append(Field(field.name, query, field.dtype, field.label))
            name = name_of_target(field.name) or ""
            target = dataclasses.replace(targets[name], array=query)
            if self.ways > 1:
                target = Targets(query, "class", "int64", None, self.ways)
            known[name] = target
        return Table((*inputs, *goals), known, n)


class EpisodeData(FoldedSplits):
    """A way to make a :class:`DataModule` of episodes."""

    @classmethod
    def episodes(
        cls,
        source: FoldedSplits,
        support: int = 1,
        query: int = 2,
        *,
        by: Any = "y",
        ways: int = 1,
        n: int = 1000,
        n_val: int = 100,
        n_test: int = 100,
        on_small_category: str = "raise",
        batch_size: int = 2,
        drop_last: bool = False,
        seed: int = 42,
        num_workers: int | str = "auto",
        pin_memory: bool | str = "auto",
        **unknown: Any,
    ) -> Self:
        """A DataModule of episodes for few-shot learning, drawn from the rows of another.

        Parameters
        ----------
        source : DataModule
            Each of its splits gives the rows of that split's episodes. Categories that none trains
            on are held out by ``groups`` where it is made.
        support, query : int
            Rows of each category in an episode that are given with their targets, and that are
            asked for.
        by : "y" or array_like (N,)
            The categories: classes of the source's y, or of all its rows, as ``rows`` numbers them;
            not where a split has data of its own.
        ways : int
            Categories of an episode, all as likely. With several the targets are their numbers
            within the episode, from 0; with one the targets of the rows.
        n, n_val, n_test : int
            Episodes of an epoch, of a validation and of a test.
        on_small_category : {"raise", "skip"}
            What becomes of a category that has fewer rows in a split than an episode takes of it:
            an error with its name, or no episode has it there.
        batch_size : int
            Episodes in a step.
        drop_last, seed, num_workers, pin_memory
            As for the class. Each epoch draws other episodes; validation the same always.
        **unknown
            Refused by name, with the option that is meant.

        Returns
        -------
        DataModule
            Forward gets a dict: "support" ``(batch, ways * support, ...)``, category by category,
            and "query" ``(batch, ways * query, ...)``, in any order; where X is a dict
            "support_<column>" and "query_<column>"; and "support_y", the targets of the support.
            The targets are those of the queries, ``(batch, ways * query, ...)``.

        Raises
        ------
        ConfigError
            For an option out of its range, sequences of several lengths, targets that are
            standardised, several ways without y, ``by`` as an array beside a split with data of its
            own.
        DataError
            For a ``by`` that has not one entry for each row, for categories with too few rows, and
            for a split with fewer categories than an episode needs.

        Examples
        --------
        >>> X, y = hl.load_digits()
        >>> digits = hl.DataModule.from_arrays(X, y, groups=y, val=0.2)  # other digits validate
        >>> data = hl.DataModule.episodes(digits, 5, 3, ways=2, n=200, batch_size=4)
        >>> batch = next(data.train_batches())
        >>> batch["x"]["support"].shape, batch["x"]["query"].shape, batch["y"].shape
        ((4, 10, 64), (4, 6, 64), (4, 6))
        """
        refuse_options(unknown, cls.episodes)
        if not isinstance(source, FoldedSplits):
            reject("source", "must be a DataModule", source)
        self = cls.__new__(cls)
        self._set_options(batch_size, num_workers, pin_memory, True, drop_last, seed, False)
        counts = (whole(1)("ways", ways), whole(1)("support", support), whole(1)("query", query))
        sizes = {"train": whole(1)("n", n), "val": whole(0)("n_val", n_val)}
        sizes["test"] = whole(0)("n_test", n_test)
        skips = choice("raise", "skip")("on_small_category", on_small_category) == "skip"
        targets = source.targets
        _check_source(source, counts[0])
        parts: dict[str, tuple[Table, Rows | None]] = {}
        for name, size in sizes.items():
            split = source.split(name)
            if split is None or not size:
                continue
            source.check(name)
            categories = _read_categories(source, name, split, by)
            made = _Episodes(split, categories, counts, self._seed, name, skips=skips)
            parts[name] = made.table(size, targets), None
        self._auto = AutoWorkers(1, is_python=True, enter=source._auto.enter)
        self._is_random = True
        self._set_splits(parts, False, False)
        fitted = source.transforms
        if fitted:
            self._fixed = [
                (how, {name: _for_episodes(values) for name, values in _renamed(fields)})
                for how, fields in fitted
            ]
        return self


def _check_source(source: FoldedSplits, ways: int) -> None:
    split = source.split("train")
    assert split is not None  # DataModule always has training rows
    if any(field.padding is not None for field in split.fields):
        raise ConfigError("source: sequences of several lengths make no episodes")
    if split.buckets:
        raise ConfigError("source: images of several shapes make no episodes; give one size")
    if split.numbers is not None:
        raise ConfigError(
            "source: a sampler may give other samples in each epoch, got a loader with one of its "
            "own; give its dataset, or a subset"
        )
    if any(field.name == "weight" for field in split.fields):
        raise ConfigError("source: rows of episodes have no sample_weight; leave it out")
    if any(name.partition(".")[0] == "y" for _, fields in source.transforms for name in fields):
        raise ConfigError("source: targets of episodes cannot be standardised; scale y beforehand")
    if ways > 1 and set(source.targets) != {""}:
        raise ConfigError(
            f"ways: with several the target is the category, of a source with one y, got "
            f"{counted(len(source.targets), 'target')}"
        )
    if ways > 1 and source.targets[""].dtype != "int64":
        raise ConfigError(
            f"ways: with several the target is the category, got {source.target_kind} targets; "
            "give y as classes"
        )
    if ways > 1 and source.targets[""].array.ndim != 1:
        raise ConfigError("ways: with several y must have one class for each row, got one of more")


def _read_categories(source: FoldedSplits, name: str, split: Split, by: Any) -> Array:
    """The category of each row of a split, by its name where it has one."""
    if isinstance(by, str):
        field = next((field for field in split.fields if field.name == "y"), None)
        if by != "y":
            reject("by", "must be 'y' or an array of categories", by)
        if (
            field is None
            or field.stream is not None
            or field.array.ndim != 1
            or (field.dtype != "int64")
        ):
            raise ConfigError("by: 'y' needs one class for each row in y; give by=categories")
        ids = np.asarray(field.array if split.rows is None else field.array[split.rows], np.int64)
        return ids if source.classes is None else np.asarray(source.classes)[ids]
    if name != "train" and not source._is_shared(name):
        raise ConfigError(
            f"by: has the categories of the rows that training is of, and {name} has data of its "
            f"own, whose rows are others; put both into one X and y with {name}= row numbers, or "
            f"give the categories as y, or write n_{name}=0"
        )
    n = len(split.fields[0].array) if source._origin is None else source.places.n
    read_groups(by, n, "by")  # refuses what has no category for each row
    return np.asarray(by)[source.rows(name)]


def _renamed(fields: dict[str, tuple[Any, Any]]) -> Sequence[tuple[str, tuple[Any, Any]]]:
    """Transforms of inputs as those of support and queries."""
    found = []
    for name, values in fields.items():
        key = name.partition(".")[2]
        end = f"_{key}" if key else ""
        found += [(f"x.support{end}", values), (f"x.query{end}", values)]
    return found


def _for_episodes(values: tuple[Any, Any]) -> tuple[Any, Any]:
    """Mean and deviation of a row for episodes of them."""
    mean, std = (np.asarray(value, np.float32)[None] for value in values)
    return mean, std
