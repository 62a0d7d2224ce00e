"""Targets: the kind of y decides the loss.

Integers, bools and strings are classes, floats are values, a matrix of 0 and 1 has one yes-or-no
question per column. Integers, bools and strings of more dims are a class at each position (token,
pixel).
A dict or tuple of arrays is several targets, each of a kind of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import warn
from hotloop.base.rules import show
from hotloop.data.arrays import check_keys, column_names, is_arraylike, read_raw, to_array
from hotloop.data.scaling import one_hot_axis
from hotloop.data.split import Field, Split
from hotloop.data.strides import windows_of
from hotloop.errors import DataError, DataWarning

__all__ = [
    "IGNORED",
    "Targets",
    "check_no_names",
    "describe_classes",
    "ids_of",
    "merge_targets",
    "name_of_target",
    "names_of_ids",
    "read_all_targets",
    "read_targets",
    "renumber_classes",
]

Array = npt.NDArray[Any]

IGNORED = -100  # the class id of positions that count nothing, as torch's losses have it
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
    has_ignored : bool
        Whether some class ids are ``IGNORED``.
    """

    array: Array
    kind: str
    dtype: str
    classes: list[Any] | None = None
    n_classes: int | None = None
    has_ignored: bool = False

    @property
    def has_names(self) -> bool:
        """Whether its classes have names of their own: bools are 0 and 1."""
        return self.classes not in (None, [False, True])


def name_of_target(field: str) -> str | None:
    """Of a field ``y.a`` the target's name, "a"; "" of ``y``; None of what is no target."""
    head, _, name = field.partition(".")
    return name if head == "y" else None


def read_all_targets(
    y: Any,
    label: str,
    n: int,
    like: Mapping[str, Targets] | None = None,
    *,
    by_row: bool = False,
) -> dict[str, Targets]:
    """Reads one target, or the several of a dict or tuple.

    Parameters
    ----------
    y : array_like, or dict or tuple of them, or Targets
        Each as for :func:`read_targets`. A tuple of numbers or texts is one array. What was read
        already is taken as it is.
    label : str
        For messages.
    n : int
        Rows: a tuple of as many arrays that have other lengths is one array of rows.
    like : mapping of str to Targets, optional
        The training targets.
    by_row : bool
        Whether each is for a row of a sequence, so that None among names counts nothing.

    Returns
    -------
    dict of str to Targets
        By name; that of a single target is "", those of a tuple are their positions.

    Raises
    ------
    DataError
        As for :func:`read_targets`; if names are missing or there are more than in training.
    """
    if isinstance(y, Targets):
        return {"": y}
    parts: dict[str, tuple[str, Any]] = {"": (label, y)}
    if isinstance(y, Mapping):
        check_keys(list(y), label)
        parts = {key: (f"{label}[{key!r}]", part) for key, part in y.items()}
    elif _is_several(y, n):
        parts = {str(i): (f"{label}[{i}]", part) for i, part in enumerate(y)}
    if not parts:
        raise DataError(f"{label}: has no targets, got {show(y)}")
    if like is not None and set(like) != set(parts):
        names = [", ".join(map(repr, of)) if any(of) else "one array" for of in (like, parts)]
        raise DataError(
            f"{label}: must have the targets of the training data, {names[0]}, got {names[1]}"
        )
    return {
        name: read_targets(part, of, None if like is None else like[name], by_row=by_row)
        for name, (of, part) in parts.items()
    }


def _is_several(y: Any, n: int) -> bool:
    """Whether a tuple holds one array for each target, and is not one array of rows."""
    if not isinstance(y, tuple) or not y or not all(is_arraylike(part) for part in y):
        return False
    lengths = {len(part) if hasattr(part, "__len__") and np.ndim(part) else 0 for part in y}
    return 0 not in lengths and (len(y) != n or lengths == {n})


def read_targets(
    y: Any, label: str, like: Targets | None = None, *, by_row: bool = False
) -> Targets:
    """Reads targets.

    Parameters
    ----------
    y : array_like
        ``(N,)`` or ``(N, 1)`` integers, bools or strings: classes. ``(N, K)`` of 0 and 1: a
        yes-or-no question per column. Other integers and bools of more dims: a class id at each
        position, -100 where there is none; strings: a class at each, None where there is none.
        Floats: values.
    label : str
        For messages.
    like : Targets, optional
        The training targets, whose kind and class names these must share.
    by_row : bool
        As :func:`read_all_targets` has it.

    Raises
    ------
    DataError
        If they are none of this, are negative, or do not fit ``like``.
    """
    names = column_names(y)
    if names is not None and len(names) == 1:
        y = y[names[0]]  # texts too: a frame's columns are read as numbers
    try:
        raw = read_raw(y, label)
    except DataError as error:
        if names is None or len(names) == 1:
            raise
        raise DataError(
            f"{label}: each column of names is a target of its own, got the columns "
            f"{', '.join(names)}; give them as a dict {{{names[0]!r}: frame[{names[0]!r}], ...}}, "
            "and outputs of these names"
        ) from error
    if raw.ndim == 0:
        raise DataError(f"{label}: must have one target per row, got {show(y)}")
    if raw.dtype.kind in "OUST":
        _refuse_mixed_list(y, raw, label)
        found = _read_names(raw, label, like, by_row=by_row)
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
        if array.ndim == 2:
            return Targets(array, "multilabel", "float32")
        return Targets(array, "class", "int64", [False, True], 2)
    low, high = int(array.min()), int(array.max())
    if array.ndim > 2 and low == 0 and high == 1:
        _warn_of_one_hot(array, label, "a yes-or-no question at each position and class")
    if array.ndim == 2 and low >= 0 and high <= 1 and (like is None or like.kind != "class"):
        _warn_of_one_hot(array, label, f"{array.shape[1]} separate yes-or-no questions")
        return Targets(array, "multilabel", "float32")
    if low == high == IGNORED:
        raise DataError(
            f"{label}: some targets must count, got the class id {IGNORED} alone, which is for "
            "what counts nothing"
        )
    has_ignored = low == IGNORED and high >= 0
    if has_ignored:
        low = int(np.where(array == IGNORED, 0, array).min())
    if low < 0 or high >= _MAX_CLASSES:
        _refuse_labels(array, label, low, high)
    return Targets(array, "class", "int64", None, high + 1, has_ignored)


def _refuse_labels(array: Array, label: str, low: int, high: int) -> None:
    value = low if low < 0 else high
    place = np.unravel_index(int(np.argmax(array == value)), array.shape)
    where = f"row {int(place[0])}"
    if array.ndim > 1:
        where += f", column {', '.join(str(int(i)) for i in place[1:])}"
    fix = "np.unique(y, return_inverse=True)[1] makes ids of any labels"
    if low == -1 and high == 1 and not (array == 0).any():
        fix = "write (y > 0).astype(int) for labels -1 and 1"
    elif low < 0 and array.ndim > 1:
        fix = f"write {IGNORED} where there is no class and nothing counts"
    rule = "class ids count from 0" if low < 0 else f"class ids must be below {_MAX_CLASSES:,}"
    raise DataError(
        f"{label}: {rule}, got {value} in {where}; {fix}, y.astype(np.float32) makes values to "
        "regress on"
    )


def _warn_of_one_hot(array: Array, label: str, kind: str) -> None:
    axis = one_hot_axis(array)
    if axis is not None:
        each = "row" if array.ndim == 2 else "position"
        warn(
            f"{label}: every {each} has exactly one 1. By default it is trained as {kind}; for one "
            f"choice out of several give y.argmax({axis})",
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


def _read_names(raw: Array, label: str, like: Targets | None, *, by_row: bool) -> Targets:
    raw = _squeeze(raw)
    if raw.dtype.kind == "O":
        kinds = {type(item) for item in raw.flat}
        if kinds and all(issubclass(kind, (bool, np.bool_)) for kind in kinds):
            return _read_numbers(raw.astype(np.bool_), label, like)
        if kinds and all(issubclass(kind, (int, np.integer)) for kind in kinds):
            return _read_numbers(to_array(raw.tolist(), label), label, like)
        named = any(issubclass(kind, str) for kind in kinds)
        allowed = (str,) if named else (int, np.integer)
        for index, item in np.ndenumerate(raw):
            is_ignored = item is None and named and (by_row or raw.ndim > 1)
            if not isinstance(item, allowed) and not is_ignored:
                raise DataError(
                    f"{label}: must be all numbers or all strings, got {type(item).__name__} "
                    f"{show(item)} in row {index[0]}"
                )
    if raw.dtype.kind == "S":
        raw = np.char.decode(raw, "utf-8")
    elif raw.dtype.kind == "T":
        raw = raw.astype(np.object_)
    counts = raw != None  # noqa: E711 -- by element; a position without a name counts nothing
    names, found = np.unique(raw[counts], return_inverse=True)
    classes = [str(name) for name in names]
    ids = np.full(raw.shape, IGNORED, np.int64)
    ids[counts] = found.reshape(-1)
    if like is not None and like.classes is not None:
        known = {name: i for i, name in enumerate(like.classes)}
        for i, name in enumerate(classes):
            if name not in known:
                row = int(np.argwhere(ids == i)[0, 0])
                raise DataError(
                    f"{label}: classes must be those of training, {show(like.classes)}, got "
                    f"{name!r} in row {row}"
                )
        table = np.array([known[name] for name in classes], dtype=np.int64)
        ids[counts], classes = table[ids[counts]], like.classes
    return Targets(ids, "class", "int64", classes, len(classes), not counts.all())


# ---- of a whole data module


def merge_targets(parts: Sequence[Mapping[str, Targets]]) -> dict[str, Targets]:
    """The targets of training, with the classes of all splits.

    Parameters
    ----------
    parts : sequence of mapping of str to Targets
        Of each split, training first.
    """
    merged = dict(parts[0])
    for name, known in parts[0].items():
        found = [part[name] for part in parts if name in part]
        if known.n_classes is not None:
            merged[name] = dataclasses.replace(
                known,
                n_classes=max(target.n_classes or 0 for target in found),
                has_ignored=any(target.has_ignored for target in found),
            )
    return merged


def ids_of(targets: Mapping[str, Targets]) -> Array | None:
    """Class ids by which rows may be stratified: those of a single target."""
    only = targets.get("")
    return only.array if only is not None and only.n_classes is not None else None


def names_of_ids(ids: Array, classes: Sequence[Any]) -> Array:
    """Class ids (N, ...) by their names; None where an id counts nothing."""
    ids = ids.astype(np.int64)
    if not (ids < 0).any():
        return np.asarray(np.asarray(classes)[ids])
    named = np.asarray(classes, dtype=np.object_)[np.maximum(ids, 0)]
    named[ids < 0] = None
    return np.asarray(named)


def check_no_names(field: Field, target: Targets) -> None:
    """Refuses class names for a model whose outputs have none: they would be numbered anew.

    Parameters
    ----------
    field : Field
        Of the target.
    target : Targets

    Raises
    ------
    DataError
    """
    if target.has_names:
        raise DataError(
            f"{field.label}: must be class ids as in training, which had no names, got "
            f"{show(target.classes)}; give the ids that training had, or name them there: "
            "DataModule.from_arrays(X, ids, classes=[...])"
        )


def renumber_classes(
    split: Split, targets: Mapping[str, Targets], names: Mapping[str, Sequence[Any]]
) -> Split:
    """A split whose class ids number other names.

    Parameters
    ----------
    split : Split
    targets : mapping of str to Targets
        With the names that its ids number.
    names : mapping of str to sequence
        The new names by class id, of those targets that get others.

    Raises
    ------
    DataError
        If a class of the split's rows is not among the new names.
    """
    made: dict[int, Array] = {}  # buckets share their arrays

    def renumber(part: Split) -> Split:
        fields = []
        for field in part.fields:
            target = name_of_target(field.name)
            if target is not None and target in names:
                old = targets[target].classes or []
                field = _renumber(field, part.rows, old, names[target], made)
            fields.append(field)
        return dataclasses.replace(part, fields=tuple(fields))

    return dataclasses.replace(renumber(split), buckets=tuple(map(renumber, split.buckets)))


def _renumber(
    field: Field,
    rows: npt.NDArray[np.int64] | None,
    old: Sequence[Any],
    new: Sequence[Any],
    made: dict[int, Array],
) -> Field:
    if field.stream is not None:
        raise DataError(
            f"{field.label}: class ids that are made in batches are not numbered anew, so classes "
            f"must be those of training, {show(list(new))}, in this order, got {show(list(old))}"
        )
    series, window = field.source
    if id(series) not in made:
        number = {name: i for i, name in enumerate(new)}
        ids = series.astype(np.int64)
        table = np.array([number.get(name, -1) for name in old], np.int64)
        made[id(series)] = np.where(ids == IGNORED, IGNORED, table[np.maximum(ids, 0)])
    array = made[id(series)]
    checked, used = field.flat(rows)
    _check_known(checked, used, array, old, new)
    if not window:
        return dataclasses.replace(field, array=array)
    windows = windows_of(array, window)[: len(field.array)]
    return dataclasses.replace(field, array=windows, series=array)


def _check_known(
    field: Field,
    rows: npt.NDArray[np.int64] | None,
    array: Array,
    old: Sequence[Any],
    new: Sequence[Any],
) -> None:
    """Refuses rows whose class has no new number."""
    rows = np.arange(len(array)) if rows is None else rows
    invalid = (array[rows] == -1).reshape(len(rows), -1).any(1)
    if invalid.any():
        row = int(rows[int(np.argmax(invalid))])
        first = np.asarray(field.array[row]).reshape(-1)[int(np.argmax(array[row] == -1))]
        raise DataError(
            f"{field.label}: classes must be those of training, {show(list(new))}, got "
            f"{old[int(first)]!r} in row {row}"
        )


def describe_classes(name: str, target: Targets, counts: Sequence[int]) -> str:
    """A line: how often each class is among the training rows."""
    names: Sequence[Any] = target.classes or range(len(counts))
    shown = [f"{each}: {n:,}" for each, n in zip(names, counts)]
    more = f", and {len(shown) - 20} more" if len(shown) > 20 else ""
    what = f"classes {name}"
    each = "rows" if target.array.ndim == 1 else "positions"
    return f"{what:<11} {', '.join(shown[:20])}{more} training {each}"
