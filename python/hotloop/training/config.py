"""The configuration of training: one frozen, flat, validated object.

What a user writes may be flat or nested and use other spellings (``spelling.py``); what comes out
is one value per field in canonical form (``schema.py``), so that two configurations that mean the
same are equal, and a result's configuration reproduces its run. Frozen, because a plan is built
from it: a change that came later would be ignored. Subclasses of a mutable dict, and one class per
group of settings, were rejected: a setting has one place, and a misspelt one is an error.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, Unpack, cast

from ..errors import ConfigError
from . import unsupported
from .options import TrainerOptions, TrainingOptions
from .parts import (
    OPTIMIZERS,
    EarlyStopping,
    EMAConfig,
    OptimizerConfig,
    ParamGroup,
    Part,
    SchedulerConfig,
)
from .rules import reject
from .schema import monitor_mode
from .spelling import ALIASES, TRAINER_FIELDS, collect, reconcile

__all__ = [
    "EMAConfig",
    "EarlyStopping",
    "OptimizerConfig",
    "ParamGroup",
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
    >>> config = TrainingConfig(
    ...     trainer=TrainerConfig(max_epochs=5, devices=1),
    ...     optimizer=OptimizerConfig(name="adam", lr=1e-3),
    ... )
    >>> config.max_epochs, config.optimizer, config.lr
    (5, 'adam', 0.001)
    """

    def __init__(self, **options: Unpack[TrainerOptions]) -> None:
        self._claims = collect("TrainerConfig", cast(Mapping[str, Any], options), TRAINER_FIELDS)
        self._values = reconcile("TrainerConfig", self._claims)

    def to_dict(self) -> dict[str, Any]:
        """The fields that were given, in canonical form."""
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
        Passes over the training data; 0 runs the statistical initialisation only.
    max_steps : int, optional
        Applied steps after which training ends, if that comes first.
    max_time : float, str or timedelta, optional
        Time after which training ends: seconds, ``"1h30m"`` or ``"DD:HH:MM:SS"``.
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
        "huber", "poisson_nll", ...), a loss module, a function ``(output, target)``, or a dict of
        those, which is summed.
    metrics : str, callable, or list or dict of them
        What validation computes besides the loss: "accuracy", "balanced_accuracy", "precision",
        "recall", "f1", "iou", "mse", "rmse", "mae", "r2", or a function ``(y_true, y_pred)``.
    label_smoothing : float
        For cross-entropy, in [0, 1).
    class_weight : "balanced", sequence or dict, optional
        A weight per class, or a dict from class to weight.
    accelerator : {"auto", "cpu", "gpu"}
        "auto" measures; "gpu" raises if there is none.
    devices : int, list of int or "auto"
        How many devices, or which.
    strategy : {"auto", "single", "ddp", "fsdp"}
        How several devices share the work.
    precision : str or int
        "auto", "64-true", "32-true", "tf32", "16-mixed", "bf16-mixed", or 64, 32, 16, "fp32",
        "fp16", "bf16".
    benchmark : bool
        Whether algorithms may be chosen by measurement, and what a library does at the end of a
        product, where that is faster than kernels of their own.
    deterministic : bool
        Whether a GPU must give the same bits in every run, by algorithms that gave the same bits
        twice; a CPU always does.
    seed : int
        Of all randomness: initial weights, shuffling, dropout.
    cuda_graph : "auto" or bool
        Whether a GPU's steps are captured as CUDA graphs; "auto" is yes. False launches the same
        kernels one by one, for the same bits.
    device_cache : "auto" or bool
        Whether a GPU has the data in its memory and is sent row numbers alone; False: batches are
        gathered on the CPU and sent. "auto" decides by the plan: where it fits.
    accumulate_grad_batches : int
        Batches per optimizer step.
    gradient_clip_val : float, optional
        Limit of the gradient's norm; None or 0 is off.
    gradient_clip_algorithm : {"norm", "value"}
        Global norm, or each element.
    param_groups : list of ParamGroup or dict, optional
        ``{"params": pattern or patterns, "lr" or "lr_scale": ..., "weight_decay": ...}``.
    freeze, unfreeze : str or list of str, optional
        Patterns of modules or parameters that are not trained, and exceptions from that.
    recompute : "auto", bool or list of str
        Whether activations are computed again in the backward pass to save memory.
    memory_limit : int or str, optional
        Bytes that the plan may take, or ``"4GB"``.
    on_oom : {"shrink", "raise"}
        Whether a plan that does not fit in memory leads to micro-batches, parts of a batch whose
        gradients are accumulated to the same step, or to OutOfMemoryError. Models with statistics
        over a batch (BatchNorm) always get the error.
    on_nan : {"stop", "skip", "raise"}
        What follows a loss that is not finite.
    on_interrupt : {"auto", "return", "raise"}
        Whether Ctrl-C returns the result or raises TrainingInterrupted.
    detect_anomaly : bool
        Whether the node that made a NaN is named.
    ema : bool, float or EMAConfig
        Moving average of the weights, True with a decay of 0.999.
    swa : bool
        Stochastic weight averaging.
    early_stopping : int, bool or EarlyStopping, optional
        Validation rounds without improvement before training stops.
    monitor : str
        What decides about best, early stopping and plateau.
    mode : {"auto", "min", "max"}
        Whether smaller or larger is better; "auto" decides by the name.
    restore_best : bool
        Whether the model ends with its best weights.
    output_dir : str or path
        Where logs go.
    save_top_k : int
        How many of the best checkpoints are kept; -1 is all.
    save_last : bool
        Whether the latest checkpoint is kept.
    save_every : int, str or timedelta, optional
        Epochs or time between further checkpoints.
    max_disk : int or str, optional
        Bytes that checkpoints may take.
    resume_strict : bool
        Whether resuming raises where it could not continue exactly.
    check_val_every_n_epoch : int
        Epochs from one validation to the next.
    val_check_interval : float or int, optional
        Validation within an epoch: a fraction of it, or steps.
    log_every_n_steps : int
        Steps from one logged line to the next.
    limit_batches : int or float, optional
        Batches per epoch, or a fraction of them, rounded down to one at least.
    overfit_batches : int or float, optional
        Train and validate on these few batches of the training data.
    logger : "csv" or None
        "csv" writes the history to ``<output_dir>/<number>/metrics.csv``.
    enable_progress_bar : "auto" or bool
        "auto" shows a line per epoch, and in terminals and notebooks a bar. False shows nothing,
        header and summary included.
    enable_checkpointing : bool
        Of no effect: this version writes no checkpoints, only ``result.save``.
    enable_model_summary : bool
        Whether the model's layers are printed at the start.
    callbacks : list
        Objects that are called as training goes on.

    Raises
    ------
    ConfigError
        Names the field, the rule, the value and, where there is one, the fix.

    Examples
    --------
    >>> config = TrainingConfig(epochs=20, learning_rate=3e-4, use_amp=False)
    >>> config
    TrainingConfig(max_epochs=20, lr=0.0003, precision='32-true')
    >>> config.replace(lr=1e-4).diff(config)
    {'lr': (0.0001, 0.0003)}
    """

    max_epochs: int = 10
    max_steps: int | None = None
    max_time: float | None = None
    optimizer: str | OptimizerConfig = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.01
    decay_norm_and_bias: bool = False
    momentum: float | None = None
    betas: tuple[float, float] | None = None
    scheduler: str | SchedulerConfig = "cosine"
    warmup: int | float | str = 0.05
    loss: Any = "auto"
    metrics: tuple[Any, ...] | dict[str, Any] = ()
    label_smoothing: float = 0.0
    class_weight: str | tuple[float, ...] | dict[Any, float] | None = None
    accelerator: str = "auto"
    devices: int | str | tuple[int, ...] = "auto"
    strategy: str = "auto"
    precision: str = "auto"
    benchmark: bool = True
    deterministic: bool = False
    seed: int = 42
    cuda_graph: bool | str = "auto"
    device_cache: bool | str = "auto"
    accumulate_grad_batches: int = 1
    gradient_clip_val: float = 1.0
    gradient_clip_algorithm: str = "norm"
    param_groups: tuple[ParamGroup, ...] | None = None
    freeze: tuple[str, ...] | None = None
    unfreeze: tuple[str, ...] | None = None
    recompute: bool | str | tuple[str, ...] = "auto"
    memory_limit: int | None = None
    on_oom: str = "shrink"
    on_nan: str = "stop"
    on_interrupt: str = "auto"
    detect_anomaly: bool = False
    ema: bool | EMAConfig = False
    swa: bool = False
    early_stopping: EarlyStopping | None = None
    monitor: str = "val_loss"
    mode: str = "auto"
    restore_best: bool = True
    output_dir: str = "runs"
    save_top_k: int = 1
    save_last: bool = True
    save_every: int | str | None = None
    max_disk: int | None = None
    resume_strict: bool = True
    check_val_every_n_epoch: int = 1
    val_check_interval: int | float | None = None
    log_every_n_steps: int = 50
    limit_batches: int | float | None = None
    overfit_batches: int | float | None = None
    logger: str | None = "csv"
    enable_progress_bar: bool | str = "auto"
    enable_checkpointing: bool = True
    enable_model_summary: bool = True
    callbacks: tuple[Any, ...] = ()

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

    def check_supported(self) -> None:
        """Raise ConfigError if a value needs machinery that is not built yet.

        Every way to make a configuration calls it, and so does training, for configurations that
        were pickled by another version.
        """
        unsupported.check(self)

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
        return (
            self._optimizer_part()
            .replace(
                lr=self.lr,
                weight_decay=self.weight_decay,
                momentum=self.momentum,
                betas=self.betas,
            )
            .resolved()
        )

    @property
    def scheduler_config(self) -> SchedulerConfig:
        """The schedule with every setting that it has filled in, warmup, monitor and mode too."""
        part = self._scheduler_part().resolved()
        if part.name == "one_cycle":
            return part.replace(warmup=0, max_lr=part.max_lr or self.lr)
        if part.name == "plateau":
            monitor = part.monitor or self.monitor
            mode = self.monitor_mode(monitor, part.mode)
            return part.replace(warmup=self.warmup, monitor=monitor, mode=mode)
        return part.replace(warmup=self.warmup)

    def monitor_mode(self, monitor: str, mode: str | None = None) -> str:
        """Whether a smaller or a larger value of what is monitored is better.

        Parameters
        ----------
        monitor : str
            Its name, such as ``"val_loss"``.
        mode : {"auto", "min", "max"}, optional
            What is asked for. Without it, the configuration's.

        Returns
        -------
        {"min", "max"}
            As asked for; else by the name, or by that of the metric that it stands for.
        """
        metrics = self.metrics if isinstance(self.metrics, Mapping) else {}
        known = metrics.get(monitor.removeprefix("val_"))
        return monitor_mode(known if isinstance(known, str) else monitor, mode or self.mode)

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
        return base._replaced(overrides or {})

    @classmethod
    def bare(cls, **options: Unpack[TrainingOptions]) -> Self:
        """Nothing but the optimizer: constant lr, no warmup, no clipping, no decay, fp32.

        Parameters
        ----------
        **options
            Further settings, as in the constructor; they replace these.
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
            comment stands in their place.

        Returns
        -------
        str

        Raises
        ------
        ConfigError
            Names the field that cannot be written.
        """
        from .toml import dumps

        values = self.to_dict()
        for name, value in values.items():
            if value is None and _DEFAULTS[name] is not None:
                values[name] = False  # None that is not the default must not be left out
        text = dumps(values, strict=strict)
        if path is not None:
            with open(path, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
        return text

    @classmethod
    def from_toml(cls, path_or_text: str | os.PathLike[str]) -> Self:
        """The configuration of a TOML file or text, in any spelling, flat or nested.

        Parameters
        ----------
        path_or_text : path or str
            A string is a path if it has one line that ends in ``.toml`` or names a file.

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
                from .._suggest import did_you_mean

                hint = "" if name.startswith("__") else did_you_mean(name, _DEFAULTS)
            raise AttributeError(f"TrainingConfig has no {name!r}{hint}")


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(TrainingConfig)}


def _reconciled(options: Mapping[str, Any]) -> dict[str, Any]:
    owner = "TrainingConfig"
    return reconcile(owner, collect(owner, options, frozenset(_DEFAULTS)))


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


TrainingConfig.__signature__ = _signature()  # type: ignore[attr-defined]
