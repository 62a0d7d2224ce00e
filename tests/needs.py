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


def take_library(name: str) -> ModuleType:
    """A library that users may have beside hotloop."""
    __tracebackhide__ = True  # the skip is the test's own, in pytest's summary too
    reason = f"{name} is not installed (make test-long installs it)"
    return pytest.importorskip(name, reason=reason)
