"""Ctrl-C and SIGTERM, in processes of their own: acknowledged, nothing lost, handlers back."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import hotloop as hl
import pytest
from hotloop import _core

HEAD = """
import signal, sys, time
import numpy as np, hotloop as hl
from hotloop import nn
from train.recipes import classes, mlp, quiet, weights
X, Y = classes(4000, 64, 5)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 5))
data = hl.DataModule.from_arrays(X, Y, val=0.1, batch_size=50)
class Say:
    def on_epoch_end(self, run):
        if run.epoch == 1: print("READY", flush=True)
config = quiet(max_epochs=10**6, lr=1e-3, callbacks=(Say(),))
"""

RAISES = (
    HEAD
    + """
before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
try:
    hl.train(model, data, config)
except hl.TrainingInterrupted as error:
    result = error.result
    assert isinstance(error, KeyboardInterrupt)
    assert result.stop_reason == "interrupted" and result.steps > 0 and result.epochs >= 1
    assert all(np.isfinite(v).all() for v in weights(result.model).values())
    assert hl.predict(result.model, X[:5]).shape == (5, 5)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert hl.train(model, data, quiet(max_epochs=1)).stop_reason == "completed"
    print("GOOD", flush=True)
"""
)

RETURNS = (
    HEAD
    + """
result = hl.train(model, data, config.replace(on_interrupt="return"))
assert result.stop_reason == "interrupted" and len(result.history["loss"]) == result.epochs
print("GOOD", flush=True)
"""
)

OWN_HANDLER = (
    HEAD
    + """
seen = []
def mine(number, frame): seen.append(number)
signal.signal(signal.SIGINT, mine)
result = hl.train(model, data, config.replace(on_interrupt="return"))
assert seen == [signal.SIGINT], seen
assert signal.getsignal(signal.SIGINT) is mine
print("GOOD", flush=True)
"""
)

# One step of half a minute, so that it outlasts whatever else a machine does: a second Ctrl-C must
# not wait for it.
LONG_STEP = """
import numpy as np, hotloop as hl, threading, time
from hotloop import nn
from train.recipes import quiet
X = np.random.default_rng(0).standard_normal((8 * 4096, 512), dtype=np.float32)
Y = np.arange(8 * 4096) % 5
layers = [layer for _ in range(100) for layer in (nn.Linear(512, 512), nn.BatchNorm1d(512))]
model = nn.Sequential(*layers, nn.Linear(512, 5))
data = hl.DataModule.from_arrays(X, Y, batch_size=4096)
before = {k: v.copy() for k, v in model.state_dict().items()}
class Say:
    def on_train_begin(self, run): threading.Timer(0.3, lambda: print("READY", flush=True)).start()
try:
    config = quiet(max_epochs=1000, lr=1e-3, accumulate_grad_batches=8, callbacks=(Say(),))
    hl.train(model, data, config)
except hl.TrainingInterrupted as error:
    assert error.result.steps == 0
    after = model.state_dict()
    assert all(v.tobytes() == before[k].tobytes() for k, v in after.items() if "running" not in k)
    print("GOOD", flush=True)
"""


def start(code: str) -> subprocess.Popen[str]:
    """A process that trains and says READY."""
    paths = [str(Path(hl.__file__).parents[1]), str(Path(__file__).parents[1])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "READY\n", line + (process.communicate()[1] or "")
    return process


HANGS = 600.0  # s; a guard, not a measurement: sanitizers beside other work are slow


def finish(process: subprocess.Popen[str]) -> tuple[str, str, float]:
    """Output, errors and the seconds that it took."""
    began = time.perf_counter()
    try:
        out, err = process.communicate(timeout=HANGS)
    finally:
        process.kill()
    return out, err, time.perf_counter() - began


@pytest.mark.parametrize(
    "code", [RAISES, RETURNS, OWN_HANDLER], ids=["raises", "returns", "chained"]
)
def test_ctrl_c(code: str) -> None:
    process = start(code)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err, _ = finish(process)
    assert out == "GOOD\n", err
    assert process.returncode == 0


def test_acknowledged_within_half_a_second() -> None:
    code = HEAD.replace("10**6, lr", "10**6, on_interrupt='return', lr") + (
        "hl.train(model, data, config)\nprint('END', flush=True)\n"
    )
    process = start(code)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    began = time.perf_counter()
    assert process.stdout is not None
    process.stdout.readline()
    elapsed = time.perf_counter() - began
    finish(process)
    assert elapsed < (HANGS if _core.build_info()["sanitizers"] else 0.5)


def test_second_ctrl_c_abandons_the_step() -> None:
    process = start(LONG_STEP)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "interrupted" not in process.stderr.readline():
        pass  # two signals before the first was seen are one
    process.send_signal(signal.SIGINT)
    out, err, _ = finish(process)
    assert "GOOD" in out, err


def test_sigterm_ends_the_process_as_it_would_have() -> None:
    process = start(HEAD + "hl.train(model, data, config)\nprint('UNREACHED')\n")
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, _, _ = finish(process)
    assert process.returncode == -signal.SIGTERM
    assert "UNREACHED" not in out


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    code = HEAD.replace("10**6, lr", "200, lr") + (
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print(hl.train(model, data, config).stop_reason, flush=True)\n"
    )
    process = start(code)
    process.send_signal(signal.SIGINT)
    out, err, _ = finish(process)
    assert out == "completed\n", err
