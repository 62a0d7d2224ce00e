"""NVIDIA's driver, asked directly: what gpu-check wants to know of it and hotloop does not.

The same library that hotloop takes, so the emulated driver too.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import TracebackType

__all__ = ["Driver", "DriverError", "MissingCallError", "find_architecture"]

_NAME = "libcuda.so.1"
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_MAJOR, _MINOR = 75, 76


class DriverError(Exception):
    """There is no driver, it lacks a call, or one failed; the text says which."""


class MissingCallError(DriverError):
    """The driver is older than the call."""


class Driver:
    """The driver with the first GPU's own context, as hotloop has it, inside a ``with``."""

    def __init__(self) -> None:
        named = Path(os.environ.get("HOTLOOP_CUDA_PATH") or _NAME)
        try:
            self._library = ctypes.CDLL(str(named / _NAME if named.is_dir() else named))
        except OSError as error:
            raise DriverError(str(error)) from error
        self._device = ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self._device), 0)

    def __enter__(self) -> Driver:
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self.call("cuCtxPushCurrent_v2", context)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        self.call("cuDevicePrimaryCtxRelease_v2", self._device)

    def call(self, name: str, *args: object) -> None:
        """One call by its symbol."""
        function = getattr(self._library, name, None)
        if function is None:
            raise MissingCallError(f"this driver has no {name}")
        if error := function(*args):
            raise DriverError(f"{name} must succeed, got error {error}")

    def attribute(self, number: int) -> int:
        """A CU_DEVICE_ATTRIBUTE of the GPU."""
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value


def find_architecture() -> int | None:
    """Of the first GPU: 90 is sm_90; None where no driver says."""
    try:
        driver = Driver()
        return 10 * driver.attribute(_MAJOR) + driver.attribute(_MINOR)
    except DriverError:
        return None
