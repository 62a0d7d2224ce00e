"""A side of ``python -m benchmarks.loading``: batches of one of its cases, by one library.

    python -m benchmarks.worker_loading hotloop|loader|hand [--workers N]

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
def rows_of_numbers() -> tuple[Any, Any]:
    """100,000 rows of 64 numbers, and their classes."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((100_000, 64), np.float32), rng.integers(0, 10, 100_000)


@functools.cache
def series() -> tuple[Any, Any]:
    """17,420 rows of 29 numbers, as ETTh1 with W2's features, and the class of each."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((17_420, 29), np.float32), rng.integers(0, 3, 17_420)


@functools.cache
def frame() -> Any:
    """A million rows: 36 numbers, a tenth of one missing, and four columns of texts."""
    import pandas as pd

    rng = np.random.default_rng(0)
    made = pd.DataFrame({f"n{i}": rng.standard_normal(1_000_000) for i in range(35)})
    made["holes"] = np.where(rng.random(1_000_000) < 0.1, np.nan, 1.0)
    for i in range(4):
        made[f"c{i}"] = pd.Categorical.from_codes(
            rng.integers(0, 8, 1_000_000), [f"kind {k}" for k in range(8)]
        )
    made["target"] = rng.integers(0, 2, 1_000_000)
    return made


def images(kind: str) -> Path:
    """A folder of classes."""
    return Path(os.environ["HOTLOOP_BENCH_IMAGES"]) / kind


# ---- hotloop


def make_hotloop(name: str) -> Callable[[], int]:
    """A function that makes batches for a while and returns how many samples."""
    import hotloop as hl
    from hotloop.tools.loading import BatchMaker

    batch = find_case(name).batch
    if name.startswith("frame"):
        table = frame()

        def first() -> int:
            data = hl.DataModule.from_pandas(table, "target", batch_size=batch)
            next(data.train_batches())
            return 1

        return first
    if name.startswith("rows"):
        data = hl.DataModule.from_arrays(*rows_of_numbers(), batch_size=batch)
    elif name.startswith("windows"):
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

    def __init__(self, root: Path, size: int) -> None:
        self.size = size
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
        pixels = self.crop(image)
        if torch.rand(()) < 0.5:
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
    if name.startswith("frame"):
        return functools.partial(_first_batch, case.batch, workers)
    dataset: Any
    if name.startswith("rows"):
        dataset = torch.utils.data.TensorDataset(*map(torch.from_numpy, rows_of_numbers()))
    elif name.startswith("windows"):
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


def _first_batch(batch: int, workers: int) -> int:
    """From a frame to the first batch: holes filled, categories as codes, one matrix of floats."""
    import torch

    table = frame()
    features = table.drop(columns="target")
    numbers = features.select_dtypes("number")
    numbers = numbers.fillna(numbers.median())
    codes = features.select_dtypes("category").apply(lambda column: column.cat.codes)
    one_hot = [np.eye(8, dtype=np.float32)[codes[name].to_numpy()] for name in codes]
    X = np.concatenate([numbers.to_numpy(np.float32), *one_hot], axis=1)
    dataset = torch.utils.data.TensorDataset(
        torch.from_numpy(X), torch.from_numpy(table["target"].to_numpy())
    )
    loader = torch.utils.data.DataLoader(dataset, batch, shuffle=True, num_workers=workers)
    next(iter(loader))
    return 1


def make_hand(name: str) -> Callable[[], int]:
    """Shuffled rows of a tensor by index_select."""
    import torch

    batch = find_case(name).batch
    if not name.startswith("rows"):
        return lambda: 1  # has no column
    X, y = map(torch.from_numpy, rows_of_numbers())

    def forever() -> Iterator[int]:
        while True:
            order = torch.randperm(len(X))
            for begin in range(0, len(X) - batch + 1, batch):
                rows = order[begin : begin + batch]
                torch.index_select(X, 0, rows)
                torch.index_select(y, 0, rows)
                yield batch

    batches = forever()
    return lambda: next(batches)


def main() -> None:
    """Serves slices of cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", choices=["hotloop", "loader", "hand"])
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    if options.home == "hotloop":
        import hotloop as hl

        serve_cases(make_hotloop, version=hl.__version__)
        return
    import torch

    make = make_hand if options.home == "hand" else None
    loader = functools.partial(make_loader, workers=options.workers)
    serve_cases(make or loader, version=torch.__version__)


if __name__ == "__main__":
    main()
