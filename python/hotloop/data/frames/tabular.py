"""A table as a DataModule's parts: which columns are targets, weights and groups, and the rest."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import show
from hotloop.base.suggest import name_missing
from hotloop.data.frames.columns import Column, Frame, is_table, read_frame
from hotloop.data.frames.encoding import NUMBERS, Encoding
from hotloop.data.tables import Table, read_table, unpack_dataset
from hotloop.data.targets import Targets
from hotloop.errors import ConfigError, DataError

__all__ = ["Roles", "columns_needed", "make_table", "read_own", "read_paths", "read_roles"]

Array = npt.NDArray[Any]


class Roles(NamedTuple):
    """What the columns of a frame are for.

    ``names`` are those of X. ``y``, ``weight`` and ``groups`` are as arrays take them, or None.
    """

    frame: Frame
    names: list[str]
    y: Any
    weight: Any
    groups: Any


def read_roles(
    frame: Frame,
    target: Any,
    features: Sequence[str] | None = None,
    sample_weight: Any = None,
    groups: Any = None,
    *,
    label: str = "y",
    is_training: bool = True,
    takes_nan: bool = False,
) -> Roles:
    """Which columns are what.

    Parameters
    ----------
    frame : Frame
    target, features, sample_weight, groups
        Names, or as :meth:`hotloop.DataModule.from_arrays` has them.
    label : str
        The target's, for messages.
    is_training : bool
        Whether the target's names are numbered here, and not as those of training.
    takes_nan : bool
        Whether numbers may be missing in the target.

    Raises
    ------
    ConfigError
        For a column that is not there.
    DataError
        For a target that is missing in a row, or weights that are no numbers.
    """
    if not frame.n or not frame.names:
        raise DataError(f"{frame.label}: has no {'columns' if frame.n else 'rows'}")
    y, taken = frame.pick("target", target)
    weight, weighing = frame.pick("sample_weight", sample_weight)
    group, grouping = frame.pick("groups", groups)
    if features is None:
        used = {*taken, *weighing, *grouping}
        names = [name for name in frame.names if name not in used]
        if not names:
            raise ConfigError(
                f"features: a column at least is needed, got none beside {', '.join(sorted(used))}"
            )
    else:
        listed = [features] if isinstance(features, str) else list(features)
        names, _ = frame.pick("features", listed)
        for i, name in enumerate(names):
            if name in taken:
                raise ConfigError(
                    f"features: a model must not be given its target, got {name!r} among them"
                )
            if name in names[:i]:
                raise ConfigError(f"features: names must differ, got {name!r} twice")
    if isinstance(y, Column):
        y = _read_target(y, frame, label, is_training=is_training, takes_nan=takes_nan)
    if isinstance(weight, Column):
        if weight.kind != "number":
            got = f"{weight.plural} in column {weight.name!r}"
            raise DataError(f"sample_weight: must hold numbers, got {got}")
        weight = weight.values
    if isinstance(group, Column):
        if group.missing.size:
            where = frame.place(int(group.missing[0]))
            raise DataError(
                f"groups: column {group.name!r}: each row needs a group, got none in {where}"
            )
        group = group.codes if group.codes is not None else group.values
    return Roles(frame, names, y, weight, group)


def _read_target(
    column: Column, frame: Frame, label: str, *, is_training: bool, takes_nan: bool
) -> Any:
    """A column as y: numbers as they are, names numbered in sorted order."""
    if column.kind == "date":
        raise DataError(f"{label}: column {column.name!r}: must hold numbers or texts, got dates")
    if column.missing.size and not (column.codes is None and takes_nan):
        n = len(column.missing)
        more = f" ({n:,} such rows)" if n > 1 else ""
        raise DataError(
            f"{label}: column {column.name!r}: each row needs a target, got none in "
            f"{frame.place(int(column.missing[0]))}{more}; drop these rows"
        )
    if column.codes is None:
        return column.values
    if not all(isinstance(each, str) for each in column.categories):
        return np.asarray(column.categories)[column.codes]  # categories that are numbers
    if not is_training:
        return column.to_numpy()
    counts = np.bincount(column.codes, minlength=len(column.categories))
    present = [int(i) for i in np.flatnonzero(counts)]
    present.sort(key=lambda i: column.categories[i])
    table = np.zeros(len(column.categories), np.int64)
    table[present] = np.arange(len(present))
    classes = [column.categories[i] for i in present]
    return Targets(table[column.codes], "class", "int64", classes, len(classes))


def make_table(
    encoding: Encoding,
    X: Any,
    y: Any,
    weight: Any,
    *,
    prefix: str = "",
    like: Table | None = None,
    standardize: bool | frozenset[str] = False,
) -> Table:
    """What was encoded as a table, whose matrix knows its columns.

    Parameters
    ----------
    encoding : Encoding
    X : array or dict of array
        As the encoding has it.
    y, weight, prefix, like
        As for :func:`hotloop.data.tables.read_table`.
    standardize : bool or set of str
        Likewise, but for the names, which are those of the table's columns.

    Raises
    ------
    ConfigError
        For a name of no column of numbers.
    """
    made = [
        (column, is_mark or not (isinstance(standardize, bool) or feature.name in standardize))
        for feature in encoding.features
        for column, is_mark in feature.made
    ]
    columns = tuple(name for name, _ in made)
    marks = tuple(i for i, (_, is_mark) in enumerate(made) if is_mark)
    if not isinstance(standardize, bool):
        numbers = [f.name for f in encoding.features if f.how not in ("onehot", "ids")]
        if unknown := sorted(standardize - set(numbers)):
            raise ConfigError(
                "standardize: must name columns of numbers, got none for "
                f"{name_missing(unknown, numbers)}"
            )
    is_any = bool(standardize)
    table = read_table(X, y, weight, prefix=prefix, like=like, standardize=is_any)
    fields = tuple(
        dataclasses.replace(field, columns=columns, marks=marks)
        if field.name in ("x", f"x.{NUMBERS}")
        else field
        for field in table.fields
    )
    return dataclasses.replace(table, fields=fields)


def read_own(
    part: Any, name: str, target: Any, weight: Any, *, takes_nan: bool = False
) -> Roles | None:
    """A split that has data of its own, a frame or ``(frame, y)`` or ``(frame, y, weight)``.

    Parameters
    ----------
    part : Any
    name : str
        Of the split.
    target, weight : Any
        Their columns, as the user named them.
    takes_nan : bool
        As :func:`read_roles` has it.

    Returns
    -------
    Roles or None
        None: it is a share of the rows.

    Raises
    ------
    DataError
        If the tuple holds no frame.
    """
    if is_table(part):
        frame = read_frame(part, name)
        named = weight if isinstance(weight, str) and weight in frame.names else None
        if target is not None and not _are_names(target):
            raise ConfigError(
                f"{name}: a frame of its own has its target in a column, got a target that is no "
                f"column's name; write {name}=(frame, y)"
            )
        label = f"{name} y"
        return read_roles(
            frame, target, None, named, label=label, is_training=False, takes_nan=takes_nan
        )
    if not isinstance(part, tuple):
        return None
    source = unpack_dataset(part, name)
    if not is_table(source.X):
        raise DataError(
            f"{name} X: a data frame is needed as in training, got {type(source.X).__name__} "
            f"{show(source.X)}"
        )
    frame = read_frame(source.X, f"{name} X")
    return Roles(frame, frame.names, source.y, source.weight, None)


def _are_names(target: Any) -> bool:
    return isinstance(target, str) or (
        isinstance(target, list) and all(isinstance(each, str) for each in target)
    )


def columns_needed(target: Any, options: Mapping[str, Any]) -> list[str] | None:
    """The columns of a file that the options name; None: all of them."""
    features = options.get("features")
    if features is None:
        return None
    listed = [features] if isinstance(features, str) else list(features)
    for given in (target, options.get("groups"), options.get("sample_weight")):
        if isinstance(given, str):
            listed.append(given)
        elif isinstance(given, list) and _are_names(given):
            listed += given
    return list(dict.fromkeys(listed))


def read_paths(options: Mapping[str, Any], read: Callable[[Any], Frame]) -> dict[str, Any]:
    """The options with the files that val and test name read."""
    return {
        key: read(value)
        if key in ("val", "test") and isinstance(value, str | os.PathLike)
        else value
        for key, value in options.items()
    }
