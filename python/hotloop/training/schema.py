"""The rule of every field of TrainingConfig: what may stand there, and its canonical form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from . import rules
from .parts import (
    BETAS,
    LR,
    MODE,
    MOMENTUM,
    OPTIMIZER_NAME,
    OPTIMIZERS,
    SCHEDULER_NAME,
    SCHEDULERS,
    WEIGHT_DECAY,
    EarlyStopping,
    EMAConfig,
    OptimizerConfig,
    ParamGroup,
    SchedulerConfig,
)
from .rules import FrozenDict, Rule, choice, flag, number, optional, reject, whole

__all__ = ["FIELD_RULES", "monitor_mode"]

_PRECISIONS = ("auto", "64-true", "32-true", "tf32", "16-mixed", "bf16-mixed")
_PRECISION_ALIASES: Mapping[Any, str] = {
    64: "64-true", "64": "64-true", "fp64": "64-true", "float64": "64-true",
    32: "32-true", "32": "32-true", "fp32": "32-true", "float32": "32-true",
    16: "16-mixed", "16": "16-mixed", "fp16": "16-mixed", "float16": "16-mixed",
    "bf16": "bf16-mixed", "bfloat16": "bf16-mixed",
}  # fmt: skip


def _auto_or_flag(field: str, value: object) -> bool | str:
    if value == "auto" and isinstance(value, str):
        return "auto"
    if isinstance(value, str):
        reject(field, "must be 'auto', True or False", value)
    return flag(field, value)


def _optimizer(field: str, value: object) -> OptimizerConfig:
    if isinstance(value, OptimizerConfig):
        return value
    if isinstance(value, Mapping):
        return OptimizerConfig(**value)
    if not isinstance(value, str):
        listed = ", ".join(OPTIMIZERS)
        reject(field, f"must be a name ({listed}) or an OptimizerConfig", value)
    return OptimizerConfig(OPTIMIZER_NAME(field, value))


def _scheduler(field: str, value: object) -> SchedulerConfig:
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


def _early_stopping(field: str, value: object) -> EarlyStopping | None:
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


def _ema(field: str, value: object) -> EMAConfig | bool:
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


def _named(field: str, value: object, what: str) -> object:
    """A name or something to call."""
    if isinstance(value, str):
        return rules.text(field, value)
    if isinstance(value, type):
        reject(field, f"must be {what}", value, f"write {value.__name__}() to make one")
    if not callable(value):
        reject(field, f"must be {what}", value)
    return value


def _loss(field: str, value: object) -> object:
    what = "'auto', a name, a loss module, a function (output, target) or a dict of them"
    if not isinstance(value, Mapping):
        return _named(field, value, what)
    if not value:
        reject(field, "a dict of losses needs at least one", value)
    named = {rules.text(field, k): _named(f"{field}[{k!r}]", v, what) for k, v in value.items()}
    return FrozenDict(named)


def _metrics(field: str, value: object) -> tuple[object, ...] | FrozenDict:
    what = "a name or a function (y_true, y_pred), or a list or dict of them"
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return FrozenDict(
            {rules.text(field, k): _named(f"{field}[{k!r}]", v, what) for k, v in value.items()}
        )
    if isinstance(value, str) or callable(value) or not isinstance(value, Iterable):
        return (_named(field, value, what),)
    return tuple(_named(field, item, what) for item in value)


def _class_weight(field: str, value: object) -> str | tuple[float, ...] | FrozenDict | None:
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


def _devices(field: str, value: object) -> int | str | tuple[int, ...]:
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


def _clip(field: str, value: object) -> float:
    if value is None:
        return 0.0
    limit: float = number(at_least=0.0, fix="write None for no clipping")(field, value)
    return limit


def _recompute(field: str, value: object) -> bool | str | tuple[str, ...]:
    if isinstance(value, str) and value == "auto":
        return value
    if isinstance(value, (str, list, tuple)):
        return rules.names(field, value)
    return flag(field, value)


def _param_groups(field: str, value: object) -> tuple[ParamGroup, ...] | None:
    what = "a list of dicts such as {'params': 'backbone', 'lr': 1e-5}"
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
            reject(f"{field}[{i}]", f"must be one of {what}", item)
    return tuple(groups) or None


def _patterns(field: str, value: object) -> tuple[str, ...] | None:
    return None if value is None else rules.names(field, value)


def _logger(field: str, value: object) -> str | None:
    if value is None or value is False:
        return None
    if value is True:
        return "csv"
    found: str = choice("csv", "tensorboard", "wandb", "mlflow", "trackio")(field, value)
    return found


def _overfit(field: str, value: object) -> int | float | None:
    if value is None or (type(value) in (int, float) and value == 0):  # Lightning's "off"
        return None
    return rules.fraction_or_count(field, value)


def _val_check(field: str, value: object) -> int | float | None:
    if value is None:
        return None
    found = rules.fraction_or_count(field, value)
    return None if isinstance(found, float) and found == 1.0 else found


def _save_every(field: str, value: object) -> int | str | None:
    """Epochs as int; a time span stays a text, so that it cannot be taken for epochs."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        epochs: int = whole(1, fix=f"write {field}=None for never")(field, value)
        return epochs
    seconds = rules.duration(field, value)
    return f"{int(seconds) if seconds.is_integer() else seconds}s"


def _callbacks(field: str, value: object) -> tuple[object, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, Mapping)):
        reject(field, "must be callback objects", value)
    return tuple(value) if isinstance(value, Iterable) else (value,)


FIELD_RULES: Mapping[str, Rule] = {
    "max_epochs": whole(
        0,
        fix="0 runs the statistical initialisation only; to train by steps or time, give a large "
        "max_epochs with max_steps or max_time",
    ),
    "max_steps": optional(whole(1, fix="write max_steps=None for no limit")),
    "max_time": optional(rules.duration),
    "optimizer": _optimizer,
    "lr": LR,
    "weight_decay": WEIGHT_DECAY,
    "decay_norm_and_bias": flag,
    "momentum": optional(MOMENTUM),
    "betas": optional(BETAS),
    "scheduler": _scheduler,
    "warmup": rules.warmup,
    "loss": _loss,
    "metrics": _metrics,
    "label_smoothing": number(at_least=0.0, below=1.0, fix="a usual value is 0.1"),
    "class_weight": _class_weight,
    "accelerator": choice("auto", "cpu", "gpu", aliases={"cuda": "gpu"}),
    "devices": _devices,
    "strategy": choice("auto", "single", "ddp", "fsdp", aliases={"single_device": "single"}),
    "precision": choice(*_PRECISIONS, aliases=_PRECISION_ALIASES),
    "benchmark": flag,
    "deterministic": flag,
    "seed": whole(0),
    "cuda_graph": _auto_or_flag,
    "device_cache": _auto_or_flag,
    "accumulate_grad_batches": whole(1, fix="write 1 for no accumulation"),
    "gradient_clip_val": _clip,
    "gradient_clip_algorithm": choice("norm", "value"),
    "param_groups": _param_groups,
    "freeze": _patterns,
    "unfreeze": _patterns,
    "recompute": _recompute,
    "memory_limit": optional(rules.byte_size),
    "on_oom": choice("shrink", "raise"),
    "on_nan": choice("stop", "skip", "raise"),
    "on_interrupt": choice("auto", "return", "raise"),
    "detect_anomaly": flag,
    "ema": _ema,
    "swa": flag,
    "early_stopping": _early_stopping,
    "monitor": rules.text,
    "mode": MODE,
    "restore_best": flag,
    "output_dir": rules.path,
    "save_top_k": whole(-1, fix="write 0 for none, -1 for all"),
    "save_last": flag,
    "save_every": _save_every,
    "max_disk": optional(rules.byte_size),
    "resume_strict": flag,
    "check_val_every_n_epoch": whole(1),
    "val_check_interval": _val_check,
    "log_every_n_steps": whole(1),
    "limit_batches": optional(rules.fraction_or_count),
    "overfit_batches": _overfit,
    "logger": _logger,
    "enable_progress_bar": _auto_or_flag,
    "enable_checkpointing": flag,
    "enable_model_summary": flag,
    "callbacks": _callbacks,
}

# fmt: off
_LARGER_IS_BETTER = frozenset((
    "acc", "accuracy", "auc", "auroc", "roc", "average", "precision", "recall", "sensitivity",
    "specificity", "f1", "f2", "fbeta", "fscore", "ap", "map", "iou", "miou", "jaccard", "dice",
    "kappa", "mcc", "matthews", "r2", "pck", "psnr", "ssim", "bleu", "rouge", "ndcg", "score",
    "explained", "correlation", "pearson", "spearman", "top1", "top3", "top5",
))
_SMALLER_IS_BETTER = frozenset((
    "loss", "error", "err", "mse", "rmse", "mae", "mape", "nll", "perplexity", "distance",
))
# fmt: on


def monitor_mode(monitor: str, mode: str | None = "auto") -> str:
    """Whether a smaller or a larger value of the monitored quantity is better.

    Parameters
    ----------
    monitor : str
        Its name, such as ``"val_loss"`` or ``"val_f1"``.
    mode : {"auto", "min", "max"}, optional
        "min" and "max" are returned as they are; "auto" decides by the words of the name.

    Returns
    -------
    {"min", "max"}
        "min" where the name says nothing, as it does for losses.
    """
    import re

    if mode in ("min", "max"):
        return str(mode)
    words = [word for word in re.split(r"[^a-z0-9]+", monitor.lower()) if word]
    if any(word in _SMALLER_IS_BETTER for word in words):
        return "min"
    return "max" if any(word in _LARGER_IS_BETTER for word in words) else "min"
