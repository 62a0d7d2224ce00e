"""nn.functional against torch's stored answers, values and gradients; and the parts of losses."""

import itertools

import numpy as np
import pytest
from api import nn_cases
from api.traced import run, trace
from hotloop import _core, nn
from hotloop.errors import ConfigError, DataError, ShapeError, TraceError
from hotloop.graph.loss_parts import loss_terms
from hotloop.nn import functional as F

STORED = np.load(nn_cases.STORED)


def answer(case: str, backend: str) -> tuple[np.ndarray, np.ndarray]:
    """Value and gradient by x of a case; float64 on ref, float32 on cpu."""
    arrays = nn_cases.inputs()
    floats = "float64" if backend == "ref" else "float32"
    arrays = {k: v.astype(floats) if v.dtype.kind == "f" else v for k, v in arrays.items()}
    names = list(arrays)

    def fn(*given):
        value = eval(case, {"F": F}, dict(zip(names, given)))
        ramp = nn_cases.ramp(value.shape).astype(floats)
        return value, (value * value.trace.const(ramp)).sum()

    graph, recorder, given, (value, total) = trace(fn, *arrays.values())
    (gradient,) = graph.backward(total.id_in(recorder), [given[0].id])
    outputs = graph.output(value.id_in(recorder)), graph.output(gradient)
    plan = _core.Plan(_core.Session(_core.Device(backend)), graph)
    for i, array in enumerate(arrays.values()):
        plan.input(i, array)
    assert plan.run(1, 60.0) == ("done", 1)
    return plan.output(outputs[0]), plan.output(outputs[1])


@pytest.mark.parametrize("backend", ["ref", "cpu"])
@pytest.mark.parametrize("number", range(len(nn_cases.CASES)), ids=nn_cases.CASES.__getitem__)
def test_against_torch(number, backend):
    value, gradient = answer(nn_cases.CASES[number], backend)
    tolerance = 2e-7 if backend == "ref" else 1e-4  # torch has some constants in float32
    if backend == "ref" and nn_cases.CASES[number] in nn_cases.IMAGES:
        tolerance = 1e-10
    for got, name in ((value, "value"), (gradient, "gradient")):
        want = STORED[f"{name}{number}"]
        assert got.shape == want.shape
        scale = max(float(abs(want).max()), 1.0)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale)


def test_functions_survive_extreme_input():
    x = np.array([1e3, -1e3, np.inf, -np.inf, 0.0], np.float32)
    for name in ("elu", "selu", "softplus", "gelu", "mish", "silu", "logsigmoid", "celu"):
        graph, recorder, given, (value,) = trace(getattr(F, name), x[:2])
        with recorder:
            total = value.sum()
        (gradient,) = graph.backward(total.id_in(recorder), [given[0].id])
        number = graph.output(gradient)
        plan = _core.Plan(_core.Session(_core.Device("cpu")), graph)
        plan.input(0, x[:2])
        assert plan.run(1, 60.0) == ("done", 1)
        assert np.isfinite(plan.output(number)).all(), name


# ---------------------------------------------------------------------------- parts of losses


def parts(fn):
    return trace(fn, ("float32", (6, 4)), ("int64", (6,)))[3]


def test_mean_losses_carry_their_parts():
    (loss,) = parts(lambda x, t: F.cross_entropy(x, t))
    (term,) = loss_terms(loss)
    assert (term.total.shape, term.denominator.shape, term.weight) == ((), (), 1.0)
    (loss,) = parts(lambda x, t: F.cross_entropy(x, t) * 2 / 4)
    assert loss_terms(loss)[0].weight == 0.5
    (loss,) = parts(lambda x, t: sum([F.cross_entropy(x, t), -0.1 * F.mse_loss(x, x * 2)]))
    assert [t.weight for t in loss_terms(loss)] == [1.0, -0.1]
    (loss,) = parts(lambda x, t: F.cross_entropy(x, t) + (x * x).mean() * 0.1)
    assert [t.denominator is None for t in loss_terms(loss)] == [False, True]
    (loss,) = parts(lambda x, t: F.cross_entropy(x, t) - (x * x).mean())
    assert len(loss_terms(loss)) == 2


def test_other_operations_drop_the_parts():
    for fn in (
        lambda x, t: F.cross_entropy(x, t).exp(),
        lambda x, t: F.cross_entropy(x, t) * x.mean(),
        lambda x, t: F.cross_entropy(x, t, reduction="sum"),
        lambda x, t: 1 / F.cross_entropy(x, t),
    ):
        (loss,) = parts(fn)
        (term,) = loss_terms(loss)
        assert term == (loss, None, 1.0)


# ---------------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("fn", "error", "words"),
    [
        (lambda x, t: F.mse_loss(x, x[:, :1]), ShapeError, ("(6, 4)", "(6, 1)")),
        (lambda x, t: F.mse_loss(x[:, :1], x[:, 0]), ShapeError, ("output.squeeze(-1)",)),
        (lambda x, t: F.cross_entropy(x, t[:3]), ShapeError, ("(6,)", "(3,)")),
        (lambda x, t: F.cross_entropy(x, t.unsqueeze(1)), ShapeError, ("target.squeeze(-1)",)),
        (lambda x, t: F.cross_entropy(x, t.float()), ConfigError, (".long()",)),
        (lambda x, t: F.cross_entropy(x, t, np.ones(3)), ShapeError, ("(4,)", "(3,)")),
        (lambda x, t: F.cross_entropy(x, t, label_smoothing=2), ConfigError, ("[0, 1]",)),
        (lambda x, t: F.linear(x, np.ones((2, 5))), ShapeError, ("(6, 4)", "(2, 5)")),
        (lambda x, t: F.cross_entropy(x, np.ones(6)), ConfigError, (".astype(int)",)),
        (lambda x, t: F.embedding(x, x), TraceError, ("uint8 and bool", ".astype(int)")),
        (lambda x, t: F.embedding(x * 2, x), TraceError, (".long()",)),
        (lambda x, t: F.layer_norm(x, 5), ShapeError, ("(5,)", "(6, 4)")),
        (lambda x, t: F.batch_norm(x, None, None, np.ones(3), None, True), ShapeError, ("(3,)",)),
        (lambda x, t: F.pad(x, (1,)), ShapeError, ("pairs",)),
        (lambda x, t: F.pad(x, (4, 0), "reflect"), ShapeError, ("at most 3",)),
        (lambda x, t: F.pad(x, (1, 1), "mirror"), ConfigError, ("reflect",)),
        (lambda x, t: F.glu(x[:, :3]), ShapeError, ("even",)),
        (lambda x, t: F.gelu(x, "fast"), ConfigError, ("tanh",)),
        (lambda x, t: F.dropout(x, -0.1), ConfigError, ("[0, 1]",)),
        (lambda x, t: F.huber_loss(x, x, delta=0), ConfigError, ("above 0",)),
        (lambda x, t: F.l1_loss(x, x, reduction="avg"), ConfigError, ("'avg'",)),
        (lambda x, t: F.mse_loss(x, None), TraceError, ("None",)),
        (lambda x, t: F.prelu(x, np.ones(3)), ShapeError, ("per channel",)),
    ],
)
def test_wrong_input(fn, error, words):
    with pytest.raises(error) as caught:
        parts(fn)
    for word in words:
        assert word in str(caught.value)


# By the layer's name without its number of dims: what follows its channels, or all it takes.
ARGUMENTS = {
    "Linear": (4, 3), "LazyLinear": (3,), "LayerNorm": (4,), "RMSNorm": (4,),
    "Threshold": (0.1, 2.0), "Unflatten": (1, (2, 2)), "Softmax": (1,), "LogSoftmax": (1,),
    "Softmin": (1,), "BatchNorm": (4,), "InstanceNorm": (4,), "SyncBatchNorm": (4,),
    "FrozenBatchNorm": (4,), "GroupNorm": (2, 4), "LocalResponseNorm": (3,), "Conv": (4, 2, 3),
    "ConvTranspose": (4, 2, 3), "LazyConv": (2, 3), "LazyConvTranspose": (2, 3), "MaxPool": (2,),
    "AvgPool": (2,), "AdaptiveAvgPool": (2,), "AdaptiveMaxPool": (2,), "LPPool": (2, 2),
    "FractionalMaxPool": (2, 2), "PixelShuffle": (2,), "PixelUnshuffle": (2,),
    "ChannelShuffle": (2,), "Unfold": (2,), "Upsample": ((3, 3),), "UpsamplingNearest": (3,),
    "UpsamplingBilinear": (3,), "RNNCell": (4, 3), "GRUCell": (4, 3), "CrossMapLRN": (3,),
}  # fmt: skip
# Containers and layers of two operands or integers, which have tests of their own; Fold takes what
# Unfold gives.
OTHERS = {"Module", "Sequential", "Embedding", "Bilinear", "CosineSimilarity", "PairwiseDistance"}
OTHERS |= {
    "Container",
    "NLLLoss2d",
    "ModuleList",
    "ModuleDict",
    "ParameterList",
    "ParameterDict",
    "Fold",
}
OTHERS |= {"MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d", "LSTMCell", "RNNCellBase"}
OTHERS |= {"RNN", "LSTM", "GRU", "RNNBase"}
OTHERS |= {"AdaptiveLogSoftmaxWithLoss", "MultiheadAttention", "Transformer"}
OTHERS |= {"EmbeddingBag", "ALiBi", "KVCache", "SinusoidalPositionalEncoding"}
OTHERS |= {"RotaryPositionalEmbeddings"}
OTHERS |= {"MultiScaleDeformableAttention"}
OTHERS |= {f"Transformer{kind}" for kind in ("Encoder", "EncoderLayer", "Decoder", "DecoderLayer")}
OF_IMAGES = {"GroupNorm", "LocalResponseNorm", "SyncBatchNorm", "PixelShuffle", "PixelUnshuffle"}
OF_IMAGES |= {"ChannelShuffle", "Unfold", "Upsample"}


def test_every_layer_runs():
    from hotloop.nn.layout import resolve_lazy

    seen = 0
    for name in nn.__all__:
        cls = getattr(nn, name)
        if not isinstance(cls, type) or not issubclass(cls, nn.Module):
            continue
        if name in OTHERS or name.endswith("Loss"):
            continue
        kind, rank = name, 2 if name in OF_IMAGES else 0
        if name[-1] == "d" and name[-2].isdigit():
            kind, rank = name[:-2], int(name[-2])
        given = () if name == "Softmax2d" else ARGUMENTS.get(kind, ())
        if "Pad" in name:
            given = (1, 0.5) if name.startswith("Constant") else (1,)
        shape = ("float32", (2, 4, 6, 6, 6)[: rank + 2] if rank else (6, 4))
        net = nn.Sequential(cls(*given))
        if name.startswith("Lazy"):
            resolve_lazy(net, [shape])
        for training in (True, False):
            trace(net, shape, model=net, training=training)
        seen += 1
    assert seen > 100


def test_embedding_padding_row_gets_no_gradient(rng):
    table = rng.standard_normal((5, 3)).astype(np.float32)
    index = np.array([[1, 2], [2, 4]])
    graph, recorder, given, (value,) = trace(
        lambda w, i: F.embedding(i, w, padding_idx=2), table, index
    )
    with recorder:
        total = value.sum()
    (gradient,) = graph.backward(total.id_in(recorder), [given[0].id])
    numbers = graph.output(value.id_in(recorder)), graph.output(gradient)
    plan = _core.Plan(_core.Session(_core.Device("cpu")), graph)
    plan.input(0, table)
    plan.input(1, index)
    assert plan.run(1, 60.0) == ("done", 1)
    np.testing.assert_array_equal(plan.output(numbers[0]), table[index])
    np.testing.assert_array_equal(plan.output(numbers[1]).sum(1), [0, 3, 0, 0, 3])


def test_gumbel_softmax_hard_is_one_hot():
    from api.traced import run

    x = np.zeros((512, 4), np.float32)
    (y,) = run(lambda x: F.gumbel_softmax(x, hard=True), x)
    assert set(np.unique(np.round(y, 6))) == {0.0, 1.0}
    np.testing.assert_allclose(y.sum(1), 1, rtol=1e-6)
    assert abs(y.mean(0) - 0.25).max() < 0.08


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("training", [True, False])
def test_norms_of_16_bits_give_16_bits(rng, dtype, training):
    """As torch's: float32 inside, with float32 parameters, and one rounding at the end."""
    x = rng.normal(3, 2, (40, 6)).astype(np.float32)
    w, b = (rng.normal(1, 1, 6).astype(np.float32) for _ in range(2))

    def norms(x, w, b):
        narrow = x.to(dtype)
        running = (None, None) if training else (w * 0 + 3, w * 0 + 4)
        made = []
        for given in (narrow, narrow.float()):
            made += [
                F.batch_norm(given, *running, w, b, training=training),
                F.layer_norm(given, (6,), w, b),
                F.layer_norm(given, (6,)),
            ]
        assert [str(value.dtype) for value in made] == 3 * [dtype] + 3 * ["float32"]
        return [value.to(dtype).float() for value in made]

    got = run(norms, x, w, b, training=training)
    for narrow, wide in zip(got[:3], got[3:]):
        np.testing.assert_array_equal(narrow, wide)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("celu", (0.5,)), ("elu", (0.5,)), ("hardtanh", (-0.5, 0.25)), ("leaky_relu", (0.2,)),
        ("relu", ()), ("rrelu", (0.1, 0.3)), ("selu", ()), ("threshold", (0.25, 2.0)),
    ],
)  # fmt: skip
def test_in_place(rng, name, given):
    """In forward the function's result; an array is changed; who uses the argument is told."""
    x = rng.standard_normal((4, 3)).astype(np.float32)
    function, in_place = getattr(F, name), getattr(F, f"{name}_")
    want = function(x, *given)
    (value,) = run(lambda x: in_place(x, *given) + 0.0, x)
    np.testing.assert_array_equal(value, want)
    array = x.copy()
    assert in_place(array, *given) is array
    np.testing.assert_array_equal(array, want)
    with pytest.raises(TraceError, match=rf"x = F\.{name}_\(x\)"):
        run(lambda x: (in_place(x, *given), x + 1.0)[1], x)
    for wrong in ([1.0, -1.0], np.arange(3), nn.Linear(3, 3).weight.numpy()):
        with pytest.raises(ConfigError, match="to write to"):
            in_place(wrong, *given)


A, B = (5, 4), (4, 6)
GROUPED = {
    "both": ((3, *A), (3, *B), None),
    "rows": ((9, 4), (3, *B), (2, 2, 7)),
    "columns": ((3, *A), (4, 8), (3, 4, 8)),
    "inner": (A, B, (1, 3, 3)),
}


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_mm(rng, name):
    """By slices; offsets of a step give what offsets that are known do."""
    a, b, offs = GROUPED[name]
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in (a, b))
    if offs is None:
        np.testing.assert_allclose(F.grouped_mm(x, y), x @ y, rtol=1e-5, atol=1e-6)
        return
    spans = list(itertools.pairwise((0, *offs)))
    if name == "rows":
        parts = [x[i:j] @ y[g] for g, (i, j) in enumerate(spans)]
        want = np.concatenate([*parts, np.zeros((9 - offs[-1], 6))])
    elif name == "columns":
        want = np.concatenate([x[g] @ y[:, i:j] for g, (i, j) in enumerate(spans)], 1)
    else:
        want = np.stack([x[:, i:j] @ y[i:j] for i, j in spans])
    ends = np.array(offs, np.int32)
    known = F.grouped_mm(x, y, offs=ends, bias=np.float32(1.0))
    (traced,) = run(lambda x, y, o: F.grouped_mm(x, y, offs=o, bias=1.0), x, y, ends)
    np.testing.assert_allclose(known, want + 1.0, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(traced, want + 1.0, rtol=1e-5, atol=1e-6)
    assert F.grouped_mm(x, y, offs=ends, out_dtype="float16").dtype == np.float16


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda a, b: F.grouped_mm(a, b), ConfigError, "offs go with"),
        (lambda a, b: F.grouped_mm(a, b.T, offs=[1]), ShapeError, "must be"),
        (lambda a, b: F.grouped_mm(a, b, offs=[3, 1]), DataError, "must rise"),
        (lambda a, b: F.grouped_mm(a, b, offs=[3, 5]), DataError, "at most 4"),
        (lambda a, b: F.grouped_mm(a, b, offs=[[1]]), ShapeError, "offs must have shape"),
        (lambda a, b: F.grouped_mm(a, b, offs=[0.5]), ConfigError, "must be integers"),
    ],
)
def test_wrong_groups(call, error, words):
    with pytest.raises(error, match=words):
        call(np.ones((5, 4), np.float32), np.ones((4, 6), np.float32))


def test_ignore_index_beside_probabilities():
    """As in torch, where a number below 0 is none."""
    x, shares = np.ones((3, 4), np.float32), np.full((3, 4), 0.25, np.float32)
    for call in (
        lambda: F.cross_entropy(x, shares, ignore_index=1),
        lambda: nn.CrossEntropyLoss(ignore_index=0)(x, shares),
    ):
        with pytest.raises(ConfigError, match=r"ignore_index goes with class numbers, .*got ign"):
            call()
    np.testing.assert_allclose(F.cross_entropy(x, shares, ignore_index=-1), np.log(4), rtol=1e-6)
