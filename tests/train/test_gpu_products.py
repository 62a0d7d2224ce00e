"""Products by cuBLASLt in trainings on a GPU, real or emulated: their ends, TF32, measuring.

With HOTLOOP_TEST_GPU set and a cuBLASLt that starts: the fake one of tests/cuda (make cuda-check),
or the GPU's; elsewhere each test skips and says so.
"""

import os
import re
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.training.accelerator import choose_device
from train.recipes import quiet, same_bits, weights

if not os.environ.get("HOTLOOP_TEST_GPU"):
    pytest.skip(
        "HOTLOOP_TEST_GPU is not set (make cuda-check and make gpu-check set it)",
        allow_module_level=True,
    )

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 24)).astype(np.float32)
Y = (X @ RNG.normal(size=(24, 5))).argmax(1)


def net(width: int = 32) -> nn.Module:
    hidden = (nn.Linear(24, width), nn.ReLU(), nn.Linear(width, 16), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(16, 5))


def config(**fields: object) -> hl.TrainingConfig:
    sgd = {"optimizer": "sgd", "lr": 0.05, "precision": "32-true", "max_epochs": 2}
    return quiet(**(sgd | {"accelerator": "gpu"} | fields))


def train(width: int = 32, **fields: object) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses by epoch, and weights."""
    model = net(width)
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=16)
    result = hl.train(model, data, config(**fields))
    return result.history["loss"], weights(model)


@pytest.fixture(autouse=True)
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _core.Device:
    """A GPU with cuBLASLt, and a disk cache of the test's own."""
    monkeypatch.setenv("HOTLOOP_CACHE_PATH", str(tmp_path / "cache"))
    device, _ = choose_device("gpu", "32-true")
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=16)
    if "cublaslt" not in str(hl.plan(net(), data, config())):
        pytest.skip("no cuBLASLt that starts")
    return device


def needs(gpu: _core.Device, precision: str) -> None:
    """Skips on a Turing what it has not."""
    if precision in ("tf32", "bf16-mixed") and gpu.low_dtype != "bfloat16":
        pytest.skip(f"{gpu.name} has no {precision}")


@pytest.mark.parametrize("precision", ["32-true", "tf32", "bf16-mixed", "16-mixed"])
def test_losses_follow_float32(gpu: _core.Device, precision: str) -> None:
    needs(gpu, precision)
    exact, _ = train(accelerator="cpu")
    loss, got = train(precision=precision)
    np.testing.assert_allclose(loss, exact, rtol=1e-5 if precision == "32-true" else 0.03)
    for fields in ({"cuda_graph": False}, {}):
        loss_again, again = train(precision=precision, **fields)
        assert loss_again == loss
        assert same_bits(again, got)


def test_tf32_rounds_operands(gpu: _core.Device) -> None:
    needs(gpu, "tf32")
    _, exact = train(precision="32-true")
    _, rounded = train(precision="tf32")
    assert not same_bits(exact, rounded)


@pytest.mark.parametrize(("precision", "n"), [("32-true", 7), ("bf16-mixed", 6)])
def test_layers_are_products_alone(gpu: _core.Device, precision: str, n: int) -> None:
    """Bias, relu, its gradient, and bias gradients stand in the products.

    Two layers, forward and twice back; the last one's bias gradient too, where its matrix is not
    rounded in between.
    """
    needs(gpu, precision)
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=16)
    text = str(hl.plan(net(), data, config(precision=precision)))
    assert text.count("cuda.matmul_fused.cublaslt") == n
    assert "relu" not in text


def test_what_was_measured_is_kept(gpu: _core.Device, tmp_path: Path) -> None:
    before = gpu.choices()
    train(width=56, benchmark=False)
    assert gpu.choices() == before
    train(width=56)
    kept = gpu.choices()
    lines = [line for line in kept.splitlines() if "56x16x24" in line]
    assert len(lines) == len(set(lines)) == 1
    assert all(" = " in line and "cuBLASLt" in line and "driver" in line for line in lines)
    assert list((tmp_path / "cache").iterdir())
    gpu.choices_read(kept)
    gpu.choices_read("nothing of this kind\n")
    assert gpu.choices() == kept


def test_the_check_of_a_precision_measures_only_its_own_kernels(gpu: _core.Device) -> None:
    known = set(gpu.choices().splitlines())
    train(width=40, precision="auto")
    made = set(gpu.choices().splitlines()) - known
    low = {"bfloat16": "bf16", "float16": "f16"}[gpu.low_dtype]
    assert made
    if low == "bf16":  # what is float16's is timed against float32's
        assert all(f"; {low} " in line for line in made)


def test_deterministic_does_not_measure(gpu: _core.Device) -> None:
    before = gpu.choices()
    train(width=72, deterministic=True)
    assert gpu.choices() == before


class Look:
    """A callback that reads the first plan."""

    def __init__(self) -> None:
        self.text = ""

    def on_epoch_end(self, run: Any) -> None:
        self.text = str(run.train_plans[0][0])


@pytest.mark.parametrize("benchmark", [True, False])
def test_a_plan_names_what_it_settled_on(benchmark: bool) -> None:
    look = Look()
    hl.empty_cache()  # and the device with it, which knows what it measured before
    train(benchmark=benchmark, deterministic=False, callbacks=(look,))
    assert re.search(r"cublaslt: .*\{algorithm \d of \d", look.text)
    assert bool(re.search(r"of \d, [\d.]+ us\}", look.text)) == benchmark


@pytest.mark.parametrize("benchmark", [True, False])
def test_choosing_is_shown(benchmark: bool, capsys: pytest.CaptureFixture[str]) -> None:
    train(enable_progress_bar="auto", benchmark=benchmark, deterministic=False)
    assert ("choosing the kernels of 8 products" in capsys.readouterr().err) == benchmark
