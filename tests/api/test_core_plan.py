"""The core's Plan from Python: data in and out, running, stopping, threads, who keeps whom."""

import gc
import itertools
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hotloop import _core, errors


def make_graph(batch: int = 4, n: int = 10, dtype: str = "float32") -> _core.Graph:
    """Rows of a dataset, times two; the running sum of row numbers in a store."""
    g = _core.Graph()
    g.store("seen", "int64", batch)
    rows = g.input("rows", "int64", (batch,))
    data = g.dataset("data", dtype, (n, 3))
    seen = g.state("seen", "int64", (batch,), "seen", 0)
    (x,) = g.add("batch_gather", [data, rows], dtype="float32")
    (y,) = g.add("mul", [x, g.number("float32", 2.0)])
    g.output(y)
    g.output(rows)
    g.accumulate(seen, rows)
    return g


def make_slow(steps: int = 40) -> _core.Graph:
    """A chain of matrix products that takes some milliseconds a step, with a barrier after each."""
    g = _core.Graph()
    x = g.input("x", "float32", (300, 300))
    w = g.const(np.eye(300, dtype=np.float32))
    for _ in range(steps):
        (x,) = g.add("matmul", [w, x])
    g.output(x)
    return g


def is_busy(session: _core.Session) -> bool:
    try:
        session.stores()
    except errors.BusyError:
        return True
    return False


@pytest.fixture(params=["cpu", "ref"])
def session(request: pytest.FixtureRequest) -> _core.Session:
    return _core.Session(_core.Device(request.param))


# ---------------------------------------------------------------------------- data


def test_dataset_and_input(session: _core.Session) -> None:
    plan = _core.Plan(session, make_graph())
    data = np.arange(30, dtype=np.float32).reshape(10, 3)
    with pytest.raises(errors.ConfigError, match="dataset"):
        plan.run()
    plan.dataset(0, data)
    plan.input(0, np.array([3, 1, 9, 9], np.int16)[::-1])
    assert plan.run() == ("done", 1)
    assert (plan.output(0) == 2 * data[[9, 9, 1, 3]]).all()
    assert plan.output(1).tolist() == [9, 9, 1, 3]
    assert plan.output(0, "float16").dtype == np.float16
    assert plan.output(0, "bfloat16").dtype == np.uint16
    assert plan.output(0).dtype == session_float(session)
    data[9] = 100.0
    plan.run()
    assert plan.output(0)[0].tolist() == [200.0] * 3
    plan.input(0, np.array([0, 0, 10, 0]))
    with pytest.raises(errors.DataError, match="10"):
        plan.run()
    plan.input(0, np.array([0, 0, 1, 0]))
    assert plan.run() == ("done", 1)


@pytest.mark.parametrize("dtype", ["float64", "float32", "uint8", "int16", "bool"])
@pytest.mark.parametrize("n_threads", [0, 2])
def test_fed_plans_give_the_same(session: _core.Session, dtype: str, n_threads: int) -> None:
    """Batches are gathered on the host, by the caller or by loader threads, or in the plan."""
    data = (np.arange(30).reshape(10, 3) * 7.3 % 5).astype(dtype)
    seen = []
    for fed in (False, True):
        plan = _core.Plan(session, make_graph(dtype=dtype), n_slots=3, fed=fed)
        feed = _core.Feed(10, 4, shuffle=True, n_slots=3, n_threads=n_threads)
        assert feed.n_slots == 3
        plan.dataset(0, data)
        plan.feed(feed)
        for epoch in range(3):
            feed.seek(epoch)
            while plan.run(1, 1e9) == ("done", 1):
                seen.append((plan.output(0).tolist(), plan.output(1).tolist()))
        plan.close()
    half = len(seen) // 2
    assert half == 6
    assert seen[:half] == seen[half:]
    assert seen[0][0] == (2.0 * data[seen[0][1]].astype(session_float(session))).tolist()


@pytest.mark.parametrize("shape", [(10, 3), (10,), (10, 2, 2), (10, 0)], ids=str)
@pytest.mark.parametrize("fed", [False, True])
def test_windows_are_fed_like_rows(
    session: _core.Session, shape: tuple[int, ...], fed: bool
) -> None:
    data = np.random.default_rng(0).integers(0, 200, shape).astype(np.uint8)
    graph = _core.Graph()
    index = graph.input("rows", "int64", (2,))
    source = graph.dataset("data", "uint8", shape)
    graph.output(graph.add("batch_gather", [source, index], dtype="float32", window=4)[0])
    plan = _core.Plan(session, graph, fed=fed)
    plan.dataset(0, data)
    feed = _core.Feed(7 if data.size else 6, 2)
    plan.feed(feed)
    feed.seek(0)
    for first in (0, 2, 4):
        plan.run()
        assert (plan.output(0) == [data[i : i + 4] for i in (first, first + 1)]).all()
    if data.size:
        wrong = _core.Feed(8, 2)
        plan.feed(wrong)
        wrong.seek(0, 3)
        with pytest.raises(errors.DataError, match=r"must be at least 0 and below 7.*got 7"):
            plan.run()


def test_closing_ends_loaders(session: _core.Session) -> None:
    """In the middle of an epoch, while they fill slots ahead; the feed serves another plan then."""
    data = np.zeros((1000, 3), np.float32)
    feed = _core.Feed(1000, 4, n_slots=8, n_threads=3)
    for _ in range(20):
        plan = _core.Plan(session, make_graph(n=1000), n_slots=8, fed=True)
        plan.dataset(0, data)
        plan.feed(feed)
        feed.seek(0)
        assert plan.run(2, 1e9) == ("done", 2)
        plan.close()


def test_a_fed_plan_sees_what_it_is_given(session: _core.Session) -> None:
    data = np.arange(30, dtype=np.float32).reshape(10, 3)
    plan = _core.Plan(session, make_graph(batch=5), fed=True)
    feed = _core.Feed(10, 5)
    plan.feed(feed)
    with pytest.raises(errors.ConfigError, match="dataset 0 must be set before a run"):
        plan.run()
    plan.dataset(0, data)
    feed.seek(0)
    plan.run()
    data[5:] = 1.0
    plan.run()
    assert plan.output(0).tolist() == [[2.0] * 3] * 5
    wrong = _core.Feed(20, 5)
    plan.feed(wrong)
    wrong.seek(0, 2)
    with pytest.raises(errors.DataError, match="dataset data must be at least 0 and below 10"):
        plan.run()


def test_resident_arrays_are_shared_and_kept() -> None:
    device = _core.Device("cpu")
    session = _core.Session(device)
    data = np.arange(30, dtype=np.float32).reshape(10, 3)
    resident = _core.Resident(device, data)
    plans = [_core.Plan(session, make_graph()) for _ in range(2)]
    for plan in plans:
        plan.dataset(0, resident)
    expected = 2 * data[:4]
    data[:] = 0.0
    del resident
    for plan in plans:
        plan.input(0, np.arange(4))
        plan.run()
        assert (plan.output(0) == expected).all()
    with pytest.raises(errors.ShapeError, match="must be float32"):
        plans[0].dataset(0, _core.Resident(device, data[:5]))
    with pytest.raises(errors.ConfigError, match="must be resident on the plan's device"):
        plans[0].dataset(0, _core.Resident(_core.Device("cpu"), data))
    with pytest.raises(errors.ConfigError, match="not fed"):
        _core.Plan(session, make_graph(), fed=True).dataset(0, _core.Resident(device, data))


def test_a_plan_may_go_while_another_runs() -> None:
    """Its memory is given back when the call that uses the session leaves."""
    session = _core.Session(_core.Device("cpu"))
    gone, running = (_core.Plan(session, make_graph()) for _ in range(2))
    data = np.zeros((10, 3), np.float32)
    for plan in (gone, running):
        plan.dataset(0, data)
        plan.input(0, np.zeros(4, np.int64))
    feed = _core.Feed(10, 4)
    gone.feed(feed)
    runner = _core.Runner([(gone, 1)])
    thread = threading.Thread(target=lambda: running.run(10**9, 1e9))
    thread.start()
    try:
        while not is_busy(session):
            time.sleep(0.01)
        del gone, plan, runner
        gc.collect()
        with pytest.raises(errors.BusyError, match="another plan has"):
            running.feed(feed)
    finally:
        running.stop()
        thread.join()
    running.feed(feed)
    running.close()
    session.close()


def test_closing_gives_memory_back() -> None:
    session = _core.Session(_core.Device("cpu"))
    gc.collect()
    before = _core.alloc_stats()["n_live"]
    plan = _core.Plan(session, make_graph())
    with pytest.raises(errors.BusyError, match="got 1 open"):
        session.close()
    plan.close()
    plan.close()
    session.close()
    session.close()
    for call in (plan.run, plan.info, plan.abandon, lambda: str(plan)):
        with pytest.raises(errors.HotloopError, match="the plan must be open, got a closed one"):
            call()
    for call in (session.stores, session.control, lambda: _core.Plan(session, make_graph())):
        with pytest.raises(errors.ConfigError, match="the session must be open"):
            call()
    assert _core.alloc_stats()["n_live"] <= before, "but for what describes the plan's operands"


def test_snapshot(session: _core.Session) -> None:
    plan = _core.Plan(session, make_graph())
    assert session.snapshot()["attempted"] == 0
    plan.dataset(0, np.zeros((10, 3), np.float32))
    session.control_set(attempted=7, loss_scale=4.0)
    plan.run()
    assert session.snapshot() == session.control()


def session_float(session: _core.Session) -> np.dtype[Any]:
    """What floats are computed in: the device keeps that to itself, the store tells."""
    session.store("probe", "float32", 1)
    return np.dtype(session.stores()["probe"][0])


def test_bfloat16_input() -> None:
    g = _core.Graph()
    x = g.input("x", "bfloat16", (2,))
    (y,) = g.add("cast", [x], dtype="float32")
    g.output(y)
    plan = _core.Plan(_core.Session(_core.Device("cpu")), g)
    plan.input(0, np.array([0x3F80, 0xC000], np.uint16))
    plan.run()
    assert plan.output(0).tolist() == [1.0, -2.0]


def test_feed(session: _core.Session) -> None:
    plan = _core.Plan(session, make_graph())
    data = np.arange(30, dtype=np.float32).reshape(10, 3)
    plan.dataset(0, data)
    feed = _core.Feed(10, 4, shuffle=True, seed=1)
    plan.feed(feed)
    order = _core.permutation(1, "shuffle", 5, 10)
    feed.seek(5)
    assert plan.run(1, 60.0) == ("done", 1)
    assert plan.output(1).tolist() == order[:4].tolist()
    assert plan.run(5, 10.0) == ("feed_end", 1)
    assert (plan.output(0) == 2 * data[order[4:8]]).all()
    assert session.read("seen", "int64").tolist() == (order[:4] + order[4:8]).tolist()
    assert plan.run() == ("feed_end", 0)
    with pytest.raises(errors.ConfigError, match="plan"):
        feed.next_rows()
    other = _core.Plan(session, make_graph())
    with pytest.raises(errors.BusyError):
        other.feed(feed)
    plan.feed(None)
    feed.seek(5, 1)
    rows = feed.next_rows()
    assert rows is not None
    assert rows.tolist() == order[4:8].tolist()
    other.feed(feed)
    other.feed(feed)
    del other
    gc.collect()
    plan.feed(feed)
    with pytest.raises(errors.ShapeError):
        plan.feed(_core.Feed(10, 5))
    assert plan.k == 1
    plan.k = 2
    assert plan.k == 2


def test_a_window_of_k(session: _core.Session) -> None:
    """A step takes k batches; an epoch that ends inside the window cuts it short."""
    plan = _core.Plan(session, make_graph(2), k=3)
    plan.dataset(0, np.zeros((10, 3), np.float32))
    feed = _core.Feed(10, 2)
    plan.feed(feed)
    assert plan.run(9, 10.0) == ("feed_end", 2)
    assert session.read("seen", "int64").tolist() == [20, 25]


def test_refuses(session: _core.Session) -> None:
    g = make_graph()
    plan = _core.Plan(session, g)
    data = np.zeros((10, 3), np.float32)
    frozen = data.copy()
    frozen.flags.writeable = False
    plan.dataset(0, frozen)
    wrong: list[tuple[type[Exception], Any]] = [
        (TypeError, lambda: _core.Plan(session)),
        (TypeError, lambda: _core.Plan(g, session)),
        (TypeError, lambda: _core.Plan(session, g, 1)),
        (TypeError, lambda: _core.Plan(session, g, fuse=1)),
        (TypeError, lambda: _core.Plan(session, g, deterministic=1)),
        (errors.ConfigError, lambda: _core.Plan(session, g, n_slots=0)),
        (errors.ConfigError, lambda: _core.Plan(session, g, n_slots=2**40)),
        (errors.ConfigError, lambda: _core.Plan(session, g, k=0)),
        (errors.ConfigError, lambda: plan.dataset(1, data)),
        (errors.ConfigError, lambda: plan.dataset(-1, data)),
        (errors.ShapeError, lambda: plan.dataset(0, data[:9])),
        (errors.ShapeError, lambda: plan.dataset(0, data.astype(np.float64))),
        (errors.DataError, lambda: plan.dataset(0, np.asfortranarray(data))),
        (errors.DataError, lambda: plan.dataset(0, data.astype(">f4"))),
        (errors.DataError, lambda: plan.dataset(0, np.zeros((20, 3), np.float32)[::2])),
        (TypeError, lambda: plan.dataset(0, data.tolist())),
        (errors.ConfigError, lambda: plan.input(1, data)),
        (errors.ConfigError, lambda: plan.input(2**40, data)),
        (errors.ShapeError, lambda: plan.input(0, np.zeros(5, int))),
        (errors.ShapeError, lambda: plan.input(0, np.zeros((4, 1), int))),
        (errors.DataError, lambda: plan.input(0, np.zeros(4))),
        (errors.DataError, lambda: plan.input(0, np.zeros(4, np.uint64))),
        (errors.ConfigError, lambda: plan.output(2)),
        (errors.ConfigError, lambda: plan.output(-1)),
        (errors.ConfigError, lambda: plan.output(0, "float8")),
        (TypeError, lambda: plan.output(0, np.float32)),
        (TypeError, lambda: plan.feed(1)),
        (errors.ConfigError, lambda: plan.run(-1)),
        (errors.ConfigError, lambda: plan.run(2**63)),
        (errors.ConfigError, lambda: plan.run(1, float("nan"))),
        (TypeError, lambda: plan.run("1")),
        (TypeError, lambda: plan.run(n_steps=1)),
        (errors.ConfigError, lambda: setattr(plan, "k", 0)),
        (AttributeError, lambda: delattr(plan, "k")),
        (AttributeError, lambda: setattr(plan, "other", 0)),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()
    assert plan.run(1, 60.0) == ("done", 1)
    assert plan.run(0) == ("done", 0)


def test_info_and_text(session: _core.Session) -> None:
    plan = _core.Plan(session, make_graph())
    info = plan.info()
    assert set(info) == {
        "arena_bytes",
        "slot_bytes",
        "staging_bytes",
        "const_bytes",
        "store_bytes",
        "n_nodes",
        "n_instructions",
        "n_chains",
        "n_regions",
        "n_kernels",
        "n_path_kernels",
        "n_to_autotune",
        "n_saved",
        "n_recomputed",
        "n_recompute_choices",
        "recomputed_flops",
        "step_flops",
        "large_flops",
        "path_flops",
        "flops",
    }
    assert info["n_instructions"] >= info["n_kernels"] >= info["n_path_kernels"] > 0
    assert info["path_flops"] <= info["flops"]
    assert info["n_recomputed"] == info["recomputed_flops"] == 0
    assert "batch_gather" in str(plan)


@pytest.mark.parametrize("n_slots", [1, 5])
def test_a_prediction_is_what_a_plan_is(n_slots: int) -> None:
    device = _core.Device("cpu")
    before = _core.alloc_stats()
    _core.alloc_peak_reset()
    predicted = _core.predict(device, make_graph(), n_slots=n_slots, fuse=False)
    stats = _core.alloc_stats()
    assert stats["n_live"] <= before["n_live"]
    plan = _core.Plan(_core.Session(device), make_graph(), n_slots=n_slots, fuse=False)
    assert predicted.pop("text") == str(plan)
    assert predicted == plan.info()
    for wrong in (lambda: _core.predict(device, 3), lambda: _core.predict(3, make_graph())):
        with pytest.raises(TypeError, match="must be a"):
            wrong()
    with pytest.raises(errors.ConfigError, match="n_slots"):
        _core.predict(device, make_graph(), n_slots=0)
    for share in (-0.1, 1.01, float("nan")):
        with pytest.raises(errors.ConfigError, match="recompute: must be a share, 0 to 1"):
            _core.predict(device, make_graph(), recompute=share)


def test_options_give_the_same_numbers() -> None:
    data = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
    results = []
    for fuse, chain, n_slots in itertools.product([True, False], [True, False], [1, 3]):
        session = _core.Session(_core.Device("cpu"))
        plan = _core.Plan(session, make_graph(), n_slots=n_slots, fuse=fuse, chain=chain)
        plan.dataset(0, data)
        plan.feed(_core.Feed(10, 4, shuffle=True))
        plan.run(2, 10.0)
        results.append(plan.output(0).tobytes())
    assert len(set(results)) == 1


# ---------------------------------------------------------------------------- not finite


def test_check(session: _core.Session) -> None:
    """What one node makes of another's infinity; nothing where nobody asks for everything."""
    graph = _core.Graph()
    x = graph.input("x", "float32", (2, 3))
    graph.scope("body")
    (raised,) = graph.add("exp", [x])
    graph.scope(None)
    graph.output(graph.add("sub", [raised, raised])[0])
    plan = _core.Plan(session, graph, fuse=False, chain=False)
    plan.input(0, np.array([[0, 1, 2], [3, 4e4, 5]], np.float32))
    runner = _core.Runner([(plan, 3)])
    before = session.control()
    assert runner.check(1) is None
    found = runner.check(1, True)
    assert session.control() == before
    assert found is not None
    assert found["what"] == "value"
    assert found["first"] == {
        "kind": "result",
        "op": "exp",
        "scope": "body",
        "name": None,
        "gradient_of": None,
        "is_update": False,
        "reads_infinity": False,
        "dtype": found["first"]["dtype"],
        "shape": (2, 3),
        "n_nan": 0,
        "n_infinite": 1,
        "first": 4,
        "row": -1,
    }
    nan = found["nan"]
    assert (nan["op"], nan["scope"], nan["n_nan"], nan["reads_infinity"]) == ("sub", None, 1, True)
    plan.input(0, np.full((2, 3), np.nan))
    assert runner.check(1, True) is None  # it is the caller's
    for wrong in (0, -1, 1 << 70):
        with pytest.raises(errors.ConfigError, match="step: must"):
            runner.check(wrong)


# ---------------------------------------------------------------------------- several plans


def make_runner(session: _core.Session, k: int = 1) -> tuple[_core.Runner, list[_core.Plan]]:
    """Two batches of four rows, then one of two: a seen batch adds up row numbers of its size."""
    data = np.arange(30, dtype=np.float32).reshape(10, 3)
    plans = []
    for batch, first, count in ((4, 0, 8), (2, 8, 2)):
        graph = _core.Graph()
        store = f"seen{batch}"
        graph.store(store, "int64", batch)
        rows = graph.input("rows", "int64", (batch,))
        source = graph.dataset("data", "float32", (10, 3))
        graph.output(graph.add("batch_gather", [source, rows], dtype="float32")[0])
        graph.accumulate(graph.state(store, "int64", (batch,), store, 0), rows)
        plan = _core.Plan(session, graph)
        plan.dataset(0, data)
        plan.feed(_core.Feed(10, batch, first=first, count=count))
        plans.append(plan)
    return _core.Runner([(plans[0], 2), (plans[1], 1)], k), plans


def test_runner(session: _core.Session) -> None:
    runner, plans = make_runner(session)
    runner.seek(0)
    assert runner.run(2, 10.0) == ("done", 2, 2)
    assert runner.run(5, 10.0) == ("feed_end", 1, 1)
    assert runner.run(5, 10.0) == ("feed_end", 0, 0)
    assert session.read("seen4", "int64").tolist() == [4, 6, 8, 10]
    assert session.read("seen2", "int64").tolist() == [8, 9]
    assert plans[1].output(0)[0, 0] == 24.0
    with pytest.raises(errors.ConfigError, match="before another plan"):
        plans[0].output(0)
    runner.seek(1, 2)
    assert runner.run(5, 10.0) == ("feed_end", 1, 1)
    assert session.read("seen2", "int64").tolist() == [16, 18]
    runner.seek(2, 3)
    assert runner.run(1, 10.0) == ("feed_end", 0, 0)
    assert not runner.unfinished
    runner.stop()
    assert runner.run(1, 10.0) == ("asked", 0, 0)
    two, _ = make_runner(session, 2)
    two.seek(0)
    assert two.run(5, 10.0) == ("feed_end", 2, 3)


def test_runner_takes_another_order(session: _core.Session) -> None:
    runner, _ = make_runner(session)
    runner.seek(0, 0, [(1, 1), (0, 1), (1, 0), (0, 1)])
    assert runner.run(1, 10.0) == ("done", 1, 1)
    assert session.read("seen2", "int64").tolist() == [8, 9]
    assert runner.run(1, 10.0) == ("done", 1, 1)
    assert session.read("seen4", "int64").tolist() == [0, 1, 2, 3]
    assert runner.run(5, 10.0) == ("feed_end", 1, 1)
    runner.seek(1, 2)  # the order stays
    assert runner.run(5, 10.0) == ("feed_end", 1, 1)
    assert session.read("seen2", "int64").tolist() == [8, 9]
    for bad, text in (
        ([], "must have an entry"),
        ([(2, 1)], "order"),
        ([(-1, 1)], "order"),
        ([(0, -1)], "n"),
        ([(0,)], r"\(i, n\)"),
        ([(0, 2**62), (1, 2**62)], "63 bits"),
    ):
        with pytest.raises(errors.ConfigError, match=text):
            runner.seek(0, 0, bad)
    with pytest.raises(TypeError):
        runner.seek(0, 0, 5)  # type: ignore[arg-type]
    runner.seek(0, 0, [(1, 1)])
    assert runner.run(5, 10.0) == ("feed_end", 1, 1)


def test_runner_is_closed_before_its_session(session: _core.Session) -> None:
    runner, plans = make_runner(session)
    for plan in plans:
        plan.close()
    with pytest.raises(errors.BusyError, match="plans must be closed first"):
        session.close()
    for call in (runner.run, lambda: runner.seek(0), runner.abandon, lambda: runner.unfinished):
        with pytest.raises(errors.HotloopError, match="the plan must be open"):
            call()
    runner.close()
    runner.close()
    with pytest.raises(errors.HotloopError, match="the runner must be open"):
        runner.run()
    session.close()


def test_runner_refuses(session: _core.Session) -> None:
    _, plans = make_runner(session)
    other = _core.Plan(_core.Session(_core.Device("cpu")), make_graph())
    wrong: list[tuple[type[Exception], str, Any]] = [
        (errors.ConfigError, "must have an entry", []),
        (errors.ConfigError, r"\(plan, n\)", [(plans[0],)]),
        (TypeError, "must be a Plan", [(session, 1)]),
        (errors.ConfigError, "n", [(plans[0], -1)]),
        (errors.ConfigError, "of one model", [(plans[0], 1), (other, 1)]),
        (TypeError, "order", 3),
    ]
    for kind, text, order in wrong:
        with pytest.raises(kind, match=text):
            _core.Runner(order)
    with pytest.raises(errors.ConfigError, match="k"):
        _core.Runner([(plans[0], 1)], 0)
    runner = _core.Runner([(plans[0], 3)])
    for bad in (4, -1):
        with pytest.raises(errors.ConfigError):
            runner.seek(0, bad)
    with pytest.raises(errors.ConfigError, match="a feed must have the batches"):
        runner.run(9, 10.0)


# ---------------------------------------------------------------------------- running


def test_deadline_and_going_on() -> None:
    plan = _core.Plan(_core.Session(_core.Device("cpu")), make_slow())
    x = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32)
    plan.input(0, x)
    assert plan.run(1, 0.0) == ("deadline", 0)
    assert plan.unfinished
    calls = 1
    while plan.run(1, 0.0) != ("done", 1):
        calls += 1
        assert calls < 1000
    assert calls > 3
    assert not plan.unfinished
    np.testing.assert_allclose(plan.output(0), x, rtol=1e-6)
    assert plan.run(1, 0.0)[0] == "deadline"
    plan.abandon()
    assert not plan.unfinished
    assert plan.run(2, float("inf")) == ("done", 2)


def test_two_models_run_side_by_side_on_one_device() -> None:
    device = _core.Device("cpu", n_threads=2)
    plans = [_core.Plan(_core.Session(device), make_slow(4)) for _ in range(2)]
    x = np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
    for i, plan in enumerate(plans):
        plan.input(0, x + i)
    ends = [run_in_thread(lambda plan=plan: plan.run(20, 60.0)) for plan in plans]
    for i, (plan, (thread, result)) in enumerate(zip(plans, ends)):
        thread.join(60)
        assert result == [("done", 20)]
        assert (plan.output(0) == x + i).all()


def run_in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Starts a call on another thread; its result or exception ends up in the list."""
    result: list[Any] = []

    def work() -> None:
        try:
            result.append(call())
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, result


def test_stop_and_busy() -> None:
    session = _core.Session(_core.Device("cpu"))
    session.store("a", "float32", 4)
    plan, other = _core.Plan(session, make_slow()), _core.Plan(session, make_graph())
    feed = _core.Feed(10, 4)
    other.feed(feed)
    other.dataset(0, np.zeros((10, 3), np.float32))
    runner = _core.Runner([(other, 1)])
    plan.stop()
    assert plan.run() == ("asked", 0)
    thread, result = run_in_thread(lambda: plan.run(10**9, float("inf")))
    time.sleep(0.05)
    calls: list[Callable[[], Any]] = [
        plan.run,
        other.run,
        lambda: plan.output(0),
        lambda: plan.input(0, np.zeros((300, 300))),
        session.snapshot,
        runner.run,
        lambda: runner.seek(0),
        lambda: runner.unfinished,
        runner.abandon,
        runner.close,
        plan.abandon,
        plan.info,
        lambda: str(plan),
        lambda: plan.unfinished,
        lambda: setattr(plan, "k", 2),
        lambda: other.dataset(0, np.zeros((10, 3), np.float32)),
        lambda: other.feed(None),
        lambda: feed.seek(0),
        lambda: session.read("a", "float32"),
        lambda: session.write("a", np.zeros(4)),
        lambda: session.store("b", "float32", 4),
        lambda: session.copy("a", "a"),
        session.stores,
        session.control,
        lambda: session.control_set(attempted=1),
        lambda: session.control_log(0),
        lambda: _core.Plan(session, make_graph()),
    ]
    for call in calls:
        with pytest.raises(errors.BusyError):
            call()
    began = time.monotonic()
    plan.stop()
    thread.join(10)
    assert time.monotonic() - began < 1
    assert result[0][0] == "asked"
    assert plan.run(1, float("inf"))[0] == "done"


def test_runs_without_the_gil() -> None:
    """Python goes on counting while a plan runs."""
    plan = _core.Plan(_core.Session(_core.Device("cpu", n_threads=1)), make_slow())
    thread, _ = run_in_thread(lambda: plan.run(10**9, 0.3))
    time.sleep(0.05)
    count, end = 0, time.monotonic() + 0.1
    while time.monotonic() < end:
        count += 1
    assert thread.is_alive()
    assert count > 1000
    thread.join(10)


def test_signals_are_seen() -> None:
    plan = _core.Plan(_core.Session(_core.Device("cpu")), make_slow())

    def handle(number: int, frame: Any) -> None:
        plan.stop()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handle)
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            plan.run(10**9, 0.2)
        assert time.monotonic() - began < 1
    finally:
        signal.signal(signal.SIGALRM, before)
    plan.run(0)
    assert plan.run(1, 10.0) == ("done", 1) or plan.run(1, 10.0) == ("done", 1)


# ---------------------------------------------------------------------------- lives


class Tagged(np.ndarray):
    """An array with attributes: it can be part of a cycle."""

    held: Any


def make_parts() -> dict[str, Any]:
    device = _core.Device("cpu")
    session = _core.Session(device)
    graph = make_graph()
    plan = _core.Plan(session, graph)
    feed = _core.Feed(10, 4, shuffle=True)
    data = np.zeros((10, 3), np.float32)
    plan.dataset(0, data)
    plan.feed(feed)
    return {
        "device": device,
        "session": session,
        "graph": graph,
        "plan": plan,
        "feed": feed,
        "data": data,
    }


@pytest.mark.parametrize("kept", ["plan", "feed", "session"])
def test_any_order_of_deletion(kept: str) -> None:
    gc.collect()
    before = _core.alloc_stats()
    for order in itertools.permutations(["device", "session", "graph", "plan", "feed"]):
        parts = make_parts()
        del parts["data"]
        for name in order:
            if name != kept:
                del parts[name]
        if kept == "plan":
            assert parts["plan"].run(2, 10.0) == ("done", 2)
        elif kept == "feed":
            assert parts["feed"].next_rows().shape == (4,)
        else:
            assert parts["session"].read("seen", "int64").shape == (4,)
        parts.clear()
    gc.collect()
    after = _core.alloc_stats()
    assert (after["n_live"], after["current_bytes"]) == (before["n_live"], before["current_bytes"])


def test_sources_are_kept_and_let_go() -> None:
    plan = _core.Plan(_core.Session(_core.Device("cpu")), make_graph())
    first = np.zeros((10, 3), np.float32).view(Tagged)
    second = first.copy().view(Tagged)
    alive = weakref.ref(first)
    plan.dataset(0, first)
    del first
    gc.collect()
    assert alive() is not None
    plan.dataset(0, second)
    assert alive() is None


def test_cycles_are_collected() -> None:
    gc.collect()
    before = _core.alloc_stats()["n_live"]
    parts = make_parts()
    data = np.zeros((10, 3), np.float32).view(Tagged)
    parts["plan"].dataset(0, data)
    data.held = parts
    alive = weakref.ref(data)
    del parts, data
    gc.collect()
    assert alive() is None
    assert _core.alloc_stats()["n_live"] == before


def test_a_plan_that_the_collector_closed() -> None:
    """The collector may close a plan while the last of its cycle still looks at it."""
    seen: list[Any] = []

    class Last:
        def __init__(self, parts: dict[str, Any]) -> None:
            self.parts = parts

        def __del__(self) -> None:
            seen.append(self.parts["plan"])

    parts = make_parts()
    data = np.zeros((10, 3), np.float32).view(Tagged)
    parts["plan"].dataset(0, data)
    data.held = Last(parts)
    del parts, data
    gc.collect()
    assert len(seen) == 1
    assert seen[0].run(1, 10.0) == ("done", 1)
