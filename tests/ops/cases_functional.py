"""Cases of hotloop.nn.functional: compositions, held against their formulas in NumPy.

A rule for each composition would be longer than the composition; S is the largest output, and K
counts the longest sum and some dozens of roundings.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from hotloop import nn
from hotloop.graph.trace import Trace
from ops.cases_norm import batch_norm, layer_norm
from ops.cases_pointwise import gelu, safe_erf, sigmoid
from ops.cases_reduce import log_softmax, softmax
from ops.fills import apart, bits, given, ints, normal, uniform, whole
from ops.harness import Array, Case, Fill, of_largest

F = nn.functional


def traced(function: Callable[..., Any]) -> Callable[..., list[int]]:
    """``build`` of a case: the function on tensors of a trace over the case's graph."""

    def build(graph: Any, ids: list[int]) -> list[int]:
        trace = Trace(graph)
        with trace:
            made = function(*(trace.wrap(i) for i in ids))
            return [made.id_in(trace)]

    return build


def case(
    name: str,
    inputs: tuple[Fill, ...],
    function: Callable[..., Any],
    expect: Callable[..., Any],
    grad: tuple[int, ...] = (0,),
    roundings: int = 200,
) -> Case:
    """A composition, its formula, and what to differentiate by."""
    op, _, rest = name.partition(" ")
    return Case(
        f"F.{op}",
        rest.replace(" ", "-") or "default",
        inputs,
        expect,
        of_largest(roundings),
        grad=grad,
        build=traced(function),
        unfused_bits=False,
    )


# ---------------------------------------------------------------------------- activations


def expm1(x: Array) -> Array:
    return np.expm1(np.minimum(x, 0))


def softplus(x: Array) -> Array:
    return np.logaddexp(x, 0)


ALPHA, SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
# name: function, NumPy. Kinks lie at multiples of 0.5; the fill keeps 0.011 from them.
ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (F.relu, lambda x: np.maximum(x, 0)),
    "relu6": (F.relu6, lambda x: np.clip(x, 0, 6)),
    "leaky_relu": (F.leaky_relu, lambda x: np.where(x > 0, x, 0.01 * x)),
    "leaky_relu slope": (lambda x: F.leaky_relu(x, 0.3), lambda x: np.where(x > 0, x, 0.3 * x)),
    "elu": (F.elu, lambda x: np.where(x > 0, x, expm1(x))),
    "elu alpha": (lambda x: F.elu(x, 0.7), lambda x: np.where(x > 0, x, 0.7 * expm1(x))),
    "celu": (lambda x: F.celu(x, 2.0), lambda x: np.where(x > 0, x, 2 * expm1(x / 2))),
    "selu": (F.selu, lambda x: SCALE * np.where(x > 0, x, ALPHA * expm1(x))),
    "gelu": (F.gelu, lambda x: x * 0.5 * (1 + safe_erf(x / math.sqrt(2)))),
    "gelu tanh": (
        lambda x: F.gelu(x, "tanh"),
        gelu,
    ),
    "silu": (F.silu, lambda x: x * sigmoid(x)),
    "mish": (F.mish, lambda x: x * np.tanh(softplus(x))),
    "softplus": (F.softplus, softplus),
    "softplus beta": (lambda x: F.softplus(x, 2.0), lambda x: softplus(2 * x) / 2),
    "softplus threshold": (
        lambda x: F.softplus(x, 1.0, 0.75),
        lambda x: np.where(x > 0.75, x, softplus(x)),
    ),
    "logsigmoid": (F.logsigmoid, lambda x: -softplus(-x)),
    "softsign": (F.softsign, lambda x: x / (1 + np.abs(x))),
    "tanhshrink": (F.tanhshrink, lambda x: x - np.tanh(x)),
    "hardtanh": (F.hardtanh, lambda x: np.clip(x, -1, 1)),
    "hardtanh limits": (lambda x: F.hardtanh(x, -0.5, 2.0), lambda x: np.clip(x, -0.5, 2)),
    "hardsigmoid": (F.hardsigmoid, lambda x: np.clip(x + 3, 0, 6) / 6),
    "hardswish": (F.hardswish, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "softshrink": (F.softshrink, lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0)),
    "hardshrink": (F.hardshrink, lambda x: np.where(np.abs(x) > 0.5, x, 0)),
    "threshold": (lambda x: F.threshold(x, 0.5, -7.0), lambda x: np.where(x > 0.5, x, -7)),
    "sigmoid": (F.sigmoid, sigmoid),
    "tanh": (F.tanh, np.tanh),
    "rrelu": (F.rrelu, lambda x: np.where(x > 0, x, x * (1 / 8 + 1 / 3) / 2)),
}


def activations() -> Iterator[Case]:
    for name, (function, expect) in ACTIVATIONS.items():
        fill = apart(9, 33, gap=0.025, offset=0.0125)
        yield case(name, (fill,), function, expect)
        far = given([-1e4, -100.0, -50.0, -20.0, 0.0, 20.0, 50.0, 100.0, 1e4])
        yield case(f"{name} extremes", (far,), function, expect, grad=())
    x = apart(6, 5, 3)
    yield case(
        "prelu one",
        (x, uniform(0.1, 0.4, 1)),
        F.prelu,
        lambda x, w: np.where(x > 0, x, w * x),
        (0, 1),
    )
    yield case(
        "prelu channels",
        (x, uniform(0.1, 0.4, 5)),
        F.prelu,
        lambda x, w: np.where(x > 0, x, w[:, None] * x),
        (0, 1),
    )
    for shape in ((9, 24), (2, 5, 24)):
        # Between two products, where a device's products may end by it and by its gradient.
        yield case(
            f"gelu layers {len(shape)}",
            (normal(*shape), normal(16, 24), normal(16), normal(8, 16)),
            lambda x, w, b, v: F.linear(F.gelu(F.linear(x, w, b), "tanh"), v),
            lambda x, w, b, v: gelu(x @ w.T + b) @ v.T,
            (0, 1, 2, 3),
        )
    yield case(
        "glu",
        (normal(5, 8),),
        F.glu,
        lambda x: x[:, :4] * sigmoid(x[:, 4:]),
    )
    yield case(
        "glu first",
        (normal(6, 5),),
        lambda x: F.glu(x, 0),
        lambda x: x[:3] * sigmoid(x[3:]),
    )
    for name, f, g in (
        ("softmax", F.softmax, softmax),
        ("log_softmax", F.log_softmax, log_softmax),
    ):
        for dim in (0, 1, -1):

            def along(x: Array, d: int = dim, g: Any = g) -> Array:
                return np.moveaxis(g(np.moveaxis(x, d, -1)), -1, d)

            yield case(
                f"{name} dim {dim}", (normal(4, 5, 3),), lambda x, d=dim, f=f: f(x, d), along
            )
    yield case("softmin", (normal(4, 5),), lambda x: F.softmin(x, 1), lambda x: softmax(-x))


# ---------------------------------------------------------------------------- losses


def reduced(per: Callable[..., Array], reduction: str) -> Callable[..., Array]:
    """A loss per element as none, mean or sum."""

    def f(*inputs: Array) -> Array:
        values = np.asarray(per(*inputs))
        return {"none": lambda: values, "mean": values.mean, "sum": values.sum}[reduction]()

    return f


def bce_logits(x: Array, y: Array, w: Any = 1.0, p: Any = 1.0) -> Array:
    return ((1 - y) * x + (1 + (p - 1) * y) * softplus(-x)) * w


def huber(d: float) -> Callable[..., Array]:
    def f(x: Array, y: Array) -> Array:
        a = np.abs(x - y)
        return np.where(a < d, a * a / 2, d * (a - d / 2))

    return f


def smooth(b: float) -> Callable[..., Array]:
    return lambda x, y: huber(b)(x, y) / b


def signs(*shape: int) -> Fill:
    return lambda rng: np.where(rng.random(shape) < 0.5, 1.0, -1.0)


def norm_of(d: Array, p: float) -> Array:
    return (np.abs(d) ** p).sum(-1) ** (1 / p)


def cosine(a: Array, b: Array, tiny: float = 0.0) -> Array:
    return (a * b).sum(-1) / np.sqrt(((a * a).sum(-1) + tiny) * ((b * b).sum(-1) + tiny))


X, Y = apart(7, 5, gap=0.05), uniform(-0.004, 0.004, 7, 5)
PAIR = (X, Y)
# name: inputs, function(*inputs, reduction=), loss per element, gradient inputs
LOSSES: dict[
    str, tuple[tuple[Fill, ...], Callable[..., Any], Callable[..., Array], tuple[int, ...]]
]
LOSSES = {
    "mse_loss": (PAIR, F.mse_loss, lambda x, y: (x - y) ** 2, (0, 1)),
    "l1_loss": (PAIR, F.l1_loss, lambda x, y: np.abs(x - y), (0, 1)),
    "huber_loss": (PAIR, F.huber_loss, huber(1.0), (0, 1)),
    "huber_loss delta": (
        PAIR,
        lambda x, y, **k: F.huber_loss(x, y, delta=0.3, **k),
        huber(0.3),
        (0,),
    ),
    "smooth_l1_loss": (PAIR, F.smooth_l1_loss, smooth(1.0), (0, 1)),
    "smooth_l1_loss beta": (
        PAIR,
        lambda x, y, **k: F.smooth_l1_loss(x, y, beta=0.3, **k),
        smooth(0.3),
        (0,),
    ),
    "smooth_l1_loss zero": (
        PAIR,
        lambda x, y, **k: F.smooth_l1_loss(x, y, beta=0.0, **k),
        lambda x, y: np.abs(x - y),
        (0,),
    ),
    "binary_cross_entropy": (
        (uniform(0.05, 0.95, 7, 5), uniform(0, 1, 7, 5)),
        F.binary_cross_entropy,
        lambda x, y: -(y * np.log(x) + (1 - y) * np.log(1 - x)),
        (),
    ),
    "binary_cross_entropy_with_logits": (
        (normal(7, 5), uniform(0, 1, 7, 5)),
        F.binary_cross_entropy_with_logits,
        bce_logits,
        (0, 1),
    ),
    "binary_cross_entropy_with_logits weights": (
        (normal(7, 5), uniform(0, 1, 7, 5), uniform(0.5, 2, 7, 1), uniform(0.5, 2, 5)),
        lambda x, y, w, p, **k: F.binary_cross_entropy_with_logits(x, y, w, pos_weight=p, **k),
        bce_logits,
        (0,),
    ),
    "soft_margin_loss": (
        (normal(7, 5), signs(7, 5)),
        F.soft_margin_loss,
        lambda x, y: softplus(-y * x),
        (0,),
    ),
    "multilabel_soft_margin_loss": (
        (normal(7, 5), whole(0, 1, 7, 5)),
        F.multilabel_soft_margin_loss,
        lambda x, y: bce_logits(x, y).mean(-1),
        (0,),
    ),
    "kl_div": (
        (normal(7, 5), uniform(0.05, 1, 7, 5)),
        F.kl_div,
        lambda x, y: y * (np.log(y) - x),
        (0, 1),
    ),
    "kl_div log_target": (
        (normal(7, 5), normal(7, 5)),
        lambda x, y, **k: F.kl_div(x, y, log_target=True, **k),
        lambda x, y: np.exp(y) * (y - x),
        (0, 1),
    ),
    "hinge_embedding_loss": (
        (apart(7, 5, gap=0.05), signs(7, 5)),
        F.hinge_embedding_loss,
        lambda x, y: np.where(y == 1, x, np.maximum(0, 1 - x)),
        (0,),
    ),
    "margin_ranking_loss": (
        (apart(35, gap=0.1), uniform(-0.02, 0.02, 35), signs(35)),
        lambda a, b, y, **k: F.margin_ranking_loss(a, b, y, margin=0.05, **k),
        lambda a, b, y: np.maximum(0, -y * (a - b) + 0.05),
        (0, 1),
    ),
    "cosine_embedding_loss": (
        (normal(7, 5), normal(7, 5), signs(7)),
        F.cosine_embedding_loss,
        lambda a, b, y: np.where(
            y == 1, 1 - cosine(a, b, 1e-12), np.maximum(0, cosine(a, b, 1e-12))
        ),
        (0, 1),
    ),
    "triplet_margin_loss": (
        (normal(7, 5), normal(7, 5), normal(7, 5)),
        F.triplet_margin_loss,
        lambda a, b, c: np.maximum(0, norm_of(a - b + 1e-6, 2) - norm_of(a - c + 1e-6, 2) + 1),
        (0, 1, 2),
    ),
    "triplet_margin_loss swap": (
        (normal(7, 5), normal(7, 5), normal(7, 5)),
        lambda a, b, c, **k: F.triplet_margin_loss(a, b, c, swap=True, p=3.0, **k),
        lambda a, b, c: np.maximum(
            0,
            norm_of(a - b + 1e-6, 3)
            - np.minimum(norm_of(a - c + 1e-6, 3), norm_of(b - c + 1e-6, 3))
            + 1,
        ),
        (0, 1, 2),
    ),
    "poisson_nll_loss": (
        (normal(7, 5), whole(0, 6, 7, 5)),
        F.poisson_nll_loss,
        lambda x, y: np.exp(x) - y * x,
        (0,),
    ),
    "poisson_nll_loss rate": (
        (uniform(0.1, 3, 7, 5), whole(0, 6, 7, 5)),
        lambda x, y, **k: F.poisson_nll_loss(x, y, log_input=False, **k),
        lambda x, y: x - y * np.log(x + 1e-8),
        (0,),
    ),
    "gaussian_nll_loss": (
        (normal(7, 5), normal(7, 5), uniform(0.2, 2, 7, 5)),
        F.gaussian_nll_loss,
        lambda x, y, v: (np.log(v) + (x - y) ** 2 / v) / 2,
        (0, 1, 2),
    ),
    "gaussian_nll_loss full": (
        (normal(7, 5), normal(7, 5), uniform(0.2, 2, 7, 1)),
        lambda x, y, v, **k: F.gaussian_nll_loss(x, y, v, full=True, **k),
        lambda x, y, v: (np.log(v) + (x - y) ** 2 / v + math.log(2 * math.pi)) / 2,
        (0, 1, 2),
    ),
}


def multi_margin(p: int) -> Callable[..., Array]:
    def f(x: Array, y: Array) -> Array:
        rows = np.arange(len(x))
        gap = np.maximum(0, 1 - x[rows, y][:, None] + x) ** p
        gap[rows, y] = 0
        return gap.sum(1) / x.shape[1]

    return f


def multilabel_margin(x: Array, y: Array) -> Array:
    out = np.zeros(len(x))
    for i, row in enumerate(y):
        labels = [int(k) for k in (row[: np.argmax(row < 0)] if (row < 0).any() else row)]
        others = [k for k in range(x.shape[1]) if k not in labels]
        out[i] = sum(max(0.0, 1 - x[i, a] + x[i, b]) for a in labels for b in others)
    return out / x.shape[1]


def nll(x: Array, y: Array, w: Array | None = None) -> tuple[Array, Array]:
    weights = np.ones(x.shape[1]) if w is None else w
    rows = np.arange(len(x))
    return -x[rows, y] * weights[y], weights[y]


def weighted_mean(x: Array, y: Array, w: Array | None = None) -> Array:
    per, weights = nll(x, y, w)
    return np.asarray(per.sum() / weights.sum())


def losses() -> Iterator[Case]:
    for name, (inputs, function, per, grad) in LOSSES.items():
        for reduction in ("none", "mean", "sum"):
            tag = name if " " in name else f"{name} plain"

            def call(*xs: Any, f: Any = function, r: str = reduction) -> Any:
                return f(*xs, reduction=r)

            yield case(f"{tag} {reduction}", inputs, call, reduced(per, reduction), grad)
    yield case(
        "kl_div batchmean",
        (normal(7, 5), uniform(0.05, 1, 7, 5)),
        lambda x, y: F.kl_div(x, y, reduction="batchmean"),
        lambda x, y: np.asarray((y * (np.log(y) - x)).sum() / 7),
    )
    yield case(
        "kl_div zeros",
        (normal(7, 5), whole(0, 1, 7, 5)),
        F.kl_div,
        lambda x, y: np.asarray((-y * x).mean()),
    )
    for p in (1, 2):
        yield case(
            f"multi_margin_loss p{p}",
            (apart(7, 5), ints(0, 4, 7)),
            lambda x, y, p=p: F.multi_margin_loss(x, y, p, reduction="none"),
            multi_margin(p),
        )
    targets = given(
        [[1, 3, -1, 0, 2], [0, 1, 2, 3, 4], [-1, 1, 2, 0, 3], [4, -1, -1, 1, 1]], "int64"
    )
    yield case(
        "multilabel_margin_loss",
        (apart(4, 5), targets),
        lambda x, y: F.multilabel_margin_loss(x, y, reduction="none"),
        multilabel_margin,
    )
    xy, w = (normal(9, 5), ints(0, 4, 9)), uniform(0.2, 2, 5)
    yield case("nll_loss", xy, F.nll_loss, weighted_mean)
    yield case("nll_loss weight", (*xy, w), F.nll_loss, weighted_mean)
    yield case(
        "nll_loss none",
        (*xy, w),
        lambda x, y, w: F.nll_loss(x, y, w, reduction="none"),
        lambda x, y, w: nll(x, y, w)[0],
    )
    yield case("cross_entropy", xy, F.cross_entropy, lambda x, y: weighted_mean(log_softmax(x), y))
    yield case(
        "cross_entropy weight",
        (*xy, w),
        F.cross_entropy,
        lambda x, y, w: weighted_mean(log_softmax(x), y, w),
    )
    yield case(
        "cross_entropy sum",
        xy,
        lambda x, y: F.cross_entropy(x, y, reduction="sum"),
        lambda x, y: nll(log_softmax(x), y)[0].sum(),
    )
    yield case(
        "cross_entropy soft",
        (normal(9, 5), uniform(0, 1, 9, 5)),
        F.cross_entropy,
        lambda x, y: np.asarray(-(y * log_softmax(x)).sum(1).mean()),
        (0, 1),
    )
    yield case(
        "cross_entropy places",
        (normal(4, 5, 3), ints(0, 4, 4, 3)),
        lambda x, y: F.cross_entropy(x, y, reduction="none"),
        lambda x, y: nll(log_softmax(x.transpose(0, 2, 1)).reshape(12, 5), y.ravel())[0].reshape(
            4, 3
        ),
    )


# ---------------------------------------------------------------------------- the rest


def others() -> Iterator[Case]:
    yield case(
        "linear",
        (normal(5, 7), normal(3, 7), normal(3)),
        F.linear,
        lambda x, w, b: x @ w.T + b,
        (0, 1, 2),
    )
    yield case(
        "linear rank3", (normal(2, 5, 7), normal(3, 7)), F.linear, lambda x, w: x @ w.T, (0, 1)
    )
    yield case("linear vector", (normal(5, 7), normal(7)), F.linear, lambda x, w: x @ w, (0, 1))
    yield case(
        "bilinear",
        (normal(4, 3), normal(4, 5), normal(2, 3, 5), normal(2)),
        F.bilinear,
        lambda a, b, w, c: np.einsum("ni,kij,nj->nk", a, w, b) + c,
        (0, 1, 2, 3),
    )
    yield case("embedding", (ints(0, 8, 4, 3), normal(9, 5)), F.embedding, lambda i, w: w[i], (1,))
    yield case(
        "normalize",
        (normal(5, 7),),
        F.normalize,
        lambda x: x / np.sqrt((x * x).sum(1, keepdims=True)),
    )
    yield case(
        "cosine_similarity", (normal(5, 7), normal(5, 7)), F.cosine_similarity, cosine, (0, 1)
    )
    for p in (1.0, 2.0, 3.0):
        yield case(
            f"pairwise_distance p{p}",
            (apart(5, 7, gap=0.05), uniform(-0.01, 0.01, 5, 7)),
            lambda a, b, p=p: F.pairwise_distance(a, b, p),
            lambda a, b, p=p: norm_of(a - b + 1e-6, p),
            (0, 1),
        )
    yield case(
        "layer_norm",
        (normal(5, 7), normal(7), normal(7)),
        lambda x, w, b: F.layer_norm(x, 7, w, b),
        lambda x, w, b: layer_norm(1, 1e-5)(x, w, b)[0],
        (0, 1, 2),
    )
    yield case(
        "rms_norm",
        (normal(5, 7), normal(7)),
        lambda x, w: F.rms_norm(x, 7, w, 1e-3),
        lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-3) * w,
        (0, 1),
    )
    yield case(
        "batch_norm training",
        (normal(9, 4), normal(4), normal(4)),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        lambda x, w, b: batch_norm(1e-5)(x, w, b)[0],
        (0, 1, 2),
    )
    yield case(
        "batch_norm evaluation",
        (normal(9, 4, 3), normal(4), uniform(0.5, 2, 4), normal(4), normal(4)),
        F.batch_norm,
        lambda x, m, v, w, b: (
            (x - m[:, None]) / np.sqrt(v[:, None] + 1e-5) * w[:, None] + b[:, None]
        ),
        (0, 3, 4),
    )
    for mode, name in (
        ("constant", "constant"),
        ("reflect", "reflect"),
        ("replicate", "edge"),
        ("circular", "wrap"),
    ):
        yield case(
            f"pad {mode}",
            (normal(2, 3, 5),),
            lambda x, m=mode: F.pad(x, (1, 2), mode=m),
            lambda x, n=name: np.pad(x, ((0, 0), (0, 0), (1, 2)), mode=n),
        )
    yield case(
        "one_hot",
        (ints(0, 4, 7),),
        lambda i: F.one_hot(i, 5),
        lambda i: np.eye(5, dtype=np.int64)[i],
        (),
    )
    yield case(
        "dropout off",
        (normal(7, 5),),
        lambda x: F.dropout(x, 0.5, training=False) * 1.0,
        lambda x: x,
    )
    yield case("dropout all", (normal(7, 5),), lambda x: F.dropout(x, 1.0), lambda x: 0 * x)
    yield case(
        "where condition",
        (bits(7, 5), normal(7, 5)),
        lambda c, x: x.masked_fill(c, 3.0),
        lambda c, x: np.where(c, 3.0, x),
        (1,),
    )


CASES = [*activations(), *losses(), *others()]
