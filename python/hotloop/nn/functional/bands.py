"""Linear maps along a dim whose outputs are sums of a few neighbours: banded matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hotloop.graph.build import add_node
from hotloop.graph.value import Tensor

MAX_SIZE = 2**24  # of an output's dim: each element has a row of weights
Band = Sequence[Mapping[int, float]]  # by output: the inputs that it reads, and their weights


def _pack(band: Band) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The first input of each output, and the weights of as many neighbours as the widest has."""
    starts = [min(row, default=0) for row in band]
    taps = max(max(row, default=0) - start + 1 for row, start in zip(band, starts))
    weights = np.zeros((len(band), taps), np.float64)
    for j, (row, start) in enumerate(zip(band, starts)):
        for at, weight in row.items():
            weights[j, at - start] = weight
    return np.asarray(starts, np.int64), weights.ravel()


def apply_band(x: Tensor, dim: int, band: Band) -> Tensor:
    """``x`` with ``out[j] = sum of weight * x[at]`` along a dim, for each output's entries."""
    turned: list[dict[int, float]] = [{} for _ in range(x.shape[dim])]
    for j, row in enumerate(band):
        for at, weight in row.items():
            turned[at][j] = weight
    dtype = "float64" if x.dtype == "float64" else "float32"  # of the weights
    tables = []
    for starts, weights in (_pack(band), _pack(turned)):
        tables += [x.trace.const(starts), x.trace.const(weights, dtype)]
    return add_node("resample", x, *tables, axis=dim)
