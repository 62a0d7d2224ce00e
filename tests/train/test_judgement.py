"""What a run decides and counts: the best epoch, when to stop, the plateau's rate, steps, samples.

A metric that is a function may say what it likes: here it reads off a script, so that every
decision follows from given numbers.
"""

from collections.abc import Callable, Sequence

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from train.recipes import classes, exact, mlp, quiet, regression

nan, inf = np.nan, np.inf


def scripted(name: str, values: Sequence[float]) -> Callable[[object, object], float]:
    """A metric of that name with these values, one a validation."""
    left = iter(values)

    def function(y_true: object, y_pred: object) -> float:
        return next(left)

    function.__name__ = name
    return function


def run(metrics: object, epochs: int, **fields: object) -> hl.TrainResult:
    X, y = classes(40)
    data = hl.DataModule.from_arrays(X, y, val=(X, y), batch_size=16)
    return hl.train(mlp(), data, quiet(max_epochs=epochs, metrics=metrics, **fields))


@pytest.mark.parametrize(
    ("values", "stopping", "epochs", "best"),
    [
        # an improvement starts the count anew
        ([1, 0, 0, 2, 1, 1, 1, 9], {"patience": 3}, 7, 4),
        ([1, 0, 0, 0, 9], {"patience": 3}, 4, 1),
        # as much as min_delta is not enough to start the count anew, and the best all the same
        ([1.0, 1.5, 1.75, 1.5, 9], {"patience": 2, "min_delta": 0.5}, 5, 5),
        ([1.0, 1.5, 1.5, 9], {"patience": 2, "min_delta": 0.5}, 3, 2),
        ([1.0, 1.1, 1.2], {"patience": 9, "min_delta": 10.0}, 3, 3),
        ([1, 1, 1], {"patience": 9}, 3, 1),
        # what is not finite is never the best
        ([nan, 1, inf, 0], {"patience": 9}, 4, 2),
        ([-inf, nan, inf], {"patience": 9}, 3, None),
        ([nan, nan, 1], {"patience": 2}, 2, None),
        ([3, 2, 1], {"patience": 9, "mode": "min"}, 3, 3),
    ],
)
def test_the_best_epoch(values, stopping, epochs, best) -> None:
    config = {"monitor": "val_score", "early_stopping": hl.EarlyStopping(**stopping)}
    result = run((scripted("score", values),), len(values), **config)
    assert (result.epochs, result.best_epoch) == (epochs, best)
    assert result.best_score == (None if best is None else values[best - 1])
    assert result.monitor == (None if best is None else "val_score")
    assert result.stop_reason == ("completed" if epochs == len(values) else "early_stopping")


def test_a_plateau_watches_its_own() -> None:
    better = scripted("score", [1, 2, 3, 4, 5, 6])
    stuck = scripted("error", [1.0, 0.5, 0.75, 0.25, 0.25, 0.25])
    plateau = hl.SchedulerConfig(
        "plateau", monitor="val_error", patience=0, factor=0.5, threshold=0.0, warmup=0
    )
    result = run((better, stuck), 6, lr=0.08, monitor="val_score", scheduler=plateau)
    # the third, fifth and sixth are no better: the next epoch has half the rate
    assert result.history["lr"] == [0.08, 0.08, 0.08, 0.04, 0.04, 0.02]
    assert result.best_epoch == 6


UP, DOWN = [1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("score", "error", "stopping", "epochs", "best"),
    [
        # early stopping by another value says nothing of the best
        (UP, [3, 1, 2, 4, 5, 6], {"patience": 10}, 6, 6),
        (UP, [3, 1, 2, 4, 5, 6], {"patience": 3}, 5, 5),
        ([1, 9, 2, 3, 4, 5], DOWN, {"patience": 1}, 6, 2),
        # nor its min_delta
        (UP, DOWN, {"patience": 2, "min_delta": 3}, 3, 3),
        # each has a direction of its own
        (DOWN, UP, {"patience": 3}, 4, 1),
        (DOWN, UP, {"patience": 3, "mode": "max"}, 6, 1),
    ],
)
@pytest.mark.parametrize("is_keras", [False, True])
def test_early_stopping_watches_its_own(score, error, stopping, epochs, best, is_keras) -> None:
    """As EarlyStopping and ModelCheckpoint of Lightning and Keras do beside each other."""
    metrics = (scripted("score", score), scripted("error", error))
    stopping = hl.EarlyStopping(monitor="val_error", **stopping)
    if is_keras:
        checkpoint = hl.ModelCheckpoint(monitor="val_score", mode="max")
        result = run(metrics, 6, callbacks=(stopping, checkpoint))
    else:
        result = run(metrics, 6, monitor="val_score", mode="max", early_stopping=stopping)
    assert (result.epochs, result.best_epoch) == (epochs, best)
    assert (result.monitor, result.best_score) == ("val_score", score[best - 1])


def test_early_stopping_says_what_is_best_where_nothing_else_does() -> None:
    def best(**config):
        metrics = (scripted("score", [1, 9, 2, 3, 4, 5]), scripted("error", DOWN))
        return run(metrics, 6, **({"early_stopping": stopping} | config))

    stopping = hl.EarlyStopping(9, monitor="val_score", mode="max", min_delta=100)
    result = best()
    assert (result.monitor, result.best_epoch, result.best_score) == ("val_score", 2, 9)
    assert best(monitor="val_error").best_epoch == 6
    assert hl.TrainingConfig(early_stopping=stopping).monitored == "val_score"
    assert hl.TrainingConfig(early_stopping=3).monitored == "val_loss"
    with pytest.raises(hl.ConfigError, match=r"early_stopping\.monitor: .*'val_scores'"):
        best(early_stopping=stopping.replace(monitor="val_scores"))
    with pytest.raises(hl.ConfigError, match=r"^monitor: .*'val_scores'"):
        best(monitor="val_scores")


def test_the_mode_of_the_monitor_is_not_that_of_a_plateaus() -> None:
    metrics = (scripted("score", UP), scripted("error", DOWN))
    plateau = hl.SchedulerConfig("plateau", monitor="val_error", patience=0, warmup=0)
    result = run(metrics, 6, monitor="val_score", mode="max", scheduler=plateau)
    assert result.history["lr"] == [1e-3] * 6


def test_settings_that_watch_one_value_have_one_direction() -> None:
    """``mode`` beside one of them counts for the others, and is refused where they disagree."""
    stopping = hl.EarlyStopping(2, monitor="val_luck", mode="max")
    metrics = (scripted("luck", [1, 2, 3, 2, 1, 0]),)
    result = run(metrics, 6, monitor="val_luck", early_stopping=stopping)
    assert (result.best_epoch, result.epochs) == (3, 5)
    result = run((scripted("luck", DOWN),), 6, monitor="val_luck", mode="max", early_stopping=2)
    assert (result.best_epoch, result.epochs) == (1, 3)
    words = "early_stopping.mode: must be 'min', as mode is, since both are of val_luck, got 'max'"
    with pytest.raises(hl.ConfigError, match=words):
        run(metrics, 6, monitor="val_luck", mode="min", early_stopping=stopping)
    plateau = hl.SchedulerConfig("plateau", monitor="val_luck", mode="min")
    with pytest.raises(hl.ConfigError, match=r"scheduler\.mode: must be 'max', as early_stopping"):
        run(metrics, 6, early_stopping=stopping, scheduler=plateau)


def test_what_was_finite_at_no_epoch_is_said_of_each() -> None:
    metrics = (scripted("score", UP), scripted("error", [nan] * 6))
    stopping = hl.EarlyStopping(2, monitor="val_error")
    words = "val_error, which is monitored, was finite at no epoch, so that early stopping takes"
    with pytest.warns(hl.NotFiniteWarning, match=words):
        result = run(metrics, 6, monitor="val_score", early_stopping=stopping)
    assert (result.epochs, result.best_epoch) == (2, 2)


def test_a_metric_under_another_name_keeps_its_direction() -> None:
    """Of the name alone "min" would follow."""
    config = hl.TrainingConfig(metrics={"mine": "accuracy", "other": "mae"})
    assert config.monitor_mode("val_mine") == "max"
    assert config.monitor_mode("val_other") == "min"
    assert config.monitor_mode("val_mine", "min") == "min"
    assert config.replace(mode="min", monitor="val_mine").monitor_mode("val_mine") == "min"
    assert config.replace(mode="min").monitor_mode("val_mine") == "max"  # that of val_loss


# ---------------------------------------------------------------------------- counters


class Explodes(nn.Module):
    """The loss is infinite where a row's first feature is above 90."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(5, 1)

    def forward(self, x):
        return self.line(x) + hl.exp(x[:, :1])


def test_max_steps_counts_steps_that_were_applied() -> None:
    """Each epoch of four batches has a bad one, the third."""
    X, Y = regression()
    X[37, 0] = 1000.0
    data = hl.DataModule.from_arrays(X, Y, batch_size=16, shuffle=False)
    seen = []

    class Watch:
        def on_train_end(self, run):
            seen.append(run.runtime.session.control())

    config = exact(max_epochs=9, max_steps=7, on_nan="skip", callbacks=(Watch(),))
    result = hl.train(Explodes(), data, config)
    assert (result.steps, result.skipped_steps, result.epochs) == (7, 2, 3)
    assert result.stop_reason == "max_steps"
    assert (seen[0]["attempted"], seen[0]["applied"]) == (9, 7)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("rows", [64, 85, 97])
def test_samples_and_seconds(rows: int, k: int) -> None:
    X, Y = regression(rows)
    data = hl.DataModule.from_arrays(X, Y, val=(X[:9], Y[:9]), batch_size=16)
    result = hl.train(nn.Linear(5, 1), data, quiet(max_epochs=3, accumulate_grad_batches=k))
    samples = result.samples_per_second * result.timings["train"]
    assert samples == pytest.approx(3 * rows, rel=1e-9)
    batches = -(-rows // 16)
    assert result.steps == 3 * -(-batches // k)
    assert sum(result.timings.values()) == pytest.approx(result.seconds, rel=1e-9)
    assert all(seconds >= 0 for seconds in result.timings.values())


def test_a_skipped_step_is_logged_with_its_epoch() -> None:
    X, y = classes(64)
    config = quiet(max_epochs=2, precision="16-mixed", on_nan="skip", lr=1e-3)
    data = hl.DataModule.from_arrays(X * 1e4, y, batch_size=16)
    result = hl.train(mlp(), data, config)
    scale = result.history["loss_scale"]
    skipped = result.history["skipped"]
    assert skipped[-1] == result.skipped_steps > 0
    assert scale == [65536.0 / 2.0**n for n in skipped]
    assert result.steps + result.skipped_steps == 8
