"""What is shown and logged while training: header, lines, bar, CSV."""

import csv
import io
import re
import sys
import time
import types
import xml.etree.ElementTree
from typing import Any

import hotloop as hl
import pytest
from hotloop import nn
from hotloop.base.messages import format_seconds
from hotloop.training.run import records
from hotloop.training.run.header import header_lines
from hotloop.training.run.progress import Progress
from train.recipes import classes, mlp

ROW = {
    "epoch": 1.0, "loss": 1.5, "val_loss": 0.25, "lr": 1e-3, "seconds": 0.01,
    "samples_per_second": 1e5, "data_wait": 0.002, "peak_bytes": 12_345_678.0,
}  # fmt: skip


def test_lines_stand_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("auto", 120)
    for epoch, loss in ((1, 1.5), (10, 0.123456), (120, 1e-5)):
        progress.begin_epoch(epoch, 1000)
        progress.end_epoch(epoch, {**ROW, "loss": loss}, 0.01)
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.index("val_loss") for line in lines[:2]] == [
        len("epoch   1/120  loss 1.5      ")
    ] * 2
    assert re.match(r"epoch 120/120  loss 1e-05 .* lr 0.001 .* 100 k samples/s .* 10 ms$", lines[2])


@pytest.mark.parametrize(("epochs", "most"), [(50, 50), (500, 51)])
def test_bar_keeps_lines_of_short_runs(epochs: int, most: int, monkeypatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    progress = Progress(True, epochs)
    for epoch in range(1, epochs + 1):
        progress.begin_epoch(epoch, 10)
        progress.advance(10, {"loss": 1.0})
        progress.end_epoch(epoch, ROW, 0.01)
    progress.close()
    shown = re.findall(r"epoch +(\d+)/\d+  loss", stream.getvalue())
    assert (shown[0], shown[-1]) == ("1", str(epochs))
    assert len(shown) <= most if epochs > 50 else len(shown) == most


def test_quiet_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    hl.train(mlp(), classes(), max_epochs=2, logger=None, enable_progress_bar=False)
    assert capfd.readouterr() == ("", "")


def test_header_keeps_to_100_columns() -> None:
    facts = [("name", "v" * n) for n in (30, 40, 20, 70, 5)]
    text = header_lines(facts)
    assert all(len(line) <= 100 for line in text.splitlines())
    assert " ".join(text.split()) == "hotloop: " + " | ".join(f"{n} {v}" for n, v in facts)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.00123, "1.2 ms"), (0.0123, "12 ms"), (0.9999, "1 s"), (59.9, "59.9 s"), (75, "1 min 15 s")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_csv_has_every_epoch_and_few_writes(tmp_path, monkeypatch) -> None:
    from hotloop import _core

    writes = []
    real = _core.write_file

    def write(path, parts):
        writes.append(path)
        real(path, parts)

    monkeypatch.setattr(_core, "write_file", write)
    result = hl.train(
        mlp(), classes(), max_epochs=300, output_dir=tmp_path, enable_progress_bar=False
    )
    (path,) = tmp_path.glob("*/metrics.csv")
    rows = list(csv.DictReader(path.open()))
    assert [float(row["loss"]) for row in rows] == result.history["loss"]
    writes = [path for path in writes if path.endswith(".csv")]
    assert 1 <= len(writes) <= 2 + result.seconds


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {},
            r"completed after .*; the model has the weights of epoch \d \(best val_loss, ",
        ),
        ({"restore_best": False}, r"completed after .*; the model has the last weights$"),
        (
            {"lr": 1e30, "gradient_clip_val": None, "warmup": 0, "max_epochs": 9},
            r"stopped: loss or gradient not finite at step \d+ after",
        ),
        (
            {"max_steps": 2},
            r"stopped at max_steps after .*; the model has the weights of epoch 1",
        ),
    ],
)
def test_last_words(fields, words, capsys: pytest.CaptureFixture[str]) -> None:
    hl.train(mlp(), classes(), **({"max_epochs": 2, "logger": None} | fields))
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.match("hotloop: " + words, last), last


def epochs_shown(text: str) -> list[int]:
    return [int(epoch) for epoch in re.findall(r"^epoch +(\d+)/\d+  loss", text, re.MULTILINE)]


@pytest.mark.parametrize(
    ("epochs", "first", "most"), [(50, [1, 2, 3], 50), (60, [1, 2, 4], 31), (10_000, [1, 200], 51)]
)
def test_lines_stand_every_n_epochs(epochs, first, most, capsys) -> None:
    progress = Progress("auto", epochs)
    for epoch in range(1, epochs + 1):
        progress.begin_epoch(epoch, 10)
        progress.end_epoch(epoch, ROW, 0.01)
    progress.close()
    shown = epochs_shown(capsys.readouterr().err)
    assert shown[: len(first)] == first
    assert (shown[-1], len(shown)) == (epochs, most)


def test_the_last_epoch_is_shown_wherever_it_ends(capsys) -> None:
    progress = Progress("auto", 10_000)
    for epoch in range(1, 251):
        progress.end_epoch(epoch, ROW, 0.01)
    progress.close()
    assert epochs_shown(capsys.readouterr().err) == [1, 200, 250]


def test_long_epochs_have_a_line_each(capsys, monkeypatch) -> None:
    """A line a minute, whatever their number."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    for seconds, every in ((61.0, 1), (20.0, 3)):
        progress = Progress("auto", 10**6)
        for epoch in range(1, 13):
            now[0] += seconds
            progress.end_epoch(epoch, ROW, seconds)
        assert epochs_shown(capsys.readouterr().err) == list(range(1, 13, every))


def test_lines_of_a_run_that_may_end_early(capsys) -> None:
    """Each of the first 50, then fewer and fewer."""
    progress = Progress("auto", 10**6, is_open=True)
    for epoch in range(1, 10_001):
        progress.end_epoch(epoch, ROW, 0.01)
    shown = epochs_shown(capsys.readouterr().err)
    assert shown[:50] == list(range(1, 51))
    assert shown[50:54] == [52, 54, 56, 58]
    assert shown[-3:] == [9600, 9800, 10_000]
    assert len(shown) < 260


@pytest.mark.parametrize("limit", [{"max_steps": 45}, {"early_stopping": 8}, {"max_time": 30.0}])
def test_limits_of_steps_and_time_count(limit, capsys) -> None:
    class Stopping:
        def on_epoch_end(self, run) -> None:
            if run.epoch == 9:
                run.stop()

    data = hl.DataModule.from_arrays(*classes(), val=0.2, batch_size=16)  # 5 steps an epoch
    hl.train(mlp(), data, max_epochs=10**5, callbacks=[Stopping()], **limit)
    assert epochs_shown(capsys.readouterr().err) == list(range(1, 10))


def test_a_run_of_many_epochs_shows_few_lines(capsys) -> None:
    hl.train(mlp(), classes(), max_epochs=300)
    shown = epochs_shown(capsys.readouterr().err)
    assert shown == [1, *range(10, 301, 10)]


class Notebook:
    """An IPython that keeps what a notebook would save: streams, and displays by their last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shell: type) -> None:
        self.displays: list[list[str]] = []
        package, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
        package.get_ipython = shell
        display.display = self.display
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def display(self, value: Any, *, display_id: bool) -> "Notebook":
        assert display_id is True
        self.displays.append([])
        self.update(value)
        return self

    def update(self, value: Any) -> None:
        self.displays[-1].append(repr(value))
        self.html = value._repr_html_()


class ZMQInteractiveShell:
    """The shell of a kernel."""


class Shell(ZMQInteractiveShell):
    """As Colab has it."""


@pytest.mark.parametrize("shell", [ZMQInteractiveShell, Shell])
def test_a_notebook_keeps_a_clean_final_bar(shell, capsys, monkeypatch) -> None:
    notebook = Notebook(monkeypatch, shell)
    hl.train(mlp(), classes(), max_epochs=200)
    out, err = capsys.readouterr()
    assert err == ""
    assert "\r" not in out
    assert "\x1b" not in out
    (states,) = notebook.displays
    assert len(states) <= 3 + 2 * 10
    assert epochs_shown(states[-1]) == [1, *range(5, 201, 5)]
    assert re.match(r"epoch 200/200: 100%\|█+\| .*loss=[\d.e-]+, lr=", states[-1].splitlines()[-1])
    assert "\r" not in states[-1]


def test_a_notebook_has_a_table_of_epochs(monkeypatch) -> None:
    notebook = Notebook(monkeypatch, ZMQInteractiveShell)

    def loss(outputs: hl.Tensor, targets: hl.Tensor) -> hl.Tensor:
        return nn.functional.cross_entropy(outputs, targets)

    metrics = [hl.metric(lambda y, p: 0.5, name="a<b", mode="max")]
    result = hl.train(mlp(), classes(), max_epochs=3, loss=loss, metrics=metrics)
    page = xml.etree.ElementTree.fromstring(f"<body>{notebook.html}</body>")
    head, *rows = [[cell.text for cell in row] for row in page.iter("tr")]
    assert head[:3] == ["epoch", "loss", "val_loss"]
    assert "val_a<b" in head
    assert head[-5:] == ["lr", "samples/s", "data wait", "peak memory", "wall time"]
    assert [row[0] for row in rows] == ["1/3", "2/3", "3/3"]
    assert [float(row[1]) for row in rows] == pytest.approx(result.history["loss"], rel=1e-3)
    assert "100%" in page.find("pre").text


def test_the_bar_of_a_notebook_stays_where_training_stopped(capsys, monkeypatch) -> None:
    class Stopping:
        def on_epoch_end(self, run) -> None:
            if run.epoch == 3:
                run.stop()

    notebook = Notebook(monkeypatch, ZMQInteractiveShell)
    hl.train(mlp(), classes(), max_epochs=12, callbacks=[Stopping()])
    assert re.match(r"epoch 3/12:  25%", notebook.displays[0][-1].splitlines()[-1])


def test_the_time_of_checkpoints_is_their_own(tmp_path, monkeypatch) -> None:
    """Neither training's nor, in a row, its throughput's; an epoch's time has it."""
    take, taken = records.capture, []

    def slow(*args: Any, **fields: Any) -> Any:
        taken.append(time.sleep(0.1))
        return take(*args, **fields)

    monkeypatch.setattr(records, "capture", slow)
    data = hl.DataModule.from_arrays(*classes(), val=0.2, batch_size=16)  # 5 steps an epoch
    fields = {"save_every": "1 steps", "output_dir": tmp_path, "enable_progress_bar": False}
    result = hl.train(mlp(), data, max_epochs=2, **fields)
    assert len(taken) >= 2  # after the first step, and at the end
    assert result.timings["checkpoint"] >= len(taken) * 0.1
    assert sum(result.timings.values()) == pytest.approx(result.seconds, rel=1e-9)
    assert result.timings["train"] < 0.1
    assert result.history["seconds"][0] >= 0.1
    assert min(result.history["samples_per_second"]) > 72 / 0.1
