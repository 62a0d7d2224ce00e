"""Hyperspectral cubes: files of (height, width, channels), each of them a sample.

Cubes are read when a batch needs them, by the threads of a feed, and never held: a file is opened,
its numbers are read into the batch, or beside it where they lie in another order, and it is closed.
So thousands of files cost no file descriptors, and one that was deleted or cut off meanwhile is an
error with its name; a map into memory would end the process there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.rules import show
from hotloop.base.watching import report
from hotloop.data.contents import digest_files, digest_texts
from hotloop.data.stored.envi import EnviImage, is_envi, read_envi_header
from hotloop.data.stored.npy import find_files, map_npy
from hotloop.data.streams import Make
from hotloop.errors import ConfigError, DataError

__all__ = ["Cube", "Cubes", "open_cube", "read_masks"]

Array = npt.NDArray[Any]

_HDF5 = (".h5", ".hdf5", ".hdf", ".mat", ".nc")
_NUMBERS = "biuf"


class Reader(Protocol):
    """Reads all numbers of a file."""

    def __call__(self) -> Array:
        """The cube, (height, width, channels) or a mask, in whatever dtype and strides."""


class Cube(NamedTuple):
    """A file.

    Attributes
    ----------
    path : str
    shape : tuple of int
        Height, width and channels; of a mask height and width.
    dtype : dtype
        As it is in the file.
    scale : float
        What numbers are divided by.
    wavelengths : float array (channels,) or None
    metadata : dict
        What else the file says.
    read : callable
        Its numbers.
    begin : int or None
        Where in the file its numbers begin, if they lie there as a batch has them.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    scale: float
    wavelengths: npt.NDArray[np.float64] | None
    metadata: dict[str, Any]
    read: Reader
    begin: int | None = None


def open_cube(path: str, label: str, key: str | None = None) -> Cube:
    """Looks at a file, without reading its numbers.

    Parameters
    ----------
    path : str
        A .npy file, a header of ENVI or the data beside it, an HDF5 or .mat file.
    label : str
        For messages.
    key : str, optional
        Of an HDF5 file: which array.

    Raises
    ------
    DataError
    """
    ending = os.path.splitext(path)[1].lower()
    if ending == ".npy":
        return _open_npy(path, label)
    if ending in _HDF5:
        return _open_hdf5(path, label, key)
    if is_envi(path):
        return _open_envi(path, label)
    raise DataError(
        f"{label}: must be a .npy file, an ENVI header (.hdr) or an HDF5 file "
        f"({', '.join(_HDF5)}), got {path!r}"
    )


# ---- .npy


def _open_npy(path: str, label: str) -> Cube:
    mapped = map_npy(path, label)
    shape, dtype = mapped.shape, mapped.dtype
    order = "C" if mapped.flags.c_contiguous else "F"
    offset = int(mapped.offset)  # type: ignore[attr-defined]
    del mapped

    def read() -> Array:
        flat = _read_numbers(path, dtype, offset, int(np.prod(shape)))
        return flat.reshape(shape, order=order)  # type: ignore[call-overload, no-any-return]

    is_plain = dtype == np.float32 and dtype.isnative and order == "C"
    return Cube(path, shape, dtype, 1.0, None, {}, read, offset if is_plain else None)


def _read_numbers(path: str, dtype: np.dtype[Any], offset: int, n: int) -> Array:
    values = np.fromfile(path, dtype, n, offset=offset)
    if len(values) != n:
        raise OSError(f"it has {len(values):,} numbers, and {n:,} when it was looked at")
    return values


# ---- ENVI


def _open_envi(path: str, label: str) -> Cube:
    image = read_envi_header(path, label)
    is_plain = image.dtype == np.float32 and image.dtype.isnative and image.order == (0, 1, 2)
    return Cube(
        image.path,
        image.shape,
        image.dtype,
        image.scale,
        image.wavelengths,
        dict(image.fields),
        lambda: _read_envi(image),
        image.offset if is_plain else None,
    )


def _read_envi(image: EnviImage) -> Array:
    n = int(np.prod(image.shape))
    flat = _read_numbers(image.path, image.dtype, image.offset, n)
    in_file = flat.reshape([image.shape[dim] for dim in image.order])
    return in_file.transpose(np.argsort(image.order))


# ---- HDF5


def _import_h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ConfigError("from_cubes: HDF5 and .mat files need h5py; pip install h5py") from error
    return h5py


def _open_hdf5(path: str, label: str, key: str | None) -> Cube:
    h5py = _import_h5py()
    if not os.path.isfile(path):
        raise DataError(f"{label}: there is no file {path!r}")
    if not h5py.is_hdf5(path):
        fix = "save it with '-v7.3', or as .npy" if path.lower().endswith(".mat") else ""
        raise DataError(f"{label}: {path!r} is no HDF5 file" + (f"; {fix}" if fix else ""))
    try:
        with h5py.File(path, "r") as file:
            name = _find_array(h5py, file, key, path, label)
            data = file[name]
            if data.external or data.is_virtual:
                raise DataError(
                    f"{label}: {path!r} takes the numbers of {name!r} from other files, which is "
                    "not supported; give those"
                )
            is_matlab = "MATLAB_class" in data.attrs  # whose arrays have their dims reversed
            shape = data.shape[::-1] if is_matlab else data.shape
            dtype = data.dtype
            metadata = {str(k): v for k, v in [*file.attrs.items(), *data.attrs.items()]}
    except OSError as error:
        raise DataError(f"{label}: {path!r} is damaged ({error})") from error

    def read() -> Array:
        with h5py.File(path, "r") as file:
            values = np.asarray(file[name][...])
        return values.T if is_matlab else values

    return Cube(path, tuple(shape), dtype, 1.0, None, metadata, read)


def _find_array(h5py: Any, file: Any, key: str | None, path: str, label: str) -> str:
    found: list[str] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in _NUMBERS and item.ndim >= 2:
            found.append(name)

    file.visititems(visit)  # follows no link to another file
    if key is not None:
        if key.strip("/") not in found:
            raise DataError(f"{label}: {path!r} has no array of numbers {key!r}, got {show(found)}")
        return key.strip("/")
    cubes = [name for name in found if file[name].ndim == 3] or found
    if len(cubes) != 1:
        raise DataError(
            f"{label}: {path!r} must have one array of three dims, got {show(cubes)}; write "
            "key='...'"
        )
    return cubes[0]


# ---- many


class Cubes:
    """Files of cubes of one shape, as rows.

    Parameters
    ----------
    given : str, path or list of them
    label : str
        For messages.
    key : str or None
        Of HDF5 files.
    scale : float or None
        What numbers are divided by; None: what each file says.
    allow_nonfinite : bool
    """

    def __init__(
        self,
        given: Any,
        label: str,
        *,
        key: str | None,
        scale: float | None,
        allow_nonfinite: bool,
    ) -> None:
        self.label = label
        paths = find_files(given, label)
        self.files: list[Cube] = []
        for i, path in enumerate(paths):
            report(f"looking at {label}", i, len(paths))
            self.files.append(open_cube(path, f"{label}[{i}]", key))
        self._scale, self._checks = scale, not allow_nonfinite
        self._check()
        self.shape = self.files[0].shape

    def _check(self) -> None:
        first = self.files[0]
        for i, cube in enumerate(self.files):
            where = f"{self.label}[{i}]: {cube.path!r}"
            if len(cube.shape) != 3 or 0 in cube.shape:
                raise DataError(
                    f"{where} must be a cube (height, width, channels), got shape {cube.shape}"
                )
            if cube.dtype.kind not in _NUMBERS:
                raise DataError(f"{where} must hold numbers, got dtype {cube.dtype}")
            if cube.shape != first.shape:
                raise DataError(
                    f"{where} must have the shape of all cubes, {first.shape} as in "
                    f"{first.path!r}, got {cube.shape}; cut them to one size, or train on "
                    "files of each size in turn"
                )

    def wavelengths(self) -> npt.NDArray[np.float32] | None:
        """Of each file ``(n, channels)``; None where no file says them.

        Raises
        ------
        DataError
            If some do and others don't.
        """
        known = [cube.wavelengths for cube in self.files]
        if all(one is None for one in known):
            return None
        for i, one in enumerate(known):
            if one is None:
                raise DataError(
                    f"{self.label}[{i}]: {self.files[i].path!r} lacks the wavelengths that other "
                    "files have; write wavelengths=[...] for all"
                )
        return np.array(known, np.float32)

    def digest(self) -> str:
        """By what the rows are known again."""
        scale = [repr(self._divisor(cube)) for cube in self.files]
        return digest_texts(digest_files([cube.path for cube in self.files]), *scale)

    def source(self) -> Make | _core.Source:
        """What makes the rows: the core, where files hold them as they are."""
        begins = [cube.begin for cube in self.files if cube.begin is not None]
        if len(begins) < len(self.files):
            return self.make
        paths = b"".join(os.fsencode(cube.path) + b"\0" for cube in self.files)
        divisors = np.array([self._divisor(cube) for cube in self.files], np.float32)
        offsets = np.array(begins, np.int64)
        return _core.file_source(paths, offsets, divisors, self.shape, not self._checks, self.make)

    def _divisor(self, cube: Cube) -> float:
        return cube.scale if self._scale is None else self._scale

    def make(
        self,
        rows: npt.NDArray[np.int64],
        epoch: int,
        is_training: bool,
        peers: npt.NDArray[np.int64] | None = None,
    ) -> list[Array]:
        """The cubes of a batch; called by several threads."""
        made = np.empty((len(rows), *self.shape), np.float32)
        for i, row in enumerate(rows):
            self._read(int(row), made[i])
        return [made]

    def _read(self, row: int, out: npt.NDArray[np.float32]) -> None:
        cube = self.files[row]
        values = read_cube(cube, f"{self.label}[{row}]")
        with np.errstate(over="ignore"):  # infinities are refused
            _copy_cube(values, out)
        scale = self._divisor(cube)
        if scale != 1.0:
            out /= np.float32(scale)
        if self._checks and _core.check_finite(out) is not None:
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(out))[0])
            raise DataError(
                f"{self.label}[{row}]: {cube.path!r} must be finite and fit float32, got "
                f"{read_cube(cube, self.label)[at]} at {at}; mend it, or write allow_nonfinite=True"
            )


def _copy_cube(values: Array, out: npt.NDArray[np.float32]) -> None:
    """Copies part by part as the file has them: faster than as a whole where orders differ."""
    slowest = int(np.argmax(values.strides))
    for part, found in zip(np.moveaxis(out, slowest, 0), np.moveaxis(values, slowest, 0)):
        part[...] = found


def read_cube(cube: Cube, label: str) -> Array:
    """A file's numbers.

    Raises
    ------
    DataError
        If it is not as it was when it was looked at.
    """
    try:
        values = cube.read()
    except Exception as error:  # another library's reader may raise anything
        raise DataError(f"{label}: {cube.path!r} cannot be read ({error})") from error
    if values.shape != cube.shape:
        raise DataError(
            f"{label}: {cube.path!r} has changed, shape {values.shape} in place of {cube.shape}"
        )
    return values


def read_masks(given: Any, shape: tuple[int, ...], names: Sequence[str], key: str | None) -> Array:
    """Masks of files ``(n, height, width)``, one for each cube, in memory.

    Parameters
    ----------
    given : str, path or list of them
    shape : tuple of int
        Of the cubes.
    names : sequence of str
        Their paths.
    key : str or None
        Of HDF5 files.

    Raises
    ------
    DataError
    """
    paths = find_files(given, "masks")
    if len(paths) != len(names):
        raise DataError(
            f"masks: must be one for each of the {len(names)} cubes, got {len(paths)}; the first "
            f"are {paths[0]!r} and {names[0]!r}"
        )
    masks: list[Array] = []
    for i, path in enumerate(paths):
        report("reading masks", i, len(paths))
        label = f"masks[{i}]"
        mask = read_cube(open_cube(path, label, key), label)
        if mask.ndim == 3 and mask.shape[2] == 1:
            mask = mask[:, :, 0]
        if mask.shape != shape[:2]:
            raise DataError(
                f"{label}: {path!r} must have the height and width of its cube, {shape[:2]}, got "
                f"{mask.shape}"
            )
        if masks and mask.dtype != masks[0].dtype:
            raise DataError(
                f"{label}: masks must have one dtype, {masks[0].dtype} as in {paths[0]!r}, got "
                f"{mask.dtype} in {path!r}"
            )
        masks.append(mask)
    return np.stack(masks)
