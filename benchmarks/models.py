"""The models of the workloads, made of either side's ``nn``: the definition is the same text. Those
of the zoo are each side's own.
"""

from __future__ import annotations

import importlib
import itertools
from typing import Any

from benchmarks.workloads import Workload

__all__ = ["make_model"]

# Where PyTorch's users have a model from.
_ZOO = {"resnet50": "torchvision.models", "convnext_small": "timm.models"}


def make_model(nn: Any, workload: Workload) -> Any:
    """The workload's model.

    Parameters
    ----------
    nn : module
        ``hotloop.nn`` or ``torch.nn``.
    workload : Workload
    """
    name = workload.name.removesuffix("-bf16")
    if name == "mlp":
        return _make_tabular(nn, workload)
    if name == "resnet18":
        return _make_resnet18(nn, workload)
    if name in _ZOO:
        ours = nn.__name__.startswith("hotloop")
        place = importlib.import_module("hotloop.models" if ours else _ZOO[name])
        return getattr(place, name)(num_classes=workload.classes)
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


def _make_resnet18(nn: Any, workload: Workload) -> Any:
    class Block(nn.Module):
        """Two convolutions beside a shortcut."""

        def __init__(self, channels: int, out: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(channels, out, 3, stride, 1, bias=False),
                nn.BatchNorm2d(out),
                nn.ReLU(inplace=True),
                nn.Conv2d(out, out, 3, 1, 1, bias=False),
                nn.BatchNorm2d(out),
            )
            self.relu = nn.ReLU(inplace=True)
            self.shortcut = nn.Identity()
            if stride > 1 or channels != out:
                self.shortcut = nn.Sequential(
                    nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
                )

        def forward(self, x: Any) -> Any:
            return self.relu(self.body(x) + self.shortcut(x))

    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    channels = 64
    for stage, out in enumerate((64, 128, 256, 512)):
        for i in range(2):
            layers.append(Block(channels, out, 2 if stage and not i else 1))
            channels = out
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, workload.classes))
    return nn.Sequential(*layers, *head)
