"""bf16-mixed beside torch.autocast on the CPU: as close to float32 as it, or closer.

The two round differently (autocast rounds a layer's result as well), so neither is the other's
oracle: both are held against the float32 trajectory, and to each other by the unit of bfloat16.
"""

from typing import Any

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

import hotloop as hl  # noqa: E402
from hotloop import nn  # noqa: E402
from parity.twins import copy_weights  # noqa: E402
from train.recipes import classes, quiet  # noqa: E402

UNIT = 2.0**-8
STEPS = 40


def make(layers: Any) -> Any:
    """The same network by either library's nn."""
    return layers.Sequential(
        layers.Linear(20, 64), layers.ReLU(), layers.Linear(64, 64), layers.Tanh(),
        layers.Linear(64, 5),
    )  # fmt: skip


def run_torch(model: nn.Module, data: hl.DataModule, *, reduced: bool) -> list[float]:
    twin = make(torch.nn)
    copy_weights(model, twin)
    optimizer = torch.optim.SGD(twin.parameters(), 0.05, 0.9)
    losses = []
    for batch in batches(data):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=reduced):
            logits = twin(torch.from_numpy(batch["x"].copy()))
        loss = torch.nn.functional.cross_entropy(
            logits.float(), torch.from_numpy(batch["y"].copy())
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_hotloop(model: nn.Module, data: hl.DataModule, precision: str) -> list[float]:
    config = quiet(max_epochs=50, optimizer="sgd", lr=0.05, momentum=0.9, precision=precision)
    step = hl.stepper(model, config, data)
    return [step.step(batch)["loss"] for batch in batches(data)]


def batches(data: hl.DataModule) -> list[Any]:
    found = [batch for epoch in range(20) for batch in data.train_batches(epoch)]
    return found[:STEPS]


@pytest.mark.parametrize("seed", range(3))
def test_as_close_to_float32_as_autocast(seed: int) -> None:
    X, y = classes(320, 20, 5, seed)
    data = hl.DataModule.from_arrays(X, y, val=None, batch_size=64)
    model = make(nn)
    full = np.array(run_torch(model, data, reduced=False))
    theirs = np.array(run_torch(model, data, reduced=True))
    ours = np.array(run_hotloop(model, data, "bf16-mixed"))
    np.testing.assert_allclose(ours, theirs, rtol=8 * UNIT, atol=8 * UNIT * 0.1)
    gap = np.sqrt(np.mean((ours - full) ** 2))
    assert 0 < gap <= 1.2 * np.sqrt(np.mean((theirs - full) ** 2))


@pytest.mark.parametrize("seed", range(3))
def test_float16_stays_near_float32(seed: int) -> None:
    X, y = classes(320, 20, 5, seed)
    data = hl.DataModule.from_arrays(X, y, val=None, batch_size=64)
    model = make(nn)
    full = np.array(run_torch(model, data, reduced=False))
    ours = np.array(run_hotloop(model, data, "16-mixed"))
    np.testing.assert_allclose(ours, full, rtol=8 * 2.0**-11, atol=2.0**-11)
