"""Where a model is to predict, in one form of all that torch calls a device."""

from __future__ import annotations

from typing import Any

from hotloop.errors import ConfigError
from hotloop.graph import dtypes
from hotloop.graph.dtypes import DType
from hotloop.graph.symbolic import is_device

__all__ = ["is_place", "placement_of", "reachable"]


def is_place(value: Any) -> bool:
    """Whether an argument of ``Module.to`` is meant to be a device: a text that names no dtype too,
    which is then said to be none.
    """
    if isinstance(value, str) and not isinstance(value, DType):
        return is_device(value) or not dtypes.is_name(value)
    return is_device(value) or (isinstance(value, int) and not isinstance(value, bool))


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
