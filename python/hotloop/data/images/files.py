"""Which image files there are, and what they show: folders of classes, tables of paths.

Only names are looked at here; what stands in a file shows when it is decoded. Paths come out
absolute, in an order that is the same on every machine, so a row number means the same file as long
as the folder does not change. A folder may come from anywhere: links that lead out of it are
refused unless they are asked for, and what is no image is named, never left out in silence.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import show
from hotloop.base.suggest import name_missing
from hotloop.data.arrays import column_names
from hotloop.data.images.annotations import Wanted, read_points
from hotloop.errors import ConfigError, DataError

__all__ = ["ImageFiles", "names_of_columns", "read_image_folder", "read_image_table"]

# What cameras, browsers and Pillow write. A file of another name is an image if it begins like one.
_SUFFIXES = frozenset(
    {
        *(
            ".avif",
            ".bmp",
            ".dib",
            ".gif",
            ".ico",
            ".j2k",
            ".jfif",
            ".jp2",
            ".jpe",
            ".jpeg",
            ".jpg",
        ),
        *(".pbm", ".pcx", ".pgm", ".png", ".pnm", ".ppm", ".sgi", ".tga", ".tif", ".tiff", ".webp"),
    }
)
_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*")
# What file browsers leave behind; names that begin with a dot count too.
_LITTER = frozenset({"thumbs.db", "desktop.ini"})
_NAMED = 5  # files that a message names
# Texts of a table that are numbers: a whole one is written in one way, so that two texts never are
# one class.
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
_WHOLE = re.compile(r"\s*[+-]?[0-9]+\s*")


class ImageFiles(NamedTuple):
    """Image files in a fixed order.

    paths : absolute, one per file.
    labels : of shape (n,): the number of a class, or a table's column as it is; None: there are
        none.
    classes : names of the classes by number; None where labels are no numbers of classes.
    masks : absolute, one per file; None: there are none.
    points : float32 (n, points, 3), as ``read_points`` gives them; None: there are none.
    """

    paths: list[str]
    labels: npt.NDArray[Any] | None
    classes: tuple[str, ...] | None
    masks: list[str] | None = None
    points: npt.NDArray[np.float32] | None = None


# ---- folders


def read_image_folder(root: str | os.PathLike[str], *, follow_symlinks: bool = False) -> ImageFiles:
    """The image files below a folder that has a folder for each class.

    Parameters
    ----------
    root : path
        Its folders are the classes, in sorted order; the files of a class may lie in folders of
        their own. Names that begin with a dot are left out.
    follow_symlinks : bool
        Whether links may lead out of root.

    Returns
    -------
    ImageFiles
        Sorted by class, then by path.

    Raises
    ------
    DataError
        If root is no folder, has no classes, or a class no images; for files that are no images or
        lie beside the classes, for what is neither file nor folder (a pipe), for links that are
        broken, lead out of root or in a circle.
    """
    top = os.path.realpath(os.fspath(root))
    if not os.path.isdir(top):
        raise DataError(f"root: must be a folder, got {show(os.fspath(root))}")
    folders, beside = _list_folder(top, top, follow_symlinks)
    if beside:
        raise DataError(
            f"root: images must lie in folders of classes, got {_name_files(top, beside)} directly "
            f"in {top}"
        )
    if not folders:
        raise DataError(
            f"root: must have a folder for each class, got none in {top}; for labels in a table "
            "use from_image_table"
        )
    paths: list[str] = []
    counts: list[int] = []
    wrong: list[str] = []
    for folder in folders:
        found = list(_walk(folder, top, follow_symlinks, ()))
        wrong += [path for path in found if not _is_image(path)]
        if not found:
            raise DataError(
                f"root: every class must have an image, got none in {os.path.relpath(folder, top)}"
                f" of {top}"
            )
        paths += found
        counts.append(len(found))
    if wrong:
        raise DataError(
            f"root: all files must be images, got {_name_files(top, wrong)} in {top}; move them, "
            "or put a dot in front of their names"
        )
    labels = np.repeat(np.arange(len(folders), dtype=np.int64), counts)
    return ImageFiles(paths, labels, tuple(os.path.basename(folder) for folder in folders))


def _list_folder(folder: str, top: str, follow: bool) -> tuple[list[str], list[str]]:
    """Folders and files of a folder, sorted, links as what they lead to."""
    folders: list[str] = []
    files: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.name.startswith(".") or entry.name.lower() in _LITTER:
                    continue
                if entry.is_symlink():
                    _check_link(entry.path, top, follow)
                if not (entry.is_dir() or entry.is_file()):  # whose end is never reached
                    raise DataError(
                        f"root: must hold files and folders, got {entry.path}, which is neither; "
                        "move it, or put a dot in front of its name"
                    )
                (folders if entry.is_dir() else files).append(entry.path)
    except OSError as error:
        raise DataError(f"root: must be readable, got {error}") from error
    return folders, files


def _walk(folder: str, top: str, follow: bool, inside: tuple[str, ...]) -> Iterator[str]:
    """All files below a folder, those of a folder before those of the folders in it."""
    real = os.path.realpath(folder)
    if real in inside:
        raise DataError(f"root: links must not lead in a circle, got {folder}")
    folders, files = _list_folder(folder, top, follow)
    yield from files
    for name in folders:
        yield from _walk(name, top, follow, (*inside, real))


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip(os.sep) + os.sep)


def _check_link(path: str, top: str, follow: bool) -> None:
    target = os.path.realpath(path)
    if not os.path.exists(target):
        raise DataError(f"root: links must lead to a file, got {path} to {target}, which is not")
    if not follow and not _is_below(target, top):
        raise DataError(
            f"root: links must not lead out of {top}, got {path} to {target}; follow_symlinks=True "
            "allows it"
        )


def _is_image(path: str) -> bool:
    if os.path.splitext(path)[1].lower() in _SUFFIXES:
        return True
    try:
        with open(path, "rb") as file:
            begin = file.read(12)
    except OSError as error:
        raise DataError(f"root: must be readable, got {error}") from error
    return begin.startswith(_BEGINNINGS) or begin[8:12] == b"WEBP"


def _name_files(top: str, paths: Sequence[str]) -> str:
    """ "a/notes.txt, b/x.csv and 12 more" """
    named = ", ".join(os.path.relpath(path, top) for path in paths[:_NAMED])
    return named + (f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else "")


# ---- tables


def read_image_table(
    table: Any,
    path: str,
    label: str | None = None,
    *,
    wanted: Wanted | None = None,
    root: str | os.PathLike[str] | None = None,
    follow_symlinks: bool = False,
) -> ImageFiles:
    """The image files that a table names.

    Parameters
    ----------
    table : path of a CSV file with a header, data frame, or dict of columns
    path : str
        The column with the files' paths. Those that are not absolute begin at root.
    label : str, optional
        The column with what they show: texts, whole numbers (both classes) or other numbers. Texts
        are numbers where all of them are: whole ones where each is written as Python writes it, so
        that "01" and "1" are two classes of texts.
    wanted : Wanted, optional
        The columns of masks and points.
    root : path, optional
        By default the folder of the CSV file, or the current one for other tables.
    follow_symlinks : bool
        Whether paths that begin at root may lead out of it, by links or by "..".

    Returns
    -------
    ImageFiles
        In the order of the table; classes is None, as labels are what the column holds.

    Raises
    ------
    ConfigError
        For a column that there is not.
    DataError
        For a row without a path or a label, a file that is not there or no file, a path out of
        root: names the row (from 0, without the header).
    """
    annotated = Wanted() if wanted is None else wanted
    named = [path, *([] if label is None else [label]), *annotated.columns]
    if isinstance(table, (str, os.PathLike)):
        columns = _read_csv(os.fspath(table), named)
        begin = os.path.dirname(os.path.abspath(os.fspath(table)))
    else:
        columns = _read_columns(table, named)
        begin = os.getcwd()
    top = os.path.realpath(os.fspath(root) if root is not None else begin)
    if not len(columns[0]):
        raise DataError("table: must have a row at least, got none")

    def resolve(values: Sequence[Any], column: str) -> list[str]:
        rows = enumerate(values)
        return [_resolve(row, value, column, top, follow_symlinks) for row, value in rows]

    found = iter(columns)
    paths = resolve(next(found), path)
    labels = None if label is None else _read_labels(next(found), label)
    masks = None if annotated.mask is None else resolve(next(found), annotated.mask)
    return ImageFiles(paths, labels, None, masks, read_points(list(found), annotated))


def _read_csv(name: str, wanted: Sequence[str]) -> list[list[str]]:
    try:
        with open(name, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if missing := [column for column in wanted if column not in header]:
                raise ConfigError(f"table: {name} has no column {name_missing(missing, header)}")
            places = [header.index(column) for column in wanted]
            columns: list[list[str]] = [[] for _ in wanted]
            row = 0
            for cells in reader:
                if not cells:  # an empty line
                    continue
                if len(cells) != len(header):
                    raise DataError(
                        f"table: {name} must have {len(header)} cells in every row, got "
                        f"{len(cells)} in row {row}"
                    )
                for column, place in zip(columns, places, strict=True):
                    column.append(cells[place])
                row += 1
    except OSError as error:
        raise DataError(f"table: {name} cannot be read ({error.strerror or error})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"table: {name} must be a CSV file in UTF-8, got {error}") from error
    return columns


def names_of_columns(table: Any) -> Sequence[str] | None:
    """Those of a data frame or a dict of columns; None: it is no table."""
    return [str(name) for name in table] if isinstance(table, Mapping) else column_names(table)


def _read_columns(frame: Any, wanted: Sequence[str]) -> list[Any]:
    names = names_of_columns(frame)
    if names is None:
        raise ConfigError(
            "table: must be the path of a CSV file, a data frame or a dict of columns, got "
            f"{type(frame).__name__} {show(frame)}"
        )
    if missing := [column for column in wanted if column not in names]:
        raise ConfigError(f"table: has no column {name_missing(missing, names)}")
    columns = [np.asarray(frame[column]).tolist() for column in wanted]
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise DataError(f"table: columns must be of one length, got {lengths} of {wanted}")
    return columns


def _resolve(row: int, value: Any, column: str, top: str, follow: bool) -> str:
    is_path = isinstance(value, (str, os.PathLike)) and os.fspath(value) != ""
    if not is_path or "\0" in str(value):
        raise DataError(f"table: {column} must be a path in every row, got {value!r} in row {row}")
    given = os.fspath(value)
    full = os.path.normpath(os.path.join(top, given))
    is_inside = os.path.isabs(given) or _is_below(os.path.realpath(full), top)
    if not follow and not is_inside:
        raise DataError(
            f"table: {column} must not lead out of {top}, got {given!r} in row {row}; "
            "follow_symlinks=True allows it"
        )
    if not os.path.isfile(full):
        found = "is no file" if os.path.exists(full) else "is not there"
        raise DataError(
            f"table: {column} must name files, got {given!r} in row {row}: {full} {found}"
        )
    return full


def _read_labels(values: Sequence[Any], column: str) -> npt.NDArray[Any]:
    """Whole numbers, else numbers, else texts."""
    for row, value in enumerate(values):
        if _is_missing(value):
            raise DataError(
                f"table: {column} must have a label in every row, got {value!r} in row {row}"
            )
    if all(isinstance(value, str) for value in values):
        return _numbers_of_texts(values, column)
    return np.array(values)


def _is_missing(value: Any) -> bool:
    """None, an empty text, NaN, or a missing value of pandas, which compares to neither."""
    if value is None or isinstance(value, str):
        return not value
    is_same = value == value
    return not isinstance(is_same, (bool, np.bool_)) or not is_same


def _numbers_of_texts(texts: Sequence[str], column: str) -> npt.NDArray[Any]:
    """Texts as what they are: numbers where all are.

    Raises
    ------
    DataError
        For numbers beside one that is not finite.
    """
    is_number = [_NUMBER.fullmatch(text) is not None for text in texts]
    odd = [row for row, good in enumerate(is_number) if not good]
    if any(is_number) and all(_is_not_finite(texts[row]) for row in odd):
        if odd:
            raise DataError(
                f"table: {column} must be finite in every row, got {texts[odd[0]]!r} in row "
                f"{odd[0]} beside numbers; leave the row out, or give classes other names"
            )
        if not all(_WHOLE.fullmatch(text) for text in texts):
            return np.array([float(text) for text in texts])
        numbers = [int(text) for text in texts]
        fit = np.iinfo(np.int64)
        if all(fit.min <= n <= fit.max and str(n) == t for n, t in zip(numbers, texts)):
            return np.array(numbers, np.int64)
    return np.array(texts)


def _is_not_finite(text: str) -> bool:
    try:
        return not math.isfinite(float(text))
    except ValueError:
        return False
