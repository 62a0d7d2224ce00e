"""Augmentation of series in the step's graph; see data/augment_series.py for what there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.data.augment_series import Jitter, Scaling, SeriesStep, TimeMask
from hotloop.errors import ConfigError
from hotloop.graph.creation import randn, uniform_bits
from hotloop.graph.pointwise import floor

if TYPE_CHECKING:
    from hotloop.graph.symbolic import Tensor

__all__ = ["augment_series"]


def augment_series(name: str, x: Tensor, steps: Sequence[SeriesStep]) -> Any:
    """A training batch of series after the steps, in their order.

    Parameters
    ----------
    name : str
        Of the field, for messages.
    x : Tensor (batch, time, ...)
    steps : sequence of SeriesStep

    Raises
    ------
    ConfigError
        If it is no series of measurements.
    """
    if x.ndim < 2 or str(x.dtype) != "float32":
        raise ConfigError(
            f"augment: steps for series need measurements (batch, time, ...), got {x.dtype} of "
            f"shape {x.shape} as {name}"
        )
    for step in steps:
        if isinstance(step, Jitter):
            x = x + randn(x.shape) * step.sigma
        elif isinstance(step, Scaling):
            x = x * (randn((x.shape[0], 1, *x.shape[2:])) * step.sigma + 1.0)
        elif isinstance(step, TimeMask):
            x = x * _keep_times(x, step)
    return x


def _keep_times(x: Tensor, step: TimeMask) -> Any:
    """1 at the times that stay and 0 in the mask of each series, (batch, time, 1, ...)."""
    batch, times = x.shape[:2]
    drawn = uniform_bits((batch, 3), "time mask")
    most = int(step.share * times)
    is_masked = (drawn[:, 0:1] < step.p).cast("float32")
    length = floor(drawn[:, 1:2] * float(most + 1)) * is_masked
    begin = floor(drawn[:, 2:3] * (float(times + 1) - length))
    number = x.trace.const(np.arange(times, dtype=np.float32)[None])
    inside = (number >= begin).cast("float32") * (number < begin + length).cast("float32")
    return (1.0 - inside).reshape(batch, times, *[1] * (x.ndim - 2))
