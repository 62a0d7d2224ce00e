"""Tables of cells, as text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

__all__ = ["as_html", "as_text"]


def as_text(rows: Sequence[Sequence[str]]) -> str:
    """Lines of aligned cells: those of the first column to the left, the others to the right.

    Parameters
    ----------
    rows : sequence of sequences of str
        Of one length; the headings are a row like the others.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    )


def as_html(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str = "", shares: Any = None
) -> str:
    """A table with the same alignment, styled by itself: notebooks keep no style sheets.

    Parameters
    ----------
    head : sequence of str
        Headings; none, where the rows say what they are.
    rows : sequence of sequences of str
    caption : str
    shares : ndarray, optional
        (rows, columns - 1): how dark the cells behind the first column are, from 0 to 1.

    Returns
    -------
    str
    """
    lines = [_line("th", head)] if head else []
    for i, row in enumerate(rows):
        lines.append(_line("td", row, None if shares is None else shares[i]))
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    style = "border-collapse:collapse;font-variant-numeric:tabular-nums"
    return f'<table style="{style}">{title}{"".join(lines)}</table>'


def _line(tag: str, cells: Sequence[str], shares: Any = None) -> str:
    made = []
    for j, cell in enumerate(cells):
        style = f"padding:1px 8px;text-align:{'right' if j else 'left'}"
        if shares is not None and j > 0 and shares[j - 1] > 0:
            # Blue with white behind it; the text stays readable.
            style += f";background:rgba(70,120,200,{0.75 * shares[j - 1]:.3f})"
        made.append(f'<{tag} style="{style}">{html.escape(cell)}</{tag}>')
    return f"<tr>{''.join(made)}</tr>"
