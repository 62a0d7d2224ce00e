"""Arrays of every origin: read right, in place where they can be, refused by name elsewhere."""

import array
import re
from typing import Any

import numpy as np
import pytest
from hotloop.data.arrays import DTYPES, graph_dtype, to_array
from hotloop.data.module import DataModule
from hotloop.errors import DataError
from needs import take_library

BASE = np.arange(24).reshape(6, 4)


def is_usable(a: np.ndarray) -> bool:
    """What the core asks of an array."""
    return (
        a.flags.c_contiguous
        and a.flags.aligned
        and a.dtype.isnative
        and a.dtype.name in DTYPES
        and type(a) is np.ndarray
    )


def misaligned(a: np.ndarray) -> np.ndarray:
    """The same values, one byte off."""
    raw = np.empty(a.nbytes + 1, dtype=np.uint8)
    out = raw[1:].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


class Named(np.ndarray):
    """A subclass, whose operators could mean something else."""


class ByProtocol:
    """An array behind __array__ alone."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return BASE.astype(dtype or np.float32)


class ByDlpack:
    """An array behind DLPack alone."""

    def __dlpack__(self, **kwargs: Any) -> Any:
        return BASE.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return BASE.__dlpack_device__()


ORIGINS = {
    "fortran": np.asfortranarray(BASE),
    "negative strides": BASE[::-1, ::-1][::-1, ::-1],
    "strided": np.repeat(BASE, 2, axis=1)[:, ::2],
    "transposed": BASE.T.copy().T,
    "big-endian": BASE.astype(">f8"),
    "misaligned": misaligned(BASE.astype(np.float32)),
    "subclass": BASE.view(Named),
    "unmasked": np.ma.array(BASE),
    "list": BASE.tolist(),
    "list of rows": list(BASE),
    "memoryview": memoryview(BASE),
    "__array__": ByProtocol(),
    "dlpack": ByDlpack(),
    "longdouble": BASE.astype(np.longdouble),
    "uint16": BASE.astype(np.uint16),
    "uint32": BASE.astype(np.uint32),
    "uint64": BASE.astype(np.uint64),
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_every_origin_gives_the_same_usable_array(origin: str) -> None:
    got = to_array(ORIGINS[origin], "X")
    assert is_usable(got)
    np.testing.assert_array_equal(got, BASE)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_usable_array_is_used_in_place(dtype: str) -> None:
    X = BASE.astype(dtype)
    X.flags.writeable = False
    got = to_array(X, "X")
    assert got.dtype == dtype
    assert np.shares_memory(got, X)


def test_negative_strides_are_copied_in_their_order() -> None:
    np.testing.assert_array_equal(to_array(BASE[::-1], "X"), BASE[::-1].tolist())


def test_buffers() -> None:
    np.testing.assert_array_equal(to_array(array.array("f", [1, 2, 3]), "X"), [1, 2, 3])
    np.testing.assert_array_equal(to_array(bytearray(b"\x01\x02"), "X"), [1, 2])


def test_a_broadcast_array_becomes_real() -> None:
    got = to_array(np.broadcast_to(np.float32(3), (5, 2)), "X")
    assert is_usable(got)
    assert got.tolist() == [[3, 3]] * 5


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        ("float64", "float32"),
        ("float16", "float32"),
        ("bool", "float32"),
        ("uint8", "float32"),
        ("int8", "int64"),
        ("int32", "int64"),
        ("int64", "int64"),
    ],
)
def test_dtype_in_the_graph(dtype: str, wanted: str) -> None:
    assert graph_dtype(np.dtype(dtype)) == wanted


class Mute:
    """Nothing that could be an array."""


class Broken:
    """Raises when it is read."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise RuntimeError("on a GPU")


class Sparse:
    """Quacks like SciPy's sparse matrices."""

    def toarray(self) -> np.ndarray:
        return BASE


REFUSED = [
    (BASE.astype(complex), r"X: must hold numbers, got dtype complex128; give real"),
    (np.array(["2020-01-01"], "M8[D]"), r"X: .*datetime64\[D\]; give the time"),
    (np.array([1], "m8[s]"), r"X: .*timedelta64\[s\]"),
    (np.array([["a", "b"]]), r"X: .*<U1; encode"),
    (np.array([[b"a"]]), r"X: .*\|S1; encode"),
    (np.array([[1.0, None]], dtype=object), r"X: .*object: the value at \[0, 1\] is NoneType None"),
    (np.array([[1.0, 2]], dtype=object), r"X: .*object; convert it with .astype"),
    (np.zeros(3, [("a", "f4")]), r"X: .*dict of columns"),
    ([[1, 2], [3]], r"X: the rows of a list must have one shape"),
    ([[1, "a"]], r"X: must hold numbers"),
    (3.5, r"X: an array is needed, got float 3.5"),
    (np.float32(3), r"X: an array with one row per sample"),
    ("abc", r"X: an array is needed, got str 'abc'"),
    ({1, 2}, r"X: an array is needed, got set"),
    ((i for i in range(3)), r"X: an array is needed, got generator"),
    (Mute(), r"X: an array is needed, got Mute"),
    (Broken(), r"X: this .*Broken cannot be read as a NumPy array \(on a GPU\)"),
    (Sparse(), r"X: sparse matrices are not supported, got Sparse; .*toarray"),
    (np.ma.array([1.0, 2.0], mask=[0, 1]), r"X: 1 values of the masked array are masked"),
    (np.array([1, 2**63], np.uint64), r"X: uint64 .*got 9223372036854775808 at \[1\]"),
]


@pytest.mark.parametrize(("value", "text"), REFUSED, ids=[t[:40] for _, t in REFUSED])
def test_refused_with_a_sentence(value: Any, text: str) -> None:
    with pytest.raises(DataError, match=text):
        to_array(value, "X")


def test_longdouble_beyond_float64_is_refused() -> None:
    if np.finfo(np.longdouble).max <= np.finfo(np.float64).max:
        pytest.skip("longdouble is float64 here (x86-64 has a wider one)")
    with pytest.raises(DataError, match=r"at \[1\]"):
        to_array(np.array([1, np.longdouble(10) ** 400]), "X")


@pytest.mark.parametrize("origin", ["plain", "read-only", "big-endian", "reversed", "float16"])
def test_user_arrays_keep_every_byte(origin: str, rng: np.random.Generator) -> None:
    X = rng.standard_normal((40, 3)).astype(np.float32)
    y = rng.integers(0, 3, 40)
    if origin == "big-endian":
        X, y = X.astype(">f4"), y.astype(">i8")
    elif origin == "reversed":
        X, y = X[::-1], y[::-1]
    elif origin == "float16":
        X, y = X.astype(np.float16), y.astype(np.int8)
    elif origin == "read-only":
        X.flags.writeable = y.flags.writeable = False
    before = X.tobytes(), y.tobytes(), X.flags.writeable
    data = DataModule.from_arrays(X, y, val=0.25, batch_size=7, standardize=True)
    data.check("train")
    assert data.transforms
    n = sum(len(batch["y"]) for batch in data.train_batches())
    assert n == len(data) == 30
    assert (X.tobytes(), y.tobytes(), X.flags.writeable) == before


# ---- other libraries, where they are installed


@pytest.mark.extra
def test_pandas() -> None:
    pd = take_library("pandas")
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [0.5, np.nan, 2], "c": [True, False, True]})
    got = to_array(frame, "X")
    assert is_usable(got)
    np.testing.assert_array_equal(got, [[1, 0.5, 1], [2, np.nan, 0], [3, 2, 1]])
    nullable = pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64")})
    np.testing.assert_array_equal(to_array(nullable, "X"), [[1], [np.nan], [3]])
    with pytest.raises(DataError, match=r"X: must be finite, got nan in row 1, column 'b'"):
        DataModule.from_arrays(frame).check("train")
    with pytest.raises(DataError, match=r"X: column 'd': must hold numbers"):
        to_array(frame.assign(d=["x", "y", "z"]), "X")
    y = pd.Series(["b", "a", "b"], index=[7, 8, 9]).astype("category")
    assert DataModule.from_arrays(frame, y, allow_nonfinite=True).classes == ["a", "b"]


@pytest.mark.extra
def test_polars() -> None:
    pl = take_library("polars")
    frame = pl.DataFrame({"a": [1, 2, 3], "b": [0.5, None, 2.0]})
    np.testing.assert_array_equal(to_array(frame, "X"), [[1, 0.5], [2, np.nan], [3, 2]])
    with pytest.raises(DataError, match=r"column 'b'"):
        DataModule.from_arrays(frame, pl.Series([1, 0, 1])).check("train")
    with pytest.raises(DataError, match=re.escape("X: column 's': must hold numbers")):
        to_array(frame.with_columns(s=pl.Series(["x", "y", "z"])), "X")


@pytest.mark.parity
def test_torch() -> None:
    torch = take_library("torch")
    X = torch.arange(24.0).reshape(6, 4)
    got = to_array(X, "X")
    got_again = to_array(X.clone().requires_grad_(), "X")
    np.testing.assert_array_equal(got, got_again)
    assert got.ctypes.data == X.data_ptr()
    np.testing.assert_array_equal(to_array(X.to(torch.bfloat16), "X"), X.numpy())
    dataset = torch.utils.data.TensorDataset(X, torch.arange(6) % 2)
    part, rest = torch.utils.data.random_split(dataset, [4, 2])
    data = DataModule(part, rest, batch_size=2)
    seen = [*data.train_batches(), *data.val_batches()]
    assert sorted(x[0] for batch in seen for x in batch["x"]) == X[:, 0].tolist()
    loader = torch.utils.data.DataLoader(dataset, batch_size=2)
    data = DataModule(loader)
    assert data.batch_size == 2
    assert not data.split("train").is_streamed
