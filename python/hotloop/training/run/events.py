"""What callbacks are told, and when.

Each method has one argument, the run. A method that a callback does not have costs nothing: the
loop leaves the core after a step only where a callback wants to hear of steps.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
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

    def check_logged(self, monitored: Iterable[str], row: Collection[str], method: str) -> None:
        """Sees that the monitored values were logged, those of them that are a callback's.

        Parameters
        ----------
        monitored : iterable of str
            Their names.
        row : collection of str
            Names of what is to be judged.
        method : str
            In which they are logged.

        Raises
        ------
        ConfigError
            If not: nothing would say which weights are best.
        """
        for name in monitored:
            if name in self.logged and name not in row:
                raise ConfigError(
                    f"monitor: {name!r} is in log_names of a callback, which must log it in each "
                    f"{method}, got none; call run.log({name!r}, value) there"
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
    """What callbacks have logged of the epoch, by name; what of it is new is to be judged.

    Parameters
    ----------
    taken : collection of str
        Names of the run's own values, which stay.

    Attributes
    ----------
    new : set of str
        Those that were logged since :meth:`take`.
    """

    def __init__(self, taken: Collection[str]) -> None:
        super().__init__()
        self._taken = frozenset(taken)
        self.new: set[str] = set()

    def note(self, name: str, value: float) -> None:
        """Takes a value."""
        if name not in self._taken:
            self[name] = value
            self.new.add(name)

    def take(self) -> dict[str, float]:
        """Those that are new, which they are no longer."""
        found = {name: self[name] for name in self if name in self.new}
        self.new.clear()
        return found

    def state_dict(self) -> dict[str, Any]:
        """The values, as plain ones."""
        return {"values": dict(self), "new": sorted(self.new)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from those of a checkpoint."""
        self.update(state["values"])
        self.new.update(state["new"])


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
