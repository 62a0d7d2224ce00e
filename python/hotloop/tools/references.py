"""Names of Python objects in a file: ``"net.py:Net"``, ``"package.module:Net"``.

A reference is looked up before anything is run: the file is found, and its text is parsed for the
name and, where the definition says it, for the arguments that it takes. So a misspelt name or
argument is an error before the user's code runs, data is read or a GPU is opened. What the text
does not say (a name that a function made, a class whose base has the constructor) is checked when
the object is there.

Modules are looked for beside the file that names them, then where Python looks. To find one imports
nothing: the finders of the import system are asked folder by folder.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from hotloop.base.suggest import did_you_mean
from hotloop.errors import ConfigError

__all__ = ["Reference", "check_arguments", "find_reference", "names_beside"]

_FORM = '"file.py:Name" or "module:Name"'


class Reference(NamedTuple):
    """An object of a module that was found and not run.

    Attributes
    ----------
    where : str
        Who names it, for messages: ``"run.toml: [model] name"``.
    source : str
        As it is written.
    file : Path
        Of the module.
    module : str
        Its name in ``sys.modules``.
    root : Path
        The folder that the module's own imports begin at.
    name : str
    signature : Signature or None
        What the text says about its arguments.
    """

    where: str
    source: str
    file: Path
    module: str
    root: Path
    name: str
    signature: inspect.Signature | None

    def load(self) -> Any:
        """Runs the module and gives the object.

        Raises
        ------
        ConfigError
            For whatever the module raises, with its line, and if the name is not there.
        """
        try:
            module = self._import()
        except Exception as error:
            raise self.blame(error) from error
        try:
            return getattr(module, self.name)
        except AttributeError:
            own = [key for key, value in vars(module).items() if _is_own(value, self.module)]
            raise _missing(self.where, self.source, self.name, own) from None

    def make(self, arguments: Mapping[str, Any]) -> Any:
        """What a class or function gives for these arguments; another object as it is.

        Raises
        ------
        ConfigError
            For arguments that it does not take, and whatever it raises, with the line.
        """
        made = self.load()
        if not _is_maker(made):
            if arguments:
                raise ConfigError(
                    f"{self.where}: {self.source} takes no arguments, got {', '.join(arguments)}"
                )
            return made
        try:
            signature = inspect.signature(made)
        except (TypeError, ValueError):  # of C, which says nothing
            signature = None
        if signature is not None:
            check_arguments(self.where, self.name, signature, arguments)
        try:
            return made(**arguments)
        except Exception as error:
            raise self.blame(error) from error

    def blame(self, error: Exception) -> ConfigError:
        """What the user's code raised, as one line with its place."""
        import traceback

        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename) == self.file]
        place = f" ({self.file.name}, line {own[-1].lineno})" if own else ""
        text = " ".join(str(error).split())
        return ConfigError(f"{self.where}: {self.source}: {type(error).__name__}: {text}{place}")

    def _import(self) -> Any:
        if str(self.root) not in sys.path:
            sys.path.insert(0, str(self.root))  # the module imports what lies beside it
        if not self.source.partition(":")[0].endswith(".py"):
            module = importlib.import_module(self.module)
            if Path(module.__file__ or "").resolve() != self.file:
                raise ImportError(
                    f"the name is that of {module.__file__}, which is imported already; write the "
                    "file: " + f'"{self.file.name}:{self.name}"'
                )
            return module
        spec = importlib.util.spec_from_file_location(self.module, self.file)
        assert spec is not None  # a file that ends in .py has a loader
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # pickling and dataclasses look a class's module up there
        spec.loader.exec_module(module)
        return module


def find_reference(where: str, source: str, folder: Path) -> Reference:
    """The object that a text names, without running anything.

    Parameters
    ----------
    where : str
        Who names it, for messages.
    source : str
        ``"file.py:Name"``, a path from the folder, or ``"module:Name"``.
    folder : Path

    Raises
    ------
    ConfigError
        If there is no such file or module, its text is no Python, or defines no such name.
    """
    place, _, name = source.partition(":")
    if not name.isidentifier() or not place:
        raise ConfigError(f"{where}: must be {_FORM}, got {source!r}")
    if place.endswith(".py"):
        file = (folder / place).resolve()
        if not file.is_file():
            raise ConfigError(
                f"{where}: must be {_FORM} of a file that exists, got {source!r}"
                f"{did_you_mean(place, names_beside(folder, '.py'))}"
            )
        module, root = file.stem, file.parent
    else:
        file, module, root = _find_module(where, source, place, folder)
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError, OSError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(f"{where}: {source}: is no Python: {text} ({file.name}{line})") from None
    defined = dict(_definitions(tree.body))
    if name not in defined and "*" not in defined and "__getattr__" not in defined:
        kinds = (ast.ClassDef, ast.FunctionDef)
        own = [key for key, node in defined.items() if isinstance(node, kinds)]
        raise _missing(where, source, name, own)
    signature = _signature_of(defined.get(name))
    return Reference(where, source, file, module, root, name, signature)


def check_arguments(
    where: str, name: str, signature: inspect.Signature, given: Iterable[str]
) -> None:
    """Refuses arguments that a function does not take, and asks for those that it needs.

    Parameters
    ----------
    where, name : str
        Who gives them, and to what, for messages.
    signature : Signature
    given : iterable of str

    Raises
    ------
    ConfigError
    """
    given = list(given)
    named, required, is_open = [], [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            is_open = True
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            named.append(parameter.name)
            if parameter.default is parameter.empty:
                required.append(parameter.name)
    for key in given:
        if key not in named and not is_open:
            near = did_you_mean(key, named) or f"; it has {', '.join(named) or 'none'}"
            raise ConfigError(f"{where}: {name} has no argument {key!r}{near}")
    if lacking := [key for key in required if key not in given]:
        raise ConfigError(f"{where}: {name} needs {', '.join(lacking)}, got {_listed(given)}")


def names_beside(folder: Path, ending: str = "") -> list[str]:
    """Names of files in a folder, for suggestions."""
    try:
        return sorted(one.name for one in folder.iterdir() if one.name.endswith(ending))
    except OSError:
        return []


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "no arguments"


def _missing(where: str, source: str, name: str, own: list[str]) -> ConfigError:
    place = source.partition(":")[0]
    return ConfigError(
        f"{where}: {place} must define {name}, got {', '.join(own) or 'no class or function'}"
        f"{did_you_mean(name, own)}"
    )


def _is_own(value: Any, module: str) -> bool:
    """Whether it is a class or function that a module defines itself."""
    return callable(value) and getattr(value, "__module__", None) == module


def _is_maker(value: Any) -> bool:
    """Whether a value is called for what is meant; a model or dataset that can be called is not."""
    return isinstance(value, (type, functools.partial)) or inspect.isroutine(value)


def _find_module(where: str, source: str, name: str, folder: Path) -> tuple[Path, str, Path]:
    """File, name and root folder of a module, without importing its packages."""
    search: list[str] | None = [str(folder), *sys.path]
    spec = None
    for i, _ in enumerate(parts := name.split(".")):
        spec = PathFinder.find_spec(".".join(parts[: i + 1]), search)
        if spec is None and i == 0:
            spec = _find_installed(parts[0])
        if spec is None:
            break
        search = list(spec.submodule_search_locations or ())
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        beside = [one.removesuffix(".py") for one in names_beside(folder, ".py")]
        raise ConfigError(
            f"{where}: must be {_FORM} of a module that can be imported, got {source!r}"
            f"{did_you_mean(name, beside)}"
        )
    return Path(spec.origin).resolve(), name, folder


def _find_installed(name: str) -> ModuleSpec | None:
    """A package that lies in no folder of sys.path, as one that pip installed to be edited."""
    try:
        return importlib.util.find_spec(name)  # of a name without dots, which imports nothing
    except (ImportError, ValueError):
        return None


def _definitions(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """The names that statements define, each with the statement; "*": others too."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], node
        else:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    yield inner.id, node
            for part in ("body", "orelse", "finalbody"):
                yield from _definitions(getattr(node, part, ()))
            for handler in getattr(node, "handlers", ()):
                yield from _definitions(handler.body)


def _signature_of(node: ast.AST | None) -> inspect.Signature | None:
    """The arguments of a definition, where its text says them."""
    if isinstance(node, ast.ClassDef):
        found = [
            one
            for one in node.body
            if isinstance(one, ast.FunctionDef) and one.name in ("__init__", "__new__")
        ]
        # A metaclass, a decorator or a base may take other arguments.
        if node.decorator_list or node.keywords or len(found) != 1:
            return None
        return _signature_of_function(found[0], is_method=True)
    if isinstance(node, ast.FunctionDef):
        return _signature_of_function(node, is_method=False)
    return None


def _signature_of_function(node: ast.FunctionDef, *, is_method: bool) -> inspect.Signature | None:
    if node.decorator_list:
        return None
    own, kinds = node.args, inspect.Parameter
    listed = [(one, False) for one in own.posonlyargs] + [(one, True) for one in own.args]
    defaults: list[Any] = [kinds.empty] * (len(listed) - len(own.defaults)) + own.defaults
    made = [
        kinds(
            one.arg,
            kinds.POSITIONAL_OR_KEYWORD if is_named else kinds.POSITIONAL_ONLY,
            default=default,
        )
        for (one, is_named), default in zip(listed, defaults)
    ]
    made = made[1:] if is_method else made
    if own.vararg:
        made.append(kinds(own.vararg.arg, kinds.VAR_POSITIONAL))
    for one, default in zip(own.kwonlyargs, own.kw_defaults):
        value = kinds.empty if default is None else default
        made.append(kinds(one.arg, kinds.KEYWORD_ONLY, default=value))
    if own.kwarg:
        made.append(kinds(own.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(made)
