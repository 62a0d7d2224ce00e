"""Tables: every kind of column from every library, learnt of training rows alone, and applied to
new rows by name.
"""

import datetime
import decimal
import json
import pickle

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.data.frames.columns import read_frame
from hotloop.data.frames.encoding import Encoding
from hotloop.data.frames.fitting import find_median
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import take_library
from train.recipes import quiet

N = 240
RNG = np.random.default_rng(0)
AGE = RNG.uniform(20, 80, N)
AGE[::7] = np.nan
CITIES = ["Bonn", "Kiel", "Ulm"]
CITY = [None if i % 11 == 0 else CITIES[i * 7 % 3] for i in range(N)]
START = np.datetime64("2020-02-27T12:00", "us")
WHEN = START + np.arange(N) * np.timedelta64(6, "h")
COLUMNS = {
    "age": AGE,
    "visits": np.arange(N) % 9,
    "member": np.arange(N) % 2 == 0,
    "city": CITY,
    "when": WHEN,
    "buys": np.where(np.arange(N) % 3 == 0, "yes", "no").tolist(),
}


def make_pandas(columns):
    return take_library("pandas").DataFrame(columns)


def make_pandas_objects(columns):
    frame = take_library("pandas").DataFrame(columns)
    return frame.astype({name: object for name in ("city", "buys") if name in columns})


def make_pandas_arrow(columns):
    take_library("pyarrow")
    return make_pandas(columns).convert_dtypes(dtype_backend="pyarrow")


def make_pandas_nullable(columns):
    return make_pandas(columns).convert_dtypes()


def make_polars(columns):
    polars = take_library("polars")
    return polars.DataFrame(columns, nan_to_null=True)


def make_polars_alone(columns, monkeypatch):
    """As where pyarrow is not installed."""
    monkeypatch.setattr("hotloop.data.frames.columns._has_pyarrow", lambda: False)
    return make_polars(columns)


def make_arrow(columns):
    pyarrow = take_library("pyarrow")
    return pyarrow.table(
        {name: pyarrow.array(of, from_pandas=True) for name, of in columns.items()}
    )


class Stream:
    """What gives an Arrow stream and is no library's that hotloop knows."""

    def __init__(self, table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def make_stream(columns):
    return Stream(make_arrow(columns))


MAKERS = [
    make_pandas, make_pandas_objects, make_pandas_arrow, make_pandas_nullable, make_polars,
    make_polars_alone, make_arrow, make_stream,
]  # fmt: skip


@pytest.fixture(
    params=[
        pytest.param(one, id=one.__name__.removeprefix("make_"), marks=pytest.mark.extra)
        for one in MAKERS
    ]
)
def make(request, monkeypatch):
    if request.param is make_polars_alone:
        return lambda columns: make_polars_alone(columns, monkeypatch)
    return request.param


def table_of(make, **options):
    options = {"missing": "fill", "val": 0.25, **options}
    return hl.DataModule.from_pandas(make(COLUMNS), "buys", **options)


def train_rows(data):
    return data.split("train").rows


# ---- every kind of column


@pytest.mark.parametrize("standardize", [False, True])
def test_every_kind_of_column_by_hand(make, standardize) -> None:
    data = table_of(make, standardize=standardize)
    rows = train_rows(data)
    field = data.split("train").fields[0]
    assert field.columns == (
        "age", "visits", "member", "city=Bonn", "city=Kiel", "city=Ulm", "city missing", "when",
    )  # fmt: skip
    median = np.median(AGE[rows][~np.isnan(AGE[rows])])
    first_day = WHEN[rows].min().astype("datetime64[D]")
    want = np.stack(
        [
            np.where(np.isnan(AGE), median, AGE),
            COLUMNS["visits"],
            COLUMNS["member"],
            *(np.array([each == name for each in CITY]) for name in [*CITIES, None]),
            (WHEN - first_day) / np.timedelta64(1, "D"),
        ],
        axis=1,
    ).astype(np.float32)
    np.testing.assert_array_equal(field.array, want)
    assert data.classes == ["no", "yes"]
    np.testing.assert_array_equal(
        data.arrays("val")[1], np.array(COLUMNS["buys"])[data.split("val").rows]
    )
    if standardize:
        (mean, std) = data.transforms[0][1]["x"]
        marks = [3, 4, 5, 6]
        np.testing.assert_array_equal(mean[marks], 0.0)
        np.testing.assert_array_equal(std[marks], 1.0)
        np.testing.assert_allclose(mean[0], want[rows, 0].mean(dtype=np.float64), rtol=1e-6)


def test_all_libraries_give_the_same_encoding(make) -> None:
    ours, theirs = (table_of(maker).encoding for maker in (make, make_pandas))
    assert ours == theirs


@pytest.mark.extra
@pytest.mark.parametrize(
    ("values", "want"),
    [
        (np.array([1, 2, 3], "uint8"), [1, 2, 3]),
        (np.array([1, 2, 3], ">i4"), [1, 2, 3]),
        (np.array([1.5, np.nan, 3], "float16"), [1.5, 2.25, 3]),
        ([True, None, True], [1, 1, 1]),
        ([decimal.Decimal("1.5"), None, decimal.Decimal(2)], [1.5, 1.75, 2]),
        ([1, None, 2.5], [1, 1.75, 2.5]),
        ([datetime.date(2020, 1, 2), None, datetime.date(2020, 1, 4)], [0, 1, 2]),
        (np.array(["2020-01-02", "NaT", "2020-01-04"], "datetime64[ms]"), [0, 1, 2]),
        (np.array([12, 36, 24], "timedelta64[h]").astype("timedelta64[ms]"), [0.5, 1.5, 1]),
    ],
)
@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_kinds_of_numbers_and_dates(library, values, want) -> None:
    maker = {"pandas": make_pandas, "polars": make_polars, "pyarrow": make_arrow}[library]
    if library != "pandas" and isinstance(values, np.ndarray) and values.dtype.str[0] == ">":
        values = values.astype(values.dtype.newbyteorder("="))
    if library == "polars" and isinstance(values, list) and 2.5 in values:
        values = [1.0, None, 2.5]
    data = hl.DataModule.from_pandas(maker({"x": values, "y": [0, 1, 1]}), "y", missing="fill")
    np.testing.assert_array_equal(data.arrays("train")[0][:, 0], np.array(want, np.float32))


@pytest.mark.extra
def test_dates_with_a_time_zone_are_instants() -> None:
    pandas = take_library("pandas")
    local = pandas.date_range("2020-01-01 12:00", periods=3, freq="D", tz="America/New_York")
    data = hl.DataModule.from_pandas(make_pandas({"x": local, "y": [0, 1, 0]}), "y")
    np.testing.assert_allclose(data.arrays("train")[0][:, 0], np.arange(3) + 17 / 24, rtol=1e-6)


@pytest.mark.extra
def test_categories_keep_their_order_and_intervals_their_text() -> None:
    pandas = take_library("pandas")
    sizes = pandas.Categorical(["M", "S", "L", "S"], ["S", "M", "L", "XL"])
    cut = pandas.cut([1, 5, 9, 2], [0, 4, 10])
    grade = pandas.Categorical([3, 1, None, 3])
    frame = make_pandas({"size": sizes, "cut": cut, "grade": grade, "y": [0.0, 1, 2, 3]})
    data = hl.DataModule.from_pandas(frame, "y")
    assert data.split("train").fields[0].columns == (
        "size=S", "size=M", "size=L", "cut=(0, 4]", "cut=(4, 10]", "grade=1", "grade=3",
        "grade missing",
    )  # fmt: skip
    X = data.arrays("train")[0]
    np.testing.assert_array_equal(X[:, :3], [[0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(X[:, 5:], [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]])


@pytest.mark.extra
def test_targets_of_every_kind() -> None:
    pandas = take_library("pandas")
    x = np.arange(4.0)
    for y, kind, classes in (
        (["b", "a", "b", "a"], "class", ["a", "b"]),
        (pandas.Categorical(["b", "a", "b", "a"], ["b", "a", "c"]), "class", ["a", "b"]),
        (pandas.Categorical([1, 0, 1, 0]), "class", None),
        ([True, False, True, True], "class", [False, True]),
        ([1, 0, 2, 1], "class", None),
        (np.array([1.5, 2, 3, 4]), "float", None),
    ):
        data = hl.DataModule.from_pandas(make_pandas({"x": x, "y": y}), "y")
        assert (data.target_kind, data.classes) == (kind, classes)
    ids = hl.DataModule.from_pandas(make_pandas({"x": x, "y": list("baba")}), "y")
    np.testing.assert_array_equal(ids.split("train").fields[1].array, [1, 0, 1, 0])
    with pytest.raises(
        hl.DataError, match=r"y: column 'y': each row needs a target, got none in row 2"
    ):
        hl.DataModule.from_pandas(make_pandas({"x": x, "y": ["a", "b", None, "a"]}), "y")


# ---- missing values


def frame_of(**columns):
    return make_pandas(columns)


@pytest.mark.extra
def test_missing_numbers_are_said_or_asked_for() -> None:
    frame = frame_of(a=[1.0, np.nan, 3.0, 8.0], y=[0, 1, 0, 1])
    with pytest.warns(
        hl.DataWarning, match=r"X: missing numbers are filled .*'a' \(median 3, 1 tr"
    ):
        data = hl.DataModule.from_pandas(frame, "y")
    np.testing.assert_array_equal(data.arrays("train")[0][:, 0], [1, 3, 3, 8])
    data = hl.DataModule.from_pandas(frame, "y", missing="indicator")
    assert data.split("train").fields[0].columns == ("a", "a missing")
    np.testing.assert_array_equal(data.arrays("train")[0], [[1, 0], [3, 1], [3, 0], [8, 0]])
    with pytest.raises(hl.DataError, match=r"column 'a': missing='raise' .*got none in row 1"):
        hl.DataModule.from_pandas(frame, "y", missing="raise")
    kept = hl.DataModule.from_pandas(frame, "y", allow_nonfinite=True)
    np.testing.assert_array_equal(kept.arrays("train")[0][:, 0], [1, np.nan, 3, 8])


@pytest.mark.extra
def test_infinity_is_no_missing_value() -> None:
    data = hl.DataModule.from_pandas(
        frame_of(a=[1.0, np.inf, 3.0], y=[0, 1, 0]), "y", missing="fill"
    )
    with pytest.raises(hl.DataError, match=r"X: must be finite, got inf in row 1, column 'a'"):
        data.check("train")


@pytest.mark.extra
def test_numbers_beyond_float32_are_named() -> None:
    with pytest.raises(
        hl.DataError, match=r"values must fit float32 .*got 1e\+300 in row 1, column 'a'"
    ):
        hl.DataModule.from_pandas(frame_of(a=[1.0, 1e300], y=[0, 1]), "y")


@pytest.mark.extra
def test_integers_that_float32_rounds_are_told() -> None:
    frame = frame_of(a=[2**24 + 1, 5], y=[0, 1])
    with pytest.warns(hl.DataWarning, match=r"column 'a': float32 holds integers up to 16,777,216"):
        hl.DataModule.from_pandas(frame, "y")


@pytest.mark.extra
@pytest.mark.parametrize("values", [[np.nan] * 4, [None] * 4])
def test_a_column_without_values(values) -> None:
    with pytest.raises(
        hl.DataError, match=r"column 'a': no training row has a value; leave it out"
    ):
        hl.DataModule.from_pandas(frame_of(a=values, b=[1, 2, 3, 4], y=[0, 1, 0, 1]), "y")


@pytest.mark.parametrize("n", [1, 2, 5, 2**16 + 1, 2**16 + 2])
def test_the_median_is_the_median(n) -> None:
    """Large columns too, of which only the values around the middle are ordered."""
    rng = np.random.default_rng(n)
    half = np.repeat([1.0, 9.0], [n // 2, n - n // 2])
    for values in (
        rng.standard_normal(n),
        rng.integers(0, 5, n),
        half,
        rng.permutation(half),
        np.sort(rng.exponential(size=n)),
        np.where(np.arange(n) % 2 == 0, 3.0, rng.standard_normal(n)).astype(np.float32),
        np.full(n, np.inf),
    ):
        assert find_median(values, n) == np.median(values)
        if values.dtype.kind == "f" and n > 2:
            lacking = np.where(rng.random(n) < 0.4, np.nan, values)
            lacking[:2] = values[:2]
            n_known = int(np.count_nonzero(~np.isnan(lacking)))
            want = np.median(lacking[~np.isnan(lacking)].astype(np.float64))
            assert find_median(lacking, n_known) == want


# ---- training rows only


@pytest.mark.extra
@pytest.mark.parametrize("how", ["onehot", "ids", "target"])
@pytest.mark.parametrize("of_its_own", [False, True])
def test_nothing_is_learnt_of_held_out_rows(how, of_its_own) -> None:
    """Whatever held-out rows hold, encoding, transforms and training rows come out the same."""
    held = np.arange(N) >= 180
    rng = np.random.default_rng(1)
    y = rng.random(N)

    def make(seed):
        other = np.random.default_rng(seed)
        columns = {
            "age": np.where(held & (AGE > 0), other.uniform(1e3, 1e4, N) * (-1) ** seed, AGE),
            "city": [other.choice(CITIES) if late else each for late, each in zip(held, CITY)],
            "when": np.where(held, WHEN - np.timedelta64(seed * 1000, "D"), WHEN),
            "y": np.where(held, other.random(N) * seed, y),
        }
        frame = make_pandas(columns)
        options = {"missing": "fill", "categorical": how, "standardize": True}
        if of_its_own:
            return hl.DataModule.from_pandas(frame[~held], "y", val=frame[held], **options)
        return hl.DataModule.from_pandas(frame, "y", val=held, **options)

    one, two = make(2), make(3)
    assert one.encoding == two.encoding
    for first, second in zip(one.split("train").fields, two.split("train").fields):
        rows = one.split("train").rows
        np.testing.assert_array_equal(
            first.array if rows is None else first.array[rows],
            second.array if rows is None else second.array[rows],
        )
    for (_, first), (_, second) in zip(one.transforms, two.transforms):
        for name, values in first.items():
            np.testing.assert_array_equal(values, second[name])
    with pytest.raises(AssertionError):  # the held-out rows did differ
        np.testing.assert_array_equal(one.arrays("val")[1], two.arrays("val")[1])


@pytest.mark.extra
def test_a_training_row_is_not_encoded_by_its_own_target() -> None:
    """With as many categories as rows the means say nothing; by a row's own target, everything."""
    n = 200
    rng = np.random.default_rng(0)
    frame = frame_of(who=[f"p{i}" for i in range(n)], y=rng.random(n))
    data = hl.DataModule.from_pandas(frame, "y", categorical={"who": "target"})
    X, y = data.arrays("train")
    assert abs(np.corrcoef(X[:, 0], y.ravel())[0, 1]) < 3 / np.sqrt(n)
    again = data.encoding.apply(read_frame(frame), "X")
    assert np.corrcoef(again[:, 0], y.ravel())[0, 1] > 0.99


@pytest.mark.extra
def test_means_of_the_target_by_hand() -> None:
    city = ["a"] * 30 + ["b"] * 10 + [None] * 5
    y = np.array([1] * 20 + [0] * 10 + [1] * 3 + [0] * 7 + [1] * 5)
    frame = frame_of(city=city, y=y)
    data = hl.DataModule.from_pandas(frame, "y", categorical="target")
    (feature,) = data.encoding.features
    overall = y.mean()
    want = [[(s + 10 * overall) / (n + 10)] for s, n in ((5, 5), (20, 30), (3, 10))]
    np.testing.assert_allclose(feature.means, want, rtol=1e-12)
    three = hl.DataModule.from_pandas(frame.assign(y=np.arange(45) % 3), "y", categorical="target")
    X = three.arrays("train")[0]
    assert X.shape == (45, 3)
    np.testing.assert_allclose(X.sum(axis=1), 1.0, rtol=1e-6)


# ---- ids


class ByIds(nn.Module):
    def __init__(self, n_numbers, n_ids) -> None:
        super().__init__()
        self.embed = nn.Embedding(n_ids, 3)
        self.head = nn.Linear(n_numbers + 3, 2)

    def forward(self, x):
        return self.head(hl.cat([x["numbers"], self.embed(x["city"])], 1))


def test_ids_are_numbers_of_categories(make) -> None:
    data = table_of(make, categorical={"city": "ids"})
    batch = next(data.train_batches())["x"]
    assert batch["numbers"].dtype == np.float32
    assert batch["city"].dtype == np.int64
    X = data.arrays("train")[0]
    want = [0 if CITY[i] is None else 1 + CITIES.index(CITY[i]) for i in train_rows(data)]
    np.testing.assert_array_equal(X["city"], want)
    assert data.split("train").fields[0].columns == ("age", "visits", "member", "when")


@pytest.mark.extra
def test_numbers_may_be_categories_by_name() -> None:
    frame = frame_of(shop=[7, 3, 3, 9], a=[1.0, 2, 3, 4], y=[0, 1, 0, 1])
    data = hl.DataModule.from_pandas(frame, "y", categorical={"shop": "ids"})
    np.testing.assert_array_equal(data.arrays("train")[0]["shop"], [2, 1, 1, 3])
    only = hl.DataModule.from_pandas(frame[["shop", "y"]], "y", categorical={"shop": "ids"})
    assert list(only.arrays("train")[0]) == ["shop"]


# ---- new rows


def model_of(data):
    how = data.encoding
    if how.ids:
        return ByIds(len(how.made), 1 + len(CITIES))
    return nn.Linear(len(how.made), 2)


@pytest.mark.parametrize("how", ["onehot", "ids", "target"])
def test_a_model_encodes_new_rows_before_and_after_saving(make, how, tmp_path) -> None:
    data = table_of(make, categorical=how, standardize=True)
    result = hl.train(model_of(data), data, quiet(max_epochs=1))
    result.save(tmp_path / "m.safetensors")
    loaded = hl.load(tmp_path / "m.safetensors")
    again = model_of(data)
    again.load_state_dict(result.model.state_dict())
    from_file = model_of(data)
    from_file.load_state_dict(loaded.state_dict())
    pickled = pickle.loads(pickle.dumps(result.model))
    frame = make(COLUMNS)
    want = hl.predict(result, frame)
    assert want.shape == (N, 2)
    held = data.split("val").rows
    np.testing.assert_array_equal(hl.predict(result, data), want[held])
    labels = np.array(COLUMNS["buys"])
    turned = make(dict(reversed({**COLUMNS, "more": np.arange(N)}.items())))
    for model in (result, loaded, again, from_file, pickled):
        np.testing.assert_array_equal(hl.predict(model, frame), want)
        np.testing.assert_array_equal(hl.predict(model, turned), want)
        mine = hl.evaluate(model, (frame, labels), metrics=["accuracy"])
        right = hl.predict(model, frame, labels=True) == labels
        assert mine["accuracy"] == pytest.approx(right.mean())
    assert fitted_encoding(loaded) == data.encoding


def fitted_encoding(model):
    return model.__dict__["_fitted"].encoding


@pytest.mark.extra
def test_one_row_and_a_dict_of_columns(tmp_path) -> None:
    data = table_of(make_pandas, categorical="ids")
    result = hl.train(model_of(data), data, quiet(max_epochs=1))
    frame = make_pandas(COLUMNS)
    want = hl.predict(result, frame)
    np.testing.assert_array_equal(hl.predict(result, frame.iloc[3]), want[3])
    np.testing.assert_array_equal(hl.predict(result, frame.iloc[3].drop("buys").to_dict()), want[3])
    columns = {name: COLUMNS[name] for name in reversed(data.encoding.names)}
    np.testing.assert_array_equal(hl.predict(result, columns), want)
    np.testing.assert_array_equal(result.model(frame.head(5)), want[:5])
    encoded = data.encoding.apply(read_frame(frame), "X")
    np.testing.assert_array_equal(hl.predict(result, encoded), want)


@pytest.mark.extra
def test_a_model_of_ids_alone_evaluates_after_loading(tmp_path) -> None:
    """Whose encoded data has the names of its columns."""

    class Ids(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(4, 2)

        def forward(self, x):
            return self.embed(x["shop"])

    shop = np.arange(60) % 3 + 5
    frame = frame_of(shop=shop, y=(shop == 6).astype(int))
    data = hl.DataModule.from_pandas(frame, "y", categorical={"shop": "ids"}, val=0.2)
    result = hl.train(Ids(), data, quiet(max_epochs=1))
    result.save(tmp_path / "m.safetensors")
    loaded = hl.load(tmp_path / "m.safetensors")
    for split in ("train", "val"):
        want = hl.evaluate(result, data, split=split)["loss"]
        assert hl.evaluate(loaded, data, split=split)["loss"] == pytest.approx(want, rel=1e-6)
    np.testing.assert_array_equal(hl.predict(loaded, data), hl.predict(result, data))


def test_unseen_categories_count_as_missing_and_are_told(make) -> None:
    data = table_of(make)
    result = hl.train(model_of(data), data, quiet(max_epochs=1))
    new = {name: values[:20] for name, values in COLUMNS.items()}
    new["city"] = [*CITY[:18], "Rome", "Oslo"]
    lacking = {**new, "city": [*CITY[:18], None, None]}
    found = (
        r"predict: X: column 'city': training rows had no '(Rome|Oslo)' and '(Rome|Oslo)', got 2 "
        r"such rows, the first row 1[89]; counted as missing"
    )
    with pytest.warns(hl.DataWarning, match=found):
        got = hl.predict(result, make(new))
    np.testing.assert_array_equal(got, hl.predict(result, make(lacking)))
    strict = table_of(make, unseen="raise")
    result = hl.train(model_of(strict), strict, quiet(max_epochs=1))
    with pytest.raises(hl.DataError, match=r"column 'city': training rows had no '(Rome|Oslo)'"):
        hl.predict(result, make(new))


@pytest.mark.extra
def test_what_new_rows_may_lack() -> None:
    frame = frame_of(a=[1.0, 2, 3, 4], b=["u", "v", "u", "v"], y=[0, 1, 0, 1])
    new = frame_of(a=[np.nan, 2], b=["u", None])

    def predict(**options):
        data = hl.DataModule.from_pandas(frame, "y", **options)
        return hl.predict(hl.train(nn.Linear(3, 2), data, quiet(max_epochs=1)), new)

    with pytest.raises(hl.DataError, match=r"predict: X: column 'a': .*got none in row 0; fill it"):
        predict()
    assert np.isfinite(predict(missing="fill")).all()
    with pytest.raises(hl.DataError, match=r"column 'a': .*got none in row 0"):
        predict(missing="raise")


@pytest.mark.extra
def test_columns_of_another_kind_and_missing_ones_are_named() -> None:
    data = table_of(make_pandas)
    result = hl.train(model_of(data), data, quiet(max_epochs=1))
    frame = make_pandas(COLUMNS)
    with pytest.raises(
        hl.DataError,
        match=r"predict: X must have all columns of training, got none for 'age', 'city'",
    ):
        hl.predict(result, frame[["visits", "member", "when"]])
    wrong = frame.assign(age="old", when=1.0)
    with pytest.raises(
        hl.DataError,
        match=r"got texts \('old'\) in 'age', which had numbers, numbers in 'when', which had",
    ):
        hl.predict(result, wrong)


@pytest.mark.extra
def test_data_encoded_by_rows_of_its_own_is_refused() -> None:
    data = table_of(make_pandas)
    result = hl.train(model_of(data), data, quiet(max_epochs=1))
    other = hl.DataModule.from_pandas(
        make_pandas(COLUMNS).iloc[40:], "buys", missing="fill", val=0.5
    )
    with pytest.raises(
        hl.ConfigError, match=r"predict: the model's table was encoded by its training"
    ):
        hl.predict(result, other)
    with pytest.raises(hl.ConfigError, match=r"write evaluate\(model, \(frame, y\)\)"):
        hl.evaluate(result, other, split="val")


@pytest.mark.extra
def test_splits_with_data_of_their_own() -> None:
    frame = make_pandas(COLUMNS)
    new = frame[180:].assign(city="Rome")
    with pytest.warns(hl.DataWarning, match=r"^val X: column 'city': training rows had no 'Rome'"):
        hl.DataModule.from_pandas(frame[:180], "buys", val=new, missing="fill")
    options = {"missing": "fill", "groups": None}
    whole = hl.DataModule.from_pandas(frame[:180], "buys", val=frame[180:], **options)
    parts = hl.DataModule.from_pandas(
        frame[:180], "buys", val=(frame[180:].drop(columns="buys"), frame.buys[180:]), **options
    )
    for data in (whole, parts):
        X, y = data.arrays("val")
        assert X.shape == (60, 8)
        np.testing.assert_array_equal(y, COLUMNS["buys"][180:])
    with pytest.raises(
        hl.DataError, match=r"val X: a data frame is needed as in training, got ndarray"
    ):
        hl.DataModule.from_pandas(frame, "buys", val=(np.ones((3, 8)), ["no"] * 3), **options)
    with pytest.raises(
        hl.ConfigError, match=r"target: must name columns of the frame, got none for 'buys'"
    ):
        hl.DataModule.from_pandas(frame, "buys", val=frame.drop(columns="buys"), **options)


@pytest.mark.extra
def test_held_out_rows_may_have_categories_of_their_own() -> None:
    frame = frame_of(a=["u", "v", "u", "v", "w"], y=[0, 1, 0, 1, 0])
    with pytest.warns(
        hl.DataWarning, match=r"X: column 'a': training rows had no 'w', got 1 such row"
    ):
        data = hl.DataModule.from_pandas(frame, "y", val=[4])
    np.testing.assert_array_equal(data.arrays("val")[0], [[0, 0]])


# ---- wrong input


@pytest.mark.extra
@pytest.mark.parametrize(
    ("columns", "options", "error", "words"),
    [
        ({"a": ["1", "2", "x", "4"]}, {}, hl.DataError,
         r"column 'a': 3 of 4 values are numbers, got the text 'x' in row 2"),
        ({"a": [1, 2.5, "x", 4]}, {}, hl.DataError,
         r"column 'a': must hold values of one kind, got str 'x' in row 2 beside numbers"),
        ({"a": ["x", 2, "y", "z"]}, {}, hl.DataError,
         r"column 'a': must hold values of one kind, got int 2 in row 1 beside texts"),
        ({"a": [[1], [2], [3], [4]]}, {}, hl.DataError,
         r"column 'a': must hold numbers, texts, categories or dates, got list \[1\] in row 0"),
        ({"a": [1j, 2, 3, 4]}, {}, hl.DataError, r"column 'a': must hold numbers, texts"),
        ({"a": [1, 2, 3, 4]}, {"categorical": {"b": "ids"}}, hl.ConfigError,
         r"categorical: must name columns of X, got none for 'b'"),
        ({"a": list("uvuv")}, {"categorical": "one-hot"}, hl.ConfigError,
         r"categorical: must be one of auto, onehot, ids, target, or a dict"),
        ({"a": list("uvuv")}, {"categorical": ["a"]}, hl.ConfigError, r"write {name: how}"),
        ({"a": list("uvuv")}, {"categorical": {"a": "hot"}}, hl.ConfigError,
         r"categorical\['a'\]: must be one of"),
        ({"a": list("uvuv")}, {"missing": "drop"}, hl.ConfigError, r"missing: must be one of"),
        ({"a": list("uvuv")}, {"unseen": "skip"}, hl.ConfigError, r"unseen: must be 'warn' or"),
        ({"a": list("uvuv")}, {"target": None, "features": ["a"], "categorical": "target"},
         hl.ConfigError, r"categorical: 'target' of column 'a' needs one target .* got none"),
        ({"numbers": [1, 2, 3, 4], "a": list("uvuv")}, {"categorical": "ids"}, hl.ConfigError,
         r"with ids 'numbers' is all columns of numbers"),
        ({"a": [1, 2, 3, 4]}, {"features": ["a", "y"]}, hl.ConfigError,
         r"features: a model must not be given its target, got 'y'"),
        ({"a": [1, 2, 3, 4]}, {"features": ["a", "a"]}, hl.ConfigError,
         r"features: names must differ, got 'a' twice"),
        ({"a": [1, 2, 3, 4], "t": [1, None, 2, 3]}, {"target": "t"}, hl.DataError,
         r"y: column 't': each row needs a target, got none in row 1; drop these rows"),
        ({}, {}, hl.ConfigError, r"features: a column at least is needed, got none beside y"),
        ({"a": [1, 2, 3, 4], "g": ["u", None, "v", "v"]}, {"groups": "g"}, hl.DataError,
         r"groups: column 'g': each row needs a group, got none in row 1"),
        ({"a": [1, 2, 3, 4], "w": list("uvuv")}, {"sample_weight": "w"}, hl.DataError,
         r"sample_weight: must hold numbers, got categories in column 'w'"),
    ],
)  # fmt: skip
def test_wrong_tables(columns, options, error, words) -> None:
    frame = make_pandas({**columns, "y": [0, 1, 0, 1]})
    with pytest.raises(error, match=words):
        hl.DataModule.from_pandas(frame, **{"target": "y", **options})


@pytest.mark.extra
def test_frames_of_nothing() -> None:
    frame = frame_of(a=[1, 2], y=[0, 1])
    with pytest.raises(hl.DataError, match=r"frame: has no rows"):
        hl.DataModule.from_pandas(frame[:0], "y")
    with pytest.raises(hl.DataError, match=r"frame: has no columns"):
        hl.DataModule.from_pandas(frame[[]])


@pytest.mark.extra
def test_columns_that_no_library_makes_numbers_of() -> None:
    polars, pyarrow = take_library("polars"), take_library("pyarrow")
    y = [0, 1]
    for frame, words in (
        (polars.DataFrame({"a": [[1, 2], [3, 4]], "y": y}), r"column 'a': must hold numbers"),
        (polars.DataFrame({"a": [datetime.time(1)] * 2, "y": y}), r"column 'a': .*got time64"),
        (polars.DataFrame({"a": polars.Series([1, 2], dtype=polars.Int128), "y": y}), r"Arrow"),
        (pyarrow.table({"a": [{"b": 1}] * 2, "y": y}), r"column 'a': .*got struct"),
        (pyarrow.table({"a": [b"u"] * 2, "y": y}), r"column 'a': .*got binary"),
        (make_pandas({"a": [b"u"] * 2, "y": y}), r"column 'a': .*got bytes b'u' in row 0"),
        (make_pandas({"a": np.arange(2) * 1j, "y": y}), r"column 'a': .*got complex128"),
    ):
        with pytest.raises(hl.DataError, match=words):
            hl.DataModule.from_pandas(frame, "y")


@pytest.mark.extra
def test_columns_of_polars_alone_that_are_no_numbers(monkeypatch) -> None:
    polars = take_library("polars")
    for column in (
        [[1, 2], [3, 4]],
        [datetime.time(1)] * 2,
        polars.Series([1, 2], dtype=polars.Int128),
    ):
        frame = make_polars_alone({"a": column, "y": [0, 1]}, monkeypatch)
        with pytest.raises(hl.DataError, match=r"column 'a': must hold numbers"):
            hl.DataModule.from_pandas(frame, "y")


@pytest.mark.extra
def test_names_that_are_there_twice() -> None:
    frame = take_library("pandas").DataFrame([[1, 2, 0], [3, 4, 1]], columns=["a", "a", "y"])
    with pytest.raises(hl.DataError, match=r"names of columns must differ, got 'a' twice"):
        hl.DataModule.from_pandas(frame, "y")


@pytest.mark.extra
def test_many_categories_are_asked_about() -> None:
    names = [f"n{i}" for i in range(65)] * 2
    frame = frame_of(a=names, y=np.arange(130.0))
    with pytest.raises(
        hl.DataError, match=r"column 'a': .*up to 64 categories, got 65 \('n0', ...\)"
    ):
        hl.DataModule.from_pandas(frame, "y")
    for how, width in (("onehot", 65), ("target", 1)):
        data = hl.DataModule.from_pandas(frame, "y", categorical={"a": how})
        assert data.arrays("train")[0].shape == (130, width)
    just = hl.DataModule.from_pandas(frame[frame.a != "n64"], "y")
    assert just.arrays("train")[0].shape == (128, 64)


@pytest.mark.extra
def test_a_lazy_frame_is_to_be_collected() -> None:
    polars = take_library("polars")
    with pytest.raises(hl.DataError, match=r"got LazyFrame .*write frame.collect\(\)"):
        hl.DataModule.from_pandas(polars.LazyFrame({"a": [1]}), "a")


@pytest.mark.extra
def test_a_table_describes_itself() -> None:
    text = table_of(make_pandas).describe()
    for line in (
        "city        one-hot of 3 categories: Bonn, Kiel, Ulm, ",
        "days since 2020-02-2",
        " where missing (",
    ):
        assert line in text


# ---- properties


KINDS = {
    "number": st.one_of(st.none(), st.floats(-1e6, 1e6, width=32), st.integers(-1000, 1000)),
    "text": st.one_of(st.none(), st.sampled_from(["u", "v", "w", "", "é", "u v"])),
    "flag": st.one_of(st.none(), st.booleans()),
}


@pytest.mark.extra
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_table_is_the_same_in_every_library_and_from_a_file(draw) -> None:
    """Any kinds, holes and order of rows: three libraries agree, and so does what a file says."""
    n = draw.draw(st.integers(2, 12))
    kinds = draw.draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4))
    columns = {
        f"c{i}": draw.draw(st.lists(KINDS[kind], min_size=n, max_size=n))
        for i, kind in enumerate(kinds)
    }
    for values, kind in zip(columns.values(), kinds):
        if all(value is None for value in values):
            values[0] = {"number": 1.5, "text": "u", "flag": True}[kind]
        if kind == "number":
            values[:] = [None if value is None else float(value) for value in values]
    columns["y"] = [float(i) for i in range(n)]
    how = draw.draw(st.sampled_from(["onehot", "ids", "target"]))
    made = []
    for maker in (make_pandas, make_polars, make_arrow):
        data = hl.DataModule.from_pandas(maker(columns), "y", categorical=how, missing="indicator")
        again = Encoding.from_data(json.loads(json.dumps(data.encoding.to_data())))
        assert again == data.encoding
        made.append((data.arrays("train")[0], data.encoding))
        first = again.apply(read_frame(maker(columns)), "X")
        for one, other in zip(parts_of(first), parts_of(made[-1][0])):
            assert one.shape == other.shape
            if how != "target":
                np.testing.assert_array_equal(one, other)
    for X, encoding in made[1:]:
        assert encoding == made[0][1]
        for one, other in zip(parts_of(X), parts_of(made[0][0])):
            np.testing.assert_array_equal(one, other)


def parts_of(X):
    return list(X.values()) if isinstance(X, dict) else [X]
