"""The core's functions on arrays and files: draws, checks, gather_rows, write_file."""

import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hotloop import _core, errors

FLOATS = ["float16", "float32", "float64"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def layouts(array: np.ndarray) -> list[np.ndarray]:
    """The same values in other memory: strides, order, byte order, read-only, unaligned."""
    wide = np.zeros((*array.shape, 2), array.dtype)
    wide[..., 0] = array
    frozen = array.copy()
    frozen.flags.writeable = False
    raw = np.zeros(array.nbytes + 1, np.uint8)
    unaligned = raw[1:].view(array.dtype).reshape(array.shape)
    unaligned[...] = array
    return [
        array,
        wide[..., 0],
        np.asfortranarray(array),
        array[::-1].copy()[::-1],
        array.astype(array.dtype.newbyteorder(">")),
        frozen,
        unaligned,
    ]


# ---------------------------------------------------------------------------- checks


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_check_finite(dtype: str, bad: float) -> None:
    good = np.full((31, 67), np.finfo(dtype).max, dtype)
    for array in layouts(good):
        assert _core.check_finite(array) is None
    for place in [(0, 0), (15, 30), (30, 66)]:
        array = good.copy()
        array[place] = bad
        array[30, 66] = bad
        for same in layouts(array):
            assert _core.check_finite(same) == place


def test_check_finite_edges() -> None:
    assert _core.check_finite(np.zeros((0, 3))) is None
    assert _core.check_finite(np.array(1.0)) is None
    assert _core.check_finite(np.array(math.nan)) == ()
    for dtype in ("int32", "bool", "complex64", "O", "U3", "longdouble"):
        with pytest.raises(errors.DataError):
            _core.check_finite(np.zeros(3, dtype))
    with pytest.raises(TypeError):
        _core.check_finite([1.0])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_check_range_against_numpy(dtype: str, rng: np.random.Generator) -> None:
    info = np.iinfo(dtype)
    ends = [-(2**63), -(2**62), -129, -1, 0, 1, 5, 127, 128, 200, 2**31, 2**40, 2**62, 2**63 - 1]
    array = rng.integers(info.min, info.max, (13, 300), dtype, endpoint=True)
    array.flat[7] = 0
    small = (array % 7).astype(dtype)
    for values in (array, small):
        for low in ends:
            for high in ends[1:]:
                outside = [not low <= int(v) < high for v in values.ravel()[:40]]
                want = None
                if any(outside):
                    want = (0, outside.index(True))
                got = _core.check_range(np.ascontiguousarray(values[:, :40])[:1], low, high)
                assert got == want, (dtype, low, high)
    for same in layouts(small):
        assert _core.check_range(same, 0, 7) is None
    small[12, 299] = 9
    for same in layouts(small):
        assert _core.check_range(same, 0, 7) == (12, 299)
        assert _core.check_range(same, 0, 10) is None


def test_check_range_edges() -> None:
    assert _core.check_range(np.array([True, False]), 0, 2) is None
    assert _core.check_range(np.array([True, False]), 1, 2) == (1,)
    assert _core.check_range(np.zeros(0, int), 5, 5) is None
    for low, high in [(2**63, 5), (0, -(2**63)), (0, 2**63)]:
        with pytest.raises(errors.ConfigError):
            _core.check_range(np.zeros(3, int), low, high)
    with pytest.raises(errors.DataError):
        _core.check_range(np.zeros(3), 0, 1)


# ---------------------------------------------------------------------------- gather


@pytest.mark.parametrize("src", ["float32", "float64", "float16", "int64", "int32", "uint8"])
@pytest.mark.parametrize("dst", ["float32", "float64", "int64"])
def test_gather_rows(src: str, dst: str, rng: np.random.Generator) -> None:
    array = (rng.standard_normal((50, 3, 5)) * 10 + 100).astype(src)
    rows = rng.integers(0, 50, 1000)
    for same in layouts(array):
        for n in (1, 7, 1000):
            got = _core.gather_rows(same, rows[:n], dst)
            assert got.dtype == dst
            assert (got == array[rows[:n]].astype(dst)).all()
    assert (_core.gather_rows(array, rows[::-3], dst) == array[rows[::-3]].astype(dst)).all()
    assert (_core.gather_rows(array[:, 0, 0], rows, dst) == array[:, 0, 0][rows].astype(dst)).all()


def test_gather_rows_edges() -> None:
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert _core.gather_rows(array, np.zeros(0, np.int64), "float32").shape == (0, 3)
    assert _core.gather_rows(array[:, :0], np.array([1, 2]), "float32").shape == (2, 0)
    assert _core.gather_rows(array, np.array([3]), "bfloat16").tolist() == [
        [0x4110, 0x4120, 0x4130]
    ]
    wrong: list[tuple[type[Exception], Any]] = [
        (errors.DataError, lambda: _core.gather_rows(array, np.array([0, 4]), "float32")),
        (errors.DataError, lambda: _core.gather_rows(array, np.array([0, -5]), "float32")),
        (errors.DataError, lambda: _core.gather_rows(array[:0], np.array([0]), "float32")),
        (errors.ShapeError, lambda: _core.gather_rows(array, np.array([[0]]), "float32")),
        (errors.ShapeError, lambda: _core.gather_rows(array, np.array([0.0]), "float32")),
        (errors.ShapeError, lambda: _core.gather_rows(np.array(1.0), np.array([0]), "int8")),
        (errors.ConfigError, lambda: _core.gather_rows(array, np.array([0]), "float8")),
        (TypeError, lambda: _core.gather_rows(array, [0], "float32")),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()


def test_gather_rows_from_threads() -> None:
    """More shapes than are kept, from several threads at once."""
    array = np.arange(3000, dtype=np.float32).reshape(1000, 3)
    failures: list[int] = []

    def work(start: int) -> None:
        for n in range(start, start + 60):
            rows = np.arange(n, dtype=np.int64)[::-1].copy()
            if not (_core.gather_rows(array, rows, "float32") == array[rows]).all():
                failures.append(n)

    threads = [threading.Thread(target=work, args=(start,)) for start in (1, 5, 9, 700)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# ---------------------------------------------------------------------------- draws


def test_draws() -> None:
    uniform = _core.random_uniform(seed=1, stream="a", n=20000, low=-2.0, high=3.0)
    assert uniform.min() >= -2
    assert uniform.max() < 3
    assert abs(uniform.mean() - 0.5) < 0.05
    normal = _core.random_normal(1, "a", 20000, 1.0, 2.0)
    assert abs(normal.mean() - 1) < 0.06
    assert abs(normal.std() - 2) < 0.06
    cut = _core.random_trunc_normal(1, "a", 20000, 0.0, 1.0, -0.5, 2.0)
    assert cut.min() >= -0.5
    assert cut.max() <= 2
    assert (_core.random_uniform(1, "a", 100, -2.0, 3.0) == uniform[:100]).all()
    assert (_core.random_uniform(2, "a", 100, -2.0, 3.0) != uniform[:100]).any()
    assert (_core.random_uniform(1, "b", 100, -2.0, 3.0) != uniform[:100]).any()
    assert (
        _core.random_uniform(-1, "a", 9, 0, 1) == _core.random_uniform(2**64 - 1, "a", 9, 0, 1)
    ).all()
    assert sorted(_core.permutation(5, "p", 0, 77).tolist()) == list(range(77))
    wrong: list[tuple[type[Exception], Any]] = [
        (errors.ConfigError, lambda: _core.random_uniform(1, "a", -1, 0, 1)),
        (errors.ConfigError, lambda: _core.random_uniform(1, "a", 2**62, 0, 1)),
        (MemoryError, lambda: _core.random_uniform(1, "a", 2**59, 0, 1)),
        (errors.ConfigError, lambda: _core.random_uniform(1, "a", 1, 2, 1)),
        (errors.ConfigError, lambda: _core.random_uniform(1, "a", 1, 0, math.inf)),
        (errors.ConfigError, lambda: _core.random_uniform(2**64, "a", 1, 0, 1)),
        (errors.ConfigError, lambda: _core.random_uniform(1, "a\0", 1, 0, 1)),
        (errors.ConfigError, lambda: _core.random_normal(1, "a", 1, 0, -1)),
        (errors.ConfigError, lambda: _core.random_trunc_normal(1, "a", 1, 0, 0, -1, 1)),
        (errors.ConfigError, lambda: _core.random_trunc_normal(1, "a", 1, 0, 1, 1, 1)),
        (TypeError, lambda: _core.random_normal(1, 2, 1, 0, 1)),
        (TypeError, lambda: _core.random_normal(1, "a", 1, 0)),
        (TypeError, lambda: _core.random_normal(1, "a", 1, 0, 1, 2)),
        (TypeError, lambda: _core.random_normal(1, "a", 1, 0, 1, std=2)),
        (TypeError, lambda: _core.random_normal(1, "a", 1, 0, deviation=2)),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()


# ---------------------------------------------------------------------------- files


def test_write_file(tmp_path: Path) -> None:
    path = tmp_path / "fichier é.bin"
    array = np.arange(6, dtype=np.int16)
    _core.write_file(path, [b"head", array, memoryview(b"abc")[1:], bytearray(b"!")])
    assert path.read_bytes() == b"head" + array.tobytes() + b"bc!"
    _core.write_file(os.fspath(path), ())
    assert path.read_bytes() == b""
    path.write_bytes(b"old")
    wrong: list[tuple[Any, Any]] = [
        (errors.CheckpointError, lambda: _core.write_file(tmp_path / "none" / "x", [b"1"])),
        (errors.CheckpointError, lambda: _core.write_file(tmp_path, [b"1"])),
        (TypeError, lambda: _core.write_file(path, [b"1", "text"])),
        (TypeError, lambda: _core.write_file(path, b"text")),
        ((BufferError, ValueError), lambda: _core.write_file(path, [array[::2]])),
        (TypeError, lambda: _core.write_file(3, [b"1"])),
        (ValueError, lambda: _core.write_file("a\0b", [b"1"])),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]
