"""num_workers="auto": threads chosen by measuring, once, and no trace of it in the results."""

import random
import threading
import time
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from data.spawned import Numbers
from hotloop import DataModule, _core, nn
from hotloop.errors import DataError
from hotloop.training.plans import loading


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> int:
    """Counts of threads as on a machine with so many processors."""
    info = _core.cpu_info()
    monkeypatch.setattr(loading._core, "cpu_info", lambda: {**info, "threads": 4})
    return 4


class Dataset:
    """What its subclasses make, and which threads asked for how much."""

    def __init__(self, n: int = 4000) -> None:
        self.n = n
        self.asked: list[int] = []
        self.threads: set[int] = set()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        self.asked.append(i)
        self.threads.add(threading.get_ident())
        self.work(i)
        return np.float32([i, i % 3]), i % 2

    def work(self, i: int) -> None: ...


class Waits(Dataset):
    """Lets other threads run meanwhile, as decoders and files do."""

    def work(self, i: int) -> None:
        time.sleep(0.002)


class Computes(Dataset):
    """Keeps the GIL."""

    def work(self, i: int) -> None:
        sum(range(6000))


def fit(data: DataModule, **options: Any) -> Any:
    options = {"max_epochs": 1, "limit_batches": 2, "precision": "fp32"} | options
    return hl.train(nn.Linear(2, 2), data, **options)


def test_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, want in [
        (1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]),
        (8, [1, 2, 4, 8]), (64, [1, 2, 4, 8, loading.MAX_LOADERS]),
    ]:  # fmt: skip
        monkeypatch.setattr(loading._core, "cpu_info", lambda n=threads: {"threads": n})
        assert loading._counts() == want


def test_samples_that_wait_are_made_by_many_threads(
    processors: int, capsys: pytest.CaptureFixture[str]
) -> None:
    data = DataModule(Waits(), batch_size=20)
    assert data.num_workers == 1
    fit(data)
    assert data.num_workers == processors
    header = " ".join(capsys.readouterr().err.split())
    assert "4 threads (measured 1: " in header
    assert "/s, 4: " in header
    assert "made by" not in header


@pytest.mark.parametrize(
    ("rates", "chosen"),
    [
        ({1: 100.0, 2: 104.0, 4: 99.0}, 1),  # samples that keep the GIL, on a noisy machine
        ({1: 100.0, 2: 106.0, 4: 99.0}, 2),
        ({1: 100.0, 2: 190.0, 4: 350.0}, 4),
        ({1: 100.0, 2: 340.0, 4: 350.0}, 2),
        ({1: 100.0}, 1),
    ],
)
def test_the_fewest_threads_near_the_best_are_chosen(
    rates: dict[int, float], chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_measure", lambda data: iter(rates.items()))
    data = DataModule(Computes(), batch_size=20)
    fit(data)
    assert data.num_workers == chosen
    assert data.auto_workers.words.startswith("measured 1: 100/s")


def test_it_is_measured_once(processors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = loading.BatchMaker
    monkeypatch.setattr(loading, "BatchMaker", lambda *a, **k: made.append(a[2]) or make(*a, **k))
    data = DataModule.from_datasets(Waits(), val=0.2, batch_size=20)
    fit(data)
    assert made == [1, 2, 4]
    fit(data)
    fit(data.subset(100))
    assert made == [1, 2, 4]
    for workers in (0, 1, 3):
        given = DataModule(Waits(), batch_size=20, num_workers=workers)
        fit(given)
        assert given.num_workers == workers
        assert given.auto_workers is None
    fit(DataModule.from_generator(lambda: ((np.zeros(2), 0) for _ in range(40)), 40, batch_size=20))
    fit(DataModule.from_arrays(np.zeros((40, 2)), np.arange(40) % 2))
    assert made == [1, 2, 4]


def test_processes_are_not_measured() -> None:
    data = DataModule(Numbers(20), batch_size=5, worker_type="process")
    before = data.num_workers
    loading.choose_workers(data)
    assert data.num_workers == before == min(4, _core.cpu_info()["threads"])
    assert not data.auto_workers.words


@pytest.mark.parametrize("seconds", [0.04, 0.4])
def test_slow_samples_stay_within_the_time(processors: int, seconds: float) -> None:
    """A sample that takes longer than all of it ends it, with no sample after that one."""

    class Slow(Dataset):
        def work(self, i: int) -> None:
            if len(self.asked) > 1:  # the first one is looked at when the DataModule is made
                time.sleep(seconds)

    dataset = Slow()
    data = DataModule(dataset, batch_size=500)
    began = time.perf_counter()
    loading.choose_workers(data)
    taken = time.perf_counter() - began
    if seconds > loading._EACH_SECONDS:
        assert data.num_workers == 1
        assert not data.auto_workers.words
        assert taken < 2 * seconds
        assert len(dataset.asked) <= 3
    else:
        assert data.num_workers == processors
        assert taken < 6 * (loading._EACH_SECONDS + seconds) + 0.3


def test_each_count_has_its_time_and_no_more(processors: int) -> None:
    """Of quick samples an epoch at most for each count; all in the order of training."""
    dataset = Dataset(300)
    data = DataModule(dataset, batch_size=10)
    loading.choose_workers(data)
    assert set(dataset.asked) <= set(range(300))
    assert len(dataset.asked) < 5 * 300
    dataset = Waits(100_000)
    data = DataModule(dataset, batch_size=10)
    began = time.perf_counter()
    loading.choose_workers(data)
    assert time.perf_counter() - began < 4 * 3 * loading._EACH_SECONDS
    # Each goes on where the one before ended; some are read again to compare them.
    assert len(set(dataset.asked)) > 0.65 * len(dataset.asked)
    single = Dataset(1)
    loading.choose_workers(data := DataModule(single, batch_size=1))
    assert not data.auto_workers.words
    assert set(single.asked) == {0}


@pytest.mark.parametrize("bad", [0, 7])
def test_a_bad_sample_is_the_runs_to_meet(bad: int) -> None:
    class Broken(Dataset):
        def work(self, i: int) -> None:
            if i == bad and len(self.asked) > 1:
                raise OSError("broken")

    data = DataModule(Broken(20), batch_size=5)
    loading.choose_workers(data)
    assert data.num_workers == 1
    with pytest.raises(DataError, match=rf"train_dataset\[{bad}\]: raised OSError: broken") as e:
        fit(data, limit_batches=None)
    assert isinstance(e.value.__cause__, OSError)


class Noisy(Dataset):
    """Draws from the generators that all code shares."""

    def __getitem__(self, i: int) -> Any:
        return np.float32([random.random(), np.random.random()]), i % 2


def test_shared_random_numbers_are_as_without_measuring(processors: int) -> None:
    found = []
    for workers in ("auto", 1):
        random.seed(3)
        np.random.seed(3)
        data = DataModule(Noisy(200), batch_size=20, num_workers=workers)
        found.append(fit(data, limit_batches=None, max_epochs=2).history["loss"])
        if workers == "auto":
            assert data.auto_workers.threads == 1
            assert data.auto_workers.words == "samples draw random numbers in the order of calls"
    assert found[0] == found[1]


def test_code_that_minds_threads_stays_with_one(processors: int) -> None:
    class OneFile(Dataset):
        """A place in a file, which all threads move."""

        at = 0

        def __getitem__(self, i: int) -> Any:
            self.at = i
            time.sleep(0.001)
            return np.float32([self.at, 1]), i % 2

    data = DataModule(OneFile(), batch_size=20)
    loading.choose_workers(data)
    assert data.num_workers == 1
    assert data.auto_workers.words == "samples differ when several threads read them again"


def test_the_choice_changes_no_results(processors: int) -> None:
    runs = []
    for workers in ("auto", 1, 2, 5):
        data = DataModule.from_datasets(
            Waits(300), val=0.2, batch_size=20, shuffle=True, num_workers=workers
        )
        result = fit(data, limit_batches=None, max_epochs=2)
        runs.append((result.history["loss"], result.history["val_loss"]))
        assert data.num_workers > 1 if workers == "auto" else data.num_workers == workers
    assert all(run == runs[0] for run in runs)


def test_an_order_that_is_drawn_is_as_without_measuring(processors: int) -> None:
    """A sampler that draws from a shared generator is asked as often, from the same states."""
    orders = []

    class Sampler:
        def __iter__(self) -> Any:
            order = np.random.permutation(40)
            orders[-1].append(order.tolist())
            return iter(order)

        def __len__(self) -> int:
            return 40

    losses = []
    for workers in ("auto", 1):
        np.random.seed(4)
        orders.append([])
        data = DataModule(Waits(40), batch_size=10, sampler=Sampler(), num_workers=workers)
        losses.append(fit(data, limit_batches=None, max_epochs=3).history["loss"])
    assert orders[0] == orders[1]
    assert losses[0] == losses[1]


def test_an_epoch_that_cannot_begin_is_the_runs_to_say(processors: int) -> None:
    class Broken(Waits):
        def set_epoch(self, epoch: int) -> None:
            raise OSError(f"no epoch {epoch}")

    data = DataModule(Broken(40), batch_size=10)
    loading.choose_workers(data)
    assert data.num_workers == 1
    with pytest.raises(DataError, match="no epoch 0"):
        fit(data)
