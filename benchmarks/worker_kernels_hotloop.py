"""hotloop's side of ``make bench-kernels``: a plan of one convolution, or of one of its gradients.

    python -m benchmarks.worker_kernels_hotloop

Threads by HOTLOOP_NUM_THREADS. The weight is a float32 parameter, so it is rounded and packed in
each step, as in training. A plan of the weight's gradient has steps of many micro-batches, since
each step makes the gradient of the result anew. Results of bfloat16 operands are float32, as the
plans of the CPU want them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import hotloop as hl
import numpy as np
from hotloop import _core

from benchmarks.layers import BATCH, Layer, parse_case
from benchmarks.worker import serve_cases

_SECONDS = 0.01  # of a call of the plan, roughly
_MICRO_BATCHES = 64  # of a step of the weight's gradient


def make_graph(layer: Layer, which: str, precision: str) -> _core.Graph:
    """The graph of one op: input 0 is its source, the store "param" the weight and, for the
    weight's gradient, that of the result.
    """
    graph = _core.Graph()
    x_shape = (BATCH, layer.size, layer.size, layer.channels)
    y_shape = (BATCH, layer.result, layer.result, layer.out)
    w_shape = (layer.out, layer.channels // layer.groups, layer.kernel, layer.kernel)
    attrs = {
        "stride": (layer.stride,) * 2,
        "before": (layer.padding,) * 2,
        "after": (layer.padding,) * 2,
        "groups": layer.groups,
        "channels_last": True,
    }
    n_weights, n_results = math.prod(w_shape), math.prod(y_shape)
    graph.store("param", "float32", n_weights + n_results)
    weight = graph.param("weight", "float32", w_shape, "param", 0)
    source = graph.input("source", precision, y_shape if which == "dx" else x_shape)
    if precision != "float32":
        (source,) = graph.add("cast", [source], dtype="float32")
    if which == "dx":
        (result,) = graph.add("conv_transpose", [source, weight], size=x_shape[1:3], **attrs)
    else:
        (result,) = graph.add("conv", [source, weight], **attrs)
    if which == "dw":
        dy = graph.param("dy", "float32", y_shape, "param", n_weights)
        (product,) = graph.add("mul", [result, dy])
        (total,) = graph.add("sum", [product])
        (gradient,) = graph.backward(total, [weight])
        assert gradient is not None
        result = gradient
    graph.output(result)
    return graph


def make_step(device: _core.Device, case: str) -> Callable[[], int]:
    """A function that runs the case's plan some times and returns how many times."""
    layer, which, precision = parse_case(case)
    graph = make_graph(layer, which, precision)
    k = _MICRO_BATCHES if which == "dw" else 1
    session = _core.Session(device)
    plan = _core.Plan(session, graph, compute_dtype=precision, k=k)
    rng = np.random.default_rng(0)
    n = session.stores()["param"][1]
    session.write("param", rng.standard_normal(n, dtype=np.float32))
    (source,) = (leaf for leaf in graph.leaves() if leaf["kind"] == "input")
    plan.input(0, rng.standard_normal(source["shape"], dtype=np.float32))
    plan.run(1, 60.0)
    return lambda: plan.run(1 << 30, _SECONDS)[1] * k


def main() -> None:
    """Serves slices of cases."""
    device = _core.Device("cpu")
    serve_cases(lambda case: make_step(device, case), version=hl.__version__)


if __name__ == "__main__":
    main()
