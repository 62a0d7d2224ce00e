"""The GIL is released around everything that may wait: for a GPU, or for another thread.

The emulated driver is asked in every call whether Python's lock is held by the thread that makes
it: a driver may take as long as it likes in any of them, and no other Python thread runs meanwhile.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hotloop import _core
from needs import NO_KERNELS

WATCH = """
import ctypes, gc, sys
import numpy as np
import hotloop as hl
from hotloop import _core, nn

driver = ctypes.CDLL(sys.argv[1])
driver.hl_fake_message.restype = ctypes.c_char_p
driver.hl_fake_calls.restype = ctypes.c_int64
is_held = ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p)
held = ctypes.c_char_p(b"the GIL held")
driver.hl_fake_forbid(is_held, held)


def did(what):
    '''What was just done made calls of the driver, none of them with the GIL held.'''
    global seen
    calls = driver.hl_fake_calls(None)
    assert calls > seen, f"{what} made no call of the driver: nothing was tested"
    seen = calls
    held_none(what)


def held_none(what):
    assert not driver.hl_fake_message(), f"{what}: {driver.hl_fake_message().decode()}"


seen = 0
"""

PARTS = """
_core.survey("cuda")
did("survey")
device = _core.Device("cuda")
did("Device")
device.memory()
did("memory")
device.memory_peak_reset()
device.autotune_read(device.autotune_cache())

session = _core.Session(device)
session.store("a", "float32", 1 << 16)
session.store("b", "float32", 1 << 16)
did("store")
session.write("a", np.ones(1 << 16, np.float32))
did("write")
session.copy("b", "a")
did("copy")
session.read("b", "float32")
did("read")


def make_graph():
    g = _core.Graph()
    g.store("seen", "int64", 4)
    rows = g.input("rows", "int64", (4,))
    data = g.dataset("data", "float32", (10, 3))
    (x,) = g.add("batch_gather", [data, rows], dtype="float32")
    (y,) = g.add("matmul", [x, g.const(np.ones((3, 3), np.float32))])
    g.output(y)
    g.accumulate(g.state("seen", "int64", (4,), "seen", 0), rows)
    return g


data = np.ones((10, 3), np.float32)
graph = make_graph()
_core.predict(device, graph)
plan = _core.Plan(session, graph, n_slots=3)
did("Plan")
session.control_set(attempted=1)
did("control_set")
session.control()
did("control")
session.control_log(0)
did("control_log")
session.snapshot(), session.stores()
plan.dataset(0, data)
did("dataset")
resident = _core.Resident(device, data)
did("Resident")
plan.dataset(0, resident)
did("dataset of a Resident")
plan.dataset(0, data)
plan.input(0, np.arange(4))
did("input")
plan.run(3, 10.0)
did("run")
plan.output(0)
did("output")
plan.profile()
did("profile")
plan.info(), str(plan), plan.k, plan.unfinished
feed = _core.Feed(10, 4, n_slots=3, n_threads=2)
plan.feed(feed)
held_none("feed")
feed.seek(0)
assert plan.run(1, 10.0) == ("done", 1)
feed.seek(1)
held_none("seek")
plan.abandon()
plan.feed(None)
held_none("feed of None")
fed = _core.Plan(session, graph, n_slots=3, fed=True)
fed.dataset(0, data)
fed.feed(feed)
feed.seek(0)
assert fed.run(2, 10.0) == ("done", 2)
did("a run of a plan that is fed")
feed.seek(0, 1)
did("seek with loaders")
runner = _core.Runner([(fed, 2)], 2)
runner.seek(0)
held_none("seek of a runner")
assert runner.run(1, 10.0)[0] == "done"
did("run of a runner")
runner.abandon()
runner.close()
fed.close()
did("close of a plan")
del plan
did("the end of a plan")


class Tagged(np.ndarray):
    pass


plan = _core.Plan(session, graph)
tagged = data.view(Tagged)
tagged.plan = plan
plan.dataset(0, tagged)
did("dataset")
del plan, tagged
gc.collect()
did("the end of a plan in a cycle")
session.close()
did("close of a session")
session = _core.Session(device)
session.store("a", "float32", 100)
did("store")
del session
did("the end of a session")
del resident
did("the end of a Resident")
del device
did("the end of a device")
"""

WHOLE = """
x, y = hl.load_digits()
data = hl.DataModule.from_arrays(x, y, val=0.2, batch_size=64)
model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
result = hl.train(model, data, max_epochs=1, accelerator="cuda", logger=False,
                  enable_progress_bar=False)
did("train")
hl.predict(result.model, x[:100])
hl.evaluate(result, data, split="val")
hl.empty_cache()
did("predict and evaluate")
hl.devices()
did("devices")
"""


@pytest.mark.skipif(not _core.build_info()["cuda"], reason=NO_KERNELS)
@pytest.mark.parametrize("body", [PARTS, WHOLE], ids=["every entry of the core", "training"])
def test_no_call_of_the_driver_holds_the_gil(body: str, fake: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HOTLOOP_CU", "HL_FAKE"))}
    env |= {"HOTLOOP_CUDA_PATH": str(fake), "HOTLOOP_CUBLASLT_PATH": "none"}
    env |= {"HOTLOOP_NVRTC_PATH": "none"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WATCH) + body, str(fake)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
