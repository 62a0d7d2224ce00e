"""Metrics by name: scikit-learn's values with ties, weights and averages, whatever the batches."""

import json

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.training.scoring.names import MEASURED
from needs import take_library
from train import metric_cases
from train.metric_cases import AVERAGES, Case, names_of
from train.recipes import classes, mlp, quiet

CASES = metric_cases.draw()
STORED = json.loads(metric_cases.STORED.read_text())
COUNTS = [
    *(f"{name}_{how}" for name in ("precision", "recall", "f1", "iou") for how in AVERAGES),
    *("accuracy", "balanced_accuracy", "kappa", "quadratic_kappa", "mcc", "confusion_matrix"),
    *("precision", "recall", "f1", "iou", "top3"),
]
X, Y = classes()
NAMES = np.array(["cat", "dog", "eel"])[Y]
TWO = (Y == 1).astype(np.int64)


def evaluate(case: Case, metrics, **fields):
    """The metrics of the case's outputs, which the model hands through."""
    data = hl.DataModule.from_arrays(
        case.outputs, case.y, sample_weight=case.weight, batch_size=fields.pop("batch_size", 64)
    )
    return hl.evaluate(nn.Identity(), data, "train", metrics=metrics, **fields)


def values_of(found, metric, n):
    """A metric's value, or those of all classes."""
    if not metric.endswith("_per_class"):
        return found[metric]
    stem = metric.removesuffix("_per_class")
    return [found[f"{stem}[{k}]"] for k in range(n)]


# ---- values


@pytest.mark.parametrize("name", CASES)
def test_values_are_scikit_learns(name) -> None:
    case = CASES[name]
    n = max(case.outputs.shape[1], 2)
    found = evaluate(case, list(names_of(case)))
    assert len(found) == 1 + sum(n if m.endswith("_per_class") else 1 for m in names_of(case))
    for metric, value in STORED[name].items():
        got = values_of(found, metric, n)
        assert got == pytest.approx(np.array(value), rel=1e-6 if metric == "log_loss" else 1e-12), (
            metric
        )


@pytest.mark.extra
def test_stored_values_are_those_of_scikit_learn() -> None:
    take_library("sklearn")
    for name, values in metric_cases.answers().items():
        for metric, value in values.items():
            assert np.allclose(value, STORED[name][metric], rtol=1e-9, atol=0), (name, metric)


@pytest.mark.parametrize("name", ["one logit", "five", "columns", "five, weighted"])
def test_batches_change_nothing(name) -> None:
    """Bit for bit where counts are integers."""
    case = CASES[name]
    listed = [m for m in COUNTS if m in (*names_of(case), "top3")]
    listed = [m for m in listed if name.startswith("five") or m != "top3"]
    ranked = [m for m in names_of(case) if m.startswith(("auc", "average"))]
    whole = evaluate(case, listed + ranked, batch_size=200)
    for batch_size in (1, 7, 64):
        found = evaluate(case, listed + ranked, batch_size=batch_size)
        assert found.keys() == whole.keys()
        for key in whole.keys() - {"loss"}:
            if case.weight is None or key.startswith(("auc", "average")):
                assert np.array_equal(found[key], whole[key]), key
            else:
                assert found[key] == pytest.approx(whole[key], rel=1e-12), key


def test_weights_of_whole_numbers_are_rows_that_come_so_often() -> None:
    """Where scikit-learn takes no weights: pairs of classes."""
    case = CASES["five"]
    often = np.random.default_rng(0).integers(0, 4, 200)
    weighted = Case(case.outputs, case.y, often.astype(np.float32))
    repeated = Case(case.outputs.repeat(often, 0), case.y.repeat(often), None)
    listed = [*names_of(case), "top2", "log_loss"]
    found, want = (evaluate(c, list(dict.fromkeys(listed))) for c in (weighted, repeated))
    assert "auc_ovo_weighted" in found
    for key, value in want.items():
        assert found[key] == pytest.approx(value, rel=1e-6 if "loss" in key else 1e-12), key
    assert found["confusion_matrix"].dtype == np.float64
    assert want["confusion_matrix"].dtype == np.int64


@pytest.mark.parametrize("kind", ["64-true", "32-true"])
def test_precisions(kind) -> None:
    case = CASES["five, weighted"]
    found = evaluate(case, ["f1", "auc", "top2", "log_loss", "qwk"], precision=kind)
    want = STORED["five, weighted"]
    assert found["f1"] == pytest.approx(want["f1"], rel=1e-12)
    assert found["auc"] == pytest.approx(want["auc"], rel=1e-12)
    assert found["top2"] == pytest.approx(want["top2_accuracy"], rel=1e-12)
    assert found["log_loss"] == pytest.approx(want["log_loss"], rel=1e-6)
    assert found["qwk"] == pytest.approx(want["quadratic_kappa"], rel=1e-12)


def test_probabilities_and_their_logarithms() -> None:
    """Outputs that are what the loss takes, and one whose softmax is in the loss."""
    listed = ["log_loss", "auc", "auc_ovo", "average_precision", "f1", "top2"]
    case = CASES["five"]
    shares = case.proba.astype(np.float32)
    found = evaluate(case._replace(outputs=np.log(shares)), listed, loss="nll")
    want = evaluate(case, listed)
    for key in listed:
        assert found[key] == pytest.approx(want[key], rel=1e-6), key
    case = CASES["one logit"]
    proba = case.proba.astype(np.float32)[:, None]
    listed = ["log_loss", "auc", "average_precision", "average_precision_per_class", "kappa"]
    want = evaluate(case, listed)
    for loss in (nn.BCELoss(), "mse"):
        if loss == "mse":  # the order is known, probabilities are not
            listed = ["auc", "average_precision"]
        found = evaluate(case._replace(outputs=proba), listed, loss=loss)
        for key in found.keys() - {"loss"}:
            assert found[key] == pytest.approx(want[key], rel=1e-6), key


def test_a_certain_mistake_has_a_finite_log_loss_where_outputs_are_probabilities() -> None:
    outputs = np.array([[0.0], [1.0], [0.5]], np.float32)
    found = evaluate(Case(outputs, np.array([1, 1, 0]), None), "log_loss", loss=nn.BCELoss())
    eps = np.finfo(np.float32).eps
    want = -(np.log(eps) + np.log(1 - eps) + np.log(0.5)) / 3
    assert found["log_loss"] == pytest.approx(want, rel=1e-6)


def test_targets_that_are_floats() -> None:
    """0 and 1 beside "bce", one-hot rows beside cross-entropy."""
    listed = ["auc", "average_precision", "f1_per_class", "kappa", "log_loss"]
    case = CASES["one logit"]
    want = evaluate(case, listed)
    for y in (case.y.astype(np.float32), case.y.astype(np.float32)[:, None]):
        found = evaluate(case._replace(y=y), listed, loss="bce")
        for key in want.keys() - {"loss"}:
            assert found[key] == pytest.approx(want[key], rel=1e-6), key
    case = CASES["columns, weighted"]
    want = evaluate(case, ["auc_micro", "average_precision_per_class", "f1_weighted"])
    found = evaluate(
        case._replace(y=case.y.astype(np.float32)), list(STORED["columns"])[3:], loss="bce"
    )
    for key in want.keys() - {"loss"}:
        assert found[key] == pytest.approx(want[key], rel=1e-12), key
    case = CASES["five"]
    want = evaluate(case, ["auc_ovo", "qwk", "top2", "confusion_matrix"])
    with pytest.warns(hl.DataWarning, match="exactly one 1"):
        found = evaluate(
            case._replace(y=np.eye(5, dtype=np.float32)[case.y]),
            ["auc_ovo", "qwk", "top2", "confusion_matrix"],
            loss="cross_entropy",
        )
    for key in want.keys() - {"loss"}:
        assert np.array_equal(found[key], want[key]), key


@pytest.mark.parametrize("axis", [1, -1])
def test_positions_and_those_that_count_nothing(axis) -> None:
    """Tokens (N, T) with weights of rows; some are ignored."""
    case = CASES["five"]
    rows = case.outputs.reshape(40, 5, 5)  # 5 positions, 5 classes
    rows = np.concatenate([rows, rows[:, :1]], 1)  # 6 positions
    y = np.concatenate([case.y.reshape(40, 5), np.full((40, 1), -100)], 1)
    weight = np.random.default_rng(0).integers(1, 4, 40).astype(np.float32)
    repeated = Case(case.outputs, case.y, weight.repeat(5))
    listed = [*names_of(repeated), "auc_ovo"]
    want = evaluate(repeated, listed)
    outputs = rows if axis == -1 else np.ascontiguousarray(rows.transpose(0, 2, 1))
    found = evaluate(Case(outputs, y, weight), listed, batch_size=7)
    for key in want:
        assert found[key] == pytest.approx(want[key], rel=1e-5 if "loss" in key else 1e-12), key


def test_several_targets() -> None:
    """Each has its own values, matrix and class names."""
    five, one = CASES["five"], CASES["one logit"]
    both = {"kind": np.array(list("abcde"))[five.y], "is_on": one.y}

    class Both(nn.Module):
        def forward(self, outputs):
            return outputs

    data = hl.DataModule.from_arrays(
        {"kind": five.outputs, "is_on": one.outputs}, both, batch_size=64
    )
    metrics = {"kind": ["f1_per_class", "qwk", "confusion_matrix"], "is_on": ["auc", "ap"]}
    found = hl.evaluate(Both(), data, "train", metrics=metrics)
    want = STORED["five"]
    assert [found[f"kind_f1[{c}]"] for c in "abcde"] == pytest.approx(want["f1_per_class"], 1e-12)
    assert found["kind_qwk"] == pytest.approx(want["quadratic_kappa"], 1e-12)
    assert found["kind_confusion_matrix"].tolist() == want["confusion_matrix"]
    assert found["is_on_auc"] == pytest.approx(STORED["one logit"]["auc"], 1e-12)
    assert found["is_on_ap"] == pytest.approx(STORED["one logit"]["average_precision"], 1e-12)
    listed = hl.evaluate(Both(), data, "train", metrics=["auc", "log_loss"])
    assert set(listed) > {"kind_auc", "is_on_auc", "kind_log_loss", "is_on_log_loss"}
    assert listed["kind_auc"] == pytest.approx(want["auc"], 1e-12)


def test_absent_classes_and_columns() -> None:
    """A class that occurs nowhere is in no mean; of columns each is, as in scikit-learn."""
    outputs = np.eye(4, dtype=np.float32)[[0, 0, 1, 1]]
    found = evaluate(Case(outputs, np.array([0, 0, 1, 0]), None), ["f1", "f1_per_class", "kappa"])
    assert [found[f"f1[{k}]"] for k in range(4)] == pytest.approx([0.8, 2 / 3, 0, 0])
    assert found["f1"] == pytest.approx((0.8 + 2 / 3) / 2)
    y = np.array([[1, 0], [0, 0], [1, 0]])
    outputs = np.where(y, 1.0, -1.0).astype(np.float32)
    found = evaluate(Case(outputs, y, None), ["f1", "f1_micro", "balanced_accuracy"])
    assert (found["f1"], found["f1_micro"], found["balanced_accuracy"]) == (0.5, 1.0, 1.0)


def test_of_equal_scores_the_last_classes_come_first() -> None:
    outputs = np.array([[1, 1, 1], [0, 1, 1], [0, 1, 1], [2, 1, 1]], np.float32)
    found = evaluate(Case(outputs, np.array([0, 1, 2, 1]), None), ["top1", "top-2", "top_3"])
    assert (found["top1"], found["top-2"], found["top_3"]) == (0.25, 0.5, 1.0)


def test_outputs_that_are_nan_are_no_hits_and_have_no_area() -> None:
    outputs = CASES["five"].outputs.copy()
    outputs[:50] = np.nan
    data = hl.DataModule.from_arrays(outputs, CASES["five"].y, allow_nonfinite=True)
    found = hl.evaluate(nn.Identity(), data, "train", metrics=["top4", "auc", "ap"])
    assert 0.5 < found["top4"] <= 0.75
    assert np.isnan(found["auc"])
    assert np.isnan(found["ap"])


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_the_largest_of_two(n_outputs) -> None:
    case = CASES["one logit"] if n_outputs == 1 else CASES["two"]
    found = evaluate(case, ["top1", "top2", "accuracy"])
    assert found["top1"] == found["accuracy"]
    assert found["top2"] == 1.0


def test_agreement_by_chance_alone_has_no_kappa() -> None:
    outputs = np.zeros((4, 3), np.float32)
    found = evaluate(Case(outputs, np.zeros(4, int), None), ["kappa", "qwk", "mcc"])
    assert np.isnan(found["kappa"])
    assert np.isnan(found["qwk"])
    assert found["mcc"] == 0


def test_distances_of_quadratic_kappa_are_those_of_ids() -> None:
    """A class between two others that has no rows stays between them."""
    outputs = np.eye(4, dtype=np.float32)[[0, 0, 3, 3, 1]]
    y = np.array([0, 1, 3, 0, 1])
    table, n = np.zeros((4, 4)), 4
    np.add.at(table, (y, outputs.argmax(1)), 1)
    cost = (np.arange(n)[:, None] - np.arange(n)) ** 2.0
    want = 1 - (cost * table).sum() / (cost * np.outer(table.sum(1), table.sum(0)) / 5).sum()
    assert evaluate(Case(outputs, y, None), "qwk")["qwk"] == pytest.approx(want)


# ---- names


def test_names_stand_in_the_history_as_they_are_written() -> None:
    data = hl.DataModule.from_arrays(X, NAMES, val=(X, NAMES))
    listed = ["top_2_accuracy", "roc_auc_ovr_weighted", "jaccard_micro", "ap", "cohen_kappa"]
    metrics = [*listed, "matthews_corrcoef", "auroc_per_class", "iou_per_class"]
    result = hl.train(mlp(), data, quiet(max_epochs=2, metrics=metrics))
    assert set(result.history) - {"epoch", "loss", "val_loss", "lr", *MEASURED} == {
        *(f"val_{name}" for name in (*listed, "matthews_corrcoef")),
        *(f"val_{name}[{c}]" for name in ("auroc", "iou") for c in ("cat", "dog", "eel")),
    }
    assert all(len(column) == 2 for column in result.history.values())
    again = hl.evaluate(result, data, "val")
    assert again["auroc[dog]"] == result.history["val_auroc[dog]"][-1]
    same = hl.evaluate(
        result, data, "val", metrics={"mine": "f1_per_class", "own": "auc", "near": "top2"}
    )
    assert set(same) == {"loss", "mine[cat]", "mine[dog]", "mine[eel]", "own", "near"}


def test_classes_of_which_some_have_no_name() -> None:
    """Outputs beyond the classes go by their number, bools by theirs."""
    found = evaluate(Case(CASES["five"].outputs, NAMES[:90].repeat(3)[:200], None), "f1_per_class")
    assert set(found) == {"loss", *(f"f1[{c}]" for c in ("cat", "dog", "eel", 3, 4))}
    found = evaluate(CASES["one logit"]._replace(y=CASES["one logit"].y > 0), "recall_per_class")
    assert set(found) == {"loss", "recall[False]", "recall[True]"}


def test_a_metric_beside_its_values_by_class() -> None:
    found = evaluate(CASES["two"], ["f1", "f1_per_class", "f1_macro"])
    assert found["f1"] == found["f1[1]"]
    assert found["f1_macro"] == pytest.approx((found["f1[0]"] + found["f1[1]"]) / 2)


@pytest.mark.parametrize(
    ("metrics", "y", "fields", "words"),
    [
        ("auc", "float", {}, r"auc needs class targets, got float targets; choose mse, rmse"),
        ("auc", "float", {"loss": "mse"}, r"auc needs class targets, got float targets beside the "
         "loss mse_loss; choose mse"),
        ("log_loss", "float", {"loss": "l1"}, "log_loss needs class targets.*the loss l1"),
        ("pck", "five", {}, "pck needs values as targets, got class targets; choose accuracy"),
        ("qwk", "columns", {}, "qwk needs one class in each row, got yes-or-no columns; choose"),
        ("confusion_matrix", "columns", {}, "confusion_matrix needs one class in each row"),
        ("auc_ovo", "columns", {}, "auc_ovo needs one class in each row"),
        ("top2", "columns", {"loss": nn.BCEWithLogitsLoss()}, "top2 needs one class in each row"),
        ("top9", "five", {}, "top9: k must be at most the number of classes, got 5"),
        ("top-9", "two", {}, "top-9: k must be at most the number of classes, got 2"),
        ("top0_accuracy", "five", {}, "top0_accuracy: k must be at least 1, got 0"),
        ("pck@0", "float", {}, "pck@0: the share must be above 0, got 0"),
        ("auc", "five", {"loss": lambda o, t: o.square().mean()}, "auc: needs probabilities, and "
         "the loss <lambda> does not say .*leave the metric out"),
        ("log_loss", "two", {"loss": lambda o, t: o.square().mean()}, "log_loss: needs probab"),
        ("pck", "float", {}, r"pck must get outputs like the targets: points are targets .*"
         r"\(64, 1\)"),
        (["auc", "roc_auc_per", "f1"], "two", {}, "got 'roc_auc_per'"),
        ("PCK@0.1", "float", {}, r"did you mean 'pck@0.1'\?"),
        ("F1_macro", "five", {}, r"did you mean 'f1_macro'\?"),
        ("top_k_accuracy", "five", {}, r"did you mean 'top5_accuracy'\?"),
        ("mIoU", "five", {}, r"did you mean 'iou_macro'\?"),
        ("brier_score", "two", {}, r"write metrics=\[sklearn.metrics.brier_score_loss\]"),
        ("f1_samples", "five", {}, r"with an average behind precision.*_macro, _micro.* 'f1_sampl"),
    ],
)  # fmt: skip
def test_what_is_refused(metrics, y, fields, words) -> None:
    case = CASES["one logit"] if y == "float" else CASES[y]
    if y == "float":
        case = case._replace(y=np.linspace(-1, 1, 200, dtype=np.float32)[:, None])
    with pytest.raises((hl.ConfigError, hl.ShapeError), match=words):
        evaluate(case, metrics, **fields)


def test_the_order_of_two_outputs_is_known_without_probabilities() -> None:
    case = CASES["two"]
    found = evaluate(case, ["auc", "ap"], loss=lambda o, t: o.square().mean())
    want = evaluate(case, ["auc", "ap"])
    assert found["auc"] == pytest.approx(want["auc"], 1e-3)
    assert found["ap"] == pytest.approx(want["ap"], 1e-3)
    columns = CASES["columns"]
    found = evaluate(columns, ["auc"], loss=lambda o, t: o.square().mean())
    assert found["auc"] == pytest.approx(STORED["columns"]["auc"], 1e-12)


# ---- classes without rows


def test_a_class_without_rows_has_no_area() -> None:
    """NaN with one warning; it is left out of means."""
    keep = NAMES != "eel"
    data = hl.DataModule.from_arrays(
        X, NAMES, val=(X[keep], NAMES[keep]), classes=["cat", "dog", "eel"]
    )
    metrics = ["auc", "auc_per_class", "auc_weighted", "ap", "auc_ovo", "auc_micro"]
    with pytest.warns(hl.DataWarning) as warned:
        result = hl.train(mlp(), data, quiet(max_epochs=3, metrics=metrics))
    said = [str(each.message) for each in warned]
    assert len(said) == 1, said
    assert said[0].startswith("metrics: auc, auc_per_class, auc_weighted ")
    assert "of class eel the split has all or none: NaN" in said[0]
    last = {name: column[-1] for name, column in result.history.items()}
    assert np.isnan(last["val_auc[eel]"])
    both = [last["val_auc[cat]"], last["val_auc[dog]"]]
    assert last["val_auc"] == pytest.approx(np.mean(both))
    assert last["val_auc_weighted"] == pytest.approx(np.mean(both))  # 30 rows of each
    assert np.isfinite([last["val_ap"], last["val_auc_ovo"], last["val_auc_micro"]]).all()


def test_one_class_alone() -> None:
    case = CASES["one logit"]
    with pytest.warns(hl.DataWarning, match="of classes 0 and 1 the split has all or none"):
        found = evaluate(case._replace(y=np.zeros(200, int)), ["auc", "ap"])
    assert np.isnan(found["auc"])
    assert np.isnan(found["ap"])
    y = CASES["columns"].y.copy()
    y[:, 2] = 1
    with pytest.warns(hl.DataWarning, match="of column 2 the split has all or none"):
        found = evaluate(CASES["columns"]._replace(y=y), ["auc_per_class", "auc", "ap_per_class"])
    assert [k for k in range(4) if np.isnan(found[f"auc[{k}]"])] == [2]
    assert found["ap[2]"] == 1.0
    assert found["auc"] == pytest.approx(np.mean([found[f"auc[{k}]"] for k in (0, 1, 3)]))


# ---- monitors


@pytest.mark.parametrize(
    ("metric", "monitor", "mode"),
    [
        ("auc", "val_auc", "max"),
        ("average_precision", "val_average_precision", "max"),
        ("log_loss", "val_log_loss", "min"),
        ("qwk", "val_qwk", "max"),
        ("f1_per_class", "val_f1[dog]", "max"),
        ("top2_accuracy", "val_top2_accuracy", "max"),
        ("mcc", "val_mcc", "max"),
    ],
)
def test_what_decides_which_epoch_is_best(metric, monitor, mode) -> None:
    rng = np.random.default_rng(0)
    data = hl.DataModule.from_arrays(X, NAMES, val=(X + rng.standard_normal(X.shape), NAMES))
    config = quiet(max_epochs=12, metrics=metric, monitor=monitor, lr=0.3, restore_best=True)
    result = hl.train(mlp(), data, config)
    column = result.history[monitor]
    best = max(column) if mode == "max" else min(column)
    assert result.best_score == best
    assert result.best_epoch == column.index(best) + 1
    name = monitor.removeprefix("val_")
    assert hl.evaluate(result, data, "val")[name] == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("monitor", ["val_auc", "val_log_loss"])
def test_early_stopping_by_them(monitor) -> None:
    data = hl.DataModule.from_arrays(X, TWO, val=(X[::-1].copy(), TWO))
    stopping = hl.EarlyStopping(patience=2, monitor=monitor)
    fields = {"metrics": ["auc", "log_loss"], "early_stopping": stopping, "monitor": monitor}
    config = quiet(max_epochs=60, lr=0.1, **fields)
    result = hl.train(mlp(c=2), data, config)
    assert result.stop_reason == "early_stopping"
    assert result.epochs == result.best_epoch + 2


def test_a_name_that_is_not_computed_says_how_it_is() -> None:
    data = hl.DataModule.from_arrays(X, Y, val=(X, Y))
    for monitor, fix in (
        ("val_auc", r"add metrics=\['auc'\]$"),
        ("val_top3_accuracy", r"add metrics=\['top3_accuracy'\]$"),
        ("val_f1[0]", ""),
        ("val_confusion_matrix", ""),
    ):
        with pytest.raises(hl.ConfigError, match=f"^monitor: must be one of .*{fix}"):
            hl.train(mlp(), data, quiet(metrics="confusion_matrix", monitor=monitor))


# ---- files and steppers


def test_a_file_has_them(tmp_path) -> None:
    case = CASES["five, weighted"]
    data = hl.DataModule.from_arrays(
        case.outputs, case.y, val=(case.outputs, case.y, case.weight), batch_size=50,
        sample_weight=case.weight,
    )  # fmt: skip
    metrics = ["auc", "top2", "f1_per_class", "confusion_matrix", "ap"]
    result = hl.train(nn.Linear(5, 5), data, quiet(max_epochs=1, metrics=metrics))
    result.save(tmp_path / "m.safetensors")
    found = hl.evaluate(hl.load(tmp_path / "m.safetensors"), data, "val")
    step = hl.stepper(nn.Linear(5, 5), quiet(metrics=metrics), data)
    assert step.evaluate().keys() == found.keys()
    for key in found.keys() - {"confusion_matrix", "loss"}:
        assert found[key] == pytest.approx(result.history[f"val_{key}"][-1], rel=1e-5), key
    np.testing.assert_allclose(found["confusion_matrix"], result.confusion_matrix)
