"""Models of tables and sequences: sizes, learning, causality, padding, files, mistakes."""

import itertools
import re
from pathlib import Path

import hotloop as hl
import numpy as np
import pytest
from hotloop import models, nn
from models.small import SERIES, TABLES

ALL = [*TABLES, *SERIES]


def make(name: str, in_features: int = 29, num_classes: int = 3, **options: object) -> nn.Module:
    return getattr(models, name)(in_features, num_classes, **options)


def rows(name: str, n: int, in_features: int = 29, length: int = 20) -> np.ndarray:
    shape = (n, length, in_features) if name in SERIES else (n, in_features)
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


def logits(output: object) -> np.ndarray:
    return np.asarray(output[0] if isinstance(output, tuple) else output)


@pytest.mark.parametrize("name", ALL)
def test_documented_size(name: str) -> None:
    found = re.search(
        r"([\d,]+) parameters of 29 features and 3 classes", getattr(models, name).__doc__
    )
    model = make(name)
    assert sum(p.numel() for p in model.parameters()) == int(found[1].replace(",", ""))


@pytest.mark.parametrize("name", ALL)
def test_other_features_and_classes(name: str) -> None:
    model = make(name, 5, 7)
    assert logits(model(rows(name, 4, 5))).shape == (4, 7)
    if name in SERIES:
        assert logits(model(rows(name, 4, 5, length=3))).shape == (4, 7)


@pytest.mark.parametrize("name", ALL)
def test_they_learn(name: str) -> None:
    """A feature is larger in one of the classes."""
    x, y = rows(name, 256, 6), np.arange(256) % 2
    x[..., 0] += 2.5 * y.reshape(-1, *(1,) * (x.ndim - 2))
    data = hl.DataModule.from_arrays(x, y, val=0.25, batch_size=32)
    config = hl.TrainingConfig(max_epochs=12, lr=2e-3, precision="32-true", seed=0)
    result = hl.train(make(name, 6, 2), data, config)
    assert max(result.history["val_accuracy"]) > 0.8


@pytest.mark.parametrize("name", ALL)
def test_weights_of_a_file(name: str, tmp_path: Path) -> None:
    model, path = make(name), tmp_path / "a.safetensors"
    hl.save(model, path)
    again = make(name, weights=path)
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[key], value, key)
    other = make(name, 29, 5, weights=path, replace_head=True)
    assert logits(other(rows(name, 2))).shape == (2, 5)
    with pytest.raises(ValueError, match="replace_head=True keeps the head"):
        make(name, 29, 5, weights=path)


@pytest.mark.parametrize("name", ALL)
def test_wrong_features(name: str) -> None:
    with pytest.raises(hl.ShapeError, match=r"29|30"):
        make(name).eval()(rows(name, 2, 30))


def test_gate_and_ensemble() -> None:
    for widths in ((256, 128, 64, 32), (512, 256, 128), (128, 64)):
        model = models.gated_mlp(29, 3, widths)
        assert [m.out_features for m in model.gate if isinstance(m, nn.Linear)] == [
            widths[-1] // 2, widths[-1],
        ]  # fmt: skip
    assert sum(p.numel() for p in models.mlp(7, 3, ()).parameters()) == 24
    assert models.mlp(20 * 6, 3)(rows("tcn", 4, 6)).shape == (4, 3)


def test_tcn_sees_no_later_row_and_as_many_as_it_says() -> None:
    model = models.tcn(3, 2).eval()
    network = nn.Sequential(model.network).eval()
    x = rows("tcn", 1, 3, length=70).transpose(0, 2, 1)
    plain = np.asarray(network(x))
    for at, kept in ((69, 69), (40, 40)):
        changed = x.copy()
        changed[:, :, at] += 1.0
        got = np.asarray(network(changed))
        np.testing.assert_array_equal(got[:, :, :kept], plain[:, :, :kept])
        assert not np.array_equal(got[:, :, at], plain[:, :, at])
    last = []
    for at in range(70):
        changed = x.copy()
        changed[:, :, at] += 3.0
        last.append(not np.array_equal(np.asarray(network(changed))[:, :, -1], plain[:, :, -1]))
    assert last.index(True) >= 70 - 61
    assert all(last[-5:])


def test_tcn_refuses_lengths_that_there_are_not() -> None:
    model = models.tcn(5, 3, (4, 4))
    x = rows("tcn", 3, 5, length=6)
    for wrong in (7, -1):
        words = rf"row 1: lengths of 1 \.\.\. 6: .* out of range, .* below 7, got {wrong}"
        with pytest.raises(hl.DataError, match=words):
            model(x, np.array([6, wrong, 1]))
    with pytest.raises(hl.DataError, match=r"row 1: lengths of 1 \.\.\. 6: .*, got -1"):
        model(x, np.array([6, 0, 1]))
    with pytest.raises(hl.TraceError, match="tcn: lengths must be integers, got float32"):
        model(x, np.array([6, 2.5, 1]))
    lengths = np.full(30, 6)
    lengths[17] = 9
    with pytest.raises(
        hl.DataError, match=r"X\[1\]: .* 'lengths of 1 \.\.\. 6' .* got 9 in row 17"
    ):
        hl.train(model, ((rows("tcn", 30, 5, length=6), lengths), np.arange(30) % 3), max_epochs=1)


class Fixed(nn.Module):
    def __init__(self, lengths: list[int]) -> None:
        super().__init__()
        self.model, self.lengths = models.tcn(5, 3, (4, 4)), lengths

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        return self.model(x, self.lengths)


def test_tcn_takes_lengths_that_are_known() -> None:
    x = rows("tcn", 3, 5, length=6)
    model = Fixed([6, 3, 1])
    np.testing.assert_array_equal(model(x), model.model(x, np.array([6, 3, 1])))
    with pytest.raises(
        hl.ConfigError, match=r"tcn: lengths must lie in 0 \.\.\. 6, .*, got 7 for row 1"
    ):
        Fixed([6, 7, 1])(x)


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        *itertools.product(["lstm_classifier", "gru_classifier"], [None, "last"]),
        ("transformer_classifier", None),
    ],
)
def test_a_row_of_padding_alone_is_zero(name: str, pooling: str | None) -> None:
    """The head sees zeros, whatever the padding is; others have what they have without it."""
    model = make(name, 5, 3, **({} if pooling is None else {"pooling": pooling}))
    x, lengths = rows(name, 3, 5, length=6), np.array([4, 0, 6])
    hidden = np.arange(6) >= lengths[:, None]
    given = hidden if name == "transformer_classifier" else lengths
    out = model(x, given)
    width = model.head[0].normalized_shape[0]
    np.testing.assert_allclose(logits(out)[1], model.head(np.zeros((1, width), "f"))[0], rtol=1e-5)
    np.testing.assert_allclose(logits(out)[[0, 2]], logits(model(x[[0, 2]], given[[0, 2]])), 1e-5)
    if isinstance(out, tuple):
        np.testing.assert_allclose(out[1].sum(1), [1, 0, 1], rtol=1e-6)
        assert (out[1][hidden] == 0).all()
    result = hl.train(model, hl.DataModule.from_arrays((x, given), [0, 1, 2], val=0), max_epochs=2)
    assert np.isfinite(result.history["loss"]).all()


def test_padding_is_not_seen() -> None:
    """A padded batch has the logits, loss and gradients of its rows alone."""
    model = models.transformer_classifier(5, 3, dropout=0.0, input_dropout=0.0).eval()
    lengths = [7, 12, 1, 9]
    x = rows("transformer_classifier", 4, 5, length=12)
    hidden = np.arange(12) >= np.array(lengths)[:, None]
    padded = np.where(hidden[..., None], 100.0, x).astype(np.float32)
    got = np.asarray(model(padded, hidden))
    for i, length in enumerate(lengths):
        alone = np.asarray(model(x[i : i + 1, :length]))
        np.testing.assert_allclose(got[i : i + 1], alone, atol=2e-5)


@pytest.mark.parametrize("name", ["lstm_classifier", "gru_classifier", "transformer_classifier"])
def test_pooling(name: str) -> None:
    """The last row alone decides what the last row's head sees; other words are refused."""
    make = getattr(models, name)
    with pytest.raises(hl.ConfigError, match=f"{name}: pooling must be '.*' or 'last', got 'max'"):
        make(5, 3, pooling="max")
    model = make(5, 3, pooling="last")
    x = rows(name, 4, 5)
    assert np.shape(model(x)) == (4, 3)
    if name != "transformer_classifier":
        lengths = np.array([3, 20, 1, 12])
        padded = np.where(np.arange(20)[:, None] < lengths[:, None, None], x, 9.0)
        got = np.asarray(model(padded.astype(np.float32), lengths))
        for i, n in enumerate(lengths):
            np.testing.assert_allclose(got[i : i + 1], model(x[i : i + 1, :n]), atol=1e-5)
    if name == "transformer_classifier":
        with pytest.raises(hl.ConfigError, match="padding_mask goes with pooling='mean'"):
            model(rows(name, 4, 5), np.zeros((4, 20), bool))


def test_padding_trains_to_the_same_loss() -> None:
    lengths = np.arange(64) % 11 + 2
    x = rows("transformer_classifier", 64, 5, length=12)
    hidden = np.arange(12) >= lengths[:, None]
    y = np.arange(64) % 3
    losses = []
    for filler in (0.0, 50.0):
        padded = np.where(hidden[..., None], filler, x).astype(np.float32)
        data = hl.DataModule.from_arrays((padded, hidden), y, val=0, batch_size=16)
        hl.manual_seed(1)
        model = models.transformer_classifier(5, 3, 32, 4, 2, 64, dropout=0.0, input_dropout=0.0)
        config = hl.TrainingConfig(max_epochs=3, lr=1e-3, precision="64-true", seed=0)
        losses.append(hl.train(model, data, config).history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)
