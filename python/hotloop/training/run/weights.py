"""The weights of a run beside those that are trained: their moving average, and the best."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from hotloop.nn.layout import Slot
from hotloop.training.config import TrainingConfig
from hotloop.training.plans.runtime import Runtime

__all__ = ["Weights"]


class Weights:
    """Keeps, swaps and restores weights in the device's memory.

    Parameters
    ----------
    runtime : Runtime
    config : TrainingConfig
        Its ``ema`` and ``restore_best``.
    """

    def __init__(self, runtime: Runtime, config: TrainingConfig) -> None:
        self._runtime = runtime
        self._has_average = bool(config.ema)
        self._keeps_best = config.restore_best

    def begin_average(self) -> None:
        """Lets the moving average begin with the weights in the session."""
        if self._has_average:
            self._runtime.session.write("ema", self._trained())

    def set_average(self, slots: Iterable[Slot]) -> None:
        """Lets the average of weights that were set go on from what they were set to."""
        n_flat = self._runtime.layout.n_flat if self._has_average else 0
        for slot in slots:
            if slot.store == "param" and slot.offset < n_flat:
                self._runtime.session.write("ema", slot.owner.value(), slot.offset)

    def reserve_best(self) -> None:
        """Makes room for the best weights, so that running allocates nothing."""
        if self._keeps_best:
            for name, (dtype, n) in self._runtime.layout.stores().items():
                self._runtime.session.store(f"best.{name}", dtype, n)

    def best_bytes(self) -> int:
        """Bytes of the copy of the best weights."""
        stores = self._runtime.layout.stores().values() if self._keeps_best else ()
        return sum(n * np.dtype(dtype).itemsize for dtype, n in stores)

    def _trained(self) -> Any:
        return self._runtime.session.read("param", "float64", 0, self._runtime.layout.n_flat)

    def _swap_in_average(self) -> Any:
        """Puts the moving average in the place of the weights; returns the weights, or None."""
        if not self._has_average:
            return None
        session = self._runtime.session
        trained = self._trained()
        session.write("param", session.read("ema", "float64"))
        return trained

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """In the block the weights are the moving average, where there is one."""
        trained = self._swap_in_average()
        try:
            yield
        finally:
            if trained is not None:
                self._runtime.session.write("param", trained)

    def keep_best(self) -> None:
        """Notes the weights as they are, averaged where there is an average, as the best."""
        if not self._keeps_best:
            return
        with self.averaged():
            for name in self._runtime.layout.stores():
                self._runtime.session.copy(f"best.{name}", name)

    def finish(self, *, has_best: bool) -> None:
        """Leaves the weights that the model ends with: the best, else the average, else the last.

        Parameters
        ----------
        has_best : bool
            Whether some epoch was the best.
        """
        if not (has_best and self._keeps_best):
            self._swap_in_average()
            return
        for name in self._runtime.layout.stores():
            self._runtime.session.copy(name, f"best.{name}")
