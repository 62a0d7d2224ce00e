"""GPT-2 (Radford et al. 2019), nanoGPT's structure and names: the next token of each position."""

from __future__ import annotations

import math
import os
from typing import Any

import hotloop.nn.functional as F
from hotloop import nn
from hotloop.errors import ConfigError, ShapeError
from hotloop.graph.creation import arange
from hotloop.models.weights import load_weights
from hotloop.nn.functional.arguments import Approximation, Count, Probability
from hotloop.nn.module import Module

__all__ = ["gpt"]

_TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


class CausalSelfAttention(Module):
    """Heads in which each position sees those before it."""

    def __init__(self, n_embd: int, n_head: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.resid_dropout = nn.Dropout(dropout)
        self.n_head = n_head
        self.dropout = dropout

    def forward(self, x: Any, cache: Any = None, mask: Any = None, layer: int = 0) -> Any:
        B, T, C = x.shape
        qkv = self.c_attn(x).reshape(B, T, 3, self.n_head, C // self.n_head)
        q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
        if cache is None:
            p = self.dropout if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            k, v = cache.update(k, v, layer)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).reshape(B, T, C)))


class MLP(Module):
    """Two linear layers with GELU in between."""

    def __init__(self, n_embd: int, dropout: float, bias: bool, approximate: str) -> None:
        super().__init__()
        self.c_fc = nn.Linear(n_embd, 4 * n_embd, bias=bias)
        self.gelu = nn.GELU(approximate)
        self.c_proj = nn.Linear(4 * n_embd, n_embd, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(Module):
    """Attention and MLP, each behind a norm and beside a shortcut."""

    def __init__(
        self, n_embd: int, n_head: int, dropout: float, bias: bool, approximate: str
    ) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd, bias=bias)
        self.attn = CausalSelfAttention(n_embd, n_head, dropout, bias)
        self.ln_2 = nn.LayerNorm(n_embd, bias=bias)
        self.mlp = MLP(n_embd, dropout, bias, approximate)

    def forward(self, x: Any, cache: Any = None, mask: Any = None, layer: int = 0) -> Any:
        x = x + self.attn(self.ln_1(x), cache, mask, layer)
        return x + self.mlp(self.ln_2(x))


class GPT(Module):
    """Embeddings of tokens and positions, blocks, and the first embedding's table as head."""

    def __init__(
        self,
        vocab_size: Count,
        block_size: Count,
        n_layer: Count,
        n_head: Count,
        n_embd: Count,
        dropout: Probability,
        bias: bool,
        approximate: Approximation,
    ) -> None:
        super().__init__()
        if n_embd % n_head:
            raise ConfigError(f"gpt: n_embd must be a multiple of n_head, got {n_embd}, {n_head}")
        self.vocab_size, self.block_size = vocab_size, block_size
        self.n_layer, self.n_head, self.n_embd = n_layer, n_head, n_embd
        blocks = [Block(n_embd, n_head, dropout, bias, approximate) for _ in range(n_layer)]
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab_size, n_embd),
                "wpe": nn.Embedding(block_size, n_embd),
                "drop": nn.Dropout(dropout),
                "h": nn.ModuleList(blocks),
                "ln_f": nn.LayerNorm(n_embd, bias=bias),
            }
        )
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                is_last = name.endswith("c_proj.weight")
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * n_layer if is_last else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, idx: Any, cache: Any = None) -> Any:
        if idx.ndim != 2:
            raise ShapeError(f"idx must be (N, T) ids of tokens, got input of shape {idx.shape}")
        T = idx.shape[1]
        if self.block_size < T:
            raise ShapeError(
                f"the sequence must be at most block_size={self.block_size} positions long, got "
                f"{T}: input of shape {idx.shape}"
            )
        parts = self.transformer
        positions = arange(T) if cache is None else cache.positions(T)
        mask = None if cache is None else cache.mask(T)
        x = parts["drop"](parts["wte"](idx) + parts["wpe"](positions))
        for layer, block in enumerate(parts["h"]):
            x = block(x, cache, mask, layer)
        if cache is not None:
            x = x[:, -1:]  # a prediction goes on from its last position alone
        return self.lm_head(parts["ln_f"](x))

    def make_cache(self, batch_size: int) -> nn.KVCache:
        """A cache for :func:`hotloop.generate`.

        Parameters
        ----------
        batch_size : int
            Sequences at a time.

        Returns
        -------
        KVCache
            Empty, for ``block_size`` positions.
        """
        return nn.KVCache(
            self.n_layer, batch_size, self.n_head, self.block_size, self.n_embd // self.n_head
        )

    def before_load(self, state: dict[str, Any], prefix: str) -> None:
        """Files of Hugging Face's GPT-2 have matrices the other way round, and masks."""
        first = state.get(f"{prefix}transformer.h.0.attn.c_attn.weight")
        if first is None or tuple(first.shape) != (self.n_embd, 3 * self.n_embd):
            return
        for name in list(state):
            if name.endswith((".attn.bias", ".attn.masked_bias")):
                del state[name]
            elif name.endswith(_TRANSPOSED):
                state[name] = state[name].T


def gpt(
    vocab_size: int = 50257,
    block_size: int = 1024,
    n_layer: int = 12,
    n_head: int = 12,
    n_embd: int = 768,
    dropout: float = 0.0,
    bias: bool = True,
    approximate: str = "none",
    weights: str | os.PathLike[str] | None = None,
    strip_prefix: str = "",
) -> Module:
    """GPT-2 (Radford et al. 2019), by default its smallest.

    Parameters
    ----------
    vocab_size : int
        Tokens that there are.
    block_size : int
        Positions that a sequence may have.
    n_layer, n_head, n_embd : int
        Blocks, heads of their attention, and width; n_head divides n_embd.
    dropout : float
        Probability that an element of the embeddings, of attention or of a block's result is 0.
    bias : bool
        Whether linear layers and norms have one.
    approximate : {"none", "tanh"}
        Of GELU, as in ``nn.GELU``; "tanh" is what OpenAI's weights were trained with.
    weights : path-like, optional
        A local file of nanoGPT's weights, or of Hugging Face's ``GPT2LMHeadModel``, safetensors or
        of torch.save; else they are drawn.
    strip_prefix : str
        What the names in the file begin with, as ``"_orig_mod."``.

    Returns
    -------
    Module
        Ids ``(N, T)`` in, logits ``(N, T, vocab_size)`` of the token behind each out; T up to
        block_size. :func:`hotloop.generate` goes on from a prompt.

    Raises
    ------
    ConfigError, ShapeError
        If the sizes are out of range, or the weights do not fit.
    CheckpointError
        If the file cannot be read.

    Notes
    -----
    124,439,808 parameters, the head's being those of the tokens' embedding; 123.5 M multiply-adds
    for a sequence of one token.
    Structure, names and initial values are those of nanoGPT (Karpathy 2022).
    """
    model = GPT(vocab_size, block_size, n_layer, n_head, n_embd, dropout, bias, approximate)
    return load_weights(model, weights, "lm_head", False, strip_prefix, "nanoGPT")
