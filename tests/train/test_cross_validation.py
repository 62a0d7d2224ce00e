"""``cross_validate``: each fold is the training that it says, and every row is predicted once."""

from __future__ import annotations

import gc
import html
import json
import re
import statistics
import warnings
import weakref
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from needs import is_flat, take_library
from train.recipes import classes, mlp, quiet, regression, same_bits

SETTINGS = {"max_epochs": 3, "lr": 0.01}


def run(data: Any, folds: int = 3, **fields: Any) -> Any:
    """A cross-validation that shows nothing."""
    own = {k: fields.pop(k) for k in ("split", "gap", "predictions", "keep_models") if k in fields}
    return hl.cross_validate(mlp, data, quiet(**(SETTINGS | fields)), folds, **own)


def named_classes() -> tuple[Any, Any]:
    X, y = classes(91)
    return X, np.array(["low", "mid", "high"])[y]


def test_folds_are_trainings_of_their_own() -> None:
    """Score, weights and predictions of each are those of a training by hand."""
    data = hl.DataModule.from_arrays(*named_classes(), standardize=True, test=10)
    found = run(data, metrics=["accuracy", "f1"])
    assert found.rows.tolist() == sorted(set(range(91)) - set(data.rows("test").tolist()))
    for k, fold in enumerate(data.folds(3)):
        result = hl.train(mlp(), fold, quiet(**SETTINGS, metrics=["accuracy", "f1"]))
        assert same_bits(result.model.state_dict(), found.results[k].model.state_dict())
        for name in ("val_loss", "val_accuracy", "val_f1"):
            assert found.scores[name][k] == pytest.approx(result.history[name][-1], rel=1e-6)
        rows = fold.rows("val")
        of_fold = found.fold == k
        assert np.array_equal(found.rows[of_fold], rows)
        X = named_classes()[0][rows]
        assert np.array_equal(found.predictions[of_fold], hl.predict(result, X, proba=True))
        assert np.array_equal(found.labels[of_fold], hl.predict(result, X, labels=True))
    assert set(found.labels) <= {"low", "mid", "high"}
    assert found.classes == ["high", "low", "mid"]
    assert found.confusion_matrix.sum() == 81


def test_statistics_and_weights_are_those_of_the_folds_training_rows() -> None:
    X, y = classes(120)
    X[:40] += 50  # folds of shuffled rows differ in their means
    y[y == 2] = np.where(np.arange((y == 2).sum()) < 5, 2, 0)
    data = hl.DataModule.from_arrays(X, y, standardize=True)
    found = run(data, class_weight="balanced")
    for k, fold in enumerate(data.folds(3)):
        rows = fold.rows("train")
        counts = np.bincount(y[rows], minlength=3)
        by_hand = tuple(len(rows) / (3 * counts))
        mean, std = X[rows].mean(0, dtype=np.float64), X[rows].std(0, dtype=np.float64)
        scaled = hl.DataModule.from_arrays(
            ((X - mean) / std).astype(np.float32), y, val=fold.rows("val")
        )
        result = hl.train(mlp(), scaled, quiet(**SETTINGS, class_weight=by_hand))
        for name, value in result.model.state_dict().items():
            own = found.results[k].model.state_dict()[name]
            np.testing.assert_allclose(own, value, rtol=2e-3, atol=2e-4)


def test_two_runs_have_the_same_bits() -> None:
    data = hl.DataModule.from_arrays(*classes())

    def run(data: Any, seed: int) -> Any:
        config = quiet(**SETTINGS, seed=seed)
        return hl.cross_validate(lambda: mlp(dropout=0.5), data, config, 3)

    first, second = run(data, seed=5), run(data, seed=5)
    assert np.array_equal(first.predictions, second.predictions)
    assert first.scores == second.scores
    assert first.seed == 5
    assert not np.array_equal(first.predictions, run(data, seed=6).predictions)


def test_a_seed_that_is_drawn_is_that_of_all_folds() -> None:
    found = run(classes(), seed=None)
    assert {result.config.seed for result in found.results} == {found.seed}
    assert run(classes(), seed=None).seed != found.seed


def test_each_fold_begins_with_the_same_weights() -> None:
    found = run(classes(), max_epochs=0)
    first = found.results[0].model.state_dict()
    for result in found.results[1:]:
        assert same_bits(result.model.state_dict(), first)


def test_classes_have_their_share_and_groups_go_whole() -> None:
    X, y = classes(90)
    found = run((X, y))
    for k in range(3):
        assert np.bincount(y[found.rows[found.fold == k]]).tolist() == [10, 10, 10]
    groups = np.arange(90) // 6
    found = run(hl.DataModule.from_arrays(X, y, groups=groups))
    for group in range(15):
        assert len(set(found.fold[groups == group])) == 1


def test_by_time_no_row_is_predicted_by_its_future() -> None:
    X, y = classes(80)
    found = run(hl.DataModule.from_arrays(X, y), split="time", gap=2)
    assert found.rows.tolist() == list(range(20, 80))  # the first block is only trained on
    assert found.fold.tolist() == sorted(found.fold.tolist())
    assert len(found.predictions) == 60


def walk(n: int = 240) -> tuple[Any, Any]:
    """Rows of a series, and a class for each that they tell."""
    series = np.random.default_rng(1).normal(size=(n, 3)).astype(np.float32)
    return series, np.array(["down", "flat", "up"])[np.digitize(series[:, 0], [-0.5, 0.5])]


@pytest.mark.parametrize("at", ["first", "last", "target"])
@pytest.mark.parametrize("horizon", [0, 2])
def test_windows_are_aligned_to_time_as_a_loop_by_hand_does_it(at: str, horizon: int) -> None:
    """Walking forward, each row of the series has what was known there; others have NaN."""
    series, y = walk()
    length, n_folds = 8, 3
    data = hl.DataModule.from_windows(
        series, length, horizon, target=y, test=0.1, gap=1, normalize=None, batch_size=32
    )

    def make() -> Any:
        return hl.models.mlp(3 * length, 3, (8,))

    config = quiet(**SETTINGS, class_weight="balanced")
    found = hl.cross_validate(make, data, config, n_folds)

    free = 216 - 1  # rows before the gap and the test
    size = free // (n_folds + 1)
    by_hand = np.full((240, 3), np.nan, np.float32)
    of_fold = np.full(240, np.nan)
    for k in range(n_folds):
        begin = free - (n_folds - k) * size
        blocks = {"train": range(begin - 1), "val": range(begin, begin + size)}
        # A window is in a block if its rows and that of its target are.
        firsts = {
            name: [t for t in rows if t + length - 1 + horizon in rows]
            for name, rows in blocks.items()
        }
        X = {n: np.stack([series[t : t + length] for t in f]) for n, f in firsts.items()}
        goals = {n: y[[t + length - 1 + horizon for t in f]] for n, f in firsts.items()}
        arrays = hl.DataModule.from_arrays(
            X["train"], goals["train"], val=(X["val"], goals["val"]), batch_size=32
        )
        result = hl.train(make(), arrays, config)
        later = {"first": 0, "last": length - 1, "target": length - 1 + horizon}[at]
        where = np.array(firsts["val"]) + later
        by_hand[where] = hl.predict(result, X["val"], proba=True)
        of_fold[where] = k
    aligned = found.aligned(at=at)
    assert aligned.dtype == np.float32
    np.testing.assert_array_equal(aligned, by_hand)  # NaN in the same rows
    np.testing.assert_array_equal(found.aligned(found.fold, at), of_fold)
    named = found.aligned(found.labels, at)
    is_predicted = ~np.isnan(by_hand[:, 0])
    assert all(one is None for one in named[~is_predicted])
    best = np.array(["down", "flat", "up"])[by_hand[is_predicted].argmax(1)]
    np.testing.assert_array_equal(named[is_predicted], best)


def test_aligned_to_rows_and_what_cannot_be() -> None:
    X, y = classes(90)
    data = hl.DataModule.from_arrays(X, y, test=10)
    found = run(data)
    aligned = found.aligned()
    assert aligned.shape == (90, 3)
    np.testing.assert_array_equal(aligned[found.rows], found.predictions)
    np.testing.assert_array_equal(
        np.flatnonzero(np.isnan(aligned).all(1)), np.sort(data.rows("test"))
    )
    numbers = list(range(80))
    np.testing.assert_array_equal(found.aligned(numbers)[found.rows], numbers)
    both = found.aligned({"a": found.fold, "b": found.fold > 0})
    np.testing.assert_array_equal(both["b"][found.rows], found.fold > 0)
    with pytest.raises(hl.ConfigError, match="at: must be 'first', 'last' or 'target', got 'end'"):
        found.aligned(at="end")
    with pytest.raises(hl.DataError, match=r"one for each of the 80 rows .*, got shape \(90,\)"):
        found.aligned(y)
    with pytest.raises(hl.ConfigError, match="got a list of arrays, one for each sequence"):
        found.aligned([np.zeros(2)] * 80)
    with pytest.raises(hl.ConfigError, match="needs predictions, got none"):
        run(data, predictions=False, max_epochs=0).aligned()


def test_a_fold_that_would_not_train_on_a_class_is_refused_before_any_is_trained() -> None:
    X, y = named_classes()
    made: list[Any] = []

    def make() -> Any:
        made.append(mlp())
        return made[-1]

    order = np.argsort(y == "low", kind="stable")  # the class occurs at the end alone
    late = hl.DataModule.from_arrays(X[order], y[order])
    with pytest.raises(
        hl.DataError,
        match=r"^cross_validate: fold 1 of 3: training rows must be of every class, got none of "
        "low; make fewer folds, add rows of it",
    ):
        hl.cross_validate(make, late, quiet(**SETTINGS), 3, split="time")
    y = classes(91)[1]
    y[y == 2] = np.where(np.arange((y == 2).sum()) < 1, 2, 0)  # one row: in training but once
    with pytest.raises(hl.DataError, match=r"fold \d of 3: training rows .*, got none of 2; make"):
        hl.cross_validate(make, (X, y), quiet(**SETTINGS), 3)
    rng = np.random.default_rng(0)
    walks = [rng.normal(size=(n, 2)).astype(np.float32) for n in rng.integers(3, 9, 30)]
    kinds = ["common"] * 29 + ["rare"]
    data = hl.DataModule.from_sequences(walks, kinds, buckets=9)
    with pytest.raises(hl.DataError, match="got none of rare; make"):
        hl.cross_validate(make, data, quiet(**SETTINGS), 2)
    assert not made
    # What a function makes of the classes is its own; folds go by those before.
    merged = hl.DataModule.from_arrays(X, y, val=0.2).map(lambda x, y: (x, int(y > 0)), cache="ram")
    assert len(hl.cross_validate(mlp, merged, quiet(max_epochs=0), 3).results) == 3
    # A class that only test rows have, or none at all, is no matter of the folds.
    data = hl.DataModule.from_arrays(X, y, test=np.flatnonzero(y == 2), classes=[0, 1, 2, 3])
    found = hl.cross_validate(lambda: mlp(c=4), data, quiet(max_epochs=0), 3)
    assert len(found.results) == 3


def test_folds_that_do_not_validate_a_class_are_named_once(
    recwarn: pytest.WarningsRecorder,
) -> None:
    X, y = named_classes()
    y[np.flatnonzero(y == "low")[2:]] = "mid"  # two rows
    warnings.simplefilter("always")
    run((X, y), max_epochs=0)
    (said,) = [str(one.message) for one in recwarn]
    assert re.search(r"each of 3 folds .* got 2 of class 'low' \(none in fold \d\)", said)


def test_values_are_predicted_in_their_own_units() -> None:
    X, y = regression(80)
    data = hl.DataModule.from_arrays(X, 1000 + 10 * y, standardize="both")
    found = hl.cross_validate(
        lambda: nn.Linear(5, 1), data, quiet(max_epochs=100, lr=0.1, metrics=["rmse"]), 4
    )
    assert found.labels is None
    assert found.confusion_matrix is None
    assert found.predictions.shape == (80, 1)
    assert np.sqrt(np.mean((found.predictions - (1000 + 10 * y)) ** 2)) < 3
    assert found.mean["val_rmse"] < 3


def test_structures_and_lists_of_sequences() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 1)

        def forward(self, x: Any) -> Any:
            return {"kind": self.a(x), "size": self.b(x)}

    X, y = classes(60)
    data = hl.DataModule.from_arrays(X, {"kind": y, "size": X.sum(1)})
    found = hl.cross_validate(Two, data, quiet(max_epochs=1), 2)
    assert found.predictions["kind"].shape == (60, 3)
    assert found.labels["kind"].shape == (60,)

    rng = np.random.default_rng(0)
    walks = [rng.normal(size=(n, 2)).astype(np.float32) for n in rng.integers(3, 9, 40)]
    steps = [(walk.sum(1) > 0).astype(np.int64) for walk in walks]

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Any, lengths: Any) -> Any:
            return self.layer(x)

    data = hl.DataModule.from_sequences(walks, steps, buckets=[4, 9], batch_size=8)
    found = hl.cross_validate(Steps, data, quiet(max_epochs=1), 2)
    assert [len(one) for one in found.labels] == [len(walk) for walk in walks]
    assert [len(one) for one in found.predictions] == [len(walk) for walk in walks]


def test_scores_are_those_of_the_weights_that_are_kept() -> None:
    found = run(classes(), restore_best=True, lr=0.5, max_epochs=8)
    for k, result in enumerate(found.results):
        assert found.scores["val_loss"][k] == pytest.approx(result.best_score, rel=1e-5)
    assert any(result.best_epoch != result.epochs for result in found.results)


def test_mean_and_deviation() -> None:
    found = run(classes(), folds=4)
    values = found.scores["val_accuracy"]
    assert found.mean["val_accuracy"] == pytest.approx(np.mean(values))
    assert found.std["val_accuracy"] == pytest.approx(statistics.stdev(values))
    assert np.isnan(run(classes(), folds=1, split="time").std["val_loss"])


def test_tables() -> None:
    found = run(classes(), metrics=["accuracy", "f1_per_class"])
    lines = str(found).splitlines()
    assert lines[0] == ("cross-validation: 3 folds, 90 rows predicted; seed 42, folds by seed 42")
    assert lines[1] == "fold  rows  val_loss  val_accuracy  epoch  seconds      ended"
    assert [line.split()[0] for line in lines[2:]] == ["1", "2", "3", "mean", "±"]
    assert lines[2].split()[1] == "30"
    assert f"{found.mean['val_accuracy']:.4g}" in lines[5]
    assert f"{found.std['val_accuracy']:.4g}" in lines[6]
    assert "val_f1[2]" in found.scores
    assert repr(found) == str(found)
    page = found._repr_html_()
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", page)
    assert cells[:4] == ["fold", "rows", "val_loss", "val_accuracy"]
    assert f"{found.mean['val_accuracy']:.4g}" in cells
    assert "<caption>cross-validation: 3 folds" in page


def test_names_are_escaped() -> None:
    def share(y_true: Any, y_pred: Any) -> float:
        return float((y_true == y_pred).mean())

    metric = {"a<b": hl.metric(share, mode="max")}
    page = run(classes(), metrics=metric)._repr_html_()
    assert html.escape("val_a<b") in page
    assert "a<b" not in page


def test_an_error_names_the_fold() -> None:
    X, y = classes(90)
    made: list[Any] = []

    def make() -> Any:
        made.append(mlp() if len(made) < 1 else nn.Linear(7, 3))
        return made[-1]

    with pytest.raises(hl.ShapeError, match=r"^cross_validate: fold 2 of 3: "):
        hl.cross_validate(make, (X, y), quiet(max_epochs=1), 3)

    def fails() -> Any:
        raise KeyError("own")

    with pytest.raises(KeyError) as caught:
        hl.cross_validate(fails, (X, y), quiet(max_epochs=1), 3)
    assert caught.value.__notes__ == ["hotloop: in fold 1 of 3 of cross_validate"]

    with pytest.raises(hl.NotFiniteError, match=r"^cross_validate: fold 1 of 3: "):
        hl.cross_validate(
            lambda: nn.Linear(5, 1),
            regression(),
            quiet(max_epochs=5, optimizer="sgd", lr=1e30, on_nan="raise"),
            3,
        )


def test_what_is_no_way_to_make_models_is_refused() -> None:
    data, config = classes(), quiet(max_epochs=1)
    net = mlp()
    with pytest.raises(hl.ConfigError, match=r"write lambda: Net"):
        hl.cross_validate(net, data, config)
    with pytest.raises(hl.ConfigError, match=r"fold 2 of 5: make_model: must return a new model"):
        hl.cross_validate(lambda: net, data, config)
    body = nn.Linear(6, 8)
    with pytest.raises(hl.ConfigError, match=r"0\.weight is also in the model of an earlier fold"):
        hl.cross_validate(lambda: nn.Sequential(body, nn.Linear(8, 3)), data, config)
    body.requires_grad_(False)
    hl.cross_validate(lambda: nn.Sequential(body, nn.Linear(8, 3)), data, config, 2)
    with pytest.raises(hl.ConfigError, match="must return a Module, got int"):
        hl.cross_validate(lambda: 3, data, config)
    with pytest.raises(hl.ConfigError, match="folds"):
        hl.cross_validate(mlp, data, config, 0)
    own = hl.DataModule.from_arrays(*data, val=data)
    with pytest.raises(hl.ConfigError, match="validation data of its own"):
        hl.cross_validate(mlp, own, config)


class Stops:
    """Interrupts, or stops, the second training."""

    def __init__(self, interrupt: bool) -> None:
        self.interrupt, self.n = interrupt, 0

    def on_train_begin(self, run: Any) -> None:
        import os
        import signal

        self.n += 1
        if self.n == 2 and self.interrupt:
            os.kill(os.getpid(), signal.SIGINT)
        elif self.n == 2:
            run.stop()


def test_an_interrupt_returns_the_folds_that_are_complete() -> None:
    found = run(classes(), callbacks=[Stops(True)], on_interrupt="return")
    assert len(found.results) == len(found.scores["val_loss"]) == 1
    assert len(found.predictions) == len(found.rows) == 30
    assert str(found).startswith("cross-validation: 1 of 3 folds, then interrupted")
    assert found.results[0].config.on_interrupt == "return"
    with pytest.raises(hl.TrainingInterrupted, match="fold 2 of 3") as caught:
        run(classes(), callbacks=[Stops(True)])
    assert caught.value.result.stop_reason == "interrupted"
    before = caught.value.folds  # what was complete is not lost
    np.testing.assert_array_equal(before.predictions, found.predictions)
    assert str(before).startswith("cross-validation: 1 of 3 folds, then interrupted")


def test_a_callback_that_stops_a_fold_stops_no_other() -> None:
    found = run(classes(), callbacks=[Stops(False)])
    assert [one.stop_reason for one in found.results] == ["completed", "interrupted", "completed"]


def test_models_are_kept_or_dropped() -> None:
    alive: list[weakref.ref[Any]] = []

    def make() -> Any:
        # No fold leaves more behind than its model, when the next begins.
        gc.collect()
        assert sum(one() is not None for one in alive) <= 1
        net = mlp()
        alive.append(weakref.ref(net))
        return net

    found = hl.cross_validate(make, classes(), quiet(max_epochs=1), 4, keep_models=False)
    gc.collect()
    assert all(one() is None for one in alive)
    assert all(result.model is None for result in found.results)
    assert len(found.predictions) == 90
    found = run(named_classes(), keep_models=False)
    assert "mid" in found.results[0].report()
    assert found.classes == ["high", "low", "mid"]
    assert set(found.labels) <= set(found.classes)
    assert all(result.model is not None for result in run(classes()).results)


def test_a_result_without_its_model_says_so(tmp_path: Path) -> None:
    result = run(classes(), keep_models=False).results[0]
    X, _ = classes()
    for call in (
        result.resume,
        lambda: hl.predict(result, X),
        lambda: hl.evaluate(result, classes()),
        lambda: hl.train(result, classes()),
        lambda: hl.save(result, tmp_path / "m"),
        lambda: result.save(tmp_path / "m"),
    ):
        with pytest.raises(hl.ConfigError, match=r"was dropped; write .*keep_models=True"):
            call()


class Seen:
    """A logger that all folds share."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, dict[str, float]]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.calls.append((step, values))


def test_a_logger_hears_which_fold_it_is(tmp_path: Path) -> None:
    """And steps that do not fall, which trackers refuse."""
    seen, inner = Seen(), Seen()
    within = hl.LambdaCallback(
        on_train_end=lambda run: hl.train(mlp(), classes(), quiet(max_epochs=1, logger=inner))
    )
    found = run(
        classes(), logger=[seen, "jsonl"], callbacks=[within], max_epochs=2, log_every_n_steps=1,
        output_dir=tmp_path, enable_checkpointing=True,
    )  # fmt: skip
    steps = [step for step, _ in seen.calls]
    assert steps == sorted(steps)
    n = [result.steps for result in found.results]
    assert {int(values["fold"]) for _, values in seen.calls} == {1, 2, 3}
    for step, values in seen.calls:
        k = int(values["fold"]) - 1
        assert sum(n[:k]) < step <= sum(n[: k + 1])
    assert all("fold" not in values for _, values in inner.calls)
    assert {step for step, _ in inner.calls} <= set(range(1, 100))
    lines = [json.loads(x) for x in Path(found.results[2].log_path).read_text().splitlines()]
    assert lines[0]["step"] == 1  # its own file
    assert all("fold" not in line for line in lines)
    seen.calls.clear()
    found.results[1].resume(max_epochs=3)
    assert {values["fold"] for _, values in seen.calls} == {2.0}
    assert seen.calls[0][0] == n[0] + n[1] + 1
    seen.calls.clear()
    hl.train(mlp(), classes(), quiet(max_epochs=1, logger=seen))
    assert all("fold" not in values for _, values in seen.calls)


def test_predictions_are_left_out_where_they_are_not_wanted() -> None:
    found = run(classes(), predictions=False)
    assert found.predictions is None
    assert found.labels is None
    assert len(found.rows) == 90


def test_memory_is_flat_over_folds() -> None:
    """Of the core, and of the process: forty folds more leave nothing."""

    def wide() -> Any:
        return nn.Sequential(nn.Linear(6, 4000), nn.ReLU(), nn.Linear(4000, 3))  # 160 kB

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    hl.cross_validate(wide, classes(), quiet(max_epochs=1), 5, keep_models=False)
    before, held = resident(), _core.alloc_stats()["current_bytes"]
    hl.cross_validate(wide, classes(), quiet(max_epochs=1), 45, keep_models=False)
    assert is_flat(before, resident(), 4_000_000)  # moments and plans of one are 1 MB
    assert _core.alloc_stats()["current_bytes"] <= held
    found = hl.cross_validate(wide, classes(), quiet(max_epochs=1), 5)
    assert len(found.results) == 5
    assert _core.alloc_stats()["current_bytes"] <= held  # models that are kept have no plans


def test_a_folds_result_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    found = run(classes(), output_dir=tmp_path, enable_checkpointing=True)
    assert len({result.last_path for result in found.results}) == 3
    longer = found.results[1].resume(max_epochs=5)
    assert longer.epochs == 5
    with pytest.raises(hl.ConfigError, match="is of a fold of cross_validate"):
        run(classes()).results[0].resume(max_epochs=5)


@pytest.mark.extra
def test_folds_are_as_scikit_learns() -> None:
    """Other rows, by another generator, in folds of the same sizes and shares of classes."""
    selection = take_library("sklearn.model_selection")
    X, y = classes(101)
    y[:7] = 0
    ours = run((X, y), folds=4, max_epochs=0)
    theirs = [val for _, val in selection.StratifiedKFold(4, shuffle=True).split(X, y)]
    shares = [np.bincount(y[ours.rows[ours.fold == k]], minlength=3) for k in range(4)]
    expected = [np.bincount(y[val], minlength=3) for val in theirs]
    for c in range(3):
        assert sorted(one[c] for one in shares) == sorted(one[c] for one in expected)
    data = hl.DataModule.from_arrays(X, X[:, 0])
    ours = hl.cross_validate(lambda: nn.Linear(6, 1), data, quiet(max_epochs=0), 4)
    sizes = sorted(len(val) for _, val in selection.KFold(4).split(X))
    assert sorted(np.bincount(ours.fold)) == sizes
    assert ours.rows.tolist() == list(range(101))  # as cross_val_predict gives them


@pytest.mark.extra
def test_predictions_are_as_cross_val_predict(tmp_path: Path) -> None:
    """Ridge regression: the least squares that each fold's line has to find."""
    linear = take_library("sklearn.linear_model")
    X, y = regression(60)
    data = hl.DataModule.from_arrays(X, y)
    config = quiet(max_epochs=400, lr=0.1, precision="64-true", optimizer="sgd")
    ours = hl.cross_validate(lambda: nn.Linear(5, 1), data, config, 3)
    for fold, k in zip(data.folds(3), range(3)):
        line = linear.LinearRegression().fit(X[fold.rows("train")], y[fold.rows("train")])
        theirs = line.predict(X[fold.rows("val")])
        np.testing.assert_allclose(ours.predictions[ours.fold == k], theirs, atol=1e-3)
