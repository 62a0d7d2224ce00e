"""einsum against NumPy's in float64: written equations of every form, and drawn ones of up to five
operands; gradients against central differences; the order of products by its work."""

import itertools
import zlib
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop.errors import ShapeError, TraceError
from ops.cases_functional import traced
from ops.fills import normal
from ops.harness import (
    FAST,
    Case,
    check_directions,
    check_fast,
    check_fast_gradients,
    check_reference,
    gamma,
)

SIZES = dict(zip("abcdefghij", (2, 3, 4, 2, 3, 5, 1, 2, 3, 2)))
# The dims of ... are given as the sizes behind a term's letters that come before it.
WRITTEN: list[tuple[str, *tuple[tuple[int, ...], ...]]] = [
    ("a->", (3,)), ("a", (3,)), ("ab->ba", (2, 3)), ("ba", (2, 3)), ("ab->", (2, 3)),
    ("ab->b", (2, 3)), ("aa->a", (3, 3)), ("aa", (3, 3)), ("aa->", (3, 3)), ("aba->ab", (3, 2, 3)),
    ("abab->ab", (2, 3, 2, 3)), ("aaa->a", (3, 3, 3)), ("aabb->ba", (2, 2, 3, 3)),
    ("aab", (2, 2, 3)), ("->", ()), (",->", (), ()), (",a->a", (), (3,)), ("a,->a", (3,), ()),
    ("a,a", (3,), (3,)), ("a,a->a", (3,), (3,)), ("a,b->ab", (3,), (2,)), ("a,b->ba", (3,), (2,)),
    ("a,b->", (3,), (2,)), ("a,b", (3,), (2,)), ("ab,bc->ac", (2, 3), (3, 4)),
    ("ab,bc->ca", (2, 3), (3, 4)), ("ab,cb->ac", (2, 3), (4, 3)), ("ba,bc->ac", (3, 2), (3, 4)),
    ("ba,cb->ca", (3, 2), (4, 3)), ("ab,bc", (2, 3), (3, 4)), ("ba,cb", (3, 2), (4, 3)),
    ("ab,ab->ab", (2, 3), (2, 3)), ("ab,ba->ab", (2, 3), (3, 2)), ("ab,ab->a", (2, 3), (2, 3)),
    ("ab,ab->", (2, 3), (2, 3)), ("ab,ba", (2, 3), (3, 2)), ("abc,acd->abd", (2, 3, 4), (2, 4, 5)),
    ("abc,adc->abd", (2, 3, 4), (2, 5, 4)), ("bac,acd->dab", (3, 2, 4), (2, 4, 5)),
    ("abc,cd->abd", (2, 3, 4), (4, 5)), ("abc,bd->adc", (2, 3, 4), (3, 5)),
    ("abcd,cdef->abef", (2, 3, 2, 4), (2, 4, 3, 2)),
    ("abcd,acde->abe", (2, 3, 2, 4), (2, 2, 4, 3)), ("ab,a->b", (2, 3), (2,)),
    ("a,ab", (2,), (2, 3)), ("ab,c->", (2, 3), (4,)), ("ab,c->bc", (2, 3), (4,)),
    ("aab,bc->c", (2, 2, 3), (3, 4)), ("ab,bb->a", (2, 3), (3, 3)),
    ("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5)), ("ab,bc,cd->da", (2, 3), (3, 4), (4, 5)),
    ("ab,bc,cd", (2, 3), (3, 4), (4, 5)), ("ab,bc,ca->", (2, 3), (3, 4), (4, 2)),
    ("a,b,c->abc", (2,), (3,), (4,)), ("a,a,a->a", (3,), (3,), (3,)), ("a,a,a", (3,), (3,), (3,)),
    ("ab,ac,ad->bcd", (2, 3), (2, 4), (2, 5)), ("ni,kij,nj->nk", (4, 2), (3, 2, 5), (4, 5)),
    ("ab,ab,c->ac", (2, 3), (2, 3), (4,)),
    ("ea,fb,abcd,gc,hd->efgh", (2, 3), (3, 2), (3, 2, 2, 4), (2, 2), (3, 4)),
    ("a,ab,abc->abc", (2,), (2, 3), (2, 3, 4)),
    ("ab,bc,cd,de->ae", (2, 3), (3, 4), (4, 2), (2, 3)), ("ab,ab->ab", (1, 3), (2, 3)),
    ("ab,bc->ac", (2, 1), (3, 4)), ("ab,ab", (2, 1), (2, 3)), ("...->...", (2, 3)),
    ("...", (2, 3)), ("a...->...a", (2, 3, 4)), ("...a->...", (2, 3, 4)),
    ("...aa->...a", (2, 3, 3)), ("...ii->...", (2, 3, 3)),
    ("...ab,...bc->...ac", (2, 2, 3), (2, 3, 4)), ("...ab,...bc->...ac", (2, 2, 3), (3, 4)),
    ("...ab,...bc->...ac", (2, 1, 2, 3), (4, 3, 2)), ("...ab,...bc", (2, 2, 3), (2, 3, 4)),
    ("a...,...b->a...b", (2, 3), (3, 4)), ("a...b,b...->...a", (2, 4, 3), (3, 4)),
    ("...,...->...", (2, 3), (3,)), ("...,...", (2, 1), (3,)), ("...a,a->...", (2, 3, 4), (4,)),
    ("...a,...a,...->...", (2, 3), (2, 3), (2,)), (" a b , b c -> a c ", (2, 3), (3, 4)),
    ("Ab,bC->AC", (2, 3), (3, 4)), ("bA,bC", (2, 3), (2, 4)), ("...,a->...a", (), (3,)),
    ("b...,a...->...", (2, 3), (4, 3)),
    ("ab,bc->ac", (2, 0), (0, 4)), ("ab,bc->ac", (0, 3), (3, 4)), ("ab,ab->", (0, 3), (0, 3)),
]  # fmt: skip


def draw(seed: int) -> tuple[str, *tuple[tuple[int, ...], ...]]:
    """An equation of one to five operands, with repeated letters, sums and sizes of 1."""
    rng = np.random.default_rng(seed)
    letters = list("abcdefghij"[: rng.integers(2, 7)])
    terms = ["".join(rng.choice(letters, rng.integers(1, 4))) for _ in range(rng.integers(1, 6))]
    used = sorted(set("".join(terms)))
    output = "".join(rng.permutation(used)[: rng.integers(0, len(used) + 1)])
    equation = ",".join(terms) + ("->" + output if rng.random() < 0.8 else "")
    shapes = []
    for term in terms:
        thin = {c for c in term if rng.random() < 0.1}
        shapes.append(tuple(1 if c in thin else SIZES[c] for c in term))
    return equation, *shapes


def case_of(equation: str, *shapes: tuple[int, ...]) -> Case:
    terms = 1
    for shape in shapes:
        terms *= max(1, int(np.prod(shape)))

    def bound(*arrays: Any) -> Any:
        return np.einsum(equation, *(abs(x) for x in arrays))

    return Case(
        "einsum",
        f"{equation} {shapes}",
        tuple(normal(*shape) for shape in shapes),
        lambda *arrays: np.asarray(np.einsum(equation, *arrays)),
        lambda inputs, outputs: [(terms + len(shapes), bound(*inputs))],
        grad=tuple(range(len(shapes))),
        build=traced(lambda *tensors: hl.einsum(equation, *tensors)),
    )


CASES = [case_of(*one) for one in [*WRITTEN, *(draw(seed) for seed in range(80))]]


def test_there_are_many() -> None:
    assert len({case.id for case in CASES}) >= 150


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_values(case: Case) -> None:
    check_reference(case)
    for backend, isa in FAST:
        check_fast(case, backend, isa)


@pytest.mark.parametrize("case", CASES[::4], ids=lambda case: case.id)
def test_gradients(case: Case) -> None:
    check_directions(case)
    for backend, isa in FAST:
        check_fast_gradients(case, backend, isa)


def test_lists_in_place_of_an_equation() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype("float32") for shape in ((2, 3), (3, 4)))
    batch = rng.standard_normal((5, 2, 3)).astype("float32")
    np.testing.assert_allclose(hl.einsum(x, [0, 1], y, [1, 2], [2, 0]), (x @ y).T, rtol=1e-5)
    np.testing.assert_allclose(hl.einsum(x, [30, 1], y, [1, 2]), (x @ y).T, rtol=1e-5)
    got = hl.einsum(batch, [..., 0, 1], y, [1, 2], [..., 0, 2])
    np.testing.assert_allclose(got, batch @ y, rtol=1e-5)
    np.testing.assert_allclose(hl.einsum("ij,jk", [x, y]), x @ y, rtol=1e-5)


def flops_of(equation: str, *shapes: tuple[int, ...]) -> int:
    """Multiplications of all products of a graph."""
    made: list[int] = []
    from hotloop.graph import einsum as module

    pair = module._pair

    def count(a: Any, a_term: str, b: Any, b_term: str, later: str) -> Any:
        sizes = {**dict(zip(a_term, a.shape)), **dict(zip(b_term, b.shape))}
        made.append(int(np.prod([sizes[c] for c in set(a_term + b_term)])))
        return pair(a, a_term, b, b_term, later)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_pair", count)
        hl.einsum(equation, *(np.ones(shape, "float32") for shape in shapes))
    return sum(made)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ab,bc,cd,d->a", ((20, 20), (20, 20), (20, 20), (20,))),
        ("ab,bc,cd->ad", ((2, 30), (30, 3), (3, 40))),
        ("ab,bc,cd->ad", ((40, 3), (3, 30), (30, 2))),
        ("ab,ac,ad,ae->bcde", ((2, 3), (2, 4), (2, 5), (2, 6))),
        ("a,b,ab,c,bc->", ((9,), (8,), (9, 8), (7,), (8, 7))),
    ],
)
def test_the_order_has_the_least_work(equation: str, shapes: Any) -> None:
    """Against every order."""
    left, _, output = equation.partition("->")
    sizes = {c: n for term, shape in zip(left.split(","), shapes) for c, n in zip(term, shape)}

    def least(terms: tuple[str, ...]) -> int:
        if len(terms) == 1:
            return 0
        found = []
        for i, j in itertools.combinations(range(len(terms)), 2):
            rest = tuple(t for k, t in enumerate(terms) if k not in (i, j))
            both = set(terms[i] + terms[j])
            kept = "".join(c for c in both if c in output + "".join(rest))
            found.append(int(np.prod([sizes[c] for c in both])) + least((*rest, kept)))
        return min(found)

    assert flops_of(equation, *shapes) == least(tuple(left.split(",")))


def test_more_operands_than_are_ordered_exactly() -> None:
    rng = np.random.default_rng(zlib.crc32(b"chain"))
    chain = [rng.standard_normal((3, 3)).astype("float32") for _ in range(12)]
    letters = "abcdefghijklm"
    equation = ",".join(letters[i : i + 2] for i in range(12)) + "->am"
    want = np.linalg.multi_dot([x.astype("float64") for x in chain])
    bound = np.linalg.multi_dot([abs(x).astype("float64") for x in chain])
    assert np.all(abs(hl.einsum(equation, *chain) - want) <= gamma(12 * 3, 2.0**-24) * bound)


X = np.ones((2, 3), "float32")


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (("ij,jk->ik", X, X), ShapeError, ("'j'", "3 and 2", "(2, 3)")),
        (("ij->ij",), TraceError, ("none",)),
        (("ij,jk", X), ShapeError, ("term per operand", "1")),
        (("ijk", X), ShapeError, ("'ijk'", "2 dims", "(2, 3)")),
        (("i", X), ShapeError, ("'i'", "2 dims")),
        (("...ijk", X), ShapeError, ("'...ijk'", "2 dims")),
        (("ii", X), ShapeError, ("'i'", "2 and 3")),
        (("ij->ii", X), TraceError, ("each once",)),
        (("ij->k", X), TraceError, ("of operands",)),
        (("i.j", X), TraceError, ("'.'",)),
        (("...i...", X), TraceError, ("'.'",)),
        (("i1", X), TraceError, ("'1'",)),
        (("i\u0391", X), TraceError, ("letters",)),
        (("ij->j->i", X), TraceError, ("->",)),
        (("...,...", X, np.ones((2, 4), "float32")), ShapeError, ("'...'", "3 and 4")),
        ((X, [0, 1], X), TraceError, ("list of numbers", "ndarray")),
        ((X, [0, 52]), TraceError, ("0 to 51", "52")),
        ((X, [0, 1.5]), TraceError, ("0 to 51", "1.5")),
        ((3, X), TraceError, ("an equation and operands", "int")),
    ],
)
def test_what_is_wrong_is_said(arguments: Any, kind: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(kind) as caught:
        hl.einsum(*arguments)
    for word in ("einsum", *words):
        assert word in str(caught.value)
