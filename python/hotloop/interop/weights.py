"""Weights from files: safetensors, and what torch.save wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import path as check_path
from hotloop.errors import CheckpointError
from hotloop.interop.safetensors_file import check_tensors, read_metadata
from hotloop.interop.torch_file import is_state, read_torch_file

__all__ = ["read_weights"]

Array: TypeAlias = npt.NDArray[Any]
_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
    "U8": "<u1", "BOOL": "?",
}  # fmt: skip


def _read_safetensors(path: str) -> dict[str, Array]:
    from safetensors import SafetensorError, deserialize

    try:
        with open(path, "rb") as file:
            entries = deserialize(file.read())  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    raw = {name: np.frombuffer(entry["data"], np.uint8) for name, entry in entries}
    check_tensors(path, "read_weights", raw, read_metadata(path, "read_weights"))
    state = {}
    for name, entry in entries:
        kind, data, shape = entry["dtype"], bytes(entry["data"]), entry["shape"]
        if kind == "BF16":
            bits = np.frombuffer(data, "<u2").astype(np.uint32) << 16
            state[name] = bits.view(np.float32).reshape(shape)
        elif kind in _DTYPES:
            state[name] = np.frombuffer(data, _DTYPES[kind]).reshape(shape)
        else:
            raise CheckpointError(f"{path}: {name} has dtype {kind}, which has no NumPy array")
    return state


def _choose(path: str, found: Any, key: str | None) -> Any:
    """The state_dict of what a file holds: itself, an entry, or the only entry that is one."""
    if key is not None:
        if not isinstance(found, Mapping) or key not in found:
            names = ", ".join(map(str, found)) if isinstance(found, Mapping) else "none"
            raise CheckpointError(f"{path}: has no entry {key!r}; it has {names}")
        return found[key]
    if is_state(found) or not isinstance(found, Mapping):
        return found
    states = [name for name, value in found.items() if is_state(value)]
    if len(states) > 1:
        raise CheckpointError(
            f"{path}: has several state_dicts; write key= and one of {', '.join(map(str, states))}"
        )
    return found[states[0]] if states else found


def read_weights(path: str | os.PathLike[str], key: str | None = None) -> dict[str, Array]:
    """The arrays of a file of weights by name; nothing in the file is executed.

    Parameters
    ----------
    path : path-like
        A safetensors file, or what ``torch.save`` wrote of a state_dict or of a dict that has one
        (``.pth``, ``.pt``, ``.bin``), which is read without pickle.
    key : str, optional
        The entry that has the state_dict, where a file of torch has several.

    Returns
    -------
    dict of str to ndarray
        For ``model.load_state_dict``; bfloat16 becomes float32. One that torch had expanded is a
        read-only view, as its copy may be of any size.

    Raises
    ------
    CheckpointError
        If the file is damaged, or holds anything but tensors and plain containers.

    Examples
    --------
    >>> model = nn.Linear(3, 2)
    >>> hl.save(model, "net.safetensors")
    >>> sorted(hl.read_weights("net.safetensors"))
    ['bias', 'weight']
    """
    name = check_path("read_weights: path", path)
    if name.endswith(".safetensors"):
        return _read_safetensors(name)
    found = _choose(name, read_torch_file(name), key)
    if not is_state(found):
        kind = "a dict" if isinstance(found, Mapping) else type(found).__name__
        raise CheckpointError(
            f"{name}: must hold a state_dict, names with tensors, got {kind}; save it with "
            "torch.save(model.state_dict(), path)"
        )
    state: dict[str, Array] = dict(found)
    return state
