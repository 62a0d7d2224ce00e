"""Outputs and targets in one shape: (N,) and (N, 1) hold the same numbers, and never make (N, N).

Broadcasting aligns shapes from the right, so that the rows of a vector meet the columns of a
matrix. Between outputs and targets that is the classic silent mistake. A function of the user's may
mean either shape: it gets the target as it is in the data, and in the output's shape where that
leads to rows that meet columns. What it did is read from the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.structure import flatten
from hotloop.errors import ShapeError
from hotloop.graph.symbolic import Tensor

if TYPE_CHECKING:
    from hotloop.graph.trace import Trace

__all__ = ["call_matched", "check_rows", "match_shape"]

Shape = tuple[int, ...]


def match_shape(target: Tensor, output: Tensor) -> Tensor:
    """The target in the output's shape where both hold the same numbers: (N,) and (N, 1).

    Raises
    ------
    ShapeError
        Where they do not.
    """
    if target.shape == output.shape:
        return target
    if _hold_the_same(target, output):
        return target.reshape(output.shape)
    fix = "check the last layer's size"
    if target.ndim == 1 and output.ndim == 2:
        fix = "for one value per row end in Linear(..., 1), for classes give integers as targets"
    raise ShapeError(
        f"target: must have the output's shape {output.shape}, got {target.shape}; {fix}"
    )


def _hold_the_same(target: Tensor, output: Tensor) -> bool:
    return target.numel() == output.numel() and target.shape[:1] == output.shape[:1]


def call_matched(name: str, loss: Callable[[Any, Any], Any], output: Any, target: Any) -> Any:
    """What a function makes of an output and a target, which are matched for it.

    Parameters
    ----------
    name : str
        Of the function, for messages.
    loss : callable
        ``loss(output, target)``.
    output : Tensor or structure of them
    target : Tensor or None
        It is given as it is; where the function then cannot compare it with the output, or would
        compare each row with all others, in the output's shape.

    Raises
    ------
    ShapeError
        With both shapes, if neither does.
    """
    if not isinstance(target, Tensor):
        return loss(output, target)
    forms = [target]
    if isinstance(output, Tensor) and target.shape != output.shape:
        forms += [target.reshape(output.shape)] if _hold_the_same(target, output) else []
    outputs, trouble = flatten(output)[0], None
    for form in forms:
        try:
            made = loss(output, form)
            check_rows(f"loss {name}", target.trace, outputs, [form])
        except ShapeError as error:
            trouble = trouble or error
        else:
            return made
    assert trouble is not None  # the first form has failed
    shapes = ", ".join(str(tensor.shape) for tensor in outputs)
    raise ShapeError(f"{trouble} (output {shapes}, target {target.shape})") from None


def check_rows(
    what: str, trace: Trace, outputs: Sequence[Tensor], targets: Sequence[Tensor]
) -> None:
    """Refuses an elementwise op in which the rows of one side meet the columns of the other.

    Parameters
    ----------
    what : str
        The beginning of the error.
    trace : Trace
        In which outputs and targets were compared.
    outputs, targets : sequence of Tensor
        Their first dim: rows. What is computed from one side alone may broadcast as it likes.

    Raises
    ------
    ShapeError
        With the shapes of both operands, and how to write what was meant.
    """
    graph = trace.graph
    wholes = {tensor.shape for tensor in (*outputs, *targets)}
    rows = {tensor.shape[0] for tensor in targets if tensor.ndim}
    of_output = {tensor.id_in(trace) for tensor in outputs}
    of_target = {tensor.id_in(trace) for tensor in targets}
    for node in graph.nodes():
        inputs, made = node["inputs"], node["outputs"]
        if not of_output.isdisjoint(inputs) and not of_target.isdisjoint(inputs):
            known = [value for value in inputs if value in of_output or value in of_target]
            shapes = [graph.shape(value) for value in known]
            found = _rows_on_columns(shapes, graph.shape(made[0]), rows, wholes)
            if found is not None:
                low, high = found
                raise ShapeError(
                    f"{what}: {node['op']} must compare rows with rows, got shapes {high} and "
                    f"{low}, whose rows would meet the columns; give both one shape: "
                    "x.squeeze(-1) or x.unsqueeze(-1)"
                )
        if not of_output.isdisjoint(inputs):
            of_output.update(made)
        if not of_target.isdisjoint(inputs):
            of_target.update(made)


def _rows_on_columns(
    shapes: Sequence[Shape], result: Shape, rows: Collection[int], wholes: Collection[Shape]
) -> tuple[Shape, Shape] | None:
    """Two operands of an elementwise op of which the lower one's rows lie on the other's columns:
    on a dim of 1, which they stretch, or where both are whole outputs or targets."""
    try:
        if np.broadcast_shapes(*shapes) != result:
            return None  # not elementwise
    except ValueError:
        return None
    for low in shapes:
        for high in shapes:
            shift = len(high) - len(low)
            if not low or shift <= 0 or low[0] == 1 or low[0] not in rows:
                continue
            if high[shift] == 1 or (low in wholes and high in wholes):
                return low, high
    return None
