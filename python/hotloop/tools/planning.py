"""``plan``: what a training step or a prediction will do, before anything runs.

The plans shown are those that ``train`` and ``predict`` make, predicted in the same way. Nothing is
run and no memory of the device is taken, but to find a precision by measuring (``"auto"`` on a
device that multiplies 16-bit numbers).
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from hotloop.training.progress import format_bytes, format_count

if TYPE_CHECKING:
    from hotloop.nn.module import Module
    from hotloop.training.config import TrainingConfig

__all__ = ["PlanReport", "plan", "plan_demo", "plan_file"]


class PlanReport:
    """A plan as numbers and as text; printing it gives both.

    Attributes
    ----------
    info : dict
        Bytes of arena, slots, constants and stores; numbers of nodes, instructions, kernels, chains
        and regions; the floating-point operations of a step.
    device : str
        Where it would run.
    text : str
        Regions, chains, kernels, shapes and offsets.
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
            f"work: {flops}{info['n_instructions']} instructions, {info['n_chains']} chains, "
            f"{info['n_regions']} regions\n\n{self.text}"
        )

    __repr__ = __str__


def plan(
    model: Module,
    datamodule: Any,
    training_config: TrainingConfig | None = None,
    **overrides: Any,
) -> PlanReport:
    """The plan of a full batch's training step.

    Parameters
    ----------
    model, datamodule, training_config, **overrides
        As for :func:`hotloop.train`.

    Returns
    -------
    PlanReport

    Raises
    ------
    ConfigError, ShapeError, DataError, TraceError
        As ``train`` would.

    Examples
    --------
    >>> data = hl.DataModule.from_arrays(X, y, batch_size=64)  # doctest: +SKIP
    >>> print(hl.plan(net, data))  # doctest: +SKIP
    """
    from hotloop.data.module import as_datamodule
    from hotloop.training.config import TrainingConfig
    from hotloop.training.fit import Run
    from hotloop.training.fitted import check_model, exclusive

    model = check_model("plan", model)
    config = TrainingConfig.resolve(training_config, overrides)
    config.check_supported()
    with exclusive(model, "plan"):
        run = Run(model, as_datamodule(datamodule), config, time.perf_counter())
        try:
            predicted = run.predict()
            return PlanReport(predicted, predicted.pop("text"), run.device.name)
        finally:
            run.close()


def plan_demo() -> PlanReport:
    """The plan of the step that ``hotloop demo`` trains with."""
    from hotloop.tools.demo import demo_parts

    return plan(*demo_parts())


def plan_file(path: str | os.PathLike[str], batch: int = 256) -> PlanReport:
    """The plan by which a saved model predicts.

    Parameters
    ----------
    path : path-like
        What ``result.save`` wrote.
    batch : int
        Rows; the smallest recorded size that holds them is shown, else the largest.

    Returns
    -------
    PlanReport

    Raises
    ------
    CheckpointError
        If the file cannot be read, or holds no predict graph.
    """
    from hotloop.training.saving import load

    loaded = load(path)
    recorded = loaded.recorded(batch).plan
    return PlanReport(recorded.info(), str(recorded), loaded.device.name)
