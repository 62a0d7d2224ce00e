"""Looks through the values once, before the first step.

A whole array is scanned in C; only when it holds something bad are the rows of the split looked at,
to name the first bad value by the user's own row and column. Both go block by block, so that who
watches (:mod:`hotloop.base.watching`) can say how far they are and end them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.rules import show
from hotloop.base.watching import report
from hotloop.data.split import Field
from hotloop.errors import DataError

__all__ = [
    "are_in_range",
    "blocks",
    "check_bounds",
    "check_labels",
    "check_values",
    "check_weights",
    "looked_at",
    "place",
]

_BLOCK = 2**20  # elements that are looked at at a time
_LARGEST = float(np.finfo(np.float32).max)
_MOST_NAMED = 10  # columns in a message
_LOOKED_AT = 64  # rows of a stream


def blocks(
    field: Field, rows: npt.NDArray[np.int64] | None, what: str
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[Any]]]:
    """Row numbers and rows of an array, a few at a time; of padded sequences, their own rows.

    Parameters
    ----------
    field : Field
        Array ``(N, ...)``.
    rows : int64 array or None
        Which of them; None: all.
    what : str
        Before the array's name, for who watches: "checking".
    """
    if field.padding is not None:
        field, rows = field.flat(rows)
    array = field.array
    n = len(array) if rows is None else len(rows)
    row = math.prod(array.shape[1:])
    step = max(1, _BLOCK // max(1, row))
    peers = None if field.stream is None or rows is None else np.unique(rows)
    row_bytes = row * array.dtype.itemsize
    for begin in range(0, n, step):
        end = min(begin + step, n)
        if begin:
            report(f"{what} {field.label}", begin * row_bytes, n * row_bytes)
        if rows is None:
            yield np.arange(begin, end), array[begin:end]
        else:
            yield rows[begin:end], field.read(rows[begin:end], peers)


def looked_at(field: Field, rows: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64] | None:
    """The rows to check before training: of a stream, whose rows take long, the first ones alone.
    What is out of range behind them is found by the step.
    """
    if field.stream is None:
        return rows
    return np.arange(len(field.array))[:_LOOKED_AT] if rows is None else rows[:_LOOKED_AT]


def place(field: Field, row: int, index: tuple[int, ...]) -> str:
    """Where a value is: ``row 17, column 3``, ``row 2 of sequence 5, column 3``."""
    if field.padding is not None:
        sequences = field.padding.sequences
        if sequences is None:
            return f"sample {row}"
        number = sequences.number_of(row)
        where = f"sequence {number}"
        if field.padding.role == "rows":
            where = f"row {row - int(sequences.starts[number])} of {where}"
        return f"{where}, column {index[0]}" if len(index) == 1 else where
    row += field.first_row
    if not index:
        return f"row {row}"
    if len(index) == 1 and field.columns is not None:
        return f"row {row}, column {field.columns[index[0]]!r}"
    if len(index) == 1:
        return f"row {row}, column {index[0]}"
    return f"row {row}, index ({', '.join(map(str, index))})"


def check_values(field: Field, rows: npt.NDArray[np.int64] | None) -> bool:
    """Refuses NaN, infinities and what float32 cannot hold.

    Returns
    -------
    bool
        Whether all rows of the array are good, and not only those.

    Raises
    ------
    DataError
        With the row and column of the first such value, and how many there are.
    """
    field, rows = field.flat(rows)
    array = field.array
    is_float64 = array.dtype == np.float64
    if array.dtype.kind != "f" or all(
        _core.check_finite(values) is None and not (is_float64 and _exceeds(values))
        for _, values in blocks(field, None, "checking")
    ):
        return True
    first: tuple[str, float] | None = None
    n_values = n_rows = 0
    in_column = np.zeros(array.shape[1] if array.ndim == 2 else 0, np.bool_)
    for numbers, values in blocks(field, rows, "checking"):
        bad = ~(np.abs(values) <= _LARGEST) if is_float64 else ~np.isfinite(values)
        if not bad.any():
            continue
        if first is None:
            index = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
            where = place(field, int(numbers[index[0]]), index[1:])
            first = where, float(values[index])
        n_values += int(bad.sum())
        n_rows += int(bad.reshape(len(bad), -1).any(axis=1).sum())
        if array.ndim == 2:
            in_column |= bad.any(axis=0)
    if first is None:
        return False  # they are in rows of another split
    where, value = first
    more = f" ({n_values:,} such values in {n_rows:,} rows" if n_values > 1 else ""
    more += f"{_named(field, np.flatnonzero(in_column))})" if more else ""
    if np.isfinite(value):
        raise DataError(
            f"{field.label}: values must fit float32 (up to {_LARGEST:.3g}), got {value:g} in "
            f"{where}{more}; scale the column"
        )
    raise DataError(
        f"{field.label}: must be finite, got {value} in {where}{more}; drop or fill these rows, or "
        "write allow_nonfinite=True to train on them"
    )


def _named(field: Field, columns: npt.NDArray[np.int64]) -> str:
    """The columns of such values, where they are several: `` of columns 'age', 'size'``."""
    if len(columns) < 2:
        return ""
    names = [repr(field.columns[i]) if field.columns else str(i) for i in columns[:_MOST_NAMED]]
    more = f" and {len(columns) - len(names):,} more" if len(columns) > len(names) else ""
    return f" of columns {', '.join(names)}{more}"


def _exceeds(array: npt.NDArray[Any]) -> bool:
    return bool(array.size) and bool(max(array.max(), -array.min()) > _LARGEST)


def check_weights(field: Field, rows: npt.NDArray[np.int64] | None, split: str) -> None:
    """Refuses sample weights that are negative, not finite, or all 0.

    Raises
    ------
    DataError
    """
    if field.stream is not None:
        return  # checked as they are made
    total = 0.0
    for numbers, values in blocks(field, rows, "checking"):
        bad = ~((values >= 0) & (np.abs(values) <= _LARGEST))
        if bad.any():
            i = int(np.argmax(bad))
            raise DataError(
                f"{field.label}: weights must be finite and at least 0, got {values[i]} in "
                f"{place(field, int(numbers[i]), ())}"
            )
        total += float(values.sum(dtype=np.float64))
    if total <= 0.0:
        raise DataError(f"{field.label}: all weights of the {split} rows are 0; give some a weight")


def check_bounds(
    field: Field, rows: npt.NDArray[np.int64] | None, low: float, high: float, loss: str
) -> None:
    """Refuses floats outside of what a loss of probabilities or counts takes; NaN passes.

    Raises
    ------
    DataError
        With the row and the value.
    """
    rows = looked_at(field, rows)
    first: tuple[str, float] | None = None
    least, largest, are_whole = np.inf, -np.inf, True
    for numbers, values in blocks(field, rows, "checking"):
        bad = (values < low) | (values > high)
        if first is None and bad.any():
            index = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
            first = place(field, int(numbers[index[0]]), index[1:]), float(values[index])
        least, largest = min(least, values.min()), max(largest, values.max())
        are_whole = are_whole and bool((values == np.floor(values)).all())
    if first is None:
        return
    fix = "for values of any size write loss='mse'"
    if low <= least and largest == 255:
        fix = "of a mask of 0 and 255 write (y > 127).astype(np.float32)"
    elif are_whole and least >= -1 and high == 1:
        ids = "write (y > 0).astype(int)" if least < 0 else "give integers, y.astype(int)"
        fix = f"for class ids {ids}"
    allowed = f"at least {low:g}" if high == np.inf else f"between {low:g} and {high:g}"
    raise DataError(
        f"{field.label}: targets of the loss {loss} must be {allowed}, got {first[1]:g} in "
        f"{first[0]}; {fix}"
    )


def are_in_range(field: Field, low: int, high: int) -> bool:
    """Whether all integers of an array, of whatever split, are in [low, high)."""
    series, window = field.source
    if window and field.padding is None:  # each of them once
        field = dataclasses.replace(field, array=series, series=None)
    return all(
        _core.check_range(values, low, high) is None
        for _, values in blocks(field, None, "checking")
    )


def check_labels(
    field: Field,
    rows: npt.NDArray[np.int64] | None,
    n_classes: int,
    ignored: int | None = None,
    names: Sequence[Any] | None = None,
) -> None:
    """Refuses class ids outside [0, n_classes), one that counts nothing apart.

    Raises
    ------
    DataError
        With the row and the value.
    """
    array = field.array
    if array.dtype.kind == "b" and n_classes >= 2:
        return
    if field.stream is None and array.dtype.kind != "b" and are_in_range(field, 0, n_classes):
        return
    rows = looked_at(field, rows)
    for numbers, values in blocks(field, rows, "checking"):
        bad = ((values < 0) | (values >= n_classes)) & (values != ignored)
        if bad.any():
            index = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
            where = place(field, int(numbers[index[0]]), index[1:])
            if names is not None and 0 <= values[index] < len(names):
                raise DataError(
                    f"{field.label}: the model's last layer must have an output for each of the "
                    f"{len(names)} classes {show(list(names))}, got outputs for {n_classes} and "
                    f"{names[int(values[index])]!r} in {where}; give it {len(names)} outputs"
                )
            fix = ""
            if array.dtype == np.uint8 and values[index] == 255:
                fix = (
                    "of a mask of 0 and 255 write (y > 127).astype(int), where 255 counts nothing "
                )
                fix += "loss=nn.CrossEntropyLoss(ignore_index=255); else "
            raise DataError(
                f"{field.label}: class ids must be below {n_classes}, the classes that the model's "
                f"last layer has outputs for, got {int(values[index])} in {where}; {fix}give it an "
                "output per class or renumber the classes from 0, or write y.astype(np.float32) "
                "where integers are values to regress on"
            )
