"""batch_gather: rows of resident arrays, converted; and gather_rows, the same kernel on its own."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core
from ops.cases import CASES
from ops.harness import FAST, open_session, run_graph

NAMES = [name for name, case in CASES.items() if case.op == "batch_gather"]
DEVICES = [("ref", None), *FAST]


def gather(
    session: _core.Session, source: np.ndarray, rows: np.ndarray, dtype: str, window: int = 0
) -> np.ndarray:
    graph = _core.Graph()
    index = graph.input("rows", "int64", rows.shape)
    data = graph.dataset("x", str(source.dtype), source.shape)
    graph.output(graph.add("batch_gather", [data, index], dtype=dtype, window=window)[0])
    plan = _core.Plan(session, graph)
    plan.dataset(0, source)
    plan.input(0, rows)
    plan.run(1, 1e9)
    return plan.output(0)


@pytest.mark.parametrize(("backend", "isa"), DEVICES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_case(name: str, backend: str, isa: str | None) -> None:
    case = CASES[name]
    source, rows = case.draw()
    if source.dtype == np.float64:
        source = source.astype(np.float32)
    got = gather(open_session(backend, isa), source, rows, str(case.attrs["dtype"]))
    np.testing.assert_array_equal(got, case.expect(source, rows))


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
)
@pytest.mark.parametrize("shape", [(17,), (17, 1), (17, 33), (17, 3, 5), (17, 0)], ids=str)
def test_every_type_and_width(dtype: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(3)
    source = rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
    rows = rng.integers(0, 17, 65)
    kept = source.copy()
    wanted = ["float32"] if source.dtype.kind == "f" else ["int64", "float32"]
    for to in wanted:
        for backend, isa in DEVICES:
            got = gather(open_session(backend, isa), source, rows, to)
            np.testing.assert_array_equal(got, source[rows].astype(to))
        np.testing.assert_array_equal(_core.gather_rows(source, rows, to), source[rows].astype(to))
    np.testing.assert_array_equal(source, kept)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("shape", [(4, 129, 50), (4, 3, 70, 111), (4, 20000), (4, 20000, 1)])
def test_long_rows(shape: tuple[int, ...], dtype: str) -> None:
    """They are given in pieces, which any number of threads may share out."""
    source = np.random.default_rng(5).integers(0, 100, shape).astype(dtype)
    rows = np.array([3, 3, 0, 1, 2, 3, 1])
    for backend, isa in DEVICES:
        got = gather(open_session(backend, isa), source, rows, "float32")
        np.testing.assert_array_equal(got, source[rows].astype(np.float32))
    with pytest.raises(hl.DataError, match=r"batch_gather.*below 4, got 4 at position 2"):
        gather(open_session("cpu"), source, np.array([3, 0, 4]), "float32")


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_long_windows(dtype: str) -> None:
    """Windows overlap, and are given in pieces too."""
    source = np.random.default_rng(6).integers(0, 100, (900, 31)).astype(dtype)
    rows = np.array([0, 1, 371, 370, 5])
    wanted = np.stack([source[row : row + 529] for row in rows]).astype(np.float32)
    for backend, isa in DEVICES:
        got = gather(open_session(backend, isa), source, rows, "float32", 529)
        np.testing.assert_array_equal(got, wanted)


# What reads the batch, and NumPy's way.
READERS = {
    "channel_statistics": lambda x: np.asarray(x, np.float64).reshape(-1, x.shape[-1]).sum(0),
    "sum": lambda x: np.asarray(x, np.float64).sum(-1),
    "matmul": lambda x: np.asarray(x, np.float64) @ np.ones((x.shape[-1], 4)),
}


def lend(
    session: _core.Session,
    reader: str,
    source: np.ndarray,
    orders: list[np.ndarray],
    *,
    window: int = 0,
    is_read_twice: bool = False,
) -> tuple[list[np.ndarray], str]:
    """What a reader makes of batches, and the plan's text."""
    graph = _core.Graph()
    index = graph.input("rows", "int64", orders[0].shape)
    data = graph.dataset("x", str(source.dtype), source.shape)
    (batch,) = graph.add("batch_gather", [data, index], dtype="float32", window=window)
    if reader == "channel_statistics":
        shift = graph.const(np.zeros(source.shape[-1]))
        out = graph.add(reader, [batch, shift], products=1)[3]
    elif reader == "sum":
        out = graph.add(reader, [batch], axes=(len(graph.shape(batch)) - 1,), keepdim=0)[0]
    else:
        out = graph.add(reader, [batch, graph.const(np.ones((source.shape[-1], 4), "f4"))])[0]
    graph.output(out)
    if is_read_twice:
        graph.output(batch)
    plan = _core.Plan(session, graph)
    plan.dataset(0, source)
    found = []
    for order in orders:
        plan.input(0, order)
        plan.run(1, 1e9)
        found.append(plan.output(0))
        if is_read_twice:
            np.testing.assert_array_equal(plan.output(1), source[order])
    return found, str(plan)


@pytest.mark.parametrize("isa", [isa for backend, isa in FAST if backend == "cpu"])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("shape", [(40, 64), (40, 3, 5), (6, 40, 170)], ids=str)
def test_rows_in_order_are_read_where_they_lie(
    reader: str, shape: tuple[int, ...], isa: str
) -> None:
    source = np.random.default_rng(7).normal(size=shape).astype(np.float32)
    n = len(source)
    orders = [
        np.arange(4), np.arange(n - 4, n), np.arange(4)[::-1].copy(), np.array([1, 2, 2, 3]),
        np.array([0, 1, 4, 5]),
    ]  # fmt: skip
    for threads in (1, 2):
        session = _core.Session(_core.Device("cpu", 0, threads, isa))
        found, text = lend(session, reader, source, orders)
        assert "(where rows are not in order)" in text
        for order, got in zip(orders, found, strict=True):
            np.testing.assert_allclose(got, READERS[reader](source[order]), rtol=1e-4, atol=1e-4)
        # A copy gives the same bits.
        copied, text = lend(session, reader, source, orders, is_read_twice=True)
        assert "(where rows are not in order)" not in text
        for got, wanted in zip(found, copied, strict=True):
            np.testing.assert_array_equal(got, wanted)
        with pytest.raises(hl.DataError, match=rf"below {n}, got {n} at position 3"):
            lend(session, reader, source, [np.arange(n - 3, n + 1)])
        with pytest.raises(hl.DataError, match=f"below {n}, got -1 at position 0"):
            lend(session, reader, source, [np.arange(-1, 3)])


def test_rows_that_are_read_later_too_are_copied() -> None:
    source = np.random.default_rng(9).normal(size=(64, 4, 1024)).astype(np.float32)
    graph = _core.Graph()
    index = graph.input("rows", "int64", (32,))
    (batch,) = graph.add(
        "batch_gather", [graph.dataset("x", "float32", source.shape), index], dtype="float32"
    )
    (total,) = graph.add("sum", [batch], axes=(0, 1, 2), keepdim=0)
    graph.output(graph.add("mul", [batch, total])[0])
    plan = _core.Plan(open_session("cpu"), graph)
    plan.dataset(0, source)
    for first in (0, 16):
        part = source[first : first + 32]
        plan.input(0, np.arange(first, first + 32))
        plan.run(1, 1e9)
        np.testing.assert_allclose(plan.output(0), part * part.sum(), rtol=1e-3)


def test_rows_of_another_dtype_are_converted() -> None:
    source = np.random.default_rng(8).integers(0, 255, (90, 200)).astype(np.uint8)
    (found,), _ = lend(open_session("cpu"), "sum", source, [np.arange(4)])
    np.testing.assert_array_equal(found, source[:4].sum(1))


def test_windows_are_read_where_they_lie() -> None:
    source = np.random.default_rng(8).normal(size=(700, 12)).astype(np.float32)
    for order in (np.array([3]), np.array([680]), np.arange(4)):
        found, _ = lend(open_session("cpu"), "sum", source, [order], window=20)
        wanted = np.stack([source[row : row + 20] for row in order])
        np.testing.assert_allclose(found[0], wanted.sum(-1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [1, 2, 5, 17])
@pytest.mark.parametrize("shape", [(17,), (17, 1), (17, 33), (17, 3, 5), (17, 0)], ids=str)
def test_windows(shape: tuple[int, ...], window: int) -> None:
    rng = np.random.default_rng(4)
    source = rng.normal(size=shape).astype(np.float32)
    rows = rng.integers(0, 18 - window, 65)
    for kept, to in ((source, "float32"), ((source * 50).astype(np.uint8), "float32")):
        wanted = np.stack([kept[row : row + window] for row in rows]).astype(to)
        for backend, isa in DEVICES:
            got = gather(open_session(backend, isa), kept, rows, to, window)
            np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(_core.gather_rows(kept, rows, to, window), wanted)


@pytest.mark.parametrize("bad", [-1, 13])
def test_window_out_of_range(bad: int) -> None:
    source = np.zeros((17, 3), np.float32)
    for backend, isa in DEVICES:
        with pytest.raises(hl.DataError, match=f"batch_gather.*below 13, got {bad} at position 1"):
            gather(open_session(backend, isa), source, np.array([12, bad]), "float32", 5)
    with pytest.raises(hl.DataError, match=rf"a row must be in 0\.\.12, got {bad}"):
        _core.gather_rows(source, np.array([12, bad]), "float32", 5)


def test_window_that_does_not_fit() -> None:
    source = np.zeros((17, 3), np.float32)
    for window in (-1, 18, 2**62):
        with pytest.raises(
            hl.ShapeError, match=rf"batch_gather of .*: window must be in 0\.\.17.*{window}"
        ):
            gather(open_session("cpu"), source, np.array([0]), "float32", window)
    with pytest.raises(hl.ShapeError, match=r"got shape .* for a window of 18"):
        _core.gather_rows(source, np.array([0]), "float32", 18)
    deep = np.zeros((2,) * 8, np.float32)
    with pytest.raises(hl.ShapeError, match="at most 8 dims, got 9"):
        gather(open_session("cpu"), deep, np.array([0]), "float32", 1)
    with pytest.raises(hl.ShapeError, match="of at most 8 dims"):
        _core.gather_rows(deep, np.array([0]), "float32", 1)


@pytest.mark.parametrize("bad", [-1, 17])
def test_row_out_of_range(bad: int) -> None:
    source = np.zeros((17, 3), np.float32)
    for backend, isa in DEVICES:
        with pytest.raises(hl.DataError, match=f"batch_gather.*{bad}"):
            gather(open_session(backend, isa), source, np.array([0, bad]), "float32")


def test_read_only_source() -> None:
    source = np.arange(12, dtype=np.float32).reshape(4, 3)
    source.setflags(write=False)
    got = gather(open_session("cpu"), source, np.array([3, 0]), "float32")
    np.testing.assert_array_equal(got, source[[3, 0]])


def test_sessions_are_reused() -> None:
    """The harness' sessions survive an error in one of their plans."""
    (got,) = run_graph(open_session("cpu"), lambda g, ids: g.add("neg", ids), [np.ones(3)])
    np.testing.assert_array_equal(got, -np.ones(3))
