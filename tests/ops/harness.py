"""One op or a small graph on every device: what all tests of tests/ops run on.

A case is data: op, attributes, fills for the inputs, a NumPy reference and the rule of its
tolerance. The runner builds the graph once per device. On ``ref`` (float64) the result is held
against NumPy, on ``cpu``, for each instruction set of the machine, against ``ref``. Inputs are
drawn as float32 values, so both start from the same numbers.

The tolerance is one rule for everything, Higham's (Accuracy and Stability, 2002, §3.1):

    |computed - exact| <= gamma(K) * S,   gamma(K) = K u / (1 - K u)

u is the unit roundoff of the dtype (2**-53, 2**-24), K the number of roundings on the longest way
from an input to an element, S the sum of the magnitudes of the terms the element is made of,
sum |a_i b_i| for a product. It holds for any order of summation, so it does not have to know
kernels. A function that is right within n ulp counts 2 n roundings. Both sides round, hence 2
gamma(K). Gradients have the same rule normwise: S is the largest magnitude of the gradient.
"""

import functools
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hotloop import _core

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24}
TINY = {"float64": 2.0**-1000, "float32": 2.0**-126}

Array = np.ndarray[Any, Any]
# (K, S) of each output from the inputs and the expected outputs.
Rule = Callable[[Sequence[Array], Sequence[Array]], list[tuple[float, Any]]]


def gamma(roundings: float, unit: float) -> float:
    """Higham's gamma."""
    return roundings * unit / (1 - roundings * unit)


# ---------------------------------------------------------------------------- rules


def exact(inputs: Sequence[Array], outputs: Sequence[Array]) -> list[tuple[float, Any]]:
    """Not one rounding: copies, comparisons, integers."""
    return [(0.0, 0.0) for _ in outputs]


def rounded(roundings: float) -> Rule:
    """K roundings on the way to an element that does not cancel: S = |y|."""
    return lambda inputs, outputs: [(roundings, np.abs(y)) for y in outputs]


def ulps(n: float) -> Rule:
    """A function right within n ulp."""
    return rounded(2 * n)


def of_terms(roundings: float, terms: Callable[..., Any]) -> Rule:
    """S by a function of the inputs, as ``lambda x, y: abs(x) + abs(y)``; one output."""

    def rule(inputs: Sequence[Array], outputs: Sequence[Array]) -> list[tuple[float, Any]]:
        with np.errstate(all="ignore"):
            return [(roundings, terms(*inputs))]

    return rule


def of_largest(roundings: float) -> Rule:
    """Normwise: S is the largest magnitude of the output, at least 1."""
    return lambda inputs, outputs: [(roundings, largest(y)) for y in outputs]


def largest(values: Array) -> float:
    """The largest finite magnitude, at least 1."""
    finite = np.abs(np.asarray(values, np.float64))
    finite = finite[np.isfinite(finite)]
    return max(1.0, float(finite.max(initial=0.0)))


# ---------------------------------------------------------------------------- cases

Fill = Callable[[np.random.Generator], Array]


@dataclass(frozen=True)
class Case:
    """One value case, and a gradient case where ``grad`` names inputs."""

    op: str
    name: str
    inputs: tuple[Fill, ...]
    expect: Callable[..., Any]  # NumPy: inputs (float64 or integers) to one output or a tuple
    rule: Rule = exact
    attrs: dict[str, Any] = field(default_factory=dict)
    grad: tuple[int, ...] = ()  # inputs to differentiate by
    # None: the op `op` with `attrs`; else adds nodes itself, `build(graph, ids) -> ids`
    build: Callable[[_core.Graph, list[int]], Sequence[int]] | None = None
    roundings: float = 0.0  # of a gradient, where the default (from the sizes) is too little
    unfused_bits: bool = True  # the same bits without fusion

    @property
    def id(self) -> str:
        """Unique, and the seed of the case's values."""
        return f"{self.op}-{self.name}"

    def draw(self) -> list[Array]:
        """The inputs: the same in every run, whatever else runs."""
        rng = np.random.default_rng(zlib.crc32(self.id.encode()))
        return [fill(rng) for fill in self.inputs]

    def add_to(self, graph: _core.Graph, ids: list[int]) -> list[int]:
        """The case's nodes; its outputs."""
        if self.build is not None:
            return list(self.build(graph, ids))
        return list(graph.add(self.op, ids, **self.attrs))


# ---------------------------------------------------------------------------- devices


@functools.cache
def open_session(backend: str, isa: str | None = None, n_threads: int = 0) -> _core.Session:
    """One session per kind of device, for the whole test run."""
    return _core.Session(_core.Device(backend, 0, n_threads, isa))


ISAS = tuple(_core.cpu_info()["isa"])
# Devices that are held against ref: the CPU in each instruction set. A GPU, real or emulated, where
# it is asked for (make gpu-check and make cuda-check set the variable); that is of the GPU alone.
GPUS: tuple[tuple[str, str | None], ...] = (
    (("cuda", None),) if os.environ.get("HOTLOOP_TEST_GPU") else ()
)
FAST = GPUS or tuple(("cpu", isa) for isa in ISAS)


def run_graph(
    session: _core.Session,
    make: Callable[[_core.Graph, list[int]], Sequence[int | None]],
    inputs: Sequence[Array],
    **options: bool,
) -> list[Array | None]:
    """Builds a graph over inputs, runs it once and reads what ``make`` returned.

    ``options`` are the plan's: fuse, chain, capture, deterministic.
    """
    graph = _core.Graph()
    ids = [
        graph.input(f"in{i}", "float32" if a.dtype.kind == "f" else str(a.dtype), a.shape)
        for i, a in enumerate(inputs)
    ]
    made = make(graph, ids)
    for value in made:
        if value is not None:
            graph.output(value)
    plan = _core.Plan(session, graph, **options)
    for i, array in enumerate(inputs):
        plan.input(i, array)
    how, steps = plan.run(1, 1e9)
    assert (how, steps) == ("done", 1)
    slots = iter(range(len(made)))
    return [None if value is None else plan.output(next(slots)) for value in made]


def as_list(value: Any) -> list[Array]:
    """One output or a tuple as a list."""
    return [np.asarray(v) for v in value] if isinstance(value, tuple) else [np.asarray(value)]


def check_close(
    got: Array, want: Array, bound: tuple[float, Any], what: str, unit: float, tiny: float
) -> None:
    """Fails with the worst element when ``got`` is outside the rule."""
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    roundings, terms = bound
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
        if unit == UNIT["float32"] and got.dtype == np.float32:
            # beyond float32's range: infinite, as float32 has it
            b = np.where(np.abs(b) > 3.4028235e38, np.sign(b) * np.inf, b)
        slack = 2 * gamma(roundings, unit) * np.asarray(terms, np.float64)
        slack = np.where(np.isfinite(slack), slack, 0.0) + (tiny if roundings else 0.0)
        good = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= slack)
    if np.all(good):
        return
    index = tuple(int(i) for i in np.argwhere(~good)[0])
    limit = float(np.broadcast_to(slack, a.shape)[index])
    raise AssertionError(
        f"{what}: {int((~good).sum())} of {good.size} elements are off; at {index}: got "
        f"{a[index]!r}, expected {b[index]!r}, off by {a[index] - b[index]:.3g}, "
        f"allowed {limit:.3g}"
    )


# ---------------------------------------------------------------------------- values


def check_reference(case: Case) -> None:
    """ref, in float64, against NumPy."""
    inputs = case.draw()
    with np.errstate(all="ignore"):
        want = as_list(case.expect(*inputs))
    got = run_graph(open_session("ref"), case.add_to, inputs)
    assert len(got) == len(want)
    for j, (g, w, bound) in enumerate(zip(got, want, case.rule(inputs, want))):
        check_close(g, w, bound, f"{case.id}[{j}] ref", UNIT["float64"], TINY["float64"])
        assert g.dtype == w.dtype, f"{case.id}[{j}]: dtype {g.dtype}, expected {w.dtype}"


def check_fast(case: Case, backend: str, isa: str | None) -> None:
    """A device in float32, against ref."""
    inputs = case.draw()
    want = run_graph(open_session("ref"), case.add_to, inputs)
    got = run_graph(open_session(backend, isa), case.add_to, inputs)
    for j, (g, w, bound) in enumerate(zip(got, want, case.rule(inputs, want))):
        what = f"{case.id}[{j}] {backend} {isa}"
        check_close(g, w, bound, what, UNIT["float32"], TINY["float32"])


def check_same_bits(case: Case, isa: str) -> None:
    """The same bits again, at 1, 2 and 7 threads, without chains, and without fusion."""
    inputs = case.draw()
    make = functools.partial(add_with_gradients, case) if case.grad else case.add_to
    if case.grad:
        inputs = inputs + draw_weights(case, inputs)
    first = run_graph(open_session("cpu", isa, 1), make, inputs)
    others = {
        "again": run_graph(open_session("cpu", isa, 1), make, inputs),
        "2 threads": run_graph(open_session("cpu", isa, 2), make, inputs),
        "7 threads": run_graph(open_session("cpu", isa, 7), make, inputs),
        "no chains": run_graph(open_session("cpu", isa, 7), make, inputs, chain=False),
    }
    for how, outputs in others.items():
        compare_bits(case, first, outputs, how)
    check_fusion_bits(case, open_session("cpu", isa))
    for backend, own_isa in GPUS:
        session = open_session(backend, own_isa)
        # Measuring may choose another of a library's algorithms for what is fused.
        check_fusion_bits(case, session, deterministic=True)
        first, again = (run_graph(session, make, inputs, deterministic=True) for _ in range(2))
        eager = run_graph(session, make, inputs, deterministic=True, capture=False)
        compare_bits(case, first, again, f"again on {backend}")
        compare_bits(case, first, eager, f"without capture on {backend}")


def check_fusion_bits(case: Case, session: _core.Session, **options: bool) -> None:
    """The same bits with and without fusion; ``options`` are the plan's."""
    if case.unfused_bits:
        fused = run_graph(session, case.add_to, case.draw(), **options)
        plain = run_graph(session, case.add_to, case.draw(), fuse=False, **options)
        compare_bits(case, fused, plain, "unfused")


def compare_bits(case: Case, first: Sequence[Any], second: Sequence[Any], how: str) -> None:
    """Fails at the first output whose bytes differ."""
    for j, (a, b) in enumerate(zip(first, second, strict=True)):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.tobytes() == b.tobytes(), f"{case.id}[{j}]: other bits, {how}"


# ---------------------------------------------------------------------------- gradients

STEP = 2.0**-10


def draw_weights(case: Case, inputs: Sequence[Array]) -> list[Array]:
    """A random weight per element of each floating output: the loss is their weighted sum."""
    outputs = run_graph(open_session("ref"), case.add_to, inputs)
    rng = np.random.default_rng(zlib.crc32(case.id.encode()) + 1)
    return [single(rng.uniform(0.5, 1.5, o.shape)) for o in outputs if o.dtype.kind == "f"]


def single(values: Array) -> Array:
    """float64 that float32 can hold."""
    return np.asarray(values, np.float32).astype(np.float64)


def add_loss(case: Case, graph: _core.Graph, ids: list[int]) -> int:
    """sum(weight * output), the weights being the inputs after the case's own."""
    n = len(case.inputs)
    outputs = [o for o in case.add_to(graph, ids[:n]) if graph.dtype(o).startswith("float")]
    loss = None
    for output, weight in zip(outputs, ids[n:], strict=True):
        (term,) = graph.add("mul", [output, weight])
        (term,) = graph.add("sum", [term])
        loss = term if loss is None else graph.add("add", [loss, term])[0]
    assert loss is not None
    return loss


def add_with_gradients(case: Case, graph: _core.Graph, ids: list[int]) -> list[int | None]:
    """The loss and its gradients."""
    loss = add_loss(case, graph, ids)
    return [loss, *graph.backward(loss, [ids[i] for i in case.grad])]


def check_directions(case: Case) -> None:
    """ref's gradients against central differences of ref, along random directions.

    Richardson's extrapolation of two steps: what is left is of fourth order in the step.
    """
    inputs = case.draw()
    weights = draw_weights(case, inputs)
    session = open_session("ref")
    _, *grads = run_graph(session, functools.partial(add_with_gradients, case), inputs + weights)
    rng = np.random.default_rng(zlib.crc32(case.id.encode()) + 2)

    graph = _core.Graph()
    ids = [
        graph.input(f"in{i}", "float32" if a.dtype.kind == "f" else str(a.dtype), a.shape)
        for i, a in enumerate(inputs + weights)
    ]
    graph.output(add_loss(case, graph, ids))
    plan = _core.Plan(session, graph)

    def loss_at(shift: float, directions: list[Array]) -> float:
        moved = list(inputs)
        for i, direction in zip(case.grad, directions):
            moved[i] = np.asarray(inputs[i] + shift * direction)
        for i, array in enumerate(moved + weights):
            plan.input(i, array)
        plan.run(1, 1e9)
        return float(plan.output(0))

    for _ in range(2):
        directions = [rng.uniform(-1, 1, inputs[i].shape) for i in case.grad]
        slopes = [
            (loss_at(h, directions) - loss_at(-h, directions)) / (2 * h) for h in (STEP, STEP / 2)
        ]
        numeric = (4 * slopes[1] - slopes[0]) / 3
        products = [
            np.zeros(1) if g is None else (g * d).ravel() for g, d in zip(grads, directions)
        ]
        claimed = float(sum(p.sum() for p in products))
        scale = float(sum(np.abs(p).sum() for p in products)) + abs(loss_at(0.0, directions)) + 1
        assert abs(claimed - numeric) <= 1e-8 * scale, (
            f"{case.id}: gradient along a random direction is {claimed!r}, "
            f"central differences say {numeric!r}"
        )


def check_fast_gradients(case: Case, backend: str, isa: str | None) -> None:
    """A device's gradients against ref's, and the loss; normwise, see the head of this file."""
    inputs = case.draw()
    inputs = inputs + draw_weights(case, inputs)
    make = functools.partial(add_with_gradients, case)
    want = run_graph(open_session("ref"), make, inputs)
    got = run_graph(open_session(backend, isa), make, inputs)
    roundings = case.roundings or 32 + max([1, *(a.size for a in inputs)])
    for j, (g, w) in enumerate(zip(got, want)):
        assert (g is None) == (w is None)
        if g is not None:
            bound = (roundings, largest(w))
            what = f"{case.id}: {'loss' if j == 0 else f'gradient {j - 1}'} {backend} {isa}"
            check_close(g, w, bound, what, UNIT["float32"], TINY["float32"])
