"""A side of ``python -m benchmarks.loading``: batches of one of its cases, by one library.

    python -m benchmarks.worker_loading hotloop|loader [--workers N]

The images are in $HOTLOOP_BENCH_IMAGES, which the parent has made.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.loading import find_case
from benchmarks.worker import serve_cases

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
_SLICE_SECONDS = 0.05


@functools.cache
def series() -> tuple[Any, Any]:
    """17,420 rows of 29 numbers, as ETTh1 with W2's features, and the class of each."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((17_420, 29), np.float32), rng.integers(0, 3, 17_420)


def images(kind: str) -> Path:
    """A folder of classes."""
    return Path(os.environ["HOTLOOP_BENCH_IMAGES"]) / kind


# ---- hotloop


def make_hotloop(name: str) -> Callable[[], int]:
    """A function that makes batches for a while and returns how many samples."""
    import hotloop as hl
    from hotloop.tools.loading import BatchMaker

    batch = find_case(name).batch
    if name.startswith("windows"):
        X, y = series()
        data = hl.DataModule.from_windows(X, 20, target=y, batch_size=batch, normalize=None)
    elif name.startswith("CIFAR"):
        data = hl.DataModule.from_image_folder(
            images("small"), size=32, augment="basic", batch_size=batch
        )
    else:
        data = hl.DataModule.from_image_folder(
            images("large"), size=224, augment="basic", batch_size=batch
        )
    maker = BatchMaker(data, "train", data.num_workers)
    return lambda: maker.make(_SLICE_SECONDS) * maker.rows


# ---- PyTorch


class Windows:
    """Slices of a series."""

    def __init__(self) -> None:
        import torch

        X, y = series()
        self.X, self.y = torch.from_numpy(X), torch.from_numpy(y)

    def __len__(self) -> int:
        return len(self.X) - 19

    def __getitem__(self, i: int) -> Any:
        return self.X[i : i + 20], self.y[i + 19]


class Images:
    """Files decoded by Pillow and augmented in NumPy; of small ones a crop out of a border."""

    def __init__(self, root: Path, size: int, *, augments: bool = True) -> None:
        self.size, self.augments = size, augments
        classes = sorted(path.name for path in root.iterdir())
        self.files = [
            (path, number)
            for number, kind in enumerate(classes)
            for path in sorted((root / kind).iterdir())
        ]
        self.mean = np.array(MEAN, np.float32)[:, None, None]
        self.std = np.array(STD, np.float32)[:, None, None]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> Any:
        import torch
        from PIL import Image

        path, number = self.files[i]
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        pixels = self.crop(image) if self.augments else np.asarray(image)
        if self.augments and torch.rand(()) < 0.5:
            pixels = pixels[:, ::-1]
        made = np.ascontiguousarray(pixels.transpose(2, 0, 1)).astype(np.float32) / 255
        return torch.from_numpy((made - self.mean) / self.std), number

    def crop(self, image: Any) -> Any:
        """A random part of it, at the size of the batch."""
        import torch

        if self.size <= 64:
            padded = np.pad(np.asarray(image), ((4, 4), (4, 4), (0, 0)))
            top, left = torch.randint(0, 9, (2,)).tolist()
            return padded[top : top + self.size, left : left + self.size]
        width, height = image.size
        for _ in range(10):
            area = width * height * float(torch.empty(1).uniform_(0.35, 1.0))
            ratio = float(torch.exp(torch.empty(1).uniform_(np.log(3 / 4), np.log(4 / 3))))
            w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
            if 0 < w <= width and 0 < h <= height:
                break
        left = int(torch.randint(0, max(1, width - w + 1), ()))
        top = int(torch.randint(0, max(1, height - h + 1), ()))
        box = (left, top, left + w, top + h)
        return np.asarray(image.resize((self.size, self.size), 2, box=box))


def make_loader(name: str, workers: int) -> Callable[[], int]:
    """A function that takes a batch of a DataLoader and returns its samples."""
    import torch

    case = find_case(name)
    dataset: Any
    if name.startswith("windows"):
        dataset = Windows()
    elif name.startswith("CIFAR"):
        dataset = Images(images("small"), 32)
    else:
        dataset = Images(images("large"), 224)
    loader = torch.utils.data.DataLoader(
        dataset,
        case.batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )

    def forever() -> Iterator[Any]:
        while True:
            yield from loader

    batches = forever()
    return lambda: len(next(batches)[1])


def main() -> None:
    """Serves slices of cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", choices=["hotloop", "loader"])
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    if options.home == "hotloop":
        import hotloop as hl

        serve_cases(make_hotloop, version=hl.__version__)
        return
    import torch

    loader = functools.partial(make_loader, workers=options.workers)
    serve_cases(loader, version=torch.__version__)


if __name__ == "__main__":
    main()
