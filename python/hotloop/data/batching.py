"""How an epoch of a split is cut into batches, and who gives them.

A feed of the core orders row numbers; the batch is gathered by them, inside the plan when a model
is trained, here for who wants to see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hotloop import _core
from hotloop.data.split import Field, Split, nest_fields
from hotloop.errors import DataError

__all__ = ["cut_batches", "gather_batches", "make_feeds"]


def cut_batches(
    name: str, n: int, batch_size: int, *, drop_last: bool, merge_tail: bool
) -> list[tuple[int, int]]:
    """As :meth:`DataModule.batches`, of a split of n rows."""
    size = min(batch_size, n)
    count, tail = divmod(n, size)
    if merge_tail and size == 1:
        fix = "give more data" if n == 1 else "use a larger batch_size"
        raise DataError(
            f"{name}: one sample with BatchNorm: batch statistics need two rows, got "
            f"{n} row{'s' * (n != 1)} in batches of {batch_size}; {fix}"
        )
    if drop_last:
        tail = 0
    if not tail:
        return [(size, count)]
    if merge_tail and tail == 1:
        merged = [(size, count - 1), (size + 1, 1)]
        return merged if count > 1 else merged[1:]
    return [(size, count), (tail, 1)]


def make_feeds(
    split: Split,
    groups: Sequence[tuple[int, int]],
    *,
    shuffle: bool,
    seed: int,
    n_slots: int,
    n_threads: int,
) -> list[_core.Feed]:
    """As :meth:`DataModule.feeds`, of a split."""
    made, first = [], 0
    for size, count in groups:
        made.append(
            _core.Feed(
                split.n,
                size,
                rows=split.rows,
                shuffle=shuffle,
                seed=seed,
                first=first,
                count=size * count,
                n_threads=n_threads,
                n_slots=n_slots,
            )
        )
        first += size * count
    return made


def gather_batches(
    fields: tuple[Field, ...], feeds: list[_core.Feed], epoch: int
) -> Iterator[dict[str, Any]]:
    """The batches of an epoch as arrays, nested as the user's."""
    for feed in feeds:
        feed.seek(epoch)
        while (rows := feed.next_rows()) is not None:
            yield nest_fields(
                {f.name: _core.gather_rows(f.source[0], rows, f.dtype, f.source[1]) for f in fields}
            )
