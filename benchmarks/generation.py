"""``make bench-kernels``, third part: how fast a small GPT generates, beside nanoGPT's way.

    python -m benchmarks.generation [--rounds 9] [--seconds 0.5] [--threads 1 2]

The model is that of the workload "gpt", 4 layers of 4 heads, 128 wide, for 64 letters, untrained
on both sides. PyTorch's side does as nanoGPT's ``generate``: the whole context once more for each
letter, logits of its last place, the 10 likeliest letters at temperature 0.8. hotloop's is
``hl.generate`` with the same choice, which keeps keys and values. Numbers are how many times as
fast hotloop is; a prompt of one letter is gone on from to the end of the context.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.duel import Side, compete_in, ratio_of
from benchmarks.kernels import rate_of
from benchmarks.report import (
    RESULTS,
    Row,
    describe_machine,
    format_table,
    read_load,
    write_results,
)
from benchmarks.worker import serve_cases
from benchmarks.workloads import find

__all__ = ["CASES"]

CASES = {"1 sequence": 1, "8 sequences": 8}
_TEMPERATURE, _TOP_K = 0.8, 10


def make_hotloop_step(name: str) -> Callable[[], int]:
    """A function that generates once and returns how many letters."""
    import hotloop as hl

    workload = find("gpt")
    model = hl.models.gpt(
        workload.classes, workload.length, n_layer=len(workload.hidden),
        n_head=workload.hidden[0], n_embd=workload.features,
    )  # fmt: skip
    prompt, n = np.zeros((CASES[name], 1), np.int64), workload.length - 1

    def step() -> int:
        hl.generate(model, prompt, n, temperature=_TEMPERATURE, top_k=_TOP_K, seed=0)
        return n * CASES[name]

    step()
    return step


def make_torch_step(name: str) -> Callable[[], int]:
    """The same by PyTorch."""
    import torch

    from benchmarks.models import make_model

    workload = find("gpt")
    model = make_model(torch.nn, workload).eval()
    n = workload.length - 1

    def step() -> int:
        ids = torch.zeros((CASES[name], 1), dtype=torch.int64)
        for _ in range(n):
            x = model.wte(ids) + model.wpe(torch.arange(ids.shape[1]))
            logits = model.lm_head(model.ln_f(model.blocks(x))[:, [-1]])[:, -1] / _TEMPERATURE
            least = torch.topk(logits, _TOP_K)[0][:, [-1]]
            logits[logits < least] = -torch.inf
            chosen = torch.multinomial(torch.softmax(logits, -1), 1)
            ids = torch.cat((ids, chosen), 1)
        return n * CASES[name]

    with torch.no_grad():
        step()
    return torch.no_grad()(step)


def serve(home: str, threads: int) -> None:
    """A side: slices of cases."""
    if home == "hotloop":
        serve_cases(make_hotloop_step)
        return
    import torch

    torch.set_num_threads(threads)
    serve_cases(make_torch_step, version=torch.__version__)


def measure(threads: int, options: argparse.Namespace) -> list[Row]:
    """The rows of one table."""
    names = [name for name in CASES if any(text in name for text in options.only)]
    worker = "benchmarks.generation"
    sides = [
        Side("hotloop", (worker, "--side", "hotloop"), {"HOTLOOP_NUM_THREADS": str(threads)}),
        Side(
            "torch", (worker, "--side", "torch", "--threads", str(threads)),
            {"OMP_NUM_THREADS": str(threads)},
        ),
    ]  # fmt: skip
    rows = []
    for name, slices in compete_in(names, sides, options.rounds, options.seconds):
        rates = {side: [rate_of(one, threads) for one in each] for side, each in slices.items()}
        ratios = {"torch": ratio_of(rates["hotloop"], rates["torch"])}
        raw = {"threads": threads, "letters_per_second": rates}
        rows.append(Row(name, ratios, {"torch": 1.0}, raw=raw))
    return rows


def main() -> int:
    """Measures, prints the tables, writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generation")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a slice")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""])
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/DATE-generation.json")
    parser.add_argument("--side", choices=["hotloop", "torch"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        serve(options.side, options.threads[0])
        return 0
    load, facts, rows = read_load(), describe_machine(), []
    for threads in options.threads:
        table = measure(threads, options)
        title = f"{threads} thread{'s' if threads > 1 else ''}"
        print(format_table(table, title, {"torch": "nanoGPT's way"}), end="\n\n", flush=True)
        rows += table
    facts["load_before"] = load
    facts["rows"] = [dataclasses.asdict(row) for row in rows]
    write_results(facts, options.out or RESULTS / f"{facts['date'][:10]}-generation.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
