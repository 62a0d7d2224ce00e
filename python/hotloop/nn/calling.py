"""What a call of ``forward`` says where it fails: which module it was, and what did not fit."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from hotloop.errors import ConfigError, HotloopError, ShapeError, TraceError
from hotloop.graph.foreign import own_layer

if TYPE_CHECKING:
    from hotloop.nn.module import Module

__all__ = ["bind", "explain", "kind_of", "locate"]


def kind_of(value: object) -> str:
    """The name of a value's type, for an error; of a layer of torch also what to write."""
    own = own_layer(value)
    return type(value).__name__ + (f" of torch; write {own}" if own else "")


def bind(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """forward's arguments by name; TraceError where they do not fit."""
    signature = inspect.signature(module.forward)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        name = f"{type(module).__name__}.forward"
        if "keyword" in str(error):
            empty = inspect.Parameter.empty
            plain = [p.replace(annotation=empty) for p in signature.parameters.values()]
            shown = ", ".join(map(str, plain))
            raise TraceError(f"{name}: its arguments are ({shown}), {error}") from None
        raise TraceError(
            f"{name}: {error}, got {len(args) + len(kwargs)}; several "
            "inputs are a tuple X, train(model, ((X1, X2), y))"
        ) from None


def explain(
    module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], error: AttributeError | TypeError
) -> None:
    """Raises a TraceError where inputs of the wrong number or kind made a layer stumble."""
    bind(module, args, kwargs)
    kinds = (tuple, list, dict, str, int, float, type(None))
    wrong = [value for value in args if isinstance(value, kinds)]
    if wrong and type(module).__module__.startswith("hotloop."):
        refusal = TraceError(
            f"inputs must be tensors, got {type(wrong[0]).__name__}; take it apart in forward"
        )
        locate(module, refusal)
        raise refusal from error


def locate(module: Module, error: HotloopError) -> None:
    """Puts the innermost module's path and repr before the error's text, once."""
    if getattr(error, "_located", False) or not isinstance(
        error, ShapeError | TraceError | ConfigError
    ):
        return
    title = type(module).__name__ if any(True for _ in module.children()) else repr(module)
    where = f"{module.path}, {title}" if module.path else title
    error.args = (f"{where}: {error}",)
    error.__dict__["_located"] = True
