"""Layout: where a model's values lie in the persistent stores that plans share.

One flat float32 store "param": what is trained first, then what is frozen, in the order of their
names; a tied set is one slot. Buffers lie in one store per dtype: "buffer" (float32), "counter"
(int64), "buffer.bool" and so on. Every slot begins at a multiple of 64 bytes, so that kernels and
libraries may read any of them by vectors; the gaps hold zeros. The same layout serves training,
evaluation and prediction, so that all their plans read the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotloop import _core
from hotloop.base.patterns import select
from hotloop.errors import TraceError
from hotloop.graph.trace import Trace
from hotloop.nn.parameter import Parameter, Variable

if TYPE_CHECKING:
    from hotloop.nn.module import Module

__all__ = ["Layout", "Slot", "resolve_lazy", "trace_aside"]


class Slot(NamedTuple):
    """A value's place: ``size`` elements of ``store`` from ``offset`` on.

    ``names`` has ``name``, the first, and of a tied value its others.
    """

    name: str
    names: tuple[str, ...]
    owner: Variable
    store: str
    offset: int
    size: int


_ALIGN = 64  # bytes; a training step refuses parameters that lie otherwise


def _store_of(owner: Variable) -> str:
    if isinstance(owner, Parameter):
        return "param"
    stores = {"float32": "buffer", "int64": "counter"}
    return stores.get(owner.dtype, f"buffer.{owner.dtype}")


class Layout:
    """Slots of all parameters and buffers of a model (and of its loss).

    Parameters
    ----------
    model : Module
    others : mapping of str to Module, optional
        Losses with parameters or buffers, by the prefix of their names.
    freeze, unfreeze : sequence of str, optional
        Patterns of parameters that do not learn, and of those that do though they were frozen
        (by ``freeze`` or ``requires_grad_(False)``); see :mod:`hotloop.base.patterns`.

    Attributes
    ----------
    slots : list of Slot
        Trainable parameters, frozen parameters, buffers.
    n_trainable : int
        How many slots, from the first on, learn.
    n_flat : int
        Elements of "param" from its beginning to the end of the last of them, gaps included.

    Raises
    ------
    ConfigError
        If a pattern covers no parameter.
    """

    def __init__(
        self,
        model: Module,
        others: Mapping[str, Module] | None = None,
        *,
        freeze: Sequence[str] | None = None,
        unfreeze: Sequence[str] | None = None,
    ) -> None:
        parameters: dict[int, tuple[list[str], Parameter]] = {}
        buffers: dict[int, tuple[list[str], Variable]] = {}
        for prefix, module in {"": model, **(others or {})}.items():
            for name, parameter in module.named_parameters(prefix, remove_duplicate=False):
                parameters.setdefault(id(parameter), ([], parameter))[0].append(name)
            for name, buffer in module.named_buffers(prefix, remove_duplicate=False):
                buffers.setdefault(id(buffer), ([], buffer))[0].append(name)
        names = [name for known, _ in parameters.values() for name in known]
        held = set(select("freeze", freeze or (), names))
        freed = set(select("unfreeze", unfreeze or (), names))
        learns: list[tuple[list[str], Variable]] = []
        fixed: list[tuple[list[str], Variable]] = []
        for known, parameter in parameters.values():
            is_held = not parameter.requires_grad or not held.isdisjoint(known)
            trainable = not is_held or not freed.isdisjoint(known)
            (learns if trainable else fixed).append((known, parameter))
        self.slots: list[Slot] = []
        self.n_trainable = len(learns)
        self._stores: dict[str, tuple[str, int]] = {}
        self._by_owner: dict[int, Slot] = {}
        for known, owner in (*learns, *fixed, *buffers.values()):
            self._place(known, owner)
        last = self.slots[self.n_trainable - 1] if learns else None
        self.n_flat = last.offset + last.size if last else 0

    def _place(self, names: Sequence[str], owner: Variable) -> None:
        store = _store_of(owner)
        dtype, end = self._stores.get(store, (str(owner.dtype), 0))
        step = _ALIGN // np.dtype(dtype).itemsize
        slot = Slot(names[0], tuple(names), owner, store, -(-end // step) * step, owner.numel())
        self._stores[store] = (dtype, slot.offset + slot.size)
        self.slots.append(slot)
        self._by_owner[id(owner)] = slot

    @property
    def trainable(self) -> list[Slot]:
        """The slots of the parameters that learn, from offset 0 on."""
        return self.slots[: self.n_trainable]

    def stores(self) -> dict[str, tuple[str, int]]:
        """Store name to (dtype, number of elements)."""
        return dict(self._stores)

    def variables(self) -> list[Variable]:
        """The parameters and buffers in the order of their slots."""
        return [slot.owner for slot in self.slots]

    def places(self) -> list[tuple[Variable, str, int]]:
        """Parameter or buffer, store and offset of each slot."""
        return [(slot.owner, slot.store, slot.offset) for slot in self.slots]

    def slot_of(self, owner: Variable) -> Slot:
        """The slot of a parameter or buffer.

        Raises
        ------
        TraceError
            If the model does not have it.
        """
        slot = self._by_owner.get(id(owner))
        if slot is None:
            raise TraceError(
                f"{type(owner).__name__} of shape {owner.shape}: must be registered in the model "
                "to be used in forward, got one that is not; assign it to an attribute of a "
                "module, and lists of modules to an nn.ModuleList"
            )
        return slot

    def leaf_for(self, trace: Trace, owner: Variable) -> int:
        """Makes the leaf of a parameter or buffer; what :class:`Trace` takes.

        The graph gets the stores together with its first leaf.
        """
        slot = self.slot_of(owner)
        if trace.stores is not self._stores:
            for name, (dtype, n) in self._stores.items():
                trace.graph.store(name, dtype, n)
            trace.stores = self._stores
        make = trace.graph.param if isinstance(owner, Parameter) else trace.graph.state
        return make(slot.name, str(owner.dtype), owner.shape, slot.store, slot.offset)


def resolve_lazy(
    model: Module,
    inputs: Sequence[tuple[str, Sequence[int]]],
    call: Callable[..., Any] | None = None,
) -> None:
    """Gives lazy layers their shapes by tracing ``model`` once into a graph that is dropped.

    Parameters
    ----------
    model : Module
        Without lazy layers nothing is done.
    inputs : sequence of (dtype, shape)
        Of the arguments of ``call``.
    call : callable, optional
        What applies the model; the model itself by default.
    """
    if not any(value.is_lazy for value in (*model.parameters(), *model.buffers())):
        return
    trace_aside(inputs, call or model)


def trace_aside(
    inputs: Sequence[tuple[str, Sequence[int]]], call: Callable[..., Any], *, training: bool = False
) -> Trace:
    """Traces a call into a graph that is dropped; the trace, for what it has noted.

    Parameters
    ----------
    inputs : sequence of (dtype, shape)
        Of the arguments of ``call``.
    call : callable
    training : bool
    """
    graph = _core.Graph()

    def leaf_for(trace: Trace, owner: Variable) -> int:
        return graph.input(owner.qualified_name, str(owner.dtype), owner.shape)

    with Trace(graph, leaf_for, training=training) as trace:
        given = [trace.input(f"x{i}", dtype, shape) for i, (dtype, shape) in enumerate(inputs)]
        trace.note_batch(given)
        call(*given)
        trace.drop_assigned()
    return trace
