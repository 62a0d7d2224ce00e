"""What a user sees while training: a bar or lines.

A line per epoch, of many epochs one every n, and in terminals and notebooks one bar for the run.

A terminal's bar is tqdm's. A notebook's is the same text in an output that is replaced in place, so
that the saved notebook has its last state; tqdm writes each state to a stream there, or needs
ipywidgets, whose state another machine does not have.
"""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Collection
from typing import Any

from hotloop.base.messages import format_count, format_seconds, is_notebook, show, stream

__all__ = ["Progress"]

_SHOWN_FIRST = ("loss", "val_loss")
_HIDDEN = {"epoch", "seconds", "lr"}
_LINES = 50  # that a run shows, about
_LONGEST_SILENCE = 60.0  # seconds without a line
_BAR_SECONDS = {"mininterval": 0.2, "ncols": 100}  # of a notebook: each state is a message


class Progress:
    """The bar or the lines of one run.

    An epoch's line stands above the bar, where there is one. Of more than 50 epochs one in n has a
    line, so that they are about 50, and so have the first, the last, and one a minute. Where nobody
    knows how many there will be, n grows with their number.

    Parameters
    ----------
    enabled : "auto" or bool
        "auto": a bar where there is a terminal or a notebook, lines elsewhere. False: nothing.
    epochs : int
        Planned epochs.
    expected : int, optional
        Epochs that there will be, where max_steps ends them.
    is_open : bool
        Whether early stopping or max_time may end training long before.
    hidden : collection of str
        Values that lines leave out: those of single classes, which the history has.
    """

    def __init__(
        self,
        enabled: bool | str,
        epochs: int,
        *,
        expected: int | None = None,
        is_open: bool = False,
        hidden: Collection[str] = (),
    ) -> None:
        self._epochs = epochs
        self._expected = epochs if expected is None else expected
        self._is_open = is_open
        self._hidden = {*_HIDDEN, *hidden}
        self._quiet = enabled is False
        bar = enabled is True or is_notebook() or sys.stderr.isatty()
        self._use_bar = bar and not self._quiet
        self._bar: Any = None
        self._title = ""
        self._held = ""  # the line of an epoch that is not shown unless it is the last
        self._due = time.perf_counter() + _LONGEST_SILENCE

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is to be shown."""
        return self._quiet

    def show(self, text: str) -> None:
        """Shows a line, above the bar where there is one."""
        if self._bar is None:
            show(text)
        else:
            self._bar.write(text, file=stream())

    def begin_epoch(self, epoch: int, samples: int, *, done: int = 0) -> None:
        """Starts epoch number ``epoch`` (from 1) of ``samples`` training samples, after some."""
        if not self._use_bar:
            return
        if self._bar is None:
            self._bar = _open_bar(self._epochs * samples, (epoch - 1) * samples + done)
        self._title = f"epoch {epoch}/{self._epochs}"
        self._bar.set_description(self._title, refresh=False)

    def advance(self, samples: int, values: dict[str, float]) -> None:
        """Adds samples; shows loss, lr and the like."""
        if self._bar is None:
            return
        self._bar.set_description(self._title, refresh=False)
        self._bar.set_postfix(
            {name: f"{value:.4g}" for name, value in values.items()}, refresh=False
        )
        self._bar.update(samples)

    def end_epoch(self, epoch: int, row: dict[str, float], seconds: float, samples: int) -> None:
        """Closes the epoch with its values."""
        if self._quiet:
            return
        self._held = self._line(epoch, row, seconds, samples)
        now = time.perf_counter()
        every = _spacing(min(epoch, self._expected) if self._is_open else self._expected)
        if epoch == 1 or epoch % every == 0 or now >= self._due:
            self._flush()
            self._due = now + _LONGEST_SILENCE

    def _line(self, epoch: int, row: dict[str, float], seconds: float, samples: int) -> str:
        values = {**{k: row[k] for k in _SHOWN_FIRST if k in row}, **row}
        shown = [f"{k} {v:<7.4g}" for k, v in values.items() if k not in self._hidden]
        shown.append(f"lr {row['lr']:<8.3g}")
        shown.append(f"{format_count(samples / max(seconds, 1e-9)):>6} samples/s")
        shown.append(f"{format_seconds(row['seconds']):>6}")
        return f"epoch {epoch:>{len(str(self._epochs))}}/{self._epochs}  {'  '.join(shown)}"

    def _flush(self) -> None:
        if self._held:
            self.show(self._held)
        self._held = ""

    def close(self) -> None:
        """Ends the bar; the last epoch's line is shown in any case."""
        self._flush()
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _spacing(epochs: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... that makes 50 lines at most of so many epochs."""
    every = 1
    while epochs > _LINES * every:
        every = every * 5 // 2 if str(every).startswith("2") else every * 2
    return every


def _open_bar(samples: int, done: int) -> Any:
    from tqdm import tqdm

    options: dict[str, Any] = {
        "total": samples, "initial": done, "unit": "sample", "unit_scale": True,
    }  # fmt: skip
    if is_notebook():
        return _notebook_bar()(**options, **_BAR_SECONDS)
    return tqdm(**options, leave=False, file=stream(), dynamic_ncols=True)  # its lines stay


@functools.cache
def _notebook_bar() -> Any:
    """The class of notebooks' bars; made when one is needed, as tqdm is imported then."""
    from tqdm import tqdm

    class NotebookBar(tqdm):  # type: ignore[misc]
        """A bar whose text is one output of the cell."""

        def __init__(self, **options: Any) -> None:
            display = importlib.import_module("IPython.display").display
            super().__init__(**options, gui=True)  # tqdm then writes to no stream
            self.sp = None
            self._output = display(_Shown(str(self)), display_id=True)

        def display(self, *args: Any, **options: Any) -> None:
            self._output.update(_Shown(str(self)))

        def clear(self, *args: Any, **options: Any) -> None:
            """Nothing: lines stand below it."""

        def write(self, text: str, file: Any) -> None:
            print(text, file=file, flush=True)

        def close(self) -> None:
            if not self.disable:
                self.display()
            super().close()

    return NotebookBar


class _Shown:
    """A text that a notebook shows as it is, and saves as plain text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text
