"""Methods that other trainers call on a model and hotloop does not.

A model that defines one expects it to be called; leaving it out without a word would train another
model than the one that was written.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from hotloop.errors import ConfigError

# Names of forward's second argument that say what it is, by data.padding.ROLES.
_SAYING = {
    "lengths": "lengths",
    "padding_mask": "padding_mask",
    "key_padding_mask": "padding_mask",
    "src_key_padding_mask": "padding_mask",
    "attention_mask": "attention_mask",
}

__all__ = ["CALLBACK_METHODS", "STEP_METHOD", "check_callbacks", "check_methods", "check_sequences"]

STEP_METHOD = "on_train_batch_end"
CALLBACK_METHODS = (
    "on_train_begin", "on_epoch_begin", STEP_METHOD, "on_validation_end", "on_epoch_end",
    "on_checkpoint", "on_exception", "on_train_end",
)  # fmt: skip

_CALLBACK = f"write an object with one of {', '.join(CALLBACK_METHODS)}, and callbacks=[it]"
_OPTIMIZER = "write TrainingConfig(optimizer=..., lr=..., param_groups=...)"
_SCHEDULER = "write TrainingConfig(scheduler=..., warmup=...)"
_DATA = "give hl.train a DataModule: DataModule.from_arrays(X, y, val=..., test=...)"
_BACKWARD = "the step differentiates the loss itself; write the loss in training_step"
_PLACE = "write what shall happen to a batch in forward or training_step"
_INSTEAD = {
    "train_step": "its name here is training_step(self, batch)",
    "validation_step": "validation takes the loss of training_step, or loss= and metrics=, in "
    "evaluation mode; write metrics=[...] for further values",
    "test_step": "write hl.evaluate(model, data, split='test')",
    "predict_step": "write hl.predict(model, X), which runs forward",
    "configure_optimizers": _OPTIMIZER,
    "optimizer_step": _OPTIMIZER,
    "optimizer_zero_grad": "gradients are cleared by the step itself; leave it out",
    "lr_scheduler_step": _SCHEDULER,
    "configure_gradient_clipping": "write gradient_clip_val= and gradient_clip_algorithm=",
    "backward": _BACKWARD,
    "manual_backward": _BACKWARD,
    "configure_callbacks": _CALLBACK,
    "training_step_end": _CALLBACK,
    "validation_step_end": _CALLBACK,
    "test_step_end": _CALLBACK,
    "training_epoch_end": _CALLBACK,
    "validation_epoch_end": _CALLBACK,
    "test_epoch_end": _CALLBACK,
    "prepare_data": _DATA,
    "train_dataloader": _DATA,
    "val_dataloader": _DATA,
    "test_dataloader": _DATA,
    "predict_dataloader": _DATA,
    "toggle_optimizer": _OPTIMIZER,
    "untoggle_optimizer": _OPTIMIZER,
    "setup": "write it in __init__; " + _DATA,
    "teardown": "write it after hl.train(...)",
    "configure_model": "write it in __init__",
    "configure_sharded_model": "write it in __init__",
    "transfer_batch_to_device": _PLACE,
    "on_before_batch_transfer": _PLACE,
    "on_after_batch_transfer": _PLACE,
}


_OF_A_STAGE = ("setup", "teardown")  # Lightning's take the stage; others are the model's own


def _methods(owner: Any) -> dict[str, Any]:
    """The methods that a user's class or object defines, by name; parts of a model are none."""
    classes = [cls for cls in type(owner).__mro__ if not cls.__module__.startswith("hotloop.")]
    found: dict[str, Any] = {}
    for defined in (*(vars(cls) for cls in reversed(classes)), getattr(owner, "__dict__", {})):
        found.update((name, value) for name, value in defined.items() if _is_method(value))
    return found


def _is_method(value: Any) -> bool:
    return callable(value) or isinstance(value, staticmethod | classmethod)


def _events(owner: Any) -> list[str]:
    """Names of the methods ``on_...`` that an object has."""
    return [name for name in _methods(owner) if name.startswith("on_")]


def _is_foreign(name: str, method: Any) -> bool:
    """Whether a method is one that another trainer calls."""
    if name not in _OF_A_STAGE:
        return name in _INSTEAD
    return "stage" in inspect.signature(getattr(method, "__func__", method)).parameters


def check_methods(model: Any, callbacks: Sequence[Any]) -> None:
    """Refuses a model that defines what nothing here calls, in itself or in a part.

    Parameters
    ----------
    model : Module
    callbacks : sequence
        The run's; a model among them is called as one.

    Raises
    ------
    ConfigError
        Names the method and what to write in its place.
    """
    for module in model.modules():
        defined = [name for name, method in _methods(module).items() if _is_foreign(name, method)]
        if not any(callback is module for callback in callbacks):
            defined += _events(module)
        if defined:
            name = defined[0]
            raise ConfigError(
                f"{type(module).__name__}.{name}: a model's forward and training_step alone are "
                f"used, and {name} is not called; {_INSTEAD.get(name, _CALLBACK)}"
            )


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Refuses callbacks without a method that is called, with one that is not, or one that takes
    something else than the run.

    Raises
    ------
    ConfigError
    """
    known = ", ".join(CALLBACK_METHODS)
    for callback in callbacks:
        if not any(hasattr(callback, name) for name in CALLBACK_METHODS):
            raise ConfigError(
                f"callbacks: must have one of the methods {known}, got {callback!r}; write a class "
                "with on_epoch_end(self, run)"
            )
        for name in _events(callback):
            if name not in CALLBACK_METHODS:
                raise ConfigError(
                    f"callbacks: {type(callback).__name__}.{name}: is not called; of a callback's "
                    f"methods {known} are: write it there, with run.history and run.model"
                )
            _check_arguments(callback, name)


def _check_arguments(callback: Any, name: str) -> None:
    """Refuses a method that is not ``name(self, run)``, before it is called after an epoch."""
    try:
        signature = inspect.signature(getattr(callback, name))
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(None)
    except TypeError:
        raise ConfigError(
            f"callbacks: {type(callback).__name__}.{name}: must be {name}(self, run), got the "
            f"arguments {signature}; run.epoch, run.history and run.model say what others are given"
        ) from None


def check_sequences(model: Any, role: str) -> None:
    """Refuses a forward that does not take what data of padded sequences gives it.

    Parameters
    ----------
    model : Module
    role : str
        How its second argument says which rows are padding.

    Raises
    ------
    ConfigError
    """
    signature = inspect.signature(model.forward)
    try:
        bound = signature.bind(None, None)
    except TypeError:
        raise ConfigError(
            f"{type(model).__name__}.forward: data of from_sequences gives it the sequences and "
            f"their {role}, got a forward of other arguments; write def forward(self, x, {role})"
        ) from None
    name = list(bound.arguments)[-1]
    wanted = _SAYING.get(name, role)
    if wanted != role:
        raise ConfigError(
            f"lengths_as: {type(model).__name__}.forward takes {name}, got lengths_as={role!r}; "
            f"write lengths_as={wanted!r} where the data is made"
        )
