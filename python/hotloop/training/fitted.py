"""Metadata of a trained model: class names, link, transforms; and the lock of its one user.

The metadata lies on the module itself, so that copies and pickles of a model keep it, and
``predict`` and ``save`` need nothing but the model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hotloop.errors import BusyError, ConfigError

if TYPE_CHECKING:
    from hotloop.data.module import DataModule
    from hotloop.nn.module import Module
    from hotloop.training.losses import Loss
    from hotloop.training.runtime import Runtime

__all__ = [
    "Fitted",
    "check_model",
    "exclusive",
    "fitted_of",
    "collect_metadata",
    "set_metadata",
    "uses_batch_statistics",
]

_ATTRIBUTE = "_fitted"
_busy: weakref.WeakSet[Module] = weakref.WeakSet()
_lock = threading.Lock()


@dataclasses.dataclass
class Fitted:
    """Metadata that training collects about the data.

    Attributes
    ----------
    classes : list or None
        Names by class id.
    target_kind : str
        "class", "multilabel", "float" or "none".
    link : str or None
        How outputs become probabilities: "softmax", "sigmoid", "exp" or None.
    transforms : list
        Fitted transforms that are part of the model: ``("standardize", {field: (mean, std)})``.
    fields : list of (name, dtype, shape)
        Of the inputs, shape without the batch.
    numbers : dict of str to float
        Values that ``hl.scalar``'s numbers had at the last step.
    loss : str
        Name of the loss; "training_step" where the model made it itself.
    columns : list of str or None
        Names of the input's columns, where it was a data frame.
    autotune_cache : str
        The GPU's autotune cache of this and earlier runs, one line per entry.
    """

    classes: list[Any] | None
    target_kind: str
    link: str | None
    transforms: list[Any]
    fields: list[tuple[str, str, tuple[int, ...]]]
    numbers: dict[str, float] = dataclasses.field(default_factory=dict)
    loss: str = "auto"
    columns: list[str] | None = None
    autotune_cache: str = ""


def check_model(what: str, model: Any, *, loaded: bool = False) -> Any:
    """The model, where it is one that can be trained or, with ``loaded``, that can be run.

    Raises
    ------
    ConfigError
    """
    from hotloop.nn.module import Module

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


def collect_metadata(data: DataModule, loss: Loss | None, runtime: Runtime) -> Fitted:
    """The metadata of a run, for :func:`set_metadata` once the model has its new weights."""
    split = data.split("train")
    assert split is not None  # training always has this split
    inputs = [field for field in split.fields if field.name.split(".")[0] == "x"]
    return Fitted(
        classes=list(data.classes) if data.classes is not None else None,
        target_kind=data.target_kind,
        link=loss.link if loss is not None else None,
        transforms=list(data.transforms),
        fields=[(f.name, f.dtype, tuple(f.array.shape[1:])) for f in inputs],
        numbers=runtime.last_numbers(),
        loss=loss.name if loss is not None else "training_step",
        columns=list(inputs[0].columns) if len(inputs) == 1 and inputs[0].columns else None,
        autotune_cache=runtime.device.autotune_cache(),
    )


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
