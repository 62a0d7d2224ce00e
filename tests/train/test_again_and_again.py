"""Many trainings in one process, in forked ones, and without a network."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import hotloop as hl
import pytest
from fault.test_save_calls import preload
from hotloop import _core
from needs import is_flat
from train.recipes import classes, mlp

pytestmark = pytest.mark.filterwarnings("ignore::hotloop.CheckpointWarning")


def resident() -> int:
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.partition("VmRSS:")[2].split()[0])


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def train_often(n: int, folder: Path) -> None:
    """With and without output, other shapes now and then, some of them ended by an error."""
    data = hl.DataModule.from_arrays(*classes(), val=0.2, batch_size=16)

    def raising(outputs: hl.Tensor, targets: hl.Tensor) -> hl.Tensor:
        raise ValueError("a loss of the user's")

    def once(i: int) -> None:
        fields: dict[str, object] = {"enable_progress_bar": False, "max_epochs": 2}
        if i % 3 == 0:
            fields |= {"output_dir": folder / str(i % 2), "save_every": "2 steps", "ema": True}
        if i % 10 == 9:
            with pytest.raises(ValueError, match="of the user's"):
                hl.train(mlp(), data, loss=raising, **fields)
            return
        result = hl.train(mlp(), data, **fields)
        hl.predict(result, classes()[0][: 1 + i % 7])

    for i in range(30):
        once(i)
    gc.collect()
    before = resident(), count_descriptors(), threading.active_count()
    held = _core.alloc_stats()["current_bytes"]
    for i in range(n):
        once(i)
    gc.collect()
    assert (count_descriptors(), threading.active_count()) == before[1:]
    assert _core.alloc_stats()["current_bytes"] <= held
    assert is_flat(before[0], resident(), 8 << 20)


def test_trainings_leave_nothing_behind(tmp_path: Path) -> None:
    train_often(60, tmp_path)


@pytest.mark.long
def test_a_thousand_trainings_leave_nothing_behind(tmp_path: Path) -> None:
    train_often(1000, tmp_path)


FORKS = """
import os, sys
import hotloop as hl
from train.recipes import classes, mlp, quiet

def child(what):
    if os.fork() == 0:
        result = hl.train(mlp(), classes(), quiet(max_epochs=2))
        print(what, result.stop_reason, repr(result.history["loss"]), flush=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0

class Forking:
    def on_epoch_end(self, run):
        child("within")

child("before")
result = hl.train(mlp(), classes(), quiet(max_epochs=2))
print("parent", result.stop_reason, repr(result.history["loss"]), flush=True)
child("after")
hl.train(mlp(), classes(), quiet(max_epochs=1, callbacks=[Forking()]))
"""


def run(code: str, **env: str) -> str:
    paths = [str(Path(hl.__file__).parents[1]), str(Path(__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_forked_processes_train() -> None:
    """Before the parent trains, after it, and while it does: the same losses."""
    lines = [line.split(" ", 1) for line in run(FORKS).splitlines()]
    assert [line[0] for line in lines] == ["before", "parent", "after", "within"]
    assert {line[1] for line in lines} == {lines[0][1]}
    assert lines[0][1].startswith("completed [")


def test_nothing_asks_a_network(tmp_path: Path) -> None:
    """With default settings, from the import to a saved model."""
    code = """
import os, socket, sys
import hotloop as hl
from train.recipes import classes, mlp
result = hl.train(mlp(), classes(), max_epochs=2)
result.save(sys.argv[1] if len(sys.argv) > 1 else "net.safetensors")
hl.predict(hl.load("net.safetensors"), classes()[0][:3])
hl.evaluate(result, classes())
if os.environ.get("ASK"):
    socket.socket().close()
"""
    library = preload(tmp_path)
    for asks in (False, True):  # a test that hears nothing of the second is none
        noted = tmp_path / f"calls-{asks}"
        env = {"LD_PRELOAD": library, "FAULT_COUNTS": str(noted), "ASK": "1" if asks else ""}
        run(f"import os\nos.chdir({str(tmp_path)!r})\n" + code, **env)
        assert noted.exists() == asks
