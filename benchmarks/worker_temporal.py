"""A side of ``python -m benchmarks.temporal``: epochs of one of its cases, by one library.

python -m benchmarks.worker_temporal hotloop|default|tuned CASE --rows N [--workers N]
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.epochs import train_epochs
from benchmarks.models import make_model
from benchmarks.temporal import CASES, LENGTH, Case
from benchmarks.worker import serve
from benchmarks.workloads import find

VAL = TEST = 0.15


def make_series(rows: int) -> tuple[Any, Any]:
    """Standardised rows of 29 numbers, and the class of each."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((rows, 29), np.float32), rng.integers(0, 3, rows)


def make_net(nn: Any, case: Case) -> Any:
    """The case's model of windows, of either side's ``nn``."""
    made = make_model(nn, find(case.workload))

    class LastRow(nn.Module):
        """A model of rows, which sees the last one of a window."""

        def __init__(self) -> None:
            super().__init__()
            self.model = made

        def forward(self, x: Any) -> Any:
            return self.model(x[:, -1])

    return LastRow() if case.workload == "mlp" else made


# ---- hotloop


def train_hotloop(case: Case, rows: int) -> None:
    """Trains epoch by epoch until the parent has enough."""
    import hotloop as hl
    from hotloop import nn

    series, y = make_series(rows)
    data = hl.DataModule.from_windows(
        series, LENGTH, target=y, val=VAL, test=TEST, batch_size=case.batch, normalize=None
    )
    train_epochs(
        lambda: make_net(nn, case), data, lr=case.lr, weight_decay=5e-4,
        gradient_clip_val=case.clip, label_smoothing=0.1, class_weight="balanced",
        precision="32-true",
    )  # fmt: skip


# ---- PyTorch


class Windows:
    """Slices of a series."""

    def __init__(self, X: Any, y: Any) -> None:
        self.X, self.y = X, y

    def __len__(self) -> int:
        return len(self.X) - LENGTH + 1

    def __getitem__(self, i: int) -> Any:
        return self.X[i : i + LENGTH], self.y[i + LENGTH - 1]


def make_torch(case: Case, rows: int, workers: int, *, tuned: bool) -> Callable[[], int]:
    """A function that trains an epoch, validates, and returns the windows that it trained on."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    series, y = make_series(rows)
    cuts = [0, int((1 - VAL - TEST) * rows), int((1 - TEST) * rows)]
    parts = [
        (torch.from_numpy(series[begin:end]), torch.from_numpy(y[begin:end]))
        for begin, end in itertools.pairwise(cuts)
    ]
    counts = np.bincount(y[: cuts[1]])
    weight = torch.tensor(cuts[1] / (3 * counts), dtype=torch.float32)
    model = make_net(nn, case)
    how: dict[str, Any] = {"fused": True} if tuned else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=case.lr, weight_decay=5e-4, **how)
    loaders = [
        torch.utils.data.DataLoader(
            Windows(*part), case.batch, shuffle=not i, num_workers=workers,
            persistent_workers=workers > 0,
        )
        for i, part in enumerate(parts)
    ]  # fmt: skip

    def batches(i: int) -> Iterator[Any]:
        """Of training or validation."""
        if not tuned:
            yield from loaders[i]
            return
        X, y = parts[i]
        n = len(X) - LENGTH + 1
        order = torch.arange(n) if i else torch.randperm(n)
        for rows in order.split(case.batch):
            yield X[rows[:, None] + torch.arange(LENGTH)], y[rows + LENGTH - 1]

    def loss_of(output: Any, y: Any) -> Any:
        return F.cross_entropy(output, y, weight, label_smoothing=0.1)

    def read(value: Any) -> Any:
        return value.detach() if tuned else value.item()

    def epoch() -> int:
        model.train()
        n, total = 0, 0.0
        for x, y in batches(0):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), case.clip)
            optimizer.step()
            n, total = n + len(x), total + read(loss) * len(x)
        model.eval()
        hits, validated = 0, 0.0
        with torch.no_grad():
            for x, y in batches(1):
                output = model(x)
                hits += read((output.argmax(1) == y).sum())
                validated += read(loss_of(output, y)) * len(x)
        float(total), float(validated), int(hits)  # what an epoch's line is printed from
        return n

    return epoch


def main() -> None:
    """Serves epochs of a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=["hotloop", "default", "tuned"])
    parser.add_argument("case", choices=list(CASES))
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    case = CASES[options.case]
    if options.side == "hotloop":
        train_hotloop(case, options.rows)
        return
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    is_tuned = options.side == "tuned"
    serve(
        make_torch(case, options.rows, options.workers, tuned=is_tuned), version=torch.__version__
    )


if __name__ == "__main__":
    main()
