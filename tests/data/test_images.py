"""Image files to pixels: as Pillow decodes them, whatever they hold; hostile ones are errors."""

import io
import os
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import numpy.typing as npt
import pytest
from hotloop import _core
from hotloop.data.images.sources import describe_decoder, read_by_pillow
from needs import take_library

Image = take_library("PIL.Image")
ImageOps = take_library("PIL.ImageOps")
HAS_TURBO = _core.image_decoder()["why_not"] is None
turbo = pytest.mark.skipif(not HAS_TURBO, reason="TurboJPEG is not installed (libturbojpeg0)")


def draw(height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """A smooth picture with an edge and some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    planes = [128 + 90 * np.sin(x / (5 + c) + seed) * np.cos(y / (9 - c)) for c in range(3)]
    picture = np.stack(planes, -1) + 40 * (x > y)[..., None] + rng.normal(0, 6, (height, width, 3))
    return np.asarray(np.clip(picture, 0, 255), np.uint8)


def encode(
    array: npt.NDArray[Any], form: str = "JPEG", mode: str | None = None, **how: Any
) -> bytes:
    """A file of it; mode: converted first."""
    image = Image.fromarray(array)
    file = io.BytesIO()
    (image.convert(mode) if mode else image).save(file, form, **how)
    return file.getvalue()


def by_pillow(data: bytes, mode: str = "RGB") -> npt.NDArray[np.uint8]:
    """Pillow's pixels of shape (height, width, channels)."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert(mode)
    array = np.asarray(image)
    return array if array.ndim == 3 else array[:, :, None]


def decode(data: bytes, channels: int = 3, *least: int) -> npt.NDArray[np.uint8]:
    """The core's, with Pillow for what TurboJPEG does not decode."""
    return _core.decode_image(data, channels, *(least or (0, 0)), read_by_pillow)


def distance(a: npt.NDArray[np.uint8], b: npt.NDArray[np.uint8]) -> int:
    """The largest difference, in levels."""
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b).max())


def is_same_library() -> bool:
    """Pillow's wheels hold libjpeg-turbo, whose pixels are those of TurboJPEG; others may not."""
    features = take_library("PIL.features")
    return bool(features.check_feature("libjpeg_turbo"))


# libjpeg-turbo's vector code and plain code give the same bits; other libjpegs round differently.
TOLERANCE = 0 if is_same_library() else 2


@pytest.mark.parametrize("quality", [30, 75, 95])
@pytest.mark.parametrize(
    "how", ["4:4:4", "4:2:2", "4:2:0", "progressive", "optimize", "keep_rgb", "restarts"]
)
def test_jpeg_is_pillows(how: str, quality: int) -> None:
    options: dict[str, Any] = {"subsampling": how} if ":" in how else {how: True}
    options = {"restart_marker_blocks": 3} if how == "restarts" else options
    for size in [(1, 1), (7, 300), (64, 64), (129, 83)]:
        data = encode(draw(*size), quality=quality, **options)
        assert distance(decode(data), by_pillow(data)) <= TOLERANCE


def test_grey() -> None:
    data = encode(draw(50, 70), mode="L", quality=90)
    assert distance(decode(data, 1), by_pillow(data, "L")) <= TOLERANCE
    assert distance(decode(data, 3), by_pillow(data)) <= TOLERANCE
    # Of a colour file: its luma, where Pillow takes that of the RGB levels, each rounded.
    smooth = np.asarray(draw(50, 70) // 4 + 96, np.uint8)  # nothing is clipped
    data = encode(smooth, quality=90)
    assert distance(decode(data, 1), by_pillow(data, "L")) <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation(orientation: int, form: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(draw(40, 56), form, exif=exif)
    got = decode(data)
    assert got.shape == ((56, 40, 3) if orientation >= 5 else (40, 56, 3))
    assert distance(got, by_pillow(data)) <= TOLERANCE
    assert _core.image_header(data)[1:] == (got.shape[:2] if form == "JPEG" else (0, 0))


def test_cmyk() -> None:
    data = encode(draw(40, 56), mode="CMYK", quality=92)
    # Pillow converts what its libjpeg gives, as the core does.
    assert distance(decode(data), by_pillow(data)) <= TOLERANCE
    grey = np.asarray(Image.fromarray(by_pillow(data)).convert("L"))[:, :, None]
    assert distance(decode(data, 1), grey) <= TOLERANCE


def palette() -> bytes:
    image = Image.fromarray(draw(30, 20)).quantize(16)
    file = io.BytesIO()
    image.save(file, "PNG", transparency=3)
    return file.getvalue()


def sixteen() -> tuple[bytes, npt.NDArray[np.uint16]]:
    levels = np.arange(20 * 30, dtype=np.uint16).reshape(20, 30) * 109
    return encode(levels, "PNG"), levels


@pytest.mark.parametrize("form", ["PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "TGA"])
def test_other_formats(form: str) -> None:
    data = encode(draw(33, 21), form)
    assert np.array_equal(decode(data), by_pillow(data))
    assert distance(decode(data, 1), by_pillow(data, "L")) == 0


def test_other_modes() -> None:
    rgba = np.dstack([draw(20, 30), np.full((20, 30), 7, np.uint8)])
    assert np.array_equal(decode(encode(rgba, "PNG")), rgba[:, :, :3])  # transparency is left out
    for mode in ["1", "L", "LA"]:
        data = encode(draw(20, 30), "PNG", mode)
        assert np.array_equal(decode(data), by_pillow(data))
        assert np.array_equal(decode(data, 1), by_pillow(data, "L"))
    assert np.array_equal(decode(palette()), by_pillow(palette()))
    data, levels = sixteen()
    assert np.array_equal(decode(data, 1)[:, :, 0], levels >> 8)
    assert np.array_equal(decode(data), np.repeat(levels[:, :, None] >> 8, 3, 2))
    with pytest.raises(hl.DataError, match=r"8 or 16 bits.* mode F"):
        decode(encode(np.ones((4, 5), np.float32), "TIFF"))
    with pytest.raises(hl.DataError, match=r"8 or 16 bits.* mode I"):  # of 32 bits
        decode(encode(np.ones((4, 5), np.int32), "TIFF"))


@pytest.mark.parametrize("white", [65535, 4095])
def test_grey_maps_of_more_than_8_bits(white: int) -> None:
    levels = (np.arange(20 * 30).reshape(20, 30) * 107 % (white + 1)).astype(np.uint16)
    data = b"P5 30 20 %d\n" % white + levels.astype(">u2").tobytes()
    plain = b"P2 30 20 %d\n" % white + b" ".join(b"%d" % n for n in levels.ravel())
    want = np.round(levels / white * 65535).astype(np.uint16) >> 8
    for each in (data, plain):
        assert np.array_equal(decode(each, 1)[:, :, 0], want)
        assert np.array_equal(decode(each), np.repeat(want[:, :, None], 3, 2))


def test_animations_give_their_first_image() -> None:
    first, second = (Image.fromarray(draw(20, 30, seed)) for seed in (1, 2))
    file = io.BytesIO()
    first.save(file, "GIF", save_all=True, append_images=[second])
    assert np.array_equal(decode(file.getvalue()), by_pillow(file.getvalue()))


@turbo
def test_scales() -> None:
    """A scaled image is the picture, no larger than needed and no smaller."""
    data = encode(draw(400, 300), quality=90)
    whole = decode(data).astype(float)
    for least, want in [((200, 150), 2), ((100, 75), 4), ((50, 38), 8), ((1, 1), 8), ((201, 1), 1)]:
        got = decode(data, 3, *least)
        assert got.shape[:2] == (-(-400 // want), -(-300 // want))
        height, width = 400 // want * want, 300 // want * want
        blocks = whole[:height, :width].reshape(height // want, want, width // want, want, 3)
        means = blocks.mean((1, 3))
        error = np.abs(got[: height // want, : width // want] - means)
        # A DCT's low frequencies are no box filter: the same picture, not the same levels.
        assert error.mean() < 6
        shifted = np.abs(np.roll(got, 2, 1)[: height // want, : width // want] - means)
        assert want == 8 or error.mean() < shifted.mean() / 2


def test_pillow_reads_jpeg_where_turbojpeg_is_missing() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(draw(160, 96), exif=exif)
    whole = read_by_pillow("x", data, 3, 0, 0)
    assert np.array_equal(whole, by_pillow(data))
    small = read_by_pillow("x", data, 3, 24, 40)
    assert small.shape == (24, 40, 3)
    assert read_by_pillow("x", data, 1, 25, 40).shape == (48, 80, 1)


_ELSEWHERE = """
import sys
import numpy as np
from hotloop import _core
from hotloop.data.augment import pack_augment
from hotloop.data.images.sources import describe_decoder, image_source, read_by_pillow
print(describe_decoder())
np.save(sys.argv[2], _core.decode_image(sys.argv[1], 3, 0, 0, read_by_pillow))
print(image_source(sys.argv[1:2], pack_augment("none", 16)).read(np.arange(1))[0].shape)
try:
    _core.decode_image(sys.argv[1])
except Exception as error:
    print(type(error).__name__, error)
"""


@turbo
@pytest.mark.skipif(
    _core.image_decoder()["path"] == "", reason="TurboJPEG is inside of this build (HL_TURBOJPEG)"
)
def test_a_machine_without_turbojpeg(tmp_path: Path) -> None:
    """Pillow decodes JPEG then, to the same pixels, and the header says so."""
    (tmp_path / "a.jpg").write_bytes(data := encode(draw(80, 60)))
    cases = [(tmp_path / "none.so", "none.so: "), (_core.__file__, "lacks tjInitDecompress")]
    for library, words in cases:
        run = subprocess.run(
            [sys.executable, "-c", _ELSEWHERE, str(tmp_path / "a.jpg"), str(tmp_path / "made.npy")],
            env={**os.environ, "HOTLOOP_TURBOJPEG_PATH": str(library)},
            capture_output=True,
            text=True,
            check=True,
        )
        decoder, shape, error = run.stdout.splitlines()
        assert decoder.startswith("Pillow")
        assert f"(no TurboJPEG: {library}" in decoder
        assert words in decoder
        assert shape == "(1, 3, 16, 16)"
        assert error.startswith("ConfigError image ")
        assert "TurboJPEG or another reader must be there" in error
        assert distance(np.load(tmp_path / "made.npy"), decode(data)) <= TOLERANCE


# ---- errors


WHOLE = encode(draw(64, 48), quality=85)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\0", "cannot identify"),
        (b"this is no image\n" * 9, "cannot identify"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot identify"),
        (WHOLE[:200], "header must be whole"),
        (WHOLE[: len(WHOLE) // 2], "must be whole and intact, got 'Premature end|truncated"),
        (WHOLE[:-2], "must be whole and intact|truncated"),  # by Pillow where TurboJPEG is not
        (encode(draw(9, 9), "PNG")[:-30], "Pillow must be able to decode it"),
        (b"\xff\xd8\xff" + bytes(50), "header must be whole"),
    ],
    ids=["byte", "text", "eps", "in_header", "in_scan", "no_end", "png", "zeros"],
)
def test_what_cannot_be_decoded_is_a_data_error(data: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(hl.DataError, match=words):
        decode(data)
    path = tmp_path / "wrong.jpg"
    path.write_bytes(data)
    with pytest.raises(hl.DataError, match=words) as caught:
        _core.decode_image(path, 3, 0, 0, read_by_pillow)
    assert str(path) in str(caught.value)
    assert "BytesIO" not in str(caught.value)


def test_what_is_no_file_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    cases = {"none.jpg": "No such file", "empty.jpg": "got 0 bytes", "": "Is a directory"}
    for name, words in cases.items():
        for call in (_core.decode_image, _core.image_header):
            with pytest.raises(hl.DataError, match=words) as caught:
                call(str(tmp_path / name))  # type: ignore[operator]
            assert str(tmp_path / name) in str(caught.value)


def test_bombs_are_refused_by_their_header() -> None:
    before = _core.alloc_stats()["n_total"]
    frame = WHOLE.index(b"\xff\xc0")
    for height, width in [(65500, 65500), (9460, 9460)]:
        sides = height.to_bytes(2, "big") + width.to_bytes(2, "big")
        data = WHOLE[: frame + 5] + sides + WHOLE[frame + 9 :]
        with pytest.raises(hl.DataError, match=rf"bomb\), got {height} x {width}"):
            decode(data)
    assert _core.alloc_stats()["n_total"] == before  # refused before memory is asked for
    png = encode(np.zeros((1, 1), np.uint8), "PNG")
    header = b"IHDR" + (9460).to_bytes(4, "big") * 2 + png[24:29]
    data = png[:12] + header + zlib.crc32(header).to_bytes(4, "big") + png[33:]
    with (
        pytest.warns(Image.DecompressionBombWarning),
        pytest.raises(hl.DataError, match=r"bomb\), got 9460 x 9460"),
    ):
        decode(data)


@turbo
def test_odd_files_are_pillows_to_judge() -> None:
    """TurboJPEG tells its first warning alone: a cut behind a harmless one shows all the same."""
    odd = WHOLE[:20] + b"odd" + WHOLE[20:]
    assert distance(decode(odd), by_pillow(WHOLE)) <= TOLERANCE
    with pytest.raises(hl.DataError, match="truncated"):
        decode(odd[: len(odd) // 2])
    with pytest.raises(hl.ConfigError, match="a reader must be there for format JPEG"):
        _core.decode_image(odd[: len(odd) // 2])


def test_the_cause_of_an_error_is_what_was_raised() -> None:
    def read(*_: Any) -> Any:
        raise KeyError("words of its own")

    with pytest.raises(hl.DataError, match="words of its own") as caught:
        _core.decode_image(b"GIF89a", 3, 0, 0, read)
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_cause_with_a_path_in_front(tmp_path: Path) -> None:
    path = tmp_path / "a.gif"
    path.write_bytes(b"GIF89a")

    def read(*_: Any) -> Any:
        raise ValueError("words of its own")

    with pytest.raises(hl.DataError) as caught:
        _core.decode_image(path, 3, 0, 0, read)
    assert str(caught.value) == f"image {path}: words of its own"
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (np.zeros((4, 5), np.uint8), "must give uint8"),
        (np.zeros((4, 5, 1), np.uint8), "must give uint8"),
        (np.zeros((4, 5, 3), np.int64), "must give uint8"),
        (np.zeros((0, 5, 3), np.uint8), "must have 1 to"),
        (None, "must be a NumPy array"),
    ],
    ids=["rank", "channels", "dtype", "empty", "none"],
)
def test_what_a_reader_gives_is_checked(made: Any, words: str) -> None:
    with pytest.raises(hl.DataError, match=words):
        _core.decode_image(b"GIF89a", 3, 0, 0, lambda *_: made)


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(hl.ConfigError, match="pip install pillow"):
        decode(b"GIF89a")
    assert "pip install pillow" in describe_decoder() or not HAS_TURBO


def test_arguments() -> None:
    with pytest.raises(hl.ConfigError, match="must be 1 or 3, got 2"):
        _core.decode_image(WHOLE, 2)
    with pytest.raises(TypeError, match="callable"):
        _core.decode_image(WHOLE, 3, 0, 0, 7)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _core.decode_image(7)  # type: ignore[arg-type]


# ---- what changes in a file changes nothing else


@turbo
def test_mutated_files_never_crash() -> None:
    """Through Pillow too; those of TurboJPEG alone are in tests/c/test_image.c, by thousands."""
    rng = np.random.default_rng(5)
    files = [WHOLE, encode(draw(40, 30), "PNG"), palette(), encode(draw(40, 30), "WEBP")]
    n_good = 0
    for i in range(400):
        data = bytearray(files[i % len(files)])
        for _ in range(rng.integers(1, 5)):
            data[rng.integers(len(data))] = rng.integers(256)
        try:
            image = decode(bytes(data[: rng.integers(1, len(data) + 1)] if i % 3 == 0 else data))
            assert image.ndim == 3
            n_good += 1
        except hl.DataError:
            continue
    assert 0 < n_good < 400


def test_cifar(data_dir: Path) -> None:
    """Real files: equal to Pillow's."""
    with tarfile.open(data_dir / "cifar10-jpeg.tar.gz") as archive:
        n = 0
        for member in archive:
            if not member.name.endswith(".jpg"):
                continue
            file = archive.extractfile(member)
            assert file is not None
            data = file.read()
            assert distance(decode(data), by_pillow(data)) <= TOLERANCE
            n += 1
            if n == 500:
                break
    assert n == 500
