"""What a user sees while training: a bar or lines.

A line per epoch, and in terminals and notebooks one bar for the run (tqdm).
"""

from __future__ import annotations

import sys
import time
from typing import Any

from hotloop.base.messages import format_count, format_seconds, is_notebook, show, stream

__all__ = ["Progress"]

_SHOWN_FIRST = ("loss", "val_loss")
_HIDDEN = {"epoch", "seconds", "lr"}
_ALWAYS_SHOWN = 50
_SECONDS_BETWEEN_LINES = 0.2


class Progress:
    """The bar or the lines of one run.

    With a bar, an epoch's line stands above it; of more than 50 epochs, five lines a second at most
    and the last: a model that trains a thousand epochs a minute would bury all else.

    Parameters
    ----------
    enabled : "auto" or bool
        "auto": a bar where there is a terminal or a notebook, lines elsewhere. False: nothing.
    epochs : int
        Planned epochs.
    """

    def __init__(self, enabled: bool | str, epochs: int) -> None:
        self._epochs = epochs
        self._quiet = enabled is False
        bar = enabled is True or is_notebook() or sys.stderr.isatty()
        self._use_bar = bar and not self._quiet
        self._bar: Any = None
        self._title = ""
        self._held = ""  # the line of an epoch that ended too soon after another
        self._due = 0.0

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is to be shown."""
        return self._quiet

    def begin_epoch(self, epoch: int, samples: int) -> None:
        """Starts epoch number ``epoch`` (from 1) of ``samples`` training samples."""
        if not self._use_bar:
            return
        if self._bar is None:
            self._bar = _open_bar(self._epochs * samples)
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
        if self._bar is None or self._epochs <= _ALWAYS_SHOWN or now >= self._due:
            self._flush()
            self._due = now + _SECONDS_BETWEEN_LINES

    def _line(self, epoch: int, row: dict[str, float], seconds: float, samples: int) -> str:
        values = {**{k: row[k] for k in _SHOWN_FIRST if k in row}, **row}
        shown = [f"{k} {v:<7.4g}" for k, v in values.items() if k not in _HIDDEN]
        shown.append(f"lr {row['lr']:<8.3g}")
        shown.append(f"{format_count(samples / max(seconds, 1e-9)):>6} samples/s")
        shown.append(f"{format_seconds(row['seconds']):>6}")
        return f"epoch {epoch:>{len(str(self._epochs))}}/{self._epochs}  {'  '.join(shown)}"

    def _flush(self) -> None:
        if not self._held:
            return
        if self._bar is None:
            show(self._held)
        else:
            type(self._bar).write(self._held, file=stream())
        self._held = ""

    def close(self) -> None:
        """Ends the bar; the last epoch's line is shown in any case."""
        self._flush()
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _open_bar(samples: int) -> Any:
    import warnings

    from tqdm import TqdmWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # a notebook without widgets has a text bar
        from tqdm.auto import tqdm

    return tqdm(
        total=samples,
        unit="sample",
        unit_scale=True,
        leave=False,  # its lines stay
        file=stream(),
        dynamic_ncols=True,
    )
