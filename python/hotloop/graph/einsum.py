"""Sums of products by Einstein's convention.

The idea: each operand first loses what it can alone (diagonals, sums over letters that nobody else
has); then two operands at a time become one by a matrix product, in the order with the fewest
multiplications. What stands transposed already is multiplied as it stands.

Invariant: a letter is summed as soon as no other operand and no output has it.

Rejected: the order from left to right, which takes n^4 steps for ``ij,jk,kl,l->i`` where n^2 do; an
order that also minimises memory, whose weights nobody knows.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterator, Sequence
from typing import Any

from hotloop.base.scalars import plain
from hotloop.errors import ShapeError, TraceError
from hotloop.graph import rearranging, reduction, views
from hotloop.graph.build import Operand, add_node, is_int
from hotloop.graph.contraction import floats_of
from hotloop.graph.eager import make_eager
from hotloop.graph.value import Tensor

__all__ = ["einsum"]

_EXACT = 8  # so many operands have the best order; more the cheapest next pair
_LETTERS = string.ascii_uppercase + string.ascii_lowercase  # as torch numbers them in lists
_DOTS = "".join(chr(0x391 + i) for i in range(8))  # what the dims of ``...`` are called


def einsum(equation: Any, *operands: Any) -> Tensor:
    """Sums of products by Einstein's convention, of any number of operands.

    Parameters
    ----------
    equation : str
        ``"bij,bjk->bik"``: letters name dims, ``...`` stands for dims that broadcast. A letter that
        an operand has twice is its diagonal; one that the output lacks is summed. Without ``->``
        the letters that occur once remain, in alphabetical order, behind the dims of ``...``.
    *operands : Tensor
        One for each comma-separated term. Integers become floats. As in NumPy and torch the call
        may also be ``einsum(x, [0, 1], y, [1, 2], [0, 2])``: in place of an equation a list of
        numbers below 52 for each operand, among which may be one Ellipsis, and at the end one for
        the output.

    Returns
    -------
    Tensor
        A dim for each letter of the output.

    Raises
    ------
    ShapeError
        If a letter stands for different sizes, or a term does not have its operand's rank.
    TraceError
        If the equation is none, or its output has a letter twice or one that no operand has.

    Notes
    -----
    Two operands at a time are multiplied, in the order with the fewest multiplications (of more
    than 8 operands, each time the cheapest pair).

    Examples
    --------
    >>> x = np.arange(6.0).reshape(2, 3)
    >>> hl.einsum("ij,kj->ik", x, x).tolist()
    [[5.0, 14.0], [14.0, 50.0]]
    """
    if not isinstance(equation, str):
        equation, operands = _of_lists((equation, *operands))
    elif len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = tuple(operands[0])
    if not operands:
        raise TraceError(f"einsum: {equation!r} needs an operand for each term, got none")
    tensors = floats_of("einsum", *operands)
    terms, output = _parse(equation, tensors)
    sizes = _sizes_of(equation, terms, tensors)
    values = []
    for i, (term, x) in enumerate(zip(terms, tensors)):
        others = output + "".join(terms[:i] + terms[i + 1 :])
        values.append(_single(x, term, others))
    while len(values) > 1:
        i, j = _next_pair([term for _, term in values], output, sizes)
        (b, b_term), (a, a_term) = values.pop(j), values.pop(i)
        later = output + "".join(term for _, term in values)
        if _leads(b_term, a_term, later):
            a, a_term, b, b_term = b, b_term, a, a_term
        values.insert(i, _pair(a, a_term, b, b_term, later))
    value, letters = values[0]
    value = views.permute(value, [letters.index(letter) for letter in output])
    return views.expand(value, tuple(sizes[letter] for letter in output))


# ---------------------------------------------------------------------------- what is asked for


def _of_lists(arguments: tuple[Any, ...]) -> tuple[str, tuple[Operand, ...]]:
    """The equation and operands of ``einsum(x, [0, 1], y, [1, 2], [0, 2])``."""
    pairs, rest = divmod(len(arguments), 2)
    lists = [*arguments[1 : 2 * pairs : 2], *arguments[2 * pairs :]]
    if not pairs or not all(isinstance(one, tuple | list) for one in lists):
        kinds = ", ".join(type(one).__name__ for one in arguments)
        raise TraceError(
            "einsum: must be an equation and operands, or each operand and a list of numbers, got "
            f"{kinds}"
        )
    terms = ["".join(_letter(one) for one in numbers) for numbers in lists]
    equation = ",".join(terms[:pairs]) + ("->" + terms[pairs] if rest else "")
    return equation, arguments[: 2 * pairs : 2]


def _letter(number: Any) -> str:
    if number is Ellipsis:
        return "..."
    number = plain(number)
    if not is_int(number) or not 0 <= number < len(_LETTERS):
        raise TraceError(f"einsum: a list must have numbers from 0 to 51 or ..., got {number!r}")
    return _LETTERS[number]


def _parse(equation: str, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
    """Terms and output as strings of letters; the dims of ``...`` get capital Greek letters."""
    text = "".join(equation.split())
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(tensors):
        raise ShapeError(
            f"einsum: {equation!r} must have a term per operand, got {len(tensors)} operands"
        )
    for term in (*terms, right):
        for letter in term.replace("...", "", 1):
            if letter not in _LETTERS:
                raise TraceError(
                    f"einsum: {equation!r} must be of letters, commas, one ... for a term and one "
                    f"->, got {letter!r}"
                )
    dots = [x.ndim - len(t.replace("...", "")) if "..." in t else 0 for t, x in zip(terms, tensors)]
    n_dots = max(0, *dots)
    extra = _DOTS[:n_dots]
    full = [t.replace("...", extra[n_dots - n :]) for t, n in zip(terms, dots)]
    for term, own, n, x in zip(full, terms, dots, tensors):
        if n < 0 or len(term) != x.ndim:
            raise ShapeError(
                f"einsum: {own!r} of {equation!r} must name the {x.ndim} dims of shape {x.shape}"
            )
    joined = "".join(full)
    if arrow:
        output = right.replace("...", extra)
    else:
        once = {c for c in joined if joined.count(c) == 1 and c not in extra}
        output = extra + "".join(sorted(once))
    if len(set(output)) != len(output) or any(c not in joined for c in output):
        raise TraceError(
            f"einsum: the output of {equation!r} must name dims of operands, each once"
        )
    return full, output


def _sizes_of(equation: str, terms: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, int]:
    """Of every letter; a size of 1 broadcasts."""
    sizes: dict[str, int] = {}
    for term, x in zip(terms, tensors):
        for letter, size in zip(term, x.shape):
            own = x.shape[term.index(letter)]
            known = sizes.get(letter, size)
            if own != size or (1 not in (known, size) and known != size):
                name = "..." if letter in _DOTS else letter
                raise ShapeError(
                    f"einsum: {name!r} in {equation!r} must be one size, got "
                    f"{own if own != size else known} and {size}; shapes are "
                    f"{', '.join(str(tuple(y.shape)) for y in tensors)}"
                )
            sizes[letter] = size if known == 1 else known
    return sizes


# ---------------------------------------------------------------------------- the order


def _kept(a: str, b: str, others: str) -> str:
    """The letters of the product of two terms."""
    return "".join(c for c in dict.fromkeys(a + b) if c in others)


def _work(a: str, b: str, sizes: dict[str, int]) -> int:
    """Multiplications of the product of two terms."""
    return math.prod(sizes[c] for c in set(a + b))


def _next_pair(terms: Sequence[str], output: str, sizes: dict[str, int]) -> tuple[int, int]:
    """Which two to multiply now; of equals the first ones."""
    n = len(terms)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    if n > _EXACT:
        return min(pairs, key=lambda pair: _work(terms[pair[0]], terms[pair[1]], sizes))
    return _best_order(terms, output, sizes) if n > 2 else pairs[0]


def _halves(subset: int) -> Iterator[tuple[int, int]]:
    """Every way to cut a set of bits in two, each once."""
    part = (subset - 1) & subset
    while part:
        if part < subset ^ part:
            yield part, subset ^ part
        part = (part - 1) & subset


def _best_order(terms: Sequence[str], output: str, sizes: dict[str, int]) -> tuple[int, int]:
    """The pair that the order with the least work begins with, by the least work of each subset."""
    n = len(terms)
    # Of a subset of operands: its work, the letters that it leaves, the first pair, or itself.
    of = {1 << i: (0, term, (i, i)) for i, term in enumerate(terms)}
    for subset in sorted(range(1, 1 << n), key=int.bit_count)[n:]:
        outside = output + "".join(t for i, t in enumerate(terms) if not subset >> i & 1)
        found = []
        for one, other in _halves(subset):
            (a_work, a, a_first), (b_work, b, b_first) = of[one], of[other]
            pairs = [p for p in (a_first, b_first) if p[0] != p[1]]
            first = (
                pairs[0] if pairs else (min(a_first[0], b_first[0]), max(a_first[0], b_first[0]))
            )
            work = a_work + b_work + _work(a, b, sizes)
            found.append((work, _kept(a, b, outside), first))
        of[subset] = min(found, key=lambda one: one[0])
    return of[(1 << n) - 1][2]


# ---------------------------------------------------------------------------- products


def _single(x: Tensor, term: str, keep: str) -> tuple[Tensor, str]:
    """Takes diagonals of repeated letters and sums those that nobody needs."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            x = views.movedim(rearranging.diagonal(x, 0, first, second), -1, first)
            term = term[:second] + term[second + 1 :]
    gone = [i for i, letter in enumerate(term) if letter not in keep]
    if gone:
        x = reduction.sum(x, gone)
        term = "".join(letter for letter in term if letter in keep)
    return x, term


def _leads(b_term: str, a_term: str, later: str) -> bool:
    """Whether the second term's own letters are wanted before the first one's."""
    own = [min((later.index(c) for c in p if c in later and c not in q), default=None)
           for p, q in ((b_term, a_term), (a_term, b_term))]  # fmt: skip
    return own[0] is not None and own[1] is not None and own[0] < own[1]


def _matrices(
    x: Tensor, term: str, groups: Sequence[Sequence[str]], sizes: dict[str, int]
) -> tuple[Tensor, bool]:
    """x as ``(batch, rows, columns)``, or with the last two exchanged, and whether they are."""
    batch, rows, columns = groups
    is_turned = list(term) == [*batch, *columns, *rows] and list(term) != [*batch, *rows, *columns]
    order = [*batch, *columns, *rows] if is_turned else [*batch, *rows, *columns]
    x = views.permute(x, [term.index(c) for c in order])
    m, k = (math.prod(sizes[c] for c in group) for group in (rows, columns))
    lead = [math.prod(sizes[c] for c in batch)] if batch else []
    return views.reshape(x, (*lead, k, m) if is_turned else (*lead, m, k)), is_turned


def _pair(a: Tensor, a_term: str, b: Tensor, b_term: str, later: str) -> tuple[Tensor, str]:
    """Product of two terms, summed over the letters that only these two have."""
    # A size of 1 that broadcasts cannot be contracted: it is summed, or joins the other's dim.
    for letter in a_term:
        if letter in b_term and a.shape[a_term.index(letter)] != b.shape[b_term.index(letter)]:
            size = max(a.shape[a_term.index(letter)], b.shape[b_term.index(letter)])
            a = _widen(a, a_term.index(letter), size)
            b = _widen(b, b_term.index(letter), size)
    batch = [c for c in a_term if c in b_term and c in later]
    inner = [c for c in a_term if c in b_term and c not in later]
    rows = [c for c in a_term if c not in b_term]
    columns = [c for c in b_term if c not in a_term]
    letters = "".join(batch + rows + columns)
    sizes = {**dict(zip(b_term, b.shape)), **dict(zip(a_term, a.shape))}
    shape = tuple(sizes[c] for c in letters)
    if inner:
        left, trans_a = _matrices(a, a_term, (batch, rows, inner), sizes)
        right, trans_b = _matrices(b, b_term, (batch, inner, columns), sizes)
        product = add_node("matmul", left, right, trans_a=int(trans_a), trans_b=int(trans_b))
    else:
        left = views.permute(a, [a_term.index(c) for c in batch + rows])
        right = views.permute(b, [b_term.index(c) for c in batch + columns])
        ones = len(rows), len(columns)
        left = views.reshape(left, (*left.shape, *(1,) * ones[1]))
        lead = right.shape[: len(batch)]
        right = views.reshape(right, (*lead, *(1,) * ones[0], *right.shape[len(batch) :]))
        product = left * right
    return views.reshape(product, shape), letters


def _widen(x: Tensor, axis: int, size: int) -> Tensor:
    return views.expand(x, (*x.shape[:axis], size, *x.shape[axis + 1 :]))


make_eager(globals(), __all__)
