"""Attention layers: encoders and decoders of the Transformer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from hotloop.base.memory import allocating
from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import creation
from hotloop.graph.build import is_int
from hotloop.nn import functional as F
from hotloop.nn import init
from hotloop.nn.attention import MultiheadAttention
from hotloop.nn.calling import kind_of
from hotloop.nn.containers import ModuleList
from hotloop.nn.dropout import Dropout
from hotloop.nn.functional.arguments import Activation, Count, NonNegative, Probability, Size
from hotloop.nn.functional.attention_masks import is_rule_of_time
from hotloop.nn.functional.multi_head import check_heads
from hotloop.nn.linear import Linear
from hotloop.nn.module import Module
from hotloop.nn.norm import LayerNorm
from hotloop.nn.parameter import renewed

__all__ = [
    "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder",
    "TransformerEncoderLayer",
]  # fmt: skip


def _function(activation: Activation) -> Callable[[Any], Any]:
    named: dict[str, Callable[[Any], Any]] = {"relu": F.relu, "gelu": F.gelu}
    return named[activation] if isinstance(activation, str) else activation


def _copies(layer: Any, n: int, what: str) -> ModuleList:
    """Copies of a layer, in which initial values that nobody has set are drawn for each anew."""
    if not isinstance(layer, Module):
        is_class = isinstance(layer, type) and issubclass(layer, Module)
        got = f"the class {layer.__name__}; make a layer of it" if is_class else kind_of(layer)
        raise ConfigError(f"{what} must be a module, got {got}")
    made = []
    for _ in range(n):
        memo: dict[int, Any] = {id(p): renewed(p) for p in layer.parameters()}
        made.append(copy.deepcopy(layer, memo))
    return ModuleList(made)


def _hint(is_causal: bool | None, mask: Any) -> bool:
    """Whether a mask is the rule of time; if nobody says so, it is looked at where it is known."""
    return is_rule_of_time(mask) if is_causal is None else bool(is_causal)


class _Layer(Module):
    """What the layers of encoder and decoder share: attention to themselves, and two linear maps.

    Subclasses name their sublayers in torch's order, which is that of ``state_dict``.
    """

    self_attn: MultiheadAttention
    linear1: Linear
    dropout: Dropout
    linear2: Linear
    activation: Any

    def _attention(
        self, d_model: int, nhead: int, dropout: float, bias: bool, batch_first: bool
    ) -> MultiheadAttention:
        return MultiheadAttention(d_model, nhead, dropout, bias=bias, batch_first=batch_first)

    def _add_maps(self, d_model: int, dim_feedforward: int, dropout: float, bias: bool) -> None:
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias)

    def _add_norms(self, n: int, d_model: int, eps: float, bias: bool, dropout: float) -> None:
        for i in range(1, n + 1):
            self.add_module(f"norm{i}", LayerNorm(d_model, eps=eps, bias=bias))
        for i in range(1, n + 1):
            self.add_module(f"dropout{i}", Dropout(dropout))

    def _map(self, x: Any) -> Any:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))

    def _add(self, i: int, x: Any, branch: Callable[[Any], Any]) -> Any:
        """A branch beside x, and the i-th norm before it or behind the sum."""
        norm, dropout = getattr(self, f"norm{i}"), getattr(self, f"dropout{i}")
        if self.norm_first:
            return x + dropout(branch(norm(x)))
        return norm(x + dropout(branch(x)))


class TransformerEncoderLayer(_Layer):
    """Attention of a sequence to itself, then two linear maps, each with a residual (Vaswani et al.
    2017).

    Parameters
    ----------
    d_model : int
        E, the features.
    nhead : int
        Heads, which divide d_model.
    dim_feedforward : int
        Features between the two linear maps.
    dropout : float
        In training, the probability of 0: of the weights of attention, between the linear maps and
        behind both parts.
    activation : {"relu", "gelu"} or callable
        Between the linear maps; a function of a tensor, or a module.
    layer_norm_eps : float
        Added to the variance.
    batch_first : bool
        Whether inputs are ``(N, S, E)``; ``(S, N, E)`` by default.
    norm_first : bool
        Whether each part normalises what enters it (Xiong et al. 2020), and not its sum with x.
    bias : bool
        Whether attention, linear maps and norms have biases.
    device, dtype
        Taken for torch's sake.

    Raises
    ------
    ConfigError
        If nhead does not divide d_model.

    Notes
    -----
    ``forward(src)`` takes ``(S, N, E)``, with ``batch_first`` ``(N, S, E)``, or of one sample
    ``(S, E)``, and gives the same. ``src_mask`` ``(S, S)`` or ``(N * nhead, S, S)``,
    ``src_key_padding_mask`` ``(N, S)`` and ``is_causal`` are as in :class:`MultiheadAttention`:
    True hides.
    """

    def __init__(
        self,
        d_model: Count,
        nhead: Count,
        dim_feedforward: Size = 2048,
        dropout: Probability = 0.1,
        activation: Activation = F.relu,
        layer_norm_eps: NonNegative = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_heads(type(self).__name__, ("d_model", d_model), ("nhead", nhead))
        self.self_attn = self._attention(d_model, nhead, dropout, bias, batch_first)
        self._add_maps(d_model, dim_feedforward, dropout, bias)
        self.norm_first = norm_first
        self._add_norms(2, d_model, layer_norm_eps, bias, dropout)
        self.activation = _function(activation)

    def forward(
        self,
        src: Any,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Any:
        def attend(x: Any) -> Any:
            return self.self_attn(
                x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal
            )[0]

        return self._add(2, self._add(1, src, attend), self._map)


class TransformerDecoderLayer(_Layer):
    """Attention of a sequence to itself, to an encoder's output, then two linear maps, each with a
    residual (Vaswani et al. 2017).

    Parameters
    ----------
    d_model : int
        E, the features.
    nhead : int
        Heads, which divide d_model.
    dim_feedforward : int
        Features between the two linear maps.
    dropout : float
        In training, the probability of 0: of the weights of attention, between the linear maps and
        behind all three parts.
    activation : {"relu", "gelu"} or callable
        Between the linear maps; a function of a tensor, or a module.
    layer_norm_eps : float
        Added to the variance.
    batch_first : bool
        Whether inputs are ``(N, T, E)``; ``(T, N, E)`` by default.
    norm_first : bool
        Whether each part normalises what enters it (Xiong et al. 2020), and not its sum with x.
    bias : bool
        Whether attention, linear maps and norms have biases.
    device, dtype
        Taken for torch's sake.

    Raises
    ------
    ConfigError
        If nhead does not divide d_model.

    Notes
    -----
    ``forward(tgt, memory)`` takes ``(T, N, E)`` and the encoder's output ``(S, N, E)``, with
    ``batch_first`` the first two dims exchanged, of one sample without N, and gives the shape of
    ``tgt``. ``tgt_mask``, ``tgt_key_padding_mask`` and ``tgt_is_causal`` are those of the attention
    to itself, as in :class:`MultiheadAttention` (True hides); ``memory_mask`` ``(T, S)``,
    ``memory_key_padding_mask`` ``(N, S)`` and ``memory_is_causal`` those of the other.
    """

    def __init__(
        self,
        d_model: Count,
        nhead: Count,
        dim_feedforward: Size = 2048,
        dropout: Probability = 0.1,
        activation: Activation = F.relu,
        layer_norm_eps: NonNegative = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_heads(type(self).__name__, ("d_model", d_model), ("nhead", nhead))
        self.self_attn = self._attention(d_model, nhead, dropout, bias, batch_first)
        self.multihead_attn = self._attention(d_model, nhead, dropout, bias, batch_first)
        self._add_maps(d_model, dim_feedforward, dropout, bias)
        self.norm_first = norm_first
        self._add_norms(3, d_model, layer_norm_eps, bias, dropout)
        self.activation = _function(activation)

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Any:
        def attend(x: Any) -> Any:
            return self.self_attn(
                x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal
            )[0]

        def attend_memory(x: Any) -> Any:
            return self.multihead_attn(
                x, memory, memory, memory_key_padding_mask, False, memory_mask,
                is_causal=memory_is_causal,
            )[0]  # fmt: skip

        x = self._add(1, tgt, attend)
        return self._add(3, self._add(2, x, attend_memory), self._map)


class TransformerEncoder(Module):
    """Layers of an encoder, one behind the other.

    Parameters
    ----------
    encoder_layer : Module
        Copied ``num_layers`` times; usually a :class:`TransformerEncoderLayer`.
    num_layers : int
        How many.
    norm : Module, optional
        Behind the last layer.
    enable_nested_tensor, mask_check : bool
        Taken for torch's sake, without effect: padding is computed like everything else.

    Raises
    ------
    ConfigError
        If encoder_layer is no module.

    Notes
    -----
    ``forward(src)`` takes ``(S, N, E)``, or what the layer takes, and gives the same. ``mask``
    is the layer's ``src_mask``; ``src_key_padding_mask`` and ``is_causal`` are as there.

    Each copy has initial values of its own. In torch all begin with those of ``encoder_layer``;
    here that is so for values that were set, as by ``load_state_dict``.
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: Size,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = _copies(encoder_layer, num_layers, f"{type(self).__name__}: encoder_layer")
        self.num_layers = num_layers
        self.norm = norm
        self.enable_nested_tensor = enable_nested_tensor
        self.mask_check = mask_check

    def forward(
        self,
        src: Any,
        mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool | None = None,
    ) -> Any:
        is_causal = _hint(is_causal, mask)
        for layer in self.layers:
            src = layer(
                src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=is_causal
            )
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(Module):
    """Layers of a decoder, one behind the other.

    Parameters
    ----------
    decoder_layer : Module
        Copied ``num_layers`` times; usually a :class:`TransformerDecoderLayer`.
    num_layers : int
        How many.
    norm : Module, optional
        Behind the last layer.

    Raises
    ------
    ConfigError
        If decoder_layer is no module.

    Notes
    -----
    ``forward(tgt, memory)`` takes ``(T, N, E)`` and ``(S, N, E)``, or what the layer takes, and
    gives the shape of ``tgt``. Masks are as in the layer.

    Each copy has initial values of its own. In torch all begin with those of ``decoder_layer``;
    here that is so for values that were set, as by ``load_state_dict``.
    """

    def __init__(self, decoder_layer: Module, num_layers: Size, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _copies(decoder_layer, num_layers, f"{type(self).__name__}: decoder_layer")
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Any:
        tgt_is_causal = _hint(tgt_is_causal, tgt_mask)
        for layer in self.layers:
            tgt = layer(
                tgt,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=tgt_is_causal,
                memory_is_causal=memory_is_causal,
            )
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder, and a decoder that attends to its output (Vaswani et al. 2017).

    Parameters
    ----------
    d_model : int
        E, the features.
    nhead : int
        Heads, which divide d_model.
    num_encoder_layers, num_decoder_layers : int
        How many layers.
    dim_feedforward : int
        Features between the two linear maps of a layer.
    dropout : float
        In training, the probability of 0 within the layers.
    activation : {"relu", "gelu"} or callable
        Between the linear maps; a function of a tensor, or a module.
    custom_encoder, custom_decoder : Module, optional
        In the place of the :class:`TransformerEncoder` and the :class:`TransformerDecoder`, each
        with a norm at its end. Their matrices get new initial values too, as in torch.
    layer_norm_eps : float
        Added to the variance.
    batch_first : bool
        Whether inputs are ``(N, S, E)``; ``(S, N, E)`` by default.
    norm_first : bool
        Whether each part of a layer normalises what enters it, and not its sum with x.
    bias : bool
        Whether attention, linear maps and norms have biases.
    device, dtype
        Taken for torch's sake.

    Raises
    ------
    ConfigError
        If nhead does not divide d_model.

    Notes
    -----
    ``forward(src, tgt)`` takes ``(S, N, E)`` and ``(T, N, E)``, with ``batch_first`` the first two
    dims exchanged, of one sample without N, and gives the shape of ``tgt``. ``src_mask`` and
    ``tgt_mask`` are those of the attention of each to itself, ``memory_mask`` ``(T, S)`` of the
    decoder's to the encoder's output; likewise the key_padding_masks and the hints ``is_causal``:
    see :class:`MultiheadAttention`. In all of them True hides.

    Matrices have Glorot's uniform initial values.
    """

    def __init__(
        self,
        d_model: Count = 512,
        nhead: Count = 8,
        num_encoder_layers: Size = 6,
        num_decoder_layers: Size = 6,
        dim_feedforward: Size = 2048,
        dropout: Probability = 0.1,
        activation: Activation = F.relu,
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: NonNegative = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_heads(type(self).__name__, ("d_model", d_model), ("nhead", nhead))
        given = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
            norm_first, bias,
        )  # fmt: skip

        def norm() -> LayerNorm:
            return LayerNorm(d_model, eps=layer_norm_eps, bias=bias)

        if custom_encoder is None:
            layer = TransformerEncoderLayer(*given)
            custom_encoder = TransformerEncoder(layer, num_encoder_layers, norm())
        self.encoder = custom_encoder
        if custom_decoder is None:
            other = TransformerDecoderLayer(*given)
            custom_decoder = TransformerDecoder(other, num_decoder_layers, norm())
        self.decoder = custom_decoder
        self._reset_parameters()
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def _reset_parameters(self) -> None:
        for parameter in self.parameters():
            if not parameter.is_lazy and parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self,
        src: Any,
        tgt: Any,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Any:
        self._check(src, tgt)
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )

    def _check(self, src: Any, tgt: Any) -> None:
        dims = "(N, S, E)" if self.batch_first else "(S, N, E)"
        shapes = f"got src {tuple(src.shape)} and tgt {tuple(tgt.shape)}"
        if src.ndim != tgt.ndim or src.ndim not in (2, 3):
            raise ShapeError(f"src and tgt must be {dims}, or of one sample (S, E), {shapes}")
        if not src.shape[-1] == tgt.shape[-1] == self.d_model:
            raise ShapeError(
                f"the last dim of src and tgt must be d_model={self.d_model}, {shapes}"
            )
        batch = 0 if self.batch_first else 1
        if src.ndim == 3 and src.shape[batch] != tgt.shape[batch]:
            fits = src.shape[1 - batch] == tgt.shape[1 - batch]
            fix = f"; batch_first={not self.batch_first} takes the other" if fits else ""
            raise ShapeError(
                f"src and tgt must have one batch size, N in dim {batch} of {dims}, {shapes}{fix}"
            )

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Any:
        """The mask by which row i sees keys 0 to i: 0 there, ``-inf`` behind.

        Parameters
        ----------
        sz : int
            Rows and columns.
        device : str, optional
            Taken for torch's sake.
        dtype : dtype, optional
            float32 by default.

        Returns
        -------
        Tensor in ``forward``, else ndarray
            ``(sz, sz)``. Attention knows it, and leaves out what it hides.

        Raises
        ------
        ConfigError
            If sz is negative or no integer.
        ShapeError, OutOfMemoryError
            If it is larger than 63 bits can say, or than the memory that is left.
        """
        if not is_int(sz) or sz < 0:
            raise ConfigError(
                f"generate_square_subsequent_mask: sz must be an integer >= 0, got {sz!r}"
            )
        with allocating("generate_square_subsequent_mask", (sz, sz), np.float32):
            later = ~np.tri(sz, dtype=np.bool_)
            mask = np.where(later, np.float32(-np.inf), np.float32(0))
        return creation.as_tensor(mask, dtype=dtype)
