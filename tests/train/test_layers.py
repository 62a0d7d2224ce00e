"""Learning rates that fall from layer to layer: what a layer is, and what it trains with."""

from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import models, nn
from hotloop.errors import ConfigError
from hotloop.training.plans.layers import layers_of
from needs import take_library
from train.recipes import classes, exact, quiet, same_bits, weights

X, y = classes()


def numbers(model: nn.Module) -> dict[str, int]:
    """From a parameter to its layer."""
    found = {
        name: number for number, layer in enumerate(layers_of(model)) for name in layer.parameters
    }
    assert found.keys() == dict(model.named_parameters()).keys()
    return found


def deep(*, norm: bool = True) -> nn.Sequential:
    """Three layers, the second with a norm behind it."""
    norms = [nn.LayerNorm(8)] if norm else []
    return nn.Sequential(
        nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), *norms, nn.Tanh(), nn.Linear(8, 3)
    )


# ---------------------------------------------------------------------------- what a layer is


def test_a_sequential_has_a_layer_for_each_entry_with_its_norm() -> None:
    found = numbers(deep())
    assert {name.partition(".")[0]: number for name, number in found.items()} == {
        "0": 0, "2": 1, "3": 1, "5": 2,
    }  # fmt: skip


def test_a_vision_transformer_has_timms_layers() -> None:
    """``stem``, each block, the last of them with the norm, and the head: those of its matcher."""
    found = numbers(models.vit_tiny_patch16_224(num_classes=3, img_size=32))
    for name, number in found.items():
        first, *rest = name.split(".")
        want = {"blocks": int(rest[0]) + 1 if first == "blocks" else -1, "norm": 12, "head": 13}
        assert number == want.get(first, 0), name


@pytest.mark.parametrize(
    ("make", "blocks"), [("resnet18", (2, 2, 2, 2)), ("resnet50", (3, 4, 6, 3))]
)
def test_a_resnet_has_timms_layers(make: str, blocks: tuple[int, ...]) -> None:
    """``conv1`` with its norm, each block with its shortcut, and the head."""
    for name, number in numbers(getattr(models, make)(num_classes=3)).items():
        first, second, *_ = name.split(".")
        if first.startswith("layer"):
            stage = int(first[-1]) - 1
            assert number == 1 + sum(blocks[:stage]) + int(second), name
        else:
            assert number == (sum(blocks) + 1 if first == "fc" else 0), name


@pytest.mark.parity
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnet18", "resnet50"])
def test_layers_are_those_of_timm(name: str) -> None:
    take_library("torch")
    from parity.zoo import take_timm

    timm = take_timm()
    from timm.models import group_parameters

    theirs = timm.create_model(name)
    want = group_parameters(theirs, theirs.group_matcher(coarse=False), reverse=True)
    assert numbers(getattr(models, name)()) == want


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner
        if head is not None:
            self.head = head

    def forward(self, x: Any) -> Any:
        x = self.inner(x)
        return self.head(x) if hasattr(self, "head") else x


class Block(nn.Module):
    """Whose own container is no reason to look into it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


class Heads(nn.Module):
    """As attention is written in courses: a list of modules deep within a block."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Wrapped(
            nn.ModuleList([Wrapped(nn.Linear(8, 4)), Wrapped(nn.Linear(8, 4))])
        )
        self.out = nn.Linear(8, 8)


class Tokens(nn.Module):
    """Two tables, a norm of the input, blocks in a list and a head that is the first table."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(np.ones(8, np.float32))
        self.words = nn.Embedding(5, 8)
        self.places = nn.Embedding(4, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5, bias=False)
        self.head.weight = self.words.weight


def names(model: nn.Module) -> list[str]:
    return [layer.name for layer in layers_of(model)]


def test_tables_and_tokens_are_the_first_layer() -> None:
    layers = layers_of(Tokens())
    assert [layer.name for layer in layers] == ["words", "blocks.0", "blocks.1"]
    assert list(layers[0].parameters) == ["scale", "words.weight", "places.weight"]
    assert list(layers[2].parameters)[-2:] == ["norm.weight", "norm.bias"]


def test_a_norm_before_all_belongs_to_the_layer_behind_it() -> None:
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.Linear(8, 3))
    assert names(model) == ["1", "2"]
    assert numbers(model)["0.weight"] == 0


def test_what_is_looked_into() -> None:
    stack = nn.Sequential(Block(), Block())
    assert names(stack) == ["0", "1"]
    assert names(Wrapped(stack, nn.Linear(8, 3))) == ["inner.0", "inner.1", "head"]
    assert names(Wrapped(Wrapped(stack), nn.Linear(8, 3))) == [
        "inner.inner.0", "inner.inner.1", "head",
    ]  # fmt: skip
    assert names(nn.Sequential(Wrapped(stack), nn.Linear(8, 3))) == ["0.inner.0", "0.inner.1", "1"]
    attending = nn.Sequential(Heads(), Heads())
    assert names(Wrapped(attending, nn.Linear(8, 3))) == ["inner.0", "inner.1", "head"]
    assert names(Wrapped(Wrapped(nn.Linear(8, 8), nn.Linear(8, 3)))) == [
        "inner.inner", "inner.head",
    ]  # fmt: skip
    assert names(Wrapped(nn.Linear(6, 8), nn.LSTM(8, 8, num_layers=2))) == ["inner", "head"]


def test_one_layer_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^layer_decay: must have several layers .* param_groups"
    ):
        hl.train(nn.Sequential(nn.Linear(6, 3)), (X, y), quiet(max_epochs=1, layer_decay=0.5))
    hl.train(nn.Sequential(nn.Linear(6, 3)), (X, y), quiet(max_epochs=1, layer_decay=1.0))


# ---------------------------------------------------------------------------- what it trains with


GROUPS = [  # the same rates, written out
    {"params": ["0"], "lr_scale": 0.25},
    {"params": ["2", "3"], "lr_scale": 0.5},
]


def trained(model: nn.Module, **fields: Any) -> dict[str, Any]:
    hl.train(model, (X, y), quiet(**({"max_epochs": 3, "lr": 0.02, "optimizer": "adamw"} | fields)))
    return model.state_dict()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"scheduler": "cosine", "warmup": 3, "weight_decay": 0.1},
        {"ema": 0.9},
        {"freeze": "2", "gradient_clip_val": 0.1},
        {"optimizer": "sgd", "accumulate_grad_batches": 2},
    ],
    ids=["plain", "scheduled", "averaged", "frozen", "accumulated"],
)
def test_it_has_the_bits_of_groups_with_these_rates(fields: dict[str, Any]) -> None:
    by_decay = trained(deep(), layer_decay=0.5, **fields)
    assert same_bits(by_decay, trained(deep(), param_groups=GROUPS, **fields))
    assert not same_bits(by_decay, trained(deep(), **fields))


def test_rates_that_are_given_win() -> None:
    """A group with a decay alone keeps its layer's rate."""
    groups = [{"params": "0", "lr": 0.003}, {"params": "2", "weight_decay": 0.3}]
    other = [
        {"params": "0", "lr": 0.003},
        {"params": "2", "lr_scale": 0.5, "weight_decay": 0.3},
        {"params": "3", "lr_scale": 0.5},
    ]
    want = trained(deep(), param_groups=other)
    assert same_bits(want, trained(deep(), layer_decay=0.5, param_groups=groups))


def test_a_frozen_layer_counts() -> None:
    """The first layer's rate is that of two layers before the last, with a frozen one between."""
    want = trained(deep(), param_groups=[{"params": "0", "lr_scale": 0.25}], freeze=["2", "3"])
    assert same_bits(want, trained(deep(), layer_decay=0.5, freeze=["2", "3"]))


def test_a_loss_has_the_last_layers_rate() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(np.ones((), np.float32))

        def forward(self, output: Any, target: Any) -> Any:
            return nn.functional.cross_entropy(output * self.scale, target)

    found = [Scaled(), Scaled()]
    trained(deep(), layer_decay=0.5, loss=found[0])
    trained(deep(), param_groups=GROUPS, loss=found[1])
    assert same_bits(*(loss.state_dict() for loss in found))
    assert found[0].scale.numpy() != 1.0


def test_a_stepper_has_them_too() -> None:
    found = [deep(), deep()]
    for model, fields in zip(found, ({"layer_decay": 0.5}, {"param_groups": GROUPS})):
        data = hl.DataModule.from_arrays(X, y, batch_size=30)
        step = hl.stepper(model, quiet(lr=0.02, **fields), data)
        for batch in data.train_batches(0):
            step.step(batch)
        step.sync()
    assert same_bits(*(model.state_dict() for model in found))


def test_resumed_with_the_same_alone() -> None:
    whole = trained(deep(), max_epochs=4, layer_decay=0.5)
    model = deep()
    first = hl.train(model, (X, y), quiet(max_epochs=4, lr=0.02, layer_decay=0.5, max_steps=4))
    with pytest.raises(ConfigError, match=r"layer_decay 0\.7 \(then 0\.5\)"):
        first.resume(max_steps=None, layer_decay=0.7)
    first.resume(max_steps=None)
    assert same_bits(whole, model.state_dict())
    first.resume(max_steps=None, layer_decay=0.7, resume_strict=False)


def test_the_header_has_the_first_and_the_last_rate(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {"enable_progress_bar": True, "max_epochs": 1, "lr": 0.01, "layer_decay": 0.5}
    hl.train(deep(), (X, y), quiet(**shown))
    text = " ".join("".join(capsys.readouterr()).split())
    assert "layers 0.5 a layer, 3 of them: lr 0.0025 (0) to 0.01 (5)" in text
    hl.train(deep(), (X, y), quiet(**shown | {"layer_decay": 1.0}))
    assert "layers" not in capsys.readouterr().out


@pytest.mark.parity
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_torch_with_the_same_groups(name: str) -> None:
    """In float64, step by step: rates of groups that fall by layers, weight decay on all."""
    torch = take_library("torch")
    torch.set_num_threads(1)
    data = hl.DataModule.from_arrays(X, y, batch_size=30)
    fields = {"optimizer": name, "lr": 0.02, "weight_decay": 0.1, "decay_norm_and_bias": True}
    model = deep(norm=False)
    values = weights(model)
    twin = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh(),
        torch.nn.Linear(8, 3),
    ).double()  # fmt: skip
    twin.load_state_dict({key: torch.tensor(value) for key, value in values.items()})
    model.load_state_dict(values)
    groups = [
        {"params": list(twin[i].parameters()), "lr": 0.02 * 0.6**power}
        for i, power in ((0, 2), (2, 1), (4, 0))
    ]
    make = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[name]
    optimizer = make(groups, lr=0.02, weight_decay=0.1)
    for epoch in range(3):
        for batch in data.train_batches(epoch):
            optimizer.zero_grad()
            output = twin(torch.tensor(batch["x"]).double())
            torch.nn.functional.cross_entropy(output, torch.tensor(batch["y"])).backward()
            optimizer.step()
    hl.train(model, data, exact(max_epochs=3, layer_decay=0.6, **fields))
    for key, value in twin.state_dict().items():
        np.testing.assert_allclose(weights(model)[key], value.numpy(), rtol=1e-5, atol=1e-6)
