"""Products by cuBLASLt in trainings on a GPU, real or emulated: epilogues, TF32, autotuning.

With HOTLOOP_TEST_GPU set and a cuBLASLt that starts: the fake one of tests/cuda (make cuda-check),
or the GPU's; elsewhere each test skips and says so.
"""

import ctypes
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.interop.safetensors_file import read_safetensors, write_safetensors
from hotloop.training.plans import accelerator
from needs import NO_GPU, emulated
from train.recipes import quiet, same_bits, weights

if not os.environ.get("HOTLOOP_TEST_GPU"):
    pytest.skip(NO_GPU, allow_module_level=True)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 24)).astype(np.float32)
Y = (X @ RNG.normal(size=(24, 5))).argmax(1)


def tanh_gelu() -> nn.Module:
    return nn.GELU("tanh")


def net(width: int = 32, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    hidden = (nn.Linear(24, width), act(), nn.Linear(width, 16), act())
    return nn.Sequential(*hidden, nn.Linear(16, 5))


def config(**fields: object) -> hl.TrainingConfig:
    sgd = {"optimizer": "sgd", "lr": 0.05, "precision": "32-true", "max_epochs": 2}
    return quiet(**(sgd | {"accelerator": "gpu"} | fields))


def plan_of(model: nn.Module, precision: str = "32-true") -> str:
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=16)
    return hl.plan(model, data, config(precision=precision)).text


def train(
    width: int = 32, act: Callable[[], nn.Module] = nn.ReLU, **fields: object
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses by epoch, and weights."""
    model = net(width, act)
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=16)
    result = hl.train(model, data, config(**fields))
    return result.history["loss"], weights(model)


@pytest.fixture(autouse=True)
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _core.Device:
    """A GPU with cuBLASLt, and a disk cache of the test's own."""
    monkeypatch.setenv("HOTLOOP_CACHE_PATH", str(tmp_path / "cache"))
    device, _ = accelerator.choose_device("gpu", "32-true")
    if "cublaslt" not in plan_of(net()):
        pytest.skip("no cuBLASLt starts here (HOTLOOP_CUBLASLT_PATH may name one)")
    return device


def needs(gpu: _core.Device, precision: str) -> None:
    """Skips on a Turing what it has not."""
    if precision in ("tf32", "bf16-mixed") and gpu.reduced_dtype != "bfloat16":
        pytest.skip(f"{gpu.name} has no {precision} (a GPU of architecture 80 or newer has)")


@pytest.mark.parametrize("act", [nn.ReLU, tanh_gelu])
@pytest.mark.parametrize("precision", ["32-true", "tf32", "bf16-mixed", "16-mixed"])
def test_losses_follow_float32(
    gpu: _core.Device, precision: str, act: Callable[[], nn.Module]
) -> None:
    needs(gpu, precision)
    exact, _ = train(act=act, accelerator="cpu")
    loss, got = train(act=act, precision=precision)
    np.testing.assert_allclose(loss, exact, rtol=1e-5 if precision == "32-true" else 0.03)
    fields: dict[str, object]
    for fields in ({"cuda_graph": False}, {}):
        loss_again, again = train(act=act, precision=precision, **fields)
        assert loss_again == loss
        assert same_bits(again, got)


def test_tf32_rounds_operands(gpu: _core.Device) -> None:
    needs(gpu, "tf32")
    _, exact = train(precision="32-true")
    _, rounded = train(precision="tf32")
    assert not same_bits(exact, rounded)


def count_fused(text: str) -> int:
    """Products that carry programs, which stand behind their operands in a plan's text."""
    return len(re.findall(r"cuda\.matmul.* \{(?!algorithm)", text))


@emulated
@pytest.mark.parametrize("act", [nn.ReLU, tanh_gelu])
@pytest.mark.parametrize(
    ("precision", "n"), [("32-true", 7), ("tf32", 7), ("bf16-mixed", 6), ("16-mixed", 6)]
)
def test_layers_are_products_alone(
    gpu: _core.Device, precision: str, n: int, act: Callable[[], nn.Module]
) -> None:
    """Bias, activation, its gradient, and bias gradients stand in the products.

    Two layers, forward and twice back; the last one's bias gradient too, where its matrix is not
    rounded in between.
    """
    needs(gpu, precision)
    text = plan_of(net(act=act), precision)
    assert count_fused(text) == n
    assert not activations(text)


@emulated
@pytest.mark.parametrize(("n_layers", "n_library"), [(1, 2), (2, 3)])
def test_small_weight_gradients_are_one_launch(n_layers: int, n_library: int) -> None:
    """Of one layer, the only weight gradient is the library's; of two, both are one kernel of ours.

    The library has the others: forward, and back to the second layer's operand.
    """
    widths = (24, 32, 5)[-1 - n_layers :]
    layers = [nn.Linear(n, m) for n, m in itertools.pairwise(widths)]
    features = np.resize(X, (len(X), widths[0]))
    data = hl.DataModule.from_arrays(features, Y, val=None, batch_size=16)
    text = hl.plan(nn.Sequential(*layers), data, config()).text
    assert text.count("cuda.matmul.cublaslt") == n_library
    assert text.count("cuda.matmul (with the one before)") == n_layers - 1


@emulated
def test_long_weight_gradients_stay_the_librarys() -> None:
    """Few tiles with long sums: a launch that is saved is less than what the library saves."""
    layers = [nn.Linear(256, 256), nn.Linear(256, 256)]
    x = np.zeros((512, 256), np.float32)
    data = hl.DataModule.from_arrays(x, x, val=None, batch_size=512)
    text = hl.plan(nn.Sequential(*layers), data, config(loss="mse")).text
    assert text.count("cuda.matmul.cublaslt") == 5
    assert "cuda.matmul (with the one before)" not in text


def activations(text: str) -> list[str]:
    """A plan's nodes that are of the activations alone: modules 1 and 3 of the net."""
    return [line for line in text.splitlines() if re.search(r"pointwise.*; [13]$", line)]


@emulated
def test_gelu_costs_the_launches_of_relu() -> None:
    counts = [
        re.search(r"(\d+) instructions", plan_of(net(act=act))) for act in (nn.ReLU, tanh_gelu)
    ]
    assert all(counts)
    assert counts[0][1] == counts[1][1]  # type: ignore[index]


@emulated
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_exact_gelu_stays_exact(precision: str) -> None:
    """No product has it as its epilogue: only the last layer's sums stand beside one."""
    text = plan_of(net(act=nn.GELU), precision)
    assert count_fused(text) == (precision == "32-true")
    assert len(activations(text)) == 4


@emulated
def test_gelu_stays_where_something_is_in_between() -> None:
    """Dropout scales the gradient before gelu's does: forward and back are fused with that."""
    hidden = (nn.Linear(24, 32), tanh_gelu(), nn.Dropout(0.2))
    text = plan_of(nn.Sequential(*hidden, nn.Linear(32, 5)))
    assert count_fused(text) == 1  # the last layer's sums
    assert "pointwise" in text


@emulated
@pytest.mark.parametrize("width", [32, 36])
def test_gelu_needs_rows_of_eight(width: int) -> None:
    """Of another width the first layer keeps its nodes; both train alike."""
    assert len(activations(plan_of(net(width, tanh_gelu)))) == (0 if width % 8 == 0 else 2)
    exact, weights_exact = train(width, tanh_gelu, accelerator="cpu")
    loss, got = train(width, tanh_gelu)
    np.testing.assert_allclose(loss, exact, rtol=1e-5)
    for name, value in weights_exact.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gelu_operand_is_in_the_peak(precision: str) -> None:
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=16)
    result = hl.train(net(act=tanh_gelu), data, config(precision=precision))
    assert result.peak_bytes == result.predicted_peak_bytes


def test_gelu_ends_a_product_without_a_gradient(gpu: _core.Device) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=s).astype(np.float32) for s in ((6, 24), (24, 20), (20,))]
    graph = _core.Graph()
    (y,) = graph.add("matmul", [graph.input(n, "float32", a.shape) for n, a in zip("xwb", arrays)])
    (y,) = graph.add("gelu", [y])
    graph.output(y)
    plan = _core.Plan(_core.Session(gpu), graph)
    assert count_fused(str(plan)) == 1
    assert "pointwise" not in str(plan)
    for i, array in enumerate(arrays):
        plan.input(i, array)
    plan.run(1, 1e9)
    x = arrays[0].astype(np.float64) @ arrays[1] + arrays[2]
    want = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(plan.output(0), want, rtol=1e-5, atol=1e-5)


def test_what_was_measured_is_kept(gpu: _core.Device, tmp_path: Path) -> None:
    before = gpu.autotune_cache()
    train(width=56, benchmark=False)
    assert gpu.autotune_cache() == before
    train(width=56)
    kept = gpu.autotune_cache()
    lines = [line for line in kept.splitlines() if "56x16x24" in line]
    assert len(lines) == len(set(lines)) == 1
    assert all(" = " in line and "cuBLASLt" in line and "driver" in line for line in lines)
    assert list((tmp_path / "cache").iterdir())
    gpu.autotune_read(kept)
    gpu.autotune_read("nothing of this kind\n")
    assert gpu.autotune_cache() == kept
    hl.empty_cache()
    train(width=56)  # on a device that knows it from the disk alone
    assert lines[0] in accelerator.choose_device("gpu", "32-true")[0].autotune_cache().splitlines()


def test_what_was_measured_goes_with_the_model(
    gpu: _core.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.safetensors"
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=16)
    hl.train(model := net(width=88), data, config(max_epochs=1))
    hl.save(model, path)
    (kept,) = [line for line in gpu.autotune_cache().splitlines() if "88x16x24" in line]
    monkeypatch.setenv("HOTLOOP_CACHE_PATH", "")
    monkeypatch.setattr(accelerator, "_autotune_cache", {})
    hl.empty_cache()
    assert accelerator.open_gpu().autotune_cache() == ""  # neither a device nor the disk knows it
    other = re.sub(r"\S+ us", lambda time: "9" * (len(time[0]) - 5) + ".9 us", kept)
    assert other != kept
    tensors, metadata = read_safetensors(str(path))
    del metadata["crc32"]
    changed = {name: text.replace(kept, other) for name, text in metadata.items()}
    assert changed != metadata
    write_safetensors(path, tensors, changed)
    hl.load(path)
    hl.train(net(width=88), data, config(max_epochs=1))
    lines = accelerator.choose_device("gpu", "32-true")[0].autotune_cache().splitlines()
    assert other in lines  # taken as it was, not measured again
    assert kept not in lines


def test_the_check_of_a_precision_measures_only_its_own_kernels(gpu: _core.Device) -> None:
    known = set(gpu.autotune_cache().splitlines())
    train(width=40, precision="auto")
    made = set(gpu.autotune_cache().splitlines()) - known
    reduced = {"bfloat16": "bf16", "float16": "f16"}[gpu.reduced_dtype]
    assert made
    if reduced == "bf16":  # what is float16's is timed against float32's
        assert all(f"; {reduced} " in line for line in made)


def test_deterministic_does_not_measure(gpu: _core.Device) -> None:
    before = gpu.autotune_cache()
    train(width=72, deterministic=True)
    assert gpu.autotune_cache() == before


class Look:
    """A callback that reads the first plan."""

    def __init__(self) -> None:
        self.text = ""

    def on_epoch_end(self, run: Any) -> None:
        self.text = str(run.train_plans[0][0])


@pytest.mark.parametrize("benchmark", [True, False])
def test_a_plan_names_its_algorithms(benchmark: bool) -> None:
    look = Look()
    hl.empty_cache()  # and the device with it, which knows what it measured before
    train(benchmark=benchmark, deterministic=False, callbacks=(look,))
    assert re.search(r"cublaslt: .*\{algorithm \d of \d", look.text)
    assert bool(re.search(r"of \d, [\d.]+ us\}", look.text)) == benchmark


@pytest.mark.parametrize("benchmark", [True, False])
def test_choosing_is_shown(benchmark: bool, capsys: pytest.CaptureFixture[str]) -> None:
    train(enable_progress_bar="auto", benchmark=benchmark, deterministic=False)
    assert ("choosing the kernels of 5 products" in capsys.readouterr().err) == benchmark


# ---- a library that says it could, and cannot


@pytest.fixture
def configure() -> Iterator[Callable[[str], None]]:
    """Sets the fake cuBLASLt up, for devices that know nothing of it yet."""
    library = ctypes.CDLL(os.environ.get("HOTLOOP_CUBLASLT_PATH") or None)

    def set_up(text: str) -> None:
        hl.empty_cache()
        library.hl_fake_lt_configure(text.encode())

    yield set_up
    set_up("")


@emulated
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_products_that_fail_are_made_apart(
    configure: Callable[[str], None], precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """relu with a mask, in plans of two batch sizes and of a validation split."""
    configure("failing=134")
    look = Look()
    model = net()
    data = hl.DataModule.from_arrays(X, Y, val=0.2, batch_size=20)
    result = hl.train(model, data, config(precision=precision, callbacks=(look,)))
    assert "gt(x, 0)" not in look.text
    assert "cublaslt" in look.text
    assert result.peak_bytes == result.predicted_peak_bytes
    shown = capsys.readouterr().err
    assert len(re.findall("warning: cuBLASLt 130000: .*: no algorithm runs; ", shown)) == 1
    exact = hl.train(net(), data, config(accelerator="cpu"))
    np.testing.assert_allclose(
        result.history["val_loss"],
        exact.history["val_loss"],
        rtol=1e-5 if precision == "32-true" else 0.03,
    )
    hl.train(again := net(), data, config(precision=precision, cuda_graph=False))
    assert same_bits(weights(again), weights(model))
    assert "warning" not in capsys.readouterr().err  # it was said


@emulated
def test_products_that_are_slow_are_made_apart(configure: Callable[[str], None]) -> None:
    configure("slow=134:4")
    looks = [Look(), Look(), Look()]
    for look, benchmark in zip(looks, (False, True, True)):
        data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=16)
        result = hl.train(net(), data, config(benchmark=benchmark, callbacks=(look,)))
        assert result.peak_bytes == result.predicted_peak_bytes
        hl.empty_cache()  # the third knows it from the disk
    assert "gt(x, 0)" in looks[0].text
    assert "gt(x, 0)" not in looks[1].text
    assert looks[2].text == looks[1].text or "us}" not in looks[2].text
    assert "gt(x, 0)" not in looks[2].text


@emulated
@pytest.mark.parametrize("precision", ["auto", "32-true"])
def test_nan_in_a_weight_ends_training(configure: Callable[[str], None], precision: str) -> None:
    """By default, and though the library's relu would make 0 of it."""
    configure("drops_nan=1")
    model = net()
    values = {name: np.array(value) for name, value in model.state_dict().items()}
    values["0.weight"][3, 5] = np.nan
    model.load_state_dict(values)
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=16)
    result = hl.train(model, data, quiet(accelerator="gpu", precision=precision, max_epochs=2))
    assert result.stop_reason == "nan"
    assert not np.isfinite(hl.predict(model.cuda(), X)).all()
