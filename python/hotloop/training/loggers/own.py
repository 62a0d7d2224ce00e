"""Loggers that are objects of the user's: by the method that they have."""

from __future__ import annotations

from typing import Any

from hotloop.training.loggers.record import Logger, Record

__all__ = ["Own"]


class Own(Logger):
    """An object with ``log_metrics(values, step)`` (Lightning's loggers), ``add_scalar(name, value,
    step)`` (a SummaryWriter) or ``log(values, step=)`` (a run of wandb or trackio). It stays open.

    Parameters
    ----------
    given : object
    """

    is_shared = True

    def __init__(self, given: Any) -> None:
        super().__init__()
        self._given = given
        self.name = type(given).__name__

    def log(self, record: Record) -> None:
        """Hands the values over, as numbers of the object's own."""
        given, values = self._given, dict(record.values)
        if hasattr(given, "log_metrics"):
            given.log_metrics(values, record.step)
        elif hasattr(given, "add_scalar"):
            for name, value in values.items():
                given.add_scalar(name, value, record.step)
        else:
            given.log(values, step=record.step)

    def end(self, *, failed: bool) -> None:
        """Has it write what it holds back."""
        if callable(flush := getattr(self._given, "flush", None)):
            flush()
