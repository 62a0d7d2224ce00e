"""Operands that an op refuses, found before training and named by the user's own row.

Ids out of range, lengths of recurrences, lengths and targets of CTC, and matrices that have no
factor: the step would meet them too, but in the middle of an epoch and by their place in a batch.
So every such operand of the traced forward pass and loss that is made of data is looked at first.
Where it is a field as it is, one scan of the field's range decides. Where forward makes it (columns
taken apart, offsets added), the part of the graph that does is run over the split, and a bad batch
again with each of its rows alone, which names the row whatever the operand's layout. A matrix is
tried by its own op.

Where rows of the batch are mixed, a row alone proves nothing: of all but ids only what is made row
by row is looked at. That, and what depends on parameters, random numbers or steps, is left to the
step, which names the row of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotloop import _core
from hotloop.base.watching import report
from hotloop.data.checks import are_in_range, place
from hotloop.errors import DataError
from hotloop.nn.functional.sequence_losses import first_bad_target
from hotloop.training.plans.runtime import Runtime, run_whole

if TYPE_CHECKING:
    from hotloop.data.split import Field, Split

__all__ = ["check_operands"]

# Ops that choose from their first input along an axis, by their second.
_INDEXED = {"gather", "scatter", "scatter_add", "index_select", "index_add", "index_copy"}
_SAME_VALUES = {"reshape", "permute", "cast", "batch_gather"}


# Ops whose operands are lengths: which operand, what it is, which ones say the most, at which dim,
# and of what these are so many.
_LENGTHS = {
    "recurrent_layer": [(4, "lengths", 0, 1, "steps")],
    "recurrence": [(3, "lengths", 1, 1, "steps")],
    "ctc_loss": [(2, "input_lengths", 0, 0, "times"), (3, "target_lengths", 1, 1, "targets")],
}
_MATRICES = {"cholesky", "triangular_solve"}
_POINTWISE = {op["name"] for op in _core.op_table() if op["pointwise"]}
# Ops that work along their axes alone.
_ALONG = {
    "sum", "prod", "amax", "amin", "argmax", "argmin", "median", "cumsum", "sort", "slice", "split",
    "concat", "flip",
}  # fmt: skip


class _Operand(NamedTuple):
    """What an op refuses some values of, and the nodes and leaves that make it."""

    kind: str  # "indices", "targets", "matrix", or the name of some lengths
    values: tuple[int, ...]  # the operand; of targets their lengths too
    limit: int  # integers must lie in [0, limit)
    of: str  # what there are so many of, of lengths
    is_table: bool  # whether a layer's parameter is looked up, which may have more rows
    node: dict[str, Any]
    nodes: list[dict[str, Any]]
    leaves: list[dict[str, Any]]

    @property
    def datasets(self) -> list[int]:
        """Numbers of the fields that it is made of."""
        return [leaf["index"] for leaf in self.leaves if leaf["kind"] == "dataset"]


class _Found(NamedTuple):
    """The row whose operand is bad; the value, or what the op said of the matrix."""

    row: int
    value: Any
    where: str = ""  # of a target: at which position


def _labels(fields: list[Field]) -> str:
    return " and ".join(field.label for field in fields)


def check_operands(
    runtime: Runtime, graph: _core.Graph, split: Split, rows: int, *, alone: bool = False
) -> None:
    """Refuses what ops of the model and its loss would refuse of the split.

    Parameters
    ----------
    runtime : Runtime
        With the model's values in its session, unless ``alone``.
    graph : Graph
        Traced for batches of ``rows`` of this split's fields.
    split : Split
    rows : int
        At most as many as the split has.
    alone : bool
        Whether the runtime's session is left as it is.

    Raises
    ------
    DataError
        With the input, row, value, and what is allowed.
    """
    for operand in _find_operands(graph, rows):
        fields = [split.fields[i] for i in operand.datasets]
        if any(field.stream is not None for field in fields):
            continue  # rows are made batch by batch: the step reports what is out of range
        is_plain = len(fields) == 1 and _is_plain(operand, fields[0])
        if is_plain and are_in_range(fields[0], 0, operand.limit):
            continue
        found = _first_bad(runtime, graph, operand, split, rows, alone=alone)
        if found is not None:
            raise DataError(_describe(runtime, operand, fields, found))


def _operands_of(
    graph: _core.Graph, node: dict[str, Any]
) -> Iterator[tuple[str, tuple[int, ...], int, str]]:
    """Kind, values, limit and of what of each operand that the node may refuse."""
    inputs, op = node["inputs"], node["op"]
    if op in _INDEXED:
        yield "indices", inputs[1:2], graph.shape(inputs[0])[node["attrs"]["axis"]], ""
    for at, kind, sized, dim, of in _LENGTHS.get(op, ()):
        yield kind, (inputs[at],), graph.shape(inputs[sized])[dim] + 1, of
    if op == "ctc_loss":
        yield "targets", (inputs[1], inputs[3]), graph.shape(inputs[0])[2], ""
    if op in _MATRICES:
        yield "matrix", inputs[:1], 0, ""


def _find_operands(graph: _core.Graph, rows: int) -> Iterator[_Operand]:
    nodes = graph.nodes()
    makers = {value: i for i, node in enumerate(nodes) for value in node["outputs"]}
    leaves = {leaf["id"]: leaf for leaf in graph.leaves()}
    seen = set()
    for node in nodes:
        for kind, values, limit, of in _operands_of(graph, node):
            by = node["op"] if kind == "matrix" else node["attrs"].get("blank")
            if (kind, values, limit, by) in seen:
                continue
            seen.add((kind, values, limit, by))
            inner, outer = _ancestors(values, nodes, makers)
            first = _ancestors(values[:1], nodes, makers)[1]
            used = [leaves[value] for value in (*sorted(first), *sorted(outer - first))]
            is_of_data = all(
                leaf["kind"] not in ("param", "scalar") and leaf["name"] != "control"
                for leaf in used
            )
            if not is_of_data or all(leaf["kind"] != "dataset" for leaf in used):
                continue
            table = leaves.get(node["inputs"][0])
            is_table = table is not None and table["kind"] == "param"
            made_by = [nodes[i] for i in sorted(inner)]
            operand = _Operand(kind, values, limit, of, is_table, node, made_by, used)
            if (
                kind == "indices"
                or (kind.endswith("lengths") and _has_same_values(operand))
                or _is_by_row(graph, operand, rows)
            ):
                yield operand


def _is_by_row(graph: _core.Graph, operand: _Operand, rows: int) -> bool:
    """Whether row i of the operand is made of row i of the batch alone, and of every other row in
    the same way.
    """
    of_rows: set[int] = set()
    for node in operand.nodes:
        inputs = [value for value in node["inputs"] if value in of_rows]
        if node["op"] != "batch_gather" and not inputs:
            continue  # made of constants
        rank = len(graph.shape(node["outputs"][0]))
        shapes = [graph.shape(value) for value in (*inputs, *node["outputs"])]
        if any(shape[:1] != (rows,) for shape in shapes):
            return False
        if node["op"] != "batch_gather" and not _treats_rows_alike(graph, node, of_rows, rank):
            return False
        of_rows.update(node["outputs"])
    others = [value for value in operand.values if value not in of_rows]
    constants = [graph.const_value(value) for value in others]
    return operand.values[0] in of_rows and all(
        value is not None and (value == value.flat[0]).all() for value in constants if _size(value)
    )


def _size(value: Any) -> int:
    return 1 if value is None else int(value.size)


def _treats_rows_alike(
    graph: _core.Graph, node: dict[str, Any], of_rows: set[int], rank: int
) -> bool:
    """Of a node whose operands in ``of_rows`` and outputs have the batch's rows as dim 0."""
    op, attrs = node["op"], node["attrs"]
    for value in node["inputs"]:
        shape = graph.shape(value)
        if value in of_rows:
            if op in _POINTWISE | {"expand", "matmul"} and len(shape) != rank:
                return False  # dim 0 may stand elsewhere in the output
        elif len(shape) == rank and shape[:1] != (1,):
            return False  # one number for each place in the batch
    if op in _ALONG:
        axes = attrs["axes"] if "axes" in attrs else (attrs["axis"],)
        return bool(axes) and all(axis > 0 for axis in axes)
    if op == "permute":
        return bool(attrs["dims"][0] == 0)
    if op == "matmul":
        return rank > 2 and len(node["inputs"]) == 2
    return op in _POINTWISE or op in ("reshape", "expand", "detach")


def _ancestors(
    values: tuple[int, ...], nodes: list[dict[str, Any]], makers: dict[int, int]
) -> tuple[set[int], set[int]]:
    """Numbers of the nodes, and ids of the leaves, that values are made of."""
    inner: set[int] = set()
    outer: set[int] = set()
    left = [*values]
    while left:
        at = left.pop()
        maker = makers.get(at)
        if maker is None:
            outer.add(at)
        elif maker not in inner:
            inner.add(maker)
            left += nodes[maker]["inputs"]
    return inner, outer


def _has_same_values(operand: _Operand) -> bool:
    return all(node["op"] in _SAME_VALUES for node in operand.nodes)


def _is_plain(operand: _Operand, field: Field) -> bool:
    """Whether the operand holds the field's integers as they are, and its range decides."""
    is_range = operand.kind not in ("targets", "matrix")
    return is_range and field.array.dtype.kind in "iu" and _has_same_values(operand)


def _first_bad(
    runtime: Runtime,
    graph: _core.Graph,
    operand: _Operand,
    split: Split,
    rows: int,
    *,
    alone: bool,
) -> _Found | None:
    """The first row whose operand is bad."""
    host = runtime
    if alone or runtime.has_own_memory:  # the arrays are the host's and may not fit on the device
        host = Runtime(runtime.model, _core.Device("cpu"), seed=runtime.seed)
        host.upload()
    plan = host.plan(_part_of(graph, operand, host.session.stores()))
    host.give_data(plan, split, None)
    try:
        return _search(plan, operand, split, rows)
    finally:
        host.drop(plan)


def _bad_value(operand: _Operand, values: list[Any]) -> tuple[Any, str] | None:
    """The first value that is out of range, and where it is beside its row."""
    if operand.kind == "targets":
        limit, blank = operand.limit, operand.node["attrs"]["blank"]
        found = first_bad_target(values[0], values[1], limit, blank)
        return None if found is None else (found[2], f" at position {found[1]}")
    at = _core.check_range(values[0], 0, operand.limit)
    return None if at is None else (int(values[0][at]), "")


def _search(plan: _core.Plan, operand: _Operand, split: Split, rows: int) -> _Found | None:
    """Runs the plan over the split."""

    def bad_value(numbers: Any) -> tuple[Any, str] | None:
        plan.input(0, numbers)
        if operand.kind != "matrix":
            run_whole(plan)
            return _bad_value(operand, [plan.output(i) for i in range(len(operand.values))])
        try:
            run_whole(plan)
        except DataError as error:
            return str(error), ""
        return None

    fields = [split.fields[i] for i in operand.datasets]
    name = "matrices" if operand.kind == "matrix" else operand.kind
    what = f"checking the {name} that forward makes of {_labels(fields)}"
    row_bytes = sum(field.array[:1].nbytes for field in fields)
    numbers = np.arange(split.n) if split.rows is None else split.rows
    for begin in range(0, split.n, rows):
        first = min(begin, split.n - rows)
        batch = numbers[first : first + rows]
        if begin:
            report(what, begin * row_bytes, split.n * row_bytes)
        if bad_value(batch) is None:
            continue
        for row in batch:
            found = bad_value(np.full(rows, row))
            if found is not None:
                return _Found(int(row), *found)
    return None  # rows are mixed: the step reports it


def _part_of(
    graph: _core.Graph, operand: _Operand, stores: dict[str, tuple[str, int]]
) -> _core.Graph:
    """A graph of its own that makes the operand, and of a matrix its op's result."""
    part = _core.Graph()
    ids: dict[int, int] = {}
    needed = {leaf["id"] for leaf in operand.leaves}
    for leaf in graph.leaves():
        kind, dtype, shape = leaf["kind"], leaf["dtype"], leaf["shape"]
        if kind in ("input", "dataset"):  # all of them: they go by number
            make = part.input if kind == "input" else part.dataset
            ids[leaf["id"]] = make(leaf["name"], dtype, shape)
        elif leaf["id"] not in needed:
            continue
        elif kind == "const":
            constant = graph.const_value(leaf["id"])
            assert constant is not None
            ids[leaf["id"]] = part.const(constant)
        else:
            store = leaf["store"]
            part.store(store, *stores[store])
            ids[leaf["id"]] = part.state(leaf["name"], dtype, shape, store, leaf["offset"])
    for node in operand.nodes:
        made = part.add(node["op"], [ids[i] for i in node["inputs"]], **node["attrs"])
        ids.update(zip(node["outputs"], made, strict=True))
    if operand.kind != "matrix":
        for value in operand.values:
            part.output(ids[value])
        return part
    others = [part.const(_zeros_like(graph, value)) for value in operand.node["inputs"][1:]]
    given = [ids[operand.values[0]], *others]
    part.output(part.add(operand.node["op"], given, **operand.node["attrs"])[0])
    return part


def _zeros_like(graph: _core.Graph, value: int) -> Any:
    return np.zeros(graph.shape(value), graph.dtype(value))


def _name_layer(runtime: Runtime, operand: _Operand) -> str:
    scope = operand.node["scope"] or ""
    try:
        layer = runtime.model.get_submodule(scope)
    except AttributeError:
        return repr(scope)
    return f"{type(layer).__name__} {scope!r}" if scope else operand.node["op"]


def _describe(runtime: Runtime, operand: _Operand, fields: list[Field], found: _Found) -> str:
    layer, limit = _name_layer(runtime, operand), operand.limit
    got = f"got {found.value}{found.where}"
    if operand.kind == "matrix":
        rule = found.value.partition(" must ")[2]
        row = place(fields[0], found.row, ())
        return f"{_labels(fields)}: the matrix that {layer} takes of {row} must {rule}"
    name, fix, more = operand.kind, f"mend the {operand.kind}", ""
    if name == "indices" and operand.is_table:
        rule = f"must be at least 0 and below {limit}, the rows that {layer} has, {got}"
        name, fix = "ids", "renumber them from 0, or give the layer more rows"
        more = ", or give the layer more rows"
    elif name == "indices":
        rule = f"must be at least 0 and below {limit}, the places that {layer} indexes, {got}"
    elif name == "targets":
        blank = operand.node["attrs"]["blank"]
        rule = (
            f"must be classes, at least 0 and below {limit}, and not the blank {blank}, of "
            f"{layer}, {got}"
        )
    else:
        rule = f"must be at least 0 and at most {limit - 1}, the {operand.of} of {layer}, {got}"
    for field in fields[:1] if found.where else fields:  # lengths of targets stand behind them
        at = np.argwhere(np.asarray(field.array[found.row]) == found.value)
        if len(at):
            index = () if found.where else tuple(int(i) for i in at[0])
            where = place(field, found.row, index)
            joint = "of" if found.where else "in"
            return f"{field.label}: {name} {rule} {joint} {where}; {fix}"
    made = "index" if operand.kind == "indices" else name
    return (
        f"{layer}: the {made} that forward computes of {_labels(fields)} {rule} for row "
        f"{found.row}; mend forward{more}"
    )
