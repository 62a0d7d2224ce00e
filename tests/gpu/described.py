"""Plans for the GPU that is here beside those for its description (kernels/cuda/gpus.h).

    python -m gpu.described

A tabular net and two of images at three batch sizes, in float32 and in the 16 bits that the GPU is
fast in. Where HOTLOOP_CUBLASLT_PATH is "none", as HOTLOOP_CUDNN_PATH is then, the two must be the
same, byte for byte and kernel for kernel; with the libraries, which a description cannot ask, the
peak for the description must be no less. A GPU of another model than those that are described is
said to be one.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from hotloop import _core, models, nn
from hotloop.data.module import DataModule
from hotloop.data.shorthand import as_datamodule
from hotloop.tools.planning import PlanReport
from hotloop.training.plans.accelerator import open_gpu
from hotloop.training.run.planner import Planner
from train.recipes import quiet

__all__ = ["compare", "find_description"]

GPUS = ("T4", "A100", "H200")
NETS = ("tabular", "resnet18", "convnext_tiny")


def make_case(net: str, rows: int) -> tuple[nn.Module, DataModule]:
    """A model and its data."""
    shape = (20,) if net == "tabular" else (3, 64, 64)
    layers = nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3)
    model = nn.Sequential(*layers) if net == "tabular" else getattr(models, net)(num_classes=3)
    arrays = np.zeros((2 * rows, *shape), np.float32), np.arange(2 * rows) % 3
    return model, as_datamodule(DataModule.from_arrays(*arrays, val=None, batch_size=rows))


def predict(device: _core.Device, net: str, rows: int, precision: str) -> PlanReport:
    """The plan of a step on a device."""
    planner = Planner(*make_case(net, rows), quiet(precision=precision), device)
    try:
        info = planner.predict()
        return PlanReport(info, info.pop("text"), device)
    finally:
        planner.close()


def name_of(device: _core.Device) -> str:
    """The model of a GPU."""
    return device.name.partition(",")[0]


def find_description(gpu: _core.Device) -> _core.Device | None:
    """The description of a GPU of this model, if there is one."""
    described = (_core.Device("cuda", gpu=name) for name in GPUS)
    return next((device for device in described if name_of(device) == name_of(gpu)), None)


def compare(gpu: _core.Device, described: _core.Device, *, exact: bool) -> list[str]:
    """A line for each plan: what both take, or FAIL and what differs."""
    lines = []
    for net in NETS:
        for rows in (2, 7, 32):
            for precision in ("32-true", "bf16-mixed" if "sm_75" not in gpu.name else "16-mixed"):
                got, want = (predict(device, net, rows, precision) for device in (gpu, described))
                case = f"{net}, {rows} rows, {precision}"
                lines += check(case, got, want, exact=exact)
    return lines


def check(case: str, got: PlanReport, want: PlanReport, *, exact: bool) -> list[str]:
    """Like it, of one plan."""
    differ: dict[str, Any] = {}
    if exact:
        own = got.info | {"unasked_bytes": want.info["unasked_bytes"]}
        differ = {key: (own[key], of) for key, of in want.info.items() if own[key] != of}
        if got.text.partition(":")[2] != want.text.partition(":")[2]:
            differ["text"] = "kernels or places"
    elif got.peak_bytes > want.peak_bytes:
        differ["peak_bytes"] = got.peak_bytes, want.peak_bytes
    if differ:
        return [f"FAIL {case}: not as described: {differ}"]
    return [f"described: {case}, {got.peak_bytes} bytes, {want.peak_bytes} described"]


def main() -> int:
    """1 when something differs."""
    gpu = open_gpu()
    described = find_description(gpu)
    if described is None:
        print(f"described: none of {name_of(gpu)}, but of {', '.join(GPUS)}")
        return 0
    exact = os.environ.get("HOTLOOP_CUBLASLT_PATH") == "none"
    lines = compare(gpu, described, exact=exact)
    print("\n".join(lines))
    return 1 if any(line.startswith("FAIL") for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
