"""Permutations that cancel go, and what stands in between gives the same elements."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hotloop import _core

SHAPE, CUBE = (3, 4, 5), (3, 3, 3)
Build = Callable[[_core.Graph, list[int]], list[int]]


def add(graph: _core.Graph, op: str, *ids: int, **attrs) -> int:
    return graph.add(op, list(ids), **attrs)[0]


def turn(graph: _core.Graph, value: int, *dims: int) -> int:
    return add(graph, "permute", value, dims=dims)


def run(
    build: Build, fuse: bool, device: str = "cpu", n: int = 3, shape: tuple[int, ...] = SHAPE
) -> tuple[list, int]:
    """Outputs of a graph of inputs of one shape; how many permutations are left."""
    graph = _core.Graph()
    ids = [graph.input(f"x{i}", "float32", shape) for i in range(n)]
    for value in build(graph, ids):
        graph.output(value)
    plan = _core.Plan(_core.Session(_core.Device(device)), graph, fuse=fuse)
    rng = np.random.default_rng(1)
    for i in range(n):
        plan.input(i, rng.standard_normal(shape).astype("float32"))
    assert plan.run(1, 60.0) == ("done", 1)
    return [plan.output(i) for i in range(len(graph.outputs()))], str(plan).count(".permute")


def there_and_back(graph: _core.Graph, x: list[int]) -> list[int]:
    y = add(graph, "relu", turn(graph, x[0], 2, 0, 1))
    return [turn(graph, y, 1, 2, 0)]


def two_that_meet(graph: _core.Graph, x: list[int]) -> list[int]:
    y = add(graph, "add", turn(graph, x[0], 2, 1, 0), turn(graph, x[1], 2, 1, 0))
    return [turn(graph, add(graph, "mul", y, graph.number("float32", 3.0)), 2, 1, 0)]


def copies_in_between(graph: _core.Graph, x: list[int]) -> list[int]:
    """Attributes that name dims name their new places."""
    y = turn(graph, x[0], 1, 2, 0)
    y = add(graph, "slice", y, axis=1, start=1, stop=4)
    y = add(graph, "pad", y, before=(1, 0, 2), after=(0, 3, 1), value=7.0)
    y = add(graph, "flip", y, axes=(0, 2))
    z = add(graph, "concat", y, add(graph, "neg", y), axis=2)
    parts = graph.add("split", [z], axis=0, size=2)
    return [turn(graph, part, 2, 0, 1) for part in parts]


def many_readers(graph: _core.Graph, x: list[int]) -> list[int]:
    y = add(graph, "tanh", turn(graph, x[0], 0, 2, 1))
    a, b = add(graph, "exp", y), add(graph, "neg", y)
    total = add(graph, "where", add(graph, "gt", a, b), a, b)
    return [turn(graph, total, 0, 2, 1), turn(graph, y, 0, 2, 1), turn(graph, a, 0, 2, 1)]


def three_in_a_row(graph: _core.Graph, x: list[int]) -> list[int]:
    y = add(graph, "abs", turn(graph, x[0], 1, 2, 0))
    z = add(graph, "abs", turn(graph, y, 1, 2, 0))
    return [turn(graph, z, 1, 2, 0)]


def per_channel(graph: _core.Graph, x: list[int]) -> list[int]:
    """A value per channel lies alike in both orders."""
    scale = add(graph, "reshape", add(graph, "sum", x[1], axes=(0, 1)), shape=(1, 5, 1))
    gate = add(graph, "reshape", add(graph, "sum", x[2], axes=(1,)), shape=(3, 5, 1))
    y = add(graph, "mul", turn(graph, x[0], 0, 2, 1), scale)
    return [turn(graph, add(graph, "mul", gate, y), 0, 2, 1), scale]


GONE = [
    there_and_back, two_that_meet, copies_in_between, many_readers, three_in_a_row, per_channel,
]  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "ref"])
@pytest.mark.parametrize("build", GONE, ids=lambda build: build.__name__)
def test_they_go(build: Build, device: str) -> None:
    want, before = run(build, False, device)
    got, after = run(build, True, device)
    assert before > 1
    assert after == 0
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def of_norms(graph: _core.Graph, x: list[int]) -> list[int]:
    weight, bias = (add(graph, "sum", v, axes=(0, 1)) for v in x[1:])
    y, mean, var = graph.add("batch_norm", [turn(graph, x[0], 0, 2, 1), weight, bias])
    return [turn(graph, y, 0, 2, 1), mean, var]


def of_neighbours(graph: _core.Graph, x: list[int]) -> list[int]:
    return [add(graph, "sum", turn(graph, x[0], 2, 0, 1), axes=(0,))]


def of_columns(graph: _core.Graph, x: list[int]) -> list[int]:
    """Means of the columns of each matrix, and their gradients, broadcast."""
    y = add(graph, "relu", turn(graph, x[0], 0, 2, 1))
    mean = add(graph, "sum", y, axes=(2,), keepdim=True)
    spread = add(graph, "expand", add(graph, "exp", mean), shape=(3, 5, 4))
    return [mean, turn(graph, add(graph, "where", add(graph, "gt", y, mean), spread, y), 0, 2, 1)]


def branches_that_meet(graph: _core.Graph, x: list[int]) -> list[int]:
    """A residual block: what goes around meets what came out of another permutation."""
    y = add(graph, "relu", turn(graph, x[0], 0, 2, 1))
    z = add(graph, "flip", turn(graph, y, 0, 2, 1), axes=(1,))
    w = add(graph, "cumsum", turn(graph, x[1], 0, 1, 2), axis=2)
    z = add(graph, "relu", turn(graph, add(graph, "add", z, w), 0, 2, 1))
    return [add(graph, "sum", add(graph, "add", y, z), axes=(1, 2))]


def same_twice(graph: _core.Graph, x: list[int]) -> list[int]:
    """Both are read by what needs the dims in this order: one copy."""
    a, b = (add(graph, "cumsum", turn(graph, x[0], 0, 2, 1), axis=axis) for axis in (1, 2))
    return [a, b]


@pytest.mark.parametrize("device", ["cpu", "ref"])
@pytest.mark.parametrize("build", [of_norms, of_neighbours, of_columns, branches_that_meet])
def test_sums_of_what_was_permuted(build: Build, device: str) -> None:
    """They are of the same elements, in another order."""
    want, before = run(build, False, device)
    got, after = run(build, True, device)
    assert before > 0
    assert after == 0
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def sums_of_dims_apart(graph: _core.Graph, x: list[int]) -> list[int]:
    """Turned back, no kernel would add them up without a copy of its own."""
    y = add(graph, "relu", turn(graph, x[0], 0, 2, 1))
    return [add(graph, "sum", v, axes=(0, 1)) for v in (y, add(graph, "exp", y))]


def test_one_copy_for_two_sums() -> None:
    want, before = run(sums_of_dims_apart, False)
    got, after = run(sums_of_dims_apart, True)
    assert (before, after) == (1, 1)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def of_what_is_broadcast(graph: _core.Graph, x: list[int]) -> list[int]:
    """What is broadcast and then of another dtype is made in the order that is asked for."""
    narrow = add(graph, "sum", x[0], axes=(2,), keepdim=True)
    spread = add(graph, "cast", add(graph, "expand", narrow, shape=SHAPE), dtype="float64")
    return [add(graph, "cumsum", turn(graph, spread, 0, 2, 1), axis=1)]


def of_padding(graph: _core.Graph, x: list[int]) -> list[int]:
    """The gradient of padding adds what was read twice, in whatever order the dims lie."""
    y = turn(graph, add(graph, "relu", turn(graph, x[0], 0, 2, 1)), 0, 2, 1)
    y = add(graph, "pad", turn(graph, y, 0, 2, 1), before=(1, 2, 0), after=(1, 0, 2), mode=3)
    y = add(graph, "mul", turn(graph, y, 0, 2, 1), turn(graph, turn(graph, y, 2, 1, 0), 2, 0, 1))
    (loss,) = graph.add("sum", [y])
    return [loss, *graph.backward(loss, [x[0]])]


@pytest.mark.parametrize("device", ["cpu", "ref"])
@pytest.mark.parametrize("build", [of_what_is_broadcast, of_padding])
def test_broadcast_and_padded(build: Build, device: str) -> None:
    want, before = run(build, False, device, n=1)
    got, after = run(build, True, device, n=1)
    assert before > 0
    assert after == 0
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def of_ones(graph: _core.Graph, x: list[int]) -> list[int]:
    """Where all dims but one have one element, and where they are broadcast, nothing moves."""
    y = add(graph, "sum", x[0], axes=(1, 2), keepdim=True)
    z = add(graph, "softmax", turn(graph, y, 1, 0, 2))
    spread = add(graph, "expand", y, shape=(3, 4, 5))
    return [z, add(graph, "cumsum", turn(graph, spread, 2, 0, 1), axis=1)]


def test_nothing_moves() -> None:
    want, before = run(of_ones, False)
    got, after = run(of_ones, True)
    assert (before, after) == (2, 0)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_copy_for_two_readers() -> None:
    want, before = run(same_twice, False)
    got, after = run(same_twice, True)
    assert (before, after) == (2, 1)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def for_a_kernel(graph: _core.Graph, x: list[int]) -> list[int]:
    """Medians are taken along the last axis: of what was permuted for one, no copy is made."""
    return graph.add("median", [turn(graph, x[0], 0, 2, 1)], axis=1)


def test_layout_of_a_kernel() -> None:
    want, before = run(for_a_kernel, False)
    got, after = run(for_a_kernel, True)
    assert (before, after) == (2, 0)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_axes_that_need_no_order() -> None:
    """Moments of the first axes have a kernel that reads columns."""
    _, n_permutations = run(
        lambda graph, x: graph.add("moments", [x[0]], axes=(1,)), True, shape=(1, 12, 5)
    )
    assert n_permutations == 0


def read_before_and_behind(graph: _core.Graph, x: list[int]) -> list[int]:
    """What enters a region in the order of its source is entered by another node later."""
    p, e = turn(graph, x[0], 2, 1, 0), turn(graph, x[1], 2, 1, 0)
    u = turn(graph, e, 2, 1, 0)
    first, second = add(graph, "add", p, e), add(graph, "add", p, u)
    return [turn(graph, first, 2, 1, 0), turn(graph, second, 2, 1, 0)]


@pytest.mark.parametrize("device", ["cpu", "ref"])
def test_one_value_two_ways(device: str) -> None:
    want, _ = run(read_before_and_behind, False, device, shape=CUBE)
    got, _ = run(read_before_and_behind, True, device, shape=CUBE)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def one_way(graph: _core.Graph, x: list[int]) -> list[int]:
    return [add(graph, "relu", turn(graph, x[0], 2, 0, 1))]


def other_order(graph: _core.Graph, x: list[int]) -> list[int]:
    y = turn(graph, add(graph, "reshape", x[1], shape=(5, 4, 3)), 2, 1, 0)
    y = add(graph, "add", turn(graph, x[0], 0, 1, 2), y)
    return [
        add(graph, "add", y, turn(graph, add(graph, "reshape", x[2], shape=(4, 5, 3)), 2, 0, 1))
    ]


def kept(graph: _core.Graph, x: list[int]) -> list[int]:
    y = add(graph, "relu", turn(graph, x[0], 2, 0, 1))
    return [y, add(graph, "sum", turn(graph, y, 1, 2, 0), axes=(0,))]


@pytest.mark.parametrize("build", [one_way, other_order, kept])
def test_they_stay(build: Build) -> None:
    want, before = run(build, False)
    got, after = run(build, True)
    assert after <= before
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape", [SHAPE, CUBE])
@pytest.mark.parametrize("seed", range(60))
def test_random_graphs(seed: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    orders = list(itertools.permutations(range(3)))

    def build(graph: _core.Graph, x: list[int]) -> list[int]:
        values = list(x)
        for _ in range(rng.integers(5, 25)):
            value = values[rng.integers(len(values))]
            kind = rng.integers(4)
            if kind == 0:
                values.append(turn(graph, value, *orders[rng.integers(6)]))
            elif kind == 1:
                values.append(add(graph, ("relu", "neg", "tanh")[rng.integers(3)], value))
            elif kind == 2:
                values.append(add(graph, "flip", value, axes=(int(rng.integers(3)),)))
            else:
                others = [v for v in values if graph.shape(v) == graph.shape(value)]
                values.append(add(graph, "add", value, others[rng.integers(len(others))]))
        return [values[i] for i in rng.integers(3, len(values), 4)]

    state = rng.bit_generator.state
    want, before = run(build, False, shape=shape)
    rng.bit_generator.state = state
    got, after = run(build, True, shape=shape)
    assert after <= before
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
