"""Runs a function of tensors through the core: trace, plan, one step, arrays back."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hotloop import _core
from hotloop.graph.trace import Trace
from hotloop.nn.layout import Layout
from hotloop.nn.module import Module


def as_list(value: Any) -> list[Any]:
    """The tensors of a result."""
    return list(value) if isinstance(value, tuple | list) else [value]


def trace(
    fn: Callable[..., Any],
    *inputs: Any,
    model: Module | None = None,
    training: bool = False,
) -> tuple[_core.Graph, Trace, list[Any], list[Any]]:
    """Records fn on inputs like the given arrays, or of given (dtype, shape)."""
    graph = _core.Graph()
    layout = Layout(model) if model is not None else None
    recorder = Trace(graph, layout.leaf_for if layout else None, training=training, seed=7)
    with recorder:
        given = []
        for i, value in enumerate(inputs):
            dtype, shape = value if isinstance(value, tuple) else (str(value.dtype), value.shape)
            given.append(recorder.input(f"x{i}", dtype, shape))
        made = as_list(fn(*given))
    return graph, recorder, given, made


def start(
    graph: _core.Graph, arrays: Sequence[np.ndarray], model: Module | None = None
) -> tuple[_core.Session, _core.Plan]:
    """A session with the model's values and a plan with its inputs."""
    session = _core.Session(_core.Device("cpu"))
    if model is not None:
        layout = Layout(model)
        for name, (dtype, n) in layout.stores().items():
            session.store(name, dtype, n)
        for variable, store, offset in layout.places():
            session.write(store, variable.value(), offset)
    plan = _core.Plan(session, graph)
    for i, array in enumerate(arrays):
        plan.input(i, np.ascontiguousarray(array))
    return session, plan


def run(
    fn: Callable[..., Any],
    *arrays: np.ndarray,
    model: Module | None = None,
    training: bool = False,
) -> list[np.ndarray]:
    """What fn gives for the arrays."""
    graph, recorder, _, made = trace(fn, *arrays, model=model, training=training)
    numbers = [graph.output(value.id_in(recorder)) for value in made]
    _, plan = start(graph, arrays, model)
    assert plan.run(1, 60.0) == ("done", 1)
    return [plan.output(number) for number in numbers]


def gradients(fn: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """Gradients of the sum of fn's first result by each array of floats."""
    graph, recorder, given, made = trace(fn, *arrays)
    with recorder:
        total = made[0].sum()
    wrt = [x.id for x in given if x.dtype.is_floating_point]
    found = graph.backward(total.id_in(recorder), wrt)
    numbers = [None if value is None else graph.output(value) for value in found]
    _, plan = start(graph, arrays)
    assert plan.run(1, 60.0) == ("done", 1)
    floats = [array for array in arrays if array.dtype.kind == "f"]
    return [
        np.zeros_like(array) if number is None else plan.output(number)
        for number, array in zip(numbers, floats)
    ]
