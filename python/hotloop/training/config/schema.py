"""Rules of TrainingConfig's fields: what may stand there, and its canonical form.

They are those of one field; what serves several is in :mod:`hotloop.base.rules`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from hotloop.base import rules
from hotloop.base.rules import FrozenDict, Rule, choice, flag, number, reject, whole
from hotloop.base.scalars import plain
from hotloop.base.suggest import closest
from hotloop.errors import ConfigError
from hotloop.training.config.parts import (
    OPTIMIZER_NAME,
    OPTIMIZERS,
    SCHEDULER_NAME,
    SCHEDULERS,
    EarlyStopping,
    EMAConfig,
    OptimizerConfig,
    ParamGroup,
    SchedulerConfig,
    SWAConfig,
)

__all__ = [
    "LAYER_DECAY",
    "LOGGERS",
    "auto_or_flag",
    "callbacks",
    "class_weight",
    "clip",
    "devices",
    "early_stopping",
    "ema",
    "listed_loggers",
    "logger",
    "loss",
    "metrics",
    "mode_of_name",
    "monitor_mode",
    "optimizer",
    "overfit",
    "param_groups",
    "parse_save_every",
    "patterns",
    "precision",
    "recompute",
    "save_every",
    "scheduler",
    "seed",
    "setting",
    "swa",
    "val_check",
    "verbose",
]

T = TypeVar("T")


def setting(default: T, rule: Rule) -> T:
    """A field of TrainingConfig: its default, and the rule that what is given has to keep.

    A new setting is such a line, a sentence in the class's docstring, and the type of what may be
    given for it in ``options.py``.

    Parameters
    ----------
    default : object
        In canonical form.
    rule : callable
        ``rule(field, value)`` gives the value's canonical form or raises ConfigError.
    """
    return dataclasses.field(default=default, metadata={"rule": rule})


_PRECISIONS = ("auto", "64-true", "32-true", "tf32", "16-mixed", "bf16-mixed")
_PRECISION_ALIASES: Mapping[Any, str] = {
    64: "64-true", "64": "64-true", "fp64": "64-true", "float64": "64-true",
    32: "32-true", "32": "32-true", "fp32": "32-true", "float32": "32-true",
    16: "16-mixed", "16": "16-mixed", "fp16": "16-mixed", "float16": "16-mixed",
    "bf16": "bf16-mixed", "bfloat16": "bf16-mixed",
}  # fmt: skip
_choose_precision = choice(*_PRECISIONS, aliases=_PRECISION_ALIASES)


def precision(field: str, value: object) -> str:
    """A precision; of Lightning's others, that of the same dtype is named."""
    if isinstance(value, str) and value in ("bf16-true", "16-true"):
        mixed = value.replace("true", "mixed")
        reject(field, "must leave weights in float32", value, f"write {field}={mixed!r}")
    return str(_choose_precision(field, value))


def auto_or_flag(field: str, value: object) -> bool | str:
    """One of "auto", True and False."""
    if value == "auto" and isinstance(value, str):
        return "auto"
    if isinstance(value, str):
        reject(field, "must be 'auto', True or False", value)
    return flag(field, value)


def optimizer(field: str, value: object) -> OptimizerConfig:
    """A name, an OptimizerConfig or a dict of its settings, as an OptimizerConfig."""
    if isinstance(value, OptimizerConfig):
        return value
    if isinstance(value, Mapping):
        return OptimizerConfig(**value)
    if not isinstance(value, str):
        listed = ", ".join(OPTIMIZERS)
        reject(field, f"must be a name ({listed}) or an OptimizerConfig", value)
    return OptimizerConfig(OPTIMIZER_NAME(field, value))


def scheduler(field: str, value: object) -> SchedulerConfig:
    """A name, a SchedulerConfig, a dict of its settings or None, as a SchedulerConfig."""
    if isinstance(value, SchedulerConfig):
        return value
    if isinstance(value, Mapping):
        return SchedulerConfig(**value)
    if value is None:
        return SchedulerConfig("constant")
    if not isinstance(value, str):
        listed = ", ".join(SCHEDULERS)
        reject(field, f"must be a name ({listed}) or a SchedulerConfig", value)
    return SchedulerConfig(SCHEDULER_NAME(field, value))


def early_stopping(field: str, value: object) -> EarlyStopping | None:
    """Rounds, True, None, an EarlyStopping or a dict of its settings."""
    if isinstance(value, EarlyStopping):
        return value
    if isinstance(value, Mapping):
        return EarlyStopping(**value)
    if value is None or value is False:
        return None
    if value is True:
        return EarlyStopping()
    fix = f"write {field}=None for no early stopping"
    return EarlyStopping(whole(1, fix=fix)(field, value))


def ema(field: str, value: object) -> EMAConfig | bool:
    """A decay, True, False, an EMAConfig or a dict of its settings."""
    if isinstance(value, EMAConfig):
        return value
    if isinstance(value, Mapping):
        return EMAConfig(**value)
    if value is None or value is False:
        return False
    if value is True:
        return EMAConfig()
    fix = f"write {field}=True for a decay of 0.999, {field}=False for no average"
    return EMAConfig(number(above=0.0, below=1.0, fix=fix)(field, value))


def swa(field: str, value: object) -> SWAConfig | bool:
    """A share of the epochs, True, False, an SWAConfig or a dict of its settings."""
    if isinstance(value, SWAConfig):
        return value
    if isinstance(value, Mapping):
        return SWAConfig(**value)
    if value is None or value is False:
        return False
    if value is True:
        return SWAConfig()
    fix = (
        f"write {field}=True to average from 75 % of the epochs on, hl.SWAConfig(start=8) from "
        "the eighth one on"
    )
    return SWAConfig(number(above=0.0, below=1.0, fix=fix)(field, value))


def _named(field: str, value: object, what: str) -> object:
    """A name or something to call."""
    if isinstance(value, str):
        return rules.text(field, value)
    if isinstance(value, type):
        reject(field, f"must be {what}", value, f"write {value.__name__}() to make one")
    if not callable(value) and not hasattr(value, "compute"):  # stats.ModuleMetric
        reject(field, f"must be {what}", value)
    return value


def loss(field: str, value: object) -> object:
    """A name, something to call, or a dict of them; a list is a dict by position."""
    what = "'auto', a name, a loss module, a function (output, target) or a dict of them"
    if isinstance(value, (list, tuple)):
        value = {str(i): item for i, item in enumerate(value)}
    if not isinstance(value, Mapping):
        return _named(field, value, what)
    if not value:
        reject(field, "a dict of losses needs at least one", value)
    return FrozenDict(
        {rules.text(field, k): _weighted(f"{field}[{k!r}]", v, what) for k, v in value.items()}
    )


def _weighted(field: str, value: object, what: str) -> object:
    """A loss, or a pair of one and its weight."""
    if not isinstance(value, (tuple, list)):
        return _named(field, value, what)
    if len(value) != 2:
        reject(field, "must be a loss or a pair (loss, weight)", value)
    return _named(field, value[0], what), number()(field, value[1])


def metrics(field: str, value: object) -> str | tuple[object, ...] | FrozenDict:
    """ "auto", a name or something to call, or a list or dict of them; a list of lists is a dict by
    position.
    """
    what = "a name or a function (y_true, y_pred), or a list or dict of them"
    if value is None:
        return ()
    if isinstance(value, str) and value == "auto":
        return value
    if not isinstance(value, Mapping):
        if isinstance(value, str) or callable(value) or not isinstance(value, Iterable):
            return (_named(field, value, what),)
        listed = list(value)
        if not any(isinstance(item, (list, tuple)) for item in listed):
            return tuple(_named(field, item, what) for item in listed)
        value = {str(i): item for i, item in enumerate(listed)}
    return FrozenDict(
        {
            rules.text(field, key): tuple(_named(f"{field}[{key!r}]", one, what) for one in item)
            if isinstance(item, (list, tuple))
            else _named(f"{field}[{key!r}]", item, what)
            for key, item in value.items()
        }
    )


def class_weight(field: str, value: object) -> str | tuple[float, ...] | FrozenDict | None:
    """Weights: "balanced", in the order of the classes, by class, or None."""
    what = "None, 'balanced', a weight per class, or a dict from class to weight"
    weight = number(at_least=0.0)
    if value is None:
        return None
    if isinstance(value, str):
        if value != "balanced":
            reject(field, f"must be {what}", value)
        return value
    if isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        found: list[Any] = list(rules.items(field, value, what))
        if not found or not all(isinstance(item, (list, tuple)) for item in found):
            weights = tuple(weight(f"{field}[{i}]", item) for i, item in enumerate(found))
            if not any(weights):
                reject(field, "needs at least one weight above 0", value)
            return weights
        pairs = found
        if any(len(item) != 2 for item in pairs):
            reject(field, f"must be {what}", value)
    for label, _ in pairs:
        if not isinstance(label, (str, int)) or isinstance(label, bool):
            reject(field, "a class is named by an int or a string", label)
    weights_of = {label: weight(f"{field}[{label!r}]", w) for label, w in pairs}
    if not any(weights_of.values()):
        reject(field, "needs at least one weight above 0", value)
    return FrozenDict(weights_of)


def devices(field: str, value: object) -> int | str | tuple[int, ...]:
    """How many devices, which, or "auto"."""
    fix = "write a number of devices, a list of their numbers such as [0], or 'auto'"
    if isinstance(value, str):
        if value != "auto":
            reject(field, "must be 'auto', a number or a list of numbers", value, fix)
        return value
    if isinstance(value, Iterable):
        found = tuple(whole(0)(f"{field}[{i}]", item) for i, item in enumerate(value))
        if not found or len(set(found)) != len(found):
            reject(field, "must name each device once", value, fix)
        return found
    count: int = whole(-1, fix=fix)(field, value)
    if count == 0:
        reject(field, "must be at least 1, or -1 for all", value, fix)
    return count


def clip(field: str, value: object) -> float:
    """A limit; None is 0, no clipping."""
    if value is None:
        return 0.0
    limit: float = number(at_least=0.0, fix="write None for no clipping")(field, value)
    return limit


_SHARE = number(at_least=0.0, at_most=1.0, fix="True is all of it, False none")


def recompute(field: str, value: object) -> bool | float | str | tuple[str, ...]:
    """Names of modules, True, False, a share between, or "auto"."""
    if isinstance(value, str) and value == "auto":
        return value
    if isinstance(value, (str, list, tuple)):
        return rules.names(field, value)
    if isinstance(value, float):
        share: float = _SHARE(field, value)
        return share if 0 < share < 1 else share == 1
    return flag(field, value)


LAYER_DECAY = number(
    above=0.0, at_most=1.0, fix="a usual value is 0.75; None is the same rate for all layers"
)


def param_groups(field: str, value: object) -> tuple[ParamGroup, ...] | None:
    """Dicts or ParamGroups, as a tuple; none is None."""
    example = "{'params': 'backbone', 'lr': 1e-5}"
    what = f"a list of dicts such as {example}"
    if value is None:
        return None
    if isinstance(value, (str, Mapping, ParamGroup)) or not isinstance(value, Iterable):
        reject(field, f"must be {what}", value)
    groups = []
    for i, item in enumerate(value):
        if isinstance(item, ParamGroup):
            groups.append(item)
        elif isinstance(item, Mapping) and "params" in item:
            groups.append(ParamGroup(**item))
        else:
            near = closest("params", map(str, item)) if isinstance(item, Mapping) else None
            fix = f"write 'params' in place of {near!r}" if near else ""
            reject(f"{field}[{i}]", "must be a dict such as " + example, item, fix)
    return tuple(groups) or None


_EPOCHS = whole(1, fix="write the number of epochs for which it holds, or True for all")


def patterns(field: str, value: object) -> tuple[str, ...] | FrozenDict | None:
    """A pattern or several, a dict from each to its epochs or True, or None."""
    if value is None or not isinstance(value, Mapping):
        return None if value is None else rules.names(field, value)
    if not value:
        reject(field, "must hold at least one pattern", value, f"write {field}=None for none")
    held: dict[str, Any] = {}
    for pattern, epochs in value.items():
        name = f"{field}[{pattern!r}]"
        is_all = plain(epochs) is True
        held[rules.text(field, pattern)] = True if is_all else _EPOCHS(name, epochs)
    return tuple(held) if all(epochs is True for epochs in held.values()) else FrozenDict(held)


LOGGERS = ("csv", "jsonl", "tensorboard", "wandb", "mlflow", "trackio")
# Methods by which an object takes values, the first that it has.
_LOGS = ("log_metrics", "add_scalar", "log")


def logger(field: str, value: object) -> object:
    """A logger's name or "auto", an object that logs, or several; True is "csv", False is None."""
    value = plain(value)
    if value is None or value is False:
        return None
    if value is True:
        return "csv"
    if isinstance(value, (list, tuple)):
        several: list[object] = []
        for i, item in enumerate(value):
            found = _one_logger(f"{field}[{i}]", item, LOGGERS)
            if not any(one is found or (type(one) is str and one == found) for one in several):
                several.append(found)
        return tuple(several) if len(several) > 1 else several[0] if several else None
    return _one_logger(field, value, ("auto", *LOGGERS))


def _one_logger(field: str, value: object, names: tuple[str, ...]) -> object:
    if isinstance(value, str):
        return choice(*names)(field, value)
    if isinstance(value, type):
        reject(field, "must be an object", value, f"write {value.__name__}(...) to make one")
    if not any(callable(getattr(value, method, None)) for method in _LOGS):
        listed = ", ".join(map(repr, names))
        reject(
            field,
            f"must be one of {listed}, None, an object with log(values, step=...), or a list of "
            "these",
            value,
        )
    return value


def listed_loggers(value: Any) -> tuple[Any, ...]:
    """The names and objects of a field ``logger`` in its canonical form."""
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def verbose(field: str, value: object) -> str:
    """How a run is shown; silence is another setting's."""
    if isinstance(value, str) and value in ("auto", "lines"):
        return value
    fix = "write enable_progress_bar=False for silence"
    reject(field, "must be 'auto' or 'lines'", value, fix)


def seed(field: str, value: object) -> int | None:
    """A whole number; False, which TOML can hold, is None."""
    if value is None or value is False:
        return None
    found: int = whole(0)(field, value)
    return found


def overfit(field: str, value: object) -> int | float | None:
    """A fraction or number of batches; 0 is None."""
    if value is None or (type(value) in (int, float) and value == 0):  # Lightning's "off"
        return None
    return rules.fraction_or_count(field, value)


def val_check(field: str, value: object) -> int | float | None:
    """A fraction of an epoch or a number of batches; the whole of it is None."""
    if value is None:
        return None
    found = rules.fraction_or_count(field, value)
    return None if isinstance(found, float) and found == 1.0 else found


_EVERY_FIX = (
    "write a number of epochs, '500 steps' or a time such as '10m'; save_last=False for none"
)


def save_every(field: str, value: object) -> int | str | None:
    """Epochs as int; steps and a time span stay texts, so that they cannot be taken for epochs."""
    import re

    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        epochs: int = whole(1, fix=_EVERY_FIX)(field, value)
        return epochs
    text = value if isinstance(value, str) else ""
    if counted := re.fullmatch(r"\s*(\d+)\s*(step|epoch)s?\s*", text):
        count: int = whole(1, fix=_EVERY_FIX)(field, int(counted[1]))
        return count if counted[2] == "epoch" else f"{count} steps"
    if isinstance(value, float):
        reject(field, "must say of what", value, _EVERY_FIX)
    try:
        seconds = rules.duration(field, value)
    except ConfigError:
        reject(field, "must be epochs, steps or a time span", value, _EVERY_FIX)
    return f"{int(seconds) if seconds.is_integer() else seconds}s"


def parse_save_every(value: int | str | None) -> tuple[str, float]:
    """The unit of ``save_every`` in its canonical form, and how many of it.

    >>> parse_save_every(2), parse_save_every("500 steps"), parse_save_every("90s")
    (('epochs', 2), ('steps', 500.0), ('seconds', 90.0))
    >>> parse_save_every(None)
    ('', 0)
    """
    if value is None:
        return "", 0
    if isinstance(value, int):
        return "epochs", value
    if value.endswith(" steps"):
        return "steps", float(value.removesuffix(" steps"))
    return "seconds", float(value.removesuffix("s"))


def callbacks(field: str, value: object) -> tuple[object, ...]:
    """One object or several, as a tuple."""
    if value is None:
        return ()
    if isinstance(value, (str, Mapping)):
        reject(field, "must be callback objects", value)
    return tuple(value) if isinstance(value, Iterable) else (value,)


# fmt: off
_LARGER_IS_BETTER = frozenset((
    "acc", "accuracy", "auc", "auroc", "roc", "precision", "recall", "sensitivity",
    "specificity", "f1", "f2", "fbeta", "fscore", "ap", "map", "iou", "miou", "jaccard", "dice",
    "kappa", "qwk", "mcc", "matthews", "r2", "pck", "psnr", "ssim", "bleu", "rouge", "ndcg",
    "score", "auprc", "explained", "correlation", "pearson", "spearman", "top1", "top3", "top5",
))
_SMALLER_IS_BETTER = frozenset((
    "loss", "logloss", "error", "err", "mse", "rmse", "rmsle", "mae", "mape", "nll", "perplexity",
    "distance", "deviance", "divergence", "brier", "ece",
))
# fmt: on


def monitor_mode(monitor: str, mode: str | None = "auto", field: str = "monitor") -> str:
    """Whether a smaller or a larger value of the monitored quantity is better.

    Parameters
    ----------
    monitor : str
        Its name, such as ``"val_loss"`` or ``"val_f1"``.
    mode : {"auto", "min", "max"}, optional
        "min" and "max" are returned as they are; "auto" decides by the words of the name.
    field : str
        The setting that names it, for the error message.

    Returns
    -------
    {"min", "max"}

    Raises
    ------
    ConfigError
        If neither says it.
    """
    found = mode if mode in ("min", "max") else mode_of_name(monitor)
    if found is None:
        part = field.rpartition(".")[0]  # whose mode it is
        place = f" in {part}" if part else ""
        raise ConfigError(
            f"{field}: its name must say whether smaller or larger is better, got {monitor!r}; "
            f"write mode='max' or mode='min'{place}, or, for a function, hl.metric(function, "
            "mode=...)"
        )
    return found


def mode_of_name(name: str) -> str | None:
    """The direction that the words of a name say, or None."""
    import re

    words = {word for word in re.split(r"[^a-z0-9]+", name.lower()) if word}
    if words & {"neg", "negative"}:
        return None
    if words & _SMALLER_IS_BETTER:
        return "min"
    return "max" if words & _LARGER_IS_BETTER else None
