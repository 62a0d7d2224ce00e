"""Schedules, against the formulas of torch.optim.lr_scheduler's documentation written step by step.

The oracles below are loops over single steps, most of them in the recursive form of the
documentation, while the code under test has closed forms over arrays.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hotloop.errors import ConfigError
from hotloop.training.config import SchedulerConfig, TrainingConfig
from hotloop.training.config.schedule import (
    PlateauState,
    StepCounts,
    count_steps,
    lr_multipliers,
    warmup_steps,
)
from hotloop.training.run.pace import Pace
from hypothesis import example, given
from hypothesis import strategies as st

LR = 0.1


def table(total: int, per_epoch: int = 1, warmup: Any = 0, **scheduler: Any) -> list[float]:
    config = TrainingConfig(lr=LR, warmup=warmup, scheduler=SchedulerConfig(**scheduler))
    found = lr_multipliers(config, np.arange(total), total, per_epoch)
    assert found.dtype == np.float64
    assert found.shape == (total,)
    assert np.isfinite(found).all()
    return found.tolist()


def test_constant() -> None:
    assert table(4, name="constant") == [1.0] * 4


@pytest.mark.parametrize("total", [1, 2, 7, 100])
def test_cosine(total: int) -> None:
    low = 0.002
    expected = [
        (low + (LR - low) * (1 + math.cos(math.pi * t / total)) / 2) / LR for t in range(total)
    ]
    assert table(total, name="cosine", min_lr=low) == pytest.approx(expected, abs=1e-14)


def test_linear_decays_to_zero_by_default_and_takes_factors() -> None:
    assert table(4, name="linear") == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert table(3, name="linear", start_factor=0.4, end_factor=1.0) == pytest.approx(
        [0.4, 0.6, 0.8]
    )


def one_cycle_oracle(
    n: int, high: float, *, pct_start: float = 0.3, three_phase: bool = False, cos: bool = True
) -> list[float]:
    start, found = high / 25, []
    low = start / 1e4
    phases = [(pct_start * n - 1, start, high), (n - 1, high, low)]
    if three_phase:
        phases = [
            (pct_start * n - 1, start, high),
            (2 * pct_start * n - 2, high, start),
            (n - 1, start, low),
        ]
    for step in range(n):
        begin = 0.0
        for i, (end, a, b) in enumerate(phases):
            if step <= end or i == len(phases) - 1:
                pct = (step - begin) / (end - begin)
                found.append(
                    b + (a - b) / 2 * (math.cos(math.pi * pct) + 1) if cos else a + (b - a) * pct
                )
                break
            begin = end
    return found


@pytest.mark.parametrize("n", [2, 7, 100, 333])
@pytest.mark.parametrize("three_phase", [False, True])
@pytest.mark.parametrize("anneal", ["cos", "linear"])
@pytest.mark.parametrize("pct_start", [0.3, 0.45, 0.8])
def test_one_cycle(n: int, three_phase: bool, anneal: str, pct_start: float) -> None:
    expected = one_cycle_oracle(
        n, 2.0, pct_start=pct_start, three_phase=three_phase, cos=anneal == "cos"
    )
    found = table(
        n,
        name="one_cycle",
        max_lr=2 * LR,
        three_phase=three_phase,
        anneal_strategy=anneal,
        pct_start=pct_start,
    )
    assert found == pytest.approx(expected, abs=1e-13)


def test_one_cycle_of_degenerate_length_is_finite() -> None:
    for n in range(8):
        for pct_start in (0.0, 0.5, 1.0):
            table(n, name="one_cycle", pct_start=pct_start)


def test_one_cycle_peaks_at_lr_and_ignores_the_default_warmup() -> None:
    found = lr_multipliers(TrainingConfig(scheduler="onecycle"), np.arange(1000), 1000, 100)
    assert found[0] == pytest.approx(1 / 25)
    assert found.max() == pytest.approx(1.0)
    assert int(found.argmax()) == 299


@pytest.mark.parametrize("per_epoch", [1, 3])
def test_step_multistep_exponential(per_epoch: int) -> None:
    epochs = 40
    step, multi, expo = [1.0], [1.0], [1.0]
    milestones = [3, 10, 10, 25]
    for epoch in range(1, epochs):
        step.append(step[-1] * (0.3 if epoch % 7 == 0 else 1.0))
        multi.append(multi[-1] * 0.3 ** milestones.count(epoch))
        expo.append(expo[-1] * 0.9)
    total = epochs * per_epoch
    cases = [
        (step, {"name": "step", "step_size": 7, "gamma": 0.3}),
        (multi, {"name": "multistep", "milestones": milestones, "gamma": 0.3}),
        (expo, {"name": "exponential", "gamma": 0.9}),
    ]
    for per_epoch_values, settings in cases:
        expected = [v for v in per_epoch_values for _ in range(per_epoch)]
        assert table(total, per_epoch, **settings) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("epochs", [36, 60, 61])  # 36 and 61 end with a restart
@pytest.mark.parametrize("mult", [1, 2, 3])
@pytest.mark.parametrize("per_epoch", [1, 4])
def test_warm_restarts(mult: int, per_epoch: int, epochs: int) -> None:
    low, expected, current, length = 0.01, [], 0, 5
    for _ in range(epochs):
        value = low + (LR - low) * (1 + math.cos(math.pi * current / length)) / 2
        expected += [value / LR] * per_epoch
        current += 1
        if current == length:
            current, length = 0, length * mult
    total = epochs * per_epoch
    found = table(total, per_epoch, name="warm_restarts", T_0=5, T_mult=mult, min_lr=low)
    assert found == pytest.approx(expected, abs=1e-13)


def test_plateau_table_is_warmup_only() -> None:
    assert table(4, name="plateau", warmup=2) == [0.5, 1.0, 1.0, 1.0]


def test_warmup_then_the_schedule_over_what_is_left() -> None:
    found = table(10, name="cosine", warmup=4)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert found[4:] == pytest.approx([(1 + math.cos(math.pi * s / 6)) / 2 for s in range(6)])


def test_milestones_are_epochs_of_training_with_warmup_too() -> None:
    plain = table(40, 4, name="multistep", milestones=[5])
    warm = table(40, 4, name="multistep", milestones=[5], warmup=6)
    assert warm[:6] == pytest.approx([(t + 1) / 6 for t in range(6)])
    assert warm[6:] == plain[6:]


@pytest.mark.parametrize(
    ("warmup", "total", "per_epoch", "steps"),
    [
        (0, 100, 10, 0),
        (7, 100, 10, 7),
        (700, 100, 10, 100),
        (0.05, 100, 10, 5),
        (0.07, 100, 10, 7),
        (0.05, 10, 10, 1),
        (0.05, 0, 10, 0),
        ("5 epochs", 1000, 10, 50),
        ("0.5 epochs", 1000, 10, 5),
    ],
)
def test_warmup_steps(warmup: Any, total: int, per_epoch: int, steps: int) -> None:
    assert warmup_steps(warmup, total, per_epoch) == steps


@given(
    total=st.integers(0, 300),
    per_epoch=st.integers(1, 50),
    warmup=st.one_of(st.integers(0, 400), st.floats(0, 0.99)),
    scheduler=st.sampled_from(
        [
            {"name": "constant"},
            {"name": "linear"},
            {"name": "cosine"},
            {"name": "step", "step_size": 2},
            {"name": "multistep", "milestones": [1, 4]},
            {"name": "exponential", "gamma": 0.5},
            {"name": "plateau"},
            {"name": "warm_restarts", "T_0": 2, "T_mult": 2},
        ]
    ),
)
def test_every_table_stays_within_0_and_1(
    total: int, per_epoch: int, warmup: Any, scheduler: dict[str, Any]
) -> None:
    found = np.array(table(total, per_epoch, warmup, **scheduler))
    assert ((found >= 0.0) & (found <= 1.0)).all()
    if total:
        assert found[0] > 0.0


def test_wrong_counts() -> None:
    with pytest.raises(ConfigError, match="steps_per_epoch >= 1, got 5 and 0"):
        lr_multipliers(TrainingConfig(), np.arange(5), 5, 0)


def test_count_steps() -> None:
    assert count_steps(TrainingConfig(max_epochs=3, accumulate_grad_batches=4), 10) == (3, 9)
    assert count_steps(TrainingConfig(max_epochs=3, max_steps=4), 10) == (10, 4)
    assert count_steps(TrainingConfig(max_epochs=0), 10) == (10, 0)


class PlateauOracle:
    """torch's ReduceLROnPlateau for one parameter group, as its documentation states it."""

    def __init__(self, lr: float, **s: Any) -> None:
        self.lr, self.s = lr, s
        self.best = math.inf if s["mode"] == "min" else -math.inf
        self.bad = self.cool = 0

    def step(self, value: float) -> float:
        s, t = self.s, self.s["threshold"]
        if s["mode"] == "min":
            bound = self.best * (1 - t) if s["threshold_mode"] == "rel" else self.best - t
            better = value < bound
        else:
            bound = self.best * (1 + t) if s["threshold_mode"] == "rel" else self.best + t
            better = value > bound
        if better:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.cool > 0:
            self.cool, self.bad = self.cool - 1, 0
        if self.bad > s["patience"]:
            new = max(self.lr * s["factor"], s["min_lr"])
            if self.lr - new > s["eps"]:
                self.lr = new
            self.cool, self.bad = s["cooldown"], 0
        return self.lr


@given(
    settings=st.fixed_dictionaries(
        {
            "mode": st.sampled_from(["min", "max"]),
            "factor": st.sampled_from([0.1, 0.5]),
            "patience": st.integers(0, 3),
            "threshold": st.sampled_from([0.0, 1e-4, 0.1]),
            "threshold_mode": st.sampled_from(["rel", "abs"]),
            "cooldown": st.integers(0, 2),
            "min_lr": st.sampled_from([0.0, 1e-3]),
            "eps": st.sampled_from([0.0, 1e-8, 1e-2]),
        }
    ),
    values=st.lists(st.one_of(st.floats(-2, 2), st.just(math.nan), st.just(math.inf)), max_size=40),
)
@example(  # each number of the state counts in it: two bad values, a cut, two that rest it, a cut
    settings={
        "mode": "min",
        "factor": 0.5,
        "patience": 1,
        "threshold": 0.1,
        "threshold_mode": "rel",
        "cooldown": 2,
        "min_lr": 0.0,
        "eps": 0.0,
    },
    values=[1.0] * 10,
)
def test_plateau_state(settings: dict[str, Any], values: list[float]) -> None:
    """Torch's, also where each update continues from what a checkpoint of the last one holds."""
    oracle, state = PlateauOracle(LR, **settings), PlateauState(LR, **settings)
    saved = state.state_dict()
    for value in values:
        expected = pytest.approx(oracle.step(value), rel=1e-12)
        assert state.update(value) * LR == expected
        continued = PlateauState(LR, **settings)
        continued.load_state_dict(json.loads(json.dumps(saved)))
        assert continued.update(value) * LR == expected
        saved = continued.state_dict()


def test_plateau_from_config() -> None:
    scheduler = SchedulerConfig("plateau", factor=0.5, patience=0)
    config = TrainingConfig(lr=LR, scheduler=scheduler, monitor="val_accuracy")
    state = PlateauState.from_config(config, config.monitor_mode("val_accuracy"))
    assert state.mode == "max"
    assert [state.update(v) for v in (0.5, 0.6, 0.6, 0.6)] == [1.0, 1.0, 0.5, 0.25]


# ---------------------------------------------------------------------------- by time


def by_time(steps, seconds, **settings):
    config = TrainingConfig(max_time=100, lr=0.1, **settings)
    pace = Pace(config, StepCounts(per_epoch=10, total=10**6))
    return pace.follow(steps, seconds)


@pytest.mark.parametrize(
    ("seconds", "multiplier"),
    [(1.0, 0.2), (2.5, 0.5), (5.0, 1.0), (52.5, 0.5), (100.0, 0.0)],
)
def test_the_default_schedule_by_the_share_of_time(seconds, multiplier):
    found = by_time(round(seconds * 1000), seconds)
    assert found == pytest.approx(multiplier, abs=1e-3)


def test_what_is_said_in_steps_and_epochs_does_not_move_with_the_time():
    assert by_time(9, 10.0, warmup=20, scheduler="constant") == pytest.approx(0.5)
    steps = {"name": "step", "step_size": 3, "gamma": 0.1, "warmup": 0}
    assert by_time(29, 90.0, scheduler=steps) == pytest.approx(1.0)
    assert by_time(30, 90.0, scheduler=steps) == pytest.approx(0.1)


def test_time_that_is_not_ahead_leaves_the_table_alone():
    pace = Pace(TrainingConfig(max_time=100), StepCounts(per_epoch=10, total=100))
    assert pace.follow(2, 1.0) is None
    assert not pace.is_by_time
    assert pace.follow(4, 10.0) is not None  # 4 % of the steps, 10 % of the time
    assert pace.is_by_time
    ahead = pace.follow(60, 20.0)  # then steps are ahead
    assert ahead == pytest.approx(lr_multipliers(TrainingConfig(), np.arange(100), 100, 10)[60])


def test_the_rate_changes_a_thousand_times_at_most():
    pace = Pace(TrainingConfig(max_time=1), StepCounts(per_epoch=10, total=10**6))
    changes = [pace.follow(i + 1, (i + 1) * 1e-5) for i in range(10**5)]
    assert 900 <= sum(change is not None for change in changes) <= 1000
