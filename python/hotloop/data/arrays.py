"""Whatever holds numbers, as an array that the core can read.

The core reads C-contiguous, aligned, native-endian arrays of the dtypes in ``DTYPES``, and windows
of such an array. An array that already is one is used in place: nothing here or below ever writes
to it. Everything else is converted once, without losing a value, or refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import format_bytes
from hotloop.base.rules import show
from hotloop.base.suggest import name_missing
from hotloop.data.streams import stream_of
from hotloop.data.strides import series_of, windows_of
from hotloop.errors import ConfigError, DataError, OutOfMemoryError

__all__ = [
    "DTYPES",
    "check_keys",
    "check_numbers",
    "column_names",
    "graph_dtype",
    "is_arraylike",
    "pick_columns",
    "read_raw",
    "to_array",
]

Array = npt.NDArray[Any]

DTYPES = (
    "float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip

# Dtypes that the core does not have, and the one of its dtypes that holds all their values.
_WIDER = {"uint16": "int32", "uint32": "int64"}
_NUMBERS = "biuf"

# What to do instead, by NumPy's kind of dtype.
_FIXES = {
    "c": "give real and imaginary part as two columns, np.stack([a.real, a.imag], -1)",
    "M": "give the time since a start as numbers, (a - a[0]) / np.timedelta64(1, 's')",
    "m": "give it as numbers, a / np.timedelta64(1, 's')",
    "U": "encode the texts as numbers (np.unique(a, return_inverse=True)[1] gives ids)",
    "S": "encode the texts as numbers (np.unique(a, return_inverse=True)[1] gives ids)",
    "T": "encode the texts as numbers (np.unique(a, return_inverse=True)[1] gives ids)",
    "V": "give the fields as a dict of columns, {name: a[name] for name in a.dtype.names}",
}


def to_array(value: Any, name: str) -> Array:
    """The value as an array that the core can read.

    Parameters
    ----------
    value : array_like
        A NumPy array, anything with the buffer protocol, ``__array__`` or DLPack, a pandas or
        polars object, nested lists of numbers; a Stream is returned as it is.
    name : str
        What it is, for messages.

    Returns
    -------
    ndarray
        C-contiguous, aligned, native-endian, at least one dim, dtype one of ``DTYPES``; windows of
        a series stay a view of it. The value's own memory where that already is so, else a copy.

    Raises
    ------
    DataError
        If it is not an array of numbers, or holds numbers that no dtype of the core holds.
    OutOfMemoryError
        If there is no room for a copy.
    """
    if stream_of(value) is not None:
        return cast("Array", value)
    raw = read_raw(value, name)
    if not _holds_numbers(raw):
        _refuse_dtype(raw, name)
    if raw.dtype.name == "bfloat16":
        raw = raw.astype(np.float32)
    if raw.ndim == 0:
        raise DataError(f"{name}: an array with one row per sample is needed, got {show(value)}")
    series, window = series_of(raw)
    if window:
        return windows_of(to_array(series, name), window)
    dtype = _known_dtype(raw, name)
    try:
        return np.require(raw, dtype, ["C_CONTIGUOUS", "ALIGNED"])
    except MemoryError:
        size = format_bytes(raw.size * dtype.itemsize)
        raise OutOfMemoryError(
            f"{name}: needs a copy of {size}, {dtype} and contiguous, of an array of shape "
            f"{raw.shape} and dtype {raw.dtype}; out of memory. Give fewer rows at a time"
        ) from None


def graph_dtype(dtype: np.dtype[Any]) -> str:
    """The dtype in which forward sees a feature: float32, or int64 for integers (ids).

    bool and uint8 (flags and pixels) count as measurements and become float32.
    """
    return "int64" if dtype.kind in "iu" and dtype != np.uint8 else "float32"


def check_keys(keys: Sequence[Any], label: str) -> None:
    """Refuses names of a dict's arrays that are no strings, or that a tuple's positions would have.

    Parameters
    ----------
    keys : sequence
    label : str
        What the dict is, for messages.

    Raises
    ------
    DataError
    """
    for key in keys:
        if not isinstance(key, str) or not key:
            raise DataError(f"{label}: the names of columns must be strings, got {key!r}")
    if keys and all(key.isdigit() for key in keys):
        raise DataError(
            f"{label}: names of columns must not all be numbers, got {show(keys)}; give a tuple of "
            "arrays for forward(*arrays), or names with a letter"
        )


def column_names(value: Any) -> tuple[str, ...] | None:
    """Names of a data frame's columns; None for other arrays."""
    return tuple(str(name) for name in value.columns) if _is_frame(value) else None


def pick_columns(frame: Any, role: str, wanted: Any) -> tuple[Any, list[str]]:
    """A data frame's column of a name, or its columns of a list of names.

    Parameters
    ----------
    frame : DataFrame
        Of pandas, polars, or what has ``columns``, ``to_numpy`` and ``frame[name or names]``.
    role : str
        What they are for, for messages.
    wanted : str, list of str, or anything else
        Anything else is no name and is handed back.

    Returns
    -------
    tuple
        The values, and the names that were used.

    Raises
    ------
    ConfigError
        If there is no such column.
    DataError
        If it is no data frame.
    """
    names = column_names(frame)
    if names is None:
        raise DataError(
            f"frame: a data frame is needed, got {type(frame).__name__} {show(frame)}; from_arrays "
            "takes arrays and dicts of columns"
        )
    is_list = isinstance(wanted, list) and all(isinstance(name, str) for name in wanted)
    if not isinstance(wanted, str) and not (is_list and role in ("target", "features")):
        return wanted, []
    listed = wanted if is_list else [wanted]
    missing = [name for name in listed if name not in names]
    if missing:
        raise ConfigError(
            f"{role}: must name columns of the frame, got none for {name_missing(missing, names)}"
        )
    if not listed:
        raise ConfigError(f"{role}: must name a column at least, got an empty list")
    return frame[wanted], listed


def is_arraylike(value: Any) -> bool:
    """Whether :func:`read_raw` knows a way to read the value."""
    if isinstance(value, (np.ndarray, list, range, memoryview, bytearray)):
        return True
    if any(hasattr(value, a) for a in ("__array__", "__array_interface__", "__dlpack__")):
        return True
    return hasattr(value, "to_numpy") or hasattr(value, "toarray") or _has_buffer(value)


def read_raw(value: Any, name: str) -> Array:
    """The value as a NumPy array of whatever dtype, strides and byte order it comes in.

    Raises
    ------
    DataError
        If there is no way to read it as one.
    """
    if stream_of(value) is not None:
        return cast("Array", value)
    if isinstance(value, np.ma.MaskedArray):
        return _read_masked(value, name)
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if isinstance(value, (str, bytes, Mapping)) or not (
        isinstance(value, tuple) or is_arraylike(value)
    ):
        raise DataError(f"{name}: an array is needed, got {type(value).__name__} {show(value)}")
    try:
        if _is_frame(value):
            return _read_frame(value, name)
        if hasattr(value, "to_numpy"):
            return _read_series(value)
        if hasattr(value, "toarray") and not hasattr(value, "__array__"):
            raise DataError(
                f"{name}: sparse matrices are not supported, got {type(value).__name__}; convert "
                "it with .toarray() if it fits into memory"
            )
        return _read_foreign(value)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # another library's object may raise anything
        if isinstance(value, (list, tuple)):
            raise DataError(
                f"{name}: the rows of a list must have one shape and hold numbers, got "
                f"{show(value)} ({_first_line(error)}); sequences of several lengths go through "
                "DataModule.from_sequences"
            ) from error
        raise DataError(
            f"{name}: this {type(value).__module__}.{type(value).__name__} cannot be read as a "
            f"NumPy array ({_first_line(error)}); convert it first"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _has_buffer(value: Any) -> bool:
    try:
        memoryview(value).release()
    except TypeError:
        return False
    return True


def _read_masked(value: Any, name: str) -> Array:
    n = int(np.ma.getmaskarray(value).sum())
    if n:
        raise DataError(
            f"{name}: {n} values of the masked array are masked; fill them (.filled(value)) or "
            "drop their rows"
        )
    return np.asarray(value.data)


def _read_foreign(value: Any) -> Array:
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # torch: leave the graph and the GPU
        value = value.detach().cpu()
        if "bfloat16" in str(value.dtype):
            value = value.float()
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    return np.asarray(value)


# ---- data frames


def _is_frame(value: Any) -> bool:
    return hasattr(value, "to_numpy") and hasattr(value, "columns") and len(value.shape) == 2


def _read_frame(frame: Any, name: str) -> Array:
    whole = np.asarray(frame.to_numpy())
    if whole.dtype.kind in _NUMBERS:
        return whole
    names = column_names(frame) or ()
    columns = []
    for i in range(len(names)):
        series = frame.iloc[:, i] if hasattr(frame, "iloc") else frame.get_columns()[i]
        columns.append(_read_series(series))
    check_numbers([(c, f"{name}: column {c!r}", a) for c, a in zip(names, columns)], name)
    return np.stack(columns, axis=1)


def _read_series(series: Any) -> Array:
    values = np.asarray(series.to_numpy())
    is_number = getattr(series.dtype, "kind", "O") in _NUMBERS
    if values.dtype.kind == "O" and is_number:  # pandas' nullable numbers with missing ones
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    return values


# ---- dtypes


def _known_dtype(raw: Array, name: str) -> np.dtype[Any]:
    dtype = raw.dtype.newbyteorder("=")
    if dtype.name in DTYPES:
        return dtype
    if dtype.name in _WIDER:
        return np.dtype(_WIDER[dtype.name])
    if dtype.kind == "u":
        _refuse_outside(raw, raw > np.uint64(2**63 - 1), name, "int64 holds up to 2**63 - 1")
        return np.dtype(np.int64)
    if dtype.kind == "f":  # longdouble: float32 is what forward sees, the range has to fit
        limit = np.finfo(np.float64).max
        outside = np.isfinite(raw) & (np.abs(raw) > limit)
        _refuse_outside(raw, outside, name, f"float64 holds up to {limit:g}")
        return np.dtype(np.float64)
    _refuse_dtype(raw, name)


def _refuse_outside(raw: Array, outside: Array, name: str, why: str) -> None:
    if outside.any():
        index = np.unravel_index(int(np.argmax(outside)), raw.shape)
        where = ", ".join(str(int(i)) for i in index)
        raise DataError(
            f"{name}: {raw.dtype} is converted once, {why}, got {raw[index]} at [{where}]"
        )


def check_numbers(columns: Sequence[tuple[str, str, Array]], name: str) -> None:
    """Refuses columns that hold something else than numbers, all of them at once.

    Parameters
    ----------
    columns : sequence of (str, str, ndarray)
        Each column's name, its label in a message of its own, and its values.
    name : str
        What they are columns of, for messages.

    Raises
    ------
    DataError
    """
    refused = [column for column in columns if not _holds_numbers(column[2])]
    if len(refused) == 1:
        _refuse_dtype(refused[0][2], refused[0][1])
    if refused:
        named = ", ".join(f"{column!r} ({_find_other(raw)[1]})" for column, _, raw in refused)
        raise DataError(
            f"{name}: all columns must hold numbers, got {named}; leave these out, or give a "
            "frame to DataModule.from_pandas, which encodes texts and dates"
        )


def _holds_numbers(raw: Array) -> bool:
    return raw.dtype.kind in _NUMBERS or raw.dtype.name == "bfloat16"  # ml_dtypes', of kind "V"


def _find_other(raw: Array) -> tuple[str, str]:
    """Where the first value that is no number stands, and what it is; of objects by value."""
    if raw.dtype.kind == "O":
        for index, item in np.ndenumerate(raw):
            if not isinstance(item, (bool, int, float, np.number, np.bool_)):
                return ", ".join(str(i) for i in index), f"{type(item).__name__} {show(item)}"
    is_text = raw.dtype.kind in "UST" and raw.size
    return "", f"{raw.dtype}, {show(raw.flat[0])}" if is_text else str(raw.dtype)


def _refuse_dtype(raw: Array, name: str) -> NoReturn:
    kind = raw.dtype.kind
    what = f"{name}: must hold numbers, got dtype {raw.dtype}"
    if kind != "O":
        raise DataError(f"{what}; {_FIXES.get(kind, 'convert it to float32')}")
    if raw.ndim == 0:
        raise DataError(f"{name}: an array is needed, got {show(raw.item())}")
    where, found = _find_other(raw)
    if where:
        raise DataError(
            f"{what}: the value at [{where}] is {found}; drop or encode what is not a number"
        )
    raise DataError(f"{what}; convert it with .astype(np.float32)")
