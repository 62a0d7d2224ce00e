"""How far a run has come: what is counted beside the device's control block."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["Position"]


@dataclasses.dataclass
class Position:
    """Counts of a run, over all calls of ``train`` that it was continued in.

    Attributes
    ----------
    batches, epoch_samples : int
        Of the epoch that has begun: those that were trained on.
    epoch_seconds, epoch_wait : float
        That it took before this call, and waited for batches.
    attempted, not_applied : int
        Optimizer steps that began, and of these, as far as is known, how many were skipped.
    samples : int
        Trained on, in all epochs.
    seconds : float
        Of training, before this call.
    checked : int
        Batches of the epoch, as the data has them, before its last validation within.
    plateau_factor, pace_factor : float
        Of the learning rate.
    held_lr : float or None
        The learning rate that a callback has set.
    """

    batches: int = 0
    epoch_samples: int = 0
    epoch_seconds: float = 0.0
    epoch_wait: float = 0.0
    attempted: int = 0
    not_applied: int = 0
    samples: int = 0
    seconds: float = 0.0
    checked: int = 0
    plateau_factor: float = 1.0
    pace_factor: float = 1.0
    held_lr: float | None = None

    def end_epoch(self) -> None:
        """The next epoch has not begun."""
        self.batches = self.epoch_samples = self.checked = 0
        self.epoch_seconds = self.epoch_wait = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The counts by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Position:
        """The counts of :meth:`to_dict`."""
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})
