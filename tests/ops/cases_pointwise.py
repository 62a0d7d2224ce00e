"""Cases of the family pointwise. kernels/cpu/simd/math.h promises 2 ulp, 2.5 for sigmoid."""

import math

import numpy as np
from ops.fills import (
    SIZES,
    SPECIAL,
    apart,
    bits,
    given,
    ints,
    normal,
    pairs,
    sprinkled,
    uniform,
    whole,
)
from ops.harness import Case, exact, of_terms, rounded, ulps

erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x):
    return np.where(
        x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x)))
    )


def safe_erf(x):
    return np.where(np.isnan(x), np.nan, erf(np.where(np.isnan(x), 0.0, x)))


def sign(x):
    """NaN has none, as in torch."""
    return np.where(np.isnan(x), 0.0, np.sign(x))


def positive(*shape):
    return uniform(0.05, 9.0, *shape)


# op: NumPy's function, rule, fill of the gradient case (None: not differentiable), fill, range
UNARY = {
    "neg": (np.negative, exact, normal, normal, (-50, 50)),
    "abs": (np.abs, exact, apart, normal, (-50, 50)),
    "sign": (sign, exact, None, normal, (-2, 2)),
    "exp": (np.exp, ulps(2), normal, normal, (-104, 89)),
    "expm1": (np.expm1, ulps(2), normal, normal, (-20, 88)),
    "log": (np.log, ulps(2), positive, positive, (1e-30, 1e30)),
    "log1p": (np.log1p, ulps(2), positive, positive, (-0.999, 1e6)),
    "sqrt": (np.sqrt, ulps(1), positive, positive, (0, 1e30)),
    "rsqrt": (lambda x: 1 / np.sqrt(x), ulps(2), positive, positive, (1e-20, 1e20)),
    "reciprocal": (lambda x: 1 / x, ulps(1), positive, positive, (0.001, 1e20)),
    "sin": (np.sin, ulps(2), normal, normal, (-200, 200)),
    "cos": (np.cos, ulps(2), normal, normal, (-200, 200)),
    "tanh": (np.tanh, ulps(2), normal, normal, (-12, 12)),
    "sigmoid": (sigmoid, ulps(2.5), normal, normal, (-80, 80)),
    "softplus": (lambda x: np.logaddexp(x, 0.0), ulps(2.5), normal, normal, (-80, 80)),
    "erf": (safe_erf, ulps(2), normal, normal, (-5, 5)),
    "relu": (lambda x: np.maximum(x, 0.0), exact, apart, normal, (-50, 50)),
    "floor": (np.floor, exact, None, normal, (-50, 50)),
    "ceil": (np.ceil, exact, None, normal, (-50, 50)),
    "round": (np.rint, exact, None, normal, (-50, 50)),
    "isfinite": (np.isfinite, exact, None, normal, (-50, 50)),
    "logical_not": (np.logical_not, exact, None, lambda *s: whole(-1, 1, *s), (-50, 50)),
}


def unary_cases():
    for op, (f, rule, grad_fill, fill, (low, high)) in UNARY.items():
        for n in (1, 17, 1003):
            yield Case(op, f"n{n}", (fill(n),), f, rule)
        yield Case(op, "range", (uniform(low, high, 4099),), f, rule)
        yield Case(op, "special", (given(SPECIAL),), f, rule)
        yield Case(op, "empty", (fill(0, 3),), f, rule)
        if grad_fill is not None:
            yield Case(op, "rank0", (grad_fill(),), f, rule, grad=(0,))
            yield Case(op, "grid", (grad_fill(5, 3, 7),), f, rule, grad=(0,))
    yield Case("round", "halves", (given(np.arange(-4.5, 5)),), np.rint)
    for op in ("neg", "abs", "sign", "relu", "floor", "ceil", "round"):
        f = {"relu": lambda x: np.maximum(x, 0)}.get(op, UNARY[op][0])
        if op == "sign":
            f = np.sign
        for dtype in ("int64", "int32"):
            yield Case(
                op,
                dtype,
                (ints(-9, 9, 33, dtype=dtype),),
                lambda x, f=f: f(x).astype(x.dtype),
            )
    yield Case("exp", "int64", (ints(-9, 9, 33),), lambda x: np.exp(x.astype(np.float64)), ulps(2))
    yield Case("logical_not", "bool", (bits(33),), np.logical_not)
    yield Case("isfinite", "int32", (ints(-5, 5, 17, dtype="int32"),), np.isfinite)


def gelu(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x):
    return x / 2 * (1 + safe_erf(x / math.sqrt(2)))


def gelu_cases():
    """S is |x|: below 0 the sum of 1 and the tanh, or erf, cancels."""
    rule = of_terms(24, np.abs)
    for op, f in (("gelu", gelu), ("gelu_erf", gelu_erf)):
        for n in (1, 17, 1003):
            yield Case(op, f"n{n}", (normal(n),), f, rule)
        yield Case(op, "range", (uniform(-12, 12, 4099),), f, rule)
        yield Case(op, "special", (given(SPECIAL),), f, rule)
        yield Case(op, "empty", (normal(0, 3),), f, rule)
        yield Case(op, "rank0", (normal(),), f, rule, grad=(0,))
        yield Case(op, "grid", (normal(5, 3, 7),), f, rule, grad=(0,))
        yield Case(op, "far", (uniform(-12, 12, 65),), f, rule, grad=(0,))


def gelu_grad(dy, x):
    slope = math.sqrt(2 / math.pi)
    t = np.tanh(slope * (x + 0.044715 * x**3))
    bell = x / 2 * (1 - t * t) * slope
    return dy * ((1 + t) / 2 + bell + 3 * 0.044715 * bell * x * x)


def gelu_erf_grad(dy, x):
    bell = np.exp(-np.square(np.clip(x, -60, 60)) / 2) / math.sqrt(2 * math.pi)
    return dy * ((1 + safe_erf(x / math.sqrt(2))) / 2 + x * bell)


def gelu_grad_cases():
    """S is |dy| (1 + x^2): the argument of tanh or exp has x's relative error, where the bell is
    steep.
    """
    rule = of_terms(24, lambda dy, x: np.abs(dy) * (1 + np.minimum(np.abs(x), 9) ** 2))
    for op, f in (("gelu_grad", gelu_grad), ("gelu_erf_grad", gelu_erf_grad)):
        for name in ("n17", "n1003", "row", "number", "empty"):
            a, b = SHAPES[name]
            yield Case(op, name, (normal(*a), normal(*b)), f, rule)
        yield Case(op, "range", (normal(4099), uniform(-12, 12, 4099)), f, rule)
        far = given([-1e30, -3e19, -40.0, 40.0, 3e19, 1e30])
        yield Case(op, "far", (normal(6), far), f, rule)
        grid = (normal(5, 3, 7), normal(5, 3, 7))
        yield Case(op, "grid", grid, f, rule, grad=(0, 1))


def divide_whole(a, b):
    return a - np.floor(a / b) * b


def both_nan(f):
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, f(a, b))


def logaddexp_terms(a, b):
    """The larger one, and what is added to it."""
    return np.abs(np.maximum(a, b)) + np.log1p(np.exp(-np.abs(a - b)))


# op: NumPy's function, rule, gradient?, fill of b
BINARY = {
    "add": (np.add, rounded(1), True, normal),
    "sub": (np.subtract, rounded(1), True, normal),
    "mul": (np.multiply, rounded(1), True, normal),
    "div": (np.divide, rounded(1), True, positive),
    "logaddexp": (np.logaddexp, of_terms(16, logaddexp_terms), True, normal),
    "maximum": (both_nan(np.maximum), exact, True, normal),
    "minimum": (both_nan(np.minimum), exact, True, normal),
    "eq": (np.equal, exact, False, None),
    "ne": (np.not_equal, exact, False, None),
    "lt": (np.less, exact, False, None),
    "le": (np.less_equal, exact, False, None),
    "gt": (np.greater, exact, False, None),
    "ge": (np.greater_equal, exact, False, None),
    "logical_and": (np.logical_and, exact, False, None),
    "logical_or": (np.logical_or, exact, False, None),
}
# name: shapes of a and b
SHAPES = {
    "n1": ((1,), (1,)),
    "n17": ((17,), (17,)),
    "n1003": ((1003,), (1003,)),
    "row": ((9, 33), (33,)),
    "column": ((9, 33), (9, 1)),
    "outer": ((7, 1), (1, 31)),
    "number": ((), (5, 3)),
    "middle": ((3, 1, 5), (3, 17, 5)),
    "rank5": ((2, 1, 3, 1, 5), (1, 4, 3, 2, 1)),
    "empty": ((0, 3), (1, 3)),
    "numbers": ((), ()),
}


def binary_cases():
    for op, (f, rule, has_grad, fill) in BINARY.items():
        draw = fill or (lambda *s: whole(-2, 2, *s))
        for name, (a, b) in SHAPES.items():
            grad = (0, 1) if has_grad and name in ("row", "outer", "number", "rank5") else ()
            first = apart if op in ("maximum", "minimum") else normal
            if not has_grad:
                first = draw
            inputs = (first(*a), draw(*b))
            if op in ("maximum", "minimum") and grad:
                # b halfway between a's values: no ties, and none within a difference step
                inputs = (apart(*a, gap=0.25), apart(*b, gap=0.25, offset=0.136))
            yield Case(op, name, inputs, f, rule, grad=grad)
        yield Case(op, "special", pairs(SPECIAL), f, rule)
    for name in ("row", "column", "number", "n1003"):
        a, b = SHAPES[name]
        inputs = (uniform(0.2, 5, *a), uniform(-3, 3, *b))
        yield Case("pow", name, inputs, np.power, ulps(2), grad=(0, 1) if name != "n1003" else ())
    yield Case("pow", "squares", (normal(65), given(2.0)), np.power, ulps(2))
    yield Case("pow", "whole", (normal(65), whole(-3, 5, 65)), np.power, ulps(2))
    yield Case(
        "pow",
        "special",
        pairs([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, np.inf, -np.inf, np.nan]),
        np.power,
        ulps(2),
    )
    f, rule, *_ = BINARY["logaddexp"]
    far = (uniform(-120, 120, 1003), uniform(-120, 120, 1003))
    yield Case("logaddexp", "far", far, f, rule, grad=(0, 1))
    # beside 0, every digit of what is small
    yield Case("logaddexp", "zero", (uniform(-100, 0, 1003), given(0.0)), f, rule, grad=(0,))
    yield Case("logaddexp", "int64", (ints(-9, 9, 33), ints(-9, 9, 33)), f, rule)
    for name in ("n17", "row", "outer", "number"):
        a, b = SHAPES[name]
        quarters = lambda *s: lambda rng: whole(-40, 40, *s)(rng) / 4 + 0.125  # noqa: E731
        yield Case(
            "remainder",
            name,
            (whole(-60, 60, *a), quarters(*b)),
            divide_whole,
            of_terms(3, lambda a, b: np.abs(a) + np.abs(b)),
        )
    for dtype in ("int64", "int32"):
        a, b = ints(-9, 9, 5, 33, dtype=dtype), ints(1, 7, 33, dtype=dtype)
        for op in ("add", "sub", "mul", "maximum", "minimum", "eq", "lt", "ge"):
            f = getattr(
                np,
                {
                    "add": "add",
                    "sub": "subtract",
                    "mul": "multiply",
                    "eq": "equal",
                    "lt": "less",
                    "ge": "greater_equal",
                }.get(op, op),
            )
            yield Case(op, dtype, (a, b), f)
        yield Case("remainder", dtype, (a, b), np.mod)
        yield Case("div", dtype, (a, b), lambda x, y: x / y, rounded(1))
    promote = {
        "int8": ("int8", "uint8", np.int16),
        "uint8": ("uint8", "int32", np.int32),
        "bool": ("bool", "int64", np.int64),
    }
    for name, (left, right, out) in promote.items():
        a = bits(33) if left == "bool" else ints(0, 9, 33, dtype=left)
        yield Case(
            "add",
            f"{name}-{right}",
            (a, ints(0, 9, 33, dtype=right)),
            lambda x, y, out=out: x.astype(out) + y.astype(out),
        )
    yield Case("mul", "int64-float", (ints(-9, 9, 33), normal(33)), np.multiply, rounded(1))
    yield Case("logical_and", "bool", (bits(33), bits(33)), np.logical_and)
    yield Case("mul", "bool", (bits(33), bits(33)), np.logical_and)


def relu_grad_cases():
    """dy where y > 0, else 0, whatever dy is there: a NaN in y stops the gradient."""

    def f(dy, y):
        return np.where(y > 0, dy, 0.0)

    for name in ("n17", "n1003", "row", "number", "empty"):
        a, b = SHAPES[name]
        yield Case("relu_grad", name, (normal(*a), normal(*b)), f)
    yield Case("relu_grad", "special", pairs(SPECIAL), f)
    yield Case("relu_grad", "grid", (normal(5, 3, 7), apart(5, 3, 7)), f, grad=(0,))


def integer_cases():
    """Integers that float32 can't hold: compared with a number, and divided in float64."""

    def compare(g, ids):
        return g.add("gt", [ids[0], g.number("float32", 2.0**24)])

    def divide(g, ids):
        a, b = (g.add("cast", [i], dtype="float64")[0] for i in ids)
        (ratio,) = g.add("div", [a, b])
        return g.add("gt", [ratio, g.number("float32", 2.0**25)])

    for name, shape in (("int64-number", (33,)), ("int64-number-scalar", ())):
        near = ints(2**24, 2**24 + 2, *shape)
        yield Case("gt", name, (near,), lambda x: x > 2**24, build=compare)
    for name, shape in (("int64-float64", (33,)), ("int64-float64-scalars", ())):
        near = ints(3 * 2**25, 3 * 2**25 + 2, *shape)
        yield Case("div", name, (near, given(3, "int64")), lambda a, b: a / b > 2**25, build=divide)


def where_cases():
    def choose(c, a, b):
        return np.where(c != 0, a, b)

    yield Case("where", "n1003", (bits(1003), normal(1003), normal(1003)), choose)
    yield Case("where", "broadcast", (bits(7, 1), normal(33), normal(7, 33)), choose, grad=(1, 2))
    yield Case("where", "numbers", (bits(9, 3), normal(), normal()), choose, grad=(1, 2))
    yield Case("where", "float", (whole(-1, 1, 65), normal(65), normal(65)), choose, grad=(1, 2))
    yield Case(
        "where", "hides", (bits(65), sprinkled(normal(65), [np.nan, np.inf]), normal(65)), choose
    )
    yield Case("where", "int64", (bits(65), ints(-5, 5, 65), ints(-5, 5, 1)), choose)
    yield Case("where", "empty", (bits(0), normal(0), normal(1)), choose)


FLOATS = {"float32": np.float64, "float64": np.float64}  # ref holds every float as float64


def cast_cases():
    sources = {
        "float": lambda: whole(-100, 100, 65),
        "int64": lambda: ints(-100, 100, 65),
        "int32": lambda: ints(-100, 100, 65, dtype="int32"),
        "bool": lambda: bits(65),
    }
    for source, fill in sources.items():
        for dtype in ("float32", "float64", "int64", "int32", "int16", "int8", "bool"):
            out = FLOATS.get(dtype, dtype)
            yield Case(
                "cast",
                f"{source}-{dtype}",
                (fill(),),
                lambda x, out=out: x.astype(out),
                attrs={"dtype": dtype},
                grad=(0,) if source == "float" and dtype[0] == "f" else (),
            )
    yield Case(
        "cast", "uint8", (ints(0, 255, 65),), lambda x: x.astype(np.uint8), attrs={"dtype": "uint8"}
    )
    yield Case(
        "cast",
        "truncates",
        (given(np.arange(-9.75, 10, 0.5)),),
        lambda x: np.trunc(x).astype(np.int64),
        attrs={"dtype": "int64"},
    )
    for dtype in ("bfloat16", "float16"):
        # there and back: rounded once to 16 bits (not at all on ref, which is float64 throughout)
        yield Case(
            "cast",
            dtype,
            (whole(-128, 128, 1003),),
            lambda x: x,
            build=lambda g, ids, d=dtype: g.add(
                "cast", g.add("cast", ids, dtype=d), dtype="float32"
            ),
        )


def chain_cases():
    """Pointwise chains, which fusion joins: with broadcasts, and with sums at the end."""

    def swish(g, ids):
        (s,) = g.add("sigmoid", [ids[0]])
        (y,) = g.add("mul", [ids[0], s])
        return g.add("add", [y, ids[1]])

    def value(x, b):
        return x * sigmoid(x) + b

    def scale(x, b):
        return np.abs(x) + np.abs(b)

    for name, (a, b) in {
        "row": ((64, 33), (33,)),
        "tall": ((1003, 5), (5,)),
        "n1": ((1,), (1,)),
        "column": ((17, 65), (17, 1)),
        "wide": ((2, 3001), ()),
    }.items():
        yield Case(
            "chain",
            f"swish-{name}",
            (normal(*a), normal(*b)),
            value,
            of_terms(10, scale),
            build=swish,
            grad=(0, 1),
        )

    def square_sum(axes):
        def build(g, ids):
            (d,) = g.add("sub", ids)
            (d,) = g.add("mul", [d, d])
            return g.add("sum", [d], axes=axes)

        return build

    for axes in ((), (0,), (1,)):
        yield Case(
            "chain",
            f"sum{axes}",
            (normal(67, 33), normal(33)),
            lambda x, b, axes=axes: ((x - b) ** 2).sum(axes or None),
            of_terms(
                67 * 33 + 3,
                lambda x, b, axes=axes: ((np.abs(x) + np.abs(b)) ** 2).sum(axes or None),
            ),
            build=square_sum(axes),
            grad=(0, 1),
            unfused_bits=False,
        )


CASES = [
    *(*unary_cases(), *gelu_cases(), *gelu_grad_cases(), *binary_cases(), *where_cases()),
    *(*relu_grad_cases(), *cast_cases(), *integer_cases(), *chain_cases()),
]
assert SIZES
