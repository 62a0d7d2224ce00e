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


RNG = np.random.default_rng(3)
A, B, C = (RNG.standard_normal(shape) for shape in ((3, 4, 5), (4, 5, 2), (2, 4, 5)))


@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        (lambda m, x: m.clamp_min(x, 0.3), [A]),
        (lambda m, x: m.clamp_max(x, 0.3), [A]),
        (lambda m, x, y: m.clamp_min(x, y), [A, C[:1]]),
        (lambda m, x: m.swapaxes(x, 0, -1), [A]),
        (lambda m, x: m.swapdims(x, 1, 0), [A]),
        (lambda m, x: m.moveaxis(x, (0, 1), (-1, 0)), [A]),
        (lambda m, x: m.fliplr(x), [A]),
        (lambda m, x: m.flipud(x), [A]),
        *(
            (lambda m, x, k=k, d=d: m.rot90(x, k, d), [A])
            for k in (-3, -2, -1, 0, 1, 2, 3, 4)
            for d in ((0, 1), (2, 1), (-1, 0))
        ),
        *(
            (lambda m, x, o=o, d=d: m.diagonal(x, o, *d), [A])
            for o in (-9, -2, -1, 0, 1, 3, 9)
            for d in ((0, 1), (2, 0), (-2, -1))
        ),
        (lambda m, x, y: m.meshgrid(x, y, indexing="ij"), [A[0, 0], A[1, 1, :3]]),
        (lambda m, x, y: m.meshgrid([x, y], indexing="xy"), [A[0, 0], A[1, 1, :3]]),
        (lambda m, x, y, z: m.meshgrid(x, y, z, indexing="xy"), [A[0, 0], A[0, :2, 0], A[1, :, 1]]),
        (lambda m, x, y: m.tensordot(x, y), [A, B]),
        (lambda m, x, y: m.tensordot(x, y, 0), [A[0], B[0]]),
        (lambda m, x, y: m.tensordot(x, y, dims=([1, 2], [1, 2])), [A, C]),
        (lambda m, x, y: m.tensordot(x, y, dims=([2, 1], [1, 0])), [A, B]),
        *((lambda m, x, y, p=p: m.cdist(x, y, p), [A, C[:, :3][:1]]) for p in (1.0, 2.0, 3.0)),
        (lambda m, x, y: m.cdist(x, y), [A[0], A[0, :2]]),  # distances of 0
        (lambda m, x, y: m.cdist(x, y, float("inf")), [A[0], A[1]]),
    ],
)
def test_compositions(call, inputs) -> None:
    own, twin = (lambda *x: call(hl, *x)), (lambda *x: call(torch, *x))
    check_twins(own, None, twin, None, [np.array(value) for value in inputs])


def positive(*shape: int) -> np.ndarray:
    x = RNG.standard_normal(shape)
    return x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1])


SIDES = RNG.standard_normal((2, 5, 3))
SQUARES = RNG.uniform(-1, 1, (2, 5, 5)) + 3 * np.eye(5)


@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        *(
            (lambda m, x, u=u: m.linalg.cholesky((x + x.mT) / 2, upper=u), [positive(*shape)])
            for u in (False, True)
            for shape in ((4, 4), (2, 3, 5, 5))
        ),
        *(
            (
                lambda m, a, b, u=u, left=left, unit=unit: m.linalg.solve_triangular(
                    a, b if left else b.mT, upper=u, left=left, unitriangular=unit
                ),
                [a, b],
            )
            for u in (False, True)
            for left in (False, True)
            for unit in (False, True)
            for a, b in ((SQUARES, SIDES), (SQUARES[0], SIDES), (SQUARES, SIDES[0]))
        ),
        # torch's gradients of these take the other triangle for 0.
        (lambda m, b, a: m.cholesky_solve(b, m.tril(a)), [SIDES, SQUARES]),
        (lambda m, b, a: m.cholesky_solve(b, m.triu(a), True), [SIDES[0], SQUARES]),
        (lambda m, a: m.cholesky_inverse(m.tril(a)), [SQUARES]),
        (lambda m, a: m.cholesky_inverse(m.triu(a), upper=True), [SQUARES[0]]),
    ],
)
def test_linear_algebra(call, inputs) -> None:
    check_twins(lambda *x: call(hl, *x), None, lambda *x: call(torch, *x), None, inputs)
