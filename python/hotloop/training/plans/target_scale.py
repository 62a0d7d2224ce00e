"""Targets that are standardised: the loss compares scaled values, everything else the user's own.

What forward returns is a prediction of the scaled targets, which a network learns more easily than
numbers far from 0. It is scaled back before metrics, predictions and files see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.errors import ShapeError
from hotloop.graph.creation import tensor
from hotloop.graph.symbolic import Tensor

__all__ = ["TargetScale"]


class TargetScale:
    """The standardisation of the targets among fitted transforms; without one nothing changes.

    Parameters
    ----------
    transforms : sequence
        As :attr:`hotloop.DataModule.transforms`.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        self._fitted: Any = None
        for _, values in transforms:
            self._fitted = values.get("y", self._fitted)

    def __bool__(self) -> bool:
        return self._fitted is not None

    @property
    def arrays(self) -> tuple[npt.NDArray[np.float32], ...]:
        """Mean and standard deviation, in the shape of a row of the targets; () without them."""
        return () if self._fitted is None else tuple(self._fitted)

    def scale(self, batch: dict[str, Any]) -> dict[str, Any]:
        """A batch with scaled targets, for the loss."""
        if self._fitted is None or "y" not in batch:
            return batch
        mean, std = self._fitted
        return {**batch, "y": (batch["y"] - tensor(mean)) / tensor(std)}

    def check(self, output: Any) -> None:
        """Refuses what :meth:`undo` would."""
        if self._fitted is not None:
            _change_first(output, self._shaped)

    def undo(self, output: Any) -> Any:
        """What forward returned, with its first output in the targets' own units.

        Parameters
        ----------
        output : Tensor or structure of them
            Of a tuple the first counts, of a dict the first entry.

        Raises
        ------
        ShapeError
            If that has not the targets' shape.
        """
        return output if self._fitted is None else _change_first(output, self._undo)

    def redo(self, output: Any) -> Any:
        """The inverse of :meth:`undo`."""
        return output if self._fitted is None else _change_first(output, self._redo)

    def _undo(self, output: Tensor) -> Tensor:
        mean, std = self._shaped(output)
        scaled: Tensor = output * tensor(std) + tensor(mean)
        return scaled

    def _redo(self, output: Tensor) -> Tensor:
        mean, std = self._shaped(output)
        scaled: Tensor = (output - tensor(mean)) / tensor(std)
        return scaled

    def _shaped(self, output: Tensor) -> list[npt.NDArray[np.float32]]:
        """Mean and standard deviation in the shape of a row of the output."""
        row, wanted = tuple(output.shape[1:]), self._fitted[0].shape
        if [dim for dim in row if dim != 1] != [dim for dim in wanted if dim != 1]:
            dims = "".join(f", {dim}" for dim in wanted) or ","
            raise ShapeError(
                "standardize: the model's first output must have the shape of the targets, "
                f"(rows{dims}), to be scaled back, got {output.shape}; write standardize='x' and "
                "scale the targets in the model, or return their prediction first"
            )
        return [values.reshape(row) for values in self._fitted]


def _change_first(output: Any, change: Any) -> Any:
    """A structure with its first leaf changed."""
    if isinstance(output, Mapping) and output:
        name = next(iter(output))
        return {**output, name: _change_first(output[name], change)}
    if isinstance(output, (tuple, list)) and output:
        return type(output)((_change_first(output[0], change), *output[1:]))
    return change(output)
