"""A run on a GPU, real or emulated, that is continued: there with the same bits, elsewhere too."""

import os
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.training.checkpoints.snapshot import Snapshot
from needs import NO_GPU
from train.recipes import classes, mlp, quiet, same_bits, weights

pytestmark = pytest.mark.skipif(not os.environ.get("HOTLOOP_TEST_GPU"), reason=NO_GPU)

X, Y = classes(n=85)
FIELDS: dict[str, Any] = {
    "optimizer": "adamw",
    "lr": 0.01,
    "deterministic": True,
    "ema": 0.9,
    "max_epochs": 3,
    "enable_checkpointing": True,
}


def net() -> nn.Module:
    return mlp(norm=True, dropout=0.3)


def data() -> hl.DataModule:
    return hl.DataModule.from_arrays(X, Y, val=0.2, batch_size=16)


def tensors_of(result: hl.TrainResult) -> dict[str, Any]:
    state = result._state
    return (Snapshot.read(result.last_path) if state is None else state).tensors


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"accumulate_grad_batches": 2},
        {"precision": "16-mixed"},
        {"device_cache": False},
        {"val_check_interval": 2},
        {"val_check_interval": 2, "device_cache": False},
        {"ema": False, "swa": 0.4},
        {"ema": False, "swa": 0.4, "precision": "16-mixed", "device_cache": False},
        {"freeze": {"0": 1, "1": 2}},
        {"freeze": {"0": 2}, "precision": "16-mixed", "device_cache": False},
        {"freeze": {"0": 2}, "unfreeze": {"0": 1}, "precision": "bf16-mixed"},
    ],
    ids=[
        "plain",
        "accumulate",
        "float16",
        "fed",
        "within",
        "within-fed",
        "swa",
        "swa-fed",
        "phases",
        "phases-fed",
        "phases-again",
    ],
)
def test_every_checkpoint(gpu: _core.Device, fields: dict[str, Any], tmp_path: Path) -> None:
    config = quiet(accelerator="gpu", **(FIELDS | fields))
    whole = hl.train(net(), data(), config)
    assert whole.peak_bytes == whole.predicted_peak_bytes
    saved = config.replace(output_dir=tmp_path, save_every="2 steps", save_top_k=0)
    assert same_bits(weights(hl.train(net(), data(), saved).model), weights(whole.model))
    paths = sorted((tmp_path / "1/checkpoints").glob("step-*"))
    assert paths
    for i, path in enumerate(paths):
        again = hl.train(net(), data(), resume=path, output_dir=tmp_path / f"again-{i}")
        assert again.device == gpu.name
        assert same_bits(tensors_of(again), tensors_of(whole))
        assert again.history["loss"] == whole.history["loss"]
    if "val_check_interval" in fields:  # which leaves training alone
        plain = hl.train(net(), data(), config.replace(val_check_interval=None))
        assert same_bits(weights(plain.model), weights(whole.model))


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_phases_are_fits_that_go_on(gpu: _core.Device, optimizer: str) -> None:
    """What is trained from the second epoch on begins its moments there."""
    fields = FIELDS | {"optimizer": optimizer, "enable_checkpointing": False}
    fields |= {"momentum": 0.9} if optimizer == "sgd" else {}
    config = quiet(accelerator="gpu", **fields)
    whole = hl.train(net(), data(), config.replace(freeze={"0": 1}))
    first = hl.train(net(), data(), config.replace(freeze="0", max_epochs=1))
    with pytest.warns(hl.CheckpointWarning, match="begin with zeros"):
        second = hl.train(net(), data(), config.replace(resume_strict=False), resume=first)
    assert same_bits(tensors_of(second), tensors_of(whole))
    found, wanted = (
        weights(hl.train(mlp(), data(), config.replace(freeze={"0": 1}, accelerator=at)).model)
        for at in ("gpu", "cpu")
    )
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_another_device_goes_on(gpu: _core.Device, tmp_path: Path) -> None:
    sgd = {"optimizer": "sgd", "momentum": 0.9, "lr": 0.05}
    fields = FIELDS | sgd | {"precision": "32-true", "max_steps": 7}
    whole = hl.train(net(), data(), quiet(accelerator="cpu", **(fields | {"max_steps": None})))
    for first, then in (("gpu", "cpu"), ("cpu", "gpu")):
        config = quiet(accelerator=first, output_dir=tmp_path / first, **fields)
        hl.train(net(), data(), config)
        result = hl.train(
            net(), data(), resume=True, output_dir=tmp_path / first, accelerator=then,
            max_steps=None,
        )  # fmt: skip
        for name, value in weights(whole.model).items():
            np.testing.assert_allclose(weights(result.model)[name], value, 1e-4, 1e-5, err_msg=name)
