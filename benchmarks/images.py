"""Whole epochs of ResNet-18 on JPEG files, loader and augmentation included, beside PyTorch.

    python -m benchmarks.images [--rounds 3] [--threads 2] [--images 4000] [--only TEXT ...]

An epoch is what users wait for: nine tenths of the files once, shuffled, decoded, cut out of a
border at random, mirrored and normalised, each trained on; then loss and accuracy of the last
tenth. hotloop's side is ``hl.train`` on ``DataModule.from_image_folder``, which decodes every file
anew. PyTorch's default is a Dataset with Pillow and NumPy, a DataLoader (without workers and with
two, of which the better counts) and a loop with ``loss.item()``; tuned, images are decoded once and
kept, batches are augmented as a whole, images have channels last, the optimizer is fused and sums
are read once an epoch. Numbers are how many times as fast hotloop is, in the same precision.

Files are the CIFAR JPEGs of $HOTLOOP_DATA. A slice is an epoch, and sides take turns. --only: cases
whose name contains a text.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.epochs import measure, report, sides_of
from benchmarks.loading import make_images
from benchmarks.report import Row

__all__ = ["AIMS", "BATCH", "CASES"]

AIMS = {"default": 2.0, "tuned": 1.2}
BATCH = 32
CASES = {"ResNet-18": "32-true", "ResNet-18, bf16": "bf16-mixed"}  # both sides' precision


def measure_case(name: str, folder: str, options: argparse.Namespace) -> Row:
    """One row."""
    images = {"HOTLOOP_BENCH_IMAGES": folder}
    sides = sides_of("benchmarks.worker_images", (CASES[name],), options.threads, images)
    rates, ratios = measure(sides, options.rounds)
    note = f"{statistics.median(rates['hotloop']):,.0f} images a second"
    return Row(f"W3 epoch: {name}", ratios, AIMS, note, raw={"samples_per_second": rates})


def main() -> int:
    """Measures, prints the table, writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.images")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""])
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/DATE-images.json")
    options = parser.parse_args()
    shown = ("rounds", "threads", "images")
    with tempfile.TemporaryDirectory() as folder:
        make_images(Path(folder), options.images, 0)
        return report(
            CASES, lambda name: measure_case(name, folder, options), options, "images", shown
        )


if __name__ == "__main__":
    sys.exit(main())
