"""What of a step was not finite, and which node made it so.

A step that was not applied has changed nothing, so it can be run a second time: on the same weights
and rows, and, by the number of the attempted step, with the same random numbers. The second run is
node by node, in plans without fusion, and the core looks through what each node gives
(``csrc/plan/finite.h``). All it has changed is put back. With ``detect_anomaly`` each step is run
so before it is run as planned, so that training has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hotloop import _core
from hotloop.errors import DeviceLostError, HotloopError, NotFiniteError
from hotloop.training.plans.limit import check_by_node

if TYPE_CHECKING:
    from hotloop.data.batching import Group
    from hotloop.data.module import DataModule
    from hotloop.training.config import TrainingConfig
    from hotloop.training.plans.runtime import Runtime

__all__ = ["Anomalies", "Found", "end_error", "explain", "tell"]

Found: TypeAlias = "dict[str, Any] | None"  # as Runner.check has it

_WHAT = {"loss": "the loss", "norm": "the norm of the gradients", "value": "a value"}


# ---- sentences


def end_error(text: str | None, steps: int) -> NotFiniteError:
    """The error of a run that such a step ended, where one is asked for.

    Parameters
    ----------
    text : str or None
        What is known of it.
    steps : int
        That were applied.
    """
    found = text or f"the loss or a gradient was not finite at step {steps + 1}"
    return NotFiniteError(
        f"train: {found}; the model has the last finite weights. Lower lr, clip gradients or look "
        "for bad data"
    )


def _named(node: dict[str, Any]) -> str:
    where = f" of {node['scope']}" if node["scope"] else ""
    part = "optimizer step" if node["is_update"] else "forward"
    if node["gradient_of"]:
        part = f"backward, gradient of {node['gradient_of']}"
    return f"{node['op']}{where} ({part})"


def _counted(value: dict[str, Any]) -> str:
    """``3 NaN and 1 infinity among 640 values of shape (64, 10)``."""
    n_nan, n_infinite = value["n_nan"], value["n_infinite"]
    held = [f"{n_nan:,} NaN"] if n_nan else []
    if n_infinite:
        held.append(f"{n_infinite:,} {'infinity' if n_infinite == 1 else 'infinities'}")
    size = int(np.prod(value["shape"]))
    if size == 1:
        return " and ".join(held)
    return f"{' and '.join(held)} among {size:,} values of shape {value['shape']}"


def _at(value: dict[str, Any]) -> str:
    if int(np.prod(value["shape"])) == 1:
        return ""
    index = ", ".join(str(int(i)) for i in np.unravel_index(value["first"], value["shape"]))
    return f", the first at [{index}]"


def _in_batch(value: dict[str, Any]) -> str:
    row, *column = (int(i) for i in np.unravel_index(value["first"], value["shape"]))
    where = f"row {row}"
    if value["row"] >= 0:
        where += f" of the batch, row {value['row']} of the data"
    if column:
        where += f", column {column[0]}" if len(column) == 1 else f", element {column}"
    return f"the batch's {value['name']} has {_counted(value)}, the first in {where}"


def _origin(value: dict[str, Any]) -> str:
    """Where it began."""
    kind = value["kind"]
    if kind == "batch":
        return _in_batch(value)
    if kind == "constant":
        return f"a constant has {_counted(value)}{_at(value)}"
    if kind != "result":
        what = {"parameter": "parameter ", "scalar": "number "}.get(kind, "")
        return f"{what}{value['name']} had {_counted(value)} before the step{_at(value)}"
    operands = "finite operands"
    if value["reads_infinity"]:
        operands = "operands that are infinite in places"
    return f"{_named(value)} made {_counted(value)}{_at(value)}, from {operands}"


def tell(found: dict[str, Any], step: int, names: Sequence[str], k: int = 1) -> str:
    """What of a step was not finite, and where it began, in a sentence.

    Parameters
    ----------
    found : dict
        As ``Runner.check`` gives it.
    step : int
        The optimizer step, from 1.
    names : sequence of str
        Of the trained parameters.
    k : int
        Micro-batches of a step.
    """
    what = found["what"]
    subject = _WHAT.get(what) or f"the gradient of {names[found['param']]}"
    micro = f", micro-batch {found['micro'] + 1} of {k}" if k > 1 and what != "norm" else ""
    text = f"{subject} was not finite at step {step}{micro}: {_origin(found['first'])}"
    if found["nan"] is not None:
        text += f"; {_named(found['nan'])} made {_counted(found['nan'])} of it"
    return text


def explain(
    runtime: Runtime,
    step: int,
    by_node: Callable[[], Found],
    as_planned: Callable[[], Found],
    k: int = 1,
) -> str:
    """Looks for what was not finite in a step that was not applied; a sentence in any case.

    Parameters
    ----------
    runtime : Runtime
    step : int
        The optimizer step that it would have been, from 1.
    by_node, as_planned : callable
        Check that step, in plans without fusion and in those that were run.
    k : int
        Micro-batches of a step.
    """
    names = [slot.name for slot in runtime.layout.trainable]
    try:
        if (found := by_node()) is not None:
            return tell(found, step, names, k)
        if (found := as_planned()) is not None:
            return f"{tell(found, step, names, k)}; it was finite when run node by node"
    except DeviceLostError:
        raise
    except HotloopError as error:  # such as too little memory: the step's own end counts
        return (
            f"the loss or a gradient was not finite at step {step}; looking for where it began "
            f"failed: {error}"
        )
    return (
        f"the loss or a gradient was not finite at step {step}, and finite when the step was run "
        "again: the data or the device gave other values than before"
    )


# ---- training


class Anomalies:
    """Looks into steps of ``train``: those that were not finite, or each of them.

    Parameters
    ----------
    runtime : Runtime
    config : TrainingConfig
        Its ``on_nan`` and ``detect_anomaly``.
    runner : Runner
        That trains.
    k : int
        Micro-batches of a step.

    Attributes
    ----------
    is_on : bool
        Whether each step is looked into.
    k : int
    text : str or None
        Of the first step that was not finite.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: TrainingConfig,
        runner: _core.Runner,
        k: int,
    ) -> None:
        self._runtime = runtime
        self._skips = config.on_nan == "skip"
        self.is_on = config.detect_anomaly
        self._runner = runner
        self.k = k
        self._by_node: _core.Runner | None = None  # kept where each step is looked into
        self._before = 0  # attempted steps of the model before this training's first
        self._epoch, self._first, self._order = 0, 0, [(0, 0)]
        self.text: str | None = None

    def set_plans(
        self, data: DataModule, groups: list[Group], graphs: list[_core.Graph], *, training: bool
    ) -> None:
        """Notes what the runner's plans are made of, to make them again node by node.

        Parameters
        ----------
        data : DataModule
        groups : list of Group
            Of batches, one for each plan.
        graphs : list of Graph
        training : bool
            As for the data's feeds.
        """
        self._made_of = data, groups, graphs, training

    @property
    def _n_slots(self) -> int:
        """One batch at a time is wanted, and none ahead of it."""
        return 2 if self._runtime.has_own_memory else 1

    def _plan_by_node(self) -> list[tuple[_core.Plan, int]]:
        """The runner's plans once more, each with its number of batches."""
        data, groups, graphs, training = self._made_of
        split = data.split("train")
        assert split is not None  # it is trained on
        feeds = data.feeds("train", groups, training=training, n_slots=self._n_slots, n_threads=0)
        return [
            (self._runtime.plan(graph, split.parts[i], feed, k=self.k, by_node=True), count)
            for (_, count, i), graph, feed in zip(groups, graphs, feeds, strict=True)
        ]

    def reserve(self) -> None:
        """Makes what looking into each step takes, by looking into the first one."""
        if not self.is_on:
            return
        self._by_node = self._runtime.runner(self._plan_by_node(), self.k)
        self._by_node.seek(0)
        self._by_node.check(1)

    def go_on(self, text: str | None) -> None:
        """A run is resumed, of which this is known: where steps are skipped, it is the first."""
        self.text = text if self._skips else None

    def begin(self, attempted: int) -> None:
        """Training begins. Until one step has been looked into, a step that is to be skipped stops
        the run, while the weights are those that it had.

        Parameters
        ----------
        attempted : int
            Steps of this training so far.
        """
        session = self._runtime.session
        if self._skips and self.text is None:
            session.control_set(nan_mode="stop")
        self._before = int(session.control()["attempted"]) - attempted

    def begin_epoch(
        self, epoch: int, order: list[tuple[int, int]], attempted: int, batches: int
    ) -> None:
        """The runner stands at the beginning of an epoch, or where it is resumed.

        Parameters
        ----------
        epoch : int
        order : list of (int, int)
            Of its batches, as the runner has it.
        attempted : int
            Steps of this training so far, skipped ones too.
        batches : int
            Of the epoch that they have taken.
        """
        self._epoch, self._order = epoch, order
        self._first = self._before + attempted - -(-batches // self.k)
        if self._by_node is not None:
            self._by_node.seek(epoch, 0, order)

    def look_ahead(self, batch: int) -> bool:
        """Whether the step that begins with this batch, and is next, has an anomaly.

        Parameters
        ----------
        batch : int
            Of the epoch.
        """
        assert self._by_node is not None  # after reserve
        control = self._runtime.session.control()
        self._by_node.seek(self._epoch, batch)
        found = self._by_node.check(control["attempted"] + 1, True)
        if found is not None:
            names = [slot.name for slot in self._runtime.layout.trainable]
            self.text = tell(found, control["applied"] + 1, names, self.k)
        return found is not None

    def explain(self, *, is_hurried: bool) -> int | None:
        """Looks into the step that stopped the run.

        Parameters
        ----------
        is_hurried : bool
            Whether training is to end as soon as it can: then nothing is looked for.

        Returns
        -------
        int or None
            Where such steps are skipped, the batch of the epoch with which training goes on.
        """
        session = self._runtime.session
        control = session.control()
        step = int(control["stopped_at"])
        batch = (step - self._first - 1) * self.k
        if not is_hurried:
            self.text = explain(
                self._runtime,
                control["applied"] + 1,
                lambda: self._check_by_node(step, batch),
                lambda: self._check(self._runner, step, batch),
                self.k,
            )
        if not self._skips or control["nan_mode"] == "skip":  # so many in a row end the run
            return None
        session.control_set(nan_mode="skip", stopped=0)
        behind = min(batch + self.k, sum(n for _, n in self._order))
        self._runner.seek(self._epoch, behind)
        return behind

    def _check(self, runner: _core.Runner, step: int, batch: int) -> Found:
        runner.seek(self._epoch, batch, self._order)
        return runner.check(step)

    def _check_by_node(self, step: int, batch: int) -> Found:
        """In plans that are given back."""
        check_by_node(self._runtime, self._made_of[2], k=self.k, n_slots=self._n_slots)
        plans = self._plan_by_node()
        runner = _core.Runner(plans, self.k)
        try:
            return self._check(runner, step, batch)
        finally:
            runner.close()
            for plan, _ in plans:
                self._runtime.drop(plan)
