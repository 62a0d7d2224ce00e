"""Metadata of a trained model: class names, link, transforms; and which thread is using it.

The metadata lies on the module itself, so that copies and pickles of a model keep it, and
``predict`` and ``save`` need nothing but the model.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import os
import pickle
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from hotloop.base.messages import counted, warn
from hotloop.base.rules import show
from hotloop.data.frames.columns import is_table, read_frame
from hotloop.data.frames.encoding import Encoding
from hotloop.errors import (
    BusyError,
    ConfigError,
    DataWarning,
    HotloopError,
    ModelWarning,
    ShapeError,
)
from hotloop.nn.module import Module
from hotloop.nn.state import METADATA
from hotloop.stats.node import StatisticalNode
from hotloop.training.config import TrainingConfig
from hotloop.training.plans.wavelengths import FIELD, check_wavelengths

__all__ = [
    "Fitted",
    "FittedTarget",
    "PredictOnly",
    "check_kept",
    "check_model",
    "check_nodes",
    "exclusive",
    "fitted_of",
    "set_metadata",
    "uses_batch_statistics",
    "warn_of_untrained_norms",
]


class FittedTarget(NamedTuple):
    """What training has found of one target; see :class:`Fitted`."""

    classes: list[Any] | None
    kind: str
    link: str | None
    class_axis: int | None

    def check_outputs(self, shape: tuple[int, ...]) -> None:
        """Refuses outputs that training cannot have left: too few for its classes, or several where
        the loss takes one. More than the classes that it had may be spare.

        Raises
        ------
        ShapeError
        """
        if self.kind != "class" or self.class_axis is None or len(shape) < 2:
            return
        n = shape[self.class_axis]
        if n > 1 if self._takes_one else n < len(self.classes or ()):
            self.refuse_outputs(n)

    def refuse_outputs(self, n: int) -> NoReturn:
        """Raises the error of outputs that are not those of the classes."""
        names = f" {len(self.classes)} classes {show(self.classes)}" if self.classes else " classes"
        wanted = "one output for" if self._takes_one else "an output for each of"
        raise ShapeError(
            f"predict: labels=True and proba=True need {wanted} the{names} of training, got "
            f"{counted(n, 'output')}; train the model with its new last layer, or use the outputs "
            "that predict(model, X) gives"
        )

    @property
    def _takes_one(self) -> bool:
        """Whether the loss takes one output for two classes."""
        return self.link in ("sigmoid", "identity")


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
    pixels : dict of str to bool
        Of the inputs by name, whether they were uint8, whose values a model may expect otherwise
        than those of floats; empty in older files.
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
    scoring : dict
        What files and such pickles have of it, by ``scoring_of`` (training.scoring.saved).
    padding : (str, float, bool) or None
        Of sequences of several lengths: how the second input says which rows of the first are
        padding, what stands there, and whether each row has a target.
    encoding : Encoding or None
        Of a table: what becomes of its columns.
    wavelengths : list of float or None
        Of the channels that statistical nodes were fitted to, in nanometres.
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
    scoring: dict[str, Any] = dataclasses.field(default_factory=dict)
    pixels: dict[str, bool] = dataclasses.field(default_factory=dict)
    padding: tuple[str, float, bool] | None = None
    encoding: Encoding | None = None
    wavelengths: list[float] | None = None

    def encode(self, what: str, table: Any) -> Any:
        """What forward takes of a table's rows; None where training had no table, or it is none.

        Parameters
        ----------
        what : str
            Who asks, for messages.
        table : Any
            A data frame or a dict of its columns.
        """
        if self.encoding is None or not (isinstance(table, Mapping) or is_table(table)):
            return None
        given = {str(name) for name in table} if isinstance(table, Mapping) else set()
        inputs = {name.partition(".")[2] for name, _, _ in self.fields}
        if given and not set(self.encoding.names) <= given and inputs <= given:
            return None  # it is what forward takes
        frame = read_frame(table, f"{what}: X", takes_dict=True)
        return self.encoding.apply(frame, f"{what}: X")

    def check_encoding(self, what: str, encoding: Encoding | None) -> None:
        """Refuses data whose columns were encoded by rows of its own.

        Raises
        ------
        ConfigError
        """
        if self.encoding is not None and encoding is not None and encoding != self.encoding:
            table = "(frame, y)" if what == "evaluate" else "frame"
            raise ConfigError(
                f"{what}: the model's table was encoded by its training rows, got data encoded by "
                f"other rows; write {what}(model, {table}), or give the table as val= or test= "
                "where the training data is made"
            )

    def check_input(self, what: str, name: str, array: Any) -> None:
        """Warns where an input is uint8 and that of training was not, or the other way round, and
        refuses cubes of other wavelengths.

        Parameters
        ----------
        what : str
            Who asks, for messages.
        name : str
            Of the input's field.
        array : ndarray

        Raises
        ------
        DataError
        """
        if name == FIELD and self.wavelengths is not None:
            check_wavelengths(what, self.wavelengths, array)
        is_pixels = array.dtype == np.uint8
        if self.pixels.get(name, is_pixels) == is_pixels or array.dtype.kind not in "uf":
            return
        if is_pixels:
            had, got = "not uint8", "uint8, whose values 0 to 255 the model takes as they are"
            fix = "scale them as in training, X.astype(np.float32) / 255"
        elif not array.size or array.max() > 1:
            return  # they may be pixels, made floats
        else:
            had, got = "uint8", f"{array.dtype} of at most 1"
            fix = "give the values 0 to 255 that training had"
        warn(f"{what}: {name} was {had} in training, got {got}; {fix}", DataWarning)

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


class PredictOnly(abc.ABC):
    """Base class of models that predict and cannot be trained."""

    @abc.abstractmethod
    def run(self, inputs: list[Any], spec: Any, path: str | None) -> Any:
        """forward on one batch, as :class:`hotloop.training.predictor.Predictor` runs a module."""


def check_kept(what: str, result: Any) -> None:
    """Refuses a TrainResult whose model was dropped.

    Raises
    ------
    ConfigError
    """
    if hasattr(type(result), "drop_model") and result.model is None:
        raise ConfigError(
            f"{what}: a result must have its model, got one of cross_validate whose model was "
            "dropped; write cross_validate(..., keep_models=True)"
        )


def check_model(what: str, model: Any, *, loaded: bool = False) -> Any:
    """The model, where it is one that can be trained or, with ``loaded``, that can be run.

    Parameters
    ----------
    what : str
        Who asks, for messages.
    model : Module, TrainResult or PredictOnly
        A result stands for its model, with ``loaded``.
    loaded : bool
        Whether the model need only predict.

    Raises
    ------
    ConfigError
    """
    if isinstance(model, Module) or (loaded and isinstance(model, PredictOnly)):
        return model
    inner = getattr(model, "model", None) if loaded else None  # of a module it would be a part
    if isinstance(inner, Module | PredictOnly):
        return inner
    check_kept(what, model)
    got, fix = type(model).__name__, f"write {what}(model, data)"
    if isinstance(model, type):
        got, fix = f"the class {model.__name__}", f"write {model.__name__}(...) to make a model"
    elif isinstance(getattr(model, "model", None), Module):
        fix = f"write {what}(result.model, data)"
    elif hasattr(model, "state_dict"):
        fix = "build the module and load_state_dict the values"
    raise ConfigError(f"{what}: model must be a hotloop.nn.Module, got {got}; {fix}")


def check_nodes(what: str, model: Any) -> None:
    """Refuses a model with statistical nodes that are not fitted.

    Raises
    ------
    HotloopError
        With their names; ``what`` says who asks.
    """
    if not isinstance(model, Module):
        return
    left = [
        name or type(module).__name__
        for name, module in model.named_modules()
        if isinstance(module, StatisticalNode) and not module.is_fitted
    ]
    if left:
        raise HotloopError(
            f"{what}: {', '.join(left[:6])} must be fitted first; train the model, "
            "hl.train(model, data, max_epochs=0) fits alone"
        )


def fitted_of(model: Module) -> Fitted | None:
    """The model's metadata, or None when it was not trained."""
    fitted: Fitted | None = model.__dict__.get(METADATA)
    return fitted


def set_metadata(model: Module, fitted: Fitted | None) -> None:
    """Attaches its metadata to the model; None: it has none."""
    model.__dict__[METADATA] = fitted


# ---- one thread at a time


class _User:
    """A thread that trains or runs a model, or waits for that; its thread's identifier."""

    def __init__(self, *, trains: bool) -> None:
        self.thread = threading.get_ident()
        self.trains = trains


# Of each model: who uses it, then who waits, in the order in which they came. Without an order, a
# thread that predicts again and again would leave the others waiting.
_queues: weakref.WeakKeyDictionary[Any, list[_User]] = weakref.WeakKeyDictionary()
_lock = threading.RLock()  # of the queues; one that a finalizer may take again
_changed = threading.Condition(_lock)


def _forget_other_threads() -> None:
    """In a forked child, which has the thread that forked and no other."""
    global _lock, _changed
    _lock = threading.RLock()
    _changed = threading.Condition(_lock)
    for queue in _queues.values():
        queue[:] = [user for user in queue if user.thread == threading.get_ident()]


os.register_at_fork(after_in_child=_forget_other_threads)


@contextlib.contextmanager
def exclusive(model: Any, what: str, *, trains: bool = False) -> Iterator[None]:
    """Lets one thread at a time train or run a model; the others wait, but not for a training.

    Parameters
    ----------
    model : Module or PredictOnly
    what : str
        Who asks, for messages.
    trains : bool
        Whether it takes as long as a training does, so that others are told instead of waiting.

    Raises
    ------
    BusyError
        If another thread trains the model, or this one is using it already.
    """
    mine = _User(trains=trains)
    with _lock:
        queue = _queues.setdefault(model, [])
    try:
        with _lock:
            queue.append(mine)
            while (first := queue[0]) is not mine:
                if first.thread == mine.thread:
                    doing = "trained" if first.trains else "run"
                    raise BusyError(
                        f"{what}: this model is being {doing} by this thread, which asks from "
                        "within; do it afterwards, or use copy.deepcopy(model)"
                    )
                if first.trains:
                    raise BusyError(
                        f"{what}: this model is being trained by another thread; wait until that "
                        "returns, or use copy.deepcopy(model)"
                    )
                _changed.wait(1.0)  # a Ctrl-C below may have come before the notification
        yield
    finally:
        # Ctrl-C comes between calls of Python functions: here is none before the end of the use.
        with _lock:
            if mine in queue:
                queue.remove(mine)
            _changed.notify_all()


# ---- norms


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
