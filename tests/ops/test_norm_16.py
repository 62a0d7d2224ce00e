"""Norms that give or read 16 bits: the bits of casts around them, and their gradients."""

import numpy as np
import pytest
from hotloop import _core
from ops.harness import FAST, open_session, run_graph

RNG = np.random.default_rng(16)


def draw(*shape: int) -> np.ndarray:
    return RNG.normal(1, 2, shape).astype(np.float32)


CASES = {
    "batch_norm columns": ("batch_norm", {}, (draw(33, 37), draw(37), draw(37))),
    "batch_norm tall": ("batch_norm", {}, (draw(1100, 5), draw(5), draw(5))),
    "batch_norm planes": ("batch_norm", {}, (draw(5, 3, 70), draw(3), draw(3))),
    "batch_norm aligned planes": ("batch_norm", {}, (draw(6, 4, 6, 8), draw(4), draw(4))),
    "layer_norm": ("layer_norm", {}, (draw(9, 65), draw(65), draw(65))),
    "layer_norm of blocks": ("layer_norm", {"n_axes": 2}, (draw(7, 3, 5),)),
    "layer_norm long": ("layer_norm", {}, (draw(3, 1500), draw(1500))),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("backend", "isa"), [("ref", None), *FAST], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_rounds_as_a_cast(name: str, backend: str, isa: str | None, dtype: str) -> None:
    op, attrs, inputs = CASES[name]
    out_weight = draw(*inputs[0].shape)

    def make(graph: _core.Graph, ids: list[int]) -> list[int | None]:
        results: list[int | None] = []
        *operands, by = ids
        for rounds in (True, False):
            y, *statistics = graph.add(
                op, operands, **attrs, **({"dtype": dtype} if rounds else {})
            )
            assert graph.dtype(y) == (dtype if rounds else "float32")
            if not rounds:
                (y,) = graph.add("cast", [y], dtype=dtype)
            (as_float32,) = graph.add("cast", [y], dtype="float32")
            (product,) = graph.add("mul", [as_float32, by])
            (loss,) = graph.add("sum", [product])
            results += [as_float32, *statistics, *graph.backward(loss, operands)]
        return results

    # Unfused: a program with a sum at its end sums by the program's cut.
    got = run_graph(open_session(backend, isa), make, [*inputs, out_weight], fuse=False)
    half = len(got) // 2
    for rounded, cast in zip(got[:half], got[half:]):
        assert rounded is not None
        assert cast is not None
        np.testing.assert_array_equal(rounded, cast)
    if backend != "ref":  # which computes all in float64
        exact = np.abs(got[0])
        bits = 8 if dtype == "bfloat16" else 11
        mantissa, _ = np.frexp(exact[exact > 2.0**-14])
        assert np.all(mantissa * 2**bits == np.round(mantissa * 2**bits))


@pytest.mark.parametrize("gives", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("backend", "isa"), [("ref", None), *FAST], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_reads_as_behind_a_cast(name: str, backend: str, isa: str | None, gives: str) -> None:
    """x in 16 bits gives what it gives widened, with dy of y's type; two 16-bit types too."""
    op, attrs, inputs = CASES[name]
    out_weight = draw(*inputs[0].shape)

    def make(graph: _core.Graph, ids: list[int]) -> list[int | None]:
        results: list[int | None] = []
        given, *parameters, by = ids
        (narrow,) = graph.add("cast", [given], dtype="bfloat16")
        (wide,) = graph.add("cast", [narrow], dtype="float32")
        for x in (narrow, wide):
            y, *statistics = graph.add(op, [x, *parameters], **attrs, dtype=gives)
            assert graph.dtype(y) == gives
            assert {graph.dtype(s) for s in statistics} == {"float32"}
            (as_float32,) = graph.add("cast", [y], dtype="float32")
            (product,) = graph.add("mul", [as_float32, by])
            (loss,) = graph.add("sum", [product])
            dx, *rest = graph.backward(loss, [x, *parameters])
            assert graph.dtype(dx) == graph.dtype(x)
            (dx,) = graph.add("cast", [dx], dtype="bfloat16")
            (dx,) = graph.add("cast", [dx], dtype="float32")
            results += [as_float32, *statistics, dx, *rest]
        return results

    got = run_graph(open_session(backend, isa), make, [*inputs, out_weight], fuse=False)
    half = len(got) // 2
    for read, widened in zip(got[:half], got[half:]):
        assert read is not None
        assert widened is not None
        np.testing.assert_array_equal(read, widened)


def test_parameters_of_16_bits_are_refused() -> None:
    graph = _core.Graph()
    x = graph.input("x", "bfloat16", (3, 4))
    w = graph.input("w", "bfloat16", (4,))
    with pytest.raises(TypeError, match="the weight must be float32, got bfloat16"):
        graph.add("layer_norm", [x, w])


def test_other_dtypes() -> None:
    graph = _core.Graph()
    x = graph.input("x", "float32", (3, 4))
    y, *_ = graph.add("layer_norm", [x], dtype="float64")
    assert graph.dtype(y) == "float32"
    with pytest.raises(TypeError, match="dtype must be floating, got int8"):
        graph.add("layer_norm", [x], dtype="int8")
