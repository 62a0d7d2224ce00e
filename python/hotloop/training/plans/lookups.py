"""Ids out of range, found before training and named by the user's own row.

The step would meet them too, but in the middle of an epoch and by their place in a batch. So every
lookup of the traced forward pass whose index is made of data is looked at first. Where the index is
a field as it is, one scan of the field's range decides. Where forward makes it (columns taken
apart, offsets added), the part of the graph that does is run over the split, and a bad batch again
with each of its rows alone, which names the row whatever the index's layout.

What depends on parameters, random numbers or steps is left to the step, which reports it as it
comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotloop import _core
from hotloop.base.watching import report
from hotloop.data.checks import are_in_range, place
from hotloop.errors import DataError
from hotloop.training.plans.runtime import Runtime, run_whole

if TYPE_CHECKING:
    from hotloop.data.split import Field, Split

__all__ = ["check_lookups"]

# Ops that choose from their first input along an axis, by their second.
_INDEXED = {"gather", "scatter", "scatter_add", "index_select", "index_add", "index_copy"}
_SAME_VALUES = {"reshape", "permute", "cast", "batch_gather"}


class _Lookup(NamedTuple):
    """A value that must lie in [0, limit), and the nodes and leaves that make it."""

    value: int
    limit: int
    scope: str
    is_table: bool  # whether a layer's parameter is looked up, which may have more rows
    nodes: list[dict[str, Any]]
    leaves: list[dict[str, Any]]

    @property
    def datasets(self) -> list[int]:
        """Numbers of the fields that it is made of."""
        return [leaf["index"] for leaf in self.leaves if leaf["kind"] == "dataset"]


def _labels(fields: list[Field]) -> str:
    return " and ".join(field.label for field in fields)


def check_lookups(
    runtime: Runtime, graph: _core.Graph, split: Split, rows: int, *, alone: bool = False
) -> None:
    """Refuses ids in the split that the model's tables have no row for.

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
    for lookup in _find_lookups(graph):
        fields = [split.fields[i] for i in lookup.datasets]
        if any(field.stream is not None for field in fields):
            continue  # rows are made batch by batch: the step reports what is out of range
        is_plain = len(fields) == 1 and _is_plain(lookup, fields[0])
        if is_plain and are_in_range(fields[0], 0, lookup.limit):
            continue
        found = _first_bad(runtime, graph, lookup, split, rows, alone=alone)
        if found is not None:
            raise DataError(_describe(runtime, lookup, fields, *found))


def _find_lookups(graph: _core.Graph) -> Iterator[_Lookup]:
    nodes = graph.nodes()
    if not any(node["op"] in _INDEXED for node in nodes):
        return
    makers = {value: i for i, node in enumerate(nodes) for value in node["outputs"]}
    leaves = {leaf["id"]: leaf for leaf in graph.leaves()}
    seen = set()
    for node in nodes:
        if node["op"] not in _INDEXED:
            continue
        table, index = node["inputs"][:2]
        limit = graph.shape(table)[node["attrs"]["axis"]]
        if (index, limit) in seen:
            continue
        seen.add((index, limit))
        inner, outer = _ancestors(index, nodes, makers)
        used = [leaves[value] for value in sorted(outer)]
        is_of_data = all(
            leaf["kind"] not in ("param", "scalar") and leaf["name"] != "control" for leaf in used
        )
        if is_of_data and any(leaf["kind"] == "dataset" for leaf in used):
            made_by = [nodes[i] for i in sorted(inner)]
            is_table = table in leaves and leaves[table]["kind"] == "param"
            yield _Lookup(index, limit, node["scope"] or "", is_table, made_by, used)


def _ancestors(
    value: int, nodes: list[dict[str, Any]], makers: dict[int, int]
) -> tuple[set[int], set[int]]:
    """Numbers of the nodes, and ids of the leaves, that a value is made of."""
    inner: set[int] = set()
    outer: set[int] = set()
    left = [value]
    while left:
        at = left.pop()
        maker = makers.get(at)
        if maker is None:
            outer.add(at)
        elif maker not in inner:
            inner.add(maker)
            left += nodes[maker]["inputs"]
    return inner, outer


def _is_plain(lookup: _Lookup, field: Field) -> bool:
    """Whether the index holds the field's integers as they are."""
    return field.array.dtype.kind in "iu" and all(
        node["op"] in _SAME_VALUES for node in lookup.nodes
    )


def _first_bad(
    runtime: Runtime,
    graph: _core.Graph,
    lookup: _Lookup,
    split: Split,
    rows: int,
    *,
    alone: bool,
) -> tuple[int, int] | None:
    """Row number and value of the first index out of range."""
    host = runtime
    if alone or runtime.has_own_memory:  # the arrays are the host's and may not fit on the device
        host = Runtime(runtime.model, _core.Device("cpu"), seed=runtime.seed)
        host.upload()
    plan = host.plan(_part_of(graph, lookup, host.session.stores()))
    host.give_data(plan, split, None)
    try:
        return _search(plan, lookup, split, rows)
    finally:
        host.drop(plan)


def _search(plan: _core.Plan, lookup: _Lookup, split: Split, rows: int) -> tuple[int, int] | None:
    """Runs the plan over the split."""

    def bad_value(numbers: Any) -> int | None:
        plan.input(0, numbers)
        run_whole(plan)
        values = plan.output(0)
        at = _core.check_range(values, 0, lookup.limit)
        return None if at is None else int(values[at])

    fields = [split.fields[i] for i in lookup.datasets]
    what = f"checking the indices that forward makes of {_labels(fields)}"
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
            value = bad_value(np.full(rows, row))
            if value is not None:
                return int(row), value
    return None  # rows are mixed: the step reports the index


def _part_of(
    graph: _core.Graph, lookup: _Lookup, stores: dict[str, tuple[str, int]]
) -> _core.Graph:
    """A graph of its own that makes the index."""
    part = _core.Graph()
    ids: dict[int, int] = {}
    needed = {leaf["id"] for leaf in lookup.leaves}
    for leaf in graph.leaves():
        kind, dtype, shape = leaf["kind"], leaf["dtype"], leaf["shape"]
        if kind in ("input", "dataset"):  # all of them: they go by number
            make = part.input if kind == "input" else part.dataset
            ids[leaf["id"]] = make(leaf["name"], dtype, shape)
        elif leaf["id"] not in needed:
            continue
        elif kind == "const":
            value = graph.const_value(leaf["id"])
            assert value is not None
            ids[leaf["id"]] = part.const(value)
        else:
            store = leaf["store"]
            part.store(store, *stores[store])
            ids[leaf["id"]] = part.state(leaf["name"], dtype, shape, store, leaf["offset"])
    for node in lookup.nodes:
        made = part.add(node["op"], [ids[i] for i in node["inputs"]], **node["attrs"])
        ids.update(zip(node["outputs"], made, strict=True))
    part.output(ids[lookup.value])
    return part


def _describe(runtime: Runtime, lookup: _Lookup, fields: list[Field], row: int, value: int) -> str:
    try:
        table = f"{type(runtime.model.get_submodule(lookup.scope)).__name__} {lookup.scope!r}"
    except AttributeError:
        table = repr(lookup.scope)
    places, fix = f"the places that {table} indexes", "mend the indices"
    if lookup.is_table:
        places, fix = (
            f"the rows that {table} has",
            "renumber them from 0, or give the layer more rows",
        )
    rule = f"must be at least 0 and below {lookup.limit}, {places}, got {value}"
    for field in fields:
        at = np.argwhere(np.asarray(field.array[row]) == value)
        if len(at):
            where = place(field, row, tuple(int(i) for i in at[0]))
            return (
                f"{field.label}: {'ids' if lookup.is_table else 'indices'} {rule} in {where}; {fix}"
            )
    return (
        f"{table}: the index that forward computes of {_labels(fields)} {rule} for row {row}; mend "
        f"forward{', or give the layer more rows' if lookup.is_table else ''}"
    )
