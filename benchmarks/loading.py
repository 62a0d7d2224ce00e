"""How fast batches are made, against PyTorch's DataLoader doing the same work.

    python -m benchmarks.loading [--rounds 5] [--seconds 1] [--workers 0 1 2] [--only TEXT ...]

A case is data and what is done to it, written once for both libraries: windows of a series, and
JPEG files that are decoded, augmented and normalised. Nothing is trained. PyTorch's side is a
Dataset and a DataLoader as a good engineer writes them, with Pillow and NumPy for images, once for
each number of workers; its column is the best of these in each round. Rows of an array are a
workload of ``make bench`` ("feeding"), frames of a table those of ``benchmarks.tables``.

Images are those of $HOTLOOP_DATA; the larger ones are made of them. Sides take a slice in turn.
--only: cases whose name contains a text.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.duel import Side, Slice, compete_in, ratio_of
from benchmarks.report import (
    RESULTS,
    Row,
    describe_machine,
    format_table,
    read_load,
    write_results,
)

__all__ = ["CASES", "Case", "find_case", "make_images"]

COLUMNS = {"loader": "DataLoader"}
_FILES = 10_000  # JPEGs of 32 pixels
_LARGE = 400  # of 500


@dataclasses.dataclass(frozen=True)
class Case:
    """Batches of some data.

    Attributes
    ----------
    name : str
    batch : int
    aim : float
        The least ratio.
    needs_images : bool
    """

    name: str
    batch: int
    aim: float
    needs_images: bool = False


CASES = (
    Case("windows 20 x 29", 256, 20),
    Case("CIFAR JPEGs", 128, 10, True),
    Case("JPEGs of 500 pixels", 32, 2.5, True),
)


def find_case(name: str) -> Case:
    """The case of a name."""
    return next(case for case in CASES if case.name == name)


def make_images(folder: Path, n_small: int = _FILES, n_large: int = _LARGE) -> None:
    """Files in folders by class: small ones as they come, large ones made of some of them."""
    archive = Path(os.environ["HOTLOOP_DATA"]) / "cifar10-jpeg.tar.gz"
    with tarfile.open(archive) as tar:
        members = [m for m in tar if m.isfile() and "/train/" in f"/{m.name}"]
        stride = max(1, len(members) // n_small)
        for i, member in enumerate(members[::stride][:n_small]):
            kind, name = Path(member.name).parts[-2:]
            small, large = folder / "small" / kind / name, folder / "large" / kind / name
            small.parent.mkdir(parents=True, exist_ok=True)
            stream = tar.extractfile(member)
            assert stream is not None  # a file
            small.write_bytes(stream.read())
            if n_large and i % (n_small // n_large) == 0:
                from PIL import Image

                large.parent.mkdir(parents=True, exist_ok=True)
                with Image.open(small) as image:
                    image.convert("RGB").resize((500, 500), 3).save(large, quality=90)


def sides_of(workers: Sequence[int], folder: str) -> Iterator[Side]:
    """hotloop first."""
    worker = "benchmarks.worker_loading"
    environment = {"HOTLOOP_BENCH_IMAGES": folder}
    yield Side("hotloop", (worker, "hotloop"), environment)
    for n in workers:
        yield Side(f"loader {n}", (worker, "loader", "--workers", str(n)), environment)


def best_of(slices: dict[str, list[Slice]]) -> list[float]:
    """The rate of the best DataLoader in each round."""
    loaders = [[one.rate for one in each] for name, each in slices.items() if "loader" in name]
    return [max(rates) for rates in zip(*loaders, strict=True)]


def measure(options: argparse.Namespace, folder: str) -> list[Row]:
    """The rows of the table."""
    names = [case.name for case in CASES if any(text in case.name for text in options.only)]
    sides = list(sides_of(options.workers, folder))
    rows = []
    for name, slices in compete_in(names, sides, options.rounds, options.seconds):
        case = find_case(name)
        ours = [one.rate for one in slices["hotloop"]]
        ratios = {"loader": ratio_of(ours, best_of(slices))}
        raw = {side: [dataclasses.asdict(one) for one in each] for side, each in slices.items()}
        cores = max(slices["hotloop"], key=lambda one: one.rate).cores
        note = f"{max(ours):,.0f} a second, {max(ours) / max(cores, 0.1):,.0f} a core"
        rows.append(Row(name, ratios, {"loader": case.aim}, note, raw))
    return rows


def main() -> int:
    """Measures, prints the table, writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loading")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a slice")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""])
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/DATE-loading.json")
    options = parser.parse_args()
    load, facts = read_load(), describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        if any(c.needs_images and any(text in c.name for text in options.only) for c in CASES):
            make_images(Path(folder))
        rows = measure(options, folder)
    print(format_table(rows, "batches", COLUMNS))
    facts["load_before"] = load
    facts["options"] = {k: getattr(options, k) for k in ("rounds", "seconds", "workers")}
    facts["rows"] = [dataclasses.asdict(row) for row in rows]
    write_results(facts, options.out or RESULTS / f"{facts['date'][:10]}-loading.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
