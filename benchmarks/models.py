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
        return _make_tabular(nn, workload)
    widths = (workload.features, *workload.hidden, workload.classes)
    layers = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _make_tabular(nn: Any, workload: Workload) -> Any:
    class TabularNet(nn.Module):
        """The MLP of W2: normalised inputs, four blocks, a gate, a head."""

        def __init__(self) -> None:
            super().__init__()
            layers = [nn.BatchNorm1d(workload.features)]
            width = workload.features
            for hidden in workload.hidden:
                block = (nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU())
                layers += [*block, nn.Dropout(0.3)]
                width = hidden
            self.body = nn.Sequential(*layers)
            self.gate = nn.Sequential(
                nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, width), nn.Sigmoid()
            )
            self.head = nn.Linear(width, workload.classes)

        def forward(self, x: Any) -> Any:
            h = self.body(x)
            return self.head(h * self.gate(h))

    return TabularNet()
