"""A result as text: values over epochs, and what became of each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import counted
from hotloop.training.scoring.classification import SHARES, average

if TYPE_CHECKING:
    from hotloop.training.result.result import TrainResult

__all__ = ["describe_result"]

_MAX_CLASSES = 30  # that a table shows
_SHOWN = ("precision", "recall", "f1")


def describe_result(result: TrainResult) -> str:
    """The text of :meth:`TrainResult.report`.

    Parameters
    ----------
    result : TrainResult
    """
    parts = [repr(result)]
    if result.epochs:
        parts.append(_of_epochs(result))
    matrix = result.confusion_matrix
    if matrix is not None:
        several = matrix if isinstance(matrix, dict) else {"": matrix}
        for name, one in several.items():
            classes = result.classes
            names = classes.get(name) if isinstance(classes, dict) else classes
            parts += _of_classes(name, one, names or ())
    return "\n\n".join(parts)


def _of_epochs(result: TrainResult) -> str:
    """The first, the best epoch's and the last of each value."""
    best = result.best_epoch
    header = ["", "first", *([] if best is None else [f"epoch {best}"]), "last"]
    rows = [header]
    for name, column in result.history.items():
        if name != "epoch":
            shown = [column[0], *([] if best is None else [column[best - 1]]), column[-1]]
            rows.append([name, *(f"{value:.4g}" for value in shown)])
    return _table(rows)


def _of_classes(target: str, matrix: npt.NDArray[Any], names: Sequence[Any]) -> list[str]:
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
    parts = [f"{which}, validation\n{_table(rows)}"]
    if n <= _MAX_CLASSES:
        cells = [[label, *(f"{cell:.6g}" for cell in row)] for label, row in zip(labels, matrix)]
        parts.append(
            f"confusion matrix, rows true, columns predicted\n{_table([['', *labels], *cells])}"
        )
    return parts


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    )
