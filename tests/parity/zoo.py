"""torchvision and timm without what they need to run on a GPU or to download; and twins of those
models whose origin is no package, with its names.
"""

from typing import Any

import numpy as np
from needs import take_library

torch = take_library("torch")

_library = torch.library.Library("torchvision", "FRAGMENT")


def take_torchvision() -> Any:
    """Its models are pure Python; ops of its extension, which a CPU build of torch cannot load, are
    declared so that importing them does no harm."""
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return take_library("torchvision")


def take_timm() -> Any:
    take_torchvision()
    return take_library("timm")


def random_state(twin: Any, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Values for every key that let the signal through at about its size."""
    rng = np.random.default_rng(seed)
    state = {}
    for name, value in twin.state_dict().items():
        shape = tuple(value.shape)
        if name.endswith("num_batches_tracked"):
            array = np.zeros(shape, np.int64)
        elif name.endswith("running_var"):
            array = rng.uniform(0.8, 1.2, shape)
        elif len(shape) > 1:
            array = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        elif name.endswith("gamma"):
            array = rng.uniform(0.2, 0.4, shape)
        else:
            array = rng.uniform(-0.1, 0.1, shape) + name.endswith("weight")
        state[name] = np.asarray(array).astype(np.int64 if array.dtype == np.int64 else np.float32)
    return state


def make_cifar(depth: int = 20, num_classes: int = 10) -> Any:
    """ResNet for images of 32 x 32 as in pytorch_resnet_cifar10: shortcuts of option A."""
    nn, pad = torch.nn, torch.nn.functional.pad

    class Block(nn.Module):
        def __init__(self, channels: int, out: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(out)
            self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(out)

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
            if y.shape != x.shape:
                more = (y.shape[1] - x.shape[1]) // 2
                x = pad(x[:, :, ::2, ::2], (0, 0, 0, 0, more, more), "constant", 0)
            return torch.relu(y + x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
            channels = 16
            for i, out in enumerate((16, 32, 64)):
                first = Block(channels, out, 2 if i else 1)
                others = [Block(out, out, 1) for _ in range((depth - 2) // 6 - 1)]
                setattr(self, f"layer{i + 1}", nn.Sequential(first, *others))
                channels = out
            self.linear = nn.Linear(64, num_classes)

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.bn1(self.conv1(x)))
            x = self.layer3(self.layer2(self.layer1(x)))
            return self.linear(nn.functional.avg_pool2d(x, x.shape[3]).flatten(1))

    return Net()


def make_unet(num_classes: int = 2, bilinear: bool = False) -> Any:
    """U-Net as in milesial/Pytorch-UNet."""
    nn, pad = torch.nn, torch.nn.functional.pad

    class DoubleConv(nn.Module):
        def __init__(self, channels: int, out: int, mid: int | None = None) -> None:
            super().__init__()
            mid = mid or out
            self.double_conv = nn.Sequential(
                nn.Conv2d(channels, mid, 3, padding=1, bias=False), nn.BatchNorm2d(mid), nn.ReLU(),
                nn.Conv2d(mid, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            return self.double_conv(x)

    class Down(nn.Module):
        def __init__(self, channels: int, out: int) -> None:
            super().__init__()
            self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(channels, out))

        def forward(self, x: Any) -> Any:
            return self.maxpool_conv(x)

    class Up(nn.Module):
        def __init__(self, channels: int, out: int) -> None:
            super().__init__()
            if bilinear:
                self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            else:
                self.up = nn.ConvTranspose2d(channels, channels // 2, 2, 2)
            self.conv = DoubleConv(channels, out, channels // 2 if bilinear else None)

        def forward(self, x: Any, skip: Any) -> Any:
            x = self.up(x)
            h, w = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
            x = pad(x, [w // 2, w - w // 2, h // 2, h - h // 2])
            return self.conv(torch.cat([skip, x], 1))

    class OutConv(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(64, num_classes, 1)

        def forward(self, x: Any) -> Any:
            return self.conv(x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            half = 2 if bilinear else 1
            self.inc = DoubleConv(3, 64)
            self.down1, self.down2 = Down(64, 128), Down(128, 256)
            self.down3, self.down4 = Down(256, 512), Down(512, 1024 // half)
            self.up1, self.up2 = Up(1024, 512 // half), Up(512, 256 // half)
            self.up3, self.up4 = Up(256, 128 // half), Up(128, 64)
            self.outc = OutConv()

        def forward(self, x: Any) -> Any:
            a = self.inc(x)
            b = self.down1(a)
            c = self.down2(b)
            d = self.down3(c)
            x = self.up1(self.down4(d), d)
            return self.outc(self.up4(self.up3(self.up2(x, c), b), a))

    return Net()
