"""A result as one page of HTML that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hotloop.base.environment import describe_environment
from hotloop.base.messages import format_bytes, format_seconds
from hotloop.base.tables import as_html
from hotloop.training.result.plotting import draw_history
from hotloop.training.result.report import Table, tables_of

if TYPE_CHECKING:
    from hotloop.training.result.result import TrainResult

__all__ = ["make_page"]

_MAX_EPOCHS = 500  # rows of the table; of more epochs one in n
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.5em} h2{font-size:1.1em;margin:2em 0 .5em;border-bottom:1px solid #ccc}
table{font-size:13px} td{border-bottom:1px solid #eee} th{border-bottom:1px solid #999}
pre{background:#f6f6f6;padding:.8em;overflow-x:auto;font-size:12px} svg{max-width:100%;height:auto}
div.wide{overflow-x:auto} summary{cursor:pointer}
"""


def make_page(result: TrainResult, title: str, model: str, plan: str) -> str:
    """The page of :meth:`TrainResult.report`.

    Parameters
    ----------
    result : TrainResult
    title, model : str
        The class and the text of its model, which may have been dropped.
    plan : str
        Of the training step.

    Returns
    -------
    str

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    parts = [f"<p>{html.escape(repr(result))}</p>"]
    if result.history:  # an epoch that did not end may have rows of validations within it
        parts += [_heading("Curves"), _curves(result)]
    for table in tables_of(result):
        parts += [_heading(table.title[:1].upper() + table.title[1:] or "Values"), _table(table)]
    if result.history:
        rows = _epochs(result)
        parts += [_heading("Epochs"), _folded(f"{len(rows) - 1} rows", _table(Table("", rows)))]
    parts += [_heading("Time"), _facts((k, format_seconds(v)) for k, v in _times(result))]
    parts += [_heading("Memory"), _facts((k, format_bytes(v)) for k, v in _memory(result))]
    parts += [_heading("Configuration"), _pre(result.config.to_toml(strict=False))]
    parts += [_heading("Model"), _pre(model)]
    if plan:
        parts += [_heading("Plan of the training step"), _folded("instructions", _pre(plan))]
    machine = describe_environment(result.device)
    parts += [_heading("Machine"), _facts((k, str(v)) for k, v in machine.items())]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f"<title>{html.escape(title)}: hotloop run</title><style>{_STYLE}</style></head>"
        f"<body><h1>{html.escape(title)}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"


def _pre(text: str) -> str:
    return f"<pre>{html.escape(text.strip())}</pre>"


def _folded(summary: str, content: str) -> str:
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"


def _curves(result: TrainResult) -> str:
    """matplotlib's drawing, as SVG within the page."""
    buffer = io.StringIO()
    draw_history(result.history).savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _table(table: Table) -> str:
    head, *rows = table.rows
    return f'<div class="wide">{as_html(head, rows, shares=table.shares)}</div>'


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    return f'<div class="wide">{as_html((), list(facts))}</div>'


def _epochs(result: TrainResult) -> list[list[str]]:
    rows = list(result.history.rows())
    every = -(-len(rows) // _MAX_EPOCHS)
    kept: Sequence[dict[str, float]] = rows[every - 1 :: every]
    if kept[-1] is not rows[-1]:
        kept = [*kept, rows[-1]]
    return [list(result.history), *([_number(v) for v in row.values()] for row in kept)]


def _number(value: float) -> str:
    if value != value:
        return ""
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.5g}"


def _times(result: TrainResult) -> list[tuple[str, float]]:
    return [
        *result.timings.items(),
        ("all", result.seconds),
        ("waiting for batches, of train", result.data_wait),
    ]


def _memory(result: TrainResult) -> list[tuple[str, Any]]:
    return [("predicted peak", result.predicted_peak_bytes), ("peak", result.peak_bytes)]
