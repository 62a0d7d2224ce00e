"""What a test may need and a machine may lack: it skips then, and says how to get it to run."""

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

NO_KERNELS = "this build has no CUDA kernels (HL_CUDA=1 make build says why)"
NO_GPU = "HOTLOOP_TEST_GPU is not set (make cuda-check and make gpu-check set it)"

IS_EMULATED = "fake" in Path(os.environ.get("HOTLOOP_CUDA_PATH", "")).name
flushes = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64", "aarch64", "arm64"),
    reason="nothing is set on other processors",
)
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


@contextlib.contextmanager
def plain_permissions() -> Iterator[None]:
    """The permissions of files bind this thread, and those that it starts, even if it is root's:
    without the capabilities to pass over them.
    """
    version, bypass = 0x20080522, (1 << 1) | (1 << 2)  # of capset; CAP_DAC_OVERRIDE, READ_SEARCH
    header = (ctypes.c_uint32 * 2)(version, 0)
    before = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, before) == 0, os.strerror(ctypes.get_errno())
    bound = (ctypes.c_uint32 * 6)(before[0] & ~bypass, *before[1:])
    assert libc.capset(header, bound) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0, os.strerror(ctypes.get_errno())


def take_library(name: str) -> ModuleType:
    """A library that users may have beside hotloop."""
    __tracebackhide__ = True  # the skip is the test's own, in pytest's summary too
    reason = f"{name} is not installed (make test-long installs it)"
    return pytest.importorskip(name, reason=reason)
