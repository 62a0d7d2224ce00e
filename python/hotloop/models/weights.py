"""Weights of a file into a new model of the zoo."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from hotloop.errors import ConfigError, ShapeError
from hotloop.interop.weights import read_weights
from hotloop.nn.module import Module
from hotloop.nn.state import prefix_of, state_items, without_prefix

__all__ = ["load_weights"]

M = TypeVar("M", bound=Module)


def _is_of_origin(weights: str | os.PathLike[str]) -> bool:
    """Whether it names weights as torchvision does, and no file."""
    name = os.fspath(weights)
    return name.startswith(("DEFAULT", "IMAGENET")) and not os.path.exists(name)


def load_weights(
    model: M,
    weights: str | os.PathLike[str] | None,
    head: str,
    replace_head: bool,
    strip_prefix: str,
    origin: str = "torchvision",
) -> M:
    """Loads a file into a model, if there is one.

    Parameters
    ----------
    model : Module
        It is changed.
    weights : path-like, optional
        None: nothing is loaded.
    head : str
        The path of the layer that gives classes.
    replace_head : bool
        The head keeps its initial values, whatever the file has for it.
    strip_prefix : str
        What the names in the file begin with.
    origin : str
        Whose names the model has; empty: its own.

    Returns
    -------
    Module
        The model.

    Raises
    ------
    ConfigError, ShapeError, CheckpointError
        As of ``load_state_dict`` and ``hl.read_weights``.
    """
    if weights is None:
        if replace_head or strip_prefix:
            given = "replace_head" if replace_head else "strip_prefix"
            raise ConfigError(f"{given}: goes with weights=, a file, got none")
        return model
    if isinstance(weights, Mapping):
        raise ConfigError(
            f"weights: must be the path of a local file, got a dict of {len(weights)} values; "
            "leave weights out and write model.load_state_dict(values)"
        )
    is_path = isinstance(weights, str | os.PathLike)
    if not is_path or _is_of_origin(weights):
        given = repr(weights) if is_path else type(weights).__name__
        raise ConfigError(
            f"weights: must be the path of a local file, got {given}; nothing is "
            "downloaded: torch.save(model.state_dict(), path) of the origin's model makes one"
        )
    state = without_prefix(read_weights(weights), strip_prefix)
    own = f"{head}."
    if replace_head:
        state = {k: v for k, v in state.items() if not k.startswith(own)}
        state |= {k: v for k, v in model.state_dict().items() if k.startswith(own)}
    try:
        model.load_state_dict(state)
    except (ConfigError, ShapeError) as error:
        fix = _fix(model, state, own, origin)
        raise type(error)(f"{error}{fix}") from None
    return model


def _fix(model: Module, state: dict[str, Any], own: str, origin: str) -> str:
    """The end of the error: what to do where the head or the images' channels differ, or all."""
    wanted = {key: value.shape for key, value in state_items(model)}
    given = {key: np.shape(value) for key, value in state.items()}
    if not wanted.keys() & given.keys():
        is_prefixed = prefix_of(list(given), list(wanted)) != ""
        return f"; {origin}'s names are needed" if origin and not is_prefixed else ""
    fix = ""
    if any(wanted.get(k) != given.get(k) for k in {**wanted, **given} if k.startswith(own)):
        fix = f"; replace_head=True keeps the head of {own[:-1]} new"
    first = next((key for key, shape in wanted.items() if len(shape) == 4), "")  # sees the images
    old, new = given.get(first, ()), wanted.get(first, ())
    if len(old) == len(new) == 4 and old[1] != new[1] and (old[0], *old[2:]) == (new[0], *new[2:]):
        fix += (
            f"; for in_channels={new[1]} spread the file's channels: state = "
            f"hl.read_weights(path); w = state[{first!r}]; state[{first!r}] = "
            f"w.mean(1, keepdims=True).repeat({new[1]}, 1) * ({old[1]} / {new[1]}); "
            "model.load_state_dict(state)"
        )
    return fix
