"""DataModule: what the trainer and the user get from it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hotloop import _core
from hotloop.data.batching import Group
from hotloop.data.module import DataModule, GraphDataModule
from hotloop.data.shorthand import as_datamodule
from hotloop.errors import ConfigError, DataError


def table(n: int = 100, width: int = 4) -> np.ndarray:
    """Rows that say their number."""
    return np.repeat(np.arange(n, dtype=np.float32)[:, None], width, axis=1)


# ---- batches


@pytest.mark.parametrize(
    ("n", "size", "options", "wanted"),
    [
        (128, 64, {}, [(64, 2)]),
        (130, 64, {}, [(64, 2), (2, 1)]),
        (129, 64, {}, [(64, 2), (1, 1)]),
        (129, 64, {"merge_tail": True}, [(64, 1), (65, 1)]),
        (65, 64, {"merge_tail": True}, [(65, 1)]),
        (66, 64, {"merge_tail": True}, [(64, 1), (2, 1)]),
        (10, 64, {}, [(10, 1)]),
        (10, 64, {"drop_last": True}, [(10, 1)]),
        (130, 64, {"drop_last": True}, [(64, 2)]),
        (129, 64, {"drop_last": True, "merge_tail": True}, [(64, 2)]),
        (130, 64, {"drop_last": True, "training": False}, [(64, 2), (2, 1)]),
        (3, 1, {}, [(1, 3)]),
        (1, 1, {}, [(1, 1)]),
    ],
)
def test_how_an_epoch_is_cut(n: int, size: int, options: dict, wanted: list) -> None:
    data = DataModule.from_arrays(
        table(n), batch_size=size, drop_last=options.pop("drop_last", False)
    )
    cut = {"training": True, "merge_tail": False} | options
    assert data.batches("train", **cut) == [Group(*group) for group in wanted]
    if not data.drop_last:
        assert sum(size * count for size, count in wanted) == n


@pytest.mark.parametrize(("n", "size"), [(1, 64), (5, 1)])
def test_one_sample_with_batch_statistics(n: int, size: int) -> None:
    data = DataModule.from_arrays(table(n), batch_size=size)
    with pytest.raises(DataError, match="one sample with BatchNorm: batch statistics need two"):
        data.batches("train", training=True, merge_tail=True)


@pytest.mark.parametrize("merge_tail", [False, True])
def test_an_epoch_has_every_row_once_in_an_order_of_its_own(merge_tail: bool) -> None:
    data = DataModule.from_arrays(table(129), np.arange(129.0), val=0.2, batch_size=17)
    orders = []
    for epoch in (0, 1, 0):
        batches = list(data.train_batches(epoch, merge_tail=merge_tail))
        for batch in batches:
            np.testing.assert_array_equal(batch["x"][:, 0], batch["y"])
            assert batch["x"].dtype == batch["y"].dtype == np.float32
        orders.append(np.concatenate([batch["y"] for batch in batches]).astype(int).tolist())
        sizes = [size for size, count, _ in cut(data, merge_tail) for _ in range(count)]
        assert [len(batch["y"]) for batch in batches] == sizes
    assert sorted(orders[0]) == data.split("train").rows.tolist()
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[1]) == sorted(orders[0]) != orders[0]


def cut(data: DataModule, merge_tail: bool) -> list[Group]:
    """The groups of a training epoch."""
    return data.batches("train", training=True, merge_tail=merge_tail)


def test_the_order_is_that_of_the_feeds() -> None:
    data = DataModule.from_arrays(table(50), batch_size=8)
    feeds = data.feeds("train", cut(data, False), training=True)
    rows = []
    for feed in feeds:
        feed.seek(3)
        while (found := feed.next_rows()) is not None:
            rows += found.tolist()
    assert rows == [int(x[0]) for batch in data.train_batches(3) for x in batch["x"]]


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_the_order_is_a_function_of_seed_and_epoch(seed: int) -> None:
    """And the split, whose rows it orders, one of the seed."""
    data = DataModule.from_arrays(table(50), val=0.2, batch_size=8, seed=seed)
    drawn = _core.permutation(seed, "split", 0, 50)
    assert data.split("val").rows.tolist() == sorted(drawn[40:].tolist())
    rows = data.split("train").rows
    assert rows.tolist() == sorted(drawn[:40].tolist())
    for epoch in (0, 3):
        seen = np.concatenate([batch["x"][:, 0] for batch in data.train_batches(epoch)])
        order = _core.permutation(seed, "shuffle", epoch, 40)
        assert seen.tolist() == rows[order].tolist()


def test_evaluation_keeps_the_order_of_the_rows() -> None:
    data = DataModule.from_arrays(table(60), val=0.3, test=0.2, batch_size=7)
    for name, batches in (("val", data.val_batches()), ("test", data.test_batches())):
        seen = np.concatenate([batch["x"][:, 0] for batch in batches])
        assert seen.tolist() == data.split(name).rows.tolist()


def test_without_shuffling_training_sees_the_rows_in_order() -> None:
    data = DataModule.from_arrays(table(20), shuffle=False, batch_size=6)
    for epoch in (0, 1):
        seen = np.concatenate([batch["x"][:, 0] for batch in data.train_batches(epoch)])
        assert seen.tolist() == list(range(20))


def test_dict_and_tuple_inputs_keep_their_structure() -> None:
    ids, ages = np.arange(20), np.linspace(20, 80, 20)
    data = DataModule.from_arrays({"id": ids, "age": ages}, ages, batch_size=8)
    batch = next(data.train_batches())
    assert set(batch["x"]) == {"id", "age"}
    assert batch["x"]["id"].dtype == np.int64
    assert batch["x"]["age"].dtype == np.float32
    np.testing.assert_array_equal(ages[batch["x"]["id"]].astype("f4"), batch["x"]["age"])
    assert data.example_batch() == {
        "x.id": ("int64", (8,)),
        "x.age": ("float32", (8,)),
        "y": ("float32", (8,)),
    }
    many = tuple(np.full((5, 1), i, np.float32) for i in range(12))
    batch = next(DataModule.from_arrays(many).train_batches())
    assert [x[0, 0] for x in batch["x"]] == list(range(12))


def test_example_batch() -> None:
    data = DataModule.from_arrays((table(10), np.arange(10)), batch_size=4)
    assert data.example_batch() == {"x.0": ("float32", (4, 4)), "x.1": ("int64", (4,))}
    assert DataModule.from_arrays(table(10)).example_batch() == {"x": ("float32", (10, 4))}


# ---- targets


@pytest.mark.parametrize(
    ("y", "kind", "dtype", "classes", "n_classes"),
    [
        (np.array([2, 0, 1, 2]), "class", "int64", None, 3),
        (np.array([2, 0, 1, 2], np.uint8), "class", "int64", None, 3),
        (np.array([[2], [0], [1], [2]]), "class", "int64", None, 3),
        ([True, False, True, False], "class", "int64", [False, True], 2),
        (["b", "a", "c", "a"], "class", "int64", ["a", "b", "c"], 3),
        (np.array(["b", "a", "c", "a"], object), "class", "int64", ["a", "b", "c"], 3),
        (np.array([b"b", b"a", b"c", b"a"]), "class", "int64", ["a", "b", "c"], 3),
        (np.array([1, 0, 1, 0], object), "class", "int64", None, 2),
        ([0.5, 1, 2, 3], "float", "float32", None, None),
        (np.ones((4, 3)), "float", "float32", None, None),
        (np.array([[1, 0], [1, 1], [0, 0], [0, 1]]), "multilabel", "float32", None, None),
        (np.zeros((4, 2), bool), "multilabel", "float32", None, None),
        (np.array([[1, 0], [1, 5], [0, 0], [0, 1]]), "class", "int64", None, 6),
        (None, "none", None, None, None),
    ],
)
def test_what_y_means(y: Any, kind: str, dtype: str, classes: Any, n_classes: Any) -> None:
    data = DataModule.from_arrays(table(4), y)
    assert data.target_kind == kind
    assert data.classes == classes
    assert data.n_classes == n_classes
    fields = {field.name: field for field in data.split("train").fields}
    assert ("y" in fields) == (y is not None)
    if y is not None:
        assert fields["y"].dtype == dtype
        assert next(data.train_batches())["y"].dtype == dtype


def test_string_classes_are_numbered_in_sorted_order() -> None:
    names = np.array(["dog", "ant", "cat", "ant"])
    data = DataModule.from_arrays(table(4), names, val=(table(2), ["cat", "ant"]), shuffle=False)
    assert next(data.train_batches())["y"].tolist() == [2, 0, 1, 0]
    assert next(data.val_batches())["y"].tolist() == [1, 0]
    assert data.class_counts() == [2, 1, 1]
    data = DataModule.from_arrays(table(4), names, val=(table(2), ["dog", "cat"]))
    assert next(data.val_batches())["y"].tolist() == [2, 1]  # by the names of training


def test_classes_of_all_splits_count() -> None:
    data = DataModule.from_arrays(table(4), [0, 1, 0, 1], val=(table(1), [4]))
    assert data.n_classes == 5
    assert data.class_counts() == [2, 2, 0, 0, 0]


def test_one_class_only_is_a_warning() -> None:
    data = DataModule.from_arrays(table(5), ["a"] * 5)
    with pytest.warns(UserWarning, match=r"all 5 training rows are of class 'a'"):
        data.warn_of_one_class()


def test_one_hot_is_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"exactly one 1.*y.argmax\(1\)"):
        DataModule.from_arrays(table(3), np.eye(3, dtype=int))


def test_classes_of_a_model_renumber_the_ids() -> None:
    """Data of some classes, seen by a model of more; what that has not is named by its row."""
    names = np.array(["dog", "ant", "dog", "cat"])
    data = DataModule.from_arrays(table(4), names, val=[1], shuffle=False, batch_size=4)
    known = data.with_classes(["cow", "cat", "dog", "ant"])
    assert (known.classes, known.n_classes) == (["cow", "cat", "dog", "ant"], 4)
    assert next(known.train_batches())["y"].tolist() == [2, 2, 1]
    assert next(known.val_batches())["y"].tolist() == [3]
    assert known.class_counts() == [0, 1, 2, 0]
    assert next(data.train_batches())["y"].tolist() == [2, 2, 1]  # ant, cat, dog
    assert data.with_classes(["ant", "cat", "dog"]) is data
    with pytest.raises(DataError, match=r"y: .*'cat', 'ant'.*, got 'dog' in row 0"):
        data.with_classes(["cat", "ant"])
    with pytest.raises(DataError, match=r"y: .*got 'cat' in row 3"):
        data.with_classes(["dog", "ant"])


def test_labels_beyond_the_model_are_named() -> None:
    data = DataModule.from_arrays(table(30), np.arange(30) % 10, val=range(10))
    data.check_labels("train", 10)
    with pytest.raises(DataError, match=r"y: class ids must be below 3, .* got 3 in row 13"):
        data.check_labels("train", 3)


# ---- weights, transforms, checks


def test_weights_travel_with_their_rows() -> None:
    weight = np.arange(20) + 1
    data = DataModule.from_arrays(table(20), sample_weight=weight, val=5, batch_size=4)
    for batch in [*data.train_batches(), *data.val_batches()]:
        assert batch["weight"].dtype == np.float32
        assert (batch["x"][:, 0] + 1).tolist() == batch["weight"].tolist()


def test_standardize_by_the_training_rows(rng: np.random.Generator) -> None:
    X = rng.normal(50, 3, (500, 3))
    X[:, 1] = 7.7  # constant
    X[:, 2] = 1e9 + rng.integers(0, 2, 500)  # one-pass variance would be noise
    data = DataModule.from_arrays(X, val=0.2, standardize=True)
    train = X[data.split("train").rows]
    ((kind, fitted),) = data.transforms
    assert kind == "standardize"
    mean, std = fitted["x"]
    assert mean.dtype == std.dtype == np.float32
    np.testing.assert_allclose(mean, train.mean(axis=0), rtol=1e-7)
    np.testing.assert_allclose(std[[0, 2]], train.std(axis=0)[[0, 2]], rtol=1e-6)
    assert std[1] == 1


def test_standardize_divides_by_no_zero() -> None:
    """A spread that float32 does not hold counts as none."""
    X = np.array([[1e-60, 1.0], [2e-60, 2.0], [3e-60, 3.0]])
    mean, std = DataModule.from_arrays(X, standardize=True).transforms[0][1]["x"]
    assert mean.tolist() == [0.0, 2.0]
    assert std.tolist() == [1.0, np.float32(np.sqrt(2 / 3))]


def test_weights_of_a_split_are_those_of_its_rows() -> None:
    weight = np.ones(10)
    weight[:5] = 0
    with pytest.raises(DataError, match=r"sample_weight: all weights of the val rows are 0"):
        DataModule.from_arrays(table(10), sample_weight=weight, val=range(5))
    with pytest.raises(DataError, match=r"sample_weight: all weights of the train rows are 0"):
        DataModule.from_arrays(table(10), sample_weight=weight, val=range(5, 10))
    weight[9] = -1
    subset = SimpleNamespace(
        dataset=SimpleNamespace(tensors=(table(10), table(10), weight)), indices=[6, 7]
    )
    assert len(DataModule(subset)) == 2  # the bad one is in no split


def test_standardize_chooses_fields() -> None:
    X = {"id": np.arange(9), "age": np.arange(9), "w": np.ones(9)}
    assert [*DataModule.from_arrays(X, standardize=True).transforms[0][1]] == ["x.w"]
    data = DataModule.from_arrays(X, standardize=["age"])
    assert [*data.transforms[0][1]] == ["x.age"]
    assert [field.dtype for field in data.split("train").fields] == ["int64", "float32", "float32"]
    alone = DataModule.from_arrays(np.arange(9), standardize=True)
    assert alone.split("train").fields[0].dtype == "float32"
    assert DataModule.from_arrays(X).transforms == []


def test_standardize_leaves_nan_out_where_it_is_allowed() -> None:
    X = np.array([[1.0], [np.nan], [3.0]])
    data = DataModule.from_arrays(X, standardize=True, allow_nonfinite=True)
    mean, std = data.transforms[0][1]["x"]
    assert (mean[0], std[0]) == (2, 1)
    nothing = DataModule.from_arrays(X[1:2], standardize=True, allow_nonfinite=True)
    assert [v[0] for v in nothing.transforms[0][1]["x"]] == [0, 1]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_is_named_by_the_users_row_and_column(dtype: str) -> None:
    X = np.ones((100, 5), dtype)
    X[70, 3:], X[71, 0] = np.nan, np.inf
    data = DataModule.from_arrays(X, val=range(50))
    data.check("val")  # they are in rows of the other split
    found = r"X: must be finite, got nan in row 70, column 3 \(3 such values in 2 rows of "
    found += r"columns 0, 3, 4\)"
    with pytest.raises(DataError, match=found):
        data.check("train")
    DataModule.from_arrays(X, allow_nonfinite=True).check("train")


@pytest.mark.parametrize("row", range(12))
def test_every_row_of_every_block_is_looked_at(row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotloop.data.checks._BLOCK", 10)
    X = table(12, 2)
    X[row, 1] = np.nan
    data = DataModule.from_arrays(X, val=[11] if row < 11 else [0])
    with pytest.raises(DataError, match=rf"got nan in row {row}, column 1; drop"):
        data.check("train")


def test_data_of_its_own_enters_in_the_dtypes_of_training() -> None:
    data = DataModule.from_arrays(
        table(4), np.arange(4.0), val=(np.ones((2, 4), int), np.arange(2)), standardize=True
    )
    batch = next(data.val_batches())
    assert batch["x"].dtype == batch["y"].dtype == np.float32


def test_nan_elsewhere() -> None:
    bad = np.array([0.0, np.inf])
    with pytest.raises(DataError, match=r"^y: must be finite, got inf in row 1; drop"):
        DataModule.from_arrays(table(2), bad).check("train")
    with pytest.raises(DataError, match=r"^X\['a'\]: must be finite, got inf in row 1"):
        DataModule.from_arrays({"a": bad}).check("train")
    images = np.zeros((2, 2, 2))
    images[0, 1, 0] = np.nan
    data = DataModule.from_arrays(np.zeros((2, 2, 2)), val=(images, None))
    data.check("train")
    with pytest.raises(DataError, match=r"^val X: .* row 0, index \(1, 0\)"):
        data.check("val")


def test_values_beyond_float32_are_named() -> None:
    X = np.ones((3, 2))
    X[2, 1] = -1e300
    with pytest.raises(DataError, match=r"X: values must fit float32.*-1e\+300 in row 2, column 1"):
        DataModule.from_arrays(X).check("train")


def test_a_split_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import hotloop.data.splits as module

    calls = []
    monkeypatch.setattr(module, "check_values", lambda field, rows: calls.append(field.name))
    data = DataModule.from_arrays(table(4), np.arange(4.0))
    data.check("train")
    data.check("train")
    assert calls == ["x", "y"]


# ---- other ways in


@pytest.mark.filterwarnings("ignore:y. all")
def test_datasets() -> None:
    X, y = table(10), np.arange(10) % 2
    for dataset in ((X, y), SimpleNamespace(tensors=(X, y)), SimpleNamespace(arrays=[X, y])):
        data = GraphDataModule(dataset, (X[:4], y[:4]), batch_size=4)
        assert (len(data), data.split("val").n, data.n_classes) == (10, 4, 2)
        assert data.split("test") is None
    assert DataModule(X).target_kind == "none"
    subset = SimpleNamespace(dataset=SimpleNamespace(tensors=(X, y)), indices=[7, 1])
    nested = SimpleNamespace(dataset=subset, indices=[0])
    data = DataModule(subset, nested, shuffle=False)
    assert next(data.train_batches())["x"][:, 0].tolist() == [7, 1]
    assert next(data.val_batches())["x"][:, 0].tolist() == [7]
    assert as_datamodule(subset).split("train").rows.tolist() == [7, 1]


@pytest.mark.parametrize(("indices", "bad"), [([0, 10], 10), ([3, -1], -1), ([11, 2], 11)])
def test_rows_of_a_subset_lie_in_its_data(indices: list, bad: int) -> None:
    subset = SimpleNamespace(dataset=SimpleNamespace(tensors=(table(10),)), indices=indices)
    with pytest.raises(DataError, match=rf"train_dataset: .* between 0 and 9, got {bad}"):
        DataModule(subset)
    subset.indices = []
    with pytest.raises(DataError, match="train_dataset: has no rows"):
        DataModule(subset)


def test_iterables_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"must have a length and \[i\].*from_generator"):
        as_datamodule(iter([1]))


def test_as_datamodule() -> None:
    data = DataModule.from_arrays(table(10))
    assert as_datamodule(data) is data
    with pytest.raises(ConfigError, match="own options"):
        as_datamodule(data, val=0.2)
    X, y = table(50), np.arange(50) % 2
    assert as_datamodule((X, y)).split("val").n == 10
    assert as_datamodule((X, y), val=None).split("val") is None
    assert as_datamodule((X[:49], y[:49])).split("val") is None
    assert as_datamodule((X, y, np.ones(50))).split("train").fields[-1].name == "weight"
    assert as_datamodule({"a": X}).split("train").fields[0].name == "x.a"
    assert as_datamodule(((X, X), y)).split("train").fields[1].name == "x.1"
    assert as_datamodule(SimpleNamespace(tensors=(X, y))).split("val").n == 10


def test_as_text() -> None:
    data = DataModule.from_arrays(
        table(1000), np.arange(1000) % 3, val=0.2, batch_size=64, num_workers=4, standardize=True
    )
    assert "train          800        13      32" in data.describe().splitlines()
    assert "val            200         4       8" in data.describe().splitlines()
    text = data.describe()
    for part in ("0: 267", "float32 (4) -> float32", "standardize x", "workers     none"):
        assert part in text


# ---- wrong input


X10, Y10 = table(10), np.arange(10) % 2


@pytest.mark.parametrize(
    ("X", "y", "options", "text"),
    [
        (X10[:0], None, {}, r"X: has no rows, got shape \(0, 4\)"),
        (X10[:, :0], None, {}, r"X: its rows have no values, got shape \(10, 0\)"),
        ({}, None, {}, r"X: has no arrays"),
        ((), None, {}, r"X: has no arrays"),
        (None, None, {}, r"X: an array is needed, got None"),
        ({1: X10}, None, {}, r"names of columns must be strings, got 1"),
        ({"0": X10}, None, {}, r"must not all be numbers"),
        (((X10,), X10), None, {}, r"X\[0\]: must be an array, got tuple"),
        ({"a": X10, "b": X10[:9]}, None, {}, r"X\['b'\]: must have as many rows as X\['a'\], 10"),
        (X10, Y10[:9], {}, r"y: must have one entry per row of X, which has 10, got 9"),
        (X10, Y10 - 1, {}, r"y: class ids count from 0, got -1 in row 0"),
        (X10, Y10 * 2 - 1, {}, r"y: .*write \(y > 0\).astype\(int\) for labels -1 and 1"),
        (X10, Y10 + 2**40, {}, r"y: class ids must be below 16,777,216"),
        (X10, Y10 + 2**24 - 1, {}, r"y: class ids must be below 16,777,216, got 16777216 in row 1"),
        (X10, ["a"] * 9 + [1], {}, r"y: must be all numbers or all strings, got int 1 in row 9"),
        (X10, np.array(["a"] * 9 + [None], object), {}, r"y: .* got NoneType None in row 9"),
        (X10, Y10 * 1j, {}, r"y: must hold numbers, got dtype complex128"),
        (X10, {"a": Y10, "b": Y10[:9]}, {}, r"y\['b'\]: must have one entry per row of X"),
        (X10, 3, {}, r"y: an array is needed, got int 3"),
        (X10, None, {"val": (X10[:, :2], None)}, r"val X: rows must have shape \(4,\)"),
        (X10, Y10, {"val": (X10, Y10 + 0.5)}, r"val y: must be class targets.*got float"),
        (X10, Y10, {"val": (X10,)}, r"val data: must have the parts .*, got none for y$"),
        (X10, Y10, {"val": (X10, Y10[:3])}, r"val y: must have one entry per row of val X"),
        (X10, ["a", "b"] * 5, {"val": (X10[:1], ["z"])}, r"val y: .*got 'z' in row 0"),
        (X10, ["a", "b"] * 5, {"val": (X10[:1], [0])}, r"val y: must be of the kind"),
        (Y10, None, {"val": (Y10 + 0.5, None)}, r"val X: must hold integers as in training"),
        (X10, None, {"sample_weight": np.ones(9)}, r"sample_weight: .* got 9"),
        (X10, None, {"sample_weight": np.ones((10, 2))}, r"sample_weight: must have shape \(10,\)"),
        (X10, None, {"sample_weight": -X10[:, 0]}, r"sample_weight: .* got -1.0 in row 1"),
        (X10, None, {"sample_weight": np.full(10, np.nan)}, r"sample_weight: .* got nan in row 0"),
        (X10, None, {"sample_weight": np.zeros(10)}, r"all weights of the train rows are 0"),
    ],
)
def test_wrong_data_is_named(X: Any, y: Any, options: dict, text: str) -> None:
    with pytest.raises(DataError, match=text):
        DataModule.from_arrays(X, y, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, r"batch_size: must be at least 1, got 0"),
        ({"batch_size": -3}, r"batch_size: must be at least 1, got -3"),
        ({"batch_size": True}, r"batch_size: a whole number is needed, got True"),
        ({"batch_size": 2.5}, r"batch_size: a whole number is needed, got 2.5"),
        ({"batch_size": "64"}, r"batch_size: .*write batch_size=64"),
        ({"batch_size": "auto"}, r"batch_size: must be a number, got 'auto'; hl.find_batch_size"),
        ({"num_workers": -1}, r"num_workers: must be at least 0, got -1"),
        ({"pin_memory": 1}, r"pin_memory: must be True or False, got 1"),
        ({"shuffle": 1}, r"shuffle: must be True or False, got 1"),
        ({"drop_last": None}, r"drop_last: must be True or False"),
        ({"seed": -1}, r"seed: must be at least 0"),
        ({"allow_nonfinite": "yes"}, r"allow_nonfinite: must be True or False"),
        (
            {"standardize": "all"},
            r"standardize: must be True, False, .x., .*write standardize=\[.all.\]",
        ),
        ({"standardize": ["age"]}, r"standardize: must name columns of a dict X, .* got .*age"),
        ({"val": (X10, None, None, 1)}, r"val: must be \(X,\), \(X, y\) or \(X, y, weight\)"),
    ],
)
def test_wrong_options_are_named(options: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        DataModule.from_arrays(X10, **options)


def test_a_missing_split_is_named() -> None:
    data = DataModule.from_arrays(X10)
    with pytest.raises(ConfigError, match=r"val: the data has no such split; write from_arrays"):
        data.val_batches()
    with pytest.raises(ConfigError, match=r"split: must be one of train, val, test, got 'dev'"):
        data.split("dev")
    with pytest.raises(ConfigError, match=r"class_counts: needs class targets, got none"):
        data.class_counts()
