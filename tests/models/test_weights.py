"""Weights from files into models of the zoo: names, heads, prefixes, and what does not fit."""

from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import models
from hotloop.errors import ConfigError, ShapeError

HEADS = {"resnet_cifar": "linear", "mobilenet_v3_small": "classifier.3"}


def make(name: str, **options: Any) -> hl.nn.Module:
    return getattr(models, name)(**options)


def write(path: Path, name: str, prefix: str = "") -> dict[str, np.ndarray]:
    """A file of other values than a new model has."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(3)
    state = {
        key: np.asarray(rng.standard_normal(value.shape) * 0.1, value.dtype)
        for key, value in make(name).state_dict().items()
    }
    save_file({prefix + key: value for key, value in state.items()}, path)
    return state


@pytest.mark.parametrize("name", HEADS)
def test_all_of_a_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    state = write(path, name, "module.")
    model = make(name, weights=path, strip_prefix="module.")
    assert list(model.state_dict()) == list(state)
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(value, state[key], key)


@pytest.mark.parametrize("name", HEADS)
def test_another_head(name: str, tmp_path: Path) -> None:
    """The head is new, as a model without weights has it; all else is the file's."""
    path, head = tmp_path / "a.safetensors", HEADS[name] + "."
    state = write(path, name)
    for num_classes in (7, None):  # another number of classes, and the same
        options = {} if num_classes is None else {"num_classes": num_classes}
        hl.manual_seed(0)
        new = make(name, **options).state_dict()
        hl.manual_seed(0)
        model = make(name, weights=path, replace_head=True, **options)
        for key, value in model.state_dict().items():
            want = new if key.startswith(head) else state
            np.testing.assert_array_equal(value, want[key], key)


def test_a_file_may_lack_the_head(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "a.safetensors"
    state = {k: v for k, v in write(path, "resnet_cifar").items() if not k.startswith("linear.")}
    save_file(state, path)
    model = make("resnet_cifar", weights=path, replace_head=True)
    np.testing.assert_array_equal(model.state_dict()["conv1.weight"], state["conv1.weight"])
    with pytest.raises(ConfigError, match=r"missing keys: linear\.weight.*replace_head=True"):
        make("resnet_cifar", weights=path)


def test_what_does_not_fit(tmp_path: Path) -> None:
    """Each value is named; the head's remedy is said where the head is what does not fit."""
    path = tmp_path / "a.safetensors"
    write(path, "resnet_cifar")
    with pytest.raises(ShapeError, match=r"linear\.weight must be \(7, 64\).*replace_head=True"):
        make("resnet_cifar", num_classes=7, weights=path)
    with pytest.raises(ShapeError, match=r"conv1\.weight must be \(16, 1, 3, 3\)") as caught:
        make("resnet_cifar", in_channels=1, weights=path)
    assert "replace_head" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"got unexpected keys: .* and 31 more of 36$"):
        make("resnet_cifar", depth=14, weights=path)
    write(path, "resnet_cifar", "module.")
    with pytest.raises(
        ConfigError, match=r"strip_prefix='module\.'; missing keys: .*unexpected keys: .* of \d+$"
    ):
        make("resnet_cifar", weights=path)


def test_options_of_no_file() -> None:
    for options in ({"replace_head": True}, {"strip_prefix": "module."}):
        with pytest.raises(ConfigError, match="goes with weights="):
            make("resnet_cifar", **options)


def test_other_models_files(tmp_path: Path) -> None:
    """The fix comes first or last, a few names stand for all, and none is guessed."""
    from safetensors.numpy import save_file

    path = tmp_path / "a.safetensors"
    write(path, "resnet_cifar", "module.")
    with pytest.raises(ConfigError) as caught:
        make("resnet_cifar", weights=path)
    message = str(caught.value)
    assert message.startswith(
        "load_state_dict: the state must fit CifarResNet, got names that begin with 'module.': "
        "write strip_prefix='module.'; missing keys: conv1.weight, "
    )
    assert len(message) < 600
    save_file({f"features.{i}.weight": np.ones(2, np.float32) for i in range(90)}, path)
    with pytest.raises(
        ConfigError, match=r"of which none is this model's.*; timm's names are"
    ) as e:
        models.convnext_tiny(weights=path)
    assert len(str(e.value)) < 600
    assert "did you mean" not in str(e.value)


def test_a_dict_is_no_file() -> None:
    state = make("resnet_cifar").state_dict()
    with pytest.raises(
        ConfigError, match=r"got a dict of \d+ values; .*model.load_state_dict\(v"
    ) as e:
        make("resnet_cifar", weights=state)
    assert len(str(e.value)) < 200
    with pytest.raises(ConfigError, match="path of a local file") as e:
        make("resnet_cifar", weights=state["conv1.weight"])
    assert len(str(e.value)) < 300


@pytest.mark.parametrize("channels", [1, 4])
def test_images_of_other_channels(channels: int, tmp_path: Path) -> None:
    """The message's recipe is run: sums over the channels stay what they were."""
    path = tmp_path / "a.safetensors"
    old = write(path, "resnet_cifar")["conv1.weight"]
    with pytest.raises(ShapeError) as caught:
        make("resnet_cifar", in_channels=channels, weights=path)
    recipe = str(caught.value).split("spread the file's channels: ")[1]
    names = {"hl": hl, "path": path, "model": make("resnet_cifar", in_channels=channels)}
    exec(recipe, names)
    new = names["model"].conv1.weight.numpy()
    np.testing.assert_allclose(new.sum(1), old.sum(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["resnet18", "convnext_tiny", "unet", "mobilenet_v3_small"])
def test_sizes_of_a_model(name: str) -> None:
    for setting in ("in_channels", "num_classes"):
        with pytest.raises(ConfigError, match=rf": {setting} must be an integer, at least 1"):
            make(name, **{setting: 0})


def test_two_values_of_one_name(tmp_path: Path) -> None:
    layer = hl.nn.Linear(3, 2)
    state = {"module.weight": np.ones((2, 3)), "weight": np.zeros((2, 3)), "bias": np.ones(2)}
    with pytest.raises(
        ConfigError, match=r"^strip_prefix: names must differ .*'module.weight' and"
    ):
        layer.load_state_dict(state, strip_prefix="module.")


def test_values_that_are_no_numbers() -> None:
    layer = hl.nn.Linear(3, 2)
    for value, given in (("abc", "str"), (None, "NoneType"), (np.ones((2, 3), complex), "dtype c")):
        with pytest.raises(ConfigError, match=f"^load_state_dict: weight must be .*got {given}"):
            layer.load_state_dict({"weight": value, "bias": np.ones(2)})
