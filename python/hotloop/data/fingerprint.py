"""By what data is known again: whether a run that is continued goes on with the same."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hotloop.data.split import Split

if TYPE_CHECKING:
    from hotloop.data.splits import DataSplits

__all__ = ["fingerprint", "row_numbers"]

_SAMPLE = 256  # rows of an array whose contents are looked at, at most,
_SAMPLE_BYTES = 1 << 20  # and their bytes
_SPLITS = ("train", "val")


def fingerprint(data: DataSplits) -> dict[str, Any]:
    """What decides the batches of training, by name, as plain values.

    Of each array the contents of at most 256 rows count, evenly spread, and of a megabyte of them,
    besides its shape: all of them would have to be read. Of samples that are made when a batch
    needs them shapes alone do.

    Parameters
    ----------
    data : DataModule
    """
    found: dict[str, Any] = {
        "batch_size": data.batch_size,
        "seed of the data": data.seed,
        "shuffle": data.shuffle,
        "drop_last": data.drop_last,
        "augment": data.augmentation + "".join(map(repr, data.augment_steps)),
    }
    for name in _SPLITS:
        split = data.split(name)
        if split is None:
            continue
        found[f"{name} rows"] = split.n
        for part in split.parts:
            for field in part.fields:
                label = f"{name} {field.name}"
                label += f" of {field.shape}" if split.buckets else ""
                dtype, shape = str(field.array.dtype), list(field.array.shape)
                found[label] = [dtype, shape, _digest(field.array, field.stream is not None)]
        if split.weights is not None:
            found[f"{name} sampling"] = _digest(split.weights, False)
    for kind, fitted in data.transforms:
        for name, arrays in fitted.items():
            found[f"{kind} of {name}"] = [_digest(np.atleast_1d(array), False) for array in arrays]
    for name, target in data.targets.items():
        found[f"classes of {name or 'y'}"] = repr(target.classes)
    return found


def row_numbers(data: DataSplits) -> dict[str, npt.NDArray[np.int64]]:
    """The rows of each split, where it does not have all of its arrays."""
    splits: dict[str, Split | None] = {name: data.split(name) for name in (*_SPLITS, "test")}
    return {
        name: split.rows
        for name, split in splits.items()
        if split is not None and split.rows is not None
    }


def _digest(array: Any, is_streamed: bool) -> str:
    if is_streamed:
        return ""
    n = len(array)
    most = max(4, min(_SAMPLE, _SAMPLE_BYTES // max(array[:1].nbytes, 1)))
    rows = np.linspace(0, max(n - 1, 0), min(n, most)).astype(np.int64)
    some = np.ascontiguousarray(array[rows]).reshape(-1).view(np.uint8)
    return hashlib.blake2b(some.data, digest_size=16).hexdigest()
