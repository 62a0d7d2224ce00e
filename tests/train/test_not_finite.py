"""What of a step is not finite is named by the node that made it so, and looking for it changes
nothing: neither weights nor statistics nor the bits of what is trained on.
"""

import gc
import re
import warnings
from collections.abc import Callable
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.training.plans.runtime import Runtime
from hotloop.training.run import anomaly, stepping
from hotloop.training.run.anomaly import Anomalies
from train.recipes import mlp, quiet, same_bits

ROWS, BATCH, AT = 64, 8, 4  # the step at which a value is planted
RNG = np.random.default_rng(0)
X = RNG.standard_normal((ROWS, 6)).astype(np.float32)
Y = X[:, :1].copy()


def planted(before: float, after: float, name: str = "planted") -> Any:
    """A number that changes with step AT."""
    return hl.scalar(name, lambda step: before if step < AT - 1 else after)


class Part(nn.Module):
    """A module of one function."""

    def __init__(self, apply: Callable[..., Any]) -> None:
        super().__init__()
        self.apply_to = apply

    def forward(self, x: Any) -> Any:
        return self.apply_to(x)


class Net(nn.Module):
    """A part between two layers, with statistics and random numbers before it."""

    def __init__(self, part: nn.Module, *, dropout: float = 0.25) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(dropout)
        self.part = part
        self.last = nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        return self.last(self.part(self.drop(self.norm(self.first(x)))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        x = (x * planted(1, 1e25)).reshape(-1, 2, 4)
        return self.heads(x, x, x, need_weights=False)[0].reshape(-1, 8)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.BatchNorm1d(8)

    def forward(self, x: Any) -> Any:
        return self.inner(hl.tanh(x * planted(1, 1e6)) * planted(1, 3.3e38, "wide"))


class Weighted(nn.Module):
    """A weight that a schedule drives: its product with it is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(np.full(8, 1e3, np.float32))

    def forward(self, x: Any) -> Any:
        return x * 0.001 * (self.weight * planted(1, 1e38))


def softmax_by_hand(x: Any) -> Any:
    raised = hl.exp(hl.abs(x) * planted(1, 1e4))
    return raised / raised.sum(-1, keepdim=True)


def masked_softmax(x: Any) -> Any:
    return hl.softmax(hl.where(x >= 0, x, float("-inf")), -1)


PARTS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a division": (
        lambda: Part(lambda x: x / planted(1, 0)),
        r"the loss was not finite at step 4: div of part \(forward\) made .* infinit",
    ),
    "a logarithm": (
        lambda: Part(lambda x: hl.log(hl.abs(x) + planted(1, -100))),
        r"log of part \(forward\) made 64 NaN among 64 values of shape \(8, 8\), the first at "
        r"\[0, 0\], from finite operands",
    ),
    "an exponential": (
        lambda: Part(softmax_by_hand),
        r"exp of part \(forward\) made .* infinities .*; div of part \(forward\) made .* NaN .* of "
        "it",
    ),
    "a square root": (
        lambda: Part(lambda x: hl.sqrt(x * x * planted(1, 0) + planted(1, 0, "shift"))),
        r"the gradient of (first|norm)\.\w+ was not finite at step 4: \w+ of part \(backward, "
        r"gradient of sqrt\) made ",
    ),
    "a weight": (Weighted, r"mul of part \(forward\) made 8 infinities among 8 values"),
    "statistics": (Norm, r"(moments|batch_norm) of part.inner \(forward\) made .* NaN"),
    "attention": (Attention, r"attention of part.heads \(forward\) made .* NaN"),
}
CASES = pytest.mark.parametrize("part", PARTS)


def data(x: Any = X, y: Any = Y, **fields: Any) -> hl.DataModule:
    return hl.DataModule.from_arrays(
        x, y, **{"val": None, "batch_size": BATCH, "allow_nonfinite": True} | fields
    )


def settings(**fields: Any) -> hl.TrainingConfig:
    return quiet(**({"max_epochs": 2, "lr": 0.01, "precision": "32-true"} | fields))


class Log:
    """The log of a run's steps, as text: NaN is NaN."""

    def on_train_end(self, run: Any) -> None:
        self.steps = repr(run.runtime.session.control_log(0))


def outcome(model: nn.Module, source: hl.DataModule, **fields: Any) -> Any:
    """The result, and the weights and log of steps."""
    log = Log()
    result = hl.train(model, source, settings(**fields, callbacks=(log,)))
    return result, model.state_dict(), log.steps


@pytest.fixture
def unexplained(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """No step is run again: what training was without that."""

    def start() -> None:
        for module in (anomaly, stepping):
            monkeypatch.setattr(module, "explain", lambda *args: "somewhere")
        monkeypatch.setattr(Anomalies, "begin", lambda self, attempted: None)

    return start


def says(pattern: str, text: str | None, step: int = AT) -> None:
    """The text has the pattern, and is about the step."""
    __tracebackhide__ = True
    assert text is not None
    assert re.search(pattern, text), text
    assert f"at step {step}" in text, text


# ---------------------------------------------------------------------------- where it is


@CASES
@pytest.mark.parametrize("on_nan", ["stop", "skip", "raise"])
@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_training_names_the_node(part: str, on_nan: str, unexplained: Callable[[], None]) -> None:
    """And ends with the weights, statistics and log that it had without looking."""
    make, message = PARTS[part]
    done = []
    for looks in (True, False):
        if not looks:
            unexplained()
        model = Net(make())
        if on_nan == "raise":
            with pytest.raises(hl.NotFiniteError, match=message if looks else "somewhere"):
                outcome(model, data(), on_nan=on_nan)
            done.append((model.state_dict(), ""))
            continue
        result, *rest = outcome(model, data(), on_nan=on_nan)
        done.append(tuple(rest))
        assert result.stop_reason == ("nan" if on_nan == "stop" else "completed")
        assert (result.steps, result.skipped_steps) == (3, 1 if on_nan == "stop" else 13)
        if looks:
            says(message, result.not_finite)
    (after, steps), (known, known_steps) = done
    assert same_bits(after, known)
    assert steps == known_steps


@CASES
def test_weights_are_those_of_before(part: str) -> None:
    """Statistics, too, but where a gradient alone is not finite: its batch has moved them."""
    make, message = PARTS[part]
    before, model = Net(make()), Net(make())
    hl.train(before, data(), settings(max_steps=AT - 1))
    with pytest.raises(hl.NotFiniteError, match=message):
        hl.train(model, data(), settings(on_nan="raise"))
    kept = [name for name in model.state_dict() if "gradient" not in message or "norm" not in name]
    assert same_bits(*({k: m.state_dict()[k] for k in kept} for m in (before, model)))


@CASES
@pytest.mark.parametrize("on_nan", ["stop", "skip", "raise"])
def test_a_stepper_names_the_node(part: str, on_nan: str, unexplained: Callable[[], None]) -> None:
    make, message = PARTS[part]
    source, states = data(), []
    for looks in (True, False):
        if not looks:
            unexplained()
        step = hl.stepper(Net(make()), settings(on_nan=on_nan), source)
        batches = list(source.train_batches())
        for batch in batches[: AT - 1]:
            assert step.step(batch)["applied"]
        pattern = message if looks else "somewhere"
        if on_nan == "raise":
            with pytest.raises(hl.NotFiniteError, match=pattern):
                step.step(batches[AT])
        elif on_nan == "skip":
            with pytest.warns(hl.errors.NotFiniteWarning, match=pattern):
                assert not step.step(batches[AT])["applied"]
            assert not step.step(batches[AT + 1])["applied"]  # once is enough
        else:
            assert not step.step(batches[AT])["applied"]
            with pytest.raises(hl.NotFiniteError, match=pattern):
                step.step(batches[AT + 1])
        states.append(step.state_dict())
    assert same_bits(*({k: np.asarray(v) for k, v in state.items()} for state in states))


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
@pytest.mark.parametrize("part", ["a division", "a logarithm"])
@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_other_precisions(part: str, precision: str) -> None:
    make, message = PARTS[part]
    result = hl.train(Net(make()), data(), settings(precision=precision))
    says(message, result.not_finite)


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_the_micro_batch_is_named(k: int) -> None:
    """Of row 33, which is in the second step of 4 micro-batches, or the third of 2."""
    x = X.copy()
    x[33, 2] = np.nan
    model = Net(Part(hl.tanh))
    result = hl.train(model, data(x, shuffle=False), settings(accumulate_grad_batches=k))
    says(
        f"the loss was not finite at step {2 if k == 4 else 3}, micro-batch 1 of {k}: the batch's "
        r"x has 1 NaN among 48 values of shape \(8, 6\), the first in row 1 of the batch, row 33 "
        "of the data, column 2",
        result.not_finite,
        2 if k == 4 else 3,
    )


@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_a_short_last_window() -> None:
    """Of 60 rows: seven batches of 8 and one of 4, which another plan takes into the window."""
    y = Y[:60].copy()
    y[58] = np.inf
    fields = {"accumulate_grad_batches": 3, "on_nan": "skip"}
    result = hl.train(Net(Part(hl.tanh)), data(X[:60], y, shuffle=False), settings(**fields))
    says("micro-batch 2 of 3: the batch's y has 1 infinity among 4 values", result.not_finite, 3)
    assert (result.steps, result.skipped_steps) == (4, 2)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_a_run_that_is_resumed(k: int) -> None:
    """Within an epoch: the steps before count, to row 61 in its last batch."""
    x = X.copy()
    x[61, 0] = np.nan
    source, fields = data(x, shuffle=False), {"accumulate_grad_batches": k, "on_nan": "skip"}
    first = hl.train(Net(Part(hl.tanh)), source, settings(max_steps=2, **fields))
    result = hl.train(first.model, source, settings(**fields, max_epochs=1), resume=first)
    assert result.skipped_steps == 1
    says("the batch's x has 1 NaN .* row 61 of the data", result.not_finite, 8 // k)
    last = hl.train(result.model, source, settings(**fields), resume=result)
    assert last.skipped_steps == 2
    assert last.not_finite == result.not_finite  # the first one of the run
    stops = settings(**fields | {"on_nan": "stop"}, max_epochs=3)
    other = hl.train(last.model, source, stops, resume=last)
    says("the batch's x has 1 NaN .* row 61 of the data", other.not_finite, 24 // k - 2)


@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_parts_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory asks for micro-batches, their number in the step is named."""
    real, tries = Runtime.plan, []

    def plan(self: Runtime, *args: Any, **fields: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise hl.OutOfMemoryError("out of memory")
        return real(self, *args, **fields)

    monkeypatch.setattr(Runtime, "plan", plan)
    x = X.copy()
    x[22, 5] = -np.inf
    result = hl.train(mlp(6, 1), data(x, shuffle=False), settings(recompute=False))
    told = "micro-batch 2 of 2: the batch's x has 1 infinity .* row 22 of the data"
    says(told, result.not_finite, 3)


@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_a_weight_and_a_buffer() -> None:
    model = Net(Part(hl.tanh))
    model.last.weight.copy_(np.full((1, 8), np.nan))
    result = hl.train(model, data(), settings())
    says(
        r"parameter last.weight had 8 NaN among 8 values of shape \(1, 8\) before the step, the "
        r"first at \[0, 0\]",
        result.not_finite,
        1,
    )

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", np.array([0, np.inf, 0], np.float32))
            self.line = nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            return (self.line(x) + self.shift).sum(-1, keepdim=True)

    result = hl.train(Shifted(), data(), settings())
    says(
        r"shift had 1 infinity among 3 values of shape \(3,\) before the step, the first at "
        r"\[1\]",
        result.not_finite,
        1,
    )


@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_numbers_constants_and_losses() -> None:
    """1e39 is infinite in float32; a loss and a constant have no module."""
    cases = {
        "number planted had 1 infinity before the step": lambda x: x * planted(1, 1e39),
        "a constant has 1 NaN": lambda x: x + hl.where(x * planted(1, 0) == 0, float("nan"), x),
    }
    for message, apply in cases.items():
        says(message, hl.train(Net(Part(apply), dropout=0), data(), settings()).not_finite)

    def loss(output: Any, target: Any) -> Any:
        return hl.log((output - target) ** 2 * planted(1, -1)).mean()

    result = hl.train(Net(Part(hl.tanh)), data(), settings(loss=loss))
    says(r"log of loss \(forward\) made 8 NaN", result.not_finite)


@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_infinite_operands_of_a_constant_are_no_beginning() -> None:
    """A row that a mask hides whole: softmax makes the NaN, the mask is meant."""

    def masked(x: Any) -> Any:
        return hl.softmax(hl.where(x * 0 + planted(1, 0) > 0.5, x, float("-inf")), -1)

    result = hl.train(Net(Part(masked), dropout=0), data(), settings())
    says(
        r"softmax of part \(forward\) made 64 NaN .* from operands that are infinite in places$",
        result.not_finite,
    )


@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_the_norm_of_gradients() -> None:
    """Gradients that are finite, with a square that is not."""

    def loss(output: Any, target: Any) -> Any:
        return output.sum() * planted(1, 1e30)

    model = nn.Sequential(nn.Linear(6, 1))
    result = hl.train(model, data(), settings(loss=loss, lr=1e-9))
    assert result.stop_reason in ("nan", "completed")
    if result.stop_reason == "nan":  # a device may sum squares in float64
        says("the norm of the gradients was not finite", result.not_finite)
        says(r"\(optimizer step\) made \d+ infinit", result.not_finite)


# ---------------------------------------------------------------------------- the same step


class Counted(nn.Module):
    """Dropped elements, counted in the log; from step AT on they are infinite."""

    def __init__(self, *, spoils: bool) -> None:
        super().__init__()
        self.line, self.drop, self.last = nn.Linear(6, 32), nn.Dropout(0.3), nn.Linear(32, 1)
        self.spoils = spoils

    def forward(self, x: Any) -> Any:
        kept = self.drop(hl.ones_like(self.line(x)))
        self.log("dropped", (kept == 0).float().sum())
        spoilt = 1 / (kept + (planted(1, 0) if self.spoils else 1))
        return self.last(self.line(x) * spoilt)


@pytest.mark.parametrize("finds", ["detect_anomaly", "on_nan"])
def test_random_numbers_are_those_of_the_step(finds: str) -> None:
    """An epoch is a step: its log has the number of elements that dropout drops in it."""
    one_step = {"max_epochs": 5}
    history = hl.train(Counted(spoils=False), data(batch_size=ROWS), settings(**one_step)).history[
        "dropped"
    ]
    assert len(set(history)) == 5
    fields = {"detect_anomaly": True} if finds == "detect_anomaly" else {"on_nan": "raise"}
    with pytest.raises(hl.NotFiniteError) as caught:
        hl.train(Counted(spoils=True), data(batch_size=ROWS), settings(**one_step, **fields))
    says(rf"div .* made {history[AT - 1]:.0f} infinities among {ROWS * 32:,}", str(caught.value))


# ---------------------------------------------------------------------------- each step


HEALTHY: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "dropout and statistics": (lambda: Net(Part(hl.tanh)), {}),
    "accumulation": (lambda: Net(Part(hl.tanh)), {"accumulate_grad_batches": 3}),
    "average": (lambda: Net(Part(hl.tanh)), {"ema": 0.9, "optimizer": "adamw"}),
    "bfloat16": (lambda: Net(Part(hl.tanh)), {"precision": "bf16-mixed"}),
    "float16": (lambda: Net(Part(hl.tanh)), {"precision": "16-mixed", "max_epochs": 4}),
    "float64": (lambda: Net(Part(hl.tanh)), {"precision": "64-true"}),
    "attention": (lambda: Net(Attention()), {"max_steps": 3}),
    "a mask": (
        lambda: Net(Part(masked_softmax), dropout=0.9),
        {},
    ),
    "a masked logarithm": (
        lambda: Net(Part(lambda x: x + hl.where(x > 0, hl.log(hl.where(x > 0, x, 0).detach()), 0))),
        {},
    ),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_detecting_changes_no_bits(case: str) -> None:
    make, fields = HEALTHY[case]
    fields = {"lr": 1e-3} | fields
    results = [
        outcome(make(), data(X[:60], Y[:60]), detect_anomaly=detects, **fields)
        for detects in (False, True)
    ]
    (plain, known, steps), (detecting, after, checked) = results
    assert plain.stop_reason == detecting.stop_reason != "nan"
    assert detecting.not_finite is None
    assert steps == checked
    assert same_bits(known, after)
    loss, found = (repr(list(result.history["loss"])) for result in (plain, detecting))
    assert loss == found
    assert detecting.peak_bytes == detecting.predicted_peak_bytes


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_a_stepper_that_detects_changes_no_bits(precision: str) -> None:
    states = []
    for detects in (False, True):
        config = settings(precision=precision, detect_anomaly=detects)
        step = hl.stepper(Net(Part(hl.tanh)), config, data(X[:60], Y[:60]))
        for epoch in range(2):
            for batch in data(X[:60], Y[:60]).train_batches(epoch):
                step.step(batch)
        states.append({k: np.asarray(v) for k, v in step.state_dict().items()})
    assert same_bits(*states)


@CASES
@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_detecting_raises_before_the_step(part: str, on_nan: str) -> None:
    """With all of the step before, running statistics too."""
    make, message = PARTS[part]
    before, model = Net(make()), Net(make())
    hl.train(before, data(), settings(max_steps=AT - 1))
    with pytest.raises(hl.NotFiniteError, match=message):
        hl.train(model, data(), settings(detect_anomaly=True, on_nan=on_nan))
    assert same_bits(before.state_dict(), model.state_dict())
    step = hl.stepper(Net(make()), settings(detect_anomaly=True, on_nan=on_nan), data())
    batches = list(data().train_batches())
    for batch in batches[: AT - 1]:
        step.step(batch)
    for batch in batches[AT - 1 :]:
        with pytest.raises(hl.NotFiniteError, match=message):
            step.step(batch)
    assert step.state_dict()["steps"] == (AT - 1, AT - 1)


def test_what_is_an_anomaly() -> None:
    """A NaN that a node makes, though nothing comes of it; not an infinity of which nothing does,
    nor a NaN that the data has.
    """

    def hidden(x: Any) -> Any:
        return hl.where(x > -1e9, x, hl.log(x.detach() ** 2 * planted(1, -1)))

    assert hl.train(Net(Part(hidden)), data(), settings()).stop_reason == "completed"
    with pytest.raises(hl.NotFiniteError) as caught:
        hl.train(Net(Part(hidden)), data(), settings(detect_anomaly=True))
    says(r"a value was not finite at step 4: log of part \(forward\) made", str(caught.value))

    x = X.copy()
    x[::5, 3] = np.nan

    class Heals(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(Part(hl.tanh))

        def forward(self, x: Any) -> Any:
            return self.net(hl.where(x == x, x * 2, 0))

    assert hl.train(Heals(), data(x), settings(detect_anomaly=True)).stop_reason == "completed"


def test_the_scale_of_float16_is_no_anomaly() -> None:
    """It begins so high that steps are skipped; at 1 the model is at fault."""

    def loss(output: Any, target: Any) -> Any:
        return ((output - target) ** 2).mean() * 1e36

    config = settings(precision="16-mixed", loss=loss, lr=1e-9, detect_anomaly=True, on_nan="skip")
    result = hl.train(Net(Part(hl.tanh)), data(), config.replace(max_epochs=1))
    assert result.skipped_steps > 0
    assert result.not_finite is None

    step = hl.stepper(Net(Part(hl.tanh)), config.replace(detect_anomaly=False), data())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        applied = [step.step(batch)["applied"] for batch in data().train_batches()]
    assert not any(applied)

    make, _ = PARTS["a square root"]
    with pytest.raises(hl.NotFiniteError) as caught:
        hl.train(Net(make()), data(), settings(precision="16-mixed", max_epochs=9, on_nan="raise"))
    says("gradient of sqrt", str(caught.value))


# ---------------------------------------------------------------------------- what may happen


class Rows:
    """A dataset that makes its rows, one of them with a NaN."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> Any:
        return X[i], Y[i]


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_streamed_rows(on_nan: str, unexplained: Callable[[], None]) -> None:
    make, message = PARTS["a logarithm"]
    states = []
    for looks in (True, False):
        if not looks:
            unexplained()
        model = Net(make())
        source = hl.DataModule(Rows(), batch_size=BATCH, num_workers=2)
        result = hl.train(model, source, settings(on_nan=on_nan))
        states.append(model.state_dict())
        if looks:
            says(message, result.not_finite)
    assert same_bits(*states)


@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_finite_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the plan without fusion does not show, the fused one does; or neither."""
    make, _ = PARTS["a logarithm"]
    monkeypatch.setattr(Anomalies, "_check_by_node", lambda *args: None)
    result = hl.train(Net(make()), data(), settings(on_nan="skip"))
    says(r"was not finite .* NaN.*; it was finite when run node by node$", result.not_finite)
    assert (result.steps, result.skipped_steps) == (3, 13)
    monkeypatch.setattr(Anomalies, "_check", lambda *args: None)
    result = hl.train(Net(make()), data(), settings())
    says("finite when the step was run again", result.not_finite)


@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_too_little_memory_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise hl.OutOfMemoryError("out of memory: asked for much")

    make, _ = PARTS["a logarithm"]
    monkeypatch.setattr(Anomalies, "_plan_by_node", fail)
    for on_nan, steps in (("stop", 3), ("skip", 3)):
        result = hl.train(Net(make()), data(), settings(on_nan=on_nan))
        assert result.steps == steps
        says("looking for where it began failed: out of memory: asked", result.not_finite)
    hl.train(Net(Part(hl.tanh)), data(), settings())


def test_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    make, message = PARTS["a division"]
    with pytest.warns(hl.errors.NotFiniteWarning, match=message):
        hl.train(Net(make()), data(), settings())
    skipped = f"13 steps skipped .*; the first: {message}"
    with pytest.warns(hl.errors.NotFiniteWarning, match=skipped):
        hl.train(Net(make()), data(), settings(on_nan="skip"))
    with pytest.warns(hl.errors.NotFiniteWarning, match=skipped):  # not by the scale
        hl.train(Net(make()), data(), settings(on_nan="skip", precision="16-mixed"))
    hl.train(Net(make()), data(), settings(enable_progress_bar="auto"))
    assert re.search(message, capsys.readouterr().err)
    result = hl.train(Net(Part(hl.tanh)), data(), settings())
    assert result.not_finite is None


def test_nothing_is_kept() -> None:
    """Plans that looked give their memory back, and threads may train next."""
    make, _ = PARTS["a division"]
    gc.collect()
    before = _core.alloc_stats()["n_live"]
    for fields in ({"on_nan": "raise"}, {"detect_anomaly": True}):
        with pytest.raises(hl.NotFiniteError):
            hl.train(Net(make()), data(), settings(**fields))
    assert _core.alloc_stats()["n_live"] <= before


def test_a_batch_that_is_read_where_it_lies() -> None:
    """A frozen first layer alone reads it; the batch that is looked through is a copy."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 40)).astype("f4"), rng.normal(size=(64, 2)).astype("f4")
    x[21, 3] = np.inf
    data = hl.DataModule.from_arrays(
        x, y, val=None, batch_size=16, shuffle=False, allow_nonfinite=True
    )
    model = nn.Sequential(nn.Linear(40, 8), nn.Linear(8, 2))
    text = hl.plan(model, data, loss="mse", freeze=["0"], precision="32-true").text
    assert "(where rows are not in order)" in text
    with pytest.warns(hl.NotFiniteWarning, match=r"row 5 of the batch, row 21 of the data"):
        hl.train(model, data, quiet(max_epochs=1, loss="mse", freeze=["0"]))
