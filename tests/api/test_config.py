"""TrainingConfig: what every field accepts and refuses, other spellings, files, and what is said.

GOOD and BAD are tables from field to cases; a test holds that no field is missing in either, so a
new field comes with its cases.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import inspect
import pathlib
import pickle
import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hotloop.base.patterns import matches, select
from hotloop.base.suggest import closest, did_you_mean
from hotloop.errors import ConfigError
from hotloop.training.config import (
    EarlyStopping,
    EMAConfig,
    OptimizerConfig,
    ParamGroup,
    SchedulerConfig,
    SWAConfig,
    TrainerConfig,
    TrainingConfig,
    options,
    unsupported,
)
from hotloop.training.config.parts import OPTIMIZERS
from hotloop.training.config.spelling import ALIASES

FIELDS = {f.name: f.default for f in dataclasses.fields(TrainingConfig)}


class Device:
    """Stands for torch.device: its text is all that counts."""

    def __str__(self) -> str:
        return "cuda:0"


Device.__name__ = "device"


def function(*_: Any) -> None:
    """A loss, metric or callback."""


FLAG_GOOD = [(True, True), (False, False), (np.bool_(True), True)]
FLAG_BAD = [0, 1, "true", "auto", None, np.ones(2)]
AUTO_GOOD = [("auto", "auto"), (False, False)]
AUTO_BAD = [0, 1, "true", "Auto", None]
SIZE_GOOD: list[tuple[Any, Any]] = [(None, None)]

# field -> (given, canonical); values that are valid but not supported yet are in UNSUPPORTED below
GOOD: dict[str, list[tuple[Any, Any]]] = {
    "max_epochs": [(0, 0), (3, 3), (1e2, 100), (np.int64(7), 7)],
    "max_steps": [(None, None), (1, 1), (1e5, 100_000)],
    "max_time": [
        (None, None),
        (90, 90.0),
        (0.5, 0.5),
        ("1h30m", 5400.0),
        ("45s", 45.0),
        ("00:12:00:00", 43200.0),
        (datetime.timedelta(minutes=2), 120.0),
    ],
    "optimizer": [
        *[(name, name) for name in OPTIMIZERS],
        ("AdamW", "adamw"),
        ("SGD", "sgd"),
        (OptimizerConfig("adam"), "adam"),
        ({"name": "adam"}, "adam"),
        (OptimizerConfig("adam", eps=1e-6), OptimizerConfig("adam", eps=1e-6)),
    ],
    "lr": [(1, 1.0), (3e-4, 3e-4), (np.float64(0.5), 0.5), (Fraction(1, 2), 0.5)],
    "weight_decay": [(0, 0.0), (5e-4, 5e-4)],
    **dict.fromkeys(("decay_norm_and_bias", "train_metrics"), FLAG_GOOD),
    "momentum": [(None, None)],
    "betas": [(None, None), ([0.9, 0.95], (0.9, 0.95)), (np.array([0.5, 0.25]), (0.5, 0.25))],
    "scheduler": [
        ("constant", "constant"),
        ("linear", "linear"),
        ("cosine", "cosine"),
        ("CosineAnnealingLR", "cosine"),
        ("onecycle", "one_cycle"),
        ("OneCycleLR", "one_cycle"),
        ("plateau", "plateau"),
        ("reduce_on_plateau", "plateau"),
        ("ReduceLROnPlateau", "plateau"),
        (None, "constant"),
        (SchedulerConfig("cosine"), "cosine"),
        (
            {"name": "cosine_warm_restarts", "T_0": 3},
            SchedulerConfig("warm_restarts", T_0=3),
        ),
        ({"name": "StepLR", "step_size": 3}, SchedulerConfig("step", step_size=3)),
        (
            SchedulerConfig("MultiStepLR", milestones=[1, 2]),
            SchedulerConfig("multistep", milestones=(1, 2)),
        ),
        (
            SchedulerConfig("exponential", gamma=0.9),
            SchedulerConfig("ExponentialLR", gamma=0.9),
        ),
    ],
    "warmup": [
        (0, 0),
        (500, 500),
        (500.0, 500),
        (0.1, 0.1),
        (0.0, 0),
        ("5 epochs", "5 epochs"),
        ("1epoch", "1 epochs"),
        ("1.5 epochs", "1.5 epochs"),
        ("0 epochs", 0),
        ("100 steps", 100),
        ("5%", 0.05),
    ],
    "loss": [
        ("auto", "auto"),
        ("cross_entropy", "cross_entropy"),
        (function, function),
        ({"a": "mse", "b": function}, {"a": "mse", "b": function}),
        (["mse", function], {"0": "mse", "1": function}),
    ],
    "metrics": [
        ((), ()),
        (None, ()),
        ("accuracy", ("accuracy",)),
        (["accuracy", "f1"], ("accuracy", "f1")),
        (function, (function,)),
        ({"mine": function}, {"mine": function}),
        ("auto", "auto"),
        ([], ()),
        ({"a": ["f1", function], "b": "mse"}, {"a": ("f1", function), "b": "mse"}),
        ([["f1"], "mse"], {"0": ("f1",), "1": "mse"}),
    ],
    "label_smoothing": [(0, 0.0), (0.1, 0.1)],
    **{key: [(0, 0.0), (0.2, 0.2), (1, 1.0)] for key in ("mixup", "cutmix")},
    "class_weight": [
        (None, None),
        ("balanced", "balanced"),
        ([1, 2.5], (1.0, 2.5)),
        (np.array([1.0, 0.0]), (1.0, 0.0)),
        ({"cat": 2, "dog": 1}, {"cat": 2.0, "dog": 1.0}),
        ({0: 2, 1: 1}, {0: 2.0, 1: 1.0}),
        ([[0, 2], [1, 1]], {0: 2.0, 1: 1.0}),
    ],
    "accelerator": [("auto", "auto"), ("cpu", "cpu"), ("gpu", "gpu"), ("cuda", "gpu")],
    "devices": [("auto", "auto"), (1, 1), ([0], (0,)), ((3,), (3,))],
    "strategy": [("auto", "auto"), ("single", "single"), ("single_device", "single")],
    "precision": [
        ("auto", "auto"),
        (32, "32-true"),
        ("32", "32-true"),
        ("fp32", "32-true"),
        ("float32", "32-true"),
        (64, "64-true"),
        ("fp64", "64-true"),
    ],
    "benchmark": FLAG_GOOD,
    "deterministic": FLAG_GOOD,
    "seed": [(None, None), (0, 0), (np.uint8(3), 3), (2**63 - 1, 2**63 - 1)],
    "cuda_graph": AUTO_GOOD,
    "device_cache": AUTO_GOOD,
    "accumulate_grad_batches": [(1, 1), (8, 8)],
    "gradient_clip_val": [(None, 0.0), (0, 0.0), (0.5, 0.5)],
    "gradient_clip_algorithm": [("norm", "norm"), ("value", "value")],
    "param_groups": [
        (None, None),
        ([], None),
        (
            [{"params": "backbone", "lr": 1e-5}, ParamGroup(["*.bias"], weight_decay=0)],
            (ParamGroup("backbone", lr=1e-5), ParamGroup("*.bias", weight_decay=0.0)),
        ),
        ([{"params": ["a", "b"], "lr_scale": 0}], (ParamGroup(("a", "b"), lr_scale=0.0),)),
    ],
    "layer_decay": [(None, None), (0.75, 0.75), (1, 1.0)],
    "freeze": [(None, None), ("backbone", ("backbone",)), (["a", "b.*"], ("a", "b.*"))],
    "unfreeze": [(None, None), ("head", ("head",)), ({"head": 3.0}, {"head": 3})],
    "recompute": [("auto", "auto"), (True, True), (0.0, False), (0.25, 0.25), ("a", ("a",))],
    "memory_limit": SIZE_GOOD,
    "on_oom": [("shrink", "shrink"), ("raise", "raise")],
    "on_nan": [("stop", "stop"), ("skip", "skip"), ("raise", "raise")],
    "on_interrupt": [("auto", "auto"), ("return", "return"), ("raise", "raise")],
    "detect_anomaly": FLAG_GOOD,
    "ema": [
        (False, False),
        (True, EMAConfig(0.999)),
        (0.99, EMAConfig(decay=0.99)),
        ({"decay": 0.9}, EMAConfig(0.9)),
    ],
    "swa": [
        (False, False),
        (True, SWAConfig(0.75)),
        (0.8, SWAConfig(start=0.8)),
        ({"start": 8, "swa_lr": 0.01}, SWAConfig(8, lr=0.01)),
        (SWAConfig(annealing_epochs=10, annealing_strategy="linear"),) * 2,
    ],
    "early_stopping": [
        (None, None),
        (False, None),
        (True, EarlyStopping()),
        (5, EarlyStopping(patience=5)),
        (
            {"patience": 3, "monitor": "val_f1"},
            EarlyStopping(3, monitor="val_f1"),
        ),
    ],
    "monitor": [("val_loss", "val_loss"), ("val_accuracy", "val_accuracy")],
    "mode": [("auto", "auto"), ("min", "min"), ("max", "max")],
    "restore_best": FLAG_GOOD,
    "output_dir": [(None, None), ("out", "out"), (pathlib.Path("a") / "b", "a/b")],
    "save_top_k": [(1, 1)],
    "save_last": [(True, True)],
    "save_every": [
        (None, None),
        (2, 2),
        ("3 epochs", 3),
        ("500 steps", "500 steps"),
        ("1h", "3600s"),
    ],
    "max_disk": SIZE_GOOD,
    "resume_strict": [(True, True)],
    "check_val_every_n_epoch": [(1, 1), (5, 5)],
    "val_check_interval": [(None, None), (1.0, None)],
    "log_every_n_steps": [(50, 50), (1, 1)],
    "limit_batches": [(None, None), (10, 10), (1, 1), (1.0, 1.0), (0.25, 0.25)],
    "overfit_batches": [(None, None), (0, None), (0.0, None), (2, 2), (0.01, 0.01)],
    "logger": [("auto", "auto"), (True, "csv"), (["csv", "wandb", "csv"], ("csv", "wandb"))],
    "verbose": [("auto", "auto"), ("lines", "lines")],
    "enable_progress_bar": [*AUTO_GOOD, (True, True)],
    "enable_checkpointing": [(False, False)],
    "enable_model_summary": FLAG_GOOD,
    "callbacks": [((), ()), (None, ()), (function, (function,)), ([function], (function,))],
}

NOT_NUMBERS: list[Any] = [True, "3", None, float("nan"), float("inf"), 1j, [1], np.ones(2)]
NOT_POSITIVE_INTS = [0, -1, 1.5, *NOT_NUMBERS]
NOT_SIZES = [0, -1, "4", "4G", "GB", "4 parsecs", "", True, 1.5, float("nan"), [1]]
NOT_PATTERNS: list[Any] = ["", 3, [], [3], [""], {}, {"a": 0}, {"a": None}, True]

BAD: dict[str, list[Any]] = {
    "max_epochs": [-1, 1.5, *NOT_NUMBERS],
    "max_steps": [v for v in NOT_POSITIVE_INTS if v is not None],
    "max_time": [0, -3, "", "1x", "h", "30m1h", "1:30", True, float("nan"), float("inf"), [1]],
    "optimizer": ["nadam", "", 3, None, type, OptimizerConfig, {"name": "adam", "betas": 3}],
    "lr": [0, -0.1, *NOT_NUMBERS, 10**400],
    "weight_decay": [-0.1, *NOT_NUMBERS],
    **dict.fromkeys(("decay_norm_and_bias", "train_metrics"), FLAG_BAD),
    "momentum": [-0.1, 1.0, True, "0.9", float("nan"), (0.9,)],
    "betas": [0.9, (0.9,), (0.9, 1.0), (-0.1, 0.9), (0.9, True), "ab", (0.9, 0.99, 0.999)],
    "scheduler": ["cosin", "", 3, True, {"name": "nope"}, {"T_0": 3}, "step", "exponential"],
    "warmup": [-1, -0.1, 1.0, 1.5, True, None, "soon", "5", "5 eons", float("nan")],
    "loss": ["", None, 3, {}, {"a": 3}, {3: "mse"}, int],
    "metrics": ["", 3, [3], {"a": 3}, [""], int],
    "label_smoothing": [-0.1, 1.0, 2, *NOT_NUMBERS],
    **{key: [-0.1, *NOT_NUMBERS] for key in ("mixup", "cutmix")},
    "class_weight": [
        "even",
        3,
        [],
        [-1.0],
        [0.0, 0.0],
        ["a"],
        {"a": -1},
        {},
        {1.5: 2},
        [[1, 2, 3]],
    ],
    "accelerator": ["tpu", "mps", "CPU", None, 1, True],
    "devices": [0, -2, 1.5, True, "1", "0,1", None, [], [0, 0], [-1], [1.5]],
    "strategy": ["dp", None, True],
    "precision": [8, "int8", "16-true", None, True, 32.0, "FP32", np.float32],
    "benchmark": FLAG_BAD,
    "deterministic": FLAG_BAD,
    "seed": [-1, 2**63, 1.5, *(bad for bad in NOT_NUMBERS if bad is not None)],
    "cuda_graph": AUTO_BAD,
    "device_cache": AUTO_BAD,
    "accumulate_grad_batches": [*NOT_POSITIVE_INTS, {0: 4}],
    "gradient_clip_val": [-1, True, "1", float("nan"), float("inf"), [1]],
    "gradient_clip_algorithm": ["l2", None, 2, True],
    "param_groups": [
        "backbone",
        {"params": "a", "lr": 1},
        [{"lr": 1}],
        [{"params": "a"}],
        [{"params": "a", "lr": 0}],
        [{"params": "a", "lr": 1, "lr_scale": 1}],
        [{"params": "a", "lrs": 1}],
        [3],
        3,
    ],
    "layer_decay": [0, -0.5, 1.01, True, "0.75", float("nan"), [0.75]],
    "freeze": NOT_PATTERNS,
    "unfreeze": NOT_PATTERNS,
    "recompute": [None, 1, [], [3], "", -0.1, 1.5, float("nan"), {"body": True}],
    "memory_limit": NOT_SIZES,
    "on_oom": ["stop", None, True],
    "on_nan": ["ignore", None, True],
    "on_interrupt": ["exit", None, True],
    "detect_anomaly": FLAG_BAD,
    "ema": [0, 1, 1.0, -0.5, "0.9", float("nan"), {"decays": 0.9}, [0.9]],
    "swa": [0, 1, 8, 1.0, "0.8", {"begin": 3}, {"start": 0}, {"start": 1.5}, {"start": True}],
    "early_stopping": [0, -1, 1.5, "5", float("nan"), {"patience": 0}, {"patiance": 3}, [3]],
    "monitor": ["", 3, True],
    "mode": ["higher", None, True],
    "restore_best": FLAG_BAD,
    "output_dir": ["", 3, "a\0b"],
    "save_top_k": [-2, 1.5, *NOT_NUMBERS],
    "save_last": FLAG_BAD,
    "save_every": [0, -1, True, "3", "soon", float("nan"), 30.0, "0 steps", "1 2"],
    "max_disk": NOT_SIZES,
    "resume_strict": FLAG_BAD,
    "check_val_every_n_epoch": NOT_POSITIVE_INTS,
    "val_check_interval": [0, 0.0, -1, 1.5, True, "1", float("nan")],
    "log_every_n_steps": NOT_POSITIVE_INTS,
    "limit_batches": [0, 0.0, -1, 1.5, 10.0, True, "1", float("nan")],
    "overfit_batches": [-1, 1.5, True, False, "1", float("nan")],
    "logger": ["sqlite", "", 3, ["auto"], ["csv", None], [["csv"]], object(), {}],
    "verbose": [True, False, 0, 1, 2, None, "line", ""],
    "enable_progress_bar": AUTO_BAD,
    "enable_checkpointing": FLAG_BAD,
    "enable_model_summary": FLAG_BAD,
    "callbacks": ["csv", {"a": 1}],
}

UNSUPPORTED: dict[str, list[Any]] = {
    "devices": [2, -1, [0, 1]],
    "strategy": ["ddp", "fsdp"],
    "optimizer": [OptimizerConfig("adam", amsgrad=True), {"name": "adamw", "amsgrad": True}],
}


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(field, case, id=f"{field}-{i}")
        for field, listed in table.items()
        for i, case in enumerate(listed)
    ]


def test_tables_are_complete() -> None:
    assert set(GOOD) == set(BAD) == set(FIELDS)
    assert set(UNSUPPORTED) == {row.field for row in unsupported.UNSUPPORTED}
    keywords = set(options.TrainingOptions.__annotations__)
    assert keywords == set(FIELDS) | set(ALIASES) | {"trainer"}
    for field in FIELDS:
        assert (
            f"{field} :" in TrainingConfig.__doc__
            or f"{field}, " in TrainingConfig.__doc__
            or (f", {field} :" in TrainingConfig.__doc__)
        )


def test_defaults_are_those_of_the_design() -> None:
    config = TrainingConfig()
    expected = {
        "max_epochs": 10,
        "optimizer": "adamw",
        "lr": 1e-3,
        "weight_decay": 0.01,
        **dict.fromkeys(("decay_norm_and_bias", "train_metrics"), False),
        "scheduler": "cosine",
        "warmup": 0.05,
        "loss": "auto",
        "metrics": "auto",
        "label_smoothing": 0,
        **dict.fromkeys(("mixup", "cutmix"), 0),
        "accelerator": "auto",
        "devices": "auto",
        "strategy": "auto",
        "precision": "auto",
        "benchmark": True,
        "deterministic": False,
        "seed": 42,
        "cuda_graph": "auto",
        "device_cache": "auto",
        "accumulate_grad_batches": 1,
        "gradient_clip_val": 1.0,
        "gradient_clip_algorithm": "norm",
        "recompute": "auto",
        "on_oom": "shrink",
        "on_nan": "stop",
        "on_interrupt": "auto",
        "detect_anomaly": False,
        "ema": False,
        "swa": False,
        "mode": "auto",
        "restore_best": True,
        "save_top_k": 1,
        "save_last": True,
        "resume_strict": True,
        "check_val_every_n_epoch": 1,
        "log_every_n_steps": 50,
        "logger": "auto",
        "enable_progress_bar": "auto",
        "verbose": "auto",
        "enable_checkpointing": True,
        "enable_model_summary": True,
        "callbacks": (),
    }
    assert {k: v for k, v in config.to_dict(nested=False).items() if v is not None} == expected
    # every default is itself a value that its rule accepts
    assert TrainingConfig(**config.to_dict(nested=False)) == config


@pytest.mark.parametrize(("field", "case"), cases(GOOD))
def test_good(field: str, case: tuple[Any, Any]) -> None:
    given_value, canonical = case
    extra = {"optimizer": "sgd"} if field == "momentum" else {}
    config = TrainingConfig(**{field: given_value}, **extra)
    found = getattr(config, field)
    assert found == canonical
    assert type(found) is type(canonical) or isinstance(found, dict)
    again = TrainingConfig(**{field: found}, **extra)  # canonical values are fixed points
    assert again == config
    assert hash(again) == hash(config)
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config
    assert TrainingConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(("field", "value"), cases(BAD))
def test_bad(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainingConfig(**{field: value})
    text = str(caught.value)
    assert text.startswith(
        (field, field.removesuffix("s"), "ParamGroup", "EMA", "SWA", "EarlyStopping")
    )
    assert "got" in text or "there is no setting" in text
    assert "not built yet" not in text


@pytest.mark.parametrize(("field", "value"), cases(UNSUPPORTED))
def test_unsupported_is_said(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{field}: .* not built yet, got .*; (write|leave) "):
        TrainingConfig(**{field: value})
    with pytest.raises(ConfigError, match="not built yet"):
        TrainingConfig().replace(**{field: value})


def test_check_supported_judges_pickles_of_other_versions_too() -> None:
    config = TrainingConfig()
    config.check_supported()
    object.__setattr__(config, "strategy", "ddp")
    with pytest.raises(ConfigError, match=r"strategy: .*not built yet"):
        config.check_supported()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lr": 0}, "lr: must be greater than 0, got 0; a usual start is 0.001"),
        ({"lr": -1}, "lr: must be greater than 0, got -1; a usual start is 0.001"),
        ({"lr": "1e-3"}, "lr: a number is needed, not a string, got '1e-3'; write lr=0.001"),
        ({"lr": True}, "lr: a number is needed, got True"),
        ({"lr": float("nan")}, "lr: a number must be finite, got nan"),
        (
            {"max_steps": "100"},
            "max_steps: a whole number is needed, not a string, got '100'; write max_steps=100",
        ),
        (
            {"optimizer": "adamv"},
            "optimizer: must be one of 'sgd', 'adam', 'adamw', 'rmsprop', 'lion', got 'adamv'; "
            "did you mean 'adam'?",
        ),
        (
            {"optimizer": "sgd", "betas": (0.9, 0.99)},
            "betas: the optimizer 'sgd' has none, got (0.9, 0.99); it belongs to adam, adamw, "
            "lion; write betas=None",
        ),
        (
            {"momentum": 0.9},
            "momentum: the optimizer 'adamw' has none, got 0.9; it belongs to sgd, rmsprop; "
            "write momentum=None",
        ),
        (
            {"scheduler": "step"},
            "scheduler.step_size: 'step' needs it, got nothing; "
            "write SchedulerConfig('step', step_size=30)",
        ),
        (
            {"limit_batches": 10.0},
            "limit_batches: a float is a fraction, greater than 0 and at most 1, got 10.0; "
            "write limit_batches=10 for that many batches",
        ),
        (
            {"loss": dict},
            "loss: must be 'auto', a name, a loss module, a function (output, target) or a dict "
            "of them, got <class 'dict'>; write dict() to make one",
        ),
        (
            {"overfit_batches": 1, "limit_batches": 2},
            "overfit_batches: excludes limit_batches, got overfit_batches=1 and limit_batches=2; "
            "keep one",
        ),
        (
            {"scheduler": "one_cycle", "warmup": 100},
            "warmup: the scheduler 'one_cycle' has its own warmup and takes no other, got 100; "
            "set SchedulerConfig('one_cycle', pct_start=...) instead",
        ),
    ],
)
def test_messages(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainingConfig(**options)
    assert str(caught.value) == text


def test_messages_quote_long_values_in_part() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainingConfig(lr=list(range(1000)))
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("lrr", "did you mean 'lr'?"),
        ("learningrate", "did you mean 'lr'?"),
        ("learning_rat", "did you mean 'lr'?"),
        ("epoch", "did you mean 'max_epochs'?"),
        ("maxEpochs", "did you mean 'max_epochs'?"),
        ("weightdecay", "did you mean 'weight_decay'?"),
        ("early_stoping", "did you mean 'early_stopping'?"),
        ("limit_train_batches", "did you mean 'limit_batches'?"),
        ("Trainer", "did you mean 'trainer'?"),
        ("batch_size", "it belongs to the data: DataModule(batch_size=...)"),
        ("nesterov", "write optimizer=OptimizerConfig(..., nesterov=...)"),
        ("step_size", "write scheduler=SchedulerConfig(..., step_size=...)"),
        ("lr_backbone", "write param_groups=[{'params': 'backbone', 'lr': ...}]"),
        ("resume", "train(..., resume=...)"),
    ],
)
def test_unknown_key(key: str, hint: str) -> None:
    for call in (
        lambda: TrainingConfig(**{key: 1}),
        lambda: TrainingConfig().replace(**{key: 1}),
        lambda: TrainingConfig.resolve(None, {key: 1}),
        lambda: TrainingConfig.from_dict({key: 1}),
        lambda: TrainingConfig.from_toml(f"{key} = 1"),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        assert str(caught.value) == f"TrainingConfig: there is no setting {key!r}; {hint}" or (
            key == "resume" and str(caught.value).endswith(hint)
        )


def test_unknown_key_with_nothing_close() -> None:
    with pytest.raises(ConfigError, match=r"there is no setting 'zzz'$"):
        TrainingConfig(zzz=1)
    with pytest.raises(ConfigError, match="must be a string, got 3"):
        TrainingConfig.from_dict({3: 1})


def test_unknown_key_of_parts() -> None:
    with pytest.raises(ConfigError, match=r"OptimizerConfig: .*'beta'; did you mean 'betas'?"):
        OptimizerConfig("adam", beta=(0.9, 0.9))
    with pytest.raises(
        ConfigError, match=r"SchedulerConfig: .*'stepsize'; did you mean 'step_size'"
    ):
        TrainingConfig(scheduler={"name": "step", "stepsize": 3})
    with pytest.raises(ConfigError, match=r"no setting 'x'; it has decay, ramp$"):
        EMAConfig(x=1)
    with pytest.raises(ConfigError, match=r"TrainerConfig: .*'lr'; write it in TrainingConfig"):
        TrainerConfig(lr=1)
    with pytest.raises(
        ConfigError, match=r"TrainerConfig: .*'max_epoch'; did you mean 'max_epochs'"
    ):
        TrainingConfig(trainer={"max_epoch": 1})


@pytest.mark.parametrize(
    ("options", "flat"),
    [
        ({"epochs": 3}, {"max_epochs": 3}),
        ({"num_epochs": 3}, {"max_epochs": 3}),
        ({"learning_rate": 0.1}, {"lr": 0.1}),
        ({"use_amp": False}, {"precision": "32-true"}),
        ({"amp": False}, {"precision": "32-true"}),
        ({"use_amp": True}, {"precision": "auto"}),
        ({"use_amp": False, "precision": 64}, {"precision": "64-true"}),
        ({"use_amp": True, "precision": "auto"}, {"precision": "auto"}),
        ({"precision": 32, "amp": False}, {"precision": "32-true"}),
        ({"cudnn_benchmark": False}, {"benchmark": False}),
        ({"cudnn_deterministic": True}, {"deterministic": True}),
        ({"device": "cpu"}, {"accelerator": "cpu"}),
        ({"device": "auto"}, {"accelerator": "auto"}),
        ({"device": "cuda"}, {"accelerator": "gpu", "devices": 1}),
        ({"device": "cuda:0"}, {"accelerator": "gpu", "devices": [0]}),
        ({"device": "gpu:2"}, {"accelerator": "gpu", "devices": [2]}),
        ({"device": Device()}, {"accelerator": "gpu", "devices": [0]}),
        ({"device": "cuda:0", "devices": 1}, {"accelerator": "gpu", "devices": [0]}),
        ({"gradient_accumulation_steps": 4}, {"accumulate_grad_batches": 4}),
        ({"accumulation_steps": 4}, {"accumulate_grad_batches": 4}),
        ({"max_grad_norm": 0.5}, {"gradient_clip_val": 0.5}),
        ({"clip_max_norm": 0.1}, {"gradient_clip_val": 0.1}),
        ({"max_grad_norm": None}, {"gradient_clip_val": 0}),
        ({"default_root_dir": "x"}, {"output_dir": "x"}),
        # spellings that agree
        ({"epochs": 3, "max_epochs": 3, "num_epochs": 3.0}, {"max_epochs": 3}),
        (
            {"lr": 0.1, "optimizer": OptimizerConfig("adam", lr=0.1)},
            {"lr": 0.1, "optimizer": "adam"},
        ),
        ({"gradient_clip_val": None, "max_grad_norm": 0}, {"gradient_clip_val": 0}),
        # nested parts
        (
            {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0}},
            {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0},
        ),
        (
            {"optimizer": OptimizerConfig("lion", betas=(0.5, 0.5), learning_rate=2)},
            {"optimizer": "lion", "betas": (0.5, 0.5), "lr": 2},
        ),
        (
            {"optimizer": OptimizerConfig("adam", lr=1, eps=1e-6)},
            {"optimizer": OptimizerConfig("adam", eps=1e-6), "lr": 1},
        ),
        (
            {"scheduler": SchedulerConfig("cosine", warmup=7)},
            {"scheduler": "cosine", "warmup": 7},
        ),
        (
            {"scheduler": SchedulerConfig("cosine", warmup=7, eta_min=1e-5)},
            {"scheduler": SchedulerConfig("cosine", min_lr=1e-5), "warmup": 7},
        ),
        (
            {"trainer": {"epochs": 2, "device": "cpu"}, "lr": 1},
            {"max_epochs": 2, "accelerator": "cpu", "lr": 1},
        ),
        ({"trainer": TrainerConfig(max_epochs=2), "epochs": 2}, {"max_epochs": 2}),
    ],
)
def test_spellings(options: dict[str, Any], flat: dict[str, Any]) -> None:
    assert TrainingConfig(**options) == TrainingConfig(**flat)
    assert TrainingConfig.resolve(TrainingConfig(), options) == TrainingConfig(**flat)


def test_seed_document_form() -> None:
    config = TrainingConfig(
        trainer=TrainerConfig(
            max_epochs=10,
            accelerator="gpu",
            devices=1,
            precision="16-mixed",
            enable_progress_bar=True,
        ),
        optimizer=OptimizerConfig(name="adam", lr=0.001),
    )
    assert config == TrainingConfig(
        max_epochs=10,
        accelerator="gpu",
        devices=1,
        precision=16,
        enable_progress_bar=True,
        optimizer="adam",
        lr=1e-3,
    )


@pytest.mark.parametrize(
    ("options", "field", "named"),
    [
        ({"lr": 1, "learning_rate": 2}, "lr", ["lr=1", "learning_rate=2"]),
        ({"epochs": 3, "num_epochs": 4}, "max_epochs", ["epochs=3", "num_epochs=4"]),
        ({"use_amp": True, "amp": False}, "precision", ["use_amp=True", "amp=False"]),
        ({"use_amp": True, "precision": 32}, "precision", ["use_amp=True", "precision=32"]),
        ({"precision": "auto", "amp": False}, "precision", ["precision='auto'", "amp=False"]),
        (
            {"device": "cuda:0", "accelerator": "cpu"},
            "accelerator",
            ["device='cuda:0'", "accelerator='cpu'"],
        ),
        ({"device": "cuda:0", "devices": [1]}, "devices", ["device='cuda:0'", "devices=[1]"]),
        ({"cudnn_benchmark": True, "benchmark": False}, "benchmark", ["cudnn_benchmark=True"]),
        (
            {"accumulation_steps": 2, "gradient_accumulation_steps": 4},
            "accumulate_grad_batches",
            ["accumulation_steps=2", "gradient_accumulation_steps=4"],
        ),
        (
            {"max_grad_norm": 1, "clip_max_norm": 0.1},
            "gradient_clip_val",
            ["max_grad_norm=1", "clip_max_norm=0.1"],
        ),
        (
            {"max_grad_norm": 1, "gradient_clip_algorithm": "value"},
            "gradient_clip_algorithm",
            ["max_grad_norm=1", "gradient_clip_algorithm='value'"],
        ),
        (
            {"optimizer": OptimizerConfig("adam", lr=1e-3), "lr": 0.1},
            "lr",
            ["optimizer.lr=0.001", "lr=0.1"],
        ),
        (
            {"scheduler": SchedulerConfig("cosine", warmup=5), "warmup": 6},
            "warmup",
            ["scheduler.warmup=5", "warmup=6"],
        ),
        (
            {"trainer": TrainerConfig(num_epochs=3), "max_epochs": 4},
            "max_epochs",
            ["trainer.num_epochs=3", "max_epochs=4"],
        ),
    ],
)
def test_spellings_that_disagree(options: dict[str, Any], field: str, named: list[str]) -> None:
    for order in (options, dict(reversed(options.items()))):
        with pytest.raises(ConfigError, match=f"two spellings of {field} disagree") as caught:
            TrainingConfig(**order)
        assert all(name in str(caught.value) for name in named)
        assert "keep one of them" in str(caught.value)


def test_spellings_that_disagree_within_parts() -> None:
    with pytest.raises(ConfigError, match="lr: two spellings disagree, learning_rate=1 and lr=2"):
        OptimizerConfig("adam", lr=2, learning_rate=1)
    with pytest.raises(ConfigError, match="TrainerConfig: two spellings of max_epochs disagree"):
        TrainerConfig(epochs=1, max_epochs=2)


@pytest.mark.parametrize("value", ["mps", "cuda:", "cuda:-1", "cuda:x", "tpu", 0, None, True])
def test_bad_device(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^device: must be"):
        TrainingConfig(device=value)


@pytest.mark.parametrize("key", ["use_amp", "epochs", "learning_rate", "clip_max_norm"])
def test_other_spellings_are_checked_under_their_own_name(key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: "):
        TrainingConfig(**{key: "bad"})


def test_resolve() -> None:
    base = TrainingConfig(optimizer=OptimizerConfig("adam", lr=1e-3), epochs=3)
    assert TrainingConfig.resolve() == TrainingConfig()
    assert TrainingConfig.resolve(base) == base
    assert TrainingConfig.resolve(base, {"lr": 3e-4}) == base.replace(lr=3e-4)
    assert TrainingConfig.resolve(base, {"learning_rate": 3e-4}).lr == 3e-4
    assert TrainingConfig.resolve({"epochs": 4}, {"num_epochs": 5}).max_epochs == 5
    assert TrainingConfig.resolve(None, {"trainer": TrainerConfig(epochs=6)}).max_epochs == 6
    with pytest.raises(ConfigError, match="two spellings of lr disagree"):
        TrainingConfig.resolve(base, {"lr": 1, "learning_rate": 2})
    with pytest.raises(ConfigError, match=r"got TrainerConfig\(max_epochs=3\); write .*trainer="):
        TrainingConfig.resolve(TrainerConfig(max_epochs=3))
    with pytest.raises(ConfigError, match=r"write TrainingConfig\(optimizer=\.\.\.\)"):
        TrainingConfig.resolve(OptimizerConfig("adam"))
    with pytest.raises(ConfigError, match="training_config: must be a TrainingConfig, got 3"):
        TrainingConfig.resolve(3)


def test_resolve_keeps_a_subclass() -> None:
    class Mine(TrainingConfig):
        pass

    assert type(TrainingConfig.resolve(Mine(lr=1), {"lr": 2})) is Mine


def test_bare() -> None:
    config = TrainingConfig.bare(lr=0.1, optimizer="sgd")
    assert config.scheduler == "constant"
    assert (config.warmup, config.gradient_clip_val, config.weight_decay) == (0, 0.0, 0.0)
    assert config.precision == "32-true"
    assert TrainingConfig.bare(weight_decay=0.1, precision=64).weight_decay == 0.1


def test_frozen_equal_hashable() -> None:
    config = TrainingConfig(metrics=["f1"], class_weight={"a": 1}, freeze="body")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lr = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"config\.replace"):
        config.class_weight["a"] = 3  # type: ignore[index,call-overload]
    with pytest.raises(TypeError, match=r"config\.replace"):
        config.class_weight |= {}  # type: ignore[operator,misc]
    same = TrainingConfig(metrics=("f1",), class_weight={"a": 1.0}, freeze=["body"])
    assert config == same
    assert len({config, same, config.replace(lr=1)}) == 2
    assert config != TrainingConfig()
    assert config != 3
    assert dataclasses.replace(config, lr=3).lr == 3.0


def test_a_callers_list_is_not_kept() -> None:
    metrics = ["f1"]
    config = TrainingConfig(metrics=metrics)
    metrics.append("accuracy")
    assert config.metrics == ("f1",)


def test_diff_and_repr() -> None:
    a, b = TrainingConfig(lr=0.1), TrainingConfig(lr=0.2, ema=True)
    assert a.diff(b) == {"lr": (0.1, 0.2), "ema": (False, EMAConfig(0.999))}
    assert a.diff(a) == {}
    assert repr(TrainingConfig()) == "TrainingConfig()"
    assert repr(b) == "TrainingConfig(lr=0.2, ema=EMAConfig(decay=0.999))"
    assert eval(repr(b)) == b
    part = OptimizerConfig("sgd", nesterov=True)
    assert repr(part) == "OptimizerConfig(name='sgd', nesterov=True)"
    assert eval(repr(part)) == part
    trainer = TrainerConfig(epochs=3, device="cpu")
    assert eval(repr(trainer)) == trainer
    with pytest.raises(ConfigError, match="diff: a TrainingConfig is needed"):
        a.diff({})  # type: ignore[arg-type]


def test_trainer_config() -> None:
    trainer = TrainerConfig(epochs=3)
    assert (trainer.max_epochs, trainer.devices) == (3, "auto")
    assert trainer.to_dict() == {"max_epochs": 3}
    assert pickle.loads(pickle.dumps(trainer)) == trainer
    assert copy.deepcopy(trainer) == trainer
    assert len({trainer, TrainerConfig(max_epochs=3)}) == 1
    with pytest.raises(AttributeError, match="TrainerConfig has no 'lr'"):
        _ = trainer.lr


def test_attributes_are_suggested() -> None:
    with pytest.raises(AttributeError, match="no 'epochs'; its name is 'max_epochs'"):
        _ = TrainingConfig().epochs  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"did you mean 'weight_decay'?"):
        _ = TrainingConfig().weightdecay  # type: ignore[attr-defined]


def test_signature_shows_the_fields() -> None:
    parameters = inspect.signature(TrainingConfig).parameters
    assert [*parameters] == [*FIELDS, "options"]
    assert parameters["lr"].default == 1e-3


def test_objects_whose_equality_is_odd() -> None:
    class Odd:
        def __call__(self) -> None: ...

        def __eq__(self, other: object) -> Any:
            return np.ones(2) == 1

        __hash__ = None  # type: ignore[assignment]

    odd = Odd()
    config = TrainingConfig(loss=odd)
    assert config == TrainingConfig(loss=odd)
    assert config != TrainingConfig(loss=Odd())
    assert config.diff(TrainingConfig()).keys() == {"loss"}
    with pytest.raises(TypeError, match="unhashable"):
        hash(config)


def test_patterns() -> None:
    names = ["body.0.weight", "body.0.bias", "body.01.weight", "head.weight", "head.bias"]
    assert select("freeze", ["body.0"], names) == names[:2]
    assert select("freeze", ["*.bias"], names) == ["body.0.bias", "head.bias"]
    assert select("freeze", ["head", "body.*.weight"], names) == [names[0], *names[2:]]
    assert matches("bod*", "body.0.weight")
    assert not matches("ody", "body.0.weight")
    with pytest.raises(
        ConfigError, match=r"freeze: must match .* got 'haed'; did you mean 'head'?"
    ):
        select("freeze", ["haed"], names)


def test_suggest() -> None:
    assert closest("weightDecay", ["lr", "weight_decay"]) == "weight_decay"
    assert closest("zzz", ["lr", "weight_decay"]) is None
    assert did_you_mean("l_r", ["lr"]) == "; did you mean 'lr'?"
    assert did_you_mean("zzz", ["lr"]) == ""


def test_importing_the_configuration_does_not_import_numpy() -> None:
    code = (
        "import sys, types; package = types.ModuleType('hotloop'); import importlib.util as u; "
        "spec = u.find_spec('hotloop'); package.__path__ = list(spec.submodule_search_locations); "
        "sys.modules['hotloop'] = package; import hotloop.training.config, "
        "hotloop.training.config.schedule; hotloop.training.config.TrainingConfig(epochs=3); "
        "print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("wanted", ["bf16", "16"])
def test_lightnings_other_precisions(wanted: str) -> None:
    words = rf"got '{wanted}-true'; write precision='{wanted}-mixed'"
    with pytest.raises(ConfigError, match=words):
        TrainingConfig(precision=f"{wanted}-true")
