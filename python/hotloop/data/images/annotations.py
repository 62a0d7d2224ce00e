"""Masks and points of images: which files and columns they are, and what they become.

A mask is a PNG whose stored numbers are class ids; points are columns of a table. Both are put
through the geometry of their image by the core, in the batch that the image is in
(csrc/data/annotations.h). Here is what has to be known before: the number of classes, the points of
each row, and which of them change places in a mirror.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import warn
from hotloop.base.rules import optional, reject, show, whole
from hotloop.data.images.sources import find_image_size, read_mask_by_pillow, require_pillow
from hotloop.data.options import read_classes
from hotloop.data.parallel import parallel_map
from hotloop.data.targets import Targets
from hotloop.errors import ConfigError, DataError, DataWarning

__all__ = [
    "Wanted",
    "annotation_types",
    "check_mirrors",
    "classes_of_mask",
    "count_mask_classes",
    "name_targets",
    "pack_annotations",
    "read_points",
    "read_wanted",
    "warn_of_points_outside",
]

Array = npt.NDArray[Any]

_IDS_MAX = 65535  # of 16 bits
_POINTS_MAX = 4096  # HL_POINTS_MAX
_FILE_BYTES_MAX = 2**30  # HL_IMAGE_FILE_BYTES_MAX
_COLUMNS = (2, 3)  # x and y, and whether the point is labelled
_COMPARED = 1000  # images of the largest coordinates whose sizes are looked at
_MIRRORS = ("random_horizontal_flip", "random_vertical_flip")


class Wanted(NamedTuple):
    """What a table's rows have besides an image.

    mask : the column of the masks' paths; None: there are none.
    mask_ignore : the id in the files that counts nothing; None: there is none.
    points : columns of each point, (x, y) or (x, y, visibility).
    flip_pairs : points that change places where an image is mirrored; None: not stated.
    """

    mask: str | None = None
    mask_ignore: int | None = None
    points: tuple[tuple[str, ...], ...] = ()
    flip_pairs: tuple[tuple[int, int], ...] | None = None

    @property
    def columns(self) -> list[str]:
        """All of them, the mask's first."""
        return [*([] if self.mask is None else [self.mask]), *(c for p in self.points for c in p)]

    def partners(self) -> npt.NDArray[np.int32]:
        """Of each point the one whose place it takes in a mirror: itself, or that of its pair."""
        made = np.arange(len(self.points), dtype=np.int32)
        for a, b in self.flip_pairs or ():
            made[a], made[b] = b, a
        return made


def read_wanted(mask: Any, mask_ignore: Any, points: Any, flip_pairs: Any) -> Wanted:
    """What the options ``mask``, ``mask_ignore``, ``points`` and ``flip_pairs`` mean.

    Raises
    ------
    ConfigError
        For what names no columns or points, and options of what is not there.
    """
    if mask is not None and not isinstance(mask, str):
        reject("mask", "must be the name of a column", mask)
    ignored = optional(whole(0, _IDS_MAX))("mask_ignore", mask_ignore)
    if ignored is not None and mask is None:
        reject("mask_ignore", "is of masks, and mask names no column", mask_ignore)
    if points is None:
        if flip_pairs is not None:
            reject("flip_pairs", "are pairs of points, and points names no columns", flip_pairs)
        return Wanted(mask, ignored)
    rule = "must be a list of (x, y) or (x, y, visibility), names of columns"
    if not isinstance(points, (list, tuple)) or not points:
        reject("points", rule, points)
    if len(points) > _POINTS_MAX:
        reject("points", f"must be at most {_POINTS_MAX}", len(points))
    columns = []
    for i, point in enumerate(points):
        is_names = isinstance(point, (list, tuple)) and all(isinstance(c, str) for c in point)
        if not is_names or len(point) not in _COLUMNS:
            fix = "write points=[('x', 'y')] for one point" if isinstance(point, str) else ""
            reject(
                f"points[{i}]", "must be (x, y) or (x, y, visibility), names of columns", point, fix
            )
        columns.append(tuple(point))
    return Wanted(mask, ignored, tuple(columns), _read_pairs(flip_pairs, len(columns)))


def _read_pairs(value: Any, n_points: int) -> tuple[tuple[int, int], ...] | None:
    if value is None:
        return None
    rule = "must be a list of pairs of points, by number from 0"
    if not isinstance(value, (list, tuple)):
        reject("flip_pairs", rule, value)
    index = whole(0, n_points - 1)
    pairs: list[tuple[int, int]] = []
    for i, pair in enumerate(value):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            reject(f"flip_pairs[{i}]", "must be two points, by number from 0", pair)
        a, b = (int(index(f"flip_pairs[{i}]", point)) for point in pair)
        if a == b or {a, b} & {point for known in pairs for point in known}:
            reject(f"flip_pairs[{i}]", "must be two points that are in no other pair", pair)
        pairs.append((a, b))
    return tuple(pairs)


def check_mirrors(wanted: Wanted, augment: tuple[Any, ...]) -> None:
    """Refuses to mirror several points without being told which of them are left and right.

    Parameters
    ----------
    wanted : Wanted
    augment : tuple
        As ``pack_augment`` packs it.

    Raises
    ------
    ConfigError
    """
    if len(wanted.points) < 2 or wanted.flip_pairs is not None:
        return
    if any(kind in _MIRRORS and probability > 0 for kind, probability, _ in augment[-1]):
        raise ConfigError(
            "flip_pairs: must say which points change places where augment mirrors an image, got "
            "None; write flip_pairs=[(1, 2), ...], flip_pairs=[] if none do, or an augment without "
            "flips"
        )


# ---- points


def read_points(columns: Sequence[Sequence[Any]], wanted: Wanted) -> npt.NDArray[np.float32] | None:
    """The points of all rows.

    Parameters
    ----------
    columns : sequence of sequences
        Values of the columns of ``wanted.points``, in their order.
    wanted : Wanted

    Returns
    -------
    array or None
        float32 (n, points, 3): x, y, and 1 or 0, whether it is labelled; x and y of what is not
        are 0. None where no points are wanted.

    Raises
    ------
    DataError
        For what is no number, and a point with one coordinate alone, by column and row.
    """
    if not wanted.points:
        return None
    given = iter(columns)
    made = np.zeros((len(columns[0]), len(wanted.points), 3), np.float32)
    for i, names in enumerate(wanted.points):
        x, y, *rest = (_read_numbers(next(given), name) for name in names)
        labelled = ~np.isnan([x, y, *rest]).all(axis=0)
        if rest:
            wrong = labelled & ~(rest[0] >= 0)
            if wrong.any():
                _refuse(names[2], "a number of at least 0", rest[0], int(np.argmax(wrong)))
            labelled &= rest[0] > 0
        for name, values in zip(names, (x, y)):
            wrong = labelled & ~(np.abs(values) <= np.finfo(np.float32).max)
            if wrong.any():
                rule = "a number where the point is labelled"
                _refuse(name, rule, values, int(np.argmax(wrong)))
        for k, values in enumerate((x, y, np.ones(len(x)))):
            made[labelled, i, k] = values[labelled]
    return made


def warn_of_points_outside(
    paths: Sequence[str], points: npt.NDArray[np.float32], wanted: Wanted
) -> None:
    """Warns of points that lie outside the image of their row, most likely in other units.

    What augmentation crops away is none of that: sizes are those of the files, by their headers.
    Of many rows those with the largest coordinates are looked at, where other units show first. A
    pixel beyond the border is none either: some count from the corner of the first pixel.

    Parameters
    ----------
    paths : sequence of str
        Of the images.
    points : array
        As :func:`read_points` gives them.
    wanted : Wanted
    """
    x, y = (np.where(points[..., 2] > 0, points[..., axis], 0.0) for axis in (0, 1))
    is_negative = (np.minimum(x, y) < -1).any(axis=1)
    largest = [np.argsort(-each.max(axis=1), kind="stable")[:_COMPARED] for each in (x, y)]
    rows = np.unique(np.concatenate([*largest, np.flatnonzero(is_negative)[:_COMPARED]]))
    # no bar: there are few of them
    found = parallel_map(find_image_size, [paths[row] for row in rows], progress=False)
    height, width = np.array(found).T[:, :, None]
    is_outside = (np.minimum(x, y)[rows] < -1) | (x[rows] > width) | (y[rows] > height)
    is_outside &= height > 0  # else the file is bad, which shows when a batch needs it
    if not is_outside.any():
        return
    at, i = np.argwhere(is_outside)[0]
    row, names = rows[at], ", ".join(wanted.points[i][:2])
    warn(
        f"points: those outside their image count as not labelled, got ({names}) = "
        f"({x[row, i]:g}, {y[row, i]:g}) in row {row}, where {paths[row]} has "
        f"{width[at, 0]} x {height[at, 0]} pixels (width x height); give pixels of the upright "
        "image, and nothing, or a visibility of 0, for a point that is out of sight",
        DataWarning,
    )


def _refuse(column: str, rule: str, values: Array, row: int) -> None:
    raise DataError(f"table: {column} must be {rule}, got {values[row]:g} in row {row}")


def _read_numbers(values: Sequence[Any], column: str) -> npt.NDArray[np.float64]:
    """NaN where there is nothing."""
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    made = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        if value is None or str(value).strip() in ("", "<NA>"):
            continue
        try:
            made[row] = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"table: {column} must be a number or nothing in every row, got {show(value)} in "
                f"row {row}"
            ) from error
    return made


# ---- masks


def count_mask_classes(paths: Sequence[str], ignored: int | None) -> int:
    """The largest class id of all masks + 1: each of them is read once, by threads.

    Parameters
    ----------
    paths : sequence of str
    ignored : int or None
        The id that counts nothing.

    Raises
    ------
    DataError
        If none of them has a class. One that cannot be read shows when a batch needs it.
    ConfigError
        If Pillow is not installed.
    """

    def largest(path: str) -> tuple[int, str]:
        try:
            ids = _read_ids(path)
        except (DataError, OSError) as error:
            return -1, f"mask {path}: {error}"
        counted = ids if ignored is None else ids[ids != ignored]
        return int(counted.max()) if counted.size else -1, f"mask {path}: no pixel has a class"

    require_pillow()
    found = parallel_map(largest, list(dict.fromkeys(paths)))
    most = max(found)[0]
    if most < 0:
        raise DataError(
            f"mask: some file must have a class, got none in {len(found)} of them, the first: "
            f"{found[0][1]}"
        )
    return most + 1


def _read_ids(path: str) -> Array:
    if os.path.getsize(path) > _FILE_BYTES_MAX:
        raise DataError(f"must have at most {_FILE_BYTES_MAX} bytes")
    with open(path, "rb") as file:
        ids = read_mask_by_pillow(path, file.read(), 0, 0, 0)
    return ids[:, :, 0] if ids.shape[2] == 1 else ids.view(np.uint16)[:, :, 0]


# ---- for the core, and as targets


def pack_annotations(
    wanted: Wanted,
    masks: Sequence[str] | None,
    points: npt.NDArray[np.float32] | None,
    n_classes: int,
) -> tuple[Any, ...]:
    """What the core's source of images takes.

    Parameters
    ----------
    wanted : Wanted
    masks : sequence of str or None
        A path for each image.
    points : array or None
        As :func:`read_points` gives them.
    n_classes : int
        Of masks.
    """
    names = None if masks is None else b"".join(os.fsencode(path) + b"\0" for path in masks)
    ignored = -1 if wanted.mask_ignore is None else wanted.mask_ignore
    partners = None if points is None else wanted.partners()
    return names, read_mask_by_pillow, max(1, n_classes), ignored, points, partners


def annotation_types(
    wanted: Wanted, n_classes: int, size: tuple[int, int]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """dtype and shape of a row of "mask" and "points", as the core makes them.

    Parameters
    ----------
    wanted : Wanted
    n_classes : int
        Of masks.
    size : (int, int)
        Height and width of the batch's images.
    """
    types: dict[str, tuple[str, tuple[int, ...]]] = {}
    if wanted.mask is not None:  # hl_mask_dtype
        widths = {"int8": 2**7, "int16": 2**15, "int32": 2**31}
        dtype = next(name for name, most in widths.items() if n_classes <= most)
        types["mask"] = dtype, size
    if wanted.points:
        types["points"] = "float32", (len(wanted.points), 3)
    return types


def name_targets(targets: Mapping[str, Targets]) -> dict[str, Targets]:
    """Of "label", "mask" and "points" those that there are; a single one is the y itself.

    Parameters
    ----------
    targets : mapping of str to Targets
    """
    return {"" if len(targets) == 1 else name: target for name, target in targets.items()}


def classes_of_mask(classes: Any, wanted: Wanted, label: str | None) -> int | None:
    """How many classes masks have by the option ``classes``; None: it does not say.

    Parameters
    ----------
    classes : sequence, dict of them, or None
    wanted : Wanted
    label : str or None
        The column of labels.

    Raises
    ------
    ConfigError
        For one list where there are several targets.
    """
    n_targets = (label is not None) + (wanted.mask is not None) + bool(wanted.points)
    if classes is None or wanted.mask is None:
        return None
    if n_targets > 1 and not isinstance(classes, Mapping):
        fix = "write classes={'mask': [...]}"
        reject("classes", "must be a dict by target where y has several", classes, fix)
    of_mask = classes.get("mask") if isinstance(classes, Mapping) else classes
    if of_mask is None:
        return None
    if not (names := read_classes(of_mask)):
        reject("classes", "must name a class at least", of_mask)
    return len(names)
