"""Recurrent layers whose own type is of 16 bits, forward and backward; by cuDNN on a GPU that has
it, elsewhere as a product and a recurrence."""

import numpy as np
import pytest
from hotloop import _core
from ops.cases_recurrence import GRU, LSTM, NAMES, TANH
from ops.cases_recurrent import operands
from ops.harness import GPUS, Array, open_session

# Of a rounding, relative.
UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
N, T, SIZE, H = 4, 6, 5, 8


def run(
    session: _core.Session, cell: int, arrays: list[Array], dtype: str, **attrs: int
) -> tuple[str, list[Array]]:
    """The plan's text; states, last state and the gradients of all floats."""
    graph = _core.Graph()
    ids = [graph.input(f"i{i}", str(a.dtype), a.shape) for i, a in enumerate(arrays)]
    given = [
        graph.add("cast", [i], dtype=dtype)[0] if a.dtype.kind == "f" else i
        for i, a in zip(ids, arrays)
    ]
    given[4] = graph.const(np.full(N, T, np.int32))
    out, h, *_ = graph.add("recurrent_layer", given, cell=cell, **attrs)
    wide = [graph.add("cast", [x], dtype="float32")[0] for x in (out, h)]
    (total,) = graph.add("add", [graph.add("sum", [x])[0] for x in wide])
    wanted = [i for i, a in zip(ids, arrays) if a.dtype.kind == "f"]
    values = [*wide, *graph.backward(total, wanted)]
    for value in values:
        graph.output(value)
    plan = _core.Plan(session, graph)
    for i, array in enumerate(arrays):
        plan.input(i, array)
    assert plan.run(1, 1e9) == ("done", 1)
    return str(plan), [plan.output(i) for i in range(len(values))]


@pytest.mark.parametrize("backend", ["cpu", *(name for name, _ in GPUS)])
@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("kind", [(TANH, 0), (LSTM, 0), (LSTM, 3), (GRU, 0)], ids=str)
def test_of_16_bits(kind: tuple[int, int], dtype: str, backend: str) -> None:
    """Weights, states and their gradients are rounded, T times over; sums are float32."""
    cell, width = kind
    rng = np.random.default_rng(5)
    fills = operands(cell, (N, T, SIZE, H), True, cell == GRU, width, False)
    arrays = [a.astype("float32") if a.dtype.kind == "f" else a for a in (f(rng) for f in fills)]
    attrs = {
        "has_bias": 1, "has_state_bias": int(cell == GRU), "has_projection": int(width > 0),
    }  # fmt: skip
    session = open_session(backend)
    text, narrow = run(session, cell, arrays, dtype, **attrs)
    _, wide = run(open_session("cpu"), cell, arrays, "float32", **attrs)
    gain = 1 + max(np.abs(arrays[i]).sum(1).max() for i in (1, 2))
    for a, b in zip(narrow, wide):
        off = np.abs(a - b).max()
        assert 0 < off < T * gain * UNITS[dtype] * max(1, np.abs(b).max()), NAMES[cell]
    if backend == "cuda" and "cudnn" in text:
        assert text.count("recurrent_layer") == 2
