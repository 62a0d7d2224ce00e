"""Numbers too small for a float32's full precision count as zero in what the CPU computes."""

from __future__ import annotations

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from needs import flushes
from train.recipes import quiet

pytestmark = flushes

SMALLEST = np.finfo(np.float32).smallest_normal


def keeps_subnormals() -> bool:
    return np.float32(SMALLEST) * np.float32(0.5) != 0 and np.exp(np.float32(-95)) != 0


class Scaled(nn.Module):
    """Products, whose results no other op reads."""

    def forward(self, x):
        return x * 0.5


class Looks(nn.Module):
    """The mean of an embedding's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2)

    def forward(self, ids):
        return self.table(ids).mean(1)


@pytest.mark.parametrize("rows", [1, 100_000])
def test_results_and_operands_are_zero(rows: int) -> None:
    model, x = Scaled(), np.full((rows, 8), SMALLEST, np.float32)
    assert not np.any(np.asarray(model(x)))
    assert not np.any(np.asarray(model(x * np.float32(0.5)) * np.float32(2.0**60)))
    assert np.all(np.asarray(model(4 * x)) == 2 * SMALLEST)
    assert keeps_subnormals()


def test_the_mode_of_before_comes_back_behind_an_error() -> None:
    with pytest.raises(hl.HotloopError):
        Looks()(np.array([[1, 7]]))
    assert keeps_subnormals()


def test_moments_of_what_has_no_gradient_any_more_are_not_subnormal() -> None:
    """Each step leaves 0.9 of them: after 830 they would be, and stay that for good."""
    model = Looks()
    ids, y = np.array([[3], [0]]), np.ones((2, 2), np.float32)
    config = quiet(optimizer="adam", loss="mse", precision="32-true", accelerator="cpu")
    step = hl.stepper(model, config, hl.DataModule.from_arrays(ids, y, val=None, batch_size=2))
    step.step((ids, y))
    ids[0] = 0
    for _ in range(950):
        step.step((ids, y))
    moments = {
        name: np.abs(values) for name, values in step.state_dict().items() if "optimizer" in name
    }
    assert len(moments) == 2
    for name, values in moments.items():
        assert not np.any((values > 0) & (values < SMALLEST)), name
        assert np.any(values > 0), name
