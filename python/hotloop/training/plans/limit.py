"""What a run may take, and what planning finds that it does.

Predictions allocate nothing on a device. Where its memory is the host's, planning itself takes
some, and how much is seen by letting a prediction do the same work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop import _core
from hotloop.base.messages import format_bytes
from hotloop.errors import OutOfMemoryError
from hotloop.training.plans.recomputing import find_share, share_of

if TYPE_CHECKING:
    from hotloop.training.config import TrainingConfig
    from hotloop.training.plans.runtime import Runtime

__all__ = ["AROUND", "NODE_BYTES", "DoesNotFit", "Limit", "Open", "check_by_node"]

# Bytes of the host that a run has beside its plans: feeds, a runner. 70 kB were seen.
AROUND = 100_000
# On the host, of a plan beside its arena: 5 to 12 kB a node were measured.
NODE_BYTES = 16_000


class DoesNotFit(OutOfMemoryError):
    """A plan takes more than the limit.

    Attributes
    ----------
    n_bytes : int
        What it takes.
    by_rows : int
        How much of that may be less with fewer rows.
    is_beside : bool
        Whether it was predicted to fit, and takes more beside what was predicted.
    """

    def __init__(self, n_bytes: int, by_rows: int = 0, *, is_beside: bool = False) -> None:
        super().__init__(f"out of memory: a step takes {n_bytes} bytes, more than memory_limit")
        self.n_bytes, self.by_rows, self.is_beside = n_bytes, by_rows, is_beside


class Limit:
    """A limit, and the least that was reached.

    Parameters
    ----------
    n_bytes : int, optional
        The limit.

    Attributes
    ----------
    beside : int
        What plans took beside what was predicted.
    """

    def __init__(self, n_bytes: int | None) -> None:
        self.n_bytes = n_bytes
        self._peak = 0  # of allocations, before they were last counted from 0
        self._least: int | None = None
        self._predicted = 0
        self._held = 0  # by others, before the run
        self.beside = 0

    def begin(self, device: _core.Device) -> None:
        """Notes what others hold of the memory that is limited."""
        memory = device.memory()
        held = _core.alloc_stats() if memory is None else memory
        self._held = int(held["current_bytes"])

    def peak(self) -> int:
        """The peak of the core's allocations since the last reset but those of ``watch``."""
        now: int = _core.alloc_stats()["peak_bytes"]
        return max(self._peak, now)

    def watch(self, predict: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What ``predict`` returns, and as "host_bytes" how much it took while it did."""
        self._peak = self.peak()
        _core.alloc_peak_reset()
        before = _core.alloc_stats()["current_bytes"]
        made = predict()
        return made | {"host_bytes": _core.alloc_stats()["peak_bytes"] - before}

    def within(self, room: int) -> int:
        """The lesser of the limit and of so many bytes."""
        return room if self.n_bytes is None else min(room, self.n_bytes)

    def check(self, n_bytes: int, by_rows: int) -> None:
        """Raises DoesNotFit for a prediction above the limit."""
        assert self.n_bytes is not None
        self._predicted = n_bytes
        if n_bytes > self.n_bytes:
            raise DoesNotFit(n_bytes, by_rows)

    def may_fit(self, error: OutOfMemoryError, times: float) -> bool:
        """Whether what did not fit may, with so many times fewer rows."""
        if not isinstance(error, DoesNotFit) or self.n_bytes is None:
            return True
        return error.n_bytes - error.by_rows * (1 - 1 / times) <= self.n_bytes

    def check_planned(self, n_bytes: int) -> None:
        """Raises DoesNotFit for a plan above it."""
        if self.n_bytes is not None and n_bytes > self.n_bytes:
            raise DoesNotFit(n_bytes, is_beside=True)

    def note(self, error: DoesNotFit) -> None:
        """Notes what did not fit."""
        if error.is_beside:
            self.beside += error.n_bytes - self._predicted
            self._peak = 0
            _core.alloc_peak_reset()
        elif self._least is None or error.n_bytes < self._least:
            self._least = error.n_bytes

    def explain(self, tried: list[str], fixes: list[str]) -> OutOfMemoryError:
        """The error of a limit that nothing fits in.

        Parameters
        ----------
        tried : list of str
            With what a step takes the least that was reached.
        fixes : list of str
            What may be done in place of a larger limit.
        """
        assert self.n_bytes is not None
        assert self._least is not None
        having = f" with {' and '.join(tried)}" if tried else ""
        # What the host holds beside a plan differs by some kilobytes from run to run.
        digits = len(str(self._least)) - 3
        enough = -(-(self._least + self._least // 256) // 10**digits) * 10**digits
        least = f"{enough} bytes ({format_bytes(enough)})"
        held = ""
        if self._held > self._least // 20:
            held = (
                f"; {format_bytes(self._held)} of it are held by models and plans from before: "
                "delete them and call hl.empty_cache()"
            )
        return OutOfMemoryError(
            f"memory_limit: out of memory: must be at least {least} for this model and its batches"
            f"{having}, got {self.n_bytes}; {', '.join([*fixes, 'write a larger memory_limit'])} "
            f"or make the model smaller{held}"
        )


def check_by_node(
    runtime: Runtime, graphs: Sequence[_core.Graph], *, k: int = 1, n_slots: int = 1
) -> None:
    """Sees that there is room for plans that run these graphs node by node, and for one check.

    Parameters
    ----------
    runtime : Runtime
        With its plans, which share all but constants with them.
    graphs : sequence of Graph
    k, n_slots : int
        Of the plans.

    Raises
    ------
    OutOfMemoryError
        If they take more than ``memory_limit`` leaves, before anything is allocated.
    """
    if runtime.memory_limit is None:
        return
    memory = runtime.device.memory()
    if memory is not None:
        room, needed = runtime.memory_limit - int(memory["current_bytes"]), 0
    else:
        room = runtime.memory_limit - _core.alloc_stats()["current_bytes"]
        needed = NODE_BYTES * sum(len(graph.nodes()) for graph in graphs)
    if needed <= room:  # else there is none for predictions
        there = runtime.plan_infos()
        plans = [runtime.predict(graph, k=k, n_slots=n_slots, by_node=True) for graph in graphs]
        needed += sum(plan["const_bytes"] for plan in plans)
        for part in ("arena_bytes", "slot_bytes"):
            most = max((plan[part] for plan in there), default=0)
            needed += max(0, *(plan[part] - most for plan in plans))
        if memory is None:  # a copy of all stores
            needed += max(plan["store_bytes"] for plan in plans)
    if needed > room:
        raise OutOfMemoryError(
            f"memory_limit: out of memory: it takes {format_bytes(needed)}, and "
            f"{format_bytes(max(room, 0))} are left"
        )


class Open:
    """A session whose plans are made one after another, each within the configuration's limit.

    Parameters
    ----------
    runtime : Runtime
        Whose share of what is recomputed is set for each plan.
    config : TrainingConfig
    """

    def __init__(self, runtime: Runtime, config: TrainingConfig) -> None:
        self._runtime, self._config = runtime, config
        self._limit = Limit(config.memory_limit)
        self._most = {"arena_bytes": 0, "slot_bytes": 0}  # of the plans so far, which share them

    def fit(self, graph: _core.Graph, *, n_slots: int = 1) -> None:
        """Chooses the share for a plan of this graph.

        Raises
        ------
        OutOfMemoryError
            If the plan takes more than the limit with any, before anything is allocated.
        """
        limit, share = self._limit.n_bytes, share_of(self._config)
        if limit is None:
            return
        runtime = self._runtime
        plan: dict[str, Any] = {}

        def bytes_at(share: float) -> int:
            plan.update(
                self._limit.watch(lambda: runtime.predict(graph, n_slots=n_slots, recompute=share))
            )
            return self._count_bytes(plan)

        n_bytes = bytes_at(share or 0.0)
        if share is None:
            share, n_bytes = find_share(bytes_at, plan["n_recompute_choices"], limit)
            bytes_at(share)
        runtime.recompute = share
        if n_bytes > limit:
            self._limit.note(DoesNotFit(n_bytes))
            fixes = [] if share_of(self._config) in (None, 1.0) else ["write recompute='auto'"]
            raise self._limit.explain([], [*fixes, "use smaller batches"])
        self._most = {part: max(n, plan[part]) for part, n in self._most.items()}

    def _count_bytes(self, plan: dict[str, Any]) -> int:
        """The peak of memory when this plan is made beside what is there."""
        stores = self._runtime.session.stores().values()
        there = sum(n * np.dtype(dtype).itemsize for dtype, n in stores)
        needed = max(plan["store_bytes"] - there, 0) + plan["const_bytes"]
        needed += sum(max(plan[part] - n, 0) for part, n in self._most.items())
        memory = self._runtime.device.memory()
        if memory is not None:
            return int(needed + memory["current_bytes"])
        held: int = _core.alloc_stats()["current_bytes"]
        more = 1 if self._most["arena_bytes"] else 2  # a smaller last batch has a plan, too
        return int(needed + held + AROUND + more * plan["host_bytes"])
