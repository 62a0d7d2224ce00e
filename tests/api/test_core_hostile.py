"""Objects that run code while the core converts them: they empty what holds them, change the graph,
close plans, lie about their length, raise. Every call ends with a result or with an exception that
says why (a SystemError would be a NULL without one), and the objects go on. Under the address
sanitizer (make sanitize-python) these are the tests of borrowed references and pointers."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hotloop import _core, errors

# ---------------------------------------------------------------------------- hostile containers


class Number:
    """A number that does something whenever it is asked what it is."""

    def __init__(self, value: float, act: Callable[[], object]) -> None:
        self.value, self.act = value, act

    def __index__(self) -> int:
        self.act()
        gc.collect()
        return int(self.value)

    def __float__(self) -> float:
        self.act()
        gc.collect()
        return float(self.value)


class Shrinking(list[Any]):
    """A list that is empty as soon as one of its items was taken."""

    def __iter__(self) -> Iterator[Any]:
        while self:
            first = self[0]
            rest = self[1:]
            self.clear()
            yield first
            self.extend(rest)


class OldSequence:
    """The protocol of __getitem__, with a length that is not true."""

    def __init__(self, items: list[Any], length: int) -> None:
        self.items, self.length = items, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Raising(list[Any]):
    """A list in which one method raises."""

    def __iter__(self) -> Iterator[Any]:
        yield from self[:1]
        raise ZeroDivisionError


class RaisingLength(OldSequence):
    def __len__(self) -> int:
        raise ZeroDivisionError


def make_emptier(items: list[Any]) -> list[Any]:
    """Numbers that empty the list in which they stand."""
    made: list[Any] = []
    made.extend(
        Number(item, made.clear) if isinstance(item, int | float) else item for item in items
    )
    return made


HARMLESS: dict[str, Callable[[list[Any]], Any]] = {
    "empties itself": make_emptier,
    "shrinks": Shrinking,
    "claims to be long": lambda items: OldSequence(items, 1000),
    "claims to be empty": lambda items: OldSequence(items, 0),
    "an array": np.array,
}
HARMFUL: dict[str, Callable[[list[Any]], Any]] = {
    "raises": Raising,
    "raises when asked for its length": lambda items: RaisingLength(items, 1),
    "holds what raises": lambda items: [Number(item, lambda: 1 // 0) for item in items],
}


class Core:
    """A graph, a session and a plan, and every entry that takes a container."""

    def __init__(self) -> None:
        g = self.graph = _core.Graph()
        g.store("param", "float32", 6)
        self.x = g.input("x", "float32", (2, 3))
        self.weight = g.param("weight", "float32", (2, 3), "param", 0)
        (product,) = g.add("mul", [self.x, self.weight])
        (self.loss,) = g.add("sum", [product])
        self.session = _core.Session(_core.Device("cpu", n_threads=1))
        small = _core.Graph()
        small.output(small.add("neg", [small.input("x", "float32", (2,))])[0])
        self.plan = _core.Plan(self.session, small)

    def spec(self, **change: Any) -> dict[Any, Any]:
        return {
            "rows": 2,
            "optimizer": "adam",
            "attrs": {"beta1": 0.5, "beta2": 0.75},
            "segments": [(0, 6, 1.0, 0.0, 0)],
            "accumulate": False,
            "clip_norm": None,
            "clip_value": None,
            "ema": None,
            "ema_ramp": False,
            "table": (1, 3),
            "scales_loss": False,
        } | change

    def step(self, spec: dict[Any, Any]) -> Any:
        return self.graph.training_step([(self.loss, None, 1.0)], [self.weight], spec)

    def entries(self) -> dict[str, tuple[list[Any], Callable[[Any], Any]]]:
        """By name: what a harmless container holds, and the call that takes it."""
        g, x, w, loss = self.graph, self.x, self.weight, self.loss
        return {
            "inputs": ([x, w], lambda items: g.add("add", items)),
            "ints": ([0, 1], lambda items: g.add("sum", [x], axes=items)),
            "shape of an input": ([2, 3], lambda items: g.input("y", "float32", items)),
            "shape of a dataset": ([2, 3], lambda items: g.dataset("d", "float32", items)),
            "shape of a param": ([2, 3], lambda items: g.param("p", "float32", items, "param", 0)),
            "shape of a state": ([2, 3], lambda items: g.state("s", "float32", items, "param", 0)),
            "wrt": ([x, w], lambda items: g.backward(loss, items)),
            "leaves": ([x, w], lambda items: g.depends(loss, items)),
            "params": ([w], lambda items: g.training_step([(loss, None, 1)], items, self.spec())),
            "terms": ([(loss, None, 1)], lambda items: g.training_step(items, [w], self.spec())),
            "term": ([loss, loss, 1], lambda items: g.training_step([items], [w], self.spec())),
            "segments": ([(0, 6, 1, 0, 0)], lambda items: self.step(self.spec(segments=items))),
            "segment": ([0, 6, 1, 0, 0], lambda items: self.step(self.spec(segments=[items]))),
            "table": ([1, 3], lambda items: self.step(self.spec(table=items))),
            "factor": ([1.0, 2.0], lambda items: self.session.control_set(factor=items)),
            "order": ([(self.plan, 1)], lambda items: _core.Runner(items)),
            "entry of an order": ([self.plan, 1], lambda items: _core.Runner([items])),
        }

    def check(self) -> None:
        """All of it still works."""
        self.graph.verify()
        self.graph.nodes()
        assert self.graph.add("neg", [self.x])
        self.plan.input(0, np.ones(2))
        assert self.plan.run() == ("done", 1)
        assert self.plan.output(0).tolist() == [-1.0, -1.0]


ENTRIES = Core().entries()
OF_NUMBERS = [
    name for name in ENTRIES if all(isinstance(item, int | float) for item in ENTRIES[name][0])
]


@pytest.mark.parametrize(
    ("entry", "kind"),
    [(e, kind) for e in ENTRIES for kind in HARMLESS if kind != "an array" or e in OF_NUMBERS],
)
def test_containers_that_change(entry: str, kind: str) -> None:
    """A container is copied before its items are looked at: what it held is what counts."""
    core = Core()
    items, call = core.entries()[entry]
    call(HARMLESS[kind](items))
    core.check()


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        (e, kind)
        for e in ENTRIES
        for kind in HARMFUL
        if kind != "holds what raises" or e in OF_NUMBERS
    ],
)
def test_containers_that_raise(entry: str, kind: str) -> None:
    """Their exception is the caller's, and nothing was changed."""
    core = Core()
    items, call = core.entries()[entry]
    before = str(core.graph)
    with pytest.raises(ZeroDivisionError):
        call(HARMFUL[kind](items))
    assert str(core.graph) == before
    core.check()


# ---------------------------------------------------------------------------- dictionaries


class Key(str):
    """Equal to its text the first n times that it is asked."""

    def __new__(cls, text: str, n: int) -> "Key":
        self = super().__new__(cls, text)
        self.left = n
        return self

    def __hash__(self) -> int:
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        self.left -= 1
        return self.left >= 0 and super().__eq__(other)


def test_attributes_that_empty_their_dict() -> None:
    core = Core()
    attrs: dict[str, Any] = {}
    attrs |= {"beta1": Number(0.5, attrs.clear), "beta2": 0.75}
    assert core.step(core.spec(attrs=attrs))["no_grad"] == []
    core.check()
    want = Core()
    want.step(want.spec())
    assert [node["attrs"] for node in core.graph.nodes() if node["op"] == "adam"] == [
        node["attrs"] for node in want.graph.nodes() if node["op"] == "adam"
    ]


@pytest.mark.parametrize("field", ["rows", "clip_norm", "clip_value", "ema"])
def test_fields_that_empty_the_specification(field: str) -> None:
    core = Core()
    spec = core.spec()
    spec[field] = Number(1, spec.clear)
    assert core.step(spec)["no_grad"] == []
    assert not spec
    core.check()


@pytest.mark.parametrize("n", range(8))
def test_keys_that_change_their_minds(n: int) -> None:
    core = Core()
    spec = core.spec(attrs={Key("beta1", n): 0.5})
    spec[Key("rows", n)] = spec.pop("rows")
    core.step(spec)
    core.check()
    with pytest.raises(errors.ConfigError, match="needs the attribute axis"):
        core.graph.add("cumsum", [core.x], **{Key("reverse", n): 1})
    with pytest.raises(TypeError, match="spec: must be a str, got int"):
        core.step(core.spec() | {3: 4})


# ---------------------------------------------------------------------------- the graph meanwhile


class Phoenix:
    """Garbage that, when it is collected, grows the graph, swaps it by a pass and is made anew."""

    def __init__(self, graph: _core.Graph, rises: list[bool]) -> None:
        self.graph, self.rises, self.me = graph, rises, self

    def __del__(self) -> None:
        if self.rises[0]:
            for _ in range(20):
                (y,) = self.graph.add("neg", [0])
            (total,) = self.graph.add("sum", [y])
            self.graph.backward(total, [0])
            Phoenix(self.graph, self.rises)


LOOKS: dict[str, Callable[[_core.Graph], Any]] = {
    "nodes": lambda g: g.nodes()[:3],
    "leaves": lambda g: [leaf["name"] for leaf in g.leaves()][:2],
    "shape": lambda g: g.shape(0),
    "outputs": lambda g: g.outputs(),
    "scalar_names": lambda g: g.scalar_names(),
    "depends": lambda g: g.depends(1, [0, 1]),
    "backward": lambda g: g.backward(3, [1]) and None,
    "add": lambda g: g.add("mul", [0, 1]) and None,
    "str": lambda g: str(g) and None,
}


@pytest.mark.parametrize("look", LOOKS)
def test_garbage_that_changes_the_graph(look: str) -> None:
    """Where the making of an object runs the collector (Python 3.11), and a finalizer the graph."""
    g = Core().graph
    want = LOOKS[look](g.clone())
    rises, before = [True], gc.get_threshold()
    Phoenix(g, rises)
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(5):
            got = LOOKS[look](g)
            assert got == want
    finally:
        rises[0] = False
        gc.set_threshold(*before)
        gc.collect()
    g.verify()


# ---------------------------------------------------------------------------- plans meanwhile


def test_a_plan_closed_while_its_runner_is_made() -> None:
    core = Core()
    closed = _core.Plan(core.session, core.graph)
    with pytest.raises(errors.HotloopError, match="order: the plan must be open"):
        _core.Runner([(closed, 1), (core.plan, Number(1, closed.close))])
    core.check()
    core.plan.close()
    core.session.close()


def test_a_field_that_uses_the_session() -> None:
    """The control block is one thing from its reading to its writing."""
    core = Core()
    core.session.control_set(attempted=3)

    def run() -> None:
        core.session.control_set(applied=9)

    with pytest.raises(errors.BusyError, match="control_set"):
        core.session.control_set(attempted=Number(5, run))
    assert (core.session.control()["attempted"], core.session.control()["applied"]) == (3, 0)
    core.check()


def test_the_feed_of_a_plan_that_waits_to_be_destroyed() -> None:
    """Such a plan is gone for Python, while its session still runs another one."""
    session = _core.Session(_core.Device("cpu", n_threads=1))
    graph = _core.Graph()
    graph.output(graph.add("neg", [graph.input("rows", "int64", (4,))])[0])
    gone, running = (_core.Plan(session, graph) for _ in range(2))
    feed = _core.Feed(8, 4)
    gone.feed(feed)
    thread = threading.Thread(target=lambda: running.run(10**12, 1e9))
    thread.start()
    try:
        busy = False
        while not busy:
            time.sleep(0.001)
            try:
                session.stores()
            except errors.BusyError:
                busy = True
        del gone
        with pytest.raises(errors.BusyError, match="seek"):
            feed.seek(0)
        with pytest.raises(errors.ConfigError, match="next_rows"):
            feed.next_rows()
    finally:
        running.stop()
        thread.join()
    feed.seek(0)
    assert feed.next_rows().tolist() == [0, 1, 2, 3]


# ---------------------------------------------------------------------------- arrays and files


class Finalized(np.ndarray):
    """An array that runs code whenever it is copied or viewed."""

    seen: ClassVar[list[Any]] = []

    def __array_finalize__(self, source: Any) -> None:
        self.seen.append(source)


def test_the_code_of_an_array_does_not_run() -> None:
    core = Core()
    core.session.store("a", "float32", 6)
    for hostile in (
        np.ones((3, 2), np.float32).T.view(Finalized),
        np.ones((2, 3), ">f4").view(Finalized),
        np.ones((2, 3), np.float32).view(Finalized),
    ):
        Finalized.seen.clear()
        assert core.graph.shape(core.graph.const(hostile)) == (2, 3)
        core.session.write("a", hostile)
        assert core.session.read("a", "float32").tolist() == [1.0] * 6
        _core.gather_rows(hostile, np.array([0]), "float32")
        core.plan.input(0, np.ones((2, 2))[:, 0].view(Finalized))
        _core.check_finite(hostile)
        assert len(Finalized.seen) == 1, "by the test itself"
    core.check()


class Truth(np.ndarray):
    """An array of shape () that does not know whether it is true."""

    def __bool__(self) -> bool:
        raise ZeroDivisionError


def test_a_bool_that_raises() -> None:
    hostile = np.array(True).view(Truth)
    for call in (
        lambda: _core.Feed(8, 4, shuffle=hostile),
        lambda: Core().graph.add("sum", [0], keepdim=hostile),
        lambda: Core().graph.add("cumsum", [0], axis=hostile),
    ):
        with pytest.raises(ZeroDivisionError):
            call()


def test_a_value_that_cannot_be_shown() -> None:
    """The message would name it: its own exception comes instead."""

    class Mute:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _core.Feed(8, 4, shuffle=Mute())


def test_a_path_that_empties_the_parts(tmp_path: Path) -> None:
    parts = [bytearray(b"ab"), memoryview(b"cd"), np.array([101, 102], np.uint8)]

    class Place:
        def __fspath__(self) -> str:
            parts.clear()
            gc.collect()
            return str(tmp_path / "file")

    _core.write_file(Place(), parts)
    assert (tmp_path / "file").read_bytes() == b"abcdef"
    for items in (Raising([b"x"]), RaisingLength([b"x"], 1)):
        with pytest.raises(ZeroDivisionError):
            _core.write_file(tmp_path / "file", items)
    assert (tmp_path / "file").read_bytes() == b"abcdef"
