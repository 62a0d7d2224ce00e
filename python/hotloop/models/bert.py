"""BERT (Devlin et al. 2019), Hugging Face's structure and names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hotloop import nn
from hotloop.errors import ConfigError, ShapeError
from hotloop.models.weights import load_weights
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Activation, Count, NonNegative, Probability
from hotloop.nn.functional.multi_head import check_heads
from hotloop.nn.module import Module
from hotloop.nn.parameter import Parameter
from hotloop.nn.recipes import Array, Normal

__all__ = ["bert"]


class _WithZeroRow(Normal):
    """Normal with one row of zeros: that of padding."""

    def __init__(self, row: int, std: float) -> None:
        super().__init__(0.0, std)
        object.__setattr__(self, "row", row)

    def draw(self, shape: tuple[int, ...], seed: int, stream: str) -> Array:
        """See :class:`hotloop.nn.recipes.Recipe`."""
        values = super().draw(shape, seed, stream).copy()
        values[self.__dict__["row"]] = 0.0
        return values


class Embeddings(Module):
    """The sum of tables of words, places and parts, normalised."""

    def __init__(
        self, words: int, dim: int, places: int, parts: int, padding: int, eps: float, p: float
    ) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(words, dim, padding_idx=padding)
        self.position_embeddings = nn.Embedding(places, dim)
        self.token_type_embeddings = nn.Embedding(parts, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=eps)
        self.dropout = nn.Dropout(p)

    def forward(self, ids: Any, parts: Any, places: Any) -> Any:
        rows, most = ids.shape[1], self.position_embeddings.weight.shape[0]
        if rows > most:
            raise ShapeError(
                f"input_ids must have at most {most} tokens, got {rows}; max_position_embeddings= "
                "of the model is how many places it knows"
            )
        # Parts that nobody gives are 0, places 0, 1, ...: rows of the tables, and no lookup.
        x = self.word_embeddings(ids)
        table = self.token_type_embeddings
        x = x + (table.weight[0] if parts is None else table(parts))
        table = self.position_embeddings
        x = x + (table.weight[:rows] if places is None else table(places))
        return self.dropout(self.LayerNorm(x))


class SelfAttention(Module):
    """Attention of a sequence to itself."""

    def __init__(self, dim: int, num_heads: int, p: float) -> None:
        super().__init__()
        self.num_heads, self.p = num_heads, p
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)

    def forward(self, x: Any, mask: Any) -> Any:
        n, rows, dim = x.shape
        q, k, v = (
            y.reshape(n, rows, self.num_heads, -1).transpose(1, 2)
            for y in (self.query(x), self.key(x), self.value(x))
        )
        y = F.scaled_dot_product_attention(q, k, v, mask, self.p if self.training else 0.0)
        return y.transpose(1, 2).reshape(n, rows, dim)


class Output(Module):
    """A linear layer, its sum with a shortcut, normalised."""

    def __init__(self, dim_in: int, dim: int, eps: float, p: float) -> None:
        super().__init__()
        self.dense = nn.Linear(dim_in, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=eps)
        self.dropout = nn.Dropout(p)

    def forward(self, x: Any, shortcut: Any) -> Any:
        return self.LayerNorm(self.dropout(self.dense(x)) + shortcut)


class Layer(Module):
    """Attention, then two linear layers, a norm behind each."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        wide: int,
        act: Activation,
        eps: float,
        p: float,
        p_attention: float,
    ) -> None:
        super().__init__()
        self.attention = Module()
        self.attention.self = SelfAttention(dim, num_heads, p_attention)
        self.attention.output = Output(dim, dim, eps, p)
        self.intermediate = Module()
        self.intermediate.dense = nn.Linear(dim, wide)
        self.output = Output(wide, dim, eps, p)
        self.act = _ACTIVATIONS[act] if isinstance(act, str) else act

    def forward(self, x: Any, mask: Any) -> Any:
        x = self.attention.output(self.attention.self(x, mask), x)
        return self.output(self.act(self.intermediate.dense(x)), x)


_ACTIVATIONS: dict[str, Any] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, "tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, "tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class BertModel(Module):
    """Embeddings, layers, and of the first token's output a summary of the sequence."""

    def __init__(
        self,
        embeddings: Embeddings,
        layers: list[Layer],
        dim: int,
        std: float,
        padding: int,
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.encoder = Module()
        self.encoder.layer = nn.ModuleList(layers)
        self.pooler = Module()
        self.pooler.dense = nn.Linear(dim, dim)
        init_values(self, std)
        table = embeddings.word_embeddings
        table.weight = Parameter.of_recipe(table.weight.shape, _WithZeroRow(padding, std))

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
    ) -> Any:
        if isinstance(input_ids, Mapping):  # a tokenizer's result
            return self.forward(**input_ids)
        if input_ids.ndim != 2:
            raise ShapeError(f"input_ids must be (N, tokens), got {input_ids.shape}")
        for name, given in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
            if given is not None and given.shape != input_ids.shape:
                raise ShapeError(
                    f"{name} must have input_ids' shape {input_ids.shape}, got {given.shape}"
                )
        mask = None if attention_mask is None else (attention_mask != 0)[:, None, None]
        x = self.embeddings(input_ids, token_type_ids, position_ids)
        for layer in self.encoder.layer:
            x = layer(x, mask)
        return {"last_hidden_state": x, "pooler_output": self.pooler.dense(x[:, 0]).tanh()}

    def before_load(self, state: dict[str, Any], prefix: str) -> None:
        """Takes files of old versions too: norms' gamma and beta, the numbers of places; and leaves
        out the heads of pretraining.

        Parameters
        ----------
        state, prefix
            As of Module.before_load.
        """
        state.pop(f"{prefix}embeddings.position_ids", None)
        for key in list(state):
            for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
                if key.startswith(prefix) and key.endswith(f"LayerNorm{old}"):
                    state[key.removesuffix(old) + new] = state.pop(key)
            if key.startswith("cls."):
                del state[key]


class BertForSequenceClassification(Module):
    """BERT, dropout and a linear layer on the summary."""

    def __init__(self, model: BertModel, dim: int, num_labels: int, p: float, std: float) -> None:
        super().__init__()
        self.bert = model
        self.dropout = nn.Dropout(p)
        self.classifier = nn.Linear(dim, num_labels)
        init_values(self.classifier, std)

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
    ) -> Any:
        made = self.bert(input_ids, attention_mask, token_type_ids, position_ids)
        return self.classifier(self.dropout(made["pooler_output"]))


def init_values(model: Module, std: float) -> None:
    """The initial values of the original: normal weights, biases of 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


def bert(
    vocab_size: Count = 30522,
    hidden_size: Count = 768,
    num_hidden_layers: Count = 12,
    num_attention_heads: Count = 12,
    intermediate_size: Count = 3072,
    hidden_act: Activation = "gelu",
    hidden_dropout_prob: Probability = 0.1,
    attention_probs_dropout_prob: Probability = 0.1,
    max_position_embeddings: Count = 512,
    type_vocab_size: Count = 2,
    initializer_range: NonNegative = 0.02,
    layer_norm_eps: NonNegative = 1e-12,
    pad_token_id: int = 0,
    num_labels: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """BERT (Devlin et al. 2019, arXiv 1810.04805), by default the base model's sizes.

    Parameters
    ----------
    vocab_size : int
        Tokens.
    hidden_size : int
        E, the features.
    num_hidden_layers : int
        Layers.
    num_attention_heads : int
        Heads of each, which divide hidden_size.
    intermediate_size : int
        Features between the two linear layers of each.
    hidden_act : str or callable
        Between them: "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu" or a function of a
        tensor.
    hidden_dropout_prob, attention_probs_dropout_prob : float
        In training, the probability of 0: of embeddings and what is added to shortcuts, and of the
        weights of attention.
    max_position_embeddings : int
        The longest sequence.
    type_vocab_size : int
        How many parts a sequence may have.
    initializer_range : float
        Standard deviation of the initial weights.
    layer_norm_eps : float
        Added to the norms' variances.
    pad_token_id : int
        The token of padding, whose row is 0 and gets no gradient.
    num_labels : int, optional
        Adds a linear layer on the summary: logits of so many classes.
    weights : path-like, optional
        A local file of Hugging Face's weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``classifier``, the last layer, new.
    strip_prefix : str
        What the names in the file begin with: ``"bert."`` for those of pretraining, without
        num_labels.

    Returns
    -------
    Module
        ``input_ids`` (N, tokens) in, or a tokenizer's dict; of ``attention_mask``, 0 where a token
        is padding, ``token_type_ids`` and ``position_ids`` each may be given. Out a dict of
        ``last_hidden_state`` (N, tokens, E) and ``pooler_output`` (N, E); with num_labels logits
        (N, num_labels).

    Raises
    ------
    ConfigError, ShapeError
        If the sizes are out of range, or the weights do not fit.
    CheckpointError
        If the file cannot be read.

    Notes
    -----
    109,482,240 parameters, 11.17 G multiply-adds for 128 tokens.
    Structure and names are those of Hugging Face's ``BertModel``, with num_labels of
    ``BertForSequenceClassification``.
    """
    check_heads("bert", ("hidden_size", hidden_size), ("num_attention_heads", num_attention_heads))
    if isinstance(hidden_act, str) and hidden_act not in _ACTIVATIONS:
        names = ", ".join(_ACTIVATIONS)
        raise ConfigError(f"bert: hidden_act must be one of {names}, got {hidden_act!r}")
    if replace_head and num_labels is None:
        raise ConfigError("replace_head: goes with num_labels=, a head, got none")
    embeddings = Embeddings(
        vocab_size, hidden_size, max_position_embeddings, type_vocab_size, pad_token_id,
        layer_norm_eps, hidden_dropout_prob,
    )  # fmt: skip
    layers = [
        Layer(
            hidden_size, num_attention_heads, intermediate_size, hidden_act, layer_norm_eps,
            hidden_dropout_prob, attention_probs_dropout_prob,
        )
        for _ in range(num_hidden_layers)
    ]  # fmt: skip
    encoder = BertModel(embeddings, layers, hidden_size, initializer_range, pad_token_id)
    model: Module = encoder
    if num_labels is not None:
        model = BertForSequenceClassification(
            encoder, hidden_size, num_labels, hidden_dropout_prob, initializer_range
        )
    origin = "Hugging Face"
    return load_weights(model, weights, "classifier", replace_head, strip_prefix, origin)
