"""Learns of a table's training rows how its columns are encoded.

Everything that is learnt looks at the training rows alone; the other rows decide at most that a
number to fill in is needed at all, and never which.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.messages import named, warn
from hotloop.base.rules import reject, show
from hotloop.base.suggest import name_missing
from hotloop.data.frames.columns import Column, Frame, in_threads
from hotloop.data.frames.encoding import NUMBERS, Encoding, Feature
from hotloop.data.targets import Targets
from hotloop.errors import ConfigError, DataError, DataWarning

__all__ = ["Wishes", "encode_training", "fit_encoding", "read_wishes"]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]

_HOW = ("onehot", "ids", "target")
_MISSING = ("auto", "fill", "indicator", "raise")
_MOST_ONE_HOT = 64  # categories that "auto" makes columns of
_MANY = 2**16
_SAMPLE = 4096
_LARGEST_EXACT = 2**24
_SMOOTHING = 10.0  # rows that the mean of all counts as, beside those of a category
_FOLDS = 5
_STREAM = "target folds"


class Wishes(NamedTuple):
    """What the user said of columns."""

    categorical: str | Mapping[str, str]
    missing: str
    unseen: str
    keeps_nan: bool
    is_quiet: bool = False  # what is learnt was told already

    def how(self, name: str) -> str:
        """What a column of categories becomes: "auto" or one of the ways."""
        if isinstance(self.categorical, str):
            return self.categorical
        return self.categorical.get(name, "auto")

    @property
    def named(self) -> set[str]:
        """Columns that are categories because the user says so."""
        return set() if isinstance(self.categorical, str) else set(self.categorical)


def read_wishes(categorical: Any, missing: Any, unseen: Any, allow_nonfinite: bool) -> Wishes:
    """Reads the options.

    Raises
    ------
    ConfigError
        For one that is out of its range.
    """
    ways = ("auto", *_HOW)
    if isinstance(categorical, Mapping):
        for name, how in categorical.items():
            if how not in ways:
                reject(f"categorical[{name!r}]", f"must be one of {', '.join(ways)}", how)
        categorical = {str(name): str(how) for name, how in categorical.items()}
    elif not isinstance(categorical, str) or categorical not in ways:
        fix = "write {name: how} for columns" if isinstance(categorical, list | tuple) else ""
        rule = f"must be one of {', '.join(ways)}, or a dict of them by column"
        reject("categorical", rule, categorical, fix)
    if missing not in _MISSING:
        reject("missing", f"must be one of {', '.join(_MISSING)}", missing)
    if unseen not in ("warn", "raise"):
        reject("unseen", "must be 'warn' or 'raise'", unseen)
    return Wishes(categorical, missing, unseen, bool(allow_nonfinite) and missing == "auto")


def fit_encoding(
    frame: Frame,
    names: list[str],
    rows: Rows | None,
    wishes: Wishes,
    targets: Mapping[str, Targets],
    label: str = "X",
) -> Encoding:
    """The encoding of a table's columns.

    Parameters
    ----------
    frame : Frame
    names : list of str
        Of the columns that forward takes, in order.
    rows : int64 array or None
        The training rows; None: all.
    wishes : Wishes
    targets : mapping of str to Targets
        For ``categorical="target"``.
    label : str
        For messages.

    Raises
    ------
    ConfigError
        For a column that is not there, and ways to encode that do not fit.
    DataError
        For columns that hold nothing, texts among numbers, too many categories.
    """
    unknown = sorted(wishes.named - set(names))
    if unknown:
        raise ConfigError(
            f"categorical: must name columns of X, got none for {name_missing(unknown, names)}"
        )
    if not frame.n:
        raise DataError(f"{label}: has no rows")

    def fit(name: str) -> Feature:
        column = frame.column(name)
        if name in wishes.named:
            column = column.as_category
        if column.kind == "category":
            return _fit_category(column, rows, wishes, targets, frame, label)
        return _fit_number(column, rows, wishes, frame, label)

    features = tuple(in_threads(fit, names, frame.n))
    if any(feature.how == "ids" for feature in features) and NUMBERS in names:
        raise ConfigError(
            f"categorical: with ids {NUMBERS!r} is all columns of numbers, got a column of that "
            "name; rename it"
        )
    if wishes.is_quiet:
        return Encoding(features, wishes.unseen == "raise")
    for feature in features:  # a thread does not know the user's line
        if feature.kind == "number":
            _warn_of_rounding(frame.column(feature.name), label)
    if wishes.missing == "auto":
        _warn_of_missing(features, label)
    return Encoding(features, wishes.unseen == "raise")


def _warn_of_missing(features: tuple[Feature, ...], label: str) -> None:
    filled = [f for f in features if f.fill is not None]
    if filled:
        listed = [f"{f.name!r} (median {f.fill:g}, {f.n_filled:,} training rows)" for f in filled]
        warn(
            f"{label}: missing numbers are filled with the training median, in "
            f"{named(listed)}; write missing='fill' if that is meant, missing='indicator' for a "
            "column more that says where, or missing='raise'",
            DataWarning,
        )


# ---- numbers and dates


def _fit_number(
    column: Column, rows: Rows | None, wishes: Wishes, frame: Frame, label: str
) -> Feature:
    assert column.values is not None  # it is no category
    missing = column.missing
    lost = _among(missing, rows)
    if wishes.missing == "raise" and missing.size:
        _refuse_missing(column, frame, label)
    feature = Feature(column.name, column.kind, n_filled=len(lost), keeps_nan=wishes.keeps_nan)
    if len(lost) == (len(column.values) if rows is None else len(rows)):
        raise DataError(
            f"{label}: column {column.name!r}: no training row has a value; leave it out"
        )
    fills = wishes.missing in ("fill", "indicator")
    if not wishes.keeps_nan and (fills or missing.size):
        values = column.values if rows is None else column.values[rows]
        median = find_median(values, len(values) - len(lost))
        if not np.isfinite(median):
            raise DataError(
                f"{label}: column {column.name!r}: what is missing becomes the median of the "
                f"training rows, got {median}; make infinite values missing or leave it out"
            )
        feature = dataclasses.replace(feature, fill=median)
    if column.kind == "date":
        values = column.values if rows is None else column.values[rows]
        feature = dataclasses.replace(feature, origin=float(np.floor(np.nanmin(values))))
    has_indicator = wishes.missing == "indicator" and len(lost) > 0
    return dataclasses.replace(feature, has_indicator=has_indicator)


def find_median(values: Array, n: int) -> float:
    """The median of the ``n`` values that are not NaN, at least one.

    Values between two that some thousand of them put around the middle are sorted out first, which
    is a few plain passes in place of a partition of everything: three times as fast.
    """
    middle = (n - 1) // 2, n // 2  # in ascending order
    if len(values) > _MANY:
        some = values[:: len(values) // _SAMPLE].astype(np.float64)
        some = np.sort(some[~np.isnan(some)])  # without any, all is ordered below
        low, high = some[[int(0.45 * len(some)), int(0.55 * len(some))]] if len(some) else (0, 0)
        n_below = int(np.count_nonzero(values < low))
        near = values[(values >= low) & (values <= high)]
        if n_below <= middle[0] and middle[1] < n_below + len(near):
            values, middle = near, (middle[0] - n_below, middle[1] - n_below)
    ordered = np.partition(values, sorted(set(middle)))  # NaN comes last
    return float(ordered[middle[0]]) / 2 + float(ordered[middle[1]]) / 2


def _warn_of_rounding(column: Column, label: str) -> None:
    """Warns of integers that float32 does not tell apart: ids and times, mostly."""
    values = column.values
    if values is None or values.dtype.kind not in "iu" or values.dtype.itemsize < 4:
        return
    largest = max(abs(int(values.min())), abs(int(values.max())))
    if largest > _LARGEST_EXACT:
        warn(
            f"{label}: column {column.name!r}: float32 holds integers up to {_LARGEST_EXACT:,} "
            f"exactly, got {largest:,}; leave it out if it names rows, write "
            f"categorical={{{column.name!r}: 'ids'}} if it names things, or make it smaller, "
            "frame.x - frame.x.min()",
            DataWarning,
        )


def _among(found: Rows, rows: Rows | None) -> Rows:
    """Those of some row numbers that are training rows."""
    if rows is None or not found.size:
        return found
    return np.intersect1d(found, rows, assume_unique=True)


def _refuse_missing(column: Column, frame: Frame, label: str) -> None:
    n = len(column.missing)
    more = f" ({n:,} such rows)" if n > 1 else ""
    raise DataError(
        f"{label}: column {column.name!r}: missing='raise' takes no missing values, got none in "
        f"{frame.place(int(column.missing[0]))}{more}"
    )


# ---- categories


def _fit_category(
    column: Column,
    rows: Rows | None,
    wishes: Wishes,
    targets: Mapping[str, Targets],
    frame: Frame,
    label: str,
) -> Feature:
    assert column.codes is not None  # it is of categories
    how = wishes.how(column.name)
    if not column.is_declared and column.name not in wishes.named:
        _check_texts(column, frame, label)
    if wishes.missing == "raise" and column.missing.size:
        _refuse_missing(column, frame, label)
    codes = column.codes if rows is None else column.codes[rows]
    counts = np.bincount(codes[codes >= 0], minlength=len(column.categories))
    present = [int(i) for i in np.flatnonzero(counts)]
    if not present:
        raise DataError(
            f"{label}: column {column.name!r}: no training row has a value; leave it out"
        )
    if not column.is_declared:  # texts, in the order of their first rows
        present.sort(key=lambda i: column.categories[i])
    if how == "auto" and len(present) > _MOST_ONE_HOT:
        _refuse_many(column, len(present), label)
    how = "onehot" if how == "auto" else how
    n_missing = len(codes) - int(counts.sum())
    feature = Feature(
        column.name,
        "category",
        how,
        categories=tuple(column.categories[i] for i in present),
        has_missing=n_missing > 0,
        may_miss=wishes.missing != "raise",
        n_filled=n_missing,
    )
    if how != "target":
        return feature
    table = np.zeros(len(column.categories) + 1, np.int64)
    table[present] = np.arange(1, len(present) + 1)
    values = _target_values(targets, rows, column.name)
    means = _means(table[codes], values, len(present) + 1)
    return dataclasses.replace(feature, means=tuple(tuple(map(float, row)) for row in means))


def _check_texts(column: Column, frame: Frame, label: str) -> None:
    """Refuses a column of numbers that a few texts have made one of texts."""
    is_number = np.array([_is_number(text) for text in column.categories], np.bool_)
    if is_number.all() or not is_number.any():
        return
    assert column.codes is not None  # it is of categories
    known = column.codes[column.codes >= 0]
    counts = np.bincount(known, minlength=len(is_number))
    n = int(counts[is_number].sum())
    if 2 * n < len(known) or n == len(known):
        return
    odd = np.flatnonzero(~is_number & (counts > 0))
    row = min(int(np.argmax(column.codes == i)) for i in odd[:100])
    text = column.categories[int(column.codes[row])]
    raise DataError(
        f"{label}: column {column.name!r}: {n:,} of {len(known):,} values are numbers, got the "
        f"text {show(text)} in {frame.place(row)}; correct or remove it, or say that they are "
        f"categories: categorical={{{column.name!r}: 'onehot'}}"
    )


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return True


def _refuse_many(column: Column, n: int, label: str) -> None:
    are_numbers = all(_is_number(text) for text in column.categories)
    fix = (
        f"make numbers of the texts, frame[{column.name!r}].astype(float), or leave it out"
        if are_numbers
        else "leave it out if it names rows"
    )
    raise DataError(
        f"{label}: column {column.name!r}: columns are made of up to {_MOST_ONE_HOT} categories, "
        f"got {n:,} ({show(column.categories[0])}, ...); {fix}; else write "
        f"categorical={{{column.name!r}: 'target'}} for the mean of the target by category, 'ids' "
        "for an embedding, or 'onehot' for all these columns"
    )


# ---- means of the target


def _target_values(targets: Mapping[str, Targets], rows: Rows | None, name: str) -> Array:
    """What is averaged, (n, K): values, or for each class but the first of two whether it is it."""
    target = targets.get("")
    if target is None or target.kind not in ("class", "float") or target.array.ndim > 2:
        got = "none" if not targets else "several" if target is None else target.kind
        raise ConfigError(
            f"categorical: 'target' of column {name!r} needs one target of classes or values, got "
            f"{got}"
        )
    values = target.array if rows is None else target.array[rows]
    if target.kind == "float":
        return np.asarray(values.reshape(len(values), -1), np.float64)
    n = target.n_classes or 0
    first = 1 if n == 2 else 0
    return np.asarray(values[:, None] == np.arange(first, n), np.float64)


def _sums(numbers: Rows, values: Array, n: int) -> tuple[Array, Array]:
    """How many rows each category has, and the sums of their values (n, K)."""
    counts = np.bincount(numbers, minlength=n).astype(np.float64)
    sums = [np.bincount(numbers, weights=part, minlength=n) for part in values.T]
    return counts, np.stack(sums, axis=1)


def _smooth(counts: Array, sums: Array) -> Array:
    """Means by category (n, K), drawn towards that of all rows the more, the fewer rows it has."""
    overall = sums.sum(axis=0) / max(counts.sum(), 1.0)
    return np.asarray((sums + _SMOOTHING * overall) / (counts + _SMOOTHING)[:, None])


def _means(numbers: Rows, values: Array, n: int) -> Array:
    return _smooth(*_sums(numbers, values, n))


def encode_training(
    encoding: Encoding,
    made: Any,
    frame: Frame,
    rows: Rows | None,
    targets: Mapping[str, Targets],
    seed: int,
) -> Any:
    """What forward takes of all rows, with the training rows' means of the target made of others.

    A row that is encoded by a mean to which its own target belongs tells the model its answer, the
    more, the rarer its category is. So each fifth of the training rows gets the means of the others
    (as scikit-learn's TargetEncoder.fit_transform does).

    Parameters
    ----------
    encoding : Encoding
    made : array or dict
        What ``encoding.apply(frame)`` gave; changed in place.
    frame, rows, targets
        As for :func:`fit_encoding`.
    seed : int
        Decides the fifths.
    """
    place = 0
    matrix = made[NUMBERS] if isinstance(made, dict) and NUMBERS in made else made
    for feature in encoding.features:
        if feature.how == "target":
            column = frame.column(feature.name).as_category
            _encode_folds(matrix, place, feature, column, rows, targets, seed)
        place += len(feature.made)
    return made


def _encode_folds(
    matrix: Array,
    place: int,
    feature: Feature,
    column: Column,
    rows: Rows | None,
    targets: Mapping[str, Targets],
    seed: int,
) -> None:
    assert column.codes is not None  # it is of categories
    rows = np.arange(len(matrix)) if rows is None else rows
    values = _target_values(targets, rows, feature.name)
    number = {category: i + 1 for i, category in enumerate(feature.categories)}
    table = np.array([*(number.get(each, 0) for each in column.categories), 0])
    numbers = table[column.codes[rows]]
    n = len(feature.categories) + 1
    counts, sums = _sums(numbers, values, n)
    folds = np.empty(len(rows), np.int64)
    folds[_core.permutation(seed, _STREAM, 0, len(rows))] = np.arange(len(rows)) % _FOLDS
    for fold in range(_FOLDS):
        inside = folds == fold
        fewer, less = _sums(numbers[inside], values[inside], n)
        means = _smooth(counts - fewer, sums - less)
        matrix[rows[inside], place : place + values.shape[1]] = means[numbers[inside]]
