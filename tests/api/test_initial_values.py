"""Initial values are those of the seed and the name in the whole model, whoever looked before."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.graph import seeds

X = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)


def look(module: nn.Module) -> None:
    module.state_dict()


def two() -> list[nn.Module]:
    return [nn.Linear(5, 5), nn.Linear(5, 5)]


def listed(layers: list[nn.Module]) -> nn.Module:
    model = nn.Module()
    model.body = nn.ModuleList(layers)
    return model


def assigned(layers: list[nn.Module]) -> nn.Module:
    model = nn.Module()
    model.a, model.b = nn.Sequential(layers[0]), nn.Sequential(layers[1])
    look(model.a)
    outer = nn.Module()
    outer.inner = model
    return outer


def moved(layers: list[nn.Module]) -> nn.Module:
    old = nn.Sequential(*layers)
    look(old)
    new = nn.Sequential(nn.ReLU(), *old.children())
    look(new)
    del old
    gc.collect()
    return new


def replaced(layers: list[nn.Module]) -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 5), layers[1])
    look(model)
    model[0] = layers[0]
    return model


JOINS = [nn.Sequential, listed, assigned, moved, replaced]


@pytest.mark.parametrize("join", JOINS, ids=lambda join: join.__name__)
def test_looking_at_layers_before_they_are_joined_changes_nothing(join: Callable[..., Any]) -> None:
    layers = two()
    for layer in layers:
        layer(X)
        look(layer)
    join = (lambda made: nn.Sequential(*made)) if join is nn.Sequential else join
    seen, unseen = join(layers), join(two())
    for name, value in unseen.state_dict().items():
        np.testing.assert_array_equal(seen.state_dict()[name], value, err_msg=name)
    first, second = (layer.weight.numpy() for layer in layers)
    assert not np.array_equal(first, second)


def test_a_prediction_follows_when_a_layer_gets_another_name() -> None:
    layer = nn.Linear(5, 5)
    alone = layer(X)
    model = nn.Sequential(nn.Identity(), layer)
    np.testing.assert_array_equal(layer(X), model(X))
    assert not np.array_equal(alone, layer(X))


def test_tied_values_are_those_of_their_first_name() -> None:
    a, b = two()
    look(a)
    look(b)
    b.weight = a.weight
    model = nn.Sequential(a, b)
    fresh = nn.Sequential(*two())
    np.testing.assert_array_equal(model[1].weight.numpy(), fresh[0].weight.numpy())


SETS: dict[str, Callable[[Any], Any]] = {
    "copy_": lambda layer: layer.weight.copy_(np.full((5, 5), 0.5)),
    "load_state_dict": lambda layer: layer.load_state_dict(
        {"weight": np.full((5, 5), 0.5), "bias": np.zeros(5)}
    ),
    "constant_": lambda layer: nn.init.constant_(layer.weight, 0.5),
    "training": lambda layer: hl.train(layer, (X, X), max_epochs=1, enable_progress_bar=False),
}


@pytest.mark.parametrize("way", SETS)
def test_values_that_were_set_stay_when_a_layer_is_joined(way: str) -> None:
    layer = nn.Linear(5, 5)
    SETS[way](layer)
    before = layer.weight.numpy()
    model = nn.Sequential(nn.Linear(5, 5), layer)
    np.testing.assert_array_equal(model[1].weight.numpy(), before)


def test_a_copy_keeps_its_numbers_whatever_its_name_becomes() -> None:
    layer = nn.Linear(5, 5)
    before = layer.weight.numpy()
    model = nn.Sequential(copy.deepcopy(layer), copy.deepcopy(layer), layer)
    for part in model:
        np.testing.assert_array_equal(part.weight.numpy(), before)


def test_initial_values_drawn_by_init_functions_are_those_of_the_name_too() -> None:
    layers = two()
    for layer in layers:
        nn.init.normal_(layer.weight)
        look(layer)
    model = nn.Sequential(*layers)
    assert not np.array_equal(model[0].weight.numpy(), model[1].weight.numpy())


def test_looking_does_not_take_the_seed_of_a_training(monkeypatch) -> None:
    """The members of an ensemble that were looked at are as different as those that were not."""
    monkeypatch.setattr(seeds._State, "seed", None)  # manual_seed's would go first
    data = hl.DataModule.from_arrays(X, X, val=0)
    config = hl.TrainingConfig(
        max_epochs=1,
        lr=1e-12,
        optimizer="sgd",
        weight_decay=0.0,
        enable_progress_bar=False,
        logger=None,
    )
    kept = {}
    for looks in (True, False):
        for seed in (1, 2):
            model = nn.Linear(5, 5)
            if looks:
                model(X)
                look(model)
            hl.train(model, data, config, seed=seed)
            kept[looks, seed] = model.weight.numpy()
    np.testing.assert_array_equal(kept[True, 1], kept[False, 1])
    np.testing.assert_array_equal(kept[True, 2], kept[False, 2])
    assert not np.array_equal(kept[True, 1], kept[True, 2])


def test_names_are_those_of_the_modules_that_are_left() -> None:
    old = nn.Sequential(*two())
    new = nn.Sequential(nn.ReLU(), *old.children())
    assert new[1].weight.qualified_name == "0.weight"
    del old
    gc.collect()
    assert new[1].weight.qualified_name == "1.weight"
    assert new[2].path == "2"
