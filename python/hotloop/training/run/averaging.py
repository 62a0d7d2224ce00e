"""Stochastic weight averaging: when a run's averaged epochs begin, their rate, and the average.

At the end of each of these epochs the weights join an average of equal parts, and with it in their
place the running statistics of batch norms are computed anew, by a pass over the training rows.
Both are kept beside what is trained (``Weights``), so that validation, callbacks, checkpoints and
the model at the end have them at no further cost, whenever training ends. No step does more than
without. Rejected: statistics at the end alone, as in torch's recipes. What is validated, saved or
left by Ctrl-C before would have those of other weights, and score badly.

When the epochs begin is decided at the beginning of each, once for all: from then on the rate is a
function of the step and the rate at which they began, so that a run that goes on has the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.training.config.parts import SWAConfig
from hotloop.training.config.schedule import swa_rates
from hotloop.training.plans.runtime import SLICE_SECONDS

if TYPE_CHECKING:
    from hotloop.training.run.planner import Planner

__all__ = ["Averaging"]


class Averaging:
    """The averaged epochs of one run.

    Parameters
    ----------
    planner : Planner
        After ``prepare``.

    Attributes
    ----------
    first : int
        The first epoch whose weights are in the average; 0: there is none yet.
    seconds : float
        That averages and their statistics took.
    """

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        swa = planner.config.swa
        self._swa = swa if isinstance(swa, SWAConfig) else None
        self._begin: int | None = None
        self._rate = 0.0
        self._last = 0  # epoch in the average
        self.first = 0
        self.seconds = 0.0

    @property
    def is_on(self) -> bool:
        """Whether such epochs have begun."""
        return self._begin is not None

    def is_due(self, epoch: int, steps: int, share: float) -> bool:
        """Whether such epochs begin with this one.

        Parameters
        ----------
        epoch : int
            From 1.
        steps : int
            Optimizer steps before it.
        share : float
            Of ``max_time``, that is used; 0 without it.
        """
        if self._swa is None or self.is_on:
            return False
        start, counts = self._swa.start, self._planner.counts
        if isinstance(start, int):
            return epoch >= start
        total: float = counts.total
        if steps and share > 0:
            total = min(total, steps / share)
        return epoch > int(start * total / counts.per_epoch + 1e-9)  # 0.29 * 100 is 28.99...

    def begin(self, step: int, rate: float) -> None:
        """Begins with this optimizer step, at which the schedule has this rate."""
        self._begin, self._rate = step, rate

    def set_rates(self) -> None:
        """Makes the rates those of averaged epochs."""
        assert self._begin is not None  # they have begun
        config, per_epoch = self._planner.config, self._planner.counts.per_epoch
        self._planner.runtime.follow_rates(swa_rates(config, self._begin, self._rate, per_epoch))

    def take(self, epoch: int, is_over: Callable[[], bool]) -> bool:
        """Adds the weights at the end of an epoch to the average.

        Parameters
        ----------
        epoch : int
            From 1. One that is in the average is left out.
        is_over : callable
            Whether to leave off; asked every 50 ms.

        Returns
        -------
        bool
            False: it was left off, and nothing has changed.
        """
        if not self.is_on or epoch == self._last:
            return True
        began = time.perf_counter()
        is_taken = self._planner.weights.add_to_average(lambda: self._collect(is_over))
        self.seconds += time.perf_counter() - began
        if is_taken:
            self._last, self.first = epoch, self.first or epoch
        return is_taken

    def _collect(self, is_over: Callable[[], bool]) -> bool:
        """Computes running statistics with the weights that are there; False: it was left off."""
        session = self._planner.runtime.session
        for slot in map(self._planner.runtime.layout.slot_of, self._planner.statistics):
            session.write(slot.store, np.zeros(slot.size), slot.offset)
        for plan, count, feed, _ in self._planner.statistics_plans:
            feed.seek(0)
            done = 0
            while done < count and not is_over():
                done += plan.run(count - done, SLICE_SECONDS)[1]
            plan.abandon()
        return not is_over()

    def state_dict(self) -> dict[str, Any]:
        """Where it is, as plain values."""
        n = self._planner.weights.n_averaged
        own = {"begin": self._begin, "rate": self._rate, "first": self.first, "last": self._last}
        return {**own, "n_averaged": n}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state whose arrays the session has."""
        if self._swa is None or state["begin"] is None:
            return
        self._begin, self._rate = state["begin"], state["rate"]
        self.first, self._last = state["first"], state["last"]
        self._planner.weights.n_averaged = state["n_averaged"]
