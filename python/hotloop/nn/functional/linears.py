"""Linear and bilinear maps."""

from __future__ import annotations

from hotloop.errors import ShapeError
from hotloop.graph import contraction
from hotloop.graph.build import Operand, cast, lift, lift_float
from hotloop.graph.symbolic import Tensor
from hotloop.nn.functional.arguments import make_functions

__all__ = ["bilinear", "linear"]


def linear(input: Operand, weight: Operand, bias: Operand | None = None) -> Tensor:
    """``x @ weight.T + bias``.

    Parameters
    ----------
    input : Tensor
        ``(..., in_features)``.
    weight : Tensor
        ``(out_features, in_features)``, or ``(in_features,)`` for one output without its dim.
    bias : Tensor, optional
        ``(out_features,)``.

    Returns
    -------
    Tensor
        ``(..., out_features)``.

    Raises
    ------
    ShapeError
        If the last dim of the input is not in_features.
    """
    w = lift(weight, what="linear")
    x = cast(lift_float(input, "linear"), w.dtype)
    if not x.ndim or w.ndim not in (1, 2) or x.shape[-1] != w.shape[-1]:
        raise ShapeError(
            f"linear: the input's last dim must be in_features={w.shape[-1] if w.ndim else 1}, "
            f"got input of shape {x.shape} and weight of shape {w.shape}"
        )
    b = None if bias is None else cast(lift(bias, what="linear"), w.dtype)
    if w.ndim == 1:
        out = contraction.matmul(x, w)
        return out if b is None else out + b
    if b is not None and b.shape != w.shape[:1]:
        raise ShapeError(f"linear: bias must have shape {w.shape[:1]}, got {b.shape}")
    return contraction.linear_map(x, w, b)


def bilinear(
    input1: Operand, input2: Operand, weight: Operand, bias: Operand | None = None
) -> Tensor:
    """``x1 · weight[k] · x2 + bias[k]`` for each output k.

    Parameters
    ----------
    input1, input2 : Tensor
        ``(..., in1)`` and ``(..., in2)`` with equal leading dims.
    weight : Tensor
        ``(out, in1, in2)``.
    bias : Tensor, optional
        ``(out,)``.

    Returns
    -------
    Tensor
        ``(..., out)``.

    Raises
    ------
    ShapeError
        If the inputs do not fit each other or the weight.
    """
    x1, x2 = lift_float(input1, "bilinear"), lift_float(input2, "bilinear")
    w = lift(weight, what="bilinear")
    if x1.shape[:-1] != x2.shape[:-1] or (x1.shape[-1:] + x2.shape[-1:]) != w.shape[1:]:
        raise ShapeError(
            f"bilinear: inputs must be (..., {w.shape[1]}) and (..., {w.shape[2]}), got "
            f"{x1.shape} and {x2.shape}"
        )
    n_out, n1, n2 = w.shape
    lead = x1.shape[:-1]
    table = w.permute(1, 0, 2).reshape(n1, n_out * n2)
    mixed = contraction.matmul(x1.reshape(-1, n1), table).reshape(-1, n_out, n2)
    out = contraction.matmul(mixed, x2.reshape(-1, n2, 1)).reshape(*lead, n_out)
    return out if bias is None else out + bias


make_functions(globals(), __all__)
