"""Numbers that change with the steps: the learning rate in every log, and ``hl.scalar``."""

import csv

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.training.config.schedule import lr_multipliers
from train.recipes import exact, quiet, regression

X, Y = regression(64, 5, 1)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "one_cycle", "exponential"])
def test_every_log_has_the_rate_of_the_step(schedule: str, tmp_path) -> None:
    parts = {"name": schedule} | ({"gamma": 0.5} if schedule == "exponential" else {})
    fields = {"max_epochs": 3, "lr": 0.02, "scheduler": hl.SchedulerConfig(**parts)}
    config = quiet(logger="csv", output_dir=str(tmp_path), warmup=0, **fields)
    data = hl.DataModule.from_arrays(X, Y, batch_size=16)  # 4 steps an epoch
    want = lr_multipliers(config, np.arange(12), 12, 4) * 0.02
    ring = []

    class Watch:
        def on_epoch_end(self, run):
            ring.append([entry[3] for entry in run.runtime.session.control_log(0)])

    result = hl.train(nn.Linear(5, 1), data, config, callbacks=(Watch(),))
    np.testing.assert_allclose(ring[-1], want, rtol=1e-12)
    assert result.history["lr"] == ring[-1][3::4]
    with open(tmp_path / "1" / "metrics.csv") as file:
        assert [float(row["lr"]) for row in csv.DictReader(file)] == ring[-1][3::4]
    step = hl.stepper(nn.Linear(5, 1), quiet(warmup=0, **fields), data)
    said = [step.step(batch)["lr"] for epoch in range(3) for batch in data.train_batches(epoch)]
    np.testing.assert_allclose(said, want, rtol=1e-12)


class Scaled(nn.Module):
    """A linear layer times a number that changes."""

    def __init__(self, schedule) -> None:
        super().__init__()
        self.line = nn.Linear(5, 1)
        self.schedule = schedule

    def forward(self, x):
        return self.line(x) * hl.scalar("scale", self.schedule)


def make_scaled(schedule):
    hl.manual_seed(3)
    return Scaled(schedule)


def test_a_scheduled_number_moves_with_the_steps(tmp_path) -> None:
    """Against gradients by hand: step t has the number 1 + t / 4, prediction the last one."""
    data = hl.DataModule.from_arrays(X, Y, val=(X, Y), batch_size=24)  # 24, 24, 16
    model = make_scaled(lambda step: 1 + step / 4)
    W = np.asarray(model.line.weight.numpy(), np.float64)
    b = np.asarray(model.line.bias.numpy(), np.float64)
    result = hl.train(model, data, exact(max_epochs=2, lr=0.02))
    for t, batch in enumerate([*data.train_batches(0), *data.train_batches(1)]):
        x, y = batch["x"].astype(np.float64), batch["y"].astype(np.float64)
        scale = 1 + t / 4
        error = (x @ W.T + b) * scale - y
        W -= 0.02 * scale * 2 / error.size * error.T @ x
        b -= 0.02 * scale * 2 / error.size * error.sum(0)
    np.testing.assert_allclose(model.line.weight.numpy(), W, rtol=1e-5)
    want = (X @ W.T + b) * 2.25
    np.testing.assert_allclose(hl.predict(model, X), want, rtol=1e-4, atol=1e-5)
    loss = float(((want - Y) ** 2).mean())
    assert result.history["val_loss"][-1] == pytest.approx(loss, rel=1e-4)
    assert hl.evaluate(result, data, split="val")["loss"] == pytest.approx(loss, rel=1e-4)
    result.save(tmp_path / "m.safetensors")
    loaded = hl.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(hl.predict(loaded, X), hl.predict(model, X))
    hl.train(model, data, exact(max_epochs=1, max_steps=1, lr=1e-9))  # back at the first one
    np.testing.assert_allclose(hl.predict(model, X), want / 2.25, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cut", [0, 2, 4])
def test_the_best_weights_have_the_number_of_their_epoch(cut: int, tmp_path) -> None:
    """Whether or not the run was resumed before or behind that epoch."""
    data = hl.DataModule.from_arrays(X, Y, val=(X, Y), batch_size=24)
    config = exact(
        max_epochs=6, lr=0.02, restore_best=True, output_dir=tmp_path, enable_checkpointing=True
    )
    model = make_scaled(lambda step: 1 + step if step < 9 else 50.0)  # best before the 4th epoch
    first = None
    if cut:
        first = hl.train(model, data, config, callbacks=[Stop(cut)])
    result = hl.train(model, data, config, resume=first or False)
    assert result.best_epoch < 4
    assert hl.evaluate(result, data, split="val")["loss"] == pytest.approx(result.best_score, 1e-6)
    for file in (tmp_path / "1" / "checkpoints").glob("best-*"):
        assert hl.predict(hl.load(file), X) == pytest.approx(hl.predict(model, X), rel=1e-5)


class Stop:
    """Ends training with an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch_end(self, run) -> None:
        if run.epoch == self.epoch:
            run.stop("cut")


def test_in_a_loop_of_ones_own_a_number_moves_too() -> None:
    """Steps of 24, 24 and 16 rows, the last ones' plan being made between steps; what is evaluated
    meanwhile has the number of the last step.
    """
    data = hl.DataModule.from_arrays(X, Y, val=(X[:9], Y[:9]), batch_size=24)
    model = make_scaled(lambda step: 1 + step / 4)
    W = np.asarray(model.line.weight.numpy(), np.float64)
    b = np.asarray(model.line.bias.numpy(), np.float64)
    step = hl.stepper(model, exact(max_epochs=2, lr=0.02), data)
    for t, batch in enumerate([*data.train_batches(0), *data.train_batches(1)]):
        x, y = batch["x"].astype(np.float64), batch["y"].astype(np.float64)
        scale = 1 + t / 4
        error = (x @ W.T + b) * scale - y
        assert step.step(batch)["loss"] == pytest.approx((error**2).mean(), rel=1e-6)
        W -= 0.02 * scale * 2 / error.size * error.T @ x
        b -= 0.02 * scale * 2 / error.size * error.sum(0)
        want = float((((X[:9] @ W.T + b) * scale - Y[:9]) ** 2).mean())
        assert step.evaluate()["loss"] == pytest.approx(want, rel=1e-6)


def test_before_training_a_number_has_its_first_value() -> None:
    line, twice = make_scaled(1), make_scaled(lambda step: 2.0 + step)
    np.testing.assert_allclose(hl.predict(twice, X), 2 * hl.predict(line, X), rtol=1e-6)
    step = hl.stepper(twice, quiet(), (X[:20], Y[:20]))
    want = float(((2 * hl.predict(line, X[:20]) - Y[:20]) ** 2).mean())
    assert step.evaluate("train")["loss"] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda step: "a",
        lambda step: 1 / (3 - step) if step < 3 else float("inf"),
        None,
        float("nan"),
    ],
)
def test_schedules_of_no_number(schedule) -> None:
    model = make_scaled(schedule)
    before = model.state_dict()
    with pytest.raises(hl.ConfigError, match="scalar 'scale': its schedule must give a finite"):
        hl.train(model, (X, Y), quiet(max_epochs=5))
    assert all((before[name] == value).all() for name, value in model.state_dict().items())


def test_a_number_that_only_validation_uses_is_refused() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(5, 1)

        def forward(self, x):
            y = self.line(x)
            return y if self.training else y * hl.scalar("late", 1.0)

    with pytest.raises(hl.TraceError, match="got 'late' in another trace"):
        hl.train(Net(), (X, Y), quiet(max_epochs=1))
