"""``train``: the run from configuration to result.

Everything is planned before the first step: full and last batches of training and validation. Then
the loop only hands slices of at most 50 ms to the core, checks for Ctrl-C and moves the bar.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop import _core
from hotloop._suggest import did_you_mean
from hotloop.errors import (
    BusyError,
    ConfigError,
    NotFiniteError,
    OutOfMemoryError,
    TrainingInterrupted,
)
from hotloop.nn.layout import resolve_lazy
from hotloop.training.accelerator import (
    check_gpu_options,
    choose_device,
    losing_device,
    name_device,
)
from hotloop.training.config import TrainingConfig
from hotloop.training.csvlog import CsvLog
from hotloop.training.fitted import (
    check_model,
    collect_metadata,
    exclusive,
    fitted_of,
    set_metadata,
    uses_batch_statistics,
)
from hotloop.training.lookups import check_lookups
from hotloop.training.micro import next_split, split_batches
from hotloop.training.precision import choose, describe, start_scale, wants_scale
from hotloop.training.progress import (
    Progress,
    format_bytes,
    format_count,
    format_seconds,
    header_lines,
    show,
)
from hotloop.training.result import History, TrainResult
from hotloop.training.rules import items
from hotloop.training.runtime import Runtime, Sums
from hotloop.training.schedule import PlateauState, count_steps, lr_table
from hotloop.training.signals import Interrupts
from hotloop.training.steps import EvalPlans, Steps, Traced
from hotloop.training.summary import summarize

if TYPE_CHECKING:
    from hotloop.data.module import DataModule
    from hotloop.data.split import Split
    from hotloop.nn.module import Module

__all__ = ["train"]

_SLICE_SECONDS = 0.05
# The share of a GPU's memory that resident data leaves free, for other processes and libraries.
_ROOM_SHARE = 16
_CALLS = ("on_train_start", "on_epoch_end", "on_train_end")


def train(
    model: Module | None = None,
    datamodule: Any = None,
    training_config: TrainingConfig | None = None,
    *,
    resume: Any = None,
    callbacks: tuple[Any, ...] = (),
    **overrides: Any,
) -> TrainResult:
    """Trains a model.

    Parameters
    ----------
    model : Module
        Trained in place: it has the new weights when this returns. A model that was trained
        before goes on from its weights; ``model.reset()`` starts over. Where it defines
        ``training_step(self, batch)``, that makes the loss: a tensor, or a dict of tensors, which
        are summed and logged by name. ``batch`` is a dict of "x", as ``forward`` takes it, "y"
        and, with sample weights, "weight".
    datamodule : DataModule, or a tuple (X, y)
        What to train on. Of a tuple with 50 rows or more, a fifth validates.
    training_config : TrainingConfig, optional
        How. Without it, the defaults.
    resume : None
        Continuing an earlier run needs checkpoints, which this version does not write.
    callbacks : sequence
        Objects with any of the methods ``on_train_start(run)``, ``on_epoch_end(run)`` and
        ``on_train_end(run)``; ``run.stop()`` in one of them ends training.
    **overrides
        Fields of the configuration, ``lr=3e-4``.

    Returns
    -------
    TrainResult
        However training ended.

    Raises
    ------
    ConfigError, ShapeError, DataError, TraceError
        For wrong input, before any weight changes.
    TrainingInterrupted
        On Ctrl-C in a script; its ``result`` is what a notebook would get returned.
    BusyError
        If another thread is training this model.
    OutOfMemoryError
        With what was predicted, asked for and free; a smaller ``batch_size`` may fit.
    DeviceError, DeviceLostError
        If a GPU that is asked for cannot be had; if it fails while it is used.

    Examples
    --------
    >>> result = hl.train(net, (X, y), max_epochs=5)  # doctest: +SKIP
    """
    from hotloop.data.module import as_datamodule

    began = time.perf_counter()
    model = check_model("train", model)
    if datamodule is None:
        raise ConfigError("train: data is missing; give a DataModule or a tuple (X, y)")
    if resume not in (None, "auto", False):
        raise ConfigError(
            f"resume: this version writes no checkpoints to continue from, got {resume!r}; a "
            "trained model goes on from its weights when it is trained again"
        )
    config = TrainingConfig.resolve(training_config, overrides)
    if callbacks:
        given = items("callbacks", callbacks, "a list of callbacks")
        config = config.replace(callbacks=(*config.callbacks, *given))
    for callback in config.callbacks:
        if not any(hasattr(callback, name) for name in _CALLS):
            raise ConfigError(
                f"callbacks: must have one of the methods {', '.join(_CALLS)}, got {callback!r}"
            )
    config.check_supported()
    data = as_datamodule(datamodule)
    with exclusive(model, "train"), losing_device():
        run = Run(model, data, config, began)
        try:
            with Interrupts() as interrupts:
                result = run.execute(interrupts)
        finally:
            run.close()
    return _finish(result, config, by_signal=interrupts.count > 0)


def _finish(result: TrainResult, config: TrainingConfig, *, by_signal: bool) -> TrainResult:
    if result.stop_reason == "nan" and config.on_nan == "raise":
        raise NotFiniteError(
            f"train: the loss or a gradient was not finite at step {result.steps + 1}; the model "
            "has the last finite weights. Lower lr, clip gradients or look for bad data"
        )
    if by_signal:
        raises = config.on_interrupt == "raise" or (
            config.on_interrupt == "auto" and not _is_interactive()
        )
        if raises:
            error = TrainingInterrupted("training was interrupted; .result holds what was reached")
            error.result = result
            raise error
    if by_signal or config.enable_progress_bar is not False:
        show(f"hotloop: {_last_words(result, config)}")
    return result


def _last_words(result: TrainResult, config: TrainingConfig) -> str:
    """How training ended, and which weights the model has."""
    how = {
        "early_stopping": "stopped early",
        "max_time": "stopped at max_time",
        "max_steps": "stopped at max_steps",
        "nan": f"stopped: loss or gradient not finite at step {result.steps + 1}",
    }.get(result.stop_reason, result.stop_reason)
    weights = "the last weights"
    if config.restore_best and result.best_score is not None:
        weights = (
            f"the weights of epoch {result.best_epoch} "
            f"(best {result.monitor}, {result.best_score:.4g})"
        )
    elif result.stop_reason == "nan":
        weights = "the last finite weights"
    return f"{how} after {format_seconds(result.seconds)}; the model has {weights}"


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or "IPython" in sys.modules or bool(sys.flags.interactive)


def _known_monitor(field: str, name: str, known: list[str]) -> str:
    """The name, or "loss" for "val_loss" without validation; refuses an unknown name."""
    if name in known:
        return name
    if name == "val_loss" and not any(other.startswith("val_") for other in known):
        return "loss"
    raise ConfigError(
        f"{field}: must be one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}"
    )


class Run:
    """One call of ``train``.

    Attributes
    ----------
    epoch : int
        Epochs in the history.
    history : History
    config : TrainingConfig
    model : Module
    train_plans : list of (Plan, int, int)
        The training step's plans, each with its batch size and number of batches in an epoch:
        full batches, then what is left.

    What a run holds on the device is given back when ``train`` returns or raises.
    """

    def __init__(
        self, model: Module, data: DataModule, config: TrainingConfig, began: float
    ) -> None:
        self.model = model
        self.data = data
        self.config = config
        self.history = History()
        self.epoch = 0
        self._began = began
        self._interrupts = Interrupts()  # none, until execute has those of the process
        self._stop_reason = ""
        self._timings = dict.fromkeys(("plan", "train", "validate", "other"), 0.0)
        self._samples = 0
        self._attempted = self._not_applied = 0
        self._best: float | None = None
        self._best_epoch: int | None = None
        self._plateau: PlateauState | None = None
        self._bad_rounds = 0
        self._val_sums = Sums("val")
        self.train_plans: list[tuple[_core.Plan, int, int]] = []
        self._runner: _core.Runner | None = None
        self._traced: list[Traced] = []
        self._predicted = 0
        self._parts = 1  # of a batch: more where memory ran out
        self._micro_rows = 0

    def stop(self, reason: str = "interrupted") -> None:
        """Ends training after the current step; may be called from any thread."""
        self._stop_reason = self._stop_reason or reason
        if self._runner is not None:
            self._runner.stop()

    def close(self) -> None:
        """Gives back the device's memory."""
        if hasattr(self, "runtime"):  # planning came so far
            # Another thread may be using a plan: then the last reference frees it.
            with contextlib.suppress(BusyError):
                self.runtime.close()

    # ---- preparation

    def prepare(self) -> None:
        """Checks the data, chooses the device, traces and plans everything.

        Raises
        ------
        OutOfMemoryError
            With the sentence of the plan that did not fit.
        """
        self._check_data()
        self.device.memory_peak_reset()
        with self._explaining_memory():
            while not self._fits():
                pass

    def predict(self) -> dict[str, Any]:
        """The plan of full batches as ``prepare`` would make it, without the device's memory.

        What it would refuse is refused. A precision that is found by measuring is measured.

        Returns
        -------
        dict
            ``Plan.info()``, and "text".
        """
        self._check_data()
        groups = self._make_steps()
        graph = self._trace_training(groups)[0]
        split = self._validation_split
        if self.data.split(split) is not None:
            rows = self._groups(split, training=False)[0][0]
            graph_of_split = self.steps.eval_graph(self._split(split), rows, self._val_sums)
            self._traced.append(Traced(graph_of_split, self._split(split), rows))
        self._check_monitors()
        self._check_labels()
        for traced in self._traced:
            check_lookups(self.runtime, *traced, alone=True)
        ring = self._ring(groups)
        return self.runtime.predict(graph, k=self._k, n_slots=ring["n_slots"])

    def _check_data(self) -> None:
        """Checks the data and chooses the device."""
        config, data = self.config, self.data
        _core.alloc_peak_reset()
        data.check("train")
        data.warn_of_one_class()
        if data.split("val") is not None:
            data.check("val")
        self.device, self._why_no_gpu = choose_device(
            config.accelerator, config.precision, config.devices
        )
        check_gpu_options(config, self.device)

    def _fits(self) -> bool:
        """Plans everything; False where memory ran out and smaller micro-batches may do."""
        try:
            self._plan_all()
        except OutOfMemoryError as error:
            if not self._shrink():
                raise
            show(f"hotloop: warning: {error}; trying micro-batches of {self._micro_rows} rows")
            return False
        return True

    def _shrink(self) -> bool:
        """Whether there are smaller micro-batches to try; frees the plan that did not fit."""
        size = self._batches("train", training=True)[0][0]
        parts = next_split(size, self._parts)
        if self.config.on_oom != "shrink" or parts is None or uses_batch_statistics(self.model):
            return False
        self.close()
        self.train_plans, self._traced, self._val_sums = [], [], Sums("val")
        self._runner = None
        self._parts, self._micro_rows = parts, size // parts
        return True

    @property
    def _k(self) -> int:
        """Micro-batches of a step."""
        return self.config.accumulate_grad_batches * self._parts

    @contextlib.contextmanager
    def _explaining_memory(self) -> Iterator[None]:
        """Adds advice to an error for lack of memory. A plan reports what it predicted; memory that
        a driver or a library takes while the plan runs is not in that number.
        """
        try:
            yield
        except OutOfMemoryError as error:
            text = str(error)
            if self._predicted:
                memory = self.device.memory()
                free = f" and {memory['free_bytes']} are free" if memory else ""
                text += f"; predicted were {self._predicted} bytes{free}"
            raise OutOfMemoryError(
                f"{text}; use a smaller batch_size than {self.data.batch_size}"
            ) from error

    def _make_steps(self) -> list[tuple[int, int]]:
        """Everything before the first trace; the groups of training's batches."""
        config, data = self.config, self.data
        resolve_lazy(self.model, data.example_inputs())
        self.runtime = Runtime(
            self.model, self.device, seed=config.seed, config=config, trains=True
        )
        self.steps = Steps(self.runtime, data, config.replace(accumulate_grad_batches=self._k))
        groups = self._groups("train", training=True)
        self._counts = count_steps(self.steps.config, sum(count for _, count in groups))
        return groups

    def _plan_all(self) -> None:
        config = self.config
        groups = self._make_steps()
        total = self._counts.total
        self._plan_training(groups, self._trace_training(groups))
        self._plan_validation()
        self._check_monitors()
        self._check_labels()
        self.runtime.upload()
        for traced in self._traced:
            check_lookups(self.runtime, *traced)
        rates = lr_table(config, total, self._counts.per_epoch) * config.lr
        self.runtime.write_tables(rates)
        nan_mode = "skip" if config.on_nan == "skip" else "stop"
        self.runtime.session.control_set(nan_mode=nan_mode)
        start_scale(self.runtime.session, self.config.precision)
        if config.scheduler_config.name == "plateau":
            self._plateau = PlateauState.from_config(config)
        if config.ema:
            self.runtime.session.write("ema", self._trainable_values())
        self._autotune()
        self._timings["plan"] = time.perf_counter() - self._began
        if config.restore_best:
            for name, (dtype, n) in self.runtime.layout.stores().items():
                self.runtime.session.store(f"best.{name}", dtype, n)
        self._predicted = self._predict_bytes()
        self._resolve()

    def _autotune(self) -> None:
        """Tunes all plans, so that the header names the memory of those that run."""
        plans = [plan for plan, _, _ in self.train_plans]
        plans += [plan for plan, _, _, _ in self._val_plans]
        n_products = sum(plan.info()["n_to_autotune"] for plan in plans)
        if n_products and self.config.enable_progress_bar is not False:
            show(f"choosing the kernels of {n_products} products")
        for plan in plans:
            self.runtime.tune(plan, lambda: self._interrupts.asked)

    def run_one_step(self, split: str) -> _core.Plan:
        """Runs the first full batch of a split, "train" or "val", so that its plan can be profiled.

        Raises
        ------
        ConfigError
            If the data has no such split.
        """
        if split == "train":
            plan, feed = self.train_plans[0][0], self._feeds[0]
        elif self._val_plans:
            plan, feed = self._val_plans[0].plan, self._val_plans[0].feed
        else:
            raise ConfigError("split: the data has no val split")
        feed.seek(0)
        while plan.run(1, _SLICE_SECONDS)[0] == "deadline":
            pass
        return plan

    def _resolve(self) -> None:
        """Replaces "auto" by what was chosen, so that the configuration reproduces the run."""
        if self.runtime.has_own_memory:
            graphs, cache = self.config.cuda_graph is not False, not self.runtime.is_fed
            self.config = self.config.replace(
                accelerator="gpu", cuda_graph=graphs, device_cache=cache
            )
        else:
            self.config = self.config.replace(accelerator="cpu")

    def _split(self, name: str) -> Split:
        split = self.data.split(name)
        assert split is not None  # DataModule always has training rows
        return split

    def _groups(self, split: str, *, training: bool) -> list[tuple[int, int]]:
        """(rows, number of micro-batches): full ones, then what is left."""
        groups = self._batches(split, training=training)
        return groups if self._parts == 1 else split_batches(groups, self._micro_rows)

    def _batches(self, split: str, *, training: bool) -> list[tuple[int, int]]:
        """(batch size, number of batches): full ones, then what is left."""
        groups: list[tuple[int, int]] = self.data.batches(
            split, training=training, merge_tail=training and uses_batch_statistics(self.model)
        )
        limit = self.config.overfit_batches
        if limit is None:
            limit = self.config.limit_batches
        if limit is not None:
            n = sum(count for _, count in groups)
            # 0.29 of 100 is 28.999999999999996
            left = max(1, int(n * limit + 1e-9)) if isinstance(limit, float) else limit
            kept = []
            for size, count in groups:
                if left > 0:
                    kept.append((size, min(count, left)))
                    left -= count
            groups = kept
        if not groups:
            raise ConfigError(f"{split}: the batch size leaves no batch; use a smaller batch_size")
        return groups

    def _trace_training(self, groups: list[tuple[int, int]]) -> list[_core.Graph]:
        """The steps' graphs; then the precision and the home of the data are chosen."""
        split, total = self._split("train"), self._counts.total
        graphs = [self.steps.train_graph(split, size, total) for size, _ in groups]
        self._traced.append(Traced(graphs[0], split, groups[0][0]))
        self._choose_precision()
        if self.runtime.has_own_memory:
            self.runtime.is_fed = not self._has_room(graphs[0], groups)
        return graphs

    def _ring(self, groups: list[tuple[int, int]]) -> dict[str, int]:
        return self.runtime.ring(self.data.num_workers, groups[0][0], self._k)

    def _plan_training(self, groups: list[tuple[int, int]], graphs: list[_core.Graph]) -> None:
        split = self._split("train")
        shuffled = self.config.overfit_batches is None  # the same few batches in each epoch
        self._feeds = self.data.feeds("train", groups, training=shuffled, **self._ring(groups))
        for (size, count), graph, feed in zip(groups, graphs, self._feeds, strict=True):
            plan = self.runtime.plan(graph, split, feed, k=self._k)
            self.train_plans.append((plan, size, count))
        order = [(plan, count) for plan, _, count in self.train_plans]
        self._runner = self.runtime.runner(order, self._k)
        if self.steps.doubt:
            show(f"hotloop: warning: {self.steps.doubt}")
        for name in self.steps.no_grad:
            show(f"hotloop: warning: parameter {name} gets no gradient: the loss does not use it")

    def _choose_precision(self) -> None:
        choice = choose(self.config, self.runtime, self.steps, *self._traced[0])
        if choice.warning:
            show(f"hotloop: warning: {choice.warning}")
        self.runtime.compute_dtype = choice.compute_dtype
        self.config = self.config.replace(precision=choice.precision)

    def _has_room(self, graph: _core.Graph, groups: list[tuple[int, int]]) -> bool:
        """Whether the data goes into a GPU's memory: there is room beside the plan."""
        memory = self.device.memory()
        assert memory is not None  # has_own_memory
        if isinstance(self.config.device_cache, bool):
            return self.config.device_cache
        # The largest plan of the run makes nearly all that the run will hold.
        self.runtime.is_fed = False
        plan = self.runtime.predict(graph, k=self._k, n_slots=self._ring(groups)["n_slots"])
        needed = self._data_bytes() + (self._best_bytes() if self.config.restore_best else 0)
        needed += sum(plan[f"{part}_bytes"] for part in ("arena", "slot", "const", "store"))
        room: int = memory["free_bytes"] - memory["total_bytes"] // _ROOM_SHARE
        return int(needed) <= room

    def _data_bytes(self) -> int:
        """Bytes of the arrays that training and validation gather from."""
        splits = (self.data.split("train"), self.data.split("val"))
        arrays = {id(f.array): f.array.nbytes for s in splits if s is not None for f in s.fields}
        return sum(arrays.values())

    def _best_bytes(self) -> int:
        """Bytes of the copy of the best weights."""
        stores = self.runtime.layout.stores().values()
        return sum(n * np.dtype(dtype).itemsize for dtype, n in stores)

    @property
    def _validation_split(self) -> str:
        return "val" if self.config.overfit_batches is None else "train"

    def _plan_validation(self) -> None:
        name = self._validation_split
        self._val_plans: EvalPlans = []
        if self.data.split(name) is not None:
            groups = self._groups(name, training=False)
            self._val_plans = self.steps.eval_plans(name, groups, self._val_sums)
            self._traced.append(self._val_plans[0].traced)

    def _check_monitors(self) -> None:
        """Checks that something computes every value that is monitored."""
        config = self.config
        stopping = config.early_stopping
        known = self.steps.value_names(self.steps.train_sums)
        if self._val_sums.names:
            names = self.steps.value_names(self._val_sums, functions=True)
            known += [f"val_{name}" for name in names]
        own = stopping.monitor if stopping else None
        self._monitor = _known_monitor(
            "early_stopping.monitor" if own else "monitor", own or config.monitor, known
        )
        watched = config.scheduler_config.monitor or config.monitor
        field = "scheduler.monitor" if watched != config.monitor else "monitor"
        self._plateau_monitor = _known_monitor(field, watched, known)

    def _check_labels(self) -> None:
        """Checks that every class id has an output of the model, in training and validation."""
        if self.steps.n_outputs is not None:
            for name in ("train", "val"):
                if self.data.split(name) is not None:
                    self.data.check_labels(name, self.steps.n_outputs)

    def _predict_bytes(self) -> int:
        """The peak of memory so far; running allocates nothing, so planning decides it."""
        return self._peak_bytes()

    def _peak_bytes(self) -> int:
        """Allocated bytes of the device's memory where it has its own, else of the core's."""
        memory = self.device.memory()
        return (memory or _core.alloc_stats())["peak_bytes"]

    def _data_home(self) -> str:
        if not self.runtime.has_own_memory:
            return ""
        return ", fed from the CPU" if self.runtime.is_fed else ", in the GPU's memory"

    def _header(self) -> None:
        config, data = self.config, self.data
        if config.enable_progress_bar is False:
            return
        train = self._split("train")
        val = data.split("val")
        optimizer = config.optimizer_config
        decay = f" wd {optimizer.weight_decay:g}" if optimizer.weight_decay else ""
        if decay and not config.decay_norm_and_bias:
            decay += " (not on norms and biases)"
        rows = f"{format_count(train.n)}" + (f" + {format_count(val.n)} val" if val else "")
        parts = f" in micro-batches of {self._micro_rows}" if self._parts > 1 else ""
        clip = config.gradient_clip_val
        again = "continues from its weights" if fitted_of(self.model) else ""
        facts = [
            ("", name_device(self.device)),
            ("precision", describe(self.device, self.runtime.compute_dtype)),
            ("model", f"{format_count(self.runtime.n_trainable)} parameters {again}".strip()),
            ("data", f"{rows} rows{self._data_home()}, batch {data.batch_size}{parts}"),
            ("loss", self.steps.loss.name if self.steps.loss else "training_step"),
            ("optimizer", f"{optimizer.name} lr {config.lr:g}{decay}"),
            ("schedule", config.scheduler_config.name),
            ("clip", f"{clip:g} {config.gradient_clip_algorithm}" if clip else "off"),
            ("memory", format_bytes(self._predicted)),
        ]
        if self.runtime.has_own_memory:
            facts.insert(
                2,
                (
                    "steps",
                    "launched one by one" if config.cuda_graph is False else "as CUDA graphs",
                ),
            )
        if self._why_no_gpu:
            facts.insert(1, ("no GPU", self._why_no_gpu))
        if self._csv is not None and self._csv.path is not None:
            facts.append(("log", self._csv.path))
        if config.accumulate_grad_batches > 1:
            facts.append(("accumulate", str(config.accumulate_grad_batches)))
        show(header_lines(facts))

    # ---- the loop

    def execute(self, interrupts: Interrupts) -> TrainResult:
        """Prepares, runs the epochs, restores the best weights."""
        self._interrupts = interrupts
        self.prepare()
        if self.config.enable_model_summary and self.config.enable_progress_bar is not False:
            show(summarize(self.model))
        self._csv = CsvLog(self.config.output_dir) if self.config.logger == "csv" else None
        self._header()
        self._progress = Progress(self.config.enable_progress_bar, self.config.max_epochs)
        self._call("on_train_start")
        try:
            while self.epoch < self.config.max_epochs and not self._is_over():
                self._run_epoch()
        finally:
            self._progress.close()
            if self._csv is not None:
                self._csv.write(self.history, last=True)
        return self._conclude()

    def _call(self, name: str) -> None:
        for callback in self.config.callbacks:
            method = getattr(callback, name, None)
            if method is not None:
                method(self)

    def _run_epoch(self) -> None:
        session = self.runtime.session
        epoch, began = self.epoch + 1, time.perf_counter()
        self.steps.train_sums.clear(session)
        before = self._samples
        self._progress.begin_epoch(epoch, sum(size * count for _, size, count in self.train_plans))
        runner = self._runner
        assert runner is not None  # prepare has made it
        runner.seek(self.epoch)
        with self._explaining_memory():
            complete = self._run_batches(runner)
        trained = time.perf_counter() - began
        self._timings["train"] += trained
        out_of_budget = self._is_over() and self._stop_reason in ("max_steps", "max_time")
        if self._samples == before or not (complete or out_of_budget):
            return
        values = self.steps.values(self.steps.train_sums.read(session))
        row = {"epoch": float(epoch), "loss": values.pop("loss"), **values}
        is_due = epoch % self.config.check_val_every_n_epoch == 0
        if self._val_plans and (is_due or out_of_budget):
            with self._explaining_memory():
                row.update(self._validate())
            if self._interrupts.asked:  # the pass over the split is incomplete
                self._stop_reason = "interrupted"
                return
        row["lr"] = self._current_lr()
        if wants_scale(self.config.precision):
            control = session.control()
            row["loss_scale"] = control["loss_scale"]
            row["skipped"] = float(control["skipped"])
        row["seconds"] = time.perf_counter() - began
        self.history.append(row)
        self.epoch = epoch
        if self._csv is not None:
            self._csv.write(self.history)
        self._progress.end_epoch(epoch, row, trained, self._samples - before)
        self._judge(row)
        self._call("on_epoch_end")

    def _current_lr(self) -> float:
        log = self.runtime.session.control_log(0)
        return float(log[-1][3]) if log else 0.0

    def _run_batches(self, runner: _core.Runner) -> bool:
        """All steps of the epoch; False when training ends in between."""
        done, n_batches = 0, sum(count for _, _, count in self.train_plans)
        while done < n_batches:
            if self._is_over():
                return False
            how, ran, batches = runner.run(self._steps_left(), _SLICE_SECONDS)
            if self._interrupts.asked:
                self._stop_reason = self._stop_reason or "interrupted"
            if self._is_over():
                how, more, more_batches = self._finish_step(runner, how)
                ran, batches = ran + more, batches + more_batches
            samples = self._count_rows(done + batches) - self._count_rows(done)
            done += batches
            self._attempted += ran
            self._samples += samples
            if not self._progress.is_quiet and ran:
                now = self.runtime.session.snapshot()
                self._progress.advance(samples, {"loss": now["loss"], "lr": now["lr"]})
            if how == "stopped":
                self._stop_reason = "nan"
                return False
        return True

    def _count_rows(self, n_batches: int) -> int:
        """Samples in the first batches of an epoch."""
        rows = 0
        for _, size, count in self.train_plans:
            rows += size * min(count, n_batches)
            n_batches -= min(count, n_batches)
        return rows

    def _finish_step(self, runner: _core.Runner, how: str) -> tuple[str, int, int]:
        """Finishes the step that was begun, unless Ctrl-C is pressed again; as ``runner.run``."""
        more = more_batches = 0
        while runner.unfinished and self._interrupts.count < 2:
            how, ran, batches = runner.run(1, _SLICE_SECONDS)
            more, more_batches = more + ran, more_batches + batches
        runner.abandon()
        return how, more, more_batches

    def _is_over(self) -> bool:
        config = self.config
        if self._stop_reason:
            return True
        seconds = time.perf_counter() - self._began
        if config.max_time is not None and self._samples and seconds >= config.max_time:
            self._stop_reason = "max_time"  # not before the first step, however long planning took
        elif config.max_steps is not None and self._steps_left() <= 0:
            # Skipped steps do not count, and only the device knows their number.
            applied = int(self.runtime.session.control()["applied"])
            self._not_applied = self._attempted - applied
            if self._steps_left() <= 0:
                self._stop_reason = "max_steps"
        return bool(self._stop_reason)

    def _steps_left(self) -> int:
        """Steps that may be run before the device has to be asked how many were applied."""
        most = self.config.max_steps
        return sys.maxsize if most is None else most - (self._attempted - self._not_applied)

    # ---- validation

    def _validate(self) -> dict[str, float]:
        began = time.perf_counter()
        session = self.runtime.session
        backup = self._swap_in_average()
        self._val_sums.clear(session)
        outputs: list[Any] = []
        collect = self.steps.has_functions
        for plan, count, feed, _ in self._val_plans:
            feed.seek(0)
            done = 0
            while done < count and not self._interrupts.asked:
                _, ran = plan.run(1 if collect else count - done, _SLICE_SECONDS)
                done += ran
                if collect and ran:
                    outputs.append(plan.output(0))
            plan.abandon()
        if backup is not None:
            session.write("param", backup)
        values = self.steps.values(self._val_sums.read(session))
        if collect and not self._interrupts.asked:
            values.update(self.steps.function_values(self._validation_split, outputs))
        self._timings["validate"] += time.perf_counter() - began
        return {f"val_{name}": value for name, value in values.items()}

    def _trainable_values(self) -> Any:
        return self.runtime.session.read("param", "float64", 0, self.runtime.layout.n_flat)

    def _swap_in_average(self) -> Any:
        """Puts the moving average in the place of the weights; returns the weights."""
        if not self.config.ema:
            return None
        session = self.runtime.session
        backup = self._trainable_values()
        session.write("param", session.read("ema", "float64"))
        return backup

    # ---- best, early stopping, plateau

    def _judge(self, row: dict[str, float]) -> None:
        config = self.config
        stopping = config.early_stopping
        if self._plateau is not None and self._plateau_monitor in row:
            factor = self._plateau.update(row[self._plateau_monitor])
            self.runtime.session.control_set(factor=[factor])
        if self._monitor not in row:
            return  # no validation in this epoch
        value = row[self._monitor]
        if self._is_better(value, stopping.min_delta if stopping else 0.0):
            self._best, self._best_epoch, self._bad_rounds = value, self.epoch, 0
            if config.restore_best:
                self._keep_best()
            return
        self._bad_rounds += 1
        if stopping is not None and self._bad_rounds >= stopping.patience:
            self._stop_reason = self._stop_reason or "early_stopping"

    def _is_better(self, value: float, min_delta: float) -> bool:
        if not math.isfinite(value):
            return False
        if self._best is None:
            return True
        stopping = self.config.early_stopping
        mode = self.config.monitor_mode(self._monitor, stopping.mode if stopping else None)
        gain = self._best - value if mode == "min" else value - self._best
        return gain > min_delta

    def _keep_best(self) -> None:
        session = self.runtime.session
        average = self._swap_in_average()
        for name in self.runtime.layout.stores():
            session.copy(f"best.{name}", name)
        if average is not None:
            session.write("param", average)

    def _restore_best(self) -> None:
        session = self.runtime.session
        if self._best is None or not self.config.restore_best:
            self._swap_in_average()
            return
        for name in self.runtime.layout.stores():
            session.copy(name, f"best.{name}")

    # ---- the end

    def _conclude(self) -> TrainResult:
        control = self.runtime.session.control()
        self._restore_best()
        fitted, peak_bytes = (
            collect_metadata(self.data, self.steps.loss, self.runtime),
            self._peak_bytes(),
        )
        self.runtime.download()  # the last that can fail: the model is new as a whole or not at all
        set_metadata(self.model, fitted)
        seconds = time.perf_counter() - self._began
        timings = self._timings
        timings["other"] = seconds - sum(timings[k] for k in ("plan", "train", "validate"))
        result = TrainResult(
            model=self.model,
            history=self.history,
            config=self.config,
            device=self.device.name,
            state=None,
            monitor=self._monitor if self._best is not None else None,
            best_score=self._best,
            best_epoch=self._best_epoch,
            stop_reason=self._stop_reason or "completed",
            epochs=self.epoch,
            steps=control["applied"],
            skipped_steps=control["skipped"],
            seconds=seconds,
            timings=timings,
            samples_per_second=self._samples / max(timings["train"], 1e-9),
            peak_bytes=peak_bytes,
            predicted_peak_bytes=self._predicted,
        )
        self._call("on_train_end")
        return result
