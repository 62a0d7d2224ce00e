"""Functions of hl beside torch's of the same name: values and gradients, extremes included."""

import itertools

import numpy as np
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
