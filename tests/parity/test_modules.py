"""Every module of hotloop.nn against torch.nn: values, all gradients, state, initial values."""

from typing import Any

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

import hotloop as hl  # noqa: E402
from hotloop import nn  # noqa: E402
from parity import image_cases  # noqa: E402
from parity.twins import check_twins, copy_weights, shake  # noqa: E402


def floats(*shape: int) -> Any:
    """Of both signs, no two nearer than 0.02, none near the kinks at multiples of 0.5."""

    def fill(rng: np.random.Generator) -> np.ndarray:
        n = int(np.prod(shape))
        return rng.permutation((np.arange(n) - n // 2) * 0.025 + 0.0125).reshape(shape)

    return fill


def ids(n: int, *shape: int) -> Any:
    return lambda rng: rng.integers(0, n, shape)


def bags(*first: int) -> Any:
    return lambda rng: np.array(first)


X = floats(7, 5)
Q, KV = floats(5, 2, 8), floats(4, 2, 8)  # (L, N, E) and (S, N, E)
# expression in both nn: inputs
PLAIN = {
    "Linear(5, 3)": (X,),
    "Linear(5, 3, bias=False)": (X,),
    "Linear(5, 3) 3d": (floats(2, 7, 5),),
    "Linear(5, 3) vector": (floats(5),),
    "LazyLinear(4)": (X,),
    "Bilinear(5, 4, 3)": (X, floats(7, 4)),
    "Bilinear(5, 4, 3, bias=False)": (X, floats(7, 4)),
    "RNNCell(5, 4)": (X, floats(7, 4)),
    "RNNCell(5, 4) zeros": (X,),
    "RNNCell(5, 4) vector": (floats(5), floats(4)),
    "RNNCell(5, 4, nonlinearity='relu')": (X, floats(7, 4)),
    "GRUCell(5, 4)": (X, floats(7, 4)),
    "GRUCell(5, 4, bias=False)": (X, floats(7, 4)),
    "GRUCell(5, 4) zeros": (floats(5),),
    "Embedding(9, 4)": (ids(9, 7, 3),),
    "Embedding(9, 4, padding_idx=2)": (ids(9, 7, 3),),
    "Embedding(9, 4, scale_grad_by_freq=True)": (ids(9, 7, 3),),
    "EmbeddingBag(9, 4)": (ids(9, 7, 3),),
    "EmbeddingBag(9, 4, mode='max')": (ids(9, 7, 3),),
    "EmbeddingBag(9, 4, padding_idx=2)": (ids(9, 7, 3),),
    "EmbeddingBag(9, 4, mode='max', padding_idx=2)": (ids(9, 7, 3),),
    **{
        f"EmbeddingBag(9, 4, mode='{mode}', {rest}) offsets": (ids(9, 12), bags(*offsets))
        for mode in ("mean", "sum", "max")
        for rest, offsets in (
            ("padding_idx=2", (0, 0, 5, 5, 9, 12)), ("include_last_offset=True", (0, 0, 5, 9, 12)),
        )
    },
    "LayerNorm(5)": (X,),
    "LayerNorm((3, 5), eps=1e-2)": (floats(2, 3, 5),),
    "LayerNorm(5, elementwise_affine=False)": (X,),
    "LayerNorm(5, bias=False)": (X,),
    "RMSNorm(5)": (X,),
    "RMSNorm(5, eps=1e-2)": (X,),
    "RMSNorm(5, elementwise_affine=False)": (X,),
    "BatchNorm1d(5)": (X,),
    "BatchNorm1d(5) 3d": (floats(4, 5, 3),),
    "BatchNorm1d(5, eps=1e-2, momentum=0.3)": (X,),
    "BatchNorm1d(5, momentum=None)": (X,),
    "BatchNorm1d(5, affine=False)": (X,),
    "BatchNorm1d(5, track_running_stats=False)": (X,),
    "Flatten()": (floats(2, 3, 4),),
    "Flatten(0, 1)": (floats(2, 3, 4),),
    "Unflatten(1, (2, 3))": (floats(4, 6),),
    "Identity(54, unused=1)": (X,),
    "CosineSimilarity()": (X, floats(7, 5)),
    "CosineSimilarity(dim=0, eps=1e-3)": (X, floats(7, 5)),
    "PairwiseDistance()": (X, floats(7, 5)),
    "PairwiseDistance(p=1.0, keepdim=True)": (X, floats(7, 5)),
    "PairwiseDistance(p=3.0, eps=1e-3)": (X, floats(7, 5)),
    "Dropout(0.0)": (X,),
    "Dropout1d(0.0)": (floats(2, 3, 4),),
    "AlphaDropout(0.0)": (X,),
    "Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))": (X,),
    "PReLU()": (X,),
    "PReLU(5, init=0.1)": (X,),
    "PReLU(3)": (floats(2, 3, 4),),
    "GLU()": (floats(4, 6),),
    "GLU(0)": (floats(4, 6),),
    "Softmax2d()": (floats(2, 3, 4, 5),),
    "MultiheadAttention(8, 2)": (Q, KV, KV),
    "MultiheadAttention(8, 4, bias=False, batch_first=True)": (floats(2, 5, 8),) * 3,
    "MultiheadAttention(8, 1, add_bias_kv=True, add_zero_attn=True)": (Q, KV, KV),
    "MultiheadAttention(8, 2, kdim=6, vdim=3)": (Q, floats(4, 2, 6), floats(4, 2, 3)),
    "MultiheadAttention(8, 2, bias=False, add_bias_kv=True, kdim=6)": (Q, floats(4, 2, 6), KV),
    "TransformerEncoderLayer(8, 2, 12, 0.0)": (Q,),
    "TransformerEncoderLayer(8, 2, 12, 0.0, 'gelu', 1e-3, True, True, False)": (Q,),
    "TransformerEncoderLayer(8, 2, 12, 0.0, activation=nn.SiLU())": (floats(5, 8),),
    "TransformerDecoderLayer(8, 2, 12, 0.0)": (Q, KV),
    "TransformerDecoderLayer(8, 2, 12, 0.0, 'gelu', 1e-3, True, True, False)": (
        floats(2, 5, 8), floats(2, 4, 8),
    ),
    "TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, 0.0), 2, nn.LayerNorm(8))": (Q,),
    "TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 12, 0.0), 2)": (Q, KV),
    "RNN(8, 5)": (Q,),
    "RNN(8, 5, 2, 'relu', False, True, 0.0, True)": (Q, floats(4, 5, 5)),
    "LSTM(8, 5, 2, dropout=0.0, bidirectional=True)": (Q,),
    "LSTM(8, 5, 2, False, True, proj_size=3)": (Q,),
    "LSTM(8, 5) of one sequence": (floats(5, 8),),
    "GRU(8, 5, 2, batch_first=True, bidirectional=True)": (Q, floats(4, 5, 5)),
    "GRU(8, 5, bias=False) of one sequence": (floats(5, 8), floats(1, 5)),
    "Transformer(8, 2, 1, 2, 12, 0.0)": (KV, Q),
    "Transformer(8, 2, 2, 1, 12, 0.0, 'gelu', norm_first=True, bias=False)": (KV, Q),
}  # fmt: skip
ACTIVATIONS = [
    "CELU()",
    "CELU(0.5)",
    "ELU()",
    "ELU(0.3)",
    "GELU()",
    "GELU('tanh')",
    "Hardshrink()",
    "Hardshrink(0.3)",
    "Hardsigmoid()",
    "Hardswish()",
    "Hardtanh()",
    "Hardtanh(-0.5,1.5)",
    "LeakyReLU()",
    "LeakyReLU(0.3)",
    "LogSigmoid()",
    "LogSoftmax(1)",
    "LogSoftmax(0)",
    "Mish()",
    "ReLU()",
    "ReLU6()",
    "SELU()",
    "SiLU()",
    "Sigmoid()",
    "Softmax(1)",
    "Softmax(0)",
    "Softmin(1)",
    "Softplus()",
    "Softplus(2.0,0.3)",
    "Softshrink()",
    "Softshrink(0.2)",
    "Softsign()",
    "Tanh()",
    "Tanhshrink()",
    "Threshold(0.1,20.0)",
    "RReLU()",
]
for _name in ACTIVATIONS:
    PLAIN[_name] = (floats(7, 9),)
for _kind in ("Constant", "Zero", "Reflection", "Replication", "Circular"):
    for _rank in (1, 2, 3):
        _pad = str((1, 2, 2, 1, 1, 0)[: 2 * _rank])
        _extra = ", 1.5" if _kind == "Constant" else ""
        PLAIN[f"{_kind}Pad{_rank}d({_pad}{_extra})"] = (floats(2, *(3, 4, 5, 6)[: _rank + 1]),)
        PLAIN[f"{_kind}Pad{_rank}d(1{_extra})"] = (floats(2, *(3, 4, 5, 6)[: _rank + 1]),)
for _name, _shape in image_cases.CASES.items():
    PLAIN[_name] = (floats(*_shape),)


# Where torch in float64 is not the same formula: RMSNorm's default eps is the dtype's (2**-52 where
# hotloop's parameters, float32, say 2**-23), Hardsigmoid's backward multiplies by 1.0f / 6.0f.
ROUGH = {
    "RMSNorm(5)": 1e-4,
    "RMSNorm(5, elementwise_affine=False)": 1e-4,
    "Hardsigmoid()": 1e-7,
}


def make(expression: str, home: Any) -> Any:
    """The module of an expression; what follows the closing bracket only names the case."""
    return eval(expression[: expression.rindex(")") + 1], {"nn": home, **vars(home)})


def both(expression: str, inputs: Any, seed: int = 0) -> tuple[nn.Module, Any]:
    """hotloop's module with shaken weights, and torch's with the same ones."""
    model, twin = make(expression, nn), make(expression, torch.nn)
    if expression.startswith("Lazy"):
        model(inputs[0].astype(np.float32))
        twin(torch.from_numpy(inputs[0]).float())
    shake(model, np.random.default_rng(seed))
    copy_weights(model, twin)
    return model, twin


# RReLU is random in training: tests/ops holds its stream.
@pytest.mark.parametrize(
    ("expression", "training"),
    [(e, t) for e in PLAIN for t in (False, True) if not (t and e.startswith("RReLU"))],
)
def test_module(expression: str, training: bool) -> None:
    inputs = [fill(np.random.default_rng(i)) for i, fill in enumerate(PLAIN[expression])]
    model, twin = both(expression, inputs)
    check_twins(
        model, model, twin, twin, inputs, training=training, rtol=ROUGH.get(expression, 1e-10)
    )


@pytest.mark.parametrize("expression", PLAIN)
def test_state_dict_both_ways(expression: str) -> None:
    inputs = [fill(np.random.default_rng(i)) for i, fill in enumerate(PLAIN[expression])]
    model, twin = both(expression, inputs)
    ours, theirs = model.state_dict(), twin.float().state_dict()
    assert list(ours) == list(theirs)
    for name in ours:
        assert ours[name].shape == tuple(theirs[name].shape), name
        assert str(ours[name].dtype) == str(theirs[name].dtype).removeprefix("torch."), name
    for value in theirs.values():
        if value.is_floating_point():
            value.mul_(0.5)
    model.load_state_dict({k: v.numpy() for k, v in theirs.items()})
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, theirs[name].numpy(), name)
    model.load_state_dict(theirs)


def test_every_module_is_here() -> None:
    """What torch.nn also has; containers and losses have tests of their own, as in test_images.py
    what an expression does not say."""
    apart = (
        "ALiBi",
        "DropPath",
        "KVCache",
        "RotaryPositionalEmbeddings",
        "SinusoidalPositionalEncoding",
        "FractionalMaxPool2d",
        "FractionalMaxPool3d",
        "FrozenBatchNorm2d",
        "AdaptiveLogSoftmaxWithLoss",
        "LSTMCell",
        "RNNBase",
        "RNNCellBase",
        "MaxUnpool1d",
        "MaxUnpool2d",
        "MaxUnpool3d",
        "MultiScaleDeformableAttention",
        "Container",
        "LinearCrossEntropyOptions",
        "NLLLoss2d",
        "UninitializedBuffer",
        "UninitializedParameter",
        "Module",
        "ModuleList",
        "ModuleDict",
        "ParameterList",
        "ParameterDict",
        "Parameter",
        "Buffer",
    )
    named = {e.split("(")[0] for e in PLAIN}
    missing = [
        name
        for name in nn.__all__
        if isinstance(getattr(nn, name), type) and not name.endswith("Loss") and name not in apart
    ]
    assert set(missing) <= named, set(missing) - named


# ---------------------------------------------------------------------------- initial values

LAYERS = [
    "Linear(300, 200)",
    "Linear(20, 500)",
    "Bilinear(30, 20, 50)",
    "RNNCell(40, 200)",
    "GRUCell(40, 100)",
    "LSTMCell(40, 100, bias=False)",
    "LSTM(40, 80, 2, bidirectional=True, proj_size=30)",
    "GRU(40, 100)",
    "RNN(40, 100, bias=False)",
    "Embedding(500, 64)",
    "Embedding(500, 64, padding_idx=3)",
    "BatchNorm1d(64)",
    "LayerNorm(64)",
    "RMSNorm(64)",
    "PReLU(64)",
    "Conv1d(30, 20, 5)",
    "Conv2d(20, 30, 3, groups=5)",
    "Conv3d(8, 10, 3)",
    "ConvTranspose1d(30, 20, 5)",
    "ConvTranspose2d(20, 30, 3, groups=5)",
    "ConvTranspose3d(8, 10, 3)",
    "GroupNorm(4, 64)",
    "MultiheadAttention(64, 4, add_bias_kv=True)",
    "MultiheadAttention(64, 4, bias=False, kdim=32, vdim=48)",
    "TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64), 2)",
    "TransformerDecoderLayer(32, 4, 64)",
    "Transformer(32, 4, 1, 2, 64)",
]


def check_same_distribution(a: np.ndarray, b: np.ndarray, what: str) -> None:
    """Kolmogorov and Smirnov's distance below its 1e-6 quantile; constants exactly."""
    assert a.shape == b.shape, what
    a, b = np.sort(a.ravel()), np.sort(b.ravel())
    if np.ptp(b) == 0:
        np.testing.assert_array_equal(a, b, what)
        return
    every = np.concatenate([a, b])
    gap = np.abs(
        np.searchsorted(a, every, "right") / a.size - np.searchsorted(b, every, "right") / b.size
    ).max()
    assert gap < 2.7 * np.sqrt((a.size + b.size) / (a.size * b.size)), f"{what}: distance {gap:.3f}"


@pytest.mark.parametrize("expression", LAYERS)
def test_initial_values(expression: str) -> None:
    torch.manual_seed(0)
    model, twin = make(expression, nn), make(expression, torch.nn)
    for name, value in model.state_dict().items():
        check_same_distribution(value, twin.state_dict()[name].numpy(), f"{expression}.{name}")


SCHEMES: list[tuple[str, dict[str, Any]]] = [
    ("uniform_", {"a": -0.3, "b": 0.7}),
    ("normal_", {"mean": 0.5, "std": 2.0}),
    ("trunc_normal_", {}),
    ("trunc_normal_", {"mean": 1.0, "std": 2.0, "a": 0.0, "b": 1.5}),
    ("constant_", {"val": 0.3}),
    ("ones_", {}),
    ("zeros_", {}),
    ("eye_", {}),
    ("xavier_uniform_", {}),
    ("xavier_uniform_", {"gain": 2.0}),
    ("xavier_normal_", {"gain": 0.5}),
    ("kaiming_uniform_", {}),
    ("kaiming_uniform_", {"a": 0.3, "mode": "fan_out"}),
    ("kaiming_normal_", {"nonlinearity": "relu"}),
    ("kaiming_normal_", {"nonlinearity": "tanh", "mode": "fan_out"}),
    ("sparse_", {"sparsity": 0.3}),
]


@pytest.mark.parametrize(("scheme", "options"), SCHEMES, ids=str)
def test_schemes(scheme: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, twin = nn.Linear(120, 150, bias=False), torch.nn.Linear(120, 150, bias=False)
    getattr(nn.init, scheme)(model.weight, **options)
    getattr(torch.nn.init, scheme)(twin.weight, **options)
    got, want = model.state_dict()["weight"], twin.weight.detach().numpy()
    check_same_distribution(got, want, scheme)
    if scheme == "sparse_":
        np.testing.assert_array_equal((got == 0).sum(0), (want == 0).sum(0))


@pytest.mark.parametrize("shape", [(60, 40), (40, 60), (50, 50)], ids=str)
def test_orthogonal(shape: tuple[int, int]) -> None:
    model = nn.Linear(shape[1], shape[0], bias=False)
    nn.init.orthogonal_(model.weight, gain=1.5)
    w = model.state_dict()["weight"].astype(np.float64)
    small = w @ w.T if shape[0] <= shape[1] else w.T @ w
    np.testing.assert_allclose(small, 2.25 * np.eye(min(shape)), atol=1e-5)


@pytest.mark.parametrize("name", ["linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu"])
def test_gain(name: str) -> None:
    assert nn.init.calculate_gain(name) == pytest.approx(torch.nn.init.calculate_gain(name))


def test_functions_of_torch_run_on_the_same_text() -> None:
    """A forward in torch's words gives the same numbers under both imports."""
    text = (
        "lib.cat([x.relu() * 2, lib.tanh(x)], 1).sum(1, keepdim=True)"
        " + lib.where(x > 0, x, x.abs().sqrt()).mean(1, keepdim=True)"
        " - x.softmax(-1).log().amax(1, keepdim=True)"
        " + lib.einsum('ij,kj->ik', x, x)[:, :1] + x.t().unsqueeze(0).squeeze(0).t()[:, 1:2]"
        " + lib.stack([x, x * x], 0).permute(1, 0, 2).reshape(x.shape[0], -1).var(1, keepdim=True)"
    )

    def with_lib(lib: Any) -> Any:
        return lambda x: eval(text, {"lib": lib, "x": x})

    inputs = [floats(7, 5)(np.random.default_rng(0))]
    check_twins(with_lib(hl), None, with_lib(torch), None, inputs)
