"""The keywords that a configuration accepts, with their types: fields and other spellings alike.

This is what type checkers and editors see in ``TrainingConfig(...)``, ``config.replace(...)`` and
``hotloop.train(..., **overrides)``. The types are what may be given; the types of TrainingConfig's
fields are the canonical ones that come out.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from hotloop.training.config.config import TrainerConfig
    from hotloop.training.config.parts import (
        EarlyStopping,
        EMAConfig,
        OptimizerConfig,
        ParamGroup,
        SchedulerConfig,
        SWAConfig,
    )

__all__ = ["TrainerOptions", "TrainingOptions"]


class TrainerOptions(TypedDict, total=False):
    """What TrainerConfig accepts: how training runs, not what is trained."""

    max_epochs: int
    max_steps: int | None
    max_time: float | str | datetime.timedelta | None
    accelerator: str
    devices: int | str | Sequence[int]
    strategy: str
    precision: int | str
    benchmark: bool
    deterministic: bool
    cuda_graph: bool | str
    device_cache: bool | str
    accumulate_grad_batches: int
    gradient_clip_val: float | None
    gradient_clip_algorithm: str
    recompute: bool | float | str | Sequence[str]
    memory_limit: int | str | None
    on_oom: str
    on_nan: str
    on_interrupt: str
    detect_anomaly: bool
    output_dir: str | os.PathLike[str] | None
    save_top_k: int
    save_last: bool
    save_every: int | str | datetime.timedelta | None
    max_disk: int | str | None
    resume_strict: bool
    check_val_every_n_epoch: int
    val_check_interval: int | float | None
    log_every_n_steps: int
    limit_batches: int | float | None
    overfit_batches: int | float | None
    logger: object
    enable_progress_bar: bool | str
    verbose: str
    enable_checkpointing: bool
    enable_model_summary: bool
    callbacks: object
    # other spellings
    epochs: int
    num_epochs: int
    use_amp: bool
    amp: bool
    cudnn_benchmark: bool
    cudnn_deterministic: bool
    device: str
    gradient_accumulation_steps: int
    accumulation_steps: int
    losses: Any
    max_grad_norm: float | None
    clip_max_norm: float | None
    default_root_dir: str | os.PathLike[str]


class TrainingOptions(TrainerOptions, total=False):
    """What TrainingConfig accepts."""

    trainer: TrainerConfig | Mapping[str, Any]
    optimizer: str | OptimizerConfig | Mapping[str, Any]
    lr: float
    weight_decay: float
    decay_norm_and_bias: bool
    momentum: float | None
    betas: Sequence[float] | None
    scheduler: str | SchedulerConfig | Mapping[str, Any] | None
    warmup: int | float | str
    loss: Any
    metrics: Any
    train_metrics: bool
    label_smoothing: float
    mixup: float
    cutmix: float
    class_weight: str | Sequence[float] | Mapping[Any, float] | Sequence[tuple[Any, float]] | None
    seed: int | None
    param_groups: Sequence[ParamGroup | Mapping[str, Any]] | None
    layer_decay: float | None
    freeze: str | Sequence[str] | Mapping[str, int | bool] | None
    unfreeze: str | Sequence[str] | Mapping[str, int | bool] | None
    ema: bool | float | EMAConfig | Mapping[str, Any]
    swa: bool | float | SWAConfig | Mapping[str, Any]
    early_stopping: bool | int | EarlyStopping | Mapping[str, Any] | None
    monitor: str | None
    mode: str
    restore_best: bool
    # other spellings
    learning_rate: float
