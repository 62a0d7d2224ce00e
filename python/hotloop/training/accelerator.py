"""The choice of a device: which one a run gets, and what is said when it is not a GPU.

An explicit "gpu" that cannot be had raises; "auto" goes to the CPU, silently where there is no GPU
at all, with a sentence where there is one that cannot be used.
"""

from __future__ import annotations

import os
import sys

from hotloop import _core
from hotloop.errors import DeviceError, HotloopError, OutOfMemoryError

__all__ = ["choose_device", "library_roots", "open_gpu"]


def library_roots() -> str | None:
    """Folders of this Python that hold NVIDIA's wheels, with ":" between them, or None."""
    found = [path for path in sys.path if path and os.path.isdir(os.path.join(path, "nvidia"))]
    return ":".join(path for path in dict.fromkeys(found) if ":" not in path) or None


def open_gpu(index: int = 0) -> _core.Device:
    """A GPU that can run every op.

    Parameters
    ----------
    index : int
        Its number, as CUDA counts them.

    Raises
    ------
    DeviceError
        There is no driver, no such GPU, it is too old, or it cannot run a kernel.
    OutOfMemoryError
        Others have left no memory on it.
    """
    device = _core.Device("cuda", index, library_roots=library_roots())
    # What only one of them has is made of other ops where it is missing; fusion is not needed.
    needed = set(_core.Device("ref").ops) & set(_core.Device("cpu", n_threads=1).ops)
    missing = sorted(needed - set(device.ops) - {"pointwise"})
    if missing:
        raise DeviceError(
            f"cuda: {device.name} must have a kernel for every op, got none for {len(missing)} of "
            f"{len(needed)} in this version ({missing[0]}, ...)"
        )
    return device


def choose_device(
    accelerator: str, precision: str, devices: int | str | tuple[int, ...] = "auto"
) -> tuple[_core.Device, str]:
    """The device of a run, and the sentence that says why it is not a GPU that is there.

    Parameters
    ----------
    accelerator : {"auto", "cpu", "gpu"}
    precision : str
        "64-true" is the reference backend's, on the CPU.
    devices : int, "auto" or tuple of int
        A tuple names the GPU.

    Raises
    ------
    DeviceError, OutOfMemoryError
        If a GPU is asked for and cannot be had.
    """
    index = devices[0] if isinstance(devices, tuple) else 0
    if accelerator == "gpu":
        if precision == "64-true":
            raise DeviceError(
                "accelerator: precision='64-true' runs on the CPU, got accelerator='gpu'; "
                "use accelerator='auto' or 'cpu'"
            )
        try:
            return open_gpu(index), ""
        except (DeviceError, OutOfMemoryError) as error:
            raise type(error)(
                f"accelerator: 'gpu' needs a GPU that can be used; {error}; "
                "use accelerator='auto' or 'cpu'"
            ) from error
    if precision == "64-true":
        return _core.Device("ref"), ""
    if accelerator == "cpu":
        return _core.Device("cpu"), ""
    found = _core.survey("cuda", library_roots(), probe=False)
    if found["absent"]:
        return _core.Device("cpu"), ""
    try:
        return open_gpu(index), ""
    except HotloopError as error:
        return _core.Device("cpu"), str(error).removeprefix("cuda: ")
