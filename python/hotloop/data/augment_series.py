"""Descriptions of what happens to training's series, (batch, time, features), once standardised.

They are part of the step's graph (training/plans/series.py), so that the device draws and computes
them; nothing is done to validation, and padding of sequences stays what it is.
"""

from __future__ import annotations

from typing import Any

from hotloop.base import rules
from hotloop.base.rules import reject

__all__ = ["Jitter", "Scaling", "SeriesStep", "TimeMask", "read_series_steps"]

_share = rules.number(at_least=0.0, at_most=1.0)
_sigma = rules.number(at_least=0.0)


class SeriesStep:
    """What the steps for series have in common."""

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown})"


class Jitter(SeriesStep):
    """Adds normal noise to each value.

    Parameters
    ----------
    sigma : float
        Its standard deviation, in the units of the standardised input.

    References
    ----------
    Um et al. 2017, "Data augmentation of wearable sensor data".

    Examples
    --------
    >>> hl.augment.Jitter(0.05)
    Jitter(sigma=0.05)
    """

    def __init__(self, sigma: float = 0.03) -> None:
        super().__init__(f"sigma={sigma!r}")
        self.sigma: float = _sigma("Jitter: sigma", sigma)


class Scaling(SeriesStep):
    """Multiplies each feature of a series by a normal number around 1, the same at all times.

    Parameters
    ----------
    sigma : float
        Standard deviation of the factor.

    References
    ----------
    Um et al. 2017, "Data augmentation of wearable sensor data".

    Examples
    --------
    >>> hl.augment.Scaling()
    Scaling(sigma=0.1)
    """

    def __init__(self, sigma: float = 0.1) -> None:
        super().__init__(f"sigma={sigma!r}")
        self.sigma: float = _sigma("Scaling: sigma", sigma)


class TimeMask(SeriesStep):
    """Sets times that follow one another to 0, the mean of a standardised input.

    Parameters
    ----------
    share : float
        The longest mask, as a share of the series: its length is drawn evenly up to that, its place
        evenly among those where it fits.
    p : float
        Share of the series that are masked.

    References
    ----------
    Park et al. 2019, "SpecAugment".

    Examples
    --------
    >>> hl.augment.TimeMask(0.2, p=0.8)
    TimeMask(share=0.2, p=0.8)
    """

    def __init__(self, share: float = 0.1, p: float = 0.5) -> None:
        super().__init__(f"share={share!r}, p={p!r}")
        self.share: float = _share("TimeMask: share", share)
        self.p: float = _share("TimeMask: p", p)


def read_series_steps(value: Any) -> tuple[SeriesStep, ...]:
    """The steps that ``augment=`` means for series.

    Parameters
    ----------
    value : str, step, list of steps, or None
        "none" (or None); "basic": Jitter and Scaling; "strong": TimeMask besides.

    Raises
    ------
    ConfigError
        For another word, or what is no step for series.
    """
    if value is None or isinstance(value, str):
        name = rules.choice("none", "basic", "strong")("augment", value or "none")
        steps: list[SeriesStep] = [] if name == "none" else [Jitter(), Scaling()]
        return (*steps, TimeMask()) if name == "strong" else tuple(steps)
    given = value if isinstance(value, (list, tuple)) else [value]
    for i, step in enumerate(given):
        if not isinstance(step, SeriesStep):
            reject(f"augment[{i}]", "must be Jitter, Scaling or TimeMask of hl.augment", step)
    return tuple(given)
