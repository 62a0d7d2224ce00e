"""Where a row stands in its sequence: angles, waves and distances that attention can tell apart."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.base.memory import allocating
from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import dtypes, pointwise, views
from hotloop.graph.build import Operand, cast, lift, lift_float
from hotloop.graph.creation import arange
from hotloop.graph.symbolic import Tensor
from hotloop.nn.functional.arguments import Count, Positive, Size, make_functions

__all__ = ["alibi_bias", "alibi_slopes", "rotary_embedding", "sinusoidal_positions"]


def angles_of(n: int, dim: int, base: float) -> npt.NDArray[np.float64]:
    """Position times ``base ** (-2 i / dim)``.

    Returns
    -------
    ndarray
        ``(n, ceil(dim / 2))``.
    """
    rates = float(base) ** (-np.arange(0, dim, 2) / max(dim, 1))
    return np.arange(n)[:, None] * rates


def sinusoidal_positions(n: Size, dim: Size, base: Positive = 10000.0) -> Any:
    """Sines and cosines of positions at rates from 1 down to ``1 / base`` (Vaswani et al. 2017).

    Parameters
    ----------
    n : int
        Positions, from 0 on.
    dim : int
        Width: element 2 i is the sine and element 2 i + 1 the cosine of
        ``position / base ** (2 i / dim)``.
    base : float
        The slowest rate is about its inverse.

    Returns
    -------
    ndarray
        ``(n, dim)`` float32; in ``forward`` a constant.

    Raises
    ------
    ShapeError, OutOfMemoryError
        If it is larger than 63 bits can say, or than the memory that is left.
    """
    with allocating("sinusoidal_positions", (n, max(dim, 1))):
        angles = angles_of(n, dim, base)
        table = np.empty((n, dim), np.float32)
        table[:, 0::2] = np.sin(angles)
        table[:, 1::2] = np.cos(angles)[:, : dim // 2]
        return table


def rotary_embedding(
    input: Operand, cos: Operand, sin: Operand, interleaved: bool = True
) -> Tensor:
    """Pairs of elements turned by the angles of their position (Su et al. 2021, RoFormer).

    Parameters
    ----------
    input : Tensor
        ``(..., D)``, D even.
    cos, sin : Tensor
        Of the angles; broadcast to ``(..., D / 2)``.
    interleaved : bool
        Whether pairs are neighbours, (0, 1), (2, 3), as in RoFormer; else element i goes with
        element i + D / 2, as in GPT-NeoX and Hugging Face's Llama.

    Returns
    -------
    Tensor
        The input's shape.

    Raises
    ------
    ShapeError
        If D is odd, or the angles do not broadcast.
    """
    x = lift_float(input, "rotary_embedding")
    c, s = (lift(angle, what="rotary_embedding") for angle in (cos, sin))
    if not x.ndim or x.shape[-1] % 2:
        raise ShapeError(f"rotary_embedding: the last dim must be even, got shape {x.shape}")
    lead, half = x.shape[:-1], x.shape[-1] // 2
    pairs = views.reshape(x, (*lead, half, 2) if interleaved else (*lead, 2, half))
    axis = -1 if interleaved else -2
    a, b = views.select(pairs, axis, 0), views.select(pairs, axis, 1)
    turned = [a * c - b * s, b * c + a * s]
    if any(one.shape != a.shape for one in turned):
        raise ShapeError(
            f"rotary_embedding: cos and sin must broadcast to {a.shape}, got {c.shape}, {s.shape}"
        )
    return views.reshape(views.stack(turned, axis), x.shape)


def alibi_slopes(num_heads: Count) -> Any:
    """The slope of each head's bias (Press et al. 2022): powers of ``2 ** (-8 / num_heads)``.

    Parameters
    ----------
    num_heads : int
        Of another number than a power of two the first are those of the power below it, the
        others every second one of the power above.

    Returns
    -------
    ndarray
        ``(num_heads,)`` float32.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
    between = 2.0 ** (-4.0 / power * np.arange(1, 2 * power + 1, 2))
    return np.concatenate([slopes, between])[:num_heads].astype(np.float32)


def alibi_bias(
    num_heads: Count, rows: Size, keys: Size | None = None, input_pos: Operand | None = None
) -> Tensor:
    """What attention with linear biases adds to its scores (Press et al. 2022).

    Parameters
    ----------
    num_heads : int
        Heads of the attention.
    rows : int
        Rows that look at the keys.
    keys : int, optional
        By default as many as rows.
    input_pos : Tensor of integers, optional
        ``(rows,)``, the keys' numbers at which the rows stand; by default they are the last ones.

    Returns
    -------
    Tensor
        ``(num_heads, rows, keys)``, minus slope times distance: the ``attn_mask`` of
        ``F.scaled_dot_product_attention``, beside ``is_causal=True`` where later keys are hidden.

    Raises
    ------
    ConfigError
        If there are fewer keys than rows and no positions.
    ShapeError
        If the positions are no vector of the rows, or the bytes beyond 63 bits.
    OutOfMemoryError
        If there is less memory than it needs.
    """
    n_keys = rows if keys is None else keys
    with allocating("alibi_bias", (num_heads, rows, n_keys), np.float32):
        return _alibi_bias(num_heads, rows, n_keys, input_pos)


def _alibi_bias(num_heads: int, rows: int, n_keys: int, input_pos: Operand | None) -> Tensor:
    if input_pos is None:
        if n_keys < rows:
            raise ConfigError(
                f"alibi_bias: keys must be at least the {rows} rows where input_pos is not given, "
                f"got {n_keys}"
            )
        at: Any = arange(n_keys - rows, n_keys)
    else:
        at = lift(input_pos, what="alibi_bias")
        if at.shape != (rows,):
            raise ShapeError(f"alibi_bias: input_pos must be ({rows},), got shape {at.shape}")
    distance = pointwise.abs(views.unsqueeze(at, 1) - arange(n_keys))
    slopes = lift(-alibi_slopes(num_heads)[:, None, None], what="alibi_bias")
    return slopes * cast(distance, dtypes.float32)


make_functions(globals(), __all__)
