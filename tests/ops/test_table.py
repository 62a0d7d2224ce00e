"""The op table against the cases: an op without a value case, or a gradient without one, fails."""

import pytest
from hotloop import _core
from ops.cases import CASES, GRADIENTS
from ops.test_random import RANDOM_OPS

TABLE = {row["name"]: row for row in _core.op_table()}


@pytest.mark.parametrize("op", TABLE)
def test_has_cases(op: str) -> None:
    named = [case for case in CASES.values() if case.op == op]
    assert named or op in RANDOM_OPS, f"{op}: no value case in tests/ops/cases_*.py"
    if TABLE[op]["differentiable"]:
        assert any(case.op == op for case in GRADIENTS.values()), f"{op}: no gradient case"


def test_no_case_of_unknown_op() -> None:
    composed = {case.op for case in CASES.values() if case.build is not None}
    assert {case.op for case in CASES.values()} - composed <= set(TABLE)


def test_enough_cases() -> None:
    assert len(CASES) + len(GRADIENTS) >= 600


NO_FLOATS = {"batch_gather", "dropout_mask", "uniform"}  # no operand that a gradient could reach
STOPS = [op for op, row in TABLE.items() if not row["differentiable"] and op not in NO_FLOATS]


@pytest.mark.parametrize("op", STOPS)
def test_stops_gradients(op: str) -> None:
    """An op that the table calls not differentiable passes no gradient on."""
    of_op = [case for case in CASES.values() if case.op == op]
    case = min(of_op, key=lambda case: case.build is not None)
    graph = _core.Graph()
    arrays = case.draw()
    ids = [
        graph.input(f"in{i}", "float32" if a.dtype.kind == "f" else str(a.dtype), a.shape)
        for i, a in enumerate(arrays)
    ]
    floats = [i for i in ids if graph.dtype(i) == "float32"]
    (out, *_) = case.add_to(graph, ids)
    (number,) = graph.add("cast", [out], dtype="float32")
    (loss,) = graph.add("sum", [number])
    assert graph.backward(loss, floats) == (None,) * len(floats)
