"""Whether a step waits for its data: training on a feed beside training on one batch alone.

    python -m benchmarks.overlap [--rounds 5] [--seconds 4] [--only TEXT ...]

Both sides are hotloop, in one process and in turn. The first side trains on data as it comes:
windows of a series, JPEG files that are decoded and augmented by threads. The second one trains on
arrays of one batch, which never have to be fetched from far away. Numbers are the time of a step
with a feed by that of one without; the aim is 1.03.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loading import make_images
from benchmarks.report import RESULTS, describe_machine, read_load, write_results

_AIM = 1.03
_TITLE = "time of a step with a feed, by that of one on the same batch"


def windows() -> Any:
    """Those of W2: 20 rows of 29 features, 256 of them."""
    import hotloop as hl

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((17_420, 29)), rng.integers(0, 3, 17_420)
    return hl.DataModule.from_windows(X, 20, target=y, batch_size=256)


def files() -> Any:
    """CIFAR's JPEGs, cut, mirrored and normalised, 128 at a time."""
    import hotloop as hl

    root = Path(os.environ["HOTLOOP_BENCH_IMAGES"]) / "small"
    return hl.DataModule.from_image_folder(root, 32, augment="basic", batch_size=128)


def again(data: Any) -> Any:
    """A DataModule of its first batch alone, as arrays."""
    import hotloop as hl

    batch = next(data.train_batches())
    return hl.DataModule.from_arrays(batch["x"], batch["y"], batch_size=len(batch["y"]))


def cases() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Model and data by name."""
    from hotloop import models

    return {
        "W2 LSTM": (lambda: models.lstm_classifier(29, 3), windows),
        "W2 Transformer": (lambda: models.transformer_classifier(29, 3), windows),
        "ResNet-18, CIFAR JPEGs": (lambda: models.resnet18(num_classes=10), files),
    }


def rate(make: Callable[[], Any], data: Any, seconds: float) -> float:
    """Samples a second of training for so long."""
    import hotloop as hl

    result = hl.train(
        make(), data, max_epochs=10**6, max_time=seconds, precision="fp32", monitor="loss",
        restore_best=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    return result.samples_per_second


def main() -> int:
    """Measures, prints, writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a slice")
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""])
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/DATE-overlap.json")
    options = parser.parse_args()
    load, facts = read_load(), describe_machine()
    rows = []
    print(_TITLE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOTLOOP_BENCH_IMAGES"] = folder
        for name, (make, load_data) in cases().items():
            if not any(text in name for text in options.only):
                continue
            if load_data is files:
                make_images(Path(folder))
            fed = load_data()
            same = again(fed)
            ratios = []
            for number in range(options.rounds + 1):
                pair = (fed, same) if number % 2 else (same, fed)
                found = {id(data): rate(make, data, options.seconds) for data in pair}
                if number:  # the first round warms up
                    ratios.append(found[id(same)] / found[id(fed)])
            median = statistics.median(ratios)
            print(f"{name:<24} {median:.3f} ({min(ratios):.3f} to {max(ratios):.3f}) [{_AIM}]")
            rows.append({"name": name, "aim": _AIM, "median": median, "ratios": ratios})
    facts["load_before"] = load
    facts["options"] = {k: getattr(options, k) for k in ("rounds", "seconds")}
    facts["rows"] = rows
    write_results(facts, options.out or RESULTS / f"{facts['date'][:10]}-overlap.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
