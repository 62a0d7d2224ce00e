"""How a loss per element becomes the loss: reductions, and the parts that a window divides."""

from __future__ import annotations

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import reduction as reducing
from hotloop.graph.build import Operand, cast, lift, unify
from hotloop.graph.dtypes import default_float
from hotloop.graph.loss_parts import with_parts
from hotloop.graph.symbolic import Tensor

__all__ = ["check_reduction", "reduced", "same_shape"]


def check_reduction(what: str, reduction: str, others: tuple[str, ...] = ()) -> None:
    """Refuses unknown reductions.

    Raises
    ------
    ConfigError
    """
    allowed = ("none", "mean", "sum", *others)
    if reduction not in allowed:
        raise ConfigError(f"{what}: reduction must be one of {allowed}, got {reduction!r}")


def reduced(per: Tensor, reduction: str, denominator: Tensor | float | None = None) -> Tensor:
    """The loss of each element, their sum, or their mean.

    Parameters
    ----------
    per : Tensor
        Losses per element, weights included.
    reduction : {"none", "sum", "mean"}
        "mean" divides by ``denominator``; the result carries its parts.
    denominator : Tensor or float, optional
        The number of elements by default.
    """
    if reduction == "none":
        return per
    total = reducing.sum(per)
    if reduction == "sum":
        return total
    n: Tensor | float = per.numel() if denominator is None else denominator
    return with_parts(total / n, total, n)


def same_shape(what: str, input: Operand, target: Operand) -> tuple[Tensor, Tensor]:
    """Input and target as floats of one shape.

    Raises
    ------
    ShapeError
        If they differ: broadcasting (N, 1) against (N,) is how an (N, N) loss comes about.
    """
    a, b = lift(input, what=what), lift(target, what=what)
    if a.shape != b.shape:
        hint = ""
        if a.numel() == b.numel():
            hint = "; use output.squeeze(-1)" if a.ndim > b.ndim else "; use target.squeeze(-1)"
        raise ShapeError(
            f"{what}: output and target must have one shape, got {a.shape} and {b.shape}{hint}"
        )
    a, b = unify(a, b, what=what)
    if not a.dtype.is_floating_point:
        a, b = cast(a, default_float), cast(b, default_float)
    return a, b
