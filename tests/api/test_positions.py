"""Positions, caches and bags of embeddings, beside what tests/parity holds to torch."""

from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.nn import functional as F

Array = np.ndarray[Any, Any]


def normal(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def turned(x: Array, positions: Array, base: float, interleaved: bool) -> Array:
    """Complex numbers times unit ones: x (N, T, heads, D), in float64."""
    half = x.shape[-1] // 2
    pairs = x.astype(np.float64)
    if interleaved:
        a, b = pairs[..., 0::2], pairs[..., 1::2]
    else:
        a, b = pairs[..., :half], pairs[..., half:]
    angle = positions[..., None] * base ** (-np.arange(half) / half)
    z = (a + 1j * b) * np.exp(1j * angle)[..., None, :]
    parts = [z.real, z.imag]
    return np.stack(parts, -1).reshape(x.shape) if interleaved else np.concatenate(parts, -1)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary(interleaved: bool) -> None:
    layer = nn.RotaryPositionalEmbeddings(8, 40, base=500.0, interleaved=interleaved)
    x = normal(2, 5, 3, 8)
    places: list[tuple[Any, Array]] = [
        (None, np.arange(5)), (7, np.arange(7, 12)), (np.arange(3, 8), np.arange(3, 8)),
        (np.array([[0, 2, 4, 6, 8], [1, 39, 5, 7, 0]]),) * 2,
    ]  # fmt: skip
    for given, at in places:
        want = turned(x, at, 500.0, interleaved)
        np.testing.assert_allclose(layer(x, given), want, atol=1e-5)
    assert not layer.state_dict()


def test_rotary_scores_depend_on_the_distance() -> None:
    layer = nn.RotaryPositionalEmbeddings(16, 100)
    q, k = normal(1, 1, 1, 16), normal(1, 1, 1, 16)[..., ::-1].copy()
    scores = [float((layer(q, at + 9) * layer(k, at)).sum()) for at in (0, 1, 50, 90)]
    np.testing.assert_allclose(scores, scores[0], atol=1e-4)
    assert abs(float((layer(q, 8) * layer(k, 0)).sum()) - scores[0]) > 1e-2


def test_sinusoidal() -> None:
    table = F.sinusoidal_positions(30, 7)
    for at in (0, 1, 29):
        for i in range(7):
            angle = at / 10000 ** ((i - i % 2) / 7)
            want = np.cos(angle) if i % 2 else np.sin(angle)
            np.testing.assert_allclose(table[at, i], want, atol=1e-6)
    x, layer = normal(2, 5, 7), nn.SinusoidalPositionalEncoding(7, 30)
    np.testing.assert_allclose(layer(x), x + table[:5], atol=1e-6)
    np.testing.assert_allclose(layer(x, 25), x + table[25:], atol=1e-6)


def test_linear_biases() -> None:
    np.testing.assert_allclose(F.alibi_slopes(8), 0.5 ** np.arange(1, 9))
    twelve = [*0.5 ** np.arange(1, 9), *0.5 ** np.arange(0.5, 4)]
    np.testing.assert_allclose(F.alibi_slopes(12), twelve, rtol=1e-6)
    want = -np.array([0.0625, 0.00390625])[:, None, None] * [[[1, 0, 1, 2], [2, 1, 0, 1]]]
    np.testing.assert_allclose(F.alibi_bias(2, 2, 4, np.array([1, 2])), want)
    last = nn.ALiBi(2)(np.zeros((1, 2, 2, 3)), np.zeros((1, 2, 4, 3)))
    np.testing.assert_allclose(last, -np.array([0.0625, 0.00390625])[:, None, None]
                               * [[[2, 1, 0, 1], [3, 2, 1, 0]]])  # fmt: skip


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nn.RotaryPositionalEmbeddings(7), hl.ConfigError, "dim must be even, got 7"),
        (
            lambda: nn.RotaryPositionalEmbeddings(8, 5)(normal(1, 6, 1, 8)),
            hl.ShapeError, "must fit max_seq_len=5 positions, got 6",
        ),
        (
            lambda: nn.RotaryPositionalEmbeddings(8, 5)(normal(1, 3, 1, 8), 3),
            hl.ShapeError, "must fit max_seq_len=5 positions, got 3 from position 3 on",
        ),
        (
            lambda: nn.RotaryPositionalEmbeddings(8, 5)(normal(1, 3, 1, 8), np.arange(3, 6)),
            hl.DataError, "must be at least 0 and below 5, got 5",
        ),
        (
            lambda: nn.RotaryPositionalEmbeddings(8, 5)(normal(1, 3, 1, 8), np.arange(2)),
            hl.ShapeError, r"input_pos must be \(3,\) or \(N, 3\), got shape \(2,\)",
        ),
        (
            lambda: nn.RotaryPositionalEmbeddings(8, 5)(normal(1, 3, 1, 8), normal(3)),
            hl.ShapeError, "input_pos must hold integers",
        ),
        (
            lambda: nn.RotaryPositionalEmbeddings(8)(normal(1, 3, 8)),
            hl.ShapeError, r"input must be \(N, T, heads, 8\)",
        ),
        (
            lambda: nn.SinusoidalPositionalEncoding(4, 5)(normal(2, 6, 4)),
            hl.ShapeError, "must fit max_seq_len=5 positions, got 6",
        ),
        (
            lambda: nn.ALiBi(4)(normal(1, 2, 3, 4), normal(1, 2, 3, 4)),
            hl.ShapeError, r"query must be \(N, 4, rows, width\)",
        ),
        (lambda: F.alibi_bias(2, 3, 2), hl.ConfigError, "keys must be at least the 3 rows"),
        (lambda: F.rotary_embedding(normal(3), 1.0, 0.0), hl.ShapeError, "must be even"),
    ],
)  # fmt: skip
def test_wrong_positions(call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call()


# ---- bags


def test_frequency_scales_gradients() -> None:
    """Torch's own embedding_bag divides by counts of other rows; embedding does not."""

    class Table(nn.Module):
        def __init__(self, bags: bool) -> None:
            super().__init__()
            if bags:
                self.part: Any = nn.EmbeddingBag(5, 2, mode="sum", scale_grad_by_freq=True)
            else:
                self.part = nn.Embedding(5, 2, scale_grad_by_freq=True)
            self.part.weight.fill_(1.0)

        def forward(self, idx: Any) -> Any:
            return self.part(idx)

    idx = np.array([[1, 1, 2], [1, 3, 3]])
    for bags in (False, True):
        model = Table(bags)
        config = hl.TrainingConfig.bare().replace(
            optimizer="sgd", lr=1.0, loss=lambda y, t: y.sum() * 1.0, max_epochs=1,
            enable_progress_bar=False, momentum=0.0,
        )  # fmt: skip
        hl.train(model, hl.DataModule.from_arrays(idx, np.zeros(2), val=0, batch_size=2), config)
        np.testing.assert_allclose(model.part.weight[:, 0], [1, 0, 0, 0, 1], atol=1e-6)


def test_bags_of_pretrained_vectors() -> None:
    layer = nn.EmbeddingBag.from_pretrained(np.eye(3), mode="sum", padding_idx=1)
    assert not layer.weight.requires_grad
    np.testing.assert_array_equal(layer(np.array([[0, 1, 2, 2]])), [[1, 0, 2]])
    assert not nn.Embedding.from_pretrained(np.eye(3)).weight.requires_grad


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_without_indices(mode: str) -> None:
    table = normal(4, 3)
    made = F.embedding_bag(np.array([1, 2, 3]), table, np.array([0, 0, 2, 3, 3]), mode=mode)
    np.testing.assert_array_equal(made[[0, 3, 4]], np.zeros((3, 3)))
    np.testing.assert_allclose(made[2], table[3])
    none = np.zeros(0, np.int64)
    np.testing.assert_array_equal(F.embedding_bag(none, table, np.zeros(2, np.int64), mode=mode),
                                  np.zeros((2, 3)))  # fmt: skip


def test_weighted_bags() -> None:
    table, w = normal(4, 3), np.array([2.0, -1.0, 0.5], np.float32)
    made = F.embedding_bag(
        np.array([1, 2, 3]), table, np.array([0, 2]), mode="sum", per_sample_weights=w
    )
    want = [2 * table[1] - table[2], 0.5 * table[3]]
    np.testing.assert_allclose(made, want, rtol=1e-6)


class Tied(nn.Module):
    """A language model of one layer, whose table is that of its head."""

    def __init__(self, max_norm: float | None = 1.0) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8, max_norm=max_norm)

    def forward(self, ids: Any) -> Any:
        return self.table(ids.long()).mean(1) @ self.table.weight.T


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed", "64-true"])
def test_max_norm_of_a_tied_table(precision: str, tmp_path: Any) -> None:
    """Every row that was looked up begins an optimizer step no longer than 1; files have them."""
    rng = np.random.default_rng(0)
    ids, y = rng.integers(0, 15, (64, 4)), rng.integers(0, 20, 64)
    model = Tied()
    start = model.table.weight.numpy().copy()
    assert (np.linalg.norm(start, axis=1) > 1.5).all()
    result = hl.train(
        model, (ids, y), max_steps=6, optimizer="sgd", lr=1e-3, weight_decay=0.0, seed=0,
        precision=precision, accelerator="cpu", enable_progress_bar=False,
    )  # fmt: skip
    table = model.table.weight.numpy()
    assert (np.linalg.norm(table[:15], axis=1) < 1.01).all()
    assert (np.linalg.norm(table[15:], axis=1) > 1.4).all()
    result.save(tmp_path / "net.safetensors")
    want = model(ids)
    np.testing.assert_array_equal(hl.load(tmp_path / "net.safetensors")(ids), want)
    short = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1.0)
    short[15:] = table[15:]
    np.testing.assert_allclose(want, short[ids].mean(1) @ short.T, rtol=1e-4, atol=1e-5)


def test_max_norm_while_steps_are_held_back() -> None:
    """A step whose loss is not finite changes no row, as it moves no running statistic."""
    model = Tied()
    start = model.table.weight.numpy().copy()

    def loss(output: Any, y: Any) -> Any:
        return (output / 0.0).mean() + y.float().mean()

    with pytest.warns(hl.errors.NotFiniteWarning):
        hl.train(
            model, (np.zeros((8, 2), int), np.zeros(8, int)), loss=loss, max_steps=2, metrics=[],
            accelerator="cpu", enable_progress_bar=False,
        )  # fmt: skip
    np.testing.assert_array_equal(model.table.weight.numpy(), start)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda t: F.embedding_bag([[0]], t, [0]), hl.ConfigError, "offsets go with an input"),
        (lambda t: F.embedding_bag([0], t), hl.ConfigError, "offsets go with an input of one dim"),
        (lambda t: F.embedding_bag([[0]], t, mode="min"), hl.ConfigError, "mode must be"),
        (lambda t: F.embedding_bag([[0]], t, max_norm="1"), hl.ConfigError, "max_norm must be"),
        (lambda t: F.embedding_bag([[0]], t, sparse=True), hl.ConfigError, "sparse must be False"),
        (lambda t: F.embedding_bag([0, 1], t, [1, 2]), hl.DataError, "rise from 0"),
        (lambda t: F.embedding_bag([0, 1], t, [0, 3]), hl.DataError, "rise from 0 to at most 2"),
        (lambda t: F.embedding_bag([0, 1], t, [0.5]), hl.TraceError, "offsets must be integers"),
        (lambda t: F.embedding_bag([0.5], t, [0]), hl.TraceError, "indices must be integers"),
        (lambda t: F.embedding_bag([[9]], t), hl.DataError, "below 4, got 9"),
        (lambda t: F.embedding_bag([[[0]]], t), hl.ShapeError, r"input must be \(B, N\) or"),
        (
            lambda t: F.embedding_bag([[0]], t, per_sample_weights=[[1.0]]),
            hl.ConfigError, "go with mode='sum'",
        ),
        (
            lambda t: F.embedding_bag([[0]], t, mode="sum", per_sample_weights=[1.0]),
            hl.ShapeError, "must have the input's shape",
        ),
        (lambda t: nn.Embedding(3, 2, sparse=True), hl.ConfigError, "sparse must be False"),
        (lambda t: nn.Embedding(3, 2, norm_type=np.nan), hl.ConfigError, "norm_type must not be"),
        (lambda t: nn.EmbeddingBag(3, 2, mode="min"), hl.ConfigError, "mode must be 'mean'"),
        (lambda t: nn.Embedding(3, 2, max_norm=-1), hl.ConfigError, "max_norm must be at least 0"),
        (lambda t: nn.EmbeddingBag(3, 2, max_norm=-1), hl.ConfigError, "max_norm must be at least"),
        (lambda t: F.embedding([0], t, max_norm=-1.0), hl.ConfigError, "max_norm must be at least"),
        (lambda t: nn.EmbeddingBag(3, 2, padding_idx=3), hl.ConfigError, "padding_idx must lie"),
    ],
)  # fmt: skip
def test_wrong_bags(call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call(normal(4, 3))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize(
    ("offsets", "got"),
    [([1, 2, 3], "-1 at position 0"), ([0, 5, 3], "-1 at position 2"), ([0, 2, 7], "7 at pos")],
)
def test_wrong_offsets_of_a_batch(offsets: list[int], got: str, mode: str) -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(4, 3, mode=mode)

        def forward(self, ids: Any, offsets: Any) -> Any:
            return self.bag(ids, offsets)

    model, ids = Bags(), np.array([0, 1, 2, 3, 0, 1])
    known = model.bag(ids, np.array([0, 2, 2]))
    np.testing.assert_array_equal(model(ids, np.array([0, 2, 2])), known)
    rule = "bag: embedding_bag: offsets must rise from 0 to at most 6, the number of indices"
    with pytest.raises(hl.DataError, match=f"^{rule}: .*got {got}"):
        model(ids, np.array(offsets))


# ---- the cache


def test_a_cache_holds_its_shapes() -> None:
    for name in ("num_layers", "batch_size", "num_kv_heads", "max_seq_len", "head_dim"):
        sizes = {"num_layers": 1, "batch_size": 2, "num_kv_heads": 3, "max_seq_len": 4,
                 "head_dim": 5, name: 0}  # fmt: skip
        with pytest.raises(hl.ConfigError, match=f"{name} must be"):
            nn.KVCache(**sizes)

    class Net(nn.Module):
        def __init__(self, layer: int = 0) -> None:
            super().__init__()
            self.cache, self.layer = nn.KVCache(1, 2, 3, 4, 5), layer

        def forward(self, x: Any) -> Any:
            k, _ = self.cache.update(x, x, self.layer)
            self.cache.advance(1)
            return k, self.cache.positions(1), self.cache.mask(1)

    with pytest.raises(hl.ShapeError, match=r"must be \(2, 3, T, 5\), got \(2, 3, 5\)"):
        Net()(normal(2, 3, 5))
    with pytest.raises(hl.ShapeError, match="must fit the cache's max_seq_len of 4, got 6 rows"):
        Net()(normal(2, 3, 6, 5))
    with pytest.raises(hl.ConfigError, match="layer must be below 1, got 1"):
        Net(1)(normal(2, 3, 1, 5))
    net, x = Net(), normal(2, 3, 1, 5)
    for _ in range(2):  # a prediction moves no state
        k, at, mask = net(x)
        np.testing.assert_array_equal(k[:, :, :1], x)
        assert not k[:, :, 1:].any()
        assert at.tolist() == [1]
        assert mask.tolist() == [[True, True, False, False]]
    assert not net.state_dict()
    assert net.cache.reset() is net.cache
