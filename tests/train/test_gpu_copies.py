"""The 16-bit copy of the weights that an optimizer writes on a GPU, real or emulated.

It is the weights rounded, after any step and whoever changed them in between; a training with it
has the bits of one whose steps cast the weights, for which writing them before each step stands
here: the copy is made anew then, by a cast.
"""

import os
from collections.abc import Callable
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from needs import NO_GPU
from train.recipes import classes, quiet, same_bits, weights

pytestmark = pytest.mark.skipif(not os.environ.get("HOTLOOP_TEST_GPU"), reason=NO_GPU)

X, Y = classes(n=85)
BATCH = 16
PRECISIONS = {"bf16-mixed": "bfloat16", "16-mixed": "float16"}


def net() -> nn.Module:
    """Layers of several shapes; weights and biases of all of them are read in 16 bits."""
    layers = [nn.Linear(6, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(40, 24), nn.Tanh(), nn.Linear(24, 3))


def pooled() -> nn.Module:
    """More weights in an embedding, which is read in float32, than in the layers behind it."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(2000, 6)
            self.body = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 24), nn.Tanh())
            self.head = nn.Linear(24, 3)

        def forward(self, x: hl.Tensor) -> hl.Tensor:
            return self.head(self.body(self.table(x).mean(1)))

    return Pooled()


class Turned(nn.Module):
    """Products read a weight as it is and turned, which is made before the micro-batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(6, 10), net()

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        hidden = nn.functional.relu(self.first(x))
        turned = self.first.weight.permute(1, 0).reshape(10, 6)
        return self.body(hidden @ turned)


def config(precision: str, **fields: Any) -> hl.TrainingConfig:
    base = {"optimizer": "adamw", "lr": 0.02, "deterministic": True, "accelerator": "gpu"}
    return quiet(**(base | {"precision": precision, "max_epochs": 2} | fields))


def parts(x: Any = X) -> hl.DataModule:
    return hl.DataModule.from_arrays(x, Y, val=None, batch_size=BATCH)


def rounded(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """float32 rounded to a 16-bit type and back, ties to even."""
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32)


def check_copy(session: _core.Session, dtype: str) -> None:
    """The copy is the weights, rounded."""
    want = rounded(session.read("param", "float32"), dtype)
    np.testing.assert_array_equal(session.read(f"param.{dtype}", "float32"), want)


class Watch:
    """Checks the copy after each epoch."""

    def __init__(self, dtype: str) -> None:
        self.dtype, self.applied = dtype, 0

    def on_epoch_end(self, run: Any) -> None:
        check_copy(run.runtime.session, self.dtype)
        self.applied = run.runtime.session.control()["applied"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop", "lion"])
def test_every_optimizer_writes_it(precision: str, optimizer: str) -> None:
    watch = Watch(PRECISIONS[precision])
    hl.train(net(), parts(), config(precision, optimizer=optimizer, callbacks=(watch,)))
    assert watch.applied > 5


@pytest.mark.parametrize(
    "fields",
    [
        {"accumulate_grad_batches": 4},  # the last window has batches of two sizes
        {"accumulate_grad_batches": 4, "device_cache": False},
        {"gradient_clip_val": 0.05},
        {"ema": 0.9},
        {"freeze": ("0.*",)},
        {"cuda_graph": False},
    ],
    ids=",".join,
)
def test_options(fields: dict[str, Any]) -> None:
    watch = Watch("bfloat16")
    hl.train(net(), parts(), config("bf16-mixed", callbacks=(watch,), **fields))
    assert watch.applied > 2


def test_skipped_steps_write_neither() -> None:
    """The loss scale begins far too high: steps are skipped until it has come down."""
    step = hl.stepper(net(), config("16-mixed"), parts())
    session = step._runtime.session
    session.control_set(loss_scale=2.0**40)
    first = session.read("param", "float32")
    for batch in parts().train_batches(0):
        applied = step.step(batch)["applied"]
        check_copy(session, "float16")
        assert np.array_equal(session.read("param", "float32"), first) == (not applied)
        if applied:
            break
        session.control_set(loss_scale=session.control()["loss_scale"] / 2**8)
    assert session.control()["applied"] == 1
    assert session.control()["skipped"] > 0


def run_stepper(precision: str, between: Callable[[_core.Session], None]) -> dict[str, Any]:
    data = parts()
    model = net()
    step = hl.stepper(model, config(precision), data)
    session = step._runtime.session
    for epoch in range(2):
        for batch in data.train_batches(epoch):
            step.step(batch)
            between(session)
        step.evaluate("train")
    check_copy(session, PRECISIONS[precision])
    return weights(step.sync())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_same_bits_as_casts(precision: str) -> None:
    def cast(session: _core.Session) -> None:
        session.write("param", session.read("param", "float32"))

    kept = run_stepper(precision, lambda session: None)
    assert same_bits(kept, run_stepper(precision, cast))


@pytest.mark.parametrize("model", [net, Turned])
@pytest.mark.parametrize("freeze", [(), ("first.*", "0.*")], ids=["all", "frozen"])
def test_weights_that_are_loaded_between_steps(
    model: Callable[[], nn.Module], freeze: tuple[str, ...]
) -> None:
    """The steps behind them are those of a stepper that began with them."""
    data = parts()
    batches = list(data.train_batches(0))
    frozen = tuple(name for name in freeze if (name[0] == "f") == (model is Turned))
    fields = config("bf16-mixed", freeze=frozen or None)
    first = hl.stepper(model(), fields, data)
    for batch in batches[:3]:
        first.step(batch)
    state = first.state_dict()
    losses = [first.step(batch)["loss"] for batch in batches[3:]]
    first.load_state_dict(state)
    assert [first.step(batch)["loss"] for batch in batches[3:]] == losses
    other = hl.stepper(model(), fields, data)
    other.model.load_state_dict({k: v * 0.5 for k, v in weights(other.model).items()})
    other._runtime.upload()
    other.step(batches[0])
    other.load_state_dict(state)
    assert [other.step(batch)["loss"] for batch in batches[3:]] == losses
    assert same_bits(weights(first.sync()), weights(other.sync()))


def test_casts_that_move_fewer_bytes_stay() -> None:
    """They are one launch, and there is no copy; a plan and a profile say so."""
    ids = np.random.default_rng(0).integers(0, 2000, (len(Y), 4))
    plan = hl.plan(pooled(), parts(ids), config("bf16-mixed")).text
    begin = plan.partition("\nmicro\n")[0]
    n_casts = begin.count("cuda.pointwise")
    assert "param.bfloat16" not in plan
    assert n_casts >= 3
    assert begin.count("cuda.pointwise (with the one before)") == n_casts - 1
    found = hl.profile(pooled(), parts(ids), config("bf16-mixed"), peaks={})
    casts = [n for n in found.nodes if n.segment == "begin" and n.op == "pointwise"]
    assert [node.n_nodes for node in casts] == [n_casts]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_step_casts_weights(precision: str) -> None:
    """Its plan has no cast before the micro-batches, and the optimizer's launch has the copy."""
    plan = hl.plan(net(), parts(), config(precision, ema=0.9))
    assert "pointwise" not in plan.text.partition("\nmicro\n")[0]
    assert "cuda.assign (with the one before)" in plan.text.partition("\napply\n")[2]
    found = hl.profile(net(), parts(), config(precision, ema=0.9), peaks={})
    optimizers = [n for n in found.nodes if n.op == "adam"]
    assert [node.n_nodes for node in optimizers] == [2]
    assert not [n for n in found.nodes if n.segment == "begin" and n.op == "assign"]


def test_what_is_turned_before_the_micro_batches_is_cast() -> None:
    """Each step makes that form anew, so it casts the weight; the others have the copy."""
    plan = hl.plan(Turned(), parts(), config("bf16-mixed")).text
    begin = plan.partition("\nmicro\n")[0]
    assert "cuda.permute" in begin
    assert begin.count("cuda.pointwise") == 1
    assert "param.bfloat16" in begin


def test_the_copy_is_in_the_prediction() -> None:
    """Bytes of stores: 2 more for each weight, gaps included."""
    want, got = (
        hl.plan(net(), parts(), config(precision)).info["store_bytes"]
        for precision in ("32-true", "bf16-mixed")
    )
    step = hl.stepper(net(), config("bf16-mixed"), parts())
    step.step((X[:BATCH], Y[:BATCH]))
    (_, n) = step._runtime.session.stores()["param.bfloat16"]
    assert got == want + 2 * n
