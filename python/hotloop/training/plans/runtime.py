"""Runtime: a model on a device, and its plans.

A runtime owns a session (the model's memory) and makes plans from traces: one per mode and batch
size, kept until they are dropped. Training, evaluation and prediction share parameters and arena.
A batch is gathered inside the plan from the user's arrays, so a step needs row numbers only. A GPU
has a copy of the arrays for that, or, where they do not fit, is fed: the plan gathers on the host
and sends batches.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hotloop import _core
from hotloop.base.messages import named, show_warnings, warn
from hotloop.base.structure import Keywords, flatten
from hotloop.base.watching import pause
from hotloop.data.padding import pad_batch
from hotloop.data.split import nest_fields, paddings_of
from hotloop.errors import ConfigError, ModelWarning, OutOfMemoryError, TraceError
from hotloop.graph.build import add_node
from hotloop.graph.pointwise import where
from hotloop.graph.symbolic import Tensor
from hotloop.graph.trace import Trace, trace_twice, value_at
from hotloop.nn.edits import attribute_version, latest_edit, structure_version
from hotloop.nn.layout import Layout, Slot, resolve_lazy, trace_aside
from hotloop.nn.parameter import Parameter, Variable
from hotloop.stats.node import watching
from hotloop.training.config.phases import phase_at
from hotloop.training.plans.batch import call_step
from hotloop.training.plans.fitted import fitted_of
from hotloop.training.plans.recomputing import check_ran, find_modules, share_of
from hotloop.training.plans.series import augment_series
from hotloop.training.scoring.losses import loss_modules

if TYPE_CHECKING:
    import numpy.typing as npt

    from hotloop.data.augment_series import SeriesStep
    from hotloop.data.module import DataModule
    from hotloop.data.split import Field, Split
    from hotloop.nn.module import Module
    from hotloop.training.config import TrainingConfig

SLICE_SECONDS = 0.05  # of a run from C, between which Python sees signals
MAX_LOADERS = 15
# Dataset-resident arrays: batches whose row numbers lie in the ring, and their bytes.
_MAX_SLOTS = 64
_ROW_NUMBERS = 4 << 20

__all__ = [
    "SLICE_SECONDS",
    "Runtime",
    "Sums",
    "call_model",
    "check_output",
    "gather_batch",
    "has_statistics_of_rows",
    "resolve_by_batch",
    "run_whole",
    "trace_two_rows",
]


# ---- sums over a split


class Sums:
    """Running float64 sums, each a store: what metrics and losses add to per batch.

    Parameters
    ----------
    prefix : str
        Of the stores' names: "train", "val".
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._shapes: dict[str, tuple[int, ...]] = {}

    @property
    def names(self) -> list[str]:
        """Names of the sums that were added."""
        return list(self._shapes)

    @property
    def stores(self) -> dict[str, int]:
        """Names of their stores, and the numbers that each holds."""
        return {self._store(name): _size(shape) for name, shape in self._shapes.items()}

    def add(self, trace: Trace, name: str, value: Tensor) -> None:
        """Adds the value to the sum of that name."""
        self._shapes[name] = value.shape
        store = self._store(name)
        trace.graph.store(store, "float64", value.numel())
        leaf = trace.graph.state(store, "float64", value.shape, store, 0)
        trace.graph.accumulate(leaf, value.id_in(trace))

    def _store(self, name: str) -> str:
        return f"{self._prefix}.{name}"

    def clear(self, session: _core.Session) -> None:
        """Sets all sums to 0."""
        for name, shape in self._shapes.items():
            session.write(self._store(name), np.zeros(shape))

    def read(self, session: _core.Session) -> dict[str, npt.NDArray[np.float64]]:
        """The sums as arrays."""
        return {
            name: session.read(self._store(name), "float64").reshape(shape)
            for name, shape in self._shapes.items()
        }


def _same_bits(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Whether two arrays of one shape and dtype hold the same, NaN included."""
    return np.array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8))


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for dim in shape:
        size *= dim
    return size


def _largest_value(graph: _core.Graph) -> str:
    """Which of the values of a graph is the largest, and what makes it."""
    made = [(output, node) for node in graph.nodes() for output in node["outputs"]]
    if not made:
        return ""
    value, node = max(made, key=lambda one: _size(graph.shape(one[0])))
    where = f" in {node['scope']}" if node["scope"] else ""
    return f"; the largest value is that of {node['op']}{where}, of shape {graph.shape(value)}"


# ---- the runtime


def _named_modules(model: Module, config: TrainingConfig | None) -> dict[int, str]:
    """The modules that the configuration has computed again, by ``id``."""
    named = config.recompute if config else ()
    return find_modules(model, named) if isinstance(named, tuple) else {}


_RateAt: TypeAlias = "Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]]"

_TABLE_STEPS = 1 << 16  # half a megabyte a number, which a GPU's steps take seconds to come through


def table_columns(total: int) -> int:
    """Optimizer steps whose numbers the tables hold at a time, of so many in all."""
    return min(max(total, 1), _TABLE_STEPS)


class Runtime:
    """A model's memory and plans on a device.

    Parameters
    ----------
    model : Module
        Which the runtime does not keep alive: prediction has one for each model that there is.
    device : _core.Device
    seed : int
        For values that were not drawn yet, and for dropout.
    config : TrainingConfig, optional
        Its freeze and unfreeze count, as they are in ``epoch``.
    loss : str, module, callable or dict, optional
        As in the configuration, whose it is by default: the values of its modules lie beside the
        model's.
    trains : bool
        Whether named numbers (``hl.scalar``) move with the steps, by ``write_tables``; else they
        are constants: what training left them at.
    state : Module, optional
        Whose buffers lie beside the model's, and are kept from step to step in prediction too.
    epoch : int
        From 1.

    Attributes
    ----------
    numbers : dict
        Name to schedule of the numbers in the control block, in its order: "lr", then those that
        the model's first trace used.
    compute_dtype : str
        The type of products in plans made from now on: "float32", "tf32", "bfloat16" or "float16".
    recompute : float
        The share of activations that plans made from now on compute again (``recomputing``).
    memory_limit : int or None
        Of the configuration.
    is_fed : bool
        Whether these plans are fed, where the device has memory of its own.
    has_own_memory : bool
        Whether the device's memory is not the host's.
    deterministic : bool
        Whether plans take only kernels that give the same bits every run.
    benchmarks : bool
        Whether kernels are chosen by timing them.
    """

    def __init__(
        self,
        model: Module,
        device: _core.Device,
        *,
        seed: int | None = 42,
        config: TrainingConfig | None = None,
        loss: Any = None,
        trains: bool = False,
        state: Module | None = None,
        epoch: int = 1,
    ) -> None:
        self._model = weakref.ref(model)
        self.device, self.epoch = device, epoch
        assert seed is not None  # TrainingConfig.resolve has drawn one
        self.seed = seed
        self.session = _core.Session(device)
        _, freeze, unfreeze = phase_at(config, epoch) if config else (1, (), ())
        losses = loss_modules(config.loss if loss is None and config else loss)
        beside = losses if state is None else {**losses, "state": state}
        self.layout = Layout(model, beside, freeze=freeze, unfreeze=unfreeze)
        self._kept = frozenset() if state is None else frozenset(map(id, state.buffers()))
        self._versions: tuple[int, ...] = ()
        self._edit = latest_edit()
        self._structure, self._attributes = structure_version(model), attribute_version(model)
        self._learns = self._what_learns()
        self._trains = trains
        self.numbers: dict[str, Any] = {"lr": None}
        self._has_numbers = False
        self._rate_at: _RateAt | None = None  # None: training has not begun
        self._total_steps = self._first_step = 0
        self.compute_dtype = "float32"
        self.deterministic = config is not None and config.deterministic
        self.has_own_memory = device.memory() is not None
        self.is_fed = self.has_own_memory  # an array that is read once need not be resident
        # Autotuning may choose another kernel the next time, and other kernels have other bits.
        self.benchmarks = config is not None and config.benchmark and not self.deterministic
        self._captures = config is None or config.cuda_graph is not False
        self._recomputed = _named_modules(model, config) if trains else {}
        self.recompute = (share_of(config) or 0.0) if trains and config else 0.0
        self.memory_limit = config.memory_limit if config else None
        self._plans: list[_core.Plan] = []
        self._runners: list[_core.Runner] = []
        self._residents: dict[int, tuple[npt.NDArray[Any], _core.Resident]] = {}

    @property
    def model(self) -> Module:
        """The model."""
        model = self._model()
        assert model is not None  # whoever uses the runtime has it
        return model

    def close(self) -> None:
        """Gives back all memory, whoever still holds the runtime (a traceback, a callback)."""
        for runner in self._runners:
            runner.close()
        for plan in self._plans:
            plan.close()
        self._runners.clear()
        self._plans.clear()
        self._residents.clear()
        self.session.close()

    def drop(self, plan: _core.Plan) -> None:
        """Closes a plan that is not needed any more."""
        plan.close()
        self._plans.remove(plan)

    @property
    def n_trainable(self) -> int:
        """How many numbers are trained."""
        return sum(slot.size for slot in self.layout.trainable)

    def check_unchanged(self, what: str, fix: str) -> None:
        """Sees that the model is the one that the plans are of.

        Parameters
        ----------
        what : str
            Who may have changed it: "callbacks", "step".
        fix : str
            What to do instead.

        Raises
        ------
        ConfigError
            If modules, parameters or buffers were replaced, registered, deleted or tied, or
            ``requires_grad`` was set. An attribute that was assigned warns: forward may read it.
        """
        if self._what_learns() != self._learns:
            raise ConfigError(
                f"{what}: what learns must stay as it was when the step was planned, got another "
                f"requires_grad; {fix}"
            )
        edit = latest_edit()
        if edit == self._edit:
            return
        self._edit = edit
        if structure_version(self.model) != self._structure:
            raise ConfigError(
                f"{what}: the model must stay as it was when the step was planned, got modules, "
                f"parameters or buffers that were replaced, added or removed; {fix}"
            )
        attributes = attribute_version(self.model)
        if attributes != self._attributes:
            self._attributes = attributes
            warn(
                f"{what}: an attribute of the model was assigned after its step was planned. "
                "Where forward reads it, the step goes on with the old one: use hl.scalar(name, "
                "schedule) for a number that moves with the steps, else a buffer",
                ModelWarning,
            )

    def _what_learns(self) -> list[bool]:
        return [
            owner.requires_grad for owner in self.layout.variables() if isinstance(owner, Parameter)
        ]

    # ---- values in and out

    def upload(self) -> None:
        """The model's values into the session, where they changed since the last time.

        A training gets the initial values of its seed, whoever has looked at others before.
        """
        for variable in self.layout.variables() if self._trains else ():
            variable.follow_seed(self.seed)
        versions = tuple(variable.version for variable in self.layout.variables())
        if versions == self._versions:
            return
        try:
            for name, (dtype, n) in self.layout.stores().items():
                self.session.store(name, dtype, n)
        except OutOfMemoryError as error:
            largest = max(self.layout.variables(), key=lambda one: _size(one.shape))
            raise OutOfMemoryError(
                f"{error}; the largest parameter is {largest.qualified_name} of shape "
                f"{largest.shape}"
            ) from None
        self._write(self.layout.slots)

    def refresh(self) -> list[Slot]:
        """What was set in the model since both sides were last the same, into the session.

        Returns
        -------
        list of Slot
            Those that were set.
        """
        slots = self.layout.slots
        changed = [
            slot for slot, known in zip(slots, self._versions) if slot.owner.version != known
        ]
        if changed:
            self._write(changed)
        return changed

    def warn_of_steppers(self, what: str, me: Any = None) -> None:
        """Warns where a stepper has trained what this begins from, and has not written it yet.

        Parameters
        ----------
        what : str
            Who asks, for messages.
        me : Stepper, optional
            The one that asks.
        """
        stale = [slot.name for slot in self.layout.slots if slot.owner.ahead not in (None, me)]
        if stale:
            warn(
                f"{what}: {named(stale)} {'was' if len(stale) == 1 else 'were'} trained by a "
                "stepper that has not written the model's weights since, got the older values; "
                "call its sync() after its step",
                ModelWarning,
            )

    def _write(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self.session.write(slot.store, slot.owner.value(self.seed), slot.offset)
        self._versions = tuple(variable.version for variable in self.layout.variables())

    def read(self) -> list[tuple[Variable, npt.NDArray[Any]]]:
        """The session's values of the model's parameters and buffers."""
        return [
            (
                variable,
                self.session.read(
                    store, str(variable.dtype), offset, _size(variable.shape)
                ).reshape(variable.shape),
            )
            for variable, store, offset in self.layout.places()
        ]

    def download(self) -> None:
        """The session's values into the model: all, or none where one cannot be read.

        One that is the model's already is left alone: for others of its module nothing changes.
        """
        for variable, values in self.read():
            if variable.is_drawn and _same_bits(variable.value(), values):
                variable.note_trained()
            else:
                variable.set_value(values)
        self._versions = tuple(variable.version for variable in self.layout.variables())

    # ---- tracing

    def trace(
        self, build: Callable[[Trace], Any], *, training: bool, collected: Iterable[Variable] = ()
    ) -> tuple[_core.Graph, Any]:
        """Records ``build(trace)`` twice and compares; the graph and what build returned.

        ``collected``: running statistics that evaluation computes anew.
        """
        statistics = frozenset(map(id, collected))
        used: dict[str, Any] = {}
        ran: set[int] = set()

        def record() -> tuple[Trace, Any]:
            pause()
            graph = _core.Graph()
            for name in self.numbers:  # "lr" is number 0, from which the log reads the rate
                graph.scalar(name)
            # A plan made between steps is for now; one made before the first step is for all.
            is_for_now = not self._trains or (self._rate_at is not None and not training)
            fixed = self.last_numbers() if is_for_now else None
            trace = Trace(
                graph,
                self.layout.leaf_for,
                training=training,
                seed=self.seed,
                numbers=fixed,
                kept=self._kept,
                recomputed=self._recomputed,
                collected=statistics,
            )
            with trace:
                made = build(trace)
            used.update(trace.scalars)
            ran.update(trace.checkpointed)
            return trace, made

        result = trace_twice(record)
        if training:
            check_ran(self._recomputed, ran)
        if self._trains:
            self._note_numbers(used, training=training)
        return result

    # ---- named numbers

    def _note_numbers(self, used: dict[str, Any], *, training: bool) -> None:
        if training and not self._has_numbers:
            self.numbers.update(used)
            self._has_numbers = True
        for name in used:
            if name not in self.numbers:
                raise TraceError(
                    "scalar: numbers must be those that a full training batch uses, got "
                    f"{name!r} in another trace"
                )

    def write_tables(self, rate_at: _RateAt, total: int) -> None:
        """Writes the numbers that move with the optimizer steps, from the first step on.

        Parameters
        ----------
        rate_at : function
            The learning rate at optimizer steps: of an array of int64 (n,), one of float64 (n,).
        total : int
            Optimizer steps of the training; later ones keep the numbers of the last.
        """
        self._rate_at, self._total_steps = rate_at, max(total, 1)
        self.move_tables(0)

    def move_tables(self, step: int) -> None:
        """Makes the tables begin with this optimizer step; no step may be running."""
        assert self._rate_at is not None  # write_tables came before
        n = table_columns(self._total_steps)
        self._first_step = first = max(min(step, self._total_steps - n), 0)
        rows = [
            [value_at(name, schedule, at) for at in range(first, first + n)]
            for name, schedule in self.numbers.items()
            if name != "lr"
        ]
        rates = self._rate_at(np.arange(first, first + n))
        self.session.write("table", np.array([rates, *rows], np.float64))
        self.session.control_set(table_first=first)

    def steps_in_tables(self, step: int) -> int:
        """How many optimizer steps may begin with this one before the tables have to be moved."""
        end = self._first_step + table_columns(self._total_steps)
        if step < self._first_step:
            return 0
        return sys.maxsize if end >= self._total_steps else max(end - step, 0)

    def hold_rate(self, rate: float) -> None:
        """Makes the learning rate the same at all steps, for the control block's factor to move."""
        self.follow_rates(lambda steps: np.full(len(steps), rate))

    def follow_rates(self, rate_at: _RateAt) -> None:
        """Makes the learning rates others from the next step on; as for ``write_tables``."""
        self._rate_at = rate_at
        self.move_tables(self._first_step)

    def last_numbers(self, step: int | None = None) -> dict[str, float]:
        """Values of the named numbers, the rate apart, at the last of so many optimizer steps; by
        default of all that were taken.
        """
        if self._rate_at is None:
            known = fitted_of(self.model)
            return known.numbers if known is not None else {}
        step = int(self.session.control()["applied"]) if step is None else step
        at = min(max(step - 1, 0), self._total_steps - 1)
        schedules = self.numbers.items()
        return {name: value_at(name, by, at) for name, by in schedules if name != "lr"}

    def plan(
        self,
        graph: _core.Graph,
        split: Split | None = None,
        feed: _core.Feed | None = None,
        *,
        k: int = 1,
        compute_dtype: str | None = None,
        n_slots: int = 1,
        by_node: bool = False,
    ) -> _core.Plan:
        """A plan of the graph in this session, which gathers its batches from a split.

        by_node: each node has a launch of its own, for ``Runner.check``.
        """
        pause()
        slots = n_slots if feed is None else feed.n_slots
        options = self._plan_options(compute_dtype or self.compute_dtype, by_node=by_node)
        try:
            made = _core.Plan(self.session, graph, n_slots=slots, k=k, **options)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(f"{error}{_largest_value(graph)}") from None
        self._plans.append(made)
        if split is not None:
            self.give_data(made, split, feed)
        return made

    def tune(self, plan: _core.Plan, is_over: Callable[[], bool] = lambda: False) -> None:
        """Lets a GPU's kernels choose their algorithms, which the first run would do else.

        A plan that turns out to need other kernels is made again, and says so.

        Parameters
        ----------
        plan : _core.Plan
            With its datasets.
        is_over : callable
            Whether to leave the rest to the first run; asked every 50 ms.
        """
        while plan.run(0, 0.05)[0] == "deadline" and not is_over():
            pass
        show_warnings()

    def _plan_options(self, compute_dtype: str, *, by_node: bool = False) -> dict[str, Any]:
        options = {
            "compute_dtype": compute_dtype,
            "capture": self._captures,
            "fed": self.is_fed,
            "deterministic": self.deterministic,
            "benchmark": self.benchmarks,
            "recompute": self.recompute,
        }
        if by_node:
            apart = ("fuse", "chain", "capture", "overlap", "benchmark")
            options.update(dict.fromkeys(apart, False))
            if self.memory_limit is not None:
                options["recompute"] = 1.0
        return options

    def predict(
        self,
        graph: _core.Graph,
        *,
        k: int = 1,
        n_slots: int = 1,
        recompute: float | None = None,
        by_node: bool = False,
    ) -> dict[str, Any]:
        """``info()`` and "text" of what ``plan`` would make, with no memory of the device.

        ``recompute``: another share than the runtime's.
        """
        options = self._plan_options(self.compute_dtype, by_node=by_node)
        if recompute is not None:
            options["recompute"] = recompute
        return _core.predict(self.device, graph, n_slots=n_slots, k=k, **options)

    def plan_infos(self) -> list[dict[str, Any]]:
        """``info()`` of each plan of this session that is there."""
        return [plan.info() for plan in self._plans]

    def runner(self, order: Sequence[tuple[_core.Plan, int]], k: int) -> _core.Runner:
        """A run over so many batches of each of these plans; a step is k of them."""
        made = _core.Runner(order, k)
        self._runners.append(made)
        return made

    def ring(
        self, workers: int, rows: int, k: int = 1, *, is_streamed: bool = False, ahead: int = 2
    ) -> dict[str, int]:
        """Slots and loader threads of a feed.

        Feeding overlaps with the work. Of resident data only row numbers are sent, for many steps
        at once.

        Parameters
        ----------
        workers : int
            Threads that the user gives.
        rows : int
            Of a batch.
        k : int
            Batches of a step.
        is_streamed : bool
            Whether threads make the rows.
        ahead : int
            Batches of such rows that are ready before they are needed.
        """
        if is_streamed:
            threads = min(workers, MAX_LOADERS)
            slots = threads + ahead if threads else (2 if self.has_own_memory else 1)
            return {"n_slots": slots, "n_threads": threads}
        if not self.has_own_memory:
            return {"n_slots": 1, "n_threads": 0}
        if self.is_fed:
            threads = min(workers, MAX_LOADERS)
            return {"n_slots": 2 if threads < 2 else threads + 1, "n_threads": threads}
        slots = _MAX_SLOTS if k == 1 else 2
        while slots > 2 and slots * rows * 8 > _ROW_NUMBERS:
            slots //= 2
        return {"n_slots": slots, "n_threads": 0}

    def give_data(self, plan: _core.Plan, split: Split, feed: _core.Feed | None) -> None:
        """The split's arrays, or copies of them on the device, to a plan, and the order of rows."""
        for i, field in enumerate(split.fields):
            array, _ = field.source
            if field.stream is not None:
                plan.dataset(i, field.stream.source, field.stream.number)
            else:
                plan.dataset(i, array if self.is_fed else self._resident(array))
        if feed is not None:
            plan.feed(feed)

    def _resident(self, array: npt.NDArray[Any]) -> npt.NDArray[Any] | _core.Resident:
        """What kernels gather from; one copy on the device for all plans."""
        if not self.has_own_memory:
            return array
        if id(array) not in self._residents:
            self._residents[id(array)] = array, _core.Resident(self.device, array)
        return self._residents[id(array)][1]


def gather_batch(
    trace: Trace,
    split: Split,
    batch: int,
    transforms: Sequence[Any],
    steps: Sequence[SeriesStep] = (),
) -> dict[str, Any]:
    """The batch's fields as tensors, gathered from resident arrays by row number.

    Parameters
    ----------
    trace : Trace
    split : Split
    batch : int
        Rows.
    transforms : sequence
        Fitted ones.
    steps : sequence of SeriesStep
        Augmentation of the inputs, in training.

    Returns
    -------
    dict
        Field name to tensor, in the split's order; datasets are numbered in that order.
    """
    index = trace.input("rows", "int64", (batch,))
    fields: dict[str, Any] = {}
    for field in split.fields:
        fields[field.name] = _gather_field(trace, field, index)
    for kind, values in transforms:
        if kind != "standardize":
            raise ConfigError(f"transform: must be 'standardize', got {kind!r}")
        for name in fields:
            if name.split(".")[0] == "x" and name in values:
                mean, std = values[name]
                fields[name] = (fields[name] - trace.const(mean)) / trace.const(std)
    for name in fields if steps else ():
        if name == "x" or name == "x.0":
            fields[name] = augment_series(name, fields[name], steps)
    apart = functools.partial(add_node, "detach")  # a value of its own, whatever its dtype
    return pad_batch(fields, paddings_of(split.fields), where, apart)


def _gather_field(trace: Trace, field: Field, index: Tensor) -> Tensor:
    array, window = field.source
    is_streamed = field.stream is not None
    dataset = trace.graph.dataset(field.name, str(array.dtype), array.shape, is_streamed)
    (value,) = trace.graph.add(
        "batch_gather", [dataset, index.id_in(trace)], dtype=field.gathered_dtype, window=window
    )
    return trace.wrap(value)


def run_whole(plan: _core.Plan, n_steps: int = 1) -> None:
    """Runs steps to their end, in slices between which signals are seen.

    What one of them raises leaves the step in the middle; the next call forgets it, so that it does
    not go on with that call's inputs.

    Parameters
    ----------
    plan : Plan
        With its inputs.
    n_steps : int
    """
    if plan.unfinished:
        plan.abandon()
    while plan.run(n_steps, SLICE_SECONDS)[0] == "deadline":
        pause()


def call_model(model: Module, x: Any) -> Any:
    """forward on a batch's inputs: a tuple is spread over the arguments."""
    if not isinstance(x, tuple):
        return model(x)
    if x and isinstance(x[-1], Keywords):
        return model(*x[:-1], **x[-1])
    return model(*x)


def resolve_by_batch(model: Module, data: DataModule) -> None:
    """Gives lazy layers the shapes that the first batch makes of them.

    In ``training_step``, which may use layers otherwise than ``forward`` does; then, where layers
    are left that it does not reach, in ``forward``.

    Parameters
    ----------
    model : Module
        Without lazy layers nothing is done.
    data : DataModule
    """
    fields = data.example_batch()
    for call in _calls(model, list(fields)):
        resolve_lazy(model, list(fields.values()), call)


def has_statistics_of_rows(model: Module, data: DataModule) -> bool:
    """Whether batch statistics need two rows: one row has a single value per channel somewhere.

    Parameters
    ----------
    model : Module
        Without lazy layers.
    data : DataModule
    """
    least = trace_two_rows(model, data).least_values
    return least is not None and least < 4


def trace_two_rows(model: Module, data: DataModule) -> Trace:
    """A trace of training on two rows: what the model computes, whatever the batches are.

    Parameters
    ----------
    model : Module
        Without lazy layers.
    data : DataModule
    """
    fields = data.example_batch()
    two = [(dtype, (2, *shape[1:])) for dtype, shape in fields.values()]
    return trace_aside(two, _calls(model, list(fields))[0], training=True)


def _calls(model: Module, names: list[str]) -> list[Callable[..., Any]]:
    """What applies a model to the fields of a batch: training_step, where it has one, then forward.

    Parameters
    ----------
    model : Module
    names : list of str
        Of the fields.
    """
    step: Any = getattr(model, "training_step", None)

    # For shapes, statistical nodes need not be fitted.
    def run_step(*fields: Tensor) -> Any:
        with watching():
            return call_step(step, nest_fields(dict(zip(names, fields))))

    def run_forward(*fields: Tensor) -> Any:
        with watching():
            return call_model(model, nest_fields(dict(zip(names, fields)))["x"])

    return [run_forward] if step is None else [run_step, run_forward]


def check_output(model: Module, output: Any) -> None:
    """forward returned tensors, so that nothing that uses them needs to ask.

    Raises
    ------
    TraceError
    """
    leaves = flatten(output)[0]
    invalid = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
    if invalid or not leaves:
        got = type(invalid[0]).__name__ if invalid else "nothing in it"
        fix = "; has it a return?" if output is None else ""
        raise TraceError(
            f"{type(model).__name__}: forward must return a tensor, or a tuple or dict of tensors, "
            f"got {got}{fix}"
        )
