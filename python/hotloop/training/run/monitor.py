"""What is monitored: which epoch is best, when to stop early, when the plateau's rate falls.

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

__all__ = ["Judge", "Monitor", "Verdict"]


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


class Judge:
    """Knows the best of one value so far, and how long it is ago.

    Parameters
    ----------
    name : str
    mode : {"min", "max"}
        Whether smaller or larger is better.
    min_delta : float
        How much better a value must be to count.

    Attributes
    ----------
    best : float or None
    best_epoch : int or float or None
        A validation within the third epoch is at 2.25.
    n_judged, n_bad : int
        Values so far, and those since the best one.
    """

    def __init__(self, name: str, mode: str, min_delta: float = 0.0) -> None:
        self.name, self.mode, self._min_delta = name, mode, min_delta
        self.begin_again()

    def begin_again(self) -> None:
        """Forgets all values."""
        self.best: float | None = None
        self.best_epoch: int | float | None = None
        self.n_judged = self.n_bad = 0

    def judge(self, epoch: int | float, value: float) -> bool:
        """Whether no value was better than this one of an epoch; what is not finite is bad."""
        self.n_judged += 1
        is_best = self._is_better(value)
        if is_best:
            self.best, self.best_epoch = value, epoch
        self.n_bad = 0 if is_best else self.n_bad + 1
        return is_best

    def _is_better(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        gain = self.best - value if self.mode == "min" else value - self.best
        return gain > self._min_delta

    @property
    def is_in_vain(self) -> bool:
        """Whether there were values, and none was finite."""
        return self.n_judged > 0 and self.best is None

    def state_dict(self) -> dict[str, Any]:
        """What it has learned so far, as plain values."""
        counts = {"n_judged": self.n_judged, "n_bad": self.n_bad}
        own = {"name": self.name, "mode": self.mode}
        return {**own, "best": self.best, "best_epoch": self.best_epoch, **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Goes on from a state; False: it is of another value, and this one's best is not known."""
        if (state["name"], state["mode"]) != (self.name, self.mode):
            return False
        self.best, self.best_epoch = state["best"], state["best_epoch"]
        self.n_judged, self.n_bad = state["n_judged"], state["n_bad"]
        return True


class Monitor:
    """Judges epochs by the values that the configuration names, each by its own direction.

    ``monitor`` alone says which epoch is best. Early stopping and the plateau may watch other
    values: what is bad for one of them says nothing of the others. Early stopping counts by itself
    even where it watches the same value, for ``min_delta`` is its alone.

    Parameters
    ----------
    config : TrainingConfig
    known : list of str
        Names of the values that epochs have.
    directions : mapping of str to {"min", "max"}
        Whether smaller or larger is better, of those whose loss or metric says it.

    Attributes
    ----------
    names : list of str
        Of the values that are watched.

    Raises
    ------
    ConfigError
        If nothing computes what is monitored, nothing says which of its values are better, or two
        settings say the opposite of one value.
    """

    def __init__(
        self, config: TrainingConfig, known: list[str], directions: Mapping[str, str]
    ) -> None:
        stopping, scheduler = config.early_stopping, config.scheduler_config
        watched: dict[str, tuple[str, str | None]] = {"monitor": (config.monitored, config.mode)}
        if stopping is not None:
            watched["early_stopping"] = (stopping.monitor or config.monitored, stopping.mode)
        if scheduler.name == "plateau":
            watched["scheduler"] = (scheduler.monitor or config.monitored, scheduler.mode)
        names, modes = _resolve(config, watched, known, directions)
        self.names = list(dict.fromkeys(names.values()))
        self._best = Judge(names["monitor"], modes["monitor"])
        self._stopping: Judge | None = None
        self._patience = 0
        if stopping is not None:
            name, mode = names["early_stopping"], modes["early_stopping"]
            self._stopping = Judge(name, mode, stopping.min_delta)
            self._patience = stopping.patience
        self._plateau: PlateauState | None = None
        if "scheduler" in names:
            self._plateau_name = names["scheduler"]
            self._plateau = PlateauState.from_config(config, modes["scheduler"])

    @property
    def name(self) -> str:
        """Of the value that says which epoch is best."""
        return self._best.name

    @property
    def best(self) -> float | None:
        """Its best so far."""
        return self._best.best

    @property
    def best_epoch(self) -> int | float | None:
        """The epoch that had it."""
        return self._best.best_epoch

    @property
    def larger_is_better(self) -> bool:
        """Of that value."""
        return self._best.mode == "max"

    @property
    def in_vain(self) -> str:
        """Which watched values were finite at no epoch, and what follows; "": there are none."""
        follows: dict[str, list[str]] = {}
        if self._best.is_in_vain:
            follows[self.name] = ["none is known to be the best"]
        if self._stopping is not None and self._stopping.is_in_vain:
            of_stopping = "early stopping takes each for a bad one"
            follows.setdefault(self._stopping.name, []).append(of_stopping)
        return "; ".join(
            f"{name}, which is monitored, was finite at no epoch, so that {', and '.join(what)}"
            for name, what in follows.items()
        )

    def judge(self, epoch: int | float, row: Mapping[str, float]) -> Verdict:
        """The verdict on an epoch, by its values; of a value that it lacks it says nothing.

        Parameters
        ----------
        epoch : int or float
            Its number, from 1; how many were trained, of a validation within one.
        row : dict of str to float
        """
        factor, is_best, is_last = None, False, False
        if self._plateau is not None and self._plateau_name in row:
            factor = self._plateau.update(row[self._plateau_name])
        if self.name in row:
            is_best = self._best.judge(epoch, row[self.name])
        if self._stopping is not None and self._stopping.name in row:
            self._stopping.judge(epoch, row[self._stopping.name])
            is_last = self.is_over
        return Verdict(is_best=is_best, is_last=is_last, factor=factor)

    def begin_again(self) -> None:
        """Forgets what was best: from now on epochs have weights of another kind."""
        self._best.begin_again()
        if self._stopping is not None:
            self._stopping.begin_again()

    @property
    def is_over(self) -> bool:
        """Whether early stopping ends training."""
        return self._stopping is not None and self._stopping.n_bad >= self._patience

    def state_dict(self) -> dict[str, Any]:
        """What it has learned of the epochs so far, as plain values."""
        plateau = None
        if self._plateau is not None:
            own = {"name": self._plateau_name, "mode": self._plateau.mode}
            plateau = {**own, **self._plateau.state_dict()}
        stopping = self._stopping.state_dict() if self._stopping is not None else None
        return {"best": self._best.state_dict(), "stopping": stopping, "plateau": plateau}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state.

        Where another value is watched now, its best is not known, and its bad epochs are counted
        from here. Early stopping that the run did not have goes on from what is known of the best.
        """
        self._best.load_state_dict(state["best"])
        if self._stopping is not None:
            then = state["stopping"]
            if then is None or not self._stopping.load_state_dict(then):
                self._stopping.load_state_dict(state["best"])
        plateau = state["plateau"]
        if self._plateau is not None and plateau is not None:
            is_same = (plateau["name"], plateau["mode"]) == (self._plateau_name, self._plateau.mode)
            anew = {} if is_same else {"best": None, "bad_updates": 0}
            self._plateau.load_state_dict({**plateau, **anew})


def _resolve(
    config: TrainingConfig,
    watched: Mapping[str, tuple[str, str | None]],
    known: list[str],
    directions: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, str]]:
    """Names and directions of what is watched, by the setting that watches it.

    The direction that one setting gives to a value is that of the others which watch the same one
    and give none; the plateau's moves the rate alone.
    """
    names: dict[str, str] = {}
    modes: dict[str, str] = {}
    said: dict[str, tuple[str, str]] = {}  # by name: where, and which
    fields: dict[str, str] = {}
    stopping = config.early_stopping
    is_given = config.monitor is not None or stopping is None or stopping.monitor is None
    of_all = "" if is_given else "early_stopping."
    for part, (name, mode) in watched.items():
        fields[part] = f"{of_all}monitor" if name == config.monitored else f"{part}.monitor"
        names[part] = name = _known_name(fields[part], name, known)
        if mode not in ("min", "max"):
            continue
        modes[part] = mode
        place = "mode" if part == "monitor" else f"{part}.mode"
        there, then = said.setdefault(name, (place, mode))
        if then != mode:
            raise ConfigError(
                f"{place}: must be {then!r}, as {there} is, since both are of {name}, got "
                f"{mode!r}; keep one of them"
            )
    for part, name in names.items():
        if part not in modes:
            there, mode = said.get(name, ("", "auto"))
            mode = "auto" if there == "scheduler.mode" else mode
            modes[part] = config.monitor_mode(name, mode, directions, fields[part])
    return names, modes


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
