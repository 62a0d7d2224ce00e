"""Whole epochs of classifiers of a time series, through its windows, beside PyTorch.

    python -m benchmarks.temporal [--rounds 3] [--threads 2] [--rows 110000] [--only TEXT ...]

An epoch is what users wait for: every window of the training rows once, shuffled, with class
weights, label smoothing and clipping, then loss and accuracy of the validation rows. hotloop's side
is ``hl.train`` on ``DataModule.from_windows``. PyTorch's default is a Dataset that slices the
series, a DataLoader (without workers and with two, of which the better counts) and a loop with
``loss.item()``; tuned, the loop gathers whole batches by index, has a fused optimizer and reads
its sums once an epoch. All are in float32. Numbers are how many times as fast hotloop is.

A slice is an epoch, and sides take turns. --only: cases whose name contains a text.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.__main__ import TUNED_MALLOC
from benchmarks.duel import Side, compete, ratio_of
from benchmarks.report import (
    RESULTS,
    Row,
    describe_machine,
    format_table,
    read_load,
    write_results,
)

__all__ = ["CASES", "LENGTH", "Case"]

COLUMNS = {"default": "default, DataLoader", "tuned": "tuned"}
LENGTH = 20


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and how it is trained.

    Attributes
    ----------
    workload : str
        Of benchmarks.workloads, whose model it has.
    batch : int
    lr, clip : float
    aim : float
        The least ratio to PyTorch's default.
    """

    workload: str
    batch: int
    lr: float
    clip: float
    aim: float


CASES = {
    "MLP": Case("mlp", 512, 1e-3, 1.0, 7.0),
    "LSTM": Case("lstm", 256, 5e-4, 0.5, 1.0),
    "Transformer": Case("transformer", 256, 3e-4, 0.5, 1.0),
}


def sides_of(name: str, options: argparse.Namespace) -> Iterator[Side]:
    """hotloop first."""
    shared = (name, "--rows", str(options.rows), "--threads", str(options.threads))
    worker = "benchmarks.worker_temporal"
    yield Side(
        "hotloop", (worker, "hotloop", *shared), {"HOTLOOP_NUM_THREADS": str(options.threads)}
    )
    environment = {"OMP_NUM_THREADS": str(options.threads)}
    for n in (0, 2):
        yield Side(f"default/{n}", (worker, "default", *shared, "--workers", str(n)), environment)
    yield Side("tuned", (worker, "tuned", *shared), {**environment, **TUNED_MALLOC})


def measure(name: str, options: argparse.Namespace) -> Row:
    """One row."""
    # A slice ends with the epoch that it began.
    slices, absent = compete(list(sides_of(name, options)), options.rounds, 1e-3)
    if absent:
        raise RuntimeError("; ".join(absent.values()))
    rates = {side: [one.rate for one in each] for side, each in slices.items()}
    ratios = {}
    for column in COLUMNS:
        rivals = [r for side, r in rates.items() if side.partition("/")[0] == column]
        ratios[column] = ratio_of(rates["hotloop"], max(rivals, key=statistics.median))
    windows = int(0.7 * options.rows) - LENGTH + 1
    note = f"an epoch of {windows:,} windows: {windows / statistics.median(rates['hotloop']):.3g} s"
    aims = {"default": CASES[name].aim}
    return Row(f"W2 epoch: {name}", ratios, aims, note, raw={"samples_per_second": rates})


def main() -> int:
    """Measures, prints the table, writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.temporal")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=110_000, help="of the series")
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""])
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/DATE-temporal.json")
    options = parser.parse_args()
    load, facts = read_load(), describe_machine()
    rows = []
    for name in CASES:
        if any(text in name for text in options.only):
            print(f"{name} ...", file=sys.stderr, flush=True)
            rows.append(measure(name, options))
    print(format_table(rows, f"{options.threads} threads", COLUMNS))
    facts["load_before"] = load
    facts["options"] = {k: getattr(options, k) for k in ("rounds", "threads", "rows")}
    facts["rows"] = [dataclasses.asdict(row) for row in rows]
    write_results(facts, options.out or RESULTS / f"{facts['date'][:10]}-temporal.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
