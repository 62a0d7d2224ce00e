"""``hotloop demo``: a real model on real data, in seconds, with nothing to download.

The lines it prints in the end are the text that it executed, not a copy of it: what a user pastes
into a notebook is what ran.
"""

from __future__ import annotations

import linecache
import textwrap
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotloop.data.module import DataModule
    from hotloop.nn.module import Module
    from hotloop.training.config import TrainingConfig
    from hotloop.training.result.result import TrainResult

__all__ = ["DEMO_CODE", "demo_parts", "run_demo"]

_SETUP = """\
import hotloop as hl
from hotloop import nn

X, y = hl.load_digits()  # 1,797 handwritten digits of 8x8 pixels
data = hl.DataModule.from_arrays(X, y, val=0.2, batch_size=64)
model = nn.Sequential(
    nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)
)
config = hl.TrainingConfig(max_epochs=20, lr=3e-3)
"""

DEMO_CODE = _SETUP + "result = hl.train(model, data, config)\n"

_PLOT_CODE = "result.plot({path!r})  # loss and accuracy by epoch\n"
_NAME = "<hotloop demo>"


def _execute(code: str, names: dict[str, Any]) -> None:
    """Runs code; a traceback can show its lines."""
    linecache.cache[_NAME] = (len(code), None, code.splitlines(keepends=True), _NAME)
    exec(compile(code, _NAME, "exec"), names)


def demo_parts() -> tuple[Module, DataModule, TrainingConfig]:
    """The demo's model, data and configuration, before training."""
    names: dict[str, Any] = {}
    _execute(_SETUP, names)
    return names["model"], names["data"], names["config"]


def run_demo(plot: str = "digits.png") -> int:
    """Trains a classifier of digits, draws its curves, and shows the code that did it.

    Parameters
    ----------
    plot : str
        Where to draw loss and accuracy, if matplotlib is installed.

    Returns
    -------
    int
        Exit status: 0, or 1 when training did not come to its end.
    """
    import importlib.util

    began = time.perf_counter()
    names: dict[str, Any] = {"__name__": "__main__"}
    code = DEMO_CODE
    _execute(code, names)
    seconds = time.perf_counter() - began
    result: TrainResult = names["result"]
    if importlib.util.find_spec("matplotlib") is not None:
        line = _PLOT_CODE.format(path=plot)
        _execute(line, names)
        code += line
        shown = f"loss and accuracy are drawn in {plot}"
    else:
        shown = "pip install matplotlib to have loss and accuracy drawn"
    print(_summary(result, seconds, shown))
    print("The same in Python:\n")
    print(textwrap.indent(code, "    "), end="")
    return 0 if result.stop_reason == "completed" else 1


def _summary(result: TrainResult, seconds: float, shown: str) -> str:
    """Accuracy of the weights that the model now has, and the time from import to result."""
    history = result.history
    epoch = result.best_epoch or result.epochs
    accuracy = history["val_accuracy"][history["epoch"].index(epoch)]
    best = f" (weights of epoch {epoch}, the best)" if result.best_epoch else ""
    return (
        f"\nvalidation accuracy {accuracy:.2%}{best}, {result.epochs} epochs in "
        f"{seconds:.2f} s\n{shown}\n"
    )
