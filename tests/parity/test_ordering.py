"""Sorting and searching beside torch's: values, indices and gradients."""

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

import hotloop as hl  # noqa: E402
from parity.twins import check_twins  # noqa: E402

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0]


@pytest.mark.parametrize("n", [1, 2, 7, 64, 65, 300])
@pytest.mark.parametrize("descending", [False, True])
def test_sort(n: int, descending: bool) -> None:
    rng = np.random.default_rng(n)
    x = np.round(rng.standard_normal((3, n, 2)), 1)  # with ties
    x.flat[::5] = np.resize(SPECIAL, x.flat[::5].shape)
    for dim in (0, 1, -1):

        def along(x, dim=dim):
            # torch's order of equal elements is what stable=True says
            module = torch if isinstance(x, torch.Tensor) else hl
            return module.sort(x, dim=dim, descending=descending, stable=True)

        check_twins(along, None, along, None, [x])
        check_twins(
            lambda x, dim=dim: x.argsort(dim, descending),
            None,
            lambda x, dim=dim: torch.argsort(x, dim=dim, descending=descending, stable=True),
            None,
            [x],
            gradients=False,
        )


@pytest.mark.parametrize("n", [3, 64, 65, 300, 2100])
def test_topk(n: int) -> None:
    x = np.random.default_rng(n).permutation(3 * n).reshape(3, n) / 7
    for k in (1, 3, n // 3, n):
        for largest in (True, False):

            def few(x, k=k, largest=largest):
                return x.topk(k, 1, largest=largest)

            check_twins(few, None, few, None, [x])
    check_twins(lambda x: x.kthvalue(2), None, lambda x: x.kthvalue(2), None, [x])
    check_twins(
        lambda x: hl.kthvalue(x, 3, 0, True), None, lambda x: x.kthvalue(3, 0, True), None, [x]
    )


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "nearest", "midpoint"])
@pytest.mark.parametrize("dim", [None, 0, 1])
def test_quantile(dim: int | None, interpolation: str) -> None:
    x = np.random.default_rng(1).permutation(45).reshape(9, 5) / 7
    for q in (0.0, 0.3, 0.5, 0.91, 1.0):
        for keepdim in (False, True):

            def one(x, q=q, keepdim=keepdim):
                return x.quantile(q, dim, keepdim, interpolation=interpolation)

            check_twins(one, None, one, None, [x])
    q = [0.1, 0.6]
    check_twins(
        lambda x: x.quantile(q, dim, interpolation=interpolation),
        None,
        lambda x: x.quantile(torch.tensor(q, dtype=x.dtype), dim, interpolation=interpolation),
        None,
        [x],
    )
    x[3, 2] = np.nan
    check_twins(
        lambda x: x.quantile(0.3, dim), None, lambda x: x.quantile(0.3, dim), None, [x],
        gradients=False,
    )  # fmt: skip


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(right: bool) -> None:
    rng = np.random.default_rng(2)
    rows, values = np.sort(rng.integers(0, 20, (2, 3, 40)), -1), rng.integers(-1, 21, (2, 3, 9))
    for a, b in ((rows, values), (rows[0, 0], values), (rows / 2, values / 2)):

        def find(m, a, b):
            return m.searchsorted(a, b, right=right), m.searchsorted(a, b, side="right")

        check_twins(
            lambda a, b: find(hl, a, b), None, lambda a, b: find(torch, a, b), None, [a, b],
            gradients=False,
        )  # fmt: skip

    def find_bucket(m, a, b):
        return m.bucketize(b, a, right=right)

    check_twins(
        lambda a, b: find_bucket(hl, a, b),
        None,
        lambda a, b: find_bucket(torch, a, b),
        None,
        [rows[0, 0], values],
        gradients=False,
    )


@pytest.mark.parametrize("high", [2, 9, 1000])
def test_unique(high: int) -> None:
    x = np.random.default_rng(high).integers(0, high, (7, 9))
    want = torch.unique(torch.from_numpy(x), return_inverse=True, return_counts=True)
    n = len(want[0])
    for size in (None, n, n + 3):
        values, inverse, counts = hl.unique(x, return_inverse=True, return_counts=True, size=size)
        assert values[:n].tolist() == want[0].tolist()
        assert (values[n:] == x.min()).all()
        assert inverse.tolist() == want[1].tolist()
        assert counts[:n].tolist() == want[2].tolist()
        assert not counts[n:].any()
