"""``predict(tta=...)``: the mean over mirrored and turned images, by hand, and what it refuses."""

from __future__ import annotations

from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from train.recipes import quiet

N = 40
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (N, 3, 12, 12)).astype(np.uint8)
LABELS = np.array(["cat", "dog", "owl"])[RNG.integers(0, 3, N)]


def make_net(outputs: int = 3) -> nn.Module:
    """One that sees where left and up are."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(200, outputs)
    )


class Pixels(nn.Module):
    """A class for each pixel, by what is left of it and above."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, classes, 3)

    def forward(self, x: Any) -> Any:
        return self.conv(nn.functional.pad(x, (2, 0, 2, 0)))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    made = make_net()
    X = IMAGES.astype(np.float32) / 255
    hl.train(made, (X, LABELS), quiet(max_epochs=3, lr=1e-2))
    return made


X = IMAGES.astype(np.float32) / 255
# Each view by NumPy's own words, and the way back for pixels.
QUARTERS = [(lambda a, k=k: np.rot90(a, k, (2, 3)), lambda a, k=k: np.rot90(a, -k, (2, 3)))
            for k in range(4)]  # fmt: skip
MIRRORED = [(lambda a, k=k: np.rot90(a, k, (2, 3))[..., ::-1],
             lambda a, k=k: np.rot90(a[..., ::-1], -k, (2, 3))) for k in range(4)]  # fmt: skip
SAME = (lambda a: a, lambda a: a)
LEFT_RIGHT = (lambda a: a[:, :, :, ::-1],) * 2
UP_DOWN = (lambda a: a[:, :, ::-1],) * 2
BY_HAND = {
    "hflip": [SAME, LEFT_RIGHT],
    "vflip": [SAME, UP_DOWN],
    "flips": [SAME, LEFT_RIGHT, UP_DOWN, QUARTERS[2]],
    "d4": QUARTERS + MIRRORED,
}


@pytest.mark.parametrize("name", list(BY_HAND))
def test_the_mean_over_views(net: nn.Module, name: str) -> None:
    """Of probabilities, of outputs, and the labels of the former; in batches too."""
    shown = [np.ascontiguousarray(show(X)) for show, _ in BY_HAND[name]]
    assert len({one.tobytes() for one in shown}) == len(shown)
    proba = np.mean([hl.predict(net, one, proba=True) for one in shown], axis=0)
    outputs = np.mean([hl.predict(net, one) for one in shown], axis=0)
    found = hl.predict(net, X, proba=True, tta=name)
    np.testing.assert_allclose(found, proba, atol=1e-6)
    np.testing.assert_allclose(hl.predict(net, X, tta=name), outputs, atol=1e-5)
    np.testing.assert_allclose(hl.predict(net, X, 7, proba=True, tta=name), proba, atol=1e-6)
    assert abs(found - hl.predict(net, X, proba=True)).max() > 1e-3
    labels = hl.predict(net, X, labels=True, tta=name)
    np.testing.assert_array_equal(labels, np.array(["cat", "dog", "owl"])[proba.argmax(1)])
    np.testing.assert_allclose(found, hl.predict(net, show_all(X, name), proba=True, tta=name),
                               atol=1e-6)  # fmt: skip


def show_all(images: np.ndarray, name: str) -> np.ndarray:
    """The images in the last of the views, of which the mean is the same."""
    return np.ascontiguousarray(BY_HAND[name][-1][0](images))


@pytest.mark.parametrize("name", list(BY_HAND))
def test_pixels_go_the_way_back(name: str) -> None:
    model = Pixels()
    masks = (IMAGES[:, 0] > 128).astype(np.int64)
    hl.train(model, (X, masks), quiet(max_epochs=1, lr=1e-2))
    views = BY_HAND[name]
    proba = np.mean(
        [back(hl.predict(model, np.ascontiguousarray(show(X)), proba=True))
         for show, back in views], axis=0,
    )  # fmt: skip
    np.testing.assert_allclose(hl.predict(model, X, proba=True, tta=name), proba, atol=1e-6)
    np.testing.assert_array_equal(hl.predict(model, X, labels=True, tta=name), proba.argmax(1))


def test_one_output_of_two_classes_is_cut_at_a_half() -> None:
    model = make_net(1)
    y = (X.mean((1, 2, 3)) > np.median(X.mean((1, 2, 3)))).astype(int)
    hl.train(model, (X, y), quiet(max_epochs=40, lr=1e-2))
    proba = hl.predict(model, X, proba=True, tta="hflip")
    labels = hl.predict(model, X, labels=True, tta="hflip")
    np.testing.assert_array_equal(labels, (proba[:, 0] > 0.5).astype(int))
    assert 0 < labels.sum() < N


def test_images_beside_numbers() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net()

        def forward(self, x: Any, age: Any) -> Any:
            return self.net(x) + age

    age = RNG.random((N, 3)).astype(np.float32)
    model = Both()
    want = (model(X, age) + model(np.ascontiguousarray(X[..., ::-1]), age)) / 2
    np.testing.assert_allclose(hl.predict(model, (X, age), tta="hflip"), want, atol=1e-5)


def test_of_files_and_folds() -> None:
    """What a DataModule streams, and predictions of a cross-validation."""
    X4, y = IMAGES, LABELS
    data = hl.DataModule.from_arrays(X4, y, test=10, batch_size=8)
    found = hl.cross_validate(make_net, data, quiet(max_epochs=1), 2, tta="flips")
    for k, result in enumerate(found.results):
        rows = found.rows[found.fold == k]
        own = hl.predict(result, X4[rows], proba=True, tta="flips")
        np.testing.assert_array_equal(found.predictions[found.fold == k], own)
        assert abs(own - hl.predict(result, X4[rows], proba=True)).max() > 1e-4
    labels = np.array(found.classes)[found.predictions.argmax(1)]
    np.testing.assert_array_equal(found.labels, labels)
    result = found.results[0]
    streamed = data.map(lambda x, y: (x, y))
    a = hl.predict(result, streamed, split="test", proba=True, tta="hflip")
    b = hl.predict(result, data, split="test", proba=True, tta="hflip")
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_saved_models(net: nn.Module, tmp_path: Any) -> None:
    hl.save(net, tmp_path / "net.safetensors")
    loaded = hl.load(tmp_path / "net.safetensors")
    np.testing.assert_allclose(
        loaded.predict(X, proba=True, tta="d4"),
        hl.predict(net, X, proba=True, tta="d4"),
        atol=1e-5,
    )


class Points(nn.Module):
    """Coordinates, which a mirror moves."""

    def forward(self, x: Any) -> Any:
        return x.mean((2, 3)).reshape(-1, 3, 1).expand(-1, 3, 2)


class Chosen(nn.Module):
    """Integers."""

    def forward(self, x: Any) -> Any:
        return x.mean((2, 3)).argmax(1)


def test_what_has_no_mean_over_views(net: nn.Module) -> None:
    wide = np.ascontiguousarray(X[:, :, :6])
    for model, data, name, error, words in [
        (net, X, "mirror", hl.ConfigError, "tta: must be one of 'hflip', 'vflip', 'flips', 'd4'"),
        (net, X, True, hl.ConfigError, "tta: must be one of"),
        (nn.Linear(4, 2), np.ones((3, 4)), "hflip", hl.ShapeError,
         r"tta: the data must be images .* got \(3, 4\)"),
        (nn.Conv2d(3, 2, 1), wide, "d4", hl.ShapeError,
         "tta: 'd4' turns images, which must be square, got 6 x 12; write 'flips'"),
        (Points(), X, "hflip", hl.ShapeError,
         r"tta: outputs must be of whole images.* 12 and 12, got shape \(40, 3, 2\)"),
        (nn.Conv2d(3, 2, 3), X, "hflip", hl.ShapeError, r"got shape \(40, 2, 10, 10\)"),
        (Chosen(), X, "hflip", hl.ShapeError, "tta: outputs must be floats, .* got int64"),
    ]:  # fmt: skip
        with pytest.raises(error, match=words):
            hl.predict(model, data, tta=name)
    with pytest.raises(hl.ConfigError, match="labels=True needs a model trained as a classifier"):
        hl.predict(nn.Conv2d(3, 2, 1), X, labels=True, tta="hflip")
