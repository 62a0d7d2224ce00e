"""A small training on the GPU, twice and in every way, bit for bit.

    python -m gpu.step [--once]

Embedding, batch norm, relu, dropout, cross-entropy and Adam over full batches and a smaller one:
the kernels that most trainings have. In float32 and in the 16 bits that the GPU is fast in,
launched one by one and captured, each of it twice: all runs of a precision must give the same
losses and weights, and learn. A line a precision says so, with a digest for who runs it again.

--once: one step, and one captured, in float32. For compute-sanitizer, under which everything is
slow.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from typing import Any

import hotloop as hl
import numpy as np
from hotloop import nn
from train.recipes import quiet, weights

N_IDS, N_CLASSES, BATCH = 50, 5, 64
EPOCHS, N_ROWS = 6, 5 * BATCH + 17


def make_data(n: int) -> hl.DataModule:
    """Ids in rows of four, whose class is that of the first."""
    ids = np.random.default_rng(0).integers(0, N_IDS, (n, 4))
    return hl.DataModule.from_arrays(ids, ids[:, 0] % N_CLASSES, val=None, batch_size=BATCH)


def make_model() -> nn.Module:
    """The same weights each time."""
    return nn.Sequential(
        nn.Embedding(N_IDS, 16),
        nn.Flatten(),
        nn.Linear(64, 128),
        nn.BatchNorm1d(128),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(128, N_CLASSES),
    )


class Outcome:
    """Losses and weights of a training."""

    def __init__(self, precision: str, graph: bool, *, once: bool = False) -> None:
        model = make_model()
        fields: dict[str, Any] = {"max_steps": 1} if once else {"max_epochs": EPOCHS}
        config = quiet(
            accelerator="gpu",
            optimizer="adam",
            lr=0.01,
            precision=precision,
            cuda_graph=graph,
            deterministic=True,  # no kernel is chosen by a clock
            **fields,
        )
        result = hl.train(model, make_data(BATCH if once else N_ROWS), config)
        self.losses = np.asarray(result.history["loss"], np.float64)
        self.weights = weights(model)

    def find_difference(self, other: Outcome) -> str:
        """What is not the same bits, by name; "": nothing."""
        names = [
            name
            for name, values in self.weights.items()
            if values.tobytes() != other.weights[name].tobytes()
        ]
        return ", ".join(["losses"] * (self.losses.tobytes() != other.losses.tobytes()) + names)

    def digest(self) -> str:
        """Of all bits."""
        sha = hashlib.sha256(self.losses.tobytes())
        for name in sorted(self.weights):
            sha.update(self.weights[name].tobytes())
        return sha.hexdigest()[:16]


def check(precision: str) -> list[str]:
    """Trains in every way; a line for each that differs or does not learn, else the summary's."""
    first, lines = Outcome(precision, graph=False), []
    for graph, way in ((False, "again"), (True, "captured"), (True, "captured again")):
        if difference := first.find_difference(Outcome(precision, graph)):
            lines.append(f"FAIL {precision}, {way}: not the same bits: {difference}")
    begin, end = float(first.losses[0]), float(first.losses[-1])
    if not end < begin:
        lines.append(f"FAIL {precision}: the loss must fall, got {begin:.4f} to {end:.4f}")
    return lines or [f"step: {precision}, loss {begin:.4f} to {end:.4f}, {first.digest()}"]


def main() -> int:
    """1 when something differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--once", action="store_true")
    if parser.parse_args().once:
        losses = [Outcome("32-true", graph, once=True).losses[0] for graph in (False, True)]
        print(f"step: 32-true, once, loss {losses[0]:.4f} and captured {losses[1]:.4f}")
        return 0 if losses[0] == losses[1] else 1
    gpu = next(device for device in hl.devices() if device.kind == "gpu")
    reduced = "bf16-mixed" if int(gpu.architecture.removeprefix("sm_")) >= 80 else "16-mixed"
    lines = [line for precision in ("32-true", reduced) for line in check(precision)]
    print("\n".join(lines))
    return 1 if any(line.startswith("FAIL") for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
