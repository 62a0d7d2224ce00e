"""Metrics over a split against NumPy, whatever the batches; sample weights; Python metrics."""

import hotloop as hl
import numpy as np
import pytest
from hotloop.training.scoring.catalogue import METRICS
from train.recipes import classes, mlp, quiet, regression

CLASSIFICATION = ("accuracy", "balanced_accuracy", "precision", "recall", "f1", "iou")
REGRESSION = ("mse", "rmse", "mae", "r2")


def table(y, p, n, w):
    counts = np.zeros((n, n))
    np.add.at(counts, (y, p), w)
    return counts


def class_scores(y, p, n, w):
    t = table(y, p, n, w)
    hit, said, real = t.diagonal(), t.sum(0), t.sum(1)
    with np.errstate(all="ignore"):
        per = {
            "precision": np.nan_to_num(hit / said),
            "recall": np.nan_to_num(hit / real),
            "f1": np.nan_to_num(2 * hit / (said + real)),
            "iou": np.nan_to_num(hit / (said + real - hit)),
        }
    seen = (said + real) > 0
    scores = {k: v[1] if n == 2 else v[seen].mean() for k, v in per.items()}
    scores["accuracy"] = hit.sum() / t.sum()
    scores["balanced_accuracy"] = (hit[real > 0] / real[real > 0]).mean()
    return scores


def value_scores(y, p, w):
    share = w / w.sum()
    mse = (share[:, None] * (y - p) ** 2).sum() / y.shape[1]
    spread = (share[:, None] * (y - (share[:, None] * y).sum(0)) ** 2).sum(0)
    return {
        "mse": mse,
        "rmse": mse**0.5,
        "mae": (share * np.abs(y - p).mean(1)).sum(),
        "r2": np.mean(1 - (share[:, None] * (y - p) ** 2).sum(0) / spread),
    }


@pytest.mark.parametrize("batch", [1, 7, 32, 90])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("c", [2, 3, 5])
def test_classification(c: int, weighted: bool, batch: int) -> None:
    X, y = classes(90, c=c)
    w = np.random.default_rng(1).uniform(0.1, 2, 90).astype(np.float32) if weighted else None
    model = mlp(c=c)
    data = hl.DataModule.from_arrays(
        X, y, val=(X, y) if w is None else (X, y, w), batch_size=batch, sample_weight=w
    )
    result = hl.train(model, data, quiet(max_epochs=1, metrics=CLASSIFICATION, lr=1e-2))
    p = np.asarray(hl.predict(model, X)).argmax(1)
    want = class_scores(y, p, c, np.ones(90) if w is None else w.astype(np.float64))
    for name in CLASSIFICATION:
        assert result.history[f"val_{name}"][-1] == pytest.approx(want[name], rel=1e-6), name
    again = hl.evaluate(model, data, split="val")
    assert again["loss"] == pytest.approx(result.history["val_loss"][-1], rel=1e-6)


# Rows: actual classes 0 to 3, columns: predicted. Nothing is of class 2, which is predicted once;
# nothing at all is of class 3. The second: of two classes, class 1 alone counts.
CONFUSED = [[3, 1, 0, 0], [2, 4, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
SCORES = {
    "balanced_accuracy": (3 / 4 + 4 / 7) / 2,
    "precision": (3 / 5 + 4 / 5 + 0) / 3,
    "recall": (3 / 4 + 4 / 7 + 0) / 3,
    "f1": (6 / 9 + 8 / 12 + 0) / 3,
    "iou": (3 / 6 + 4 / 8 + 0) / 3,
}
OF_TWO = {
    "balanced_accuracy": (5 / 7 + 4 / 7) / 2,
    "precision": 4 / 6,
    "recall": 4 / 7,
    "f1": 8 / 13,
    "iou": 4 / 9,
}


@pytest.mark.parametrize(
    ("table", "scores"), [(CONFUSED, SCORES), ([[5, 2], [3, 4]], OF_TWO)], ids=["four", "two"]
)
def test_scores_of_a_table(table, scores) -> None:
    """Averages are over the classes that occur, as targets or as predictions."""
    totals = {"confusion": np.array(table, np.float64)}
    for name, score in scores.items():
        assert METRICS[name].compute(totals) == pytest.approx(score, rel=1e-15), name
        assert METRICS[name].compute({"confusion": np.zeros((3, 3))}) == 0


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [1, 3])
def test_regression(k: int, weighted: bool) -> None:
    X, y = regression(75, k=k)
    w = np.random.default_rng(1).uniform(0.1, 2, 75).astype(np.float32) if weighted else None
    model = hl.nn.Linear(5, k)
    val = (X, y) if w is None else (X, y, w)
    data = hl.DataModule.from_arrays(X, y, val=val, batch_size=16, sample_weight=w)
    result = hl.train(model, data, quiet(max_epochs=1, metrics=REGRESSION, lr=1e-2))
    p = np.asarray(hl.predict(model, X), np.float64)
    want = value_scores(y.astype(np.float64), p, np.ones(75) if w is None else w.astype(np.float64))
    for name in REGRESSION:
        assert result.history[f"val_{name}"][-1] == pytest.approx(want[name], 1e-5, 1e-6), name


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("offset", [1e3, 1e6, -1e7])
def test_targets_that_are_large_against_their_spread(offset, k, weighted, tmp_path) -> None:
    """Also columns of which one is large, in small batches, with validation rows of their own."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3)).astype(np.float32)
    y = rng.standard_normal((300, k)) * abs(offset) * 1e-5 + X[:, :1] * abs(offset) * 1e-5
    y = (y + np.array([offset, 0])[:k]).astype(np.float32)
    w = rng.uniform(0.1, 2, 300).astype(np.float32)
    model = hl.nn.Linear(3, k)
    model.weight.copy_(np.eye(3)[[0] * k] * abs(offset) * 1e-5)
    model.bias.copy_([offset, 0][:k])
    data = hl.DataModule.from_arrays(
        X, y, val=0.5, batch_size=7, sample_weight=w if weighted else None
    )
    with np.errstate(all="raise"):
        result = hl.train(model, data, quiet(max_epochs=1, metrics=REGRESSION, lr=1e-30))
    rows = data.split("val").rows
    p = np.asarray(hl.predict(model, X[rows]), np.float64).reshape(-1, k)
    weight = w[rows].astype(np.float64) if weighted else np.ones(len(rows))
    want = value_scores(y[rows].astype(np.float64), p, weight)
    assert -1 < want["r2"] < 0.9
    for name in REGRESSION:
        assert result.history[f"val_{name}"][-1] == pytest.approx(want[name], 1e-5), name
    result.save(tmp_path / "m")
    again = hl.evaluate(hl.load(tmp_path / "m"), data, "val", config=result.config)
    assert again["r2"] == pytest.approx(want["r2"], 1e-5)


def test_a_first_target_far_from_the_others_costs_no_digits() -> None:
    y = np.random.default_rng(0).standard_normal(300).astype(np.float32)
    y[0] = 1e18
    model = hl.nn.Linear(1, 1)
    model.weight.copy_([[1.0]])
    model.bias.copy_([0.01])
    data = (y[:, None], y)
    scores = hl.evaluate(model, data, metrics=["mse", "rmse", "mae", "r2"], loss="mse")
    p = np.asarray(hl.predict(model, y[:, None]), np.float64)
    want = value_scores(y[:, None].astype(np.float64), p, np.ones(300))
    assert 0.009 < want["mae"] < 0.01
    assert scores | {"loss": 0} == pytest.approx(want | {"loss": 0}, rel=1e-6)


def test_r2_of_targets_that_differ_in_their_last_digit() -> None:
    y = (1e7 + np.arange(300) % 4).astype(np.float32)
    model = hl.nn.Linear(1, 1)
    model.bias.copy_([1e7 + 1])
    scores = hl.evaluate(model, (np.zeros((300, 1), np.float32), y), metrics=["r2"], loss="mse")
    assert scores["r2"] == pytest.approx(-0.2, 1e-9)


def test_r2_of_a_target_that_counts_nothing_and_is_far_from_the_others() -> None:
    rng = np.random.default_rng(0)
    y = rng.standard_normal(300).astype(np.float32)
    X, w = y[:, None] * 0.5, np.ones(300, np.float32)
    y[0], w[0] = 1e12, 0.0
    model = hl.nn.Linear(1, 1)
    model.weight.copy_([[1.0]])
    data = hl.DataModule.from_arrays(X, y, sample_weight=w)
    p = np.asarray(hl.predict(model, X), np.float64)
    want = value_scores(y[1:, None].astype(np.float64), p[1:], w[1:].astype(np.float64))
    scores = hl.evaluate(model, data, "train", metrics=["r2"], loss="mse")
    assert scores["r2"] == pytest.approx(want["r2"], 1e-6)


def test_r2_of_columns_is_their_mean_as_in_scikit_learn() -> None:
    """A column that is constant counts 1 where it is met, else 0."""
    y = np.array([[1, 5, 5], [2, 5, 5], [4, 5, 5]], np.float32)
    X = np.array([[1, 5, 6], [3, 5, 6], [4, 5, 6]], np.float32)
    model = hl.nn.Identity()
    config = hl.TrainingConfig(loss="mse", metrics="r2")
    of_first = 1 - 1 / np.sum((y[:, 0] - y[:, 0].mean()) ** 2)
    got = hl.evaluate(model, (X, y), config=config)["r2"]
    assert got == pytest.approx((of_first + 1 + 0) / 3, 1e-6)


def test_multilabel_accuracy() -> None:
    X, _ = regression(80)
    Y = (np.random.default_rng(0).random((80, 4)) < 0.4).astype(np.int64)
    data = hl.DataModule.from_arrays(X, Y, val=(X, Y), batch_size=32)
    for shape in ((4,), (4, 1), (1, 4)):
        model = hl.nn.Sequential(hl.nn.Linear(5, 4), hl.nn.Unflatten(1, shape))
        result = hl.train(model, data, quiet(max_epochs=1))
        p = np.asarray(hl.predict(model, X)).reshape(80, 4) > 0
        assert result.history["val_accuracy"][-1] == pytest.approx((p == Y).mean())


def test_one_logit() -> None:
    X, y = classes(80, c=2)
    model = mlp(c=1)
    data = hl.DataModule.from_arrays(X, y, val=(X, y), batch_size=32)
    result = hl.train(model, data, quiet(max_epochs=2, metrics=("accuracy", "f1"), lr=1e-2))
    p = (np.asarray(hl.predict(model, X)).ravel() > 0).astype(int)
    want = class_scores(y, p, 2, np.ones(80))
    assert result.history["val_accuracy"][-1] == pytest.approx(want["accuracy"])
    assert result.history["val_f1"][-1] == pytest.approx(want["f1"])


def test_python_metric_sees_the_whole_split() -> None:
    X, y = classes(90)
    seen = []

    def macro_error(y_true, y_pred):
        seen.append((y_true.copy(), y_pred.copy()))
        return float((y_true != y_pred).mean())

    model = mlp()
    data = hl.DataModule.from_arrays(X, y, val=(X[:50], y[:50]), batch_size=16)
    result = hl.train(model, data, quiet(max_epochs=2, metrics=(macro_error, "accuracy")))
    assert len(seen) == 2
    np.testing.assert_array_equal(seen[-1][0], y[:50])
    np.testing.assert_array_equal(seen[-1][1], np.asarray(hl.predict(model, X[:50])).argmax(1))
    error, accuracy = result.history["val_macro_error"], result.history["val_accuracy"]
    np.testing.assert_allclose(np.add(error, accuracy), 1.0)


def test_python_metric_of_values() -> None:
    X, y = regression(40)

    def largest(y_true, y_pred):
        return float(np.abs(y_true - y_pred).max())

    model = hl.nn.Linear(5, 1)
    data = hl.DataModule.from_arrays(X, y, val=(X, y), batch_size=16)
    result = hl.train(model, data, quiet(max_epochs=1, metrics=largest))
    want = np.abs(y - hl.predict(model, X)).max()
    assert result.history["val_largest"][-1] == pytest.approx(want, rel=1e-5)


def test_unknown_metric_is_a_sentence() -> None:
    with pytest.raises(hl.ConfigError, match="accuracy"):
        hl.train(mlp(), classes(), quiet(max_epochs=1, metrics="acuracy"))


@pytest.mark.parametrize("weighted", [False, True])
def test_columns_of_yes_and_no(weighted: bool) -> None:
    """The mean over columns of what each has as two classes, class 1 being yes."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 5)).astype(np.float32)
    y = (X[:, :3] + rng.standard_normal((80, 3)) > 0.3).astype(np.int64)
    weight = rng.uniform(0.1, 2, 80).astype(np.float32) if weighted else None
    rest = () if weight is None else (weight,)
    model = hl.nn.Linear(5, 3)
    hl.train(model, (X, y, *rest), quiet(max_epochs=5, lr=0.05))
    scores = hl.evaluate(model, (X, y, *rest), metrics=CLASSIFICATION)
    said = hl.predict(model, X, labels=True)
    each = [
        class_scores(y[:, k], said[:, k], 2, np.ones(80) if weight is None else weight)
        for k in range(3)
    ]
    for name in CLASSIFICATION:
        want = np.mean([column[name] for column in each])
        assert scores[name] == pytest.approx(want, rel=1e-5), name
