"""Digests: whether a function and its data are what they were, by their contents.

Of a function the code counts, with the constants, defaults, closed-over values and globals that it
names; functions of its own package likewise, those of other packages by name and version, or by
the contents of their file where they have none. So a changed line or number changes the digest, and
a comment does not. What cannot be known in this way (an object with a state, a class of its own) is
refused: a guess would serve what is out of date.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.errors import ConfigError

__all__ = ["feed_array", "feed_function", "feed_text"]

Hash = Any  # hashlib's

_PIECE = 1 << 24  # bytes of an array that are copied at a time where it has gaps


def feed_text(into: Hash, *texts: object) -> None:
    """Adds values by their text, each with its length."""
    for text in texts:
        data = str(text).encode("utf-8", "surrogatepass")
        into.update(f"{len(data)}:".encode())
        into.update(data)


def feed_array(into: Hash, array: npt.NDArray[Any]) -> None:
    """Adds dtype, shape and contents."""
    feed_text(into, "array", array.dtype.str, array.shape)
    if array.flags.c_contiguous:
        into.update(array.reshape(-1).view(np.uint8).data)
        return
    rows = max(1, _PIECE // max(1, array[:1].nbytes))
    for begin in range(0, len(array), rows):
        into.update(np.ascontiguousarray(array[begin : begin + rows]).reshape(-1).view(np.uint8))


def feed_function(into: Hash, fn: Callable[..., Any]) -> None:
    """Adds what a function computes, as far as it can be known.

    Raises
    ------
    ConfigError
        If it cannot: names the value.
    """
    feed_text(into, *sys.version_info[:2])
    inner = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    is_own = isinstance(inner, (types.FunctionType, type))
    _Feeder(into, _package_of(inner) if is_own else "").feed(fn, "fn")


def _package_of(value: Any) -> str:
    return str(getattr(value, "__module__", None) or "").partition(".")[0]


class _Feeder:
    """Adds values, those of one package by their contents."""

    def __init__(self, into: Hash, package: str) -> None:
        self._into, self._package = into, package
        self._seen: set[int] = set()

    def feed(self, value: Any, what: str) -> None:
        """Adds a value; `what` names it in an error."""
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            feed_text(self._into, type(value).__name__, repr(value))
        elif isinstance(value, (tuple, list)):
            feed_text(self._into, type(value).__name__, len(value))
            for i, each in enumerate(value):
                self.feed(each, f"{what}[{i}]")
        elif isinstance(value, (set, frozenset)):
            feed_text(self._into, "set", *sorted(map(repr, value)))
        elif isinstance(value, Mapping):
            feed_text(self._into, "dict", len(value))
            for key, each in value.items():
                feed_text(self._into, repr(key))
                self.feed(each, f"{what}[{key!r}]")
        elif isinstance(value, (np.ndarray, np.generic)) and value.dtype.hasobject is False:
            feed_array(self._into, np.asarray(value))
        elif isinstance(value, np.dtype):
            feed_text(self._into, "dtype", value.str)
        elif id(value) not in self._seen:  # a function may name itself
            self._seen.add(id(value))
            self._feed_code(value, what)

    def _feed_code(self, value: Any, what: str) -> None:
        if isinstance(value, types.ModuleType):
            feed_text(self._into, "module", value.__name__)
            self._feed_version(value.__name__, what)
        elif isinstance(value, functools.partial):
            for part, name in ((value.func, "func"), (value.args, "args"), (value.keywords, "")):
                self.feed(part, f"{what}.{name}" if name else what)
        elif isinstance(value, types.FunctionType) and _package_of(value) == self._package:
            self._feed_function(value, what)
        elif isinstance(value, np.ufunc):
            feed_text(self._into, "ufunc", value.__name__, np.__version__)
        elif isinstance(value, types.CodeType):
            self._feed_body(value, what)
        elif self._is_known_by_name(value):
            feed_text(self._into, "name", value.__module__, value.__qualname__)
            self._feed_version(value.__module__, what)
        else:
            raise ConfigError(
                f"key: what fn makes must be known by its contents, and {what} is of type "
                f"{type(value).__module__}.{type(value).__qualname__}, whose state is not; write "
                "key='...', a text that you change whenever what fn does changes"
            )

    def _feed_version(self, module: str, what: str) -> None:
        """Adds what tells a module from what it was: its package's version, else its file."""
        package = module.partition(".")[0]
        version = getattr(sys.modules.get(package), "__version__", None)
        if version is not None or package in sys.stdlib_module_names:
            feed_text(self._into, version or "")
            return
        path = getattr(sys.modules.get(module), "__file__", None)
        try:
            with open(path or "", "rb") as file:
                self._into.update(file.read())
        except OSError as error:
            raise ConfigError(
                f"key: what fn makes must be known by its contents, and {what} is of the module "
                f"{module!r}, which has neither a __version__ nor a file; write key='...', a text "
                "that you change whenever what fn does changes"
            ) from error

    def _is_known_by_name(self, value: Any) -> bool:
        """Whether it is a function or class of another package."""
        kinds = (type, types.FunctionType, types.BuiltinFunctionType)
        is_named = isinstance(value, kinds) or hasattr(value, "__wrapped__")
        return is_named and _package_of(value) not in ("", self._package)

    def _feed_function(self, fn: types.FunctionType, what: str) -> None:
        self._feed_body(fn.__code__, what)
        self.feed(fn.__defaults__, f"the defaults of {fn.__name__}")
        self.feed(fn.__kwdefaults__, f"the defaults of {fn.__name__}")
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
            feed_text(self._into, name)
            self.feed(cell.cell_contents, name)
        for name in sorted(_globals_of(fn.__code__)):
            feed_text(self._into, name)
            if name in fn.__globals__:
                self.feed(fn.__globals__[name], name)

    def _feed_body(self, code: types.CodeType, what: str) -> None:
        feed_text(
            self._into, "code", code.co_code.hex(), code.co_names, code.co_varnames,
            code.co_freevars, code.co_cellvars, code.co_argcount, code.co_flags,
        )  # fmt: skip
        self.feed(code.co_consts, what)


def _globals_of(code: types.CodeType) -> set[str]:
    found = {
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found |= _globals_of(const)
    return found
