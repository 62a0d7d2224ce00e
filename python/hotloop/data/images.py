"""Images from files: what decodes them, and sources of batches.

The core reads, decodes and augments on loader threads without the GIL (csrc/data/image_source.h).
What it has no decoder for (everything but JPEG, and JPEG where TurboJPEG is missing) it gives to
:func:`read_by_pillow`, which turns whatever a file holds into grey or RGB of 8 bits, upright. Which
of the two decodes a file depends on its bytes alone.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.errors import ConfigError, DataError

__all__ = [
    "choose_caching",
    "describe_decoder",
    "image_source",
    "read_by_pillow",
    "read_size",
]

# Pillow's that decode pixels from bytes by themselves: none that starts a program (EPS), reads
# other files or is a container of no image.
_FORMATS = (
    *("AVIF", "BMP", "DIB", "GIF", "ICO", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "SGI", "TGA"),
    *("TIFF", "WEBP"),
)
_PIXELS_MAX = 89_478_485  # HL_IMAGE_PIXELS_MAX
_SAMPLED = 64  # files whose headers say how large images are, decoded
_ORIENTATION = 0x0112


# ---- Pillow


def read_by_pillow(
    name: str, data: bytes, channels: int, min_height: int, min_width: int
) -> npt.NDArray[np.uint8]:
    """The first image of a file, by Pillow: the core's reader of what TurboJPEG does not decode.

    Transparency is left out, palettes are looked up, 16 bits become the upper 8, EXIF's orientation
    is applied.

    Parameters
    ----------
    name : str
        The file's path.
    data : bytes
        What stands in it.
    channels : {1, 3}
        Grey or RGB.
    min_height, min_width : int
        A JPEG may be given smaller than it is stored as long as both sides have at least so many
        pixels; 0: as stored.

    Returns
    -------
    array
        uint8 (height, width, channels).

    Raises
    ------
    ConfigError
        If Pillow is not installed.
    DataError
        If it cannot decode the file, which is too large, truncated, or has no 8 or 16 bits.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ConfigError(
            "image: Pillow must be installed for what TurboJPEG does not decode, got no module "
            "PIL; install it with: pip install pillow"
        ) from error
    try:
        with Image.open(io.BytesIO(data), formats=_list_formats()) as image:
            height, width = image.height, image.width
            if height * width > _PIXELS_MAX:
                raise DataError(
                    f"image: must have 1 to {_PIXELS_MAX} pixels (more may be a decompression "
                    f"bomb), got {height} x {width}"
                )
            if min_height and min_width:
                turned = image.getexif().get(_ORIENTATION, 1) >= 5
                least = (min_height, min_width) if turned else (min_width, min_height)
                image.draft(None, least)
            upright = ImageOps.exif_transpose(image)
            return _to_channels(upright, channels)
    except DataError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # Pillow's plugins raise whatever a hostile file makes them
        words = " ".join(str(error).split())
        raise DataError(
            f"image: Pillow must be able to decode it, got {type(error).__name__} {words!r}"
        ) from error


def _list_formats() -> list[str]:
    """Of ours those that this build of Pillow has."""
    from PIL import Image

    Image.init()
    return [form for form in _FORMATS if form in Image.OPEN]


def _to_channels(image: Any, channels: int) -> npt.NDArray[np.uint8]:
    if image.mode.startswith("I;16"):
        grey = (np.asarray(image) >> 8).astype(np.uint8)
        return np.ascontiguousarray(np.repeat(grey[:, :, None], channels, axis=2))
    if image.mode in ("I", "F"):
        raise DataError(
            "image: samples must have 8 or 16 bits, whose white is known, got Pillow's mode "
            f"{image.mode}"
        )
    wanted = "L" if channels == 1 else "RGB"
    if image.mode != wanted:
        image = image.convert(wanted)
    array = np.asarray(image, np.uint8)
    return np.ascontiguousarray(array[:, :, None] if channels == 1 else array)


def describe_decoder() -> str:
    """What decodes images here, for people: "TurboJPEG 2.x, others by Pillow 13.0.0"."""
    from hotloop import _core

    turbo = _core.image_decoder()
    try:
        import PIL

        pillow = f"Pillow {PIL.__version__}"
    except ImportError:
        pillow = "nothing (pip install pillow)"
    if turbo["why_not"] is None:
        return f"TurboJPEG {turbo['version']}, others by {pillow}"
    return f"{pillow} (no TurboJPEG: {turbo['why_not']})"


# ---- sources


def image_source(
    paths: Sequence[str],
    augment: tuple[Any, ...],
    *,
    channels: int = 3,
    companions: Sequence[npt.NDArray[Any]] = (),
    caching: str = "nothing",
    cache_bytes: int = 0,
    on_bad: str = "raise",
    bad_max: int = 0,
    stored: tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]] | None = None,
) -> Any:
    """The core's source of these files.

    Parameters
    ----------
    paths : sequence of str
        Absolute: the current folder may change while batches are made.
    augment : tuple
        What happens to an image, as ``pack_augment`` packs it; its size is the batch's.
    channels : {3, 1}
    companions : sequence of arrays
        C-contiguous, with a row for each file, which come with it (labels).
    caching : {"nothing", "files", "images"}
        What is kept in memory, at most ``cache_bytes``.
    on_bad : {"raise", "skip", "replace"}
        What becomes of a file that cannot be decoded: an error; black with weight 0; the next good
        file, with its companions.
    bad_max : int
        How many may be bad before it is an error after all.
    stored : (int64 array (n, 5), uint8 array), optional
        Images that are there already, as :meth:`ImageCache.store` gives them.

    Returns
    -------
    _core.Source
        Fields: images uint8 (channels, height, width); with "skip" their weights, float32; the
        companions.

    Raises
    ------
    ConfigError, ShapeError
    """
    from hotloop import _core

    names = b"".join(os.fsencode(path) + b"\0" for path in paths)
    return _core.image_source(
        names,
        len(paths),
        channels,
        augment,
        reader=read_by_pillow,
        caching=caching,
        cache_bytes=cache_bytes,
        on_bad=on_bad,
        bad_max=bad_max,
        companions=companions,
        stored=stored,
    )


def choose_caching(paths: Sequence[str], channels: int, max_bytes: int) -> tuple[str, str]:
    """What ``cache="ram"`` keeps: decoded images where all of them fit, else files.

    Parameters
    ----------
    paths : sequence of str
    channels : {3, 1}
    max_bytes : int

    Returns
    -------
    tuple
        "images" or "files", and a sentence that says why.

    Raises
    ------
    DataError
        For a file that is not there.
    """
    stored = 0
    for path in paths:
        try:
            stored += os.stat(path).st_size
        except OSError as error:
            raise DataError(f"image {path}: must be readable, got '{error.strerror}'") from error
    step = max(1, len(paths) // _SAMPLED)
    pixels = [math.prod(read_size(path)) for path in paths[::step]]
    decoded = int(np.mean(pixels) * len(paths)) * channels
    room = f"of {max_bytes / 2**20:,.0f} MiB"
    if decoded <= max_bytes:
        return "images", f"decoded images, about {decoded / 2**20:,.0f} MiB {room}"
    if stored <= max_bytes:
        return "files", f"files, {stored / 2**20:,.0f} MiB {room}; decoded they would not fit"
    return "files", f"the first {max_bytes / stored:.0%} of the files that are read"


def read_size(path: str) -> tuple[int, int]:
    """Height and width of an image, by its header; 0 for one that is bad, which shows later."""
    from hotloop import _core

    try:
        _, height, width = _core.image_header(path)
        if not height:
            from PIL import Image

            with Image.open(path, formats=_list_formats()) as image:
                height, width = image.height, image.width
    except (DataError, ImportError, OSError, ValueError):
        return 0, 0
    return height, width
