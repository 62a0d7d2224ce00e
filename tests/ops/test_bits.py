"""The same bits: again, at 1, 2 and 7 threads, with and without chains, fused and unfused.

A fused pointwise program does the same float32 operations as its ops one by one, so fusion keeps
the bits, but for sums at the end of a chain, which are cut by other rules than the reduction's own.
"""

import pytest
from hotloop import _core
from ops.cases import CASES
from ops.harness import FAST, ISAS, check_same_bits, open_session

PLAIN = [name for name in CASES if CASES[name].op != "batch_gather"]
ONE_EACH = {CASES[name].op: CASES[name] for name in PLAIN}


@pytest.mark.parametrize("name", PLAIN)
def test_bits(name: str) -> None:
    check_same_bits(CASES[name], ISAS[0])


@pytest.mark.parametrize(("backend", "isa"), [("ref", None), *FAST], ids=str)
@pytest.mark.parametrize("op", ONE_EACH)
def test_deterministic(op: str, backend: str, isa: str | None) -> None:
    """Every op has a kernel that promises the same bits every run."""
    case = ONE_EACH[op]
    graph = _core.Graph()
    ids = [
        graph.input(f"in{i}", "float32" if a.dtype.kind == "f" else str(a.dtype), a.shape)
        for i, a in enumerate(case.draw())
    ]
    for value in case.add_to(graph, ids):
        graph.output(value)
    _core.Plan(open_session(backend, isa), graph, deterministic=True)
