"""The encoder of Deformable DETR (Zhu et al. 2021), its authors' structure and names."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from hotloop import nn
from hotloop.errors import ConfigError
from hotloop.graph.build import cat
from hotloop.models.resnet import BasicBlock, Bottleneck, ResNet
from hotloop.models.weights import load_weights
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Count, Probability, Size
from hotloop.nn.module import Module

__all__ = ["deformable_encoder"]

_BLOCKS: dict[str, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, ...]]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
}
# What a file of the whole detector has besides.
_OTHERS = ("transformer.decoder.", "transformer.reference_points.", "query_embed.", "class_embed.",
           "bbox_embed.")  # fmt: skip


class Body(ResNet):
    """A ResNet's outputs at strides 8, 16 and 32."""

    def __init__(self, name: str, in_channels: Count, norm: Any) -> None:
        super().__init__(*_BLOCKS[name], 1, in_channels, norm)
        del self.avgpool, self.fc

    def forward(self, x: Any) -> Any:
        x = self.layer1(self.maxpool(self.relu(self.bn1(self.conv1(x)))))
        c3 = self.layer2(x)
        c4 = self.layer3(c3)
        return c3, c4, self.layer4(c4)


class Backbone(Module):
    """The body, under the name that the detector has for it."""

    def __init__(self, name: str, in_channels: Count, trains: bool, norm: Any) -> None:
        super().__init__()
        self.channels = [_BLOCKS[name][0].expansion * planes for planes in (128, 256, 512)]
        self.body = Body(name, in_channels, norm)
        for name, parameter in self.body.named_parameters():
            if not trains or not name.startswith(("layer2", "layer3", "layer4")):
                parameter.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.body(x)


class EncoderLayer(Module):
    """Deformable attention of pixels to all images, then two linear layers, a norm behind each."""

    def __init__(
        self, d_model: int, d_ffn: int, dropout: float, n_levels: int, n_heads: int, n_points: int
    ) -> None:
        super().__init__()
        self.self_attn = nn.MultiScaleDeformableAttention(d_model, n_levels, n_heads, n_points)
        self.dropout1 = nn.Dropout(dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.linear1 = nn.Linear(d_model, d_ffn)
        self.dropout2 = nn.Dropout(dropout)
        self.linear2 = nn.Linear(d_ffn, d_model)
        self.dropout3 = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(d_model)
        for linear in (self.linear1, self.linear2):
            nn.init.xavier_uniform_(linear.weight)

    def forward(self, x: Any, places: Any, points: Any, sizes: tuple[tuple[int, int], ...]) -> Any:
        y = self.self_attn(x + places, points, x, sizes)
        x = self.norm1(x + self.dropout1(y))
        y = self.linear2(self.dropout2(F.relu(self.linear1(x))))
        return self.norm2(x + self.dropout3(y))


def sine_places(height: int, width: int, d_model: int) -> np.ndarray[Any, Any]:
    """``(height * width, d_model)``: sines and cosines of y, then of x, each a half of the
    features; the image's height and width are 2 pi (Carion et al. 2020)."""
    half = d_model // 2
    periods = 10000.0 ** (2 * (np.arange(half) // 2) / half)
    parts = []
    for length in (height, width):
        at = (np.arange(length) + 0.5) / (length + 1e-6) * (2 * math.pi)
        angle = at[:, None] / periods
        pairs = np.stack([np.sin(angle[:, ::2]), np.cos(angle[:, 1::2])], -1)
        parts.append(pairs.reshape(length, -1))
    y = np.repeat(parts[0][:, None], width, 1)
    x = np.repeat(parts[1][None], height, 0)
    return np.concatenate([y, x], -1).reshape(height * width, d_model).astype(np.float32)


def centres(sizes: tuple[tuple[int, int], ...]) -> np.ndarray[Any, Any]:
    """``(S, 2)``: x and y of every pixel's centre in its image, in [0, 1]."""
    rows = []
    for h, w in sizes:
        y, x = np.meshgrid((np.arange(h) + 0.5) / h, (np.arange(w) + 0.5) / w, indexing="ij")
        rows.append(np.stack([x, y], -1).reshape(-1, 2))
    return np.concatenate(rows).astype(np.float32)


class DeformableEncoder(Module):
    """A backbone's images, brought to one width, through layers of deformable attention."""

    def __init__(
        self,
        backbone: Backbone,
        d_model: int,
        d_ffn: int,
        n_layers: int,
        dropout: float,
        attention: tuple[int, int, int],
    ) -> None:
        super().__init__()
        n_levels = attention[0]
        self.transformer = Module()
        self.transformer.level_embed = nn.Parameter(np.zeros((n_levels, d_model), np.float32))
        nn.init.normal_(self.transformer.level_embed)
        self.transformer.encoder = Module()
        self.transformer.encoder.layers = nn.ModuleList(
            EncoderLayer(d_model, d_ffn, dropout, *attention) for _ in range(n_layers)
        )
        projections = [
            nn.Sequential(nn.Conv2d(channels, d_model, 1), nn.GroupNorm(32, d_model))
            for channels in backbone.channels
        ]
        for i in range(3, n_levels):
            channels = backbone.channels[-1] if i == 3 else d_model
            conv = nn.Conv2d(channels, d_model, 3, 2, padding=1)
            projections.append(nn.Sequential(conv, nn.GroupNorm(32, d_model)))
        self.input_proj = nn.ModuleList(projections)
        for projection in projections:
            nn.init.xavier_uniform_(projection[0].weight)
            nn.init.zeros_(projection[0].bias)
        self.backbone = nn.Sequential(backbone)

    def forward(self, x: Any) -> Any:
        images = list(self.backbone(x))
        last = images[-1]
        levels = []
        for i, projection in enumerate(self.input_proj):
            last = projection(images[i] if i < 3 else last)
            levels.append(last)
            if i == 2:
                last = images[-1]  # the first image beyond the backbone's is made of C5 itself
        sizes = tuple((y.shape[2], y.shape[3]) for y in levels)
        tokens = cat([y.flatten(2).transpose(1, 2) for y in levels], 1)
        places = cat(
            [
                self.transformer.level_embed[i] + sine_places(*size, tokens.shape[-1])
                for i, size in enumerate(sizes)
            ]
        )
        n, rows, _ = tokens.shape
        points = np.repeat(centres(sizes)[None, :, None], len(sizes), 2)
        at = x.trace.const(points).expand(n, rows, len(sizes), 2)
        for layer in self.transformer.encoder.layers:
            tokens = layer(tokens, places, at, sizes)
        return tokens

    def sizes(self, height: int, width: int) -> tuple[tuple[int, int], ...]:
        """Heights and widths of the images that forward gives the pixels of, for a decoder's
        :class:`hotloop.nn.MultiScaleDeformableAttention`.

        Parameters
        ----------
        height, width : int
            Of the images that go in.
        """
        strides = [8 << i for i in range(len(self.input_proj))]
        return tuple((-(-height // stride), -(-width // stride)) for stride in strides)

    def before_load(self, state: dict[str, Any], prefix: str) -> None:
        """Takes files of the whole detector, of which the decoder and heads are left out.

        Parameters
        ----------
        state, prefix
            As of Module.before_load.
        """
        for key in list(state):
            if key.removeprefix(prefix).startswith(_OTHERS):
                del state[key]


def deformable_encoder(
    backbone: str = "resnet50",
    in_channels: Count = 3,
    hidden_dim: Count = 256,
    nheads: Count = 8,
    enc_layers: Size = 6,
    dim_feedforward: Count = 1024,
    dropout: Probability = 0.1,
    num_feature_levels: Count = 4,
    enc_n_points: Count = 4,
    train_backbone: bool = True,
    frozen_norm: bool = True,
    weights: str | os.PathLike[str] | None = None,
    strip_prefix: str = "",
) -> Module:
    """The backbone and encoder of Deformable DETR (Zhu et al. 2021, arXiv 2010.04159).

    Parameters
    ----------
    backbone : {"resnet50", "resnet101", "resnet18", "resnet34"}
        What makes images of strides 8, 16 and 32; its stem and first stage are frozen.
    in_channels : int
        Channels of the images.
    hidden_dim : int
        E, the features of a pixel; a multiple of 32 and of nheads.
    nheads : int
        Heads of each layer.
    enc_layers : int
        Layers.
    dim_feedforward : int
        Features between the two linear layers of each.
    dropout : float
        In training, the probability of 0, behind attention and each of the linear layers.
    num_feature_levels : int
        L, the images: the backbone's three, then each by a 3 x 3 convolution of stride 2 of the one
        before; 3 to 8.
    enc_n_points : int
        Places that a head looks at in each image.
    train_backbone : bool
        Whether the backbone's last three stages are trained.
    frozen_norm : bool
        Whether the backbone's batch norms are frozen, as is usual beside weights from a file.
        False: they learn, for a backbone that begins with drawn weights.
    weights : path-like, optional
        A local file of the authors' weights, safetensors or of torch.save, of which the decoder and
        heads are left out; else they are drawn.
    strip_prefix : str
        What the names in the file begin with, as ``"module."``.

    Returns
    -------
    Module
        ``(N, in_channels, H, W)`` in, ``(N, S, hidden_dim)`` out: the pixels of all images, one
        image behind another and row by row.

    Raises
    ------
    ConfigError, ShapeError
        If the sizes are out of range, or the weights do not fit.
    CheckpointError
        If the file cannot be read.

    Notes
    -----
    33,636,288 parameters, 11.80 G multiply-adds for an image of 256 x 256.
    Structure and names are those of the authors' ``DeformableDETR``. All images of a batch are
    whole: there is no mask of padding.
    """
    if backbone not in _BLOCKS:
        names = ", ".join(_BLOCKS)
        raise ConfigError(f"deformable_encoder: backbone must be one of {names}, got {backbone!r}")
    if hidden_dim % 32:
        raise ConfigError(
            f"deformable_encoder: hidden_dim must be a multiple of 32, got {hidden_dim}"
        )
    if not 3 <= num_feature_levels <= 8:
        raise ConfigError(
            f"deformable_encoder: num_feature_levels must lie in 3 ... 8, got {num_feature_levels}"
        )
    norm = nn.FrozenBatchNorm2d if frozen_norm else nn.BatchNorm2d
    body = Backbone(backbone, in_channels, train_backbone, norm)
    attention = (num_feature_levels, nheads, enc_n_points)
    model = DeformableEncoder(body, hidden_dim, dim_feedforward, enc_layers, dropout, attention)
    return load_weights(model, weights, "", False, strip_prefix, "Deformable DETR")
