"""The mask of a batch of cubes, ``x["mask"]``: which pixels count in training and validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.data.targets import IGNORED, Targets
from hotloop.errors import ConfigError
from hotloop.graph.pointwise import where
from hotloop.stats.node import masked
from hotloop.training.scoring.matching import hold_the_same

if TYPE_CHECKING:
    from hotloop.data.module import DataModule
    from hotloop.graph.symbolic import Tensor

__all__ = ["masked_arrays", "masked_ids", "masked_inputs", "masked_targets", "refuse_functions"]


def _has_mask(x: Any) -> bool:
    return isinstance(x, Mapping) and "cube" in x and "mask" in x


def masked_inputs(x: Any) -> Any:
    """A batch's inputs with 0 in pixels that the mask leaves out, which is noted in the trace.

    Parameters
    ----------
    x : Tensor or structure of them
        Of a dict with "cube" and "mask"; others are returned as they are.

    Raises
    ------
    ShapeError
        If the mask has another shape than the cube.
    """
    return masked(x) if _has_mask(x) else x


def masked_targets(data: DataModule) -> tuple[dict[str, Targets], list[str]]:
    """The targets, and the names of those that are of pixels of which a mask leaves some out.

    Class ids among these may be the id that counts nothing.
    """
    split = data.split("train")
    fields = {} if split is None else {field.name: field for field in split.fields}
    x = {name[2:]: field for name, field in fields.items() if name.startswith("x.")}
    targets, names = dict(data.targets), []
    for name, target in targets.items() if _has_mask(x) else ():
        shape = fields[f"y.{name}" if name else "y"].shape
        if hold_the_same((1, *shape), (1, *x["mask"].shape)):
            names.append(name)
            if target.kind == "class":
                targets[name] = dataclasses.replace(target, has_ignored=True)
    return targets, names


def masked_arrays(x: Any, y: Any, data: DataModule) -> tuple[Any, Any]:
    """A split's inputs and targets for the evaluation of a saved model, which has no trace.

    Parameters
    ----------
    x, y : array or structure of them
        The split's.
    data : DataModule

    Returns
    -------
    tuple
        ``x`` with 0, and ``y`` with the class id -100, beside the mask.

    Raises
    ------
    ConfigError
        If targets of pixels are no class ids.
    """
    if not _has_mask(x):
        return x, y
    mask = np.asarray(x["mask"]).astype(bool)
    x = {**x, "cube": np.where(mask[..., None], x["cube"], 0)}
    targets, names = masked_targets(data)
    if not names:
        return x, y
    values = dict(zip(targets, y, strict=True)) if isinstance(y, tuple) else y
    values = dict(values) if isinstance(values, Mapping) else {"": values}
    for name in names:
        if targets[name].kind != "class":
            raise ConfigError(
                "evaluate: targets of pixels that x['mask'] leaves out would count, as they are no "
                "class ids; evaluate the rows without the mask, or the model itself"
            )
        each = values[name]
        values[name] = np.where(mask.reshape(each.shape), each, IGNORED)
    if isinstance(y, tuple):
        return x, tuple(values.values())
    return x, values if isinstance(y, Mapping) else values[""]


def masked_ids(mask: Tensor | None, y: Any, targets: Mapping[str, Targets]) -> Any:
    """A batch's targets for losses by name and metrics, which leave out the class id -100.

    Parameters
    ----------
    mask : Tensor or None
    y : Tensor, dict or tuple of them
    targets : dict of str to Targets
        All, in their order.

    Returns
    -------
    Tensor, dict or tuple of them
        With that id where the mask leaves out a pixel whose target is a class id.
    """
    if mask is None or y is None:
        return y
    names: Collection[str] = {name for name, each in targets.items() if each.kind == "class"}

    def put(name: str, each: Tensor) -> Tensor:
        if name not in names or not hold_the_same(each.shape, mask.shape):
            return each
        return where(mask.reshape(each.shape), each, IGNORED)

    if isinstance(y, Mapping):
        return {name: put(name, each) for name, each in y.items()}
    if isinstance(y, tuple):
        return tuple(put(name, each) for name, each in zip(targets, y, strict=True))
    return put("", y)


def refuse_functions(needs: Iterable[Collection[str]]) -> None:
    """Refuses functions as metrics of targets of pixels beside a mask: they get those of all.

    Parameters
    ----------
    needs : iterable of collection
        What the functions of each such target are given.

    Raises
    ------
    ConfigError
    """
    if any(map(len, needs)):
        raise ConfigError(
            "metrics: functions get the targets of all pixels, got x['mask'], which leaves some "
            "out; use metrics by name"
        )
