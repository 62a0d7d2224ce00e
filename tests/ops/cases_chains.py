"""Chains of pointwise ops: smooth functions of one another, and of two operands that broadcast.

What a chain computes is one fused program, and so is its gradient: these hold that derivatives
meet each other, in any order of functions, and that gradients have the shapes of what was
broadcast.
"""

from collections.abc import Callable

import numpy as np
from ops.cases_pointwise import BINARY, SHAPES, UNARY, gelu, gelu_erf
from ops.fills import uniform
from ops.harness import Array, Case, Rule, of_terms

Function = Callable[..., Array]

_INNER: dict[str, Function] = {
    **{op: UNARY[op][0] for op in (
        "neg", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh",
        "sigmoid", "softplus", "erf",
    )},
    "gelu": gelu,
    "gelu_erf": gelu_erf,
}  # fmt: skip
# Defined everywhere, and without a kink.
_OUTER = {
    op: _INNER[op]
    for op in (
        "neg", "exp", "expm1", "sin", "cos", "tanh", "sigmoid", "softplus", "erf", "gelu",
        "gelu_erf",
    )
}  # fmt: skip
_TWO = ("add", "sub", "mul", "div", "logaddexp")
_BROADCASTS = ("row", "column", "outer", "number")
_LOW, _HIGH = 0.3, 1.5  # operands: what is inside is neither large nor near a pole


def _rule(outer: Function, inner: Function) -> Rule:
    """S is that of a value near 1 and of the outer one, whose slope in its operand is about itself
    for exp and less for the others.
    """

    def terms(*operands: Array) -> Array:
        inside = inner(*operands)
        return 1 + np.abs(outer(inside)) * (1 + np.abs(inside))

    return of_terms(40, terms)


def _case(outer: str, inner: str, name: str, shapes: tuple[tuple[int, ...], ...]) -> Case:
    f, g = _OUTER[outer], _INNER[inner] if inner in _INNER else BINARY[inner][0]

    def build(graph, ids):  # type: ignore[no-untyped-def]
        (inside,) = graph.add(inner, ids)
        return graph.add(outer, [inside])

    return Case(
        "chain",
        name,
        tuple(uniform(_LOW, _HIGH, *shape) for shape in shapes),
        lambda *x: f(g(*x)),
        _rule(f, g),
        grad=tuple(range(len(shapes))),
        build=build,
        roundings=60,
    )


CASES = [
    *(
        _case(outer, inner, f"{outer}-of-{inner}", ((5, 67),))
        for outer in _OUTER
        for inner in _INNER
    ),
    *(
        _case(outer, inner, f"{outer}-of-{inner}-{name}", SHAPES[name])
        for outer in _OUTER
        for inner in _TWO
        for name in _BROADCASTS
    ),
]
