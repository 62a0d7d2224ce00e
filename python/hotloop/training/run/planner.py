"""What a run needs before its first step: the device, the precision, and every plan.

Full and last batches of training and validation are traced, checked and planned, so that running
allocates nothing. Where a plan does not fit in memory, or in ``memory_limit``, activations are
computed again in the backward pass, and if that does not do, in smaller micro-batches.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any

from hotloop import _core
from hotloop.base.messages import counted, once, warn
from hotloop.base.messages import show as say
from hotloop.base.rules import show
from hotloop.base.watching import watched
from hotloop.data.batching import Group, limit_batches
from hotloop.data.module import DataModule
from hotloop.data.split import Split
from hotloop.errors import BusyError, ConfigError, ModelWarning, OutOfMemoryError
from hotloop.nn.module import Module
from hotloop.nn.norm import BatchNorm
from hotloop.nn.parameter import Variable
from hotloop.stats.node import StatisticalNode, watching
from hotloop.training.checkpoints.snapshot import (
    Snapshot,
    find_began,
    predict_bytes,
    snapshot_bytes,
)
from hotloop.training.config import TrainingConfig
from hotloop.training.config.schedule import count_steps, rates
from hotloop.training.plans.accelerator import check_gpu_options, choose_device
from hotloop.training.plans.fitted import fitted_of, uses_batch_statistics
from hotloop.training.plans.initialization import Fitting, nodes_to_fit
from hotloop.training.plans.limit import AROUND, DoesNotFit, Limit
from hotloop.training.plans.loading import choose_workers
from hotloop.training.plans.operands import check_operands
from hotloop.training.plans.precision import choose, start_scale, wants_scale
from hotloop.training.plans.recomputing import describe, find_share, share_of
from hotloop.training.plans.runtime import (
    Runtime,
    Sums,
    has_statistics_of_rows,
    resolve_by_batch,
    run_whole,
)
from hotloop.training.plans.steps import EvalPlan, EvalPlans, Steps, Traced, graphs_of_parts
from hotloop.training.plans.wavelengths import check_wavelengths, wavelengths_of
from hotloop.training.run.anomaly import Anomalies
from hotloop.training.run.events import Events
from hotloop.training.run.micro import next_split, split_batches
from hotloop.training.run.monitor import Monitor
from hotloop.training.run.phases import Phases
from hotloop.training.run.watch import Watch
from hotloop.training.run.weights import Weights
from hotloop.training.scoring.names import COLUMNS, MEASURED

__all__ = ["Planner"]

# The share of a GPU's memory that resident data leaves free, for other processes and libraries.
_ROOM_SHARE = 16


class Planner:
    """Plans one call of ``train``; ``prepare`` makes what the attributes name.

    What it holds on the device is given back by ``close``.

    Parameters
    ----------
    model : Module
    data : DataModule
    config : TrainingConfig
    device : Device, optional
        That it plans for, in the place of the configuration's: one that is described, for which
        ``predict`` alone serves.
    snapshot : Snapshot, optional
        That the run goes on from.

    Attributes
    ----------
    phases : Phases
        What is trained in which epochs.
    phase : int
        The first epoch of the phase whose plans are there.
    config : TrainingConfig
        With every "auto" resolved, so that it reproduces the run.
    device : Device
    why_no_gpu : str
        Why the device is no GPU although there is one, or "".
    runtime : Runtime
    steps : Steps
    runner : Runner
        Runs the training plans, an epoch after the other.
    train_plans : list of (Plan, int, int)
        The training step's plans, each with its batch size and number of batches in an epoch:
        full batches, then what is left.
    val_plans : list of EvalPlan
    val_sums : Sums
        What the validation plans add to.
    statistics : list of Variable
        Running statistics that ``swa`` computes anew.
    statistics_plans : list of EvalPlan
        That do so, over an epoch of training's rows.
    validation_split : str
        "val", or "train" where a few batches are to be overfitted.
    counts : StepCounts
        Optimizer steps by max_epochs and max_steps.
    row_names : tuple of str
        Columns and values of the run in a row of its history, beside what callbacks log.
    monitor : Monitor
    weights : Weights
    began : dict of str to int
        Optimizer steps before the moments of a parameter began, where there were any.
    anomalies : Anomalies
    micro_rows : int
        Rows of a micro-batch where memory asks for parts of a batch, else 0.
    predicted_bytes : int
        The peak of memory, known before the first step.
    looking_seconds : float
        That it took to look through the data: its checks and statistics.
    recomputed : str
        How much is computed again in the backward pass, "" where nothing is.
    fitting : Fitting or None
        Of statistical nodes, where some were to be fitted.
    """

    def __init__(
        self,
        model: Module,
        data: DataModule,
        config: TrainingConfig,
        device: _core.Device | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._described = device
        self._snapshot, self._is_resumed = snapshot, snapshot is not None
        self.model = model
        self.data = data
        self.config = self._asked = config
        self._epoch = 1 if snapshot is None else snapshot.run["epoch"] + 1
        self.phase = 1
        self._relief: dict[int, tuple[float, int, int]] = {}  # of phases, where memory ran out
        self._told: set[str] = set()  # warnings
        self._waited = 0.0  # in the phases before
        self._known_peak = 0  # of them
        self.validation_split = "val" if config.overfit_batches is None else "train"
        self.predicted_bytes = 0
        self.looking_seconds = 0.0
        self._peak_with_copy = 0
        self.recomputed = ""
        self.fitting: Fitting | None = None
        self._limit = Limit(config.memory_limit)
        self._share = 0.0  # that is recomputed at least: more where memory ran out
        self._parts = 1  # of a batch: more where memory ran out
        self.micro_rows = 0
        self._begin()

    def _begin(self) -> None:
        self.train_plans: list[tuple[_core.Plan, int, int]] = []
        self.val_plans: EvalPlans = []
        self.val_sums = Sums("val")
        self.statistics: list[Variable] = []
        self.statistics_plans: EvalPlans = []
        self._traced: list[Traced] = []
        self._feeds: list[_core.Feed] = []

    def close(self) -> None:
        """Gives back the device's memory."""
        if hasattr(self, "runtime"):  # planning came so far
            # Another thread may be using a plan: then the last reference frees it.
            with contextlib.suppress(BusyError):
                self.runtime.close()

    @property
    def is_fitted_alone(self) -> bool:
        """Whether statistical nodes are all that there was to do: nothing else is planned."""
        has_nodes = any(isinstance(module, StatisticalNode) for module in self.model.modules())
        return has_nodes and self.config.max_epochs == 0 and not self._is_resumed

    def prepare(self, watch: Watch | None = None) -> None:
        """Checks the data, chooses the device, fits statistical nodes, traces and plans everything.

        Parameters
        ----------
        watch : Watch, optional
            Told what is being done; it may end it.

        Raises
        ------
        Stopped
            If it does.
        OutOfMemoryError
            With the sentence of the plan that did not fit.
        """
        watch = watch or Watch()
        with watched(watch):
            watch.begin("checking the data")
            began = time.perf_counter()
            choose_workers(self.data)
            self._check_data()
            self._fit_nodes(watch)
            self.looking_seconds = time.perf_counter() - began
            if self.is_fitted_alone:
                return
            self.device.memory_peak_reset()
            _core.alloc_peak_reset()  # what fitting nodes took is free again
            with self.explaining_memory():
                self._prepare_phases(watch)

    def _prepare_phases(self, watch: Watch) -> None:
        """Plans what is left of a training, its last phase first: so the peak is known, and nothing
        is left to be found wrong or too large later. What stays are the plans of the first.
        """
        watch.begin("planning")
        self._find_phases()
        self.phases.warn()
        first, known = self.phases.at(self._epoch), 0
        for phase in reversed([each for each in self.phases.firsts if each >= first]):
            if known:
                self._start_over()
            self._plan_phase(phase, watch)
            known = self.predicted_bytes = max(known, self.predicted_bytes)

    def begin_phase(self, epoch: int, snapshot: Snapshot) -> None:
        """Makes the plans of the phase that an epoch is of, in the place of those that are there.

        Parameters
        ----------
        epoch : int
            From 1.
        snapshot : Snapshot
            Of the end of the epoch before, whose values the caller puts back.
        """
        self._known_peak, predicted = self.peak_bytes(), self.predicted_bytes
        self._waited = self.data_wait
        copy_bytes = self.copy_bytes(self.weights.n_copies)
        self._start_over()
        self._epoch, self._snapshot = epoch, snapshot
        with self.explaining_memory():
            self._plan_phase(self.phases.at(epoch), Watch())
        self._snapshot, self.predicted_bytes = None, predicted
        self.note_copy(copy_bytes)

    def _find_phases(self) -> None:
        resolve_by_batch(self.model, self.data)
        self.phases = Phases(self.model, self.config)

    def _set_phase(self, phase: int) -> None:
        """Lets plans be those of a phase, in the precision that was chosen for the run."""
        self.config = self._asked.replace(
            precision=self.config.precision, accelerator=self.config.accelerator
        )
        self.phase = phase
        self._share, self._parts, self.micro_rows = self._relief.get(phase, (0.0, 1, 0))

    def _plan_phase(self, phase: int, watch: Watch) -> None:
        self._set_phase(phase)
        # The nodes of a run that goes on are fitted in the session, and not in the model.
        with once(self._told), watching() if self._is_resumed else contextlib.nullcontext():
            while not self._fits(watch):
                pass
        self._relief[phase] = self._share, self._parts, self.micro_rows

    def _fit_nodes(self, watch: Watch) -> None:
        """Fits statistical nodes; a checkpoint has what was fitted."""
        waves, known = wavelengths_of(self.model, self.data), fitted_of(self.model)
        if waves is not None and known is not None and known.wavelengths is not None:
            check_wavelengths("train", known.wavelengths, [waves])
        if self._is_resumed or not nodes_to_fit(self.model):
            return
        watch.begin("fitting statistics")
        self.fitting = Fitting(self.model, self.data, self.config, self.device)
        self.fitting.run(watch.pause)

    def predict(self) -> dict[str, Any]:
        """The plan of full batches as ``prepare`` would make it, without the device's memory.

        What it would refuse is refused. A precision that is found by measuring is measured.

        Returns
        -------
        dict
            ``Plan.info()`` and "text"; "data_bytes" and "best_bytes" of data and of the best
            and averaged weights that lie in a GPU's memory beside the plan; "micro_rows", the rows
            of a micro-batch where memory asks for parts of a batch, else 0; of several phases
            "epoch", the first of that which takes the most memory.
        """
        self._check_data()
        self._find_phases()
        found: dict[str, Any] = {}
        for phase in reversed(self.phases.firsts):
            if found:
                self._start_over()
            self._set_phase(phase)
            predicted = self._predict_phase()
            if not found or _sum_bytes(predicted) >= _sum_bytes(found):
                found = predicted | ({"epoch": phase} if len(self.phases.firsts) > 1 else {})
        return found

    def _predict_phase(self) -> dict[str, Any]:
        while True:
            try:
                with watching():  # statistical nodes need not be fitted
                    return self._predict_once()
            except DoesNotFit as error:
                if not self._relieve(error):
                    raise self._limit.explain(*self._describe_tries()) from None

    def _predict_once(self) -> dict[str, Any]:
        groups = self._make_steps()
        graphs = self._trace_training(groups)
        self._choose_recompute(graphs, groups)
        split = self.data.split(self.validation_split)
        if split is not None:
            rows, _, number = self._groups(self.validation_split, training=False)[0]
            part = split.parts[number]
            self._traced.append(
                Traced(self.steps.eval_graph(part, rows, self.val_sums, split), part, rows)
            )
        self._check_names()
        self._check_labels()
        for traced in self._traced:
            check_operands(self.runtime, *traced, alone=True)
        ring = self._ring(groups)
        predicted = self.runtime.predict(graphs[0], k=self._k, n_slots=ring["n_slots"])
        predicted["micro_rows"] = self.micro_rows
        is_resident = self.runtime.has_own_memory and not self.runtime.is_fed
        predicted["data_bytes"] = self._data_bytes() if is_resident else 0
        predicted["best_bytes"] = self.weights.copies_bytes() if self.runtime.has_own_memory else 0
        return predicted

    @property
    def data_wait(self) -> float:
        """Seconds for which training waited for its batches so far."""
        return self._waited + sum(feed.waited for feed in self._feeds)

    @property
    def _is_shuffled(self) -> bool:
        """Whether epochs differ: to overfit, the same few batches are in each."""
        return self.config.overfit_batches is None

    def order(self, epoch: int) -> list[tuple[int, int]]:
        """The order of an epoch's batches: (entry of ``train_plans``, its batches that follow)."""
        return self.data.order(
            self._train_groups, epoch, training=self._is_shuffled, run=self._parts
        )

    @property
    def batches_per_step(self) -> int:
        """Micro-batches of an optimizer step, of which an epoch's last one may have fewer."""
        return self._k

    def run_one_step(self, split: str) -> _core.Plan:
        """Runs the first full batch of a split, "train" or "val", so that its plan can be profiled.

        Raises
        ------
        ConfigError
            If the data has no such split.
        """
        if split == "train":
            plan, feed = self.train_plans[0][0], self._feeds[0]
        elif self.val_plans:
            plan, feed = self.val_plans[0].plan, self.val_plans[0].feed
        else:
            raise ConfigError("split: the data has no val split")
        feed.seek(0)
        run_whole(plan)
        return plan

    # ---- memory

    @contextlib.contextmanager
    def explaining_memory(self) -> Iterator[None]:
        """Adds advice to an error for lack of memory. A plan reports what it predicted; memory that
        a driver or a library takes while the plan runs is not in that number.
        """
        try:
            yield
        except DoesNotFit as error:
            raise self._limit.explain(*self._describe_tries()) from error
        except OutOfMemoryError as error:
            text = str(error)
            if self.predicted_bytes:
                memory = self.device.memory()
                free = f" and {memory['free_bytes']} are free" if memory else ""
                text += f"; predicted were {self.predicted_bytes} bytes{free}"
            raise OutOfMemoryError(
                f"{text}; use a smaller batch_size than {self.data.batch_size}"
            ) from error

    def peak_bytes(self) -> int:
        """Allocated bytes of the device's memory where it has its own, else of the core's with the
        copy of what is saved.
        """
        memory = self.device.memory()
        if memory is not None:
            return max(int(memory["peak_bytes"]), self._known_peak)
        return max(self._limit.peak(), self._peak_with_copy, self._known_peak)

    def _predict_saving(self) -> None:
        """Adds the copy of what is saved, where it lies in the same memory as all the rest."""
        if not self.runtime.has_own_memory:
            n_moments = self.phases.moments_beside(self.phase)
            copy = snapshot_bytes(self.runtime, copies=self.weights.n_copies, n_moments=n_moments)
            later = _core.alloc_stats()["current_bytes"] + copy
            self.predicted_bytes = max(self.predicted_bytes, later)

    def copy_bytes(self, copies: int) -> int:
        """Bytes of a copy of what is saved, with so many copies of all weights in it."""
        n_moments = self.phases.moments(self.phase)
        return snapshot_bytes(self.runtime, copies=copies, n_moments=n_moments)

    def note_copy(self, n_bytes: int) -> None:
        """Counts a copy of what is saved, which NumPy allocates beside the core's memory."""
        with_copy = _core.alloc_stats()["current_bytes"] + n_bytes
        self._peak_with_copy = max(self._peak_with_copy, with_copy)

    def _fits(self, watch: Watch) -> bool:
        """Plans everything; False where memory ran out and something may be done about it."""
        try:
            self._plan_all(watch)
            self._predict_saving()
            self._limit.check_planned(self.predicted_bytes)
            self._resolve()
        except OutOfMemoryError as error:
            if not self._relieve(error):
                raise
            if not isinstance(error, DoesNotFit):
                fix = f"micro-batches of {self.micro_rows} rows"
                say(
                    f"hotloop: warning: {error}; trying "
                    f"{'to recompute activations' if self._share else fix}"
                )
            return False
        return True

    def _relieve(self, error: OutOfMemoryError) -> bool:
        """Whether there is more to recompute, or smaller micro-batches to try.

        Frees the plan that did not fit.
        """
        if isinstance(error, DoesNotFit):
            self._limit.note(error)
            if error.is_beside:
                self._start_over()
                self.device.memory_peak_reset()
                return True
        elif self.config.on_oom == "shrink" and self._may_recompute():
            self._start_over()
            self._share = 1.0 if self._share else 0.5
            return True
        return self._shrink(error)

    def _start_over(self) -> None:
        self.close()
        if hasattr(self, "anomalies"):
            del self.anomalies  # which holds graphs
        self._begin()

    def _may_recompute(self) -> bool:
        """Whether a plan that did not fit takes less if more is recomputed."""
        if share_of(self.config) is not None or self._share == 1.0 or not self._traced:
            return False
        try:
            now, all_of_it = (
                self.runtime.predict(self._traced[0].graph, recompute=share)["arena_bytes"]
                for share in (self._share, 1.0)
            )
        except OutOfMemoryError:
            return False
        return int(all_of_it) < int(now)

    def _shrink(self, error: OutOfMemoryError) -> bool:
        """Whether there are smaller micro-batches to try; frees the plan that did not fit."""
        size = max(group.rows for group in self._batches("train", training=True))
        parts = next_split(size, self._parts)
        while parts is not None and not self._limit.may_fit(error, parts / self._parts):
            if (more := next_split(size, parts)) is None:
                break  # the least that there is
            parts = more
        if self.config.on_oom != "shrink" or parts is None or self._why_whole():
            return False
        self._start_over()
        self._parts, self.micro_rows = parts, size // parts
        self._share = 0.0
        return True

    def _why_whole(self) -> str:
        """Why parts of a batch would not give what the whole gives; "": they would."""
        if uses_batch_statistics(self.model):
            return "micro-batches would have other batch statistics"
        loss = self.steps.loss if self._traced else None
        if loss is not None and loss.is_sum:
            return "a loss that is a sum would be another one in micro-batches"
        return ""

    # ---- within a limit

    def _choose_recompute(self, graphs: list[_core.Graph], groups: list[Group]) -> None:
        """Decides how much is recomputed: what is asked for, or as little as fits.

        Raises
        ------
        DoesNotFit
            If no share does, before anything is allocated.
        """
        share = share_of(self.config)
        if self._limit.n_bytes is None:
            self.runtime.recompute = self._share if share is None else share
            return
        looking = self._predict_looking(graphs[0], groups)
        others, copy = [*self._predict_scoring(), *self._predict_statistics(groups), *looking], 0
        if not self.runtime.has_own_memory:
            copy = predict_bytes(
                self.runtime,
                graphs[0],
                copies=self.weights.n_copies,
                n_moments=self.phases.moments_beside(self.phase),
            )
            copy = max([copy, *(plan["store_bytes"] for plan in looking)])
        plan: dict[str, Any] = {}

        def bytes_at(share: float) -> int:
            plan.update(self._limit.watch(lambda: self._predict_share(graphs[0], groups, share)))
            return copy + self._count_bytes([plan] * len(groups) + others)

        n_bytes = bytes_at(share or 0.0)
        if share is None:
            n_choices = plan["n_recompute_choices"]
            share, n_bytes = find_share(bytes_at, n_choices, self._limit.n_bytes)
        self.runtime.recompute = max(share, self._share)
        most = max(one["arena_bytes"] for one in [plan, *others])
        self._limit.check(n_bytes, most + plan["slot_bytes"])

    def _predict_share(
        self, graph: _core.Graph, groups: list[Group], share: float
    ) -> dict[str, Any]:
        n_slots = self._ring(groups)["n_slots"]
        return self.runtime.predict(graph, k=self._k, n_slots=n_slots, recompute=share)

    def _predict_looking(self, graph: _core.Graph, groups: list[Group]) -> list[dict[str, Any]]:
        """The plans of ``detect_anomaly``, predicted by that of full batches."""
        if not self.config.detect_anomaly:
            return []
        one = self._limit.watch(lambda: self.runtime.predict(graph, k=self._k, by_node=True))
        return [one] * len(groups)

    def _predict_scoring(self) -> list[dict[str, Any]]:
        """The plans of validation, predicted by that of its full batches."""
        name = self.validation_split
        split = self.data.split(name)
        if split is None:
            return []
        groups = self._groups(name, training=False)
        rows, _, number = groups[0]
        graph = self.steps.eval_graph(split.parts[number], rows, self.val_sums, split)
        loading = self.data.loading(name)
        n_slots = self.runtime.ring(self.data.num_workers, rows, **loading)["n_slots"]
        one = self._limit.watch(lambda: self.runtime.predict(graph, n_slots=n_slots))
        return [one] * len(groups)

    def _predict_statistics(self, groups: list[Group]) -> list[dict[str, Any]]:
        """The plans of averages' statistics, predicted by that of full batches."""
        if not (found := self._find_statistics()):
            return []
        rows, _, number = groups[0]
        graph = self.steps.statistics_graph(self._split("train").parts[number], rows, found)
        n_slots = self._ring(groups)["n_slots"]
        one = self._limit.watch(lambda: self.runtime.predict(graph, n_slots=n_slots))
        return [one] * len(groups)

    def _count_bytes(self, plans: list[dict[str, Any]]) -> int:
        """The peak of memory with such plans, which share all but constants."""
        needed = self._limit.beside + self.weights.copies_bytes()
        needed += max(plan["store_bytes"] for plan in plans)
        needed += sum(max(plan[part] for plan in plans) for part in ("arena_bytes", "slot_bytes"))
        needed += sum(plan["const_bytes"] for plan in plans)
        if self.runtime.has_own_memory:
            return int(needed + (0 if self.runtime.is_fed else self._data_bytes()))
        held: int = _core.alloc_stats()["current_bytes"]
        of_plans: int = sum(plan.get("host_bytes", 0) for plan in plans)
        return int(needed + held + AROUND + of_plans)

    def _describe_tries(self) -> tuple[list[str], list[str]]:
        """With what a step was tried last, and what may be done in place of a larger limit."""
        share = share_of(self.config)
        done = ["all recomputed that can be"] if share in (None, 1.0) else []
        if self.micro_rows:
            done.append(f"micro-batches of {counted(self.micro_rows, 'row')}")
        fixes = [] if share in (None, 1.0) else ["write recompute='auto'"]
        if self.config.on_oom != "shrink":
            fixes.append("write on_oom='shrink'")
        elif why := self._why_whole():
            fixes.append(f"use a smaller batch_size than {self.data.batch_size} ({why})")
        return done, fixes

    def _has_room(self, graph: _core.Graph, groups: list[Group]) -> bool:
        """Whether the data goes into a GPU's memory: there is room beside the plan."""
        memory = self.device.memory()
        assert memory is not None  # has_own_memory
        if isinstance(self.config.device_cache, bool):
            return self.config.device_cache
        # The largest plan of the run makes nearly all that the run will hold.
        self.runtime.is_fed = False
        plan = self.runtime.predict(graph, k=self._k, n_slots=self._ring(groups)["n_slots"])
        needed = self._count_bytes([plan])
        room: int = memory["free_bytes"] - memory["total_bytes"] // _ROOM_SHARE
        return needed <= self._limit.within(room)

    def _data_bytes(self) -> int:
        """Bytes of the arrays that training and validation gather from."""
        splits = (self.data.split("train"), self.data.split("val"))
        fields = (field for split in splits if split is not None for field in split.fields)
        arrays = {id(array): array.nbytes for array, _ in (field.source for field in fields)}
        return sum(arrays.values())

    # ---- batches

    @property
    def _k(self) -> int:
        """Micro-batches of a step."""
        return self.config.accumulate_grad_batches * self._parts

    @functools.cached_property
    def _needs_two_rows(self) -> bool:
        return has_statistics_of_rows(self.model, self.data)

    def _split(self, name: str) -> Split:
        split = self.data.split(name)
        assert split is not None  # DataModule always has training rows
        return split

    def _groups(self, split: str, *, training: bool) -> list[Group]:
        """Groups of micro-batches: full ones, then what is left."""
        groups = self._batches(split, training=training)
        return groups if self._parts == 1 else split_batches(groups, self.micro_rows)

    def _batches(self, split: str, *, training: bool) -> list[Group]:
        """Groups of batches: full ones, then what is left."""
        groups = self.data.batches(split, training=training, merge_tail=False)
        if training and any(group.rows == 1 for group in groups) and self._needs_two_rows:
            groups = self.data.batches(split, training=True, merge_tail=True)
        limit = self.config.overfit_batches
        if limit is None:
            limit = self.config.limit_batches
        if limit is not None:
            n = sum(group.batches for group in groups)
            # 0.29 of 100 is 28.999999999999996
            left = max(1, int(n * limit + 1e-9)) if isinstance(limit, float) else limit
            groups = limit_batches(groups, left)
        if not groups:
            raise ConfigError(f"{split}: the batch size leaves no batch; use a smaller batch_size")
        return groups

    def _ring(self, groups: list[Group]) -> dict[str, int]:
        loading = self.data.loading("train")
        return self.runtime.ring(self.data.num_workers, groups[0].rows, self._k, **loading)

    # ---- tracing and planning

    def _check_data(self) -> None:
        """Checks the data and chooses the device."""
        config, data = self.config, self.data
        _core.alloc_peak_reset()
        data.check("train")
        data.warn_of_one_class()
        if data.split("val") is not None:
            data.check("val")
        self.device, self.why_no_gpu = (
            (self._described, "")
            if self._described is not None
            else choose_device(config.accelerator, config.precision, config.devices)
        )
        check_gpu_options(config, self.device)
        self._limit.begin(self.device)
        self._warn_of_scaling()
        self._warn_of_classes()

    def _warn_of_scaling(self) -> None:
        """Says that a model which goes on sees inputs of another scale from now on."""
        before, now = fitted_of(self.model), self.data.transforms
        if before is not None and before.transforms and not now:
            warn(
                "train: the model was trained on standardised data and goes on with data as it is, "
                "which predict no longer standardises; write standardize= where the data is made, "
                "or model.reset()",
                ModelWarning,
            )

    def _warn_of_classes(self) -> None:
        """Says that outputs of a model which goes on stand for other classes from now on."""
        before = fitted_of(self.model)
        if before is None:
            return
        for name, target in self.data.targets.items():
            known = before.of(name)
            if known.kind != "class" or not target.has_names or known.classes == target.classes:
                continue
            old, new = known.classes or [], target.classes or []
            moved = [each for each in new if each in old and old.index(each) != new.index(each)]
            if moved or not old:
                was = f"{show(old)} in this order" if old else "class ids without names"
                warn(
                    f"train: the model was trained on {was} and goes on with {show(new)}, so that "
                    "its outputs stand for other classes from now on; for the same ones write "
                    f"classes={show(old) if old else '[...]'} where the data is made, for others "
                    "give the model a new last layer or model.reset()",
                    ModelWarning,
                )

    def _make_steps(self) -> list[Group]:
        """Everything before the first trace; the groups of training's batches."""
        config, data = self.config, self.data
        self.runtime = Runtime(
            self.model,
            self.device,
            seed=config.seed,
            config=config,
            trains=True,
            epoch=self.phase,
        )
        self.weights = Weights(self.runtime, config)
        own = config.replace(accumulate_grad_batches=self._k)
        self.began = self._find_began()
        self.steps = Steps(self.runtime, data, own, keeps_matrix=True, began=self.began)
        groups = self._groups("train", training=True)
        self.counts = count_steps(self.steps.config, sum(group.batches for group in groups))
        return groups

    def _find_began(self) -> dict[str, int]:
        if self.phase > self._epoch:  # it is planned to be known, with as many segments as it has
            return self.phases.joined(self.phase)
        names = [slot.name for slot in self.runtime.layout.trainable]
        return {} if self._snapshot is None else find_began(self._snapshot, names)

    def _plan_all(self, watch: Watch) -> None:
        config = self.config
        groups = self._make_steps()
        runtime, counts = self.runtime, self.counts
        watch.begin("planning")
        graphs = self._trace_training(groups)
        self._choose_recompute(graphs, groups)
        watch.begin("planning")
        self._plan_training(groups, graphs)
        watch.begin("planning")
        self._plan_statistics(groups)
        self._plan_validation()
        self._check_names()
        self._check_labels()
        runtime.warn_of_steppers("train")
        runtime.upload()
        for traced in self._traced:
            check_operands(runtime, *traced)
        runtime.write_tables(rates(config, counts), counts.total)
        nan_mode = "skip" if config.on_nan == "skip" else "stop"
        runtime.session.control_set(nan_mode=nan_mode)
        start_scale(runtime.session, self.config.precision)
        self.weights.begin_average()
        watch.begin("planning")
        self._autotune(watch)
        self.weights.reserve()
        self.anomalies.reserve()
        self.predicted_bytes = self.peak_bytes()  # running allocates nothing
        self.recomputed = describe(self.train_plans[0][0].info())
        watch.begin("planning")

    def _trace_training(self, groups: list[Group]) -> list[_core.Graph]:
        """The steps' graphs; then the precision and the home of the data are chosen."""
        parts, total = self._split("train").parts, self.counts.total
        traced = [
            Traced(self.steps.train_graph(parts[number], size, total), parts[number], size)
            for size, _, number in groups
        ]
        graphs = [one.graph for one in traced]
        self._traced += graphs_of_parts(traced)
        self._choose_precision()
        if self.runtime.has_own_memory:
            # Arrays beside rows that threads make are fed with these.
            self.runtime.is_fed = self._is_streamed or not self._has_room(graphs[0], groups)
        return graphs

    @property
    def _is_streamed(self) -> bool:
        splits = (self.data.split(name) for name in ("train", self.validation_split))
        return any(split is not None and split.is_streamed for split in splits)

    def _choose_precision(self) -> None:
        choice = choose(self.config, self.runtime, self.data, *self._traced[0])
        if choice.warning:
            say(f"hotloop: warning: {choice.warning}")
        self.runtime.compute_dtype = choice.compute_dtype
        self.config = self.config.replace(precision=choice.precision)

    def _plan_training(self, groups: list[Group], graphs: list[_core.Graph]) -> None:
        parts = self._split("train").parts
        self._feeds = self.data.feeds(
            "train", groups, training=self._is_shuffled, **self._ring(groups)
        )
        for (size, count, number), graph, feed in zip(groups, graphs, self._feeds, strict=True):
            plan = self.runtime.plan(graph, parts[number], feed, k=self._k)
            self.train_plans.append((plan, size, count))
        self._train_groups = groups
        order = [(plan, count) for plan, _, count in self.train_plans]
        self.runner = self.runtime.runner(order, self._k)
        self.anomalies = Anomalies(self.runtime, self.config, self.runner, self._k)
        self.anomalies.set_plans(self.data, groups, graphs, training=self._is_shuffled)
        self.steps.warn_of_training()

    def _plan_statistics(self, groups: list[Group]) -> None:
        """Plans the pass over training's rows that ``swa`` takes for models with batch norms."""
        self.statistics = self._find_statistics()
        if not self.statistics:
            return
        parts = self._split("train").parts
        feeds = self.data.feeds("train", groups, training=self._is_shuffled, **self._ring(groups))
        for (rows, count, number), feed in zip(groups, feeds, strict=True):
            graph = self.steps.statistics_graph(parts[number], rows, self.statistics)
            plan = self.runtime.plan(graph, parts[number], feed)
            traced = Traced(graph, parts[number], rows)
            self.statistics_plans.append(EvalPlan(plan, count, feed, traced))

    def _find_statistics(self) -> list[Variable]:
        modules = self.model.modules() if self.config.swa else ()
        norms = [module for module in modules if isinstance(module, BatchNorm)]
        return list({id(one): one for norm in norms for one in norm.statistics()}.values())

    def _plan_validation(self) -> None:
        name = self.validation_split
        if self.data.split(name) is not None:
            groups = self._groups(name, training=False)
            self.val_plans = self.steps.eval_plans(name, groups, self.val_sums)
            self._traced += graphs_of_parts(plan.traced for plan in self.val_plans)

    def _check_names(self) -> None:
        """Checks that something computes every value that is monitored."""
        known = self.steps.value_names(self.steps.train_sums)
        if self.val_sums.names:
            names = self.steps.value_names(self.val_sums, collected=True)
            known += [f"val_{name}" for name in names]
        columns = COLUMNS if wants_scale(self.config.precision) else ("epoch", "lr", *MEASURED)
        self.row_names = (*columns, *known)
        known += Events(self.config.callbacks).logged
        if not hasattr(self, "monitor"):  # which stays, whatever is planned anew
            self.monitor = Monitor(self.config, known, self.steps.directions())

    def _check_labels(self) -> None:
        """Checks that every class id has an output of the model, in training and validation."""
        for name in ("train", "val"):
            if self.data.split(name) is not None:
                self.steps.check_labels(self.data, name)

    def _autotune(self, watch: Watch) -> None:
        """Tunes all plans, so that the header names the memory of those that run."""
        plans = [plan for plan, _, _ in self.train_plans]
        plans += [plan for plan, _, _, _ in (*self.statistics_plans, *self.val_plans)]
        n_products = sum(plan.info()["n_to_autotune"] for plan in plans)
        if n_products and self.config.enable_progress_bar is not False:
            say(f"choosing the kernels of {n_products} products")
        for plan in plans:
            self.runtime.tune(plan, lambda: watch.is_over)

    def _resolve(self) -> None:
        """Replaces "auto" by what was chosen, so that the configuration reproduces the run."""
        if share_of(self.config) is None:
            self.config = self.config.replace(recompute=self.runtime.recompute)
        if self.runtime.has_own_memory:
            graphs, cache = self.config.cuda_graph is not False, not self.runtime.is_fed
            self.config = self.config.replace(
                accelerator="gpu", cuda_graph=graphs, device_cache=cache
            )
        else:
            self.config = self.config.replace(accelerator="cpu")


def _sum_bytes(predicted: dict[str, Any]) -> int:
    parts = ("arena", "slot", "const", "store", "data", "best")
    return sum(int(predicted[f"{part}_bytes"]) for part in parts)
