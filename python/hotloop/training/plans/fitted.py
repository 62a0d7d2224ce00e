"""Metadata of a trained model: class names, link, transforms; and the lock of its one user.

The metadata lies on the module itself, so that copies and pickles of a model keep it, and
``predict`` and ``save`` need nothing but the model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from hotloop.base.messages import warn
from hotloop.errors import BusyError, ConfigError, ModelWarning
from hotloop.nn.module import Module
from hotloop.training.config import TrainingConfig

__all__ = [
    "Fitted",
    "FittedTarget",
    "check_model",
    "exclusive",
    "fitted_of",
    "set_metadata",
    "uses_batch_statistics",
    "warn_of_untrained_norms",
]

_ATTRIBUTE = "_fitted"
_busy: weakref.WeakSet[Module] = weakref.WeakSet()
_lock = threading.Lock()


class FittedTarget(NamedTuple):
    """What training has found of one target; see :class:`Fitted`."""

    classes: list[Any] | None
    kind: str
    link: str | None
    class_axis: int | None


@dataclasses.dataclass
class Fitted:
    """Metadata that training collects about the data.

    Attributes
    ----------
    classes : list, dict of list, or None
        Names by class id; of several targets a dict from those that have some. So are, of several
        targets, ``target_kind``, ``link`` and ``class_axis`` dicts from all of them.
    target_kind : str
        "class", "multilabel", "float" or "none".
    link : str or None
        How outputs become probabilities: "softmax", "sigmoid", "exp", "identity" or None.
    transforms : list
        Fitted transforms that are part of the model: ``("standardize", {field: (mean, std)})``.
    fields : list of (name, dtype, shape)
        Of the inputs, shape without the batch.
    numbers : dict of str to float
        Values that ``hl.scalar``'s numbers had at the last step.
    loss : str or dict of str
        Name of the loss, of several targets the names of theirs; "training_step" where the model
        made it itself.
    columns : list of str or None
        Names of the input's columns, where it was a data frame.
    autotune_cache : str
        The GPU's autotune cache of this and earlier runs, one line per entry.
    class_axis : int or None
        The output's dim of classes, 1 or -1; None where it has one logit for each target.
    config : TrainingConfig or None
        By which ``evaluate`` scores. A pickle of the model has it unless it holds what cannot be
        pickled, such as a loss that is a lambda.
    """

    classes: list[Any] | dict[str, Any] | None
    target_kind: str | dict[str, str]
    link: str | dict[str, str | None] | None
    transforms: list[Any]
    fields: list[tuple[str, str, tuple[int, ...]]]
    numbers: dict[str, float] = dataclasses.field(default_factory=dict)
    loss: str | dict[str, str] = "auto"
    columns: list[str] | None = None
    autotune_cache: str = ""
    class_axis: int | dict[str, int | None] | None = 1
    config: TrainingConfig | None = None

    def of(self, target: str) -> FittedTarget:
        """What is known of a target; "" is the name of a single one."""
        found: list[Any] = [
            value.get(target) if isinstance(value, dict) else value
            for value in (self.classes, self.target_kind, self.link, self.class_axis)
        ]
        return FittedTarget(*found)

    def __getstate__(self) -> dict[str, Any]:
        try:
            pickle.dumps(self.config)
        except Exception:  # whatever a user's object raises
            return {**self.__dict__, "config": None}
        return dict(self.__dict__)

    def __deepcopy__(self, memo: dict[int, Any]) -> Fitted:
        return dataclasses.replace(self)  # nothing writes to its parts


def check_model(what: str, model: Any, *, loaded: bool = False) -> Any:
    """The model, where it is one that can be trained or, with ``loaded``, that can be run.

    Raises
    ------
    ConfigError
    """
    if isinstance(model, Module) or (loaded and hasattr(model, "runner")):
        return model
    got, fix = type(model).__name__, f"write {what}(model, data)"
    if isinstance(model, type):
        got, fix = f"the class {model.__name__}", f"write {model.__name__}(...) to make a model"
    elif hasattr(model, "state_dict"):
        fix = "build the module and load_state_dict the values"
    raise ConfigError(f"{what}: model must be a hotloop.nn.Module, got {got}; {fix}")


def fitted_of(model: Module) -> Fitted | None:
    """The model's metadata, or None when it was not trained."""
    fitted: Fitted | None = model.__dict__.get(_ATTRIBUTE)
    return fitted


def set_metadata(model: Module, fitted: Fitted) -> None:
    """Attaches its metadata to the model."""
    model.__dict__[_ATTRIBUTE] = fitted


@contextlib.contextmanager
def exclusive(model: Module, what: str) -> Iterator[None]:
    """Lets one thread at a time train or run a model.

    Raises
    ------
    BusyError
        If another one does.
    """
    with _lock:
        if model in _busy:
            raise BusyError(
                f"{what}: this model is being trained or run by another thread; wait for it, or "
                "use copy.deepcopy(model)"
            )
        _busy.add(model)
    try:
        yield
    finally:
        with _lock:
            _busy.discard(model)


def uses_batch_statistics(model: Module) -> bool:
    """Whether a module of the model normalises by its batch in training."""
    return any(getattr(module, "uses_batch_statistics", False) for module in model.modules())


def warn_of_untrained_norms(what: str, model: Module) -> None:
    """Warns where running statistics that evaluation uses are those that a module began with."""
    for name, module in model.named_modules():
        count, mean, var = (
            module.variable(part) for part in ("num_batches_tracked", "running_mean", "running_var")
        )
        if count is None or mean is None or var is None:
            continue
        if not count.value().any() and not mean.value().any() and (var.value() == 1.0).all():
            warn(
                f"{what}: the running statistics of {name or 'the model'} "
                f"({type(module).__name__}) are those that it began with, mean 0 and variance 1, "
                "and normalise nothing; train the model or load its state_dict first",
                ModelWarning,
            )
            return
