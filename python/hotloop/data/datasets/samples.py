"""Samples that Python makes: datasets with ``[i]``, as batches of arrays.

A sample is what PyTorch's datasets give: ``(x, y)``, ``(x, y, weight)``, x alone, or a dict. The
first one decides which fields there are, with their dtypes and shapes; every later one must have
the same. They are made when a batch needs them, by the threads of a feed, so this code may run on
several threads at once.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import counted
from hotloop.base.rules import show
from hotloop.data.arrays import graph_dtype, read_raw
from hotloop.data.split import Field
from hotloop.data.streams import make_streams
from hotloop.data.tables import Table
from hotloop.data.targets import IGNORED, Targets, name_of_target
from hotloop.errors import ConfigError, DataError

__all__ = [
    "BadSamples",
    "SampleOptions",
    "Samples",
    "leaves_of",
    "most_bad",
    "read_samples",
    "to_leaf",
]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]

_TARGETS = ("y", "label", "labels", "target", "targets")  # keys of a dict that are no inputs
_REPLACEMENTS = 100  # samples of its split after a bad one that are tried in its place
_MOST_NAMED = 3


class SampleOptions(NamedTuple):
    """How samples become batches.

    Attributes
    ----------
    collate : callable or None
        Makes a batch of a list of samples; None: they are stacked.
    target : str, sequence of str or None
        Keys of a dict that are targets; None: the one with a usual name.
    classes : list or None
        Names of the class ids of targets that are names.
    on_bad : {"raise", "skip", "replace"}
        What happens with a sample that cannot be made.
    cap : float
        Share of the samples that may be bad, as :func:`most_bad` has it.
    allow_nonfinite : bool
    processes : bool
        Whether other processes make them.
    """

    collate: Callable[[list[Any]], Any] | None = None
    target: str | Sequence[str] | None = None
    classes: list[Any] | None = None
    on_bad: str = "raise"
    cap: float = 0.001
    allow_nonfinite: bool = False
    processes: bool = False


def most_bad(n: float, cap: float) -> int:
    """How many of n samples may be bad: this share of them, one at least; 0: none."""
    return max(1, int(n * cap)) if cap else 0


class BadSamples:
    """The samples of a split that could not be made, and why; safe to use from several threads.

    Parameters
    ----------
    label : str
        Of the dataset.
    n : int
        Its samples.
    cap : float
        Share of them that may be bad, as :func:`most_bad` has it.
    """

    def __init__(self, label: str, n: int, cap: float) -> None:
        self._label = label
        self._most = most_bad(n, cap)
        self._n = n
        self._found: dict[int, str] = {}
        self._lock = threading.Lock()

    def add(self, index: int, why: str) -> None:
        """Notes one.

        Raises
        ------
        DataError
            If there are more than may be.
        """
        with self._lock:
            self._found.setdefault(index, why)
        self.check()

    def check(self) -> None:
        """Whoever meets a bad sample again meets what there is to say of it, too.

        Raises
        ------
        DataError
            If there are more than may be.
        """
        found = self.found
        if len(found) > self._most:
            first = list(found.values())[:_MOST_NAMED]
            raise DataError(
                f"{self._label}: at most {self._most} of {self._n} samples may be bad, got "
                f"{len(found)}: {'; '.join(first)}; mend them, or raise max_bad_share"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock()}

    @property
    def found(self) -> dict[int, str]:
        """Why, by index."""
        with self._lock:
            return dict(self._found)


# ---- the structure of a sample


def leaves_of(sample: Any, target: Any, label: str) -> dict[str, Any]:
    """A sample's or a batch's parts by field name.

    Raises
    ------
    DataError
    """
    if isinstance(sample, Mapping):
        x, y, weight = _parts_of_dict(sample, target, label)
    elif isinstance(sample, (tuple, list)) and target is None:
        if not 1 <= len(sample) <= 3:
            raise DataError(
                f"{label}: a sample must be x, (x, y), (x, y, weight) or a dict, got "
                f"{len(sample)} parts; several inputs are a tuple of their own, ((x1, x2), y)"
            )
        x, y, weight = (*sample, None, None)[:3]
    else:
        if target is not None:
            raise ConfigError(
                f"target: names keys of samples that are dicts, got {type(sample).__name__} as "
                f"{label}"
            )
        x, y, weight = sample, None, None
    found: dict[str, Any] = {}
    for head, part in (("x", x), ("y", y)):
        if part is not None:
            found |= _named_leaves(head, part, label)
    if not found:
        raise DataError(f"{label}: a sample must have an x, got {show(sample)}")
    if weight is not None:
        found["weight"] = weight
    return found


def _parts_of_dict(sample: Mapping[Any, Any], target: Any, label: str) -> tuple[Any, Any, Any]:
    for key in sample:
        if not isinstance(key, str) or not key or key.isdigit():
            raise DataError(f"{label}: keys must be names, got {key!r}")
    if "x" in sample and target is None:
        extra = set(sample) - {"x", "y", "weight"}
        if len(extra) == 1 and extra < set(_TARGETS) and "y" not in sample:
            return sample["x"], sample[extra.pop()], sample.get("weight")
        if extra:
            raise DataError(
                f"{label}: a dict with 'x' has 'y' and 'weight' beside it, got {sorted(extra)[0]!r}"
            )
        return sample["x"], sample.get("y"), sample.get("weight")
    names = [target] if isinstance(target, str) else list(target or ())
    if missing := [name for name in names if name not in sample]:
        raise DataError(
            f"{label}: must have the target {missing[0]!r}, got the keys "
            f"{', '.join(map(repr, sample))}"
        )
    usual = [name for name in _TARGETS if name in sample]
    names = names or usual[:1]
    if target is None and len(usual) > 1:
        raise DataError(
            f"{label}: which keys are targets must be said, got {', '.join(map(repr, usual))}; "
            f"write target={usual[0]!r}"
        )
    x = {key: value for key, value in sample.items() if key not in names}
    y = {name: sample[name] for name in names}
    return x, (next(iter(y.values())) if len(y) == 1 else y or None), None


def _named_leaves(head: str, part: Any, label: str) -> dict[str, Any]:
    if isinstance(part, Mapping):
        return {f"{head}.{key}": value for key, value in part.items()}
    if isinstance(part, tuple):
        return {f"{head}.{i}": value for i, value in enumerate(part)}
    return {head: part}


# ---- arrays


def to_leaf(value: Any, what: str) -> Array:
    """A part of a sample as an array of a dtype that batches have."""
    if value is None:
        raise DataError(f"{what}: must be numbers, got None")
    if type(value) in (bool, int, float):
        return np.asarray(value, {bool: "bool", int: "int64", float: "float32"}[type(value)])
    array = read_raw(value, what)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "biuf" or array.dtype.name == "uint64":
        fix = ""
        if hasattr(value, "getbands"):
            fix = "; a PIL image becomes an array by np.asarray(image) or ToTensor()"
        raise DataError(
            f"{what}: must be numbers, got {type(value).__name__} of dtype {array.dtype}{fix}"
        )
    if array.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    if array.dtype.name in ("bool", "uint8"):
        return array
    return array.astype(np.int64, copy=False)


def _fits(array: Array, dtype: str) -> bool:
    """Whether values keep what they say in this dtype: float32 takes integers too."""
    return dtype == "float32" or np.can_cast(array.dtype, dtype)


class Samples:
    """Batches of a dataset's samples.

    Parameters
    ----------
    dataset : object
        With ``len`` and ``[i]``.
    label : str
        For messages: "train_dataset".
    options : SampleOptions
    like : Samples, optional
        Of training, whose fields these must have.
    numbers : int64 array, optional
        Of the samples that are read, where not all are: the fields are those of the first.

    Attributes
    ----------
    types : dict of str to (str, tuple of int)
        dtype and shape of a sample in each field.
    bad : BadSamples

    Raises
    ------
    ConfigError, DataError
    """

    _fix = (
        "give samples one shape, or a collate_fn that pads; buckets='auto' pads samples of several "
        "lengths, and DataModule.from_sequences those in memory"
    )

    def __init__(
        self,
        dataset: Any,
        label: str,
        options: SampleOptions,
        like: Samples | None = None,
        numbers: Rows | None = None,
    ) -> None:
        self._dataset, self._label, self._options = dataset, label, options
        self._numbers = numbers
        self._ids: dict[Any, int] = {name: i for i, name in enumerate(options.classes or ())}
        self._epoch = -1
        self.types: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._lock = threading.Lock()
        self.bad = BadSamples(label, len(dataset), options.cap)
        if not len(dataset):
            raise DataError(f"{label}: has no samples")
        first = self._first_batch()
        self.types = {name: (array.dtype.name, array.shape[1:]) for name, array in first.items()}
        self.weighs = options.on_bad == "skip" and "weight" not in self.types
        if like is not None:
            self._match(like)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock()}

    def reshaped(self, dataset: Any, types: dict[str, tuple[str, tuple[int, ...]]]) -> Samples:
        """Batches of the same samples in other shapes; bad ones are counted together.

        Parameters
        ----------
        dataset : object
            That gives them so.
        types : dict
            As the attribute.
        """
        made = copy.copy(self)
        made._dataset, made.types = dataset, types
        return made

    def _name(self, index: int) -> str:
        """A sample, for messages."""
        return f"{self._label}[{index}]"

    def note(self) -> dict[int, str]:
        """The bad samples that this copy has found, for the one that counts them."""
        return self.bad.found

    def take(self, note: dict[int, str] | None) -> None:
        """Takes the bad samples that another copy has found.

        Raises
        ------
        DataError
            If there are more than may be.
        """
        for index, why in (note or {}).items():
            self.bad.add(index, why)

    @property
    def classes(self) -> list[Any] | None:
        """Names of the class ids."""
        return self._options.classes

    def _first_batch(self) -> dict[str, Array]:
        """Of the first sample that can be made."""
        on_bad = self._options.on_bad
        every = range(len(self._dataset)) if self._numbers is None else self._numbers.tolist()
        for index in every if on_bad != "raise" else every[:1]:
            try:
                return self._batch([index], [self._fetch(index)])
            except DataError as error:
                if on_bad == "raise":
                    raise
                self.bad.add(index, str(error))
        raise DataError(f"{self._label}: no sample can be made")

    def _match(self, like: Samples) -> None:
        for name, wanted in like.types.items():
            if name == "weight":
                continue
            if self.types.get(name) != wanted:
                got = self.types.get(name)
                raise DataError(
                    f"{self._label}: must have the field {name} of {_describe(wanted)} as in "
                    f"training, got {_describe(got) if got else 'none'}"
                )

    # ---- one sample

    def _fetch(self, index: int) -> Any:
        """The sample as the dataset gives it.

        Raises
        ------
        DataError
            With its index, whatever the dataset raises.
        """
        what = self._name(index)
        try:
            sample = self._dataset[index]
        except DataError as error:
            raise DataError(f"{what}: {error}") from error
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            raise DataError(f"{what}: raised {type(error).__name__}: {error}") from error
        if sample is None:
            raise DataError(f"{what}: must be a sample, got None")
        return sample

    def _leaves(self, index: int, sample: Any) -> dict[str, Array]:
        what = self._name(index)
        found = {}
        for name, value in leaves_of(sample, self._options.target, what).items():
            own = f"{what}: {name}"
            if isinstance(value, str) and name.split(".")[0] == "y":
                value = self._id_of(value, own)
            found[name] = to_leaf(value, own)
        return found

    def _id_of(self, name: str, what: str) -> int:
        if not self._ids:
            raise DataError(
                f"{what}: is a name, got {name!r}, and which class ids the names have must be said;"
                " write classes=[...] with all names in order"
            )
        if name not in self._ids:
            raise DataError(
                f"{what}: must be one of classes, {show(list(self._ids))}, got {name!r}"
            )
        return self._ids[name]

    # ---- a batch

    def _batch(self, indices: Sequence[int], samples: list[Any]) -> dict[str, Array]:
        """Checked fields of these samples."""
        if self._options.collate is None:
            leaves = [self._leaves(i, sample) for i, sample in zip(indices, samples)]
            for i, found in zip(indices, leaves):
                if extra := [name for name in found if name not in leaves[0]]:
                    raise DataError(
                        f"{self._name(i)}: must have the fields of others, "
                        f"{', '.join(leaves[0])}, got {extra[0]} besides"
                    )
            fields = {name: self._stack(indices, leaves, name) for name in leaves[0]}
            self._check_ids(indices, fields)
            return fields
        try:
            made = self._options.collate(samples)
        except Exception as error:
            raise DataError(
                f"collate_fn: raised {type(error).__name__} for {self._label}"
                f"{list(indices)}: {error}"
            ) from error
        fields = {
            name: to_leaf(value, f"collate_fn: {name}")
            for name, value in leaves_of(made, self._options.target, "collate_fn").items()
        }
        for name, array in fields.items():
            if array.shape[:1] != (len(samples),):
                raise DataError(
                    f"collate_fn: {name} must have one row for each of {len(samples)} samples, got "
                    f"shape {array.shape}"
                )
        self._check_ids(indices, fields)
        return fields

    def _check_ids(self, indices: Sequence[int], fields: Mapping[str, Array]) -> None:
        """Refuses class ids that ``classes`` has no name for."""
        n = len(self.classes or ())
        for name, array in fields.items():
            if not n or name_of_target(name) is None or array.dtype.kind not in "iu":
                continue
            bad = (array < 0) | (array >= n)
            if array.ndim > 1:
                bad &= array != IGNORED
            if bad.any():
                at = tuple(int(i) for i in np.argwhere(bad)[0])
                raise DataError(
                    f"{self._name(indices[at[0]])}: {name} must be a class id below {n}, as "
                    f"classes has {counted(n, 'name')}, got {array[at]}; name all classes in "
                    "classes=[...]"
                )

    def _stack(self, indices: Sequence[int], leaves: list[dict[str, Array]], name: str) -> Array:
        parts = []
        wanted = self.types.get(name)
        for index, found in zip(indices, leaves):
            if name not in found:
                raise DataError(f"{self._name(index)}: must have {name} as others, got none")
            array = found[name]
            shape = wanted[1] if wanted is not None else leaves[0][name].shape
            if array.shape != shape:
                raise DataError(
                    f"{self._name(index)}: {name} must have shape {shape} as the first sample, got "
                    f"{array.shape}; {self._fix}"
                )
            if wanted is not None and not _fits(array, wanted[0]):
                raise DataError(
                    f"{self._name(index)}: {name} must be {wanted[0]} as others, got {array.dtype}"
                )
            parts.append(array)
        return np.stack(parts)

    def _check(self, indices: Sequence[int], fields: dict[str, Array]) -> list[Array]:
        """The fields in order, each in its dtype and shape.

        Raises
        ------
        DataError
        """
        made = []
        for name, (dtype, shape) in self.types.items():
            if name not in fields:
                raise DataError(f"{self._name(indices[0])}: must have {name} as others, got none")
            array = fields[name]
            if array.shape[1:] != shape:
                raise DataError(
                    f"{self._name(indices[0])}: {name} must have shape {shape} as the first "
                    f"batch, got {array.shape[1:]}; a collate_fn pads to one length, and "
                    "buckets='auto' without a collate_fn to that of a bucket"
                )
            if not _fits(array, dtype):
                raise DataError(
                    f"{self._name(indices[0])}: {name} must be {dtype} as others, got {array.dtype}"
                )
            if name == "weight":
                self._check_weights(indices, array)
            elif array.dtype.kind == "f" and not self._options.allow_nonfinite:
                self._check_finite(indices, name, array)
            made.append(np.ascontiguousarray(array, dtype))
        if extra := [name for name in fields if name not in self.types]:
            raise DataError(
                f"{self._name(indices[0])}: must have the fields of others, "
                f"{', '.join(self.types)}, got {extra[0]} besides"
            )
        return made

    def _check_finite(self, indices: Sequence[int], name: str, array: Array) -> None:
        if np.isfinite(array).all():
            return
        bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
        index = indices[int(np.argmax(bad))]
        raise DataError(
            f"{self._name(index)}: {name} must be finite, got "
            f"{array[np.argmax(bad)][~np.isfinite(array[np.argmax(bad)])].flat[0]}; mend the "
            "sample, or write allow_nonfinite=True"
        )

    def _check_weights(self, indices: Sequence[int], array: Array) -> None:
        bad = ~((array >= 0) & np.isfinite(array))
        if array.shape != (len(indices),) or bad.any():
            i = int(np.argmax(bad)) if array.shape == (len(indices),) else 0
            raise DataError(
                f"{self._name(indices[i])}: a weight must be a number of at least 0, got {array[i]}"
            )

    def read(
        self, rows: Rows, epoch: int, is_training: bool, peers: Rows | None = None
    ) -> list[Array]:
        """The fields of these samples, in the order of ``types``; then weights, where bad samples
        are skipped: 0 for these.

        Parameters
        ----------
        rows : int64 array
        epoch : int
        is_training : bool
        peers : int64 array or None
            The samples of their split, ascending: others stand in no place of a bad one. None: all.

        Raises
        ------
        DataError
            For a bad sample, or more than may be bad.
        """
        self.enter_epoch(epoch, is_training)
        indices = [int(row) for row in rows]
        if self._options.on_bad == "raise":
            fetch = getattr(self._dataset, "__getitems__", None)
            samples = self._fetch_all(indices) if fetch else [self._fetch(i) for i in indices]
            return self._check(indices, self._batch(indices, samples))
        tries = _REPLACEMENTS if self._options.on_bad == "replace" else 1
        used = [self._find_good(index, peers, tries) for index in indices]
        good = self._fill_places(indices, used, peers)
        fields = self._check([i for i, _ in good], self._batch_of(good))
        if self._options.on_bad == "skip":
            weight = np.array([each is not None for each in used], np.float32)
            if self.weighs:
                fields.append(weight)
            else:
                at = list(self.types).index("weight")
                fields[at] = fields[at] * weight
        return fields

    def _batch_of(self, good: list[tuple[int, Any]]) -> dict[str, Array]:
        return self._batch([index for index, _ in good], [sample for _, sample in good])

    def _fetch_all(self, indices: list[int]) -> list[Any]:
        """By the dataset's own way to make several at once."""
        try:
            samples = list(self._dataset.__getitems__(indices))
        except Exception as error:
            raise DataError(
                f"{self._label}.__getitems__({show(indices)}): raised {type(error).__name__}: "
                f"{error}"
            ) from error
        if len(samples) != len(indices):
            raise DataError(
                f"{self._label}.__getitems__: must give {len(indices)} samples, got {len(samples)}"
            )
        return samples

    def _fill_places(
        self, indices: list[int], used: list[tuple[int, Any] | None], peers: Rows | None
    ) -> list[tuple[int, Any]]:
        """The samples of a batch, with a good one of the same split in the place of each bad one,
        where its weight is 0: so all that is computed of it is finite.

        Raises
        ------
        DataError
            If there is none.
        """
        missing = [index for index, each in zip(indices, used) if each is None]
        stand_in = next((each for each in used if each is not None), None)
        if missing and (stand_in is None or self._options.on_bad == "replace"):
            stand_in = self._find_good(missing[0], peers, _REPLACEMENTS)
        if missing and stand_in is None:
            n = len(self._dataset) if peers is None else len(peers)
            raise DataError(
                f"{self._label}: in the place of a bad sample a good one of its split must stand, "
                f"got {min(n, _REPLACEMENTS)} bad ones, the first: {self.bad.found[missing[0]]}; "
                "mend them, or leave them out of the dataset"
            )
        return [each if each is not None else stand_in for each in used]  # type: ignore[misc]

    def _find_good(self, index: int, peers: Rows | None, tries: int) -> tuple[int, Any] | None:
        """The sample, or where it is bad the next good one among so many of its split."""
        n = len(self._dataset) if peers is None else len(peers)
        at = index
        for step in range(min(tries, n)):
            if step:
                at = self._next(at, peers)
            if at in self.bad.found:
                self.bad.check()
                continue
            try:
                sample = self._fetch(at)
                self._check([at], self._batch([at], [sample]))
            except DataError as error:
                self.bad.add(at, str(error))
            else:
                return at, sample
        return None

    def _next(self, index: int, peers: Rows | None) -> int:
        """The sample behind this one in its split, behind the last one the first."""
        if peers is None:
            return (index + 1) % len(self._dataset)
        return int(peers[np.searchsorted(peers, index, side="right") % len(peers)])

    def digest(self) -> str:
        """By what the samples are known again: nothing, as another call may make others."""
        return ""

    def enter_epoch(self, epoch: int, is_training: bool) -> None:
        """Tells a dataset that asks for it which epoch begins; what is not trained on is of the
        first one.
        """
        set_epoch = getattr(self._dataset, "set_epoch", None)
        if set_epoch is None:
            return
        epoch = epoch if is_training else 0
        with self._lock:
            if epoch != self._epoch:
                set_epoch(epoch)
                self._epoch = epoch


def _describe(of: tuple[str, tuple[int, ...]]) -> str:
    return f"{of[0]} {of[1]}"


# ---- as a table


def read_samples(
    samples: Samples, prefix: str = "", make: Any = None, n: int | None = None
) -> Table:
    """A table whose rows are made when a batch needs them.

    Parameters
    ----------
    samples : Samples
    prefix : str
        Before the names in messages, ``"val "``.
    make : callable, optional
        Does what ``samples.read`` does, elsewhere.
    n : int, optional
        Rows, where they are not the samples one by one, but what ``make`` has for them.
    """
    n = len(samples) if n is None else n
    types = dict(samples.types)
    if samples.weighs:
        types["weight"] = ("float32", ())
    arrays = make_streams(n, list(types.values()), make or samples.read, samples.digest)
    fields, targets = [], {}
    for (name, (dtype, shape)), array in zip(types.items(), arrays):
        head, _, tail = name.partition(".")
        label = f"{prefix}{'X' if head == 'x' else head}{f'[{tail!r}]' if tail else ''}"
        graph = graph_dtype(np.dtype(dtype))
        if head == "y":
            targets[tail] = _target_of(array, dtype, shape, samples.classes)
            graph = targets[tail].dtype
        fields.append(Field(name, array, "float32" if head == "weight" else graph, label))
    fields.sort(key=lambda field: ("x", "y", "weight").index(field.name.partition(".")[0]))
    return Table(tuple(fields), targets, n)


def _target_of(
    array: Array, dtype: str, shape: tuple[int, ...], classes: list[Any] | None
) -> Targets:
    """What targets of a dtype are, of which no more is known."""
    if dtype == "float32":
        return Targets(array, "float", "float32")
    if dtype == "bool" and len(shape) == 1:
        return Targets(array, "multilabel", "float32")
    if dtype == "bool":
        return Targets(array, "class", "int64", [False, True], 2)
    n = None if classes is None else len(classes)
    return Targets(array, "class", "int64", classes, n, has_ignored=len(shape) > 0)
