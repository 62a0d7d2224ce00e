"""Attention alone on a GPU, forward and backward, beside PyTorch's, and a JSON file.

    python -m benchmarks.attention --out FILE [--rounds 5] [--smoke]

Shapes are those of GPT (6 heads of 64, contexts of 256 and 1024), BERT and ViT, in the 16-bit type
that the GPU multiplies, with dropout and without. Ours is the time of the node in a step, between
two events, as :func:`hotloop.profile` takes it: cuDNN's plan or our own kernel, whichever was
chosen. PyTorch's is `scaled_dot_product_attention` by its flash kernels between two events, many
calls in a row. Numbers are how many times as fast hotloop is; sides take turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import hotloop as hl
import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.duel import ratio_of
from benchmarks.gpu import time_calls
from benchmarks.report import Row, read_load

_AIM = round(1 / 1.2, 2)  # of the issue that set it


class Case(NamedTuple):
    """A batch of heads."""

    name: str
    batch: int
    heads: int
    length: int
    width: int
    is_causal: bool


CASES = [
    Case("GPT, context 256", 64, 6, 256, 64, True),
    Case("GPT, context 1024", 12, 12, 1024, 64, True),
    Case("BERT", 32, 12, 512, 64, False),
    Case("ViT-S/16", 128, 6, 197, 64, False),
]
SMOKE = [Case("in miniature", 2, 2, 40, 16, True)]


class Attending(hl.nn.Module):
    """Heads that come out of a projection, so that all three have gradients."""

    def __init__(self, case: Case, dropout: float) -> None:
        super().__init__()
        self.case, self.dropout = case, dropout
        self.project = hl.nn.Linear(8, 3 * case.heads * case.width)

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        case = self.case
        heads = self.project(x).reshape(-1, case.length, 3, case.heads, case.width)
        q, k, v = (heads[:, :, i].permute(0, 2, 1, 3) for i in range(3))
        out = hl.nn.functional.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout, is_causal=case.is_causal
        )
        return out.mean((1, 2))[:, :2]


def time_ours(case: Case, dropout: float, precision: str) -> dict[str, tuple[float, str]]:
    """Seconds and kernel of the forward and of the backward node."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((case.batch, case.length, 8), dtype=np.float32)
    data = hl.DataModule.from_arrays(x, np.arange(case.batch) % 2, val=None, batch_size=case.batch)
    found = hl.profile(
        Attending(case, dropout), data, peaks={}, accelerator="gpu", precision=precision
    )
    return {
        which: next((n.seconds, n.kernel) for n in found.nodes if n.op == op)
        for which, op in (("forward", "attention"), ("backward", "attention_grad"))
    }


def time_theirs(case: Case, dropout: float, precision: str, device: str) -> dict[str, float]:
    """The same of PyTorch."""
    dtype = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}[precision]
    shape = (case.batch, case.heads, case.length, case.width)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in "qkv")
    gain = torch.randn(shape, device=device, dtype=dtype)

    def forward() -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=case.is_causal)

    def backward(out: torch.Tensor) -> None:
        torch.autograd.grad(out, (q, k, v), gain, retain_graph=True)

    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(kernels, set_priority=True):
        out = forward()
        return {
            "forward": time_calls(forward, device),
            "backward": time_calls(lambda: backward(out), device),
        }


def measure(case: Case, dropout: float, precision: str, rounds: int) -> list[Row]:
    """The rows of a case: forward, backward."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ours: dict[str, list[float]] = {"forward": [], "backward": []}
    theirs: dict[str, list[float]] = {"forward": [], "backward": []}
    kernels = {}
    for _ in range(rounds):
        for which, (seconds, kernel) in time_ours(case, dropout, precision).items():
            ours[which].append(1 / seconds)
            kernels[which] = kernel
        for which, seconds in time_theirs(case, dropout, precision, device).items():
            theirs[which].append(1 / seconds)
    return [
        Row(
            f"{case.name}{f', dropout {dropout:g}' if dropout else ''}, {which}",
            {"flash": ratio_of(ours[which], theirs[which])},
            {"flash": _AIM},
            f"{kernels[which]}, {precision}",
            {"runs_per_second": {"hotloop": ours[which], "flash": theirs[which]}},
        )
        for which in ours
    ]


def main() -> None:
    """Measures, and writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="in miniature")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    load = read_load()
    is_new = not torch.cuda.is_available() or torch.cuda.get_device_capability() >= (8, 0)
    precision = "bf16-mixed" if is_new else "16-mixed"
    rows = []
    for case in SMOKE if options.smoke else CASES:
        for dropout in (0.0, 0.2):
            rows += measure(case, dropout, precision, options.rounds)
            print(
                *(f"{row.title}: {row.ratios['flash'].median:.2f}" for row in rows[-2:]), sep="\n"
            )
    facts = {
        "rows": [dataclasses.asdict(row) for row in rows],
        "smoke": options.smoke,
        "options": {"rounds": options.rounds},
        "load_before": load,
    }
    options.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
