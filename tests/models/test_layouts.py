"""Nets of convolution, norm, activation and pooling: their training plans bring the images into the
order of convolutions once, and turn nothing between the first and the last layer, on the CPU and on
a GPU without libraries, which the emulated driver stands for.

    python -m models.test_layouts [accelerator]   a line for each net: what of it is turned
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import hotloop as hl
import numpy as np
import pytest
from hotloop import models, nn

BATCH = 5  # a number that no net has as a number of channels or pixels
PRECISIONS = ("32-true", "bf16-mixed")


def body(*layers: nn.Module, n: int = 2, channels: int = 8) -> nn.Module:
    """Layers, then the mean of the pixels and classes."""
    mean = getattr(nn, f"AdaptiveAvgPool{n}d")(1)
    return nn.Sequential(*layers, mean, nn.Flatten(), nn.Linear(channels, 3))


class Residual(nn.Module):
    """A block beside a shortcut, which a 1 x 1 convolution brings to its size; channels joined."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.down = nn.Sequential(nn.Conv2d(3, 8, 1, 2, bias=False), nn.BatchNorm2d(8))

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return hl.cat([(y + self.down(x)).relu(), y[:, ::2]], 1)


NETS = {
    "batch norm": lambda: body(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
    ),
    "residual": lambda: body(Residual(), nn.Conv2d(12, 8, 3)),
    "group norm": lambda: body(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.AvgPool2d(2), nn.Conv2d(8, 8, 3)
    ),
    "instance norm": lambda: body(
        nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.GELU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 8, 3),
    ),
    "response norm": lambda: body(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.LocalResponseNorm(3), nn.MaxPool2d(3, 2),
        nn.Conv2d(8, 8, 3),
    ),
    "dropped channels": lambda: body(
        nn.Conv2d(3, 8, 3), nn.PReLU(8), nn.Dropout2d(0.2), nn.LPPool2d(2, 2), nn.Conv2d(8, 8, 3)
    ),
    "up again": lambda: body(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(8, 8, 3), nn.ConvTranspose2d(8, 8, 2, 2), nn.ELU(), nn.AdaptiveAvgPool2d(2),
        nn.Conv2d(8, 8, 2),
    ),
    "padding": lambda: body(
        nn.Conv2d(3, 8, 3, padding="same", padding_mode="reflect"), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"), nn.BatchNorm2d(8), nn.ReLU(),
        nn.ReplicationPad2d(1), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 1),
    ),
    "lines": lambda: body(
        nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(8, 8, 3), n=1
    ),
    "volumes": lambda: body(
        nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 8, 2), n=3
    ),
    "resnet_cifar": lambda: models.resnet_cifar(depth=8, num_classes=3),
}  # fmt: skip
SIZES = {"lines": (24,), "volumes": (8, 8, 8)}


def find_turned(name: str, precision: str, accelerator: str) -> list[str]:
    """The instructions that turn a value of the batch in a net's training plan."""
    n = BATCH * int(np.prod(size := SIZES.get(name, (12, 12)))) * 3
    x = np.linspace(-1, 1, n, dtype="float32").reshape(BATCH, 3, *size)
    data = hl.DataModule.from_arrays(x, np.arange(BATCH) % 3, batch_size=BATCH, val=None)
    options = {"precision": precision, "accelerator": accelerator}
    text = hl.plan(NETS[name](), data, **options).text
    assert "conv" in text or "unfold" in text
    return re.findall(rf"\.permute\b.*: %\d+ [^(>]*\({BATCH}, .*", text)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NETS)
def test_images_are_turned_once(name: str, precision: str) -> None:
    (turned,) = find_turned(name, precision, "cpu")
    assert f"({BATCH}, 3, " in turned


def test_on_a_gpu(fake: Path) -> None:
    """In a process of its own, which finds the emulated driver."""
    tests = Path(__file__).resolve().parents[1]
    env = os.environ | {"HOTLOOP_CUDA_PATH": str(fake), "HOTLOOP_NVRTC_PATH": "none"}
    env["PYTHONPATH"] = os.pathsep.join([str(tests), env.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "ignore", "-m", "models.test_layouts", "gpu"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(NETS) * len(PRECISIONS)
    assert [line for line in lines if not line.endswith(": 1")] == []


if __name__ == "__main__":
    for net in NETS:
        for which in PRECISIONS:
            print(f"{net}, {which}: {len(find_turned(net, which, *sys.argv[1:]))}")
