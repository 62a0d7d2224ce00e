"""Attention layers: to sampled places of images of several sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hotloop.errors import ShapeError
from hotloop.nn import functional as F
from hotloop.nn import init
from hotloop.nn.functional.arguments import Count
from hotloop.nn.functional.deformable import image_sizes
from hotloop.nn.functional.multi_head import check_heads
from hotloop.nn.linear import Linear
from hotloop.nn.module import Module
from hotloop.nn.parameter import Parameter

__all__ = ["MultiScaleDeformableAttention"]


class MultiScaleDeformableAttention(Module):
    """Attention to a few places of each of several images, which the query chooses (Zhu et al.
    2021).

    Parameters
    ----------
    d_model : int
        E, the features of queries, pixels and output.
    n_levels : int
        L, the images.
    n_heads : int
        M, the heads, which divide d_model.
    n_points : int
        P, the places that a head has in each image.

    Attributes
    ----------
    sampling_offsets : Linear
        From E to ``M * L * P * 2``: how far from its reference point each place is, x before y, in
        pixels. At first the weight is 0 and the bias has head i look in direction ``2 pi i / M``,
        its place j at distance j + 1.
    attention_weights : Linear
        From E to ``M * L * P``, of whose softmax over L and P the weights are; 0 at first.
    value_proj, output_proj : Linear
        From E to E, Glorot's uniform initial values; the biases are 0 at first.

    Raises
    ------
    ConfigError
        If n_heads does not divide d_model.

    Notes
    -----
    ``forward(query, reference_points, input_flatten, input_spatial_shapes)`` takes ``(N, Lq, E)``,
    ``(N, Lq, L, 2)``, the pixels of all images ``(N, S, E)``, one image behind another and row by
    row, and their heights and widths ``(L, 2)``; it gives ``(N, Lq, E)``. Reference points are x
    and y in [0, 1] of an image, or ``(N, Lq, L, 4)`` with a width and a height behind them: then a
    place lies ``offset / P / 2`` of these from the point.

    ``input_level_start_index`` ``(L,)``, where each image begins, follows from the sizes; it is
    taken for the original's sake, and checked. ``input_padding_mask`` ``(N, S)``: True where a
    pixel is padding, whose value is 0. A decoder that runs step by step gives :meth:`values` of the
    pixels, which it keeps, in their place.

    Names and initial values are those of ``MSDeformAttn`` in the repository of Deformable DETR.

    Examples
    --------
    >>> attention = nn.MultiScaleDeformableAttention(16, n_levels=2, n_heads=4)
    >>> query, points = np.ones((1, 3, 16), "float32"), np.full((1, 3, 2, 2), 0.5, "float32")
    >>> pixels = np.ones((1, 4 * 4 + 2 * 2, 16), "float32")
    >>> attention(query, points, pixels, ((4, 4), (2, 2))).shape
    (1, 3, 16)
    """

    def __init__(
        self, d_model: Count = 256, n_levels: Count = 4, n_heads: Count = 8, n_points: Count = 4
    ) -> None:
        super().__init__()
        check_heads(type(self).__name__, ("d_model", d_model), ("n_heads", n_heads))
        self.d_model = d_model
        self.n_levels = n_levels
        self.n_heads = n_heads
        self.n_points = n_points
        places = n_heads * n_levels * n_points
        self.sampling_offsets = Linear(d_model, 2 * places)
        self.attention_weights = Linear(d_model, places)
        self.value_proj = Linear(d_model, d_model)
        self.output_proj = Linear(d_model, d_model)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        """The initial values of the original."""
        init.zeros_(self.sampling_offsets.weight)
        turn = np.arange(self.n_heads) * (2 * math.pi / self.n_heads)
        compass = np.stack([np.cos(turn), np.sin(turn)], -1)
        compass /= abs(compass).max(-1, keepdims=True)
        distance = np.arange(1.0, self.n_points + 1)[:, None]
        bias = compass[:, None, None] * distance * np.ones((self.n_levels, 1, 1))
        self.sampling_offsets.bias = Parameter(bias.reshape(-1).astype(np.float32))
        init.zeros_(self.attention_weights.weight)
        init.zeros_(self.attention_weights.bias)
        for layer in (self.value_proj, self.output_proj):
            init.xavier_uniform_(layer.weight)
            init.zeros_(layer.bias)

    def forward(
        self,
        query: Any,
        reference_points: Any,
        input_flatten: Any,
        input_spatial_shapes: Any,
        input_level_start_index: Any = None,
        input_padding_mask: Any = None,
    ) -> Any:
        sizes = self._check(query, reference_points, input_flatten, input_spatial_shapes)
        self._check_begins(sizes, input_level_start_index)
        n, rows, _ = query.shape
        heads, levels, points = self.n_heads, self.n_levels, self.n_points
        value = input_flatten
        if value.ndim == 3:
            value = self.values(input_flatten, input_padding_mask)
        elif input_padding_mask is not None:
            raise ShapeError(
                "input_padding_mask goes with pixels, got values of them; give it to values()"
            )
        offsets = self.sampling_offsets(query).reshape(n, rows, heads, levels, points, 2)
        weights = self.attention_weights(query).reshape(n, rows, heads, levels * points)
        weights = F.softmax(weights, -1).reshape(n, rows, heads, levels, points)
        places = reference_points.reshape(n, rows, 1, levels, 1, -1)
        if reference_points.shape[-1] == 2:
            sides = np.asarray([(w, h) for h, w in sizes], np.float32).reshape(levels, 1, 2)
            at = places + offsets / sides
        else:
            at = places[..., :2] + offsets * places[..., 2:] * (0.5 / points)
        out = F.multi_scale_deformable_attention(value, sizes, at, weights)
        return self.output_proj(out)

    def values(self, input_flatten: Any, input_padding_mask: Any = None) -> Any:
        """In ``forward``: of the pixels, what each head sums up, made once for several calls.

        Parameters
        ----------
        input_flatten, input_padding_mask : Tensor
            As of ``forward``.

        Returns
        -------
        Tensor
            ``(N, S, M, E / M)``, for ``input_flatten`` of ``forward``.
        """
        value = self.value_proj(input_flatten)
        if input_padding_mask is not None:
            value = value.masked_fill(input_padding_mask.unsqueeze(-1), 0.0)
        return value.reshape(*value.shape[:2], self.n_heads, -1)

    def _check(
        self, query: Any, reference_points: Any, input_flatten: Any, shapes: Any
    ) -> tuple[tuple[int, int], ...]:
        sizes = image_sizes("input_spatial_shapes", shapes)
        if len(sizes) != self.n_levels:
            raise ShapeError(f"there must be n_levels={self.n_levels} images, got {sizes}")
        heads = (self.n_heads, self.d_model // self.n_heads)
        for name, x in (("query", query), ("input_flatten", input_flatten)):
            is_projected = x is input_flatten and x.ndim == 4 and x.shape[2:] == heads
            if not is_projected and (x.ndim != 3 or x.shape[-1] != self.d_model):
                raise ShapeError(f"{name} must be (N, rows, d_model={self.d_model}), got {x.shape}")
        want = (*query.shape[:2], self.n_levels)
        if reference_points.shape not in ((*want, 2), (*want, 4)):
            raise ShapeError(
                f"reference_points must be {(*want, 2)}, or {(*want, 4)} with sizes, got "
                f"{reference_points.shape}"
            )
        n_pixels = sum(h * w for h, w in sizes)
        if input_flatten.shape[:2] != (query.shape[0], n_pixels):
            raise ShapeError(
                f"input_flatten must be ({query.shape[0]}, {n_pixels}, d_model) for images of "
                f"{sizes}, got {input_flatten.shape}"
            )
        return sizes

    def _check_begins(self, sizes: tuple[tuple[int, int], ...], given: Any) -> None:
        if given is None:
            return
        lengths = [h * w for h, w in sizes]
        begins = [sum(lengths[:i]) for i in range(len(lengths))]
        if np.asarray(given).tolist() != begins:
            raise ShapeError(f"input_level_start_index must be {begins}, got {given!r}")
