"""Training on sequences of several lengths: as on the same sequences without padding."""

import copy
import warnings
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.errors import ConfigError, DataError, ShapeError
from train.recipes import exact, quiet, weights

N, F = 60, 3


def sequences(seed: int = 0, n: int = N, most: int = 17) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, most, n)
    X = [rng.standard_normal((length, F)).astype(np.float32) for length in lengths]
    return X, np.array([int(x[:, 0].sum() > 0) + int(x[0, 1] > 1) for x in X])


class Tagger(nn.Module):
    """A class for each row."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.rnn = nn.GRU(F, 6, batch_first=True, bidirectional=True)
        self.head = nn.Linear(12, classes)

    def forward(self, x: hl.Tensor, lengths: hl.Tensor) -> hl.Tensor:
        return self.head(self.rnn(x, None, lengths)[0])


class Packed(nn.Module):
    """The last state of a packed batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(F, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: hl.Tensor, lengths: hl.Tensor) -> hl.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        return self.head(self.rnn(packed)[1][0][-1])


MODELS: dict[str, tuple[Any, str]] = {
    "lstm": (lambda: hl.models.lstm_classifier(F, 3, 8, dropout=0, attention_dropout=0), "lengths"),
    "gru": (lambda: hl.models.gru_classifier(F, 3, 8, dropout=0, attention_dropout=0), "lengths"),
    "packed": (Packed, "lengths"),
    "tcn": (lambda: hl.models.tcn(F, 3, (6, 6), dropout=0), "lengths"),
    "transformer": (
        lambda: hl.models.transformer_classifier(F, 3, 8, 2, 2, 16, dropout=0, input_dropout=0),
        "padding_mask",
    ),
}


def logits(output: Any) -> np.ndarray:
    return np.asarray(output[0] if isinstance(output, tuple) else output)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("buckets", [[17], [4, 9, 17], "auto"], ids=str)
def test_one_step_is_that_of_unpadded_sequences(name: str, buckets: Any) -> None:
    """All sequences in one step, in batches of buckets, or each length on its own: no padding."""
    make, lengths_as = MODELS[name]
    X, y = sequences()
    found = []
    for given in (buckets, list(range(1, 18))):
        data = hl.DataModule.from_sequences(
            X, y, buckets=given, lengths_as=lengths_as, batch_size=16
        )
        hl.manual_seed(0)
        model = make()
        n = sum(group.batches for group in data.batches("train", training=True, merge_tail=False))
        result = hl.train(model, data, exact(max_epochs=2, accumulate_grad_batches=n))
        found.append((result.history["loss"], weights(model)))
    (losses, padded), (wanted, unpadded) = found
    np.testing.assert_allclose(losses, wanted, rtol=1e-12)
    for key, value in unpadded.items():
        np.testing.assert_allclose(padded[key], value, rtol=1e-9, atol=1e-13, err_msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_has_the_loss_of_its_sequences_alone(name: str) -> None:
    make, lengths_as = MODELS[name]
    X, y = sequences()
    data = hl.DataModule.from_sequences(X, y, buckets=[4, 9, 17], lengths_as=lengths_as)
    model = make()
    hl.train(model, data, quiet(max_epochs=1, lr=1e-2))
    alone = [logits(hl.predict(model, [x]))[0] for x in X]
    together = logits(hl.predict(model, X))
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)
    log_p = np.array(alone, np.float64)
    log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
    scores = hl.evaluate(model, data, split="train")
    assert scores["loss"] == pytest.approx(-log_p[np.arange(N), y].mean(), rel=1e-5)
    assert scores["accuracy"] == pytest.approx((log_p.argmax(1) == y).mean())


def test_classes_of_rows_leave_padding_out() -> None:
    X, _ = sequences()
    y = [np.abs(x[:, 0]).astype(int).clip(0, 2) for x in X]
    found = []
    for buckets in ([4, 9, 17], list(range(1, 18))):
        data = hl.DataModule.from_sequences(X, y, buckets=buckets, batch_size=16, val=0.25)
        hl.manual_seed(0)
        model = Tagger()
        n = sum(group.batches for group in data.batches("train", training=True, merge_tail=False))
        config = exact(max_epochs=2, accumulate_grad_batches=n, class_weight="balanced")
        history = hl.train(model, data, config).history
        scores = hl.evaluate(model, data, split="val")
        assert scores["accuracy"] == pytest.approx(history["val_accuracy"][-1])
        found.append((history["loss"], history["val_accuracy"], weights(model)))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-12)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-12)
    for key, value in found[1][2].items():
        np.testing.assert_allclose(found[0][2][key], value, rtol=1e-9, atol=1e-13, err_msg=key)
    held = hl.DataModule.from_sequences(X, y, buckets=[4, 9, 17], batch_size=16, val=0.25)
    Xv, yv = held.arrays("val")
    outputs = hl.predict(model, Xv)
    assert [len(output) for output in outputs] == [len(x) for x in Xv]
    right = [output.argmax(-1) == goal for output, goal in zip(outputs, yv, strict=True)]
    for given in (Xv, held):
        labels = hl.predict(model, given, labels=True)
        proba = hl.predict(model, given, proba=True)
        for found, chances, output in zip(labels, proba, outputs, strict=True):
            np.testing.assert_array_equal(found, output.argmax(-1))
            assert chances.shape == output.shape
    assert scores["accuracy"] == pytest.approx(np.mean(np.concatenate(right)))


def agree(y_true: np.ndarray, y_pred: np.ndarray) -> float:
    return float((y_true == y_pred).mean())


@pytest.mark.parametrize("limit", [None, 0.5, 3])
@pytest.mark.parametrize("by_row", [False, True])
def test_functions_see_the_batches_that_were_run(limit: Any, by_row: bool) -> None:
    X, y = sequences()
    goal = [np.abs(x[:, 0]).astype(int).clip(0, 2) for x in X] if by_row else y
    data = hl.DataModule.from_sequences(X, goal, buckets=[4, 9, 17], batch_size=4, val=0.4)
    config = quiet(max_epochs=2, lr=1e-2, limit_batches=limit, metrics=["accuracy", agree])
    history = hl.train(Tagger() if by_row else Packed(), data, config).history
    assert history["val_agree"] == pytest.approx(history["val_accuracy"])


def test_the_buckets_share_the_memory_of_the_longest() -> None:
    X, y = sequences(n=96, most=121)
    arenas, peaks = {}, {}

    class Watch:
        def on_train_begin(self, run: Any) -> None:
            arenas[run.config.seed] = [plan.info()["arena_bytes"] for plan, _, _ in run.train_plans]

    for seed, buckets in ((0, [120]), (1, [90, 105, 120])):
        data = hl.DataModule.from_sequences(X, y, buckets=buckets, batch_size=16)
        model = hl.models.lstm_classifier(F, 3, 64)
        result = hl.train(model, data, quiet(max_epochs=1, seed=seed, callbacks=[Watch()]))
        peaks[seed] = result.peak_bytes
    assert len(arenas[1]) > len(arenas[0])
    assert max(arenas[1]) <= max(arenas[0])
    assert sum(arenas[1]) > 2 * max(arenas[1])
    assert peaks[1] - peaks[0] < max(arenas[1]) / 2


@pytest.mark.parametrize("k", [1, 3])
def test_the_same_bits_again(k: int) -> None:
    X, y = sequences()
    found = []
    for _ in range(2):
        data = hl.DataModule.from_sequences(X, y, buckets=[4, 9, 17], batch_size=8, val=0.2)
        model = hl.models.lstm_classifier(F, 3, 8)
        hl.manual_seed(1)
        config = quiet(max_epochs=3, lr=1e-2, accumulate_grad_batches=k)
        found.append((hl.train(model, data, config).history["val_loss"], weights(model)))
    assert found[0][0] == found[1][0]
    for key, value in found[0][1].items():
        np.testing.assert_array_equal(found[1][1][key], value)


def test_epochs_have_orders_of_their_own() -> None:
    """The weights of an epoch are those of the batches that train_batches says, in their order."""
    X, y = sequences()
    data = hl.DataModule.from_sequences(X, y, buckets=[4, 9, 17], batch_size=8)
    hl.manual_seed(0)
    model = Packed()
    other = copy.deepcopy(model)
    hl.train(model, data, exact(max_epochs=2))
    stepper = hl.stepper(other, exact(max_epochs=2), data)
    for epoch in range(2):
        for batch in data.train_batches(epoch):
            stepper.step(batch)
    stepper.sync()
    for key, value in weights(model).items():
        np.testing.assert_array_equal(weights(other)[key], value, err_msg=key)


@pytest.mark.parametrize("lengths_as", ["padding_mask", "attention_mask"])
def test_a_stepper_takes_masks(lengths_as: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(F, 3)

        def forward(self, x: hl.Tensor, mask: hl.Tensor) -> hl.Tensor:
            inside = (mask == (lengths_as == "attention_mask")).float()[..., None]
            return self.head((x * inside).sum(1) / inside.sum(1))

    X, y = sequences()
    data = hl.DataModule.from_sequences(X, y, buckets=[4, 17], lengths_as=lengths_as)
    hl.manual_seed(0)
    model = Net()
    other = copy.deepcopy(model)
    hl.train(model, data, exact(max_epochs=1))
    stepper = hl.stepper(other, exact(max_epochs=1), data)
    for batch in data.train_batches():
        stepper.step(batch)
    (x, mask), y = batch["x"], batch["y"]
    with pytest.raises(DataError, match="padding behind each sequence alone"):
        stepper.step(((x, mask[:, ::-1]), y))
    stepper.sync()
    for key, value in weights(model).items():
        np.testing.assert_array_equal(weights(other)[key], value, err_msg=key)


def test_a_stepper_names_the_buckets() -> None:
    X, y = sequences()
    data = hl.DataModule.from_sequences(X, y, buckets=[4, 17])
    stepper = hl.stepper(Packed(), quiet(), data)
    with pytest.raises(
        DataError,
        match=rf"of the shape of a bucket, one of \(4, {F}\), \(17, {F}\), got \(5, {F}\)",
    ):
        stepper.step(((np.zeros((2, 5, F)), np.array([5, 5])), np.array([0, 1])))
    with pytest.raises(DataError, match="got another structure"):
        stepper.step((np.zeros((2, 4, F)), np.array([0, 1])))


def test_standardised_padding_is_what_it_is_said_to_be(tmp_path: Path) -> None:
    """A mean over all rows sees padding: in training, prediction and a file it is the same."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(F, 3)

        def forward(self, x: hl.Tensor, lengths: hl.Tensor) -> hl.Tensor:
            return self.head(x.sum(1))

    X, y = sequences()
    X = [5 + 2 * x for x in X]
    data = hl.DataModule.from_sequences(X, y, buckets=[9, 17], normalize="standard")
    model = Net()
    result = hl.train(model, data, quiet(max_epochs=1, lr=0.1))
    rows = np.concatenate(X)
    sums = np.array([((x - rows.mean(0)) / rows.std(0)).sum(0) for x in X])
    state = model.state_dict()
    want = sums @ state["head.weight"].T + state["head.bias"]
    got = hl.predict(model, X)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    padded = np.zeros((N, 17, F))
    for row, x in zip(padded, X):
        row[: len(x)] = x
    lengths = np.array([len(x) for x in X])
    np.testing.assert_allclose(hl.predict(model, (padded, lengths)), got, rtol=1e-5, atol=1e-5)
    result.save(tmp_path / "net.safetensors")
    loaded = hl.load(tmp_path / "net.safetensors")
    np.testing.assert_allclose(hl.predict(loaded, X), got, rtol=1e-5, atol=1e-5)
    want_scores = hl.evaluate(model, data, split="train")
    scores = hl.evaluate(loaded, data, split="train")
    assert scores == pytest.approx(want_scores, rel=1e-4)
    with pytest.raises(DataError, match=r"X\[0\]: must have 17 rows at most, got 18"):
        hl.predict(loaded, [np.zeros((18, F))])
    np.testing.assert_allclose(hl.predict(model, [np.zeros((18, F)), X[0]])[1], got[0], rtol=1e-4)


def test_some_batches(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = sequences()
    data = hl.DataModule.from_sequences(X, y, buckets=[4, 9, 17], batch_size=4, val=0.3)
    n = sum(group.batches for group in data.batches("train", training=True, merge_tail=False))
    result = hl.train(Packed(), data, quiet(max_epochs=2, limit_batches=0.5))
    assert result.steps == 2 * (n // 2)
    result = hl.train(Packed(), data, quiet(max_epochs=30, overfit_batches=2, lr=3e-2))
    assert result.steps == 60
    assert result.history["val_loss"][-1] < 0.5 * result.history["val_loss"][0]
    hl.train(Packed(), data, quiet(max_epochs=1, enable_progress_bar=True))
    assert "sequences in buckets of 4, 9, 17, batch 4" in capsys.readouterr().err


def test_ids_out_of_range_are_named_by_sequence_and_row() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4, padding_idx=0)
            self.rnn = nn.LSTM(4, 4, batch_first=True)
            self.head = nn.Linear(4, 2)

        def forward(self, ids: hl.Tensor, lengths: hl.Tensor) -> hl.Tensor:
            return self.head(self.rnn(self.table(ids), None, lengths)[1][0][-1])

    rng = np.random.default_rng(0)
    X = [rng.integers(1, 10, n) for n in rng.integers(1, 9, 30)]
    y = np.arange(30) % 2
    hl.train(Net(), hl.DataModule.from_sequences(X, y, buckets=[4, 8]), quiet(max_epochs=1))
    i = next(i for i, x in enumerate(X) if 2 < len(x) < 5)
    X[i][1] = 10
    with pytest.raises(DataError, match=rf"10.* sequence {i}"):
        hl.train(Net(), hl.DataModule.from_sequences(X, y, buckets=[4, 8]), quiet(max_epochs=1))


def test_forward_must_take_what_the_data_gives() -> None:
    X, y = sequences()
    data = hl.DataModule.from_sequences(X, y)
    with pytest.raises(ConfigError, match=r"write def forward\(self, x, lengths\)"):
        hl.train(nn.Sequential(nn.Flatten(), nn.Linear(F, 3)), data, quiet(max_epochs=1))
    for lengths_as, model in (
        ("padding_mask", MODELS["lstm"][0]()),
        ("lengths", MODELS["transformer"][0]()),
        ("attention_mask", MODELS["transformer"][0]()),
    ):
        data = hl.DataModule.from_sequences(X, y, lengths_as=lengths_as)
        with pytest.raises(ConfigError, match=r"lengths_as: .*forward takes .*write lengths_as="):
            hl.train(model, data, quiet(max_epochs=1))
    good = hl.DataModule.from_sequences(X, y, lengths_as="padding_mask")
    trained = hl.train(MODELS["transformer"][0](), good, quiet(max_epochs=1))
    with pytest.raises(ConfigError, match="must be 'padding_mask' as in training"):
        hl.evaluate(trained, data, split="train")


def test_a_forward_that_makes_nothing_of_lengths_warns() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(F, 3)

        def forward(self, x: hl.Tensor, told: hl.Tensor) -> hl.Tensor:
            return self.head(x.mean(1))

    X, y = sequences()
    for lengths_as in ("lengths", "padding_mask"):
        data = hl.DataModule.from_sequences(X, y, lengths_as=lengths_as)
        with pytest.warns(hl.ModelWarning, match="forward: makes nothing of its second argument"):
            hl.train(Mean(), data, quiet(max_epochs=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = hl.DataModule.from_sequences(X, y)
        hl.train(Packed(), data, quiet(max_epochs=1))


def test_values_for_each_row() -> None:
    """A training_step leaves padding out of the loss; without one they are refused."""

    class Regressor(Tagger):
        def training_step(self, batch: Any) -> hl.Tensor:
            x, lengths = batch["x"]
            inside = (lengths[:, None] > np.arange(x.shape[1])).float()
            error = (self(x, lengths)[..., 0] - batch["y"]) * inside
            return (error * error).sum() / inside.sum()

    X, _ = sequences()
    goal = [x[:, 0].cumsum().astype(np.float32) for x in X]
    with pytest.raises(ConfigError, match="each row of the sequences has a target of kind float"):
        hl.train(Tagger(1), hl.DataModule.from_sequences(X, goal), quiet(max_epochs=1))
    losses = []
    for buckets in ([17], list(range(1, 18))):
        data = hl.DataModule.from_sequences(X, goal, buckets=buckets, batch_size=64)
        hl.manual_seed(0)
        n = sum(group.batches for group in data.batches("train", training=True, merge_tail=False))
        config = exact(max_epochs=2, accumulate_grad_batches=n)
        losses.append(hl.train(Regressor(1), data, config).history["loss"])
    assert losses[0][1] < losses[0][0]


def test_what_predict_says_of_one_sequence() -> None:
    X, y = sequences()
    result = hl.train(Packed(), hl.DataModule.from_sequences(X, y), quiet(max_epochs=1))
    with pytest.raises(ShapeError, match=r"takes a list of them.* write \[x\] for one sequence"):
        hl.predict(result, X[0])
    dense = np.stack([x[:1] for x in X])
    np.testing.assert_allclose(hl.predict(result, dense), hl.predict(result, list(dense)))
    untrained = hl.DataModule.from_sequences(X, y, test=10)
    assert hl.predict(Packed(), untrained).shape == (10, 3)
