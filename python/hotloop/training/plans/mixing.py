"""Mixup and CutMix: a training batch mixed with itself in reverse order, and its loss likewise.

Both are part of the step's graph: random numbers are drawn there, anew in each step, so that
nothing of it costs the loader anythin The loss is that of both targets, weighted by how much of
each row is whose; so it works for any loss and needs no soft labels.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.base.structure import flatten, unflatten
from hotloop.errors import ConfigError
from hotloop.graph.creation import uniform_bits
from hotloop.graph.indexing import index_select
from hotloop.graph.loss_parts import Term, loss_terms
from hotloop.graph.pointwise import floor, sqrt, where

if TYPE_CHECKING:
    from hotloop.graph.symbolic import Tensor
    from hotloop.training.config import TrainingConfig

__all__ = ["Mixed", "check_mixing", "mix_batch", "mix_losses"]

_LEVELS = 4096  # of the table of a Beta distribution


class Mixed(NamedTuple):
    """What a batch was mixed with.

    Attributes
    ----------
    own : Tensor
        Scalar: how much of a row is its own.
    batch : dict
        "y" and "weight" of the rows that were mixed in.
    """

    own: Tensor
    batch: dict[str, Any]


def check_mixing(config: TrainingConfig, *, is_own_step: bool, has_lengths: bool) -> None:
    """Refuses what cannot be mixed.

    Raises
    ------
    ConfigError
    """
    for name in ("mixup", "cutmix"):
        if not getattr(config, name):
            continue
        got = f"got {name}={getattr(config, name)!r}"
        if is_own_step:
            raise ConfigError(
                f"{name}: the model's training_step makes the losses, of which {name} would have "
                f"to mix two, {got}; leave it out, or mix in training_step"
            )
        if has_lengths:
            raise ConfigError(f"{name}: sequences of several lengths cannot be mixed, {got}")


def mix_batch(batch: dict[str, Any], config: TrainingConfig) -> tuple[dict[str, Any], Mixed | None]:
    """The batch with mixed inputs, and what to mix its loss with; None: nothing is mixed.

    Parameters
    ----------
    batch : dict
        "x", and "y" and "weight" where there are some, of a training step.
    config : TrainingConfig
        With "mixup" and "cutmix", the parameters of their Beta distributions.

    Raises
    ------
    ConfigError
        For inputs that are no measurements, and for CutMix of what is no image, or beside masks
        and points.
    """
    if not config.mixup and not config.cutmix:
        return batch, None
    leaves, spec = flatten(batch["x"])
    for leaf in leaves:
        if str(leaf.dtype) != "float32":
            name = "mixup" if config.mixup else "cutmix"
            raise ConfigError(
                f"{name}: inputs must be measurements, got {leaf.dtype} of shape {leaf.shape}; "
                "embed ids in forward, and mix there"
            )
        if config.cutmix and leaf.ndim != 4:
            raise ConfigError(
                "cutmix: inputs must be images (batch, channels, height, width), got shape "
                f"{leaf.shape}; mixup mixes any rows"
            )
    for goal in flatten(batch["y"])[0] if config.cutmix and "y" in batch else []:
        if goal.ndim > 2:
            raise ConfigError(
                "cutmix: targets must be of whole images, since it cuts images and not what is at "
                f"each pixel or point, got targets of shape {goal.shape}; write mixup, which mixes "
                "the losses of any targets"
            )
    drawn = uniform_bits((5,), "mixing")
    takes_cut = (drawn[0] < 0.5).cast("float32")  # where both are asked for
    share = _draw_share(drawn[1], config.mixup) if config.mixup else None
    cut_share = _draw_share(drawn[2], config.cutmix) if config.cutmix else None
    mixed, own = [], None
    for leaf in leaves:
        other, made = leaf.flip(0), leaf
        if share is not None:
            own = share
            made = other + (leaf - other) * share
        if cut_share is not None:
            inside, area = _draw_box(leaf.shape[2:], cut_share, drawn[3], drawn[4])
            cut = where(inside > 0.5, other, leaf)
            made = cut if share is None else made + (cut - made) * takes_cut
            own = 1.0 - area if own is None else own + (1.0 - area - own) * takes_cut
        mixed.append(made)
    assert own is not None  # one of them is asked for
    partners: dict[str, Any] = {
        name: unflatten([leaf.flip(0) for leaf in flatten(batch[name])[0]], flatten(batch[name])[1])
        for name in ("y", "weight")
        if name in batch
    }
    return {**batch, "x": unflatten(mixed, spec)}, Mixed(own, partners)


def mix_losses(made: Any, other: Any, own: Tensor) -> Any:
    """Losses of the rows' own targets and of those that were mixed in, each by its share.

    Parameters
    ----------
    made, other : Tensor or dict of them
    own : Tensor
    """
    if isinstance(made, Mapping):
        return {name: mix_losses(loss, other[name], own) for name, loss in made.items()}
    result = other + (made - other) * own
    parts = [
        Term(term.total * share, term.denominator, term.weight)
        for loss, share in ((made, own), (other, 1.0 - own))
        for term in loss_terms(loss)
    ]
    result._parts = tuple(parts)
    return result


# ---- random numbers


@functools.lru_cache(maxsize=8)
def beta_quantiles(a: float) -> npt.NDArray[np.float32]:
    """The values below which a number of Beta(a, a) is with the probabilities (i + 0.5) / 4096.

    With s = t^a the density's lower half, t^(a-1) (1-t)^(a-1) dt, is (1 - s^(1/a))^(a-1) ds / a,
    which has no pole; the upper half is its mirror image.

    Parameters
    ----------
    a : float
        Above 0.
    """
    s = np.linspace(0.0, 0.5**a, 200_001)
    t = s ** (1.0 / a)
    density = (1.0 - t) ** (a - 1.0)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    p = (np.arange(_LEVELS) + 0.5) / _LEVELS
    lower = np.interp(p[: _LEVELS // 2], mass / mass[-1] / 2, t)
    return np.concatenate([lower, 1.0 - lower[::-1]]).astype(np.float32)


def _draw_share(uniform: Tensor, a: float) -> Tensor:
    """A number of Beta(a, a)."""
    table = uniform.trace.const(beta_quantiles(float(a)))
    at = floor(uniform * float(_LEVELS)).cast("int64")
    return index_select(table, 0, at.reshape(1))[0]


def _draw_box(
    size: tuple[int, ...], own: Tensor, across: Tensor, down: Tensor
) -> tuple[Tensor, Tensor]:
    """A mask (height, width) of a box whose area is 1 - own where it is whole, and its share.

    Its centre is anywhere, and what is outside of the image is cut off (Yun et al. 2019).
    """
    height, width = size
    half = sqrt(1.0 - own) * 0.5
    sides = []
    for n, place in ((height, down), (width, across)):
        centre, reach = floor(place * float(n)), floor(half * float(n))
        numbers = place.trace.const(np.arange(n, dtype=np.float32))
        is_behind = (numbers >= centre - reach).cast("float32")
        sides.append(is_behind * (numbers < centre + reach).cast("float32"))
    inside = sides[0].reshape(height, 1) * sides[1].reshape(1, width)
    return inside, sides[0].sum() * sides[1].sum() / float(height * width)
