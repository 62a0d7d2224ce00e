"""Heads with their loss for many classes: by their formulas, and what they refuse."""

from collections.abc import Callable
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from api.traced import run
from hotloop import nn
from hotloop.errors import ConfigError, DataError, ModelWarning, ShapeError
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


class Classifier(nn.Module):
    def __init__(self, options: Any, reduction: str, **settings: Any) -> None:
        super().__init__()
        self.body = nn.Linear(16, 16)
        self.head = nn.LinearCrossEntropyLoss(
            16, 6000, bias=True, options=options, reduction=reduction, **settings
        )

    def forward(self, x: Any) -> Any:
        return self.body(x).tanh()

    def training_step(self, batch: Any) -> Any:
        loss = self.head(self(batch["x"]), batch["y"])
        return loss if self.head.reduction == "mean" else loss / 300


def steps_of(options: Any, reduction: str, data: hl.DataModule, **settings: Any) -> Any:
    config = {"accumulate_grad_batches": 1, "precision": 32} | settings.pop("config", {})
    model = Classifier(options, reduction, **settings)
    result = hl.train(
        model, data, max_epochs=2, optimizer="sgd", lr=0.5, weight_decay=0.0, seed=0,
        gradient_clip_val=None, accelerator="cpu", enable_progress_bar=False, **config,
    )  # fmt: skip
    return result, model.state_dict()


@pytest.mark.parametrize(
    ("reduction", "settings"),
    [
        ("mean", {}),
        ("sum", {}),
        ("mean", {"weight": np.linspace(0.5, 2, 6000), "label_smoothing": 0.1}),
        ("mean", {"config": {"accumulate_grad_batches": 2}}),
        ("mean", {"config": {"accumulate_grad_batches": 2, "precision": "bf16-mixed"}}),
    ],
)
def test_chunks_train_as_the_whole_does(reduction: str, settings: dict[str, Any]) -> None:
    """The same losses and steps, in less memory: all logits but those of a chunk, and what a sum of
    gradients takes."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(600, 16)).astype(np.float32)
    y = rng.integers(0, 6000, 600)
    y[::7] = -100
    data = hl.DataModule.from_arrays(x, y, batch_size=300, val=0)
    whole, want = steps_of(None, reduction, data, **dict(settings))
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=50)
    cut, got = steps_of(options, reduction, data, **dict(settings))
    near = (
        2**-7 if "precision" in settings.get("config", {}) else 1e-5
    )  # of 16-bit products; of float32 sums
    np.testing.assert_allclose(cut.history["loss"], whole.history["loss"], rtol=near)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=near, atol=near * np.abs(value).max())
    logits = 300 * 6000 * 4
    assert whole.peak_bytes - cut.peak_bytes > 0.6 * logits, (whole.peak_bytes, cut.peak_bytes)


def test_chunks_of_probabilities_and_of_images() -> None:
    """What is no class number: values and all gradients, those of the targets too."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(10, 6)).astype(np.float32)
    w = rng.normal(size=(5, 2, 6)).astype(np.float32)
    p = rng.dirichlet(np.ones(5), (10, 2)).transpose(0, 2, 1).astype(np.float32)
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=4)

    def gradients(*args: Any, options: Any) -> Any:
        loss = F.linear_cross_entropy(*args, options=options)
        graph = loss.trace.graph
        made = graph.backward(loss.id, [a.id for a in args if a.dtype.is_floating_point])
        return [loss, *(loss.trace.wrap(i) for i in made)]

    for target in (p, rng.integers(0, 5, (10, 2))):
        want = run(lambda *args: gradients(*args, options=None), x, w, target)
        got = run(lambda *args: gradients(*args, options=options), x, w, target)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_rows_of_a_chunk() -> None:
    make = nn.LinearCrossEntropyOptions
    assert make(batch_chunk_size=7).rows(100, 8, 50) == 7
    assert make(batch_chunk_size=700).rows(100, 8, 50) == 100
    assert make(chunking_method=None).rows(100, 8, 50) == 100
    assert make(chunking_method="aspect_ratio").rows(8192, 512, 50_000) == 128
    assert make(chunking_method="aspect_ratio:4").rows(8192, 512, 50_000) == 32
    assert make().rows(8192, 512, 50_000) == 64
    assert make().rows(8192, 512, 500_000) == 64  # torch's 4 are too few
    with pytest.raises(ConfigError, match="must be 128, as 'aspect_ratio' says, or None, got 7"):
        make(batch_chunk_size=7, chunking_method="aspect_ratio").rows(8192, 512, 50_000)
    with pytest.warns(ModelWarning, match="reduction='none' options do nothing"):
        F.linear_cross_entropy(X, np.ones((20, 16)), Y, reduction="none", options=make())


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
        (lambda: nn.LinearCrossEntropyLoss(16, 20, options=1), ConfigError, "must be nn.Linear"),
        (lambda: nn.LinearCrossEntropyLoss(9, 20)(X, Y), ShapeError, "in_features"),
        (lambda: nn.LinearCrossEntropyOptions(acc_policy="best"), ConfigError, "one of accurate"),
        (lambda: nn.LinearCrossEntropyOptions(batch_chunk_size=0), ConfigError, "at least 1"),
        (lambda: nn.LinearCrossEntropyOptions(acc_dtype="float16"), ConfigError, "be float32"),
        (
            lambda: nn.LinearCrossEntropyOptions(chunking_method="aspect_ratio:0"),
            ConfigError,
            "must be 'auto'",
        ),
        (
            lambda: nn.LinearCrossEntropyLoss(
                16, 20, options=nn.LinearCrossEntropyOptions(batch_chunk_size=7)
            )(X, Y[:39]),
            ShapeError,
            r"targets must be classes \(40,\)",
        ),
        (lambda: F.pdist(X[None]), ShapeError, r"must be \(N, M\)"),
    ],
)
def test_wrong_input(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
