"""Whole epochs beside PyTorch: what benchmarks of them have in common.

hotloop's epochs are those of one training. PyTorch's default has a DataLoader, of which the better
of none and of two worker processes counts, its tuned side none.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from benchmarks.__main__ import TUNED_MALLOC
from benchmarks.duel import Ratio, Side, compete, ratio_of
from benchmarks.report import (
    RESULTS,
    Row,
    describe_machine,
    format_table,
    read_load,
    write_results,
)
from benchmarks.worker import Slices

__all__ = ["COLUMNS", "measure", "report", "sides_of", "train_epochs"]

COLUMNS = {"default": "default, DataLoader", "tuned": "tuned"}


def sides_of(
    worker: str, shared: tuple[str, ...], threads: int, images: Mapping[str, str] | None = None
) -> Iterator[Side]:
    """hotloop first; all get these arguments, and variables that say where images are."""
    images = images or {}
    shared = (*shared, "--threads", str(threads))
    own = {**images, "HOTLOOP_NUM_THREADS": str(threads)}
    yield Side("hotloop", (worker, "hotloop", *shared), own)
    environment = {**images, "OMP_NUM_THREADS": str(threads)}
    for n in (0, 2):
        yield Side(f"default/{n}", (worker, "default", *shared, "--workers", str(n)), environment)
    yield Side("tuned", (worker, "tuned", *shared), {**environment, **TUNED_MALLOC})


def measure(sides: Iterator[Side], rounds: int) -> tuple[dict[str, list[float]], dict[str, Ratio]]:
    """Samples a second of each side by slices, and hotloop's by those of each column."""
    # A slice ends with the epoch that it began.
    slices, absent = compete(list(sides), rounds, 1e-3)
    if absent:
        raise RuntimeError("; ".join(absent.values()))
    rates = {side: [one.rate for one in each] for side, each in slices.items()}
    ratios = {}
    for column in COLUMNS:
        rivals = [r for side, r in rates.items() if side.partition("/")[0] == column]
        ratios[column] = ratio_of(rates["hotloop"], max(rivals, key=statistics.median))
    return rates, ratios


def report(
    cases: Iterable[str],
    measure_case: Callable[[str], Row],
    options: argparse.Namespace,
    suffix: str,
    fields: tuple[str, ...],
) -> int:
    """Measures the cases that are asked for; each is in table and file as soon as it ends."""
    load, facts = read_load(), describe_machine()
    facts |= {"load_before": load, "options": {name: getattr(options, name) for name in fields}}
    rows: list[Row] = []
    for name in cases:
        if not any(text in name for text in options.only):
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append(measure_case(name))
        print(
            format_table(rows[-1:], f"{options.threads} threads", COLUMNS), end="\n\n", flush=True
        )
        facts["rows"] = [dataclasses.asdict(row) for row in rows]
        write_results(facts, options.out or RESULTS / f"{facts['date'][:10]}-{suffix}.json")
    return 0


def train_epochs(make: Callable[[], Any], data: Any, **fields: Any) -> None:
    """hotloop's side: trains epoch by epoch until the parent has enough."""
    import hotloop as hl

    slices = Slices(version=hl.__version__)

    class Epochs:
        """Counts epochs; stops training when no slice is wanted."""

        wanted = True

        def on_epoch_end(self, run: Any) -> None:
            self.wanted = slices.done(len(data))
            if not self.wanted:
                run.stop("completed")

    epochs = Epochs()
    while epochs.wanted:
        hl.train(
            make(), data, max_epochs=4_000, decay_norm_and_bias=True, scheduler="constant",
            warmup=0, metrics=["accuracy"], accelerator="cpu", restore_best=False, logger=None,
            enable_progress_bar=False, enable_checkpointing=False, callbacks=(epochs,), **fields,
        )  # fmt: skip
