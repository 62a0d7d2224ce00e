"""Multilayer perceptrons for tables: plain, and with batch norm and a gate."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

from hotloop import nn
from hotloop.models.weights import load_weights
from hotloop.nn.functional.arguments import Count
from hotloop.nn.module import Module

__all__ = ["gated_mlp", "mlp"]


class MLP(Module):
    """Hidden layers, each with an activation and dropout, and a linear one."""

    def __init__(
        self,
        in_features: Count,
        num_classes: Count,
        hidden_features: Sequence[Count],
        dropout: float,
    ) -> None:
        super().__init__()
        layers: list[Module] = []
        for before, after in itertools.pairwise((in_features, *hidden_features)):
            layers += [nn.Linear(before, after), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear((in_features, *hidden_features)[-1], num_classes)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x.flatten(1)))


class GatedMLP(Module):
    """Hidden layers with batch norm; their output times a gate that sees all of it."""

    def __init__(
        self,
        in_features: Count,
        num_classes: Count,
        hidden_features: Sequence[Count],
        dropout: float,
    ) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(in_features)
        layers: list[Module] = []
        for before, after in itertools.pairwise((in_features, *hidden_features)):
            layers += [
                nn.Linear(before, after),
                nn.BatchNorm1d(after),
                nn.ReLU(),
                nn.Dropout(dropout),
            ]
        self.body = nn.Sequential(*layers)
        last = (in_features, *hidden_features)[-1]
        narrow = max(int(last) // 2, 1)
        self.gate = nn.Sequential(
            nn.Linear(last, narrow), nn.ReLU(), nn.Linear(narrow, last), nn.Sigmoid()
        )
        self.head = nn.Linear(last, num_classes)

    def forward(self, x: Any) -> Any:
        x = self.body(self.norm(x.flatten(1)))
        return self.head(x * self.gate(x))


def mlp(
    in_features: int,
    num_classes: int,
    hidden_features: Sequence[int] = (128, 64),
    dropout: float = 0.0,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """Linear layers with ReLU between them.

    Parameters
    ----------
    in_features : int
        Numbers of a sample; of windows ``(N, length, features)`` their product.
    num_classes : int
        Outputs: logits of so many classes, or values.
    hidden_features : sequence of int
        Outputs of the layers before the last; none: a linear model.
    dropout : float
        After each activation.
    weights : path-like, optional
        A local file of such weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``head``, the last layer, new.
    strip_prefix : str
        What the names in the file begin with, as ``"module."``.

    Returns
    -------
    Module
        ``(N, ...)`` in, ``(N, num_classes)`` out.

    Raises
    ------
    ConfigError, ShapeError
        If the sizes are out of range, or the weights do not fit.
    CheckpointError
        If the file cannot be read.

    Notes
    -----
    12,291 parameters of 29 features and 3 classes.
    """
    model = MLP(in_features, num_classes, hidden_features, dropout)
    return load_weights(model, weights, "head", replace_head, strip_prefix, "")


def gated_mlp(
    in_features: int,
    num_classes: int,
    hidden_features: Sequence[int] = (128, 96, 64, 32),
    dropout: float = 0.3,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """Linear layers with batch norm, and a gate in (0, 1) for each of the last features.

    Parameters
    ----------
    in_features : int
        Numbers of a sample; of windows ``(N, length, features)`` their product.
    num_classes : int
        Outputs: logits of so many classes, or values.
    hidden_features : sequence of int
        Outputs of the layers before the last. Usual others for an ensemble: ``(256, 128, 64, 32)``,
        ``(512, 256, 128)``, ``(128, 64)``.
    dropout : float
        After each activation.
    weights, replace_head, strip_prefix
        As for :func:`mlp`; the last layer is ``head``.

    Returns
    -------
    Module
        ``(N, ...)`` in, ``(N, num_classes)`` out.

    Raises
    ------
    ConfigError, ShapeError
        If the sizes are out of range, or the weights do not fit.
    CheckpointError
        If the file cannot be read.

    Notes
    -----
    26,381 parameters of 29 features and 3 classes. The input's batch norm standardises it; the gate
    is a squeeze and excitation (Hu et al. 2018) of features instead of channels, with a bottleneck
    of half of them.
    """
    model = GatedMLP(in_features, num_classes, hidden_features, dropout)
    return load_weights(model, weights, "head", replace_head, strip_prefix, "")
