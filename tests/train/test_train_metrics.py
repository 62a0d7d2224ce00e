"""``train_metrics``: metrics of training batches, as they are trained on."""

from __future__ import annotations

from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn, stats
from train.recipes import classes, mlp, quiet, regression, same_bits

STILL = 1e-30  # of the learning rate: nothing moves


@pytest.mark.parametrize("k", [1, 3])
def test_values_are_those_of_the_rows(k: int) -> None:
    """While nothing moves, those of evaluation: weights, a short batch and windows included."""
    X, y = classes(90)
    w = np.random.default_rng(0).uniform(0.1, 2, 90).astype(np.float32)
    data = hl.DataModule.from_arrays(X, y, sample_weight=w, val=0.2, batch_size=16)
    metrics = ["accuracy", "f1", "top2", "f1_per_class", "confusion_matrix"]
    config = quiet(
        max_epochs=1, lr=STILL, metrics=[*metrics, "auc"], train_metrics=True,
        accumulate_grad_batches=k,
    )  # fmt: skip
    result = hl.train(mlp(), data, config)
    want = hl.evaluate(result, data, "train")
    for name in ("accuracy", "f1", "top2", *(f"f1_per_class[{i}]" for i in range(3))):
        label = name.replace("_per_class", "")
        assert result.history[label][0] == pytest.approx(want[label], rel=1e-6)
    assert "auc" not in result.history  # of validation alone
    assert "val_auc" in result.history
    assert result.confusion_matrix.sum() == pytest.approx(w[data.rows("val")].sum(), rel=1e-5)


def test_they_are_of_the_weights_of_each_step_and_change_none() -> None:
    X, y = classes(64)
    order = {"shuffle": False, "batch_size": 8}
    with_metrics, without = mlp(dropout=0.3), mlp(dropout=0.3)
    data = hl.DataModule.from_arrays(X, y, **order)
    config = quiet(max_epochs=2, lr=0.05)
    result = hl.train(with_metrics, data, config, train_metrics=True, monitor="accuracy")
    hl.train(without, data, config)
    assert same_bits(with_metrics.state_dict(), without.state_dict())
    model, hits = mlp(), 0
    step = hl.stepper(model, config, hl.DataModule.from_arrays(X, y, **order))
    for batch in step_batches(X, y):
        hits += (np.asarray(hl.predict(model, batch["x"])).argmax(1) == batch["y"]).sum()
        step.step(batch)
        step.sync()
    plain = hl.train(mlp(), data, config, train_metrics=True, max_epochs=1)
    assert plain.history["accuracy"] == [hits / 64]
    assert result.monitor == "accuracy"
    assert result.best_score == max(result.history["accuracy"])


def step_batches(X: Any, y: Any) -> list[dict[str, Any]]:
    return [{"x": X[i : i + 8], "y": y[i : i + 8]} for i in range(0, 64, 8)]


def test_values_are_in_the_targets_units() -> None:
    X, y = regression(60)
    data = hl.DataModule.from_arrays(X, 100 * y + 500, standardize="both", batch_size=16)
    fields = {"max_epochs": 1, "lr": STILL, "metrics": ["rmse"], "train_metrics": True}
    result = hl.train(nn.Linear(5, 1), data, quiet(**fields))
    want = hl.evaluate(result, data, "train")["rmse"]
    assert want > 50
    assert result.history["rmse"][0] == pytest.approx(want, rel=1e-6)


def test_mixed_rows_are_compared_with_their_own_targets() -> None:
    X, y = classes(96)
    config = quiet(max_epochs=30, lr=0.02, train_metrics=True)
    plain, mixed = (
        hl.train(mlp(), (X, y), config, mixup=mixup).history["accuracy"][-1] for mixup in (0, 0.5)
    )
    assert 0.4 < mixed < plain - 0.05


def test_trackers_names() -> None:
    seen: list[dict[str, float]] = []

    class Tracker:
        def log(self, values: dict[str, float], step: int) -> None:
            seen.append(dict(values))

    X, y = classes()
    data = hl.DataModule.from_arrays(X, y, val=0.2)
    hl.train(mlp(), data, quiet(max_epochs=2, logger=Tracker(), train_metrics=True))
    names = {name for values in seen for name in values}
    assert {"epoch", "train/loss", "train/accuracy", "val/loss", "val/accuracy",
            "learning_rate"} <= names  # fmt: skip


def test_metrics_of_modules_and_several_targets() -> None:
    X, y = classes(60)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 1)

        def forward(self, x: Any) -> Any:
            return {"kind": self.a(x), "size": self.b(x)}

    targets = {"kind": y, "size": X.sum(1)}
    fields = {"max_epochs": 1, "train_metrics": True, "lr": STILL}
    metrics = {"kind": "accuracy", "size": "mae"}
    data = hl.DataModule.from_arrays(X, targets)
    result = hl.train(Two(), data, quiet(**fields, metrics=metrics))
    want = hl.evaluate(result, data, "train")
    for name in ("kind_accuracy", "size_mae"):
        assert result.history[name][0] == pytest.approx(want[name], rel=1e-6)

    class Size(stats.ModuleMetric):
        def compute(self, calls: Any) -> Any:
            return {"size": calls["0"].output.abs().mean()}

    net = mlp()
    data = hl.DataModule.from_arrays(X, y)
    result = hl.train(net, data, quiet(**fields, metrics=[Size("size")]))
    assert result.history["size"][0] == pytest.approx(np.abs(net[0](X)).mean(), rel=1e-5)


class OwnStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Any) -> Any:
        return self.net(x)

    def training_step(self, batch: Any) -> Any:
        return nn.functional.cross_entropy(self(batch["x"]), batch["y"])


class Logs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Any) -> Any:
        y = self.net(x)
        self.log("accuracy", y.mean())
        return y


def test_what_has_none() -> None:
    X, y = classes()
    for model, fields, words in [
        (mlp(), {"metrics": []}, "train_metrics: metrics must be sums .* got none"),
        (mlp(), {"metrics": ["auc"]}, "train_metrics: metrics must be sums .* got auc"),
        (OwnStep(), {"metrics": ["accuracy"]}, "train_metrics: the model's training_step makes"),
        (Logs(), {}, "'val_accuracy' is taken twice"),
    ]:
        with pytest.raises(hl.ConfigError, match=words):
            hl.train(model, (X, y), quiet(max_epochs=1, train_metrics=True, **fields))
