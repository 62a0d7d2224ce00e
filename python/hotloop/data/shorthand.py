"""What may be given in place of a DataModule: a tuple (X, y), an array, a dataset object."""

from __future__ import annotations

from typing import Any

from hotloop.base.rules import show
from hotloop.data.module import DataModule
from hotloop.data.tables import count_rows, holds_arrays, unpack_dataset
from hotloop.errors import ConfigError

__all__ = ["as_datamodule"]

_ENOUGH_TO_VALIDATE = 50  # rows from which (X, y) holds some out
_HELD_OUT = 0.2


def as_datamodule(data: Any, **options: Any) -> DataModule:
    """What ``train`` and ``evaluate`` accept as data.

    Parameters
    ----------
    data : DataModule, tuple, array_like, dict or dataset object
        A DataModule is returned as it is. ``(X, y)``, ``(X, y, weight)`` or X go to
        :meth:`DataModule.from_arrays`; from 50 rows on a fifth of them validates, below that
        nothing is held out. Dataset objects go to :class:`DataModule`.
    **options
        For ``from_arrays``; ``val=None`` holds nothing out.

    Raises
    ------
    ConfigError
        If data is none of this, or options come with a DataModule.
    """
    if isinstance(data, DataModule):
        if options:
            raise ConfigError(
                f"data: the DataModule has its own options, got {show(options)} beside it"
            )
        return data
    source = unpack_dataset(data, "data") if holds_arrays(data) else None
    if source is None or source.rows is not None:  # samples, loaders or a subset
        share = options.pop("val", None)
        return DataModule.from_datasets(data, share, **options)
    if "val" not in options and count_rows(source.X) >= _ENOUGH_TO_VALIDATE:
        options["val"] = _HELD_OUT
    return DataModule.from_arrays(source.X, source.y, sample_weight=source.weight, **options)
