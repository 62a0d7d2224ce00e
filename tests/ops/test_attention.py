"""Dropout of attention: the softmax times the mask that the op dropout_mask draws, on every device,
forward and backward. Rows whose scores are all large. And what the op refuses."""

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


# Added to rows, by turns: beside 2**20 float32 has an eighth of a score, beside others nothing is
# left, in float64 neither.
ADDED = [0.0, -(2.0**20), 2.0**20, -(2.0**60), 2.0**60, float(np.finfo(np.float32).min)]


def large_operands(shape: tuple[int, ...]) -> list[Array]:
    """q and k whose scores are multiples of a quarter, v, dout, and a mask of large numbers."""
    n, s = shape[3:5]
    rng = np.random.default_rng(4)
    _, _, v, dout = operands(shape)
    q, k = (rng.integers(-2, 3, x.shape).astype(np.float64) for x in operands(shape)[:2])
    mask = np.empty((1, 1, n, s))
    mask[0, 0] = np.resize(ADDED, n)[:, None]
    mask[0, 0, 1::2, ::3] = -np.inf
    return [q, k, v, dout, mask]


def add_large(graph: _core.Graph, ids: list[int]) -> list[int | None]:
    out, log_sums = graph.add("attention", [*ids[:3], ids[4]], scale=SCALE, has_mask=1)
    (loss,) = graph.add("mul", [out, ids[3]])
    (loss,) = graph.add("sum", [loss])
    return [out, log_sums, *graph.backward(loss, [*ids[:3], ids[4]])]


def large_answers(
    q: Array, k: Array, v: Array, dout: Array, mask: Array
) -> tuple[Array, list[Array]]:
    """The largest scores; out, the logarithms of sums less these, and gradients."""
    b, h, _, e = q.shape
    hk, s, ev = k.shape[1], k.shape[2], v.shape[3]
    k, v = np.repeat(k, h // hk, 1), np.repeat(v, h // hk, 1)
    scores = np.einsum("bhle,bhse->bhls", q, k) * SCALE + mask
    top = scores.max(-1, keepdims=True)
    powers = np.exp(scores - top)
    total = powers.sum(-1, keepdims=True)
    w = powers / total
    g = np.einsum("bhle,bhse->bhls", dout, v)
    ds = w * (g - (w * g).sum(-1, keepdims=True))
    dk = np.einsum("bhls,bhle->bhse", ds, q) * SCALE
    dv = np.einsum("bhls,bhle->bhse", w, dout)
    return top[..., 0], [
        np.einsum("bhls,bhse->bhle", w, v),
        np.log(total)[..., 0],
        np.einsum("bhls,bhse->bhle", ds, k) * SCALE,
        dk.reshape(b, hk, h // hk, s, e).sum(2),
        dv.reshape(b, hk, h // hk, s, ev).sum(2),
        ds.sum((0, 1), keepdims=True),
    ]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("backend", "isa"), DEVICES)
def test_rows_of_large_scores(backend: str, isa: str | None, shape: tuple[int, ...]) -> None:
    """What forward keeps of a row has the logarithm of its sum, whatever stands before it."""
    inputs = large_operands(shape)
    got = run_graph(open_session(backend, isa), add_large, inputs)
    top, want = large_answers(*inputs)
    rounded, rest = np.asarray(got[1], np.float64)
    got[1] = rounded - top + rest
    unit = UNIT["float64" if backend == "ref" else "float32"]
    for j, (g, w) in enumerate(zip(got, want, strict=True)):
        assert g is not None
        bound = (64 + shape[3] + shape[4], 4 * largest(w))
        what = ["out", "logarithms", "dq", "dk", "dv", "dmask"][j]
        check_close(g, w, bound, f"{what} {backend} {isa}", unit, 0.0)


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
