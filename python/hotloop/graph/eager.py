"""Functions of tensors on arrays: outside of ``forward`` a call computes at once.

The idea: such a call is recorded in a trace of its own, in which arrays, parameters and buffers are
constants; the graph runs once on the CPU, and what the function made comes back as arrays. So a
function works on arrays by the kernels that training uses, with the same dtypes and errors, and no
function has code for it.

Invariant: while a trace runs, a function is itself. Nothing is computed there, so that no value of
a parameter can become a constant of a plan.

Rejected: plans that are kept by shapes. Recording and planning take 60 microseconds, and functions
look at the contents of some arrays (indices, masks).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from hotloop import _core
from hotloop.errors import HotloopError
from hotloop.graph import seeds
from hotloop.graph import trace as tracing
from hotloop.graph.outputs import OutputArray
from hotloop.graph.trace import Trace
from hotloop.graph.value import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["eager", "is_eager", "make_eager"]

P = ParamSpec("P")
R = TypeVar("R")

_made = weakref.WeakSet[Callable[..., Any]]()
_names: set[str] = set()  # of the functions
_WRITTEN = {"get_item": "x[...]"}  # what is no call


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """The function of tensors, which outside of ``forward`` takes and gives arrays.

    Parameters
    ----------
    function : callable
        Tensors, arrays, parameters and what else it likes to a structure of tensors.

    Returns
    -------
    callable
        In a trace, the function itself.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            if tracing.active() is not None:
                return function(*args, **kwargs)
            made: R = _compute(function, args, kwargs)
            return made
        except HotloopError as error:
            _call_it(error, function.__name__)
            raise

    _made.add(call)
    _names.add(function.__name__)
    return call


def _call_it(error: HotloopError, name: str) -> None:
    """Gives an error that begins with the name of an inner function that of the one called.

    Of several functions that call one another the outermost is the last to do so.
    """
    text = str(error.args[0]) if error.args else ""
    inner, colon, rest = text.partition(": ")
    if colon and inner != name and inner in _names:
        error.args = (f"{_WRITTEN.get(name, name)}: {rest}", *error.args[1:])


def make_eager(module: dict[str, Any], names: Iterable[str]) -> None:
    """Makes functions of a module eager, in its namespace; it stands at the module's end.

    Parameters
    ----------
    module : dict
        Its ``globals()``.
    names : iterable of str
        The names of functions.
    """
    for name in names:
        if not is_eager(module[name]):  # one that is imported is already
            module[name] = eager(module[name])


def is_eager(function: Callable[..., Any]) -> bool:
    """Whether a function is one that :func:`eager` made."""
    return function in _made


class _Call(Trace):
    """The trace of one call, whose numbers are all known."""

    def __init__(self) -> None:
        super().__init__(_core.Graph(), _value_of, seed=seeds.initial_seed())

    def const(self, array: npt.NDArray[Any], dtype: str | None = None) -> Tensor:
        """A constant; nothing is compared with it, so that it needs no digest."""
        return self.wrap(self.graph.const(array, dtype))

    def stream(self, kind: str) -> str:
        """A stream that no call had since the seed was set, as for ``hl.rand``."""
        return seeds.next_stream(kind)


def _value_of(trace: Trace, owner: Any) -> int:
    return trace.graph.const(owner.value())


def _compute(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    trace = _Call()
    numbers: dict[int, int] = {}  # of the graph's outputs, by value

    def note(tensor: Tensor) -> None:
        value = tensor.id_in(trace)
        if value not in numbers:
            numbers[value] = trace.graph.output(value)

    with trace:
        made = function(*args, **kwargs)
        _map(note, made)
        assigned = [(owner, trace.leaf(owner).id_in(trace)) for owner in trace.assigned()]
        for owner, _ in assigned:
            note(trace.leaf(owner))
    if not numbers:
        return made
    plan = _core.Plan(_core.Session(_cpu()), trace.graph)
    while plan.run(1, 0.05)[0] == "deadline":  # between two runs Ctrl-C is seen
        pass
    for owner, value in assigned:
        owner.copy_(plan.output(numbers[value]))

    def as_array(tensor: Tensor) -> OutputArray:
        return plan.output(numbers[tensor.id_in(trace)]).view(OutputArray)

    return _map(as_array, made)


@functools.cache
def _cpu() -> _core.Device:
    return _core.Device("cpu")


def _map(change: Callable[[Tensor], Any], value: Any) -> Any:
    """A structure of tuples, lists and dicts with its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _map(change, item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_map(change, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
