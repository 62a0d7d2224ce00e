"""What the trainer sees of a part of the data: arrays and the row numbers that belong to it."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.data.contents import digest_rows
from hotloop.data.padding import ROLES, Padding, pad_batch
from hotloop.data.parallel import submit_ahead
from hotloop.data.streams import Stream, gather_streams, stream_of
from hotloop.data.strides import series_of

__all__ = ["Field", "Split", "nest_fields", "padding_of", "paddings_of"]


@dataclasses.dataclass(frozen=True, eq=False)
class Field:
    """One array of the data.

    Attributes
    ----------
    name : str
        "x", "x.<column>", "x.<position>", "y", "y.<name>", "y.<position>" or "weight".
    array : ndarray
        C-contiguous, aligned, native-endian, or windows of such a series; dim 0: samples. Often
        the user's own memory, so it is read and never written. Of samples that are made when a
        batch needs them a Stream, which has dtype and shape and reads rows.
    dtype : str
        In which a gathered batch enters the graph: "float32" or "int64".
    label : str
        As the user calls it, for messages: ``X``, ``X['age']``, ``val y``.
    columns : tuple of str or None
        Names of the columns, where it came with some.
    padding : Padding or None
        Of data whose samples are sequences of several lengths.
    series : ndarray or None
        What the array is windows of, where it has more rows than these reach.
    marks : tuple of int
        Columns of 0 and 1 that say which category a row has: standardising leaves them.
    first_row : int
        The number that the user's row has, which is row 0 here, for messages.
    """

    name: str
    array: npt.NDArray[Any]
    dtype: str
    label: str = ""
    columns: tuple[str, ...] | None = None
    padding: Padding | None = None
    series: npt.NDArray[Any] | None = None
    marks: tuple[int, ...] = ()
    first_row: int = 0

    @property
    def is_input(self) -> bool:
        """Whether forward receives it."""
        return self.name.split(".")[0] == "x"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a sample, as it enters the graph."""
        if self.padding is not None and self.padding.role in ROLES[1:]:
            return (self.padding.length,)
        return tuple(self.array.shape[1:])

    @property
    def stream(self) -> Stream | None:
        """What makes its rows, where they do not lie in memory."""
        return stream_of(self.array)

    @property
    def gathered_dtype(self) -> str:
        """In which it is gathered: masks are made of lengths."""
        is_said = self.padding is not None and self.padding.role in ROLES
        return "int64" if is_said else self.dtype

    @functools.cached_property
    def source(self) -> tuple[npt.NDArray[Any], int]:
        """The array in memory, and how many of its rows a row of this one is: 0, itself."""
        if self.stream is not None:
            return self.array, 0
        if self.series is not None:
            return self.series, self.array.shape[1]
        return series_of(self.array)

    def read(
        self, rows: npt.NDArray[np.int64], peers: npt.NDArray[np.int64] | None
    ) -> npt.NDArray[Any]:
        """Rows of the array, without augmentation; peers as :func:`gather_streams` takes them."""
        return self.array[rows] if self.stream is None else self.stream.read(rows, peers)

    def digest(self) -> str:
        """By what the values are known again: those of some rows, or what these are made of."""
        return digest_rows(self.array) if self.stream is None else self.stream.digest()

    def flat(
        self, rows: npt.NDArray[np.int64] | None
    ) -> tuple[Field, npt.NDArray[np.int64] | None]:
        """Where each value of some rows stands once: a field of the series, and rows of it."""
        series, window = self.source
        if not window:
            return self, rows
        is_used = np.zeros(len(series), np.bool_)
        begins = np.arange(len(self.array)) if rows is None else rows
        sequences = None if self.padding is None else self.padding.sequences
        for i in range(window):
            if sequences is not None:  # windows end where their sequences do
                begins = begins[sequences.left[begins] > i]
            is_used[begins + i] = True
        return dataclasses.replace(self, array=series, series=None), np.flatnonzero(is_used)


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
    buckets : tuple of Split
        Of samples of several shapes: those of each bucket, the largest first. The fields of the
        whole have the largest's shape.
    bucket_of : int64 array or None
        Of samples that are made when a batch needs them, the bucket of each row of the fields;
        then all buckets are there, with no rows or some. Sequences in memory have lengths.
    numbers : int64 array (n,) or None
        Of training samples in the order of a sampler, which may have others in each epoch: the
        numbers in the dataset of those that are evaluated, which are the first epoch's.
    weights : float64 array (n,) or None
        Of training rows that are drawn with replacement: how likely each is.
    n_draws : int
        With weights: samples of a training epoch.
    within : int64 array or None
        Of a bucket, or of some rows of a split: the rows of the whole split, ascending.
    """

    fields: tuple[Field, ...]
    rows: npt.NDArray[np.int64] | None
    n: int
    buckets: tuple[Split, ...] = ()
    weights: npt.NDArray[np.float64] | None = None
    n_draws: int = 0
    bucket_of: npt.NDArray[np.int64] | None = None
    numbers: npt.NDArray[np.int64] | None = None
    within: npt.NDArray[np.int64] | None = None

    @functools.cached_property
    def peers(self) -> npt.NDArray[np.int64] | None:
        """The rows of the split, ascending, each once: those of which one may stand in the place of
        a bad one. None: all rows, or none is made batch by batch.
        """
        if not self.is_streamed:
            return None
        if self.within is not None:
            return self.within
        return None if self.rows is None else np.unique(self.rows)

    def gather(
        self, rows: npt.NDArray[np.int64], epoch: int = 0, *, is_training: bool = False
    ) -> dict[int, npt.NDArray[Any]]:
        """Rows of the fields that are made batch by batch, by position."""
        arrays = [field.array for field in self.fields]
        return gather_streams(arrays, rows, epoch, is_training, self.peers)

    @property
    def n_training(self) -> int:
        """Samples of a training epoch."""
        return self.n if self.weights is None else self.n_draws

    @property
    def has_shapes(self) -> bool:
        """Whether samples have several shapes."""
        return bool(self.buckets) or any(field.padding is not None for field in self.fields)

    @property
    def is_streamed(self) -> bool:
        """Whether rows of some field are made batch by batch."""
        return any(field.stream is not None for field in self.fields)

    @property
    def parts(self) -> tuple[Split, ...]:
        """What batches are made of: the buckets, else all of it."""
        return tuple(part for part in self.buckets if part.n) or (self,)

    def take(self, rows: npt.NDArray[np.int64]) -> Split:
        """A split of the same fields with other rows.

        Parameters
        ----------
        rows : int64 array (n,)
            Ascending.
        """
        rows = np.ascontiguousarray(rows)
        if self.bucket_of is None:
            return Split(self.fields, rows, len(rows))
        inside = [rows[self.bucket_of[rows] == i] for i in range(len(self.buckets))]
        whole = np.unique(rows)
        buckets = tuple(
            Split(part.fields, own, len(own), within=whole)
            for part, own in zip(self.buckets, inside, strict=True)
        )
        return Split(self.fields, rows, len(rows), buckets, bucket_of=self.bucket_of)

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
        found = next(field for field in self.fields if field.name == name)
        rows = np.arange(len(found.array)) if self.rows is None else self.rows
        some = found.read(rows[:: max(1, len(rows) // 100)], self.peers).astype(np.float64)
        if not np.isfinite(some).all():
            some = np.where(np.isfinite(some), some, 0.0)
        return np.asarray(np.median(some, axis=0))

    def arrays(self) -> dict[str, Any]:
        """All its rows as one batch: "x", and "y" and "weight" where there are some."""
        return nest_fields(self.by_field())

    def by_field(self) -> dict[str, npt.NDArray[Any]]:
        """The rows of each field by its name."""
        rows = slice(None) if self.rows is None else self.rows
        made: dict[int, npt.NDArray[Any]] = {}
        if self.is_streamed:
            numbers = np.arange(self.n) if self.rows is None else self.rows
            made = self.gather(numbers)
        values = {
            field.name: made[i] if i in made else field.array[rows]
            for i, field in enumerate(self.fields)
        }
        for field in self.fields:
            if field.padding is not None:  # -100 has no place among bytes
                values[field.name] = values[field.name].astype(field.gathered_dtype)
        return pad_batch(values, paddings_of(self.fields), np.where)

    def blocks(self, size: int, workers: int) -> Iterator[dict[str, Any]]:
        """All its rows, so many at a time, as ``arrays`` gives them; threads make them ahead.

        Parameters
        ----------
        size, workers : int
        """
        rows = np.arange(self.n) if self.rows is None else self.rows
        whole = rows if self.peers is None else self.peers
        parts = [
            dataclasses.replace(
                self, rows=rows[begin : begin + size], n=len(rows[begin:][:size]), within=whole
            )
            for begin in range(0, self.n, size)
        ]
        if workers < 1:
            yield from (part.arrays() for part in parts)
            return
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            for _, future in submit_ahead(pool, Split.arrays, parts, workers + 1):
                yield future.result()

    def sequences(self, name: str) -> list[npt.NDArray[Any]] | None:
        """The sequences of a field, each with its own length; None: samples have no lengths.

        Parameters
        ----------
        name : str
            Of the field.
        """
        field = next(field for field in self.fields if field.name == name)
        if field.padding is None or field.padding.role != "rows":
            return None
        if field.padding.sequences is None:
            return self.apart()[name]
        series, left = field.source[0], field.padding.sequences.left
        return [series[row : row + left[row]] for row in self.rows]  # type: ignore[union-attr]

    def apart(self) -> dict[str, list[npt.NDArray[Any]]]:
        """Samples that are made in several shapes, by field: each in its own, without padding."""
        found: dict[str, list[npt.NDArray[Any]]] = {field.name: [] for field in self.fields}
        for part in self.parts:
            rows = np.arange(part.n) if part.rows is None else part.rows
            made = part.gather(rows)
            values = {
                f.name: made[i] if i in made else f.array[rows] for i, f in enumerate(part.fields)
            }
            paddings = paddings_of(part.fields)
            said = next((name for name, pad in paddings.items() if pad.role in ROLES), None)
            for name, value in values.items():
                ends = [None] * len(value)
                if said is not None and paddings[name].role == "rows":
                    ends = values[said].tolist()
                found[name] += [
                    row[:end] if end is not None else row for row, end in zip(value, ends)
                ]
        back = np.argsort(self.row_order, kind="stable")
        return {name: [values[i] for i in back] for name, values in found.items()}

    @property
    def row_order(self) -> npt.NDArray[np.int64]:
        """Row numbers, part by part."""
        rows = [np.arange(part.n) if part.rows is None else part.rows for part in self.parts]
        return np.concatenate(rows)


def paddings_of(fields: Sequence[Field]) -> dict[str, Padding]:
    """The paddings of those fields that have one, by name."""
    return {field.name: field.padding for field in fields if field.padding is not None}


def padding_of(fields: Sequence[Field]) -> tuple[str, float, bool] | None:
    """Of fields that are sequences of several lengths, how forward learns of padding, what stands
    there, and whether each row has a target; None of others.
    """
    paddings = paddings_of(fields)
    if not paddings:
        return None
    role = next(padding.role for padding in paddings.values() if padding.role in ROLES)
    fill = next(padding.fill for padding in paddings.values() if padding.role == "rows")
    return role, fill, "y" in paddings and paddings["y"].role == "rows"


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
