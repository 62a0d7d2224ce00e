"""What stands around a matrix product becomes part of it on the CPU, and the bits stay."""

from collections.abc import Callable

import numpy as np
import pytest
from hotloop import _core

M, K, N = 37, 19, 45
Build = Callable[[_core.Graph, dict[str, int]], list[int]]


def add(graph: _core.Graph, op: str, *ids: int, **attrs) -> int:
    (out,) = graph.add(op, list(ids), **attrs)
    return out


def product(graph: _core.Graph, ids: dict[str, int], bias: bool = True) -> int:
    return add(graph, "matmul", ids["x"], ids["w"], *([ids["b"]] if bias else []))


def run(build: Build, shapes: dict[str, tuple[int, ...]], fuse: bool) -> tuple[list, str]:
    graph = _core.Graph()
    ids = {name: graph.input(name, "float32", shape) for name, shape in shapes.items()}
    for value in build(graph, ids):
        graph.output(value)
    session = _core.Session(_core.Device("cpu"))
    plan = _core.Plan(session, graph, fuse=fuse)
    rng = np.random.default_rng(3)
    for i, shape in enumerate(shapes.values()):
        plan.input(i, rng.standard_normal(shape).astype("float32"))
    plan.run(1)
    return [plan.output(i) for i in range(len(graph.outputs()))], str(plan)


MATRICES = {"x": (M, K), "w": (K, N), "b": (N,), "r": (M, N)}
STACKED = {"x": (3, M, K), "w": (K, N), "b": (N,), "r": (3, M, N)}
BATCHED = {"x": (20, 5, K), "w": (20, K, N), "b": (N,), "r": (20, 5, N)}
# More of each w than is packed at a time, and sums in several pieces.
LONG = {"x": (2, 33, 2100), "w": (2, 2100, 150), "b": (150,), "r": (2, 33, 150)}


def activation(op: str) -> Build:
    return lambda g, i: [add(g, op, product(g, i))]


def residual(op: str | None, first: bool) -> Build:
    def build(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
        operands = [product(graph, ids), ids["r"]]
        total = add(graph, "add", *(operands if first else operands[::-1]))
        return [add(graph, op, total) if op else total]

    return build


TAKEN = {
    "relu": activation("relu"),
    "gelu": activation("gelu"),
    **{
        f"residual {op} {first}": residual(op, first)
        for op in (None, "relu", "gelu")
        for first in (True, False)
    },
}


@pytest.mark.parametrize(
    "shapes", [MATRICES, STACKED, BATCHED, LONG], ids=["matrix", "stack", "batch", "long"]
)
@pytest.mark.parametrize("name", TAKEN)
def test_is_part_of_the_product(name: str, shapes) -> None:
    want, apart = run(TAKEN[name], shapes, False)
    got, text = run(TAKEN[name], shapes, True)
    assert ".pointwise" not in text
    assert apart.count("\n      cpu.") > text.count("\n      cpu.")
    np.testing.assert_array_equal(got[0], want[0])


def reshaped(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
    """A residual in another shape than the product's own."""
    y = add(graph, "reshape", product(graph, ids), shape=(M * N,))
    r = add(graph, "reshape", ids["r"], shape=(M * N,))
    return [add(graph, "relu", add(graph, "add", y, r))]


def test_through_a_reshape() -> None:
    want, _ = run(reshaped, MATRICES, False)
    got, text = run(reshaped, MATRICES, True)
    assert ".pointwise" not in text
    np.testing.assert_array_equal(got[0], want[0])


def two_readers(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
    y = product(graph, ids)
    return [add(graph, "relu", y), add(graph, "neg", y)]


def kept(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
    y = product(graph, ids)
    return [y, add(graph, "relu", y)]


def by_columns(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
    """A product whose kernel has no epilogues: the weight gradient's."""
    return [add(graph, "relu", add(graph, "matmul", ids["x"], ids["r"], trans_a=True))]


def broadcast(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
    return [add(graph, "add", product(graph, ids, bias=False), ids["b"])]


def twice(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
    """The product is its own residual, in a chain that has none."""
    y = product(graph, ids)
    return [add(graph, "add", y, y)]


def bfloat16_residual(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
    """A residual of 16 bits: the kernel reads float32."""
    narrow = add(graph, "cast", ids["r"], dtype="bfloat16")
    as_float32 = add(graph, "cast", narrow, dtype="float32")
    return [add(graph, "add", product(graph, ids), as_float32)]


def single(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
    """A residual of one element."""
    return [add(graph, "add", product(graph, ids), add(graph, "amax", ids["r"], axes=()))]


@pytest.mark.parametrize(
    "build", [two_readers, kept, by_columns, broadcast, twice, bfloat16_residual, single]
)
def test_stays_apart_and_right(build: Build) -> None:
    want, _ = run(build, MATRICES, False)
    got, text = run(build, MATRICES, True)
    assert ".pointwise" in text
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_residual_takes_over_no_memory_that_is_read_later() -> None:
    """In place where the residual dies, and apart where somebody else reads it."""

    def build(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
        r = add(graph, "neg", ids["r"])
        y = add(graph, "add", product(graph, ids), r)
        return [add(graph, "mul", y, r)]

    want, _ = run(build, MATRICES, False)
    got, _ = run(build, MATRICES, True)
    np.testing.assert_array_equal(got[0], want[0])


@pytest.mark.parametrize("k", [K, 2100])
@pytest.mark.parametrize("stack", [(), (2,)], ids=str)
def test_a_residual_that_dies_is_whole_until_it_is_added(stack: tuple[int, ...], k: int) -> None:
    """The result may take its place, but not where sums go into it piece by piece."""

    def build(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
        return [
            add(
                graph,
                "relu",
                add(graph, "add", product(graph, ids), add(graph, "softmax", ids["r"])),
            )
        ]

    shapes = {"x": (*stack, M, k), "w": (*stack, k, N), "b": (N,), "r": (*stack, M, N)}
    want, _ = run(build, shapes, False)
    got, text = run(build, shapes, True)
    assert ".pointwise" not in text
    np.testing.assert_array_equal(got[0], want[0])
