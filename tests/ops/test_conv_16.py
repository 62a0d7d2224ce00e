"""Convolutions in 16 bits under mixed precision, and their gradients, on every instruction set and
on a GPU, real or emulated.

Operands are bfloat16 numbers, so that casting them rounds nothing: results are those of float64 but
for float32's sums."""

import os

import numpy as np
import pytest
from hotloop import _core
from hotloop.training.plans.accelerator import open_gpu
from needs import NO_GPU
from ops.cases_conv import Shape, conv, taps, transpose
from ops.harness import Array

CASES = [
    Shape("dense", 2, 16, 24, (9, 10), (3, 3), before=(1, 1), after=(1, 1)),
    Shape("panels", 2, 64, 72, (12, 13), (3, 3), before=(1, 1), after=(1, 1)),
    Shape("odd-channels", 1, 5, 7, (8, 8), (3, 3), before=(1, 1), after=(1, 1)),
    Shape("stem", 2, 3, 33, (17, 16), (7, 7), (2, 2), before=(3, 3), after=(3, 3)),
    Shape("pointwise", 2, 32, 40, (9, 9), (1, 1)),
    Shape("strides", 2, 6, 10, (9, 11), (3, 2), (2, 3), before=(1, 0), after=(0, 1)),
    Shape("dilation", 2, 17, 3, (9, 9), (3, 3), dilation=(2, 2), before=(2, 2), after=(2, 2)),
    Shape("groups", 2, 32, 32, (9, 9), (3, 3), (2, 2), before=(1, 1), after=(1, 1), groups=2),
    Shape("line", 2, 8, 9, (31,), (5,), before=(2,), after=(2,)),
    Shape("cube", 1, 4, 6, (5, 6, 7), (3, 2, 3), before=(1, 0, 1), after=(1, 1, 1)),
    Shape("depthwise", 2, 35, 35, (12, 21), (7, 7), before=(3, 3), after=(3, 3), groups=35),
    Shape("depthwise-s2", 2, 20, 20, (12, 13), (3, 3), (2, 2), before=(1, 1), groups=20),
]


def round_to_bf16(x: Array) -> Array:
    bits = np.asarray(x, "float32").view("uint32")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype("uint32").view("float32")


def weight_gradient(s: Shape, x: Array, dy: Array) -> Array:
    x = np.pad(x, [(0, 0), (0, 0), *zip(s.before, s.after)])
    out = np.zeros(s.weight)
    rows = dy.reshape(s.n, s.groups, s.o // s.groups, -1)
    for at, read in taps(s, x):
        read = read.reshape(s.n, s.groups, s.c // s.groups, -1)
        part = np.einsum("ngop,ngcp->goc", rows, read)
        out[(..., *at)] = part.reshape(s.o, s.c // s.groups)
    return out


def draw(s: Shape) -> tuple[Array, Array, Array, Array]:
    """x, weight, bias and the result's gradient."""
    rng = np.random.default_rng(0)
    shapes = ((s.n, s.c, *s.size), s.weight, (s.n, s.o, *s.of_results))
    x, w, dy = (round_to_bf16(rng.standard_normal(shape)) for shape in shapes)
    return x, w, rng.standard_normal(s.o).astype("float32"), dy


def run(device: _core.Device, s: Shape, dtype: str) -> tuple[str, list[Array]]:
    """The plan's text; the result, the gradients for x and for the weight."""
    arrays = draw(s)
    graph = _core.Graph()
    ids = [graph.input(n, "float32", a.shape) for n, a in zip("xwbd", arrays)]
    (y,) = graph.add("conv", ids[:3], **s.attrs)
    (product,) = graph.add("mul", [y, ids[3]])
    (total,) = graph.add("sum", [product])
    for value in (y, *graph.backward(total, ids[:2])):
        graph.output(value)
    plan = _core.Plan(_core.Session(device), graph, compute_dtype=dtype)
    for i, array in enumerate(arrays):
        plan.input(i, array)
    assert plan.run(1, 60.0) == ("done", 1)
    return str(plan), [plan.output(i) for i in range(3)]


@pytest.mark.parametrize("isa", _core.cpu_info()["isa"])
@pytest.mark.parametrize("s", CASES, ids=lambda s: s.name)
def test_of_bfloat16(s: Shape, isa: str) -> None:
    (_, first), (text, second) = (
        run(_core.Device("cpu", 0, n_threads, isa), s, "bfloat16") for n_threads in (2, 1)
    )
    if isa in ("avx512bf16", "amx"):
        assert f".{isa}" in text or s.groups == s.c
        assert "unfold" not in text
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)
    check(s, first)


@pytest.mark.parametrize("isa", _core.cpu_info()["isa"])
@pytest.mark.parametrize("channels", [1, 2, 3, 5, 20, 29])
@pytest.mark.parametrize("reach", [0, 1])
def test_infinity_stays_in_its_windows(reach: int, channels: int, isa: str) -> None:
    """However kernels fill up runs: zero times what stands beside a window would be NaN."""
    beside, kernel = (reach, reach), (2 * reach + 1, 2 * reach + 1)
    s = Shape("edge", 1, channels, 5, (9, 35), kernel, before=beside, after=beside)
    x, w, b, dy = draw(s)
    x[0, :, 4, 17] = np.inf
    dy[0, :, 4, 17] = np.inf
    graph = _core.Graph()
    ids = [graph.input(n, "float32", a.shape) for n, a in zip("xwbd", (x, w, b, dy))]
    (y,) = graph.add("conv", ids[:3], **s.attrs)
    (product,) = graph.add("mul", [y, ids[3]])
    (total,) = graph.add("sum", [product])
    for value in (y, *graph.backward(total, ids[:1])):
        graph.output(value)
    plan = _core.Plan(
        _core.Session(_core.Device("cpu", 0, 1, isa)), graph, compute_dtype="bfloat16"
    )
    for i, array in enumerate((x, w, b, dy)):
        plan.input(i, array)
    assert plan.run(1, 60.0) == ("done", 1)
    reached = np.zeros((9, 35), bool)
    reached[4 - reach : 5 + reach, 17 - reach : 18 + reach] = True
    for value in (plan.output(0), plan.output(1)):
        assert not np.isfinite(value[0, :, reached]).any()
        assert np.isfinite(value[0, :, ~reached]).all()


@pytest.mark.skipif(not os.environ.get("HOTLOOP_TEST_GPU"), reason=NO_GPU)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("s", CASES, ids=lambda s: s.name)
def test_on_a_gpu(s: Shape, dtype: str) -> None:
    """Nothing is unfolded; a kernel of one element is a product where cuDNN does not compute it.
    The same bits again. cuDNN rounds the weight's gradient to 16 bits."""
    device = open_gpu()
    if dtype == "bfloat16" and device.reduced_dtype != "bfloat16":
        pytest.skip("this GPU has no products of bfloat16")
    text, got = run(device, s, dtype)
    assert "unfold" not in text
    is_rounded = "cuda.conv_weight_grad.cudnn" in text
    assert ("cuda.conv" in text) == (is_rounded or s.name != "pointwise")
    for a, b in zip(got, run(device, s, dtype)[1]):
        np.testing.assert_array_equal(a, b)
    check(s, got, {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype] if is_rounded else 0.0)


def check(s: Shape, got: list[Array], weight_unit: float = 0.0) -> None:
    """Holds results against float64; the weight's gradient may be rounded once, by that unit."""
    x, w, bias, dy = draw(s)
    wide = [a.astype("float64") for a in (x, w, dy)]
    wants = (
        conv(s)(*wide[:2], bias.astype("float64")),
        transpose(s)(wide[2], wide[1]),
        weight_gradient(s, wide[0], wide[2]),
    )
    terms = (s.c // s.groups * np.prod(s.kernel), s.o // s.groups * np.prod(s.kernel),
             s.n * np.prod(s.of_results))  # fmt: skip
    for value, want, k, unit in zip(got, wants, terms, (0.0, 0.0, weight_unit)):
        magnitude = abs(want).max() + np.sqrt(k)
        bound = (k + 2) * 2.0**-24 * 4 * magnitude
        assert (abs(value - want) <= bound + unit * (abs(want) + bound)).all()
