"""Recurrences under mixed precision on every instruction set: products of bfloat16, float32 sums,
functions and states, forward and backward, at any number of threads; and lengths that are none."""

import os

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core
from needs import NO_GPU
from ops.cases_recurrence import GATES, GRU, LSTM, NAMES, TANH, operands, recurrence
from ops.harness import Array

ISAS = _core.cpu_info()["isa"]
# N, T, H: a few rows, tiles of rows, and units that threads share where there are few rows.
SHAPES = [(5, 4, 33), (70, 3, 32), (3, 6, 160)]
on_gpu = pytest.mark.skipif(not os.environ.get("HOTLOOP_TEST_GPU"), reason=NO_GPU)


def draw(cell: int, shape: tuple[int, int, int], width: int) -> list[Array]:
    rng = np.random.default_rng(3)
    arrays = [fill(rng) for fill in operands(cell, shape, False, width, True)]
    return [a.astype("float32") if a.dtype.kind == "f" else a for a in arrays]


def run(
    device: _core.Device, cell: int, arrays: list[Array], dtype: str, **attrs: int
) -> tuple[str, list[Array]]:
    """The plan's text; states, last state and the gradients of all floats."""
    graph = _core.Graph()
    ids = [graph.input(f"i{i}", str(a.dtype), a.shape) for i, a in enumerate(arrays)]
    out, h, *_ = graph.add("recurrence", ids, cell=cell, **attrs)
    (total,) = graph.add("sum", [out])
    (last,) = graph.add("sum", [h])
    (total,) = graph.add("add", [total, last])
    wanted = [i for i, a in zip(ids, arrays) if a.dtype.kind == "f"]
    values = [out, h, *graph.backward(total, wanted)]
    for value in values:
        graph.output(value)
    plan = _core.Plan(_core.Session(device), graph, compute_dtype=dtype)
    for i, array in enumerate(arrays):
        plan.input(i, array)
    assert plan.run(1, 60.0) == ("done", 1)
    return str(plan), [plan.output(i) for i in range(len(values))]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("kind", [(TANH, 0), (LSTM, 0), (LSTM, 16), (GRU, 0)], ids=str)
def test_of_bfloat16(kind: tuple[int, int], shape: tuple[int, int, int], isa: str) -> None:
    """A rounded factor is off by 2^-9 of itself; a state has P of them, and T steps follow."""
    cell, width = kind
    arrays = draw(cell, shape, width)
    attrs = {"reverse": 1, "has_projection": int(width > 0)}
    (text, narrow), (_, other) = (
        run(_core.Device("cpu", 0, n, isa), cell, arrays, "bfloat16", **attrs) for n in (1, 2)
    )
    for a, b in zip(narrow, other):
        np.testing.assert_array_equal(a, b)
    assert (f"cpu.recurrence_grad.{isa}" in text) == (isa in ("avx512bf16", "amx"))
    _, wide = run(_core.Device("cpu", 0, 1, isa), cell, arrays, "float32", **attrs)
    gain = 1 + np.abs(arrays[0]).sum(1).max()
    for a, b in zip(narrow, wide):
        assert 0 < np.abs(a - b).max() < shape[1] * gain * 2.0**-9 * max(1, np.abs(b).max())


@on_gpu
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("cell", [TANH, LSTM, GRU], ids=NAMES.__getitem__)
def test_of_float16_on_a_gpu(cell: int, shape: tuple[int, int, int]) -> None:
    """One launch over time; float16 has three bits more than bfloat16."""
    arrays, device = draw(cell, shape, 0), _core.Device("cuda", 0, 1, None)
    text, narrow = run(device, cell, arrays, "float16", reverse=1)
    assert (text.count("cuda.recurrence:"), text.count("cuda.recurrence_grad:")) == (1, 1)
    _, wide = run(_core.Device("cpu", 0, 1, None), cell, arrays, "float32", reverse=1)
    gain = 1 + np.abs(arrays[0]).sum(1).max()
    for a, b in zip(narrow, wide):
        assert 0 < np.abs(a - b).max() < shape[1] * gain * 2.0**-12 * max(1, np.abs(b).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("cell", [TANH, LSTM, GRU], ids=NAMES.__getitem__)
def test_units_shared_by_threads(cell: int, reverse: int, isa: str) -> None:
    """Three rows and four threads: steps are phases, and bits those of one thread."""
    arrays = draw(cell, (3, 6, 300), 0)
    arrays[3] = np.array([6, 3, 4], "int32")
    one, four = (
        run(_core.Device("cpu", 0, n, isa), cell, arrays, "float32", reverse=reverse)[1]
        for n in (1, 4)
    )
    for a, b in zip(one, four):
        np.testing.assert_array_equal(a, b)
    wide = (a.astype(float) if a.dtype.kind == "f" else a for a in arrays)
    want = recurrence(cell, bool(reverse))(*wide)
    np.testing.assert_allclose(four[0], want[0], rtol=0, atol=1e-5)


def run_lengths(lengths: list[int], backend: str, **attrs: int) -> None:
    n, t, h = len(lengths), 4, 5
    arrays = [
        np.zeros((GATES[LSTM] * h, h), "float32"), np.zeros((n, t, GATES[LSTM] * h), "float32"),
        np.zeros((n, h), "float32"), np.array(lengths, "int32"), np.zeros((n, h), "float32"),
    ]  # fmt: skip
    graph = _core.Graph()
    ids = [graph.input(f"i{i}", str(a.dtype), a.shape) for i, a in enumerate(arrays)]
    graph.output(graph.add("recurrence", ids, cell=LSTM, **attrs)[0])
    plan = _core.Plan(_core.Session(_core.Device(backend, 0, 1, None)), graph)
    for i, array in enumerate(arrays):
        plan.input(i, array)
    plan.run(1, 60.0)


@pytest.mark.parametrize("backend", ["cpu", "ref", pytest.param("cuda", marks=on_gpu)])
def test_lengths_that_are_none(backend: str) -> None:
    with pytest.raises(hl.DataError, match=r"lengths must lie in 0 \.\.\. 4, got 5 for row 1"):
        run_lengths([0, 5, 4], backend)
    with pytest.raises(hl.DataError, match="got -1 for row 2"):
        run_lengths([4, 4, -1], backend)
    with pytest.raises(hl.DataError, match=r"must be sorted, none more .* got 3 for row 2"):
        run_lengths([4, 2, 3], backend, is_sorted=1)
    run_lengths([4, 3, 3, 0], backend, is_sorted=1)
    run_lengths([4, 2, 3], backend)
