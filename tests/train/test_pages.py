"""The page of a result: well formed, complete, and in need of nothing else."""

import re
import xml.etree.ElementTree
from pathlib import Path

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from needs import take_library
from train.recipes import quiet

pytestmark = pytest.mark.extra
X = np.random.default_rng(0).normal(size=(96, 6)).astype(np.float32)
NAMES = np.array(["<cat>", "dog & co", "eel"])[np.arange(96) % 3]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def _needs_matplotlib() -> None:
    take_library("matplotlib")


def train(**fields: object) -> hl.TrainResult:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    data = hl.DataModule.from_arrays(X, NAMES, val=0.25, batch_size=16)
    return hl.train(model, data, quiet(**{"max_epochs": 3, "lr": 0.0123} | fields))


def read(path: Path) -> tuple[xml.etree.ElementTree.Element, dict[str, list[list[str]]]]:
    """The page, and its tables by the heading before."""
    page = xml.etree.ElementTree.parse(path).getroot()
    tables: dict[str, list[list[str]]] = {}
    heading = ""
    for element in page.find("body").iter():
        if element.tag == "h2":
            heading = element.text
        elif element.tag == "tr":
            tables.setdefault(heading, []).append(["".join(c.itertext()) for c in element])
    return page, tables


def test_a_page_has_what_the_result_has(tmp_path: Path) -> None:
    result = train()
    text = result.report(tmp_path / "run.html")
    assert text == result.report()
    page, tables = read(tmp_path / "run.html")
    assert repr(result) in "".join(page.itertext())
    matrix = tables["Confusion matrix, rows true, columns predicted"]
    assert matrix[0] == ["", "<cat>", "dog & co", "eel"]
    np.testing.assert_array_equal(
        np.array([r[1:] for r in matrix[1:]], int), result.confusion_matrix
    )
    epochs = tables["Epochs"]
    assert epochs[0] == list(result.history)
    losses = [float(row[epochs[0].index("val_loss")]) for row in epochs[1:]]
    assert losses == pytest.approx(result.history["val_loss"], rel=1e-4)
    assert {row[0] for row in tables["Time"]} >= {"plan", "train", "validate", "checkpoint", "all"}
    assert dict(tables["Machine"])["device"] == result.device
    shown = "\n".join(element.text for element in page.iter("pre"))
    assert "lr = 0.0123" in shown
    assert "Linear(in_features=6, out_features=8" in shown
    assert "adam" in shown.partition("apply\n")[2]  # the plan
    assert len(list(page.iter(SVG + "svg"))) == 1


def test_a_page_needs_nothing_else(tmp_path: Path) -> None:
    train().report(tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text()
    assert "<script" not in text
    assert not re.search(r"(src|href)=[\"'](?!#)", text)
    assert not re.search(r"url\((?!#)|@import", text)


def test_pages_of_other_runs(tmp_path: Path) -> None:
    """Many epochs, one row of few; nothing to draw; numbers to be predicted."""
    train(max_epochs=1203).report(tmp_path / "long.html")
    _, tables = read(tmp_path / "long.html")
    assert [row[0] for row in tables["Epochs"][1:4]] == ["3", "6", "9"]
    assert tables["Epochs"][-1][0] == "1203"
    stopped = train(max_steps=1, max_epochs=1)
    stopped.report(tmp_path / "short.html")
    regression = hl.train(nn.Linear(6, 1), (X, X[:, :1]), quiet(max_epochs=1))
    regression.report(tmp_path / "short.html")
    page, tables = read(tmp_path / "short.html")
    assert not any("onfusion" in heading for heading in tables)
    assert page.find("head/title").text == "Linear: hotloop run"


def test_a_run_that_ended_within_its_first_epoch(tmp_path: Path) -> None:
    """Its validations within are rows of the history."""
    stop = hl.LambdaCallback(on_train_batch_end=lambda run: run.step == 4 and run.stop())
    result = train(val_check_interval=1, callbacks=[stop])
    assert (result.epochs, len(result.history["val_loss"])) == (0, 3)
    assert "val_loss" in result.report(tmp_path / "run.html")
    page, tables = read(tmp_path / "run.html")
    assert [row[0] for row in tables["Epochs"][1:]] == ["0.2", "0.4", "0.6"]
    assert len(list(page.iter(SVG + "svg"))) == 1


def test_validations_within_epochs_are_counted_as_rows(tmp_path: Path) -> None:
    train(max_epochs=300, val_check_interval=1).report(tmp_path / "run.html")
    _, tables = read(tmp_path / "run.html")
    assert len(tables["Epochs"]) == 1 + 500  # of 1500
    assert tables["Epochs"][-1][0] == "300"


def test_the_page_of_a_fold_whose_model_was_dropped(tmp_path: Path) -> None:
    found = hl.cross_validate(
        lambda: nn.Linear(6, 3), (X, NAMES), quiet(max_epochs=1), 2, keep_models=False
    )
    found.results[0].report(tmp_path / "run.html")
    page, _ = read(tmp_path / "run.html")
    assert page.find("head/title").text == "Linear: hotloop run"
    assert "Linear(in_features=6" in "".join(page.itertext())


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(hl.CheckpointError, match=r"run\.html"):
        train().report(tmp_path / "none" / "run.html")


def test_a_plot_has_rates_throughput_and_memory() -> None:
    figure = train().plot()
    titles = [axis.get_title() for part in figure.subfigs for axis in part.axes]
    assert titles == [
        "loss", "metrics", "learning rate", "samples per second", "peak memory, MB",
    ]  # fmt: skip
    rates = figure.subfigs[1].axes[0].lines[0].get_ydata()
    assert rates[0] == pytest.approx(0.0123, rel=0.2)
