"""Sources of image files: what a batch holds, bad files, caches, threads, a training from files."""

import os
import tarfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import numpy.typing as npt
import pytest
from hotloop import _core
from hotloop.data.augment import pack_augment
from hotloop.data.images.sources import choose_caching, image_source
from needs import take_library

Image = take_library("PIL.Image")
N = 24


def draw(i: int) -> npt.NDArray[np.uint8]:
    """A picture of its own for each file, of another size."""
    y, x = np.mgrid[: 20 + 2 * i, : 70 - 2 * i]
    return np.stack([x * 3 + i, y * 5, (x + y) * 2 + 9 * i], -1).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEG, grey JPEG, PNG, palette and 16 bits, turn about."""
    top = tmp_path_factory.mktemp("images")
    for i in range(N):
        image = Image.fromarray(draw(i))
        if i % 4 == 1:
            image = image.convert("L")
        if i % 4 == 2:
            image = image.quantize(32)
        if i % 8 == 7:
            image = Image.fromarray(draw(i)[:, :, 0].astype(np.uint16) * 256)
        image.save(
            top / f"{i}.img",
            "JPEG" if i % 4 < 2 else "PNG",
            **({"quality": 95} if i % 4 < 2 else {}),
        )
    return top


@pytest.fixture
def paths(folder: Path, tmp_path: Path) -> list[str]:
    """The files, which a test may change."""
    for path in folder.iterdir():
        os.link(path, tmp_path / path.name)
    return [str(tmp_path / f"{i}.img") for i in range(N)]


def read(source: Any, rows: Any = None, epoch: int = 0, is_training: bool = True) -> Any:
    """The fields of rows, by default all."""
    numbers = np.arange(N) if rows is None else np.asarray(rows, np.int64)
    return source.read(numbers, epoch, is_training)


def replace(path: str, data: bytes) -> None:
    """Another file of that name, whose other links stay as they are."""
    Path(path).unlink()
    Path(path).write_bytes(data)


def test_a_batch(paths: list[str]) -> None:
    labels = np.arange(N, dtype=np.int64) * 2
    weights = np.linspace(0, 1, N * 2, dtype=np.float32).reshape(N, 2)
    source = image_source(
        paths, pack_augment("none", (24, 32), fit="squash"), companions=[labels, weights]
    )
    images, got_labels, got_weights = read(source)
    assert images.shape == (N, 3, 24, 32)
    assert images.dtype == np.uint8
    assert np.array_equal(got_labels, labels)
    assert np.array_equal(got_weights, weights)
    for i in range(N):
        # Pillow reduces in whole levels between its passes, and a JPEG of twice the size is decoded
        # at half of it, which is no triangle filter.
        image = Image.open(paths[i])
        image = (
            Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            if "I" in image.mode
            else image
        )
        want = np.asarray(image.convert("RGB").resize((32, 24), Image.Resampling.BILINEAR))
        error = np.abs(images[i].transpose(1, 2, 0).astype(int) - want)
        assert error.mean() < (
            4 if i % 4 < 2 and min(image.size[1] / 24, image.size[0] / 32) >= 2 else 1
        )


def test_grey(paths: list[str]) -> None:
    (images,) = read(image_source(paths, pack_augment("none", 16), channels=1))
    assert images.shape == (N, 1, 16, 16)
    colour = read(image_source(paths, pack_augment("none", 16)))[0]
    luma = np.tensordot([0.299, 0.587, 0.114], colour.astype(float), ([0], [1]))
    assert np.abs(images[:, 0] - luma).max() < 4  # rounded before and behind the resize


def test_rows_and_epochs(paths: list[str]) -> None:
    source = image_source(paths, pack_augment("strong", 16))
    whole = read(source)[0]
    assert np.array_equal(read(source, [5, 3, 5])[0], whole[[5, 3, 5]])
    assert not np.array_equal(read(source, epoch=1)[0], whole)
    assert np.array_equal(read(source, epoch=0)[0], whole)
    plain = read(source, is_training=False)[0]
    assert np.array_equal(plain, read(source, epoch=9, is_training=False)[0])
    other = image_source(paths, pack_augment("strong", 16, seed=1))
    assert not np.array_equal(read(other)[0], whole)


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("caching", ["nothing", "files", "images"])
def test_same_bits(caching: str, n_threads: int, paths: list[str]) -> None:
    """By any number of threads, in any order, with a cache for some of the files."""
    how: dict[str, Any] = {"caching": caching, "cache_bytes": 30_000}
    want = read(image_source(paths, pack_augment("strong", 16), **how))[0]
    source = image_source(paths, pack_augment("strong", 16), **how)
    got = np.zeros_like(want)

    def fill(thread: int) -> None:
        for _ in range(3):
            for row in range(thread, N, n_threads):
                got[row] = read(source, [row])[0][0]

    threads = [threading.Thread(target=fill, args=(t,)) for t in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(got, want)
    report = _core.image_report(source)
    assert report["cached_bytes"] <= (0 if caching == "nothing" else 30_000)
    assert (report["cached_rows"] > 0) == (caching != "nothing")


def test_raise(paths: list[str]) -> None:
    source = image_source(paths, pack_augment("none", 16))
    for data, words in [
        (b"\xff\xd8\xff", "JPEG: its header"),
        (b"text", "cannot identify"),
        (b"", "0 bytes"),
    ]:
        replace(paths[7], data)
        with pytest.raises(hl.DataError, match=words) as caught:
            read(source)
        assert str(caught.value).startswith(f"image 7, {paths[7]}: ")
    Path(paths[7]).unlink()
    with pytest.raises(
        hl.DataError, match=f"image 7, {paths[7]}: file: must be readable, got 'No such"
    ):
        read(source)
    assert len(read(source, range(7))[0]) == 7


def test_skip(paths: list[str]) -> None:
    labels = np.arange(N)
    how: dict[str, Any] = {"companions": [labels]}
    want = read(image_source(paths, pack_augment("none", 16), **how))[0]
    source = image_source(paths, pack_augment("none", 16), on_bad="skip", bad_max=2, **how)
    replace(paths[3], b"text")
    replace(paths[20], b"\xff\xd8\xff")
    for _ in range(2):
        images, weights, got = read(source)
        assert weights.dtype == np.float32
        bad = np.isin(labels, [3, 20])
        assert np.array_equal(weights, ~bad)
        assert np.array_equal(got, labels)
        assert not images[bad].any()
        assert np.array_equal(images[~bad], want[~bad])
    report = _core.image_report(source)
    assert report["bad_rows"].tolist() == [3, 20]
    assert f"image 3, {paths[3]}: " in report["first_bad"]
    replace(paths[4], b"\xff\xd8\xff")
    with pytest.raises(
        hl.DataError, match="at most 2 of 24 files may be bad, got 3, the last of them: "
    ):
        read(source)


def test_replace(paths: list[str]) -> None:
    labels = np.arange(N)
    how: dict[str, Any] = {"companions": [labels]}
    want = read(image_source(paths, pack_augment("none", 16), **how))[0]
    for row in (3, 4, N - 1):
        replace(paths[row], b"text")
    source = image_source(paths, pack_augment("none", 16), on_bad="replace", bad_max=3, **how)
    images, got = read(source)
    shown = labels.copy()
    shown[[3, 4, N - 1]] = 5, 5, 0
    assert np.array_equal(got, shown)
    assert np.array_equal(images, want[shown])
    assert _core.image_report(source)["bad_rows"].tolist() == [3, 4, N - 1]


def test_what_is_no_bad_file(paths: list[str]) -> None:
    """Nothing that decodes: an error whatever becomes of bad files."""
    names = b"".join(os.fsencode(path) + b"\0" for path in paths)
    source = _core.image_source(names, N, 3, pack_augment("none", 8), on_bad="skip", bad_max=N)
    with pytest.raises(hl.ConfigError, match=r"image [02], .*a(nother)? reader must be there"):
        read(source)
    assert len(_core.image_report(source)["bad_rows"]) == 0


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"channels": 2}, hl.ConfigError, "channels"),
        (
            {"caching": "all"},
            hl.ConfigError,
            "caching: must be nothing, files or images, got 'all'",
        ),
        ({"on_bad": "keep"}, hl.ConfigError, "on_bad: must be raise, skip or replace, got 'keep'"),
        ({"bad_max": -1}, hl.ConfigError, "bad_max"),
        ({"cache_bytes": -1}, hl.ConfigError, "cache_bytes"),
        (
            {"companions": [np.zeros(N - 1)]},
            hl.ShapeError,
            "a row for each of 24 files, got float64",
        ),
        ({"companions": [np.zeros(())]}, hl.ShapeError, "a row for each of 24 files"),
        ({"companions": [[1] * N]}, TypeError, "NumPy array"),
        ({"companions": [np.zeros((N, 2))[:, ::2]]}, hl.DataError, "C-contiguous"),
        ({"companions": [np.zeros(N)] * 70}, hl.ConfigError, "at most 63, got 70"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments(
    how: dict[str, Any], error: type[Exception], words: str, paths: list[str]
) -> None:
    with pytest.raises(error, match=words):
        image_source(paths, pack_augment("none", 8), **how)


def test_no_files() -> None:
    with pytest.raises(hl.ConfigError, match="n: must be at least 1, got 0"):
        image_source([], pack_augment("none", 8))
    with pytest.raises(hl.ConfigError, match="paths: must be 1, each with a NUL, got 0"):
        _core.image_source(b"no end", 1, 3, pack_augment("none", 8))
    with pytest.raises(TypeError, match="paths: must be bytes"):
        _core.image_source("a\0", 1, 3, pack_augment("none", 8))  # type: ignore[arg-type]
    source = _core.Source(3, [("float32", ())], lambda *_: None)
    with pytest.raises(hl.ConfigError, match="source: must be of images"):
        _core.image_report(source)
    with pytest.raises(TypeError, match="must be a Source"):
        _core.image_report(7)  # type: ignore[arg-type]


def test_names_that_are_no_text(tmp_path: Path, paths: list[str]) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\xfe.img"
    os.link(paths[0], name)
    path = os.fsdecode(name)
    source = image_source([path, paths[2]], pack_augment("none", 8))
    assert len(source.read(np.arange(2))[0]) == 2
    os.unlink(name)
    with pytest.raises(hl.DataError, match=r"image 0, .*No such file"):
        source.read(np.arange(2))


def test_nothing_is_left(paths: list[str]) -> None:
    """Memory of sources, of good and of bad batches."""
    replace(paths[9], b"text")

    def use() -> None:
        source = image_source(
            paths, pack_augment("strong", 16), caching="files", cache_bytes=1 << 20
        )
        read(source, range(9))
        with pytest.raises(hl.DataError):
            read(source)

    use()
    before = _core.alloc_stats()
    for _ in range(5):
        use()
    after = _core.alloc_stats()
    assert (after["n_live"], after["current_bytes"]) == (before["n_live"], before["current_bytes"])


def test_choose_caching(paths: list[str]) -> None:
    decoded = sum(image.width * image.height for image in map(Image.open, paths)) * 3
    assert choose_caching(paths, 3, decoded)[0] == "images"
    assert choose_caching(paths, 1, decoded // 3)[0] == "images"
    assert choose_caching(paths, 3, decoded - 1) == (
        "files", "files, 0 MiB of 0 MiB; decoded they would not fit"
    )  # fmt: skip
    stored = sum(os.stat(path).st_size for path in paths)
    kind, why = choose_caching(paths, 3, stored // 2)
    assert kind == "files"
    assert "50%" in why
    replace(paths[0], b"\xff\xd8\xff")  # shows when it is read
    assert choose_caching(paths, 3, decoded)[0] == "images"
    with pytest.raises(hl.DataError, match="none"):
        choose_caching([*paths, "/none"], 3, decoded)


# ---- real files


@pytest.fixture(scope="module")
def cifar(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """2,000 real files."""
    top = tmp_path_factory.mktemp("cifar")

    def first(members: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        n = 0
        for member in members:
            if member.isfile() and member.name.endswith(".jpg"):
                yield member
                n += 1
            if n == 2000:
                return

    with tarfile.open(data_dir / "cifar10-jpeg.tar.gz") as archive:
        archive.extractall(top, members=first(archive), filter="data")
    return sorted(str(path) for path in top.rglob("*.jpg"))


def test_cifar(cifar: Sequence[str]) -> None:
    """Real files are the pixels that Pillow gives, row by row."""
    source = image_source(cifar, pack_augment("none", 32))
    images = source.read(np.arange(len(cifar)))[0]
    for row in range(0, len(cifar), 37):
        want = np.asarray(Image.open(cifar[row]).convert("RGB")).transpose(2, 0, 1)
        assert np.abs(images[row].astype(int) - want).max() <= 2
