"""What stands around a product or a convolution becomes part of it on the CPU; the bits stay."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hotloop import _core
from ops.cases_conv import Shape

M, K, N = 37, 19, 45
Build = Callable[[_core.Graph, dict[str, int]], list[int]]


def add(graph: _core.Graph, op: str, *ids: int, **attrs) -> int:
    (out,) = graph.add(op, list(ids), **attrs)
    return out


def product(graph: _core.Graph, ids: dict[str, int], bias: bool = True) -> int:
    return add(graph, "matmul", ids["x"], ids["w"], *([ids["b"]] if bias else []))


def run(
    build: Build, shapes: dict[str, tuple[int, ...]], fuse: bool, isa: str = "", dtype: str = ""
) -> tuple[list, str]:
    graph = _core.Graph()
    ids = {name: graph.input(name, "float32", shape) for name, shape in shapes.items()}
    for value in build(graph, ids):
        graph.output(value)
    device = _core.Device("cpu", 0, 2, isa) if isa else _core.Device("cpu")
    how = {"compute_dtype": dtype} if dtype else {}
    plan = _core.Plan(_core.Session(device), graph, fuse=fuse, **how)
    rng = np.random.default_rng(3)
    for i, shape in enumerate(shapes.values()):
        plan.input(i, rng.standard_normal(shape).astype("float32"))
    assert plan.run(1, 60.0) == ("done", 1)
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
    assert ".pointwise" in apart
    assert ".pointwise" not in text
    np.testing.assert_array_equal(got[0], want[0])


def columns(scale: bool, shift: bool, residual: bool, op: str | None, swap: bool = False):
    """What ends a product: the steps that there are, each with its operands in either order."""

    def end(graph: _core.Graph, ids: dict[str, int], y: int) -> int:
        steps = [("mul", "s", scale), ("add", "t", shift), ("add", "r", residual)]
        for step, name, there in steps:
            operands = [ids[name], y] if swap else [y, ids[name]]
            y = add(graph, step, *operands) if there else y
        return add(graph, op, y) if op else y

    return end


ENDS = {
    " ".join(["scale"] * scale + ["shift"] * shift + ["residual"] * r + [op or ""]): columns(
        scale, shift, r, op, swap=r
    )
    for scale, shift, r, op in itertools.product(
        (False, True), (False, True), (False, True), (None, "relu", "gelu")
    )
    if scale or shift or r or op
}


@pytest.mark.parametrize("shapes", [MATRICES, STACKED, LONG], ids=["matrix", "stack", "long"])
@pytest.mark.parametrize("name", ENDS)
def test_columns_are_part_of_the_product(name: str, shapes) -> None:
    n = shapes["b"][0]
    shapes = {**shapes, "s": (n,), "t": (1, n)}

    def build(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
        return [ENDS[name](graph, ids, product(graph, ids, bias=False))]

    want, _ = run(build, shapes, False)
    got, text = run(build, shapes, True)
    assert ".pointwise" not in text
    np.testing.assert_array_equal(got[0], want[0])


CONVOLUTIONS = [
    replace(s, last=True)
    for s in (
        Shape("dense", 2, 20, 37, (9, 10), (3, 3), before=(1, 1), after=(1, 1)),
        Shape("stem", 2, 3, 33, (17, 16), (7, 7), (2, 2), before=(3, 3), after=(3, 3)),
        Shape("few", 1, 5, 7, (8, 8), (3, 3), before=(1, 1), after=(1, 1)),
        Shape("pointwise", 2, 32, 40, (9, 9), (1, 1)),
        Shape("long", 1, 300, 17, (5, 5), (3, 3), before=(1, 1), after=(1, 1)),
        Shape("groups", 2, 32, 48, (9, 9), (3, 3), (2, 2), before=(1, 1), after=(1, 1), groups=2),
        Shape("depthwise", 2, 35, 35, (12, 21), (7, 7), before=(3, 3), after=(3, 3), groups=35),
        Shape("depthwise-s2", 2, 70, 70, (12, 13), (3, 3), (2, 2), before=(1, 1), groups=70),
    )
]


def operands(s: Shape, transposed: bool) -> dict[str, tuple[int, ...]]:
    """x, the weight, the bias, and what ends read. A transposed one is the gradient of `s`."""
    x, y = s.place(s.n, s.c, s.size), s.place(s.n, s.o, s.of_results)
    x, y = (y, x) if transposed else (x, y)
    return {"x": x, "w": s.weight, "b": y[-1:], "s": y[-1:], "t": (1, 1, 1, y[-1]), "r": y}


def convolution(s: Shape, transposed: bool, end, bias: bool) -> Build:
    op, size = ("conv_transpose", {"size": s.size}) if transposed else ("conv", {})

    def build(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
        given = [ids["x"], ids["w"], *([ids["b"]] if bias else [])]
        return [end(graph, ids, add(graph, op, *given, **s.attrs, **size))]

    return build


@pytest.mark.parametrize("isa", _core.cpu_info()["isa"])
@pytest.mark.parametrize("transposed", [False, True], ids=["conv", "transpose"])
@pytest.mark.parametrize("s", CONVOLUTIONS, ids=lambda s: s.name)
def test_ends_are_part_of_the_convolution(s: Shape, transposed: bool, isa: str) -> None:
    """But for the residual of a transposed convolution with strides, whose results lie apart unless
    they have so few channels that lines of them are made at once.
    """
    is_apart = transposed and max(s.stride) > 1 and s.groups != s.c and s.c >= 16
    for name, end in ENDS.items():
        build = convolution(s, transposed, end, bias=False)
        want, _ = run(build, operands(s, transposed), False, isa)
        got, text = run(build, operands(s, transposed), True, isa)
        assert (".pointwise" in text) == (is_apart and "residual" in name), name
        np.testing.assert_array_equal(got[0], want[0], err_msg=name)


@pytest.mark.parametrize("isa", ["avx512bf16", "amx"])
@pytest.mark.parametrize("s", CONVOLUTIONS, ids=lambda s: s.name)
def test_ends_of_convolutions_in_bfloat16(s: Shape, isa: str) -> None:
    if isa not in _core.cpu_info()["isa"]:
        pytest.skip(f"needs a processor with {isa}")
    for name, end in ENDS.items():
        build = convolution(s, False, end, bias=False)
        want, _ = run(build, operands(s, False), False, isa, dtype="bfloat16")
        got, text = run(build, operands(s, False), True, isa, dtype="bfloat16")
        assert "{" in text.split("conv", 1)[1], name
        np.testing.assert_array_equal(got[0], want[0], err_msg=name)


@pytest.mark.parametrize("s", CONVOLUTIONS, ids=lambda s: s.name)
def test_a_bias_is_the_shift(s: Shape) -> None:
    """A convolution with a bias takes no scale and no other shift, and all else."""
    for name, end in ENDS.items():
        build = convolution(s, False, end, bias=True)
        want, _ = run(build, operands(s, False), False)
        got, text = run(build, operands(s, False), True)
        assert (".pointwise" in text) == ("scale" in name or "shift" in name), name
        np.testing.assert_array_equal(got[0], want[0], err_msg=name)


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


def by_rows(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
    """A number for each row."""
    rows = add(graph, "amax", ids["r"], axes=(1,), keepdim=1)
    return [add(graph, "add", product(graph, ids, bias=False), rows)]


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
    "build", [two_readers, kept, by_columns, by_rows, twice, bfloat16_residual, single]
)
def test_stays_apart_and_right(build: Build) -> None:
    want, _ = run(build, MATRICES, False)
    got, text = run(build, MATRICES, True)
    assert ".pointwise" in text
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_number_for_each_row_of_a_square_is_none_for_each_column() -> None:
    shapes = {"x": (N, K), "w": (K, N), "b": (N,), "r": (N, N)}
    want, _ = run(by_rows, shapes, False)
    got, text = run(by_rows, shapes, True)
    assert ".pointwise" in text
    np.testing.assert_array_equal(got[0], want[0])


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


@pytest.mark.parametrize("s", CONVOLUTIONS, ids=lambda s: s.name)
def test_a_residual_of_a_convolution_that_dies(s: Shape) -> None:
    """In its place where no sum goes into the result piece by piece."""

    def build(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
        r = add(graph, "softmax", ids["r"])
        return [add(graph, "add", add(graph, "conv", ids["x"], ids["w"], **s.attrs), r)]

    want, _ = run(build, operands(s, False), False)
    got, text = run(build, operands(s, False), True)
    assert ".pointwise" not in text
    np.testing.assert_array_equal(got[0], want[0])


# ---- moments


def moments(
    s: Shape, isa: str, fuse: bool, n_threads: int, mean: float, dtype: str = "float32"
) -> tuple[list[np.ndarray], str]:
    """y, its mean and its variance of each channel."""
    graph = _core.Graph()
    shapes = operands(s, False)
    ids = {name: graph.input(name, "float32", shapes[name]) for name in "xwb"}
    y = add(graph, "conv", *ids.values(), **s.attrs)
    for value in (y, *graph.add("moments", [y], axes=tuple(range(len(shapes["r"]) - 1)))):
        graph.output(value)
    session = _core.Session(_core.Device("cpu", 0, n_threads, isa))
    plan = _core.Plan(session, graph, fuse=fuse, compute_dtype=dtype)
    rng = np.random.default_rng(0)
    plan.input(0, rng.standard_normal(shapes["x"]).astype("float32"))
    plan.input(1, rng.standard_normal(s.weight).astype("float32"))
    plan.input(2, np.full(shapes["b"], mean, "float32"))
    assert plan.run(1, 60.0) == ("done", 1)
    return [plan.output(i) for i in range(3)], str(plan)


# Several rows of images in a block.
WIDE = [
    replace(s, name=f"wide-{s.name}", n=3, size=(40, 41))
    for s in CONVOLUTIONS
    if s.name in ("dense", "depthwise")
]


@pytest.mark.parametrize("mean", [0.0, 1e4], ids=["", "far"])
@pytest.mark.parametrize("isa", _core.cpu_info()["isa"])
@pytest.mark.parametrize("s", [*CONVOLUTIONS, *WIDE], ids=lambda s: s.name)
def test_moments_are_made_by_the_convolution(s: Shape, isa: str, mean: float) -> None:
    """Those of what it gives, also far from 0, and the same for any number of threads."""
    (want, *_), apart = moments(s, isa, False, 2, mean)
    (y, m, v), text = moments(s, isa, True, 2, mean)
    assert ".moments" in apart
    assert "{x, mean_rows(x), var_rows(x)}" in text
    np.testing.assert_array_equal(y, want)
    for n_threads in (1, 7):
        (_, *others), _ = moments(s, isa, True, n_threads, mean)
        np.testing.assert_array_equal(others, [m, v])
    rows = y.reshape(-1, y.shape[-1]).astype("float64")
    middle, var = rows.mean(0), rows.var(0)
    # Sums of 32 rows, then merges: the mean of each has some 40 roundings, and the variance those
    # of distances between such means.
    part = 40 * 2.0**-24 * np.abs(rows).mean(0)
    assert (np.abs(m - middle) <= 2 * part).all()
    assert (np.abs(v - var) <= 64 * 2.0**-24 * var + 4 * part * np.sqrt(var) + part**2).all()


def summed_over_pixels(graph: _core.Graph, ids: dict[str, int], y: int) -> list[int]:
    return list(graph.add("moments", [y], axes=(1, 2)))


def of_each_image(graph: _core.Graph, ids: dict[str, int], y: int) -> list[int]:
    return list(graph.add("moments", [y], axes=(1, 2, 3)))


def of_the_activation(graph: _core.Graph, ids: dict[str, int], y: int) -> list[int]:
    return list(graph.add("moments", [add(graph, "relu", y)], axes=(0, 1, 2)))


@pytest.mark.parametrize("end", [summed_over_pixels, of_each_image, of_the_activation])
def test_other_moments_stay_apart(end) -> None:
    s = CONVOLUTIONS[0]

    def build(graph: _core.Graph, ids: dict[str, int]) -> list[int]:
        return end(graph, ids, add(graph, "conv", ids["x"], ids["w"], **s.attrs))

    want, _ = run(build, operands(s, False), False)
    got, text = run(build, operands(s, False), True)
    assert ".moments" in text
    np.testing.assert_array_equal(got, want)
