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
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.errors import ConfigError, DataError

__all__ = [
    "choose_caching",
    "describe_decoder",
    "find_image_size",
    "image_source",
    "read_by_pillow",
    "read_mask_by_pillow",
    "require_pillow",
]

# Pillow's that decode pixels from bytes by themselves: none that starts a program (EPS), reads
# other files or is a container of no image.
_FORMATS = (
    *("AVIF", "BMP", "DIB", "GIF", "ICO", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "SGI", "TGA"),
    *("TIFF", "WEBP"),
)
_WIDE_FORMATS = ("PPM", "PNG")  # PGM; PNG in old releases
_PIXELS_MAX = 89_478_485  # HL_IMAGE_PIXELS_MAX
_SAMPLED = 64  # files whose headers say how large images are, decoded
_ORIENTATION = 0x0112
_PNG_GREY, _PNG_PALETTE = 0, 3  # colour types


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

    def decode(image: Any) -> npt.NDArray[np.uint8]:
        from PIL import ImageOps

        if min_height and min_width:
            turned = image.getexif().get(_ORIENTATION, 1) >= 5
            least = (min_height, min_width) if turned else (min_width, min_height)
            image.draft(None, least)
        # Pillow gives the 16 bits of these formats in 32, scaled to white at 65,535.
        is_wide = image.mode == "I" and image.format in _WIDE_FORMATS
        return _to_channels(ImageOps.exif_transpose(image), channels, is_wide=is_wide)

    return _open_by_pillow(name, data, None, decode)


def read_mask_by_pillow(
    name: str, data: bytes, channels: int, min_height: int, min_width: int
) -> npt.NDArray[np.uint8]:
    """The numbers that a PNG stores, by Pillow: the core's reader of masks.

    Grey of 1, 2, 4, 8 or 16 bits gives its levels as they are stored, a palette the indices into
    it. EXIF's orientation is applied.

    Parameters
    ----------
    name, data, channels, min_height, min_width
        As for :func:`read_by_pillow`. A mask is given as it is stored, whatever is asked for.

    Returns
    -------
    array
        uint8 (height, width, 1); of 16 bits the two bytes of each number, (height, width, 2).

    Raises
    ------
    ConfigError
        If Pillow is not installed.
    DataError
        If it is no PNG, has colours in place of numbers, is too large, or cannot be decoded.
    """

    def decode(image: Any) -> npt.NDArray[np.uint8]:
        from PIL import ImageOps

        depth, colours = data[24], data[25]  # of the PNG's header, which Pillow has looked at
        if colours not in (_PNG_GREY, _PNG_PALETTE):
            raise DataError(
                "must have one channel, grey or a palette, whose numbers are class ids, got "
                f"{image.mode}; save the ids: Image.fromarray(ids.astype(np.uint8)).save(...)"
            )
        upright = ImageOps.exif_transpose(image)
        if depth == 16:
            wide = np.asarray(upright).astype(np.uint16)
            return wide[:, :, None].view(np.uint8)
        ids = np.asarray(upright).astype(np.uint8)
        if colours == _PNG_GREY and depth in (2, 4):  # Pillow gives levels up to 255
            ids //= 255 // (2**depth - 1)
        return ids[:, :, None]

    return _open_by_pillow(name, data, ["PNG"], decode)


def require_pillow() -> None:
    """Refuses to go on without Pillow.

    Raises
    ------
    ConfigError
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "image: Pillow must be installed for what TurboJPEG does not decode, got no module "
            "PIL; install it with: pip install pillow"
        ) from error


def _open_by_pillow(
    name: str,
    data: bytes,
    formats: list[str] | None,
    decode: Callable[[Any], npt.NDArray[np.uint8]],
) -> npt.NDArray[np.uint8]:
    """What decode makes of the image that a file's bytes are, in one of the formats (None: of all
    ours).

    Raises
    ------
    ConfigError, DataError
    """
    require_pillow()
    from PIL import Image

    file = io.BytesIO(data)
    try:
        with Image.open(file, formats=formats or _list_formats()) as image:
            height, width = image.height, image.width
            if height * width > _PIXELS_MAX:
                raise DataError(
                    f"image: must have 1 to {_PIXELS_MAX} pixels (more may be a decompression "
                    f"bomb), got {height} x {width}"
                )
            return decode(image)
    except DataError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # Pillow's plugins raise whatever a hostile file makes them
        words = " ".join(str(error).replace(repr(file), name).split())
        what = "it" if formats is None else f"it as {' or '.join(formats)}"
        raise DataError(
            f"image: Pillow must be able to decode {what}, got {type(error).__name__} {words!r}"
        ) from error


def _list_formats() -> list[str]:
    """Of ours those that this build of Pillow has."""
    from PIL import Image

    Image.init()
    return [form for form in _FORMATS if form in Image.OPEN]


def _to_channels(image: Any, channels: int, *, is_wide: bool) -> npt.NDArray[np.uint8]:
    if is_wide or image.mode.startswith("I;16"):
        grey = (np.asarray(image) >> 8).astype(np.uint8)
        return np.ascontiguousarray(np.repeat(grey[:, :, None], channels, axis=2))
    if image.mode in ("I", "F"):
        raise DataError(
            "image: samples must be whole numbers of 8 or 16 bits, whose white is known, got "
            f"Pillow's mode {image.mode}"
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
    annotations: tuple[Any, ...] | None = None,
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
    annotations : tuple, optional
        Masks and points, as ``pack_annotations`` packs them.
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
        Fields: images uint8 (channels, height, width); with "skip" their weights, float32; masks
        and points; the companions.

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
        annotations=annotations,
        stored=stored,
    )


def choose_caching(
    paths: Sequence[str], channels: int, max_bytes: int, masks: Sequence[str] = ()
) -> tuple[str, str]:
    """What ``cache="ram"`` keeps: decoded images where all of them fit, else files.

    Parameters
    ----------
    paths : sequence of str
    channels : {3, 1}
    max_bytes : int
    masks : sequence of str
        Of the images, where they have some.

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
    for path in (*paths, *masks):
        try:
            stored += os.stat(path).st_size
        except OSError as error:
            raise DataError(f"image {path}: must be readable, got '{error.strerror}'") from error
    step = max(1, len(paths) // _SAMPLED)
    pixels = [math.prod(find_image_size(path)) for path in paths[::step]]
    decoded = int(np.mean(pixels) * len(paths)) * (channels + bool(masks))
    room = f"of {max_bytes / 2**20:,.0f} MiB"
    if decoded <= max_bytes:
        return "images", f"decoded images, about {decoded / 2**20:,.0f} MiB {room}"
    if stored <= max_bytes:
        return "files", f"files, {stored / 2**20:,.0f} MiB {room}; decoded they would not fit"
    return "files", f"the first {max_bytes / stored:.0%} of the files that are read"


def find_image_size(path: str) -> tuple[int, int]:
    """Height and width of an image, upright, by its header; 0 for one that is bad, which shows when
    it is decoded.
    """
    from hotloop import _core

    try:
        _, height, width = _core.image_header(path)
        if not height:
            from PIL import Image

            with Image.open(path, formats=_list_formats()) as image:
                height, width = image.height, image.width
                if image.getexif().get(_ORIENTATION, 1) >= 5:
                    height, width = width, height
    except Exception:  # Pillow's plugins raise whatever a hostile file makes them
        return 0, 0
    return height, width
