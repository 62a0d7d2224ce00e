"""The same module in hotloop and in PyTorch, on the same numbers, in float64 (float32 on a CPU)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from hotloop import _core, nn
from hotloop.base.structure import flatten
from hotloop.graph.trace import Trace
from hotloop.training.plans.runtime import Runtime

Array = np.ndarray[Any, Any]
# What each device computes in.
FLOATS: dict[str, Any] = {"ref": np.float64, "cpu": np.float32}


def cast_floats(arrays: Sequence[Array], device: str) -> list[Array]:
    return [a.astype(FLOATS[device]) if a.dtype.kind == "f" else a for a in arrays]


def copy_weights(model: nn.Module, twin: torch.nn.Module) -> None:
    """hotloop's values into the torch module, by state_dict, all keys."""
    values = {name: torch.from_numpy(v.copy()) for name, v in model.state_dict().items()}
    twin.load_state_dict(values, strict=True)


def shake(model: nn.Module, rng: np.random.Generator) -> None:
    """Values that hide nothing: no ones, no zeros, positive where they must be."""
    state = {}
    for name, value in model.state_dict().items():
        if value.dtype.kind != "f":
            state[name] = value
        elif "running_var" in name:
            state[name] = rng.uniform(0.5, 2, value.shape).astype(value.dtype)
        else:
            noise = rng.uniform(-0.5, 0.5, value.shape)
            state[name] = (value + noise).astype(value.dtype)
    model.load_state_dict(state)


def run_hotloop(
    call: Callable[..., Any],
    model: nn.Module | None,
    inputs: Sequence[Array],
    weights: Sequence[Array] | None,
    *,
    training: bool,
    device: str = "ref",
) -> tuple[list[Array], dict[str, Array], list[Array | None], dict[str, Array]]:
    """Outputs, gradients by parameter, gradients by input, and the state afterwards."""
    holder = model if model is not None else nn.Module()
    runtime = Runtime(holder, _core.Device(device))
    runtime.upload()
    graph = _core.Graph()
    trace = Trace(graph, runtime.layout.leaf_for, training=training)
    holder.train(training)
    with trace:
        tensors = [
            trace.input(f"x{i}", "float32" if a.dtype.kind == "f" else str(a.dtype), a.shape)
            for i, a in enumerate(inputs)
        ]
        outputs = flatten(call(*tensors))[0]
        ids = [o.id_in(trace) for o in outputs]
        leaves = [(o, i) for o, i in trace.leaves() if isinstance(o, nn.Parameter)]
    for value in ids:
        graph.output(value)
    names = {id(slot.owner): slot.name for slot in runtime.layout.slots}
    floats = [t.id_in(trace) for t, a in zip(tensors, inputs) if a.dtype.kind == "f"]
    grads: tuple[int | None, ...] = ()
    if weights is not None:
        grads = add_gradients(graph, ids, weights, [i for _, i in leaves] + floats)
    plan = runtime.plan(graph)
    for i, array in enumerate(cast_floats(inputs, device)):
        plan.input(i, array)
    plan.run(1, 1e9)
    values = [plan.output(i) for i in range(len(ids))]
    read = iter(range(len(ids), len(graph.outputs())))
    got = [None if g is None else plan.output(next(read)) for g in grads]
    by_name = {names[id(o)]: g for (o, _), g in zip(leaves, got) if g is not None}
    runtime.download()
    return values, by_name, got[len(leaves) :], holder.state_dict()


def add_gradients(
    graph: _core.Graph, ids: Sequence[int], weights: Sequence[Array], wrt: Sequence[int]
) -> tuple[int | None, ...]:
    """Of sum(weight * output), marked as outputs."""
    loss = None
    for value, weight in zip(ids, weights):
        (term,) = graph.add("mul", [value, graph.const(weight, "float32")])
        (term,) = graph.add("sum", [term])
        loss = term if loss is None else graph.add("add", [loss, term])[0]
    assert loss is not None
    grads = graph.backward(loss, list(wrt))
    for grad in grads:
        if grad is not None:
            graph.output(grad)
    return grads


def run_torch(
    call: Callable[..., Any],
    twin: torch.nn.Module | None,
    inputs: Sequence[Array],
    weights: Sequence[Array] | None,
    *,
    training: bool,
    device: str = "ref",
) -> tuple[list[Array], dict[str, Array], list[Array | None], dict[str, Array]]:
    """The same from PyTorch."""
    holder = twin if twin is not None else torch.nn.Module()
    holder.to(torch.from_numpy(np.zeros(0, FLOATS[device])).dtype).train(training)
    tensors = [torch.from_numpy(a.copy()) for a in cast_floats(inputs, device)]
    floats = [t.requires_grad_() for t in tensors if t.is_floating_point()]
    made = call(*tensors)
    outputs = flatten(made)[0]
    parameters = dict(holder.named_parameters())
    got: dict[str, Array] = {}
    of_inputs: list[Array | None] = []
    if weights is not None:
        loss = sum((o * torch.from_numpy(w)).sum() for o, w in zip(outputs, weights))
        grads = torch.autograd.grad(loss, [*parameters.values(), *floats], allow_unused=True)
        found = [None if g is None else g.numpy() for g in grads]
        got = {k: g for k, g in zip(parameters, found) if g is not None}
        of_inputs = found[len(parameters) :]
    state = {k: v.detach().numpy() for k, v in holder.state_dict().items()}
    return [o.detach().numpy() for o in outputs], got, of_inputs, state


def check_twins(
    call: Callable[..., Any],
    model: nn.Module | None,
    twin_call: Callable[..., Any],
    twin: torch.nn.Module | None,
    inputs: Sequence[Array],
    *,
    training: bool = False,
    gradients: bool = True,
    rtol: float = 1e-10,
    device: str = "ref",
) -> None:
    """Values, every gradient and the state afterwards agree, by default to float64's rounding."""
    rng = np.random.default_rng(7)
    made = run_torch(twin_call, twin, inputs, None, training=False, device=device)[0]
    shapes = [o.shape for o in made]
    weights = [np.asarray(rng.uniform(0.5, 1.5, s)) for s in shapes] if gradients else None
    ours = run_hotloop(call, model, inputs, weights, training=training, device=device)
    theirs = run_torch(twin_call, twin, inputs, weights, training=training, device=device)
    for i, (a, b) in enumerate(zip(ours[0], theirs[0], strict=True)):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=f"output {i}")
    assert ours[1].keys() == theirs[1].keys()
    for name, grad in theirs[1].items():
        np.testing.assert_allclose(ours[1][name], grad, rtol=rtol, atol=rtol, err_msg=name)
    for i, (a, b) in enumerate(zip(ours[2], theirs[2])):
        if a is None or b is None:
            assert a is None or not np.any(a)
            assert b is None or not np.any(b)
        else:
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=f"input {i}")
    for name, value in theirs[3].items():
        np.testing.assert_allclose(ours[3][name], value, rtol=1e-6, atol=1e-7, err_msg=name)
