"""Recurrent networks with attention over time that classify sequences of numbers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from hotloop import nn
from hotloop.graph.pointwise import where
from hotloop.models.transformer import check_pooling
from hotloop.models.weights import load_weights
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Count
from hotloop.nn.module import Module

__all__ = ["gru_classifier", "lstm_classifier"]


class RecurrentClassifier(Module):
    """A recurrence, a mean over time by learned weights or its last row, two layers."""

    def __init__(
        self,
        make: Callable[..., Module],
        in_features: Count,
        num_classes: Count,
        hidden_size: Count,
        num_layers: Count,
        bidirectional: bool,
        dropout: float,
        attention_dropout: float,
        pooling: str,
    ) -> None:
        super().__init__()
        check_pooling(f"{make.__name__.lower()}_classifier", pooling, "attention")
        self.pooling = pooling
        width, narrow = int(hidden_size) * (2 if bidirectional else 1), hidden_size
        self.input_norm = nn.LayerNorm(in_features)
        self.rnn = make(
            in_features,
            hidden_size,
            num_layers,
            batch_first=True,
            dropout=dropout if int(num_layers) > 1 else 0.0,
            bidirectional=bidirectional,
        )
        self.output_norm = nn.LayerNorm(width)
        if pooling == "attention":
            self.attention = nn.Sequential(
                nn.Linear(width, narrow),
                nn.Tanh(),
                nn.Dropout(attention_dropout),
                nn.Linear(narrow, 1),
            )
        self.head = nn.Sequential(
            nn.LayerNorm(width),
            nn.Dropout(dropout),
            nn.Linear(width, narrow),
            nn.ReLU(),
            nn.LayerNorm(narrow),
            nn.Dropout(dropout),
            nn.Linear(narrow, num_classes),
        )
        for name, parameter in self.rnn.named_parameters():
            if "weight_ih" in name:
                nn.init.xavier_uniform_(parameter)
            elif "weight_hh" in name:
                nn.init.orthogonal_(parameter)

    def forward(self, x: Any, lengths: Any = None) -> Any:
        x, _ = self.rnn(self.input_norm(x), None, lengths)
        x = self.output_norm(x)
        at = np.arange(x.shape[1])[:, None]
        if self.pooling == "last":
            if lengths is None:
                return self.head(x[:, -1])
            return self.head(where(lengths[:, None, None] == at + 1, x, 0.0).sum(1))
        scores = self.attention(x)
        if lengths is None:
            weights = F.softmax(scores, 1)
        else:  # rows behind a sequence's end have no weight, and those of an empty one neither
            inside = lengths[:, None, None] > at
            hidden = ~inside & (lengths[:, None, None] > 0)
            weights = where(inside, F.softmax(where(hidden, -np.inf, scores), 1), 0.0)
        return self.head((weights * x).sum(1)), weights.squeeze(-1)


def lstm_classifier(
    in_features: int,
    num_classes: int,
    hidden_size: int = 128,
    num_layers: int = 2,
    bidirectional: bool = True,
    dropout: float = 0.4,
    attention_dropout: float = 0.2,
    pooling: str = "attention",
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """Classifies windows of a time series by an LSTM and additive attention over its outputs.

    Parameters
    ----------
    in_features : int
        Features of a row.
    num_classes : int
        Outputs: logits of so many classes, or values.
    hidden_size, num_layers, bidirectional
        Of :class:`nn.LSTM`.
    dropout : float
        Between its layers, and in the head.
    attention_dropout : float
        Of the scores' hidden layer.
    pooling : {"attention", "last"}
        What the head sees: the outputs' mean by the attention's weights, or the last one.
    weights : path-like, optional
        A local file of such weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``head``, the layers after the pooling, new.
    strip_prefix : str
        What the names in the file begin with, as ``"module."``.

    Returns
    -------
    Module
        ``(N, length, in_features)`` in, and lengths ``(N,)`` where sequences are padded; out logits
        ``(N, num_classes)`` and the weight of each row ``(N, length)``, whose sum is 1, of which
        losses and metrics take the logits. With ``pooling="last"`` the logits alone. Of an empty
        sequence all weights are 0, and the head sees zeros.

    Raises
    ------
    ConfigError, ShapeError
        If the sizes are out of range, or the weights do not fit.
    CheckpointError
        If the file cannot be read.

    Notes
    -----
    625,726 parameters of 29 features and 3 classes. The scores of the attention are those of
    Bahdanau et al. 2015 without a query. Input weights begin as xavier_uniform_ draws them,
    recurrent ones orthogonal, each as a whole.
    """
    model = RecurrentClassifier(
        nn.LSTM, in_features, num_classes, hidden_size, num_layers, bidirectional, dropout,
        attention_dropout, pooling,
    )  # fmt: skip
    return load_weights(model, weights, "head", replace_head, strip_prefix, "")


def gru_classifier(
    in_features: int,
    num_classes: int,
    hidden_size: int = 128,
    num_layers: int = 2,
    bidirectional: bool = True,
    dropout: float = 0.4,
    attention_dropout: float = 0.2,
    pooling: str = "attention",
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """Classifies windows of a time series by a GRU and additive attention over its outputs.

    Parameters
    ----------
    in_features : int
        Features of a row.
    num_classes : int
        Outputs: logits of so many classes, or values.
    hidden_size, num_layers, bidirectional
        Of :class:`nn.GRU`.
    dropout, attention_dropout, pooling, weights, replace_head, strip_prefix
        As for :func:`lstm_classifier`.

    Returns
    -------
    Module
        ``(N, length, in_features)`` in, and lengths ``(N,)`` where sequences are padded; out logits
        ``(N, num_classes)`` and the weight of each row ``(N, length)``, whose sum is 1, of which
        losses and metrics take the logits. With ``pooling="last"`` the logits alone. Of an empty
        sequence all weights are 0, and the head sees zeros.

    Raises
    ------
    ConfigError, ShapeError
        If the sizes are out of range, or the weights do not fit.
    CheckpointError
        If the file cannot be read.

    Notes
    -----
    486,206 parameters of 29 features and 3 classes.
    """
    model = RecurrentClassifier(
        nn.GRU, in_features, num_classes, hidden_size, num_layers, bidirectional, dropout,
        attention_dropout, pooling,
    )  # fmt: skip
    return load_weights(model, weights, "head", replace_head, strip_prefix, "")
