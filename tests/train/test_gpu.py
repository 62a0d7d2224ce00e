"""Training on a GPU, real or emulated, held against the CPU's, step by step.

With HOTLOOP_TEST_GPU set (make cuda-check over the emulated driver, make gpu-check on a GPU);
elsewhere each test skips and says so. What asks the emulated driver what it saw skips on a real
one.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.tools.demo import demo_parts
from hotloop.tools.profiling import measure_peaks
from hotloop.training.scoring.names import MEASURED
from needs import NO_GPU, emulated
from train import metric_cases
from train.recipes import classes, mlp, quiet, same_bits, weights

pytestmark = pytest.mark.skipif(not os.environ.get("HOTLOOP_TEST_GPU"), reason=NO_GPU)

X, Y = classes(n=85)
# 85 rows in batches of 16: five full ones and one of 5 rows; with k = 4 and 2 windows share plans.
BATCH, EPOCHS = 16, 2
# Where bits are compared, kernels must not be chosen by a clock.
SGD = {
    "optimizer": "sgd",
    "momentum": 0.9,
    "lr": 0.05,
    "precision": "32-true",
    "deterministic": True,
}


def net() -> nn.Module:
    return mlp(norm=True, dropout=0.3)


class Outcome:
    """A training's weights and its log of steps."""

    def __init__(self, model: nn.Module, data: Any, config: hl.TrainingConfig) -> None:
        self.steps: list[tuple[int, float, float, float, bool]] = []
        self.result = hl.train(model, data, config.replace(callbacks=(self,)))
        self.weights = weights(model)

    def on_train_end(self, run: Any) -> None:
        self.steps = run.runtime.session.control_log(0)

    def same_bits(self, other: "Outcome") -> bool:
        return (
            self.steps == other.steps
            and self.result.history["loss"] == other.result.history["loss"]
            and same_bits(self.weights, other.weights)
        )


def train(accelerator: str, *, model: Any = net, workers: int = 0, **fields: Any) -> Outcome:
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=BATCH, num_workers=workers)
    config = quiet(**({"max_epochs": EPOCHS, "accelerator": accelerator} | SGD | fields))
    return Outcome(model(), data, config)


def check_close(gpu: Outcome, cpu: Outcome) -> None:
    """SGD in float32: rounding of a batch's sums, over all steps."""
    allowed = max(len(cpu.steps), 1) * BATCH * 2.0**-23
    assert gpu.result.steps == cpu.result.steps
    assert gpu.result.stop_reason == cpu.result.stop_reason
    assert [s[0] for s in gpu.steps] == [s[0] for s in cpu.steps]
    for column in (1, 2, 3):
        np.testing.assert_allclose(
            [s[column] for s in gpu.steps],
            [s[column] for s in cpu.steps],
            rtol=allowed,
            atol=allowed,
        )
    np.testing.assert_allclose(
        gpu.result.history["loss"], cpu.result.history["loss"], rtol=allowed, atol=allowed
    )
    for name, values in cpu.weights.items():
        np.testing.assert_allclose(gpu.weights[name], values, rtol=0, atol=allowed, err_msg=name)


# ---------------------------------------------------------------------------- as on the CPU


@pytest.mark.parametrize("k", [1, 2, 4])
def test_steps_are_the_cpus(gpu: _core.Device, k: int) -> None:
    fields = {"accumulate_grad_batches": k, "weight_decay": 0.01}
    check_close(train("gpu", **fields), train("cpu", **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"ema": 0.9},
        {"gradient_clip_val": 0.05},
        {"scheduler": "cosine", "warmup": 2},
        {"class_weight": "balanced", "label_smoothing": 0.1},
        {"max_steps": 7},
        {"limit_batches": 2},
        {"overfit_batches": 2},
        {"loss": lambda output, target: nn.functional.cross_entropy(output, target) * 2.0},
    ],
    ids=",".join,
)
def test_options(gpu: _core.Device, fields: dict[str, Any]) -> None:
    check_close(train("gpu", **fields), train("cpu", **fields))


def test_images_are_the_cpus(gpu: _core.Device) -> None:
    """Convolutions that are dense, strided, in groups of some and of one channel, and products."""

    def images() -> nn.Module:
        convs = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, padding=1, groups=8)
        more = nn.Conv2d(8, 32, 1), nn.Conv2d(32, 32, 3, 2, groups=2)
        layers = [layer for conv in (*convs, *more) for layer in (conv, nn.ReLU())]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3))

    x = np.random.default_rng(0).standard_normal((40, 3, 12, 12)).astype("float32")
    data = hl.DataModule.from_arrays(x, np.arange(40) % 3, val=None, batch_size=BATCH)
    config = quiet(max_epochs=EPOCHS, **SGD)
    on_gpu, cpu = (Outcome(images(), data, config.replace(accelerator=a)) for a in ("gpu", "cpu"))
    check_close(on_gpu, cpu)


def test_validation_and_best_weights(gpu: _core.Device) -> None:
    """Early stopping stops in the same epoch, with the same best weights."""
    done = []
    for accelerator in ("cpu", "gpu"):
        data = hl.DataModule.from_arrays(X, Y, val=0.3, batch_size=BATCH)
        config = quiet(
            max_epochs=6,
            accelerator=accelerator,
            metrics=("accuracy", lambda y, p: float((p.argmax(-1) == y).mean())),
            early_stopping=hl.EarlyStopping(1, min_delta=0.02),
            restore_best=True,
            **SGD,
        )
        done.append(Outcome(net(), data, config))
    cpu, on_gpu = done
    check_close(on_gpu, cpu)
    assert on_gpu.result.best_epoch == cpu.result.best_epoch
    for name in cpu.result.history:
        if name not in MEASURED:
            np.testing.assert_allclose(
                on_gpu.result.history[name], cpu.result.history[name], rtol=1e-4, err_msg=name
            )


def test_dropout_masks_are_the_cpus() -> None:
    """The gradient of the mean of dropout(1) w is the mask: exact in float32, so bits compare."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(np.zeros(8, np.float32))
            self.drop = nn.Dropout(0.5)

        def training_step(self, batch: Any) -> Any:
            return (self.drop(batch["x"]) * self.weight).sum() / 8.0

    ones = np.ones((32, 8), np.float32)
    values = []
    for accelerator in ("cpu", "gpu"):
        model = Masked()
        data = hl.DataModule.from_arrays(ones, val=None, batch_size=8)
        fields = {"optimizer": "sgd", "lr": 1.0, "precision": "32-true", "max_epochs": 2}
        hl.train(model, data, quiet(accelerator=accelerator, **fields))
        values.append(weights(model))
    assert same_bits(*values)
    assert len(set(values[0]["weight"])) > 1


def test_the_demo(gpu: _core.Device) -> None:
    """Digits, as `hotloop demo` trains them; Adam's fp32 trajectories part slowly."""
    values = []
    for accelerator in ("cpu", "gpu"):
        model, data, config = demo_parts()
        config = config.replace(
            accelerator=accelerator, precision="32-true", max_epochs=3, logger=None
        )
        result = hl.train(model, data, config, enable_progress_bar=False)
        values.append(result.history)
    cpu, on_gpu = values
    np.testing.assert_allclose(on_gpu["loss"], cpu["loss"], rtol=1e-3)
    np.testing.assert_allclose(on_gpu["val_accuracy"], cpu["val_accuracy"], atol=0.02)
    assert on_gpu["val_accuracy"][-1] > 0.9


def test_a_loss_that_is_not_finite(gpu: _core.Device) -> None:
    """The run ends with the step that had it, though the host polls it later."""
    x = X.copy()
    x[40] = np.inf
    for on_nan in ("stop", "skip"):
        done = []
        for accelerator in ("cpu", "gpu"):
            data = hl.DataModule.from_arrays(
                x, Y, val=None, batch_size=BATCH, shuffle=False, allow_nonfinite=True
            )
            config = quiet(max_epochs=2, accelerator=accelerator, on_nan=on_nan, **SGD)
            done.append(Outcome(mlp(), data, config))
        cpu, on_gpu = done
        assert on_gpu.result.stop_reason == cpu.result.stop_reason
        assert on_gpu.result.steps == cpu.result.steps
        assert on_gpu.result.skipped_steps == cpu.result.skipped_steps > 0
        for name, value in cpu.weights.items():
            np.testing.assert_allclose(on_gpu.weights[name], value, atol=1e-5)


def test_max_steps_counts_what_was_applied(gpu: _core.Device) -> None:
    x = X.copy()
    x[20] = np.inf
    data = hl.DataModule.from_arrays(
        x, Y, val=None, batch_size=BATCH, shuffle=False, allow_nonfinite=True
    )
    config = quiet(max_epochs=9, max_steps=8, accelerator="gpu", on_nan="skip", **SGD)
    result = hl.train(mlp(), data, config)
    assert (result.steps, result.skipped_steps, result.stop_reason) == (8, 2, "max_steps")


# ---------------------------------------------------------------------------- the same bits


@pytest.mark.parametrize("k", [1, 2, 4])
def test_any_way_of_running_gives_the_same_bits(gpu: _core.Device, k: int) -> None:
    """Twice; launched one by one; fed, by the loop itself and by loader threads."""
    fields = {"accumulate_grad_batches": k}
    first = train("gpu", **fields)
    assert train("gpu", **fields).same_bits(first)
    assert train("gpu", cuda_graph=False, **fields).same_bits(first)
    for workers in (0, 1, 3):
        assert train("gpu", device_cache=False, workers=workers, **fields).same_bits(first)
    assert train("gpu", device_cache=False, cuda_graph=False, **fields).same_bits(first)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float64", "bool"])
def test_fed_arrays_of_any_type(gpu: _core.Device, dtype: str) -> None:
    """They travel in the narrower of their own type and the model's."""
    x = (np.abs(X) * 9).astype(dtype)
    done = []
    for fields in ({"accelerator": "cpu"}, {}, {"device_cache": False}):
        data = hl.DataModule.from_arrays(x, Y, val=None, batch_size=BATCH, standardize=True)
        done.append(Outcome(mlp(), data, quiet(**({"accelerator": "gpu"} | SGD | fields))))
    cpu, resident, fed = done
    assert fed.same_bits(resident)
    check_close(resident, cpu)


def test_structures_of_inputs_and_embeddings(gpu: _core.Device) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 4)
            self.head = nn.Linear(10, 3)

        def forward(self, x: Any) -> Any:
            return self.head(hl.cat([self.table(x["id"]), x["value"]], 1))

    ids = np.arange(85, dtype=np.int32) % 7
    done = []
    for fields in ({"accelerator": "cpu"}, {}, {"device_cache": False}):
        data = hl.DataModule.from_arrays(
            {"id": ids, "value": X}, Y, val=None, batch_size=BATCH, sample_weight=np.abs(X[:, 0])
        )
        config = quiet(**({"accelerator": "gpu"} | SGD | fields))
        done.append(Outcome(Net(), data, config))
    cpu, resident, fed = done
    assert fed.same_bits(resident)
    check_close(resident, cpu)


# ---------------------------------------------------------------------------- around training


def test_stepper_is_train(gpu: _core.Device) -> None:
    trained = train("gpu")
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=BATCH)
    model = net()
    config = quiet(max_epochs=EPOCHS, accelerator="gpu", **SGD)
    step = hl.stepper(model, config, data)
    losses = [
        step.step(batch)["loss"] for epoch in range(EPOCHS) for batch in data.train_batches(epoch)
    ]
    assert losses == [s[1] for s in trained.steps]
    state = step.state_dict()
    step.load_state_dict(state)
    assert same_bits(weights(step.sync()), trained.weights)
    assert step.evaluate("train")["loss"] == pytest.approx(
        hl.evaluate(model, data, "train", config=config.replace(accelerator="cpu"))["loss"],
        rel=1e-5,
    )
    with pytest.raises(hl.DataError, match="x must have shape"):
        step.step((X[:16, :3], Y[:16]))
    del step


def test_evaluate_predict_save_and_load(gpu: _core.Device, tmp_path: Path) -> None:
    data = hl.DataModule.from_arrays(X, Y, val=0.3, batch_size=BATCH)
    config = quiet(max_epochs=2, accelerator="gpu", metrics=("accuracy",), **SGD)
    result = hl.train(net(), data, config)
    on_gpu = hl.evaluate(result, data, "val")
    on_cpu = hl.evaluate(result.model, data, "val", config=config.replace(accelerator="cpu"))
    assert on_gpu["loss"] == pytest.approx(on_cpu["loss"], rel=1e-5)
    assert on_gpu["accuracy"] == on_cpu["accuracy"]
    here = hl.predict(result.model, X, 20)
    there = hl.predict(result.model.cuda(), X, 20)
    np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(there, hl.predict(result.model, X, 20))
    result.save(tmp_path / "net.safetensors")
    loaded = hl.load(tmp_path / "net.safetensors")
    np.testing.assert_array_equal(hl.predict(loaded, X, 20), here)
    placed = hl.predict(loaded.cuda(), X, 20)
    assert loaded.device.memory() is not None
    np.testing.assert_allclose(placed, here, rtol=1e-4, atol=1e-5)
    assert hl.evaluate(loaded, data, "val", config=config)["accuracy"] == on_cpu["accuracy"]
    np.testing.assert_array_equal(hl.predict(loaded.to("cpu"), X, 20), here)
    np.testing.assert_array_equal(hl.predict(result.model.cpu(), X, 20), here)


@pytest.mark.parametrize("name", ["one logit", "five, weighted", "columns"])
def test_metrics_are_the_cpus(gpu: _core.Device, name: str) -> None:
    case = metric_cases.draw()[name]
    outputs = nn.Identity(), (case.outputs, case.y, *([] if case.weight is None else [case.weight]))
    named = {"metrics": list(metric_cases.names_of(case))}
    made = [hl.evaluate(*outputs, accelerator=device, **named) for device in ("gpu", "cpu")]
    for key, value in made[1].items():
        np.testing.assert_allclose(made[0][key], value, rtol=1e-6, err_msg=key)


@pytest.mark.parametrize("device", ["cuda:7", 7])
def test_a_gpu_that_is_not_there(gpu: _core.Device, tmp_path: Path, device: str | int) -> None:
    result = hl.train(net(), (X, Y), quiet(max_epochs=1, accelerator="cpu", **SGD))
    result.save(tmp_path / "net.safetensors")
    want = hl.predict(result, X)
    with pytest.raises(hl.DeviceError, match="must be below 1, how many there are, got 7"):
        hl.predict(result.model.to(device), X)
    loaded = hl.load(tmp_path / "net.safetensors")
    with pytest.raises(hl.DeviceError, match="must be below 1, how many there are, got 7"):
        loaded.to(device)
    np.testing.assert_array_equal(hl.predict(loaded, X), want)  # where it did before


def test_goes_on_from_its_weights(gpu: _core.Device) -> None:
    model = net()
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=BATCH)
    first = hl.train(model, data, quiet(max_epochs=3, accelerator="gpu", **SGD))
    second = hl.train(model, data, quiet(max_epochs=1, accelerator="cpu", **SGD))
    third = hl.train(model, data, quiet(max_epochs=1, accelerator="gpu", **SGD))
    losses = [first.history["loss"][-1], second.history["loss"][0], third.history["loss"][0]]
    assert losses[0] < first.history["loss"][0]
    assert max(losses[1:]) < first.history["loss"][0]


def test_ids_out_of_range_are_named_by_row(gpu: _core.Device) -> None:
    ids = (np.arange(85) % 7).astype(np.int64)
    ids[33] = 9
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3))
    for device_cache in ("auto", False):
        data = hl.DataModule.from_arrays(ids, Y, val=None, batch_size=BATCH)
        config = quiet(accelerator="gpu", device_cache=device_cache, **SGD)
        with pytest.raises(hl.DataError, match="got 9 in row 33"):
            hl.train(model, data, config)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "auto"])
def test_mixed_precision(gpu: _core.Device, precision: str) -> None:
    """Operands are rounded: close to float32, and not its bits; "auto" is what the GPU has."""
    full = train("gpu")
    mixed = train("gpu", precision=precision)
    own = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}[gpu.reduced_dtype]
    assert mixed.result.config.precision == (own if precision == "auto" else precision)
    np.testing.assert_allclose(mixed.result.history["loss"], full.result.history["loss"], rtol=0.05)
    assert not same_bits(mixed.weights, full.weights)
    assert train("gpu", precision=precision).same_bits(mixed)
    assert train("gpu", precision=precision, cuda_graph=False).same_bits(mixed)
    if mixed.result.config.precision == "16-mixed":
        assert mixed.result.history["loss_scale"] == [65536.0] * EPOCHS


def test_the_header(gpu: _core.Device, capsys: pytest.CaptureFixture[str]) -> None:
    reduced = "bf16" if gpu.reduced_dtype == "bfloat16" else "fp16"
    for fields, words in (
        ({}, ("as CUDA graphs", "in the GPU's memory", "precision fp32")),
        (
            {"cuda_graph": False, "device_cache": False},
            ("steps launched one by one", "fed from the CPU"),
        ),
        ({"precision": "auto"}, (f"{reduced} products; fp32 for the rest",)),
    ):
        train("gpu", max_epochs=1, enable_progress_bar="auto", **fields)
        header = " ".join(capsys.readouterr().err.split())
        assert gpu.name in header
        for word in words:
            assert word in header


# ---------------------------------------------------------------------------- memory and ends


def peak_of(width: int, **fields: Any) -> int:
    data = hl.DataModule.from_arrays(X, Y, val=0.2, batch_size=BATCH)
    model = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))
    result = hl.train(model, data, quiet(max_epochs=1, accelerator="gpu", **(SGD | fields)))
    assert result.peak_bytes == result.predicted_peak_bytes
    return result.peak_bytes


@pytest.mark.parametrize("device_cache", ["auto", False])
def test_five_models_stay_within_the_largest_ones_peak(
    gpu: _core.Device, device_cache: Any
) -> None:
    fields = {"device_cache": device_cache, "restore_best": True, "ema": 0.9}
    peaks = [peak_of(width, **fields) for width in (8, 200, 16, 100, 64)]
    gpu.memory_peak_reset()
    alone = peak_of(200, **fields)
    assert max(peaks) == alone
    memory = gpu.memory()
    assert memory is not None
    assert memory["current_bytes"] == 0


def test_memory_is_back_after_exceptions(gpu: _core.Device) -> None:
    """While the exception, and with it the run, is still held."""

    class Fail:
        def on_epoch_end(self, run: Any) -> None:
            raise KeyError("mine")

    config = quiet(accelerator="gpu", callbacks=(Fail(),), **SGD)
    with pytest.raises(KeyError) as held:
        hl.train(net(), (X, Y), config)
    memory = gpu.memory()
    assert memory is not None
    assert memory["current_bytes"] == 0
    assert held.value.args == ("mine",)


def test_out_of_memory(gpu: _core.Device) -> None:
    """More than any GPU has: predicted, asked and free are named; a smaller batch trains next."""
    rows = 2**22
    x, y = np.zeros((rows, 1), np.float32), np.zeros(rows, np.float32)
    model = nn.Sequential(nn.Linear(1, 2**14), nn.ReLU(), nn.Linear(2**14, 1))
    data = hl.DataModule.from_arrays(x, y, val=None, batch_size=rows)
    config = quiet(max_epochs=1, accelerator="gpu", on_oom="raise", **SGD)
    with pytest.raises(hl.OutOfMemoryError) as held:
        hl.train(model, data, config)
    text = str(held.value)
    words = ("out of memory", "predicted are", "a request for", "are free", "a smaller batch_size")
    for word in words:
        assert word in text
    memory = gpu.memory()
    assert memory is not None
    assert memory["current_bytes"] == 0
    data = hl.DataModule.from_arrays(x[:4], y[:4], val=None, batch_size=2)
    assert hl.train(model, data, config).steps == 2


@emulated
def test_micro_batches_where_memory_ends() -> None:
    """A GPU of 6 MB: the same steps in parts, an epoch's short last batch among them."""
    code = """
rng = np.random.default_rng(3)
x = rng.standard_normal((2 * 256 + 200, 6)).astype(np.float32)
y = rng.integers(0, 3, len(x))
def wide(*between):
    return nn.Sequential(nn.Linear(6, 4096), *between, nn.ReLU(), nn.Dropout(0.1),
                         nn.Linear(4096, 3))
def train(model, **fields):
    data = hl.DataModule.from_arrays(x, y, val=0.1, batch_size=256)
    config = quiet(max_epochs=2, precision="32-true", optimizer="sgd", lr=0.05, metrics=None,
                   **{"enable_progress_bar": "auto"} | fields)
    return hl.train(model, data, config)
model, again = wide(), wide()
result, want = train(model, accelerator="gpu"), train(again, accelerator="cpu")
assert result.steps == want.steps == 6, (result.steps, want.steps)
np.testing.assert_allclose(result.history["loss"], want.history["loss"], rtol=1e-5)
np.testing.assert_allclose(result.history["val_loss"], want.history["val_loss"], rtol=1e-5)
for name, value in weights(again).items():
    np.testing.assert_allclose(weights(model)[name], value, rtol=1e-4, atol=1e-6)
for model, fields in ((wide(), {"on_oom": "raise"}), (wide(nn.BatchNorm1d(4096)), {})):
    try:
        train(model, accelerator="gpu", enable_progress_bar=False, **fields)
    except hl.OutOfMemoryError as error:
        print("raised:", error)
"""
    out = " ".join(run_alone(code, f"memory={(64 + 6) << 20}").split())
    assert out.count("trying micro-batches of 128 rows") == 1
    assert "batch 256 in micro-batches of " in out
    assert out.count("raised:") == 2


@emulated
def test_out_of_memory_when_a_graph_is_made() -> None:
    """What the driver takes beside the plan."""
    code = """
try:
    run()
except hl.OutOfMemoryError as error:
    print(error)
print(run(cuda_graph=False).steps)
"""
    out = run_alone(code, "fail=cuGraphInstantiateWithFlags:2").splitlines()
    for word in ("making a graph", "predicted were", "are free", "a smaller batch_size than 16"):
        assert word in out[0]
    assert out[1] == "4"


def test_a_callback_stops_and_ctrl_c_interrupts(gpu: _core.Device) -> None:
    class Stop:
        def __init__(self, act: Any) -> None:
            self.act = act

        def on_epoch_end(self, run: Any) -> None:
            if run.epoch == 2:
                self.act(run)

    def stop(run: Any) -> None:
        run.stop()

    def interrupt(run: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    for act in (stop, interrupt):
        config = quiet(
            max_epochs=99, accelerator="gpu", on_interrupt="return", callbacks=(Stop(act),), **SGD
        )
        result = hl.train(net(), (X, Y), config)
        assert result.stop_reason == "interrupted"
        assert 2 <= result.epochs <= 3
        assert all(np.isfinite(value).all() for value in weights(result.model).values())


def test_ctrl_c_within_an_epoch(gpu: _core.Device) -> None:
    x, y = classes(n=6400)
    model = net()
    data = hl.DataModule.from_arrays(x, y, val=None, batch_size=BATCH)
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))

    class Start:
        def on_train_begin(self, run: Any) -> None:
            timer.start()  # planning is over

    callbacks = (Start(),)
    config = quiet(
        max_epochs=10**4, accelerator="gpu", on_interrupt="return", callbacks=callbacks, **SGD
    )
    result = hl.train(model, data, config)
    timer.join()
    assert result.stop_reason == "interrupted"
    assert result.steps > 0
    assert all(np.isfinite(value).all() for value in weights(model).values())
    memory = gpu.memory()
    assert memory is not None
    assert memory["current_bytes"] == 0


# ---------------------------------------------------------------------------- what the driver saw


@pytest.fixture
def driver() -> ctypes.CDLL:
    """The emulated driver of this process."""
    return ctypes.CDLL(os.environ["HOTLOOP_CUDA_PATH"])


@emulated
def test_the_host_never_waits_within_an_epoch(gpu: _core.Device, driver: ctypes.CDLL) -> None:
    """For the device as a whole: as often in 40 steps as in 10. Ring and mirrors have events, and a
    copy of pageable memory may wait."""
    driver.hl_fake_calls.restype = driver.hl_fake_pageable.restype = ctypes.c_int64
    waits = []

    class Count:
        before = 0

        def on_train_begin(self, run: Any) -> None:
            self.note()

        def on_epoch_end(self, run: Any) -> None:
            waits.append(self.note())

        def note(self) -> int:
            seen = driver.hl_fake_calls(b"cuStreamSynchronize") + driver.hl_fake_pageable()
            here, self.before = seen - self.before, seen
            return int(here)

    for fields in ({}, {"device_cache": False}, {"accumulate_grad_batches": 4}):
        waits.clear()
        for n in (160, 640):
            x, y = classes(n=n)
            data = hl.DataModule.from_arrays(x, y, val=None, batch_size=BATCH)
            config = quiet(
                max_epochs=3,
                accelerator="gpu",
                max_steps=999,
                callbacks=(Count(),),
                **SGD,
                **fields,
            )
            hl.train(mlp(), data, config)
        # One of an epoch's last waits may find that all is done.
        assert max(waits[4:6]) <= max(waits[1:3]) + 1, (fields, waits)
    driver.hl_fake_message.restype = ctypes.c_char_p
    assert driver.hl_fake_message() == b""


@emulated
@pytest.mark.parametrize("device_cache", [True, False])
@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("error", [2, 801])  # out of memory; not supported
def test_calls_that_fail(
    gpu: _core.Device, driver: ctypes.CDLL, device_cache: bool, sticky: bool, error: int
) -> None:
    """One call fails, or that one and all after it: an error, nothing is held, the next run works.

    Every call of a training is too many: some here, each with another remainder.
    """
    driver.hl_fake_fail.restype = ctypes.c_int64
    driver.hl_fake_failed_call.restype = ctypes.c_char_p
    fields = {"device_cache": device_cache, "max_epochs": 1}
    want = train("gpu", **fields)

    def fail(k: int) -> int:
        return int(driver.hl_fake_fail(ctypes.c_int64(k), sticky, error))

    fail(0)
    assert train("gpu", **fields).same_bits(want)
    n_calls = fail(0)
    assert n_calls > 200
    for k in range(1, n_calls, n_calls // 23):
        fail(k)
        try:
            assert train("gpu", **fields).same_bits(want)
        except hl.DeviceLostError:
            raise
        except (hl.DeviceError, hl.OutOfMemoryError):
            pass
        fail(0)
        memory = gpu.memory()
        assert memory is not None
        assert memory["current_bytes"] == 0, driver.hl_fake_failed_call()
    assert train("gpu", **fields).same_bits(want)


RUN = """
import os, numpy as np, hotloop as hl
from hotloop import nn
from train.recipes import classes, mlp, quiet, weights
X, Y = classes(n=64)
def run(accelerator="gpu", **fields):
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=16)
    fields = dict(max_epochs=1, precision="32-true") | fields
    return hl.train(mlp(), data, quiet(accelerator=accelerator, **fields))
"""


def run_alone(code: str, machine: str = "") -> str:
    """What a process of its own prints."""
    tests = Path(__file__).resolve().parents[1]
    env = os.environ | {"HL_FAKE": machine}
    env["PYTHONPATH"] = os.pathsep.join([str(tests), env.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", RUN + code],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


# A kernel that writes where nothing is, in the context that a process shares with hotloop.
LOSE = """
import ctypes
PTX = b'''
.version 6.3
.target sm_75
.address_size 64
.visible .entry lose()
{
    .reg .b64 %at;
    mov.u64 %at, 8;
    st.global.u64 [%at], %at;
    ret;
}
'''
driver = ctypes.CDLL(os.environ.get("HOTLOOP_CUDA_PATH", "libcuda.so.1"))
def call(name, *args):
    assert getattr(driver, name)(*args) == 0, name
def lose():
    if hasattr(driver, "hl_fake_fail"):
        driver.hl_fake_fail(ctypes.c_int64(5), False, 700)
        return
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxPushCurrent_v2", context)
    call("cuModuleLoadData", ctypes.byref(module), PTX)
    call("cuModuleGetFunction", ctypes.byref(function), module, b"lose")
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    driver.cuCtxPopCurrent_v2(ctypes.byref(context))
"""


def test_a_lost_device() -> None:
    """At once on every later call, with what is left; the CPU goes on."""
    code = """
class Lose:
    def on_epoch_end(self, run):
        lose()
model = mlp()
before = weights(model)
for i in range(3):
    try:
        config = quiet(max_epochs=4, accelerator="gpu", callbacks=(Lose(),), precision="32-true")
        hl.train(model, (X, Y), config)
    except hl.DeviceLostError as error:
        print(i, error)
assert all(np.array_equal(before[k], v) for k, v in weights(model).items())
try:
    hl.evaluate(model, (X, Y), config=quiet(accelerator="gpu"))
except hl.DeviceLostError as error:
    print("evaluate", error)
print(run("cpu").steps, run("auto").device)
"""
    out = run_alone(LOSE + code).splitlines()
    for i, line in enumerate(out[:4]):
        assert line.startswith(str(i) if i < 3 else "evaluate")
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in line
        assert "no checkpoint was written" in line
    assert out[4].startswith("4 ")
    assert "sm_" not in out[4]


def test_a_forked_child() -> None:
    code = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, Python 3.12's
print(run().steps, flush=True)
if os.fork() == 0:
    try:
        run()
    except hl.DeviceError as error:
        print("child:", error, flush=True)
    print("child:", run("cpu").steps, flush=True)
    result = run("auto")
    print("child:", result.steps, "GPU" in result.device, flush=True)
    os._exit(0)
os.wait()
print(run().steps)
"""
    out = run_alone(code).splitlines()
    assert out[0] == out[-1] == "4"
    assert "a forked child; start it by 'spawn', or use the CPU in it" in out[1]
    assert out[2:4] == ["child: 4", "child: 4 False"]


@emulated
def test_auto_takes_the_gpu_and_its_own_precision() -> None:
    code = """
result = run("auto", precision="auto", benchmark=False)
print(result.device, result.config.precision, result.config.device_cache, result.skipped_steps)
"""
    assert "Emulated GPU, 1.0 GiB, sm_90 bf16-mixed True 0" in run_alone(code)
    assert "Emulated GPU, 1.0 GiB, sm_75 16-mixed True 0" in run_alone(code, "arch=75")


@emulated
def test_a_turing_has_no_bf16_and_no_tf32() -> None:
    """The header does not call fast what is emulated, and what is not there at all is refused."""
    code = """
for accelerator in ("gpu", "auto"):
    run(accelerator, precision="bf16-mixed", enable_progress_bar="auto")
    try:
        run(accelerator, precision="tf32")
    except hl.ConfigError as error:
        print(error)
run(precision="16-mixed", enable_progress_bar="auto")
"""
    out = " ".join(run_alone(code, "arch=75").split())
    assert out.count("bf16 products, emulated; fp32 for the rest") == 2
    assert out.count("products from sm_80 on, got Emulated GPU, 1.0 GiB, sm_75; write") == 2
    assert "fp16 products; fp32 for the rest" in out


@emulated
def test_one_of_two_gpus() -> None:
    code = """
for devices in ("auto", 1, [1], [2]):
    try:
        print(run(devices=devices, enable_progress_bar="auto").config.devices)
    except hl.DeviceError as error:
        print(error)
"""
    out = run_alone(code, "devices=2")
    assert out.count("Emulated GPU, 1.0 GiB, sm_90 (1 of 2 GPUs)") == 3
    assert "the number of a GPU must be below 2, how many there are, got 2" in out


@emulated
def test_a_gpu_whose_float16_is_slow_gets_float32() -> None:
    """As a GTX 16xx, a Turing without units for it; nobody measures where bits must repeat."""
    code = """
from hotloop.training.plans import precision
measure = precision._Probe.measure
def measure_slowly(self, dtype):
    loss, norm, info = measure(self, dtype)
    assert "seconds" not in info or 0 < info["seconds"] < 60
    return loss, norm, info | {"seconds": slow if dtype == "float16" else 1.0}
precision._Probe.measure = measure_slowly
for slow in (1.05, 1.5):
    for fields in ({}, {"deterministic": True}, {"benchmark": False}):
        print(slow, run("gpu", precision="auto", **fields).config.precision)
"""
    out = run_alone(code, "arch=75")
    chosen = [line.split()[-1] for line in out.splitlines() if line[:2] == "1."]
    assert chosen == ["16-mixed"] * 3 + ["32-true", "16-mixed", "16-mixed"]
    assert "fp32 instead of fp16, for its step took 1.5 times as long" in out


@emulated
def test_data_that_does_not_fit_is_fed() -> None:
    """Decided by the plan: 24 MB of data on a GPU of 20 MB."""
    code = """
x = np.zeros((200_000, 30), np.float32)
y = np.arange(200_000) % 3
for device_cache in ("auto", True):
    try:
        data = hl.DataModule.from_arrays(x, y, val=0.1, batch_size=16)
        config = quiet(max_epochs=1, max_steps=2, accelerator="gpu", precision="32-true",
                       device_cache=device_cache, enable_progress_bar="auto", limit_batches=2)
        print(hl.train(mlp(30), data, config).steps)
    except hl.OutOfMemoryError as error:
        print(error)
"""
    out = " ".join(run_alone(code, f"memory={(64 + 20) << 20}").split())
    assert "fed from the CPU" in out
    assert "in the GPU's memory" not in out
    assert "a request for 24000000 bytes" in out


# ---------------------------------------------------------------------------- node times


@pytest.mark.parametrize("cuda_graph", [True, False])
@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_profiling_times_every_node(gpu: _core.Device, cuda_graph: bool, precision: str) -> None:
    data = hl.DataModule.from_arrays(X, Y, val=0.2, batch_size=BATCH)
    model = net()
    before = weights(model)
    fields = SGD | {"precision": precision, "accumulate_grad_batches": 2, "cuda_graph": cuda_graph}
    config = quiet(accelerator="gpu", **fields)
    peaks = {"float32": 1e12, "float16": 2e12, "bytes": 1e11}
    found = hl.profile(model, data, config, peaks=peaks)
    assert same_bits(before, weights(model))
    assert found.device == gpu.name
    assert all(node.kernel.startswith("cuda.") for node in found.nodes)
    assert {node.n_runs for node in found.nodes if node.segment == "micro"} == {2}
    products = {node.precision for node in found.nodes if node.op.startswith("matmul")}
    assert products == {"float16" if precision == "16-mixed" else "float32"}
    assert sum(node.share for node in found.nodes) == pytest.approx(1)
    assert found.step_seconds > 0
    assert all(node.roofline is not None for node in found.nodes if node.seconds)
    # Updates that are fused horizontally have one launch and one time.
    assert sum(node.n_nodes for node in found.nodes) >= len(found.nodes)


def test_updates_of_all_norms_are_one_launch(gpu: _core.Device) -> None:
    """What makes the new running statistics stands before the first update, not between two."""
    layers = (nn.Linear(X.shape[1], 24), nn.BatchNorm1d(24), nn.ReLU())
    layers += (nn.Linear(24, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))
    data = hl.DataModule.from_arrays(X, Y, val=None, batch_size=BATCH)
    config = quiet(accelerator="gpu", **SGD)
    nodes = hl.profile(nn.Sequential(*layers), data, config, peaks={}).nodes
    ops = [node.op for node in nodes if node.segment == "micro"]
    assert ops.count("batch_norm_grad") == 2
    assert sum(op in ("accumulate", "assign") for op in ops) == 1


def test_peaks_of_a_gpu_are_measured(gpu: _core.Device) -> None:
    peaks = measure_peaks(gpu)
    assert set(peaks) == {"float32", "bytes"}
    assert all(rate > 0 for rate in peaks.values())
