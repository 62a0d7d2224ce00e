"""Files of torch.save are read as data: what would run something is refused by name."""

import contextlib
import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop.errors import CheckpointError
from hotloop.interop.torch_file import read_torch_file


class Storage:
    """Stands for a storage in a pickle."""

    def __init__(self, kind: str, key: str, count: int) -> None:
        self.id = ("storage", Named("torch", kind), key, "cpu", count)


class Named:
    """A global of any name."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Called:
    """A call of a global."""

    def __init__(self, function: Named, *args: Any) -> None:
        self.function, self.args = function, args


class Pickler(pickle._Pickler):  # the one in Python, whose parts can be replaced
    """Writes what torch.save would, and what it never would."""

    def persistent_id(self, obj: Any) -> Any:
        return obj.id if isinstance(obj, Storage) else None

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Named):
            self.write(f"c{obj.module}\n{obj.name}\n".encode())
        elif isinstance(obj, Called):
            self.save(obj.function)
            self.save(obj.args)
            self.write(b"R")
        else:
            super().save(obj, save_persistent_id)


def dump(value: Any) -> bytes:
    out = io.BytesIO()
    Pickler(out, 2).dump(value)
    return out.getvalue()


def tensor(key: str = "0", shape: Any = (2, 3), strides: Any = (3, 1), offset: Any = 0,
           count: int = 6, kind: str = "FloatStorage") -> Called:  # fmt: skip
    rebuild = Named("torch._utils", "_rebuild_tensor_v2")
    return Called(rebuild, Storage(kind, key, count), offset, shape, strides, False, OrderedDict())


def write(path: Path, value: Any, data: dict[str, bytes] | None = None) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/data.pkl", value if isinstance(value, bytes) else dump(value))
        for key, numbers in (data or {"0": np.arange(6, dtype="<f4").tobytes()}).items():
            archive.writestr(f"net/data/{key}", numbers)
    return path


def test_a_state(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pth", {"w": tensor(), "t": tensor(strides=(1, 2)), "n": tensor(
        shape=(), strides=(), offset=5)})  # fmt: skip
    state = hl.read_weights(path)
    np.testing.assert_array_equal(state["w"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(state["t"], [[0, 2, 4], [1, 3, 5]])
    assert state["n"] == 5.0
    assert all(a.flags["C_CONTIGUOUS"] and a.flags["WRITEABLE"] for a in state.values())


def test_expanded_tensors(tmp_path: Path) -> None:
    """They have fewer numbers than elements, and are no copies: a file could ask for any size."""
    state = {"e": tensor(shape=(5, 3), strides=(0, 1), offset=3), "w": tensor(strides=(1, 1)),
             "huge": tensor(shape=(1 << 40,), strides=(0,))}  # fmt: skip
    found = hl.read_weights(write(tmp_path / "a.pth", state))
    np.testing.assert_array_equal(found["e"], [[3, 4, 5]] * 5)
    np.testing.assert_array_equal(found["w"], [[0, 1, 2], [1, 2, 3]])
    assert found["huge"].shape == (1 << 40,)
    assert not found["e"].flags["WRITEABLE"]


@pytest.mark.parametrize(
    ("kind", "dtype", "values"),
    [
        ("DoubleStorage", "<f8", [1.5, 2.5]), ("HalfStorage", "<f2", [1.5, 2.5]),
        ("LongStorage", "<i8", [3, -4]), ("IntStorage", "<i4", [3, -4]),
        ("ShortStorage", "<i2", [3, -4]), ("CharStorage", "<i1", [3, -4]),
        ("ByteStorage", "<u1", [3, 4]), ("BoolStorage", "?", [True, False]),
    ],
)  # fmt: skip
def test_dtypes(kind: str, dtype: str, values: Any, tmp_path: Path) -> None:
    numbers = np.array(values, dtype)
    one = tensor(shape=(2,), strides=(1,), count=2, kind=kind)
    path = write(tmp_path / "a.pth", {"w": one}, {"0": numbers.tobytes()})
    found = hl.read_weights(path)["w"]
    assert found.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found, numbers)


def test_bfloat16_is_float32(tmp_path: Path) -> None:
    one = tensor(shape=(2,), strides=(1,), count=2, kind="BFloat16Storage")
    path = write(tmp_path / "a.pth", {"w": one}, {"0": struct.pack("<HH", 0x3FC0, 0xC000)})
    np.testing.assert_array_equal(hl.read_weights(path)["w"], np.float32([1.5, -2.0]))


SYSTEM = Named("os", "system")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"w": tensor(), "x": Called(SYSTEM, "echo ran")}, r"holds os\.system"),
        ({"w": Called(Named("builtins", "eval"), "1")}, r"holds builtins\.eval"),
        ({"w": Named("numpy.core.multiarray", "_reconstruct")}, "_reconstruct"),
        ({"args": Called(Named("argparse", "Namespace"))}, r"holds argparse\.Namespace"),
        ({"w": Called(Named("torch", "load"), "x")}, r"call of torch\.load"),
        ({"w": Called(Named("torch._utils", "_rebuild_tensor_v2"), 1, 2, 3, 4)}, "damaged tensor"),
    ],
)  # fmt: skip
def test_nothing_is_run(value: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=words):
        hl.read_weights(write(tmp_path / "a.pth", value))


@pytest.mark.parametrize(
    "bad",
    [
        tensor(shape=(3, 3)), tensor(offset=1), tensor(offset=-1), tensor(shape=(-1, 3)),
        tensor(strides=(1 << 62, 1)), tensor(shape=(1 << 40, 1 << 40), strides=(0, 0)),
        tensor(shape=(2, 3), strides=(3,)), tensor(shape=[2, 3]), tensor(count=7),
        tensor(key="7"), tensor(shape=(True, 3)), tensor(kind="OtherStorage"),
        tensor(shape=(0, 1 << 70)), tensor(shape=(1, 3), strides=(1 << 70, 1)),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit(bad: Called, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        hl.read_weights(write(tmp_path / "a.pth", {"w": bad}))


def test_what_is_no_state(tmp_path: Path) -> None:
    for value, words in (
        ([1, 2], "got list"), ({"epoch": 3}, "got a dict"), (3, "got int"),
        ({"a": {"w": tensor()}, "b": {"w": tensor()}}, "several state_dicts; write key="),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=words):
            hl.read_weights(write(tmp_path / "a.pth", value))
    path = write(tmp_path / "a.pth", {"a": {"w": tensor()}, "b": {"v": tensor()}})
    assert list(hl.read_weights(path, key="b")) == ["v"]
    with pytest.raises(CheckpointError, match="has no entry 'c'; it has a, b"):
        hl.read_weights(path, key="c")
    assert list(hl.read_weights(write(tmp_path / "b.pt", {"n": 1, "m": {"w": tensor()}}))) == ["w"]


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    with pytest.raises(CheckpointError, match="no such file"):
        hl.read_weights(path)
    for text in (
        b"",
        b"PK\x03\x04",
        b"\x80\x02.",
        b"not a pickle",
        b"\x80\x02]q\x00.",
        b"\xff" * 64,
    ):
        path.write_bytes(text)
        with pytest.raises(CheckpointError):
            hl.read_weights(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "")
    with pytest.raises(CheckpointError, match="another zip file"):
        hl.read_weights(path)
    bad = tmp_path / "a.safetensors"
    bad.write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    assert hl.read_weights(bad) == {}
    bad.write_bytes(b"\xff" * 32)
    with pytest.raises(CheckpointError, match="cannot be read"):
        hl.read_weights(bad)


@pytest.mark.parametrize("place", ["flag_bits", "compress_type", "crc", "data"])
def test_damaged_archives(place: str, tmp_path: Path) -> None:
    """Encrypted, compressed by an unknown method, with other numbers than were written."""
    path = write(tmp_path / "a.pth", {"w": tensor()})
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("net/data/0")
        data = bytearray(path.read_bytes())
        entry = data.rindex(b"PK\1\2")  # the last one of the directory: storage 0
        begin = info.header_offset + 30 + len(info.filename)
    at = {"flag_bits": entry + 8, "compress_type": entry + 10, "crc": entry + 16, "data": begin}[
        place
    ]
    data[at] = data[at] ^ 0x7F if place != "flag_bits" else 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"a\.pth"):
        hl.read_weights(path)


def test_a_damaged_compressed_storage(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/data.pkl", dump({"w": tensor()}))
        archive.writestr("net/data/0", np.arange(6, dtype="<f4").tobytes())
    assert hl.read_weights(path)["w"].shape == (2, 3)
    with zipfile.ZipFile(path) as archive:
        begin = archive.getinfo("net/data/0").header_offset + 30 + len("net/data/0")
    data = bytearray(path.read_bytes())
    data[begin] = 0xFF  # no block of deflate begins so
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"a\.pth"):
        hl.read_weights(path)


def test_damaged_pickles(tmp_path: Path) -> None:
    """Whatever byte is changed or lost, it is a CheckpointError or a state."""
    whole = dump({"w": tensor(), "b": [1, 2.5, "x", (None, True)]})
    rng = np.random.default_rng(0)
    path = tmp_path / "a.pth"
    for number in range(400):
        data = bytearray(whole)
        if number % 2:
            data[rng.integers(len(data))] = rng.integers(256)
        else:
            del data[rng.integers(len(data)) :]
        write(path, bytes(data))
        with contextlib.suppress(CheckpointError):
            read_torch_file(path)
