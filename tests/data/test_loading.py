"""Functions over many items, rates of loading, samples looked at ahead."""

import threading
import time
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from data.spawned import Numbers
from hotloop import DataModule
from hotloop.errors import ConfigError, DataError


@pytest.mark.parametrize("workers", [1, 3])
def test_parallel_map_keeps_the_order(workers: int) -> None:
    threads = set()

    def slow(i: int) -> int:
        threads.add(threading.get_ident())
        time.sleep(0.001 * (i % 5))
        return i * i

    assert hl.parallel_map(slow, range(40), workers) == [i * i for i in range(40)]
    assert len(threads) == workers
    assert hl.parallel_map(slow, (i for i in range(3)), progress=False) == [0, 1, 4]
    assert hl.parallel_map(slow, []) == []


def test_parallel_map_in_processes() -> None:
    assert hl.parallel_map(len, ["a", "bb", "ccc"], 2, processes=True) == [1, 2, 3]


def test_the_first_failure_names_its_item() -> None:
    asked = []

    def broken(i: int) -> int:
        asked.append(i)
        if i in (11, 13):
            raise OSError(f"no {i}")
        time.sleep(0.001)
        return i

    with pytest.raises(DataError, match=r"parallel_map: item 11, 11: raised OSError: no 11") as e:
        hl.parallel_map(broken, range(1000), 2)
    assert isinstance(e.value.__cause__, OSError)
    assert len(asked) < 100  # the others are left out
    with pytest.raises(ConfigError, match="fn must be a function"):
        hl.parallel_map(3, [])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="workers: must be at least 1"):
        hl.parallel_map(len, [], 0)


def test_parallel_map_has_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    hl.parallel_map(len, ["a"] * 5, 1, progress=True)
    assert "5/5" in capsys.readouterr().err


class Waiting:
    """Samples that take a while."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int) -> Any:
        time.sleep(0.002)
        return np.zeros(3), i % 2


def test_more_workers_are_faster(capsys: pytest.CaptureFixture[str]) -> None:
    data = DataModule(Waiting(), batch_size=5)
    rates = hl.bench_data(data, [0, 4], seconds=0.4)
    assert rates[0] < 500
    assert rates[4] > 2 * rates[0]
    assert rates.best == 4
    assert "num_workers" in capsys.readouterr().err
    val = DataModule(Waiting(), Waiting(), batch_size=7)
    assert list(hl.bench_data(val, [1], split="val", seconds=0.1, verbose=False)) == [1]
    with pytest.raises(ConfigError, match="test: the data has no such split"):
        hl.bench_data(data, [0], split="test")
    with pytest.raises(ConfigError, match="seconds: must be greater than 0"):
        hl.bench_data(data, [0], seconds=0)
    with pytest.raises(DataError, match=r"train_dataset\[7\]"):
        hl.bench_data(DataModule(Numbers(20, 7, "raise"), batch_size=5), [1])


def test_rates_that_are_near() -> None:
    rates = hl.bench_data((np.zeros((100, 2)), np.arange(100) % 2), [0], seconds=0.05)
    rates.update({0: 90.0, 1: 96.0, 2: 100.0})
    assert rates.best == 1


def test_verify() -> None:
    data = DataModule(Numbers(20, 7, "raise"), Numbers(10))
    assert data.verify() == {"train": {7: "train_dataset[7]: raised OSError: broken"}}
    assert DataModule(Numbers(20)).verify(workers=3) == {}
    part = DataModule.from_datasets(Numbers(20, 7, "raise"), val=0.5)
    assert list(part.verify()) == (["train"] if 7 in part.split("train").rows else ["val"])
    X = np.zeros((5, 2))
    X[3] = np.nan
    with pytest.raises(DataError, match="row 3"):
        DataModule((X, np.arange(5) % 2)).verify()
