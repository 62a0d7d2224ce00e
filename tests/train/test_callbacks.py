"""What callbacks read of the model is the model of now, and reading changes nothing."""

from __future__ import annotations

import copy
import pathlib
import threading
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.errors import BusyError
from train.recipes import classes, mlp, quiet, same_bits

X, Y = classes()


class Reads:
    """Notes the weights that it reads after each epoch."""

    def __init__(self, read: Any = lambda model: model.state_dict()) -> None:
        self.read = read
        self.before: Any = None
        self.seen: list[Any] = []

    def on_train_begin(self, run: Any) -> None:
        self.before = self.read(run.model)

    def on_epoch_end(self, run: Any) -> None:
        self.seen.append(self.read(run.model))


@pytest.mark.parametrize("ema", [False, True], ids=["trained", "averaged"])
@pytest.mark.parametrize(
    "read",
    [lambda m: m.state_dict(), lambda m: {k: p.numpy() for k, p in m.named_parameters()}],
    ids=["state_dict", "numpy"],
)
def test_a_callback_reads_the_weights_of_now(ema: bool, read: Any) -> None:
    config = quiet(max_epochs=3, ema=ema, restore_best=False)
    reads = Reads(read)
    model = mlp()
    start = read(model)
    result = hl.train(model, (X, Y), config, callbacks=(reads,))
    assert same_bits(reads.before, start)
    assert not same_bits(reads.seen[0], start)
    assert not same_bits(reads.seen[0], reads.seen[1])
    assert same_bits(reads.seen[-1], read(result.model))
    plain = hl.train(mlp(), (X, Y), config)
    assert same_bits(plain.model.state_dict(), result.model.state_dict())
    assert plain.history["loss"] == result.history["loss"]


@pytest.mark.parametrize("ema", [False, True], ids=["trained", "averaged"])
def test_a_copy_in_a_callback_scores_as_validation_did(ema: bool) -> None:
    data = hl.DataModule.from_arrays(X, Y, val=0.25, standardize=True)
    scores = []

    class Scores:
        def on_epoch_end(self, run: Any) -> None:
            twin = copy.deepcopy(run.model)
            assert not any(parameter.is_initial for parameter in twin.parameters())
            scores.append(hl.evaluate(twin, data, split="val")["loss"])

    result = hl.train(mlp(norm=True), data, quiet(max_epochs=2, ema=ema), callbacks=(Scores(),))
    assert scores == pytest.approx(result.history["val_loss"], rel=1e-6)


def test_a_checkpoint_of_a_callback_is_the_model_of_then(tmp_path: pathlib.Path) -> None:
    data = hl.DataModule.from_arrays(X, np.array(["no", "yes", "so"])[Y], standardize=True)

    class Saves:
        def on_epoch_end(self, run: Any) -> None:
            hl.save(run.model, tmp_path / f"{run.epoch}.safetensors")

    config = quiet(max_epochs=2, restore_best=False)
    result = hl.train(mlp(), data, config, callbacks=(Saves(),))
    first, last = (hl.load(tmp_path / f"{epoch}.safetensors") for epoch in (1, 2))
    assert same_bits(last.state_dict(), result.model.state_dict())
    assert not same_bits(first.state_dict(), last.state_dict())
    np.testing.assert_array_equal(hl.predict(last, X), hl.predict(result, X))
    assert set(hl.predict(first, X, labels=True)) <= {"no", "yes", "so"}


def test_a_part_of_the_model_predicts_in_a_callback_as_it_is_now() -> None:
    reads = Reads(lambda model: hl.predict(model[0], X[:3]))
    model = mlp()
    hl.train(model, (X, Y), quiet(max_epochs=3, restore_best=False), callbacks=(reads,))
    assert not np.array_equal(reads.seen[0], reads.seen[1])
    np.testing.assert_array_equal(reads.seen[-1], hl.predict(model[0], X[:3]))


def test_what_a_callback_writes_raises() -> None:
    loss = nn.CrossEntropyLoss(weight=np.ones(3, np.float32))

    def refused(model: Any) -> None:
        for value in (model[0].weight, *loss.buffers()):
            with pytest.raises(BusyError, match="its model is being trained"):
                value.copy_(value.numpy() * 0)
        with pytest.raises(BusyError):
            model.load_state_dict(model.state_dict())

    hl.train(mlp(), (X, Y), quiet(max_epochs=1, loss=loss), callbacks=(Reads(refused),))
    loss.weight.copy_(np.ones(3))


@pytest.mark.parametrize("event", ["on_train_begin", "on_epoch_end", "on_train_end"])
@pytest.mark.parametrize("name", ["should_stop", "lr", "epoch", "config"])
def test_what_a_callback_sets_on_the_run_raises(event: str, name: str) -> None:
    """Nobody would hear of it."""
    callback = hl.LambdaCallback(**{event: lambda run: setattr(run, name, 1)})
    with pytest.raises(AttributeError, match=rf"run.{name}: callbacks change a run by run.stop"):
        hl.train(mlp(), classes(), quiet(max_epochs=2), callbacks=[callback])


def test_a_training_that_fails_leaves_the_model_as_it_was() -> None:
    class Breaks:
        def on_epoch_end(self, run: Any) -> None:
            run.model.state_dict()
            raise KeyError("mine")

    model = mlp()
    before = model.state_dict()
    with pytest.raises(KeyError, match="mine"):
        hl.train(model, (X, Y), quiet(max_epochs=2), callbacks=(Breaks(),))
    assert same_bits(model.state_dict(), before)


def test_in_another_thread_the_model_is_the_one_of_before() -> None:
    seen = []

    def elsewhere(model: Any) -> None:
        thread = threading.Thread(target=lambda: seen.append(model.state_dict()))
        thread.start()
        thread.join()

    model = mlp()
    before = model.state_dict()
    hl.train(model, (X, Y), quiet(max_epochs=1), callbacks=(Reads(elsewhere),))
    assert all(same_bits(values, before) for values in seen)


# ---- what a callback logs as the monitored value


class Logs:
    """Logs given values, one after each validation."""

    log_names = ("val_luck",)

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def on_validation_end(self, run: Any) -> None:
        if self.values:
            run.log("val_luck", self.values.pop(0))


LUCK = {"monitor": "val_luck", "mode": "max"}


def test_the_best_weights_are_those_of_what_is_logged() -> None:
    reads = Reads()
    config = quiet(max_epochs=4, restore_best=True, **LUCK)
    result = hl.train(mlp(), (X, Y), config, callbacks=(Logs(0.1, 0.7, 0.3, 0.2), reads))
    assert (result.best_epoch, result.best_score) == (2, 0.7)
    assert same_bits(result.model.state_dict(), reads.seen[1])
    assert result.history["val_luck"] == [0.1, 0.7, 0.3, 0.2]


def test_training_stops_early_by_what_is_logged() -> None:
    config = quiet(max_epochs=9, early_stopping=2, **LUCK)
    result = hl.train(mlp(), (X, Y), config, callbacks=(Logs(0.1, 0.7, *7 * [0.3]),))
    assert (result.stop_reason, result.epochs) == ("early_stopping", 4)


def test_the_plateau_heeds_what_is_logged() -> None:
    plateau = hl.SchedulerConfig("plateau", factor=0.5, patience=0)
    config = quiet(max_epochs=3, scheduler=plateau, **LUCK)
    result = hl.train(mlp(), (X, Y), config, callbacks=(Logs(0.3, 0.2, 0.1),))
    assert result.history["lr"] == pytest.approx([1e-3, 1e-3, 5e-4])


def test_a_run_that_goes_on_remembers_what_was_best(tmp_path: pathlib.Path) -> None:
    config = quiet(max_epochs=2, output_dir=tmp_path, enable_checkpointing=True, **LUCK)
    first = hl.train(mlp(), (X, Y), config, callbacks=(Logs(0.8, 0.2),))
    config = config.replace(max_epochs=4)
    result = hl.train(mlp(), (X, Y), config, callbacks=(Logs(0.3, 0.5),), resume=True)
    assert (first.best_epoch, result.best_epoch, result.best_score) == (1, 1, 0.8)


@pytest.mark.parametrize("name", ["val_luck", "luck"])
def test_what_is_logged_is_judged_within_an_epoch(name: str) -> None:
    """Under any name, and once: not at the epoch's end, which is not validated, again."""
    values = iter([1.0, 2.0, 1.5, 1.25, 9.0])
    note = hl.LambdaCallback(
        on_validation_end=lambda run: run.log(name, next(values)), log_names=(name,)
    )
    made = hl.DataModule.from_arrays(X, Y, val=(X, Y), batch_size=9)  # 10 batches
    config = quiet(max_epochs=4, val_check_interval=4, early_stopping=2, monitor=name, mode="max")
    result = hl.train(mlp(), made, config, callbacks=[note])
    assert result.history["epoch"] == [0.4, 0.8, 1.0, 1.4, 1.8]
    assert result.history[name] == [1.0, 2.0, 2.0, 1.5, 1.25]
    assert (result.best_epoch, result.best_score) == (0.8, 2.0)
    assert result.stop_reason == "early_stopping"


def test_what_was_logged_before_an_earlier_validation_does_not_count() -> None:
    made = hl.DataModule.from_arrays(X, Y, val=(X, Y), batch_size=9)
    config = quiet(max_epochs=1, val_check_interval=4, **LUCK)
    with pytest.raises(hl.ConfigError, match="must log it in each on_validation_end, got none"):
        hl.train(mlp(), made, config, callbacks=[Logs(0.5)])


def test_what_was_logged_before_a_stop_is_judged_when_the_run_goes_on() -> None:
    def log(run: Any) -> None:
        if run.step % 5 == 3:
            run.log("val_luck", run.step)

    made = hl.DataModule.from_arrays(X, Y, val=(X, Y), batch_size=9)
    note = hl.LambdaCallback(on_train_batch_end=log, log_names=("val_luck",))
    stop = hl.LambdaCallback(on_train_batch_end=lambda run: run.step == 4 and run.stop())
    config = quiet(max_epochs=2, val_check_interval=5, **LUCK)
    first = hl.train(mlp(), made, config, callbacks=[note, stop])
    assert (first.steps, first.epochs) == (4, 0)
    result = first.resume()
    assert result.history["val_luck"] == [3, 8, 13, 18]
    assert result.best_epoch == 2


def test_without_validation_what_is_logged_at_an_epochs_end_is_judged() -> None:
    values = [0.1, 0.7, 0.3, 0.2, 0.9]
    note = hl.LambdaCallback(
        on_epoch_end=lambda run: run.log("luck", values[run.epoch - 1]), log_names=("luck",)
    )
    reads = Reads()
    made = hl.DataModule.from_arrays(X, Y)
    config = quiet(max_epochs=5, early_stopping=2, restore_best=True, monitor="luck", mode="max")
    result = hl.train(mlp(), made, config, callbacks=[note, reads])
    assert (result.stop_reason, result.epochs) == ("early_stopping", 4)
    assert (result.monitor, result.best_epoch, result.best_score) == ("luck", 2, 0.7)
    assert same_bits(result.model.state_dict(), reads.seen[1])
    silent = hl.LambdaCallback(on_epoch_end=lambda run: None, log_names=("luck",))
    with pytest.raises(hl.ConfigError, match="must log it in each on_epoch_end, got none"):
        hl.train(mlp(), made, config, callbacks=[silent])


def test_early_stopping_by_what_is_logged_beside_the_best_loss() -> None:
    stopping = hl.EarlyStopping(2, monitor="val_luck", mode="max")
    config = quiet(max_epochs=9, lr=1e-2, monitor="val_loss", early_stopping=stopping)
    result = hl.train(mlp(), (X, Y), config, callbacks=[Logs(0.1, 0.7, *7 * [0.3])])
    assert (result.stop_reason, result.epochs) == ("early_stopping", 4)
    assert (result.monitor, result.best_epoch) == ("val_loss", 4)
    with pytest.raises(hl.ConfigError, match="'val_luck' is in log_names of a callback"):
        hl.train(mlp(), (X, Y), config, callbacks=[Logs(0.1)])


@pytest.mark.parametrize("method", ["on_epoch_begin", "on_validation_end", "on_epoch_end"])
@pytest.mark.parametrize("every", [1, 2])
def test_values_of_the_run_stay(method: str, every: int) -> None:
    def log(run: Any) -> None:
        for name in ("lr", "epoch", "loss", "val_loss"):
            run.log(name, 5.0)

    config = quiet(max_epochs=2, check_val_every_n_epoch=every)
    plain = hl.train(mlp(), (X, Y), config).history
    noted = hl.train(mlp(), (X, Y), config, callbacks=[hl.LambdaCallback(**{method: log})]).history
    for name in ("lr", "epoch", "loss", "val_loss"):
        np.testing.assert_array_equal(noted[name], plain[name])


@pytest.mark.parametrize(
    ("callback", "fields", "words"),
    [
        (Logs(), LUCK, "'val_luck' is in log_names of a callback, which must log it in each"),
        (Logs(0.5), {"monitor": "val_lucky", "mode": "max"}, "did you mean 'val_luck'"),
        (Logs(0.5), {"monitor": "val_luck"}, "mode"),
        (
            hl.LambdaCallback(on_epoch_end=print, log_names="val_luck"), {},
            "LambdaCallback.log_names: must be a list or tuple of names, got 'val_luck'",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_monitored(callback: Any, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(hl.ConfigError, match=words):
        hl.train(mlp(), (X, Y), quiet(max_epochs=2, **fields), callbacks=(callback,))


def test_frozen_parameters_are_counted_as_they_train(capsys: pytest.CaptureFixture[str]) -> None:
    """By the configuration, not by requires_grad alone."""
    model, shown = mlp(), {"enable_progress_bar": True, "enable_model_summary": True}
    hl.train(model, (X, Y), quiet(max_epochs=1, freeze="0", **shown))
    assert "163 parameters, 112 of them frozen" in capsys.readouterr().err
    model[0].requires_grad_(False)
    hl.train(model, (X, Y), quiet(max_epochs=1, unfreeze="0", **shown))
    assert "163 parameters, 652 bytes" in capsys.readouterr().err
