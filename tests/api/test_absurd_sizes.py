"""Sizes that no memory holds: what is at fault is named, and found before anything is drawn."""

from collections.abc import Callable
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import models, nn
from hotloop.errors import ConfigError, OutOfMemoryError, ShapeError
from hotloop.nn import functional as F
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


SIZES: dict[str, Callable[[int], Any]] = {
    "sinusoidal_positions": lambda n: F.sinusoidal_positions(n, 4),
    "alibi_bias": lambda n: F.alibi_bias(2, 1, n),
    "unique": lambda n: hl.unique(np.arange(3), size=n),
    "full": hl.zeros,
    "arange": hl.arange,
    "linspace": lambda n: hl.linspace(0, 1, n),
    "eye": lambda n: hl.eye(1, n),
    "uniform numbers": hl.rand,
    "normal numbers": hl.randn,
    "randperm": hl.randperm,
    "generate": lambda n: hl.generate(
        models.gpt(11, 8, 1, 2, 16), [[1]], n, context=4, temperature=0
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_arrays_that_no_memory_holds(name: str) -> None:
    words = rf"^out of memory: {name}: an array of shape \(.*\) needs [\d,]+ bytes$"
    with pytest.raises(OutOfMemoryError, match=words):
        SIZES[name](2**45)
    for n in (2**62, np.int64(2**62)):
        with pytest.raises(ShapeError, match=rf"^{name}: the bytes must fit in 63 bits, got an"):
            SIZES[name](n)


def test_a_mask_that_no_memory_holds() -> None:
    mask = nn.Transformer.generate_square_subsequent_mask
    with pytest.raises(OutOfMemoryError, match=r"mask: an array of shape \(33554432, 33554432\)"):
        mask(2**25)
    with pytest.raises(ShapeError, match="mask: the bytes must fit in 63 bits"):
        mask(2**40)


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
