"""Temporal convolutional networks (Bai et al. 2018): dilated causal convolutions over time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from hotloop import nn
from hotloop.graph.indexing import check_below
from hotloop.graph.pointwise import where
from hotloop.models.weights import load_weights
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Count
from hotloop.nn.module import Module
from hotloop.nn.utils.rnn import check_lengths

__all__ = ["tcn"]


class CausalConv1d(Module):
    """A convolution that sees no later step; its kernels are a length times a direction.

    The weight norm is written as torch.nn.utils.weight_norm has it, by which files have its names.
    """

    def __init__(self, in_channels: Count, out_channels: Count, kernel: Count, dilation: int):
        super().__init__()
        like = nn.Conv1d(in_channels, out_channels, kernel, dilation=dilation)
        self.dilation, self.pad = dilation, (int(kernel) - 1) * dilation
        self.bias = like.bias
        self.weight_g = nn.Parameter(_lengths(like.weight.numpy()))
        self.weight_v = like.weight

    def forward(self, x: Any) -> Any:
        lengths = (self.weight_v * self.weight_v).sum((1, 2), keepdim=True).sqrt()
        weight = self.weight_v * (self.weight_g / lengths)
        return F.conv1d(F.pad(x, (self.pad, 0)), weight, self.bias, dilation=self.dilation)


def _lengths(weight: Any) -> Any:
    return (weight * weight).sum((1, 2), keepdims=True) ** 0.5


class TemporalBlock(Module):
    """Twice a causal convolution, ReLU and dropout, beside a shortcut."""

    def __init__(
        self, in_channels: Count, out_channels: Count, kernel: Count, dilation: int, dropout: float
    ) -> None:
        super().__init__()
        self.conv1 = CausalConv1d(in_channels, out_channels, kernel, dilation)
        self.conv2 = CausalConv1d(out_channels, out_channels, kernel, dilation)
        self.dropout = nn.Dropout(dropout)
        self.downsample = (
            nn.Conv1d(in_channels, out_channels, 1) if in_channels != out_channels else None
        )

    def forward(self, x: Any) -> Any:
        y = self.dropout(F.relu(self.conv1(x)))
        y = self.dropout(F.relu(self.conv2(y)))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class TCN(Module):
    """Blocks whose dilation doubles; a linear layer of the last step."""

    def __init__(
        self,
        in_features: Count,
        num_classes: Count,
        num_channels: Sequence[Count],
        kernel_size: Count,
        dropout: float,
    ) -> None:
        super().__init__()
        widths = itertools.pairwise((in_features, *num_channels))
        self.network = nn.Sequential(
            *(TemporalBlock(a, b, kernel_size, 2**i, dropout) for i, (a, b) in enumerate(widths))
        )
        self.linear = nn.Linear((in_features, *num_channels)[-1], num_classes)

    def forward(self, x: Any, lengths: Any = None) -> Any:
        if lengths is not None:
            lengths = check_lengths(lengths, x.shape[0], x.shape[1], "tcn")
        x = self.network(x.transpose(1, 2))
        if lengths is None:
            return self.linear(x[:, :, -1])
        last = _check_in_step(lengths, x.shape[2])[:, None, None] - 1
        is_last = last == np.arange(x.shape[2])
        return self.linear(where(is_last, x, 0.0).sum(2))  # causal: there is no padding in it


def _check_in_step(lengths: Any, steps: int) -> Any:
    """The lengths plus 0, read at each of them; at -1 for 0, which has no last row."""
    trace = lengths.trace
    with trace.scope(f"{trace.path}.lengths of 1 ... {steps}".lstrip(".")):
        return lengths + check_below(where(lengths == 0, -1, lengths), steps + 1)


def tcn(
    in_features: int,
    num_classes: int,
    num_channels: Sequence[int] = (64, 64, 64, 64),
    kernel_size: int = 3,
    dropout: float = 0.2,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """Temporal convolutional network (Bai et al. 2018, arXiv 1803.01271).

    Parameters
    ----------
    in_features : int
        Features of a row.
    num_classes : int
        Outputs: logits of so many classes, or values.
    num_channels : sequence of int
        Channels of each block. Block i has a dilation of 2^i, so that the last step sees
        ``1 + 2 (kernel_size - 1) (2^blocks - 1)`` rows: 61 by default.
    kernel_size : int
        Of the convolutions.
    dropout : float
        After each convolution.
    weights : path-like, optional
        A local file of such weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``linear``, the last layer, new.
    strip_prefix : str
        What the names in the file begin with, as ``"module."``.

    Returns
    -------
    Module
        ``(N, length, in_features)`` in, and lengths ``(N,)``, integers from 1 on, where sequences
        are padded; ``(N, num_classes)`` out.

    Raises
    ------
    ConfigError, ShapeError
        If the sizes are out of range, or the weights do not fit.
    CheckpointError
        If the file cannot be read.

    Notes
    -----
    94,723 parameters of 29 features and 3 classes. Values begin as those of a Conv1d: the paper's
    code draws N(0, 0.01²), which its weight norm then replaces.
    """
    model = TCN(in_features, num_classes, num_channels, kernel_size, dropout)
    return load_weights(model, weights, "linear", replace_head, strip_prefix, "")
