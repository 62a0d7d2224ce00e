"""Files of ``torch.save``, read without executing pickle.

A pickle is a program for a stack machine that can call anything. Here its instructions are decoded
(by pickletools, which executes none) and followed by a machine that knows containers, numbers,
text and tensors alone: no name is ever imported, nothing is called, and any other name is refused.

Both formats of torch.save: the zip file of torch 1.6 and later, and the older one, a chain of
pickles with the numbers behind them.
"""

from __future__ import annotations

import math
import os
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hotloop.errors import CheckpointError

__all__ = ["read_torch_file"]

Array: TypeAlias = npt.NDArray[Any]
# By torch's name of a storage or dtype: how its numbers lie in a file.
_DTYPES = {
    "Double": "<f8", "Float": "<f4", "Half": "<f2", "BFloat16": "bfloat16", "Long": "<i8",
    "Int": "<i4", "Short": "<i2", "Char": "<i1", "Byte": "<u1", "Bool": "?",
    "ComplexFloat": "<c8", "ComplexDouble": "<c16",
}  # fmt: skip
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of the older format
_MAX_HEADER = 1 << 28  # bytes of a pickle, which has no numbers of tensors
_MAX_DEPTH = 1 << 20  # of the stack, marks and memo


class _Mark:
    """Where a container's entries begin on the stack."""


@dataclass(frozen=True)
class _Name:
    """A name that the pickle asks for; it is known, and stands for what it would make."""

    text: str


class _Storage(NamedTuple):
    key: str
    dtype: str
    numel: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_REBUILD = {"torch._utils _rebuild_tensor", "torch._utils _rebuild_tensor_v2"}
_PARAMETER = {
    "torch._utils _rebuild_parameter",
    "torch.nn.parameter Parameter",
}
_KNOWN = (
    _REBUILD
    | _PARAMETER
    | {f"{home} {kind}Storage" for kind in _DTYPES for home in ("torch", "torch.cuda")}
    | {"collections OrderedDict", "torch Size", "torch.serialization _get_layout"}
)


class _Machine:
    """Follows one pickle."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path}: must be weights as torch.save writes them, got {what}"
        )

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _Mark:
            raise self.fail("a damaged pickle")
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _Mark:
                found = self.stack[at + 1 :]
                del self.stack[at:]
                return found
        raise self.fail("a damaged pickle")

    def top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise self.fail("a damaged pickle")
        return self.stack[-1]

    def fill(self, pairs: list[Any]) -> None:
        target = self.top(dict)
        if len(pairs) % 2:
            raise self.fail("a damaged pickle")
        for key, value in zip(pairs[::2], pairs[1::2]):
            if not isinstance(key, str | int | float | bool | tuple):
                raise self.fail(f"a dict with keys of {type(key).__name__}")
            try:
                target[key] = value
            except TypeError:
                raise self.fail("a dict with keys that have no hash") from None

    def name(self, module: str, name: str) -> None:
        text = f"{module} {name}"
        if text not in _KNOWN and not (module == "torch" and name.islower()):
            raise CheckpointError(
                f"{self.path}: holds {module}.{name}, which is neither a tensor nor a plain "
                "container, and is not run; save the weights alone with "
                "torch.save(model.state_dict(), path)"
            )
        self.stack.append(_Name(text))

    def call(self, args: Any) -> None:
        """What a known name would make of these arguments."""
        made = self.pop()
        if not isinstance(made, _Name) or not isinstance(args, tuple):
            raise self.fail("a damaged pickle")
        if made.text == "collections OrderedDict":
            self.stack.append({})
            if args:
                entries = args[0]
                pairs = [e for pair in entries for e in pair] if entries else []
                self.fill(pairs)
        elif made.text == "torch Size":
            self.stack.append(tuple(args[0]) if args else ())
        elif made.text in _REBUILD:
            self.stack.append(self.tensor(args))
        elif made.text in _PARAMETER and args and isinstance(args[0], _Tensor):
            self.stack.append(args[0])
        else:
            raise self.fail(f"a call of {made.text.replace(' ', '.')}")

    def tensor(self, args: tuple[Any, ...]) -> _Tensor:
        if len(args) < 4 or not isinstance(args[0], _Storage):
            raise self.fail("a damaged tensor")
        storage, offset, shape, strides = args[:4]
        whole = isinstance(shape, tuple) and isinstance(strides, tuple)
        sizes = [offset, *shape, *strides] if whole else [None]
        if not all(type(size) is int and size >= 0 for size in sizes) or len(shape) != len(strides):
            raise self.fail("a damaged tensor")
        return _Tensor(storage, offset, shape, strides)

    def persistent(self, args: Any) -> None:
        """('storage', type, key, location, count)."""
        if not isinstance(args, tuple) or len(args) < 5 or args[0] != "storage":
            raise self.fail("a damaged pickle")
        kind, key, count = args[1], args[2], args[4]
        name = kind.text.rpartition(" ")[2] if isinstance(kind, _Name) else ""
        dtype = _DTYPES.get(name.removesuffix("Storage"))
        if dtype is None or type(count) is not int or count < 0 or not isinstance(key, str):
            raise self.fail("a damaged storage")
        self.stack.append(_Storage(key, dtype, count))

    def run(self, file: BinaryIO | bytes) -> Any:
        try:
            for op, arg, _ in pickletools.genops(file):
                if len(self.stack) + len(self.memo) > _MAX_DEPTH:
                    raise self.fail("a pickle of too many values")
                if op.name == "STOP":
                    return self.pop()
                self.step(op.name, arg)
        except (ValueError, KeyError, IndexError, TypeError, UnicodeError, struct.error) as error:
            if isinstance(error, CheckpointError):
                raise
            raise self.fail(f"a damaged pickle ({error})") from None
        raise self.fail("a damaged pickle")

    def step(self, op: str, arg: Any) -> None:
        values = self.stack
        if op in ("PROTO", "FRAME"):
            return
        if op in _PUSHED:
            values.append(arg)
        elif op in _CONSTANTS:
            values.append(_CONSTANTS[op])
        elif op in _EMPTY:
            values.append(_EMPTY[op]())
        elif op == "MARK":
            values.append(_Mark)
        elif op in ("TUPLE1", "TUPLE2", "TUPLE3"):
            found = [self.pop() for _ in range(int(op[-1]))]
            values.append(tuple(reversed(found)))
        elif op == "TUPLE":
            values.append(tuple(self.pop_to_mark()))
        elif op == "LIST":
            values.append(self.pop_to_mark())
        elif op == "DICT":
            pairs = self.pop_to_mark()
            values.append({})
            self.fill(pairs)
        elif op == "APPEND":
            value = self.pop()
            self.top(list).append(value)
        elif op == "APPENDS":
            found = self.pop_to_mark()
            self.top(list).extend(found)
        elif op == "SETITEM":
            value, key = self.pop(), self.pop()
            self.fill([key, value])
        elif op == "SETITEMS":
            self.fill(self.pop_to_mark())
        elif op in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[int(arg)] = values[-1]
        elif op == "MEMOIZE":
            self.memo[len(self.memo)] = values[-1]
        elif op in ("GET", "BINGET", "LONG_BINGET"):
            values.append(self.memo[int(arg)])
        elif op == "GLOBAL":
            self.name(*arg.split(" ", 1))
        elif op == "STACK_GLOBAL":
            name, module = self.pop(), self.pop()
            self.name(str(module), str(name))
        elif op == "REDUCE":
            self.call(self.pop())
        elif op == "BINPERSID":
            self.persistent(self.pop())
        elif op == "BUILD":
            self.pop()  # attributes of a dict, such as torch's _metadata
            self.top(dict)
        elif op == "POP":
            self.pop()
        elif op == "POP_MARK":
            self.pop_to_mark()
        elif op == "DUP":
            values.append(values[-1])
        else:
            raise self.fail(f"the pickle instruction {op}")


_PUSHED = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING",
    "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple,
}  # fmt: skip


def _to_numbers(data: bytes, dtype: str) -> Array:
    """float32 for bfloat16, which NumPy does not have."""
    if dtype == "bfloat16":
        bits = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return bits.view(np.float32)
    return np.frombuffer(data, dtype)


def _bytes_of(storage: _Storage) -> int:
    return storage.numel * (2 if storage.dtype == "bfloat16" else np.dtype(storage.dtype).itemsize)


def _to_array(path: str, tensor: _Tensor, numbers: Array) -> Array:
    count = math.prod(tensor.shape)
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.strides))
    if count == 0:
        return np.empty(tensor.shape, numbers.dtype)
    if tensor.offset + last >= numbers.size:
        raise CheckpointError(
            f"{path}: is damaged: a tensor of shape {tensor.shape} reaches beyond its "
            f"{numbers.size} numbers"
        )
    strides = [step * numbers.itemsize for step in tensor.strides]
    view = np.lib.stride_tricks.as_strided(
        numbers[tensor.offset :], tensor.shape, strides, writeable=False
    )
    # Of an expanded tensor the file has fewer numbers than elements: a copy could be of any size.
    return np.array(view, order="C") if count <= numbers.size else view


def _with_arrays(value: Any, read: Callable[[_Tensor], Array]) -> Any:
    """Containers with arrays in place of tensors."""
    if isinstance(value, _Tensor):
        return read(value)
    if isinstance(value, _Storage | _Name):
        return str(value)
    if isinstance(value, dict):
        return {key: _with_arrays(entry, read) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with_arrays(entry, read) for entry in value)
    return value


def _read_zip(path: str, file: BinaryIO) -> Any:
    with zipfile.ZipFile(file) as archive:
        infos = {info.filename: info for info in archive.infolist()}
        header = next((name for name in infos if name.endswith("/data.pkl")), None)
        if header is None:
            raise CheckpointError(f"{path}: must be what torch.save writes, got another zip file")
        root = header.removesuffix("data.pkl")
        order = infos.get(f"{root}byteorder")
        if order is not None and archive.read(order)[:3] == b"big":
            raise CheckpointError(f"{path}: was written by a machine of the other byte order")
        if infos[header].file_size > _MAX_HEADER:
            raise CheckpointError(f"{path}: is damaged: its header has more than 256 MiB")
        found = _Machine(path).run(archive.read(header))
        numbers: dict[str, Array] = {}

        def read(tensor: _Tensor) -> Array:
            storage = tensor.storage
            if storage.key not in numbers:
                info = infos.get(f"{root}data/{storage.key}")
                if info is None or info.file_size != _bytes_of(storage):
                    raise CheckpointError(f"{path}: is damaged: storage {storage.key} is not whole")
                numbers[storage.key] = _to_numbers(archive.read(info), storage.dtype)
            return _to_array(path, tensor, numbers[storage.key])

        return _with_arrays(found, read)


def _read_chain(path: str, file: BinaryIO) -> Any:
    """Magic number, version, system, object, keys of storages, and the storages."""
    magic, version = _Machine(path).run(file), _Machine(path).run(file)
    if magic != _MAGIC or version != _PROTOCOL:
        raise CheckpointError(f"{path}: must be a file of torch.save, got another pickle")
    system = _Machine(path).run(file)
    if not isinstance(system, dict) or not system.get("little_endian", True):
        raise CheckpointError(f"{path}: was written by a machine of the other byte order")
    found = _Machine(path).run(file)
    keys = _Machine(path).run(file)
    storages: dict[str, _Storage] = {}

    def remember(tensor: _Tensor) -> Array:
        storages[tensor.storage.key] = tensor.storage
        return np.empty(0)

    _with_arrays(found, remember)
    numbers: dict[str, Array] = {}
    for key in keys if isinstance(keys, list) else []:
        (count,) = struct.unpack("<q", file.read(8))
        storage = storages.get(key)
        if storage is None or count != storage.numel:
            raise CheckpointError(f"{path}: is damaged: storage {key} is not whole")
        data = file.read(_bytes_of(storage))
        if len(data) != _bytes_of(storage):
            raise CheckpointError(f"{path}: is damaged: storage {key} is not whole")
        numbers[key] = _to_numbers(data, storage.dtype)

    def read(tensor: _Tensor) -> Array:
        if tensor.storage.key not in numbers:
            raise CheckpointError(f"{path}: is damaged: storage {tensor.storage.key} is not there")
        return _to_array(path, tensor, numbers[tensor.storage.key])

    return _with_arrays(found, read)


# What a damaged file may lead to: zipfile has a RuntimeError for an encrypted entry, and one for a
# method of compression that it does not know; sizes may be beyond any array's.
_UNREADABLE = (
    OSError, EOFError, RuntimeError, ValueError, OverflowError, struct.error, zipfile.BadZipFile,
    zlib.error,
)  # fmt: skip


def read_torch_file(path: str | os.PathLike[str]) -> Any:
    """What ``torch.save`` wrote, with arrays in place of tensors; nothing in it is executed.

    Parameters
    ----------
    path : path-like
        Of ``.pth``, ``.pt`` or ``.bin``.

    Returns
    -------
    object
        Dicts, lists, numbers, text and NumPy arrays; bfloat16 becomes float32.

    Raises
    ------
    CheckpointError
        If the file is damaged, or holds anything but tensors and plain containers: the name of it
        is said.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            start = file.read(4)
            file.seek(0)
            if start == b"PK\x03\x04":
                return _read_zip(name, file)
            return _read_chain(name, file)
    except CheckpointError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"{name}: there is no such file") from None
    except _UNREADABLE as error:
        raise CheckpointError(f"{name}: cannot be read: {error}") from error


def is_state(value: Any) -> bool:
    """Whether this is a dict from names to arrays alone, as a state_dict."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(k, str) and isinstance(v, np.ndarray) for k, v in value.items())
    )
