"""Every call of the driver, cuBLASLt, cuDNN and NVRTC fails, for every public entry that uses a
GPU: once, until it is mended, and for good, the device being lost. See device_calls.py.

The fast tier takes a few calls of each kind, the long one more, HOTLOOP_PROOF three times as many;
`python device_calls.py 0` takes all, which is hours.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hotloop import _core
from needs import NO_KERNELS

SCRIPT = Path(__file__).with_name("device_calls.py")
ENTRIES = (
    *("train", "train_fed", "train_net", "step", "evaluate"),
    *("predict", "save", "load", "plan", "devices"),
)

pytestmark = pytest.mark.skipif(not _core.build_info()["cuda"], reason=NO_KERNELS)


def walk(fake: Path, most: int, seconds: float | None) -> dict[str, dict[str, int]]:
    """Per entry the calls of each library, and how its runs ended."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HOTLOOP_", "HL_FAKE"))}
    libraries = {
        "CUDA": fake.name,
        "CUBLASLT": "libcublasLt_fake.so",
        "CUDNN": "libcudnn_fake.so",
        "NVRTC": "libnvrtc_fake.so",
    }
    env |= {f"HOTLOOP_{name}_PATH": str(fake.with_name(file)) for name, file in libraries.items()}
    env["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parents[1]), env.get("PYTHONPATH", "")])
    made = subprocess.run(
        [sys.executable, str(SCRIPT), str(most)],
        env=env, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    found: dict[str, dict[str, int]] = json.loads(made.stdout.splitlines()[-1])
    return found


def check(found: dict[str, dict[str, int]]) -> None:
    """That it reached what it is about."""
    assert set(found) == set(ENTRIES)
    for name, counts in found.items():
        assert counts["driver"] > 100, name
        if name != "devices":  # which raises nothing
            assert counts["driver raised"] > 0, name
            assert counts["device lost"] > 0, name
            assert counts["NVRTC went on"] > 0, name  # by the interpreter
    for name in ("train", "step", "evaluate", "predict", "plan"):
        assert found[name]["cuBLASLt raised"] > 0, name
        assert found[name]["cuBLASLt went on"] > 0, name
    assert found["train_net"]["cuDNN raised"] > 0
    assert found["train_net"]["cuDNN went on"] > 0


def test_device_calls_fail(fake: Path) -> None:
    check(walk(fake, 6, 600))


@pytest.mark.long
def test_many_device_calls_fail(fake: Path) -> None:
    most, seconds = (60, None) if os.environ.get("HOTLOOP_PROOF") else (20, 1800)
    check(walk(fake, most, seconds))
