"""Attention layers by their definition in NumPy: rows that see nothing, dropout, what copies hold,
what becomes the rule of time, and what is said of bad inputs. Against torch they are in
tests/parity/test_attention.py.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from api.traced import run, trace
from hotloop import nn
from hotloop.graph import seeds
from hotloop.nn import functional as F
from train.recipes import exact, quiet, same_bits

N, L, S, E, HEADS = 3, 4, 5, 8, 2
LATER = ~np.tri(S, dtype=bool)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def by_definition(
    layer: nn.MultiheadAttention, q: Any, k: Any, v: Any, hidden: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Output and weights of each head; inputs (N, L, E), hidden (N, heads, L, S) bools."""
    state = {name: value.astype(np.float64) for name, value in layer.state_dict().items()}
    weights = np.split(state["in_proj_weight"], 3)
    biases = np.split(state["in_proj_bias"], 3)

    def project(x: Any, i: int) -> np.ndarray:
        made = x.astype(np.float64) @ weights[i].T + biases[i]
        return made.reshape(*made.shape[:2], HEADS, -1).swapaxes(1, 2)

    queries, keys, values = (project(x, i) for i, x in enumerate((q, k, v)))
    scores = queries @ keys.swapaxes(2, 3) / np.sqrt(E / HEADS)
    chances = np.where(hidden, 0, np.exp(scores))
    total = chances.sum(-1, keepdims=True)
    chances = np.divide(chances, total, out=np.zeros_like(chances), where=total > 0)
    out = (chances @ values).swapaxes(1, 2).reshape(len(q), -1, E)
    return out @ state["out_proj.weight"].T + state["out_proj.bias"], chances


def a_layer(**options: Any) -> nn.MultiheadAttention:
    layer = nn.MultiheadAttention(E, HEADS, batch_first=True, **options)
    nn.init.normal_(layer.in_proj_bias)
    nn.init.normal_(layer.out_proj.bias)
    return layer


# ---------------------------------------------------------------------------- values


def hides_rows(*shape: int) -> np.ndarray:
    """True here and there, and everywhere in the second row of the first sample or head."""
    mask = np.random.default_rng(3).uniform(size=shape) < 0.4
    mask[0, 1] = True
    return mask


MASKS: dict[str, Any] = {
    "none": lambda: (None, None),
    "keys, all of one sample": lambda: (np.arange(S) >= np.array([[0], [3], [5]]), None),
    "pairs, all of one row": lambda: (None, hides_rows(1, L, S)[0]),
    "pairs of each head": lambda: (None, hides_rows(N * HEADS, L, S)),
    "both": lambda: (np.arange(S) < np.array([[2], [0], [4]]), hides_rows(N * HEADS, L, S)),
}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("as_floats", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_definition(mask: str, as_floats: bool, is_causal: bool) -> None:
    """Rows that see no key are the output's bias, their weights 0, with weights and without."""
    layer = a_layer()
    q, k, v = normal(N, L, E), normal(N, S, E, seed=1), normal(N, S, E, seed=2)
    of_keys, of_pairs = MASKS[mask]()
    hidden = np.zeros((N, HEADS, L, S), bool)
    if of_keys is not None:
        hidden |= of_keys[:, None, None]
    if of_pairs is not None:
        hidden |= of_pairs if of_pairs.ndim == 2 else of_pairs.reshape(N, HEADS, L, S)
    if is_causal:
        hidden |= ~np.tri(L, S, dtype=bool)
    assert mask == "none" or hidden.all(-1).any()
    if as_floats:
        given = [None if m is None else np.where(m, -np.inf, 0) for m in (of_keys, of_pairs)]
        of_keys, of_pairs = given
    want, chances = by_definition(layer, q, k, v, hidden)
    masks = {"key_padding_mask": of_keys, "attn_mask": of_pairs, "is_causal": is_causal}
    for need_weights in (False, True):
        out, weights = layer(q, k, v, need_weights=need_weights, **masks)
        np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
        nothing = hidden.all(-1).all(1)
        bias = layer.out_proj.bias.numpy()
        np.testing.assert_array_equal(out[nothing], np.broadcast_to(bias, out[nothing].shape))
        assert (weights is not None) == need_weights
    np.testing.assert_allclose(weights, chances.mean(1), rtol=1e-4, atol=1e-6)
    _, weights = layer(q, k, v, average_attn_weights=False, **masks)
    np.testing.assert_allclose(weights, chances, rtol=1e-4, atol=1e-6)
    assert not weights[hidden].any()


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("as_floats", [False, True])
def test_gradients_of_rows_that_see_nothing(as_floats: bool, need_weights: bool) -> None:
    """They are finite, and the same as of a mask of huge negative numbers in the other rows."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = a_layer()

        def forward(self, x: Any) -> Any:
            hidden = x[:, :, 0] > -1.0  # all keys of the first half of the samples
            mask = hl.where(hidden, -np.inf, 0.0) if as_floats else hidden
            return self.attention(x, x, x, mask, need_weights=need_weights)[0].mean(1)

    x = np.abs(normal(8, S, E))
    x[4:, 2:, 0] = -5
    y = normal(8, E, seed=1)
    net = Net()
    before = net.state_dict()
    hl.train(net, hl.DataModule.from_arrays(x, y, batch_size=8), exact(max_steps=3))
    for name, value in net.state_dict().items():
        assert np.isfinite(value).all()
        assert not np.array_equal(value, before[name]), name


def test_a_layer_in_parts() -> None:
    """Unbatched inputs and both layouts are one computation."""
    x = normal(N, S, E)
    layer = a_layer()
    other = nn.MultiheadAttention(E, HEADS)
    other.load_state_dict(layer.state_dict())
    of_keys = np.arange(S) >= np.array([[3], [4], [5]])
    of_pairs = hides_rows(N * HEADS, S, S)
    out, weights = layer(x, x, x, of_keys, attn_mask=of_pairs)
    turned = x.swapaxes(0, 1)
    second = other(turned, turned, turned, of_keys, attn_mask=of_pairs)
    np.testing.assert_allclose(second[0].swapaxes(0, 1), out, atol=1e-6)
    np.testing.assert_allclose(second[1], weights, atol=1e-6)
    for i in range(N):
        for one in (layer, other):
            heads = of_pairs.reshape(N, HEADS, S, S)[i]
            alone = one(x[i], x[i], x[i], of_keys[i], attn_mask=heads)
            np.testing.assert_allclose(alone[0], out[i], atol=1e-6)
            np.testing.assert_allclose(alone[1], weights[i], atol=1e-6)


# ---------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_is_of_training(need_weights: bool) -> None:
    """Each weight is 0 with probability p, else larger by 1 / (1 - p)."""
    n, p = 200, 0.25
    layer = nn.MultiheadAttention(n, 1, dropout=p, batch_first=True)
    for name in ("in_proj_bias", "out_proj.bias"):
        nn.init.zeros_(layer.get_parameter(name))
    # All scores 0, values and output as they are: the output is the weights.
    state = {name: np.zeros_like(value) for name, value in layer.state_dict().items()}
    state["in_proj_weight"][2 * n :] = state["out_proj.weight"][:] = np.eye(n)
    layer.load_state_dict(state)
    x = np.eye(n, dtype=np.float32)[None]

    def call(x: Any) -> Any:
        out, weights = layer(x, x, x, need_weights=need_weights)
        return (out, weights) if need_weights else (out,)

    for kept in run(call, x, model=layer):
        np.testing.assert_allclose(kept, 1 / n, rtol=1e-5)
    made = run(call, x, model=layer, training=True)
    for out in made:
        np.testing.assert_allclose(np.unique(out.round(5)), [0, round(1 / n / (1 - p), 5)])
        assert abs((out == 0).mean() - p) < 0.02
    if need_weights:
        np.testing.assert_allclose(made[0], made[1], rtol=1e-5)
    layer.eval()
    for kept in run(call, x, model=layer, training=True):
        np.testing.assert_allclose(kept, 1 / n, rtol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
def test_dropout_of_layers(norm_first: bool) -> None:
    """With all of it dropped the residuals are left; in evaluation nothing is."""
    x, memory = normal(N, S, E), normal(N, L, E, seed=1)
    options = {"dropout": 1.0, "batch_first": True, "norm_first": norm_first}
    encoder = nn.TransformerEncoderLayer(E, HEADS, 12, **options)
    decoder = nn.TransformerDecoderLayer(E, HEADS, 12, **options)
    want = x if norm_first else F.layer_norm(F.layer_norm(x, E), E)
    (out,) = run(encoder, x, model=encoder, training=True)
    np.testing.assert_allclose(out, want, atol=1e-5)
    assert abs(encoder(x) - out).max() > 0.1
    want = x if norm_first else F.layer_norm(want, E)
    (out,) = run(decoder, x, memory, model=decoder, training=True)
    np.testing.assert_allclose(out, want, atol=1e-5)
    assert abs(decoder(x, memory) - out).max() > 0.1


def test_dropout_takes_the_mode_only_where_there_is_some() -> None:
    """Else ``model.train()`` before a prediction would warn of nothing."""
    x = normal(N, S, E)
    nn.MultiheadAttention(E, HEADS).train()(x, x, x)
    with pytest.warns(hl.ModelWarning, match="evaluates always"):
        nn.MultiheadAttention(E, HEADS, 0.1).train()(x, x, x)


# ---------------------------------------------------------------------------- copies


def test_copies_have_their_own_values() -> None:
    """Drawn by name and seed, whether or not somebody looked at the layer; what was set is kept."""
    layer = nn.TransformerEncoderLayer(E, HEADS, 12)
    encoder = nn.TransformerEncoder(layer, 3)
    looked = [value.copy() for value in layer.state_dict().values()]
    after = nn.TransformerEncoder(layer, 3)
    assert same_bits(encoder.state_dict(), after.state_dict())
    for name in ("self_attn.in_proj_weight", "linear1.bias", "linear2.weight"):
        values = [one.get_parameter(name).numpy() for one in (layer, *encoder.layers)]
        for i, a in enumerate(values):
            assert not any(np.array_equal(a, b) for b in values[:i]), name
    assert all(np.array_equal(a, b) for a, b in zip(looked, layer.state_dict().values()))

    layer.load_state_dict({k: np.full_like(v, 2) for k, v in layer.state_dict().items()})
    layer.linear1.requires_grad_(False)
    encoder = nn.TransformerEncoder(layer, 2)
    assert all((value == 2).all() for value in encoder.state_dict().values())
    assert not encoder.layers[1].linear1.weight.requires_grad
    assert encoder.layers[1].linear2.weight.requires_grad
    encoder.layers[0].linear1.weight.fill_(5)
    assert (encoder.layers[1].linear1.weight.numpy() == 2).all()
    assert (layer.linear1.weight.numpy() == 2).all()


def test_copies_follow_the_seed(monkeypatch) -> None:
    monkeypatch.setattr(seeds._State, "seed", None)  # manual_seed's would go first

    def first_weights(seed: int) -> dict[str, np.ndarray]:
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, HEADS, 12), 2)
        model.materialize(seed)
        return model.state_dict()

    one, again, other = first_weights(1), first_weights(1), first_weights(2)
    assert same_bits(one, again)
    for name, value in one.items():
        drawn = bool(np.ptp(value) > 0)
        assert drawn != np.array_equal(value, other[name]), name


def test_copies_of_layers_of_ones_own() -> None:
    """Buffers, shared parameters and functions are copied as they stand."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(E, E)
            self.second = nn.Linear(E, E)
            self.second.weight = self.first.weight
            self.register_buffer("scale", np.full(E, 3.0))

        def forward(self, src: Any, src_mask: Any, src_key_padding_mask: Any, is_causal: bool):
            assert src_mask is None
            assert not is_causal
            return self.second(self.first(src)) * self.scale

    encoder = nn.TransformerEncoder(Own(), 2)
    for layer in encoder.layers:
        assert layer.first.weight is layer.second.weight
        assert (layer.scale.numpy() == 3).all()
    assert encoder.layers[0].first.weight is not encoder.layers[1].first.weight
    assert encoder(normal(S, N, E)).shape == (S, N, E)


def test_transformer_takes_custom_parts() -> None:
    part = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, HEADS, 12), 1)
    bias = part.layers[0].linear1.bias
    bias.fill_(3)
    part.layers[0].linear1.weight.fill_(3)
    model = nn.Transformer(E, HEADS, 1, 1, 12, custom_encoder=part)
    assert model.encoder is part
    assert (bias.numpy() == 3).all()  # matrices are drawn anew, as in torch
    assert np.ptp(part.layers[0].linear1.weight.numpy()) > 0
    bound = np.sqrt(6 / (E + 12))
    assert abs(model.decoder.layers[0].linear1.weight.numpy()).max() <= bound


def test_a_module_as_activation_is_a_part_of_the_layer() -> None:
    layer = nn.TransformerEncoderLayer(E, HEADS, 12, activation=nn.PReLU())
    assert "activation.weight" in layer.state_dict()
    assert copy.deepcopy(layer).activation is not layer.activation


def test_lists_show_what_is_alike_once() -> None:
    layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU()])
    line = "Linear(in_features=2, out_features=2, bias=True)"
    assert repr(layers) == f"ModuleList(\n  (0-1): 2 x {line}\n  (2): ReLU()\n)"
    assert repr(nn.ModuleList()) == "ModuleList()"


# ---------------------------------------------------------------------------- the rule of time


def attentions(model: nn.Module, *arrays: np.ndarray, **options: Any) -> list[dict[str, Any]]:
    """The attributes of the nodes of attention that a call makes."""
    graph, *_ = trace(lambda *x: model(*x, **options), *arrays, model=model)
    return [node["attrs"] for node in graph.nodes() if node["op"] == "attention"]


@pytest.mark.parametrize("is_bool", [False, True])
def test_a_known_mask_of_later_keys_is_the_rule(is_bool: bool) -> None:
    """Kernels leave out what the rule hides, and read no mask."""
    x = normal(S, N, E)
    mask = LATER if is_bool else nn.Transformer.generate_square_subsequent_mask(S)
    layer = nn.TransformerEncoderLayer(E, HEADS, 12)
    encoder = nn.TransformerEncoder(layer, 2)
    cases = (
        (mask, 1, 0),
        (mask.copy(), 1, 0),
        (np.where(np.eye(S, k=1), ~mask if is_bool else 0, mask).astype(mask.dtype), 0, 1),
        (mask.T.copy(), 0, 1),
        (mask if is_bool else mask + np.eye(S, dtype=mask.dtype), int(is_bool), int(not is_bool)),
    )
    for given, is_causal, has_mask in cases:
        for model, name in ((layer, "src_mask"), (encoder, "mask")):
            found = attentions(model, x, **{name: given})
            assert {(a["is_causal"], a["has_mask"]) for a in found} == {(is_causal, has_mask)}
    of_keys = np.zeros((N, S), bool)
    (found,) = attentions(layer, x, src_mask=mask, src_key_padding_mask=of_keys)
    assert (found["is_causal"], found["has_mask"]) == (1, 1)


def test_the_rule_needs_no_mask() -> None:
    x = normal(S, N, E)
    layer = nn.MultiheadAttention(E, HEADS)
    want = layer(x, x, x, attn_mask=LATER)
    got = layer(x, x, x, is_causal=True)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("need_weights", [False, True])
def test_more_keys_are_seen_by_all_rows(need_weights: bool) -> None:
    """The rule of time and the masks are of the sequence's own keys."""
    x = normal(S, N, E)
    layer = nn.MultiheadAttention(E, HEADS, add_bias_kv=True, add_zero_attn=True)
    options = {"need_weights": need_weights, "average_attn_weights": False}
    by_rule, weights = layer(x, x, x, is_causal=True, **options)
    by_mask, _ = layer(x, x, x, attn_mask=np.where(LATER, -np.inf, 0), **options)
    np.testing.assert_allclose(by_rule, by_mask, atol=1e-6)
    nothing, _ = layer(x, x, x, np.ones((N, S), bool), **options)
    assert abs(nothing - layer.out_proj.bias.numpy()).max() > 1e-3  # the learnt key is seen
    if need_weights:
        assert weights.shape == (N, HEADS, S, S + 2)
        assert (weights[..., S:] > 0).all()
        assert not weights[..., :S][:, :, LATER].any()


def test_layers_of_ones_own_get_the_hint() -> None:
    seen: list[bool] = []

    class Own(nn.Module):
        def forward(self, src: Any, *, is_causal: bool, **masks: Any) -> Any:
            seen.append(is_causal)
            return src

    encoder = nn.TransformerEncoder(Own(), 1)
    x = normal(S, N, E)
    for given in ({"mask": LATER}, {"mask": LATER.T}, {}, {"is_causal": True}):
        run(lambda x, given=given: encoder(x, **given), x, model=encoder)
    assert seen == [True, False, False, True]


# ---------------------------------------------------------------------------- use


class Finds(nn.Module):
    """Which token follows token 0: a thing that only attention to other places can say."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(9, 32), nn.Embedding(12, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(32))
        self.head = nn.Linear(32, 8)

    def forward(self, tokens: Any) -> Any:
        x = self.table(tokens) + self.place(hl.arange(12))
        x = self.encoder(x, src_key_padding_mask=tokens == 8)
        return self.head(x.amax(1))


def found_tokens(n: int = 2048) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 8, (n, 12))
    length = rng.integers(6, 13, n)
    tokens[np.arange(12) >= length[:, None]] = 8  # padding
    at = rng.integers(0, length - 1)
    tokens[np.arange(n), at] = 0
    return tokens, tokens[np.arange(n), at + 1]


def test_an_encoder_learns() -> None:
    X, y = found_tokens()
    result = hl.train(Finds(), (X, y), max_epochs=25, lr=2e-3, enable_progress_bar=False)
    assert result.history["val_accuracy"][-1] > 0.95


def test_saved_and_loaded(tmp_path: Path) -> None:
    """A file has attention as it was recorded, its output of None too."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(E, HEADS, 0.1, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.attention(x, x, x, need_weights=False, attn_mask=LATER)

    x = normal(16, S, E)
    net = Net()
    result = hl.train(net, (x, x), max_epochs=1, enable_progress_bar=False)
    result.save(tmp_path / "net.safetensors")
    out, weights = hl.predict(hl.load(tmp_path / "net.safetensors"), x)
    assert weights is None
    np.testing.assert_allclose(out, hl.predict(net, x, batch_size=5)[0], atol=1e-5)
    other = Net()
    other.load_state_dict(hl.read_weights(tmp_path / "net.safetensors"))
    np.testing.assert_allclose(other(x)[0], out, atol=1e-5)


def test_masks_of_data_become_bools_where_it_is_said() -> None:
    """Training gives bool data to the model as floats, which would be added to the scores."""

    class Net(nn.Module):
        def __init__(self, convert: bool) -> None:
            super().__init__()
            self.attention, self.convert = a_layer(), convert

        def forward(self, x: Any, mask: Any) -> Any:
            mask = mask.bool() if self.convert else mask
            return self.attention(x, x, x, mask)[0].mean(1)

    x, y = normal(16, S, E), normal(16, E)
    mask = np.arange(S) >= np.arange(16)[:, None] % 4 + 1
    for given in (mask, mask.astype(np.uint8)):
        with pytest.raises(hl.TraceError, match=r"got (bool|uint8) data, .*key_padding_mask.bool"):
            hl.train(Net(False), ((x, given), y), max_epochs=1, enable_progress_bar=False)
    net = Net(True)
    hl.train(net, ((x, mask), y), max_epochs=1, enable_progress_bar=False)
    want = net.attention(x, x, x, mask)[0].mean(1)
    np.testing.assert_allclose(hl.predict(net, (x, mask)), want, atol=1e-5)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "64-true"])
@pytest.mark.parametrize("need_weights", [False, True])
def test_precisions(need_weights: bool, precision: str) -> None:
    """Masks and the rule go along: losses are those of float32 to the precision's digits."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(E, HEADS, batch_first=True, add_bias_kv=True)

        def forward(self, x: Any) -> Any:
            hidden = x[:, :, 0] > 0
            out, _ = self.attention(x, x, x, hidden, need_weights, np.where(LATER, -np.inf, 0.5))
            return out

    def losses(precision: str) -> list[float]:
        data = hl.DataModule.from_arrays(normal(32, S, E), normal(32, S, E, seed=1), batch_size=32)
        settings = quiet(max_epochs=3, precision=precision, lr=0.1)
        return hl.train(Net(), data, settings).history["loss"]

    np.testing.assert_allclose(losses(precision), losses("32-true"), rtol=1e-2)


# ---------------------------------------------------------------------------- bad inputs

MHA, X, Y = nn.MultiheadAttention, normal(S, N, E), normal(L, N, E)
ENCODER = nn.TransformerEncoderLayer


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: MHA(10, 4), "MultiheadAttention: embed_dim must be a multiple of num_heads, got "
                             "10 and 4; num_heads may be 1, 2, 5, 10"),
        (lambda: MHA(0, 1), "embed_dim must be an integer, at least 1, got 0"),
        (lambda: MHA(E, 0), "num_heads must be an integer, at least 1"),
        (lambda: MHA(E, HEADS, dropout=1.5), r"dropout must lie in \[0, 1\]"),
        (lambda: MHA(E, HEADS, kdim=0), "kdim must be an integer, at least 1"),
        (lambda: ENCODER(10, 3), "TransformerEncoderLayer: d_model must be a multiple of nhead"),
        (lambda: nn.TransformerDecoderLayer(10, 3), "d_model must be a multiple of nhead"),
        (lambda: nn.Transformer(10, 3), "^Transformer: d_model must be a multiple of nhead"),
        (lambda: ENCODER(E, HEADS, activation="tanh"), "activation must be 'relu', 'gelu' or a"),
        (lambda: ENCODER(E, HEADS, activation=nn.GELU), r"write activation=nn.GELU\(\)"),
        (lambda: nn.TransformerEncoder(ENCODER, 2), "encoder_layer must be a module, got the class "
                                                    "TransformerEncoderLayer; make a layer of it"),
        (lambda: nn.TransformerDecoder("x", 2), "decoder_layer must be a module, got str"),
        (lambda: nn.TransformerEncoder(ENCODER(E, HEADS), -1), "num_layers must be an integer >="),
        (lambda: nn.Transformer.generate_square_subsequent_mask(-1), "sz must be an integer >= 0"),
        (lambda: MHA(E, HEADS)(X[0, 0], X, X), r"must all be \(L, N, E\), or \(L, E\) of one samp"),
        (lambda: MHA(E, HEADS)(X, X[0], X[0]), r"key and value must all be \(L, N, E\), or"),
        (lambda: MHA(E, HEADS, batch_first=True)(X, X, X[0]), r"must all be \(N, L, E\), or"),
        (lambda: MHA(E + 2, 2)(X, X, X), r"the query's last dim must be embed_dim=10, got \(5, 3,"),
        (lambda: MHA(E, HEADS, kdim=6)(X, X, X), r"the key's last dim must be kdim=6, got \(5, "),
        (lambda: MHA(E, HEADS, vdim=6)(X, X, X), "the value's last dim must be vdim=6"),
        (lambda: MHA(E, HEADS)(X, X, Y), "key and value must agree in all dims but the last"),
        (
            lambda: MHA(E, HEADS)(X.swapaxes(0, 1), Y.swapaxes(0, 1), Y.swapaxes(0, 1)),
            r"one batch size, N in dim 1, got query \(3, 5, 8\), key \(3, 4, 8\); with "
            r"batch_first=False inputs are \(L, N, E\), if they are \(N, L, E\) make the layer "
            "with batch_first=True",
        ),
        (lambda: MHA(E, HEADS)(X, Y[:, :2], Y[:, :2]), r"one batch size, N in dim 1, .*8\); dim 0"),
        (
            lambda: MHA(E, HEADS)(X, X, X, np.zeros((S, N), bool)),
            r"key_padding_mask must be \(N, S\) = \(3, 5\), got \(5, 3\); with batch_first=False",
        ),
        (
            lambda: MHA(E, HEADS, batch_first=True)(X, X, X, np.zeros((N, S), bool)),
            r"= \(5, 3\), got \(3, 5\); .*make the layer with batch_first=False",
        ),
        (lambda: MHA(E, HEADS)(X, X, X, np.zeros(S, bool)), r"\(N, S\) = \(3, 5\), got \(5,\)$"),
        (lambda: MHA(E, HEADS)(X[0], X[0], X[0], np.zeros((1, N), bool)), r"\(S,\), as the inputs"),
        (lambda: MHA(E, HEADS)(X, X, X, np.zeros((N, S), int)), r"key_padding_mask must be bool, .*"
         "got int64; make it bool or float"),
        (
            lambda: MHA(E, HEADS)(X, X, X, attn_mask=np.zeros((S, S), int)),
            r"attn_mask must be bool, True where a key is hidden, or floats",
        ),
        (
            lambda: MHA(E, HEADS)(Y, X, X, attn_mask=np.zeros((S, L), bool)),
            r"attn_mask must be \(L, S\) = \(4, 5\) or \(N \* num_heads, L, S\) = \(6, 4, 5\), got",
        ),
        (
            lambda: MHA(E, HEADS)(X, X, X, attn_mask=np.zeros((N, N), bool)),
            "batch_first=True; dim 0 of",
        ),
        (
            lambda: MHA(E, HEADS)(X, X, X, attn_mask=np.zeros((N, S, S), bool)),
            r"attn_mask.repeat_interleave\(2, 0\); dim 0",
        ),
        (
            lambda: MHA(E, HEADS)(X, X, X, attn_mask=np.zeros((N, HEADS, S, S), bool)),
            r"write attn_mask.flatten\(0, 1\); dim 0",
        ),
        (lambda: nn.Transformer(E, HEADS, 1, 1)(X, X[0]), r"src and tgt must be \(S, N, E\), or"),
        (lambda: nn.Transformer(E, 2, 1, 1)(X, X[..., :4]), "src and tgt must be d_model=8"),
        (
            lambda: nn.Transformer(E, 2, 1, 1)(X.swapaxes(0, 1), Y.swapaxes(0, 1)),
            r"one batch size, N in dim 1 of \(S, N, E\), .*batch_first=True",
        ),
    ],
)  # fmt: skip
def test_messages(call: Callable[[], Any], words: str) -> None:
    with pytest.raises((hl.ShapeError, hl.ConfigError, hl.TraceError), match=words):
        call()


def call_function(**changed: Any) -> Any:
    given: dict[str, Any] = {
        "query": X, "key": X, "value": X, "embed_dim_to_check": E, "num_heads": HEADS,
        "in_proj_weight": np.ones((3 * E, E)), "in_proj_bias": None, "bias_k": None, "bias_v": None,
        "add_zero_attn": False, "dropout_p": 0.0, "out_proj_weight": np.ones((E, E)),
        "out_proj_bias": None,
    }  # fmt: skip
    return F.multi_head_attention_forward(**given | changed)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_heads": 3}, "embed_dim_to_check must be a multiple of num_heads, got 8 and 3"),
        ({"embed_dim_to_check": 4}, r"in_proj_weight must be \(12, 4\), got \(24, 8\)"),
        ({"in_proj_weight": None}, "in_proj_weight must be given, or with use_separate_proj_w"),
        ({"use_separate_proj_weight": True}, "in_proj_weight must be given, or with"),
        ({"in_proj_bias": np.ones(E)}, r"in_proj_bias must be \(24\), got \(8,\)"),
        ({"out_proj_weight": np.ones((E, 3))}, r"out_proj_weight must be \(8, 8\), got \(8, 3\)"),
        ({"bias_k": np.ones((1, 1, E))}, "bias_k and bias_v must both be given or neither"),
        (
            {**dict.fromkeys(("bias_k", "bias_v"), np.ones((1, 1, E))), "static_k": X},
            "bias_k must be None beside static_k",
        ),
        ({"static_k": X}, r"static_k and static_v must be \(N \* num_heads, S, E / num_heads\) ="),
        ({"static_k": np.ones((6, 2, 4))}, "keys and values must be as many, got 2 and 5"),
        ({"query": X[..., :4]}, "the query's last dim must be embed_dim_to_check=8, got"),
        ({"dropout_p": 2.0}, r"dropout_p must lie in \[0, 1\]"),
        ({"training": 1}, "training must be True or False, got 1; write training=True"),
        ({"key_padding_mask": np.ones((S, N), bool)}, r"\(N, S\) = \(3, 5\), got \(5, 3\)$"),
    ],
)  # fmt: skip
def test_messages_of_the_function(changed: dict[str, Any], words: str) -> None:
    error = (hl.ShapeError, hl.ConfigError)
    with pytest.raises(error, match=f"^multi_head_attention_forward: .*{words}"):
        call_function(**changed)
