"""Statistics of channels against NumPy in float64: every dtype, device and instruction set, to the
roundings of float64, which the float32 tolerances of the cases do not show."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.graph.build import cast
from hotloop.graph.statistics import channel_statistics
from ops.harness import FAST, open_session
from train.recipes import quiet

DEVICES = [("ref", None), *FAST]
DTYPES = ("float32", "float64", "bfloat16", "float16")


def run(backend, isa, x, shift, mask=None, dtype="float32", n_threads=0, **attrs):
    """x enters as float32 or float64, and is cast to the dtype."""
    graph = _core.Graph()
    entered = "float64" if dtype == "float64" else "float32"
    (as_dtype,) = graph.add("cast", [graph.input("x", entered, x.shape)], dtype=dtype)
    ids = [as_dtype, graph.input("shift", "float64", shift.shape)]
    if mask is not None:
        ids.append(graph.input("mask", "bool", mask.shape))
    for value in graph.add("channel_statistics", ids, **attrs):
        assert graph.dtype(value) == "float64"
        graph.output(value)
    plan = _core.Plan(open_session(backend, isa, n_threads), graph)
    for i, array in enumerate([x, shift, mask][: len(ids)]):
        plan.input(i, array)
    plan.run(1, 1e9)
    return [plan.output(j) for j in range(5)]


def round_to(x, dtype):
    """Values that 16 bits hold, so that the reference, which has float64, sees the same."""
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float64)
    if dtype == "bfloat16":
        bits = x.astype(np.float32).view(np.uint32)
        return (bits & 0xFFFF0000).view(np.float32).astype(np.float64)
    return x if dtype == "float64" else x.astype(np.float32).astype(np.float64)


def expect(x, shift, mask=None):
    rows = x.reshape(-1, x.shape[-1])
    rows = rows if mask is None else rows[mask.reshape(-1)]
    d = rows - shift
    lowest, highest = rows.min(0, initial=np.inf), rows.max(0, initial=-np.inf)
    return len(rows), lowest, highest, d.sum(0), d.T @ d


def check(got, want, tolerance=1e-12):
    count, lowest, highest, sums, products = got
    assert count == want[0]
    np.testing.assert_array_equal(lowest, want[1])
    np.testing.assert_array_equal(highest, want[2])
    np.testing.assert_allclose(sums, want[3], tolerance, tolerance * max(1, want[0]) ** 0.5)
    diagonal = np.diagonal(want[4])
    scale = np.sqrt(np.outer(diagonal, diagonal))
    if products.ndim == 1:
        np.testing.assert_allclose(products, diagonal, tolerance)
        return
    np.testing.assert_array_equal(products, products.T)
    assert np.all(np.abs(products - want[4]) <= tolerance * scale)


@pytest.mark.parametrize(("backend", "isa"), DEVICES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(301, 7), (3, 257, 50), (1030, 61), (259, 131), (5, 1)])
def test_every_dtype(shape, dtype, backend, isa):
    rng = np.random.default_rng(len(dtype) + shape[-1])
    x = round_to(rng.normal(100, 1 + np.arange(shape[-1]) / 9, shape), dtype)
    shift = rng.normal(100, 1, shape[-1])
    mask = rng.random(shape[:-1]) < 0.7
    for keep in (None, mask):
        got = run(backend, isa, x, shift, keep, dtype)
        check(got, expect(x, shift, keep))
        *same, squares = run(backend, isa, x, shift, keep, dtype, products=0)
        check([*same, squares], expect(x, shift, keep))


@pytest.mark.parametrize(("backend", "isa"), DEVICES, ids=str)
def test_batches_add_up(backend, isa):
    """Sums of batches of any size are those of all rows."""
    rng = np.random.default_rng(5)
    x, shift = round_to(rng.normal(-40, 3, (2999, 23)), "float32"), rng.normal(-40, 1, 23)
    mask = rng.random(2999) < 0.5
    whole = run(backend, isa, x, shift, mask)
    for cuts in ([1, 2, 700], [64, 1024], list(range(128, 2999, 500))):
        parts = [
            run(backend, isa, *rows)
            for rows in zip(np.split(x, cuts), [shift] * (len(cuts) + 1), np.split(mask, cuts))
        ]
        count, lowest, highest, sums, products = zip(*parts)
        totals = [sum(count), np.min(lowest, 0), np.max(highest, 0), sum(sums), sum(products)]
        check(totals, whole, 1e-12)


@pytest.mark.parametrize(("backend", "isa"), DEVICES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("C", [1, 3, 9, 50])
def test_masked_rows_do_not_matter(C, dtype, backend, isa):
    rng = np.random.default_rng(C)
    x, shift = round_to(rng.normal(2, 1, (700, C)), dtype), rng.normal(2, 1, C)
    mask = rng.random(700) < 0.6
    want = run(backend, isa, x, shift, mask, dtype)
    for number in (np.nan, np.inf):
        wild = np.where(mask[:, None], x, number)
        got = run(backend, isa, wild, shift, mask, dtype)
        assert [a.tobytes() for a in got] == [a.tobytes() for a in want]


@pytest.mark.parametrize(("backend", "isa"), DEVICES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("products", [0, 1])
@pytest.mark.parametrize("row", [0, 63, 64, 500, 698, 699])
def test_a_nan_marks_its_channel(row, products, dtype, backend, isa):
    x, shift = np.ones((700, 19)), np.zeros(19)
    x[5], x[6] = 0.5, 2
    x[row, 3] = x[row, 18] = np.nan
    x[10, 7], x[11, 7], x[12, 8] = np.inf, -np.inf, np.inf
    _, lowest, highest, sums, squares = run(backend, isa, x, shift, None, dtype, products=products)
    broken = np.isin(np.arange(19), [3, 18])
    if products:
        assert np.isnan(squares[3]).all()
        assert np.isnan(squares[:, 18]).all()
        squares = np.diagonal(squares)
    assert (np.isnan(lowest) == broken).all()
    assert (np.isnan(highest) == broken).all()
    assert (np.isnan(squares) == broken).all()
    assert (np.isnan(sums) == (broken | (np.arange(19) == 7))).all()
    assert (lowest[7], highest[7], lowest[8], highest[8]) == (-np.inf, np.inf, 0.5, np.inf)
    assert (lowest[0], highest[0]) == ((1, 1) if row in (5, 6) else (0.5, 2))


@pytest.mark.parametrize(("backend", "isa"), DEVICES, ids=str)
def test_nothing_to_count(backend, isa):
    for shape in ((0, 4), (7, 4), (2, 0, 4)):
        mask = np.zeros(shape[:-1], bool)
        for keep in (mask,) if mask.size else (None, mask):
            count, lowest, highest, sums, products = run(
                backend, isa, np.ones(shape), np.zeros(4), keep
            )
            assert (count, *lowest, *highest) == (0, *[np.inf] * 4, *[-np.inf] * 4)
            assert not sums.any()
            assert products.shape == (4, 4)
            assert not products.any()


def test_cancellation_is_the_shifts_affair():
    """A variance far below the mean's square survives, by a shift near the mean."""
    x = (1e6 + np.random.default_rng(0).standard_normal((5000, 3))).astype(np.float32)
    got = channel_statistics(x, x[0].astype(np.float64))
    variance = np.diagonal(got.products) / got.count - (got.sums / got.count) ** 2
    np.testing.assert_allclose(variance, x.astype(np.float64).var(0), 1e-10)


def test_arrays():
    x = np.float32([[1, 5], [3, 2], [9, 9]])
    got = channel_statistics(x, [0.1, 0.2], [True, True, False], products=False)
    assert got._fields == ("count", "lowest", "highest", "sums", "products")
    assert got.count == 2
    assert (got.lowest.tolist(), got.highest.tolist()) == ([1, 2], [3, 5])
    np.testing.assert_allclose(got.sums, [3.8, 6.6], 1e-15)
    np.testing.assert_allclose(got.products, [0.9**2 + 2.9**2, 4.8**2 + 1.8**2], 1e-15)


class Meeting(nn.Module):
    """A layer whose products mixed precision rounds, beside statistics of what it reads."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.register_buffer("squares", np.zeros(3, np.float32))

    def forward(self, x):
        found = channel_statistics(x, np.array([0.1, 0.2, 0.3]))
        assert {value.dtype for value in found} == {"float64"}
        self.squares.assign(cast(found.products.diagonal() / found.count, "float32"))
        return self.linear(x)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed", "64-true"])
def test_precision_leaves_float64(precision):
    x = np.random.default_rng(1).normal(0, 1, (65, 3)).astype(np.float32)
    model = Meeting()
    data = hl.DataModule.from_arrays(x, x[:, :1], val=None, batch_size=65)
    hl.train(model, data, quiet(precision=precision, max_epochs=1))
    want = ((x.astype(np.float64) - [0.1, 0.2, 0.3]) ** 2).mean(0)
    np.testing.assert_allclose(model.squares.numpy(), want, 2e-7)


X = np.ones((4, 3))


@pytest.mark.parametrize(
    ("x", "shift", "mask", "error", "words"),
    [
        (X, np.zeros(2), None, hl.ShapeError, r"shift must have shape \(3,\), got \(2,\)"),
        (X, np.zeros((1, 3)), None, hl.ShapeError, r"got \(1, 3\)"),
        (X, np.zeros(3, int), None, hl.TraceError, "shift must be float64, got int64"),
        (X, np.zeros(3), X[:3, 0] > 0, hl.ShapeError, r"mask must have shape \(4,\), got \(3,\)"),
        (X, np.zeros(3), X[:, 0], hl.TraceError, "mask must be bool, got float32"),
        (X.astype(int), np.zeros(3), None, hl.TraceError, "input must be of a floating .* int64"),
        (1.0, np.zeros(3), None, hl.ShapeError, "input must have at least 1 dims"),
        ("x", np.zeros(3), None, hl.TraceError, "channel_statistics: must be given a tensor"),
        (X, "x", None, hl.TraceError, "channel_statistics"),
    ],
)
def test_errors(x, shift, mask, error, words):
    with pytest.raises(error, match=words):
        channel_statistics(x, shift, mask)


def test_a_float32_tensor_is_no_shift():
    class Net(nn.Module):
        def forward(self, x):
            return channel_statistics(x, x[0]).sums

    with pytest.raises(hl.TraceError, match="the shift must be float64, got float32"):
        Net()(np.ones((4, 3), np.float32))
