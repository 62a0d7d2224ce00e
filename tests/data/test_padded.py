"""Samples of several lengths that a dataset makes: padding, masks, buckets, wrong input."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn

LENGTHS = [3, 5, 2, 8, 4, 8, 1, 6, 7, 3, 2, 5]


def make_x(i):
    return np.random.default_rng(i).random((LENGTHS[i % len(LENGTHS)], 3), np.float32) + 1


class Sequences:
    """Samples (x, class), x of several lengths."""

    def __init__(self, n=12, target=lambda x: int(x.mean() > 1.5)):
        self.n, self.target, self.calls = n, target, 0

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.calls += 1
        x = make_x(i)
        return x, self.target(x)


class Mean(nn.Module):
    """The mean of the rows that are no padding, by lengths or a mask, and a layer."""

    def __init__(self, role="lengths", rows=False):
        super().__init__()
        self.role, self.rows = role, rows
        self.head = nn.Linear(3, 2)

    def forward(self, x, said):
        if self.rows:
            return self.head(x).permute(0, 2, 1)
        if self.role == "lengths":
            return self.head(x.sum(1) / said.unsqueeze(1))
        inside = said if self.role == "attention_mask" else said == 0
        return self.head(x.sum(1) / inside.sum(1, keepdim=True))


@pytest.mark.parametrize("role", ["lengths", "padding_mask", "attention_mask"])
def test_samples_are_padded_to_their_bucket(role) -> None:
    data = hl.DataModule(
        Sequences(), buckets=[4, 8], lengths_as=role, pad_value=-1.0, batch_size=3, shuffle=False
    )
    seen = set()
    for batch in data.train_batches(0):
        (x, said), y = batch["x"], batch["y"]
        assert x.shape[1] in (4, 8)
        for row, of, goal in zip(x, said, y):
            inside = {
                "lengths": np.arange(x.shape[1]) < of,
                "padding_mask": np.asarray(of) == 0,
                "attention_mask": np.asarray(of) != 0,
            }[role]
            n = int(inside.sum())
            i = next(i for i in range(12) if np.array_equal(make_x(i), row[:n]))
            assert x.shape[1] == (4 if n <= 4 else 8)
            assert (row[n:] == -1).all()
            assert goal == int(make_x(i).mean() > 1.5)
            seen.add(i)
    assert seen == set(range(12))


@pytest.mark.parametrize("buckets", [8, [4, 8], "auto"])
@pytest.mark.parametrize("role", ["lengths", "padding_mask", "attention_mask"])
def test_trains_and_predicts_as_sequences_in_memory_do(buckets, role) -> None:
    X = [make_x(i) for i in range(12)]
    y = [int(x.mean() > 1.5) for x in X]
    results = []
    for data in (
        hl.DataModule.from_datasets(
            Sequences(), Sequences(), buckets=buckets, lengths_as=role, batch_size=12,
            shuffle=False,
        ),
        hl.DataModule.from_sequences(X, y, val=(X, y), buckets=buckets, lengths_as=role,
                                     batch_size=12, shuffle=False),
    ):  # fmt: skip
        hl.manual_seed(1)
        model = Mean(role)
        result = hl.train(model, data, max_epochs=3, enable_progress_bar=False, lr=0.1)
        results.append((result.history, hl.predict(model, data), hl.predict(model, X)))
    for streamed, in_memory in zip(results[0][1:], results[1][1:]):
        np.testing.assert_allclose(streamed, in_memory, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(results[0][1], results[0][2])


def test_rows_may_have_classes() -> None:
    def target(x):
        return (x[:, 0] > 1.5).astype(np.int64)

    data = hl.DataModule(Sequences(40, target), Sequences(12, target), buckets=[4, 8], batch_size=4)
    for batch in data.train_batches(0):
        (x, lengths), y = batch["x"], batch["y"]
        inside = np.arange(x.shape[1]) < np.asarray(lengths)[:, None]
        np.testing.assert_array_equal(y, np.where(inside, x[..., 0] > 1.5, -100))
    model = Mean(rows=True)
    result = hl.train(
        model, data, max_epochs=30, lr=0.3, enable_progress_bar=False, metrics=["accuracy"]
    )
    assert result.history["val_accuracy"][-1] > 0.9
    labels = hl.predict(model, data, labels=True)
    X, y = data.arrays("val")
    assert [len(one) for one in labels] == [len(x) for x in X] == LENGTHS
    for x, of, i in zip(X, y, range(12)):
        np.testing.assert_array_equal(x, make_x(i))
        np.testing.assert_array_equal(of, target(make_x(i)))


class Tracker(Mean):
    """A value for each row, whose loss leaves out padding, where x is 0."""

    def training_step(self, batch):
        (x, said), y = batch["x"], batch["y"]
        inside = (x.sum(-1) != 0).float()
        apart = self(x, said)[:, 0] - y
        return (apart.square() * inside).sum() / inside.sum()


@pytest.mark.parametrize("buckets", [8, [4, 8]])
def test_rows_may_have_values(buckets) -> None:
    def target(x):
        return x[:, 0]

    X = [make_x(i) for i in range(12)]
    results = []
    for data in (
        hl.DataModule(Sequences(12, target), buckets=buckets, batch_size=4, shuffle=False),
        hl.DataModule.from_sequences(
            X, [target(x) for x in X], buckets=buckets, batch_size=4, shuffle=False
        ),
    ):
        with pytest.raises(hl.ConfigError, match=r"y: each row .* kind float, .* training_step"):
            hl.train(Mean(rows=True), data, max_epochs=1, enable_progress_bar=False)
        hl.manual_seed(1)
        result = hl.train(Tracker(rows=True), data, max_epochs=2, enable_progress_bar=False)
        assert [y.shape for y in data.arrays("train")[1]] == [(n,) for n in LENGTHS]
        results.append((list(data.train_batches(0)), result.history["loss"]))
    for made, want in zip(*(batches for batches, _ in results), strict=True):
        np.testing.assert_array_equal(made["y"], want["y"])
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-6)


@pytest.mark.parametrize("n", [3, 5])
def test_targets_of_one_length_are_those_of_samples(n) -> None:
    """Though the first sample has as many rows."""
    data = hl.DataModule(Sequences(12, lambda x: x.sum() + np.arange(n)), buckets=8, batch_size=12)
    assert data.example_batch()["y"] == ("float32", (12, n))
    assert data.split("train").fields[-1].padding.role == "sequence"


def test_any_number_of_threads_makes_the_same_batches() -> None:
    made = []
    for workers in (1, 2, 5):
        data = hl.DataModule(Sequences(60), buckets="auto", batch_size=4, num_workers=workers)
        result = hl.train(Mean(), data, max_epochs=2, enable_progress_bar=False)
        made.append(result.history["loss"][-1])
    assert made[0] == made[1] == made[2]


def test_one_length_needs_no_look_at_the_samples() -> None:
    dataset = Sequences()
    hl.DataModule(dataset, buckets=8)
    assert dataset.calls <= 2  # the first sample's types
    dataset = Sequences()
    hl.DataModule(dataset, buckets=[4, 8])
    assert dataset.calls >= 12


def test_generators_pad_to_one_length() -> None:
    def make():
        return iter(Sequences())

    data = hl.DataModule.from_generator(make, 12, buckets=8, batch_size=4)
    lengths = [n for batch in data.train_batches(0) for n in batch["x"][1]]
    assert lengths == LENGTHS
    with pytest.raises(hl.ConfigError, match=r"buckets: several need the length .* one length"):
        hl.DataModule.from_generator(make, 12, buckets=[4, 8])


def test_folds_subsets_and_fractions_keep_their_buckets() -> None:
    data = hl.DataModule.from_datasets(Sequences(24), val=0.25, buckets=[4, 8], batch_size=3)
    assert len(data) == 18
    for of in (data, data.fold(1, 3), data.subset(0.5)):
        rows = [n for batch in of.train_batches(0) for n in batch["x"][1]]
        assert sorted(rows) == sorted(LENGTHS[i % 12] for i in of.rows("train"))
        assert [len(x) for x in of.arrays("val")[0]] == [LENGTHS[i % 12] for i in of.rows("val")]
    assert "4: " in str(data.describe())
    assert "8: " in str(data.describe())


def test_bad_samples_are_left_out_and_named() -> None:
    class Broken(Sequences):
        def __getitem__(self, i):
            if i == 5:
                raise OSError("gone")
            return super().__getitem__(i)

    with pytest.raises(hl.DataError, match=r"train_dataset\[5\]: raised OSError: gone"):
        hl.DataModule(Broken(), buckets=[4, 8])
    data = hl.DataModule(
        Broken(), buckets=[4, 8], on_bad_sample="skip", max_bad_share=0.2, batch_size=12
    )
    weights = [w for batch in data.train_batches(0) for w in batch["weight"]]
    assert sorted(weights) == [0] + [1] * 11
    assert list(data.bad_samples["train"]) == [5]
    assert list(data.verify()["train"]) == [] or data.bad_samples["train"]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"buckets": 4}, hl.DataError, r"train_dataset\[\d+\]: must have at most 4 rows, got \d"),
        ({"buckets": [2, 4]}, hl.DataError, r"buckets: the longest must hold every sequence"),
        ({"buckets": "some"}, hl.ConfigError, r"buckets: must be 'auto' or a list of lengths"),
        ({"buckets": 8, "lengths_as": "n"}, hl.ConfigError, r"lengths_as: must be one of"),
        ({"buckets": 8, "pad_value": "x"}, hl.ConfigError, r"pad_value: must be a finite number"),
        ({"buckets": 8, "standardize": True}, hl.ConfigError, r"standardize: padding would count"),
        ({"buckets": 8, "collate_fn": list}, hl.ConfigError, r"buckets: .* collate_fn"),
        (
            {"buckets": [4, 8], "on_bad_sample": "replace"},
            hl.ConfigError,
            r"on_bad_sample: 'replace' .* another bucket",
        ),
        (
            {"buckets": [4, 8], "worker_type": "process"},
            hl.ConfigError,
            r"worker_type: processes pad to one length",
        ),
    ],
)
def test_wrong_options_are_named(options, error, words) -> None:
    def make_batches():
        list(hl.DataModule(Sequences(), batch_size=4, **options).train_batches(0))

    with pytest.raises(error, match=words):
        make_batches()


def test_options_of_buckets_want_buckets() -> None:
    for options in ({"lengths_as": "lengths"}, {"pad_value": 0.0}):
        with pytest.raises(hl.ConfigError, match=r"is of buckets, which there are none of"):
            hl.DataModule([(np.ones(3, np.float32), 0)] * 4, **options)


def test_wrong_samples_are_named() -> None:
    def build(*samples):
        return hl.DataModule(list(samples), buckets=[4, 8], batch_size=2)

    x = np.ones((3, 2), np.float32)
    with pytest.raises(hl.DataError, match=r"\[1\]: x must have a row at least, got shape \(0, 2"):
        build((x, 0), (x[:0], 1))
    with pytest.raises(hl.DataError, match=r"\[0\]: must have one array of rows as x"):
        build(((x, x), 0), ((x, x), 1))
    with pytest.raises(hl.DataError, match=r"\[1\]: must be a sample, got None"):
        build((x, 0), None)
    with pytest.raises(hl.ConfigError, match=r"buckets: pad samples that a dataset makes"):
        hl.DataModule((np.ones((4, 3), np.float32), np.zeros(4, int)), buckets=4)
    wrong = hl.DataModule(
        [(x, np.zeros(3, int)), (x, np.zeros(2, int))], buckets=4, batch_size=2, shuffle=False
    )
    said = r"\[{}\]: y must have a target for each of the {} rows of x, .* got shape \({},\)"
    with pytest.raises(hl.DataError, match=said.format(1, 3, 2)):
        list(wrong.train_batches(0))
    for later in (3, 2):  # targets of the first sample alone are short, or those of all
        with pytest.raises(hl.DataError, match=said.format(0, 3, 2)):
            build((x, np.zeros(2, int)), (np.ones((later + 1, 2), np.float32), np.zeros(3, int)))
    with pytest.raises(hl.DataError, match=r"buckets='auto' pads samples of several lengths"):
        list(hl.DataModule([(x, 0), (x[:2], 1)], batch_size=2).train_batches(0))
