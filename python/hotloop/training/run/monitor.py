"""The monitored value: which epoch is best, when to stop early, when the plateau's rate falls.

It knows values alone, of epochs and of validations within one; what follows for weights and rates
is for the loop to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from hotloop.base.suggest import closest, did_you_mean
from hotloop.errors import ConfigError
from hotloop.training.config import TrainingConfig
from hotloop.training.config.schedule import PlateauState
from hotloop.training.scoring.suggestions import find_metric

__all__ = ["Monitor", "Verdict"]


class Verdict(NamedTuple):
    """What an epoch's values mean for the run.

    Attributes
    ----------
    is_best : bool
        Whether no epoch was better.
    is_last : bool
        Whether early stopping ends training.
    factor : float or None
        The plateau's factor of the learning rate; None: the schedule is another.
    """

    is_best: bool = False
    is_last: bool = False
    factor: float | None = None


class Monitor:
    """Judges epochs by the value that the configuration names.

    Parameters
    ----------
    config : TrainingConfig
    known : list of str
        Names of the values that epochs have.
    directions : mapping of str to {"min", "max"}
        Whether smaller or larger is better, of those whose loss or metric says it.

    Attributes
    ----------
    name : str
        Of the value that decides.
    best : float or None
        Its best so far.
    best_epoch : int or float or None
        A validation within the third epoch is at 2.25.
    n_judged : int
        Rows that had the value.

    Raises
    ------
    ConfigError
        If nothing computes what is monitored, or nothing says which of its values are better.
    """

    def __init__(
        self, config: TrainingConfig, known: list[str], directions: Mapping[str, str]
    ) -> None:
        stopping = config.early_stopping
        own = stopping.monitor if stopping else None
        named = "early_stopping.monitor" if own else "monitor"
        self.name = _known_name(named, own or config.monitor, known)
        watched = config.scheduler_config.monitor or config.monitor
        field = "scheduler.monitor" if watched != config.monitor else "monitor"
        self._plateau_name = _known_name(field, watched, known)
        is_plateau = config.scheduler_config.name == "plateau"
        self._plateau = PlateauState.from_config(config, directions) if is_plateau else None
        mode = stopping.mode if stopping else None
        self._mode = config.monitor_mode(self.name, mode, directions, named)
        self._min_delta = stopping.min_delta if stopping else 0.0
        self._patience = stopping.patience if stopping else None
        self._bad_rounds = 0
        self.best: float | None = None
        self.best_epoch: int | float | None = None
        self.n_judged = 0

    def judge(self, epoch: int | float, row: Mapping[str, float]) -> Verdict:
        """The verdict on an epoch, by its values; without validation it says nothing of the best.

        Parameters
        ----------
        epoch : int or float
            Its number, from 1; how many were trained, of a validation within one.
        row : dict of str to float
        """
        factor = None
        if self._plateau is not None and self._plateau_name in row:
            factor = self._plateau.update(row[self._plateau_name])
        if self.name not in row:
            return Verdict(factor=factor)
        value = row[self.name]
        self.n_judged += 1
        if self._is_better(value):
            self.best, self.best_epoch, self._bad_rounds = value, epoch, 0
            return Verdict(is_best=True, factor=factor)
        self._bad_rounds += 1
        return Verdict(is_last=self.is_over, factor=factor)

    def begin_again(self) -> None:
        """Forgets what was best: from now on epochs have weights of another kind."""
        self.best, self.best_epoch, self._bad_rounds = None, None, 0

    @property
    def is_over(self) -> bool:
        """Whether early stopping ends training."""
        return self._patience is not None and self._bad_rounds >= self._patience

    @property
    def larger_is_better(self) -> bool:
        """Of the value that decides."""
        return self._mode == "max"

    def state_dict(self) -> dict[str, Any]:
        """What it has learned of the epochs so far, as plain values."""
        plateau = self._plateau.state_dict() if self._plateau is not None else None
        return {
            "name": self.name,
            "mode": self._mode,
            "best": self.best,
            "best_epoch": self.best_epoch,
            "bad_rounds": self._bad_rounds,
            "n_judged": self.n_judged,
            "plateau": plateau,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state; where another value decides now, its best is not known."""
        if self._plateau is not None and state["plateau"] is not None:
            self._plateau.load_state_dict(state["plateau"])
        if (state["name"], state["mode"]) != (self.name, self._mode):
            return
        self.best, self.best_epoch = state["best"], state["best_epoch"]
        self._bad_rounds, self.n_judged = state["bad_rounds"], state["n_judged"]

    def _is_better(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        gain = self.best - value if self._mode == "min" else value - self.best
        return gain > self._min_delta


def _known_name(field: str, name: str, known: list[str]) -> str:
    """The name, or "loss" for "val_loss" without validation; refuses an unknown name."""
    if name in known:
        return name
    if name == "val_loss" and not any(other.startswith("val_") for other in known):
        return "loss"
    is_validated = any(other.startswith("val_") for other in known)
    bare = name.removeprefix("val_")
    found = find_metric(bare)
    if f"val_{name}" in known:
        fix = f"; did you mean 'val_{name}'?"
    elif name != bare and not is_validated:
        fix = "; there is no validation data: write val=0.2 where the data is made"
    elif found is None or not is_validated or (closest(name, known) and not found.is_certain):
        fix = did_you_mean(name, known)
    elif f"val_{found.name}" in known:
        fix = f"; did you mean 'val_{found.name}'?"
    else:
        fix = f"; add metrics=[{found.written}]"
        fix += "" if name == f"val_{found.name}" else f" and monitor 'val_{found.name}'"
    raise ConfigError(f"{field}: must be one of {', '.join(known)}, got {name!r}{fix}")
