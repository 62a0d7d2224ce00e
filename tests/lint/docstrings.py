"""What the docstring of a public function or class must have: numpy's sections.

Every parameter stands under Parameters, by its name in the signature; what is returned under
Returns or Yields; and a function whose body raises says what under Raises. One sentence is enough
for what takes nothing and returns nothing.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

PUBLIC = ("hotloop", "hotloop.nn", "hotloop.nn.functional", "hotloop.nn.init")
# Overrides whose contract stands once, in the base class.
INHERITED = {"forward", "extra_repr"}
# Classes that functions make, never users: their constructors are no part of the interface.
MADE = {"Tensor", "TrainResult"}


def sections_of(doc: str) -> dict[str, str]:
    """The sections of a docstring by their headings."""
    parts = re.split(r"^([A-Z][A-Za-z ]+)\n-{3,}$", inspect.cleandoc(doc), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def named_in(section: str) -> set[str]:
    """The names that a section of parameters describes."""
    heads = re.findall(r"^(\*{0,2}\w[^\n:]*?)(?: :[^\n]*)?$", section, re.MULTILINE)
    return {name.strip().lstrip("*") for head in heads for name in head.split(",")}


def _parameters(call: Any) -> list[inspect.Parameter]:
    found = inspect.signature(call).parameters.values()
    return [p for p in found if p.name not in ("self", "cls") and not p.name.startswith("_")]


def _raises(call: Any) -> bool:
    """Whether the body itself raises."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(call)))
    except (OSError, TypeError):
        return False
    return any(isinstance(node, ast.Raise) and node.exc for node in ast.walk(tree))


def check_sections(thing: Any) -> tuple[list[str], list[str]]:
    """What the docstring of a function or class lacks, and which parameters it invents."""
    sections = sections_of(thing.__doc__ or "")
    given = "".join(
        sections.get(title, "") for title in ("Parameters", "Other Parameters", "Attributes")
    )
    described = named_in(given)
    is_class = inspect.isclass(thing)
    own_init = is_class and "__init__" in thing.__dict__
    made = is_class and (thing.__name__ in MADE or _is_plain_error(thing))
    parameters = [] if made else _parameters(thing)
    lacks = [f"Parameters: {p.name}" for p in parameters if p.name not in described]
    open_ended = any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)
    own = {n for n in named_in(sections.get("Parameters", "")) if not n.startswith("_")}
    invented = [] if open_ended else sorted(own - {p.name for p in parameters})
    if not is_class:
        returned = str(inspect.signature(thing).return_annotation)
        if returned == "NoReturn":
            return [], []  # refuses whatever it is given
        nothing = returned == "None"
        if not nothing and not {"Returns", "Yields"} & set(sections):
            lacks.append("Returns")
    body = thing.__init__ if own_init else None if is_class else thing
    if body is not None and not made and "Raises" not in sections and _raises(body):
        lacks.append("Raises")
    return lacks, invented


def _is_plain_error(cls: type) -> bool:
    return issubclass(cls, BaseException) and "__init__" not in vars(cls)


def public_things() -> Iterator[tuple[str, Any]]:
    """Every public function, class and method by its public name, each once."""
    seen = set[int]()
    functions = {n for n in vars(importlib.import_module("hotloop.ops")) if not n.startswith("_")}
    for where in PUBLIC:
        module = importlib.import_module(where)
        for name in module.__all__:
            thing = getattr(module, name)
            if not callable(thing) or id(thing) in seen:
                continue
            seen.add(id(thing))
            yield f"{where}.{name}", thing
            if inspect.isclass(thing):
                aside = functions if name == "Tensor" else set[str]()
                yield from _methods(f"{where}.{name}", thing, INHERITED | aside)


def _methods(path: str, cls: type, aside: set[str]) -> Iterator[tuple[str, Any]]:
    for name, found in vars(cls).items():
        method = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        if not name.startswith("_") and name not in aside and inspect.isfunction(method):
            yield f"{path}.{name}", method
