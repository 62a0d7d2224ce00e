"""``hl.plan(device="T4")``: plans for GPUs that are not in this machine, held against the emulated
driver with the same properties."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.tools.cli import main
from needs import NO_KERNELS
from train.recipes import classes, mlp, quiet

X, Y = classes()
GPUS = {"T4": "Tesla T4", "A100": "NVIDIA A100-SXM4-80GB", "H200": "NVIDIA H200"}

# Both devices in one process. The emulated one would be measured for a precision, which takes
# long; it is said to pass.
COMPARE = """
import sys
import numpy as np
import hotloop as hl
from hotloop import _core, models, nn
from hotloop.data.shorthand import as_datamodule
from hotloop.training.plans.precision import Choice
from hotloop.training.run import planner as planning

gpu, mixed, names = sys.argv[1], sys.argv[2], sys.argv[3:]
planning.choose = lambda config, runtime, *rest: Choice(mixed) if runtime.device.name.startswith(
    "Emulated") else choose(config, runtime, *rest)
from hotloop.training.plans.precision import choose

def mlp(num_classes):
    body = nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2)
    return nn.Sequential(*body, nn.Linear(64, num_classes))

def predict(device, name, rows):
    make = mlp if name == "mlp" else getattr(models, name)
    shape = (20,) if name == "mlp" else (3, 32, 32)
    x = np.zeros((2 * rows, *shape), np.float32)
    data = hl.DataModule.from_arrays(x, np.arange(2 * rows) % 3, val=None, batch_size=rows)
    config, data = hl.TrainingConfig(), as_datamodule(data)
    planner = planning.Planner(make(num_classes=3), data, config, device)
    try:
        return planner.predict() | {"precision": planner.config.precision}
    finally:
        planner.close()

for name in names:
    for rows in (2, 5, 16):
        want = predict(_core.Device("cuda"), name, rows)
        got = predict(_core.Device("cuda", gpu=gpu), name, rows)
        for each in (want, got):
            each["text"] = each["text"].partition(":")[2]  # behind the device's name
        print(name, rows, sorted(k for k in want if got[k] != want[k]),
              got["const_bytes"] <= want["const_bytes"], got["precision"], got["arena_bytes"] > 0)
"""


def compare(fake: Path, gpu: str, nvrtc: str, *names: str) -> list[str]:
    if not _core.build_info()["cuda"]:
        pytest.skip(NO_KERNELS)
    described = _core.Device("cuda", gpu=gpu).memory()
    assert described is not None
    arch, multiprocessors, mixed = {
        "T4": (75, 40, "16-mixed"),
        "H200": (90, 132, "bf16-mixed"),
    }[gpu]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HOTLOOP_CU", "CUDA_VIS"))}
    env |= {
        "HOTLOOP_CUDA_PATH": str(fake),
        "HOTLOOP_CUBLASLT_PATH": "none",
        "HOTLOOP_CUDNN_PATH": "none",
        "HOTLOOP_NVRTC_PATH": nvrtc,
        "HL_FAKE": f"arch={arch},multiprocessors={multiprocessors},"
        f"memory={described['total_bytes']}",
    }
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, gpu, mixed, *names],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("gpu", "precision"), [("T4", "16-mixed"), ("H200", "bf16-mixed")])
def test_as_the_emulated_driver(fake: Path, gpu: str, precision: str) -> None:
    """Without NVRTC programs that are interpreted are constants."""
    names = ("mlp", "resnet18", "convnext_tiny") if gpu == "T4" else ("mlp",)
    lines = compare(fake, gpu, "none", *names)
    said = f"['const_bytes'] True {precision} True"
    assert lines == [f"{name} {rows} {said}" for name in names for rows in (2, 5, 16)]


def test_as_the_emulated_driver_with_nvrtc(fake: Path) -> None:
    lines = compare(fake, "T4", str(fake.with_name("libnvrtc_fake.so")), "mlp")
    assert lines == [f"mlp {n} [] True 16-mixed True" for n in (2, 5, 16)]


def make_report(**fields: Any) -> Any:
    return hl.plan(mlp(), (X, Y), quiet(precision="auto"), **fields)


@pytest.mark.parametrize("gpu", list(GPUS))
def test_summary(gpu: str) -> None:
    """No driver is needed: tests run without one (conftest.py)."""
    report = make_report(device=gpu.lower())
    described = _core.Device("cuda", gpu=gpu)
    lines = str(report).splitlines()
    assert lines[0].startswith(f"on {GPUS[gpu]}, ")
    assert ", by its description: " in lines[0]
    assert lines[3].startswith("peak: ")
    assert lines[3].endswith("data and best weights: fits")
    assert "hotloop's own kernels where cuBLASLt would choose" in lines[4]
    assert "cuda.matmul" in report.text
    memory = described.memory()
    assert memory is not None
    assert report.total_bytes == memory["total_bytes"]
    info = report.info
    assert ("cuda.matmul", "cuBLASLt", info["unasked_bytes"]) in described.unasked
    assert info["data_bytes"] == X.nbytes + Y.nbytes
    parts = ("arena", "slot", "const", "store", "data", "best", "unasked")
    assert report.peak_bytes == sum(info[f"{part}_bytes"] for part in parts)
    dtype = "float16" if gpu == "T4" else "bfloat16"
    assert dtype in report.text
    assert make_report(device=gpu, precision="32-true").text.count(dtype) == 0


def test_convolutions_are_assumed_to_be_cudnns() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2))
    x = np.zeros((8, 3, 8, 8), np.float32)
    report = hl.plan(net, (x, np.arange(8) % 2), quiet(), device="T4")
    assert "hotloop's own kernels where cuBLASLt and cuDNN would choose" in str(report)
    assert report.info["unasked_bytes"] == max(
        n for *_, n in _core.Device("cuda", gpu="T4").unasked
    )


def test_this_machine_has_no_such_lines() -> None:
    report = make_report(device="cpu")
    assert report.total_bytes is report.fits is None
    assert len(str(report).splitlines()) == 3


def test_what_does_not_fit() -> None:
    """16,384 rows by 131,072 columns in 16 bits, several times."""
    net = nn.Sequential(nn.Linear(64, 1 << 17), nn.ReLU(), nn.Linear(1 << 17, 3))
    x = np.zeros((1 << 14, 64), np.float32)
    data = hl.DataModule.from_arrays(x, np.arange(1 << 14) % 3, val=None, batch_size=1 << 14)
    small, large = (hl.plan(net, data, quiet(), device=gpu) for gpu in ("T4", "H200"))
    assert small.fits is False
    assert str(small).splitlines()[3].endswith(": does not fit")
    assert large.fits is True
    assert small.info["arena_bytes"] > (1 << 31) * 2


@pytest.mark.parametrize(
    ("error", "words", "fields"),
    [
        (
            hl.ConfigError,
            r"device: must be 'auto', 'cpu', 'cuda', 'cuda:<number>' or the name of a GPU; gpu: "
            r"must be one that is described \(T4, A100, H200\), got 'T5'",
            {"device": "T5"},
        ),
        (hl.ConfigError, r"\(T4, A100, H200\), got 'cuda0'", {"device": "cuda0"}),
        (
            hl.ConfigError,
            "must be the only one that is named, got 'T4' beside accelerator='cpu'",
            {"device": "T4", "accelerator": "cpu"},
        ),
        (hl.ConfigError, "beside devices=1", {"device": "T4", "devices": 1}),
        (
            hl.ConfigError,
            "'tf32' is a format .* got Tesla T4",
            {"device": "T4", "precision": "tf32"},
        ),
        (
            hl.DeviceError,
            "precision='64-true' runs on the CPU",
            {"device": "T4", "precision": "64-true"},
        ),
        (hl.ConfigError, "device: must be a text such as 'cpu'", {"device": 3}),
        (hl.DeviceError, "'gpu' needs a GPU that can be used", {"device": "cuda"}),
    ],
)
def test_wrong_names(error: type[Exception], words: str, fields: dict[str, Any]) -> None:
    with pytest.raises(error, match=words):
        make_report(**fields)


def test_training_there_is_refused() -> None:
    with pytest.raises(hl.ConfigError, match="device: must be 'auto', 'cpu'"):
        hl.train(mlp(), (X, Y), quiet(), device="T4")
    with pytest.raises(hl.DeviceError, match="the GPU is a description"):
        _core.Session(_core.Device("cuda", gpu="T4")).store("x", "float32", 4)


@pytest.mark.parametrize(
    ("gpu", "precision", "words"),
    [
        ("T4", "bf16", "bf16 products, emulated; fp32 for the rest"),
        ("T4", "auto", "fp16 products; fp32 for the rest"),
        ("A100", "bf16", "bf16 products; fp32 for the rest"),
        ("T4", 32, "fp32"),
    ],
)
def test_the_precision_is_said(gpu: str, precision: str, words: str) -> None:
    report = make_report(device=gpu, precision=precision)
    assert report.precision == words
    assert str(report).splitlines()[0].endswith(f"by its description: {words}")


def test_two_threads() -> None:
    want = {gpu: make_report(device=gpu).info for gpu in GPUS}
    got: dict[str, Any] = {}

    def work(gpu: str) -> None:
        for _ in range(3):
            got[gpu] = make_report(device=gpu).info

    threads = [threading.Thread(target=work, args=(gpu,)) for gpu in GPUS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == want


def test_command_line(capsys: Any, tmp_path: Path) -> None:
    assert main(["plan", "--device", "a100", "--instructions"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("on NVIDIA A100-SXM4-80GB, ")
    assert "cuda.matmul" in out
    assert main(["plan", "--device", "T5"]) == 1
    assert "(T4, A100, H200), got 'T5'" in capsys.readouterr().err


def test_command_line_of_a_saved_model(capsys: Any, tmp_path: Path) -> None:
    hl.train(mlp(), (X, Y), quiet(max_epochs=1)).save(tmp_path / "net.safetensors")
    file = str(tmp_path / "net.safetensors")
    assert main(["plan", file, "--device", "T4", "--instructions"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("on Tesla T4, ")
    assert "cuda.matmul" in out
    assert main(["plan", file]) == 0
    assert "cuda." not in capsys.readouterr().out
