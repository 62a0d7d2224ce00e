"""What a user sees while training: a header, a bar or lines, and sentences that matter.

One bar per epoch in terminals and notebooks (tqdm), one line per epoch elsewhere. Text goes to
stderr, as tqdm's does, so that a script's output stays its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["Progress", "format_bytes", "format_count", "show"]

_SHOWN_FIRST = ("loss", "val_loss")
_HIDDEN = {"epoch", "seconds", "lr"}


def show(text: str) -> None:
    """A sentence to the user."""
    print(text, file=sys.stderr, flush=True)


def format_count(n: float) -> str:
    """``12345678`` as ``12.3 M``."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if n >= limit:
            return f"{n / limit:.3g}{unit}"
    return f"{n:.3g}" if isinstance(n, float) else str(n)


def format_bytes(n: int) -> str:
    """Bytes as ``1.5 MB`` (powers of 1000)."""
    for limit, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if n >= limit:
            return f"{n / limit:.3g} {unit}"
    return f"{n} bytes"


def _is_notebook() -> bool:
    shell = sys.modules.get("IPython")
    if shell is None:
        return False
    running = shell.get_ipython()
    return running is not None and type(running).__name__ == "ZMQInteractiveShell"


class Progress:
    """The bar or the lines of one run.

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
        bar = enabled is True or _is_notebook() or sys.stderr.isatty()
        self._use_bar = bar and not self._quiet
        self._bar: Any = None

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is to be shown."""
        return self._quiet

    def begin_epoch(self, epoch: int, samples: int) -> None:
        """Starts epoch number ``epoch`` (from 1) of ``samples`` training samples."""
        if not self._use_bar:
            return
        from tqdm.auto import tqdm

        self._bar = tqdm(
            total=samples,
            desc=f"epoch {epoch}/{self._epochs}",
            unit="sample",
            unit_scale=True,
            leave=True,
            file=sys.stderr,
            dynamic_ncols=True,
        )

    def advance(self, samples: int, values: dict[str, float]) -> None:
        """Adds samples; shows loss, lr and the like."""
        if self._bar is None:
            return
        self._bar.update(samples)
        self._bar.set_postfix(
            {name: f"{value:.4g}" for name, value in values.items()}, refresh=False
        )

    def end_epoch(self, epoch: int, row: dict[str, float], seconds: float, samples: int) -> None:
        """Closes the epoch with its values."""
        values = {**{k: row[k] for k in _SHOWN_FIRST if k in row}, **row}
        shown = {k: f"{v:.4g}" for k, v in values.items() if k not in _HIDDEN}
        shown["lr"] = f"{row['lr']:.3g}"
        if self._bar is not None:
            self._bar.set_postfix(shown, refresh=True)
            self._bar.close()
            self._bar = None
        elif not self._quiet:
            rate = format_count(samples / max(seconds, 1e-9))
            text = "  ".join(f"{name} {value}" for name, value in shown.items())
            show(f"epoch {epoch}/{self._epochs}  {text}  {rate} samples/s  {seconds:.3g} s")

    def close(self) -> None:
        """Ends a bar that was left in the middle."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def header_lines(facts: Sequence[tuple[str, str]]) -> str:
    """``name value`` pairs in one line, separated by " | "."""
    return "hotloop: " + " | ".join(f"{name} {value}".strip() for name, value in facts)
