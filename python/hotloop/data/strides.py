"""Arrays whose rows overlap: windows as a view of the series they are cut from.

Row i of such an array is the rows i, i + 1, ... of its series, so one step in memory leads from a
row to the next and from a row's first element to its second. NumPy's ``sliding_window_view`` makes
them with the window's dim last; here it is the second, as sequences have it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["series_of", "windows_of"]

Array = npt.NDArray[Any]


def windows_of(series: Array, length: int) -> Array:
    """All windows of a series.

    Parameters
    ----------
    series : array (n, ...)
    length : int
        From 1 to n.

    Returns
    -------
    array (n - length + 1, length, ...)
        A read-only view.
    """
    view = np.lib.stride_tricks.sliding_window_view(series, length, axis=0)
    return np.moveaxis(view, -1, 1)


def series_of(array: Array) -> tuple[Array, int]:
    """What the core gathers the rows of an array from.

    Parameters
    ----------
    array : array (n, ...)

    Returns
    -------
    series : array
        Of an array whose rows overlap the series that they are windows of, as a view; else the
        array itself.
    window : int
        Rows of the series in a row of the array; 0: it is the array itself.
    """
    if array.flags.c_contiguous or array.ndim < 2 or array.shape[1] < 2 or not array.size:
        return array, 0
    if array.strides[0] != array.strides[1] or not array[0].flags.c_contiguous:
        return array, 0
    n, length, *rest = array.shape
    shape = (n + length - 1, *rest)
    strides = array.strides[1:]
    return np.lib.stride_tricks.as_strided(array, shape, strides, writeable=False), length
