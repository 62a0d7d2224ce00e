"""What is the same in all steps of a run goes into the weights of the product before it."""

import math
from collections.abc import Callable

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, models, nn
from hotloop.graph.trace import Trace
from hotloop.training.plans.runtime import Runtime

Build = Callable[["Leaves", int], int]


class Leaves:
    """Parameters and state of a graph, with integers and powers of two, so that nothing rounds."""

    def __init__(self) -> None:
        self.graph = _core.Graph()
        self.rng = np.random.default_rng(5)
        self.numbers: dict[str, list[np.ndarray]] = {"param": [], "buffer": []}
        for store in self.numbers:
            self.graph.store(store, "float32", 1 << 14)

    def add(self, op: str, *ids: int, **attrs) -> int:
        (out,) = self.graph.add(op, list(ids), **attrs)
        return out

    def leaf(self, *shape: int, store: str = "param", powers: bool = False) -> int:
        values = self.rng.integers(-3, 4, shape).astype("float32")
        if powers:
            values = np.exp2(self.rng.integers(-1, 2, shape)).astype("float32")
        flat = np.zeros(-(-values.size // 16) * 16, "float32")
        flat[: values.size] = values.ravel()
        at = sum(map(len, self.numbers[store]))
        self.numbers[store].append(flat)
        make = self.graph.param if store == "param" else self.graph.state
        return make(f"{store}{at}", "float32", shape, store, at)


def run(
    build: Build, shape: tuple[int, ...], fuse: bool, device: str = "cpu"
) -> tuple[np.ndarray, str]:
    leaves = Leaves()
    x = leaves.graph.input("x", "float32", shape)
    leaves.graph.output(build(leaves, x))
    session = _core.Session(_core.Device(device))
    plan = _core.Plan(session, leaves.graph, fuse=fuse)
    for store, parts in leaves.numbers.items():
        if parts:
            session.write(store, np.concatenate(parts))
    plan.input(0, np.random.default_rng(6).integers(-4, 5, shape).astype("float32"))
    assert plan.run(1, 60.0) == ("done", 1)
    return plan.output(0), str(plan)


def micro(text: str) -> list[str]:
    """Instructions of a step, without what is done once."""
    part = text.split("\nmicro\n")[1].split("\napply")[0]
    return [line.strip() for line in part.splitlines() if line.startswith("      ")]


def count_products(text: str) -> int:
    """Without the nodes that pack a weight for one."""
    found = [line for line in micro(text) if line.startswith(("cpu.conv", "cpu.matmul"))]
    return sum(".pack." not in line for line in found)


CONV = {"before": (1, 1), "after": (1, 1), "channels_last": 1}
LAST = {"channels_last": 1}
IMAGES = (2, 6, 5, 8)
PRODUCT = {
    "linear": ((7, 8), 12, lambda g, x: (x, g.leaf(8, 12)), "matmul", {}),
    "linear-t": ((7, 8), 12, lambda g, x: (x, g.leaf(12, 8)), "matmul", {"trans_b": True}),
    "stack": ((3, 7, 8), 12, lambda g, x: (x, g.leaf(8, 12)), "matmul", {}),
    "conv": (IMAGES, 12, lambda g, x: (x, g.leaf(12, 8, 3, 3)), "conv", CONV),
    "groups": (IMAGES, 12, lambda g, x: (x, g.leaf(12, 4, 3, 3)), "conv", {**CONV, "groups": 2}),
    "depthwise": (IMAGES, 8, lambda g, x: (x, g.leaf(8, 1, 3, 3)), "conv", {**CONV, "groups": 8}),
    "transpose": (
        IMAGES, 12, lambda g, x: (x, g.leaf(8, 12, 2, 2)), "conv_transpose",
        {"stride": (2, 2), "size": (12, 10), "channels_last": 1},
    ),
}  # fmt: skip


def product(g: Leaves, x: int, name: str, bias: bool = False) -> tuple[int, int]:
    """The product and its number of channels."""
    _, n, operands, op, attrs = PRODUCT[name]
    return g.add(op, *operands(g, x), *([g.leaf(n)] if bias else []), **attrs), n


def norm(g: Leaves, y: int, n: int) -> int:
    """A batch norm by running statistics, as layers make it."""
    std = g.leaf(n, store="buffer", powers=True)
    rstd = g.add("rsqrt", g.add("mul", std, std))
    scale = g.add("mul", g.leaf(n, powers=True), rstd)
    shift = g.add("sub", g.leaf(n), g.add("mul", g.leaf(n, store="buffer"), scale))
    return g.add("add", g.add("mul", y, scale), shift)


def centred(g: Leaves, y: int, n: int) -> int:
    """(y - mean) / std * weight"""
    y = g.add("sub", y, g.leaf(n, store="buffer"))
    return g.add("mul", g.leaf(n), g.add("div", y, g.leaf(n, powers=True)))


ENDS = {
    "norm": norm,
    "centred": centred,
    "number": lambda g, y, n: g.add("mul", g.graph.number("float32", 0.5), y),
    "shift": lambda g, y, n: g.add("add", g.leaf(1), y),
}


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", PRODUCT)
@pytest.mark.parametrize("device", ["cpu", "ref"])
def test_is_folded(name: str, end: str, bias: bool, device: str) -> None:
    """Into the weight, or where kernels take it, into a factor behind the product."""

    def build(g: Leaves, x: int) -> int:
        return ENDS[end](g, *product(g, x, name, bias))

    want, _ = run(build, PRODUCT[name][0], False, device)
    got, text = run(build, PRODUCT[name][0], True, device)
    (line,) = micro(text)
    assert ("columns(" in line) == (device == "cpu" and end != "shift")
    np.testing.assert_array_equal(got, want)


def read_twice(g: Leaves, x: int) -> int:
    y, n = product(g, x, "conv")
    return g.add("add", norm(g, y, n), g.add("mul", y, y))


def kept(g: Leaves, x: int) -> int:
    y, n = product(g, x, "conv")
    g.graph.output(y)
    return norm(g, y, n)


def weight_of_the_batch(g: Leaves, x: int) -> int:
    weight = g.add("slice", x, axis=0, start=0, stop=1)
    return norm(g, g.add("matmul", x, g.add("reshape", weight, shape=(8, 1))), 1)


def factor_of_the_batch(g: Leaves, x: int) -> int:
    y, _ = product(g, x, "linear")
    return g.add("mul", y, g.add("amax", x, axes=(1,), keepdim=True))


def per_row(g: Leaves, x: int) -> int:
    return g.add("mul", product(g, x, "linear")[0], g.leaf(7, 1))


def moving(g: Leaves, x: int) -> int:
    """A step that moves a running statistic."""
    y, n = product(g, x, "linear")
    mean = g.leaf(n, store="buffer")
    g.graph.commit(mean, g.add("amax", y, axes=(0,)))
    return g.add("sub", product(g, x, "linear")[0], mean)


def trained(g: Leaves, x: int) -> int:
    """A step that moves parameters."""
    w = g.leaf(8, 12)
    y = g.add("mul", g.add("matmul", x, w), g.leaf(12, store="buffer", powers=True))
    total = g.add("sum", g.add("mul", y, y))
    (dw,) = g.graph.backward(total, [w])
    g.graph.segment("apply")
    g.graph.commit(w, g.add("sub", w, dw))
    g.graph.segment("micro")
    return y


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (read_twice, IMAGES),
        (kept, IMAGES),
        (weight_of_the_batch, (1, 8)),
        (factor_of_the_batch, (7, 8)),
        (per_row, (7, 8)),
        (moving, (7, 8)),
        (trained, (7, 8)),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
@pytest.mark.parametrize("device", ["cpu", "ref"])
def test_stays_apart_and_right(build: Build, shape: tuple[int, ...], device: str) -> None:
    want, apart = run(build, shape, False, device)
    got, text = run(build, shape, True, device)
    assert len(micro(text)) > 1
    assert device == "cpu" or len(micro(text)) == len(micro(apart))
    assert count_products(text) == count_products(apart)
    np.testing.assert_array_equal(got, want)


def test_groups_of_a_transposed_convolution_keep_their_weight() -> None:
    """They have the same places in it."""
    attrs = {"size": (6, 5), "groups": 2, "channels_last": 1, "before": (1, 1), "after": (1, 1)}

    def build(g: Leaves, x: int) -> int:
        return norm(g, g.add("conv_transpose", x, g.leaf(8, 6, 3, 3), **attrs), 12)

    want, _ = run(build, IMAGES, False, "ref")
    got, text = run(build, IMAGES, True, "ref")
    assert len(micro(text)) == 3
    np.testing.assert_array_equal(got, want)


def test_rounding() -> None:
    """Of K terms, K roundings and a few of the norm's: gamma(K + 8) of the terms' magnitudes."""
    k, n = 300, 40
    rng = np.random.default_rng(0)
    layer, bn = nn.Linear(k, n), nn.BatchNorm1d(n)
    model = nn.Sequential(layer, bn).eval()
    for values in (bn.weight, bn.bias, bn.running_mean, bn.running_var, layer.weight, layer.bias):
        values.copy_(rng.uniform(0.5, 2, values.shape).astype("float32"))
    x = rng.standard_normal((64, k)).astype("float32")
    w, b, gamma, beta, mean, var = (
        np.asarray(v, "float64")
        for v in (layer.weight, layer.bias, bn.weight, bn.bias, bn.running_mean, bn.running_var)
    )
    scale = gamma / np.sqrt(var + bn.eps)
    want = (x.astype("float64") @ w.T + b - mean) * scale + beta
    terms = (np.abs(x) @ np.abs(w).T + np.abs(b) + np.abs(mean)) * scale + np.abs(beta)
    roundings = (k + 8) * 2.0**-24
    bound = roundings / (1 - roundings) * terms
    assert (np.abs(np.asarray(hl.predict(model, x)) - want) <= bound).all()


# ---- models


def predict_plan(model: nn.Module, shape: tuple[int, ...]) -> str:
    model.eval()
    runtime = Runtime(model, _core.Device("cpu"))
    graph = _core.Graph()
    with Trace(graph, runtime.layout.leaf_for) as trace:
        graph.output(model(trace.input("x", "float32", shape)).id_in(trace))
    return str(_core.Plan(_core.Session(_core.Device("cpu")), graph))


@pytest.mark.parametrize(
    ("name", "n_products", "n_blocks", "n_plain"),
    [("resnet18", 21, 8, 4), ("resnet50", 54, 16, 5)],
)
def test_a_resnet_that_predicts_is_convolutions(
    name: str, n_products: int, n_blocks: int, n_plain: int
) -> None:
    """Norms, activations and residuals are part of them: else there are the image, two pools."""
    lines = micro(predict_plan(getattr(models, name)(), (2, 3, 64, 64)))
    products = [line for line in lines if line.startswith(("cpu.conv.", "cpu.matmul."))]
    rest = [line for line in lines if line not in products]
    assert len(products) == n_products
    norm = "add(mul(x, columns(y)), columns(z))"
    assert sum(f"{{relu(add({norm}, w))}}" in line for line in products) == n_blocks
    assert sum(f"{{relu({norm})}}" in line for line in products) == n_products - n_blocks - n_plain
    assert sum(f"{{{norm}}}" in line for line in products) == n_plain - 1
    assert [line.split(".")[1] for line in rest[:2]] == ["permute", "max_pool"]
    assert all("; avgpool" in line for line in rest[2:])


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "efficientnet_b0", "unet"])
def test_no_norm_is_left(name: str) -> None:
    """No step of a prediction reads a statistic or a norm's factor, or turns an image."""
    lines = micro(predict_plan(getattr(models, name)(), (2, 3, 64, 64)))
    assert not [line for line in lines if ".running_" in line or "bn" in line.split(";")[-1]]
    assert not [line for line in lines[1:-1] if ".permute." in line]


def test_frozen_norms_in_training_end_their_convolutions() -> None:
    """A step that trains folds nothing: there the norm is scale and shift behind the sum."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.FrozenBatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.FrozenBatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2),
    )  # fmt: skip
    x = np.random.default_rng(0).standard_normal((8, 3, 16, 16)).astype("float32")
    data = hl.DataModule.from_arrays(x, np.arange(8) % 2, batch_size=4, val=0)
    text = hl.plan(model, data, precision="32-true", accelerator="cpu").text
    assert text.count("{relu(add(mul(x, columns(y)), columns(z)))}") == 2
    result = hl.train(model, data, max_epochs=1, accelerator="cpu")
    assert math.isfinite(result.history["loss"][0])
