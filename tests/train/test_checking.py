"""While training looks through the data: how far it is, and what Ctrl-C stops."""

import re
import signal
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.data import checks
from hotloop.training.run import watch
from train.recipes import classes, mlp, quiet, regression, same_bits, weights

X, Y = classes(400)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_BLOCK", 300)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SILENT", 0.0)
    monkeypatch.setattr(watch, "BETWEEN", 0.0)


@pytest.mark.usefixtures("at_once")
def test_how_far_it_is_is_shown(capsys) -> None:
    data = hl.DataModule.from_arrays(X.astype(np.float64), Y, val=0.2, standardize=True)
    hl.train(mlp(), data, quiet(max_epochs=1, enable_progress_bar="auto"))
    said = capsys.readouterr().err.splitlines()
    begin = next(i for i, line in enumerate(said) if "precision" in line)
    shown = [line for line in said[:begin] if line.startswith("hotloop: ")]
    whats = list(dict.fromkeys(line.split(":")[1].strip() for line in shown))
    assert whats == [
        "checking X",
        "counting the classes of y",
        "the mean of X",
        "the standard deviation of X",
        "checking y",
    ]
    assert shown[0] == "hotloop: checking X: 2.4 kB of 19.2 kB"
    assert all(re.fullmatch(r"hotloop: [a-zA-Z ]+: [\d.]+ kB of [\d.]+ kB", s) for s in shown)


class Offset(nn.Module):
    """Makes its index in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 3)

    def forward(self, x):
        return self.table(x + 1).mean(1)


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (lambda: nn.Sequential(nn.Embedding(11, 3), nn.Flatten(), nn.Linear(12, 3)), "checking X"),
        (Offset, "checking the indices that forward makes of X"),
    ],
    ids=["plain", "made"],
)
@pytest.mark.usefixtures("at_once")
def test_the_look_at_ids_is_shown_and_stopped(model, what: str, capsys, monkeypatch) -> None:
    ids = np.random.default_rng(0).integers(0, 11, (400, 4))
    config = quiet(max_epochs=1, enable_progress_bar="auto", on_interrupt="return")
    hl.train(model(), (ids, Y), config)
    said = capsys.readouterr().err
    assert f"hotloop: {what}: " in said[: said.index("precision")]

    def press(text: str) -> None:
        if text.startswith(f"hotloop: {what}: "):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(watch, "show", press)
    result = hl.train(model(), (ids, Y), config)
    assert (result.stop_reason, result.steps) == ("interrupted", 0)
    assert f"interrupted during {what}; nothing is trained" in capsys.readouterr().err


def test_a_short_look_is_silent(capsys) -> None:
    hl.train(mlp(), (X, Y), quiet(max_epochs=1, enable_progress_bar="auto"))
    assert "checking" not in capsys.readouterr().err


@pytest.mark.usefixtures("at_once")
def test_a_quiet_run_is_silent(capfd) -> None:
    hl.train(mlp(), (X, Y), quiet(max_epochs=1))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("moment", ["checking X", "standard deviation of X", "of y"])
@pytest.mark.usefixtures("at_once")
def test_ctrl_c_stops_the_look_at_once(moment: str, capsys, monkeypatch) -> None:
    Xr, yr = regression(400)
    model, looks = mlp(5, 1), []
    before = weights(model)

    def press(text: str) -> None:
        looks.append(text)
        if moment in text:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(watch, "show", press)
    data = hl.DataModule.from_arrays(Xr, yr, val=0.2, standardize=True)
    config = quiet(enable_progress_bar="auto", on_interrupt="return")
    result = hl.train(model, data, config)
    assert moment in looks[-1]
    assert (result.stop_reason, result.epochs, result.steps) == ("interrupted", 0, 0)
    assert (repr(result.history), result.log_path) == ("History(no epochs)", None)
    assert same_bits(weights(model), before)
    said = capsys.readouterr().err
    doing = looks[-1].removeprefix("hotloop: ").partition(":")[0]
    assert f"hotloop: interrupted during {doing}; nothing is trained" in said
    assert "finishing this step" not in said
    assert re.search("interrupted after .*; the model has the weights that it had", said)
    assert hl.train(model, data, quiet(max_epochs=1)).stop_reason == "completed"


@pytest.mark.usefixtures("at_once")
def test_in_a_script_ctrl_c_raises_with_the_result(monkeypatch) -> None:
    monkeypatch.setattr(watch, "show", lambda text: signal.raise_signal(signal.SIGINT))
    with pytest.raises(hl.TrainingInterrupted) as caught:
        hl.train(mlp(), (X, Y), quiet(enable_progress_bar="auto", on_interrupt="raise"))
    assert caught.value.result.epochs == 0
    assert "TrainResult(interrupted after 0 epochs, 0 steps" in repr(caught.value.result)


def test_ctrl_c_while_planning_trains_nothing(capsys, monkeypatch) -> None:
    from hotloop.training.plans.steps import Steps

    real = Steps.train_graph

    def pressed(self: Steps, *args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return real(self, *args)

    monkeypatch.setattr(Steps, "train_graph", pressed)
    result = hl.train(mlp(), (X, Y), quiet(max_epochs=3, on_interrupt="return"))
    assert (result.stop_reason, result.epochs, result.steps) == ("interrupted", 0, 0)
    assert "interrupted during planning; nothing is trained" in capsys.readouterr().err


def test_ctrl_c_while_planning_is_seen_between_plans(monkeypatch) -> None:
    from hotloop.training.plans.runtime import Runtime

    made, real = [], Runtime.plan

    def pressed(self: Runtime, *args: Any, **options: Any) -> Any:
        made.append(self)
        signal.raise_signal(signal.SIGINT)
        return real(self, *args, **options)

    monkeypatch.setattr(Runtime, "plan", pressed)
    data = hl.DataModule.from_arrays(X, Y, batch_size=150)  # whole batches, and a smaller last one
    result = hl.train(mlp(), data, quiet(max_epochs=3, on_interrupt="return"))
    assert (result.stop_reason, result.steps, len(made)) == ("interrupted", 0, 1)


def test_an_array_of_several_splits_is_looked_through_once(monkeypatch) -> None:
    seen, real = [], _core.check_finite
    monkeypatch.setattr(_core, "check_finite", lambda a: (seen.append(a.size), real(a))[1])
    data = hl.DataModule.from_arrays(X, Y, val=0.2, test=0.2)
    for split in ("train", "val", "test"):
        data.check(split)
    assert sum(seen) == X.size


def test_a_bad_value_of_another_split_does_not_count_for_this_one() -> None:
    bad = X.copy()
    data = hl.DataModule.from_arrays(bad, Y, val=0.2)
    row = int(data.split("val").rows[3])
    bad[row, 2] = np.nan
    data.check("train")
    with pytest.raises(hl.DataError, match=f"got nan in row {row}, column 2"):
        data.check("val")
