"""Sizes that no memory holds: what is at fault is named, and found before anything is drawn."""

from collections.abc import Callable
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import models, nn
from hotloop.errors import ConfigError, OutOfMemoryError, ShapeError
from hotloop.nn import recipes

X = np.ones((2, 3), np.float32)
X4 = np.ones((2, 4, 8, 8), np.float32)
HUGE = 2**24


def refuse(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("a value was drawn")


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm1d(HUGE), lambda: nn.BatchNorm2d(HUGE), lambda: nn.GroupNorm(2, HUGE),
        lambda: nn.LayerNorm(HUGE), lambda: nn.RMSNorm(HUGE), lambda: nn.PReLU(HUGE),
        lambda: nn.FrozenBatchNorm2d(HUGE), lambda: nn.Linear(HUGE, 4),
        lambda: nn.Conv2d(HUGE, 4, 3),
    ],
)  # fmt: skip
def test_shapes_are_checked_before_values_are_drawn(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    for recipe in (recipes.Constant, recipes.Uniform):
        monkeypatch.setattr(recipe, "draw", refuse)
    for call in (lambda model: model(X), lambda model: hl.predict(model, X)):
        with pytest.raises(ShapeError):
            call(make())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Conv2d(4, 4, 2**40), r"^Conv2d: the size of weight .*, got shape \(4, 4, 109"),
        (lambda: nn.Linear(2**40, 2**40), r"^Linear: the size of weight in bytes must fit 63 bits"),
        (lambda: nn.Embedding(2**62, 4), r"^Embedding: the size of weight in bytes must fit"),
        (lambda: nn.Linear(10**20, 4), r"^Linear: in_features must fit 64 bits, got 1000000000"),
        (lambda: models.resnet18(num_classes=10**20), r"^ResNet: num_classes must fit 64 bits"),
    ],
)
def test_sizes_that_overflow(make: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_out_of_memory_names_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3, padding=10**6))
    with pytest.raises(OutOfMemoryError, match=r"the largest value is .*in 0, of shape \(2, 4, 2"):
        model(X4)
    model = nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 10**6, padding=10**6))
    with pytest.raises(OutOfMemoryError, match=r"parameter is 1\.weight of shape \(4, 4, 10"):
        model(X4)

    def out_of_memory(*args: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(recipes.Uniform, "draw", out_of_memory)
    layer = nn.Linear(3, 2)
    with pytest.raises(OutOfMemoryError, match=r"^out of memory: Parameter weight: .*\(2, 3\)$"):
        layer.weight.numpy()


def test_a_broadcast_array_is_larger_than_memory() -> None:
    rows = np.broadcast_to(np.zeros((), np.float32), (2**40, 3, 32, 32))
    for call in (
        lambda: hl.predict(nn.Conv2d(3, 3, 1), rows),
        lambda: hl.DataModule.from_arrays(rows),
    ):
        with pytest.raises(
            OutOfMemoryError,
            match=r"needs a copy of .*, of an array of shape \(1099511627776, 3, 32, 32\)",
        ):
            call()
