"""What recomputation costs and saves: steps with it beside steps without, time and memory.

    python -m benchmarks.recompute [--rounds 7] [--only TEXT ...] [--precision 32-true]

All sides are hotloop, in one process and in turn: as it is, with four fifths of what can be
recomputed (what costs no product, nearly), and with ``recompute=True``. Numbers are the time of a
step, the activations and scratch of its plan, and its operations, each by those of the step as it
is; the aim of time with all recomputed is 1.33.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import RESULTS, describe_machine, read_load, write_results

_AIM = 1.33
_SHARES = (0.8, True)
_TITLE = "time, memory and operations of a step with recomputation, by those of one without"


def gpt() -> tuple[Any, Any, Any, int]:
    """12 blocks of 256 features, 16 texts of 128 letters."""
    from hotloop import models

    ids = np.random.default_rng(0).integers(0, 65, (16, 129))
    model = models.gpt(vocab_size=65, block_size=128, n_layer=12, n_head=4, n_embd=256, dropout=0.1)
    return model, ids[:, :-1], ids[:, 1:], 16


def resnet() -> tuple[Any, Any, Any, int]:
    """ResNet-18, 16 images of 224 x 224."""
    from hotloop import models

    images = np.random.default_rng(0).standard_normal((16, 3, 224, 224)).astype(np.float32)
    return models.resnet18(num_classes=10), images, np.arange(16) % 10, 16


def mlp() -> tuple[Any, Any, Any, int]:
    """40 layers of 512 units, 2,048 rows."""
    from hotloop import nn

    layers = [layer for _ in range(40) for layer in (nn.Linear(512, 512), nn.ReLU())]
    x = np.random.default_rng(0).standard_normal((2048, 512)).astype(np.float32)
    return nn.Sequential(*layers, nn.Linear(512, 10)), x, np.arange(2048) % 10, 2048


CASES: dict[str, Callable[[], tuple[Any, Any, Any, int]]] = {
    "GPT, 12 blocks": gpt,
    "ResNet-18": resnet,
    "MLP, 40 layers": mlp,
}


def prepare(make: Callable[[], Any], share: Any, precision: str) -> Any:
    """A planned training, whose first step has run."""
    import hotloop as hl
    from hotloop.training.run.planner import Planner

    model, x, y, rows = make()
    config = hl.TrainingConfig(
        precision=precision, recompute=share, restore_best=False, enable_progress_bar=False
    )
    planner = Planner(model, hl.DataModule.from_arrays(x, y, batch_size=rows), config)
    planner.prepare()
    planner.run_one_step("train")
    return planner


def time_step(planner: Any) -> float:
    """Seconds of a step."""
    began = time.perf_counter()
    planner.run_one_step("train")
    return time.perf_counter() - began


def main() -> int:
    """Measures, prints, writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recompute")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""])
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/DATE-recompute.json")
    options = parser.parse_args()
    load, facts = read_load(), describe_machine()
    rows = []
    print(_TITLE)
    for name, make in CASES.items():
        if not any(text in name for text in options.only):
            continue
        planners = {s: prepare(make, s, options.precision) for s in (False, *_SHARES)}
        seconds: dict[Any, list[float]] = {share: [] for share in planners}
        for number in range(options.rounds + 1):
            for share in sorted(planners, key=lambda s: s, reverse=bool(number % 2)):
                seconds[share].append(time_step(planners[share]))
        info = {share: p.train_plans[0][0].info() for share, p in planners.items()}
        for share in _SHARES:
            # the first round warms up
            pairs = zip(seconds[share][1:], seconds[False][1:], strict=True)
            ratios = [one / other for one, other in pairs]
            memory = info[share]["arena_bytes"] / info[False]["arena_bytes"]
            work = 1 + info[share]["recomputed_flops"] / info[share]["step_flops"]
            median = statistics.median(ratios)
            print(
                f"{name:<16} {share!s:<5} time {median:.3f} ({min(ratios):.3f} to "
                f"{max(ratios):.3f}) [{_AIM}], memory {memory:.3f} of "
                f"{info[False]['arena_bytes'] / 1e6:.0f} MB, operations {work:.3f}"
            )
            rows.append({
                "name": name, "share": share, "aim": _AIM, "median": median, "ratios": ratios,
                "memory": memory, "arena_bytes": info[False]["arena_bytes"], "operations": work,
            })  # fmt: skip
        for planner in planners.values():
            planner.close()
    facts["load_before"] = load
    facts["options"] = {k: getattr(options, k) for k in ("rounds", "precision")}
    facts["rows"] = rows
    write_results(facts, options.out or RESULTS / f"{facts['date'][:10]}-recompute.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
