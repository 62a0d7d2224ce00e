"""Other divisions of the same data: folds of cross-validation, subsets, and whose rows are where.

A fold is a DataModule that shares the arrays and has other row numbers; what is fitted on training
rows (standardisation) or checked is fitted and checked anew. So n folds cost n lists of rows.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import named, warn
from hotloop.base.rules import optional, reject, show, whole
from hotloop.base.scalars import plain
from hotloop.data.checks import check_weights
from hotloop.data.folds import Origin, RowOrigin, Wish
from hotloop.data.partition import (
    divide_rows,
    draw_some,
    is_share,
    read_groups,
    read_rows,
    rows_apart,
)
from hotloop.data.sampling import Sampling, draw_rows, read_sampling
from hotloop.data.sequential.sequences import split_sequences
from hotloop.data.splits import DataSplits
from hotloop.errors import ConfigError, DataError, DataWarning

__all__ = ["FoldedSplits", "Places"]

Rows = npt.NDArray[np.int64]


class Places(NamedTuple):
    """Where samples stand among the rows of the data.

    Attributes
    ----------
    n : int
        Rows of the data, those of all splits.
    last, target : int
        Rows from the first row of a sample to its last and to that of its target; 0 where a row is
        a sample.
    """

    n: int
    last: int
    target: int

    def of(self, first: Rows, at: str) -> Rows:
        """The rows of samples that begin with these.

        Raises
        ------
        ConfigError
        """
        steps = {"first": 0, "last": self.last, "target": self.target}
        if at not in steps:
            reject("at", "must be 'first', 'last' or 'target'", at)
        return first + steps[at]


class FoldedSplits(DataSplits):
    """Splits that can be divided in other ways; :class:`DataModule` has the ways to make them."""

    _origin: Origin | None = None  # what training and validation rows are drawn from
    _buckets: list[int] | None = None  # of sequences: the lengths of all buckets
    _sampling: Sampling | None = None
    _window: tuple[int, int] = (0, 0)  # rows from a sample's first to its last and its target's

    @property
    def places(self) -> Places:
        """Where samples stand among the rows of the data."""
        last, target = self._window
        return Places(self._take_origin("places").n + target, last, target)

    def rows(self, split_name: str, at: str = "first") -> Rows:
        """Which rows of the data a split has, in the order of evaluation and prediction.

        Parameters
        ----------
        split_name : {"train", "val", "test"}
            Which one.
        at : {"first", "last", "target"}
            Of a window, which row of the series: that it begins with, its last one, behind which it
            can be predicted, or that of its target, ``horizon`` rows later.

        Returns
        -------
        int64 array (n,)
            Ascending numbers of rows of X as it was given; of sequences their numbers, of windows
            rows of the series. A split with data of its own has its own numbers, from 0. Those of
            subsets and samplers stand in the order of these.

        Raises
        ------
        ConfigError
            If there is no such split, or no such row of a window.

        Examples
        --------
        Predictions for every row by a model that was not trained on it:

        >>> X, y = hl.load_digits()
        >>> data = hl.DataModule.from_arrays(X, y)
        >>> found = np.zeros(len(X), int)
        >>> for fold in data.folds(3):
        ...     result = hl.train(nn.Linear(64, 10), fold, max_epochs=1)
        ...     rows = fold.rows("val")
        ...     found[rows] = hl.predict(result.model, X[rows], labels=True)
        """
        split = self._require(split_name)
        padding = split.fields[0].padding
        if split.numbers is not None:
            return split.numbers
        if padding is None or padding.sequences is None:
            rows = np.arange(split.n) if split.rows is None else split.rows
            return Places(0, *self._window).of(rows, at)
        if split.rows is None:
            return np.arange(split.n)
        return np.searchsorted(padding.sequences.starts, split.rows).astype(np.int64)

    def fold(self, k: int, n: int, *, split: str | None = None, gap: int | None = None) -> Self:
        """The k-th of n folds: the same data, trained on n - 1 parts and validated on another.

        Parameters
        ----------
        k : int
            From 0 to n - 1.
        n : int
            Folds, 2 at least (by time 1).
        split : {"random", "time"}, optional
            How rows are divided. Without it as the data was made; windows are divided by time.
        gap : int, optional
            With folds by time: rows (times) between training and validation that are in neither.
            Without it that of the data.

        Returns
        -------
        DataModule
            Its training and validation rows are those that were no test rows, which stay as they
            are. At random every one of them validates in one fold; classes (unless
            ``stratify=False``) have their share in each to within a row, groups go whole. By time
            the folds are an expanding walk-forward: the rows are cut into n + 1 blocks, and fold k
            trains on the first k + 1 of them and validates on the next, so that no training row
            is later than a validation row. Of a class with fewer rows than there are folds a
            DataWarning says which folds, counted from 1, cannot validate it.

        Raises
        ------
        ConfigError
            For a k or n out of range, validation data that are no rows of the training data, or
            wishes that contradict.
        DataError
            For fewer rows, groups or windows than folds need.

        Examples
        --------
        >>> X, y = hl.load_digits()
        >>> data = hl.DataModule.from_arrays(X, y, test=197).fold(0, 5)
        >>> len(data.rows("train")), len(data.rows("val")), len(data.rows("test"))
        (1280, 320, 197)
        """
        wish = self._read_wish(n, split, gap)
        made = self._fold(whole(0, wish.n - 1)("k", k), wish)
        self._warn_of_rare_classes(wish)
        return made

    def folds(self, n: int, *, split: str | None = None, gap: int | None = None) -> list[Self]:
        """All n folds of a cross-validation.

        Parameters
        ----------
        n, split, gap
            As for :meth:`fold`.

        Returns
        -------
        list of DataModule
            They share the arrays.

        Raises
        ------
        ConfigError, DataError
            As :meth:`fold`.

        Examples
        --------
        >>> X, y = hl.load_digits()
        >>> data = hl.DataModule.from_arrays(X, y, standardize=True)
        >>> scores = [
        ...     hl.train(nn.Linear(64, 10), fold, max_epochs=1).best_score for fold in data.folds(3)
        ... ]
        """
        wish = self._read_wish(n, split, gap)
        made = [self._fold(k, wish) for k in range(wish.n)]
        self._warn_of_rare_classes(wish)
        return made

    def untrained_classes(self, fold: Self) -> list[Any]:
        """Classes of the training and validation rows that a fold of them does not train on.

        Parameters
        ----------
        fold : DataModule
            Of this one.

        Returns
        -------
        list
            Their names, or ids where they have none; none where targets are no class for each row,
            and of data that was mapped, whose folds go by the classes before.
        """
        ids = self._class_ids()
        if ids is None:
            return []
        known, _ = self._count_classes(ids)
        lacking = np.setdiff1d(known, ids[fold.rows("train")])
        return [self._name_class(i) for i in lacking.tolist()]

    def subset(self, rows: Any) -> Self:
        """The same data with fewer training rows.

        Parameters
        ----------
        rows : float, int or array
            A fraction or number of the training rows, drawn at random by the seed, of each class
            its share; or numbers of training rows, as :meth:`rows` has them, or a mask of all
            rows.

        Returns
        -------
        DataModule
            Validation and test rows are the same; its folds are made of the rows that are left.

        Raises
        ------
        ConfigError, DataError
            For a share out of range, and rows that are no training rows.

        Examples
        --------
        >>> X, y = hl.load_digits()
        >>> data = hl.DataModule.from_arrays(X, y, val=0.2)
        >>> [len(data.subset(share)) for share in (0.1, 0.5, 100)]
        [144, 719, 100]
        """
        origin = self._take_origin("subset")
        train = self.rows("train")
        share = plain(rows)
        if np.ndim(share) or isinstance(share, range):
            kept = read_rows("rows", share, origin.n, is_split=False)
            others = np.setdiff1d(kept, train)
            if len(others):
                raise DataError(f"rows: must be training rows, got {others[0]}, which is none")
        else:
            ids = origin.ids
            of_train = None if ids is None or ids.ndim != 1 else ids[train]
            kept = train[draw_some("rows", share, len(train), of_train, self._seed)]
        made = self._with_rows({"train": kept})
        held = [self.rows("val")] if self._is_shared("val") else []
        made._origin = origin.keep(np.concatenate([kept, *held]))
        return made

    def with_batch_size(self, batch_size: int) -> Self:
        """The same data in batches of another size.

        Parameters
        ----------
        batch_size : int
            Samples in a full batch.

        Returns
        -------
        DataModule
            Shares its arrays. Buckets, where they were found by the size of a batch, stay.

        Examples
        --------
        >>> X, y = hl.load_digits()
        >>> hl.DataModule.from_arrays(X, y).with_batch_size(32).example_batch()["x"]
        ('float32', (32, 64))
        """
        made = copy.copy(self)
        made._batch_size = whole(1)("batch_size", batch_size)
        return made

    # ---- making them

    def _read_wish(self, n: Any, split: Any, gap: Any) -> Wish:
        if split not in (None, "random", "time"):
            reject("split", "must be 'random' or 'time'", split)
        n = whole(1 if split != "random" else 2)("n", n)
        return Wish(n, split, optional(whole(0))("gap", gap), self._seed, self._shuffle)

    def _fold(self, k: int, wish: Wish) -> Self:
        rows = self._take_origin("fold").fold(k, wish)
        return self._with_rows({"train": rows.train, "val": rows.val})

    def _class_ids(self) -> npt.NDArray[Any] | None:
        """By row number, where each has a class by which folds are made."""
        ids = self._take_origin("fold").ids
        return None if ids is None or ids.ndim != 1 or "map" in dict(self.facts) else ids

    def _count_classes(self, ids: npt.NDArray[Any]) -> tuple[Rows, Rows]:
        """Classes of the training and validation rows, and how many of these each has."""
        rows = [self.rows(name) for name in ("train", "val") if name in self._splits]
        known, counts = np.unique(ids[np.concatenate(rows)], return_counts=True)
        return known[known >= 0].astype(np.int64), counts[known >= 0]

    def _name_class(self, i: int) -> Any:
        """By its id."""
        names = self.classes
        if isinstance(names, dict):  # beside other targets
            names = names.get("label")
        return i if names is None else names[i]

    def _warn_of_rare_classes(self, wish: Wish) -> None:
        """Says the same of each of the folds, so that it is said once."""
        ids = self._class_ids()
        if ids is None:
            return
        known, counts = self._count_classes(ids)
        is_rare = counts < wish.n
        if not is_rare.any():
            return
        origin = self._take_origin("fold")
        try:
            validated = [np.unique(ids[origin.fold(k, wish).val]) for k in range(wish.n)]
        except DataError:  # of another fold, which says so where it is asked for
            return
        found = []
        for i, count in zip(known[is_rare].tolist(), counts[is_rare].tolist(), strict=True):
            lacking = [str(k + 1) for k, of in enumerate(validated) if i not in of]
            of = "fold" if len(lacking) == 1 else "folds"
            name = show(plain(self._name_class(i)))
            found.append(f"{count} of class {name} (none in {of} {named(lacking)})")
        warn(
            f"folds: to be in the validation rows of each of {wish.n} folds a class needs as many "
            f"rows, got {named(found)}; the scores of these folds say nothing of it; make fewer "
            "folds, add rows of it, or leave it out",
            DataWarning,
        )

    def _set_sampling(self, sampler: Any, weights: Any, n_draws: Any) -> None:
        """Reads how training rows are drawn, when the splits are there."""
        self._sampling = read_sampling(sampler, weights, n_draws, shuffle=self._shuffle)
        self._draw_training()

    def _draw_training(self) -> None:
        if self._sampling is None:
            return
        split = self._splits["train"]
        ids = None if self._origin is None else self._origin.ids
        n = len(split.fields[0].array) if self._origin is None else self._origin.n
        self._splits["train"] = draw_rows(split, self.rows("train"), self._sampling, ids, n)

    def _divide(
        self,
        n: int,
        shares: Mapping[str, Any],
        ids: npt.NDArray[Any] | None,
        groups: Any,
        how: str | None,
        gap: Any,
        stratify: bool | str,
        among: Rows | None = None,
    ) -> tuple[dict[str, tuple[Any, ...]], dict[str, Rows | None]]:
        """Of "val" and "test" the data of their own; and the rows of each split that is drawn,
        `among` these where not all n are there: then groups are of these, ids of all.
        """
        own = {name: part for name, part in shares.items() if isinstance(part, tuple)}
        count = n if among is None else len(among)
        group_of = None if groups is None else read_groups(groups, count)
        gap = whole(0)("gap", gap)
        rows = divide_rows(
            count,
            {name: part for name, part in shares.items() if name not in own},
            ids=ids if ids is None or among is None else ids[among],
            groups=group_of,
            how=how,
            gap=gap,
            shuffle=self._shuffle,
            stratify=stratify,
            seed=self._seed,
        )
        pool = rows_apart(count, rows["test"], gap if is_share(shares["test"]) else 0)
        if among is not None:
            rows = {name: None if of is None else among[of] for name, of in rows.items()}
            pool = among[pool]
            if group_of is not None:
                of_all = np.full(n, -1, np.int64)  # of rows that are in no part
                of_all[among] = group_of
                group_of = of_all
        self._origin = RowOrigin(n, pool, ids, group_of, how, gap, stratify)
        return own, rows

    def _take_origin(self, what: str) -> Origin:
        if self._origin is None:
            raise ConfigError(f"{what}: this data cannot be divided again")
        if what == "fold" and "val" in self._splits and not self._is_shared("val"):
            raise ConfigError(
                "fold: validates on rows of the training data, got validation data of its own; "
                "put both into one X and y, or leave val out"
            )
        return self._origin

    def _is_shared(self, name: str) -> bool:
        """Whether there is such a split, and its rows are rows of the training data."""
        if name not in self._splits:
            return False
        first, other = (self._splits[key].fields[0] for key in ("train", name))
        if first.series is not None:
            return other.series is first.series
        return other.array is first.array

    def _with_rows(self, rows: Mapping[str, Rows]) -> Self:
        """The same data with other rows in some splits."""
        like = self._splits["train"]
        splits = dict(self._splits)
        for name, numbers in rows.items():
            if self._buckets is None:
                splits[name] = like.take(numbers)
            else:
                splits[name] = split_sequences(like.fields, numbers, self._buckets)
        made = copy.copy(self)
        made._splits = {name: splits[name] for name in ("train", "val", "test") if name in splits}
        made._targets = dict(self._targets)
        made._good = list(self._good)
        made._checked = {name for name in self._checked if name not in rows}
        made._transforms = None
        if "train" in rows:
            made._draw_training()
        standardized = {field.name for field in self._standardized}
        made._standardized = [f for f in splits["train"].fields if f.name in standardized]
        for name in rows:
            for field in splits[name].fields:
                if field.name == "weight":
                    check_weights(field, splits[name].rows, name)
        return made
