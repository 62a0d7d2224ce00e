"""Twins in PyTorch of models whose origins are not at hand, with the origins' names: timm's vision
transformers, Hugging Face's BERT; the encoder of Deformable DETR is in benchmarks/cape_torch.py."""

import math
import sys
from pathlib import Path
from typing import Any

from needs import take_library

torch = take_library("torch")
nn, F = torch.nn, torch.nn.functional

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.cape_torch import space  # noqa: E402

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
