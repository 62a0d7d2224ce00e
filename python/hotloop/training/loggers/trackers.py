"""The loggers "wandb", "mlflow" and "trackio": runs of experiment trackers.

By default nothing leaves the machine and nobody is asked: wandb's runs are offline unless
WANDB_MODE says otherwise, and mlflow and trackio have their own local stores unless their
environment variables name a server. A run of wandb or mlflow that the user has begun is used, and
left open. What an adapter cannot say (a project's name, tags) the tracker's own object can, which
is a logger too: ``logger=wandb.init(project="pets")``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hotloop.training.loggers.record import Logger, Record, Start

__all__ = ["Mlflow", "Trackio", "Wandb"]

_PROJECT = "hotloop"


class Wandb(Logger):
    """A run of Weights & Biases, offline by default: ``wandb sync`` uploads it."""

    name = "wandb"
    is_cut = False

    def begin(self, start: Start) -> None:
        """Begins a run, or takes the one that is there."""
        wandb = sys.modules["wandb"]
        self._run = wandb.run
        self.is_shared = self._run is not None
        if self.is_shared:
            return
        again = {"id": start.known["id"], "resume": "allow"} if start.known else {}
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=os.environ.get("WANDB_NAME", start.name),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=dict(start.config),
            settings={"console": "off"},  # what is shown stays as it is
            **again,
        )
        self.state = {"id": self._run.id}

    def log(self, record: Record) -> None:
        """Logs the values at their step."""
        self._run.log(dict(record.values), step=record.step)

    def end(self, *, failed: bool) -> None:
        """Finishes a run of its own."""
        if not self.is_shared:
            self._run.finish(exit_code=int(failed))


class Trackio(Logger):
    """A run of Trackio, in its local store by default."""

    name = "trackio"
    is_cut = False

    def begin(self, start: Start) -> None:
        """Begins a run, or goes on with that of before."""
        name = start.known.get("name", start.name)
        self._run = sys.modules["trackio"].init(
            project=os.environ.get("TRACKIO_PROJECT", _PROJECT),
            name=name,
            config=dict(start.config),
            resume="allow",
            embed=False,
        )
        self.state = {"name": name}

    def log(self, record: Record) -> None:
        """Logs the values at their step."""
        self._run.log(dict(record.values), step=record.step)

    def end(self, *, failed: bool) -> None:
        """Finishes the run."""
        self._run.finish()


class Mlflow(Logger):
    """A run of MLflow, in its local store by default."""

    name = "mlflow"
    is_cut = False
    _LONGEST = 500  # characters of a parameter, in every version

    def begin(self, start: Start) -> None:
        """Begins a run, or takes the one that is there."""
        self._mlflow = sys.modules["mlflow"]
        run = self._mlflow.active_run()
        self.is_shared = run is not None
        if not self.is_shared:
            again = {"run_id": start.known["id"]} if start.known else {"run_name": start.name}
            run = self._mlflow.start_run(**again)
            self.state = {"id": run.info.run_id}
        self._id = run.info.run_id
        # Parameters cannot be set twice.
        if not start.known and not (self.is_shared and start.fold > 1):
            self._mlflow.log_params({k: str(v)[: self._LONGEST] for k, v in _flat(start.config)})

    def log(self, record: Record) -> None:
        """Logs the values at their step, without the characters that names may not have there."""
        values = {re.sub(r"[^\w .:/-]", "_", k): float(v) for k, v in record.values.items()}
        self._mlflow.log_metrics(values, step=record.step, run_id=self._id)

    def end(self, *, failed: bool) -> None:
        """Ends a run of its own."""
        if not self.is_shared:
            self._mlflow.end_run("FAILED" if failed else "FINISHED")


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Items of nested dicts: ``optimizer.name``."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
