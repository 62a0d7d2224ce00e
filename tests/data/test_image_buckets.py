"""Images of several shapes in buckets: which shape each gets, and what is done with the batches."""

import math
from pathlib import Path

import hotloop as hl
import numpy as np
import pytest
from hotloop import DataModule, nn
from hotloop.data.images.buckets import find_ratios, nearest_shape, read_shapes
from needs import take_library
from train.recipes import quiet

Image = take_library("PIL.Image")
SIZES = [(40, 40), (40, 60), (60, 40), (44, 40), (30, 20)]
SHAPES = [(32, 32), (32, 48), (48, 32)]


def picture(number: int) -> np.ndarray:
    height, width = SIZES[number % len(SIZES)]
    rng = np.random.default_rng(number)
    levels = rng.integers(0, 60, (height, width, 3)) + 150 * (number % 2)
    return levels.astype(np.uint8)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    top = tmp_path_factory.mktemp("shapes")
    for kind, name in enumerate(["dark", "light"]):
        (top / name).mkdir()
        for i in range(20):
            Image.fromarray(picture(2 * i + kind)).save(top / name / f"{i:02}.png")
    return top


def shapes_of(batches) -> list[tuple[int, ...]]:
    return sorted(batch["x"].shape[2:] for batch in batches)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 2),
    )  # fmt: skip


def expected(number: int) -> tuple[int, int]:
    """Of a file, by what it shows."""
    ratio = SIZES[number % len(SIZES)][1] / SIZES[number % len(SIZES)][0]
    return min(SHAPES, key=lambda shape: abs(math.log(shape[1] / shape[0] / ratio)))


def numbers(rows) -> list[int]:
    """Of pictures, by row: 20 dark ones (even), 20 light ones."""
    return [2 * (row % 20) + row // 20 for row in rows]


def test_each_image_goes_to_the_nearest_shape(root: Path) -> None:
    data = DataModule.from_image_folder(
        root, SHAPES, batch_size=4, augment="none", normalize=None, fit="squash"
    )
    seen = []
    for batch in data.train_batches(0):
        for image in batch["x"]:
            for number in range(40):
                resized = Image.fromarray(picture(number)).resize(image.shape[:0:-1], 2)
                if np.abs(np.asarray(resized, int).transpose(2, 0, 1) - image).max() <= 1:
                    assert image.shape[1:] == expected(number)
                    seen.append(number)
    assert sorted(seen) == list(range(40))


def test_training_evaluation_and_prediction(root: Path) -> None:
    data = DataModule.from_image_folder(root, SHAPES, val=0.25, batch_size=4, augment="none")
    result = hl.train(net(), data, quiet(max_epochs=20, lr=0.02, metrics=["accuracy"]))
    assert result.history["val_accuracy"][-1] == 1.0
    labels = hl.predict(result.model, data, labels=True)
    assert list(labels) == list(data.arrays("val")[1])
    assert hl.evaluate(result.model, data, split="val")["accuracy"] == 1.0
    images = data.arrays("val")[0]
    assert [image.shape[1:] for image in images] == [expected(n) for n in numbers(data.rows("val"))]
    alone = [hl.predict(result.model, image[None])[0] for image in images]
    np.testing.assert_allclose(hl.predict(result.model, data), alone, rtol=1e-5, atol=1e-6)


def test_outputs_of_several_shapes_are_refused(root: Path) -> None:
    data = DataModule.from_image_folder(root, SHAPES, val=0.25, augment="none")
    model = nn.Conv2d(3, 1, 1)
    with pytest.raises(hl.DataError, match=r"outputs must have one shape in all buckets"):
        hl.predict(model, data)


def test_any_number_of_threads_makes_the_same_batches(root: Path) -> None:
    made = []
    for workers in (1, 2, 5):
        data = DataModule.from_image_folder(
            root, SHAPES, batch_size=3, augment="strong", num_workers=workers
        )
        hl.manual_seed(0)
        result = hl.train(net(), data, quiet(max_epochs=2))
        made.append([p.numpy() for p in result.model.parameters()])
    for other in made[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(made[0], other, strict=True))


def test_folds_and_subsets(root: Path) -> None:
    data = DataModule.from_image_folder(root, SHAPES, batch_size=4)
    for of in (data.fold(0, 4), data.subset(0.5)):
        got = [shape for b in of.train_batches(0) for shape in [b["x"].shape[2:]] * len(b["x"])]
        assert sorted(got) == sorted(expected(n) for n in numbers(of.rows("train")))
    balanced = DataModule.from_image_folder(root, SHAPES, batch_size=4, sampler="balanced")
    assert sum(len(batch["x"]) for batch in balanced.train_batches(0)) == 40


def test_automatic_shapes(root: Path) -> None:
    data = DataModule.from_image_folder(root, 32, buckets="auto", batch_size=4, augment="none")
    shapes = set(shapes_of(data.train_batches(0)))
    assert (32, 32) in shapes
    assert len(shapes) >= 3
    assert all(min(shape) == 32 for shape in shapes)
    assert "32 x 32: " in data.describe()


def test_automatic_shapes_have_a_batch_each() -> None:
    ratios = np.log(np.r_[np.full(100, 1.0), np.full(50, 1.5), np.full(3, 0.6)])
    shapes = read_shapes(224, "auto", ratios, 32)
    assert shapes == [(224, 320), (224, 224)] or shapes == [(224, 352), (224, 224)]
    counts = np.bincount(nearest_shape(shapes, ratios))
    assert counts.tolist() == [50, 103]
    many = np.log(np.random.default_rng(0).uniform(0.5, 2.0, 5000))
    assert len(read_shapes(224, "auto", many, 8)) == 8
    assert read_shapes(224, "auto", np.zeros(3), 64) == [(224, 224)]


def test_orientation_counts(tmp_path: Path) -> None:
    image = Image.fromarray(picture(1))
    exif = Image.Exif()
    exif[0x0112] = 6
    for end in ("jpg", "png"):
        image.save(tmp_path / f"turned.{end}", exif=exif)
    image.save(tmp_path / "as_is.jpg")
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8\xff no")
    names = ("turned.jpg", "turned.png", "as_is.jpg", "bad.jpg")
    ratios = find_ratios([str(tmp_path / name) for name in names])
    np.testing.assert_allclose(ratios, [math.log(40 / 60), math.log(40 / 60), math.log(1.5), 0.0])


def test_what_needs_one_shape_is_refused(root: Path) -> None:
    data = DataModule.from_image_folder(root, SHAPES)
    with pytest.raises(hl.ConfigError, match=r"source: images of several shapes make no episodes"):
        DataModule.episodes(data, 1, 1, n=10)
    with pytest.raises(hl.ConfigError, match=r"map: images of several shapes cannot be mapped"):
        data.map(lambda x, y: (x, y))


def test_a_cache_on_disk_serves_all_shapes(root: Path, tmp_path: Path) -> None:
    def shown(**options):
        data = DataModule.from_image_folder(root, SHAPES, batch_size=4, augment="none", **options)
        return data, list(data.train_batches(0))

    data, stored = shown(cache="disk", cache_dir=tmp_path, cache_size=60)
    assert "40 images" in data.describe()
    for a, b in zip(stored, shown()[1], strict=True):
        np.testing.assert_array_equal(a["x"], b["x"])


def test_bad_files_are_counted_in_their_bucket(root: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for i in range(10):
        Image.fromarray(picture(i)).save(tmp_path / "a" / f"{i}.png")
    (tmp_path / "a" / "5.png").write_bytes(b"\x89PNG no")
    data = DataModule.from_image_folder(
        tmp_path, SHAPES, on_bad_sample="skip", max_bad_share=0.5, batch_size=4
    )
    weights = [w for batch in data.train_batches(0) for w in batch["weight"]]
    assert sorted(weights) == [0] + [1] * 9
    assert list(data.bad_samples["train"]) == [5]


@pytest.mark.parametrize(
    ("size", "buckets", "words"),
    [
        (SHAPES, "auto", r"buckets: size has the shapes already"),
        (32, 3, r"buckets: must be 'auto' or None"),
        ((32, 40), "auto", r"size: must be the shorter side in pixels"),
        ([(32, 32), (32, 32)], None, r"size: must have each shape once"),
        ([(32, 32), (32, 0)], None, r"size"),
        ([(32, 32), (32, "a")], None, r"size: must be \(height, width\) of each bucket"),
        ([(32, 32), (32,)], None, r"size: must be \(height, width\) of each bucket"),
    ],
)
def test_wrong_shapes_are_named(root: Path, size, buckets, words) -> None:
    with pytest.raises(hl.ConfigError, match=words):
        DataModule.from_image_folder(root, size, buckets=buckets)


def test_a_model_of_one_shape_is_refused(root: Path) -> None:
    data = DataModule.from_image_folder(root, SHAPES, batch_size=4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2))
    with pytest.raises(hl.ShapeError):
        hl.train(model, data, quiet(max_epochs=1))
