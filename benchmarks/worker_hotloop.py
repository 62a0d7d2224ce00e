"""hotloop's side: ``hl.train`` as users call it, measured over whole epochs.

    python -m benchmarks.worker_hotloop NAME

Threads by HOTLOOP_NUM_THREADS. Schedule constant and no weight decay exempted, as on PyTorch's
side; training loss is summed as always.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import hotloop as hl
from hotloop import nn

from benchmarks.worker import Slices, serve
from benchmarks.workloads import FEEDING, Workload, find, make_arrays

_EPOCHS = {"tiny": 40_000}
_MOST_EPOCHS = 4_000


class TabularNet(nn.Module):
    """The MLP of W2: normalised inputs, four blocks, a gate, a head."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.BatchNorm1d(features)]
        width = features
        for hidden in (128, 96, 64, 32):
            layers += [nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.3)]
            width = hidden
        self.body = nn.Sequential(*layers)
        self.gate = nn.Sequential(
            nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, width), nn.Sigmoid()
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: Any) -> Any:
        h = self.body(x)
        return self.head(h * self.gate(h))


def make_model(workload: Workload) -> nn.Module:
    """The workload's model."""
    if workload.name == "mlp":
        return TabularNet(workload.features, workload.classes)
    widths = {"tiny": (20, 32, 16, 2), "wide": (784, 512, 256, 10)}[workload.name]
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class _Epochs:
    """A callback that hands slices out between epochs."""

    def __init__(self, slices: Slices, rows: int) -> None:
        self._slices = slices
        self._rows = rows
        self.wanted = True

    def on_epoch_end(self, run: Any) -> None:
        """Counts the epoch; stops training when no slice is wanted."""
        self.wanted = self._slices.done(self._rows)
        if not self.wanted:
            run.stop("completed")


def train(workload: Workload) -> None:
    """Trains slice by slice until the parent has enough."""
    x, y = make_arrays(workload)
    data = hl.DataModule.from_arrays(x, y, batch_size=workload.batch)
    config = hl.TrainingConfig(
        max_epochs=_EPOCHS.get(workload.name, _MOST_EPOCHS),
        optimizer=workload.optimizer,
        lr=1e-3,
        weight_decay=workload.weight_decay,
        decay_norm_and_bias=True,
        scheduler="constant",
        warmup=0,
        label_smoothing=workload.smoothing,
        gradient_clip_val=workload.clip,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=None,
    )
    epochs = _Epochs(Slices(version=hl.__version__), workload.rows)
    model = make_model(workload)
    while epochs.wanted:
        hl.train(model, data, config, callbacks=(epochs,))


def feed(workload: Workload) -> None:
    """Iterates shuffled batches as NumPy arrays."""
    x, y = make_arrays(workload)
    data = hl.DataModule.from_arrays(x, y, batch_size=workload.batch)

    def batches() -> Iterator[Any]:
        while True:
            yield from data.train_batches()

    serve(_counted(batches()), version=hl.__version__)


def _counted(batches: Iterator[Any]) -> Any:
    return lambda: len(next(batches)["y"])


if __name__ == "__main__":
    chosen = find(sys.argv[1])
    feed(chosen) if chosen is FEEDING else train(chosen)
