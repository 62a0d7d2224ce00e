"""Data frames of other libraries as columns of numbers, dates or categories.

Each column is read on its own. Numbers stay where they are wherever a library shows its memory
(pandas' blocks, Arrow's buffers of one chunk); texts are numbered by the library's own hash table.
What is missing is NaN, or the code -1, whatever the library calls it. Nothing is written to.

Rejected: frame.to_numpy(), which makes objects of a frame with one column of texts; and everything
through Arrow, which not every user has, and which copies pandas' objects.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import functools
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.rules import show
from hotloop.base.suggest import name_missing
from hotloop.data.arrays import column_names, read_raw
from hotloop.errors import ConfigError, DataError

__all__ = ["Column", "Frame", "Picked", "in_threads", "is_table", "read_frame"]

Array = npt.NDArray[Any]

_MANY = 2**16  # rows from which threads pay
_MOST_THREADS = 4  # a pass over memory gains nothing of more
_DAY = np.timedelta64(1, "D")
_KINDS = "numbers, texts, categories or dates"


@dataclasses.dataclass(frozen=True, eq=False)
class Column:
    """A column that was understood.

    Attributes
    ----------
    name : str
    kind : str
        "number", "date" or "category".
    values : ndarray (n,) or None
        Numbers in their own dtype, dates as float64 days since 1970-01-01; missing ones are NaN.
    codes : int array (n,) or None
        Of categories: which one, -1 where it is missing.
    categories : list
        Texts, numbers or bools, in the order of the library or of their first row.
    is_declared : bool
        Whether the library calls it categories, so that their order is meant.
    """

    name: str
    kind: str
    values: Array | None = None
    codes: Array | None = None
    categories: Sequence[Any] = ()
    is_declared: bool = False

    @functools.cached_property
    def missing(self) -> npt.NDArray[np.int64]:
        """The rows without a value."""
        if self.codes is not None:
            return np.flatnonzero(self.codes < 0)
        assert self.values is not None  # it has one of the two
        if self.values.dtype.kind != "f" or _core.check_finite(self.values) is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(np.isnan(self.values))

    @functools.cached_property
    def as_category(self) -> Column:
        """The same with its different values as categories, in ascending order."""
        if self.kind == "category":
            return self
        assert self.values is not None  # it is no category
        known = np.ones(len(self.values), np.bool_)
        known[self.missing] = False
        different, found = np.unique(self.values[known], return_inverse=True)
        codes = np.full(len(self.values), -1, np.int64)
        codes[known] = found
        return Column(self.name, "category", None, codes, different.tolist(), is_declared=True)

    def to_numpy(self) -> Array:
        """Its values as one array: numbers, else objects."""
        if self.values is not None:
            return self.values
        assert self.codes is not None  # it has one of the two
        table = np.empty(len(self.categories) + 1, np.object_)
        table[:-1] = self.categories
        return np.asarray(table[self.codes])  # -1: None

    @property
    def plural(self) -> str:
        """What it holds, in words."""
        return "categories" if self.kind == "category" else f"{self.kind}s"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of what to_numpy gives."""
        return np.dtype(np.object_) if self.values is None else self.values.dtype


def in_threads(call: Callable[[Any], Any], items: Sequence[Any], n: int) -> list[Any]:
    """``[call(item) for item in items]``, on threads where each has ``n`` rows and they are many:
    NumPy and Arrow let the others run.
    """
    n_threads = min(_MOST_THREADS, len(items), len(os.sched_getaffinity(0)))
    if n < _MANY or n_threads < 2:
        return [call(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor  # imports logging, which takes its time

    with ThreadPoolExecutor(n_threads) as threads:
        return list(threads.map(call, items))


class Picked:
    """Some columns as a frame, as far as arrays and targets ask for one."""

    def __init__(self, columns: Sequence[Column], n: int) -> None:
        self._columns = list(columns)
        self.columns = [column.name for column in columns]
        self.shape = (n, len(columns))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, name: str) -> Array:
        return self._columns[self.columns.index(name)].to_numpy()

    def get_columns(self) -> list[Column]:
        """The columns in order."""
        return self._columns

    def to_numpy(self) -> Array:
        """All of them as one array ``(n, columns)``."""
        return np.stack([column.to_numpy() for column in self._columns], axis=1)


def _refuse_reading(i: int) -> NoReturn:
    raise AssertionError(f"column {i} was not read before the frame was pickled")


class Frame:
    """A frame's columns by name, each read when it is first asked for.

    Parameters
    ----------
    names : list of str
    n : int
        Rows.
    read : callable
        ``read(i)``: the column of that position.
    label : str
        What it is, for messages.
    files : sequence of (str, int)
        Of a table that was read from files: their names and rows, in order.
    """

    def __init__(
        self,
        names: Sequence[str],
        n: int,
        read: Callable[[int], Column],
        label: str = "frame",
        files: Sequence[tuple[str, int]] = (),
    ) -> None:
        self.names, self.n, self.label, self.files = list(names), n, label, tuple(files)
        self._read = read
        self._columns: dict[str, Column] = {}
        twice = next((name for i, name in enumerate(names) if name in self.names[:i]), None)
        if twice is not None:
            raise DataError(f"{label}: names of columns must differ, got {twice!r} twice")

    def __len__(self) -> int:
        return self.n

    def __getstate__(self) -> dict[str, Any]:
        """With the columns that were read: those that data is made of."""
        return {**self.__dict__, "_read": _refuse_reading}

    def column(self, name: str) -> Column:
        """The column of a name that there is."""
        if name not in self._columns:
            self._columns[name] = self._read(self.names.index(name))
        return self._columns[name]

    def pick(self, role: str, wanted: Any) -> tuple[Any, list[str]]:
        """A column of a name, or those of a list of names; what is no name is handed back.

        Parameters
        ----------
        role : str
            What they are for, for messages.
        wanted : str, list of str, or anything else

        Returns
        -------
        tuple
            Column, :class:`Picked` or what was given; and the names that were used.

        Raises
        ------
        ConfigError
            If there is no such column.
        """
        is_list = isinstance(wanted, list) and all(_is_name(name) for name in wanted)
        if not _is_name(wanted) and not (is_list and role in ("target", "features")):
            return wanted, []
        listed = [str(name) for name in (wanted if is_list else [wanted])]
        missing = [name for name in listed if name not in self.names]
        if missing:
            named = name_missing(missing, self.names)
            raise ConfigError(f"{role}: must name columns of the frame, got none for {named}")
        if not listed:
            raise ConfigError(f"{role}: must name a column at least, got an empty list")
        if not is_list:
            return self.column(listed[0]), listed
        if role == "features":  # which are read one by one
            return listed, listed
        return Picked([self.column(name) for name in listed], self.n), listed

    def place(self, row: int) -> str:
        """``row 17``, ``row 3 of b.csv``."""
        first = 0
        for name, n in self.files:
            if row < first + n:
                return f"row {row - first} of {name}"
            first += n
        return f"row {row}"


def _is_name(value: Any) -> bool:
    """Whether it names a column: a text, or a number as pandas numbers those without names."""
    return isinstance(value, str | int | np.integer) and not isinstance(value, bool)


def is_table(value: Any) -> bool:
    """Whether it is a data frame or an Arrow table, which :func:`read_frame` reads."""
    return isinstance(value, Frame) or _is_arrow(value) or column_names(value) is not None


def read_frame(value: Any, label: str = "frame", *, takes_dict: bool = False) -> Frame:
    """The columns of a data frame, of an Arrow table, or of a dict of columns.

    Parameters
    ----------
    value : DataFrame, table or dict of array_like
        Of pandas, polars or pyarrow; what has ``__arrow_c_stream__``, through pyarrow; what has
        ``columns``, ``to_numpy`` and ``frame[name]``.
    label : str
        What it is, for messages.
    takes_dict : bool
        Whether a dict of columns is one.

    Raises
    ------
    ConfigError
        If pyarrow is needed to read it, and not installed.
    DataError
        If it is none of these, or two columns have one name.
    """
    if isinstance(value, Frame):
        return value
    if takes_dict and isinstance(value, Mapping):
        arrays = [(str(name), read_raw(part, f"{label}[{name!r}]")) for name, part in value.items()]
        for name, array in arrays:
            if array.ndim != 1 or len(array) != len(arrays[0][1]):
                n = len(arrays[0][1]) if arrays[0][1].ndim else 1
                raise DataError(
                    f"{label}[{name!r}]: must have shape ({n},), one value for each row, got "
                    f"{array.shape}"
                )
        parts = [functools.partial(_of_array, name, array, label) for name, array in arrays]
        n = len(arrays[0][1]) if arrays else 0
        return Frame([name for name, _ in arrays], n, lambda i: parts[i](), label)
    if hasattr(value, "iloc") and column_names(value) is not None:
        names = [str(name) for name in value.columns]
        return Frame(
            names, len(value), lambda i: _of_pandas(names[i], value.iloc[:, i], label), label
        )
    if _is_arrow(value):
        return _read_arrow(value, label)
    given = column_names(value)
    if given is None and hasattr(value, "__arrow_c_stream__") and not _has_pyarrow():
        raise ConfigError(
            f"{label}: this {type(value).__name__} is read through pyarrow, which is not "
            "installed; pip install 'hotloop[tables]'"
        )
    if given is None:
        lazy = "; write frame.collect()" if hasattr(value, "collect") else ""
        raise DataError(
            f"{label}: a data frame is needed, got {type(value).__name__} {show(value)}"
            f"{lazy or '; from_arrays takes arrays and dicts of columns'}"
        )
    return Frame(
        given,
        len(value),
        lambda i: _of_series(given[i], value[value.columns[i]], label),
        label,
    )


def _is_arrow(value: Any) -> bool:
    """Whether it gives an Arrow stream, and there is pyarrow to read it."""
    if not hasattr(value, "__arrow_c_stream__") or hasattr(value, "iloc"):
        return False
    if column_names(value) is not None or hasattr(value, "column_names"):
        return _has_pyarrow()
    return not hasattr(value, "dtype") and not hasattr(value, "type") and _has_pyarrow()


@functools.cache
def _has_pyarrow() -> bool:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


# ---- Arrow


def _read_arrow(value: Any, label: str) -> Frame:
    import pyarrow

    try:
        table = value if isinstance(value, pyarrow.Table) else pyarrow.table(value)
    except (pyarrow.ArrowException, TypeError) as error:
        raise DataError(
            f"{label}: Arrow does not read this {type(value).__name__} ({_line(error)}); leave out "
            "or convert the column"
        ) from error
    names = [str(name) for name in table.column_names]
    return Frame(
        names, table.num_rows, lambda i: _of_arrow(names[i], table.column(i), label), label
    )


def _of_arrow(name: str, column: Any, label: str) -> Column:
    import pyarrow

    kinds, kind = pyarrow.types, column.type
    if kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_dictionary(kind):
        return _of_dictionary(name, column, label)
    if "view" in str(kind):
        return _of_arrow(name, column.cast(pyarrow.large_string()), label)
    if kinds.is_null(kind):
        return Column(name, "number", np.full(len(column), np.nan))
    if kinds.is_boolean(kind) and column.null_count:
        column = column.cast(pyarrow.int8())
    elif kinds.is_decimal(kind) or kinds.is_float16(kind):
        column = column.cast(pyarrow.float64())
    elif kinds.is_date(kind):
        column = column.cast(pyarrow.timestamp("ms"))
    elif not (
        kinds.is_boolean(kind)
        or kinds.is_integer(kind)
        or kinds.is_floating(kind)
        or kinds.is_timestamp(kind)
        or kinds.is_duration(kind)
    ):
        raise DataError(f"{label}: column {name!r}: must hold {_KINDS}, got {kind}")
    return _of_array(name, column.to_numpy(), label)


def _of_dictionary(name: str, column: Any, label: str) -> Column:
    """Texts, which Arrow numbers, and categories that are numbered already."""
    import pyarrow

    is_declared = pyarrow.types.is_dictionary(column.type)
    if not is_declared:
        column = column.dictionary_encode()
    if isinstance(column, pyarrow.ChunkedArray):
        column = column.unify_dictionaries().combine_chunks()
    if isinstance(column, pyarrow.ChunkedArray):  # of an empty column
        return Column(name, "category", None, np.zeros(0, np.int64), [])
    codes = column.indices.cast(pyarrow.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    listed = column.dictionary.to_pylist()
    if None in listed:  # a dictionary may name what is missing
        codes = np.where(codes == listed.index(None), -1, codes)
    return Column(name, "category", None, codes, _plain(listed), is_declared=is_declared)


def _plain(categories: Sequence[Any]) -> list[Any]:
    """Categories as texts, numbers and bools, which a file can hold: intervals by their text."""
    return [
        each if isinstance(each, str | bool | int | float | None) else str(each)
        for each in categories
    ]


# ---- pandas


def _of_pandas(name: str, series: Any, label: str) -> Column:
    dtype = series.dtype
    if hasattr(dtype, "categories"):
        codes = series.cat.codes.to_numpy()
        listed = _plain(dtype.categories.tolist())
        return Column(name, "category", None, codes, listed, is_declared=True)
    if hasattr(dtype, "pyarrow_dtype") or getattr(dtype, "storage", "") == "pyarrow":
        import pyarrow

        column = series.array.__arrow_array__()
        if not isinstance(column, pyarrow.ChunkedArray):
            column = pyarrow.chunked_array([column])
        return _of_arrow(name, column, label)
    if isinstance(dtype, np.dtype) and dtype.kind != "O":
        return _of_array(name, series.to_numpy(), label)
    if dtype.kind in "biuf" and hasattr(dtype, "numpy_dtype"):  # nullable
        if series.isna().any():
            return Column(name, "number", series.to_numpy(dtype=np.float64, na_value=np.nan))
        return Column(name, "number", series.to_numpy(dtype=dtype.numpy_dtype))
    if dtype.kind == "M":  # with a time zone
        return _of_array(name, series.to_numpy("datetime64[us]"), label)
    if dtype.kind in "biuf":  # sparse
        return _of_array(name, np.asarray(series.to_numpy()), label)
    try:
        codes, different = series.factorize()
    except TypeError:
        return _of_array(name, np.asarray(series.to_numpy(), np.object_), label)
    return _of_objects(name, codes, list(different), label)


# ---- arrays


def _of_series(name: str, series: Any, label: str) -> Column:
    try:
        array = np.asarray(series.to_numpy())
    except Exception as error:  # whatever the library raises
        raise DataError(
            f"{label}: column {name!r}: must hold {_KINDS}, got what is no array "
            f"({_line(error)}); leave it out"
        ) from error
    return _of_array(name, array, label)


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _of_array(name: str, array: Array, label: str) -> Column:
    kind = array.dtype.kind
    if kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if kind in "biuf":
        return Column(name, "number", array)
    if kind == "M":
        return Column(name, "date", _days(array.astype("datetime64[us]").view("int64"), array))
    if kind == "m":
        return Column(name, "number", _days(array.astype("timedelta64[us]").view("int64"), array))
    if kind not in "OUT":
        raise DataError(f"{label}: column {name!r}: must hold {_KINDS}, got {array.dtype}")
    number: dict[Any, int] = {}
    codes = np.empty(len(array), np.int64)
    for row, value in enumerate(array.tolist()):
        if value is None or _is_nan(value):
            codes[row] = -1
            continue
        try:
            codes[row] = number.setdefault(value, len(number))
        except TypeError:
            _refuse(name, value, row, label, "")
    return _of_objects(name, codes, list(number), label)


def _is_nan(value: Any) -> bool:
    """NaN and NaT, which differ from themselves."""
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # arrays
        return False


def _days(microseconds: npt.NDArray[np.int64], array: Array) -> npt.NDArray[np.float64]:
    days = microseconds / (_DAY / np.timedelta64(1, "us"))
    unknown = np.isnat(array)
    if unknown.any():
        days[unknown] = np.nan
    return np.asarray(days, np.float64)


def _of_objects(name: str, codes: Array, different: list[Any], label: str) -> Column:
    """A column of Python's objects, by the kinds of its different values."""
    kinds = [_kind_of(value) for value in different]
    odd = next((i for i, kind in enumerate(kinds) if not kind or kind != kinds[0]), None)
    if odd is not None and not (set(kinds) <= {"bool", "number"}):
        row = int(np.argmax(codes == odd))
        _refuse(name, different[odd], row, label, kinds[0] if odd else "")
    if not kinds:
        return Column(name, "number", np.full(len(codes), np.nan))
    if kinds[0] == "text":
        return Column(name, "category", None, codes, [str(value) for value in different])
    if kinds[0] == "date":
        return _of_array(
            name, np.array([*different, None], "datetime64[us]")[codes], label
        )  # -1: the last
    if (codes < 0).any() or any(isinstance(value, decimal.Decimal) for value in different):
        different = [float(value) for value in [*different, np.nan]]
    return Column(name, "number", np.asarray(different)[codes])


def _kind_of(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, numbers.Real | decimal.Decimal):
        return "number"
    if isinstance(value, datetime.date):
        return "date"
    return ""


def _refuse(name: str, value: Any, row: int, label: str, beside: str) -> NoReturn:
    what = f"{type(value).__name__} {show(value)} in row {row}"
    if beside:
        raise DataError(
            f"{label}: column {name!r}: must hold values of one kind, got {what} beside "
            f"{beside}s; correct it, or make all of them texts"
        )
    raise DataError(f"{label}: column {name!r}: must hold {_KINDS}, got {what}; leave it out")
