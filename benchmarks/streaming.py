"""Statistics of cubes that memory does not hold: how near to the storage's speed they are read.

    python -m benchmarks.streaming [--rounds 3] [--folder DIR] [--cubes 1000] [--epochs 0]

Writes 1000 cubes of 256 x 256 pixels and 100 channels (26 GB of .npy files; they are kept if a
folder is named, and taken from there if it has them). A round reads all of them with as many
threads as are fastest, into one buffer each; then MinMax, two PCAs and RX are fitted to them in a
process of its own, 32 cubes at a time, whose peak of resident memory is taken down. The system's
copies of the files are dropped before each. With ``--epochs N`` a last process trains as well. The
aims: 0.8 of the storage's speed, 4 GB of memory.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from benchmarks.duel import ROOT
from benchmarks.report import RESULTS, describe_machine, read_load, write_results

SIZE, CHANNELS, BATCH = 256, 100, 32
_BUFFER = 8 << 20  # bytes that are read at a time
_AIMS = {"share of the storage's speed": 0.8, "GB of memory": 4.0}


def write_cubes(folder: Path, n: int) -> list[Path]:
    """Those of the example, a file each."""
    sys.path.insert(0, str(ROOT / "examples" / "hyperspectral"))
    from pipelines import make_files

    paths: list[Path] = make_files(folder, n, SIZE, CHANNELS)
    return paths


def forget(paths: list[Path]) -> None:
    """Lets the system drop what it has of the files in memory."""
    os.sync()
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_rate(paths: list[Path], threads: int) -> float:
    """Bytes a second of reading all files, which is all that is done with them."""

    def read(part: list[Path]) -> int:
        buffer, total = memoryview(bytearray(_BUFFER)), 0
        for path in part:
            with path.open("rb", buffering=0) as file:
                while n := file.readinto(buffer):
                    total += n
        return total

    forget(paths)
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(read, [paths[i::threads] for i in range(threads)]))
    return total / (time.perf_counter() - began)


def fit(paths: list[Path], epochs: int) -> dict[str, Any]:
    """Statistics, and so many epochs, in a process of its own."""
    forget(paths)
    command = [
        sys.executable, "-m", "benchmarks.streaming", "--fit", str(paths[0].parent),
        "--epochs", str(epochs),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def serve(folder: str, epochs: int) -> None:
    """What that process does."""
    import resource

    import hotloop as hl
    from hotloop import nn, stats

    model = nn.Sequential(OrderedDict(
        minmax=stats.MinMaxNormalizer(), pca1=stats.TrainablePCA(20), pca2=stats.TrainablePCA(10),
        rx=stats.RXGlobal(),
    ))  # fmt: skip
    val = 0.2 if epochs else None
    data = hl.DataModule.from_cubes(f"{folder}/*.npy", val=val, batch_size=BATCH)
    began = time.perf_counter()
    result = hl.train(
        model, data, max_epochs=epochs, accelerator="cpu", precision="32-true", optimizer="adam",
        lr=1e-3, enable_progress_bar=False, enable_model_summary=False, memory_limit="3.5 GB",
        unfreeze=["pca1", "pca2"] if epochs else None,
        losses=[(stats.OrthogonalityLoss(name), 0.1) for name in ("pca1", "pca2")],
        metrics=[stats.ExplainedVariance("pca1")],
    )  # fmt: skip
    print(json.dumps({
        "seconds": time.perf_counter() - began,
        "timings": dict(result.timings),
        "history": {name: list(map(float, values)) for name, values in result.history.items()},
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }))  # fmt: skip


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Rounds of both, and the training."""
    print(f"writing {options.cubes} cubes to {folder}", flush=True)
    paths = write_cubes(folder, options.cubes)
    n_bytes = sum(path.stat().st_size for path in paths)
    part = paths[: max(1, len(paths) // 10)]
    threads = max((1, 2, 4, 8), key=lambda n: read_rate(part, n))
    rounds = []
    for i in range(options.rounds):
        read = read_rate(paths, threads)
        found = fit(paths, 0)
        rate = n_bytes / found["timings"]["statistics"]
        rounds.append({"read": read, "fit": rate, "share": rate / read, **found})
        print(
            f"round {i + 1}: read {read / 1e9:.2f} GB/s by {threads} threads, fitted "
            f"{rate / 1e9:.2f} GB/s, {rate / read:.2f}; peak {found['peak_bytes'] / 1e9:.2f} GB",
            flush=True,
        )
    trained = fit(paths, options.epochs) if options.epochs else None
    return {"bytes": n_bytes, "threads": threads, "rounds": rounds, "trained": trained}


def main() -> int:
    """Measures, prints, writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streaming")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--cubes", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/DATE-streaming.json")
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fit:
        serve(options.fit, options.epochs)
        return 0
    load, facts = read_load(), describe_machine()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        found = measure(options.folder, options)
    else:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder), options)
    share = statistics.median(one["share"] for one in found["rounds"])
    peak = max(one["peak_bytes"] for one in found["rounds"]) / 1e9
    print(f"{share:.2f} of the storage's speed [0.8], {peak:.2f} GB of memory [4]")
    if found["trained"] is not None:
        print(f"{options.epochs} epochs: {found['trained']}")
    facts |= {"load_before": load, "aims": _AIMS, **found}
    if options.cubes >= 1000 or options.out:
        write_results(facts, options.out or RESULTS / f"{facts['date'][:10]}-streaming.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
