"""DataModule.map: what fn gets and gives, splits and classes, caches, what is refused."""

import functools
import importlib
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import DataModule, nn
from hotloop.data import cache_folder
from hotloop.data.datasets import mapping
from hotloop.data.datasets.digests import feed_function
from hotloop.errors import ConfigError, DataError, DataWarning
from needs import take_library
from train.recipes import quiet

N = 100
CACHES = (None, "ram", "disk")


def data_of(**options: Any) -> DataModule:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 6)).astype(np.float32)
    y = (np.arange(N) % 4).astype(np.int64)
    return DataModule.from_arrays(X, y, **({"val": 0.2, "batch_size": 16} | options))


def fold_up(x: Any, y: Any) -> Any:
    return np.square(x).reshape(2, 3) + y, y


def folded(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What fold_up makes of many."""
    return np.square(X).reshape(-1, 2, 3) + y[:, None, None].astype(np.float32)


def mapped(data: DataModule, fn: Any, cache: str | None, tmp_path: Path, **more: Any) -> DataModule:
    where = {"cache_dir": tmp_path / "maps"} if cache == "disk" else {}
    return data.map(fn, cache=cache, **where, **more)


def weights(data: DataModule, width: int) -> list[np.ndarray]:
    hl.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(width, 4))
    result = hl.train(model, data, quiet(max_epochs=2, precision="fp32"))
    return [p.numpy() for p in result.model.parameters()]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# ---- what fn gets and gives


@pytest.mark.parametrize("cache", CACHES)
def test_values(cache: str | None, tmp_path: Path) -> None:
    source = data_of()
    data = mapped(source, fold_up, cache, tmp_path)
    for split in ("train", "val"):
        np.testing.assert_array_equal(data.rows(split), source.rows(split))
        X, y = source.arrays(split)
        got, goal = data.arrays(split)
        np.testing.assert_array_equal(got, folded(X, y))
        np.testing.assert_array_equal(goal, y)
    assert data.example_batch() == {
        "x": ("float32", (16, 2, 3)), "y": ("int64", (16,)),
    }  # fmt: skip
    for a, b in zip(data.train_batches(2), source.train_batches(2), strict=True):
        np.testing.assert_array_equal(a["x"], folded(b["x"], b["y"]))
    assert ("map", "fold_up, for each batch") in data.facts or cache is not None
    assert "fold_up" in data.describe()


@pytest.mark.parametrize("cache", CACHES)
def test_threads_make_the_same_bits(cache: str | None, tmp_path: Path) -> None:
    found = [
        weights(mapped(data_of(), fold_up, cache, tmp_path / str(n), num_workers=n), 6)
        for n in (0, 1, 2, 5)
    ]
    assert all(same(found[0], other) for other in found[1:])
    arrays = DataModule.from_arrays(*_whole(), val=0.2, batch_size=16)
    assert same(found[0], weights(arrays, 6))


def _whole() -> tuple[np.ndarray, np.ndarray]:
    """What fold_up makes of all rows."""
    data = data_of(val=None)
    X, y = data.arrays("train")
    return folded(X, y), y


def test_fn_gets_what_forward_receives() -> None:
    seen: dict[str, Any] = {}

    def look(x: Any, y: Any = None) -> Any:
        seen["x"], seen["y"] = x, y
        return (x, y) if y is not None else x

    def given(X: Any, y: Any = None) -> tuple[Any, Any]:
        data = DataModule.from_arrays(X, y)
        data.map(look if y is not None else lambda x: look(x))
        return seen["x"], seen["y"]

    for dtype, want in (
        ("float64", "float32"), ("float16", "float32"), ("uint8", "uint8"), ("int16", "int64"),
        ("bool", "bool"),
    ):  # fmt: skip
        x, y = given(np.ones((4, 3), dtype), np.array(["a", "b"] * 2))
        assert (x.dtype, x.shape, y.dtype, y.shape, y) == (want, (3,), np.int64, (), 0)
    x, y = given({"a": np.ones((4, 3)), "b": np.arange(4)}, {"u": np.ones(4), "v": np.arange(4)})
    assert (x["a"].shape, x["b"]) == ((3,), 0)
    assert (y["u"], y["v"]) == (1, 0)
    x, y = given((np.ones((4, 3)), np.arange(4)))
    assert isinstance(x, tuple)
    assert y is None


def test_several_parts() -> None:
    X = np.arange(24, dtype=np.float32).reshape(8, 3)
    data = DataModule.from_arrays(X, shuffle=False, batch_size=8)
    two = data.map(lambda x: (x[:2], {"n": 1}["n"] * x[2:]))
    batch = next(two.train_batches())
    np.testing.assert_array_equal(batch["x"][0], X[:, :2])
    np.testing.assert_array_equal(batch["x"][1], X[:, 2:])
    named = data.map(lambda x: {"left": x[0], "right": x[1:]}, cache="ram")
    batch = next(named.train_batches())
    np.testing.assert_array_equal(batch["x"]["right"], X[:, 1:])


@pytest.mark.parametrize("cache", ["ram", None])
def test_fn_may_change_what_it_gets(cache: str | None) -> None:
    X = np.ones((20, 3), np.float32)

    def change(x: Any) -> Any:
        x *= 2
        return x

    data = DataModule.from_arrays(X, val=0.5).map(change, cache=cache)
    assert (data.arrays("train")[0] == 2).all()
    assert (data.arrays("val")[0] == 2).all()
    assert (X == 1).all()


def test_weights_go_along() -> None:
    weight = np.linspace(0, 1, N).astype(np.float32)
    for cache in (None, "ram"):
        source = data_of(sample_weight=weight)
        data = source.map(fold_up, cache=cache)
        for a, b in zip(data.train_batches(), source.train_batches(), strict=True):
            np.testing.assert_array_equal(a["weight"], b["weight"])


def test_a_map_of_a_map(tmp_path: Path) -> None:
    data = data_of().map(fold_up).map(lambda x, y: (x[0], y), cache="ram")
    twice = mapped(data, lambda x, y: (x + 1, y), "disk", tmp_path)
    X, y = data_of().arrays("val")
    want = folded(X, y)[:, 0] + 1
    np.testing.assert_array_equal(twice.arrays("val")[0], want)


def test_windows() -> None:
    series = np.arange(60, dtype=np.float32).reshape(30, 2)
    source = DataModule.from_windows(series, 4, target=series[:, 0], val=0.3, batch_size=4)
    for cache in (None, "ram"):
        data = source.map(lambda x, y: (x.mean(axis=0), y), cache=cache)
        for a, b in zip(data.train_batches(), source.train_batches(), strict=True):
            np.testing.assert_array_equal(a["x"], b["x"].mean(axis=1))
            np.testing.assert_array_equal(a["y"], b["y"])


# ---- what goes along


@pytest.mark.parametrize("cache", ["ram", None])
def test_classes(cache: str | None) -> None:
    X = np.ones((20, 3), np.float32)
    y = np.array(["no", "yes"] * 10)
    source = DataModule.from_arrays(X, y, val=0.2)
    kept = source.map(lambda x, y: (x, y), cache=cache)
    assert (kept.classes, kept.n_classes) == (["no", "yes"], 2)
    assert sorted(set(kept.arrays("val")[1])) == ["no", "yes"]
    other = source.map(lambda x, y: (x, y + 1), cache=cache, classes=["a", "b", "c"])
    assert (other.classes, other.n_classes) == (["a", "b", "c"], 3)
    assert set(other.arrays("val")[1]) == {"b", "c"}
    named = source.map(lambda x, y: (x, "cb"[y]), cache=cache, classes=["a", "b", "c"])
    assert set(named.arrays("val")[1]) == {"b", "c"}
    values = source.map(lambda x, y: (x, 0.5 * y), cache=cache)
    assert (values.target_kind, values.classes) == ("float", None)
    positions = source.map(lambda x, y: (x, np.array([y, -100])), cache=cache)
    assert positions.target_kind == "class"
    said = r"map: train row \d+: y must be a class id below 1, as classes has 1 name, got [12];"
    with pytest.raises(DataError, match=said):  # already of the first row
        source.map(lambda x, y: (x, 1 + y % 2), cache=cache, classes=["a"])
    with pytest.raises(ConfigError, match="classes: are of a class target, got float targets"):
        source.map(lambda x, y: (x, 0.5 * y), cache=cache, classes=["a", "b"])
    if cache is not None:
        assert kept.class_counts() == [8, 8]


def test_multilabel() -> None:
    y = np.array([[0, 1], [1, 1]] * 5)
    source = DataModule.from_arrays(np.ones((10, 3)), y)
    assert source.map(lambda x, y: (x, 1 - y)).target_kind == "multilabel"
    with pytest.raises(DataError, match=r"train row 0: y must be from 0 to 1, .* got 0.5"):
        source.map(lambda x, y: (x, y / 2), cache="ram")


@pytest.mark.parametrize("cache", ["ram", None])
def test_standardize_is_fitted_anew(cache: str | None) -> None:
    source = data_of(standardize=True)
    data = source.map(lambda x, y: (3 * x[:4] + 5, y), cache=cache)
    X = 3 * source.arrays("train")[0][:, :4] + 5
    mean, std = data.transforms[0][1]["x"]
    np.testing.assert_allclose(mean, X.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(std, X.std(axis=0), rtol=1e-4)
    with pytest.raises(ConfigError, match=r"map: X is standardised, .* got int64; leave"):
        source.map(lambda x, y: (x.astype(int), y), cache=cache)
    with pytest.raises(ConfigError, match=r"map: X is standardised, .* got none; leave"):
        source.map(lambda x, y: ({"a": x}, y), cache=cache)


@pytest.mark.parametrize("cache", ["ram", None])
def test_folds_groups_subsets_and_sampling(cache: str | None, tmp_path: Path) -> None:
    groups = np.arange(N) // 5
    source = data_of(groups=groups, val=None, test=0.1)
    data = source.map(fold_up, cache=cache)
    for a, b in zip(data.folds(3), source.folds(3), strict=True):
        np.testing.assert_array_equal(a.rows("val"), b.rows("val"))
        X, y = b.arrays("val")
        np.testing.assert_array_equal(a.arrays("val")[0], folded(X, y))
    by_time = data_of(split="time", val=20, gap=5)  # rows of the gap are in no split
    for a, b in zip(
        by_time.map(fold_up, cache=cache).folds(3, gap=0), by_time.folds(3, gap=0), strict=True
    ):
        np.testing.assert_array_equal(a.arrays("val")[0], folded(*b.arrays("val")))
    few = data.subset(0.2)
    np.testing.assert_array_equal(few.rows("train"), source.subset(0.2).rows("train"))
    drawn = data_of(sampler="balanced", samples_per_epoch=48)
    for a, b in zip(drawn.map(fold_up).train_batches(), drawn.train_batches(), strict=True):
        np.testing.assert_array_equal(a["y"], b["y"])


def test_only_rows_of_splits_are_made() -> None:
    rows: list[int] = []

    def note(x: Any, y: Any) -> Any:
        rows.append(int(x[0]))
        return x, y

    X = np.repeat(np.arange(N, dtype=np.float32)[:, None], 2, axis=1)
    source = DataModule.from_arrays(X, np.arange(N) % 2, val=10, test=10).subset(20)
    data = source.map(note, cache="ram", num_workers=1)
    assert sorted(rows[1:]) == sorted(
        np.concatenate([source.rows(name) for name in ("train", "val", "test")])
    )
    np.testing.assert_array_equal(data.arrays("test")[0], source.arrays("test")[0])


def test_splits_of_their_own() -> None:
    X, y = np.ones((10, 3), np.float32), np.arange(10) % 2
    source = DataModule.from_arrays(X, y, val=(2 * X[:4], y[:4]))
    data = source.map(lambda x, y: (x[:2], y), cache="ram")
    assert (data.arrays("val")[0] == 2).all()
    assert data.arrays("val")[0].shape == (4, 2)
    with pytest.raises(DataError, match=r"val: must have the field x of float32 \(1,\)"):
        source.map(lambda x, y: (x[: int(x[0])], y))
    with pytest.raises(DataError, match=r"map: val row 0: fn raised ValueError: two"):
        source.map(_refuse_two, cache="ram")


def _refuse_two(x: Any, y: Any) -> Any:
    if x[0] == 2:
        raise ValueError("two")
    return x, y


def test_tables_lose_what_was_learnt() -> None:
    pandas = take_library("pandas")
    frame = pandas.DataFrame({"a": np.arange(20.0), "c": ["x", "y"] * 10, "t": [0, 1] * 10})
    data = DataModule.from_pandas(frame, "t", val=0.2).map(lambda x, y: (x[:2], y))
    assert data.encoding is None
    with pytest.raises(ConfigError, match="fold: this data cannot be divided again"):
        data.fold(0, 3)


# ---- images


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Image = take_library("PIL.Image")
    for i in range(12):
        name = tmp_path / "pictures" / "ab"[i % 2] / f"{i:02}.png"
        name.parent.mkdir(parents=True, exist_ok=True)
        levels = np.random.default_rng(i).integers(0, 256, (20, 20, 3))
        Image.fromarray(levels.astype(np.uint8)).save(name)
    return tmp_path / "pictures"


def test_images(root: Path, tmp_path: Path) -> None:
    source = DataModule.from_image_folder(root, 16, val=0.25, batch_size=4)
    turned = source.map(lambda x, y: (255 - x, y))
    for a, b in zip(turned.train_batches(3), source.train_batches(3), strict=True):
        np.testing.assert_array_equal(a["x"], 255 - b["x"])  # augmented, then mapped
    assert (turned.classes, turned.num_workers) == (["a", "b"], source.num_workers)
    np.testing.assert_array_equal(turned.transforms[0][1]["x"][0], source.transforms[0][1]["x"][0])
    with pytest.raises(ConfigError, match=r"X is normalised as uint8 \(3, 16, 16\), .* float32 "):
        source.map(lambda x, y: (x / 255, y))
    with pytest.raises(ConfigError, match=r"augmented anew in each epoch, .* augment='none'"):
        source.map(lambda x, y: (x, y), cache="ram")
    plain = DataModule.from_image_folder(root, 16, val=0.25, augment="none", normalize="standard")
    for cache in CACHES:
        key = {"key": "1"} if cache == "disk" else {}
        data = mapped(plain, lambda x, y: (255 - x, y), cache, tmp_path, **key)
        np.testing.assert_array_equal(data.arrays("val")[0], 255 - plain.arrays("val")[0])
        assert data.arrays("val")[0].dtype == np.uint8
        levels = data.arrays("train")[0]
        mean = data.transforms[0][1]["x"][0].ravel()
        np.testing.assert_allclose(mean, levels.mean(axis=(0, 2, 3)), rtol=1e-4)
        fold = data.fold(0, 3)
        levels = fold.arrays("train")[0]
        mean = fold.transforms[0][1]["x"][0].ravel()
        np.testing.assert_allclose(mean, levels.mean(axis=(0, 2, 3)), rtol=1e-4)
    with pytest.raises(ConfigError, match=r"key: X is made when a batch needs it, .* write key="):
        mapped(plain, lambda x, y: (x, y), "disk", tmp_path)


@pytest.mark.parametrize("cache", [None, "ram", "disk"])
def test_numbers_that_are_not_finite(cache: str | None, tmp_path: Path) -> None:
    """What was allowed where fn was given is allowed where its samples are used."""
    X = np.ones((30, 4), np.float32)
    folder = {"cache_dir": tmp_path} if cache == "disk" else {}

    def fn(x: Any, y: Any) -> Any:
        return np.where(y == 1, np.nan, x), y

    source = DataModule.from_arrays(X, np.arange(30) % 3)
    data = source.map(fn, cache=cache, allow_nonfinite=True, progress=False, **folder)
    data.check("train")
    net = nn.Sequential(Filled(), nn.Linear(4, 3))
    hl.train(net, data, quiet(max_epochs=1, precision="fp32"))
    allowing = DataModule.from_arrays(X, np.arange(30) % 3, allow_nonfinite=True)
    with pytest.raises(DataError, match="x must be finite"):  # its own flag is of its own rows
        allowing.map(fn, cache="ram", progress=False)


class Filled(nn.Module):
    """Zero in the place of NaN."""

    def forward(self, x: Any) -> Any:
        return hl.where(hl.isnan(x), 0.0, x)


# ---- what is refused


@pytest.mark.parametrize(
    ("give", "said"),
    [
        (lambda x, y, i: (x[: 2 if i == 17 else 3], y), r"row 17: x must have shape \(3,\) as"),
        (lambda x, y, i: (None if i == 17 else x, y), r"row 17: fn must give x, got None"),
        (lambda x, y, i: (x, None if i == 17 else y), r"row 17: fn must give y, got None"),
        (lambda x, y, i: x if i == 17 else (x, y), r"row 17: the data has targets, so fn\(x, y\) "),
        (lambda x, y, i: None if i == 17 else (x, y), r"row 17: the data has targets, .* got None"),
        (lambda x, y, i: (x, 0.5 if i == 17 else y), r"row 17: y must be int64 as others, got fl"),
        (lambda x, y, i: (x / (i != 17), y), r"row 17: x must be finite, got .*allow_nonfinite"),
        (lambda x, y, i: ("x" if i == 17 else x, y), r"row 17: x: an array is needed, got str"),
        (lambda x, y, i: ({"a": x} if i == 17 else x, y), r"row 17: must have x as others|row 17"),
        (lambda x, y, i: (x, 4 if i == 17 else y), r"row 17: y must be from 0 to 3, .* got 4"),
        (lambda x, y, i: (x, 1 // (i != 17)), r"row 17: fn raised ZeroDivisionError: "),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_samples_that_are_not_as_others(give: Callable[..., Any], said: str) -> None:
    X = np.ones((30, 4), np.float32)
    X[:, 3] = np.arange(30)

    def fn(x: Any, y: Any) -> Any:
        return give(x[:3], y, int(x[3]))

    with np.errstate(divide="ignore"):
        for rows in (np.arange(10), np.arange(10, 20)):
            source = DataModule.from_arrays(X, np.arange(30) % 4, val=rows)
            named = f"map: {'val' if 17 in rows else 'train'} " + said
            with pytest.raises(DataError, match=named):
                source.map(fn, cache="ram")
            lazy = source.map(fn)
            with pytest.raises(DataError, match=named):
                list(lazy.batches_in_order("val" if 17 in rows else "train"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fn": 3}, "fn: must be a function of a sample, got 3"),
        ({"cache": "cloud"}, "cache: must be one of"),
        ({"cache": "ram", "key": "a"}, "key: is of cache='disk', got 'a'"),
        ({"cache_dir": "x"}, "cache_dir: is of cache='disk'"),
        ({"cache": "disk", "key": 3}, "key: must be a name"),
        ({"num_workers": -1}, "num_workers"),
        ({"classes": 3}, "classes"),
        ({"cache": "ram", "progress": "yes"}, "progress"),
    ],
)
def test_wrong_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        data_of().map(**({"fn": fold_up} | options))


def test_data_that_is_refused() -> None:
    sequences = DataModule.from_sequences([np.ones((n, 2)) for n in (3, 4, 5)], [0, 1, 0])
    samples = DataModule([(np.ones((n, 2)), 0) for n in (3, 4, 5)], buckets=5)
    for data in (sequences, samples):
        with pytest.raises(ConfigError, match=r"map: sequences .* cannot be mapped; .* is made$"):
            data.map(fold_up)
    with pytest.raises(DataError, match=r"X: its rows have no values, got shape \(100, 0\)"):
        data_of().map(lambda x, y: (x[:0], y))
    episodes = DataModule.episodes(data_of(), 1, 1, ways=2, n=10)
    with pytest.raises(ConfigError, match="anew in each epoch"):
        episodes.map(lambda x, y: (x, y), cache="ram")
    assert len(episodes.map(lambda x, y: (x, y))) == 10
    series = np.arange(60, dtype=np.float32).reshape(30, 2)
    noisy = DataModule.from_windows(series, 4, target=series[:, 0], augment="basic")
    with pytest.raises(ConfigError, match=r"augmented behind fn, which must keep their shape"):
        noisy.map(lambda x, y: (x[0], y))
    assert noisy.map(lambda x, y: (x + 1, y)).augment_steps == noisy.augment_steps


# ---- on disk


@pytest.fixture
def made() -> list[int]:
    return []


def counting(made: list[int]) -> Callable[..., Any]:
    def fn(x: Any, y: Any) -> Any:
        made.append(1)
        return fold_up(x, y)

    return fn


def folders(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "maps").iterdir())


def test_nothing_is_made_twice(tmp_path: Path, made: list[int]) -> None:
    first = mapped(data_of(), counting(made), "disk", tmp_path, key="a")
    assert len(made) == N + 1  # the first one says what samples are
    again = mapped(data_of(val=0.4, test=5, seed=7), counting(made), "disk", tmp_path, key="a")
    assert len(made) == N + 2
    X, y = _whole()
    np.testing.assert_array_equal(again.arrays("val")[0], X[again.rows("val")])
    np.testing.assert_array_equal(first.arrays("val")[0], X[first.rows("val")])
    assert len(folders(tmp_path)) == 1
    np.testing.assert_array_equal(np.load(folders(tmp_path)[0] / "x.npy"), X)
    np.testing.assert_array_equal(np.load(folders(tmp_path)[0] / "y.npy"), y)
    mapped(data_of(), counting(made), "disk", tmp_path, key="b")
    assert len(made) == 2 * N + 3
    some = data_of().subset(10)
    mapped(some, counting(made), "disk", tmp_path, key="a")
    assert len(made) == 2 * N + 4


def test_rows_that_are_new_are_made(tmp_path: Path, made: list[int]) -> None:
    source = data_of()
    few = mapped(source.subset(10), counting(made), "disk", tmp_path, key="a")
    assert len(made) == 30 + 1
    mapped(source, counting(made), "disk", tmp_path, key="a")
    assert len(made) == N + 2
    np.testing.assert_array_equal(few.arrays("train")[0], _whole()[0][few.rows("train")])


def test_other_data_and_functions_are_others(tmp_path: Path) -> None:
    def scale(by: Any) -> Callable[..., Any]:
        return lambda x, y: (by * x, y)

    for i, (data, fn) in enumerate(
        [
            (data_of(), scale(2)),
            (data_of(), scale(3)),
            (data_of(), scale(np.arange(6))),
            (data_of(), scale(np.arange(1, 7))),
            (DataModule.from_arrays(np.ones((N, 6)), np.arange(N) % 4, val=0.2), scale(2)),
            (data_of(), lambda x, y: (2.0 * x, y)),
        ],
        1,
    ):
        for _ in range(2):
            found = mapped(data, fn, "disk", tmp_path)
            assert len(folders(tmp_path)) == i
        np.testing.assert_array_equal(
            found.arrays("train")[0],
            np.array([fn(x, 0)[0] for x in data.arrays("train")[0]], np.float32),
        )


OFFSET = 1


def _helper(x: Any) -> Any:
    return x + OFFSET


def _uses_helper(x: Any, y: Any) -> Any:
    return _helper(x), y


def digest(fn: Any) -> str:
    import hashlib

    into = hashlib.blake2b()
    feed_function(into, fn)
    return into.hexdigest()


def test_digests_of_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(_uses_helper)
    assert digest(_uses_helper) == before
    monkeypatch.setitem(globals(), "OFFSET", 2)  # in a function that fn calls
    assert digest(_uses_helper) != before
    parts = [
        functools.partial(np.roll, shift=1), functools.partial(np.roll, shift=2),
        lambda x, a=1: x + a, lambda x, a=2: x + a, lambda x, *, a=1: x + a,
        lambda x: [v + 1 for v in x], lambda x: [v + 2 for v in x], np.sqrt, np.sin, np.mean,
    ]  # fmt: skip
    assert len({digest(fn) for fn in parts}) == len(parts)
    rng = np.random.default_rng(0)
    for fn, what in (
        (lambda x: x + rng.random(), "rng is of type numpy.*Generator"),
        (lambda x: SomeState().value + x, "SomeState is of type builtins.type"),
        (SomeState().method, "fn is of type builtins.method"),
    ):
        with pytest.raises(ConfigError, match=rf"key: .* {what}.*; write key='\.\.\.'"):
            digest(fn)


class SomeState:
    value = 1

    def method(self, x: Any) -> Any:
        return x


CHILD = """
import sys, time
import numpy as np
from hotloop import DataModule
from hotloop.data.datasets import mapping
mapping._FLUSH_SECONDS = 0.0
X = np.arange(400, dtype=np.float32).reshape(100, 4)
begun = []
def fn(x):
    begun.append(1)
    time.sleep(0.005 if len(begun) < 40 else float(sys.argv[2]))
    return x + 1
data = DataModule.from_arrays(X, val=0.2).map(fn, cache="disk", key="k", cache_dir=sys.argv[1])
print((data.arrays("train")[0] == X[data.rows("train")] + 1).all())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_it_goes_on_where_it_stopped(tmp_path: Path, how: signal.Signals, made: list[int]) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "maps"), "0.5"])
    deadline = time.monotonic() + 60

    def there() -> int:
        found = list((tmp_path / "maps").glob("train-*/made.npy"))
        return int(np.load(found[0]).sum()) if found else 0

    while not (tmp_path / "maps").exists() or there() < 16:
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.send_signal(how)
    child.wait(60)
    kept = there()
    assert 16 <= kept < 100
    X = np.arange(400, dtype=np.float32).reshape(100, 4)

    def fn(x: Any) -> Any:
        made.append(1)
        return x + 1

    source = DataModule.from_arrays(X, val=0.2)
    data = source.map(fn, cache="disk", key="k", cache_dir=tmp_path / "maps")
    assert len(made) == 1 + 100 - kept
    np.testing.assert_array_equal(data.arrays("train")[0], X[data.rows("train")] + 1)


def test_two_processes_at_once(tmp_path: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path / "maps"), "0.005"],
            stdout=subprocess.PIPE, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    assert [child.communicate(timeout=120)[0] for child in children] == ["True\n"] * 3
    assert len(folders(tmp_path)) == 1


def test_rows_are_there_only_when_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends between values and their bytes: the rows are made anew."""
    calls: list[int] = []
    sync = os.fsync

    def end(number: int) -> None:
        calls.append(number)
        if len(calls) > 3:  # the first ones make the files
            raise KeyboardInterrupt
        sync(number)

    with monkeypatch.context() as patch:
        patch.setattr(mapping.os, "fsync", end)
        with pytest.raises(KeyboardInterrupt):
            mapped(data_of(), fold_up, "disk", tmp_path)
    assert not np.load(next((tmp_path / "maps").glob("train-*")) / "made.npy").any()
    data = mapped(data_of(), fold_up, "disk", tmp_path)
    np.testing.assert_array_equal(data.arrays("val")[0], _whole()[0][data.rows("val")])


@pytest.mark.parametrize("damage", ["short", "other", "gone", "marks"])
def test_what_is_damaged_is_made_anew(tmp_path: Path, damage: str) -> None:
    first = mapped(data_of(), fold_up, "disk", tmp_path)
    (folder,) = folders(tmp_path)
    if damage == "short":
        os.truncate(folder / "x.npy", (folder / "x.npy").stat().st_size - 4)
    elif damage == "other":
        np.save(folder / "x.npy", np.ones((N, 6), np.float32))
    elif damage == "gone":
        (folder / "y.npy").unlink()
    else:
        np.save(folder / "made.npy", np.full(N, 7, np.uint8))
    with pytest.warns(DataWarning, match=r"cache: .* is damaged \(.*\), and is made anew"):
        data = mapped(data_of(), fold_up, "disk", tmp_path)
    np.testing.assert_array_equal(data.arrays("val")[0], _whole()[0][data.rows("val")])
    if damage in ("gone", "marks"):  # others wrote into what it has mapped
        np.testing.assert_array_equal(first.arrays("val")[0], data.arrays("val")[0])


def test_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cache_dir: must be a folder that can be written"):
        data_of().map(fold_up, cache="disk", cache_dir=tmp_path / "file" / "maps")
    with monkeypatch.context() as patch:
        patch.setattr(cache_folder.shutil, "disk_usage", lambda of: SimpleNamespace(free=3199))
        with pytest.raises(DataError, match=r"100 samples that are new, about 3,200 bytes .*3,199"):
            mapped(data_of(), fold_up, "disk", tmp_path)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(mapping, "_write_rows", full)
        with pytest.raises(DataError, match=r"the disk of .* is full, got .* bytes free; delete"):
            mapped(data_of(), fold_up, "disk", tmp_path)
    monkeypatch.setenv("HOTLOOP_CACHE_PATH", str(tmp_path / "own"))
    data_of().map(fold_up, cache="disk")
    assert len(list((tmp_path / "own" / "maps").iterdir())) == 1


def test_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    mapped(data_of(), fold_up, "disk", tmp_path)
    shown = capsys.readouterr().err
    assert "map train and val: 100%" in shown
    assert "100/100" in shown
    data_of().map(fold_up, cache="ram", progress=False)
    assert capsys.readouterr().err == ""


def test_modules_without_a_version_count_by_their_file(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    X = np.ones((8, 2), np.float32)

    def made(factor: str) -> float:
        (tmp_path / "hl_settings.py").write_text(f"K = {factor}\n")
        sys.modules.pop("hl_settings", None)
        importlib.invalidate_caches()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            settings = importlib.import_module("hl_settings")
        finally:
            sys.dont_write_bytecode = before
        data = DataModule.from_arrays(X)
        kept = data.map(
            lambda x: x * settings.K, cache="disk", cache_dir=tmp_path / "kept", progress=False
        )
        return float(kept.arrays("train")[0].max())

    assert made("2.0") == 2.0
    assert made("3.50") == 3.5
    sys.modules.pop("hl_settings", None)
    ghost = types.ModuleType("hl_ghost")
    ghost.K = 2.0
    monkeypatch.setitem(sys.modules, "hl_ghost", ghost)
    with pytest.raises(ConfigError, match=r"key: .* module 'hl_ghost', which has neither"):
        DataModule.from_arrays(X).map(
            lambda x: x * ghost.K, cache="disk", cache_dir=tmp_path, progress=False
        )


def test_unknown_options_are_named() -> None:
    with pytest.raises(ConfigError, match="cach"):
        DataModule.from_arrays(np.ones((4, 2), np.float32)).map(lambda x: x, cach="ram")
