"""Standardising: mean and standard deviation of the training rows, applied inside the graph."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.data.checks import blocks, looked_at
from hotloop.data.split import Field

__all__ = ["doubt_of_values", "fit_standard", "one_hot_axis"]

_FAR = 10.0  # standard deviations from 0, which a network needs long to learn
_LARGE = 1e3  # a standard deviation that thousands of steps of the usual size are needed for

Values = npt.NDArray[np.float32]


def fit_standard(
    field: Field, rows: npt.NDArray[np.int64] | None, *, skip_nonfinite: bool = False
) -> tuple[Values, Values]:
    """Mean and standard deviation of every feature; of windows, of each feature of their series.

    Two passes in float64, since the one-pass formula loses all digits of columns whose mean is
    large against their spread; sums are of differences to the first row, so that a constant
    feature's deviation is 0 and no rounding error.

    Parameters
    ----------
    field : Field
        Array ``(N, ...)``.
    rows : int64 array or None
        The training rows; None: all.
    skip_nonfinite : bool
        Leave NaN and infinities out instead of passing them on.

    Returns
    -------
    mean, std : float32 arrays, shape of a row, or of a row of the series
        A constant feature has std 1, so that it becomes 0; marks of categories stay as they are.
    """
    field, rows = field.flat(rows)
    shape = field.array.shape[1:]
    first = field.array[0 if rows is None else rows[0]].astype(np.float64)
    first = np.where(np.isfinite(first), first, 0.0)
    count = np.zeros(shape)
    total = np.zeros(shape)
    for values, known in _float64_blocks(field, rows, skip_nonfinite, first, "mean"):
        count += known
        total += (values - first).sum(axis=0)
    count = np.maximum(count, 1.0)
    mean = first + total / count
    squares = np.zeros(shape)
    for values, _ in _float64_blocks(field, rows, skip_nonfinite, mean, "standard deviation"):
        squares += np.square(values - mean).sum(axis=0)
    deviation = np.sqrt(squares / count)
    std = deviation.astype(np.float32)
    rounding = 10.0 * np.finfo(np.float64).eps * np.abs(mean)  # of a constant column's mean
    std = np.where((deviation <= rounding) | (std == 0.0), np.float32(1.0), std)
    # np.asarray: of a column (N,) NumPy has made scalars by now
    means, stds = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    if field.marks:
        means[list(field.marks)], stds[list(field.marks)] = 0.0, 1.0
    return means, stds


def one_hot_axis(array: npt.NDArray[Any]) -> int | None:
    """The dim, 1 or the last, along which exactly one of several numbers is 1 and the others 0."""
    if array.ndim < 2 or not len(array):
        return None
    for axis in (1, -1) if array.ndim > 2 else (1,):
        if (
            array.shape[axis] > 1
            and all(  # the first row refuses what is none
                ((part == 0) | (part == 1)).all() and (part.sum(axis=axis) == 1).all()
                for part in (array[:1], array)
            )
        ):
            return axis
    return None


def doubt_of_values(
    field: Field, rows: npt.NDArray[np.int64] | None, *, is_scaled: bool = False
) -> str:
    """What is probably wrong with float targets that are to be compared as values; "": nothing.

    Parameters
    ----------
    field : Field
        Array ``(N, ...)``.
    rows : int64 array or None
        The training rows; None: all.
    is_scaled : bool
        Whether training standardises them.
    """
    rows = looked_at(field, rows)
    low, high, are_classes = np.inf, -np.inf, True
    for _, values in blocks(field, rows, "checking"):
        low, high = min(low, values.min()), max(high, values.max())
        are_classes = are_classes and bool(((values == 0) | (values == 1)).all())
    if not low < high:
        return ""  # constant
    if are_classes:
        some = field.array if field.stream is None else field.array[rows]
        if one_hot_axis(some) is not None:
            return ""  # one-hot, of which reading it has warned
        return (
            f"{field.label}: float targets are all 0 or 1 and are trained as values; for "
            "yes or no give integers, y.astype(int), or loss='bce'"
        )
    if is_scaled:
        return ""
    mean, std = fit_standard(field, rows, skip_nonfinite=True)
    spread = np.where((std == 1.0) & (low + std > high), 0.0, std)  # constant columns among others
    means, spreads = np.ravel(mean).astype(np.float64), np.ravel(spread).astype(np.float64)
    excess = np.square(means) - np.square(_FAR * spreads)
    if excess.mean() <= 0.0 and spreads.max() <= _LARGE:
        return ""
    if excess.mean() <= 0.0:
        worst = int(spreads.argmax())
        return (
            f"{field.label}: the standard deviation of {_name_of(field, worst)} is "
            f"{spreads[worst]:.4g}, and a network begins with outputs of about 1, from where it "
            "learns so large values slowly; write standardize='y' (of windows and sequences "
            "normalize='both') where the data is "
            "made, which predict and metrics undo"
        )
    worst = int(excess.argmax())
    return (
        f"{field.label}: the mean of {_name_of(field, worst)} is {means[worst]:.4g} and the "
        f"standard deviation {spreads[worst]:.4g}, so that the model learns little but the mean; "
        "write standardize='y' (of windows and sequences normalize='both') where the data is "
        "made, which predict and metrics undo"
    )


def _name_of(field: Field, at: int) -> str:
    """A feature of a row by its number, in words."""
    shape = field.array.shape[1:]
    if math.prod(shape) == 1:
        return "the targets"
    if field.columns is not None and len(field.columns) == math.prod(shape):
        return f"column {field.columns[at]!r}"
    place = ", ".join(str(int(i)) for i in np.unravel_index(at, shape))
    return f"column {place}" if len(shape) == 1 else f"position ({place})"


def _float64_blocks(
    field: Field,
    rows: npt.NDArray[np.int64] | None,
    skip: bool,
    fill: npt.NDArray[Any],
    what: str,
) -> Any:
    """Blocks in float64 with their count per feature; what is not finite as ``fill``."""
    for _, values in blocks(field, rows, f"the {what} of"):
        numbers = values.astype(np.float64)
        if not skip:
            yield numbers, len(numbers)
            continue
        known = np.isfinite(numbers)
        yield np.where(known, numbers, fill), known.sum(axis=0)
