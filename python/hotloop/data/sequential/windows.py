"""Windows: so many rows of a series that follow each other, as one sample.

An array of windows is a view of its series, whose rows overlap: ``sliding_window_view`` makes it,
the core gathers from the series by the row that a window begins with, and no window is ever copied
but into a batch. Which windows there are is a list of row numbers, as for any split: stride, groups
and a split by time only leave some of them out. A window belongs to a split if all of its rows do,
and the row of its target too, so nothing is learned from rows that a later split is measured on.

Rejected: windows that reach back into the split before them. Their last rows would be as new as
those of others, but rows that a model was fitted on would be part of what it is measured on.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import reject, whole
from hotloop.data.arrays import column_names, pick_columns, read_raw, to_array
from hotloop.data.folds import Fold, Wish, walk_forward
from hotloop.data.partition import divide_rows, is_share, read_groups, rows_apart
from hotloop.data.strides import windows_of
from hotloop.data.targets import read_targets
from hotloop.errors import ConfigError, DataError

__all__ = ["WindowOrigin", "Windows", "read_aligned", "read_normalize", "read_windows"]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]

_SPLITS = ("train", "val", "test")


@dataclasses.dataclass(frozen=True, eq=False)
class WindowOrigin:
    """What windows are drawn from: the rows of a series and their splits.

    Attributes
    ----------
    parts : int64 array (n,)
        The number of the split of every row of the series; -1: in none.
    runs : int64 array
        The row that each group begins with, and the end.
    steps : int64 array (n,) or None
        Numbers of the times of the rows, by which all groups are divided; None: each on its own.
    reach, stride : int
        Rows from a window's first to that of its target, and to the next window's first.
    what : str
        A window in words.
    gap : int
        Rows (times) before a split that is drawn.
    has_test_gap : bool
        Whether the test was drawn.
    pool : int64 array or None
        Windows that there are, by the row that they begin with; None: all.
    ids : integer array or None
        Class ids of windows by the row that they begin with, where there are classes.
    """

    parts: Rows
    runs: Rows
    steps: Rows | None
    reach: int
    stride: int
    what: str
    gap: int
    has_test_gap: bool
    pool: Rows | None = None
    ids: Array | None = None

    @property
    def n(self) -> int:
        """Windows that begin with any row."""
        return len(self.parts) - self.reach

    def windows(self, parts: Rows | None = None) -> dict[str, Rows | None]:
        """First rows of the windows of each split, of these or other splits of the rows."""
        parts = self.parts if parts is None else parts
        found = _choose(self.runs, parts, self.reach, self.stride, self.what)
        if self.pool is None:
            return found
        return {
            name: None if of is None else np.intersect1d(of, self.pool)
            for name, of in found.items()
        }

    def keep(self, rows: Rows) -> WindowOrigin:
        """The same with these windows alone."""
        kept = rows if self.pool is None else np.intersect1d(self.pool, rows)
        return dataclasses.replace(self, pool=kept)

    def fold(self, k: int, wish: Wish) -> Fold:
        """The k-th fold: windows are divided by time.

        Raises
        ------
        ConfigError
            For folds at random.
        DataError
            For a part without a window.
        """
        if wish.how == "random":
            raise ConfigError(
                "split: windows share rows with their neighbours and are divided by time, got "
                "split='random'; leave it out"
            )
        gap = self.gap if wish.gap is None else wish.gap
        parts = np.full(len(self.parts), -1, np.int64)
        if self.steps is not None:
            by_step = np.full(int(self.steps.max()) + 1, -1, np.int64)
            by_step[self.steps] = self.parts
            parts = self._divide(by_step, k, wish.n, gap)[self.steps]
        else:
            for begin, end in itertools.pairwise(self.runs):
                parts[begin:end] = self._divide(self.parts[begin:end], k, wish.n, gap)
        found = self.windows(parts)
        train, val = found["train"], found["val"]
        if train is None or val is None or not len(train) or not len(val):
            raise DataError(
                f"folds: fold {k} of {wish.n} must have windows to train and to validate on, got "
                f"{0 if train is None else len(train)} and {0 if val is None else len(val)}; make "
                "fewer folds"
            )
        return Fold(train, val)

    def _divide(self, parts: Rows, k: int, n: int, gap: int) -> Rows:
        """The splits of a fold of rows (times) in order."""
        test = np.flatnonzero(parts == _SPLITS.index("test"))
        free = rows_apart(
            len(parts), test if len(test) else None, self.gap if self.has_test_gap else 0
        )
        end, begin, stop = walk_forward(len(free), n, gap, "rows")[k]
        made = np.full(len(parts), -1, np.int64)
        made[test] = _SPLITS.index("test")
        made[free[:end]] = _SPLITS.index("train")
        made[free[begin:stop]] = _SPLITS.index("val")
        return made


class Windows(NamedTuple):
    """All windows of a series, and those of each split by the row that they begin with."""

    X: Array
    y: Any
    weight: Array | None
    rows: dict[str, Rows | None]
    origin: WindowOrigin


def read_normalize(value: Any) -> tuple[bool, bool]:
    """Whether inputs are standardised, and whether targets are.

    Raises
    ------
    ConfigError
    """
    known = {None: (False, False), "standard": (True, False), "y": (False, True)}
    known["both"] = (True, True)
    if not (value is None or isinstance(value, str)) or value not in known:
        reject("normalize", "must be 'standard', 'y', 'both' or None", value)
    return known[value]


def read_windows(
    series: Any,
    length: Any,
    horizon: Any,
    stride: Any,
    *,
    target: Any,
    features: Sequence[str] | None,
    time: Any,
    groups: Any,
    weight: Any,
    shares: Mapping[str, Any],
    gap: Any,
    seed: int,
) -> Windows:
    """Reads a series and says which windows there are.

    Parameters
    ----------
    series, length, horizon, stride, target, features, time, groups, gap
        As :meth:`DataModule.from_windows` has them.
    weight
        What it has as sample_weight.
    shares : mapping
        "val" and "test", as for it.
    seed : int

    Raises
    ------
    ConfigError, DataError
    """
    length, horizon = whole(1)("length", length), whole(0)("horizon", horizon)
    stride, gap = whole(1)("stride", stride), whole(0)("gap", gap)
    table, goal, times, grouping, counts = _read_roles(
        series, target, features, {"time": time, "groups": groups, "sample_weight": weight}
    )
    base = to_array(table, "series")
    n = len(base)
    reach = length - 1 + horizon  # rows from a window's first to that of its target
    if n <= reach:
        raise DataError(
            f"series: a window of {length} rows and a horizon of {horizon} need {reach + 1} rows, "
            f"got {n}; give a longer series or a smaller length"
        )
    groups_of = np.zeros(n, np.int64) if grouping is None else read_groups(grouping, n)
    runs = _runs_of(groups_of)
    steps = None if times is None else _read_times(times, runs, n)
    origin = WindowOrigin(
        _divide(runs, steps, n, shares, gap, seed),
        runs,
        steps,
        reach,
        stride,
        f"length {length} and horizon {horizon}",
        gap,
        has_test_gap=is_share(shares.get("test")),
    )
    y = None if goal is None else _read_goal(read_aligned("target", goal, n), reach)
    if counts is not None:
        counts = read_aligned("sample_weight", counts, n)[reach:]
    return Windows(windows_of(base, length)[: n - reach], y, counts, origin.windows(), origin)


def _read_goal(goal: Array, reach: int) -> Any:
    """The targets of windows: those of rows from ``reach`` on, named by their rows in the series.

    What stands before is the target of no window, and need not be one.
    """
    if goal.dtype.kind == "f":
        return goal[reach:]
    before = goal[reach : reach + 1].repeat(reach, axis=0)
    known = read_targets(np.concatenate([before, goal[reach:]]), "y")
    return dataclasses.replace(known, array=known.array[reach:])


# ---- what has which role


def _read_roles(
    series: Any, target: Any, features: Sequence[str] | None, others: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Features, the target and others of a frame by names, or as they were given."""
    if callable(target):
        target = target(series)
    if column_names(series) is None:
        for role, given in {"target": target, **others}.items():
            if isinstance(given, str):
                reject(role, "names a column of a data frame, and the series is none", given)
        if features is not None:
            reject("features", "name columns of a data frame, and the series is none", features)
        return series, target, *others.values()
    goal, aimed = pick_columns(series, "target", target)
    found = [pick_columns(series, role, given) for role, given in others.items()]
    if features is None:
        used = {*aimed, *(name for _, names in found for name in names)}
        features = [name for name in series.columns if name not in used]
    table, _ = pick_columns(series, "features", list(features))
    return table, goal, *(picked for picked, _ in found)


def read_aligned(name: str, given: Any, n: int) -> Array:
    """An array with an entry for each row of a series.

    Raises
    ------
    DataError
    """
    array = read_raw(given, name)
    if array.ndim == 0 or len(array) != n:
        raise DataError(
            f"{name}: must have one entry per row of the series, which has {n}, got shape "
            f"{array.shape}; what is aligned with windows goes through from_arrays"
        )
    return array


def _runs_of(groups: Rows) -> Rows:
    """The row that each group begins with, and the end."""
    begins = np.flatnonzero(np.diff(groups, prepend=-1))
    again = np.flatnonzero(groups[begins] != np.arange(len(begins)))
    if len(again):
        row = int(begins[again[0]])
        raise DataError(
            f"groups: rows of a group must follow each other, got one of an earlier group in row "
            f"{row}; sort the series by group and time"
        )
    return np.append(begins, len(groups)).astype(np.int64)


def _read_times(times: Any, runs: Rows, n: int) -> Rows:
    """Numbers of the times, from the earliest on."""
    array = read_raw(times, "time")
    if array.shape != (n,):
        raise DataError(f"time: must have one entry per row, shape ({n},), got {array.shape}")
    try:
        late = ~(array[1:] > array[:-1])
        numbers = np.unique(array, return_inverse=True)[1].reshape(-1)
    except TypeError as error:
        raise DataError(f"time: must be all numbers, dates or texts ({error})") from error
    late[runs[1:-1] - 1] = False
    if late.any():
        row = int(np.argmax(late)) + 1
        raise DataError(
            f"time: must ascend from row to row{' of a group' if len(runs) > 2 else ''}, got "
            f"{array[row]} in row {row} after {array[row - 1]}; sort the series, drop duplicates, "
            "and give groups where it holds several"
        )
    return numbers.astype(np.int64)


# ---- splits


def _divide(
    runs: Rows, steps: Rows | None, n: int, shares: Mapping[str, Any], gap: int, seed: int
) -> Rows:
    """The number of the split of every row; -1: in none."""
    parts = np.full(n, -1, np.int64)
    if steps is not None:  # all groups are cut at the same times
        return _divide_one(int(steps.max()) + 1, shares, gap, seed)[steps]
    for begin, end in itertools.pairwise(runs):
        parts[begin:end] = _divide_one(int(end - begin), shares, gap, seed)
    return parts


def _divide_one(n: int, shares: Mapping[str, Any], gap: int, seed: int) -> Rows:
    is_drawn = any(is_share(share) for share in shares.values())
    rows = divide_rows(
        n,
        dict(shares),
        ids=None,
        groups=None,
        how="time" if is_drawn else None,
        gap=gap,
        shuffle=True,
        stratify=False,
        seed=seed,
    )
    parts = np.full(n, -1, np.int64)
    for number, name in enumerate(_SPLITS):
        of = rows[name]
        if of is not None:
            parts[of] = number
        elif name == "train":
            parts[:] = number
    return parts


def _choose(runs: Rows, parts: Rows, reach: int, stride: int, what: str) -> dict[str, Rows | None]:
    """First rows of the windows of each split: all their rows are of one group and split."""
    n = len(parts)
    begins = np.zeros(n, np.int64)
    begins[runs[1:-1]] = 1
    pieces = np.cumsum(begins | (np.diff(parts, prepend=parts[0]) != 0))
    first = np.arange(n - reach)
    of_group = first - runs[np.searchsorted(runs, first, side="right") - 1]
    good = (pieces[first] == pieces[first + reach]) & (of_group % stride == 0)
    rows: dict[str, Rows | None] = {}
    for number, name in enumerate(_SPLITS):
        has_rows = bool((parts == number).any())
        found = first[good & (parts[first] == number)]
        if has_rows and not len(found):
            raise DataError(
                f"{name}: its {int((parts == number).sum())} rows hold no window of {what}; give "
                "it more rows, or windows fewer"
            )
        rows[name] = found if has_rows else None
    if rows["train"] is None:
        raise ConfigError("val and test: leave no row to train on; hold out fewer rows")
    return rows
