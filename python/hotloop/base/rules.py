"""The rules that a setting's value has to keep.

A rule is a function ``(field, value) -> value`` that returns the value in its one canonical form
or raises ConfigError in the form ``<field>: <rule>, got <value>; <fix>``. Canonical means that two
spellings of the same thing compare equal afterwards, and that the value is a plain Python object
(no NumPy scalar, no list) which can be hashed, pickled and written to a file.

Values are parsed, never guessed: ``"1h30m"`` and ``"4GB"`` have a grammar, ``"1e-3"`` where a
number belongs is an error that shows the number to write, and True is not the number 1.
"""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from hotloop.base.scalars import plain
from hotloop.base.suggest import did_you_mean, squeeze
from hotloop.errors import ConfigError

__all__ = [
    "FrozenDict",
    "Rule",
    "anything",
    "byte_size",
    "choice",
    "duration",
    "either",
    "flag",
    "fraction_or_count",
    "names",
    "number",
    "optional",
    "pair",
    "path",
    "reject",
    "show",
    "text",
    "warmup",
    "warmup_amount",
    "whole",
]

Rule = Callable[[str, object], Any]

_SHOWN = 80  # characters of a value's repr that an error message quotes


class FrozenDict(dict[str, Any]):
    """A dict that cannot be changed, and can be hashed when its values can."""

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("a configuration's dict cannot be changed; use config.replace(...)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)


def show(value: object) -> str:
    """The value's repr, shortened for an error message."""
    shown = " ".join(repr(value).split())
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."


def reject(field: str, rule: str, value: object, fix: str = "") -> NoReturn:
    """Raise ConfigError in the one form that all of them have.

    Parameters
    ----------
    field : str
        The setting as the user spelt it.
    rule : str
        What holds for it, as the rest of a sentence.
    value : object
        What was given.
    fix : str
        What to write instead, if that is known.
    """
    tail = f"; {fix}" if fix else ""
    raise ConfigError(f"{field}: {rule}, got {show(value)}{tail}")


def _plain_number(field: str, value: object, wanted: str) -> float | int:
    """The value as int or float; raises for everything that is not a finite real number."""
    value = plain(value)
    if isinstance(value, str):
        try:
            parsed = float(value)
        except ValueError:
            reject(field, f"{wanted} is needed", value)
        written = int(parsed) if parsed.is_integer() and wanted != "a number" else parsed
        reject(field, f"{wanted} is needed, not a string", value, f"write {field}={written!r}")
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        reject(field, f"{wanted} is needed", value)
    if isinstance(value, numbers.Integral):
        return int(value)
    as_float = float(value)
    if not math.isfinite(as_float):
        reject(field, f"{wanted} must be finite", value)
    return as_float


def number(
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    fix: str = "",
) -> Rule:
    """A finite real number within bounds, returned as float."""

    def check(field: str, value: object) -> float:
        try:
            x = float(_plain_number(field, value, "a number"))
        except OverflowError:
            reject(field, "a number must fit a double", value)
        if above is not None and not x > above:
            reject(field, f"must be greater than {above:g}", value, fix)
        if at_least is not None and not x >= at_least:
            reject(field, f"must be at least {at_least:g}", value, fix)
        if below is not None and not x < below:
            reject(field, f"must be less than {below:g}", value, fix)
        if at_most is not None and not x <= at_most:
            reject(field, f"must be at most {at_most:g}", value, fix)
        return x

    return check


def whole(minimum: int, maximum: int = 2**63 - 1, *, fix: str = "") -> Rule:
    """A whole number within bounds, returned as int; 1e5 is one, 1.5 is not."""

    def check(field: str, value: object) -> int:
        found = _plain_number(field, value, "a whole number")
        if isinstance(found, float) and not found.is_integer():
            reject(field, "a whole number is needed", value, fix)
        n = int(found)
        if n < minimum:
            reject(field, f"must be at least {minimum}", value, fix)
        if n > maximum:
            reject(field, f"must be at most {maximum}", value, fix)
        return n

    return check


def flag(field: str, value: object) -> bool:
    """True or False, NumPy's too; neither 0 and 1 nor strings."""
    found = plain(value)
    if not isinstance(found, bool):
        reject(field, "must be True or False", value)
    return found


def choice(*options: str, aliases: Mapping[Any, str] | None = None, fold: bool = False) -> Rule:
    """One of a few names.

    Parameters
    ----------
    *options : str
        The canonical names.
    aliases : mapping, optional
        Other spellings of them.
    fold : bool
        Whether case and separators are ignored (``"AdamW"``, ``"one-cycle"``).
    """
    table: dict[Any, str] = {option: option for option in options} | dict(aliases or {})
    if fold:
        table |= {squeeze(k): v for k, v in table.items() if isinstance(k, str)}

    def check(field: str, value: object) -> str:
        value = plain(value)
        if isinstance(value, str):
            found = table.get(squeeze(value) if fold else value)
        else:  # True would otherwise find the alias 1
            found = table.get(value) if type(value) is int else None
        if found is None:
            listed = ", ".join(repr(option) for option in options)
            near = did_you_mean(value, options) if isinstance(value, str) else ""
            reject(field, f"must be one of {listed}", value, near.removeprefix("; "))
        return found

    return check


def optional(rule: Rule) -> Rule:
    """None, or what the other rule allows."""
    return lambda field, value: None if value is None else rule(field, value)


def either(*literals: object, rule: Rule) -> Rule:
    """One of a few literal values, or what the other rule allows."""

    def check(field: str, value: object) -> object:
        value = plain(value)
        for literal in literals:
            if type(value) is type(literal) and value == literal:
                return value
        return rule(field, value)

    return check


def anything(field: str, value: object) -> object:
    """Any object; it is checked where it is used."""
    return value


def text(field: str, value: object) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value.strip():
        reject(field, "must be a name", value)
    return str(value)


def path(field: str, value: object) -> str:
    """A path, as str or os.PathLike, returned as str."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str) or not value or "\0" in value:
        reject(field, "must be a path", value)
    return str(value)


def names(field: str, value: object) -> tuple[str, ...]:
    """One name or several, returned as a tuple."""
    if isinstance(value, str):
        return (text(field, value),)
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        reject(field, "must be a name or a list of names", value)
    found = tuple(text(field, item) for item in value)
    if not found:
        reject(field, "must hold at least one name", value, f"write {field}=None for none")
    return found


def items(field: str, value: object, what: str) -> Iterator[object]:
    """The items of a list, tuple or one-dimensional array."""
    to_list = getattr(value, "tolist", None)
    if callable(to_list):  # NumPy and its likes, without importing them
        value = to_list()
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        reject(field, f"must be {what}", value)
    return iter(value)


def pair(rule: Rule, what: str) -> Rule:
    """Two values under one rule, as the betas of Adam."""

    def check(field: str, value: object) -> tuple[Any, Any]:
        found = tuple(items(field, value, what))
        if len(found) != 2:
            reject(field, f"must be {what}", value)
        return rule(f"{field}[0]", found[0]), rule(f"{field}[1]", found[1])

    return check


def fraction_or_count(field: str, value: object) -> int | float:
    """An int counts (>= 1); a float is a fraction, greater than 0 and at most 1."""
    found = _plain_number(field, value, "a number")
    if isinstance(found, int):
        check = whole(1, fix=f"write {field}=None for no limit")
        return check(field, found)  # type: ignore[no-any-return]
    if not 0.0 < found <= 1.0:
        reject(
            field,
            "a float is a fraction, greater than 0 and at most 1",
            value,
            f"write {field}={int(found)} for that many batches" if found > 1 else "",
        )
    return found


_DURATION_FIX = "write seconds as a number, or a text like '1h30m', '45 seconds' or '08:30:00'"
_UNIT_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


def duration(field: str, value: object) -> float:
    """A time span: seconds, timedelta, ``"1h30m"``, ``"10 minutes"``, ``"HH:MM:SS"`` or, with days
    before that, ``"DD:HH:MM:SS"``; returned in seconds.
    """
    import datetime
    import re

    if isinstance(value, datetime.timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        clock = re.fullmatch(r"(?:(\d+):)?(\d+):(\d+):(\d+)", value.strip())
        # "1h30m", "90 minutes", "1 hour 30 min"
        units = (r"d(?:ays?)?", r"h(?:ours?|rs?)?", r"m(?:in(?:ute)?s?)?", r"s(?:ec(?:ond)?s?)?")
        number = r"(\d+(?:\.\d+)?)"
        spans = re.fullmatch(
            r"\s*" + "".join(rf"(?:{number}\s*{unit}\s*)?" for unit in units), value.lower()
        )
        found = clock or spans
        if found is None or not any(found.groups()):
            reject(field, "a time span is needed", value, _DURATION_FIX)
        seconds = sum(
            float(amount) * unit
            for amount, unit in zip(found.groups(), _UNIT_SECONDS.values(), strict=True)
            if amount
        )
    else:
        seconds = float(_plain_number(field, value, "a time span"))
    if not 0.0 < seconds < math.inf:
        reject(field, "must be longer than 0 seconds", value, f"write {field}=None for no limit")
    return seconds


_BYTE_UNITS = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


def byte_size(field: str, value: object) -> int:
    """A size in bytes, or a text like ``"4GB"`` (10**9 each) or ``"4GiB"`` (2**30 each)."""
    import re

    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*", value)
        unit = _BYTE_UNITS.get(found[2].lower()) if found else None
        if found is None or unit is None:
            reject(
                field,
                "a size in bytes is needed",
                value,
                "write a number of bytes, or a text like '4GB' (10**9) or '4GiB' (2**30)",
            )
        value = int(float(found[1]) * unit)
    size: int = whole(1, fix=f"write {field}=None for no limit")(field, value)
    return size


_WARMUP_FIX = "write steps as an int, a ratio of all steps as a float below 1, or '5 epochs'"


def warmup_amount(value: int | float | str) -> tuple[float, str]:
    """A canonical warmup as (amount, unit), unit being "steps", "ratio" or "epochs"."""
    if isinstance(value, str):
        return float(value.split()[0]), "epochs"
    return float(value), "ratio" if isinstance(value, float) else "steps"


def warmup(field: str, value: object) -> int | float | str:
    """Warmup: an int in steps, a float below 1 as the ratio of all steps, or ``"5 epochs"``."""
    import re

    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(epochs?|steps?|%)\s*", value)
        if found is None:
            reject(field, "a length of warmup is needed", value, _WARMUP_FIX)
        amount, unit = float(found[1]), found[2]
        if unit.startswith("step"):
            value = amount
        elif unit == "%":
            value = amount / 100.0
        else:
            count = int(amount) if amount.is_integer() else amount
            return f"{count} epochs" if count else 0
    length = _plain_number(field, value, "a length of warmup")
    if length < 0:
        reject(field, "must be at least 0", value, _WARMUP_FIX)
    if isinstance(length, float):
        if length.is_integer() and length != 1.0:
            return int(length)
        if length >= 1.0:
            reject(field, "a float is a ratio of all steps, below 1", value, _WARMUP_FIX)
    return length
