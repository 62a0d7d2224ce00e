"""Divides rows into train, val and test.

Three ways, one rule for sizes. At random, by a permutation that only the seed decides. Stratified,
so that every class has its share in every split: the table of classes by splits is rounded with
its row and column sums kept, which moves no cell by a whole row. Grouped, so that no group is in
two splits. By time: the last rows are the test, the ones before validation, with a gap before each
where windows of rows overlap, so that training never sees the future of a time series.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.rules import reject, show
from hotloop.base.scalars import plain
from hotloop.data.arrays import read_raw
from hotloop.errors import ConfigError, DataError

__all__ = [
    "apportion",
    "begins_of_groups",
    "divide_rows",
    "draw_some",
    "is_share",
    "read_groups",
    "read_rows",
    "read_share",
    "rows_apart",
]

Rows = npt.NDArray[np.int64]

_STREAM = "split"
_HELD_OUT = ("val", "test")


def divide_rows(
    n: int,
    shares: dict[str, Any],
    *,
    ids: npt.NDArray[Any] | None,
    groups: Rows | None,
    how: str | None,
    gap: int,
    shuffle: bool,
    stratify: bool | str,
    seed: int,
) -> dict[str, Rows | None]:
    """Row numbers of each split.

    Parameters
    ----------
    n : int
        Rows there are.
    shares : dict
        "val" and "test": None or 0, a fraction of n, a count, row numbers, or a mask of n bools.
    ids : integer array (n,) or None
        Class ids, where there are classes.
    groups : int64 array (n,) or None
        Group numbers; a split gets whole groups, its size is met as nearly as they allow.
    how : {"random", "time"} or None
        "time": splits follow each other in the order of the rows. None: "random", where training
        is shuffled; else it has to be said.
    gap : int
        Rows that are in no split, before each that is drawn by time.
    shuffle : bool
        Whether training is.
    stratify : bool or "auto"
        "auto": with classes, at random, without groups, when no class is too rare.
    seed : int

    Returns
    -------
    dict
        "train", "val", "test": ascending row numbers, or None: all rows for "train", no such
        split for the others.

    Raises
    ------
    ConfigError, DataError
        For shares out of range, splits that would be empty, or contradicting wishes.
    """
    stratify = plain(stratify)
    if how not in (None, "random", "time"):
        reject("split", "must be 'random' or 'time'", how)
    if not (isinstance(stratify, bool) or (isinstance(stratify, str) and stratify == "auto")):
        fix = "" if isinstance(stratify, str) else "write stratify=True for the classes of y"
        reject("stratify", "must be True, False or 'auto'", stratify, fix)
    made: dict[str, Rows | None] = dict.fromkeys(("train", *_HELD_OUT))
    sizes: dict[str, int] = {}
    free = np.ones(n, dtype=np.bool_)
    for name in _HELD_OUT:
        share = shares.get(name)
        if share is None or _is_zero(share):
            continue
        if np.ndim(share) or isinstance(share, range):
            made[name] = read_rows(name, share, n)
            taken = made[name]
            if not free[taken].all():
                both = int(np.asarray(taken)[~free[taken]][0])
                raise DataError(f"test: row {both} is in val already; splits must not overlap")
            free[taken] = False
        else:
            sizes[name] = read_share(name, share, n)
    pool = np.flatnonzero(free)
    if gap:
        _check_gap(sizes, how, gap, groups)
    held_back = gap * len(sizes)
    if sum(sizes.values()) + held_back >= len(pool):
        held = " and ".join(f"{name}={show(shares[name])}" for name in shares if name in made)
        held += f" and gap={gap}" if gap else ""
        raise DataError(
            f"{held} of {n} rows leave no row to train on; hold out fewer rows"
            if n > 1
            else f"{held}: one row cannot be divided; leave it out or give more rows"
        )
    if sizes:
        if how is None and not shuffle:
            raise ConfigError(
                "split: shuffle=False is about the order of training alone, got it without split, "
                "which says what rows are held out; write split='time' for the last ones, "
                "split='random' for any"
            )
        by_time = how == "time"
        drawn = _draw(
            pool, sizes, ids, groups, by_time=by_time, gap=gap, stratify=stratify, seed=seed
        )
        made.update(drawn)
        for name in sizes:
            free[made[name]] = False
            if gap:
                free[pool[_rows_before(pool, drawn[name], gap)]] = False
    elif how == "time":
        check_stratify(stratify, ids, is_grouped=groups is not None, by_time=True)
        raise ConfigError(
            "split: says how val and test are drawn, got split='time' without a fraction or count "
            "as val or test; write one, or leave split out (walk-forward folds by time are "
            "data.folds(n, split='time'))"
        )
    if not free.all():
        made["train"] = np.flatnonzero(free)
    if groups is not None:
        _check_groups(made, groups)
    return made


# ---- shares


def is_share(share: Any) -> bool:
    """Whether a split is a fraction or count, to be drawn; not rows, a mask or data of its own."""
    drawn = share is not None and not isinstance(share, (tuple, range)) and not np.ndim(share)
    return bool(drawn) and not _is_zero(share)


def _is_zero(share: Any) -> bool:
    """Whether nothing is to be held out: 0 and 0.0, which False is not."""
    share = plain(share)
    return isinstance(share, (int, float)) and not isinstance(share, bool) and share == 0


def _check_gap(sizes: dict[str, int], how: str | None, gap: int, groups: Rows | None) -> None:
    if how != "time" or not sizes:
        lacking = "a fraction or count as val or test" if how == "time" else "split='time'"
        raise ConfigError(
            f"gap: rows are left out before splits by time, got gap={gap} without {lacking}; write "
            "it, or leave gap out"
        )
    if groups is not None:
        raise ConfigError(
            f"gap: whole groups are not divided by rows, got gap={gap} and groups; leave one out"
        )


def _rows_before(pool: Rows, rows: Rows, gap: int) -> slice:
    """Where in the pool the ``gap`` rows before a split lie."""
    first = int(np.searchsorted(pool, rows[0]))
    return slice(first - gap, first)


def read_share(name: str, share: Any, n: int) -> int:
    """A fraction or count of n rows as a count.

    Raises
    ------
    ConfigError, DataError
        For one out of range.
    """
    share = plain(share)
    if isinstance(share, (bool, str)):
        reject(name, "must be a fraction, a count, a tuple (X, y) or row numbers", share)
    if isinstance(share, int):
        if share < 0:
            reject(name, "a count must be at least 0", share, f"write {name}=None for none")
        if share >= n:
            raise DataError(f"{name}: {share} rows were asked for, there are {n}")
        return int(share)
    if not isinstance(share, float):
        reject(name, "must be a fraction, a count, a tuple (X, y) or row numbers", share)
    if not (math.isfinite(share) and 0.0 < share < 1.0):
        fix = f"write {name}={int(share)} for that many rows" if share >= 1.0 else ""
        reject(name, "a fraction must lie between 0 and 1", share, fix if share < 1e18 else "")
    count = round(float(share) * n)
    if count < 1:
        raise DataError(
            f"{name}: {share:g} of {n} rows is no row; write {name}=1 for one row, or {name}=None"
        )
    return count


def read_rows(name: str, share: Any, n: int, *, is_split: bool = True) -> Rows:
    """Row numbers or a mask of n rows as row numbers, ascending.

    Parameters
    ----------
    name : str
        Of the share, for messages.
    share : array_like
    n : int
    is_split : bool
        Whether the share is that of a split, which may have data of its own.

    Raises
    ------
    DataError
        For numbers out of range, given twice, or none.
    """
    rows = read_raw(share, name)
    if rows.dtype == np.bool_:
        if rows.shape != (n,):
            raise DataError(f"{name}: a mask must have shape ({n},), got {rows.shape}")
        rows = np.flatnonzero(rows)
    if rows.ndim != 1 or (rows.dtype.kind not in "iu" and rows.size):
        fix = f"; write {name}=(X, y) for data of its own" if is_split else ""
        raise DataError(
            f"{name}: row numbers must be a 1-d array of integers, got dtype {rows.dtype} of shape "
            f"{rows.shape}{fix}"
        )
    if not rows.size:
        fix = f"; write {name}=None for no such split" if is_split else ""
        raise DataError(f"{name}: no rows were given{fix}")
    for bad in (rows.min(), rows.max()):
        if not 0 <= bad < n:
            raise DataError(f"{name}: row numbers must lie between 0 and {n - 1}, got {bad}")
    sorted_rows = np.sort(rows.astype(np.int64))
    twice = sorted_rows[1:][sorted_rows[1:] == sorted_rows[:-1]]
    if twice.size:
        raise DataError(f"{name}: row {twice[0]} was given twice")
    return sorted_rows


# ---- drawing


def rows_apart(n: int, test: Rows | None, gap: int) -> Rows:
    """Rows that are not for testing, nor among the ``gap`` ones before the test."""
    free = np.ones(n, dtype=np.bool_)
    if test is None:
        return np.arange(n)
    free[test] = False
    pool = np.flatnonzero(free)
    return np.delete(pool, _rows_before(pool, test, gap)) if gap else pool


def draw_some(
    name: str, share: int | float, n: int, ids: npt.NDArray[Any] | None, seed: int
) -> Rows:
    """A fraction or number of n rows, ascending, drawn at random.

    Parameters
    ----------
    name : str
        Of the share, for messages.
    share : int or float
    n : int
    ids : integer array (n,) or None
        With classes each has its share, to within a row.
    seed : int

    Raises
    ------
    ConfigError, DataError
        For a share out of range.
    """
    share = plain(share)
    if isinstance(share, float) and 0.0 < share <= 1.0:
        count = max(1, round(share * n))
    elif isinstance(share, int) and not isinstance(share, bool) and share > 0:
        count = share
    else:
        reject(name, "must be a fraction above 0, a number of rows, row numbers or a mask", share)
    if count > n:
        raise DataError(f"{name}: {count:,} rows were asked for, there are {n:,}")
    order = _core.permutation(seed, _STREAM, 0, n)
    if ids is None or ids.ndim != 1:
        return np.sort(order[:count])
    by_class = order[np.argsort(ids[order], kind="stable")]
    places = np.arange(n + 1) * count // n  # steps by 1 count times, evenly
    return np.sort(by_class[np.diff(places) > 0])


def _draw(
    pool: Rows,
    sizes: dict[str, int],
    ids: npt.NDArray[Any] | None,
    groups: Rows | None,
    *,
    by_time: bool,
    gap: int,
    stratify: bool | str,
    seed: int,
) -> dict[str, Rows]:
    check_stratify(stratify, ids, is_grouped=groups is not None, by_time=by_time)
    if groups is not None:
        return _draw_groups(pool, sizes, groups[pool], not by_time, seed)
    if by_time:
        return _cut(pool, sizes, gap)
    order = _core.permutation(seed, _STREAM, 0, len(pool))
    if _can_stratify(None if ids is None else ids[pool], len(sizes) + 1, stratify):
        assert ids is not None
        return _draw_classes(pool, sizes, ids[pool], order)
    return _cut(pool[order], sizes)


def check_stratify(
    stratify: bool | str, ids: npt.NDArray[Any] | None, *, is_grouped: bool, by_time: bool
) -> None:
    """Refuses stratify=True where there is nothing to stratify by, or rows are divided otherwise.

    Raises
    ------
    ConfigError
    """
    if stratify is not True:
        return
    if is_grouped:
        raise ConfigError(
            "stratify: whole groups cannot be stratified, got stratify=True and groups; leave one "
            "of them out"
        )
    if by_time:
        raise ConfigError(
            "stratify: splits in the order of the rows cannot be stratified, got stratify=True and "
            "split='time'; leave one of them out"
        )
    if ids is None or ids.ndim != 1:
        raise ConfigError("stratify: needs one class per row in y, got stratify=True")


def _cut(order: Rows, sizes: dict[str, int], gap: int = 0) -> dict[str, Rows]:
    """The last rows of an order: test at the end, val before it, each after a gap."""
    made = {}
    end = len(order)
    for name in reversed(sizes):
        made[name] = np.sort(order[end - sizes[name] : end])
        end -= sizes[name] + gap
    return made


def _can_stratify(ids: npt.NDArray[Any] | None, n_splits: int, stratify: bool | str) -> bool:
    if stratify is False:
        return False
    if ids is None or ids.ndim != 1:
        return False
    values, counts = np.unique(ids, return_counts=True)
    rarest = int(np.argmin(counts))
    if counts[rarest] >= n_splits:
        return True
    if stratify is True:
        raise DataError(
            f"stratify: every class needs a row for each of {n_splits} splits, got class "
            f"{values[rarest]} with {counts[rarest]}; drop it, or write stratify=False"
        )
    return False


def _draw_classes(
    pool: Rows, sizes: dict[str, int], ids: npt.NDArray[Any], order: Rows
) -> dict[str, Rows]:
    _, codes, counts = np.unique(ids, return_inverse=True, return_counts=True)
    codes = codes.reshape(-1)
    table = apportion(counts, np.array([*sizes.values(), len(pool) - sum(sizes.values())]))
    by_class = order[np.argsort(codes[order], kind="stable")]
    starts = np.cumsum(counts) - counts
    place = np.arange(len(pool)) - np.repeat(starts, counts)  # of a row in its class
    made = {}
    begin = np.zeros(len(counts), dtype=np.int64)
    for i, name in enumerate(sizes):
        end = begin + table[:, i]
        inside = (place >= np.repeat(begin, counts)) & (place < np.repeat(end, counts))
        made[name] = np.sort(pool[by_class[inside]])
        begin = end
    return made


def apportion(counts: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> Rows:
    """Whole numbers near ``counts[i] * sizes[j] / n`` with these row and column sums.

    Every cell is its share rounded up or down. Rows are rounded by largest remainders; then cells
    move between columns until the column sums hold, along paths as in a network flow, of which
    there always is one since the shares themselves are a fractional solution.

    Parameters
    ----------
    counts : integer array (C,)
    sizes : integer array (S,)
        Of the same sum n as counts.

    Returns
    -------
    int64 array (C, S)
    """
    counts, sizes = np.asarray(counts, dtype=np.int64), np.asarray(sizes, dtype=np.int64)
    n = int(counts.sum())
    share = counts[:, None] * sizes[None, :]
    down, rest = share // n, share % n
    n_up = counts - down.sum(axis=1)
    rank = np.argsort(np.argsort(-rest, axis=1, kind="stable"), axis=1)
    up = rank < n_up[:, None]
    while True:
        surplus = down.sum(axis=0) + up.sum(axis=0) - sizes
        if not surplus.any():
            return np.asarray(down + up, dtype=np.int64)
        for begin, end in _find_path(up, rest > 0, surplus):
            movable = np.flatnonzero(up[:, begin] & ~up[:, end] & (rest[:, end] > 0))
            best = movable[np.argmax(rest[movable, end] - rest[movable, begin])]
            up[best, begin], up[best, end] = False, True


def _find_path(
    up: npt.NDArray[np.bool_], is_open: npt.NDArray[np.bool_], surplus: Rows
) -> list[tuple[int, int]]:
    """The shortest path of columns along which units move from a surplus to a deficit."""
    source = int(np.argmax(surplus))
    came: dict[int, int] = {}
    queue = [source]
    for column in queue:
        if surplus[column] < 0:
            path = []
            while column != source:
                path.append((came[column], column))
                column = came[column]
            return path[::-1]
        for other in range(up.shape[1]):
            if other == source or other in came:
                continue
            if (up[:, column] & ~up[:, other] & is_open[:, other]).any():
                came[other] = column
                queue.append(other)
    raise AssertionError("the shares are a fractional solution, so there is a whole one")


# ---- groups


def read_groups(groups: Any, n: int, name: str = "groups") -> Rows:
    """Group numbers of the rows, counted in the order in which groups first appear.

    Raises
    ------
    DataError
        If there is not one group per row.
    """
    raw = read_raw(groups, name)
    if raw.shape != (n,):
        raise DataError(f"{name}: must have one entry per row, shape ({n},), got shape {raw.shape}")
    if raw.dtype.kind == "f" and np.isnan(raw).any():
        raise DataError(f"{name}: row {int(np.argmax(np.isnan(raw)))} is NaN; name its group")
    try:
        _, first, codes = np.unique(raw, return_index=True, return_inverse=True)
    except TypeError as error:
        raise DataError(f"{name}: must be all numbers or all strings ({error})") from error
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[codes.reshape(-1)]


def begins_of_groups(groups: Rows, what: str) -> Rows:
    """The places at which groups begin, one after the other.

    Parameters
    ----------
    groups : int64 array (n,)
        Group numbers of rows in the order of time.
    what : str
        What is made of them by time, for the message: "folds".

    Raises
    ------
    DataError
        If a group's rows do not follow each other: no row is then before or after a whole group.
    """
    begins = np.flatnonzero(np.diff(groups, prepend=-1))
    if len(begins) != len(np.unique(groups)):
        raise DataError(
            f"groups: {what} by time need groups whose rows follow each other, got groups that "
            "are mixed; sort the rows by group, or write split='random'"
        )
    return begins


def _draw_groups(
    pool: Rows, sizes: dict[str, int], groups: Rows, shuffle: bool, seed: int
) -> dict[str, Rows]:
    if not shuffle:
        begins_of_groups(groups, "splits")
    names, codes, counts = np.unique(groups, return_inverse=True, return_counts=True)
    codes = codes.reshape(-1)
    if len(names) <= len(sizes):
        raise DataError(
            f"groups: {len(sizes) + 1} splits need as many groups, got {len(names)}; hold out "
            "less or use finer groups"
        )
    order = _core.permutation(seed, _STREAM, 0, len(names)) if shuffle else np.arange(len(names))
    order = order[::-1]
    split_of = np.full(len(names), -1, dtype=np.int64)
    for number, name in enumerate(reversed(sizes)):
        left = len(sizes) - number  # other splits that still need a group each
        free = [int(g) for g in order if split_of[g] < 0]
        chosen = _choose_groups([int(counts[g]) for g in free], sizes[name], shuffle, left)
        split_of[[free[i] for i in chosen]] = number
    return {name: pool[split_of[codes] == number] for number, name in enumerate(reversed(sizes))}


def _choose_groups(counts: list[int], wanted: int, any_order: bool, n_kept: int) -> list[int]:
    """Positions of groups whose rows come near ``wanted``: at least one, leaving n_kept."""
    chosen: list[int] = []
    total = 0
    for i, count in enumerate(counts):
        if len(chosen) == len(counts) - n_kept:
            break
        if abs(total + count - wanted) <= abs(wanted - total):
            chosen.append(i)
            total += count
        elif not any_order:
            break
    return chosen or [int(np.argmin(counts)) if any_order else 0]


def _check_groups(made: dict[str, Rows | None], groups: Rows) -> None:
    """Warns where row numbers given by hand split a group."""
    owner = np.full(int(groups.max()) + 1, -1)
    names = list(made)
    for i, rows in enumerate(made.values()):
        if rows is None:
            continue
        found = np.unique(groups[rows])
        taken = found[owner[found] >= 0]
        if taken.size:
            row = int(rows[np.argmax(groups[rows] == taken[0])])
            raise DataError(
                f"groups: the group of row {row} is in {names[owner[taken[0]]]} and in {names[i]}; "
                "a group must be in one split"
            )
        owner[found] = i
