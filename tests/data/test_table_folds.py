"""Folds and subsets of tables: each learns of its own rows, and all have the same columns."""

import copy
import pickle

import hotloop as hl
import numpy as np
import pytest
from data.test_tables import AGE, CITY, COLUMNS, ByIds, N, frame_of, make_pandas, model_of
from hotloop import nn
from needs import take_library
from train.recipes import quiet


@pytest.mark.extra
@pytest.mark.filterwarnings("ignore:.*training rows had no 'Rome':hotloop.DataWarning")
@pytest.mark.parametrize("how", ["onehot", "ids", "target"])
def test_each_fold_learns_of_its_own_training_rows(how) -> None:
    """A fold has what from_pandas makes with the fold's rows held out, in the whole's columns."""
    frame = make_pandas({**COLUMNS, "city": [*CITY[:-1], "Rome"]})
    options = {"categorical": how, "missing": "fill", "standardize": True}
    data = hl.DataModule.from_pandas(frame, "buys", test=[0, 1], **options)
    for fold in [*data.folds(3), data.folds(3)[0].subset(50)]:
        want = hl.DataModule.from_pandas(
            frame.iloc[fold.rows("train")], "buys", val=frame.iloc[fold.rows("val")], **options
        )
        assert fold.encoding == want.encoding.laid_out_as(data.encoding)
        assert fold.encoding.made == data.encoding.made or how == "target"
        for name in ("train", "val"):
            if name == "train" and how == "target":
                continue  # whose fifths go by the numbers of rows
            assert_laid_out(fold.arrays(name)[0], fold, want.arrays(name)[0], want)
            np.testing.assert_array_equal(fold.arrays(name)[1], want.arrays(name)[1])
        assert len(fold.arrays("test")[1]) == 2
        result = hl.train(sized(fold), fold, quiet(max_epochs=1))
        np.testing.assert_array_equal(
            hl.predict(result, fold), hl.predict(result, frame.iloc[[0, 1]])
        )


def assert_laid_out(X, data, wanted_X, wanted) -> None:
    """The same values in columns of the same names, zeros in others; ids of the same texts."""
    if isinstance(X, dict):
        for feature, known in zip(data.encoding.features, wanted.encoding.features):
            if feature.how == "ids":
                names, wanted_names = (np.array(["", *f.categories]) for f in (feature, known))
                assert (names[X[feature.name]] == wanted_names[wanted_X[feature.name]]).all()
        X, wanted_X = X["numbers"], wanted_X["numbers"]
    place = {name: i for i, (name, _) in enumerate(wanted.encoding.made)}
    for i, (name, _) in enumerate(data.encoding.made):
        want = wanted_X[:, place.pop(name)] if name in place else np.zeros(len(X))
        np.testing.assert_array_equal(X[:, i], want)
    assert not place


@pytest.mark.extra
@pytest.mark.parametrize("how", ["onehot", "ids"])
@pytest.mark.filterwarnings("ignore:.*training rows had no:hotloop.DataWarning")
def test_models_of_all_folds_have_the_same_inputs(how) -> None:
    """What a fold's training rows lack has a column of zeros, or an id that none has."""
    columns = {"city": ["Bonn", "Ulm", "Kiel", "Ulm"] * 15, "x": np.arange(60.0)}
    columns["city"][7], columns["city"][20], columns["x"][33] = "Rome", None, np.nan
    columns["y"] = np.arange(60) % 2
    options = {"categorical": how, "missing": "indicator"}
    data = hl.DataModule.from_pandas(make_pandas(columns), "y", **options)
    width = len(data.encoding.made)
    assert width == (7 if how == "onehot" else 2)  # of one-hot Bonn, Kiel, Rome, Ulm, missing
    make = (lambda: ByIds(width, 5)) if how == "ids" else (lambda: nn.Linear(width, 2))
    hl.cross_validate(make, data, quiet(max_epochs=1), folds=5)
    lacking = {"city=Rome": 0, "city missing": 0, "x missing": 0}
    for fold in data.folds(5):
        assert fold.encoding.made == data.encoding.made
        X, own = fold.arrays("train")[0], fold.arrays("val")[0]
        if how == "ids":
            assert (X["city"][fold.rows("train") == 7] == 3).all()  # as in the whole
            assert (own["city"][fold.rows("val") == 7] == 0).all()  # unseen
            continue
        for name in lacking:
            at = [made for made, _ in data.encoding.made].index(name)
            assert X[:, at].sum() in (0, 1)
            if not X[:, at].any():
                lacking[name] += 1
                assert not own[:, at].any()
    assert how == "ids" or set(lacking.values()) == {1}


def sized(data):
    return ByIds(len(data.encoding.made), 6) if data.encoding.ids else model_of(data)


def assert_same(one, other) -> None:
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, tuple):
        for mine, theirs in zip(one, other):
            np.testing.assert_array_equal(mine, theirs)
    else:
        np.testing.assert_array_equal(one, other)


@pytest.mark.extra
@pytest.mark.parametrize("again", [lambda data: pickle.loads(pickle.dumps(data)), copy.deepcopy])
def test_copies_of_data_have_its_folds(again) -> None:
    data = hl.DataModule.from_pandas(make_pandas(COLUMNS), "buys", missing="fill")
    for mine, theirs in zip(again(data).folds(2), data.folds(2)):
        assert mine.encoding == theirs.encoding
        assert_same(mine.arrays("train")[0], theirs.arrays("train")[0])


@pytest.mark.extra
def test_folds_that_learn_nothing_share_their_arrays() -> None:
    frame = frame_of(a=np.arange(12.0), b=np.arange(12), y=np.arange(12) % 2)
    data = hl.DataModule.from_pandas(frame, "y")
    for fold in data.folds(3):
        assert fold.split("val").fields[0].array is data.split("train").fields[0].array


@pytest.mark.extra
def test_a_subset_encodes_data_of_its_own_and_weights_anew() -> None:
    frame = make_pandas({**COLUMNS, "trust": np.linspace(0.5, 1, N)})
    data = hl.DataModule.from_pandas(
        frame[:200], "buys", val=frame[200:], sample_weight="trust", missing="fill"
    )
    part = data.subset(40)
    rows = part.rows("train")
    median = np.nanmedian(AGE[rows])
    assert part.encoding.features[0].fill == median
    lacking = np.isnan(AGE[200:])
    np.testing.assert_array_equal(part.arrays("val")[0][lacking, 0], np.float32(median))
    names = [field.name for field in part.split("val").fields]
    assert names == ["x", "y", "weight"]
    np.testing.assert_array_equal(part.split("val").fields[2].array, np.linspace(0.5, 1, N)[200:])


# ---- the same options as arrays have


@pytest.mark.extra
def test_columns_are_standardised_by_name() -> None:
    frame = frame_of(a=[1.0, 3, 5, 7], b=[1.0, 3, 5, 7], c=list("uvuv"), y=[0, 1, 0, 1])
    for how in ("onehot", "ids"):
        options = {"categorical": how, "standardize": ["b"]}
        data = hl.DataModule.from_pandas(frame, "y", **options)
        for part in (data, data.subset(3)):
            ((mean, std),) = part.transforms[0][1].values()
            b = frame.b.to_numpy()[part.rows("train")]
            np.testing.assert_allclose(mean[:2], [0, b.mean()], rtol=1e-6)
            np.testing.assert_allclose(std[:2], [1, b.std()], rtol=1e-6)
    for name in ("bb", "c"):
        rule = rf"standardize: must name columns of numbers, got none for '{name}'"
        with pytest.raises(hl.ConfigError, match=rule):
            hl.DataModule.from_pandas(frame, "y", standardize=[name])


@pytest.mark.extra
def test_classes_sampling_groups_and_weights() -> None:
    frame = frame_of(
        a=np.arange(60.0), who=[f"p{i // 4}" for i in range(60)], y=["no", "yes", "no"] * 20
    )
    data = hl.DataModule.from_pandas(
        frame, "y", groups="who", val=0.2, classes=["yes", "no"], sampler="balanced"
    )
    assert data.classes == ["yes", "no"]
    assert data.encoding.names == ["a"]
    people = [set(frame.who[data.rows(name)]) for name in ("train", "val")]
    assert not people[0] & people[1]
    np.testing.assert_array_equal(data.arrays("val")[1], frame.y[data.rows("val")])


@pytest.mark.extra
def test_columns_that_pandas_numbers() -> None:
    pandas = take_library("pandas")
    frame = pandas.DataFrame(np.random.default_rng(0).random((40, 4)))
    frame[3] = (frame[3] > 0.5).astype(int)
    data = hl.DataModule.from_pandas(frame, 3, features=[2, 0])
    assert data.split("train").fields[0].columns == ("2", "0")
    result = hl.train(nn.Linear(2, 2), data, quiet(max_epochs=1))
    want = hl.predict(result, frame[[2, 0]].to_numpy())
    np.testing.assert_array_equal(hl.predict(result, frame), want)
    np.testing.assert_array_equal(hl.predict(result, frame.iloc[5]), want[5])
    np.testing.assert_array_equal(hl.predict(result, {0: frame[0], 2: frame[2]}), want)
