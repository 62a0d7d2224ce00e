"""``find_batch_size``: the largest of which a training step fits, as training finds it too."""

from __future__ import annotations

from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from train.recipes import classes, mlp, quiet

ROOM = {"accelerator": "cpu", "precision": "32-true"}


def wide(norm: bool = False) -> nn.Module:
    layers = [nn.Linear(6, 256), *([nn.BatchNorm1d(256)] if norm else []), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 3))


@pytest.mark.parametrize("norm", [False, True])
def test_it_is_the_largest_that_trains(norm: bool) -> None:
    """With one row more, no plan is within the limit."""
    data = hl.DataModule.from_arrays(*classes(500))
    fields = quiet(max_epochs=1, **ROOM)
    # With what the process holds by other tests.
    limit = hl.train(wide(norm), data.with_batch_size(150), fields).peak_bytes
    fields = fields.replace(memory_limit=limit)
    n = hl.find_batch_size(wide(norm), data, fields)
    assert 20 < n < 400
    fields = fields.replace(recompute=False, on_oom="raise")
    hl.plan(wide(norm), data.with_batch_size(n), fields)
    assert hl.train(wide(norm), data.with_batch_size(n), fields).peak_bytes <= limit
    with pytest.raises(hl.OutOfMemoryError):
        hl.plan(wide(norm), data.with_batch_size(n + 1), fields)
    # A plan is predicted to take no less than it does, and training may have room for some more.
    with pytest.raises(hl.OutOfMemoryError):
        hl.train(wide(norm), data.with_batch_size(n + 25), fields)


def test_its_ends_and_what_is_asked_for() -> None:
    X, y = classes(40)
    data = hl.DataModule.from_arrays(X, y, batch_size=8)
    assert hl.find_batch_size(mlp(), data, memory_limit="1 GB", **ROOM) == 40
    assert hl.find_batch_size(mlp(), data, memory_limit="1 GB", at_most=9, **ROOM) == 9
    assert hl.find_batch_size(mlp(), data, device="T4") == 40
    assert hl.find_batch_size(mlp(), data, hl.TrainingConfig(**ROOM), memory_limit="1 GB") == 40
    assert data.batch_size == 8  # as it was
    assert data.with_batch_size(5).example_batch()["x"] == ("float32", (5, 6))
    with pytest.raises(hl.ConfigError, match="batch_size: must be at least 1, got 0"):
        data.with_batch_size(0)


def test_recomputing_makes_room_for_more() -> None:
    data = hl.DataModule.from_arrays(*classes(900))
    free = hl.train(wide(), data.with_batch_size(200), quiet(max_epochs=1, **ROOM))
    limit = {"memory_limit": free.peak_bytes, **ROOM}
    plain = hl.find_batch_size(wide(), data, **limit)
    assert hl.find_batch_size(wide(), data, recompute=True, **limit) > plain


def test_a_gpu_that_is_not_here() -> None:
    """More fits into more."""
    X = np.zeros((4000, 3, 64, 64), np.uint8)
    data = hl.DataModule.from_arrays(X, np.arange(4000) % 4)
    net = nn.Sequential(nn.Conv2d(3, 512, 3), nn.ReLU(), nn.Conv2d(512, 512, 3), nn.ReLU(),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 4))  # fmt: skip
    found: list[Any] = [
        hl.find_batch_size(net, data, device=name, at_most=4000) for name in ("T4", "A100")
    ]
    assert 100 < found[0] < found[1] // 3
    assert hl.plan(net, data.with_batch_size(found[0]), device="T4").fits
    assert not hl.plan(net, data.with_batch_size(found[0] + 1), device="T4").fits


def test_without_room() -> None:
    X, y = classes(40)
    with pytest.raises(hl.ConfigError, match=r"find_batch_size: memory_limit must say how much"):
        hl.find_batch_size(mlp(), (X, y), **ROOM)
    with pytest.raises(hl.OutOfMemoryError, match="not even one row fits into memory_limit=50 kB"):
        hl.find_batch_size(wide(), (X, y), memory_limit="50 kB", **ROOM)
    with pytest.raises(hl.ConfigError, match="at_most: must be at least 1"):
        hl.find_batch_size(mlp(), (X, y), at_most=0, **ROOM)
