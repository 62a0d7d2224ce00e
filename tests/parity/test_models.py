"""The zoo against its origins: the same names, and the same logits from the same weights."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

import hotloop as hl  # noqa: E402
from hotloop import models  # noqa: E402
from models.small import CONVOLUTIONAL  # noqa: E402
from parity import zoo  # noqa: E402

# Name, origin, the side of images that the test takes.
OF_TORCHVISION = [
    ("resnet18", 64), ("resnet34", 64), ("resnet50", 64), ("resnet101", 64),
    ("efficientnet_b0", 64), ("mobilenet_v3_large", 64), ("mobilenet_v3_small", 64),
]  # fmt: skip
OF_TIMM = [
    ("convnext_tiny", 64), ("convnext_small", 64), ("convnext_base", 64),
    ("vit_tiny_patch16_224", 224),
]  # fmt: skip


OF_FILES: list[tuple[str, int, dict[str, Any]]] = [
    ("resnet_cifar", 32, {}), ("resnet_cifar", 32, {"depth": 8, "num_classes": 3}),
    ("unet", 37, {}), ("unet", 32, {"bilinear": True, "num_classes": 3}),
]  # fmt: skip


def twin_of(name: str, **options: Any) -> Any:
    if name in ("resnet_cifar", "unet"):
        return (zoo.make_cifar if name == "resnet_cifar" else zoo.make_unet)(**options)
    if name.startswith(("convnext", "vit")):
        return zoo.take_timm().create_model(name, **options)
    return getattr(zoo.take_torchvision().models, name)(**options)


@pytest.mark.parametrize(
    ("name", "side", "options"), [*((*one, {}) for one in OF_TORCHVISION + OF_TIMM), *OF_FILES]
)
def test_logits(name: str, side: int, options: dict[str, Any]) -> None:
    """In evaluation, from weights that give logits of the size of 1."""
    model, twin = getattr(models, name)(**options), twin_of(name, **options).eval()
    state = zoo.random_state(twin)
    assert list(model.state_dict()) == list(state)
    twin.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    model.load_state_dict(state)
    x = np.random.default_rng(1).standard_normal((2, 3, side, side)).astype("float32")
    with torch.no_grad():
        want = twin(torch.from_numpy(x)).numpy()
    got = model(x)
    scale = abs(want).max()
    assert scale > 1e-2
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * scale)


@pytest.mark.parametrize("name", ["resnet18", "convnext_tiny"])
def test_files(name: str, tmp_path: Path) -> None:
    """safetensors, both formats of torch.save, entries of a dict, prefixes, another head."""
    from safetensors.torch import save_file

    make: Callable[..., Any] = getattr(models, name)
    twin = twin_of(name)
    state = twin.state_dict()
    paths = {kind: tmp_path / f"a.{kind}" for kind in ("safetensors", "pth", "bin", "pt")}
    save_file(state, paths["safetensors"])
    torch.save(state, paths["pth"])
    torch.save(state, paths["bin"], _use_new_zipfile_serialization=False)
    torch.save({"epoch": 3, "model": {f"module.{k}": v for k, v in state.items()}}, paths["pt"])
    for kind, path in paths.items():
        model = make(weights=path, strip_prefix="module." if kind == "pt" else "")
        for key, value in model.state_dict().items():
            np.testing.assert_array_equal(value, state[key].numpy(), key)
    with pytest.raises(ValueError, match=r"replace_head=True keeps the head"):
        make(num_classes=7, weights=paths["pth"])
    model = make(num_classes=7, weights=paths["pth"], replace_head=True)
    np.testing.assert_array_equal(next(iter(model.state_dict().values())),
                                  next(iter(state.values())).numpy())  # fmt: skip
    with pytest.raises(ValueError, match=r"(conv1|stem\.0)\.weight must be"):
        make(in_channels=1, weights=paths["pth"])


def test_training_of_one_step_follows_torch() -> None:
    """ResNet-18's loss and gradients on a batch, in training mode."""
    from parity.twins import check_twins

    twin = twin_of("resnet18", num_classes=5)
    state = zoo.random_state(twin)
    twin.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    model = models.resnet18(num_classes=5)
    model.load_state_dict(state)
    x = np.random.default_rng(1).standard_normal((4, 3, 32, 32))
    check_twins(model, model, twin, twin, [x], training=True, rtol=1e-7)


def test_documented_work() -> None:
    """Parameters and multiply-adds of each docstring are those of the plan."""
    for name in CONVOLUTIONAL:
        make = getattr(models, name)
        text = make.__doc__ or ""
        found = re.search(r"([\d,]+) parameters", text)
        assert found, name
        model = make()
        assert sum(p.numel() for p in model.parameters()) == int(found[1].replace(",", "")), name


def test_no_download() -> None:
    with pytest.raises(hl.errors.ConfigError, match="nothing is downloaded"):
        models.resnet18(weights="IMAGENET1K_V1")
    with pytest.raises(ValueError, match="goes with weights="):
        models.resnet18(replace_head=True)
