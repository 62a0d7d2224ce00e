"""Samples of several lengths that Python makes: padded to their bucket's length as they are made.

A dataset is wrapped once for each bucket; its samples then have one shape, and everything else is
as for other datasets. In which bucket a sample belongs is known by its length, so with several
buckets each sample is made once before training; with one it is not.

Rejected: batches that are sorted by what they happen to have, whose shapes are not known before
they are made, so that no plan could be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import reject, show
from hotloop.base.scalars import plain
from hotloop.data.datasets.objects import Generated, Loaded
from hotloop.data.datasets.samples import SampleOptions, Samples, leaves_of, read_samples, to_leaf
from hotloop.data.datasets.workers import Processes
from hotloop.data.padding import ROLES, Padding, bucket_of
from hotloop.data.parallel import parallel_map
from hotloop.data.sequential.sequences import read_buckets, read_role
from hotloop.data.split import Field
from hotloop.data.tables import Table
from hotloop.data.targets import IGNORED
from hotloop.errors import ConfigError, DataError

__all__ = ["PaddedData", "plan_padding"]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]

_LOOKED_AT = 16  # samples by which targets of rows are told from those of samples


class _Padded:
    """A dataset whose samples are ``((x, length), y)``, x padded to one length.

    Parameters
    ----------
    dataset : object
        With ``len`` and ``[i]``; x of its samples is one array ``(rows, ...)``.
    target
        As ``SampleOptions`` has it.
    length : int
        Zeros are behind what is shorter; a batch has what stands in padding (``Padding.fill``).
    has_row_targets : bool
        Whether y has a target for each row.
    """

    def __init__(self, dataset: Any, target: Any, length: int, *, has_row_targets: bool) -> None:
        self._dataset, self._target, self._length = dataset, target, length
        self._has_row_targets = has_row_targets
        if callable(getattr(dataset, "set_epoch", None)):
            self.set_epoch = dataset.set_epoch

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        x, y, weight = _parts_of(self._dataset[index], self._target)
        n = len(x)
        if n > self._length:
            raise DataError(
                f"must have at most {self._length} rows, got {n}; give buckets that hold every "
                "sample, or cut it"
            )
        if self._has_row_targets:
            y = to_leaf(y, "y")
            if y.shape[:1] != (n,):
                raise DataError(
                    f"y must have a target for each of the {n} rows of x, or one length in all "
                    f"samples, got shape {y.shape}"
                )
            y = _pad(y, self._length)
        parts = ((_pad(x, self._length), n), y, weight)
        return parts[: 3 if weight is not None else 2 if y is not None else 1]


def _pad(array: Array, length: int) -> Array:
    made = np.zeros((length, *array.shape[1:]), array.dtype)
    made[: len(array)] = array
    return made


def _parts_of(sample: Any, target: Any) -> tuple[Array, Any, Any]:
    """x, y and weight of a sample.

    Raises
    ------
    DataError
        If x is no array with rows.
    """
    if sample is None:
        raise DataError("must be a sample, got None")
    leaves = leaves_of(sample, target, "sample")
    inputs = [name for name in leaves if name.split(".")[0] == "x"]
    goals = {name.partition(".")[2]: leaves[name] for name in leaves if name.split(".")[0] == "y"}
    if len(inputs) != 1:
        raise DataError(
            f"must have one array of rows as x, to be padded, got {len(inputs)}: "
            f"{', '.join(inputs)}; pad samples of several arrays in the dataset"
        )
    x = to_leaf(leaves[inputs[0]], "x")
    if x.ndim < 1 or not len(x):
        raise DataError(f"x must have a row at least, got shape {x.shape}")
    y = goals.get("", goals or None)
    return x, y, leaves.get("weight")


class _Look(NamedTuple):
    """What is seen of a sample: its rows, or why it is bad."""

    rows: int
    why: str


class PaddedData(NamedTuple):
    """How samples of several lengths become batches.

    Attributes
    ----------
    buckets : list of int
        Lengths, ascending.
    role : str
        How forward gets the lengths, one of ``ROLES``.
    fill : float
    lengths : dict of str to int64 array (n,)
        Of each split's samples, by name; none with one bucket.
    """

    buckets: list[int]
    role: str
    fill: float
    lengths: dict[str, Rows]

    def read(
        self,
        name: str,
        loaded: Loaded,
        options: SampleOptions,
        like: tuple[Table, Samples | None] | None,
    ) -> tuple[Table, Rows | None, Samples]:
        """A split's table, as :func:`read_dataset` gives it.

        Raises
        ------
        DataError
        """
        label = f"{name}_dataset"
        dataset = loaded.dataset
        has_row_targets = _has_row_targets(loaded, options, label)
        inner = options._replace(target=None)
        sizes = self.buckets[::-1]
        datasets = [
            _Padded(dataset, options.target, size, has_row_targets=has_row_targets)
            for size in sizes
        ]
        known = None if like is None else like[1]
        first = Samples(datasets[0], label, inner, known, loaded.numbers)
        n = len(first) if loaded.order is None else len(loaded.order.first)
        made = [first]
        for size, of in zip(sizes[1:], datasets[1:]):
            made.append(first.reshaped(of, _with_length(first.types, size, has_row_targets)))
        prefix = "" if like is None else f"{label} "
        tables = []
        for size, samples in zip(sizes, made):
            make = Processes(samples, label).read if options.processes else samples.read
            table = read_samples(samples, prefix, loaded.read_by(make), n)
            fields = tuple(self._field(field, size, has_row_targets) for field in table.fields)
            tables.append(dataclasses.replace(table, fields=fields))
        if len(sizes) == 1:
            return tables[0], loaded.rows, first
        of_row = len(sizes) - 1 - bucket_of(self.buckets, self.lengths[name])
        buckets = tuple(table.fields for table in tables)
        return dataclasses.replace(tables[0], buckets=buckets, bucket_of=of_row), loaded.rows, first

    def _field(self, field: Field, length: int, has_row_targets: bool) -> Field:
        role, fill, dtype = "sequence", 0.0, field.dtype
        if field.name == "x.0":
            role, fill = "rows", self.fill
        elif field.name == "x.1":
            role, dtype = self.role, "int64" if self.role == ROLES[0] else "bool"
        elif field.name == "y" and has_row_targets:
            role = "rows"
            fill = IGNORED if dtype == "int64" else 0.0  # values have no class that counts nothing
        padding = Padding(None, length, role, fill)
        return dataclasses.replace(field, dtype=dtype, padding=padding)


def _with_length(
    types: Mapping[str, tuple[str, tuple[int, ...]]], length: int, has_row_targets: bool
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Types of samples in a bucket of another length."""
    padded = {"x.0", *(["y"] if has_row_targets else [])}
    return {
        name: (dtype, (length, *shape[1:]) if name in padded else shape)
        for name, (dtype, shape) in types.items()
    }


def _numbers_of(loaded: Loaded) -> Sequence[int]:
    """Of the samples that are read."""
    return range(len(loaded.dataset)) if loaded.numbers is None else loaded.numbers.tolist()


def _has_row_targets(loaded: Loaded, options: SampleOptions, label: str) -> bool:
    """Whether y has a target for each row of x: its length differs among the first samples that can
    be made, or is that of x in all of them.
    """
    lengths: list[int] = []
    are_those_of_x = True
    for index in _numbers_of(loaded):
        try:
            x, y, _ = _parts_of(loaded.dataset[index], options.target)
            goal = None if y is None or isinstance(y, (str, Mapping)) else to_leaf(y, "y")
        except Exception as error:
            if lengths:
                break  # it shows when a batch needs it
            if options.on_bad == "raise":
                raise _named(label, index, error) from error
            continue
        if goal is None or not goal.ndim:
            return False
        lengths.append(len(goal))
        are_those_of_x = are_those_of_x and len(goal) == len(x)
        if lengths[-1] != lengths[0]:
            return True
        if len(lengths) == _LOOKED_AT:
            break
    if not lengths:
        raise DataError(f"{label}: no sample can be made")
    return are_those_of_x


def _named(label: str, index: int, error: Exception) -> DataError:
    said = str(error) if isinstance(error, DataError) else f"raised {type(error).__name__}: {error}"
    return DataError(f"{label}[{index}]: {said}")


def plan_padding(
    given: Mapping[str, Loaded],
    made: Mapping[str, bool],
    own: Mapping[str, SampleOptions],
    buckets: Any,
    lengths_as: Any,
    pad_value: Any,
    batch_size: int,
) -> PaddedData:
    """Reads how samples are to be padded, and their lengths where it depends on them.

    Parameters
    ----------
    given : dict of str to Loaded
        By split.
    made : dict of str to bool
        Whether its samples are made one by one.
    own : dict of str to SampleOptions
        By split.
    buckets, lengths_as, pad_value
        As :meth:`DataModule.from_sequences` takes them.
    batch_size : int

    Raises
    ------
    ConfigError
        For options that contradict.
    DataError
        For a sample that cannot be made, or is longer than all buckets.
    """
    role = read_role(ROLES[0] if lengths_as is None else lengths_as)
    fill = 0.0 if pad_value is None else plain(pad_value)
    if not isinstance(fill, (int, float)) or isinstance(fill, bool) or not np.isfinite(fill):
        reject("pad_value", "must be a finite number", pad_value)
    for name, is_made in made.items():
        if not is_made:
            raise ConfigError(
                f"buckets: pad samples that a dataset makes, got arrays as {name}_dataset; "
                "DataModule.from_sequences takes sequences in memory"
            )
    options = own["train"]
    if any(each.collate is not None for each in own.values()):
        raise ConfigError("buckets: pad samples one by one, got a collate_fn too; leave one out")
    lengths: dict[str, Rows] = {}
    is_one = isinstance(plain(buckets), int) or (
        isinstance(buckets, (list, tuple)) and len(buckets) == 1
    )
    if is_one:
        return PaddedData(read_buckets(buckets, np.ones(1, np.int64), 1), role, fill, lengths)
    if any(isinstance(of.dataset, Generated) or of.order is not None for of in given.values()):
        raise ConfigError(
            "buckets: several need the length of each sample beforehand, got samples that come in "
            "an order of their own (a generator or sampler); give one length"
        )
    if options.on_bad == "replace":
        raise ConfigError(
            "on_bad_sample: 'replace' takes the next sample, which may be of another bucket; write "
            "'skip', or give one length"
        )
    if options.processes:
        raise ConfigError(
            "worker_type: processes pad to one length, got several buckets; give one, or threads"
        )
    read = []
    for name, loaded in given.items():
        lengths[name] = np.ones(len(loaded.dataset), np.int64)
        numbers = np.unique(np.array(_numbers_of(loaded), np.int64))
        read.append(_find_lengths(loaded.dataset, numbers, options, f"{name}_dataset"))
        lengths[name][numbers] = read[-1]
    found = read_buckets(buckets, np.concatenate(read), batch_size)
    return PaddedData(found, role, fill, lengths)


def _find_lengths(dataset: Any, numbers: Rows, options: SampleOptions, label: str) -> Rows:
    """The rows of each of these samples; of bad ones, where they may be, 1."""

    def look(index: int) -> _Look:
        try:
            return _Look(len(_parts_of(dataset[index], options.target)[0]), "")
        except Exception as error:  # whatever a dataset raises
            return _Look(1, str(_named(label, index, error)))

    if not len(numbers):
        raise DataError(f"{label}: has no samples")
    seen = parallel_map(look, numbers.tolist(), 1)
    bad: Sequence[str] = [one.why for one in seen if one.why]
    if bad and options.on_bad == "raise":
        raise DataError(bad[0])
    if len(bad) == len(seen):
        raise DataError(f"{label}: no sample can be made, got {show(bad[0])}")
    return np.array([one.rows for one in seen], np.int64)
