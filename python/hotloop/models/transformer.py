"""A transformer encoder that classifies sequences of numbers."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop import nn
from hotloop.errors import ConfigError
from hotloop.graph.pointwise import maximum
from hotloop.models.weights import load_weights
from hotloop.nn.functional.arguments import Count
from hotloop.nn.module import Module

__all__ = ["transformer_classifier"]


def sinusoids(length: int, width: int) -> npt.NDArray[np.float32]:
    """Sines and cosines of the position, (length, width); wavelengths from 2π to 10,000 x 2π."""
    rate = np.exp(np.arange(0, width, 2) * (-np.log(10_000.0) / width))
    angle = np.arange(length)[:, None] * rate
    both = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(length, -1)
    return both[:, :width].astype(np.float32)


def check_pooling(what: str, pooling: str, default: str) -> None:
    """Refuses other ways of pooling over time than a model's default and "last"."""
    if pooling not in (default, "last"):
        raise ConfigError(f"{what}: pooling must be {default!r} or 'last', got {pooling!r}")


class TransformerClassifier(Module):
    """Embedding of rows, encoder, mean over time or the last row, two layers."""

    def __init__(
        self,
        in_features: Count,
        num_classes: Count,
        d_model: Count,
        nhead: Count,
        num_layers: Count,
        dim_feedforward: Count,
        dropout: float,
        input_dropout: float,
        pooling: str,
    ) -> None:
        super().__init__()
        check_pooling("transformer_classifier", pooling, "mean")
        self.d_model = d_model
        self.pooling = pooling
        self.embedding = nn.Sequential(
            nn.Linear(in_features, d_model), nn.LayerNorm(d_model), nn.Dropout(input_dropout)
        )
        layer = nn.TransformerEncoderLayer(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers, nn.LayerNorm(d_model))
        narrow = max(int(d_model) // 2, 1)
        self.head = nn.Sequential(
            nn.LayerNorm(d_model),
            nn.Dropout(dropout),
            nn.Linear(d_model, narrow),
            nn.GELU(),
            nn.LayerNorm(narrow),
            nn.Dropout(dropout),
            nn.Linear(narrow, num_classes),
        )

    def forward(self, x: Any, padding_mask: Any = None) -> Any:
        x = self.embedding(x)
        x = x + sinusoids(x.shape[-2], x.shape[-1])
        if padding_mask is None:
            x = self.encoder(x)
            return self.head(x[:, -1] if self.pooling == "last" else x.mean(1))
        if self.pooling == "last":
            raise ConfigError("transformer_classifier: padding_mask goes with pooling='mean'")
        hidden = padding_mask != 0  # bools of a batch are floats
        x = self.encoder(x, src_key_padding_mask=hidden)
        seen = (padding_mask == 0).float()[..., None]
        return self.head((x * seen).sum(1) / maximum(seen.sum(1), 1))  # 0 where all is padding


def transformer_classifier(
    in_features: int,
    num_classes: int,
    d_model: int = 128,
    nhead: int = 8,
    num_layers: int = 3,
    dim_feedforward: int = 512,
    dropout: float = 0.2,
    input_dropout: float = 0.1,
    pooling: str = "mean",
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """Classifies windows of a time series by a transformer encoder with norms first.

    Parameters
    ----------
    in_features : int
        Features of a row.
    num_classes : int
        Outputs: logits of so many classes, or values.
    d_model, nhead, num_layers, dim_feedforward, dropout
        Of :class:`nn.TransformerEncoder`; dropout is also that of the head.
    input_dropout : float
        Before positions are added: sines and cosines (Vaswani et al. 2017).
    pooling : {"mean", "last"}
        What of the encoder's rows the head sees: their mean over time, or the last one, where that
        says most of what comes next.
    weights : path-like, optional
        A local file of such weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``head``, the layers after the pooling, new.
    strip_prefix : str
        What the names in the file begin with, as ``"module."``.

    Returns
    -------
    Module
        ``(N, length, in_features)`` in, ``(N, num_classes)`` out, of any length. ``forward`` takes
        a ``padding_mask`` ``(N, length)`` beside it, true (or not 0) where a row is padding, which
        is then neither attended to nor part of the mean, with which alone it goes; where all rows
        are padding the head sees zeros.

    Raises
    ------
    ConfigError, ShapeError
        If the sizes are out of range, or the weights do not fit.
    CheckpointError
        If the file cannot be read.

    Notes
    -----
    608,003 parameters of 29 features and 3 classes, by torch's names. Each of the encoder's layers
    has initial values of its own; torch's begin as copies of one.
    """
    model = TransformerClassifier(
        in_features, num_classes, d_model, nhead, num_layers, dim_feedforward, dropout,
        input_dropout, pooling,
    )  # fmt: skip
    return load_weights(model, weights, "head", replace_head, strip_prefix, "")
