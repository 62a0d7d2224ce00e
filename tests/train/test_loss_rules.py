"""Settings of the loss: class weights over the model's outputs, and what a loss does not take."""

import re
import warnings

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.nn import functional as F
from hotloop.training.scoring.losses import class_weights
from train.recipes import classes, mlp, quiet

X, Y = classes()  # classes 0, 1, 2


def loss_of_first_epoch(model, y, **fields) -> float:
    config = quiet(max_epochs=1, lr=1e-9, **fields)
    return hl.train(model, hl.DataModule.from_arrays(X, y, batch_size=90), config).history["loss"][
        0
    ]


def weighted(model, y, weights) -> float:
    logits = hl.predict(model, X).astype(np.float64)
    logits -= np.log(np.exp(logits).sum(1, keepdims=True))
    rows = np.asarray(weights)[y]
    return float(-(rows * logits[np.arange(len(y)), y]).sum() / rows.sum())


@pytest.mark.parametrize("n_outputs", [3, 5])
def test_balanced_weights_cover_the_outputs(n_outputs: int) -> None:
    """As scikit-learn: N / (K count) of the K classes that occur; others never count."""
    y = np.where(Y == 1, 2, Y)  # 0 and 2 occur
    counts = np.bincount(y, minlength=n_outputs)
    weights = [90 / (2 * n) if n else 1.0 for n in counts]
    model = mlp(c=n_outputs)
    got = loss_of_first_epoch(model, y, class_weight="balanced")
    assert got == pytest.approx(weighted(model, y, weights), rel=1e-5)


@pytest.mark.parametrize(
    ("ids", "n_outputs", "want"),
    [
        ([0, 0, 0, 2], 3, [4 / 6, 1.0, 4 / 2]),  # N / (K count), K = 2 classes that occur
        ([0, 0, 0, 2], 5, [4 / 6, 1.0, 4 / 2, 1.0, 1.0]),
        ([1, 1, 1], 2, [1.0, 1.0]),
        ([0, 1, 2, 2, 2, 2], 3, [6 / 3, 6 / 3, 6 / 12]),
        ([0, 1, 1], 1, [3 / 2, 3 / 4]),  # one logit tells two classes apart
    ],
)
def test_balanced_weights_are_these(ids, n_outputs, want) -> None:
    """Their size as well: where a loss divides by the weights' sum it cannot be seen."""
    data = hl.DataModule.from_arrays(X[: len(ids)], np.array(ids))
    config = hl.TrainingConfig(class_weight="balanced")
    assert class_weights(config, data, max(n_outputs, 2)) == pytest.approx(want, rel=1e-15)


def test_balanced_weights_scale_a_loss_that_does_not_divide_by_them() -> None:
    y = np.where(Y == 1, 2, Y)  # 0 and 2 occur
    counts = np.bincount(y, minlength=3)
    weights = np.array([90 / (2 * n) if n else 1.0 for n in counts])
    model = mlp()
    logits = hl.predict(model, X).astype(np.float64)
    right = logits[np.arange(90), y]
    margins = np.maximum(0.0, 1.0 - right[:, None] + logits)
    margins[np.arange(90), y] = 0.0
    want = (weights[y] * margins.sum(1) / 3).mean()
    got = loss_of_first_epoch(model, y, loss="multi_margin", class_weight="balanced")
    assert got == pytest.approx(want, rel=1e-5)


def test_a_class_of_validation_alone_counts_there() -> None:
    data = hl.DataModule.from_arrays(X[Y < 2], Y[Y < 2], val=(X[Y == 2], Y[Y == 2]))
    result = hl.train(mlp(), data, quiet(max_epochs=1, class_weight="balanced"))
    assert result.history["val_loss"][0] > 0.1


def test_weights_by_name_and_by_list_cover_the_outputs() -> None:
    model = mlp(c=4)
    got = loss_of_first_epoch(model, Y, class_weight={1: 3.0, 3: 9.0})
    assert got == pytest.approx(weighted(model, Y, [1, 3, 1, 9]), rel=1e-5)
    got = loss_of_first_epoch(model, Y, class_weight=[1, 2, 3, 4])
    assert got == pytest.approx(weighted(model, Y, [1, 2, 3, 4]), rel=1e-5)
    with pytest.raises(hl.ConfigError, match=r"must have 4 weights, one for each output .* got 3"):
        loss_of_first_epoch(model, Y, class_weight=[1, 2, 3])


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (nn.HuberLoss(), r"HuberLoss takes no sample weights, .*; write loss='huber', which takes"),
        (nn.HuberLoss(), r"sample_weight, or the 0 of what on_bad_sample='skip' leaves out"),
        (
            lambda o, t: ((o - t) ** 2).mean(),
            r"; write a training_step\(self, batch\) in the model",
        ),
    ],
)
def test_a_loss_without_sample_weights_says_what_to_write(loss, words) -> None:
    data = hl.DataModule.from_arrays(X, X[:, 0], sample_weight=np.ones(90))
    with pytest.raises(hl.ConfigError, match=words):
        hl.train(nn.Linear(6, 1), data, quiet(max_epochs=1, loss=loss))


class OneLogit(nn.Module):
    """A logit per row, as a vector or as a column."""

    def __init__(self, is_column: bool) -> None:
        super().__init__()
        self.body = nn.Linear(6, 1)
        self.is_column = is_column

    def forward(self, x):
        out = self.body(x)
        return out if self.is_column else out[:, 0]


@pytest.mark.parametrize("is_column", [False, True])
@pytest.mark.parametrize(
    ("fields", "ratio"),
    [
        ({}, 1.0),
        ({"class_weight": [0.5, 2.0]}, 4.0),
        ({"class_weight": {1: 3.0}}, 3.0),
        ({"class_weight": "balanced"}, 60 / 30),
    ],
)
def test_one_logit_weighs_class_1_by_the_weights_ratio(fields, ratio, is_column) -> None:
    """mean of ratio y softplus(-x) + (1 - y) softplus(x), as BCEWithLogitsLoss(pos_weight)."""
    y = (Y == 1).astype(np.int64)
    model = OneLogit(is_column)
    x = hl.predict(model, X).astype(np.float64).ravel()
    want = np.where(y == 1, ratio * np.logaddexp(0, -x), np.logaddexp(0, x)).mean()
    assert loss_of_first_epoch(model, y, **fields) == pytest.approx(want, rel=1e-5)


LINKS = {
    "cross_entropy": lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
    "nll": np.exp,
    "bce": lambda x: 1 / (1 + np.exp(-x)),
    "multilabel_soft_margin": lambda x: 1 / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("name", LINKS)
def test_probabilities_are_those_of_the_loss(name: str) -> None:
    y = Y if name in ("cross_entropy", "nll") else np.eye(3, dtype=np.float32)[Y]
    model = mlp()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one-hot targets
        hl.train(model, (X, y), quiet(max_epochs=1, loss=name))
    logits = hl.predict(model, X).astype(np.float64)
    proba = hl.predict(model, X, proba=True)
    np.testing.assert_allclose(proba, LINKS[name](logits), rtol=1e-5, atol=1e-6)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 3)

    def training_step(self, batch):
        return F.cross_entropy(self.body(batch["x"]), batch["y"])


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        ("multi_margin", None),
        (nn.CrossEntropyLoss(), "CrossEntropyLoss"),
        (F.cross_entropy, "cross_e"),
    ],
)
def test_what_a_loss_does_not_take_is_refused(loss, name) -> None:
    if name is None:
        loss_of_first_epoch(mlp(), Y, loss=loss, class_weight="balanced")
    else:
        with pytest.raises(hl.ConfigError, match=f"class_weight: the loss {name}"):
            loss_of_first_epoch(mlp(), Y, loss=loss, class_weight="balanced")
    with pytest.raises(hl.ConfigError, match=r"label_smoothing: the loss .* does not take it"):
        loss_of_first_epoch(mlp(), Y, loss=loss, label_smoothing=0.1)


@pytest.mark.parametrize("fields", [{"class_weight": "balanced"}, {"label_smoothing": 0.1}])
def test_a_training_step_of_ones_own_has_its_own(fields) -> None:
    with pytest.raises(hl.ConfigError, match="training_step makes the losses"):
        hl.train(Own(), (X, Y), quiet(**fields))


# ---------------------------------------------------------------------------- links made twice


class InForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 3)

    def forward(self, x):
        return F.softmax(self.body(x), dim=1)


def net(n: int, last: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, n), last)


@pytest.mark.parametrize(
    ("model", "y", "fields", "words"),
    [
        (
            net(3, nn.Softmax(dim=1)),
            Y,
            {},
            "ends in 1, softmax, .* cross_entropy .* leave the soft",
        ),
        (InForward(), Y, {}, "ends in softmax, which gives the loss cross_entropy probabilities"),
        (net(1, nn.Sigmoid()), Y % 2, {}, "ends in 1, sigmoid, .*binary.* leave the sigmoid out"),
        (net(3, nn.Softmax(1)), Y, {"loss": nn.CrossEntropyLoss()}, "the loss CrossEntropyLoss"),
        (net(3, nn.Softmax(1)), Y, {"loss": "nll"}, "logarithms; end it in log_softmax"),
        (net(3, nn.LogSoftmax(1)), Y, {"loss": "nll"}, None),
        (net(3, nn.LogSoftmax(1)), Y, {}, None),  # idempotent: nothing is wrong with it
        (net(3, nn.Softmax(1)), X[:, :3], {}, None),
        (mlp(), Y, {}, None),
    ],
)
def test_a_link_before_its_loss_is_warned_of_once(model, y, fields, words) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        hl.train(model, (X, y), quiet(max_epochs=2, **fields))
    said = [str(w.message) for w in found if w.category is hl.ModelWarning]
    if words is None:
        assert not said
    else:
        assert len(said) == 1
        assert re.search(words, said[0]), said


FLOATS = X[:, :1].astype(np.float32)


@pytest.mark.parametrize("loss", ["auto", {"a": "auto"}, {"a": "auto", "b": "own"}], ids=str)
@pytest.mark.parametrize(("y", "metric"), [(Y, "r2"), (FLOATS, "accuracy")], ids=["ids", "floats"])
def test_auto_in_a_dict_of_losses_checks_metrics_as_auto_does(loss, y, metric) -> None:
    def own(output, target):
        return (output**2).mean()

    if isinstance(loss, dict):
        loss = {name: own if part == "own" else part for name, part in loss.items()}
    data = hl.DataModule.from_arrays(X, y, val=0.2)
    with pytest.raises(hl.ConfigError, match=f"metrics: {metric} needs .* targets; choose"):
        hl.train(mlp(c=3 if y is Y else 1), data, quiet(loss=loss, metrics=[metric]))


def test_auto_in_a_dict_of_losses_does_not_read_outputs() -> None:
    with pytest.raises(hl.ConfigError, match="predict: loss must be one whose outputs are classes"):
        hl.predict(mlp(), X, labels=True, loss={"a": "auto"})
    loss = {"a": "auto", "b": "cross_entropy"}
    assert hl.predict(mlp(), X, labels=True, loss=loss).shape == (90,)
