"""What a test may need and a machine may lack: it skips then, and says how to get it to run."""

import os
from pathlib import Path
from types import ModuleType

import pytest

NO_KERNELS = "this build has no CUDA kernels (HL_CUDA=1 make build says why)"
NO_GPU = "HOTLOOP_TEST_GPU is not set (make cuda-check and make gpu-check set it)"

IS_EMULATED = "fake" in Path(os.environ.get("HOTLOOP_CUDA_PATH", "")).name
emulated = pytest.mark.skipif(
    not IS_EMULATED,
    reason="asks the emulated driver and libraries what they saw (make cuda-check runs it)",
)


def is_flat(before: int, after: int, most: int) -> bool:
    """Whether a process's memory grew by less than ``most`` bytes; under AddressSanitizer, which
    keeps what is freed for a while, its size says nothing.
    """
    from hotloop import _core

    return after - before < most or bool(_core.build_info()["sanitizers"])


def take_library(name: str) -> ModuleType:
    """A library that users may have beside hotloop."""
    __tracebackhide__ = True  # the skip is the test's own, in pytest's summary too
    reason = f"{name} is not installed (make test-long installs it)"
    return pytest.importorskip(name, reason=reason)
