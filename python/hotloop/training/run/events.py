"""What callbacks are told, and when.

Each method has one argument, the run. A method that a callback does not have costs nothing: the
loop leaves the core after a step only where a callback wants to hear of steps.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hotloop.base.rules import reject, whole
from hotloop.errors import ConfigError
from hotloop.training.plans.methods import STEP_METHOD

__all__ = ["Events", "LambdaCallback", "Logged"]


class Events:
    """The callbacks of one run.

    Parameters
    ----------
    callbacks : sequence
        Which were checked.

    Raises
    ------
    ConfigError
        If ``every_n_steps`` of one is no whole number from 1 on.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = callbacks
        self._of_steps = [
            (callback, self._spacing(callback))
            for callback in callbacks
            if hasattr(callback, STEP_METHOD)
        ]

    @staticmethod
    def _spacing(callback: Any) -> int:
        name = f"callbacks: {type(callback).__name__}.every_n_steps"
        found: int = whole(1)(name, getattr(callback, "every_n_steps", 1))
        return found

    @property
    def logged(self) -> list[str]:
        """Names of the values that callbacks say they log."""
        names: list[str] = []
        for callback in self._callbacks:
            found = getattr(callback, "log_names", ())
            if isinstance(found, str) or not all(isinstance(name, str) for name in found):
                reject(
                    f"callbacks: {type(callback).__name__}.log_names",
                    "must be a list or tuple of names",
                    found,
                )
            names += found
        return names

    def check_logged(self, monitored: str, row: Mapping[str, float]) -> None:
        """Sees that the monitored value was logged, where it is a callback's.

        Raises
        ------
        ConfigError
            If not: nothing would say which weights are best.
        """
        if monitored in self.logged and monitored not in row:
            raise ConfigError(
                f"monitor: {monitored!r} is in log_names of a callback, which must log it in each "
                f"on_validation_end, got none; call run.log({monitored!r}, value) there"
            )

    def having(self, method: str) -> list[Any]:
        """The callbacks that have a method."""
        return [callback for callback in self._callbacks if hasattr(callback, method)]

    def steps_until_due(self, steps: int) -> int:
        """Steps that may be run before a callback wants to hear of one."""
        return min((n - steps % n for _, n in self._of_steps), default=sys.maxsize)

    def due_after(self, steps: int) -> list[Any]:
        """The callbacks that want to hear of the step that has just ended.

        Parameters
        ----------
        steps : int
            That were attempted so far.
        """
        return [callback for callback, n in self._of_steps if steps and not steps % n]


class Logged(dict[str, float]):
    """What callbacks have logged of the epoch, by name.

    Attributes
    ----------
    own : set of str
        Those that are no values of the run, in the row that they were added to last.
    """

    def __init__(self) -> None:
        super().__init__()
        self.own: set[str] = set()

    def add_to(self, row: dict[str, float]) -> None:
        """Adds them to a row, where the values of the run stay."""
        self.own |= self.keys() - row.keys()
        row.update((name, value) for name, value in self.items() if name in self.own)


class LambdaCallback:
    """A callback of functions, each of which gets the run.

    Parameters
    ----------
    every_n_steps : int
        Steps from one call of ``on_train_batch_end`` to the next.
    **methods
        ``on_epoch_end=function`` and so on, by the names of :func:`hotloop.train`'s callbacks; and
        ``log_names``, what they log for ``monitor``.

    Examples
    --------
    >>> X, y = hl.load_digits()
    >>> seen = []
    >>> note = hl.LambdaCallback(on_epoch_end=lambda run: seen.append(run.epoch))
    >>> config = hl.TrainingConfig(max_epochs=2, enable_progress_bar=False)
    >>> _ = hl.train(nn.Linear(64, 10), (X, y), config, callbacks=[note])
    >>> seen
    [1, 2]
    """

    def __init__(self, *, every_n_steps: int = 1, **methods: Any) -> None:
        self.every_n_steps = every_n_steps
        for name, function in methods.items():
            setattr(self, name, function)

    def __repr__(self) -> str:
        return f"LambdaCallback({', '.join(name for name in vars(self) if name.startswith('on_'))})"
