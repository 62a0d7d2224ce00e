"""The confusion matrix of a run and its report; the share of points that are near, pck."""

import copy

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from train.recipes import classes, mlp, quiet, regression

X, Y = classes()
NAMES = np.array(["cat", "dog", "eel"])[Y]


def count(y, said, n, weight=None):
    table = np.zeros((n, n))
    np.add.at(table, (y, said), 1.0 if weight is None else weight.astype(np.float64))
    return table


def matrix_of(result, x, y, n=3, weight=None):
    return count(y, np.asarray(hl.predict(result, x)).argmax(1), n, weight)


def far(y_true, output):
    return np.abs(y_true - output).max()


# ---- the confusion matrix


def test_a_run_of_classes_has_its_matrix() -> None:
    data = hl.DataModule.from_arrays(X, NAMES, val=30, batch_size=7)
    result = hl.train(mlp(), data, quiet(max_epochs=2))
    rows = data.split("val").rows
    want = matrix_of(result, X[rows], Y[rows])
    assert result.confusion_matrix.dtype == np.int64
    np.testing.assert_array_equal(result.confusion_matrix, want)
    assert result.classes == ["cat", "dog", "eel"]
    assert not any("confusion" in name for name in result.history)
    hits = result.confusion_matrix.trace() / 30
    assert result.history["val_accuracy"][-1] == hits


@pytest.mark.parametrize("restore_best", [True, False])
def test_it_is_that_of_the_weights_that_the_model_has(restore_best) -> None:
    """The best epoch is not the last."""
    noisy = X[:40] + 3 * np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    data = hl.DataModule.from_arrays(X, Y, val=(noisy, Y[:40]))
    config = quiet(max_epochs=9, lr=0.5, monitor="val_accuracy", restore_best=restore_best)
    result = hl.train(mlp(), data, config)
    assert result.history["val_accuracy"][-1] != result.best_score
    want = matrix_of(result, noisy, Y[:40])
    np.testing.assert_array_equal(result.confusion_matrix, want)


def test_weights_are_summed() -> None:
    weight = np.random.default_rng(0).uniform(0.1, 2, 90).astype(np.float32)
    data = hl.DataModule.from_arrays(X, Y, sample_weight=weight, val=(X, Y, weight), batch_size=32)
    result = hl.train(mlp(), data, quiet(max_epochs=1, metrics="f1"))
    want = matrix_of(result, X, Y, weight=weight)
    assert result.confusion_matrix.dtype == np.float64
    np.testing.assert_allclose(result.confusion_matrix, want, rtol=1e-12)


def test_a_batch_of_more_rows_than_a_float_counts() -> None:
    """2**24 + 3 pixels in one batch, nearly all of one class."""
    y = np.zeros((1, 1, 2**24 + 3), np.int8)
    y[0, 0, 0] = 1

    class Everywhere(nn.Module):
        def forward(self, x):
            return x.reshape(1, 1, 1).expand(y.shape)

    metrics = ["confusion_matrix", "accuracy"]
    x = np.full((1, 1), -1, np.float32)
    found = hl.evaluate(Everywhere(), (x, y), metrics=metrics, loss="bce")
    assert found["confusion_matrix"].tolist() == [[2**24 + 2, 0], [1, 0]]
    assert found["accuracy"] == (2**24 + 2) / (2**24 + 3)


@pytest.mark.parametrize(
    ("n_outputs", "y", "fields", "has_matrix"),
    [
        (3, Y, {}, True),
        (1, (Y == 1).astype(int), {}, True),
        (3, Y, {"metrics": None}, False),
        (3, Y, {"metrics": [lambda y, p: 1.0]}, True),
        (300, Y, {}, False),
        (300, Y, {"metrics": ["confusion_matrix"]}, True),
        (2, np.eye(3, dtype=int)[Y][:, :2], {}, False),
        (1, (Y == 1).astype(np.float32)[:, None], {"loss": "bce", "metrics": "f1"}, False),
        (1, (Y == 1).astype(np.float32)[:, None], {"loss": "bce", "metrics": "confusion_matrix"},
         True),
        (1, X[:, 0], {}, False),
        (1, (Y == 1).astype(int), {"loss": "mse"}, False),
        (1, (Y == 1).astype(int), {"loss": "mse", "metrics": [hl.metric(far, needs="output")]},
         False),
    ],
)  # fmt: skip
def test_which_runs_have_one(n_outputs, y, fields, has_matrix) -> None:
    data = hl.DataModule.from_arrays(X, y, val=(X, y), batch_size=32)
    result = hl.train(mlp(c=n_outputs), data, quiet(max_epochs=1, **fields))
    if not has_matrix:
        assert result.confusion_matrix is None
        return
    n = max(n_outputs, 2)
    assert result.confusion_matrix.shape == (n, n)
    assert result.confusion_matrix.sum() == 90
    assert (result.confusion_matrix[: len(set(y.ravel()))].sum(1) > 0).all()


def test_without_validation_there_is_none() -> None:
    result = hl.train(mlp(), hl.DataModule.from_arrays(X, Y), quiet(max_epochs=1))
    assert result.confusion_matrix is None


def test_validation_every_few_epochs() -> None:
    data = hl.DataModule.from_arrays(X, Y, val=(X, Y))
    config = quiet(max_epochs=3, check_val_every_n_epoch=2, lr=0.05)
    seen = []

    class Keep:
        def on_epoch_end(self, run):
            seen.append(matrix_of(copy.deepcopy(run.model), X, Y))

    result = hl.train(mlp(), data, config.replace(callbacks=[Keep()]))
    np.testing.assert_array_equal(result.confusion_matrix, seen[1])


@pytest.mark.parametrize("kept", ["file", "memory"])
def test_a_run_that_goes_on_has_that_of_an_earlier_epoch(kept, tmp_path) -> None:
    """The best epoch was before the run ended; later ones are worse, or there are none."""
    noisy = X[:40] + 3 * np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    data = hl.DataModule.from_arrays(X, Y, val=(noisy, Y[:40]))
    folder = {"output_dir": str(tmp_path)} if kept == "file" else {"enable_checkpointing": False}
    config = quiet(max_epochs=9, lr=0.5, monitor="val_accuracy", restore_best=True, **folder)
    model = mlp()
    first = hl.train(model, data, config)
    assert first.best_epoch < 9
    for epochs in (9, 12):
        state = first.last_path if kept == "file" else first
        again = hl.train(mlp(), data, config.replace(max_epochs=epochs), resume=state)
        assert again.epochs == epochs
        want = matrix_of(again, noisy, Y[:40])
        np.testing.assert_array_equal(again.confusion_matrix, want)


def test_that_of_the_moving_average() -> None:
    data = hl.DataModule.from_arrays(X, Y, val=(X, Y))
    result = hl.train(mlp(), data, quiet(max_epochs=3, ema=True, lr=0.1))
    np.testing.assert_array_equal(result.confusion_matrix, matrix_of(result, X, Y))


def test_of_several_targets_each_has_its_own() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 3), nn.Linear(6, 2), nn.Linear(6, 1)

        def forward(self, x):
            return {"a": self.a(x), "b": self.b(x), "c": self.c(x)}

    y = {"a": NAMES, "b": (Y == 1).astype(int), "c": X[:, :1]}
    data = hl.DataModule.from_arrays(X, y, val=(X, y), batch_size=32)
    result = hl.train(Two(), data, quiet(max_epochs=1))
    assert set(result.confusion_matrix) == {"a", "b"}
    out = hl.predict(result, X)
    np.testing.assert_array_equal(result.confusion_matrix["a"], count(Y, out["a"].argmax(1), 3))
    np.testing.assert_array_equal(
        result.confusion_matrix["b"], count((Y == 1).astype(int), out["b"].argmax(1), 2)
    )


def test_evaluate_gives_it_where_it_is_asked_for() -> None:
    data = hl.DataModule.from_arrays(X, NAMES, val=30, test=30)
    result = hl.train(mlp(), data, quiet(max_epochs=1))
    assert "confusion_matrix" not in hl.evaluate(result, data, "test")
    found = hl.evaluate(result, data, "test", metrics=["accuracy", "confusion_matrix"])
    rows = data.split("test").rows
    np.testing.assert_array_equal(found["confusion_matrix"], matrix_of(result, X[rows], Y[rows]))
    named = hl.evaluate(result, data, "test", metrics={"table": "confusion_matrix"})
    np.testing.assert_array_equal(named["table"], found["confusion_matrix"])
    assert set(named) == {"loss", "table"}


# ---- the report


def test_the_report_of_classes() -> None:
    data = hl.DataModule.from_arrays(X, NAMES, val=(X, NAMES))
    metrics = ["accuracy", "recall_per_class"]
    result = hl.train(mlp(), data, quiet(max_epochs=4, lr=0.003, metrics=metrics))
    assert (result.confusion_matrix.sum(0) != 30).all()
    text = result.report()
    lines = text.splitlines()
    assert lines[0] == repr(result)
    assert f"epoch {result.best_epoch}" in lines[2]
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    assert rows["val_accuracy"] == [
        f"{result.history['val_accuracy'][k]:.4g}" for k in (0, result.best_epoch - 1, -1)
    ]
    at = lines.index("classes, validation")
    recall = result.history["val_recall[dog]"][-1]
    assert lines[at + 1].split() == ["precision", "recall", "f1", "rows"]
    dog = lines[at + 3].split()
    assert (dog[0], dog[2], dog[4]) == ("dog", f"{recall:.4f}", "30")
    at = lines.index("confusion matrix, rows true, columns predicted")
    assert lines[at + 1].split() == ["cat", "dog", "eel"]
    shown = [[int(cell) for cell in line.split()[1:]] for line in lines[at + 2 : at + 5]]
    assert shown == result.confusion_matrix.tolist()


def test_the_report_of_many_classes_has_the_worst() -> None:
    x = np.eye(40, dtype=np.float32).repeat(2, 0)
    y = np.arange(40).repeat(2)
    y[:40] = np.roll(y[:40], 2)  # the first 20 classes are always missed
    model = nn.Linear(40, 40)
    model.weight.copy_(np.eye(40))
    data = hl.DataModule.from_arrays(x, y, val=(x, y))
    result = hl.train(model, data, quiet(max_epochs=1, lr=1e-9))
    text = result.report()
    assert "30 of 40 classes, of the lowest f1, validation" in text
    assert "confusion matrix" not in text
    at = text.splitlines().index("30 of 40 classes, of the lowest f1, validation")
    shown = [line.split() for line in text.splitlines()[at + 2 :]]
    assert [row[0] for row in shown] == [str(k) for k in range(30)]
    assert {row[3] for row in shown[:20]} == {"0.0000"}
    assert {row[3] for row in shown[20:]} == {"1.0000"}


def test_reports_of_values_and_of_nothing() -> None:
    x, y = regression()
    result = hl.train(nn.Linear(5, 1), (x, y), quiet(max_epochs=2, metrics="mae"))
    assert "val_mae" in result.report()
    assert "class" not in result.report()
    several = {"a": NAMES, "b": (Y == 1)}

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 1)

        def forward(self, x):
            return {"a": self.a(x), "b": self.b(x)}

    data = hl.DataModule.from_arrays(X, several, val=(X, several))
    text = hl.train(Two(), data, quiet(max_epochs=1)).report()
    assert "3 classes of a, validation\n" in text
    assert "2 classes of b, validation\n" in text
    assert "\nTrue " in text


def test_lines_of_epochs_leave_out_single_classes(capfd) -> None:
    data = hl.DataModule.from_arrays(X, NAMES, val=(X, NAMES))
    config = quiet(max_epochs=1, metrics=["f1", "f1_per_class", "auc_per_class"])
    hl.train(mlp(), data, config.replace(enable_progress_bar="auto"))
    line = next(line for line in capfd.readouterr().err.splitlines() if line.startswith("epoch 1"))
    assert "val_f1 " in line
    assert "[" not in line


# ---- points


def pck(points, output, threshold, weight=None):
    """By loops, as evaluations of category-agnostic pose estimation do it."""
    shares, kept = [], []
    for row, (found, said) in enumerate(zip(points, output, strict=True)):
        there = [p[:2] for p in found if len(p) == 2 or p[2] > 0]
        there = [p for p in there if not np.isnan(p).any()]
        side = np.ptp(np.array(there), axis=0).max() if there else 0.0
        if side > 0:
            near = [
                np.hypot(*(np.array(p[:2], np.float64) - q[:2])) < threshold * side
                for p, q in zip(found, said, strict=True)
                if (len(p) == 2 or p[2] > 0) and not np.isnan(p).any()
            ]
            shares.append(np.mean(near))
            kept.append(row)
    return np.average(shares, weights=None if weight is None else weight[kept])


class Handed(nn.Module):
    """Hands its input through, and takes weights."""

    def forward(self, x):
        return x

    def training_step(self, batch):
        return self(batch["x"]).square().mean()


def draw_points(n=60, k=7):
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 100, (n, k, 3)).astype(np.float32)
    points[..., 2] = rng.integers(0, 3, (n, k))  # 1 and 2 are there, as in COCO
    points[points[..., 2] == 0] = 0
    points[3] = 0  # no point at all
    points[4, :, 2] = 0
    points[4, 2] = [5, 5, 1]  # one alone, which has no extent
    output = points[..., :2] + rng.normal(0, 15, (n, k, 2)).astype(np.float32)
    return points, output


@pytest.mark.parametrize("threshold", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("weighted", [False, True])
def test_points_that_are_near(threshold, weighted) -> None:
    points, output = draw_points()
    weight = np.random.default_rng(1).uniform(0.1, 2, 60).astype(np.float32) if weighted else None
    want = pck(points, output, threshold, weight)
    assert 0.01 < want < 0.99
    name = "pck" if threshold == 0.2 else f"pck@{threshold}"
    for x in (output, output.reshape(60, -1), np.concatenate([output, output[..., :1]], 2)):
        for batch_size in (1, 16, 60):
            data = hl.DataModule.from_arrays(x, points, sample_weight=weight, batch_size=batch_size)
            found = hl.evaluate(Handed(), data, "train", metrics=name)
            assert found[name] == pytest.approx(want, rel=1e-6)


def test_points_in_rows_of_numbers_and_those_that_are_nan() -> None:
    points, output = draw_points()
    pairs = points[..., :2].copy()
    pairs[points[..., 2] == 0] = np.nan
    want = pck(points, output, 0.2)
    for y in (pairs, pairs.reshape(60, -1)):
        data = hl.DataModule.from_arrays(output, y, batch_size=16, allow_nonfinite=True)
        found = hl.evaluate(Handed(), data, "train", metrics=["pck"])
        assert found["pck"] == pytest.approx(want, rel=1e-6)


def test_points_beyond_the_threshold_and_outputs_that_are_nan() -> None:
    """The box is 10 by 4: what is off by less than 2 is near."""
    points = np.array([[[0, 0], [10, 4], [5, 1], [6, 1]]], np.float32)
    output = points + np.array([[[1.99, 0], [0, -2.01], [2.0, 0], [np.nan, 0]]], np.float32)
    data = hl.DataModule.from_arrays(output, points, allow_nonfinite=True)
    found = hl.evaluate(Handed(), data, "train", metrics=["pck"])
    assert found["pck"] == 0.25


def test_rows_without_points_have_no_share() -> None:
    points = np.zeros((4, 3, 3), np.float32)
    data = hl.DataModule.from_arrays(np.zeros((4, 3, 2), np.float32), points)
    found = hl.evaluate(Handed(), data, "train", metrics="pck")
    assert np.isnan(found["pck"])


@pytest.mark.parametrize(
    ("output", "target", "words"),
    [
        ((8, 5, 2), (8, 4, 3), r"must have shape \(8, 4, 2\) or \(8, 8\) for points \(8, 4, 3\)"),
        ((8, 2, 4), (8, 4, 2), r"got \(8, 2, 4\)"),
        ((8, 6), (8, 2, 3), r"for points \(8, 2, 3\), got \(8, 6\)"),
        ((8, 4), (8, 2, 2, 2), r"points are targets \(rows, points, 2\).*got \(8, 2, 2, 2\)"),
        ((8, 5), (8, 5), r"points are targets .* got \(8, 5\)"),
    ],
)
def test_shapes_that_are_no_points(output, target, words) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(output).astype(np.float32)
    data = hl.DataModule.from_arrays(x, rng.standard_normal(target).astype(np.float32))
    with pytest.raises(hl.ShapeError, match=f"^metrics: pck .*{words}"):
        hl.evaluate(Handed(), data, "train", metrics="pck")


def test_early_stopping_by_points() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((120, 8)).astype(np.float32)
    points = (x @ rng.standard_normal((8, 10)) * 3).reshape(120, 5, 2)
    points = np.concatenate([points, rng.integers(0, 2, (120, 5, 1))], 2).astype(np.float32)

    def off(output, target):
        return ((output.reshape(-1, 5, 2) - target[..., :2]) * target[..., 2:]).square().mean()

    data = hl.DataModule.from_arrays(x, points, val=40)
    fields = {"metrics": ["pck@0.1"], "monitor": "val_pck@0.1", "early_stopping": 5}
    config = quiet(max_epochs=300, lr=0.1, loss=off, **fields)
    result = hl.train(nn.Linear(8, 10), data, config)
    assert result.stop_reason == "early_stopping"
    assert result.best_score > 0.9 > 0.5 > result.history["val_pck@0.1"][0]
