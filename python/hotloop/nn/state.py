"""A module's state: its values by the paths of their names, and values taken from elsewhere."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hotloop.base.patterns import OWN_PREFIX
from hotloop.base.suggest import did_you_mean
from hotloop.errors import ConfigError, ShapeError
from hotloop.nn.extras import Extras
from hotloop.nn.parameter import Variable, to_host
from hotloop.nn.recipes import Array

if TYPE_CHECKING:
    from hotloop.nn.module import Module

__all__ = [
    "METADATA",
    "IncompatibleKeys",
    "StateDict",
    "load_state",
    "prefix_of",
    "state_items",
    "state_of",
    "without_prefix",
]

METADATA = "_fitted"  # the attribute of a module that was trained
_EXTRA = "_extra_state"  # torch's name of what get_extra_state gives
_SHOWN = 5  # names of each kind that an error lists


class StateDict(dict[str, Any]):
    """Values by name, and with them what training has found of the data.

    Attributes
    ----------
    metadata : Any
        Which a module that takes all values takes as well, so that it predicts as the model does
        that they are from; None: nothing.
    """

    metadata: Any = None


class IncompatibleKeys(NamedTuple):
    """What ``load_state_dict`` did not find in the state, and found but did not know."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def state_items(model: Module) -> Iterator[tuple[str, Variable]]:
    """torch's order: each module's parameters, then its buffers, then its children."""
    for path, module in model.named_modules(remove_duplicate=False):
        lead = f"{path}." if path else ""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield lead + name, parameter
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.persistent:
                yield lead + name, buffer


def state_of(model: Module, prefix: str) -> StateDict:
    """The values by their paths, and what modules have besides."""
    state = StateDict((f"{prefix}{key}", value.numpy()) for key, value in state_items(model))
    extra = _overriding(model, "get_extra_state")
    state.update({f"{prefix}{key}": module.get_extra_state() for key, module in extra.items()})
    state.metadata = None if prefix else model.__dict__.get(METADATA)
    return state


def _overriding(model: Module, method: str) -> dict[str, Module]:
    """The modules that define a method of extra state, by its key."""
    found = model.named_modules(remove_duplicate=False)
    return {
        f"{path}.{_EXTRA}" if path else _EXTRA: module
        for path, module in found
        if getattr(type(module), method) is not getattr(Extras, method)
    }


def load_state(
    model: Module, state_dict: Mapping[str, Any], strict: bool, strip_prefix: str
) -> IncompatibleKeys:
    """``Module.load_state_dict``: all values or, on an error, none."""
    _check_state(state_dict)
    metadata = state_dict.metadata if isinstance(state_dict, StateDict) else None
    state_dict = without_prefix(state_dict, strip_prefix)
    for path, module in model.named_modules(remove_duplicate=False):
        module.before_load(state_dict, f"{path}." if path else "")
    own, extra = dict(state_items(model)), _overriding(model, "set_extra_state")
    missing = [key for key in (*own, *extra) if key not in state_dict]
    unexpected = [
        key
        for key in state_dict
        if key not in own
        and key not in extra
        and not str(key).startswith(OWN_PREFIX)  # of files of hotloop
    ]
    values = {key: _value_of(key, state_dict[key]) for key in own if key in state_dict}
    wrong = [
        f"{key} must be {own[key].shape}, got {value.shape}"
        for key, value in values.items()
        if not own[key].is_lazy and own[key].shape != value.shape
    ]
    faults = [f"shapes differ: {_some(wrong, '; ')}"] if wrong else []
    if strict and missing:
        faults.append(f"missing keys: {_some(missing)}")
    if strict and unexpected:
        # Among many names that are all others the nearest one means nothing.
        is_typo = len(unexpected) <= _SHOWN
        names = [key + (did_you_mean(key, missing) if is_typo else "") for key in unexpected]
        faults.append(f"unexpected keys: {_some(names)}")
    if faults:
        if prefix := prefix_of(unexpected, missing):
            faults.insert(0, f"names that begin with {prefix!r}: write strip_prefix={prefix!r}")
        elif strict and unexpected and len(missing) == len(own):
            faults.insert(0, "names of which none is this model's: it is another model's")
        text = f"load_state_dict: the state must fit {type(model).__name__}, got "
        raise (ShapeError if wrong else ConfigError)(text + "; ".join(faults))
    for key in values:
        own[key].check_free()
    for key, value in values.items():
        own[key].set_value(value)
    for key, module in extra.items():
        if key in state_dict:
            module.set_extra_state(state_dict[key])
    for module in model.modules():
        module.after_load()
    if metadata is not None and not missing and not unexpected:
        model.__dict__[METADATA] = copy.copy(metadata)
    return IncompatibleKeys(missing, unexpected)


def without_prefix(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """A state's values by their names without what these begin with.

    Parameters
    ----------
    state : mapping of str to array
        The values by their names.
    prefix : str
        What is taken from the names that begin with it.

    Returns
    -------
    dict of str to array
        A new one.

    Raises
    ------
    ConfigError
        If two values get one name.
    """
    found: dict[str, Any] = {}
    names: dict[str, str] = {}
    for key, value in state.items():
        name = str(key).removeprefix(prefix)
        if name in found:
            raise ConfigError(
                f"strip_prefix: names must differ without {prefix!r}, got {names[name]!r} and "
                f"{key!r}; delete one of them from the state"
            )
        found[name], names[name] = value, str(key)
    return found


def _value_of(key: str, value: Any) -> Array:
    try:
        return to_host(value)
    except ConfigError:
        kind = getattr(value, "dtype", None)
        given = type(value).__name__ if kind is None else f"dtype {kind}"
        raise ConfigError(
            f"load_state_dict: {key} must be an array of numbers, got {given}"
        ) from None


def _some(names: Sequence[str], between: str = ", ") -> str:
    """The first few, and how many more there are."""
    more = len(names) - _SHOWN
    listed = between.join(names[:_SHOWN])
    return f"{listed} and {more} more of {len(names)}" if more > 0 else listed


def prefix_of(unexpected: Sequence[str], missing: Sequence[str]) -> str:
    """What all unexpected keys begin with and missing ones lack; empty: there is no such prefix."""
    first = next((k for k in unexpected if any(k.endswith(f".{m}") for m in missing)), "")
    name = max((m for m in missing if first.endswith(f".{m}")), key=len, default="")
    prefix = first.removesuffix(name)
    is_shared = all(k.startswith(prefix) and k.removeprefix(prefix) in missing for k in unexpected)
    return prefix if prefix and is_shared else ""


def _check_state(state: object) -> None:
    if isinstance(state, Mapping):
        return
    fix = ""
    if isinstance(state, str | os.PathLike):
        fix = "; read the file first: hl.read_weights(path)"
    raise ConfigError(
        f"load_state_dict: must be a dict from names to arrays, got {type(state).__name__}{fix}"
    )
