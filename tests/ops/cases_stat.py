"""Cases of the family stat. Sums of n terms have n roundings; inputs have 24 bits, so that of the
shift one more, and of a product of float64 one."""

import numpy as np
from ops.fills import bits, given, normal, single, sprinkled
from ops.harness import Case


def statistics(products=1):
    """The op over NumPy arrays, in float64."""

    def expect(x, shift, mask=None):
        rows = x.reshape(-1, x.shape[-1]) if x.size else np.zeros((0, x.shape[-1]))
        if not x.size and not x.shape[-1]:
            rows = np.zeros((int(np.prod(x.shape[:-1])), 0))
        if mask is not None:
            rows = rows[mask.reshape(-1)]
        d = rows - shift
        return (
            np.float64(len(rows)),
            rows.min(0, initial=np.inf),
            rows.max(0, initial=-np.inf),
            d.sum(0),
            d.T @ d if products else (d * d).sum(0),
        )

    return expect


def rule(products=1):
    def bound(inputs, outputs):
        x, shift, *mask = inputs
        rows = np.nan_to_num(x.reshape(-1, max(1, x.shape[-1])), posinf=0, neginf=0)
        d = np.abs(rows) + np.abs(shift) if shift.size else rows
        if mask and x.size:
            d = d[mask[0].reshape(-1)]
        n, terms = len(rows), d.T @ d if products else (d * d).sum(0)
        if not shift.size:
            terms = np.zeros(outputs[4].shape)
        return [(0.0, 0.0)] * 3 + [(n + 2, d.sum(0) if shift.size else 0.0), (n + 4, terms)]

    return bound


def shifted(**attrs):
    """Inputs are float32; the shift is float64."""

    def build(graph, ids):
        (shift,) = graph.add("cast", [ids[1]], dtype="float64")
        return graph.add("channel_statistics", [ids[0], shift, *ids[2:]], **attrs)

    return build


def case(name, fill, C, *mask, products=1):
    return Case(
        "channel_statistics",
        name,
        (fill, lambda rng: single(rng.normal(0, 1, C)), *mask),
        statistics(products),
        rule(products),
        build=shifted(products=products),
    )


# Around vectors of doubles, groups of columns, and the channels of known cameras.
CHANNELS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 23, 24, 25, 27, 31, 33, 50, 61, 64, 100, 129)


def cases():
    for C in CHANNELS:
        for products in (1, 0):
            yield case(f"c{C}-{products}", normal(70 + C % 3, C), C, products=products)
    for R in (1, 2, 63, 64, 65, 127, 255, 256, 257, 700, 5003):
        yield case(f"r{R}", normal(R, 11), 11)
    for R in (300, 4097):
        for products in (1, 0):
            mask = bits(R)
            yield case(f"mask{R}-{products}", normal(R, 13), 13, mask, products=products)
    few = lambda rng: rng.random((9, 41, 7)) < 0.03  # noqa: E731
    yield case("few", normal(9, 41, 7, 10), 10, few)
    yield case("none", normal(40, 6), 6, given(np.zeros(40), "bool"))
    yield case("all", normal(40, 6), 6, given(np.ones(40), "bool"))
    yield case("dims", normal(3, 5, 7, 10), 10)
    yield case("vector", normal(10), 10)
    yield case("vector-mask", normal(10), 10, given(True, "bool"))
    for shape in ((0, 5), (3, 0, 9), (4, 0), (0, 0)):
        name = "x".join(map(str, shape))
        for products in (1, 0):
            yield case(f"empty{name}-{products}", normal(*shape), shape[-1], products=products)
    for name, values in (
        ("nan", [np.nan]),
        ("inf", [np.inf]),
        ("infs", [np.inf, -np.inf, 1.0]),
        ("zeros", [0.0, -0.0]),
    ):
        yield case(name, sprinkled(normal(300, 9), values, 131), 9)
        yield case(name + "-diagonal", sprinkled(normal(300, 9), values, 131), 9, products=0)


CASES = [*cases()]
