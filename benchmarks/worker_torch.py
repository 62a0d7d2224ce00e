"""PyTorch's side: the same model, data and training, as its users write it and tuned.

    python -m benchmarks.worker_torch NAME MODE [--threads N] [--device cuda] [--precision P]

default   X[indices] for a batch, moved to the device, optimizer by default, loss.item() every step
loader    the same, with batches from DataLoader(TensorDataset, shuffle=True)
tuned     data on the device, index_select, fused optimizer, no .item(); images with channels last;
          on a CPU the parent sets a malloc that keeps big blocks
compiled  tuned, the model and its loss by torch.compile(mode="reduce-overhead"), which captures
          them as CUDA graphs
graph     tuned, by torch.compile, and the whole step (clipping and optimizer too) captured by hand
          as one CUDA graph: the most that PyTorch can do
peak      no training: one large product after another; samples are its operations
copy      no training: one large copy after another; samples are bytes read and written
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.models import make_model
from benchmarks.worker import parser_of, serve, workload_of
from benchmarks.workloads import FEEDING, Workload, make_arrays

MODES = ("default", "loader", "tuned", "compiled", "graph", "peak", "copy")
_REDUCED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def make_batches(workload: Workload, mode: str, device: torch.device) -> Iterator[Any]:
    """(inputs, labels) without end, shuffled anew every epoch; a short last batch is dropped."""
    x, y = (torch.from_numpy(np.ascontiguousarray(array)) for array in make_arrays(workload))
    if mode == "loader":
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(x, y), batch_size=workload.batch, shuffle=True,
            drop_last=True, pin_memory=device.type == "cuda",
        )  # fmt: skip
        while True:
            for batch in loader:
                yield tuple(part.to(device, non_blocking=True) for part in batch)
    resident = mode not in ("default", "loader")
    if resident:
        x, y = x.to(device), y.to(device)
    while True:
        order = torch.randperm(workload.rows, device=x.device)
        for begin in range(0, workload.rows - workload.batch + 1, workload.batch):
            rows = order[begin : begin + workload.batch]
            if resident:
                inputs = x.index_select(0, rows)
                if inputs.dim() == 4:
                    inputs = inputs.contiguous(memory_format=torch.channels_last)
                yield inputs, y.index_select(0, rows)
            else:
                yield x[rows].to(device), y[rows].to(device)


class Trainer:
    """A model with its optimizer: a step on a batch, in one of the modes."""

    def __init__(self, workload: Workload, mode: str, device: torch.device) -> None:
        self.workload, self.mode = workload, mode
        reduced = _REDUCED.get(workload.precision)
        self._autocast = torch.autocast(device.type, dtype=reduced, enabled=reduced is not None)
        self._scaler = torch.amp.GradScaler(device.type, enabled=reduced is torch.float16)
        self.model = make_model(nn, workload).to(device).train()
        is_tuned = mode not in ("default", "loader")
        if is_tuned and workload.image:
            self.model.to(memory_format=torch.channels_last)
        self._parameters = list(self.model.parameters())
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        how: dict[str, Any] = {"fused": True} if is_tuned else {}
        if mode == "graph":
            how["capturable"] = True
        if workload.optimizer == "sgd":
            how["momentum"] = 0.9
        self.optimizer = kind[workload.optimizer](
            self._parameters, lr=1e-3, weight_decay=workload.weight_decay, **how
        )
        self._loss: Callable[..., Any] = self._make_loss
        if mode == "compiled":
            self._loss = torch.compile(self._make_loss, mode="reduce-overhead")
        elif mode == "graph":
            self._loss = torch.compile(self._make_loss)

    def _make_loss(self, x: Any, y: Any) -> Any:
        with self._autocast:
            if self.workload.points:
                return self.model(x, y)
            output = self.model(x)
            if self.workload.is_text:
                output, y = output.flatten(0, 1), y.flatten()
            return F.cross_entropy(output, y, label_smoothing=self.workload.smoothing)

    def step(self, x: Any, y: Any) -> Any:
        """One optimizer step; the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(x, y)
        self._scaler.scale(loss).backward()
        if self.workload.clip is not None:
            self._scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self._parameters, self.workload.clip)
        self._scaler.step(self.optimizer)
        self._scaler.update()
        return loss


def make_step(workload: Workload, mode: str, device: torch.device) -> Callable[[], int]:
    """A function that trains on the next batch and returns its rows; it is warm."""
    trainer = Trainer(workload, mode, device)
    batches = make_batches(workload, mode, device)

    def step() -> int:
        x, y = next(batches)
        if mode == "compiled" and device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()
        loss = trainer.step(x, y)
        if mode in ("default", "loader"):
            loss.item()
        return len(x)

    if mode == "graph":
        step = _capture(trainer, batches)
    for _ in range(workload.warm_up):
        step()
    return step


def _capture(trainer: Trainer, batches: Iterator[Any]) -> Callable[[], int]:
    """The step as one CUDA graph over fixed buffers, after PyTorch's own recipe for that."""
    x, y = (part.clone() for part in next(batches))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            trainer.step(x, y)
    torch.cuda.current_stream().wait_stream(stream)
    trainer.optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        trainer.step(x, y)

    def step() -> int:
        for fixed, part in zip((x, y), next(batches), strict=True):
            fixed.copy_(part)
        graph.replay()
        return len(x)

    return step


def make_product(workload: Workload, device: torch.device, n: int) -> Callable[[], int]:
    """A function that multiplies two random n x n matrices and returns its operations."""
    dtype = _REDUCED.get(workload.precision, torch.float32)
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)

    def step() -> int:
        torch.mm(a, b, out=out)
        return 2 * n**3

    step()
    return step


def make_copy(device: torch.device, n: int) -> Callable[[], int]:
    """A function that copies n float32 numbers and returns the bytes that it reads and writes."""
    source = torch.ones(n, device=device)
    out = torch.empty_like(source)

    def step() -> int:
        out.copy_(source)
        return 8 * n

    step()
    return step


def main() -> None:
    """Serves slices of a workload."""
    parser = parser_of(__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(0)
    device = torch.device(options.device)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else None
    if options.name == FEEDING.name:
        batches = make_batches(FEEDING, options.mode, device)
        step = lambda: len(next(batches)[1])  # noqa: E731
    elif options.mode == "peak":
        step = make_product(workload_of(options), device, 64 if options.smoke else 8192)
    elif options.mode == "copy":
        step = make_copy(device, 1 << (16 if options.smoke else 28))
    else:
        step = make_step(workload_of(options), options.mode, device)
    serve(step, synchronize, version=torch.__version__)


if __name__ == "__main__":
    main()
