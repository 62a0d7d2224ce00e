"""What a DataModule holds once it is made: splits with their targets, transforms and batches.

The arrays stay where they are. A split is a list of row numbers; a feed of the core orders them,
and the plan gathers a batch by row number, so no Python runs per sample or per batch.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.messages import warn
from hotloop.base.rules import either, flag, reject, whole
from hotloop.base.suggest import name_missing
from hotloop.data.augment_series import SeriesStep
from hotloop.data.auto_workers import AutoWorkers
from hotloop.data.batching import (
    Group,
    cut_batches,
    gather_batches,
    make_feeds,
    order_batches,
)
from hotloop.data.checks import blocks, check_labels, check_values, check_weights
from hotloop.data.described import describe_all, describe_line
from hotloop.data.frames.encoding import Encoding
from hotloop.data.options import classes_by_target, read_classes
from hotloop.data.padding import ROLES
from hotloop.data.scaling import doubt_of_values, fit_standard
from hotloop.data.showing import Drawn, draw_images
from hotloop.data.split import Field, Split, nest_fields
from hotloop.data.streams import stream_of
from hotloop.data.tables import Table
from hotloop.data.targets import (
    Targets,
    merge_targets,
    name_of_target,
    names_of_ids,
    renumber_classes,
)
from hotloop.data.verifying import rows_among, say_bad, verify_rows
from hotloop.errors import ConfigError, DataWarning

__all__ = ["SPLITS", "DataSplits"]

Rows = npt.NDArray[np.int64]
Batch = dict[str, Any]

SPLITS = ("train", "val", "test")
_IMAGE_DIMS = 4
_COLUMNS = 8  # of images that are shown
_TITLES = ("", "label")  # targets that stand above them


class _Found(Protocol):
    """Who knows bad samples."""

    @property
    def found(self) -> dict[int, str]:
        """Why each is bad, by its number."""


class DataSplits:
    """Training, validation and test data; :class:`DataModule` has the ways to make it."""

    _prefetch = 2  # batches of streamed samples that are ready before they are needed
    _fixed: list[Any] | None = None  # transforms that are not fitted
    _encoding: Encoding | None = None
    _is_random = False  # whether training's samples are made anew in each epoch
    _replaces = False  # whether others stand in the place of bad samples
    facts: tuple[tuple[str, str], ...] = ()  # of how samples are made, for the header of a run
    augment_steps: tuple[SeriesStep, ...] = ()  # what the training step does to its series
    augmentation = ""  # what is done to its samples, as text by which it is known again
    _point_target: str | None = None  # the target that is points of images

    def with_classes(self, classes: Sequence[Any] | Mapping[str, Any]) -> Self:
        """The same data, its class ids numbering given classes: those that a model's outputs mean.

        Parameters
        ----------
        classes : sequence, or dict of them
            Names in the order of the outputs; of several targets by the targets' names.

        Returns
        -------
        DataModule
            Shares its arrays. Data whose targets have no names is returned as it is: its ids are
            the model's.

        Raises
        ------
        DataError
            If a class of the data is not among them.
        """
        wanted = classes if isinstance(classes, Mapping) else {"": classes}
        names = {target: list(given) for target, given in wanted.items() if given is not None}
        names = {
            target: listed
            for target, listed in names.items()
            if target in self._targets and self._targets[target].classes not in (None, listed)
        }
        if not names:
            return self
        renumbered = copy.copy(self)
        renumbered._targets = dict(self._targets)
        for target, listed in names.items():
            renumbered._targets[target] = dataclasses.replace(
                self._targets[target], classes=listed, n_classes=len(listed)
            )
        renumbered._checked = set(self._checked)
        renumbered._splits = {
            name: renumber_classes(split, self._targets, names)
            for name, split in self._splits.items()
        }
        return renumbered

    # ---- construction

    def _set_options(
        self,
        batch_size: Any,
        num_workers: Any,
        pin_memory: Any,
        shuffle: Any,
        drop_last: Any,
        seed: Any,
        allow_nonfinite: Any,
    ) -> None:
        if batch_size == "auto":
            raise ConfigError(
                "batch_size: must be a number, got 'auto'; hl.find_batch_size(model, data) says "
                "which is the largest that fits into memory"
            )
        self._batch_size: int = whole(1)("batch_size", batch_size)
        self._num_workers: int | str = either("auto", rule=whole(0))("num_workers", num_workers)
        self._pin_memory: bool | str = either("auto", rule=flag)("pin_memory", pin_memory)
        self._shuffle = flag("shuffle", shuffle)
        self._drop_last = flag("drop_last", drop_last)
        self._seed: int = whole(0, 2**63 - 1)("seed", seed)
        self._allow_nonfinite = flag("allow_nonfinite", allow_nonfinite)
        self._auto = AutoWorkers()
        self._bad_samples: dict[str, _Found] = {}

    def _set_loading(self, prefetch_factor: Any, persistent_workers: Any) -> None:
        """Of samples that are made batch by batch."""
        self._prefetch = whole(1)("prefetch_factor", prefetch_factor)
        flag("persistent_workers", persistent_workers)

    def _set_splits(
        self,
        parts: dict[str, tuple[Table, Rows | None]],
        wanted: bool | frozenset[str],
        scales_targets: bool,
    ) -> None:
        splits = {name: table.split(rows) for name, (table, rows) in parts.items()}
        targets = [table.targets for table, _ in parts.values()]
        self._hold(splits, targets, wanted, scales_targets)

    def _hold(
        self,
        splits: dict[str, Split],
        targets: list[dict[str, Targets]],
        wanted: bool | frozenset[str],
        scales_targets: bool,
    ) -> None:
        self._splits = splits
        self._targets = merge_targets(targets)
        self._checked: set[str] = set()
        self._good: list[npt.NDArray[Any]] = []  # of which every row was checked
        self._transforms: list[Any] | None = None
        self._standardized = self._find_standardized(wanted)
        if scales_targets:
            self._standardized += self._find_scaled_targets()
        for name, split in self._splits.items():
            for field in split.fields:
                if field.name == "weight":
                    check_weights(field, split.rows, name)

    def _find_standardized(self, wanted: bool | frozenset[str]) -> list[Field]:
        inputs = [field for field in self._splits["train"].fields if field.is_input]
        if isinstance(wanted, bool):
            return [field for field in inputs if wanted and field.dtype == "float32"]
        names = {field.name.partition(".")[2] for field in inputs}
        if names == {""}:
            rule = "must name columns of a dict X, and this X is one array"
            reject("standardize", rule, sorted(wanted), "write standardize=True for all")
        if wanted - names:
            named = name_missing(sorted(wanted - names), names)
            raise ConfigError(f"standardize: must name columns of the dict X, got none for {named}")
        return [field for field in inputs if field.name.partition(".")[2] in wanted]

    def _find_scaled_targets(self) -> list[Field]:
        kinds = {name: target.kind for name, target in self._targets.items()}
        if "float" not in kinds.values():
            got = ", ".join(kinds.values()) or "none"
            raise ConfigError(
                f"standardize: y must be float targets, got {got}{' targets' * bool(kinds)}; write "
                "standardize='x', or y.astype(np.float32) where integers are values to regress on"
            )
        return [self._field("train", name) for name, kind in kinds.items() if kind == "float"]

    def _name_classes(self, classes: Any) -> None:
        if classes is None:
            return
        for name, listed in classes_by_target(classes, list(self._targets)).items():
            target = self._targets.get(name)
            if target is None or target.n_classes is None:
                got = self.target_kind if target is None else target.kind
                raise ConfigError(f"classes: are of class targets, got {got} targets")
            names = read_classes(listed)
            if target.classes not in (None, [False, True]):
                self.__dict__.update(self.with_classes({name: names}).__dict__)
                continue
            if len(names) < target.n_classes:
                raise ConfigError(
                    f"classes: must name all {target.n_classes} classes of y, got {len(names)}"
                )
            self._targets[name] = dataclasses.replace(target, classes=names, n_classes=len(names))

    def _refit(self) -> None:
        """Fits anew what is fitted once on training's samples, after these changed."""

    # ---- what it is

    @property
    def batch_size(self) -> int:
        """Samples in a full batch."""
        return self._batch_size

    @property
    def shuffle(self) -> bool:
        """Whether training epochs have a random order."""
        return self._shuffle

    @property
    def drop_last(self) -> bool:
        """Whether training leaves out a smaller last batch."""
        return self._drop_last

    @property
    def num_workers(self) -> int:
        """Threads that make batches ahead: of streamed samples, or of what a GPU is fed with."""
        if self._num_workers != "auto":
            return int(self._num_workers)
        return self._auto.threads if self._splits["train"].is_streamed else 0

    @property
    def auto_workers(self) -> AutoWorkers | None:
        """How ``num_workers="auto"`` chooses; None: a number is given, or no samples are made."""
        is_auto = self._num_workers == "auto" and self._splits["train"].is_streamed
        return self._auto if is_auto else None

    def loading(self, split_name: str) -> dict[str, Any]:
        """How the batches of a split come about, for who makes their feeds.

        Parameters
        ----------
        split_name : {"train", "val", "test"}
            Which split.

        Returns
        -------
        dict
            ``is_streamed``: whether threads make the rows; ``ahead``: batches that are ready before
            they are needed.
        """
        is_streamed = self._require(split_name).is_streamed
        return {"is_streamed": is_streamed, "ahead": self._prefetch}

    @property
    def seed(self) -> int:
        """Of splits and order."""
        return self._seed

    @property
    def target_kind(self) -> str:
        """ "class", "multilabel", "float" or "none"; "several" where y is a dict or tuple."""
        if not self._targets:
            return "none"
        return self._targets[""].kind if "" in self._targets else "several"

    @property
    def targets(self) -> dict[str, Targets]:
        """Each target by its name, those of a tuple by position; "" is the name of a single one."""
        return dict(self._targets)

    @property
    def classes(self) -> list[Any] | dict[str, list[Any] | None] | None:
        """Names by class id, where y came with names (strings, bools); of several targets a dict
        from each that has some.
        """
        named: dict[str, list[Any] | None] = {
            name: list(target.classes)
            for name, target in self._targets.items()
            if target.classes is not None
        }
        return named.get("") if "" in self._targets else named or None

    @property
    def n_classes(self) -> int | None:
        """Classes of all splits, the largest id + 1; None unless y holds classes."""
        return self._targets[""].n_classes if "" in self._targets else None

    @property
    def transforms(self) -> list[tuple[str, dict[str, tuple[Any, Any]]]]:
        """Transforms fitted on the training rows: ``("standardize", {field: (mean, std)})``.

        They are applied inside the graph, not to the arrays. The targets' field is "y".
        """
        if self._fixed is not None:
            return list(self._fixed)
        if self._transforms is None:
            rows = self._splits["train"].rows
            fitted = {
                field.name: fit_standard(field, rows, skip_nonfinite=self._allow_nonfinite)
                for field in self._standardized
            }
            self._transforms = [("standardize", fitted)] if fitted else []
        return list(self._transforms)

    @property
    def encoding(self) -> Encoding | None:
        """What became of a table's columns, learnt of the training rows; None of other data."""
        return self._encoding

    def split(self, name: str) -> Split | None:
        """Arrays and row numbers of a split.

        Parameters
        ----------
        name : {"train", "val", "test"}
            Which one.

        Returns
        -------
        Split or None
            ``fields`` with the arrays, ``rows`` (None: all) and ``n``; None where there is no such
            split.
        """
        if name not in SPLITS:
            reject("split", f"must be one of {', '.join(SPLITS)}", name)
        return self._splits.get(name)

    def arrays(self, split_name: str) -> tuple[Any, Any]:
        """X and y of a split, to compute with.

        Parameters
        ----------
        split_name : {"train", "val", "test"}
            Which one.

        Returns
        -------
        tuple
            X as it was given, of a table as it was encoded, ``(rows, ...)`` or a dict or tuple of
            such arrays, of sequences a list of arrays, before transforms; y likewise, with classes
            by their names where they have some, or None.

        Raises
        ------
        ConfigError
            If there is no such split.

        Examples
        --------
        >>> X, y = hl.load_digits()
        >>> X_test, y_test = hl.DataModule.from_arrays(X, y, test=100).arrays("test")
        >>> X_test.shape, y_test.shape
        ((100, 64), (100,))
        """
        split = self._require(split_name)
        if split.has_shapes:
            found = self._sequences(split)
            self.warn_of_bad(split_name, "arrays")
            return found
        named = {}
        for name, array in split.by_field().items():
            named[name] = self._by_names(name, array)
        self.warn_of_bad(split_name, "arrays")
        batch = nest_fields(named)
        return batch["x"], batch.get("y")

    def _by_names(self, field: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Class ids of a target's field as their names, where they have some."""
        target = name_of_target(field)
        known = None if target is None else self._targets[target].classes
        return array if known is None else names_of_ids(array, known)

    def _sequences(self, split: Split) -> tuple[Any, Any]:
        """X and y of sequences of several lengths: lists of arrays, each with its own."""
        if split.is_streamed:
            return self._apart(split)
        goal = next((field for field in split.fields if field.name == "y"), None)
        y: Any = None
        if goal is not None:
            found = split.sequences("y")
            rows = split.rows if found is None else None
            y = (
                self._by_names("y", goal.array[rows])
                if found is None
                else [self._by_names("y", one) for one in found]
            )
        return split.sequences("x.0"), y

    def _apart(self, split: Split) -> tuple[Any, Any]:
        """X and y of samples that are made in several shapes: a list of X, without its lengths."""
        named: dict[str, Any] = {}
        for name, values in split.apart().items():
            padding = next(field.padding for field in split.fields if field.name == name)
            if name.startswith("x"):
                if padding is None or padding.role not in ROLES:
                    named[name] = values
                continue
            is_list = len({value.shape for value in values}) > 1
            found = [self._by_names(name, value) for value in values]
            named[name] = found if is_list else np.stack(found)
        batch = nest_fields(named)
        x = batch["x"]
        return x[0] if isinstance(x, tuple) and len(x) == 1 else x, batch.get("y")

    def class_counts(self, target: str = "") -> list[int]:
        """Training rows of each class; of ids per position, training positions.

        Parameters
        ----------
        target : str
            Its name, where there are several.

        Returns
        -------
        list of int
            By class id.

        Raises
        ------
        ConfigError
            If the targets are no classes.
        """
        known = self._targets.get(target)
        if known is not None and stream_of(known.array) is not None:
            raise ConfigError(
                "class_counts: targets that are made sample by sample are not counted, got a "
                "dataset; give class_weight as numbers, or the labels as an array"
            )
        if known is None or known.n_classes is None:
            kind = self.target_kind if known is None else known.kind
            raise ConfigError(f"class_counts: needs class targets, got {kind} targets")
        counts = np.zeros(known.n_classes, np.int64)
        field, rows = self._field("train", target), self._splits["train"].rows
        series, window = field.source
        if window and field.padding is None:
            return _count_in_windows(series, window, rows, known.n_classes)
        for _, values in blocks(field, rows, "counting the classes of"):
            ids = values[values >= 0].astype(np.int64)
            counts += np.bincount(ids, minlength=known.n_classes)
        return [int(count) for count in counts]

    def example_batch(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """What the first batch of training looks like.

        Returns
        -------
        dict of (str, tuple of int)
            dtype and shape by field: "x", "x.<column>", "y" and so on.
        """
        size = self.batches("train", training=True, merge_tail=False)[0].rows
        fields = self._splits["train"].fields
        return {f.name: (f.dtype, (size, *f.shape)) for f in fields}

    # ---- checks

    def check(self, split_name: str) -> None:
        """Looks through a split's values once; later calls return at once.

        Parameters
        ----------
        split_name : {"train", "val", "test"}
            Which one.

        Raises
        ------
        DataError
            For NaN, infinities (unless allow_nonfinite) and values beyond float32, by the row and
            column of the user's own array.
        ConfigError
            If there is no such split.
        """
        split = self._require(split_name)
        if split_name in self._checked:
            return
        if not self._allow_nonfinite:
            for field in split.fields:
                if field.stream is not None:  # looked at as batches are made
                    continue
                known = any(array is field.array for array in self._good)
                if not known and check_values(field, split.rows):
                    self._good.append(field.array)
        self._checked.add(split_name)

    def verify(
        self, workers: int | None = None, *, progress: bool | str = "auto"
    ) -> dict[str, dict[int, str]]:
        """Makes or looks at every sample of every split once, ahead of training.

        Parameters
        ----------
        workers : int, optional
            Threads, as :func:`parallel_map` takes them. Datasets of Python's are read by one.
        progress : bool or "auto"
            Whether a bar is shown.

        Returns
        -------
        dict
            By split the samples that cannot be trained on, with the reason, by number: empty where
            all are good.

        Raises
        ------
        DataError
            For arrays, as training would.
        ConfigError
            For an option out of its range.

        Examples
        --------
        >>> X, y = hl.load_digits()
        >>> hl.DataModule.from_arrays(X, y, val=0.2).verify()
        {}
        """
        found: dict[str, dict[int, str]] = {}
        for name, split in self._splits.items():
            self.check(name)
            if not split.is_streamed:
                continue
            bad = verify_rows(split, self._auto.threads if workers is None else workers, progress)
            bad |= self._known_bad(name)
            if bad:
                found[name] = bad
        return found

    def _known_bad(self, name: str) -> dict[int, str]:
        """The samples of a split that turned out bad so far, skipped and replaced ones too."""
        split = self._require(name)
        own = self._bad_samples.get(name, self._bad_samples.get("train"))
        return {} if own is None else rows_among(split, own.found)

    def warn_of_bad(self, name: str, what: str) -> None:
        """Warns where something stands in the place of samples that are bad.

        Parameters
        ----------
        name : str
            Of the split.
        what : str
            Who read them: "predict".
        """
        if bad := self._known_bad(name):
            warn(f"{what}: {say_bad(name, bad)}", DataWarning)

    def warn_of_one_class(self) -> None:
        """Warns where training sees one class only: on training, not where data is evaluated."""
        for name, target in self._targets.items():
            if target.kind != "class" or stream_of(target.array) is not None:
                continue
            present = [i for i, count in enumerate(self.class_counts(name)) if count]
            if len(present) == 1:
                shown = target.classes[present[0]] if target.classes else present[0]
                warn(
                    f"{self._field('train', name).label}: all {len(self)} training rows are of "
                    f"class {shown!r}; a model learns nothing from one class",
                    DataWarning,
                )

    def warn_of_values(self, target: str = "") -> None:
        """Warns of float targets, to be compared as values, that look like classes or are all far
        from 0.

        Parameters
        ----------
        target : str
            Its name, where there are several.
        """
        if target in self._targets and self._targets[target].kind == "float":
            field = self._field("train", target)
            doubt = doubt_of_values(
                field, self._splits["train"].rows, is_scaled=field in self._standardized
            )
            if doubt:
                warn(doubt, DataWarning)

    def _field(self, split_name: str, target: str) -> Field:
        """A split's field of a target that there is."""
        fields = self._require(split_name).fields
        return next(field for field in fields if name_of_target(field.name) == target)

    def check_labels(
        self, split_name: str, n_outputs: int, *, target: str = "", ignored: int | None = None
    ) -> None:
        """Refuses class ids that a model has no output for.

        Parameters
        ----------
        split_name : {"train", "val", "test"}
            Which split.
        n_outputs : int
            The model's classes.
        target : str
            Its name, where there are several.
        ignored : int, optional
            A class id that needs no output, since it counts nothing.

        Raises
        ------
        DataError
            With row, value and what is allowed.
        """
        split = self._require(split_name)
        if target in self._targets and self._targets[target].kind == "class":
            known = self._targets[target]
            names = known.classes if known.has_names else None
            check_labels(self._field(split_name, target), split.rows, n_outputs, ignored, names)

    def _require(self, split_name: str) -> Split:
        split = self.split(split_name)
        if split is None:
            raise ConfigError(
                f"{split_name}: the data has no such split; write from_arrays(X, y, "
                f"{split_name}=0.2), or (X, y) for data of its own"
            )
        return split

    # ---- batches

    def batches(self, split_name: str, *, training: bool, merge_tail: bool) -> list[Group]:
        """How an epoch is cut into batches.

        Parameters
        ----------
        split_name : {"train", "val", "test"}
            Which split.
        training : bool
            Whether drop_last counts.
        merge_tail : bool
            Whether a last batch of one row joins the one before it, since batch statistics need
            two values per channel, and a row has one.

        Returns
        -------
        list of Group
            (samples in a batch, number of such batches, part of the split), in order.

        Raises
        ------
        DataError
            If merge_tail is asked for and every batch has one row.
        """
        return cut_batches(
            split_name,
            self._require(split_name),
            self._batch_size,
            training=training,
            drop_last=training and self._drop_last,
            merge_tail=merge_tail,
        )

    def feeds(
        self,
        split_name: str,
        groups: Sequence[Group],
        *,
        training: bool,
        n_slots: int = 1,
        n_threads: int = 0,
    ) -> list[_core.Feed]:
        """One feed per group of equal batches, which serve an epoch as :meth:`order` says.

        Parameters
        ----------
        split_name : {"train", "val", "test"}
            Which split.
        groups : sequence of Group
            As :meth:`batches` gives them.
        training : bool
            Whether the order is training's.
        n_slots, n_threads : int
            Batches under way, and threads that gather them, where they are sent to a device.

        Returns
        -------
        list of Feed
            Of the core, one for each group.
        """
        return make_feeds(
            self._require(split_name),
            groups,
            shuffle=training and self._shuffle,
            seed=self._seed,
            n_slots=n_slots,
            n_threads=n_threads,
            is_training=training,
        )

    def order(
        self, groups: Sequence[Group], epoch: int, *, training: bool, run: int = 1
    ) -> list[tuple[int, int]]:
        """In which order an epoch takes the batches of its groups.

        Parameters
        ----------
        groups : sequence of Group
            As :meth:`batches` gives them.
        epoch : int
            From 0.
        training : bool
            Whether the order is training's: with shuffle, batches of several lengths are mixed.
        run : int
            Batches of a group that stay together.

        Returns
        -------
        list of (int, int)
            (number of a group, batches of it that follow) in turn.
        """
        shuffle = training and self._shuffle
        return order_batches(groups, shuffle=shuffle, seed=self._seed, epoch=epoch, run=run)

    def train_batches(self, epoch: int = 0, *, merge_tail: bool = False) -> Iterator[Batch]:
        """The batches of a training epoch, as training sees them.

        Parameters
        ----------
        epoch : int
            From 0; each has an order of its own when shuffle is on.
        merge_tail : bool
            As training does it for models with BatchNorm.

        Yields
        ------
        dict
            "x", and "y" and "weight" where there are some: arrays in the dtypes of the graph,
            before transforms; "x" is a dict or tuple where X was one.

        Examples
        --------
        >>> X, y = hl.load_digits()
        >>> data = hl.DataModule.from_arrays(X, y, batch_size=500)
        >>> [batch["x"].shape for batch in data.train_batches()]
        [(500, 64), (500, 64), (500, 64), (297, 64)]
        """
        epoch = whole(0)("epoch", epoch)
        return self._iterate("train", epoch, training=True, merge_tail=merge_tail)

    def val_batches(self) -> Iterator[Batch]:
        """The batches of the validation split, in order.

        Yields
        ------
        dict
            As :meth:`train_batches`.
        """
        return self._iterate("val", 0, training=False, merge_tail=False)

    def test_batches(self) -> Iterator[Batch]:
        """The batches of the test split, in order.

        Yields
        ------
        dict
            As :meth:`train_batches`.
        """
        return self._iterate("test", 0, training=False, merge_tail=False)

    def batches_in_order(
        self, split_name: str, groups: Sequence[Group] | None = None
    ) -> Iterator[Batch]:
        """The batches of any split as evaluation sees them.

        Parameters
        ----------
        split_name : {"train", "val", "test"}
            Which one.
        groups : sequence of Group, optional
            How the split is cut, where it is not as :meth:`batches` has it.

        Yields
        ------
        dict
            As :meth:`train_batches`.
        """
        return self._iterate(split_name, 0, training=False, merge_tail=False, groups=groups)

    def _iterate(
        self,
        split_name: str,
        epoch: int,
        *,
        training: bool,
        merge_tail: bool,
        groups: Sequence[Group] | None = None,
    ) -> Iterator[Batch]:
        if groups is None:
            groups = self.batches(split_name, training=training, merge_tail=merge_tail)
        feeds = self.feeds(split_name, groups, training=training)
        order = self.order(groups, epoch, training=training)
        return gather_batches(
            self._require(split_name), groups, feeds, order, epoch, is_training=training
        )

    def show_batch(self, split_name: str = "train", n: int = 16, *, epoch: int = 0) -> Any:
        """Draws the first images of a batch with their labels, masks and points, as the model gets
        them.

        Parameters
        ----------
        split_name : {"train", "val", "test"}
            Which split; of "train" shuffled and augmented, before levels are normalised.
        n : int
            How many, at most a batch.
        epoch : int
            Whose batch, of training.

        Returns
        -------
        matplotlib.figure.Figure
            A notebook shows it. A class of a mask has its own colour, over the image; where none
            counts the image is as it is. Points that count are dots, each in its own colour.

        Raises
        ------
        ConfigError
            If inputs are no images, there is no such split, or matplotlib is not installed.
        """
        count = whole(1)("n", n)
        if split_name == "train":
            batch = next(self.train_batches(epoch))
        else:
            batch = next(self.batches_in_order(split_name))
        images = batch["x"]
        if isinstance(images, (dict, tuple)):
            parts = list(images.values()) if isinstance(images, dict) else list(images)
            images = next((part for part in parts if part.ndim == _IMAGE_DIMS), parts[0])
        drawn = Drawn(images[:count])
        for name, target in self._targets.items():
            values = (batch["y"][name] if name else batch["y"])[:count]
            if target.array.ndim == 1 and not drawn.titles and name in _TITLES:
                shown = self._by_names(f"y.{name}" if name else "y", values)
                is_value = target.kind == "float"
                drawn.titles = [f"{value:.4g}" if is_value else str(value) for value in shown]
            elif name == self._point_target:
                drawn.points = values
            elif target.kind == "class" and values.shape[1:] == images.shape[2:]:
                drawn.mask, drawn.n_classes = values, target.n_classes
        return draw_images(drawn, min(count, len(images), _COLUMNS))

    # ---- as text

    def __len__(self) -> int:
        return self._splits["train"].n

    def __repr__(self) -> str:
        return describe_line(self)

    def describe(self) -> str:
        """The splits, the fields with dtypes and shapes, and the classes.

        Returns
        -------
        str
            To be printed.
        """
        standardized = ", ".join(field.name for field in self._standardized)
        return describe_all(self, standardized)


def _count_in_windows(
    series: npt.NDArray[Any], window: int, rows: Rows | None, n_classes: int
) -> list[int]:
    """How often windows that begin with these rows have each class, without making any."""
    steps = np.zeros(len(series) + 1, np.int64)  # of how many windows a row is in, against the last
    begins = np.arange(len(series) - window + 1) if rows is None else rows
    np.add.at(steps, begins, 1)
    np.add.at(steps, begins + window, -1)
    is_counted = series >= 0
    times = np.cumsum(steps[:-1])[is_counted]
    counts = np.bincount(series[is_counted], weights=times, minlength=n_classes)
    return [int(count) for count in counts]
