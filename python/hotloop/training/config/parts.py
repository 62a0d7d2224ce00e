"""The structured values inside a training configuration: optimizer, schedule, stopping, averaging.

Each part is a frozen, keyword-only dataclass (its first field may be positional). A field that is
None was not given: what applies then stands in one table per family, ``OPTIMIZERS`` and
``SCHEDULERS``, keyed by name, with PyTorch's defaults. The same tables say which fields a name has
at all, so that a setting which would have no effect (``gamma`` for a cosine) is an error and not a
silent nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar, dataclass_transform

from hotloop.base import rules
from hotloop.base.patterns import matches
from hotloop.base.rules import Rule, flag, number, optional, reject, show, whole
from hotloop.base.scalars import plain
from hotloop.base.suggest import did_you_mean
from hotloop.errors import ConfigError

__all__ = [
    "OPTIMIZERS",
    "SCHEDULERS",
    "EMAConfig",
    "EarlyStopping",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "OptimizerConfig",
    "ParamGroup",
    "Part",
    "SWAConfig",
    "SchedulerConfig",
]

_P = TypeVar("_P", bound="Part")

OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"momentum": 0.0, "dampening": 0.0, "nesterov": False},
    "adam": {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False},
    "adamw": {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False},
    "rmsprop": {"alpha": 0.99, "eps": 1e-8, "momentum": 0.0, "centered": False},
    "lion": {"betas": (0.9, 0.99)},
}
"""What each optimizer has besides lr and weight_decay, with its default."""

REQUIRED = object()  # marks a setting without a sensible default

SCHEDULERS: Mapping[str, Mapping[str, Any]] = {
    "constant": {},
    "linear": {"start_factor": 1.0, "end_factor": 0.0},
    "cosine": {"min_lr": 0.0},
    "one_cycle": {
        "max_lr": None,
        "pct_start": 0.3,
        "div_factor": 25.0,
        "final_div_factor": 1e4,
        "anneal_strategy": "cos",
        "three_phase": False,
    },
    "step": {"step_size": REQUIRED, "gamma": 0.1},
    "multistep": {"milestones": REQUIRED, "gamma": 0.1},
    "exponential": {"gamma": REQUIRED},
    "plateau": {
        "factor": 0.1,
        "patience": 10,
        "threshold": 1e-4,
        "threshold_mode": "rel",
        "cooldown": 0,
        "min_lr": 0.0,
        "eps": 1e-8,
        "monitor": None,
        "mode": None,
    },
    "warm_restarts": {"T_0": REQUIRED, "T_mult": 1, "min_lr": 0.0},
}
"""What each schedule has, with its default."""

_EXAMPLES = {"step_size": 30, "milestones": (30, 60), "gamma": 0.95, "T_0": 10}

OPTIMIZER_NAME = rules.choice(*OPTIMIZERS, aliases={"rms_prop": "rmsprop"}, fold=True)
SCHEDULER_NAME = rules.choice(
    *SCHEDULERS,
    aliases={
        "none": "constant",
        "cosine_annealing": "cosine",
        "cosine_annealing_lr": "cosine",
        "1cycle": "one_cycle",
        "one_cycle_lr": "one_cycle",
        "step_lr": "step",
        "multi_step_lr": "multistep",
        "exponential_lr": "exponential",
        "reduce_on_plateau": "plateau",
        "reduce_lr_on_plateau": "plateau",
        "cosine_warm_restarts": "warm_restarts",
        "cosine_annealing_warm_restarts": "warm_restarts",
    },
    fold=True,
)

LR = number(above=0.0, fix="a usual start is 0.001")
WEIGHT_DECAY = number(at_least=0.0, fix="write 0 for none")
MOMENTUM = number(at_least=0.0, below=1.0, fix="a usual value is 0.9")
BETAS = rules.pair(number(at_least=0.0, below=1.0), "two numbers, such as (0.9, 0.999)")
MODE = rules.choice("auto", "min", "max")


def refuse_changes(cls: type, aliases: Mapping[str, str]) -> None:
    """Lets a frozen dataclass say what to write instead of a change.

    Parameters
    ----------
    cls : type
    aliases : mapping
        Other spellings of its fields.
    """

    def refuse(self: object, name: str, value: object = None) -> NoReturn:
        raise dataclasses.FrozenInstanceError(
            f"{cls.__name__} cannot be changed; write "
            f"new = old.replace({aliases.get(name, name)}=...)"
        )

    cls.__setattr__ = refuse  # type: ignore[method-assign]
    cls.__delattr__ = refuse  # type: ignore[method-assign, assignment]


@dataclass_transform(
    kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,)
)
def _part(cls: type[_P]) -> type[_P]:
    """Make a class a frozen dataclass that answers a misspelt key with a suggestion."""
    made = dataclasses.dataclass(frozen=True, kw_only=True, repr=False)(cls)
    generated: Callable[..., None] = made.__init__
    known = [f.name for f in dataclasses.fields(made)]  # type: ignore[arg-type]

    @functools.wraps(generated)
    def init(self: _P, *args: object, **values: object) -> None:
        for alias, field in made._aliases.items():
            if alias in values:
                given = values.pop(alias)
                if field in values and values[field] != given:
                    raise ConfigError(
                        f"{made._label}.{field}: two spellings disagree, {alias}={show(given)} "
                        f"and {field}={show(values[field])}; keep one of them"
                    )
                values[field] = given
        for name in values:
            if name not in known:
                near = did_you_mean(name, known)
                raise ConfigError(
                    f"{made.__name__}: there is no setting {name!r}{near or '; it has '}"
                    + ("" if near else ", ".join(known))
                )
        generated(self, *args, **values)

    made.__init__ = init  # type: ignore[method-assign, assignment]
    refuse_changes(made, made._aliases)
    return made


class Part:
    """What the structured values share: checks, ``replace``, ``to_dict`` and a short repr."""

    _label: ClassVar[str]
    _rules: ClassVar[Mapping[str, Rule]]
    _aliases: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        for name, rule in self._rules.items():
            checked = rule(f"{self._label}.{name}", plain(getattr(self, name)))
            object.__setattr__(self, name, checked)
        self._check()

    def _check(self) -> None:
        """Rules that concern several fields; the default has none."""

    def _given(self) -> dict[str, Any]:
        """The fields that differ from their defaults, the first one always among them."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {
            f.name: getattr(self, f.name)
            for i, f in enumerate(fields)
            if i == 0 or getattr(self, f.name) != f.default
        }

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed.

        Parameters
        ----------
        **changes
            Field names and new values.

        Returns
        -------
        same type as self
        """
        return type(self)(**(self._given() | changes))

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, as a plain dict."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        values = {f.name: getattr(self, f.name) for f in fields}
        return {name: value for name, value in values.items() if value is not None}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._given().items())
        return f"{type(self).__name__}({shown})"


def _check_fields(part: Part, name: str, table: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse settings that the chosen name does not have."""
    owned = {field for settings in table.values() for field in settings}
    for field in sorted(owned):
        value = getattr(part, field)
        if value is None or field in table[name]:
            continue
        holders = ", ".join(other for other, settings in table.items() if field in settings)
        own = ", ".join(table[name]) or "no settings of its own"
        reject(
            f"{part._label}.{field}",
            f"{name!r} does not have it",
            value,
            f"it belongs to {holders}; {name} has {own}",
        )


@_part
class OptimizerConfig(Part):
    """An optimizer and its settings; None means the default.

    Parameters
    ----------
    name : {"adamw", "adam", "sgd", "rmsprop", "lion"}
        The algorithm, as in its paper and in ``torch.optim``.
    lr : float, optional
        Learning rate (> 0). Without it, the configuration's.
    weight_decay : float, optional
        Decay (>= 0): decoupled in adamw and lion, added to the gradient in the others. Without
        it, the configuration's.
    momentum : float, optional
        For sgd and rmsprop; 0.
    betas : (float, float), optional
        For adam, adamw (0.9, 0.999) and lion (0.9, 0.99).
    eps : float, optional
        For adam, adamw and rmsprop; 1e-8.
    alpha : float, optional
        Smoothing of rmsprop; 0.99.
    centered : bool, optional
        Whether rmsprop divides by the variance; False.
    dampening : float, optional
        For sgd with momentum; 0.
    nesterov : bool, optional
        For sgd with momentum and without dampening; False.
    amsgrad : bool, optional
        For adam and adamw; False.

    Raises
    ------
    ConfigError
        A value out of range, an unknown key, or a setting that the optimizer does not have.
    """

    name: str = dataclasses.field(default="adamw", kw_only=False)
    lr: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    alpha: float | None = None
    centered: bool | None = None
    dampening: float | None = None
    nesterov: bool | None = None
    amsgrad: bool | None = None

    if not TYPE_CHECKING:  # else type checkers would take every misspelt name for Any

        def __getattr__(self, name: str) -> Any:
            hint = (
                ": it holds settings; hl.train(model, data, optimizer=...) takes the steps, "
                "hl.stepper(model, config, data).step(batch) those of a loop of your own"
            )
            is_method = name in ("step", "zero_grad", "state_dict", "load_state_dict")
            raise AttributeError(f"OptimizerConfig has no {name!r}{hint if is_method else ''}")

    _label = "optimizer"
    _aliases: ClassVar[Mapping[str, str]] = {"learning_rate": "lr"}
    _rules: ClassVar[Mapping[str, Rule]] = {
        "name": OPTIMIZER_NAME,
        "lr": optional(LR),
        "weight_decay": optional(WEIGHT_DECAY),
        "momentum": optional(MOMENTUM),
        "betas": optional(BETAS),
        "eps": optional(number(above=0.0, fix="a usual value is 1e-08")),
        "alpha": optional(number(at_least=0.0, below=1.0, fix="a usual value is 0.99")),
        "centered": optional(flag),
        "dampening": optional(number(at_least=0.0, at_most=1.0)),
        "nesterov": optional(flag),
        "amsgrad": optional(flag),
    }

    def _check(self) -> None:
        _check_fields(self, self.name, OPTIMIZERS)

    def resolved(self) -> OptimizerConfig:
        """A copy in which every setting that this optimizer has is filled in.

        Settings that it does not have stay None; so do lr and weight_decay if they are.

        Returns
        -------
        OptimizerConfig

        Raises
        ------
        ConfigError
            If ``nesterov`` has no momentum.
        """
        filled = {
            field: default if getattr(self, field) is None else getattr(self, field)
            for field, default in OPTIMIZERS[self.name].items()
        }
        found = self.replace(**filled)
        if found.nesterov and not (found.momentum and found.dampening == 0.0):
            reject(
                "optimizer.nesterov",
                "needs momentum > 0 and dampening 0",
                found.nesterov,
                "write momentum=0.9 as well",
            )
        return found


@_part
class SchedulerConfig(Part):
    """How the learning rate moves over training; None means the default.

    Names, defaults and formulas are those of ``torch.optim.lr_scheduler``. constant, linear,
    cosine and one_cycle move with every optimizer step; step, multistep, exponential, plateau and
    warm_restarts move once per epoch, and their lengths count epochs.

    Parameters
    ----------
    name : str
        "constant", "linear", "cosine", "one_cycle", "step", "multistep", "exponential", "plateau"
        or "warm_restarts"; PyTorch's class names are understood as well.
    warmup : int, float or str, optional
        Steps (int), ratio of all steps (float below 1) or ``"5 epochs"``. Without it, the
        configuration's. one_cycle has its own and takes no other.
    min_lr : float, optional
        Lowest learning rate (``eta_min`` in PyTorch), at most ``lr``; for cosine, warm_restarts and
        plateau; 0.
    start_factor, end_factor : float, optional
        Multipliers at the ends of linear; 1 and 0, so it decays to zero. PyTorch's LinearLR by
        default rises from 1/3 within five steps, which is a warmup: that is ``warmup`` here.
    step_size : int, optional
        Epochs between two drops of step.
    milestones : sequence of int, optional
        Epochs at which multistep drops, ascending.
    gamma : float, optional
        Factor of a drop (step, multistep: 0.1) or of every epoch (exponential: must be given).
    T_0 : int, optional
        Epochs until the first restart of warm_restarts.
    T_mult : int, optional
        Factor by which each following cycle is longer; 1.
    max_lr : float, optional
        Peak of one_cycle; without it, lr.
    pct_start : float, optional
        Share of the steps in which one_cycle rises; 0.3.
    div_factor, final_div_factor : float, optional
        one_cycle starts at peak / div_factor and ends at that / final_div_factor; 25 and 1e4.
    anneal_strategy : {"cos", "linear"}, optional
        Shape of one_cycle's phases; "cos".
    three_phase : bool, optional
        Whether one_cycle falls as long as it rose, before the final phase; False.
    factor : float, optional
        Factor of a drop of plateau; 0.1.
    patience : int, optional
        Epochs without improvement that plateau waits; 10.
    threshold : float, optional
        What counts as improvement for plateau; 1e-4.
    threshold_mode : {"rel", "abs"}, optional
        Whether threshold is relative to the best value; "rel".
    cooldown : int, optional
        Epochs after a drop in which plateau does not count; 0.
    eps : float, optional
        plateau leaves out drops of the learning rate smaller than this; 1e-8.
    monitor : str, optional
        What plateau watches. Without it, the configuration's.
    mode : {"auto", "min", "max"}, optional
        Whether smaller or larger is better. Without it, the configuration's where both watch the
        same value; else by the loss, the metric or the name.

    Raises
    ------
    ConfigError
        A value out of range, an unknown key, a missing one, or one that the schedule lacks.
    """

    name: str = dataclasses.field(default="cosine", kw_only=False)
    warmup: int | float | str | None = None
    min_lr: float | None = None
    start_factor: float | None = None
    end_factor: float | None = None
    step_size: int | None = None
    milestones: tuple[int, ...] | None = None
    gamma: float | None = None
    T_0: int | None = None
    T_mult: int | None = None
    max_lr: float | None = None
    pct_start: float | None = None
    div_factor: float | None = None
    final_div_factor: float | None = None
    anneal_strategy: str | None = None
    three_phase: bool | None = None
    factor: float | None = None
    patience: int | None = None
    threshold: float | None = None
    threshold_mode: str | None = None
    cooldown: int | None = None
    eps: float | None = None
    monitor: str | None = None
    mode: str | None = None

    _label = "scheduler"
    _aliases: ClassVar[Mapping[str, str]] = {"eta_min": "min_lr"}

    @staticmethod
    def _milestones(field: str, value: object) -> tuple[int, ...]:
        what = "ascending epochs, such as (30, 60)"
        epochs = tuple(whole(1)(field, item) for item in rules.items(field, value, what))
        if not epochs or list(epochs) != sorted(epochs):
            reject(field, f"must be {what}", value)
        return epochs

    _rules: ClassVar[Mapping[str, Rule]] = {
        "name": SCHEDULER_NAME,
        "warmup": optional(rules.warmup),
        "min_lr": optional(number(at_least=0.0)),
        "start_factor": optional(number(above=0.0)),
        "end_factor": optional(number(at_least=0.0)),
        "step_size": optional(whole(1)),
        "milestones": optional(lambda field, value: SchedulerConfig._milestones(field, value)),
        "gamma": optional(number(above=0.0)),
        "T_0": optional(whole(1)),
        "T_mult": optional(whole(1)),
        "max_lr": optional(LR),
        "pct_start": optional(number(at_least=0.0, at_most=1.0)),
        "div_factor": optional(number(above=0.0)),
        "final_div_factor": optional(number(above=0.0)),
        "anneal_strategy": optional(rules.choice("cos", "linear")),
        "three_phase": optional(flag),
        "factor": optional(number(above=0.0, below=1.0)),
        "patience": optional(whole(0)),
        "threshold": optional(number(at_least=0.0)),
        "threshold_mode": optional(rules.choice("rel", "abs")),
        "cooldown": optional(whole(0)),
        "eps": optional(number(at_least=0.0)),
        "monitor": optional(rules.text),
        "mode": optional(MODE),
    }

    def _check(self) -> None:
        _check_fields(self, self.name, SCHEDULERS)
        for field, default in SCHEDULERS[self.name].items():
            if default is REQUIRED and getattr(self, field) is None:
                example = f"SchedulerConfig({self.name!r}, {field}={_EXAMPLES[field]!r})"
                raise ConfigError(
                    f"scheduler.{field}: {self.name!r} needs it, got nothing; write {example}"
                )
        if self.name == "one_cycle" and self.warmup:
            reject(
                "scheduler.warmup",
                "one_cycle has its own warmup and takes no other",
                self.warmup,
                "set pct_start instead",
            )

    def check_rates(self, lr: float) -> None:
        """Sees that the lowest rate is none above that from which the schedule falls to it.

        Parameters
        ----------
        lr : float
            The learning rate at its peak.

        Raises
        ------
        ConfigError
            If it is above.
        """
        if self.min_lr is not None and self.min_lr > lr:
            fix = "it is a learning rate, no share of one; write a smaller one, or a larger lr"
            reject("scheduler.min_lr", f"must be at most lr, which is {lr!r}", self.min_lr, fix)

    def resolved(self) -> SchedulerConfig:
        """A copy in which every setting that this schedule has is filled in.

        Returns
        -------
        SchedulerConfig
        """
        filled = {
            field: default if getattr(self, field) is None else getattr(self, field)
            for field, default in SCHEDULERS[self.name].items()
        }
        return self.replace(**filled)


@_part
class EarlyStopping(Part):
    """Stop when the monitored value has not improved for a while.

    Parameters
    ----------
    patience : int
        Validation rounds without improvement after which training stops (>= 1).
    min_delta : float
        How much better a value must be to count as an improvement (>= 0). Which weights are best
        does not depend on it.
    monitor : str, optional
        What is watched. Without it, the configuration's, which alone says which weights are best,
        and which is this one where the configuration has none.
    mode : {"auto", "min", "max"}, optional
        Whether smaller or larger is better. Without it, the configuration's where both watch the
        same value; else by the loss, the metric or the name.
    """

    patience: int = dataclasses.field(default=10, kw_only=False)
    min_delta: float = 0.0
    monitor: str | None = None
    mode: str | None = None

    _label = "early_stopping"
    _rules: ClassVar[Mapping[str, Rule]] = {
        "patience": whole(1, fix="write early_stopping=None for no early stopping"),
        "min_delta": number(at_least=0.0),
        "monitor": optional(rules.text),
        "mode": optional(MODE),
    }


@_part
class ModelCheckpoint(Part):
    """What a run keeps on disk, as an object among ``callbacks``.

    It stands for settings of :class:`TrainingConfig`, of which only those that are given count.

    Parameters
    ----------
    output_dir : str or path, optional
    monitor : str, optional
    mode : {"auto", "min", "max"}, optional
    save_top_k : int, optional
    save_last : bool, optional
    save_every : int, str or timedelta, optional
    """

    output_dir: str | None = None
    monitor: str | None = None
    mode: str | None = None
    save_top_k: int | None = None
    save_last: bool | None = None
    save_every: int | str | None = None

    _label = "callbacks"
    _rules: ClassVar[Mapping[str, Rule]] = {
        "output_dir": optional(rules.path),
        "monitor": optional(rules.text),
        "mode": optional(MODE),
        "save_top_k": optional(whole(-1, fix="write 0 for none, -1 for all")),
        "save_last": optional(flag),
        "save_every": lambda field, value: value,  # by the rule of the configuration's field
    }


@_part
class LearningRateMonitor(Part):
    """Nothing, as an object among ``callbacks``: the learning rate is in the history of each run,
    in its log and in ``run.logs``.
    """

    _label = "callbacks"
    _rules: ClassVar[Mapping[str, Rule]] = {}


def _swa_start(field: str, value: object) -> int | float:
    """A share of the epochs, or as an int the first one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int(whole(1)(field, value))
    fix = "write a share of the epochs, such as 0.75, or an epoch as an int"
    return float(number(above=0.0, below=1.0, fix=fix)(field, value))


@_part
class EMAConfig(Part):
    """An exponential moving average of the weights, used for validation and for the result.

    Parameters
    ----------
    decay : float
        Share of the average that is kept at every optimizer step, between 0 and 1.
    ramp : bool
        Whether the share begins smaller, at most ``(1 + n) / (10 + n)`` at the n-th step, as in
        TensorFlow: so that the average of a short training is not that of its first weights.
        False: as in torch's ``get_ema_multi_avg_fn``.
    """

    decay: float = dataclasses.field(default=0.999, kw_only=False)
    ramp: bool = True

    _label = "ema"
    _rules: ClassVar[Mapping[str, Rule]] = {
        "decay": number(above=0.0, below=1.0, fix="a usual value is 0.999"),
        "ramp": flag,
    }


@_part
class SWAConfig(Part):
    """Stochastic weight averaging: an equal average of the weights at the ends of the last epochs.

    Parameters
    ----------
    start : float or int
        What of the training comes before it: a share of its epochs (between 0 and 1), of which the
        part of an epoch is left out, or, as an int, the first epoch whose weights are averaged
        (from 1). The share of 0.75 is that of the paper.
    lr : float, optional
        Learning rate of these epochs (> 0), of groups with their scale. Without it half of the
        configuration's, as in the paper's runs.
    anneal_epochs : int
        Epochs in which the rate moves there from that of the schedule (>= 0).
    anneal_strategy : {"cos", "linear"}
        How it moves.

    References
    ----------
    Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization, UAI 2018.
    """

    start: float | int = dataclasses.field(default=0.75, kw_only=False)
    lr: float | None = None
    anneal_epochs: int = 1
    anneal_strategy: str = "cos"

    _label = "swa"
    _aliases: ClassVar[Mapping[str, str]] = {
        "swa_lr": "lr",
        "swa_lrs": "lr",
        "swa_start": "start",
        "swa_epoch_start": "start",
        "annealing_epochs": "anneal_epochs",
        "annealing_strategy": "anneal_strategy",
    }
    _rules: ClassVar[Mapping[str, Rule]] = {
        "start": _swa_start,
        "lr": optional(LR),
        "anneal_epochs": whole(0),
        "anneal_strategy": rules.choice("cos", "linear"),
    }


@_part
class ParamGroup(Part):
    """Other settings for the parameters whose names match; the first group that matches counts.

    Parameters
    ----------
    params : str or sequence of str
        Patterns of qualified names: ``"backbone"`` is the module of that name with all that is in
        it, ``"*.bias"`` every bias.
    lr : float, optional
        Learning rate of the group (> 0); moves with the schedule like the others.
    lr_scale : float, optional
        The same as a multiple of the configuration's lr (>= 0). Only one of the two.
    weight_decay : float, optional
        Decay of the group (>= 0).
    """

    params: tuple[str, ...] = dataclasses.field(kw_only=False)
    lr: float | None = None
    lr_scale: float | None = None
    weight_decay: float | None = None

    _label = "param_groups"
    _aliases: ClassVar[Mapping[str, str]] = {"learning_rate": "lr"}
    _rules: ClassVar[Mapping[str, Rule]] = {
        "params": rules.names,
        "lr": optional(LR),
        "lr_scale": optional(number(at_least=0.0)),
        "weight_decay": optional(WEIGHT_DECAY),
    }

    def covers(self, name: str) -> bool:
        """Whether one of its patterns matches a parameter's name.

        Parameters
        ----------
        name : str
            Qualified, ``"body.0.weight"``.

        Returns
        -------
        bool
        """
        return any(matches(pattern, name) for pattern in self.params)

    def _check(self) -> None:
        if self.lr is not None and self.lr_scale is not None:
            raise ConfigError(
                f"param_groups: a group has lr or lr_scale, got lr={self.lr!r} and "
                f"lr_scale={self.lr_scale!r}; keep one of them"
            )
        if self.lr is None and self.lr_scale is None and self.weight_decay is None:
            reject(
                "param_groups",
                "a group needs lr, lr_scale or weight_decay",
                {"params": list(self.params)},
            )
