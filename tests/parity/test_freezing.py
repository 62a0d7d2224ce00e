"""What is trained from a later epoch on, beside a loop of torch's that sets requires_grad."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

import hotloop as hl  # noqa: E402
from hotloop import nn  # noqa: E402
from train.recipes import classes, quiet  # noqa: E402

OPTIMIZERS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "adam": ({"optimizer": "adam"}, "Adam", {}),
    "adamw": ({"optimizer": "adamw", "weight_decay": 0.1}, "AdamW", {"weight_decay": 0.1}),
    "sgd": (
        {"optimizer": {"name": "sgd", "momentum": 0.9, "dampening": 0.3}},
        "SGD",
        {"momentum": 0.9, "dampening": 0.3},
    ),
    "rmsprop": ({"optimizer": "rmsprop"}, "RMSprop", {}),
}


def data_of() -> hl.DataModule:
    return hl.DataModule.from_arrays(*classes(), batch_size=9)


def model_of() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def torchs(name: str, model: nn.Module, frozen: list[list[str]]) -> dict[str, Any]:
    """Weights after an epoch for each list of names that it freezes, in float64."""
    _, kind, options = OPTIMIZERS[name]
    net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    net.load_state_dict({k: torch.tensor(np.array(v)) for k, v in model.state_dict().items()})
    net.double()
    optimizer = getattr(torch.optim, kind)(net.parameters(), 0.01, **options)
    data = data_of()
    for epoch, names in enumerate(frozen):
        for key, parameter in net.named_parameters():
            parameter.requires_grad_(
                not any(key == one or key.startswith(f"{one}.") for one in names)
            )
            parameter.grad = None
        for batch in data.train_batches(epoch):
            optimizer.zero_grad(set_to_none=True)
            x, y = (torch.from_numpy(np.array(batch[key])) for key in ("x", "y"))
            torch.nn.functional.cross_entropy(net(x.double()), y).backward()
            optimizer.step()
    return {key: value.numpy() for key, value in net.state_dict().items()}


def config_of(name: str, **fields: Any) -> hl.TrainingConfig:
    return quiet(precision="64-true", lr=0.01, decay_norm_and_bias=True,
                 **(OPTIMIZERS[name][0] | fields))  # fmt: skip


def check(model: nn.Module, wanted: dict[str, Any]) -> None:
    for key, value in model.state_dict().items():  # of float32
        np.testing.assert_allclose(value, wanted[key], rtol=2e-6, atol=2e-7, err_msg=key)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_that_goes_on_with_more(name: str) -> None:
    model = model_of()
    wanted = torchs(name, model, [["0"], ["0"], [], []])
    first = hl.train(model, data_of(), config_of(name, max_epochs=2, freeze="0"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hl.errors.CheckpointWarning)
        config = config_of(name, max_epochs=4, resume_strict=False)
        result = hl.train(model, data_of(), config, resume=first)
    check(result.model, wanted)


PHASES: dict[str, tuple[dict[str, Any], list[list[str]]]] = {
    "later": ({"freeze": {"0": 2}}, [["0"], ["0"], [], []]),
    "no longer": ({"freeze": "2", "unfreeze": {"2": 1}}, [[], ["2"], ["2"]]),
    "one after another": (
        {"freeze": {"0.weight": 3, "0.bias": 1}},
        [["0.weight", "0.bias"], ["0.weight"], ["0.weight"], []],
    ),
    "again": (
        {"freeze": {"0": 3}, "unfreeze": {"0": 1}},
        [[], ["0"], ["0"], []],
    ),
}


@pytest.mark.parametrize("phases", PHASES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_phases(name: str, phases: str) -> None:
    """What rests keeps its moments and its count of steps, as torch's state does."""
    fields, frozen = PHASES[phases]
    model = model_of()
    wanted = torchs(name, model, frozen)
    config = config_of(name, max_epochs=len(frozen), **fields)
    check(hl.train(model, data_of(), config).model, wanted)
