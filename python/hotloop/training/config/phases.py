"""Phases of a training: which patterns freeze and unfreeze in which of its epochs.

A dict of ``freeze`` or ``unfreeze`` says for how many epochs each pattern holds, from the first one
on. Where one ends, another phase begins, in which something else is trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hotloop.training.config.config import TrainingConfig

__all__ = ["Phase", "ends_of", "has_phases", "phase_at", "phases"]


class Phase(NamedTuple):
    """Epochs that train the same parameters.

    Attributes
    ----------
    first : int
        Of these epochs, from 1.
    freeze, unfreeze : tuple of str
        The patterns that hold.
    """

    first: int
    freeze: tuple[str, ...]
    unfreeze: tuple[str, ...]


def ends_of(patterns: tuple[str, ...] | Mapping[str, int | bool] | None) -> dict[str, int | None]:
    """The last epoch for which each pattern holds; None: it holds in all."""
    if not isinstance(patterns, dict):
        return dict.fromkeys(patterns or ())
    return {pattern: None if n is True else n for pattern, n in patterns.items()}


def has_phases(config: TrainingConfig) -> bool:
    """Whether some pattern holds for a number of epochs."""
    return isinstance(config.freeze, dict) or isinstance(config.unfreeze, dict)


def _firsts(config: TrainingConfig) -> list[int]:
    ends = (*ends_of(config.freeze).values(), *ends_of(config.unfreeze).values())
    return sorted({1, *(n + 1 for n in ends if n is not None and n < config.max_epochs)})


def phase_at(config: TrainingConfig, epoch: int) -> Phase:
    """The phase that an epoch is of; behind the last one, the last epoch's."""
    first = max(n for n in _firsts(config) if n <= max(epoch, 1))
    freeze, unfreeze = (
        tuple(pattern for pattern, end in ends_of(field).items() if end is None or end >= first)
        for field in (config.freeze, config.unfreeze)
    )
    return Phase(first, freeze, unfreeze)


def phases(config: TrainingConfig) -> list[Phase]:
    """All of a training, in their order."""
    return [phase_at(config, first) for first in _firsts(config)]
