"""ENVI images: a text header (.hdr) that says how the numbers of a raw file lie.

The header is a list of ``key = value``, where a value in braces may go over lines; keys are read
without regard to case. What is not understood is kept as text (see "ENVI Header Files" in the
documentation of NV5 Geospatial's ENVI, from which the keys and numbers of data types come).
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import warn
from hotloop.base.rules import show
from hotloop.errors import DataError, DataWarning

__all__ = ["EnviImage", "is_envi", "read_envi_header"]

_DTYPES = {
    1: "u1", 2: "i2", 3: "i4", 4: "f4", 5: "f8", 12: "u2", 13: "u4", 14: "i8", 15: "u8",
}  # fmt: skip
_COMPLEX = (6, 9)

# How (lines, samples, bands) lie in the file, from the slowest dim to the fastest.
_ORDERS = {"bsq": (2, 0, 1), "bil": (0, 2, 1), "bip": (0, 1, 2)}

_DATA_FILES = ("", ".raw", ".img", ".dat", ".bin", ".bsq", ".bil", ".bip")
_NANOMETRES = {"nanometers": 1.0, "nm": 1.0, "micrometers": 1000.0, "um": 1000.0, "microns": 1000.0}
_MOST_BYTES = 2**24  # of a header: a file of data under that name is none


class EnviImage(NamedTuple):
    """What a header says.

    Attributes
    ----------
    path : str
        Of the data.
    shape : tuple of int
        Lines, samples, bands.
    dtype : dtype
        Of a number in the file.
    order : tuple of int
        Which of these dims is the slowest in the file, and so on.
    offset : int
        Bytes before the first number.
    scale : float
        What numbers are divided by: the reflectance scale factor.
    wavelengths : float array (bands,) or None
        In nanometres, where the header has a unit.
    fields : dict of str
        All of the header, by keys in lower case.
    """

    path: str
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    order: tuple[int, int, int]
    offset: int
    scale: float
    wavelengths: npt.NDArray[np.float64] | None
    fields: dict[str, str]


def is_envi(path: str) -> bool:
    """Whether it is a header, or a file that has one beside it."""
    return path.lower().endswith(".hdr") or _find_header(path) is not None


def _find_header(path: str) -> str | None:
    stem, extension = os.path.splitext(path)
    for header in (path + ".hdr", (stem if extension else path) + ".hdr"):
        if os.path.isfile(header):
            return header
    return None


def read_envi_header(path: str, label: str) -> EnviImage:
    """Reads the header of an image.

    Parameters
    ----------
    path : str
        Of the header, or of the data beside it.
    label : str
        For messages.

    Raises
    ------
    DataError
        For a header that is none, lacks what is needed, or does not fit its file.
    """
    header = path if path.lower().endswith(".hdr") else _find_header(path)
    if header is None:
        raise DataError(f"{label}: there is no header {path + '.hdr'!r} beside it")
    fields = _read_fields(header, label)
    data = path if header != path else _find_data(header, label)
    shape = tuple(_whole(fields, key, label) for key in ("lines", "samples", "bands"))
    dtype = _read_dtype(fields, label)
    interleave = fields.get("interleave", "bsq").lower()
    if interleave not in _ORDERS:
        _refuse(label, "interleave", "must be bsq, bil or bip", interleave)
    offset = _whole(fields, "header offset", label, default=0, least=0)
    for key in ("file compression", "major frame offsets", "minor frame offsets"):
        if re.sub(r"[\s{},0]", "", fields.get(key, "0")):
            _refuse(label, key, "is not supported, and must be 0", fields[key])
    image = EnviImage(
        data,
        shape,  # type: ignore[arg-type]
        dtype,
        _ORDERS[interleave],
        offset,
        _number(fields, "reflectance scale factor", label, 1.0),
        _read_wavelengths(fields, shape[2], label),
        fields,
    )
    _check_size(image, label)
    return image


# ---- the text


def _read_fields(header: str, label: str) -> dict[str, str]:
    try:
        size = os.path.getsize(header)
        if size > _MOST_BYTES:
            raise DataError(f"{label}: the header {header!r} has {size:,} bytes, and so is none")
        with open(header, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError as error:
        raise DataError(f"{label}: {header!r} cannot be read ({error.strerror})") from error
    first, _, rest = text.partition("\n")
    if first.strip() != "ENVI":
        raise DataError(f"{label}: {header!r} must begin with 'ENVI', got {show(first[:40])}")
    fields: dict[str, str] = {}
    lines = iter(rest.splitlines())
    for line in lines:
        key, equals, value = line.partition("=")
        if line.lstrip().startswith(";") or not equals:
            continue
        value = value.strip()
        while value.startswith("{") and "}" not in value:
            more = next(lines, None)
            if more is None:
                raise DataError(
                    f"{label}: {header!r} has no }} behind {key.strip()!r}; the file is cut off"
                )
            value += "\n" + more
        fields[" ".join(key.lower().split())] = value.strip()
    return fields


def _refuse(label: str, key: str, rule: str, got: object) -> NoReturn:
    raise DataError(f"{label}: {key!r} of the header {rule}, got {show(got)}")


def _whole(
    fields: dict[str, str], key: str, label: str, *, default: int | None = None, least: int = 1
) -> int:
    text = fields.get(key)
    if text is None:
        if default is None:
            raise DataError(f"{label}: the header lacks {key!r}")
        return default
    if not re.fullmatch(r"\d{1,18}", text) or int(text) < least:
        _refuse(label, key, f"must be a whole number, at least {least}", text)
    return int(text)


def _number(fields: dict[str, str], key: str, label: str, default: float) -> float:
    text = fields.get(key)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not (np.isfinite(value) and value > 0.0):
        _refuse(label, key, "must be a number above 0", text)
    return value


def _read_dtype(fields: dict[str, str], label: str) -> np.dtype[Any]:
    number = _whole(fields, "data type", label)
    if number in _COMPLEX:
        _refuse(label, "data type", "must be real, and 6 and 9 are complex", number)
    if number not in _DTYPES:
        _refuse(label, "data type", f"must be one of {', '.join(map(str, _DTYPES))}", number)
    order = fields.get("byte order", "0")
    if order not in ("0", "1"):
        _refuse(label, "byte order", "must be 0 (little-endian) or 1", order)
    return np.dtype(("<" if order == "0" else ">") + _DTYPES[number])


def _read_wavelengths(fields: dict[str, str], n: int, label: str) -> npt.NDArray[np.float64] | None:
    text = fields.get("wavelength")
    if text is None:
        return None
    try:
        values = np.array([float(item) for item in text.strip("{} \n").split(",") if item.strip()])
    except ValueError:
        _refuse(label, "wavelength", "must be numbers", text)
    if len(values) != n:
        _refuse(label, "wavelength", f"must have one number for each of {n} bands", len(values))
    return values * _NANOMETRES.get(fields.get("wavelength units", "").lower(), 1.0)


# ---- the file of data


def _find_data(header: str, label: str) -> str:
    stem = header[: -len(".hdr")]
    found = [stem + end for end in _DATA_FILES if os.path.isfile(stem + end)]
    found += [stem + end.upper() for end in _DATA_FILES[1:] if os.path.isfile(stem + end.upper())]
    if not found:
        raise DataError(
            f"{label}: there is no file of data beside it, {stem + '.raw'!r} or with another of "
            f"the endings {', '.join(_DATA_FILES[1:])}"
        )
    if len(found) > 1:
        raise DataError(
            f"{label}: several files of data are beside it, {show(found)}; give the file of data "
            "in place of the header"
        )
    return found[0]


def _check_size(image: EnviImage, label: str) -> None:
    n = int(np.prod([*image.shape, image.dtype.itemsize], dtype=object))
    wanted, size = image.offset + n, os.path.getsize(image.path)
    if size < wanted:
        raise DataError(
            f"{label}: {image.path!r} must have {wanted:,} bytes by its header, for "
            f"{' x '.join(map(str, image.shape))} numbers of {image.dtype.itemsize} bytes, got "
            f"{size:,}; it is cut off, or the header is another's"
        )
    if size > wanted:
        warn(
            f"{label}: {image.path!r} has {size - wanted:,} bytes more than its header says",
            DataWarning,
        )
