"""Cases of the family attention."""

import numpy as np
from ops.fills import given, normal
from ops.harness import Array, Case


def visible(mask, is_causal, shape):
    """Which keys each query sees, and what is added to its scores."""
    seen, added = np.ones(shape, bool), np.zeros(shape)
    if mask is not None and mask.dtype == bool:
        seen = seen & mask
    elif mask is not None:
        added = added + mask
    if is_causal:
        seen = seen & np.tri(*shape[-2:], dtype=bool)
    return seen, added


def scores(q, k, mask, scale, is_causal):
    """(B, H, L, S), and keys for each head of queries."""
    shared = q.shape[1] // k.shape[1]
    s = np.einsum("bhle,bhse->bhls", q, np.repeat(k, shared, 1)) * scale
    seen, added = visible(mask, is_causal, s.shape)
    return np.where(seen, s + added, -np.inf)


def attention(scale=1.0, is_causal=False):
    """q, k, v[, mask] -> out; logarithms of sums, and what rounding took from them"""

    def f(q, k, v, mask=None):
        s = scores(q, k, mask, scale, is_causal)
        top = s.max(-1, keepdims=True, initial=-np.inf)
        safe = np.where(np.isneginf(top), 0, top)
        e = np.exp(s - safe)
        total = e.sum(-1, keepdims=True)
        nothing = np.isneginf(top)
        lse = np.where(nothing, np.inf, np.log(np.where(nothing, 1, total)) + safe)
        w = e / np.where(nothing, 1, total)
        out = np.einsum("bhls,bhse->bhle", w, np.repeat(v, q.shape[1] // v.shape[1], 1))
        return out, np.stack([lse[..., 0], np.where(np.isnan(lse[..., 0]), np.nan, 0)])

    return f


def only_out(f):
    return lambda *x: f(*x)[0]


def rule(scale):
    """A score has E products and the softmax its distance from the largest; sums go over S."""

    def most(x, axis=None):
        x = np.where(np.isfinite(x), np.abs(x), 0)
        return (x if axis is None else x.sum(axis)).max(initial=0)

    def f(inputs, outputs):
        q, k, v = inputs[:3]
        n = q.shape[-1] + k.shape[-2] + 8
        size = 1 + scale * most(q, -1) * most(k)
        return [(n, size * max(1, most(v))), (n, size)]

    return f


def hides(share: float, *shape: int):
    """A bool mask, false here and there."""
    return lambda rng: rng.uniform(size=shape) >= share


def hides_a_row(*shape: int):
    """One that hides all keys of each third query."""

    def fill(rng: np.random.Generator) -> Array:
        mask = rng.uniform(size=shape) >= 0.4
        mask[..., ::3, :] = False
        return mask

    return fill


# B, H, Hk, L, S, E, Ev
SHAPES = (
    (1, 1, 1, 1, 1, 1, 1),
    (2, 3, 3, 5, 7, 4, 6),
    (2, 4, 2, 9, 9, 8, 8),
    (3, 2, 1, 33, 20, 16, 16),
    (1, 2, 2, 65, 130, 17, 33),
    (2, 8, 8, 20, 20, 16, 16),
    (1, 1, 1, 200, 70, 64, 64),
    (1, 2, 1, 130, 300, 8, 5),
    (1, 1, 1, 60, 600, 4, 3),
)


def operands(b, h, hk, n, s, e, ev):
    return normal(b, h, n, e), normal(b, hk, s, e), normal(b, hk, s, ev)


def masks(b, h, n, s):
    """By name."""
    yield "", None
    yield "bool", hides(0.3, b, h, n, s)
    yield "bool-keys", hides(0.3, b, 1, 1, s)
    yield "bool-rows", hides_a_row(1, 1, n, s)
    yield "added", normal(b, h, n, s)
    yield "added-heads", normal(1, h, n, s)


def forward_cases():
    for shape in SHAPES:
        b, h, _, n, s, e, _ = shape
        scale = float(np.float32(1 / np.sqrt(e)))
        for name, mask in masks(b, h, n, s):
            for is_causal in (False, True):
                small = n <= 130 and s != 130
                yield Case(
                    "attention",
                    "x".join(map(str, shape)) + f"-{name}" * bool(name) + "-causal" * is_causal,
                    operands(*shape) + (() if mask is None else (mask,)),
                    attention(scale, is_causal),
                    rule(scale),
                    {"scale": scale, "is_causal": int(is_causal), "has_mask": int(bool(name))},
                )
                if not small:
                    continue
                attrs = {
                    "scale": scale, "is_causal": int(is_causal), "has_mask": int(bool(name)),
                }  # fmt: skip
                yield Case(
                    "attention",
                    "out-" + "x".join(map(str, shape)) + f"-{name}" + "-causal" * is_causal,
                    operands(*shape) + (() if mask is None else (mask,)),
                    only_out(attention(scale, is_causal)),
                    rule(scale),
                    attrs,
                    grad=(0, 1, 2) + ((3,) if name.startswith("added") else ()),
                    build=lambda graph, ids, attrs=attrs: graph.add("attention", ids, **attrs)[:1],
                )
    for name, b, h, n, s in (("no-batch", 0, 2, 3, 4), ("no-rows", 2, 2, 0, 4)):
        yield Case(
            "attention", name, operands(b, h, h, n, s, 5, 6), attention(), rule(1.0), {"scale": 1.0}
        )
    yield Case(
        "attention",
        "no-keys",
        operands(2, 2, 2, 3, 0, 5, 6),
        attention(),
        rule(1.0),
        {"scale": 1.0},
    )
    for what, value in (("nan", np.nan), ("inf", np.inf)):
        q = np.linspace(-1, 1, 2 * 3 * 4).reshape(1, 2, 3, 4)
        q[0, 1, 1, 2] = value
        yield Case(
            "attention",
            what,
            (given(q), *operands(1, 2, 2, 3, 5, 4, 4)[1:]),
            attention(),
            rule(1.0),
        )
    big = lambda rng: 300 * normal(1, 2, 9, 8)(rng)  # noqa: E731
    yield Case(
        "attention", "large", (big, *operands(1, 2, 2, 9, 9, 8, 8)[1:]), attention(), rule(1.0)
    )


CASES = [*forward_cases()]
