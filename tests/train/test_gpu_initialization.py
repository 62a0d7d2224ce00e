"""Statistical nodes on a GPU, real or emulated: what the CPU finds, to 1e-10."""

import os
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn, stats
from hotloop.training.plans.initialization import Fitting
from needs import NO_GPU
from train.recipes import quiet
from train.test_initialization import CUBES, LOSSES, Mixed, chain, close, fit, sequential

pytestmark = pytest.mark.skipif(not os.environ.get("HOTLOOP_TEST_GPU"), reason=NO_GPU)


@pytest.mark.parametrize("make", [chain, Mixed])
def test_a_gpu_finds_what_the_cpu_finds(gpu: _core.Device, make: Any, monkeypatch: Any) -> None:
    """Whatever its float64 is like."""
    import hotloop.training.plans.initialization as module

    monkeypatch.setattr(module, "device_of_statistics", lambda device, *_: (device, ""))
    places = []
    run = Fitting.run

    def noting(self: Any, *args: Any) -> None:
        run(self, *args)
        places.append(self.places)

    monkeypatch.setattr(Fitting, "run", noting)
    want, got = fit(make()), make()
    for size in (7, 30):
        got = make()
        data = hl.DataModule.from_arrays(CUBES, val=None, batch_size=size)
        hl.train(got, data, quiet(accelerator="gpu", max_epochs=0))
        for (_, a), (_, b) in zip(want.named_modules(), got.named_modules(), strict=True):
            for key, value in getattr(a, "statistics", {}).items():
                close(b.statistics[key], value)
    assert places == [["the CPU"], ["the GPU"], ["the GPU"]]


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


def test_each_pass_runs_where_it_gains(gpu: _core.Device, capsys: Any) -> None:
    """The range of pixels on the CPU, which has them; the mean of a network's values on the GPU."""
    model = sequential(
        scale=stats.MinMaxNormalizer(),
        up=nn.Linear(12, 512),
        relu=nn.ReLU(),
        down=nn.Linear(512, 8),
        centre=stats.DeepSVDDCenterTracker(8),
    )
    data = hl.DataModule.from_arrays(CUBES, val=None, batch_size=8)
    hl.train(model, data, quiet(accelerator="gpu", max_epochs=0, enable_progress_bar="auto"))
    said = " ".join(capsys.readouterr().err.split())
    assert "centre by 2 passes over 30 rows on the CPU (sending the rows to the GPU would" in said
    assert "take longer) and the GPU, " in said
    got = model.centre.statistics["center"]
    np.testing.assert_allclose(got, fit(model.reset()).centre.statistics["center"], rtol=1e-4)


def test_scores_behind_other_nodes(gpu: _core.Device) -> None:
    made = {}
    for accelerator in ("cpu", "gpu"):
        model = sequential(rx=stats.RXGlobal(), logit=stats.ScoreToLogit())
        data = hl.DataModule.from_arrays(CUBES, val=None, batch_size=8)
        hl.train(model, data, quiet(accelerator=accelerator, max_epochs=0))
        made[accelerator] = model.logit.statistics["bias"]
    np.testing.assert_allclose(made["gpu"], made["cpu"], rtol=1e-4)  # scores are float32
