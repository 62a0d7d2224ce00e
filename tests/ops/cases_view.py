"""Cases of the families view, copy and index: nothing is computed, so everything is exact (but
for the sums of equal indices)."""

import numpy as np
from ops.fills import ints, normal, sprinkled, whole
from ops.harness import Case, exact, rounded

PAD_MODES = ("constant", "reflect", "edge", "wrap")


def pads_of(*pads):
    """The attributes of `pad` from counts before and after each dim in turn."""
    return {"before": pads[::2], "after": pads[1::2]}


def view_cases():
    for name, shape, to in (
        ("flatten", (3, 4, 5), (60,)),
        ("guess", (3, 4, 5), (5, -1)),
        ("rank0", (1, 1), ()),
        ("rank8", (16,), (2, 1, 2, 1, 2, 1, 2, 1)),
        ("empty", (0, 3), (3, 0)),
        ("column", (1003,), (1003, 1)),
    ):
        final = np.empty(shape).reshape(to).shape
        yield Case(
            "reshape",
            name,
            (normal(*shape),),
            lambda x, f=final: x.reshape(f),
            exact,
            {"shape": to},
            grad=(0,),
        )
    yield Case(
        "reshape",
        "int32",
        (ints(0, 9, 4, 6, dtype="int32"),),
        lambda x: x.reshape(3, 8),
        exact,
        {"shape": (3, 8)},
    )
    yield Case("detach", "grid", (normal(3, 5),), lambda x: x)
    yield Case("detach", "int64", (ints(0, 9, 7),), lambda x: x)
    yield Case("surrogate", "grid", (normal(3, 5), normal(3, 5)), lambda x, y: x, exact)
    yield Case(
        "surrogate",
        "of itself",
        (normal(3, 5),),
        lambda x: x,
        exact,
        grad=(0,),
        build=lambda graph, ids: graph.add("surrogate", [ids[0], ids[0]]),
    )
    for shape, dims in (
        ((3, 5), (1, 0)),
        ((2, 3, 4), (2, 0, 1)),
        ((2, 3, 4), (-1, -2, -3)),
        ((65, 33), (1, 0)),
        ((1, 7), (1, 0)),
        ((2, 3, 4, 5), (0, 2, 1, 3)),
        ((5,), (0,)),
        ((), ()),
        ((0, 3), (1, 0)),
        ((257, 3), (1, 0)),
        ((2, 2, 2, 3, 2, 2), (5, 3, 1, 0, 2, 4)),
    ):
        tag = "x".join(map(str, shape)) + "to" + ",".join(map(str, dims))
        yield Case(
            "permute",
            tag,
            (normal(*shape),),
            lambda x, d=dims: x.transpose(d),
            exact,
            {"dims": dims},
            grad=(0,),
        )
    for dtype in ("int64", "int32", "int16", "uint8", "bool"):
        yield Case(
            "permute",
            dtype,
            (ints(0, 1, 9, 17, dtype=dtype),),
            lambda x: x.T,
            exact,
            {"dims": (1, 0)},
        )
    for shape, to in (
        ((3, 1), (3, 5)),
        ((1, 7), (9, 7)),
        ((), (4, 3)),
        ((3, 1), (2, -1, 4)),
        ((1,), (1003,)),
        ((1, 1, 1), (2, 3, 4)),
        ((3, 0), (2, 3, 0)),
        ((5,), (5,)),
    ):
        tag = "x".join(map(str, shape)) + "to" + "x".join(map(str, to))
        final = tuple(np.broadcast_shapes(shape, tuple(1 if d == -1 else d for d in to)))
        yield Case(
            "expand",
            tag,
            (normal(*shape),),
            lambda x, f=final: np.broadcast_to(x, f),
            exact,
            {"shape": to},
            grad=(0,),
        )
    yield Case(
        "expand",
        "int32",
        (ints(0, 9, 3, 1, dtype="int32"),),
        lambda x: np.broadcast_to(x, (3, 4)),
        exact,
        {"shape": (3, 4)},
    )


def join_cases():
    for axis, shapes in (
        (0, ((3, 5), (1, 5), (4, 5))),
        (1, ((3, 5), (3, 1), (3, 33))),
        (-1, ((2, 3, 7), (2, 3, 2))),
        (0, ((5,),)),
        (0, ((0, 3), (2, 3))),
        (1, ((65, 17), (65, 16))),
        (-2, ((2, 3, 7), (2, 1, 7))),
    ):
        tag = "+".join("x".join(map(str, s)) for s in shapes) + f"@{axis}"
        yield Case(
            "concat",
            tag,
            tuple(normal(*s) for s in shapes),
            lambda *xs, a=axis: np.concatenate(xs, a),
            exact,
            {"axis": axis},
            grad=tuple(range(len(shapes))),
        )
    yield Case(
        "concat",
        "int64",
        (ints(0, 9, 3, 2), ints(0, 9, 3, 4)),
        lambda a, b: np.concatenate((a, b), 1),
        exact,
        {"axis": 1},
    )
    yield Case(
        "concat",
        "many",
        tuple(normal(1, 3) for _ in range(20)),
        lambda *xs: np.concatenate(xs),
        exact,
        {"axis": 0},
    )
    for shape, axis, start, stop, step in (
        ((10,), 0, 2, 8, 1),
        ((10,), 0, 0, 10, 3),
        ((10,), 0, -4, -1, 1),
        ((10,), 0, 7, 3, 1),
        ((10,), 0, -99, 99, 1),
        ((9, 17), 1, 3, 16, 1),
        ((9, 17), 1, 1, 17, 2),
        ((9, 17), 0, 1, 9, 4),
        ((9, 17), -1, 5, 6, 1),
        ((3, 65, 5), 1, 31, 64, 1),
        ((1003, 3), 0, 1, 1003, 7),
        ((4, 0), 1, 0, 5, 1),
        ((9, 17), 0, -2, 2**63 - 1, 1),
        ((9, 17), 1, 2, 3, 2**63 - 1),
    ):

        def cut(x, a=axis, s=slice(start, stop, step)):
            return x[tuple(s if d == a % x.ndim else slice(None) for d in range(x.ndim))]

        tag = "x".join(map(str, shape)) + f"@{axis}[{start},{stop},{step}]"
        yield Case(
            "slice",
            tag,
            (normal(*shape),),
            cut,
            exact,
            {"axis": axis, "start": start, "stop": stop, "step": step},
            grad=(0,),
        )
    yield Case(
        "slice",
        "int32",
        (ints(0, 9, 9, dtype="int32"),),
        lambda x: x[1:8:2],
        exact,
        {"axis": 0, "start": 1, "stop": 8, "step": 2},
    )
    for shape, axis, size in (
        ((10,), 0, 4),
        ((9, 17), 1, 5),
        ((9, 17), 0, 3),
        ((3, 65, 5), -2, 1),
        ((4, 6), 1, 99),
        ((0, 3), 0, 2),
        ((300,), 0, 1),
    ):

        def pieces(x, a=axis, n=size):
            return tuple(np.split(x, range(n, max(x.shape[a], 1), n), a))

        tag = "x".join(map(str, shape)) + f"@{axis}by{size}"
        attrs = {"axis": axis, "size": size}
        yield Case("split", tag, (normal(*shape),), pieces, exact, attrs, grad=(0,))
    yield Case(
        "split",
        "int32",
        (ints(0, 9, 5, 4, dtype="int32"),),
        lambda x: tuple(np.split(x, 2, 1)),
        exact,
        {"axis": 1, "size": 2},
    )
    yield from sibling_cases()
    for mode, name in enumerate(PAD_MODES):
        for shape, pads in (
            ((5,), (2, 3)),
            ((4, 6), (1, 0, 2, 3)),
            ((2, 4, 6), (0, 0, 1, 2, 3, 1)),
            ((3, 33), (2, 2, 16, 5)),
        ):

            def padded(x, p=pads, m=name):
                widths = [(p[2 * d], p[2 * d + 1]) for d in range(x.ndim)]
                extra = {"constant_values": 1.5} if m == "constant" else {}
                return np.pad(x, widths, mode=m, **extra)

            tag = f"{name}-" + "x".join(map(str, shape))
            attrs = pads_of(*pads) | {"mode": mode} | ({"value": 1.5} if mode == 0 else {})
            yield Case("pad", tag, (normal(*shape),), padded, exact, attrs, grad=(0,))
    yield Case(
        "pad",
        "negative",
        (normal(5, 7),),
        lambda x: np.pad(x, ((2, 0), (0, 1)))[:-1, 2:],
        exact,
        pads_of(2, -1, -2, 1),
        grad=(0,),
    )
    yield Case(
        "pad",
        "empty",
        (normal(0, 2),),
        lambda x: np.full((3, 2), 9.0),
        exact,
        pads_of(1, 2, 0, 0) | {"value": 9.0},
    )
    yield Case(
        "pad", "nothing", (normal(3, 2),), lambda x: x, exact, pads_of(0, 0, 0, 0), grad=(0,)
    )
    for shape, axes in (
        ((7,), (0,)),
        ((3, 17), (1,)),
        ((3, 17), (0, 1)),
        ((2, 3, 5), (-1,)),
        ((65, 4), (0,)),
        ((0, 3), (1,)),
    ):
        tag = "x".join(map(str, shape)) + "@" + ",".join(map(str, axes))
        yield Case(
            "flip",
            tag,
            (normal(*shape),),
            lambda x, a=axes: np.flip(x, a),
            exact,
            {"axes": axes},
            grad=(0,),
        )
    yield Case(
        "flip", "int64", (ints(0, 9, 9, 17),), lambda x: np.flip(x, 1), exact, {"axes": (1,)}
    )


# Several parts of one value: axis, start, stop, step of each, or None for all of it.
SIBLINGS = {
    "in-a-row": tuple((1, t, t + 1, 1) for t in range(12)),
    "backwards": tuple((1, t, t + 1, 1) for t in reversed(range(12))),
    "with-gaps": ((1, 1, 3, 1), (1, 3, 6, 1), (1, 8, 11, 1)),
    "few": ((1, 2, 3, 1), (1, 9, 10, 1)),
    "leading": tuple((0, t, t + 2, 1) for t in range(0, 6, 2)),
    "leading-gap": ((0, 4, 6, 1), (0, 0, 2, 1)),
    "overlapping": tuple((1, t, t + 4, 1) for t in range(9)),
    "twice": ((1, 0, 6, 1), (1, 6, 12, 1), (1, 0, 6, 1)),
    "strided": ((1, 0, 12, 2), (1, 1, 12, 2)),
    "strided-and-rest": ((1, 0, 6, 2), (1, 6, 12, 1)),
    "axis-by-axis": ((0, 0, 1, 1), (1, 1, 12, 1)),
    "two-axes": ((0, 0, 3, 1), (1, 0, 6, 1), (0, 3, 6, 1), (1, 6, 12, 1)),
    "empty": ((1, 0, 6, 1), (1, 6, 6, 1), (1, 6, 12, 1)),
    "all-between": ((1, 0, 6, 1), None, (1, 6, 12, 1), (1, 3, 9, 1), None),
}


def sibling_cases():
    for name, parts in SIBLINGS.items():

        def build(graph, ids, parts=parts):
            # The value is made, so that its gradient goes on.
            (x,) = graph.add("mul", [ids[0], ids[0]])
            for part in parts:
                if part is None:
                    yield graph.add("neg", [x])[0]
                    continue
                attrs = dict(zip(("axis", "start", "stop", "step"), part))
                yield graph.add("slice", [x], **attrs)[0]

        def expect(x, parts=parts):
            cuts = (p and (slice(None),) * p[0] + (slice(*p[1:]),) for p in parts)
            return tuple(-x * x if cut is None else (x * x)[cut] for cut in cuts)

        yield Case(
            "slice",
            f"siblings-{name}",
            (normal(6, 12, 3),),
            expect,
            rounded(1),
            grad=(0,),
            build=build,
        )


def scattered(x, index, src, axis, add):
    out = x.copy()
    places = list(np.indices(index.shape))
    places[axis % x.ndim] = index
    for spot in np.ndindex(index.shape):
        where = tuple(p[spot] for p in places)
        out[where] = out[where] + src[spot] if add else src[spot]
    return out


def written(x, index, src, axis, add):
    out = np.moveaxis(x.copy(), axis, 0)
    rows = np.moveaxis(src, axis, 0)
    for k, i in enumerate(index):
        out[i] = out[i] + rows[k] if add else rows[k]
    return np.moveaxis(out, 0, axis)


def index_cases():
    grids = (
        ((7, 5), (3, 5), 0),
        ((7, 5), (7, 9), 1),
        ((4, 6, 5), (4, 2, 3), -2),
        ((33,), (65,), 0),
        ((9, 17), (9, 0), 1),
        ((65, 33), (65, 33), 1),
    )
    for shape, at, axis in grids:
        high = shape[axis] - 1
        tag = "x".join(map(str, shape)) + "by" + "x".join(map(str, at)) + f"@{axis}"

        def taken(x, i, a=axis):
            cut = tuple(
                slice(0, n) if d != a % x.ndim else slice(None) for d, n in enumerate(i.shape)
            )
            return np.take_along_axis(x[cut], i, a)

        yield Case(
            "gather",
            tag,
            (normal(*shape), ints(0, high, *at)),
            taken,
            exact,
            {"axis": axis},
            grad=(0,),
        )
        if all(a <= s for d, (a, s) in enumerate(zip(at, shape)) if d != axis % len(shape)):
            yield Case(
                "scatter",
                tag,
                (normal(*shape), ints(0, high, *at), normal(*at)),
                lambda x, i, s, a=axis: scattered(x, i, s, a, False),
                exact,
                {"axis": axis},
                grad=(0, 2),
            )
            yield Case(
                "scatter_add",
                tag,
                (whole(-9, 9, *shape), ints(0, high, *at), whole(-9, 9, *at)),
                lambda x, i, s, a=axis: scattered(x, i, s, a, True),
                exact,
                {"axis": axis},
                grad=(0, 2),
            )
    yield Case(
        "gather",
        "int32",
        (normal(7, 5), ints(0, 6, 3, 5, dtype="int32")),
        lambda x, i: np.take_along_axis(x, i, 0),
        exact,
        {"axis": 0},
    )
    yield Case(
        "gather",
        "of-ints",
        (ints(0, 99, 7, 5), ints(0, 6, 3, 5)),
        lambda x, i: np.take_along_axis(x, i, 0),
        exact,
        {"axis": 0},
    )
    yield Case(
        "gather",
        "nan",
        (sprinkled(normal(7, 5), [np.nan]), ints(0, 6, 3, 5)),
        lambda x, i: np.take_along_axis(x, i, 0),
        exact,
        {"axis": 0},
    )
    for shape, at, axis in (
        ((7, 5), (4,), 0),
        ((7, 5), (9,), 1),
        ((100, 16), (3, 4), 0),
        ((3, 7, 5), (2, 2), 1),
        ((7, 5), (), 0),
        ((1003, 3), (1003,), 0),
        ((9, 33), (0,), 0),
        ((50, 64), (33, 5), 0),
    ):
        high = shape[axis] - 1
        tag = "x".join(map(str, shape)) + "by" + "x".join(map(str, at)) + f"@{axis}"
        yield Case(
            "index_select",
            tag,
            (normal(*shape), ints(0, high, *at)),
            lambda x, i, a=axis: np.take(x, i, a),
            exact,
            {"axis": axis},
            grad=(0,),
        )
        if len(at) == 1:
            from_shape = list(shape)
            from_shape[axis] = at[0]
            yield Case(
                "index_add",
                tag,
                (whole(-9, 9, *shape), ints(0, high, *at), whole(-9, 9, *from_shape)),
                lambda x, i, s, a=axis: written(x, i, s, a, True),
                exact,
                {"axis": axis},
                grad=(0, 2),
            )
            yield Case(
                "index_copy",
                tag,
                (normal(*shape), ints(0, high, *at), normal(*from_shape)),
                lambda x, i, s, a=axis: written(x, i, s, a, False),
                exact,
                {"axis": axis},
                grad=(0, 2),
            )
    yield Case(
        "index_add",
        "equal",
        (normal(3, 5), lambda rng: np.zeros(40, np.int64), normal(40, 5)),
        lambda x, i, s: written(x, i, s, 0, True),
        lambda inp, out: [(41, np.abs(inp[0]) + np.abs(inp[2]).sum(0))],
        {"axis": 0},
        grad=(0, 2),
    )
    yield Case(
        "index_add",
        "padding",
        (normal(9, 3), lambda rng: np.maximum(rng.integers(-9, 9, 1500), 0), normal(1500, 3)),
        lambda x, i, s: written(x, i, s, 0, True),
        lambda inp, out: [(1501, written(np.abs(inp[0]), inp[1], np.abs(inp[2]), 0, True))],
        {"axis": 0},
        grad=(0, 2),
    )
    yield Case(
        "index_select",
        "int32",
        (normal(7, 5), ints(0, 6, 4, dtype="int32")),
        lambda x, i: x[i],
        exact,
        {"axis": 0},
        grad=(0,),
    )


def batch_cases():
    """BATCH_GATHER reads a dataset, which is no input: see test_batch_gather."""
    for dtype in ("float32", "int64"):
        yield Case(
            "batch_gather",
            dtype,
            (normal(9, 5) if dtype == "float32" else ints(0, 9, 9, 5), ints(0, 8, 4)),
            lambda x, i: x[i],
            exact,
            {"dtype": dtype},
        )
    yield Case(
        "batch_gather",
        "converts",
        (ints(0, 255, 9, 5, dtype="uint8"), ints(0, 8, 33)),
        lambda x, i: x[i].astype(np.float64),
        exact,
        {"dtype": "float32"},
    )


CASES = [*view_cases(), *join_cases(), *index_cases(), *batch_cases()]
assert rounded
