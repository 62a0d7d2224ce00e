"""By what data is known again: whether a run that is continued goes on with the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hotloop.data.contents import digest_rows
from hotloop.data.split import Split

if TYPE_CHECKING:
    from hotloop.data.splits import DataSplits

__all__ = ["fingerprint", "row_numbers"]

_SPLITS = ("train", "val")


def fingerprint(data: DataSplits) -> dict[str, Any]:
    """What decides the batches of training, by name, as plain values.

    Of each array a part of the rows counts besides its shape: all of them would have to be read. Of
    rows that are read of files when a batch needs them, parts of the files do; of what a user's own
    dataset makes, the shapes alone.

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
                found[label] = [dtype, shape, field.digest()]
        if split.weights is not None:
            found[f"{name} sampling"] = digest_rows(split.weights)
    for kind, fitted in data.transforms:
        for name, arrays in fitted.items():
            found[f"{kind} of {name}"] = [digest_rows(np.atleast_1d(array)) for array in arrays]
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
