"""CAPE in PyTorch, with the names of examples/cape: what it is measured beside, and compared with.

The encoder is that of Deformable DETR, with its authors' names, and its attention the composition
that they give for devices without their kernel.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["Cape", "DeformableAttention", "DeformableEncoder", "deformable_core", "space"]

GRID, WORDS = 44, 2000
START, UNKNOWN = GRID * GRID, GRID * GRID + 1


def space(**members: Any) -> Any:
    """A module that only holds others."""
    holder = nn.Module()
    for name, member in members.items():
        setattr(holder, name, member)
    return holder


# ---------------------------------------------------------------------------- Deformable DETR


def deformable_core(value: Any, shapes: Any, places: Any, weights: Any) -> Any:
    """``ms_deform_attn_core_pytorch``: an interpolation for each image, then products."""
    n, _, heads, width = value.shape
    rows = places.shape[1]
    taken, images = [], value.split([h * w for h, w in shapes], 1)
    for i, (h, w) in enumerate(shapes):
        image = images[i].flatten(2).transpose(1, 2).reshape(n * heads, width, h, w)
        grid = (2 * places[:, :, :, i] - 1).transpose(1, 2).flatten(0, 1)
        taken.append(F.grid_sample(image, grid, align_corners=False))
    shares = weights.transpose(1, 2).reshape(n * heads, 1, rows, -1)
    out = (torch.stack(taken, -2).flatten(-2) * shares).sum(-1)
    return out.view(n, heads * width, rows).transpose(1, 2)


class DeformableAttention(nn.Module):
    """``MSDeformAttn``."""

    def __init__(self, dim: int = 256, levels: int = 4, heads: int = 8, points: int = 4) -> None:
        super().__init__()
        self.counts = (heads, levels, points)
        self.sampling_offsets = nn.Linear(dim, heads * levels * points * 2)
        self.attention_weights = nn.Linear(dim, heads * levels * points)
        self.value_proj = nn.Linear(dim, dim)
        self.output_proj = nn.Linear(dim, dim)

    def forward(self, query: Any, points: Any, pixels: Any, shapes: Any, mask: Any = None) -> Any:
        heads, levels, n_points = self.counts
        n, rows, dim = query.shape
        value = self.value_proj(pixels)
        if mask is not None:
            value = value.masked_fill(mask[..., None], 0.0)
        value = value.view(n, -1, heads, dim // heads)
        offsets = self.sampling_offsets(query).view(n, rows, heads, levels, n_points, 2)
        weights = self.attention_weights(query).view(n, rows, heads, -1).softmax(-1)
        if points.shape[-1] == 2:
            sides = torch.tensor([[w, h] for h, w in shapes], dtype=query.dtype)
            places = points[:, :, None, :, None] + offsets / sides[None, None, None, :, None]
        else:
            sides = points[:, :, None, :, None, 2:]
            places = points[:, :, None, :, None, :2] + offsets / n_points * sides * 0.5
        weights = weights.view(n, rows, heads, levels, n_points)
        return self.output_proj(deformable_core(value, shapes, places, weights))


class DeformableLayer(nn.Module):
    """``DeformableTransformerEncoderLayer``."""

    def __init__(self, dim: int, wide: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = DeformableAttention(dim)
        self.norm1 = nn.LayerNorm(dim)
        self.linear1, self.linear2 = nn.Linear(dim, wide), nn.Linear(wide, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Any, position: Any, points: Any, shapes: Any) -> Any:
        drop = self.dropout
        x = self.norm1(x + drop(self.self_attn(x + position, points, x, shapes)))
        return self.norm2(x + drop(self.linear2(drop(torch.relu(self.linear1(x))))))


class Frozen(nn.Module):
    """Batch norm by buffers."""

    def __init__(self, n: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.ones(n))

    def forward(self, x: Any) -> Any:
        scale = self.weight / (self.running_var + 1e-5).sqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


class FrozenBottleneck(nn.Module):
    """ResNet-50's block."""

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 1, bias=False)
        self.bn1 = Frozen(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = Frozen(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = Frozen(4 * planes)
        self.downsample = None
        if stride > 1 or channels != 4 * planes:
            conv = nn.Conv2d(channels, 4 * planes, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, Frozen(4 * planes))

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(torch.relu(self.bn2(self.conv2(y)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class DeformableEncoder(nn.Module):
    """Backbone, projections and encoder of ``DeformableDETR`` on whole images."""

    def __init__(
        self, dim: int = 256, wide: int = 1024, n_layers: int = 6, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.transformer = nn.Module()
        self.transformer.level_embed = nn.Parameter(torch.zeros(4, dim))
        layers = nn.ModuleList(DeformableLayer(dim, wide, dropout) for _ in range(n_layers))
        self.transformer.encoder = space(layers=layers)
        self.input_proj = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, dim, *kernel), nn.GroupNorm(32, dim))
            for channels, kernel in (
                (512, (1,)), (1024, (1,)), (2048, (1,)), (2048, (3, 2, 1)),
            )
        )  # fmt: skip
        body = space(conv1=nn.Conv2d(3, 64, 7, 2, 3, bias=False), bn1=Frozen(64))
        channels = 64
        for i, n in enumerate((3, 4, 6, 3)):
            blocks = []
            for k in range(n):
                blocks.append(FrozenBottleneck(channels, 64 * 2**i, 2 if i and not k else 1))
                channels = 256 * 2**i
            setattr(body, f"layer{i + 1}", nn.Sequential(*blocks))
        self.backbone = nn.Sequential(space(body=body))

    def images(self, x: Any) -> list[Any]:
        body = self.backbone[0].body
        x = F.max_pool2d(torch.relu(body.bn1(body.conv1(x))), 3, 2, 1)
        c3 = body.layer2(body.layer1(x))
        c4 = body.layer3(c3)
        c5 = body.layer4(c4)
        return [proj(y) for proj, y in zip(self.input_proj, (c3, c4, c5, c5))]

    def position(self, h: int, w: int, dim: int) -> Any:
        """``PositionEmbeddingSine(dim / 2, normalize=True)`` without a mask."""
        ones = torch.ones(1, h, w)
        y, x = ones.cumsum(1), ones.cumsum(2)
        y = (y - 0.5) / (y[:, -1:] + 1e-6) * 2 * math.pi
        x = (x - 0.5) / (x[:, :, -1:] + 1e-6) * 2 * math.pi
        period = torch.arange(dim // 2, dtype=torch.float32)
        period = 10000 ** (2 * torch.div(period, 2, rounding_mode="floor") / (dim // 2))
        parts = []
        for at in (y, x):
            at = at[..., None] / period
            parts.append(torch.stack([at[..., 0::2].sin(), at[..., 1::2].cos()], 4).flatten(3))
        return torch.cat(parts, 3).flatten(1, 2)

    def forward(self, x: Any) -> Any:
        images = self.images(x)
        shapes = [(y.shape[2], y.shape[3]) for y in images]
        tokens = torch.cat([y.flatten(2).transpose(1, 2) for y in images], 1)
        own, dim = self.transformer, tokens.shape[-1]
        position = torch.cat(
            [self.position(h, w, dim) + own.level_embed[i] for i, (h, w) in enumerate(shapes)], 1
        ).to(tokens.dtype)
        points = [
            torch.stack(
                torch.meshgrid(
                    (torch.arange(w, dtype=tokens.dtype) + 0.5) / w,
                    (torch.arange(h, dtype=tokens.dtype) + 0.5) / h,
                    indexing="xy",
                ),
                -1,
            ).reshape(1, -1, 2)
            for h, w in shapes
        ]
        points = torch.cat(points, 1)[:, :, None].expand(len(x), -1, len(shapes), 2)
        for layer in own.encoder.layers:
            tokens = layer(tokens, position, points, shapes)
        return tokens


# ---------------------------------------------------------------------------- CAPE


class PointEmbedding(nn.Module):
    """A point as the bilinear mix of the four cells around it, or a word for what is none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)

    def forward(self, points: Any, word: Any) -> Any:
        at = points.clamp(0, 1) * (GRID - 1)
        low = at.floor().clamp(max=GRID - 2)
        high, cell = at - low, low.long()
        made = 0
        for right in (0, 1):
            for down in (0, 1):
                share = (1 - right - high[..., :1]).abs() * (1 - down - high[..., 1:]).abs()
                made = made + share * self.words(
                    (cell[..., 1] + down) * GRID + cell[..., 0] + right
                )
        return torch.where((word > 0)[..., None], self.words(word), made)


class Attention(nn.Module):
    """Heads of attention."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def split(self, x: Any, parts: int) -> Any:
        n, rows, _ = x.shape
        return x.view(n, rows, parts, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

    def forward(self, x: Any, seen: Any, mask: Any = None) -> Any:
        (query,) = self.split(self.query(x), 1)
        key, value = self.split(self.key_value(seen), 2)
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(query, key, value, mask, p, is_causal=mask is None)
        return self.out(y.transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    """Attention to the positions before, to the support and to the image, and two linear maps."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.before = Attention(width, heads, dropout)
        self.support = Attention(width, heads, dropout)
        self.image = DeformableAttention(width, 4, heads)
        self.maps = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, width)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.dropout = nn.Dropout(dropout)
        self.types = nn.Linear(width, 3)
        self.points = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 2),
        )  # fmt: skip

    def forward(
        self, x: Any, place: Any, at: Any, support: Any, mask: Any, pixels: Any, shapes: Any
    ) -> Any:
        drop = self.dropout
        x = self.norms[0](x + drop(self.before(x + place, x + place)))
        x = self.norms[1](x + drop(self.support(x + place, support, mask)))
        levels = at[:, :, None].expand(-1, -1, len(shapes), -1)
        x = self.norms[2](x + drop(self.image(x + place, levels, pixels, shapes)))
        x = self.norms[3](x + drop(self.maps(x)))
        return x, self.types(x), torch.sigmoid(self.points(x) + torch.logit(at, 1e-4))


class Cape(nn.Module):
    """The losses of images, by their supports and the points that are asked for."""

    def __init__(
        self, width: int = 256, heads: int = 8, encoder_layers: int = 6, support_layers: int = 3,
        decoder_layers: int = 6, encoder_hidden: int = 1024, decoder_hidden: int = 2048,
        positions: int = 200, dropout: float = 0.1, image_size: int = 256, noise: float = 0.03,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder = DeformableEncoder(width, encoder_hidden, encoder_layers, dropout)
        body = self.encoder.backbone[0].body
        for part in (body.conv1, body.layer1):
            part.requires_grad_(False)
        self.shapes = [(-(-image_size // s), -(-image_size // s)) for s in (8, 16, 32, 64)]
        self.noise = noise
        self.places = nn.Embedding(positions, width)
        self.point = nn.Linear(2, width)
        layer = nn.TransformerEncoderLayer(width, heads, decoder_hidden, dropout, batch_first=True)
        self.support = nn.TransformerEncoder(layer, support_layers, enable_nested_tensor=False)
        self.words = PointEmbedding(width)
        self.start = nn.Linear(width, 2)
        self.layers = nn.ModuleList(
            DecoderLayer(width, heads, decoder_hidden, dropout) for _ in range(decoder_layers)
        )
        self.register_buffer("mean", torch.tensor([[[123.7]], [[116.3]], [[103.5]]]))
        self.register_buffer("std", torch.tensor([[[58.4]], [[57.1]], [[57.4]]]))

    def forward(self, query: Any, support: Any, goal: Any) -> Any:
        """``(B, Q, 3, S, S)``, ``(B, 1, P, 3)`` and ``(B, Q, P, 3)``; two losses."""
        support = support.expand(goal.shape).flatten(0, 1)
        goal = goal.flatten(0, 1)
        pixels = self.encoder((query.flatten(0, 1) - self.mean) / self.std)
        count = goal.shape[1]
        is_there = support[..., 2] > 0
        places = self.places.weight[:count]
        tokens = self.support(self.point(support[..., :2]) + places, src_key_padding_mask=~is_there)
        tokens, mask = tokens + places, is_there[:, None, None]
        is_point = (goal[..., 2] > 0) & is_there
        at = torch.arange(count + 1)
        length = (is_there * (at[:-1] + 1)).amax(1, keepdim=True)
        is_point = F.pad(is_point, (0, 1))
        types = torch.where(at < length, 1, torch.where(at == length, 2, -100))
        types = torch.where(is_point, 0, types)
        points = F.pad(goal[..., :2], (0, 0, 0, 1))
        word = torch.where(is_point, 0, UNKNOWN).roll(1, 1)
        word[:, 0] = START
        before = F.pad(goal[..., :2], (0, 0, 1, 0))
        if self.training and self.noise:
            before = before + self.noise * torch.randn_like(before)
        place = self.places.weight[: count + 1]
        x = self.words(before, word)
        found = torch.sigmoid(self.start(x + place))
        of_types = of_points = 0
        weight = torch.tensor([1.0, 1.0, 20.0], dtype=x.dtype)
        n = is_point.sum().clamp(min=1)
        for layer in self.layers:
            x, logits, found = layer(x, place, found, tokens, mask, pixels, self.shapes)
            of_types = of_types + F.cross_entropy(logits.transpose(1, 2), types, weight)
            of_points = of_points + (is_point[..., None] * (found - points).abs()).sum() / n
            found = found.detach()
        return of_types, 5 * of_points
