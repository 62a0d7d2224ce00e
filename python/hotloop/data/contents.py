"""Digests of what arrays and files hold, by a part of it that takes milliseconds to read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["digest_files", "digest_rows", "digest_texts"]

_SAMPLE = 256  # rows of an array, or files, whose contents are looked at, at most,
_SAMPLE_BYTES = 1 << 20  # and the bytes of such rows
_FILE_BYTES = 4096  # that are read at the begin, in the middle and at the end of a file
_SIZE = 16  # bytes of a digest


def digest_rows(array: npt.NDArray[Any]) -> str:
    """Of at most 256 rows, evenly spread, and a megabyte of them.

    Parameters
    ----------
    array : ndarray (n, ...)
    """
    n = len(array)
    most = max(4, min(_SAMPLE, _SAMPLE_BYTES // max(array[:1].nbytes, 1)))
    some = np.ascontiguousarray(array[_spread(n, most)]).reshape(-1).view(np.uint8)
    return hashlib.blake2b(some.data, digest_size=_SIZE).hexdigest()


def digest_files(paths: Sequence[str]) -> str:
    """Of the names, without folders, and the lengths of at most 256 files, evenly spread, and of
    4096 bytes of each at its begin, middle and end.

    Another place of the same files is no difference; a file that cannot be read counts by its name.

    Parameters
    ----------
    paths : sequence of str
    """
    into = hashlib.blake2b(digest_size=_SIZE)
    for i in _spread(len(paths), _SAMPLE):
        path = paths[i]
        into.update(os.fsencode(os.path.basename(path)) + b"\0")
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                into.update(size.to_bytes(8, "little"))
                for begin in (0, size // 2, size - _FILE_BYTES):
                    file.seek(max(begin, 0))
                    into.update(file.read(_FILE_BYTES))
        except OSError:
            into.update(b"unreadable")
    return into.hexdigest()


def digest_texts(*texts: str) -> str:
    """Of some texts, such as digests, in their order."""
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=_SIZE).hexdigest()


def _spread(n: int, most: int) -> npt.NDArray[np.int64]:
    return np.linspace(0, max(n - 1, 0), min(n, most)).astype(np.int64)
