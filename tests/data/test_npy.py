"""Arrays in .npy files: mapped, several as one, and wrong files by their names."""

import itertools
import mmap
import os
import re
import tracemalloc
from pathlib import Path

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.data.streams import stream_of
from hotloop.errors import ConfigError, DataError, DataWarning
from needs import plain_permissions


def save(folder: Path, array: np.ndarray, n_files: int, name: str = "X") -> str:
    """The array's rows in so many files, of which the first has the fewest; their pattern."""
    edges = np.linspace(0, len(array), n_files + 2).astype(int)[[0, *range(2, n_files + 2)]]
    edges = np.sort(len(array) - edges)
    for i, (begin, end) in enumerate(itertools.pairwise(edges)):
        np.save(folder / f"{name}{i}.npy", array[begin:end])
    return str(folder / f"{name}*.npy")


def rows_of(data: hl.DataModule, split: str) -> np.ndarray:
    """X of a split's batches."""
    return np.concatenate([batch["x"] for batch in data.batches_in_order(split)])


# ---- in place


def test_one_file_is_used_in_place(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(4000, 1000)).astype(np.float32)
    np.save(tmp_path / "X.npy", array)
    tracemalloc.start()
    data = hl.DataModule.from_npy(tmp_path / "X.npy", np.arange(4000) % 3, val=0.1, batch_size=50)
    batch = next(data.train_batches())
    data.check("train")
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < array.nbytes / 4
    field = data.split("train").fields[0]
    base = field.array
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, mmap.mmap)
    assert not field.array.flags.writeable
    order = data.rows("train")
    assert batch["x"].shape == (50, 1000)
    np.testing.assert_array_equal(rows_of(data, "train"), array[order])
    assert held < array.nbytes / 4


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "int8", "uint8", "bool"])
def test_dtypes_of_the_core_are_in_place(tmp_path: Path, dtype: str) -> None:
    array = (np.arange(60).reshape(20, 3) % 2).astype(dtype)
    np.save(tmp_path / "X.npy", array)
    data = hl.DataModule.from_npy(str(tmp_path / "X.npy"))
    assert data.split("train").fields[0].stream is None
    np.testing.assert_array_equal(rows_of(data, "train"), array)


@pytest.mark.parametrize("make", [np.memmap, np.load], ids=["memmap", "load"])
def test_maps_through_from_arrays_are_in_place(tmp_path: Path, make: object) -> None:
    array = np.random.default_rng(0).normal(size=(300, 40)).astype(np.float32)
    np.save(tmp_path / "X.npy", array)
    array.tofile(tmp_path / "X.raw")
    if make is np.load:
        mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    else:
        mapped = np.memmap(tmp_path / "X.raw", np.float32, "r", shape=(300, 40))
    data = hl.DataModule.from_arrays(mapped, val=0.2)
    assert np.shares_memory(data.split("train").fields[0].array, mapped)
    np.testing.assert_array_equal(rows_of(data, "val"), array[data.rows("val")])


def test_dlpack_is_in_place() -> None:
    class Producer:
        """Has DLPack alone, as arrays of other libraries do."""

        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: object) -> object:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    array = np.random.default_rng(0).normal(size=(300, 40)).astype(np.float32)
    data = hl.DataModule.from_arrays(Producer(array), val=0.2)
    assert np.shares_memory(data.split("train").fields[0].array, array)


# ---- several files


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint16", ">f4", "uint8", "int32"])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_several_files_are_one_array(tmp_path: Path, dtype: str, workers: int) -> None:
    array = (np.random.default_rng(0).random((500, 3, 2)) * 200).astype(dtype)
    y = np.arange(500) % 4
    pattern = save(tmp_path, array, 12)  # X10 comes behind X9
    save(tmp_path, y, 5, "y")
    data = hl.DataModule.from_npy(
        pattern, str(tmp_path / "y*.npy"), val=0.3, test=50, num_workers=workers, batch_size=32
    )
    for split in ("train", "val", "test"):
        wanted = array[data.rows(split)].astype("float32" if array.dtype.kind == "f" else dtype)
        np.testing.assert_array_equal(rows_of(data, split), wanted)
        np.testing.assert_array_equal(data.arrays(split)[1], y[data.rows(split)])
    same = hl.DataModule.from_arrays(
        array.astype(array.dtype.newbyteorder("=")), y, val=0.3, test=50, batch_size=32
    )
    for one, other in zip(data.train_batches(1), same.train_batches(1)):
        np.testing.assert_array_equal(one["x"], other["x"])
        np.testing.assert_array_equal(one["y"], other["y"])
        assert one["x"].dtype == other["x"].dtype


@pytest.mark.parametrize("workers", [0, 2])
def test_trains_as_on_arrays(tmp_path: Path, workers: int) -> None:
    rng = np.random.default_rng(0)
    array = rng.normal(size=(300, 6)).astype(np.float32) * 3 + 1
    y = (array.sum(1) > 6).astype(int)
    pattern = save(tmp_path, array, 4)
    trained = []
    for files in (True, False):
        options = {"val": 0.2, "standardize": True, "batch_size": 32}
        if files:
            data = hl.DataModule.from_npy(pattern, y, num_workers=workers, **options)
        else:
            data = hl.DataModule.from_arrays(array, y, **options)
        hl.manual_seed(0)
        model = nn.Linear(6, 2)
        result = hl.train(model, data, max_epochs=3, enable_progress_bar=False)
        trained.append((model.state_dict(), result.history["val_loss"]))
    for name, value in trained[0][0].items():
        np.testing.assert_array_equal(value, trained[1][0][name])
    assert list(trained[0][1]) == list(trained[1][1])


def test_several_inputs_and_everything_else_from_files(tmp_path: Path) -> None:
    a, b = np.arange(40.0).reshape(20, 2), np.arange(20)
    paths = {}
    for name, array in (("a", a), ("b", b), ("w", np.ones(20)), ("g", np.repeat([0, 1, 2, 3], 5))):
        paths[name] = str(tmp_path / f"{name}.npy")
        np.save(paths[name], array)
    data = hl.DataModule.from_npy(
        {"a": paths["a"], "b": Path(paths["b"])}, paths["g"], sample_weight=paths["w"],
        groups=paths["g"], val=5,
    )  # fmt: skip
    (batch,) = data.batches_in_order("val")
    np.testing.assert_array_equal(batch["x"]["a"], a[data.rows("val")])
    np.testing.assert_array_equal(batch["x"]["b"], b[data.rows("val")])
    assert len(set(batch["y"])) == 1
    assert len(data.folds(4)) == 4
    pair = hl.DataModule.from_npy((paths["a"], [paths["b"]]), {"g": paths["g"]})
    assert isinstance(next(pair.train_batches())["x"], tuple)


def test_folds_and_sampling_of_several_files(tmp_path: Path) -> None:
    array, y = np.arange(120.0)[:, None], np.arange(120) % 3
    pattern = save(tmp_path, array, 3)
    for fold in hl.DataModule.from_npy(pattern, y, test=20, sampler="balanced").folds(4):
        np.testing.assert_array_equal(rows_of(fold, "val")[:, 0], fold.rows("val"))
        assert sum(len(batch["x"]) for batch in fold.train_batches()) == 75


def test_fortran_order_is_streamed_and_warns(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    np.save(tmp_path / "X.npy", np.asfortranarray(array))
    with pytest.warns(DataWarning, match="X: '.*X.npy' is in Fortran order, so that a row lies"):
        data = hl.DataModule.from_npy(tmp_path / "X.npy")
    assert stream_of(data.split("train").fields[0].array) is not None
    np.testing.assert_array_equal(rows_of(data, "train"), array)


def test_files_deleted_while_mapped_are_still_read(tmp_path: Path) -> None:
    array = np.arange(30.0)[:, None]
    pattern = save(tmp_path, array, 3)
    data = hl.DataModule.from_npy(pattern)
    rows_of(data, "train")
    for path in tmp_path.iterdir():
        path.unlink()
    np.testing.assert_array_equal(rows_of(data, "train"), array)


def test_more_files_than_stay_mapped(tmp_path: Path) -> None:
    array = np.arange(900.0)[:, None]
    pattern = save(tmp_path, array, 300)
    before = len(os.listdir("/proc/self/fd"))
    data = hl.DataModule.from_npy(pattern, num_workers=2, batch_size=300)
    np.testing.assert_array_equal(rows_of(data, "train"), array)
    assert len(os.listdir("/proc/self/fd")) <= before + 70
    np.save(tmp_path / "X7.npy", np.ones((5, 1)))
    with pytest.raises(DataError, match=r"X: '.*X7.npy' has changed, float64 of shape \(5, 1\) in"):
        rows_of(data, "train")
    (tmp_path / "X7.npy").unlink()
    with pytest.raises(DataError, match=r"X: '.*X7.npy' cannot be read \(No such file"):
        rows_of(data, "train")


# ---- wrong input


def write(path: Path, content: bytes) -> Path:
    """A file of some bytes."""
    path.write_bytes(content)
    return path


def npy_bytes(array: np.ndarray, tmp_path: Path) -> bytes:
    """What np.save writes."""
    np.save(tmp_path / "whole.npy", array, allow_pickle=True)
    return (tmp_path / "whole.npy").read_bytes()


def test_wrong_files(tmp_path: Path) -> None:
    whole = npy_bytes(np.arange(1000.0), tmp_path)
    objects = npy_bytes(np.array([1, "a", None], object), tmp_path)
    np.savez(tmp_path / "several.npz", a=np.ones(3))
    np.save(tmp_path / "text.npy", np.array(["a", "b"]))
    np.save(tmp_path / "one.npy", np.float32(3))
    for path, words in [
        (tmp_path / "none.npy", "X: there is no file '.*none.npy'"),
        (tmp_path / "*.csv", "X: no file matches the pattern '.*[*].csv'"),
        (tmp_path, r"X: '.*' is a folder; write '.*[*]'"),
        (write(tmp_path / "cut.npy", whole[:-8]), "X: '.*cut.npy' is shorter than its header says"),
        (write(tmp_path / "head.npy", whole[:40]), "X: '.*head.npy' has a damaged header"),
        (write(tmp_path / "empty.npy", b""), "X: '.*empty.npy' is empty"),
        (write(tmp_path / "csv.npy", b"1,2,3"), "X: '.*csv.npy' is no .npy file: its first bytes"),
        (write(tmp_path / "objects.npy", objects), "X: '.*objects.npy' holds Python objects"),
        (tmp_path / "several.npz", "X: '.*several.npz' is an archive of several arrays"),
        (tmp_path / "text.npy", "X: must hold numbers, got dtype <U1 in '.*text.npy'"),
        (tmp_path / "one.npy", "X: '.*one.npy' holds one number, and rows are needed"),
        (np.ones(3), "X: must be a path, a pattern or a list of them, got ndarray"),
        ([], "X: must be a path, a pattern or a list of them, got list"),
        (None, "X: must be a path, a pattern or a list of them, got NoneType None"),
        ({"a": 3}, r"X\['a'\]: must be a path, a pattern or a list of them, got int 3"),
    ]:
        with pytest.raises(DataError, match=words):
            hl.DataModule.from_npy(path)


def test_unreadable(tmp_path: Path) -> None:
    path = write(tmp_path / "x.npy", npy_bytes(np.ones(3), tmp_path))
    path.chmod(0)
    said = r"x.npy' cannot be read \(Permission denied\)"
    with plain_permissions(), pytest.raises(DataError, match=said):
        hl.DataModule.from_npy(path)


def test_every_cut_and_flipped_header_is_an_error_or_the_array(tmp_path: Path) -> None:
    whole = npy_bytes(np.arange(12.0).reshape(4, 3), tmp_path)
    rng = np.random.default_rng(0)
    path = tmp_path / "x.npy"
    for trial in range(300):
        content = bytearray(whole)
        if trial % 3 == 0:
            content = content[: int(rng.integers(0, len(whole)))]
        else:
            content[int(rng.integers(0, 128))] = int(rng.integers(0, 256))
        path.write_bytes(content)
        try:
            data = hl.DataModule.from_npy(path, allow_nonfinite=True)
            rows_of(data, "train")
        except (DataError, ConfigError, DataWarning) as error:
            assert "X" in str(error)  # noqa: PT017


def test_files_that_differ(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((3, 2)))
    np.save(tmp_path / "b.npy", np.ones((3, 3)))
    np.save(tmp_path / "c.npy", np.ones((3, 2), np.float32))
    a, b, c = (str(tmp_path / f"{name}.npy") for name in "abc")
    words = r"X: files must have rows of one shape, \(2,\) as in '.*a.npy', got \(3,\) in '.*b.npy'"
    with pytest.raises(DataError, match=words):
        hl.DataModule.from_npy([a, b])
    words = "X: files must have one dtype, float64 as in '.*a.npy', got float32 in '.*c.npy'"
    with pytest.raises(DataError, match=words):
        hl.DataModule.from_npy([a, c])
    with pytest.raises(DataError, match="y: must have one entry per row of X, which has 3, got 6"):
        hl.DataModule.from_npy(a, [a, a])


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_values_that_are_not_finite_are_named(tmp_path: Path, value: float) -> None:
    array = np.ones((60, 2))
    array[47, 1] = value
    pattern = save(tmp_path, array, 3)
    data = hl.DataModule.from_npy(pattern, batch_size=60)
    words = rf"got {re.escape(str(value))} in row 47 \(row \d+ of '.*X\d.npy'\)"
    with pytest.raises(DataError, match=words):
        rows_of(data, "train")
    with pytest.raises(DataError, match=words):
        hl.train(nn.Linear(2, 1), hl.DataModule.from_npy(pattern, np.ones(60)), max_epochs=1)
    (found,) = data.verify(progress=False).values()
    assert list(found) == [47]
    assert data.num_workers == 1
    loose = hl.DataModule.from_npy(pattern, allow_nonfinite=True)
    assert not np.isfinite(rows_of(loose, "train")).all()
