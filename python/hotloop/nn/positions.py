"""Layers that tell attention where a row stands: rotary, sinusoidal, linear biases.

Tables of sines and cosines are buffers that ``state_dict`` does not have, as they follow from the
sizes. Rows go by their place in the input, or by ``input_pos``, where a model predicts step by
step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import dtypes
from hotloop.graph.build import add_node, lift, not_integers
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Count, Positive
from hotloop.nn.functional.positions import angles_of
from hotloop.nn.module import Module
from hotloop.nn.parameter import Buffer
from hotloop.nn.recipes import Array

__all__ = ["ALiBi", "RotaryPositionalEmbeddings", "SinusoidalPositionalEncoding"]


@dataclass(frozen=True)
class _Waves:
    """Cosines, sines, or both in turn, of positions."""

    kind: str
    dim: int
    base: float

    def draw(self, shape: tuple[int, ...], seed: int, stream: str) -> Array:
        """See :class:`hotloop.nn.recipes.Recipe`."""
        if self.kind == "both":
            return np.asarray(F.sinusoidal_positions(shape[0], self.dim, self.base))
        wave = np.cos if self.kind == "cos" else np.sin
        return wave(angles_of(shape[0], self.dim, self.base)).astype(np.float32)


def _table(kind: str, n: int, dim: int, base: float) -> Buffer:
    columns = dim if kind == "both" else dim // 2
    made = Buffer.of_recipe((n, columns), _Waves(kind, dim, base))
    made.persistent = False
    return made


class _Positions(Module):
    """Tables by position, and the rows of them that an input needs."""

    max_seq_len: int

    def _rows(self, table: Any, n: int, input_pos: Any) -> Any:
        """The table's rows of n places: ``(n, width)``, or ``(N, n, width)`` by positions."""
        if input_pos is None or isinstance(input_pos, int):
            first = input_pos or 0
            if first < 0:
                raise ShapeError(f"input_pos must be at least 0, got {first}")
            if first + n > self.max_seq_len:
                behind = f" from position {first} on" if first else ""
                raise ShapeError(
                    f"the sequence must fit max_seq_len={self.max_seq_len} positions, got {n}"
                    f"{behind}"
                )
            return table[first : first + n]
        at = lift(input_pos, what=type(self).__name__)
        if at.dtype.is_floating_point or at.dtype == dtypes.bool_:
            raise ShapeError(f"input_pos must hold integers, {not_integers(at)}")
        if at.ndim not in (1, 2) or at.shape[-1] != n:
            raise ShapeError(f"input_pos must be ({n},) or (N, {n}), got shape {at.shape}")
        if n > self.max_seq_len:
            raise ShapeError(
                f"the sequence must fit max_seq_len={self.max_seq_len} positions, got {n}"
            )
        return add_node("index_select", lift(table), at, axis=0)


class RotaryPositionalEmbeddings(_Positions):
    """Queries and keys turned by the angles of their position (Su et al. 2021, RoFormer).

    Parameters
    ----------
    dim : int
        Width of a head; even.
    max_seq_len : int
        Positions that there are.
    base : float
        Pair i turns by ``base ** (-2 i / dim)`` a position.
    interleaved : bool
        Whether pairs are neighbours, as in RoFormer and torchtune; else element i goes with
        element i + dim / 2, as in GPT-NeoX and Hugging Face's Llama.

    Raises
    ------
    ConfigError
        If dim is odd, or a size out of range.

    Notes
    -----
    ``(N, T, heads, dim)`` in, the same out, as in torchtune. ``input_pos`` of ``forward`` says
    where the rows stand, which else is at 0 to T - 1: the position of the first, or ``(T,)`` or
    ``(N, T)`` integers, such as ``KVCache.positions`` gives. A sequence of more than max_seq_len
    positions is a ShapeError.
    """

    def __init__(
        self,
        dim: Count,
        max_seq_len: Count = 4096,
        base: Positive = 10000,
        interleaved: bool = True,
    ) -> None:
        super().__init__()
        if dim % 2:
            raise ConfigError(f"RotaryPositionalEmbeddings: dim must be even, got {dim}")
        self.dim = dim
        self.max_seq_len = max_seq_len
        self.base = base
        self.interleaved = interleaved
        for kind in ("cos", "sin"):
            self.register_buffer(kind, _table(kind, max_seq_len, dim, base), persistent=False)

    def forward(self, x: Any, input_pos: Any = None) -> Any:
        if x.ndim != 4 or x.shape[-1] != self.dim:
            raise ShapeError(f"input must be (N, T, heads, {self.dim}), got shape {x.shape}")
        angles = [self._rows(table, x.shape[1], input_pos) for table in (self.cos, self.sin)]
        cos, sin = (a.unsqueeze(-2) for a in angles)  # the heads
        return F.rotary_embedding(x, cos, sin, self.interleaved)

    def extra_repr(self) -> str:
        text = f"{self.dim}, max_seq_len={self.max_seq_len}, base={self.base}"
        return text if self.interleaved else f"{text}, interleaved=False"


class SinusoidalPositionalEncoding(_Positions):
    """Adds sines and cosines of the position (Vaswani et al. 2017).

    Parameters
    ----------
    d_model : int
        Width of the input.
    max_seq_len : int
        Positions that there are.
    base : float
        Element 2 i is the sine of ``position / base ** (2 i / d_model)``, element 2 i + 1 its
        cosine.

    Raises
    ------
    ConfigError
        If a size is out of range.

    Notes
    -----
    ``(N, T, d_model)`` in, the same out. ``input_pos`` of ``forward`` as in
    :class:`RotaryPositionalEmbeddings`. A sequence of more than max_seq_len positions is a
    ShapeError.
    """

    def __init__(self, d_model: Count, max_seq_len: Count = 4096, base: Positive = 10000.0) -> None:
        super().__init__()
        self.d_model = d_model
        self.max_seq_len = max_seq_len
        self.base = base
        self.register_buffer("pe", _table("both", max_seq_len, d_model, base), persistent=False)

    def forward(self, x: Any, input_pos: Any = None) -> Any:
        if x.ndim != 3 or x.shape[-1] != self.d_model:
            raise ShapeError(f"input must be (N, T, {self.d_model}), got shape {x.shape}")
        return x + self._rows(self.pe, x.shape[1], input_pos)

    def extra_repr(self) -> str:
        return f"{self.d_model}, max_seq_len={self.max_seq_len}, base={self.base}"


class ALiBi(Module):
    """Adds linear biases to masks of attention (Press et al. 2022).

    Parameters
    ----------
    num_heads : int
        Heads of the attention.

    Raises
    ------
    ConfigError
        If there is none.

    Notes
    -----
    Queries ``(N, num_heads, L, E)`` and keys ``(N, num_heads, S, E)`` in, ``(num_heads, L, S)``
    out: minus slope times distance, the ``attn_mask`` of ``F.scaled_dot_product_attention``.
    ``input_pos`` of ``forward``, ``(L,)`` integers, says at which keys the queries stand, which
    else is at the last ones. It has no end of positions.
    """

    def __init__(self, num_heads: Count) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(self, query: Any, key: Any, input_pos: Any = None) -> Any:
        for name, given in (("query", query), ("key", key)):
            if given.ndim != 4 or given.shape[1] != self.num_heads:
                raise ShapeError(
                    f"{name} must be (N, {self.num_heads}, rows, width), got shape {given.shape}"
                )
        return F.alibi_bias(self.num_heads, query.shape[2], key.shape[2], input_pos)

    def extra_repr(self) -> str:
        return str(self.num_heads)
