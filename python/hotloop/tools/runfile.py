"""``hotloop train run.toml``: a run written down as a file.

    model = "net.py:Net"            # a Module class or a function without arguments
    save = "net.safetensors"        # optional
    plot = "net.png"                # optional, needs matplotlib

    [data]                          # arrays, and any keyword of DataModule.from_arrays
    x = "train.npz:x"               # or "x.npy"
    y = "train.npz:y"               # x and y may be: table = "train.csv", target = "price"
    val = 0.2
    batch_size = 64

    [training]                      # any field of TrainingConfig
    max_epochs = 20

Paths are relative to the file. Data is read from .npy and .npz without pickle, tables from .csv by
pandas, with the keywords of DataModule.from_pandas; the model is the user's own Python file, which
is executed, as `python net.py` would.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.suggest import did_you_mean
from hotloop.errors import ConfigError, DataError

if TYPE_CHECKING:
    from hotloop.data.module import DataModule
    from hotloop.nn.module import Module
    from hotloop.training.config import TrainingConfig
    from hotloop.training.result.result import TrainResult

__all__ = ["read_run", "train_file"]

_KEYS = ("model", "save", "plot", "data", "training")


def train_file(path: str | os.PathLike[str]) -> TrainResult:
    """Trains as a TOML file says; saves model and plot where it says so.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    TrainResult

    Raises
    ------
    ConfigError
        If the file is missing, no TOML, or has a key that is unknown.
    DataError
        If an array cannot be read.
    """
    from hotloop.training.run.fit import train

    path = Path(path)
    run = _read(path)
    save = _text(path, run, "save")
    plot = _text(path, run, "plot")
    result = train(*_parts(path, run))
    if save:
        result.save(path.parent / save)
    if plot:
        result.plot(path.parent / plot)
    return result


def read_run(path: str | os.PathLike[str]) -> tuple[Module, DataModule, TrainingConfig]:
    """Model, data and configuration that a TOML file says.

    Parameters
    ----------
    path : path-like

    Raises
    ------
    ConfigError, DataError
        As :func:`train_file`.
    """
    path = Path(path)
    return _parts(path, _read(path))


def _parts(path: Path, run: dict[str, Any]) -> tuple[Module, DataModule, TrainingConfig]:
    from hotloop.data.module import DataModule
    from hotloop.training.config import TrainingConfig

    config = TrainingConfig(**_table(path, run, "training", required=False))
    options = _table(path, run, "data", required=True)
    try:
        if "table" in options:
            data = DataModule.from_pandas(_frame(path, options), **options)
        else:
            x = _array(path, options.pop("x", None), "x")
            y = _array(path, options.pop("y", None), "y")
            data = DataModule.from_arrays(x, y, **options)
    except ConfigError as error:
        raise ConfigError(f"{path}: [data]: {error}") from error
    return _model(path, _text(path, run, "model", required=True)), data, config


def _read(path: Path) -> dict[str, Any]:
    try:
        run = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    for key in run:
        if key not in _KEYS:
            raise ConfigError(
                f"{path}: keys are {', '.join(_KEYS)}, got {key!r}{did_you_mean(key, _KEYS)}"
            )
    return run


def _table(path: Path, run: dict[str, Any], key: str, *, required: bool) -> dict[str, Any]:
    table = run.get(key, None if required else {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: a table [{key}] is needed, got {table!r}")
    return dict(table)


def _text(path: Path, run: dict[str, Any], key: str, *, required: bool = False) -> str:
    text = run.get(key, None if required else "")
    if not isinstance(text, str):
        raise ConfigError(f"{path}: {key} must be a text, got {text!r}")
    return text


def _frame(path: Path, options: dict[str, Any]) -> Any:
    """The data frame of "file.csv", which is taken out of the options."""
    source = options.pop("table")
    if not isinstance(source, str) or not source.endswith(".csv"):
        raise ConfigError(f"table must be a path to .csv, got {source!r}")
    for name in ("x", "y"):
        if name in options:
            raise ConfigError(
                f"x and y are in the table already, got {name} beside it; write target and "
                "features, names of columns"
            )
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(
            "table: CSV is read by pandas, got none installed; pip install pandas"
        ) from error
    try:
        frame = pandas.read_csv(path.parent / source)
    except (OSError, ValueError) as error:
        raise DataError(f"{path.parent / source}: cannot be read as CSV: {error}") from error
    if "target" not in options:
        raise ConfigError(
            f"target must name a column of the table ({', '.join(map(str, frame.columns))}), got "
            "none"
        )
    return frame


def _array(path: Path, source: Any, name: str) -> Any:
    """The array of "file.npy" or "file.npz:key"."""
    import numpy as np

    if not isinstance(source, str):
        raise ConfigError(f"{name} must be a path to .npy or .npz, got {source!r}")
    file, _, key = source.partition(":")
    if file.endswith(".csv"):
        raise ConfigError(
            f"{name} must be an array of .npy or .npz, got {source!r}; write table = "
            f'"{file}" and target = "NAME" in place of x and y'
        )
    if not file.endswith((".npy", ".npz")):
        raise DataError(
            f"[data]: {name} must be .npy or .npz, got {file!r}; write the array with "
            f"np.save('{Path(file).stem}.npy', array)"
        )
    try:
        loaded = np.load(path.parent / file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            if key not in loaded:
                raise DataError(
                    f"{file}: holds the arrays {', '.join(loaded)}; write {file}:NAME, "
                    f"got {source!r}"
                )
            return loaded[key]
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, DataError):
            raise
        if "allow_pickle" in str(error):
            raise DataError(
                f"{path.parent / file}: holds Python objects, which are not read from a file; save "
                "numbers or texts: np.save(path, array.astype(np.float32)), array.astype(str)"
            ) from error
        raise DataError(f"{path.parent / file}: cannot be read as .npy or .npz: {error}") from error


def _is_own(value: Any, module: str) -> bool:
    """Whether it is a class or function that a module defines itself."""
    return callable(value) and getattr(value, "__module__", None) == module


def _model(path: Path, source: str) -> Module:
    """The module that "file.py:name" makes."""
    import importlib.util
    import sys

    from hotloop.nn.module import Module

    file, _, name = source.partition(":")
    where = path.parent / file
    spec = importlib.util.spec_from_file_location(where.stem, where)
    if spec is None or spec.loader is None or not where.is_file() or not name:
        raise ConfigError(
            f'{path}: model must be "file.py:Name" of a file that exists, got {source!r}'
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pickling and dataclasses look a class's module up there
    spec.loader.exec_module(module)
    made = getattr(module, name, None)
    if made is None:
        own = [key for key, value in vars(module).items() if _is_own(value, spec.name)]
        raise ConfigError(
            f"{path}: {file} must define {name}, got {', '.join(own) or 'no class or function'}"
            f"{did_you_mean(name, own)}"
        )
    model = made() if callable(made) and not isinstance(made, Module) else made
    if not isinstance(model, Module):
        raise ConfigError(
            f"{path}: {source} must make a hotloop.nn.Module, got {type(model).__name__}"
        )
    return model
