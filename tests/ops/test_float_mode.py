"""Functions take subnormal numbers as zeros, as arithmetic does on the CPU; a GPU keeps them."""

import numpy as np
import pytest
from hotloop import _core
from needs import flushes
from ops.harness import ISAS, open_session

pytestmark = flushes
CPU = [("cpu", isa) for isa in ISAS]


def run(session: _core.Session, op: str, operands: list[np.ndarray]) -> np.ndarray:
    graph = _core.Graph()
    ids = [graph.input(f"x{i}", str(x.dtype), x.shape) for i, x in enumerate(operands)]
    graph.output(graph.add(op, ids)[0])
    plan = _core.Plan(session, graph)
    for i, operand in enumerate(operands):
        plan.input(i, operand)
    plan.run(1, 1e9)
    return plan.output(0)


@pytest.mark.parametrize(
    ("dtype", "backend", "isa"),
    # ref computes float32 in float64.
    [(dtype, *device) for dtype in ("float32", "float64") for device in CPU]
    + [("float64", "ref", None)],
    ids=str,
)
@pytest.mark.parametrize(
    ("op", "other", "of_zeros"),
    [
        ("log", None, [-np.inf, -np.inf]),
        ("pow", 0.5, [0, 0]),
        ("pow", -3.0, [np.inf, -np.inf]),
        ("remainder", 2.0, [0, 0]),
        ("remainder", 0.0, [np.nan, np.nan]),
    ],
)
def test_a_subnormal_operand(
    op: str, other: float | None, of_zeros: list[float], dtype: str, backend: str, isa: str | None
) -> None:
    small = np.finfo(dtype).smallest_normal / 8
    x = np.array([small, -small], dtype)
    operands = [x] if other is None else [x, np.full(2, other, dtype)]
    got = run(open_session(backend, isa), op, operands)
    np.testing.assert_array_equal(got, np.array(of_zeros, dtype))


@pytest.mark.parametrize(("backend", "isa"), [("ref", None), *CPU], ids=str)
def test_a_power_of_a_subnormal_number(backend: str, isa: str | None) -> None:
    powers = np.array([1e-310, -1e-310])
    operands = [np.array([2.0, 0.0]), powers]
    got = run(open_session(backend, isa), "pow", operands)
    np.testing.assert_array_equal(got, [1, 1])
