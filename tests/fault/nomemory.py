"""Every allocation that the interpreter makes for the extension fails: ``nomemory.py``.

In a process of its own, for what goes wrong here kills it. For each entry and each n the n-th
allocation of the call fails by CPython's own hook; MemoryError (or a result) must come of it, and
the next call must give what an undisturbed one gives. Prints the number of points of each entry.
"""

import _testcapi
import faulthandler
import gc
import sys
from collections.abc import Callable
from typing import Any

import hotloop.errors  # so that no import runs while memory is out
import numpy as np
from hotloop import _core

X = np.arange(12, dtype=np.float32).reshape(4, 3)
ROWS = np.array([3, 1])
MAX_POINTS = 2000
ENOUGH = 12  # calls in a row that no failure reached


def build() -> _core.Graph:
    graph = _core.Graph()
    graph.store("w", "float32", 6)
    x, w = graph.input("x", "float32", (4, 3)), graph.param("w", "float32", (3, 2), "w", 0)
    (h,) = graph.add("matmul", [x, w])
    (p,) = graph.add("softmax", [h])
    (loss,) = graph.add("sum", [p], axes=[])
    graph.backward(loss, [w])
    graph.output(p)
    return graph


GRAPH = build()
SESSION = _core.Session(_core.Device("cpu"))
SESSION.store("w", "float32", 6)
PLAN = _core.Plan(SESSION, GRAPH)


def run() -> Any:
    PLAN.input(0, X)
    return PLAN.run(1, 10.0), PLAN.output(0).tobytes()


def refuse() -> str:
    try:
        GRAPH.add("matmul", [0, 0])
    except hotloop.errors.ShapeError as error:
        return str(error)
    raise AssertionError("accepted")


def feed_epoch() -> list[list[int]]:
    feed = _core.Feed(10, 3, shuffle=True)
    feed.seek(1)
    made = []
    while (rows := feed.next_rows()) is not None:
        made.append(rows.tolist())
    return made


def check() -> str:
    graph = _core.Graph()
    graph.output(graph.add("log", [graph.input("x", "float32", (2,))])[0])
    plan = _core.Plan(SESSION, graph, fuse=False, chain=False)
    plan.input(0, -np.ones(2, np.float32))
    return repr(_core.Runner([(plan, 1)]).check(1, True))


ENTRIES: dict[str, Callable[[], Any]] = {
    "graph": lambda: str(build()),
    "nodes": GRAPH.nodes,
    "leaves": GRAPH.leaves,
    "depends": lambda: GRAPH.depends(2, [0, 1]),
    "error": refuse,
    "session": lambda: (SESSION.stores(), SESSION.control(), SESSION.control_log(0)),
    "plan": lambda: str(_core.Plan(SESSION, GRAPH)),
    "info": PLAN.info,
    "run": run,
    "profile": lambda: (run(), len(PLAN.profile()[1])),
    "check": check,
    "feed": feed_epoch,
    "gather": lambda: _core.gather_rows(X, ROWS, "float64").tolist(),
    "scan": lambda: (_core.check_finite(X), _core.check_range(ROWS, 0, 2)),
    "random": lambda: _core.random_normal(1, "s", 3, 0.0, 1.0).tolist(),
    "tables": lambda: (_core.op_table(), _core.build_info(), _core.cpu_info(), _core.backends()),
    "survey": lambda: _core.survey("cuda", probe=False),
}


def fails_at(call: Callable[[], Any], n: int) -> bool | None:
    """Whether the call, whose n-th allocation fails, raised MemoryError; None: another error."""
    error: type[BaseException] | None = None
    _testcapi.set_nomemory(n, n + 1)
    try:
        call()
    except BaseException as caught:
        error = type(caught)
    _testcapi.remove_mem_hooks()
    if error is None:
        return False
    return True if issubclass(error, MemoryError) else None


def main() -> None:
    faulthandler.enable()
    for name, call in ENTRIES.items():
        expected = call()
        in_a_row = n = 0
        while in_a_row < ENOUGH and n < MAX_POINTS:
            n += 1
            found = fails_at(call, n)
            in_a_row = in_a_row + 1 if found is False else 0
            if found is None:
                sys.exit(f"{name}: allocation {n}: not MemoryError")
            if call() != expected:
                sys.exit(f"{name}: allocation {n}: the next call differs")
        gc.collect()
        print(name, n, flush=True)


if __name__ == "__main__":
    main()
