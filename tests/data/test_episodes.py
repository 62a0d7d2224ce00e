"""Episodes: whose rows they are, the same for a seed and any threads, what forward gets."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.errors import ConfigError, DataError

N, CATEGORIES = 240, 8
Y = np.arange(N) % CATEGORIES


def make(**options: object) -> hl.DataModule:
    """Rows that say their own number."""
    X = np.arange(N, dtype=np.float32)[:, None]
    return hl.DataModule.from_arrays(X, Y, groups=Y, **{"val": 60, "test": 30, **options})


def rows_of(batch: dict, part: str) -> np.ndarray:
    """The numbers of an episode's rows."""
    return batch["x"][part][..., 0].astype(int)


@pytest.mark.parametrize("ways", [1, 2])
def test_rows_of_an_episode(ways: int) -> None:
    source = make()
    data = hl.DataModule.episodes(source, 2, 4, ways=ways, n=30, n_val=7, n_test=0, batch_size=5)
    assert data.split("test") is None
    seen = 0
    for split in ("train", "val"):
        for batch in data.train_batches() if split == "train" else data.val_batches():
            support, query = rows_of(batch, "support"), rows_of(batch, "query")
            assert support.shape[1:] == (2 * ways,)
            assert query.shape[1:] == (4 * ways,)
            seen += len(support)
            for one, other, targets, said in zip(
                support, query, batch["y"], batch["x"]["support_y"]
            ):
                assert len(set(one) | set(other)) == 6 * ways  # none twice
                assert set(one) | set(other) <= set(source.rows(split))
                category = Y[one].reshape(ways, 2)
                assert (category == category[:, :1]).all()
                assert len(set(category[:, 0])) == ways
                if ways == 1:
                    np.testing.assert_array_equal(targets, Y[other])
                    np.testing.assert_array_equal(said, Y[one])
                else:
                    np.testing.assert_array_equal(category[targets, 0], Y[other])
                    np.testing.assert_array_equal(said, np.repeat(np.arange(ways), 2))
    assert seen == 30 + 7
    assert data.n_classes == (CATEGORIES if ways == 1 else ways)


def test_queries_stand_in_any_order() -> None:
    data = hl.DataModule.episodes(make(), 1, 3, ways=3, n=50, n_val=0, n_test=0, batch_size=50)
    (batch,) = data.train_batches()
    assert (np.diff(batch["y"], axis=1) < 0).any()
    assert abs(batch["y"].mean(0) - 1).max() < 0.5


def test_all_categories_and_rows_are_drawn() -> None:
    source = make()
    data = hl.DataModule.episodes(source, 1, 1, n=2000, n_val=0, n_test=0, batch_size=500)
    rows = np.concatenate([rows_of(batch, "query").ravel() for batch in data.train_batches()])
    train = source.rows("train")
    assert set(rows) == set(train)
    counts = np.bincount(Y[rows], minlength=CATEGORIES)[np.unique(Y[train])]
    expected = 2000 / len(counts)
    assert ((counts - expected) ** 2 / expected).sum() < 30  # 5 degrees of freedom: p < 2e-5


def test_the_same_for_a_seed_and_others_in_each_epoch() -> None:
    def support(data: hl.DataModule, epoch: int = 0) -> np.ndarray:
        return np.concatenate([rows_of(batch, "support") for batch in data.train_batches(epoch)])

    options = {"n": 40, "batch_size": 8}
    data = hl.DataModule.episodes(make(), 1, 2, num_workers=0, **options)
    same = hl.DataModule.episodes(make(), 1, 2, num_workers=3, **options)
    np.testing.assert_array_equal(support(data), support(same))
    np.testing.assert_array_equal(support(data, 4), support(same, 4))
    assert not np.array_equal(support(data), support(data, 1))
    other = hl.DataModule.episodes(make(), 1, 2, seed=1, **options)
    assert not np.array_equal(support(data), support(other))
    held = [np.concatenate([rows_of(b, "query") for b in data.val_batches()]) for _ in range(2)]
    np.testing.assert_array_equal(*held)


def test_columns_values_and_categories_of_ones_own() -> None:
    X = {"image": np.random.default_rng(0).random((N, 3, 4)).astype(np.float32), "id": np.arange(N)}
    points = np.stack([np.arange(N), -np.arange(N)], 1).astype(np.float32)
    source = hl.DataModule.from_arrays(X, points, val=0.25, split="time")
    data = hl.DataModule.episodes(source, 1, 2, by=np.char.add("kind ", Y.astype(str)), n=6)
    batch = next(data.train_batches())
    assert batch["x"]["support_image"].shape == (2, 1, 3, 4)
    assert batch["x"]["query_id"].shape == (2, 2)
    ids = batch["x"]["query_id"]
    np.testing.assert_array_equal(batch["x"]["query_image"], X["image"][ids])
    np.testing.assert_array_equal(batch["y"], points[ids])
    np.testing.assert_array_equal(batch["x"]["support_y"], points[batch["x"]["support_id"]])
    assert (Y[ids] == Y[batch["x"]["support_id"]]).all()
    assert data.target_kind == "float"


class Prototypes(nn.Module):
    """The category whose mean support lies nearest (Snell et al. 2017)."""

    def __init__(self, ways: int) -> None:
        super().__init__()
        self.ways, self.embed = ways, nn.Linear(64, 16)

    def forward(self, x: dict) -> object:
        n, k, _ = x["support"].shape
        support = self.embed(x["support"]).reshape(n, self.ways, k // self.ways, 16)
        centres = support.mean(2)
        far = (self.embed(x["query"])[:, :, None, :] - centres[:, None, :, :]) ** 2
        return -far.mean(-1).permute(0, 2, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_learns_and_knows_new_categories(workers: int) -> None:
    X, y = hl.load_digits()
    digits = hl.DataModule.from_arrays(X, y, groups=y, val=0.4, standardize=True)
    data = hl.DataModule.episodes(
        digits, 5, 5, ways=3, n=200, n_val=40, batch_size=8, num_workers=workers
    )
    ((_, fitted),) = data.transforms
    assert set(fitted) == {"x.support", "x.query"}
    hl.manual_seed(0)
    result = hl.train(Prototypes(3), data, max_epochs=3, lr=0.01, enable_progress_bar=False)
    assert result.history["val_accuracy"][-1] > 0.75  # a third by chance


# ---- categories with too few rows


def small_source() -> tuple[hl.DataModule, np.ndarray]:
    """Seven rows of cats and dogs, two of owls, one of emus."""
    names = np.array(["cat"] * 7 + ["owl"] * 2 + ["dog"] * 7 + ["emu"])
    X = np.arange(len(names), dtype=np.float32)[:, None]
    return hl.DataModule.from_arrays(X, names), names


@pytest.mark.parametrize("is_given", [False, True])
def test_small_categories_are_named(is_given: bool) -> None:
    source, names = small_source()
    by = {"by": names} if is_given else {}
    words = "got 1 of category 'emu' and 2 of category 'owl'; take fewer rows"
    with pytest.raises(DataError, match=f"^train: each category must have 3 rows .*{words}"):
        hl.DataModule.episodes(source, 1, 2, **by)
    assert hl.DataModule.episodes(source, 1, 1, on_small_category="skip", **by)
    with pytest.raises(DataError, match="got 1 of category 'emu'; take"):
        hl.DataModule.episodes(source, 1, 1, **by)


def test_small_categories_can_be_skipped() -> None:
    source, names = small_source()
    data = hl.DataModule.episodes(
        source, 1, 2, n=300, batch_size=300, on_small_category="skip"
    )  # fmt: skip
    (batch,) = data.train_batches()
    assert set(names[rows_of(batch, "query").ravel()]) == {"cat", "dog"}


# ---- wrong input


def test_wrong_input() -> None:
    source = make()
    for options, words in [
        ({"support": 0}, "support: must be at least 1, got 0"),
        ({"query": 0}, "query: must be at least 1, got 0"),
        ({"ways": 0}, "ways: must be at least 1, got 0"),
        ({"n": 0}, "n: must be at least 1, got 0"),
        ({"on_small_category": "drop"}, "on_small_category: must be one of 'raise', 'skip'"),
        ({"by": "x"}, "by: must be 'y' or an array of categories, got 'x'"),
        ({"shuffle": True}, "there is no option 'shuffle'"),
    ]:
        with pytest.raises(ConfigError, match=words):
            hl.DataModule.episodes(source, **options)
    for options, words in [
        (
            {"support": 30, "query": 1},
            r"train: each category must have 31 rows at least, 30 for the support and 1 for "
            r"queries, got 30 of category \d, 30 of category \d, 30 of category \d and 2 more; "
            "take fewer rows, add some, or write on_small_category='skip'",
        ),
        (
            {"support": 30, "query": 1, "on_small_category": "skip"},
            "train: an episode needs 1 category of 31 rows at least, got 0 of 5; take fewer rows",
        ),
        ({"ways": 6}, "train: an episode needs 6 categories of 3 rows at least, got 5 of 5"),
        (
            {"by": np.arange(9)},
            r"by: must have one entry per row, shape \(240,\), got",
        ),
    ]:
        with pytest.raises(DataError, match=words):
            hl.DataModule.episodes(source, **options)
    X = np.ones((20, 1))
    for data, options, words in [
        (X, {}, "source: must be a DataModule"),
        (hl.DataModule.from_arrays(X), {}, "by: 'y' needs one class for each row in y"),
        (hl.DataModule.from_arrays(X, np.ones(20)), {}, "by: 'y' needs one class for each row"),
        (hl.DataModule.from_arrays(X, np.ones(20)), {"ways": 2, "by": Y[:20]},
         "ways: with several the target is the category, got float targets"),
        (hl.DataModule.from_arrays(X), {"ways": 2, "by": Y[:20]},
         "ways: with several the target is the category, of a source with one y, got 0 targets"),
        (hl.DataModule.from_arrays(X, np.arange(20.0), standardize="y"), {"by": Y[:20]},
         "source: targets of episodes cannot be standardised"),
        (hl.DataModule.from_arrays(X, Y[:20], sample_weight=np.ones(20)), {},
         "source: rows of episodes have no sample_weight"),
        (hl.DataModule.from_sequences([X, X], [0, 1]), {},
         "source: sequences of several lengths make no episodes"),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            hl.DataModule.episodes(data, **options)
    bad = hl.DataModule.from_arrays(np.where(np.arange(20) == 3, np.nan, 1.0)[:, None], Y[:20] % 2)
    with pytest.raises(DataError, match="row 3, column 0"):
        hl.DataModule.episodes(bad)


def test_categories_of_rows_are_not_those_of_other_data() -> None:
    """Rows of validation data of its own are numbered from 0, as training's are."""
    X = np.arange(N, dtype=np.float32)[:, None]
    own = hl.DataModule.from_arrays(X[:200], Y[:200], val=(X[200:], Y[200:]), test=20)
    by = Y[:200]
    options = {"support": 1, "query": 1, "ways": 2, "n": 5, "batch_size": 5}
    with pytest.raises(ConfigError, match=r"by: has the categories .* val has data of its own"):
        hl.DataModule.episodes(own, by=by, **options)
    for data in (
        hl.DataModule.episodes(own, by=by, n_val=0, **options),
        hl.DataModule.episodes(own, **options),  # by y, which each split has
    ):
        (batch,) = data.train_batches()
        support = Y[rows_of(batch, "support")]
        np.testing.assert_array_equal(
            np.take_along_axis(support, batch["y"], axis=1), Y[rows_of(batch, "query")]
        )


@pytest.mark.parametrize("n", [239, 241, 480])
def test_as_many_categories_as_rows(n: int) -> None:
    with pytest.raises(DataError, match=r"by: must have one entry per row, shape \(240,\), got"):
        hl.DataModule.episodes(make(), by=np.resize(Y, n))


def test_categories_of_windows() -> None:
    """As many as rows of the series, of which a window has that of its first one."""
    series = np.arange(80, dtype=np.float32)[:, None]
    source = hl.DataModule.from_windows(series, 5, 2, val=20, normalize=None)
    by = np.arange(80) // 3 % 2
    data = hl.DataModule.episodes(source, 1, 1, by=by, n=5, n_val=5, batch_size=5)
    for batch in (*data.train_batches(), *data.val_batches()):
        first = by[batch["x"]["support"][..., 0, 0].astype(int)]
        np.testing.assert_array_equal(first, by[batch["x"]["query"][..., 0, 0].astype(int)])
    with pytest.raises(DataError, match=r"shape \(80,\), got"):
        hl.DataModule.episodes(source, 1, 1, by=by[:79])
