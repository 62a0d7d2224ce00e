"""What ``cache="disk"`` of images means, apart from what does it, which needs sqlite3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotloop.base.rules import choice, reject, whole
from hotloop.data.cache_folder import find_folder
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.data.images.cache import ImageCache

__all__ = ["read_disk_cache"]

_SIDE_MAX = 16384  # HL_AUGMENT_SIZE_MAX


def read_disk_cache(
    cache: Any, folder: Any, side: Any, augment: tuple[Any, ...], channels: int
) -> ImageCache | None:
    """What ``cache=``, ``cache_dir=`` and ``cache_size=`` mean; None: nothing is kept on disk.

    Parameters
    ----------
    cache, folder, side
        As the user gives them.
    augment : tuple
        Packed, with the size of the batch's images and the filter.
    channels : {3, 1}

    Raises
    ------
    ConfigError
    """
    if cache is not None:
        choice("ram", "disk")("cache", cache)
    if cache != "disk":
        for name, value in (("cache_dir", folder), ("cache_size", side)):
            if value is not None:
                reject(name, "is of cache='disk'", value, "write cache='disk', or leave it out")
        return None
    height, width, _, smoothing = augment[:4]
    if side is None:
        side = -(-8 * max(height, width) // 7)
    side = whole(1, _SIDE_MAX)("cache_size", side)
    try:
        from hotloop.data.images.cache import ImageCache
    except ImportError as error:  # Python can be built without
        raise ConfigError(
            f"cache: 'disk' needs the module sqlite3 of Python, got {error}; install it, or write "
            "cache='ram'"
        ) from error
    return ImageCache(find_folder(folder, "images"), channels, side, smoothing)
