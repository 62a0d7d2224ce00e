"""hl.devices, accelerator= and their sentences, over an emulated driver in a process of its own.

The driver is a library that HOTLOOP_CUDA_PATH names (tests/cuda/fake_library.c); HL_FAKE describes
the machine it stands for.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import hotloop as hl
import pytest
from hotloop import _core, nn
from hotloop.training.plans.accelerator import choose_device, library_roots
from needs import NO_KERNELS

BUILT = bool(_core.build_info()["cuda"])
OF_THIS_BUILD = 13000  # what the emulated driver says it supports

TRAIN = """
import numpy as np, hotloop as hl
x, y = np.random.default_rng(0).normal(size=(64, 3)).astype("float32"), np.arange(64) % 2
def run(**options):
    data = hl.DataModule.from_arrays(x, y, batch_size=32)
    model = hl.nn.Sequential(hl.nn.Linear(3, 2))
    options = dict(max_epochs=1, logger=False) | options
    return hl.train(model, data, **options)
"""


def run(code: str, fake: Path | str, machine: str = "") -> str:
    """What a new process prints that has this driver."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HOTLOOP_CU", "CUDA_VIS"))}
    env |= {"HOTLOOP_CUDA_PATH": str(fake), "HL_FAKE": machine}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


LIST = """
import hotloop as hl
for device in hl.devices():
    if device.kind == "gpu":
        print(device.usable, device.name, device.architecture, device.memory_bytes)
        print(device.why_not)
print("none:", hl.devices().why_no_gpu)
"""


def test_devices_here() -> None:
    found = hl.devices()
    assert found[0].kind == "cpu"
    assert found[0].usable
    assert found[0].memory_bytes > found[0].free_bytes > 0
    names = [library.name for library in found.libraries]
    assert names == ["CUDA driver", "cuBLASLt", "cuDNN", "NVRTC"]
    for library in found.libraries:
        assert bool(library.path) != bool(library.why_not)
    assert bool(found.why_no_gpu) == (len(found) == 1)
    lines = str(found).splitlines()
    assert len(lines) == len(found.rows())
    assert lines[0].startswith("cpu:0")


def test_wheels_are_found_below_the_path(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "site/nvidia").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(tmp_path / "site")])
    assert library_roots() == str(tmp_path / "site")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert library_roots() is None


def test_no_driver() -> None:
    out = run(LIST, "/dev/null")
    assert "none: cuda: needs an NVIDIA driver, got none (HOTLOOP_CUDA_PATH does not name" in out
    out = run(TRAIN + "print(run().device)", "/dev/null")
    assert "no GPU" not in out, "a user without a GPU notices nothing"


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        ("HOTLOOP_CUDA_PATH", "libcuda.so.1"),
        ("HOTLOOP_CUBLASLT_PATH", "libcublasLt.so.13 or libcublasLt.so.12"),
        ("HOTLOOP_CUDNN_PATH", "libcudnn.so.9"),
        ("HOTLOOP_NVRTC_PATH", "libnvrtc.so.13 or libnvrtc.so.12"),
    ],
)
def test_a_folder_without_the_library(tmp_path: Path, monkeypatch, variable, names) -> None:
    monkeypatch.setenv(variable, str(tmp_path))
    want = f"{variable} names a folder with no {names}: {tmp_path}"
    found = hl.devices()
    assert want in [library.why_not for library in found.libraries]
    if variable == "HOTLOOP_CUDA_PATH":
        assert f"needs an NVIDIA driver, got none ({want})" in found.why_no_gpu


def test_a_library_whose_part_does_not_load(tmp_path: Path, monkeypatch) -> None:
    """Asked for its version, cuDNN loads a part, and ends the process where that fails."""
    shutil.copy(_core.__file__, tmp_path / "libcudnn.so.9")  # some library
    monkeypatch.setenv("HOTLOOP_CUDNN_PATH", str(tmp_path))

    def why_not() -> str:
        found = {library.name: library for library in hl.devices().libraries}
        return found["cuDNN"].why_not

    assert why_not() == ""
    (tmp_path / "libcudnn_graph.so.9").write_text("no library")
    assert why_not().startswith(f"its part does not load: {tmp_path}/libcudnn_graph.so.9: ")


@pytest.mark.parametrize(
    ("machine", "sentence"),
    [
        ("devices=0", "none: cuda: the driver must see an NVIDIA GPU, got none"),
        ("cuda=11040", "got one for CUDA 11.4; update the driver"),
        ("arch=60", "False Emulated GPU sm_60 1073741824\ncuda: the GPU must be sm_75"),
        ("fail=cuInit:803", "the NVIDIA driver must start, got CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    ],
)
def test_reasons(fake: Path, machine: str, sentence: str) -> None:
    assert sentence in run(LIST, fake, machine)


def test_auto_says_why_and_goes_on(fake: Path) -> None:
    out = run(TRAIN + "print(run(enable_progress_bar=True).steps)", fake, "arch=60")
    assert "no GPU" in out
    assert "the GPU must be sm_75 (Turing, such as a T4) or newer, got Emulated GPU (sm_60)" in out
    assert out.rstrip().endswith("2")
    out = run(TRAIN + "print(run(enable_progress_bar=True).steps)", fake, "devices=0")
    assert "no GPU" not in out


def test_gpu_raises(fake: Path) -> None:
    code = """
try:
    run(accelerator="gpu")
except hl.DeviceError as error:
    print(error)
"""
    out = run(TRAIN + code, fake, "arch=60")
    assert out.startswith("accelerator: 'gpu' needs a GPU that can be used; cuda: the GPU must be ")
    assert out.rstrip().endswith("; use accelerator='auto' or 'cpu'")


def test_a_double_precision_gpu_is_refused() -> None:
    with pytest.raises(hl.DeviceError, match="precision='64-true' runs on the CPU"):
        choose_device("gpu", "64-true")
    assert choose_device("auto", "64-true")[0].backend == "ref"
    assert choose_device("cpu", "auto")[0].backend == "cpu"


# ---- with kernels in the build


@pytest.fixture
def built(fake: Path) -> Path:
    """The emulated driver, for a build that has kernels."""
    if not BUILT:
        pytest.skip(NO_KERNELS)
    return fake


def test_a_device_opens_and_is_given_back(built: Path) -> None:
    code = """
from hotloop import _core
for i in range(3):
    device = _core.Device("cuda", i % 2)
    print(device.name, device.backend, device.float_dtype)
    del device
try:
    _core.Device("cuda", 2)
except Exception as error:
    print(type(error).__name__, error)
"""
    out = run(code, built, "devices=2")
    assert out.count("Emulated GPU, 1.0 GiB, sm_90 cuda float32") == 3
    assert "DeviceError cuda: the number of a GPU must be below 2" in out


def test_no_memory_left(built: Path) -> None:
    out = run(LIST, built, f"memory={(64 << 20) + 100}")
    assert "must have memory left to begin with" in out
    code = """
try:
    run(accelerator="gpu")
except hl.OutOfMemoryError as error:
    print(error)
"""
    out = run(TRAIN + code, built, "memory=1000000")
    assert "out of memory" in out
    assert "accelerator: 'gpu' needs a GPU that can be used" in out


def test_auto_takes_a_gpu_that_works(built: Path) -> None:
    out = run(LIST, built)
    assert "True Emulated GPU sm_90 1073741824" in out
    code = """
result = run()
print(result.device, result.config.accelerator, result.config.cuda_graph, result.steps)
for field in ("cuda_graph", "device_cache"):
    try:
        run(accelerator="cpu", **{field: True})
    except hl.ConfigError as error:
        print(error)
"""
    out = run(TRAIN + code, built)
    assert "Emulated GPU, 1.0 GiB, sm_90 gpu True 2" in out
    for field in ("cuda_graph", "device_cache"):
        assert f"{field}: needs a GPU and this run is on the CPU, got True" in out


def test_stores_live_on_the_device(built: Path) -> None:
    code = """
import numpy as np
from hotloop import _core
session = _core.Session(_core.Device("cuda"))
session.store("a", "float32", 10000)
session.write("a", np.arange(10000, dtype="float32"))
print(session.read("a", "float32")[9999], session.read("a", "float64", 3, 2))
try:
    session.store("more", "float32", 10**10)
except MemoryError as error:
    print(type(error).__name__, error)
session.write("a", np.zeros(3, dtype="float32"))
"""
    out = run(code, built)
    assert out.startswith("9999.0 [3. 4.]")
    assert "OutOfMemoryError out of memory: cuda: the GPU must have what is asked for" in out


def test_a_forked_child(built: Path) -> None:
    code = """
import os
from hotloop import _core
device = _core.Device("cuda")
if os.fork() == 0:
    try:
        _core.Device("cuda")
    except RuntimeError as error:
        print(error, flush=True)
    print(_core.Device("cpu").backend, flush=True)
    os._exit(0)
os.wait()
print(_core.Device("cuda").backend)
"""
    out = run(code, built).splitlines()
    assert "got a forked child; start it by 'spawn', or use the CPU in it" in out[0]
    assert out[1:] == ["cpu", "cuda"]


@pytest.mark.skipif(
    len(hl.devices()) > 1, reason="this machine has a GPU (it runs where there is none)"
)
@pytest.mark.parametrize(
    "move",
    [
        lambda value: value.cuda(),
        lambda value: value.to("cuda"),
        lambda value: value.to(0),
        lambda value: value.to(device="cuda:1"),
        lambda value: value.cuda(1),
    ],
)
def test_a_parameter_says_as_a_module_does_that_there_is_no_gpu(move) -> None:
    for owner in (nn.Linear(2, 2), nn.Linear(2, 2).weight, nn.BatchNorm1d(2).running_mean):
        with pytest.raises(hl.DeviceError):
            move(owner)
        assert owner.to("cpu") is owner.cpu() is owner
    with pytest.raises(hl.ConfigError, match="device must be"):
        nn.Linear(2, 2).weight.to("meta")
