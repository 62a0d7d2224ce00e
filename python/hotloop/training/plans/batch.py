"""The arguments of a training_step: the batch, taken apart by name or by position, and its number.

A step is recorded once, so that a batch has no number there; the second argument, which steps
written for other trainers have, says so when it is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from hotloop.errors import ConfigError, TraceError

__all__ = ["Batch", "call_step"]


_ADVICE = 'write batch["x"], batch["y"], or x, y = batch'


class Batch(dict[str, Any]):
    """ "x", as ``forward`` takes it, and "y" and "weight" where the data has them.

    ``batch["x"]`` and ``x, y = batch`` are the same: iteration gives the values.
    """

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values())

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, int) and -len(self) <= key < len(self):
            return list(self.values())[key]
        self._refuse(repr(key))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(f".{name}")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TraceError(f"batch: is no tensor, got it where one is needed; {_ADVICE}")

    def _refuse(self, got: str) -> NoReturn:
        names = ", ".join(repr(name) for name in self.keys())
        raise TraceError(f"batch: has {names}, got {got}; {_ADVICE}")


class _BatchIndex:
    """The number of a batch: any use of it raises."""

    def _refuse(self, *args: Any) -> NoReturn:
        raise TraceError(
            "training_step: batch_idx has no value (the step is recorded once and then run from "
            "C), got a use of it; hl.scalar(name, schedule) is a number that moves with the steps"
        )

    __bool__ = __int__ = __float__ = __index__ = __format__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __pow__ = __rpow__ = __array__ = _refuse
    __hash__ = object.__hash__


def call_step(step: Callable[..., Any], batch: dict[str, Any]) -> Any:
    """What ``training_step(batch)``, or ``training_step(batch, batch_idx)``, returns.

    Raises
    ------
    ConfigError
        If it takes other arguments.
    """
    args = (Batch(batch), _BatchIndex())
    signature = inspect.signature(step)
    for n in (1, 2):
        try:
            signature.bind(*args[:n])
        except TypeError:
            continue
        try:
            return step(*args[:n])
        except ValueError as error:
            if "to unpack" in str(error):  # of the batch, or of something else in the step
                named = ", ".join(repr(name) for name in batch)
                error.add_note(f"training_step: batch has {named}, in this order")
            raise
    raise ConfigError(
        "training_step: must be training_step(self, batch) or training_step(self, batch, "
        f"batch_idx), got the arguments {signature}"
    )
