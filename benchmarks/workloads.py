"""What is measured: models, data and training of each workload, known to both sides.

Rows are a multiple of the batch, so that both sides run the same steps: PyTorch's side drops a
short last batch, hotloop trains on it. Values are random; time does not depend on them.

A workload is the same on every device; its aims are not. On a GPU the columns are others, and one
workload is for GPUs alone.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

__all__ = [
    "FEEDING", "IMAGES", "SEQUENCES", "TRAINING", "TRAINING_CUDA", "Workload", "find",
    "make_arrays",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Workload:
    """One row of the table.

    Attributes
    ----------
    name : str
    title : str
        As shown.
    rows, features, classes, batch : int
    hidden : tuple of int
        Widths between the first and the last layer.
    image : int
        Height and width of the inputs, which are images of three channels; 0: they are rows.
    length : int
        Rows of a window, of which each input is one; 0: they are rows.
    points : int
        Of a pose: a row is an episode of two images with so many points each, by a support's; 0:
        they have classes.
    is_text : bool
        Whether a row is a token, one of the classes, and each window's target the next ones.
    dropout : float
        Of a model of text.
    precision : str
        Of both sides, in hotloop's words.
    optimizer : str
        "adam", "adamw" or "sgd", with a momentum of 0.9; at lr 1e-3.
    weight_decay : float
    clip : float or None
        Largest global norm of the gradients.
    smoothing : float
        Label smoothing of the cross-entropy.
    aims : dict of str to float
        Aim by column, as in the issue that set it.
    loader : bool
        Whether PyTorch runs through its DataLoader as well.
    compiled : bool
        Whether PyTorch compiles as well, on a CPU.
    warm_up : int
        PyTorch's steps before the first slice.
    """

    name: str
    title: str
    rows: int
    features: int
    classes: int
    batch: int
    hidden: tuple[int, ...] = ()
    image: int = 0
    length: int = 0
    points: int = 0
    is_text: bool = False
    dropout: float = 0.0
    precision: str = "32-true"
    optimizer: str = "adam"
    weight_decay: float = 0.0
    clip: float | None = None
    smoothing: float = 0.0
    aims: dict[str, float] = dataclasses.field(default_factory=dict)
    loader: bool = False
    compiled: bool = False
    warm_up: int = 20

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a sample."""
        if self.points:
            return 2, 3, self.image, self.image
        if self.image:
            return 3, self.image, self.image
        if self.is_text:
            return (self.length,)
        return (self.length, self.features) if self.length else (self.features,)

    @property
    def flops(self) -> float:
        """Of a sample's products in a training step; the first layer has no input's gradient."""
        widths = (self.features, *self.hidden, self.classes)
        products = [a * b for a, b in itertools.pairwise(widths)]
        return 2.0 * (3 * sum(products) - products[0])

    def at(self, precision: str, *, smoke: bool = False) -> Workload:
        """The same in another precision; ``smoke``: in miniature, to see that it runs."""
        if not smoke:
            return dataclasses.replace(self, precision=precision)
        features, hidden = min(self.features, 12), tuple(min(n, 16) for n in self.hidden)
        mini = dataclasses.replace(self, precision=precision, features=features, hidden=hidden)
        rows, batch = (4, 2) if self.image else (32, 8)
        return dataclasses.replace(mini, rows=rows, batch=batch, image=min(self.image, 32))


TRAINING = [
    Workload(
        "mlp",
        "W2 MLP 29-128-96-64-32-3, batch 512",
        rows=76_800,
        features=29,
        classes=3,
        batch=512,
        hidden=(128, 96, 64, 32),
        optimizer="adamw",
        weight_decay=5e-4,
        clip=1.0,
        smoothing=0.1,
        aims={"default": 7.0, "loader": 10.0, "tuned": 5.5},
        loader=True,
    ),
    Workload(
        "tiny",
        "20-32-16-2, batch 64",
        rows=9_984,
        features=20,
        classes=2,
        batch=64,
        hidden=(32, 16),
        aims={"default": 50.0, "tuned": 30.0},
    ),
    Workload(
        "wide",
        "784-512-256-10, batch 512",
        rows=30_720,
        features=784,
        classes=10,
        batch=512,
        hidden=(512, 256),
        aims={"default": 2.2, "tuned_mkl": 1.1},
    ),
]

_MLP, _TINY, _ = TRAINING

# Images: small batches, so that a slice is a step or two; in both precisions.
_IMAGES = [
    Workload(
        "resnet18",
        "ResNet-18, 32 of 32 x 32",
        rows=64,
        features=0,
        classes=10,
        batch=32,
        image=32,
        optimizer="sgd",
        weight_decay=5e-4,
    ),
    Workload(
        "resnet50",
        "ResNet-50, 4 of 224 x 224",
        rows=4,
        features=0,
        classes=1000,
        batch=4,
        image=224,
        optimizer="sgd",
        weight_decay=5e-4,
    ),
    Workload(
        "convnext_small",
        "ConvNeXt-S, 2 of 224 x 224",
        rows=2,
        features=0,
        classes=10,
        batch=2,
        image=224,
        optimizer="adamw",
        weight_decay=0.01,
    ),
]
IMAGES = [
    dataclasses.replace(
        one,
        name=one.name + suffix,
        title=one.title + words,
        precision=precision,
        compiled=True,
        warm_up=2,
        aims={"default": 1.0},
    )
    for one in _IMAGES
    for suffix, words, precision in (("", "", "32-true"), ("-bf16", ", bf16", "bf16-mixed"))
]
IMAGES += [
    Workload(
        f"cape{suffix}",
        f"W4 CAPE, 4 of 256 x 256{words}",
        rows=4,
        features=0,
        classes=3,
        batch=2,
        image=256,
        points=199,
        precision=precision,
        optimizer="adamw",
        weight_decay=1e-4,
        clip=0.1,
        aims={"default": 1.8, "tuned": 1.3},
        warm_up=2,
    )
    for suffix, words, precision in (("", "", "32-true"), ("-bf16", ", bf16", "bf16-mixed"))
]
# Windows of a time series.
_TRANSFORMER = Workload(
    "transformer",
    "W2 Transformer, 256 windows of 20 x 29",
    rows=1_024,
    features=29,
    classes=3,
    batch=256,
    length=20,
    optimizer="adamw",
    weight_decay=5e-4,
    clip=0.5,
    smoothing=0.1,
    aims={"default": 1.0},
    compiled=True,
    warm_up=2,
)
_LSTM = dataclasses.replace(_TRANSFORMER, name="lstm", title="W2 LSTM, 256 windows of 20 x 29")
SEQUENCES = [
    dataclasses.replace(one, name=one.name + suffix, title=one.title + words, precision=precision)
    for one in (_TRANSFORMER, _LSTM)
    for suffix, words, precision in (("", "", "32-true"), ("-bf16", ", bf16", "bf16-mixed"))
]
# nanoGPT's small setting on a CPU: 65 letters, 4 layers of 4 heads.
SEQUENCES += [
    Workload(
        "gpt-dropout" if dropout else "gpt",
        f"GPT 4 x 128, 12 of 64 letters{', dropout .2' if dropout else ''}",
        rows=1_200,
        features=128,
        classes=65,
        batch=12,
        hidden=(4,) * 4,
        length=64,
        is_text=True,
        dropout=dropout,
        optimizer="adamw",
        weight_decay=0.1,
        clip=1.0,
        aims={"default": 1.0},
        compiled=True,
        warm_up=2,
    )
    for dropout in (0.0, 0.2)
]
TRAINING_CUDA = [
    dataclasses.replace(
        _LSTM,
        name="lstm-b256",
        rows=76_800,
        precision="bf16-mixed",
        aims={"eager": 3.0, "graphs": 2.0},
        warm_up=20,
    ),
    dataclasses.replace(
        _TRANSFORMER,
        name="transformer-b256",
        rows=76_800,
        precision="bf16-mixed",
        aims={"eager": 5.0, "graphs": 1.5},
        warm_up=20,
    ),
    dataclasses.replace(_MLP, aims={"eager": 10.0, "graphs": 2.0}, loader=False),
    dataclasses.replace(_TINY, aims={"eager": 20.0, "graphs": 3.0}),
    Workload(
        "large",
        "784-4096-4096-10, batch 4096",
        rows=122_880,
        features=784,
        classes=10,
        batch=4096,
        hidden=(4096, 4096),
        precision="bf16-mixed",
        aims={"resident": 1.5, "graphs": 1.1, "peak": 0.75},
    ),
    Workload(
        "resnet50-b128",
        "ResNet-50, 128 of 224 x 224",
        rows=1024,
        features=0,
        classes=1000,
        batch=128,
        image=224,
        precision="bf16-mixed",
        optimizer="sgd",
        weight_decay=5e-4,
        aims={"eager": 1.4, "graphs": 1.15},
        warm_up=5,
    ),
    Workload(
        "convnext_small-b64",
        "ConvNeXt-S, 64 of 224 x 224",
        rows=512,
        features=0,
        classes=1000,
        batch=64,
        image=224,
        precision="bf16-mixed",
        optimizer="adamw",
        weight_decay=0.01,
        aims={"eager": 1.5, "graphs": 1.1},
        warm_up=5,
    ),
]

FEEDING = Workload(
    "feeding",
    "feeding alone: 100,000 x 64, batch 512",
    rows=100_000,
    features=64,
    classes=10,
    batch=512,
    aims={"loader": 40.0, "tuned": 1.0},
)


def make_arrays(workload: Workload) -> tuple[Any, Any]:
    """Inputs (rows, ...) float32 and labels (rows,) int64, both tokens (rows, length), or images of
    episodes and the points (rows, 3, points, 3) of their support and queries; the same on both
    sides.

    Windows are a view of their series, which hotloop gathers from; PyTorch's side copies them.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    if workload.is_text:
        tokens = rng.integers(0, workload.classes, workload.rows + workload.length)
        windows = np.lib.stride_tricks.sliding_window_view(tokens, workload.length + 1)
        return windows[:, :-1], windows[:, 1:]
    if workload.length:
        shape = (workload.rows + workload.length - 1, workload.features)
        series = rng.standard_normal(shape, dtype=np.float32)
        view = np.lib.stride_tricks.sliding_window_view(series, workload.length, axis=0)
        return np.moveaxis(view, -1, 1), rng.integers(0, workload.classes, workload.rows)
    x = rng.standard_normal((workload.rows, *workload.shape), dtype=np.float32)
    if workload.points:
        points = rng.uniform(0, 1, (workload.rows, 3, workload.points, 3)).astype(np.float32)
        points[:, :, 17:] = 0  # as many as a person has, the rest is padding
        return x, points
    return x, rng.integers(0, workload.classes, workload.rows)


def find(name: str) -> Workload:
    """The workload of that name: what is trained is the same on every device."""
    return next(
        w for w in [*TRAINING, *IMAGES, *SEQUENCES, *TRAINING_CUDA, FEEDING] if w.name == name
    )
