"""Nets of the zoo with two classes, the large ones in a small size, and rows for each."""

from typing import Any

import numpy as np
from hotloop import models, nn

SEQUENCES = (
    "bert", "deformable_encoder", "vit_base_patch16_224", "vit_small_patch16_224",
    "vit_tiny_patch16_224",
)  # fmt: skip
# These have tests of their own: tokens, of each of which a class is given; tables; time series.
OF_TOKENS = ("gpt",)
TABLES = ("gated_mlp", "mlp")
SERIES = ("gru_classifier", "lstm_classifier", "tcn", "transformer_classifier")
ZOO = tuple(name for name in models.__all__ if name not in (*OF_TOKENS, *TABLES, *SERIES))
CONVOLUTIONAL = tuple(name for name in ZOO if name not in SEQUENCES)
WORDS, TOKENS = 50, 12


class Classes(nn.Module):
    """The mean of an encoder's tokens, and classes."""

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.encoder(x).mean(1))


def make_model(name: str, side: int = 32) -> nn.Module:
    """For rows of this side."""
    if name == "bert":
        return models.bert(WORDS, 32, 2, 4, 64, max_position_embeddings=TOKENS, num_labels=2)
    if name == "deformable_encoder":
        encoder = models.deformable_encoder(hidden_dim=64, enc_layers=2, dim_feedforward=96)
        return Classes(encoder, 64)
    options = {"img_size": side} if name.startswith("vit") else {}
    return getattr(models, name)(num_classes=2, **options)


def make_rows(name: str, n: int, side: int = 32) -> tuple[Any, Any]:
    """Rows that say nothing of their class."""
    rng, y = np.random.default_rng(0), np.arange(n) % 2
    if name == "bert":
        return rng.integers(1, WORDS, (n, TOKENS)), y
    if name == "unet":
        y = np.tile(y[:, None, None], (1, side, side))
    return rng.standard_normal((n, 3, side, side)).astype("float32"), y
