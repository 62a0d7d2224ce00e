"""Values that are valid but not supported yet.

A configuration must never be accepted and then ignored. This table is the one place that knows
what hotloop cannot do yet; whoever builds the machinery deletes the line. What depends on the
machine, such as whether there is a GPU, is not here: the device layer decides that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["UNSUPPORTED", "Unsupported"]


class Unsupported(NamedTuple):
    """A field, the predicate of its values that are not supported, and what to tell the user."""

    field: str
    applies: Callable[[Any], bool]
    sentence: str
    instead: str


def _several(devices: int | str | tuple[int, ...]) -> bool:
    return not (devices in ("auto", 1) or (isinstance(devices, tuple) and len(devices) == 1))


UNSUPPORTED: tuple[Unsupported, ...] = (
    Unsupported(
        "devices", _several, "training on several devices is not built yet", "write devices=1"
    ),
    Unsupported(
        "strategy",
        lambda v: v not in ("auto", "single"),
        "training on several devices is not built yet",
        "write strategy='auto'",
    ),
    Unsupported(
        "optimizer",
        lambda v: bool(getattr(v, "amsgrad", None)),
        "amsgrad is not built yet",
        "leave amsgrad out",
    ),
)
