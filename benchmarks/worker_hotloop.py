"""hotloop's side: ``hl.train`` as users call it, measured over whole epochs.

    python -m benchmarks.worker_hotloop NAME [--device cuda] [--precision P] [--smoke]

Threads by HOTLOOP_NUM_THREADS. Schedule constant and no weight decay exempted, as on PyTorch's
side; training loss is summed as always. Data comes from arrays in host memory on every device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hotloop as hl
from hotloop import nn

from benchmarks.models import make_model
from benchmarks.worker import Slices, parser_of, serve, workload_of
from benchmarks.workloads import FEEDING, Workload, make_arrays

_EPOCHS = {"tiny": 40_000}
_MOST_EPOCHS = 4_000


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


def train(workload: Workload, device: str) -> None:
    """Trains slice by slice until the parent has enough."""
    x, y = make_arrays(workload)
    data = hl.DataModule.from_arrays(x, y, batch_size=workload.batch)
    config = hl.TrainingConfig(
        max_epochs=_EPOCHS.get(workload.name, _MOST_EPOCHS),
        accelerator={"cpu": "cpu", "cuda": "gpu"}[device],
        precision=workload.precision,
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
    model = make_model(nn, workload)
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
    chosen = parser_of(__doc__).parse_args()
    if chosen.name == FEEDING.name:
        feed(FEEDING)
    else:
        train(workload_of(chosen), chosen.device)
