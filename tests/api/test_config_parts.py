"""OptimizerConfig, SchedulerConfig and their like: defaults, rules, and what has what."""

from __future__ import annotations

from typing import Any

import hotloop as hl
import pytest
from hotloop.base import rules
from hotloop.errors import ConfigError
from hotloop.training.config import (
    EarlyStopping,
    OptimizerConfig,
    SchedulerConfig,
    TrainingConfig,
    monitor_mode,
)
from hotloop.training.config.parts import OPTIMIZERS, SCHEDULERS


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_config_is_complete(name: str) -> None:
    part = TrainingConfig(optimizer=name).optimizer_config
    assert part == OptimizerConfig(name, lr=1e-3, weight_decay=0.01, **OPTIMIZERS[name])
    assert part.resolved() == part
    assert set(part.to_dict()) == {"name", "lr", "weight_decay", *OPTIMIZERS[name]}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_refuses_what_it_does_not_have(name: str) -> None:
    for other, own in OPTIMIZERS.items():
        for field, default in own.items():
            if field in OPTIMIZERS[name]:
                OptimizerConfig(name, **{field: default})
            else:
                with pytest.raises(ConfigError, match=f"optimizer.{field}: '{name}' .*{other}"):
                    OptimizerConfig(name, **{field: default})


def test_optimizer_rules() -> None:
    part = TrainingConfig(optimizer=OptimizerConfig("sgd", nesterov=True, momentum=0.9))
    assert part.optimizer_config.nesterov is True
    with pytest.raises(ConfigError, match="nesterov: needs momentum > 0 and dampening 0"):
        TrainingConfig(optimizer=OptimizerConfig("sgd", nesterov=True))
    with pytest.raises(ConfigError, match="nesterov: needs momentum > 0 and dampening 0"):
        OptimizerConfig("sgd", nesterov=True, momentum=0.9, dampening=0.1).resolved()
    for bad in ({"eps": 0}, {"alpha": 1}, {"centered": 1}, {"dampening": 2}, {"amsgrad": "yes"}):
        with pytest.raises(ConfigError, match=f"^optimizer.{next(iter(bad))}: "):
            OptimizerConfig("rmsprop", **bad)


def test_every_schedule_resolves() -> None:
    needed = {"step_size": 3, "milestones": [3], "T_0": 3}
    for name, own in SCHEDULERS.items():
        required = {k: v for k, v in needed.items() if k in own}
        if name == "exponential":
            required["gamma"] = 0.9
        config = TrainingConfig(scheduler=SchedulerConfig(name, **required), lr=0.5)
        part = config.scheduler_config
        assert all(getattr(part, field) is not None for field in own)
        assert part.warmup == (0 if name == "one_cycle" else 0.05)
        for field in {f for other in SCHEDULERS.values() for f in other} - set(own):
            with pytest.raises(ConfigError, match=f"^scheduler.{field}: "):
                SchedulerConfig(name, **required, **{field: "rel" if "mode" in field else 0.5})


def test_plateau_watches_what_the_configuration_monitors() -> None:
    part = TrainingConfig(scheduler="plateau", monitor="val_f1").scheduler_config
    assert (part.monitor, part.mode) == ("val_f1", "auto")
    own = SchedulerConfig("plateau", monitor="val_loss", mode="min")
    part = TrainingConfig(scheduler=own, monitor="val_f1").scheduler_config
    assert (part.monitor, part.mode) == ("val_loss", "min")


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "multistep", "milestones": [3, 2]},
        {"name": "multistep", "milestones": []},
        {"name": "multistep", "milestones": [0]},
        {"name": "multistep", "milestones": 3},
        {"name": "step", "step_size": 0},
        {"name": "exponential", "gamma": 0},
        {"name": "warm_restarts", "T_0": 0},
        {"name": "warm_restarts", "T_0": 1, "T_mult": 0},
        {"name": "plateau", "factor": 1.0},
        {"name": "plateau", "patience": -1},
        {"name": "plateau", "threshold_mode": "both"},
        {"name": "one_cycle", "pct_start": 1.1},
        {"name": "one_cycle", "anneal_strategy": "sin"},
        {"name": "one_cycle", "warmup": 5},
        {"name": "cosine", "min_lr": -1},
        {"name": "cosine", "warmup": "long"},
    ],
)
def test_bad_schedule(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^scheduler\."):
        SchedulerConfig(**bad)


def test_parts_replace_and_to_dict() -> None:
    part = EarlyStopping(3).replace(min_delta=0.1)
    assert part == EarlyStopping(patience=3, min_delta=0.1)
    assert part.to_dict() == {"patience": 3, "min_delta": 0.1}


@pytest.mark.parametrize(
    ("monitor", "mode", "expected"),
    [
        ("val_loss", "auto", "min"),
        ("val_accuracy", "auto", "max"),
        ("val/f1", None, "max"),
        ("val_IoU", "auto", "max"),
        ("f1_loss", "auto", "min"),
        ("val_mse", "auto", "min"),
        ("PCK@0.2", "auto", "max"),
        ("val_log_loss", "auto", "min"),
        ("brier_score", "auto", "min"),
        ("mean_poisson_deviance", "auto", "min"),
        ("val_loss", "max", "max"),
        ("val_accuracy", "min", "min"),
    ],
)
def test_monitor_mode(monitor: str, mode: str | None, expected: str) -> None:
    assert monitor_mode(monitor, mode) == expected


@pytest.mark.parametrize("monitor", ["something", "val_gini", "neg_log_loss", "val_average"])
def test_monitor_without_a_direction(monitor: str) -> None:
    with pytest.raises(hl.ConfigError, match=f"{monitor!r}; write mode='max' or mode='min'"):
        monitor_mode(monitor)
    assert monitor_mode(monitor, "max") == "max"


@pytest.mark.parametrize(
    ("given", "n_bytes"),
    [
        (1, 1),
        (4e9, 4 * 10**9),
        ("512 B", 512),
        ("3kB", 3000),
        ("1.5 MB", 1_500_000),
        ("4GB", 4 * 10**9),
        ("2tb", 2 * 10**12),
        ("3KiB", 3072),
        ("2 MiB", 2 * 2**20),
        ("4GiB", 4 * 2**30),
        ("1TiB", 2**40),
    ],
)
def test_byte_size(given: int | float | str, n_bytes: int) -> None:
    assert rules.byte_size("memory_limit", given) == n_bytes


@pytest.mark.parametrize("name", ["cosine", "plateau", "warm_restarts"])
def test_a_lowest_rate_above_the_rate_is_refused(name: str) -> None:
    """A cosine would rise to it, and a plateau never fall."""
    settings = {"T_0": 3} if name == "warm_restarts" else {}
    scheduler = SchedulerConfig(name, min_lr=1e-3, **settings)
    assert TrainingConfig(lr=1e-3, scheduler=scheduler).scheduler_config.min_lr == 1e-3
    words = r"scheduler\.min_lr: must be at most lr, which is 0\.0005, got 0\.001; it is a learning"
    with pytest.raises(ConfigError, match=words):
        TrainingConfig(lr=5e-4, scheduler=scheduler)


@pytest.mark.parametrize("value", [0, "0 steps"])
def test_no_checkpoints_are_had_otherwise_than_by_none_of_them(value: int | str) -> None:
    """None saves at ends of epochs."""
    with pytest.raises(ConfigError, match=r"save_every: .*; save_last=False for none"):
        TrainingConfig(save_every=value)


def test_defaults_are_those_of_torch() -> None:
    settings = {name: dict(own) for name, own in SCHEDULERS.items()}
    assert settings["step"]["gamma"] == settings["multistep"]["gamma"] == 0.1
    assert settings["warm_restarts"]["T_mult"] == 1
    assert settings["cosine"]["min_lr"] == settings["warm_restarts"]["min_lr"] == 0.0
    assert settings["one_cycle"] == {
        "max_lr": None,
        "pct_start": 0.3,
        "div_factor": 25.0,
        "final_div_factor": 1e4,
        "anneal_strategy": "cos",
        "three_phase": False,
    }
    assert settings["plateau"] == {
        "factor": 0.1,
        "patience": 10,
        "threshold": 1e-4,
        "threshold_mode": "rel",
        "cooldown": 0,
        "min_lr": 0.0,
        "eps": 1e-8,
        "monitor": None,
        "mode": None,
    }
    assert OPTIMIZERS["adam"] == OPTIMIZERS["adamw"]
    assert OPTIMIZERS["adamw"] == {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False}
    assert OPTIMIZERS["sgd"] == {"momentum": 0.0, "dampening": 0.0, "nesterov": False}
    assert OPTIMIZERS["rmsprop"] == {
        "alpha": 0.99,
        "eps": 1e-8,
        "momentum": 0.0,
        "centered": False,
    }
    assert OPTIMIZERS["lion"] == {"betas": (0.9, 0.99)}
