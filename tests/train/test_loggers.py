"""Loggers: what each is given, at which steps, and what becomes of one that fails or is killed."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.training.checkpoints import folder
from hotloop.training.loggers import files, loggers
from hotloop.training.loggers.record import Record
from hotloop.training.run import progress
from hotloop.training.scoring.names import MEASURED
from needs import NO_GPU, take_library
from train.recipes import classes, mlp, quiet, same_bits, weights

X, Y = classes(100)
STEP = {"train/loss_step", "train/grad_norm", "learning_rate"}
ROW = {"epoch", "train/loss", "val/loss", "val/accuracy", "learning_rate", *MEASURED}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def data() -> hl.DataModule:
    return hl.DataModule.from_arrays(X, Y, val=0.2, batch_size=8)  # 10 steps


class Seen:
    """A logger of the user's that keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, dict[str, float]]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.calls.append((step, values))

    @property
    def steps(self) -> list[int]:
        return [step for step, values in self.calls if "train/loss_step" in values]


def lines_of(path: str | Path) -> list[dict[str, Any]]:
    text = Path(path).read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def timeless(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in ("time", *MEASURED)} for line in lines]


# ---- what is logged


def test_names_and_steps() -> None:
    seen = Seen()
    note = hl.LambdaCallback(on_train_batch_end=lambda run: run.log("mine", run.step))
    config = quiet(max_epochs=2, lr=0.01, scheduler="cosine", log_every_n_steps=4, logger=seen)
    result = hl.train(mlp(), data(), config, callbacks=[note])
    assert [step for step, _ in seen.calls] == [4, 8, 10, 12, 16, 20, 20]
    for step, values in seen.calls[:2]:
        assert values.keys() == STEP, step
    row = seen.calls[2][1]
    assert row.keys() == ROW | {"mine"}
    history = result.history
    names = {"train/loss": "loss", "val/loss": "val_loss", "learning_rate": "lr", "mine": "mine"}
    assert [row[name] for name in names] == [history[known][0] for known in names.values()]
    # A value of the last step, which its own record had, is not in the epoch's again.
    assert seen.calls[5][1].keys() == STEP
    assert seen.calls[6][1].keys() == (ROW | {"mine"}) - {"learning_rate"}


def test_values_are_those_of_the_steps() -> None:
    told: list[dict[str, float]] = []
    seen = Seen()
    note = hl.LambdaCallback(on_train_batch_end=lambda run: told.append(run.logs))
    config = quiet(max_epochs=2, lr=0.01, scheduler="cosine", log_every_n_steps=1, logger=seen)
    hl.train(mlp(), data(), config, callbacks=[note])
    found = [values for _, values in seen.calls if "train/loss_step" in values]
    assert [v["train/loss_step"] for v in found] == [logs["loss"] for logs in told]
    assert [v["train/grad_norm"] for v in found] == [logs["grad_norm"] for logs in told]
    assert [v["learning_rate"] for v in found] == [logs["lr"] for logs in told]


@pytest.mark.parametrize("between", [0.0, 1.0, 1e9])
@pytest.mark.parametrize("every", [1, 7, 50, 300])
@pytest.mark.parametrize("sees_steps", [False, True])
def test_readings_of_the_device(
    sees_steps: bool, every: int, between: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step is lost, however rarely the ring is read, and it is read no more than asked for."""
    monkeypatch.setattr(loggers, "_BETWEEN", between)
    readings: list[int] = []

    class Session:
        def __init__(self, session: Any) -> None:
            self._session = session

        def control_log(self, since: int) -> Any:
            readings.append(since)
            return self._session.control_log(since)

    begin = loggers.Loggers.begin
    monkeypatch.setattr(
        loggers.Loggers, "begin", lambda self, session, *rest: begin(self, Session(session), *rest)
    )
    seen, plain, model = Seen(), mlp(), mlp()
    x, y = classes(1000)
    many = hl.DataModule.from_arrays(x, y, batch_size=1)
    hl.train(plain, many, quiet(max_epochs=1))
    note = hl.LambdaCallback(on_train_batch_end=lambda run: None)  # the loop sees each step
    config = quiet(max_epochs=1, logger=seen, log_every_n_steps=every)
    hl.train(model, many, config, callbacks=[note] if sees_steps else [])
    assert seen.steps == list(range(every, 1001, every))
    assert 1 <= len(readings) <= 1000 // every
    if between == 1e9:
        assert len(readings) <= 5
    assert same_bits(weights(plain), weights(model))


def test_all_objects() -> None:
    class Lightning:
        def __init__(self) -> None:
            self.got: list[Any] = []

        def log_metrics(self, values: dict[str, float], step: int) -> None:
            self.got.append((step, values))

    class Writer:
        def __init__(self) -> None:
            self.got: list[Any] = []
            self.n_flushed = 0

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.got.append((step, {name: value}))

        def flush(self) -> None:
            self.n_flushed += 1

    several = [Seen(), Lightning(), Writer()]
    hl.train(mlp(), data(), quiet(max_epochs=1, logger=several, log_every_n_steps=5))
    seen, lightning, writer = several
    assert lightning.got == seen.calls
    assert writer.got == [(step, {k: v}) for step, values in seen.calls for k, v in values.items()]
    assert writer.n_flushed == 1
    assert os.listdir() == []


@pytest.mark.parametrize("wrong", [object(), Seen, [Seen], 3, "tensorbord", [None]])
def test_what_is_no_logger(wrong: Any) -> None:
    with pytest.raises(hl.ConfigError, match="logger"):
        hl.TrainingConfig(logger=wrong)


# ---- files


def test_files(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    config = quiet(max_epochs=2, logger=["csv", "jsonl", seen], log_every_n_steps=4)
    result = hl.train(mlp(), data(), config.replace(val_check_interval=5))
    assert result.log_path == os.path.abspath("runs/1/metrics.csv")
    found = [(line.pop("step"), line) for line in lines_of("runs/1/metrics.jsonl")]
    for _, line in found:
        assert abs(line.pop("time") - time.time()) < 60
    assert found == seen.calls
    with open("runs/1/steps.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["step"]), int(row["epoch"])) for row in rows] == [
        (4, 1), (8, 1), (12, 2), (16, 2), (20, 2),
    ]  # fmt: skip
    steps = [values for _, values in seen.calls if "train/loss_step" in values]
    assert [float(row["loss"]) for row in rows] == [v["train/loss_step"] for v in steps]
    assert [float(row["lr"]) for row in rows] == [v["learning_rate"] for v in steps]
    with open("runs/1/metrics.csv") as file:
        assert [float(row["epoch"]) for row in csv.DictReader(file)] == result.history["epoch"]


def test_jsonl_alone_is_the_log() -> None:
    result = hl.train(mlp(), data(), quiet(max_epochs=1, logger="jsonl"))
    assert result.log_path == os.path.abspath("runs/1/metrics.jsonl")
    assert sorted(os.listdir("runs/1")) == ["config.toml", "environment.json", "metrics.jsonl"]


def test_steps_wait_for_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_late(self: Any, *, failed: bool) -> None:
        assert not os.listdir()
        monkeypatch.setattr(folder, "UNASKED_AFTER", 0.0)
        end(self, failed=failed)

    config, end = quiet(max_epochs=2, logger="auto", log_every_n_steps=4), files.StepsFile.end
    hl.train(mlp(), data(), config)
    assert not os.listdir()
    monkeypatch.setattr(files.StepsFile, "end", end_late)  # a minute that is over at the end
    hl.train(mlp(), data(), config)
    with open("runs/1/steps.csv") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == [4, 8, 12, 16, 20]


def test_numbers_that_json_has_not() -> None:
    config = quiet(max_epochs=1, on_nan="skip", logger=["jsonl", "csv"], log_every_n_steps=1)
    hl.train(nn.Linear(6, 3), data(), config.replace(optimizer="sgd", lr=3e38))
    losses = [
        line["train/loss_step"]
        for line in lines_of("runs/1/metrics.jsonl")
        if "train/loss_step" in line
    ]
    assert (len(losses), losses.count(None)) == (10, 9)
    with open("runs/1/steps.csv") as file:
        assert [row["loss"] in ("", "inf") for row in csv.DictReader(file)].count(True) == 9


def test_a_line_is_written_whole_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    files.append_whole(file, b"first\n")
    write = os.write

    def short(file: int, data: Any) -> int:
        if len(data) < 8:
            raise OSError(errno.ENOSPC, "no space")
        return write(file, data[:4])

    monkeypatch.setattr(os, "write", short)
    with pytest.raises(OSError, match="no space"):
        files.append_whole(file, b"second line\n")
    assert path.read_bytes() == b"first\n"
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:3]))
    files.append_whole(file, b"third line\n")
    os.close(file)
    assert path.read_bytes() == b"first\nthird line\n"


# ---- a run that goes on


FIELDS: dict[str, Any] = {
    "max_epochs": 4, "lr": 0.01, "log_every_n_steps": 3, "save_every": "5 steps",
    "output_dir": "runs", "val_check_interval": 5, "enable_checkpointing": True,
}  # fmt: skip


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every checkpoint is written at once, and stays."""
    from hotloop.training.checkpoints import keeper

    submit = keeper.Writer.submit

    def submit_and_wait(self: Any, *args: Any) -> None:
        submit(self, *args)
        self.wait()

    monkeypatch.setattr(keeper.Writer, "submit", submit_and_wait)
    monkeypatch.setattr(keeper, "_KEPT", 1000)


def test_files_go_on_without_doubled_steps(kept: None) -> None:
    config = quiet(logger=["jsonl", "csv"], **FIELDS)
    hl.train(mlp(), data(), config)
    names = ("metrics.jsonl", "steps.csv", "metrics.csv")
    whole = {name: Path("runs/1", name).read_text() for name in names}
    before = lines_of("runs/1/metrics.jsonl")
    for step in (20, 15, 5):
        with open("runs/1/metrics.jsonl", "a") as file:
            file.write('{"step": 99, "train/lo')  # of a process that was killed
        with open("runs/1/steps.csv", "a") as file:
            file.write("3,1,0.5")
        hl.train(mlp(), data(), config, resume=f"runs/1/checkpoints/step-{step:09d}.safetensors")
        again = lines_of("runs/1/metrics.jsonl")
        assert timeless(again) == timeless(before)
        # What was there before the step stays as it is, and the rest was written again.
        n = sum(line["step"] <= step for line in before)
        assert again[:n] == before[:n]
        assert again[n:] != before[n:]
        before = again
        assert Path("runs/1/steps.csv").read_text() == whole["steps.csv"]
        rows, then = (csv.DictReader(text.splitlines()) for text in
                      (Path("runs/1/metrics.csv").read_text(), whole["metrics.csv"]))  # fmt: skip
        unmeasured = dict.fromkeys(MEASURED)
        assert [row | unmeasured for row in rows] == [row | unmeasured for row in then]


def test_a_checkpoint_has_its_steps_in_the_files(kept: None) -> None:
    seen = []

    def look(run: Any) -> None:
        step = int(re.findall(r"step-(\d+)", str(run.last_path))[0])
        seen.append((step, max(line["step"] for line in lines_of("runs/1/metrics.jsonl"))))

    fields = FIELDS | {"log_every_n_steps": 1, "save_top_k": 0, "val_check_interval": None}
    config = quiet(logger="jsonl", **(fields | {"save_every": "3 steps"}))
    hl.train(mlp(), data(), config, callbacks=[hl.LambdaCallback(on_checkpoint=look)])
    assert len(seen) >= 7
    assert all(logged >= step for step, logged in seen)


KILLED = """
import sys
import hotloop as hl
from train.recipes import classes, mlp, quiet
from train.test_loggers import FIELDS
data = hl.DataModule.from_arrays(*classes(5000), val=0.02, batch_size=4)
fields = FIELDS | {"max_epochs": 10**6, "log_every_n_steps": 1, "save_every": "100 steps"}
config = quiet(logger=["csv", "jsonl"], **(fields | {"val_check_interval": 50}))
print("begins", flush=True)
hl.train(mlp(), data, config, resume="auto")
"""


def test_kills(request: pytest.FixtureRequest) -> None:
    n = 20 if request.config.getoption("--long", default=False) else 5
    rng = np.random.default_rng(0)
    paths = os.pathsep.join(p for p in sys.path if p)
    environment = os.environ | {"PYTHONPATH": paths}
    reached = 0
    for _ in range(n):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED], env=environment, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"begins\n"
        time.sleep(0.3 + 0.5 * rng.random())
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        # One that was killed before its first checkpoint goes on in a folder of its own.
        run = max(Path("runs").iterdir(), key=lambda folder: int(folder.name))
        # The last line may be a part of one, which the next run cuts.
        found = whole_lines(run / "metrics.jsonl")
        steps = [json.loads(line)["step"] for line in found if "train/loss_step" in line]
        assert steps == list(range(1, len(steps) + 1))  # none twice, and none is missing
        rows = whole_lines(run / "steps.csv")[1:]
        assert [int(row.split(",")[0]) for row in rows] == list(range(1, len(rows) + 1))
        reached = max(reached, len(steps))
        history = run / "metrics.csv"
        assert not history.exists() or history.read_text().endswith("\n")
    assert reached > 100


def whole_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    return [line for line in path.read_text().splitlines(True) if line.endswith("\n")]


def test_a_part_of_a_line_is_cut(tmp_path: Path) -> None:
    """As a killed process may leave it."""
    fields = FIELDS | {"log_every_n_steps": 1, "output_dir": tmp_path}
    first = hl.train(mlp(), data(), quiet(logger=["csv", "jsonl"], **fields))
    (run,) = tmp_path.iterdir()
    for name in ("metrics.jsonl", "steps.csv"):
        written = (run / name).read_text()
        (run / name).write_text(written + written.splitlines()[-1][:9])
    hl.train(mlp(), data(), resume=first.last_path, max_epochs=6)
    found = lines_of(run / "metrics.jsonl")
    steps = [line["step"] for line in found if "train/loss_step" in line]
    assert steps == list(range(1, len(steps) + 1))
    rows = (run / "steps.csv").read_text().splitlines()[1:]
    assert [int(row.split(",")[0]) for row in rows] == steps


def test_objects_are_no_part_of_a_checkpoint() -> None:
    seen = Seen()
    first = hl.train(mlp(), data(), quiet(logger=seen, **FIELDS))
    with pytest.warns(hl.CheckpointWarning, match="give logger= again"):
        hl.train(mlp(), data(), resume=first.last_path, max_epochs=5)
    again = Seen()
    hl.train(mlp(), data(), resume=first.last_path, max_epochs=6, logger=again)
    assert again.calls[0][0] > max(step for step, _ in seen.calls)


# ---- what goes wrong


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_missing_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (name, *loggers._PACKAGES[name]):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    model = mlp()
    before = weights(model)
    with pytest.raises(hl.ConfigError, match=f"logger: '{name}' needs .*run pip install {name}"):
        hl.train(model, data(), quiet(logger=["csv", name]))
    assert same_bits(before, weights(model))
    assert os.listdir() == []


@pytest.mark.parametrize("fails_at", [1, 3])
def test_a_logger_that_fails(fails_at: int, capsys: pytest.CaptureFixture[str]) -> None:
    class Failing(Seen):
        def log(self, values: dict[str, float], step: int) -> None:
            super().log(values, step)
            if len(self.calls) >= fails_at:
                raise ConnectionError("no route")

    failing, seen, plain, model = Failing(), Seen(), mlp(), mlp()
    config = quiet(max_epochs=3, log_every_n_steps=5)
    hl.train(plain, data(), config)
    result = hl.train(model, data(), config.replace(logger=[failing, seen, "jsonl"]))
    said = capsys.readouterr().err
    assert said.count("the logger Failing stops here: ConnectionError: no route") == 1
    assert (result.stop_reason, len(failing.calls)) == ("completed", fails_at)
    assert len(seen.calls) == 9 == len(lines_of("runs/1/metrics.jsonl"))
    assert same_bits(weights(plain), weights(model))


def test_a_disk_that_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(file: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(files, "append_whole", refuse)
    result = hl.train(mlp(), data(), quiet(max_epochs=2, logger="jsonl"))
    assert capsys.readouterr().err.count("the logger jsonl stops here: OSError") == 1
    assert result.stop_reason == "completed"


# ---- trackers, by modules that note what is called


class Calls(list[Any]):
    """Notes calls, and gives what is to be given."""

    def noting(self, name: str, gives: Any = None) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self.append((name, args, named))
            return gives

        return call

    def of(self, name: str) -> list[Any]:
        return [(args, named) for one, args, named in self if one == name]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    for name in [name for name in os.environ if name.startswith(("WANDB", "MLFLOW", "TRACKIO"))]:
        monkeypatch.delenv(name)
    return Calls()


def make_run(calls: Calls, **attributes: Any) -> Any:
    run = types.SimpleNamespace(**attributes)
    run.log, run.finish = calls.noting("log"), calls.noting("finish")
    return run


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> Any:
    module = types.ModuleType("wandb")
    module.run = None  # type: ignore[attr-defined]
    module.init = calls.noting("init", make_run(calls, id="abc"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def trackio(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> Any:
    module = types.ModuleType("trackio")
    module.init = calls.noting("init", make_run(calls))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trackio", module)
    return module


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> Any:
    module: Any = types.ModuleType("mlflow")
    module.run = types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))
    module.active_run = calls.noting("active_run")
    module.start_run = calls.noting("start_run", module.run)
    for name in ("log_params", "log_metrics", "end_run"):
        setattr(module, name, calls.noting(name))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return module


def test_wandb(wandb: Any, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    config = quiet(max_epochs=1, logger=["wandb", seen], log_every_n_steps=4, lr=0.25)
    hl.train(mlp(), data(), config)
    assert [name for name, _, _ in calls] == ["init", "log", "log", "log", "finish"]
    ((args, named),) = calls.of("init")
    assert args == ()
    assert named.pop("config")["lr"] == 0.25
    assert re.fullmatch(r"Sequential-[0-9a-f]{8}", named.pop("name"))
    assert named == {"project": "hotloop", "mode": "offline", "settings": {"console": "off"}}
    assert calls.of("log") == [((values,), {"step": step}) for step, values in seen.calls]
    assert calls.of("finish") == [((), {"exit_code": 0})]
    assert os.listdir() == []
    calls.clear()
    for name, value in (("MODE", "online"), ("PROJECT", "pets"), ("NAME", "first")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    hl.train(mlp(), data(), config)
    named = calls.of("init")[0][1]
    assert (named["mode"], named["project"], named["name"]) == ("online", "pets", "first")


def test_a_run_of_wandb_that_is_there(wandb: Any, calls: Calls) -> None:
    wandb.run = make_run(calls, id="mine")
    hl.train(mlp(), data(), quiet(max_epochs=1, logger="wandb"))
    assert [name for name, _, _ in calls] == ["log"]
    calls.clear()
    hl.train(mlp(), data(), quiet(max_epochs=1, logger=wandb.run))
    assert [name for name, _, _ in calls] == ["log"]


def test_failed_runs_are_failed(wandb: Any, mlflow: Any, calls: Calls) -> None:
    def fail(run: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        hl.train(
            mlp(), data(), quiet(max_epochs=1, logger=["wandb", "mlflow"]),
            callbacks=[hl.LambdaCallback(on_epoch_end=fail)],
        )  # fmt: skip
    assert calls.of("finish") == [((), {"exit_code": 1})]
    assert calls.of("end_run") == [(("FAILED",), {})]
    calls.clear()
    config = quiet(max_epochs=4, lr=3e38, optimizer="sgd", gradient_clip_val=0, logger="wandb")
    with pytest.raises(hl.NotFiniteError):
        hl.train(mlp(), data(), config, on_nan="raise")
    assert calls.of("finish") == [((), {"exit_code": 1})]


def test_trackers_runs_of_folds(wandb: Any, mlflow: Any, calls: Calls) -> None:
    """Each fold has a run, whose name says which; one that is there is that of all."""
    config = quiet(max_epochs=1, logger=["wandb", "mlflow"])
    hl.cross_validate(mlp, (X, Y), config, 2)
    names = [named["name"] for _, named in calls.of("init")]
    assert [name.rpartition("-")[2] for name in names] == ["fold1", "fold2"]
    assert [named["run_name"] for _, named in calls.of("start_run")] == names
    assert all("fold" not in values for (values,), _ in calls.of("log"))
    calls.clear()
    wandb.run = make_run(calls, id="mine")
    mlflow.active_run = lambda: types.SimpleNamespace(info=types.SimpleNamespace(run_id="r"))
    hl.cross_validate(mlp, (X, Y), config, 2)
    assert not calls.of("init")
    for name in ("log", "log_metrics"):
        told = calls.of(name)
        steps = [named["step"] for _, named in told]
        assert steps == sorted(set(steps))
        assert [values["fold"] for (values,), _ in told] == [1.0, 2.0]
    assert len(calls.of("log_params")) == 1


def test_trackio(trackio: Any, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    hl.train(mlp(), data(), quiet(max_epochs=1, logger=["trackio", seen], lr=0.25))
    assert [name for name, _, _ in calls] == ["init", "log", "finish"]
    ((args, named),) = calls.of("init")
    assert args == ()
    assert named.pop("config")["lr"] == 0.25
    assert re.fullmatch(r"Sequential-[0-9a-f]{8}", named.pop("name"))
    assert named == {"project": "hotloop", "resume": "allow", "embed": False}
    assert calls.of("log") == [((values,), {"step": step}) for step, values in seen.calls]
    assert calls.of("finish") == [((), {})]


def test_mlflow(mlflow: Any, calls: Calls) -> None:
    config = quiet(
        max_epochs=1, logger="mlflow", lr=0.25, metrics=["accuracy", "f1_per_class"],
        log_every_n_steps=6, early_stopping=9,
    )  # fmt: skip
    hl.train(mlp(), data(), config)
    assert [name for name, _, _ in calls] == [
        "active_run", "start_run", "log_params", "log_metrics", "log_metrics", "end_run",
    ]  # fmt: skip
    ((_, named),) = calls.of("start_run")
    assert re.fullmatch(r"Sequential-[0-9a-f]{8}", named.pop("run_name"))
    assert named == {}
    ((params,), _) = calls.of("log_params")[0]
    assert (params["lr"], params["early_stopping.patience"]) == ("0.25", "9")
    assert all(isinstance(value, str) and len(value) <= 500 for value in params.values())
    (step, row) = calls.of("log_metrics")
    assert step[0][0].keys() == STEP
    assert step[1] == {"step": 6, "run_id": "abc"}
    assert {"train/loss", "val/f1_0_", "val/accuracy"} <= row[0][0].keys()
    assert row[1] == {"step": 10, "run_id": "abc"}
    assert calls.of("end_run") == [(("FINISHED",), {})]


def test_a_run_of_mlflow_that_is_there(mlflow: Any, calls: Calls) -> None:
    mlflow.active_run = calls.noting("active_run", mlflow.run)
    hl.train(mlp(), data(), quiet(max_epochs=1, logger="mlflow"))
    assert [name for name, _, _ in calls] == ["active_run", "log_params", "log_metrics"]


@pytest.mark.parametrize("strict", [True, False])
def test_trackers_go_on(
    strict: bool, wandb: Any, mlflow: Any, trackio: Any, calls: Calls, kept: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    named_trackers = ["wandb", "mlflow", "trackio"]
    for module, id in ((wandb, "w"), (trackio, "t")):
        module.init = calls.noting(f"{id}.init", run := make_run(calls, id=id))
        run.log = calls.noting(f"{id}.log")
    config = quiet(logger=[*named_trackers, "jsonl"], **FIELDS)
    hl.train(mlp(), data(), config)
    name = calls.of("t.init")[0][1]["name"]
    logged = {name: calls.of(name) for name in ("w.log", "t.log", "log_metrics")}
    calls.clear()
    path = "runs/1/checkpoints/step-000000020.safetensors"
    hl.train(mlp(), data(), config.replace(max_epochs=5, resume_strict=strict), resume=path)
    again = calls.of("w.init")[0][1]
    assert (again["id"], again["resume"]) == ("w", "allow")
    assert calls.of("t.init")[0][1]["name"] == name
    assert calls.of("start_run") == [((), {"run_id": "abc"})]
    assert calls.of("log_params") == []
    for name, before in logged.items():
        steps = [(named["step"], "epoch" in args[0]) for args, named in before + calls.of(name)]
        assert (len(set(steps)) == len(steps)) == strict, name  # what they have is not logged again
        assert max(steps)[0] == 50
    # A tracker that had no run then has all from the step on.
    calls.clear()
    hl.train(mlp(), data(), config.replace(logger="wandb", max_epochs=4), resume=path,
             output_dir="others")  # fmt: skip
    assert calls.of("w.log")[0][1]["step"] == 21


# ---- TensorBoard


def test_tensorboard_by_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is handed to TensorBoard's messages and records, where it is not installed too."""
    events: list[dict[str, Any]] = []

    class Event:
        def __init__(self, **fields: Any) -> None:
            events.append(fields)

        def SerializeToString(self) -> bytes:
            return b"event"

    class RecordWriter:
        def __init__(self, file: Any) -> None:
            self._file = file

        def write(self, data: bytes) -> None:
            self._file.write(b"record " + data + b"\n")

        def close(self) -> None:
            self._file.close()

    def session_log(**fields: Any) -> Any:
        return fields

    session_log.START = 1  # type: ignore[attr-defined]
    summary: Any = types.SimpleNamespace
    event_pb2: Any = types.ModuleType("event_pb2")
    event_pb2.Event, event_pb2.SessionLog = Event, session_log
    summary_pb2: Any = types.ModuleType("summary_pb2")
    summary_pb2.Summary = type("Summary", (summary,), {"Value": summary})
    record_writer: Any = types.ModuleType("record_writer")
    record_writer.RecordWriter = RecordWriter
    for name in ("tensorboard", "tensorboard.compat", "tensorboard.compat.proto",
                 "tensorboard.summary", "tensorboard.summary.writer"):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for name, module in (
        ("compat.proto.event_pb2", event_pb2), ("compat.proto.summary_pb2", summary_pb2),
        ("summary.writer.record_writer", record_writer),
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, f"tensorboard.{name}", module)
    seen = Seen()
    fields = FIELDS | {"max_epochs": 2}
    first = hl.train(mlp(), data(), quiet(logger=["tensorboard", seen], **fields))
    (path,) = Path("runs/1").glob("events.out.tfevents.*")
    assert path.read_bytes() == b"record event\n" * len(events)
    assert all(abs(event.pop("wall_time") - time.time()) < 60 for event in events)
    assert events[0] == {"file_version": "brain.Event:2"}
    assert [event["step"] for event in events[1:]] == [step for step, _ in seen.calls]
    found = [{v.tag: v.simple_value for v in event["summary"].value} for event in events[1:]]
    assert found == [values for _, values in seen.calls]
    events.clear()
    hl.train(mlp(), data(), resume=first.last_path, max_epochs=3, logger="tensorboard")
    assert [event.get("step") for event in events[:2]] == [None, 21]
    assert events[1]["session_log"] == {"status": 1}
    assert len(list(Path("runs/1").glob("events.out.tfevents.*"))) == 2


@pytest.mark.extra
def test_tensorboard_reads_it(kept: None) -> None:
    take_library("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = Seen()
    config = quiet(logger=["tensorboard", seen], **FIELDS)
    hl.train(mlp(), data(), config)

    def read() -> dict[str, list[tuple[int, float]]]:
        found = EventAccumulator("runs/1", size_guidance={"scalars": 0})
        found.Reload()
        return {
            tag: [(event.step, event.value) for event in found.Scalars(tag)]
            for tag in found.Tags()["scalars"]
            if tag not in MEASURED
        }

    wanted: dict[str, list[tuple[int, float]]] = {}
    for step, values in seen.calls:
        for name, value in values.items():
            if name not in MEASURED:
                wanted.setdefault(name, []).append((step, pytest.approx(value)))
    assert read() == wanted
    hl.train(mlp(), data(), config, resume="runs/1/checkpoints/step-000000020.safetensors")
    assert read() == wanted  # no step twice


# ---- lines


@pytest.mark.parametrize(("precision", "words"), [
    ("32-true", "Mixed precision training (AMP) disabled"),
    ("bf16-mixed", "✓ Mixed precision training (AMP) enabled"),
])  # fmt: skip
def test_lines(precision: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    fields: dict[str, Any] = {"max_epochs": 60, "logger": None, "enable_model_summary": False}
    fields |= {"verbose": "lines", "enable_progress_bar": True}
    hl.train(mlp(), data(), **fields, precision=precision)
    said = capsys.readouterr().err
    assert "\r" not in said
    assert "\x1b" not in said
    lines = said.splitlines()
    assert lines[:2] == ["Using device: cpu", words]
    assert lines[2].startswith("hotloop: ")
    assert sum(line.startswith("epoch") for line in lines) == 60
    assert not any("cuDNN" in line or "CUDA" in line for line in lines)


def test_lines_within_a_long_epoch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_LONGEST_SILENCE", 0.0)
    note = hl.LambdaCallback(on_train_batch_end=lambda run: None)  # the loop sees each step
    hl.train(
        mlp(), data(), max_epochs=1, logger=None, verbose="lines", callbacks=[note],
        scheduler="constant", warmup=0,
    )  # fmt: skip
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch 1/1")]
    assert re.match(r"epoch 1/1  8 of 80 samples  loss [\d.]+ +lr 0.001$", lines[0])
    assert lines[9].startswith("epoch 1/1  80 of 80 samples")
    assert lines[10].startswith("epoch 1/1  loss")


@pytest.mark.skipif(not os.environ.get("HOTLOOP_TEST_GPU"), reason=NO_GPU)
@pytest.mark.parametrize(
    ("benchmark", "deterministic"), [(True, False), (False, False), (True, True), (False, True)]
)
def test_a_gpu(
    gpu: Any, benchmark: bool, deterministic: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Benchmark mode is on where cuDNN is there to be timed, and its results may change by that."""
    told: list[dict[str, float]] = []
    seen = Seen()
    note = hl.LambdaCallback(on_train_batch_end=lambda run: told.append(run.logs))
    hl.train(
        mlp(), data(), max_epochs=2, verbose="lines", accelerator="gpu", benchmark=benchmark,
        deterministic=deterministic, precision="16-mixed", logger=seen, log_every_n_steps=1,
        callbacks=[note],
    )  # fmt: skip
    lines = capsys.readouterr().err.splitlines()
    lines = lines[lines.index("Using device: cuda:0") :]
    assert lines[1] == "✓ Mixed precision training (AMP) enabled"
    assert re.fullmatch(r"✓ CUDA Memory: \d+\.\d\d GB", lines[3])
    assert re.fullmatch(r"CUDA version: \d+\.\d+", lines[4])
    assert re.fullmatch(r"cuDNN version: (none|\d+\.\d+\.\d+)", lines[5])
    if not benchmark:
        assert lines[2] == "cuDNN benchmark mode disabled"
    elif deterministic:
        assert lines[2] == "cuDNN benchmark mode disabled (deterministic)"
    elif lines[5].endswith("none"):
        assert lines[2] == "cuDNN benchmark mode disabled (no cuDNN)"
    else:
        assert lines[2] == "✓ cuDNN benchmark mode enabled"
    assert lines[6].startswith("hotloop: ")
    found = [v["train/loss_step"] for _, v in seen.calls if "train/loss_step" in v]
    assert found == [logs["loss"] for logs in told]
    assert len(found) == 20


def test_quiet_lines_say_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    hl.train(mlp(), data(), max_epochs=2, logger=None, verbose="lines", enable_progress_bar=False)
    assert capfd.readouterr() == ("", "")


def test_the_header_names_loggers(capsys: pytest.CaptureFixture[str]) -> None:
    hl.train(mlp(), data(), max_epochs=1, logger=["jsonl", Seen()])
    assert "loggers jsonl, Seen" in " ".join(capsys.readouterr().err.split())


def test_records_are_ordered() -> None:
    number = loggers._Mark._number
    records = [Record(step, {}, is_row=is_row, epoch=1) for step in (1, 2) for is_row in (0, 1)]
    assert [number(record) for record in records] == sorted({number(r) for r in records})
