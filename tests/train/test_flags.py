"""Flags of ``hotloop train``: every field of TrainingConfig that a text can say."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hotloop as hl
import pytest
from hotloop.tools.cli import main
from hotloop.tools.flags import UsageError, describe_flags, read_flags
from hotloop.training.config.spelling import ALIASES

# A value of each field that is not its default, as words and as Python has it.
VALUES: dict[str, tuple[str, Any]] = {
    "max_epochs": ("3", 3),
    "max_steps": ("1_000", 1000),
    "max_time": ("1h30m", "1h30m"),
    "optimizer": ('{name = "sgd", nesterov = true, momentum = 0.9}',
                  {"name": "sgd", "nesterov": True, "momentum": 0.9}),
    "lr": ("5e-5", 5e-5),
    "weight_decay": (".5", 0.5),
    "decay_norm_and_bias": ("true", True),
    "momentum": ("0.9", 0.9),
    "betas": ("0.8,0.99", (0.8, 0.99)),
    "scheduler": ("plateau", "plateau"),
    "warmup": ("5 epochs", "5 epochs"),
    "loss": ("mse", "mse"),
    "metrics": ("accuracy,f1", ["accuracy", "f1"]),
    "train_metrics": ("true", True),
    "label_smoothing": ("0.1", 0.1),
    "mixup": ("0.2", 0.2),
    "cutmix": ("1", 1.0),
    "class_weight": ("[[0, 1.0], [1, 2.5]]", {0: 1.0, 1: 2.5}),
    "accelerator": ("cpu", "cpu"),
    "devices": ("[0]", (0,)),
    "strategy": ("single", "single"),
    "precision": ("32", 32),
    "benchmark": ("false", False),
    "deterministic": ("true", True),
    "seed": ("none", None),
    "cuda_graph": ("false", False),
    "device_cache": ("true", True),
    "accumulate_grad_batches": ("4", 4),
    "gradient_clip_val": ("none", None),
    "gradient_clip_algorithm": ("value", "value"),
    "param_groups": ('[{params = "0", lr_scale = 0.1}]', [{"params": "0", "lr_scale": 0.1}]),
    "layer_decay": ("0.75", 0.75),
    "freeze": ("body.*,head", ("body.*", "head")),
    "unfreeze": ("head", ("head",)),
    "recompute": ("false", False),
    "memory_limit": ("none", None),
    "on_oom": ("raise", "raise"),
    "on_nan": ("skip", "skip"),
    "on_interrupt": ("return", "return"),
    "detect_anomaly": ("false", False),
    "ema": ("0.99", 0.99),
    "swa": ("0.8", 0.8),
    "early_stopping": ("5", 5),
    "monitor": ("val_accuracy", "val_accuracy"),
    "mode": ("max", "max"),
    "restore_best": ("false", False),
    "output_dir": ("2024", "2024"),
    "save_top_k": ("-1", -1),
    "save_last": ("false", False),
    "save_every": ("500 steps", "500 steps"),
    "max_disk": ("4GB", "4GB"),
    "resume_strict": ("false", False),
    "check_val_every_n_epoch": ("2", 2),
    "val_check_interval": ("none", None),
    "log_every_n_steps": ("50", 50),
    "limit_batches": ("0.5", 0.5),
    "overfit_batches": ("2", 2),
    "logger": ("none", None),
    "enable_progress_bar": ("auto", "auto"),
    "enable_checkpointing": ("false", False),
    "enable_model_summary": ("false", False),
    "verbose": ("lines", "lines"),
}  # fmt: skip
NEEDS = {"momentum": {"optimizer": "sgd"}}  # beside it


def read(*words: str) -> Any:
    flags = read_flags(["run.toml", *words])
    assert flags is not None
    return flags


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(hl.TrainingConfig)])
def test_every_field_is_a_flag(name: str) -> None:
    if name == "callbacks":  # objects of Python
        with pytest.raises(UsageError):
            read("--callbacks", "[]")
        return
    words, value = VALUES[name]
    beside = NEEDS.get(name, {})
    expected = hl.TrainingConfig(**{name: value}, **beside)
    spellings = [
        [f"--{name}", words],
        [f"--{name}={words}"],
        [f"--{name.replace('_', '-')}", words],
    ]
    for spelling in spellings:
        found = read(*spelling).overrides
        assert list(found) == [name]
        made = hl.TrainingConfig().replace(**found, **beside)
        assert getattr(made, name) == getattr(expected, name)


def test_other_spellings_are_flags() -> None:
    words = {"use_amp": "false", "amp": "true", "device": "cuda:0", "default_root_dir": "logs"}
    words |= {"losses": "mse,l1"}
    for name in ALIASES:
        word = words.get(name, "1" if "cudnn" not in name else "true")
        assert name in read(f"--{name}", word).overrides
    found = read(
        "--lr", "5e-5", "--no-use_amp", "--device", "cuda:0", "--max_epochs", "3", "--resume"
    )
    assert found.overrides == {"lr": 5e-5, "use_amp": False, "device": "cuda:0", "max_epochs": 3}
    assert found.resume is True


@pytest.mark.parametrize(
    ("words", "overrides"),
    [
        (["--ema", "--lr", "1"], {"ema": True, "lr": 1}),
        (["--no-ema"], {"ema": False}),
        (["--no_ema"], {"ema": False}),
        (["--no-benchmark", "--deterministic"], {"benchmark": False, "deterministic": True}),
        (["--use_amp", "False".lower()], {"use_amp": False}),
        (["--early_stopping"], {"early_stopping": True}),
        (["--lr=1", "--lr", "2"], {"lr": 2}),  # the last one counts
        (["--lr", "1e+05"], {"lr": 1e5}),
        (["--metrics", "f1"], {"metrics": "f1"}),
        (["--metrics", '["f1"]'], {"metrics": ["f1"]}),
        (["--logger", "jsonl,csv"], {"logger": ["jsonl", "csv"]}),
        (["--monitor", "val_loss"], {"monitor": "val_loss"}),
        (["--precision", "bf16"], {"precision": "bf16"}),
        (["--output_dir", "true"], {"output_dir": "true"}),
        (["--max_steps", "None"], {"max_steps": None}),
        (["--freeze", "{body = 5, head = true}"], {"freeze": {"body": 5, "head": True}}),
        (["--unfreeze", '{"body.0" = 5}'], {"unfreeze": {"body.0": 5}}),
    ],
)
def test_values(words: list[str], overrides: dict[str, Any]) -> None:
    assert read(*words).overrides == overrides
    if "--lr=1" not in words:
        assert json.dumps(read(*words).overrides) == json.dumps(overrides)  # 1 is not True


def test_the_file_may_stand_anywhere() -> None:
    for words in (
        ["--ema", "a.toml", "--lr", "1"],
        ["--recompute", "a.toml", "--lr", "1"],
        ["--resume", "a.toml"],
        ["--lr", "1", "a.toml", "--resume"],
        ["--no-use_amp", "a.toml"],
    ):
        found = read_flags(words)
        assert found is not None
        assert found.file == "a.toml"


def test_resume() -> None:
    assert read("--resume").resume is True
    assert read("--resume", "logs/1").resume == "logs/1"
    assert read("--resume=logs/1").resume == "logs/1"
    assert read("--resume", "auto").resume == "auto"
    assert read("--resume", "--lr", "1").resume is True
    assert read().resume is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--learing_rate", "1"], "there is no flag --learing_rate; did you mean --learning_rate?"),
        (["--no-use-ampp"], "there is no flag --no-use-ampp; did you mean --use_amp?"),
        (["--max_epoch=3"], "there is no flag --max_epoch; did you mean --max_epochs?"),
        (["--batch_size", "3"], "there is no flag --batch_size; flags are --resume and the fields"),
        (["--resme"], "did you mean --resume?"),
        (["--callbacks", "x"], "there is no flag --callbacks"),
        (["-x"], "there is no flag -x"),
        (["--lr"], "--lr: needs a value: --lr VALUE"),
        (["--lr", "--ema"], "--lr: needs a value"),
        (["--no-lr"], "lr has no such value; write --lr VALUE"),
        (["b.toml"], "a run file is needed, got run.toml and b.toml"),
    ],
)
def test_mistakes_in_the_command_line_are_status_2(
    capsys: Any, words: list[str], said: str
) -> None:
    assert main(["train", "run.toml", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hotloop train: error: ")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lr", "fast"], "--lr: a number is needed, got 'fast'"),
        (["--lr", "-1"], "--lr: must be greater than 0, got -1"),
        (["--use_amp=maybe"], "--use_amp: must be True or False, got 'maybe'"),
        (["--device", "gpu7x"], "--device: must be 'auto', 'cpu', 'cuda' or 'cuda:<number>'"),
        (["--optimizer", "adamm"], "did you mean 'adam'?"),
        (["--optimizer", '{nme = "sgd"}'], "--optimizer: "),
        (["--betas", "0.9"], "--betas: "),
        (["--logger", "wndb"], "--logger: must be one of"),  # it might stand alone
        (["--ema", "3"], "--ema: must be less than 1, got 3"),
    ],
)
def test_wrong_values_are_status_1_before_the_file_is_read(
    capsys: Any, words: list[str], said: str
) -> None:
    assert main(["train", "no/run.toml", *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith("hotloop: error: --")
    assert said in error
    assert error.count("\n") == 1


def test_flags_that_contradict_each_other_or_the_file(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "run.toml"
    (tmp_path / "net.py").write_text("def make(): ...\n")
    path.write_text(
        'model = "net.py:make"\n[data]\nX = [1.0]\n[training]\nlr = 1\nuse_amp = true\n'
    )
    assert main(["train", str(path), "--lr", "1", "--learning_rate", "2"]) == 1
    error = capsys.readouterr().err
    assert f"{path}: [training] and flags: two spellings of lr disagree, lr=1 and" in error
    assert main(["train", str(path), "--momentum", "0.5"]) == 1
    assert (
        "[training] and flags: momentum: the optimizer 'adamw' has none" in capsys.readouterr().err
    )


def test_a_flag_goes_before_the_file(tmp_path: Path) -> None:
    from hotloop.tools.runfile import _read_training

    table = {"learning_rate": 0.5, "use_amp": True, "max_epochs": 2}
    found = _read_training(tmp_path / "run.toml", table, {"lr": 0.1, "precision": 32})
    assert found == hl.TrainingConfig(lr=0.1, precision=32, max_epochs=2)


def test_help_names_every_field() -> None:
    text = describe_flags()
    for name in VALUES:
        assert f" --{name}" in text
    assert max(map(len, text.splitlines())) <= 100
    command = [sys.executable, "-m", "hotloop", "train", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout == text + "\n"


def test_a_file_is_needed(capsys: Any) -> None:
    assert main(["train"]) == 2
    assert "a run file is needed, got none: hotloop train run.toml" in capsys.readouterr().err
