"""Data frames: columns by name. A frame of our own stands in where no library is installed."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from needs import take_library
from train.recipes import quiet

RNG = np.random.default_rng(0)
N = 60
COLUMNS = {
    "age": RNG.uniform(20, 80, N),
    "size": RNG.uniform(1, 2, N),
    "kind": np.array(["a", "b", "c"])[np.arange(N) % 3],
    "price": RNG.uniform(0, 1, N),
    "who": np.arange(N) // 4,
    "trust": RNG.uniform(0.5, 1, N),
}


class Series:
    def __init__(self, values) -> None:
        self.values = np.asarray(values)
        self.dtype = self.values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def to_numpy(self):
        return self.values


class Frame:
    """What is asked of a frame, and no more."""

    def __init__(self, columns) -> None:
        self.data = dict(columns)
        self.columns = list(self.data)
        self.shape = (N, len(self.data))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, names):
        if isinstance(names, str):
            return Series(self.data[names])
        return Frame({name: self.data[name] for name in names})

    def get_columns(self):
        return [Series(column) for column in self.data.values()]

    def to_numpy(self):
        kinds = {np.asarray(column).dtype.kind for column in self.data.values()}
        dtype = object if "U" in kinds else None
        return np.stack([np.asarray(column, dtype) for column in self.data.values()], axis=1)


def make_pandas(columns):
    return take_library("pandas").DataFrame(columns)


def make_polars(columns):
    return take_library("polars").DataFrame(columns)


@pytest.fixture(
    params=[
        pytest.param(Frame, id="ours"),
        pytest.param(make_pandas, id="pandas", marks=pytest.mark.extra),
        pytest.param(make_polars, id="polars", marks=pytest.mark.extra),
    ]
)
def make(request):
    return request.param


NUMBERS = ["age", "size", "price"]


def test_columns_have_their_roles(make) -> None:
    data = hl.DataModule.from_pandas(
        make(COLUMNS), "kind", groups="who", sample_weight="trust", val=0.2, batch_size=8
    )
    fields = {field.name: field for field in data.split("train").fields}
    assert fields["x"].columns == ("age", "size", "price")
    numbers = np.stack([COLUMNS[n] for n in NUMBERS], 1).astype(np.float32)
    np.testing.assert_array_equal(fields["x"].array, numbers)
    np.testing.assert_array_equal(fields["weight"].array, COLUMNS["trust"])
    assert data.classes == ["a", "b", "c"]
    groups = [set(COLUMNS["who"][data.split(name).rows]) for name in ("train", "val")]
    assert not groups[0] & groups[1]


def test_chosen_features_and_several_targets(make) -> None:
    data = hl.DataModule.from_pandas(make(COLUMNS), ["price", "size"], features=["trust", "age"])
    fields = {field.name: field for field in data.split("train").fields}
    assert fields["x"].columns == ("trust", "age")
    assert fields["y"].array.shape == (N, 2)
    assert data.target_kind == "float"
    weight = list(COLUMNS["trust"])
    numbers = make({name: COLUMNS[name] for name in NUMBERS})
    data = hl.DataModule.from_pandas(numbers, "price", sample_weight=weight)
    np.testing.assert_array_equal(data.split("train").fields[-1].array, COLUMNS["trust"])
    assert hl.DataModule.from_pandas(numbers).target_kind == "none"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"target": "prise"}, hl.ConfigError, "target: .*got none for 'prise' .did you mean 'pri"),
        ({"target": "kind", "features": ["age", "x"]}, hl.ConfigError, "got none for 'x'"),
        ({"target": "kind", "features": []}, hl.ConfigError, "features: must name a column"),
        ({"target": "kind", "groups": "whom"}, hl.ConfigError, "groups: .*did you mean 'who'"),
        ({"target": "price", "typo": 1}, hl.ConfigError, "there is no option 'typo'"),
    ],
)
def test_mistakes_are_named(make, arguments, error, words) -> None:
    with pytest.raises(error, match=words):
        hl.DataModule.from_pandas(make(COLUMNS), **arguments)


def test_all_columns_that_are_no_numbers_are_named(make) -> None:
    texts = {"kind": COLUMNS["kind"], "town": np.array(["Bonn", "Ulm"] * (N // 2))}
    columns = make({"age": COLUMNS["age"], **texts})
    rule = r"^X: all columns must hold numbers, got 'kind' .*'a'.*, 'town' .*; leave these out, or "
    with pytest.raises(hl.DataError, match=rule):
        hl.DataModule.from_arrays(columns, COLUMNS["price"])
    result = hl.train(
        nn.Linear(3, 1),
        hl.DataModule.from_pandas(make(COLUMNS)[[*NUMBERS, "who"]], "price"),
        quiet(),
    )
    wrong = make(COLUMNS | {"age": texts["kind"], "size": texts["town"]})
    with pytest.raises(
        hl.DataError, match=r"got texts \('a'\) in 'age', .*numbers, .* in 'size', "
    ):
        hl.predict(result, wrong[["age", "size", "who"]])


def test_columns_of_names_are_several_targets(make) -> None:
    rule = r"^y: each column of names is a target of its own, got the columns kind, price; give "
    with pytest.raises(hl.DataError, match=rule):
        hl.DataModule.from_pandas(make(COLUMNS), ["kind", "price"])


def test_all_columns_of_a_dict_that_are_no_numbers_are_named() -> None:
    dates = np.arange("2020-01-01", "2020-03-01", dtype="datetime64[D]")
    columns = {"age": COLUMNS["age"], "kind": COLUMNS["kind"], "when": dates}
    with pytest.raises(
        hl.DataError, match=r"X: all .*got 'kind' \(<U1, .*'a'.*\), 'when' \(datetime64\[D\]"
    ):
        hl.DataModule.from_arrays(columns, COLUMNS["price"])
    del columns["when"]
    with pytest.raises(hl.DataError, match=r"X\['kind'\]: must hold numbers, got dtype <U1"):
        hl.DataModule.from_arrays(columns, COLUMNS["price"])


def test_all_columns_with_missing_values_are_named(make) -> None:
    columns = {name: COLUMNS[name].copy() for name in NUMBERS}
    columns["age"][3] = columns["price"][5] = np.nan
    found = r"got nan in row 3, column 'age' \(2 such values in 2 rows of columns 'age', 'price'\)"
    with pytest.raises(hl.DataError, match=found):
        hl.train(
            nn.Linear(3, 2), hl.DataModule.from_arrays(make(columns), COLUMNS["kind"]), quiet()
        )


class Columns(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 1)

    def forward(self, x):
        return self.head(hl.stack([x["age"], x["size"]], dim=1))


def test_a_model_of_a_dict_takes_the_columns_of_a_frame(make, tmp_path) -> None:
    columns = {name: COLUMNS[name] for name in ("age", "size")}
    data = hl.DataModule.from_arrays(columns, COLUMNS["price"], standardize=True)
    result = hl.train(Columns(), data, quiet(max_epochs=1))
    result.save(tmp_path / "m.safetensors")
    for model in (result, hl.load(tmp_path / "m.safetensors")):
        want = hl.predict(model, columns)
        np.testing.assert_array_equal(
            hl.predict(model, make(dict(reversed(COLUMNS.items())))), want
        )
        with pytest.raises(hl.DataError, match="got none for 'size'"):
            hl.predict(model, make(COLUMNS)[["age", "price"]])


@pytest.mark.parametrize("value", [COLUMNS, np.ones((3, 2)), None, "data.csv"])
def test_what_is_no_frame(value) -> None:
    with pytest.raises(hl.DataError, match="frame: a data frame is needed, got"):
        hl.DataModule.from_pandas(value, "price")


def test_a_model_finds_its_columns_by_name(make, tmp_path) -> None:
    frame = make(COLUMNS)
    data = hl.DataModule.from_pandas(frame, "price", features=["age", "size"], standardize=True)
    result = hl.train(nn.Linear(2, 1), data, quiet(max_epochs=2))
    result.save(tmp_path / "m.safetensors")
    want = hl.predict(result, np.stack([COLUMNS["age"], COLUMNS["size"]], 1))
    turned = make(dict(reversed(COLUMNS.items())))
    for model in (result, hl.load(tmp_path / "m.safetensors")):
        np.testing.assert_array_equal(hl.predict(model, frame), want)
        np.testing.assert_array_equal(hl.predict(model, turned), want)
        with pytest.raises(hl.DataError, match="got none for 'size'"):
            hl.predict(model, frame[["age", "price"]])


def test_validation_finds_the_columns_of_training_by_name(make) -> None:
    frame = make(COLUMNS)
    train, turned = frame[["age", "size"]], frame[["size", "price", "age"]]
    y = COLUMNS["price"]
    data = hl.DataModule.from_arrays(train, y, val=(turned, y))
    val = data.split("val").fields[0]
    assert val.columns == ("age", "size")
    np.testing.assert_array_equal(val.array, data.split("train").fields[0].array)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda frame: hl.DataModule.from_pandas(frame, "price", features=["agee", "size", "z"]),
            r"^features: must name columns of the frame, got none for 'agee' \(did you mean "
            r"'age'\?\), 'z'$",
        ),
        (
            lambda frame: hl.DataModule.from_pandas(frame, "prize"),
            r"^target: must name columns of the frame, got none for 'prize' \(did you mean "
            r"'price'\?\)$",
        ),
        (
            lambda frame: hl.DataModule.from_arrays(
                frame[["age", "size"]], COLUMNS["price"], val=(frame[["age"]], COLUMNS["price"])
            ),
            r"^val X: must have all columns of training, got none for 'size'$",
        ),
        (
            lambda frame: hl.DataModule.from_arrays(
                {"age": COLUMNS["age"], "size": COLUMNS["size"]},
                COLUMNS["price"],
                val=({"ages": COLUMNS["age"], "size": COLUMNS["size"]}, COLUMNS["price"]),
            ),
            r"^val data: must have the parts of the training data, got none for x.age \(did you "
            r"mean x.ages\?\)$",
        ),
        (
            lambda frame: hl.DataModule.from_arrays(
                {"age": COLUMNS["age"], "size": COLUMNS["size"]},
                COLUMNS["price"],
                standardize=["age", "sizes"],
            ),
            r"^standardize: must name columns of the dict X, got none for 'sizes' \(did you mean "
            r"'size'\?\)$",
        ),
    ],
)
def test_what_is_missing_is_named_alone(make, call, words) -> None:
    with pytest.raises(ValueError, match=words):
        call(make(COLUMNS))


def test_a_frame_of_one_column_of_texts_is_a_target(make) -> None:
    frame = make({**COLUMNS, "kind": np.where(COLUMNS["age"] > 40, "old", "young")})
    data = hl.DataModule.from_arrays(frame[["age", "size"]], frame[["kind"]], val=0.2)
    assert data.classes == ["old", "young"]
    assert data.target_kind == "class"
    same = hl.DataModule.from_pandas(frame[["age", "size", "kind"]], ["kind"], val=0.2)
    assert same.classes == ["old", "young"]


def test_a_target_far_from_0_is_named_by_its_column(make) -> None:
    y = np.random.default_rng(0).standard_normal(100)
    targets = make({"near": y, "far": y + 1000})
    with pytest.warns(hl.DataWarning, match="the mean of column 'far' is 1000 and the standard"):
        hl.DataModule.from_arrays(np.zeros((100, 1), np.float32), targets).warn_of_values()


@pytest.mark.extra
def test_a_row_or_a_dict_of_columns_goes_by_name() -> None:
    """A Series is not taken by position, and a dict needs no frame around it."""
    pd = take_library("pandas")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.random((40, 3)), columns=list("abc"))
    frame["t"] = 3 * frame.a
    data = hl.DataModule.from_pandas(frame, "t", val=None)
    result = hl.train(nn.Linear(3, 1), data, quiet(max_epochs=1))
    rows = hl.predict(result, frame[["a", "b", "c"]])
    row = frame.iloc[1]
    for one in (row, row[::-1], row.astype(object)):
        np.testing.assert_array_equal(hl.predict(result, one), rows[1])
        np.testing.assert_array_equal(result.model(one), rows[1])
    columns = frame[["c", "b", "a"]].to_dict("list")
    np.testing.assert_array_equal(hl.predict(result, columns), rows)
    for bad in (row.drop("b"), {"a": [1.0], "c": [1.0]}):
        with pytest.raises(hl.DataError, match="all columns of training, got none for 'b'"):
            hl.predict(result, bad)
    with pytest.raises(hl.DataError, match=r"got texts \('x'\) in 'b', which had numbers"):
        hl.predict(result, pd.Series({"a": 1.0, "b": "x", "c": 2.0}))
