"""``hotloop train run.toml``: a run written down as a file.

    save = "net.safetensors"        # optional
    plot = "net.png"                # optional, needs matplotlib

    [model]
    name = "net.py:Net"             # a class or function; or "module:Net", or a hotloop.models name
    width = 128                     # its arguments

    [data]
    constructor = "from_csv"        # of DataModule; other keys are its arguments
    path = "train.csv"
    target = "price"

    [training]                      # any field of TrainingConfig
    max_epochs = 20

``model = "net.py:Net"`` is short for a model without arguments. What [data] may say is in
:mod:`hotloop.tools.rundata`. Paths are relative to the file.

The whole file is checked, sections, keys and values, before the user's code is imported or data is
read, as far as that is possible without either. What has a colon in its name is of the user's own
Python files, which are then executed, as `python net.py` would; nothing else in a run file is code.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hotloop.base.suggest import did_you_mean
from hotloop.errors import ConfigError
from hotloop.tools.references import Reference, check_arguments, find_reference
from hotloop.tools.rundata import DataSection, read_data_section

if TYPE_CHECKING:
    from hotloop.data.module import DataModule
    from hotloop.nn.module import Module
    from hotloop.training.config import TrainingConfig
    from hotloop.training.result.result import TrainResult

__all__ = ["read_run", "train_file"]

_KEYS = ("model", "save", "plot", "data", "training")


class _Run(NamedTuple):
    """What a run file says, checked."""

    model: _Model
    data: DataSection
    config: TrainingConfig
    save: Path | None
    plot: Path | None


class _Model(NamedTuple):
    """The section [model]: a name of hotloop.models or a reference, and its arguments."""

    where: str
    maker: str | Reference
    arguments: dict[str, Any]

    def make(self) -> Module:
        """Runs the user's code, if it is his model, and makes it."""
        from hotloop import models
        from hotloop.nn.module import Module

        if isinstance(self.maker, str):
            try:
                made: Module = getattr(models, self.maker)(**self.arguments)
                return made
            except (TypeError, ValueError, OSError) as error:
                raise ConfigError(f"{self.where} {self.maker}: {error}") from error
        found = self.maker.make(self.arguments)
        if not isinstance(found, Module):
            raise ConfigError(
                f"{self.where} name: {self.maker.source} must make a hotloop.nn.Module, got "
                f"{type(found).__name__}"
            )
        return found


def train_file(
    path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None, resume: Any = None
) -> TrainResult:
    """Trains as a TOML file says; saves model and plot where it says so.

    Parameters
    ----------
    path : path-like
    overrides : mapping, optional
        Fields of TrainingConfig in the place of the file's.
    resume : optional
        As for :func:`hotloop.train`.

    Returns
    -------
    TrainResult

    Raises
    ------
    ConfigError
        If the file is missing, no TOML, or has a key or value that is wrong; it names section and
        key.
    DataError
        If a file of data is missing or cannot be read.
    """
    from hotloop.training.run.fit import train

    run = _read(Path(path), overrides or {})
    data = run.data.make()
    result = train(run.model.make(), data, run.config, resume=resume)
    if run.save:
        result.save(run.save)
    if run.plot:
        result.plot(run.plot)
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
    run = _read(Path(path), {})
    data = run.data.make()
    return run.model.make(), data, run.config


def _read(path: Path, overrides: Mapping[str, Any]) -> _Run:
    """Checks all of the file."""
    try:
        run = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    for key in run:
        if key not in _KEYS:
            raise ConfigError(
                f"{path}: keys are {', '.join(_KEYS)}, got {key!r}{did_you_mean(key, _KEYS)}"
            )
    model = _read_model(path, run.get("model"))
    data = read_data_section(f"{path}: [data]", path.parent, _table(path, run, "data"))
    config = _read_training(path, _table(path, run, "training", required=False), overrides)
    save, plot = _output(path, run, "save"), _output(path, run, "plot")
    if plot is not None and find_spec("matplotlib") is None:
        raise ConfigError(
            f"{path}: plot needs matplotlib, got none installed; pip install matplotlib"
        )
    return _Run(model, data, config, save, plot)


def _table(path: Path, run: dict[str, Any], key: str, *, required: bool = True) -> dict[str, Any]:
    table = run.get(key, None if required else {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: a table [{key}] is needed, got {table!r}")
    return dict(table)


def _output(path: Path, run: dict[str, Any], key: str) -> Path | None:
    """A file that is written at the end."""
    text = run.get(key)
    if text is None or text == "":
        return None
    if not isinstance(text, str):
        raise ConfigError(f"{path}: {key} must be a text, got {text!r}")
    file = path.parent / text
    if not file.parent.is_dir():
        raise ConfigError(f"{path}: {key} must be in a folder that exists, got {text!r}")
    return file


def _read_model(path: Path, model: Any) -> _Model:
    from hotloop import models

    where = f"{path}: [model]"
    given = {"name": model} if isinstance(model, str) else model
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: a table [model] is needed, got {given!r}")
    given = dict(given)
    # An argument may be called "name", and none can be called "class".
    name = given.pop("class" if "class" in given else "name", None)
    if not isinstance(name, str):
        near = did_you_mean("name", given)
        raise ConfigError(f'{where} name: must be "file.py:Name" or a model, got {name!r}{near}')
    if ":" in name or name.endswith(".py"):
        found = find_reference(f"{where} name", name, path.parent)
        if found.signature is not None:
            check_arguments(where, found.name, found.signature, given)
        return _Model(where, found, given)
    if name not in models.__all__:
        raise ConfigError(
            f'{where} name: must be "file.py:Name", "module:Name" or a model of hotloop.models, '
            f"got {name!r}{did_you_mean(name, models.__all__)}"
        )
    import inspect

    check_arguments(where, name, inspect.signature(getattr(models, name)), given)
    if isinstance(given.get("weights"), str):
        given["weights"] = str(path.parent / given["weights"])
        if not os.path.isfile(given["weights"]):
            raise ConfigError(f"{where} weights: {given['weights']} does not exist")
    return _Model(where, name, given)


def _read_training(
    path: Path, table: dict[str, Any], overrides: Mapping[str, Any]
) -> TrainingConfig:
    from hotloop.training.config import TrainingConfig

    where = f"{path}: [training]"
    if "resume" in table:
        raise ConfigError(f"{where} resume: is a flag, hotloop train {path} --resume")
    for owner in (table, table.get("trainer")):
        for key in ("output_dir", "default_root_dir"):
            if isinstance(owner, dict) and isinstance(owner.get(key), str) and owner[key]:
                owner[key] = str(path.parent / owner[key])
    try:
        config = TrainingConfig(**table)
    except ConfigError as error:
        raise ConfigError(f"{where}: {str(error).removeprefix('TrainingConfig: ')}") from error
    try:
        return config.replace(**overrides)
    except ConfigError as error:
        text = str(error).removeprefix("TrainingConfig: ")
        raise ConfigError(f"{where} and flags: {text}") from error
