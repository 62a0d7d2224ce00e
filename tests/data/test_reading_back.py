"""What a DataModule says of itself: its arrays by split, names of classes, a line as text."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import ConfigError, DataError, DataModule, nn
from needs import take_library
from train.recipes import mlp, quiet

X = np.arange(600, dtype=np.float64).reshape(100, 6)
IDS = np.arange(100) % 3
NAMES = np.array(["low", "mid", "high"])


def make(y: object = IDS, **options: object) -> DataModule:
    return DataModule.from_arrays(X, y, **({"val": 0.2, "test": 0.1, "batch_size": 16} | options))


# ---- arrays


def test_arrays_are_x_and_y_of_a_split_with_names() -> None:
    data = make(NAMES[IDS])
    for name, n in (("train", 70), ("val", 20), ("test", 10)):
        x, y = data.arrays(name)
        rows = data.split(name).rows
        assert (x.shape, y.shape) == ((n, 6), (n,))
        np.testing.assert_array_equal(x, X[rows])
        np.testing.assert_array_equal(y, NAMES[IDS][rows])


def test_arrays_have_the_form_that_was_given() -> None:
    data = make(X[:, 0])
    np.testing.assert_array_equal(data.arrays("val")[1], X[data.split("val").rows, 0])
    x, y = DataModule.from_arrays({"a": X, "b": IDS}).arrays("train")
    assert (list(x), y) == (["a", "b"], None)
    x, y = DataModule.from_arrays((X, IDS), IDS, sample_weight=np.ones(100)).arrays("train")
    assert isinstance(x, tuple)
    assert y.tolist() == IDS.tolist()


def test_arrays_of_predictions_compare() -> None:
    data = make(NAMES[IDS])
    result = hl.train(mlp(), data, quiet(max_epochs=1))
    x, y = data.arrays("test")
    right = hl.predict(result, x, labels=True) == y
    assert right.mean() == pytest.approx(hl.evaluate(result, data)["accuracy"])


def test_arrays_of_no_split() -> None:
    with pytest.raises(ConfigError, match=r"test: the data has no such split; write from_arrays"):
        DataModule.from_arrays(X, IDS).arrays("test")
    with pytest.raises(ConfigError, match="split: must be one of train, val, test, got 'tset'"):
        make().arrays("tset")


# ---- names of classes


@pytest.mark.parametrize("y", [IDS, IDS.astype(np.uint8), list(IDS)], ids=["int", "uint8", "list"])
def test_ids_get_names(y: object, tmp_path) -> None:
    data = make(y, classes=["low", "mid", "high"])
    assert data.classes == ["low", "mid", "high"]
    assert set(data.arrays("val")[1]) <= {"low", "mid", "high"}
    result = hl.train(mlp(), data, quiet(max_epochs=1))
    result.save(tmp_path / "m")
    for model in (result, hl.load(tmp_path / "m")):
        assert set(hl.predict(model, X, labels=True)) <= {"low", "mid", "high"}
    named = NAMES[IDS]
    assert hl.evaluate(result, (X, named)) == hl.evaluate(result, (X, IDS))


def test_names_have_the_order_that_is_given() -> None:
    data = make(NAMES[IDS], classes=["low", "mid", "high"])
    assert data.classes == ["low", "mid", "high"]
    np.testing.assert_array_equal(data.split("train").arrays()["y"], IDS[data.split("train").rows])
    yes = make(IDS > 0, classes=["no", "yes"])
    assert yes.classes == ["no", "yes"]
    assert yes.arrays("val")[1][0] in ("no", "yes")


def test_a_class_without_rows_has_an_output() -> None:
    assert make(IDS, classes=["low", "mid", "high", "none"]).n_classes == 4
    assert make(NAMES[IDS], classes=["none", "low", "mid", "high"]).n_classes == 4
    parts = DataModule((X, NAMES[IDS]), (X, NAMES[IDS]), classes=["mid", "low", "high"])
    assert parts.classes == ["mid", "low", "high"]


@pytest.mark.extra
def test_a_frame_takes_names_too() -> None:
    pandas = take_library("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "kind": IDS})
    data = DataModule.from_pandas(frame, "kind", classes=["low", "mid", "high"])
    assert data.classes == ["low", "mid", "high"]


@pytest.mark.parametrize(
    ("y", "classes", "error", "words"),
    [
        (IDS, ["a", "b"], ConfigError, "classes: must name all 3 classes of y, got 2"),
        (IDS, ["a", "b", "a"], ConfigError, "classes: names must differ, got 'a' twice"),
        (IDS, "abc", ConfigError, "classes: must be a list of names"),
        (IDS, [1.5, 2, 3], ConfigError, r"classes\[0\]: a class is named by a text, an int"),
        (X[:, 0], ["a"], ConfigError, "classes: are of class targets, got float targets"),
        ({"kind": IDS}, {"knd": "abc"}, ConfigError, r"targets, kind, .*did you mean 'kind'\?"),
        ({"kind": IDS}, ["a", "b", "c"], ConfigError, "classes: must be a dict by target"),
        (NAMES[IDS], ["low", "mid"], DataError, r"y: classes must be those .*got 'high' in row 2"),
    ],
)
def test_names_that_do_not_fit_are_refused(y, classes, error, words) -> None:
    with pytest.raises(error, match=words):
        make(y, classes=classes)


# ---- as text


def test_as_a_line() -> None:
    assert repr(make()) == (
        "DataModule(train 70, val 20, test 10 rows; X float64 (6,); y of 3 classes; batch_size=16)"
    )
    assert repr(DataModule.from_arrays(X[:, 0])) == (
        "DataModule(train 100 rows; X float64 (); no y; batch_size=64)"
    )
    columns = {"a": X, "b": IDS}
    assert "; X['a'] float64 (6,), X['b'] int64 (); y float64 (6,);" in repr(
        DataModule.from_arrays(columns, X)
    )
    many = {f"c{i}": IDS for i in range(30)}
    assert "; 30 inputs; y 0 or 1 in (2,);" in repr(
        DataModule.from_arrays(many, np.stack([IDS > 0, IDS > 1], 1))
    )
    assert "train           70" in make().describe()


# ---- without targets


def test_an_autoencoder_is_told_how_to_be_trained() -> None:
    model = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 6))
    with pytest.raises(ConfigError, match=r"data without targets .*to reconstruct X.*\(X, X\)"):
        hl.train(model, X, quiet())
    result = hl.train(model, (X, X), quiet(max_epochs=1))
    assert hl.predict(result, X).shape == X.shape


# ---- several targets, ids per position


def test_several_targets_read_back() -> None:
    y = {"kind": NAMES[IDS], "size": X[:, 0], "on": IDS > 0}
    data = make(y, classes={"on": ["no", "yes"], "kind": ["low", "mid", "high"]})
    rows = data.split("val").rows
    _, found = data.arrays("val")
    np.testing.assert_array_equal(found["kind"], NAMES[IDS][rows])
    np.testing.assert_array_equal(found["on"], np.where(IDS > 0, "yes", "no")[rows])
    np.testing.assert_array_equal(found["size"], X[rows, 0])
    assert data.classes == {"kind": ["low", "mid", "high"], "on": ["no", "yes"]}
    assert "; y['kind'] of 3 classes, y['size'] float64 (), y['on'] of 2 classes;" in repr(data)
    _, pair = make((IDS, X[:, 0])).arrays("test")
    assert [len(part) for part in pair] == [10, 10]


def test_ids_per_position_read_back() -> None:
    ids = np.stack([IDS, np.full(100, -100)], 1)
    data = make(ids, classes=["low", "mid", "high"])
    _, found = data.arrays("train")
    np.testing.assert_array_equal(found[:, 0], NAMES[IDS][data.split("train").rows])
    assert set(found[:, 1]) == {None}
    assert "; y of 3 classes at (2,) positions;" in repr(data)
