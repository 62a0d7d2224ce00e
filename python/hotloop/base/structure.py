"""Nested tuples, lists and dicts as a list of leaves and what puts them together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["Constant", "Keywords", "flatten", "unflatten"]


class Constant:
    """A value that is no leaf but a part of the structure."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Keywords(dict[str, Any]):
    """The arguments of a call that go by name, as the last item of the tuple of its arguments."""


def flatten(value: Any) -> tuple[list[Any], Any]:
    """Leaves of nested tuples, lists and dicts, and what :func:`unflatten` needs.

    None behind the first item of a tuple or list is no leaf: what a layer gives only if asked.
    """
    if isinstance(value, Constant):
        return [], {"constant": value.value}
    if isinstance(value, dict):
        pairs = [(key, flatten(item)) for key, item in value.items()]
        leaves = [leaf for _, (items, _) in pairs for leaf in items]
        kind = "keywords" if isinstance(value, Keywords) else "dict"
        return leaves, {kind: [[key, spec] for key, (_, spec) in pairs]}
    if isinstance(value, (tuple, list)):
        parts = [flatten(Constant(None) if i and v is None else v) for i, v in enumerate(value)]
        leaves = [leaf for items, _ in parts for leaf in items]
        return leaves, {type(value).__name__: [spec for _, spec in parts]}
    return [value], None


def unflatten(leaves: Sequence[Any], spec: Any) -> Any:
    """The structure again, with other leaves."""
    return _build(iter(leaves), spec)


def _build(leaves: Any, spec: Any) -> Any:
    if spec is None:
        return next(leaves)
    kind, parts = next(iter(spec.items()))
    if kind == "constant":
        return parts
    if kind in ("dict", "keywords"):
        made = {key: _build(leaves, part) for key, part in parts}
        return made if kind == "dict" else Keywords(made)
    items = [_build(leaves, part) for part in parts]
    return items if kind == "list" else tuple(items)
