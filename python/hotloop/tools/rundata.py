"""The section [data] of a run file: a way to make a DataModule, by its name, with its arguments.

    [data]
    constructor = "from_csv"        # of DataModule, or "data.py:make": a function of one's own
    path = "people-*.csv"           # its arguments
    target = "buys"
    val = 0.2

TOML has no arrays of numbers worth the name, so where an argument is an array the file that holds
it is written: "x.npy", or "train.npz:x". Which arguments are arrays and which are paths is said
here, once for each constructor; everything else goes to it as it stands. Paths begin at the folder
of the run file. Without a constructor it is ``from_arrays``, or with ``table`` a CSV file.

What can be known without reading data is checked first: names of options, and that files are there.
"""

from __future__ import annotations

import glob
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hotloop.base.suggest import did_you_mean
from hotloop.errors import ConfigError, DataError
from hotloop.tools.references import Reference, check_arguments, find_reference, names_beside

if TYPE_CHECKING:
    from hotloop.data.module import DataModule

__all__ = ["DataSection", "read_data_section"]


class _Way(NamedTuple):
    """A constructor, and what its arguments are.

    Attributes
    ----------
    through : str
        The constructor that its ``**options`` go to.
    paths : tuple of str
        Arguments that are paths or patterns; those that may be something else, only if texts.
    arrays : tuple of str
        Arguments that are arrays, where the text names a file of them.
    objects, functions : tuple of str
        References of what is made without arguments, and of what is given as it is.
    words : tuple of str
        Texts that are no paths where a path may stand.
    frames : tuple of str
        Arguments that may be a table, read by pandas.
    """

    through: str = ""
    paths: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()


_OF_ROWS = ("groups", "sample_weight", "weights")
_WAYS: Mapping[str, _Way] = {
    "from_arrays": _Way(arrays=("X", "y", "val", "test", *_OF_ROWS)),
    "from_npy": _Way(
        "from_arrays", ("X", "y", "groups", "sample_weight"), ("val", "test", "weights")
    ),
    "from_csv": _Way("from_pandas", ("path", "val", "test"), _OF_ROWS),
    "from_parquet": _Way("from_pandas", ("path", "val", "test"), _OF_ROWS),
    "from_image_folder": _Way("", ("root", "val", "test", "cache_dir"), ("groups", "weights")),
    "from_image_table": _Way(
        "", ("table", "root", "val", "test", "cache_dir"), ("groups", "weights")
    ),
    "from_cubes": _Way("from_arrays", ("files", "masks"), ("labels", "wavelengths", *_OF_ROWS)),
    "from_text": _Way(
        "", ("source", "tokenizer", "val", "test"), ("weights",), words=("bytes", "characters")
    ),
    "from_windows": _Way(
        "", (), ("series", "target", "time", "val", "test", *_OF_ROWS), frames=("series",)
    ),
    "from_sequences": _Way("", (), ("X", "y", "lengths", "val", "test", *_OF_ROWS)),
    "from_datasets": _Way(
        "__init__", (), ("groups", "weights"), ("train", "val", "test"), ("collate_fn",)
    ),
    "from_generator": _Way("__init__", (), (), ("val",), ("make",)),
}  # fmt: skip
_MADE_THERE = ("cache_dir",)  # folders that need not be there


class DataSection(NamedTuple):
    """What [data] says, checked.

    Attributes
    ----------
    where : str
        ``"run.toml: [data]"``, for messages.
    folder : Path
        That paths begin at.
    constructor : str or Reference
        A name of DataModule's, "table", or a function of the user's.
    arguments : dict
        As they are written; references have been looked up.
    """

    where: str
    folder: Path
    constructor: str | Reference
    arguments: dict[str, Any]

    def make(self) -> DataModule:
        """Reads the files and makes the DataModule.

        Raises
        ------
        ConfigError, DataError
            With the section before what the constructor says.
        """
        from hotloop.data.shorthand import as_datamodule

        if isinstance(self.constructor, Reference):
            return as_datamodule(self.constructor.make(self.arguments))
        from hotloop.data.module import DataModule

        try:
            if self.constructor == "table":
                options = dict(self.arguments)
                return DataModule.from_pandas(_read_frame(self.folder, options), **options)
            way = _WAYS[self.constructor]
            given = {key: _convert(self, way, key, value) for key, value in self.arguments.items()}
            make: Callable[..., DataModule] = getattr(DataModule, self.constructor)
            return make(**given)
        except (ConfigError, DataError) as error:
            raise type(error)(f"{self.where}: {error}") from error


def read_data_section(where: str, folder: Path, table: Mapping[str, Any]) -> DataSection:
    """Checks the section: its constructor, the names of its options, and that files are there.

    Parameters
    ----------
    where : str
        For messages.
    folder : Path
        That paths begin at.
    table : mapping
        As TOML gives it.

    Raises
    ------
    ConfigError, DataError
        With section and key.
    """
    given = dict(table)
    if "name" in given and "constructor" not in given:
        raise ConfigError(
            f"{where}: there is no name as in [model]; write constructor = {given['name']!r}"
        )
    name = given.pop("constructor", "table" if "table" in given else "from_arrays")
    if not isinstance(name, str):
        raise ConfigError(f"{where} constructor: must be a name, got {name!r}")
    if ":" in name:
        found = find_reference(f"{where} constructor", name, folder)
        if found.signature is not None:
            check_arguments(where, found.name, found.signature, given)
        return DataSection(where, folder, found, given)
    if name == "table":
        _check_table(where, folder, given)
        return DataSection(where, folder, name, given)
    if name not in _WAYS:
        listed = f"must be one of {', '.join(_WAYS)}, or a function of yours as 'data.py:make'"
        if name == "from_pandas":
            listed = "a data frame stands in no file; write constructor = 'from_csv'"
        raise ConfigError(f"{where} constructor: {listed}, got {name!r}{did_you_mean(name, _WAYS)}")
    if name == "from_arrays":  # as in the short form
        given = {"X" if key == "x" and "X" not in given else key: v for key, v in given.items()}
    _check_names(where, name, given)
    way = _WAYS[name]
    for key in (*way.objects, *way.functions):
        if isinstance(given.get(key), str):
            given[key] = find_reference(f"{where} {key}", given[key], folder)
    for key, value in given.items():
        _check_files(where, way, folder, key, value)
    if name == "from_arrays":
        for key in ("X", "y"):
            if key in given:
                _check_array(where, key, given[key])
    return DataSection(where, folder, name, given)


def _check_names(where: str, name: str, given: Mapping[str, Any]) -> None:
    """Refuses options that a constructor does not have, and misses those that it needs."""
    from hotloop.data.module import DataModule
    from hotloop.data.options import refuse_options

    make, way = getattr(DataModule, name), _WAYS[name]
    own = inspect.signature(make).parameters
    through = inspect.signature(getattr(DataModule, way.through)).parameters if way.through else {}
    taken = {"self", "X", "y", "frame", "train_dataset", "val_dataset", "test_dataset"}
    passed = [key for key in through if key not in taken]
    known = {*own, *passed} - {"unknown", "options", "self"}
    for key in given:
        if key not in known:
            try:
                refuse_options({key: None}, make, passed)
            except ConfigError as error:
                text = str(error).removeprefix("DataModule: ")
                raise ConfigError(f"{where} {key}: {name}: {text}") from None
    for parameter in own.values():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and parameter.default is parameter.empty and parameter.name not in given:
            raise ConfigError(f"{where} {parameter.name}: {name} needs it, got {_listed(given)}")


def _listed(given: Mapping[str, Any]) -> str:
    return ", ".join(given) or "nothing"


# ---- files


def _is_array_file(value: Any) -> bool:
    """Whether a text names an array in a file: "x.npy", "train.npz:x"."""
    return isinstance(value, str) and value.partition(":")[0].endswith((".npy", ".npz"))


def _check_files(where: str, way: _Way, folder: Path, key: str, value: Any) -> None:
    """That the files are there which an argument names."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            _check_files(where, way, folder, key, one)
    elif key in way.paths and isinstance(value, str) and value not in way.words:
        if key not in _MADE_THERE:
            _check_file(f"{where} {key}", folder, value)
    elif key in way.arrays and _is_array_file(value):
        _check_file(f"{where} {key}", folder, value.partition(":")[0])
    elif key in way.frames and isinstance(value, str):
        if not value.endswith((".csv", ".parquet")):
            raise ConfigError(
                f"{where} {key}: must be a path to .csv, .parquet, .npy or .npz, got {value!r}"
            )
        _check_file(f"{where} {key}", folder, value)


def _check_file(where: str, folder: Path, name: str) -> None:
    path = folder / name
    if glob.has_magic(name):
        if not glob.glob(str(path)):
            raise DataError(f"{where}: no file is as {name!r} in {folder}")
    elif not path.exists():
        beside = names_beside(path.parent)
        raise DataError(
            f"{where}: there is no file {name!r} in {folder}{did_you_mean(path.name, beside)}"
        )


def _check_array(where: str, key: str, value: Any) -> None:
    """That what X and y say are files of arrays."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list) and value and any(isinstance(one, str) for one in value):
        for one in value:
            _check_array(where, key, one)
    elif isinstance(value, str) and not _is_array_file(value):
        file = value.partition(":")[0]
        if file.endswith(".csv"):
            raise ConfigError(
                f"{where} {key}: must be an array of .npy or .npz, got {value!r}; write "
                f'table = "{file}" and target = "NAME" in place of x and y'
            )
        raise DataError(
            f"{where} {key}: must be .npy or .npz, got {value!r}; write the array with "
            f"np.save('{Path(file).stem}.npy', array)"
        )
    elif not isinstance(value, (str, list)):
        raise ConfigError(f"{where} {key}: must be a path to .npy or .npz, got {value!r}")


def _convert(section: DataSection, way: _Way, key: str, value: Any) -> Any:
    """An argument as the constructor takes it."""
    if isinstance(value, Reference):
        return value.make({}) if key in way.objects else value.load()
    if isinstance(value, Mapping):
        return {name: _convert(section, way, key, one) for name, one in value.items()}
    if isinstance(value, list):
        made = [_convert(section, way, key, one) for one in value]
        # Arrays of their own for val and test, and several arguments of forward, are tuples.
        is_tuple = key in way.arrays and any(map(_is_array_file, value))
        return tuple(made) if is_tuple and section.constructor != "from_sequences" else made
    if not isinstance(value, str):
        return value
    if key in way.paths and value not in way.words:
        return str(section.folder / value)
    if key in way.arrays and _is_array_file(value):
        return _read_array(section.folder, key, value)
    if key in way.frames:
        return _read_table(section.folder / value)
    return value


def _read_array(folder: Path, name: str, source: str) -> Any:
    """The array of "file.npy" or "file.npz:key"."""
    import numpy as np

    file, _, key = source.partition(":")
    try:
        loaded = np.load(folder / file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            if key not in loaded:
                raise DataError(
                    f"{name}: {file} holds the arrays {', '.join(loaded)}; write {file}:NAME, "
                    f"got {source!r}{did_you_mean(key, loaded)}"
                )
            return loaded[key]
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, DataError):
            raise
        if "allow_pickle" in str(error):
            raise DataError(
                f"{name}: {folder / file} holds Python objects, which are not read from a file; "
                "save numbers or texts: np.save(path, array.astype(np.float32)), array.astype(str)"
            ) from error
        raise DataError(
            f"{name}: {folder / file} cannot be read as .npy or .npz: {error}"
        ) from error


# ---- tables


def _check_table(where: str, folder: Path, given: Mapping[str, Any]) -> None:
    """The form without a constructor: table = "file.csv", read by pandas."""
    source = given["table"]
    if not isinstance(source, str) or not source.endswith(".csv"):
        raise ConfigError(f"{where} table: must be a path to .csv, got {source!r}")
    for name in ("x", "y"):
        if name in given:
            raise ConfigError(
                f"{where} {name}: x and y are in the table already, got {name} beside it; write "
                "target and features, names of columns"
            )
    _check_file(f"{where} table", folder, source)
    from hotloop.data.module import DataModule
    from hotloop.data.options import refuse_options

    known = inspect.signature(DataModule.from_pandas).parameters
    for key in given:
        if key not in known and key != "table":
            try:
                refuse_options({key: None}, DataModule.from_pandas)
            except ConfigError as error:
                text = str(error).removeprefix("DataModule: ")
                raise ConfigError(f"{where} {key}: {text}") from None


def _read_frame(folder: Path, options: dict[str, Any]) -> Any:
    """The data frame of "file.csv", which is taken out of the options."""
    frame = _read_table(folder / options.pop("table"))
    if "target" not in options:
        raise ConfigError(
            f"target must name a column of the table ({', '.join(map(str, frame.columns))}), got "
            "none"
        )
    return frame


def _read_table(path: Path) -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(
            f"{path.name}: tables are read by pandas, got none installed; pip install pandas"
        ) from error
    try:
        return (pandas.read_parquet if path.suffix == ".parquet" else pandas.read_csv)(path)
    except (OSError, ValueError, ImportError) as error:
        kind = path.suffix[1:].upper() if path.suffix == ".csv" else "Parquet"
        raise DataError(f"{path}: cannot be read as {kind}: {error}") from error
