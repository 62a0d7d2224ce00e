"""Cases of the family deformable."""

import numpy as np
from ops.fills import normal
from ops.harness import Case, of_largest, single


def sample(image, x, y):
    """image (h, w, D) at a place in pixels: bilinear, 0 beyond the edges."""
    h, w, width = image.shape
    total = np.zeros(width)
    for i in (np.floor(y), np.floor(y) + 1):
        for j in (np.floor(x), np.floor(x) + 1):
            if 0 <= i < h and 0 <= j < w:
                total = total + (1 - abs(y - i)) * (1 - abs(x - j)) * image[int(i), int(j)]
    return total


def deformable(sizes):
    """value, locations, weights -> (N, Lq, M, D)"""
    ends = np.cumsum([h * w for h, w in sizes])

    def f(value, location, weight):
        out = np.zeros((*weight.shape[:3], value.shape[3]))
        for n, q, m, i, p in np.ndindex(weight.shape):
            h, w = sizes[i]
            image = value[n, ends[i] - h * w : ends[i], m].reshape(h, w, -1)
            x, y = location[n, q, m, i, p] * (w, h) - 0.5
            out[n, q, m] += weight[n, q, m, i, p] * sample(image, x, y)
        return out

    return f


def places(sizes, *shape):
    """Far enough from pixels, where slopes have two sides; some of them beyond the edges."""

    def fill(rng):
        sides = np.array([(w, h) for h, w in sizes], np.float64)[:, None]
        full = (*shape[:3], len(sizes), shape[3], 2)
        low = np.floor(rng.uniform(-2, sides + 1, full))
        return single((low + rng.uniform(0.1, 0.9, full) + 0.5) / sides)

    return fill


def cases():
    for name, sizes, (n, rows, heads, points), width in (
        ("one pixel", ((1, 1),), (1, 1, 1, 1), 1),
        ("levels", ((5, 3), (2, 4), (1, 1)), (2, 7, 3, 4), 5),
        ("vectors", ((4, 4), (2, 2)), (1, 9, 2, 4), 32),
        ("wide", ((3, 9),), (1, 3, 1, 20), 67),
        ("tiles", ((9, 17), (8, 8)), (1, 40, 1, 2), 3),
    ):
        pixels = sum(h * w for h, w in sizes)
        shape = (n, rows, heads, points)
        yield Case(
            "deformable_attention",
            name.replace(" ", "-"),
            (
                normal(n, pixels, heads, width),
                places(sizes, *shape),
                normal(n, rows, heads, len(sizes), points),
            ),
            deformable(sizes),
            of_largest(40 * len(sizes) * points),
            {"heights": [h for h, _ in sizes], "widths": [w for _, w in sizes]},
            grad=(0, 1, 2),
        )


CASES = list(cases())
