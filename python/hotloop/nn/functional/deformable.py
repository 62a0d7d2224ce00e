"""Attention to a few sampled places of images of several sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotloop.base.scalars import plain
from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import dtypes
from hotloop.graph.build import Operand, add_node, cast, is_tensor, unify
from hotloop.graph.symbolic import Tensor
from hotloop.nn.functional.arguments import make_functions

__all__ = ["multi_scale_deformable_attention"]

_WHAT = "multi_scale_deformable_attention"


def image_sizes(name: str, value: Any) -> tuple[tuple[int, int], ...]:
    """Height and width of each image, which have to be known while the step is planned."""
    if is_tensor(value):
        raise ConfigError(
            f"{name} must be known before the step runs, got a tensor; write a tuple of (height, "
            "width)"
        )
    try:
        rows = np.asarray(plain(value))
    except ValueError:  # rows of different lengths
        rows = np.empty(0)
    if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype.kind not in "iu":
        raise ConfigError(f"{name} must be (height, width) of each image, got {value!r}")
    return tuple((int(h), int(w)) for h, w in rows)


def multi_scale_deformable_attention(
    value: Operand,
    value_spatial_shapes: Any,
    sampling_locations: Operand,
    attention_weights: Operand,
) -> Tensor:
    """For each head of a query the weighted sum of values at sampled places (Zhu et al. 2021).

    Parameters
    ----------
    value : Tensor
        ``(N, S, M, D)``: the pixels of L images, one image behind another and row by row, for each
        of M heads.
    value_spatial_shapes : sequence of (int, int)
        ``(L, 2)``: height and width of each image, at most 8; their products sum to S.
    sampling_locations : Tensor
        ``(N, Lq, M, L, P, 2)``: for each query and head P places of each image, x before y, where
        0 and 1 are the edges of the image. Beyond them, and where a place is no number, values
        are 0; between pixels they are bilinear.
    attention_weights : Tensor
        ``(N, Lq, M, L, P)``.

    Returns
    -------
    Tensor
        ``(N, Lq, M * D)``.

    Raises
    ------
    ConfigError
        If the sizes of images are none.
    ShapeError
        If the shapes do not fit.

    Notes
    -----
    As ``ms_deform_attn_core_pytorch`` of the authors' repository, in float32, and without its
    copies of the values at all places. The gradient's bits are the same every run.
    """
    v, at, weights = unify(value, sampling_locations, attention_weights, what=_WHAT)
    if v.dtype != dtypes.float64:
        v, at, weights = (cast(x, dtypes.float32) for x in (v, at, weights))
    sizes = image_sizes(f"{_WHAT}: value_spatial_shapes", value_spatial_shapes)
    shapes = f"got value {v.shape}, locations {at.shape}, weights {weights.shape}"
    if not 1 <= len(sizes) <= 8 or min(min(size) for size in sizes) < 1:
        raise ShapeError(f"{_WHAT}: there must be 1 to 8 images of 1 pixel or more, got {sizes}")
    n_pixels = sum(h * w for h, w in sizes)
    if v.ndim != 4 or v.shape[1] != n_pixels:
        raise ShapeError(
            f"{_WHAT}: value must be (N, {n_pixels}, heads, width) for images of {sizes}, {shapes}"
        )
    wanted = (v.shape[0], None, v.shape[2], len(sizes), None, 2)
    fits = at.ndim == 6 and all(n in (None, m) for n, m in zip(wanted, at.shape))
    if not fits or at.shape[:-1] != weights.shape:
        n, _, m, _ = v.shape
        raise ShapeError(
            f"{_WHAT}: locations must be ({n}, queries, {m}, {len(sizes)}, places, 2) and weights "
            f"the same without the last dim, {shapes}"
        )
    heights, widths = ([size[i] for size in sizes] for i in range(2))
    out = add_node("deformable_attention", v, at, weights, heights=heights, widths=widths)
    return out.reshape(*out.shape[:2], v.shape[2] * v.shape[3])


make_functions(globals(), __all__)
