"""Edits: which changes of a module tree came after something was made of it.

Plans are made of a model as it was. Every change of the tree, and every attribute that is assigned,
is an edit with a number of its own, so that whoever keeps something compares two numbers.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotloop.nn.module import Module

__all__ = ["Registry", "attribute_version", "latest_edit", "next_edit", "structure_version"]

_edits = itertools.count(1)
_latest_edit = 0


def next_edit() -> int:
    """A number that no change of any module had before."""
    global _latest_edit
    _latest_edit = number = next(_edits)
    return number


def latest_edit() -> int:
    """Another number than before whenever some module has changed."""
    return _latest_edit


def _noting(method: Callable[..., Any]) -> Any:
    @functools.wraps(method)
    def change(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        finally:
            self.edit = next_edit()

    return change


class Registry(dict[str, Any]):
    """A module's parameters, buffers or children by name. Every change of it is an edit."""

    edit = 0
    __setitem__ = _noting(dict.__setitem__)
    __delitem__ = _noting(dict.__delitem__)
    __ior__ = _noting(dict.__ior__)
    clear = _noting(dict.clear)
    pop = _noting(dict.pop)
    popitem = _noting(dict.popitem)
    setdefault = _noting(dict.setdefault)
    update = _noting(dict.update)

    def __reduce__(self) -> tuple[Any, ...]:
        return Registry, (dict(self),)  # a copy's edits are its own


def structure_version(model: Module) -> tuple[int, ...]:
    """A value that differs after modules, parameters or buffers changed, anywhere in the tree.

    Replaced, registered, deleted or tied: their values have versions of their own.
    """
    registries = ("_parameters", "_buffers", "_modules")
    return tuple(m.__dict__[name].edit for m in model.modules() for name in registries)


def attribute_version(model: Module) -> tuple[int, ...]:
    """A value that differs after other attributes were assigned or deleted, anywhere in the tree.

    A list, dict or array that is changed in place is not noticed: assign it again.
    """
    return tuple(module._edit for module in model.modules())
