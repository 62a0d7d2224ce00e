"""Recurrent cells: what a step is by its formula, states that are not given, and wrong input."""

from collections.abc import Callable
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.errors import ConfigError, ShapeError
from train.recipes import quiet

RNG = np.random.default_rng(4)
X = RNG.normal(size=(5, 7)).astype(np.float32)
H, C = (RNG.normal(size=(5, 3)).astype(np.float32) for _ in range(2))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm(cell: nn.LSTMCell, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> list[np.ndarray]:
    w = {k: v.astype(np.float64) for k, v in cell.state_dict().items()}
    gates = x @ w["weight_ih"].T + h @ w["weight_hh"].T + w.get("bias_ih", 0) + w.get("bias_hh", 0)
    i, f, g, o = np.split(gates, 4, 1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(c), c]


@pytest.mark.parametrize("bias", [True, False])
def test_lstm_cell(bias: bool) -> None:
    cell = nn.LSTMCell(7, 3, bias=bias)
    for given, states in (((), (0 * H, 0 * C)), (((H, C),), (H, C))):
        for got, want in zip(cell(X, *given), lstm(cell, X, *states), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    one = cell(X[0], (H[0], C[0]))
    for got, want in zip(one, lstm(cell, X[:1], H[:1], C[:1]), strict=True):
        np.testing.assert_allclose(got, want[0], rtol=1e-5, atol=1e-6)


class Steps(nn.Module):
    """An LSTM of steps, as a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(2, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.head(state[0])


def test_a_loop_of_steps_learns() -> None:
    """The sign of what was added up first is remembered to the end."""
    x = np.random.default_rng(0).normal(size=(400, 6, 2)).astype(np.float32)
    y = x[:, 0, :1] - x[:, 2, 1:]
    data = hl.DataModule.from_arrays(x, y, val=None, batch_size=50)
    fields = {"loss": "mse", "optimizer": "adam", "lr": 0.02, "max_epochs": 60, "seed": 0}
    fitted = hl.train(Steps(), data, quiet(**fields))
    assert fitted.history["loss"][-1] < 0.2 * fitted.history["loss"][0]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nn.RNNCell(7, 0), ConfigError, "hidden_size must be an integer, at least 1"),
        (lambda: nn.RNNCell(7, 3, nonlinearity="gelu"), ConfigError, "'tanh' or 'relu'"),
        (lambda: nn.GRUCell(7, 3)(X.T), ShapeError, r"shape \(N, input_size=7\) or \(7,\)"),
        (lambda: nn.GRUCell(7, 3)(X[None]), ShapeError, r"got \(1, 5, 7\)"),
        (
            lambda: nn.GRUCell(7, 3)(X, H[:2]),
            ShapeError,
            "a row for each of the input's, got 2 and",
        ),
        (lambda: nn.GRUCell(7, 3)(X, H[0]), ShapeError, "as many dims as the input"),
        (lambda: nn.RNNCell(7, 3)(X, X), ShapeError, "the state must have shape"),
        (lambda: nn.LSTMCell(7, 3)(X, H), ShapeError, r"must be a pair \(h, c\)"),
        (lambda: nn.LSTMCell(7, 3)(X, (H, X)), ShapeError, "the cell must have shape"),
    ],
)
def test_wrong_input(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
