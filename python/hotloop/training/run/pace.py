"""The learning rate of a training that ``max_time`` ends: the schedule by the share of time used.

Until the share of time is ahead of the share of steps, the table by steps holds, so that a limit of
time that is never met changes nothing, to the last bit. From then on the schedule is that of as
many steps as the pace so far leads to: ``steps / share``. What the schedule says in shares of the
training (warmup="5%", the length of a cosine) moves with the time; what it says in steps or epochs
stays. A run that goes on with another limit has the schedule of that one from there on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hotloop.base.messages import counted, warn
from hotloop.base.rules import warmup_amount
from hotloop.errors import CheckpointWarning, ModelWarning
from hotloop.training.config import TrainingConfig
from hotloop.training.config.schedule import StepCounts, lr_multipliers

__all__ = ["Pace", "warn_of_warmup", "warn_of_what_is_left"]

_RESOLUTION = 1e-3  # of max_time: each change of the rate waits for the device once


class Pace:
    """Follows one training.

    Parameters
    ----------
    config : TrainingConfig
    counts : StepCounts
        By max_epochs and max_steps.

    Attributes
    ----------
    is_by_time : bool
        Whether time was ahead once.
    """

    def __init__(self, config: TrainingConfig, counts: StepCounts) -> None:
        self._config = config
        self._counts = counts
        self._due = 0.0
        self.is_by_time = False

    def follow(self, steps: int, seconds: float) -> float | None:
        """The multiplier of the learning rate from now on.

        Parameters
        ----------
        steps : int
            Optimizer steps so far.
        seconds : float
            Time of training so far.

        Returns
        -------
        float or None
            None: what holds goes on to hold.
        """
        if self._config.max_time is None or not steps:
            return None
        share = seconds / self._config.max_time
        if share < self._due:
            return None
        self._due = share + _RESOLUTION
        total = max(steps + 1, round(steps / share)) if share > 0 else self._counts.total
        if total < self._counts.total:
            self.is_by_time = True
        if not self.is_by_time:
            return None
        total = min(total, self._counts.total)
        at = np.array([min(steps, total - 1)])
        return float(lr_multipliers(self._config, at, total, self._counts.per_epoch)[0])

    def state_dict(self) -> dict[str, Any]:
        """What it has learned so far, as plain values."""
        most = self._config.max_time
        return {"due": self._due, "is_by_time": self.is_by_time, "max_time": most}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Goes on from a state; False: it is of another ``max_time``, whose shares mean nothing
        here, so that the rate has to be found anew.
        """
        if state.get("max_time") != self._config.max_time:
            return False
        self._due, self.is_by_time = state["due"], state["is_by_time"]
        return True


def warn_of_warmup(config: TrainingConfig, counts: StepCounts) -> None:
    """Says that the learning rate never gets to its full height, where it does not.

    Parameters
    ----------
    config : TrainingConfig
    counts : StepCounts
    """
    amount, unit = warmup_amount(config.scheduler_config.warmup or 0)
    steps = amount * (counts.per_epoch if unit == "epochs" else 1)
    if unit != "ratio" and steps > counts.total:
        warn(
            f"warmup: it has {math.ceil(steps):,} steps, and training {counts.total:,}, for all of "
            "which the learning rate rises to its full height; write a shorter one, or a share of "
            "the steps, warmup=0.1",
            ModelWarning,
        )


def warn_of_what_is_left(
    config: TrainingConfig, then: int, counts: StepCounts, epoch: int, steps: int
) -> None:
    """Says that a run which is continued has had all its epochs, where then it had more, or all
    steps of its schedule.

    Parameters
    ----------
    config : TrainingConfig
    then : int
        Its max_epochs when it began.
    counts : StepCounts
    epoch, steps : int
        How many have ended.
    """
    if epoch >= config.max_epochs < then:
        warn(
            f"resume: nothing is left to train, since {counted(epoch, 'epoch')} have run and "
            f"max_epochs is {config.max_epochs} ({then} then); write a larger one",
            CheckpointWarning,
        )
    is_by_steps = config.max_steps is None and config.max_time is None
    left = (config.max_epochs - epoch - 1) * counts.per_epoch
    is_over = steps + left > counts.total and left > 0
    if is_over and is_by_steps and config.scheduler_config.name != "constant":
        warn(
            f"resume: {steps:,} steps were taken of the {counts.total:,} of the schedule with "
            f"these batches, and more than {left:,} are left to train, the last of them with its "
            "last learning rate; write another scheduler, or lr",
            CheckpointWarning,
        )
