"""From Python operands to nodes: lifting, dtype promotion, and the one call that adds a node.

Joins are here because a list of tensors is an operand.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hotloop.base.scalars import plain
from hotloop.errors import ShapeError, TraceError
from hotloop.graph import dtypes
from hotloop.graph import trace as tracing
from hotloop.graph.dtypes import DType
from hotloop.graph.eager import make_eager
from hotloop.graph.value import Tensor

if TYPE_CHECKING:
    import numpy.typing as npt

    from hotloop.graph.trace import Trace

__all__ = [
    "Number",
    "Operand",
    "add_node",
    "add_nodes",
    "axes_of",
    "axis_of",
    "cast",
    "cat",
    "is_int",
    "is_number",
    "is_tensor",
    "lift",
    "lift_float",
    "not_integers",
    "number",
    "stack",
    "to_array",
    "unify",
    "unsqueeze",
]

Number: TypeAlias = int | float | bool
if TYPE_CHECKING:
    Operand: TypeAlias = Tensor | npt.NDArray[Any] | Sequence[Any] | Number
else:
    Operand = Any


def is_number(value: object) -> bool:
    """Whether a value is a Python or NumPy number, which takes the other operand's dtype."""
    return isinstance(plain(value), numbers.Real)


def is_int(value: object) -> bool:
    """Whether a value is a Python or NumPy integer."""
    return isinstance(plain(value), numbers.Integral)


def is_tensor(value: object) -> bool:
    """Whether a value is a symbolic tensor, parameter or buffer."""
    return isinstance(value, Tensor)


def to_array(value: Any, what: str = "array") -> npt.NDArray[Any]:
    """An array that a graph can hold as a constant.

    float64 becomes float32, the working precision; unsigned integers that hotloop has not become
    int64; everything else keeps its dtype.

    Raises
    ------
    TraceError
        For strings, objects, complex numbers and dates.
    """
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # torch
        value = value.detach().cpu()
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TraceError(f"{what}: must hold numbers, got dtype {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize != 2:
        return np.ascontiguousarray(array, np.float32).reshape(array.shape)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        return np.ascontiguousarray(array, np.int64).reshape(array.shape)
    native = array.dtype.newbyteorder("=")
    return np.ascontiguousarray(array, native).reshape(array.shape)


def lift(value: Operand, trace: Trace | None = None, what: str = "hotloop function") -> Tensor:
    """A tensor of the running trace from a tensor, array, sequence of numbers or number."""
    if isinstance(value, Tensor):
        return value
    trace = trace or tracing.current(what)
    if is_number(value):
        return number(trace, _dtype_of_number(value), value)  # type: ignore[arg-type]
    if isinstance(value, list | tuple) and any(isinstance(v, Tensor) for v in value):
        return stack([lift(v, trace, what) for v in value])
    if value is None or isinstance(value, str):
        raise TraceError(f"{what}: must be given a tensor, array or number, got {value!r}")
    if isinstance(value, Mapping) and not hasattr(value, "__array__"):
        names = ", ".join(map(repr, value))
        raise TraceError(
            f"{what}: must be given a tensor, array or number, got a dict of {names}; take it "
            "apart in forward, or give one of its arrays"
        )
    array = to_array(value, what)
    exact = np.asarray(value) if isinstance(value, np.ndarray | list | tuple) else array
    if array.dtype == np.float32 and exact.dtype == np.float64:
        return trace.const(exact, "float32")
    return trace.const(array)


def lift_float(value: Operand, what: str) -> Tensor:
    """As :func:`lift`; integers and bools become float32."""
    tensor = lift(value, what=what)
    return tensor if tensor.dtype.is_floating_point else cast(tensor, dtypes.default_float)


def _dtype_of_number(value: object) -> DType:
    value = plain(value)
    if isinstance(value, bool):
        return dtypes.bool_
    return dtypes.int64 if isinstance(value, numbers.Integral) else dtypes.default_float


def number(trace: Trace, dtype: DType, value: Number) -> Tensor:
    """A rank-0 constant of a dtype."""
    return trace.number(dtype, value)


def cast(x: Tensor, dtype: DType) -> Tensor:
    """``x`` in another dtype; itself when it has it already."""
    return x if x.dtype == dtype else add_node("cast", x, dtype=str(dtype))


def unify(*values: Operand, what: str = "hotloop function") -> tuple[Tensor, ...]:
    """Tensors of one dtype from operands, by torch's rules.

    Python numbers take the tensors' dtype, except that a float with integer tensors gives
    float32 and an integer with bools int64. A rank-0 tensor does not widen a tensor with dims of
    its own kind.
    """
    trace = None
    tensors: list[Tensor | None] = []
    for value in values:
        tensors.append(None if is_number(value) else lift(value, what=what))
    for tensor in tensors:
        if tensor is not None:
            trace = tensor.trace
            break
    with_dims = [t.dtype for t in tensors if t is not None and t.ndim]
    scalars = [t.dtype for t in tensors if t is not None and not t.ndim]
    weak = [_dtype_of_number(v) for v, t in zip(values, tensors) if t is None]
    dtype: DType | None = None
    for group in (with_dims, scalars, weak):
        common: DType | None = None
        for candidate in group:
            common = candidate if common is None else dtypes.promote(common, candidate)
        if common is not None:
            wins = dtype is None or _kind(common) > _kind(dtype)
            dtype = common if wins else dtype
    assert dtype is not None
    trace = trace or tracing.current(what)
    return tuple(
        number(trace, dtype, value)  # type: ignore[arg-type]
        if tensor is None
        else cast(tensor, dtype)
        for value, tensor in zip(values, tensors)
    )


def _kind(dtype: DType) -> int:
    return 2 if dtype.is_floating_point else 1 if dtypes.is_integer(dtype) else 0


def add_nodes(op: str, *inputs: Tensor, **attrs: Any) -> tuple[Tensor, ...]:
    """Adds a node to the running trace and gives its outputs.

    Raises
    ------
    TraceError
        Outside a trace, or when an input belongs to another trace.
    ShapeError
        When the op's shape rule does not hold; the core names op and shapes.
    """
    trace = tracing.current(op)
    ids = trace.graph.add(op, [x.id_in(trace) for x in inputs], **attrs)
    outputs = tuple(trace.wrap(i) for i in ids)
    if trace.is_detached:
        outputs = tuple(
            trace.wrap(trace.graph.add("detach", [x.id_in(trace)])[0])
            if x.dtype.is_floating_point
            else x
            for x in outputs
        )
    return outputs


def add_node(op: str, *inputs: Tensor, **attrs: Any) -> Tensor:
    """Adds a node and gives its first output."""
    return add_nodes(op, *inputs, **attrs)[0]


def not_integers(x: Tensor) -> str:
    """``"got <dtype>; <what to do>"``: the end of an error about a tensor that must hold integers.

    An array is cast where it is made. Its own dtype may be another than the tensor's.
    """
    trace = tracing.current()
    graph, value = trace.graph, x.id_in(trace)
    kind, given = graph.kind(value), "uint8 and bool"
    if kind == "act":
        node = next(node for node in graph.nodes() if value in node["outputs"])
        if node["op"] == "batch_gather":
            kind, given = "input", graph.dtype(node["inputs"][0])
    if kind not in ("input", "const"):
        return f"got {x.dtype}; use .long()"
    why = ""
    if kind == "input" and given in ("uint8 and bool", "uint8", "bool"):
        why = f" ({given} arrays enter the model as float32)"
    return f"got {x.dtype}{why}; use .astype(int) on the array"


def axis_of(x: Tensor, dim: int, what: str) -> int:
    """A dim in 0 .. ndim - 1 from one that may be negative; a scalar counts as one dim.

    Raises
    ------
    ShapeError
        When it is out of range.
    """
    n = max(x.ndim, 1)
    if not is_int(dim) or not -n <= dim < n:
        raise ShapeError(
            f"{what}: dim must be in [{-n}, {n - 1}] for shape {tuple(x.shape)}, got {dim!r}"
        )
    return int(dim) % n


def axes_of(x: Tensor, dim: int | Sequence[int] | None, what: str) -> tuple[int, ...]:
    """Sorted axes from None (all), one dim or several."""
    if dim is None or (isinstance(dim, tuple | list) and not dim):
        return tuple(range(x.ndim))
    dims = [dim] if is_int(dim) else list(dim)  # type: ignore[arg-type]
    axes = sorted(axis_of(x, d, what) for d in dims)  # type: ignore[arg-type]
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{what}: dims must differ, got {tuple(dims)}")
    return tuple(axes) if x.ndim else ()


# ---- joins


def unsqueeze(input: Operand, dim: int) -> Tensor:
    """With a new dim of size 1.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        Where it is in the result.

    Returns
    -------
    Tensor
        The same elements.

    Raises
    ------
    ShapeError
        If dim is out of range.
    """
    x = lift(input, what="unsqueeze")
    if not is_int(dim) or not -x.ndim - 1 <= dim <= x.ndim:
        raise ShapeError(
            f"unsqueeze: dim must be in [{-x.ndim - 1}, {x.ndim}] for shape {x.shape}, got {dim!r}"
        )
    at = int(dim) % (x.ndim + 1)
    return add_node("reshape", x, shape=(*x.shape[:at], 1, *x.shape[at:]))


def cat(tensors: Sequence[Operand], dim: int = 0) -> Tensor:
    """Tensors joined along an existing dim.

    Parameters
    ----------
    tensors : sequence of Tensor
        Their other dims agree.
    dim : int
        The dim.

    Returns
    -------
    Tensor
        The sum of their sizes along the dim.

    Raises
    ------
    ShapeError
        If the other dims differ, or there is nothing to join.
    """
    if not tensors:
        raise ShapeError("cat: must be given at least one tensor, got none")
    parts = unify(*tensors, what="cat")
    if len(parts) == 1:
        return parts[0]
    axis = axis_of(parts[0], dim, "cat")
    for part in parts:
        rest = [s for i, s in enumerate(part.shape) if i != axis]
        if part.ndim == 0 or rest != [s for i, s in enumerate(parts[0].shape) if i != axis]:
            shapes = ", ".join(str(p.shape) for p in parts)
            raise ShapeError(f"cat: shapes must agree but for dim {dim}, got {shapes}")
    return add_node("concat", *parts, axis=axis)


def stack(tensors: Sequence[Operand], dim: int = 0) -> Tensor:
    """Tensors of one shape joined along a new dim.

    Parameters
    ----------
    tensors : sequence of Tensor
        n of them.
    dim : int
        Where the new dim is, of size n.

    Returns
    -------
    Tensor
        With a dim more.

    Raises
    ------
    ShapeError
        If the shapes differ, or there is nothing to join.
    """
    if not tensors:
        raise ShapeError("stack: must be given at least one tensor, got none")
    parts = unify(*tensors, what="stack")
    if any(part.shape != parts[0].shape for part in parts):
        shapes = ", ".join(str(p.shape) for p in parts)
        raise ShapeError(f"stack: shapes must be equal, got {shapes}")
    return cat([unsqueeze(part, dim) for part in parts], dim)


make_eager(globals(), ["cat", "stack", "unsqueeze"])
