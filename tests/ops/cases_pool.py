"""Cases of the families unfold, pool and resample."""

import itertools

import numpy as np
from ops.fills import SPECIAL, apart, given, ints, normal, sprinkled
from ops.harness import Array, Case, exact


def find_windows(size, kernel, stride, dilation, before, after):
    """For each output, the places along one dim that its taps read; None: padding."""
    n_out = (size + before + after - dilation * (kernel - 1) - 1) // stride + 1
    places = [[o * stride - before + k * dilation for k in range(kernel)] for o in range(n_out)]
    return [[p if 0 <= p < size else None for p in window] for window in places]


def pool(what, kernel, stride=None, dilation=None, before=None, after=None, last=False):
    """The largest of each window, or where it is among its channel's elements."""
    n = len(kernel)

    def f(x):
        x = np.moveaxis(x, -1, 1) if last else x
        lists = (
            kernel,
            stride or [1] * n,
            dilation or [1] * n,
            before or [0] * n,
            after or [0] * n,
        )
        dims = [find_windows(*along) for along in zip(x.shape[2:], *lists)]
        shape = (*x.shape[:2], *(len(d) for d in dims))
        y = np.empty(shape, x.dtype if what == "value" else np.int64)
        for out in itertools.product(*(range(len(d)) for d in dims)):
            taps = itertools.product(*(d[o] for d, o in zip(dims, out)))
            places = [p for p in taps if None not in p]
            read = np.stack([x[(..., *p)] for p in places], axis=-1)
            best = np.where(np.isnan(read), np.inf, read).argmax(-1)
            best = np.where(np.isnan(read).any(-1), np.isnan(read).argmax(-1), best)
            flat = np.array([np.ravel_multi_index(p, x.shape[2:]) for p in places])
            value = np.take_along_axis(read, best[..., None], -1)[..., 0]
            y[(..., *out)] = value if what == "value" else flat[best]
        return np.moveaxis(y, 1, -1) if last else y

    return f


def window(kernel, stride=None, **lists):
    """The attributes of a window."""
    return {"kernel": kernel} | ({"stride": stride} if stride else {}) | lists


POOLS = {
    "2x2": ((2, 5, 6, 8), window((2, 2), (2, 2))),
    "3x3-padded": ((2, 3, 7, 9), window((3, 3), (2, 2), before=(1, 1), after=(1, 1))),
    "overlapping": ((1, 17, 5, 6), window((3, 2))),
    "dilated": ((2, 2, 9, 8), window((2, 3), dilation=(3, 2), before=(1, 2), after=(0, 1))),
    "gaps": ((2, 3, 9, 7), window((2, 1), (3, 4))),
    "ceil": ((1, 4, 6, 7), window((3, 3), (2, 2), after=(1, 0))),
    "whole": ((3, 33, 4, 4), window((4, 4))),
    "1d": ((2, 3, 11), window((3,), (2,), before=(1,))),
    "3d": ((2, 3, 4, 5, 6), window((2, 2, 3), (2, 1, 2), before=(1, 0, 1))),
    "channels-last": ((2, 5, 6, 19), window((2, 3), (2, 1), before=(0, 1))),
    "no-images": ((0, 3, 4, 4), window((2, 2))),
}


def pool_cases():
    for name, (shape, attrs) in POOLS.items():
        last = name == "channels-last"
        given_attrs = attrs | {"channels_last": int(last)}
        grad = (0,) if shape[0] else ()
        for op, what in (("max_pool", "value"), ("max_pool_index", "index")):
            of_op = grad if what == "value" else ()
            yield Case(
                op, name, (apart(*shape),), pool(what, **attrs, last=last), exact, given_attrs,
                grad=of_op,
            )  # fmt: skip
    special = (sprinkled(normal(2, 3, 5, 6), SPECIAL, 3),)
    ties = given(np.tile([1.0, 2.0, 2.0, -np.inf], 18).reshape(1, 2, 6, 6))
    for op, what in (("max_pool", "value"), ("max_pool_index", "index")):
        for name, fills in (("special", special), ("ties", (ties,))):
            yield Case(op, name, fills, pool(what, (3, 2)), exact, {"kernel": (3, 2)})


def transpose_band(starts: Array, weights: Array, n: int) -> tuple[Array, Array]:
    """The band of the transposed map: starts and weights by input instead of by output."""
    m, taps = len(starts), weights.size // len(starts)
    dense = np.zeros((m, n))
    for j, t in itertools.product(range(m), range(taps)):
        if 0 <= starts[j] + t < n:
            dense[j, starts[j] + t] = weights[j * taps + t]
    used = [np.flatnonzero(dense[:, i]) for i in range(n)]
    first = np.array([u[0] if len(u) else 0 for u in used], np.int64)
    width = max((u[-1] - u[0] + 1 if len(u) else 1) for u in used)
    columns = [
        [dense[f + t, i] if f + t < m else 0.0 for t in range(width)] for i, f in enumerate(first)
    ]
    return first, np.array(columns).reshape(-1)


def resample(axis):
    def f(x, starts, weights, starts_t, weights_t):
        taps = weights.size // len(starts)
        x = np.moveaxis(x, axis, 0)
        rows = [
            sum(
                (weights[j * taps + t] * x[s + t] for t in range(taps) if 0 <= s + t < len(x)),
                start=np.zeros(x.shape[1:]),
            )
            for j, s in enumerate(starts)
        ]
        return np.moveaxis(np.stack(rows), 0, axis)

    return f


def resample_rule(axis):
    def rule(inputs, outputs):
        taps = inputs[2].size // len(inputs[1])
        x, starts, weights, *rest = inputs
        return [(taps + 2, resample(axis)(abs(x), starts, abs(weights), *rest))]

    return rule


def resample_cases():
    for name, shape, axis, m, taps in (
        ("last", (3, 4, 11), 2, 7, 3),
        ("first", (9, 5), 0, 13, 2),
        ("middle", (2, 8, 3, 17), 1, 5, 4),
        ("up", (2, 3, 5, 33), 2, 15, 2),
        ("one", (2, 3), 1, 1, 3),
        ("long", (2, 257), 1, 64, 9),
    ):
        n = shape[axis]
        # rising starts, as all real maps have: the transpose's band stays narrow
        starts = np.linspace(-1, n - taps + 1, m).astype(np.int64)
        weights = np.float32(np.random.default_rng(m).uniform(0.1, 1, m * taps)).astype(np.float64)
        band = (starts, weights, *transpose_band(starts, weights, n))
        fills = tuple(given(a, str(a.dtype)) for a in band)
        yield Case(
            "resample", name, (normal(*shape), *fills), resample(axis), resample_rule(axis),
            {"axis": axis}, grad=(0,),
        )  # fmt: skip


def unfolded(kernel, stride=None, dilation=None, before=None, after=None):
    """x (N, ..., C) -> (N, ..., taps, C)"""
    n = len(kernel)

    def f(x):
        steps = (stride or [1] * n, dilation or [1] * n, before or [0] * n, after or [0] * n)
        dims = [find_windows(*along) for along in zip(x.shape[1:-1], kernel, *steps)]
        counts = tuple(len(d) for d in dims)
        y = np.zeros((x.shape[0], *counts, int(np.prod(kernel)), x.shape[-1]), x.dtype)
        for out in itertools.product(*(range(c) for c in counts)):
            taps = itertools.product(*(d[o] for d, o in zip(dims, out)))
            for t, place in enumerate(taps):
                if None not in place:
                    y[(slice(None), *out, t)] = x[(slice(None), *place)]
        return y

    return f


def folded(size, **attrs):
    """windows (N, ..., taps, C) -> (N, *size, C): unfolded's transpose, by its basis."""

    def f(windows):
        n = int(np.prod(size))
        basis = unfolded(**attrs)(np.eye(n).reshape(n, *size, 1))
        flat = windows.reshape(len(windows), -1, windows.shape[-1])
        out = np.tensordot(flat, basis.reshape(n, -1), axes=([1], [1]))
        return np.moveaxis(out, 1, -1).reshape(len(windows), *size, windows.shape[-1])

    return f


UNFOLDS = {
    "3x3": ((2, 5, 6, 7), window((3, 3), before=(1, 1), after=(1, 1))),
    "stride": ((2, 7, 9, 16), window((2, 3), (2, 1), before=(0, 2))),
    "dilated": ((1, 9, 8, 3), window((2, 3), dilation=(3, 2), before=(1, 2), after=(0, 1))),
    "gaps": ((2, 9, 7, 4), window((2, 1), (3, 4))),
    "1d": ((3, 11, 33), window((4,), (3,), before=(2,))),
    "3d": ((1, 4, 5, 3, 2), window((2, 2, 3), (2, 1, 1), before=(1, 0, 1), after=(0, 1, 0))),
}


def unfold_cases():
    for name, (shape, attrs) in UNFOLDS.items():
        op = unfolded(**attrs)
        yield Case("unfold", name, (normal(*shape),), op, exact, attrs, grad=(0,))
        size, windows = shape[1:-1], op(np.zeros(shape)).shape
        taps = int(np.prod(attrs["kernel"]))
        back = folded(size, **attrs)
        rule = lambda inputs, outputs, k=taps, f=back: [(k + 2, f(np.abs(inputs[0])))]  # noqa: E731
        yield Case("fold", name, (normal(*windows),), back, rule, attrs | {"size": size}, grad=(0,))
    yield Case(
        "unfold", "ints", (ints(-9, 9, 2, 5, 4, 3),), unfolded((2, 2)), exact, {"kernel": (2, 2)}
    )
    yield Case("unfold", "none", (normal(0, 5, 3),), unfolded((2,)), exact, {"kernel": (2,)})


CASES = [*unfold_cases(), *pool_cases(), *resample_cases()]
