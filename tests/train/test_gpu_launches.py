"""How many kernels a step launches: what a small model's step takes on a GPU is mostly that."""

import ast
import itertools
import os
from collections.abc import Callable, Iterator
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


# Launches that each step of time adds to a training step where recurrences are lowered, as
# kernels/cuda/recurrence.c counts them: forward and backward.
LOWERED = {"RNN": 4 + 3, "LSTM": 10 + 13, "GRU": 11 + 14}


class Last(nn.Module):
    """Two classes of the last state."""

    def __init__(self, kind: str, hidden: int) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(8, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 2)

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        return self.head(self.layer(x)[0][:, -1])


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


def plan_of_steps(kind: str, hidden: int, precision: str, steps: int) -> Any:
    """For 64 rows."""
    x = np.random.default_rng(0).standard_normal((64, steps, 8)).astype(np.float32)
    data = hl.DataModule.from_arrays(x, np.arange(64) % 2, val=None, batch_size=64)
    config = quiet(max_epochs=1, precision=precision, accelerator="gpu", benchmark=False)
    return hl.plan(Last(kind, hidden), data, config)


@pytest.fixture
def own_recurrences(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without cuDNN, which takes whole layers of float32 (test_gpu_recurrent.py)."""
    monkeypatch.setenv("HOTLOOP_CUDNN_PATH", "none")
    hl.empty_cache()
    yield
    hl.empty_cache()


@emulated
@pytest.mark.usefixtures("own_recurrences")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("kind", LOWERED)
def test_a_recurrence_is_one_launch(kind: str, precision: str) -> None:
    """Over all steps of time; sums over more rows may be cut into one more."""
    plans = [plan_of_steps(kind, 64, precision, steps) for steps in (8, 16)]
    for plan in plans:
        assert plan.text.count("cuda.recurrence:") == plan.text.count("cuda.recurrence_grad:") == 1
    assert plans[1].info["n_kernels"] - plans[0].info["n_kernels"] in (0, 1)


@emulated
@pytest.mark.usefixtures("own_recurrences")
@pytest.mark.parametrize("kind", LOWERED)
def test_a_large_recurrence_goes_step_by_step(kind: str) -> None:
    """Where reading the weight at every step would take longer than launches."""
    few, many = (plan_of_steps(kind, 700, "32-true", steps) for steps in (4, 8))
    assert "cuda.recurrence" not in many.text
    assert (many.info["n_kernels"] - few.info["n_kernels"]) / 4 == LOWERED[kind]


@pytest.mark.parametrize("gpu", ["T4", "H200"])
def test_recurrences_of_described_gpus(gpu: str) -> None:
    """A T4 reads this weight from its cache, an H200 keeps it in shared memory."""
    x = np.zeros((64, 20, 8), np.float32)
    data = hl.DataModule.from_arrays(x, np.arange(64) % 2, val=None, batch_size=64)
    plan = hl.plan(Last("LSTM", 128), data, quiet(max_epochs=1), device=gpu)
    assert plan.text.count("cuda.recurrence:") == plan.text.count("cuda.recurrence_grad:") == 1
