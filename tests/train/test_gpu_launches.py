"""How many kernels a step launches: what a small model's step takes on a GPU is mostly that."""

import itertools
import os
from collections.abc import Callable

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from needs import emulated
from train.recipes import quiet


class Gate(nn.Module):
    """x times a share of each of its features, which two small layers find."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        return x * nn.functional.sigmoid(self.up(nn.functional.relu(self.down(x))))


def tabular() -> nn.Module:
    """Four blocks of batch norm and dropout, a gate, three classes."""
    widths = [29, 128, 96, 64, 32]
    layers: list[nn.Module] = [nn.BatchNorm1d(29)]
    for n, m in itertools.pairwise(widths):
        layers += [nn.Linear(n, m), nn.BatchNorm1d(m), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*layers, Gate(32, 16), nn.Linear(32, 3))


def mlp(*widths: int) -> nn.Module:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for n, m in itertools.pairwise(widths):
        layers += [nn.Linear(n, m), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


MODELS: dict[str, tuple[Callable[[], nn.Module], int, int, int]] = {
    "tabular": (tabular, 29, 3, 512),
    "20-32-16-2": (lambda: mlp(20, 32, 16, 2), 20, 2, 64),
    "784-512-256-10": (lambda: mlp(784, 512, 256, 10), 784, 10, 512),
}
# Model and precision: with our kernels alone, with cuBLASLt and NVRTC.
LAUNCHES = {
    ("tabular", "32-true"): (40, 45),
    ("tabular", "bf16-mixed"): (43, 48),
    ("20-32-16-2", "32-true"): (18, 18),
    ("20-32-16-2", "bf16-mixed"): (21, 21),
    ("784-512-256-10", "32-true"): (19, 18),
    ("784-512-256-10", "bf16-mixed"): (22, 21),
}


@emulated
@pytest.mark.parametrize(("name", "precision"), LAUNCHES)
def test_launches_of_a_step(name: str, precision: str) -> None:
    """A change that saves some lowers the number here; none may add one."""
    make, features, classes, batch = MODELS[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2 * batch, features)).astype(np.float32)
    y = rng.integers(0, classes, 2 * batch)
    data = hl.DataModule.from_arrays(x, y, val=None, batch_size=batch)
    config = quiet(
        max_epochs=1, optimizer="adamw", precision=precision, gradient_clip_val=1.0,
        accelerator="gpu", benchmark=False,
    )  # fmt: skip
    n = hl.plan(make(), data, config).info["n_kernels"]
    has_libraries = os.environ.get("HOTLOOP_CUBLASLT_PATH", "none") != "none"
    assert n == LAUNCHES[name, precision][has_libraries]
