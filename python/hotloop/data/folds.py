"""Folds of cross-validation: which rows train and which validate, k times over.

What can be divided is an origin: the rows that training and validation are drawn from, with their
classes, groups or times. Test rows are in none. At random, every row validates once: the rows of a
class follow each other in an order that only the seed decides, and are dealt to the folds in turn,
so that neither a fold's size nor a class's share of it is off by a whole row. Groups go whole, the
largest first, each to the fold with the fewest rows.

In the order of time a model may not see what comes after its validation rows. There the rows are
cut into one block more than there are folds; fold k trains on all blocks up to the k-th, less the
gap, and validates on the next one (expanding walk-forward). Windows always are divided so, since
neighbours share rows.

Rejected: time-ordered folds that train on later blocks too (blocked cross-validation), which is
what shuffled folds do to a series: it measures how well the past is known from the future.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.messages import counted
from hotloop.base.rules import reject
from hotloop.data.partition import begins_of_groups, check_stratify
from hotloop.errors import ConfigError, DataError

__all__ = ["Fold", "Origin", "RowOrigin", "Wish", "walk_forward"]

Rows = npt.NDArray[np.int64]

_STREAM = "folds"


class Fold(NamedTuple):
    """Row numbers of a fold, in the order of the data."""

    train: Rows
    val: Rows


class Wish(NamedTuple):
    """How folds are to be made.

    Attributes
    ----------
    n : int
        How many.
    how : str or None
        "random" or "time"; None: as the data was divided.
    gap : int or None
        Rows between training and validation by time; None: as there.
    seed : int
    shuffle : bool
        Whether training is.
    """

    n: int
    how: str | None
    gap: int | None
    seed: int
    shuffle: bool


class Origin(Protocol):
    """What training and validation rows are drawn from."""

    @property
    def n(self) -> int:
        """Rows that there are, with those for testing."""

    @property
    def ids(self) -> npt.NDArray[Any] | None:
        """Class ids by row number, where there are classes."""

    def fold(self, k: int, wish: Wish) -> Fold:
        """The k-th fold."""

    def keep(self, rows: Rows) -> Self:
        """The same with these rows alone."""


@dataclasses.dataclass(frozen=True, eq=False)
class RowOrigin:
    """Rows that are samples.

    Attributes
    ----------
    n : int
        Rows that there are.
    pool : int64 array
        Numbers of the rows that are not for testing, ascending; of a subset in its order.
    ids : integer array (N,) or None
        Class ids of all rows.
    groups : int64 array (N,) or None
        Group numbers of all rows.
    how : str or None
        "random", "time", or None where it was not said.
    gap : int
    stratify : bool or "auto"
    sources : int64 array (N,) or None
        Of a subset that makes samples, which of its dataset each is; None: all are different.
    """

    n: int
    pool: Rows
    ids: npt.NDArray[Any] | None = None
    groups: Rows | None = None
    how: str | None = None
    gap: int = 0
    stratify: bool | str = "auto"
    sources: Rows | None = None

    def keep(self, rows: Rows) -> RowOrigin:
        """The same with these rows alone."""
        return dataclasses.replace(self, pool=self.pool[np.isin(self.pool, rows)])

    def check_once(self, what: str) -> None:
        """Refuses to divide rows of which one is there twice, and might be in two parts.

        Raises
        ------
        DataError
        """
        rows = np.sort(self.pool if self.sources is None else self.sources[self.pool])
        twice = rows[1:][rows[1:] == rows[:-1]]
        if twice.size:
            raise DataError(
                f"{what}: a row may be in one part, got row {twice[0]} twice among the training "
                "rows"
            )

    def fold(self, k: int, wish: Wish) -> Fold:
        """The k-th fold.

        Raises
        ------
        ConfigError
            For wishes that contradict.
        DataError
            For fewer rows or groups than folds need.
        """
        how = wish.how or self.how
        if how is None and not wish.shuffle:
            raise ConfigError(
                "split: shuffle=False is about the order of training alone, got folds without "
                "split; write split='time' for walk-forward folds, split='random' for any rows"
            )
        self.check_once("folds")
        is_grouped = self.groups is not None
        check_stratify(self.stratify, self.ids, is_grouped=is_grouped, by_time=how == "time")
        if how == "time":
            gap = self.gap if wish.gap is None else wish.gap
            return self._fold_by_time(k, wish.n, gap)
        if wish.gap:
            raise ConfigError(
                f"gap: is between folds by time, got gap={wish.gap} with folds at random; write "
                "split='time', or leave gap out"
            )
        if wish.n < 2:
            reject("n", "folds at random must be 2 at least", wish.n)
        numbers = self._deal_groups(wish) if is_grouped else self._deal(wish)
        return Fold(self.pool[numbers != k], self.pool[numbers == k])

    # ---- at random

    def _deal(self, wish: Wish) -> Rows:
        """The fold of each row of the pool."""
        n = len(self.pool)
        if n < wish.n:
            raise DataError(f"folds: {wish.n} folds need as many rows, got {n} that are no test")
        order = _core.permutation(wish.seed, _STREAM, 0, n)
        if self.ids is not None and self.ids.ndim == 1 and self.stratify is not False:
            order = order[np.argsort(self.ids[self.pool][order], kind="stable")]
        numbers = np.empty(n, np.int64)
        numbers[order] = np.arange(n) % wish.n
        return numbers

    def _deal_groups(self, wish: Wish) -> Rows:
        assert self.groups is not None
        names, codes, counts = np.unique(
            self.groups[self.pool], return_inverse=True, return_counts=True
        )
        if len(names) < wish.n:
            raise DataError(f"groups: {wish.n} folds need as many groups, got {len(names)}")
        order = _core.permutation(wish.seed, _STREAM, 0, len(names))
        fold_of = np.empty(len(names), np.int64)
        sizes = np.zeros(wish.n, np.int64)
        for group in order[np.argsort(-counts[order], kind="stable")]:
            fold_of[group] = np.argmin(sizes)
            sizes[fold_of[group]] += counts[group]
        return fold_of[codes.reshape(-1)]

    # ---- by time

    def _fold_by_time(self, k: int, n: int, gap: int) -> Fold:
        if self.groups is None:
            end, begin, stop = walk_forward(len(self.pool), n, gap, "rows")[k]
            return Fold(self.pool[:end], self.pool[begin:stop])
        if gap:
            raise ConfigError(
                f"gap: whole groups are not divided by rows, got gap={gap} and groups; leave one "
                "out"
            )
        groups = self.groups[self.pool]
        begins = begins_of_groups(groups, "folds")
        edges = np.append(begins, len(groups))
        cut = walk_forward(len(begins), n, 0, "groups")[k]
        end, begin, stop = (int(edges[i]) for i in cut)
        return Fold(self.pool[:end], self.pool[begin:stop])


def walk_forward(n: int, n_folds: int, gap: int, what: str) -> list[tuple[int, int, int]]:
    """Expanding walk-forward: where each fold's training ends, and validation begins and ends.

    Parameters
    ----------
    n : int
        Rows in the order of time.
    n_folds, gap : int
    what : str
        "rows", for messages.

    Returns
    -------
    list of (int, int, int)
        Validation has ``n // (n_folds + 1)`` rows in each; the first training part has the rest.

    Raises
    ------
    DataError
        If a part would be empty.

    Examples
    --------
    >>> walk_forward(11, 3, 1, "rows")
    [(4, 5, 7), (6, 7, 9), (8, 9, 11)]
    """
    size = n // (n_folds + 1)
    begins = range(n - n_folds * size, n, size) if size else range(0)
    if not size or begins[0] - gap < 1:
        raise DataError(
            f"folds: {counted(n_folds, 'fold')} by time need {n_folds + 1} blocks of {what}, the "
            f"first of which is longer than gap={gap}, got {n:,} {what} that are no test"
        )
    return [(begin - gap, begin, end) for begin, end in itertools.pairwise([*begins, n])]
