"""Dropout of attention: the softmax times the mask that the op dropout_mask draws, on every device,
forward and backward. And what the op refuses."""

import functools
from collections.abc import Sequence

import numpy as np
import pytest
from hotloop import _core
from ops.harness import FAST, UNIT, Array, check_close, largest, open_session, run_graph

DEVICES = [("ref", None), *FAST]
P, STREAM, SEED, SCALE = 0.4, "a.attention.0", 7, 0.25
# B, H, Hk, L, S, E, Ev
SHAPES = [(3, 4, 2, 9, 11, 8, 5), (2, 1, 1, 70, 300, 4, 8)]


def operands(shape: tuple[int, ...]) -> list[Array]:
    b, h, hk, n, s, e, ev = shape
    rng = np.random.default_rng(3)
    dims = ((b, h, n, e), (b, hk, s, e), (b, hk, s, ev), (b, h, n, ev))
    return [rng.standard_normal(d).astype(np.float32).astype(np.float64) for d in dims]


def with_gradients(graph: _core.Graph, out: int, ids: list[int]) -> list[int | None]:
    (loss,) = graph.add("mul", [out, ids[3]])
    (loss,) = graph.add("sum", [loss])
    return [out, *graph.backward(loss, ids[:3])]


def fused(graph: _core.Graph, ids: list[int]) -> Sequence[int | None]:
    random = {"p": P, "stream": STREAM, "seed": SEED}
    out, _ = graph.add("attention", [*ids[:3], graph.control()], scale=SCALE, **random)
    return with_gradients(graph, out, ids)


def composed(shape: tuple[int, ...], graph: _core.Graph, ids: list[int]) -> Sequence[int | None]:
    b, h, hk, n, s, e, ev = shape
    rows = h // hk * n
    (q,) = graph.add("reshape", [ids[0]], shape=(b, hk, rows, e))
    (w,) = graph.add("matmul", [q, ids[1]], trans_b=1)
    w = graph.add("mul", [w, graph.const(np.array(SCALE, np.float32))])[0]
    (w,) = graph.add("softmax", [w])
    (w,) = graph.add("reshape", [w], shape=(b, h, n, s))
    random = {"p": P, "stream": STREAM, "seed": SEED}
    (mask,) = graph.add("dropout_mask", [graph.control()], shape=(b, h, n, s), **random)
    (w,) = graph.add("mul", [w, mask])
    (w,) = graph.add("reshape", [w], shape=(b, hk, rows, s))
    (out,) = graph.add("matmul", [w, ids[2]])
    (out,) = graph.add("reshape", [out], shape=(b, h, n, ev))
    return with_gradients(graph, out, ids)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("backend", "isa"), DEVICES)
def test_drops_what_a_mask_would(backend: str, isa: str | None, shape: tuple[int, ...]) -> None:
    inputs = operands(shape)
    session = open_session(backend, isa)
    want = run_graph(open_session("ref"), functools.partial(composed, shape), inputs)
    got = run_graph(session, fused, inputs)
    unit = UNIT["float64" if backend == "ref" else "float32"]
    for j, (g, w) in enumerate(zip(got, want, strict=True)):
        assert g is not None
        assert w is not None
        bound = (64 + shape[3] + shape[4], 4 * largest(w))
        check_close(g, w, bound, f"{['out', 'dq', 'dk', 'dv'][j]} {backend} {isa}", unit, 0.0)


@pytest.mark.parametrize(("p", "message"), [(-0.1, "p must lie in 0 ... 1"), (1.5, "p must lie")])
def test_bad_probabilities(p: float, message: str) -> None:
    graph = _core.Graph()
    ids = [graph.input(n, "float32", (1, 1, 2, 2)) for n in "qkv"]
    with pytest.raises(Exception, match=message):
        graph.add("attention", [*ids, graph.control()], p=p, stream="a")


def test_a_stream_has_a_name() -> None:
    graph = _core.Graph()
    ids = [graph.input(n, "float32", (1, 1, 2, 2)) for n in "qkv"]
    with pytest.raises(Exception, match="a random stream must have a name"):
        graph.add("attention", [*ids, graph.control()], p=0.5)
    with pytest.raises(Exception, match="there must be 3 operands, got 4"):
        graph.add("attention", [*ids, graph.control()])


def test_masks_broadcast() -> None:
    graph = _core.Graph()
    ids = [graph.input(n, "float32", (2, 3, 4, 5)) for n in "qkv"]
    mask = graph.input("mask", "float32", (2, 3, 4, 3))
    with pytest.raises(Exception, match=r"broadcast to \(2, 3, 4, 4\), got 3 in dim 3"):
        graph.add("attention", [*ids, mask], has_mask=1)
    mask = graph.input("mask", "int64", (2, 3, 4, 4))
    with pytest.raises(Exception, match="the mask must be float32, got int64"):
        graph.add("attention", [*ids, mask], has_mask=1)


def test_heads_are_a_multiple() -> None:
    graph = _core.Graph()
    q = graph.input("q", "float32", (2, 3, 4, 5))
    k, v = (graph.input(n, "float32", (2, 2, 4, 5)) for n in "kv")
    with pytest.raises(Exception, match="must be a multiple of the key's, got 3 and 2"):
        graph.add("attention", [q, k, v])
