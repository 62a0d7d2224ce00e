"""Heads with their loss for many classes: by their formulas, and what they refuse."""

from collections.abc import Callable
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.errors import ConfigError, DataError, ShapeError
from train.recipes import quiet

F = nn.functional
RNG = np.random.default_rng(6)
X = RNG.normal(size=(40, 16)).astype(np.float32)
Y = RNG.integers(0, 20, 40)
CUTS = [4, 10, 15]


class LogProb(nn.Module):
    """A method of a head as a model."""

    def __init__(self, head: nn.AdaptiveLogSoftmaxWithLoss, method: str = "log_prob") -> None:
        super().__init__()
        self.head = head
        self.method = method

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        return getattr(self.head, self.method)(x)


def by_hand(model: LogProb, x: np.ndarray) -> np.ndarray:
    """(N, n_classes): a class' probability in its cluster times the cluster's."""
    head = model.head
    w = {k.removeprefix("head."): v.astype(float) for k, v in model.state_dict().items()}

    def logs(z: np.ndarray) -> np.ndarray:
        return z - np.log(np.exp(z).sum(1, keepdims=True))

    of_head = logs(x @ w["head.weight"].T + w.get("head.bias", 0))
    parts = [of_head[:, : head.shortlist_size]]
    for i in range(head.n_clusters):
        z = x @ w[f"tail.{i}.0.weight"].T @ w[f"tail.{i}.1.weight"].T
        parts.append(logs(z) + of_head[:, head.shortlist_size + i, None])
    return np.concatenate(parts, 1)


@pytest.mark.parametrize("bias", [True, False])
def test_adaptive_softmax(bias: bool) -> None:
    head = nn.AdaptiveLogSoftmaxWithLoss(16, 20, CUTS, 2.0, bias)
    model = LogProb(head)
    want = by_hand(model, X)
    np.testing.assert_allclose(np.exp(want).sum(1), 1)
    np.testing.assert_allclose(model(X), want, rtol=1e-4, atol=1e-5)
    model.method = "predict"
    np.testing.assert_array_equal(model(X), want.argmax(1))
    output, loss = head(X, Y)
    np.testing.assert_allclose(output, want[np.arange(40), Y], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, -want[np.arange(40), Y].mean(), rtol=1e-5)


class Rare(nn.Module):
    """A classifier of rare classes with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.AdaptiveLogSoftmaxWithLoss(16, 20, CUTS, 2.0)

    def training_step(self, batch: Any) -> hl.Tensor:
        x, y = batch
        return self.head(x, y).loss

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        return self.head.log_prob(x)


def test_adaptive_softmax_learns() -> None:
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=8)
    fitted = hl.train(Rare(), data, quiet(optimizer="adam", lr=0.02, max_epochs=60))
    assert fitted.history["loss"][-1] < 0.5 * fitted.history["loss"][0]


def test_linear_cross_entropy() -> None:
    head = nn.LinearCrossEntropyLoss(16, 20, bias=True, label_smoothing=0.1)
    logits = X @ head.linear.weight.numpy().T + head.linear.bias.numpy()
    want = F.cross_entropy(logits.astype(np.float32), Y, label_smoothing=0.1)
    np.testing.assert_allclose(head(X, Y), want, rtol=1e-5)
    many = nn.LinearCrossEntropyLoss(16, 5, out_features=(2, 3), reduction="none")
    assert many(X, RNG.integers(0, 5, (40, 2, 3))).shape == (40, 2, 3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 20, []), ConfigError, "ascending integers"),
        (lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 20, [5, 4]), ConfigError, "ascending"),
        (lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 20, [5, 20]), ConfigError, "which is 19"),
        (lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 20, [2.5]), ConfigError, "sequence of integers"),
        (
            lambda: nn.AdaptiveLogSoftmaxWithLoss(9, 20, CUTS, 2.0)(X, Y),
            ShapeError,
            "in_features=9",
        ),
        (
            lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 20, CUTS, 2.0)(X, Y[:3]),
            ShapeError,
            r"targets must have shape \(40,\)",
        ),
        (
            lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 20, CUTS, 2.0)(X, Y + 20),
            DataError,
            "row 0: .* below 20",
        ),
        (lambda: nn.LinearCrossEntropyLoss(16, 20, options=1), ConfigError, "must be None"),
        (lambda: nn.LinearCrossEntropyLoss(9, 20)(X, Y), ShapeError, "in_features"),
        (lambda: F.pdist(X[None]), ShapeError, r"must be \(N, M\)"),
    ],
)
def test_wrong_input(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
