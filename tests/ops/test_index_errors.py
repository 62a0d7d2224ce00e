"""An index out of range ends the run with a DataError that names op, place and value; the session
goes on, and the same plan gives the right answer for the next batch."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core
from ops.harness import FAST

DEVICES = [("ref", None), *FAST]

# op: operand shapes after x (7, 5), attributes; the second input is the index
INDEXED = {
    "gather": (((7, 5), (3, 5)), {"axis": 0}),
    "scatter": (((7, 5), (3, 5), (3, 5)), {"axis": 0}),
    "scatter_add": (((7, 5), (3, 5), (3, 5)), {"axis": 0}),
    "index_select": (((7, 5), (4,)), {"axis": 0}),
    "index_add": (((7, 5), (4,), (4, 5)), {"axis": 0}),
    "index_copy": (((7, 5), (4,), (4, 5)), {"axis": 0}),
    "cross_entropy": (((4, 7), (4,)), {}),
}


@pytest.mark.parametrize("bad", [-1, 7, 2**40, -(2**40)])
@pytest.mark.parametrize("op", INDEXED)
@pytest.mark.parametrize(("backend", "isa"), DEVICES, ids=str)
def test_out_of_range(op: str, bad: int, backend: str, isa: str | None) -> None:
    shapes, attrs = INDEXED[op]
    session = _core.Session(_core.Device(backend, 0, 0, isa))
    graph = _core.Graph()
    ids = [
        graph.input(f"in{i}", "int64" if i == 1 else "float32", shape)
        for i, shape in enumerate(shapes)
    ]
    graph.output(graph.add(op, ids, **attrs)[0])
    plan = _core.Plan(session, graph)
    rng = np.random.default_rng(1)
    for i, shape in enumerate(shapes):
        if i != 1:
            plan.input(i, rng.standard_normal(shape))
    good = (
        rng.permutation(7)[:4]
        if len(shapes[1]) == 1
        else np.stack([rng.permutation(7)[:3] for _ in range(5)], 1)
    )
    plan.input(1, good)
    plan.run(1, 1e9)
    before = plan.output(0)

    wrong, place = good.copy(), good.size - 2
    wrong.flat[place] = bad
    plan.input(1, wrong)
    with pytest.raises(hl.DataError) as caught:
        plan.run(1, 1e9)
    message = str(caught.value)
    assert op in message
    assert f"got {bad} at position {place}" in message

    plan.input(1, good)
    plan.run(1, 1e9)
    assert plan.output(0).tobytes() == before.tobytes()


def test_ignore_index_is_no_error() -> None:
    session = _core.Session(_core.Device("cpu"))
    graph = _core.Graph()
    ids = [graph.input("x", "float32", (3, 4)), graph.input("y", "int64", (3,))]
    loss, weight = graph.add("cross_entropy", ids, ignore_index=-7)
    graph.output(loss)
    graph.output(weight)
    plan = _core.Plan(session, graph)
    plan.input(0, np.zeros((3, 4)))
    plan.input(1, np.array([0, -7, 3]))
    plan.run(1, 1e9)
    np.testing.assert_array_equal(plan.output(1), [1, 0, 1])
    np.testing.assert_allclose(plan.output(0), [np.log(4), 0, np.log(4)], rtol=1e-6)
