"""Learning-rate schedules: multipliers of the learning rate that are known in advance.

The step plan reads its learning rate from a table that is indexed by the number of optimizer steps,
so a schedule is a pure function from configuration, counts and steps to an array. The formulas are
the closed forms of ``torch.optim.lr_scheduler``. Only "plateau" depends on results; it is a small
state machine (PlateauState) whose factor the trainer multiplies in after each validation.

Definitions. ``t`` counts optimizer steps from 0. Warmup of ``w`` steps gives step ``t < w`` the
multiplier ``(t + 1) / w``: it starts above zero, since a step with rate zero would be wasted, and
step ``w - 1`` has the full rate. constant, linear, cosine and one_cycle then run over the remaining
``total - w`` steps. The others count whole epochs of training, as PyTorch users do who step them
once per epoch; a milestone at epoch 30 is epoch 30 with warmup and without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hotloop.base.rules import warmup_amount
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hotloop.training.config.config import TrainingConfig
    from hotloop.training.config.parts import SchedulerConfig, SWAConfig

    Floats = NDArray[np.float64]

__all__ = [
    "SWA_SHARE",
    "PlateauState",
    "StepCounts",
    "count_steps",
    "lr_multipliers",
    "rates",
    "swa_rates",
    "warmup_steps",
]

SWA_SHARE = 0.5  # of lr, where swa names no rate: 0.05 of 0.1 in the paper's runs on CIFAR


class StepCounts(NamedTuple):
    """How many optimizer steps an epoch and the whole training have."""

    per_epoch: int
    total: int


def count_steps(config: TrainingConfig, batches_per_epoch: int) -> StepCounts:
    """Optimizer steps per epoch and in all.

    Parameters
    ----------
    config : TrainingConfig
    batches_per_epoch : int
        Batches of one epoch, after limit_batches; the last window of accumulation may be short.

    Returns
    -------
    StepCounts
        Skipped steps make training shorter than that, and so does max_time: see lr_multipliers.
    """
    per_epoch = -(-batches_per_epoch // config.accumulate_grad_batches)
    total = per_epoch * config.max_epochs
    if config.max_steps is not None:
        total = min(total, config.max_steps)
    return StepCounts(per_epoch, total)


def warmup_steps(warmup: int | float | str, total_steps: int, steps_per_epoch: int) -> int:
    """Warmup in steps, at most all of them.

    Parameters
    ----------
    warmup : int, float or str
        Steps, a ratio of all steps (rounded up), or ``"5 epochs"``.
    total_steps, steps_per_epoch : int

    Returns
    -------
    int
    """
    amount, unit = warmup_amount(warmup)
    scale = {"steps": 1, "ratio": total_steps, "epochs": steps_per_epoch}[unit]
    return min(total_steps, math.ceil(amount * scale - 1e-9))  # 0.07 * 100 is 7.000000000000001


def lr_multipliers(
    config: TrainingConfig, steps: Any, total_steps: int, steps_per_epoch: int
) -> Floats:
    """The multiplier of the learning rate at some optimizer steps.

    Parameters
    ----------
    config : TrainingConfig
        Its ``scheduler_config`` and ``lr`` count.
    steps : array of int, shape (n,)
        Optimizer steps from 0, ascending.
    total_steps : int
        Applied steps of the whole training (>= 0). Where time ends it, those that it leaves time
        for.
    steps_per_epoch : int
        Applied steps of one epoch (>= 1).

    Returns
    -------
    ndarray of float64, shape (n,)
        The rate is ``config.lr`` times that; parameter groups move alike. For "plateau" it is the
        warmup alone, to be multiplied by PlateauState's factor.

    References
    ----------
    Loshchilov and Hutter, SGDR, ICLR 2017 (cosine, warm restarts). Smith and Topin,
    Super-Convergence, 2018 (one cycle).
    """
    import numpy as np

    if total_steps < 0 or steps_per_epoch < 1:
        raise ConfigError(
            "lr_multipliers: needs total_steps >= 0 and steps_per_epoch >= 1, got "
            f"{total_steps} and {steps_per_epoch}"
        )
    scheduler = config.scheduler_config
    ramp = warmup_steps(scheduler.warmup or 0, total_steps, steps_per_epoch)
    multipliers = np.ones(len(steps))
    n = int(np.searchsorted(steps, ramp))  # steps of the warmup
    multipliers[:n] = (steps[:n] + 1) / max(ramp, 1)
    rest = steps[n:]
    if scheduler.name in _BY_STEP:
        by_step = _BY_STEP[scheduler.name]
        multipliers[n:] = by_step(scheduler, config.lr, rest - float(ramp), total_steps - ramp)
    elif scheduler.name in _BY_EPOCH:
        epochs = rest // steps_per_epoch
        multipliers[n:] = _BY_EPOCH[scheduler.name](scheduler, config.lr, epochs)
    return multipliers


def rates(config: TrainingConfig, counts: StepCounts) -> Callable[[Any], Floats]:
    """The learning rate as a function of optimizer steps, which are an ascending array of int."""
    return lambda steps: lr_multipliers(config, steps, counts.total, counts.per_epoch) * config.lr


def swa_rates(
    config: TrainingConfig, begin: int, rate: float, steps_per_epoch: int
) -> Callable[[Any], Floats]:
    """As :func:`rates`, of the epochs whose weights ``swa`` averages.

    They are those of torch's SWALR, stepped once for each optimizer step.

    Parameters
    ----------
    config : TrainingConfig
        With ``swa``.
    begin : int
        The first of their optimizer steps.
    rate : float
        That the schedule had come to.
    steps_per_epoch : int
    """
    swa: SWAConfig = config.swa  # type: ignore[assignment]
    end = SWA_SHARE * config.lr if swa.lr is None else swa.lr
    n = swa.anneal_epochs * steps_per_epoch
    is_straight = swa.anneal_strategy == "linear"

    def rate_at(steps: Any) -> Floats:
        progress = ((steps - begin) / n if n else steps * 0.0 + 1.0).clip(0.0, 1.0)
        moved: Floats = rate + (end - rate) * progress
        return moved if is_straight else _between(rate, end, progress)

    return rate_at


def _between(high: float, low: float, progress: Floats) -> Floats:
    """Half a cosine from high (progress 0) to low (progress 1)."""
    import numpy as np

    return low + (high - low) * (1.0 + np.cos(np.pi * progress)) / 2.0


def _constant(_: SchedulerConfig, __: float, t: Floats, ___: int) -> Floats:
    return t * 0.0 + 1.0


def _linear(scheduler: SchedulerConfig, _: float, t: Floats, n: int) -> Floats:
    start, end = _set(scheduler.start_factor), _set(scheduler.end_factor)
    return start + (end - start) * t / max(n, 1)


def _cosine(scheduler: SchedulerConfig, lr: float, t: Floats, n: int) -> Floats:
    return _between(1.0, _set(scheduler.min_lr) / lr, t / max(n, 1))


def _one_cycle(scheduler: SchedulerConfig, lr: float, t: Floats, n: int) -> Floats:
    import numpy as np

    high = _set(scheduler.max_lr) / lr
    start = high / _set(scheduler.div_factor)
    low = start / _set(scheduler.final_div_factor)
    rise = _set(scheduler.pct_start) * n
    ends, levels = [rise - 1.0, n - 1.0], [start, high, low]
    if scheduler.three_phase:
        ends, levels = [rise - 1.0, 2.0 * rise - 2.0, n - 1.0], [start, high, start, low]
    table = np.empty_like(t)
    phases = np.full(len(t), len(ends) - 1)
    for phase in reversed(range(len(ends) - 1)):  # the first phase that has not ended counts
        phases[t <= ends[phase]] = phase
    for phase, end in enumerate(ends):
        here = phases == phase
        begin = ends[phase - 1] if phase else 0.0
        # a phase without length gives its end value
        progress = (t[here] - begin) / (end - begin) if end > begin else np.ones(here.sum())
        a, b = levels[phase], levels[phase + 1]
        straight = scheduler.anneal_strategy == "linear"
        table[here] = a + (b - a) * progress if straight else _between(a, b, progress)
    return table


def _step(scheduler: SchedulerConfig, _: float, epochs: Any) -> Floats:
    powers: Floats = _set(scheduler.gamma) ** (epochs // scheduler.step_size)
    return powers


def _multistep(scheduler: SchedulerConfig, _: float, epochs: Any) -> Floats:
    import numpy as np

    passed = np.searchsorted(np.array(scheduler.milestones), epochs, side="right")
    powers: Floats = _set(scheduler.gamma) ** passed
    return powers


def _exponential(scheduler: SchedulerConfig, _: float, epochs: Any) -> Floats:
    powers: Floats = _set(scheduler.gamma) ** epochs
    return powers


def _warm_restarts(scheduler: SchedulerConfig, lr: float, epochs: Any) -> Floats:
    import numpy as np

    begins, lengths = [0], [scheduler.T_0 or 1]
    last = int(epochs[-1]) if len(epochs) else 0
    while begins[-1] + lengths[-1] <= last:
        begins.append(begins[-1] + lengths[-1])
        lengths.append(lengths[-1] * (scheduler.T_mult or 1))
    cycle = np.searchsorted(np.array(begins), epochs, side="right") - 1
    progress = (epochs - np.array(begins)[cycle]) / np.array(lengths)[cycle]
    return _between(1.0, _set(scheduler.min_lr) / lr, progress)


def _set(value: float | None) -> float:
    """A setting that SchedulerConfig.resolved has filled in."""
    assert value is not None
    return value


_BY_STEP = {"constant": _constant, "linear": _linear, "cosine": _cosine, "one_cycle": _one_cycle}
_BY_EPOCH = {
    "step": _step,
    "multistep": _multistep,
    "exponential": _exponential,
    "warm_restarts": _warm_restarts,
}


class PlateauState:
    """Lowers the learning rate when a value has stopped improving (torch's ReduceLROnPlateau).

    Parameters
    ----------
    base_lr : float
        Learning rate at factor 1.
    mode : {"min", "max"}
        Whether smaller or larger is better.
    factor : float
        What the rate is multiplied by at a drop.
    patience : int
        Updates without improvement that are waited for; the next one drops.
    threshold : float
        How much better a value must be to count.
    threshold_mode : {"rel", "abs"}
        Whether threshold is relative to the best value.
    cooldown : int
        Updates after a drop that do not count as bad.
    min_lr : float
        Lowest rate.
    eps : float
        Drops of the rate that are not larger than this are left out.
    """

    def __init__(
        self,
        base_lr: float,
        *,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        self.base_lr = base_lr
        self.mode = mode
        self.drop = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.min_lr = min_lr
        self.eps = eps
        self.factor = 1.0
        self.best: float | None = None
        self.bad_updates = 0
        self.cooling = 0

    @classmethod
    def from_config(cls, config: TrainingConfig, mode: str) -> PlateauState:
        """The state at the start of a training whose scheduler is "plateau".

        Parameters
        ----------
        config : TrainingConfig
        mode : {"min", "max"}
            Whether smaller or larger is better of what it watches.
        """
        settings = config.scheduler_config.to_dict()
        named = ("factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lr")
        return cls(config.lr, mode=mode, **{name: settings[name] for name in (*named, "eps")})

    def _is_better(self, metric: float) -> bool:
        if math.isnan(metric):
            return False
        if self.best is None:
            return not math.isinf(metric) or (metric > 0) == (self.mode == "max")
        sign = -1.0 if self.mode == "min" else 1.0
        if self.threshold_mode == "rel":
            bound = self.best * (1.0 + sign * self.threshold)
        else:
            bound = self.best + sign * self.threshold
        return metric < bound if self.mode == "min" else metric > bound

    def update(self, metric: float) -> float:
        """Take the monitored value of one validation.

        Parameters
        ----------
        metric : float
            NaN counts as no improvement.

        Returns
        -------
        float
            The factor that now multiplies the schedule's table.
        """
        if self._is_better(metric):
            self.best = float(metric)
            self.bad_updates = 0
        else:
            self.bad_updates += 1
        if self.cooling > 0:
            self.cooling -= 1
            self.bad_updates = 0
        if self.bad_updates > self.patience:
            old = self.base_lr * self.factor
            new = max(old * self.drop, self.min_lr)
            if old - new > self.eps:
                self.factor = new / self.base_lr
            self.cooling = self.cooldown
            self.bad_updates = 0
        return self.factor

    def state_dict(self) -> dict[str, float | int | None]:
        """What changes over time, as numbers that JSON can hold; the settings are the config's."""
        return {
            "factor": self.factor,
            "best": self.best,
            "bad_updates": self.bad_updates,
            "cooling": self.cooling,
        }

    def load_state_dict(self, state: Mapping[str, float | int | None]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        factor, best = state["factor"], state["best"]
        self.factor = 1.0 if factor is None else float(factor)
        self.best = None if best is None else float(best)
        self.bad_updates = int(state["bad_updates"] or 0)
        self.cooling = int(state["cooling"] or 0)
