"""The models of the workloads, made of either side's ``nn``: the definition is the same text.

CAPE alone is examples/cape on one side and cape_torch.py on the other, which tests compare.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any

from benchmarks.workloads import Workload

__all__ = ["make_model"]


def make_model(nn: Any, workload: Workload) -> Any:
    """The workload's model.

    Parameters
    ----------
    nn : module
        ``hotloop.nn`` or ``torch.nn``.
    workload : Workload
    """
    name = workload.name.partition("-")[0]  # without its precision or batch
    if name == "mlp":
        return _make_tabular(nn, workload)
    if name in _RESNETS:
        return _make_resnet(nn, workload, *_RESNETS[name])
    if name == "lstm":
        return _make_lstm(nn, workload)
    if name == "gpt":
        return _make_gpt(nn, workload)
    if name == "transformer":
        return _make_transformer(nn, workload)
    if name == "convnext_small":
        return _make_convnext(nn, workload)
    if name == "cape":
        return _make_cape(nn, workload)
    widths = (workload.features, *workload.hidden, workload.classes)
    layers = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _make_tabular(nn: Any, workload: Workload) -> Any:
    class TabularNet(nn.Module):
        """The MLP of W2: normalised inputs, four blocks, a gate, a head."""

        def __init__(self) -> None:
            super().__init__()
            layers = [nn.BatchNorm1d(workload.features)]
            width = workload.features
            for hidden in workload.hidden:
                block = (nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU())
                layers += [*block, nn.Dropout(0.3)]
                width = hidden
            self.body = nn.Sequential(*layers)
            self.gate = nn.Sequential(
                nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, width), nn.Sigmoid()
            )
            self.head = nn.Linear(width, workload.classes)

        def forward(self, x: Any) -> Any:
            h = self.body(x)
            return self.head(h * self.gate(h))

    return TabularNet()


def _make_lstm(nn: Any, workload: Workload, width: int = 128) -> Any:
    class Attentive(nn.Module):
        """The LSTM of W2: two layers in both directions, a mean by learned weights, a head."""

        def __init__(self) -> None:
            super().__init__()
            both = 2 * width
            self.before, self.after = nn.LayerNorm(workload.features), nn.LayerNorm(both)
            self.rnn = nn.LSTM(
                workload.features, width, 2, batch_first=True, dropout=0.4, bidirectional=True
            )
            self.attention = nn.Sequential(
                nn.Linear(both, width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, 1)
            )
            self.head = nn.Sequential(
                nn.LayerNorm(both), nn.Dropout(0.4), nn.Linear(both, width), nn.ReLU(),
                nn.LayerNorm(width), nn.Dropout(0.4), nn.Linear(width, workload.classes),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            x = self.after(self.rnn(self.before(x))[0])
            weights = nn.functional.softmax(self.attention(x), 1)
            return self.head((weights * x).sum(1))

    return Attentive()


def _make_transformer(nn: Any, workload: Workload, width: int = 128) -> Any:
    ones = importlib.import_module(nn.__name__.partition(".")[0]).ones

    class Transformer(nn.Module):
        """That of W2: rows with positions, three layers with norms first, a mean, a head."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Sequential(
                nn.Linear(workload.features, width), nn.LayerNorm(width), nn.Dropout(0.1)
            )
            self.register_buffer("positions", ones(workload.length, width))
            layer = nn.TransformerEncoderLayer(
                width, 8, 4 * width, 0.2, "gelu", batch_first=True, norm_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, 3, nn.LayerNorm(width))
            self.head = nn.Sequential(
                nn.LayerNorm(width), nn.Dropout(0.2), nn.Linear(width, width // 2), nn.GELU(),
                nn.LayerNorm(width // 2), nn.Dropout(0.2), nn.Linear(width // 2, workload.classes),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            return self.head(self.encoder(self.embedding(x) + self.positions).mean(1))

    return Transformer()


def _make_gpt(nn: Any, workload: Workload) -> Any:
    F, width, dropout = nn.functional, workload.features, workload.dropout
    arange = importlib.import_module(nn.__name__.partition(".")[0]).arange

    class Block(nn.Module):
        """nanoGPT's: attention and a feed-forward part, each behind a norm."""

        def __init__(self, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width),
                nn.Dropout(dropout),
            )  # fmt: skip
            self.drop = nn.Dropout(dropout)

        def forward(self, x: Any) -> Any:
            n, length = x.shape[:2]
            parts = self.c_attn(self.ln_1(x)).split(width, 2)
            q, k, v = (
                part.view(n, length, self.heads, width // self.heads).transpose(1, 2)
                for part in parts
            )
            p = dropout if self.training else 0.0
            seen = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
            seen = seen.transpose(1, 2).reshape(n, length, width)
            x = x + self.drop(self.c_proj(seen))
            return x + self.mlp(self.ln_2(x))

    class GPT(nn.Module):
        """A decoder of tokens; the head's weight is the table's."""

        def __init__(self) -> None:
            super().__init__()
            self.wte = nn.Embedding(workload.classes, width)
            self.wpe = nn.Embedding(workload.length, width)
            self.drop = nn.Dropout(dropout)
            self.blocks = nn.Sequential(*(Block(heads) for heads in workload.hidden))
            self.ln_f = nn.LayerNorm(width)
            self.lm_head = nn.Linear(width, workload.classes, bias=False)
            self.lm_head.weight = self.wte.weight

        def forward(self, ids: Any) -> Any:
            x = self.drop(self.wte(ids) + self.wpe(arange(ids.shape[1])))
            return self.lm_head(self.ln_f(self.blocks(x)))

    return GPT()


# Whether blocks are bottlenecks, and how many a stage has.
_RESNETS = {"resnet18": (False, (2, 2, 2, 2)), "resnet50": (True, (3, 4, 6, 3))}


def _make_resnet(nn: Any, workload: Workload, is_deep: bool, blocks: tuple[int, ...]) -> Any:
    def join(channels: int, out: int, kernel: int, stride: int = 1) -> list[Any]:
        padding = kernel // 2
        conv = nn.Conv2d(channels, out, kernel, stride, padding, bias=False)
        return [conv, nn.BatchNorm2d(out)]

    class Block(nn.Module):
        """Two convolutions, or three with few channels between, beside a shortcut."""

        def __init__(self, channels: int, width: int, stride: int) -> None:
            super().__init__()
            out = 4 * width if is_deep else width
            relu = nn.ReLU(inplace=True)
            if is_deep:
                layers = [*join(channels, width, 1), relu, *join(width, width, 3, stride), relu]
                layers += join(width, out, 1)
            else:
                layers = [*join(channels, width, 3, stride), relu, *join(width, out, 3)]
            self.body = nn.Sequential(*layers)
            self.relu = relu
            self.shortcut = nn.Identity()
            if stride > 1 or channels != out:
                self.shortcut = nn.Sequential(*join(channels, out, 1, stride))

        def forward(self, x: Any) -> Any:
            return self.relu(self.body(x) + self.shortcut(x))

    is_small = workload.image <= 32
    layers = [*join(3, 64, 3 if is_small else 7, 1 if is_small else 2), nn.ReLU(inplace=True)]
    if not is_small:
        layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for stage, n in enumerate(blocks):
        width = 64 << stage
        for i in range(n):
            layers.append(Block(channels, width, 2 if stage and not i else 1))
            channels = 4 * width if is_deep else width
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, workload.classes))
    return nn.Sequential(*layers, *head)


def _make_convnext(nn: Any, workload: Workload) -> Any:
    full = importlib.import_module(nn.__name__.partition(".")[0]).full

    class Norm(nn.LayerNorm):
        """Layer norm over channels, which stand second."""

        def forward(self, x: Any) -> Any:
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    class Block(nn.Module):
        """A depthwise convolution and two layers over channels, beside the input."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
            self.body = nn.Sequential(
                nn.LayerNorm(width, eps=1e-6),
                nn.Linear(width, 4 * width),
                nn.GELU(),
                nn.Linear(4 * width, width),
            )
            self.gamma = nn.Parameter(full((width,), 1e-6))

        def forward(self, x: Any) -> Any:
            y = self.gamma * self.body(self.depthwise(x).permute(0, 2, 3, 1))
            return x + y.permute(0, 3, 1, 2)

    layers = [nn.Conv2d(3, 96, 4, 4), Norm(96, eps=1e-6)]
    for stage, n in enumerate((3, 3, 27, 3)):
        width = 96 << stage
        if stage:
            layers += [Norm(width // 2, eps=1e-6), nn.Conv2d(width // 2, width, 2, 2)]
        layers += [Block(width) for _ in range(n)]
    head = (
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(768),
        nn.Linear(768, workload.classes),
    )
    return nn.Sequential(*layers, *head)


def _make_cape(nn: Any, workload: Workload) -> Any:
    """Its losses, of images and the points of support and queries."""
    sizes = {"image_size": workload.image, "positions": workload.points + 1}
    if not nn.__name__.startswith("hotloop"):
        from benchmarks.cape_torch import Cape as Twin

        class Losses(Twin):
            def forward(self, x: Any, y: Any) -> Any:
                return sum(super().forward(x, y[:, :1], y[:, 1:]))

        return Losses(**sizes)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "cape"))
    cape = importlib.import_module("model")

    class Episodes(cape.Cape):  # type: ignore[name-defined, misc]
        """With the points of both in one array."""

        def training_step(self, batch: Any) -> Any:
            x = {"query": batch["x"], "support_y": batch["y"][:, :1]}
            return super().training_step({"x": x, "y": batch["y"][:, 1:]})

    return Episodes(**sizes)
