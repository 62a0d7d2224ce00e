"""Settings of layers and functions are held to their annotations, where they are given."""

import inspect
import math
from typing import Any

import numpy as np
import pytest
from hotloop import nn
from hotloop.errors import ConfigError, ShapeError
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import RULES

UNCHECKED = {  # shared with torch's old signatures, or taken as they are
    "<class 'inspect._empty'>", "Callable[[Any, Any], Any] | None",
    "Callable[[Tensor, Tensor], Tensor] | None", "Operand | None",
}  # fmt: skip
X4 = np.ones((2, 4, 6, 6), np.float32)


def layers() -> dict[str, type[nn.Module]]:
    found = {name: getattr(nn, name) for name in nn.__all__}
    return {
        name: layer
        for name, layer in found.items()
        if isinstance(layer, type) and issubclass(layer, nn.Module) and layer is not nn.Module
    }


def settings(call: Any) -> dict[str, str]:
    known = inspect.signature(call).parameters.values()
    return {one.name: str(one.annotation) for one in known}


def required(call: Any) -> dict[str, Any]:
    """Values for the arguments without a default."""
    good = {
        "float": 1.0, "Real": 1.0, "Order": 2.0, "Size": 4, "Count": 2, "Sizes": 2, "Shape": 4,
        "int": 1, "Sequence[int]": (2, 2), "int | Sequence[int]": 1,
        "int | Sequence[int | None] | None": 1, "Sizing": 1, "Module": nn.Linear(4, 4),
        "bool": True, "str": "GRU",
    }  # fmt: skip
    known = inspect.signature(call).parameters.values()
    return {
        one.name: good[str(one.annotation)]
        for one in known
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    }


def test_each_annotation_has_a_rule() -> None:
    calls = [*layers().values(), *(getattr(F, name) for name in F.__all__)]
    for call in calls:
        for name, annotation in settings(call).items():
            assert annotation in RULES or annotation in UNCHECKED, (call, name, annotation)


@pytest.mark.parametrize("name", sorted(layers()))
def test_constructors_refuse_nonsense(name: str) -> None:
    """No argument that has a rule takes an object, text or NaN, and the message names both."""
    layer = layers()[name]
    for setting, annotation in settings(layer).items():
        if RULES.get(annotation) is None:
            continue
        takes_text = annotation in ("str", "Pads | str")
        for nonsense in (object(), math.nan, *(() if takes_text else ("x",)), 1j, [None, "x"]):
            arguments = {**required(layer), setting: nonsense}
            with pytest.raises(ConfigError, match=f"^{name}: {setting} must "):
                layer(**arguments)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.BatchNorm2d(4, eps=-1), "eps must be at least 0 and finite, got -1"),
        (lambda: nn.GroupNorm(2, 4, eps=-5), "eps must be at least 0"),
        (lambda: nn.SmoothL1Loss(beta=math.nan), "beta must be at least 0"),
        (lambda: nn.HuberLoss(delta=0), "delta must be above 0"),
        (lambda: nn.Softshrink(math.inf), "lambd must be at least 0 and finite"),
        (lambda: nn.LayerNorm(3, eps=10**400), "eps must fit a double"),
        (lambda: nn.PReLU(4, init=None), "init must be a number"),
        (lambda: nn.CrossEntropyLoss(ignore_index=1.7), "ignore_index must be an integer"),
        (lambda: nn.MaxPool2d(2, ceil_mode=(2, 2)), "ceil_mode must be True or False"),
        (lambda: nn.MaxPool2d((2, 2, 2)), "kernel_size must be an integer or 2 of them"),
        (lambda: nn.AvgPool2d(2, divisor_override=1.5), "an integer other than 0"),
        (lambda: nn.Upsample(mode="bilinear", align_corners="x"), "align_corners must be True"),
        (lambda: nn.BatchNorm1d(3, momentum="a"), "momentum must be a number"),
        (lambda: nn.Dropout("0.5"), "p must be a number, got '0.5'; write p=0.5"),
        (lambda: nn.Linear(3, 3, bias=0), "bias must be True or False, got 0; write bias=False"),
        (lambda: nn.GELU("tan"), "approximate must be one of 'none', 'tanh'"),
        (lambda: nn.RReLU(1, 0), "lower must not exceed upper"),
        (lambda: F.layer_norm(X4, 6, eps="a"), "layer_norm: eps must be a number"),
        (lambda: F.huber_loss(X4, X4, delta=math.nan), "huber_loss: delta must be above 0"),
        (lambda: F.cross_entropy(X4[..., 0, 0], [0, 1], ignore_index=1.7), "ignore_index must be"),
        (lambda: F.max_pool2d(X4, 2, ceil_mode="x"), "max_pool2d: ceil_mode must be True or"),
        (lambda: F.avg_pool2d(X4, 2, divisor_override=1.5), "avg_pool2d: divisor_override must"),
        (lambda: F.batch_norm(X4, None, None, training=True, momentum="a"), "momentum must be a"),
        (lambda: F.softshrink(X4, math.nan), "softshrink: lambd must be at least 0"),
        (lambda: F.pad(X4, (1.9, 0)), "pad: pad must be a sequence of integers, got"),
        (lambda: F.pad(X4, ("1", 1)), "pad: pad must be a sequence of integers, got"),
        (lambda: F.pad(X4.astype("u1"), (1, 1), value=300), "one that uint8 has exactly, got 300"),
        (lambda: F.pad(X4.astype("u1"), (1, 1), value=-1), "one that uint8 has exactly, got -1"),
        (lambda: F.pad(X4.astype("i4"), (1, 1), value=0.5), "one that int32 has exactly, got 0.5"),
    ],
)
def test_ranges(make: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert words in str(caught.value)


def test_what_stands_for_a_number() -> None:
    assert nn.MaxPool2d(np.int64(2)).kernel_size == 2
    assert nn.MaxPool2d(np.array([2, 3]), np.array([1, 2]))(X4).shape == (2, 4, 5, 2)
    assert nn.Conv2d(4, 3, np.array([3, 1]), padding=np.array([1, 0])).kernel_size == (3, 1)
    assert nn.Dropout(np.float32(0.5)).p == 0.5
    assert F.threshold(X4, 0.0, -math.inf).min() == 1
    assert nn.ConstantPad1d(1, -math.inf)(X4)[0, 0, 0, 0] == -math.inf
    assert nn.Dropout(1).extra_repr() == "p=1, inplace=False"

    class Learnt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(np.float32(0.5))

        def forward(self, x: Any) -> Any:
            return F.leaky_relu(x, self.slope)  # a tensor where a number belongs

    assert Learnt()(-X4).max() == -0.5


def test_users_constructors_are_their_own() -> None:
    class Mine(nn.Dropout):
        def __init__(self, p: "float", flag: "bool" = False) -> None:
            super().__init__(0.5)
            self.given = p, flag

    assert Mine("text", 3).given == ("text", 3)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------- integers


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8", "bool"])
def test_integers_stay_exact_where_values_are_chosen(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 100, (2, 3, 6, 8)).astype(dtype)
    if dtype == "int64":
        x += 2**40  # float32 has only each 2**17th
    pooled, index = F.max_pool2d(x, 2, return_indices=True)
    blocks = x.reshape(2, 3, 3, 2, 4, 2)
    for y in (pooled, F.adaptive_max_pool2d(x, (3, 4))):
        assert y.dtype == x.dtype
        assert np.array_equal(y, blocks.max((3, 5)))
    padded = F.max_pool2d(x, 3, 2, 1)
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    assert np.array_equal(padded[0, 0, 0, 0], wide[0, 0, :3, :3].max())
    assert np.array_equal(padded[1, 2, 2, 3], wide[1, 2, 4:7, 6:9].max())
    back = F.max_unpool2d(pooled, index, 2)
    assert back.dtype == x.dtype
    assert np.array_equal(back.reshape(blocks.shape).max((3, 5)), pooled)
    assert F.fractional_max_pool2d(x, 2, output_size=3).dtype == x.dtype
    for y in (F.interpolate(x, scale_factor=2), F.interpolate(x, size=(12, 16), mode="nearest")):
        assert y.dtype == x.dtype
        assert np.array_equal(y, x.repeat(2, 2).repeat(2, 3))


# ---------------------------------------------------------------------------- padding


def test_negative_padding_crops_in_every_mode() -> None:
    x = np.arange(7.0, dtype=np.float32)[None, None]
    for mode, expected in {
        "reflect": [2, 1, 0, 1, 2, 3, 4, 5],
        "replicate": [0, 0, 0, 1, 2, 3, 4, 5],
        "circular": [4, 5, 0, 1, 2, 3, 4, 5],
    }.items():
        assert F.pad(x, (2, -1), mode).ravel().tolist() == expected
        assert F.pad(x, (-1, 0), mode).ravel().tolist() == [1, 2, 3, 4, 5, 6]
    assert nn.ReflectionPad2d((-1, 0, 0, -1))(X4).shape == (2, 4, 5, 5)
    for counts in ((-4, -4), (2**62, 2**62)):
        with pytest.raises(ShapeError, match=r"^pad: dim 3 of shape \(2, 4, 6, 6\) must have a si"):
            F.pad(X4, counts)
