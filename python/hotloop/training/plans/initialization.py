"""Phase 1: statistical nodes are fitted by passes over the training data.

The model is traced once for each pass. Where what lies between the data, or a node that is fitted
already, and a node is affine, the node's statistics follow from those of the first (the source), so
that a chain of affine nodes takes one pass. What is not affine is the source of what comes behind
it; it must wait until the nodes before it are fitted. Sums are of float64 values that were shifted
by the mean of the first sample, so that they do not depend on how samples are cut into batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.data.batching import Group
from hotloop.data.split import nest_fields
from hotloop.errors import ConfigError, DataError
from hotloop.graph.pointwise import maximum, minimum
from hotloop.graph.statistics import channel_statistics
from hotloop.nn.parameter import writing
from hotloop.stats.node import Seen, StatisticalNode, rows_that_count, watching
from hotloop.stats.statistics import Affine, Statistics
from hotloop.training.plans.accelerator import choose_device, device_of_statistics
from hotloop.training.plans.masks import masked_inputs
from hotloop.training.plans.runtime import (
    SLICE_SECONDS,
    Runtime,
    Sums,
    call_model,
    gather_batch,
    resolve_by_batch,
)

if TYPE_CHECKING:
    from hotloop import _core
    from hotloop.data.module import DataModule
    from hotloop.data.split import Split
    from hotloop.graph.trace import Trace
    from hotloop.nn.module import Module
    from hotloop.training.config import TrainingConfig

__all__ = ["Fitting", "nodes_to_fit"]

_BATCH_BYTES = 8 << 20  # of a pass's batch, unless a row has more
_ITEM_BYTES = 4  # most fields are float32


def nodes_to_fit(model: Module) -> dict[str, StatisticalNode]:
    """The nodes without statistics, by their names in the model."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, StatisticalNode) and not module.is_fitted
    }


_Array = npt.NDArray[np.float64]


class _Way(NamedTuple):
    """How a node's input comes from a source.

    Attributes
    ----------
    source : int
        The value that statistics are taken of.
    is_per_channel : bool
        Whether each channel is of one of the source's.
    """

    source: int
    is_per_channel: bool


class _Step(NamedTuple):
    """A value as an affine map of another one, by an op.

    Attributes
    ----------
    before : int
        The other one.
    is_per_channel : bool
        Whether channels are kept apart.
    affine : callable
        The map.
    """

    before: int
    is_per_channel: bool
    affine: Callable[[], Affine]


class _Ways:
    """Finds the sources of a traced batch.

    Parameters
    ----------
    trace : Trace
    seen : list of Seen
        The nodes that ran.
    """

    def __init__(self, trace: Trace, seen: list[Seen]) -> None:
        graph = trace.graph
        self._graph = graph
        self._made_by = {value: node for node in graph.nodes() for value in node["outputs"]}
        self._nodes = {one.output.id: one for one in seen if one.node.is_affine}
        self._unfitted = [one.output.id for one in seen if not one.node.is_fitted]
        self._owners = {leaf: owner for owner, leaf in trace.leaves()}
        self._data = [leaf["id"] for leaf in graph.leaves() if leaf["kind"] in ("input", "dataset")]
        # Of nodes whose values this pass finds: no map by an op is known before.
        late = {id(v) for one in seen if not one.node.is_fitted for v in _variables(one.node)}
        self._late = [leaf for leaf, owner in self._owners.items() if id(owner) in late]
        self._found: dict[int, _Way] = {}
        self._operands: dict[int, int] = {}  # value to number of the graph's output
        self.read: Callable[[int], _Array] = lambda number: np.zeros(0)  # after the pass

    @property
    def n_operands(self) -> int:
        """How many outputs of the graph are such."""
        return len(self._operands)

    def to(self, value: int) -> _Way:
        """The way to a value from its source, which may be itself."""
        if value not in self._found:
            self._found[value] = self._find(value)
        return self._found[value]

    def _find(self, value: int) -> _Way:
        if value in self._nodes:
            one = self._nodes[value]
            before, is_per_channel = one.input.id, one.node.is_per_channel
        elif (step := self._step(value)) is not None:
            before, is_per_channel = step.before, step.is_per_channel
        else:
            return _Way(value, True)
        way = self.to(before)
        return _Way(way.source, way.is_per_channel and is_per_channel)

    def affine(self, value: int, source: int) -> Affine:
        """The map from the source to a value, once the nodes between are fitted."""
        if value == source:
            return Affine.scaling(1.0, 0.0, self._graph.shape(source)[-1])
        if value in self._nodes:
            one = self._nodes[value]
            own, before = one.node.affine(), one.input.id
            assert own is not None  # it says that it is
        else:
            step = self._step(value)
            assert step is not None  # by which it was found
            own, before = step.affine(), step.before
        return own.after(self.affine(before, source))

    def waits(self, value: int) -> bool:
        """Whether a value depends on what a node returns that is not fitted."""
        seen, left = set(), [value]
        while left:
            each = left.pop()
            if each in self._unfitted:
                return True
            if each not in seen and each in self._made_by:
                left += self._made_by[each]["inputs"]
            seen.add(each)
        return False

    # ---- ops that are affine maps of each pixel

    def _step(self, value: int) -> _Step | None:
        node, shape = self._made_by.get(value), self._graph.shape(value)
        if node is None or not shape:
            return None
        op, inputs, attrs = node["op"], node["inputs"], node["attrs"]
        if op in ("add", "sub", "mul", "div"):
            return self._of_pair(op, *inputs)
        channels = (self._graph.shape(inputs[0]) or (0,))[-1]
        if op == "slice" and attrs["axis"] == len(shape) - 1:
            picked = np.eye(channels)[attrs["start"] : attrs["stop"] : attrs["step"]]
            return _Step(inputs[0], True, lambda: Affine(picked, np.zeros(len(picked))))
        if op == "reshape" and shape[-1] == channels:
            return _Step(inputs[0], True, lambda: Affine.scaling(1.0, 0.0, channels))
        if op == "neg":
            return _Step(inputs[0], True, lambda: Affine.scaling(-1.0, 0.0, channels))
        if op == "matmul" and not attrs["trans_a"]:
            return self._of_product(inputs, transposed=bool(attrs["trans_b"]))
        return None

    def _of_pair(self, op: str, a: int, b: int) -> _Step | None:
        """Pointwise work with one number, or one for each channel."""
        x, other = (a, b) if self._is_of_data(a) else (b, a)
        channels = self._graph.shape(x)[-1:]
        sizes = self._graph.shape(other)
        wide = sizes[-1:] == channels and int(np.prod(sizes)) == channels[0]
        is_alike = wide or int(np.prod(sizes)) == 1
        if not (self._is_of_data(x) and is_alike and self._is_known(other)):
            return None
        if op == "div" and x == b:
            return None
        read = self._operand(other)

        def affine() -> Affine:
            c, n = read().reshape(-1), channels[0]
            if op == "add":
                return Affine.scaling(1.0, c, n)
            if op == "sub":
                return Affine.scaling(1.0, -c, n) if x == a else Affine.scaling(-1.0, c, n)
            return Affine.scaling(c if op == "mul" else 1 / c, 0.0, n)

        return _Step(x, True, affine)

    def _of_product(self, inputs: tuple[int, ...], *, transposed: bool) -> _Step | None:
        """A linear layer."""
        x, *others = inputs
        is_matrix = len(self._graph.shape(others[0])) == 2
        if not (is_matrix and self._is_of_data(x) and all(map(self._is_known, others))):
            return None
        weight, *bias = map(self._operand, others)

        def affine() -> Affine:
            matrix = weight() if transposed else weight().T
            return Affine(matrix, bias[0]().reshape(-1) if bias else np.zeros(len(matrix)))

        return _Step(x, False, affine)

    def _is_of_data(self, value: int) -> bool:
        return any(self._graph.depends(value, self._data))

    def _is_known(self, value: int) -> bool:
        """Whether a value is the same for all batches, and known without this pass."""
        return not any(self._graph.depends(value, [*self._data, *self._late]))

    def _operand(self, value: int) -> Callable[[], _Array]:
        """Such a value in float64, once the pass has run."""
        if value in self._owners:
            owner = self._owners[value]
            return lambda: np.asarray(owner.value(), np.float64)
        constant = self._graph.const_value(value)
        if constant is not None:
            return lambda: np.asarray(constant, np.float64)
        if value not in self._operands:
            self._operands[value] = self._graph.output(value)
        number = self._operands[value]
        return lambda: np.asarray(self.read(number), np.float64)


class _Task(NamedTuple):
    """A node that a pass fits.

    Attributes
    ----------
    node : StatisticalNode
    name : str
    value, source : int
        Its input, and what statistics are taken of.
    needs_products : bool
        Whether its statistics follow from products of every two channels of the source.
    """

    node: StatisticalNode
    name: str
    value: int
    source: int
    needs_products: bool


class _Traced(NamedTuple):
    """What a pass computes of a batch."""

    tasks: list[_Task]
    sources: dict[int, str]  # to the names of their sums
    ways: _Ways
    pixels: float  # of a sample, where a mask says which of them count; else 0
    masked: set[int]  # sources of which the mask leaves some out
    product_flops: float  # of a sample, for covariances


class _Sum(NamedTuple):
    """What a pass found."""

    traced: _Traced
    statistics: dict[str, Statistics]  # by the names of the sums
    flops: float  # of a batch


class _Totals:
    """Sums, and the least and the largest value, of each source over all batches."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix  # of the names of stores
        self._sums = Sums(prefix)
        self._ends: dict[str, int] = {}  # name of the sums to channels

    def add(self, trace: Trace, name: str, found: Any) -> None:
        for part in ("count", "sums", "products"):
            self._sums.add(trace, f"{name}.{part}", getattr(found, part))
        self._ends[name] = n = found.lowest.shape[-1]
        for part, nearer in (("lowest", minimum), ("highest", maximum)):
            store = f"{self._prefix}.{name}.{part}"
            trace.graph.store(store, "float64", n)
            leaf = trace.graph.state(store, "float64", (n,), store, 0)
            ahead = nearer(trace.wrap(leaf), getattr(found, part))
            trace.graph.commit(leaf, ahead.id_in(trace))

    def clear(self, session: _core.Session) -> None:
        self._sums.clear(session)
        for name, n in self._ends.items():
            session.write(f"{self._prefix}.{name}.lowest", np.full(n, np.inf))
            session.write(f"{self._prefix}.{name}.highest", np.full(n, -np.inf))

    def read(self, session: _core.Session, shifts: Mapping[str, _Array]) -> dict[str, Statistics]:
        found, sums = {}, self._sums.read(session)
        for name, n in self._ends.items():
            ends = [
                session.read(f"{self._prefix}.{name}.{part}", "float64", 0, n)
                for part in ("lowest", "highest")
            ]
            count = float(sums[f"{name}.count"])
            if not count and not shifts:
                count = 1.0  # the first sample is masked out: nothing is shifted
            if not count:
                raise DataError(
                    "mask: it must leave some pixels of the training data, and leaves out all"
                )
            shift = shifts.get(name, np.zeros(n))
            total, products = sums[f"{name}.sums"], sums[f"{name}.products"]
            found[name] = Statistics.of_sums(count, ends[0], ends[1], total, products, shift)
        return found


class Fitting:
    """Fits the nodes of a model that have no statistics.

    Parameters
    ----------
    model : Module
    data : DataModule
        Whose training split is read, in its order and without augmentation.
    config : TrainingConfig
    device : Device

    Attributes
    ----------
    places : list of str
        Where passes ran, after ``run``, and why there, if not where the run is.
    names : list of str
        Of the nodes.
    variables : list of Variable
        Their parameters and buffers.
    n_passes : int
        Over the data, after ``run``.
    seconds : float
        That it took.
    share : float
        Of the pixels, that the mask lets count; 1 without a mask.
    """

    def __init__(
        self, model: Module, data: DataModule, config: TrainingConfig, device: _core.Device
    ) -> None:
        self._model, self._data, self._config = model, data, config
        self._device = device
        self.places: list[str] = []
        nodes = nodes_to_fit(model)
        self.names = list(nodes)
        self.variables = [variable for node in nodes.values() for variable in _variables(node)]
        self.n_passes = 0
        self.seconds = 0.0
        self.share = 1.0

    def run(self, check: Callable[[], None] = lambda: None) -> None:
        """Fits all nodes, or none.

        Parameters
        ----------
        check : callable
            Called every 50 ms while the data are read; what it raises ends the fitting.

        Raises
        ------
        ConfigError
            If forward does not reach a node, or reaches it twice.
        DataError
            If statistics are not finite, or a covariance is singular.
        """
        began = time.perf_counter()
        nodes = nodes_to_fit(self._model)
        resolve_by_batch(self._model, self._data)
        for name, node in nodes.items():
            if any(variable.is_lazy for variable in _variables(node)):
                raise _not_reached(name, node)
        for variable in (*self._model.parameters(), *self._model.buffers()):
            variable.follow_seed(self._config.seed)  # the values that training begins with
        before = [variable.value().copy() for variable in self.variables]
        try:
            while left := nodes_to_fit(self._model):
                self._pass(left, check)
                self.n_passes += 1
        except BaseException:
            with writing(self.variables):
                for variable, value in zip(self.variables, before, strict=True):
                    variable.set_value(value)
            for node in nodes.values():
                node.statistics = {}
            raise
        self.seconds = time.perf_counter() - began

    # ---- a pass

    def _pass(self, left: Mapping[str, StatisticalNode], check: Callable[[], None]) -> None:
        host = self._device
        if host.memory() is not None:
            host = choose_device("cpu", "32-true", "auto")[0]
        runtime = self._runtime(host)
        try:
            groups = self._groups()
            # The first sample alone says what its pixels are about, and what a pass will compute.
            first = self._sum(runtime, [groups[0]._replace(rows=1, batches=1)], left, {}, check)
            shifts = {
                name: found.mean if np.isfinite(found.mean).all() else np.zeros(len(found.mean))
                for name, found in first.statistics.items()
            }
            products = first.traced.product_flops
            n_bytes = self._bytes_of_row(groups[0].part)
            device, why = device_of_statistics(
                self._device, host, first.flops + products, products, n_bytes
            )
            place = "the CPU" if device.memory() is None else "the GPU"
            place += f" ({why})" if why else ""
            if place not in self.places:
                self.places.append(place)
            if device is not host:
                runtime.close()
                runtime = self._runtime(device)
            traced, found, _ = self._sum(runtime, groups, left, shifts, check)
            n_pixels = traced.pixels * sum(group.rows * group.batches for group in groups)
            for task in traced.tasks:
                known = found[traced.sources[task.source]]
                known.check_finite(task.name)
                if n_pixels and task.source in traced.masked:
                    self.share = min(self.share, known.count / n_pixels)
                known = known.through(traced.ways.affine(task.value, task.source))
                with writing(_variables(task.node)):
                    task.node.take(known, task.name)
        finally:
            runtime.close()

    def _runtime(self, device: _core.Device) -> Runtime:
        return Runtime(self._model, device, seed=self._config.seed, config=self._config)

    def _bytes_of_row(self, part: int) -> int:
        split = self._data.split("train")
        assert split is not None  # DataModule always has training rows
        return sum(math.prod(field.shape) for field in split.parts[part].fields) * _ITEM_BYTES

    def _groups(self) -> list[Group]:
        """Batches of a few megabytes, whatever the user's are: statistics are the same, less memory
        is taken, and a pass reads what is in the caches still.
        """
        groups = self._data.batches("train", training=False, merge_tail=False)
        made = []
        for number in sorted({group.part for group in groups}):
            own = [group for group in groups if group.part == number]
            n = sum(group.rows * group.batches for group in own)
            rows = max(1, min(_BATCH_BYTES // max(self._bytes_of_row(number), 1), n))
            made += [Group(rows, n // rows, number), Group(n % rows, 1, number)]
        return [group for group in made if group.rows and group.batches]

    def _sum(
        self,
        runtime: Runtime,
        groups: list[Group],
        left: Mapping[str, StatisticalNode],
        shifts: Mapping[str, _Array],
        check: Callable[[], None],
    ) -> _Sum:
        """Statistics of each source over these batches."""
        split = self._data.split("train")
        assert split is not None
        totals = _Totals("statistics" if shifts else "shift")
        ring = runtime.ring(self._data.num_workers, groups[0].rows, **self._data.loading("train"))
        feeds = self._data.feeds("train", groups, training=False, **ring)
        plans = []
        for (rows, count, number), feed in zip(groups, feeds, strict=True):
            part = split.parts[number]

            def build(trace: Trace, part: Split = part, rows: int = rows) -> _Traced:
                return self._trace(trace, part, rows, left, totals, shifts)

            graph, traced = runtime.trace(build, training=False)
            plans.append((runtime.plan(graph, part, feed), count, traced))
        runtime.upload()
        totals.clear(runtime.session)
        for plan, count, _ in plans:
            done = 0
            while done < count:
                done += plan.run(count - done, SLICE_SECONDS)[1]
                check()
        plan, _, traced = plans[-1]  # whose outputs are there: it ran last
        operands = {number: plan.output(number) for number in range(traced.ways.n_operands)}
        traced.ways.read = operands.__getitem__
        return _Sum(traced, totals.read(runtime.session, shifts), plan.info()["flops"])

    def _trace(
        self,
        trace: Trace,
        split: Split,
        rows: int,
        left: Mapping[str, StatisticalNode],
        totals: _Totals,
        shifts: Mapping[str, _Array],
    ) -> _Traced:
        fields = gather_batch(trace, split, rows, self._data.transforms, ())
        trace.note_batch(fields.values())
        x = masked_inputs(nest_fields(fields)["x"])
        mask = trace.noted("mask")
        with watching() as seen:
            call_model(self._model, x)
        ways = _Ways(trace, seen)
        tasks = self._choose(ways, seen, left)
        sources: dict[int, str] = {}
        left_out: set[int] = set()
        product_flops = 0.0
        for task in tasks:
            if task.source in sources:
                continue
            name = sources[task.source] = str(len(sources))
            value = trace.wrap(task.source)
            n = value.shape[-1]
            shift = trace.const(shifts.get(name, np.zeros(n)), "float64")
            try:
                counts = rows_that_count(value)
            except ConfigError as error:
                raise ConfigError(f"{task.name}: {error}") from None
            if counts is not None:
                left_out.add(task.source)
            needed = any(one.needs_products for one in tasks if one.source == task.source)
            product_flops += needed * value.numel() * n / rows
            products = needed and bool(shifts)
            totals.add(trace, name, channel_statistics(value, shift, counts, products=products))
        pixels = 0.0 if mask is None else mask.numel() / rows
        return _Traced(tasks, sources, ways, pixels, left_out, product_flops)

    def _choose(
        self, ways: _Ways, seen: list[Seen], left: Mapping[str, StatisticalNode]
    ) -> list[_Task]:
        """The nodes that can be fitted now, in the order in which they run."""
        names = {id(node): name for name, node in left.items()}
        tasks: list[_Task] = []
        for one in seen:
            name = names.get(id(one.node))
            if name is None:
                continue
            if any(task.node is one.node for task in tasks):
                raise ConfigError(
                    f"{name}: forward calls it more than once, so that it is not clear of which "
                    "inputs its statistics are to be; use a node for each"
                )
            way = ways.to(one.input.id)
            is_known = one.node.needs != "range" or way.is_per_channel
            source = way.source if is_known else one.input.id
            # The variance of a mixture of channels follows from their covariance alone.
            needs_products = one.node.needs == "covariance" or (
                one.node.needs == "variance" and not way.is_per_channel
            )
            if not ways.waits(source):
                tasks.append(_Task(one.node, name, one.input.id, source, needs_products))
        ran = {id(one.node) for one in seen}
        for name, node in left.items():
            if id(node) not in ran:
                raise _not_reached(name, node)
        return tasks


def _not_reached(name: str, node: StatisticalNode) -> ConfigError:
    return ConfigError(
        f"{name}: forward does not reach this {type(node).__name__}, so that it cannot be fitted; "
        "call it, or take it out of the model"
    )


def _variables(node: StatisticalNode) -> list[Any]:
    return [*node.parameters(), *node.buffers()]
