"""Holders: which modules hold a module, parameter or buffer, and so what its name is.

The first that still holds it names it. All of them are kept, for the first may be gone before the
others: ``nn.Sequential(*old.children())`` outlives ``old``.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotloop.nn.module import Module

__all__ = ["Holders"]

_REGISTRIES = ("_parameters", "_buffers", "_modules")


class Holders:
    """The modules that hold something, in the order in which they got it; none is kept alive.

    Parameters
    ----------
    held : Module, Parameter or Buffer
    """

    def __init__(self, held: Any) -> None:
        self._held = weakref.ref(held)
        self._places: list[tuple[weakref.ref[Module], str]] = []

    def add(self, module: Module, name: str) -> None:
        """Notes that the module holds it under a name."""
        self._places = [place for place in self._places if self._holds(*place)]
        if not any(known() is module and name == at for known, at in self._places):
            self._places.append((weakref.ref(module), name))

    def first(self) -> tuple[Module, str] | None:
        """The first module that still holds it, and under which name."""
        for place in self._places:
            module = place[0]()
            if module is not None and self._holds(*place):
                return module, place[1]
        return None

    def _holds(self, known: weakref.ref[Module], name: str) -> bool:
        module, held = known(), self._held()
        return module is not None and any(
            module.__dict__[registry].get(name) is held for registry in _REGISTRIES
        )
