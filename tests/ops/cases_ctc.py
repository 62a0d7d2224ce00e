"""Cases of the family ctc."""

import itertools

import numpy as np
from ops.fills import given, normal
from ops.harness import Array, Case


def log_softmax(x: Array) -> Array:
    top = x.max(-1, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))


def recursion(log_probs, target, blank):
    """Probabilities of beginnings (T, 2 U + 1) of one sequence: plain products, in float64."""
    places = [blank]
    for c in target:
        places += [int(c), blank]
    p = np.exp(log_probs[:, places])
    alpha = np.zeros((len(log_probs), len(places)))
    for t, s in np.ndindex(alpha.shape):
        if t == 0:
            alpha[t, s] = p[t, s] if s < 2 else 0
            continue
        skips = s >= 2 and places[s] != blank and places[s] != places[s - 2]
        alpha[t, s] = p[t, s] * alpha[t - 1, max(s - (2 if skips else 1), 0) : s + 1].sum()
    return alpha


def ctc(blank=0, zero_infinity=False):
    """log_probs, targets, lengths -> losses, logarithms of beginnings"""

    def f(log_probs, targets, times, lengths):
        n_times, n, _ = log_probs.shape
        alphas = np.full((n, n_times, 2 * targets.shape[1] + 1), -np.inf)
        losses = np.zeros(n)
        for i in range(n):
            t, u = int(times[i]), int(lengths[i])
            alpha = recursion(log_probs[:t, i], targets[i, :u], blank)
            alphas[i, :t, : 2 * u + 1] = np.log(alpha)
            ends = alpha[-1, -2:].sum() if t else float(u == 0)
            losses[i] = -np.log(ends)
            if zero_infinity and np.isinf(losses[i]):
                losses[i] = 0
        return losses, alphas

    return f


def by_enumeration(log_probs, target, blank):
    """Sums over every alignment there is."""
    total = 0.0
    n_times, n_classes = log_probs.shape
    for path in itertools.product(range(n_classes), repeat=n_times):
        kept = [c for t, c in enumerate(path) if c != blank and (t == 0 or path[t - 1] != c)]
        if kept == list(target):
            total += np.exp(sum(log_probs[t, c] for t, c in enumerate(path)))
    return -np.log(total)


def rule(inputs, outputs):
    """Each time adds a logarithm, right within a few ulp, to sums of the size of the result."""
    n_times = inputs[0].shape[0]
    size = np.abs(outputs[1], where=np.isfinite(outputs[1]), out=np.zeros_like(outputs[1]))
    most = 1 + size.max(initial=0) + np.abs(inputs[0]).max(initial=0)
    return [(12 * n_times + 12, most), (12 * n_times + 12, most)]


def probabilities(*shape):
    """Log probabilities that add up to 1."""

    def fill(rng):
        return np.float32(log_softmax(2 * normal(*shape)(rng))).astype(np.float64)

    return fill


def targets(n, s, classes, blank, dtype="int64"):
    """Any classes but the blank, many of them repeated."""

    def fill(rng):
        some = rng.integers(0, classes - 1, (n, s))
        again = rng.random((n, s)) < 0.3
        for j in range(1, s):
            some[:, j] = np.where(again[:, j], some[:, j - 1], some[:, j])
        return (some + (some >= blank)).astype(dtype)

    return fill


# T, N, C, S, blank, input lengths, target lengths
SHAPES = (
    (1, 1, 2, 1, 0, (1,), (1,)),
    (5, 3, 4, 2, 0, (5, 4, 5), (2, 1, 0)),
    (12, 4, 5, 4, 4, (12, 9, 12, 3), (4, 2, 3, 1)),
    (40, 3, 30, 12, 2, (40, 33, 25), (12, 7, 9)),
    (60, 2, 7, 20, 0, (60, 55), (16, 20)),
    (9, 2, 3, 0, 1, (9, 4), (0, 0)),
)


def cases():
    for i, (n_times, n, classes, s, blank, times, lengths) in enumerate(SHAPES):
        dtype = ("int64", "int32", "int16", "uint8")[i % 4]
        inputs = (
            probabilities(n_times, n, classes),
            targets(n, s, classes, blank, dtype),
            given(times, dtype),
            given(lengths, "int64"),
        )
        name = f"{n_times}x{n}x{classes}-{s}"
        attrs = {"blank": blank}
        yield Case("ctc_loss", name, inputs, ctc(blank), rule, attrs)

        def loss(graph, ids, attrs=attrs):
            (x,) = graph.add("log_softmax", ids[:1])
            return graph.add("ctc_loss", [x, *ids[1:]], **attrs)[:1]

        yield Case(
            "ctc_loss",
            name + "-of-logits",
            (normal(n_times, n, classes), *inputs[1:]),
            lambda x, *rest, blank=blank: ctc(blank)(log_softmax(x), *rest)[0],
            lambda inputs, outputs: [(20 * inputs[0].shape[0] + 40, 1 + np.abs(outputs[0]))],
            attrs,
            grad=(0,),
            build=loss,
            roundings=400.0 + 40 * n_times,
        )
    short = (
        probabilities(4, 5, 3),
        given([[1, 1, 2], [1, 2, 0], [1, 2, 1], [2, 2, 2], [1, 0, 0]], "int64"),
        given([4, 1, 0, 4, 0], "int64"),
        given([3, 2, 3, 3, 0], "int64"),
    )
    for zero in (False, True):
        yield Case(
            *("ctc_loss", f"too-short-{zero}", short, ctc(0, zero), rule),
            {"zero_infinity": int(zero)},
        )
    yield Case(
        "ctc_loss",
        "too-short-gradient",
        (normal(4, 5, 3), *short[1:]),
        lambda x, *rest: ctc(0, True)(log_softmax(x), *rest)[0],
        lambda inputs, outputs: [(120, 1 + np.abs(outputs[0]))],
        grad=(0,),
        build=lambda graph, ids: graph.add(
            "ctc_loss", [*graph.add("log_softmax", ids[:1]), *ids[1:]], zero_infinity=1
        )[:1],
        roundings=400.0,
    )


CASES = [*cases()]
