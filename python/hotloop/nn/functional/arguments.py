"""Settings of layers and functions, checked by what their annotations say.

The idea: an argument's annotation names its rule. ``float`` is a finite number, ``NonNegative`` one
that is at least 0, ``bool`` is True or False. Constructors of layers are checked where the layer is
made (``Checked``), functions where they are called (``make_functions``), all by this one table, so
that a new layer has its checks by being written down. What stands between several arguments (groups
divide channels) a layer checks itself.

Tensors pass where a number belongs: an op takes them, or refuses them by name. Windows are checked
at the layer, which knows its number of dims; functions check them where they have the input.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np

from hotloop.base.rules import show
from hotloop.base.scalars import plain
from hotloop.errors import ConfigError
from hotloop.graph.build import is_tensor
from hotloop.graph.eager import make_eager
from hotloop.nn.functional.windows import per_dim

__all__ = [
    "RULES", "Activation", "Approximation", "Checked", "Count", "Divisor", "Interpolation",
    "NonNegative", "NonZero", "Order", "Positive", "Power", "Probability", "Real", "Shape", "Size",
    "make_functions",
]  # fmt: skip

C = TypeVar("C", bound=Callable[..., Any])
Rule: TypeAlias = Callable[[str, str, Any, int | None], Any]  # what, name, value, spatial dims

Activation: TypeAlias = str | Callable[[Any], Any]  # "relu", "gelu" or a function of a tensor
Approximation: TypeAlias = str
Interpolation: TypeAlias = str
Power: TypeAlias = int  # 1 or 2
Divisor: TypeAlias = int  # not 0
Real: TypeAlias = float  # infinity is allowed
NonNegative: TypeAlias = float
Positive: TypeAlias = float
NonZero: TypeAlias = float
Probability: TypeAlias = float
Order: TypeAlias = float  # of a norm
Size: TypeAlias = int  # at least 0
Shape: TypeAlias = int | Sequence[int]  # of sizes
Count: TypeAlias = int  # at least 1


def _refuse(what: str, name: str, rule: str, value: object, fix: str = "") -> NoReturn:
    raise ConfigError(f"{what}: {name} {rule}, got {show(value)}{fix}")


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _number(rule: str, holds: Callable[[Any], bool]) -> Rule:
    """A real number for which ``holds``; NaN never is one."""

    def check(what: str, name: str, value: Any, n_dims: int | None) -> Any:
        if not _is_number(value):
            fix = f"; write {name}={value.strip()}" if _reads_as_number(value) else ""
            _refuse(what, name, "must be a number", value, fix)
        try:
            is_nan = math.isnan(value)
        except OverflowError:  # an int that no float holds
            _refuse(what, name, "must fit a double", value)
        if is_nan or not holds(value):
            _refuse(what, name, rule, value)
        return value

    return check


def _reads_as_number(value: object) -> bool:
    try:
        return isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        return False


def _integer(rule: str, least: int) -> Rule:
    def check(what: str, name: str, value: Any, n_dims: int | None) -> Any:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            _refuse(what, name, rule, value)
        if not -(2**63) <= value < 2**63:
            _refuse(what, name, "must fit 64 bits", value)
        return value

    return check


def _flag(what: str, name: str, value: Any, n_dims: int | None) -> Any:
    if not isinstance(value, bool):
        is_bit = isinstance(value, int) and value in (0, 1)
        fix = f"; write {name}={bool(value)}" if is_bit or value is None else ""
        _refuse(what, name, "must be True or False", value, fix)
    return value


def _text(what: str, name: str, value: Any, n_dims: int | None) -> Any:
    if not isinstance(value, str):
        _refuse(what, name, "must be a string", value)
    return value


def _one_of(*options: object) -> Rule:
    def check(what: str, name: str, value: Any, n_dims: int | None) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | str) or value not in options:
            _refuse(what, name, f"must be one of {', '.join(map(repr, options))}", value)
        return value

    return check


def _activation(what: str, name: str, value: Any, n_dims: int | None) -> Any:
    is_name = isinstance(value, str) and value in ("relu", "gelu")
    if not is_name and (not callable(value) or isinstance(value, type)):
        fix = f"; write {name}=nn.{value.__name__}()" if isinstance(value, type) else ""
        _refuse(what, name, "must be 'relu', 'gelu' or a function of a tensor", value, fix)
    return value


def _applied(what: str, name: str, value: Any, n_dims: int | None) -> Any:
    """A module, or a function in its place; a class is neither."""
    if not callable(value) or isinstance(value, type):
        fix = f"; write {name}=nn.{value.__name__}(...)" if isinstance(value, type) else ""
        _refuse(what, name, "must be a module", value, fix)
    return value


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple | np.ndarray)


def _several(one: Rule, rule: str, *, alone: bool = True, none: bool = False) -> Rule:
    """One value, if it may stand alone, or a list of them; with ``none`` each may be None."""

    def check(what: str, name: str, value: Any, n_dims: int | None) -> Any:
        if not _is_list(value) and not alone:
            _refuse(what, name, rule, value)
        given = tuple(map(plain, value)) if _is_list(value) else (value,)
        for item in given:
            if not (none and item is None):
                try:
                    one(what, name, item, n_dims)
                except ConfigError:
                    _refuse(what, name, rule, value)
        return given if _is_list(value) else value

    return check


def _windows(least: int) -> Rule:
    def check(what: str, name: str, value: Any, n_dims: int | None) -> Any:
        if n_dims is not None:
            per_dim(what, name, value, n_dims, least)
        return tuple(map(plain, value)) if _is_list(value) else value

    return check


def _optional(rule: Rule) -> Rule:
    def check(what: str, name: str, value: Any, n_dims: int | None) -> Any:
        return None if value is None else rule(what, name, value, n_dims)

    return check


def _either_text(rule: Rule) -> Rule:
    def check(what: str, name: str, value: Any, n_dims: int | None) -> Any:
        return value if isinstance(value, str) else rule(what, name, value, n_dims)

    return check


_INTEGERS = _several(_integer("", -(2**63)), "must be an integer or a sequence of them")
_SIZES = _several(_integer("", 1), "must be an integer, at least 1, or a sequence of them")

# By annotation; None: not looked at here.
RULES: dict[str, Rule | None] = {
    "float": _number("must be a finite number", math.isfinite),
    "Real": _number("must not be NaN", lambda x: True),
    "NonNegative": _number("must be at least 0 and finite", lambda x: 0 <= x < math.inf),
    "Positive": _number("must be above 0 and finite", lambda x: 0 < x < math.inf),
    "NonZero": _number("must be finite and not 0", lambda x: math.isfinite(x) and x != 0),
    "Probability": _number("must lie in [0, 1]", lambda x: 0 <= x <= 1),
    "Order": _number("must not be NaN", lambda x: True),
    "int": _integer("must be an integer", -(2**63)),
    "Divisor": _number("must be an integer other than 0", lambda x: isinstance(x, int) and x != 0),
    "Power": _one_of(1, 2),
    "Activation": _activation,
    "Module | None": _optional(_applied),
    "Approximation": _one_of("none", "tanh"),
    "Interpolation": _one_of(
        "nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area"
    ),
    "Size": _integer("must be an integer >= 0", 0),
    "Count": _integer("must be an integer, at least 1", 1),
    "bool": _flag,
    "str": _text,
    "Shape": _several(_integer("", 0), "must be an integer >= 0 or a sequence of them"),
    "Sequence[int]": _several(
        _integer("", -(2**63)), "must be a sequence of integers", alone=False
    ),
    "int | Sequence[int]": _INTEGERS,
    "int | Sequence[int] | None": _optional(_SIZES),
    "int | Sequence[int | None] | None": _optional(
        _several(
            _integer("", 0), "must be an integer, at least 0, None, or a sequence", none=True
        )
    ),
    "float | Sequence[float] | None": _optional(
        _several(
            _number("", lambda x: 0 < x < math.inf), "must be a number above 0 or a sequence"
        )
    ),
    "Sizes": _windows(1),
    "Pads": _windows(0),
    "Pads | str": _either_text(_windows(0)),
    **dict.fromkeys(
        ("Any", "Operand", "Tensor", "Module", "Iterable[Any] | None", "Iterable[Module] | None",
         "Mapping[str, Module] | None"), None,
    ),
}  # fmt: skip
RULES["Sizing"] = RULES["int | Sequence[int | None] | None"]
for _name in (
    "float", "Real", "NonNegative", "Size", "Count", "Divisor", "int", "bool", "Sizes",
    "Sequence[int]",
):  # fmt: skip
    RULES[f"{_name} | None"] = _optional(RULES[_name])  # type: ignore[arg-type]


@functools.cache
def _rules_of(function: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Rule]]:
    """The names of arguments by position, and the rules of those that have one."""
    known = inspect.signature(function).parameters
    rules = {name: RULES.get(str(one.annotation)) for name, one in known.items()}
    by_position = tuple(
        name for name, one in known.items() if one.kind is one.POSITIONAL_OR_KEYWORD
    )
    return by_position, {name: rule for name, rule in rules.items() if rule is not None}


def _check(
    function: Callable[..., Any],
    what: str,
    n_dims: int | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in their canonical form."""
    by_position, rules = _rules_of(function)

    def checked(name: str, value: Any) -> Any:
        rule = rules.get(name)
        if rule is None or is_tensor(value):
            return value
        return rule(what, name, plain(value), n_dims)

    n = len(by_position)  # more arguments than that are Python's to refuse
    args = (*(checked(*pair) for pair in zip(by_position, args)), *args[n:])
    return args, {name: checked(name, value) for name, value in kwargs.items()}


class Checked:
    """A base whose subclasses in hotloop have constructors that check what they are given.

    Spatial dims of windows are the class's ``n_dims``, if it has them.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("hotloop.") and "__init__" in vars(cls):  # not users' own
            cls.__init__ = _check_constructor(cls.__init__)  # type: ignore[method-assign]


def _check_constructor(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        name, n_dims = type(self).__name__, getattr(type(self), "n_dims", None)
        args, kwargs = _check(init, name, n_dims, (None, *args), kwargs)
        init(self, *args[1:], **kwargs)

    return call


def _check_function(function: C) -> C:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _check(function, function.__name__, None, args, kwargs)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def make_functions(module: dict[str, Any], names: Iterable[str]) -> None:
    """Makes functions of a module check their settings, and eager; it stands at the module's end.

    Parameters
    ----------
    module : dict
        Its ``globals()``.
    names : iterable of str
        The names of functions.
    """
    own = [name for name in names if module[name].__module__ == module["__name__"]]
    for name in own:
        module[name] = _check_function(module[name])
    make_eager(module, names)
