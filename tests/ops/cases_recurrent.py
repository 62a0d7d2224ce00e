"""Cases of whole recurrent layers: a recurrence of the products that make what it reads."""

import itertools

import numpy as np
from ops.cases_recurrence import (
    GATES,
    GRU,
    LSTM,
    NAMES,
    RELU,
    draws_lengths,
    full,
    kinds,
    off_zero,
    recurrence,
    scaled,
)
from ops.fills import normal
from ops.harness import Case


def layer(cell, reverse=False, has_bias=False, has_state_bias=False, has_projection=False):
    """x, w_ih, w_hh, h0, lengths[, c0][, bias][, state_bias][, w_hr] -> as recurrence"""
    within = recurrence(cell, reverse, has_state_bias, has_projection)

    def f(x, w_ih, w_hh, h0, lengths, *rest):
        rest = list(rest)
        first = [rest.pop(0)] if cell == LSTM else []
        bias = rest.pop(0) if has_bias else 0
        return within(w_hh, x @ w_ih.T + bias, h0, lengths, *first, *rest)

    return f


def rule(inputs, outputs):
    """As recurrence, and the roundings of the I products that make z, which may be larger."""
    x, w_ih, w_hh = inputs[:3]
    z = np.abs(x).max(initial=0) * np.abs(w_ih).sum(1).max(initial=0) + 1
    roundings = (x.shape[1] + 1) * (w_hh.shape[1] + 12) + x.shape[2] + 1
    gain = 1 + np.abs(w_hh).sum(1).max(initial=0)
    sizes = [np.abs(values).max(initial=0) for values in (inputs[3], *outputs)]
    return [(roundings, gain * (z + max(sizes)))] * 5


# N, T, I, H
SHAPES = ((1, 1, 1, 1), (3, 5, 7, 16), (33, 2, 4, 7), (4, 6, 20, 40))
# Reverse, of several lengths, with a bias.
WAYS = ((False, False, False), (False, False, True), (False, True, True), (True, True, True))


def operands(cell, shape, has_bias, has_state_bias, width, varies):
    """``width`` of the projection; 0: none."""
    n, t, i, h = shape
    p, g = width or h, GATES[cell]
    fills = [
        normal(n, t, i), scaled(0.7 / np.sqrt(i), g * h, i), scaled(0.7 / np.sqrt(p), g * h, p),
        scaled(0.5, n, p),
    ]  # fmt: skip
    if cell == RELU:  # sums stay away from 0, where there is no derivative
        fills = [scaled(0.01, n, t, i), scaled(0.01, h, i), scaled(0.01 / p, h, p), fills[3]]
    fills.append(draws_lengths(n, t) if varies else full(n, t))
    if cell == LSTM:
        fills.append(normal(n, h))
    if has_bias:
        fills.append(off_zero(g * h) if cell == RELU else scaled(0.3, g * h))
    if has_state_bias:
        fills.append(scaled(0.3, g * h))
    if width:
        fills.append(scaled(1 / np.sqrt(h), width, h))
    return tuple(fills)


def know_lengths(graph, ids, steps):
    """All steps of all rows, where the plan knows: then a library may take the layer whole."""
    if steps is None:
        return ids
    return [*ids[:4], graph.const(np.full(steps[0], steps[1], np.int32)), *ids[5:]]


def cases():
    for (cell, has_state_bias, has_width), shape in itertools.product(kinds(), SHAPES):
        for reverse, varies, has_bias in WAYS:
            if cell == RELU and not has_bias:
                continue
            width = max(1, shape[3] // 2) if has_width else 0
            attrs = {
                "cell": cell, "reverse": int(reverse), "has_bias": int(has_bias),
                "has_state_bias": int(has_state_bias), "has_projection": int(has_width),
            }  # fmt: skip
            f = layer(cell, reverse, has_bias, has_state_bias, has_width)
            fills = operands(cell, shape, has_bias, has_state_bias, width, varies)
            name = NAMES[cell] + "-bias" * has_bias + "-state" * has_state_bias
            name += "-projected" * has_width + "-" + "x".join(map(str, shape))
            name += "-reverse" * reverse + "-lengths" * varies
            n_out = 3 if cell == LSTM else 2
            steps = None if varies else shape[:2]
            yield Case(
                "recurrent_layer",
                name,
                fills,
                f,
                rule,
                attrs,  # gates are read: no kernel keeps them in a form of its own
                build=lambda graph, ids, attrs=attrs, steps=steps: graph.add(
                    "recurrent_layer", know_lengths(graph, ids, steps), **attrs
                ),
            )
            yield Case(
                "recurrent_layer",
                f"states-{name}",
                fills,
                lambda *x, f=f, n=n_out: f(*x)[:n],
                lambda inputs, outputs, n=n_out: rule(inputs, outputs)[:n],
                attrs,
                grad=tuple(i for i in range(len(fills)) if i != 4),
                build=lambda graph, ids, attrs=attrs, n=n_out, steps=steps: graph.add(
                    "recurrent_layer", know_lengths(graph, ids, steps), **attrs
                )[:n],
            )
    for name, shape in (("no-rows", (0, 3, 2, 4)), ("no-steps", (2, 0, 2, 4))):
        for cell in (0, LSTM, GRU):
            yield Case(
                "recurrent_layer",
                f"{NAMES[cell]}-{name}",
                operands(cell, shape, False, False, 0, False),
                layer(cell),
                rule,
                {"cell": cell},
            )


CASES = [*cases()]
