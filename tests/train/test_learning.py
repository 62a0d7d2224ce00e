"""Learning runs on small data: the numbers any working trainer reaches."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.data.digits import load_digits
from train.recipes import quiet


def test_digits() -> None:
    X, y = load_digits()
    model = nn.Sequential(
        nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)
    )
    data = hl.DataModule.from_arrays(X.reshape(len(X), -1), y, val=0.2, batch_size=64)
    config = hl.TrainingConfig(
        max_epochs=20, lr=3e-3, enable_progress_bar=False, logger=None, enable_model_summary=False
    )
    result = hl.train(model, data, config)
    assert max(result.history["val_accuracy"]) >= 0.97
    assert result.history["loss"][-1] < 0.1 * result.history["loss"][0]


def test_linear_regression_finds_the_least_squares() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 8)).astype(np.float32)
    y = (X @ rng.standard_normal((8, 2)) + 0.3 * rng.standard_normal((400, 2))).astype(np.float32)
    solution, *_ = np.linalg.lstsq(np.c_[X, np.ones(400)], y, rcond=None)
    model = nn.Linear(8, 2)
    data = hl.DataModule.from_arrays(X, y, batch_size=400)
    hl.train(model, data, quiet(max_epochs=2000, optimizer="sgd", lr=0.3, momentum=0.8))
    np.testing.assert_allclose(model.state_dict()["weight"], solution[:8].T, atol=1e-4)
    np.testing.assert_allclose(model.state_dict()["bias"], solution[8], atol=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop", "lion"])
def test_every_optimizer_learns_spirals(optimizer: str) -> None:
    rng = np.random.default_rng(0)
    t = rng.uniform(0.3, 2, 600) * np.pi
    y = np.arange(600) % 2
    X = np.stack([t * np.cos(t + np.pi * y), t * np.sin(t + np.pi * y)], 1) / 4
    model = nn.Sequential(
        nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)
    )
    rate = {"sgd": 0.2, "lion": 1e-3, "rmsprop": 2e-3}.get(optimizer, 5e-3)
    momentum = {"momentum": 0.9} if optimizer == "sgd" else {}
    data = hl.DataModule.from_arrays(X.astype(np.float32), y, batch_size=50)
    config = quiet(max_epochs=120, optimizer=optimizer, lr=rate, **momentum)
    hl.train(model, data, config)
    assert (np.asarray(hl.predict(model, X.astype(np.float32))).argmax(1) == y).mean() > 0.97


def test_multilabel() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((800, 10)).astype(np.float32)
    Y = (X @ rng.standard_normal((10, 6)) > 0).astype(np.int64)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 6))
    data = hl.DataModule.from_arrays(X, Y, val=0.25, batch_size=50)
    result = hl.train(model, data, quiet(max_epochs=30, optimizer="adam", lr=5e-3))
    assert result.history["val_accuracy"][-1] > 0.93
    proba = hl.predict(model, X, proba=True)
    assert proba.min() >= 0
    assert proba.max() <= 1


def test_strings_and_imbalance() -> None:
    """Balanced weights find the rare class."""
    rng = np.random.default_rng(0)
    rare = rng.random(2000) < 0.05
    X = rng.standard_normal((2000, 4)).astype(np.float32)
    X[rare] += 1.2
    y = np.where(rare, "yes", "no")
    data = hl.DataModule.from_arrays(X, y, val=0.25, batch_size=100)
    recalls = []
    for weight in (None, "balanced"):
        model = nn.Linear(4, 2)
        config = quiet(max_epochs=20, lr=1e-2, class_weight=weight, metrics=("recall",))
        recalls.append(hl.train(model, data, config).history["val_recall"][-1])
    assert recalls[1] > recalls[0] + 0.2


def test_embedding_model() -> None:
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 30, 3000), rng.integers(0, 20, 3000)
    a, b = rng.standard_normal((30, 3)), rng.standard_normal((20, 3))
    ratings = (a[users] * b[items]).sum(1).astype(np.float32)

    class Factors(nn.Module):
        def __init__(self):
            super().__init__()
            self.users, self.items = nn.Embedding(30, 4), nn.Embedding(20, 4)

        def forward(self, x):
            return (self.users(x["user"]) * self.items(x["item"])).sum(1)

    columns = {"user": users, "item": items}
    data = hl.DataModule.from_arrays(columns, ratings, val=0.2, batch_size=100)
    result = hl.train(
        Factors(), data, quiet(max_epochs=60, optimizer="adam", lr=2e-2, metrics=("r2",))
    )
    assert result.history["val_r2"][-1] > 0.95
