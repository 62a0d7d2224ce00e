"""Sorting, the largest few, places, distinct values: what they give, and what they refuse."""

import hotloop as hl
import numpy as np
import pytest
from api.traced import gradients, run, trace
from hotloop.errors import ConfigError, DataError, HotloopError, ShapeError, TraceError

X = np.array([[3, 1, 2], [0, 5, 5]], np.float32)


@pytest.mark.parametrize(
    ("fn", "want"),
    [
        (lambda x: x.sort(), ([[1, 2, 3], [0, 5, 5]], [[1, 2, 0], [0, 1, 2]])),
        (lambda x: x.sort(0, True), ([[3, 5, 5], [0, 1, 2]], [[0, 1, 1], [1, 0, 0]])),
        (lambda x: x.argsort(dim=1, descending=True, stable=True), [[0, 2, 1], [1, 2, 0]]),
        (lambda x: x.msort(), [[0, 1, 2], [3, 5, 5]]),
        (lambda x: x.topk(2), ([[3, 2], [5, 5]], [[0, 2], [1, 2]])),
        (lambda x: x.topk(1, 0, largest=False), ([[0, 1, 2]], [[1, 0, 0]])),
        (lambda x: x.topk(0).values, np.zeros((2, 0))),
        (lambda x: x.kthvalue(2), ([2, 5], [2, 1])),
        (lambda x: x.kthvalue(1, 0, True).values, [[0, 1, 2]]),
        (lambda x: x.sum().sort(), (16, 0)),
        (lambda x: x.sum().topk(1), (16, 0)),
        (lambda x: x.sum().kthvalue(1, -1, True), (16, 0)),
        (lambda x: (x > 2).sort(1).values, [[0, 0, 1], [0, 1, 1]]),
        (lambda x: x.quantile(0.25, 1), [1.5, 2.5]),
        (lambda x: x.quantile([0, 0.5, 1]), [0, 2.5, 5]),
        (lambda x: x.quantile(0.5, 1, True, interpolation="lower"), [[2], [5]]),
        (lambda x: hl.searchsorted([1.0, 2.0, 5.0], x), [[2, 0, 1], [0, 2, 2]]),
        (lambda x: hl.searchsorted([1.0, 2.0, 5.0], x, side="right"), [[3 - 1, 1, 2], [0, 3, 3]]),
        (lambda x: hl.searchsorted(x[0], 2.5, sorter=x[0].argsort()), 2),
        (lambda x: hl.searchsorted(x.sort().values, x[:, :2]), [[2, 0], [0, 1]]),
        (lambda x: hl.bucketize(x, [1.0, 3.0]), [[1, 0, 1], [0, 2, 2]]),
        (lambda x: hl.bucketize(x, [1.0, 3.0], right=True), [[2, 1, 1], [0, 2, 2]]),
        (lambda x: x.unique(), [0, 1, 2, 3, 5, 0]),
        (lambda x: x.unique(size=5), [0, 1, 2, 3, 5]),
        (lambda x: x[1].unique(size=3, fill_value=-1), [0, 5, -1]),
        (
            lambda x: x.unique(return_inverse=True, return_counts=True, size=8, fill_value=9),
            (
                [0, 1, 2, 3, 5, 9, 9, 9],
                [[3, 1, 2], [0, 4, 4]],
                [1, 1, 1, 1, 2, 0, 0, 0],
            ),
        ),
        (lambda x: x[0, :1].unique(return_counts=True), ([3], [1])),
        (lambda x: x.sum().unique(return_inverse=True, size=2), ([16, 16], 0)),
    ],
)
def test_values(fn, want):
    """In a trace and, by the same functions, at once on arrays."""
    for n, (got, expected) in enumerate(
        zip(run(fn, X), want if isinstance(want, tuple) else (want,), strict=True)
    ):
        np.testing.assert_array_equal(got, expected, err_msg=f"result {n}")


def test_functions_of_arrays():
    values, indices = hl.sort(X, 1, descending=True)
    assert values.tolist() == [[3, 2, 1], [5, 5, 0]]
    assert indices.dtype == np.int64
    assert hl.topk(X, 1).indices.tolist() == [[0], [1]]
    assert hl.searchsorted([1, 2, 3], 2, right=True, out_int32=True).dtype == np.int32
    assert hl.unique([2, 2, 7]).tolist() == [2, 7, 2]


def test_nan_is_the_greatest_everywhere():
    nan = np.array([2, np.nan, -0.0, 0.0, np.inf], np.float32)
    assert hl.argsort(nan).tolist() == [2, 3, 0, 4, 1]
    assert hl.argsort(nan, descending=True).tolist() == [1, 4, 0, 2, 3]
    ordered = hl.sort(nan).values
    assert hl.searchsorted(ordered, nan).tolist() == [2, 4, 0, 0, 3]
    assert hl.searchsorted(ordered, nan, right=True).tolist() == [3, 5, 2, 2, 4]
    assert np.isnan(hl.quantile(nan, 0.1))
    values, counts = hl.unique(np.array([np.nan, 1, np.nan]), return_counts=True)
    assert counts.tolist() == [1, 1, 1]
    assert np.isnan(values[1:]).all()


def test_gradients_go_to_where_values_stood():
    weight = np.array([[1, 2, 3]], np.float32)
    (got,) = gradients(lambda x: x.sort(1).values * weight, X)
    assert got.tolist() == [[3, 1, 2], [1, 2, 3]]
    (got,) = gradients(lambda x: x.topk(2, 1).values * weight[:, :2], X)
    assert got.tolist() == [[1, 0, 2], [0, 1, 2]]
    (got,) = gradients(lambda x: x.unique(size=5, fill_value=0) * np.arange(1, 6), X)
    assert got.tolist() == [[4, 2, 3], [1, 5, 0]]
    (got,) = gradients(lambda x: x.quantile(0.25, 1), X)
    assert got.tolist() == [[0, 0.5, 0.5], [0.5, 0.5, 0]]


def test_more_distinct_values_than_their_size():
    """The step says so; the truth is never cut off in silence."""
    rng = np.random.default_rng(0)
    few = rng.integers(0, 5, 40)
    assert hl.unique(few, size=5).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(DataError, match=r"unique\(size=4\): .* below 5, got 5 at"):
        hl.unique(few, size=4)
    with pytest.raises(DataError, match=r"unique\(size=4\): .* below 5, got 5 at"):
        run(lambda x: x.unique(size=4), few)


@pytest.mark.parametrize(
    ("fn", "error", "words"),
    [
        (lambda x: x.sort(2), ShapeError, "sort: dim must be in [-2, 1] for shape (2, 3), got 2"),
        (lambda x: x.topk(4), ShapeError, "topk: k must be an integer in [0, 3], the elements"),
        (lambda x: x.topk(-1), ShapeError, "shape (2, 3), got -1"),
        (lambda x: x.topk(1.5), ShapeError, "got 1.5"),
        (lambda x: x.topk(1, 3), ShapeError, "topk: dim must be in [-2, 1]"),
        (lambda x: x.kthvalue(0), ShapeError, "kthvalue: k must be an integer in [1, 3]"),
        (lambda x: x.quantile(1.5), ConfigError, "q must be numbers in [0, 1], got 1.5"),
        (lambda x: x.long().quantile(0.5), ConfigError, "must be given floats, got int64"),
        (lambda x: x.quantile(0.5, interpolation="cubic"), ConfigError, "got 'cubic'"),
        (lambda x: x[:0].quantile(0.5, 0), ShapeError, "must have elements"),
        (lambda x: hl.searchsorted(x, x[:1]), ShapeError, "got (2, 3) and values (1, 3)"),
        (lambda x: hl.searchsorted(x, 1.0), ShapeError, "got (2, 3) and values ()"),
        (lambda x: hl.searchsorted(x[0, 0], x), ShapeError, "at least 1 dims, got ()"),
        (lambda x: hl.searchsorted(x, x.long()), TraceError, "float32, got int64; cast"),
        (lambda x: hl.searchsorted(x, x, side="up"), TraceError, "got 'up'"),
        (lambda x: hl.searchsorted(x, x, side="left", right=True), TraceError, "must agree"),
        (lambda x: hl.searchsorted(x, x, sorter=x[0].long()), ShapeError, "(2, 3), got (3,)"),
        (lambda x: hl.searchsorted(x, x, sorter=x), HotloopError, "integer"),
        (lambda x: hl.bucketize(x, x), ShapeError, "must be a vector, got shape (2, 3)"),
        (lambda x: x.unique(size=0), ShapeError, "size must be a positive integer, got 0"),
        (lambda x: x.unique(size=2.5), ShapeError, "size must be a positive integer, got 2.5"),
        (lambda x: x[:0].unique(), ShapeError, "must have elements, got shape (0, 3)"),
        (lambda x: x.unique(dim=0), TraceError, "unique: dim must be None"),
    ],
)
def test_refused(fn, error, words):
    with pytest.raises(error) as caught:
        trace(fn, X)
    assert words in str(caught.value)
