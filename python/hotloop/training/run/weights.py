"""The weights of a run beside those that are trained: an average of them, and the best.

The moving average (``ema``) is the device's: the step moves it. That of ``swa`` is made here, and
has buffers of its own, as its batch norms have other statistics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
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
        Its ``ema``, ``swa`` and ``restore_best``.

    Attributes
    ----------
    n_averaged : int
        Of how many epochs ``swa`` has the average; 0: there is none yet.
    """

    def __init__(self, runtime: Runtime, config: TrainingConfig) -> None:
        self._runtime = runtime
        self._has_average = bool(config.ema)
        self._has_swa = bool(config.swa)
        self._keeps_best = config.restore_best
        self.n_averaged = 0

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

    def reserve(self) -> None:
        """Makes room for the best weights and ``swa``'s, so that running allocates nothing."""
        for copy in self._copies():
            for name, (dtype, n) in self._runtime.layout.stores().items():
                self._runtime.session.store(f"{copy}.{name}", dtype, n)

    def _copies(self) -> list[str]:
        return ["best"] * self._keeps_best + ["swa"] * self._has_swa

    @property
    def n_copies(self) -> int:
        """Copies of all weights and buffers that lie beside them."""
        return len(self._copies())

    def copies_bytes(self) -> int:
        """Bytes of these copies."""
        stores = self._runtime.layout.stores().values()
        return self.n_copies * sum(n * np.dtype(dtype).itemsize for dtype, n in stores)

    def add_to_average(self, collect: Callable[[], bool]) -> bool:
        """Adds the weights to the average of ``swa``.

        Parameters
        ----------
        collect : callable
            Computes what depends on the average, which then has the weights' place; False: it was
            left off.

        Returns
        -------
        bool
            Whether it was done; else nothing has changed.
        """
        session, n = self._runtime.session, self.n_averaged
        trained, mean = self._all_trained(), session.read("param", "float64")
        if n:  # of frozen ones too, which may have been trained in an earlier epoch
            before = session.read("swa.param", "float64")
            mean = before + (mean - before) / (n + 1)
        session.write("param", mean)
        try:
            if not collect():
                return False
            for name in self._runtime.layout.stores():
                session.copy(f"swa.{name}", name)
            self.n_averaged = n + 1
        finally:
            self._put(trained)
        return True

    def _all_trained(self) -> dict[str, Any]:
        """All weights and buffers, as they lie on the device."""
        stores, wide = self._runtime.layout.stores().items(), self._runtime.device.float_dtype
        return {
            name: self._runtime.session.read(name, wide if dtype == "float32" else dtype)
            for name, (dtype, _) in stores
        }

    def _put(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self._runtime.session.write(name, value)

    def _trained(self) -> Any:
        return self._runtime.session.read("param", "float64", 0, self._runtime.layout.n_flat)

    def _swap_in_average(self) -> dict[str, Any]:
        """Puts the average in the place of the weights; returns what was there."""
        session = self._runtime.session
        if self.n_averaged:
            trained = self._all_trained()
            for name in trained:
                session.copy(name, f"swa.{name}")
            return trained
        if not self._has_average:
            return {}
        trained = {"param": self._trained()}
        session.write("param", session.read("ema", "float64"))
        return trained

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """In the block the weights are their average, where there is one."""
        trained = self._swap_in_average()
        try:
            yield
        finally:
            self._put(trained)

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
