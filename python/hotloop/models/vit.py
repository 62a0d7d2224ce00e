"""Vision transformers (Dosovitskiy et al. 2021), timm's structure and names."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from hotloop import nn
from hotloop.errors import ShapeError
from hotloop.graph.build import cat
from hotloop.models.weights import load_weights
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Count, Probability
from hotloop.nn.module import Module

__all__ = ["vit_base_patch16_224", "vit_small_patch16_224", "vit_tiny_patch16_224"]

_EPS = 1e-6
_PATCH = 16


class PatchEmbed(Module):
    """Each patch of an image a token."""

    def __init__(self, img_size: int, in_channels: int, dim: int) -> None:
        super().__init__()
        self.img_size = img_size
        self.proj = nn.Conv2d(in_channels, dim, _PATCH, _PATCH)

    def forward(self, x: Any) -> Any:
        if x.ndim != 4 or x.shape[2:] != (self.img_size, self.img_size):
            raise ShapeError(
                f"input must be (N, C, {self.img_size}, {self.img_size}), got {x.shape}; "
                "img_size= of the model is the side of its images"
            )
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(Module):
    """Attention of a sequence to itself; queries, keys and values of one product."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Any) -> Any:
        n, rows, dim = x.shape
        qkv = self.qkv(x).reshape(n, rows, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        return self.proj(y.transpose(1, 2).reshape(n, rows, dim))


class Mlp(Module):
    """Two linear layers with GELU in between."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x: Any) -> Any:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(Module):
    """Attention, then two linear layers, each behind a norm and beside a shortcut."""

    def __init__(self, dim: int, num_heads: int, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=_EPS)
        self.attn = Attention(dim, num_heads)
        self.drop_path1 = nn.DropPath(drop_path) if drop_path else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, eps=_EPS)
        self.mlp = Mlp(dim)
        self.drop_path2 = nn.DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Any) -> Any:
        x = x + self.drop_path1(self.attn(self.norm1(x)))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class VisionTransformer(Module):
    """Patches and a token of the class, blocks, norm, linear layer on the class's token."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        num_classes: Count,
        in_channels: Count,
        img_size: Count,
        drop_path_rate: Probability,
    ) -> None:
        super().__init__()
        if img_size % _PATCH:
            raise ShapeError(f"img_size: must be a multiple of {_PATCH}, got {img_size}")
        depth, n_patches = 12, (img_size // _PATCH) ** 2
        self.cls_token = nn.Parameter(np.zeros((1, 1, dim), np.float32))
        self.pos_embed = nn.Parameter(np.zeros((1, 1 + n_patches, dim), np.float32))
        self.patch_embed = PatchEmbed(img_size, in_channels, dim)
        rates = [drop_path_rate * i / (depth - 1) for i in range(depth)]
        self.blocks = nn.Sequential(*(Block(dim, num_heads, rate) for rate in rates))
        self.norm = nn.LayerNorm(dim, eps=_EPS)
        self.head = nn.Linear(dim, num_classes)
        nn.init.normal_(self.cls_token, std=1e-6)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Any) -> Any:
        x = self.patch_embed(x)
        first = self.cls_token.expand(x.shape[0], -1, -1)
        x = self.blocks(cat([first, x], 1) + self.pos_embed)
        return self.head(self.norm(x)[:, 0])


def _make(
    dim: int,
    num_heads: int,
    sizes: tuple[int, int, int, float],
    weights: str | os.PathLike[str] | None,
    replace_head: bool,
    strip_prefix: str,
) -> Module:
    model = VisionTransformer(dim, num_heads, *sizes)
    return load_weights(model, weights, "head", replace_head, strip_prefix, "timm")


def vit_tiny_patch16_224(
    num_classes: int = 1000,
    in_channels: int = 3,
    img_size: int = 224,
    drop_path_rate: float = 0.0,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """ViT-Tiny (Dosovitskiy et al. 2021, arXiv 2010.11929; Touvron et al. 2021), 16 x 16 patches.

    Parameters
    ----------
    num_classes : int
        Outputs: logits of so many classes.
    in_channels : int
        Channels of the images.
    img_size : int
        The images' height and width, a multiple of 16. Of other sizes than the file's, which is 224
        for timm's, positions do not fit.
    drop_path_rate : float
        Probability that the last block's branches are dropped in training; it grows to it from 0.
    weights : path-like, optional
        A local file of timm's weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``head``, the last layer, new.
    strip_prefix : str
        What the names in the file begin with, as ``"module."``.

    Returns
    -------
    Module
        ``(N, in_channels, img_size, img_size)`` in, ``(N, num_classes)`` out.

    Raises
    ------
    ConfigError, ShapeError
        If the sizes are out of range, or the weights do not fit.
    CheckpointError
        If the file cannot be read.

    Notes
    -----
    5,717,416 parameters, 1.25 G multiply-adds for an image of 224 x 224.
    12 blocks of width 192 with 3 heads. Structure and names are those of timm's
    ``vit_tiny_patch16_224``.
    """
    sizes = (num_classes, in_channels, img_size, drop_path_rate)
    return _make(192, 3, sizes, weights, replace_head, strip_prefix)


def vit_small_patch16_224(
    num_classes: int = 1000,
    in_channels: int = 3,
    img_size: int = 224,
    drop_path_rate: float = 0.0,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """ViT-Small (Dosovitskiy et al. 2021, arXiv 2010.11929; Touvron et al. 2021), 16 x 16 patches.

    Parameters
    ----------
    num_classes : int
        Outputs: logits of so many classes.
    in_channels : int
        Channels of the images.
    img_size : int
        The images' height and width, a multiple of 16. Of other sizes than the file's, which is 224
        for timm's, positions do not fit.
    drop_path_rate : float
        Probability that the last block's branches are dropped in training; it grows to it from 0.
    weights : path-like, optional
        A local file of timm's weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``head``, the last layer, new.
    strip_prefix : str
        What the names in the file begin with, as ``"module."``.

    Returns
    -------
    Module
        ``(N, in_channels, img_size, img_size)`` in, ``(N, num_classes)`` out.

    Raises
    ------
    ConfigError, ShapeError
        If the sizes are out of range, or the weights do not fit.
    CheckpointError
        If the file cannot be read.

    Notes
    -----
    22,050,664 parameters, 4.60 G multiply-adds for an image of 224 x 224.
    12 blocks of width 384 with 6 heads. Structure and names are those of timm's
    ``vit_small_patch16_224``.
    """
    sizes = (num_classes, in_channels, img_size, drop_path_rate)
    return _make(384, 6, sizes, weights, replace_head, strip_prefix)


def vit_base_patch16_224(
    num_classes: int = 1000,
    in_channels: int = 3,
    img_size: int = 224,
    drop_path_rate: float = 0.0,
    weights: str | os.PathLike[str] | None = None,
    replace_head: bool = False,
    strip_prefix: str = "",
) -> Module:
    """ViT-Base (Dosovitskiy et al. 2021, arXiv 2010.11929) on 16 x 16 patches.

    Parameters
    ----------
    num_classes : int
        Outputs: logits of so many classes.
    in_channels : int
        Channels of the images.
    img_size : int
        The images' height and width, a multiple of 16. Of other sizes than the file's, which is 224
        for timm's, positions do not fit.
    drop_path_rate : float
        Probability that the last block's branches are dropped in training; it grows to it from 0.
    weights : path-like, optional
        A local file of timm's weights, safetensors or of torch.save; else they are drawn.
    replace_head : bool
        Leaves ``head``, the last layer, new.
    strip_prefix : str
        What the names in the file begin with, as ``"module."``.

    Returns
    -------
    Module
        ``(N, in_channels, img_size, img_size)`` in, ``(N, num_classes)`` out.

    Raises
    ------
    ConfigError, ShapeError
        If the sizes are out of range, or the weights do not fit.
    CheckpointError
        If the file cannot be read.

    Notes
    -----
    86,567,656 parameters, 17.56 G multiply-adds for an image of 224 x 224.
    12 blocks of width 768 with 12 heads. Structure and names are those of timm's
    ``vit_base_patch16_224``.
    """
    sizes = (num_classes, in_channels, img_size, drop_path_rate)
    return _make(768, 12, sizes, weights, replace_head, strip_prefix)
