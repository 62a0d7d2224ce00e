"""The null backend: everything above kernels, without a number computed.

Models are traced, differentiated, planned and run; what is looked at is shapes, commits, segments,
bytes and words.
"""

import re
import time

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.graph.trace import Trace
from hotloop.nn.layout import Layout

TABLE = {row["name"]: row for row in _core.op_table()}
# op: its required attributes, with values that fit a (3, 3) operand; "kind:name[=default]"
VALUES = {"i": 0, "d": (3, 3), "t": "float32", "s": "s", "f": 0.5}
REQUIRED = {
    name: {a[2:]: VALUES[a[0]] for a in row["attrs"].split() if "=" not in a}
    for name, row in TABLE.items()
}


def traced(
    model: nn.Module, *shapes: tuple[int, ...], dtype: str = "float32", training: bool = True
):
    """A graph, its trace, and the ids of what forward returned."""
    layout = Layout(model)
    graph = _core.Graph()
    trace = Trace(graph, layout.leaf_for, training=training)
    model.train(training)
    with trace:
        out = model(*(trace.input(f"x{i}", dtype, s) for i, s in enumerate(shapes)))
    graph.output(out.id_in(trace))
    return graph, trace, layout, out.id_in(trace)


def plan(graph: _core.Graph, **options) -> _core.Plan:
    return _core.Plan(_core.Session(_core.Device("null")), graph, **options)


def step_of(
    model: nn.Module,
    rows: int,
    width: int | tuple[int, ...],
    n_classes: int,
    dtype: str = "float32",
    **spec,
):
    """The training step of a classifier."""
    shape = (rows, width) if isinstance(width, int) else (rows, *width)
    layout = Layout(model)
    graph = _core.Graph()
    graph.scalar("lr")
    trace = Trace(graph, layout.leaf_for, training=True)
    model.train(True)
    with trace:
        x = trace.input("x", dtype, shape)
        y = trace.input("y", "int64", (rows,))
        loss = nn.functional.cross_entropy(model(x), y)
        from hotloop.graph.loss_parts import loss_terms

        terms = [
            (t.total.id_in(trace), t.denominator.id_in(trace), t.weight) for t in loss_terms(loss)
        ]
        params = [trace.leaf(slot.owner).id_in(trace) for slot in layout.trainable]
    n = sum(slot.size for slot in layout.trainable)
    full = {
        "rows": rows,
        "optimizer": "adam",
        "attrs": {"decoupled": 1},
        "segments": [(0, n, 1.0, 0.01, 0)],
        "accumulate": False,
        "clip_norm": 1.0,
        "clip_value": 0.0,
        "ema": None,
        "ema_ramp": False,
        "scales_loss": False,
        "table": (1, 10),
    } | spec
    return graph, graph.training_step(terms, params, full), n


def net(norm: bool = True) -> nn.Module:
    layers = [
        nn.Linear(12, 32),
        *([nn.BatchNorm1d(32)] if norm else []),
        nn.ReLU(),
        nn.Dropout(0.1),
    ]
    return nn.Sequential(*layers, nn.Linear(32, 5))


@pytest.mark.parametrize(
    ("module", "shape", "out"),
    [
        (nn.Linear(5, 3), (7, 5), (7, 3)),
        (nn.Linear(5, 3), (2, 7, 5), (2, 7, 3)),
        (nn.Flatten(), (4, 3, 2), (4, 6)),
        (nn.Unflatten(1, (2, 3)), (4, 6), (4, 2, 3)),
        (nn.BatchNorm1d(5), (7, 5, 2), (7, 5, 2)),
        (nn.GLU(), (7, 6), (7, 3)),
        (nn.ConstantPad2d((1, 2, 3, 0), 1.0), (2, 3, 4, 5), (2, 3, 7, 8)),
    ],
    ids=str,
)
def test_shapes(module, shape, out) -> None:
    graph, _, _, value = traced(module, shape)
    assert graph.shape(value) == out
    made = plan(graph)
    assert made.run(1, 1e9) == ("done", 1)
    assert made.output(0).shape == out


def test_embedding_shape() -> None:
    graph, _, _, value = traced(nn.Embedding(9, 4), (7, 3), dtype="int64")
    assert graph.shape(value) == (7, 3, 4)


def test_commits_of_running_statistics() -> None:
    """Training commits mean, variance and the counter; evaluation commits nothing."""
    text = str(traced(net(), (8, 12))[0])
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert any(
            name in line and ("<-" in line or "commit" in line) for line in text.splitlines()
        )
    evaluated = str(traced(net(), (8, 12), training=False)[0])
    assert "<-" not in evaluated


def test_training_step_has_three_segments() -> None:
    graph, made, _ = step_of(net(), 16, 12, 5, accumulate=True)
    segments = [node["segment"] for node in graph.nodes()]
    assert set(segments) == {"begin", "micro", "apply"}
    ops = {s: {n["op"] for n in graph.nodes() if n["segment"] == s} for s in set(segments)}
    assert "control_begin" in ops["begin"]
    assert "cross_entropy" in ops["micro"]
    assert {"adam", "control_apply"} <= ops["apply"]
    assert "adam" not in ops["micro"]
    assert made["no_grad"] == []


def test_no_grad_is_reported() -> None:
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(12, 5), nn.Linear(3, 3)

        def forward(self, x):
            return self.used(x)

    _, made, _ = step_of(Spare(), 8, 12, 5)
    assert made["no_grad"] == [2, 3]


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("chain", [False, True])
def test_training_step_runs(k: int, fuse: bool, chain: bool) -> None:
    graph, _, n = step_of(net(), 16, 12, 5, accumulate=k > 1, ema=0.9)
    session = _core.Session(_core.Device("null"))
    made = _core.Plan(session, graph, k=k, fuse=fuse, chain=chain)
    assert made.run(4, 1e9) == ("done", 4)
    info = made.info()
    assert info["n_instructions"] > 0
    assert info["n_regions"] <= info["n_chains"] <= info["n_instructions"]
    stores = session.stores()
    assert stores["param"][1] == n
    assert stores["ema"][1] == n


def test_chains_save_barriers() -> None:
    """On the CPU, row-wise kernels share a block, and so regions are fewer than kernels."""
    graph = step_of(net(), 256, 12, 5)[0]
    counts = []
    for chain in (True, False):
        session = _core.Session(_core.Device("cpu"))
        info = _core.Plan(session, graph, chain=chain).info()
        assert info["n_regions"] <= info["n_chains"] <= info["n_instructions"]
        counts.append(info["n_regions"])
    assert counts[0] < counts[1]


def test_memory_is_known_before_a_step() -> None:
    """The arena grows with the batch, the stores do not."""
    arenas, stores = [], []
    for rows in (16, 32, 64, 128):
        session = _core.Session(_core.Device("null"))
        info = _core.Plan(session, step_of(net(), rows, 12, 5)[0]).info()
        arenas.append(info["arena_bytes"])
        stores.append(info["store_bytes"])
    assert arenas == sorted(arenas)
    assert arenas[0] < arenas[-1]
    assert len(set(stores)) == 1


class Words(nn.Module):
    """The sum of what two tables hold; the second begins at an odd element of all parameters."""

    def __init__(self, n: int, width: int):
        super().__init__()
        self.first, self.head = nn.Embedding(n, width), nn.Linear(width, 5)
        self.second = nn.Embedding(n, width)

    def forward(self, x):
        return self.head(self.first(x).sum(1) + self.second(x).sum(1))


@pytest.mark.parametrize("k", [1, 2])
def test_an_embeddings_gradient_is_made_in_place(k: int) -> None:
    """Its zeros are filled where the gradient lies, when it is made, and rows are added there: no
    other memory of its size, and none beside the forward pass."""
    n, width = 5000, 32
    graph = step_of(Words(n, width), 64, 4, 5, dtype="int64", accumulate=k > 1)[0]
    made = _core.Plan(_core.Session(_core.Device("cpu")), graph, k=k)
    text = str(made).partition("\nmicro\n")[2]
    assert text.index(".cross_entropy_grad") < text.index(".expand")
    lines = [line for line in text.splitlines() if ".index_add" in line]
    assert len(lines) == 2
    for line in lines:
        before, after = re.findall(rf"\({n}, {width}\)@(micro_grad.0\+\d+)", line)
        assert before == after
    assert made.info()["arena_bytes"] < 2.5 * n * width * 4


class Loop(nn.Module):
    """A recurrence written as a loop over steps, which are read one by one."""

    def __init__(self, width: int, state: int, read: str):
        super().__init__()
        self.read, self.state = read, state
        self.pre, self.head = nn.Linear(width, width), nn.Linear(state, 5)
        self.cell = nn.Linear(state + width, state)

    def steps(self, u):
        if self.read == "unbind":
            return u.unbind(1)
        if self.read == "leading":
            u = u.transpose(0, 1)
            return [u[t] for t in range(u.shape[0])]
        return [u[:, t] for t in range(u.shape[1])]

    def forward(self, x):
        h = hl.zeros((x.shape[0], self.state))
        for u in self.steps(self.pre(x).tanh()):
            h = self.cell(hl.cat([h, u], 1)).tanh()
        return self.head(h)


def test_a_view_of_a_constant_is_nothing_to_run() -> None:
    """It does not wait until it is wanted, as what fills memory does: it was placed as a kernel."""
    graph = _core.Graph()
    graph.store("w", "float32", 3)
    x = graph.param("w", "float32", (3,), "w", 0)
    number = graph.number("float32", 2.0)
    (view,) = graph.add("detach", [number])
    (double,) = graph.add("mul", [x, number])
    (same,) = graph.add("eq", [view, double])
    graph.output(same)
    session = _core.Session(_core.Device("cpu"))
    made = _core.Plan(session, graph, fuse=False, chain=False)
    session.write("w", np.float32([1, 2, 4]))
    assert made.run(1, 60.0) == ("done", 1)
    assert made.output(0).tolist() == [True, False, False]
    assert made.info()["n_instructions"] == made.info()["n_regions"] == 2


@pytest.mark.parametrize("device", ["cpu", "null"])
@pytest.mark.parametrize("read", ["slices", "unbind", "leading"])
def test_a_loop_over_steps_takes_linear_memory(read: str, device: str) -> None:
    """The gradient of what is read step by step is made once, not once a step."""
    rows, width, arenas = 8, 32, []
    for n in (16, 64, 256):
        graph = step_of(Loop(width, 16, read), rows, (n, width), 5)[0]
        arenas.append(_core.Plan(_core.Session(_core.Device(device)), graph).info()["arena_bytes"])
        assert arenas[-1] < 60_000 + 15 * rows * n * width * 4
    assert arenas[2] < 4.5 * arenas[1] < 4.5 * 4.5 * arenas[0]


def test_a_loop_over_steps_is_planned_in_linear_time() -> None:
    """Epilogues are tried at each of many products: that takes no more time than the rest."""
    graph = _core.Graph()
    graph.store("w", "float32", 8 * 8)
    w = graph.param("w", "float32", (8, 8), "w", 0)
    h = graph.input("h", "float32", (4, 8))
    for _ in range(2000):
        (h,) = graph.add("relu", graph.add("matmul", [h, w]))
    (loss,) = graph.add("sum", [h])
    for gradient in graph.backward(loss, [w]):
        graph.output(gradient)
    session, seconds = _core.Session(_core.Device("cpu")), {True: [], False: []}
    for fuse in (True, False) * 3:
        began = time.perf_counter()
        _core.Plan(session, graph, fuse=fuse)
        seconds[fuse].append(time.perf_counter() - began)
    assert min(seconds[True]) < 3 * min(seconds[False]), seconds


def test_steps_are_read_where_they_lie() -> None:
    """Along the leading dim, a slice and its gradient are no work."""
    graph = step_of(Loop(32, 16, "leading"), 8, (20, 32), 5)[0]
    text = str(_core.Plan(_core.Session(_core.Device("cpu")), graph))
    assert len(re.findall(r"cpu\.slice\.\w+ \(in place\): %\d+ float32\(20, 8, 32\)", text)) == 20
    assert re.search(r"cpu\.concat\.\w+ \(in place\).* -> %\d+ float32\(20, 8, 32\)", text)


def test_unbind_is_one_node() -> None:
    graph = traced(Loop(32, 16, "unbind"), (8, 20, 32))[0]
    ops = [node["op"] for node in graph.nodes()]
    assert ops.count("split") == 1
    assert "slice" not in ops
    (split,) = (node for node in graph.nodes() if node["op"] == "split")
    assert len(split["outputs"]) == 20


def test_plans_share_a_sessions_arena() -> None:
    session = _core.Session(_core.Device("null"))
    before = _core.alloc_stats()["current_bytes"]
    first = _core.Plan(session, step_of(net(), 512, 12, 5)[0])
    one = _core.alloc_stats()["current_bytes"]
    second = _core.Plan(session, step_of(net(), 256, 12, 5)[0])
    two = _core.alloc_stats()["current_bytes"]
    assert first.info()["arena_bytes"] > second.info()["arena_bytes"]
    assert two - one < one - before


def test_graph_text_names_everything() -> None:
    graph, *_ = traced(net(), (8, 12))
    text = str(graph)
    for word in ("0.weight", "float32 (8, 12)", "matmul", "dropout_mask", "batch_norm", "x0"):
        assert word in text, word
    assert len(text.splitlines()) >= len(graph.nodes())


def test_plan_text_names_kernels() -> None:
    session = _core.Session(_core.Device("cpu"))
    text = str(_core.Plan(session, step_of(net(), 16, 12, 5)[0]))
    for word in ("cpu.matmul", "cpu.", "region", "adam"):
        assert word in text, word
    assert "null." in str(plan(step_of(net(), 16, 12, 5)[0])) or "null" in str(
        plan(step_of(net(), 16, 12, 5)[0])
    )


def test_clone_is_equal_and_apart() -> None:
    graph, *_ = traced(net(), (8, 12))
    other = graph.clone()
    assert str(other) == str(graph)
    (value,) = other.add("neg", [other.outputs()[0]])
    other.output(value)
    assert len(other.nodes()) == len(graph.nodes()) + 1
    graph.verify()
    other.verify()


def test_streams_do_not_depend_on_the_batch() -> None:
    names = []
    for rows in (4, 16):
        graph, *_ = traced(net(), (rows, 12))
        names.append([n["attrs"]["stream"] for n in graph.nodes() if n["op"] == "dropout_mask"])
    assert names[0] == names[1] == ["3.dropout.0"]


# ---------------------------------------------------------------------------- refused, in words


def graph_of(*shapes, dtype="float32"):
    graph = _core.Graph()
    return graph, [graph.input(f"x{i}", dtype, s) for i, s in enumerate(shapes)]


REFUSED = {
    "matmul": (((2, 3), (4, 5)), {}, "3"),
    "add": (((2, 3), (4,)), {}, "4"),
    "concat": (((2, 3), (2, 4)), {"axis": 0}, "4"),
    "reshape": (((2, 3),), {"shape": (4, 2)}, "6"),
    "permute": (((2, 3),), {"dims": (0, 0)}, "twice"),
    "expand": (((2, 3),), {"shape": (2, 4)}, "4"),
    "slice": (((2, 3),), {"axis": 5}, "5"),
    "sum": (((2, 3),), {"axes": (7,)}, "7"),
    "amax": (((2, 0),), {"axes": (1,)}, "none"),
    "softmax": (((),), {}, "rank|dims"),
    "layer_norm": (((2, 3),), {"n_axes": 3}, "3"),
    "flip": (((2, 3),), {"axes": (4,)}, "4"),
    "pad": (((2, 3),), {"before": (1,), "after": (0, 0)}, "2"),
}


@pytest.mark.parametrize("op", REFUSED)
def test_refused(op: str) -> None:
    """The message names the op, the rule and the value; the graph goes on."""
    shapes, attrs, word = REFUSED[op]
    graph, ids = graph_of(*shapes)
    before = str(graph)
    graph.scope("body.0")
    with pytest.raises(hl.HotloopError, match=word) as caught:
        graph.add(op, ids, **attrs)
    assert op in str(caught.value)
    assert "body.0" in str(caught.value)
    assert ", got " in str(caught.value) or " to " in str(caught.value)
    assert str(graph) == before
    graph.verify()


@pytest.mark.parametrize("op", [op for op in TABLE if REQUIRED[op]])
def test_missing_attribute(op: str) -> None:
    graph, ids = graph_of(*[(3, 3)] * max(TABLE[op]["min_in"], 1))
    with pytest.raises(hl.ConfigError, match="needs the attribute"):
        graph.add(op, ids[: TABLE[op]["min_in"]])


@pytest.mark.parametrize("op", TABLE)
def test_unknown_attribute_and_arity(op: str) -> None:
    graph, ids = graph_of(*[(3, 3)] * 5)
    with pytest.raises(hl.HotloopError, match=r"nonsense|attribute"):
        graph.add(op, ids[: TABLE[op]["min_in"]], nonsense=1)
    if TABLE[op]["max_in"] >= 0:
        with pytest.raises(hl.HotloopError, match=op):
            graph.add(op, ids[: TABLE[op]["max_in"] + 1], **REQUIRED[op])
    if TABLE[op]["min_in"] > 0:
        with pytest.raises(hl.HotloopError, match=op):
            graph.add(op, [], **REQUIRED[op])
    graph.verify()


def test_unknown_op_suggests_or_names() -> None:
    graph, ids = graph_of((3,))
    with pytest.raises(hl.HotloopError, match="sofmax"):
        graph.add("sofmax", ids)


@pytest.mark.parametrize("value", [-1, 99, 2**31, -(2**63)])
def test_foreign_values(value: int) -> None:
    graph, _ = graph_of((3,))
    for act in (
        lambda: graph.add("neg", [value]),
        lambda: graph.shape(value),
        lambda: graph.output(value),
        lambda: graph.backward(value, []),
    ):
        with pytest.raises((hl.HotloopError, ValueError, OverflowError)):
            act()


def test_sizes_that_overflow() -> None:
    graph = _core.Graph()
    with pytest.raises(hl.ShapeError):
        graph.input("x", "float32", (2**40, 2**40))
    with pytest.raises(hl.ShapeError):
        graph.input("x", "float32", (-1, 3))
    small = graph.input("y", "float32", (2**20, 1))
    with pytest.raises(hl.HotloopError):
        graph.add("expand", [small], shape=(2**20, 2**50))


def test_loss_must_be_a_scalar() -> None:
    graph, ids = graph_of((3,))
    with pytest.raises(hl.HotloopError, match="one number"):
        graph.backward(ids[0], ids)


def test_commit_must_fit() -> None:
    graph, ids = graph_of((3,))
    graph.store("buffer", "float32", 4)
    state = graph.state("b", "float32", (4,), "buffer", 0)
    with pytest.raises(hl.HotloopError):
        graph.commit(state, ids[0])
    with pytest.raises(hl.HotloopError):
        graph.commit(ids[0], ids[0])


def test_wrong_inputs_of_a_plan() -> None:
    graph, ids = graph_of((2, 3))
    graph.output(graph.add("neg", ids)[0])
    made = plan(graph)
    for index, array in (
        (0, np.zeros((3, 2), np.float32)),
        (1, np.zeros((2, 3), np.float32)),
        (0, np.zeros((2, 3), np.complex64)),
    ):
        with pytest.raises(hl.HotloopError):
            made.input(index, array)
    made.input(0, np.zeros((2, 3), np.float32))
    assert made.run(1, 1e9) == ("done", 1)


@pytest.mark.parametrize("fence", [False, True])
def test_a_fence_keeps_regions_apart(fence: bool) -> None:
    """Chunks that read nothing of each other run side by side, or each when the one before is over.

    Their sums are made as soon as they can be, so that a chunk's values are gone before the next.
    """
    graph = _core.Graph()
    x = graph.input("x", "float32", (4096, 64))
    total = graph.number("float32", 0.0)
    for i in range(4):
        if fence:
            graph.fence()
        (part,) = graph.add("slice", [x], axis=0, start=1024 * i, stop=1024 * (i + 1), step=1)
        (wide,) = graph.add("matmul", [part, part], trans_a=False, trans_b=True)
        (peak,) = graph.add("softmax", [wide])
        (back,) = graph.add("matmul", [peak, part], trans_a=False, trans_b=False)
        (loss,) = graph.add("sum", [back], axes=(0, 1), keepdim=False)
        (total,) = graph.add("add", [total, loss])
    graph.output(total)
    graph.verify()
    plan = _core.Plan(_core.Session(_core.Device("cpu")), graph)
    chunk = 1024 * 1024 * 4
    assert (plan.info()["arena_bytes"] < 3 * chunk) == fence
