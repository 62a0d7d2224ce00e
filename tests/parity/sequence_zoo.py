"""Twins in PyTorch of models whose origins are not at hand, with the origins' names: timm's vision
transformers, Hugging Face's BERT, the encoder of Deformable DETR."""

import math
from typing import Any

from needs import take_library

torch = take_library("torch")
nn, F = torch.nn, torch.nn.functional


def space(**members: Any) -> Any:
    """A module that only holds others."""
    holder = nn.Module()
    for name, member in members.items():
        setattr(holder, name, member)
    return holder


# ---------------------------------------------------------------------------- timm


class VitBlock(nn.Module):
    """norm, attention, norm, MLP."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = space(qkv=nn.Linear(dim, 3 * dim), proj=nn.Linear(dim, dim))
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = space(fc1=nn.Linear(dim, 4 * dim), fc2=nn.Linear(4 * dim, dim))

    def forward(self, x: Any) -> Any:
        n, rows, dim = x.shape
        qkv = self.attn.qkv(self.norm1(x)).reshape(n, rows, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        w = (q @ k.transpose(-2, -1) / math.sqrt(dim // self.heads)).softmax(-1)
        x = x + self.attn.proj((w @ v).transpose(1, 2).reshape(n, rows, dim))
        return x + self.mlp.fc2(F.gelu(self.mlp.fc1(self.norm2(x))))


class Vit(nn.Module):
    """``vit_*_patch16_224``."""

    def __init__(self, dim: int, heads: int, num_classes: int = 1000, img_size: int = 224) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + (img_size // 16) ** 2, dim))
        self.patch_embed = space(proj=nn.Conv2d(3, dim, 16, 16))
        self.blocks = nn.Sequential(*(VitBlock(dim, heads) for _ in range(12)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, x: Any) -> Any:
        x = self.patch_embed.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


VITS = {"tiny": (192, 3), "small": (384, 6), "base": (768, 12)}


def make_vit(name: str, **options: Any) -> Any:
    return Vit(*VITS[name], **options)


# ---------------------------------------------------------------------------- Hugging Face


class BertLayer(nn.Module):
    """Attention and MLP, a norm behind each."""

    def __init__(self, dim: int, heads: int, wide: int) -> None:
        super().__init__()
        self.heads = heads
        names = ("query", "key", "value")
        self.attention = nn.Module()
        self.attention.self = space(**{name: nn.Linear(dim, dim) for name in names})
        self.attention.output = space(
            dense=nn.Linear(dim, dim), LayerNorm=nn.LayerNorm(dim, eps=1e-12)
        )
        self.intermediate = space(dense=nn.Linear(dim, wide))
        self.output = space(dense=nn.Linear(wide, dim), LayerNorm=nn.LayerNorm(dim, eps=1e-12))

    def forward(self, x: Any, mask: Any) -> Any:
        n, rows, dim = x.shape
        own, out = self.attention.self, self.attention.output
        q, k, v = (
            layer(x).view(n, rows, self.heads, -1).transpose(1, 2)
            for layer in (own.query, own.key, own.value)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        w = scores.masked_fill(mask[:, None, None] == 0, float("-inf")).softmax(-1)
        x = out.LayerNorm(out.dense((w @ v).transpose(1, 2).reshape(n, rows, dim)) + x)
        y = self.output.dense(F.gelu(self.intermediate.dense(x)))
        return self.output.LayerNorm(y + x)


class Bert(nn.Module):
    """``BertModel``."""

    def __init__(
        self, words: int, dim: int, n: int, heads: int, wide: int, places: int = 512
    ) -> None:
        super().__init__()
        self.embeddings = space(
            word_embeddings=nn.Embedding(words, dim, padding_idx=0),
            position_embeddings=nn.Embedding(places, dim),
            token_type_embeddings=nn.Embedding(2, dim),
            LayerNorm=nn.LayerNorm(dim, eps=1e-12),
        )
        self.encoder = space(layer=nn.ModuleList(BertLayer(dim, heads, wide) for _ in range(n)))
        self.pooler = space(dense=nn.Linear(dim, dim))

    def forward(self, ids: Any, mask: Any, parts: Any) -> Any:
        own = self.embeddings
        x = own.word_embeddings(ids) + own.token_type_embeddings(parts)
        x = own.LayerNorm(x + own.position_embeddings(torch.arange(ids.shape[1])))
        for layer in self.encoder.layer:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler.dense(x[:, 0]))


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
    """``DeformableTransformerEncoderLayer`` without dropout."""

    def __init__(self, dim: int, wide: int) -> None:
        super().__init__()
        self.self_attn = DeformableAttention(dim)
        self.norm1 = nn.LayerNorm(dim)
        self.linear1, self.linear2 = nn.Linear(dim, wide), nn.Linear(wide, dim)
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x: Any, position: Any, points: Any, shapes: Any) -> Any:
        x = self.norm1(x + self.self_attn(x + position, points, x, shapes))
        return self.norm2(x + self.linear2(torch.relu(self.linear1(x))))


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

    def __init__(self, dim: int = 256, wide: int = 1024, n_layers: int = 6) -> None:
        super().__init__()
        self.transformer = nn.Module()
        self.transformer.level_embed = nn.Parameter(torch.zeros(4, dim))
        layers = nn.ModuleList(DeformableLayer(dim, wide) for _ in range(n_layers))
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
