"""Convolutions by cuDNN in trainings on a GPU, real or emulated.

With HOTLOOP_TEST_GPU set and a cuDNN that starts: the fake one of tests/cuda (make cuda-check), or
the GPU's; elsewhere each test skips and says so.
"""

import ctypes
import os
import re
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.training.plans import accelerator
from needs import IS_EMULATED, NO_GPU, emulated
from train.recipes import quiet, same_bits, weights

if not os.environ.get("HOTLOOP_TEST_GPU"):
    pytest.skip(NO_GPU, allow_module_level=True)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 3, 9, 9)).astype(np.float32)
Y = (X.mean((2, 3)) @ RNG.normal(size=(3, 4))).argmax(1)
FUNCTIONAL = nn.functional


class Net(nn.Module):
    """What cuDNN meets: biases, strides, groups, a residual, one-pixel kernels, transposition."""

    def __init__(self, norm: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8) if norm else nn.Identity()
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False)
        self.depthwise = nn.Conv2d(8, 8, 5, padding=2, groups=8)
        self.wide = nn.Conv2d(8, 16, 1)
        self.up = nn.ConvTranspose2d(16, 4, 2, stride=2)
        self.head = nn.Linear(4, 4)

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        x = FUNCTIONAL.relu(self.norm(self.stem(x)))
        x = FUNCTIONAL.relu(self.grouped(x) + x)
        x = FUNCTIONAL.relu(self.wide(self.depthwise(x)))
        return self.head(self.up(x).mean((2, 3)))


def config(**fields: object) -> hl.TrainingConfig:
    sgd = {"optimizer": "sgd", "lr": 0.05, "precision": "32-true", "max_epochs": 2}
    return quiet(**(sgd | {"accelerator": "gpu"} | fields))


def data() -> hl.DataModule:
    return hl.DataModule.from_arrays(X, Y, val=None, batch_size=8)


def plan_of(precision: str = "32-true", **fields: object) -> str:
    return hl.plan(Net(), data(), config(precision=precision, **fields)).text


def train(**fields: object) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses by epoch, and weights."""
    hl.manual_seed(1)
    model = Net()
    result = hl.train(model, data(), config(**fields))
    return result.history["loss"], weights(model)


@pytest.fixture(autouse=True)
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _core.Device:
    """A GPU with cuDNN, and a disk cache of the test's own."""
    monkeypatch.setenv("HOTLOOP_CACHE_PATH", str(tmp_path / "cache"))
    device, _ = accelerator.choose_device("gpu", "32-true")
    if "cudnn" not in plan_of():
        pytest.skip("no cuDNN starts here (HOTLOOP_CUDNN_PATH may name one)")
    return device


def needs(gpu: _core.Device, precision: str) -> None:
    """Skips on a Turing what it has not."""
    if precision in ("tf32", "bf16-mixed") and gpu.reduced_dtype != "bfloat16":
        pytest.skip(f"{gpu.name} has no {precision} (a GPU of architecture 80 or newer has)")


@pytest.mark.parametrize("precision", ["32-true", "tf32", "bf16-mixed", "16-mixed"])
def test_losses_follow_float32(gpu: _core.Device, precision: str) -> None:
    """And captured steps give the bits of eager ones."""
    needs(gpu, precision)
    exact, _ = train(accelerator="cpu")
    loss, got = train(precision=precision, deterministic=True)
    np.testing.assert_allclose(loss, exact, rtol=1e-5 if precision == "32-true" else 0.03)
    fields: dict[str, object]
    for fields in ({"cuda_graph": False}, {}):
        loss_again, again = train(precision=precision, deterministic=True, **fields)
        assert loss_again == loss
        assert same_bits(again, got)


def test_weights_follow_the_cpus(gpu: _core.Device) -> None:
    """What the biases before a norm become is rounding alone: their gradient is 0."""
    _, exact = train(accelerator="cpu")
    _, got = train()
    for name in exact.keys() - {"stem.bias"}:
        np.testing.assert_allclose(got[name], exact[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_every_convolution_is_the_librarys(gpu: _core.Device) -> None:
    """Five forward, and back; of the input there is no gradient."""
    for precision in ("32-true", "16-mixed"):
        text = plan_of(precision)
        lines = [line for line in text.splitlines() if "conv" in line or "matmul" in line]
        shown = "\n".join(lines)
        both = text.count("cuda.conv.cudnn") + text.count("cuda.conv_transpose.cudnn")
        assert both == 9, shown
        assert text.count("cuda.conv_weight_grad.cudnn") == 5, shown
        assert "unfold" not in text


@emulated
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_neighbours_stand_in_the_convolutions(gpu: _core.Device, precision: str) -> None:
    text = plan_of(precision)
    assert len(re.findall(r"cuda\.conv\.cudnn.*\{relu\(add\(x, y\)\)\}", text)) == 1
    assert len(re.findall(r"cuda\.conv\.cudnn.*\{relu\(x\)\}", text)) == 1


def test_channels_are_moved_once(gpu: _core.Device) -> None:
    """Images come with their channels second; all else has them last."""
    text = plan_of()
    assert len(re.findall(r"cuda\.(permute|transpose)", text)) == 1


class Look:
    """A callback that reads the first plan."""

    def __init__(self) -> None:
        self.text = ""

    def on_epoch_end(self, run: Any) -> None:
        self.text = str(run.train_plans[0][0])


class Normed(nn.Module):
    """Batch norms of more elements than one launch holds, one with a residual and relu behind."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.first = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, width, 1, groups=2)
        self.second = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, 4)

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        x = FUNCTIONAL.relu(self.first(self.stem(x)))
        x = FUNCTIONAL.relu(self.second(self.conv(x)) + x)
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_statistics_come_with_the_convolutions(gpu: _core.Device, precision: str) -> None:
    """Sums of what cuDNN has in hand; weights and running statistics are those of the CPU. A GPU
    has them of results that it does not read at once: an H100 in 16 bits, but not of a stem's three
    channels; which of them in float32, no GPU has told."""
    needs(gpu, precision)
    width, side, n = (8, 18, 40) if IS_EMULATED else (256, 224, 16)
    images = RNG.normal(2, 1, (n, 3, side, side)).astype(np.float32)
    rows = hl.DataModule.from_arrays(images, np.arange(n) % 4, val=None, batch_size=8)
    fields = {"benchmark": False, "precision": precision, "deterministic": True}
    text = hl.plan(Normed(width), rows, config(**fields)).text
    if IS_EMULATED or (gpu.reduced_dtype == "bfloat16" and precision != "32-true"):
        sums = re.findall(r"cuda\.conv\.cudnn.*\{x, mean_rows\(x\), var_rows\(x\)\}", text)
        assert len(sums) == (2 if IS_EMULATED else 1)
        norms = re.findall(r"cuda\.(?:moments|batch_norm)\b", text)
        assert len(norms) == 2 - len(sums)
    got = []
    for accelerator_fields in ({"accelerator": "cpu", "precision": "32-true"}, {}):
        hl.manual_seed(1)
        model = Normed(width)
        hl.train(model, rows, config(**fields | accelerator_fields))
        got.append(model.state_dict())
    slack = 1e-5 if precision == "32-true" else 0.02
    for name in got[0].keys() - {"conv.bias"}:
        np.testing.assert_allclose(got[1][name], got[0][name], rtol=slack, atol=slack, err_msg=name)


class Twice(Normed):
    """A convolution's result that two norms and others read, a norm's that is an output."""

    def forward(self, x: hl.Tensor) -> tuple[hl.Tensor, hl.Tensor]:
        x = self.stem(x)
        y = self.first(x)
        x = x + y * self.second(x)
        return self.head(x.mean((2, 3))), y


@emulated
@pytest.mark.parametrize("benchmark", [True, False])
def test_statistics_that_others_read(gpu: _core.Device, benchmark: bool) -> None:
    """One norm has them from the convolution, or none where that was tuned and is slower."""
    images = RNG.normal(2, 1, (24, 3, 18, 18)).astype(np.float32)
    rows = hl.DataModule.from_arrays(images, np.arange(24) % 4, val=None, batch_size=8)
    got, look = [], Look()
    for accelerator_name in ("cpu", "gpu"):
        hl.manual_seed(1)
        model = Twice(8)

        def loss(outputs: tuple[hl.Tensor, hl.Tensor], targets: hl.Tensor) -> hl.Tensor:
            return FUNCTIONAL.cross_entropy(outputs[0], targets) + (outputs[1] ** 2).mean() / 8

        fields = config(
            accelerator=accelerator_name, benchmark=benchmark, loss=loss, callbacks=(look,)
        )
        hl.train(model, rows, fields)
        got.append(model.state_dict())
    assert look.text.count("mean_rows") == (not benchmark)
    assert len(re.findall(r"cuda\.batch_norm\b", look.text)) == 1 + benchmark
    for name in got[0]:
        np.testing.assert_allclose(got[1][name], got[0][name], rtol=1e-4, atol=1e-5, err_msg=name)


class Shared(nn.Module):
    """One convolution twice, whose gradients are added."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(3, 4)

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        return self.head(self.conv(FUNCTIONAL.relu(self.conv(x))).mean((2, 3)))


def test_gradients_of_a_shared_weight(gpu: _core.Device) -> None:
    """Their sum has the weight's order of dims, not the one in which cuDNN makes them."""
    got = []
    for accelerator_name in ("cpu", "gpu"):
        hl.manual_seed(1)
        model = Shared()
        hl.train(model, data(), config(accelerator=accelerator_name))
        got.append(weights(model))
    for name in got[0]:
        np.testing.assert_allclose(got[1][name], got[0][name], rtol=1e-4, atol=1e-5, err_msg=name)


def library() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ["HOTLOOP_CUDNN_PATH"])


@emulated
@pytest.mark.parametrize("machine", ["drops_nan=1", "no_steps=1", "runs_nothing=1"])
def test_what_the_library_refuses_is_computed(gpu: _core.Device, machine: str) -> None:
    """A plan is made again without it, in the same training, with the same result."""
    exact, _ = train(accelerator="cpu")
    hl.empty_cache()
    fake = library()
    fake.hl_fake_dnn_configure(machine.encode())
    try:
        loss, _ = train()
        text = plan_of()
    finally:
        hl.empty_cache()
        fake.hl_fake_dnn_configure(b"")
    np.testing.assert_allclose(loss, exact, rtol=1e-5)
    assert ("cudnn" in text) == (machine != "runs_nothing=1")
    assert "relu" not in "".join(line for line in text.splitlines() if "cudnn" in line)


@pytest.mark.parametrize("benchmark", [True, False])
def test_a_plan_names_its_algorithms(benchmark: bool) -> None:
    look = Look()
    hl.empty_cache()  # and the device with it, which knows what it measured before
    train(benchmark=benchmark, deterministic=False, callbacks=(look,))
    assert re.search(r"conv\.cudnn: .*\{algorithm \d of \d", look.text)
    assert bool(re.search(r"conv\.cudnn: .*of \d, [\d.]+ us\}", look.text)) == benchmark
