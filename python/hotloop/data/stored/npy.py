"""Arrays in .npy files, mapped into memory and never read as a whole.

One file in the order and a dtype of the core is used in place: its map is the array, and the core
gathers a batch from it, so that the system reads the pages that a batch needs. Rows of several
files are one array by their numbers alone: a batch is gathered from each file that it has rows of,
by the threads of a feed. So are rows of a file whose bytes are in another order.

Rejected: mapping several files behind one another into one range of addresses. A .npy file begins
with a header, so its rows begin at no page's border.
"""

from __future__ import annotations

import functools
import glob
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.messages import warn
from hotloop.base.rules import show
from hotloop.data.arrays import DTYPES, graph_dtype
from hotloop.data.contents import digest_files
from hotloop.data.streams import make_streams
from hotloop.errors import DataError, DataWarning

__all__ = ["are_paths", "find_files", "map_npy", "read_npy", "read_parts"]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]

_MAGIC = b"\x93NUMPY"
_NUMBERS = "biuf"
_MOST_MAPPED = 64  # files that stay mapped; others are mapped when a batch has rows of them


# ---- which files


def find_files(given: Any, name: str) -> list[str]:
    """Paths of a path, a pattern, or a list of them.

    Parameters
    ----------
    given : str, path or sequence of them
        A pattern's files are in the order of their names, with numbers in them by value.
    name : str
        What it is, for messages.

    Raises
    ------
    DataError
        If there is no such file.
    """
    if isinstance(given, (str, os.PathLike)):
        path = os.fspath(given)
        if os.path.isfile(path):
            return [path]
        if os.path.isdir(path):
            raise DataError(f"{name}: {path!r} is a folder; write {os.path.join(path, '*')!r}")
        if glob.has_magic(path):
            found = [one for one in glob.glob(path, recursive=True) if os.path.isfile(one)]
            if not found:
                raise DataError(f"{name}: no file matches the pattern {path!r}")
            return sorted(found, key=_natural)
        raise DataError(f"{name}: there is no file {path!r}")
    if not isinstance(given, (list, tuple)) or not given:
        raise DataError(
            f"{name}: must be a path, a pattern or a list of them, got {type(given).__name__} "
            f"{show(given)}"
        )
    return [path for one in given for path in find_files(one, name)]


def _natural(path: str) -> list[Any]:
    """Sorts ``part2`` before ``part10``."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]


def are_paths(given: Any) -> bool:
    """Whether it is a path, or a list of paths."""
    if isinstance(given, (list, tuple)) and given:
        return all(isinstance(one, (str, os.PathLike)) for one in given)
    return isinstance(given, (str, os.PathLike))


# ---- one file


def map_npy(path: str, name: str) -> Array:
    """The array of a .npy file, mapped into memory.

    Parameters
    ----------
    path : str
    name : str
        What it is, for messages.

    Raises
    ------
    DataError
        If the file is none, has objects, or is shorter than its header says.
    """
    label = f"{name}: {path!r}"
    try:
        with open(path, "rb") as file:
            begin = file.read(len(_MAGIC))
        if begin != _MAGIC:
            _refuse_content(begin, label)
        return np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise DataError(f"{label} cannot be read ({error.strerror or error})") from error
    except DataError:
        raise
    except Exception as error:  # what Python's tokenizer raises, too
        words = str(error) or type(error).__name__
        if "mapped" in words or "object" in words.lower():
            raise DataError(
                f"{label} holds Python objects, which only unpickling, and so running code, would "
                "read; save numbers, np.save(path, np.array(values, dtype=np.float32))"
            ) from error
        if "greater than file size" in words or "mmap" in words:
            raise DataError(
                f"{label} is shorter than its header says, {os.path.getsize(path):,} bytes; it was "
                "cut off while it was written or copied"
            ) from error
        raise DataError(f"{label} has a damaged header ({words.splitlines()[0]})") from error


def _refuse_content(begin: bytes, label: str) -> NoReturn:
    if not begin:
        raise DataError(f"{label} is empty")
    if begin[:2] == b"PK":
        raise DataError(
            f"{label} is an archive of several arrays, which cannot be mapped; save each as .npy"
        )
    raise DataError(f"{label} is no .npy file: its first bytes are {begin!r}")


# ---- several files as one array


def read_npy(given: Any, name: str, *, allow_nonfinite: bool) -> Array:
    """The rows of files as an array, or as what stands for one.

    Parameters
    ----------
    given : str, path or sequence of them
    name : str
        What it is, for messages.
    allow_nonfinite : bool
        Whether NaN and infinities pass.

    Returns
    -------
    ndarray or Stream

    Raises
    ------
    DataError
        For what is no such file, and files whose rows differ in shape or dtype.
    """
    files = _look_at(find_files(given, name), name)
    first = files[0]
    if len(files) == 1 and first.is_cores:
        return map_npy(first.path, name)
    if first.dtype.kind not in _NUMBERS:
        raise DataError(f"{name}: must hold numbers, got dtype {first.dtype} in {first.path!r}")
    for file in files:
        if file.is_fortran:
            warn(
                f"{name}: {file.path!r} is in Fortran order, so that a row lies in "
                f"{math.prod(file.shape[1:]):,} pieces and is slow to read; write it anew with "
                "np.save(path, np.ascontiguousarray(array))",
                DataWarning,
            )
            break
    parts = _Parts(files, name, allow_nonfinite=allow_nonfinite)
    (stream,) = make_streams(parts.n, [(parts.dtype, first.shape[1:])], parts.make, parts.digest)
    return stream


class _File(NamedTuple):
    """What a file holds, without its map: a map keeps a file descriptor, of which there are few."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_cores: bool  # whether the core reads it as it lies
    is_fortran: bool


def _look_at(paths: Sequence[str], name: str) -> list[_File]:
    """Files whose rows are of one kind.

    Raises
    ------
    DataError
    """
    files: list[_File] = []
    for path in paths:
        array = map_npy(path, name)
        if array.ndim == 0:
            raise DataError(f"{name}: {path!r} holds one number, and rows are needed")
        is_fortran = not array.flags.c_contiguous
        file = _File(path, array.shape, array.dtype, _is_cores(array), is_fortran)
        files.append(file)
        for what, one, wanted in (
            ("rows of one shape", file.shape[1:], files[0].shape[1:]),
            ("one dtype", file.dtype, files[0].dtype),
        ):
            if one != wanted:
                raise DataError(
                    f"{name}: files must have {what}, {wanted} as in {files[0].path!r}, got {one} "
                    f"in {path!r}"
                )
    return files


def _is_cores(array: Array) -> bool:
    """Whether the core reads it as it lies."""
    is_known = array.dtype.name in DTYPES and array.dtype.isnative
    return is_known and array.flags.c_contiguous and array.flags.aligned


class _Parts:
    """Rows of several files as those of one.

    Parameters
    ----------
    files : sequence of _File
    name : str
        For messages.
    allow_nonfinite : bool
    """

    def __init__(self, files: Sequence[_File], name: str, *, allow_nonfinite: bool) -> None:
        self._files, self._name = list(files), name
        self._ends = np.cumsum([file.shape[0] for file in files])
        self.n = int(self._ends[-1])
        self.dtype = graph_dtype(files[0].dtype.newbyteorder("="))
        self._checks = files[0].dtype.kind == "f" and not allow_nonfinite
        self._map = functools.lru_cache(maxsize=_MOST_MAPPED)(self._map_anew)

    def digest(self) -> str:
        """By what the rows are known again."""
        return digest_files([file.path for file in self._files])

    def _map_anew(self, number: int) -> Array:
        file = self._files[number]
        array = map_npy(file.path, self._name)
        if array.shape != file.shape or array.dtype != file.dtype:
            raise DataError(
                f"{self._name}: {file.path!r} has changed, {array.dtype} of shape {array.shape} in "
                f"place of {file.dtype} of shape {file.shape}"
            )
        return array

    def _place(self, row: int) -> tuple[int, int]:
        """The number of a row's file, and its number there."""
        number = int(np.searchsorted(self._ends, row, side="right"))
        return number, row - int(self._ends[number]) + self._files[number].shape[0]

    def make(
        self, rows: Rows, epoch: int, is_training: bool, peers: Rows | None = None
    ) -> list[Array]:
        """The rows of a batch; called by several threads."""
        numbers = np.searchsorted(self._ends, rows, side="right")
        made = np.empty((len(rows), *self._files[0].shape[1:]), self.dtype)
        for number in np.unique(numbers):
            at = np.flatnonzero(numbers == number)
            begin = int(self._ends[number]) - self._files[number].shape[0]
            made[at] = self._read(int(number), rows[at] - begin)
        if self._checks and _core.check_finite(made) is not None:
            self._refuse(made, rows)
        return [made]

    def _read(self, number: int, rows: Rows) -> Array:
        array = self._map(number)
        if self._files[number].is_cores:  # without the GIL, which a disk would keep waiting
            return _core.gather_rows(array, rows, self.dtype)
        values = array[rows]
        if array.dtype.kind == "u" and array.dtype.itemsize == 8 and (values > 2**63 - 1).any():
            raise DataError(
                f"{self._name}: int64 holds up to 2**63 - 1, got {values.max()} in "
                f"{self._files[number].path!r}"
            )
        with np.errstate(over="ignore"):  # infinities are refused
            return values.astype(self.dtype)

    def _refuse(self, made: Array, rows: Rows) -> NoReturn:
        bad = ~np.isfinite(made.reshape(len(made), -1)).all(axis=1)
        row = int(rows[int(np.argmax(bad))])
        number, at = self._place(row)
        values = self._map(number)[at].reshape(-1)
        fit = np.abs(values.astype(np.float64)) <= np.finfo(np.float32).max
        raise DataError(
            f"{self._name}: must be finite and fit float32, got {values[~fit][0]} in row {row} "
            f"(row {at} of {self._files[number].path!r}); mend the row, or write "
            "allow_nonfinite=True"
        )


def read_parts(given: Any, name: str) -> Any:
    """Targets, weights or groups: those of files as one array, others as they are.

    Parameters
    ----------
    given : path, pattern, list of them, dict or tuple of these, or anything else
    name : str
        For messages.

    Raises
    ------
    DataError
    """
    if isinstance(given, Mapping):
        return {key: read_parts(part, f"{name}[{key!r}]") for key, part in given.items()}
    if not are_paths(given):
        return given
    paths = find_files(given, name)
    if len(paths) == 1:
        return map_npy(paths[0], name)
    return np.concatenate([np.array(map_npy(file.path, name)) for file in _look_at(paths, name)])
