"""How an epoch of a split is cut into batches, and who gives them.

A feed of the core orders row numbers; the batch is gathered by them, inside the plan when a model
is trained, here for who wants to see it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.data.padding import pad_batch
from hotloop.data.split import Split, nest_fields, paddings_of
from hotloop.errors import ConfigError, DataError

__all__ = [
    "Group",
    "cut_batches",
    "gather_batches",
    "limit_batches",
    "make_feeds",
    "order_batches",
]

_STREAM = "batches"


class Group(NamedTuple):
    """Equal batches of an epoch, for which there is one plan.

    Attributes
    ----------
    rows : int
        Samples in a batch.
    batches : int
        How many there are.
    part : int
        Whose samples these are, of the split's ``parts``.
    """

    rows: int
    batches: int
    part: int = 0


def cut_batches(
    name: str, split: Split, batch_size: int, *, training: bool, drop_last: bool, merge_tail: bool
) -> list[Group]:
    """As :meth:`DataModule.batches`, of a split."""
    sizes = [part.n_training if training else part.n for part in split.parts]
    return [
        Group(rows, count, number)
        for number, part in enumerate(split.parts)
        if sizes[number]
        for rows, count in _cut(
            name, part, sizes[number], batch_size, drop_last=drop_last, merge_tail=merge_tail
        )
    ]


def _cut(
    name: str, part: Split, n: int, batch_size: int, *, drop_last: bool, merge_tail: bool
) -> list[tuple[int, int]]:
    """(rows, count) of the batches of n samples of a part of a split."""
    size = min(batch_size, n)
    count, tail = divmod(n, size)
    if merge_tail and size == 1:
        fix = "give more data" if n == 1 else "use a larger batch_size"
        padding = part.fields[0].padding
        if padding is not None:
            name = f"{name}: bucket of {padding.length} rows"
            fix = "give fewer buckets" if n == 1 else fix
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


def limit_batches(groups: Sequence[Group], most: int) -> list[Group]:
    """So many batches at most: the first of an order, of each part its share."""
    ends = list(itertools.accumulate(group.batches for group in groups))
    most = min(most, ends[-1])
    if len({group.part for group in groups}) == 1:
        upto = [min(end, most) for end in ends]
    else:
        upto = [-(-end * most // ends[-1]) for end in ends]
    counts = [end - begin for begin, end in itertools.pairwise([0, *upto])]
    return [g._replace(batches=count) for g, count in zip(groups, counts, strict=True) if count]


def make_feeds(
    split: Split,
    groups: Sequence[Group],
    *,
    shuffle: bool,
    seed: int,
    n_slots: int,
    n_threads: int,
    is_training: bool = False,
) -> list[_core.Feed]:
    """As :meth:`DataModule.feeds`, of a split."""
    made = []
    first = [0] * len(split.parts)  # position in the order of each part's samples
    for size, count, number in groups:
        part = split.parts[number]
        if not is_training and first[number] + size * count > part.n:
            raise ConfigError(
                f"overfit_batches: takes rows in their order, of which there are {part.n:,}, got "
                f"{first[number] + size * count:,} samples of an epoch; write fewer batches"
            )
        made.append(
            _core.Feed(
                part.n,
                size,
                rows=part.rows,
                shuffle=shuffle,
                seed=seed,
                first=first[number],
                count=size * count,
                n_threads=n_threads,
                n_slots=n_slots,
                is_training=is_training,
                weights=part.weights if is_training else None,
                n_draws=part.n_draws,
                peers=part.peers,
            )
        )
        first[number] += size * count
    return made


def order_batches(
    groups: Sequence[Group], *, shuffle: bool, seed: int, epoch: int, run: int = 1
) -> list[tuple[int, int]]:
    """In which order an epoch takes the batches of its groups.

    Groups of one part follow one another: their samples are drawn at random already. Batches of
    several parts are mixed, so that no part of an epoch has one length alone.

    Parameters
    ----------
    groups : sequence of Group
    shuffle : bool
        Whether they are mixed.
    seed, epoch : int
        Which decide the order.
    run : int
        Batches of a group that stay together: the parts that a batch was divided into.

    Returns
    -------
    list of (int, int)
        (number of a group, batches of it that follow) in turn.
    """
    if not shuffle or len({group.part for group in groups}) == 1:
        return [(number, group.batches) for number, group in enumerate(groups)]
    turns = [
        (number, min(run, group.batches - begin))
        for number, group in enumerate(groups)
        for begin in range(0, group.batches, run)
    ]
    return [turns[i] for i in _core.permutation(seed, _STREAM, epoch, len(turns))]


def gather_batches(
    split: Split,
    groups: Sequence[Group],
    feeds: list[_core.Feed],
    order: Sequence[tuple[int, int]],
    epoch: int,
    *,
    is_training: bool = False,
) -> Iterator[dict[str, Any]]:
    """The batches of an epoch as arrays, nested as the user's."""
    for feed in feeds:
        feed.seek(epoch)
    gathers = [_Gather(part) for part in split.parts]
    for number, count in order:
        gather = gathers[groups[number].part]
        for _ in range(count):
            rows = feeds[number].next_rows()
            assert rows is not None  # the feed has the group's batches
            yield gather.read(rows, epoch, is_training)


class _Gather:
    """Reads batches of a part of a split: what depends on the fields alone is looked up once, since
    small batches take less time than that.
    """

    def __init__(self, part: Split) -> None:
        fields = part.fields
        self._arrays = [
            (field.name, field.source[0], field.gathered_dtype, field.source[1])
            for field in fields
            if field.stream is None
        ]
        self._part = part
        self._paddings = paddings_of(fields)
        self._is_nested = any("." in field.name for field in fields)
        self._names = [field.name for field in fields]

    def read(self, rows: npt.NDArray[np.int64], epoch: int, is_training: bool) -> dict[str, Any]:
        """Their rows, nested as the user's."""
        values = {
            name: _core.gather_rows(array, rows, dtype, window)
            for name, array, dtype, window in self._arrays
        }
        if self._part.is_streamed:
            for i, made in self._part.gather(rows, epoch, is_training=is_training).items():
                field = self._part.fields[i]
                values[field.name] = made.astype(field.gathered_dtype, copy=False)
            values = {name: values[name] for name in self._names}
        if self._paddings:
            values = pad_batch(values, self._paddings, np.where)
        return nest_fields(values) if self._is_nested else values
