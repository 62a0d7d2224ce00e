"""``make bench-kernels``: convolutions alone, against PyTorch's, and a JSON file in results.

    python -m benchmarks.kernels [--rounds 9] [--seconds 0.04] [--threads 1 2] [--only TEXT ...]

Forward, dx (the source's gradient) and dw (the weight's) of seven layers, in float32 and bfloat16,
ours as a plan runs them. Numbers are how many times as fast hotloop is as PyTorch with channels
last and with channels second. Its library, oneDNN, takes the tiles of a processor with AMX for
bfloat16; a further column shows it with vectors alone, which is what other processors have.

One thread's time is its processor time, that of several the clock's. A slice has one case; all
sides take theirs in turn. --only: cases whose name contains a text.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.duel import Side, Slice, compete_in, ratio_of
from benchmarks.layers import LAYERS, PASSES, PRECISIONS, Layer, name_of, parse_case
from benchmarks.report import (
    RESULTS,
    Row,
    describe_machine,
    format_table,
    read_load,
    write_results,
)

COLUMNS = {"nhwc": "NHWC", "nhwc_vectors": "NHWC without AMX", "nchw": "NCHW"}


def aim_of(layer: Layer, which: str) -> float:
    """Against the rivals with channels last, as in the issue that set it."""
    if which == "dw":
        return 4.0 if layer.is_depthwise else round(1 / 1.5, 2)
    return round(1 / 1.3, 2)


def has_amx() -> bool:
    """Whether the processor multiplies tiles."""
    try:
        return "amx_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def sides_of(threads: int, precision: str) -> Iterator[Side]:
    """hotloop first, then PyTorch in both orders of dims."""
    own = {"HOTLOOP_NUM_THREADS": str(threads)}
    yield Side("hotloop", ("benchmarks.worker_kernels_hotloop",), own)
    worker = "benchmarks.worker_kernels_torch"
    environment = {"OMP_NUM_THREADS": str(threads)}
    for name in ("nhwc", "nchw"):
        yield Side(name, (worker, name, "--threads", str(threads)), environment)
    if precision == "bfloat16" and has_amx():
        vectors = {**environment, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
        yield Side("nhwc_vectors", (worker, "nhwc", "--threads", str(threads)), vectors)


def rate_of(one: Slice, threads: int) -> float:
    """Runs a second: of one thread by its processor time, which other programs disturb less."""
    return one.rate / one.cores if threads == 1 else one.rate


def measure(threads: int, precision: str, options: argparse.Namespace) -> list[Row]:
    """The rows of one table."""
    cases = [
        case
        for layer, which in itertools.product(LAYERS, PASSES)
        if any(text in (case := name_of(layer, which, precision)) for text in options.only)
    ]
    sides = list(sides_of(threads, precision))
    rows = []
    for case, slices in compete_in(cases, sides, options.rounds, options.seconds):
        layer, which, _ = parse_case(case)
        rates = {name: [rate_of(one, threads) for one in each] for name, each in slices.items()}
        ratios = {name: ratio_of(rates["hotloop"], rates[name]) for name in list(rates)[1:]}
        aims = {"nhwc": aim_of(layer, which), "nhwc_vectors": aim_of(layer, which)}
        raw = {"threads": threads, "precision": precision, "runs_per_second": rates}
        rows.append(Row(f"{layer.name} {which}", ratios, aims, raw=raw))
    return rows


def main() -> int:
    """Measures, prints the tables, writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.04, help="of a slice")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""])
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/DATE-kernels.json")
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
    write_results(facts, options.out or RESULTS / f"{facts['date'][:10]}-kernels.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
