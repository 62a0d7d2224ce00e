"""Targets that are standardised: the loss compares scaled values, everything else the user's own.

What forward returns is a prediction of the scaled targets, which a network learns more easily than
numbers far from 0. It is scaled back before metrics, predictions and files see it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.data.targets import name_of_target
from hotloop.errors import ShapeError
from hotloop.graph.creation import tensor
from hotloop.graph.symbolic import Tensor
from hotloop.training.plans.fitted import Fitted
from hotloop.training.scoring.matching import key_of, pick_output

__all__ = ["TargetScale", "scale_of"]

Values = npt.NDArray[np.float32]


class TargetScale:
    """The standardisation of targets among fitted transforms; without one nothing changes.

    Parameters
    ----------
    transforms : sequence
        As :attr:`hotloop.DataModule.transforms`.
    names : sequence of str
        Of all targets, in their order; "" is the name of a single one.

    Attributes
    ----------
    fitted : dict of str to (mean, std)
        By field, arrays in the shape of a row of that target.
    """

    def __init__(self, transforms: Sequence[Any], names: Sequence[str]) -> None:
        self._names = list(names)
        self.fitted: dict[str, tuple[Values, Values]] = {
            field: of
            for _, values in transforms
            for field, of in values.items()
            if name_of_target(field) is not None
        }

    def __bool__(self) -> bool:
        return bool(self.fitted)

    def has(self, target: str) -> bool:
        """Whether a target is scaled."""
        return any(name_of_target(field) == target for field in self.fitted)

    def scale(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch with scaled targets, for the loss."""
        if not self.fitted or "y" not in batch:
            return batch
        y = batch["y"]
        for field, (mean, std) in self.fitted.items():

            def change(value: Any, mean: Values = mean, std: Values = std) -> Any:
                return (value - tensor(mean)) / tensor(std)

            name = name_of_target(field) or ""
            y = _changed(y, self._names.index(name) if isinstance(y, tuple) else name, change)
        return {**batch, "y": y}

    def check(self, output: Any) -> None:
        """Refuses what :meth:`undo` would, and adds nothing to the graph.

        Raises
        ------
        ConfigError, ShapeError
        """
        for field, of in self.fitted.items():
            name = name_of_target(field) or ""
            _in_shape_of(pick_output(output, name, self._names), of)

    def undo(self, output: Any) -> Any:
        """What forward returned, with the outputs that targets are compared with in their units.

        Parameters
        ----------
        output : Tensor or structure of them

        Raises
        ------
        ConfigError, ShapeError
            If there is no such output, or it has not the target's shape.
        """

        def change(value: Tensor, mean: Tensor, std: Tensor) -> Tensor:
            undone: Tensor = value * std + mean
            return undone

        return self._change_outputs(output, change)

    def redo(self, output: Any) -> Any:
        """The inverse of :meth:`undo`."""

        def change(value: Tensor, mean: Tensor, std: Tensor) -> Tensor:
            redone: Tensor = (value - mean) / std
            return redone

        return self._change_outputs(output, change)

    def _change_outputs(
        self, output: Any, change: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Any:
        for field, of in self.fitted.items():

            def change_one(value: Tensor, of: tuple[Values, Values] = of) -> Tensor:
                return change(value, *(tensor(each) for each in _in_shape_of(value, of)))

            name = name_of_target(field) or ""
            pick_output(output, name, self._names)  # refuses what has none
            key = key_of(output, name, self._names) if name else ""
            output = _changed(output, key, lambda value: _change_picked(value, change_one))
        return output


def scale_of(fitted: Fitted | None) -> TargetScale:
    """The standardisation of the targets that a model was trained on."""
    if fitted is None:
        return TargetScale((), ())
    kinds = fitted.target_kind
    return TargetScale(fitted.transforms, list(kinds) if isinstance(kinds, dict) else [""])


def _in_shape_of(output: Tensor, fitted: tuple[Values, Values]) -> list[Values]:
    """Mean and standard deviation in the shape of a row of the output."""
    row, wanted = tuple(output.shape[1:]), fitted[0].shape
    if [dim for dim in row if dim != 1] != [dim for dim in wanted if dim != 1]:
        dims = "".join(f", {dim}" for dim in wanted) or ","
        raise ShapeError(
            "standardize: the output that is compared with y must have the shape of the targets, "
            f"(rows{dims}), to be scaled back, got {output.shape}; write standardize='x' and scale "
            "the targets in the model"
        )
    return [values.reshape(row) for values in fitted]


def _changed(whole: Any, key: Any, change: Callable[[Any], Any]) -> Any:
    """A dict or sequence with one part changed; with the key "" all of it is that part."""
    if key == "":
        return change(whole)
    if isinstance(whole, Mapping):
        return {**whole, key: change(whole[key])}
    return type(whole)(change(part) if i == key else part for i, part in enumerate(whole))


def _change_picked(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A structure with the part changed that :func:`pick_output` takes of it."""
    if isinstance(output, (tuple, list)):
        return _changed(output, 0, lambda part: _change_picked(part, change))
    if isinstance(output, Mapping):
        key = "logits" if "logits" in output else next(iter(output))
        return _changed(output, key, lambda part: _change_picked(part, change))
    return change(output)
