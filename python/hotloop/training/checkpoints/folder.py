"""The folder of a run: ``<output_dir>/<number>``, each run's own.

    runs/3/config.toml         the configuration, as resolved when the run began
    runs/3/environment.json    versions, machine, device
    runs/3/metrics.csv         the history, a row per epoch
    runs/3/steps.csv           losses and rates of steps; other loggers' files beside them
    runs/3/checkpoints/        step-000001200.safetensors, best-epoch7-val_loss0.1234.safetensors

A run that asked for output, by ``output_dir``, ``logger`` or ``save_every``, has its folder before
the first epoch. Any other has one once it has taken a minute: short runs, of which a notebook makes
hundreds, leave nothing behind. A run that is continued goes on in the folder that it had.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hotloop import _core
from hotloop.base.environment import describe_environment
from hotloop.errors import BusyError, CheckpointError
from hotloop.training.config.schema import listed_loggers

if TYPE_CHECKING:
    from hotloop.training.config import TrainingConfig

__all__ = ["DIRECTORY", "RunFolder"]

UNASKED_AFTER = 60.0  # seconds of a run that did not ask for output
DIRECTORY = "runs"  # where none is asked for
_WRITERS = ("csv", "jsonl", "tensorboard")  # loggers with files in the folder


class RunFolder:
    """The folder of one run, which is made when something is to be written and may be.

    Parameters
    ----------
    config : TrainingConfig
    began : float
        When ``train`` was called, by ``time.perf_counter``.
    say : callable
        Shows a line, where the folder is or that the disk refuses it; an attribute as well.
    device : str
        What it runs on, for ``environment.json``.
    continued : str, optional
        The folder of the run that is continued.
    is_quiet : bool
        Whether only warnings are to be shown.

    Attributes
    ----------
    path : str or None
        Absolute; None before there is one and after the disk refused it.
    """

    def __init__(
        self,
        config: TrainingConfig,
        began: float,
        say: Callable[[str], None],
        *,
        device: str,
        continued: str | None = None,
        is_quiet: bool = False,
    ) -> None:
        self._config, self._began, self._device = config, began, device
        self.say, self._is_quiet = say, is_quiet
        self._shown = DIRECTORY if config.output_dir is None else config.output_dir
        parent = self._shown if continued is None else os.path.dirname(continued)
        self._parent = os.path.abspath(parent)
        self._continued = continued
        self._lock: int | None = None
        self._is_refused = False
        self.is_asked = (
            config.output_dir is not None
            or any(name in _WRITERS for name in listed_loggers(config.logger) if type(name) is str)
            or config.save_every is not None
            or continued is not None
        )
        self.path: str | None = None

    def describe(self) -> str:
        """Where it is or will be, for the header."""
        return self._shown if self.path is not None else f"in {self._shown} after a minute"

    @property
    def parent(self) -> str:
        """The folder that it is made in."""
        return self._parent

    @property
    def continued(self) -> str | None:
        """That of the run that is continued, where it goes on there."""
        return self._continued

    @property
    def is_refused(self) -> bool:
        """Whether the disk refused it, so that nothing will be written."""
        return self._is_refused

    def open(self, *, announce: bool = True, before_training: bool = False) -> str | None:
        """Its path where something may be written, else None.

        Raises
        ------
        BusyError
            If another process trains in the folder of the run that is continued.
        CheckpointError
            Before training, if output was asked for and the folder cannot be used; later that is
            said, and training goes on.
        """
        if self.path is not None or self._is_refused:
            return self.path
        if not self.is_asked and time.perf_counter() < self._began + UNASKED_AFTER:
            return None
        try:
            self.path = self._take() if self._continued is not None else self._make()
            self._hold(self.path)
            self._write("config.toml", self._config.to_toml(strict=False))
            facts = describe_environment(self._device)
            facts["began"] = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            self._write("environment.json", json.dumps(facts, indent=1) + "\n")
        except BusyError:
            raise
        except (OSError, CheckpointError) as error:
            if before_training and self.is_asked:
                raise CheckpointError(
                    f"output_dir: {self._shown!r} cannot be used: {error}; write another "
                    "output_dir, or enable_checkpointing=False"
                ) from error
            self.refuse(f"nothing is written, {self._shown!r} cannot be used: {error}")
            return None
        if announce and not self._is_quiet:
            self.say(f"hotloop: output goes to {self._shown}")
        return self.path

    def _take(self) -> str:
        assert self._continued is not None
        self._shown = os.path.relpath(self._continued)
        return self._continued

    def _make(self) -> str:
        """A folder under the next free number."""
        os.makedirs(self._parent, exist_ok=True)
        taken = [int(name) for name in os.listdir(self._parent) if name.isdecimal()]
        number = max(taken, default=0) + 1
        while True:
            path = os.path.join(self._parent, str(number))
            try:
                os.mkdir(path)
            except FileExistsError:  # another process took it
                number += 1
            else:
                self._shown = os.path.join(self._shown, str(number))
                return path

    def _hold(self, path: str) -> None:
        """Keeps other processes from continuing the run while this one goes on with it."""
        self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise BusyError(
                f"resume: another process or call trains in {path}; wait for its end, or write "
                "another output_dir and continue from a checkpoint by its path"
            ) from None
        except OSError:  # a file system without locks
            self.close()

    def _write(self, name: str, text: str) -> None:
        assert self.path is not None
        _core.write_file(os.path.join(self.path, name), [text.encode()])

    def refuse(self, text: str) -> None:
        """Says once that nothing more is written, which never ends training."""
        self.say(f"hotloop: warning: {text}")
        self.path, self._is_refused = None, True
        self.close()

    def close(self) -> None:
        """Lets other processes continue the run."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # of a child, which has the file too
            os.close(self._lock)
            self._lock = None
