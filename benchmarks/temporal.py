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
from pathlib import Path

from benchmarks.epochs import measure, report, sides_of
from benchmarks.report import Row

__all__ = ["CASES", "LENGTH", "Case"]

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
    aims : dict of str to float
        The least ratio by column.
    """

    workload: str
    batch: int
    lr: float
    clip: float
    aims: dict[str, float]


CASES = {
    "MLP": Case("mlp", 512, 1e-3, 1.0, {"default": 8.0, "tuned": 5.0}),
    "LSTM": Case("lstm", 256, 5e-4, 0.5, {"default": 2.5, "tuned": 1.4}),
    "Transformer": Case("transformer", 256, 3e-4, 0.5, {"default": 4.0, "tuned": 3.0}),
}


def measure_case(name: str, options: argparse.Namespace) -> Row:
    """One row."""
    shared = (name, "--rows", str(options.rows))
    sides = sides_of("benchmarks.worker_temporal", shared, options.threads)
    rates, ratios = measure(sides, options.rounds)
    windows = int(0.7 * options.rows) - LENGTH + 1
    note = f"an epoch of {windows:,} windows: {windows / statistics.median(rates['hotloop']):.3g} s"
    raw = {"samples_per_second": rates}
    return Row(f"W2 epoch: {name}", ratios, CASES[name].aims, note, raw=raw)


def main() -> int:
    """Measures, prints the table, writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.temporal")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=110_000, help="of the series")
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""])
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/DATE-temporal.json")
    options = parser.parse_args()
    shown = ("rounds", "threads", "rows")
    return report(CASES, lambda name: measure_case(name, options), options, "temporal", shown)


if __name__ == "__main__":
    sys.exit(main())
