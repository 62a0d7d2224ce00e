"""What a user sees while training: a bar or lines.

A line per epoch, of many epochs one every n, and in terminals and notebooks one bar for the run.

A terminal's bar is tqdm's. A notebook has a table of the epochs with the same text below it, in an
output that is replaced in place, so that the saved notebook has its last state; tqdm writes each
state to a stream there, or needs ipywidgets, whose state another machine does not have.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Collection, Iterator
from typing import Any

from hotloop.base.messages import (
    format_bytes,
    format_count,
    format_seconds,
    is_notebook,
    show,
    stream,
)
from hotloop.training.run.notebook import EpochTable
from hotloop.training.scoring.names import MEASURED

__all__ = ["Progress"]

_SHOWN_FIRST = ("loss", "val_loss")
_HIDDEN = {"epoch", "lr", *MEASURED}
_TITLED = {"epoch", "lr", "samples/s", "data wait", "peak memory", "wall time"}  # in each line
_LINES = 50  # that a run shows, about
_LONGEST_SILENCE = 60.0  # seconds without a line
_BAR_SECONDS = 0.5  # from one state to the next: in a notebook each is a message


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
    lines : bool
        Whether it is for a log file: no bar, each line at once, and one a minute within an epoch.
    rows_per_epoch : int
        Lines that an epoch has: more than one where validation runs within it.
    """

    def __init__(
        self,
        enabled: bool | str,
        epochs: int,
        *,
        expected: int | None = None,
        is_open: bool = False,
        hidden: Collection[str] = (),
        rows_per_epoch: int = 1,
        lines: bool = False,
    ) -> None:
        self._epochs = epochs
        self._expected = (epochs if expected is None else expected) * rows_per_epoch
        self._is_open = is_open
        self._hidden = {*_HIDDEN, *hidden}
        self._quiet = enabled is False
        bar = enabled is True or is_notebook() or sys.stderr.isatty()
        self._use_bar = bar and not self._quiet and not lines
        self._lines = lines and not self._quiet
        self._samples = self._done = 0  # of the epoch
        self._bar: Any = None
        self._title = ""
        # Of an epoch that is not shown unless it is the last.
        self._held: dict[str, str] = {}
        self._due = time.perf_counter() + _LONGEST_SILENCE

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is to be shown."""
        return self._quiet

    def show(self, text: str) -> None:
        """Shows a line, above the bar where there is one."""
        with self._losing_the_bar():
            if self._bar is not None:
                self._bar.write(text, file=stream())  # tqdm's: above the bar
                return
        show(text)

    @contextlib.contextmanager
    def _losing_the_bar(self) -> Iterator[None]:
        """A terminal that is gone takes its bar with it, not the run."""
        try:
            yield
        except OSError:
            if self._bar is not None:
                self._bar.disable = True  # tqdm would write its end
            self._bar, self._use_bar = None, False

    def begin_epoch(self, epoch: int, samples: int, *, done: int = 0) -> None:
        """Starts epoch number ``epoch`` (from 1) of ``samples`` training samples, after some."""
        self._title = f"epoch {epoch}/{self._epochs}"
        self._samples, self._done = samples, done
        if not self._use_bar:
            return
        with self._losing_the_bar():
            if self._bar is None:
                self._bar = _open_bar(self._epochs * samples, (epoch - 1) * samples + done)
            self._bar.set_description(self._title, refresh=False)

    def advance(self, samples: int, values: dict[str, float]) -> None:
        """Adds samples; shows loss, lr and the like."""
        self._done += samples
        if self._lines and time.perf_counter() >= self._due:
            self._show_within(values)
        if self._bar is None:
            return
        with self._losing_the_bar():
            self._bar.set_description(self._title, refresh=False)
            self._bar.set_postfix(
                {name: f"{value:.4g}" for name, value in values.items()}, refresh=False
            )
            self._bar.update(samples)

    def _show_within(self, values: dict[str, float]) -> None:
        """A line of an epoch that takes longer than a minute."""
        shown = "  ".join(f"{name} {value:<7.4g}" for name, value in values.items())
        self.show(f"{self._title}  {self._done:,} of {self._samples:,} samples  {shown}".rstrip())
        self._due = time.perf_counter() + _LONGEST_SILENCE

    def end_epoch(
        self, epoch: float, row: dict[str, float], trained: float, number: int | None = None
    ) -> None:
        """Closes the epoch, or what a validation within it ends, with its values.

        Parameters
        ----------
        epoch : float
            From 1; of a validation within one, how many were trained.
        row : dict of str to float
        trained : float
            Seconds of the epoch without validation.
        number : int, optional
            Of the line, from 1, where that is not the epoch's.
        """
        if self._quiet:
            return
        self._held = self._cells(epoch, row, trained)
        now = time.perf_counter()
        number = int(epoch) if number is None else number
        every = _spacing(min(number, self._expected) if self._is_open else self._expected)
        if self._lines or number == 1 or number % every == 0 or now >= self._due:
            self._flush()
            self._due = now + _LONGEST_SILENCE

    def _cells(self, epoch: float, row: dict[str, float], trained: float) -> dict[str, str]:
        """What is shown of an epoch, by its heading."""
        values = {**{k: row[k] for k in _SHOWN_FIRST if k in row}, **row}
        at = f"{epoch:.0f}" if epoch == int(epoch) else f"{epoch:.2f}"
        return {
            "epoch": f"{at}/{self._epochs}",
            **{k: f"{v:.4g}" for k, v in values.items() if k not in self._hidden},
            "lr": f"{row['lr']:.3g}",
            "samples/s": format_count(row["samples_per_second"]),
            "data wait": f"{row['data_wait'] / max(trained, 1e-9):.0%}",
            "peak memory": format_bytes(int(row["peak_bytes"])),
            "wall time": format_seconds(row["seconds"]),
        }

    def _line(self, cells: dict[str, str]) -> str:
        shown = [f"{k} {cells[k]:<7}" for k in cells if k not in _TITLED]
        shown += [f"lr {cells['lr']:<8}", f"{cells['samples/s']:>6} samples/s"]
        shown += [f"wait {cells['data wait']:>3}", f"{cells['peak memory']:>7}"]
        shown.append(f"{cells['wall time']:>6}")
        return f"epoch {cells['epoch']:>{2 * len(str(self._epochs)) + 1}}  {'  '.join(shown)}"

    def _flush(self) -> None:
        if self._held and isinstance(self._bar, EpochTable):
            self._bar.add(self._held, self._line(self._held))
        elif self._held:
            self.show(self._line(self._held))
        self._held = {}

    def close(self) -> None:
        """Ends the bar; the last epoch's line is shown in any case."""
        self._flush()
        if self._bar is not None:
            with self._losing_the_bar():
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
        "mininterval": _BAR_SECONDS,
    }  # fmt: skip
    if is_notebook():
        return EpochTable(options)
    return tqdm(**options, leave=False, file=stream(), dynamic_ncols=True)  # its lines stay
