"""Safetensors files as hotloop writes and reads them: arrays, texts, and checksums of both.

Layout of the file: https://huggingface.co/docs/safetensors. The header is padded with blanks to 8
bytes, tensors follow without gaps; the atomic writer replaces an old file as a whole or not at all.

Any reader of the format finds plain tensors. Two entries of the metadata are for this reader:
``checksums``, the CRC-32 of each tensor's bytes, and ``crc32``, that of the header with this value
as zeros. It stands first, at a place that is known, so that each changed bit of the header and of
the tensors is noticed. A checksum tells damage, not forgery.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.errors import CheckpointError, ConfigError

Array: TypeAlias = npt.NDArray[Any]

__all__ = ["check_tensors", "make_header", "read_metadata", "read_safetensors", "write_safetensors"]

_DTYPES = {
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
_BEGIN = b'{"__metadata__":{"crc32":"'
_NO_CRC = b"00000000"
_TORCH_HINT = (
    "; it takes what result.save wrote. For weights of torch.save build the module and "
    "load_state_dict(hl.read_weights(path))"
)


def write_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str]
) -> int:
    """Writes arrays, in order, without gaps, with their checksums.

    Parameters
    ----------
    path : path-like
        An existing file is replaced as a whole or not at all.
    tensors : mapping of str to array
    metadata : mapping of str to str

    Returns
    -------
    int
        Bytes of the file.

    Raises
    ------
    ConfigError
        If an array is of a dtype that the format lacks.
    CheckpointError
        If the file cannot be written; an old one is then as it was.
    """
    entries: dict[str, Any] = {}
    parts: list[Any] = []
    at = 0
    for name, array in tensors.items():
        array = np.asarray(array, order="C")  # ascontiguousarray would give a number a dim
        kind = _DTYPES.get(str(array.dtype))
        if kind is None:
            raise ConfigError(f"save: {name} must be of a dtype safetensors has, got {array.dtype}")
        entries[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
        parts.append(array.reshape(-1).view(np.uint8))
    sums = {name: _hex(zlib.crc32(part)) for name, part in zip(entries, parts, strict=True)}
    header = make_header({**metadata, "checksums": json.dumps(sums)}, entries)
    _core.write_file(os.fspath(path), [header, *parts])
    return len(header) + at


def make_header(metadata: Mapping[str, str], entries: Mapping[str, Any]) -> bytes:
    """The beginning of a file up to the first tensor, with its checksum.

    Parameters
    ----------
    metadata : mapping of str to str
    entries : mapping of str to dict
        dtype, shape and data_offsets by tensor.
    """
    about = {"crc32": _NO_CRC.decode(), **metadata}
    text = json.dumps({"__metadata__": about, **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    end = len(_BEGIN) + len(_NO_CRC)
    text = _BEGIN + _hex(zlib.crc32(text)).encode() + text[end:]
    return struct.pack("<Q", len(text)) + text


def _hex(crc: int) -> str:
    return f"{crc:08x}"


def read_safetensors(path: str, what: str = "load") -> tuple[dict[str, Array], dict[str, str]]:
    """Tensors and metadata of a file, by the safetensors package; what has checksums is checked.

    Parameters
    ----------
    path : str
    what : str
        Who reads, for the messages.

    Raises
    ------
    CheckpointError
        If it cannot be read, or a checksum tells damage.
    """
    metadata = read_metadata(path, what)
    with _reading(path, what) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    check_tensors(path, what, tensors, metadata)
    return tensors, metadata


def read_metadata(path: str, what: str = "load") -> dict[str, str]:
    """The metadata of a file, whose header's checksum is checked where there is one.

    Parameters
    ----------
    path : str
    what : str
        Who reads, for the messages.

    Raises
    ------
    CheckpointError
    """
    with _reading(path, what) as file:
        metadata = dict(file.metadata() or {})
        if "crc32" in metadata or "checksums" in metadata:
            with open(path, "rb") as raw:
                (n,) = struct.unpack("<Q", raw.read(8))
                _check_header(path, what, raw.read(n))
    return metadata


@contextlib.contextmanager
def _reading(path: str, what: str) -> Iterator[Any]:
    """An open file, whose lengths and offsets were checked; errors name it."""
    from safetensors import SafetensorError, safe_open

    if os.path.isdir(path):
        raise CheckpointError(
            f"{what}: {path} is a folder; give a file, such as one of those in a run's folder "
            "checkpoints"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except CheckpointError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, struct.error) as error:
        is_other = not path.endswith(".safetensors") and os.path.isfile(path)
        hint = _TORCH_HINT if is_other else ""
        raise CheckpointError(f"{what}: {path} cannot be read: {error}{hint}") from error


def _check_header(path: str, what: str, header: bytes) -> None:
    begin, end = len(_BEGIN), len(_BEGIN) + len(_NO_CRC)
    known = header[:begin] == _BEGIN
    if not known or header[begin:end] != _hex(zlib.crc32(_BEGIN + _NO_CRC + header[end:])).encode():
        raise CheckpointError(
            f"{what}: {path} is damaged: its header is not what was written, by its checksum"
        )


def check_tensors(
    path: str, what: str, tensors: Mapping[str, Any], metadata: Mapping[str, str]
) -> None:
    """Checks the bytes of a file's tensors, where its metadata has their checksums.

    Parameters
    ----------
    path, what : str
        For the messages.
    tensors : mapping of str to array or bytes
    metadata : mapping of str to str

    Raises
    ------
    CheckpointError
        If a checksum tells damage.
    """
    if "checksums" not in metadata:
        return
    sums = json.loads(metadata["checksums"])
    if not isinstance(sums, dict) or sums.keys() != tensors.keys():
        raise CheckpointError(f"{what}: {path} is damaged: its checksums are of other tensors")
    for name, values in tensors.items():
        flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        if _hex(zlib.crc32(flat.data)) != sums[name]:
            raise CheckpointError(
                f"{what}: {path} is damaged: the bytes of {name} are not those that were written, "
                "by their checksum"
            )
