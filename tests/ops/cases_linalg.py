"""Cases of the family linalg.

Tolerances are forward bounds of Higham (Accuracy and Stability, 2002): of a factor theorem 10.3 and
its condition, of a triangular system theorem 8.5.
"""

import numpy as np
from ops.fills import normal
from ops.harness import Case, largest, single


def positive(*shape):
    """Symmetric positive definite: a random square times its transpose, and some of the unit."""

    def fill(rng):
        x = rng.standard_normal(shape)
        return single(x @ np.swapaxes(x, -1, -2) / shape[-1] + 0.5 * np.eye(shape[-1]))

    return fill


def triangular(*shape):
    """Any square whose both triangles are well conditioned."""

    def fill(rng):
        n = shape[-1]
        x = rng.uniform(-1, 1, shape) / max(1, n) ** 0.5
        return single(x * (1 - np.eye(n)) + np.eye(n) * rng.uniform(1, 2, (*shape[:-1], 1)))

    return fill


def condition(a):
    """The worst of a batch."""
    if a.size == 0:
        return 1.0
    return float(np.max(np.linalg.cond(a)))


def factor_rule(inputs, outputs):
    """n + 1 products make an element; its condition multiplies what they are off by."""
    a, n = inputs[0], inputs[0].shape[-1]
    return [(n + 2, condition(a) * largest(outputs[0]))]


def chosen(a, upper, trans, unitriangular):
    t = np.triu(a) if upper else np.tril(a)
    if unitriangular:
        eye = np.eye(a.shape[-1])
        t = t * (1 - eye) + eye
    return np.swapaxes(t, -1, -2) if trans else t


def solve(upper, trans, unitriangular):
    return lambda a, b: np.linalg.solve(chosen(a, upper, trans, unitriangular), b)


def solve_rule(upper, trans, unitriangular):
    def rule(inputs, outputs):
        t = chosen(inputs[0], upper, trans, unitriangular)
        if outputs[0].size == 0:
            return [(0.0, 0.0)]
        worst = np.abs(np.linalg.inv(t)) @ (np.abs(t) @ np.abs(outputs[0]))
        return [(t.shape[-1] + 2, worst.max())]

    return rule


SIZES = (1, 2, 5, 8, 15, 16, 17, 31, 33, 50, 70, 100)


def symmetric(graph, ids):
    """The gradient is that of a symmetric matrix, so the matrix is made one."""
    rank = len(graph.shape(ids[0]))
    dims = [*range(rank - 2), rank - 1, rank - 2]
    (turned,) = graph.add("permute", ids, dims=dims)
    (both,) = graph.add("add", [*ids, turned])
    half = graph.const(np.array(0.5, np.float32))
    (mean,) = graph.add("mul", [both, half])
    return graph.add("cholesky", [mean])


def cases():
    for n in SIZES:
        yield Case("cholesky", f"{n}", (positive(n, n),), np.linalg.cholesky, factor_rule)
    for shape in ((3, 20, 20), (2, 3, 7, 7), (0, 4, 4), (2, 0, 0)):
        name = "x".join(map(str, shape))
        yield Case("cholesky", name, (positive(*shape),), np.linalg.cholesky, factor_rule)
    for shape in ((1, 1), (4, 4), (3, 9, 9), (20, 20)):
        yield Case(
            "cholesky",
            "gradient-" + "x".join(map(str, shape)),
            (positive(*shape),),
            lambda a: np.linalg.cholesky((a + np.swapaxes(a, -1, -2)) / 2),
            factor_rule,
            grad=(0,),
            build=symmetric,
            roundings=64.0 + 40 * shape[-1],
        )
    for n, k in ((1, 1), (3, 2), (7, 33), (8, 1), (17, 16), (33, 40), (50, 3), (100, 17)):
        for form in range(8):
            kind = bool(form & 1), bool(form & 2), bool(form & 4)
            yield Case(
                "triangular_solve",
                f"{n}x{k}-{form}",
                (triangular(n, n), normal(n, k)),
                solve(*kind),
                solve_rule(*kind),
                dict(zip(("upper", "trans", "unitriangular"), map(int, kind))),
                grad=(0, 1) if n <= 17 else (),
                roundings=64.0 + 40 * n,
            )
    for batch, n, k in (((3,), 9, 5), ((2, 2), 5, 40), ((0,), 3, 2), ((2,), 4, 0), ((2,), 0, 3)):
        kind = (True, False, False)
        yield Case(
            "triangular_solve",
            f"{'x'.join(map(str, batch))}x{n}x{k}",
            (triangular(*batch, n, n), normal(*batch, n, k)),
            solve(*kind),
            solve_rule(*kind),
            {"upper": 1},
            grad=(0, 1) if n and k and batch != (0,) else (),
            roundings=64.0 + 40 * n,
        )


CASES = [*cases()]
