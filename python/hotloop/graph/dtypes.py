"""Element types by torch's names, and the rule for mixing them."""

from __future__ import annotations

from typing import Any, Final

from hotloop.base.suggest import did_you_mean
from hotloop.errors import TraceError

__all__ = [
    "DType",
    "bfloat16",
    "bool_",
    "default_float",
    "float16",
    "float32",
    "float64",
    "int16",
    "int32",
    "int64",
    "int8",
    "is_integer",
    "parse",
    "promote",
    "uint8",
]


class DType(str):
    """An element type: its name, which NumPy takes as well (``np.zeros(3, hl.float32)``).

    It is a string, so ``x.dtype == "float32"`` and ``x.dtype == hl.float32`` say the same.
    """

    __slots__ = ()

    @property
    def is_floating_point(self) -> bool:
        """Whether values of this type are floating-point numbers."""
        return self in _FLOAT_RANK

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _BYTES[self]

    def __repr__(self) -> str:
        return f"hotloop.{self}"


float32: Final = DType("float32")
float64: Final = DType("float64")
bfloat16: Final = DType("bfloat16")
float16: Final = DType("float16")
int64: Final = DType("int64")
int32: Final = DType("int32")
int16: Final = DType("int16")
int8: Final = DType("int8")
uint8: Final = DType("uint8")
bool_: Final = DType("bool")

default_float: Final = float32

_FLOAT_RANK: Final = {"float16": 1, "bfloat16": 1, "float32": 2, "float64": 3}
_INT_RANK: Final = {"uint8": 1, "int8": 1, "int16": 2, "int32": 3, "int64": 4}
_BYTES: Final = {
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
_BY_NAME: Final[dict[str, DType]] = {
    d: d for d in (float32, float64, bfloat16, float16, int64, int32, int16, int8, uint8, bool_)
}
_SPELLINGS: Final = {
    "float": float32,
    "double": float64,
    "half": float16,
    "bf16": bfloat16,
    "fp16": float16,
    "fp32": float32,
    "fp64": float64,
    "long": int64,
    "int": int64,
    "short": int16,
    "bool_": bool_,
}
_PYTHON: Final[dict[Any, DType]] = {float: float32, int: int64, bool: bool_}


def is_name(name: str) -> bool:
    """Whether an element type has this name."""
    plain = name.removeprefix("torch.")
    return plain in _BY_NAME or plain in _SPELLINGS


def parse(dtype: Any) -> DType:
    """The element type that a name, a NumPy, torch or Python type stands for.

    Parameters
    ----------
    dtype : DType, str, numpy.dtype, type
        ``"float32"``, ``hl.float32``, ``np.float32``, ``torch.float32``, ``float`` (float32),
        ``int`` (int64), ``bool``.

    Raises
    ------
    TraceError
        If the type is none that hotloop computes with.
    """
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, type) and dtype in _PYTHON:
        return _PYTHON[dtype]
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = str(name).removeprefix("torch.")
    found = _BY_NAME.get(name) or _SPELLINGS.get(name)
    if found is None:
        raise TraceError(
            f"dtype: must be one of {', '.join(_BY_NAME)}, got {dtype!r}"
            f"{did_you_mean(name, _BY_NAME)}"
        )
    return found


def is_integer(dtype: str) -> bool:
    """Whether a type holds integers (bool is none)."""
    return dtype in _INT_RANK


def promote(a: DType, b: DType) -> DType:
    """The type of ``a + b``: bool < integers < floats, the wider of a kind, as torch and NumPy.

    uint8 with int8 gives int16, bfloat16 with float16 gives float32.
    """
    if a == b:
        return a
    for rank in (_FLOAT_RANK, _INT_RANK):
        if a in rank and b in rank:
            if rank[a] != rank[b]:
                return a if rank[a] > rank[b] else b
            return float32 if rank is _FLOAT_RANK else int16
        if a in rank:
            return a
        if b in rank:
            return b
    return bool_
