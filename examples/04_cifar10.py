"""Classify photographs: a small residual network on CIFAR-10, in ten minutes on two cores.

Needs the images as files, `train/<class>/*.jpg` and `test/<class>/*.jpg`, in a folder that is given
on the command line, and for JPEG the library TurboJPEG (wheels of hotloop have it inside) or Pillow
(`pip install pillow`):

    python examples/04_cifar10.py cifar10 [epochs]
"""

import sys
import time
from pathlib import Path

import hotloop as hl
from hotloop import nn


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
    """Images in, a score for each class out."""

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
        return self.head(self.body(x).amax((2, 3)))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    begin = time.perf_counter()
    folder, epochs = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 30
    # Threads decode, move and mirror the images of the next batches while the model trains.
    data = hl.DataModule.from_image_folder(
        folder / "train", 32, test=folder / "test", batch_size=128, normalize="standard",
        augment=[hl.augment.RandomCrop(padding=4), hl.augment.RandomHorizontalFlip()],
    )  # fmt: skip
    result = hl.train(
        Net(), data, max_epochs=epochs, max_time="9m", lr=4e-3, weight_decay=0.05,
        scheduler="one_cycle", label_smoothing=0.1,
    )  # fmt: skip
    scores = hl.evaluate(result, data, split="test")
    print(f"{scores}, {time.perf_counter() - begin:.0f} s in all")
