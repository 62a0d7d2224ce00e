"""``make bench-kernels``, second part: layers of sequences alone, against PyTorch's.

    python -m benchmarks.sequences [--rounds 9] [--seconds 0.1] [--threads 1 2] [--only TEXT ...]

A case is a layer or a function with its inputs, forward and backward, written once for both
libraries, in float32 and under mixed precision in bfloat16. Numbers are how many times as fast
hotloop is. The aim of recurrent layers and attention is 1/1.2; the others move memory, as PyTorch's
do, so their aim is to be no slower. A second column has their share of the memory's speed: the time
that adding two large arrays takes for as many bytes as the case's inputs, the numbers of its loss
and its gradients have, each moved once, by the case's time. What is in between, such as a result
that the gradient reads again, is not counted, so that the share cannot reach 1.

One thread's time is its processor time, that of several the clock's. Sides take a slice in turn.
--only: cases whose name contains a text.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

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

__all__ = ["CASES", "COLUMNS", "PRECISIONS", "Case", "parse_case"]

PRECISIONS = ("float32", "bfloat16")
COLUMNS = {"torch": "PyTorch", "memory": "memory"}
_NEAR, _LEVEL = round(1 / 1.2, 2), 1.0


@dataclasses.dataclass(frozen=True)
class Case:
    """A call with gradients.

    Attributes
    ----------
    name : str
    call : str
        Of ``x``, and ``q``, ``k``, ``v`` of the same shape, with ``nn``, ``F`` and ``layer``.
    shape : tuple of int
        Of the inputs.
    layer : str
        What ``layer`` is; "": nothing.
    rows : int
        Where inputs are integers, below which; 0: they are floats.
    aim : float
        The least ratio.
    moved : int
        Bytes that have to be moved, where that is what takes the time.
    """

    name: str
    call: str
    shape: tuple[int, ...]
    layer: str = ""
    rows: int = 0
    aim: float = _NEAR
    moved: int = 0


def _bytes(*elements: int) -> int:
    """Of so many floats."""
    return 4 * sum(elements)


_ATTENTION = "F.scaled_dot_product_attention(q, k, v{})"
CASES = (
    Case("LSTM 29>128, 256x20", "layer(x)[0]", (256, 20, 29), "nn.LSTM(29, 128, batch_first=True)"),
    Case(
        "LSTM 256>128 both ways, 256x20", "layer(x)[0]", (256, 20, 256),
        "nn.LSTM(256, 128, batch_first=True, bidirectional=True)",
    ),
    Case(
        "LSTM 512>512, 64x50", "layer(x)[0]", (64, 50, 512),
        "nn.LSTM(512, 512, batch_first=True)",
    ),
    Case(
        "GRU 256>128, 256x20", "layer(x)[0]", (256, 20, 256),
        "nn.GRU(256, 128, batch_first=True)",
    ),
    Case("attention 256x8x20x16", _ATTENTION.format(""), (256, 8, 20, 16)),
    Case("attention 12x4x64x32 causal", _ATTENTION.format(", is_causal=True"), (12, 4, 64, 32)),
    Case("attention 8x6x256x64 causal", _ATTENTION.format(", is_causal=True"), (8, 6, 256, 64)),
    Case("attention 2x12x1024x64", _ATTENTION.format(""), (2, 12, 1024, 64)),
    Case(
        "softmax 4096x1000", "F.softmax(x, -1)", (4096, 1000), aim=_LEVEL,
        moved=_bytes(3 * 4096 * 1000),
    ),
    Case(
        "layer norm 8192x768", "layer(x)", (8192, 768), "nn.LayerNorm(768)", aim=_LEVEL,
        moved=_bytes(3 * 8192 * 768),
    ),
    Case(
        "GELU 8192x1024", "F.gelu(x)", (8192, 1024), aim=_LEVEL, moved=_bytes(3 * 8192 * 1024),
    ),
    Case(
        "embedding 50257x768, 8192 rows", "layer(x)", (8192,), "nn.Embedding(50257, 768)", 50257,
        _LEVEL, _bytes(2 * 8192 * 768, 50257 * 768),
    ),
    Case(
        "embedding 50257x768, 8192 rows of 40", "layer(x)", (8192,), "nn.Embedding(50257, 768)",
        40, _LEVEL, _bytes(2 * 8192 * 768, 50257 * 768),
    ),
)  # fmt: skip


def parse_case(name: str) -> tuple[Case, str]:
    """(case, precision) of a name with both."""
    case, precision = name.split("|")
    return next(one for one in CASES if one.name == case), precision


def sides_of(threads: int) -> Iterator[Side]:
    """hotloop first."""
    worker = "benchmarks.worker_sequences"
    yield Side("hotloop", (worker, "hotloop"), {"HOTLOOP_NUM_THREADS": str(threads)})
    environment = {"OMP_NUM_THREADS": str(threads)}
    for name in ("torch", "memory"):
        yield Side(name, (worker, name, "--threads", str(threads)), environment)


def measure(threads: int, precision: str, options: argparse.Namespace) -> list[Row]:
    """The rows of one table."""
    names = [
        f"{case.name}|{precision}"
        for case in CASES
        if any(text in case.name for text in options.only)
    ]
    rows = []
    for name, slices in compete_in(names, list(sides_of(threads)), options.rounds, options.seconds):
        case, _ = parse_case(name)
        rates = {side: [rate_of(one, threads) for one in each] for side, each in slices.items()}
        shown = ("torch", "memory") if case.moved else ("torch",)
        ratios = {side: ratio_of(rates["hotloop"], rates[side]) for side in shown}
        raw = {"threads": threads, "precision": precision, "runs_per_second": rates}
        rows.append(Row(case.name, ratios, {"torch": case.aim}, raw=raw))
    return rows


def main() -> int:
    """Measures, prints the tables, writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sequences")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a slice")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""])
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/DATE-sequences.json")
    options = parser.parse_args()
    load = read_load()
    facts = describe_machine()
    rows = []
    for precision, threads in itertools.product(options.precision, options.threads):
        table = measure(threads, precision, options)
        title = f"{precision}, {threads} thread{'s' if threads > 1 else ''}"
        print(format_table(table, title, COLUMNS), end="\n\n", flush=True)
        rows += table
    facts["load_before"] = load
    facts["options"] = {k: getattr(options, k) for k in ("rounds", "seconds")}
    facts["rows"] = [dataclasses.asdict(row) for row in rows]
    write_results(facts, options.out or RESULTS / f"{facts['date'][:10]}-sequences.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
