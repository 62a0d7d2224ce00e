"""In a real Jupyter kernel: what a cell shows, a cell that is interrupted, the cell after it."""

from __future__ import annotations

import queue
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from needs import take_library

pytestmark = pytest.mark.extra
SETUP = """
import numpy as np
import hotloop as hl
from hotloop import nn

rng = np.random.default_rng(0)
X = rng.normal(size=(20_000, 40)).astype(np.float32)
Y = (X @ rng.normal(size=(40, 4))).argmax(1)

def net():
    return nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 4))
"""
LONG = """
result = hl.train(net(), (X, Y), max_epochs=100_000, output_dir=FOLDER)
print("ended", result.stop_reason, result.epochs, result.last_path is not None)
"""
AGAIN = """
result = hl.train(net(), (X, Y), max_epochs=2, enable_progress_bar=False, logger=None)
first, second = result.history["loss"]
print("again", result.stop_reason, result.epochs, second < first)
"""


class Kernel:
    """A kernel of its own process, and its client."""

    def __init__(self) -> None:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(kernel_name="python3", startup_timeout=60)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def run(self, code: str, *, interrupt_after: float | None = None, until: str = "") -> Cell:
        """A cell; it is interrupted so long after it showed ``until``."""
        cell = Cell()
        message = self.client.execute(code)
        due = None if interrupt_after is None or until else time.monotonic() + interrupt_after
        limit = time.monotonic() + 90
        while time.monotonic() < limit:
            if due is not None and time.monotonic() >= due:
                self.manager.interrupt_kernel()
                cell.interrupted_at, due = time.monotonic(), None
            try:
                got = self.client.get_iopub_msg(timeout=0.01)
            except queue.Empty:
                continue
            if got["parent_header"].get("msg_id") != message:
                continue
            if got["msg_type"] == "status" and got["content"]["execution_state"] == "idle":
                return cell
            cell.take(got)
            if until and due is None and cell.interrupted_at is None and until in cell.shown:
                due = time.monotonic() + (interrupt_after or 0.0)
        pytest.fail(f"the cell did not end: {cell.shown[-2000:]}")


class Cell:
    """What a cell showed."""

    def __init__(self) -> None:
        self.text, self.errors = "", ""
        self.displays: dict[str, dict[str, str]] = {}
        self.n_updates = 0
        self.interrupted_at: float | None = None
        self.heard_after: float | None = None

    @property
    def shown(self) -> str:
        return self.text + "".join(data["text/plain"] for data in self.displays.values())

    def take(self, got: dict[str, Any]) -> None:
        content = got["content"]
        if got["msg_type"] == "stream":
            self.text += content["text"]
            if "hotloop: interrupted" in content["text"] and self.heard_after is None:
                assert self.interrupted_at is not None
                self.heard_after = time.monotonic() - self.interrupted_at
        elif got["msg_type"] in ("display_data", "update_display_data"):
            self.displays[content["transient"]["display_id"]] = content["data"]
            self.n_updates += 1
        elif got["msg_type"] == "error":
            self.errors += "\n".join(content["traceback"])


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    take_library("ipykernel")
    kernel = Kernel()
    assert kernel.run(SETUP).errors == ""
    yield kernel
    kernel.close()


def test_a_cell_shows_a_table_and_a_bar(kernel: Kernel) -> None:
    cell = kernel.run("result = hl.train(net(), (X, Y), max_epochs=4, logger=None)")
    assert cell.errors == ""
    (shown,) = cell.displays.values()
    assert shown["text/html"].count("<tr>") == 5
    assert re.search(r"epoch 4/4: 100%", shown["text/plain"])
    assert "\r" not in cell.text
    assert "samples/s" not in cell.text  # epochs stand in the table alone


def test_a_cell_that_is_interrupted(kernel: Kernel, tmp_path: Path) -> None:
    """Heard within half a second; its result and its checkpoint are there, the next cell trains."""
    rng = random.Random(0)
    for number in range(3):
        folder = tmp_path / str(number)
        cell = kernel.run(
            LONG.replace("FOLDER", repr(str(folder))),
            interrupt_after=rng.uniform(0, 0.7),
            until="%|",
        )
        assert cell.errors == ""
        assert "hotloop: interrupted; finishing this step" in cell.text
        assert cell.heard_after is not None
        assert cell.heard_after < 0.5
        assert re.search(r"ended interrupted \d+ True", cell.text)
        assert cell.n_updates <= 4 + 2 * 5
        again = kernel.run(AGAIN)
        assert again.errors == ""
        assert "again completed 2 True" in again.text


def test_a_run_goes_on_in_the_next_cell(kernel: Kernel, tmp_path: Path) -> None:
    code = LONG.replace("FOLDER", repr(str(tmp_path)))
    cell = kernel.run(code, interrupt_after=0.1, until="%|")
    assert "ended interrupted" in cell.text
    more = kernel.run("more = result.resume(max_epochs=result.epochs + 2)\nprint(more.stop_reason)")
    assert more.errors == ""
    assert "completed" in more.text


def test_a_cell_that_is_interrupted_while_it_plans(kernel: Kernel) -> None:
    """At any instant: what comes is a result or, from Python's own code, KeyboardInterrupt."""
    rng = random.Random(1)
    for _ in range(5):
        cell = kernel.run(
            'print("go", flush=True)\nhl.train(net(), (X, Y), max_epochs=100_000, logger=None)',
            interrupt_after=rng.uniform(0, 0.1),
            until="go",
        )
        assert cell.errors == "" or "KeyboardInterrupt" in cell.errors
        again = kernel.run(AGAIN)
        assert again.errors == ""
        assert "again completed 2 True" in again.text
