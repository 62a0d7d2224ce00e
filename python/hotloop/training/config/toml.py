"""Writes a configuration as TOML, by tomli-w; tomllib of the standard library reads it.

TOML has no null, so None is left out and means the default on reading. A dict with keys that are
not strings (class weights by number) is an array of pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomli_w

from hotloop.base.rules import show
from hotloop.errors import ConfigError

__all__ = ["UnwritableError", "dumps"]


class UnwritableError(ConfigError):
    """A value that TOML cannot hold, such as a function."""


def _writable(field: str, value: Any) -> Any:
    """The value in lists, dicts of strings, numbers and texts."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UnwritableError(
                f"to_toml: text must be valid Unicode, got {show(value)}"
            ) from None
        return value
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_writable(field, item) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            return [[_writable(field, item) for item in pair] for pair in value.items()]
        return {
            _writable(field, key): _writable(field, item)
            for key, item in value.items()
            if item is not None
        }
    raise UnwritableError(
        f"{field}: only names, numbers and texts can be written to TOML, got {show(value)}"
    )


def dumps(values: Mapping[str, Any], *, strict: bool = True) -> str:
    """A TOML document of a dict whose values are plain.

    Parameters
    ----------
    values : mapping
        Top-level keys; a dict of strings becomes a table.
    strict : bool
        Whether a value that TOML cannot hold raises. If not, a comment at the top names it.

    Returns
    -------
    str

    Raises
    ------
    UnwritableError
        A ConfigError that names the field.
    """
    comments, written = [], {}
    for name, value in values.items():
        if value is None:
            continue
        try:
            written[name] = _writable(name, value)
        except UnwritableError:
            if strict:
                raise
            comments.append(f"# {name} is an object of Python and not written: {show(value)!a}\n")
    return "".join(comments) + tomli_w.dumps(written)
