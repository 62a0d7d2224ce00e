"""Cases of the family conv."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ops.fills import normal, whole
from ops.harness import Array, Case


@dataclass(frozen=True)
class Shape:
    """A convolution: N images of C channels to O; the lists have an entry for each spatial dim."""

    name: str
    n: int
    c: int
    o: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    groups: int = 1
    last: bool = False
    of_results: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.size)
        for name, missing in (("stride", 1), ("dilation", 1), ("before", 0), ("after", 0)):
            object.__setattr__(self, name, getattr(self, name) or (missing,) * n)
        lists = zip(*(self.size, self.kernel, self.stride, self.dilation, self.before, self.after))
        count = tuple((i + b + a - d * (k - 1) - 1) // s + 1 for i, k, s, d, b, a in lists)
        object.__setattr__(self, "of_results", count)

    @property
    def attrs(self) -> dict[str, Any]:
        """Attributes of the op."""
        return {
            "stride": self.stride, "dilation": self.dilation, "before": self.before,
            "after": self.after, "groups": self.groups, "channels_last": int(self.last),
        }  # fmt: skip

    def place(self, n: int, channels: int, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Dims in the order of this case."""
        return (n, *dims, channels) if self.last else (n, channels, *dims)

    @property
    def weight(self) -> tuple[int, ...]:
        """The weight's dims."""
        return (self.o, self.c // self.groups, *self.kernel)


def channels_second(x: Array, last: bool) -> Array:
    return np.moveaxis(x, -1, 1) if last else x


def back(x: Array, last: bool) -> Array:
    return np.moveaxis(x, 1, -1) if last else x


def taps(s: Shape, padded: Array):
    """Each tap's place in the kernel and what it reads of the padded input, (N, C, of_results)."""
    for at in itertools.product(*(range(k) for k in s.kernel)):
        starts = [k * d for k, d in zip(at, s.dilation)]
        where = tuple(
            slice(first, first + (n - 1) * step + 1, step)
            for first, step, n in zip(starts, s.stride, s.of_results)
        )
        yield at, padded[(slice(None), slice(None), *where)]


def grouped(x: Array, groups: int, dim: int) -> Array:
    return x.reshape(*x.shape[:dim], groups, x.shape[dim] // groups, *x.shape[dim + 1 :])


def conv(s: Shape):
    """x, weight[, bias] -> y"""
    pads = [(0, 0), (0, 0), *zip(s.before, s.after)]

    def f(x, w, bias=None):
        x = np.pad(channels_second(x, s.last), pads)
        y = np.zeros((s.n, s.groups, s.o // s.groups, *s.of_results), x.dtype)
        for at, read in taps(s, x):
            part = grouped(w, s.groups, 0)[(..., *at)]
            y += np.einsum("ngc...,goc->ngo...", grouped(read, s.groups, 1), part)
        y = y.reshape(s.n, s.o, *s.of_results)
        if bias is not None:
            y = y + bias.reshape(-1, *(1,) * len(s.size))
        return back(y, s.last)

    return f


def transpose(s: Shape):
    """y, weight[, bias] -> x"""

    def f(y, w, bias=None):
        y = channels_second(y, s.last)
        padded = np.zeros((s.n, s.c, *(i + b + a for i, b, a in zip(s.size, s.before, s.after))))
        for at, read in taps(s, padded):
            part = grouped(w, s.groups, 0)[(..., *at)]
            out = np.einsum("ngo...,goc->ngc...", grouped(y, s.groups, 1), part)
            read += out.reshape(read.shape)
        inside = tuple(slice(b, b + i) for b, i in zip(s.before, s.size))
        x = padded[(slice(None), slice(None), *inside)]
        if bias is not None:
            x = x + bias.reshape(-1, *(1,) * len(s.size))
        return back(x, s.last)

    return f


def by_terms(f, k: int):
    """Higham's rule: k terms and the bias, S of the magnitudes."""
    return lambda inputs, outputs: [(k + 2, f(*(np.abs(x) for x in inputs)))]


def conv_case(s: Shape, *, bias: bool = True, fill=normal, grad: bool = True) -> Case:
    shapes = [s.place(s.n, s.c, s.size), s.weight, *([(s.o,)] if bias else [])]
    k = s.c // s.groups * int(np.prod(s.kernel))
    return Case(
        "conv", s.name, tuple(fill(*dims) for dims in shapes), conv(s), by_terms(conv(s), k),
        s.attrs, grad=tuple(range(len(shapes))) if grad else (),
    )  # fmt: skip


def transpose_case(s: Shape, *, bias: bool = True, fill=normal, grad: bool = True) -> Case:
    shapes = [s.place(s.n, s.o, s.of_results), s.weight, *([(s.c,)] if bias else [])]
    k = s.o // s.groups * int(np.prod(s.kernel))
    return Case(
        "conv_transpose", s.name, tuple(fill(*dims) for dims in shapes), transpose(s),
        by_terms(transpose(s), k), s.attrs | {"size": s.size},
        grad=tuple(range(len(shapes))) if grad else (),
    )  # fmt: skip


SHAPES = (
    # 2-D: the usual ones
    Shape("3x3", 2, 5, 7, (6, 9), (3, 3), before=(1, 1), after=(1, 1)),
    Shape("3x3-many-channels", 2, 33, 65, (5, 6), (3, 3), before=(1, 1), after=(1, 1)),
    Shape("3x3-stride2", 2, 16, 32, (9, 8), (3, 3), (2, 2), before=(1, 1), after=(1, 1)),
    Shape("7x7-stride2", 1, 3, 8, (17, 19), (7, 7), (2, 2), before=(3, 3), after=(3, 3)),
    Shape("1x1", 3, 17, 33, (4, 5), (1, 1)),
    Shape("1x1-stride2", 2, 8, 16, (5, 7), (1, 1), (2, 2)),
    Shape("patch4", 2, 3, 24, (8, 12), (4, 4), (4, 4)),
    Shape("2x2-stride3", 1, 4, 4, (8, 8), (2, 2), (3, 3)),  # inputs that nothing reads
    # padding of one side, of more than the kernel, and strides that leave a rest
    Shape("one-side", 2, 3, 4, (5, 6), (2, 3), before=(1, 0), after=(0, 2)),
    Shape("wide-padding", 1, 2, 3, (3, 4), (2, 2), before=(3, 4), after=(4, 3)),
    Shape("rest", 2, 3, 4, (8, 11), (3, 2), (3, 4), before=(1, 0), after=(0, 1)),
    Shape("dilated", 2, 4, 6, (11, 12), (3, 3), dilation=(2, 3), before=(2, 3), after=(2, 3)),
    Shape("dilated-stride", 1, 4, 6, (11, 13), (3, 2), (2, 3), (3, 2), (1, 2), (2, 1)),
    # groups
    Shape("groups", 2, 6, 8, (5, 6), (3, 3), before=(1, 1), after=(1, 1), groups=2),
    Shape("groups-wide", 2, 64, 96, (4, 4), (3, 3), before=(1, 1), after=(1, 1), groups=2),
    Shape("depthwise", 2, 19, 19, (7, 9), (3, 3), before=(1, 1), after=(1, 1), groups=19),
    Shape("depthwise-7x7", 1, 32, 32, (9, 15), (7, 7), before=(3, 3), after=(3, 3), groups=32),
    Shape("depthwise-s2", 2, 9, 9, (9, 8), (5, 5), (2, 2), before=(2, 2), after=(2, 2), groups=9),
    Shape("multiplier", 2, 5, 15, (6, 6), (3, 3), before=(1, 1), after=(1, 1), groups=5),
    # 1-D and 3-D
    Shape("1d", 3, 4, 6, (13,), (5,), (2,), before=(2,), after=(2,)),
    Shape("1d-causal", 2, 3, 5, (9,), (3,), dilation=(2,), before=(4,)),
    Shape("3d", 2, 3, 4, (4, 5, 6), (2, 3, 3), (1, 2, 1), before=(1, 1, 0), after=(0, 1, 1)),
    Shape("3d-depthwise", 1, 4, 4, (4, 4, 4), (3, 3, 3), before=(1,) * 3, after=(1,) * 3, groups=4),
    # edges of sizes
    Shape("one-pixel", 1, 1, 1, (1, 1), (1, 1)),
    Shape("kernel-is-input", 2, 3, 5, (4, 5), (4, 5)),
    Shape("one-channel-out", 2, 9, 1, (5, 5), (3, 3)),
    Shape("channels-last", 2, 6, 8, (5, 7), (3, 2), (2, 1), before=(1, 1), after=(0, 1), last=True),
    Shape("1d-channels-last", 2, 4, 6, (9,), (3,), before=(1,), after=(1,), groups=2, last=True),
)  # fmt: skip


def conv_cases():
    for i, s in enumerate(SHAPES):
        yield conv_case(s, bias=i % 3 != 0)
        yield transpose_case(s, bias=i % 3 != 1)
    no_images = Shape("no-images", 0, 3, 4, (5, 5), (3, 3))
    yield conv_case(no_images, grad=False)
    yield transpose_case(no_images, grad=False)

    def whole_numbers(*dims):
        return whole(-8, 8, *dims)

    for s in (
        Shape("exact", 2, 32, 48, (9, 10), (3, 3), before=(1, 1), after=(1, 1)),
        Shape("exact-long", 1, 300, 20, (5, 5), (3, 3), (2, 2), before=(1, 1), after=(1, 1)),
        Shape("exact-depthwise", 2, 40, 40, (6, 7), (5, 5), before=(2, 2), after=(2, 2), groups=40),
    ):
        for make in (conv_case, transpose_case):
            case = make(s, fill=whole_numbers, grad=False)
            yield Case(case.op, case.name, case.inputs, case.expect, attrs=case.attrs)


CASES = list(conv_cases())
