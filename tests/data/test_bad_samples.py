"""Bad samples: what stands in their place is of their own split, whatever divides the data."""

from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from data.spawned import Sparse
from hotloop import DataModule, nn
from hotloop.errors import ConfigError, DataError
from needs import take_library
from train.recipes import quiet

N = 60
BAD = {2, 3, 11, 17, 18, 19, 33, 40, 58, 59}
CATEGORIES = 3


def replacing(**options: Any) -> DataModule:
    """Samples that say their number, some of them bad."""
    given = {"on_bad_sample": "replace", "max_bad_share": 1.0, "batch_size": 8, "num_workers": 2}
    return DataModule.from_datasets(Sparse(N, BAD), **{**given, **options})


def standing(rows: np.ndarray) -> list[int]:
    """Who stands in the places of these rows of a split: the next good one of them."""
    good = [row for row in sorted(set(rows.tolist())) if row not in BAD]
    return [row if row in good else next((g for g in good if g > row), good[0]) for row in rows]


def numbers(batches: Any) -> list[int]:
    return [int(x) for batch in batches for x in np.ravel(batch["x"])]


def check(data: DataModule) -> None:
    """Every way to read a split has its own rows alone, each bad one's place taken by the next."""
    for name in ("train", "val", "test"):
        if data.split(name) is None:
            continue
        rows = data.rows(name)
        want = standing(rows)
        assert numbers(data.batches_in_order(name)) == want
        with pytest.warns(hl.DataWarning, match=f"samples of {name} are bad"):
            X, y = data.arrays(name)
        assert X[:, 0].tolist() == want
        assert y[:, 0].tolist() == want
        if name == "train":
            assert sorted(numbers(data.train_batches())) == sorted(want)
    known = set().union(*(data._known_bad(name) for name in data._splits))
    assert known == BAD & set(np.concatenate([data.rows(name) for name in data._splits]).tolist())


@pytest.mark.parametrize("worker", ["thread", "process"])
def test_a_sample_of_the_same_split(worker: str) -> None:
    check(replacing(val=0.25, test=10, worker_type=worker))


def test_of_folds_and_subsets() -> None:
    data = replacing(test=10)
    for fold in data.folds(3):
        check(fold)
    check(data.fold(1, 4, split="time"))
    check(replacing(val=0.25).subset(0.6))
    check(data.subset(data.rows("train")[::2]))


@pytest.mark.filterwarnings("ignore::hotloop.DataWarning")
def test_training_and_scores_are_those_of_the_split() -> None:
    data = replacing(val=0.25, test=10)
    x = np.arange(N, dtype=np.float32)
    for name in ("train", "val", "test"):
        rows = data.rows(name)
        x[rows] = standing(rows)
    arrays = DataModule.from_arrays(
        x[:, None], x[:, None], val=0.25, test=10, stratify=False, batch_size=8
    )
    found = []
    for each in (data, arrays):
        hl.manual_seed(0)
        net = nn.Linear(1, 1)
        config = quiet(max_epochs=2, loss="mse", lr=1e-4, precision="fp32")
        result = hl.train(net, each, config)
        scores = hl.evaluate(result, each, split="test")
        found.append((net.weight.numpy().item(), result.history["val_loss"], scores["loss"]))
        predicted = hl.predict(net, each, split="val", batch_size=1)
        found[-1] = (*found[-1], predicted.ravel().tolist())
    assert found[0] == found[1]


@pytest.mark.filterwarnings("ignore::hotloop.DataWarning")
def test_resuming_in_an_epoch(tmp_path: Path) -> None:
    """What stands in a bad sample's place does not depend on where training went on."""
    config = quiet(
        max_epochs=3, loss="mse", lr=1e-4, precision="fp32", output_dir=tmp_path,
        save_every="4 steps", enable_checkpointing=True,
    )  # fmt: skip
    whole = hl.train(nn.Linear(1, 1), replacing(val=0.25), config)
    path = tmp_path / "1/checkpoints/step-000000004.safetensors"  # of 6 steps in an epoch
    again = hl.train(
        nn.Linear(1, 1), replacing(val=0.25), resume=path, output_dir=None, save_every=None
    )
    np.testing.assert_array_equal(again.model.weight.numpy(), whole.model.weight.numpy())
    assert again.history["val_loss"] == whole.history["val_loss"]


def test_rows_that_are_never_drawn_stand_in_no_place() -> None:
    weights = np.ones(N)
    weights[[4, 20]] = 0  # the next good ones behind bad ones
    data = replacing(sampler="weighted", weights=weights)
    drawn = [i for epoch in range(5) for i in numbers(data.train_batches(epoch))]
    assert {2, 3, 17, 18, 19} <= BAD
    assert not {4, 20} & set(drawn)


def test_a_split_without_a_good_sample() -> None:
    data = replacing(val=2, split="time")
    assert data.rows("val").tolist() == [58, 59]
    with pytest.raises(DataError, match=r"a good one of its split must stand, got 2 bad ones"):
        next(data.val_batches())


# ---- what is made of them


def test_episodes_replace_within_a_category() -> None:
    categories = np.arange(N) // 5 % CATEGORIES  # so that the next sample may be of another one
    source = replacing(val=0.3)
    options = {"ways": 2, "n": 40, "n_val": 20, "batch_size": 5}
    classes = DataModule.from_datasets(
        Sparse(N, BAD, classes=categories.tolist()), val=0.3, on_bad_sample="replace",
        max_bad_share=1.0,
    )  # fmt: skip
    data = DataModule.episodes(classes, 2, 2, by=categories, **options)
    for name, batches in (("train", data.train_batches()), ("val", data.val_batches())):
        for batch in batches:
            support = batch["x"]["support"][..., 0].astype(int)
            assert set(support.ravel()) <= set(source.rows(name).tolist()) - BAD
            of = categories[support].reshape(-1, 2, 2)
            assert (of == of[..., :1]).all()
            query = batch["x"]["query"][..., 0].astype(int)
            known = np.take_along_axis(of[..., 0], batch["y"], axis=1)
            np.testing.assert_array_equal(categories[query], known)


def test_mapped_samples_are_of_the_split() -> None:
    data = replacing(val=0.25).map(lambda x, y: (x + 0, y))
    for name in ("train", "val"):
        assert numbers(data.batches_in_order(name)) == standing(data.rows(name))
    with pytest.raises(ConfigError, match="cache: keeps each row for every division"):
        replacing(val=0.25).map(lambda x, y: (x, y), cache="ram")


# ---- images


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Any]:
    """30 images whose grey is twice their number, some of them bad, wide ones among them."""
    Image = take_library("PIL.Image")
    files = []
    for i in range(30):
        files.append(str(tmp_path / f"{i:02}.png"))
        Image.fromarray(np.full((8, 8 if i % 3 else 24), 2 * i, np.uint8)).save(files[-1])
        if i in BAD:
            Path(files[-1]).write_bytes(b"no image")
    return {"file": files, "number": np.arange(30, dtype=np.float32) + 0.5}


@pytest.mark.parametrize("size", [8, [(8, 8), (8, 24)]])
@pytest.mark.parametrize("cache", [None, "ram"])
def test_images_of_the_same_split(table: dict[str, Any], size: Any, cache: Any) -> None:
    whole = DataModule.from_image_table(
        table, "file", "number", size, channels="grey", augment="none", val=0.3, test=5,
        on_bad_sample="replace", max_bad_share=1.0, batch_size=4, num_workers=2, cache=cache,
        normalize="standard",
    )  # fmt: skip
    for data in (whole, whole.fold(0, 3), whole.subset(12)):
        for name in ("train", "val", "test"):
            want = standing(data.rows(name))
            found = []
            for batch in data.batches_in_order(name):
                levels = batch["x"].reshape(len(batch["x"]), -1)
                assert (levels == levels[:, :1]).all()
                np.testing.assert_array_equal(levels[:, 0] / 2 + 0.5, batch["y"])
                found += [int(y) for y in batch["y"]]
            assert sorted(found) == sorted(want)
        mean = data.transforms[0][1]["x"][0].item()
        assert mean == pytest.approx(2 * np.mean(standing(data.rows("train"))))
    assert {row for found in whole.bad_samples.values() for row in found} == BAD & set(range(30))


def test_a_shape_whose_only_image_is_bad(table: dict[str, Any]) -> None:
    """The place is taken by one of the split's other shapes."""
    small = {key: values[:12] for key, values in table.items()}
    for i in set(range(12)) - BAD:  # good ones are wide; of bad ones no header says that they are
        Path(small["file"][i]).write_bytes(Path(table["file"][0]).read_bytes())
    data = DataModule.from_image_table(
        small, "file", "number", [(8, 24), (8, 8)], channels="grey", augment="none",
        on_bad_sample="replace", max_bad_share=1.0, normalize=None,
    )  # fmt: skip
    assert [part.n for part in data.split("train").parts] == [9, 3]
    found = [int(y) for batch in data.batches_in_order("train") for y in batch["y"]]
    assert sorted(found) == sorted(standing(np.arange(12)))


# ---- none of a batch is good


@pytest.mark.filterwarnings("ignore::hotloop.DataWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_of_bad_samples_counts_nothing(workers: int) -> None:
    def skipping(n: int, bad: set[int], **options: Any) -> DataModule:
        return DataModule.from_datasets(
            Sparse(n, bad), on_bad_sample="skip", max_bad_share=0.5, num_workers=workers, **options
        )

    x = np.arange(40, dtype=np.float32)[:, None]
    weight = np.ones(40)
    weight[7] = 0
    found = []
    for data in (
        skipping(40, {7}, batch_size=1),
        DataModule.from_arrays(x, x, sample_weight=weight, batch_size=1),
    ):
        hl.manual_seed(0)
        net = nn.Linear(1, 1)
        hl.train(net, data, quiet(max_epochs=2, loss="mse", lr=1e-4, precision="fp32"))
        found.append([p.numpy().tolist() for p in net.parameters()])
    assert found[0] == found[1]
    data = skipping(29, {28}, val=9, split="time", batch_size=4)
    batches = list(data.val_batches())
    assert [batch["weight"].tolist() for batch in batches] == [[1.0] * 4, [1.0] * 4, [0.0]]
    assert set(numbers(batches)) <= set(range(20, 28))  # and no training sample is looked at


# ---- how many may be bad


def test_no_share_is_none() -> None:
    with pytest.raises(DataError, match="at most 0 of 60 samples may be bad, got 1: "):
        list(replacing(max_bad_share=0.0).train_batches())
    for share in (1e-9, 0.001):  # one at least
        data = DataModule(Sparse(N, {5}), on_bad_sample="skip", max_bad_share=share, batch_size=8)
        assert len(list(data.train_batches())) == 8


def test_no_share_of_images_is_none(table: dict[str, Any]) -> None:
    data = DataModule.from_image_table(
        table, "file", "number", 8, on_bad_sample="skip", max_bad_share=0.0
    )
    with pytest.raises(DataError, match="at most 0 of 30 files may be bad, got 1"):
        list(data.train_batches())
