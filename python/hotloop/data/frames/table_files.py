"""Tables in CSV and Parquet files, read by a library that is installed.

A CSV file says little about itself, so what readers let pass is checked here: a first line that
names no columns, two columns of one name, rows with fewer or more fields, a delimiter that is
another one. Files are read whole: a table of rows is small beside what images are.

Rejected: a reader of our own, which would be slower than pyarrow's and parse less.
"""

from __future__ import annotations

import bz2
import csv
import glob
import gzip
import importlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from hotloop.base.messages import named, warn
from hotloop.base.rules import reject, show
from hotloop.base.suggest import name_missing
from hotloop.data.frames.columns import Frame, read_frame
from hotloop.errors import ConfigError, DataError, DataWarning

__all__ = ["read_csv", "read_parquet"]

# What an empty field may say; the same for every reader.
_NULLS = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
]  # fmt: skip
_INSTALL = "pip install 'hotloop[tables]'"
_INDEX = "__index_level_"  # how pandas names the row numbers that it writes to Parquet


def read_csv(
    path: Any, delimiter: Any = ",", names: Any = None, wanted: Iterable[str] | None = None
) -> Frame:
    """The columns of a CSV file, or of several below one another.

    Parameters
    ----------
    path : path-like, or list of them
        A file, a pattern such as ``"data/*.csv"``, or a folder of .csv files. UTF-8, as it is or
        in .gz and .bz2.
    delimiter : str
        Between fields.
    names : list of str, optional
        Of the columns, where the first line is a row.
    wanted : iterable of str, optional
        Columns that are enough.

    Raises
    ------
    ConfigError
        If no library is installed that reads it, or an option is out of range.
    DataError
        By file and row, for what is no such table.
    """
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        reject("delimiter", "must be one character", delimiter)
    if names is not None:
        names = [names] if isinstance(names, str) else list(names)
        if not names or not all(isinstance(name, str) for name in names):
            reject("names", "must be a list of columns' names", names)
    readers = {"pyarrow": _csv_by_pyarrow, "pandas": _csv_by_pandas, "polars": _csv_by_polars}
    library, read = _choose("from_csv", readers)

    def read_one(file: Path) -> Any:
        header = _check_header(file, delimiter, names)
        kept = [n for n in header if n and (wanted is None or n in set(wanted))]
        return read(library, file, delimiter, header, names is not None, kept)

    return _read_all(path, ("csv", "csv.gz", "csv.bz2"), read_one)


def read_parquet(path: Any, wanted: Iterable[str] | None = None) -> Frame:
    """The columns of a Parquet file, or of several below one another.

    Parameters
    ----------
    path, wanted
        As for :func:`read_csv`.

    Raises
    ------
    ConfigError, DataError
    """
    readers = {
        "pyarrow": lambda library, file, columns: importlib.import_module(
            "pyarrow.parquet"
        ).read_table(file, columns=columns, partitioning=None),
        "polars": lambda library, file, columns: library.read_parquet(file, columns=columns),
        "pandas": lambda library, file, columns: library.read_parquet(file, columns=columns),
    }
    library, read = _choose("from_parquet", readers)
    columns = None if wanted is None else list(wanted)

    def read_one(file: Path) -> Any:
        # without the choice again: a column that is missing is told with all names that there are
        for choice in (columns, None):
            try:
                table = read(library, file, choice)
                break
            except (KeyboardInterrupt, SystemExit, MemoryError):
                raise
            except BaseException as error:  # each library's own; polars' panics are no Exceptions
                failed = error
        else:
            raise DataError(f"{file}: cannot be read as Parquet ({_line(failed)})") from failed
        kept = [n for n in _names_of(table) if not n.startswith(_INDEX)]
        return _select(table, kept)

    return _read_all(path, ("parquet",), read_one)


def _choose(what: str, readers: dict[str, Callable[..., Any]]) -> tuple[Any, Callable[..., Any]]:
    """The first library that is installed, and how it reads."""
    for name, read in readers.items():
        try:
            return importlib.import_module(name), read
        except ImportError:
            continue
    raise ConfigError(
        f"{what}: files are read through {', '.join(readers)}, got none of them installed; "
        f"{_INSTALL}"
    )


def _line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


# ---- files


def _find_files(path: Any, endings: Sequence[str]) -> list[Path]:
    """The files that are meant, in the order given, those of a pattern sorted."""
    if isinstance(path, list | tuple):
        if not path:
            raise ConfigError("path: a file at least is needed, got an empty list")
        return [file for part in path for file in _find_files(part, endings)]
    if not isinstance(path, str | os.PathLike):
        reject("path", "must be a path, a pattern or a list of them", path)
    place = Path(path)
    if place.is_dir():
        found = sorted(
            file for ending in endings for file in place.glob(f"*.{ending}") if file.is_file()
        )
        if not found:
            raise DataError(f"{place}: has no .{endings[0]} file")
        return found
    if place.is_file():
        return [place]
    if any(mark in str(place) for mark in "*?["):
        found = sorted(Path(file) for file in glob.glob(str(place), recursive=True))
        if not found:
            raise DataError(f"{place}: no file matches this pattern")
        return found
    near = name_missing([place.name], [file.name for file in place.parent.glob("*")])
    hint = f": {near}" if "did you mean" in near else ""
    raise DataError(f"{place}: there is no such file{hint}")


def _read_all(path: Any, endings: Sequence[str], read_one: Callable[[Path], Any]) -> Frame:
    """All files below one another; columns are found by name."""
    files = _find_files(path, endings)
    tables = [read_one(file) for file in files]
    names = _names_of(tables[0])
    for file, table in zip(files, tables):
        _check_same(file, _names_of(table), files[0], names)
        if not len(table):
            raise DataError(f"{file}: has no rows")
    tables = [_select(table, names) for table in tables]
    table = tables[0] if len(tables) == 1 else _concatenate(tables)
    sizes = [(file.name, len(part)) for file, part in zip(files, tables)]
    frame = read_frame(table, str(files[0]) if len(files) == 1 else str(path))
    frame.files = tuple(sizes)
    return frame


def _check_same(file: Path, given: list[str], first: Path, names: list[str]) -> None:
    """Refuses a file whose columns are not those of the first."""
    missing = [name for name in names if name not in given]
    extra = [name for name in given if name not in names]
    if missing or extra:
        got = f"none for {name_missing(missing, given)}" if missing else f"{named(extra)} besides"
        raise DataError(f"{file}: must have the columns of {first.name}, got {got}")


def _names_of(table: Any) -> list[str]:
    listed = table.column_names if hasattr(table, "column_names") else table.columns
    return [str(name) for name in listed]


def _select(table: Any, names: list[str]) -> Any:
    if _names_of(table) == names:
        return table
    return table.select(names) if hasattr(table, "select") else table[names]


def _concatenate(tables: list[Any]) -> Any:
    """Tables of one library below one another; numbers beside texts become texts, of which the
    encoding finds out that they should not.
    """
    first = tables[0]
    if hasattr(first, "iloc"):
        pandas = importlib.import_module("pandas")
        for name in first.columns:
            if len({table[name].dtype.kind in "biufM" for table in tables}) > 1:
                for table in tables:
                    table[name] = table[name].astype("string").astype(object)
        return pandas.concat(tables, ignore_index=True)
    if hasattr(first, "schema") and hasattr(first, "column_names"):
        pyarrow = importlib.import_module("pyarrow")
        for name in first.column_names:
            kinds = {table.schema.field(name).type for table in tables}
            if len(kinds) > 1 and any(map(pyarrow.types.is_string, kinds)):
                tables = [_as_text(pyarrow, table, name) for table in tables]
        return pyarrow.concat_tables(tables, promote_options="permissive")
    polars = importlib.import_module("polars")
    return polars.concat(tables, how="vertical_relaxed")


def _as_text(pyarrow: Any, table: Any, name: str) -> Any:
    at = table.column_names.index(name)
    return table.set_column(at, name, table.column(at).cast(pyarrow.string()))


# ---- CSV


def _open(file: Path) -> IO[str]:
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
    made: IO[str] = openers.get(file.suffix, open)(file, "rt", encoding="utf-8-sig", newline="")
    return made


def _check_header(file: Path, delimiter: str, names: list[str] | None) -> list[str]:
    """The names of a file's columns.

    Raises
    ------
    DataError
        If its first line does not name them.
    """
    try:
        with _open(file) as lines:
            first = next((row for row in csv.reader(lines, delimiter=delimiter) if row), None)
    except (OSError, UnicodeDecodeError, EOFError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read as CSV in UTF-8 ({_line(error)})") from error
    if first is None:
        raise DataError(f"{file}: is empty; a first line names the columns, and rows follow")
    if len(first) == 1:
        other = next((c for c in ";\t|," if c != delimiter and c in first[0]), None)
        if other is not None:
            raise DataError(
                f"{file}: fields are separated by {delimiter!r}, got the first line "
                f"{show(first[0])}; write delimiter={other!r}"
            )
    if names is not None:
        if len(names) != len(first):
            raise DataError(
                f"{file}: names must be those of all {len(first)} fields of a line, got "
                f"{len(names)}"
            )
        first = names
    elif _looks_like_a_row(first):
        raise DataError(
            f"{file}: the first line must name the columns, got {show(first)}; add a line of names "
            "to the file, or give names=[...]"
        )
    twice = next((name for i, name in enumerate(first) if name and name in first[:i]), None)
    if twice is not None:
        raise DataError(
            f"{file}: names of columns must differ, got {twice!r} twice; rename one, or give "
            "names=[...] where the first line is a row"
        )
    nameless = [i for i, name in enumerate(first) if not name]
    if nameless and nameless != [0]:
        raise DataError(f"{file}: each column needs a name, got none for column {nameless[-1]}")
    if nameless:
        warn(
            f"{file}: column 0 has no name and is left out: it is the row numbers of a frame; "
            "write frame.to_csv(path, index=False)",
            DataWarning,
        )
    return first


def _looks_like_a_row(cells: list[str]) -> bool:
    """Whether most of a first line are numbers, other than columns that are numbered upwards."""
    values = []
    for cell in cells:
        try:
            values.append(float(cell))
        except ValueError:
            continue
    is_numbered = all(value.is_integer() for value in values if abs(value) < 1e15) and all(
        a < b for a, b in itertools.pairwise(values)
    )
    return 2 * len(values) > len(cells) and not is_numbered


def _check_fields(file: Path, delimiter: str, n: int, has_names: bool) -> None:
    """Refuses a file with a row that has more or fewer fields than the first line."""
    try:
        with _open(file) as lines:
            for number, row in enumerate(filter(None, csv.reader(lines, delimiter=delimiter))):
                if len(row) != n:
                    raise DataError(
                        f"{file}: each row must have {n} fields as the first line, got {len(row)} "
                        f"in row {number - (not has_names)}: {show(delimiter.join(row))}"
                    )
    except (OSError, UnicodeDecodeError, EOFError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read as CSV in UTF-8 ({_line(error)})") from error


def _csv_by_pyarrow(
    library: Any, file: Path, delimiter: str, header: list[str], has_names: bool, kept: list[str]
) -> Any:
    reader = importlib.import_module("pyarrow.csv")

    def read(*, is_careful: bool) -> Any:
        return reader.read_csv(
            file,
            reader.ReadOptions(column_names=header if has_names else None),
            reader.ParseOptions(delimiter=delimiter, newlines_in_values=is_careful),
            reader.ConvertOptions(
                null_values=_NULLS, strings_can_be_null=True, include_columns=kept
            ),
        )

    try:
        try:
            table = read(is_careful=False)
        except library.ArrowInvalid:
            table = read(is_careful=True)  # texts may hold the ends of lines
    except library.ArrowInvalid as error:
        _check_fields(file, delimiter, len(header), has_names)  # names the row
        raise DataError(f"{file}: cannot be read as CSV ({_line(error)})") from error
    for field in table.schema:
        if library.types.is_binary(field.type):
            raise DataError(f"{file}: must be UTF-8, got other bytes in column {field.name!r}")
    return table


def _csv_by_pandas(
    library: Any, file: Path, delimiter: str, header: list[str], has_names: bool, kept: list[str]
) -> Any:
    _check_fields(file, delimiter, len(header), has_names)
    try:
        table = library.read_csv(
            file,
            sep=delimiter,
            names=header,
            header=None if has_names else 0,
            usecols=kept,
            index_col=False,
            na_values=_NULLS,
            keep_default_na=False,
            low_memory=False,
        )
    except (ValueError, UnicodeError) as error:
        raise DataError(f"{file}: cannot be read as CSV ({_line(error)})") from error
    for name in table.columns:  # as the other readers do it
        if table[name].dtype.kind == "O" and str(table[name].dropna().iloc[:1].sum())[4:5] == "-":
            try:
                table[name] = library.to_datetime(table[name], format="ISO8601")
            except ValueError:
                continue
    return table[kept]


def _csv_by_polars(
    library: Any, file: Path, delimiter: str, header: list[str], has_names: bool, kept: list[str]
) -> Any:
    _check_fields(file, delimiter, len(header), has_names)
    try:
        table = library.read_csv(
            file,
            separator=delimiter,
            has_header=not has_names,
            new_columns=header,
            null_values=_NULLS,
            infer_schema_length=None,
            try_parse_dates=True,
        )
    except Exception as error:  # of its own kinds
        raise DataError(f"{file}: cannot be read as CSV ({_line(error)})") from error
    return table.select(kept)
