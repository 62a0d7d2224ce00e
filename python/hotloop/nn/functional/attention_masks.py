"""Attention: what hides keys from queries, as layers of attention are given it.

The idea: a mask of keys, one of pairs and the rule of time become one mask that broadcasts to the
scores, bool as long as both are. True hides, as in torch's layers; scaled_dot_product_attention has
it the other way round.

A mask that is known while tracing and says nothing but "no later keys" becomes that rule, by which
kernels leave out half of the work.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hotloop.errors import ShapeError, TraceError
from hotloop.graph import dtypes, reduction
from hotloop.graph.build import Operand, cat, lift
from hotloop.graph.pointwise import where
from hotloop.graph.symbolic import Tensor
from hotloop.graph.views import reshape

__all__ = ["Mask", "Scores", "is_rule_of_time", "merge_masks", "swap_layouts", "weigh"]


class Scores(NamedTuple):
    """Sizes of the scores ``(n, heads, rows, keys)``, and how the inputs lie that make them.

    ``what`` is what messages begin with. ``has_layout``: whether the user may choose batch_first.
    """

    n: int
    heads: int
    rows: int
    keys: int
    is_batched: bool
    batch_first: bool
    has_layout: bool
    what: str


class Mask(NamedTuple):
    """What hides keys: bools, True where hidden, or floats to add to the scores, and the rule of
    time, by which row i sees keys 0 to i.

    ``values`` broadcasts to ``(n, heads, rows, keys)``.
    """

    values: Tensor | None
    is_causal: bool

    @property
    def seen(self) -> Tensor | None:
        """The values as scaled_dot_product_attention takes them."""
        if self.values is None or self.values.dtype != dtypes.bool_:
            return self.values
        return ~self.values


def swap_layouts(scores: Scores) -> str:
    """The end of a message about shapes that would fit inputs of the other layout."""
    if not scores.is_batched or not scores.has_layout:
        return ""
    first, other = ("(N, L, E)", "(L, N, E)") if scores.batch_first else ("(L, N, E)", "(N, L, E)")
    return (
        f"; with batch_first={scores.batch_first} inputs are {first}, if they are {other} make the "
        f"layer with batch_first={not scores.batch_first}"
    )


# ---- one mask


def read_mask(name: str, mask: Operand, what: str) -> Tensor:
    """A mask as a tensor of bools or floats.

    Raises
    ------
    TraceError
        For integers, and for bools that have become floats on their way into the model: added to
        the scores they would hide nothing.
    """
    m = lift(mask, what=name)
    if m.dtype == dtypes.bool_:
        return m
    if not m.dtype.is_floating_point:
        raise TraceError(
            f"{what}{name} must be bool, True where a key is hidden, or floats that are added to "
            f"the scores, got {m.dtype}; make it bool or float"
        )
    if (given := _given_as(m)) in ("bool", "uint8"):
        raise TraceError(
            f"{what}{name} must be bool, True where a key is hidden, or floats that are added to "
            f"the scores, got {given} data, which training gives to the model as 0.0 and 1.0; "
            f"write {name}.bool()"
        )
    return m


def _given_as(x: Tensor) -> str | None:
    """The dtype of the data that a tensor is, of which only the dtype was changed."""
    graph, value = x.trace.graph, x.id
    if graph.kind(value) != "act":
        return None
    node = next(node for node in reversed(graph.nodes()) if value in node["outputs"])
    (source, *_) = node["inputs"]
    is_data = node["op"] in ("batch_gather", "cast") and graph.kind(source) in ("dataset", "input")
    return graph.dtype(source) if is_data else None


def is_rule_of_time(mask: Operand | None) -> bool:
    """Whether a mask is known and hides exactly the later keys: row i sees keys 0 to i."""
    if mask is None:
        return False
    m = lift(mask, what="attn_mask")
    known = m.trace.graph.const_value(m.id)
    if known is None or known.ndim != 2 or known.shape[0] != known.shape[1]:
        return False
    later = ~np.tri(known.shape[0], dtype=np.bool_)
    if known.dtype == np.bool_:
        return np.array_equal(known, later)
    return np.array_equal(known, np.where(later, -np.inf, 0.0))


def _of_keys(mask: Operand, s: Scores) -> Tensor:
    m = read_mask("key_padding_mask", mask, s.what)
    want = (s.n, s.keys) if s.is_batched else (s.keys,)
    if m.shape != want:
        dims = "(N, S)" if s.is_batched else "(S,), as the inputs are one sample,"
        fix = swap_layouts(s) if m.shape == want[::-1] else ""
        raise ShapeError(f"{s.what}key_padding_mask must be {dims} = {want}, got {m.shape}{fix}")
    return reshape(m, (s.n, 1, 1, s.keys))


def _of_pairs(m: Tensor, s: Scores) -> Tensor:
    if m.shape == (s.rows, s.keys):
        return reshape(m, (1, 1, s.rows, s.keys))
    if m.shape == (s.n * s.heads, s.rows, s.keys):
        return reshape(m, (s.n, s.heads, s.rows, s.keys))
    fix = ""
    if m.shape == (s.n, s.rows, s.keys):
        fix = f"; for each head the same is attn_mask.repeat_interleave({s.heads}, 0)"
    elif m.ndim == 4 and math.prod(m.shape[:2]) == s.n * s.heads:
        fix = "; write attn_mask.flatten(0, 1)"
    elif m.shape == (s.n, s.n):
        fix = swap_layouts(s)
    lead = "N * num_heads" if s.is_batched else "num_heads"
    raise ShapeError(
        f"{s.what}attn_mask must be (L, S) = {(s.rows, s.keys)} or ({lead}, L, S) = "
        f"{(s.n * s.heads, s.rows, s.keys)}, got {m.shape}{fix}"
    )


# ---- both, and the rule


def merge_masks(
    of_keys: Operand | None, of_pairs: Operand | None, is_causal: bool, s: Scores, n_more: int = 0
) -> Mask:
    """One mask of key_padding_mask, attn_mask and is_causal.

    Parameters
    ----------
    of_keys, of_pairs : Tensor, optional
        ``(N, S)`` and ``(L, S)`` or ``(N * heads, L, S)``, or of one sample without N.
    is_causal : bool
        Whether row i sees keys 0 to i alone, together with what the masks hide.
    s : Scores
        Without the keys that are added.
    n_more : int
        How many keys stand behind those of the masks, which every row sees.
    """
    parts = [] if of_keys is None else [_of_keys(of_keys, s)]
    if of_pairs is not None:
        mask = read_mask("attn_mask", of_pairs, s.what)
        pairs = _of_pairs(mask, s)
        if is_rule_of_time(mask):
            is_causal = True
        else:
            parts.append(pairs)
    if is_causal and n_more:  # the rule would hide what stands behind all keys
        later = ~np.tri(s.rows, s.keys, dtype=np.bool_)
        parts.append(lift(later[None, None]))
        is_causal = False
    if not parts:
        return Mask(None, is_causal)
    values = parts[0]
    for part in parts[1:]:
        values = _both(values, part)
    if n_more:
        none = np.zeros((*values.shape[:-1], n_more), np.bool_)
        zeros = lift(none) if values.dtype == dtypes.bool_ else lift(none.astype(np.float32))
        values = cat([values, zeros], -1)
    return Mask(values, is_causal)


def _both(a: Tensor, b: Tensor) -> Tensor:
    """What one of two masks hides; as soon as one adds, both do."""
    if a.dtype == b.dtype == dtypes.bool_:
        return a | b
    return _as_added(a) + _as_added(b)


def _as_added(x: Tensor) -> Tensor:
    return where(x, -math.inf, 0.0) if x.dtype == dtypes.bool_ else x


def weigh(scores: Tensor, mask: Mask) -> Tensor:
    """Softmax of scores over the keys that are seen; a row that sees none is 0."""
    values, nothing = mask.values, None
    if mask.is_causal:
        later = lift(~np.tri(*scores.shape[-2:], dtype=np.bool_))
        values = later if values is None else _both(values, later)
    if values is None:
        return reduction.softmax(scores, -1)
    is_bool = values.dtype == dtypes.bool_
    scores = where(values, -math.inf, scores) if is_bool else scores + values
    if mask.values is not None:  # the rule alone leaves each row a key
        hides = values if is_bool else values == -math.inf
        nothing = reduction.all(hides, -1, keepdim=True)
        scores = where(nothing, 0.0, scores)  # else NaN, which where's gradient would not stop
    weights = reduction.softmax(scores, -1)
    return weights if nothing is None else where(nothing, 0.0, weights)
