"""What a run ran on, for its folder and its report."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import numpy

from hotloop import _core
from hotloop._version import __version__

__all__ = ["describe_environment"]


def describe_environment(device: str) -> dict[str, Any]:
    """Versions, machine and how the program was started, as plain values.

    Parameters
    ----------
    device : str
        Where the run computes.
    """
    return {
        "hotloop": __version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "device": device,
        "threads": _core.cpu_info()["threads"],
        "command": sys.argv,
        "directory": os.getcwd(),
        "variables": {k: v for k, v in sorted(os.environ.items()) if k.startswith("HOTLOOP_")},
    }
