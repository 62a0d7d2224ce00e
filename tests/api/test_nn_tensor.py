"""Symbolic tensors: shapes, dtypes, operators, indexing, and what a trace cannot do."""

import hotloop as hl
import numpy as np
import pytest
from api.traced import run, trace
from hotloop.errors import ShapeError, TraceError

X = ("float32", (6, 8))


def shape_of(fn, *inputs):
    return trace(fn, *inputs)[3][0].shape


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (lambda x: x.view(2, -1), (2, 24)),
        (lambda x: x.reshape((3, 16)), (3, 16)),
        (lambda x: x.T, (8, 6)),
        (lambda x: x.unsqueeze(-1).squeeze(-1), (6, 8)),
        (lambda x: x.flatten(), (48,)),
        (lambda x: x.unflatten(1, (2, -1)), (6, 2, 4)),
        (lambda x: x.expand(3, 6, 8), (3, 6, 8)),
        (lambda x: x.repeat(2, 3), (12, 24)),
        (lambda x: x.sum(0), (8,)),
        (lambda x: x.mean((0, 1), keepdim=True), (1, 1)),
        (lambda x: x.max(1).indices, (6,)),
        (lambda x: x.argmax(), ()),
        (lambda x: x.median(), ()),
        (lambda x: x.median(1).values, (6,)),
        (lambda x: hl.median(x, -2, keepdim=True).indices, (1, 8)),
        (lambda x: x.sum().median(0, True).values, ()),
        (lambda x: x.chunk(3, 1)[2], (6, 2)),
        (lambda x: hl.stack(list(x), 1), (8, 6)),
        (lambda x: hl.cat([x, x], -1), (6, 16)),
        (lambda x: x[0], (8,)),
        (lambda x: x[..., -1], (6,)),
        (lambda x: x[1:3, None, ::2], (2, 1, 4)),
        (lambda x: x[:, [0, 2, 2]], (6, 3)),
        (lambda x: x[np.arange(6), np.arange(6)], (6,)),
        (lambda x: x[[[0, 1], [2, 3]]], (2, 2, 8)),
        (lambda x: x @ x.T, (6, 6)),
        (lambda x: x @ np.ones(8), (6,)),
        (lambda x: hl.einsum("ij,kj->ik", x, x), (6, 6)),
        (lambda x: x.movedim(0, 1), (8, 6)),
        (lambda x: x.roll(1, 0), (6, 8)),
        (lambda x: x.std(1), (6,)),
        (lambda x: x.logsumexp(1), (6,)),
    ],
)
def test_shapes(fn, shape):
    assert shape_of(fn, X) == shape


@pytest.mark.parametrize(
    ("fn", "a", "b", "dtype"),
    [
        (lambda a, b: a + b, "float32", "int64", "float32"),
        (lambda a, b: a * b, "int32", "int64", "int64"),
        (lambda a, b: a / b, "int64", "int64", "float32"),
        (lambda a, b: a + 1.5, "int64", "int64", "float32"),
        (lambda a, b: a + 1, "bool", "bool", "int64"),
        (lambda a, b: a > b, "float32", "float32", "bool"),
        (lambda a, b: a // 2, "int32", "int32", "int32"),
        (lambda a, b: a + np.float64(2), "float32", "float32", "float32"),
        (lambda a, b: np.ones(4) + a, "float32", "float32", "float32"),
        (lambda a, b: a.sum(), "bool", "bool", "int64"),
        (lambda a, b: a.exp(), "int64", "int64", "float32"),
        (lambda a, b: a + b.sum(), "float32", "float64", "float32"),
        (lambda a, b: a + b, "bfloat16", "float16", "float32"),
        (lambda a, b: a.half() * 2, "float32", "float32", "float16"),
    ],
)
def test_dtypes_follow_torch(fn, a, b, dtype):
    made = trace(fn, (a, (3, 4)), (b, (3, 4)))[3][0]
    assert made.dtype == dtype


def test_promotion_is_the_cores():
    from hotloop import _core
    from hotloop.graph import dtypes

    graph = _core.Graph()
    names = [str(d) for d in dtypes._BYTES]
    leaves = {name: graph.input(name, name, (2,)) for name in names}
    for a in names:
        for b in names:
            (total,) = graph.add("mul", [leaves[a], leaves[b]])
            assert graph.dtype(total) == dtypes.promote(dtypes.parse(a), dtypes.parse(b)), (a, b)


def test_values(rng):
    x = rng.standard_normal((6, 8)).astype(np.float32)
    i = rng.integers(0, 8, (6, 3))
    cases = [
        (lambda a, k: a[1:5, ::3], x[1:5, ::3]),
        (lambda a, k: a[:, -1], x[:, -1]),
        (lambda a, k: a[hl.arange(6), k[:, 0]], x[np.arange(6), i[:, 0]]),
        (lambda a, k: a[[-1, 0]], x[[-1, 0]]),
        (lambda a, k: a.gather(1, k), np.take_along_axis(x, i, 1)),
        (lambda a, k: a.flip(1), x[:, ::-1]),
        (lambda a, k: a.roll((1, -2), (0, 1)), np.roll(x, (1, -2), (0, 1))),
        (lambda a, k: a.clamp(-0.5, 0.5), x.clip(-0.5, 0.5)),
        (lambda a, k: 2.0 - a, 2.0 - x),
        (lambda a, k: np.ones((2, 6)) @ a, np.ones((2, 6)) @ x),
        (lambda a, k: hl.where(a > 0, a, 0.0), np.maximum(x, 0)),
        (lambda a, k: a.logaddexp(0.5), np.logaddexp(x, 0.5)),
        (lambda a, k: hl.logaddexp(k, k[:1]), np.logaddexp(i, i[:1])),
        (lambda a, k: a.var(1), x.var(1, ddof=1)),
        (lambda a, k: k // 3, i // 3),
        (lambda a, k: -k % 3, -i % 3),
        (lambda a, k: a.tril(1), np.tril(x, 1)),
        (lambda a, k: hl.one_hot(k, 8), np.eye(8, dtype=int)[i]),
        (lambda a, k: hl.einsum("ij,ij->i", a, a), (x * x).sum(1)),
        (lambda a, k: hl.einsum("ii->i", a[:, :6]), np.diag(x[:, :6])),
        (lambda a, k: a.repeat_interleave(2, 1), np.repeat(x, 2, 1)),
        (lambda a, k: a.cumsum(1), np.cumsum(x, 1)),
        (lambda a, k: a.median(), np.sort(x.ravel())[23]),
        (lambda a, k: a.median(0).values, np.sort(x, 0)[2]),
        (lambda a, k: a.gather(1, hl.median(a, 1, True).indices), np.sort(x, 1)[:, 3:4]),
        (lambda a, k: k.median(1).values, np.sort(i, 1)[:, 1]),
        (lambda a, k: (k > 3).median(1).values, np.sort(i > 3, 1)[:, 1]),
        (lambda a, k: a[:1].sum().median(0).indices, 0),
    ]
    for n, (fn, want) in enumerate(cases):
        (got,) = run(fn, x, i)
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6, err_msg=f"case {n}")


def test_logsumexp_of_infinities():
    rows = np.array([[1, 2], [-np.inf, -np.inf], [np.inf, 0], [-np.inf, 3]], dtype=np.float32)
    with np.errstate(all="ignore"):
        want = np.log(np.exp(rows).sum(1))
    (got,) = run(lambda x: x.logsumexp(1), rows)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: 1 if x.sum() > 0 else 2, "hl.where"),
        (lambda x: float(x.sum()), "no value yet"),
        (lambda x: int(x.sum()), "no value yet"),
        (lambda x: x.item(), "item()"),
        (lambda x: x.numpy(), "numpy()"),
        (lambda x: range(x.sum()), "index or count"),
        (lambda x: np.exp(x), "hl.exp"),
        (lambda x: np.asarray(x), "NumPy"),
        (lambda x: f"{x.sum():.3f}", "formatted"),
        (lambda x: 3 in x, "in"),
        (lambda x: x.relu_(), "x = x.relu("),
        (lambda x: x.add_(1), "x = x.add("),
        (lambda x: x.__setitem__(0, 1.0), "hl.where"),
        (lambda x: x[x > 0], "boolean mask"),
        (lambda x: x.sum().backward(), "hl.train"),
        (lambda x: ~x, "bool"),
        (lambda x: hl.one_hot(x.long()), "num_classes"),
        (lambda x: x + "a", "number"),
        (lambda x: x[1.5], "integers"),
    ],
)
def test_what_a_trace_cannot_do_is_said(fn, words):
    with pytest.raises(TraceError) as caught:
        trace(fn, X)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda x: x @ x, ("(6, 8) and (6, 8)",)),
        (lambda x: x.view(7, -1), ("48", "(7, -1)")),
        (lambda x: x + hl.zeros(3), ("(6, 8)", "(3,)")),
        (lambda x: hl.cat([x, x[:2]], 1), ("(6, 8)", "(2, 8)")),
        (lambda x: hl.stack([x, x[:2]]), ("(6, 8)", "(2, 8)")),
        (lambda x: x.sum(2), ("[-2, 1]", "got 2")),
        (lambda x: x[7], ("[-6, 5]", "got 7")),
        (lambda x: x[0, 0, 0], ("(6, 8)", "got 3")),
        (lambda x: x[::-1], ("flip",)),
        (lambda x: x.split([1, 2], 1), ("[1, 2]",)),
        (lambda x: hl.einsum("ij,jk->ik", x, x), ("'j'",)),
        (lambda x: x.expand(6, 9), ("(6, 8)", "(6, 9)")),
        (lambda x: x.permute(0, 0), ("(0, 0)",)),
        (lambda x: x.squeeze(5), ("got 5",)),
        (lambda x: x.median(2), ("[-2, 1]", "got 2")),
        (lambda x: x[:, :0].median(1), ("median", "(6, 0)", "axis 1")),
        (lambda x: x[:0].median(), ("median", "axis 0")),
    ],
)
def test_shape_errors_name_both_shapes(fn, words):
    with pytest.raises(ShapeError) as caught:
        trace(fn, X)
    for word in words:
        assert word in str(caught.value)


def test_misspelt_method_is_suggested():
    with pytest.raises(AttributeError, match="did you mean 'softmax'"):
        trace(lambda x: x.sofmax(1), X)


def test_a_number_of_the_training_is_none_outside_of_forward():
    with pytest.raises(TraceError, match="scalar: must run inside a module's forward"):
        hl.scalar("rate", 0.5)


def test_tensors_do_not_outlive_their_trace():
    kept = []
    trace(kept.append, X)
    with pytest.raises(TraceError, match="this call of forward"):
        trace(lambda x: x + kept[0], X)


def test_no_grad_detaches():
    graph, *_ = trace(lambda x: x.exp(), X)
    assert "detach" not in str(graph)

    @hl.no_grad()
    def quiet(x):
        return x.exp()

    graph, *_ = trace(quiet, X)
    assert "detach" in str(graph)


def test_creation_outside_is_numpy_and_inside_is_symbolic():
    assert isinstance(hl.zeros(2, 3), np.ndarray)
    assert hl.zeros((2, 3)).dtype == np.float32
    assert hl.arange(3).dtype == np.int64
    assert hl.tensor([1.0, 2.0]).dtype == np.float32
    made = trace(lambda x: (hl.zeros(2, 3), hl.ones_like(x), hl.arange(4) * 0.5), X)[3]
    assert [m.shape for m in made] == [(2, 3), (6, 8), (4,)]
    assert all(isinstance(m, hl.Tensor) for m in made)


def test_random_numbers_of_a_trace(rng):
    x = rng.standard_normal((4096, 4)).astype(np.float32)
    u, n, k = run(lambda x: (hl.rand_like(x), hl.randn_like(x), hl.randint(0, 5, x.shape)), x)
    assert 0 < u.min() < u.max() < 1
    assert abs(u.mean() - 0.5) < 0.02
    assert abs(n.mean()) < 0.05
    assert abs(n.std() - 1) < 0.05
    assert set(np.unique(k)) == {0, 1, 2, 3, 4}
    again = run(lambda x: hl.rand_like(x), x)[0]
    np.testing.assert_array_equal(u, again)


def test_manual_seed():
    hl.manual_seed(3)
    a, b = hl.randn(5), hl.randn(5)
    hl.manual_seed(3)
    np.testing.assert_array_equal(a, hl.randn(5))
    assert not np.array_equal(a, b)
    with pytest.raises(hl.ConfigError):
        hl.manual_seed(-1)
