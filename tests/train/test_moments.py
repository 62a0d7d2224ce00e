"""Moments that begin within a run are corrected by their own steps, as torch counts them.

The loss is sum(p * g_t) + sum(q * g_t), g_t being the batch, so that the gradient of both in step t
is g_t to the bit. A run that first trains p alone and then both treats q as an optimizer does that
sees the later gradients alone, and p as if nothing had happened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.training.checkpoints.snapshot import Snapshot
from train.recipes import quiet

STEPS, SIZE = 12, 16  # of an epoch; of a parameter, so that no gap lies behind it
_RNG = np.random.default_rng(3)
GRADIENTS = _RNG.standard_normal((STEPS, SIZE)).astype(np.float32)
START = _RNG.standard_normal((2, SIZE)).astype(np.float32)

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": {"name": "sgd", "momentum": 0.9, "dampening": 0.5}},
    "adam": {"optimizer": "adam", "betas": (0.9, 0.99)},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1, "decay_norm_and_bias": True},
    "rmsprop": {"optimizer": {"name": "rmsprop", "centered": True, "momentum": 0.5}},
    "lion": {"optimizer": "lion"},
}


class Points(nn.Module):
    """Two parameters whose gradient is the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(START[0])
        self.q = nn.Parameter(START[1])

    def training_step(self, batch: dict[str, Any]) -> Any:
        return (self.p * batch["x"]).sum() + (self.q * batch["x"]).sum()


def data_of() -> hl.DataModule:
    return hl.DataModule.from_arrays(GRADIENTS, batch_size=1, shuffle=False)


def config_of(name: str, precision: str = "64-true", **fields: Any) -> hl.TrainingConfig:
    return quiet(**({"precision": precision, "lr": 0.02} | OPTIMIZERS[name] | fields))


def trained(config: hl.TrainingConfig, **options: Any) -> hl.TrainResult:
    return hl.train(Points(), data_of(), config, **options)


def goes_on(first: hl.TrainResult, config: hl.TrainingConfig) -> hl.TrainResult:
    with pytest.warns(hl.errors.CheckpointWarning, match=r"optimizer\.0\.q.*begin with zeros"):
        return trained(config.replace(resume_strict=False), resume=first)


def value(result: hl.TrainResult, name: str) -> Any:
    return dict(result.model.named_parameters())[name].numpy()


@pytest.mark.parametrize("precision", ["64-true", "32-true"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_joins_late_begins_its_count(name: str, precision: str) -> None:
    config = config_of(name, precision)
    first = trained(config.replace(max_epochs=2, freeze="q"))
    both = goes_on(first, config.replace(max_epochs=3))
    alone = trained(config.replace(max_epochs=1))
    whole = trained(config.replace(max_epochs=3))
    assert value(both, "p").tobytes() == value(whole, "p").tobytes()
    if precision == "64-true" and name != "rmsprop":  # the model's weights are float32
        np.testing.assert_array_equal(value(both, "q"), value(alone, "q"))
    np.testing.assert_allclose(value(both, "q"), value(alone, "q"), rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_rests_goes_on_where_it_was(name: str) -> None:
    """Two epochs with another one between them are two epochs, moments and steps included."""
    config = config_of(name)
    resting = trained(config.replace(max_epochs=3, freeze={"q": 2}, unfreeze={"q": 1}))
    whole = trained(config.replace(max_epochs=2))
    np.testing.assert_allclose(value(resting, "q"), value(whole, "q"), rtol=3e-7, atol=1e-7)
    assert (value(resting, "p") != value(whole, "p")).any()


def test_moments_keep_their_count_in_checkpoints(tmp_path: Path) -> None:
    """A third call goes on from the file of the second, and from the middle of its epoch."""
    config = config_of("adam", output_dir=tmp_path, enable_checkpointing=True)
    first = trained(config.replace(max_epochs=1, freeze="q"))
    whole = goes_on(first, config.replace(max_epochs=3, output_dir=None))
    second = goes_on(first, config.replace(max_epochs=3, max_steps=STEPS + 5))
    run = Snapshot.read(second.last_path).run
    assert run["control"]["applied"] == STEPS + 5
    assert run["ages"] == {"q": 5}
    third = trained(config.replace(max_epochs=3), resume=second.last_path)
    for name in ("p", "q"):
        assert value(third, name).tobytes() == value(whole, name).tobytes(), name


def test_another_optimizer_begins_anew() -> None:
    """Its moments are none of the earlier one's: a mean as RMSprop's square would give NaN."""
    first = trained(config_of("adam", max_epochs=1))
    later = config_of("rmsprop", max_epochs=2, resume_strict=False)
    with pytest.warns(hl.errors.CheckpointWarning, match="begin with zeros"):
        result = trained(later, resume=first)
    fresh = Points()
    fresh.load_state_dict(first.model.state_dict())
    alone = hl.train(fresh, data_of(), later.replace(max_epochs=1))
    np.testing.assert_allclose(value(result, "p"), value(alone, "p"), rtol=1e-6)


def test_adam_and_adamw_have_the_same_moments() -> None:
    first = trained(config_of("adam", max_epochs=1))
    result = trained(config_of("adamw", max_epochs=2, resume_strict=False, betas=(0.9, 0.99),
                               weight_decay=0.0), resume=first)  # fmt: skip
    whole = trained(config_of("adam", max_epochs=2))
    np.testing.assert_allclose(value(result, "q"), value(whole, "q"), rtol=1e-6)
