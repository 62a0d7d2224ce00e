"""The models of the workloads, made of either side's ``nn``: the definition is the same text."""

from __future__ import annotations

import itertools
from typing import Any

from benchmarks.workloads import Workload

__all__ = ["make_model"]


def make_model(nn: Any, workload: Workload) -> Any:
    """The workload's model.

    Parameters
    ----------
    nn : module
        ``hotloop.nn`` or ``torch.nn``.
    workload : Workload
    """
    if workload.name == "mlp":
        return _make_tabular(nn, workload.features, workload.classes)
    widths = {"tiny": (20, 32, 16, 2), "wide": (784, 512, 256, 10)}[workload.name]
    layers = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _make_tabular(nn: Any, features: int, classes: int) -> Any:
    class TabularNet(nn.Module):
        """The MLP of W2: normalised inputs, four blocks, a gate, a head."""

        def __init__(self) -> None:
            super().__init__()
            layers = [nn.BatchNorm1d(features)]
            width = features
            for hidden in (128, 96, 64, 32):
                block = (nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU())
                layers += [*block, nn.Dropout(0.3)]
                width = hidden
            self.body = nn.Sequential(*layers)
            self.gate = nn.Sequential(
                nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, width), nn.Sigmoid()
            )
            self.head = nn.Linear(width, classes)

        def forward(self, x: Any) -> Any:
            h = self.body(x)
            return self.head(h * self.gate(h))

    return TabularNet()
