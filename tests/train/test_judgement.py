"""What a run decides and counts: the best epoch, when to stop, the plateau's rate, steps, samples.

A metric that is a function may say what it likes: here it reads off a script, so that every
decision follows from given numbers.
"""

from collections.abc import Callable, Sequence

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.training.config.schedule import PlateauState
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
        # as much as min_delta is not enough
        ([1.0, 1.5, 1.75], {"patience": 9, "min_delta": 0.5}, 3, 3),
        ([1.0, 1.5], {"patience": 9, "min_delta": 0.5}, 2, 1),
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


def test_a_metric_under_another_name_keeps_its_direction() -> None:
    """Of the name alone "min" would follow."""
    config = hl.TrainingConfig(metrics={"mine": "accuracy", "other": "mae"})
    assert config.monitor_mode("val_mine") == "max"
    assert config.monitor_mode("val_other") == "min"
    assert config.monitor_mode("val_mine", "min") == "min"
    assert config.replace(mode="min").monitor_mode("val_mine") == "min"
    plateau = config.replace(scheduler=hl.SchedulerConfig("plateau", monitor="val_mine"))
    assert PlateauState.from_config(plateau).mode == "max"


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
