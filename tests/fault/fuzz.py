"""Random calls of the extension, in a process of their own: ``fuzz.py SEED FIRST ROUNDS``.

A round builds a graph of random ops over random values, right and wrong: shapes of 0, 1, few and
2**62, negative dims, every dtype, ids that do not exist, attributes that are missing, misspelt,
of the wrong type, out of range, NaN. Then it differentiates, plans, feeds and runs what came out,
on every device that the machine has, and uses sessions, feeds and plans wrongly as well. Nothing
but an exception of hotloop, or a TypeError for a wrong Python type, may come of it. A round is its
seed and number alone: the last number printed is the repro.

The last line is a JSON object: calls, calls that were accepted by op, plans that ran, exceptions.
"""

import collections
import faulthandler
import json
import resource
import sys
from typing import Any

import numpy as np
from hotloop import _core
from hotloop.errors import HotloopError

DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip
USUAL = ("float32", "float32", "float32", "int64", "bool", "float64")
SANITIZED = bool(_core.build_info()["sanitizers"])  # no limit of address space is possible there
EXTREME = (-(2**63), 2**63 - 1, 2**62, -(2**31), 2**62 if SANITIZED else 2**31, 2**70, -(2**70))
# Operands of ops that random ones rarely fit: x real, i index, f float64, b bool, then a letter for
# each dim.
SHAPED = {
    "matmul": "xab xbc", "cross_entropy": "xac ia", "batch_norm": "xabd xb xb",
    "layer_norm": "xab xb xb", "gather": "xab icb", "scatter": "xab icb xcb",
    "scatter_add": "xab icb xcb", "index_select": "xab icd", "index_add": "xab ic xcb",
    "index_copy": "xab ic xcb", "batch_gather": "", "dropout_mask": "", "uniform": "",
    "conv": "", "conv_transpose": "", "unfold": "", "fold": "", "max_pool": "",
    "max_pool_index": "", "resample": "", "attention": "xabcd xabdd xabdc", "recurrence": "",
    "recurrent_layer": "",
    "ctc_loss": "xabc ibd ib ib", "cholesky": "xabb", "triangular_solve": "xabb xabc",
    "searchsorted": "xab xac", "deformable_attention": "",
    "channel_statistics": "xabc fc bab",
}  # fmt: skip
SMALL_BYTES = 2**20  # what a plan that is run may hold
LIMIT_BYTES = 3 * 2**30  # of address space: a huge plan must fail, not fill the machine


class Fuzz:
    """One round."""

    def __init__(self, seed: int, number: int, counts: collections.Counter[str]) -> None:
        self.rng = np.random.default_rng([seed, number])
        self.counts = counts
        self.graph = _core.Graph()
        self.values: list[int] = []
        self.inputs: list[tuple[str, tuple[int, ...]]] = []
        self.stores: dict[str, tuple[str, int]] = {}
        self.params: list[int] = []

    # ---- arguments

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def integer(self, low: int = -4, high: int = 5) -> int:
        return self.pick(EXTREME) if self.chance(0.04) else int(self.rng.integers(low, high))

    def size(self) -> int:
        """Elements of something that is filled at once: few, or more than there can be."""
        return self.pick((-(2**63), -1, 0, 1, 3, 8, 8, 2**62, 2**70))

    def number(self) -> float:
        odd = (0.0, 1.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e308, 1e-320)
        return self.pick(odd) if self.chance(0.3) else float(self.rng.random())

    def shape(self) -> tuple[int, ...]:
        rank = 9 if self.chance(0.01) else int(self.rng.integers(0, 5))
        if self.chance(0.05):
            return tuple(self.integer(-2, 4) for _ in range(rank))
        return tuple(self.pick((0, 1, 2, 3, 3, 4, 4, 17)) for _ in range(rank))

    def dtype(self) -> str:
        if self.chance(0.02):
            return self.pick(("complex64", "", "float", "\0", "Float32"))
        return self.pick(USUAL if self.chance(0.7) else DTYPES)

    def value(self) -> int:
        if not self.values or self.chance(0.03):
            return self.integer(-3, 99)
        return self.pick(self.values)

    def like(self, value: int) -> int:
        """A value whose shape goes with another's, where there is one."""
        try:
            shape = self.graph.shape(value)
            same = [v for v in self.values if self.graph.shape(v) == shape]
        except HotloopError:
            same = []
        return self.pick(same) if same and self.chance(0.6) else self.value()

    def garbage(self) -> Any:
        return self.pick((None, "x", b"x", 1.5, (), [], {}, object(), [1, None], "axis", 1j, ...))

    def attribute(self, kind: str, name: str, shape: tuple[int, ...]) -> Any:
        if self.chance(0.02):
            return self.garbage()
        if kind == "flag":
            return self.pick((0, 1, True, 9))
        if kind == "int":
            return (
                self.integer(-len(shape) - 1, len(shape) + 2)
                if name == "axis"
                else self.pick((0, 1, 9))
            )
        if kind == "float":
            return self.number()
        if kind == "text":
            return self.pick(("a", "b.dropout.0", "", "\0", "é" * 300))
        if kind == "dtype":
            return self.dtype()
        return self.dims(name, shape)

    def index(self) -> int:
        return self.pick((0, 1, 1, 2, 3, self.integer()))

    def dims(self, name: str, shape: tuple[int, ...]) -> Any:
        rank = len(shape)
        if self.chance(0.15):
            return [self.integer() for _ in range(int(self.rng.integers(0, 11)))]
        if name == "axes":
            return sorted(
                self.pick(range(-rank - 1, rank + 1)) for _ in range(self.pick((0, 1, 2)))
            )
        if name == "dims":
            return [int(i) for i in self.rng.permutation(rank)]
        if name in ("before", "after"):
            return [self.integer(-1, 3) for _ in range(rank)]
        if self.chance(0.5) and rank:  # reshape, or expand where a dim is 1
            n = int(np.prod(shape, dtype=object))
            return self.pick(([n], [1, n], [n, 1], list(reversed(shape)), list(shape)))
        wide = [self.pick((2, 3)) if dim == 1 else dim for dim in shape]
        return wide if self.chance(0.5) else list(self.shape())

    # ---- the graph

    def leaf(self) -> None:
        kind, dtype, shape = self.pick("iiicnpsk"), self.dtype(), self.shape()
        name = f"v{len(self.values)}" if self.chance(0.95) else self.pick(("", "v0", "a.b", "\0"))
        if kind == "flag":
            return self.pick((0, 1, True, 9))
        if kind == "int":
            self.values.append(self.graph.input(name, dtype, shape))
            self.inputs.append((dtype, shape))
        elif kind == "c":
            few = tuple(min(abs(dim), 4) for dim in shape[:5])
            self.values.append(self.graph.const(self.fill(self.pick(DTYPES), few)))
        elif kind == "n":
            self.values.append(self.graph.number(dtype, self.number()))
        elif kind == "text":
            self.values.append(self.graph.scalar(name))
        elif kind == "k":
            self.values.append(self.graph.control())
        else:
            n = int(np.prod(shape, dtype=object))
            self.graph.store(name, dtype, n)
            make = self.graph.param if self.chance(0.7) else self.graph.state
            self.values.append(make(name, dtype, shape, name, 0 if self.chance(0.9) else 1))
            self.stores[name] = (dtype, n)
            self.params.append(self.values[-1])

    def node(self, op: dict[str, Any]) -> None:
        most = op["max_in"] if op["max_in"] >= 0 else 4
        n_in = (
            int(self.rng.integers(op["min_in"], most + 1))
            if self.chance(0.97)
            else self.pick((0, 1, 9))
        )
        ids = [self.value()] if n_in else []
        ids += [self.like(ids[0]) for _ in range(n_in - 1)]
        try:
            shape = self.graph.shape(ids[0])
        except (HotloopError, IndexError, TypeError):
            shape = (2,)
        attrs = {}
        for item in op["attrs"].split():
            kind, _, rest = item.partition(":")
            name, _, _ = rest.partition("=")
            if not ("=" in rest and self.chance(0.5)) and self.chance(0.97):
                attrs[name] = self.attribute(kind, name, shape)
        if self.chance(0.01):
            attrs[self.pick(("axs", "x" * 200, "keepdim"))] = 1
        if op["name"] in SHAPED and self.chance(0.7):
            ids = self.operands(op["name"], attrs)
        made = self.graph.add(op["name"] if self.chance(0.99) else "rleu", ids, **attrs)
        self.counts[f"op {op['name']}"] += 1
        self.values.extend(made)

    def operands(self, name: str, attrs: dict[str, Any]) -> list[int]:
        """New operands whose shapes fit the op; few values of a random graph do."""
        a, b, c, d = (int(n) for n in self.rng.integers(0, 6, 4))
        real = "float32" if self.chance(0.9) else self.dtype()
        if name in ("dropout_mask", "uniform"):
            attrs.update(shape=(a, b), stream="s", dtype="float32")
            return [self.graph.control()]
        if "axis" in attrs:
            attrs["axis"] = 0
        if name == "batch_gather":
            rows = self.make("int64", (c,))
            return [self.graph.dataset(f"s{len(self.values)}", real, (a, b)), rows]
        if name == "resample":
            attrs["axis"] = 1
            shapes = ((a, b), (c,), (c * d,), (b,), (b * d,))
            kinds = (real, "int64", "float32", "int64", "float32")
            return [self.make(kind, shape) for kind, shape in zip(kinds, shapes)]
        if name in ("conv", "conv_transpose", "unfold", "fold", "max_pool", "max_pool_index"):
            return self.windows(name, attrs, real, self.pick((1, 1, 2, 3)))
        if name == "recurrence":
            return self.recurrence(attrs, real, a, b, c)
        if name == "recurrent_layer":
            return self.recurrent(attrs, real, a, b, c, d)
        if name == "deformable_attention":
            attrs.update(heights=[c, 2], widths=[2, d])
            places = (a, b, 3, 2, c)
            shapes = ((a, 2 * c + 2 * d, 3, b), (*places, 2), places)
            return [self.make(real, shape) for shape in shapes]
        if name in ("matmul", "attention", "ctc_loss"):
            attrs.clear()
        if name == "attention":
            attrs.update(is_causal=self.integer(0, 2), scale=self.number())
        made = []
        for symbols in SHAPED[name].split():
            dtype = {"i": "int64", "f": "float64", "b": "bool"}.get(symbols[0], real)
            sizes = {"a": a, "b": b, "c": c, "d": d}
            made.append(self.make(dtype, tuple(sizes[dim] for dim in symbols[1:])))
        return made

    def recurrence(self, attrs: dict[str, Any], dtype: str, n: int, t: int, h: int) -> list[int]:
        """Operands of a cell that fit, and attributes; lengths are what integers are."""
        cell = self.pick((0, 1, 2, 3))
        attrs.clear()
        attrs.update(cell=cell, reverse=self.pick((0, 1)), is_sorted=self.pick((0, 1)))
        gates, width = (1, 1, 4, 3)[cell] * h, h
        if cell == 2 and self.pick((0, 1)):
            attrs["has_projection"], width = 1, 3
        shapes = [(gates, width), (n, t, gates), (n, width), (n,)]
        shapes += [(n, h)] * (cell == 2)
        if cell == 3 and self.pick((0, 1)):
            attrs["has_bias"] = 1
            shapes.append((gates,))
        shapes += [(width, h)] * attrs.get("has_projection", 0)
        return [self.make("int32" if i == 3 else dtype, s) for i, s in enumerate(shapes)]

    def recurrent(
        self, attrs: dict[str, Any], dtype: str, n: int, t: int, h: int, size: int
    ) -> list[int]:
        """As recurrence, for a layer of inputs of this size."""
        w, _z, h0, lengths, *rest = self.recurrence(attrs, dtype, n, t, h)
        cell = attrs["cell"]
        gates = (1, 1, 4, 3)[cell] * h
        attrs["has_state_bias"] = attrs.pop("has_bias", 0)
        inputs = [self.make(dtype, shape) for shape in ((n, t, size), (gates, size))]
        if self.pick((0, 1)):
            attrs["has_bias"] = 1
            rest.insert(cell == 2, self.make(dtype, (gates,)))
        return [*inputs, w, h0, lengths, *rest]

    def windows(self, name: str, attrs: dict[str, Any], dtype: str, n: int) -> list[int]:
        """Operands and attributes of an op with n spatial dims, which mostly fit."""

        def some(*usual: int) -> list[int]:
            return [self.integer() if self.chance(0.05) else self.pick(usual) for _ in range(n)]

        batch, channels, out, groups = (self.pick((1, 2, 3)) for _ in range(4))
        length, kernel = some(3, 5, 6), some(1, 2, 3)
        is_last = self.chance(0.3)
        attrs.update(stride=some(1, 2), dilation=some(1, 2), before=some(0, 1), after=some(0, 1))
        if "pool" in name:
            attrs.update(kernel=kernel, channels_last=int(is_last))
            dims = [batch, *length, channels] if is_last else [batch, channels, *length]
            return [self.make(dtype, tuple(dims))]
        if name in ("unfold", "fold"):
            attrs.update(kernel=kernel, size=length)
            if name == "unfold":
                attrs.pop("size")
                return [self.make(dtype, (batch, *length, channels))]
            keys = ("size", "before", "after", "dilation", "kernel", "stride")
            counts = [
                (size + p + q - d * (k - 1) - 1) // (s or 1) + 1
                for size, p, q, d, k, s in zip(*(attrs[key] for key in keys))
            ]
            return [self.make(dtype, (batch, *counts, int(np.prod(kernel)), channels))]
        attrs.update(groups=groups, channels_last=int(is_last), size=length)
        if name == "conv":
            attrs.pop("size")
        else:  # conv's gradient for x has the size that it is asked for
            attrs.update(stride=[1] * n, before=[0] * n, after=[0] * n, dilation=[1] * n)
            length = [size - k + 1 for size, k in zip(length, kernel)]
        given = (out if name == "conv_transpose" else channels) * groups
        dims = [batch, *length, given] if is_last else [batch, given, *length]
        weight = self.make(dtype, (out * groups, channels, *kernel))
        return [self.make(dtype, tuple(dims)), weight]

    def make(self, dtype: str, shape: tuple[int, ...]) -> int:
        self.values.append(self.graph.input(f"w{len(self.inputs)}", dtype, shape))
        self.inputs.append((dtype, shape))
        return self.values[-1]

    def other(self) -> None:
        graph, which = self.graph, int(self.rng.integers(9))
        if which == 0:
            graph.commit(self.value(), self.value())
        elif which == 1:
            graph.accumulate(self.value(), self.value())
        elif which == 2:
            graph.scope(self.pick((None, "a.b", "", "x" * 5000)))
        elif which == 3:
            graph.segment(self.pick(("begin", "micro", "apply", "end", "")))
        elif which == 4:
            graph.depends(self.value(), [self.value(), self.value()])
        elif which == 5:
            graph.const_value(self.value())
        elif which == 6:
            made = graph.backward(self.value(), [self.value() for _ in range(self.pick((0, 1, 2)))])
            self.values.extend(v for v in made if v is not None)
            self.counts["backward"] += 1
        elif which == 7:
            self.differentiate()
        else:
            self.train()

    def differentiate(self) -> None:
        """The gradient of a sum by whatever it may depend on."""
        value = self.value()
        (total,) = self.graph.add("sum", [value], axes=list(range(len(self.graph.shape(value)))))
        made = self.graph.backward(total, [self.value(), self.value()])
        self.values.extend(v for v in made if v is not None)
        self.counts["backward of a sum"] += 1

    def train(self) -> None:
        spec = {
            "rows": self.index(), "optimizer": self.pick(("sgd", "adam", "lion", "adm")),
            "attrs": {},
            "segments": [(0, self.integer(), self.number(), self.number(), self.integer())],
            "accumulate": self.chance(0.5), "clip_norm": self.number(), "clip_value": 0.0,
            "ema": None, "ema_ramp": False, "table": (self.index(), self.integer()),
            "scales_loss": self.chance(0.3),
        }  # fmt: skip
        params = [self.value() for _ in range(self.pick((0, 1, 2)))]
        self.graph.training_step([(self.value(), None, self.number())], params, spec)

    # ---- running it

    def fill(self, dtype: str, shape: tuple[int, ...]) -> Any:
        kind = "float32" if dtype == "bfloat16" else dtype
        if self.chance(0.05):
            shape, kind = self.shape(), self.pick(("float32", "int64", "complex64", "object"))
            shape = tuple(min(abs(dim), 4) for dim in shape)
        array = self.rng.integers(-1, 3, shape) if self.chance(0.7) else 3 * self.rng.random(shape)
        with np.errstate(all="ignore"):
            array = np.asarray(array).astype(kind)
            if array.dtype.kind == "f" and array.size and self.chance(0.1):
                array.flat[0] = self.number()
        return array[..., ::-1] if array.ndim and self.chance(0.1) else array

    def is_small(self) -> bool:
        return sum(self.bytes_of(v) for v in self.values) <= SMALL_BYTES

    def bytes_of(self, value: int) -> int:
        return 8 * int(np.prod(self.graph.shape(value), dtype=object))

    def run(self, device: _core.Device) -> None:
        session = _core.Session(device)
        options = {"fuse": self.chance(0.7), "chain": self.chance(0.7)}
        plan = _core.Plan(
            session, self.graph, k=1 if self.chance(0.9) else self.integer(), **options
        )
        if not self.is_small():
            return
        for name, (dtype, n) in self.stores.items():
            self.attempt(lambda: session.store(name, dtype, n))  # noqa: B023
            self.attempt(lambda: session.write(name, self.fill(dtype, (n,))))  # noqa: B023
        for i, (dtype, shape) in enumerate(self.inputs):
            if self.chance(0.97):
                self.attempt(lambda: plan.input(i, self.fill(dtype, shape)))  # noqa: B023
        how, _ = plan.run(self.pick((1, 1, 2, 0, self.integer())), 0.05)
        self.counts[f"run {how}"] += 1
        for i in range(len(self.graph.outputs()) + 1):
            dtype = self.pick((None, None, "float32", "int64", "x"))
            self.attempt(lambda: plan.output(i, dtype))  # noqa: B023
        if self.chance(0.1):
            self.attempt(plan.profile)
        self.misuse(session, plan)

    def misuse(self, session: _core.Session, plan: _core.Plan) -> None:
        name = self.pick((*self.stores, "nothing"))
        rows = self.rng.integers(-1, 9, int(self.rng.integers(0, 5)))
        calls = (
            lambda: session.read(name, self.dtype(), self.integer(), self.size()),
            lambda: session.write(name, self.fill("float32", (3,)), self.integer()),
            lambda: session.store(name, self.dtype(), self.size()),
            lambda: session.copy(name, self.pick((*self.stores, "nothing"))),
            lambda: session.control_set(attempted=self.integer(), loss=self.number()),
            lambda: session.control_log(self.integer()),
            lambda: plan.dataset(self.integer(), self.fill("float32", (3,))),
            lambda: plan.input(self.integer(), self.fill("int64", (3,))),
            lambda: _core.Runner([(plan, self.integer())], self.integer()).run(1, 0.01),
            lambda: _core.Runner([(plan, 2)]).check(self.integer(), self.chance(0.5)),
            lambda: _core.Runner([(plan, 2)]).seek(self.integer(), self.integer()),
            lambda: setattr(plan, "k", self.integer()),
            lambda: (plan.stop(), plan.abandon(), plan.run(1, 0.01)),
            lambda: plan.feed(_core.Feed(self.size(), self.size(), shuffle=True)),
            lambda: _core.Feed(9, self.integer(), rows=rows, count=self.integer()).next_rows(),
            lambda: _core.Feed(self.integer(), 2).seek(self.integer(), self.integer()),
            lambda: _core.gather_rows(self.fill("float32", (4, 2)), rows, self.dtype()),
            lambda: _core.check_range(self.fill("int64", (3,)), self.integer(), self.integer()),
            lambda: _core.check_finite(self.fill(self.pick(("float16", "int8")), (3, 2))),
            lambda: _core.permutation(self.integer(), "s", self.integer(), self.size()),
            lambda: _core.random_normal(self.integer(), "s", self.size(), 0.0, 1.0),
        )
        for _ in range(3):
            self.attempt(self.pick(calls))

    def attempt(self, call: Any) -> bool:
        """One call; whether it was accepted."""
        self.counts["calls"] += 1
        try:
            call()
        except (HotloopError, TypeError, MemoryError) as error:
            self.counts[f"raised {type(error).__name__}"] += 1
            if not str(error) or "\0" in str(error):
                raise AssertionError("an error without a sentence") from error
            return False
        return True

    def play(self, devices: list[_core.Device], ops: list[dict[str, Any]]) -> None:
        for _ in range(4):
            self.attempt(self.leaf)
        for _ in range(24):
            if self.chance(0.15):
                self.attempt(self.leaf)
            elif self.chance(0.1):
                self.attempt(self.other)
            else:
                op = self.pick(ops)
                self.attempt(lambda: self.node(op))  # noqa: B023
        for value in self.values[-12:]:
            self.attempt(lambda: self.graph.output(value))  # noqa: B023
        self.attempt(self.graph.verify)
        self.attempt(lambda: (str(self.graph), self.graph.nodes(), self.graph.leaves()))
        for device in devices:
            self.attempt(lambda: self.run(device))  # noqa: B023


def main() -> None:
    faulthandler.enable()
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    seed, first, n_rounds = map(int, sys.argv[1:])
    counts: collections.Counter[str] = collections.Counter()
    ops = _core.op_table()
    devices = [_core.Device("ref", 0, 1)]
    devices += [_core.Device("cpu", 0, 2, isa) for isa in _core.cpu_info()["isa"]]
    for number in range(first, first + n_rounds):
        print(number, flush=True)
        Fuzz(seed, number, counts).play(devices, ops)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
