"""Where a model is to predict, in one form of all that torch calls a device."""

from __future__ import annotations

from typing import Any

from hotloop.errors import ConfigError

__all__ = ["placement_of", "reachable"]


def reachable(device: Any) -> str:
    """The placement of a device that can be used now.

    Raises
    ------
    ConfigError
        For what is no device of this library's.
    DeviceError, OutOfMemoryError
        If there is no GPU that can be used.
    """
    from hotloop.training.inference import check_placement  # it imports modules

    placement = placement_of(device)
    check_placement(placement)
    return placement


def placement_of(device: Any) -> str:
    """Where a model is to predict, from what torch calls a device: "cpu", "auto" or "gpu:0".

    Raises
    ------
    ConfigError
        For what is no device of this library's.
    """
    name, _, index = (f"cuda:{device}" if isinstance(device, int) else str(device)).partition(":")
    if name not in ("cpu", "cuda", "gpu", "auto") or (index and not index.isdecimal()):
        raise ConfigError(
            f"to: device must be 'cpu', 'cuda', 'cuda:1' or 'auto', got {str(device)!r}"
        )
    return f"gpu:{int(index or 0)}" if name in ("cuda", "gpu") else name
