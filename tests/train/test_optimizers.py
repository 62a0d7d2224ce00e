"""Optimizers alone against torch's stored trajectories: the parameter after each of 20 steps.

The loss is sum(p * g_t), g_t being the batch, so the gradient of step t is g_t to the bit. What
a trajectory may be off by is the rounding of its steps: each adds at most a unit in the last place
of the largest value on its way.
"""

from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from train import optimizer_cases
from train.optimizer_cases import CASES, LRS, optimizer_of
from train.recipes import quiet

STORED = dict(np.load(optimizer_cases.STORED))
UNITS = {"64-true": 2.0**-52, "32-true": 2.0**-23}


class Point(nn.Module):
    """A parameter whose gradient is the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(STORED["start"][None])

    def training_step(self, batch: dict[str, Any]) -> Any:
        return (self.p * batch["x"]).sum()


def run_steps(name: str, precision: str) -> list[np.ndarray]:
    """The parameter after each step."""
    optimizer = hl.OptimizerConfig(optimizer_of(name), **({"weight_decay": 0.0} | CASES[name].ours))
    config = quiet(
        max_epochs=1,
        optimizer=optimizer,
        lr=LRS[optimizer.name],
        scheduler=hl.SchedulerConfig("linear", start_factor=1.0, end_factor=0.5),
        precision=precision,
        decay_norm_and_bias=True,
    )
    data = hl.DataModule.from_arrays(STORED["gradients"], batch_size=1, shuffle=False)
    step = hl.stepper(Point(), config, data)
    trail = []
    for batch in data.train_batches(0):
        step.step(batch)
        trail.append(step._runtime.session.read("param", "float64"))
    return trail


@pytest.mark.parametrize("precision", UNITS)
@pytest.mark.parametrize("name", CASES)
def test_twenty_steps(name: str, precision: str) -> None:
    trail = run_steps(name, precision)
    largest = max(1.0, float(np.abs(STORED[name]).max()))
    allowed = UNITS[precision] * largest
    for t, (got, want) in enumerate(zip(trail, STORED[name], strict=True)):
        np.testing.assert_allclose(
            got, want, rtol=0, atol=allowed * (t + 1), err_msg=f"step {t + 1}"
        )


def test_the_stored_trajectories_differ() -> None:
    """A setting that torch left out would make two cases one."""
    last = {name: STORED[name][-1] for name in CASES}
    for name, value in last.items():
        same = [other for other in last if np.abs(last[other] - value).max() < 1e-9]
        # Without decay Adam and AdamW are one algorithm.
        assert set(same) == ({"adam", "adamw"} if name in ("adam", "adamw") else {name})
