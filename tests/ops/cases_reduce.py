"""Cases of the families matmul, reduce and softmax."""

import numpy as np
from ops.fills import SIZES, apart, given, ints, normal, sprinkled, uniform, whole
from ops.harness import Case, exact, of_largest, of_terms, rounded

# ---------------------------------------------------------------------------- matmul


def swapped(a, trans):
    return np.swapaxes(a, -1, -2) if trans else a


def multiply(trans_a, trans_b):
    def f(a, b, bias=None):
        y = swapped(a, trans_a) @ swapped(b, trans_b)
        return y if bias is None else y + bias

    return f


def matmul_rule(trans_a, trans_b):
    f = multiply(trans_a, trans_b)

    def rule(inputs, outputs):
        k = swapped(inputs[0], trans_a).shape[-1]
        return [(k + 2, f(*(np.abs(x) for x in inputs)))]

    return rule


def matmul_case(name, a, b, bias=None, *, trans_a=0, trans_b=0, fill=normal, grad=True):
    shapes = [a, b] if bias is None else [a, b, bias]
    return Case(
        "matmul",
        name,
        tuple(fill(*s) for s in shapes),
        multiply(trans_a, trans_b),
        matmul_rule(trans_a, trans_b),
        {"trans_a": trans_a, "trans_b": trans_b},
        grad=tuple(range(len(shapes))) if grad else (),
    )


def matmul_cases():
    for n in SIZES[:-1]:
        yield matmul_case(f"cube{n}", (n, n), (n, n), (n,))
    for m, k, n in (
        (1, 1003, 1),
        (1003, 1, 5),
        (5, 1, 1003),
        (1, 65, 257),
        (257, 65, 1),
        (97, 130, 61),
    ):
        for trans_a in (0, 1):
            for trans_b in (0, 1):
                a = (k, m) if trans_a else (m, k)
                b = (n, k) if trans_b else (k, n)
                yield matmul_case(
                    f"{m}x{k}x{n}-{'t' * trans_a or 'n'}{'t' * trans_b or 'n'}",
                    *(a, b, (n,)),
                    trans_a=trans_a,
                    trans_b=trans_b,
                )
    yield matmul_case("batched", (3, 5, 7), (3, 7, 9))
    yield matmul_case("one-b", (3, 5, 7), (7, 9), (9,))
    yield matmul_case("one-a", (5, 7), (3, 7, 9))
    yield matmul_case("broadcast", (2, 1, 5, 7), (3, 7, 4))
    yield matmul_case("one-b-nt", (3, 5, 7), (9, 7), trans_b=1)
    yield matmul_case("one-b-tn", (3, 7, 5), (7, 9), trans_a=1)
    yield matmul_case("batched-tt", (3, 7, 5), (3, 9, 7), trans_a=1, trans_b=1)
    yield matmul_case("no-rows", (0, 5), (5, 3), (3,), grad=False)
    yield matmul_case("no-inner", (4, 0), (0, 3), (3,), grad=False)
    yield matmul_case("no-columns", (4, 5), (5, 0), (0,), grad=False)

    def whole_numbers(*s):
        return whole(-8, 8, *s)

    for m, k, n in ((33, 129, 65), (256, 64, 128), (7, 700, 10)):
        yield Case(
            "matmul",
            f"exact-{m}x{k}x{n}",
            (whole_numbers(m, k), whole_numbers(k, n), whole_numbers(n)),
            multiply(0, 0),
        )
    yield Case(
        "matmul",
        "nan-row",
        (lambda rng: np.where(np.arange(5)[:, None] == 2, np.nan, normal(5, 6)(rng)), normal(6, 4)),
        multiply(0, 0),
        matmul_rule(0, 0),
    )
    yield Case(
        "matmul",
        "inf",
        (
            lambda rng: np.where(np.arange(5)[:, None] == 2, np.inf, 1.0) * np.ones((5, 6)),
            given(np.ones((6, 4))),
        ),
        multiply(0, 0),
    )


# ---------------------------------------------------------------------------- reductions

AXES = {
    "all": ((5, 33), ()),
    "rows": ((65, 33), (0,)),
    "columns": ((65, 33), (1,)),
    "negative": ((9, 4, 7), (-2,)),
    "ends": ((3, 5, 7), (0, 2)),
    "first-two": ((3, 5, 7), (0, 1)),
    "last-two": ((3, 5, 7), (1, 2)),
    "middle": ((2, 9, 3, 5), (1, 2)),
    "one": ((4, 1, 3), (1,)),
    "rank0": ((), ()),
    "wide": ((3, 4099), (1,)),
    "tall": ((4099, 3), (0,)),
    "alternate": ((2, 3, 4, 5, 3), (0, 2, 4)),
}


def axis_tuple(axes, rank):
    return tuple(a % rank for a in axes) if axes else tuple(range(rank))


def count(shape, axes):
    return int(np.prod([shape[a] for a in axis_tuple(axes, len(shape))], dtype=np.int64))


def reduce_cases():
    for name, (shape, axes) in AXES.items():
        n = count(shape, axes)
        for keepdim in (0, 1) if name in ("columns", "ends", "rows") else (0,):
            tag = f"{name}{'-keep' * keepdim}"
            attrs = {"axes": axes, "keepdim": keepdim}
            along = {"axis": axis_tuple(axes, len(shape)), "keepdims": bool(keepdim)}
            grad = (0,) if n <= 500 else ()
            yield Case(
                "sum",
                tag,
                (normal(*shape),),
                lambda x, k=along: x.sum(**k),
                of_terms(n, lambda x, k=along: np.abs(x).sum(**k)),
                attrs,
                grad=(0,),
                unfused_bits=False,
            )
            yield Case(
                "sum",
                f"{tag}-exact",
                (whole(-99, 99, *shape),),
                lambda x, k=along: x.sum(**k),
                exact,
                attrs,
            )
            yield Case(
                "amax",
                tag,
                (apart(*shape),),
                lambda x, k=along: x.max(**k),
                exact,
                attrs,
                grad=grad,
            )
            yield Case(
                "amin",
                tag,
                (apart(*shape),),
                lambda x, k=along: x.min(**k),
                exact,
                attrs,
                grad=grad,
            )
            if n < 50:
                yield Case(
                    "prod",
                    tag,
                    (uniform(0.5, 1.5, *shape),),
                    lambda x, k=along: x.prod(**k),
                    rounded(n),
                    attrs,
                    grad=(0,),
                )
        yield moments_case(name, shape, axes)
    zeros = (given([[0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [1.0, 2.0, 3.0]]),)
    yield Case("prod", "zeros", zeros, lambda x: x.prod(1), rounded(3), {"axes": (1,)}, grad=(0,))
    for op, f in (("amax", np.max), ("amin", np.min)):
        yield Case(op, "ties", (whole(0, 2, 9, 17),), lambda x, f=f: f(x, 1), exact, {"axes": (1,)})
        yield Case(
            op,
            "nan",
            (sprinkled(normal(9, 17), [np.nan], 40),),
            lambda x, f=f: f(x, 1),
            exact,
            {"axes": (1,)},
        )
        yield Case(
            op,
            "inf",
            (sprinkled(normal(9, 17), [np.inf, -np.inf], 7),),
            lambda x, f=f: f(x, 0),
            exact,
            {"axes": (0,)},
        )
        yield Case(
            op, "int64", (ints(-9, 9, 9, 17),), lambda x, f=f: f(x, 1), exact, {"axes": (1,)}
        )
    yield Case(
        "sum",
        "int32",
        (ints(-9, 9, 9, 17, dtype="int32"),),
        lambda x: x.sum(1, dtype=np.int64),
        exact,
        {"axes": (1,)},
    )
    yield Case("sum", "bool", (ints(0, 1, 9, 17, dtype="bool"),), lambda x: x.sum(dtype=np.int64))
    yield Case("prod", "int64", (ints(-3, 3, 9, 7),), lambda x: x.prod(0), exact, {"axes": (0,)})
    yield Case(
        "sum",
        "nan",
        (sprinkled(normal(9, 17), [np.nan], 40),),
        lambda x: x.sum(1),
        of_terms(17, lambda x: np.abs(x).sum(1)),
        {"axes": (1,)},
    )
    yield Case(
        "sum",
        "inf",
        (sprinkled(whole(1, 3, 9, 17), [np.inf], 40),),
        lambda x: x.sum(1),
        exact,
        {"axes": (1,)},
    )
    yield Case("sum", "no-elements", (normal(4, 0),), lambda x: x.sum(1), exact, {"axes": (1,)})
    yield Case("prod", "no-elements", (normal(4, 0),), lambda x: x.prod(1), exact, {"axes": (1,)})
    yield Case("sum", "no-rows", (normal(0, 4),), lambda x: x.sum(1), exact, {"axes": (1,)})
    yield Case("amax", "no-rows", (normal(0, 4),), lambda x: x.max(1), exact, {"axes": (1,)})


def moments_case(name, shape, axes):
    along = axis_tuple(axes, len(shape))
    n = count(shape, axes)

    def rule(inputs, outputs):
        size = np.abs(inputs[0]).mean(along)
        spread = ((np.abs(inputs[0]) + np.abs(inputs[0]).mean(along, keepdims=True)) ** 2).mean(
            along
        )
        return [(n + 2, size), (n + 6, spread)]

    return Case(
        "moments",
        name,
        (normal(*shape),),
        lambda x: (x.mean(along), x.var(along)),
        rule,
        {"axes": axes},
        grad=(0,) if n <= 500 else (),
    )


def moments_offset():
    """Values far from 0: the variance must not be a difference of large numbers."""

    def rule(inputs, outputs):
        return [(70, np.abs(inputs[0]).mean(1)), (70, np.full(5, 1.0))]

    return Case(
        "moments",
        "offset",
        (lambda rng: 4096.0 + whole(-16, 16, 5, 64)(rng) / 16,),
        lambda x: (x.mean(1), x.var(1)),
        rule,
        {"axes": (1,)},
    )


def scan_cases():
    for op, f in (("argmax", np.argmax), ("argmin", np.argmin)):
        for shape, axis in (
            ((9, 17), 1),
            ((65, 5), 0),
            ((3, 4, 5), -2),
            ((1003,), 0),
            ((33, 1), 1),
        ):
            tag = "x".join(map(str, shape)) + f"@{axis}"
            yield Case(
                op, tag, (normal(*shape),), lambda x, f=f, a=axis: f(x, a), exact, {"axis": axis}
            )
        yield Case(
            op,
            "keep",
            (normal(9, 17),),
            lambda x, f=f: f(x, 1, keepdims=True),
            exact,
            {"axis": 1, "keepdim": 1},
        )
        yield Case(op, "ties", (whole(0, 2, 9, 17),), lambda x, f=f: f(x, 1), exact, {"axis": 1})
        yield Case(
            op,
            "nan",
            (sprinkled(normal(9, 17), [np.nan], 40),),
            lambda x, f=f: f(x, 1),
            exact,
            {"axis": 1},
        )
        yield Case(op, "int64", (ints(-9, 9, 9, 17),), lambda x, f=f: f(x, 0), exact, {"axis": 0})
    for shape, axis in (((9, 17), 1), ((65, 5), 0), ((3, 4, 5), -2), ((1003,), 0), ((0, 3), 0)):
        for reverse in (0, 1):

            def total(x, a=axis, r=reverse):
                return np.flip(np.cumsum(np.flip(x, a), a), a) if r else np.cumsum(x, a)

            tag = "x".join(map(str, shape)) + f"@{axis}" + "-reverse" * reverse
            yield Case(
                "cumsum",
                tag,
                (normal(*shape),),
                total,
                of_terms(shape[axis], lambda x, t=total: t(np.abs(x))),
                {"axis": axis, "reverse": reverse},
                grad=(0,) if 0 not in shape else (),
            )
    yield Case(
        "cumsum",
        "int32",
        (ints(-9, 9, 9, 17, dtype="int32"),),
        lambda x: np.cumsum(x, 1, dtype=np.int64),
        exact,
        {"axis": 1},
    )


# ---------------------------------------------------------------------------- median


def median(x, axis, keep=False):
    """The lower one in the middle, and the first that equals it; or the first NaN."""
    middle = np.take(np.sort(x, axis), [(x.shape[axis] - 1) // 2], axis)
    nan = x != x
    chosen = np.where(nan.any(axis, keepdims=True), nan, x == middle)
    places = chosen.argmax(axis, keepdims=True)
    values = np.take_along_axis(x, places, axis)
    return tuple(y if keep else y.squeeze(axis) for y in (values, places))


def median_case(name, fill, axis, grad=()):
    return Case("median", name, (fill,), lambda x: median(x, axis), exact, {"axis": axis}, grad)


def median_cases():
    for n in (*SIZES, 2, 64, 4099):
        yield median_case(f"n{n}", apart(3, n), 1, (0,) if n < 100 else ())
    for shape, axis in (((9, 17), 0), ((1003, 5), 0), ((3, 4, 5), -2), ((6, 2, 1), 1), ((7,), 0)):
        tag = "x".join(map(str, shape)) + f"@{axis}"
        yield median_case(tag, apart(*shape), axis, (0,))
    yield Case(
        "median",
        "keep",
        (apart(9, 4, 3),),
        lambda x: median(x, 1, True),
        exact,
        {"axis": 1, "keepdim": 1},
        grad=(0,),
    )
    for axis in (0, 1):
        yield median_case(f"ties@{axis}", whole(0, 2, 33, 18), axis)
        yield median_case(f"nan@{axis}", sprinkled(normal(33, 18), [np.nan], 40), axis)
    yield median_case("equal", given(np.full((3, 8), -0.5)), 1)
    yield median_case("special", sprinkled(normal(9, 19), [np.inf, -np.inf, 0.0, -0.0], 2), 1)
    # zeros of both signs, the float32 numbers beside them that are not subnormal, and larger ones
    near = [0.0, -0.0, 2.0**-126, -(2.0**-126), 0.5, -2.0, 7.0, -100.0]
    yield median_case("zeros", lambda rng: rng.choice(near, (999, 7)), 1)
    tiny = [100.0, -(2.0**-149), 5.0, 2.0**-149, -3.0]
    yield median_case("subnormal", lambda rng: rng.choice(tiny, (999, 2)), 1)
    yield median_case("subnormals", lambda rng: rng.choice(tiny, (999, 5)), 1)
    yield median_case("no-rows", normal(0, 4), 1)
    for dtype in ("int64", "int32", "int16", "uint8", "bool"):
        yield median_case(dtype, ints(0, 1 if dtype == "bool" else 9, 9, 18, dtype=dtype), 1)
    yield median_case("large-ints", ints(2**62, 2**62 + 3, 9, 18), 1)

    def rounded_median(dtype):
        def build(g, ids):
            values, places = g.add("median", g.add("cast", ids, dtype=dtype), axis=0)
            return [*g.add("cast", [values], dtype="float32"), places]

        return build

    for dtype in ("bfloat16", "float16"):
        yield Case(
            "median",
            dtype,
            (whole(-128, 128, 65, 7),),
            lambda x: median(x, 0),
            build=rounded_median(dtype),
        )


# ---------------------------------------------------------------------------- softmax


def log_softmax(x):
    top = x - np.max(x, -1, keepdims=True)
    return top - np.log(np.exp(top).sum(-1, keepdims=True))


def softmax(x):
    return np.exp(log_softmax(x))


def softmax_rule(op):
    def rule(inputs, outputs):
        x = inputs[0]
        with np.errstate(all="ignore"):
            size = np.abs(x - np.max(x, -1, keepdims=True)) + x.shape[-1] + 4
            return [(2, size * (outputs[0] if op == "softmax" else 1))]

    return rule


def softmax_cases():
    for op, f in (("softmax", softmax), ("log_softmax", log_softmax)):
        rule = softmax_rule(op)
        for n in SIZES:
            yield Case(op, f"n{n}", (normal(5, n),), f, rule, grad=(0,))
        yield Case(op, "rank1", (normal(7),), f, rule, grad=(0,))
        yield Case(op, "rank3", (normal(2, 3, 7),), f, rule, grad=(0,))
        yield Case(op, "tall", (normal(1003, 10),), f, rule)
        yield Case(op, "large", (uniform(-1e4, 1e4, 9, 17),), f, rule)
        yield Case(op, "equal", (given(np.full((3, 8), 88.0)),), f, rule)
        yield Case(op, "nan", (sprinkled(normal(9, 17), [np.nan], 40),), f, rule)
        yield Case(op, "inf", (sprinkled(normal(9, 17), [np.inf], 40),), f, rule)
        yield Case(op, "minus-inf", (sprinkled(normal(9, 17), [-np.inf], 5),), f, rule)
        yield Case(op, "no-rows", (normal(0, 5),), f, rule)


CASES = [
    *(*matmul_cases(), *reduce_cases(), moments_offset(), *scan_cases()),
    *(*median_cases(), *softmax_cases()),
]
assert of_largest
