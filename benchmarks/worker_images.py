"""A side of ``python -m benchmarks.images``: epochs of ResNet-18 on JPEG files, by one library.

    python -m benchmarks.worker_images hotloop|default|tuned PRECISION [--workers N]

The images are in $HOTLOOP_BENCH_IMAGES, which the parent has made.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.epochs import train_epochs
from benchmarks.images import BATCH
from benchmarks.models import make_model
from benchmarks.worker import serve
from benchmarks.worker_loading import MEAN, STD, Images, images
from benchmarks.workloads import find

SIZE, BORDER = 32, 4
HELD = 0.1  # validated
LR, DECAY = 1e-3, 0.01


# ---- hotloop


def train_hotloop(precision: str) -> None:
    """Trains epoch by epoch until the parent has enough."""
    import hotloop as hl
    from hotloop import nn

    data = hl.DataModule.from_image_folder(
        images("small"), size=SIZE, augment="basic", val=HELD, batch_size=BATCH
    )
    train_epochs(
        lambda: make_model(nn, find("resnet18")), data, lr=LR, weight_decay=DECAY,
        gradient_clip_val=0, precision=precision,
    )  # fmt: skip


# ---- PyTorch


class Kept:
    """All images in memory, in a border; batches are cut out, mirrored and normalised at once."""

    def __init__(self, files: Any) -> None:
        import torch
        from PIL import Image

        paths = [path for path, _ in files]
        decoded = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])
        border = ((0, 0), (BORDER, BORDER), (BORDER, BORDER), (0, 0))
        self.images = torch.from_numpy(np.pad(decoded, border))  # (N, 40, 40, 3)
        self.labels = torch.tensor([number for _, number in files])
        self.mean = torch.tensor(MEAN) * 255
        self.scale = 1 / (torch.tensor(STD) * 255)

    def batches(self, rows: Any, *, training: bool) -> Iterator[Any]:
        """Images with channels last, and labels."""
        import torch

        for part in rows.split(BATCH):
            n, at = len(part), torch.arange(SIZE)
            places = torch.full((2, n, 1), BORDER)
            columns = at.expand(n, SIZE)
            if training:
                places = torch.randint(0, 2 * BORDER + 1, (2, n, 1))
                mirrored = torch.rand(n, 1) < 0.5
                columns = torch.where(mirrored, SIZE - 1 - columns, columns)
            down, across = (at + places[0])[:, :, None], (columns + places[1])[:, None, :]
            levels = self.images[part[:, None, None], down, across]
            made = (levels.to(torch.float32) - self.mean) * self.scale
            yield made.permute(0, 3, 1, 2), self.labels[part]


def make_torch(precision: str, workers: int, *, tuned: bool) -> Callable[[], int]:
    """A function that trains an epoch, validates, and returns the images that it trained on."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    trained, plain = Images(images("small"), SIZE), Images(images("small"), SIZE, augments=False)
    order = torch.randperm(len(trained))
    rows = order[: (n_held := int(HELD * len(order)))], order[n_held:]
    model = make_model(nn, find("resnet18"))
    how: dict[str, Any] = {"fused": True} if tuned else {}
    if tuned:
        model.to(memory_format=torch.channels_last)
        kept = Kept(trained.files)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY, **how)
    is_mixed = precision == "bf16-mixed"
    loaders = [
        torch.utils.data.DataLoader(
            torch.utils.data.Subset(dataset, part.tolist()), BATCH, shuffle=dataset is trained,
            num_workers=workers, persistent_workers=workers > 0,
        )
        for dataset, part in ((plain, rows[0]), (trained, rows[1]))
    ]  # fmt: skip

    def batches(*, training: bool) -> Iterator[Any]:
        if not tuned:
            return iter(loaders[training])
        part = rows[training]
        shuffled = part[torch.randperm(len(part))] if training else part
        return kept.batches(shuffled, training=training)

    def run(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_mixed):
            return model(x)

    def read(value: Any) -> Any:
        return value.detach() if tuned else value.item()

    def epoch() -> int:
        model.train()
        n, total = 0, 0.0
        for x, y in batches(training=True):
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(run(x).float(), y)
            loss.backward()
            optimizer.step()
            n, total = n + len(x), total + read(loss) * len(x)
        model.eval()
        hits, validated = 0, 0.0
        with torch.no_grad():
            for x, y in batches(training=False):
                output = run(x).float()
                hits += read((output.argmax(1) == y).sum())
                validated += read(F.cross_entropy(output, y)) * len(x)
        float(total), float(validated), int(hits)  # what an epoch's line is printed from
        return n

    return epoch


def main() -> None:
    """Serves epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=["hotloop", "default", "tuned"])
    parser.add_argument("precision")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    if options.side == "hotloop":
        train_hotloop(options.precision)
        return
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    is_tuned = options.side == "tuned"
    step = make_torch(options.precision, options.workers, tuned=is_tuned)
    serve(step, version=torch.__version__)


if __name__ == "__main__":
    main()
