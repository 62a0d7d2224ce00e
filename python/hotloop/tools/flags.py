"""The arguments of ``hotloop train``: a file, and every field of TrainingConfig as a flag.

    hotloop train run.toml --lr 5e-5 --no-use_amp --device cuda:0 --max_epochs=3 --resume

Flags are the fields and their other spellings, with ``_`` or ``-``. What stands behind one is a
value as TOML has it (5e-5, true, "text", [1, 2], {name = "sgd"}), and a text where it is none; a
field that takes several takes them with commas too. ``none`` is no value. ``--ema`` alone is true
and ``--no-ema`` false for the fields that take these.

Rejected: an argparse option for each field. Its usage would be a hundred lines in front of every
error, it abbreviates names (``--max`` would be any of them), and an option whose value may be left
out takes the run file for it.
"""

from __future__ import annotations

import dataclasses
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hotloop.base.suggest import closest
from hotloop.errors import ConfigError
from hotloop.training.config import TrainingConfig
from hotloop.training.config.spelling import ALIASES, collect

__all__ = ["Flags", "UsageError", "describe_flags", "read_flags"]

_OBJECTS = ("callbacks",)  # fields that no text can say
_LISTS = frozenset((
    "losses", "metrics", "freeze", "unfreeze", "betas", "devices", "class_weight", "recompute",
    "logger",
))  # fmt: skip
_FIELDS = {
    field.name: field for field in dataclasses.fields(TrainingConfig) if field.name not in _OBJECTS
}
_NAMES = (*_FIELDS, *ALIASES)
_OWN = ("resume", "help")


class UsageError(ConfigError):
    """A flag that does not exist, or lacks its value."""


class Flags(NamedTuple):
    """What the command line says.

    Attributes
    ----------
    file : str
        The run file.
    overrides : dict
        Fields of TrainingConfig, in any spelling.
    resume : bool, str or None
        As for ``train``.
    """

    file: str
    overrides: dict[str, Any]
    resume: bool | str | None


def read_flags(arguments: Sequence[str]) -> Flags | None:
    """What the arguments of the command say; None: its help is asked for.

    Parameters
    ----------
    arguments : sequence of str
        Those behind ``hotloop train``.

    Raises
    ------
    UsageError
        For a flag that does not exist, one without its value, and no file or several.
    ConfigError
        For a value that its field does not take.
    """
    files: list[str] = []
    overrides: dict[str, Any] = {}
    resume: bool | str | None = None
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word in ("-h", "--help"):
            return None
        if not word.startswith("-") or word == "-":
            files.append(word)
            continue
        name, has_value, text = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if word.startswith("--") and name == "resume":
            # The run file may stand behind it as well as before it.
            if not has_value and left and not left[0].startswith("-"):
                text = "" if left[0].endswith(".toml") else left.pop(0)
            resume = text or True
            continue
        off = name.removeprefix("no_")
        if word.startswith("--") and name not in _NAMES and off in _NAMES and not has_value:
            if not _takes(off, False):
                raise UsageError(f"--{name}: {off} has no such value; write --{off} VALUE")
            overrides[off] = False
            continue
        if not word.startswith("--") or name not in _NAMES:
            raise UsageError(f"there is no flag {word.partition('=')[0]}{_near(name)}")
        if not has_value:
            text = _next_value(name, left, has_file=bool(files))
        overrides[name] = _checked(name, text)
    if len(files) != 1:
        several = f"got {' and '.join(files)}" if files else "got none"
        raise UsageError(f"a run file is needed, {several}: hotloop train run.toml [--lr 1e-3 ...]")
    return Flags(files[0], overrides, resume)


def describe_flags() -> str:
    """The help of the command."""
    listed = " ".join(f"--{name}" for name in _NAMES)
    return "\n".join((
        "usage: hotloop train run.toml [--resume [PATH]] [--FIELD VALUE ...]",
        "",
        "Trains as a TOML file says: [model], [data] and [training].",
        "",
        "  --resume [PATH]  go on with the latest run of its output_dir, or with that of a",
        "                   checkpoint or folder; auto begins one where there is none",
        "  --FIELD VALUE    in the place of the file's: --lr 5e-5 --device cuda:0 --no-use_amp",
        "                   --metrics accuracy,f1 --max_steps none",
        "",
        "Fields, which help(hotloop.TrainingConfig) describes:",
        *textwrap.wrap(listed, 96, initial_indent="  ", subsequent_indent="  ",
                       break_on_hyphens=False),
    ))  # fmt: skip


def _near(name: str) -> str:
    """The flag that is meant, or where it is written instead."""
    near = closest(name.removeprefix("no_"), (*_NAMES, *_OWN))
    if near is not None:
        return f"; did you mean --{near}?"
    return "; flags are --resume and the fields of TrainingConfig, others are in the file"


def _next_value(name: str, left: list[str], *, has_file: bool) -> str:
    """The value that stands behind a flag, which is taken from what is left.

    Parameters
    ----------
    name : str
    left : list of str
    has_file : bool
        Whether the run file stands before it, so that no other word is one.
    """
    if _takes(name, True):  # it may stand alone
        is_other = not left or left[0].startswith("--") or left[0].endswith(".toml")
        is_value = not is_other and (has_file or _takes(name, *_readings(name, left[0])))
        return left.pop(0) if is_value else "true"
    if not left or left[0].startswith("--"):
        raise UsageError(f"--{name}: needs a value: --{name} VALUE")
    return left.pop(0)


def _checked(name: str, text: str) -> Any:
    """The value of a flag, of the ways to read it the first that its field takes."""
    readings = list(_readings(name, text))
    for value in readings:
        if _takes(name, value):
            return value
    error = _refusal(name, readings[0])
    words = str(error).removeprefix("hotloop train: ").removeprefix(f"{name}: ")
    raise ConfigError(f"--{name}: {words}")


def _takes(name: str, *values: Any) -> bool:
    return any(_refusal(name, value) is None for value in values)


def _refusal(name: str, value: Any) -> ConfigError | None:
    """Why a field does not take a value."""
    rules = {key: field.metadata["rule"] for key, field in _FIELDS.items()}
    try:
        collect("hotloop train", {name: value}, frozenset(rules), rules)
    except ConfigError as error:
        return error
    except TypeError as error:  # a part was given a setting that it does not have
        return ConfigError(f"{name}: {error}")
    return None


def _readings(name: str, text: str) -> Iterator[Any]:
    """What a text may mean, the likeliest first."""
    if text.lower() == "none":
        yield None
        return
    if (
        not _LISTS.isdisjoint((name, ALIASES.get(name, name)))
        and "," in text
        and text[:1] not in "[{\"'"
    ):
        yield [_value(one.strip()) for one in text.split(",") if one.strip()]
        return
    value = _value(text)
    yield value
    if not isinstance(value, str):
        yield text  # "16" is a precision, and 2024 may be a folder


def _value(text: str) -> Any:
    """A value of TOML, or the text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        try:
            return float(text)  # .5 and 1e+05, which TOML writes otherwise
        except ValueError:
            return text
    return value if isinstance(value, (bool, int, float, str, list, dict)) else text
