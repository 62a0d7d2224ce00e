"""Factors of matrices and the systems that they solve: Cholesky's, and triangular ones.

The last two dims are a matrix, those before them a batch. A matrix without a factor is seen when it
is met: the step ends with a DataError that names it.
"""

from __future__ import annotations

from hotloop.errors import ShapeError
from hotloop.graph import views
from hotloop.graph.build import Operand, add_node, cast, lift_float, unify
from hotloop.graph.creation import eye
from hotloop.graph.eager import make_eager
from hotloop.graph.symbolic import Tensor

__all__ = ["cholesky_inverse", "cholesky_solve"]


def _square(value: Operand, what: str, name: str) -> Tensor:
    x = lift_float(value, what)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{what}: {name} must have shape (..., n, n), got {x.shape}")
    return x


def _turned(x: Tensor) -> Tensor:
    return x.transpose(-2, -1)


def _solved(
    factor: Tensor, right: Tensor, *, upper: bool, trans: bool = False, unit: bool = False
) -> Tensor:
    flags = {"upper": int(upper), "trans": int(trans), "unitriangular": int(unit)}
    return add_node("triangular_solve", factor, right, **flags)


def _together(a: Tensor, b: Tensor, what: str, left: bool = True) -> tuple[Tensor, Tensor]:
    """Matrix and right side of one dtype and one batch, of which each may lack some."""
    if b.ndim < 2 or b.shape[-2 if left else -1] != a.shape[-1]:
        sides = "(..., n, k)" if left else "(..., k, n)"
        raise ShapeError(
            f"{what}: the right side must have shape {sides}, n = {a.shape[-1]} as the matrix of "
            f"shape {a.shape} has it, got {b.shape}"
        )
    a, b = unify(a, b, what=what)
    if a.shape[:-2] == b.shape[:-2]:
        return a, b
    batch = views.broadcast_shapes(a.shape[:-2], b.shape[:-2], what=what)
    return a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])


def cholesky(A: Operand, *, upper: bool = False) -> Tensor:
    """The lower triangular ``L`` of ``A = L Lᵀ``.

    The gradient is that of a symmetric matrix (Murray 2016), as torch's.

    Parameters
    ----------
    A : Tensor
        Symmetric positive definite, ``(..., n, n)``; its lower triangle alone is read.
    upper : bool
        Gives the upper triangular ``U`` of ``A = Uᵀ U``, and reads the upper triangle.

    Returns
    -------
    Tensor
        In the shape of ``A``, 0 beyond the triangle.

    Raises
    ------
    ShapeError
        If the matrices are not square.
    DataError
        In the step, for a matrix that is not positive definite: it names which of the batch, the
        order of the leading minor that is not, and the pivot there.
    """
    x = _square(A, "linalg.cholesky", "A")
    return _turned(add_node("cholesky", _turned(x))) if upper else add_node("cholesky", x)


def solve_triangular(
    A: Operand,
    B: Operand,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Tensor:
    """``X`` of ``A X = B``, A being triangular.

    Parameters
    ----------
    A : Tensor
        ``(..., n, n)``, of which one triangle is read.
    B : Tensor
        ``(..., n, k)``, or ``(..., k, n)`` where ``left`` is false; batches broadcast.
    upper : bool
        Whether A is upper triangular, else lower.
    left : bool
        False solves ``X A = B``.
    unitriangular : bool
        Takes the diagonal for 1 and does not read it.

    Returns
    -------
    Tensor
        In the shape of B, with the batch of both.

    Raises
    ------
    ShapeError
        If A is not square or B does not fit it.
    DataError
        In the step, for a 0 on the diagonal: it names which matrix of the batch, and the row.
    """
    what = "linalg.solve_triangular"
    a, b = _together(_square(A, what, "A"), lift_float(B, what), what, left)
    unit = bool(unitriangular)
    if left:
        return _solved(a, b, upper=upper, unit=unit)
    return _turned(_solved(a, _turned(b), upper=upper, trans=True, unit=unit))


def cholesky_solve(B: Operand, L: Operand, upper: bool = False) -> Tensor:
    """``X`` of ``A X = B`` from the Cholesky factor of A.

    Parameters
    ----------
    B : Tensor
        Right sides ``(..., n, k)``.
    L : Tensor
        The factor ``(..., n, n)``, as :func:`hotloop.linalg.cholesky` gives it; batches broadcast.
    upper : bool
        Whether it is the upper one, ``A = Lᵀ L``, else ``A = L Lᵀ``.

    Returns
    -------
    Tensor
        In the shape of B, with the batch of both.

    Raises
    ------
    ShapeError
        If L is not square or B does not fit it.
    DataError
        In the step, for a 0 on the diagonal of L.
    """
    what = "cholesky_solve"
    factor, b = _together(_square(L, what, "L"), lift_float(B, what), what)
    first = _solved(factor, b, upper=upper, trans=upper)
    return _solved(factor, first, upper=upper, trans=not upper)


def cholesky_inverse(L: Operand, upper: bool = False) -> Tensor:
    """``A⁻¹`` from the Cholesky factor of A.

    Parameters
    ----------
    L : Tensor
        The factor ``(..., n, n)``, as :func:`hotloop.linalg.cholesky` gives it.
    upper : bool
        Whether it is the upper one, ``A = Lᵀ L``, else ``A = L Lᵀ``.

    Returns
    -------
    Tensor
        The inverse, symmetric, in the shape of L.

    Raises
    ------
    ShapeError
        If L is not square.
    DataError
        In the step, for a 0 on the diagonal of L.
    """
    factor = _square(L, "cholesky_inverse", "L")
    unit = cast(eye(factor.shape[-1]), factor.dtype)
    return cholesky_solve(unit, factor, upper)


make_eager(globals(), [*__all__, "cholesky", "solve_triangular"])
