"""Heads with their loss, for very many classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import creation, indexing, pointwise, reduction, views
from hotloop.graph.build import lift
from hotloop.nn import functional as F
from hotloop.nn.containers import ModuleList, Sequential
from hotloop.nn.functional.arguments import Count, Positive, Probability
from hotloop.nn.functional.chunks import LinearCrossEntropyOptions
from hotloop.nn.functional.reductions import check_reduction
from hotloop.nn.linear import Linear
from hotloop.nn.module import Module
from hotloop.nn.parameter import Buffer

__all__ = ["AdaptiveLogSoftmaxWithLoss", "LinearCrossEntropyLoss", "LinearCrossEntropyOptions"]


class LinearCrossEntropyLoss(Module):
    """A linear head and the cross-entropy of its logits.

    Parameters
    ----------
    in_features : int
        Size of the input's last dim.
    num_classes : int
        C.
    out_features : tuple of int
        Dims of targets behind their first: logits are ``(N, C, *out_features)``.
    bias : bool
        Whether the head has one.
    device, dtype
        Taken for torch's sake.
    reduction : {"mean", "sum", "none"}
        As of :class:`CrossEntropyLoss`.
    weight : array, optional
        One per class, ``(C,)``.
    ignore_index : int, optional
        Targets of this value count nothing; -100 by default.
    label_smoothing : float
        The share spread over all classes, in [0, 1].
    options : LinearCrossEntropyOptions, optional
        Chunks of rows, of which one's logits are in memory at a time.

    Attributes
    ----------
    linear : Linear
        The head, from in_features to all logits of a row.

    Raises
    ------
    ConfigError
        If reduction is unknown, or options are no LinearCrossEntropyOptions.

    Notes
    -----
    Inputs: ``(in_features,)`` or ``(N, in_features)`` and class numbers ``(N, *out_features)``, or
    probabilities ``(N, C, *out_features)``.
    The formula: :func:`hotloop.nn.functional.linear_cross_entropy`.
    """

    weight: Buffer | None

    def __init__(
        self,
        in_features: Count,
        num_classes: Count,
        *,
        out_features: Sequence[int] = (),
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        reduction: str = "mean",
        weight: Any = None,
        ignore_index: int | None = None,
        label_smoothing: Probability = 0.0,
        options: Any = None,
    ) -> None:
        super().__init__()
        check_reduction("LinearCrossEntropyLoss", reduction)
        if not isinstance(options, LinearCrossEntropyOptions | None):
            raise ConfigError(
                "LinearCrossEntropyLoss: options must be nn.LinearCrossEntropyOptions, got "
                f"{options!r}"
            )
        self.options = options
        self.num_classes = num_classes
        self.out_features = tuple(out_features)
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.register_buffer("weight", weight)
        n_logits = math.prod(self.out_features, start=num_classes)
        self.linear = Linear(in_features, n_logits, bias=bias)

    def forward(self, input: Any, target: Any) -> Any:
        sizes, bias = (self.num_classes, *self.out_features), self.linear.bias
        return F.linear_cross_entropy(
            input,
            views.reshape(self.linear.weight, (*sizes, self.linear.in_features)),
            target,
            linear_bias=None if bias is None else views.reshape(bias, sizes),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            options=self.options,
        )

    def extra_repr(self) -> str:
        return (
            f"in_features={self.linear.in_features}, num_classes={self.num_classes}, "
            f"out_features={self.out_features}, bias={self.linear.bias is not None}, "
            f"reduction={self.reduction}, ignore_index={self.ignore_index}, "
            f"label_smoothing={self.label_smoothing}, options={self.options}"
        )


class AdaptiveOutput(NamedTuple):
    """What an adaptive softmax gives in ``forward``; ``model(array)`` has it as a plain tuple.

    ``output`` (N,) are the targets' log probabilities, ``loss`` is their negative mean.
    """

    output: Any
    loss: Any


class AdaptiveLogSoftmaxWithLoss(Module):
    """A softmax over classes in order of their frequency, whose rare ones have narrow heads.

    The first ``cutoffs[0]`` classes, and one for each further cluster of classes, are logits of the
    head; a cluster's classes are logits of two linear maps, by way of ``in_features / div_value``,
    ``in_features / div_value²``, ... numbers.

    Parameters
    ----------
    in_features : int
        Size of the input's last dim.
    n_classes : int
        How many; class 0 the most frequent one.
    cutoffs : sequence of int
        Where clusters begin, ascending, below n_classes.
    div_value : float
        By how much each cluster is narrower than the one before it.
    head_bias : bool
        Whether the head has one.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    head : Linear
        ``(cutoffs[0] + clusters, in_features)``.
    tail : ModuleList
        For each cluster two Linear layers without bias.

    Raises
    ------
    ConfigError
        If cutoffs are not ascending integers from 1 to n_classes - 1.

    Notes
    -----
    Inputs: ``(N, in_features)`` and class numbers ``(N,)``, or of one row without N. Grave et al.
    2017. All rows go through all clusters, where torch picks those of a cluster: shapes are known
    before values here. Its parameters, and memory, are as few all the same.
    """

    def __init__(
        self,
        in_features: Count,
        n_classes: Count,
        cutoffs: Sequence[int],
        div_value: Positive = 4.0,
        head_bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        cuts = [int(c) if c == int(c) else c for c in cutoffs]
        if not cuts or cuts != sorted(set(cuts)) or cuts[0] < 1 or cuts[-1] >= n_classes:
            raise ConfigError(
                "AdaptiveLogSoftmaxWithLoss: cutoffs must be ascending integers from 1 to "
                f"n_classes - 1, which is {n_classes - 1}, got {list(cutoffs)}"
            )
        self.in_features = in_features
        self.n_classes = n_classes
        self.cutoffs = [*cuts, n_classes]
        self.div_value = div_value
        self.head_bias = head_bias
        self.shortlist_size = cuts[0]
        self.n_clusters = len(cuts)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            width = int(in_features // div_value ** (i + 1))
            size = self.cutoffs[i + 1] - self.cutoffs[i]
            self.tail.append(
                Sequential(Linear(in_features, width, bias=False), Linear(width, size, bias=False))
            )

    def reset_parameters(self) -> None:
        """torch's initial values again."""
        self.head.reset_parameters()
        for tail in self.tail:
            for layer in tail.children():
                layer.reset_parameters()

    def forward(self, input: Any, target: Any) -> AdaptiveOutput:
        x, y = self._rows(input), lift(target, what="AdaptiveLogSoftmaxWithLoss")
        if y.shape != input.shape[:-1]:
            raise ShapeError(
                f"targets must have shape {tuple(input.shape[:-1])} for input of shape "
                f"{tuple(input.shape)}, got {tuple(y.shape)}"
            )
        y = y.reshape(-1)
        # By class: its cluster, 0 being the head, and its place there; no such class is an error.
        cluster, place = (
            indexing.index_select(creation.tensor(table), 0, y) for table in self._tables()
        )
        first = self.shortlist_size
        head = reduction.log_softmax(self.head(x), 1)
        output = _pick(head, place, cluster == 0)
        for i, tail in enumerate(self.tail):
            picked = _pick(reduction.log_softmax(tail(x), 1), place, cluster == i + 1)
            in_cluster = pointwise.where(cluster == i + 1, head[:, first + i], 0.0)
            output = output + picked + in_cluster
        return AdaptiveOutput(output.reshape(*target.shape), -reduction.mean(output))

    def log_prob(self, input: Any) -> Any:
        """Log probabilities of all classes.

        Parameters
        ----------
        input : Tensor
            ``(N, in_features)``.

        Returns
        -------
        Tensor
            ``(N, n_classes)``.
        """
        x, first = self._rows(input), self.shortlist_size
        head = reduction.log_softmax(self.head(x), 1)
        parts = [head[:, :first]]
        for i, tail in enumerate(self.tail):
            parts.append(reduction.log_softmax(tail(x), 1) + head[:, first + i : first + i + 1])
        return views.cat(parts, 1)

    def predict(self, input: Any) -> Any:
        """The most probable class of each row.

        Parameters
        ----------
        input : Tensor
            ``(N, in_features)``.

        Returns
        -------
        Tensor
            ``(N,)``, int64.
        """
        return reduction.argmax(self.log_prob(input), 1)

    def _rows(self, input: Any) -> Any:
        if input.ndim not in (1, 2) or input.shape[-1] != self.in_features:
            raise ShapeError(
                f"the input must have shape (N, in_features={self.in_features}), got "
                f"{tuple(input.shape)}"
            )
        return input if input.ndim == 2 else input.unsqueeze(0)

    def _tables(self) -> tuple[Any, Any]:
        cluster, place = np.zeros((2, self.n_classes), np.int64)
        place[: self.shortlist_size] = np.arange(self.shortlist_size)
        for i, (low, high) in enumerate(zip(self.cutoffs, self.cutoffs[1:], strict=False)):
            cluster[low:high], place[low:high] = i + 1, np.arange(high - low)
        return cluster, place


def _pick(logs: Any, place: Any, is_there: Any) -> Any:
    """Of each row the number at its place, 0 in rows that are elsewhere."""
    column = pointwise.where(is_there, place, 0).unsqueeze(1)
    return pointwise.where(is_there, indexing.gather(logs, 1, column).squeeze(1), 0.0)
