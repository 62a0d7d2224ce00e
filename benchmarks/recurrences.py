"""Recurrent layers on a GPU, forward and backward, beside PyTorch's, and a JSON file.

    python -m benchmarks.recurrences --out FILE [--rounds 3] [--smoke]

What a step of time takes: the difference between sequences of 32 and of 64 steps, by 32, of a whole
training step as :func:`hotloop.profile` takes it, and of PyTorch's calls of cuDNN between two
events. Numbers are how many times as fast hotloop is; sides take turns. A row says which kernel it
was, or "step by step", and microseconds of a step of time: what the choice between the two in
kernels/cuda/recurrence.c rests on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from pathlib import Path
from typing import NamedTuple

import hotloop as hl
import numpy as np
import torch

from benchmarks.duel import ratio_of
from benchmarks.gpu import time_calls
from benchmarks.report import Row, read_load

_STEPS = 32
_FEATURES = 32
_AIM = round(1 / 1.2, 2)  # that of the CPU's layers


class Case(NamedTuple):
    """A layer and a batch."""

    kind: str
    rows: int
    units: int


CASES = [
    *(Case("LSTM", 64, units) for units in (64, 128, 256, 400, 512)),
    *(Case("LSTM", 1024, units) for units in (128, 256)),
    *(Case("GRU", 64, units) for units in (128, 256)),
]
SMOKE = [Case("LSTM", 8, 16)]


class Last(hl.nn.Module):
    """Two classes of the last state."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.layer = getattr(hl.nn, case.kind)(_FEATURES, case.units, batch_first=True)
        self.head = hl.nn.Linear(case.units, 2)

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        return self.head(self.layer(x)[0][:, -1])


def time_ours(case: Case, precision: str, steps: int) -> tuple[float, str]:
    """Seconds of a training step, and the kernel's name."""
    x = np.random.default_rng(0).standard_normal((case.rows, steps, _FEATURES), dtype=np.float32)
    data = hl.DataModule.from_arrays(x, np.arange(case.rows) % 2, val=None, batch_size=case.rows)
    found = hl.profile(Last(case), data, peaks={}, accelerator="gpu", precision=precision)
    ops = ("recurrence", "recurrent_layer")
    kernels = (node.kernel for node in found.nodes if node.op in ops)
    return found.step_seconds, next(kernels, "step by step")


def time_theirs(case: Case, precision: str, steps: int, device: str) -> float:
    """Seconds of PyTorch's layer, forward and backward."""
    dtype = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision)
    layer = getattr(torch.nn, case.kind)(_FEATURES, case.units, batch_first=True).to(device)
    x = torch.randn(case.rows, steps, _FEATURES, device=device)

    def step() -> None:
        with torch.autocast(device, dtype, enabled=dtype is not None):
            out = layer(x)[0]
        out.float().mean().backward()

    return time_calls(step, device)


def find_rate(short: float, long: float) -> float:
    """Steps of time a second."""
    return _STEPS / max(long - short, 1e-9)


def measure(case: Case, precision: str, rounds: int) -> Row:
    """The row of a case."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ours, theirs, kernel = [], [], ""
    for _ in range(rounds):
        (short, _), (long, kernel) = (time_ours(case, precision, n) for n in (_STEPS, 2 * _STEPS))
        ours.append(find_rate(short, long))
        theirs.append(
            find_rate(*(time_theirs(case, precision, n, device) for n in (_STEPS, 2 * _STEPS)))
        )
    return Row(
        f"{case.kind}, {case.rows} rows, {case.units} units, {precision}",
        {"cudnn": ratio_of(ours, theirs)},
        {"cudnn": _AIM},
        f"{kernel}, {1e6 / statistics.median(ours):.2f} us a step of time",
        {"steps_per_second": {"hotloop": ours, "cudnn": theirs}},
    )


def main() -> None:
    """Measures, and writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recurrences")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--smoke", action="store_true", help="in miniature")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    load = read_load()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    is_new = not torch.cuda.is_available() or torch.cuda.get_device_capability() >= (8, 0)
    rows = []
    for case in SMOKE if options.smoke else CASES:
        for precision in ("32-true", "bf16-mixed" if is_new else "16-mixed"):
            rows.append(measure(case, precision, options.rounds))
            print(f"{rows[-1].title}: {rows[-1].ratios['cudnn'].median:.2f} ({rows[-1].note})")
    facts = {
        "rows": [dataclasses.asdict(row) for row in rows],
        "smoke": options.smoke,
        "options": {"rounds": options.rounds},
        "load_before": load,
    }
    options.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
