"""Micro-batches: a batch in parts whose gradients are accumulated, for memory that is too small.

The step divides once, by the window's whole denominator, and masks of dropout know a sample by its
place in the window; so parts give what the whole gives, but for the order of sums, and but for
statistics over a batch.
"""

from __future__ import annotations

from hotloop.data.batching import Group

__all__ = ["next_split", "split_batches"]


def next_split(size: int, parts: int) -> int | None:
    """The next number of equal parts of a batch of ``size`` rows; None when it is in single rows.

    >>> next_split(12, 4), next_split(12, 12)
    (6, None)
    """
    return next((n for n in range(parts + 1, size + 1) if size % n == 0), None)


def split_batches(groups: list[Group], rows: int) -> list[Group]:
    """An epoch's batches in parts of ``rows`` rows, full ones and then what is left.

    Parameters
    ----------
    groups : list of Group
        Full batches first, of each part of the split.
    rows : int
        Divides the rows of a full batch, where there are several.

    >>> [tuple(group) for group in split_batches([Group(8, 3), Group(5, 1)], 2)]
    [(2, 14, 0), (1, 1, 0)]
    """
    made: list[Group] = []
    for number in dict.fromkeys(group.part for group in groups):
        own = [group for group in groups if group.part == number]
        whole = sum(size // rows * count for size, count, _ in own)
        rest = [Group(size % rows, count, number) for size, count, _ in own if size % rows]
        made += [Group(rows, whole, number), *rest] if whole else rest
    return made
