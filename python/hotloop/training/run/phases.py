"""What a training trains in each of its phases, found before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotloop.base.messages import counted, format_count, warn
from hotloop.errors import CheckpointWarning, ConfigError, ModelWarning
from hotloop.nn.layout import Layout
from hotloop.stats.node import StatisticalNode
from hotloop.training.config.phases import ends_of, phase_at, phases
from hotloop.training.config.schema import parse_save_every
from hotloop.training.scoring.losses import loss_modules

if TYPE_CHECKING:
    from hotloop.nn.layout import Slot
    from hotloop.nn.module import Module
    from hotloop.training.config import TrainingConfig

__all__ = ["Phases"]


class Phases:
    """The phases of a configuration for a model, by their first epochs.

    Parameters
    ----------
    model : Module
        Without lazy layers.
    config : TrainingConfig

    Attributes
    ----------
    firsts : list of int
        The first epoch of each, in their order.

    Raises
    ------
    ConfigError
        If a pattern covers nothing, if one ends without a change of what is trained, or if
        nothing is trained in some epoch.
    """

    def __init__(self, model: Module, config: TrainingConfig) -> None:
        self._config = config
        losses = loss_modules(config.loss)
        self._layouts = {
            phase.first: Layout(model, losses, freeze=phase.freeze, unfreeze=phase.unfreeze)
            for phase in phases(config)
        }
        self.firsts = list(self._layouts)
        self._check(model)

    def at(self, epoch: int) -> int:
        """The first epoch of the phase that an epoch is of."""
        return phase_at(self._config, epoch).first

    def trained(self, epoch: int) -> dict[str, Slot]:
        """What is trained in an epoch, by name."""
        return {slot.name: slot for slot in self._layouts[self.at(epoch)].trainable}

    def names(self) -> list[str]:
        """What is trained in some epoch."""
        return list(dict.fromkeys(name for first in self.firsts for name in self.trained(first)))

    def joined(self, first: int) -> dict[str, int]:
        """Since which phase what is trained in one has been, where that is not the first."""
        since: dict[str, int] = {}
        for each in self.firsts:
            if each <= first:
                since = {name: since.get(name, each) for name in self.trained(each)}
        return {name: each for name, each in since.items() if each > 1}

    def resting(self, first: int) -> dict[str, Slot]:
        """What is not trained in a phase, was before, and will be: its moments are kept."""
        now = self.trained(first)
        before = {name for each in self.firsts if each < first for name in self.trained(each)}
        later: dict[str, Slot] = {}
        for each in self.firsts:
            later |= self.trained(each) if each > first else {}
        return {name: slot for name, slot in later.items() if name in before and name not in now}

    def moments(self, first: int) -> int:
        """Elements of each kind of moments in a snapshot that is taken in a phase."""
        resting = sum(slot.size for slot in self.resting(first).values())
        return self._layouts[first].n_flat + resting

    def most_moments(self) -> int:
        """The same of the largest."""
        return max(map(self.moments, self.firsts))

    def moments_beside(self, first: int) -> int:
        """The same of the largest snapshot beside a phase's plans: it begins from one of the phase
        before.
        """
        before = [each for each in self.firsts if each < first][-1:]
        return max(map(self.moments, (first, *before)))

    def warn(self) -> None:
        """Says which patterns hold for more epochs than there are, and if no checkpoint is due."""
        unit, n = parse_save_every(self._config.save_every)
        if unit == "epochs" and n > self._config.max_epochs:
            warn(
                f"save_every: {counted(int(n), 'epoch')} are more than max_epochs="
                f"{self._config.max_epochs}, so that no checkpoint is due before the end; for "
                f"steps write save_every='{n} steps'",
                CheckpointWarning,
            )
        for field in ("freeze", "unfreeze"):
            for pattern, end in ends_of(getattr(self._config, field)).items():
                if end is not None and end > self._config.max_epochs:
                    warn(
                        f"{field}: {pattern!r} holds for {counted(end, 'epoch')}, got max_epochs="
                        f"{self._config.max_epochs}, so that it never ends",
                        ModelWarning,
                    )

    def describe(self) -> str:
        """How much is trained from which epoch on; "": the same in all."""
        sizes = [sum(slot.size for slot in self.trained(first).values()) for first in self.firsts]
        if len(sizes) < 2:
            return ""
        first, *later = zip(self.firsts, sizes, strict=True)
        return f"{format_count(first[1])} parameters" + "".join(
            f", {format_count(size)} from epoch {epoch} on" for epoch, size in later
        )

    def _check(self, model: Module) -> None:
        fields = ("freeze", "unfreeze")
        is_asked = any(getattr(self._config, field) is not None for field in fields)
        for first, layout in self._layouts.items():
            if not layout.n_trainable and not is_asked and (nodes := _fitted_nodes(model)):
                raise ConfigError(
                    f"unfreeze: what is fitted ({', '.join(nodes[:6])}) is frozen, and nothing "
                    f"else is left to be trained; name what is to be, unfreeze=[{nodes[0]!r}], or "
                    "write max_epochs=0, which fits alone"
                )
            if not layout.n_trainable and is_asked:
                since = f" from epoch {first} on" if first > 1 else ""
                raise ConfigError(
                    "freeze: must leave a parameter to be trained in each epoch, got none"
                    f"{since}; leave out a pattern, or name what is trained in unfreeze"
                )
        for before, first in zip(self.firsts, self.firsts[1:]):
            if self.trained(before).keys() != self.trained(first).keys():
                continue
            field, pattern = next(
                (field, pattern)
                for field in fields
                for pattern, end in ends_of(getattr(self._config, field)).items()
                if end == first - 1
            )
            raise ConfigError(
                f"{field}: must change what is trained where it ends, got {pattern!r} for "
                f"{counted(first - 1, 'epoch')}, after which the same parameters are trained or "
                "not by another pattern or requires_grad; leave it out, or the other"
            )


def _fitted_nodes(model: Module) -> list[str]:
    """Names of the statistical nodes that have something to be trained."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, StatisticalNode) and any(True for _ in module.parameters())
    ]
