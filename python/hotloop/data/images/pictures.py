"""Image files as data: folders of classes and tables of paths, decoded when a batch needs them."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.rules import byte_size, choice, number, reject, show
from hotloop.data.augment import pack_augment
from hotloop.data.auto_workers import AutoWorkers
from hotloop.data.contents import digest_files, digest_rows, digest_texts
from hotloop.data.datasets.samples import most_bad
from hotloop.data.images.annotations import (
    Wanted,
    annotation_types,
    check_mirrors,
    classes_of_mask,
    count_mask_classes,
    name_targets,
    pack_annotations,
    read_wanted,
    warn_of_points_outside,
)
from hotloop.data.images.buckets import find_ratios, nearest_shape, read_shapes
from hotloop.data.images.disk_cache import read_disk_cache
from hotloop.data.images.files import (
    ImageFiles,
    names_of_columns,
    read_image_folder,
    read_image_table,
)
from hotloop.data.images.sources import (
    choose_caching,
    describe_decoder,
    image_source,
    read_by_pillow,
)
from hotloop.data.options import refuse_options
from hotloop.data.sequential.series import SeriesData
from hotloop.data.split import Field
from hotloop.data.streams import make_streams, stream_of
from hotloop.data.tables import Table
from hotloop.data.targets import Targets, ids_of, read_all_targets
from hotloop.errors import ConfigError, DataError

if TYPE_CHECKING:
    from hotloop.data.images.cache import ImageCache

__all__ = ["ImageData"]

Rows = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_MOST_THREADS = 16
_FIXED_STEPS = ("resize", "center_crop")
_FITTED_ON = 2000  # images whose levels normalize="standard" averages
_CHANNELS = {"rgb": 3, "grey": 1, "gray": 1}
_WHITE = 255.0


class _Shared(NamedTuple):
    """What the images of all shapes have in common: labels, masks and points, stored pixels."""

    label: Targets | None
    annotations: Any
    stored: Any


class _Making(NamedTuple):
    """How files become images of a batch."""

    augments: tuple[tuple[Any, ...], ...]
    channels: int
    caching: str
    cache_bytes: int
    on_bad: str
    cap: float
    wanted: Wanted
    mask_classes: int
    workers: int
    disk: ImageCache | None

    def table(self, files: ImageFiles, prefix: str, like: Table | None) -> Table:
        """Fields of these files: images that are made in batches, with their masks and points, and
        their labels.
        """
        stored = None
        if self.disk is not None:
            raises = self.on_bad == "raise"
            stored = self.disk.store(files.paths, self.workers, raises=raises)
        annotations = pack_annotations(self.wanted, files.masks, files.points, self.mask_classes)
        shared = _Shared(self._read_label(files, prefix, like), annotations, stored)
        if len(self.augments) == 1:
            return self.of_shape(files, prefix, shared, self.augments[0], 1.0)
        n = len(files.paths)
        of_row = nearest_shape([augment[:2] for augment in self.augments], find_ratios(files.paths))
        shares = np.bincount(of_row, minlength=len(self.augments)) / n
        tables = [
            self.of_shape(files, prefix, shared, augment, share)
            for augment, share in zip(self.augments, shares, strict=True)
        ]
        buckets = tuple(table.fields for table in tables)
        return dataclasses.replace(tables[0], buckets=buckets, bucket_of=of_row)

    def of_shape(
        self,
        files: ImageFiles,
        prefix: str,
        shared: _Shared,
        augment: tuple[Any, ...],
        share: float,
    ) -> Table:
        """The same in one shape, which a share of the files has."""
        n = len(files.paths)
        label = shared.label
        companions: list[Array] = []
        if label is not None and self.on_bad == "replace":
            companions = [np.ascontiguousarray(label.array)]
        source = image_source(
            files.paths,
            augment,
            channels=self.channels,
            companions=companions,
            annotations=shared.annotations,
            caching=self.caching,
            cache_bytes=int(self.cache_bytes * share),
            on_bad=self.on_bad,
            bad_max=0 if self.on_bad == "raise" else most_bad(n * share, self.cap),
            stored=shared.stored,
        )
        size = augment[:2]
        types: dict[str, tuple[str, tuple[int, ...]]] = {"x": ("uint8", (self.channels, *size))}
        if self.on_bad == "skip":
            types["weight"] = "float32", ()
        types |= annotation_types(self.wanted, self.mask_classes, size)
        for array in companions:
            types["label"] = str(array.dtype), array.shape[1:]
        digest = functools.partial(_digest, files)
        arrays = dict(zip(types, make_streams(n, list(types.values()), source, digest)))
        made = {} if label is None else {"label": label}
        if "mask" in arrays:
            made["mask"] = Targets(
                arrays["mask"], "class", "int64", None, self.mask_classes, has_ignored=True
            )
        if "points" in arrays:
            made["points"] = Targets(arrays["points"], "float", "float32")
        fields = [Field("x", arrays["x"], "float32", f"{prefix}X")]
        targets = name_targets(made)
        for (part, target), name in zip(made.items(), targets):
            field, called = (f"y.{name}", f"y[{name!r}]") if name else ("y", "y")
            array = arrays.get(part, target.array)
            fields.append(Field(field, array, target.dtype, f"{prefix}{called}"))
        # A mask and points of a sample that is skipped count nothing by themselves.
        if self.on_bad == "skip" and (label is not None or not made):
            fields.append(Field("weight", arrays["weight"], "float32", f"{prefix}sample_weight"))
        return Table(tuple(fields), targets, n)

    def _read_label(self, files: ImageFiles, prefix: str, like: Table | None) -> Targets | None:
        if files.labels is None:
            return None
        y = files.labels
        if files.classes is not None:
            y = np.array(files.classes)[y]
        name = "label" if self.wanted.columns else ""
        known = None if like is None else {"": like.targets[name]}
        called = f"{prefix}y[{name!r}]" if name else f"{prefix}y"
        return read_all_targets(y, called, len(files.paths), known)[""]


def _digest(files: ImageFiles) -> str:
    points = () if files.points is None else (digest_rows(files.points),)
    return digest_texts(digest_files(files.paths), digest_files(files.masks or ()), *points)


class BadImages:
    """The files of a source that could not be decoded so far.

    Parameters
    ----------
    sources : sequence of _core.Source
        Of all shapes of images.
    paths : sequence of str
    """

    def __init__(self, sources: Sequence[_core.Source], paths: Sequence[str]) -> None:
        self._sources, self._paths = sources, paths

    @property
    def found(self) -> dict[int, str]:
        """Why, by row."""
        found: dict[int, str] = {}
        for source in self._sources:
            report = _core.image_report(source)
            first = report["first_bad"]
            for row in report["bad_rows"]:
                path = self._paths[row]
                found[int(row)] = first if path in first else _why_bad(path)
        return found


def _why_bad(path: str) -> str:
    """Of a file whose first error is not at hand, by decoding it again."""
    try:
        _core.decode_image(path, 3, 0, 0, read_by_pillow)
    except (DataError, ConfigError) as error:
        return f"image {path}: {error}"
    return f"image {path}: its mask cannot be used"


class ImageData(SeriesData):
    """Ways to make a :class:`DataModule` of image files."""

    _is_fitted = False  # whether levels are normalised by those of training's images

    @classmethod
    def from_image_folder(
        cls,
        root: str | os.PathLike[str],
        size: int | Sequence[Any] = 224,
        *,
        val: Any = None,
        test: Any = None,
        channels: str = "rgb",
        augment: Any = "basic",
        normalize: Any = "imagenet",
        fit: str = "crop",
        interpolation: str | None = None,
        buckets: str | None = None,
        cache: str | None = None,
        cache_limit: int | str = "2GiB",
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
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
        size : int, (int, int) or list of (int, int)
            Side of a square, or height and width of the batch's images, in pixels. Several shapes
            are buckets: an image goes to the one whose ratio of sides is nearest to its own, each
            batch has images of one, and there is a plan for each; the model must take all of them,
            as convolutions with global pooling do.
        buckets : "auto" or None
            "auto": shapes with ``size`` as shorter side, up to 8, that a batch of training images
            each is nearest to, by their headers.
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
        cache : {"ram", "disk"}, optional
            "ram" keeps in memory what was read: decoded images where all of them fit into
            ``cache_limit``, else files. "disk" decodes and resizes every image once, now, with a
            progress bar, and keeps that in ``cache_dir`` for all runs to come.
        cache_limit : int or str
            Of "ram": bytes, or "4GB".
        cache_dir : path, optional
            Of "disk": a folder, which several processes and data sets may share. By default
            "images" in ``$HOTLOOP_CACHE_PATH``, else in "hotloop" of ``$XDG_CACHE_HOME`` or of
            ``~/.cache``.
        cache_size : int, optional
            Of "disk": pixels that the shorter side of kept images has; smaller ones are kept as
            they are. By default 8/7 of the larger side of ``size``: 256 for 224. Random resized
            crops show no more detail than that: of a crop of 35 % of a square's area, 151 pixels.
        follow_symlinks : bool
            Whether links may lead out of root.
        on_bad_sample : {"raise", "skip", "replace"}
            What becomes of a file that cannot be decoded: an error with its path; weight 0; or the
            next good one of its split in its place. ``bad_samples`` says which were.
        max_bad_share : float
            Share of the files that may be bad, one at least; 0: none.
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
            :meth:`verify`; with ``cache="disk"`` now. For a ``cache_dir`` that cannot be written
            or has no room.

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
            files, own, {"val": val, "test": test}, wanted=Wanted(), mask_classes=0,
            classes=None, size=size, buckets=buckets, channels=channels,
            augment=augment, normalize=normalize, fit=fit, interpolation=interpolation, cache=cache,
            cache_limit=cache_limit, cache_dir=cache_dir, cache_size=cache_size,
            on_bad_sample=on_bad_sample, max_bad_share=max_bad_share,
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
        size: int | Sequence[Any] = 224,
        *,
        mask: str | None = None,
        mask_ignore: int | None = None,
        points: Sequence[Sequence[str]] | None = None,
        flip_pairs: Sequence[Sequence[int]] | None = None,
        root: str | os.PathLike[str] | None = None,
        val: Any = None,
        test: Any = None,
        groups: Any = None,
        classes: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
        channels: str = "rgb",
        augment: Any = "basic",
        normalize: Any = "imagenet",
        fit: str = "crop",
        interpolation: str | None = None,
        buckets: str | None = None,
        cache: str | None = None,
        cache_limit: int | str = "2GiB",
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | None = None,
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
        """A DataModule of image files that a table names, with labels, masks and points.

        y is what there is of label, mask and points: itself where it is one of them, else a dict
        with these names. Masks and points go through the crops, flips and turns of their image.

        Parameters
        ----------
        table : path of a CSV file, data frame, or dict of columns
        path : str
            The column of paths. Those that are not absolute begin at root.
        label : str, optional
            The column of labels: texts and whole numbers are classes, other numbers values. Texts
            are numbers where all of them are, whole ones each written in one way ("01" is a text).
        mask : str, optional
            The column of the paths of masks: PNG of one channel, grey of up to 16 bits or with a
            palette, as large as their images. The numbers that are stored are class ids. y is the
            class at each pixel, ``(batch, height, width)``, by the nearest pixel; beyond the
            image's border it is -100, which counts in neither loss nor metrics.
        mask_ignore : int, optional
            The id in the files that counts nothing either: 255 of VOC and Cityscapes.
        points : list of tuple of str, optional
            For each point its columns (x, y), in pixels of the upright image, the centre of its
            first pixel being (0, 0), or (x, y, visibility): 0 where it is not labelled, as in COCO.
            Nor is it where all of its columns are empty. y is float32 ``(batch, points, 3)``: x and
            y in pixels of the batch's images, and a weight of 1; 0, 0 and 0 for what is not
            labelled or lies outside. Where one lies outside the image of its own file, a
            DataWarning names the first: it may be in other units.
        flip_pairs : list of (int, int), optional
            Points, by number from 0, that change places where an image is mirrored: left and right
            eyes. Needed where augment flips images with several points; [] if none do.
        size : int, (int, int) or list of (int, int)
            As for :meth:`from_image_folder`.
        root : path, optional
            By default the folder of the CSV file, or the current one for other tables.
        val, test : float, int, rows, mask, or table of its own, optional
            A fraction or number of the rows, or their numbers; or another table of the same
            columns.
        groups : str or array_like (n,), optional
            A column of a data frame, or one group for each row: as for :meth:`from_arrays`.
        classes : sequence or dict of them, optional
            Names of the class ids of whole numbers and masks; of texts their order. Beside masks
            and points a dict, ``{"mask": [...], "label": [...]}``. Without names of a mask's
            classes there are as many as the largest id says, and every mask is read once for that;
            ``range(19)`` spares it.
        buckets, channels, augment, normalize, fit, interpolation
            As for :meth:`from_image_folder`.
        cache, cache_limit, cache_dir, cache_size, follow_symlinks
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
            For a row without a path or label, or whose file is not there, by its number; for
            points that are no numbers. A mask of another size than its image, of colours, or with
            an id that is no class is a bad sample, with both files' names.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> from PIL import Image
        >>> root = pathlib.Path(tempfile.mkdtemp())
        >>> rng = np.random.default_rng(0)
        >>> lines = ["image,mask,x,y"]
        >>> for i in range(16):
        ...     ids = np.zeros((40, 48), np.uint8)
        ...     ids[10 + i : 18 + i, 20:30] = 1
        ...     levels = rng.integers(0, 100, (40, 48, 3)) + 150 * ids[:, :, None]
        ...     Image.fromarray(levels.astype(np.uint8)).save(root / f"{i}.png")
        ...     Image.fromarray(ids).save(root / f"{i}_mask.png")
        ...     lines.append(f"{i}.png,{i}_mask.png,24.5,{13.5 + i}")
        >>> _ = (root / "table.csv").write_text("\\n".join(lines))
        >>> data = hl.DataModule.from_image_table(
        ...     root / "table.csv", "image", mask="mask", classes=["back", "box"], size=32, val=4
        ... )
        >>> net = nn.Conv2d(3, 2, 3, padding=1)  # logits (batch, 2, 32, 32)
        >>> result = hl.train(net, data, max_epochs=1, metrics="iou", enable_progress_bar=False)

        Points have a loss that leaves out what is not there:

        >>> def distance(output, target):  # (batch, 1, 2), (batch, 1, 3)
        ...     weight = target[..., 2:]
        ...     apart = (output - target[..., :2] / 32) * weight
        ...     return apart.square().sum() / weight.sum().clamp(min=1.0)
        >>> data = hl.DataModule.from_image_table(
        ...     root / "table.csv", "image", points=[("x", "y")], size=32
        ... )
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(3072, 2), nn.Unflatten(1, (1, 2)))
        >>> result = hl.train(net, data, max_epochs=1, loss=distance, enable_progress_bar=False)
        """
        refuse_options(unknown, cls.from_image_table)
        wanted = read_wanted(mask, mask_ignore, points, flip_pairs)
        mask_classes = classes_of_mask(classes, wanted, label)

        def read(of: Any, at: Any) -> ImageFiles:
            found = read_image_table(
                of, path, label, wanted=wanted, root=at, follow_symlinks=follow_symlinks
            )
            if found.points is not None:
                warn_of_points_outside(found.paths, found.points, wanted)
            return found

        files = read(table, root)
        own = {
            name: read(other, root)
            for name, other in (("val", val), ("test", test))
            if isinstance(other, (str, os.PathLike)) or names_of_columns(other) is not None
        }
        if isinstance(groups, str):
            if names_of_columns(table) is None:
                reject("groups", "names a column of a data frame, and the table is a file", groups)
            if groups not in (names_of_columns(table) or ()):
                raise ConfigError(f"groups: must name a column, got {groups!r}")
            groups = np.asarray(table[groups])
        if mask is not None and mask_classes is None:
            masks = [path for part in (files, *own.values()) for path in part.masks or ()]
            mask_classes = count_mask_classes(masks, wanted.mask_ignore)
        return cls._of_files(
            files, own, {"val": val, "test": test}, wanted=wanted, mask_classes=mask_classes or 0,
            classes=classes, size=size, buckets=buckets, channels=channels,
            augment=augment, normalize=normalize, fit=fit, interpolation=interpolation, cache=cache,
            cache_limit=cache_limit, cache_dir=cache_dir, cache_size=cache_size,
            on_bad_sample=on_bad_sample, max_bad_share=max_bad_share,
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
        wanted: Wanted,
        mask_classes: int,
        classes: Any,
        size: Any,
        buckets: Any,
        channels: Any,
        augment: Any,
        normalize: Any,
        fit: Any,
        interpolation: Any,
        cache: Any,
        cache_limit: Any,
        cache_dir: Any,
        cache_size: Any,
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
        ratios = None if buckets is None else find_ratios(files.paths)
        packed = tuple(
            pack_augment(augment, one, seed=self._seed, fit=fit, interpolation=interpolation)
            for one in read_shapes(size, buckets, ratios, self._batch_size)
        )
        check_mirrors(wanted, packed[0])
        self.augmentation = repr(packed)
        self._is_random = any(kind not in _FIXED_STEPS for kind, *_ in packed[0][-1])
        n_channels = _CHANNELS[choice(*_CHANNELS)("channels", channels)]
        limit = byte_size("cache_limit", cache_limit)
        caching, facts = "nothing", [("images", f"by {describe_decoder()}")]
        most = min(int(_core.cpu_info()["threads"]), _MOST_THREADS)
        self._auto = AutoWorkers(most)
        workers = most if self._num_workers == "auto" else max(1, int(self._num_workers))
        disk = read_disk_cache(cache, cache_dir, cache_size, packed[0], n_channels)
        if cache == "ram":
            caching, what = choose_caching(files.paths, n_channels, limit, files.masks or ())
            facts.append(("cache", what))
        making = _Making(
            packed,
            n_channels,
            caching,
            limit,
            choice("raise", "skip", "replace")("on_bad_sample", on_bad_sample),
            number(at_least=0.0, at_most=1.0)("max_bad_share", max_bad_share),
            wanted,
            mask_classes,
            workers,
            disk,
        )
        self._replaces = making.on_bad == "replace"
        fixed = _read_normalize(normalize, n_channels)
        table = making.table(files, "", None)
        drawn = {name: None if name in own else share for name, share in shares.items()}
        _, rows = self._divide(table.n, drawn, _label_ids(table), groups, split, 0, stratify)
        parts: dict[str, tuple[Table, Rows | None]] = {"train": (table, rows["train"])}
        for name in ("val", "test"):
            if name in own:
                parts[name] = making.table(own[name], f"{name} ", table), None
            elif rows[name] is not None:
                parts[name] = table, rows[name]
        if disk is not None:
            facts.append(("cache", disk.describe()))
        self.facts = tuple(facts)
        for name, (of, _) in parts.items():
            if name == "train" or name in own:
                paths = (files if name == "train" else own[name]).paths
                streams = [stream_of(fields[0].array) for fields in of.buckets or (of.fields,)]
                sources = [stream.source for stream in streams if stream is not None]
                self._bad_samples[name] = BadImages(sources, paths)
        self._set_splits(parts, False, False)
        self._is_fitted = fixed is None
        self._fixed = self._fit_levels() if fixed is None else fixed
        self._set_sampling(sampler, weights, samples_per_epoch)
        self._name_classes(classes)
        if wanted.points:
            self._point_target = "points" if "points" in self._targets else ""
        return self

    def _with_rows(self, rows: Mapping[str, Rows]) -> Self:
        made = super()._with_rows(rows)
        if "train" in rows:
            made._refit()
        return made

    def _refit(self) -> None:
        if self._is_fitted:
            self._fixed = self._fit_levels()

    def _fit_levels(self) -> list[tuple[str, dict[str, tuple[Any, Any]]]]:
        """Mean and standard deviation of each channel over training's images, some of many."""
        split = self._splits["train"]
        images = split.fields[0]
        rows = np.arange(split.n) if split.rows is None else split.rows
        rows = rows[:: max(1, len(rows) // _FITTED_ON)]
        total = np.zeros(images.shape[0])
        squares = np.zeros(images.shape[0])
        n = 0
        for begin in range(0, len(rows), 64):
            levels = images.read(rows[begin : begin + 64], split.peers).astype(np.float64)
            total += levels.sum(axis=(0, 2, 3))
            squares += np.square(levels).sum(axis=(0, 2, 3))
            n += levels[:, 0].size
        mean = total / n
        std = np.sqrt(np.maximum(squares / n - np.square(mean), 0.0))
        return _standardize(mean, np.where(std > 0, std, 1.0))


def _label_ids(table: Table) -> Array | None:
    """Class ids by which rows may be stratified: those of labels, whatever is beside them."""
    label = table.targets.get("label", table.targets.get(""))
    return ids_of({} if label is None or stream_of(label.array) else {"": label})


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
