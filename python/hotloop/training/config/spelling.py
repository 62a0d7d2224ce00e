"""Turns everything a user may write into the flat, canonical fields of TrainingConfig.

Three spellings of a setting exist: the field itself, another name for it that is in wide use
(``epochs``, ``use_amp``, ``device="cuda:0"``), and a place in a nested part (``trainer``,
``optimizer``, ``scheduler``). Each spelling becomes a claim about a field. Claims that agree are
fine; two that do not are an error which names both, because whichever won would be wrong for
someone. Nothing is overridden here: precedence exists only between a configuration and the
overrides of ``train``, and that is TrainingConfig.resolve's subject.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

from hotloop.base.rules import Rule, flag, number, reject, show
from hotloop.base.scalars import plain
from hotloop.base.suggest import closest
from hotloop.errors import ConfigError
from hotloop.training.config import schema
from hotloop.training.config.options import TrainerOptions
from hotloop.training.config.parts import OptimizerConfig, SchedulerConfig

__all__ = ["ALIASES", "TRAINER_FIELDS", "Claim", "collect", "reconcile"]


class Claim(NamedTuple):
    """One spelling's statement about a field: the canonical value, and how it was written."""

    value: Any
    written: str


Claims = dict[str, list[Claim]]


def _amp(spelling: str, value: object) -> dict[str, Any]:
    return {"precision": flag(spelling, value)}


def _clip_norm(spelling: str, value: object) -> dict[str, Any]:
    limit = 0.0
    if value is not None:
        limit = number(at_least=0.0, fix="write None for no clipping")(spelling, value)
    return {"gradient_clip_val": limit, "gradient_clip_algorithm": "norm"}


def _device(spelling: str, value: object) -> dict[str, Any]:
    """``"cpu"``, ``"cuda"``, ``"cuda:1"`` or a torch.device, as accelerator and devices."""
    import re

    name = str(value) if type(value).__name__ == "device" else value
    if not isinstance(name, str):
        reject(spelling, "must be a text such as 'cpu' or 'cuda:0'", value)
    if name in ("auto", "cpu"):
        return {"accelerator": name}
    found = re.fullmatch(r"(?:cuda|gpu)(?::(\d+))?", name)
    if found is None:
        reject(spelling, "must be 'auto', 'cpu', 'cuda' or 'cuda:<number>'", value)
    return {"accelerator": "gpu", "devices": 1 if found[1] is None else (int(found[1]),)}


def _losses(spelling: str, value: object) -> dict[str, Any]:
    """A list of losses, each alone or in a pair with its weight, as the dict of ``loss``."""
    if isinstance(value, str) or callable(value):
        value = [value]
    if not isinstance(value, (list, tuple)) or not value:
        reject(spelling, "must be a list of losses, or of pairs (loss, weight)", value)
    pairs = [item if isinstance(item, (list, tuple)) else (item, 1.0) for item in value]
    found: dict[str, Any] = {}
    for pair in pairs:
        if len(pair) != 2:
            reject(spelling, "must have losses or pairs (loss, weight)", pair)
        loss = pair[0]
        own = getattr(loss, "name", None) or getattr(loss, "__name__", type(loss).__name__)
        name = stem = loss if isinstance(loss, str) else str(own)
        n = 1
        while name in found:
            n += 1
            name = f"{stem}_{n}"
        found[name] = tuple(pair)
    return {"loss": schema.loss(spelling, found)}


ALIASES: Mapping[str, str] = {
    "epochs": "max_epochs",
    "num_epochs": "max_epochs",
    "learning_rate": "lr",
    "use_amp": "precision",
    "amp": "precision",
    "cudnn_benchmark": "benchmark",
    "cudnn_deterministic": "deterministic",
    "device": "accelerator",
    "gradient_accumulation_steps": "accumulate_grad_batches",
    "accumulation_steps": "accumulate_grad_batches",
    "max_grad_norm": "gradient_clip_val",
    "clip_max_norm": "gradient_clip_val",
    "default_root_dir": "output_dir",
    "losses": "loss",
}
"""Other spellings in wide use, and the field that each of them stands for."""

_MEANINGS: Mapping[str, Callable[[str, object], dict[str, Any]]] = {
    "use_amp": _amp,
    "amp": _amp,
    "device": _device,
    "max_grad_norm": _clip_norm,
    "clip_max_norm": _clip_norm,
    "losses": _losses,
}  # those that are more than another name

TRAINER_FIELDS = frozenset(TrainerOptions.__annotations__) - frozenset(ALIASES)

_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(
        ("batch_size", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor",
         "shuffle", "drop_last"),
        "it belongs to the data: DataModule({0}=...)",
    ),
    **dict.fromkeys(
        ("split", "gap", "stratify", "groups"),
        "it belongs to the data: DataModule.from_arrays(X, y, {0}=...)",
    ),
    **dict.fromkeys(
        ("eps", "nesterov", "alpha", "amsgrad", "dampening", "centered"),
        "write optimizer=OptimizerConfig(..., {0}=...)",
    ),
    **dict.fromkeys(
        ("step_size", "gamma", "milestones", "T_0", "T_mult", "min_lr", "eta_min", "max_lr",
         "pct_start", "div_factor", "final_div_factor", "factor"),
        "write scheduler=SchedulerConfig(..., {0}=...)",
    ),
    "validation_split": "write DataModule.from_arrays(X, y, val=...)",
    "validation_data": "write DataModule.from_arrays(X, y, val=(X_val, y_val))",
    "patience": "write early_stopping=<epochs>, or SchedulerConfig('plateau', patience=...)",
    **dict.fromkeys(("min_delta", "tol"), "write early_stopping=EarlyStopping(min_delta=...)"),
    "random_state": "write seed=...",
    **dict.fromkeys(("every_n_train_steps", "save_steps"), "write save_every='500 steps'"),
    "every_n_epochs": "write save_every=2",
    **dict.fromkeys(("wd", "l2"), "write weight_decay=..."),
    **dict.fromkeys(("criterion", "objective"), "write loss=..."),
    "config": "the configuration is the third argument: write hl.train(model, data, config)",
    "loss_weights": "write loss={{'<target>': lambda output, y: 0.1 * F.mse_loss(output, y)}}",
    **dict.fromkeys(("grad_clip", "clip"), "write gradient_clip_val=..."),
    **dict.fromkeys(
        ("num_threads", "n_jobs"), "set HOTLOOP_NUM_THREADS in the environment, before the import"
    ),
    **dict.fromkeys(
        ("val", "test"), "it belongs to the data: DataModule.from_arrays(X, y, {0}=...)"
    ),
    "bs": "it belongs to the data: DataModule(batch_size=...)",
    **dict.fromkeys(
        ("workers", "n_workers"), "it belongs to the data: DataModule(num_workers=...)"
    ),
    "fp16": "write precision='16-mixed'",
    "bf16": "write precision='bf16-mixed'",
    **dict.fromkeys(("gpus", "num_gpus", "n_gpus"), "write accelerator='gpu', devices=..."),
    **dict.fromkeys(("log_dir", "logdir", "save_dir"), "write output_dir=..."),
    "dropout": "it belongs to the model: nn.Dropout(p)",
    **dict.fromkeys(
        ("save_path", "checkpoint_path", "model_path"), "write result.save(path) after training"
    ),
    "lr_backbone": "write param_groups=[{{'params': 'backbone', 'lr': ...}}]",
    **dict.fromkeys(
        ("resume", "ckpt_path", "resume_from_checkpoint"),
        "it is an argument of train: train(..., resume=...)",
    ),
    "checkpoint": "write result.save(path) after training",
    "fast_dev_run": "write max_steps=1",
    **dict.fromkeys(("val_split", "val_size"), "write DataModule.from_arrays(X, y, val=...)"),
    **dict.fromkeys(
        ("test_size", "test_split"), "write DataModule.from_arrays(X, y, test=...)"
    ),
    "warmup_epochs": "write warmup='<n> epochs'",
    "warmup_steps": "write warmup=<steps>",
    "warmup_ratio": "write warmup=<ratio below 1>",
}  # fmt: skip


def _unknown(owner: str, key: object, known: frozenset[str], rules: Mapping[str, Rule]) -> NoReturn:
    """Say that a key does not exist, and where to go instead."""
    if not isinstance(key, str):
        raise ConfigError(f"{owner}: the name of a setting must be a string, got {show(key)}")
    if key in _ELSEWHERE:
        hint = "; " + _ELSEWHERE[key].format(key)
    elif key in rules or key in ("trainer", *ALIASES):  # known, but not to this owner
        hint = "; write it in TrainingConfig itself"
    else:
        found = closest(key, [*sorted(known), "trainer"] if "lr" in known else sorted(known))
        meant = ALIASES.get(found, found) if found is not None else None
        hint = f"; did you mean {meant!r}?" if meant else ""
    raise ConfigError(f"{owner}: there is no setting {key!r}{hint}")


def _claims_of_parts(key: str, value: OptimizerConfig | SchedulerConfig) -> Claims:
    """Lift what a part shares with the flat fields out of it; what is left names the rest."""
    shared = ("lr", "weight_decay", "momentum", "betas", "warmup")
    found: Claims = {}
    lifted: dict[str, None] = {}
    for field in shared:
        own = getattr(value, field, None)
        if own is not None:
            found[field] = [Claim(own, f"{key}.{field}={show(own)}")]
            lifted[field] = None
    rest = value.replace(**lifted)
    alone = len(rest.to_dict()) == 1
    found[key] = [Claim(rest.name if alone else rest, f"{key}={show(value)}")]
    return found


def collect(
    owner: str, options: Mapping[str, Any], known: frozenset[str], rules: Mapping[str, Rule]
) -> Claims:
    """Check every option and note what it says about which fields.

    Parameters
    ----------
    owner : str
        The class that the options were given to, for messages.
    options : mapping
        What the user wrote.
    known : frozenset of str
        The fields that this owner has.
    rules : mapping
        The rule of each field.

    Returns
    -------
    dict
        From field to the claims about it.
    """
    claims: Claims = {}

    def add(more: Claims) -> None:
        for field, stated in more.items():
            claims.setdefault(field, []).extend(stated)

    for key, given in options.items():
        value = plain(given)
        if key == "trainer" and "lr" in known:
            add(_claims_of_trainer(value, rules))
        elif key in known:
            checked = rules[key](key, value)
            if isinstance(checked, (OptimizerConfig, SchedulerConfig)):
                add(_claims_of_parts(key, checked))
            else:
                add({key: [Claim(checked, f"{key}={show(value)}")]})
        elif ALIASES.get(key) in known:
            if key in _MEANINGS:
                stated = _MEANINGS[key](key, value)
            else:
                stated = {ALIASES[key]: rules[ALIASES[key]](key, value)}
            add({field: [Claim(v, f"{key}={show(value)}")] for field, v in stated.items()})
        else:
            reachable = frozenset(k for k, v in ALIASES.items() if v in known)
            _unknown(owner, key, known | reachable, rules)
    return claims


def _claims_of_trainer(value: object, rules: Mapping[str, Rule]) -> Claims:
    claims = getattr(value, "_claims", None)
    if claims is None:
        if not isinstance(value, Mapping):
            reject("trainer", "must be a TrainerConfig", value)
        claims = collect("TrainerConfig", value, TRAINER_FIELDS, rules)
    return {
        field: [Claim(claim.value, f"trainer.{claim.written}") for claim in stated]
        for field, stated in claims.items()
    }


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:  # an object whose == returns an array or refuses
        return False


def _merge(field: str, a: Any, b: Any) -> Any:
    """The value that satisfies both claims; raises LookupError where there is none."""
    if field == "precision":
        for amp, named in ((a, b), (b, a)):
            if isinstance(amp, bool) and isinstance(named, str):
                mixed = named in ("auto", "16-mixed", "bf16-mixed")
                if mixed is amp:
                    return named
                raise LookupError
    if field == "devices":
        for one, which in ((a, b), (b, a)):
            if one == 1 and isinstance(which, tuple) and len(which) == 1:
                return which
    if not _same(a, b):
        raise LookupError
    return a


def reconcile(owner: str, claims: Claims) -> dict[str, Any]:
    """One value per field, or ConfigError where two spellings disagree.

    ``use_amp=True`` alone means precision "auto", that is mixed precision where the device gains
    from it, and not an error where there is none; ``use_amp=False`` means "32-true".
    """
    values: dict[str, Any] = {}
    for field, stated in claims.items():
        value, written = stated[0]
        for other in stated[1:]:
            try:
                value = _merge(field, value, other.value)
            except LookupError:
                raise ConfigError(
                    f"{owner}: two spellings of {field} disagree, {written} and "
                    f"{other.written}; keep one of them"
                ) from None
        if field == "precision" and isinstance(value, bool):
            value = "auto" if value else "32-true"
        values[field] = value
    return values
