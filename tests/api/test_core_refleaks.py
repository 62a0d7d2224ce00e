"""References: what is made and dropped leaves nothing behind, errors included."""

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hotloop import _core, errors

ROUNDS = 300
TYPES = (_core.Graph, _core.Device, _core.Session, _core.Feed, _core.Plan, _core.Resident)


PLAN_DEVICE = _core.Device("null")
SESSION_DEVICE = _core.Device("cpu", n_threads=1)


def make_plan() -> _core.Plan:
    g = _core.Graph()
    rows = g.input("rows", "int64", (2,))
    (y,) = g.add("batch_gather", [g.dataset("data", "float32", (3, 2)), rows], dtype="float32")
    g.output(y)
    return _core.Plan(_core.Session(PLAN_DEVICE), g)


GRAPH = _core.Graph()
X = GRAPH.input("x", "float32", (2, 3))
SESSION = _core.Session(SESSION_DEVICE)
SESSION.store("a", "float32", 4)
PLAN = make_plan()
DATA = np.ones((3, 2), np.float32)
OTHER = np.zeros((3, 2), np.float32)
FEED = _core.Feed(3, 2)
ROWS = np.array([1, 2])
LARGE = 10**30
KEY = "some_attribute_name"


def fail(kind: type[Exception], call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    with pytest.raises(kind):
        call(*args, **kwargs)


def set_dataset() -> None:
    PLAN.dataset(0, DATA)
    PLAN.dataset(0, OTHER)


def read_output() -> None:
    PLAN.dataset(0, DATA)
    PLAN.input(0, ROWS)
    PLAN.run(1, 1.0)
    PLAN.output(0, "float64")


def set_feed() -> None:
    PLAN.feed(FEED)
    PLAN.feed(FEED)
    PLAN.feed(None)


def close_plan() -> None:
    session = _core.Session(SESSION_DEVICE)
    plan = _core.Plan(session, _core.Graph())
    fail(errors.BusyError, session.close)
    plan.close()
    session.close()
    fail(errors.HotloopError, plan.run)


def set_resident() -> None:
    PLAN.dataset(0, _core.Resident(PLAN_DEVICE, DATA))
    PLAN.dataset(0, OTHER)
    fail(errors.ConfigError, PLAN.dataset, 0, _core.Resident(SESSION_DEVICE, DATA))


def check_step() -> None:
    graph = _core.Graph()
    graph.output(graph.add("log", [graph.input("x", "float32", (2,))])[0])
    plan = _core.Plan(SESSION, graph, fuse=False, chain=False)
    plan.input(0, -np.ones(2, np.float32))
    runner = _core.Runner([(plan, 2)])
    assert runner.check(1, True)["first"]["shape"] == (2,)
    assert runner.check(1) is None


CASES: dict[str, Callable[[], Any]] = {
    "graph": lambda: _core.Graph().clone(),
    "device": lambda: _core.Device("null"),
    "device fails": lambda: fail(errors.DeviceError, _core.Device, "cuda13"),
    "survey": lambda: _core.survey("cuda", None, probe=False),
    "survey fails": lambda: fail(errors.DeviceError, _core.survey, "cpu"),
    "ops": lambda: _core.Device("null").ops,
    "session": lambda: _core.Session(_core.Device("cpu", n_threads=1)),
    "feed": lambda: _core.Feed(9, 3, rows=np.arange(9), shuffle=True),
    "feed fails": lambda: fail(errors.ShapeError, _core.Feed, 9, 3, rows=ROWS),
    "plan": make_plan,
    "plan fails": lambda: fail(TypeError, _core.Plan, SESSION, SESSION),
    "dataset": set_dataset,
    "resident": set_resident,
    "close": close_plan,
    "memory": lambda: (SESSION_DEVICE.memory(), SESSION_DEVICE.memory_peak_reset()),
    "dataset fails": lambda: fail(errors.ShapeError, PLAN.dataset, 0, DATA[:1]),
    "set feed": set_feed,
    "input": lambda: PLAN.input(0, ROWS),
    "input fails": lambda: fail(errors.DataError, PLAN.input, 0, DATA),
    "output": read_output,
    "output fails": lambda: fail(errors.ConfigError, PLAN.output, 0, KEY),
    "run": lambda: PLAN.run(1, 1.0),
    "profile": lambda: (PLAN.run(1, 1.0), PLAN.profile()),
    "profile fails": lambda: fail(errors.ConfigError, _core.Plan(SESSION, GRAPH).profile),
    "info": lambda: (SESSION.snapshot(), PLAN.info(), str(PLAN), PLAN.k, PLAN.unfinished),
    "predict": lambda: _core.predict(SESSION_DEVICE, GRAPH, n_slots=3),
    "predict fails": lambda: fail(TypeError, _core.predict, SESSION_DEVICE, KEY),
    "runner": lambda: (_core.Runner([(PLAN, 1)], 2).seek(0), _core.Runner([(PLAN, 1)]).close()),
    "check": check_step,
    "check fails": lambda: fail(errors.ConfigError, _core.Runner([(PLAN, 1)]).check, 0),
    "runner fails": lambda: fail(TypeError, _core.Runner, [(PLAN, 1), (KEY, 1)]),
    "nodes": lambda: (GRAPH.nodes(), GRAPH.leaves(), GRAPH.outputs(), str(GRAPH)),
    "looking": lambda: (GRAPH.shape(X), GRAPH.name(X), GRAPH.depends(X, [X]), GRAPH.verify()),
    "add fails": lambda: fail(errors.ConfigError, GRAPH.add, "relu", [X], **{KEY: DATA}),
    "attr fails": lambda: fail(errors.ConfigError, GRAPH.add, "sum", [X], axes=[KEY]),
    "id fails": lambda: fail(errors.ConfigError, GRAPH.add, "relu", [LARGE]),
    "op fails": lambda: fail(errors.ConfigError, GRAPH.add, KEY, [X]),
    "shape fails": lambda: fail(errors.ShapeError, GRAPH.clone().add, "matmul", [X, X]),
    "step fails": lambda: fail(
        errors.TraceError, GRAPH.training_step, [(X, None, 1.0)], [X], {KEY: DATA}
    ),
    "write": lambda: SESSION.write("a", DATA[:2].T),
    "write fails": lambda: fail(errors.ShapeError, SESSION.write, "a", DATA),
    "read": lambda: SESSION.read("a", "float16"),
    "stores": lambda: (SESSION.stores(), SESSION.control(), SESSION.control_log(0)),
    "control": lambda: SESSION.control_set(attempted=5, factor=[1.0, 2.0], nan_mode="stop"),
    "control fails": lambda: fail(errors.ConfigError, SESSION.control_set, **{KEY: DATA}),
    "next rows": lambda: (FEED.seek(0), FEED.next_rows(), FEED.next_rows()),
    "gather": lambda: _core.gather_rows(DATA[:, ::-1], ROWS, "float64"),
    "gather fails": lambda: fail(errors.DataError, _core.gather_rows, DATA, ROWS + 9, "float32"),
    "checks": lambda: (_core.check_finite(DATA.T), _core.check_range(ROWS[::-1], 0, 2)),
    "checks fail": lambda: fail(errors.DataError, _core.check_range, DATA, 0, 2),
    "draws": lambda: (_core.random_normal(1, KEY, 4, 0, 1), _core.permutation(1, KEY, 0, 4)),
    "table": lambda: (_core.op_table(), _core.build_info(), _core.cpu_info(), _core.backends()),
    "write_file fails": lambda: fail(TypeError, _core.write_file, "x", [DATA.tobytes(), KEY]),
}


def count_references() -> list[int]:
    gc.collect()
    watched = [*TYPES, _core, DATA, OTHER, ROWS, KEY, FEED, PLAN, GRAPH, SESSION, None, errors]
    return [sys.getrefcount(thing) for thing in watched]


def measure_blocks(case: Callable[[], Any]) -> int:
    """How many more blocks Python has after many rounds than before."""
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(ROUNDS):
        case()
    gc.collect()
    return sys.getallocatedblocks() - blocks


@pytest.mark.parametrize("name", CASES)
def test_no_reference_is_lost(name: str) -> None:
    """Not one reference and not one block of the core more (or less) after many rounds."""
    case = CASES[name]
    for _ in range(20):
        case()
    references, core = count_references(), _core.alloc_stats()
    # Python's own caches fill up once; a leak grows every time.
    assert min(measure_blocks(case) for _ in range(3)) < ROUNDS // 3
    drift = [after - before for before, after in zip(references, count_references())]
    # pytest's own bookkeeping holds None a few times more or less.
    assert max(abs(d) for d in drift) < ROUNDS // 10, drift
    now = _core.alloc_stats()
    assert (now["n_live"], now["current_bytes"]) == (core["n_live"], core["current_bytes"])
