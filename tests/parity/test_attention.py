"""Attention layers beside torch's over their masks, layouts and options: values and all gradients.

Their plain calls, states and initial values are in test_modules.py, whole trainings in
test_trajectories.py. Only where torch's weights are asked for has a row that sees no key NaN there;
tests/api/test_attention_modules.py says what is here.
"""

import inspect
from typing import Any

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

from hotloop import nn  # noqa: E402
from hotloop.nn import functional as F  # noqa: E402
from parity.twins import check_twins, copy_weights, shake  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning"),
]
N, L, S, E, HEADS = 2, 4, 5, 8, 2
RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def hides(*shape: int) -> np.ndarray:
    """True here and there, never for the first key."""
    mask = RNG.uniform(size=shape) < 0.4
    mask[..., 0] = False
    mask[..., -1] = True
    return mask


# By name: key_padding_mask, attn_mask
MASKS: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "keys": (hides(N, S), None),
    "added to keys": (normal(N, S), None),
    "pairs": (None, hides(L, S)),
    "pairs of each head": (None, hides(N * HEADS, L, S)),
    "added to pairs": (None, normal(L, S)),
    "added to each head": (None, normal(N * HEADS, L, S)),
    "keys and pairs": (hides(N, S), hides(L, S)),
    "keys and pairs of each head": (hides(N, S), hides(N * HEADS, L, S)),
    "both added": (normal(N, S), normal(L, S)),
    "keys, added to pairs": (hides(N, S), normal(L, S)),
    "added to keys, pairs": (normal(N, S), hides(L, S)),
    "infinite": (None, np.where(hides(L, S), -np.inf, 0.0)),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "one more key": {"add_bias_kv": True},
    "a key of zeros": {"add_zero_attn": True},
    "both": {"add_bias_kv": True, "add_zero_attn": True},
    "own widths": {"kdim": 6, "vdim": 3, "add_zero_attn": True},
    "own widths, no bias": {"kdim": 6, "bias": False, "add_bias_kv": True},
}
WANTED: dict[str, dict[str, bool]] = {
    "mean": {},
    "each head": {"average_attn_weights": False},
    "none": {"need_weights": False},
}


def twins(name: str, *args: Any, **kwargs: Any) -> tuple[nn.Module, Any]:
    """A module with shaken weights, and torch's with the same."""
    model, twin = getattr(nn, name)(*args, **kwargs), getattr(torch.nn, name)(*args, **kwargs)
    shake(model, np.random.default_rng(0))
    copy_weights(model, twin)
    return model, twin


def check_call(
    model: Any,
    twin: Any,
    inputs: list[Any],
    masks: dict[str, Any],
    *,
    gradients: bool = True,
    **options: Any,
) -> None:
    """A call with inputs by position and masks by name, None left out, in both libraries."""
    given = {name: mask for name, mask in masks.items() if mask is not None}
    n = len(inputs)

    def calls(layer: Any) -> Any:
        def call(*x: Any) -> Any:
            made = layer(*x[:n], **dict(zip(given, x[n:])), **options)
            return tuple(y for y in made if y is not None) if isinstance(made, tuple) else made

        return call

    arrays = [*inputs, *given.values()]
    check_twins(calls(model), model, calls(twin), twin, arrays, training=True, gradients=gradients)


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_masks(setting: str, mask: str, wanted: str) -> None:
    options = SETTINGS[setting]
    model, twin = twins("MultiheadAttention", E, HEADS, **options)
    widths = options.get("kdim", E), options.get("vdim", E)
    inputs = [normal(L, N, E), normal(S, N, widths[0]), normal(S, N, widths[1])]
    of_keys, of_pairs = MASKS[mask]
    masks = {"key_padding_mask": of_keys, "attn_mask": of_pairs}
    check_call(model, twin, inputs, masks, **WANTED[wanted])


ALONE = np.arange(N)[:, None] == np.ones(S)  # of the last sample all keys
UNSEEN: dict[str, tuple[Any, Any]] = {
    "keys": (ALONE, None),
    "infinite keys": (np.where(ALONE, -np.inf, 0.0), None),
    "pairs": (None, np.arange(L)[:, None] == np.ones(S)),
    "added to pairs": (None, np.where(np.arange(L)[:, None] == np.ones(S), -np.inf, normal(L, S))),
    "keys and pairs": (np.array([[0, 0, 1, 1, 1]] * N) > 0, np.array([[1, 1, 0, 0, 0]] * L) > 0),
}


@pytest.mark.parametrize("mask", UNSEEN)
def test_rows_that_see_no_key(mask: str) -> None:
    """The output is the bias of the last projection, and every gradient is finite."""
    model, twin = twins("MultiheadAttention", E, HEADS)
    of_keys, of_pairs = UNSEEN[mask]
    inputs = [normal(L, N, E), normal(S, N, E), normal(S, N, E)]
    masks = {"key_padding_mask": of_keys, "attn_mask": of_pairs}
    check_call(model, twin, inputs, masks, need_weights=False)
    given = {k: torch.from_numpy(v) for k, v in masks.items() if v is not None}
    out, weights = twin.double()(*map(torch.from_numpy, inputs), **given)  # as porting.md says
    assert out.isnan().any()
    assert weights.isnan().any()


@pytest.mark.parametrize("is_bool", [False, True])
def test_function_of_rows_that_see_no_key(is_bool: bool) -> None:
    is_seen = np.arange(L)[:, None] != np.ones(S)
    mask = is_seen if is_bool else np.where(is_seen, normal(L, S), -np.inf)
    arrays = [normal(N, HEADS, L, E), normal(N, HEADS, S, E), normal(N, HEADS, S, 6), mask]
    theirs = torch.nn.functional.scaled_dot_product_attention
    check_twins(F.scaled_dot_product_attention, None, theirs, None, arrays)


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("kind", ["own", "of a memory", "of a memory, values apart"])
@pytest.mark.parametrize("layout", ["first", "second", "alone"])
def test_layouts(layout: str, kind: str, wanted: str) -> None:
    """One tensor as query, key and value is projected at once, and lies as it was given."""
    model, twin = twins("MultiheadAttention", E, HEADS, batch_first=layout == "first")
    lead = {"first": (N, S), "second": (S, N), "alone": (S,)}[layout]
    # A sequence of another length, where there are two.
    other = {"first": (N, L), "second": (L, N), "alone": (L,)}[layout]
    places = {"own": (0, 0, 0), "of a memory": (0, 1, 1), "of a memory, values apart": (0, 1, 2)}
    sources = [normal(*(other if i == 0 and kind != "own" else lead), E) for i in range(3)]
    used = places[kind]
    of_keys = hides(S) if layout == "alone" else hides(N, S)
    rows = S if kind == "own" else L
    of_pairs = hides((1 if layout == "alone" else N) * HEADS, rows, S)

    def calls(layer: Any) -> Any:
        def call(*x: Any) -> Any:
            made = layer(
                *(x[i] for i in used), key_padding_mask=x[-2], attn_mask=x[-1], **WANTED[wanted]
            )
            return tuple(y for y in made if y is not None)

        return call

    arrays = [*sources[: max(used) + 1], of_keys, of_pairs]
    check_twins(calls(model), model, calls(twin), twin, arrays)


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("of_keys", [None, hides(N, S)], ids=["alone", "keys"])
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("is_bool", [False, True])
def test_rule_of_time(is_bool: bool, is_known: bool, of_keys: Any, wanted: str) -> None:
    """The mask of the rule, as an input or known while tracing, with the hint and without it."""
    model, twin = twins("MultiheadAttention", E, HEADS)
    later = ~np.tri(S, dtype=bool)
    mask = later if is_bool else np.where(later, -np.inf, 0.0)
    x = normal(S, N, E)
    for is_causal in (False, True):
        options = {"is_causal": is_causal, **WANTED[wanted]}
        if not is_known:
            masks = {"attn_mask": mask, "key_padding_mask": of_keys}
            # With the hint torch does not read the mask, so that it has no gradient.
            check_call(model, twin, [x, x, x], masks, gradients=is_bool or not is_causal, **options)
            continue

        def ours(x: Any, keys: Any = None, options: Any = options) -> Any:
            made = model(x, x, x, keys, attn_mask=mask, **options)
            return tuple(y for y in made if y is not None)

        def theirs(x: Any, keys: Any = None, options: Any = options) -> Any:
            made = twin(x, x, x, keys, attn_mask=torch.from_numpy(mask), **options)
            return tuple(y for y in made if y is not None)

        check_twins(ours, model, theirs, twin, [x] if of_keys is None else [x, of_keys])


@pytest.mark.parametrize("static", ["none", "key", "both", "more"])
@pytest.mark.parametrize("is_apart", [False, True])
def test_function(is_apart: bool, static: str) -> None:
    """F.multi_head_attention_forward with every argument that the layer does not use."""
    arrays = {
        "query": normal(L, N, E), "key": normal(S, N, E), "value": normal(S, N, E),
        "in_proj_weight": normal(3 * E, E), "in_proj_bias": normal(3 * E),
        "out_proj_weight": normal(E, E), "out_proj_bias": normal(E),
        "key_padding_mask": hides(N, S), "attn_mask": normal(L, S),
    }  # fmt: skip
    if is_apart:
        del arrays["in_proj_weight"]
        arrays |= {f"{x}_proj_weight": normal(E, E) for x in "qkv"}
    n_keys = S + 2 if static == "more" else S
    for name in {"none": "", "key": "k"}.get(static, "kv"):
        arrays[f"static_{name}"] = normal(N * HEADS, n_keys, E // HEADS)
    if static == "more":  # of which the mask of keys says what is seen
        arrays["key_padding_mask"] = hides(N, n_keys)
        del arrays["attn_mask"]
    rest = {
        "embed_dim_to_check": E, "num_heads": HEADS, "bias_k": None, "bias_v": None,
        "add_zero_attn": True, "dropout_p": 0.5, "training": False,
        "use_separate_proj_weight": is_apart, **({"in_proj_weight": None} if is_apart else {}),
    }  # fmt: skip

    def calls(function: Any) -> Any:
        return lambda *x: function(**dict(zip(arrays, x)), **rest)

    theirs = calls(torch.nn.functional.multi_head_attention_forward)
    ours = calls(F.multi_head_attention_forward)
    check_twins(ours, None, theirs, None, list(arrays.values()))
    made = ours(*arrays.values())  # on arrays, at once
    want = theirs(*map(torch.from_numpy, arrays.values()))
    for a, b in zip(made, want):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------------------- whole layers

LATER = np.where(~np.tri(S, dtype=bool), -np.inf, 0.0)
LAYER_MASKS = {
    "none": {},
    "keys": {"src_key_padding_mask": hides(N, S)},
    "time": {"src_mask": LATER < 0, "is_causal": True},
    "time and keys": {"src_mask": LATER, "src_key_padding_mask": hides(N, S)},
    "pairs of each head": {"src_mask": hides(N * HEADS, S, S)},
}
OPTIONS = {
    "plain": {},
    "first": {"norm_first": True, "batch_first": True},
    "gelu, no bias": {"activation": "gelu", "bias": False, "layer_norm_eps": 1e-2},
    "first, gelu": {"norm_first": True, "activation": "gelu"},
}


def lead(options: dict[str, Any], length: int) -> tuple[int, int]:
    return (N, length) if options.get("batch_first") else (length, N)


def split_flags(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays, and what is none."""
    arrays = {k: v for k, v in given.items() if isinstance(v, np.ndarray)}
    return arrays, {k: v for k, v in given.items() if k not in arrays}


@pytest.mark.parametrize("masks", LAYER_MASKS)
@pytest.mark.parametrize("options", OPTIONS)
def test_encoder(options: str, masks: str) -> None:
    """The layer, and two of them under their names of the masks."""
    opts = OPTIONS[options]
    x = normal(*lead(opts, S), E)
    arrays, flags = split_flags(LAYER_MASKS[masks])
    model, twin = twins("TransformerEncoderLayer", E, HEADS, 12, 0.0, **opts)
    check_call(model, twin, [x], arrays, **flags)
    stack = [
        home.TransformerEncoder(home.TransformerEncoderLayer(E, HEADS, 12, 0.0, **opts), 2)
        for home in (nn, torch.nn)
    ]
    shake(stack[0], np.random.default_rng(1))
    copy_weights(*stack)
    check_call(*stack, [x], {k.replace("src_mask", "mask"): v for k, v in arrays.items()}, **flags)


@pytest.mark.parametrize("is_stack", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_decoder(options: str, is_stack: bool) -> None:
    opts = OPTIONS[options]
    tgt, memory = normal(*lead(opts, S), E), normal(*lead(opts, L), E)
    masks = {
        "tgt_mask": LATER, "memory_mask": hides(S, L),
        "tgt_key_padding_mask": hides(N, S), "memory_key_padding_mask": hides(N, L),
    }  # fmt: skip
    made = [home.TransformerDecoderLayer(E, HEADS, 12, 0.0, **opts) for home in (nn, torch.nn)]
    if is_stack:
        made = [
            home.TransformerDecoder(layer, 2, home.LayerNorm(E))
            for home, layer in zip((nn, torch.nn), made)
        ]
    shake(made[0], np.random.default_rng(1))
    copy_weights(*made)
    check_call(*made, [tgt, memory], masks)
    check_call(*made, [tgt, memory], {"tgt_mask": LATER < 0}, tgt_is_causal=True)


@pytest.mark.parametrize("options", OPTIONS)
def test_transformer(options: str) -> None:
    opts = OPTIONS[options]
    model, twin = twins("Transformer", E, HEADS, 1, 2, 12, 0.0, **opts)
    src, tgt = normal(*lead(opts, L), E), normal(*lead(opts, S), E)
    masks = {
        "src_mask": hides(L, L), "tgt_mask": LATER, "memory_mask": hides(S, L),
        "src_key_padding_mask": hides(N, L), "tgt_key_padding_mask": hides(N, S),
        "memory_key_padding_mask": hides(N, L),
    }  # fmt: skip
    check_call(model, twin, [src, tgt], masks)
    check_call(model, twin, [src, tgt], {})


@pytest.mark.parametrize("activation", [lambda x: x * x, lambda x: x.abs()])
def test_activation_functions(activation: Any) -> None:
    model, twin = twins("TransformerEncoderLayer", E, HEADS, 12, 0.0, activation)
    check_call(model, twin, [normal(S, N, E)], {})


def test_copies_of_a_decoder_layer_keep_a_module_as_activation() -> None:
    """As porting.md says; torch's have ReLU."""
    made = [
        home.TransformerDecoder(
            home.TransformerDecoderLayer(E, HEADS, 12, activation=home.Tanh()), 2
        )
        for home in (nn, torch.nn)
    ]
    assert all(isinstance(layer.activation, nn.Tanh) for layer in made[0].layers)
    assert all(layer.activation is torch.nn.functional.relu for layer in made[1].layers)


# ---------------------------------------------------------------------------- what is written

NAMES = ["MultiheadAttention", *(n for n in dir(torch.nn) if n.startswith("Transformer"))]


def defaults(call: Any) -> dict[str, Any]:
    found = {n: p.default for n, p in inspect.signature(call).parameters.items()}
    return {n: getattr(v, "__name__", v) for n, v in found.items()}


@pytest.mark.parametrize("name", NAMES)
def test_arguments_and_defaults(name: str) -> None:
    ours, theirs = getattr(nn, name), getattr(torch.nn, name)
    assert defaults(ours) == defaults(theirs)
    assert defaults(ours.forward) == defaults(theirs.forward)


def test_arguments_of_the_function() -> None:
    name = "multi_head_attention_forward"
    assert defaults(getattr(F, name)) == defaults(getattr(torch.nn.functional, name))


@pytest.mark.parametrize("n", [0, 1, 5])
def test_mask_of_later_rows(n: int) -> None:
    ours = nn.Transformer.generate_square_subsequent_mask(n)
    theirs = torch.nn.Transformer.generate_square_subsequent_mask(n).numpy()
    np.testing.assert_array_equal(ours, theirs)
    assert ours.dtype == theirs.dtype


def test_attributes() -> None:
    ours, theirs = (home.MultiheadAttention(E, HEADS, 0.1, kdim=6) for home in (nn, torch.nn))
    for name in ("embed_dim", "kdim", "vdim", "num_heads", "head_dim", "dropout", "batch_first"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.in_proj_weight is ours.bias_k is theirs.bias_k is None
    ours, theirs = (home.TransformerEncoderLayer(E, HEADS) for home in (nn, torch.nn))
    assert ours.norm_first == theirs.norm_first
    assert ours.activation.__name__ == theirs.activation.__name__
