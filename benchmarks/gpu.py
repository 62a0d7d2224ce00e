"""The GPU that a measurement was made on, for JSON files, and whether it is one."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from typing import Any

__all__ = ["describe_gpu", "is_emulated", "slug_of", "time_calls"]

_CALLS = 20  # of PyTorch's between two events


def is_emulated(name: str) -> bool:
    """Whether a device is that of the emulated driver of tests/cuda, by the name it has there."""
    return name.startswith("Emulated GPU")


def slug_of(name: str) -> str:
    """A device's name as part of a file's name: "NVIDIA H200" gives "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def describe_gpu() -> dict[str, Any]:
    """The first GPU and NVIDIA's libraries, as hotloop and PyTorch find them.

    Returns
    -------
    dict
        name, architecture, memory_bytes, emulated, libraries (name to version, or the sentence why
        not), and what PyTorch says of the same GPU: torch_cuda, torch_device. ``why_not``: "" or
        the sentence why hotloop cannot use it.

    Raises
    ------
    RuntimeError
        There is no GPU; the text says why.
    """
    import hotloop as hl

    found = hl.devices()
    gpus = [device for device in found if device.kind == "gpu"]
    if not gpus:
        raise RuntimeError(found.why_no_gpu or "no GPU")
    gpu = gpus[0]
    facts = {
        "name": gpu.name,
        "architecture": gpu.architecture,
        "memory_bytes": gpu.memory_bytes,
        "emulated": is_emulated(gpu.name),
        "why_not": gpu.why_not,
        "libraries": {
            item.name: item.why_not or item.version or "of unknown version"
            for item in found.libraries
        },
    }
    return {**facts, **_ask_torch()}


def _ask_torch() -> dict[str, Any]:
    if importlib.util.find_spec("torch") is None:
        return {"torch_cuda": None, "torch_device": None}
    import torch

    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {"torch_cuda": torch.version.cuda, "torch_device": name}


def time_calls(step: Callable[[], Any], device: str) -> float:
    """Seconds of one of many calls of PyTorch's."""
    import torch

    step()
    if device == "cpu":  # in miniature, without a GPU
        return 1.0
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(_CALLS):
        step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / _CALLS
