"""A side of ``python -m benchmarks.sequences``: a call with all of its gradients.

    python -m benchmarks.worker_sequences hotloop|torch|memory [--threads N]

The loss is the sum of the result times random numbers, as the same graph on both sides. hotloop's
threads are those of HOTLOOP_NUM_THREADS. The third side moves as many bytes, by PyTorch's addition
of arrays beyond any cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.sequences import Case, parse_case
from benchmarks.worker import serve_cases

_SECONDS = 0.01  # of a call of hotloop's plan, roughly
_ELEMENTS = 1 << 24  # of an array that no cache holds


def draw_inputs(case: Case) -> dict[str, np.ndarray[Any, Any]]:
    """Those that the call names."""
    rng = np.random.default_rng(0)
    names = [name for name in ("x", "q", "k", "v") if f"({name}" in case.call]
    if "q" in names:
        names = ["q", "k", "v"]
    if case.rows:
        return {name: rng.integers(0, case.rows, case.shape) for name in names}
    return {name: rng.standard_normal(case.shape, np.float32) for name in names}


def make_hotloop_step(name: str) -> Callable[[], int]:
    """A function that runs the case's plan some times and returns how many times."""
    import hotloop as hl
    from hotloop import _core, nn
    from hotloop.graph.trace import Trace
    from hotloop.nn import functional
    from hotloop.training.plans.runtime import Runtime

    case, precision = parse_case(name)
    arrays = draw_inputs(case)
    holder: Any = nn.Module()
    holder.layer = eval(case.layer, {"nn": nn}) if case.layer else None
    runtime = Runtime(holder, _core.Device("cpu"))
    runtime.upload()
    graph = _core.Graph()
    trace = Trace(graph, runtime.layout.leaf_for, training=True)
    with trace:
        given = {n: trace.input(n, str(a.dtype), a.shape) for n, a in arrays.items()}
        result = eval(case.call, {"F": functional, "layer": holder.layer}, given)
        weights = trace.input("weights", "float32", result.shape)
        loss = hl.sum(result * weights).id_in(trace)
        leaves = [i for leaf, i in trace.leaves() if isinstance(leaf, nn.Parameter)]
    wanted = leaves + [t.id_in(trace) for n, t in given.items() if arrays[n].dtype.kind == "f"]
    for gradient in graph.backward(loss, wanted):
        assert gradient is not None
        graph.output(gradient)
    plan = runtime.plan(graph, compute_dtype=precision)
    numbers = np.random.default_rng(1).standard_normal(result.shape, np.float32)
    for i, array in enumerate([*arrays.values(), numbers]):
        plan.input(i, array)
    plan.run(1, 60.0)
    began = time.perf_counter()
    plan.run(1, 60.0)
    n = max(1, int(_SECONDS / (time.perf_counter() - began)))
    return lambda: plan.run(n, 60.0)[1]


def make_torch_step(name: str) -> Callable[[], int]:
    """A function that computes the case once and returns 1."""
    import torch

    case, precision = parse_case(name)
    layer = eval(case.layer, {"nn": torch.nn}) if case.layer else None
    given = {n: torch.from_numpy(a) for n, a in draw_inputs(case).items()}
    floats = [t.requires_grad_() for t in given.values() if t.is_floating_point()]
    wanted = [*(layer.parameters() if layer else ()), *floats]
    names = {"F": torch.nn.functional, "layer": layer}
    weights = torch.randn(eval(case.call, names, given).shape)

    def step() -> int:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            loss = (eval(case.call, names, given) * weights).sum()
        torch.autograd.grad(loss, wanted)
        return 1

    step()
    return step


def make_memory_step(name: str) -> Callable[[], float]:
    """A function that adds two arrays and returns how often the case's bytes were moved."""
    import torch

    case, _ = parse_case(name)
    arrays = [torch.ones(_ELEMENTS) for _ in range(3)]
    moved = 3 * 4 * _ELEMENTS

    def step() -> float:
        torch.add(arrays[0], arrays[1], out=arrays[2])
        return moved / case.moved if case.moved else 1.0

    return step


def main() -> None:
    """Serves slices of cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", choices=["hotloop", "torch", "memory"])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if options.home == "hotloop":
        import hotloop as hl

        serve_cases(make_hotloop_step, version=hl.__version__)
    else:
        import torch

        torch.set_num_threads(options.threads)
        make = make_torch_step if options.home == "torch" else make_memory_step
        serve_cases(make, version=torch.__version__)


if __name__ == "__main__":
    main()
