"""Processes that make samples: the same batches, nothing left behind, what kills them."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from data.spawned import NotThere, Numbers
from hotloop import DataModule, nn
from hotloop.errors import ConfigError, DataError
from train.recipes import quiet


def make(dataset: Any, workers: int = 2, **options: Any) -> DataModule:
    options = {"batch_size": 8, "worker_type": "process", "num_workers": workers, **options}
    return DataModule(dataset, **options)


def fit(data: DataModule, epochs: int = 2) -> Any:
    return hl.train(nn.Linear(3, 3), data, quiet(max_epochs=epochs, precision="fp32"))


def children() -> set[int]:
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(pid) for pid in listed}


def test_batches_are_those_of_threads() -> None:
    data = make(Numbers(50))
    plain = DataModule(Numbers(50), batch_size=8)
    for epoch in (0, 1):
        for got, want in zip(data.train_batches(epoch), plain.train_batches(epoch), strict=True):
            np.testing.assert_array_equal(got["x"][:, :2], want["x"][:, :2])
            np.testing.assert_array_equal(got["y"], want["y"])
            assert not (got["x"][:, 2] == np.float32(os.getpid())).any()


def test_nothing_is_left_behind() -> None:
    before, shared = children(), set(os.listdir("/dev/shm"))
    data = make(Numbers(50))
    fit(data)
    assert len(children() - before) in (1, 2, 3)  # and perhaps that of resource tracking
    assert set(os.listdir("/dev/shm")) == shared
    workers = children() - before
    del data
    gc.collect()
    end = time.monotonic() + 10
    while any(_is_alive(pid) for pid in workers) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(_is_alive(pid) for pid in workers)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return state != "Z" and b"resource_tracker" not in command


def test_what_a_sample_raises() -> None:
    data = make(Numbers(50, 20, "raise"))
    with pytest.raises(DataError, match=r"train_dataset\[20\]: raised OSError: broken"):
        fit(data)
    skipping = make(Numbers(50, 20, "raise"), on_bad_sample="skip")
    with pytest.warns(hl.DataWarning, match="1 bad sample of train"):
        fit(skipping)
    assert list(skipping.bad_samples["train"]) == [20]


def test_a_worker_that_is_killed() -> None:
    data = make(Numbers(50, 20, "die"))
    began = time.monotonic()
    with pytest.raises(DataError, match=r"train_dataset: a worker process was ended by SIGKILL"):
        fit(data)
    assert time.monotonic() - began < 20
    data = make(Numbers(50))
    fit(data)  # and others come in its place


def test_datasets_that_cannot_go_there() -> None:
    class Local(Numbers):
        pass

    with pytest.raises(ConfigError, match=r"worker_type: train_dataset must be picklable"):
        make(Local(10))
    data = make(NotThere())
    with pytest.raises(DataError, match=r"must be importable in a new process.*no NotThere"):
        fit(data)


def test_processes_end_with_their_parent(tmp_path: Path) -> None:
    code = """
import os, sys
sys.path.insert(0, sys.argv[1])
if __name__ == "__main__":
    import hotloop as hl
    from data.spawned import Numbers
    data = hl.DataModule(Numbers(64, 40, "wait"), batch_size=8, worker_type="process",
                         num_workers=2, shuffle=False)
    batches = data.train_batches(1)
    next(batches)
    children = open(f"/proc/self/task/{os.getpid()}/children").read()
    print(children, flush=True)
    list(batches)
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    tests = str(Path(__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, str(script), tests], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        workers = [int(pid) for pid in process.stdout.readline().split()]
        assert workers
        time.sleep(0.5)  # one waits in its dataset
        process.send_signal(signal.SIGKILL)
    end = time.monotonic() + 5
    while any(_is_alive(pid) for pid in workers) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(_is_alive(pid) for pid in workers)
