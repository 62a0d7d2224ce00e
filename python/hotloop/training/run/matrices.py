"""Confusion matrices of a run: of the last validation, and of the epoch that was the best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy.typing as npt

__all__ = ["Matrices"]

Array: TypeAlias = npt.NDArray[Any]

_LAST, _BEST = "hotloop.matrix.last.", "hotloop.matrix.best."  # in a checkpoint, before the target


class Matrices:
    """Keeps them, each (C, C), by target; "" is the name of a single one."""

    def __init__(self) -> None:
        self._last: dict[str, Array] = {}
        self._best: dict[str, Array] = {}

    def note(self, found: Mapping[str, Array]) -> None:
        """Takes those of a validation."""
        self._last = dict(found)

    def keep_best(self, *, is_validated: bool) -> None:
        """The epoch that ends is the best so far.

        Parameters
        ----------
        is_validated : bool
            Whether the last validation was its.
        """
        self._best = self._last if is_validated else {}

    def of_result(self, *, has_best: bool) -> Array | dict[str, Array] | None:
        """Those of the best epoch's weights, or of the last ones: of one target the matrix, of
        several a dict; None: there are none.
        """
        found = self._best if has_best else self._last
        return found.get("", found or None)

    def tensors(self) -> dict[str, Array]:
        """For a checkpoint, by the names that they have in it."""
        last = {_LAST + name: matrix for name, matrix in self._last.items()}
        return last | {_BEST + name: matrix for name, matrix in self._best.items()}

    def load(self, tensors: Mapping[str, Array]) -> None:
        """Goes on from those of a checkpoint."""
        for prefix, kept in ((_LAST, self._last), (_BEST, self._best)):
            own = {name: each for name, each in tensors.items() if name.startswith(prefix)}
            kept.update({name.removeprefix(prefix): each for name, each in own.items()})
