"""What an op refuses of the data is named by the data's own row: before training where it is made
of data row by row, else by the row of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.nn import functional as F

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 6, 8)).astype(np.float32)
Y = np.arange(40) % 3
LENGTHS = 1 + np.arange(40) % 6
SAID = RNG.integers(1, 6, (40, 4))
WIDE = X[:, :4, :4] @ X[:, :4, :4].swapaxes(1, 2) + np.eye(4, dtype=np.float32)


def with_value(array: Any, at: Any, value: Any) -> Any:
    array = np.array(array)
    array[at] = value
    return array


def fit(model: nn.Module, x: Any, y: Any = Y, **options: Any) -> Any:
    data = hl.DataModule.from_arrays(x, y, val=0, batch_size=8)
    return hl.train(model, data, max_epochs=1, enable_progress_bar=False, seed=0, **options)


class Reader(nn.Module):
    """A recurrent layer over sequences of some lengths."""

    def __init__(self, lengths: Callable[[Any], Any], **options: Any) -> None:
        super().__init__()
        self.lengths, self.options = lengths, options
        self.rnn = nn.LSTM(8, 3, batch_first=True)

    def forward(self, x: Any, n: Any) -> Any:
        n = self.lengths(n)
        if self.options:
            packed = nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True, **self.options)
            return self.rnn(packed)[1][0][0]
        return self.rnn(x, lengths=n)[0].mean(1)


@pytest.mark.parametrize(
    ("lengths", "value", "said"),
    [
        (
            lambda n: n,
            9,
            "X[1]: lengths must be at least 0 and at most 6, the steps of LSTM 'rnn', got 9 in row "
            "17; mend the lengths",
        ),
        (lambda n: n, -1, "X[1]: lengths must be .*, got -1 in row 17; mend"),
        (lambda n: n + (n > 5).long(), 5, "lengths that forward computes .* got 7 for row 5; mend"),
        (lambda n: hl.clamp(n, max=6), 9, None),
        (
            lambda n: n + 0 * hl.cumsum(n, 0),  # mixes rows: the step says it
            9,
            r"rnn: .* lengths must lie in 0 ... 6, got 9 for row \d of the batch$",
        ),
    ],
)
def test_lengths_of_recurrent_layers(lengths: Any, value: int, said: str | None) -> None:
    given = X, with_value(LENGTHS, 17, value)
    model = Reader(lengths)
    if said is None:
        assert fit(model, given).stop_reason == "completed"
    else:
        with pytest.raises(hl.DataError, match=said.replace("[1]", r"\[1\]")):
            fit(model, given)


def test_the_order_of_packed_sequences_is_that_of_the_batch() -> None:
    with pytest.raises(hl.DataError, match=r"be sorted, .* for row \d of the batch; pass enforce_"):
        fit(Reader(lambda n: n, enforce_sorted=True), (X, LENGTHS))
    model = Reader(lambda n: n, enforce_sorted=False)
    assert fit(model, (X, LENGTHS)).stop_reason == "completed"


class Listener(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 6)

    def forward(self, x: Any) -> Any:
        return F.log_softmax(self.layer(x), -1)


def ctc(output: Any, y: Any) -> Any:
    times = y.get("times", (output.shape[1],) * output.shape[0])
    return F.ctc_loss(output.transpose(0, 1), y["said"], times, y["n"])


@pytest.mark.parametrize(
    ("name", "at", "value", "said"),
    [
        (
            "said",
            (17, 1),
            9,
            r"y\['said'\]: targets must be classes, at least 0 and below 6, and not the blank 0, "
            r"of .*, got 9 at position 1 of row 17; mend the targets",
        ),
        ("said", (17, 0), 0, "not the blank 0, of .*, got 0 at position 0 of row 17"),
        ("said", (17, 3), 9, None),  # behind the length
        (
            "n",
            17,
            5,
            r"y\['n'\]: target_lengths must be at least 0 and at most 4, the targets of .*, got 5 "
            "in row 17; mend the target_lengths",
        ),
        (
            "times",
            17,
            7,
            r"\['times'\]: input_lengths must .* 6, the times of .* got 7 in row 17",
        ),
    ],
)
def test_ctc(name: str, at: Any, value: int, said: str | None) -> None:
    y = {"said": SAID, "n": np.full(40, 2), "times": np.full(40, 6)}
    y[name] = with_value(y[name], at, value)
    if said is None:
        assert fit(Listener(), X, y, loss=ctc).stop_reason == "completed"
    else:
        with pytest.raises(hl.DataError, match=said):
            fit(Listener(), X, y, loss=ctc)


class Factor(nn.Module):
    """A head on the factors of matrices."""

    def __init__(self, matrix: Callable[[Any], Any], solves: bool = False) -> None:
        super().__init__()
        self.matrix, self.solves = matrix, solves
        self.head = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        a = self.matrix(x)
        if self.solves:
            return self.head(hl.linalg.solve_triangular(a, x[..., :1], upper=False).squeeze(-1))
        return self.head(hl.linalg.cholesky(a).sum(2))


@pytest.mark.parametrize(
    ("matrix", "solves", "at", "value", "said"),
    [
        (
            lambda x: x,
            False,
            (17, 0, 0),
            -3,
            "^X: the matrix that cholesky takes of row 17 must be positive definite, got -3 for "
            "the pivot of its leading minor of order 1; add a little to its diagonal$",
        ),
        (
            lambda x: (x + x.mT) / 2 + 1e-3 * hl.eye(4),
            False,
            (17, 0, 0),
            -3,
            "cholesky takes of row 17 must be .* got -2.999",
        ),
        (
            hl.tril,
            True,
            (17, 1, 1),
            0,
            "triangular_solve takes of row 17 must not be singular, got 0 on its diagonal in row 1",
        ),
    ],
)
def test_matrices(matrix: Any, solves: bool, at: Any, value: float, said: str) -> None:
    with pytest.raises(hl.DataError, match=said):
        fit(Factor(matrix, solves), with_value(WIDE, at, value))
    assert fit(Factor(matrix, solves), WIDE).stop_reason == "completed"


def test_a_matrix_of_several_rows_is_left_to_the_step() -> None:
    """In the data's order the first eight make a singular one, and so does each row alone."""
    seen = WIDE.reshape(40, 16)[:, :4].copy()
    seen[:8] = seen[0]

    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            factor = hl.linalg.cholesky(x.T @ x)
            return self.head(hl.linalg.solve_triangular(factor, x.T, upper=False).T)

    assert fit(Spread(), seen).stop_reason == "completed"


def test_matrices_of_layers_are_named_by_the_row_of_the_batch() -> None:
    class Learnt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            return self.head(hl.linalg.cholesky(-(self.layer(x) ** 2)).sum(2))

    with pytest.raises(hl.DataError, match=r"cholesky: matrix \d of the batch must be positive"):
        fit(Learnt(), WIDE)


def test_predict_names_the_row_of_the_data_alone() -> None:
    lengths = with_value(LENGTHS, 17, 9)
    said = r"^predict: row 17: rnn: .*: lengths must lie in 0 \.\.\. 6, got 9$"
    with pytest.raises(hl.DataError, match=said):
        hl.predict(Reader(lambda n: n), (X, lengths), batch_size=16)
    with pytest.raises(hl.DataError, match=r"row 17: rnn: .*, got 9$"):
        Reader(lambda n: n)(X, lengths)
    with pytest.raises(hl.DataError, match="row 17: cholesky: its matrix must be positive"):
        hl.predict(Factor(lambda x: x), with_value(WIDE, (17, 0, 0), -3), batch_size=16)

    class Loss(nn.Module):
        def forward(self, x: Any, said: Any) -> Any:
            n = len(x)
            each = F.ctc_loss(x.transpose(0, 1), said, (6,) * n, (2,) * n, reduction="none")
            return each.unsqueeze(1)

    bad = with_value(SAID, (17, 1), 9)
    with pytest.raises(hl.DataError, match=r"row 17: ctc_loss: .* got 9 at position 1$"):
        hl.predict(Loss(), (X, bad), batch_size=16)


def test_lengths_of_ctc_that_do_not_add_up_in_the_step() -> None:
    class Joined(nn.Module):
        def forward(self, x: Any, said: Any, n: Any) -> Any:
            return F.ctc_loss(x.transpose(0, 1), said.reshape(-1), (6,) * len(x), n)

    two = np.full(8, 2)
    assert np.isfinite(Joined()(X[:8], SAID[:8, :2], two))
    with pytest.raises(
        hl.DataError,
        match=r"^ctc_loss: target_lengths must add up to the 16 targets, which stand one behind "
        r"another, got 17$",
    ):
        Joined()(X[:8], SAID[:8, :2], with_value(two, 3, 3))
    with pytest.raises(hl.DataError, match=r"target_lengths must be at least 0 .*, got -1"):
        Joined()(X[:8], SAID[:8, :2], with_value(two, 3, -1))
