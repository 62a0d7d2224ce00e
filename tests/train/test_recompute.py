"""Activations that are computed again in the backward pass: the same bits in less memory.

By share, by name, by hand (``nn.checkpoint``), and as much as a limit asks for.
"""

import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hotloop as hl
import hotloop.nn.functional as F
import numpy as np
import pytest
from hotloop import _core, models, nn
from hotloop.training.plans.recomputing import describe, find_share
from models.small import ZOO, make_model, make_rows
from train.recipes import quiet, same_bits

RNG = np.random.default_rng(11)
SERIES = RNG.standard_normal((48, 12, 8)).astype(np.float32)
IMAGES = RNG.standard_normal((24, 3, 12, 12)).astype(np.float32)
ROWS = RNG.standard_normal((96, 16)).astype(np.float32)


class Before:
    """What was held before a test, by models that others keep: a limit counts it."""

    bytes = 0


@pytest.fixture(autouse=True)
def before() -> None:
    gc.collect()
    Before.bytes = _core.alloc_stats()["current_bytes"]


def part_of(peak: int, part: float) -> int:
    """A limit: what was held before, and a part of what a run took beside it."""
    return Before.bytes + int((peak - Before.bytes) * part)


class Net(nn.Module):
    """Layers around which a test may put checkpoints."""

    def __init__(self, *layers: nn.Module, call: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(16, 3)
        self._call = call or (lambda layer, x: layer(x))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = self._call(layer, x)
        return self.head(x)


class Codes(nn.Module):
    """A layer that reads a buffer and moves it, as codebooks and centres do."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 16)
        self.register_buffer("centre", np.ones(16, np.float32))

    def forward(self, x: Any) -> Any:
        y = F.gelu(self.lin(x)) * self.centre
        if self.training:
            self.centre.assign(self.centre * 0.9 + y.mean(0) * 0.1)
        return y.tanh()


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))


def norms() -> tuple[nn.Module, Any]:
    return Net(*(block() for _ in range(3)), Codes(), block()), ROWS


def transformer() -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 3), nn.Flatten(), nn.Linear(96, 3)), SERIES


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.gru = nn.GRU(32, 16, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.gru(self.lstm(x)[0])[0].mean(1))


def recurrent() -> tuple[nn.Module, Any]:
    return Recurrent(), SERIES


def images() -> tuple[nn.Module, Any]:
    def layer(n: int, stride: int) -> nn.Module:
        conv = nn.Conv2d(n, 16, 3, stride, padding=1)
        return nn.Sequential(conv, nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout2d(0.1))

    body = nn.Sequential(layer(3, 1), nn.MaxPool2d(2), layer(16, 1), layer(16, 2))
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)), IMAGES


def train(
    made: tuple[nn.Module, Any], *, resume: Any = None, **fields: Any
) -> tuple[dict[str, Any], Any]:
    """Weights, buffers and history; the result."""
    model, x = made
    y = np.arange(len(x)) % 3
    config = {"optimizer": "adamw", "max_epochs": 2, "accelerator": "cpu", "precision": "32-true"}
    data = hl.DataModule.from_arrays(x, y, batch_size=16, val=None)
    result = hl.train(model, data, quiet(**(config | fields)), resume=resume)
    state = dict(model.state_dict()) | {"loss": np.asarray(result.history["loss"])}
    return state, result


def n_recomputed(made: tuple[nn.Module, Any], **fields: Any) -> int:
    model, x = made
    plan = hl.plan(model, (x, np.arange(len(x)) % 3), quiet(accelerator="cpu", **fields))
    return int(plan.info["n_recomputed"])


# ---------------------------------------------------------------------------- the same bits


@pytest.mark.parametrize("make", [norms, transformer, recurrent, images])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true"])
def test_weights_are_the_same_to_the_last_bit(make: Any, precision: str) -> None:
    """After some steps, of batches and of windows of three, whatever share is computed again."""
    for windows in (1, 3):
        fields = {"precision": precision, "accumulate_grad_batches": windows}
        want, _ = train(make(), recompute=False, **fields)
        for share in (0.3, 0.7, True):
            got, _ = train(make(), recompute=share, **fields)
            assert same_bits(got, want), (windows, share)
    assert n_recomputed(make(), precision=precision, recompute=True) > 2


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "mobilenet_v3_small" else [pytest.mark.long])
        for name in ZOO
    ],
)
def test_models_of_the_zoo(name: str) -> None:
    x, y = make_rows(name, 6)
    states = []
    for share in (False, True):
        model = make_model(name)
        data = hl.DataModule.from_arrays(x, y, batch_size=3)
        config = quiet(max_epochs=1, precision="32-true", accelerator="cpu", recompute=share)
        hl.train(model, data, config)
        states.append(dict(model.state_dict()))
    assert same_bits(*states)


def test_a_loss_in_chunks() -> None:
    """Whose gradients are asked for while forward is recorded, behind fences of its own."""

    class Chunked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(*(nn.Linear(16, 16), nn.GELU()) * 3)
            options = nn.LinearCrossEntropyOptions(batch_chunk_size=4)
            self.loss = nn.LinearCrossEntropyLoss(16, 3, options=options)

        def training_step(self, batch: Any) -> Any:
            return self.loss(self.body(batch["x"]), batch["y"])

        def forward(self, x: Any) -> Any:
            return self.body(x)

    want, _ = train((Chunked(), ROWS))
    for share in (0.5, True, "body"):
        got, _ = train((Chunked(), ROWS), recompute=share)
        assert same_bits(got, want)


@pytest.mark.parametrize(("first", "then"), [(True, False), (False, 0.5), ("layers", True)])
def test_a_run_goes_on_with_another_share(first: Any, then: Any) -> None:
    """What is recomputed is no part of what a step computes."""
    want, _ = train(norms(), max_epochs=4)
    model, x = norms()
    _, half = train((model, x), recompute=first)
    model, x = norms()
    y = np.arange(len(x)) % 3
    config = quiet(
        max_epochs=4, accelerator="cpu", precision="32-true", optimizer="adamw", recompute=then
    )
    data = hl.DataModule.from_arrays(x, y, batch_size=16, val=None)
    result = hl.train(model, data, config, resume=half)
    got = dict(model.state_dict()) | {"loss": np.asarray(result.history["loss"])}
    assert same_bits(got, want)


def test_a_run_goes_on_with_checkpoints_by_hand(tmp_path: Path) -> None:
    """Which are no other model."""

    def made(*, by_hand: bool) -> tuple[nn.Module, Any]:
        layers = [block() for _ in range(4)]
        return Net(*layers, call=nn.checkpoint if by_hand else None), ROWS

    want, _ = train(made(by_hand=False), max_epochs=4)
    for first in (False, True):
        saved = {"output_dir": tmp_path / f"{first}", "enable_checkpointing": True}
        _, half = train(made(by_hand=first), **saved)
        got, _ = train(made(by_hand=not first), max_epochs=4, resume=half.last_path)
        assert same_bits(got, want)


# ---------------------------------------------------------------------------- by hand, by name


def test_checkpoints_by_hand() -> None:
    """Of modules and functions, with arguments by name, within one another, and in evaluation."""

    def call(layer: Any, x: Any) -> Any:
        def inner(x: Any, *, scale: float) -> Any:
            return nn.checkpoint(layer, x * scale, use_reentrant=False)

        return nn.checkpoint(inner, x, scale=0.5).relu()

    def made(call: Any) -> tuple[nn.Module, Any]:
        return Net(*(block() for _ in range(4)), call=call), ROWS

    want, _ = train(made(lambda layer, x: layer(x * 0.5).relu()))
    got, result = train(made(call))
    assert same_bits(got, want)
    plain, kept = made(lambda layer, x: layer(x * 0.5).relu())[0], result.model
    plain.load_state_dict(kept.state_dict())
    np.testing.assert_array_equal(hl.predict(kept, ROWS), hl.predict(plain, ROWS))
    assert n_recomputed(made(call)) > 0
    np.testing.assert_array_equal(nn.checkpoint(np.add, 1, 2), 3)  # outside of forward: a call


def test_checkpoints_within_one_another_are_recomputed_twice() -> None:
    """The outer one gives what the inner ones read, and each of these its inside again."""

    def layers(n: int) -> nn.Module:
        return nn.Sequential(*(layer for _ in range(n) for layer in (nn.Linear(16, 16), nn.Tanh())))

    class Nested(nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.parts, self.depth = nn.ModuleList(layers(3) for _ in range(4)), depth
            self.head = nn.Linear(16, 3)

        def whole(self, x: Any) -> Any:
            for part in self.parts:
                x = nn.checkpoint(part, x) if self.depth > 1 else part(x)
            return x

        def forward(self, x: Any) -> Any:
            return self.head(nn.checkpoint(self.whole, x) if self.depth else self.whole(x))

    made = {depth: hl.plan(Nested(depth), (ROWS, ROWS[:, :3])) for depth in range(3)}
    flops = [made[depth].info["recomputed_flops"] for depth in range(3)]
    assert flops[0] == 0 < flops[1] < flops[2]
    want, _ = train((Nested(0), ROWS))
    for depth in (1, 2):
        assert same_bits(train((Nested(depth), ROWS))[0], want)


def test_a_checkpoint_that_begins_in_a_chain() -> None:
    """Of cheap work, whose first step stands before it: one node, which is in the checkpoint."""

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(16, 16), nn.Linear(16, 3)

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            return nn.checkpoint(lambda y: self.head((y + 1).sigmoid()), y * y)

    assert n_recomputed((Chain(), ROWS)) > 0


def test_of_named_modules_within_one_another_the_outermost_counts() -> None:
    model, x = transformer()
    y = np.arange(len(x)) % 3
    flops = [
        hl.plan(model, (x, y), accelerator="cpu", recompute=names).info["recomputed_flops"]
        for names in ("0", ["0", "0.layers"])
    ]
    assert 0 < flops[0] == flops[1]


def test_a_checkpoint_of_an_error_is_closed() -> None:
    """The next trace begins outside of any."""

    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(16, 3)

        def forward(self, x: Any) -> Any:
            try:
                nn.checkpoint(lambda x: self.lin(x[:, :3]), x)
            except hl.ShapeError:
                return self.lin(x)

    assert n_recomputed((Wrong(), ROWS)) == 0


def test_what_torch_has_and_means_nothing_here() -> None:
    with pytest.raises(hl.ConfigError, match=r"checkpoint: context_fn must be None.*recompute=0.5"):
        nn.checkpoint(np.add, 1, 2, context_fn=lambda: None)
    assert nn.checkpoint(np.add, 1, 2, preserve_rng_state=False, debug=True) == 3


@pytest.mark.parametrize("names", ["layers", ["layers.[01]", "layers.4"], "layers.?", "*"])
def test_modules_by_name(names: Any) -> None:
    """A list that nobody calls stands for the modules in it."""
    want, _ = train(norms())
    got, result = train(norms(), recompute=names)
    assert same_bits(got, want)
    assert result.config.recompute == ((names,) if isinstance(names, str) else tuple(names))
    assert n_recomputed(norms(), recompute=names) > 0


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("layer", "must match a module of the model, got 'layer'; did you mean 'layers'?"),
        (["layers.0", "haed"], "must match a module of the model, got 'haed'; did you mean 'head'"),
        ("layers.9.*", "must match a module of the model, got 'layers.9.*'"),
        ("spare", "must name modules that the training step calls, got 'spare'"),
    ],
)
def test_names_of_nothing(names: Any, words: str) -> None:
    model, x = norms()
    model.spare = nn.Linear(3, 3)
    with pytest.raises(hl.ConfigError, match=f"^recompute: {re.escape(words)}"):
        train((model, x), recompute=names)


# ---------------------------------------------------------------------------- less memory


def deep() -> tuple[nn.Module, Any]:
    layers = [layer for _ in range(24) for layer in (nn.Linear(64, 64), nn.ReLU())]
    x = np.random.default_rng(0).standard_normal((4096, 64)).astype(np.float32)
    return nn.Sequential(*layers, nn.Linear(64, 3)), x


def wide_transformer() -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(32, 4, 128, dropout=0.1, batch_first=True)
    x = np.random.default_rng(0).standard_normal((64, 48, 32)).astype(np.float32)
    return nn.Sequential(nn.TransformerEncoder(layer, 6), nn.Flatten(), nn.Linear(48 * 32, 3)), x


def residual() -> tuple[nn.Module, Any]:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
            self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

        def forward(self, x: Any) -> Any:
            y = self.norm1(self.conv1(x)).relu()
            return (x + self.norm2(self.conv2(y))).relu()

    blocks = [Block() for _ in range(6)]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    x = np.random.default_rng(0).standard_normal((64, 3, 24, 24)).astype(np.float32)
    return nn.Sequential(nn.Conv2d(3, 8, 1), *blocks, head), x


DEEP = [(deep, 0.75), (wide_transformer, 0.65), (residual, 0.75)]


def in_batches(made: tuple[nn.Module, Any], **fields: Any) -> tuple[dict[str, Any], Any]:
    """Of large batches, a smaller last one and validation."""
    model, x = made
    rows = len(x) // 2
    data = hl.DataModule.from_arrays(
        x[:-4], np.arange(len(x) - 4) % 3, val=0.2, batch_size=rows * 3 // 4
    )
    config = {"max_epochs": 1, "accelerator": "cpu", "precision": "32-true", "optimizer": "sgd"}
    result = hl.train(model, data, quiet(**(config | fields)))
    return dict(model.state_dict()) | {"loss": np.asarray(result.history["loss"])}, result


@pytest.mark.parametrize(("make", "part"), DEEP)
def test_a_limit_is_kept_with_the_same_bits(make: Any, part: float) -> None:
    """By as little as does: a step of more memory computes less again."""
    want, free = in_batches(make())
    assert free.config.recompute is False
    shares = []
    for limit in (part_of(free.peak_bytes, 2), part_of(free.peak_bytes, (1 + part) / 2), None):
        limit = limit or part_of(free.peak_bytes, part)
        got, result = in_batches(make(), memory_limit=limit)
        assert result.peak_bytes <= limit
        assert same_bits(got, want)
        shares.append(float(result.config.recompute))
    assert shares[0] == 0 < shares[1] <= shares[2]


def test_the_configuration_of_a_limited_run_repeats_it() -> None:
    _, free = in_batches(deep())
    limit = part_of(free.peak_bytes, 0.75)
    want, first = in_batches(deep(), memory_limit=limit)
    assert 0 < float(first.config.recompute) <= 1
    got, second = in_batches(deep(), **first.config.replace(callbacks=()).to_dict(nested=False))
    assert same_bits(got, want)
    assert (second.config.recompute, second.peak_bytes) == (
        first.config.recompute,
        first.peak_bytes,
    )


def test_what_was_not_predicted_is_met_by_recomputing_more(monkeypatch: Any) -> None:
    """A plan that takes more than its prediction is made again, and "auto" is open until then."""
    from hotloop.training.run.planner import Planner

    _, free = in_batches(deep())
    count, unseen = Planner._count_bytes, (free.peak_bytes - Before.bytes) // 5
    monkeypatch.setattr(Planner, "_count_bytes", lambda self, plans: count(self, plans) - unseen)
    limit = part_of(free.peak_bytes, 0.85)
    want, result = in_batches(deep(), memory_limit=limit)
    assert result.peak_bytes <= limit
    assert 0 < float(result.config.recompute) < 1
    monkeypatch.undo()
    assert same_bits(in_batches(deep())[0], want)  # in whole batches


def test_parts_of_batches_where_recomputing_does_not_do(capsys: Any) -> None:
    """The smallest limit that an error names is kept; its steps are those of whole batches."""
    want, free = in_batches(deep())
    with pytest.raises(hl.OutOfMemoryError) as held:
        in_batches(deep(), memory_limit=10**6)
    text = str(held.value)
    del held  # and with it what had been traced
    found = re.search(r"must be at least (\d+) bytes \([^)]*\)", text)
    assert found is not None
    assert "all recomputed that can be and micro-batches of 1 row, got 1000000" in text
    assert "a larger memory_limit" in text
    limit = int(found[1])
    assert limit < part_of(free.peak_bytes, 0.5)
    capsys.readouterr()
    got, result = in_batches(deep(), memory_limit=limit, enable_progress_bar="auto")
    said = " ".join(capsys.readouterr().err.split())
    assert result.peak_bytes <= limit
    assert "in micro-batches of " in said
    assert f" of {limit / 1e6:.3g} MB" in said
    np.testing.assert_allclose(got["loss"], want["loss"], rtol=1e-5)


def test_parts_that_cannot_do_are_not_tried(monkeypatch: Any) -> None:
    """Of 16 numbers of parts of a batch of 1536 rows: as if all activations were of rows."""
    from hotloop.training.run.planner import Planner

    tried: list[int] = []
    count = Planner._make_steps

    def make_steps(self: Any) -> Any:
        tried.append(self._parts)
        return count(self)

    monkeypatch.setattr(Planner, "_make_steps", make_steps)
    with pytest.raises(hl.OutOfMemoryError):
        in_batches(deep(), memory_limit=10**6)
    assert tried == [1, 1536]


def test_the_header_says_how_much(capsys: Any) -> None:
    in_batches(wide_transformer(), recompute=True, enable_progress_bar="auto")
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(r"\| recompute \d+ of \d+ values, \+[\d.]+ % flops", said)
    in_batches(wide_transformer(), enable_progress_bar="auto")
    assert "recompute" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "use a smaller batch_size than 24 (micro-batches would have other batch statistics)"),
        ({"recompute": False}, "write recompute='auto', use a smaller batch_size"),
        ({"on_oom": "raise"}, "write on_oom='shrink', write a larger memory_limit"),
    ],
)
def test_what_does_not_fit_says_what_would(fields: dict[str, Any], words: str) -> None:
    """A model with batch statistics is not cut into parts."""
    begun: list[Any] = []

    class Watch:
        def on_train_begin(self, run: Any) -> None:
            begun.append(run)

    with pytest.raises(hl.OutOfMemoryError) as held:
        in_batches(residual(), memory_limit="1 MB", callbacks=(Watch(),), **fields)
    assert words in str(held.value)
    assert str(held.value).startswith("memory_limit: out of memory: must be at least ")
    assert not begun


def test_what_others_hold_counts_and_is_named() -> None:
    model, x = deep()
    rows = np.zeros((8, 1000), np.float32)
    other = hl.stepper(nn.Linear(1000, 1000), quiet(accelerator="cpu"), (rows, rows))
    with pytest.raises(hl.OutOfMemoryError, match=r"; [\d.]+ MB of it are held by models"):
        in_batches((model, x), memory_limit="1 MB")
    del other


def test_a_step_of_a_known_share_is_held_against_the_limit() -> None:
    _, free = in_batches(deep())
    _, all_of_it = in_batches(deep(), recompute=True)
    limit = (free.peak_bytes + all_of_it.peak_bytes) // 2
    assert in_batches(deep(), recompute=True, memory_limit=limit)[1].config.recompute is True
    _, parts = in_batches(deep(), recompute=False, memory_limit=limit)
    assert parts.config.recompute is False
    assert parts.peak_bytes <= limit


def test_memory_that_runs_out_is_met_by_recomputing_first(monkeypatch: Any, capsys: Any) -> None:
    """Then by parts of batches, and by neither where on_oom says so."""
    from hotloop.training.plans.runtime import Runtime

    make, asked = Runtime.plan, []

    def plan(self: Any, graph: Any, split: Any = None, feed: Any = None, **how: Any) -> Any:
        if "k" in how:  # of training
            asked.append((how["k"], self.recompute))
        if how.get("k", 3) < 3:
            raise hl.OutOfMemoryError("out of memory")
        return make(self, graph, split, feed, **how)

    monkeypatch.setattr(Runtime, "plan", plan)
    _, result = in_batches(deep(), enable_progress_bar="auto")
    assert asked[:7] == [(1, 0.0), (1, 0.5), (1, 1.0), (2, 0.0), (2, 0.5), (2, 1.0), (3, 0.0)]
    said = capsys.readouterr().err
    assert said.count("trying to recompute activations") == 4
    assert said.count("trying micro-batches of") == 2
    assert result.config.recompute is False
    with pytest.raises(hl.OutOfMemoryError):
        in_batches(deep(), on_oom="raise")
    asked.clear()
    in_batches(deep(), recompute=False)
    assert [share for _, share in asked[:3]] == [0.0, 0.0, 0.0]


def test_a_precision_that_is_measured_stays_within_the_limit(capsys: Any) -> None:
    """The step that is held against float32 is one that computes all again."""
    _, free = in_batches(deep(), precision="bf16-mixed")
    limit = part_of(free.peak_bytes, 0.9)
    capsys.readouterr()
    fields = {"precision": "bf16-mixed", "enable_progress_bar": "auto"}
    _, result = in_batches(deep(), memory_limit=limit, **fields)
    assert result.peak_bytes <= limit
    assert "want of memory" not in capsys.readouterr().err


# ---------------------------------------------------------------------------- what is not finite


class Spoilt(nn.Module):
    """From the second step on a logarithm is NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.net = deep()[0]

    def forward(self, x: Any) -> Any:
        return self.net(x) + hl.log(hl.scalar("shift", lambda step: 1.0 if step < 1 else -1.0))


@pytest.mark.parametrize("make", [deep, wide_transformer])
def test_each_step_is_looked_into_within_the_limit(make: Any) -> None:
    """Of the plans that look everything is recomputed, and of the step as little as is left."""
    want, free = in_batches(make())
    _, looking = in_batches(make(), detect_anomaly=True)
    assert looking.peak_bytes > free.peak_bytes
    for part in (1.0, 0.9, 0.75):
        limit = part_of(free.peak_bytes, part)
        got, result = in_batches(make(), detect_anomaly=True, memory_limit=limit)
        assert result.peak_bytes <= limit
        assert same_bits(got, want) == (part > 0.8)  # else in parts of batches


@pytest.mark.filterwarnings("ignore::hotloop.NotFiniteWarning")
def test_where_a_nan_began_is_looked_for_within_the_limit() -> None:
    x = deep()[1]
    _, free = in_batches((Spoilt(), x), max_steps=1)
    _, result = in_batches((Spoilt(), x), on_nan="skip", memory_limit=part_of(free.peak_bytes, 2))
    assert "log (forward) made 1 NaN" in str(result.not_finite)
    limit = part_of(free.peak_bytes, 0.75)
    _, result = in_batches((Spoilt(), x), on_nan="skip", memory_limit=limit)
    assert result.peak_bytes <= limit
    assert re.search(
        r"looking for where it began failed: memory_limit: out of memory: it takes [\d.]+ MB, and "
        r"[\d.]+ [kM]B are left",
        str(result.not_finite),
    )


def test_a_stepper_looks_within_the_limit() -> None:
    model, x = deep()
    data = hl.DataModule.from_arrays(x, np.arange(len(x)) % 3, batch_size=2048)
    fields = {"accelerator": "cpu", "precision": "32-true", "detect_anomaly": True}
    peak = hl.plan(model, data, accelerator="cpu", precision="32-true").peak_bytes
    batch = next(iter(data.train_batches()))
    before = Before.bytes
    step = hl.stepper(model, quiet(**fields, memory_limit=before + peak * 2), data)
    assert step.step(batch)["applied"]
    del step
    model, _ = deep()
    step = hl.stepper(model, quiet(**fields, memory_limit=before + peak * 11 // 10), data)
    with pytest.raises(hl.OutOfMemoryError, match="memory_limit: out of memory: it takes"):
        step.step(batch)


# ---------------------------------------------------------------------------- elsewhere


def test_a_plan_reports_it() -> None:
    model, x = deep()
    y = np.arange(len(x)) % 3
    data = hl.DataModule.from_arrays(x, y, batch_size=2048)
    free = hl.plan(model, data, accelerator="cpu", precision="32-true")
    done = hl.plan(model, data, accelerator="cpu", precision="32-true", recompute=True)
    assert free.info["n_recomputed"] == 0 < done.info["n_recomputed"] <= done.info["n_saved"]
    assert done.info["arena_bytes"] < 0.7 * free.info["arena_bytes"]
    assert done.info["flops"] > free.info["flops"]
    assert f"recompute: {describe(done.info)}" in str(done)
    assert "recompute" not in str(free)
    before, part = Before.bytes, int(free.peak_bytes * 0.9)
    limited = hl.plan(model, data, accelerator="cpu", memory_limit=before + part)
    assert limited.peak_bytes < part
    fields = {"accelerator": "cpu", "recompute": False}
    parts = hl.plan(model, data, **fields, memory_limit=before + 9 * 10**6)
    assert parts.info["micro_rows"] < 2048
    assert f"micro-batches: of {parts.info['micro_rows']} rows" in str(parts)
    with pytest.raises(hl.OutOfMemoryError, match="memory_limit: out of memory: must be at least"):
        hl.plan(model, data, accelerator="cpu", memory_limit=1000)


def arena(made: tuple[nn.Module, Any], **fields: Any) -> int:
    """Activations and scratch of a step of one batch."""
    model, x = made
    data = hl.DataModule.from_arrays(x, np.arange(len(x)) % 3, batch_size=len(x), val=None)
    return int(hl.plan(model, data, **fields).info["arena_bytes"])


def chain(depth: int, width: int, rows: int) -> tuple[nn.Module, Any]:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, 3)), np.zeros((rows, width), np.float32)


def test_a_gpus_weight_gradients_wait_for_a_fence_at_most() -> None:
    """Small ones are one launch at the end, up to which they would keep what they read."""
    fields = {"device": "A100", "precision": "32-true"}
    free = arena(chain(12, 64, 2048), **fields)
    assert arena(chain(12, 64, 2048), recompute=True, **fields) < free * 0.6


def test_gradients_of_large_weights_do_not_wait() -> None:
    """They are larger than what they are made of, and lie in a store, which is there anyway."""
    free = arena(chain(24, 512, 64), device="A100", precision="bf16-mixed")
    kept = arena(chain(24, 512, 64), device="A100", precision="bf16-mixed", recompute=True)
    assert kept < free * 0.38


def test_a_part_of_a_gradient_does_not_wait_for_the_other() -> None:
    """A tied table's, of the head's product: behind it the gradient of the logits is free."""

    def made() -> tuple[nn.Module, Any]:
        ids = np.zeros((16, 128), np.int64)
        return models.gpt(vocab_size=8000, n_layer=4, n_head=4, n_embd=256, block_size=128), ids

    (model, ids), fields = made(), {"accelerator": "cpu", "precision": "32-true"}
    data = hl.DataModule.from_arrays(ids, ids, batch_size=16, val=None)
    free, kept = (
        hl.plan(model, data, recompute=share, **fields).info["arena_bytes"]
        for share in (False, True)
    )
    assert kept < free * 0.54


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gradients_of_parameters_do_not_wait(precision: str) -> None:
    """Weights' and norms': in neither precision what they read lies in memory to the end."""
    layer = nn.TransformerEncoderLayer(32, 4, 128, batch_first=True)
    x = np.zeros((64, 48, 32), np.float32)

    def made() -> tuple[nn.Module, Any]:
        head = nn.Linear(48 * 32, 3)
        return nn.Sequential(nn.TransformerEncoder(layer, 8), nn.Flatten(), head), x

    fields = {"accelerator": "cpu", "precision": precision}
    assert arena(made(), recompute=True, **fields) < 0.36 * arena(made(), **fields)


def test_what_costs_least_comes_first() -> None:
    model, x = wide_transformer()
    y = np.arange(len(x)) % 3
    first, half, whole = (
        hl.plan(model, (x, y), accelerator="cpu", precision="32-true", recompute=share).info
        for share in (0.01, 0.5, True)
    )
    assert first["n_recomputed"] == 1 < half["n_recomputed"] < whole["n_recomputed"]
    assert half["recomputed_flops"] < 0.01 * half["step_flops"]
    assert whole["recomputed_flops"] > 0.1 * whole["step_flops"]
    assert half["n_recomputed"] > 0.2 * half["n_saved"]


def test_a_large_vocabulary_does_not_make_all_else_small() -> None:
    """Its logits are a hundred times as large as any other value."""
    body = [layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Tanh())]
    model = nn.Sequential(*body, nn.Linear(32, 8192))
    x = np.zeros((64, 32), np.float32)
    info = hl.plan(model, (x, np.arange(64)), accelerator="cpu", recompute=True).info
    assert info["n_saved"] >= 6
    assert info["n_recomputed"] >= 2


def test_a_stepper() -> None:
    """The same bits with a share, with names and within a limit; or an error before the step."""

    def steps(**fields: Any) -> tuple[dict[str, Any], int]:
        model, x = wide_transformer()
        y = np.arange(len(x)) % 3
        data = hl.DataModule.from_arrays(x, y, batch_size=48)
        config = quiet(accelerator="cpu", precision="32-true", max_epochs=1, **fields)
        stepper = hl.stepper(model, config, data)
        _core.alloc_peak_reset()
        for batch in data.train_batches():
            stepper.step(batch)
        peak = _core.alloc_stats()["peak_bytes"]
        stepper.evaluate("train")
        return dict(stepper.sync().state_dict()), peak

    want, peak = steps()
    limit = part_of(peak, 0.75)
    for fields in ({"recompute": 0.5}, {"recompute": "0.layers"}, {"memory_limit": limit}):
        got, taken = steps(**fields)
        assert same_bits(got, want)
        assert taken < (limit if "memory_limit" in fields else peak)
    with pytest.raises(hl.OutOfMemoryError, match=r"memory_limit: .*; use smaller batches, "):
        steps(memory_limit="1 MB")
    with pytest.raises(hl.OutOfMemoryError, match="write recompute='auto', use smaller batches"):
        steps(memory_limit=limit, recompute=False)


def test_the_least_share_is_found_in_few_tries() -> None:
    tried: list[float] = []

    def bytes_at(share: float) -> int:
        tried.append(share)
        return 1000 - round(share * 100) * 5

    assert find_share(bytes_at, 100, 1000) == (0.0, 1000)
    assert find_share(bytes_at, 100, 499) == (1.0, 500)
    assert find_share(bytes_at, 0, 400) == (0.0, 1000)
    tried.clear()
    for least in range(1, 101):
        share, n_bytes = find_share(bytes_at, 100, 1000 - 5 * least)
        assert (round(share * 100), n_bytes) == (least, 1000 - 5 * least)
    assert len(tried) < 100 * 10
    assert find_share(lambda share: 10 + int(10 * share), 4, 5) == (0.0, 10)
