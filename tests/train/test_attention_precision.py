"""A layer of attention trains alike in every precision, on the CPU and on a GPU."""

import os

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from train.recipes import quiet

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 10, 16)).astype(np.float32)
Y = (X.mean(1) @ RNG.normal(size=(16, 3))).argmax(1)
PRECISIONS = ["bf16-mixed", "16-mixed", "64-true"]
ACCELERATOR = "gpu" if os.environ.get("HOTLOOP_TEST_GPU") else "cpu"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        return self.head(self.layer(x, is_causal=True).mean(1))


def train(accelerator: str, precision: str) -> list[float]:
    hl.manual_seed(1)
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=16)
    fields = {"optimizer": "adam", "lr": 0.01, "max_epochs": 3}
    config = quiet(accelerator=accelerator, precision=precision, **fields)
    return hl.train(Net(), data, config).history["loss"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_losses_follow_float32(precision: str) -> None:
    exact = train("cpu", "32-true")
    accelerator = "cpu" if precision == "64-true" else ACCELERATOR
    rtol = 1e-4 if precision == "64-true" else 0.01
    np.testing.assert_allclose(train(accelerator, precision), exact, rtol=rtol)
