"""Folders for what is made once and kept on disk: where they are, and whether there is room."""

from __future__ import annotations

import os
import shutil
from typing import Any

from hotloop.base.messages import format_bytes
from hotloop.base.rules import reject, show
from hotloop.errors import ConfigError, DataError

__all__ = ["check_space", "find_folder", "make_folder"]


def find_folder(given: Any, kind: str) -> str:
    """The folder of a kind of results: what the user gives, else one in hotloop's own.

    Parameters
    ----------
    given : path or None
    kind : str
        "images": its name in hotloop's folder, which is ``$HOTLOOP_CACHE_PATH``, else ``hotloop``
        in ``$XDG_CACHE_HOME``, else in ``~/.cache`` (csrc/base/cache.h).

    Returns
    -------
    str
        Absolute; it need not be there.

    Raises
    ------
    ConfigError
        If it is no path, or there is no such folder to be had.
    """
    if given is not None:
        if not isinstance(given, (str, os.PathLike)) or not os.fspath(given):
            reject("cache_dir", "must be the path of a folder", given)
        return os.path.abspath(os.path.expanduser(os.fspath(given)))
    own, caches = os.environ.get("HOTLOOP_CACHE_PATH"), os.environ.get("XDG_CACHE_HOME", "")
    if own is not None:
        if not own:
            raise ConfigError(
                "cache: 'disk' needs a folder, and HOTLOOP_CACHE_PATH is set to none; write "
                "cache_dir=..."
            )
        return os.path.join(os.path.abspath(own), kind)
    if not os.path.isabs(caches):  # as its specification wants
        caches = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(caches, "hotloop", kind)


def make_folder(folder: str) -> None:
    """Makes it, with those above it, where it is not there.

    Raises
    ------
    DataError
        If it cannot be made.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cache_dir: must be a folder that can be written, got {show(folder)}: "
            f"{error.strerror}; write another cache_dir=..."
        ) from error


def check_space(folder: str, needed: int, what: str, fix: str) -> None:
    """Refuses to begin what the disk has no room for.

    Parameters
    ----------
    folder : str
        That is there.
    needed : int
        Bytes, estimated.
    what : str
        For the message: "1,000 images".
    fix : str
        For the message, besides another folder.

    Raises
    ------
    DataError
        With both numbers.
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"cache: the disk of {folder} must have room for {what}, about {needed:,} bytes "
            f"({format_bytes(needed)}), got {free:,} ({format_bytes(free)}) free; delete "
            f"something, write cache_dir=... on another disk{fix}"
        )
