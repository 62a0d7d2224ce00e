"""Sequences of several lengths: buckets, batches, order, splits, wrong input."""

import itertools

import hotloop as hl
import numpy as np
import pytest
from hotloop.data.batching import Group, limit_batches, order_batches
from hotloop.data.padding import Sequences, find_buckets, inside_of, say_inside
from hotloop.errors import ConfigError, DataError
from needs import take_library

N = 90


def lengths_of(n: int = N, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 31, n)


def make(n: int = N, **options: object) -> hl.DataModule:
    """Sequences whose rows say the number of the sequence and of the row, from 1 on."""
    X = [
        np.stack([np.full(length, i + 1), np.arange(length) + 1], 1).astype(np.float32)
        for i, length in enumerate(lengths_of(n))
    ]
    options = {"buckets": [5, 12, 30], "batch_size": 8, **options}
    return hl.DataModule.from_sequences(X, np.arange(n) % 3, **options)


# ---- buckets


def padded_rows(buckets: tuple[int, ...], lengths: np.ndarray) -> int:
    ends = np.array(sorted(buckets))
    return int(ends[np.searchsorted(ends, lengths)].sum())


@pytest.mark.parametrize("seed", range(20))
def test_no_buckets_of_that_number_have_less_padding(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, 40) ** 2
    least = int(rng.integers(1, 12))
    found = find_buckets(lengths, least)
    assert found == sorted(set(found))
    assert found[-1] == lengths.max()
    counts = np.bincount(np.searchsorted(found, lengths), minlength=len(found))
    assert len(found) == 1 or counts.min() >= least
    ends = np.unique(lengths)[:-1]
    best = {}
    for k in range(1, 9):
        fitting = [
            padded_rows((*chosen, int(lengths.max())), lengths)
            for chosen in itertools.combinations(ends, k - 1)
            if k == 1
            or np.bincount(
                np.searchsorted(sorted((*chosen, int(lengths.max()))), lengths), minlength=k
            ).min()
            >= least
        ]
        best[k] = min(fitting, default=np.inf)
    k = len(found)
    assert padded_rows(tuple(found), lengths) == best[k]
    enough = 1.1 * lengths.sum()
    assert all(best[fewer] > enough for fewer in range(1, k))
    assert best[k] <= enough or k == 8 or best[k + 1] >= best[k]


def test_many_lengths_are_looked_at_in_part() -> None:
    lengths = np.random.default_rng(0).integers(1, 5000, 20000)
    found = find_buckets(lengths, 64)
    assert len(found) <= 8
    assert found[-1] == lengths.max()
    assert padded_rows(tuple(found), lengths) < 1.15 * lengths.sum()


@pytest.mark.parametrize("role", ["lengths", "padding_mask", "attention_mask"])
def test_what_is_said_of_padding_leads_back(role: str) -> None:
    lengths = np.array([1, 3, 7])
    inside = np.arange(7) < lengths[:, None]
    said = say_inside(role, lengths, 7)
    assert said.shape == ((3,) if role == "lengths" else (3, 7))
    np.testing.assert_array_equal(inside_of(role, said, 7), inside)


def test_where_sequences_lie() -> None:
    found = Sequences.of(np.array([3, 1, 2]))
    assert found.starts.tolist() == [0, 3, 4]
    assert found.left.tolist() == [3, 2, 1, 1, 2, 1]
    assert [found.number_of(row) for row in range(6)] == [0, 0, 0, 1, 2, 2]


# ---- batches


@pytest.mark.parametrize("role", ["lengths", "padding_mask", "attention_mask"])
def test_batches(role: str) -> None:
    """Each sequence once an epoch, in its bucket, with nothing but padding behind it."""
    data = make(lengths_as=role, pad_value=-7)
    lengths, seen, sizes = lengths_of(), [], []
    for batch in data.train_batches():
        (x, said), y = batch["x"], batch["y"]
        length = x.shape[1]
        assert length in (5, 12, 30)
        sizes.append(length)
        for row, (inside, target) in enumerate(zip(inside_of(role, said, length), y)):
            i = int(x[row, 0, 0]) - 1
            seen.append(i)
            n = lengths[i]
            assert next(b for b in (5, 12, 30) if b >= n) == length
            np.testing.assert_array_equal(x[row, :n, 0], i + 1)
            np.testing.assert_array_equal(x[row, :n, 1], np.arange(n) + 1)
            assert (x[row, n:] == -7).all()
            assert inside.sum() == n
            assert target == i % 3
    assert sorted(seen) == list(range(N))
    assert sizes != sorted(sizes, reverse=True)  # buckets are mixed


def test_the_order_is_decided_by_seed_and_epoch() -> None:
    def order(epoch: int, **options: object) -> list[int]:
        batches = make(**options).train_batches(epoch)
        return [int(i) for batch in batches for i in batch["x"][0][:, 0, 0]]

    first = order(0)
    assert order(0) == first
    assert order(1) != first != order(0, seed=1)
    lengths = [[b["x"][0].shape[1] for b in make().train_batches(epoch)] for epoch in (0, 1)]
    assert lengths[0] != lengths[1]
    assert sorted(lengths[0]) == sorted(lengths[1])
    plain = [b["x"][0].shape[1] for b in make(shuffle=False).train_batches(3)]
    assert plain == sorted(plain, reverse=True)
    assert order(3, shuffle=False) == order(0, shuffle=False)


def test_batches_that_belong_together_stay() -> None:
    groups = [Group(4, 5, 0), Group(4, 4, 1), Group(1, 1, 1)]
    order = order_batches(groups, shuffle=True, seed=3, epoch=2, run=2)
    assert sorted(order) == [(0, 1), (0, 2), (0, 2), (1, 2), (1, 2), (2, 1)]
    one = order_batches(groups[1:], shuffle=True, seed=3, epoch=2)
    assert one == [(0, 4), (1, 1)]


@pytest.mark.parametrize("most", [1, 3, 7, 10, 99])
def test_a_limit_takes_of_every_part_its_share(most: int) -> None:
    groups = [Group(4, 6, 0), Group(2, 1, 0), Group(4, 3, 1)]
    kept = limit_batches(groups, most)
    assert sum(g.batches for g in kept) == min(most, 10)
    for group in kept:
        whole = next(g for g in groups if g.rows == group.rows and g.part == group.part)
        assert 1 <= group.batches <= whole.batches
        assert abs(group.batches - whole.batches * min(most, 10) / 10) < 1
    assert limit_batches(groups[:2], 3) == [Group(4, 3, 0)]


def test_the_forms_in_which_sequences_come() -> None:
    lengths = lengths_of()
    X = [np.full((n, 2), i, np.float32) for i, n in enumerate(lengths)]
    want = [b["x"] for b in hl.DataModule.from_sequences(X, batch_size=8).train_batches()]
    objects = np.empty(N, object)
    objects[:] = X
    for form in (
        hl.DataModule.from_sequences(tuple(X), batch_size=8),
        hl.DataModule.from_sequences(objects, batch_size=8),
        hl.DataModule.from_sequences([x.tolist() for x in X], batch_size=8),
        hl.DataModule.from_sequences(np.concatenate(X), lengths=lengths, batch_size=8),
        hl.DataModule.from_sequences(np.concatenate(X), lengths=lengths.tolist(), batch_size=8),
    ):
        for got, wanted in zip(form.train_batches(), want, strict=True):
            np.testing.assert_array_equal(got["x"][0], wanted[0])
            np.testing.assert_array_equal(got["x"][1], wanted[1])
    dense = hl.DataModule.from_sequences(np.ones((10, 4, 3)), batch_size=4)
    assert [b["x"][0].shape for b in dense.train_batches()] == [(4, 4, 3), (4, 4, 3), (2, 4, 3)]
    ids = hl.DataModule.from_sequences([[1, 2, 3], [4], [5, 6]], buckets=3, pad_value=9)
    (batch,) = ids.train_batches()
    rows = {tuple(row) for row in batch["x"][0].tolist()}
    assert rows == {(1, 2, 3), (4, 9, 9), (5, 6, 9)}
    assert batch["x"][0].dtype == np.int64


def test_a_target_for_each_row() -> None:
    lengths = lengths_of()
    X = [np.full((n, 1), i, np.float32) for i, n in enumerate(lengths)]
    y = [(np.arange(n) + i) % 4 for i, n in enumerate(lengths)]
    for goal, options in ((y, {}), (np.concatenate(y), {"lengths": lengths})):
        given = np.concatenate(X) if options else X
        data = hl.DataModule.from_sequences(given, goal, buckets=[8, 30], val=0.3, **options)
        assert data.class_counts() == [
            sum(int((y[i] == c).sum()) for i in np.flatnonzero(in_split(data, "train")))
            for c in range(4)
        ]
        for batch in data.train_batches():
            for row, target in zip(batch["x"][0], batch["y"]):
                i = int(row[0, 0])
                np.testing.assert_array_equal(target[: lengths[i]], y[i])
                assert (target[lengths[i] :] == -100).all()
        Xv, yv = data.arrays("val")
        for x, target in zip(Xv, yv, strict=True):
            np.testing.assert_array_equal(target, y[int(x[0, 0])])


def in_split(data: hl.DataModule, name: str) -> np.ndarray:
    """Which sequences, whose rows say their number, are in a split."""
    found = np.zeros(N, bool)
    for batch in data.batches_in_order(name):
        found[batch["x"][0][:, 0, 0].astype(int)] = True
    return found


def test_columns_and_missing_names() -> None:
    pandas = take_library("pandas")
    X = [np.full((n, 2), n, np.float32) for n in (3, 1, 2)]
    frame = pandas.DataFrame({"walk": X, "tags": [["a", None, "b"], ["b"], ["a", "a"]]})
    data = hl.DataModule.from_sequences(frame["walk"], frame["tags"], buckets=3)
    assert data.classes == ["a", "b"]
    assert data.class_counts() == [3, 2]
    (batch,) = data.train_batches()
    found = {tuple(row) for row in batch["y"].tolist()}
    assert found == {(0, -100, 1), (1, -100, -100), (0, 0, -100)}


def test_names_of_classes() -> None:
    X = [np.zeros((n, 1), np.float32) for n in (3, 1, 2, 2)]
    data = hl.DataModule.from_sequences(X, ["b", "a", "b", "c"], batch_size=2)
    assert data.classes == ["a", "b", "c"]
    assert data.arrays("train")[1].tolist() == ["b", "a", "b", "c"]
    words = [["x", "y", "x"], ["y"], ["x", "x"], ["y", "x"]]
    tagged = hl.DataModule.from_sequences(X, words, buckets=[2, 3], batch_size=2)
    assert tagged.classes == ["x", "y"]
    assert [y.tolist() for y in tagged.arrays("train")[1]] == words
    other = tagged.with_classes(["y", "q", "x"])
    assert other.classes == ["y", "q", "x"]
    assert [y.tolist() for y in other.arrays("train")[1]] == words
    for batch in other.train_batches():
        assert set(np.unique(batch["y"])) <= {0, 2, -100}
    with pytest.raises(DataError, match=r"got 'y' in row"):
        tagged.with_classes(["x", "q"])


def test_weights_go_with_their_sequences() -> None:
    data = make(sample_weight=np.arange(N) + 0.5)
    for batch in data.train_batches():
        np.testing.assert_array_equal(batch["weight"], batch["x"][0][:, 0, 0] - 0.5)


# ---- splits and statistics


def test_splits_are_of_whole_sequences() -> None:
    data = make(val=0.2, test=10)
    found = [
        {int(i) for b in data.batches_in_order(name) for i in b["x"][0][:, 0, 0]}
        for name in ("train", "val", "test")
    ]
    assert [len(part) for part in found] == [N - 10 - 18, 18, 10]
    assert set.union(*found) == set(range(1, N + 1))
    counts = [np.bincount(data.arrays(name)[1]) for name in ("train", "val", "test")]
    assert all(part.max() - part.min() <= 1 for part in counts)  # stratified
    own = make(val=([np.ones((40, 2)), np.ones((2, 2))], [0, 1]), buckets=[5, 12, 40])
    assert [b["x"][0].shape for b in own.val_batches()] == [(1, 40, 2), (1, 5, 2)]
    late = make(val=9, split="time")
    assert {int(i) for b in late.val_batches() for i in b["x"][0][:, 0, 0]} == set(range(82, 91))
    groups = np.arange(N) // 10
    grouped = make(val=0.3, groups=groups)
    held = {int(i) - 1 for b in grouped.val_batches() for i in b["x"][0][:, 0, 0]}
    assert all(len(set(np.flatnonzero(groups == g)) & held) in (0, 10) for g in range(9))


def test_statistics_are_of_training_rows_alone() -> None:
    rng = np.random.default_rng(0)
    X = [rng.normal(3, 2, (n, 2)) for n in lengths_of()]
    data = hl.DataModule.from_sequences(X, val=0.5, normalize="standard", buckets=[5, 30])
    numbers = [int(np.argmax([len(x) == len(s) and (x == s).all() for s in X]))
               for x in data.arrays("train")[0]]  # fmt: skip
    rows = np.concatenate([X[i] for i in numbers])
    ((_, fitted),) = data.transforms
    mean, std = fitted["x.0"]
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-6)
    np.testing.assert_allclose(std, rows.std(0), rtol=1e-6)


def test_sequences_lie_in_memory_once() -> None:
    data = make()
    fields = [part.fields for part in data.split("train").parts]
    assert len(fields) == 3
    for name in range(3):
        assert len({id(part[name].source[0]) for part in fields}) == 1


# ---- wrong input

GOOD = [np.ones((3, 2)), np.ones((5, 2))]


@pytest.mark.parametrize(
    ("kind", "text", "X", "y", "options"),
    [
        (DataError, r"X: must be a list of arrays .* got float", 3.0, None, {}),
        (DataError, r"X: must be a list of arrays", [], None, {}),
        (DataError, r"X: must be a list of arrays", [1.0, 2.0], None, {}),
        (DataError, r"one shape, \(2,\) as in X\[0\], got \(3,\) in X\[1\]",
         [np.ones((3, 2)), np.ones((3, 3))], None, {}),
        (DataError, r"X\[1\]: must have a row at least", [np.ones((3, 2)), np.ones((0, 2))],
         None, {}),
        (DataError, r"X\[0\]: must hold numbers", [["a", "b"], ["c"]], None, {}),
        (DataError, r"one entry for each of the 2 sequences.* got shape \(3,\)", GOOD, [1, 2, 3],
         {}),
        (DataError, r"y\[1\]: must have a target for each of the 5 rows of X\[1\], got 4", GOOD,
         [[0, 1, 0], [0, 1, 0, 1]], {}),
        (DataError, "got a dict", GOOD, {"a": [1, 2]}, {}),
        (DataError, "got a tuple; several targets", GOOD, ([1, 2], [1, 2]), {}),
        (DataError, "y: must have one entry for each of the 2 sequences, got 3", GOOD,
         [[0, 1], [0], [1]], {}),
        (DataError, "sample_weight: must have one number for each", GOOD, None,
         {"sample_weight": [[1, 1, 1], [1, 1]]}),
        (DataError, r"write from_sequences\(\[x\[:n\]", np.ones((2, 5, 3)), None,
         {"lengths": [4, 5]}),
        (DataError, r"buckets: the longest must hold every sequence, got 4 for 5 rows \(sequence 1",
         GOOD, None, {"buckets": [2, 4]}),
        (ConfigError, "buckets: must be 'auto'", GOOD, None, {"buckets": [0, 9]}),
        (ConfigError, "buckets: must be 'auto'", GOOD, None, {"buckets": []}),
        (ConfigError, "buckets: must be 'auto'", GOOD, None, {"buckets": [5.5]}),
        (ConfigError, "buckets: must be 'auto'", GOOD, None, {"buckets": "many"}),
        (ConfigError, "buckets: must be 'auto'", GOOD, None, {"buckets": True}),
        (ConfigError, "lengths_as: must be one of", GOOD, None, {"lengths_as": "mask"}),
        (ConfigError, "pad_value: must be a finite number", GOOD, None, {"pad_value": np.nan}),
        (ConfigError, "pad_value: must be whole", [[1, 2], [3]], None, {"pad_value": 0.5}),
        (ConfigError, "normalize", GOOD, None, {"normalize": "minmax"}),
        (DataError, "lengths: must add up to the rows of X, 8, got 7", np.ones((8, 2)), None,
         {"lengths": [3, 4]}),
        (DataError, "lengths: must be 1 at least, got 0 of sequence 1", np.ones((8, 2)), None,
         {"lengths": [8, 0]}),
        (DataError, "lengths: must be 1 at least, got -1 of sequence 0", np.ones((8, 2)), None,
         {"lengths": [-1, 9]}),
        (DataError, "lengths: must be integers", np.ones((8, 2)), None, {"lengths": [4.0, 4.0]}),
        (DataError, "lengths: must be integers", np.ones((8, 2)), None, {"lengths": [[4, 4]]}),
        (DataError, "val y: must have a target for each sequence as in training", GOOD, [0, 1],
         {"val": (GOOD, [[0, 1, 0], [0, 1, 0, 1, 1]])}),
        (DataError, r"val X: rows must have shape \(2,\)", GOOD, [0, 1],
         {"val": ([np.ones((3, 4))], [0])}),
        (ConfigError, "did you mean 'batch_size'", GOOD, None, {"batchsize": 3}),
    ],
)  # fmt: skip
def test_refused(kind: type, text: str, X: object, y: object, options: dict) -> None:
    with pytest.raises(kind, match=text):
        hl.DataModule.from_sequences(X, y, **options)


def test_values_are_named_by_sequence_and_row() -> None:
    X = [np.ones((n, 2), np.float32) for n in (3, 5, 4)]
    X[1][2, 1] = np.nan
    data = hl.DataModule.from_sequences(X, [0, 1, 0], buckets=[3, 5])
    with pytest.raises(DataError, match=r"X: must be finite, got nan in row 2 of sequence 1, col"):
        data.check("train")
    held = hl.DataModule.from_sequences(X, [0, 1, 0], val=[1], buckets=[3, 5])
    held.check("train")  # a window may reach into sequences of other splits
    with pytest.raises(DataError, match="row 2 of sequence 1"):
        held.check("val")


def test_text() -> None:
    text = make(val=0.2).describe()
    assert "X float32 (rows, 2)" in text
    assert "buckets     5: " in text
    assert "% of the rows are padding" in text
