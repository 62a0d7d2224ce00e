"""hotloop's side: ``hl.train`` as users call it, measured over whole epochs.

    python -m benchmarks.worker_hotloop NAME [--device cuda] [--precision P] [--smoke]
    python -m benchmarks.worker_hotloop NAME ... --profile '{"bytes": 4e12, "float32": 6e13}'|null

Threads by HOTLOOP_NUM_THREADS. Schedule constant and no weight decay exempted, as on PyTorch's
side; training loss is summed as always. Data comes from arrays in host memory on every device.
--profile times the nodes of a step instead, prints them as one line of JSON and ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import hotloop as hl
from hotloop import nn

from benchmarks.models import make_model
from benchmarks.worker import Slices, parser_of, serve, workload_of
from benchmarks.workloads import FEEDING, Workload, make_arrays

_EPOCHS = {"tiny": 40_000}
_MAX_EPOCHS = 4_000


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


def make_run(workload: Workload, device: str) -> tuple[Any, Any, hl.TrainingConfig]:
    """Model, data and configuration."""
    x, y = make_arrays(workload)
    data = hl.DataModule.from_arrays(x, y, batch_size=workload.batch)
    config = hl.TrainingConfig(
        max_epochs=_EPOCHS.get(workload.name, _MAX_EPOCHS),
        accelerator={"cpu": "cpu", "cuda": "gpu"}[device],
        precision=workload.precision,
        optimizer=workload.optimizer,
        lr=1e-3,
        momentum=0.9 if workload.optimizer == "sgd" else None,
        weight_decay=workload.weight_decay,
        decay_norm_and_bias=True,
        scheduler="constant",
        warmup=0,
        label_smoothing=workload.smoothing,
        gradient_clip_val=workload.clip,
        enable_progress_bar=False,
        logger=None,
        enable_checkpointing=not workload.points,  # a model without a forward of its own
    )
    return make_model(nn, workload), data, config


def train(workload: Workload, device: str) -> None:
    """Trains slice by slice until the parent has enough."""
    model, data, config = make_run(workload, device)
    epochs = _Epochs(Slices(version=hl.__version__), workload.rows)
    while epochs.wanted:
        hl.train(model, data, config, callbacks=(epochs,))


def profile(workload: Workload, device: str, peaks: dict[str, float] | None) -> None:
    """Prints the nodes of a step, with their shares of the roofline of these peaks; None: of those
    that hotloop measures.
    """
    print(json.dumps(hl.profile(*make_run(workload, device), peaks=peaks).to_dict()))


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
    parser = parser_of(__doc__)
    parser.add_argument("--profile", metavar="PEAKS")
    chosen = parser.parse_args()
    if chosen.profile is not None:
        profile(workload_of(chosen), chosen.device, json.loads(chosen.profile))
    elif chosen.name == FEEDING.name:
        feed(FEEDING)
    else:
        train(workload_of(chosen), chosen.device)
