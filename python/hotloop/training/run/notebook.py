"""The epochs of a run as a notebook shows them: a table and a bar, in one output of the cell.

Plain HTML, and the same as text for what shows none: no widget, nothing that another machine lacks.
"""

from __future__ import annotations

import html
import importlib
from typing import Any

from hotloop.base.tables import as_html

__all__ = ["EpochTable"]

_WIDTH = 100  # columns of the bar


class EpochTable:
    """A table of epochs with a bar below it.

    Parameters
    ----------
    options : dict
        tqdm's, of the bar.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        from tqdm import tqdm

        self._rows: list[dict[str, str]] = []
        self._lines: list[str] = []
        self._output: Any = None
        shown = self

        class Bar(tqdm):  # type: ignore[misc]
            """tqdm's arithmetic and text; it draws nothing itself."""

            def display(self, *args: Any, **options: Any) -> None:
                shown.display()

            def clear(self, *args: Any, **options: Any) -> None:
                """Nothing: nothing is drawn over."""

        self._bar = Bar(**options, ncols=_WIDTH, gui=True)  # it then writes to no stream
        self._bar.sp = None
        display = importlib.import_module("IPython.display").display
        self._output = display(_Shown(self._rows, self._lines, str(self._bar)), display_id=True)

    def display(self) -> None:
        """Replaces the output by the present state."""
        if self._output is not None:
            self._output.update(_Shown(self._rows, self._lines, str(self._bar)))

    def add(self, cells: dict[str, str], line: str) -> None:
        """Adds an epoch, which is shown with the bar's next state.

        Parameters
        ----------
        cells : dict of str to str
        line : str
            The same as text.
        """
        self._rows.append(cells)
        self._lines.append(line)

    def write(self, text: str, file: Any) -> None:
        """Shows a line that is none of an epoch."""
        print(text, file=file, flush=True)

    def set_description(self, text: str, *, refresh: bool) -> None:
        """What the bar begins with."""
        self._bar.set_description(text, refresh=refresh)

    def set_postfix(self, values: dict[str, str], *, refresh: bool) -> None:
        """What the bar ends with."""
        self._bar.set_postfix(values, refresh=refresh)

    def update(self, samples: int) -> None:
        """Moves the bar on."""
        self._bar.update(samples)

    def close(self) -> None:
        """The last state stays."""
        self.display()
        self._bar.close()


class _Shown:
    """A state: as HTML, and as text where that is not shown."""

    def __init__(self, rows: list[dict[str, str]], lines: list[str], bar: str) -> None:
        head = list(dict.fromkeys(name for row in rows for name in row))
        table = as_html(head, [[row.get(name, "") for name in head] for row in rows])
        self._html = (table if rows else "") + f"<pre>{html.escape(bar)}</pre>"
        self._text = "\n".join([*lines, bar])

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html
