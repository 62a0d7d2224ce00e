"""Cases of the family recurrence."""

import itertools

import numpy as np
from ops.fills import given, normal
from ops.harness import Array, Case, single

TANH, RELU, LSTM, GRU = range(4)
NAMES = ("tanh", "relu", "lstm", "gru")
GATES = (1, 1, 4, 3)


def sigmoid(x):
    return 0.5 + 0.5 * np.tanh(x / 2)


def step(cell, w, z, h, c, bias, w_hr):
    """One step of one row: state, cell, gates, what is kept beside."""
    product = w @ h + (0 if bias is None else bias)
    if cell == TANH:
        return np.tanh(z + product), c, z[:0], z[:0]
    if cell == RELU:
        return np.maximum(z + product, 0), c, z[:0], z[:0]
    if cell == LSTM:
        i, f, g, o = np.split(z + product, 4)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        c = f * c + i * g
        h = o * np.tanh(c)
        return h if w_hr is None else w_hr @ h, c, np.concatenate([i, f, g, o]), c
    (zr, zu, zn), (pr, pu, pn) = np.split(z, 3), np.split(product, 3)
    r, u = sigmoid(zr + pr), sigmoid(zu + pu)
    n = np.tanh(zn + r * pn)
    return (1 - u) * n + u * h, c, np.concatenate([r, u, n]), pn


def recurrence(cell, reverse=False, has_bias=False, has_projection=False):
    """w, z, h0, lengths[, c0][, bias][, w_hr] -> out, h, c, gates, cells"""

    def f(w, z, h0, lengths, *rest):
        rest = list(rest)
        rows, t = z.shape[:2]
        units = w.shape[0] // GATES[cell]
        c0 = rest.pop(0) if cell == LSTM else np.zeros((rows, 0))
        bias = rest.pop(0) if has_bias else None
        w_hr = rest.pop(0) if has_projection else None
        keeps = cell in (LSTM, GRU)
        out = np.zeros((rows, t, h0.shape[1]))
        gates = np.zeros((rows, t, w.shape[0] * keeps))
        cells = np.zeros((rows, t, units * keeps))
        last_h, last_c = h0.copy(), c0.copy()
        for n in range(rows):
            h, c = h0[n], c0[n]
            order = range(int(lengths[n]))
            for at in reversed(order) if reverse else order:
                h, c, gates[n, at], cells[n, at] = step(cell, w, z[n, at], h, c, bias, w_hr)
                out[n, at] = h
            last_h[n], last_c[n] = h, c
        return out, last_h, last_c, gates, cells

    return f


def rule(inputs, outputs):
    """Sums of P products at each step, whose errors the next steps may make larger."""
    w, z, h0 = inputs[:3]
    roundings = (z.shape[1] + 1) * (w.shape[1] + 12)
    gain = 1 + np.abs(w).sum(1).max(initial=0)
    sizes = [np.abs(x).max(initial=0) for x in (z, h0, *outputs)]
    return [(roundings, gain * (1 + max(sizes)))] * 5


def scaled(size: float, *shape: int):
    return lambda rng: single(size * normal(*shape)(rng))


def off_zero(*shape: int):
    """Of both signs, from 1 to 2."""
    return lambda rng: single(rng.choice([-1, 1], shape) * rng.uniform(1, 2, shape))


def draws_lengths(rows: int, most: int):
    """From 0 to ``most``, of which the first rows have both."""

    def fill(rng: np.random.Generator) -> Array:
        lengths = rng.integers(0, most + 1, rows).astype(np.int32)
        lengths[:2] = [most, 0][:rows]
        return lengths

    return fill


def full(rows: int, t: int):
    return given(np.full(rows, t), "int32")


# N, T, H
SHAPES = ((1, 1, 1), (2, 3, 4), (3, 5, 16), (5, 4, 33), (33, 2, 7), (150, 3, 32), (4, 20, 40))


def operands(cell, shape, has_bias, width, varies):
    """``width`` of the projection; 0: none."""
    n, t, h = shape
    p, g = width or h, GATES[cell]
    fills = [scaled(0.7 / np.sqrt(p), g * h, p), normal(n, t, g * h), scaled(0.5, n, p)]
    if cell == RELU:  # sums stay away from 0, where there is no derivative
        fills[:2] = [scaled(0.02 / p, h, p), off_zero(n, t, h)]
    fills.append(draws_lengths(n, t) if varies else full(n, t))
    if cell == LSTM:
        fills.append(normal(n, h))
    if has_bias:
        fills.append(scaled(0.3, g * h))
    if width:
        fills.append(scaled(1 / np.sqrt(h), width, h))
    return tuple(fills)


def kinds():
    """Cells with what they may have."""
    yield from itertools.product((TANH, RELU, LSTM), (False,), (False,))
    yield from itertools.product((GRU,), (False, True), (False,))
    yield LSTM, False, True


def cases():
    for (cell, has_bias, has_width), shape in itertools.product(kinds(), SHAPES):
        for reverse, varies in itertools.product((False, True), (False, True)):
            width = max(1, shape[2] // 2) if has_width else 0
            attrs = {
                "cell": cell, "reverse": int(reverse), "has_bias": int(has_bias),
                "has_projection": int(has_width),
            }  # fmt: skip
            f = recurrence(cell, reverse, has_bias, has_width)
            fills = operands(cell, shape, has_bias, width, varies)
            name = NAMES[cell] + "-bias" * has_bias + "-projected" * has_width
            name += "-" + "x".join(map(str, shape)) + "-reverse" * reverse + "-lengths" * varies
            yield Case("recurrence", name, fills, f, rule, attrs)
            if shape[0] > 40:
                continue
            n_out = 3 if cell == LSTM else 2
            yield Case(
                "recurrence",
                f"states-{name}",
                fills,
                lambda *x, f=f, n=n_out: f(*x)[:n],
                lambda inputs, outputs, n=n_out: rule(inputs, outputs)[:n],
                attrs,
                grad=tuple(i for i in range(len(fills)) if i != 3),
                build=lambda graph, ids, attrs=attrs, n=n_out: graph.add(
                    "recurrence", ids, **attrs
                )[:n],
            )
    for name, shape in (("no-rows", (0, 3, 4)), ("no-steps", (2, 0, 4))):
        for cell in (TANH, LSTM, GRU):
            yield Case(
                "recurrence",
                f"{NAMES[cell]}-{name}",
                operands(cell, shape, False, 0, False),
                recurrence(cell),
                rule,
                {"cell": cell},
            )


CASES = [*cases()]
