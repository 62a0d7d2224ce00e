"""Rows drawn with replacement: as often as asked for, the same batches however they are made."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.errors import ConfigError, DataError


def make(y: object, **options: object) -> hl.DataModule:
    """Rows that say their own number."""
    X = np.arange(len(y), dtype=np.float32)[:, None]
    return hl.DataModule.from_arrays(X, y, **options)


def drawn(data: hl.DataModule, epoch: int = 0) -> np.ndarray:
    """The rows of a training epoch, in order."""
    batches = [batch["x"] for batch in data.train_batches(epoch)]
    parts = [x[0][:, 0] if isinstance(x, tuple) else x for x in batches]
    return np.concatenate([part.reshape(len(part), -1)[:, 0] for part in parts]).astype(int)


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """Pearson's statistic as a standard normal deviate (Wilson and Hilferty 1931)."""
    assert expected.min() > 20  # else the statistic has another distribution
    statistic, freedom = ((counts - expected) ** 2 / expected).sum(), len(counts) - 1
    spread = 2.0 / (9.0 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1.0 - spread)) / np.sqrt(spread))


# ---- how often


def test_balanced() -> None:
    y = np.repeat([0, 1, 2], [900, 90, 10])
    data = make(y, sampler="balanced", samples_per_epoch=100_000, batch_size=500)
    rows = drawn(data)
    assert len(rows) == 100_000
    counts = np.bincount(y[rows])
    assert abs(chi_square(counts, np.full(3, 100_000 / 3))) < 3.7
    within = np.bincount(rows, minlength=1000)[:900]  # rows of a class are as likely
    assert abs(chi_square(within, np.full(900, within.mean()))) < 3.7
    assert len(data) == 1000


@pytest.mark.parametrize("lengths", [None, [3, 5]])
def test_balanced_without_a_class(lengths: list[int] | None) -> None:
    """Rows of the ignored class count nothing, so none is drawn."""
    y = np.repeat([-100, 0, 1], [500, 90, 10])
    options = {"sampler": "balanced", "samples_per_epoch": 20_000, "batch_size": 500}
    if lengths is None:
        data = make(y, **options)
    else:
        X = [np.full((lengths[int(y[i] >= 0)], 1), i, np.float32) for i in range(len(y))]
        data = hl.DataModule.from_sequences(X, y, buckets=lengths, normalize=None, **options)
    rows = drawn(data)
    assert len(rows) == 20_000
    counts = np.bincount(y[rows] + 100)
    assert not counts[0]
    assert abs(chi_square(counts[100:], np.full(2, 10_000.0))) < 3.7
    with pytest.raises(DataError, match="'balanced' draws rows that have a class, got -100 in all"):
        make(y, sampler="balanced", val=np.arange(500, 600))


def test_weighted() -> None:
    weights = np.tile([0.0, 1.0, 2.0, 5.0], 25)
    data = make(np.zeros(100, int), sampler="weighted", weights=weights, samples_per_epoch=50_000)
    counts = np.bincount(drawn(data), minlength=100)
    assert not counts[weights == 0].any()
    expected = weights / weights.sum() * 50_000
    assert abs(chi_square(counts[weights > 0], expected[weights > 0])) < 3.7


@pytest.mark.parametrize("batch_size", [7, 64, 1000])
def test_an_epoch_has_so_many(batch_size: int) -> None:
    y = np.arange(100) % 2
    assert len(drawn(make(y, sampler="balanced", batch_size=batch_size))) == 100
    data = make(y, sampler="balanced", batch_size=batch_size, samples_per_epoch=333)
    assert len(drawn(data)) == 333
    sizes = [len(batch["x"]) for batch in data.train_batches()]
    assert sizes == [group.rows for group in data.batches("train", training=True, merge_tail=False)
                     for _ in range(group.batches)]  # fmt: skip
    whole = drawn(data.with_classes(["a", "b"]))
    np.testing.assert_array_equal(whole, drawn(data))


def test_evaluation_sees_each_training_row_once() -> None:
    y = np.arange(50) % 2
    data = make(y, sampler="balanced", samples_per_epoch=500, val=10)
    seen = np.concatenate([batch["x"][:, 0] for batch in data.batches_in_order("train")])
    np.testing.assert_array_equal(seen, data.rows("train"))
    assert set(drawn(data)) <= set(data.rows("train"))


def test_sequences_are_drawn_in_their_buckets() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, 200)
    X = [np.full((n, 1), i, np.float32) for i, n in enumerate(lengths)]
    weights = np.where(lengths > 10, 1.0, 4.0)
    weights[lengths > 25] = 0.0
    data = hl.DataModule.from_sequences(
        X, buckets=[10, 25, 30], sampler="weighted", weights=weights, samples_per_epoch=30_000,
        batch_size=100, val=20,
    )  # fmt: skip
    rows = drawn(data)
    assert len(rows) == 30_000
    train = data.rows("train")
    expected = weights[train] / weights[train].sum() * 30_000
    counts = np.bincount(rows, minlength=200)[train]
    assert not counts[expected == 0].any()
    assert abs(chi_square(counts[expected > 0], expected[expected > 0])) < 3.7
    held = np.concatenate([b["x"][0][:, 0, 0] for b in data.batches_in_order("train")])
    np.testing.assert_array_equal(np.sort(held), train)


def test_windows_are_as_likely_as_their_targets_row() -> None:
    weights = np.zeros(60)
    weights[[10, 59]] = 1.0
    data = hl.DataModule.from_windows(
        np.arange(60.0), 4, 2, sampler="weighted", weights=weights, normalize=None
    )
    assert set(drawn(data)) == {10 - 5, 59 - 5}


# ---- the same batches


def test_same_bits_from_any_position() -> None:
    weights = np.arange(1.0, 41.0)
    options = {"weights": weights, "n_draws": 100, "seed": 5}
    feed = _core.Feed(40, 8, **options)
    feed.seek(3)
    whole = [feed.next_rows() for _ in range(12)]
    for batch in (0, 5, 11):
        feed.seek(3, batch)
        np.testing.assert_array_equal(feed.next_rows(), whole[batch])
    later = _core.Feed(40, 4, first=40, **options)
    later.seek(3)
    np.testing.assert_array_equal(later.next_rows(), np.concatenate(whole)[40:44])
    feed.seek(4)
    assert not np.array_equal(feed.next_rows(), whole[0])


def test_epochs_and_seeds_differ() -> None:
    y = np.arange(60) % 3
    data = make(y, sampler="balanced")
    np.testing.assert_array_equal(drawn(data, 2), drawn(make(y, sampler="balanced"), 2))
    assert not np.array_equal(drawn(data, 0), drawn(data, 1))
    assert not np.array_equal(drawn(data), drawn(make(y, sampler="balanced", seed=1)))


def test_training_sees_what_is_drawn() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 5)).astype(np.float32)
    y = np.repeat([0, 1], [100, 20])
    data = hl.DataModule.from_arrays(X, y, sampler="balanced", samples_per_epoch=200, batch_size=16)
    rows = np.concatenate(
        [np.flatnonzero((x == X).all(1)) for b in data.train_batches() for x in b["x"]]
    )
    same = hl.DataModule.from_arrays(X[rows], y[rows], shuffle=False, batch_size=16)
    trained = []
    for each in (data, same):
        hl.manual_seed(0)
        model = nn.Linear(5, 2)
        result = hl.train(model, each, max_epochs=1, enable_progress_bar=False)
        assert result.steps == 13
        trained.append(model.state_dict())
    for name, value in trained[0].items():
        np.testing.assert_array_equal(value, trained[1][name])


def test_a_fold_is_balanced_by_its_own_rows() -> None:
    y = np.repeat([0, 1], [90, 30])
    weights = np.arange(120.0)
    for fold in make(y, sampler="balanced", samples_per_epoch=4000).folds(3):
        rows = drawn(fold)
        assert set(rows) <= set(fold.rows("train"))
        assert abs(chi_square(np.bincount(y[rows]), np.full(2, 2000))) < 3.7
    (fold, _) = make(y, sampler="weighted", weights=weights, samples_per_epoch=50_000).folds(2)
    train = fold.rows("train")
    train = train[weights[train] > 10]
    counts = np.bincount(drawn(fold), minlength=120)[train]
    expected = weights[train] / weights[fold.rows("train")].sum() * 50_000
    assert abs(chi_square(counts, expected)) < 4.5


def test_samples_of_a_dataset() -> None:
    class Numbers:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, i: int) -> tuple:
            return np.float32([i]), i % 2

    weights = np.arange(40) % 4 == 0
    data = hl.DataModule.from_datasets(
        Numbers(), val=8, sampler="weighted", weights=weights, samples_per_epoch=100
    )
    rows = drawn(data)
    assert len(rows) == 100
    assert set(rows) <= set(np.arange(0, 40, 4)) & set(data.rows("train"))
    folds = hl.DataModule.from_datasets(Numbers(), val=8).folds(4)
    assert sorted(np.concatenate([fold.rows("val") for fold in folds])) == list(range(40))


# ---- wrong input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": "uniform"}, "sampler: must be 'balanced', 'weighted' or None, got 'uniform'"),
        ({"sampler": 3}, "sampler: must be 'balanced', 'weighted' or None, got 3"),
        ({"sampler": "weighted"}, "weights: sampler='weighted' needs one for each row, got None"),
        ({"weights": np.ones(6)}, "weights: is for rows drawn with replacement, without sampler"),
        ({"samples_per_epoch": 5}, "samples_per_epoch: is for rows drawn with replacement"),
        ({"sampler": "balanced", "weights": np.ones(6)}, "weights: are those of sampler='weighted"),
        ({"sampler": "balanced", "shuffle": False}, "sampler: 'balanced' draws rows at random"),
        ({"sampler": "balanced", "samples_per_epoch": 0}, "samples_per_epoch: must be at least 1"),
        ({"sampler": "balanced", "samples_per_epoch": 1.5}, "samples_per_epoch: a whole number"),
    ],
)
def test_wrong_wishes(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make([0, 1, 0, 1, 0, 1], **options)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones(5), "weights: must have one entry for each of the 6 rows, got 5"),
        (
            np.ones((6, 1)),
            r"weights: must be numbers, one for each row, got dtype float64",
        ),
        (["a"] * 6, "weights: must be numbers, one for each row, got dtype <U1"),
        ([1, 1, -1, 1, 1, 1], "weights: must be finite and at least 0, got -1 in row 2"),
        ([1, np.nan, 1, 1, 1, 1], "weights: must be finite and at least 0, got nan in row 1"),
        (np.zeros(6), "weights: all weights of the train rows are 0"),
    ],
)
def test_wrong_weights(weights: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        make([0, 1, 0, 1, 0, 1], sampler="weighted", weights=weights)


def test_balanced_needs_classes() -> None:
    with pytest.raises(ConfigError, match="sampler: 'balanced' needs one class for each row in y"):
        make(np.arange(6.0), sampler="balanced")


def test_overfitting_takes_rows_that_there_are() -> None:
    data = make(np.arange(20) % 2, sampler="balanced", samples_per_epoch=100, batch_size=10)
    options = {"max_epochs": 1, "enable_progress_bar": False}
    hl.train(nn.Linear(1, 2), data, overfit_batches=2, **options)
    with pytest.raises(ConfigError, match="overfit_batches: takes rows in their order, of which"):
        hl.train(nn.Linear(1, 2), data, overfit_batches=3, **options)


def test_feeds_refuse_weights() -> None:
    for weights, words in [
        (np.ones(3), r"weights: must be float64 of shape \(4,\)"),
        (np.ones(4, np.float32), r"weights: must be float64 of shape \(4,\)"),
        (np.zeros(4), "weights: one must be above 0"),
        (-np.ones(4), "weights: must be finite and at least 0, got -1 at 0"),
    ]:
        with pytest.raises(ValueError, match=words):
            _core.Feed(4, 2, weights=weights)
