"""``profile``: how long each node of a step takes, and how far that is from what is possible.

What is possible is the roofline (Williams, Waterman and Patterson 2009): a node can be no faster
than its operations at the rate of a large product, or its bytes at the rate of a large copy. Both
rates are measured on the device by the same mechanism, never taken from a data sheet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hotloop.base.scalars import plain
from hotloop.errors import ConfigError
from hotloop.training.plans.precision import NAMES, compute_dtype_of

if TYPE_CHECKING:
    from hotloop import _core
    from hotloop.nn.module import Module
    from hotloop.training.config import TrainingConfig

__all__ = ["NodeTime", "Profile", "measure_peaks", "profile"]

_SHOWN = 30
# Peaks: problems grow until one launch takes so long, or until so many bytes or rows. A device that
# needs longer than _PATIENCE to time one, such as an emulated one, gets none larger.
_LAUNCH_SECONDS = 10e-3
_PATIENCE = 0.5
_MAX_BYTES = 1 << 30
_MAX_ROWS = 8192


@dataclass(frozen=True)
class NodeTime:
    """A node of a step, or several that one launch does.

    Attributes
    ----------
    op, kernel : str
        Such as "matmul" and "cuda.matmul.cublaslt".
    algorithm : str
        The algorithm that the kernel was tuned to, or "".
    scope : str or None
        The module that it comes from.
    segment : {"begin", "micro", "apply"}
    n_nodes : int
        Nodes that the launch does; op, kernel, algorithm and scope are the first one's.
    n_runs : int
        Times a step: micro-batches repeat, and what an evaluation does once for all batches is 0.
    precision : str or None
        The compute dtype of a product.
    seconds : float
        Time of one run, on its operands in the step.
    flops : float
        Floating-point operations of products and pointwise programs; 0 for other ops, which are
        bound by memory.
    bytes : float
        Bytes that it has to read and write, each counted once.
    share : float
        Its share of the time of all nodes of a step.
    roofline : float or None
        The least possible time divided by the measured one; None where peaks are unknown. Above 1
        where operands are in a cache, which is faster than the memory that peaks are of.
    """

    op: str
    kernel: str
    algorithm: str
    scope: str | None
    segment: str
    n_nodes: int
    n_runs: int
    precision: str | None
    seconds: float
    flops: float
    bytes: float
    share: float
    roofline: float | None


class Profile:
    """A step's nodes and their times; print it.

    Attributes
    ----------
    device : str
        Its name.
    nodes : list of NodeTime
        In the order of the step.
    step_seconds : float
        Of a step as it runs, all nodes in it, without what feeds it.
    peaks : dict of str to float
        Operations per second by precision, and "bytes" per second.
    """

    def __init__(
        self,
        device: str,
        step_seconds: float,
        launches: list[dict[str, Any]],
        peaks: Mapping[str, float],
    ) -> None:
        self.device = device
        self.step_seconds = step_seconds
        self.peaks = dict(peaks)
        total = sum(launch["seconds"] * launch["n_runs"] for launch in launches)
        self.nodes = [
            NodeTime(
                **launch,
                share=launch["seconds"] * launch["n_runs"] / total if total else 0.0,
                roofline=_share_of_roofline(launch, peaks),
            )
            for launch in launches
        ]

    @property
    def node_seconds(self) -> float:
        """The time of all nodes of a step, one after the other."""
        return sum(node.seconds * node.n_runs for node in self.nodes)

    def slowest(self, n: int) -> list[NodeTime]:
        """The nodes that take most of a step's time.

        Parameters
        ----------
        n : int
            How many.

        Returns
        -------
        list of NodeTime
            The slowest first.
        """
        return sorted(self.nodes, key=lambda node: -node.share)[:n]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON.

        Returns
        -------
        dict
            Understood by :meth:`from_dict`.
        """
        return {
            "device": self.device,
            "step_seconds": self.step_seconds,
            "peaks": self.peaks,
            "nodes": [asdict(node) for node in self.nodes],
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Profile:
        """Back from :meth:`to_dict`.

        Parameters
        ----------
        found : mapping
            What it returned.

        Returns
        -------
        Profile
        """
        made = ("share", "roofline")
        launches = [
            {key: value for key, value in node.items() if key not in made}
            for node in found["nodes"]
        ]
        return cls(found["device"], found["step_seconds"], launches, found["peaks"])

    def table(self, n: int = _SHOWN) -> str:
        """The slowest nodes as text, a line each.

        Parameters
        ----------
        n : int
            How many.

        Returns
        -------
        str
        """
        rows: list[tuple[str, ...]] = [("us", "share", "roofline", "GFLOP/s", "GB/s", "kernel", "")]
        rows += [_row_of(node) for node in self.slowest(n)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "  ".join([*(c.rjust(w) for c, w in zip(row[:5], widths)), row[5].ljust(widths[5])])
            + f"  {row[6]}"
            for row in rows
        ]
        left = len(self.nodes) - n
        if left > 0:
            rest = sum(node.share for node in self.slowest(len(self.nodes))[n:])
            lines.append(f"and {left} more, {rest:.1%} of the time")
        return "\n".join(line.rstrip() for line in lines)

    def __str__(self) -> str:
        units = {name: f"GFLOP/s {short}" for name, short in NAMES.items()} | {"bytes": "GB/s"}
        known = [f"{rate / 1e9:,.3g} {units[name]}" for name, rate in self.peaks.items()]
        return (
            f"on {self.device}; peaks: {', '.join(known) or 'not known'}\n"
            f"a step takes {1e6 * self.step_seconds:,.1f} us, its {len(self.nodes)} nodes one by "
            f"one {1e6 * self.node_seconds:,.1f} us\n\n{self.table()}"
        )

    __repr__ = __str__


def _share_of_roofline(launch: Mapping[str, Any], peaks: Mapping[str, float]) -> float | None:
    rates = {"flops": peaks.get(launch["precision"] or "float32"), "bytes": peaks.get("bytes")}
    least = [launch[what] / rate for what, rate in rates.items() if rate]
    return max(least) / launch["seconds"] if least and launch["seconds"] else None


def _row_of(node: NodeTime) -> tuple[str, ...]:
    per_ns = 1e9 * node.seconds or float("inf")
    what = [node.op, f"x{node.n_nodes}" if node.n_nodes > 1 else "", node.precision or ""]
    if node.n_runs != 1:
        what.append(f"{node.n_runs} times")
    words = [" ".join(filter(None, what)), node.scope or "", node.algorithm]
    return (
        f"{1e6 * node.seconds * node.n_runs:,.1f}",
        f"{node.share:.1%}",
        "-" if node.roofline is None else f"{node.roofline:.0%}",
        f"{node.flops / per_ns:,.1f}" if node.flops else "-",
        f"{node.bytes / per_ns:,.1f}",
        node.kernel,
        "; ".join(filter(None, words)),
    )


def profile(
    model: Module,
    datamodule: Any,
    training_config: TrainingConfig | None = None,
    *,
    split: str = "train",
    peaks: Mapping[str, float] | None = None,
    **overrides: Any,
) -> Profile:
    """Times each node of the step that ``train`` would run, on the first full batch.

    The model is left as it is.

    Parameters
    ----------
    model : Module
        Left as it is, bit for bit.
    datamodule, training_config, **overrides
        As for :func:`hotloop.train`.
    split : {"train", "val"}
        A training step, or a batch of validation.
    peaks : dict of str to float, optional
        Operations per second by precision ("float32", "tf32", "bfloat16", "float16", "float64"),
        and "bytes" per second. By default they are measured, which takes a second or two; an empty
        dict does without.

    Returns
    -------
    Profile
        A line per node with its time, share and distance from the roofline; print it.

    Raises
    ------
    ConfigError, ShapeError, DataError, TraceError
        As ``train`` would; ConfigError also for ``split="val"`` of data without one.
    NotFiniteError
        If the batch's loss is not finite: a step that is skipped cannot be timed.
    BusyError
        If another thread trains or runs the model.

    Examples
    --------
    >>> X, y = hl.load_digits()
    >>> profile = hl.profile(nn.Linear(64, 10), (X, y), peaks={})
    >>> slowest = profile.slowest(1)[0]
    >>> slowest.seconds > 0, 0 < slowest.share <= 1
    (True, True)
    """
    from hotloop.data.module import as_datamodule
    from hotloop.training.config import TrainingConfig
    from hotloop.training.plans.accelerator import losing_device
    from hotloop.training.plans.fitted import check_model, exclusive
    from hotloop.training.run.planner import Planner

    model = check_model("profile", model)
    if split not in ("train", "val"):
        raise ConfigError(f"split: must be 'train' or 'val', got {split!r}")
    _check_peaks(peaks)
    config = TrainingConfig.resolve(training_config, overrides)
    config.check_supported()
    with exclusive(model, "profile", trains=True), losing_device():
        planner = Planner(model, as_datamodule(datamodule), config)
        try:
            planner.prepare()
            seconds, launches = planner.run_one_step(split).profile()
        finally:
            planner.close()
        if peaks is None:
            dtype = compute_dtype_of(planner.config.precision)
            peaks = measure_peaks(planner.device, dict.fromkeys(("float32", dtype)))
        return Profile(planner.device.name, seconds, launches, peaks)


def _check_peaks(peaks: Mapping[str, float] | None) -> None:
    for name, rate in ((name, plain(rate)) for name, rate in (peaks or {}).items()):
        if name != "bytes" and name not in NAMES:
            raise ConfigError(f"peaks: must be of {', '.join(NAMES)} or bytes, got {name!r}")
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not rate > 0:
            raise ConfigError(f"peaks: {name} must be a number above 0, got {rate!r}")


# ---------------------------------------------------------------------------- peaks


def measure_peaks(device: _core.Device, dtypes: Any = ("float32",)) -> dict[str, float]:
    """The peak rates that the device reaches.

    Parameters
    ----------
    device : _core.Device
    dtypes : iterable of str
        Types of products.

    Returns
    -------
    dict of str to float
        Operations per second of the best large product by type, which is float64 on a device that
        computes in it; "bytes" per second that a sum of two large arrays reads and writes.
    """
    peaks: dict[str, float] = {}
    for dtype in dtypes:
        for launch in _grow(device, _make_product, dtype, 128, _MAX_ROWS):
            if launch["precision"] is not None:
                rate = launch["flops"] / launch["seconds"]
                peaks[launch["precision"]] = max(rate, peaks.get(launch["precision"], 0.0))
    free = (device.memory() or {"free_bytes": _MAX_BYTES})["free_bytes"]
    most = min(_MAX_BYTES, free // 4) // 12
    for launch in _grow(device, _make_sum, "float32", 1 << 16, most):
        peaks["bytes"] = launch["bytes"] / launch["seconds"]  # of the largest: no cache holds it
    return peaks


def _grow(
    device: _core.Device, make: Callable[[_core.Graph, int], int], dtype: str, n: int, most: int
) -> list[dict[str, Any]]:
    """The slowest launch of each size from n on."""
    found: list[dict[str, Any]] = []
    while n <= most:
        began = time.perf_counter()
        slowest = max(_time_graph(device, make, dtype, n), key=lambda one: one["seconds"])
        if slowest["seconds"]:
            found.append(slowest)
        if slowest["seconds"] >= _LAUNCH_SECONDS or time.perf_counter() - began > _PATIENCE:
            break
        n *= 2
    return found


def _time_graph(
    device: _core.Device, make: Callable[[_core.Graph, int], int], dtype: str, n: int
) -> list[dict[str, Any]]:
    from hotloop import _core

    session = _core.Session(device)
    graph = _core.Graph()
    graph.output(make(graph, n))
    plan = _core.Plan(session, graph, compute_dtype=dtype, benchmark=True)
    try:
        while plan.run(1, 1.0)[0] != "done":
            pass
        return plan.profile()[1]
    finally:
        plan.close()
        session.close()


def _make_product(graph: _core.Graph, n: int) -> int:
    a, b = (graph.input(name, "float32", (n, n)) for name in "ab")
    return graph.add("matmul", (a, b))[0]


def _make_sum(graph: _core.Graph, n: int) -> int:
    a, b = (graph.input(name, "float32", (n,)) for name in "ab")
    return graph.add("add", (a, b))[0]
