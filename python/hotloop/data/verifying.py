"""Samples that are bad: finding all of a split, and saying which there are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hotloop.data.parallel import parallel_map
from hotloop.data.split import Split
from hotloop.errors import DataError

__all__ = ["rows_among", "say_bad", "verify_rows"]

_MOST_ROWS = 5  # that are listed


def verify_rows(split: Split, workers: int, progress: bool | str) -> dict[int, str]:
    """Makes every sample of a split once, on threads with a progress bar: those that raise, and
    why, by row.
    """
    parts = [part for part in split.parts for _ in range(part.n)]

    def why(item: tuple[int, Split]) -> str:
        try:
            item[1].gather(np.array([item[0]], np.int64))
        except DataError as error:
            return str(error)
        return ""

    rows = split.row_order.tolist()
    items = list(zip(rows, parts, strict=True))
    reasons = parallel_map(why, items, max(1, workers), progress=progress)
    rows = _numbers_of(split)
    return dict(sorted((row, reason) for row, reason in zip(rows, reasons) if reason))


def rows_among(split: Split, found: Mapping[int, str]) -> dict[int, str]:
    """Those of the rows found that a split has, in order."""
    rows = set(_numbers_of(split))
    return {row: why for row, why in sorted(found.items()) if row in rows}


def _numbers_of(split: Split) -> list[int]:
    """By which its samples are known, part by part: in the order of a sampler the dataset's."""
    found: list[int] = (split.row_order if split.numbers is None else split.numbers).tolist()
    return found


def say_bad(name: str, bad: Mapping[int, str]) -> str:
    """That something stands in the place of bad samples of a split."""
    rows = ", ".join(map(str, list(bad)[:_MOST_ROWS])) + ", ..." * (len(bad) > _MOST_ROWS)
    return (
        f"{len(bad)} samples of {name} are bad, and others or nothing stand in their place, in "
        f"rows {rows}; data.bad_samples says why"
    )
