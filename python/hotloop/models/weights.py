"""Weights of a file into a new model of the zoo."""

from __future__ import annotations

import os
from typing import TypeVar

from hotloop.errors import ConfigError, ShapeError
from hotloop.interop.weights import read_weights
from hotloop.nn.module import Module

__all__ = ["load_weights"]

M = TypeVar("M", bound=Module)


def load_weights(
    model: M,
    weights: str | os.PathLike[str] | None,
    head: str,
    replace_head: bool,
    strip_prefix: str,
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
    state = {k.removeprefix(strip_prefix): v for k, v in read_weights(weights).items()}
    own = f"{head}."
    if replace_head:
        state = {k: v for k, v in state.items() if not k.startswith(own)}
        state |= {k: v for k, v in model.state_dict().items() if k.startswith(own)}
    try:
        model.load_state_dict(state)
    except (ConfigError, ShapeError) as error:
        if f" {own}" in str(error):
            text = f"{error}; replace_head=True keeps the head of {head} new"
            raise type(error)(text) from None
        raise
    return model
