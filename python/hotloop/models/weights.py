"""Weights of a file into a new model of the zoo."""

from __future__ import annotations

import os
from typing import TypeVar

from hotloop.errors import ConfigError, ShapeError
from hotloop.interop.weights import read_weights
from hotloop.nn.module import Module

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
    if not isinstance(weights, (str, os.PathLike)) or _is_of_origin(weights):
        raise ConfigError(
            f"weights: must be the path of a local file, got {weights!r}; nothing is "
            "downloaded: torch.save(model.state_dict(), path) of the origin's model makes one"
        )
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
