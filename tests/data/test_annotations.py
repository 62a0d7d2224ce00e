"""Masks and points of images: what they are after flips, crops and turns, bad files, options."""

import re
import struct
import zlib
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import numpy.typing as npt
import pytest
from hotloop import DataModule, augment, nn
from hotloop.data.images.annotations import Wanted, read_points
from hotloop.data.images.sources import read_mask_by_pillow
from hotloop.errors import ConfigError, DataError, DataWarning, ShapeError
from needs import take_library
from train.recipes import quiet

Image = take_library("PIL.Image")
N = 24
POINTS = [("x0", "y0"), ("x1", "y1"), ("x2", "y2")]
TURNS = [augment.RandomAffine(40, scale=(0.7, 1.4)), augment.RandomHorizontalFlip()]


def size_of(row: int) -> tuple[int, int]:
    return 40 + row % 5, 48 + row % 7


def places(row: int) -> npt.NDArray[np.float32]:
    """Three points of an image, whole pixels."""
    return np.float32([[5 + row % 9, 7], [20, 11 + row % 4], [31, 30]])


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images whose pixels say where they are, masks of 16 bits whose ids say it too, and points."""
    top = tmp_path_factory.mktemp("annotated")
    lines = ["image,mask,kind,x0,y0,x1,y1,x2,y2,v2"]
    for row in range(N):
        height, width = size_of(row)
        y, x = np.mgrid[:height, :width]
        levels = np.stack([x * 4, y * 4, np.full_like(x, 255)], -1).astype(np.uint8)
        Image.fromarray(levels).save(top / f"{row}.png")
        Image.fromarray((y * 64 + x).astype(np.uint16)).save(top / f"{row}_mask.png")
        numbers = ",".join(f"{value:g}" for value in places(row).ravel())
        lines.append(f"{row}.png,{row}_mask.png,{'ab'[row % 2]},{numbers},{row % 3}")
    (top / "table.csv").write_text("\n".join(lines))
    return top / "table.csv"


def make(table: Any, *, mask: str | None = "mask", **options: Any) -> DataModule:
    options = {"normalize": None, "batch_size": N, "classes": range(64 * 64)} | options
    if mask is None:
        del options["classes"]
    return DataModule.from_image_table(table, "image", mask=mask, **options)


def where(images: Any) -> tuple[Any, Any, Any]:
    """Of each pixel its x and y in the file, and whether it was in the image."""
    return images[:, 0] / 4, images[:, 1] / 4, images[:, 2] > 0


# ---- the geometry of the image


@pytest.mark.parametrize(
    "steps",
    [
        "none",
        "basic",
        [augment.RandomVerticalFlip()],
        [augment.RandomResizedCrop(scale=(0.2, 0.9)), augment.RandomHorizontalFlip()],
        [augment.RandomCrop(padding=12), augment.RandomHorizontalFlip()],
        [augment.RandomCrop(padding=12, padding_mode="reflect")],
        TURNS,
        [augment.RandomPerspective(0.4, p=1.0)],
        [augment.RandomAffine(20, translate=(0.3, 0.3)), augment.RandomRotation(90)],
    ],
)
@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
def test_a_mask_is_where_its_image_is(table: Path, steps: Any, fit: str) -> None:
    # Larger than the images: what a warp reduces is smoothed before, and is no single pixel then.
    data = make(table, size=(48, 56), augment=steps, fit=fit, interpolation="nearest", val=6)
    seen = 0
    for epoch in range(3):
        for batch in [*data.train_batches(epoch), *data.val_batches()]:
            x, y, is_inside = where(batch["x"])
            assert batch["y"].dtype == np.int64
            np.testing.assert_array_equal(batch["y"] == -100, ~is_inside)
            apart = np.hypot(batch["y"] % 64 - x, batch["y"] // 64 - y)[is_inside]
            assert apart.max() <= np.sqrt(2)  # where a centre falls between two pixels
            assert (apart > 0).mean() < 0.02
            seen += len(batch["y"])
    assert seen == 3 * N


EXACT = [
    [augment.RandomCrop((30, 36), padding=9), augment.RandomHorizontalFlip()],
    [augment.RandomVerticalFlip(), augment.RandomCrop((30, 36))],
]


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
@pytest.mark.parametrize(
    "steps",
    [*EXACT, "none", [augment.RandomResizedCrop(scale=(0.3, 0.9))], TURNS],
)
def test_points_are_where_the_image_shows_them(table: Path, steps: Any, fit: str) -> None:
    """The pixel of the output that a point lies on shows that point's pixel of the file."""
    is_exact = steps in EXACT
    # At twice the size at least a rounded place is within the same pixel of the file.
    size = (30, 36) if is_exact else (150, 160)
    margin = 1 if is_exact else 14  # the pixels at the border may show one whose centre is beyond
    data = make(
        table, mask=None, points=POINTS, flip_pairs=[], size=size, augment=steps, shuffle=False,
        interpolation="nearest", fit=fit,
    )  # fmt: skip
    n_shown = 0
    for epoch in range(3):
        batch = next(data.train_batches(epoch))
        x, y, is_inside = where(batch["x"])
        for row in range(N):
            for point, (u, v, weight) in zip(places(row), batch["y"][row]):
                is_there = is_inside[row] & (x[row] == point[0]) & (y[row] == point[1])
                if not weight:
                    assert (u, v) == (0, 0)
                    assert not is_there[margin:-margin, margin:-margin].any()
                    continue
                n_shown += 1
                i = int(np.clip(np.rint(v), 0, size[0] - 1))
                j = int(np.clip(np.rint(u), 0, size[1] - 1))
                assert is_there[i, j]
                assert weight == 1
                if is_exact:
                    assert (u, v) == (j, i)
    assert n_shown > 2 * N


def test_pairs_change_places_in_a_mirror(table: Path) -> None:
    def points(steps: Any, pairs: Any) -> Any:
        data = make(
            table, mask=None, points=POINTS, flip_pairs=pairs, size=(40, 48), augment=steps,
            shuffle=False, fit="squash",
        )  # fmt: skip
        return next(data.train_batches())["y"]

    plain = points("none", None)
    across = points([augment.RandomHorizontalFlip(1.0)], [(0, 2)])
    np.testing.assert_allclose(across[..., 0], 47 - plain[:, [2, 1, 0], 0], atol=1e-4)
    np.testing.assert_allclose(across[..., 1], plain[:, [2, 1, 0], 1], atol=1e-4)
    down = points([augment.RandomVerticalFlip(1.0)], [(0, 2)])
    np.testing.assert_allclose(down[..., 1], 39 - plain[:, [2, 1, 0], 1], atol=1e-4)
    both = [augment.RandomHorizontalFlip(1.0), augment.RandomVerticalFlip(1.0)]
    np.testing.assert_allclose(points(both, [(0, 2)])[..., 0], 47 - plain[..., 0], atol=1e-4)
    np.testing.assert_array_equal(
        points([augment.RandomHorizontalFlip(1.0)], [])[:, [2, 1, 0]], across
    )
    with pytest.raises(ConfigError, match=r"flip_pairs: must say which points change places"):
        points("basic", None)
    data = make(table, mask=None, points=[("x0", "y0")], size=16, augment="basic")
    assert data.example_batch()["y"] == ("float32", (N, 1, 3))


def test_points_that_are_not_labelled(table: Path) -> None:
    def points(columns: Any, frame: Any = table) -> Any:
        data = make(
            frame, mask=None, points=columns, size=(40, 48), augment="none", shuffle=False,
            fit="squash", root=table.parent,
        )  # fmt: skip
        return data.arrays("train")[1]

    visible = points([*POINTS[:2], ("x2", "y2", "v2")])
    assert visible[:, 2, 2].tolist() == [float(row % 3 > 0) for row in range(N)]
    assert (visible[::3, 2] == 0).all()
    assert (visible[:, :2, 2] == 1).all()


def test_values_of_points() -> None:
    pair, triple = Wanted(points=(("x", "y"),)), Wanted(points=(("x", "y", "v"),))
    made = read_points([[1.0, None, np.nan, 4], [2, None, None, 5]], pair)
    assert made is not None
    assert made[:, 0].tolist() == [[1, 2, 1], [0, 0, 0], [0, 0, 0], [4, 5, 1]]
    of_texts = read_points([["1", "", " ", "4"], ["2", "", None, "5"]], pair)
    np.testing.assert_array_equal(of_texts, made)
    shown = read_points([[1, np.nan, 3, None], [4, 5, 6, np.nan], [2, 0, 1, None]], triple)
    assert shown is not None
    assert shown[:, 0].tolist() == [[1, 4, 1], [0, 0, 0], [3, 6, 1], [0, 0, 0]]
    for columns, said in (
        ([[1, None, "left"], [1, 2, 3]], r"x must be a number or nothing .*'left' in row 2"),
        ([[1, 3], [2, None]], r"y must be a number where the point is labelled, got nan in row 1"),
        ([[1, np.inf], [2, 3]], r"x must be a number where .* got inf in row 1"),
    ):
        with pytest.raises(DataError, match=said):
            read_points(columns, pair)
    for wrong in (-1, None):
        with pytest.raises(DataError, match=r"v must be a number of at least 0, got .* in row 1"):
            read_points([[1, 2], [3, 4], [0, wrong]], triple)


@pytest.mark.parametrize(
    ("x", "y", "named"),
    [
        (500, 20, r"\(x0, y0\) = \(500, 20\) in row 3, where .*3.png has 51 x 43 pixels"),
        (7, 44, r"\(x0, y0\) = \(7, 44\) in row 3"),
        (-7, 2, r"\(x0, y0\) = \(-7, 2\) in row 3"),
        (51, 43, ""),  # the last pixel's far corner, from the first one's corner
        (-1, -1, ""),
    ],
)
def test_points_outside_their_image_are_warned_of(
    table: Path, x: float, y: float, named: str, recwarn: pytest.WarningsRecorder
) -> None:
    """Once for all of them, by the file's size whatever a batch shows of it."""
    points = np.stack([places(row) for row in range(N)])
    points[[3, 13], 0] = x, y  # row 13 has an image of the same height and a larger width
    columns: dict[str, Any] = {"image": [f"{row}.png" for row in range(N)]}
    for i, (name, other) in enumerate(POINTS):
        columns |= {name: points[:, i, 0], other: points[:, i, 1]}
    columns |= {"v2": np.zeros(N)}
    columns["x2"][4] = 1e6  # is not labelled
    make(
        columns, mask=None, points=[*POINTS[:2], ("x2", "y2", "v2")], flip_pairs=[], size=16,
        root=table.parent,
    )  # fmt: skip
    said = [str(one.message) for one in recwarn if one.category is DataWarning]
    assert len(said) == bool(named)
    if named:
        assert re.search(named, said[0])
        assert "; give pixels of the upright image" in said[0]


def test_points_are_compared_with_upright_images(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter
    Image.new("RGB", (40, 20)).save(tmp_path / "a.jpg", exif=turned)
    for x, y, n in ((15, 35, 0), (35, 15, 1)):
        columns = {"image": ["a.jpg"], "x": [x], "y": [y]}
        make(columns, mask=None, points=[("x", "y")], size=16, root=tmp_path)
        assert len(recwarn) == n


# ---- files


def png(depth: int, colours: int, rows: list[bytes], width: int) -> bytes:
    """A PNG by hand, as Pillow writes no grey of 2 and 4 bits."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", width, len(rows), depth, colours, 0, 0, 0)
    palette = chunk(b"PLTE", bytes(range(48))) if colours == 3 else b""
    body = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + palette + body + chunk(b"IEND", b"")


def ids_of(data: bytes) -> Any:
    made = read_mask_by_pillow("mask.png", data, 0, 0, 0)
    assert made.dtype == np.uint8
    return made[:, :, 0] if made.shape[2] == 1 else made.view(np.uint16)[:, :, 0]


@pytest.mark.parametrize("colours", [0, 3])
@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_ids_are_the_numbers_that_are_stored(depth: int, colours: int) -> None:
    ids = np.arange(16).reshape(2, 8) % min(2**depth, 16)
    bits = "".join(f"{value:0{depth}b}" for value in ids.ravel())
    packed = int(bits, 2).to_bytes(2 * depth, "big")
    found = ids_of(png(depth, colours, [packed[:depth], packed[depth:]], 8))
    np.testing.assert_array_equal(found, ids)


def test_ids_of_16_bits() -> None:
    ids = np.array([[0, 1, 255], [256, 40000, 65535]])
    rows = [row.astype(">u2").tobytes() for row in ids]
    np.testing.assert_array_equal(ids_of(png(16, 0, rows, 3)), ids)


@pytest.mark.parametrize(
    ("colours", "channels", "said"), [(2, 3, "got RGB;"), (4, 2, "got LA;"), (6, 4, "got RGBA;")]
)
def test_colours_are_no_ids(colours: int, channels: int, said: str) -> None:
    with pytest.raises(DataError, match=f"must have one channel, grey or a palette, .*{said}"):
        ids_of(png(8, colours, [bytes(2 * channels)], 2))


def test_what_is_no_mask(tmp_path: Path) -> None:
    Image.new("L", (4, 4)).save(tmp_path / "a.jpg")
    with pytest.raises(DataError, match="Pillow must be able to decode it as PNG"):
        ids_of((tmp_path / "a.jpg").read_bytes())
    with pytest.raises(DataError, match="decompression bomb"):
        ids_of(png(8, 0, [b""], 400_000_000))


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Discs of two kinds on noise, with palette masks: 255 is the rim."""
    rng = np.random.default_rng(0)
    lines = ["image,mask,kind,x,y"]
    y, x = np.mgrid[:40, :48]
    for row in range(16):
        centre = rng.integers(12, 28, 2)
        distance = np.hypot(y - centre[0], x - centre[1])
        ids = np.where(distance < 9, 1 + row % 2, 0)
        levels = rng.integers(0, 40, (40, 48, 3))
        levels[ids > 0, row % 2] += 180
        ids[(distance >= 9) & (distance < 11)] = 255
        mask = Image.fromarray(ids.astype(np.uint8))
        mask = mask.convert("P") if row % 4 else mask
        Image.fromarray(levels.astype(np.uint8)).save(tmp_path / f"{row}.png")
        mask.save(tmp_path / f"{row}_mask.png")
        lines.append(f"{row}.png,{row}_mask.png,{'ab'[row % 2]},{centre[1]},{centre[0]}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    return tmp_path / "table.csv"


def discs(table: Any, **options: Any) -> DataModule:
    options = {"size": 32, "mask": "mask", "mask_ignore": 255, "batch_size": 4} | options
    return DataModule.from_image_table(table, "image", **options)


def net(classes: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, classes, 3, padding=1)
    )


def weights(data: DataModule) -> list[npt.NDArray[Any]]:
    hl.manual_seed(0)
    result = hl.train(net(), data, quiet(max_epochs=2, precision="fp32"))
    return [p.numpy() for p in result.model.parameters()]


def test_classes_are_counted_or_named(few: Path) -> None:
    data = discs(few)
    assert data.n_classes == 3
    assert "y of 3 classes at (32, 32) positions" in repr(data)
    assert data.example_batch()["y"] == ("int64", (4, 32, 32))
    named = discs(few, classes=["back", "left", "right"], augment="none")
    assert set(named.arrays("train")[1].ravel().tolist()) == {"back", "left", "right", None}
    assert discs(few, mask_ignore=None).n_classes == 256
    with pytest.raises(DataError, match=r"_mask\.png: its class ids must be below 2, got 2 at row"):
        next(discs(few, classes=["back", "left"], shuffle=False).train_batches())
    with pytest.raises(DataError, match=r"image 0, .*0\.png: mask .*0_mask\.png: its class .* 255"):
        next(discs(few, classes=range(3), mask_ignore=None, shuffle=False).train_batches())
    with pytest.raises(DataError, match=r"classes must be those of training, \['a', 'b', 'c'\]"):
        named.with_classes(["a", "b", "c"])


@pytest.mark.parametrize(("classes", "dtype"), [(128, "int8"), (129, "int16"), (65536, "int32")])
def test_ids_of_any_width(tmp_path: Path, classes: int, dtype: str) -> None:
    ids = np.zeros((8, 8), np.uint16)
    ids[0, :2] = classes - 1, 0
    rows = [row.astype(">u2").tobytes() for row in ids]
    (tmp_path / "mask.png").write_bytes(png(16, 0, rows, 8))
    Image.new("RGB", (8, 8)).save(tmp_path / "image.png")
    (tmp_path / "table.csv").write_text("image,mask\n" + "image.png,mask.png\n" * 3)
    data = DataModule.from_image_table(
        tmp_path / "table.csv", "image", mask="mask", size=(10, 8), fit="pad", augment="none"
    )
    assert data.n_classes == classes
    assert data.split("train").fields[1].array.dtype == dtype
    y = next(data.train_batches())["y"]
    assert (y[:, [0, 9]] == -100).all()
    np.testing.assert_array_equal(y[:, 1:9], np.stack([ids] * 3))


def test_threads_make_the_same_bits(few: Path) -> None:
    found = [weights(discs(few, num_workers=workers)) for workers in (0, 1, 2, 5)]
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other))


@pytest.mark.parametrize("limit", ["1GiB", 20_000])
def test_cache(few: Path, limit: Any) -> None:
    plain = weights(discs(few))
    data = discs(few, cache="ram", cache_limit=limit)
    for _ in range(2):
        assert all(np.array_equal(a, b) for a, b in zip(weights(data), plain))
    if limit == "1GiB":
        for path in few.parent.glob("*.png"):
            path.unlink()
        weights(data)


def test_splits_and_folds(few: Path) -> None:
    data = discs(few, val=0.25, test=few)
    assert (len(data), data.split("val").n, data.split("test").n) == (12, 4, 16)
    folds = discs(few).folds(4)
    held = np.concatenate([fold.rows("val") for fold in folds])
    assert sorted(held) == [*range(16)]
    labelled = discs(few, label="kind", val=0.25)
    kinds = [labelled.arrays(name)[1]["label"] for name in ("train", "val")]
    assert [(of == "a").sum() for of in kinds] == [6, 2]
    balanced = discs(few, label="kind", sampler="balanced", samples_per_epoch=8)
    assert len(balanced.split("train").weights) == 16


# ---- bad files


def damage(path: Path, how: str) -> None:
    if how == "size":
        Image.new("L", (48, 41)).save(path)
    elif how == "id":
        Image.new("L", (48, 40), 7).save(path)
    elif how == "colours":
        Image.new("RGB", (48, 40)).save(path)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-60])
    else:
        path.unlink()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("size", r"must have the size of its image, 40 x 48 \(height x width\), got 41 x 48"),
        ("id", "its class ids must be below 3, got 7 at row 0, column 0"),
        ("colours", "must have one channel"),
        ("cut", "Pillow must be able to decode it as PNG"),
        ("gone", "No such file"),
    ],
)
def test_bad_masks(few: Path, how: str, said: str) -> None:
    options = {"augment": "none", "classes": range(3), "shuffle": False, "max_bad_share": 0.2}
    good = next(discs(few, batch_size=16, **options).train_batches())
    made = {
        way: discs(few, batch_size=16, on_bad_sample=way, **options)
        for way in ("raise", "skip", "replace")
    }
    damage(few.parent / "5_mask.png", how)
    with pytest.raises(DataError, match=rf"image 5, .*/5\.png: mask .*/5_mask\.png: .*{said}"):
        next(made["raise"].train_batches())
    assert list(made["raise"].verify()["train"]) == [5]
    skipped = next(made["skip"].train_batches())
    assert "weight" not in skipped
    assert (skipped["y"][5] == -100).all()
    assert (skipped["x"][5] == 0).all()
    others = np.arange(16) != 5
    np.testing.assert_array_equal(skipped["y"][others], good["y"][others])
    replaced = next(made["replace"].train_batches())
    for key in "xy":
        np.testing.assert_array_equal(replaced[key][5], good[key][6])
        np.testing.assert_array_equal(replaced[key][others], good[key][others])
    assert re.search(said, made["skip"].bad_samples["train"][5])
    if how != "gone":
        with pytest.warns(DataWarning, match=r"1 bad sample of train"):
            weights(discs(few, on_bad_sample="skip", **options))


def test_what_is_skipped_beside_labels_and_points(few: Path) -> None:
    data = discs(
        few, label="kind", points=[("x", "y")], on_bad_sample="skip", max_bad_share=0.2,
        augment="none", shuffle=False, batch_size=16, classes={"mask": range(3)},
    )  # fmt: skip
    damage(few.parent / "5_mask.png", "size")
    batch = next(data.train_batches())
    assert batch["weight"].tolist() == [float(i != 5) for i in range(16)]
    assert (batch["y"]["points"][5] == 0).all()
    assert (batch["y"]["points"][4, 0, 2]) == 1
    assert batch["y"]["label"].tolist() == [0, 1] * 8
    swapped = discs(
        few, label="kind", points=[("x", "y")], on_bad_sample="replace", max_bad_share=0.2,
        augment="none", shuffle=False, batch_size=16, classes={"mask": range(3)},
    )  # fmt: skip
    again = next(swapped.train_batches())["y"]
    for key in ("label", "points", "mask"):
        np.testing.assert_array_equal(again[key][5], batch["y"][key][6])


def test_masks_of_any_bytes_are_read_or_refused(few: Path) -> None:
    """Mutations of good files: batches, or a DataError with the file's name."""
    rng = np.random.default_rng(1)
    path = few.parent / "0_mask.png"
    whole = path.read_bytes()
    data = discs(few, classes=range(256), mask_ignore=None)
    n_bad = 0
    for _ in range(300):
        changed = bytearray(whole)
        for at in rng.integers(0, len(whole), rng.integers(1, 8)):
            changed[at] = rng.integers(256)
        path.write_bytes(changed[: rng.integers(1, 2 * len(whole))])
        try:
            data.split("train").fields[1].array[:1]
        except DataError as error:
            n_bad += 1
            assert str(path) in str(error)  # noqa: PT017 -- what is read is good too
    assert n_bad > 100


# ---- options


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"mask": 3}, ConfigError, "mask: must be the name of a column"),
        ({"mask": "maks"}, ConfigError, "has no column 'maks'"),
        ({"mask_ignore": -1}, ConfigError, "mask_ignore: must be at least 0"),
        ({"mask": None}, ConfigError, "mask_ignore: is of masks"),
        ({"mask": "kind"}, DataError, "table: kind must name files, got 'a' in row 0"),
        ({"points": "x"}, ConfigError, "points: must be a list of"),
        ({"points": ["x", "y"]}, ConfigError, r"points\[0\]: must be .*write points=\[\("),
        ({"points": [("x",)]}, ConfigError, r"points\[0\]: must be"),
        ({"points": [("x", "z")]}, ConfigError, "has no column 'z'"),
        ({"points": [("x", "kind")]}, DataError, "kind must be a number or nothing"),
        ({"flip_pairs": [(0, 1)]}, ConfigError, "flip_pairs: are pairs of points"),
        (
            {"points": [("x", "y")], "flip_pairs": [(0, 1)]},
            ConfigError,
            r"flip_pairs\[0\]: must be",
        ),
        (
            {"points": [("x", "y")] * 3, "flip_pairs": [(0, 1), (1, 2)]},
            ConfigError,
            r"flip_pairs\[1\]: must be two points that are in no other pair",
        ),
        ({"label": "kind", "classes": ["a", "b", "c"]}, ConfigError, "must be a dict by target"),
        ({"classes": []}, ConfigError, "classes: must name a class at least"),
        (
            {"classes": {"msk": "abc"}},
            ConfigError,
            "classes: must be a list, since y is one target",
        ),
        (
            {"label": "kind", "classes": {"msk": ["a", "b", "c"]}},
            ConfigError,
            r"classes: must have names of targets, label, mask, .* \(did you mean 'mask'\?\)",
        ),
    ],
)
def test_wrong_options(few: Path, options: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        discs(few, **options)


def test_masks_without_a_class(few: Path) -> None:
    for path in few.parent.glob("*_mask.png"):
        Image.new("L", (48, 40), 255).save(path)
    with pytest.raises(DataError, match=r"mask: some file must have a class, .*0_mask\.png: no"):
        discs(few)


# ---- training


@pytest.fixture
def learned(few: Path) -> tuple[DataModule, Any]:
    data = discs(few, val=4, classes=["back", "left", "right"])
    hl.manual_seed(0)
    config = quiet(max_epochs=30, lr=2e-2, metrics=["accuracy", "iou"])
    return data, hl.train(net(), data, config)


def test_segmentation_is_learned(learned: tuple[DataModule, Any]) -> None:
    data, result = learned
    assert result.history["loss"][-1] < 0.2 * result.history["loss"][0]
    assert result.history["val_accuracy"][-1] > 0.95
    images, y = data.arrays("val")
    found = hl.predict(result, images, labels=True)
    assert found.shape == y.shape == (4, 32, 32)
    counts = y != None  # noqa: E711 -- by element
    assert hl.evaluate(result.model, data, split="val")["accuracy"] == pytest.approx(
        (found[counts] == y[counts]).mean(), abs=1e-5
    )
    np.testing.assert_array_equal(hl.predict(result, data, labels=True), found)


class Both(nn.Module):
    """Pixels' classes and a point of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels = net()
        self.point = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2))

    def forward(self, x: Any) -> Any:
        logits = self.pixels(x)
        return {"mask": logits, "points": self.point(logits).reshape(-1, 1, 2)}


def distance(output: Any, target: Any) -> Any:
    """Mean square of what counts, in widths of the image."""
    weight = target[..., 2:]
    apart = (output - target[..., :2] / 32) * weight
    return apart.square().sum() / weight.sum().clamp(min=1.0)


def test_masks_and_points_are_learned_together(few: Path) -> None:
    data = discs(few, points=[("x", "y")], augment="none")
    hl.manual_seed(0)
    loss = {"mask": "cross_entropy", "points": distance}
    result = hl.train(Both(), data, quiet(max_epochs=30, lr=2e-3, loss=loss))
    for name in ("mask_loss", "points_loss"):
        assert result.history[name][-1] < 0.5 * result.history[name][0]


def test_points_need_a_loss_that_knows_their_weight(few: Path) -> None:
    data = discs(few, mask=None, mask_ignore=None, points=[("x", "y")])

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2), nn.Unflatten(1, (1, 2)))

    with pytest.raises(ShapeError):
        hl.train(model(), data, quiet(max_epochs=1))
    result = hl.train(model(), data, quiet(max_epochs=5, lr=1e-4, loss=distance))
    assert result.history["loss"][-1] < result.history["loss"][0]


def test_class_ids_that_the_model_has_no_output_for(few: Path) -> None:
    with pytest.raises(DataError, match="outputs for"):
        hl.train(net(2), discs(few), quiet(max_epochs=1))


def test_cutmix_would_leave_masks_behind(few: Path) -> None:
    with pytest.raises(ConfigError, match=r"cutmix: targets must be of whole images, .*mixup"):
        hl.train(net(), discs(few), quiet(max_epochs=1, cutmix=1.0))
    hl.train(net(), discs(few), quiet(max_epochs=1, mixup=0.2))


# ---- pictures


@pytest.mark.extra
def test_show_batch(few: Path) -> None:
    take_library("matplotlib")
    data = discs(few, label="kind", points=[("x", "y")], augment="none", shuffle=False)
    figure = data.show_batch()
    shown = [axis for axis in figure.axes if axis.images]
    batch = next(data.train_batches())
    assert [axis.get_title() for axis in shown] == ["a", "b", "a", "b"]
    for i, axis in enumerate(shown):
        (dots,) = axis.collections
        np.testing.assert_allclose(dots.get_offsets(), batch["y"]["points"][i, :, :2])
        pixels = np.asarray(axis.images[0].get_array())
        plain = batch["x"][i].transpose(1, 2, 0) / 255
        ignored = batch["y"]["mask"][i] < 0
        assert ignored.any()
        np.testing.assert_allclose(pixels[ignored], plain[ignored], atol=1e-6)
        over = (pixels - 0.45 * plain) / 0.55
        for class_id in range(3):
            of_class = over[batch["y"]["mask"][i] == class_id]
            if len(of_class):
                np.testing.assert_allclose(
                    of_class, of_class[:1].repeat(len(of_class), 0), atol=1e-4
                )
    arrays = DataModule.from_arrays(
        np.random.default_rng(0).random((4, 1, 8, 8), np.float32),
        np.random.default_rng(0).integers(0, 12, (4, 8, 8)),
    )
    assert arrays.show_batch().axes[0].images[0].get_array().shape == (8, 8, 3)
