"""Two small trainings on the GPU, twice and in every way, bit for bit.

    python -m gpu.step [--once]

Of ids: embedding, batch norm, relu, dropout, cross-entropy and Adam over full batches and a smaller
one, the kernels that most trainings have. Of images: a stem, a residual block with strides and a
shortcut, a convolution of each channel by itself, pooling. In float32 and in the 16 bits that the
GPU is fast in, launched one by one and captured, each of it twice: all runs of a precision must
give the same losses and weights, and learn. A line for each net and precision says so, with a
digest for who runs it again.

--once: one step of each, and one captured, in float32. For compute-sanitizer, under which
everything is slow.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import hotloop as hl
import numpy as np
from hotloop import nn
from train.recipes import quiet, weights

N_IDS, N_CLASSES, BATCH = 50, 5, 64
EPOCHS, N_ROWS = 6, 5 * BATCH + 17
SIDE, CHANNELS, FEW = 8, 16, 8  # of images, and how many of them are in a batch


class Block(nn.Module):
    """Two convolutions, the first with a stride, beside one of 1 x 1."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, 2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential(
            nn.Conv2d(channels, out, 1, 2, bias=False), nn.BatchNorm2d(out)
        )

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        y = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(y)) + self.shortcut(x)).relu()


def make_ids() -> nn.Module:
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


def make_images() -> nn.Module:
    """The same weights each time."""
    return nn.Sequential(
        nn.Conv2d(3, CHANNELS // 2, 3, padding=1, bias=False),
        nn.BatchNorm2d(CHANNELS // 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        Block(CHANNELS // 2, CHANNELS),
        nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(CHANNELS, N_CLASSES),
    )


def draw_ids(n: int) -> hl.DataModule:
    """Ids in rows of four, whose class is that of the first."""
    ids = np.random.default_rng(0).integers(0, N_IDS, (n, 4))
    return hl.DataModule.from_arrays(ids, ids[:, 0] % N_CLASSES, val=None, batch_size=BATCH)


def draw_images(n: int) -> hl.DataModule:
    """Images, an eighth as many, whose class is how bright they are."""
    n //= BATCH // FEW
    x = np.random.default_rng(0).standard_normal((n, 3, SIDE, SIDE)).astype(np.float32)
    y = np.arange(n) % N_CLASSES
    return hl.DataModule.from_arrays(x + y[:, None, None, None], y, val=None, batch_size=FEW)


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], hl.DataModule]]] = {
    "ids": (make_ids, draw_ids),
    "images": (make_images, draw_images),
}


class Outcome:
    """Losses and weights of a training."""

    def __init__(self, net: str, precision: str, graph: bool, *, once: bool = False) -> None:
        make_model, draw = NETS[net]
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
        result = hl.train(model, draw(BATCH if once else N_ROWS), config)
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


def check(net: str, precision: str) -> list[str]:
    """Trains in every way; a line for each that differs or does not learn, else the summary's."""
    first, lines = Outcome(net, precision, graph=False), []
    what = f"{net}, {precision}"
    for graph, way in ((False, "again"), (True, "captured"), (True, "captured again")):
        if difference := first.find_difference(Outcome(net, precision, graph)):
            lines.append(f"FAIL {what}, {way}: not the same bits: {difference}")
    begin, end = float(first.losses[0]), float(first.losses[-1])
    if not end < begin:
        lines.append(f"FAIL {what}: the loss must fall, got {begin:.4f} to {end:.4f}")
    return lines or [f"step: {what}, loss {begin:.4f} to {end:.4f}, {first.digest()}"]


def main() -> int:
    """1 when something differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--once", action="store_true")
    if parser.parse_args().once:
        alike = True
        for net in NETS:
            plain, captured = (
                float(Outcome(net, "32-true", graph, once=True).losses[0])
                for graph in (False, True)
            )
            print(f"step: {net}, 32-true, once, loss {plain:.4f} and captured {captured:.4f}")
            alike = alike and plain == captured
        return 0 if alike else 1
    gpu = next(device for device in hl.devices() if device.kind == "gpu")
    reduced = "bf16-mixed" if int(gpu.architecture.removeprefix("sm_")) >= 80 else "16-mixed"
    ways = itertools.product(NETS, ("32-true", reduced))
    lines = [line for net, precision in ways for line in check(net, precision)]
    print("\n".join(lines))
    return 1 if any(line.startswith("FAIL") for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
