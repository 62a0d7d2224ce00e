"""How many kernels a step launches: what a small model's step takes on a GPU is mostly that."""

import ast
import itertools
import os
from collections.abc import Callable
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from needs import emulated
from train.recipes import quiet
from train.test_gpu import run_alone


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
    "784-4096-4096-10": (lambda: mlp(784, 4096, 4096, 10), 784, 10, 512),
}
# Model and precision: with our kernels alone, with cuBLASLt and NVRTC.
LAUNCHES = {
    ("tabular", "32-true"): (35, 34),
    ("tabular", "bf16-mixed"): (35, 34),
    ("20-32-16-2", "32-true"): (14, 12),
    ("20-32-16-2", "bf16-mixed"): (15, 13),
    ("784-512-256-10", "32-true"): (18, 16),
    ("784-512-256-10", "bf16-mixed"): (20, 18),
}


# Model: launches that wait for one another, and their share of the step's operations, with our
# kernels alone and with cuBLASLt and NVRTC.
PATHS = {
    "784-512-256-10": ((16, 0.89), (14, 0.89)),
    "784-4096-4096-10": ((16, 0.70), (14, 0.70)),
}


def info_of(model: tuple[Callable[[], nn.Module], int, int, int], precision: str) -> dict[str, Any]:
    """What is planned for a step of AdamW with clipping on the GPU."""
    make, features, classes, batch = model
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2 * batch, features)).astype(np.float32)
    y = rng.integers(0, classes, 2 * batch)
    data = hl.DataModule.from_arrays(x, y, val=None, batch_size=batch)
    config = quiet(
        max_epochs=1, optimizer="adamw", precision=precision, gradient_clip_val=1.0,
        accelerator="gpu", benchmark=False,
    )  # fmt: skip
    return hl.plan(make(), data, config).info


def has_libraries() -> bool:
    return os.environ.get("HOTLOOP_CUBLASLT_PATH", "none") != "none"


@emulated
@pytest.mark.parametrize(("name", "precision"), LAUNCHES)
def test_launches_of_a_step(name: str, precision: str) -> None:
    """A change that saves some lowers the number here; none may add one."""
    n = info_of(MODELS[name], precision)["n_kernels"]
    assert n == LAUNCHES[name, precision][has_libraries()]


@emulated
def test_launches_on_an_h200() -> None:
    """They are as many as on the emulated GPU's four multiprocessors."""
    code = "from train import test_gpu_launches as t\nprint(t.count_all())"
    found = run_alone(code, "multiprocessors=132").splitlines()[-1]
    assert ast.literal_eval(found) == {k: n[has_libraries()] for k, n in LAUNCHES.items()}


def count_all() -> dict[tuple[str, str], int]:
    """Launches of a step, by model and precision."""
    return {(name, p): info_of(MODELS[name], p)["n_kernels"] for name, p in LAUNCHES}


@emulated
@pytest.mark.parametrize("name", PATHS)
def test_what_waits_in_a_step(name: str) -> None:
    """Weight gradients that run beside the rest of the backward pass are nobody's wait."""
    info = info_of(MODELS[name], "32-true")
    n_kernels, share = PATHS[name][has_libraries()]
    assert info["n_path_kernels"] == n_kernels
    assert round(info["path_flops"] / info["flops"], 2) == share


@emulated
@pytest.mark.parametrize(("batch", "is_kernel"), [(512, True), (8192, False)])
def test_a_first_batch_norm_has_no_gradient_of_x(batch: int, is_kernel: bool) -> None:
    """One launch gives all gradients of a small matrix; of a larger one, two sums are less."""
    model = nn.Sequential(nn.BatchNorm1d(29), nn.Linear(29, 3))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, 29)).astype(np.float32)
    y = rng.integers(0, 3, batch)
    data = hl.DataModule.from_arrays(x, y, val=None, batch_size=batch)
    plan = hl.plan(model, data, quiet(max_epochs=1, accelerator="gpu", benchmark=False))
    assert ("batch_norm_grad" in plan.text) == is_kernel
