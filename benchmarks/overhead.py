"""What the trainer costs beside its steps: an epoch with everything on beside the bare loop.

    python -m benchmarks.overhead [--rounds 7] [--out FILE]

The bare loop is the plan's steps of an epoch, run from C in one call, of the same process and the
same state. Beside it an epoch of ``train`` with its defaults: log, checkpoints (their folder is
asked for, so that there are some), progress as a log file has it. Numbers are of the processor time
of the training thread, which other programs do not change much: how many times that of the bare
loop an epoch takes, how many microseconds more a step, and how many times that of a run without
checkpoints one takes that saves one every 100 steps. One thread computes; another writes files.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, describe_machine, read_load, write_results

_AIMS = {"epoch": 1.05, "step": 2.0, "checkpoint": 1.03}
_EPOCHS = {"mlp": 12, "tiny": 60}


class _Bare:
    """A callback that runs epochs without the trainer, before the first, and then ends the run."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.seconds: list[float] = []

    def on_train_begin(self, run: Any) -> None:
        """Times them."""
        planner = run._planner
        steps = sum(count for _, _, count in planner.train_plans)
        for epoch in range(self.epochs):
            planner.runner.seek(epoch, 0, planner.order(epoch))
            began, left = time.thread_time(), steps
            while left:
                _, ran, _ = planner.runner.run(left, 1e9)
                left -= ran
            self.seconds.append(time.thread_time() - began)
        run.stop("completed")


class _Clock:
    """A callback that notes when epochs end, and what the thread took by then."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.processor = 0.0

    def on_train_begin(self, run: Any) -> None:
        """The run's own time begins."""
        self.ends.append(time.thread_time())

    def on_epoch_end(self, run: Any) -> None:
        """One more."""
        self.ends.append(time.thread_time())

    def on_train_end(self, run: Any) -> None:
        """With the last save."""
        self.processor = time.thread_time() - self.ends[0]


def train(workload: Any, callback: Any, **fields: Any) -> None:
    """With defaults, but for what a workload says; lines go into the void."""
    import hotloop as hl
    from hotloop import nn

    from benchmarks.models import make_model
    from benchmarks.workloads import make_arrays

    x, y = make_arrays(workload)
    data = hl.DataModule.from_arrays(x, y, val=None, batch_size=workload.batch)
    hl.manual_seed(0)
    with contextlib.redirect_stderr(io.StringIO()):
        hl.train(
            make_model(nn, workload), data, optimizer=workload.optimizer, lr=1e-3,
            precision="32-true", callbacks=(callback,), **fields,
        )  # fmt: skip


def epoch_of(workload: Any, folder: str) -> tuple[float, float]:
    """Seconds of an epoch, bare and by the trainer: medians of a run's."""
    bare, clock = _Bare(_EPOCHS[workload.name]), _Clock()
    train(workload, bare, max_epochs=1, logger=None, enable_checkpointing=False)
    train(workload, clock, max_epochs=_EPOCHS[workload.name], output_dir=folder)
    own = [end - begin for begin, end in zip(clock.ends[1:], clock.ends[2:], strict=False)]
    return statistics.median(bare.seconds[1:]), statistics.median(own)


def saving_of(workload: Any, folder: str) -> tuple[float, float]:
    """Processor time of the training thread, without checkpoints and with one every 100 steps."""
    found = []
    for fields in ({"enable_checkpointing": False}, {"save_every": "100 steps"}):
        clock = _Clock()
        train(workload, clock, max_epochs=10, output_dir=folder, save_top_k=0, **fields)
        found.append(clock.processor)
    return found[0], found[1]


def main() -> int:
    """Measures, prints, writes the file."""
    from benchmarks.workloads import find

    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/DATE-overhead.json")
    options = parser.parse_args()
    os.environ["HOTLOOP_NUM_THREADS"] = "1"
    load, facts = read_load(), describe_machine()
    values: dict[str, list[float]] = {"epoch": [], "step": [], "checkpoint": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            bare, own = epoch_of(find("mlp"), folder)
            values["epoch"].append(own / bare)
            tiny = find("tiny")
            bare, own = epoch_of(tiny, folder)
            values["step"].append(1e6 * (own - bare) / (tiny.rows // tiny.batch))
            without, saving = saving_of(find("mlp"), folder)
            values["checkpoint"].append(saving / without)
    titles = {
        "epoch": "an epoch of W2's MLP by the bare loop's",
        "step": "microseconds a step of 20-32-16-2",
        "checkpoint": "the training thread's processor time, a checkpoint every 100 steps",
    }
    rows = []
    for name, found in values.items():
        median = statistics.median(found)
        print(
            f"{titles[name]}: {median:.3f} ({min(found):.3f} to {max(found):.3f}) [{_AIMS[name]}]"
        )
        rows.append({"name": name, "median": median, "aim": _AIMS[name], "values": found})
    facts["load_before"] = load
    facts["options"] = {"rounds": options.rounds, "threads": 1}
    facts["rows"] = rows
    write_results(facts, options.out or RESULTS / f"{facts['date'][:10]}-overhead.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
