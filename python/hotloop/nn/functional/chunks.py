"""Cross-entropy of a linear map in chunks of rows, whose logits never stand in memory together.

The idea: the gradient of a chunk's loss is asked for as soon as the chunk is recorded, so that its
nodes come before those of the next chunk, and a fence between two chunks keeps the planner from
running them side by side. What remains of a chunk are a sum, the gradient of its rows and its share
of the weight's gradient; the loss hands these on, times whatever its own gradient will be.

Invariant: loss and gradients are sums of those of the chunks, with the unchunked loss's terms, so
that class weights and ignored targets divide once. A graph that asks for no gradient computes none.

Rejected: recomputing the logits in the backward pass, which is a third more work.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from hotloop.errors import ConfigError
from hotloop.graph import dtypes, views
from hotloop.graph import reduction as reducing
from hotloop.graph.build import add_node
from hotloop.graph.loss_parts import loss_terms, with_parts
from hotloop.graph.symbolic import Tensor
from hotloop.nn.functional.class_losses import cross_entropy
from hotloop.nn.functional.linears import linear

__all__ = ["LinearCrossEntropyOptions", "cross_entropy_in_chunks"]

_LEAST = 64  # rows of a chunk, by itself
_POLICIES = ("accurate", "balanced", "compact", "auto")


def _refuse(name: str, rule: str, value: object) -> None:
    raise ConfigError(f"LinearCrossEntropyOptions: {name} {rule}, got {value!r}")


@dataclasses.dataclass(slots=True, frozen=True)
class LinearCrossEntropyOptions:
    """How :func:`hotloop.nn.functional.linear_cross_entropy` is cut into chunks of rows.

    The logits of one chunk are in memory at a time, ``(batch_chunk_size, num_classes)``. That pays
    where there are more classes than input features, and more rows too.

    Parameters
    ----------
    allow_retain_graph : bool
        Taken for torch's sake: a step has one backward pass.
    batch_chunk_size : int, optional
        Rows of a chunk.
    chunking_method : str, optional
        "aspect_ratio": as many rows as make a chunk's logits about as large as the input, a power
        of two; "aspect_ratio:N": an N-th of them. "auto": batch_chunk_size if it is given, else as
        "aspect_ratio:2", but 64 rows at least, below which products do not pay. None:
        batch_chunk_size, or all rows.
    acc_policy : {"auto", "accurate", "balanced", "compact"}
        Taken for torch's sake: whatever the precision of products, gradients of parameters are
        summed in float32, which is torch's "accurate", and without scratch, which is its "compact".
    acc_dtype : dtype, optional
        float32, in which sums are made.

    Raises
    ------
    ConfigError
        For another policy or method, a chunk without rows, or another dtype.
    """

    allow_retain_graph: bool = False
    batch_chunk_size: int | None = None
    chunking_method: str | None = "auto"
    acc_policy: str = "auto"
    acc_dtype: Any = None

    def __post_init__(self) -> None:
        if self.acc_policy not in _POLICIES:
            _refuse("acc_policy", f"must be one of {', '.join(_POLICIES)}", self.acc_policy)
        method, size = self.chunking_method, self.batch_chunk_size
        if method not in (None, "auto") and self._factor() < 1:
            _refuse("chunking_method", "must be 'auto', 'aspect_ratio[:N]' or None", method)
        if size is not None and (type(size) is not int or size < 1):
            _refuse("batch_chunk_size", "must be an integer, at least 1, or None", size)
        if self.acc_dtype is not None and dtypes.parse(self.acc_dtype) != dtypes.float32:
            _refuse("acc_dtype", "must be float32 or None", self.acc_dtype)

    def _factor(self) -> int:
        """N of "aspect_ratio:N"; 0: it is no such text."""
        name, colon, factor = str(self.chunking_method).partition(":")
        factor = factor if colon else "1"
        return int(factor) if name == "aspect_ratio" and factor.isdecimal() else 0

    def rows(self, num_batches: int, in_features: int, num_classes: int) -> int:
        """Rows of a chunk.

        Parameters
        ----------
        num_batches, in_features, num_classes : int
            Sizes of the input and of a row's logits.

        Returns
        -------
        int

        Raises
        ------
        ConfigError
            If batch_chunk_size and chunking_method say different things.
        """
        given, method = self.batch_chunk_size, self.chunking_method
        if method is None or (method == "auto" and given is not None):
            return max(min(given or num_batches, num_batches), 1)
        factor = 2 if method == "auto" else self._factor()
        share = -(-num_classes // max(in_features, 1))  # logits take so many times the input
        target = -(-num_batches // max(share, 1))
        rows = max((1 << (target - 1).bit_length()) // factor, _LEAST if method == "auto" else 1)
        rows = max(min(rows, num_batches), 1)
        if given is not None and given != rows:
            _refuse("batch_chunk_size", f"must be {rows}, as {method!r} says, or None", given)
        return rows


def cross_entropy_in_chunks(
    rows: int,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    target: Tensor,
    weight: Tensor | None,
    *,
    sizes: tuple[int, ...],
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    """Cross-entropy of ``x @ w.T + bias``, so many rows at a time.

    Parameters
    ----------
    rows : int
        Of a chunk.
    x, w, bias : Tensor
        ``(N, in_features)``, ``(outputs, in_features)`` and ``(outputs,)``.
    target, weight : Tensor
        As of :func:`cross_entropy` for logits ``(N, *sizes)``.
    sizes : tuple of int
        Classes, and further dims.
    reduction : {"mean", "sum"}
        With the terms of :func:`cross_entropy`.
    ignore_index, label_smoothing
        As of :func:`cross_entropy`.
    """
    trace, n = x.trace, x.shape[0]
    graph, learns = trace.graph, not trace.is_detached
    by_row = {"x": x, "y": target}  # what a chunk has a part of
    whole = {name: t for name, t in (("w", w), ("b", bias), ("c", weight)) if t is not None}
    still = {name: t.detach() for name, t in (*by_row.items(), *whole.items())}
    parts: dict[str, list[Tensor]] = {}
    shares: dict[str, Tensor] = {}
    total: Any = None
    denominator: Any = None
    for begin in range(0, n, rows):
        graph.fence()
        here = still | {name: still[name][begin : begin + rows] for name in by_row}
        logits = linear(here["x"], here["w"], here.get("b")).reshape(-1, *sizes)
        loss = cross_entropy(
            logits,
            here["y"],
            here.get("c"),
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
        )
        (term,) = loss_terms(loss)
        total = term.total if total is None else total + term.total
        denominator = term.denominator if denominator is None else denominator + term.denominator
        floats = [name for name in here if here[name].dtype.is_floating_point]
        ids = [here[name].id_in(trace) for name in floats] if learns else []
        gradients = graph.backward(term.total.id_in(trace), ids) if ids else ()
        for name, found in zip(floats, gradients):
            if found is None:
                continue
            gradient = trace.wrap(found)
            if name in by_row:
                parts.setdefault(name, []).append(gradient)
            else:
                shares[name] = shares[name] + gradient if name in shares else gradient
    shares |= {name: views.cat(found, 0) for name, found in parts.items()}
    given = by_row | whole
    linear_in = [reducing.sum(given[name] * share) for name, share in shares.items()]
    if linear_in:
        total = add_node("surrogate", total, sum(linear_in[1:], linear_in[0]))
    if reduction == "sum":
        return total  # type: ignore[no-any-return]
    if target.dtype.is_floating_point:  # probabilities: the number of them, which is no tensor
        denominator = float(n * _elements(sizes[1:]))
    return with_parts(total / denominator, total, denominator)


def _elements(sizes: tuple[int, ...]) -> int:
    n = 1
    for size in sizes:
        n *= size
    return n
