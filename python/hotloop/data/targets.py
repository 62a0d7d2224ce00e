"""Targets: the kind of y decides the loss.

Integers, bools and strings are classes, floats are values, a matrix of 0 and 1 has one yes-or-no
question per column.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import warn
from hotloop.base.rules import show
from hotloop.data.arrays import column_names, read_raw, to_array
from hotloop.errors import DataError, DataWarning

__all__ = ["Targets", "read_targets"]

Array = npt.NDArray[Any]

_MAX_CLASSES = 2**24  # more is a column of keys or of measurements, not of classes


@dataclasses.dataclass(frozen=True, eq=False)
class Targets:
    """Targets that were understood.

    Attributes
    ----------
    array : ndarray
        Class ids, values or 0/1, in a dtype of the core.
    kind : str
        "class", "multilabel" or "float".
    dtype : str
        In the graph: "int64" for classes, else "float32".
    classes : list or None
        Names by class id: sorted strings, or False and True.
    n_classes : int or None
        None unless kind is "class".
    """

    array: Array
    kind: str
    dtype: str
    classes: list[Any] | None = None
    n_classes: int | None = None


def read_targets(y: Any, label: str, like: Targets | None = None) -> Targets:
    """Reads targets.

    Parameters
    ----------
    y : array_like
        ``(N,)`` or ``(N, 1)`` integers, bools or strings: classes. Integers of more dims: class
        ids per position, or several 0/1 columns. Floats: values.
    label : str
        For messages.
    like : Targets, optional
        The training targets, whose kind and class names these must share.

    Raises
    ------
    DataError
        If they are none of this, are negative, or do not fit ``like``.
    """
    if isinstance(y, dict):
        raise DataError(
            f"{label}: one array of targets is needed, got a dict of {', '.join(map(str, y))}; "
            "make them columns of one float array and take them apart in training_step"
        )
    names = column_names(y)
    if names is not None and len(names) == 1:
        y = y[names[0]]  # texts too: a frame's columns are read as numbers
    raw = read_raw(y, label)
    if raw.ndim == 0:
        raise DataError(f"{label}: must have one target per row, got {show(y)}")
    if raw.dtype.kind in "OUST":
        _refuse_mixed_list(y, raw, label)
        found = _read_names(raw, label, like)
    else:
        found = _read_numbers(to_array(raw, label), label, like)
    if like is not None and found.kind != like.kind:
        raise DataError(
            f"{label}: must be {like.kind} targets as in training, got {found.kind} targets of "
            f"dtype {raw.dtype}"
        )
    if like is not None and (found.classes is None) != (like.classes is None):
        raise DataError(
            f"{label}: must be of the kind of the training targets, got dtype {raw.dtype}"
        )
    return found


def _squeeze(array: Array) -> Array:
    """(N, 1) as (N,): a column is no matrix."""
    return array.reshape(len(array)) if array.shape[1:] == (1,) else array


# ---- numbers


def _read_numbers(array: Array, label: str, like: Targets | None) -> Targets:
    if array.dtype.kind == "f" or (like is not None and like.kind == "float"):
        if like is None:
            _warn_of_one_hot(array, label, "values (mean squared error)")
        return Targets(array, "float", "float32")
    array = _squeeze(array)
    if array.size == 0:
        raise DataError(f"{label}: has no values, got shape {array.shape}")
    if array.dtype.kind == "b":
        if array.ndim > 1:
            return Targets(array, "multilabel", "float32")
        return Targets(array, "class", "int64", [False, True], 2)
    low, high = int(array.min()), int(array.max())
    if array.ndim == 2 and low >= 0 and high <= 1 and (like is None or like.kind != "class"):
        _warn_of_one_hot(array, label, f"{array.shape[1]} separate yes-or-no questions")
        return Targets(array, "multilabel", "float32")
    if low < 0 or high >= _MAX_CLASSES:
        _refuse_labels(array, label, low, high)
    return Targets(array, "class", "int64", None, high + 1)


def _refuse_labels(array: Array, label: str, low: int, high: int) -> None:
    value = low if low < 0 else high
    place = np.unravel_index(int(np.argmax(array == value)), array.shape)
    where = f"row {int(place[0])}"
    if array.ndim > 1:
        where += f", column {', '.join(str(int(i)) for i in place[1:])}"
    fix = "np.unique(y, return_inverse=True)[1] makes ids of any labels"
    if low == -1 and high == 1 and not (array == 0).any():
        fix = "write (y > 0).astype(int) for labels -1 and 1"
    rule = "class ids count from 0" if low < 0 else f"class ids must be below {_MAX_CLASSES:,}"
    raise DataError(
        f"{label}: {rule}, got {value} in {where}; {fix}, y.astype(np.float32) makes values to "
        "regress on"
    )


def _warn_of_one_hot(array: Array, label: str, kind: str) -> None:
    if array.ndim != 2 or array.shape[1] < 2:
        return
    if ((array == 0) | (array == 1)).all() and (array.sum(axis=1) == 1).all():
        warn(
            f"{label}: every row has exactly one 1. By default it is trained as {kind}; for one "
            "choice out of several give y.argmax(1)",
            DataWarning,
        )


# ---- names


def _refuse_mixed_list(y: Any, raw: Array, label: str) -> None:
    """NumPy makes strings of all items of a list when one of them is a string."""
    if not isinstance(y, (list, tuple)) or raw.dtype.kind == "O" or raw.ndim != 1:
        return
    for row, item in enumerate(y):
        if not isinstance(item, (str, bytes)):
            raise DataError(
                f"{label}: must be all numbers or all strings, got {type(item).__name__} "
                f"{show(item)} in row {row} beside strings"
            )


def _read_names(raw: Array, label: str, like: Targets | None) -> Targets:
    raw = _squeeze(raw)
    if raw.dtype.kind == "O":
        kinds = {type(item) for item in raw.flat}
        if kinds and all(issubclass(kind, (bool, np.bool_)) for kind in kinds):
            return _read_numbers(raw.astype(np.bool_), label, like)
        if kinds and all(issubclass(kind, (int, np.integer)) for kind in kinds):
            return _read_numbers(to_array(raw.tolist(), label), label, like)
        for row, item in enumerate(raw.flat):
            if not isinstance(item, str):
                raise DataError(
                    f"{label}: must be all numbers or all strings, got {type(item).__name__} "
                    f"{show(item)} in row {row}"
                )
    if raw.ndim != 1:
        raise DataError(f"{label}: names must be one per row, got shape {raw.shape}")
    if raw.dtype.kind == "S":
        raw = np.char.decode(raw, "utf-8")
    elif raw.dtype.kind == "T":
        raw = raw.astype(np.object_)
    names, ids = np.unique(raw, return_inverse=True)
    classes = [str(name) for name in names]
    ids = ids.reshape(-1).astype(np.int64)
    if like is not None and like.classes is not None:
        known = {name: i for i, name in enumerate(like.classes)}
        for i, name in enumerate(classes):
            if name not in known:
                raise DataError(
                    f"{label}: classes must be those of training, {show(like.classes)}, got "
                    f"{name!r} in row {int(np.argmax(ids == i))}"
                )
        table = np.array([known[name] for name in classes], dtype=np.int64)
        ids, classes = table[ids], like.classes
    return Targets(ids, "class", "int64", classes, len(classes))
