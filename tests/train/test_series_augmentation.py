"""Augmentation of series in the step: what each does, padding, training alone."""

from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.errors import ConfigError
from hotloop.training.plans.runtime import Runtime
from hotloop.training.plans.series import augment_series
from train.recipes import quiet

BATCH, TIMES, FEATURES = 64, 30, 3
X = np.random.default_rng(0).standard_normal((BATCH, TIMES, FEATURES)).astype(np.float32) + 3


def drawn(*steps: Any, n: int = 3) -> list[np.ndarray]:
    """What n steps of training make of X."""
    nothing = nn.Module()
    runtime = Runtime(nothing, _core.Device("cpu"), seed=5)
    runtime.upload()

    def build(trace: Any) -> None:
        trace.input("rows", "int64", (BATCH,))
        trace.graph.output(augment_series("x", trace.const(X), steps).id_in(trace))

    plan = runtime.plan(runtime.trace(build, training=True)[0])
    made = []
    for step in range(n):
        runtime.session.control_set(attempted=step)
        plan.run(1, 5.0)
        made.append(plan.output(0))
    runtime.close()
    return made


def test_jitter() -> None:
    first, second, _ = drawn(hl.augment.Jitter(0.1))
    noise = first - X
    assert noise.mean() == pytest.approx(0, abs=0.01)
    assert noise.std() == pytest.approx(0.1, rel=0.03)
    assert not np.array_equal(first, second)
    assert abs(np.corrcoef(noise[:, 0].ravel(), noise[:, 1].ravel())[0, 1]) < 0.3


def test_scaling() -> None:
    first, *_ = drawn(hl.augment.Scaling(0.2))
    factors = first / X
    np.testing.assert_allclose(factors, factors[:, :1] + 0 * factors, rtol=1e-4)  # at all times
    by_series = factors[:, 0]
    assert by_series.mean() == pytest.approx(1, abs=0.06)
    assert by_series.std() == pytest.approx(0.2, rel=0.25)


def test_time_mask() -> None:
    lengths = []
    for made in drawn(hl.augment.TimeMask(0.4, p=0.5), n=20):
        masked = (made == 0).all(axis=2)
        np.testing.assert_array_equal(made, np.where(masked[:, :, None], 0, X))
        edges = np.abs(np.diff(np.pad(masked, ((0, 0), (1, 1))).astype(int), axis=1)).sum(1)
        assert set(edges) <= {0, 2}  # one piece
        lengths += masked.sum(1).tolist()
    found = np.array(lengths)
    assert found.max() == 12
    assert (found > 0).mean() == pytest.approx(0.5 * 12 / 13, abs=0.05)
    assert found[found > 0].mean() == pytest.approx(6.5, abs=0.5)
    for made in drawn(hl.augment.TimeMask(0.4, p=0.0)):
        np.testing.assert_array_equal(made, X)


class Sums(nn.Module):
    """Outputs that show what entered forward."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x: Any, lengths: Any = None) -> Any:
        return self.head(x[:, :, :2].sum(1))


def test_training_alone_is_augmented() -> None:
    series = np.random.default_rng(0).standard_normal((200, 2))
    target = np.arange(200) % 2
    losses = {}
    for augment in ("none", "strong", hl.augment.Jitter(2.0)):
        data = hl.DataModule.from_windows(
            series, 8, target=target, val=0.25, augment=augment, batch_size=20
        )
        hl.manual_seed(0)
        result = hl.train(Sums(), data, quiet(max_epochs=1, lr=1e-12, precision="fp32"))
        losses[str(augment)] = result.history["loss"][0], result.history["val_loss"][0]
    train, val = zip(*losses.values())
    assert len(set(train)) == 3
    assert max(val) - min(val) < 1e-6


def test_padding_stays() -> None:
    """Sequences of one bucket: rows behind the end are 0 in the step as well."""

    class Own(Sums):
        def training_step(self, batch: Any) -> Any:
            x, lengths = batch["x"]
            behind = hl.arange(6)[None] >= lengths[:, None]
            self.log("behind", (x.abs().sum(2) * behind.cast("float32")).sum())
            self.log("inside", (x.abs().sum(2) * (~behind).cast("float32")).sum())
            return nn.functional.cross_entropy(self(x), batch["y"])

    X = [np.ones((n, 2)) for n in (2, 4, 6, 6)]
    data = hl.DataModule.from_sequences(
        X, [0, 1, 0, 1], buckets=[6], augment=hl.augment.Jitter(0.5), batch_size=4
    )
    result = hl.train(Own(), data, quiet(max_epochs=2))
    assert result.history["behind"] == [0, 0]
    assert result.history["inside"][0] != pytest.approx(36)


def test_wrong_steps() -> None:
    series = np.zeros((50, 2))
    for wrong, said in (
        ("wild", "augment: must be"),
        ([3], r"augment\[0\]: must be Jitter, Scaling or TimeMask"),
        (hl.augment.RandomHorizontalFlip(), r"augment\[0\]: must be Jitter"),
    ):
        with pytest.raises(ConfigError, match=said):
            hl.DataModule.from_windows(series, 5, augment=wrong)
    with pytest.raises(ConfigError, match="Jitter: sigma: must be at least 0"):
        hl.augment.Jitter(-1)
    with pytest.raises(ConfigError, match="TimeMask: share: must be at most 1"):
        hl.augment.TimeMask(2)
    ids = hl.DataModule.from_windows(
        np.arange(50), 5, target=np.arange(50) % 2, normalize=None, augment="basic"
    )
    with pytest.raises(ConfigError, match=r"need measurements \(batch, time, ...\), got int64"):
        hl.train(nn.Embedding(50, 2), ids, quiet(max_epochs=1))
