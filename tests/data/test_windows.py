"""Windows of a series: values, splits that no window crosses, wrong input, nothing copied."""

import datetime
import tracemalloc
from pathlib import Path

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.data.strides import series_of, windows_of
from needs import take_library

N, L, H = 240, 7, 3
TIME = np.arange(N)


def make(n: int = N, **options: object) -> hl.DataModule:
    """Windows of rows that say their own number, and targets that do."""
    series = np.stack([np.arange(n), 1000.0 + np.arange(n)], 1)
    options = {"target": np.arange(n, dtype=np.float32), "normalize": None, **options}
    return hl.DataModule.from_windows(series, L, H, **options)


def rows_of(data: hl.DataModule, split: str) -> np.ndarray:
    """Row numbers that the windows of a split hold, (windows, length)."""
    return np.concatenate([b["x"][..., 0] for b in data.batches_in_order(split)]).astype(int)


# ---- views


@pytest.mark.parametrize("shape", [(30,), (30, 4), (30, 2, 3)], ids=str)
@pytest.mark.parametrize("length", [1, 2, 29, 30])
def test_views_lead_back_to_their_series(shape: tuple[int, ...], length: int) -> None:
    series = np.random.default_rng(0).normal(size=shape)
    view = windows_of(series, length)
    for i in range(len(view)):
        np.testing.assert_array_equal(view[i], series[i : i + length])
    found, window = series_of(view)
    assert window == (length if 1 < length < 30 else 0)
    np.testing.assert_array_equal(found, series if window else view)
    assert np.shares_memory(found, series)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((6, 4))[:, ::2],
        np.zeros((4, 6)).T,
        np.broadcast_to(np.zeros(3), (5, 3)),
        np.broadcast_to(np.zeros(3), (5, 4, 3)),
        windows_of(np.zeros((20, 3)), 4)[::2],
        windows_of(np.zeros((20, 3)), 4)[:, :, 1:],
        windows_of(np.zeros((20, 3)), 4)[::-1],
        windows_of(np.zeros((20, 3)), 4)[:0],
    ],
    ids=range(8),
)
def test_other_strides_are_no_windows(array: np.ndarray) -> None:
    assert series_of(array)[1] == 0


# ---- values


def test_batches_are_windows_and_the_target_ahead() -> None:
    data = make(val=0.25, test=0.25, batch_size=16)
    for split in ("train", "val", "test"):
        for batch in data.batches_in_order(split):
            first = batch["x"][:, 0, 0]
            np.testing.assert_array_equal(batch["x"][..., 0], first[:, None] + np.arange(L))
            np.testing.assert_array_equal(batch["x"][..., 1], batch["x"][..., 0] + 1000)
            np.testing.assert_array_equal(batch["y"], first + L - 1 + H)


def test_every_fitting_window_is_there_once() -> None:
    data = make(shuffle=True)
    drawn = np.concatenate([b["x"][:, 0, 0] for b in data.train_batches()])
    assert (np.diff(drawn) != 1).any()
    np.testing.assert_array_equal(np.sort(drawn), np.arange(N - L - H + 1))


def test_stride() -> None:
    np.testing.assert_array_equal(
        rows_of(make(stride=5), "train")[:, 0], range(0, N - L - H + 1, 5)
    )


def test_integers_without_normalizing_are_ids() -> None:
    data = hl.DataModule.from_windows(np.arange(40) % 5, 8, normalize=None, batch_size=4)
    assert data.example_batch() == {"x": ("int64", (4, 8))}


def test_target_by_function_and_without_one() -> None:
    series = np.random.default_rng(0).normal(size=(50, 2))
    data = hl.DataModule.from_windows(series, 5, 1, target=lambda s: s[:, 1] > 0, batch_size=45)
    (batch,) = data.batches_in_order("train")
    np.testing.assert_array_equal(batch["y"], series[5:, 1] > 0)
    assert data.classes == [False, True]
    assert hl.DataModule.from_windows(series, 5).target_kind == "none"


def test_frame() -> None:
    pd = take_library("pandas")
    day = datetime.datetime(2020, 1, 1)
    frame = pd.DataFrame(
        {
            "when": [day + datetime.timedelta(hours=i) for i in range(60)],
            "site": np.repeat(["a", "b"], 30),
            "load": np.arange(60.0),
            "heat": -np.arange(60.0),
            "peak": np.repeat(["low", "high", "low"], 20),
        }
    )
    roles = {"target": "peak", "time": "when", "groups": "site", "normalize": None}
    data = hl.DataModule.from_windows(frame, 4, 2, batch_size=100, **roles)
    (batch,) = data.batches_in_order("train")
    assert data.classes == ["high", "low"]
    assert batch["x"].shape == (2 * (30 - 5), 4, 2)
    first = np.r_[np.arange(25), np.arange(30, 55)]
    np.testing.assert_array_equal(batch["x"][:, 0, 0], first)
    np.testing.assert_array_equal(batch["y"], np.where((first + 5) // 20 == 1, 0, 1))
    one = hl.DataModule.from_windows(frame, 4, features=["heat"], target="load")
    assert one.example_batch()["x"] == ("float32", (57, 4, 1))


# ---- splits


@pytest.mark.parametrize("gap", [0, 11])
def test_no_window_crosses_a_boundary(gap: int) -> None:
    data = make(val=0.2, test=40, gap=gap)
    end = -1
    for split, size in (("train", N - 88 - 2 * gap), ("val", 48), ("test", 40)):
        rows = rows_of(data, split)
        first, last = rows.min(), rows.max() + H  # the row of the last target
        assert first == end + 1 + (gap if split != "train" else 0)
        assert last == first + size - 1
        assert len(rows) == size - L - H + 1
        end = last
    assert end == N - 1


def test_split_in_the_middle() -> None:
    data = make(val=range(100, 140))
    assert (rows_of(data, "val").min(), rows_of(data, "val").max() + H) == (100, 139)
    train = rows_of(data, "train")
    assert not np.isin(np.arange(100 - H, 140), train).any()
    assert len(train) == (100 - L - H + 1) * 2


def test_groups_are_kept_apart() -> None:
    groups = np.repeat(["b", "a", "c"], [100, 60, 80])
    data = make(groups=groups, val=0.25, stride=2)
    number = np.repeat([0, 1, 2], [100, 60, 80])
    for split in ("train", "val"):
        rows = rows_of(data, split)
        assert (number[rows[:, 0]] == number[rows[:, -1] + H]).all()
        assert set(number[rows[:, 0]]) == {0, 1, 2}
    begins = np.array([0, 100, 160])[number[rows_of(data, "train")[:, 0]]]
    assert ((rows_of(data, "train")[:, 0] - begins) % 2 == 0).all()
    assert rows_of(data, "val")[:, 0].min() >= 75


def test_groups_are_split_at_the_same_times() -> None:
    """The second begins later, and is validated on from the same hour on."""
    time = np.r_[np.arange(100), np.arange(40, 140)]
    data = make(200, groups=np.repeat([0, 1], 100), time=time, val=0.5)
    assert (time[rows_of(data, "train") + H] < 70).all()
    val = rows_of(data, "val")
    assert (time[val] >= 70).all()
    assert set(val[:, 0] // 100) == {0, 1}


# ---- statistics


def test_normalized_by_the_training_rows_alone() -> None:
    rng = np.random.default_rng(1)
    series = rng.normal(5.0, 3.0, (400, 3))
    series[200:] += 100.0
    data = hl.DataModule.from_windows(series, 20, val=0.25, test=0.25, stride=1)
    ((_, fitted),) = data.transforms
    np.testing.assert_allclose(fitted["x"][0], series[:200].mean(0), rtol=1e-6)
    np.testing.assert_allclose(fitted["x"][1], series[:200].std(0), rtol=1e-6)
    gappy = hl.DataModule.from_windows(series, 2, stride=4, val=0.5)
    used = (np.arange(200) % 4) < 2
    np.testing.assert_allclose(
        gappy.transforms[0][1]["x"][0], series[:200][used].mean(0), rtol=1e-6
    )


class Mean(nn.Module):
    """Its output is the mean over time of what it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(np.ones(1, np.float32))

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        return x.mean((1, 2))[:, None] * self.scale


@pytest.mark.parametrize("precision", ["fp32", "64-true"])
def test_windows_train_as_their_copy_does(precision: str) -> None:
    """Bit for bit: trained, evaluated, predicted."""
    rng = np.random.default_rng(2)
    series = rng.normal(2.0, 3.0, (300, 4)).astype(np.float32)
    y = series.mean(1)[5:]
    views = windows_of(series, 6)
    found = []
    for X in (views, np.array(views)):
        data = hl.DataModule.from_arrays(X, y, val=0.3, batch_size=32, split="time")
        config = hl.TrainingConfig(max_epochs=2, lr=0.05, precision=precision)
        result = hl.train(Mean(), data, config)
        scores = hl.evaluate(result, data, split="val")
        found.append((result.history["loss"], scores, hl.predict(result, X).tolist()))
    assert found[0] == found[1]


def test_model_scales_as_was_fitted(tmp_path: Path) -> None:
    series = np.random.default_rng(2).normal(2.0, 3.0, (300, 4))
    data = hl.DataModule.from_windows(series, 6, target=series.mean(1), val=0.3)
    result = hl.train(Mean(), data, max_epochs=1)
    mean, std = data.transforms[0][1]["x"]
    wanted = ((windows_of(series, 6) - mean) / std).mean((1, 2)) * result.model.scale.numpy()
    np.testing.assert_allclose(hl.predict(result, windows_of(series, 6))[:, 0], wanted, atol=1e-5)
    result.save(tmp_path / "mean.safetensors")
    loaded = hl.load(tmp_path / "mean.safetensors")
    np.testing.assert_allclose(hl.predict(loaded, windows_of(series, 6))[:, 0], wanted, atol=1e-5)


def test_nothing_is_copied() -> None:
    series = np.zeros((200_000, 8), np.float32)
    tracemalloc.start()
    data = hl.DataModule.from_windows(series, 100, normalize=None, val=0.2)
    fields = data.split("train").fields
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.shares_memory(fields[0].array, series)
    assert peak < 3 * series.nbytes  # a copy of the windows is a hundred times as large
    assert "6,400,000 bytes" in data.describe()


def test_views_that_arrays_are_given_as() -> None:
    series = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    view = np.moveaxis(np.lib.stride_tricks.sliding_window_view(series, 8, axis=0), -1, 1)
    field = hl.DataModule.from_arrays(view).split("train").fields[0]
    assert np.shares_memory(field.array, series)
    other = hl.DataModule.from_arrays(view.astype(">f4")).split("train").fields[0]
    np.testing.assert_array_equal(other.array, view)


# ---- wrong input

WRONG = {
    "length 0": ({"length": 0}, hl.ConfigError, "length"),
    "length of text": ({"length": "7"}, hl.ConfigError, "length"),
    "horizon": ({"horizon": -1}, hl.ConfigError, "horizon"),
    "stride": ({"stride": 0}, hl.ConfigError, "stride"),
    "gap": ({"gap": -1, "val": 0.2}, hl.ConfigError, "gap"),
    "too long": ({"length": 239}, hl.DataError, "need 242 rows, got 240"),
    "normalize": ({"normalize": "minmax"}, hl.ConfigError, "normalize: must be 'standard', 'y'"),
    "unknown": ({"windows": 3}, hl.ConfigError, "no option 'windows'"),
    "no window in val": ({"val": 8}, hl.DataError, "val: its 8 rows hold no window of length 7"),
    "no window in train": ({"val": 232}, hl.DataError, "train: its 8 rows hold no window"),
    "all held out": ({"val": 0.5, "test": 0.5}, hl.DataError, "leave no row to train on"),
    "target short": ({"target": np.zeros(5)}, hl.DataError, "target: must have one entry per row"),
    "target a name": ({"target": "load"}, hl.ConfigError, "target: names a column of a data frame"),
    "features": ({"features": ["a"]}, hl.ConfigError, "features: name columns of a data frame"),
    "time short": ({"time": TIME[1:]}, hl.DataError, "time: must have one entry per row"),
    "time back": ({"time": TIME[::-1]}, hl.DataError, "time: must ascend.*238 in row 1 after 239"),
    "time twice": ({"time": TIME // 2}, hl.DataError, "time: must ascend.*0 in row 1 after 0"),
    "groups mixed": ({"groups": TIME % 2}, hl.DataError, "groups: rows of a group must follow.*2"),
    "groups short": ({"groups": TIME[1:]}, hl.DataError, "groups: must have one entry per row"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input(name: str) -> None:
    given, kind, message = WRONG[name]
    given = {"length": L, "horizon": H, **given}
    with pytest.raises(kind, match=message):
        hl.DataModule.from_windows(np.zeros((N, 2)), **given)


def test_weights_are_those_of_the_targets_rows() -> None:
    pandas = take_library("pandas")
    counts = np.arange(50.0)
    frame = pandas.DataFrame({"a": np.zeros(50), "b": np.ones(50), "count": counts, "up": 1.0})
    given = hl.DataModule.from_windows(np.zeros((50, 2)), 5, 3, sample_weight=counts, shuffle=False)
    named = hl.DataModule.from_windows(
        frame, 5, 3, target="up", sample_weight="count", shuffle=False
    )
    for data in (given, named):
        batch = next(data.batches_in_order("train"))
        np.testing.assert_array_equal(batch["weight"], counts[7:])
        assert batch["x"].shape == (43, 5, 2)
    for weight, message in (
        (counts[:9], "sample_weight: must have one entry per row of the series, which has 50"),
        (np.where(counts == 30, -1, counts), "sample_weight: .* at least 0, got -1.0 in row 30"),
        ("count", "sample_weight: names a column of a data frame, and the series is none"),
    ):
        with pytest.raises((hl.ConfigError, hl.DataError), match=message):
            hl.DataModule.from_windows(np.zeros((50, 2)), 5, 3, sample_weight=weight).check("train")


def test_wrong_series() -> None:
    with pytest.raises(hl.DataError, match="series: an array is needed"):
        hl.DataModule.from_windows(None, 3)
    with pytest.raises(hl.DataError, match="series: must hold numbers"):
        hl.DataModule.from_windows(np.array(["a"] * 9), 3)
    series = np.zeros((50, 3))
    series[20, 2] = np.nan
    data = hl.DataModule.from_windows(series, 5, val=0.5)
    with pytest.raises(hl.DataError, match=r"must be finite, got nan in row 20, column 2;"):
        data.check("train")
    data.check("val")
    for wrong, message in (
        (np.nan, "y: must be finite, got nan in row 30;"),
        (-5, "y: class ids count from 0, got -5 in row 30;"),
        (None, "y: must be all numbers or all strings, got NoneType None in row 30"),
    ):
        target = (np.arange(50) % 2).astype(object)
        target[:3], target[30] = None, wrong  # the first three are of no window
        target = (
            target
            if wrong is None
            else np.where(np.arange(50) < 3, 7, target).astype(
                np.float32 if wrong is np.nan else np.int64
            )
        )
        with pytest.raises(hl.DataError, match=message):
            hl.DataModule.from_windows(np.zeros((50, 3)), 3, 1, target=target).check("train")
    before = np.where(np.arange(50) < 3, -1, np.arange(50) % 2)
    assert hl.DataModule.from_windows(np.zeros((50, 3)), 3, 1, target=before).n_classes == 2
