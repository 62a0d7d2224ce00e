"""Datasets that make their samples: structures, order, loaders, modules, wrong samples."""

import gc
import os
import re
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import DataModule, nn
from hotloop.errors import ConfigError, DataError, DataWarning
from needs import is_flat, take_library
from train.recipes import quiet

N = 90


class Points:
    """Sample i is (x, y) of a table."""

    def __init__(self, n: int = N) -> None:
        rng = np.random.default_rng(0)
        self.X = rng.standard_normal((n, 4)).astype(np.float32)
        self.y = (self.X.sum(1) > 0).astype(np.int64)
        self.asked: list[int] = []
        self.threads: set[int] = set()

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, i: int) -> Any:
        self.asked.append(i)
        self.threads.add(threading.get_ident())
        return self.X[i], int(self.y[i])


class Made(Points):
    """What a function makes of a sample's number."""

    def __init__(self, make: Any, n: int = 12) -> None:
        super().__init__(n)
        self.make = make

    def __getitem__(self, i: int) -> Any:
        return self.make(i)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def weights(data: Any, **fields: Any) -> list[np.ndarray]:
    hl.manual_seed(0)
    result = hl.train(model(), data, quiet(max_epochs=3, **fields))
    return [p.numpy() for p in result.model.parameters()]


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# ---- they are the same as arrays


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
@pytest.mark.parametrize("k", [1, 3])
def test_training_is_that_of_arrays(workers: int, k: int) -> None:
    points = Points()
    options = {"batch_size": 16, "seed": 3}
    arrays = DataModule((points.X[:70], points.y[:70]), (points.X[70:], points.y[70:]), **options)
    val = Points()
    val.X, val.y = points.X[70:], points.y[70:]
    points.X, points.y = points.X[:70], points.y[:70]
    data = DataModule(points, val, num_workers=workers, **options)
    assert same(
        weights(data, accumulate_grad_batches=k), weights(arrays, accumulate_grad_batches=k)
    )
    assert len(points.threads) <= max(workers, 1) * 3 + 1  # threads of an epoch, and the first look


def test_batches_are_those_of_arrays() -> None:
    points = Points()
    data = DataModule.from_datasets(points, val=0.2, batch_size=16)
    arrays = DataModule.from_arrays(points.X, points.y, val=0.2, batch_size=16, stratify=False)
    assert repr(data) == (
        "DataModule(train 72, val 18 rows; X float32 (4,); y of classes; batch_size=16)"
    )
    for epoch in range(2):
        for got, want in zip(data.train_batches(epoch), arrays.train_batches(epoch), strict=True):
            for name in ("x", "y"):
                assert got[name].dtype == want[name].dtype
                np.testing.assert_array_equal(got[name], want[name])
    assert data.describe().count("made in batches") == 2


def test_each_sample_is_made_once_an_epoch() -> None:
    points = Points()
    data = DataModule(points, batch_size=20, num_workers=2)
    points.asked.clear()
    hl.train(model(), data, quiet(max_epochs=2, precision="fp32"))
    looked_at, made = points.asked[:64], points.asked[64:]  # the first ones' classes are checked
    assert looked_at == [*range(64)]
    assert sorted(made) == sorted([*range(N)] * 2)


def test_evaluation_and_arrays() -> None:
    points = Points()
    data = DataModule.from_datasets(points, val=30, batch_size=16)
    trained = hl.train(model(), data, quiet(max_epochs=2)).model
    X, y = data.arrays("val")
    found = hl.evaluate(trained, data, split="val")
    assert found["loss"] == pytest.approx(hl.evaluate(trained, (X, y))["loss"], rel=1e-6)
    with pytest.raises(ConfigError, match=r"class_counts: .* give class_weight as numbers"):
        data.class_counts()


def test_standardize_fits_training_samples() -> None:
    points = Points()
    points.X = points.X * 5 + 100
    data = DataModule.from_datasets(points, val=0.2, standardize=True)
    arrays = DataModule.from_arrays(points.X, points.y, val=0.2, stratify=False, standardize=True)
    for got, want in zip(data.transforms[0][1]["x"], arrays.transforms[0][1]["x"], strict=True):
        np.testing.assert_array_equal(got, want)


# ---- structures


def test_structures() -> None:
    x = np.zeros((3, 2))

    def fields(sample: Any, **options: Any) -> dict[str, Any]:
        return DataModule(Made(lambda i: sample), batch_size=2, **options).example_batch()

    assert fields(x) == {"x": ("float32", (2, 3, 2))}
    assert fields((x, 1.5)) == {"x": ("float32", (2, 3, 2)), "y": ("float32", (2,))}
    assert fields(((x, 3), True, 0.5)) == {
        "x.0": ("float32", (2, 3, 2)),
        "x.1": ("int64", (2,)),
        "y": ("int64", (2,)),
        "weight": ("float32", (2,)),
    }
    assert fields({"image": x.astype(np.uint8), "label": 2}) == {
        "x.image": ("float32", (2, 3, 2)),
        "y": ("int64", (2,)),
    }
    assert fields({"x": x, "y": {"a": 1, "b": 2.0}}) == {
        "x": ("float32", (2, 3, 2)),
        "y.a": ("int64", (2,)),
        "y.b": ("float32", (2,)),
    }
    assert fields({"a": x, "b": 1.0, "c": 2}, target=["b", "c"]) == {
        "x.a": ("float32", (2, 3, 2)),
        "y.b": ("float32", (2,)),
        "y.c": ("int64", (2,)),
    }
    assert fields([x, np.array([True, False])])["y"] == ("float32", (2, 2))


def test_names_of_classes() -> None:
    data = DataModule(
        Made(lambda i: (np.zeros(2), "cat" if i % 2 else "dog")), classes=["cat", "dog"]
    )
    assert data.classes == ["cat", "dog"]
    assert next(data.train_batches())["y"].sum() == 6
    with pytest.raises(DataError, match=r"train_dataset\[0\]: y: .*'cow'.* write classes="):
        DataModule(Made(lambda i: (np.zeros(2), "cow")))
    with pytest.raises(DataError, match=r"must be one of classes, \['cat'\], got 'cow'"):
        DataModule(Made(lambda i: (np.zeros(2), "cow")), classes=["cat"])


def test_collate() -> None:
    def collate(samples: list[Any]) -> Any:
        return {"x": np.stack([x for x, _ in samples]) * 2, "y": np.array([y for _, y in samples])}

    points = Points()
    data = DataModule(points, collate_fn=collate, batch_size=16, shuffle=False)
    got = next(data.train_batches())
    np.testing.assert_array_equal(got["x"], 2 * points.X[:16])
    with pytest.raises(DataError, match="collate_fn: x must have one row for each of 1 samples"):
        DataModule(points, collate_fn=lambda samples: np.zeros((5, 2)))
    with pytest.raises(DataError, match="collate_fn: raised KeyError"):
        DataModule(points, collate_fn=lambda samples: {}["x"])


# ---- loaders and modules


def usual(name: str, n: int) -> Any:
    """A sampler as those that PyTorch's loaders make."""
    own = {"__module__": "torch.utils.data.sampler", "__len__": lambda self: n}
    return type(name, (), own)()


def loader(dataset: Any, **options: Any) -> Any:
    made = {
        "dataset": dataset,
        "batch_size": 32,
        "drop_last": True,
        "sampler": usual("RandomSampler", len(dataset)),
        "collate_fn": None,
    }
    return SimpleNamespace(**(made | options))


def test_a_loader() -> None:
    data = DataModule(loader(Points()), loader(Points(20), drop_last=False))
    assert (data.batch_size, data.shuffle, data.drop_last) == (32, True, True)
    assert DataModule(loader(Points()), batch_size=8).batch_size == 8
    plain = loader(Points(), sampler=usual("SequentialSampler", N))
    assert not DataModule(plain).shuffle
    with pytest.raises(ConfigError, match="a loader must make batches"):
        DataModule(loader(Points(), batch_size=None))


def test_a_sampler() -> None:
    points = Points()

    class Backwards:
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            return iter(range(59 - self.epoch, -1 - self.epoch, -1))

    sampler = Backwards()
    data = DataModule(points, sampler=sampler, batch_size=20, num_workers=1)
    assert len(data) == 60
    hl.train(model(), data, quiet(max_epochs=2, precision="fp32"))
    assert points.asked[-120:] == [*range(59, -1, -1), *range(58, -2, -1)]
    batches = DataModule(Points(), batch_sampler=[[1, 2, 3], [4, 5, 6], [7]])
    assert [len(batch["y"]) for batch in batches.train_batches()] == [3, 3, 1]
    with pytest.raises(ConfigError, match=r"batches must have one size.*\[2, 3\]"):
        DataModule(points, batch_sampler=[[1, 2], [3, 4, 5]])
    with pytest.raises(ConfigError, match="sampler: gives the order, got shuffle=True"):
        DataModule(points, sampler=[1, 2], shuffle=True)
    with pytest.raises(ConfigError, match="leave one out"):
        DataModule(points, sampler=[1], batch_sampler=[[1]])
    with pytest.raises(ConfigError, match="got arrays"):
        DataModule((points.X, points.y), sampler=[1])


def test_modules_of_loaders() -> None:
    class Mine(DataModule):
        def __init__(self) -> None:
            self.calls: list[Any] = []
            super().__init__()

        def prepare_data(self) -> None:
            self.calls.append("prepare")

        def setup(self, stage: str | None = None) -> None:
            self.calls.append(stage)
            self.points = Points()

        def train_dataloader(self) -> Any:
            return loader(self.points)

        def val_dataloader(self) -> Any:
            return self.points

    data = Mine()
    assert data.calls == ["prepare", "fit", "test"]
    assert (data.batch_size, len(data)) == (32, N)
    hl.train(model(), data, quiet(max_epochs=1))

    class Lightning:  # of another library, without a stage
        def setup(self) -> None:
            self.points = Points()

        def train_dataloader(self) -> Any:
            return [loader(self.points, batch_size=16)]

    result = hl.train(model(), Lightning(), quiet(max_epochs=1))
    assert result.steps == N // 16
    with pytest.raises(DataError, match="data to train on is needed, got None"):
        DataModule()


@pytest.mark.parity
def test_loaders_of_torch() -> None:
    torch = take_library("torch")

    class Set(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 50

        def __getitem__(self, i: int) -> Any:
            return {"pixels": torch.full((2, 3), float(i)), "label": torch.tensor(i % 3)}

    made = torch.utils.data.DataLoader(Set(), batch_size=7, shuffle=True, drop_last=True)
    data = DataModule(made)
    assert (data.batch_size, data.shuffle, data.drop_last) == (7, True, True)
    assert data.example_batch()["x.pixels"] == ("float32", (7, 2, 3))
    part, rest = torch.utils.data.random_split(Set(), [30, 20])
    assert len(DataModule(part, rest)) == 30
    weighted = torch.utils.data.WeightedRandomSampler([1.0] * 50, 80)
    assert len(DataModule(torch.utils.data.DataLoader(Set(), batch_size=8, sampler=weighted))) == 80


# ---- generators


def test_a_generator() -> None:
    calls = []

    def numbers(epoch: int) -> Any:
        calls.append(epoch)
        for i in range(100):
            yield np.float32([i, epoch]), i % 2

    data = DataModule.from_generator(numbers, 50, batch_size=20)
    for epoch in (0, 1):
        got = np.concatenate([batch["x"] for batch in data.train_batches(epoch)])
        np.testing.assert_array_equal(got[:, 0], np.arange(50))
        assert (got[:, 1] == epoch).all()
    calls.clear()
    net = nn.Linear(2, 2)
    hl.train(net, data, quiet(max_epochs=3, precision="fp32"))
    assert calls == [0, 0, 1, 2]  # what is looked at before training is of the first one
    with pytest.raises(DataError, match=r"50 samples in each epoch, got 3 in epoch 0; write n=3"):
        list(DataModule.from_generator(lambda: iter([(0.0, 1)] * 3), 50).train_batches())
    with pytest.raises(ConfigError, match="must be a function"):
        DataModule.from_generator([1, 2], 2)
    with pytest.raises(ConfigError, match="shuffle in the generator"):
        DataModule.from_generator(numbers, 50, shuffle=True)
    with pytest.raises(ConfigError, match="one thread makes the samples"):
        DataModule.from_generator(numbers, 50, num_workers=4)
    with pytest.raises(ConfigError, match="from_generator"):
        DataModule(iter([1, 2]))


# ---- wrong samples


def wrong(at: int, sample: Any, good: Any = None) -> Made:
    good = (np.zeros(2, np.float32), 1) if good is None else good

    def make(i: int) -> Any:
        if i != at:
            return good
        if isinstance(sample, Exception):
            raise sample
        return sample

    return Made(make)


def test_integers_do_not_wrap_around() -> None:
    samples = [(np.array([1, 2], np.uint8), 0)] * 5 + [(np.array([1, 300]), 0)]
    data = DataModule(samples, batch_size=6, shuffle=False)
    with pytest.raises(
        DataError, match=r"train_dataset\[5\]: x must be uint8 as others, got int64"
    ):
        next(data.train_batches())


def test_numpys_floats_are_values() -> None:
    data = DataModule([(np.zeros(2), np.float64(i) / 2) for i in range(4)], shuffle=False)
    assert next(data.train_batches())["y"].tolist() == [0, 0.5, 1, 1.5]


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (OSError("no such file"), r"train_dataset\[7\]: raised OSError: no such file"),
        (None, r"train_dataset\[7\]: must be a sample, got None"),
        ((np.zeros(3), 1), r"train_dataset\[7\]: x must have shape \(2,\) .* got \(3,\); give"),
        ((np.array([0, np.nan]), 1), r"train_dataset\[7\]: x must be finite, got nan"),
        ((np.zeros(2), 1.5), r"y must be int64 as others, got float32"),
        (np.zeros(2), r"train_dataset\[7\]: must have y as others, got none"),
        ((np.zeros(2), 1, 1.0), "weight besides"),
        ((np.zeros(2), "cat"), r"train_dataset\[7\]: y: is a name, got 'cat'"),
        ((np.array(["a", "b"]), 1), r"train_dataset\[7\]: x: must be numbers, got ndarray"),
        ((1, 2, 3, 4), r"train_dataset\[7\]: a sample must be .* got 4 parts"),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_wrong_sample(sample: Any, said: str, workers: int) -> None:
    data = DataModule(wrong(7, sample), batch_size=4, num_workers=workers, shuffle=False)
    net = nn.Linear(2, 2)
    before = net.weight.numpy()
    with pytest.raises(DataError, match=said) as caught:
        hl.train(net, data, quiet(max_epochs=1, precision="fp32"))
    if isinstance(sample, Exception):
        assert caught.value.__cause__ is sample
    np.testing.assert_array_equal(net.weight.numpy(), before)
    hl.train(net, (np.zeros((8, 2)), np.arange(8) % 2), quiet(max_epochs=1))


def test_a_class_that_the_model_lacks() -> None:
    data = DataModule(wrong(1, (np.zeros(2), 5)), batch_size=4, shuffle=False)
    with pytest.raises(DataError, match=r"class ids must be below 2.* got 5 in row 1"):
        hl.train(nn.Linear(2, 2), data, quiet(max_epochs=1))
    made = Made(lambda i: (np.zeros(2), 5 if i == 180 else 1), 200)  # behind what is looked at
    data = DataModule(made, batch_size=4, shuffle=False)
    with pytest.raises(DataError, match="5"):
        hl.train(nn.Linear(2, 2), data, quiet(max_epochs=1))


@pytest.mark.parametrize("way", ["skip", "replace"])
@pytest.mark.parametrize("workers", [0, 3])
def test_bad_samples_left_out_or_replaced(way: str, workers: int) -> None:
    points = Points()

    class Broken(Points):
        def __getitem__(self, i: int) -> Any:
            if i in (5, 6):
                raise ValueError("broken")
            return self.X[i], int(self.y[i])

    options = {"batch_size": 16, "num_workers": workers, "on_bad_sample": way, "max_bad_share": 0.1}
    data = DataModule(Broken(), **options)
    with pytest.warns(DataWarning, match=r"2 bad samples of train .* train_dataset\[[56]\]"):
        got = weights(data)
    assert sorted(data.bad_samples["train"]) == [5, 6]
    if way == "skip":
        weight = np.ones(N)
        weight[5:7] = 0
        want = DataModule.from_arrays(points.X, points.y, sample_weight=weight, batch_size=16)
    else:
        X, y = points.X.copy(), points.y.copy()
        X[5:7], y[5:7] = X[7], y[7]
        want = DataModule.from_arrays(X, y, batch_size=16)
    assert same(got, weights(want))


def test_too_many_bad_samples() -> None:
    def make(i: int) -> Any:
        if i in (7, 30):
            raise ValueError("broken")
        return np.zeros(2), 1

    data = DataModule(Made(make, 40), on_bad_sample="skip", batch_size=8)
    for _ in range(2):  # and again, once they are known
        with pytest.raises(DataError, match=r"at most 1 of 40 samples may be bad, got 2: .*broken"):
            hl.train(nn.Linear(2, 2), data, quiet(max_epochs=1))
    with pytest.raises(DataError, match=r"train_dataset\[0\]"):
        DataModule(wrong(0, ValueError("no")))
    with pytest.raises(DataError, match="val_dataset: must have the field x of float32"):
        DataModule(Points(), Made(lambda i: (np.zeros(3), 1)))
    with pytest.raises(ConfigError, match="on_bad_sample: must be one of"):
        DataModule(Points(), on_bad_sample="ignore")


def test_no_good_sample_among_those_made_together() -> None:
    """The count is of the samples of the split that were tried, of which the first is named."""

    def make(i: int) -> Any:
        if i >= 30:
            raise ValueError("broken")
        return np.zeros(2), float(i)

    made = Made(make, 40)
    options = {"on_bad_sample": "skip", "max_bad_share": 1.0, "batch_size": 8}
    data = DataModule.from_datasets(made, val=10, split="time", **options)
    said = r"train_dataset: .* got {} bad ones, the first: train_dataset\[30\]: raised .*broken"
    with pytest.raises(DataError, match=said.format(10)):
        next(data.val_batches())
    with pytest.raises(DataError, match=said.format(10)):
        data.arrays("val")


def test_rows_without_values() -> None:
    x, none = np.zeros(2), np.zeros(0)
    for sample, said in (
        ((none, 1), r"X: its rows have no values, got shape \(12, 0\)"),
        (((x, none), 1), r"X\['1'\]: its rows have no values"),
        ((x, none), "y: its rows have no values"),
    ):
        with pytest.raises(DataError, match=said):
            DataModule(Made(lambda i, sample=sample: sample))
    with pytest.raises(DataError, match="X: its rows have no values"):
        DataModule.from_generator(lambda: iter([(none, 1)] * 9), 9)
    with pytest.raises(DataError, match="its rows have no values"):
        DataModule(Made(lambda i: (np.zeros((3, 0)), 1)), buckets=4)


def test_ids_without_a_name() -> None:
    def make(i: int) -> Any:
        return np.zeros(2), i

    said = r"train_dataset\[{}\]: y must be a class id below 3, as classes has 3 names, got {};"
    data = DataModule(Made(make), classes=["a", "b", "c"], shuffle=False)
    with pytest.raises(DataError, match=said.format(3, 3)):
        next(data.train_batches())
    with pytest.raises(DataError, match=said.format(0, -1)):
        DataModule(Made(lambda i: (np.zeros(2), -1)), classes=["a", "b", "c"])
    rows = DataModule(Made(lambda i: (np.zeros(2), np.array([2, -100]))), classes=["a", "b", "c"])
    assert next(rows.train_batches())["y"][0].tolist() == [2, -100]


def test_what_does_not_go_together() -> None:
    points = Points()
    with pytest.raises(ConfigError, match="training has arrays, and so must this"):
        DataModule((points.X, points.y), points)
    with pytest.raises(ConfigError, match="fractions and datasets of their own"):
        DataModule.from_datasets(points, 0.2, points)
    with pytest.raises(ConfigError, match="split: says which"):
        DataModule.from_datasets(points, points, split="time")
    with pytest.raises(ConfigError, match="names keys of samples that are dicts"):
        DataModule(points, target="y")
    with pytest.raises(DataError, match=r"has no samples"):
        DataModule(Points(0))
    with pytest.raises(DataError, match="which keys are targets must be said"):
        DataModule(Made(lambda i: {"a": 1.0, "y": 1, "label": 2}))


# ---- waiting for samples


class Sleeping:
    """Samples that take a while, all the longer from one on."""

    def __init__(self, seconds: float, later: float) -> None:
        self.seconds, self.later = seconds, later

    def __len__(self) -> int:
        return 200

    def __getitem__(self, i: int) -> Any:
        time.sleep(self.seconds if i < 100 else self.later)
        return np.float32([i, 1]), i % 2


@pytest.mark.parametrize("k", [1, 2])
def test_an_interrupt_while_data_is_waited_for(k: int) -> None:
    """Training looks at signals meanwhile; what it waits for at the end is one sample."""
    data = DataModule(Sleeping(0.0, 0.4), batch_size=4, shuffle=False, num_workers=1)
    net = nn.Linear(2, 2)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    config = quiet(max_epochs=1, precision="fp32", accumulate_grad_batches=k, on_interrupt="raise")
    with pytest.raises(hl.TrainingInterrupted) as caught:
        hl.train(net, data, config)
    assert time.monotonic() - began < 3.5  # a batch takes 1.6 s
    result = caught.value.result
    assert result is not None
    assert result.steps == (25 if k == 1 else 13)
    assert result.data_wait > 0.2


def test_a_deadline_while_data_is_waited_for() -> None:
    data = DataModule(Sleeping(0.0, 0.2), batch_size=4, shuffle=False)
    began = time.monotonic()
    result = hl.train(nn.Linear(2, 2), data, quiet(max_epochs=9, precision="fp32", max_time=0.5))
    assert time.monotonic() - began < 3
    assert result.stop_reason == "max_time"


def test_waiting_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    data = DataModule(Sleeping(0.01, 0.01), batch_size=40)
    result = hl.train(nn.Linear(2, 2), data, max_epochs=1, precision="fp32")
    assert result.data_wait > 0.5 * result.timings["train"]
    assert result.history["data_wait"] == pytest.approx([result.data_wait], abs=0.01)
    err = capsys.readouterr().err
    assert "of its time for data" in err
    share = int(re.search(r"wait +(\d+)%", err)[1])
    assert share == pytest.approx(100 * result.data_wait / result.timings["train"], abs=2)


def test_memory_descriptors_and_threads_stay_flat() -> None:
    """Twenty epochs of batches hold no more than the first."""
    points = Points(2000)
    data = DataModule(points, batch_size=50, num_workers=3)
    hl.train(model(), data, quiet(max_epochs=2, precision="fp32"))
    gc.collect()
    before = _facts()
    hl.train(model(), data, quiet(max_epochs=20, precision="fp32"))
    points.asked.clear()
    points.threads.clear()
    gc.collect()
    after = _facts()
    assert is_flat(before["rss"], after["rss"], 3 << 20)
    assert after["fds"] <= before["fds"]
    assert after["threads"] <= before["threads"]


def _facts() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    said = {key: value for key, _, value in (line.partition(":") for line in lines)}
    return {
        "rss": int(said["VmRSS"].split()[0]) << 10,
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": int(said["Threads"]),
    }


class Holed:
    """Samples of which some are bad."""

    def __init__(self, bad, error=ValueError):
        self.bad, self.error = set(bad), error

    def __len__(self):
        return 40

    def __getitem__(self, i):
        if i in self.bad:
            raise self.error("gone")
        return np.full(3, i, np.float32), i % 2


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_what_stands_for_bad_samples_is_said(policy) -> None:
    data = DataModule.from_datasets(
        Holed([]), val=0.25, on_bad_sample=policy, max_bad_share=0.2, num_workers=1
    )
    bad = sorted(data.rows("val")[[2, 5]].tolist())
    data = DataModule.from_datasets(
        Holed(bad), val=0.25, on_bad_sample=policy, max_bad_share=0.2, num_workers=1
    )
    found = data.verify(progress=False)
    assert list(found["val"]) == bad
    assert all("raised ValueError: gone" in why for why in found["val"].values())
    said = rf"2 samples of val are bad, .* in rows {bad[0]}, {bad[1]}"
    with pytest.warns(DataWarning, match="arrays: " + said):
        data.arrays("val")
    with pytest.warns(DataWarning, match="predict: " + said):
        hl.predict(nn.Linear(3, 2), data)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_is_named(error) -> None:
    data = DataModule(Holed([3], error), batch_size=8, shuffle=False)
    with pytest.raises(DataError, match=rf"\[3\]: raised {error.__name__}: gone"):
        list(data.train_batches(0))


def test_a_usual_name_beside_x_is_the_target() -> None:
    data = DataModule([{"x": np.float32([i, 1]), "label": i % 2} for i in range(8)], batch_size=8)
    batch = next(data.train_batches(0))
    np.testing.assert_array_equal(batch["y"], batch["x"][:, 0] % 2)
