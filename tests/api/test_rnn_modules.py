"""Recurrent layers: lengths, packed sequences, states that are carried on, and wrong input."""

import re
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.errors import ConfigError, DataError, ModelWarning, ShapeError, TraceError
from hotloop.nn.utils.rnn import (
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
)
from train.recipes import quiet, weights

RNG = np.random.default_rng(6)
X = RNG.normal(size=(5, 7, 4)).astype(np.float32)  # N, L, input_size
LENGTHS = np.array([7, 5, 5, 2, 1])
KINDS = [nn.RNN, nn.LSTM, nn.GRU]


def parts(state: Any) -> list[np.ndarray]:
    return list(state) if isinstance(state, tuple) else [state]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_rows_alone(kind: Any, bidirectional: bool) -> None:
    """Each sequence of a batch has the states that it has alone, and 0 behind its end."""
    layer = kind(4, 3, 2, batch_first=True, bidirectional=bidirectional)
    padded = X.copy()
    padded[np.arange(7) >= LENGTHS[:, None]] = 1e3  # of no account
    states, last = layer(padded, lengths=LENGTHS)
    for n, length in enumerate(LENGTHS):
        alone, last_alone = layer(X[n, :length])
        np.testing.assert_allclose(states[n, :length], alone, rtol=0, atol=1e-6)
        assert not states[n, length:].any()
        for a, b in zip(parts(last), parts(last_alone)):
            np.testing.assert_allclose(a[:, n], b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_direction_goes_back(kind: Any) -> None:
    """Its weights in a layer of one direction, over the steps from the last to the first."""
    both, back = kind(4, 3, batch_first=True, bidirectional=True), kind(4, 3, batch_first=True)
    values = both.state_dict()
    back.load_state_dict({name: values[f"{name}_reverse"] for name in back.state_dict()})
    states, last = both(X)
    alone, last_alone = back(X[:, ::-1])
    np.testing.assert_allclose(states[..., 3:], alone[:, ::-1], rtol=0, atol=1e-6)
    for a, b in zip(parts(last), parts(last_alone)):
        np.testing.assert_allclose(a[1:], b, rtol=0, atol=1e-6)


class Ends(nn.Module):
    """The last states of both directions, by lengths or of packed sequences."""

    def __init__(self, packs: bool) -> None:
        super().__init__()
        self.packs = packs
        self.gru = nn.GRU(4, 6, bidirectional=True)
        self.head = nn.Linear(12, 2)

    def forward(self, x: Any, lengths: Any) -> Any:
        x = x.transpose(0, 1)
        if self.packs:
            packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
            states, back = pad_packed_sequence(self.gru(packed)[0])
            assert states.shape == (7, x.shape[1], 12)
            assert back.shape == lengths.shape
            h = self.gru(packed)[1]
        else:
            h = self.gru(x, None, lengths)[1]
        return self.head(hl.cat([h[0], h[1]], -1))


def test_packed_sequences_train_alike() -> None:
    """A batch whose lengths differ, in both forms, and each row as a batch of its own length: the
    same losses and gradients."""
    lengths = np.array([3, 7, 1, 5])
    x, y = RNG.normal(size=(4, 7, 4)).astype(np.float32), np.array([0, 1, 1, 0])
    found = []
    for packs in (False, True):
        hl.manual_seed(3)
        data = hl.DataModule.from_arrays((x, lengths), y, val=None, batch_size=4)
        model = Ends(packs)
        first = model.state_dict()
        result = hl.train(model, data, quiet(optimizer="sgd", lr=0.5, max_epochs=1))
        found.append((result.history["loss"][0], weights(model)))
    assert found[0][0] == found[1][0]
    for name, value in found[0][1].items():
        np.testing.assert_array_equal(value, found[1][1][name], name)
    losses = []
    for n in range(4):
        model = Ends(False)
        model.load_state_dict(first)
        row = (x[n : n + 1, : lengths[n]], lengths[n : n + 1])
        logits = model(*row)[0].astype(float)
        losses.append(np.log(np.exp(logits - logits[y[n]]).sum()))
    np.testing.assert_allclose(found[0][0], np.mean(losses), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_carried_on(kind: Any) -> None:
    layer = kind(4, 3, 2, batch_first=True)
    whole, last = layer(X)
    first, state = layer(X[:, :3])
    second, carried = layer(X[:, 3:], state)
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole, rtol=0, atol=1e-6)
    for a, b in zip(parts(carried), parts(last)):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_layouts() -> None:
    by_rows, by_time = nn.LSTM(4, 3, batch_first=True), nn.LSTM(4, 3)
    by_time.load_state_dict(by_rows.state_dict())
    a, (h, c) = by_rows(X)
    b, (h2, c2) = by_time(X.transpose(1, 0, 2))
    np.testing.assert_array_equal(a, b.transpose(1, 0, 2))
    np.testing.assert_array_equal([h, c], [h2, c2])


def test_dropout_stands_between_layers() -> None:
    layer = nn.GRU(4, 3, 2, dropout=1.0)
    assert layer.training
    twin = nn.GRU(4, 3, 2)
    twin.load_state_dict(layer.state_dict())
    np.testing.assert_array_equal(layer.eval()(X)[0], twin.eval()(X)[0])
    with pytest.warns(ModelWarning, match="dropout=0.5 has no effect with num_layers=1"):
        nn.GRU(4, 3, dropout=0.5)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: nn.LSTM(4, 3, proj_size=3),
            ConfigError,
            "proj_size must be less than hidden_size=3",
        ),
        (lambda: nn.RNNBase("GRU", 4, 3, proj_size=2), ConfigError, "only an LSTM has proj_size"),
        (lambda: nn.RNNBase("RNN", 4, 3), ConfigError, "mode must be one of RNN_TANH, RNN_RELU"),
        (lambda: nn.RNN(4, 3, nonlinearity="gelu"), ConfigError, "'tanh' or 'relu'"),
        (lambda: nn.RNN(4, 0), ConfigError, "hidden_size must be an integer, at least 1"),
        (lambda: nn.GRU(5, 3)(X), ShapeError, r"last dim must be input_size=5 of \(L, N, input"),
        (
            lambda: nn.GRU(7, 3, batch_first=True)(X),
            ShapeError,
            r"input_size=7 of \(N, L, input_size\), got shape \(5, 7, 4\); input_size must stand",
        ),
        (lambda: nn.GRU(4, 3)(X[None]), ShapeError, r"or \(L, input_size\) of one sequence"),
        (
            lambda: nn.GRU(4, 3)(X, np.zeros((1, 5, 3), "float32")),
            ShapeError,
            r"= \(1, 7, 3\), got \(1, 5, 3\); batch_first=False takes 7 as the number of sequences "
            "and 5 as their steps: is it batch_first=True",
        ),
        (lambda: nn.LSTM(4, 3)(X, X), ShapeError, r"must be a pair \(h_0, c_0\)"),
        (
            lambda: nn.GRU(4, 3)(X[0], np.zeros((1, 1, 3), "float32")),
            ShapeError,
            r"\(layers \* directions, size\) = \(1, 3\), got \(1, 1, 3\)",
        ),
        (lambda: nn.GRU(4, 3)(X[0], None, [7]), ShapeError, "got one sequence"),
        (
            lambda: nn.GRU(4, 3, batch_first=True)(X, None, LENGTHS[:2]),
            ShapeError,
            r"one number for each of 5 rows, got shape \(2,\)",
        ),
        (
            lambda: nn.GRU(4, 3, batch_first=True)(X, None, LENGTHS / 2),
            TraceError,
            "lengths must be integers, got float32",
        ),
        (
            lambda: nn.GRU(4, 3, batch_first=True)(X, None, LENGTHS + 1),
            (ConfigError, DataError),
            r"row 0: .*lengths must lie in 0 \.\.\. 7, got 8$",
        ),
    ],
)
def test_wrong_input(call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call()


class Packs(nn.Module):
    """Packs what it is given, lengths known or of the batch."""

    def __init__(self, lengths: Any = None, **options: Any) -> None:
        super().__init__()
        self.lengths, self.options = lengths, options
        self.rnn = nn.RNN(4, 3)

    def forward(self, x: Any, lengths: Any) -> Any:
        known = lengths if self.lengths is None else self.lengths
        packed = pack_padded_sequence(x, known, batch_first=True, **self.options)
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True, padding_value=9.0)[0]


def test_order_of_packed_sequences() -> None:
    later = LENGTHS[[1, 0, 2, 3, 4]]
    with pytest.raises(DataError, match=r"sorted, .* got 7 for row 1 of the batch; pass enforce_"):
        Packs()(X, later)
    with pytest.raises(ConfigError, match=r"decreasing order .* got 7 for row 1 behind 5"):
        Packs(later)(X, later)
    with pytest.raises(ConfigError, match=r"must lie in 0 \.\.\. 7, .* got 8 for row 0"):
        Packs(LENGTHS + 1)(X, later)
    states = Packs(enforce_sorted=False)(X, later)
    assert (states[np.arange(7) >= later[:, None]] == 9).all()
    assert (np.abs(states[np.arange(7) < later[:, None]]) <= 1).all()
    with pytest.raises(AttributeError, match=r"TrainingConfig\(gradient_clip_val=1.0\)"):
        nn.utils.clip_grad_norm_  # noqa: B018


class Last(nn.Module):
    """Classes by the last state."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.rnn = kind(4, 3, batch_first=True, bidirectional=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        return self.head(self.rnn(x)[0][:, -1])


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("kind", KINDS)
def test_product_and_recurrence_stand_for_a_layer(kind: Any, precision: str) -> None:
    """On the CPU, forward and back, with products of weights' gradients behind."""
    config = quiet(max_epochs=1, accelerator="cpu", precision=precision)
    text = hl.plan(Last(kind), (X, np.arange(5) % 2), config).text
    assert "recurrent_layer" not in text
    kernels = re.findall(r"cpu\.(recurrence_grad|recurrence|sgd|adamw)\b", text)
    assert kernels[:4] == ["recurrence"] * 2 + ["recurrence_grad"] * 2
    assert len(re.findall(r"cpu\.matmul\S* ", text.split("recurrence_grad")[-1])) >= 2


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("side", ["right", "left"])
def test_pad_sequence(batch_first: bool, side: str) -> None:
    given = [X[i, :n] for i, n in enumerate((3, 7, 1))]
    want = np.full((3, 7, 4), 9, np.float32)
    for row, x in zip(want, given, strict=True):
        row[slice(len(x)) if side == "right" else slice(7 - len(x), 7)] = x
    want = want if batch_first else want.swapaxes(0, 1)
    np.testing.assert_array_equal(pad_sequence(given, batch_first, 9.0, side), want)

    class Pads(nn.Module):
        def forward(self, x: Any) -> Any:
            parts = [x[0, :3], x[1], x[2, :1]]
            return pad_sequence(parts, batch_first, padding_value=9.0, padding_side=side)

    np.testing.assert_array_equal(Pads()(X), want)
    ids = pad_sequence([[1, 2], np.array([3])], batch_first=True)
    assert ids.tolist() == [[1, 2], [3, 0]]
    assert ids.dtype == np.int64


def test_pack_sequence() -> None:
    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(4, 3)

        def forward(self, x: Any) -> Any:
            packed = pack_sequence([x[0, :7], x[1, :5], x[2, :2]])
            return pad_packed_sequence(self.rnn(packed)[0], batch_first=True)

    model = Packs()
    states, lengths = model(X)
    assert lengths.tolist() == [7, 5, 2]
    alone = nn.GRU(4, 3, batch_first=True)
    alone.load_state_dict(model.rnn.state_dict())
    np.testing.assert_allclose(states, alone(X[:3], lengths=np.array([7, 5, 2]))[0], atol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: pad_sequence([]), ShapeError, r"one or more of \(T, ...\), got none"),
        (lambda: pad_sequence([1.0]), ShapeError, r"one or more of \(T, ...\), got a number"),
        (
            lambda: pad_sequence([X[0], X[0, :, :3]]),
            ShapeError,
            r"same dims behind the first, got \(7, 4\) and \(7, 3\) for sequence 1",
        ),
        (
            lambda: pad_sequence([X[0]], padding_side="top"),
            ConfigError,
            "'right' or 'left', got 't",
        ),
        (lambda: nn.utils.rnn.unpad_sequence, AttributeError, "take pad_packed_sequence"),
        (lambda: nn.utils.weight_norm, AttributeError, r"weight_norm': forward may compute"),
        (lambda: nn.utils.rnn.other, AttributeError, "no attribute 'other'$"),
    ],
)
def test_wrong_sequences(call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call()
