"""Mixup and CutMix: what is mixed, by how much, and the loss of it."""

from types import SimpleNamespace
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.nn import functional as F
from hotloop.training.plans.mixing import beta_quantiles, mix_batch, mix_losses
from hotloop.training.plans.runtime import Runtime
from train.recipes import quiet

ROWS, SIZE = 6, (9, 12)
RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (ROWS, 3, *SIZE)).astype(np.float32)
Y = RNG.integers(0, 4, ROWS)
LOGITS = RNG.standard_normal((ROWS, 4)).astype(np.float32)


def steps(n: int, **config: float) -> Any:
    """(mixed x, share of the own, mixed loss, loss by soft labels) of n steps."""
    nothing = nn.Module()
    runtime = Runtime(nothing, _core.Device("cpu"), seed=3)
    runtime.upload()
    settings = SimpleNamespace(**({"mixup": 0.0, "cutmix": 0.0} | config))

    def build(trace: Any) -> None:
        trace.input("rows", "int64", (ROWS,))
        batch = {"x": trace.const(X), "y": trace.const(Y)}
        made, mixed = mix_batch(batch, settings)
        assert mixed is not None
        logits, y, other = trace.const(LOGITS), batch["y"], mixed.batch["y"]
        loss = mix_losses(F.cross_entropy(logits, y), F.cross_entropy(logits, other), mixed.own)
        soft = F.one_hot(y, 4).float() * mixed.own + F.one_hot(other, 4).float() * (1 - mixed.own)
        for value in (made["x"], mixed.own, loss, F.cross_entropy(logits, soft)):
            trace.graph.output(value.id_in(trace))
        total = sum(t.total / t.denominator * t.weight for t in loss._parts)
        trace.graph.output(total.id_in(trace))

    graph, _ = runtime.trace(build, training=True)
    plan = runtime.plan(graph)
    for step in range(n):
        runtime.session.control_set(attempted=step)
        plan.run(1, 5.0)
        yield [plan.output(i) for i in range(5)]
    runtime.close()


def test_mixup() -> None:
    shares = []
    for x, own, loss, soft, parts in steps(60, mixup=0.4):
        np.testing.assert_allclose(x, own * X + (1 - own) * X[::-1], rtol=1e-5, atol=1e-3)
        np.testing.assert_allclose(loss, soft, rtol=1e-5)
        np.testing.assert_allclose(parts, loss, rtol=1e-6)
        shares.append(float(own))
    assert len(set(shares)) > 50
    assert 0.3 < np.mean(shares) < 0.7
    assert all(0 <= share <= 1 for share in shares)


def test_cutmix() -> None:
    areas = []
    for x, own, loss, soft, _ in steps(60, cutmix=1.0):
        np.testing.assert_allclose(loss, soft, rtol=1e-5)
        cut = (x != X).any(axis=(0, 1))  # pixels of another row
        np.testing.assert_array_equal(x, np.where(cut, X[::-1], X))
        rows, columns = cut.any(1), cut.any(0)
        np.testing.assert_array_equal(cut, rows[:, None] & columns[None])
        for side in (rows, columns):  # without gaps
            assert (
                np.diff(np.flatnonzero(side), prepend=np.flatnonzero(side)[:1]).max(initial=0) < 2
            )
        np.testing.assert_allclose(own, 1 - cut.mean(), atol=1e-6)
        areas.append(cut.mean())
    assert min(areas) < 0.1
    assert max(areas) > 0.5


def test_areas_of_boxes() -> None:
    """What a row keeps of its own is Beta's share, less what boxes have outside of the image."""
    cut = [1 - float(own) for _, own, *_ in steps(600, cutmix=1.0)]
    rng = np.random.default_rng(1)
    half = np.sqrt(rng.random(100_000)) / 2  # of sides, for an area even in (0, 1)
    inside = []
    for n in SIZE:
        centre, reach = np.floor(rng.random(100_000) * n), np.floor(half * n)
        inside.append(np.minimum(centre + reach, n) - np.maximum(centre - reach, 0))
    want = inside[0] * inside[1] / (SIZE[0] * SIZE[1])
    assert np.mean(cut) == pytest.approx(want.mean(), abs=4 * want.std() / np.sqrt(600))
    assert np.quantile(cut, 0.9) == pytest.approx(np.quantile(want, 0.9), abs=0.08)


def test_either_in_a_step() -> None:
    mixes = [((x != X) & (x != X[::-1])).any() for x, *_ in steps(60, mixup=1.0, cutmix=1.0)]
    assert 15 < sum(mixes) < 45


@pytest.mark.parametrize("a", [0.1, 0.2, 1.0, 3.0])
def test_quantiles(a: float) -> None:
    """Moments of Beta(a, a): 1/2, 1 / (4 (2a + 1)), and the third about the middle is 0."""
    found = beta_quantiles(a).astype(np.float64)
    assert (np.diff(found) >= 0).all()
    assert found.mean() == pytest.approx(0.5, abs=1e-6)
    assert found.var() == pytest.approx(1 / (4 * (2 * a + 1)), rel=1e-3)
    assert ((found - 0.5) ** 4).mean() == pytest.approx(
        3 / (16 * (2 * a + 1) * (2 * a + 3)), rel=2e-3
    )


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE[0] * SIZE[1], 4))


def test_training() -> None:
    """It trains, by other steps, and validates without mixing."""
    found = {}
    for name, fields in {"none": {}, "mixup": {"mixup": 0.2}, "cutmix": {"cutmix": 1.0}}.items():
        hl.manual_seed(0)
        data = hl.DataModule.from_arrays(X / 255, Y, val=(X / 255, Y), batch_size=4)
        config = quiet(max_epochs=30, lr=1e-2, restore_best=False, **fields)
        found[name] = hl.train(net(), data, config).history["val_loss"]
    assert found["none"] != found["mixup"] != found["cutmix"]
    assert found["mixup"][-1] < 0.5 * found["mixup"][0]
    again = hl.train  # the same seed gives the same steps
    hl.manual_seed(0)
    data = hl.DataModule.from_arrays(X / 255, Y, val=(X / 255, Y), batch_size=4)
    config = quiet(max_epochs=30, lr=1e-2, restore_best=False, mixup=0.2)
    assert again(net(), data, config).history["val_loss"] == found["mixup"]


def test_what_cannot_be_mixed() -> None:
    ids = RNG.integers(0, 5, (8, 3))
    with pytest.raises(hl.ConfigError, match="mixup: inputs must be measurements, got int64"):
        hl.train(nn.Embedding(5, 2), (ids, ids), quiet(max_epochs=1, mixup=0.2))
    flat = X.reshape(ROWS, -1)
    with pytest.raises(hl.ConfigError, match=r"cutmix: inputs must be images .* \(6, 324\)"):
        hl.train(nn.Linear(324, 4), (flat, Y), quiet(max_epochs=1, cutmix=1.0))

    class Own(nn.Linear):
        def training_step(self, batch: Any) -> Any:
            return F.cross_entropy(self(batch["x"]), batch["y"])

    with pytest.raises(hl.ConfigError, match="mixup: the model's training_step makes the losses"):
        hl.train(Own(324, 4), (flat, Y), quiet(max_epochs=1, mixup=0.2))
    sequences = [RNG.random((n, 3)) for n in (3, 4, 5, 6)]
    data = hl.DataModule.from_sequences(sequences, [0, 1, 0, 1])
    with pytest.raises(hl.ConfigError, match="mixup: sequences of several lengths"):
        hl.train(hl.models.lstm_classifier(3, 2), data, quiet(max_epochs=1, mixup=0.2))
