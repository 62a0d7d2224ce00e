"""The zoo: layouts, sizes, learning, and what does not fit."""

import re

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, models
from hotloop.graph.trace import Trace
from hotloop.training.plans.runtime import Runtime
from models.kinds import IMAGES

SMALL = ["resnet18", "resnet_cifar", "mobilenet_v3_small", "efficientnet_b0", "unet"]
SIDE = {"resnet_cifar": 32}


def images(n: int, side: int = 64) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, 3, side, side)).astype("float32")


def work(model: hl.nn.Module, side: int) -> float:
    """Multiply-adds of one image."""
    runtime = Runtime(model, _core.Device("null"))
    graph = _core.Graph()
    with Trace(graph, runtime.layout.leaf_for) as trace:
        output = model(trace.input("x", "float32", (1, 3, side, side)))
        graph.output(output.id_in(trace))
    return _core.Plan(_core.Session(_core.Device("null")), graph, fuse=False).info()["flops"] / 2


@pytest.mark.parametrize("name", IMAGES)
def test_documented_work(name: str) -> None:
    """Parameters and multiply-adds are those that the docstring says."""
    text = getattr(models, name).__doc__ or ""
    found = re.search(r"([\d,]+) parameters.*?([\d.]+) ([GM]) multiply-adds", text, re.DOTALL)
    assert found
    model = getattr(models, name)()
    assert sum(p.numel() for p in model.parameters()) == int(found[1].replace(",", ""))
    unit = {"G": 1e9, "M": 1e6}[found[3]]
    digits = len(found[2].partition(".")[2])
    assert round(work(model, SIDE.get(name, 224)) / unit, digits) == float(found[2])


@pytest.mark.parametrize("name", IMAGES)
def test_no_transposition_between_the_layers(name: str) -> None:
    """Images are brought into the order of convolutions once; nothing else is, both ways."""
    side = SIDE.get(name, 64)
    target = (
        np.arange(4 * side * side).reshape(4, side, side) % 3
        if name == "unet"
        else np.arange(4) % 3
    )
    data = hl.DataModule.from_arrays(images(4, side), target, batch_size=4, val=0)
    report = hl.plan(getattr(models, name)(num_classes=3), data, precision="32-true")
    assert report.text.count(".permute.") == 1


@pytest.mark.parametrize("name", SMALL)
def test_they_learn(name: str) -> None:
    """A few steps on images that differ by their brightness."""
    side, rng = 32, np.random.default_rng(0)
    y = rng.integers(0, 2, 48)
    x = rng.standard_normal((48, 3, side, side)).astype("float32") * 0.3 + y[:, None, None, None]
    target = np.repeat(np.repeat(y[:, None, None], side, 1), side, 2) if name == "unet" else y
    model = getattr(models, name)(num_classes=2)
    hl.manual_seed(0)
    result = hl.train(
        model, hl.DataModule.from_arrays(x, target, batch_size=16, val=0), max_epochs=3, lr=2e-3,
        precision="32-true", enable_progress_bar=False, seed=0,
    )  # fmt: skip
    losses = result.history["loss"]
    assert losses[-1] < 0.9 * losses[0]


def test_channels_and_classes() -> None:
    model = models.resnet18(num_classes=7, in_channels=1)
    assert model(images(2)[:, :1]).shape == (2, 7)
    with pytest.raises(ValueError, match="must have 1 channels"):
        model(images(2))
    with pytest.raises(ValueError, match=r"write x\.permute\(0, 3, 1, 2\)"):
        models.resnet18()(images(2).transpose(0, 2, 3, 1))
    with pytest.raises(ValueError, match="depth must be 6 n \\+ 2"):
        models.resnet_cifar(depth=18)


@pytest.mark.parametrize("name", IMAGES)
def test_other_channels_and_classes(name: str) -> None:
    """Each takes both; all else has the shapes that it had."""
    model = getattr(models, name)(num_classes=7, in_channels=5)
    runtime = Runtime(model, _core.Device("null"))
    with Trace(_core.Graph(), runtime.layout.leaf_for) as trace:
        output = model(trace.input("x", "float32", (2, 5, 64, 64)))
    assert output.shape == ((2, 7, 64, 64) if name == "unet" else (2, 7))
    usual = dict(getattr(models, name)().named_parameters())
    changed = {k for k, p in model.named_parameters() if p.shape != usual[k].shape}
    first, *_ = usual
    last = list(usual)[-2:]  # weight and bias of the classes
    assert changed == {first, *last}


def test_odd_sizes() -> None:
    """U-Net gives a class for each pixel of an image of any size."""
    assert models.unet()(images(1, 37)).shape == (1, 2, 37, 37)
    assert models.unet(bilinear=True)(images(1, 37)).shape == (1, 2, 37, 37)


@pytest.mark.parametrize("weights", ["DEFAULT", "IMAGENET1K_V1", 3])
def test_weights_are_files(weights) -> None:
    rule = r"weights: must be the path of a local file, .*; nothing is downloaded: torch.save\("
    with pytest.raises(hl.ConfigError, match=rule):
        models.resnet18(weights=weights)


def test_a_norm_in_training_is_one_pass() -> None:
    """Its statistics come with the convolution; relu and the residual go with its one pass."""
    data = hl.DataModule.from_arrays(images(4), np.arange(4) % 3, batch_size=4, val=0)
    text = hl.plan(models.resnet18(num_classes=3), data, precision="32-true").text
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("cpu.")]
    forward = lines[: next(i for i, line in enumerate(lines) if "cross_entropy" in line)]
    passes = [
        line
        for line in forward
        if line.startswith("cpu.pointwise.")
        and re.search(r"-> .*float32\(4, \d\d?, \d\d?, (64|128|256|512)\)", line)
        and "avgpool" not in line
    ]
    made = [line for line in forward if "{x, mean_rows(x), var_rows(x)}" in line]
    assert not [line for line in lines if ".moments." in line]
    assert len(made) == 20
    # A norm beside which another is added takes that one's pass with it.
    assert len(passes) == 17
