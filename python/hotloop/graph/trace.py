"""Trace: the recording of one call of ``forward`` into a graph.

The idea: a contextvar holds the running trace, so that functions and parameters find it without
being handed it. The trace decides nothing about memory: it asks ``leaf_for`` for the leaf of a
parameter or buffer when forward first uses it. What forward assigns to buffers is kept here until
the trace ends and only then becomes the graph's commits: one per buffer, and reading a buffer
after assigning it gives the assigned value, as if it had been changed in place.

Invariant: a trace depends on the model, the input shapes and the mode alone. Names of random
streams come from scope and call order, so the plan of a shorter batch draws the same numbers.
:func:`trace_twice` finds models for which this does not hold.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Protocol, TypeVar

import numpy as np

from hotloop.base.generators import random_states
from hotloop.base.messages import warn
from hotloop.base.structure import flatten
from hotloop.errors import ConfigError, DataError, ModelWarning, ShapeError, TraceError
from hotloop.graph import dtypes
from hotloop.graph.value import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

    from hotloop._core import Graph

__all__ = ["Call", "Leaf", "Trace", "active", "current", "no_grad", "trace_twice", "value_at"]

T = TypeVar("T")


class Leaf(Protocol):
    """What owns a leaf: a parameter or a buffer."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Dims of the value."""

    @property
    def dtype(self) -> dtypes.DType:
        """Element type of the value."""

    @property
    def qualified_name(self) -> str:
        """Its path from the model, ``"body.0.weight"``."""


class Call(NamedTuple):
    """What a module was given, by position, and what it returned."""

    inputs: tuple[Any, ...]
    output: Any


_active: ContextVar[Trace | None] = ContextVar("hotloop_trace", default=None)


def active() -> Trace | None:
    """The running trace, or None outside ``forward``."""
    return _active.get()


def current(what: str = "this") -> Trace:
    """The running trace.

    Raises
    ------
    TraceError
        Outside ``forward``; ``what`` was asked for.
    """
    trace = _active.get()
    if trace is None:
        raise TraceError(
            f"{what}: must run inside a module's forward, got a call outside of it; to run a model "
            "call model(array)"
        )
    return trace


class Trace:
    """One call of ``forward`` (and of the loss) while it is recorded.

    Use it as a context manager; at the end of the block the assignments to buffers are committed.

    Parameters
    ----------
    graph : _core.Graph
        Receives the nodes.
    leaf_for : callable, optional
        ``leaf_for(trace, owner) -> value id``, called once for each parameter and buffer that is
        used; it makes the leaf with ``graph.param`` or ``graph.state``. See
        :class:`hotloop.nn.layout.Layout` for the usual one. Without it, models with parameters
        cannot be traced.
    training : bool
        Whether dropout drops and batch statistics are used and kept. In evaluation, assignments
        to buffers change nothing, but of those that are ``kept``.
    seed : int
        Of the random streams.
    numbers : mapping of str to float, optional
        Values of the named numbers, which are then constants; those it lacks have the value that
        their schedule begins with. Without it, they are numbers of the control block.
    kept : collection of int
        ``id`` of each buffer that is state of evaluation, as a cache of keys and values.
    recomputed : collection of int
        ``id`` of each module that is computed again in the backward pass, as :meth:`checkpoint`
        does it; of those within one another the outermost.
    collected : collection of int
        ``id`` of each running statistic that evaluation collects: the plain average of those of
        batches, by which it normalises meanwhile.

    Attributes
    ----------
    scalars : dict
        Name to schedule of each :func:`hotloop.scalar` that forward used.
    logged : dict
        Name to value of each number that a module logged.
    output_shapes : dict of int to str
        ``id`` of each module that ran to the shapes of what it returned last. Modules are told
        apart by identity: one that is no part of the model, as a loss, has the path ``""`` too.
    checkpointed : set of int
        ``id`` of each of the ``recomputed`` modules that ran.
    reads_mode : bool
        Whether forward, in evaluation, asked a module for its mode that would train otherwise.
    least_values : int or None
        The fewest values per channel that forward took statistics of; None: of none.
    stores : dict or None
        The persistent stores that ``leaf_for`` declared in the graph.
    tensor_type : type
        What a trace makes of a value. :mod:`hotloop.graph.symbolic` sets it to its Tensor.
    """

    tensor_type: ClassVar[type[Tensor]] = Tensor

    def __init__(
        self,
        graph: Graph,
        leaf_for: Callable[[Trace, Any], int] | None = None,
        *,
        training: bool = False,
        seed: int = 42,
        numbers: Mapping[str, float] | None = None,
        kept: Collection[int] = (),
        recomputed: Collection[int] = (),
        collected: Collection[int] = (),
    ) -> None:
        self.graph = graph
        self.training = training
        self.seed = seed
        self.scalars: dict[str, Any] = {}
        self._fixed = numbers
        self.logged: dict[str, Any] = {}
        self.output_shapes: dict[int, str] = {}
        self.checkpointed: set[int] = set()
        self.reads_mode = False
        self.least_values: int | None = None
        self.stores: dict[str, tuple[str, int]] | None = None
        self._leaf_for = leaf_for
        self._kept = frozenset(kept) | frozenset(collected)
        self._collected = collected
        self._recomputed = recomputed
        self._in_recomputed = False
        # Ids, not tensors: those point here, and a cycle would keep the graph until a collection.
        self._leaves: dict[int, int] = {}
        self._owners: dict[int, Any] = {}
        self._assigned: dict[int, Tensor] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._constants: dict[tuple[Any, ...], int] = {}
        self._denominators: dict[tuple[Any, ...], int] = {}
        self._streams: dict[str, int] = {}
        self._control: int | None = None
        self._scope: list[str] = []
        self._watched: dict[int, list[Call]] = {}
        self._batch: set[int] = set()
        self._noted: dict[tuple[str, int], int] = {}
        self._shaped: list[Any] = []
        self._detached = 0
        self._tokens: list[Any] = []
        self._contents: list[tuple[str, int, object]] = []

    # ---- the running trace

    def __enter__(self) -> Trace:
        self._tokens.append(_active.set(self))
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        _active.reset(self._tokens.pop())
        if kind is None and not self._tokens:
            self._commit()
        if not self._tokens:
            self._watched.clear()

    def _commit(self) -> None:
        for key, value in self._assigned.items():
            if self.training or key in self._kept:
                self.graph.commit(self._leaves[key], value.id_in(self))
        self._assigned.clear()

    def collects(self, owner: Any) -> bool:
        """Whether a running statistic is collected in evaluation."""
        return id(owner) in self._collected

    # ---- values

    def wrap(self, value: int) -> Tensor:
        """The tensor of a value id of this trace's graph."""
        return self.tensor_type(self, value)

    def input(self, name: str, dtype: str, shape: Sequence[int]) -> Tensor:
        """A field of the batch, made in the graph."""
        return self.wrap(self.graph.input(name, dtype, tuple(shape)))

    def const(self, array: npt.NDArray[Any], dtype: str | None = None) -> Tensor:
        """A constant; the bytes are copied, and equal arrays are one leaf.

        A float64 array may be rounded to a floating ``dtype``; devices of float64 use it as it was.
        """
        # Of the array as it was given, by a digest: the caller may write to it afterwards.
        digest = hashlib.blake2b(np.ascontiguousarray(array).data).digest()
        key = (dtype, array.dtype, array.shape, digest)
        if key not in self._constants:
            self._constants[key] = self.graph.const(array, dtype)
        self._contents.append((self.path, self._constants[key], digest))
        return self.wrap(self._constants[key])

    def contents(self) -> list[tuple[str, int, object]]:
        """Of each constant: the path of the module that made it, its value id, what it holds.

        What it holds is a number, or a digest of an array, as it was given.
        """
        return self._contents

    def number(self, dtype: str, value: float) -> Tensor:
        """A rank-0 constant; equal numbers are one leaf."""
        try:
            as_float64 = float(value)
        except OverflowError:
            raise DataError(
                f"constant: a number must fit in its dtype {dtype}, got an int beyond float64"
            ) from None
        key = (dtype, repr(value))
        if key not in self._numbers:
            self._numbers[key] = self.graph.number(dtype, as_float64)
            self._contents.append((self.path, self._numbers[key], as_float64))
        return self.wrap(self._numbers[key])

    def denominator(self, key: tuple[Any, ...], value: Tensor) -> Tensor:
        """The first denominator of a loss that was given with a key, so that losses of the same
        targets have one: the gradients of these are summed together, and divided once.
        """
        return self.wrap(self._denominators.setdefault(key, value.id_in(self)))

    def scalar(self, name: str, schedule: Any) -> Tensor:
        """A named number of the control block; ``schedule`` is kept for the trainer."""
        if self.scalars.setdefault(name, schedule) is not schedule:
            raise TraceError(f"scalar: a name must have one schedule, got two for {name!r}")
        if self._fixed is not None:
            value = self._fixed[name] if name in self._fixed else value_at(name, schedule, 0)
            return self.number("float32", value)
        return self.wrap(self.graph.scalar(name))

    def leaf(self, owner: Any) -> Tensor:
        """The tensor of a parameter or buffer: its leaf, or what forward assigned to it."""
        assigned = self._assigned.get(id(owner))
        return self.own_leaf(owner) if assigned is None else assigned

    def own_leaf(self, owner: Any) -> Tensor:
        """The leaf of a parameter or buffer, whatever forward assigned to it."""
        key = id(owner)
        if key not in self._leaves:
            if self._leaf_for is None:
                raise TraceError(
                    f"{owner.qualified_name}: a trace without leaf_for has no parameters, got "
                    f"one of shape {owner.shape}"
                )
            self._leaves[key] = self._leaf_for(self, owner)
            self._owners[key] = owner  # keeps the id valid
        return self.wrap(self._leaves[key])

    def leaves(self) -> list[tuple[Any, int]]:
        """Each used parameter and buffer with its leaf's id, in the order of first use."""
        return [(self._owners[key], leaf) for key, leaf in self._leaves.items()]

    def note_shaped(self, owner: Any) -> None:
        """Notes a parameter or buffer that was given its shape in this forward."""
        self._shaped.append(owner)

    def has_shaped(self, owner: Any) -> bool:
        """Whether :meth:`note_shaped` was told so: it may still get its initial value."""
        return any(one is owner for one in self._shaped)

    def assign(self, owner: Any, value: Tensor) -> None:
        """Makes ``value`` what the owner holds after this step and what forward reads from here."""
        if value.shape != tuple(owner.shape):
            raise ShapeError(
                f"{owner.qualified_name}.assign: the value's shape must be {tuple(owner.shape)}, "
                f"got {value.shape}"
            )
        self.own_leaf(owner)  # a commit needs the leaf even when forward only writes
        self._assigned[id(owner)] = value.to(owner.dtype)

    def drop_assigned(self) -> None:
        """Lets nothing be committed of what forward assigned: no step is made of the graph."""
        self._assigned.clear()

    def assigned(self) -> list[Any]:
        """The owners that forward assigned so far."""
        return [self._owners[key] for key in self._assigned]

    # ---- randomness

    def control(self) -> Tensor:
        """The control block: the counter of random ops."""
        if self._control is None:
            self._control = self.graph.control()
        return self.wrap(self._control)

    def stream(self, kind: str) -> str:
        """A stream's name that is this call site's own: module path, kind, and a count."""
        base = f"{self._scope[-1] if self._scope else ''}.{kind}"
        n = self._streams[base] = self._streams.get(base, -1) + 1
        return f"{base}.{n}"

    # ---- the batch

    def note_batch(self, tensors: Iterable[Tensor]) -> None:
        """Notes what has a row for each sample, before the model sees it."""
        self._batch.update(tensor.id_in(self) for tensor in tensors)

    def is_of_batch(self, tensor: Tensor) -> bool:
        """Whether a tensor is one that :meth:`note_batch` was given."""
        return tensor.id_in(self) in self._batch

    # ---- what one module tells another

    def note(self, kind: str, value: Tensor, module: object = None) -> None:
        """Notes a value for what runs later in this trace; a later one takes its place.

        Parameters
        ----------
        kind : str
            What it is.
        value : Tensor
        module : object, optional
            Whose it is; None: of the batch.
        """
        self._noted[kind, id(module)] = value.id_in(self)

    def noted(self, kind: str, module: object = None) -> Tensor | None:
        """What :meth:`note` was given last; None: nothing."""
        found = self._noted.get((kind, id(module)))
        return None if found is None else self.wrap(found)

    # ---- scope and gradient

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Nodes made in the block carry the module path ``name``."""
        self._scope.append(name)
        self.graph.scope(name or None)
        try:
            yield
        finally:
            self._scope.pop()
            self.graph.scope((self._scope[-1] if self._scope else "") or None)

    @contextlib.contextmanager
    def labelled(self, name: str) -> Iterator[None]:
        """Nodes made in the block, outside of modules, carry this name in messages."""
        self.graph.scope(name)
        try:
            yield
        finally:
            self.graph.scope(self.path or None)

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[None]:
        """In training: what is made in the block is computed again in the backward pass.

        Kept for it are what the block reads, and what is read outside of it.
        """
        if not self.training:
            yield
            return
        self.graph.checkpoint_begin()
        try:
            yield
        finally:
            self.graph.checkpoint_end()

    def recomputing(self, module: object) -> contextlib.AbstractContextManager[None]:
        """Where a module runs: a checkpoint, if it is one of those that are recomputed."""
        if not self.training or id(module) not in self._recomputed:
            return contextlib.nullcontext()
        return self._recompute(module)

    @contextlib.contextmanager
    def _recompute(self, module: object) -> Iterator[None]:
        self.checkpointed.add(id(module))
        if self._in_recomputed:
            yield
            return
        self._in_recomputed = True
        try:
            with self.checkpoint():
                yield
        finally:
            self._in_recomputed = False

    def watch(self, module: object) -> list[Call]:
        """A list that gets each call of the module in this trace."""
        return self._watched.setdefault(id(module), [])

    def saw(self, module: object, args: tuple[Any, ...], result: Any) -> None:
        """Notes what a module was given by position, and returned."""
        leaves = [leaf for leaf in flatten(result)[0] if isinstance(leaf, Tensor)]
        self.output_shapes[id(module)] = ", ".join(str(leaf.shape) for leaf in leaves)
        if id(module) in self._watched:
            self._watched[id(module)].append(Call(args, result))

    @property
    def path(self) -> str:
        """The path of the module that is running, ``""`` for the model itself."""
        return self._scope[-1] if self._scope else ""

    @property
    def is_detached(self) -> bool:
        """Whether a ``no_grad`` block is open."""
        return self._detached > 0


def value_at(name: str, schedule: Any, step: int) -> float:
    """A named number's value at an optimizer step, by its schedule.

    Raises
    ------
    ConfigError
        If that is no finite number.
    """
    value = schedule(step) if callable(schedule) else schedule
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ConfigError(
            f"scalar {name!r}: its schedule must give a finite number, got {value!r} at step {step}"
        )
    return found


class no_grad(contextlib.ContextDecorator):
    """In ``forward``: what is computed in the block passes no gradient. Elsewhere: does nothing.

    A context manager and a decorator, as ``torch.no_grad``.
    """

    def __init__(self) -> None:
        self._traces: list[Trace | None] = []

    def __enter__(self) -> None:
        trace = active()
        self._traces.append(trace)
        if trace is not None:
            trace._detached += 1

    def __exit__(self, *error: object) -> None:
        trace = self._traces.pop()
        if trace is not None:
            trace._detached -= 1


def trace_twice(build: Callable[[], tuple[Trace, T]]) -> tuple[Graph, T]:
    """Records a model two times and refuses one whose two recordings differ.

    They are compared by their nodes and by the contents of their constants. A choice that came out
    the same both times (``if random.random() < 0.9``) leaves no trace: then a warning says that
    the state of Python's or NumPy's random numbers moved.

    Parameters
    ----------
    build : callable
        ``build() -> (trace, anything)``: records and hands both back.

    Returns
    -------
    tuple
        The first call's graph, and what it returned beside it.

    Raises
    ------
    TraceError
        If ``forward`` is impure: it reads Python's or NumPy's random numbers, the clock, or an
        attribute that it changes. What differs is shown.
    """
    first, made = build()
    before = random_states()
    second, _ = build()
    for (path, *was), (_, *now) in zip(first.contents(), second.contents()):
        if repr(was[1]) != repr(now[1]):  # by text, for a NaN is no other value
            where = f"in module {path}" if path else "in forward"
            text = _difference(first.graph, second.graph, was, now)
            _refuse_impure(f"a constant made {where} {text} the second time")
    a, b = str(first.graph).splitlines(), str(second.graph).splitlines()
    if a != b:
        pairs = [(x, y) for x, y in zip(a, b) if x != y]
        x, y = pairs[0] if pairs else (f"{len(a)} lines", f"{len(b)} lines")
        _refuse_impure(f"two different recordings: {x.strip()!r} and {y.strip()!r}")
    names = [name for name, state in random_states().items() if before.get(name) != state]
    if names:
        warn(
            f"forward was recorded while {' and '.join(names)} drew random numbers. Where forward "
            f"draws them, to choose a branch, that choice is made once and not at each step; use "
            f"{_RANDOM_FIX}. Where another thread draws them, all is well",
            ModelWarning,
        )
    return first.graph, made


_RANDOM_FIX = (
    "hl.rand, hl.randn, hl.randint, hl.bernoulli, hl.randperm or nn.Dropout, which draw in each "
    "step (a branch: hl.where)"
)


def _refuse_impure(got: str) -> NoReturn:
    raise TraceError(
        "forward: must do the same each time it is called (it is recorded once and then run from "
        f"C), got {got}; for random numbers use {_RANDOM_FIX}, for a number that moves with the "
        "steps hl.scalar(name, schedule), and buffers for what forward changes"
    )


def _difference(first: Graph, second: Graph, was: Sequence[Any], now: Sequence[Any]) -> str:
    """``that was 0.32, and 0.95``, of two constants as (value id, contents)."""
    if isinstance(was[1], float):
        return f"that was {was[1]!r}, and {now[1]!r}"
    a, b = first.const_value(was[0]), second.const_value(now[0])
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return f"that was of shape {first.shape(was[0])}, and {second.shape(now[0])}"
    at = int((a != b).argmax())
    return f"of shape {a.shape} whose element {at} was {a.flat[at]:.9g}, and {b.flat[at]:.9g}"
