"""Tensors out of nothing.

Inside ``forward`` these make symbolic tensors; outside of it they make NumPy arrays (float32 by
default), which is what ``nn.Parameter`` and ``register_buffer`` take. Random values come from
hotloop's counter-based generator in both cases: outside, from ``hl.manual_seed``'s seed and the
number of the call; inside, from the trace's seed, the module's path and the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.memory import allocating
from hotloop.base.scalars import plain
from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import comparison, dtypes, elementary, pointwise, seeds
from hotloop.graph import trace as tracing
from hotloop.graph.build import Number, Operand, add_node, cast, is_tensor, lift, number, to_array
from hotloop.graph.dtypes import DType
from hotloop.graph.eager import make_eager
from hotloop.graph.value import Tensor
from hotloop.graph.views import expand, reshape, sizes_of

if TYPE_CHECKING:
    import numpy.typing as npt


__all__ = [
    "arange", "as_tensor", "bernoulli", "empty", "empty_like", "eye", "from_numpy", "full",
    "full_like", "linspace", "ones", "ones_like", "rand", "rand_like", "randint", "randn",
    "randn_like", "randperm", "scalar", "tensor", "zeros", "zeros_like",
]  # fmt: skip

# The result is a Tensor inside forward and an array outside: Any, so that both type-check.
Made = Any


def _constant(array: npt.NDArray[Any]) -> Made:
    trace = tracing.active()
    return array if trace is None else trace.const(array)


def _array_dtype(dtype: DType) -> Any:
    if dtype == dtypes.bfloat16:
        raise ConfigError("dtype: NumPy has no bfloat16; make the array as float32")
    return np.dtype(str(dtype))


def full(
    size: int | Sequence[int],
    fill_value: Number,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Made:
    """One number everywhere.

    Parameters
    ----------
    size : int or sequence of int
        The shape.
    fill_value : number
        Decides the dtype where none is given: float32, int64 or bool.
    dtype : dtype, optional
        The element type.
    device, requires_grad
        Taken for torch's sake; a graph has its device from the plan, and what learns is an
        ``nn.Parameter``.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        Of that shape.

    Raises
    ------
    ShapeError
        If a size is negative.
    """
    shape = _checked(sizes_of((size,), "full"))
    fill_value = plain(fill_value)
    if dtype is not None:
        kind = dtypes.parse(dtype)
    elif isinstance(fill_value, bool):
        kind = dtypes.bool_
    else:
        kind = dtypes.int64 if isinstance(fill_value, int) else dtypes.default_float
    trace = tracing.active()
    if trace is None:
        with allocating("full", shape, _array_dtype(kind)):
            return np.full(shape, fill_value, _array_dtype(kind))
    return expand(number(trace, kind, fill_value), shape)


def _checked(shape: tuple[int, ...]) -> tuple[int, ...]:
    if any(size < 0 for size in shape):
        raise ShapeError(f"shape: sizes must not be negative, got {shape}")
    return shape


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Made:
    """Zeros of a shape.

    Parameters
    ----------
    *size : int
        The shape, as ``(2, 3)`` or as two numbers.
    dtype : dtype, optional
        float32 by default.
    device, requires_grad
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        Of that shape.
    """
    return full(sizes_of(size, "zeros"), 0, dtype=dtype or dtypes.default_float)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Made:
    """Ones of a shape.

    Parameters
    ----------
    *size : int
        The shape, as ``(2, 3)`` or as two numbers.
    dtype : dtype, optional
        float32 by default.
    device, requires_grad
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        Of that shape.
    """
    return full(sizes_of(size, "ones"), 1, dtype=dtype or dtypes.default_float)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Made:
    """Zeros: hotloop hands out no memory that was not written.

    Parameters
    ----------
    *size : int
        The shape, as ``(2, 3)`` or as two numbers.
    dtype : dtype, optional
        float32 by default.
    device, requires_grad
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        Of that shape.
    """
    return zeros(*size, dtype=dtype)


def _like(input: Any) -> tuple[tuple[int, ...], DType]:
    x = input if is_tensor(input) else to_array(input)
    return tuple(x.shape), dtypes.parse(x.dtype)


def full_like(input: Any, fill_value: Number, *, dtype: Any = None, device: Any = None) -> Made:
    """One number in the shape and dtype of ``input``.

    Parameters
    ----------
    input : Tensor or array
        Gives shape and dtype.
    fill_value : number
        The number.
    dtype : dtype, optional
        Another one.
    device
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        Of that shape.
    """
    shape, kind = _like(input)
    return full(shape, fill_value, dtype=dtype or kind)


def zeros_like(input: Any, *, dtype: Any = None, device: Any = None) -> Made:
    """Zeros in the shape and dtype of ``input``.

    Parameters
    ----------
    input : Tensor or array
        Gives shape and dtype.
    dtype : dtype, optional
        Another one.
    device
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        Of that shape.
    """
    return full_like(input, 0, dtype=dtype)


def ones_like(input: Any, *, dtype: Any = None, device: Any = None) -> Made:
    """Ones in the shape and dtype of ``input``.

    Parameters
    ----------
    input : Tensor or array
        Gives shape and dtype.
    dtype : dtype, optional
        Another one.
    device
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        Of that shape.
    """
    return full_like(input, 1, dtype=dtype)


def empty_like(input: Any, *, dtype: Any = None, device: Any = None) -> Made:
    """Zeros in the shape and dtype of ``input``.

    Parameters
    ----------
    input : Tensor or array
        Gives shape and dtype.
    dtype : dtype, optional
        Another one.
    device
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        Of that shape.
    """
    return full_like(input, 0, dtype=dtype)


def arange(
    start: Number,
    end: Number | None = None,
    step: Number = 1,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Made:
    """Numbers at equal distances, the end left out.

    Parameters
    ----------
    start : number
        The first; with one argument the end, and the first is 0.
    end : number, optional
        Not reached.
    step : number
        The distance; may be negative.
    dtype : dtype, optional
        int64 for integers, else float32.
    device
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        ``(n,)``, n = ceil((end - start) / step).

    Raises
    ------
    ShapeError
        If the step is 0 or leads away from the end.
    """
    first, last = (0, plain(start)) if end is None else (plain(start), plain(end))
    step = plain(step)
    if step == 0 or (last - first) / step < 0:
        raise ShapeError(f"arange: step must lead from {first} to {last}, got {step}")
    whole = all(isinstance(v, int) for v in (first, last, step))
    kind = dtypes.parse(dtype) if dtype else dtypes.int64 if whole else dtypes.default_float
    n = math.ceil((last - first) / step)
    with allocating("arange", (n,)):
        steps: Any = np.arange(n, dtype=np.int64 if whole else np.float64)
        values = first + step * steps
        return _constant(values.astype(_array_dtype(kind)))


def linspace(
    start: float, end: float, steps: int, *, dtype: Any = None, device: Any = None
) -> Made:
    """Numbers at equal distances, both ends included.

    Parameters
    ----------
    start, end : float
        The ends.
    steps : int
        How many.
    dtype : dtype, optional
        float32 by default.
    device
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        ``(steps,)``.
    """
    kind = dtypes.parse(dtype or dtypes.default_float)
    with allocating("linspace", (steps,)):
        return _constant(np.linspace(start, end, steps).astype(_array_dtype(kind)))


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None) -> Made:
    """Ones on the diagonal of a matrix of zeros.

    Parameters
    ----------
    n : int
        Rows.
    m : int, optional
        Columns; n by default.
    dtype : dtype, optional
        float32 by default.
    device
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        ``(n, m)``.
    """
    kind = dtypes.parse(dtype or dtypes.default_float)
    with allocating("eye", (n, n if m is None else m), _array_dtype(kind)):
        return _constant(np.eye(n, m, dtype=_array_dtype(kind)))


def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Made:
    """An array, inside ``forward`` a constant, from numbers, lists or an array.

    Parameters
    ----------
    data : number, list or array
        Python floats and float64 arrays become float32.
    dtype : dtype, optional
        Another one.
    device, requires_grad
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        A copy of the data.
    """
    trace = tracing.active()
    if trace is not None and is_tensor(data):
        return data if dtype is None else cast(data, dtypes.parse(dtype))
    if trace is not None and isinstance(data, list | tuple):
        made = lift(data, trace)
        return made if dtype is None else cast(made, dtypes.parse(dtype))
    array = to_array(data, "tensor").copy()
    if dtype is not None:
        array = array.astype(_array_dtype(dtypes.parse(dtype)))
    return _constant(array)


def as_tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Made:
    """The same as :func:`tensor`.

    Parameters
    ----------
    data : number, list or array
        Python floats and float64 arrays become float32.
    dtype : dtype, optional
        Another one.
    device
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        A copy of the data.
    """
    return tensor(data, dtype=dtype)


def from_numpy(ndarray: Any) -> Made:
    """The same as :func:`tensor`.

    Parameters
    ----------
    ndarray : array
        float64 becomes float32.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        A copy of it.
    """
    return tensor(ndarray)


# ---------------------------------------------------------------------------- random


def random_source(kind: str) -> tuple[Tensor, dict[str, Any]]:
    """In a trace: what a random op takes beside its own, the control block and attributes.

    ``kind`` names the use: part of the stream's name.
    """
    trace = tracing.current(kind)
    return trace.control(), {"stream": trace.stream(kind), "seed": trace.seed}


def drawn(op: str, shape: Sequence[int], kind: str, **attrs: Any) -> Tensor:
    """In a trace: a random op of this shape, anew in each step; dim 0 is samples.

    ``kind`` names the use: part of the stream's name.
    """
    control, stream = random_source(kind)
    sizes = tuple(shape)
    made = add_node(op, control, **attrs | stream | {"shape": sizes or (1,)})
    return made if sizes else reshape(made, ())


def uniform_bits(shape: Sequence[int], kind: str) -> Tensor:
    """In a trace: uniform numbers ``(k + 0.5) / 65536``, k of 16 random bits; see :func:`drawn`."""
    return drawn("uniform", shape, kind)


def rand(*size: Any, dtype: Any = None, device: Any = None) -> Made:
    """Uniform numbers in (0, 1); inside ``forward`` new ones in each step, of 16 bits.

    Parameters
    ----------
    *size : int
        The shape, as ``(2, 3)`` or as two numbers.
    dtype : dtype, optional
        float32 by default.
    device
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        Of that shape.
    """
    shape = _checked(sizes_of(size, "rand"))
    kind = dtypes.parse(dtype or dtypes.default_float)
    if tracing.active() is None:
        return seeds.uniform(shape, 0.0, 1.0).astype(_array_dtype(kind))
    return cast(uniform_bits(shape, "rand"), kind)


def randn(*size: Any, dtype: Any = None, device: Any = None) -> Made:
    """Standard normal numbers; inside ``forward`` new ones in each step.

    Parameters
    ----------
    *size : int
        The shape, as ``(2, 3)`` or as two numbers.
    dtype : dtype, optional
        float32 by default.
    device
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        Of that shape.

    Notes
    -----
    Inside ``forward`` they come from 16-bit uniform numbers by Box and Muller's transform (1958),
    so that none is larger than 4.86.
    """
    shape = _checked(sizes_of(size, "randn"))
    kind = dtypes.parse(dtype or dtypes.default_float)
    if tracing.active() is None:
        return seeds.normal(shape, 0.0, 1.0).astype(_array_dtype(kind))
    radius = pointwise.sqrt(elementary.log(uniform_bits(shape, "randn")) * -2.0)
    angle = uniform_bits(shape, "randn") * (2.0 * math.pi)
    return cast(radius * elementary.cos(angle), kind)


def rand_like(input: Any, *, dtype: Any = None, device: Any = None) -> Made:
    """Uniform numbers in the shape of ``input``; see :func:`rand`.

    Parameters
    ----------
    input : Tensor or array
        Gives shape and dtype.
    dtype : dtype, optional
        Another one.
    device
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        Of that shape.
    """
    shape, kind = _like(input)
    return rand(shape, dtype=dtype or kind)


def randn_like(input: Any, *, dtype: Any = None, device: Any = None) -> Made:
    """Standard normal numbers in the shape of ``input``; see :func:`randn`.

    Parameters
    ----------
    input : Tensor or array
        Gives shape and dtype.
    dtype : dtype, optional
        Another one.
    device
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        Of that shape.
    """
    shape, kind = _like(input)
    return randn(shape, dtype=dtype or kind)


def randint(
    low: int, high: Any = None, size: Any = None, *, dtype: Any = None, device: Any = None
) -> Made:
    """Integers in ``[low, high)``; inside ``forward`` new ones in each step.

    Parameters
    ----------
    low, high : int
        The range; ``randint(high, size)`` begins at 0.
    size : int or sequence of int
        The shape.
    dtype : dtype, optional
        int64 by default.
    device
        Taken for torch's sake.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        Of that shape.

    Raises
    ------
    ConfigError
        If low is not below high, or in ``forward`` there are more than 65,536 values.
    """
    if size is None:
        low, high, size = 0, low, high
    shape = _checked(sizes_of((size,), "randint"))
    kind = dtypes.parse(dtype or dtypes.int64)
    if not low < high:
        raise ConfigError(f"randint: low must be below high, got {low} and {high}")
    if tracing.active() is None:
        values = np.floor(seeds.uniform(shape, 0.0, float(high - low)))
        return (np.minimum(values, high - low - 1) + low).astype(_array_dtype(kind))
    if high - low > 65536:
        raise ConfigError(f"randint: in forward at most 65536 values, got {high - low}")
    return cast(pointwise.floor(uniform_bits(shape, "randint") * (high - low)) + low, kind)


def bernoulli(input: Operand) -> Tensor:
    """In ``forward``: 1 with a given probability, else 0; new ones in each step.

    Parameters
    ----------
    input : Tensor
        Probabilities, any shape.

    Returns
    -------
    Tensor
        The same shape and dtype; no gradient.
    """
    p = lift(input, what="bernoulli")
    return cast(uniform_bits(p.shape, "bernoulli") < p, p.dtype)


def randperm(n: int) -> Made:
    """0 .. n - 1 in random order; inside ``forward`` another one in each step.

    There it is made of n * n comparisons, which suits the rows of a batch. Numbers have 16 bits,
    as those of :func:`rand`; two that are equal stand in their order.

    Parameters
    ----------
    n : int
        How many.

    Returns
    -------
    Tensor in ``forward``, else ndarray
        ``(n,)``, int64.
    """
    if tracing.active() is None:
        return seeds.permutation(n)
    keys = uniform_bits((n,), "randperm")
    mine, other = reshape(keys, (n, 1)), reshape(keys, (1, n))
    earlier = lift(np.tri(n, n, -1, dtype=bool))
    is_before = comparison.logical_or(
        comparison.lt(other, mine), comparison.logical_and(comparison.eq(other, mine), earlier)
    )
    return is_before.sum(1)  # how many come before each: its place


def scalar(name: str, schedule: Any) -> Tensor:
    """In ``forward``: a number that changes over training without a new trace.

    Parameters
    ----------
    name : str
        Its name; the same name is the same number.
    schedule : callable or number
        ``schedule(step) -> float``, step being the optimizer steps so far; evaluated for all steps
        when training starts.

    Returns
    -------
    Tensor
        Rank 0, float32. In prediction it has the last value of training (with the weights
        of the best epoch, where these are restored, the last of that epoch), before it the first.

    Raises
    ------
    ConfigError
        When training starts, if the schedule gives no finite number.
    """
    return tracing.current("scalar").scalar(name, schedule)


make_eager(globals(), ["bernoulli"])  # the others have no operands
