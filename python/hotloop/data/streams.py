"""Fields whose rows do not lie in memory: they are made batch by batch, by the threads of a feed.

A stream stands where an array of a field stands, and what only asks for shape and dtype, or reads
some rows, need not know the difference. What goes over all rows asks :func:`stream_of` first: rows
may take long to make, and are made anew each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from hotloop import _core

__all__ = ["Make", "Stream", "gather_streams", "make_streams", "stream_of"]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
Make = Callable[[Rows, int, bool, Rows | None], Sequence[Array]]

_BLOCK = 256  # rows that are made at a time where many are read


class Stream:
    """One field of a source, as an array ``(n, ...)``.

    Parameters
    ----------
    source : _core.Source
    number : int
        Of the field there.
    n : int
        Rows.
    dtype : str
    shape : tuple of int
        Of a row.
    digest : callable
        ``digest()`` returns by what the rows are known again; "": by nothing.
    """

    def __init__(
        self,
        source: _core.Source,
        number: int,
        n: int,
        dtype: str,
        shape: tuple[int, ...],
        digest: Callable[[], str],
    ) -> None:
        self.source = source
        self.number = number
        self.digest = digest
        self.dtype = np.dtype(dtype)
        self.shape = (n, *shape)

    @property
    def ndim(self) -> int:
        """Dims, that of rows among them."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Of memory: none."""
        return 0

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        """Rows by number, slice, mask or integers, as they are without augmentation."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        index = np.asarray(rows)
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        index = np.where(index < 0, index + len(self), index)
        made = self.read(np.atleast_1d(index).astype(np.int64, copy=False), None)
        return made if np.ndim(index) else cast("Array", made[0])

    def read(self, rows: Rows, peers: Rows | None) -> Array:
        """Rows as they are without augmentation.

        Parameters
        ----------
        rows : int64 array (n,)
        peers : int64 array or None
            As :func:`gather_streams` takes them.
        """
        parts = [
            self.source.read(rows[begin : begin + _BLOCK], 0, False, peers)[self.number]
            for begin in range(0, max(1, len(rows)), _BLOCK)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)


def stream_of(array: object) -> Stream | None:
    """The stream that stands where an array is expected; None where it is one."""
    return array if isinstance(array, Stream) else None


def make_streams(
    n: int,
    types: Sequence[tuple[str, tuple[int, ...]]],
    make: Make | _core.Source,
    digest: Callable[[], str],
) -> list[Array]:
    """Fields of n rows that are made together.

    Parameters
    ----------
    n : int
    types : sequence of (str, tuple of int)
        dtype and shape of a row of each field.
    make : callable or _core.Source
        ``make(rows, epoch, is_training, peers)`` returns an array ``(len(rows), ...)`` for each
        field, the same for the same arguments. ``peers`` are the rows of the split that these are
        of, ascending; None: all. It is called by several threads.
    digest : callable
        By what a run that is continued knows them again, as :class:`Stream` has it.

    Returns
    -------
    list of Stream
        Typed as the arrays in whose place they stand.
    """
    source = make if isinstance(make, _core.Source) else _core.Source(n, types, make)
    streams = [Stream(source, i, n, *of, digest) for i, of in enumerate(types)]
    return cast("list[Array]", streams)


def gather_streams(
    arrays: Sequence[Array], rows: Rows, epoch: int, is_training: bool, peers: Rows | None
) -> dict[int, Array]:
    """Rows of those arrays that are streams, by position; each source is read once.

    Parameters
    ----------
    arrays : sequence of array
    rows : int64 array
    epoch : int
    is_training : bool
    peers : int64 array or None
        The rows of their split, ascending, of which one stands in the place of a bad one; None:
        all.
    """
    made: dict[int, tuple[Array, ...]] = {}
    gathered = {}
    for i, array in enumerate(arrays):
        stream = stream_of(array)
        if stream is None:
            continue
        if id(stream.source) not in made:
            made[id(stream.source)] = stream.source.read(rows, epoch, is_training, peers)
        gathered[i] = made[id(stream.source)][stream.number]
    return gathered
