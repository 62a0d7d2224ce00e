"""Targets that a loss cannot take, or would take for something else, are refused or said."""

import warnings

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from train.recipes import quiet

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 3)).astype(np.float32)
IMAGES = RNG.standard_normal((12, 3, 8, 6)).astype(np.float32)
MASKS = RNG.integers(0, 2, (12, 8, 6))
IDS = RNG.integers(0, 4, (12, 8, 6))
ONE_HOT = np.eye(4, dtype=np.float32)[IDS]


def train(model, X, y, loss="auto", **fields):
    return hl.train(model, (X, y), quiet(max_epochs=1, loss=loss, **fields))


@pytest.mark.parametrize(
    ("model", "data", "loss", "words"),
    [
        (
            nn.Conv2d(3, 1, 1),
            (IMAGES, (MASKS * 255).astype("f4")),
            "bce",
            r"between 0 and 1, got 255 in row \d+, index \(\d, \d\); of a mask .* \(y > 127\)",
        ),
        (
            nn.Sequential(nn.Conv2d(3, 1, 1), nn.Sigmoid()),
            (IMAGES, (MASKS * 255).astype("f4")),
            nn.BCELoss(),
            "BCELoss must be between 0 and 1, got 255",
        ),
        (nn.Linear(3, 1), (X, np.full(60, 2.0)), "bce", "got 2 in row 0"),
        (
            nn.Linear(3, 1),
            (X, np.sign(X[:, 0])),
            nn.BCEWithLogitsLoss(),
            r"got -1 in .*write \(y > 0\)\.astype\(int\)",
        ),
        (nn.Linear(3, 3), (X, 9 * X), "cross_entropy", "cross_entropy must be between 0 and 1"),
        (
            nn.Linear(3, 3),
            (X, 255 * np.eye(3)[np.arange(60) % 3]),
            nn.CrossEntropyLoss(),
            "CrossEntropyLoss must be between 0 and 1, got 255 in row 0, column 0",
        ),
        (nn.Linear(3, 3), (X, 9 * X), "multilabel_soft_margin", "between 0 and 1"),
        (nn.Linear(3, 1), (X, -np.arange(60.0)), "poisson_nll", "at least 0, got -1 in row 1"),
        (nn.Linear(3, 1), (X, -np.arange(60.0)), nn.PoissonNLLLoss(), "at least 0, got -1"),
        (nn.Linear(3, 3), (X, -np.abs(X)), "kl_div", "at least 0"),
        (nn.Linear(3, 1), (X, np.full(60, 2.0)), {"a": "bce", "b": "mse"}, "between 0 and 1"),
    ],
)
def test_targets_of_losses_of_probabilities_and_counts(model, data, loss, words) -> None:
    with pytest.raises(hl.DataError, match=f"^y: targets of the loss .*{words}"):
        train(model, *data, loss)
    good = np.full_like(data[1], 0.5)
    with pytest.raises(hl.DataError, match=r"^val y: targets of the loss"):
        hl.train(
            model,
            hl.DataModule.from_arrays(data[0], good, val=data),
            quiet(max_epochs=1, loss=loss),
        )
    result = train(model, data[0], good, loss)
    with pytest.raises(hl.DataError, match=r"^y: targets of the loss"):
        hl.evaluate(result, data)


def test_logarithms_may_be_negative() -> None:
    train(nn.Linear(3, 3), X, -np.abs(X), nn.KLDivLoss(log_target=True, reduction="batchmean"))


def test_the_softmax_that_nll_needs_is_missed() -> None:
    with pytest.warns(hl.ModelWarning, match=r"nll_loss takes logarithms.*'cross_entropy'"):
        train(nn.Linear(3, 3), X, np.arange(60) % 3, "nll")
    with pytest.warns(hl.ModelWarning, match=r"NLLLoss takes logarithms"):
        train(nn.Linear(3, 3), X, np.arange(60) % 3, nn.NLLLoss())

    class Sure(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return hl.log(nn.functional.softmax(self.layer(x), 1) + 1e-6)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(nn.Sequential(nn.Linear(3, 3), nn.LogSoftmax(1)), X, np.arange(60) % 3, "nll")
        train(Sure(), X, np.arange(60) % 3, "nll")


@pytest.mark.parametrize("loss", ["auto", "mse", "cross_entropy", nn.MSELoss(), nn.L1Loss()])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_channels_last_is_no_other_shape_of_channels_first(loss, dtype) -> None:
    """They have as many numbers, and others beside each other."""
    with pytest.raises(hl.ShapeError, match=r"y\.argmax\(-1\); of values .*np\.moveaxis\(y, -1, 1"):
        train(nn.Conv2d(3, 4, 1), IMAGES, ONE_HOT.astype(dtype), loss)


def test_dims_that_were_flattened_are_another_shape() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(144, 144))
    result = train(flat, IMAGES, IMAGES)
    want = train(flat.reset(), IMAGES, IMAGES.reshape(12, 144))
    assert result.history["loss"] == want.history["loss"]
    other = nn.Sequential(nn.Flatten(), nn.Linear(144, 144), nn.Unflatten(1, (6, 8, 3)))
    with pytest.raises(hl.ShapeError, match=r"must have the output's shape \(12, 6, 8, 3\)"):
        train(other, IMAGES, IMAGES)


@pytest.mark.parametrize("loss", ["auto", "cross_entropy", nn.CrossEntropyLoss()])
def test_float_maps_of_class_ids(loss) -> None:
    error = hl.ConfigError if isinstance(loss, nn.Module) else hl.ShapeError
    with pytest.raises(error, match=r"\.astype\(int\)"):
        train(nn.Conv2d(3, 4, 1), IMAGES, IDS.astype(np.float32), loss)


@pytest.mark.parametrize(("axis", "shown"), [(1, "1"), (-1, "-1")])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_one_hot_maps_are_said_to_be(axis, shown, dtype) -> None:
    y = np.moveaxis(ONE_HOT, -1, axis).astype(dtype)
    with pytest.warns(hl.DataWarning, match=rf"every position .* y\.argmax\({shown}\)"):
        hl.DataModule.from_arrays(IMAGES, y)


def test_more_names_than_outputs() -> None:
    y = np.array(list("abcde"))[np.arange(60) % 5]
    with pytest.raises(hl.DataError, match=r"each of the 5 classes \['a'.* for 3 and 'd' in row 3"):
        train(nn.Linear(3, 3), X, y)


NAMES = np.array(["ant", "bee", "cat"])
CLASSES = np.arange(60) % 3
SOME = CLASSES > 0


def test_names_for_a_model_of_ids(tmp_path) -> None:
    result = train(nn.Linear(3, 3), X, CLASSES)
    result.save(tmp_path / "m.safetensors")
    for model in (result, result.model, hl.load(tmp_path / "m.safetensors")):
        hl.evaluate(model, (X[SOME], CLASSES[SOME]))
        with pytest.raises(hl.DataError, match=r"must be class ids as in .* \['bee', 'cat'\]"):
            hl.evaluate(model, (X[SOME], NAMES[CLASSES[SOME]]))
    both = train(nn.Linear(3, 3), X, CLASSES > 0)
    hl.evaluate(both, (X, (CLASSES > 0).astype(int)))


def test_classes_that_are_numbered_anew_are_said_to_be() -> None:
    ids = train(nn.Linear(3, 3), X, CLASSES)
    with pytest.warns(hl.ModelWarning, match="trained on class ids without names and goes on"):
        train(ids.model, X[SOME], NAMES[CLASSES[SOME]])
    named = train(nn.Linear(3, 3), X, NAMES[CLASSES])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(named.model, X, NAMES[CLASSES])
        data = hl.DataModule.from_arrays(X[SOME], NAMES[CLASSES[SOME]], classes=list(NAMES))
        hl.train(named.model, data, quiet(max_epochs=1))
    with pytest.warns(hl.ModelWarning, match=r"classes=\['ant', 'bee', 'cat'\] where the data"):
        train(named.model, X[SOME], NAMES[CLASSES[SOME]])


def test_pixels_for_a_model_of_floats(tmp_path) -> None:
    pixels = RNG.integers(0, 256, (60, 3)).astype(np.uint8)
    floats = (pixels / 255).astype(np.float32)
    result = train(nn.Linear(3, 3), floats, CLASSES)
    result.save(tmp_path / "m.safetensors")
    for model in (result, hl.load(tmp_path / "m.safetensors")):
        for call in (
            lambda model=model: hl.predict(model, pixels),
            lambda model=model: hl.evaluate(model, (pixels, CLASSES)),
            lambda model=model: getattr(model, "model", model)(pixels),
        ):
            with pytest.warns(hl.DataWarning, match=r"x was not uint8 in training.*/ 255$") as seen:
                call()
            assert len(seen) == 1
    result = train(nn.Linear(3, 3), pixels, CLASSES)
    with pytest.warns(hl.DataWarning, match="x was uint8 in training, got float32 of at most 1"):
        hl.predict(result, floats)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hl.predict(result, pixels)
        hl.predict(result, pixels.astype(np.float32))
        hl.predict(result, pixels.astype(np.int64))
