"""Classify photographs: a small residual network on CIFAR-10, in ten minutes on two cores.

Needs Pillow (`pip install pillow`) and the images as files, `train/<class>/*.jpg` and
`test/<class>/*.jpg`, in a folder that is given on the command line:

    python examples/04_cifar10.py cifar10 [epochs]
"""

import sys
import time
from pathlib import Path

import hotloop as hl
import numpy as np
from hotloop import nn
from hotloop.nn import functional as F


def read_images(folder):
    """All images as (N, 3, 32, 32) uint8, their classes as numbers, and the classes' names."""
    from PIL import Image

    names = sorted(path.name for path in folder.iterdir())
    paths = [
        (path, i) for i, name in enumerate(names) for path in sorted((folder / name).iterdir())
    ]
    images = np.empty((len(paths), 3, 32, 32), np.uint8)
    for image, (path, _) in zip(images, paths):
        image[:] = np.asarray(Image.open(path)).transpose(2, 0, 1)
    return images, np.array([label for _, label in paths]), names


def move(x, pixels=3):
    """Each image by so many pixels up, down or not at all, and along lines likewise."""
    height, width = x.shape[2:]
    x = F.pad(x, (pixels,) * 4)
    which = 3.0 * hl.rand(x.shape[0], 1, 1, 1)
    up, here, down = (x[:, :, i : i + height] for i in (2 * pixels, pixels, 0))
    x = hl.where(which < 1.0, up, hl.where(which < 2.0, here, down))
    which = 3.0 * hl.rand(x.shape[0], 1, 1, 1)
    left, here, right = (x[..., i : i + width] for i in (2 * pixels, pixels, 0))
    return hl.where(which < 1.0, left, hl.where(which < 2.0, here, right))


def block(channels_in, channels_out):
    """Convolution, norm, activation."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


class Residual(nn.Module):
    """Two blocks beside a shortcut."""

    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(block(channels, channels), block(channels, channels))

    def forward(self, x):
        return x + self.body(x)


class Net(nn.Module):
    """Images of bytes in, a score for each class out."""

    def __init__(self, width=32, num_classes=10):
        super().__init__()
        self.body = nn.Sequential(
            block(3, width),
            nn.MaxPool2d(2),
            block(width, 2 * width),
            nn.MaxPool2d(2),
            block(2 * width, 4 * width),
            Residual(4 * width),
            nn.MaxPool2d(2),
            block(4 * width, 6 * width),
            Residual(6 * width),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(6 * width, num_classes))

    def forward(self, x):
        x = (x.float() - 121.0) / 64.0
        if self.training:
            # Half of the images are mirrored and two thirds are moved, others in each step.
            mirrored = hl.rand(x.shape[0], 1, 1, 1) < 0.5
            x = move(hl.where(mirrored, x.flip(3), x))
        return self.head(self.body(x).amax((2, 3)))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    begin = time.perf_counter()
    folder, epochs = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 30
    X, y, names = read_images(folder / "train")
    X_test, y_test, _ = read_images(folder / "test")
    data = hl.DataModule.from_arrays(
        X, y, val=0, test=(X_test, y_test), batch_size=128, classes=names
    )
    result = hl.train(
        Net(), data, max_epochs=epochs, max_time="9m", lr=4e-3, weight_decay=0.05,
        scheduler="one_cycle", label_smoothing=0.1,
    )  # fmt: skip
    scores = hl.evaluate(result, data, split="test")
    print(f"{scores}, {time.perf_counter() - begin:.0f} s in all")
