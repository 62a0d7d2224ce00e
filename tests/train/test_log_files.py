"""What a run writes, and when: the CSV log of a run that asked for one, or that takes a minute."""

import csv
import os
from pathlib import Path
from typing import Any

import hotloop as hl
import pytest
from hotloop.training.checkpoints import folder
from train.recipes import classes, mlp, same_bits

RUN: dict[str, Any] = {"max_epochs": 3, "enable_progress_bar": False}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Recorder:
    """What lies on disk after each epoch."""

    def __init__(self) -> None:
        self.files: list[list[str]] = []

    def on_epoch_end(self, run: Any) -> None:
        self.files.append(written())


def written() -> list[str]:
    return sorted(map(str, Path().rglob("*.csv")))


def rows_of(path: str) -> list[float]:
    with open(path) as file:
        return [float(row["epoch"]) for row in csv.DictReader(file)]


def test_a_short_run_leaves_no_folder() -> None:
    result = hl.train(mlp(), classes(), **RUN)
    assert os.listdir() == []
    assert result.log_path is None


def test_after_a_minute_the_whole_history_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(folder, "UNASKED_AFTER", 0.0)
    recorder = Recorder()
    result = hl.train(mlp(), classes(), max_epochs=3, callbacks=[recorder])
    assert result.log_path == os.path.abspath("runs/1/metrics.csv")
    assert rows_of(result.log_path) == [1.0, 2.0, 3.0]
    assert recorder.files[:2] == [[], ["runs/1/metrics.csv"]]  # a row when its epoch is over
    said = capsys.readouterr().err
    assert "output in runs after a minute" in said
    assert "hotloop: output goes to runs/1" in said


def test_a_minute_that_is_over_in_the_last_epoch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Recorder):
        def on_epoch_end(self, run: Any) -> None:
            super().on_epoch_end(run)
            if run.epoch == 3:
                monkeypatch.setattr(folder, "UNASKED_AFTER", 0.0)

    slow = Slow()
    result = hl.train(mlp(), classes(), **RUN, callbacks=[slow])
    assert result.log_path is not None
    assert slow.files == [[], [], []]
    assert rows_of(result.log_path) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ({"logger": "csv"}, "runs/1/metrics.csv"),
        ({"logger": True}, "runs/1/metrics.csv"),
        ({"output_dir": "runs"}, "runs/1/metrics.csv"),
        ({"output_dir": "here", "logger": "csv"}, "here/1/metrics.csv"),
    ],
)
def test_what_is_asked_for_is_written_at_once(
    asked: dict[str, Any], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = hl.train(mlp(), classes(), max_epochs=3, **asked)
    assert written() == [path]
    assert result.log_path == os.path.abspath(path)
    assert f"output {os.path.dirname(path)}" in capsys.readouterr().err
    assert rows_of(path) == [1.0, 2.0, 3.0]


def test_no_logger_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "UNASKED_AFTER", 0.0)
    for options in ({"logger": None}, {"logger": None, "output_dir": "here"}):
        result = hl.train(mlp(), classes(), **RUN, **options, enable_checkpointing=False)
        assert (os.listdir(), result.log_path) == ([], None)


def test_another_folder_in_between_does_not_move_the_log(tmp_path: Path) -> None:
    class Elsewhere:
        def on_epoch_end(self, run: Any) -> None:
            os.makedirs("elsewhere", exist_ok=True)
            os.chdir(tmp_path / "elsewhere")

    result = hl.train(mlp(), classes(), **RUN, output_dir="logs", callbacks=[Elsewhere()])
    assert result.log_path == str(tmp_path / "logs/1/metrics.csv")
    assert rows_of(result.log_path) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("minute", [0.0, 60.0])
def test_a_run_that_fails_leaves_what_it_reached(
    minute: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "UNASKED_AFTER", minute)

    class Failing:
        def on_epoch_end(self, run: Any) -> None:
            if run.epoch == 2:
                raise RuntimeError("of the user's")

    with pytest.raises(RuntimeError, match="of the user's"):
        hl.train(mlp(), classes(), **RUN, callbacks=[Failing()])
    assert written() == ([] if minute else ["runs/1/metrics.csv"])
    assert minute or rows_of("runs/1/metrics.csv") == [1.0, 2.0]


def test_a_run_without_an_epoch_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "UNASKED_AFTER", 0.0)

    class Stopping:
        def on_train_begin(self, run: Any) -> None:
            run.stop()

    result = hl.train(mlp(), classes(), **RUN, callbacks=[Stopping()])
    assert (result.epochs, os.listdir(), result.log_path) == (0, [], None)


def test_a_folder_that_cannot_be_made_is_an_error_before_the_first_step() -> None:
    Path("file").write_text("")
    model = mlp()
    before = model.state_dict()
    with pytest.raises(
        hl.CheckpointError, match=r"output_dir: 'file/runs' cannot be used: .*; wri"
    ):
        hl.train(model, classes(), max_epochs=3, output_dir="file/runs")
    assert same_bits(model.state_dict(), before)
    assert Path("file").read_text() == ""


def test_one_that_nobody_asked_for_is_said_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "UNASKED_AFTER", 0.0)
    Path("runs").write_text("")
    result = hl.train(mlp(), classes(), max_epochs=3)
    said = capsys.readouterr().err
    assert said.count("nothing is written, 'runs' cannot be used") == 1
    assert (result.log_path, result.epochs) == (None, 3)
