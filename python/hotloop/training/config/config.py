"""The configuration of training: one frozen, flat, validated object.

What a user writes may be flat or nested and use other spellings (``spelling.py``); what comes out
is one value per field in canonical form, by the rule that stands beside the field's default, so
that two configurations that mean the same are equal, and a result's configuration reproduces its
run. Frozen, because a plan is built from it: a change that came later would be ignored. Subclasses
of a mutable dict, and one class per group of settings, were rejected: a setting has one place, and
a misspelt one is an error.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, Unpack, cast

from hotloop.base import rules
from hotloop.base.rules import Rule, choice, flag, number, optional, reject, whole
from hotloop.errors import ConfigError
from hotloop.training.config import schema
from hotloop.training.config.options import TrainerOptions, TrainingOptions
from hotloop.training.config.parts import (
    BETAS,
    LR,
    MODE,
    MOMENTUM,
    OPTIMIZERS,
    WEIGHT_DECAY,
    EarlyStopping,
    EMAConfig,
    LearningRateMonitor,
    ModelCheckpoint,
    OptimizerConfig,
    ParamGroup,
    Part,
    SchedulerConfig,
    SWAConfig,
    refuse_changes,
)
from hotloop.training.config.schema import monitor_mode, setting
from hotloop.training.config.spelling import ALIASES, TRAINER_FIELDS, collect, reconcile
from hotloop.training.config.unsupported import UNSUPPORTED

__all__ = [
    "EMAConfig",
    "EarlyStopping",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "OptimizerConfig",
    "ParamGroup",
    "SWAConfig",
    "SchedulerConfig",
    "TrainerConfig",
    "TrainingConfig",
    "monitor_mode",
]


class TrainerConfig:
    """How training runs, as the ``trainer`` part of the nested form.

    Takes those keywords of :class:`TrainingConfig` that do not concern what is learnt (epochs and
    steps, device, precision, accumulation, clipping, logging, checkpoints), under any of their
    spellings. Only what was given counts; TrainingConfig flattens it into its own fields.

    Parameters
    ----------
    **options
        As in TrainingConfig.

    Examples
    --------
    >>> config = hl.TrainingConfig(
    ...     trainer=hl.TrainerConfig(max_epochs=5, devices=1),
    ...     optimizer=hl.OptimizerConfig(name="adam", lr=1e-3),
    ... )
    >>> config.max_epochs, config.optimizer, config.lr
    (5, 'adam', 0.001)
    """

    def __init__(self, **options: Unpack[TrainerOptions]) -> None:
        self._claims = collect(
            "TrainerConfig", cast(Mapping[str, Any], options), TRAINER_FIELDS, _RULES
        )
        self._values = reconcile("TrainerConfig", self._claims)

    def to_dict(self) -> dict[str, Any]:
        """The fields that were given, in canonical form.

        Returns
        -------
        dict
            Values by name.
        """
        return dict(self._values)

    def __getattr__(self, name: str) -> Any:
        if name in TRAINER_FIELDS:
            return self._values.get(name, _DEFAULTS[name])
        raise AttributeError(f"TrainerConfig has no {name!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainerConfig) and self._values == other._values

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        return f"TrainerConfig({shown})"


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class TrainingConfig:
    """Everything that decides how a model is trained, besides the model and the data.

    Keyword-only, frozen and validated: an unknown keyword, a value out of range, two spellings
    that disagree and a value that hotloop cannot honour yet are ConfigErrors that say what to
    write. Values are kept in one canonical form (``precision=16`` as ``"16-mixed"``,
    ``max_time="1h"`` as 3600.0 seconds, lists as tuples).

    Also accepted: the nested form ``TrainingConfig(trainer=TrainerConfig(...),
    optimizer=OptimizerConfig(...))``, and the spellings ``epochs``, ``num_epochs``,
    ``learning_rate``, ``use_amp``, ``amp``, ``cudnn_benchmark``, ``cudnn_deterministic``,
    ``device``, ``gradient_accumulation_steps``, ``accumulation_steps``, ``max_grad_norm``,
    ``clip_max_norm`` and ``default_root_dir``.

    Parameters
    ----------
    max_epochs : int
        Passes over the training data; 0 trains nothing.
    max_steps : int, optional
        Optimizer steps after which training ends, if that comes before max_epochs.
    max_time : float, str or timedelta, optional
        Time after which training ends, but not before the first step: seconds, ``"1h30m"``,
        ``"90 minutes"``, ``"HH:MM:SS"`` or ``"DD:HH:MM:SS"``. It begins with the first epoch, after
        planning. Where it comes before max_epochs and max_steps, the schedule runs by the share of
        time used.
    optimizer : str or OptimizerConfig
        "adamw", "adam", "sgd", "rmsprop" or "lion".
    lr : float
        Learning rate at the peak of the schedule.
    weight_decay : float
        Decoupled for adamw and lion, added to the gradient for the others.
    decay_norm_and_bias : bool
        Whether weights of normalisation layers and biases are decayed as well.
    momentum : float, optional
        For sgd and rmsprop; None is 0.
    betas : (float, float), optional
        For adam and adamw, None is (0.9, 0.999); for lion (0.9, 0.99).
    scheduler : str or SchedulerConfig
        "constant", "linear", "cosine", "one_cycle", "step", "multistep", "exponential", "plateau"
        or "warm_restarts".
    warmup : int, float or str
        Linear warmup: steps (int), ratio of all steps (float below 1) or ``"5 epochs"``. The
        schedule one_cycle has its own and ignores the default; any other value is an error there.
    loss : str, module, callable or dict
        "auto" decides by the targets; otherwise a name ("cross_entropy", "bce", "mse", "l1",
        "huber", "poisson_nll", ...), a loss module, whose parameters are trained as well, a
        function ``(output, target)``, or a dict of those, or of pairs (loss, weight), which is
        summed; of several targets a dict (of a tuple of targets, a list) has the loss of each.
        Targets (N,) and outputs (N, 1) are matched for all of them. ``losses=[...]`` says the same
        as a list, of losses of modules too: ``(stats.OrthogonalityLoss("pca1"), 0.1)``.
    metrics : str, callable, or list or dict of them
        What validation computes besides the loss. Of classes: "accuracy", "balanced_accuracy",
        "top5_accuracy" (of any number), "precision", "recall", "f1", "iou", "auc" ("auc_ovr",
        "auc_ovo"), "average_precision", "log_loss", "kappa", "quadratic_kappa", "mcc",
        "confusion_matrix"; of values: "mse", "rmse", "mae", "r2"; of points: "pck" ("pck@0.1").
        Behind precision, recall, f1, iou, auc and average_precision may stand "_macro", "_micro",
        "_weighted" or "_per_class", whose values are "f1[cat]", "f1[dog]". Or a function
        ``(y_true, y_pred)``, which gets predicted labels for classes; :func:`hotloop.metric` says
        what else it needs. Of several targets a dict has those of each. "auto" is accuracy for
        class targets; ``[]`` and None are none.
    train_metrics : bool
        Whether the metrics that are sums over rows are computed of training batches too, as they
        are trained on; "accuracy" in the history is beside "val_accuracy" then.
    label_smoothing : float
        For cross-entropy, in [0, 1).
    mixup : float
        Each training batch is mixed with itself in reverse order, inputs and losses, by a share
        drawn for the step from Beta(mixup, mixup): 0.2 is usual (Zhang et al. 2018). Training loss
        is that of mixed rows; validation mixes nothing.
    cutmix : float
        The same for a box of images ``(batch, channels, height, width)``, of an area drawn from
        Beta(cutmix, cutmix): 1.0 is usual (Yun et al. 2019). With both, each step takes either.
    class_weight : "balanced", sequence or dict, optional
        A weight per class, or a dict from class to weight.
    accelerator : {"auto", "cpu", "gpu"}
        "auto" takes a GPU where one can be used; "gpu" raises DeviceError where none can.
    devices : int, list of int or "auto"
        Which GPU: ``[1]`` is the second. Several devices are not in this version.
    strategy : {"auto", "single", "ddp", "fsdp"}
        How several devices share the work; "auto" and "single" in this version.
    precision : str or int
        "auto", "64-true", "32-true", "tf32", "16-mixed", "bf16-mixed", or 64, 32, 16, "fp32",
        "fp16", "bf16".
    benchmark : bool
        Whether a GPU's algorithms for matrix products and convolutions are chosen by timing them
        before the first step, with and without what follows them (bias, relu, gelu, a residual)
        computed within them.
    deterministic : bool
        Whether a GPU takes only algorithms that gave the same bits twice; a CPU always gives the
        same bits.
    seed : int, optional
        Seed of initial weights that are not drawn yet, and of dropout; splits and order have the
        DataModule's. With None each run draws one and tells it: the members of an ensemble differ
        by their seeds alone.
    cuda_graph : "auto" or bool
        Whether a GPU's steps are captured as CUDA graphs; "auto" is yes. False launches the same
        kernels one by one, for the same bits.
    device_cache : "auto" or bool
        Whether the data is copied into a GPU's memory, where batches are gathered; False: batches
        are gathered on the CPU and sent. "auto": where the data fits beside the model.
    accumulate_grad_batches : int
        Batches per optimizer step.
    gradient_clip_val : float, optional
        Limit of the gradient's norm; None or 0 is off.
    gradient_clip_algorithm : {"norm", "value"}
        Global norm, or each element.
    param_groups : list of ParamGroup or dict, optional
        ``{"params": pattern or patterns, "lr" or "lr_scale": ..., "weight_decay": ...}``.
    layer_decay : float, optional
        By what the learning rate is multiplied from a layer to the one before it, nearer to the
        input; the last layer has ``lr``. Groups with a rate of their own keep that.
    freeze, unfreeze : str, list of str or dict, optional
        Patterns of modules or parameters that are not trained, and exceptions from that. A dict
        says for how many epochs each holds, from the first one on, or True for all:
        ``freeze={"backbone": 5}`` trains the backbone from the sixth epoch on, and with
        ``freeze="head"`` ``unfreeze={"head": 3}`` trains the head for three.
    recompute : "auto", bool, float or list of str
        Which activations are computed again in the backward pass instead of lying in memory until
        then; the weights come out the same, bit for bit. True: all that is worth it, for a fifth
        to a third more work. A share between 0 and 1: so much of that, what costs least first.
        Names of modules, or patterns with wildcards (``"blocks.*"``): what is inside each, as
        ``torch.utils.checkpoint`` does it; :func:`hotloop.nn.checkpoint` is the same by hand.
        "auto": as little as ``memory_limit``, or the memory that there is, asks for.
    memory_limit : int or str, optional
        Bytes that a run may take, as ``result.peak_bytes`` counts them: ``2 * 10**9``, ``"2 GB"``
        or ``"2 GiB"``. Within it are kept, by predictions before anything is allocated: what is
        recomputed, if that is left to "auto"; then micro-batches, as ``on_oom`` says. What fits in
        no way is an OutOfMemoryError before the first step, with the least that would do.
    on_oom : {"shrink", "raise"}
        Whether a plan that does not fit in memory leads to more recomputation and then to
        micro-batches, parts of a batch whose gradients are accumulated to the same step, or to
        OutOfMemoryError. Models with statistics over a batch (BatchNorm) are not cut into
        micro-batches, which would have other statistics.
    on_nan : {"stop", "skip", "raise"}
        What follows a loss or gradient that is not finite: "stop" ends training with the last
        finite weights, "raise" also raises NotFiniteError, "skip" leaves the step out and counts it
        in ``result.skipped_steps``. The step is run again node by node, and ``result.not_finite``
        and the error name the node that made the value; with "skip" for the first such step.
    on_interrupt : {"auto", "return", "raise"}
        Whether Ctrl-C returns the result or raises TrainingInterrupted.
    detect_anomaly : bool
        Whether each training step is looked into node by node before it is taken: the first NaN
        that a node makes, whether or not the loss has it, and an infinity that comes to the loss
        or a gradient raise NotFiniteError, with the node. Training has the same bits and takes two
        to nine times as long.
    ema : bool, float or EMAConfig
        Exponential moving average of the weights, True with a decay of 0.999; smaller in the first
        steps, unless EMAConfig(decay, ramp=False) is given. Validation and the final model use it.
    swa : bool, float or SWAConfig
        Stochastic weight averaging: the model gets an equal average of the weights at the ends of
        the last epochs, from a share of them on, which True makes 0.75. The learning rate goes to
        a constant there, and statistics of batch norms are computed anew by a pass over the
        training rows after each of these epochs. Validation uses the average. Excludes ``ema``.
    early_stopping : int, bool or EarlyStopping, optional
        Validation rounds without improvement before training stops.
    monitor : str, optional
        The value that decides which weights are best: "loss", "val_loss" [without it, unless early
        stopping names one], a metric such as "val_accuracy", or what a callback logs (its
        ``log_names``). Early stopping and plateau watch it too, unless they name one of their own.
    mode : {"auto", "min", "max"}
        Whether smaller or larger is better; "auto" decides by the loss, the metric or the name.
    restore_best : bool
        Whether the model ends with its best weights.
    output_dir : str or path, optional
        Where runs have their folders, each with log and checkpoints, from the first epoch on.
        Without it ``"runs"``, as soon as a run has taken a minute.
    save_top_k : int
        How many models of the best epochs are kept, as files for :func:`hotloop.load`; -1 is all.
    save_last : bool
        Whether the two latest checkpoints are kept, from which a run goes on (``resume``).
    save_every : int, str or timedelta, optional
        Epochs, ``"500 steps"`` or a time such as ``"10m"`` from one checkpoint to the next. Of
        epochs each that is due is written, for which training waits at the epoch's end while the
        one before is being written; by steps or time it never waits, and the next one is made
        after that. Without it at the end of an epoch, and within one every five minutes, but not
        before ten seconds, and a fiftieth of the time at most.
    max_disk : int or str, optional
        Bytes that the checkpoints of a run may take; older ones go first, then the worst models.
    resume_strict : bool
        Whether resuming raises where it could not go on exactly: with other data, or a setting
        that decides what a step computes.
    check_val_every_n_epoch : int
        Epochs from one validation to the next.
    val_check_interval : float or int, optional
        Batches of an epoch, or a share of them, from one validation within it to the next; after
        the optimizer step that they belong to. As in Lightning the end of an epoch is validated
        only where the interval ends there. Each validation is judged, and is a row of the history.
    log_every_n_steps : int
        Optimizer steps from one that is logged to the next. Nothing is read from the device more
        often than that, nor than once a second, but for 256 steps at least.
    limit_batches : int or float, optional
        Batches per epoch, or a fraction of them, rounded down to one at least.
    overfit_batches : int or float, optional
        Train and validate on these few batches of the training data.
    logger : str, object, list of them, or None
        "csv" writes the history to ``<output_dir>/<number>/metrics.csv`` and steps to
        ``steps.csv``; "auto" does where an ``output_dir`` is given, or as soon as a run has taken
        a minute. "jsonl" writes ``metrics.jsonl``, "tensorboard" an event file; "wandb" (offline,
        unless WANDB_MODE says otherwise), "mlflow" and "trackio" log to their local stores. Each
        of the last four needs its package. An object has ``log(values, step=)``,
        ``log_metrics(values, step)`` or ``add_scalar(name, value, step)``.
    enable_progress_bar : "auto" or bool
        "auto" shows a line per epoch, of more than 50 epochs one in n, and in terminals and
        notebooks a bar. False shows nothing, header and summary included.
    verbose : {"auto", "lines"}
        "lines" is for log files: first a line each for device, mixed precision, cuDNN and the
        GPU's memory, no bar, each epoch's line, and one a minute within an epoch.
    enable_checkpointing : bool
        Whether checkpoints and best models are written.
    enable_model_summary : bool
        Whether the model's layers are printed at the start.
    callbacks : list
        Objects that are called as training goes on; see :func:`hotloop.train`.
    **options
        The nested form and other spellings, as above.

    Raises
    ------
    ConfigError
        Names the field, the rule, the value and, where there is one, the fix.

    Examples
    --------
    >>> config = hl.TrainingConfig(epochs=20, learning_rate=3e-4, use_amp=False)
    >>> config
    TrainingConfig(max_epochs=20, lr=0.0003, precision='32-true')
    >>> config.replace(lr=1e-4).diff(config)
    {'lr': (0.0001, 0.0003)}
    """

    max_epochs: int = setting(
        10,
        whole(
            0,
            fix="0 trains nothing; to train by steps or time, give a large max_epochs with "
            "max_steps or max_time",
        ),
    )
    max_steps: int | None = setting(
        None, optional(whole(1, fix="write max_steps=None for no limit"))
    )
    max_time: float | None = setting(None, optional(rules.duration))
    optimizer: str | OptimizerConfig = setting("adamw", schema.optimizer)
    lr: float = setting(1e-3, LR)
    weight_decay: float = setting(0.01, WEIGHT_DECAY)
    decay_norm_and_bias: bool = setting(False, flag)
    momentum: float | None = setting(None, optional(MOMENTUM))
    betas: tuple[float, float] | None = setting(None, optional(BETAS))
    scheduler: str | SchedulerConfig = setting("cosine", schema.scheduler)
    warmup: int | float | str = setting(0.05, rules.warmup)
    loss: Any = setting("auto", schema.loss)
    metrics: str | tuple[Any, ...] | dict[str, Any] = setting("auto", schema.metrics)
    train_metrics: bool = setting(False, flag)
    label_smoothing: float = setting(
        0.0, number(at_least=0.0, below=1.0, fix="a usual value is 0.1")
    )
    mixup: float = setting(0.0, number(at_least=0.0, fix="a usual value is 0.2"))
    cutmix: float = setting(0.0, number(at_least=0.0, fix="a usual value is 1.0"))
    class_weight: str | tuple[float, ...] | dict[Any, float] | None = setting(
        None, schema.class_weight
    )
    accelerator: str = setting("auto", choice("auto", "cpu", "gpu", aliases={"cuda": "gpu"}))
    devices: int | str | tuple[int, ...] = setting("auto", schema.devices)
    strategy: str = setting(
        "auto", choice("auto", "single", "ddp", "fsdp", aliases={"single_device": "single"})
    )
    precision: str = setting("auto", schema.precision)
    benchmark: bool = setting(True, flag)
    deterministic: bool = setting(False, flag)
    seed: int | None = setting(42, schema.seed)
    cuda_graph: bool | str = setting("auto", schema.auto_or_flag)
    device_cache: bool | str = setting("auto", schema.auto_or_flag)
    accumulate_grad_batches: int = setting(1, whole(1, fix="write 1 for no accumulation"))
    gradient_clip_val: float = setting(1.0, schema.clip)
    gradient_clip_algorithm: str = setting("norm", choice("norm", "value"))
    param_groups: tuple[ParamGroup, ...] | None = setting(None, schema.param_groups)
    layer_decay: float | None = setting(None, optional(schema.LAYER_DECAY))
    freeze: tuple[str, ...] | dict[str, int | bool] | None = setting(None, schema.patterns)
    unfreeze: tuple[str, ...] | dict[str, int | bool] | None = setting(None, schema.patterns)
    recompute: bool | float | str | tuple[str, ...] = setting("auto", schema.recompute)
    memory_limit: int | None = setting(None, optional(rules.byte_size))
    on_oom: str = setting("shrink", choice("shrink", "raise"))
    on_nan: str = setting("stop", choice("stop", "skip", "raise"))
    on_interrupt: str = setting("auto", choice("auto", "return", "raise"))
    detect_anomaly: bool = setting(False, flag)
    ema: bool | EMAConfig = setting(False, schema.ema)
    swa: bool | SWAConfig = setting(False, schema.swa)
    early_stopping: EarlyStopping | None = setting(None, schema.early_stopping)
    monitor: str | None = setting(None, optional(rules.text))
    mode: str = setting("auto", MODE)
    restore_best: bool = setting(True, flag)
    output_dir: str | None = setting(None, optional(rules.path))
    save_top_k: int = setting(1, whole(-1, fix="write 0 for none, -1 for all"))
    save_last: bool = setting(True, flag)
    save_every: int | str | None = setting(None, schema.save_every)
    max_disk: int | None = setting(None, optional(rules.byte_size))
    resume_strict: bool = setting(True, flag)
    check_val_every_n_epoch: int = setting(1, whole(1))
    val_check_interval: int | float | None = setting(None, schema.val_check)
    log_every_n_steps: int = setting(50, whole(1))
    limit_batches: int | float | None = setting(None, optional(rules.fraction_or_count))
    overfit_batches: int | float | None = setting(None, schema.overfit)
    logger: Any = setting("auto", schema.logger)
    enable_progress_bar: bool | str = setting("auto", schema.auto_or_flag)
    verbose: str = setting("auto", schema.verbose)
    enable_checkpointing: bool = setting(True, flag)
    enable_model_summary: bool = setting(True, flag)
    callbacks: tuple[Any, ...] = setting((), schema.callbacks)

    _BARE: ClassVar[Mapping[str, Any]] = {
        "scheduler": "constant",
        "warmup": 0,
        "weight_decay": 0.0,
        "gradient_clip_val": 0.0,
        "precision": "32-true",
    }

    def __init__(self, **options: Unpack[TrainingOptions]) -> None:
        self._fill(_DEFAULTS | _reconciled(options))

    def _fill(self, values: Mapping[str, Any]) -> None:
        for name in _DEFAULTS:
            object.__setattr__(self, name, values[name])
        self._check()
        self.check_supported()

    def _check(self) -> None:
        """Rules that concern several fields."""
        name = self._optimizer_part().name
        for field in ("momentum", "betas"):
            if getattr(self, field) is not None and field not in OPTIMIZERS[name]:
                holders = ", ".join(k for k, v in OPTIMIZERS.items() if field in v)
                fix = f"it belongs to {holders}; write {field}=None"
                reject(field, f"the optimizer {name!r} has none", getattr(self, field), fix)
        _ = self.optimizer_config  # raises where its settings contradict each other
        self._scheduler_part().check_rates(self.lr)
        own_warmup = self._scheduler_part().name == "one_cycle"
        if own_warmup and self.warmup not in (0, _DEFAULTS["warmup"]):
            reject(
                "warmup",
                "the scheduler 'one_cycle' has its own warmup and takes no other",
                self.warmup,
                "set SchedulerConfig('one_cycle', pct_start=...) instead",
            )
        if self.limit_batches is not None and self.overfit_batches is not None:
            raise ConfigError(
                f"overfit_batches: excludes limit_batches, got overfit_batches="
                f"{self.overfit_batches!r} and limit_batches={self.limit_batches!r}; keep one"
            )
        if self.swa and self.ema:
            raise ConfigError(
                f"swa: excludes ema, for a model has one average, got swa={self.swa!r} and "
                f"ema={self.ema!r}; keep one"
            )
        first = getattr(self.swa, "start", 0.0)
        if isinstance(first, int) and first > self.max_epochs > 0:
            raise ConfigError(
                f"swa.start: must be an epoch of the training, got {first!r} with "
                f"max_epochs={self.max_epochs!r}; write a share, such as 0.75"
            )

    def check_supported(self) -> None:
        """Raise ConfigError if a value needs machinery that is not built yet.

        Every way to make a configuration calls it, and so does training, for configurations that
        were pickled by another version.
        """
        for row in UNSUPPORTED:
            value = getattr(self, row.field)
            if row.applies(value):
                reject(row.field, row.sentence, value, row.instead)

    def _optimizer_part(self) -> OptimizerConfig:
        if isinstance(self.optimizer, OptimizerConfig):
            return self.optimizer
        return OptimizerConfig(self.optimizer)

    def _scheduler_part(self) -> SchedulerConfig:
        if isinstance(self.scheduler, SchedulerConfig):
            return self.scheduler
        return SchedulerConfig(self.scheduler)

    @property
    def optimizer_config(self) -> OptimizerConfig:
        """The optimizer with every setting that it has filled in, lr and weight_decay included."""
        own = {name: getattr(self, name) for name in ("lr", "weight_decay", "momentum", "betas")}
        return self._optimizer_part().replace(**own).resolved()

    @property
    def monitored(self) -> str:
        """The value that decides which weights are best."""
        own = self.early_stopping.monitor if self.early_stopping else None
        return self.monitor or own or "val_loss"

    @property
    def scheduler_config(self) -> SchedulerConfig:
        """The schedule with every setting that it has filled in; a mode may be "auto" still."""
        part = self._scheduler_part().resolved()
        if part.name == "one_cycle":
            return part.replace(warmup=0, max_lr=part.max_lr or self.lr)
        if part.name == "plateau":
            monitor = part.monitor or self.monitored
            mode = part.mode or (self.mode if monitor == self.monitored else "auto")
            return part.replace(warmup=self.warmup, monitor=monitor, mode=mode)
        return part.replace(warmup=self.warmup)

    def monitor_mode(
        self,
        monitor: str,
        mode: str | None = None,
        known: Mapping[str, str] | None = None,
        field: str = "monitor",
    ) -> str:
        """Whether a smaller or a larger value of what is monitored is better.

        Parameters
        ----------
        monitor : str
            Its name, such as ``"val_loss"``.
        mode : {"auto", "min", "max"}, optional
            What is asked for. Without it the configuration's, for its own monitor; else "auto".
        known : mapping of str to {"min", "max"}, optional
            Directions of losses and metrics by their names.
        field : str
            The setting that names it, for the error message.

        Returns
        -------
        {"min", "max"}
            As asked for; else that of the loss or metric, else by the name.

        Raises
        ------
        ConfigError
            If nothing says it.
        """
        name = monitor.removeprefix("val_")
        mode = mode or (self.mode if monitor == self.monitored else "auto")
        if mode == "auto" and known is not None and name in known:
            return known[name]
        metrics = self.metrics if isinstance(self.metrics, Mapping) else {}
        metric = metrics.get(name)
        return monitor_mode(metric if isinstance(metric, str) else monitor, mode, field)

    def replace(self, **options: Unpack[TrainingOptions]) -> Self:
        """A copy with some settings changed, in any spelling.

        Parameters
        ----------
        **options
            As in the constructor; they replace the values that this configuration has.

        Returns
        -------
        TrainingConfig

        Raises
        ------
        ConfigError
            As the constructor does.
        """
        return self._replaced(options)

    @classmethod
    def resolve(
        cls,
        config: TrainingConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> TrainingConfig:
        """The configuration of a run: what was passed as one, with overrides on top.

        Parameters
        ----------
        config : TrainingConfig, dict, path or None
            A path is read as TOML; None is the default configuration.
        overrides : mapping, optional
            Further keywords in any spelling, as ``train(..., lr=3e-4)`` gives them. They win
            over `config`; they may not contradict each other.

        Returns
        -------
        TrainingConfig
            With a seed that is drawn, where it is None.

        Raises
        ------
        ConfigError
            Also for anything else in place of a configuration.
        """
        if config is None:
            base: TrainingConfig = cls()
        elif isinstance(config, TrainingConfig):
            base = config
        elif isinstance(config, Mapping):
            base = cls.from_dict(config)
        elif isinstance(config, (str, os.PathLike)):
            base = cls.from_toml(config)
        else:
            _reject_config(config)
        made = base._replaced(overrides or {})
        return made if made.seed is not None else made.replace(seed=secrets.randbelow(2**31))

    @classmethod
    def bare(cls, **options: Unpack[TrainingOptions]) -> Self:
        """Nothing but the optimizer: constant lr, no warmup, no clipping, no decay, float32.

        Parameters
        ----------
        **options
            Further settings, as in the constructor; they replace these.

        Returns
        -------
        TrainingConfig
        """
        return cls(**cls._BARE).replace(**options)

    def to_dict(self, *, nested: bool = True) -> dict[str, Any]:
        """All fields, by name, in their order.

        Parameters
        ----------
        nested : bool
            Whether structured values become dicts too (the default) or stay objects. Functions,
            modules and callbacks always stay what they are.

        Returns
        -------
        dict
            Understood by :meth:`from_dict`.
        """
        values = {name: getattr(self, name) for name in _DEFAULTS}
        return {name: _plain(value) for name, value in values.items()} if nested else values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The configuration of a dict, in any spelling, flat or nested.

        Parameters
        ----------
        values : mapping
            Settings by name.

        Returns
        -------
        TrainingConfig

        Raises
        ------
        ConfigError
            As the constructor does.
        """
        if isinstance(values, Mapping):
            return cls()._replaced(values)
        reject("from_dict", "a dict is needed", values)

    def _replaced(self, values: Mapping[str, Any]) -> Self:
        made = object.__new__(type(self))
        made._fill(self.to_dict(nested=False) | _reconciled(values))
        return made

    def to_toml(self, path: str | os.PathLike[str] | None = None, *, strict: bool = True) -> str:
        """The configuration as a TOML document; None is written by leaving the field out.

        Parameters
        ----------
        path : path, optional
            A file to write as well.
        strict : bool
            Whether functions, modules and callbacks, which TOML cannot hold, raise. If not, a
            comment at the top names them.

        Returns
        -------
        str

        Raises
        ------
        ConfigError
            Names the field that cannot be written.
        """
        from hotloop.training.config.toml import dumps

        values = self.to_dict()
        for name, value in values.items():
            if value is None and _DEFAULTS[name] is not None:
                values[name] = False  # None that is not the default must not be left out
        text = dumps(values, strict=strict)
        if path is not None:
            with open(path, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
        return text

    def with_settings_of_callbacks(self) -> Self:
        """The configuration with its settings in the place of those callbacks that are settings.

        Returns
        -------
        TrainingConfig
            Without EarlyStopping, ModelCheckpoint and LearningRateMonitor among ``callbacks``.

        Raises
        ------
        ConfigError
            If one says something else than the setting that it stands for.
        """
        of_settings = (EarlyStopping, ModelCheckpoint, LearningRateMonitor)
        found = [one for one in self.callbacks if isinstance(one, of_settings)]
        if not found:
            return self
        values: dict[str, Any] = {}
        for one in found:
            own = {"early_stopping": one} if isinstance(one, EarlyStopping) else one.to_dict()
            for name, value in own.items():
                known = values.get(name, getattr(self, name))
                if value is None or _equal(value, known):
                    continue
                if not _equal(known, _DEFAULTS[name]):
                    reject(
                        f"callbacks: {type(one).__name__}",
                        f"must say the same as {name}={known!r}",
                        value,
                        "keep one of them",
                    )
                values[name] = value
        rest = tuple(one for one in self.callbacks if not isinstance(one, of_settings))
        return self.replace(**values, callbacks=rest)

    def unwritable(self) -> list[str]:
        """The fields whose values are objects of Python that TOML cannot hold.

        Returns
        -------
        list of str
        """
        from hotloop.training.config.toml import UnwritableError, dumps

        found = []
        for name, value in self.to_dict().items():
            if value is None or isinstance(value, (str, int, float)):
                continue
            try:
                dumps({name: value})
            except UnwritableError:
                found.append(name)
        return found

    @classmethod
    def from_toml(cls, path_or_text: str | os.PathLike[str]) -> Self:
        """The configuration of a TOML file or text, in any spelling, flat or nested.

        Parameters
        ----------
        path_or_text : path or str
            A string is a path if it has one line that ends in ``.toml`` or names a file.

        Returns
        -------
        TrainingConfig

        Raises
        ------
        ConfigError
            The file is missing, is no TOML, or its values are refused.
        """
        import tomllib

        text, source = _toml_text(path_or_text)
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{source}: must be TOML, got: {error}") from None
        return cls()._replaced(values)

    def diff(self, other: TrainingConfig) -> dict[str, tuple[Any, Any]]:
        """The fields in which two configurations differ.

        Parameters
        ----------
        other : TrainingConfig

        Returns
        -------
        dict
            From field to (this value, the other's).
        """
        if not isinstance(other, TrainingConfig):
            reject("diff", "a TrainingConfig is needed", other)
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in _DEFAULTS}
        return {name: pair for name, pair in pairs.items() if not _equal(*pair)}

    def __eq__(self, other: object) -> bool:
        return not self.diff(other) if isinstance(other, TrainingConfig) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in _DEFAULTS))

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in _DEFAULTS}
        changed = {k: v for k, v in values.items() if not _equal(v, _DEFAULTS[k])}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in changed.items())})"

    if not TYPE_CHECKING:  # a type checker should still see that a misspelt attribute is wrong

        def __getattr__(self, name: str) -> Any:
            if name in ALIASES:
                hint = f"; its name is {ALIASES[name]!r}"
            else:
                from hotloop.base.suggest import did_you_mean

                hint = "" if name.startswith("__") else did_you_mean(name, _DEFAULTS)
            raise AttributeError(f"TrainingConfig has no {name!r}{hint}")


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(TrainingConfig)}
_RULES: dict[str, Rule] = {f.name: f.metadata["rule"] for f in dataclasses.fields(TrainingConfig)}


def _reconciled(options: Mapping[str, Any]) -> dict[str, Any]:
    owner = "TrainingConfig"
    return reconcile(owner, collect(owner, options, frozenset(_DEFAULTS), _RULES))


def _reject_config(value: object) -> NoReturn:
    fix = ""
    if isinstance(value, (TrainerConfig, Part)):
        part = "trainer" if isinstance(value, TrainerConfig) else value._label
        fix = f"write TrainingConfig({part}=...)"
    elif hasattr(value, "__array__") or isinstance(value, (list, tuple)):
        fix = "inputs and targets go together: train(model, (X, y), config)"
    reject("training_config", "must be a TrainingConfig", value, fix)


def _equal(a: Any, b: Any) -> bool:
    """Equality that also holds for objects whose ``==`` returns an array or raises."""
    if a is b:
        return True
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:
        return False


def _plain(value: Any) -> Any:
    if isinstance(value, Part):
        return {name: _plain(item) for name, item in value.to_dict().items()}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _toml_text(path_or_text: str | os.PathLike[str]) -> tuple[str, str]:
    """The TOML text, and the name of its origin in messages."""
    if isinstance(path_or_text, str):
        one_line = "\n" not in path_or_text and "\0" not in path_or_text
        if not (one_line and (path_or_text.endswith(".toml") or os.path.isfile(path_or_text))):
            return path_or_text, "from_toml"
    try:
        with open(path_or_text, encoding="utf-8") as file:
            return file.read(), os.fspath(path_or_text)
    except (OSError, UnicodeDecodeError, TypeError) as error:
        raise ConfigError(f"from_toml: the file must be readable, got: {error}") from error


def _signature() -> Any:
    """What help() and notebooks show: every field with its default."""
    import inspect

    keyword = inspect.Parameter.KEYWORD_ONLY
    fields = dataclasses.fields(TrainingConfig)
    parameters = [
        inspect.Parameter(f.name, keyword, default=f.default, annotation=f.type) for f in fields
    ]
    rest = inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)
    return inspect.Signature([*parameters, rest])


refuse_changes(TrainingConfig, ALIASES)
TrainingConfig.__signature__ = _signature()  # type: ignore[attr-defined]
