"""Arrays of the host that no memory holds: NumPy's errors of them become those of this library."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hotloop.errors import OutOfMemoryError, ShapeError

__all__ = ["allocating"]


@contextlib.contextmanager
def allocating(what: str, shape: Sequence[int], dtype: Any = np.float64) -> Iterator[None]:
    """In the block an array of that size is made, the largest one there.

    Parameters
    ----------
    what : str
        Who makes it, for messages.
    shape : sequence of int
    dtype : dtype
        NumPy's.

    Raises
    ------
    ShapeError
        If its bytes are beyond 63 bits.
    OutOfMemoryError
        If there is less memory than it needs.
    """
    sizes = tuple(shape)
    # What is no integer NumPy refuses; its own integers would overflow here.
    known = (int(size) for size in sizes if isinstance(size, int | np.integer))
    n_bytes = math.prod(known) * np.dtype(dtype).itemsize
    if n_bytes >= 1 << 63:
        raise ShapeError(f"{what}: the bytes must fit in 63 bits, got an array of shape {sizes}")
    try:
        yield
    except MemoryError:
        raise OutOfMemoryError(
            f"out of memory: {what}: an array of shape {sizes} needs {n_bytes:,} bytes"
        ) from None
