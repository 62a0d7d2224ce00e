"""Options of a DataModule that are read by rules of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotloop.base.rules import items, reject
from hotloop.base.scalars import plain
from hotloop.base.suggest import did_you_mean, name_missing
from hotloop.errors import ConfigError

__all__ = ["classes_by_target", "read_classes", "read_standardize", "refuse_options"]

_BY_OTHER_NAMES = {
    "random_state": "seed",
    "bs": "batch_size",
    **dict.fromkeys(("test_size", "test_split"), "test"),
    **dict.fromkeys(("val_split", "val_size", "validation_split", "validation_data"), "val"),
    "normalize": "standardize",
}


def refuse_options(
    unknown: dict[str, Any], make: Callable[..., Any], also: Sequence[str] = ()
) -> None:
    """Refuses keywords that a way to make a DataModule does not have.

    Parameters
    ----------
    unknown : dict
        Keywords that ``make`` has no parameters for.
    make : callable
    also : sequence of str
        Options that there are besides its parameters.

    Raises
    ------
    ConfigError
        With the option that is meant, where there is one.
    """
    if not unknown:
        return
    name = next(iter(unknown))
    parameters = list(inspect.signature(make).parameters)
    parameters = [key for key in parameters if key not in ("self", "unknown", "options")]
    parameters += [key for key in also if key not in parameters]
    meant = _BY_OTHER_NAMES.get(name)
    near = f"; write {meant}=..." if meant in parameters else did_you_mean(name, parameters)
    raise ConfigError(
        f"DataModule: there is no option {name!r}" + (near or f"; it has {', '.join(parameters)}")
    )


def read_standardize(value: Any) -> tuple[bool | frozenset[str], bool]:
    """Which inputs are standardised, and whether the targets are.

    Raises
    ------
    ConfigError
        If the value says neither.
    """
    if isinstance(value, (list, tuple, set, frozenset)) and value:
        if all(isinstance(name, str) for name in value):
            return frozenset(value), False
    elif isinstance(value, str) and value in ("x", "y", "both"):
        return value != "y", value != "x"
    elif isinstance(plain(value), bool):
        return bool(value), False
    rule = "must be True, False, 'x', 'y', 'both' or names of columns"
    fix = f"write standardize=[{value!r}] for a column" if isinstance(value, str) else ""
    reject("standardize", rule, value, fix)


def read_classes(value: Any) -> list[Any]:
    """Names of classes, by id.

    Raises
    ------
    ConfigError
        If they are no list of different texts, ints or bools.
    """
    names = [plain(name) for name in items("classes", value, "a list of names")]
    for i, name in enumerate(names):
        if not isinstance(name, (str, int)):
            reject(f"classes[{i}]", "a class is named by a text, an int or a bool", name)
        if name in names[:i]:
            raise ConfigError(f"classes: names must differ, got {name!r} twice")
    return names


def classes_by_target(value: Any, targets: Sequence[str]) -> dict[str, Any]:
    """Names of classes for the targets that they are of; "" is a single target.

    Parameters
    ----------
    value : sequence, or dict of them
    targets : sequence of str
        All there are.

    Raises
    ------
    ConfigError
        For a dict beside one target or a list beside several, and a key that is no target.
    """
    is_dict = isinstance(value, Mapping)
    if targets and is_dict == ("" in targets):
        fits = "a list, since y is one target" if is_dict else "a dict by target, as y has several"
        reject("classes", f"must be {fits}", value)
    if missing := [name for name in value if name not in targets] if is_dict else []:
        raise ConfigError(
            f"classes: must have names of targets, {', '.join(targets) or 'none'}, as keys, got "
            f"{name_missing(missing, targets)}"
        )
    return dict(value) if is_dict else {"": value}
