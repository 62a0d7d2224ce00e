"""What callbacks are told and may do: order, steps, values of their own, the learning rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from train.recipes import classes, mlp, quiet, same_bits, weights

X, Y = classes(100)


def data() -> hl.DataModule:
    return hl.DataModule.from_arrays(X, Y, val=0.2, batch_size=20)  # 4 steps in an epoch


class Tells:
    """Notes everything that it is told."""

    def __init__(self, every_n_steps: int | None = None) -> None:
        self.said: list[tuple[str, int, int]] = []
        if every_n_steps is not None:
            self.every_n_steps = every_n_steps

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda run: self.said.append((name.removeprefix("on_"), run.epoch, run.step))


def test_the_order(tmp_path: Path) -> None:
    tells = Tells(every_n_steps=3)
    config = quiet(max_epochs=2, output_dir=tmp_path, enable_checkpointing=True, save_top_k=0)
    hl.train(mlp(), data(), config, callbacks=[tells])
    assert [one for one in tells.said if one[0] != "checkpoint"] == [
        ("train_begin", 0, 0), ("epoch_begin", 0, 0), ("train_batch_end", 0, 3),
        ("validation_end", 0, 4), ("epoch_end", 1, 4), ("epoch_begin", 1, 4),
        ("train_batch_end", 1, 6), ("validation_end", 1, 8), ("epoch_end", 2, 8),
        ("train_end", 2, 8),
    ]  # fmt: skip


@pytest.mark.parametrize("every", [None, 1, 2])
def test_steps(every: int | None) -> None:
    seen: list[dict[str, float]] = []
    note = hl.LambdaCallback(on_train_batch_end=lambda run: seen.append(run.logs))
    if every is not None:
        note.every_n_steps = every
    plain, told = mlp(), mlp()
    hl.train(plain, data(), quiet(max_epochs=3, scheduler="cosine"))
    result = hl.train(told, data(), quiet(max_epochs=3, scheduler="cosine"), callbacks=[note])
    assert same_bits(weights(plain), weights(told))
    assert len(seen) == 12 // (every or 1)
    rates = [logs["lr"] for logs in seen]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == result.history["lr"][-1]
    if every == 1:
        assert np.mean([logs["loss"] for logs in seen[:4]]) == pytest.approx(
            result.history["loss"][0], rel=1e-5
        )


def test_values_of_their_own(tmp_path: Path) -> None:
    note = hl.LambdaCallback(
        on_train_batch_end=lambda run: run.log("seen", run.step),
        on_validation_end=lambda run: run.log("twice", 2 * run.logs["val_loss"]),
    )

    def end(run: Any) -> None:
        assert run.history["twice"][-1] == run.logs["twice"]
        for name in ("late", "seen", "loss"):  # the run's own loss stays
            run.log(name, 100.0 * run.epoch)

    ending = hl.LambdaCallback(on_epoch_end=end)
    config = quiet(max_epochs=3, output_dir=tmp_path, logger=["csv", "jsonl"])
    result = hl.train(mlp(), data(), config, callbacks=[note])
    assert result.history["seen"] == [4, 8, 12]
    assert result.history["twice"] == [2 * loss for loss in result.history["val_loss"]]
    ended = hl.train(mlp(), data(), config, callbacks=[note, ending])
    assert ended.history["late"] == ended.history["seen"] == [100, 200, 300]
    assert ended.history["loss"] == result.history["loss"]
    table = Path(ended.log_path).read_text().splitlines()
    assert [line.split(",")[table[0].split(",").index("late")] for line in table[1:]] == [
        "100.0", "200.0", "300.0",
    ]  # fmt: skip
    lines = Path(ended.log_path).with_name("metrics.jsonl").read_text().splitlines()
    assert [json.loads(line).get("late") for line in lines] == [100, 200, 300]


def test_a_rate_that_is_set() -> None:
    def halve(run: Any) -> None:
        run.set_lr(run.logs["lr"] / 2)

    halving = hl.LambdaCallback(on_epoch_end=halve)
    config = quiet(max_epochs=4, lr=0.1, scheduler="cosine", save_last=True)
    result = hl.train(mlp(), data(), config, callbacks=[halving])
    first = result.history["lr"][0]
    assert result.history["lr"] == pytest.approx([first, first / 2, first / 4, first / 8])
    again = result.resume(max_epochs=5)
    assert again.history["lr"][-1] == pytest.approx(first / 16)
    wrong = hl.LambdaCallback(on_epoch_end=lambda run: run.set_lr("fast"))
    with pytest.raises(hl.ConfigError, match=r"run\.set_lr: "):
        hl.train(mlp(), data(), config, callbacks=[wrong])


def test_a_reason_of_their_own() -> None:
    stops = hl.LambdaCallback(
        on_train_batch_end=lambda run: run.stop("good enough") if run.step == 6 else None
    )
    result = hl.train(mlp(), data(), quiet(max_epochs=4), callbacks=[stops])
    assert (result.stop_reason, result.steps, result.epochs) == ("good enough", 6, 1)


def test_exceptions() -> None:
    seen = []

    def fail(run: Any) -> None:
        raise KeyError("mine")

    callback = hl.LambdaCallback(
        on_epoch_end=fail, on_exception=lambda run: seen.append((run.exception, run.epoch))
    )
    with pytest.raises(KeyError, match="mine") as caught:
        hl.train(mlp(), data(), quiet(max_epochs=4), callbacks=[callback])
    assert seen == [(caught.value, 1)]


@pytest.mark.parametrize("how", [{"on_nan": "raise"}, {"detect_anomaly": True}])
def test_a_run_that_raises_ends_by_an_exception(how: dict[str, Any]) -> None:
    """Callbacks see the model that the caller has, and its loggers a run that failed."""
    seen: list[Any] = []
    note = hl.LambdaCallback(
        on_exception=lambda run: seen.append((run.exception, weights(run.model))),
        on_train_end=lambda run: seen.append("end"),
    )
    model = mlp()
    config = quiet(max_epochs=4, lr=3e38, optimizer="sgd", gradient_clip_val=0)
    with pytest.raises(hl.NotFiniteError, match="has the last finite weights") as caught:
        hl.train(model, data(), config, callbacks=[note], **how)
    (one,) = seen
    assert one[0] is caught.value
    assert same_bits(one[1], weights(model))
    seen.clear()
    assert hl.train(mlp(), data(), config, callbacks=[note]).stop_reason == "nan"
    assert seen == ["end"]


@pytest.mark.parametrize("every", [0, -1, 1.5, "often"])
def test_wrong_spacings(every: Any) -> None:
    callback = hl.LambdaCallback(every_n_steps=every, on_train_batch_end=print)
    with pytest.raises(hl.ConfigError, match=r"LambdaCallback\.every_n_steps: "):
        hl.train(mlp(), data(), quiet(max_epochs=1), callbacks=[callback])


def test_checkpoints_are_told(tmp_path: Path) -> None:
    seen = []
    note = hl.LambdaCallback(on_checkpoint=lambda run: seen.append(run.last_path or run.best_path))
    config = quiet(max_epochs=4, output_dir=tmp_path, enable_checkpointing=True)
    result = hl.train(mlp(), data(), config.replace(save_every="1 steps"), callbacks=[note])
    assert seen
    assert all(str(tmp_path) in path for path in seen)
    assert result.last_path is not None


def test_a_stop_after_the_last_step_of_an_epoch_leaves_it_whole() -> None:
    stop = hl.LambdaCallback(on_train_batch_end=lambda run: run.step == 4 and run.stop())
    made = hl.DataModule.from_arrays(X[:32], Y[:32], val=(X, Y), batch_size=16)
    result = hl.train(mlp(), made, quiet(max_epochs=4, restore_best=True), callbacks=[stop])
    assert (result.stop_reason, result.epochs, result.steps) == ("interrupted", 2, 4)
    assert result.history["val_loss"][-1] == hl.evaluate(result, made, split="val")["loss"]


def test_settings_among_callbacks(tmp_path: Path) -> None:
    config = quiet(max_epochs=20, mode="max", enable_checkpointing=True)
    kept = hl.ModelCheckpoint(output_dir=tmp_path, save_top_k=2, save_last=False)
    callbacks = [hl.EarlyStopping(patience=3), kept, hl.LearningRateMonitor()]
    result = hl.train(mlp(), data(), config, callbacks=callbacks)
    assert (result.stop_reason, result.config.early_stopping.patience) == ("early_stopping", 3)
    names = [path.name for path in (tmp_path / "1/checkpoints").iterdir()]
    assert len(names) == 2
    assert all(name.startswith("best-") for name in names)
    with pytest.raises(hl.ConfigError, match=r"EarlyStopping: must say the same as early_stopping"):
        hl.train(mlp(), data(), config.replace(early_stopping=5), callbacks=callbacks)
    with pytest.raises(hl.ConfigError, match="save_every"):
        hl.train(mlp(), data(), config, callbacks=[hl.ModelCheckpoint(save_every="soon")])
