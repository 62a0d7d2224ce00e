"""Which activations are computed again in the backward pass, by the configuration.

The core has a list of all that can be (``csrc/passes/recompute.c``), in the order in which it is
worth it, and takes a share of it. What ``recompute`` names is a checkpoint in the trace instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hotloop.base.suggest import did_you_mean
from hotloop.errors import ConfigError
from hotloop.nn.containers import Container, ModuleDict, ModuleList

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hotloop.nn.module import Module
    from hotloop.training.config import TrainingConfig

__all__ = ["check_ran", "describe", "find_modules", "find_share", "share_of"]


def share_of(config: TrainingConfig) -> float | None:
    """The share of the core's list that is recomputed; None: as much as memory asks for."""
    if config.recompute == "auto":
        return None
    return float(config.recompute) if isinstance(config.recompute, (bool, float)) else 0.0


# ---- by name


def _covers(pattern: str, name: str) -> bool:
    from fnmatch import fnmatchcase

    return fnmatchcase(name, pattern) if any(c in pattern for c in "*?[") else name == pattern


def _called(module: Module) -> list[Module]:
    """The module, or those in it where it is a list that nobody calls."""
    if not isinstance(module, (Container, ModuleDict, ModuleList)):
        return [module]
    return [inner for child in module.children() for inner in _called(child)]


def find_modules(model: Module, patterns: Sequence[str]) -> dict[int, str]:
    """The modules that patterns name.

    Parameters
    ----------
    model : Module
    patterns : sequence of str
        Modules' names, or patterns with wildcards as in :mod:`fnmatch`, where ``*`` also crosses
        dots. A ``ModuleList`` stands for each module in it.

    Returns
    -------
    dict of int to str
        ``id`` of each module to its pattern.

    Raises
    ------
    ConfigError
        If a pattern names none.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    found: dict[int, str] = {}
    for pattern in patterns:
        named = [module for name, module in modules.items() if name and _covers(pattern, name)]
        if not named:
            near = did_you_mean(pattern, [name for name in modules if name])
            raise ConfigError(f"recompute: must match a module of the model, got {pattern!r}{near}")
        for module in named:
            for inner in _called(module):
                found.setdefault(id(inner), pattern)
    return found


def check_ran(modules: Mapping[int, str], ran: set[int]) -> None:
    """Sees that each pattern names a module that forward calls.

    Raises
    ------
    ConfigError
        If one does not: it would change nothing.
    """
    used = {pattern for key, pattern in modules.items() if key in ran}
    for pattern in dict.fromkeys(modules.values()):
        if pattern not in used:
            raise ConfigError(
                f"recompute: must name modules that the training step calls, got {pattern!r}; name "
                "one that is called, or write nn.checkpoint(function, ...) in forward"
            )


# ---- by memory


def find_share(bytes_at: Callable[[float], int], n_choices: int, limit: float) -> tuple[float, int]:
    """The least share of the list with which a step fits in memory.

    Parameters
    ----------
    bytes_at : callable
        What a step takes with a share.
    n_choices : int
        Length of the list.
    limit : float
        Bytes.

    Returns
    -------
    share : float
        If none fits, the one that takes least of those that were tried.
    n_bytes : int
        What it takes.
    """
    low, least = 0, bytes_at(0.0)  # the most that is known not to fit
    if least <= limit or not n_choices:
        return 0.0, least
    best, high = 0.0, n_choices
    at = bytes_at(1.0)
    if at > limit:
        return (1.0, at) if at < least else (best, least)
    best, least = 1.0, at
    while high - low > 1:
        middle = (low + high) // 2
        at = bytes_at(middle / n_choices)
        if at <= limit:
            high, best, least = middle, middle / n_choices, at
        else:
            low = middle
    return best, least


def describe(info: Mapping[str, Any]) -> str:
    """``12 of 80 values, +18 % flops``, of a plan's ``info()``; "": nothing is recomputed."""
    if not info["n_recomputed"]:
        return ""
    more = 100 * info["recomputed_flops"] / max(info["step_flops"], 1.0)
    percent = f"{more:.0f}" if more >= 10 else f"{more:.2g}"
    return f"{info['n_recomputed']} of {info['n_saved']} values, +{percent} % flops"
