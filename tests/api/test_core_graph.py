"""The core's Graph from Python: leaves, nodes, attributes, passes; what is refused and how."""

import inspect
from typing import Any

import numpy as np
import pytest
from hotloop import _core, errors


def make_linear() -> tuple[_core.Graph, dict[str, int]]:
    """x (4, 3) @ weight (2, 3)^T + bias, mean squared against y."""
    g = _core.Graph()
    g.store("param", "float32", 18)
    ids = {
        "x": g.input("x", "float32", (4, 3)),
        "y": g.input("y", "float32", (4, 2)),
        "weight": g.param("weight", "float32", (2, 3), "param", 0),
        "bias": g.param("bias", "float32", (2,), "param", 16),
    }
    (out,) = g.add("matmul", [ids["x"], ids["weight"], ids["bias"]], trans_b=1)
    (diff,) = g.add("sub", [out, ids["y"]])
    (square,) = g.add("mul", [diff, diff])
    (ids["sum"],) = g.add("sum", [square])
    ids["out"] = out
    return g, ids


def test_leaves_and_nodes() -> None:
    g, ids = make_linear()
    leaves = {leaf["name"]: leaf for leaf in g.leaves()}
    assert list(leaves) == ["x", "y", "weight", "bias"]
    assert leaves["y"] == {
        "id": ids["y"],
        "kind": "input",
        "name": "y",
        "dtype": "float32",
        "shape": (4, 2),
        "store": None,
        "offset": 0,
        "index": 1,
    }
    assert (leaves["bias"]["store"], leaves["bias"]["offset"]) == ("param", 16)
    nodes = g.nodes()
    assert [node["op"] for node in nodes] == ["matmul", "sub", "mul", "sum"]
    flags = {"trans_a": 0, "trans_b": 1, "float32_out": 0, "tf32": 0, "keeps_float32": 0}
    assert nodes[0]["attrs"] == flags
    assert nodes[0]["inputs"] == (ids["x"], ids["weight"], ids["bias"])
    assert nodes[0]["outputs"] == (ids["out"],)
    assert {node["segment"] for node in nodes} == {"micro"}
    assert (g.shape(ids["out"]), g.dtype(ids["out"])) == ((4, 2), "float32")
    assert [g.kind(ids[n]) for n in ("x", "weight", "out")] == ["input", "param", "act"]
    assert (g.name(ids["x"]), g.name(ids["out"])) == ("x", None)
    assert "matmul" in str(g)
    g.verify()


def test_consts() -> None:
    g = _core.Graph()
    array = np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2]
    const = g.const(array)
    assert (g.dtype(const), g.shape(const), g.kind(const)) == ("int32", (3, 2), "const")
    value = g.const_value(const)
    assert value is not None
    assert (value == array).all()
    value[:] = -1
    assert (np.asarray(g.const_value(const)) == array).all()
    number = g.number("bfloat16", 1.5)
    bits = g.const_value(number)
    assert bits is not None
    assert (bits.dtype, bits.shape, int(bits)) == (np.uint16, (), 0x3FC0)
    assert g.const_value(g.scalar("lr")) is None
    assert g.shape(g.const(np.zeros((0, 3)))) == (0, 3)
    rounded = g.const(np.array([0.1, 1e300]), "float32")
    assert np.asarray(g.const_value(rounded)).tolist() == [np.float32(0.1), np.inf]
    for array, dtype in ((np.zeros(2), "int64"), (np.zeros(2, np.float32), "float64")):
        with pytest.raises(errors.DataError):
            g.const(array, dtype)


def test_scalars_scope_segment_outputs() -> None:
    g = _core.Graph()
    assert g.scalar("lr") == g.scalar("lr")
    g.scalar("temperature")
    assert g.scalar_names() == ["lr", "temperature"]
    assert [leaf["index"] for leaf in g.leaves()] == [0, 1]
    x = g.input("x", "float32", [3])
    g.scope("body.0")
    g.segment("begin")
    (zero,) = g.add("neg", [g.number("float32", 0)])
    g.scope(None)
    g.segment("micro")
    (y,) = g.add("add", [x, zero])
    assert [(n["scope"], n["segment"]) for n in g.nodes()] == [
        ("body.0", "begin"),
        (None, "micro"),
    ]
    assert [g.output(y), g.output(x), g.output(y)] == [0, 1, 2]
    assert g.outputs() == [y, x, y]
    assert g.depends(y, [x, zero, g.scalar("lr")]) == [True, True, False]


def test_clone_is_apart() -> None:
    g, ids = make_linear()
    copy = g.clone()
    assert str(copy) == str(g)
    copy.add("neg", [ids["out"]])
    assert len(copy.nodes()) == len(g.nodes()) + 1


def test_attributes_of_every_kind() -> None:
    g = _core.Graph()
    x = g.input("x", "float32", (2, 3))
    (summed,) = g.add("sum", [x], axes=np.array([-1]), keepdim=np.int64(1))
    assert g.nodes()[-1]["attrs"] == {"axes": (1,), "keepdim": 1}
    assert g.shape(summed) == (2, 1)
    (cast,) = g.add("cast", [x], dtype="int64")
    assert g.dtype(cast) == "int64"
    (padded,) = g.add("pad", [x], before=[0, 1], after=[0, 1], value=np.float32(2))
    assert g.shape(padded) == (2, 5)
    (mask,) = g.add("dropout_mask", [g.control()], shape=(2, 3), p=0.5, stream="body.1")
    assert g.nodes()[-1]["attrs"]["stream"] == "body.1"
    assert g.shape(mask) == (2, 3)


@pytest.mark.parametrize(
    ("op", "attrs", "text"),
    [
        ("rellu", {}, "did you mean 'relu'"),
        ("adam", {}, "passes alone"),
        ("pointwise", {}, "passes alone"),
        ("sum", {"axis": 1}, "(axes, keepdim), got axis"),
        ("relu", {"x": 1}, "(none), got x"),
        ("cumsum", {}, "needs the attribute axis"),
        ("sum", {"axes": 1.5}, "must be a sequence"),
        ("sum", {"axes": [1.5]}, "must be an int"),
        ("sum", {"axes": list(range(100))}, "at most 8"),
        ("cumsum", {"axis": "0"}, "must be an int"),
        ("cumsum", {"axis": 2**80}, "must fit in 64 bits"),
        ("cast", {"dtype": "float33"}, "must be one of float32"),
        ("cast", {"dtype": np.float32}, "must be a str"),
        ("pad", {"before": [0, 0], "after": [0, 0], "value": "1"}, "must be a number"),
    ],
)
def test_add_refuses(op: str, attrs: dict[str, Any], text: str) -> None:
    g = _core.Graph()
    x = g.input("x", "float32", (2, 3))
    before = str(g)
    with pytest.raises((errors.ConfigError, errors.ShapeError)) as caught:
        g.add(op, [x], **attrs)
    assert text in str(caught.value)
    assert str(g) == before


@pytest.mark.parametrize(
    ("op", "attrs", "axis"),
    [
        ("amax", {}, 1),
        ("amin", {"axes": (1, 2)}, 1),
        ("argmax", {"axis": 1}, 1),
        ("argmin", {"axis": -2}, 1),
        ("moments", {"axes": (0, -2)}, 1),
    ],
)
def test_axis_without_elements_is_named(op: str, attrs: dict[str, Any], axis: int) -> None:
    g = _core.Graph()
    x = g.input("x", "float32", (2, 0, 3))
    with pytest.raises(errors.ShapeError, match=rf"^{op} of .*: axis {axis} must have elements"):
        g.add(op, [x], **attrs)
    none = g.input("none", "float32", (0, 2))
    g.add("amax", [none], axes=(1,))  # nor has the result any


@pytest.mark.parametrize("bad", [-1, 1, 99, 2**31, 2**32, -(2**63), 2**63, 10**30])
def test_ids_out_of_range(bad: int) -> None:
    g = _core.Graph()
    x = g.input("x", "float32", (2, 3))
    calls = [
        lambda: g.add("relu", [bad]),
        lambda: g.add("add", [x, bad]),
        lambda: g.output(bad),
        lambda: g.shape(bad),
        lambda: g.dtype(bad),
        lambda: g.kind(bad),
        lambda: g.name(bad),
        lambda: g.const_value(bad),
        lambda: g.commit(bad, x),
        lambda: g.commit(x, bad),
        lambda: g.accumulate(bad, x),
        lambda: g.depends(bad, [x]),
        lambda: g.depends(x, [bad]),
        lambda: g.backward(bad, [x]),
        lambda: g.backward(x, [bad]),
        lambda: g.training_step([(bad, None, 1.0)], [], {}),
    ]
    for call in calls:
        with pytest.raises(errors.ConfigError):
            call()
    g.verify()


def test_wrong_types_and_shapes() -> None:
    g = _core.Graph()
    x = g.input("x", "float32", (2, 3))
    g.store("param", "float32", 6)
    wrong: list[tuple[type[Exception], Any]] = [
        (TypeError, lambda: g.add("relu", x)),
        (TypeError, lambda: g.add("relu", "0")),
        (TypeError, lambda: g.add("relu", {0: 1})),
        (TypeError, lambda: g.add(3, [x])),
        (TypeError, lambda: g.add("relu", [1.0])),
        (TypeError, lambda: g.add("relu")),
        (TypeError, lambda: g.input("x", "float32")),
        (TypeError, lambda: g.input(name="x", dtype="float32", shape=())),
        (TypeError, lambda: g.input("x", "float32", 3)),
        (TypeError, lambda: g.const([1.0])),
        (TypeError, lambda: g.number("float32", "1")),
        (TypeError, lambda: _core.Graph(1)),
        (errors.ConfigError, lambda: g.input("a\0b", "float32", (1,))),
        (errors.ConfigError, lambda: g.input("", "float32", (1,))),
        (errors.ShapeError, lambda: g.input("x", "float32", (-1,))),
        (errors.ShapeError, lambda: g.input("x", "float32", (1,) * 9)),
        (errors.ShapeError, lambda: g.input("x", "float32", (2**40, 2**40))),
        (errors.ShapeError, lambda: g.dataset("x", "float32", ())),
        (errors.ConfigError, lambda: g.param("w", "float32", (2,), "other", 0)),
        (errors.ShapeError, lambda: g.param("w", "float32", (7,), "param", 0)),
        (errors.ShapeError, lambda: g.param("w", "float32", (2,), "param", 5)),
        (errors.ShapeError, lambda: g.param("w", "float32", (2,), "param", 2**62)),
        (errors.ShapeError, lambda: g.param("w", "int64", (2,), "param", 0)),
        (errors.ConfigError, lambda: g.param("w", "float32", (2,), "param", -1)),
        (errors.ConfigError, lambda: g.store("control", "uint8", 4)),
        (errors.ConfigError, lambda: g.state("c", "uint8", (4,), "control", 0)),
        (errors.ConfigError, lambda: g.commit(g.control(), g.control())),
        (errors.ConfigError, lambda: g.segment("end")),
        (errors.DataError, lambda: g.const(np.zeros(2, complex))),
        (errors.DataError, lambda: g.const(np.array(["a"]))),
        (errors.DataError, lambda: g.const(np.array([object()]))),
        (errors.DataError, lambda: g.const(np.zeros(2, np.uint16))),
        (errors.DataError, lambda: g.number("int8", 1000)),
        (errors.ShapeError, lambda: g.const(np.zeros((1,) * 9))),
        (UnicodeEncodeError, lambda: g.scope("\ud800")),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()
    g.verify()


def test_backward_numbers() -> None:
    g = _core.Graph()
    x = g.input("x", "float32", (3,))
    z = g.input("z", "float32", (3,))
    (square,) = g.add("mul", [x, x])
    (total,) = g.add("sum", [square])
    gradient, none = g.backward(total, [x, z])
    assert none is None
    assert gradient is not None
    g.output(gradient)
    plan = _core.Plan(_core.Session(_core.Device("ref")), g)
    plan.input(0, np.array([1.0, 2.0, -3.0]))
    plan.run()
    assert plan.output(0).tolist() == [2.0, 4.0, -6.0]
    before = str(g)
    with pytest.raises(errors.HotloopError):
        g.backward(square, [x])
    assert str(g) == before


SPEC: dict[str, Any] = {
    "rows": 4,
    "optimizer": "sgd",
    "attrs": {"momentum": 0.9},
    "segments": [(0, 6, 1.0, 0.1, 0), (16, 18, 1.0, 0.0, 0)],
    "accumulate": False,
    "clip_norm": None,
    "clip_value": 0.0,
    "ema": None,
    "ema_ramp": False,
    "scales_loss": False,
    "table": (1, 5),
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rows": 0}, "rows"),
        ({"optimizer": "relu"}, "sgd, adam"),
        ({"attrs": {"beta1": 0.9}}, "momentum, dampening"),
        ({"segments": [(0, 19, 1.0, 0.1, 0)]}, "segment 0"),
        ({"segments": [(0, 6, 1.0, 0.1, 0), (5, 18, 1.0, 0.0, 0)]}, "segment 1"),
        ({"segments": [(-1, 6, 1.0, 0.1, 0)]}, "segment 0"),
        ({"segments": [(0, 6.5, 1.0, 0.1, 0)]}, "segment 0"),
        ({"segments": [(0, 6, 1.0, 0.1, -1)]}, "segment 0"),
        ({"segments": [(0, 6, 1.0, 0.1, 0.5)]}, "segment 0"),
        ({"segments": [(0, 6, 1.0, 0.1)]}, "entries"),
        ({"segments": [(0, 6, 1.0)]}, "entries"),
        ({"segments": [(0, float("nan"), 1.0, 0.0, 0)]}, "finite"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"ema": 1.5}, "ema"),
        ({"table": (0, 5)}, "table"),
        ({"table": (33, 5)}, "table"),
        ({"table": (1, 2**62)}, "table"),
        ({"table": 3}, "table"),
        ({"unknown": 3}, "11 keys"),
    ],
)
def test_training_step_refuses(change: dict[str, Any], text: str) -> None:
    g, ids = make_linear()
    before = str(g)
    with pytest.raises((errors.ConfigError, errors.ShapeError, TypeError), match=text):
        g.training_step([(ids["sum"], None, 1.0)], [ids["weight"], ids["bias"]], SPEC | change)
    short = {key: SPEC[key] for key in SPEC if key != "rows"}
    with pytest.raises(errors.ConfigError, match="rows"):
        g.training_step([(ids["sum"], None, 1.0)], [ids["weight"], ids["bias"]], short)
    for terms in ([], [(ids["out"], None, 1.0)], [(ids["sum"], ids["out"], 1.0)], [(1, 2)]):
        with pytest.raises(errors.HotloopError):
            g.training_step(terms, [ids["weight"], ids["bias"]], SPEC)
    for params in ([], [ids["x"]], [ids["bias"]], [ids["bias"], ids["weight"]]):
        with pytest.raises(errors.ConfigError):
            g.training_step([(ids["sum"], None, 1.0)], params, SPEC | {"segments": []})
    assert str(g) == before


def test_training_step_trains() -> None:
    """Three steps of momentum SGD with decay on the weight, against NumPy."""
    g, ids = make_linear()
    made = g.training_step([(ids["sum"], None, 0.5)], [ids["weight"], ids["bias"]], SPEC)
    assert made["no_grad"] == []
    loss = g.output(made["loss"])
    session = _core.Session(_core.Device("cpu"))
    plan = _core.Plan(session, g)
    rng = np.random.default_rng(3)
    params = np.zeros(18)  # the bias begins at the next 64 bytes behind the weight
    used = np.r_[:6, 16:18]
    params[used] = rng.standard_normal(8)
    x, y = rng.standard_normal((4, 3)), rng.standard_normal((4, 2))
    rates = np.array([0.01, 0.005, 0.002, 0.0, 0.0])
    session.write("param", params)
    session.write("table", rates)
    plan.input(0, x)
    plan.input(1, y)
    momentum, gradient = np.zeros(18), np.zeros(18)
    decay = np.array([0.1] * 6 + [0.0] * 12)
    for step in range(3):
        weight, bias = params[:6].reshape(2, 3), params[16:]
        diff = x @ weight.T + bias - y
        gradient[used] = np.concatenate([(diff.T @ x).ravel(), diff.sum(0)])
        gradient += decay * params
        momentum = 0.9 * momentum + gradient
        params = params - rates[step] * momentum
        assert plan.run() == ("done", 1)
        np.testing.assert_allclose(plan.output(loss), 0.5 * (diff**2).sum(), rtol=1e-5)
        np.testing.assert_allclose(session.read("param", "float64"), params, rtol=1e-5, atol=1e-6)
    control = session.control()
    assert (control["attempted"], control["applied"], control["skipped"]) == (3, 3, 0)
    assert [entry[0] for entry in session.control_log(1)] == [2, 3]
    assert [entry[3] for entry in session.control_log(0)] == pytest.approx(rates[:3].tolist())


def test_signatures() -> None:
    """inspect.signature works on everything public, as the docstrings promise."""
    for name in dir(_core):
        thing = getattr(_core, name)
        if name.startswith("_") or not callable(thing):
            continue
        inspect.signature(thing)
        assert thing.__doc__
        for member_name, member in vars(thing).items() if isinstance(thing, type) else ():
            if not member_name.startswith("_"):
                assert member.__doc__, member_name
                if callable(member):
                    inspect.signature(member)


def test_op_table() -> None:
    table = {op["name"]: op for op in _core.op_table()}
    assert "adam" not in table
    assert table["matmul"]["attrs"] == (
        "flag:trans_a=0 flag:trans_b=0 flag:float32_out=0 flag:tf32=0 flag:keeps_float32=0"
    )
    assert (table["concat"]["min_in"], table["concat"]["max_in"]) == (1, -1)
    assert table["relu"]["pointwise"]
    assert not table["sum"]["pointwise"]
    assert table["relu"]["differentiable"]
    assert not table["floor"]["differentiable"]
