"""Attention."""

from __future__ import annotations

import math
from typing import Any

from hotloop.errors import ShapeError, TraceError
from hotloop.graph import dtypes
from hotloop.graph.build import Operand, add_node, cast, lift, unify
from hotloop.graph.creation import random_source
from hotloop.graph.symbolic import Tensor
from hotloop.graph.views import broadcast_shapes, expand, reshape
from hotloop.nn.functional.arguments import Probability, make_functions

__all__ = ["scaled_dot_product_attention"]

_WHAT = "scaled_dot_product_attention"


def _check(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> None:
    shapes = f"got query {q.shape}, key {k.shape}, value {v.shape}"
    least = 3 if enable_gqa else 2
    if not q.ndim == k.ndim == v.ndim or q.ndim < least:
        dims = "(..., heads, rows, width)" if enable_gqa else "(..., rows, width)"
        raise ShapeError(f"{_WHAT}: query, key and value must all have dims {dims}, {shapes}")
    if q.shape[-1] != k.shape[-1]:
        raise ShapeError(f"{_WHAT}: query and key must have one width, {shapes}")
    if k.shape[-2] != v.shape[-2]:
        raise ShapeError(f"{_WHAT}: key and value must have one number of rows, {shapes}")
    if not enable_gqa or q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        return
    heads = k.shape[-3]
    if q.shape[:-3] != k.shape[:-3] or k.shape[:-2] != v.shape[:-2]:
        raise ShapeError(f"{_WHAT}: leading dims must agree, {shapes}")
    if not heads or q.shape[-3] % heads:
        raise ShapeError(
            f"{_WHAT}: the query's heads must be a multiple of the key's, got {q.shape[-3]} and "
            f"{heads}"
        )


def _four_dims(x: Tensor, enable_gqa: bool) -> Tensor:
    """``(N, ..., rows, width)`` as ``(N, the dims between as one, rows, width)``.

    With ``enable_gqa`` the last of the leading dims has the heads, so that one alone is no batch.
    """
    lead = x.shape[:-2]
    if len(lead) == 2:
        return x
    n = 0 if enable_gqa and len(lead) == 1 else 1
    return reshape(x, (math.prod(lead[:n]), math.prod(lead[n:]), *x.shape[-2:]))


def _mask_of(
    mask: Operand, lead: tuple[int, ...], rows: int, keys: int, enable_gqa: bool
) -> Tensor:
    """A mask whose every dim is 1 or that of the scores, of four dims."""
    m = lift(mask, what=_WHAT)
    if m.dtype != dtypes.bool_ and not m.dtype.is_floating_point:
        raise TraceError(f"{_WHAT}: attn_mask must be bool or floating, got {m.dtype}")
    full = (*lead, rows, keys)
    padded = (1,) * (len(full) - m.ndim) + m.shape
    if len(padded) != len(full) or any(a not in (1, b) for a, b in zip(padded, full)):
        raise ShapeError(f"{_WHAT}: attn_mask must broadcast to {full}, got shape {m.shape}")
    m = reshape(m, padded)
    between = padded[1:-2]
    if any(n == 1 for n in between) and any(n != 1 for n in between):
        m = expand(m, (*padded[:1], *lead[1:], *padded[-2:]))
    if m.dtype.is_floating_point and m.dtype != dtypes.float64:
        m = cast(m, dtypes.float32)
    return _four_dims(m, enable_gqa)


def scaled_dot_product_attention(
    query: Operand,
    key: Operand,
    value: Operand,
    attn_mask: Operand | None = None,
    dropout_p: Probability = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``softmax(query @ key.T * scale + mask) @ value``, whose scores are not kept in memory.

    Parameters
    ----------
    query : Tensor
        ``(N, ..., L, E)``: L rows that look at the keys; usually ``(N, heads, L, E)``.
    key : Tensor
        ``(N, ..., S, E)``.
    value : Tensor
        ``(N, ..., S, Ev)``.
    attn_mask : Tensor, optional
        Broadcasts to ``(N, ..., L, S)``. Of bools: True where a row sees a key. Of floats: added to
        the scores; with ``-inf`` a key is hidden.
    dropout_p : float
        Each element of the softmax is 0 with this probability, else times ``1 / (1 - p)``. As in
        torch it holds in evaluation too: pass ``self.p if self.training else 0.0``.
    is_causal : bool
        Row i sees keys 0 to i; together with a mask, what both let it see.
    scale : float, optional
        ``1 / sqrt(E)`` by default.
    enable_gqa : bool
        The query may have more heads, in dim -3, than key and value: a multiple of theirs, of which
        neighbours share a head of keys.

    Returns
    -------
    Tensor
        ``(N, ..., L, Ev)``. A row that sees no key is 0.

    Raises
    ------
    ShapeError
        If the shapes do not fit, or the mask does not broadcast.
    TraceError
        If the mask is of integers.

    Notes
    -----
    Vaswani et al. 2017; computed in tiles (Rabe and Staats 2021, Dao et al. 2022), forward and
    backward. The gradient of a mask of floats is as large as all scores.
    """
    q, k, v = unify(query, key, value, what=_WHAT)
    if not q.dtype.is_floating_point:
        q, k, v = (cast(x, dtypes.default_float) for x in (q, k, v))
    _check(q, k, v, enable_gqa)
    lead = q.shape[:-2]
    if not enable_gqa:
        lead = broadcast_shapes(lead, k.shape[:-2], v.shape[:-2], what=_WHAT)
        q, k, v = (expand(x, (*lead, *x.shape[-2:])) for x in (q, k, v))
    rows, keys = q.shape[-2], k.shape[-2]
    inputs = [_four_dims(x, enable_gqa) for x in (q, k, v)]
    attrs: dict[str, Any] = {
        "scale": 1 / math.sqrt(q.shape[-1] or 1) if scale is None else float(scale),
        "is_causal": int(is_causal),
    }
    if attn_mask is not None:
        inputs.append(_mask_of(attn_mask, lead, rows, keys, enable_gqa))
        attrs["has_mask"] = 1
    if 0 < dropout_p < 1:
        control, stream = random_source("attention")
        inputs.append(control)
        attrs |= stream | {"p": float(dropout_p)}
    out = reshape(add_node("attention", *inputs, **attrs), (*lead, rows, v.shape[-1]))
    return out * 0.0 if dropout_p == 1 else out


make_functions(globals(), __all__)
