"""What a file or a pickle of a model keeps of how its run was scored, as JSON has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.training.config import TrainingConfig

__all__ = ["config_of_scoring", "scoring_of"]


def scoring_of(config: TrainingConfig) -> dict[str, Any]:
    """The metrics and settings by which ``evaluate`` scores.

    Parameters
    ----------
    config : TrainingConfig
        Of the run.

    Returns
    -------
    dict
        "metrics" as the configuration has them without functions, whose names are in "left_out";
        "class_weight", as pairs where it is by class; "label_smoothing".
    """
    left_out: list[str] = []
    weights: Any = config.class_weight
    if isinstance(weights, Mapping):
        weights = [list(pair) for pair in weights.items()]
    return {
        "metrics": _without_functions(config.metrics, left_out),
        "left_out": left_out,
        "class_weight": list(weights) if isinstance(weights, tuple) else weights,
        "label_smoothing": config.label_smoothing,
    }


def _without_functions(metrics: Any, left_out: list[str]) -> Any:
    if isinstance(metrics, str):
        return metrics
    if isinstance(metrics, Mapping):
        kept = {}
        for name, given in metrics.items():
            if isinstance(given, (str, tuple)):
                kept[name] = _without_functions(given, left_out)
            else:
                left_out.append(name)
        return kept or []
    left_out += [_name_of(given) for given in metrics if not isinstance(given, str)]
    return [given for given in metrics if isinstance(given, str)]


def _name_of(function: Any) -> str:
    own = getattr(function, "name", None)  # of a stats.ModuleMetric
    return str(own or getattr(function, "__name__", type(function).__name__))


def config_of_scoring(loss: Any, scoring: Mapping[str, Any]) -> TrainingConfig:
    """A configuration from :func:`scoring_of`.

    Parameters
    ----------
    loss : str or dict of str
    scoring : dict
        Empty in older files, which have the loss alone.
    """
    fields = {name: value for name, value in scoring.items() if name != "left_out"}
    return TrainingConfig(loss=loss, **fields)
