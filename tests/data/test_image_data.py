"""Image files as a DataModule: what a batch has, splits, bad files, prediction, memory."""

import os
import shutil
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import DataModule, nn
from hotloop.data.images.sources import describe_decoder
from hotloop.errors import ConfigError, DataError, DataWarning
from needs import is_flat, take_library
from train.recipes import quiet

Image = take_library("PIL.Image")
CLASSES = ("cat", "dog", "emu")


def picture(kind: int, number: int, size: tuple[int, int] = (40, 48)) -> np.ndarray:
    """A smooth image, whose colour tells its class."""
    rng = np.random.default_rng(100 * kind + number)
    y, x = np.mgrid[: size[0], : size[1]]
    waves = np.sin(x / 7 + rng.random() * 6) * np.cos(y / 9 + rng.random() * 6)
    planes = [90 + 20 * waves + 60 * (channel == kind) for channel in range(3)]
    return np.stack(planes, -1).astype(np.uint8)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 images of each of three classes, JPEG, and PNG of the first."""
    top = tmp_path_factory.mktemp("images")
    for kind, name in enumerate(CLASSES):
        (top / name).mkdir()
        for i in range(20):
            end = "png" if i < 4 else "jpg"
            Image.fromarray(picture(kind, i)).save(top / name / f"{i:02}.{end}", quality=95)
    return top


@pytest.fixture
def copied(root: Path, tmp_path: Path) -> Path:
    """The same, to be damaged."""
    shutil.copytree(root, tmp_path / "images")
    return tmp_path / "images"


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 3),
    )  # fmt: skip


def weights(data: DataModule, **fields: Any) -> list[np.ndarray]:
    hl.manual_seed(0)
    result = hl.train(net(), data, quiet(max_epochs=2, precision="fp32", **fields))
    return [p.numpy() for p in result.model.parameters()]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# ---- what a batch has


def test_batches(root: Path) -> None:
    data = DataModule.from_image_folder(root, (32, 40), val=0.2, batch_size=16)
    assert data.classes == list(CLASSES)
    assert repr(data) == (
        "DataModule(train 48, val 12 rows; X uint8 (3, 32, 40); y of 3 classes; batch_size=16)"
    )
    assert data.class_counts() == [16, 16, 16]
    found = [batch for epoch in range(2) for batch in data.train_batches(epoch)]
    assert [batch["x"].shape for batch in found] == [(16, 3, 32, 40)] * 6
    assert found[0]["x"].dtype == np.float32
    for batch in found:  # the channel that is bright says the class
        assert (batch["x"].mean(axis=(2, 3)).argmax(1) == batch["y"]).all()
    again = [batch for epoch in range(2) for batch in data.train_batches(epoch)]
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(found, again))
    val = [next(iter(data.val_batches()))["x"] for _ in range(2)]
    np.testing.assert_array_equal(*val)


def test_without_augmentation_it_is_pillows_image(root: Path) -> None:
    data = DataModule.from_image_folder(
        root, (40, 48), augment="none", normalize=None, shuffle=False, batch_size=60
    )
    x = next(data.train_batches())["x"]
    for row, (kind, i) in enumerate((k, i) for k in range(3) for i in range(20)):
        end = "png" if i < 4 else "jpg"
        with Image.open(root / CLASSES[kind] / f"{i:02}.{end}") as image:
            want = np.asarray(image).transpose(2, 0, 1)
        assert np.abs(x[row] - want).max() <= 2  # levels: decoders of one family


@pytest.mark.parametrize("augment", ["none", "basic", "strong"])
def test_threads_make_the_same_bits(root: Path, augment: str) -> None:
    found = []
    for workers in (0, 1, 2, 5):
        data = DataModule.from_image_folder(
            root, 32, augment=augment, val=0.2, batch_size=16, num_workers=workers
        )
        found.append(weights(data))
    assert all(same(found[0], other) for other in found[1:])


def test_augmented_training_is_learned(root: Path) -> None:
    data = DataModule.from_image_folder(root, 32, val=0.25, batch_size=12)
    result = hl.train(net(), data, quiet(max_epochs=25, lr=2e-2))
    assert result.history["val_accuracy"][-1] > 0.9


def test_normalize(root: Path) -> None:
    options = {"augment": "none", "shuffle": False, "batch_size": 60}
    plain = DataModule.from_image_folder(root, 32, normalize=None, **options)
    levels = next(plain.train_batches())["x"]
    assert plain.transforms == []

    def transform(**how: Any) -> tuple[np.ndarray, np.ndarray]:
        made = DataModule.from_image_folder(root, 32, **options, **how).transforms
        return made[0][1]["x"]

    mean, std = transform()
    np.testing.assert_allclose(mean.ravel(), 255 * np.array([0.485, 0.456, 0.406]), rtol=1e-6)
    np.testing.assert_allclose(std.ravel(), 255 * np.array([0.229, 0.224, 0.225]), rtol=1e-6)
    mean, std = transform(normalize="standard")
    np.testing.assert_allclose(mean.ravel(), levels.mean(axis=(0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(std.ravel(), levels.std(axis=(0, 2, 3)), rtol=1e-4)
    mean, std = transform(normalize="scale")
    assert (mean.ravel().tolist(), std.ravel().tolist()) == ([0] * 3, [255] * 3)
    mean, std = transform(normalize=(0.5, [0.1, 0.2, 0.5]))
    np.testing.assert_allclose(std.ravel(), [25.5, 51, 127.5])
    grey = DataModule.from_image_folder(root, 32, channels="grey")
    assert grey.transforms[0][1]["x"][0].shape == (1, 1, 1)
    assert grey.example_batch()["x"] == ("float32", (60, 1, 32, 32))


def test_the_model_normalises_when_it_predicts(root: Path) -> None:
    data = DataModule.from_image_folder(root, 32, val=15, batch_size=16)
    trained = hl.train(net(), data, quiet(max_epochs=2)).model
    images, y = data.arrays("val")
    assert images.dtype == np.uint8
    by_array = hl.predict(trained, images)
    np.testing.assert_allclose(hl.predict(trained, data), by_array, rtol=1e-4, atol=1e-5)
    in_blocks = hl.predict(trained, data, batch_size=4, labels=True)
    np.testing.assert_array_equal(in_blocks, hl.predict(trained, images, labels=True))
    score = hl.evaluate(trained, data, split="val")
    assert score["accuracy"] == pytest.approx((in_blocks == y).mean())


# ---- splits


def test_splits_of_their_own(root: Path, tmp_path: Path) -> None:
    for name in CLASSES[:2]:
        shutil.copytree(root / name, tmp_path / name)
    data = DataModule.from_image_folder(root, 32, val=tmp_path, test=0.1)
    assert (len(data), data.split("val").n, data.split("test").n) == (54, 40, 6)
    assert sorted(set(data.arrays("val")[1])) == ["cat", "dog"]
    (tmp_path / "cow").mkdir()
    shutil.copy(root / "cat" / "00.png", tmp_path / "cow")
    with pytest.raises(DataError, match=r"val y: classes must be those of training, .* 'cow'"):
        DataModule.from_image_folder(root, 32, val=tmp_path)


def test_folds_and_sampling(root: Path) -> None:
    data = DataModule.from_image_folder(root, 32, batch_size=12)
    folds = data.folds(4)
    assert sorted(np.concatenate([fold.rows("val") for fold in folds])) == [*range(60)]
    for fold in folds:
        assert fold.class_counts() == [15, 15, 15]
        assert fold.transforms[0][0] == "standardize"
    groups = np.arange(60) // 6
    grouped = DataModule.from_image_folder(root, 32, val=0.2, groups=groups)
    assert not set(groups[grouped.rows("train")]) & set(groups[grouped.rows("val")])
    balanced = DataModule.from_image_folder(root, 32, sampler="balanced", samples_per_epoch=30)
    assert len(next(balanced.train_batches())["y"]) == 30


def test_a_table(root: Path, tmp_path: Path) -> None:
    lines = ["file,kind,age"]
    for kind in CLASSES:
        lines += [f"{kind}/{i:02}.jpg,{kind},{i}.5" for i in range(4, 20)]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(lines))
    data = DataModule.from_image_table(table, "file", "kind", 32, root=root, val=0.25)
    assert data.classes == list(CLASSES)
    assert (len(data), data.split("val").n) == (36, 12)
    ages = DataModule.from_image_table(table, "file", "age", 32, root=root)
    assert ages.target_kind == "float"
    assert ages.arrays("train")[1][:2].tolist() == [4.5, 5.5]
    unlabelled = DataModule.from_image_table(table, "file", size=32, root=root)
    assert unlabelled.target_kind == "none"
    with pytest.raises(ConfigError, match="groups: names a column of a data frame"):
        DataModule.from_image_table(table, "file", "kind", 32, root=root, groups="age")


# ---- bad files


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_file_ends_training(copied: Path, workers: int) -> None:
    bad = copied / "dog" / "07.jpg"
    bad.write_bytes(bad.read_bytes()[:300])
    data = DataModule.from_image_folder(copied, 32, batch_size=16, num_workers=workers)
    with pytest.raises(DataError, match=r"dog/07\.jpg"):
        weights(data)
    assert list(data.verify()["train"]) == [27]


@pytest.mark.parametrize("way", ["skip", "replace"])
def test_bad_files_are_left_out_or_replaced(copied: Path, way: str) -> None:
    for name in ("07.jpg", "08.jpg"):
        (copied / "dog" / name).write_bytes(b"no image")
    data = DataModule.from_image_folder(
        copied, 32, augment="none", on_bad_sample=way, max_bad_share=0.1, batch_size=20
    )
    with pytest.warns(DataWarning, match=r"2 bad samples of train .*dog/0[78]\.jpg"):
        got = weights(data)
    assert sorted(data.bad_samples["train"]) == [27, 28]
    (copied / "dog" / "07.jpg").unlink()
    (copied / "dog" / "08.jpg").unlink()
    if way == "skip":
        images, y = DataModule.from_image_folder(copied, 32, augment="none").arrays("train")
        images = np.insert(images, [27, 27], 0, axis=0)
        y = np.insert(y, [27, 27], "dog")
        weight = np.ones(60)
        weight[27:29] = 0
    else:
        images, y = DataModule.from_image_folder(copied, 32, augment="none").arrays("train")
        images = np.insert(images, [27, 27], images[27], axis=0)
        y = np.insert(y, [27, 27], y[27])
        weight = np.ones(60)
    mean, std = data.transforms[0][1]["x"]
    want = DataModule.from_arrays(
        (images - mean) / std, y, sample_weight=weight if way == "skip" else None, batch_size=20
    )
    for a, b in zip(got, weights(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_too_many_bad_files(copied: Path) -> None:
    for name in ("07.jpg", "08.jpg"):
        (copied / "dog" / name).write_bytes(b"no image")
    data = DataModule.from_image_folder(copied, 32, on_bad_sample="skip")
    for _ in range(2):  # and again, once they are known
        with pytest.raises(DataError, match=r"at most 1 of 60 files may be bad.*dog/0[78]\.jpg"):
            weights(data)


def test_a_file_that_goes_away(copied: Path) -> None:
    data = DataModule.from_image_folder(copied, 32, batch_size=16)
    weights(data)
    (copied / "emu" / "03.png").unlink()
    with pytest.raises(DataError, match=r"emu/03\.png"):
        weights(data)


def test_verify(copied: Path) -> None:
    bad, gone = copied / "dog" / "07.jpg", copied / "emu" / "19.jpg"
    bad.write_bytes(bad.read_bytes()[:300])
    data = DataModule.from_image_folder(copied, 32)
    gone.unlink()
    for workers in (1, 2):
        found = data.verify(workers)["train"]
        assert list(found) == [27, 59]
        assert str(bad) in found[27]
        assert "Premature end" in found[27] or "whole" in found[27] or "truncated" in found[27]
        assert str(gone) in found[59]
        assert "No such file" in found[59]


# ---- memory


def test_cache(root: Path) -> None:
    plain = weights(DataModule.from_image_folder(root, 32, batch_size=16))
    for limit in ("1GiB", 70_000):
        data = DataModule.from_image_folder(root, 32, batch_size=16, cache="ram", cache_limit=limit)
        got, again = weights(data), weights(data)
        assert same(got, again)
        if limit != "1GiB":  # files: decoded as without a cache
            assert same(got, plain)
    with pytest.raises(ConfigError, match="cache: must be"):
        DataModule.from_image_folder(root, 32, cache="cloud")


def test_memory_and_descriptors_stay_flat(root: Path) -> None:
    data = DataModule.from_image_folder(root, 32, batch_size=12, num_workers=2)
    weights(data)
    before = _facts()
    for _ in range(15):
        weights(data)
    after = _facts()
    assert is_flat(before[0], after[0], 4 << 20)
    assert after[1] <= before[1]


def _facts() -> tuple[int, int]:
    rss = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return rss, len(os.listdir("/proc/self/fd"))


# ---- wrong options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 0}, "size"),
        ({"channels": "cmyk"}, "channels: must be"),
        ({"augment": "wild"}, "augment: must be"),
        ({"normalize": "wild"}, "normalize: must be"),
        ({"normalize": (0.5, 0)}, r"normalize: the std must be above 0, got 0"),
        ({"normalize": ([0.5, 0.5], 1)}, r"normalize: the mean must be one number or one for each"),
        ({"fit": "wild"}, "fit: must be"),
        ({"on_bad_sample": "wild"}, "on_bad_sample: must be"),
        ({"cache": "ram", "cache_limit": "much"}, "cache_limit"),
        ({"prefetch_factor": 0}, "prefetch_factor: must be at least 1"),
        ({"image_size": 3}, "there is no option 'image_size'"),
    ],
)
def test_wrong_options(root: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        DataModule.from_image_folder(root, **options)


def test_wrong_folders(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="root: must be a folder"):
        DataModule.from_image_folder(root / "cow")
    with pytest.raises(DataError, match="root: must have a folder for each class"):
        DataModule.from_image_folder(tmp_path)


def test_the_header_says_what_decodes_and_what_is_kept(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = DataModule.from_image_folder(root, 32, batch_size=16, cache="ram", num_workers=2)
    hl.train(net(), data, max_epochs=1, precision="fp32")
    header = capsys.readouterr().err
    assert f"images by {describe_decoder()} |" in header
    assert "cache decoded images, about 0 MiB of 2,048 MiB |" in header
    assert "60 rows, made by 2 threads" in header


# ---- pictures


@pytest.mark.extra
def test_show_batch(root: Path, tmp_path: Path) -> None:
    take_library("matplotlib")
    data = DataModule.from_image_folder(root, 32, val=0.2, batch_size=10)
    figure = data.show_batch()
    shown = [axis for axis in figure.axes if axis.images]
    assert len(shown) == 10
    assert {axis.get_title() for axis in shown} <= set(CLASSES)
    batch = next(data.train_batches())
    want = batch["x"][3].transpose(1, 2, 0) / 255
    np.testing.assert_allclose(shown[3].images[0].get_array(), want, atol=1e-6)
    assert shown[3].get_title() == CLASSES[batch["y"][3]]
    assert len([a for a in data.show_batch("val", 3).axes if a.images]) == 3
    data.show_batch(n=40).savefig(tmp_path / "batch.png")
    grey = DataModule.from_arrays(np.random.rand(5, 1, 8, 8), np.arange(5.0))
    assert len([a for a in grey.show_batch().axes if a.images]) == 5
    with pytest.raises(ConfigError, match=r"show_batch: shows images .* got x of shape \(5, 8\)"):
        DataModule.from_arrays(np.zeros((5, 8))).show_batch()


def test_levels_of_a_fold_are_those_of_its_training_images(root: Path) -> None:
    data = DataModule.from_image_folder(root, 24, augment="none", normalize="standard", test=12)
    folds = data.folds(3)
    for fold in folds:
        assert fold.class_counts() in ([11, 11, 10], [11, 10, 11], [10, 11, 11])
        ((_, fitted),) = fold.transforms
        levels = np.concatenate([b["x"] for b in fold.batches_in_order("train")])
        np.testing.assert_allclose(fitted["x"][0].ravel(), levels.mean((0, 2, 3)), rtol=1e-5)
        np.testing.assert_allclose(fitted["x"][1].ravel(), levels.std((0, 2, 3)), rtol=1e-5)
    held = np.sort(np.concatenate([fold.rows("val") for fold in folds]))
    np.testing.assert_array_equal(held, np.setdiff1d(np.arange(60), data.rows("test")))
    own = DataModule.from_image_folder(root, 24, val=root)
    with pytest.raises(ConfigError, match="fold: validates on rows of the training data, got"):
        own.fold(0, 2)
