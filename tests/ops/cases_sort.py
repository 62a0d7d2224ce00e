"""Cases of the family sort: order along an axis, and places in sorted rows."""

import numpy as np
from ops.fills import SIZES, apart, given, ints, normal, sprinkled, whole
from ops.harness import Case

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0]


def order(x, axis, descending, k):
    """NumPy's stable order, which has NaN last; from the greatest down it is that of ranks."""
    if descending:
        _, rank = np.unique(x, return_inverse=True)
        places = np.argsort(-rank.reshape(x.shape), axis, kind="stable")
    else:
        places = np.argsort(x, axis, kind="stable")
    places = np.take(places, range(x.shape[axis] if k < 0 else k), axis)
    return np.take_along_axis(x, places, axis), places


def sort_case(name, fill, axis=-1, descending=0, k=-1, grad=()):
    attrs = {"axis": axis, "descending": descending, "k": k}
    return Case(
        "sort", name, (fill,), lambda x: order(x, axis, descending, k), attrs=attrs, grad=grad
    )


def both(name, fill, axis=-1, k=-1, grad=()):
    """In ascending and descending order."""
    yield sort_case(name, fill, axis, 0, k, grad)
    yield sort_case(name + "-down", fill, axis, 1, k, grad)


def rounded_sort(dtype):
    def build(g, ids):
        values, places = g.add("sort", g.add("cast", ids, dtype=dtype), axis=1, descending=1)
        return [*g.add("cast", [values], dtype="float32"), places]

    return build


def sort_cases():
    for n in (*SIZES, 2, 64, 2049):
        yield from both(f"n{n}", apart(3, n), grad=(0,) if n < 100 else ())
    for shape, axis in (((9, 17), 0), ((200, 5), 0), ((3, 4, 5), -2), ((6, 2, 1), 1), ((7,), 0)):
        tag = "x".join(map(str, shape)) + f"@{axis}"
        yield sort_case(tag, apart(*shape), axis, grad=(0,))
    for n in (5, 64, 100, 1003, 2100):
        for k in sorted({0, 1, 3, n // 20, n // 3}):
            yield from both(f"n{n}-k{k}", apart(4, n), k=k, grad=(0,) if n < 200 else ())
    yield sort_case("k@0", apart(90, 7), 0, 1, 4, (0,))
    for n in (33, 300, 1500):
        yield from both(f"ties{n}", whole(0, 4, 5, n))
        yield from both(f"ties{n}-k9", whole(0, 4, 5, n), k=9)
        yield from both(f"special{n}", sprinkled(normal(7, n), SPECIAL, 3))
        yield from both(f"special{n}-k20", sprinkled(normal(7, n), SPECIAL, 3), k=20)
        yield from both(f"nan{n}-k7", given(np.full((2, n), np.nan)), k=7)
    for n in (1500, 3000):  # what the last elements of each row are the best of
        yield from both(f"rising{n}-k5", given(np.arange(2 * n).reshape(2, n) / 7), k=5)
    yield from both("no-rows", normal(0, 4))
    yield from both("no-elements", normal(3, 0))
    for dtype in ("int64", "int32", "int16", "int8", "uint8", "bool"):
        low, high = {"bool": (0, 1), "uint8": (0, 255), "int8": (-128, 127)}.get(dtype, (-999, 999))
        for n in (20, 300):
            yield from both(f"{dtype}-{n}", ints(low, high, 6, n, dtype=dtype))
            yield from both(f"{dtype}-{n}-k4", ints(low, high, 6, n, dtype=dtype), k=4)
    for n in (20, 300):
        for k in (-1, 5):
            most = np.iinfo(np.int64).max
            yield from both(f"int64-ends-{n}-k{k}", ints(most - 9, most, 3, n), k=k)
            yield from both(f"int64-wide-{n}-k{k}", ints(-most - 1, most, 3, n), k=k)
            most32 = np.iinfo(np.int32).max
            wide = ints(-most32 - 1, most32, 3, n, dtype="int32")
            yield from both(f"int32-wide-{n}-k{k}", wide, k=k)
    for dtype in ("bfloat16", "float16"):
        yield Case(
            "sort",
            dtype,
            (whole(-128, 128, 7, 200),),
            lambda x: order(x, 1, 1, -1),
            build=rounded_sort(dtype),
        )


# ---------------------------------------------------------------------------- places


def places_in(side):
    def find(rows, values):
        if rows.ndim == 1:
            return np.searchsorted(rows, values, side)
        found = np.zeros(values.shape, np.int64)
        for at in np.ndindex(values.shape[:-1]):
            found[at] = np.searchsorted(rows[at], values[at], side)
        return found

    return find


def in_order(fill):
    """A fill whose rows ascend."""
    return lambda rng: np.sort(fill(rng), -1)


def search_case(name, rows, values, right, int32=0):
    find = places_in("right" if right else "left")
    return Case(
        "searchsorted",
        f"{name}-{'right' if right else 'left'}",
        (in_order(rows), values),
        lambda r, v: find(r, v).astype("int32" if int32 else "int64"),
        attrs={"right": right, "int32_out": int32},
    )


def search_cases():
    for right in (0, 1):
        for n in (0, 1, 2, 3, 7, 8, 9, 100, 1003):
            yield search_case(f"n{n}", whole(-20, 20, n), whole(-22, 22, 4, 9), right)
        for n in (1, 16, 17):
            yield search_case(f"rows{n}", whole(0, 9, 2, 3, n), whole(-1, 10, 2, 3, 5), right)
        special = sprinkled(normal(40), SPECIAL, 3)
        yield search_case("special", special, sprinkled(normal(30), SPECIAL, 2), right)
        yield search_case("int32-out", normal(17), normal(40), right, 1)
        yield search_case("number", normal(17), normal(), right)
        yield search_case("no-values", normal(17), normal(0), right)
        for dtype in ("int64", "int32", "int16", "int8", "uint8", "bool"):
            high = 1 if dtype == "bool" else 99
            rows, values = ints(0, high, 50, dtype=dtype), ints(0, high, 70, dtype=dtype)
            yield search_case(dtype, rows, values, right)
        most = np.iinfo(np.int64).max
        yield search_case("int64-ends", ints(most - 9, most, 50), ints(most - 9, most, 70), right)


CASES = [*sort_cases(), *search_cases()]
