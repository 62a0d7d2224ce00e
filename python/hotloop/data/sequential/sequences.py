"""Reads sequences of several lengths, and lays them into buckets (see data/padding.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import reject, show
from hotloop.base.scalars import plain
from hotloop.data.arrays import DTYPES, is_arraylike, read_raw, to_array
from hotloop.data.padding import (
    ROLES,
    Padding,
    Sequences,
    bucket_of,
    find_buckets,
    say_inside,
)
from hotloop.data.split import Field, Split
from hotloop.data.strides import windows_of
from hotloop.data.tables import Table, read_table
from hotloop.data.targets import IGNORED, Targets
from hotloop.errors import DataError

__all__ = [
    "Laid",
    "Layout",
    "are_sequences",
    "lay_sequences",
    "pad_sequences",
    "read_buckets",
    "read_pad_value",
    "read_role",
    "read_sequences",
    "split_sequences",
    "targets_of",
]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]


class Laid(NamedTuple):
    """Sequences as they lie in memory: every field has an entry for each of their rows.

    Attributes
    ----------
    table : Table
        Fields "x.0", the sequences, and "x.1", their lengths; "y" and "weight" where there are
        some.
    sequences : Sequences
    by_row : frozenset of str
        Fields that have a value of its own for each row of a sequence.
    ids : integer array (n,) or None
        Of sequences that are classified, their classes.
    """

    table: Table
    sequences: Sequences
    by_row: frozenset[str]
    ids: Rows | None


class Layout(NamedTuple):
    """How sequences get into batches.

    Attributes
    ----------
    buckets : list of int
        Lengths, ascending.
    role : str
        One of ``padding.ROLES``.
    fill : float
        What stands in padding.
    """

    buckets: list[int]
    role: str
    fill: float


# ---- reading


def are_sequences(value: Any) -> bool:
    """Whether it is a list, tuple or array of objects whose items are arrays with rows."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "O" and value.ndim == 1:
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or not len(value):
        return False
    return all(is_arraylike(item) and np.ndim(_outer(item)) > 0 for item in value)


def _without_index(value: Any) -> Any:
    """A column of a data frame whose entries are arrays as an array of objects."""
    is_column = hasattr(value, "to_numpy") and str(getattr(value, "dtype", "")) == "object"
    return value.to_numpy() if is_column else value


def _is_dense(value: Any) -> bool:
    """Whether it is an array of sequences of one length."""
    return isinstance(value, np.ndarray) and value.ndim > 1 and len(value) > 0


def _outer(item: Any) -> Any:
    """An array, or of nested lists a row of zeros as long: enough to see that there are rows."""
    return np.empty(len(item)) if isinstance(item, (list, range)) else item


def _concatenate(items: Sequence[Any], label: str) -> tuple[Array, Rows]:
    """The items below one another, and their lengths.

    Raises
    ------
    DataError
    """
    arrays = list(items)
    first = arrays[0]
    if not all(_is_like(array, first) for array in arrays):
        for i, item in enumerate(items):
            arrays[i] = to_array(read_raw(item, f"{label}[{i}]"), f"{label}[{i}]")
        first = arrays[0]
    for i, array in enumerate(arrays):
        if array.shape[1:] != first.shape[1:]:
            raise DataError(
                f"{label}: rows of all sequences must have one shape, {first.shape[1:]} as in "
                f"{label}[0], got {array.shape[1:]} in {label}[{i}]"
            )
        if not len(array):
            raise DataError(f"{label}[{i}]: must have a row at least, got shape {array.shape}")
    lengths = np.array([len(array) for array in arrays], np.int64)
    return np.concatenate(arrays), lengths


def _is_like(item: Any, first: Any) -> bool:
    """Whether both are arrays of one dtype, which the core knows."""
    return (
        type(item) is np.ndarray
        and type(first) is np.ndarray
        and item.dtype == first.dtype
        and item.ndim == first.ndim > 0
        and item.dtype.name in DTYPES
        and item.dtype.isnative
    )


def _read_lengths(lengths: Any, n_rows: int, label: str) -> Rows:
    array = read_raw(lengths, f"{label}lengths")
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise DataError(
            f"{label}lengths: must be integers, one for each sequence, got {array.dtype} of shape "
            f"{array.shape}"
        )
    array = array.astype(np.int64)
    if (array < 1).any():
        i = int(np.argmax(array < 1))
        raise DataError(f"{label}lengths: must be 1 at least, got {array[i]} of sequence {i}")
    if int(array.sum()) != n_rows:
        raise DataError(
            f"{label}lengths: must add up to the rows of X, {n_rows}, got {int(array.sum())}"
        )
    return array


def read_sequences(
    X: Any,
    y: Any,
    lengths: Any,
    weight: Any,
    *,
    prefix: str = "",
    like: Laid | None = None,
    standardize: bool = False,
) -> Laid:
    """Reads sequences, and a target and a weight for each.

    Parameters
    ----------
    X, y, lengths, weight
        As :meth:`DataModule.from_sequences` takes them.
    prefix : str
        Before the names in messages, ``"val "``.
    like : Laid, optional
        The training data.
    standardize : bool
        Whether integers become floats.

    Raises
    ------
    DataError
    """
    X, y = _without_index(X), _without_index(y)
    if lengths is not None:
        series = to_array(read_raw(X, f"{prefix}X"), f"{prefix}X")
        if series.ndim > 1 and len(series) == np.size(lengths) != np.sum(lengths):
            raise DataError(
                f"{prefix}X: with lengths the sequences stand below one another, (rows, ...), got "
                f"one sequence for each of {len(series)} lengths, shape {series.shape}; write "
                "from_sequences([x[:n] for x, n in zip(X, lengths)], ...)"
            )
        if not series.flags.c_contiguous:
            series = np.ascontiguousarray(series)
        known = _read_lengths(lengths, len(series), prefix)
    elif are_sequences(X) or (
        isinstance(X, np.ndarray) and X.ndim > 1 and X.dtype.kind != "O" and len(X)
    ):
        series, known = _concatenate(list(X), f"{prefix}X")
    else:
        raise DataError(
            f"{prefix}X: must be a list of arrays with a row for each step, or these below one "
            f"another and lengths=, got {type(X).__name__} {show(X)}"
        )
    if like is not None:
        wanted = like.table.fields[0].array.shape[1:]
        if series.shape[1:] != wanted:
            raise DataError(
                f"{prefix}X: rows must have shape {wanted} as in training, got {series.shape[1:]}"
            )
    sequences = Sequences.of(known)
    goal, is_by_row = _read_goal(y, sequences, prefix)
    if weight is not None:
        label = f"{prefix}sample_weight"
        if are_sequences(weight):
            raise DataError(f"{label}: must have one number for each sequence, got lists of them")
        weight = _spread(to_array(weight, label), sequences, label)
    table = read_table(
        (series, sequences.left),
        goal,
        weight,
        prefix=prefix,
        like=None if like is None else like.table,
        standardize=frozenset({"0"} if standardize else ()),
        by_row=is_by_row,
    )
    target = table.targets.get("")
    if like is not None and is_by_row != ("y" in like.by_row) and y is not None:
        raise DataError(
            f"{prefix}y: must have a target for each {'row' if 'y' in like.by_row else 'sequence'} "
            "as in training"
        )
    is_classified = target is not None and target.kind == "class" and not is_by_row
    ids = None
    if is_classified and target is not None and target.array.ndim == 1:
        ids = target.array[sequences.starts]
    by_row = frozenset({"x.0", "y"} if is_by_row else {"x.0"})
    label = f"{prefix}X"
    fields = tuple(
        dataclasses.replace(field, label=label if field.name == "x.0" else f"{prefix}lengths")
        if field.is_input
        else field
        for field in table.fields
    )
    return Laid(dataclasses.replace(table, fields=fields), sequences, by_row, ids)


def _read_goal(y: Any, sequences: Sequences, prefix: str) -> tuple[Any, bool]:
    """Targets with an entry for each row, and whether each row has one of its own."""
    if y is None:
        return None, False
    n, n_rows = len(sequences.lengths), len(sequences.left)
    if isinstance(y, (dict, tuple)):
        raise DataError(
            f"{prefix}y: must be an array with a target for each sequence, or a list of arrays "
            f"with one for each row, got a {type(y).__name__}; several targets are not supported "
            "for sequences"
        )
    if are_sequences(y) and len(y) != n:
        raise DataError(
            f"{prefix}y: must have one entry for each of the {n} sequences, got {len(y)}"
        )
    if are_sequences(y):
        found = np.array([len(item) for item in y])
        if (found == sequences.lengths).all():
            if all(isinstance(item, np.ndarray) for item in y):
                return np.concatenate(list(y)), True
            return [value for item in y for value in item], True
        if len(set(found)) > 1:
            i = int(np.argmax(found != sequences.lengths))
            raise DataError(
                f"{prefix}y[{i}]: must have a target for each of the {sequences.lengths[i]} rows "
                f"of {prefix}X[{i}], got {found[i]}"
            )
    array = read_raw(y, f"{prefix}y")
    if array.ndim and len(array) == n_rows and n_rows != n:
        return array, True
    return _spread(array, sequences, f"{prefix}y"), False


def _spread(array: Array, sequences: Sequences, label: str) -> Array:
    """One value for each sequence, repeated for each of its rows."""
    n = len(sequences.lengths)
    if not array.ndim or len(array) != n:
        raise DataError(
            f"{label}: must have one entry for each of the {n} sequences, or for each of their "
            f"{len(sequences.left)} rows, got shape {array.shape}"
        )
    return np.repeat(array, sequences.lengths, axis=0)


# ---- buckets


def read_buckets(buckets: Any, lengths: Rows, batch_size: int) -> list[int]:
    """The lengths of buckets, declared or found.

    Raises
    ------
    ConfigError, DataError
    """
    if isinstance(buckets, str) and buckets == "auto":
        return find_buckets(lengths, min(batch_size, len(lengths)))
    listed = [buckets] if isinstance(buckets, int) else buckets
    is_list = isinstance(listed, (list, tuple, range, np.ndarray)) and len(listed) > 0
    if not is_list or not all(
        isinstance(one, (int, np.integer)) and not isinstance(one, bool) and one > 0
        for one in listed
    ):
        reject("buckets", "must be 'auto' or a list of lengths, at least 1 each", buckets)
    made = sorted({int(one) for one in listed})
    if int(lengths.max()) > made[-1]:
        i = int(np.argmax(lengths > made[-1]))
        raise DataError(
            f"buckets: the longest must hold every sequence, got {made[-1]} for "
            f"{int(lengths.max())} rows (sequence {i} has {lengths[i]}); add a bucket, or cut the "
            "sequences"
        )
    return made


def read_role(lengths_as: Any) -> str:
    """How forward learns of padding.

    Raises
    ------
    ConfigError
    """
    if lengths_as not in ROLES:
        reject("lengths_as", f"must be one of {', '.join(map(repr, ROLES))}", lengths_as)
    return str(lengths_as)


def read_pad_value(value: Any, laid: Laid) -> float:
    """What stands in padding; of ids a whole number.

    Raises
    ------
    ConfigError
    """
    value = plain(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not np.isfinite(value):
        reject("pad_value", "must be a finite number", value)
    field = laid.table.field("x.0")
    if field is not None and field.dtype == "int64":
        if value != int(value):
            reject("pad_value", "must be whole, since X holds integers", value)
        return int(value)
    return float(value)


def lay_sequences(laid: Laid, layout: Layout) -> tuple[Field, ...]:
    """Fields of sequences in the longest bucket, from which those of any bucket are cut.

    Parameters
    ----------
    laid : Laid
    layout : Layout
    """
    return tuple(_lay_field(laid, field, layout) for field in laid.table.fields)


def split_sequences(
    fields: tuple[Field, ...], numbers: Rows | None, buckets: Sequence[int]
) -> Split:
    """The split of some sequences of fields that were laid, with its buckets.

    Parameters
    ----------
    fields : tuple of Field
        Of whatever bucket.
    numbers : int64 array or None
        Of sequences; None: all.
    buckets : sequence of int
        Lengths of all buckets, ascending.
    """
    padding = fields[0].padding
    assert padding is not None  # of sequences
    sequences = padding.sequences
    assert sequences is not None  # in memory
    chosen = np.arange(len(sequences.lengths)) if numbers is None else numbers
    of_bucket = bucket_of(buckets, sequences.lengths[chosen])
    made = []
    for number in np.unique(of_bucket)[::-1]:
        inside = chosen[of_bucket == number]
        of = tuple(_at_length(field, buckets[number]) for field in fields)
        made.append(Split(of, sequences.starts[inside], len(inside)))
    longest = buckets[-1]
    is_long = made[0].fields[0].shape[0] == longest
    whole = made[0].fields if is_long else tuple(_at_length(field, longest) for field in fields)
    return Split(whole, sequences.starts[chosen], len(chosen), tuple(made))


def _with_room(array: Array, longest: int) -> Array:
    """The rows, and behind them as many zeros as a window from the last one on reaches."""
    return np.concatenate([array, np.zeros((longest, *array.shape[1:]), array.dtype)])


def _lay_field(laid: Laid, field: Field, layout: Layout) -> Field:
    """A field of the longest bucket."""
    longest = layout.buckets[-1]
    array, dtype, base = field.array, field.dtype, None
    role, fill = "sequence", 0.0
    if field.name in laid.by_row:
        base = _with_room(field.array, longest)
        array, role = windows_of(base, longest)[: len(laid.sequences.left)], "rows"
        fill = layout.fill
        if field.name == "y":  # values have no class that counts nothing
            fill = IGNORED if field.dtype == "int64" else 0.0
    elif field.name == "x.1":
        role, dtype = layout.role, "int64" if layout.role == "lengths" else "bool"
    padding = Padding(laid.sequences, longest, role, fill)
    return dataclasses.replace(field, array=array, dtype=dtype, padding=padding, series=base)


def _at_length(field: Field, length: int) -> Field:
    """The same field in a bucket of this length."""
    padding = field.padding
    assert padding is not None
    if padding.length == length:
        return field
    array = field.array
    if padding.role == "rows":
        assert field.series is not None
        array = windows_of(field.series, length)[: len(array)]
    padding = dataclasses.replace(padding, length=length)
    return dataclasses.replace(field, array=array, padding=padding)


def targets_of(laid: Laid, split: Split) -> dict[str, Targets]:
    """What the targets are, of those that each row has with their padding."""
    if "y" not in laid.by_row:
        return laid.table.targets
    array = next(field.array for field in split.fields if field.name == "y")
    (target,) = laid.table.targets.values()
    is_class = target.kind == "class"
    return {"": dataclasses.replace(target, array=array, has_ignored=is_class)}


# ---- prediction


def pad_sequences(
    given: Any, role: str, fill: float, length: int | None
) -> tuple[Array, Array, Rows]:
    """Sequences of several lengths as one batch, what says which of its rows are no padding, and
    the lengths.

    Parameters
    ----------
    given : list of arrays
    role : str
        One of ``padding.ROLES``.
    fill : float
    length : int or None
        Rows of the batch; None: of the longest.

    Raises
    ------
    DataError
    """
    series, lengths = _concatenate(list(given), "X")
    longest = int(lengths.max()) if length is None else length
    if lengths.max() > longest:
        i = int(np.argmax(lengths > longest))
        raise DataError(
            f"X[{i}]: must have {longest} rows at most, got {lengths[i]}: a model from a file "
            "takes sequences as long as the longest bucket of its training; add a longer one there "
            "(buckets=[...]), or build the module and load_state_dict(loaded.state_dict())"
        )
    padded = np.full((len(lengths), longest, *series.shape[1:]), fill, series.dtype)
    padded[np.arange(longest) < lengths[:, None]] = series
    return padded, say_inside(role, lengths, longest), lengths
