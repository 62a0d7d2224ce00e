"""Ctrl-C and SIGTERM at random times in every phase of a program that trains.

What was asked for is said within half a second, files are whole and a run goes on from them, the
user's handlers are back, and the process ends as signals end it.

The fast tier has one of each phase, the long one six, HOTLOOP_PROOF a hundred of each signal.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import hotloop as hl
import pytest
from fault.test_checkpoints import steps_of
from hotloop import _core
from hotloop.training.checkpoints.keeper import checkpoints_in
from hotloop.training.checkpoints.snapshot import Snapshot

# argv: phase, folder. It says BEGIN where the phase begins, and how it was ended.
PROGRAM = """
import signal, sys, time
phase, folder = sys.argv[1:]
def begin(at):
    if phase == at: print("BEGIN", flush=True)
import numpy as np, numpy.random  # whose own imports lose a Ctrl-C, or make other errors of it
begin("import")
import hotloop as hl
from hotloop import nn

class Slow:
    def __len__(self): return 64
    def __getitem__(self, i):
        if phase == "data wait": time.sleep(0.05)
        return np.full(16, i, np.float32), i % 4

class Say:
    def on_train_begin(self, run):
        if phase != "save": begin(phase)
    def on_checkpoint(self, run):
        begin("save")

wide = {"step": 1536, "validation": 256, "save": 1200}.get(phase, 64)
deep = 60 if phase == "planning" else 2
layers = [part for _ in range(deep) for part in (nn.Linear(wide, wide), nn.ReLU())]
model = nn.Sequential(nn.Linear(16, wide), *layers, nn.Linear(wide, 4))
rng = np.random.default_rng(0)
def rows(n):
    return rng.normal(size=(n, 16)).astype(np.float32), np.arange(n) % 4
if phase == "data wait":
    data = hl.DataModule(Slow(), batch_size=8, num_workers=2)
else:
    n = 8192 if phase == "step" else 256
    val = rows(60_000) if phase == "validation" else None
    data = hl.DataModule.from_arrays(*rows(n), val=val, batch_size=n if phase == "step" else 32)
fields = dict(max_epochs=10**6, enable_model_summary=False, enable_progress_bar=False)
if phase != "planning":
    every = "1 steps" if phase == "save" else "5 steps"
    fields |= dict(output_dir=folder, save_every=every, save_top_k=0)
before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
begin("planning")
try:
    hl.train(model, data, callbacks=[Say()], **fields)
except hl.TrainingInterrupted as error:
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert error.result.stop_reason == "interrupted"
    print("INTERRUPTED", error.result.steps, flush=True)
    raise
"""
PHASES = ("import", "planning", "data wait", "step", "validation", "save")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
LIMIT = 600.0 if _core.build_info()["sanitizers"] else 0.5
BUSY = 4.0  # what a test that other programs run beside may take in its place


def end_one(phase: str, number: signal.Signals, seed: int, folder: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, phase, str(folder)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(Path(hl.__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    assert line == "BEGIN\n", line + process.communicate()[1]
    heard: list[float] = []
    said: list[str] = []

    def listen() -> None:
        for line in process.stderr:
            said.append(line)
            if "hotloop: interrupted" in line:
                heard.append(time.monotonic())

    listener = threading.Thread(target=listen)
    listener.start()
    time.sleep(random.Random(seed).uniform(0, 0.4))
    sent = time.monotonic()
    process.send_signal(number)
    try:
        status = process.wait(20 if phase == "import" else 120)
    except subprocess.TimeoutExpired:
        # Python drops what a callback of its import lock raises; a user sends it again.
        if not any("_get_module_lock" in line for line in said):
            raise AssertionError((phase, number, seed, "".join(said)[-2000:])) from None
        process.send_signal(number)
        status = process.wait(120)
    finally:
        process.kill()  # if it still runs
        listener.join()
    if phase == "import" and any("Error calling __set_name__" in line for line in said):
        return  # what Python 3.11 makes of any exception there
    out = process.stdout.read()
    why = (phase, number, seed, "".join(said)[-2000:])
    assert status == -number, why
    if number == signal.SIGINT and phase != "import":
        assert heard, why
        assert heard[0] - sent < max(LIMIT, BUSY * LIMIT * (os.getloadavg()[0] > 2)), why
        assert "INTERRUPTED" in out, why
    if phase in ("import", "planning"):
        return
    kept = checkpoints_in(str(folder / "1"))
    for one in kept:
        Snapshot.read(one.path)
    if number == signal.SIGINT:
        steps = int(out.partition("INTERRUPTED")[2])
        assert [steps_of(one.path) for one in kept[:1]] == [steps][: steps > 0], why
    assert not list(folder.rglob(".*.tmp.*"))


@pytest.mark.parametrize("phase", PHASES)
def test_a_signal(phase: str, tmp_path: Path) -> None:
    end_one(phase, SIGNALS[PHASES.index(phase) % 2], 0, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("phase", PHASES)
def test_many_signals(phase: str, number: signal.Signals, tmp_path: Path) -> None:
    for seed in range(1, 18 if os.environ.get("HOTLOOP_PROOF") else 4):
        end_one(phase, number, seed, tmp_path / str(seed))


# argv: none. It shows messages all the time.
TALKS = """
import numpy as np
import hotloop as hl
data = hl.DataModule.from_arrays(np.zeros((8, 4), np.float32), np.zeros(8, int), batch_size=8)
model = hl.nn.Linear(4, 2)
print("BEGIN", flush=True)
try:
    hl.train(model, data, max_epochs=10**6, verbose=verbose)
except hl.TrainingInterrupted as error:
    print("INTERRUPTED", error.result.steps, flush=True)
"""


def talk(take: int, reading: int, writing: int, verbose: str) -> tuple[subprocess.Popen[str], int]:
    """A program whose messages go to a reader who takes that many bytes of them."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"verbose = {verbose!r}{TALKS}"],
        env={
            **{k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
            "PYTHONPATH": str(Path(hl.__file__).parents[1]),
        },
        stdout=subprocess.PIPE,
        stderr=writing,
        text=True,
    )
    os.close(writing)
    assert process.stdout is not None
    assert process.stdout.readline() == "BEGIN\n"
    while take > 0:
        take -= len(os.read(reading, take))
    return process, reading


def test_ctrl_c_in_the_middle_of_a_message() -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    process, reading = talk(20_000, reading, writing, "lines")
    time.sleep(0.5)  # the pipe is full, so that each message waits
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    told = b""
    while part := os.read(reading, 65536):
        told += part
    os.close(reading)
    out, _ = process.communicate(timeout=60)
    assert out.startswith("INTERRUPTED")
    assert b"interrupted; finishing this step" in told
    assert process.returncode == 0


@pytest.mark.parametrize("end", ["pipe", "terminal"])
def test_messages_that_nobody_reads_do_not_end_training(end: str) -> None:
    terminal = end == "terminal"
    reading, writing = os.openpty() if terminal else os.pipe()
    process, reading = talk(300, reading, writing, "auto" if terminal else "lines")
    os.close(reading)
    time.sleep(1.2)  # of which a bar is drawn twice
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out.startswith("INTERRUPTED")
    assert process.returncode in (0, 120)  # 120 is Python's own, of a stream that it can't flush
