"""training_step as people write it: its arguments, what it logs, metrics beside it."""

import warnings

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.nn import functional as F
from train.recipes import classes, exact, same_bits, weights

X, Y = classes()
W = np.random.default_rng(0).uniform(0.5, 2.0, 90).astype(np.float32)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 3)

    def forward(self, x):
        return self.body(x)


def stepping(step):
    """A model with this training_step."""
    return type("Own", (Base,), {"training_step": step})()


def train(model, **fields):
    data = hl.DataModule.from_arrays(X, Y, val=(X[:20], Y[:20]), batch_size=40)
    return hl.train(model, data, exact(**({"max_epochs": 2} | fields)))


def by_name(self, batch):
    return F.cross_entropy(self(batch["x"]), batch["y"])


def unpacked(self, batch):
    x, y = batch
    return F.cross_entropy(self(x), y)


def with_index(self, batch, batch_idx):
    return F.cross_entropy(self(batch[0]), batch[1])


def as_mapping(self, batch, *, scale=1.0):
    parts = dict(batch)
    assert list(parts) == list(batch.keys()) == ["x", "y"]
    assert "x" in batch
    assert "weight" not in batch
    return scale * F.cross_entropy(self(parts["x"]), batch.get("y"))


@pytest.mark.parametrize("step", [by_name, unpacked, with_index, as_mapping])
def test_ways_to_take_a_batch(step) -> None:
    plain, model = Base(), stepping(step)
    want, got = train(plain), train(model)
    assert same_bits(weights(plain), weights(model))
    assert got.history["val_loss"] == want.history["val_loss"]


def test_weights_are_the_third() -> None:
    def step(self, batch):
        x, y, weight = batch
        return (F.cross_entropy(self(x), y, reduction="none") * weight).mean()

    data = hl.DataModule.from_arrays(X, Y, sample_weight=W, batch_size=90)
    assert np.isfinite(hl.train(stepping(step), data, exact(max_epochs=1)).history["loss"][0])


def test_too_few_names_for_a_batch_are_told_what_it_has() -> None:
    data = hl.DataModule.from_arrays(X, Y, sample_weight=W)
    with pytest.raises(ValueError, match="too many values to unpack") as held:
        hl.train(stepping(unpacked), data, exact(max_epochs=1))
    assert held.value.__notes__ == ["training_step: batch has 'x', 'y', 'weight', in this order"]


def test_sample_weights_that_the_loss_leaves_out_are_told_of() -> None:
    data = hl.DataModule.from_arrays(X, Y, sample_weight=W, batch_size=90)
    with pytest.warns(
        hl.ModelWarning, match=r"loss does not depend on batch\['weight'\].*_sample='skip'"
    ):
        hl.train(stepping(by_name), data, exact(max_epochs=1))

    def weighed(self, batch):
        losses = F.cross_entropy(self(batch["x"]), batch["y"], reduction="none")
        return (losses * batch["weight"]).sum() / batch["weight"].sum()

    own, plain = stepping(weighed), Base()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hl.train(own, data, exact(max_epochs=1))
    hl.train(plain, data, exact(max_epochs=1))
    np.testing.assert_allclose(
        weights(own)["body.weight"], weights(plain)["body.weight"], atol=1e-7
    )


class Tagger(nn.Module):
    """Classes in the last dim, of which the loss outside of the model gets them in dim 1."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))

    def forward(self, x):
        return self.body(x)

    def training_step(self, batch):
        return nn.CrossEntropyLoss()(self(batch["x"]).movedim(-1, 1), batch["y"])


def test_a_loss_that_is_no_part_of_the_model_is_not_its_output() -> None:
    """Both are outermost modules; labels are read from what the model returned."""
    ids = np.random.default_rng(0).integers(0, 3, (90, 7))
    result = hl.train(Tagger(), (ids, ids), exact(max_epochs=1, metrics=[]))
    labels = hl.predict(result, ids, labels=True, loss="cross_entropy")
    np.testing.assert_array_equal(labels, hl.predict(result, ids).argmax(-1))


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda self, batch: self(batch).mean(), "batch: .*'x', 'y'.*got .shape; write batch"),
        (lambda self, batch: self(batch["inputs"]).mean(), r"batch: .*'x', 'y'.*got 'inputs'"),
        (lambda self, batch: self(batch[2]).mean(), "batch: .*'x', 'y'.*got 2"),
        (lambda self, batch: self(batch.x).mean(), "batch: .*'x', 'y'.*got .x"),
        (lambda self, batch: F.mse_loss(batch, 0.0), 'batch: .*write batch'),
        (lambda self, b, i: self(b[0]).mean() * i, "batch_idx"),
        (lambda self, b, i: self(b[0]).mean() if i % 2 else 0, "batch_idx.*hl.scalar"),
        (lambda self, b, i, j: self(b[0]).mean(), r"training_step\(self, batch\) or .*batch_idx"),
        (lambda self, b: None, "training_step: must be a tensor .* got NoneType; has it a return"),
        (lambda self, b: (self(b[0]).mean(), 1), 'got tuple; write return {"loss": loss, "name"'),
        (lambda self: 0.0, r"training_step\(self, batch\)"),
    ],
)  # fmt: skip
def test_a_batch_that_is_misused_is_named(step, words) -> None:
    with pytest.raises((hl.TraceError, hl.ConfigError), match=words):
        train(stepping(step))


def test_self_log() -> None:
    def step(self, batch, batch_idx):
        x, y = batch
        output = self(x)
        loss = F.cross_entropy(output, y)
        self.log("accuracy", (output.argmax(1) == y).float().mean(), prog_bar=True)
        self.log_dict({"size": output.square().mean(), "two": 2})
        return loss

    plain, model = Base(), stepping(step)
    want, got = train(plain, metrics=["accuracy"]), train(model, monitor="val_accuracy", mode="max")
    assert same_bits(weights(plain), weights(model))
    assert got.history["val_accuracy"] == pytest.approx(want.history["val_accuracy"], rel=1e-6)
    output = np.asarray(hl.predict(model, X[:20]), np.float64)
    assert got.history["val_size"][-1] == pytest.approx((output**2).mean(), rel=1e-5)
    assert got.history["two"] == [2.0, 2.0]
    assert hl.predict(model, X[:5]).shape == (5, 3)


def test_forward_may_log() -> None:
    class Net(Base):
        def forward(self, x):
            made = self.body(x)
            self.log("size", made.square().mean())
            return made

    assert train(Net()).history["size"][0] > 0


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (lambda self: self.log("loss", 1.0), "'loss'.*taken"),
        (lambda self: [self.log("a", 1.0), self.log("a", 2.0)], "'a'.*twice"),
        (lambda self: self.log("a", np.ones(2)), "'a'.*a tensor or a number"),
        (lambda self: self.log("a", 1.0, on_step=True), "each epoch.*on_step"),
    ],
)
def test_what_is_not_logged(log, words) -> None:
    def step(self, batch):
        log(self)
        return by_name(self, batch)

    with pytest.raises(hl.HotloopError, match=words):
        train(stepping(step))


def test_log_outside_of_a_step() -> None:
    with pytest.raises(hl.TraceError, match="log: must run inside"):
        Base().log("a", 1.0)


def test_metrics_beside_a_training_step() -> None:
    def share(y_true, y_pred):
        return float((y_true == y_pred).mean())

    metrics = ["accuracy", "f1", share]
    want, got = train(Base(), metrics=metrics), train(stepping(by_name), metrics=metrics)
    for name in ("val_accuracy", "val_f1", "val_share", "val_loss"):
        assert got.history[name] == pytest.approx(want.history[name], rel=1e-6), name
    assert hl.evaluate(got, (X, Y)) == pytest.approx(hl.evaluate(want, (X, Y)), rel=1e-6)


# ---- names in the history


def of_losses(**returned):
    """A training_step that returns the loss under some names."""

    def step(self, batch):
        loss = by_name(self, batch)
        return {name: loss * scale for name, scale in returned.items()}

    return stepping(step)


def logging(name, **returned):
    """A training_step that logs a name and returns others."""

    def step(self, batch):
        self.log(name, 1.0)
        loss = by_name(self, batch)
        return {"loss": loss, **{key: loss * scale for key, scale in returned.items()}}

    return stepping(step)


def seven(y_true, y_pred):
    return 7.0


@pytest.mark.parametrize(
    ("make", "fields", "words"),
    [
        (Base, {"metrics": {"loss": seven}}, "'val_loss'.*the loss on val.*the metric 'loss'"),
        (
            Base,
            {"loss": {"a": "cross_entropy", "val_a": "cross_entropy"}},
            "'val_a'.*the loss 'val_a' and by the loss 'a' on validation",
        ),
        (
            Base,
            {"loss": {"a": "cross_entropy", "b": "cross_entropy"}, "metrics": {"a": seven}},
            "'val_a'.*the loss 'a' on validation and by the metric 'a'",
        ),
        (
            lambda: logging("val_loss"),
            {},
            r"'val_loss'.*self.log\('val_loss', ...\).*the loss on validation",
        ),
        (
            lambda: logging("a", a=2.0),
            {},
            r"'a'.*'a' of what training_step returns and by.*self.log\('a'",
        ),
        (
            lambda: of_losses(loss=1.0, val_loss=2.0),
            {},
            "'val_loss' of what training_step returns.*the loss on validation",
        ),
        (lambda: of_losses(a=1.0, epoch=2.0), {}, "'epoch'.*every epoch has.*the loss 'epoch'"),
        (lambda: logging("seconds"), {}, "'seconds'.*every epoch has.*self.log"),
        (lambda: logging("size"), {"metrics": {"size": seven}}, "'val_size'.*the metric 'size'"),
        (lambda: logging(""), {}, "name must be a text with at least one character, got ''"),
        (lambda: logging(3), {}, "name must be a text with at least one character, got 3"),
    ],
)
def test_a_name_stands_for_one_value(make, fields, words) -> None:
    with pytest.raises((hl.ConfigError, hl.TraceError), match=words):
        train(make(), **fields)
