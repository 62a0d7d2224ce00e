"""examples/temporal: classifiers of windows of a time series, as its run files and programs say."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop.tools.cli import main
from hotloop.tools.runfile import read_run
from train.recipes import same_bits
from train.test_examples import ROOT, run

FOLDER = ROOT / "examples" / "temporal"


@pytest.fixture(scope="module")
def temporal() -> Iterator[ModuleType]:
    """The program, as a module."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("temporal")
    sys.path.remove(str(FOLDER))


def small_run(folder: Path, name: str, rows: int) -> Path:
    """The run file, and the programs beside it, with a series of so many rows."""
    for path in FOLDER.glob("*.py"):
        (folder / path.name).write_text(path.read_text())
    text = (FOLDER / f"{name}.toml").read_text()
    file = folder / f"{name}.toml"
    file.write_text(text.replace("[data]\n", f"[data]\nrows = {rows}\n"))
    return file


def write_series(path: Path, hours: int = 400) -> None:
    """A few days of a series that repeats, as files of the ETT data have it."""
    times = np.datetime64("2016-07-01T00") + np.arange(hours)
    waves = np.sin(2 * np.pi * (np.arange(hours)[:, None] + np.arange(7)) / 24)
    values = 10.0 * waves + np.random.default_rng(0).normal(size=waves.shape)
    lines = ["date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT"]
    for time, row in zip(times, values):
        lines.append(f"{str(time).replace('T', ' ')}:00:00,{','.join(map(str, row))}")
    path.write_text("\n".join(lines) + "\n")


def accuracies(text: str) -> dict[str, float]:
    """Of each model that a program prints."""
    found = re.findall(r"^(\S.*?) +(0\.\d\d\d)(?:  balanced|$)", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


# ---- what the run files say


@pytest.mark.parametrize(
    ("name", "parameters", "batch", "lr", "clip"),
    [
        ("lstm", 625_726, 256, 5e-4, 0.5),
        ("transformer", 608_003, 256, 3e-4, 0.5),
        ("mlp", 26_381, 512, 1e-3, 1.0),
        ("lstm_t4", 625_726, 512, 5e-4, 0.5),
    ],
)
def test_run_files(name: str, parameters: int, batch: int, lr: float, clip: float) -> None:
    model, data, config = read_run(FOLDER / f"{name}.toml")
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert data.example_batch()["x"] == ("float32", (batch, 20, 29))
    assert [len(data.rows(part)) for part in ("train", "val", "test")] == [76_981, 16_481, 16_481]
    assert data.rows("train").max() < data.rows("val").min() <= data.rows("test").min()
    assert len(data.classes) == 3
    assert (config.optimizer, config.lr, config.weight_decay) == ("adamw", lr, 5e-4)
    assert config.gradient_clip_val == clip
    assert (config.label_smoothing, config.class_weight) == (0.1, "balanced")
    assert (config.monitor, config.early_stopping.patience) == ("val_accuracy", 15)
    if name == "mlp":
        plateau = hl.SchedulerConfig("plateau", factor=0.5, patience=8)
        assert (config.scheduler, config.warmup) == (plateau, 0)
    else:
        assert (config.scheduler, config.warmup) == ("cosine", "5 epochs")


def test_the_series_is_the_same_each_time_and_stands_once_in_memory(temporal: ModuleType) -> None:
    series, target = temporal.make_series(3000)
    again, same = temporal.make_series(3000)
    np.testing.assert_array_equal(series, again)
    np.testing.assert_array_equal(target, same)
    shares = np.bincount(target) / 3000
    assert shares.argmax() == 1
    assert shares.min() > 0.15
    held, length = temporal.synthetic(3000).split("train").fields[0].source
    assert (held.nbytes, length) == (series.nbytes, 20)


def test_the_t4_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Planned for a T4, which is not here: float16, batches of 512, within its memory."""
    file = small_run(tmp_path, "lstm_t4", 2000)
    report = hl.plan(*read_run(file), device="T4")
    assert report.precision == "fp16 products; fp32 for the rest"
    assert "T4" in report.device
    assert report.fits
    assert report.info["slot_bytes"] >= 512 * 4
    assert main(["plan", str(file), "--device", "T4"]) == 0
    assert "Tesla T4" in capsys.readouterr().out
    full = hl.plan(*read_run(FOLDER / "lstm_t4.toml"), device="T4", precision="32-true")
    assert full.peak_bytes > report.peak_bytes


# ---- what is trained


@pytest.mark.long
def test_the_t4_preset_trains_in_float16(tmp_path: Path) -> None:
    """On the CPU, which emulates it, and so slowly: with a scaled loss."""
    file = small_run(tmp_path, "lstm_t4", 500)
    model, data, config = read_run(file)
    before = model.state_dict()
    result = hl.train(model, data, config, accelerator="cpu", max_epochs=2)
    assert result.config.precision == "16-mixed"
    assert result.steps + result.skipped_steps == 2
    assert np.isfinite(result.history["val_loss"]).all()
    assert not same_bits(before, model.state_dict())


def test_flags_of_the_readme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(small_run(tmp_path, "lstm", 600))
    flags = ["--recompute", "--accumulate_grad_batches", "2", "--precision", "bf16-mixed"]
    assert main(["train", file, *flags, "--max_epochs", "1"]) == 0
    said = capsys.readouterr()
    assert "bf16" in said.out + said.err


def test_how_the_lstm_begins() -> None:
    """Xavier's uniform weights of inputs, orthogonal weights of hidden values, in each gate."""
    values = hl.models.lstm_classifier(29, 3).state_dict()
    found = 0
    for name, value in values.items():
        if "weight_ih" in name or "weight_hh" in name:
            found += 1
            if "weight_hh" in name:
                close = value.T @ value if value.shape[0] >= value.shape[1] else value @ value.T
                np.testing.assert_allclose(close, np.eye(len(close)), atol=1e-5)
            else:
                bound = np.sqrt(6 / sum(value.shape))
                assert 0.98 * bound < np.abs(value).max() <= bound
    assert found == 8  # of two layers and two directions


def test_attention_sums_to_one(tmp_path: Path) -> None:
    model, data, config = read_run(small_run(tmp_path, "lstm", 600))
    hl.train(model, data, config, max_epochs=1, enable_progress_bar=False)
    logits, attention = hl.predict(model, data, split="test")
    assert logits.shape == (len(data.rows("test")), 3)
    assert attention.shape == (len(data.rows("test")), 20)
    assert (attention >= 0).all()
    assert attention.std(1).max() > 1e-4  # they are weights, and not the mean
    np.testing.assert_allclose(attention.sum(1), 1, rtol=1e-5)


class StopsAfter:
    """Ends a run after so many epochs, as Ctrl-C does."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_epoch_end(self, run: Any) -> None:
        if run.epoch == self.epochs:
            run.stop()


@pytest.mark.parametrize("name", ["lstm", "mlp"])
def test_a_run_goes_on_with_the_bits_of_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    file = small_run(tmp_path, name, 400)
    options = {"max_epochs": 3, "enable_progress_bar": False, "accumulate_grad_batches": 2}
    whole = hl.train(*read_run(file), **options)
    folder = tmp_path / "runs"
    half = hl.train(*read_run(file), **options, output_dir=folder, callbacks=[StopsAfter(1)])
    assert (half.epochs, half.stop_reason) == (1, "interrupted")
    rest = hl.train(*read_run(file), **options, output_dir=folder, resume=True)
    assert rest.epochs == 3
    assert same_bits(rest.model.state_dict(), whole.model.state_dict())
    assert rest.history["val_accuracy"] == whole.history["val_accuracy"]


def test_recomputing_and_accumulating(tmp_path: Path) -> None:
    """Activations are computed again with the same bits; the memory of an epoch is in the rows."""
    model, data, config = read_run(small_run(tmp_path, "transformer", 700))
    config = config.replace(max_epochs=1, enable_progress_bar=False, accumulate_grad_batches=2)
    first = hl.train(model, data, config)
    model, data, _ = read_run(tmp_path / "transformer.toml")
    second = hl.train(model, data, config, recompute=True)
    assert same_bits(first.model.state_dict(), second.model.state_dict())
    assert second.peak_bytes < first.peak_bytes


def test_the_ensembles_models(temporal: ModuleType) -> None:
    """Counted by hand."""
    counts = {
        name: sum(p.numel() for p in make().parameters())
        for name, (_, make) in (temporal.KINDS | temporal.VARIANTS).items()
    }
    assert counts == {
        "LSTM": 625_726, "Transformer": 608_003, "MLP": 26_381, "MLP 256-128-64-32": 53_101,
        "MLP 512-256-128": 198_397, "MLP 128-64": 16_925,
    }  # fmt: skip


# ---- the programs


def test_the_program_in_miniature(tmp_path: Path) -> None:
    options = ["--rows", "400", "--epochs", "1", "--folds", "2"]
    text = run([str(FOLDER / "temporal.py"), *options], tmp_path, limit_s=600)
    found = accuracies(text)
    names = ("the most frequent class", "logistic regression", "LSTM", "Transformer")
    assert set(names) | {"MLP 128-64", "ensemble"} <= set(found)
    assert len(re.findall(r"^\S.*, cross-validation: 2 folds", text, re.MULTILINE)) == 3
    # Two blocks of 113 of the rows that are no test, less the 19 that no window ends with.
    assert "ensemble, 188 of 400 rows predicted: 0." in text
    if find_spec("matplotlib"):
        assert (tmp_path / "temporal.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_that_is_another(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    command = [sys.executable, str(FOLDER / "temporal.py"), "other.csv"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "other.csv: must be ETTh1.csv or ETTh2.csv of the ETT data" in done.stderr


@pytest.mark.extra
def test_the_programs_on_a_file(tmp_path: Path) -> None:
    write_series(tmp_path / "series.csv")
    (tmp_path / "here").mkdir()
    file = str(tmp_path / "series.csv")
    options = [file, "--epochs", "1"]
    found = accuracies(run([str(FOLDER / "temporal.py"), *options], tmp_path / "here", limit_s=600))
    assert {"LSTM", "Transformer", "ensemble"} <= set(found)
    found = accuracies(run([str(FOLDER / "etth.py"), file, "1"], tmp_path / "here", limit_s=600))
    rows = ("the most frequent class", "logistic regression", "MLP", "TCN", "LSTM", "Transformer")
    assert set(found) == set(rows)


# ---- what is learnt


@pytest.mark.long
def test_windows_tell_more_than_last_rows(tmp_path: Path) -> None:
    found = accuracies(
        run([str(FOLDER / "temporal.py"), "--epochs", "15"], tmp_path, limit_s=3000)
    )  # fmt: skip
    least = max(found["the most frequent class"], found["logistic regression"])
    assert found["MLP"] > least + 0.02  # a product of two values
    for name in ("LSTM", "Transformer", "ensemble"):
        assert found[name] > least + 0.1
        assert found[name] > found["MLP"] + 0.05  # what was eight rows before


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("HOTLOOP_PROOF"), reason="make proof trains on both")
@pytest.mark.parametrize(("name", "least"), [("ETTh1", 0.45), ("ETTh2", 0.7)])
def test_what_the_ett_data_tell(name: str, least: float, data_dir: Path, tmp_path: Path) -> None:
    """With class weights the mean over classes counts: a third is what a guess has."""
    file = data_dir / f"{name}.csv"
    text = run([str(FOLDER / "temporal.py"), str(file), "--epochs", "15"], tmp_path, limit_s=3000)
    balanced = dict(re.findall(r"^(\S.*?) +0\.\d+  balanced (0\.\d+)$", text, re.MULTILINE))
    for model in ("LSTM", "Transformer", "MLP", "ensemble"):
        assert float(balanced[model]) > least


@pytest.mark.long
def test_settings_that_suit_the_ett_data(data_dir: Path, tmp_path: Path) -> None:
    text = run([str(FOLDER / "etth.py"), str(data_dir / "ETTh1.csv")], tmp_path, limit_s=3000)
    found = accuracies(text)
    for model in ("MLP", "TCN", "LSTM", "Transformer"):
        assert found[model] > found["the most frequent class"] + 0.01
