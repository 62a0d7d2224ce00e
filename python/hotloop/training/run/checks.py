"""When validation runs within an epoch: after every so many of its batches.

As in Lightning an interval counts batches, from the beginning of each epoch, and a validation at
the end of one belongs to it only where the interval ends there. Between two batches of an optimizer
step nothing can be validated: then it follows that step.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hotloop.base.messages import counted
from hotloop.base.rules import reject

if TYPE_CHECKING:
    from hotloop.training.config import TrainingConfig
    from hotloop.training.run.position import Position

__all__ = ["ValidationTimes"]


class ValidationTimes:
    """The validations of one run's epochs.

    Parameters
    ----------
    config : TrainingConfig
    n_batches : int
        Micro-batches of an epoch.
    per_step : int
        Micro-batches of an optimizer step.

    Attributes
    ----------
    per_epoch : int
        Rows of the history that an epoch has.

    Raises
    ------
    ConfigError
        If the interval is longer than an epoch.
    """

    def __init__(self, config: TrainingConfig, n_batches: int, per_step: int) -> None:
        self._n_batches, self._per_step = n_batches, per_step
        self._every_epoch = config.check_val_every_n_epoch
        parts = per_step // config.accumulate_grad_batches  # of a batch, where memory asks for it
        self._parts = parts
        whole = -(-n_batches // parts)
        interval = config.val_check_interval
        if isinstance(interval, int) and interval > whole:
            reject(
                "val_check_interval",
                f"must be at most the {counted(whole, 'batch', 'batches')} of an epoch",
                interval,
                "to validate more rarely, write check_val_every_n_epoch",
            )
        if isinstance(interval, float):
            interval = max(1, int(interval * whole + 1e-9))  # 0.29 of 100 is 28.999999999999996
        self._interval = None if interval is None else interval * parts
        within = 0 if self._interval is None else (n_batches - 1) // self._interval
        self.per_epoch = 1 + within

    def _number(self, batches: int) -> int:
        """Validations of this epoch that are due up to so many of its batches."""
        return 0 if self._interval is None else batches // self._interval

    def _checked(self, at: Position) -> int:
        """The same up to the last one: by its place, which another interval leaves where it was."""
        return self._number(at.checked * self._parts)

    def is_due(self, at: Position, epoch: int, more: int = 0) -> bool:
        """Whether to validate within the epoch, before the next step.

        Parameters
        ----------
        at : Position
        epoch : int
            That is being trained, from 1.
        more : int
            Batches behind the position.
        """
        batches = at.batches + more
        is_within = batches < self._n_batches and epoch % self._every_epoch == 0
        return is_within and self._number(batches) > self._checked(at)

    def is_due_at_end(self, at: Position, epoch: int) -> bool:
        """Whether to validate at the end of the epoch."""
        if epoch % self._every_epoch:
            return False
        return self._interval is None or self._number(at.batches) > self._checked(at)

    def leave_out_within(self) -> None:
        """Validates at the ends of epochs alone from now on."""
        self._interval = None

    def note(self, at: Position) -> None:
        """A validation has ended there."""
        at.checked = at.batches // self._parts

    def steps_until_due(self, at: Position, epoch: int) -> int:
        """Steps that may be run before the next validation within the epoch."""
        if self._interval is None or epoch % self._every_epoch:
            return sys.maxsize
        left = (self._number(at.batches) + 1) * self._interval - at.batches
        return -(-left // self._per_step)

    def share(self, at: Position) -> float:
        """How much of the epoch has been trained."""
        return at.batches / self._n_batches
