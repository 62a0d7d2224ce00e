"""Metrics of one's own: they get what they need, in one shape, and know their direction."""

import functools

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.nn import functional as F
from train.recipes import classes, mlp, quiet, regression

X, Y = classes()
TWO = (Y == 1).astype(np.int64)
RX, RY = regression(64)


class Seen:
    """A metric that keeps what it was given."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, y_true, y_pred):
        self.y_true, self.y_pred = np.array(y_true), np.array(y_pred)
        return float(len(y_true))


def train(model, x, y, metrics, **fields):
    data = hl.DataModule.from_arrays(x, y, val=(x, y), batch_size=32)
    return hl.train(model, data, quiet(max_epochs=1, metrics=metrics, **fields))


def proba_of(model, x=X):
    return np.asarray(hl.predict(model, x, proba=True))


def auc(y_true, score):
    """By all pairs."""
    above = score[y_true == 1][:, None] - score[y_true == 0][None]
    return float(((above > 0) + 0.5 * (above == 0)).mean())


def log_loss(y_true, proba):
    return float(-np.log(proba[np.arange(len(y_true)), y_true]).mean())


def test_probabilities_of_classes() -> None:
    metric = hl.metric(log_loss, needs="proba", mode="min")
    model = mlp()
    result = train(model, X, Y, metric)
    assert result.history["val_log_loss"][-1] == pytest.approx(result.history["val_loss"][-1], 1e-5)
    scores = hl.evaluate(result, (X, Y))
    assert scores["log_loss"] == pytest.approx(log_loss(Y, proba_of(model)), rel=1e-5)


@pytest.mark.parametrize("c", [1, 2])
def test_of_two_classes_probabilities_are_those_of_class_1(c: int) -> None:
    model = mlp(c=c)
    result = train(model, X, TWO, hl.metric(auc, needs="proba", mode="max"))
    want = auc(TWO, proba_of(model)[:, -1])
    assert 0.0 < want < 1.0
    assert result.history["val_auc"][-1] == pytest.approx(want)
    step = hl.stepper(model, quiet(metrics=[hl.metric(auc, needs="proba", mode="max")]), (X, TWO))
    assert step.evaluate("train")["auc"] > 0


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("roc_auc_score", "proba"),
        ("average_precision_score", "proba"),
        ("brier_score_loss", "proba"),
        ("log_loss", "proba"),
        ("hinge_loss", "decision"),
        ("accuracy_score", "labels"),
        ("matthews_corrcoef", "labels"),
        ("own", "labels"),
    ],
)
def test_functions_of_scikit_learn_get_what_they_need(name, needs, capfd) -> None:
    model, seen = mlp(c=1), Seen(name)
    result = train(model, X, TWO, functools.partial(seen), enable_progress_bar="auto")
    assert result.history[f"val_{name}"] == [90.0]
    output = np.asarray(hl.predict(model, X))[:, 0]
    want = {"proba": proba_of(model)[:, 0], "labels": output > 0}.get(needs, output)
    np.testing.assert_allclose(seen.y_pred, want, rtol=1e-5)
    np.testing.assert_array_equal(seen.y_true, TWO)
    header = " ".join(capfd.readouterr().err.split())
    assert f"metrics {name}(y_true, {needs})" in header


@pytest.mark.parametrize("c", [1, 2, 3])
def test_hinge_loss_gets_a_decision_value_of_two_classes(c: int) -> None:
    """As scikit-learn's takes it: (N,), positive for class 1; of more classes a column each."""
    model, seen = mlp(c=c), Seen("hinge_loss")
    train(model, X, Y if c == 3 else TWO, seen)
    output = np.asarray(hl.predict(model, X))
    want = {1: output[:, 0], 2: output[:, -1] - output[:, 0], 3: output}[c]
    np.testing.assert_allclose(seen.y_pred, want, rtol=1e-5, atol=1e-6)
    assert seen.y_pred.shape == want.shape


def test_decision_values_of_probabilities_are_about_a_half() -> None:
    model, seen = nn.Sequential(mlp(c=1), nn.Sigmoid()), Seen("hinge_loss")
    train(model, X, TWO, seen, loss=nn.BCELoss())
    proba = np.asarray(hl.predict(model, X))[:, 0]
    np.testing.assert_allclose(seen.y_pred, proba - 0.5, rtol=1e-5, atol=1e-6)


def test_a_metric_that_writes_to_its_arrays_changes_no_other() -> None:
    def spoil(y_true, y_pred, sample_weight=None):
        y_true[:] = 0
        y_pred[:] = 7
        sample_weight[:] = 0
        return 1.0

    def weight(y_true, y_pred, sample_weight=None):
        return float(sample_weight.sum())

    seen, ids, twos = Seen("seen"), Y.copy(), np.full(90, 2.0, np.float32)
    data = hl.DataModule.from_arrays(X, ids, sample_weight=twos, val=range(30))
    for metrics in ([spoil, seen, weight], [seen, spoil, weight]):
        result = hl.train(mlp(), data, quiet(max_epochs=1, metrics=metrics))
        np.testing.assert_array_equal(seen.y_true, Y[:30])
        np.testing.assert_array_equal(seen.y_pred, hl.predict(result, X[:30], labels=True))
        assert result.history["val_weight"] == [60.0]
    np.testing.assert_array_equal(ids, Y)


def test_every_need_of_many_classes_in_one_run() -> None:
    a, b, c = Seen("a"), Seen("b"), Seen("c")
    model = mlp()
    metrics = [hl.metric(f, needs=n) for f, n in ((a, "labels"), (b, "proba"), (c, "output"))]
    train(model, X, Y, [*metrics, "accuracy"])
    output = np.asarray(hl.predict(model, X))
    np.testing.assert_array_equal(a.y_pred, output.argmax(1))
    np.testing.assert_allclose(b.y_pred, proba_of(model), rtol=1e-5)
    np.testing.assert_allclose(c.y_pred, output, rtol=1e-5, atol=1e-6)


def test_yes_or_no_columns() -> None:
    y = (np.random.default_rng(0).random((64, 3)) < 0.4).astype(np.int64)
    model, bare, proba = nn.Linear(5, 3), Seen("bare"), Seen("proba")
    train(model, RX, y, [bare, hl.metric(proba, needs="proba")])
    output = np.asarray(hl.predict(model, RX))
    np.testing.assert_array_equal(bare.y_pred, output > 0)
    np.testing.assert_allclose(proba.y_pred, proba_of(model, RX), rtol=1e-5)


@pytest.mark.parametrize("y", [RY, RY[:, 0]], ids=["column", "flat"])
def test_values_have_the_shape_of_their_targets(y) -> None:
    bare, named = Seen("bare"), Seen("named")
    model = nn.Linear(5, 1)
    train(model, RX, y, [bare, hl.metric(named, needs="output", mode="min")])
    output = np.asarray(hl.predict(model, RX)).reshape(y.shape)
    for seen in (bare, named):
        assert seen.y_true.shape == seen.y_pred.shape == y.shape
        np.testing.assert_allclose(seen.y_pred, output, rtol=1e-5)


def test_outputs_of_another_shape_than_the_targets() -> None:
    def first(output, target):
        return F.mse_loss(output[:, 0], target)

    bare, raw = Seen("bare"), Seen("raw")
    with pytest.raises(hl.ShapeError, match=r"bare.*\(32, 2\).*\(32,\).*needs='output'"):
        train(nn.Linear(5, 2), RX, RY[:, 0], bare, loss=first)
    train(nn.Linear(5, 2), RX, RY[:, 0], hl.metric(raw, needs="output"), loss=first)
    assert raw.y_pred.shape == (64, 2)


@pytest.mark.parametrize(
    ("metric", "y", "fields", "words"),
    [
        (hl.metric(auc, needs="proba"), TWO, {"loss": lambda o, t: F.cross_entropy(o, t)}, "auc.*"
         "needs='proba'.*the loss <lambda>.*needs='output'"),
        (hl.metric(auc, needs="proba"), RY, {}, "auc: needs='proba'.*float targets"),
        (hl.metric(auc, needs="labels"), RY, {}, "auc: needs='labels'.*float targets"),
        ([lambda a, b: 0.0, lambda a, b: 1.0], TWO, {}, "two .*'<lambda>'.*a dict"),
        (["accuracy", hl.metric(auc, name="accuracy")], TWO, {}, "two .*'accuracy'"),
        (lambda a, b: "no", TWO, {}, "<lambda>: must return a number, got str 'no'"),
    ],
)  # fmt: skip
def test_metrics_that_are_refused(metric, y, fields, words) -> None:
    model, x = (nn.Linear(5, 1), RX) if y is RY else (mlp(c=2), X)
    with pytest.raises(hl.ConfigError, match=words):
        train(model, x, y, metric, **fields)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hl.metric("accuracy"), "needs a function"),
        (lambda: hl.metric(auc, needs="logits"), "needs: must be one of .*got 'logits'"),
        (lambda: hl.metric(auc, mode="up"), "mode: must be one of 'min', 'max', got 'up'"),
    ],
)
def test_what_metric_takes(make, words) -> None:
    with pytest.raises(hl.ConfigError, match=words):
        make()


def test_as_a_decorator() -> None:
    @hl.metric(needs="proba", mode="max")
    def sure(y_true, proba):
        return proba.max(1).mean()

    assert sure(TWO, np.eye(2)[TWO]) == 1.0
    model = mlp()
    assert train(model, X, Y, sure).history["val_sure"][-1] == pytest.approx(
        proba_of(model).max(1).mean(), rel=1e-5
    )


def test_a_function_without_targets_is_refused() -> None:
    model = nn.Linear(5, 5)
    with pytest.raises(hl.ConfigError, match=r"metrics: .* data without targets"):
        train(model, RX, None, Seen("a"), loss=lambda o, t: o.square().mean())


def test_sample_weights_reach_functions_that_take_them(capfd) -> None:
    got = {}

    def share(y_true, y_pred, sample_weight=None):
        got["weight"] = sample_weight
        return np.average(y_true == y_pred, weights=sample_weight)

    def blind(y_true, y_pred):
        return float((y_true == y_pred).mean())

    weight = np.random.default_rng(0).uniform(0.1, 2, 90).astype(np.float32)
    data = hl.DataModule.from_arrays(X, Y, val=(X, Y, weight), sample_weight=weight, batch_size=32)
    config = quiet(max_epochs=1, metrics=[share, blind, "accuracy"], enable_progress_bar="auto")
    history = hl.train(mlp(), data, config).history
    assert history["val_share"][-1] == pytest.approx(history["val_accuracy"][-1], rel=1e-6)
    np.testing.assert_array_equal(got["weight"], weight)
    header = " ".join(capfd.readouterr().err.split())
    assert "blind(y_true, labels) without sample weights" in header


@pytest.mark.parametrize("loss", [nn.BCELoss(), F.binary_cross_entropy])
def test_outputs_that_are_probabilities_are_cut_at_a_half(loss) -> None:
    model = nn.Sequential(nn.Linear(6, 1), nn.Sigmoid())
    seen = Seen("seen")
    result = train(model, X, TWO, ["accuracy", "f1", hl.metric(seen, needs="proba")], loss=loss)
    proba = np.asarray(hl.predict(model, X))[:, 0]
    assert ((proba > 0.5) != 1).any()
    assert result.history["val_accuracy"][-1] == pytest.approx(((proba > 0.5) == TWO).mean())
    np.testing.assert_array_equal(hl.predict(model, X, labels=True), proba > 0.5)
    np.testing.assert_allclose(proba_of(model)[:, 0], proba, rtol=1e-6)
    np.testing.assert_allclose(seen.y_pred, proba, rtol=1e-6)


# ---------------------------------------------------------------------------- directions


def gini(y_true, proba):
    return 2 * auc(y_true, proba) - 1


@pytest.mark.parametrize(
    "fields",
    [
        {"monitor": "val_gini"},
        {"monitor": "val_loss", "early_stopping": hl.EarlyStopping(3, monitor="val_gini")},
        {"scheduler": hl.SchedulerConfig("plateau", monitor="val_gini")},
        {"monitor": "val_gini", "scheduler": "plateau"},
    ],
)
def test_a_monitor_without_a_direction_is_refused(fields) -> None:
    words = "'?val_gini'?.* write mode='max' or mode='min'"
    with pytest.raises(hl.ConfigError, match=words):
        train(mlp(c=1), X, TWO, hl.metric(gini, needs="proba"), **fields)
    for mode in ("min", "max"):
        known = hl.metric(gini, needs="proba", mode=mode)
        train(mlp(c=1), X, TWO, known, **fields)
    if fields.get("monitor") == "val_gini":
        train(mlp(c=1), X, TWO, hl.metric(gini, needs="proba"), mode="max", **fields)
        return
    part = list(fields)[-1]
    for mode in ("min", "max"):
        own = fields | {part: fields[part].replace(mode=mode)}
        train(mlp(c=1), X, TWO, hl.metric(gini, needs="proba"), **own)
    words = f"{words} in {part}"  # that of the configuration is of its monitor alone
    with pytest.raises(hl.ConfigError, match=words):
        train(mlp(c=1), X, TWO, hl.metric(gini, needs="proba"), mode="max", **fields)


def scripted(values, **options):
    left = iter(values)

    def gini(y_true, y_pred):
        return next(left)

    return hl.metric(gini, **options)


@pytest.mark.parametrize(("mode", "best"), [("max", 2), ("min", 3)])
def test_the_direction_of_a_metric_decides(mode, best) -> None:
    data = hl.DataModule.from_arrays(X, Y, val=(X, Y))
    plateau = hl.SchedulerConfig("plateau", patience=0, factor=0.5, threshold=0.0)
    config = quiet(
        max_epochs=3, metrics={"mine": scripted([1, 3, 0], mode=mode)}, monitor="val_mine",
        scheduler=plateau, lr=0.08,
    )  # fmt: skip
    result = hl.train(mlp(), data, config)
    assert result.best_epoch == best
    fell = [rate < 0.08 for rate in result.history["lr"]]
    assert fell == [False, False, mode == "min"]


def test_losses_and_metrics_by_name_have_a_direction() -> None:
    data = hl.DataModule.from_arrays(X, Y, val=(X, Y))
    config = quiet(max_epochs=2, loss={"fit": F.cross_entropy, "again": F.cross_entropy})
    assert hl.train(mlp(), data, config.replace(monitor="val_fit")).monitor == "val_fit"
    config = quiet(max_epochs=2, metrics={"mine": "accuracy"}, monitor="val_mine")
    result = hl.train(mlp(), data, config)
    assert result.best_score == max(result.history["val_mine"])


def test_an_error_in_a_function_says_what_it_got() -> None:
    def takes_scores(y_pred, y_true):
        return (y_pred.argmax(1) == y_true).mean()

    with pytest.raises(ValueError, match="axis 1 is out of bounds") as held:
        hl.train(mlp(), hl.DataModule.from_arrays(X, Y, val=30), quiet(metrics=[takes_scores]))
    (note,) = held.value.__notes__
    assert note.startswith(
        "metrics: takes_scores(y_true, y_pred) got y_true (30,) and, as y_pred, "
    )
    assert "the labels (30,); hl.metric(function, needs=...)" in note
