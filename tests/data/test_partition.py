"""Splits: disjoint, complete, stratified to within a row, groups whole, the same for a seed."""

import numpy as np
import pytest
from hotloop import _core
from hotloop.data.module import DataModule
from hotloop.data.partition import apportion
from hotloop.errors import ConfigError, DataError
from hypothesis import given, settings
from hypothesis import strategies as st

ROWS = st.integers(3, 200)
SHARE = st.one_of(st.none(), st.floats(0.01, 0.45), st.integers(1, 30))


HOW = st.sampled_from(["random", "time"])


def lists_of(data: DataModule) -> dict[str, list[int]]:
    """The same as lists."""
    return {name: rows.tolist() for name, rows in rows_of(data).items()}


def rows_of(data: DataModule) -> dict[str, np.ndarray]:
    """Row numbers by split."""
    found = {}
    for name in ("train", "val", "test"):
        split = data.split(name)
        if split is not None:
            found[name] = np.arange(split.n) if split.rows is None else split.rows
            assert split.n == len(found[name])
            assert found[name].dtype == np.int64
            assert found[name].flags.c_contiguous
    return found


def assert_partition(found: dict[str, np.ndarray], n: int) -> None:
    """Every row in one split, none of them empty, each ascending."""
    assert sorted(np.concatenate(list(found.values())).tolist()) == list(range(n))
    for rows in found.values():
        assert len(rows) > 0
        assert (np.diff(rows) > 0).all()


def make(n: int, y: object = None, **options: object) -> DataModule | None:
    """A DataModule, or None where these shares leave a split empty."""
    try:
        X = np.zeros((n, 1), np.float32)
        return DataModule.from_arrays(X, y, **options)  # type: ignore[arg-type]
    except ValueError as error:
        if any(words in str(error) for words in ("no row", "there are", "groups:")):
            return None
        raise


@given(ROWS, SHARE, SHARE, HOW, st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_splits_are_disjoint_and_complete(n, val, test, how, seed) -> None:
    how = "random" if val is test is None else how  # nothing is drawn
    data = make(n, val=val, test=test, split=how, seed=seed)
    if data is None:
        return
    found = rows_of(data)
    assert_partition(found, n)
    for name, share in (("val", val), ("test", test)):
        assert (name in found) == (share is not None)
        if share is not None:
            assert len(found[name]) == (share if isinstance(share, int) else round(share * n))
    if how == "time":  # nothing is learnt from the future
        joined = np.concatenate([found[k] for k in ("train", "val", "test") if k in found])
        assert joined.tolist() == list(range(n))


@given(
    st.lists(st.integers(3, 40), min_size=1, max_size=8),
    st.floats(0.05, 0.5),
    st.one_of(st.none(), st.floats(0.05, 0.4)),
    st.integers(0, 9),
)
@settings(max_examples=200, deadline=None)
@pytest.mark.filterwarnings("ignore:y. all")
def test_every_class_has_its_share_to_within_one_row(counts, val, test, seed) -> None:
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    n = len(y)
    data = make(n, y, val=val, test=test, seed=seed)
    if data is None:
        return
    found = rows_of(data)
    assert_partition(found, n)
    for rows in found.values():
        for label, count in enumerate(counts):
            assert abs((y[rows] == label).sum() - count * len(rows) / n) < 1


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.data())
@settings(max_examples=300, deadline=None)
def test_apportion_keeps_sums_and_moves_no_cell_by_a_row(counts, data) -> None:
    n = sum(counts)
    if n == 0:
        return
    cuts = sorted(data.draw(st.lists(st.integers(0, n), min_size=1, max_size=4)))
    sizes = np.diff([0, *cuts, n])
    table = apportion(np.array(counts), sizes)
    assert table.sum(axis=1).tolist() == counts
    assert table.sum(axis=0).tolist() == sizes.tolist()
    assert (np.abs(table - np.outer(counts, sizes) / n) < 1).all()
    assert (table >= 0).all()


@given(
    st.lists(st.integers(0, 12), min_size=3, max_size=150),
    SHARE,
    SHARE,
    HOW,
    st.integers(0, 9),
)
@settings(max_examples=200, deadline=None)
def test_groups_stay_whole(groups, val, test, how, seed) -> None:
    how = "random" if val is test is None else how  # nothing is drawn
    data = make(len(groups), groups=groups, val=val, test=test, split=how, seed=seed)
    if data is None:
        return
    found = rows_of(data)
    assert_partition(found, len(groups))
    seen: set[int] = set()
    for rows in found.values():
        own = {groups[row] for row in rows}
        assert not own & seen
        seen |= own


@pytest.mark.parametrize("seed", [0, 7, 2**40])
def test_groups_are_drawn_by_the_seed(seed: int) -> None:
    """Ten groups of two rows: those that come last are the test, those before them validation."""
    data = DataModule.from_arrays(
        np.zeros((20, 1)), val=6, test=4, groups=np.repeat(np.arange(10), 2), seed=seed
    )
    order = _core.permutation(seed, "split", 0, 10)
    for name, groups in (("train", order[:5]), ("val", order[5:8]), ("test", order[8:])):
        assert sorted({row // 2 for row in data.split(name).rows.tolist()}) == sorted(groups)


def test_group_sizes_come_near_the_wish() -> None:
    groups = np.repeat(np.arange(100), 10)
    found = rows_of(make(1000, groups=[f"p{g}" for g in groups], val=0.2, test=0.1))
    assert len(found["val"]) == 200
    assert len(found["test"]) == 100


def test_groups_in_order_keep_the_last_for_test() -> None:
    groups = np.repeat([5, 3, 9, 1], 5)
    found = rows_of(make(20, groups=groups, val=5, test=5, split="time"))
    assert {k: sorted(set(groups[v])) for k, v in found.items()} == {
        "train": [3, 5],
        "val": [9],
        "test": [1],
    }
    X = np.zeros((20, 1), np.float32)
    with pytest.raises(DataError, match="groups: splits by time need groups whose rows follow"):
        DataModule.from_arrays(X, groups=np.arange(20) % 4, val=5, test=5, split="time")


@pytest.mark.parametrize("shuffle", [True, False])
def test_by_time_the_last_rows_are_held_out_whatever_the_order_of_training(shuffle: bool) -> None:
    data = DataModule.from_arrays(
        np.arange(20.0)[:, None], val=0.2, test=3, split="time", shuffle=shuffle
    )
    assert lists_of(data) == {
        "train": [*range(13)],
        "val": [*range(13, 17)],
        "test": [*range(17, 20)],
    }
    seen = np.concatenate([batch["x"][:, 0] for batch in data.train_batches()])
    assert (seen.tolist() == sorted(seen)) is not shuffle


def test_a_gap_is_in_no_split() -> None:
    found = lists_of(make(20, val=4, test=3, split="time", gap=2))
    assert found == {"train": [*range(9)], "val": [*range(11, 15)], "test": [*range(17, 20)]}
    found = lists_of(make(20, test=0.25, split="time", gap=3))
    assert found == {"train": [*range(12)], "test": [*range(15, 20)]}


def test_a_gap_beside_rows_given_by_hand() -> None:
    found = lists_of(make(10, val=[0, 9], test=2, split="time", gap=1))
    assert found == {"train": [*range(1, 6)], "val": [0, 9], "test": [7, 8]}


def test_without_shuffling_random_splits_are_those_of_the_seed() -> None:
    shuffled = lists_of(make(50, val=10))
    assert lists_of(make(50, val=10, split="random", shuffle=False)) == shuffled
    assert lists_of(make(50, val=10, split="random")) == shuffled
    assert lists_of(make(50, val=[3, 4], shuffle=False))["val"] == [3, 4]  # nothing to draw


@pytest.mark.parametrize("none", [None, 0, 0.0, np.int64(0), np.float32(0)])
@pytest.mark.parametrize("name", ["val", "test"])
def test_zero_rows_are_no_split(name: str, none: object) -> None:
    other = {"val": "test", "test": "val"}[name]
    assert lists_of(make(20, **{name: none})) == {"train": [*range(20)]}
    assert set(lists_of(make(20, **{name: none, other: 5}))) == {"train", other}
    assert set(lists_of(make(20, **{name: none}, shuffle=False))) == {"train"}


def test_only_the_seed_decides() -> None:
    y = np.arange(90) % 3
    a, b, c = (rows_of(make(90, y, val=0.3, seed=s))["val"] for s in (1, 1, 2))
    assert a.tolist() == b.tolist()
    assert a.tolist() != c.tolist()


def test_a_rare_class_turns_stratification_off_and_is_named_when_asked_for() -> None:
    y = np.array([0] * 20 + [1])
    assert_partition(rows_of(make(21, y, val=5)), 21)
    with pytest.raises(ValueError, match=r"stratify: .* class 1 with 1; drop it"):
        DataModule.from_arrays(np.zeros((21, 1)), y, val=5, stratify=True)


def test_rows_given_by_hand() -> None:
    found = rows_of(make(10, val=[9, 1], test=np.arange(10) == 4))
    assert found["val"].tolist() == [1, 9]
    assert found["test"].tolist() == [4]
    assert_partition(found, 10)
    found = rows_of(make(10, val=range(7, 10), test=2))
    assert found["val"].tolist() == [7, 8, 9]
    assert_partition(found, 10)


def test_no_shares_means_all_rows() -> None:
    data = make(10)
    assert data is not None
    assert data.split("train").rows is None
    assert data.split("val") is None
    assert data.split("test") is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"val": -0.1}, r"val: a fraction must lie between 0 and 1, got -0.1"),
        ({"val": 1.0}, r"val: .*got 1.0; write val=1 for that many rows"),
        ({"val": -0.2}, r"val: .*got -0.2"),
        ({"val": float("nan")}, r"val: .*got nan"),
        ({"val": True}, r"val: must be a fraction, a count.*got True"),
        ({"val": "0.2"}, r"val: must be a fraction.*got '0.2'"),
        ({"val": -1}, r"val: a count must be at least 0, got -1; write val=None"),
        ({"val": False}, r"val: must be a fraction, a count"),
        ({"val": 2, "shuffle": False}, r"split: .*write split='time' for the last ones, split='r"),
        ({"test": 0.2, "shuffle": False}, r"split: shuffle=False is about the order of training"),
        ({"val": 2, "split": "chronological"}, r"split: must be 'random' or 'time', got 'chron"),
        ({"val": 2, "gap": 1}, r"gap: .* got gap=1 without split='time'"),
        ({"gap": 1, "split": "time"}, r"gap: .* got gap=1 without a fraction or count"),
        ({"val": 2, "gap": -1, "split": "time"}, r"gap: .*got -1"),
        ({"val": 2, "gap": 1, "split": "time", "groups": range(10)}, r"gap: whole groups"),
        ({"val": 3, "test": 3, "gap": 2, "split": "time"}, r"and gap=2 of 10 rows leave no row"),
        ({"val": 12}, r"val: 12 rows were asked for, there are 10"),
        ({"val": 0.01}, r"val: 0.01 of 10 rows is no row"),
        ({"val": 6, "test": 4}, r"val=6 and test=4 of 10 rows leave no row to train on"),
        ({"val": range(10)}, r"leave no row to train on"),
        ({"val": [1, 1]}, r"val: row 1 was given twice"),
        ({"val": [10]}, r"val: row numbers must lie between 0 and 9, got 10"),
        ({"val": [-1]}, r"val: row numbers must lie between 0 and 9, got -1"),
        ({"val": []}, r"val: no rows were given"),
        ({"val": [0.5]}, r"val: row numbers must be a 1-d array of integers, got dtype float64"),
        ({"val": [True, False]}, r"val: a mask must have shape \(10,\), got \(2,\)"),
        ({"val": [1, 2], "test": [2, 3]}, r"test: row 2 is in val already"),
        ({"val": 2, "groups": [1] * 9}, r"groups: .* shape \(10,\), got shape \(9,\)"),
        ({"val": 2, "groups": [1] * 10}, r"groups: 2 splits need as many groups, got 1"),
        ({"val": 2, "groups": [np.nan] + [1.0] * 9}, r"groups: row 0 is NaN"),
        ({"val": [0], "groups": [1] * 10}, r"groups: the group of row 0 is in train and in val"),
        ({"val": 2, "stratify": True}, r"stratify: needs one class per row"),
        ({"val": 2, "stratify": "yes"}, r"stratify: must be True, False or 'auto', got 'yes'"),
        ({"val": 2, "stratify": True, "split": "time"}, r"stratify: .*split='time'"),
        ({"val": 2, "stratify": True, "groups": range(10)}, r"stratify: whole groups"),
    ],
)
def test_wrong_shares_are_named(options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        DataModule.from_arrays(np.zeros((10, 2)), **options)


def test_one_row_cannot_be_divided() -> None:
    with pytest.raises(ValueError, match=r"val: 0.5 of 1 rows is no row"):
        DataModule.from_arrays(np.zeros((1, 2)), val=0.5)


@pytest.mark.parametrize("shares", [{}, {"val": 0}, {"val": [1, 2]}, {"test": [18, 19]}])
def test_an_order_of_splits_that_are_not_drawn_is_refused(shares) -> None:
    with pytest.raises(ConfigError, match=r"^split: .*'time' without a fraction or count"):
        make(20, **shares, split="time")


@pytest.mark.parametrize("wish", [np.arange(20) % 2, [0, 1] * 10, "yes", 1])
def test_stratify_says_what_it_takes(wish) -> None:
    with pytest.raises(ConfigError, match=r"^stratify: must be True, False or 'auto', got "):
        make(20, val=5, stratify=wish)
