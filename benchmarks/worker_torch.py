"""PyTorch's side: the same model, data and training, as its users write it and tuned.

    python -m benchmarks.worker_torch NAME default|loader|tuned THREADS

default  X[indices] for a batch, optimizer by default, loss.item() in every step
loader   the same, with batches from DataLoader(TensorDataset, shuffle=True)
tuned    index_select, fused optimizer, no .item(); the parent sets a malloc that keeps big blocks
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.models import make_model
from benchmarks.worker import serve
from benchmarks.workloads import FEEDING, Workload, find, make_arrays


def make_batches(workload: Workload, mode: str) -> Iterator[Any]:
    """(inputs, labels) without end, shuffled anew every epoch; a short last batch is dropped."""
    x, y = (torch.from_numpy(array) for array in make_arrays(workload))
    if mode == "loader":
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(x, y), batch_size=workload.batch, shuffle=True,
            drop_last=True,
        )  # fmt: skip
        while True:
            yield from loader
    while True:
        order = torch.randperm(workload.rows)
        for begin in range(0, workload.rows - workload.batch + 1, workload.batch):
            rows = order[begin : begin + workload.batch]
            if mode == "tuned":
                yield x.index_select(0, rows), y.index_select(0, rows)
            else:
                yield x[rows], y[rows]


def make_step(workload: Workload, mode: str) -> Callable[[], int]:
    """A function that trains on the next batch and returns its rows."""
    model = make_model(nn, workload).train()
    parameters = list(model.parameters())
    optimizer_class = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[workload.optimizer]
    speed = {"fused": True} if mode == "tuned" else {}
    optimizer = optimizer_class(
        parameters, lr=1e-3, weight_decay=workload.weight_decay, **speed
    )  # fmt: skip
    batches = make_batches(workload, mode)

    def step() -> int:
        x, y = next(batches)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y, label_smoothing=workload.smoothing)
        loss.backward()
        if workload.clip is not None:
            nn.utils.clip_grad_norm_(parameters, workload.clip)
        optimizer.step()
        if mode != "tuned":
            loss.item()
        return len(x)

    return step


def main(name: str, mode: str, threads: str) -> None:
    """Serves slices of a workload."""
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    workload = find(name)
    if workload is FEEDING:
        batches = make_batches(workload, mode)
        step = lambda: len(next(batches)[1])  # noqa: E731
    else:
        step = make_step(workload, mode)
        for _ in range(20):
            step()
    serve(step, version=torch.__version__)


if __name__ == "__main__":
    main(*sys.argv[1:])
