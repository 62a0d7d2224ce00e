"""F.ctc_loss: what it refuses, at once or in the step, lengths that are known and not, 16 bits, and
a model that learns by it. Values are in tests/ops/cases_ctc.py, torch's in tests/parity.
"""

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.nn import functional as F
from ops.cases_ctc import by_enumeration, log_softmax

RNG = np.random.default_rng(4)
X = log_softmax(RNG.standard_normal((6, 3, 4))).astype(np.float32)
TARGETS = np.array([[1, 2, 2], [3, 1, 0], [2, 0, 0]])
TIMES, COUNTS = (6, 5, 6), (3, 2, 1)
JOINED = np.array([1, 2, 2, 3, 1, 2])


def test_every_alignment() -> None:
    losses = F.ctc_loss(X, TARGETS, TIMES, COUNTS, reduction="none")
    want = [
        by_enumeration(X[:t, i].astype(float), TARGETS[i, :u], 0)
        for i, (t, u) in enumerate(zip(TIMES, COUNTS))
    ]
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    mean = F.ctc_loss(X, TARGETS, TIMES, COUNTS)
    np.testing.assert_allclose(mean, np.mean(want / np.array(COUNTS)), rtol=1e-5)


def test_forms_of_targets_and_lengths() -> None:
    want = F.ctc_loss(X, TARGETS, TIMES, COUNTS, reduction="none")
    for targets in (TARGETS, JOINED, TARGETS.astype(np.int32), JOINED.tolist()):
        for kind in (tuple, list, np.array, lambda v: np.array(v, np.int8)):
            got = F.ctc_loss(X, targets, kind(TIMES), kind(COUNTS), reduction="none")
            np.testing.assert_array_equal(got, want)
    one = F.ctc_loss(X[:, 0], TARGETS[0], 6, 3, reduction="none")
    assert one.shape == ()
    np.testing.assert_array_equal(one, want[0])


def in_the_step(*arrays: np.ndarray, **options: object) -> np.ndarray:
    """The loss of values that nothing knows while tracing."""
    session = _core.Session(_core.Device("cpu"))
    from api.test_nn_functional import trace

    graph, recorder, _, (value,) = trace(lambda *x: F.ctc_loss(*x, **options), *arrays)
    graph.output(value.id_in(recorder))
    plan = _core.Plan(session, graph)
    for i, array in enumerate(arrays):
        plan.input(i, array)
    plan.run(1, 1e9)
    return plan.output(0)


LENGTHS = np.array(TIMES), np.array(COUNTS)


def test_lengths_of_data() -> None:
    want = F.ctc_loss(X, TARGETS, TIMES, COUNTS)
    np.testing.assert_array_equal(in_the_step(X, TARGETS, *LENGTHS), want)
    np.testing.assert_array_equal(in_the_step(X, JOINED, *LENGTHS), want)


@pytest.mark.parametrize(
    ("targets", "times", "counts", "what"),
    [
        (TARGETS, (6, 7, 6), COUNTS, "input_lengths must be at least 0 and at most 6, got 7"),
        (TARGETS, (6, 5, -2), COUNTS, "input_lengths must be .*, got -2 in row 2"),
        (TARGETS, TIMES, (4, 2, 1), "target_lengths must be .* at most 3, got 4 in row 0"),
        (TARGETS, TIMES, (3, 3, 1), "not the blank 0, got 0 at position 2 of row 1"),
        (TARGETS + 1, TIMES, (3, 2, 1), "at least 0 and below 4, .*got 4 at position 0 of row 1"),
        (-TARGETS, TIMES, (3, 2, 1), "got -1 at position 0 of row 0"),
        (JOINED, TIMES, (3, 2, 2), "target_lengths must .*"),
        (JOINED, TIMES, (3, 1, 1), "target_lengths must .*"),
        (JOINED * 0, TIMES, (3, 2, 1), "not the blank 0, got 0 at position 0 of row 0"),
    ],
)
def test_out_of_range(targets, times, counts, what: str) -> None:
    with pytest.raises(hl.DataError, match="ctc_loss: .*" + what):
        F.ctc_loss(X, targets, times, counts)
    with pytest.raises(hl.DataError, match="ctc_loss: .*" + what):
        in_the_step(X, targets, np.array(times), np.array(counts))


@pytest.mark.parametrize(
    ("arguments", "kind", "what"),
    [
        ((X, TARGETS * 1.0, TIMES, COUNTS), hl.ConfigError, "targets must be integers"),
        ((X, TARGETS, (6, 5.5, 6), COUNTS), hl.ConfigError, "input_lengths must be integers"),
        ((X, TARGETS, TIMES, np.ones(3)), hl.ConfigError, "target_lengths must be integers"),
        ((X, TARGETS, TIMES, np.ones(3, bool)), hl.ConfigError, "target_lengths must be integers"),
        ((X, TARGETS, (6, 5), COUNTS), hl.ShapeError, r"input_lengths must have shape \(3,\)"),
        ((X, TARGETS[:2], TIMES, COUNTS), hl.ShapeError, r"targets must have shape \(3, S\)"),
        ((X[0, 0], TARGETS, TIMES, COUNTS), hl.ShapeError, r"log_probs must be \(T, N, C\)"),
        ((X, TARGETS, TIMES, COUNTS, 4), hl.ConfigError, "blank must be .* below 4, got 4"),
        ((X, TARGETS, TIMES, COUNTS, 0, "max"), hl.ConfigError, "reduction must be"),
    ],
)
def test_refused(arguments, kind, what: str) -> None:
    with pytest.raises(kind, match="ctc_loss: " + what):
        F.ctc_loss(*arguments)


def test_16_bits() -> None:
    """Computed in float32 of what the 16 bits hold, and rounded once."""
    half = X.astype(np.float16)
    got = F.ctc_loss(half, TARGETS, TIMES, COUNTS, reduction="none")
    want = F.ctc_loss(half.astype(np.float32), TARGETS, TIMES, COUNTS, reduction="none")
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, want.astype(np.float16))


def test_gradient_of_16_bits() -> None:
    """What the loss is rounded to does not reach the gradient."""
    wide = {}
    for dtype in ("float32", "bfloat16"):
        graph = _core.Graph()
        x = graph.input("x", "float32", X.shape)
        rest = [graph.const(np.asarray(v)) for v in (TARGETS, *LENGTHS)]
        (rounded,) = graph.add("cast", [x], dtype="bfloat16")
        (back,) = graph.add("cast", [rounded], dtype=dtype)
        loss = graph.add("ctc_loss", [back, *rest])[0]
        (total,) = graph.add("cast", graph.add("sum", [loss]), dtype="float32")
        graph.output(graph.backward(total, [back])[0])
        plan = _core.Plan(_core.Session(_core.Device("cpu")), graph)
        plan.input(0, X)
        plan.run(1, 1e9)
        wide[dtype] = np.asarray(plan.output(0), np.float32)
    np.testing.assert_allclose(wide["bfloat16"], wide["float32"], rtol=2**-8, atol=1e-6)


class Reader(nn.Module):
    """Classes of each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 6)

    def forward(self, x):
        return F.log_softmax(self.layer(x), -1)


def test_learns_an_alignment() -> None:
    """Frames that show a class each, or none; where is not said."""
    rng = np.random.default_rng(0)
    n, n_times, n_targets = 96, 12, 4
    targets = rng.integers(1, 6, (n, n_targets))
    shown = np.zeros((n, n_times), int)
    for i in range(n):
        shown[i, 1 + 3 * np.arange(n_targets) - rng.integers(0, 2, n_targets)] = targets[i]
    x = np.eye(8)[shown] + 0.1 * rng.standard_normal((n, n_times, 8))
    loss = nn.CTCLoss()

    def mean(output, target):
        rows = output.shape[0]
        return loss(output.transpose(0, 1), target, (n_times,) * rows, (n_targets,) * rows)

    model = Reader()
    result = hl.train(
        *(model, (x.astype(np.float32), targets)),
        loss=mean,
        lr=0.05,
        max_epochs=120,
        seed=1,
        enable_progress_bar=False,
    )
    assert result.history["loss"][-1] < 0.1 * result.history["loss"][0]
    read = np.asarray(hl.predict(model, x.astype(np.float32))).argmax(-1)
    found = [[c for t, c in enumerate(row) if c and (not t or row[t - 1] != c)] for row in read]
    right = [list(a) == list(b) for a, b in zip(found, targets)]
    assert np.mean(right) > 0.9
