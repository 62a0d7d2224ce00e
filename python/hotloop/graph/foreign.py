"""torch's functions that get tensors of hotloop: what to write in their place."""

from __future__ import annotations

import importlib
import sys
from types import FrameType

from hotloop.base.suggest import closest

__all__ = ["instead_of", "own_layer"]


def own_layer(value: object) -> str:
    """hotloop's layer in place of one of torch; empty: it is none, or there is none.

    Parameters
    ----------
    value : object
        Of any kind.

    Returns
    -------
    str
        How to write it.
    """
    kind = type(value)
    nn = importlib.import_module("hotloop.nn")
    if not kind.__module__.startswith("torch.nn.modules") or kind.__name__ not in nn.__all__:
        return ""
    return f"hotloop's own layer, nn.{kind.__name__} (from hotloop import nn)"


def instead_of(name: str) -> str:
    """What to write in place of a function of torch that just got a tensor of hotloop.

    Parameters
    ----------
    name : str
        The function's name.

    Returns
    -------
    str
        The layer of the same name where a layer of torch called it, else the function.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if layer := own_layer(frame.f_locals.get("self")):
            return layer
        frame = frame.f_back
    ops = importlib.import_module("hotloop.ops")
    functional = importlib.import_module("hotloop.nn.functional")
    own = {known: f"hl.{known}" for known in vars(ops) if not known.startswith("_")}
    for known in functional.__all__:
        text = f"F.{known} (from hotloop.nn import functional as F)"
        own[known] = f"{own[known]} or {text}" if known in own else text
    found = closest(name, own)
    return f"hotloop's own, {own[found]}" if found else "it with functions of hotloop, hl.* or F.*"
