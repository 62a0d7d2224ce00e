"""(x A) B trained as x (A B): the same losses and weights as by hand in float64.

The pass itself is csrc/passes/reassociate.c; tests/c/test_reassociate.c has its rule and its cases.
"""

from __future__ import annotations

import re

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn

ROWS, BATCH, WIDTHS = 96, 24, (6, 5, 9)
QUIET = {
    "accelerator": "cpu", "precision": "32-true", "optimizer": "sgd", "lr": 0.05,
    "scheduler": "constant", "gradient_clip_val": 0.0, "weight_decay": 0.0,
    "enable_progress_bar": False, "enable_model_summary": False, "restore_best": False, "seed": 0,
}  # fmt: skip


class Layer(nn.Module):
    """A fixed projection and a trained square matrix behind it."""

    def __init__(self, n_in: int, n_out: int, rng: np.random.Generator) -> None:
        super().__init__()
        self.register_buffer("basis", rng.standard_normal((n_out, n_in)).astype(np.float32) / 2)
        self.mix = nn.Linear(n_out, n_out)
        self.mix.weight.copy_(rng.standard_normal((n_out, n_out)).astype(np.float32) / 3)
        self.mix.bias.copy_(rng.standard_normal(n_out).astype(np.float32))

    def forward(self, x):
        return self.mix(x @ self.basis.T)


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, 7, WIDTHS[0])).astype(np.float32)
    return x, rng.standard_normal((ROWS, 7, WIDTHS[-1])).astype(np.float32)


def data_of(x: np.ndarray, y: np.ndarray, batch_size: int) -> hl.DataModule:
    return hl.DataModule.from_arrays(x, y, val=None, batch_size=batch_size, shuffle=False)


def model_of() -> nn.Sequential:
    rng = np.random.default_rng(0)
    return nn.Sequential(Layer(WIDTHS[0], WIDTHS[1], rng), Layer(WIDTHS[1], WIDTHS[2], rng))


def train_by_hand(model: nn.Sequential, x: np.ndarray, y: np.ndarray, batch: int, epochs: int):
    """Mean squared error and plain gradient descent, one product after the other."""
    state = {name: np.float64(np.asarray(v)) for name, v in model.state_dict().items()}
    bases = [state[f"{i}.basis"] for i in range(2)]
    weights = [state[f"{i}.mix.weight"] for i in range(2)]
    shifts = [state[f"{i}.mix.bias"] for i in range(2)]
    losses = []
    for _ in range(epochs):
        seen = []
        for begin in range(0, len(x), batch):
            values = [x[begin : begin + batch].reshape(-1, WIDTHS[0]).astype(np.float64)]
            middles = []
            for basis, weight, shift in zip(bases, weights, shifts, strict=True):
                middles.append(values[-1] @ basis.T)
                values.append(middles[-1] @ weight.T + shift)
            error = values[-1] - y[begin : begin + batch].reshape(-1, WIDTHS[-1])
            seen.append(np.mean(error**2))
            grad = 2 * error / error.size
            for i in (1, 0):
                of_weight, of_shift = grad.T @ middles[i], grad.sum(0)
                grad = grad @ weights[i] @ bases[i]
                weights[i] = weights[i] - 0.05 * of_weight
                shifts[i] = shifts[i] - 0.05 * of_shift
        losses.append(np.mean(seen))
    return losses, weights, shifts


@pytest.mark.parametrize("n_parts", [1, 2])
def test_losses_and_weights_are_those_by_hand(n_parts: int) -> None:
    x, y = rows()
    model = model_of()
    losses, weights, shifts = train_by_hand(model, x, y, BATCH, 5)
    result = hl.train(
        model, data_of(x, y, BATCH // n_parts), loss="mse",
        max_epochs=5, accumulate_grad_batches=n_parts, **QUIET,
    )  # fmt: skip
    np.testing.assert_allclose(result.history["loss"], losses, rtol=1e-5)
    for i in range(2):
        np.testing.assert_allclose(model[i].mix.weight, weights[i], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(model[i].mix.bias, shifts[i], rtol=1e-4, atol=1e-5)


def test_a_step_has_one_product_of_all_rows_in_a_layer() -> None:
    x, y = rows()
    text = hl.plan(model_of(), data_of(x, y, BATCH), loss="mse", **QUIET).text
    products = re.findall(rf"matmul\S*:.*-> %\d+ float32\({BATCH * 7}, \d+\)", text)
    assert len(products) == 3, text  # two forward, one of a gradient


def test_what_is_read_in_between_is_computed() -> None:
    class Both(Layer):
        def forward(self, x):
            middle = x @ self.basis.T
            return self.mix(middle) + middle.sum(-1, keepdim=True)

    x, y = rows()
    model = Both(WIDTHS[0], WIDTHS[-1], np.random.default_rng(0))
    before = np.asarray(model(x))
    result = hl.train(model, data_of(x, y, ROWS), loss="mse", max_epochs=1, **QUIET)
    assert result.history["loss"][0] == pytest.approx(np.mean((before - y) ** 2), rel=1e-5)


def test_float16_has_two_products() -> None:
    """Their matrices' product is beyond its range here, where nothing that is computed else is."""
    x, y = rows()
    model = model_of()
    for layer, factor in zip(model, (1e4, 1e-4), strict=True):
        layer.basis.copy_(np.asarray(layer.basis) * np.float32(factor))
        layer.mix.weight.copy_(np.asarray(layer.mix.weight) * np.float32(100))
    data = data_of(x * np.float32(1e-4), y, BATCH)
    fields = QUIET | {"precision": "16-mixed", "lr": 1e-6, "loss": "mse"}
    result = hl.train(model, data, max_epochs=1, **fields)
    assert result.history["skipped"] == [0]
    assert np.isfinite(result.history["loss"]).all()
