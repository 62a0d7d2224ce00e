"""Metrics of values by sums: errors, what is left of the spread, and points that are near."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hotloop.errors import ShapeError
from hotloop.graph.creation import tensor
from hotloop.graph.pointwise import where
from hotloop.graph.symbolic import Tensor
from hotloop.training.scoring.matching import match_shape
from hotloop.training.scoring.metric import Rows, Sums, Totals

__all__ = ["add_errors", "column_mean", "count_near_points", "explained", "near_points", "root"]


def add_errors(rows: Rows) -> Sums:
    """Sums of each column in float64. A sum of squares about the mean has no digits left where
    targets are large against their spread, so that those of targets are of what is left of them
    less the centre. Errors are small as they are, and a centre far away would cost their digits.
    """
    assert rows.centre is not None  # of values there is one
    n, output = rows.scores.shape[0], rows.scores
    target = match_shape(rows.target.cast("float32"), output)
    centre = tensor(rows.centre.reshape(output.shape[1:]))
    goal = target.cast("float64")
    error = (output.cast("float64") - goal).reshape(n, -1)
    left = (goal - centre).reshape(n, -1)
    columns = {"square": error * error, "absolute": error.abs(), "y": left, "yy": left * left}
    if rows.weight is not None:
        columns = {name: column * rows.share.reshape(n, 1) for name, column in columns.items()}
    return {**{name: column.sum(0) for name, column in columns.items()}, "weight": rows.total}


def explained(totals: Totals) -> float:
    """r2: the mean over columns, as in scikit-learn; 1 or 0 for a column that is constant."""
    square, y = totals["square"], totals["y"]
    spread = totals["yy"] - y * y / max(float(totals["weight"]), 1e-300)
    varies = spread > 0
    scores = np.where(square == 0, 1.0, 0.0)
    scores[varies] = 1.0 - square[varies] / spread[varies]
    return float(scores.mean())


def column_mean(name: str) -> Callable[[Totals], float]:
    """The mean over rows and columns of a sum of each column."""

    def compute(totals: Totals) -> float:
        return float(np.mean(totals[name])) / max(float(totals["weight"]), 1e-300)

    return compute


def root(compute: Callable[[Totals], float]) -> Callable[[Totals], float]:
    """The square root of a value."""
    return lambda totals: compute(totals) ** 0.5


# ---- points


def count_near_points(threshold: float) -> Callable[[Rows], Sums]:
    """The share of a sample's points that are near, of each sample: PCK (Yang and Ramanan 2013).

    Near is what is off by less than ``threshold`` times the longer side of the box around the
    sample's points. A point without a place (NaN, or a third number that is not above 0) counts
    nothing, nor does a sample whose points lie in one place. Samples count alike, as they do in
    evaluations of category-agnostic pose estimation (Xu et al. 2022, Pose for Everything).
    """

    def update(rows: Rows) -> Sums:
        output, target, is_there = _read_points(rows.scores, rows.target)
        place = where(is_there.unsqueeze(2), target, 0.0)
        far = float(np.finfo(np.float64).max) / 4
        box = where(is_there.unsqueeze(2), target, -far).amax(1)
        box = box - where(is_there.unsqueeze(2), target, far).amin(1)
        side = box.amax(1)
        off = (output - place).square().sum(2).sqrt()
        is_near = (off < threshold * side.unsqueeze(1)) & is_there
        n_there = is_there.cast("float64").sum(1)
        near = is_near.cast("float64").sum(1) / n_there.clamp(min=1.0)
        share = (side > 0.0).cast("float64") * rows.share
        return {"near": (near * share).sum(), "weight": share.sum()}

    return update


def near_points(totals: Totals) -> float:
    """The mean over samples; NaN where none has points."""
    weight = float(totals["weight"])
    return float(totals["near"]) / weight if weight > 0 else float("nan")


def _read_points(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Output and target (N, P, 2), and which of the targets there are (N, P)."""
    n = output.shape[0]
    is_listed = target.ndim == 3 and target.shape[2] in (2, 3)
    if not is_listed and not (target.ndim == 2 and target.shape[1] % 2 == 0):
        raise ShapeError(
            "points are targets (rows, points, 2), (rows, points, 3) with 0 where there is none, "
            f"or (rows, 2 * points), got {target.shape}"
        )
    n_points = target.shape[1] if is_listed else target.shape[1] // 2
    forms = [(n, n_points, 2), (n, 2 * n_points)]
    if target.ndim == 3:
        forms.append((n, n_points, target.shape[2]))
    if output.shape not in forms:
        raise ShapeError(
            f"outputs must have shape {forms[0]} or {forms[1]} for points {target.shape}, got "
            f"{output.shape}"
        )
    made = output.cast("float64").reshape(n, n_points, -1)[:, :, :2]
    goal = target.cast("float64").reshape(n, n_points, -1)
    place = goal[:, :, :2]
    is_there = (place == place).cast("float64").sum(2) == 2.0
    if goal.shape[2] == 3:
        is_there = is_there & (goal[:, :, 2] > 0.0)
    return made, place, is_there
