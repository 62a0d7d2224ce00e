"""Hyperspectral cubes: what each kind of file holds, batches, wrong files by their names."""

import os
import resource
from pathlib import Path

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.data.stored.cubes import open_cube
from hotloop.data.stored.envi import read_envi_header
from hotloop.errors import DataError, DataWarning
from needs import take_library

H, W, C = 6, 5, 4
ENVI_TYPES = {1: "u1", 2: "i2", 3: "i4", 4: "f4", 5: "f8", 12: "u2", 13: "u4", 14: "i8", 15: "u8"}
ORDERS = {"bsq": (2, 0, 1), "bil": (0, 2, 1), "bip": (0, 1, 2)}
NANOMETRES = [400.5, 500.0, 600.25, 700.0]


def cube_of(i: int, dtype: str = "f4") -> np.ndarray:
    """A cube whose numbers say where they stand."""
    return (np.arange(H * W * C).reshape(H, W, C) % 120 + i % 7).astype(dtype)


def write_envi(path: Path, cube: np.ndarray, number: int = 4, **wanted: object) -> Path:
    """A header and its data, by the definition of the format; the header's path."""
    interleave, order = str(wanted.pop("interleave", "bip")), int(wanted.pop("byte_order", 0))
    offset, ending = int(wanted.pop("header_offset", 0)), str(wanted.pop("ending", ".raw"))
    data = cube.astype((">" if order else "<") + ENVI_TYPES[number])
    raw = path.with_suffix(ending) if ending else path.with_suffix("")
    in_file = data.transpose(ORDERS[interleave])
    raw.write_bytes(b"\x7f" * offset + in_file.tobytes())
    lines = [
        "ENVI", "description = {", "  of a test; { = }", f"samples = {cube.shape[1]}",
        f"Lines   = {cube.shape[0]}", f"bands = {cube.shape[2]}", f"header offset = {offset}",
        f"data type = {number}", f"interleave = {interleave.upper()}", f"byte order = {order}",
        "; a comment = 3",
    ]  # fmt: skip
    lines += [f"{key.replace('_', ' ')} = {value}" for key, value in wanted.items()]
    path.with_suffix(".hdr").write_text("\n".join(lines) + "\n")
    return path.with_suffix(".hdr")


def rows_of(data: hl.DataModule, split: str) -> np.ndarray:
    """The cubes of a split's batches."""
    return np.concatenate([batch["x"]["cube"] for batch in data.batches_in_order(split)])


def save_npy(folder: Path, n: int) -> np.ndarray:
    """So many cubes of float32 as files, and as one array."""
    cubes = np.stack([cube_of(i) + i for i in range(n)])
    for i, cube in enumerate(cubes):
        np.save(folder / f"cube{i}.npy", cube)
    return cubes


# ---- ENVI


@pytest.mark.parametrize("interleave", ["bsq", "bil", "bip"])
@pytest.mark.parametrize("number", sorted(ENVI_TYPES))
def test_envi_layouts(tmp_path: Path, interleave: str, number: int) -> None:
    for order in (0, 1):
        wanted = cube_of(order, ENVI_TYPES[number])
        header = write_envi(
            tmp_path / f"{order}", wanted, number, interleave=interleave, byte_order=order,
            header_offset=13 * order,
        )  # fmt: skip
        cube = open_cube(str(header), "files[0]")
        assert cube.shape == (H, W, C)
        np.testing.assert_array_equal(cube.read(), wanted)
    data = hl.DataModule.from_cubes(str(tmp_path / "*.hdr"), batch_size=2)
    both = [cube_of(i, ENVI_TYPES[number]) for i in (0, 1)]
    np.testing.assert_array_equal(rows_of(data, "train"), both)


def test_envi_by_any_of_its_files(tmp_path: Path) -> None:
    wanted = cube_of(0)
    for ending in ("", ".raw", ".img", ".dat", ".bsq", ".RAW"):
        folder = tmp_path / (ending or "none")
        folder.mkdir()
        header = write_envi(folder / "scene", wanted, ending=ending)
        data = header.with_suffix(ending) if ending else header.with_suffix("")
        for path in (header, data):
            np.testing.assert_array_equal(open_cube(str(path), "x").read(), wanted)
    header.rename(folder / "scene.RAW.hdr")
    np.testing.assert_array_equal(open_cube(str(data), "x").read(), wanted)


def test_wavelengths_and_scale(tmp_path: Path) -> None:
    micro = ", ".join(str(one / 1000) for one in NANOMETRES)
    for i, (listed, unit) in enumerate([(NANOMETRES, "Nanometers"), (micro, "Micrometers")]):
        write_envi(
            tmp_path / f"{i}", cube_of(i) * 100, 12,
            wavelength=f"{{\n {str(listed).strip('[]')}\n}}", wavelength_units=unit,
            reflectance_scale_factor=100, sensor_type="a camera",
        )  # fmt: skip
    data = hl.DataModule.from_cubes(tmp_path / "*.hdr")
    batch = next(data.batches_in_order("train"))
    np.testing.assert_allclose(batch["x"]["wavelengths"], [NANOMETRES] * 2, rtol=1e-6)
    np.testing.assert_allclose(batch["x"]["cube"], [cube_of(0), cube_of(1)], rtol=1e-6)
    assert data.metadata[1]["sensor type"] == "a camera"
    assert data.metadata[1]["path"].endswith("1.raw")
    raw = hl.DataModule.from_cubes(tmp_path / "*.hdr", scale=1.0, wavelengths=[1, 2, 3, 4])
    batch = next(raw.batches_in_order("train"))
    np.testing.assert_array_equal(batch["x"]["cube"], [cube_of(0) * 100, cube_of(1) * 100])
    np.testing.assert_array_equal(batch["x"]["wavelengths"], [[1, 2, 3, 4]] * 2)


def test_wrong_headers(tmp_path: Path) -> None:
    header = write_envi(tmp_path / "good", cube_of(0))
    good = header.read_text()
    raw = header.with_suffix(".raw").read_bytes()
    for old, new, words in [
        ("ENVI\n", "ENVY\n", "must begin with 'ENVI', got 'ENVY'"),
        ("samples = 5", "sample = 5", "the header lacks 'samples'"),
        ("bands = 4", "bands = four", "'bands' of the header must be a whole number, at least 1"),
        ("bands = 4", "bands = 0", "'bands' of the header must be a whole number, at least 1"),
        ("bands = 4", "bands = -4", "'bands' of the header must be a whole number, at least 1"),
        ("bands = 4", "bands = 5", "must have 600 bytes by its header, for 6 x 5 x 5 numbers of 4"),
        ("bands = 4", "bands = " + "9" * 18, "bytes by its header"),
        ("data type = 4", "data type = 6", "must be real, and 6 and 9 are complex, got 6"),
        ("data type = 4", "data type = 7", "must be one of 1, 2, 3, 4, 5, 12, 13, 14, 15, got 7"),
        ("= BIP", "= PIB", "'interleave' of the header must be bsq, bil or bip, got 'pib'"),
        ("byte order = 0", "byte order = 2", "'byte order' of the header must be 0"),
        ("byte order = 0", "wavelength = {1, 2, 3}", "must have one number for each of 4 bands"),
        ("byte order = 0", "wavelength = {1, 2, a, 3}", "'wavelength' of the header must be num"),
        ("byte order = 0", "wavelength = {1, 2", "has no } behind 'wavelength'; the file is cut"),
        ("byte order = 0", "reflectance scale factor = 0", "must be a number above 0, got '0'"),
        ("byte order = 0", "file compression = 1", "'file compression' of the header is not supp"),
        ("byte order = 0", "major frame offsets = {0, 8}", "'major frame offsets' of the header"),
    ]:
        assert old in good
        header.write_text(good.replace(old, new))
        with pytest.raises(DataError, match=f"^files\\[0\\]: .*{words}"):
            hl.DataModule.from_cubes(header)
    header.write_text(good)
    header.with_suffix(".raw").write_bytes(raw[:-1])
    with pytest.raises(DataError, match=r"must have 480 bytes by its header.*got 479; it is cut"):
        hl.DataModule.from_cubes(header)
    header.with_suffix(".raw").write_bytes(raw + b"12")
    with pytest.warns(DataWarning, match="has 2 bytes more than its header says"):
        read_envi_header(str(header), "x")
    (tmp_path / "good.img").write_bytes(raw)
    with pytest.raises(DataError, match="several files of data are beside it"):
        hl.DataModule.from_cubes(header)
    (tmp_path / "good.img").unlink()
    (tmp_path / "good.raw").unlink()
    with pytest.raises(DataError, match=r"there is no file of data beside it, '.*good.raw'"):
        hl.DataModule.from_cubes(header)


def test_any_header_is_read_or_refused(tmp_path: Path) -> None:
    header = write_envi(tmp_path / "x", cube_of(0), wavelength="{1, 2, 3, 4}")
    good = header.read_bytes()
    rng = np.random.default_rng(0)
    for trial in range(400):
        text = bytearray(good)
        for _ in range(1 + trial % 4):
            at = int(rng.integers(0, len(text)))
            text[at : at + int(rng.integers(0, 3))] = rng.bytes(int(rng.integers(0, 3)))
        header.write_bytes(text[: len(text) if trial % 5 else int(rng.integers(0, len(text)))])
        try:
            open_cube(str(header), "files[0]").read()
        except (DataError, DataWarning) as error:
            assert "files[0]" in str(error)  # noqa: PT017


# ---- other files


def test_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", cube_of(0, ">u2"))
    np.save(tmp_path / "1.npy", np.asfortranarray(cube_of(1)))
    data = hl.DataModule.from_cubes([tmp_path / "1.npy", tmp_path / "0.npy"])
    batch = next(data.batches_in_order("train"))
    np.testing.assert_array_equal(batch["x"]["cube"], [cube_of(1), cube_of(0)])
    assert list(batch["x"]) == ["cube"]
    assert batch["x"]["cube"].dtype == np.float32


def test_hdf5_and_matlab(tmp_path: Path) -> None:
    h5py = take_library("h5py")
    with h5py.File(tmp_path / "0.h5", "w") as file:
        file.create_dataset("scene/data", data=cube_of(0), chunks=(2, 5, 4), compression="gzip")
        file["scene/times"] = np.arange(3.0)
        file.attrs["site"] = "field"
    with h5py.File(tmp_path / "1.mat", "w", userblock_size=512) as file:
        file["cube"] = cube_of(1, "f8").T  # as MATLAB does
        file["cube"].attrs["MATLAB_class"] = np.bytes_("double")
    data = hl.DataModule.from_cubes([tmp_path / "0.h5", tmp_path / "1.mat"])
    np.testing.assert_array_equal(rows_of(data, "train"), [cube_of(0), cube_of(1)])
    assert data.metadata[0]["site"] == "field"
    with h5py.File(tmp_path / "0.h5", "a") as file:
        file["other"] = cube_of(3)
    with pytest.raises(DataError, match=r"must have one array of three dims, got .*; write key="):
        hl.DataModule.from_cubes(tmp_path / "0.h5")
    data = hl.DataModule.from_cubes(tmp_path / "0.h5", key="/other")
    np.testing.assert_array_equal(rows_of(data, "train"), [cube_of(3)])
    with pytest.raises(DataError, match="has no array of numbers 'none', got"):
        hl.DataModule.from_cubes(tmp_path / "0.h5", key="none")
    whole = (tmp_path / "0.h5").read_bytes()
    (tmp_path / "cut.h5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut.h5' is damaged \("):
        hl.DataModule.from_cubes(tmp_path / "cut.h5")
    (tmp_path / "old.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(600))
    with pytest.raises(DataError, match=r"old.mat' is no HDF5 file; save it with '-v7.3'"):
        hl.DataModule.from_cubes(tmp_path / "old.mat")
    with h5py.File(tmp_path / "outside.h5", "w") as file:
        file.create_dataset("a", (2, 2, 2), "u1", external=[(str(tmp_path / "cut.h5"), 0, 8)])
    with pytest.raises(DataError, match="takes the numbers of 'a' from other files"):
        hl.DataModule.from_cubes(tmp_path / "outside.h5")


# ---- batches


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches(tmp_path: Path, workers: int) -> None:
    cubes = save_npy(tmp_path, 23)
    masks = (cubes.sum(3) % 3).astype(np.int64)
    data = hl.DataModule.from_cubes(
        tmp_path / "cube*.npy", masks, val=5, batch_size=4, num_workers=workers
    )
    for split in ("train", "val"):
        rows = data.rows(split)
        np.testing.assert_array_equal(rows_of(data, split), cubes[rows])
        np.testing.assert_array_equal(data.arrays(split)[1], masks[rows])
    for batch in data.train_batches(3):
        for x, y in zip(batch["x"]["cube"], batch["y"]):
            np.testing.assert_array_equal(y, x.sum(2) % 3)
    assert data.n_classes == 3
    assert data.num_workers == workers
    assert hl.DataModule.from_cubes(tmp_path / "cube*.npy").num_workers == 2
    for fold in data.folds(3):
        np.testing.assert_array_equal(rows_of(fold, "val"), cubes[fold.rows("val")])


def test_masks_of_files_and_labels(tmp_path: Path) -> None:
    cubes = save_npy(tmp_path, 6)
    masks = (cubes[..., 0] % 2).astype(bool)
    for i, mask in enumerate(masks):
        np.save(tmp_path / f"mask{i}.npy", mask if i % 2 else mask[:, :, None])
    data = hl.DataModule.from_cubes(tmp_path / "cube*.npy", str(tmp_path / "mask*.npy"))
    np.testing.assert_array_equal(data.arrays("train")[1], masks)
    both = hl.DataModule.from_cubes(
        tmp_path / "cube*.npy", masks, labels=["a", "b", "c"] * 2, batch_size=6
    )
    batch = next(both.batches_in_order("train"))
    np.testing.assert_array_equal(batch["y"]["mask"], masks)
    np.testing.assert_array_equal(batch["y"]["label"], [0, 1, 2] * 2)
    labels = hl.DataModule.from_cubes(tmp_path / "cube*.npy", labels=np.arange(6) % 2, val=2)
    assert labels.class_counts() == [2, 2]


class Detector(nn.Module):
    """A score for each position, of a cube and its wavelengths."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(C, 2)

    def forward(self, x: dict) -> object:
        weight = (x["wavelengths"] / 1000.0)[:, None, None, :]
        return self.score(x["cube"] * 0.01 * weight)


@pytest.mark.parametrize("workers", [0, 2])
def test_trains_on_cubes(tmp_path: Path, workers: int) -> None:
    cubes = save_npy(tmp_path, 16)
    masks = (cubes[..., 0] > cubes[..., 0].mean()).astype(np.int64)
    waves = [450.0, 550.0, 650.0, 750.0]
    options = {"val": 4, "batch_size": 4, "num_workers": workers}
    data = hl.DataModule.from_cubes(tmp_path / "cube*.npy", masks, wavelengths=waves, **options)
    same = hl.DataModule.from_arrays(
        {"cube": cubes, "wavelengths": np.tile(np.float32(waves), (16, 1))}, masks, **options
    )
    trained = []
    for each in (data, same):
        hl.manual_seed(0)
        model = Detector()
        hl.train(model, each, max_epochs=3, lr=0.05, enable_progress_bar=False)
        trained.append(model.state_dict())
    for name, value in trained[0].items():
        np.testing.assert_array_equal(value, trained[1][name])


def test_many_files_hold_no_descriptors_and_no_memory(tmp_path: Path) -> None:
    cubes = save_npy(tmp_path, 300)
    before = len(os.listdir("/proc/self/fd"))
    data = hl.DataModule.from_cubes(tmp_path / "cube*.npy", num_workers=2, batch_size=16)
    for _ in data.train_batches():
        assert len(os.listdir("/proc/self/fd")) <= before + 2
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    big = tmp_path / "big"
    big.mkdir()
    for i in range(8):
        np.save(big / f"{i}.npy", np.full((256, 256, 64), i, np.float32))  # 16 MiB each
    data = hl.DataModule.from_cubes(big / "*.npy", batch_size=1)
    for _ in range(2):
        assert [b["x"]["cube"][0, 0, 0, 0] for b in data.batches_in_order("train")] == list(
            range(8)
        )
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert grown < 80 * 1024  # KiB: a batch as it is read, made and gathered, of 128 MiB
    np.testing.assert_array_equal(cubes[0], np.load(tmp_path / "cube0.npy"))


# ---- wrong input


def test_files_that_change_or_go_are_named(tmp_path: Path) -> None:
    save_npy(tmp_path, 4)
    data = hl.DataModule.from_cubes(tmp_path / "cube*.npy")
    whole = (tmp_path / "cube2.npy").read_bytes()
    for content, words in [
        (
            whole[:-4],
            r"files\[2\]: '.*cube2.npy' cannot be read \(it has 119 numbers, and 120",
        ),
        (None, r"files\[2\]: '.*cube2.npy' cannot be read \(.*No such file"),
    ]:
        (tmp_path / "cube2.npy").unlink()
        if content is not None:
            (tmp_path / "cube2.npy").write_bytes(content)
        with pytest.raises(DataError, match=words):
            rows_of(data, "train")
        with pytest.raises(DataError, match=words):
            hl.train(Sum(), data, max_epochs=1, loss=lambda output, y: output.mean())


class Sum(nn.Module):
    """Something to train."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(C, 1)

    def forward(self, x: dict) -> object:
        return self.scale(x["cube"])


def test_wrong_cubes(tmp_path: Path) -> None:
    save_npy(tmp_path, 3)
    np.save(tmp_path / "flat.npy", np.ones((3, 2)))
    np.save(tmp_path / "small.npy", np.ones((3, 2, C)))
    np.save(tmp_path / "complex.npy", np.ones((H, W, C), complex))
    np.save(tmp_path / "none.npy", np.ones((H, 0, C)))
    (tmp_path / "x.tif").write_bytes(b"II*\0")
    good = str(tmp_path / "cube0.npy")
    for files, words in [
        (
            "flat.npy",
            r"files\[0\]: '.*flat.npy' must be a cube \(height, width, channels\)",
        ),
        ("none.npy", r"files\[0\]: '.*none.npy' must be a cube"),
        ("complex.npy", "must hold numbers, got dtype complex128"),
        (
            [good, str(tmp_path / "small.npy")],
            r"files\[1\]: .*must have the shape of all cubes",
        ),
        ("x.tif", r"files\[0\]: must be a .npy file, an ENVI header \(.hdr\) or an HDF5 file"),
        ("*.hdr", "files: no file matches the pattern"),
        ("y.hdr", "files: there is no file"),
    ]:
        given = files if isinstance(files, list) else str(tmp_path / files)
        with pytest.raises(DataError, match=words):
            hl.DataModule.from_cubes(given)
    every = str(tmp_path / "cube*.npy")
    for options, words in [
        ({"wavelengths": [1, 2, 3]}, "wavelengths: must be a number for each of 4 channels, got"),
        ({"wavelengths": list("abcd")}, "wavelengths: must be a number for each of 4 channels"),
        ({"masks": every}, r"masks\[0\]: '.*cube0.npy' must have the height and width of its cube"),
        ({"masks": good}, "masks: must be one for each of the 3 cubes, got 1; the first are"),
        ({"masks": np.ones((2, H, W))}, "y: must have one entry per row of X"),
        ({"labels": [1, 2]}, "y: must have one entry per row of X"),
    ]:
        with pytest.raises(DataError, match=words):
            hl.DataModule.from_cubes(every, **options)
    with pytest.raises(ValueError, match="scale: must be greater than 0, got 0"):
        hl.DataModule.from_cubes(every, scale=0)


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    save_npy(tmp_path, 3)
    bad = cube_of(1, "f8")
    bad[2, 3, 1] = 1e300
    np.save(tmp_path / "cube1.npy", bad)
    data = hl.DataModule.from_cubes(tmp_path / "cube*.npy")
    words = r"files\[1\]: '.*cube1.npy' must be finite and fit float32, got 1e\+300 at \(2, 3, 1\)"
    with pytest.raises(DataError, match=words):
        rows_of(data, "train")
    (found,) = data.verify(progress=False).values()
    assert list(found) == [1]
    assert "must be finite and fit float32" in found[1]
    labels = np.array([1.0, np.nan, 1.0])
    with pytest.raises(DataError, match="y: must be finite, got nan in row 1"):
        hl.DataModule.from_cubes(tmp_path / "cube*.npy", labels=labels).verify(progress=False)
    loose = hl.DataModule.from_cubes(tmp_path / "cube*.npy", allow_nonfinite=True)
    assert np.isinf(rows_of(loose, "train")).sum() == 1


def test_one_header_without_wavelengths(tmp_path: Path) -> None:
    write_envi(tmp_path / "0", cube_of(0), wavelength="{1, 2, 3, 4}")
    write_envi(tmp_path / "1", cube_of(1))
    with pytest.raises(DataError, match=r"files\[1\]: .* lacks the wavelengths that other files"):
        hl.DataModule.from_cubes(tmp_path / "*.hdr")
