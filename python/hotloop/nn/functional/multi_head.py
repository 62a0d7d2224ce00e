"""Attention: several heads at once, with the projections before and behind them.

The idea: inputs of either layout are projected as they lie, and become (N, heads, rows, width) in
the one permutation that splits them into heads; so batch_first costs nothing. What is one tensor as
query, key and value (self-attention) is multiplied by all three weights at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph.build import Operand, cat, lift, lift_float
from hotloop.graph.contraction import matmul
from hotloop.graph.creation import zeros
from hotloop.graph.symbolic import Tensor
from hotloop.graph.views import expand, permute, reshape, split, squeeze, transpose
from hotloop.nn.functional.arguments import Count, Probability, make_functions
from hotloop.nn.functional.attention import scaled_dot_product_attention
from hotloop.nn.functional.attention_masks import Mask, Scores, merge_masks, swap_layouts, weigh
from hotloop.nn.functional.linears import linear
from hotloop.nn.functional.noise import dropout

__all__ = ["multi_head_attention_forward"]


class Weights(NamedTuple):
    """The values of a layer; ``in_proj`` or ``q``, ``k`` and ``v`` are there."""

    in_proj: Operand | None  # (3 E, E)
    q: Operand | None  # (E, E)
    k: Operand | None  # (E, kdim)
    v: Operand | None  # (E, vdim)
    in_bias: Operand | None  # (3 E,)
    bias_k: Operand | None  # (1, 1, E): a key and a value behind all others
    bias_v: Operand | None
    out: Operand  # (E, E)
    out_bias: Operand | None


class Settings(NamedTuple):
    """What a call does; ``widths`` are those of query, key and value."""

    widths: tuple[int, int, int]
    num_heads: int
    dropout_p: float
    add_zero_attn: bool = False
    need_weights: bool = True
    average: bool = True
    is_causal: bool = False
    batch_first: bool = False
    names: tuple[str, str, str] = ("embed_dim", "kdim", "vdim")
    what: str = ""  # what messages begin with; of a layer nothing, which puts its own name there


def check_heads(what: str, width: tuple[str, int], heads: tuple[str, int]) -> None:
    """Refuses a number of heads that does not divide the width; each with the argument's name."""
    if width[1] % heads[1]:
        fits = [str(n) for n in range(1, min(width[1], 64) + 1) if width[1] % n == 0]
        raise ConfigError(
            f"{what}: {width[0]} must be a multiple of {heads[0]}, got {width[1]} and {heads[1]}; "
            f"{heads[0]} may be {', '.join(fits)}"
        )


# ---- the inputs


def _check_inputs(q: Tensor, k: Tensor, v: Tensor, settings: Settings) -> None:
    what, dims = settings.what, "(N, L, E)" if settings.batch_first else "(L, N, E)"
    shapes = f"got query {q.shape}, key {k.shape}, value {v.shape}"
    if not q.ndim == k.ndim == v.ndim or q.ndim not in (2, 3):
        raise ShapeError(
            f"{what}query, key and value must all be {dims}, or (L, E) of one sample, {shapes}"
        )
    inputs = zip(("query", "key", "value"), (q, k, v), settings.widths, settings.names)
    for name, x, width, setting in inputs:
        if x.shape[-1] != width:
            raise ShapeError(
                f"{what}the {name}'s last dim must be {setting}={width}, got {x.shape}"
            )
    if k.shape[:-1] != v.shape[:-1]:
        raise ShapeError(f"{what}key and value must agree in all dims but the last, {shapes}")


def _read_scores(q: Tensor, k: Tensor, settings: Settings) -> Scores:
    """The sizes of the scores; the batch sizes must agree."""
    is_batched = q.ndim == 3
    batch = 0 if settings.batch_first else 1
    s = Scores(
        q.shape[batch] if is_batched else 1,
        settings.num_heads,
        q.shape[1 - batch] if is_batched else q.shape[0],
        k.shape[1 - batch] if is_batched else k.shape[0],
        is_batched,
        settings.batch_first,
        not settings.what,
        settings.what,
    )
    if is_batched and k.shape[batch] != s.n:
        fix = swap_layouts(s) if s.rows == s.keys else ""
        raise ShapeError(
            f"{s.what}query and key must have one batch size, N in dim {batch}, got query "
            f"{q.shape}, key {k.shape}{fix}"
        )
    return s


# ---- heads


def _to_heads(x: Tensor, s: Scores) -> Tensor:
    """``(N, L, E)``, ``(L, N, E)`` or ``(L, E)`` as ``(N, heads, L, E / heads)``."""
    width = x.shape[-1] // s.heads
    if not s.is_batched:
        return permute(reshape(x, (1, x.shape[0], s.heads, width)), (0, 2, 1, 3))
    order = (0, 2, 1, 3) if s.batch_first else (1, 2, 0, 3)
    return permute(reshape(x, (*x.shape[:-1], s.heads, width)), order)


def _from_heads(x: Tensor, s: Scores) -> Tensor:
    """What :func:`_to_heads` made, back."""
    width = s.heads * x.shape[-1]
    if not s.is_batched:
        return reshape(permute(x, (0, 2, 1, 3)), (s.rows, width))
    if s.batch_first:
        return reshape(permute(x, (0, 2, 1, 3)), (s.n, s.rows, width))
    return reshape(permute(x, (2, 0, 1, 3)), (s.rows, s.n, width))


def _project(
    given: tuple[Operand, Operand, Operand], q: Tensor, k: Tensor, v: Tensor, w: Weights
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values; ``given`` shows which of them are one tensor."""
    bias = None if w.in_bias is None else lift(w.in_bias)
    e = q.shape[-1]
    if w.in_proj is None:
        biases = (None,) * 3 if bias is None else split(bias, e)
        parts = zip((q, k, v), (w.q, w.k, w.v), biases)
        made = [linear(x, weight, b) for x, weight, b in parts if weight is not None]
        return made[0], made[1], made[2]
    weight = lift(w.in_proj)

    def rows(x: Tensor, begin: int, end: int) -> list[Tensor]:
        """By the weights of parts ``begin`` up to ``end`` of query, key, value, at once."""
        is_all = end - begin == 3
        part = weight if is_all else weight[begin * e : end * e]
        b = bias if bias is None or is_all else bias[begin * e : end * e]
        made = linear(x, part, b)
        return list(split(made, e, -1)) if end - begin > 1 else [made]

    if given[1] is not given[2]:
        made = [*rows(q, 0, 1), *rows(k, 1, 2), *rows(v, 2, 3)]
    elif given[0] is not given[1]:
        made = [*rows(q, 0, 1), *rows(k, 1, 3)]
    else:
        made = rows(q, 0, 3)
    return made[0], made[1], made[2]


def _lengthen(k: Tensor, v: Tensor, w: Weights, add_zero: bool) -> tuple[Tensor, Tensor]:
    """Keys and values with the learnt one and the zero one behind them."""
    n, heads, _, width = k.shape
    keys, values = [k], [v]
    if w.bias_k is not None and w.bias_v is not None:
        for many, one in ((keys, w.bias_k), (values, w.bias_v)):
            many.append(expand(reshape(lift(one), (1, heads, 1, width)), (n, heads, 1, width)))
    if add_zero:
        keys.append(zeros(n, heads, 1, width))
        values.append(zeros(n, heads, 1, v.shape[-1]))
    return cat(keys, 2), cat(values, 2)


# ---- attention


def attend(
    query: Operand,
    key: Operand,
    value: Operand,
    weights: Weights,
    settings: Settings,
    key_padding_mask: Operand | None = None,
    attn_mask: Operand | None = None,
    statics: tuple[Operand | None, Operand | None] = (None, None),
) -> tuple[Tensor, Tensor | None]:
    """Attention of a layer: the output, in the inputs' layout, and if they are wanted the weights.

    ``statics`` are keys and values ``(N * heads, S, E / heads)`` in the place of projected ones.
    """
    q, k, v = (lift_float(x, "attention") for x in (query, key, value))
    _check_inputs(q, k, v, settings)
    s = _read_scores(q, k, settings)
    projected = _project((query, key, value), q, k, v, weights)
    q, k, v = (_to_heads(x, s) for x in projected)
    if any(one is not None for one in statics):
        k, v = (_static(one, x, s) for one, x in zip(statics, (k, v)))
        if k.shape[2] != v.shape[2]:
            raise ShapeError(
                f"{s.what}keys and values must be as many, got {k.shape[2]} and {v.shape[2]}"
            )
        s = s._replace(keys=k.shape[2])
    k, v = _lengthen(k, v, weights, settings.add_zero_attn)
    mask = merge_masks(key_padding_mask, attn_mask, settings.is_causal, s, k.shape[2] - s.keys)
    p = settings.dropout_p
    if not settings.need_weights:
        out = scaled_dot_product_attention(q, k, v, mask.seen, p, mask.is_causal)
        return linear(_from_heads(out, s), weights.out, weights.out_bias), None
    chances = _chances(q, k, mask, p)
    out = linear(_from_heads(matmul(chances, v), s), weights.out, weights.out_bias)
    shown = chances.mean(1) if settings.average else chances
    return out, shown if s.is_batched else squeeze(shown, 0)


def _chances(q: Tensor, k: Tensor, mask: Mask, p: float) -> Tensor:
    """The weights of attention ``(N, heads, L, S)``, after dropout, as torch gives them."""
    scores = matmul(q * (1 / math.sqrt(q.shape[-1])), transpose(k, -2, -1))
    weights = weigh(scores, mask)
    return dropout(weights, p) if p > 0 else weights


def _static(given: Operand | None, made: Tensor, s: Scores) -> Tensor:
    if given is None:
        return made
    x = lift_float(given, "attention")
    width = made.shape[-1]
    if x.ndim != 3 or x.shape[0] != s.n * s.heads or x.shape[2] != width:
        raise ShapeError(
            f"{s.what}static_k and static_v must be (N * num_heads, S, E / num_heads) = "
            f"({s.n * s.heads}, S, {width}), got {x.shape}"
        )
    return reshape(x, (s.n, s.heads, x.shape[1], width))


def multi_head_attention_forward(
    query: Operand,
    key: Operand,
    value: Operand,
    embed_dim_to_check: Count,
    num_heads: Count,
    in_proj_weight: Operand | None,
    in_proj_bias: Operand | None,
    bias_k: Operand | None,
    bias_v: Operand | None,
    add_zero_attn: bool,
    dropout_p: Probability,
    out_proj_weight: Operand,
    out_proj_bias: Operand | None,
    training: bool = True,
    key_padding_mask: Operand | None = None,
    need_weights: bool = True,
    attn_mask: Operand | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Operand | None = None,
    k_proj_weight: Operand | None = None,
    v_proj_weight: Operand | None = None,
    static_k: Operand | None = None,
    static_v: Operand | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What :class:`hotloop.nn.MultiheadAttention` computes, of values given to it.

    Parameters
    ----------
    query : Tensor
        ``(L, N, E)``, or of one sample ``(L, E)``.
    key, value : Tensor
        ``(S, N, E)``, or of one sample ``(S, E)``; with separate weights their last dims are those
        of ``k_proj_weight`` and ``v_proj_weight``.
    embed_dim_to_check : int
        E, a multiple of num_heads.
    num_heads : int
        Heads, each of E / num_heads numbers a row.
    in_proj_weight : Tensor or None
        ``(3 * E, E)``: the weights that make queries, keys and values, one below the other.
    in_proj_bias : Tensor or None
        ``(3 * E,)``.
    bias_k, bias_v : Tensor or None
        ``(1, 1, E)``, both or neither: a key and a value behind all others.
    add_zero_attn : bool
        Whether a key and a value of zeros stand behind all others.
    dropout_p : float
        Probability, while training, that a weight is 0.
    out_proj_weight : Tensor
        ``(E, E)``.
    out_proj_bias : Tensor or None
        ``(E,)``.
    training : bool
        False: no dropout.
    key_padding_mask : Tensor, optional
        ``(N, S)``, or of one sample ``(S,)``: True where a key is hidden from all rows, or floats
        that are added to the scores.
    need_weights : bool
        Whether the weights are returned too. False is faster, and the scores take no memory.
    attn_mask : Tensor, optional
        ``(L, S)``, or ``(N * num_heads, L, S)``: True where a key is hidden from a row, the
        opposite of :func:`scaled_dot_product_attention`, or floats that are added.
    use_separate_proj_weight : bool
        Whether ``q_proj_weight`` and the others are taken in the place of ``in_proj_weight``.
    q_proj_weight, k_proj_weight, v_proj_weight : Tensor, optional
        ``(E, E)``, ``(E, width of key)``, ``(E, width of value)``.
    static_k, static_v : Tensor, optional
        ``(N * num_heads, S, E / num_heads)``: keys and values that are taken as they are.
    average_attn_weights : bool
        Whether the weights are the mean of all heads.
    is_causal : bool
        Row i sees keys 0 to i, and of those what the masks let it see.

    Returns
    -------
    tuple of Tensor
        The output ``(L, N, E)``, or ``(L, E)``, and the weights ``(N, L, S)``, or ``(N, num_heads,
        L, S)`` without the mean, of one sample without N; None without ``need_weights``. A row that
        sees no key has weights of 0, where torch's are NaN, as is its output beside them.

    Raises
    ------
    ConfigError
        If num_heads does not divide E, or weights are missing.
    ShapeError
        If inputs, weights and masks do not fit.
    TraceError
        If a mask is of integers.

    Notes
    -----
    Vaswani et al. 2017.
    """
    name = "multi_head_attention_forward"
    check_heads(name, ("embed_dim_to_check", embed_dim_to_check), ("num_heads", num_heads))
    weights = Weights(
        None, q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias, bias_k, bias_v,
        out_proj_weight, out_proj_bias,
    )  # fmt: skip
    if not use_separate_proj_weight:
        weights = weights._replace(in_proj=in_proj_weight, q=None, k=None, v=None)
    widths = _check_weights(name, weights, embed_dim_to_check, (static_k, static_v))
    packed = ("embed_dim_to_check",) * 3
    apart = ("embed_dim_to_check", "k_proj_weight.shape[1]", "v_proj_weight.shape[1]")
    settings = Settings(
        widths, num_heads, dropout_p if training else 0.0, add_zero_attn, need_weights,
        average_attn_weights, is_causal, names=apart if use_separate_proj_weight else packed,
        what=f"{name}: ",
    )  # fmt: skip
    return attend(
        query, key, value, weights, settings, key_padding_mask, attn_mask, (static_k, static_v)
    )


def _check_weights(
    name: str, w: Weights, e: int, statics: tuple[Operand | None, Operand | None]
) -> tuple[int, int, int]:
    """The widths of query, key and value that the weights take."""
    if (w.bias_k is None) != (w.bias_v is None):
        raise ConfigError(f"{name}: bias_k and bias_v must both be given or neither, got one")
    if w.bias_k is not None and any(one is not None for one in statics):
        raise ConfigError(f"{name}: bias_k must be None beside static_k and static_v, got a tensor")
    if w.in_proj is None and (w.q is None or w.k is None or w.v is None):
        raise ConfigError(
            f"{name}: in_proj_weight must be given, or with use_separate_proj_weight=True "
            "q_proj_weight, k_proj_weight and v_proj_weight, got None"
        )
    wanted = {
        "in_proj_weight": (w.in_proj, (3 * e, e)), "q_proj_weight": (w.q, (e, e)),
        "k_proj_weight": (w.k, (e, None)), "v_proj_weight": (w.v, (e, None)),
        "in_proj_bias": (w.in_bias, (3 * e,)), "bias_k": (w.bias_k, (1, 1, e)),
        "bias_v": (w.bias_v, (1, 1, e)), "out_proj_weight": (w.out, (e, e)),
        "out_proj_bias": (w.out_bias, (e,)),
    }  # fmt: skip
    widths = dict.fromkeys(wanted, e)
    for which, (given, shape) in wanted.items():
        if given is not None:
            got = lift(given, what=name).shape
            if len(got) != len(shape) or any(n not in (m, None) for n, m in zip(shape, got)):
                shown = ", ".join("width" if n is None else str(n) for n in shape)
                raise ShapeError(f"{name}: {which} must be ({shown}), got {got}")
            widths[which] = got[-1]
    return e, widths["k_proj_weight"], widths["v_proj_weight"]


make_functions(globals(), __all__)
