"""Every allocation of every public entry fails once, and then for good.

An entry is a function that prepares something and returns the call under test. For each k: prepare,
let the k-th allocation of the call fail, expect OutOfMemoryError (or, where a cache could not be
filled, the right result), and call again: that must give the bits of an undisturbed run. At the
end, when all of it is dropped, the allocator must hold what it held before.

The fast tier takes the first allocations of an entry one by one and of the rest a few, spread over
all of them and different for "once" and "for good"; the long tier takes all.
"""

import contextlib
import gc
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn

Call = Callable[[], Any]

RNG = np.random.default_rng(0)
X = RNG.standard_normal((24, 3)).astype(np.float32)
Y = np.arange(24) % 2
QUIET = {
    "max_epochs": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": None,
    "on_oom": "raise",  # a failure is one, and not a reason to try smaller parts
}
N_EACH = 24  # the first ones, and as many of the rest, in the fast tier


def make_model() -> nn.Module:
    hl.manual_seed(3)
    return nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4, 2)
    )


def make_data() -> hl.DataModule:
    return hl.DataModule.from_arrays(X, Y, val=0.25, batch_size=8)


def weights(model: nn.Module) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in model.state_dict().items()}


def make_graph() -> _core.Graph:
    """x @ w, softmax, loss, gradient, and w's commit."""
    graph = _core.Graph()
    graph.store("w", "float32", 6)
    x, w = graph.input("x", "float32", (4, 3)), graph.param("w", "float32", (3, 2), "w", 0)
    (h,) = graph.add("matmul", [x, w])
    (p,) = graph.add("softmax", [h])
    (loss,) = graph.add("sum", [p], axes=[])
    (grad,) = graph.backward(loss, [w])
    assert grad is not None
    (new,) = graph.add("sub", [w, grad])
    graph.commit(w, new)
    graph.output(loss)
    graph.output(p)
    return graph


def make_session() -> _core.Session:
    session = _core.Session(_core.Device("cpu"))
    session.store("w", "float32", 6)
    session.write("w", np.arange(6, dtype=np.float32))
    return session


def make_plan(session: _core.Session | None = None) -> _core.Plan:
    plan = _core.Plan(session or make_session(), make_graph())
    plan.input(0, X[:4])
    return plan


# ---------------------------------------------------------------------------- entries


def train() -> Call:
    model, data = make_model(), make_data()
    return lambda: (hl.train(model, data, **QUIET).history["val_loss"], weights(model))


def train_accumulated() -> Call:
    model, data = make_model(), make_data()
    options = {**QUIET, "accumulate_grad_batches": 2, "ema": True, "optimizer": "sgd"}
    return lambda: (hl.train(model, data, **options).history["val_loss"], weights(model))


def train_recomputed() -> Call:
    model, data = make_model(), make_data()
    options = {**QUIET, "recompute": True, "memory_limit": "1 GB"}
    return lambda: (hl.train(model, data, **options).history["val_loss"], weights(model))


def predict() -> Call:
    model = make_model()
    return lambda: hl.predict(model, X, batch_size=10)


def predict_again() -> Call:
    model = make_model()
    hl.predict(model, X)
    return lambda: hl.predict(model, X[:5])


def call_model() -> Call:
    model = make_model()
    return lambda: model(X)


def evaluate() -> Call:
    model, data = make_model(), make_data()
    return lambda: hl.evaluate(model, data, split="val")


def step() -> Call:
    model, data = make_model(), make_data()

    def call() -> Any:
        stepper = hl.stepper(model, hl.TrainingConfig(max_epochs=1), data)
        made = [stepper.step((X[:8], Y[:8])) for _ in range(2)]
        return made, stepper.evaluate("val")

    return call


def train_model_and(tmp: Path) -> nn.Module:
    model = make_model()
    hl.train(model, make_data(), **QUIET)
    return model


class Lookup(nn.Module):
    """Two columns of one table, with a buffer of offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(8, 3), nn.Linear(3, 2)
        self.register_buffer("offsets", np.array([0, 4]))

    def forward(self, x: Any) -> Any:
        return self.head(self.table(x + self.offsets).sum(1)) * hl.scalar(
            "heat", lambda n: 1 / (n + 1)
        )


def train_lookup() -> Call:
    hl.manual_seed(3)
    model = Lookup()
    ids = np.arange(48).reshape(24, 2) % 4
    return lambda: (hl.train(model, (ids, Y), **QUIET).history["loss"], weights(model))


def plan_report() -> Call:
    model, data = make_model(), make_data()
    return lambda: hl.plan(model, data).text


def batches() -> Call:
    data = make_data()
    return lambda: [batch["x"] for batch in (*data.train_batches(), *data.val_batches())]


def draw() -> Call:
    def call() -> Any:
        hl.manual_seed(5)
        return hl.rand(3), hl.randn(3), hl.randperm(5), weights(make_model())

    return call


def evaluate_loaded(tmp: Path) -> Call:
    path = tmp / "net.safetensors"
    if not path.exists():
        hl.save(train_model_and(tmp), path)
    return lambda: hl.evaluate(hl.load(path), make_data(), split="val")


def save(tmp: Path) -> Call:
    model, path = train_model_and(tmp), tmp / "net.safetensors"

    def call() -> bytes:
        hl.save(model, path)
        return path.read_bytes()

    return call


def load(tmp: Path) -> Call:
    path = tmp / "net.safetensors"
    if not path.exists():
        hl.save(train_model_and(tmp), path)
    return lambda: hl.predict(hl.load(path), X[:3], labels=True)


def build_graph() -> Call:
    return lambda: str(make_graph())


def read_graph() -> Call:
    graph = make_graph()
    return lambda: (
        str(graph.clone()), graph.nodes(), graph.leaves(), graph.depends(5, [0, 1]), graph.verify()
    )  # fmt: skip


def trained_graph() -> Call:
    def call() -> str:
        graph = _core.Graph()
        graph.store("param", "float32", 6)
        graph.scalar("lr")
        x = graph.input("x", "float32", (4, 3))
        w = graph.param("w", "float32", (3, 2), "param", 0)
        (total,) = graph.add("sum", graph.add("matmul", [x, w]), axes=[])
        spec = {
            "rows": 4, "optimizer": "adam", "attrs": {}, "segments": [(0, 6, 1.0, 0.0, 0)],
            "accumulate": True, "clip_norm": 1.0, "clip_value": 0.0, "ema": 0.9,
            "ema_ramp": False, "scales_loss": False, "table": (1, 8),
        }  # fmt: skip
        graph.training_step([(total, None, 1.0)], [w], spec)
        return str(graph)

    return call


def session_values() -> Call:
    session = make_session()

    def call() -> Any:
        session.store("copy", "float64", 6)
        session.write("copy", np.ones(6)[::-1])
        session.copy("copy", "copy")
        return session.read("w", "float64"), session.stores(), session.control()

    return call


def plan_and_run() -> Call:
    return lambda: run_once(make_plan())


def plan_unfused() -> Call:
    def call() -> Any:
        plan = _core.Plan(make_session(), make_graph(), n_slots=2, fuse=False, chain=False)
        plan.input(0, X[:4])
        return run_once(plan)

    return call


def plan_on_ref() -> Call:
    def call() -> Any:
        session = _core.Session(_core.Device("ref"))
        session.store("w", "float32", 6)
        return run_once(make_plan(session))

    return call


def plan_fed() -> Call:
    """Two epochs of batches that loader threads gather."""

    def call() -> Any:
        graph = _core.Graph()
        rows, data = graph.input("rows", "int64", (4,)), graph.dataset("x", "uint8", (10, 3))
        graph.output(graph.add("batch_gather", [data, rows], dtype="float32")[0])
        plan = _core.Plan(make_session(), graph, n_slots=3, fed=True)
        feed = _core.Feed(10, 4, shuffle=True, n_slots=3, n_threads=2)
        plan.dataset(0, np.arange(30, dtype=np.uint8).reshape(10, 3))
        plan.feed(feed)
        seen = []
        for epoch in range(2):
            feed.seek(epoch)
            while plan.run(1, 10.0) == ("done", 1):
                seen.append(plan.output(0))
        return seen

    return call


def plan_resident() -> Call:
    def call() -> Any:
        device = _core.Device("cpu")
        session = _core.Session(device)
        graph = _core.Graph()
        rows, data = graph.input("rows", "int64", (4,)), graph.dataset("x", "float32", X.shape)
        graph.output(graph.add("batch_gather", [data, rows], dtype="float32")[0])
        plan = _core.Plan(session, graph)
        plan.dataset(0, _core.Resident(device, X))
        plan.input(0, np.arange(4))
        assert plan.run(1, 10.0) == ("done", 1)
        out = plan.output(0)
        plan.close()
        session.close()
        return out

    return call


def run_once(plan: _core.Plan) -> Any:
    assert plan.run(1, 10.0) == ("done", 1)
    return plan.output(0), plan.output(1), str(plan), len(plan.info())


def feed() -> Call:
    def call() -> Any:
        made = _core.Feed(10, 3, rows=np.arange(10)[::-1].copy(), shuffle=True, seed=5)
        made.seek(1)
        return [made.next_rows() for _ in range(4)]

    return call


def helpers() -> Call:
    return lambda: (
        _core.gather_rows(X, np.array([3, 1, 2]), "float64"),
        _core.permutation(1, "s", 0, 50),
        _core.random_normal(1, "s", 9, 0.0, 1.0),
        _core.check_finite(X[:, ::-1]),
        _core.check_range(Y, 0, 2),
    )


def write_file(tmp: Path) -> Call:
    path = tmp / "file"

    def call() -> bytes:
        _core.write_file(str(path), [b"head", X, b"tail"])
        return path.read_bytes()

    return call


ENTRIES: tuple[Callable[..., Call], ...] = (
    train, train_accumulated, train_lookup, train_recomputed, predict, predict_again, call_model,
    evaluate, evaluate_loaded, step, save, load, plan_report, batches, draw,
    build_graph, read_graph, trained_graph, session_values, plan_and_run, plan_unfused, plan_on_ref,
    plan_fed, plan_resident, feed, helpers, write_file,
)  # fmt: skip


# ---------------------------------------------------------------------------- the walk


def prepare(entry: Callable[..., Call], tmp: Path) -> Call:
    return entry(tmp) if entry.__code__.co_argcount else entry()


def bits(value: Any) -> bytes:
    """A result as bytes; times are no part of it."""
    return pickle.dumps(value)


@contextlib.contextmanager
def failing(k: int, sticky: bool) -> Iterator[None]:
    """The k-th allocation of the block fails."""
    _core.alloc_fault(k, sticky)
    try:
        yield
    finally:
        _core.alloc_fault(0)


def count(call: Call) -> int:
    """Allocations of a call."""
    _core.alloc_fault(0)
    call()
    return _core.alloc_fault(0)


def held() -> tuple[int, int]:
    hl.empty_cache()
    gc.collect()
    stats = _core.alloc_stats()
    return stats["n_live"], stats["current_bytes"]


def walk(entry: Callable[..., Call], tmp: Path, every: bool) -> None:
    expected = bits(prepare(entry, tmp)())
    n = count(prepare(entry, tmp))
    before = held()
    for sticky in (False, True):
        for k in chosen(n, every, sticky):
            call = prepare(entry, tmp)
            where = f"{entry.__name__}: allocation {k} of {n}, {'for good' if sticky else 'once'}"
            try:
                with failing(k, sticky):
                    made = call()
            except MemoryError as error:
                assert isinstance(error, hl.OutOfMemoryError), where  # noqa: PT017
                assert "out of memory" in str(error), where  # noqa: PT017
            except BaseException as error:
                raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
            else:
                assert bits(made) == expected, f"{where}: failed in silence"
            assert bits(call()) == expected, f"{where}: the next call differs"
            del call
    assert held() == before, f"{entry.__name__}: blocks, bytes"


def chosen(n: int, every: bool, sticky: bool) -> list[int]:
    if every or n <= 2 * N_EACH:
        return list(range(1, n + 1))
    rest = np.linspace(N_EACH + 1 + sticky, n, N_EACH).astype(int)
    return [*range(1, N_EACH + 1), *(int(k) for k in rest)]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_an_allocation_fails(entry: Callable[..., Call], tmp_path: Path) -> None:
    with contextlib.redirect_stderr(io.StringIO()):
        walk(entry, tmp_path, every=False)


@pytest.mark.long
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_every_allocation_fails(entry: Callable[..., Call], tmp_path: Path) -> None:
    with contextlib.redirect_stderr(io.StringIO()):
        walk(entry, tmp_path, every=True)


def test_smaller_parts_leave_nothing_behind() -> None:
    """Memory that runs out once: the run goes on in micro-batches, or fails; all is given back."""

    def train() -> list[float]:
        hl.manual_seed(3)
        ids = np.arange(48).reshape(24, 2) % 4
        fields = QUIET | {"on_oom": "shrink"}
        return list(hl.train(Lookup(), (ids, Y), **fields).history["loss"])

    whole = train()
    n = count(train)
    before = held()
    n_trained = 0
    for k in range(1, n, max(n // 40, 1)):
        try:
            with failing(k, False):
                np.testing.assert_allclose(train(), whole, rtol=1e-5)
            n_trained += 1
        except MemoryError as error:
            assert isinstance(error, hl.OutOfMemoryError)  # noqa: PT017
    assert n_trained > 0
    assert held() == before
