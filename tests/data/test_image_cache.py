"""Images kept on disk: what a batch has, what is made when, interruptions, damage."""

import io
import itertools
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import DataModule, _core, nn
from hotloop.data import cache_folder
from hotloop.data.augment import pack_augment
from hotloop.data.images import cache as image_cache
from hotloop.data.images.cache import shrink_image
from hotloop.data.images.disk_cache import read_disk_cache
from hotloop.errors import ConfigError, DataError, DataWarning
from needs import is_flat, plain_permissions, take_library
from train.recipes import quiet

Image = take_library("PIL.Image")
CLASSES = ("cat", "dog")
SIZES = ((90, 120), (130, 80), (64, 64), (30, 50), (200, 75))
N = 40


def picture(number: int) -> np.ndarray:
    height, width = SIZES[number % len(SIZES)]
    y, x = np.mgrid[:height, :width]
    rng = np.random.default_rng(number)
    waves = [np.sin(x / rng.uniform(3, 9) + rng.random() * 6) * np.cos(y / 8) for _ in range(3)]
    return (120 + 100 * np.stack(waves, -1)).astype(np.uint8)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """40 images of two classes and five sizes, JPEG and PNG, last written an hour ago."""
    top = tmp_path / "pictures"
    for i in range(N):
        name = top / CLASSES[i % 2] / f"{i:02}.{'png' if i % 4 == 0 else 'jpg'}"
        name.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(i)).save(name, quality=95)
        age(name)
    return top


def age(path: Path) -> None:
    then = time.time() - 3600
    os.utime(path, (then, then))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each image that the cache decodes."""
    found: list[int] = []

    def counting(data: bytes, *args: Any) -> Any:
        found.append(len(data))
        return shrink_image(data, *args)

    monkeypatch.setattr(image_cache, "shrink_image", counting)
    return found


def cached(root: Path, **options: Any) -> DataModule:
    own = {"cache": "disk", "cache_dir": root.parent / "cache", "batch_size": 16}
    return DataModule.from_image_folder(root, 48, **(own | options))


def files_of(root: Path) -> list[Path]:
    return [path for name in CLASSES for path in sorted((root / name).iterdir())]


def folder_of(root: Path) -> Path:
    (folder,) = (root.parent / "cache").iterdir()
    return folder


def read(data: DataModule, epoch: int = 0, is_training: bool = False) -> np.ndarray:
    split = data.split("train")
    return split.fields[0].stream.source.read(np.arange(split.n), epoch, is_training)[0]


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, 2),
    )  # fmt: skip


def weights(data: DataModule) -> list[np.ndarray]:
    hl.manual_seed(0)
    result = hl.train(net(), data, quiet(max_epochs=2, precision="fp32"))
    return [p.numpy() for p in result.model.parameters()]


# ---- what a batch has


@pytest.mark.parametrize("channels", ["rgb", "grey"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_pixels_are_those_of_pillow(root: Path, channels: str, interpolation: str) -> None:
    data = cached(
        root, channels=channels, interpolation=interpolation, augment="none", cache_size=48
    )
    found = read(data)
    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    for row, path in enumerate(files_of(root)):
        if path.suffix != ".png":
            continue
        with Image.open(path) as image:
            plain = image.convert("RGB" if channels == "rgb" else "L")
        width, height = plain.size
        shorter = min(width, height)
        if shorter > 48:  # torchvision's Resize(48)
            size = (48 * width // shorter, 48 * height // shorter)
            plain = plain.resize(size, filters[interpolation])
        if shorter < 48:
            continue  # enlarged in one step: the next test
        top, left = (round((side - 48) / 2) for side in plain.size[::-1])
        want = np.asarray(plain)[top : top + 48, left : left + 48]
        want = want[None] if want.ndim == 2 else want.transpose(2, 0, 1)
        assert np.abs(found[row].astype(int) - want).max() <= 3  # rounded twice


@pytest.mark.parametrize("augment", ["none", "basic", "strong"])
def test_a_batch_is_the_stored_image_augmented(root: Path, augment: str) -> None:
    data = cached(root, augment=augment, cache_size=56)
    packed = pack_augment(augment, 48, seed=42)
    for epoch, is_training in ((0, False), (0, True), (3, True)):
        found = read(data, epoch, is_training)
        for row, path in enumerate(files_of(root)):
            with Image.open(path) as image:
                full = image.size[::-1]
            small, *size = shrink_image(path.read_bytes(), 3, 56, 1)
            assert tuple(size) == full
            assert min(small.shape[:2]) == min(56, *full)
            want = _core.augment(small, packed, (epoch, row, is_training), None, None, full)[0]
            np.testing.assert_array_equal(found[row], want)


def test_it_shows_the_same_parts_as_without(root: Path) -> None:
    """A crop that is drawn goes by the file's size; so does one of a size of its own."""
    for augment in ("basic", [hl.augment.CenterCrop(60)]):
        plain = DataModule.from_image_folder(root, 48, augment=augment)
        for epoch in (0, 1):
            a = read(plain, epoch, True).astype(int)
            b = read(cached(root, augment=augment), epoch, True).astype(int)
            assert np.abs(a - b).mean() < 4  # levels: less detail
    whole = read(cached(root, augment="basic", cache_size=400), 1, True)
    jpeg = [path.suffix == ".jpg" for path in files_of(root)]
    exact = np.abs(whole.astype(int) - read(DataModule.from_image_folder(root, 48), 1, True))
    assert not exact[~np.array(jpeg)].any()  # nothing was made smaller


def test_the_side_is_8_7_of_the_batchs(root: Path) -> None:
    cached(root)
    assert "-rgb-55-bilinear-" in folder_of(root).name  # 48 * 8 / 7 = 54.9
    for size, side in ((224, 256), ((32, 64), 74), (7, 8)):
        packed = pack_augment("none", size)
        assert read_disk_cache("disk", "x", None, packed, 3).side == side


def test_threads_make_the_same_bits(root: Path) -> None:
    stored, trained = [], []
    for workers in (0, 1, 2, 5):
        shutil.rmtree(root.parent / "cache", ignore_errors=True)
        data = cached(root, val=0.2, num_workers=workers)
        trained.append(weights(data))
        stored.append((folder_of(root) / "pixels").read_bytes()[32:])
    assert all(a == stored[0] for a in stored)
    for other in trained[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(trained[0], other, strict=True))


def test_facts(root: Path) -> None:
    first, again = cached(root), cached(root)
    want = f"40 images of 55 pixels at most on the shorter side, .* kB in {folder_of(root)}"
    assert re.search(want + ", 40 of them made now", dict(first.facts)["cache"])
    assert re.search(want + "$", dict(again.facts)["cache"])
    assert dict(again.facts)["cache"] in again.describe()


# ---- what is made when


def test_nothing_is_made_twice(root: Path, decoded: list[int]) -> None:
    first = read(cached(root))
    assert len(decoded) == N
    again = cached(root, val=0.2, augment="strong")
    assert len(decoded) == N
    np.testing.assert_array_equal(read(cached(root)), first)
    assert again.split("val").n == 8
    cached(root, channels="grey")
    assert len(decoded) == 2 * N
    cached(root, cache_size=40)
    assert len(decoded) == 3 * N


def test_files_that_did_not_change_are_not_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(root)

    def refuse(*args: Any) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(image_cache.ImageCache, "_decode", refuse)
    cached(root)


def test_what_was_just_written_is_compared(root: Path, decoded: list[int]) -> None:
    """A file may be written twice in one tick of the system's clock, with as many bytes."""
    path = root / "cat" / "00.png"
    now = time.time_ns()
    path.write_bytes(bmp(10))
    os.utime(path, ns=(now, now))
    cached(root)
    path.write_bytes(bmp(200))
    os.utime(path, ns=(now, now))
    assert (read(cached(root, augment="none"))[0] == 200).all()
    assert len(decoded) == N + 1


def bmp(level: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((60, 60, 3), level, np.uint8)).save(file, "BMP")
    return file.getvalue()


def test_changed_moved_and_doubled_files(root: Path, decoded: list[int]) -> None:
    cached(root)
    size = (folder_of(root) / "pixels").stat().st_size
    shutil.copytree(root, root.parent / "moved")
    (root.parent / "moved" / "dog" / "x.jpg").write_bytes((root / "cat" / "02.jpg").read_bytes())
    moved = cached(root.parent / "moved")
    assert len(decoded) == N
    assert (folder_of(root) / "pixels").stat().st_size == size
    np.testing.assert_array_equal(read(moved)[:N], read(cached(root)))
    Image.fromarray(np.full((70, 70, 3), 77, np.uint8)).save(root / "cat" / "00.png")
    changed = cached(root, augment="none")
    assert len(decoded) == N + 1
    assert (read(changed)[0] == 77).all()


def test_copies_are_stored_once(
    root: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_cache, "_BATCH_BYTES", 1)  # the others are decoded before it is there
    for i in range(3, 30, 2):
        shutil.copy(root / "dog" / "01.jpg", root / "dog" / f"{i:02}.jpg")
    cached(root)
    index = sqlite3.connect(folder_of(root) / "index.sqlite")
    assert index.execute("SELECT count(*) FROM images").fetchone() == (N - 14,)
    stored = index.execute("SELECT sum(height * width * 3) FROM images").fetchone()[0]
    assert (folder_of(root) / "pixels").stat().st_size == stored + 32


def test_a_file_that_goes_away_still_trains(root: Path) -> None:
    data = cached(root)
    want = weights(data)
    shutil.rmtree(root)
    assert all(np.array_equal(a, b) for a, b in zip(weights(data), want, strict=True))
    assert data.verify() == {}


def test_splits_of_their_own_and_tables(root: Path, decoded: list[int]) -> None:
    shutil.copytree(root, root.parent / "others")
    data = cached(root, val=root.parent / "others")
    assert (data.split("val").n, len(decoded)) == (N, N)
    assert "80 images" in dict(data.facts)["cache"]
    table = {"file": [str(p) for p in files_of(root)], "age": np.arange(N) / 2}
    frame = root.parent / "table.csv"
    frame.write_text("\n".join(["file,age", *(f"{a},{b}" for a, b in zip(*table.values()))]))
    options = {"cache": "disk", "cache_dir": root.parent / "cache"}
    ages = DataModule.from_image_table(frame, "file", "age", 48, **options)
    np.testing.assert_array_equal(read(ages), read(data))
    assert len(decoded) == N


def test_progress(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    cached(root)
    shown = capsys.readouterr().err
    assert "images: 100%" in shown
    assert "40/40" in shown
    cached(root)
    assert capsys.readouterr().err == ""


# ---- folders


def test_the_folder_by_default(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOTLOOP_CACHE_PATH", raising=False)
    for name, value, where in (
        ("HOME", str(tmp_path / "home"), "home/.cache/hotloop/images"),
        ("XDG_CACHE_HOME", "not/absolute", "home/.cache/hotloop/images"),
        ("XDG_CACHE_HOME", str(tmp_path / "xdg"), "xdg/hotloop/images"),
        ("HOTLOOP_CACHE_PATH", str(tmp_path / "own"), "own/images"),
    ):
        monkeypatch.setenv(name, value)
        cached(root, cache_dir=None)
        assert len(list((tmp_path / where).iterdir())) == 1
        shutil.rmtree(tmp_path / where)
    monkeypatch.setenv("HOTLOOP_CACHE_PATH", "")
    with pytest.raises(ConfigError, match=r"cache: 'disk' needs a folder, .*write cache_dir="):
        cached(root, cache_dir=None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cache": "cloud"}, r"cache: must be one of .*ram.*disk"),
        ({"cache": None}, r"cache_dir: is of cache='disk', got .*; write cache='disk'"),
        ({"cache": "ram", "cache_dir": None, "cache_size": 9}, "cache_size: is of cache='disk'"),
        ({"cache_size": 0}, "cache_size: must be at least 1, got 0"),
        ({"cache_size": "big"}, "cache_size: a whole number"),
        ({"cache_dir": 3}, "cache_dir: must be the path of a folder, got 3"),
    ],
)
def test_wrong_options(root: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cached(root, **options)


def test_a_python_without_sqlite(root: Path) -> None:
    code = (
        "import sys; sys.modules['sqlite3'] = None; from hotloop import DataModule, ConfigError\n"
        "DataModule.from_image_folder(sys.argv[1], 8)\n"
        "try: DataModule.from_image_folder(sys.argv[1], 8, cache='disk')\n"
        "except ConfigError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, text=True, check=True
    )
    assert "cache: 'disk' needs the module sqlite3 of Python" in done.stdout


def test_a_disk_without_room(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def usage(free: int) -> Callable[[str], SimpleNamespace]:
        return lambda folder: SimpleNamespace(free=free)

    monkeypatch.setattr(cache_folder.shutil, "disk_usage", usage(100_000))
    said = (
        r"room for 40 images that are new, about (\d+),(\d+) bytes .*got 100,000 .*free; .*"
        r"cache_dir=.*cache_size= below 55"
    )
    with pytest.raises(DataError, match=said) as error:
        cached(root)
    told = int("".join(re.search(said, str(error.value)).groups()))
    monkeypatch.setattr(cache_folder.shutil, "disk_usage", usage(10**9))
    cached(root)
    stored = (folder_of(root) / "pixels").stat().st_size - 32
    assert abs(told - stored) <= 2
    monkeypatch.setattr(cache_folder.shutil, "disk_usage", usage(0))
    cached(root)  # nothing is missing


def test_a_disk_that_fills(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        cached(root, cache_size=20)
        patch.setattr(image_cache, "_flush", full)
        Image.fromarray(picture(2)[:40]).save(root / "cat" / "00.png")
        with pytest.raises(DataError, match=r"the disk of .* is full, got .* bytes free; delete"):
            cached(root, cache_size=20)
    want = read(cached(root, cache_size=20, cache_dir=root.parent / "other"))
    np.testing.assert_array_equal(read(cached(root, cache_size=20)), want)


# ---- bad files


def test_a_bad_file_is_an_error_now(root: Path, decoded: list[int]) -> None:
    bad = files_of(root)[25]
    bad.write_bytes(bad.read_bytes()[:300])
    with pytest.raises(DataError, match=str(bad)):
        cached(root, num_workers=1)
    seen = len(decoded)
    assert 25 < seen <= 30
    with pytest.raises(DataError, match=str(bad)):
        cached(root, num_workers=1)
    assert len(decoded) <= seen + 6  # what was good is kept
    bad.unlink()
    cached(root)
    assert len(decoded) <= N + 12


@pytest.mark.parametrize("way", ["skip", "replace"])
def test_bad_files_are_left_out_or_replaced(root: Path, way: str) -> None:
    bad = files_of(root)[25]
    bad.write_bytes(b"no image")
    found = []
    for own in ({}, {"cache": None, "cache_dir": None}):
        data = cached(
            root, augment="none", on_bad_sample=way, max_bad_share=0.1, shuffle=False, **own
        )
        found.append(next(iter(data.train_batches())) | {"all": read(data)})
        assert list(data.bad_samples["train"]) == [25]
    assert all(np.array_equal(found[0][key], found[1][key]) for key in found[0] if key == "y")
    assert np.array_equal(found[0]["all"][25], np.zeros((3, 48, 48))) == (way == "skip")
    if way == "replace":
        np.testing.assert_array_equal(found[0]["all"][25], found[0]["all"][26])


# ---- interruptions and other processes


CHILD = """
import sys, time, hashlib
import numpy as np
from hotloop import DataModule
from hotloop.data.images import cache as image_cache
root, cache, pause, batch = sys.argv[1:]
image_cache._BATCH_BYTES = int(batch)
shrink = image_cache.shrink_image
made = []
def slow(*args):
    made.append(0)
    time.sleep(float(pause))
    return shrink(*args)
image_cache.shrink_image = slow
data = DataModule.from_image_folder(root, 48, cache="disk", cache_dir=cache, num_workers=2)
pixels = data.split("train").fields[0].stream.source.read(np.arange(40), 0, False)[0]
print(len(made), hashlib.sha256(pixels).hexdigest())
"""


def start(root: Path, pause: float, batch: int = 1) -> subprocess.Popen[str]:
    args = [str(root), str(root.parent / "cache"), str(pause), str(batch)]
    return subprocess.Popen([sys.executable, "-c", CHILD, *args], stdout=subprocess.PIPE, text=True)


def count_entries(root: Path) -> int:
    try:
        index = sqlite3.connect(f"file:{folder_of(root) / 'index.sqlite'}?mode=ro", uri=True)
        return int(index.execute("SELECT count(*) FROM images").fetchone()[0])
    except (sqlite3.Error, OSError, ValueError):
        return 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_it_goes_on_where_it_stopped(root: Path, decoded: list[int], how: signal.Signals) -> None:
    child = start(root, 0.25)
    deadline = time.monotonic() + 60
    while count_entries(root) < 5:
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.send_signal(how)
    child.wait(60)
    there = count_entries(root)
    assert 5 <= there < N
    found = read(cached(root))
    assert len(decoded) == N - there
    want = cached(root, cache_dir=root.parent / "other")
    np.testing.assert_array_equal(found, read(want))


@pytest.mark.parametrize("after", [0, 1])
def test_entries_never_precede_their_pixels(
    root: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[int], after: int
) -> None:
    """Whatever ends between pixels and index: the index knows nothing of them."""
    calls: list[int] = []

    def end(file: Any) -> None:
        calls.append(file.tell())
        if len(calls) == 2 + after:  # the first is that of the mark
            raise KeyboardInterrupt

    monkeypatch.setattr(image_cache, "_BATCH_BYTES", 100_000)
    with monkeypatch.context() as patch:
        patch.setattr(image_cache, "_flush", end)
        with pytest.raises(KeyboardInterrupt):
            cached(root)
    index = sqlite3.connect(folder_of(root) / "index.sqlite")
    (end_of,) = index.execute("SELECT bytes FROM facts").fetchone()
    last = index.execute("SELECT max(at + height * width * 3) FROM images").fetchone()[0]
    assert end_of == (32 if last is None else last)
    np.testing.assert_array_equal(
        read(cached(root)), read(cached(root, cache_dir=root.parent / "other"))
    )


def test_two_processes_at_once(root: Path) -> None:
    children = [start(root, 0.01) for _ in range(3)]
    told = [child.communicate(timeout=120)[0].split() for child in children]
    assert [child.returncode for child in children] == [0] * 3
    assert sum(int(made) for made, _ in told) == N
    assert len({digest for _, digest in told}) == 1


# ---- damage


def _garbage_index(folder: Path) -> None:
    (folder / "index.sqlite").write_bytes(b"something else" * 1000)


def _holes_in_index(folder: Path) -> None:
    path = folder / "index.sqlite"
    data = bytearray(path.read_bytes())
    data[4096:12288] = bytes(8192)
    path.write_bytes(data)


def _other_tables(folder: Path) -> None:
    (folder / "index.sqlite").unlink()
    index = sqlite3.connect(folder / "index.sqlite")
    index.execute("CREATE TABLE things (a)")
    index.commit()


def _other_sizes(folder: Path) -> None:
    index = sqlite3.connect(folder / "index.sqlite")
    index.execute("UPDATE images SET src_height = src_height + 1")
    index.commit()


def _other_places(folder: Path) -> None:
    index = sqlite3.connect(folder / "index.sqlite")
    index.execute("UPDATE images SET at = at + 3")
    index.commit()


def _short_pixels(folder: Path) -> None:
    os.truncate(folder / "pixels", (folder / "pixels").stat().st_size - 10)


def _other_pixels(folder: Path) -> None:
    path = folder / "pixels"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)


def _zeroed_pixels(folder: Path) -> None:
    path = folder / "pixels"
    data = path.read_bytes()
    path.write_bytes(data[:32] + bytes(len(data) - 32))


def _no_facts(folder: Path) -> None:
    index = sqlite3.connect(folder / "index.sqlite")
    index.execute("DELETE FROM facts")
    index.commit()


@pytest.mark.parametrize(
    "damage",
    [
        _garbage_index, _holes_in_index, _other_tables, _other_places, _other_sizes, _short_pixels,
        _other_pixels, _zeroed_pixels, _no_facts,
    ],
)  # fmt: skip
def test_what_is_damaged_is_made_anew(
    root: Path, decoded: list[int], damage: Callable[[Path], None]
) -> None:
    want = read(cached(root))
    damage(folder_of(root))
    with pytest.warns(DataWarning, match=r"cache: .* is damaged \(.*\), and .* are made anew"):
        found = cached(root)
    assert len(decoded) == 2 * N
    np.testing.assert_array_equal(read(found), want)
    np.testing.assert_array_equal(read(cached(root)), want)
    assert len(decoded) == 2 * N


@pytest.mark.parametrize("gone", [["pixels"], ["index.sqlite"], ["pixels", "index.sqlite"]])
def test_what_was_deleted_is_made_anew(root: Path, decoded: list[int], gone: list[str]) -> None:
    first = cached(root)
    want = read(first)
    for name in gone:
        (folder_of(root) / name).unlink()
    np.testing.assert_array_equal(read(cached(root)), want)
    np.testing.assert_array_equal(read(first), want)  # which has the old file
    assert len(decoded) == 2 * N


def test_folders_that_cannot_be_used(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cache_dir: must be a folder that can be written, got"):
        cached(root, cache_dir=tmp_path / "file" / "cache")
    cached(root)
    (folder_of(root) / "turn.sqlite").write_bytes(b"something else" * 100)
    Image.fromarray(picture(1)).save(root / "cat" / "00.png")
    with pytest.raises(DataError, match=r"must be readable and writable, got .*delete the folder"):
        cached(root)
    os.unlink(folder_of(root) / "turn.sqlite")
    os.unlink(folder_of(root) / "pixels")
    (folder_of(root) / "pixels").mkdir()
    with pytest.raises(DataError, match=r"must be readable and writable, got 'Is a directory'"):
        cached(root)


def test_permissions(root: Path) -> None:
    cached(root)
    folder_of(root).chmod(0o500)
    with plain_permissions():
        cached(root)  # reads
        Image.fromarray(picture(1)).save(root / "cat" / "00.png")
        with pytest.raises(DataError, match="must be readable and writable"):
            cached(root)
    folder_of(root).chmod(0o700)


# ---- the core


@pytest.mark.parametrize(
    ("stored", "error", "said"),
    [
        (3, TypeError, r"stored: must be \(table, pixels\) or None"),
        ((np.zeros((1, 4), np.int64), np.zeros(9, np.uint8)), hl.errors.ShapeError, r"\(1, 5\)"),
        ((np.zeros((2, 5), np.int64), np.zeros(9, np.uint8)), hl.errors.ShapeError, r"\(1, 5\)"),
        ((np.zeros((1, 5), np.float32), np.zeros(9, np.uint8)), hl.errors.ShapeError, "int64"),
        ((np.zeros((1, 5), np.int64), np.zeros(9, np.int8)), Exception, "stored"),
        ((np.array([[0, 0, 1, 1, 1]]), np.zeros(9, np.uint8)), DataError, "1 to"),
        ((np.array([[0, 1, 1, 1, 0]]), np.zeros(9, np.uint8)), DataError, "1 to"),
        ((np.array([[7, 1, 1, 1, 1]]), np.zeros(9, np.uint8)), DataError, "within 9 bytes"),
        ((np.array([[0, 2, 2, 2, 2]]), np.zeros(9, np.uint8)), DataError, "within 9 bytes"),
        ((np.array([[2**62, 1, 1, 1, 1]]), np.zeros(9, np.uint8)), DataError, "within 9 bytes"),
    ],
)
def test_the_core_checks_what_is_stored(stored: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        _core.image_source(b"x\0", 1, 3, pack_augment("none", 4), stored=stored)


def test_the_core_reads_what_is_stored_in_place() -> None:
    pixels = np.arange(100, dtype=np.uint8)
    table = np.array([[40, 4, 4, 4, 4], [-1, 0, 0, 0, 0]])
    source = _core.image_source(
        b"x\0y\0", 2, 3, pack_augment("none", 4), on_bad="skip", bad_max=1, stored=(table, pixels)
    )
    del table
    image, weight = source.read(np.array([0, 1]), 0, False)
    np.testing.assert_array_equal(image[0].transpose(1, 2, 0).ravel(), np.arange(40, 88))
    assert weight.tolist() == [1, 0]
    pixels[40] = 7
    assert source.read(np.array([0]), 0, False)[0].ravel()[0] == 7


def test_memory_and_descriptors_stay_flat(root: Path) -> None:
    def facts() -> tuple[int, int]:
        status = Path("/proc/self/status").read_text().splitlines()
        own = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
        return own << 10, len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        weights(cached(root, num_workers=2))
    seen = [facts()]
    for _ in range(3):  # what leaks grows each time, and the process's own pieces of memory once
        for _ in range(10):
            weights(cached(root, num_workers=2))
        seen.append(facts())
    assert any(is_flat(a[0], b[0], 4 << 20) for a, b in itertools.pairwise(seen))
    assert seen[-1][1] <= seen[0][1]
