"""What the trainer sees of a part of the data: arrays and the row numbers that belong to it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.data.strides import series_of

__all__ = ["Field", "Split", "nest_fields"]


@dataclasses.dataclass(frozen=True, eq=False)
class Field:
    """One array of the data.

    Attributes
    ----------
    name : str
        "x", "x.<column>", "x.<position>", "y", "y.<name>", "y.<position>" or "weight".
    array : ndarray
        C-contiguous, aligned, native-endian, or windows of such a series; dim 0: samples. Often
        the user's own memory, so it is read and never written.
    dtype : str
        In which a gathered batch enters the graph: "float32" or "int64".
    label : str
        As the user calls it, for messages: ``X``, ``X['age']``, ``val y``.
    columns : tuple of str or None
        Names of the columns, where it came with some.
    """

    name: str
    array: npt.NDArray[Any]
    dtype: str
    label: str = ""
    columns: tuple[str, ...] | None = None

    @property
    def is_input(self) -> bool:
        """Whether forward receives it."""
        return self.name.split(".")[0] == "x"

    @functools.cached_property
    def source(self) -> tuple[npt.NDArray[Any], int]:
        """The array in memory, and how many of its rows a row of this one is: 0, itself."""
        return series_of(self.array)

    def flat(
        self, rows: npt.NDArray[np.int64] | None
    ) -> tuple[Field, npt.NDArray[np.int64] | None]:
        """Where each value of some rows stands once: a field of the series, and rows of it."""
        series, window = self.source
        if not window:
            return self, rows
        is_used = np.zeros(len(series), np.bool_)
        begins = np.arange(len(self.array)) if rows is None else rows
        for i in range(window):
            is_used[begins + i] = True
        return dataclasses.replace(self, array=series), np.flatnonzero(is_used)


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """A part of the data.

    Attributes
    ----------
    fields : tuple of Field
        Inputs first, then "y" and "weight" where there are some.
    rows : int64 array (n,) or None
        Row numbers into the fields' arrays, ascending; None: all of them.
    n : int
        Samples.
    """

    fields: tuple[Field, ...]
    rows: npt.NDArray[np.int64] | None
    n: int

    def middle(self, name: str) -> npt.NDArray[np.float64]:
        """A value of a field that lies among those of its rows: the median of some, evenly spread.

        Parameters
        ----------
        name : str
            Of the field.

        Returns
        -------
        array
            Of the field's shape without rows; 0 where the median is not finite.
        """
        array = next(field.array for field in self.fields if field.name == name)
        rows = np.arange(len(array)) if self.rows is None else self.rows
        some = array[rows[:: max(1, len(rows) // 100)]].astype(np.float64)
        if not np.isfinite(some).all():
            some = np.where(np.isfinite(some), some, 0.0)
        return np.asarray(np.median(some, axis=0))

    def arrays(self) -> dict[str, Any]:
        """All its rows as one batch: "x", and "y" and "weight" where there are some."""
        return nest_fields(self.by_field())

    def by_field(self) -> dict[str, npt.NDArray[Any]]:
        """The rows of each field by its name."""
        rows = slice(None) if self.rows is None else self.rows
        return {field.name: field.array[rows] for field in self.fields}


def nest_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Values by field name as a batch: ``x.a`` in a dict under ``x``, ``x.0`` in a tuple; so ``y``.

    Parameters
    ----------
    fields : mapping
        Field name to array or tensor.

    Returns
    -------
    dict
        "x", and "y" and "weight" where there are some.
    """
    batch: dict[str, Any] = {}
    for name, value in fields.items():
        head, dot, tail = name.partition(".")
        if dot:
            batch.setdefault(head, {})[tail] = value
        else:
            batch[head] = value
    for head, value in batch.items():
        if isinstance(value, dict) and all(key.isdigit() for key in value):
            batch[head] = tuple(value[key] for key in sorted(value, key=int))
    return batch
