"""A matrix without a factor, or a singular one, ends the step with a DataError that names which of
the batch, where and by how much; the same plan gives the right answer for the next one."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core
from ops.harness import FAST

DEVICES = [("ref", None), *FAST]


def good(n_matrices: int, n: int) -> np.ndarray:
    x = np.random.default_rng(2).uniform(-1, 1, (n_matrices, n, n))
    return np.tril(x, -1) + np.swapaxes(np.tril(x, -1), 1, 2) + n * np.eye(n)


def plan_of(op: str, backend: str, isa: str | None, *arrays: np.ndarray, **attrs: int):
    session = _core.Session(_core.Device(backend, 0, 1, isa))
    graph = _core.Graph()
    ids = [graph.input(f"in{i}", "float32", a.shape) for i, a in enumerate(arrays)]
    graph.output(graph.add(op, ids, **attrs)[0])
    plan = _core.Plan(session, graph)
    for i, array in enumerate(arrays):
        plan.input(i, array)
    return plan


@pytest.mark.parametrize(("backend", "isa"), DEVICES, ids=str)
@pytest.mark.parametrize("k", [0, 5, 20, 36])
def test_not_positive_definite(k: int, backend: str, isa: str | None) -> None:
    a = good(3, 37)
    plan = plan_of("cholesky", backend, isa, a)
    plan.run(1, 1e9)
    before = plan.output(0)
    wrong = a.copy()
    wrong[1, k, :k] = 0
    wrong[1, k, k] = -0.25
    plan.input(0, wrong)
    with pytest.raises(hl.DataError) as caught:
        plan.run(1, 1e9)
    assert (
        "cholesky: matrix 1 of the batch must be positive definite, got -0.25 for the pivot of its "
        f"leading minor of order {k + 1};" in str(caught.value)
    )
    plan.input(0, a)
    plan.run(1, 1e9)
    assert plan.output(0).tobytes() == before.tobytes()


@pytest.mark.parametrize(("backend", "isa"), DEVICES, ids=str)
@pytest.mark.parametrize("form", range(4))
def test_singular(form: int, backend: str, isa: str | None) -> None:
    a = good(2, 19)
    a[1, 7, 7] = 0
    flags = {"upper": form & 1, "trans": form >> 1}
    plan = plan_of("triangular_solve", backend, isa, a, np.ones((2, 19, 3)), **flags)
    with pytest.raises(hl.DataError, match=r"matrix 1 of the batch must not be .*got 0 .*row 7$"):
        plan.run(1, 1e9)


def test_of_one_matrix() -> None:
    with pytest.raises(hl.DataError, match="cholesky: the matrix must be positive definite, got 0"):
        hl.linalg.cholesky(np.zeros((3, 3)))
    nan = np.diag([1.0, np.nan])
    with pytest.raises(hl.DataError, match="got nan for the pivot of its leading minor of order 2"):
        hl.linalg.cholesky(nan)
    # The diagonal that counts as 1 is not read.
    zeros, ones = np.zeros((2, 2)), np.ones((2, 1))
    x = hl.linalg.solve_triangular(zeros, ones, upper=False, unitriangular=True)
    np.testing.assert_array_equal(x, np.ones((2, 1)))


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: hl.linalg.cholesky(np.ones((3, 4))), "linalg.cholesky: A must have .*3, 4"),
        (lambda: hl.linalg.cholesky(np.ones(3)), "linalg.cholesky: A must have shape"),
        (
            lambda: hl.linalg.solve_triangular(np.ones((3, 3)), np.ones((4, 1)), upper=True),
            r"solve_triangular: the right side must have .* n = 3 .*got \(4, 1\)",
        ),
        (
            lambda: hl.linalg.solve_triangular(
                np.ones((3, 3)), np.ones((3, 1)), upper=True, left=False
            ),
            r"\(\.\.\., k, n\)",
        ),
        (
            lambda: hl.cholesky_solve(np.ones((2, 3, 1)), np.ones((4, 3, 3))),
            "cholesky_solve: shapes must broadcast",
        ),
        (lambda: hl.cholesky_inverse(np.ones((2, 3))), "cholesky_inverse: L must"),
    ],
)
def test_shapes(call, what: str) -> None:
    with pytest.raises(hl.ShapeError, match=what):
        call()


def test_types_of_the_op() -> None:
    graph = _core.Graph()
    whole = graph.input("x", "int64", (3, 3))
    with pytest.raises(TypeError, match="the matrix must be of a floating dtype"):
        graph.add("cholesky", [whole])
    a = graph.input("a", "float32", (2, 3, 3))
    b = graph.input("b", "float32", (3, 1))
    with pytest.raises(hl.ShapeError, match="the right side must have 3 dims"):
        graph.add("triangular_solve", [a, b])


def test_gradients_keep_float32() -> None:
    """Mixed precision rounds no product of a gradient: a condition number would multiply that."""
    from hotloop import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spread = nn.Parameter(good(1, 24)[0].astype(np.float32))

        def forward(self, x):
            factor = hl.linalg.cholesky((self.spread + self.spread.mT) / 2)
            return hl.linalg.solve_triangular(factor, x.mT, upper=False).mT

    x = np.random.default_rng(0).standard_normal((8, 24)).astype(np.float32)
    moved = {}
    for precision in ("32-true", "bf16-mixed", "64-true"):
        net = Net()
        settings = {"optimizer": "sgd", "lr": 1.0, "precision": precision, "max_epochs": 1}
        hl.train(net, (x, np.zeros_like(x)), **settings, enable_progress_bar=False)
        moved[precision] = net.state_dict()["spread"] - good(1, 24)[0].astype(np.float32)
    assert np.abs(moved["32-true"]).max() > 1e-4
    np.testing.assert_array_equal(moved["bf16-mixed"], moved["32-true"])
    np.testing.assert_allclose(moved["64-true"], moved["32-true"], rtol=1e-3, atol=1e-7)
