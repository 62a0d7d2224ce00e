"""The mask of a batch of cubes, ``x["mask"]``: which pixels count in training and validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotloop.data.targets import IGNORED, Targets
from hotloop.graph.pointwise import where
from hotloop.stats.node import PixelNode, mask_of, masked

if TYPE_CHECKING:
    from hotloop.data.module import DataModule
    from hotloop.graph.symbolic import Tensor
    from hotloop.nn.module import Module

__all__ = ["masked_batch", "masked_inputs", "masked_targets"]


def _takes_mask(model: Module, x: Any) -> bool:
    """Whether a batch's mask is one of pixels: of a model with nodes of hotloop.stats."""
    has_cube = isinstance(x, Mapping) and "mask" in x and ("cube" in x or "x" in x)
    return has_cube and any(isinstance(module, PixelNode) for module in model.modules())


def masked_inputs(model: Module, x: Any) -> Any:
    """A batch's inputs with 0 in pixels that the mask leaves out, which is noted in the trace.

    Parameters
    ----------
    model : Module
        Without nodes of hotloop.stats a mask is an input like others.
    x : Tensor or structure of them

    Raises
    ------
    ShapeError
        If the mask has another shape than the cube.
    """
    return masked(x) if _takes_mask(model, x) else x


def masked_targets(model: Module, data: DataModule) -> dict[str, Targets]:
    """The targets; class ids of pixels may be the id that counts nothing, where there is a mask."""
    split = data.split("train")
    fields = {} if split is None else {field.name: field for field in split.fields}
    x = {name[2:]: field for name, field in fields.items() if name.startswith("x.")}
    targets = dict(data.targets)
    for name, target in targets.items() if _takes_mask(model, x) else ():
        field = fields[f"y.{name}" if name else "y"]
        if target.kind == "class" and field.shape == x["mask"].shape:
            targets[name] = dataclasses.replace(target, has_ignored=True)
    return targets


def masked_batch(model: Module, batch: Mapping[str, Any], *, is_own_step: bool) -> dict[str, Any]:
    """A batch whose mask holds of its inputs and of class ids of pixels.

    Losses and metrics leave out the id of what counts nothing, -100.

    Parameters
    ----------
    model : Module
    batch : dict
        With "x" and, where there are any, "y" and "weight".
    is_own_step : bool
        Whether a training_step makes the loss, which has the targets as they are.
    """
    if not _takes_mask(model, batch["x"]):
        return dict(batch)
    made = {**batch, "x": masked(batch["x"])}
    mask = mask_of(batch["x"])
    if "y" in batch and mask is not None and not is_own_step:
        made["y"] = _mask_ids(mask, batch["y"])
    return made


def _mask_ids(mask: Tensor, y: Any) -> Any:
    if isinstance(y, Mapping):
        return {name: _mask_ids(mask, each) for name, each in y.items()}
    if isinstance(y, tuple):
        return tuple(_mask_ids(mask, each) for each in y)
    is_of_pixels = not y.dtype.is_floating_point and y.shape == mask.shape
    return where(mask, y, IGNORED) if is_of_pixels else y
