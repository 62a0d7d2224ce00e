"""Linear and bilinear maps, and lookups in tables."""

from __future__ import annotations

from hotloop.errors import ConfigError, ShapeError, TraceError
from hotloop.graph import contraction, dtypes, pointwise
from hotloop.graph.build import Operand, add_node, cast, lift, lift_float, not_integers
from hotloop.graph.symbolic import Tensor
from hotloop.nn.functional.arguments import Order, make_functions

__all__ = ["bilinear", "embedding", "linear"]


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


def embedding(
    input: Operand,
    weight: Operand,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: Order = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of a table.

    Parameters
    ----------
    input : Tensor of integers
        Any shape; from 0 to num_embeddings - 1.
    weight : Tensor
        ``(num_embeddings, embedding_dim)``.
    padding_idx : int, optional
        A row that gets no gradient.
    max_norm, norm_type, scale_grad_by_freq, sparse
        Only torch's defaults.

    Returns
    -------
    Tensor
        ``(*input.shape, embedding_dim)``.

    Raises
    ------
    TraceError
        If the input holds no integers.
    ShapeError
        If the weight is no matrix.
    ConfigError
        For an argument that must have torch's default, or a padding_idx outside of the table.
    DataError
        In the step, for an index outside of the table: it names the row.
    """
    for name, given, default in (
        ("max_norm", max_norm, None),
        ("scale_grad_by_freq", scale_grad_by_freq, False),
        ("sparse", sparse, False),
    ):
        if given != default:
            raise ConfigError(f"embedding: {name} must be {default}, got {given!r}: not built")
    index, table = lift(input, what="embedding"), lift(weight, what="embedding")
    if index.dtype.is_floating_point or index.dtype == dtypes.bool_:
        raise TraceError(f"embedding: indices must be integers, {not_integers(index)}")
    if table.ndim != 2:
        raise ShapeError(f"embedding: weight must have 2 dims, got shape {table.shape}")
    rows = add_node("index_select", table, index, axis=0)
    if padding_idx is None:
        return rows
    n = table.shape[0]
    if not -n <= padding_idx < n:
        raise ConfigError(f"embedding: padding_idx must lie in [{-n}, {n - 1}], got {padding_idx}")
    padded = (index == padding_idx % n).unsqueeze(-1)
    return pointwise.where(padded, rows.detach(), rows)


make_functions(globals(), __all__)
