"""Folds: every row validates once, classes and groups keep their rule, time is never seen ahead."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.data.folds import walk_forward
from hotloop.errors import ConfigError, DataError, DataWarning
from hypothesis import given, settings
from hypothesis import strategies as st


def make(n: int, y: object = None, **options: object) -> hl.DataModule:
    """Rows that say their own number."""
    return hl.DataModule.from_arrays(np.arange(n, dtype=np.float32)[:, None], y, **options)


def rows_of(data: hl.DataModule, split: str) -> np.ndarray:
    """What stands in a split's batches, which is the number of each row."""
    return np.concatenate([batch["x"][:, 0] for batch in data.batches_in_order(split)])


def assert_each_validates_once(folds: list[hl.DataModule], n: int) -> None:
    """Rows without those of the test are in one val each, and in the train of all other folds."""
    has_test = folds[0].split("test") is not None
    test = folds[0].rows("test") if has_test else np.zeros(0, np.int64)
    wanted = np.setdiff1d(np.arange(n), test)
    found = np.sort(np.concatenate([fold.rows("val") for fold in folds]))
    np.testing.assert_array_equal(found, wanted)
    for fold in folds:
        both = np.sort(np.concatenate([fold.rows("train"), fold.rows("val")]))
        np.testing.assert_array_equal(both, wanted)
        for name in ("train", "val"):
            np.testing.assert_array_equal(rows_of(fold, name), fold.rows(name))
        if has_test:
            np.testing.assert_array_equal(fold.rows("test"), test)
            np.testing.assert_array_equal(rows_of(fold, "test"), test)


# ---- at random


@given(st.integers(2, 8), st.integers(8, 90), st.sampled_from([0, 1, 0.2]), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_each_row_validates_once(n_folds, n, test, seed) -> None:
    if n - round(test * n if isinstance(test, float) else test) < n_folds:
        return
    data = make(n, test=test, val=0.1, seed=seed)
    folds = data.folds(n_folds)
    assert_each_validates_once(folds, n)
    sizes = [len(fold.rows("val")) for fold in folds]
    assert max(sizes) - min(sizes) <= 1


def test_order_is_the_seeds() -> None:
    first, again, other = (make(60, seed=seed).fold(1, 4).rows("val") for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert (np.diff(first) != 1).any()


@given(st.lists(st.integers(0, 4), min_size=12, max_size=120), st.integers(2, 6))
@settings(max_examples=60, deadline=None)
def test_classes_have_their_share(y, n_folds) -> None:
    ids = np.array(y)
    folds = make(len(y), ids).folds(n_folds)
    assert_each_validates_once(folds, len(y))
    for number in np.unique(ids):
        counts = [int((ids[fold.rows("val")] == number).sum()) for fold in folds]
        assert max(counts) - min(counts) <= 1
    sizes = [len(fold.rows("val")) for fold in folds]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("options", "how"), [({}, {}), ({"stratify": False}, {}), ({}, {"split": "time"})]
)
def test_classes_that_some_folds_cannot_validate_are_named(
    options: dict, how: dict, recwarn: pytest.WarningsRecorder
) -> None:
    """With these folds, counted from 1, in the same words whichever of them is made."""
    y = np.array(["cat"] * 20 + ["dog"] * 18 + ["eel"] * 2)
    y = y[np.random.default_rng(0).permutation(40)]
    data = make(40, y, **options)
    folds = data.folds(5, **how)
    assert len(recwarn) == 1
    for k in (0, 3):
        again = data.fold(k, 5, **how)
        np.testing.assert_array_equal(again.rows("val"), folds[k].rows("val"))
    (text,) = {str(one.message) for one in recwarn if one.category is DataWarning}
    lacking = [str(k + 1) for k, fold in enumerate(folds) if "eel" not in y[fold.rows("val")]]
    assert len(lacking) >= 3
    assert (
        "each of 5 folds a class needs as many rows, got 2 of class 'eel' (none in folds "
        f"{', '.join(lacking[:-1])} and {lacking[-1]}); "
    ) in text
    assert "add rows of it" in text


def test_classes_that_folds_can_validate_are_not_named(recwarn: pytest.WarningsRecorder) -> None:
    y = np.array([0] * 20 + [1] * 15 + [2] * 5)
    make(40, y).folds(5)
    make(40, y, test=np.arange(35, 40)).folds(5)  # none of a class, which is no matter of the folds
    make(40, y.astype(np.float32)).folds(5)
    make(40).folds(5)
    assert not recwarn


def test_without_stratify_classes_are_not_looked_at() -> None:
    y = np.arange(400) % 2
    counts = [int(y[f.rows("val")].sum()) for f in make(400, y, stratify=False).folds(8)]
    assert set(counts) != {25}


def test_classes_by_names_and_every_class_is_known() -> None:
    y = np.array(["a"] * 30 + ["b"] * 30 + ["rare"])
    folds = make(61, y, classes=["rare", "b", "a"]).folds(3)
    for fold in folds:
        assert fold.classes == ["rare", "b", "a"]
        np.testing.assert_array_equal(fold.arrays("val")[1], y[fold.rows("val")])
    assert sum(fold.class_counts()[0] for fold in folds) == 2


@given(st.lists(st.integers(0, 9), min_size=30, max_size=80), st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_groups_go_whole(groups, n_folds) -> None:
    of = np.array([f"patient {g}" for g in groups])
    if len(set(groups)) < n_folds:
        with pytest.raises(DataError, match=f"groups: {n_folds} folds need as many groups, got"):
            make(len(of), groups=of).folds(n_folds)
        return
    folds = make(len(of), groups=of).folds(n_folds)
    assert_each_validates_once(folds, len(of))
    for fold in folds:
        assert not set(of[fold.rows("train")]) & set(of[fold.rows("val")])
    largest = max(groups.count(g) for g in set(groups))
    sizes = [len(fold.rows("val")) for fold in folds]
    assert max(sizes) - min(sizes) <= largest  # the lightest fold gets the next group


# ---- by time


@given(st.integers(1, 400), st.integers(1, 9), st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_walk_forward_cuts(n, n_folds, gap) -> None:
    try:
        cuts = walk_forward(n, n_folds, gap, "rows")
    except DataError:
        assert n // (n_folds + 1) == 0 or n - n_folds * (n // (n_folds + 1)) <= gap
        return
    assert len(cuts) == n_folds
    assert cuts[-1][2] == n
    for (end, begin, stop), following in zip(cuts, [*cuts[1:], (0, n, 0)]):
        assert 0 < end == begin - gap
        assert stop == following[1]
        assert stop - begin == n // (n_folds + 1)


@pytest.mark.parametrize("options", [{"split": "time"}, {}], ids=["of the data", "of the fold"])
def test_training_never_sees_the_future(options: dict) -> None:
    data = make(113, test=13, gap=3 if options else 0, split="time", val=0.1)
    folds = data.folds(4) if options else make(113, test=range(100, 113)).folds(4, split="time")
    gap = 3 if options else 0
    free = 100 - gap
    begin = free - 4 * (free // 5)
    for fold in folds:
        val = fold.rows("val")
        np.testing.assert_array_equal(val, np.arange(begin, begin + free // 5))
        np.testing.assert_array_equal(fold.rows("train"), np.arange(begin - gap))
        np.testing.assert_array_equal(fold.rows("test"), np.arange(100, 113))
        begin = int(val[-1]) + 1
    assert begin == free  # up to the gap before the test


def test_groups_by_time() -> None:
    groups = np.repeat(np.arange(10), 7)
    for fold in make(70, groups=groups, split="time", test=7).folds(3):
        assert fold.rows("train").max() < fold.rows("val").min()
        assert not set(groups[fold.rows("train")]) & set(groups[fold.rows("val")])
    with pytest.raises(DataError, match="groups: folds by time need groups whose rows follow each"):
        make(70, groups=np.arange(70) % 5).fold(0, 3, split="time")


# ---- windows


@pytest.mark.parametrize("grouping", ["one series", "groups", "groups and time"])
@pytest.mark.parametrize("gap", [0, 4])
def test_windows_walk_forward(grouping: str, gap: int) -> None:
    n, length, horizon, n_folds = 180, 5, 2, 3
    times = np.arange(n) if grouping == "one series" else np.tile(np.arange(n // 2), 2)
    groups = None if grouping == "one series" else np.repeat(["a", "b"], n // 2)
    data = hl.DataModule.from_windows(
        np.arange(n, dtype=np.float32),
        length,
        horizon,
        target=np.arange(n, dtype=np.float32),
        groups=groups,
        time=times if grouping == "groups and time" else None,
        test=0.1,
        gap=gap,
        normalize=None,
    )
    test = data.rows("test")
    latest = -1
    for fold in data.folds(n_folds):
        np.testing.assert_array_equal(fold.rows("test"), test)
        train, val = (fold.arrays(name) for name in ("train", "val"))
        np.testing.assert_array_equal(val[0][:, 0], fold.rows("val"))
        np.testing.assert_array_equal(val[0][:, -1], fold.rows("val", at="last"))
        np.testing.assert_array_equal(val[1], fold.rows("val", at="target"))
        np.testing.assert_array_equal(val[1], val[0][:, -1] + horizon)
        seen = np.unique(times[np.concatenate([train[0].ravel(), train[1]]).astype(int)])
        asked = np.unique(times[np.concatenate([val[0].ravel(), val[1]]).astype(int)])
        assert seen.max() + gap < asked.min()
        assert asked.min() > latest
        latest = asked.max()
    tested = times[data.arrays("test")[0].astype(int)].min()
    assert latest < tested - gap


def test_windows_and_folds_at_random_contradict() -> None:
    data = hl.DataModule.from_windows(np.arange(50.0), 5)
    with pytest.raises(ConfigError, match="split: windows share rows with their neighbours"):
        data.fold(0, 3, split="random")
    with pytest.raises(DataError, match="train: its 5 rows hold no window of length 5"):
        hl.DataModule.from_windows(np.arange(50.0), 5, 1).fold(0, 9)


def test_where_samples_stand() -> None:
    """Rows and sequences are where they are; a window of a text ends before the last id asked."""
    data = make(40, test=10)
    for at in ("first", "last", "target"):
        np.testing.assert_array_equal(data.rows("test", at=at), data.rows("test"))
    text = hl.DataModule.from_text("to be, or not to be, " * 9, 8, stride=3, val=0.2)
    np.testing.assert_array_equal(text.rows("val", at="last"), text.rows("val") + 7)
    np.testing.assert_array_equal(text.rows("val", at="target"), text.rows("val") + 8)
    with pytest.raises(ConfigError, match="at: must be 'first', 'last' or 'target', got 'end'"):
        data.rows("test", at="end")


# ---- sequences


def test_sequences_keep_their_buckets() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 40, 120)
    X = [np.full((n, 2), i, np.float32) for i, n in enumerate(lengths)]
    y = [i % 3 for i in range(120)]
    data = hl.DataModule.from_sequences(X, y, buckets=[10, 20, 40], test=20, batch_size=8)
    test = data.rows("test")
    folds = data.folds(4)
    found = np.sort(np.concatenate([fold.rows("val") for fold in folds]))
    np.testing.assert_array_equal(found, np.setdiff1d(np.arange(120), test))
    for fold in folds:
        assert [part.fields[0].shape[0] for part in fold.split("train").buckets] == [40, 20, 10]
        for name in ("train", "val"):
            held, classes = fold.arrays(name)
            np.testing.assert_array_equal([one[0, 0] for one in held], fold.rows(name))
            np.testing.assert_array_equal([len(one) for one in held], lengths[fold.rows(name)])
            np.testing.assert_array_equal(classes, np.array(y)[fold.rows(name)])
        seen = [b["x"][0][:, 0, 0] for b in fold.train_batches()]
        np.testing.assert_array_equal(np.sort(np.concatenate(seen)), fold.rows("train"))
        fields = fold.split("val").fields
        assert fields[0].series is data.split("train").fields[0].series  # no copy
    counts = np.array([np.bincount(np.array(y)[f.rows("val")], minlength=3) for f in folds])
    assert (counts.max(0) - counts.min(0) <= 1).all()


# ---- what is fitted


def test_standardised_by_the_training_rows_of_the_fold() -> None:
    X = np.random.default_rng(0).normal(size=(60, 3)) * [1, 10, 100]
    data = hl.DataModule.from_arrays(X, test=10, standardize=True)
    whole = data.transforms
    for fold in data.folds(3):
        ((_, fitted),) = fold.transforms
        mean, std = fitted["x"]
        train = X[fold.rows("train")]
        np.testing.assert_allclose(mean, train.mean(0), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(std, train.std(0), rtol=1e-6)
        assert not np.array_equal(mean, whole[0][1]["x"][0])
    assert data.transforms[0][1]["x"][0] is whole[0][1]["x"][0]


def test_out_of_fold_predictions() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 4)).astype(np.float32)
    y = (X @ rng.normal(size=4)).astype(np.float32)
    data = hl.DataModule.from_arrays(X, y, standardize=True)
    found = np.full(90, np.nan, np.float32)
    for fold in data.folds(3):
        model = nn.Linear(4, 1)
        hl.train(model, fold, max_epochs=40, lr=0.05, enable_progress_bar=False)
        found[fold.rows("val")] = hl.predict(model, fold.arrays("val")[0])[:, 0]
    assert np.isfinite(found).all()
    assert np.corrcoef(found, y)[0, 1] > 0.9


def test_a_row_that_no_fold_may_hold_is_found_in_its_fold() -> None:
    X = np.ones((40, 1))
    X[7] = np.nan
    data = hl.DataModule.from_arrays(X, val=[7])
    data.check("train")
    for fold in data.folds(4):
        name = "val" if 7 in fold.rows("val") else "train"
        with pytest.raises(DataError, match="row 7, column 0"):
            fold.check(name)
        fold.check("val" if name == "train" else "train")


def test_weights_of_a_fold() -> None:
    weight = np.zeros(40)
    weight[5] = 1.0
    data = hl.DataModule.from_arrays(np.ones((40, 1)), sample_weight=weight)
    with pytest.raises(DataError, match="sample_weight: all weights of the"):
        data.folds(4)


# ---- subsets


@pytest.mark.parametrize("share", [0.25, 20, np.int64(20), 80, 1.0])
def test_subset_of_so_many(share: object) -> None:
    y = np.arange(100) % 4
    data = make(100, y, val=20)
    some = data.subset(share)
    n = 20 if share in (0.25, 20) else 80
    assert len(some) == n
    assert set(some.rows("train")) <= set(data.rows("train"))
    np.testing.assert_array_equal(some.rows("val"), data.rows("val"))
    assert some.class_counts() == [n // 4] * 4
    np.testing.assert_array_equal(rows_of(some, "train"), some.rows("train"))


def test_subset_of_rows() -> None:
    data = make(30, test=range(20, 30))
    some = data.subset([3, 1, 5])
    np.testing.assert_array_equal(some.rows("train"), [1, 3, 5])
    np.testing.assert_array_equal(rows_of(some, "train"), [1, 3, 5])
    mask = np.zeros(30, bool)
    mask[:12] = True
    some = data.subset(mask)
    np.testing.assert_array_equal(some.rows("train"), np.arange(12))
    folds = some.folds(3)
    assert sorted(np.concatenate([f.rows("val") for f in folds])) == list(range(12))


def test_subset_of_windows_and_sequences() -> None:
    data = hl.DataModule.from_windows(np.arange(60.0), 4, val=10, normalize=None)
    some = data.subset(20)
    assert len(some) == 20
    np.testing.assert_array_equal(some.arrays("train")[0][:, 0], some.rows("train"))
    for fold in some.folds(2):
        assert set(fold.rows("train")) <= set(some.rows("train"))
    data = hl.DataModule.from_sequences([np.full((n, 1), n) for n in range(1, 31)])
    some = data.subset([4, 20])
    assert [len(one) for one in some.arrays("train")[0]] == [5, 21]


# ---- wrong input


def test_wrong_input() -> None:
    data = make(20, val=4)
    for arguments, words in [
        ((2, 2), "k: must be at most 1, got 2"),
        ((-1, 2), "k: must be at least 0, got -1"),
        ((0, 0), "n: must be at least 1, got 0"),
        ((0, 1), "n: folds at random must be 2 at least, got 1"),
        ((0.5, 2), "k: a whole number is needed, got 0.5"),
    ]:
        with pytest.raises(ConfigError, match=words):
            data.fold(*arguments)
    with pytest.raises(ConfigError, match=r"split: must be 'random' or 'time', got 'kfold'"):
        data.fold(0, 2, split="kfold")
    with pytest.raises(ConfigError, match="gap: is between folds by time, got gap=3 with folds at"):
        data.fold(0, 2, gap=3)
    with pytest.raises(DataError, match="folds: 21 folds need as many rows, got 20 that are no"):
        data.fold(0, 21)
    with pytest.raises(DataError, match="folds: 5 folds by time need 6 blocks of rows, the first"):
        data.fold(0, 5, split="time", gap=9)
    own = hl.DataModule.from_arrays(np.ones((9, 1)), val=(np.ones((4, 1)),))
    for wrong in (own, hl.DataModule((np.ones((9, 1)),), (np.ones((4, 1)),))):
        with pytest.raises(ConfigError, match="fold: validates on rows of the training data, got"):
            wrong.fold(0, 2)
    with pytest.raises(ConfigError, match="split: shuffle=False is about the order of training"):
        make(20, shuffle=False).folds(2)
    with pytest.raises(ConfigError, match="stratify: needs one class per row in y, got"):
        make(20, stratify=True).folds(2)
    with pytest.raises(ConfigError, match="stratify: whole groups cannot be stratified"):
        make(20, np.arange(20) % 2, stratify=True, groups=np.arange(20)).folds(2)


def test_wrong_subsets() -> None:
    data = make(20, val=range(15, 20))
    for share, words in [
        (0, "rows: must be a fraction above 0, a number of rows, row numbers or a mask, got 0"),
        (1.5, "rows: must be a fraction above 0"),
        (True, "rows: must be a fraction above 0"),
        ("all", "rows: must be a fraction above 0"),
        (16, "rows: 16 rows were asked for, there are 15"),
        ([17], "rows: must be training rows, got 17, which is none"),
        ([20], "rows: row numbers must lie between 0 and 19, got 20"),
        ([1, 1], "rows: row 1 was given twice"),
        (np.ones(19, bool), r"rows: a mask must have shape \(20,\), got \(19,\)"),
        ([], "rows: no rows were given$"),
        ([0.5], "rows: row numbers must be a 1-d array of integers, got dtype float64 of shape "),
    ]:
        with pytest.raises((ConfigError, DataError), match=words):
            data.subset(share)


def test_rows_of_a_dataset_given_twice() -> None:
    class Subset:
        dataset = (np.arange(6.0)[:, None],)
        indices = (0, 2, 2, 4)

    data = hl.DataModule(Subset())
    np.testing.assert_array_equal(data.rows("train"), [0, 2, 2, 4])
    with pytest.raises(DataError, match="got row 2 twice among the training rows"):
        data.folds(2)
