"""Writes a configuration as TOML; tomllib of the standard library reads it.

Covers what a configuration holds: tables, arrays, strings, integers, floats, booleans. TOML has no
null, so None is left out and means the default on reading. A dict with keys that are not strings
(class weights by number) is an array of pairs. A dependency for these lines was rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ConfigError
from .rules import show

__all__ = ["UnwritableError", "dumps"]

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_ESCAPES = {
    "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\",
}  # fmt: skip


class UnwritableError(ConfigError):
    """A value that TOML cannot hold, such as a function."""


def _string(text: str) -> str:
    parts = []
    for c in text:
        code = ord(c)
        if c in _ESCAPES:
            parts.append(_ESCAPES[c])
        elif 0xD800 <= code <= 0xDFFF:
            raise UnwritableError(f"to_toml: text must be valid Unicode, got {show(text)}")
        elif code < 0x20 or code == 0x7F:
            parts.append(f"\\u{code:04x}")
        else:
            parts.append(c)
    return '"' + "".join(parts) + '"'


def _key(name: str) -> str:
    return name if name and _BARE.issuperset(name) else _string(name)


def _value(field: str, value: Any) -> str:
    """One value on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)  # a float's repr always has a point or an exponent, as TOML asks
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(field, item) for item in value) + "]"
    if isinstance(value, Mapping):
        if not all(isinstance(k, str) for k in value):
            return _value(field, [[k, v] for k, v in value.items()])
        inner = ", ".join(f"{_key(k)} = {_value(field, v)}" for k, v in value.items())
        return "{" + inner + "}"
    raise UnwritableError(
        f"{field}: only names, numbers and texts can be written to TOML, got {show(value)}"
    )


def _lines(values: Mapping[str, Any], strict: bool) -> Iterator[str]:
    tables = []
    for name, value in values.items():
        if value is None:
            continue
        try:
            if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
                body = [f"{_key(k)} = {_value(name, v)}" for k, v in value.items() if v is not None]
                tables.append([f"\n[{_key(name)}]", *body])
            else:
                yield f"{_key(name)} = {_value(name, value)}"
        except UnwritableError:
            if strict:
                raise
            yield f"# {name} is an object of Python and not written: {show(value)!a}"
    for table in tables:
        yield from table


def dumps(values: Mapping[str, Any], *, strict: bool = True) -> str:
    """A TOML document of a dict whose values are plain.

    Parameters
    ----------
    values : mapping
        Top-level keys; a dict of strings becomes a table.
    strict : bool
        Whether a value that TOML cannot hold raises. If not, a comment stands in its place.

    Returns
    -------
    str

    Raises
    ------
    UnwritableError
        A ConfigError that names the field.
    """
    return "\n".join(_lines(values, strict)) + "\n"
