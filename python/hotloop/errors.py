"""The exceptions and warnings of hotloop.

Every error that hotloop raises on purpose is a :class:`HotloopError` and, at the same time, the
builtin exception a Python programmer would expect for it: a wrong value is also a ``ValueError``,
memory that ran out is also a ``MemoryError``. So ``except ValueError`` around existing code keeps
working, and ``except hotloop.HotloopError`` catches all of them. Messages have one form:
``<what>: <rule>, got <value>``, followed by the fix where there is one.

All of them can be pickled, so that they cross process boundaries with their text.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BusyError",
    "CheckpointError",
    "CheckpointWarning",
    "ConfigError",
    "DataError",
    "DataWarning",
    "DeviceError",
    "DeviceLostError",
    "HotloopError",
    "HotloopWarning",
    "ModelWarning",
    "NotFiniteError",
    "NotFiniteWarning",
    "OutOfMemoryError",
    "ShapeError",
    "TraceError",
    "TrainingInterrupted",
]


class HotloopError(Exception):
    """Base class of every error that hotloop raises on purpose."""


class ConfigError(HotloopError, ValueError):
    """A setting is unknown, out of its range, contradicts another one or is not supported."""


class ShapeError(HotloopError, ValueError):
    """Shapes do not fit each other; the text names the layer or op and both shapes."""


class DataError(HotloopError, ValueError):
    """The data cannot be used as given: labels out of range, NaN, lengths that differ, a bad file.

    The text names the row and column, or the file, and what is allowed there.
    """


class TraceError(HotloopError, TypeError):
    """A model's ``forward`` did something that a graph cannot express.

    The usual cause is Python control flow that depends on a tensor's value.
    """


class DeviceError(HotloopError, RuntimeError):
    """A device, driver or library is missing or refused a call; the text says what was tried."""


class DeviceLostError(DeviceError):
    """The device stopped answering; what it held is gone, the process can go on without it."""


class BusyError(HotloopError, RuntimeError):
    """The model is being trained by another thread, or by this one further out.

    Threads that predict or evaluate wait for each other and do not raise it.
    """


class OutOfMemoryError(HotloopError, RuntimeError, MemoryError):
    """Host or device memory did not suffice.

    The words "out of memory" always stand in its text: programs that search for them, as was long
    the only way with other frameworks, find them.
    """

    def __str__(self) -> str:
        text = super().__str__()
        if "out of memory" in text.lower():
            return text
        return f"out of memory: {text}" if text else "out of memory"


class CheckpointError(HotloopError, OSError):
    """A checkpoint or model file cannot be written, or is missing, truncated or altered."""


class NotFiniteError(HotloopError, ArithmeticError):
    """A loss, gradient or weight became NaN or infinite and the configuration asks to raise."""


class TrainingInterrupted(HotloopError, KeyboardInterrupt):
    """Training was stopped by Ctrl-C in a script; what it reached is in ``result``.

    Parameters
    ----------
    message : str
        What happened and where the checkpoint lies.
    result : TrainResult or None
        The result of training up to the interruption, usable as if training had returned it.

    Attributes
    ----------
    folds : CrossValidation or None
        Of :func:`hotloop.cross_validate`: the folds that were complete.
    """

    def __init__(self, message: str = "training was interrupted", result: Any = None) -> None:
        super().__init__(message)
        self.result = result
        self.folds: Any = None


class HotloopWarning(UserWarning):
    """Base class of hotloop's warnings, for ``warnings.filterwarnings``.

    They name the line of the user's program that called hotloop.
    """


class CheckpointWarning(HotloopWarning):
    """A file of a run is damaged or could not be written; training goes on without it."""


class DataWarning(HotloopWarning):
    """The data can be trained on, and probably means something else than it is taken for."""


class ModelWarning(HotloopWarning):
    """The model can be run, and part of it probably does not do what it is there for."""


class NotFiniteWarning(HotloopWarning):
    """Training ended because a loss or a gradient was not finite."""
