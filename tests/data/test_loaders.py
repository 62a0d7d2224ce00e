"""What loaders, samplers and subsets say: which samples are trained on, validated and predicted."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from data.spawned import Numbers
from hotloop import DataModule, nn
from hotloop.errors import ConfigError, DataError
from needs import take_library
from train.recipes import quiet

N = 40


class Points:
    """Sample i is (i, its class), made one by one."""

    def __init__(self, n: int = N, bad: tuple[int, ...] = ()) -> None:
        self.n, self.bad = n, bad

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        if i in self.bad:
            raise OSError("broken")
        if not 0 <= i < self.n:
            raise IndexError(i)
        return np.float32([i]), i % 2


class Held:
    """As PyTorch's TensorDataset."""

    def __init__(self, *tensors: Any) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, i: int) -> Any:
        return tuple(tensor[i] for tensor in self.tensors)


class Subset:
    """As PyTorch's."""

    def __init__(self, dataset: Any, indices: Any) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Any:
        return self.dataset[self.indices[i]]


for kind in (Held, Subset):
    for name in ("__len__", "__getitem__"):
        getattr(kind, name).__module__ = "torch.utils.data.dataset"


def held(n: int = N) -> Held:
    return Held(np.arange(n, dtype=np.float32)[:, None], np.arange(n) % 2)


def usual(name: str, n: int, rows: Any = ()) -> Any:
    """A sampler of PyTorch's."""
    own = {"__len__": lambda self: n, "__iter__": lambda self: iter(rows)}
    return type(name, (), {"__module__": "torch.utils.data.sampler", **own})()


def loader(dataset: Any, sampler: Any = None, **options: Any) -> Any:
    sampler = usual("SequentialSampler", len(dataset)) if sampler is None else sampler
    made = {"dataset": dataset, "batch_size": 8, "sampler": sampler, "collate_fn": None}
    return SimpleNamespace(**(made | options))


def doubled(samples: list[Any]) -> Any:
    return np.stack([x for x, _ in samples]) * 2, np.array([y for _, y in samples])


def seen(data: DataModule, split: str = "train", epoch: int = 0) -> list[int]:
    """The samples of an epoch by what they hold, in the order of their batches."""
    batches = data.train_batches(epoch) if split == "train" else data.batches_in_order(split)
    return np.concatenate([batch["x"][:, 0] for batch in batches]).astype(int).tolist()


MAKES = pytest.mark.parametrize("make", [Points, held])


class Drawn:
    """A sampler with another order in each epoch."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.epoch = np.asarray(rows), 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return iter(np.random.default_rng(self.epoch).permutation(self.rows).tolist())


# ---- samplers of validation and test


@MAKES
def test_a_sampler_says_what_validates_and_tests(make: Any) -> None:
    order = [33, 31, 30, 39, 35]
    data = DataModule(
        loader(make(), Drawn(range(30))),
        loader(make(), order),
        loader(make(), batch_size=None, batch_sampler=[[20, 21, 22], [25]]),
        num_workers=0,
    )
    assert sorted(seen(data)) == [*range(30)]
    assert seen(data, "val") == data.rows("val").tolist() == order
    assert seen(data, "test") == data.rows("test").tolist() == [20, 21, 22, 25]
    X, _ = data.arrays("val")
    np.testing.assert_array_equal(X[:, 0], order)
    net = nn.Linear(1, 2)
    hl.train(net, data, quiet(max_epochs=1, precision="fp32"))
    np.testing.assert_allclose(hl.predict(net, data, split="val"), net(X), rtol=1e-6)
    for split in ("val", "test"):
        want = hl.evaluate(net, data.arrays(split))["loss"]
        assert hl.evaluate(net, data, split=split)["loss"] == pytest.approx(want, rel=1e-6)
    shuffled = DataModule(make(), loader(make(), usual("RandomSampler", N)))
    assert seen(shuffled, "val") == [*range(N)]
    with pytest.raises(DataError, match="val_dataset: row numbers must lie between 0 and 39"):
        DataModule(make(), loader(make(), [5, 40]))
    with pytest.raises(DataError, match="test_dataset: the sampler gives no samples"):
        DataModule(make(), None, loader(make(), []))


def test_a_sampler_of_a_subset_that_validates() -> None:
    inner = Subset(held(), [30, 31, 32, 33])
    data = DataModule(held(), loader(inner, [3, 0]), loader(Subset(inner, [2, 1]), [1]))
    assert seen(data, "val") == data.rows("val").tolist() == [33, 30]
    assert seen(data, "test") == data.rows("test").tolist() == [31]
    with pytest.raises(DataError, match="val_dataset: row numbers must lie between 0 and 3, got 4"):
        DataModule(held(), loader(inner, [4]))


def test_a_run_goes_on_with_the_samples_that_validated(tmp_path: Path) -> None:
    """A sampler that draws at random must draw the same ones again."""

    def run(seed: int, resume: Any = False, **options: Any) -> Any:
        chosen = np.random.default_rng(seed).permutation(N)[:8].tolist()
        data = DataModule(Points(), loader(Points(), chosen), num_workers=0)
        config = quiet(
            precision="fp32", enable_checkpointing=True, output_dir=str(tmp_path / "a"), **options
        )
        hl.manual_seed(0)
        return hl.train(nn.Linear(1, 2), data, config, resume=resume)

    run(1, max_epochs=2)
    assert run(1, tmp_path / "a", max_epochs=3).epochs == 3
    with pytest.raises(hl.CheckpointError, match="val has other rows than when the run began"):
        run(2, tmp_path / "a", max_epochs=4)


def test_samplers_of_a_module_in_lightnings_manner() -> None:
    class Module:
        def train_dataloader(self) -> Any:
            return loader(Points(), range(30))

        def val_dataloader(self) -> Any:
            return [loader(Points(bad=(0,)), range(30, 40))]  # whose first sample is not read

        def test_dataloader(self) -> Any:
            return loader(held(), range(5, 8))

    data = DataModule.from_datasets(Module())
    assert seen(data, "val") == [*range(30, 40)]
    assert seen(data, "test") == [5, 6, 7]
    own = DataModule.from_datasets(Module(), Points(12))
    assert own.rows("val").tolist() == [*range(12)]  # what is given stands before the module's


def test_a_sampler_of_validation_in_buckets() -> None:
    class Ragged:
        def __len__(self) -> int:
            return 20

        def __getitem__(self, i: int) -> Any:
            if i == 0:
                raise OSError("broken")
            return np.full((1 + i % 4, 2), i, np.float32), i % 2

    train = [Ragged()[i] for i in range(1, 20)]
    data = DataModule(train, loader(Ragged(), [7, 2, 18]), buckets=[2, 4])
    assert data.rows("val").tolist() == [7, 2, 18]
    found = sorted(int(x) for batch in data.val_batches() for x in batch["x"][0][:, 0, 0])
    assert found == [2, 7, 18]


# ---- training's sampler


def test_usual_samplers_have_every_sample() -> None:
    """Those of another length, and a user's own of the same name, give what they say."""
    data = DataModule(loader(Points(), usual("RandomSampler", N)))
    assert data.shuffle
    assert len(data) == N
    some = DataModule(loader(Points(), usual("RandomSampler", 3, [7, 1, 5])))
    assert seen(some) == [7, 1, 5]
    first = DataModule(loader(Points(), usual("SequentialSampler", 4, range(4))))
    assert seen(first) == [0, 1, 2, 3]

    class SequentialSampler:
        def __iter__(self) -> Any:
            return iter([9, 8])

    assert seen(DataModule(loader(Points(), SequentialSampler()))) == [9, 8]


def test_an_order_that_changes_is_one_when_it_is_evaluated() -> None:
    data = DataModule(loader(Points(), Drawn(range(30))), num_workers=0)
    epochs = [seen(data, epoch=epoch) for epoch in (0, 1, 2)]
    assert len({tuple(order) for order in epochs}) == 3
    assert all(sorted(order) == [*range(30)] for order in epochs)
    assert seen(data, epoch=1) == epochs[1]
    rows = data.rows("train").tolist()
    assert rows == epochs[0]
    for _ in range(2):
        np.testing.assert_array_equal(data.arrays("train")[0][:, 0], rows)
        seen(data, epoch=1)
    for what in (data.fold, data.folds):
        with pytest.raises(ConfigError, match="cannot be divided again"):
            what(0, 3) if what == data.fold else what(3)
    with pytest.raises(ConfigError, match="cache: keeps each sample"):
        data.map(lambda x, y: (x, y), cache="ram")
    with pytest.raises(ConfigError, match="source: a sampler may give other samples"):
        DataModule.episodes(data, 1, 1, by=np.arange(N) % 2)
    with pytest.raises(ConfigError, match="'balanced' draws training rows, got a loader with"):
        DataModule(loader(Points(), Drawn(range(30))), sampler="balanced")


def test_bad_samples_are_known_by_their_numbers_in_every_order() -> None:
    sampler = Drawn(range(30))
    options = {"on_bad_sample": "skip", "max_bad_share": 0.1, "num_workers": 0}
    data = DataModule(loader(Points(bad=(17,)), sampler, batch_size=5), **options)
    for epoch in range(4):
        batches = list(data.train_batches(epoch))
        x = np.concatenate([batch["x"][:, 0] for batch in batches])
        weight = np.concatenate([batch["weight"] for batch in batches])
        assert sorted(x[weight > 0]) == [i for i in range(30) if i != 17]
    assert list(data.bad_samples["train"]) == [17]
    assert list(data.verify(progress=False)["train"]) == [17]
    odd = Drawn(range(1, 30, 2))
    points = loader(Points(bad=(17,)), odd, batch_size=5)
    data = DataModule(points, points, on_bad_sample="replace", max_bad_share=0.1)
    of_validation = [batch["x"][:, 0] for batch in data.batches_in_order("val")]
    wanted = sorted(19 if i == 17 else i for i in range(1, 30, 2))  # the next odd one, and not 18
    for epoch in range(3):
        of_training = [batch["x"][:, 0] for batch in data.train_batches(epoch)]
        for x in (of_training, of_validation):
            assert sorted(np.concatenate(x)) == wanted


def test_a_sampler_and_processes() -> None:
    """The order is drawn here, and is that of threads."""
    options = {"batch_size": 8, "num_workers": 2}
    data = DataModule(Numbers(50), sampler=Drawn(range(0, 50, 2)), worker_type="process", **options)
    threads = DataModule(Numbers(50), sampler=Drawn(range(0, 50, 2)), **options)
    for epoch in (0, 1):
        assert seen(data, epoch=epoch) == seen(threads, epoch=epoch)
    assert seen(data) != seen(data, epoch=1)
    with pytest.warns(hl.DataWarning, match="1 bad sample of train"):
        hl.train(
            nn.Linear(3, 3),
            DataModule(
                Numbers(50, 20, "raise"), sampler=Drawn(range(0, 50, 2)), worker_type="process",
                on_bad_sample="skip", **options,
            ),
            quiet(max_epochs=2, precision="fp32"),
        )  # fmt: skip


def test_training_with_a_sampler_is_that_of_its_rows() -> None:
    order = [3, 11, 5, 8, 29, 0, 1, 2]
    made = [DataModule(make(), sampler=order, batch_size=4) for make in (Points, held)]
    X, y = np.float32(order)[:, None], np.array(order) % 2
    made.append(DataModule.from_arrays(X, y, shuffle=False, batch_size=4))
    weights = []
    for data in made:
        hl.manual_seed(0)
        result = hl.train(nn.Linear(1, 2), data, quiet(max_epochs=2, precision="fp32"))
        weights.append(result.model.weight.numpy())
    np.testing.assert_array_equal(weights[0], weights[2])
    np.testing.assert_array_equal(weights[1], weights[2])


# ---- fractions of datasets


def test_a_fraction_beside_a_sampler_is_refused() -> None:
    for given in (loader(Points(), Drawn(range(30))), loader(held(), [1, 2, 3, 4])):
        for name in ("val", "test"):
            with pytest.raises(ConfigError, match=f"{name}: is of rows .* got a sampler of train"):
                DataModule.from_datasets(given, **{name: 0.25})
    with pytest.raises(ConfigError, match="groups: is of rows"):
        DataModule.from_datasets(Points(), sampler=[1, 2], groups=np.arange(N))

    class Module:
        def train_dataloader(self) -> Any:
            return Points()

        val_dataloader = train_dataloader

    with pytest.raises(ConfigError, match="val: fractions and datasets of their own"):
        DataModule.from_datasets(Module(), 0.2)


@pytest.mark.parametrize("how", ["random", "time"])
def test_a_fraction_of_a_subset_is_of_its_rows(how: str) -> None:
    indices = np.random.default_rng(0).permutation(np.arange(20, 40))
    nested = Subset(Subset(held(), np.arange(40)[::-1]), 39 - indices)
    for given in (Subset(held(), indices), nested, loader(Subset(held(), indices))):
        data = DataModule.from_datasets(given, val=0.25, test=2, split=how)
        rows = {name: data.rows(name).tolist() for name in ("train", "val", "test")}
        assert {name: len(of) for name, of in rows.items()} == {"train": 13, "val": 5, "test": 2}
        assert sorted(itertools.chain(*rows.values())) == [*range(20, 40)]
        assert sorted(seen(data)) == sorted(rows["train"])
        assert seen(data, "val") == rows["val"]
        if how == "time":  # in the order of the subset
            assert [*itertools.chain(*rows.values())] == indices.tolist()
        pool = rows["train"] + rows["val"]
        folds = data.folds(3)
        found = [row for fold in folds for row in fold.rows("val").tolist()]
        if how == "random":
            assert sorted(found) == sorted(pool)
            counts = [np.bincount(fold.rows("val") % 2) for fold in folds]
            assert np.ptp(counts, axis=0).max() <= 1
        else:
            assert found == pool[-len(found) :]
        for fold in folds:
            both = [*fold.rows("train"), *fold.rows("val")]
            assert not set(both) & set(rows["test"])
            assert len(set(both)) == len(both)


def test_rows_that_a_subset_has_twice_are_not_divided() -> None:
    for dataset in (held(), Points()):
        twice = Subset(dataset, [0, 0, 1, 2, 3] * 10)
        assert len(DataModule(twice)) == 50  # drawn so often is fine
        with pytest.raises(DataError, match="val: a row may be in one part, got row 0 twice"):
            DataModule.from_datasets(twice, val=0.2)
        with pytest.raises(DataError, match="folds: a row may be in one part, got row 0 twice"):
            DataModule.from_datasets(twice).folds(2)


def test_indices_of_subsets_are_row_numbers() -> None:
    mask = np.arange(N) < 5
    with pytest.raises(DataError, match=r"train_dataset.indices: .* got dtype bool .*flatnonzero"):
        DataModule(Subset(held(), mask))
    with pytest.raises(DataError, match=r"train_dataset.indices: .* between 0 and 1, got 2"):
        DataModule(Subset(Subset(held(), [4, 5]), [0, 2]))


def test_arrays_of_a_dataset_are_divided_as_arrays() -> None:
    """By class, with groups, gaps and balanced sampling."""
    X, y = np.arange(60.0)[:, None], np.arange(60) % 10 // 7  # 7 of 10 are of class 0
    for options in (
        {},
        {"stratify": True},
        {"stratify": False},
        {"groups": np.arange(60) // 5},
        {"split": "time", "gap": 3},
        {"sampler": "balanced", "stratify": False},
    ):
        want = DataModule.from_arrays(X, y, val=0.25, test=10, **options)
        data = DataModule.from_datasets(Held(X, y), val=0.25, test=10, **options)
        for name in ("train", "val", "test"):
            np.testing.assert_array_equal(data.rows(name), want.rows(name))
        for got, wanted in zip(data.folds(3), want.folds(3), strict=True):
            np.testing.assert_array_equal(got.rows("val"), wanted.rows("val"))
        assert seen(data) == seen(want)


def test_groups_of_samples_go_whole() -> None:
    groups = np.arange(N) // 4
    for given, of in (
        (Points(), np.arange(N)),
        (Subset(held(), np.arange(N)[::-2]), np.arange(N)[::-2]),
    ):
        data = DataModule.from_datasets(given, val=0.2, groups=groups[of])
        parts = [data, *data.folds(3), *DataModule.from_datasets(given, groups=groups[of]).folds(3)]
        for part in parts:
            train, val = (set(groups[part.rows(name)]) for name in ("train", "val"))
            assert val
            assert not train & val
    with pytest.raises(DataError, match=r"groups: must have one entry per row, shape \(20,\)"):
        DataModule.from_datasets(Subset(held(), range(20)), val=0.2, groups=groups)
    with pytest.raises(ConfigError, match="stratify: needs one class per row"):
        DataModule.from_datasets(Points(), val=0.2, stratify=True)
    with pytest.raises(ConfigError, match="gap: rows are left out before splits by time"):
        DataModule.from_datasets(Points(), val=0.2, gap=2)


# ---- what a dataset or loader makes of arrays


def test_what_a_dataset_makes_of_its_arrays_is_trained_on() -> None:
    class Scaled(Held):
        def __getitem__(self, i: int) -> Any:
            x, y = super().__getitem__(i)
            return x * 1000, y

    class Shorter(Held):
        def __len__(self) -> int:
            return 5

    class Transformed(Subset):
        def __getitem__(self, i: int) -> Any:
            x, y = super().__getitem__(i)
            return x + 0.5, y

    X, y = held().tensors
    data = DataModule(Scaled(X, y), shuffle=False)
    assert next(data.train_batches())["x"][:3, 0].tolist() == [0, 1000, 2000]
    assert len(DataModule(Shorter(X, y))) == 5
    data = DataModule.from_datasets(Transformed(held(), range(20)), Subset(Scaled(X, y), [3]))
    assert sorted(next(data.train_batches())["x"][:, 0]) == [i + 0.5 for i in range(20)]
    assert next(data.val_batches())["x"].tolist() == [[3000]]
    mixed = DataModule(held(), Transformed(held(), range(20)))  # validation alone makes some
    assert mixed.split("train").is_streamed
    assert sorted(seen(mixed)) == [*range(N)]
    assert hl.train(nn.Linear(1, 2), Scaled(X, y), quiet(max_epochs=1)).history["loss"][0] > 100
    assert not DataModule(held()).split("train").is_streamed


def test_collate_fn_of_a_loader_of_arrays() -> None:
    data = DataModule(
        loader(held(), collate_fn=doubled), loader(held()), loader(held(), collate_fn=doubled)
    )
    assert seen(data) == [2 * i for i in range(N)]
    assert seen(data, "val") == [*range(N)]  # that of validation's own loader
    assert seen(data, "test") == [2 * i for i in range(N)]
    data = DataModule(loader(held()), loader(held(), collate_fn=doubled))
    assert (sorted(seen(data)), seen(data, "val")) == ([*range(N)], [2 * i for i in range(N)])
    data = DataModule(loader(Points(), collate_fn=doubled), Points(), Points(5), num_workers=0)
    assert seen(data, "val") == [2 * i for i in range(N)]  # a dataset goes as training does
    data = DataModule(loader(Points()), loader(Points()), collate_fn=doubled)
    assert seen(data, "val") == [2 * i for i in range(N)]  # as the user says

    def default_collate(samples: list[Any]) -> Any:
        return doubled(samples)

    assert seen(DataModule(loader(Points(), collate_fn=default_collate))) == [
        2 * i for i in range(N)
    ]
    with pytest.raises(DataError, match="collate_fn: raised ZeroDivisionError"):
        DataModule(held(), collate_fn=lambda samples: 1 / 0)


def test_options_of_samples_beside_arrays() -> None:
    X, y = held().tensors
    for options in (
        {"collate_fn": doubled},
        {"target": "y"},
        {"on_bad_sample": "skip"},
        {"worker_type": "process"},
    ):
        (name,) = options
        with pytest.raises(ConfigError, match=f"{name}: is of datasets that make samples, got arr"):
            DataModule((X, y), **options)
    with pytest.raises(ConfigError, match=r"collate_fn: .* got arrays as val_dataset"):
        DataModule(Points(), (X, y), collate_fn=doubled)
    bad = Held(np.where(X == 5, np.nan, X), y)
    data = DataModule(bad, on_bad_sample="skip", max_bad_share=0.1, num_workers=0)
    list(data.train_batches())
    assert list(data.bad_samples["train"]) == [5]


@pytest.mark.parity
def test_loaders_of_torch() -> None:
    torch = take_library("torch")
    of = torch.utils.data
    X = torch.arange(40.0)[:, None]
    whole = of.TensorDataset(X, torch.arange(40) % 2)
    train = of.DataLoader(whole, batch_size=8, sampler=of.SubsetRandomSampler(range(30)))
    val = of.DataLoader(whole, batch_size=8, sampler=of.SubsetRandomSampler(range(30, 40)))
    drawn = of.RandomSampler(whole, num_samples=10)
    data = DataModule.from_datasets(train, val, of.DataLoader(whole, sampler=drawn))
    assert sorted(seen(data)) == sorted(seen(data, epoch=1)) == [*range(30)]
    assert seen(data) != seen(data, epoch=1)
    assert sorted(seen(data, "val")) == [*range(30, 40)]
    assert seen(data, "val") == data.rows("val").tolist()
    assert len(set(seen(data, "test"))) == 10
    hl.train(nn.Linear(1, 2), data, quiet(max_epochs=2))
    assert len(DataModule(of.DataLoader(whole, sampler=drawn))) == 10
    assert DataModule(of.DataLoader(whole, shuffle=True)).shuffle
    part, rest = of.random_split(whole, [30, 10])
    data = DataModule.from_datasets(of.Subset(part, range(20)), val=0.25)
    chosen = {part.indices[i] for i in range(20)}
    assert {*seen(data), *seen(data, "val")} == chosen
    assert not data.split("train").is_streamed
    folds = DataModule.from_datasets(of.DataLoader(part, shuffle=True)).folds(3)
    assert sorted(row for fold in folds for row in seen(fold, "val")) == sorted(part.indices)
    assert DataModule(of.DataLoader(part), of.DataLoader(rest)).rows("val").tolist() == rest.indices

    class Scaled(of.TensorDataset):
        def __getitem__(self, i: int) -> Any:
            x, y = super().__getitem__(i)
            return x * 1000, y

    scaled = Scaled(*whole.tensors)
    for dataset in (scaled, of.Subset(scaled, range(40))):
        assert sorted(seen(DataModule(dataset))) == [1000 * i for i in range(40)]
    collated = of.DataLoader(whole, collate_fn=lambda s: (torch.stack([x for x, _ in s]) * 2,))
    assert seen(DataModule(collated)) == [2 * i for i in range(40)]
    balanced = DataModule.from_datasets(whole, val=0.25, sampler="balanced")
    assert not {*seen(balanced)} & {*seen(balanced, "val")}
