"""Modules and parameters in sequences and dictionaries."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

from hotloop.base.messages import warn
from hotloop.errors import ConfigError
from hotloop.nn.module import Module
from hotloop.nn.parameter import Parameter

__all__ = ["Container", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]

S = TypeVar("S", bound="_Indexed")


class Container(Module):
    """A module of named children, deprecated in torch.

    Parameters
    ----------
    **kwargs : Module
        The children by name.

    Notes
    -----
    Making one is a FutureWarning: subclass :class:`Module` instead. It has no ``forward``.
    """

    def __init__(self, **kwargs: Any) -> None:
        warn(
            "`nn.Container` is deprecated. All of its functionality is now implemented in "
            "`nn.Module`. Subclass that instead.",
            FutureWarning,
        )
        super().__init__()
        for key, value in kwargs.items():
            self.add_module(key, value)


def _place(index: Any, n: int, what: str) -> int:
    """An index from -n to n - 1 as one from 0."""
    try:
        place = operator.index(index)
    except TypeError:
        raise ConfigError(f"{what}: an index must be an integer, got {index!r}") from None
    if not -n <= place < n:
        raise IndexError(f"{what}: index {place} is out of range for {n} entries")
    return place % n


class _Indexed(Module):
    """Child modules named "0", "1", ... and what Sequential and ModuleList share of a list."""

    def _entries(self) -> list[Module]:
        return [module for module in self._modules.values() if module is not None]

    def _refill(self, modules: Iterable[Module]) -> None:
        modules = list(modules)
        for module in modules:
            if not isinstance(module, Module):
                raise ConfigError(
                    f"{type(self).__name__}: entries must be modules, got {type(module).__name__}"
                )
        self._modules.clear()
        for i, module in enumerate(modules):
            self.add_module(str(i), module)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._entries())

    def __contains__(self, module: object) -> bool:
        return any(entry is module for entry in self._entries())

    def __setitem__(self, index: int, module: Module) -> None:
        key = list(self._modules)[_place(index, len(self), type(self).__name__)]
        setattr(self, key, module)

    def __delitem__(self, index: int | slice) -> None:
        keys = list(self._modules)
        if isinstance(index, slice):
            gone = set(keys[index])
        else:
            gone = {keys[_place(index, len(self), type(self).__name__)]}
        kept = [module for key, module in self._modules.items() if key not in gone]
        self._refill(module for module in kept if module is not None)

    def append(self: S, module: Module) -> S:
        """Adds a module at the end.

        Parameters
        ----------
        module : Module
            What is added.

        Returns
        -------
        Module
            Itself.
        """
        self.add_module(str(len(self)), module)
        return self

    def extend(self: S, modules: Iterable[Module]) -> S:
        """Adds modules at the end.

        Parameters
        ----------
        modules : iterable of Module
            In their order.

        Returns
        -------
        Module
            Itself.
        """
        for module in list(modules):
            self.append(module)
        return self

    def insert(self: S, index: int, module: Module) -> S:
        """Adds a module before an index."""
        entries = self._entries()
        entries.insert(index, module)
        self._refill(entries)
        return self

    def pop(self, key: int | slice) -> Module:
        """Removes and returns a module."""
        module = self[key]  # type: ignore[index]
        del self[key]
        return module  # type: ignore[no-any-return]


class Sequential(_Indexed):
    """Modules applied one after the other.

    Parameters
    ----------
    *args : Module, or one dict of Module
        Named "0", "1", ... or as the dict names them.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            for i, module in enumerate(args):
                self.add_module(str(i), module)

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> Sequential: ...
    def __getitem__(self, index: int | slice) -> Module:
        if isinstance(index, slice):
            return Sequential(dict(list(self._modules.items())[index]))
        return self._entries()[_place(index, len(self), "Sequential")]

    def __delitem__(self, index: int | slice) -> None:
        keys = list(self._modules)
        if isinstance(index, slice):
            gone = keys[index]
        else:
            gone = [keys[_place(index, len(self), "Sequential")]]
        for key in gone:
            del self._modules[key]
        if all(key.isdigit() for key in keys):
            self._refill(self._entries())

    def __add__(self, other: Sequential) -> Sequential:
        return Sequential(*self, *other)

    def forward(self, input: Any) -> Any:
        for module in self:
            input = module(input)
        return input


class ModuleList(_Indexed):
    """A list of modules; forward decides how they are applied.

    Parameters
    ----------
    modules : iterable of Module, optional
        Named "0", "1", ...
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> ModuleList: ...
    def __getitem__(self, index: int | slice) -> Module:
        if isinstance(index, slice):
            return ModuleList(self._entries()[index])
        return self._entries()[_place(index, len(self), "ModuleList")]

    def __iadd__(self, modules: Iterable[Module]) -> ModuleList:
        return self.extend(modules)

    def __add__(self, modules: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *modules])

    def __repr__(self) -> str:
        """As torch shows it: neighbours that look alike once, with their number."""
        lines, begin = [], 0
        for text, alike in itertools.groupby(map(repr, self)):
            n = len(list(alike))
            places = f"({begin}): " if n == 1 else f"({begin}-{begin + n - 1}): {n} x "
            lines.append(places + text.replace("\n", "\n  "))
            begin += n
        inner = "".join(f"\n  {line}" for line in lines)
        return f"{self._get_name()}({inner}\n)" if lines else f"{self._get_name()}()"


class ModuleDict(Module):
    """A dictionary of modules; forward decides how they are applied.

    Parameters
    ----------
    modules : mapping of str to Module, optional
        In their order.
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def __getitem__(self, key: str) -> Module:
        module = self._modules[key]
        assert module is not None
        return module

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def keys(self) -> Iterable[str]:
        """The names.

        Returns
        -------
        iterable of str
            In the order in which the modules were added.
        """
        return self._modules.keys()

    def values(self) -> Iterable[Module]:
        """The modules.

        Returns
        -------
        iterable of Module
            In the order in which they were added.
        """
        return [self[key] for key in self]

    def items(self) -> Iterable[tuple[str, Module]]:
        """Names and modules.

        Returns
        -------
        iterable of (str, Module)
            In the order in which they were added.
        """
        return [(key, self[key]) for key in self]

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Adds modules, replacing those of the same name.

        Parameters
        ----------
        modules : mapping, or iterable of pairs
            Names and modules.
        """
        pairs = modules.items() if isinstance(modules, Mapping | ModuleDict) else modules
        for key, module in pairs:
            self[key] = module

    def pop(self, key: str) -> Module:
        """Removes a module.

        Parameters
        ----------
        key : str
            Its name.

        Returns
        -------
        Module
            What was removed.

        Raises
        ------
        KeyError
            If there is none of that name.
        """
        module = self[key]
        del self[key]
        return module

    def clear(self) -> None:
        """Removes all modules."""
        self._modules.clear()


def _parameter(value: Any) -> Parameter:
    return value if isinstance(value, Parameter) else Parameter(value)


class ParameterList(Module):
    """A list of parameters, named "0", "1", ...

    Parameters
    ----------
    values : iterable of array or Parameter, optional
        Arrays become parameters.
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.extend(values or ())

    def _entries(self) -> list[Parameter]:
        return [value for value in self._parameters.values() if value is not None]

    @overload
    def __getitem__(self, index: int) -> Parameter: ...
    @overload
    def __getitem__(self, index: slice) -> ParameterList: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return ParameterList(self._entries()[index])
        return self._entries()[_place(index, len(self), "ParameterList")]

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, str(_place(index, len(self), "ParameterList")), _parameter(value))

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._entries())

    def __iadd__(self, values: Iterable[Any]) -> ParameterList:
        return self.extend(values)

    def append(self, value: Any) -> ParameterList:
        """Adds a parameter at the end.

        Parameters
        ----------
        value : array or Parameter
            An array becomes a parameter.

        Returns
        -------
        ParameterList
            Itself.
        """
        self.register_parameter(str(len(self)), _parameter(value))
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Adds parameters at the end.

        Parameters
        ----------
        values : iterable of array or Parameter
            In their order.

        Returns
        -------
        ParameterList
            Itself.
        """
        for value in list(values):
            self.append(value)
        return self

    def extra_repr(self) -> str:
        return "\n".join(f"({i}): {value!r}" for i, value in enumerate(self))


class ParameterDict(Module):
    """A dictionary of parameters; arrays become parameters.

    Parameters
    ----------
    parameters : mapping of str to array or Parameter, optional
        In their order.
    """

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self.update(parameters or {})

    def __getitem__(self, key: str) -> Parameter:
        value = self._parameters[key]
        assert value is not None
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        self.register_parameter(key, _parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._parameters[key]

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __contains__(self, key: object) -> bool:
        return key in self._parameters

    def keys(self) -> Iterable[str]:
        """The names.

        Returns
        -------
        iterable of str
            In the order in which the parameters were added.
        """
        return self._parameters.keys()

    def values(self) -> Iterable[Parameter]:
        """The parameters.

        Returns
        -------
        iterable of Parameter
            In the order in which they were added.
        """
        return [self[key] for key in self]

    def items(self) -> Iterable[tuple[str, Parameter]]:
        """Names and parameters.

        Returns
        -------
        iterable of (str, Parameter)
            In the order in which they were added.
        """
        return [(key, self[key]) for key in self]

    def get(self, key: str, default: Any = None) -> Any:
        """The parameter of a name.

        Parameters
        ----------
        key : str
            The name.
        default : object
            What is returned where there is none.

        Returns
        -------
        Parameter or the default
            The entry.
        """
        return self._parameters.get(key, default)

    def update(self, parameters: Any) -> None:
        """Adds parameters, replacing those of the same name.

        Parameters
        ----------
        parameters : mapping, or iterable of pairs
            Names and parameters.
        """
        pairs = parameters.items() if hasattr(parameters, "items") else parameters
        for key, value in pairs:
            self[key] = value

    def pop(self, key: str) -> Parameter:
        """Removes a parameter.

        Parameters
        ----------
        key : str
            Its name.

        Returns
        -------
        Parameter
            What was removed.

        Raises
        ------
        KeyError
            If there is none of that name.
        """
        value = self[key]
        del self[key]
        return value

    def clear(self) -> None:
        """Removes all parameters."""
        self._parameters.clear()

    def extra_repr(self) -> str:
        return "\n".join(f"({key}): {value!r}" for key, value in self.items())
