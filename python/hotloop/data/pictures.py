"""Image files as data: folders of classes and tables of paths, decoded when a batch needs them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.rules import byte_size, choice, number, reject, show
from hotloop.data.arrays import column_names
from hotloop.data.augment import pack_augment
from hotloop.data.auto_workers import AutoWorkers
from hotloop.data.image_files import ImageFiles, read_image_folder, read_image_table
from hotloop.data.images import choose_caching, describe_decoder, image_source
from hotloop.data.options import refuse_options
from hotloop.data.series import SeriesData
from hotloop.data.split import Field
from hotloop.data.streams import make_streams, stream_of
from hotloop.data.tables import Table
from hotloop.data.targets import Targets, ids_of, read_all_targets
from hotloop.errors import ConfigError

__all__ = ["ImageData"]

Rows = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_MOST_THREADS = 16
_FITTED_ON = 2000  # images whose levels normalize="standard" averages
_CHANNELS = {"rgb": 3, "grey": 1, "gray": 1}
_WHITE = 255.0


class _Making(NamedTuple):
    """How files become images of a batch."""

    augment: tuple[Any, ...]
    channels: int
    caching: str
    cache_bytes: int
    on_bad: str
    cap: float

    def table(self, files: ImageFiles, prefix: str, like: Table | None) -> Table:
        """Fields of these files: images that are made in batches, and their labels."""
        n = len(files.paths)
        targets: dict[str, Targets] = {}
        companions: list[Array] = []
        if files.labels is not None:
            y = files.labels
            if files.classes is not None:
                y = np.array(files.classes)[y]
            targets = read_all_targets(y, f"{prefix}y", n, None if like is None else like.targets)
            if self.on_bad == "replace":
                companions = [np.ascontiguousarray(target.array) for target in targets.values()]
        source = image_source(
            files.paths,
            self.augment,
            channels=self.channels,
            companions=companions,
            caching=self.caching,
            cache_bytes=self.cache_bytes,
            on_bad=self.on_bad,
            bad_max=0 if self.on_bad == "raise" else max(1, int(n * self.cap)),
        )
        height, width = self.augment[:2]
        types: list[tuple[str, tuple[int, ...]]] = [("uint8", (self.channels, height, width))]
        if self.on_bad == "skip":
            types.append(("float32", ()))
        types += [(str(array.dtype), array.shape[1:]) for array in companions]
        streams = make_streams(n, types, source)
        fields = [Field("x", streams[0], "float32", f"{prefix}X")]
        for name, target in targets.items():
            array = streams[-1] if companions else target.array
            fields.append(Field("y", array, target.dtype, f"{prefix}y{name}"))
        if self.on_bad == "skip":
            fields.append(Field("weight", streams[1], "float32", f"{prefix}sample_weight"))
        return Table(tuple(fields), targets, n)


class BadImages:
    """The files of a source that could not be decoded so far.

    Parameters
    ----------
    source : _core.Source
    paths : sequence of str
    """

    def __init__(self, source: _core.Source, paths: Sequence[str]) -> None:
        self._source, self._paths = source, paths

    @property
    def found(self) -> dict[int, str]:
        """Why, by row."""
        report = _core.image_report(self._source)
        first = report["first_bad"]
        return {
            int(row): first
            if self._paths[row] in first
            else f"image {self._paths[row]}: cannot be decoded; verify() says why"
            for row in report["bad_rows"]
        }


class ImageData(SeriesData):
    """Ways to make a :class:`DataModule` of image files."""

    _is_fitted = False  # whether levels are normalised by those of training's images

    @classmethod
    def from_image_folder(
        cls,
        root: str | os.PathLike[str],
        size: int | Sequence[int] = 224,
        *,
        val: Any = None,
        test: Any = None,
        channels: str = "rgb",
        augment: Any = "basic",
        normalize: Any = "imagenet",
        fit: str = "crop",
        interpolation: str | None = None,
        cache: str | None = None,
        cache_limit: int | str = "2GiB",
        follow_symlinks: bool = False,
        on_bad_sample: str = "raise",
        max_bad_share: float = 0.001,
        batch_size: int = 64,
        shuffle: bool = True,
        split: str | None = None,
        stratify: bool | str = "auto",
        groups: Any = None,
        sampler: str | None = None,
        weights: Any = None,
        samples_per_epoch: int | None = None,
        drop_last: bool = False,
        seed: int = 42,
        num_workers: int | str = "auto",
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        pin_memory: bool | str = "auto",
        **unknown: Any,
    ) -> Self:
        """A DataModule of image files in folders named by their classes.

        Files are decoded, augmented and put into batches by threads of the core, ahead of the step.
        JPEG by TurboJPEG where it is found, at a reduced size where the batch's is smaller; every
        other format, and JPEG without TurboJPEG, by Pillow. EXIF's orientation is applied.

        Parameters
        ----------
        root : path
            ``root/cat/1.jpg``: folders are classes, in sorted order; files of a class may lie in
            folders of their own.
        size : int or (int, int)
            Side of a square, or height and width of the batch's images, in pixels.
        val, test : float, int, path or rows, optional
            A fraction or number of the images, a folder of its own with the same classes, or row
            numbers, in the order of classes and paths.
        channels : {"rgb", "grey"}
            forward receives ``(batch, 3, height, width)`` or ``(batch, 1, height, width)``,
            float32.
        augment : {"none", "basic", "strong"}, step or list of steps
            What happens to training's images, of :mod:`hotloop.data.augment`, by random numbers
            that are a function of seed, epoch and image. "basic": of sizes up to 64 pixels a crop
            after 4 pixels of padding, else a random resized crop of 35 to 100 % of the area; and
            flips. "strong": TrivialAugment and random erasing besides.
        normalize : {"imagenet", "standard", "scale"}, (mean, std) or None
            What is done to the levels of 0 to 255, as a part of the model: divided by 255 and then
            standardised by ImageNet's mean and standard deviation of each channel, as most
            pretrained weights expect; by those of the training images; by given ones; divided
            alone; nothing.
        fit : {"crop", "squash", "pad"}
            How an image gets the size without augmentation: the shorter side is resized and the
            centre cut out; both sides for themselves; or the whole image lies in the middle of
            black.
        interpolation : {"bilinear", "bicubic", "nearest"}, optional
            "bilinear" where no step says another; smaller images are antialiased as Pillow's.
        cache : {"ram"}, optional
            Keeps in memory what was read: decoded images where all of them fit into
            ``cache_limit``, else files.
        cache_limit : int or str
            Bytes, or "4GB".
        follow_symlinks : bool
            Whether links may lead out of root.
        on_bad_sample : {"raise", "skip", "replace"}
            What becomes of a file that cannot be decoded: an error with its path; weight 0; or the
            next good one in its place. ``bad_samples`` says which were.
        max_bad_share : float
            Share of the files that may be bad.
        groups : array_like (n,), optional
            As for :meth:`from_arrays`, in the order of classes and paths.
        batch_size, shuffle, split, stratify, sampler, weights, samples_per_epoch, drop_last, seed
            As for :meth:`from_arrays`.
        num_workers : int or "auto"
            Threads. "auto": measured when training starts, as for the class; until then as many as
            there are processors, up to 16.
        prefetch_factor, persistent_workers, pin_memory
            As for the class.
        **unknown
            Refused by name, with the option that is meant.

        Returns
        -------
        DataModule
            Its rows are the files, in the order of classes and paths.

        Raises
        ------
        ConfigError
            For an option out of its range.
        DataError
            For a folder without classes or a class without images, files that are no images, links
            that lead out. A file that cannot be decoded is found when a batch needs it, or by
            :meth:`verify`.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> from PIL import Image
        >>> root = pathlib.Path(tempfile.mkdtemp())
        >>> for i, name in enumerate(["dark", "light"]):
        ...     (root / name).mkdir()
        ...     for k in range(20):
        ...         levels = np.random.default_rng(k).integers(0, 100, (40, 50, 3)) + 155 * i
        ...         Image.fromarray(levels.astype(np.uint8)).save(root / name / f"{k}.png")
        >>> data = hl.DataModule.from_image_folder(root, 32, val=0.25, batch_size=8)
        >>> data.classes, data.example_batch()["x"]
        (['dark', 'light'], ('float32', (8, 3, 32, 32)))
        """
        refuse_options(unknown, cls.from_image_folder)
        files = read_image_folder(root, follow_symlinks=follow_symlinks)
        own = {
            name: read_image_folder(folder, follow_symlinks=follow_symlinks)
            for name, folder in (("val", val), ("test", test))
            if isinstance(folder, (str, os.PathLike))
        }
        return cls._of_files(
            files, own, {"val": val, "test": test}, classes=None, size=size, channels=channels,
            augment=augment, normalize=normalize, fit=fit, interpolation=interpolation, cache=cache,
            cache_limit=cache_limit, on_bad_sample=on_bad_sample, max_bad_share=max_bad_share,
            split=split, stratify=stratify, groups=groups, sampler=sampler, weights=weights,
            samples_per_epoch=samples_per_epoch, batch_size=batch_size, num_workers=num_workers,
            pin_memory=pin_memory, shuffle=shuffle, drop_last=drop_last, seed=seed,
            prefetch_factor=prefetch_factor, persistent_workers=persistent_workers,
        )  # fmt: skip

    @classmethod
    def from_image_table(
        cls,
        table: Any,
        path: str,
        label: str | None = None,
        size: int | Sequence[int] = 224,
        *,
        root: str | os.PathLike[str] | None = None,
        val: Any = None,
        test: Any = None,
        groups: Any = None,
        classes: Sequence[Any] | None = None,
        channels: str = "rgb",
        augment: Any = "basic",
        normalize: Any = "imagenet",
        fit: str = "crop",
        interpolation: str | None = None,
        cache: str | None = None,
        cache_limit: int | str = "2GiB",
        follow_symlinks: bool = False,
        on_bad_sample: str = "raise",
        max_bad_share: float = 0.001,
        batch_size: int = 64,
        shuffle: bool = True,
        split: str | None = None,
        stratify: bool | str = "auto",
        sampler: str | None = None,
        weights: Any = None,
        samples_per_epoch: int | None = None,
        drop_last: bool = False,
        seed: int = 42,
        num_workers: int | str = "auto",
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
        pin_memory: bool | str = "auto",
        **unknown: Any,
    ) -> Self:
        """A DataModule of image files that a table names.

        Parameters
        ----------
        table : path of a CSV file, or data frame
        path : str
            The column of paths. Those that are not absolute begin at root.
        label : str, optional
            The column of labels: texts and whole numbers are classes, other numbers values.
        size : int or (int, int)
            As for :meth:`from_image_folder`.
        root : path, optional
            By default the folder of the CSV file, or the current one for a data frame.
        val, test : float, int, rows, mask, or table of its own, optional
            A fraction or number of the rows, or their numbers; or another table of the same
            columns.
        groups : str or array_like (n,), optional
            A column of a data frame, or one group for each row: as for :meth:`from_arrays`.
        classes : sequence, optional
            Names of the class ids of whole numbers; of texts their order.
        channels, augment, normalize, fit, interpolation, cache, cache_limit, follow_symlinks
            As for :meth:`from_image_folder`.
        on_bad_sample, max_bad_share, num_workers, prefetch_factor, persistent_workers
            As for :meth:`from_image_folder`.
        batch_size, shuffle, split, stratify, sampler, weights, samples_per_epoch, drop_last, seed
            As for :meth:`from_arrays`.
        pin_memory
            As for the class.
        **unknown
            Refused by name, with the option that is meant.

        Returns
        -------
        DataModule
            Its rows are those of the table.

        Raises
        ------
        ConfigError
            For an option out of its range, or a column that is not there.
        DataError
            For a row without a path or label, or whose file is not there, by its number.
        """
        refuse_options(unknown, cls.from_image_table)

        def read(of: Any, at: Any) -> ImageFiles:
            return read_image_table(of, path, label, root=at, follow_symlinks=follow_symlinks)

        files = read(table, root)
        own = {
            name: read(other, root)
            for name, other in (("val", val), ("test", test))
            if isinstance(other, (str, os.PathLike)) or column_names(other) is not None
        }
        if isinstance(groups, str):
            if column_names(table) is None:
                reject("groups", "names a column of a data frame, and the table is a file", groups)
            if groups not in (column_names(table) or ()):
                raise ConfigError(f"groups: must name a column, got {groups!r}")
            groups = np.asarray(table[groups])
        return cls._of_files(
            files, own, {"val": val, "test": test}, classes=classes, size=size, channels=channels,
            augment=augment, normalize=normalize, fit=fit, interpolation=interpolation, cache=cache,
            cache_limit=cache_limit, on_bad_sample=on_bad_sample, max_bad_share=max_bad_share,
            split=split, stratify=stratify, groups=groups, sampler=sampler, weights=weights,
            samples_per_epoch=samples_per_epoch, batch_size=batch_size, num_workers=num_workers,
            pin_memory=pin_memory, shuffle=shuffle, drop_last=drop_last, seed=seed,
            prefetch_factor=prefetch_factor, persistent_workers=persistent_workers,
        )  # fmt: skip

    @classmethod
    def _of_files(
        cls,
        files: ImageFiles,
        own: Mapping[str, ImageFiles],
        shares: Mapping[str, Any],
        *,
        classes: Any,
        size: Any,
        channels: Any,
        augment: Any,
        normalize: Any,
        fit: Any,
        interpolation: Any,
        cache: Any,
        cache_limit: Any,
        on_bad_sample: Any,
        max_bad_share: Any,
        split: Any,
        stratify: Any,
        groups: Any,
        sampler: Any,
        weights: Any,
        samples_per_epoch: Any,
        batch_size: Any,
        num_workers: Any,
        pin_memory: Any,
        shuffle: Any,
        drop_last: Any,
        seed: Any,
        prefetch_factor: Any,
        persistent_workers: Any,
    ) -> Self:
        """What both constructors do with the files that they found."""
        self = cls.__new__(cls)
        self._set_options(
            batch_size, num_workers, pin_memory, shuffle, drop_last, seed, allow_nonfinite=False
        )
        self._set_loading(prefetch_factor, persistent_workers)
        packed = pack_augment(augment, size, seed=self._seed, fit=fit, interpolation=interpolation)
        n_channels = _CHANNELS[choice(*_CHANNELS)("channels", channels)]
        limit = byte_size("cache_limit", cache_limit)
        caching, facts = "nothing", [("images", f"by {describe_decoder()}")]
        if cache is not None:
            choice("ram")("cache", cache)
            caching, what = choose_caching(files.paths, n_channels, limit)
            facts.append(("cache", what))
        making = _Making(
            packed,
            n_channels,
            caching,
            limit,
            choice("raise", "skip", "replace")("on_bad_sample", on_bad_sample),
            number(at_least=0.0, at_most=1.0)("max_bad_share", max_bad_share),
        )
        fixed = _read_normalize(normalize, n_channels)
        table = making.table(files, "", None)
        drawn = {name: None if name in own else share for name, share in shares.items()}
        _, rows = self._divide(table.n, drawn, ids_of(table.targets), groups, split, 0, stratify)
        parts: dict[str, tuple[Table, Rows | None]] = {"train": (table, rows["train"])}
        for name in ("val", "test"):
            if name in own:
                parts[name] = making.table(own[name], f"{name} ", table), None
            elif rows[name] is not None:
                parts[name] = table, rows[name]
        self._auto = AutoWorkers(min(int(_core.cpu_info()["threads"]), _MOST_THREADS))
        self.facts = tuple(facts)
        for name, (of, _) in parts.items():
            stream = stream_of(of.fields[0].array)
            if stream is not None and (name == "train" or name in own):
                paths = (files if name == "train" else own[name]).paths
                self._bad_samples[name] = BadImages(stream.source, paths)
        self._set_splits(parts, False, False)
        self._is_fitted = fixed is None
        self._fixed = self._fit_levels() if fixed is None else fixed
        self._set_sampling(sampler, weights, samples_per_epoch)
        self._name_classes(classes)
        return self

    def _with_rows(self, rows: Mapping[str, Rows]) -> Self:
        made = super()._with_rows(rows)
        if self._is_fitted and "train" in rows:
            made._fixed = made._fit_levels()
        return made

    def _fit_levels(self) -> list[tuple[str, dict[str, tuple[Any, Any]]]]:
        """Mean and standard deviation of each channel over training's images, some of many."""
        split = self._splits["train"]
        stream = stream_of(split.fields[0].array)
        assert stream is not None  # of images
        rows = np.arange(split.n) if split.rows is None else split.rows
        rows = rows[:: max(1, len(rows) // _FITTED_ON)]
        total = np.zeros(stream.shape[1])
        squares = np.zeros(stream.shape[1])
        n = 0
        for begin in range(0, len(rows), 64):
            levels = stream[rows[begin : begin + 64]].astype(np.float64)
            total += levels.sum(axis=(0, 2, 3))
            squares += np.square(levels).sum(axis=(0, 2, 3))
            n += levels[:, 0].size
        mean = total / n
        std = np.sqrt(np.maximum(squares / n - np.square(mean), 0.0))
        return _standardize(mean, np.where(std > 0, std, 1.0))


def _standardize(mean: Any, std: Any) -> list[tuple[str, dict[str, tuple[Any, Any]]]]:
    """Levels less the mean, by the standard deviation, each by channel."""
    by_channel = tuple(np.asarray(v, np.float32).reshape(-1, 1, 1) for v in (mean, std))
    return [("standardize", {"x": (by_channel[0], by_channel[1])})]


def _read_normalize(
    value: Any, channels: int
) -> list[tuple[str, dict[str, tuple[Any, Any]]]] | None:
    """The transform of levels; None: it is fitted.

    Raises
    ------
    ConfigError
    """
    if value is None:
        return []
    rule = "must be 'imagenet', 'standard', 'scale', (mean, std) by channel, or None"
    if isinstance(value, str):
        name = choice("imagenet", "standard", "scale")("normalize", value)
        if name == "standard":
            return None
        if name == "scale":
            return _standardize(np.zeros(channels), np.full(channels, _WHITE))
        mean, std = (np.array(part) for part in _IMAGENET)
        if channels == 1:  # the grey of its mean, and the spread of its middle channel
            mean, std = mean @ np.array([[0.299], [0.587], [0.114]]), std[1:2]
        return _standardize(mean * _WHITE, std * _WHITE)
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        reject("normalize", rule, value)
    parts = []
    for name, part in zip(("mean", "std"), value):
        levels = np.atleast_1d(np.asarray(part, np.float64))
        if levels.shape not in ((1,), (channels,)) or not np.isfinite(levels).all():
            raise ConfigError(
                f"normalize: the {name} must be one number or one for each of {channels} channels, "
                f"got {show(part)}"
            )
        parts.append(np.broadcast_to(levels, (channels,)) * _WHITE)
    if (parts[1] <= 0).any():
        raise ConfigError(f"normalize: the std must be above 0, got {show(value[1])}")
    return _standardize(*parts)
