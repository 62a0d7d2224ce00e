"""The compute dtype of a run: mixed precision, chosen and checked.

Products of matrices work on 16-bit copies of their operands where the precision is mixed; sums,
parameters, optimizers, norms and losses are float32 always (``plan`` shows each). ``"auto"`` on a
GPU takes the 16-bit type that it multiplies, bfloat16, or float16 on a Turing; on a CPU bfloat16
where the processor multiplies it and the step is mostly large products. Either only after the
planned kernels have agreed with float32 on a real batch; and since not every Turing has the units
that make float16 fast (a GTX 16xx has none), there only if its step is no slower.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotloop import _core
from hotloop.data.batching import Group
from hotloop.errors import DataError, OutOfMemoryError
from hotloop.training.plans.limit import NODE_BYTES
from hotloop.training.plans.recomputing import share_of
from hotloop.training.plans.runtime import Runtime, run_whole

if TYPE_CHECKING:
    from hotloop.data.module import DataModule
    from hotloop.data.split import Split
    from hotloop.training.config import TrainingConfig

__all__ = ["Choice", "choose", "compute_dtype_of", "describe", "start_scale", "wants_scale"]

_COMPUTE_DTYPES = {"bf16-mixed": "bfloat16", "16-mixed": "float16", "tf32": "tf32"}
_MIXED = {dtype: precision for precision, dtype in _COMPUTE_DTYPES.items()}
_UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # one bit of a number near 1
NAMES = {
    "float64": "fp64", "float32": "fp32", "tf32": "tf32", "bfloat16": "bf16", "float16": "fp16"
}  # fmt: skip

# "auto", measured (docs/semantics.md): a product gains from 16 bits when its shortest dimension has
# the device's reduced_side, and a step does when such products are this share of its work.
_SHARE = 0.9
# Agreement with float32: the loss to some units of the type, the gradient's norm, which adds up
# rounding through every layer and back, to more of them. A wrong kernel is wrong by far more.
_LOSS_UNITS = 8.0
_NORM_UNITS = 32.0
_LOSS_SCALE = 65536.0
_TRIES = 20
# A step is timed so many times at most, and so long; float16 without units for it is slower by more
# than a clock's noise.
_ROUNDS = 10
_TIMING_SECONDS = 0.2
_SLOWER = 1.1


class Choice(NamedTuple):
    """A precision as the configuration writes it, and a warning about it, or ""."""

    precision: str
    warning: str = ""

    @property
    def compute_dtype(self) -> str:
        """The dtype that products compute in."""
        return compute_dtype_of(self.precision)


def compute_dtype_of(precision: str) -> str:
    """The compute dtype of products: "auto" and "32-true" stay float32."""
    return _COMPUTE_DTYPES.get(precision, "float32")


def describe(device: _core.Device, dtype: str) -> str:
    """The compute dtypes of a run, for its header."""
    plain = NAMES[device.float_dtype]
    if dtype == "float32":
        return plain
    # Every GPU that is used multiplies float16, and those that have TF32 bfloat16 as well.
    own = dtype == device.reduced_dtype or (device.memory() is not None and dtype != "bfloat16")
    return f"{NAMES[dtype]} products{'' if own else ', emulated'}; {plain} for the rest"


def wants_scale(precision: str, device: _core.Device | None = None) -> bool:
    """Whether the loss is scaled: float16's smallest number is 6e-8, and gradients are smaller.

    Parameters
    ----------
    precision : str
    device : _core.Device, optional
        With it, whether a step for this device needs room for a scale: "auto" may come to it.
    """
    if precision == "auto" and device is not None:
        return device.memory() is not None and device.reduced_dtype == "float16"
    return precision == "16-mixed"


def start_scale(session: _core.Session, precision: str) -> None:
    """Sets the loss scale to its first value, where the precision has one."""
    if wants_scale(precision):
        session.control_set(loss_scale=_LOSS_SCALE, good_steps=0, scaling=1)


class _Probe(NamedTuple):
    """The first step of a training, in a session of its own."""

    runtime: Runtime
    graph: _core.Graph
    split: Split
    rows: int
    data: DataModule
    config: TrainingConfig
    is_timed: bool

    def measure(self, dtype: str) -> tuple[float, float, dict[str, Any]]:
        """Loss, gradient norm and the plan's numbers, "seconds" of a step among them if timed."""
        config = self.config
        if dtype == "float32" and not self.is_timed:  # the comparison works with any kernels
            config = config.replace(benchmark=False)
        model, device, epoch = self.runtime.model, self.runtime.device, self.runtime.epoch
        scratch = Runtime(model, device, seed=config.seed, config=config, trains=True, epoch=epoch)
        scratch.numbers, scratch.compute_dtype = self.runtime.numbers, dtype
        try:
            self._stay_within(config, scratch)
            return self._measure_in(scratch, dtype)
        finally:
            scratch.close()

    def _stay_within(self, config: TrainingConfig, scratch: Runtime) -> None:
        """Sees that what is measured takes no more than memory_limit; the bits are the same."""
        if config.memory_limit is None:
            return
        if share_of(config) is None:
            scratch.recompute = 1.0
        plan = scratch.predict(self.graph)
        needed = sum(plan[f"{part}_bytes"] for part in ("arena", "slot", "const", "store"))
        if not self.runtime.has_own_memory:
            needed += _core.alloc_stats()["current_bytes"] + plan["n_nodes"] * NODE_BYTES
        if needed > config.memory_limit:
            raise OutOfMemoryError("precision: out of memory: a step takes more than memory_limit")

    def _measure_in(self, scratch: Runtime, dtype: str) -> tuple[float, float, dict[str, Any]]:
        config = self.config
        # A named precision's float32 run is scaled as well: the scale is a power of two.
        precision = _MIXED.get(dtype, "auto") if config.precision == "auto" else config.precision
        shuffled = config.overfit_batches is None
        ring = scratch.ring(0, self.rows, **self.data.loading("train"))
        whole = self.data.split("train")
        assert whole is not None  # the probe's split is a part of it
        group = Group(self.rows, 1, whole.parts.index(self.split))
        feed = self.data.feeds("train", [group], training=shuffled, **ring)[0]
        plan = scratch.plan(self.graph, self.split, feed, compute_dtype=dtype)
        scratch.upload()
        scratch.write_tables(np.zeros_like, self.graph_steps(scratch))
        scratch.session.control_set(nan_mode="skip")
        start_scale(scratch.session, precision)
        for _ in range(_TRIES):  # a scale that is too large halves at each
            scratch.session.control_set(attempted=0)  # the same step, with its random numbers
            feed.seek(0)
            run_whole(plan)
            _, loss, norm, _, applied = scratch.session.control_log(0)[-1]
            if applied or not wants_scale(precision):
                break
        info = plan.info()
        if self.is_timed:
            info["seconds"] = _time_step(plan, feed)
        return float(loss), float(norm), info

    @staticmethod
    def graph_steps(scratch: Runtime) -> int:
        """Columns of the tables, as the graph was built for them."""
        _, n = scratch.session.stores()["table"]
        return n // len(scratch.numbers)


def _time_step(plan: _core.Plan, feed: _core.Feed) -> float:
    """Seconds of the fastest of some steps; a feed of one batch makes each wait for the device."""
    seconds: list[float] = []
    end = time.perf_counter() + _TIMING_SECONDS
    while len(seconds) < _ROUNDS and (not seconds or time.perf_counter() < end):
        feed.seek(0)
        began = time.perf_counter()
        run_whole(plan)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _disagreement(dtype: str, got: tuple[float, float], want: tuple[float, float]) -> str:
    """Where a 16-bit step differs from float32 by more than the rule allows; "": nowhere."""
    unit = _UNIT[dtype]
    rules = (
        ("loss", got[0], want[0], _LOSS_UNITS * unit * (1.0 + abs(want[0]))),
        ("gradient norm", got[1], want[1], _NORM_UNITS * unit * abs(want[1]) + 1e-6),
    )
    for what, value, exact, allowed in rules:
        if math.isfinite(exact) and not abs(value - exact) <= allowed:
            return (
                f"on the first batch the {what} is {value:.6g} with {NAMES[dtype]} products and "
                f"{exact:.6g} with fp32, more than {allowed:.2g} apart"
            )
    return ""


def _could_gain(runtime: Runtime, rows: int) -> bool:
    """Whether planning for 16 bits may pay: by the device, and on a CPU by its largest matrix."""
    if runtime.device.reduced_dtype == "float32":
        return False  # emulated products are slower than float32's
    if runtime.has_own_memory:
        return True
    side = runtime.device.reduced_side
    for slot in runtime.layout.trainable:
        shape = slot.owner.shape
        if len(shape) == 2 and min(rows, *shape) >= side:
            return True
        # A convolution's rows are pixels, and half as many columns do (csrc/ops/conv.c).
        if len(shape) > 2 and 2 * shape[0] >= side and math.prod(shape[1:]) >= side:
            return True
    return False


def choose(
    config: TrainingConfig,
    runtime: Runtime,
    data: DataModule,
    graph: _core.Graph,
    split: Split,
    rows: int,
) -> Choice:
    """The precision of a run, with its products held against float32's on the first batch.

    Parameters
    ----------
    config : TrainingConfig
    runtime : Runtime
        Whose device it is for; its memory is left alone.
    data : DataModule
    graph : _core.Graph
        The training step for batches of ``rows``.
    split : Split
    rows : int

    Returns
    -------
    Choice
        Of "auto": a concrete precision, float32 where the check failed. What was asked for by name
        is kept; its warning says what the check saw.
    """
    named, dtype = config.precision, compute_dtype_of(config.precision)
    if named != "auto" and dtype not in _UNIT:
        return Choice(named)
    if named == "auto" and not _could_gain(runtime, rows):
        return Choice("32-true")
    if named == "auto":
        dtype = runtime.device.reduced_dtype
    if runtime.device.is_described:  # nothing runs there: as on a GPU of its kind that passes
        return Choice(_MIXED[dtype] if named == "auto" else named)
    may_measure = config.benchmark and not config.deterministic
    is_timed = named == "auto" and dtype == "float16" and may_measure
    probe = _Probe(runtime, graph, split, rows, data, config, is_timed)
    try:
        *want, info = probe.measure("float32")
        is_large = runtime.has_own_memory or info["large_flops"] >= _SHARE * info["flops"]
        if named == "auto" and not is_large:
            return Choice("32-true")
        *got, reduced_info = probe.measure(dtype)
    except DataError:  # an id out of range: the checks of the whole data name the user's row
        return Choice("32-true" if named == "auto" else named)
    except OutOfMemoryError:  # float32 needs more memory than the run, which may fit
        if named == "auto":
            named = _MIXED.get(dtype, "32-true")
        return Choice(named, f"precision {named!r} was not held against fp32, for want of memory")
    trouble = _disagreement(dtype, (got[0], got[1]), (want[0], want[1]))
    if named != "auto":
        return Choice(named, f"precision {named!r}: {trouble}" if trouble else "")
    if trouble:
        return Choice("32-true", f"precision: fp32 instead of {NAMES[dtype]}, for {trouble}")
    if is_timed and reduced_info["seconds"] > _SLOWER * info["seconds"]:
        times = reduced_info["seconds"] / info["seconds"]
        return Choice(
            "32-true",
            f"precision: fp32 instead of {NAMES[dtype]}, for its step took {times:.1f} "
            f"times as long",
        )
    return Choice(_MIXED[dtype])
