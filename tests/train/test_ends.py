"""What is left when training ends early, and what it watches."""

import time

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from train.recipes import classes, mlp, quiet

DEFAULT = {name: getattr(hl.TrainingConfig(), name) for name in ("scheduler", "warmup")}
X, Y = classes()  # 90 rows: 6 batches of 16, the last has 10


def make_data() -> hl.DataModule:
    return hl.DataModule.from_arrays(X, Y, val=(X[:40], Y[:40]), batch_size=16)


@pytest.mark.parametrize("n_steps", [1, 4, 6, 7, 11, 12, 13])
def test_an_epoch_cut_short_is_in_the_history_and_validated(n_steps: int) -> None:
    data = make_data()
    config = quiet(max_epochs=3, max_steps=n_steps, lr=1e-2, check_val_every_n_epoch=2)
    result = hl.train(mlp(), data, config)
    history, n = result.history, -(-n_steps // 6)
    assert (result.steps, result.epochs, result.stop_reason) == (n_steps, n, "max_steps")
    assert history["epoch"] == [float(i + 1) for i in range(n)]
    assert np.isfinite(history["loss"]).all()
    assert history["val_loss"][-1] == hl.evaluate(result, data, split="val")["loss"]


def test_the_loss_of_a_cut_epoch_is_that_of_what_it_trained_on() -> None:
    data = make_data()
    step = hl.stepper(mlp(), quiet(max_epochs=1, lr=1e-2), data)
    losses = [step.step(batch)["loss"] for batch in data.train_batches()]
    result = hl.train(mlp(), data, quiet(max_epochs=1, max_steps=4, lr=1e-2))
    assert result.history["loss"] == pytest.approx([np.mean(losses[:4])], rel=1e-6)


def test_weights_of_a_cut_epoch_may_be_the_best() -> None:
    data = make_data()
    config = quiet(max_epochs=9, max_steps=8, lr=1e-2, optimizer="adam", restore_best=True)
    result = hl.train(mlp(), data, config)
    assert result.best_epoch == 2
    assert result.best_score == hl.evaluate(result, data, split="val")["loss"]


def test_max_time_validates_what_it_reached() -> None:
    data = hl.DataModule.from_arrays(*classes(200_000), val=(X, Y), batch_size=2)
    result = hl.train(mlp(), data, quiet(max_epochs=1, max_time=0.01))
    assert (result.stop_reason, result.epochs) == ("max_time", 1)
    assert 0 < result.steps < 100_000
    assert result.history["val_loss"] == [hl.evaluate(result, data, split="val")["loss"]]


def test_the_default_schedule_warms_up_and_falls_within_max_time() -> None:
    result = hl.train(mlp(), make_data(), quiet(max_epochs=10**5, max_time=2, lr=1e-2, **DEFAULT))
    rates = result.history["lr"]
    assert (result.stop_reason, result.schedule_by) == ("max_time", "time")
    assert max(rates) > 0.9e-2 > 0.5e-2 > rates[-1]
    assert rates[0] < 0.1e-2


def test_max_time_that_is_not_met_changes_nothing() -> None:
    kept = [mlp(), mlp()]
    results = [
        hl.train(model, make_data(), quiet(max_epochs=3, max_time=limit, lr=1e-2, **DEFAULT))
        for model, limit in zip(kept, (None, 3600))
    ]
    assert [r.schedule_by for r in results] == ["steps", "steps"]
    assert results[0].history["lr"] == results[1].history["lr"]
    for one, other in zip(*(model.parameters() for model in kept)):
        assert np.array_equal(one.numpy(), other.numpy())


def test_a_rate_that_moves_in_the_middle_of_a_step_does_it_no_harm() -> None:
    """A step longer than a slice of 50 ms is cut by it, and the rate is set there."""

    def made(**ends: object) -> tuple[hl.TrainResult, list[np.ndarray]]:
        model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))
        data = hl.DataModule.from_arrays(wide, wide, batch_size=2048, val=None, shuffle=False)
        settings = quiet(scheduler="constant", warmup=0, lr=1e-2, restore_best=False, **ends)
        result = hl.train(model, data, settings)
        return result, [p.numpy() for p in model.parameters()]

    wide = np.random.default_rng(0).standard_normal((2048, 1024)).astype(np.float32)
    timed, weights = made(max_epochs=10**4, max_time=1)
    counted, same = made(max_epochs=10**4, max_steps=timed.steps)
    assert (timed.schedule_by, counted.steps) == ("time", timed.steps)
    assert all(np.array_equal(one, other) for one, other in zip(weights, same))


class Plans:
    """Takes longer to begin than max_time allows."""

    def on_train_begin(self, run: object) -> None:
        time.sleep(0.5)


def test_max_time_begins_with_the_first_epoch() -> None:
    result = hl.train(mlp(), make_data(), quiet(max_epochs=2, max_time=0.4, callbacks=[Plans()]))
    assert (result.stop_reason, result.epochs) == ("completed", 2)


def test_one_step_at_least_is_made_in_any_time() -> None:
    assert hl.train(mlp(), make_data(), quiet(max_time=1e-9)).steps > 0


# ---------------------------------------------------------------------------- what is watched


class Never:
    def on_train_begin(self, run: object) -> None:
        raise AssertionError("training began")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"monitor": "val_acuracy"},
            "monitor: must be one of loss, val_loss, val_accuracy, got 'val_acuracy'; did you mean "
            "'val_accuracy'",
        ),
        (
            {"early_stopping": hl.EarlyStopping(3, monitor="vall_loss")},
            "early_stopping.monitor: .*did you mean 'val_loss'",
        ),
        (
            {"scheduler": hl.SchedulerConfig("plateau", monitor="val_f1")},
            "scheduler.monitor: .*got 'val_f1'",
        ),
        ({"monitor": "epoch"}, "monitor: .*got 'epoch'"),
    ],
)
def test_unknown_monitor_is_found_before_training(fields, words) -> None:
    model = mlp()
    before = model.state_dict()
    config = quiet(callbacks=(Never(),), **fields)
    with pytest.raises(hl.ConfigError, match=words):
        hl.train(model, make_data(), config)
    assert all((before[name] == value).all() for name, value in model.state_dict().items())


def test_values_that_may_be_watched() -> None:
    def share(y_true, y_pred):
        return (y_true == y_pred).mean()

    losses = {"a": "cross_entropy", "b": lambda output, target: output.square().mean()}
    for monitor in ("a", "val_b", "val_share", "val_f1", "loss"):
        metrics = (hl.metric(share, mode="max"), "f1")
        fields = {"max_epochs": 2, "metrics": metrics, "loss": losses, "monitor": monitor}
        result = hl.train(mlp(), make_data(), quiet(**fields))
        assert result.monitor == monitor
        assert result.best_score in result.history[monitor]


def test_without_validation_the_training_loss_is_watched() -> None:
    result = hl.train(mlp(), hl.DataModule.from_arrays(X, Y), quiet(max_epochs=2))
    assert (result.monitor, result.best_score) == ("loss", min(result.history["loss"]))
    with pytest.raises(hl.ConfigError, match="monitor: must be one of loss, got 'val_accuracy'"):
        hl.train(mlp(), (X[:20], Y[:20]), quiet(monitor="val_accuracy"))


def test_plateau_has_a_monitor_of_its_own() -> None:
    """Accuracy that is 1 from the first epoch on is a plateau; the loss goes on falling."""
    Z = (X + 40 * np.eye(3, 6, dtype=np.float32)[Y]).astype(np.float32)
    data = hl.DataModule.from_arrays(Z, Y, val=(Z, Y), batch_size=16)
    model = nn.Linear(6, 3)
    model.load_state_dict({"weight": np.eye(3, 6), "bias": np.zeros(3)})
    plateau = {"name": "plateau", "patience": 1, "factor": 0.5, "monitor": "val_accuracy"}
    fields = {
        "max_epochs": 6,
        "lr": 1e-4,
        "scheduler": hl.SchedulerConfig(**plateau),
        "early_stopping": hl.EarlyStopping(9, monitor="loss"),
    }
    history = hl.train(model, data, quiet(**fields)).history
    assert history["val_accuracy"] == [1.0] * 6
    assert history["lr"][-1] < history["lr"][0]
