"""Tables: X, y and weights as fields with one number of rows; and the objects they come in."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import show
from hotloop.base.suggest import closest, name_missing
from hotloop.data.arrays import (
    check_keys,
    check_numbers,
    column_names,
    graph_dtype,
    is_arraylike,
    read_raw,
    to_array,
)
from hotloop.data.split import Field, Split
from hotloop.data.targets import Targets, read_all_targets
from hotloop.errors import ConfigError, DataError

__all__ = [
    "Source",
    "Table",
    "count_rows",
    "has_samples",
    "holds_arrays",
    "pick_rows",
    "read_table",
    "subset_rows",
    "unpack_dataset",
]


_HELD = ("tensors", "arrays")  # attributes of objects that hold arrays
_LIBRARY = "torch.utils.data."  # whose [i] gives rows of what is held, as they are
_SAMPLING = ("__getitem__", "__getitems__", "__len__")  # what decides which samples there are


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Fields with ``n`` rows each, and what their targets are, by name; "" is that of one.

    Rows of several shapes have fields for each bucket, the largest first, and ``bucket_of``, the
    bucket of each row; ``fields`` are those of the largest.
    """

    fields: tuple[Field, ...]
    targets: dict[str, Targets]
    n: int
    buckets: tuple[tuple[Field, ...], ...] = ()
    bucket_of: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for field in self.fields:
            if 0 in field.array.shape[1:]:
                shape = field.array.shape
                raise DataError(f"{field.label}: its rows have no values, got shape {shape}")

    def split(self, rows: npt.NDArray[np.int64] | None) -> Split:
        """Some of its rows, None: all, as a split."""
        if self.bucket_of is None:
            return Split(self.fields, rows, self.n if rows is None else len(rows))
        parts = tuple(Split(fields, None, 0) for fields in self.buckets)
        whole = Split(self.fields, None, self.n, parts, bucket_of=self.bucket_of)
        return whole.take(np.arange(self.n) if rows is None else rows)

    def field(self, name: str) -> Field | None:
        """The field of that name, or None."""
        return next((field for field in self.fields if field.name == name), None)


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """What a dataset object holds: arrays, and which of their rows it means."""

    X: Any
    y: Any = None
    weight: Any = None
    rows: npt.NDArray[np.int64] | None = None


def read_table(
    X: Any,
    y: Any,
    weight: Any,
    *,
    prefix: str = "",
    like: Table | None = None,
    standardize: bool | frozenset[str] = False,
    by_row: bool = False,
) -> Table:
    """Reads inputs, targets and weights.

    Parameters
    ----------
    X : array_like, dict or tuple of them
    y : array_like, dict or tuple of them, or None
    weight : array_like or None
    prefix : str
        Before the names in messages, ``"val "``.
    like : Table, optional
        The training table, whose fields these must share.
    standardize : bool or set of str
        Columns that become floats though they are integers; True: an X of its own.
    by_row : bool
        Whether targets are those of rows of sequences.

    Raises
    ------
    DataError
    """
    fields = _read_inputs(X, prefix, standardize)
    n = len(fields[0].array)
    for field in fields:
        if len(field.array) != n:
            raise DataError(
                f"{field.label}: must have as many rows as {fields[0].label}, {n}, got "
                f"{len(field.array)}"
            )
    targets: dict[str, Targets] = {}
    if y is not None:
        known = like.targets if like is not None and like.targets else None
        targets = read_all_targets(y, f"{prefix}y", n, known, by_row=by_row)
        for name, target in targets.items():
            full_name, label, part = "y", f"{prefix}y", y
            if name:
                key = int(name) if isinstance(y, tuple) else name
                full_name, label, part = f"y.{name}", f"{label}[{key!r}]", y[key]
            _check_length(target.array, n, label, fields[0].label, X)
            fields.append(Field(full_name, target.array, target.dtype, label, column_names(part)))
    if weight is not None:
        label = f"{prefix}sample_weight"
        array = to_array(weight, label)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array.reshape(len(array))
        if array.ndim != 1:
            raise DataError(f"{label}: must have shape ({n},), got {array.shape}")
        _check_length(array, n, label, fields[0].label, X)
        fields.append(Field("weight", array, "float32", label))
    table = Table(tuple(fields), targets, n)
    if like is not None:
        table = _match(table, like, prefix)
    return table


def _check_length(array: npt.NDArray[Any], n: int, label: str, first: str, X: Any) -> None:
    if len(array) != n:
        parts = [len(part) for part in X if hasattr(part, "__len__")] if type(X) is list else []
        is_several = bool(parts) and set(parts) == {len(array)}
        hint = (
            "; several inputs are a tuple, (X1, X2), and a list is an array" if is_several else ""
        )
        raise DataError(
            f"{label}: must have one entry per row of {first}, which has {n}, got {len(array)}"
            f"{hint}"
        )


# ---- inputs


def _read_inputs(X: Any, prefix: str, standardize: bool | frozenset[str]) -> list[Field]:
    label = f"{prefix}X"
    if X is None:
        raise DataError(f"{label}: an array is needed, got None")
    if isinstance(X, Mapping):
        parts = [(f"x.{key}", f"{label}[{key!r}]", value) for key, value in X.items()]
        check_keys(list(X), label)
    elif isinstance(X, tuple):
        parts = [(f"x.{i}", f"{label}[{i}]", value) for i, value in enumerate(X)]
    else:
        parts = [("x", label, X)]
    if not parts:
        raise DataError(f"{label}: has no arrays, got {show(X)}")
    columns = [(name, own, _read_column(value, own), value) for name, own, value in parts]
    check_numbers([(name.removeprefix("x."), own, raw) for name, own, raw, _ in columns], label)
    return [_read_input(*column, standardize) for column in columns]


def _read_column(value: Any, label: str) -> npt.NDArray[Any]:
    if isinstance(value, (tuple, Mapping)):
        raise DataError(f"{label}: must be an array, got {type(value).__name__} {show(value)}")
    return read_raw(value, label)


def _read_input(
    name: str, label: str, raw: npt.NDArray[Any], value: Any, standardize: bool | frozenset[str]
) -> Field:
    array = to_array(raw, label)
    if len(array) == 0:
        raise DataError(f"{label}: has no rows, got shape {array.shape}")
    dtype = graph_dtype(array.dtype)
    if standardize is True:
        measured = name == "x"
    else:
        measured = bool(standardize) and name.partition(".")[2] in (standardize or ())
    if measured:
        dtype = "float32"
    return Field(name, array, dtype, label, column_names(value))


# ---- validation and test tables beside the training table


def _match(table: Table, like: Table, prefix: str) -> Table:
    """The table with its fields in the order of training; weights may differ."""
    wanted = [field for field in like.fields if field.name != "weight"]
    given = {field.name: field for field in table.fields}
    names = [field.name for field in wanted]
    extra = [name for name in given if name not in names and name != "weight"]
    missing = [name for name in names if name not in given]
    if extra or missing:
        near = {name: closest(name, extra) for name in missing}
        listed = [name + (f" (did you mean {n}?)" if n else "") for name, n in near.items()]
        got = f"none for {', '.join(listed)}" if missing else f"{', '.join(extra)} besides"
        raise DataError(f"{prefix}data: must have the parts of the training data, got {got}")
    fields = []
    for field in wanted:
        found = _by_columns(given[field.name], field.columns)
        if found.array.shape[1:] != field.array.shape[1:]:
            raise DataError(
                f"{found.label}: rows must have shape {field.array.shape[1:]} as in training, got "
                f"{found.array.shape[1:]}"
            )
        if field.dtype == "int64" and found.array.dtype.kind == "f":
            raise DataError(
                f"{found.label}: must hold integers as in training, got {found.array.dtype}"
            )
        fields.append(dataclasses.replace(found, dtype=field.dtype))
    if "weight" in given:
        fields.append(given["weight"])
    return Table(tuple(fields), table.targets, table.n)


def _by_columns(field: Field, wanted: tuple[str, ...] | None) -> Field:
    """A field of a data frame with the columns of training, found by name, in their order."""
    if not wanted or not field.columns or field.columns == wanted:
        return field
    missing = [name for name in wanted if name not in field.columns]
    if missing:
        raise DataError(
            f"{field.label}: must have all columns of training, got none for "
            f"{name_missing(missing, field.columns)}"
        )
    if field.array.ndim < 2:  # a target of one column
        return dataclasses.replace(field, columns=wanted)
    array = np.ascontiguousarray(field.array[:, [field.columns.index(name) for name in wanted]])
    return dataclasses.replace(field, array=array, columns=wanted)


# ---- objects


def _is_as_held(dataset: Any) -> bool:
    """Whether its samples are the rows that it holds: a user's own ``[i]`` may make others."""
    own = [getattr(type(dataset), name, None) for name in _SAMPLING]
    made = [str(getattr(of, "__module__", "")) for of in own if of is not None]
    return all(module.startswith(_LIBRARY) for module in made)


def _is_subset(dataset: Any) -> bool:
    return hasattr(dataset, "dataset") and hasattr(dataset, "indices") and _is_as_held(dataset)


def has_samples(dataset: Any) -> bool:
    """Whether it can make its samples one by one, though it may hold arrays."""
    if isinstance(dataset, (tuple, Mapping)) or is_arraylike(dataset):
        return False
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def holds_arrays(dataset: Any) -> bool:
    """Whether :func:`unpack_dataset` is to look at it, and it makes no samples one by one."""
    if isinstance(dataset, list) and dataset and isinstance(dataset[0], (tuple, Mapping)):
        return False  # a list of samples
    if isinstance(dataset, (tuple, Mapping)) or is_arraylike(dataset):
        return True
    if dataset is None or isinstance(dataset, (str, bytes, os.PathLike)):
        return True  # which unpack_dataset refuses in words of its own
    if any(isinstance(getattr(dataset, name, None), (tuple, list)) for name in _HELD):
        return _is_as_held(dataset)
    return _is_subset(dataset) and holds_arrays(dataset.dataset)


def subset_rows(dataset: Any, label: str) -> npt.NDArray[np.int64] | None:
    """Which rows of the innermost dataset a subset, or a subset of one, has; None: no subset.

    Raises
    ------
    DataError
        For what is no row number, and one that a dataset lacks.
    """
    if not _is_subset(dataset):
        return None
    rows = read_raw(dataset.indices, f"{label}.indices")
    if rows.ndim != 1 or (rows.dtype.kind not in "iu" and rows.size):
        raise DataError(
            f"{label}.indices: must be row numbers, got dtype {rows.dtype} of shape {rows.shape}; "
            "np.flatnonzero(mask) has those of a mask"
        )
    inner = subset_rows(dataset.dataset, f"{label}.dataset")
    rows = rows.astype(np.int64)
    return rows if inner is None else pick_rows(inner, rows, f"{label}.indices")


def pick_rows(
    rows: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64], label: str
) -> npt.NDArray[np.int64]:
    """Some of the rows of a subset, by their numbers in it.

    Raises
    ------
    DataError
        For a number that it lacks.
    """
    bad = (numbers < -len(rows)) | (numbers >= len(rows))
    if bad.any():
        raise DataError(
            f"{label}: row numbers must lie between 0 and {len(rows) - 1}, got "
            f"{numbers[np.argmax(bad)]}"
        )
    return rows[numbers]


def unpack_dataset(dataset: Any, label: str) -> Source:
    """The arrays in a dataset.

    Parameters
    ----------
    dataset : tuple, array_like, dict, or object
        ``(X, y)`` or ``(X, y, weight)``; X alone; an object with ``.tensors`` or ``.arrays``; a
        subset of one (``.dataset`` and ``.indices``).

    Raises
    ------
    ConfigError
        If it holds none.
    """
    if isinstance(dataset, tuple):
        return _unpack_tuple(dataset, label)
    if isinstance(dataset, (str, bytes, os.PathLike)):
        raise ConfigError(
            f"{label}: must be (X, y) or an array, got the path {os.fsdecode(dataset)!r}; read "
            "the file first"
        )
    if isinstance(dataset, Mapping) or is_arraylike(dataset):
        return Source(dataset)
    for attribute in _HELD:
        held = getattr(dataset, attribute, None)
        if isinstance(held, (tuple, list)):
            return _unpack_tuple(tuple(held), f"{label}.{attribute}")
    if _is_subset(dataset):
        inner = unpack_dataset(dataset.dataset, f"{label}.dataset")
        return dataclasses.replace(inner, rows=subset_rows(dataset, label))
    if hasattr(dataset, "__iter__"):
        raise ConfigError(
            f"{label}: must have a length and [i], got the iterable {type(dataset).__name__}; "
            "DataModule.from_generator(make, n) takes a function that returns one, list(...) one "
            "that fits memory"
        )
    raise ConfigError(
        f"{label}: must be (X, y), an array, or an object with .tensors or .arrays, got "
        f"{type(dataset).__name__} {show(dataset)}"
    )


def _unpack_tuple(parts: tuple[Any, ...], label: str) -> Source:
    if not 1 <= len(parts) <= 3:
        raise ConfigError(
            f"{label}: must be (X,), (X, y) or (X, y, weight), got {len(parts)} parts; several "
            "inputs go into X as a tuple or dict: ((X1, X2), y)"
        )
    return Source(*parts)


def count_rows(X: Any) -> int:
    """Rows of the first array in X, without converting it; 0 when they are unknown."""
    if isinstance(X, Mapping):
        X = next(iter(X.values()), ())
    elif isinstance(X, tuple):
        X = X[0] if X else ()
    try:
        return len(X)
    except TypeError:
        return 0
