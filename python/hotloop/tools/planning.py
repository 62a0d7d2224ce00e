"""``plan``: what a training step or a prediction will do, before anything runs.

The plans shown are those that ``train`` and ``predict`` make, predicted in the same way. Nothing is
run and no memory of the device is taken, but to find a precision by measuring (``"auto"`` on a
device that multiplies 16-bit numbers).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hotloop.base.messages import format_bytes, format_count
from hotloop.tools.runfile import read_run

if TYPE_CHECKING:
    from hotloop.nn.module import Module
    from hotloop.training.config import TrainingConfig

__all__ = ["PlanReport", "plan", "plan_demo", "plan_file"]


class PlanReport:
    """A plan as numbers and as text; printing it gives a summary of three lines.

    Attributes
    ----------
    info : dict
        Bytes of arena, slots, constants and stores; numbers of nodes, instructions, kernels, chains
        and regions; the floating-point operations of a step. Where a GPU runs weight gradients
        beside the rest of the backward pass, ``n_path_kernels`` of the kernels and ``path_flops``
        of the operations wait for one another.
    device : str
        Where it would run.
    text : str
        Every instruction: regions, chains, kernels, shapes, dtypes and offsets.
    """

    def __init__(self, info: dict[str, Any], text: str, device: str) -> None:
        self.info = info
        self.device = device
        self.text = text

    def __str__(self) -> str:
        info = self.info
        flops = f"{format_count(float(info['flops']))}flop in " if info["flops"] else ""
        return (
            f"on {self.device}\n"
            f"memory: {format_bytes(info['arena_bytes'])} activations and scratch, "
            f"{format_bytes(info['store_bytes'])} parameters and state, "
            f"{format_bytes(info['slot_bytes'])} batch\n"
            f"work: {flops}{info['n_instructions']} instructions (.text lists them), "
            f"{info['n_chains']} chains, {info['n_regions']} regions"
        )

    __repr__ = __str__


def plan(
    model: Module,
    datamodule: Any,
    training_config: TrainingConfig | None = None,
    **overrides: Any,
) -> PlanReport:
    """The plan of a full batch's training step; nothing is run, and no memory of a device taken.

    Parameters
    ----------
    model : Module
        Left as it is.
    datamodule, training_config, **overrides
        As for :func:`hotloop.train`.

    Returns
    -------
    PlanReport
        Memory and work; its ``text`` lists every instruction.

    Raises
    ------
    ConfigError, ShapeError, DataError, TraceError
        As ``train`` would.

    Examples
    --------
    >>> X, y = hl.load_digits()
    >>> report = hl.plan(nn.Linear(64, 10), (X, y), precision="32-true")
    >>> report.info["store_bytes"] > 3 * 4 * 650  # weights and Adam's two moments of each
    True
    """
    from hotloop.data.shorthand import as_datamodule
    from hotloop.training.config import TrainingConfig
    from hotloop.training.plans.fitted import check_model, exclusive
    from hotloop.training.run.planner import Planner

    model = check_model("plan", model)
    config = TrainingConfig.resolve(training_config, overrides)
    config.check_supported()
    with exclusive(model, "plan"):
        planner = Planner(model, as_datamodule(datamodule), config)
        try:
            predicted = planner.predict()
            return PlanReport(predicted, predicted.pop("text"), planner.device.name)
        finally:
            planner.close()


def plan_demo() -> PlanReport:
    """The plan of the step that ``hotloop demo`` trains with."""
    from hotloop.tools.demo import demo_parts

    return plan(*demo_parts())


def plan_file(path: str | os.PathLike[str], batch: int = 256) -> PlanReport:
    """The plan by which a saved model predicts, or of the step that a run.toml trains with.

    Parameters
    ----------
    path : path-like
        What ``result.save`` wrote, or a file ``*.toml`` as ``hotloop train`` takes it.
    batch : int
        Rows; the smallest recorded size that holds them is shown, else the largest.

    Returns
    -------
    PlanReport

    Raises
    ------
    CheckpointError
        If the file cannot be read, or holds no predict graph.
    ConfigError, DataError
        For a TOML file, as ``train``.
    """
    if os.fspath(path).endswith(".toml"):
        return plan(*read_run(path))
    from hotloop.training.result.saving import load

    loaded = load(path)
    recorded = loaded.recorded(batch).plan
    return PlanReport(recorded.info(), str(recorded), loaded.device.name)
