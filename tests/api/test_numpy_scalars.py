"""NumPy's scalars and arrays of shape () work as the Python values they stand for."""

from collections.abc import Callable
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from api.traced import run
from hotloop import _core, errors, nn
from hotloop.base import rules
from hotloop.base.scalars import plain

KINDS: dict[str, Callable[[Any], Any]] = {
    "scalar": lambda value: np.asarray(value)[()],
    "array of shape ()": np.asarray,
}
kinds = pytest.mark.parametrize("kind", KINDS)
X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
Y = np.arange(20) % 2


def test_plain() -> None:
    for value in (True, 3, 2.5, "text"):
        for kind in KINDS.values():
            assert type(plain(kind(value))) is type(value)
            assert plain(kind(value)) == value
    for other in (None, [1], np.array([1]), "text"):
        assert plain(other) is other


# ---------------------------------------------------------------------------- the bindings


def make_feed(**options: Any) -> list[int]:
    feed = _core.Feed(10, 5, **options)
    first = feed.next_rows()
    return [] if first is None else first.tolist()


def add(op: str, **attrs: Any) -> Any:
    g = _core.Graph()
    (y,) = g.add(op, [g.input("x", "float32", (2, 3))], **attrs)
    return g.shape(y), g.nodes()


def step(**change: Any) -> str:
    g = _core.Graph()
    g.store("param", "float32", 3)
    weight = g.param("weight", "float32", (3,), "param", 0)
    (loss,) = g.add("sum", [weight])
    spec = {
        "rows": 2,
        "optimizer": "sgd",
        "attrs": {},
        "segments": [(0, 3, 1.0, 0.0, 0)],
        "accumulate": True,
        "clip_norm": 1.0,
        "clip_value": None,
        "ema": 0.5,
        "ema_ramp": True,
        "table": (1, 3),
        "scales_loss": True,
    }
    g.training_step([(loss, None, 1.0)], [weight], spec | change)
    return str(g)


def plan(**options: Any) -> Any:
    g = _core.Graph()
    g.output(g.add("neg", [g.input("x", "float32", (2,))])[0])
    return _core.predict(_core.Device("cpu", n_threads=1), g, **options)


CORE: dict[str, tuple[Callable[..., Any], Any]] = {
    "Feed.shuffle": (lambda v: make_feed(shuffle=v, seed=1), True),
    "Feed.seed": (lambda v: make_feed(shuffle=True, seed=v), 7),
    "Feed.first": (lambda v: make_feed(first=v), 5),
    "add a flag": (lambda v: add("sum", axes=[0], keepdim=v), True),
    "add a flag of 0": (lambda v: add("sum", axes=[0], keepdim=v), False),
    "add an int": (lambda v: add("cumsum", axis=v), 1),
    "add ints": (lambda v: add("sum", axes=[v]), 1),
    "add a float": (lambda v: add("pad", before=[0, 1], after=[0, 0], value=v), 2.5),
    "accumulate": (lambda v: step(accumulate=v), False),
    "ema_ramp": (lambda v: step(ema_ramp=v), False),
    "scales_loss": (lambda v: step(scales_loss=v), False),
    "clip_norm": (lambda v: step(clip_norm=v), 2.0),
    "rows": (lambda v: step(rows=v), 4),
    "table": (lambda v: step(table=(1, v)), 5),
    "fuse": (lambda v: plan(fuse=v), False),
    "k": (lambda v: plan(k=v), 2),
    "normal": (lambda v: _core.random_normal(1, "s", 3, v, 1.0).tolist(), 2.5),
    "permutation": (lambda v: _core.permutation(1, "s", v, 5).tolist(), 3),
    "check_range": (lambda v: _core.check_range(np.arange(9), 0, v), 4),
    "survey": (lambda v: _core.survey("cuda", None, probe=v)["devices"], False),
}


@kinds
@pytest.mark.parametrize("name", CORE)
def test_the_core(name: str, kind: str) -> None:
    call, value = CORE[name]
    assert call(KINDS[kind](value)) == call(value)


@pytest.mark.parametrize("value", [1, 0.0, "yes", None, np.int64(1), np.ones(1, bool), np.ones(2)])
def test_what_is_no_bool_is_named(value: object) -> None:
    for call in (lambda: make_feed(shuffle=value), lambda: step(ema_ramp=value)):
        with pytest.raises(TypeError, match="must be a bool") as caught:
            call()
        assert str(caught.value).endswith(f"got {value!r}")


# ---------------------------------------------------------------------------- settings


@kinds
@pytest.mark.parametrize(
    ("rule", "value"),
    [
        (rules.flag, True),
        (rules.flag, False),
        (rules.number(), 2.5),
        (rules.number(), 3),
        (rules.whole(1), 3),
        (rules.whole(1), 3.0),
        (rules.fraction_or_count, 0.25),
        (rules.fraction_or_count, 3),
        (rules.either("auto", rule=rules.whole(0)), "auto"),
        (rules.either(False, rule=rules.whole(0)), False),
        (rules.choice("csv", aliases={1: "csv"}), 1),
        (rules.pair(rules.number(), "two numbers"), (0.5, 0.25)),
        (rules.duration, 2.5),
        (rules.byte_size, 4096),
        (rules.warmup, 0.5),
        (rules.warmup, 10),
    ],
)
def test_rules(rule: rules.Rule, value: Any, kind: str) -> None:
    given = [KINDS[kind](v) for v in value] if isinstance(value, tuple) else KINDS[kind](value)
    want, got = rule("field", value), rule("field", given)
    assert (type(got), got) == (type(want), want)


@pytest.mark.parametrize("value", [1, 0, "yes", None, np.int64(1), np.array(1), np.ones(1, bool)])
def test_a_flag_that_is_none_is_named(value: object) -> None:
    with pytest.raises(errors.ConfigError, match="shuffle: must be True or False, got") as caught:
        hl.DataModule.from_arrays(X, Y, shuffle=value)  # type: ignore[arg-type]
    assert rules.show(value) in str(caught.value)


@kinds
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_epochs", 3),
        ("lr", 0.25),
        ("deterministic", True),
        ("early_stopping", True),
        ("early_stopping", 4),
        ("ema", True),
        ("ema", 0.5),
        ("logger", False),
        ("enable_progress_bar", False),
        ("use_amp", True),
        ("devices", 1),
        ("seed", 7),
        ("warmup", 0.5),
        ("betas", (0.5, 0.75)),
        ("overfit_batches", 0),
        ("accelerator", "cpu"),
    ],
)
def test_training_config(field: str, value: Any, kind: str) -> None:
    given = tuple(map(KINDS[kind], value)) if isinstance(value, tuple) else KINDS[kind](value)
    want, got = hl.TrainingConfig(**{field: value}), hl.TrainingConfig(**{field: given})
    assert got == want
    assert got.to_dict() == want.to_dict()
    assert hl.TrainingConfig().replace(**{field: given}) == want


@kinds
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", 4),
        ("shuffle", False),
        ("stratify", True),
        ("stratify", False),
        ("val", 0.25),
        ("val", 5),
        ("seed", 3),
        ("drop_last", True),
        ("standardize", True),
        ("num_workers", 1),
        ("allow_nonfinite", True),
    ],
)
def test_data(field: str, value: Any, kind: str) -> None:
    batches = []
    always = {"val": 5, "batch_size": 4, "split": "random"}
    for given in (value, KINDS[kind](value)):
        data = hl.DataModule.from_arrays(X, Y, **(always | {field: given}))
        batches.append([repr(batch) for batch in data.train_batches(1)])
    assert batches[0] == batches[1]


@pytest.mark.parametrize("value", [1, 0, np.int64(1), "no", None])
def test_stratify_is_a_bool(value: object) -> None:
    with pytest.raises(errors.ConfigError, match="stratify: must be True, False or 'auto', got"):
        hl.DataModule.from_arrays(X, Y, val=5, stratify=value)  # type: ignore[arg-type]


@kinds
def test_predict(kind: str) -> None:
    result = hl.train(nn.Linear(3, 2), (X, Y), max_epochs=1, logger=False, accelerator="cpu")
    for option in ("labels", "proba"):
        want = hl.predict(result, X, **{option: True})
        assert (hl.predict(result, X, **{option: KINDS[kind](True)}) == want).all()
        with pytest.raises(errors.ConfigError, match=f"{option}: must be True or False, got 1"):
            hl.predict(result, X, **{option: 1})


# ---------------------------------------------------------------------------- layers and functions


@kinds
@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda v: nn.Linear(v, 2), 3),
        (lambda v: nn.Linear(3, v, bias=True), 4),
        (lambda v: nn.Bilinear(v, v, v), 2),
        (lambda v: nn.BatchNorm1d(v), 3),
        (lambda v: nn.LayerNorm(v), 3),
        (lambda v: nn.LayerNorm((v,)), 3),
        (lambda v: nn.Embedding(v, v, padding_idx=v - 1), 3),
        (lambda v: nn.Dropout(v), 0.5),
        (lambda v: nn.ConstantPad1d(v, 1.0), 2),
        (lambda v: nn.Unflatten(v, (1, 3)), 1),
    ],
)
def test_layers(make: Callable[[Any], nn.Module], value: Any, kind: str) -> None:
    want, got = make(value), make(KINDS[kind](value))
    assert repr(got) == repr(want)
    assert {k: v.shape for k, v in got.state_dict().items()} == {
        k: v.shape for k, v in want.state_dict().items()
    }


@kinds
@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda x, v: x + v, 2.5),
        (lambda x, v: (x > 0).to(hl.int64) + v, 3),
        (lambda x, v: hl.sum(x, dim=v), 1),
        (lambda x, v: hl.sum(x, dim=1, keepdim=v), True),
        (lambda x, v: hl.var(x, unbiased=v), False),
        (lambda x, v: hl.var(x, v), False),
        (lambda x, v: x**v, 2),
        (lambda x, v: x[v], 1),
        (lambda x, v: x[:, v:], 1),
        (lambda x, v: x + hl.full((3,), v), 2),
        (lambda x, v: x + hl.arange(v), 3),
        (lambda x, v: x.reshape(v, -1), 3),
        (lambda x, v: hl.softmax(x, dim=v), 1),
        (lambda x, v: hl.nn.functional.layer_norm(x, v), 3),
    ],
)
def test_functions(call: Callable[[Any, Any], Any], value: Any, kind: str) -> None:
    (want,) = run(lambda x: call(x, value), X[:4])
    (got,) = run(lambda x: call(x, KINDS[kind](value)), X[:4])
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert (got == want).all()


@kinds
def test_seeds(kind: str) -> None:
    want = nn.Linear(3, 2)
    hl.manual_seed(KINDS[kind](5))
    first = want.state_dict()["weight"].copy()
    hl.manual_seed(5)
    assert (nn.Linear(3, 2).state_dict()["weight"] == first).all()
