"""A function of samples: a DataModule whose rows are what it makes of another's.

The rows keep their numbers, so splits, folds, groups and weights mean the same rows as before. What
the function makes is a stream like any other (data/streams.py), with the checks of datasets'
samples; or it is made once, by threads, into arrays in memory or in .npy files, which are then used
like those that a user gives.

Files are made whole before they get their name, with a byte for each row that says whether the row
is there. Rows are written and flushed before their bytes are, so an interruption costs what was
under way. They are written, not stored through a mapping: a full disk is an error then, where a
mapping would end the process.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import errno
import hashlib
import os
import shutil
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import counted, warn
from hotloop.base.rules import choice, either, flag, optional, reject, show, text, whole
from hotloop.data.arrays import check_keys
from hotloop.data.auto_workers import AutoWorkers
from hotloop.data.cache_folder import check_space, find_folder, make_folder
from hotloop.data.contents import digest_texts
from hotloop.data.datasets.digests import feed_array, feed_function, feed_text
from hotloop.data.datasets.samples import SampleOptions, Samples, read_samples
from hotloop.data.folding import FoldedSplits
from hotloop.data.options import read_classes, refuse_options
from hotloop.data.parallel import map_ahead
from hotloop.data.split import Field, Split, nest_fields
from hotloop.data.stored.npy import map_npy
from hotloop.data.streams import gather_streams
from hotloop.data.tables import Table
from hotloop.data.targets import IGNORED, Targets, name_of_target
from hotloop.errors import ConfigError, DataError, DataWarning

__all__ = ["MappedData"]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]

_FORMAT = 1  # of the files
_BLOCK = 16  # rows that a thread makes at a time, ahead of training
_FLUSH_SECONDS = 1.0
_MADE = "made.npy"


class _MappedRows(Samples):
    """What a function makes of the rows of splits that share their fields.

    Parameters
    ----------
    fn : callable
    splits : dict of str to Split
        By name; the fields are those of the first.
    options : SampleOptions
    goals : dict of str to Targets
        What the targets were.
    like : _MappedRows, optional
        Of training.
    """

    _fix = "fn must give all samples one shape"

    def __init__(
        self,
        fn: Callable[..., Any],
        splits: Mapping[str, Split],
        options: SampleOptions,
        goals: Mapping[str, Targets],
        like: _MappedRows | None,
    ) -> None:
        self.splits = dict(splits)
        self.fields = next(iter(splits.values())).fields
        self._fn, self._goals = fn, goals
        self._has_y = any(field.name.partition(".")[0] == "y" for field in self.fields)
        n = len(self.fields[0].array)
        self._part = np.full(n, -1, np.int8)  # by row the number of its split
        for i, split in enumerate(self.splits.values()):
            self._part[slice(None) if split.rows is None else split.rows] = i
        super().__init__(range(n), next(iter(splits)), options, like)

    def _name(self, index: int) -> str:
        part = int(self._part[index])
        return f"map: {list(self.splits)[part] + ' ' if part >= 0 else ''}row {index}"

    def _first_batch(self) -> dict[str, Array]:
        split = next(iter(self.splits.values()))
        row = 0 if split.rows is None else int(split.rows[0])
        rows = np.array([row], np.int64)
        return self._batch([row], self._make(rows, 0, split.peers, is_training=False))

    def digest(self) -> str:
        """By what the samples are known again: the rows that the function gets."""
        return digest_texts(*(field.digest() for field in self.fields))

    def keeps(self, name: str) -> bool:
        """Whether a field is of the dtype and shape that fn was given."""
        before = next((field for field in self.fields if field.name == name), None)
        if before is None or self.types.get(name) is None:
            return False
        dtype, shape = self.types[name]
        return shape == before.shape and dtype == _given_dtype(before)

    def target(self, name: str, made: Targets) -> Targets:
        """What a target is: as before, where it has dtype and shape of before."""
        known = self._known(f"y.{name}" if name else "y")
        return made if known is None else dataclasses.replace(known, array=made.array)

    def _known(self, field: str) -> Targets | None:
        name = name_of_target(field)
        if name is None or self._options.classes is not None or not self.keeps(field):
            return None
        return self._goals.get(name)

    # ---- making rows

    def _make(self, rows: Rows, epoch: int, peers: Rows | None, *, is_training: bool) -> list[Any]:
        arrays = [field.array for field in self.fields]
        made = gather_streams(arrays, rows, epoch, is_training, peers)
        values = {}
        for i, field in enumerate(self.fields):
            value = made[i] if i in made else np.asarray(field.array[rows])
            values[field.name] = value.astype(_given_dtype(field), copy=False)
        return [
            self._apply(int(row), nest_fields({name: value[i] for name, value in values.items()}))
            for i, row in enumerate(rows)
        ]

    def _apply(self, row: int, sample: dict[str, Any]) -> dict[str, Any]:
        """fn's sample of one, with its weight.

        Raises
        ------
        DataError
            Whatever fn raises, with the row.
        """
        what = self._name(row)
        given = (sample["x"], sample["y"]) if self._has_y else (sample["x"],)
        try:
            made = self._fn(*given)
        except Exception as error:
            raise DataError(f"{what}: fn raised {type(error).__name__}: {error}") from error
        if not self._has_y:
            parts = {"x": made}
        elif isinstance(made, (tuple, list)) and len(made) == 2:
            parts = {"x": made[0], "y": made[1]}
        else:
            raise DataError(
                f"{what}: the data has targets, so fn(x, y) must give (x, y), got {show(made)}"
            )
        for name, part in parts.items():
            if part is None:
                raise DataError(f"{what}: fn must give {name}, got None")
            if isinstance(part, Mapping):
                check_keys(list(part), f"{what}: {name}")
        return parts | {key: value for key, value in sample.items() if key == "weight"}

    def read(
        self, rows: Rows, epoch: int, is_training: bool, peers: Rows | None = None
    ) -> list[Array]:
        """The fields of these rows, in the order of ``types``."""
        indices = [int(row) for row in rows]
        fields = self._batch(indices, self._make(rows, epoch, peers, is_training=is_training))
        made = self._check(indices, fields)
        for name, values in zip(self.types, made):
            self._check_targets(indices, name, values)
        return made

    def _check_targets(self, indices: Sequence[int], name: str, values: Array) -> None:
        """That ids and answers are such as the targets have."""
        if name_of_target(name) is None:
            return
        known = self._known(name)
        n, has_ignored = 0, False
        if known is not None and known.kind == "class":
            n, has_ignored = known.n_classes or 0, known.has_ignored
        elif known is not None and known.kind == "multilabel":
            n = 2
        good = (values >= 0) & (values < n) & (values == np.floor(values))
        if has_ignored:
            good |= values == IGNORED
        if not n or good.all():
            return
        at = int(np.argmin(good.reshape(len(good), -1).all(axis=1)))
        raise DataError(
            f"{self._name(indices[at])}: {name} must be from 0 to {n - 1}, as the targets are, got "
            f"{values[at][~good[at]].flat[0]}; write classes=[...] if fn gives others"
        )


def _given_dtype(field: Field) -> str:
    """In which fn gets a field: targets as the loss does, inputs as samples of datasets are."""
    if not field.is_input:
        return field.dtype
    if field.array.dtype.name in ("bool", "uint8"):
        return field.array.dtype.name
    return "float32" if field.array.dtype.kind == "f" else "int64"


# ---- made once


def _needed_rows(made: _MappedRows, pool: Rows | None, *, is_whole: bool) -> Rows:
    """Those of splits, and those that folds may take; all, where these are not known."""
    needed = np.zeros(len(made), bool)
    for split in made.splits.values():
        needed[slice(None) if split.rows is None else split.rows] = True
    if pool is not None:
        needed[pool] = True
    return np.flatnonzero(needed | is_whole)


def _make_rows(
    made: _MappedRows, rows: Rows, workers: int, progress: bool | str
) -> Generator[tuple[Rows, list[Array]]]:
    """Blocks of rows with their fields, in order."""
    blocks = [rows[begin : begin + _BLOCK] for begin in range(0, len(rows), _BLOCK)]

    def make(block: Rows) -> list[Array]:
        return made.read(block, 0, False)

    what = f"map {' and '.join(made.splits)}"
    ahead = map_ahead(make, blocks, workers, progress=progress, what=what, sizes=len)
    with contextlib.closing(ahead) as results:
        for block, future in results:
            yield block, future.result()


class _Memory:
    """Arrays that are made once.

    Parameters
    ----------
    made : _MappedRows
    """

    where = "in memory"

    def __init__(self, made: _MappedRows) -> None:
        self._made = made
        self.arrays = {
            name: np.empty((len(made), *shape), dtype)
            for name, (dtype, shape) in made.types.items()
        }

    def fill(self, rows: Rows, workers: int, progress: bool | str) -> None:
        """Makes these rows."""
        with contextlib.closing(_make_rows(self._made, rows, workers, progress)) as blocks:
            for block, fields in blocks:
                for array, values in zip(self.arrays.values(), fields):
                    array[block] = values


class _Disk:
    """The same in .npy files, which a later run finds.

    Parameters
    ----------
    made : _MappedRows
    folder : str
        Of all of them.
    digest : str
        What the content depends on.

    Raises
    ------
    DataError
        If it cannot be written.
    """

    def __init__(self, made: _MappedRows, folder: str, digest: str) -> None:
        self._made, self._parent = made, folder
        self.where = os.path.join(folder, digest)
        self._types = {
            urllib.parse.quote(name, safe="") + ".npy": (dtype, (len(made), *shape))
            for name, (dtype, shape) in made.types.items()
        }
        self.arrays: dict[str, Array] = {}
        make_folder(folder)

    def fill(self, rows: Rows, workers: int, progress: bool | str) -> None:
        """Makes those of these rows that are not there."""
        try:
            there = self._open()
            missing = rows[there[rows] == 0]
            if len(missing):
                check_space(
                    self.where,
                    len(missing) * self._row_bytes(),
                    f"{counted(len(missing), 'sample')} that {'is' if len(missing) == 1 else 'are'}"
                    " new",
                    "",
                )
                self._write(missing, workers, progress)
                there = self._open()
        except OSError as error:
            raise self._refuse(error) from error
        if not there[rows].all():
            raise DataError(
                f"cache: {self.where} was changed by another process while it was written; begin "
                "again"
            )

    def _refuse(self, error: OSError) -> DataError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(self._parent).free
            return DataError(
                f"cache: the disk of {self._parent} is full, got {free:,} bytes free; delete "
                "something and begin again, which goes on from here, or write another cache_dir=..."
            )
        return DataError(
            f"cache: the files in {self.where} must be readable and writable, got "
            f"{error.strerror!r}; delete the folder, or write another cache_dir=..."
        )

    def _row_bytes(self) -> int:
        kinds = self._made.types.values()
        return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for dtype, shape in kinds)

    def _open(self) -> npt.NDArray[np.uint8]:
        """Maps the files, made anew where they are not what they were; which rows are there."""
        for _ in range(2):
            if not os.path.isdir(self.where):
                self._create()
            try:
                names = [*self._types, _MADE]
                found = [map_npy(os.path.join(self.where, name), "cache") for name in names]
                wanted = [*self._types.values(), ("uint8", (len(self._made),))]
                there = np.array(found[-1])
                if [(array.dtype.name, array.shape) for array in found] != wanted or (
                    there > 1
                ).any():
                    raise DataError("other arrays lie there")
            except DataError as error:
                warn(f"cache: {self.where} is damaged ({error}), and is made anew", DataWarning)
                shutil.rmtree(self.where)
                continue
            self.arrays = dict(zip(self._made.types, found))
            return there
        raise DataError(f"cache: {self.where} cannot be read back; delete it")

    def _create(self) -> None:
        """Files of all rows, none of which is there, under their name at once."""
        new = tempfile.mkdtemp(prefix=".new-", dir=self._parent)
        try:
            for name, (dtype, shape) in {
                **self._types,
                _MADE: ("uint8", (len(self._made),)),
            }.items():
                with open(os.path.join(new, name), "xb") as file:
                    header = np.lib.format.header_data_from_array_1_0(np.empty(0, dtype))
                    np.lib.format.write_array_header_1_0(file, header | {"shape": shape})
                    file.truncate(file.tell() + int(np.prod(shape)) * np.dtype(dtype).itemsize)
                    os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # another process was quicker
                try:
                    os.rename(new, self.where)
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _write(self, rows: Rows, workers: int, progress: bool | str) -> None:
        names = [*self._types, _MADE]
        with contextlib.ExitStack() as stack:
            files = [
                stack.enter_context(open(os.path.join(self.where, name), "r+b")) for name in names
            ]
            begins = [_begin_of(file) for file in files]
            written: list[Rows] = []

            def flush() -> None:
                for file in files[:-1]:
                    file.flush()
                    os.fsync(file.fileno())
                for block in written:
                    _write_rows(files[-1], begins[-1], block, np.ones(len(block), np.uint8))
                files[-1].flush()
                os.fsync(files[-1].fileno())
                written.clear()

            blocks = stack.enter_context(
                contextlib.closing(_make_rows(self._made, rows, workers, progress))
            )
            since = time.monotonic()
            try:
                for block, fields in blocks:
                    for file, begin, values in zip(files, begins, fields):
                        _write_rows(file, begin, block, values)
                    written.append(block)
                    if time.monotonic() - since >= _FLUSH_SECONDS:
                        flush()
                        since = time.monotonic()
            finally:
                flush()


def _begin_of(file: Any) -> int:
    """Where the values of a .npy file begin."""
    np.lib.format.read_magic(file)
    np.lib.format.read_array_header_1_0(file)
    return int(file.tell())


def _write_rows(file: Any, begin: int, rows: Rows, values: Array) -> None:
    """Rows in ascending order, those that follow each other at once."""
    step = values[:1].nbytes
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    for first, last in zip([0, *cuts], [*cuts, len(rows)]):
        file.seek(begin + int(rows[first]) * step)
        file.write(np.ascontiguousarray(values[first:last]).data)


def _name_function(fn: Callable[..., Any]) -> str:
    """By what a function is known again: its contents, else its name."""
    into = hashlib.blake2b(digest_size=16)
    try:
        feed_function(into, fn)
    except ConfigError:
        return f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', type(fn).__name__)}"
    return into.hexdigest()


def _digest(made: _MappedRows, fn: Callable[..., Any], key: str | None) -> str:
    """Of all that the files depend on.

    Raises
    ------
    ConfigError
        If it is not known.
    """
    into = hashlib.blake2b(digest_size=12)
    feed_text(into, _FORMAT, len(made), *made.types.items())
    if key is None:
        feed_function(into, fn)
    else:
        feed_text(into, "key", key)
    for field in made.fields:
        feed_text(into, field.name, _given_dtype(field), field.shape)
        if field.stream is None:
            feed_array(into, field.source[0])
        elif key is None:
            raise ConfigError(
                f"key: {field.label} is made when a batch needs it, so what it holds is not known; "
                "write key='...', a text that you change whenever the data or fn changes"
            )
    return f"{next(iter(made.splits))}-{into.hexdigest()}"


# ---- the DataModule


class MappedData(FoldedSplits):
    """A way to make a :class:`DataModule` of another one's samples."""

    def map(
        self,
        fn: Callable[..., Any],
        *,
        cache: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        key: str | None = None,
        classes: Sequence[Any] | None = None,
        num_workers: int | str = "auto",
        allow_nonfinite: bool = False,
        progress: bool | str = "auto",
        **unknown: Any,
    ) -> Self:
        """The same splits, with what a function makes of each sample.

        Parameters
        ----------
        fn : callable
            ``fn(x, y)`` gives ``(x, y)`` where there are targets, ``fn(x)`` gives x where there are
            none. x is what forward receives of one sample, without the batch's dim and before
            transforms: an array, or a dict or tuple of them, which fn may change; float32, int64,
            uint8 (levels of images) or bool. y likewise: class ids as int64, values as float32.
            What it gives may have other shapes and dtypes, the same for all samples; it is read
            as samples are by :meth:`from_datasets`. Several threads may call it.
        cache : {"ram", "disk"}, optional
            None: fn is called for each batch, by loader threads, also on augmented samples. "ram":
            for every sample once, now, by several threads with a progress bar; the results are
            arrays in memory. "disk": they are .npy files, mapped into memory, which later runs
            find, and where they go on if one is interrupted.
        cache_dir : path, optional
            Of "disk": a folder for all such results. By default "maps" in
            ``$HOTLOOP_CACHE_PATH``, else in "hotloop" of ``$XDG_CACHE_HOME`` or of ``~/.cache``.
        key : str, optional
            Of "disk": says which fn and data these are, in place of what is looked at without it:
            of fn its code, constants, defaults, closed-over values and the globals that it names,
            with functions of its own package; of other packages names and versions, or the file
            of a module without one (not of what that imports). The contents
            of arrays always count. Needed for data that is made batch by batch (images, datasets),
            and for a fn with a state.
        classes : sequence, optional
            Names of the class ids that fn gives, by id, where they are others than before.
        num_workers : int or "auto"
            Threads that make samples. "auto": those of this data, at least 1; all processors less
            one for what is cached.
        allow_nonfinite : bool
            Let NaN and infinities of fn pass.
        progress : bool or "auto"
            Whether a bar is shown, as by :func:`parallel_map`.
        **unknown
            Refused by name, with the option that is meant.

        Returns
        -------
        DataModule
            Rows keep their numbers: splits, folds, groups, subsets, sampling and sample weights
            are as before, and so are batch size, order and seed. A target that keeps its dtype and
            shape keeps its kind and class names. ``standardize`` is fitted anew, on what fn makes
            of training rows; ``normalize`` of images and the augmentation of series stay where fn
            keeps dtype and channels or shape. Stratified folds and balanced sampling go by the
            classes before fn. What was learnt of a table's columns does not go along: the model
            takes what fn gives.

        Raises
        ------
        ConfigError
            For an option out of its range; ``cache`` of samples that are drawn or augmented anew
            in each epoch, or of which others stand in the place of bad ones; sequences of several
            lengths; input that is normalised behind fn, which must leave it as it was.
        DataError
            When fn raises, gives None, no numbers, another shape or dtype than for the first
            sample, class ids that there are not: names split and row. Without ``cache`` this shows
            when a batch needs it. For a ``cache_dir`` that cannot be written or has no room.

        Examples
        --------
        >>> X, y = hl.load_digits()
        >>> data = hl.DataModule.from_arrays(X, y, val=0.2)
        >>> halves = data.map(lambda x, y: (x.reshape(8, 8)[:4], y), cache="ram", progress=False)
        >>> halves.example_batch()["x"], len(halves.rows("val"))
        (('float32', (64, 4, 8)), 359)
        """
        refuse_options(unknown, type(self).map)
        if not callable(fn):
            reject("fn", "must be a function of a sample", fn)
        optional(choice("ram", "disk"))("cache", cache)
        for name, value in (("cache_dir", cache_dir), ("key", key)):
            if value is not None and cache != "disk":
                reject(name, "is of cache='disk'", value, "write cache='disk', or leave it out")
        optional(text)("key", key)
        workers: int | str = either("auto", rule=whole(0))("num_workers", num_workers)
        self._check_mappable(cache)
        options = SampleOptions(
            classes=None if classes is None else read_classes(classes),
            allow_nonfinite=flag("allow_nonfinite", allow_nonfinite),
        )
        made = copy.copy(self)
        made._auto = AutoWorkers(max(1, self.num_workers), is_python=True, enter=self._auto.enter)
        made._num_workers = workers
        made._allow_nonfinite = options.allow_nonfinite  # of what fn makes
        made._splits, made._targets = {}, {}
        made.augmentation += f" {_name_function(fn)}"
        like: _MappedRows | None = None
        words = "for each batch"
        for name, sharing in _shared_splits(self._splits):
            rows = _MappedRows(fn, sharing, options, self._targets, like)
            table = read_samples(rows, "" if like is None else f"{name} ")
            if like is None:
                self._check_kept(rows)
            if classes is not None and ("" not in table.targets or not _is_class(table)):
                kinds = ", ".join(target.kind for target in table.targets.values()) or "no"
                raise ConfigError(f"classes: are of a class target, got {kinds} targets")
            store: _Memory | _Disk | None = None
            if cache is not None:
                store = _store(rows, fn, key, None if cache == "ram" else cache_dir, cache)
                needed = self._rows_to_make(rows, is_training=like is None)
                store.fill(needed, _count_workers(workers), progress)
                words = store.where if like is None else words
            fields, targets = _read_made(table, rows, store)
            for key_, split in sharing.items():
                made._splits[key_] = dataclasses.replace(split, fields=fields)
            made._targets = made._targets or targets
            like = like or rows
        made._splits = {name: made._splits[name] for name in self._splits}
        made._take_over(self, f"{getattr(fn, '__name__', type(fn).__name__)}, {words}")
        return made

    def _check_mappable(self, cache: str | None) -> None:
        fields = self._splits["train"].fields
        if self._splits["train"].bucket_of is not None and fields[0].padding is None:
            raise ConfigError("map: images of several shapes cannot be mapped; give one size")
        if any(field.padding is not None for field in fields):
            raise ConfigError(
                "map: sequences of several lengths cannot be mapped; apply the function to them "
                "before the DataModule is made"
            )
        if cache is not None and self._replaces:
            raise ConfigError(
                "cache: keeps each row for every division of the data, and what stands in the place"
                " of a bad one depends on its split, got on_bad_sample='replace'; write 'skip' or "
                "'raise' where the data is made, or map without cache"
            )
        if cache is not None and self._is_random:
            raise ConfigError(
                f"cache: keeps each sample as it is made once, and these are drawn or augmented "
                f"anew in each epoch, got cache={cache!r}; write augment='none' where the data is "
                "made, or map without cache"
            )

    def _check_kept(self, rows: _MappedRows) -> None:
        """That what is done to fields behind fn still has them."""
        for field in self._standardized:
            found = rows.types.get(field.name)
            if found is None or found[0] != "float32":
                raise ConfigError(
                    f"map: {field.label} is standardised, and fn must give it as floats, got "
                    f"{'none' if found is None else found[0]}; leave standardize out where the "
                    "data is made"
                )
        for _, transforms in self._fixed or ():
            for name, (mean, _) in transforms.items():
                before = next(field for field in rows.fields if field.name == name)
                dtype, shape = rows.types.get(name, ("nothing", ()))
                if dtype != _given_dtype(before) or not _broadcasts(np.shape(mean), shape):
                    raise ConfigError(
                        f"map: {before.label} is normalised as {_given_dtype(before)} "
                        f"{before.shape}, and fn must give it in this dtype with as many channels, "
                        f"got {dtype} {shape}; write normalize=None where the data is made, and "
                        "scale in fn"
                    )
        if self.augment_steps and not rows.keeps("x"):
            raise ConfigError(
                "map: training's series are augmented behind fn, which must keep their shape, got "
                f"{rows.types.get('x', 'several inputs')}; write augment='none' where the data is "
                "made"
            )

    def _rows_to_make(self, rows: _MappedRows, *, is_training: bool) -> Rows:
        if not is_training or self._origin is None:
            return _needed_rows(rows, None, is_whole=False)
        pool = getattr(self._origin, "pool", None)
        return _needed_rows(rows, pool, is_whole=pool is None)

    def _take_over(self, source: FoldedSplits, words: str) -> None:
        """What changes with the fields."""
        names = {field.name for field in source._standardized}
        fields = self._splits["train"].fields
        self._standardized = [field for field in fields if field.name in names]
        self._transforms, self._checked, self._good = None, set(), []
        if source.encoding is not None:  # learnt of training rows, which folds would change
            self._encoding, self._origin = None, None
        self.facts = (*source.facts, ("map", words))
        self._refit()


def _shared_splits(splits: Mapping[str, Split]) -> list[tuple[str, dict[str, Split]]]:
    """Splits by the fields that they are rows of, training's first."""
    found: list[tuple[str, dict[str, Split]]] = []
    for name, split in splits.items():
        for _, sharing in found:
            other = next(iter(sharing.values()))
            if all(a.array is b.array for a, b in zip(split.fields, other.fields)) and (
                len(split.fields) == len(other.fields)
            ):
                sharing[name] = split
                break
        else:
            found.append((name, {name: split}))
    return found


def _is_class(table: Table) -> bool:
    return table.targets[""].kind == "class"


def _broadcasts(of: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether values by channel go with rows of this shape, dim by dim."""
    return len(of) == len(shape) and all(a in (1, b) for a, b in zip(of, shape))


def _count_workers(num_workers: int | str) -> int:
    from hotloop import _core

    if num_workers != "auto":
        return max(1, int(num_workers))
    return max(1, int(_core.cpu_info()["threads"]) - 1)


def _store(
    rows: _MappedRows, fn: Callable[..., Any], key: str | None, folder: Any, cache: str
) -> _Memory | _Disk:
    if cache == "ram":
        return _Memory(rows)
    digest = _digest(rows, fn, key)
    return _Disk(rows, find_folder(folder, "maps"), digest)


def _read_made(
    table: Table, rows: _MappedRows, store: _Memory | _Disk | None
) -> tuple[tuple[Field, ...], dict[str, Targets]]:
    """Fields and targets, of arrays where they are made."""
    arrays = {} if store is None else store.arrays
    fields = tuple(
        dataclasses.replace(field, array=arrays.get(field.name, field.array))
        for field in table.fields
    )
    targets = {}
    for name, target in table.targets.items():
        known = rows.target(name, target)
        array = arrays.get(f"y.{name}" if name else "y", target.array)
        targets[name] = dataclasses.replace(known, array=array)
    return tuple(
        field
        if field.name.partition(".")[0] != "y"
        else dataclasses.replace(field, dtype=targets[name_of_target(field.name) or ""].dtype)
        for field in fields
    ), targets
