"""Micro-batches: a batch in parts whose gradients are accumulated, for memory that is too small.

The step divides once, by the window's whole denominator, and masks of dropout know a sample by its
place in the window; so parts give what the whole gives, but for the order of sums, and but for
statistics over a batch.
"""

from __future__ import annotations

__all__ = ["next_split", "split_batches"]


def next_split(size: int, parts: int) -> int | None:
    """The next number of equal parts of a batch of ``size`` rows; None when it is in single rows.

    >>> next_split(12, 4), next_split(12, 12)
    (6, None)
    """
    return next((n for n in range(parts + 1, size + 1) if size % n == 0), None)


def split_batches(groups: list[tuple[int, int]], rows: int) -> list[tuple[int, int]]:
    """An epoch's batches in parts of ``rows`` rows, full ones and then what is left.

    Parameters
    ----------
    groups : list of (int, int)
        (rows of a batch, number of such batches), full ones first.
    rows : int
        Divides the rows of a full batch, where there are several.

    >>> split_batches([(8, 3), (5, 1)], 2)
    [(2, 14), (1, 1)]
    """
    whole = sum(size // rows * count for size, count in groups)
    rest = [(size % rows, count) for size, count in groups if size % rows]
    return [(rows, whole), *rest] if whole else rest
