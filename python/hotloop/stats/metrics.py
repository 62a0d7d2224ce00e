"""Metrics of hyperspectral pipelines: entries of ``metrics=``, which name modules of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hotloop.graph.creation import eye
from hotloop.graph.statistics import channel_statistics
from hotloop.stats.calls import Calls, ModuleMetric
from hotloop.stats.decomposition import TrainablePCA
from hotloop.stats.node import as_floats, counted

__all__ = ["ComponentOrthogonality", "ExplainedVariance", "ScoreStatistics"]


class ExplainedVariance(ModuleMetric):
    """How much of its input's variance a TrainablePCA's components have, between 0 and 1.

    ``1 - sum ||z - W^T W z||^2 / sum ||z||^2`` with ``z = x - mean``, over all pixels; right for
    components that training has moved from being orthogonal too.

    Parameters
    ----------
    module : str
        Its name in the model.
    """

    def __init__(self, module: str) -> None:
        super().__init__(f"{module}_explained_variance", "max")
        self.module = module

    def compute(self, calls: Calls) -> Mapping[str, Any]:
        """See :meth:`ModuleMetric.compute`."""
        pca = calls.module(self.module, TrainablePCA)
        z = calls[self.module].input - pca.mean
        if (counts := counted(z)) is not None:
            z = z * counts
        left = z - (z @ pca.components.T) @ pca.components
        total = (z * z).sum()
        return {self.name: (total - (left * left).sum(), total)}


class ComponentOrthogonality(ModuleMetric):
    """``||W W^T - I||``, Frobenius norm, of a TrainablePCA's components.

    Parameters
    ----------
    module : str
        Its name in the model.
    """

    def __init__(self, module: str) -> None:
        super().__init__(f"{module}_orthogonality_error", "min")
        self.module = module

    def compute(self, calls: Calls) -> Mapping[str, Any]:
        """See :meth:`ModuleMetric.compute`."""
        w = calls.module(self.module, TrainablePCA).components
        away = w @ w.T - eye(w.shape[0])
        return {self.name: (away * away).sum()}

    def finish(self, values: Mapping[str, float]) -> Mapping[str, float]:
        """See :meth:`ModuleMetric.finish`."""
        return {self.name: math.sqrt(max(values[self.name], 0.0))}


class ScoreStatistics(ModuleMetric):
    """Mean and standard deviation of what a module returns: ``<module>_mean``, ``<module>_std``.

    Parameters
    ----------
    module : str
        Its name in the model.
    """

    def __init__(self, module: str) -> None:
        super().__init__(f"{module}_mean", "min")
        self.module = module

    def compute(self, calls: Calls) -> Mapping[str, Any]:
        """See :meth:`ModuleMetric.compute`."""
        scores = calls[self.module].output
        counts = counted(scores)
        if counts is not None:
            counts = counts.expand(scores.shape).reshape(-1).cast("bool")
        found = channel_statistics(  # in float64: squares of float32 have no variance left
            as_floats(scores).detach().reshape(-1, 1),
            scores.trace.const(np.zeros(1), "float64"),
            counts,
            products=False,
        )
        n = found.count.clamp(min=1.0)
        return {
            f"{self.module}_mean": (found.sums.sum(), n),
            f"{self.module}_std": (found.products.sum(), n),
        }

    def finish(self, values: Mapping[str, float]) -> Mapping[str, float]:
        """See :meth:`ModuleMetric.finish`."""
        mean, square = values[f"{self.module}_mean"], values[f"{self.module}_std"]
        return {
            f"{self.module}_mean": mean,
            f"{self.module}_std": math.sqrt(max(square - mean * mean, 0.0)),
        }
