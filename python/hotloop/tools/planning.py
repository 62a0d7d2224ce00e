"""``plan``: what a training step or a prediction will do, before anything runs.

The plans shown are those that ``train`` and ``predict`` make, predicted in the same way. Nothing is
run and no memory of the device is taken, but to find a precision by measuring (``"auto"`` on a
device that multiplies 16-bit numbers). A GPU that is described in the package (kernels/cuda/gpus.h)
need not be in the machine, and is not measured.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from hotloop.base.messages import counted, format_bytes, format_count
from hotloop.errors import ConfigError
from hotloop.tools.runfile import read_run

if TYPE_CHECKING:
    from hotloop import _core
    from hotloop.nn.module import Module
    from hotloop.training.config import TrainingConfig

__all__ = ["PlanReport", "is_described", "plan", "plan_demo", "plan_file"]


class PlanReport:
    """A plan as numbers and as text; printing it gives a summary of a few lines.

    Attributes
    ----------
    info : dict
        Bytes of arena, slots, constants and stores; of a training step, what lies in a GPU's memory
        beside the plan: data and best weights, and on a described GPU the workspaces that libraries
        may want there and could not be asked about (``unasked_bytes``); numbers of nodes,
        instructions, kernels, chains and regions; the floating-point operations of a step; how many
        of the values that the backward pass needs (``n_saved``) are computed again for it
        (``n_recomputed``), with how many operations more (``recomputed_flops`` beside
        ``step_flops``); ``micro_rows``, the rows of a micro-batch where ``memory_limit`` asks for
        parts of a batch. Where a GPU runs weight gradients beside the rest of the backward pass,
        ``n_path_kernels`` of the kernels and ``path_flops`` of the operations wait for one another.
    device : str
        Where it would run.
    peak_bytes : int
        All of these bytes. On a described GPU they have the largest workspaces that are allowed.
    precision : str
        Of a training step, the dtypes that it computes in, as the header of a training says them.
    total_bytes : int or None
        The GPU's memory, of which a driver's context and other programs take some; None where a
        device's memory is the host's.
    fits : bool or None
        Whether the peak is no more than that.
    text : str
        Every instruction: regions, chains, kernels, shapes, dtypes and offsets.
    """

    def __init__(
        self, info: dict[str, Any], text: str, device: _core.Device, precision: str = ""
    ) -> None:
        # Instead of these kernels of hotloop's, whose names go on where they are a library's.
        self._unasked = [
            (library, n)
            for kernel, library, n in device.unasked
            if re.search(rf"{re.escape(kernel)}(_\w+)?(?![\w.])", text)
        ]
        self.info = info | {"unasked_bytes": max((n for _, n in self._unasked), default=0)}
        self.text = text
        self.device = device.name
        self.precision = precision
        self.peak_bytes = sum(self.info.get(f"{part}_bytes", 0) for part in _PARTS)
        memory = device.memory()
        self.total_bytes = memory["total_bytes"] if memory is not None else None
        self.fits = None if self.total_bytes is None else self.peak_bytes <= self.total_bytes
        self._is_described = device.is_described

    def __str__(self) -> str:
        info = self.info
        flops = f"{format_count(float(info['flops']))}flop in " if info["flops"] else ""
        return (
            f"on {self.device}{', by its description' if self._is_described else ''}"
            f"{f': {self.precision}' if self.precision else ''}\n"
            f"memory: {format_bytes(info['arena_bytes'])} activations and scratch, "
            f"{format_bytes(info['store_bytes'])} parameters and state, "
            f"{format_bytes(info['slot_bytes'])} batch\n"
            f"work: {flops}{info['n_instructions']} instructions (.text lists them), "
            f"{info['n_chains']} chains, {info['n_regions']} regions"
            f"{self._describe_relief()}{self._describe_room()}"
        )

    def _describe_relief(self) -> str:
        """What is done for want of memory."""
        from hotloop.training.plans.recomputing import describe

        lines = ""
        if recomputed := describe(self.info):
            lines += f"\nrecompute: {recomputed}"
        if rows := self.info.get("micro_rows", 0):
            lines += f"\nmicro-batches: of {counted(rows, 'row')}"
        if "epoch" in self.info:
            lines += f"\nepochs: from {self.info['epoch']} on, of all the phases the largest"
        return lines

    def _describe_room(self) -> str:
        """How the peak compares with a GPU's memory, and what is assumed of a described one."""
        if self.total_bytes is None:
            return ""
        beside = sum(self.info.get(f"{part}_bytes", 0) for part in ("data", "best"))
        room = (
            f"\npeak: {format_bytes(self.peak_bytes)} of {format_bytes(self.total_bytes)}, "
            f"{format_bytes(beside)} of them data and best weights: "
            f"{'fits' if self.fits else 'does not fit'}"
        )
        if not self._is_described:
            return room
        libraries = " and ".join(dict.fromkeys(name for name, _ in self._unasked))
        own = (
            f"hotloop's own kernels where {libraries} would choose on the GPU, whose workspaces of "
            f"{format_bytes(self.info['unasked_bytes'])} are in the peak; "
        )
        return f"{room}\nassumed: {own if libraries else ''}NVRTC, and nothing else on the GPU"

    __repr__ = __str__


_PARTS = ("arena", "slot", "const", "store", "data", "best", "unasked")


def is_described(device: Any, others: dict[str, Any]) -> bool:
    """Whether a device is meant that is no name for one of this machine's."""
    if not isinstance(device, str) or re.fullmatch(r"auto|cpu|(cuda|gpu)(:\d+)?", device):
        return False
    for name in ("accelerator", "devices"):
        if name in others:
            raise ConfigError(
                f"device: must be the only one that is named, got {device!r} beside "
                f"{name}={others[name]!r}; leave out one of them"
            )
    return True


def plan(
    model: Module,
    datamodule: Any,
    training_config: TrainingConfig | None = None,
    *,
    device: Any = None,
    **overrides: Any,
) -> PlanReport:
    """The plan of a full batch's training step; nothing is run, and no memory of a device taken.

    Parameters
    ----------
    model : Module
        Left as it is.
    datamodule, training_config, **overrides
        As for :func:`hotloop.train`.
    device : str or torch.device, optional
        As for ``train``, or the name of a GPU that need not be in this machine, in whichever case:
        "T4", "A100" or "H200" (80 GB and 141 GB). Such a GPU is its description, to which no work
        can be given. So ``precision="auto"`` is bfloat16, on a T4 float16 with a scaled loss, as on
        a GPU whose products pass the check that ``train`` makes of them. cuBLASLt, which chooses
        on the GPU itself, is not asked, and cuDNN only where this machine has a driver: kernels in
        their place are hotloop's own, and the peak has the most that their workspaces may take.

    Returns
    -------
    PlanReport
        Memory and work; its ``text`` lists every instruction.

    Raises
    ------
    ConfigError, ShapeError, DataError, TraceError
        As ``train`` would; for a name that no GPU is described by, with those that are.

    Examples
    --------
    >>> X, y = hl.load_digits()
    >>> report = hl.plan(nn.Linear(64, 10), (X, y), precision="32-true")
    >>> report.info["store_bytes"] > 3 * 4 * 650  # weights and Adam's two moments of each
    True
    >>> hl.plan(nn.Linear(64, 10), (X, y), device="T4").fits
    True
    """
    from hotloop.data.shorthand import as_datamodule
    from hotloop.training.config import TrainingConfig
    from hotloop.training.plans.accelerator import open_described
    from hotloop.training.plans.fitted import check_model, exclusive
    from hotloop.training.plans.precision import describe
    from hotloop.training.run.planner import Planner

    model = check_model("plan", model)
    by_name = is_described(device, overrides)
    if device is not None and not by_name:
        overrides["device"] = device
    config = TrainingConfig.resolve(training_config, overrides)
    config.check_supported()
    described = open_described(device, config.precision) if by_name else None
    with exclusive(model, "plan"):
        planner = Planner(model, as_datamodule(datamodule), config, described)
        try:
            predicted = planner.predict()
            precision = describe(planner.device, planner.runtime.compute_dtype)
            return PlanReport(predicted, predicted.pop("text"), planner.device, precision)
        finally:
            planner.close()


def plan_demo(device: str | None = None) -> PlanReport:
    """The plan of the step that ``hotloop demo`` trains with."""
    from hotloop.tools.demo import demo_parts

    return plan(*demo_parts(), device=device)


def plan_file(
    path: str | os.PathLike[str], batch: int = 256, device: str | None = None
) -> PlanReport:
    """The plan by which a saved model predicts, or of the step that a run.toml trains with.

    Parameters
    ----------
    path : path-like
        What ``result.save`` wrote, or a file ``*.toml`` as ``hotloop train`` takes it.
    batch : int
        Rows; the smallest recorded size that holds them is shown, else the largest.
    device : str, optional
        As for :func:`plan`; a saved model's plan is the CPU's by default.

    Returns
    -------
    PlanReport

    Raises
    ------
    CheckpointError
        If the file cannot be read, or holds no predict graph.
    ConfigError, DataError
        For a TOML file, as ``train``; for a device that there is none of.
    DeviceError, OutOfMemoryError
        For a GPU that cannot be had.
    """
    if os.fspath(path).endswith(".toml"):
        return plan(*read_run(path), device=device)
    from hotloop.training.plans.accelerator import open_described
    from hotloop.training.result.saving import load

    loaded = load(path)
    target = loaded.device
    if is_described(device, {}):
        target = open_described(str(device), "auto")
    elif device is not None:
        target = loaded.to(device).device
    predicted = loaded.recorded(batch).predict(target)
    return PlanReport(predicted, predicted.pop("text"), target)
