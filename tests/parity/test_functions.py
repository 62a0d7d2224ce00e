"""Functions of hl beside torch's of the same name: values and gradients, extremes included."""

import itertools

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

import hotloop as hl  # noqa: E402
from parity.twins import check_twins  # noqa: E402

EXTREMES = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 40.0, -700.0, 1e300, -1e300]


def test_logaddexp() -> None:
    meetings = np.array(list(itertools.product(EXTREMES, EXTREMES)))
    a, b = meetings.T
    check_twins(hl.logaddexp, None, torch.logaddexp, None, [a, b], gradients=False)
    # Of two equal infinities torch's gradient is NaN.
    there = ~(np.isinf(a) & (a == b))
    check_twins(hl.logaddexp, None, torch.logaddexp, None, [a[there], b[there]])
    rng = np.random.default_rng(0)
    near = [rng.standard_normal((5, 1, 7)), rng.standard_normal((3, 1))]
    check_twins(hl.logaddexp, None, torch.logaddexp, None, near)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 101])
def test_median(n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.permutation(3 * n * 4).reshape(3, n, 4) / 7
    for dim in (0, 1, -1):
        for keepdim in (False, True):

            def along(x, dim=dim, keepdim=keepdim):
                return x.median(dim, keepdim)

            check_twins(along, None, along, None, [x])
    check_twins(hl.median, None, torch.median, None, [x])
    spoilt = np.where(x == x[1, 0, 2], np.nan, x)
    check_twins(hl.median, None, torch.median, None, [spoilt])
    check_twins(lambda x: hl.median(x, 0), None, lambda x: torch.median(x, 0), None, [spoilt])
