"""Validation within an epoch: when it runs, what it judges, and that training stays what it was."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop.training.checkpoints.snapshot import Snapshot
from hotloop.training.run import loop
from train.recipes import classes, mlp, quiet, same_bits, weights

X, Y = classes(100)


def data(**options: Any) -> hl.DataModule:
    return hl.DataModule.from_arrays(X, Y, val=0.2, batch_size=8, **options)  # 10 batches


class Rows:
    """Samples that threads make."""

    def __init__(self, rows: slice) -> None:
        self._x, self._y = X[rows], Y[rows]

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return self._x[i] * 2, self._y[i]


@pytest.mark.parametrize(
    ("fields", "validated"),
    [
        ({}, [1, 2]),
        ({"val_check_interval": 1.0}, [1, 2]),
        ({"val_check_interval": 0.5}, [0.5, 1, 1.5, 2]),
        ({"val_check_interval": 5}, [0.5, 1, 1.5, 2]),
        ({"val_check_interval": 10}, [1, 2]),
        ({"val_check_interval": 0.3}, [0.3, 0.6, 0.9, 1.3, 1.6, 1.9]),  # not at the end
        ({"val_check_interval": 0.01}, [n / 10 for n in range(1, 21)]),
        ({"val_check_interval": 4, "accumulate_grad_batches": 3}, [0.6, 0.9, 1.6, 1.9]),
        ({"val_check_interval": 5, "accumulate_grad_batches": 3}, [0.6, 1, 1.6, 2]),
        ({"val_check_interval": 5, "check_val_every_n_epoch": 2}, [1.5, 2]),
        ({"val_check_interval": 5, "limit_batches": 6}, [5 / 6, 1 + 5 / 6]),
        ({"val_check_interval": 5, "max_steps": 13}, [0.5, 1, 2]),  # the end of all is validated
        ({"val_check_interval": 5, "max_steps": 15}, [0.5, 1, 2]),
    ],
)
def test_when(fields: dict[str, Any], validated: list[float]) -> None:
    result = hl.train(mlp(), data(), quiet(max_epochs=2, **fields))
    history = result.history
    found = [e for e, v in zip(history["epoch"], history["val_loss"], strict=True) if v == v]
    assert found == pytest.approx(validated)
    assert [epoch for epoch in history["epoch"] if epoch == int(epoch)] == [1, 2]
    assert history["epoch"] == sorted(history["epoch"])
    assert result.epochs == 2


@pytest.mark.parametrize("fields", [{}, {"accumulate_grad_batches": 2}, {"ema": 0.9}])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_training_is_what_it_was(fields: dict[str, Any], is_streamed: bool) -> None:
    def made() -> hl.DataModule:
        if not is_streamed:
            return data()
        return hl.DataModule.from_datasets(
            Rows(slice(80)), Rows(slice(80, 100)), batch_size=8, num_workers=3
        )

    config = quiet(max_epochs=3, scheduler="cosine", **fields)
    within = hl.train(mlp(dropout=0.2), made(), config.replace(val_check_interval=2))
    whole = hl.train(mlp(dropout=0.2), made(), config)
    assert same_bits(weights(within.model), weights(whole.model))
    ends = [i for i, epoch in enumerate(within.history["epoch"]) if epoch == int(epoch)]
    assert len(within.history["epoch"]) == 15
    for name in ("loss", "val_loss", "val_accuracy", "lr"):
        assert [within.history[name][i] for i in ends] == whole.history[name]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_slices_that_end_within_a_step(accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long step the core gives back control in the middle: then nothing is validated."""
    config = quiet(max_epochs=2, val_check_interval=4, accumulate_grad_batches=accumulate)
    plain, cut = mlp(dropout=0.2), mlp(dropout=0.2)
    whole = hl.train(plain, data(), config)
    monkeypatch.setattr(loop, "SLICE_SECONDS", 0.0)
    unfinished: list[int] = []
    begin = loop.Run._validate_within

    def look(self: Any) -> None:
        assert not self._planner.runner.unfinished
        begin(self)

    monkeypatch.setattr(loop.Run, "_validate_within", look)
    advance = loop.Run._advance

    def count(self: Any, steps: int, batches: int) -> int:
        unfinished.append(self._planner.runner.unfinished)
        return advance(self, steps, batches)

    monkeypatch.setattr(loop.Run, "_advance", count)
    result = hl.train(cut, data(), config)
    assert any(unfinished)
    assert same_bits(weights(plain), weights(cut))
    for name in ("epoch", "loss", "val_loss", "lr"):
        assert np.array_equal(result.history[name], whole.history[name], equal_nan=True)


def test_values_are_those_of_the_moment() -> None:
    seen: list[tuple[float, float]] = []

    def look(run: Any) -> None:
        values = hl.evaluate(copy.deepcopy(run.model), made, split="val")
        seen.append((run.logs["val_loss"], values["loss"]))
        assert run.epoch == len([e for e in run.history.get("epoch", []) if e == int(e)])

    made = data()
    note = hl.LambdaCallback(on_validation_end=look)
    result = hl.train(
        mlp(), made, quiet(max_epochs=2, lr=0.01, val_check_interval=4), callbacks=[note]
    )
    assert len(seen) == 4
    for reported, evaluated in seen:
        assert reported == pytest.approx(evaluated, rel=1e-5)
    assert len({reported for reported, _ in seen}) == 4
    first = result.history["loss"][0]  # of four batches
    again = hl.train(mlp(), made, quiet(max_epochs=1, lr=0.01, max_steps=4))
    assert first == again.history["loss"][0]


def test_values_of_callbacks_stay_until_the_epoch_ends() -> None:
    note = hl.LambdaCallback(on_train_batch_end=lambda run: run.log("seen", run.step))
    config = quiet(max_epochs=2, val_check_interval=5)
    result = hl.train(mlp(), data(), config, callbacks=[note])
    assert result.history["seen"] == [5, 10, 15, 20]


def test_early_stopping_counts_validations() -> None:
    fields = {"max_epochs": 9, "monitor": "val_loss", "mode": "max"}  # which falls
    config = quiet(early_stopping=3, val_check_interval=2, lr=0.01, **fields)
    result = hl.train(mlp(), data(), config)
    assert result.stop_reason == "early_stopping"
    assert result.history["epoch"] == [0.2, 0.4, 0.6, 0.8]
    assert (result.epochs, result.steps, result.best_epoch) == (0, 8, 0.2)
    assert result.resume(early_stopping=4).history["epoch"][4:] == [1.0]


def test_plateau_falls_within_an_epoch() -> None:
    scheduler = {"name": "plateau", "patience": 0, "factor": 0.5, "mode": "max"}
    config = quiet(lr=0.01, val_check_interval=4, max_epochs=2)
    plateau = config.replace(scheduler=scheduler)
    result = hl.train(mlp(), data(), plateau)
    assert result.history["epoch"] == [0.4, 0.8, 1.0, 1.4, 1.8, 2.0]
    assert result.history["lr"] == pytest.approx([0.01, 0.01, 0.005, 0.005, 0.0025, 0.00125])
    # Of the training loss, which validation does not measure, an epoch has one value.
    own = plateau.replace(scheduler=scheduler | {"monitor": "loss"})
    lr = hl.train(mlp(), data(), own).history["lr"]
    assert lr == pytest.approx([0.01] * 6)


def test_best_weights_of_a_validation_within(tmp_path: Path) -> None:
    config = quiet(
        max_epochs=2, lr=3.0, val_check_interval=2, output_dir=tmp_path, save_top_k=2,
        restore_best=True, enable_checkpointing=True,
    )  # fmt: skip
    result = hl.train(mlp(), data(), config)
    best = int(np.nanargmin(result.history["val_loss"]))
    assert result.best_epoch == result.history["epoch"][best] != int(result.best_epoch)
    assert hl.evaluate(result, data(), split="val")["loss"] == pytest.approx(
        result.best_score, rel=1e-5
    )
    assert f"best-epoch{result.best_epoch:g}-" in str(result.best_path)
    assert f"epoch {result.best_epoch:g}" in result.report()
    assert len(list((tmp_path / "1/checkpoints").glob("best-*"))) == 2
    again = hl.train(mlp(), data(), config.replace(max_epochs=3, lr=3.0), resume=True)
    assert len(list((tmp_path / "1/checkpoints").glob("best-*"))) == 2  # the first two are known
    assert again.best_score <= result.best_score


def test_an_interrupted_validation_is_done_when_the_run_goes_on() -> None:
    config = quiet(max_epochs=2, val_check_interval=4, on_interrupt="return", lr=0.01)
    whole = hl.train(mlp(), data(), config)

    def stop(run: Any) -> None:
        run._interrupts.count += run.step == 4

    note = hl.LambdaCallback(on_train_batch_end=stop)
    first = hl.train(mlp(), data(), config, callbacks=[note])
    assert (first.stop_reason, first.steps) == ("interrupted", 4)
    assert not first.history
    again = first.resume()
    assert again.history["epoch"] == whole.history["epoch"]
    assert again.history["val_loss"][0] == whole.history["val_loss"][0]
    assert same_bits(weights(again.model), weights(whole.model))


@pytest.mark.parametrize(
    ("before", "at", "then", "epochs"),
    [
        (2, 5, 5, [0.2, 0.4, 0.5, 1.0]),
        (2, 6, 5, [0.2, 0.4, 0.6, 1.0]),
        (1, 9, 10, [*(n / 10 for n in range(1, 9)), 1.0]),
        (5, 6, 3, [0.5, 0.6, 0.9, 1.0]),
        (5, 7, 3, [0.5, 0.7, 0.9, 1.0]),  # at once, where one has been due since
        (5, 6, 5, [0.5, 1.0]),
    ],
)
def test_another_interval_when_a_run_goes_on(
    before: int, at: int, then: int, epochs: list[float]
) -> None:
    stop = hl.LambdaCallback(on_train_batch_end=lambda run: run.step == at and run.stop())
    config = quiet(max_epochs=1, val_check_interval=before, lr=0.01)
    first = hl.train(mlp(), data(), config, callbacks=[stop])
    result = first.resume(val_check_interval=then)
    assert result.history["epoch"] == pytest.approx(epochs)
    assert np.isnan(result.history["val_loss"][-1]) == (then == 3)  # which ends at 0.9


def test_a_file_holds_the_validation_of_its_step(tmp_path: Path) -> None:
    config = quiet(
        max_epochs=1, val_check_interval=5, max_steps=6, save_every="5 steps", save_top_k=0,
        output_dir=tmp_path, enable_checkpointing=True,
    )  # fmt: skip
    hl.train(mlp(), data(), config)
    run = Snapshot.read(str(tmp_path / "1/checkpoints/step-000000005.safetensors")).run
    assert run["history"]["epoch"] == [0.5]


def test_lines_name_the_place(capsys: pytest.CaptureFixture[str]) -> None:
    config = quiet(max_epochs=1, val_check_interval=5, enable_progress_bar="auto")
    hl.train(mlp(), data(), config)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch")]
    assert [line.split()[1] for line in lines] == ["0.50/1", "1/1"]


@pytest.mark.parametrize("fields", [{"val_check_interval": 11}, {"limit_batches": 3}])
def test_an_interval_longer_than_an_epoch_is_refused(fields: dict[str, Any]) -> None:
    config = quiet(**({"val_check_interval": 5} | fields))
    with pytest.raises(hl.ConfigError, match="val_check_interval: must be at most the"):
        hl.train(mlp(), data(), config)


def test_a_stepper_refuses_it() -> None:
    with pytest.raises(hl.ConfigError, match="val_check_interval: is the loop's"):
        hl.stepper(mlp(), quiet(val_check_interval=5), data())
