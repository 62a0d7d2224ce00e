"""What a user gives to run a model on: forward's arguments, found by name where there are names."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hotloop.base.rules import show
from hotloop.base.scalars import plain
from hotloop.base.structure import Constant, Keywords, flatten, unflatten
from hotloop.base.suggest import name_missing
from hotloop.data.arrays import column_names, to_array
from hotloop.data.sequential.sequences import are_sequences, pad_sequences
from hotloop.data.split import nest_fields
from hotloop.errors import DataError, ShapeError, TraceError
from hotloop.nn.cache import KVCache
from hotloop.training.plans.fitted import PredictOnly, fitted_of

__all__ = ["Inputs"]

Array: TypeAlias = npt.NDArray[Any]


class Inputs:
    """forward's arguments of a user's data, as the model takes them.

    Parameters
    ----------
    what : str
        Who asks, for messages.
    data : array, tuple or dict of arrays, data frame, nested lists
        Lists are arrays, as in training; tuples and dicts are structure.
        None, bools, numbers of Python, strings and caches are constants: parts of the structure.
    model : Module or PredictOnly
        One that was trained knows its columns, their dtypes and shapes.
    keywords : dict, optional
        Arguments that go by name.
    is_encoded : bool
        Whether a table is what forward takes already.

    Attributes
    ----------
    arrays : list of array
    spec : Any
        Their structure, as a tuple of arguments.
    lengths : int64 array or None
        Of a list of sequences, which are padded: how many rows each has.

    Raises
    ------
    DataError, ShapeError
    """

    def __init__(
        self,
        what: str,
        data: Any,
        model: Any,
        keywords: dict[str, Any] | None = None,
        *,
        is_encoded: bool = False,
    ) -> None:
        self._what = what
        fitted = fitted_of(model)
        self._fitted = fitted
        self._fields = fitted.fields if fitted is not None else []
        known = [name.partition(".")[2] for name, _, _ in self._fields]
        is_empty = bool(known) and self._has_no_rows(data)
        if is_empty:  # of training's shapes then
            rows = {name: np.empty((0, *shape), dtype) for name, dtype, shape in self._fields}
            data, is_encoded = nest_fields(rows)["x"], True
        others: tuple[Any, ...] = ()  # arguments beside the one that training had
        if known and not known[0].isdigit() and isinstance(data, tuple) and data:
            data, others = data[0], data[1:]
        encoded, is_one = _encode(what, data, fitted) if not is_encoded else (None, False)
        data = _find_columns(what, data, fitted) if encoded is None else encoded
        is_named = bool(known) and known[0] != "" and not known[0].isdigit()
        given = column_names(data)
        if is_named and given is not None:  # a frame has the columns as well
            data = {name: data[name] for name in given if name in known}
        if isinstance(data, Mapping) and known == [""]:
            names = ", ".join(map(repr, data))
            raise DataError(
                f"{what}: x must be one array as in training, got a dict of {names}; give the "
                "array alone"
            )
        if isinstance(data, Mapping):
            data = (_columns_of(what, data, known),)
        elif is_named:
            raise DataError(
                f"{what}: x must be a dict of the columns {', '.join(known)} as in training, got "
                f"{type(data).__name__}"
            )
        elif not isinstance(data, tuple):
            data = (data,)
        if keywords:
            others = (*others, Keywords(keywords))
        padding = fitted.padding if fitted is not None else None
        self.lengths: npt.NDArray[np.int64] | None = None
        if padding is not None and is_empty:
            self.lengths = np.empty(0, np.int64)
        if padding is not None and len(data) == 1 and not others:
            data = (self._as_sequences(data[0]),)
        if padding is not None and len(data) == 1 and not others and are_sequences(data[0]):
            length = self._fields[0][2][0] if isinstance(model, PredictOnly) else None
            role, fill, _ = padding
            *data, self.lengths = pad_sequences(data[0], role, fill, length)
        given = (*data, *others)
        data = _as_inputs(given)
        if isinstance(model, PredictOnly):
            _refuse_constants(what, data)
        self.arrays, self.spec = flatten(data)
        for leaf in flatten(given)[0] if not self.arrays else ():
            _as_array(leaf)  # raises
        self._is_row = is_one  # one row, which goes without the dim of rows
        self._unlike: list[str] = []  # what has another shape than in training
        is_loaded = isinstance(model, PredictOnly)
        n_more = len(self.arrays) - len(self._fields)
        if n_more == 0 or (n_more > 0 and not is_loaded):
            self._check_fields(must_match=is_loaded)
        elif self._fields and is_loaded:
            names = ", ".join(name for name, _, _ in self._fields)
            raise ShapeError(
                f"{what}: must get one array for each of {names} as in training, got "
                f"{len(self.arrays)}"
            )
        self._check_lengths()

    def _has_no_rows(self, data: Any) -> bool:
        """Whether it is an empty list, or an array as one, which says no shape of rows."""
        shape = (len(data),) if isinstance(data, list) else tuple(getattr(data, "shape", ()))
        has_lengths = self._fitted is not None and self._fitted.padding is not None
        ranks = {1, len(self._fields[0][2]) + 1} if has_lengths else {1}
        return shape[:1] == (0,) and len(shape) in ranks

    def _as_sequences(self, data: Any) -> Any:
        """An array of sequences of one length as a list of them; refuses one sequence alone."""
        if not isinstance(data, np.ndarray) or data.dtype.kind == "O":
            return data
        rank = len(self._fields[0][2])
        if data.ndim == rank:
            raise ShapeError(
                f"{self._what}: the model was trained on sequences and takes a list of them, or "
                f"(padded, lengths or mask), got an array of shape {data.shape}; write [x] for one "
                "sequence"
            )
        return list(data) if data.ndim == rank + 1 else data

    @property
    def may_be_row(self) -> bool:
        """Whether the first dim may be that of features: nothing is known of training's shapes."""
        return not self._fields and all(array.ndim == 1 for array in self.arrays)

    def _check_fields(self, *, must_match: bool) -> None:
        for array, (name, dtype, _) in zip(self.arrays, self._fields):
            if dtype == "int64" and array.dtype.kind == "f":
                raise DataError(
                    f"{self._what}: {name} must hold integers as in training, got {array.dtype}; "
                    "use .astype(np.int64) if they are whole"
                )
            assert self._fitted is not None  # it has the fields
            self._fitted.check_input(self._what, name, array)
        shapes = [shape for _, _, shape in self._fields]
        if [a.shape for a in self.arrays] == shapes and self.arrays:
            self._is_row = True  # one row without the dim of rows
            self.arrays = [array[None] for array in self.arrays]
            return
        self._unlike = [
            f"{name} must have shape (rows, {', '.join(map(str, shape))}) as in training, got "
            f"{array.shape}"
            for array, (name, _, shape) in zip(self.arrays, self._fields)
            if array.shape[1:] != shape
        ]
        if self._unlike and must_match:
            raise ShapeError(f"{self._what}: {self._unlike[0]}{self._advice()}")

    def _advice(self) -> str:
        """What to write for sequences or images of other sizes, which a module may take."""
        for array, (_, dtype, shape) in zip(self.arrays, self._fields):
            is_sized = len(shape) > 1 or dtype == "int64"
            if array.shape[1:] != shape and array.ndim == len(shape) + 1 and is_sized:
                return (
                    "; a file has what was recorded for that shape, and its module may take "
                    "others: build it again, module.load_state_dict(loaded.state_dict()), and "
                    "predict with it, or pad the input"
                )
        return ""

    def _check_lengths(self) -> None:
        lengths = [len(array) for array in self.arrays]
        if len(set(lengths)) < 2:
            return
        if len(self._fields) == len(self.arrays) and not self._unlike:
            raise ShapeError(f"{self._what}: inputs must have equal lengths, got {lengths}")
        # Forward decides: dim 0 need not be that of rows.
        self._unlike.append(f"dim 0 of the inputs differs, {lengths}: are they rows of one batch?")

    def explain(self, error: ShapeError | TraceError) -> None:
        """Says behind the text of forward's error what is unlike training, or one input another:
        it may be the reason.
        """
        if self._unlike:
            error.args = (f"{self._what}: {error}; {self._unlike[0]}",)

    def give(self, result: Any) -> Any:
        """The outputs as they are; for one row without the dim of rows, the same."""
        if not self._is_row:
            return result
        leaves, spec = flatten(result)
        return unflatten([leaf[0] if leaf.shape[:1] == (1,) else leaf for leaf in leaves], spec)


def _encode(what: str, data: Any, fitted: Any) -> tuple[Any, bool]:
    """Of a table, a dict of its columns or one of its rows, what forward takes, and whether it is
    one row; None: it is none of these, or training had none.
    """
    if fitted is None or fitted.encoding is None:
        return None, False
    names = fitted.encoding.names
    is_row = hasattr(data, "index") and hasattr(data, "to_numpy") and np.ndim(data) == 1
    if is_row and set(names) & {str(name) for name in data.index}:
        data = {str(name): [value] for name, value in data.items()}
        return fitted.encode(what, data), True
    is_one = False
    if isinstance(data, Mapping):
        data = {str(name): value for name, value in data.items()}
        given = [data[name] for name in names if name in data]
        is_one = bool(given) and all(map(_is_single, given))
        data = {name: [value] for name, value in data.items()} if is_one else data
    return fitted.encode(what, data), is_one


def _is_single(value: Any) -> bool:
    return value is None or isinstance(value, str) or np.ndim(value) == 0


def _find_columns(what: str, data: Any, fitted: Any) -> Any:
    """Of a frame, a dict of columns or a row of a frame, the columns of training in its order."""
    wanted = fitted.columns if fitted is not None else None
    if wanted is None:
        return data
    given = column_names(data)
    if given is None:
        return _find_labels_of_row(what, data, wanted)
    if list(given) == wanted:
        return data
    _check_given(what, wanted, given)
    return data[wanted]


def _find_labels_of_row(what: str, data: Any, wanted: list[str]) -> Any:
    """Of a dict of columns, or a pandas Series that is a row, the values in training's order."""
    is_row = hasattr(data, "index") and hasattr(data, "to_numpy")  # of a column, names are of rows
    if not is_row and not isinstance(data, Mapping):
        return data
    given = list(data.index if is_row else data)
    if is_row and not set(given) & set(wanted):
        return data
    _check_given(what, wanted, given)
    if not is_row:
        return np.column_stack([_as_array(data[name]) for name in wanted])
    for name in wanted:
        if not isinstance(data[name], (numbers.Real, np.bool_)):
            raise DataError(f"{what}: X must hold numbers, got {data[name]!r} in column {name!r}")
    return np.array([data[name] for name in wanted])


def _check_given(what: str, wanted: list[str], given: Iterable[Any]) -> None:
    """Raises DataError where a column of training is missing."""
    names = [str(name) for name in given]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise DataError(_lacks(what, "X", missing, names))


def _lacks(what: str, x: str, missing: list[str], given: Iterable[str]) -> str:
    """The sentence about columns that training had, each with the one that may be meant."""
    named = name_missing(missing, given)
    return f"{what}: {x} must have all columns of training, got none for {named}"


def _as_inputs(value: Any) -> Any:
    """Nested lists are arrays, as in training; tuples and dicts are structure."""
    if isinstance(value, tuple):
        return tuple(_as_inputs(item) for item in value)
    if isinstance(value, Mapping):
        made = {key: _as_inputs(item) for key, item in value.items()}
        return Keywords(made) if isinstance(value, Keywords) else made
    single = plain(value)  # an array of shape () has no rows
    if single is None or isinstance(single, bool | int | float | str | KVCache):
        return Constant(single)
    return _as_array(value)


def _columns_of(what: str, columns: Mapping[str, Any], known: list[str]) -> dict[str, Any]:
    """The columns that training had, in its order: what was fitted goes by position."""
    if not any(known):
        return dict(columns)
    missing = [name for name in known if name not in columns]
    if missing:
        raise DataError(_lacks(what, "x", missing, [str(name) for name in columns]))
    return {name: columns[name] for name in known}


def _refuse_constants(what: str, data: tuple[Any, ...]) -> None:
    """Raises the error of the first argument that is no array, or goes by name: of a file's model,
    which is recorded for the arguments of training.
    """
    for item in data:
        is_named = isinstance(item, Keywords)
        for name, value in item.items() if is_named else [("", item)]:
            if is_named or isinstance(value, Constant):
                got = show(value.value) if isinstance(value, Constant) else "an array"
                raise DataError(
                    f"{what}: a model from a file takes the arrays of training and no other "
                    f"arguments, got {f'{name}={got}' if name else got}; build the module, "
                    "module.load_state_dict(loaded.state_dict()), and call it"
                )


def _as_array(value: Any) -> Array:
    """An input as a native, contiguous array of a dtype that the core knows."""
    return to_array(value, "input")
