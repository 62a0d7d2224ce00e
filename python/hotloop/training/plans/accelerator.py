"""The choice of a device: which one a run gets, and the message when it is not a GPU.

An explicit "gpu" that cannot be had raises; "auto" goes to the CPU, silently where there is no GPU
at all, with a sentence where there is one that cannot be used.

A GPU that was chosen stays open, so that the next run need not make a context and load kernels
again. One that was lost stays too, and says so at once; so does one that was lost while it opened.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hotloop import _core
from hotloop.errors import (
    ConfigError,
    DeviceError,
    DeviceLostError,
    HotloopError,
    OutOfMemoryError,
)

if TYPE_CHECKING:
    from hotloop.training.config import TrainingConfig

__all__ = [
    "check_gpu_options",
    "choose_device",
    "close_gpus",
    "device_of_statistics",
    "library_roots",
    "losing_device",
    "name_device",
    "open_described",
    "open_gpu",
    "open_placement",
    "take_autotune_cache",
]

_gpus: dict[int, _core.Device] = {}
_lost: dict[int, str] = {}  # errors of the GPUs that were lost while they were opened
_autotune_cache: dict[str, None] = {}  # lines of autotune caches, for GPUs that are opened later
_pid = 0  # of the process that opened them: a forked child cannot use them


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
    # An op that only one of them has is lowered to other ops elsewhere; fusion is optional.
    needed = set(_core.Device("ref").ops) & set(_core.Device("cpu", n_threads=1).ops)
    missing = sorted(needed - set(device.ops) - set(device.lowered_ops) - {"pointwise"})
    if missing:
        raise DeviceError(
            f"cuda: {device.name} must have a kernel for every op, got none for {len(missing)} of "
            f"{len(needed)} in this version ({missing[0]}, ...)"
        )
    return device


def _keep_gpu(index: int) -> _core.Device:
    """The GPU that is open already, if it still works, else a new one, which is kept."""
    global _pid
    if _pid != os.getpid():
        _gpus.clear()
        _lost.clear()
        _pid = os.getpid()
    with losing_device():
        if index in _lost:
            raise DeviceLostError(_lost[index])
        if index not in _gpus:
            try:
                _gpus[index] = open_gpu(index)
            except DeviceLostError as error:
                _lost[index] = str(error)
                raise
            _gpus[index].autotune_read("\n".join(_autotune_cache))
        _gpus[index].memory()  # asks the driver
    return _gpus[index]


def take_autotune_cache(lines: str) -> None:
    """Takes over the autotune cache that a model from a file was trained with.

    Lines of another GPU, driver or library are never used.

    Raises
    ------
    UnicodeEncodeError
        If it is not text.
    """
    lines.encode()
    _autotune_cache.update(dict.fromkeys(lines.splitlines()))
    for device in _gpus.values():
        device.autotune_read(lines)


def close_gpus() -> None:
    """Gives back GPUs that nothing uses."""
    _gpus.clear()


@contextlib.contextmanager
def losing_device() -> Iterator[None]:
    """Adds to the error of a lost device what state the models are in.

    Raises
    ------
    DeviceLostError
    """
    try:
        yield
    except DeviceLostError as error:
        if isinstance(error.__cause__, DeviceLostError):
            raise  # an inner call has added the sentence
        raise DeviceLostError(
            f"{error}; no checkpoint was written, models have the weights that they had before"
        ) from error


def _check_tf32(device: _core.Device, precision: str) -> None:
    """TF32 came with bfloat16; libraries would quietly take float32 instead of it."""
    if precision == "tf32" and device.reduced_dtype != "bfloat16":
        raise ConfigError(
            f"precision: 'tf32' is a format of NVIDIA GPUs' products from sm_80 on, got "
            f"{device.name}; write precision='32-true', or '16-mixed' for faster products"
        )


def open_described(gpu: str, precision: str) -> _core.Device:
    """A GPU by its description, which plans are predicted for.

    Parameters
    ----------
    gpu : str
        Its name, such as "T4".
    precision : str

    Raises
    ------
    ConfigError
        If no GPU of this name is described, or it does not have the precision.
    DeviceError
        For "64-true", which no GPU runs.
    """
    try:
        device = _core.Device("cuda", gpu=gpu)
    except ConfigError as error:
        raise ConfigError(
            f"device: must be 'auto', 'cpu', 'cuda', 'cuda:<number>' or the name of a GPU; {error}"
        ) from error
    _check_doubles(precision, gpu)
    _check_tf32(device, precision)
    return device


def _check_doubles(precision: str, device: str) -> None:
    if precision == "64-true":
        raise DeviceError(
            f"accelerator: precision='64-true' runs on the CPU, got accelerator={device!r}; "
            "use accelerator='auto' or 'cpu'"
        )


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
    ConfigError
        If the device does not have the precision.
    """
    index = devices[0] if isinstance(devices, tuple) else 0
    if accelerator == "gpu":
        _check_doubles(precision, accelerator)
        try:
            device = _keep_gpu(index)
        except (DeviceError, OutOfMemoryError) as error:
            raise type(error)(
                f"accelerator: 'gpu' needs a GPU that can be used; {error}; "
                "use accelerator='auto' or 'cpu'"
            ) from error
        _check_tf32(device, precision)
        return device, ""
    if precision == "64-true":
        return _core.Device("ref"), ""
    why = ""
    if accelerator == "auto" and not _core.survey("cuda", library_roots(), probe=False)["absent"]:
        try:
            device = _keep_gpu(index)
        except HotloopError as error:
            why = str(error).removeprefix("cuda: ")
        else:
            _check_tf32(device, precision)
            return device, ""
    if precision == "tf32":
        raise ConfigError(
            "precision: 'tf32' is a format of NVIDIA GPUs' products and this run is on the CPU, "
            "got 'tf32'; write precision='32-true', or 'bf16-mixed' for faster products"
        )
    return _core.Device("cpu"), why


def open_placement(placement: str) -> _core.Device:
    """The device that :func:`hotloop.nn.placement.placement_of` names.

    Raises
    ------
    DeviceError, OutOfMemoryError
        If it is a GPU that cannot be had.
    """
    accelerator, _, index = placement.partition(":")
    if accelerator != "gpu":
        return choose_device(accelerator, "auto")[0]
    try:
        return _keep_gpu(int(index))
    except (DeviceError, OutOfMemoryError) as error:
        raise type(error)(
            f"to: 'cuda:{index}' needs a GPU that can be used; {error}; use 'cpu' or 'auto'"
        ) from error


def name_device(device: _core.Device) -> str:
    """The name of a device in a header; of several GPUs it says that a run uses one."""
    if device.memory() is None:
        return device.name
    n = len(_core.survey("cuda", library_roots(), probe=False)["devices"])
    return f"{device.name} (1 of {n} GPUs)" if n > 1 else device.name


# GPUs whose float64 has half of float32's rate; of the others it has a 32nd or less.
_FAST_FLOAT64 = ("sm_60", "sm_70", "sm_80", "sm_90", "sm_100")


# What a core computes while a byte goes to a GPU: 1.5 (36 GFLOP/s of AVX2, 24 GB/s of PCIe 4) to 5
# (60 of AVX-512, 12 of PCIe 3). Nominal: by a measurement two runs could choose differently,
# and have other bits.
_FLOPS_PER_BYTE = 2.5


def device_of_statistics(
    device: _core.Device, host: _core.Device, flops: float, float64_flops: float, n_bytes: float
) -> tuple[_core.Device, str]:
    """Where a pass over the data that sums in float64 runs, and why it is not the run's device.

    The CPU has the data, a GPU gets them first: it gains where there is enough to compute.

    Parameters
    ----------
    device : Device
        Of the run.
    host : Device
        The CPU, of its threads.
    flops : float
        Of the products of a sample (of matrices, convolutions, attention, covariances).
    float64_flops : float
        Those of them that are float64.
    n_bytes : float
        Of a sample.

    Returns
    -------
    tuple of Device and str
        The reason is "" for the run's own device.
    """
    if device.memory() is None:
        return device, ""
    if device.name.rsplit(", ", 1)[-1] not in _FAST_FLOAT64 and 2 * float64_flops > flops:
        return host, "float64 is slow on this GPU"
    if flops < host.n_threads * _FLOPS_PER_BYTE * n_bytes:
        return host, "sending the rows to the GPU would take longer"
    return device, ""


def check_gpu_options(config: TrainingConfig, device: _core.Device) -> None:
    """Refuses settings that need a GPU where the run is on another device.

    Raises
    ------
    ConfigError
    """
    if device.memory() is not None:
        return
    if config.devices not in ("auto", 1, (0,)):
        raise ConfigError(
            f"devices: names a GPU and this run is on the CPU, got {config.devices!r}; write "
            "devices=1"
        )
    for field in ("cuda_graph", "device_cache"):
        if getattr(config, field) is True:
            raise ConfigError(
                f"{field}: needs a GPU and this run is on the CPU, got True; write {field}='auto'"
            )
