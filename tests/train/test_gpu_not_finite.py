"""What is not finite in a step on a GPU, real or emulated: see test_not_finite.py, test_gpu.py."""

import os
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from needs import NO_GPU
from train.recipes import mlp, quiet, same_bits, weights
from train.test_gpu import BATCH, SGD, X, Y, train

pytestmark = [
    pytest.mark.skipif(not os.environ.get("HOTLOOP_TEST_GPU"), reason=NO_GPU),
    pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning"),
]


class Planted(nn.Module):
    """From step 6 on some of its logarithms are NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.last = mlp(norm=True, dropout=0.3), nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        shift = hl.scalar("shift", lambda step: 9.0 if step < 5 else 0.0)
        return self.last(hl.log(self.net(x) + shift))


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(
    "fields", [{}, {"device_cache": False}, {"cuda_graph": False}], ids=",".join
)
def test_the_node_that_is_not_finite(gpu: _core.Device, k: int, fields: dict[str, Any]) -> None:
    """The CPU's, though the host polls it later, and other batches have been sent."""
    settings = SGD | {"accumulate_grad_batches": k, "max_epochs": 3}
    for on_nan in ("stop", "skip"):
        cpu, on_gpu = (
            train(accelerator, model=Planted, **settings, on_nan=on_nan, **more)
            for accelerator, more in (("cpu", {}), ("gpu", fields))
        )
        assert "log (forward) made" in cpu.result.not_finite
        assert on_gpu.result.not_finite == cpu.result.not_finite
        assert on_gpu.result.steps == cpu.result.steps == 5
        assert on_gpu.result.skipped_steps == cpu.result.skipped_steps
        assert repr(on_gpu.steps).count("nan") == repr(cpu.steps).count("nan")
        for name, value in cpu.weights.items():
            np.testing.assert_allclose(on_gpu.weights[name], value, atol=1e-4)
    with pytest.raises(hl.NotFiniteError, match=r"at step 6.* log \(forward\) made"):
        train("gpu", model=Planted, **settings, detect_anomaly=True, **fields)


class Steps:
    """What a callback hears of steps."""

    def __init__(self, every_n_steps: int) -> None:
        self.every_n_steps = every_n_steps
        self.heard: list[Any] = []

    def on_train_batch_end(self, run: Any) -> None:
        self.heard.append((run.steps_attempted, run.step, repr(round(run.logs["loss"], 4))))


def spoilt(
    accelerator: str, *, callbacks: Any = (), resume: Any = None, **fields: Any
) -> hl.TrainResult:
    """Batches are in order, and the third has a NaN."""
    x = X.copy()
    x[2 * BATCH + 3, 0] = np.nan
    data = hl.DataModule.from_arrays(
        x, Y, val=None, batch_size=BATCH, allow_nonfinite=True, shuffle=False
    )
    config = quiet(accelerator=accelerator, on_nan="skip", **(SGD | {"max_epochs": 3} | fields))
    model = mlp(norm=True, dropout=0.3)
    return hl.train(model, data, config, callbacks=callbacks, resume=resume)


@pytest.mark.parametrize("every", [None, 1, 2, 5])
@pytest.mark.parametrize("most", [None, 4, 7])
def test_steps_behind_a_skipped_one_run_once(
    gpu: _core.Device, most: int | None, every: int | None
) -> None:
    """They were queued when it stopped the run, and did nothing: neither callbacks nor the number
    of steps have them.
    """
    outcomes = []
    for accelerator in ("cpu", "gpu"):
        steps = Steps(every or 1)
        result = spoilt(accelerator, callbacks=(steps,) if every else (), max_steps=most)
        assert result.steps == (most or 15)
        outcomes.append((steps.heard, result.skipped_steps, result.not_finite))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("every", [2, 5])
def test_a_checkpoint_behind_a_skipped_step(gpu: _core.Device, every: int, tmp_path: Path) -> None:
    whole = spoilt("gpu")
    folder = {"enable_checkpointing": True, "save_top_k": 0, "save_every": f"{every} steps"}
    saved = spoilt("gpu", output_dir=tmp_path, **folder)
    assert same_bits(weights(saved.model), weights(whole.model))
    paths = sorted((tmp_path / "1/checkpoints").glob("step-*"))
    assert paths
    for i, path in enumerate(paths):
        again = spoilt("gpu", resume=path, output_dir=tmp_path / f"again-{i}")
        assert same_bits(weights(again.model), weights(whole.model))
        assert (again.steps, again.skipped_steps) == (whole.steps, whole.skipped_steps)


@pytest.mark.parametrize("k", [1, 3])
def test_detecting_changes_no_bits(gpu: _core.Device, k: int) -> None:
    fields = {"accumulate_grad_batches": k, "ema": 0.9}
    plain = train("gpu", **fields)
    assert train("gpu", detect_anomaly=True, **fields).same_bits(plain)
    assert train("gpu", detect_anomaly=True, device_cache=False, **fields).same_bits(plain)


def test_a_stepper_names_the_node(gpu: _core.Device) -> None:
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=BATCH)
    for fields in ({"on_nan": "raise"}, {"detect_anomaly": True}):
        step = hl.stepper(Planted(), quiet(accelerator="gpu", **SGD, **fields), data)
        batches = list(data.train_batches())
        for batch in batches[:5]:
            assert step.step(batch)["applied"]
        with pytest.raises(hl.NotFiniteError, match=r"at step 6.* log \(forward\) made"):
            step.step(batches[0])
        del step
