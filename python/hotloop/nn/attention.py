"""Attention layers."""

from __future__ import annotations

from typing import Any

from hotloop.nn import init
from hotloop.nn.functional.arguments import Count, Probability
from hotloop.nn.functional.multi_head import Settings, Weights, attend, check_heads
from hotloop.nn.linear import Linear
from hotloop.nn.module import Module
from hotloop.nn.parameter import Parameter
from hotloop.nn.recipes import Constant

__all__ = ["MultiheadAttention"]

_ZERO = Constant(0.0)


class NonDynamicallyQuantizableLinear(Linear):
    """A Linear under the name that torch shows here."""


class MultiheadAttention(Module):
    """Attention by several heads, each with a part of the features (Vaswani et al. 2017).

    Parameters
    ----------
    embed_dim : int
        E, the features of query and output.
    num_heads : int
        Divides embed_dim; each head has ``embed_dim / num_heads`` features.
    dropout : float
        In training, the probability that a weight of attention is 0.
    bias : bool
        Whether the projections have biases.
    add_bias_kv : bool
        Whether a key and a value that are learnt stand behind those of each sample.
    add_zero_attn : bool
        Whether a key and a value of zeros stand behind those of each sample.
    kdim, vdim : int, optional
        Features of key and value; embed_dim by default.
    batch_first : bool
        Whether inputs and output are ``(N, L, E)``; ``(L, N, E)`` by default.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    in_proj_weight : Parameter or None
        ``(3 * E, E)``: what makes queries, keys and values, one below the other; None if kdim or
        vdim is not embed_dim.
    q_proj_weight, k_proj_weight, v_proj_weight : Parameter or None
        ``(E, E)``, ``(E, kdim)`` and ``(E, vdim)`` in its place. All of them have Glorot's uniform
        initial values.
    in_proj_bias : Parameter or None
        ``(3 * E,)``, at first 0.
    bias_k, bias_v : Parameter or None
        ``(1, 1, E)``, the learnt key and value.
    out_proj : Linear
        From E to E, behind the heads; its bias is 0 at first.

    Raises
    ------
    ConfigError
        If num_heads does not divide embed_dim.

    Notes
    -----
    ``forward(query, key, value)`` takes ``(L, N, E)``, ``(S, N, kdim)`` and ``(S, N, vdim)``, with
    ``batch_first`` the first two dims exchanged, of one sample without N. It gives a pair: the
    output, of the query's shape, and the weights.

    - ``key_padding_mask`` ``(N, S)``: True where a key is hidden from all rows. Floats are added to
      the scores.
    - ``need_weights``, True by default as in torch: the weights ``(N, L, S)``, the mean of all
      heads, are the second result; with ``average_attn_weights=False`` ``(N, num_heads, L, S)``.
      False makes it None, and the layer faster: all scores lie in memory nowhere.
    - ``attn_mask`` ``(L, S)`` or ``(N * num_heads, L, S)``: True where a key is hidden from a row.
      This is torch's rule for layers; in :func:`hotloop.nn.functional.scaled_dot_product_attention`
      True is where it is seen. Floats are added.
    - ``is_causal``: row i sees keys 0 to i, and of those what the masks let it see. Unlike torch it
      needs no ``attn_mask``.

    A row that sees no key has weights of 0, and the output is the bias of ``out_proj``; in torch
    both are NaN with ``need_weights``, and the output is as here without.

    Examples
    --------
    >>> attention = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = np.ones((3, 5, 8), np.float32)
    >>> out, weights = attention(x, x, x)
    >>> out.shape, weights.shape
    ((3, 5, 8), (3, 5, 5))
    """

    in_proj_weight: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self,
        embed_dim: Count,
        num_heads: Count,
        dropout: Probability = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: Count | None = None,
        vdim: Count | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_heads(type(self).__name__, ("embed_dim", embed_dim), ("num_heads", num_heads))
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.head_dim = embed_dim // num_heads
        self._add_in_projections(bias)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias)
        for name in ("bias_k", "bias_v"):
            one = Parameter.of_recipe((1, 1, embed_dim), _ZERO) if add_bias_kv else None
            self.register_parameter(name, one)
        self.add_zero_attn = add_zero_attn
        self._reset_parameters()

    def _add_in_projections(self, bias: bool) -> None:
        e = self.embed_dim
        self._qkv_same_embed_dim = is_packed = self.kdim == self.vdim == e
        apart = {"q_proj_weight": e, "k_proj_weight": self.kdim, "v_proj_weight": self.vdim}
        if is_packed:
            self.in_proj_weight = Parameter.of_recipe((3 * e, e), _ZERO)
        for name, width in apart.items():
            one = None if is_packed else Parameter.of_recipe((e, width), _ZERO)
            self.register_parameter(name, one)
        if not is_packed:
            self.register_parameter("in_proj_weight", None)
        self.register_parameter(
            "in_proj_bias", Parameter.of_recipe((3 * e,), _ZERO) if bias else None
        )

    def _reset_parameters(self) -> None:
        """torch's initial values; ``out_proj`` keeps the weight of a Linear."""
        weights = (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        for weight in weights:
            if weight is not None:
                init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)
        for one in (self.bias_k, self.bias_v):
            if one is not None:
                init.xavier_normal_(one)

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Any, Any]:
        weights = Weights(
            self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight,
            self.in_proj_bias, self.bias_k, self.bias_v, self.out_proj.weight, self.out_proj.bias,
        )  # fmt: skip
        settings = Settings(
            (self.embed_dim, self.kdim, self.vdim), self.num_heads,
            self.dropout if self.dropout and self.training else 0.0, self.add_zero_attn,
            need_weights, average_attn_weights, is_causal, self.batch_first,
        )  # fmt: skip
        return attend(query, key, value, weights, settings, key_padding_mask, attn_mask)
