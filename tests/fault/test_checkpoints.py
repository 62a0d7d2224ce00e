"""Runs that are killed, and files that are damaged: nothing that was saved is lost, and the run
goes on with the bits that it would have had.

The fast tier kills a few runs, the long one more, HOTLOOP_PROOF 300.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop.interop.safetensors_file import read_safetensors
from hotloop.training.checkpoints.keeper import checkpoints_in
from hotloop.training.checkpoints.snapshot import Snapshot
from hotloop.training.scoring.names import MEASURED

EVERY = 5  # steps from one checkpoint to the next
PER_EPOCH = 12

# What runs in a process of its own, and here to its end.
RUN = f"""
import sys, time
import numpy as np
import hotloop as hl
from hotloop import nn

class Slow:
    def on_epoch_end(self, run):
        if self.seconds:
            print(run.last_path or "none", flush=True)
            time.sleep(self.seconds)

def run(folder, seconds=0.0):
    hl.manual_seed(0)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, {PER_EPOCH * 8 * 5 // 4})
    X = (rng.normal(size=(len(y), 16)) + y[:, None]).astype(np.float32)
    model = nn.Sequential(
        nn.Linear(16, 200), nn.BatchNorm1d(200), nn.ReLU(), nn.Dropout(0.3), nn.Linear(200, 3)
    )
    slow = Slow()
    slow.seconds = seconds
    return hl.train(
        model, hl.DataModule.from_arrays(X, y, val=0.2, batch_size=8), max_epochs=25, ema=True,
        output_dir=folder, save_every="{EVERY} steps", resume="auto", callbacks=[slow],
        enable_progress_bar=False,
    )
"""
START = RUN + "run(sys.argv[1], 0.03)\n"
# By default a checkpoint comes ten seconds after the one before, here a twentieth of one.
UNASKED = f"""{RUN.replace(f'save_every="{EVERY} steps", ', "")}
from hotloop.training.checkpoints import keeper

keeper._BETWEEN, keeper._SHARE = 0.05, float("inf")
run(sys.argv[1], 0.03)
"""
CARELESS = f"""{RUN}
from hotloop import _core

def write(path, parts):
    with open(path, "wb", buffering=0) as file:
        for part in parts:
            data = memoryview(part).cast("B")
            for i in range(0, len(data), 4096):
                file.write(data[i : i + 4096])
                time.sleep(0.005)

_core.write_file = write
run(sys.argv[1], 0.03)
"""

_names: dict[str, Any] = {}
exec(RUN, _names)  # the same code here
run = _names["run"]

pytestmark = pytest.mark.filterwarnings("ignore::hotloop.CheckpointWarning")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the run ends with that nothing stops."""
    return state_of(run(tmp_path_factory.mktemp("whole")))


def state_of(result: hl.TrainResult) -> dict[str, bytes]:
    tensors, _ = read_safetensors(str(result.last_path))
    history = {k: np.array(v) for k, v in result.history.items() if k not in MEASURED}
    values = {**tensors, **result.model.state_dict(), **history}
    return {name: np.asarray(value).tobytes() for name, value in values.items()}


def steps_of(path: str) -> int:
    return int(Path(path).stem.removeprefix("step-"))


def kill_one(folder: Path, seed: int, code: str = START) -> int:
    """Starts the run, kills it after its first checkpoint; steps of the last one it knew of."""
    child = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not list(folder.glob("1/checkpoints/step-*")):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(random.Random(seed).uniform(0, 0.9))
    child.kill()
    said, _ = child.communicate(timeout=30)
    known = [line for line in said.decode().split("\n")[:-1] if line != "none"]
    return steps_of(known[-1]) if known else 1


def check_and_go_on(folder: Path, known: int, whole: dict[str, bytes]) -> None:
    kept = checkpoints_in(str(folder / "1"))
    assert kept
    for one in kept:  # every one of them is whole
        Snapshot.read(one.path)
    assert steps_of(kept[0].path) >= known  # what was on disk is there
    assert state_of(run(folder)) == whole
    assert not list((folder / "1").rglob(".*"))  # what was half written is swept


@pytest.mark.parametrize("seed", range(3))
def test_killed_runs_go_on(seed: int, tmp_path: Path, whole: dict[str, bytes]) -> None:
    check_and_go_on(tmp_path, kill_one(tmp_path, seed), whole)


def test_a_killed_run_that_did_not_ask_for_checkpoints_goes_on(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    """Nearly each of its epochs is the best so far, whose model is written besides."""
    check_and_go_on(tmp_path, kill_one(tmp_path, 0, UNASKED), whole)


@pytest.mark.long
def test_many_killed_runs(tmp_path: Path, whole: dict[str, bytes]) -> None:
    for seed in range(3, 300 if os.environ.get("HOTLOOP_PROOF") else 23):
        folder = tmp_path / str(seed)
        check_and_go_on(folder, kill_one(folder, seed), whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save(number: signal.Signals, tmp_path: Path, whole: dict[str, bytes]) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", START, str(tmp_path)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    while not list(tmp_path.glob("1/checkpoints/step-*")):
        assert child.poll() is None
        time.sleep(0.002)
    child.send_signal(number)
    _, said = child.communicate(timeout=30)
    if number == signal.SIGTERM:
        assert child.returncode == -signal.SIGTERM
    else:
        assert b"TrainingInterrupted" in said
    check_and_go_on(tmp_path, 0, whole)


def test_a_careless_writer_is_found_out(tmp_path: Path, whole: dict[str, bytes]) -> None:
    """The same kills of the same run, whose files are written in place to a slow disk."""
    for seed in range(20):
        folder = tmp_path / str(seed)
        try:
            check_and_go_on(folder, kill_one(folder, seed, CARELESS), whole)
        except (AssertionError, hl.CheckpointError):
            return
    pytest.fail("no kill came within a write")


# ---- damage of files


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    result = run(tmp_path_factory.mktemp("damage"))
    return Path(str(result.last_path)).read_bytes()


def header_size(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")


def is_detected(path: Path, data: bytes) -> bool:
    path.write_bytes(data)
    try:
        Snapshot.read(str(path))
    except hl.CheckpointError:
        return True
    return False


def test_truncations(checkpoint: bytes, tmp_path: Path) -> None:
    end = header_size(checkpoint)
    ends = range(0, end, 1 if os.environ.get("HOTLOOP_PROOF") else 97)
    rng = random.Random(0)
    for size in (*ends, *(rng.randrange(end, len(checkpoint)) for _ in range(256))):
        assert is_detected(tmp_path / "file.safetensors", checkpoint[:size]), size


def test_flipped_bits(checkpoint: bytes, tmp_path: Path) -> None:
    rng = random.Random(1)
    size, end = len(checkpoint), header_size(checkpoint)
    places = [rng.randrange(8 * size) for _ in range(200)]
    places += [rng.randrange(8 * end) for _ in range(200)]
    if os.environ.get("HOTLOOP_PROOF"):
        places = [*range(8 * 8), *(rng.randrange(8 * size) for _ in range(10_000))]
    for place in places:
        data = bytearray(checkpoint)
        data[place // 8] ^= 1 << place % 8
        assert is_detected(tmp_path / "file.safetensors", bytes(data)), place


def test_more_at_the_end(checkpoint: bytes, tmp_path: Path) -> None:
    assert is_detected(tmp_path / "file.safetensors", checkpoint + b"\0")
    assert not is_detected(tmp_path / "file.safetensors", checkpoint)


def test_weights_of_a_damaged_file(checkpoint: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    path.write_bytes(checkpoint)
    hl.read_weights(path)
    path.write_bytes(checkpoint[:-1] + bytes([checkpoint[-1] ^ 1]))
    with pytest.raises(hl.CheckpointError, match="is damaged: the bytes of"):
        hl.read_weights(path)
