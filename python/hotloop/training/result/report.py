"""A result as text: values over epochs, and what became of each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import counted
from hotloop.base.tables import as_text
from hotloop.training.scoring.classification import SHARES, average

if TYPE_CHECKING:
    from hotloop.training.result.result import TrainResult

__all__ = ["Table", "describe_result", "tables_of"]

_MAX_CLASSES = 30  # that a table shows
_SHOWN = ("precision", "recall", "f1")


class Table(NamedTuple):
    """A part of a report.

    Attributes
    ----------
    title : str
    rows : list of list of str
        The first has the headings.
    shares : ndarray or None
        Of the cells that are counts: how large they are beside others of their row, from 0 to 1.
    """

    title: str
    rows: list[list[str]]
    shares: npt.NDArray[Any] | None = None


def describe_result(result: TrainResult) -> str:
    """The text of :meth:`TrainResult.report`.

    Parameters
    ----------
    result : TrainResult
    """
    parts = [repr(result)]
    for table in tables_of(result):
        text = as_text(table.rows)
        parts.append(f"{table.title}\n{text}" if table.title else text)
    return "\n\n".join(parts)


def tables_of(result: TrainResult) -> list[Table]:
    """Values over epochs, and what became of each class.

    Parameters
    ----------
    result : TrainResult
    """
    tables = [_of_epochs(result)] if result.history else []
    matrix = result.confusion_matrix
    if matrix is not None:
        several = matrix if isinstance(matrix, dict) else {"": matrix}
        for name, one in several.items():
            classes = result.classes
            names = classes.get(name) if isinstance(classes, dict) else classes
            tables += _of_classes(name, one, names or ())
    return tables


def _of_epochs(result: TrainResult) -> Table:
    """The first, the best epoch's and the last of each value."""
    best = result.best_epoch
    rows = [["", "first", *([] if best is None else [f"epoch {best:g}"]), "last"]]
    at = 0 if best is None else result.history["epoch"].index(best)
    for name, column in result.history.items():
        if name != "epoch":
            shown = [column[0], *([] if best is None else [column[at]]), column[-1]]
            rows.append([name, *(f"{value:.4g}" for value in shown)])
    return Table("", rows)


def _of_classes(target: str, matrix: npt.NDArray[Any], names: Sequence[Any]) -> list[Table]:
    """A table of the classes, and the matrix."""
    n = len(matrix)
    labels = [str(names[k] if k < len(names) else k) for k in range(n)]
    values = [average(SHARES[name], "per_class")({"confusion": matrix}) for name in _SHOWN]
    counts = matrix.sum(1)
    order = list(range(n))
    which = f"{counted(n, 'class', 'classes')} of {target}" if target else "classes"
    if n > _MAX_CLASSES:
        order = [int(k) for k in np.argsort(values[-1], kind="stable")[:_MAX_CLASSES]]
        which = f"{_MAX_CLASSES} of {which if target else f'{n:,} classes'}, of the lowest f1"
    rows = [["", *_SHOWN, "rows"]]
    rows += [[labels[k], *(f"{v[k]:.4f}" for v in values), f"{counts[k]:,.6g}"] for k in order]
    tables = [Table(f"{which}, validation", rows)]
    if n <= _MAX_CLASSES:
        cells = [[label, *(f"{cell:.6g}" for cell in row)] for label, row in zip(labels, matrix)]
        shares = matrix / np.maximum(counts, 1e-300)[:, None]
        title = "confusion matrix, rows true, columns predicted"
        tables.append(Table(title, [["", *labels], *cells], shares))
    return tables
