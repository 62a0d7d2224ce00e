"""Statistical nodes on a GPU, real or emulated: what the CPU finds, to 1e-10."""

import os
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, stats
from hotloop.training.plans.accelerator import device_of_statistics
from hotloop.training.plans.initialization import Fitting
from needs import NO_GPU
from train.recipes import quiet
from train.test_initialization import CUBES, LOSSES, Mixed, chain, close, fit, sequential

pytestmark = pytest.mark.skipif(not os.environ.get("HOTLOOP_TEST_GPU"), reason=NO_GPU)


@pytest.mark.parametrize("make", [chain, Mixed])
def test_a_gpu_finds_what_the_cpu_finds(gpu: _core.Device, make: Any, monkeypatch: Any) -> None:
    """Whatever its float64 is like."""
    import hotloop.training.plans.initialization as module

    monkeypatch.setattr(module, "device_of_statistics", lambda device: (device, ""))
    devices = []
    run = Fitting.run

    def noting(self: Any, *args: Any) -> None:
        devices.append(self.device.memory() is not None)
        run(self, *args)

    monkeypatch.setattr(Fitting, "run", noting)
    want, got = fit(make()), make()
    for size in (7, 30):
        got = make()
        data = hl.DataModule.from_arrays(CUBES, val=None, batch_size=size)
        hl.train(got, data, quiet(accelerator="gpu", max_epochs=0))
        for (_, a), (_, b) in zip(want.named_modules(), got.named_modules(), strict=True):
            for key, value in getattr(a, "statistics", {}).items():
                close(b.statistics[key], value)
    assert devices == [False, True, True]


def test_masks_and_both_phases(gpu: _core.Device) -> None:
    mask = np.random.default_rng(0).random(CUBES.shape[:3]) < 0.7
    x = {"cube": np.where(mask[..., None], CUBES, 0).astype(np.float32), "mask": mask}
    data = hl.DataModule.from_arrays(x, val=0.2, batch_size=8)
    states = []
    for accelerator in ("cpu", "gpu"):
        model = chain()
        fields = {"accelerator": accelerator, "precision": "32-true", "optimizer": "sgd"}
        config = quiet(max_epochs=2, losses=LOSSES, unfreeze=["pca1", "pca2"], lr=1e-3, **fields)
        hl.train(model, data, config)
        states.append(dict(model.state_dict()))
    for name, value in states[0].items():
        np.testing.assert_allclose(states[1][name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("gpu_name", "is_gpu"), [("A100", True), ("T4", False), ("H200", True)])
def test_slow_float64_leaves_the_sums_to_the_cpu(gpu_name: str, is_gpu: bool) -> None:
    device, why = device_of_statistics(_core.Device("cuda", gpu=gpu_name))
    assert (device.memory() is not None) == is_gpu
    assert (why == "") == is_gpu


def test_scores_behind_other_nodes(gpu: _core.Device) -> None:
    made = {}
    for accelerator in ("cpu", "gpu"):
        model = sequential(rx=stats.RXGlobal(), logit=stats.ScoreToLogit())
        data = hl.DataModule.from_arrays(CUBES, val=None, batch_size=8)
        hl.train(model, data, quiet(accelerator=accelerator, max_epochs=0))
        made[accelerator] = model.logit.statistics["bias"]
    np.testing.assert_allclose(made["gpu"], made["cpu"], rtol=1e-4)  # scores are float32
