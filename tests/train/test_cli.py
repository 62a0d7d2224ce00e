"""The command line: each command does its work, and mistakes are one sentence and a status."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.tools.cli import main
from hotloop.tools.inspection import inspect_file
from needs import take_library
from train.recipes import classes, mlp, quiet

NET = """\
from hotloop import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

a_number = 3
"""
RUN = """\
model = "net.py:Net"
save = "net.safetensors"

[data]
x = "data.npz:x"
y = "data.npz:y"
val = 0.25
batch_size = 16

[training]
max_epochs = 2
seed = 1
"""


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A folder with a model, data and a run file."""
    x = rng.standard_normal((120, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=np.abs(x[:, :3]).argmax(1))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "pickled.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def test_train_saves_a_model_that_predicts(folder: Path) -> None:
    assert main(["train", str(folder / "run.toml")]) == 0
    loaded = hl.load(folder / "net.safetensors")
    x = np.load(folder / "x.npy")
    assert hl.predict(loaded, x, proba=True).shape == (120, 3)


def test_train_draws_a_plot(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hotloop.training.result.result import TrainResult

    drawn: list[Path] = []
    monkeypatch.setattr(TrainResult, "plot", lambda _, path: drawn.append(path))
    monkeypatch.setattr("hotloop.tools.runfile.find_spec", lambda _: object())
    (folder / "run.toml").write_text('plot = "net.png"\n' + RUN)
    assert main(["train", str(folder / "run.toml")]) == 0
    assert drawn == [folder / "net.png"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("max_epochs", "max_epoch", "max_epochs"),
        ("[training]", "[trainig]", "did you mean 'training'"),
        ("data.npz:x", "data.npz:z", "holds the arrays x, y"),
        ("data.npz:x", "nothing.npy", "nothing.npy"),
        ("data.npz:x", "data.csv", 'write table = "data.csv" and target = "NAME" in place of x'),
        ("data.npz:x", "data.csv:age", 'write table = "data.csv"'),
        ("data.npz:x", "pickled.npy", "holds Python objects, which are not read from a file"),
        ("data.npz:x", "x.parquet", "must be .npy or .npz"),
        ("net.py:Net", "net.py:Nett", "must define Nett, got Net; did you mean 'Net'?"),
        ("net.py:Net", "net.py:net", "did you mean 'Net'?"),
        ("net.py:Net", "net.py:a_number", "must make a hotloop.nn.Module"),
        ("net.py:Net", "other.py:Net", "other.py"),
        ("batch_size", "batchsize", "batchsize"),
        ("x = ", "x == ", "cannot be read"),
    ],
)
def test_train_refuses(folder: Path, capsys, old: str, new: str, words: str) -> None:
    (folder / "run.toml").write_text(RUN.replace(old, new, 1))
    assert main(["train", str(folder / "run.toml")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("hotloop: error: ")
    assert words in error
    assert not (folder / "net.safetensors").exists()


TABLE = """\
model = "net.py:Net"
save = "net.safetensors"

[data]
table = "data.csv"
target = "kind"
val = 0.25
"""


def write_table(folder: Path) -> Any:
    pandas = take_library("pandas")
    x = np.load(folder / "x.npy")
    frame = pandas.DataFrame(x, columns=["a", "b", "c", "d"])
    frame["kind"] = np.array(["low", "mid", "high"])[np.abs(x[:, :3]).argmax(1)]
    frame.to_csv(folder / "data.csv", index=False)
    return frame


def test_train_reads_a_csv_table(folder: Path) -> None:
    frame = write_table(folder)
    (folder / "run.toml").write_text(TABLE + "[training]\nmax_epochs = 1\n")
    assert main(["train", str(folder / "run.toml")]) == 0
    loaded = hl.load(folder / "net.safetensors")
    assert loaded.classes == ["high", "low", "mid"]
    assert set(hl.predict(loaded, frame, labels=True)) <= {"high", "low", "mid"}
    assert main(["plan", str(folder / "run.toml")]) == 0


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('target = "kind"', "", "target must name a column of the table (a, b, c, d, kind)"),
        ('"kind"', '"kinds"', "did you mean 'kind'?"),
        ("data.csv", "other.csv", "[data] table: there is no file 'other.csv'"),
        ("data.csv", "x.npy", "[data] table: must be a path to .csv"),
        ("table", 'x = "x.npy"\ntable', "x and y are in the table already, got x beside it"),
        ("val = 0.25", "vall = 0.25", "did you mean 'val'?"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(
    folder: Path, capsys, old: str, new: str, words: str
) -> None:
    write_table(folder)
    (folder / "run.toml").write_text(TABLE.replace(old, new, 1))
    assert main(["train", str(folder / "run.toml")]) == 1
    assert words in capsys.readouterr().err


def test_inspect(folder: Path, capsys) -> None:
    main(["train", str(folder / "run.toml")])
    capsys.readouterr()
    assert main(["inspect", str(folder / "net.safetensors")]) == 0
    out = capsys.readouterr().out
    assert "model: Net" in out
    assert "input x: float32 (rows, 4)" in out
    assert "0.weight  F32  (8, 4)" in out
    assert "4 tensors, 67 values, 268 bytes" in out


def test_inspect_of_another_programs_file(tmp_path: Path, capsys) -> None:
    from safetensors.numpy import save_file

    save_file({"w": np.zeros((2, 3), np.float16)}, tmp_path / "a.safetensors", {"by": "someone"})
    assert main(["inspect", str(tmp_path / "a.safetensors")]) == 0
    out = capsys.readouterr().out
    assert "not written by hotloop" in out
    assert "by: someone" in out
    assert "1 tensors, 6 values, 12 bytes" in out


def test_inspect_of_a_damaged_description(tmp_path: Path, capsys) -> None:
    from safetensors.numpy import save_file

    for i, text in enumerate(["{", "[]", json.dumps({"class": "Net", "format": 1, "fitted": 3})]):
        path = tmp_path / f"{i}.safetensors"
        save_file({"w": np.zeros(1, np.float32)}, path, {"hotloop": text})
        assert main(["inspect", str(path)]) == 0
        assert "damaged" in capsys.readouterr().out


def test_inspect_of_what_is_no_model(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.txt").write_text("hello")
    assert main(["inspect", str(tmp_path / "a.txt")]) == 1
    assert main(["inspect", str(tmp_path / "missing")]) == 1
    assert main(["inspect", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.count("hotloop: error: inspect: ") == 3
    assert f"must be a file, got the folder {tmp_path}" in said


def test_plan_of_the_demo_and_of_a_file(folder: Path, capsys) -> None:
    assert main(["plan"]) == 0
    out = capsys.readouterr().out
    assert "memory:" in out
    assert "cpu." not in out
    assert main(["plan", "--instructions"]) == 0
    assert "cpu.adam" in capsys.readouterr().out
    main(["train", str(folder / "run.toml")])
    assert main(["plan", str(folder / "net.safetensors"), "--batch", "1", "--instructions"]) == 0
    assert "cpu." in capsys.readouterr().out


def test_plan_trains_nothing() -> None:
    from hotloop.tools.planning import plan

    x = np.zeros((64, 4), np.float32)
    model = nn.Linear(4, 3)
    before = {name: value.copy() for name, value in model.state_dict().items()}
    report = plan(model, hl.DataModule.from_arrays(x, np.arange(64) % 3, batch_size=16))
    assert report.info["n_nodes"] > 0
    for name, value in model.state_dict().items():
        assert np.array_equal(value, before[name])


def test_doctor(capsys) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for words in (
        "machine",
        "instruction sets",
        "build",
        "backends",
        "cpu:0",
        "numpy",
        "HOTLOOP_CPU",
    ):
        assert words in out


def test_help_names_every_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    for command in ("demo", "train", "plan", "doctor", "inspect"):
        assert f"\n    {command} " in done.stdout


def test_unknown_command_is_status_2(capsys) -> None:
    with pytest.raises(SystemExit) as error:
        main(["dmeo"])
    assert error.value.code == 2
    assert "dmeo" in capsys.readouterr().err


def test_inspect_of_a_checkpoint(tmp_path: Path) -> None:
    config = quiet(max_epochs=3, lr=0.25, output_dir=tmp_path, enable_checkpointing=True)
    result = hl.train(mlp(), classes(), config)
    text = inspect_file(result.last_path)
    assert "run: 3 epochs ended; resume goes on from here" in text
    assert f"optimizer steps: {result.steps}\n" in text
    assert f"best val_loss: {result.best_score:.6g} in epoch {result.best_epoch}\n" in text
    assert "lr=0.25" in text
    assert "checksums" not in text
