"""The core under failure: every allocation fails once, hostile arguments, other interpreters."""

import copy
import os
import pickle
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hotloop import _core, errors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# ---------------------------------------------------------------------------- allocation faults


def build(g: _core.Graph) -> tuple[int, list[int]]:
    """A small net on g; its loss and parameters."""
    g.store("param", "float32", 18)
    x = g.input("x", "float32", (4, 3))
    weight = g.param("weight", "float32", (2, 3), "param", 0)
    bias = g.param("bias", "float32", (2,), "param", 16)
    (out,) = g.add("matmul", [x, weight, bias], trans_b=1)
    (out,) = g.add("relu", [out])
    (loss,) = g.add("sum", [out])
    return loss, [weight, bias]


def train_once() -> list[float]:
    """Every entry of the core that allocates, and what comes of it."""
    g = _core.Graph()
    loss, params = build(g)
    spec = {
        "rows": 4,
        "optimizer": "adam",
        "attrs": {},
        "segments": [(0, 18, 1.0, 0.0, 0)],
        "accumulate": True,
        "clip_norm": 1.0,
        "clip_value": None,
        "ema": 0.9,
        "ema_ramp": True,
        "scales_loss": True,
        "table": (1, 3),
    }
    g.clone().backward(loss, params)
    made = g.training_step([(loss, None, 1.0)], params, spec)
    g.output(made["loss"])
    str(g)
    session = _core.Session(_core.Device("cpu", n_threads=1))
    plan = _core.Plan(session, g, n_slots=2, k=2)
    session.write("param", np.linspace(-1, 1, 18))
    session.write("table", np.full(3, 0.01))
    plan.input(0, np.ones((4, 3)))
    plan.run(1, 10.0)
    str(plan)
    session.store("best", "float32", 18)
    session.copy("best", "param")
    feed = _core.Feed(9, 4, rows=np.arange(9), shuffle=True)
    feed.next_rows()
    return [float(plan.output(0)), *session.read("best", "float64").tolist()]


@pytest.mark.parametrize("sticky", [False, True])
def test_every_allocation_fails_once(sticky: bool) -> None:
    want = train_once()
    before = _core.alloc_stats()
    k = 0
    while True:
        k += 1
        got, text = None, "out of memory"
        _core.alloc_fault(k, sticky)
        try:
            got = train_once()
        except errors.OutOfMemoryError as error:
            text = error.args[0]
        finally:
            n_seen = _core.alloc_fault(0)
        assert "out of memory" in text
        after = _core.alloc_stats()
        assert (after["n_live"], after["current_bytes"]) == (
            before["n_live"],
            before["current_bytes"],
        ), f"allocation {k}"
        if n_seen < k:
            break
        assert got is None or got == want
    assert got == want
    assert k > 100


def test_alloc_stats() -> None:
    _core.alloc_peak_reset()
    before = _core.alloc_stats()
    session = _core.Session(_core.Device("ref"))
    session.store("a", "float32", 1 << 17)
    assert _core.alloc_stats()["current_bytes"] >= before["current_bytes"] + (1 << 20)
    del session
    after = _core.alloc_stats()
    assert after["current_bytes"] == before["current_bytes"]
    assert after["peak_bytes"] >= before["current_bytes"] + (1 << 20)
    with pytest.raises(errors.ConfigError):
        _core.alloc_fault(-1)
    with pytest.raises(TypeError):
        _core.alloc_fault(1, 1)


# ---------------------------------------------------------------------------- hostile arguments


class Liar:
    """Claims to be a number and is not."""

    def __index__(self) -> int:
        raise ZeroDivisionError

    def __float__(self) -> float:
        raise ZeroDivisionError


class Endless(list):  # type: ignore[type-arg]
    """A sequence whose items change the graph while they are read."""

    def __init__(self, graph: _core.Graph) -> None:
        super().__init__([0, 0])
        self.graph = graph

    def __iter__(self) -> Any:
        for _ in range(2):
            yield Grower(self.graph)


class Grower:
    """An index that grows the graph, and swaps it by a pass, when it is read."""

    def __init__(self, graph: _core.Graph) -> None:
        self.graph = graph

    def __index__(self) -> int:
        for _ in range(100):
            (y,) = self.graph.add("relu", [0])
        (total,) = self.graph.add("sum", [y])
        self.graph.backward(total, [0])
        return 0


def test_arguments_that_run_code() -> None:
    g = _core.Graph()
    x = g.input("x", "float32", (3,))
    for call in (
        lambda: g.add("relu", [Liar()]),
        lambda: g.shape(Liar()),
        lambda: g.number("float32", Liar()),
        lambda: g.input("y", "float32", (Liar(),)),
        lambda: g.add("cumsum", [x], axis=Liar()),
    ):
        with pytest.raises(ZeroDivisionError):
            call()
    assert g.shape(g.add("add", Endless(g))[0]) == (3,)
    assert g.depends(Grower(g), Endless(g)) == [True, True]
    g.output(Grower(g))
    g.verify()


SCRAPS: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    2**31,
    2**63,
    -(2**63),
    10**40,
    1.5,
    float("nan"),
    float("-inf"),
    "",
    "x",
    "float32",
    "a\0b",
    "\ud800",
    "x" * 5000,
    b"x",
    (),
    [],
    {},
    [0],
    [-1],
    (0, 0),
    (1, None, 1.0),
    [[0]],
    [2**40] * 9,
    {"rows": 1},
    object(),
    int,
    np.zeros(3),
    np.zeros((0, 2), np.float32),
    np.zeros(3, "O"),
    np.zeros(2, ">i2"),
    np.array("x"),
    np.int8(3),
    np.float64("nan"),
]


def make_targets() -> list[Callable[..., Any]]:
    """Every public callable of the core, bound to live objects where it is a method."""
    g = _core.Graph()
    g.store("param", "float32", 4)
    g.output(g.add("relu", [g.input("x", "float32", (2,))])[0])
    g.dataset("data", "float32", (2, 2))
    session = _core.Session(_core.Device("cpu", n_threads=1))
    session.store("a", "float32", 4)
    feed = _core.Feed(8, 2)
    objects = [g, session.__class__(_core.Device("ref")), session, feed, _core.Plan(session, g)]
    targets = [
        getattr(thing, name)
        for thing in objects
        for name in dir(thing)
        if not name.startswith("_") and callable(getattr(thing, name))
    ]
    skipped = {"alloc_fault", "write_file"}
    targets += [
        getattr(_core, name)
        for name in dir(_core)
        if not name.startswith("_") and name not in skipped and callable(getattr(_core, name))
    ]
    return targets


TARGETS = len(make_targets())


@settings(
    max_examples=int(os.environ.get("HOTLOOP_EXAMPLES", "1500")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    st.lists(
        st.tuples(
            st.integers(0, TARGETS - 1),
            st.lists(st.sampled_from(range(len(SCRAPS))), max_size=5),
            st.dictionaries(
                st.sampled_from(["axis", "dtype", "n", "shuffle", "attempted", "factor", "?"]),
                st.sampled_from(range(len(SCRAPS))),
                max_size=2,
            ),
        ),
        max_size=6,
    )
)
def test_any_arguments(calls: list[tuple[int, list[int], dict[str, int]]]) -> None:
    """Nothing but Python exceptions comes of any arguments, and the objects go on."""
    targets = make_targets()
    for target, args, kwargs in calls:
        given_args = [SCRAPS[i] for i in args]
        try:
            targets[target](*given_args, **{k: SCRAPS[i] for k, i in kwargs.items()})
        except (errors.HotloopError, TypeError, ValueError, MemoryError):
            continue


# ---------------------------------------------------------------------------- the module itself


def run_python(code: str) -> str:
    """The output of a script in a fresh process; what goes wrong there goes wrong here."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_again() -> None:
    """A second module of one interpreter works, and the first one's objects go on."""
    out = run_python("""
        import gc, sys
        import hotloop._core as first
        graph = first.Graph()
        for _ in range(3):
            del sys.modules["hotloop._core"]
            import hotloop._core as again
            assert again is not first and again.Graph is not first.Graph
            try:
                again.Plan(again.Session(again.Device("cpu")), graph)
            except TypeError as error:
                assert "Graph" in str(error)
            del again
            gc.collect()
        print(graph.input("x", "float32", ()))
    """)
    assert out == "0"


def test_exit_with_live_objects() -> None:
    """Objects that outlive the module's globals, in any state, at the end of the process."""
    out = run_python("""
        import sys, numpy as np
        from hotloop import _core
        g = _core.Graph()
        g.output(g.add("relu", [g.input("x", "float32", (2,))])[0])
        plan = _core.Plan(_core.Session(_core.Device("cpu")), g)
        plan.input(0, np.ones(2))
        plan.run()
        _core.gather_rows(np.ones((3, 2)), np.array([1]), "float32")
        sys.keep = (plan, g, _core)
        sys.modules["json"] = plan
        print("end")
    """)
    assert out == "end"


@pytest.mark.parametrize("legacy", [True, False])
def test_sub_interpreters_are_refused(legacy: bool) -> None:
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    pytest.importorskip(name, reason=f"this Python is not CPython, or was built without {name}")
    if legacy or sys.version_info < (3, 12):
        create = "subs.create('legacy')" if sys.version_info >= (3, 13) else "subs.create()"
        if sys.version_info[:2] == (3, 12):
            create = "subs.create(isolated=False)"
    else:
        create = "subs.create()"
    out = run_python(f"""
        import sys, tempfile, os
        import hotloop._core
        import {name} as subs
        path = os.path.join(tempfile.mkdtemp(), "answer")
        sub = {create}
        body = "import sys\\nsys.path[:] = %r\\ntry:\\n    import hotloop._core\\n" % sys.path
        body += "    text = 'imported'\\nexcept ImportError:\\n    text = 'refused'\\n"
        body += "open(%r, 'w').write(text)\\n" % path
        subs.run_string(sub, body)
        print(open(path).read())
        os.remove(path)
    """)
    assert out == "refused"


def test_free_threaded_python_is_refused() -> None:
    """Where the package lies on the path of such a Python: pip takes no wheel there."""
    out = run_python("""
        import sys
        sys.abiflags = "t"
        try:
            import hotloop
        except ImportError as error:
            print(error)
    """)
    assert "a Python with the GIL is needed, got a free-threaded one" in out


@pytest.mark.parametrize(
    "name", ["Graph", "Device", "Session", "Feed", "Plan", "Resident", "Runner"]
)
def test_objects_of_the_core_are_not_copied(name: str) -> None:
    """Neither pickled nor copied, and no type is made by them: each is a thing of its process."""
    device = _core.Device("null")
    plan = _core.Plan(_core.Session(device), _core.Graph())
    thing = {
        "Graph": _core.Graph,
        "Device": lambda: device,
        "Session": lambda: _core.Session(device),
        "Feed": lambda: _core.Feed(4, 2),
        "Plan": lambda: plan,
        "Resident": lambda: _core.Resident(device, np.ones(2)),
        "Runner": lambda: _core.Runner([(plan, 1)]),
    }[name]()
    for call in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=f"cannot pickle '.*{name}' object"):
            call(thing)
    with pytest.raises(TypeError, match="weak reference"):
        weakref.ref(thing)
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Sub", (type(thing),), {})


def test_after_a_fork() -> None:
    """A child of fork runs plans and gathers with threads of its own."""
    out = run_python("""
        import os, numpy as np
        from hotloop import _core
        g = _core.Graph()
        x = g.input("x", "float32", (2000, 300))
        w = g.const(np.eye(300, dtype=np.float32))
        g.output(g.add("matmul", [x, w])[0])
        plan = _core.Plan(_core.Session(_core.Device("cpu")), g)
        a = np.random.default_rng(0).standard_normal((2000, 300)).astype(np.float32)
        rows = np.arange(2000)[::-1].copy()
        def work():
            plan.input(0, a)
            plan.run(1, 10.0)
            assert np.allclose(plan.output(0), a)
            assert (_core.gather_rows(a, rows, "float32") == a[rows]).all()
        work()
        child = os.fork()
        if child == 0:
            try:
                work()
                os._exit(0)
            finally:
                os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        work()
    """)
    assert out == "0"


def test_a_fork_while_another_thread_gathers() -> None:
    """That thread has the lock of what gathers, and is not in the child to give it back."""
    out = run_python("""
        import os, signal, threading, numpy as np
        from hotloop import _core
        a, rows = np.ones((4000, 500), np.float32), np.arange(4000)
        done = threading.Event()
        def work():
            while not done.is_set():
                _core.gather_rows(a, rows, "float32")
        thread = threading.Thread(target=work)
        thread.start()
        ends = []
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                os._exit(int(_core.gather_rows(a, rows[:7], "float64").shape != (7, 500)))
            ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            if ends[-1]:
                break
        done.set()
        thread.join()
        print(set(ends))
    """)
    assert out == "{0}"


def test_build_info_and_log() -> None:
    info = _core.build_info()
    assert set(info) == {
        "compiler",
        "optimized",
        "assertions",
        "sanitizers",
        "instruction_sets",
        "python_abi",
        "cuda",
    }
    assert info["python_abi"] == 0x030B0000
    while (line := _core.log_take()) is not None:
        assert line[0] in ("debug", "info", "warning")
        assert line[1]
