"""Cases of the families norm and loss."""

import numpy as np
from ops.cases_reduce import log_softmax
from ops.fills import given, ints, normal, uniform
from ops.harness import Case, of_largest


def batch_norm(eps):
    def f(x, weight, bias):
        axes = (0, *range(2, x.ndim))
        spread = (1, -1, *(1,) * (x.ndim - 2))
        mean, var = x.mean(axes), x.var(axes)
        y = (x - mean.reshape(spread)) / np.sqrt(var.reshape(spread) + eps)
        return y * weight.reshape(spread) + bias.reshape(spread), mean, var

    return f


def layer_norm(n_axes, eps):
    def f(x, weight=1.0, bias=0.0):
        axes = tuple(range(x.ndim - n_axes, x.ndim))
        mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
        rstd = 1 / np.sqrt(var + eps)
        y = (x - mean) * rstd * weight + bias
        return y, mean.reshape(x.shape[: x.ndim - n_axes]), rstd.reshape(x.shape[: x.ndim - n_axes])

    return f


def normalised(n):
    """(x - mean) / std: both differences cancel, so S is the largest output; K as of the sums."""

    def rule(inputs, outputs):
        x = np.abs(inputs[0]).max(initial=1.0)
        scale = [max(1.0, float(np.abs(o).max(initial=0.0))) for o in outputs]
        return [(n + 10, scale[0] * max(x, 1.0)), (n + 2, x), (n + 10, max(x * x, scale[2]))]

    return rule


def norm_cases():
    for shape in (
        (2, 3),
        (33, 7),
        (64, 17),
        (257, 5),
        (1003, 1),
        (5, 3, 4),
        (3, 2, 4, 5),
        (17, 64),
    ):
        n = int(np.prod(shape)) // shape[1]
        for eps in (1e-5, 1e-1) if shape == (33, 7) else (1e-3,):
            yield Case(
                "batch_norm",
                "x".join(map(str, shape)) + f"-{eps}",
                (normal(*shape), normal(shape[1]), normal(shape[1])),
                batch_norm(eps),
                normalised(n),
                {"eps": eps},
                grad=(0, 1, 2),
                roundings=16.0 * int(np.prod(shape)),
            )
    # Which gradients are wanted decides what is computed; many rows go another way than few.
    for shape, grad in (((33, 7), (1, 2)), ((33, 7), (2,)), ((5, 3, 4), (0,)), ((700, 34), (0, 1))):
        yield Case(
            "batch_norm",
            "x".join(map(str, shape)) + "-by-" + "".join(map(str, grad)),
            (normal(*shape), normal(shape[1]), normal(shape[1])),
            batch_norm(1e-3),
            normalised(int(np.prod(shape)) // shape[1]),
            {"eps": 1e-3},
            grad=grad,
            roundings=16.0 * int(np.prod(shape)),
        )
    yield Case(
        "batch_norm",
        "constant",
        (given(np.full((9, 2), 3.0)), normal(2), normal(2)),
        batch_norm(1e-5),
        normalised(9),
        {"eps": 1e-5},
    )
    yield Case(
        "batch_norm",
        "offset",
        (lambda rng: 1000.0 + np.round(normal(64, 3)(rng) * 16) / 16, normal(3), normal(3)),
        batch_norm(1e-5),
        of_largest(64 * 64),
        {"eps": 1e-5},
    )
    for shape, n_axes in (
        ((2, 5), 1),
        ((33, 7), 1),
        ((64, 17), 1),
        ((9, 257), 1),
        ((5, 3, 4), 1),
        ((5, 3, 4), 2),
        ((3, 2, 4, 5), 3),
        ((1003, 33), 1),
        ((7,), 1),
    ):
        for n_in in (1, 2, 3):
            tail = shape[len(shape) - n_axes :]
            inputs = (normal(*shape), normal(*tail), normal(*tail))[:n_in]
            yield Case(
                "layer_norm",
                "x".join(map(str, shape)) + f"-{n_axes}-{n_in}",
                inputs,
                layer_norm(n_axes, 1e-3),
                normalised(int(np.prod(tail))),
                {"n_axes": n_axes, "eps": 1e-3},
                grad=tuple(range(n_in)),
            )
    yield Case(
        "layer_norm", "no-rows", (normal(0, 5),), layer_norm(1, 1e-5), normalised(5), {"eps": 1e-5}
    )


def cross_entropy(smoothing, ignore):
    def f(x, y, weight=None):
        n_classes = x.shape[1]
        w = np.ones(n_classes) if weight is None else weight
        logs = log_softmax(x)
        kept = y != ignore
        safe = np.where(kept, y, 0).astype(np.int64)
        rows = np.arange(len(x))
        hit = -logs[rows, safe] * w[safe]
        spread = -(logs * w).sum(1) / n_classes
        loss = (1 - smoothing) * hit + smoothing * spread
        return np.where(kept, loss, 0.0), np.where(kept, w[safe], 0.0)

    return f


def loss_rule(inputs, outputs):
    x = inputs[0]
    size = np.abs(x).max(initial=1.0) + 4 + x.shape[1]
    w = max(1.0, float(np.abs(inputs[2]).max())) if len(inputs) > 2 else 1.0
    return [(x.shape[1] + 8, size * w), (0.0, 0.0)]


def loss_cases():
    for n, c in ((1, 2), (5, 1), (9, 3), (33, 10), (65, 17), (257, 65), (17, 1003), (0, 4)):
        for smoothing in (0.0, 0.1):
            for weighted in (False, True):
                inputs = (normal(n, c), ints(0, c - 1, n)) + (
                    (uniform(0.2, 2, c),) if weighted else ()
                )
                yield Case(
                    "cross_entropy",
                    f"{n}x{c}-{smoothing}{'-weight' * weighted}",
                    inputs,
                    cross_entropy(smoothing, -100),
                    loss_rule,
                    {"label_smoothing": smoothing},
                    grad=(0,) if n else (),
                )
    some = lambda rng: np.where(np.arange(33) % 4 == 0, -100, ints(0, 4, 33)(rng))  # noqa: E731
    yield Case(
        "cross_entropy",
        "ignore",
        (normal(33, 5), some),
        cross_entropy(0.0, -100),
        loss_rule,
        grad=(0,),
    )
    yield Case(
        "cross_entropy",
        "ignore-2",
        (normal(33, 5), ints(0, 4, 33), uniform(0.2, 2, 5)),
        cross_entropy(0.2, 2),
        loss_rule,
        {"ignore_index": 2, "label_smoothing": 0.2},
        grad=(0,),
    )
    yield Case(
        "cross_entropy",
        "all-ignored",
        (normal(5, 3), given([-100] * 5, "int64")),
        cross_entropy(0.0, -100),
        loss_rule,
        grad=(0,),
    )
    yield Case(
        "cross_entropy",
        "int32",
        (normal(33, 5), ints(0, 4, 33, dtype="int32")),
        cross_entropy(0.0, -100),
        loss_rule,
        grad=(0,),
    )
    yield Case(
        "cross_entropy",
        "large",
        (uniform(-1e4, 1e4, 33, 5), ints(0, 4, 33)),
        cross_entropy(0.0, -100),
        loss_rule,
    )


CASES = [*norm_cases(), *loss_cases()]
