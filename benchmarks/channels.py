"""``make bench-kernels``, fourth part: statistics of channels alone, and a JSON file in results.

    python -m benchmarks.channels [--rounds 9] [--seconds 0.2] [--threads 1 2] [--only TEXT ...]

Count, extremes, sums and all products of the channels of float32 rows, less a shift, in float64:
one node of ours. PyTorch has two ways: the rows less the shift as float64, then their product with
their transpose, which is what ours computes, and the same in float32, without the digits; neither
takes the extremes. Numbers are how many times as fast hotloop is. A last column has its share of
the memory's speed: the time in which PyTorch adds up as many bytes as the rows have, by ours.

One thread's time is its processor time, that of several the clock's. Sides take a slice in turn.
--only: cases whose name contains a text.
"""

from __future__ import annotations

import argparse
import dataclasses
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

__all__ = ["CASES", "COLUMNS", "shape_of"]

CASES = ("C 50", "C 100", "C 61", "C 128", "C 27", "C 4")
COLUMNS = {"double": "PyTorch float64", "single": "PyTorch float32", "memory": "memory"}
_ELEMENTS = 25_000_000  # beyond any cache
_AIMS = {"double": 3.0, "single": 1.0}


def shape_of(case: str) -> tuple[int, int]:
    """Rows and channels of a case."""
    channels = int(case.removeprefix("C "))
    return _ELEMENTS // channels, channels


def sides_of(threads: int) -> Iterator[Side]:
    """hotloop first."""
    worker = "benchmarks.worker_channels"
    yield Side("hotloop", (worker, "hotloop"), {"HOTLOOP_NUM_THREADS": str(threads)})
    environment = {"OMP_NUM_THREADS": str(threads)}
    for name in COLUMNS:
        yield Side(name, (worker, name, "--threads", str(threads)), environment)


def measure(threads: int, options: argparse.Namespace) -> list[Row]:
    """The rows of one table."""
    cases = [case for case in CASES if any(text in case for text in options.only)]
    rows = []
    for case, slices in compete_in(cases, list(sides_of(threads)), options.rounds, options.seconds):
        rates = {side: [rate_of(one, threads) for one in each] for side, each in slices.items()}
        ratios = {side: ratio_of(rates["hotloop"], rates[side]) for side in COLUMNS}
        n_rows, channels = shape_of(case)
        gflops = max(rates["hotloop"]) * n_rows * channels * (channels + 1) / 1e9
        raw = {"threads": threads, "runs_per_second": rates, "gflops": gflops}
        rows.append(Row(f"{case}: {gflops:.0f} GFLOP/s", ratios, _AIMS, raw=raw))
    return rows


def main() -> int:
    """Measures, prints the tables, writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.channels")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a slice")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""])
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/DATE-channels.json")
    options = parser.parse_args()
    load = read_load()
    facts = describe_machine()
    rows = []
    for threads in options.threads:
        table = measure(threads, options)
        title = f"statistics of channels, {threads} thread{'s' if threads > 1 else ''}"
        print(format_table(table, title, COLUMNS), end="\n\n", flush=True)
        rows += table
    facts["load_before"] = load
    facts["options"] = {k: getattr(options, k) for k in ("rounds", "seconds")}
    facts["rows"] = [dataclasses.asdict(row) for row in rows]
    write_results(facts, options.out or RESULTS / f"{facts['date'][:10]}-channels.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
