"""``doctor``: what this machine and this installation can do, for a user and for a bug report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Any

__all__ = ["Doctor", "doctor"]

_NEEDED = ("numpy", "safetensors", "tomli-w", "tqdm")
_EXTRAS = (("matplotlib", "result.plot()"), ("pandas", "result.to_pandas()"))
_VARIABLES = (
    "HOTLOOP_CPU",
    "HOTLOOP_NUM_THREADS",
    "HOTLOOP_CUDA_PATH",
    "HOTLOOP_CUBLASLT_PATH",
    "HOTLOOP_CUDNN_PATH",
    "HOTLOOP_NVRTC_PATH",
    "HOTLOOP_TURBOJPEG_PATH",
    "CUDA_VISIBLE_DEVICES",
)


class Doctor(dict[str, dict[str, Any]]):
    """Facts by section; printing it gives them as text, one fact a line."""

    def __str__(self) -> str:
        width = max(len(name) for section in self.values() for name in section)
        blocks = []
        for title, facts in self.items():
            lines = [f"  {name:<{width}}  {_as_text(value)}" for name, value in facts.items()]
            blocks.append("\n".join([title, *lines]))
        return "\n\n".join(blocks)

    __repr__ = __str__


def _as_text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def doctor() -> Doctor:
    """Looks at the machine, the build and the packages around it; trains nothing.

    Returns
    -------
    Doctor
        A dict of sections ("machine", "build", "backends", "devices", "packages", "environment"),
        each a dict of facts; print it.

    Examples
    --------
    >>> report = hl.doctor()
    >>> report["machine"]["threads"] >= 1
    True
    """
    from hotloop import _core
    from hotloop.tools.devices import devices

    cpu = _core.cpu_info()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    report = Doctor()
    report["machine"] = {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "C library": " ".join(platform.libc_ver()) or "unknown",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "interpreter": sys.executable,
        "processor": cpu["name"],
        "processors": f"{usable} usable of {os.cpu_count()}",
        "threads": cpu["threads"],
        "instruction sets": cpu["isa"],
    }
    report["build"] = {"hotloop": _core.__version__, **_core.build_info()}
    report["backends"] = {"available": _core.backends()}
    report["devices"] = dict(devices().rows())
    report["packages"] = {
        **{name: _version(name) or "MISSING: pip install " + name for name in _NEEDED},
        **{name: _version(name) or f"not installed ({use} needs it)" for name, use in _EXTRAS},
    }
    report["environment"] = {name: os.environ.get(name, "not set") for name in _VARIABLES}
    return report
