"""Sequences of several lengths below one another, and how rows of padding make batches of them.

A batch has sequences of one bucket: as many rows each as the bucket's length, those beyond a
sequence's end being padding. In memory there is no padding. A sequence is the window of the
bucket's length that begins with its first row; what the window has of the sequences behind it is
overwritten in the batch. So the sequences lie in memory once, whatever buckets there are, and the
core gathers them as it does any windows.

Every array of such data has an entry for each row of the sequences, so that the number of a
sequence's first row finds its target and its length too.

Rejected: an array for each bucket, padded, which costs the padding's memory and would count it
where values are counted or standardised; a list of the first rows that the core looks up, so that
targets stood once, which is a second kind of gathering on every device for a few bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "ROLES",
    "Padding",
    "Sequences",
    "bucket_of",
    "find_buckets",
    "inside_of",
    "pad_batch",
    "say_inside",
]

Rows = npt.NDArray[np.int64]

# How forward's second argument says which rows of a batch are no padding.
ROLES = ("lengths", "padding_mask", "attention_mask")

_MAX_BUCKETS = 8
_MOST_PADDING = 0.1  # rows of padding for each row of a sequence, from which buckets are added
_MAX_LENGTHS = 512  # different lengths that are looked at


@dataclasses.dataclass(frozen=True, eq=False)
class Sequences:
    """Where sequences lie that stand below one another.

    Attributes
    ----------
    lengths : int64 array (n,)
        At least 1 each.
    starts : int64 array (n,)
        The row that each begins with.
    left : int32 array (rows,)
        Rows of its sequence from each row on, itself included: at a first row, the length.
    """

    lengths: Rows
    starts: Rows
    left: npt.NDArray[np.int32]

    @classmethod
    def of(cls, lengths: Rows) -> Sequences:
        """Those of such lengths."""
        ends = np.cumsum(lengths)
        starts = ends - lengths
        left = np.repeat(ends, lengths) - np.arange(int(ends[-1]))
        return cls(lengths, starts, left.astype(np.int32))

    def number_of(self, row: int) -> int:
        """The sequence that a row is of."""
        return int(np.searchsorted(self.starts, row, side="right")) - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Padding:
    """What a field has to do with padding.

    Attributes
    ----------
    sequences : Sequences or None
        In whose order the rows of the field's array stand; None: samples are made when a batch
        needs them, and padded then.
    length : int
        Rows of a sequence in a batch.
    role : str
        "rows": the field has a value for each row of a sequence, and its array is windows of
        ``length`` rows. "sequence": a value for each sequence. One of ``ROLES``: its values are the
        lengths, and this is how forward gets them.
    fill : float
        With the role "rows": what stands in padding.
    """

    sequences: Sequences | None
    length: int
    role: str
    fill: float = 0.0


def inside_of(role: str, said: Any, length: int) -> Any:
    """Which rows of a batch are no padding, by what forward gets.

    Parameters
    ----------
    role : str
        One of ``ROLES``.
    said : array or tensor (batch,) of lengths, or (batch, length) of a mask
    length : int

    Returns
    -------
    bool array or tensor (batch, length)
    """
    if role == "lengths":
        return said[:, None] > np.arange(length)
    return said == 0 if role == "padding_mask" else said != 0


def say_inside(role: str, lengths: Any, length: int) -> Any:
    """What forward gets, by lengths: the inverse of :func:`inside_of`.

    Parameters
    ----------
    role : str
        One of ``ROLES``.
    lengths : int64 array or tensor (batch,)
    length : int

    Returns
    -------
    array or tensor
        The lengths, or bools (batch, length): True in padding for "padding_mask", as torch's
        ``key_padding_mask`` has it; True in rows of the sequence for "attention_mask".
    """
    if role == "lengths":
        return lengths
    inside = inside_of("lengths", lengths, length)
    return inside if role == "attention_mask" else ~inside


def pad_batch(
    values: Mapping[str, Any],
    paddings: Mapping[str, Padding],
    where: Callable[[Any, Any, float], Any],
    apart: Callable[[Any], Any] = lambda lengths: lengths,
) -> dict[str, Any]:
    """A batch's fields as they were gathered, with their padding.

    Parameters
    ----------
    values : dict
        Of all fields, by name: arrays or tensors.
    paddings : dict of str to Padding
        Of those fields that have one.
    where : callable
        ``where(condition, values, fill)`` of arrays or tensors.
    apart : callable, optional
        Makes of the lengths what is seen to be used by forward alone.

    Returns
    -------
    dict
    """
    padded = dict(values)
    lengths = next((values[name] for name, p in paddings.items() if p.role in ROLES), None)
    for name, padding in paddings.items():
        value = values[name]
        if padding.role in ROLES:
            padded[name] = say_inside(padding.role, apart(lengths), padding.length)
        elif padding.role == "rows":
            inside = inside_of("lengths", lengths, padding.length)
            inside = inside.reshape((*inside.shape, *(1 for _ in value.shape[2:])))
            padded[name] = where(inside, value, padding.fill)
    return padded


def find_buckets(lengths: Rows, least: int, most: int = _MAX_BUCKETS) -> list[int]:
    """The lengths of buckets that have little padding: as few as leave a tenth at most.

    For each number of buckets those with the fewest rows of padding are found, by dynamic
    programming over the lengths in order: the best k buckets up to a length are its last bucket and
    the best k - 1 before it. Of more than 512 different lengths, 512 are looked at.

    Parameters
    ----------
    lengths : int64 array (n,)
    least : int
        Sequences that each bucket must have, where there are several buckets.
    most : int
        Buckets.

    Returns
    -------
    list of int
        Ascending; the last one is the largest length.

    Examples
    --------
    >>> find_buckets(np.array([3, 3, 4, 4, 50, 50, 51, 51]), 2)
    [4, 51]
    """
    ends, counts = np.unique(lengths, return_counts=True)
    if len(ends) > _MAX_LENGTHS:
        chosen = ends[np.linspace(0, len(ends) - 1, _MAX_LENGTHS).astype(np.int64)]
        at = np.searchsorted(chosen, lengths)
        ends, counts = chosen, np.bincount(at, minlength=len(chosen))
    upto = np.concatenate([[0], np.cumsum(counts)])  # sequences of the first so many lengths
    n = len(ends)
    cost = np.full(n + 1, np.inf)  # rows in batches of the first i lengths, with k buckets
    cost[0] = 0.0
    begins: list[Rows] = []  # for each k and i, the first length of the last bucket
    allowed = float(lengths.sum()) * (1.0 + _MOST_PADDING)
    best = np.inf
    for _ in range(most):
        added, begin = np.full(n + 1, np.inf), np.zeros(n + 1, np.int64)
        for i in range(1, n + 1):
            inside = upto[i] - upto[:i]  # of a bucket from each length on up to this one
            total = cost[:i] + inside * float(ends[i - 1])
            total[(inside < least) & ((np.arange(i) > 0) | (i < n))] = np.inf
            begin[i] = int(np.argmin(total))
            added[i] = total[begin[i]]
        if not added[n] < best:
            break
        cost, best = added, added[n]
        begins.append(begin)
        if best <= allowed:
            break
    found, i = [], n
    for begin in reversed(begins):
        found.append(int(ends[i - 1]))
        i = int(begin[i])
    return sorted(found)


def bucket_of(buckets: Sequence[int], lengths: Rows) -> Rows:
    """The number of the bucket of each sequence: the shortest that holds it."""
    return np.searchsorted(np.asarray(buckets), lengths).astype(np.int64)
