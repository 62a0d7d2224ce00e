"""Which output belongs to which target, and both in one shape.

(N,) and (N, 1) hold the same numbers, and never make (N, N).

Broadcasting aligns shapes from the right, so that the rows of a vector meet the columns of a
matrix. Between outputs and targets that is the classic silent mistake. A function of the user's may
mean either shape: it gets the target as it is in the data, and in the output's shape where that
leads to rows that meet columns. What it did is read from the graph.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.structure import flatten
from hotloop.errors import ConfigError, ShapeError
from hotloop.graph.pointwise import where
from hotloop.graph.symbolic import Tensor

if TYPE_CHECKING:
    from hotloop.graph.trace import Trace

__all__ = [
    "by_position",
    "call_matched",
    "check_rows",
    "class_axis",
    "count_classes",
    "fix_of_layout",
    "key_of",
    "match_shape",
    "pick_output",
    "put_output",
]

Shape = tuple[int, ...]


# ---- which output


def pick_output(output: Any, name: str = "", names: Sequence[str] = ("",)) -> Any:
    """The output that a target is compared with, by the loss, the metrics and predict alike.

    Parameters
    ----------
    output : Tensor or array, or structure of them
        What forward returns.
    name : str
        Of the target; "" where there is one.
    names : sequence of str
        Of all targets, in their order; positions for a tuple of targets.

    Returns
    -------
    Tensor or array
        For one target a tuple's first, a dict's "logits" or only entry; for several that of the
        target's name or position.

    Raises
    ------
    ConfigError
        If there is none, with the names of both sides.
    """
    if name:
        return pick_output(output[key_of(output, name, names)])
    if isinstance(output, (tuple, list)) and output:
        return pick_output(output[0])
    if isinstance(output, Mapping):
        if "logits" in output:
            return pick_output(output["logits"])
        if len(output) == 1:
            return pick_output(next(iter(output.values())))
        raise ConfigError(
            "forward: one target is compared with one output, got a dict of "
            f'{", ".join(map(str, output))}; name that output "logits", give the targets as a dict '
            "of the same names, or make the loss in training_step"
        )
    return output


def put_output(output: Any, value: Any, name: str, names: Sequence[str]) -> Any:
    """The outputs with another value for that of a target; of a single target the value alone."""
    if not name:
        return value
    key = key_of(output, name, names)
    if isinstance(output, Mapping):
        return {**output, key: value}
    return tuple(value if i == key else each for i, each in enumerate(output))


def key_of(output: Any, name: str, names: Sequence[str]) -> Any:
    """Where the output of one of several targets is."""
    are_positions = all(each.isdigit() for each in names)
    wanted = f"{len(names)} outputs in a tuple, one" if are_positions else "a dict with an output"
    if isinstance(output, Mapping):
        if not are_positions and not set(names) - set(output):
            return name
        got = f"a dict of {', '.join(map(str, output))}"
    elif isinstance(output, (tuple, list)):
        if len(output) == len(names) or (are_positions and len(output) > len(names)):
            return list(names).index(name)
        got = f"{len(output)} outputs"
    else:
        got = f"one output of shape {tuple(output.shape)}"
    raise ConfigError(
        f"forward: must return {wanted} for each of the targets {', '.join(names)}, got {got}; "
        "return them under these names, or make the loss in training_step"
    )


# ---- classes


def class_axis(output: Shape, target: Shape, *, is_second: bool = False) -> int | None:
    """The dim of an output that has the classes: 1 or -1.

    Parameters
    ----------
    output : tuple of int
        (N, C, ...) or (N, ..., C).
    target : tuple of int
        Of class ids, (N, ...).
    is_second : bool
        Whether dim 1 has them where both fit, as torch's losses say; else that is refused.

    Returns
    -------
    int or None
        None: the output holds one logit for each id.

    Raises
    ------
    ShapeError
        If neither fits, or both do: there are as many classes as positions.
    """
    fits_second = len(output) > 1 and (output[0], *output[2:]) == target
    fits_last = len(output) > 1 and output[:-1] == target
    if fits_second and fits_last and len(target) > 1 and output[1] > 1 and not is_second:
        raise ShapeError(
            f"output: the classes may lie in dim 1 or in the last of shape {output} for class ids "
            f"of shape {target}, which has as many positions as classes; write "
            "loss=nn.CrossEntropyLoss(), for which it is dim 1, and x.movedim(-1, 1) in forward "
            "where it is the last"
        )
    if fits_second or fits_last:
        return 1 if fits_second else -1
    if hold_the_same(output, target):
        return None
    rest = "".join(f", {dim}" for dim in target[1:])
    forms = f"(rows, classes{rest})" + (f" or (rows{rest}, classes)" if rest else "")
    fix = fix_of_layout(output, target)
    if not fix and 1 in target[1:]:
        fix = f"give y.squeeze({target.index(1, 1)}) as targets"
    elif not fix and len(output) <= len(target):
        fix = "for values instead of class ids give floats as targets"
    raise ShapeError(
        f"output: must have shape {forms} for class ids of shape {target}, got {output}; "
        f"{fix or 'check what forward returns'}"
    )


def count_classes(output: Shape, axis: int | None) -> int:
    """How many classes an output of that shape has: 2 of one logit."""
    n = 1 if axis is None or len(output) < 2 else output[axis]
    return 2 if n == 1 else n


def by_position(
    output: Tensor, target: Tensor, weight: Tensor | None, axis: int | None, ignored: int | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """A row for each class id.

    Parameters
    ----------
    output : Tensor
        (N, C), (N, C, ...) or (N, ..., C), or one logit per id.
    target : Tensor
        (N, ...)
    weight : Tensor (N,) or None
        Of the rows.
    axis : int or None
        The dim of the classes.
    ignored : int or None
        The id of what counts nothing; None: there is none.

    Returns
    -------
    tuple of Tensor
        Outputs (M, C), or (M,) of one logit each, class ids (M,) and weights (M,) or None. What is
        ignored has id 0 and weight 0.
    """
    n = target.numel()
    if axis is None:
        scores = output.reshape(n)
    else:
        last = output if axis in (-1, output.ndim - 1) else output.movedim(axis, -1)
        scores = last.reshape(n, -1)
    goal = target.reshape(n)
    if weight is not None and target.ndim > 1:
        rows = weight.reshape(weight.shape[0], 1)
        weight = rows.expand(weight.shape[0], n // weight.shape[0]).reshape(n)
    if ignored is not None:
        counts = goal != ignored
        share = counts.cast("float32")
        weight = share if weight is None else weight * share
        goal = where(counts, goal, 0)
    return scores, goal, weight


def check_unmasked(label: str, name: str, target: Any) -> None:
    """Refuses targets of pixels where what compares them cannot leave out those beside a mask.

    Parameters
    ----------
    label, name : str
        What compares them: of the configuration, and its own.
    target : Tensor or structure of them

    Raises
    ------
    ConfigError
    """
    for each in flatten(target)[0]:
        mask = each.trace.noted("mask") if isinstance(each, Tensor) else None
        if mask is not None and hold_the_same(each.shape, mask.shape):
            raise ConfigError(
                f"{label}: {name or 'they'} would count pixels that x['mask'] leaves out; give "
                "class ids or bools of the cube's shape without channels, three dims or more, "
                "beside 'cross_entropy' or 'bce', or write a stats.ModuleLoss or a training_step "
                "that leaves pixels out"
            )


# ---- shapes


def match_shape(target: Tensor, output: Tensor) -> Tensor:
    """The target in the output's shape where both hold the same numbers: (N,) and (N, 1).

    Raises
    ------
    ShapeError
        Where they do not.
    """
    if target.shape == output.shape:
        return target
    if hold_the_same(target.shape, output.shape):
        return target.reshape(output.shape)
    fix = fix_of_layout(output.shape, target.shape) or "check the last layer's size"
    if target.ndim == 1 and output.ndim == 2:
        fix = "for one value per row end in Linear(..., 1), for classes give integers as targets"
    raise ShapeError(
        f"target: must have the output's shape {output.shape}, got {target.shape}; {fix}"
    )


def hold_the_same(a: Shape, b: Shape) -> bool:
    """Whether arrays of these shapes have the same numbers in one order: dims of 1, and dims that
    one has flattened, apart. (N, C, H, W) and (N, H, W, C) do not.
    """
    ends_a, ends_b = (set(itertools.accumulate(shape, operator.mul)) for shape in (a, b))
    return (
        a[:1] == b[:1]
        and math.prod(a) == math.prod(b)
        and (not ends_a - ends_b or not ends_b - ends_a)
    )


def fix_of_layout(output: Shape, target: Shape) -> str:
    """What to write where targets of images are laid out otherwise than outputs are; or "".

    Parameters
    ----------
    output, target : tuple of int
        (N, C, ...) and what does not fit it.
    """
    rest = output[2:]
    if rest and target == (output[0], *rest, output[1]):
        return (
            "of one-hot classes give ids, y.argmax(-1); of values put the channels first, "
            "np.moveaxis(y, -1, 1)"
        )
    if len(output) > 1 and len(target) > 1 and target in ((output[0], *rest), output[:-1]):
        return "for class ids give integers, y.astype(int)"
    return ""


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
        is_same = hold_the_same(target.shape, output.shape)
        forms += [target.reshape(output.shape)] if is_same else []
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
    fix = fix_of_layout(outputs[0].shape, target.shape) if len(outputs) == 1 else ""
    fix = f"; {fix}" if fix else ""
    raise ShapeError(f"{trouble} (output {shapes}, target {target.shape}){fix}") from None


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
