"""What Griffe, which reads the docstrings for mkdocstrings (mkdocs.yml), is told about hotloop."""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["Roles"]

_ROLE = re.compile(r":(?:func|class|meth|mod|attr):`~?([\w.]+)`")
# Dtypes of `hotloop` that hide Python's types: in docstrings those are meant.
_DTYPES = ("bool", "float", "int")


class Roles(griffe.Extension):
    """Makes links of cross-references, ``:func:`name```, and shows the settings with defaults."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """An object was read, of whatever kind."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"[`\1`][\1]", obj.docstring.value)

    def on_module_members(self, *, mod: Any, **_: Any) -> None:
        """A module was read with all that is in it."""
        if mod.path in ("hotloop", "hotloop.public"):
            for name in _DTYPES:
                mod.members.pop(name, None)

    def on_class_members(self, *, cls: Any, **_: Any) -> None:
        """A class was read: TrainingConfig takes its fields as keywords, by their defaults."""
        if cls.name != "TrainingConfig":
            return
        keyword = griffe.ParameterKind.keyword_only
        parameters = cls.members["__init__"].parameters
        options = parameters["options"]
        del parameters["options"]
        for field in cls.attributes.values():
            if field.value is not None and not field.name.startswith("_"):
                parameters.add(
                    griffe.Parameter(
                        field.name, annotation=field.annotation, kind=keyword, default=field.value
                    )
                )
        parameters.add(options)
