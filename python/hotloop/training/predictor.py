"""The plans of a model that predicts, one for each shape of its inputs; and steps beside a cache.

``model(x, cache)`` is a step: a plan beside a state that is kept from call to call. Training knows
nothing of what a step takes, so inputs are as they are given.
"""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.structure import flatten, unflatten
from hotloop.data.padding import inside_of
from hotloop.errors import ConfigError, ShapeError
from hotloop.graph.outputs import as_outputs
from hotloop.graph.pointwise import where
from hotloop.graph.trace import Trace
from hotloop.nn.cache import KVCache
from hotloop.nn.edits import attribute_version, latest_edit, structure_version
from hotloop.nn.layout import resolve_lazy
from hotloop.nn.module import Module
from hotloop.nn.parameter import Variable
from hotloop.training.plans.accelerator import losing_device, open_placement
from hotloop.training.plans.fitted import exclusive, fitted_of, warn_of_untrained_norms
from hotloop.training.plans.inputs import Inputs
from hotloop.training.plans.runtime import Runtime, call_model, check_output, run_whole
from hotloop.training.plans.target_scale import scale_of

Array: TypeAlias = npt.NDArray[Any]

__all__ = ["CachedSteps", "Planned", "Predictor", "run_step", "trace_forward"]

_MAX_PLANS = 8


class Planned(NamedTuple):
    """The plan of a batch's shapes, and what it gives: a structure of so many arrays.

    ``reads_mode``: whether forward does something else in training. ``writes``: what it leaves in a
    state beside the model.
    """

    plan: _core.Plan
    spec: Any
    n_outputs: int
    reads_mode: bool
    writes: Writes | None


class Writes(NamedTuple):
    """What a step leaves in a cache.

    ``n_rows``: new rows, behind those that the cache holds, of the buffers of keys and values that
    are ``in_rows``. ``whole``: the buffers that are assigned otherwise, the position among them.
    """

    n_rows: int
    in_rows: Sequence[Variable]
    whole: Sequence[Variable]


class Predictor:
    """Runs a model's forward pass on batches of arrays.

    It does not keep the model alive, so that it ends with the model whose it is.
    """

    def __init__(self, model: Module) -> None:
        self._model = weakref.ref(model)
        self._runtime: Runtime | None = None
        self._placement = ""
        self._edit = -1
        self._version: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self._fitted: Any = None
        self._pid = 0
        self._plans: OrderedDict[Any, Planned] = OrderedDict()

    @property
    def reads_mode(self) -> bool:
        """Whether the forward pass that ran last does something else in training."""
        return bool(self._plans) and next(reversed(self._plans.values())).reads_mode

    def _ready(self, model: Module, inputs: list[Array], spec: Any) -> Runtime:
        if self._pid != os.getpid():
            # In a forked child: a thread of the parent may have been running these plans.
            self._pid, self._runtime = os.getpid(), None
            self._plans.clear()
        wanted = model.__dict__.get("_placement") or "cpu"
        if self._runtime is None or wanted != self._placement or self._is_stale(model):
            self.close()
            shapes = [(str(a.dtype), a.shape) for a in inputs]
            resolve_lazy(model, shapes, lambda *given: call_model(model, unflatten(given, spec)))
            self._edit, self._version = latest_edit(), _version_of(model)
            self._fitted = fitted_of(model)
            self._runtime = self._open(model, open_placement(wanted))
            self._placement = wanted
        return self._runtime

    def _open(self, model: Module, device: _core.Device) -> Runtime:
        return Runtime(model, device)

    def _record(
        self,
        trace: Trace,
        model: Module,
        inputs: list[tuple[str, tuple[int, ...]]],
        spec: Any,
        path: str | None,
    ) -> Any:
        return trace_forward(trace, model, inputs, spec, path)

    def _writes_of(self, trace: Trace) -> Writes | None:
        """What forward, which was just recorded, leaves in a state beside the model."""
        return None

    def _is_stale(self, model: Module) -> bool:
        """Whether the model is another than the plans are of."""
        if fitted_of(model) is not self._fitted:  # plans hold its transforms
            return True
        edit = latest_edit()
        if edit == self._edit:
            return False
        self._edit = edit
        return _version_of(model) != self._version

    def close(self) -> None:
        """Gives the plans' memory back."""
        self._plans.clear()
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None

    def run(self, inputs: list[Array], spec: Any, path: str | None) -> Any:
        """forward on one batch; the output's structure as arrays."""
        return self.run_planned(self.find(inputs, spec, path), inputs)

    def run_planned(self, planned: Planned, inputs: list[Array]) -> Any:
        """forward on a batch of the shapes that are planned, of the model as it was then."""
        for i, array in enumerate(inputs):
            planned.plan.input(i, array)
        run_whole(planned.plan)
        return unflatten([planned.plan.output(i) for i in range(planned.n_outputs)], planned.spec)

    def find(self, inputs: list[Array], spec: Any, path: str | None) -> Planned:
        """The plan of a batch's shapes, with the model's values of now."""
        model = self._model()
        assert model is not None  # the caller has it
        runtime = self._ready(model, inputs, spec)
        shapes = tuple((a.shape, a.dtype) for a in inputs)
        numbers = tuple(runtime.last_numbers().items())  # constants of the plan
        key = (shapes, repr(spec), path, numbers)
        planned = self._plans.get(key)
        if planned is not None:
            runtime.upload()
        else:
            planned = self._plan(runtime, inputs, spec, path)
            self._plans[key] = planned
            while len(self._plans) > _MAX_PLANS:
                runtime.drop(self._plans.popitem(last=False)[1].plan)
        self._plans.move_to_end(key)
        return planned

    def _plan(self, runtime: Runtime, inputs: list[Array], spec: Any, path: str | None) -> Planned:
        """Shapes are checked by the trace, before the model's values are drawn and copied."""
        described = [(str(a.dtype), a.shape) for a in inputs]

        def build(trace: Trace) -> tuple[Any, bool, Writes | None]:
            out_spec = self._record(trace, runtime.model, described, spec, path)
            return out_spec, trace.reads_mode, self._writes_of(trace)

        graph, (out_spec, reads_mode, writes) = runtime.trace(build, training=False)
        if not self._plans:
            warn_of_untrained_norms("predict", runtime.model)
        runtime.upload()
        plan = runtime.plan(graph)
        runtime.tune(plan)
        return Planned(plan, out_spec, len(graph.outputs()), reads_mode, writes)


def _version_of(model: Module) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return structure_version(model), attribute_version(model)


def trace_forward(
    trace: Trace,
    model: Module,
    inputs: list[tuple[str, tuple[int, ...]]],
    spec: Any,
    path: str | None,
) -> Any:
    """Records forward on new inputs; every leaf of the result becomes an output.

    Where the model was trained, inputs get the dtype and the standardisation of training.

    Returns
    -------
    Any
        The structure of the result.
    """
    known = fitted_of(model)
    tensors = []
    for i, (dtype, shape) in enumerate(inputs):
        tensor = trace.input(f"x{i}", dtype, shape)
        trained = known.fields[i][1] if known is not None and i < len(known.fields) else None
        if trained is not None:
            tensor = tensor.to(trained)
        elif dtype in ("float64", "float16"):
            tensor = tensor.to("float32")
        if known is not None and i < len(known.fields):
            for _, values in known.transforms:
                if known.fields[i][0] in values:
                    mean, std = values[known.fields[i][0]]
                    tensor = (tensor - trace.const(mean)) / trace.const(std)
        tensors.append(tensor)
    if known is not None and known.padding is not None and len(tensors) > 1:
        role, fill, _ = known.padding
        length = tensors[0].shape[1]
        inside = inside_of(role, tensors[1], length)
        inside = inside.reshape((*inside.shape, *(1 for _ in tensors[0].shape[2:])))
        tensors[0] = where(inside, tensors[0], fill)
    trace.note_batch(tensors)
    x = unflatten(tensors, spec)
    seen: list[Any] = []
    if path is not None:
        try:
            module = model.get_submodule(path)
        except AttributeError as error:
            raise ConfigError(f"outputs: must be a module's path, got {path!r}: {error}") from None
        seen = trace.watch(module)
    result = call_model(model, x)
    if path is not None:
        if not seen:
            raise ConfigError(f"outputs: module {path!r} did not run in forward")
        result = seen[-1].output
    elif known is not None:
        result = scale_of(known).undo(result)
    check_output(model, result)
    leaves, out_spec = flatten(result)
    for leaf in leaves:
        trace.graph.output(leaf.id_in(trace))
    return out_spec


class CachedSteps(Predictor):
    """Runs of a model beside a cache, which keeps its state from one to the next.

    It keeps neither alive. A run that raises, however far it came, leaves the cache as it was: what
    it assigns in whole is read before and written back, and rows behind the position, which nobody
    has seen yet, are cleared: a weight of 0, by which later rows do not see them, does not hide a
    NaN. Rejected: commits that an error holds back to the end of the step, as rows could not be
    written where they lie then.
    """

    def __init__(self, model: Module, cache: KVCache) -> None:
        super().__init__(model)
        self._cache = weakref.ref(cache)

    @property
    def cache(self) -> KVCache:
        """The cache."""
        cache = self._cache()
        assert cache is not None  # the caller has it
        return cache

    def _open(self, model: Module, device: _core.Device) -> Runtime:
        return Runtime(model, device, state=self.cache)

    def _record(
        self,
        trace: Trace,
        model: Module,
        inputs: list[tuple[str, tuple[int, ...]]],
        spec: Any,
        path: str | None,
    ) -> Any:
        tensors = [trace.input(f"x{i}", *described) for i, described in enumerate(inputs)]
        trace.note_batch(tensors)
        with self.cache.step():
            result = call_model(model, unflatten(tensors, spec))
        check_output(model, result)
        leaves, out_spec = flatten(result)
        for leaf in leaves:
            trace.graph.output(leaf.id_in(trace))
        return out_spec

    def _writes_of(self, trace: Trace) -> Writes | None:
        rows, own = self.cache.written(), dict(self.cache.named_buffers())
        in_rows = [own[name] for name in rows]
        apart = set(map(id, in_rows))
        kept = set(map(id, own.values())) - apart
        whole = [owner for owner in trace.assigned() if id(owner) in kept]
        return Writes(max(rows.values(), default=0), in_rows, whole)

    def run_planned(self, planned: Planned, inputs: list[Array]) -> Any:
        """A step, or none of it: what raises changes nothing in the cache."""
        runtime, writes = self._runtime, planned.writes
        assert runtime is not None  # find made the plan
        assert writes is not None
        session, cache = runtime.session, self.cache
        slots = [runtime.layout.slot_of(owner) for owner in writes.whole]
        before = [session.read(s.store, str(s.owner.dtype), s.offset, s.size) for s in slots]
        place = runtime.layout.slot_of(cache.position)
        at = int(session.read(place.store, "int64", place.offset, 1)[0])
        if writes.n_rows and at + writes.n_rows > cache.max_seq_len:
            raise ShapeError(
                f"KVCache: the rows of a step must fit its max_seq_len of {cache.max_seq_len} "
                f"behind the {at} that it holds, got {writes.n_rows}; cache.reset() begins anew, "
                "and a cache with a larger max_seq_len holds more"
            )
        try:
            return super().run_planned(planned, inputs)
        except BaseException:  # an interrupt in the middle of the step as well
            if planned.plan.unfinished:
                planned.plan.abandon()
            for slot, values in zip(slots, before, strict=True):
                session.write(slot.store, values, slot.offset)
            self._clear_rows(runtime, writes, at)
            raise

    def _clear_rows(self, runtime: Runtime, writes: Writes, at: int) -> None:
        for owner in writes.in_rows:
            slot = runtime.layout.slot_of(owner)
            *_, length, width = owner.shape
            zeros = np.zeros(writes.n_rows * width, str(owner.dtype))
            for begin in range(0, slot.size, length * width):  # a sequence's head each
                runtime.session.write(slot.store, zeros, slot.offset + begin + at * width)

    def is_of(self, model: Module) -> bool:
        """Whether the steps are that model's."""
        return self._model() is model

    def empty(self) -> None:
        """Empties the cache on the device, where steps were planned."""
        if self._runtime is not None and self._plans:
            place = self._runtime.layout.slot_of(self.cache.position)
            self._runtime.session.write(place.store, np.zeros(1, np.int64), place.offset)


_steps: weakref.WeakKeyDictionary[KVCache, CachedSteps] = weakref.WeakKeyDictionary()


def run_step(model: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``model(array, cache)``: forward in evaluation mode on one batch, beside a cache.

    Parameters
    ----------
    model : Module
    args, kwargs : tuple, dict
        forward's arguments, one of them the cache.

    Returns
    -------
    Any
        forward's structure as NumPy arrays.

    Raises
    ------
    ConfigError
        If another module is among the arguments, or several caches.
    """
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, Module)]
    cache = given[0]
    if len(given) > 1 or not isinstance(cache, KVCache):
        names = ", ".join(type(each).__name__ for each in given)
        raise ConfigError(
            "model(...): arguments are arrays, constants and one nn.KVCache at most, got "
            f"{names}; a module that forward uses is an attribute of the model"
        )
    inputs = Inputs("model(...)", args, cache, kwargs)  # a step's, which training knows nothing of
    with exclusive(model, "model(...)"), losing_device():
        steps = _steps.get(cache)
        if steps is None or not steps.is_of(model):
            steps = _steps[cache] = CachedSteps(model, cache)
        return as_outputs(steps.run(inputs.arrays, inputs.spec, None))
