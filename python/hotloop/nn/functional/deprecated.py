"""The two arguments of losses that torch deprecated, ``size_average`` and ``reduce``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any, TypeVar

from hotloop.errors import ConfigError

__all__ = ["with_deprecated"]

T = TypeVar("T", bound=Callable[..., Any])

_NAMES = ("size_average", "reduce")
_DOC = "size_average, reduce\n    Deprecated in torch: must be None.\n"


def with_deprecated(loss: T) -> T:
    """Gives a loss the arguments that torch deprecated, at torch's places; they must be None.

    In torch they stand among those that are keywords in the definition here, ``size_average``
    before the first of them and ``reduce`` before ``reduction``. With them all can be given by
    position, as in torch.

    Parameters
    ----------
    loss : function or class
        Of a class, the constructor.

    Returns
    -------
    function or class
        With the arguments in its signature and docstring.
    """
    made: Any = loss
    if isinstance(loss, type):
        made.__init__ = _taking_them(made.__init__)
    else:
        made = _taking_them(loss)
    doc = inspect.cleandoc(loss.__doc__ or "")
    made.__doc__ = doc.replace("\nreduction : ", f"\n{_DOC}reduction : ", 1)
    return made  # type: ignore[no-any-return]


def _taking_them(function: Callable[..., Any]) -> Callable[..., Any]:
    own = inspect.signature(function).parameters
    leading = [name for name in own if own[name].kind is not Parameter.KEYWORD_ONLY]
    names = [*leading, "size_average", *(name for name in own if name not in leading)]
    names.insert(names.index("reduction"), "reduce")
    kind = Parameter.POSITIONAL_OR_KEYWORD
    known = {**own, **{name: Parameter(name, kind, default=None) for name in _NAMES}}
    signature = inspect.Signature([known[name].replace(kind=kind) for name in names])

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(leading):
            kwargs = dict(signature.bind(*args, **kwargs).arguments)
            args = tuple(kwargs.pop(name) for name in leading)
        if any(kwargs.pop(name, None) is not None for name in _NAMES):
            what = function.__name__ if function.__name__ != "__init__" else type(args[0]).__name__
            raise ConfigError(
                f"{what}: size_average and reduce must be None, use "
                'reduction="mean", "sum" or "none"'
            )
        return function(*args, **kwargs)

    call.__dict__["__signature__"] = signature
    return call
