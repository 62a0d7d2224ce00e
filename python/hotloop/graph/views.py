"""Other shapes of the same elements, joins and cuts. Every value is contiguous and row-major."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph.build import (
    Operand,
    add_node,
    add_nodes,
    axes_of,
    axis_of,
    cat,
    is_int,
    lift,
    stack,
    unsqueeze,
)
from hotloop.graph.eager import make_eager
from hotloop.graph.value import Tensor

__all__ = [
    "broadcast_shapes", "broadcast_tensors", "broadcast_to", "cat", "chunk", "concat", "expand",
    "flatten", "flip", "hstack", "movedim", "narrow", "permute", "ravel", "repeat",
    "repeat_interleave", "reshape", "roll", "select", "split", "squeeze", "stack", "t", "tile",
    "transpose", "unbind", "unflatten", "unsqueeze", "vstack",
]  # fmt: skip

Size: TypeAlias = int | Sequence[int]


def sizes_of(shape: tuple[Any, ...], what: str) -> tuple[int, ...]:
    """A shape given as ``f(2, 3)`` or as ``f((2, 3))``."""
    if len(shape) == 1 and isinstance(shape[0], tuple | list):
        shape = tuple(shape[0])
    for size in shape:
        if not is_int(size):
            raise ConfigError(f"{what}: sizes must be integers, got {tuple(shape)}")
    return tuple(int(size) for size in shape)


def reshape(input: Operand, shape: Size) -> Tensor:
    """The same elements in row-major order in another shape.

    Parameters
    ----------
    input : Tensor
        Any shape.
    shape : int or sequence of int
        The sizes; one may be -1, which is what is left.

    Returns
    -------
    Tensor
        Of that shape.

    Raises
    ------
    ShapeError
        If the number of elements differs, or several sizes are -1.
    """
    x = lift(input, what="reshape")
    sizes = sizes_of((shape,), "reshape")
    if sizes.count(-1) > 1 or any(size < -1 for size in sizes):
        raise ShapeError(f"reshape: at most one size may be -1, got {sizes} for shape {x.shape}")
    if -1 in sizes:
        known = -math.prod(sizes)
        n = x.numel()
        if (known == 0 and n) or (known and n % known):
            raise ShapeError(f"reshape: {n} elements of shape {x.shape} must fill {sizes}")
        sizes = tuple((n // known if known else 0) if s == -1 else s for s in sizes)
    elif math.prod(sizes) != x.numel():
        raise ShapeError(
            f"reshape: must keep the {x.numel()} elements of shape {x.shape}, got shape {sizes}"
        )
    return x if sizes == x.shape else add_node("reshape", x, shape=sizes)


def permute(input: Operand, dims: Sequence[int]) -> Tensor:
    """Dims in another order.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dims : sequence of int
        Dim i of the result is dim ``dims[i]`` of the input.

    Returns
    -------
    Tensor
        The same elements.

    Raises
    ------
    ShapeError
        If not every dim is named once.
    """
    x = lift(input, what="permute")
    order = [axis_of(x, d, "permute") for d in dims]
    if sorted(order) != list(range(x.ndim)):
        raise ShapeError(
            f"permute: dims must name each of the {x.ndim} dims of shape {x.shape} once, "
            f"got {tuple(dims)}"
        )
    return x if order == sorted(order) else add_node("permute", x, dims=order)


def transpose(input: Operand, dim0: int, dim1: int) -> Tensor:
    """Two dims swapped.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim0, dim1 : int
        The dims.

    Returns
    -------
    Tensor
        The same elements.
    """
    x = lift(input, what="transpose")
    a, b = axis_of(x, dim0, "transpose"), axis_of(x, dim1, "transpose")
    order = list(range(x.ndim))
    if order:
        order[a], order[b] = order[b], order[a]
    return permute(x, order)


def t(input: Operand) -> Tensor:
    """Transpose of a matrix.

    Parameters
    ----------
    input : Tensor
        ``(M, N)``, or a vector, which stays as it is.

    Returns
    -------
    Tensor
        ``(N, M)``.

    Raises
    ------
    ShapeError
        If there are more than two dims.
    """
    x = lift(input, what="t")
    if x.ndim > 2:
        raise ShapeError(f"t: must have at most two dims, got shape {x.shape}; use .mT")
    return transpose(x, 0, 1) if x.ndim == 2 else x


def movedim(input: Operand, source: Size, destination: Size) -> Tensor:
    """Dims moved elsewhere, the others keeping their order.

    Parameters
    ----------
    input : Tensor
        Any shape.
    source, destination : int or sequence of int
        Where they are and where they go.

    Returns
    -------
    Tensor
        The same elements.

    Raises
    ------
    ShapeError
        If the dims do not form pairs.
    """
    x = lift(input, what="movedim")
    src = [axis_of(x, d, "movedim") for d in sizes_of((source,), "movedim")]
    dst = [axis_of(x, d, "movedim") for d in sizes_of((destination,), "movedim")]
    if len(src) != len(dst) or len(set(src)) != len(src) or len(set(dst)) != len(dst):
        raise ShapeError(f"movedim: must pair distinct dims, got {source} and {destination}")
    order = [axis for axis in range(x.ndim) if axis not in src]
    for to, axis in sorted(zip(dst, src)):
        order.insert(to, axis)
    return permute(x, order)


def flatten(input: Operand, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Several neighbouring dims as one.

    Parameters
    ----------
    input : Tensor
        Any shape.
    start_dim, end_dim : int
        First and last of them.

    Returns
    -------
    Tensor
        The same elements.

    Raises
    ------
    ShapeError
        If start_dim comes after end_dim.
    """
    x = lift(input, what="flatten")
    first, last = axis_of(x, start_dim, "flatten"), axis_of(x, end_dim, "flatten")
    if first > last:
        raise ShapeError(
            f"flatten: start_dim must not come after end_dim, got {start_dim} and {end_dim} "
            f"for shape {x.shape}"
        )
    joined = math.prod(x.shape[first : last + 1])
    return reshape(x, (*x.shape[:first], joined, *x.shape[last + 1 :]))


def ravel(input: Operand) -> Tensor:
    """All elements in one dim.

    Parameters
    ----------
    input : Tensor
        Any shape.

    Returns
    -------
    Tensor
        ``(n,)``.
    """
    return reshape(input, (-1,))


def unflatten(input: Operand, dim: int, sizes: Sequence[int]) -> Tensor:
    """One dim as several.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The dim that is taken apart.
    sizes : sequence of int
        The sizes in its place; one may be -1.

    Returns
    -------
    Tensor
        The same elements.

    Raises
    ------
    ShapeError
        If the sizes do not multiply to the dim's.
    """
    x = lift(input, what="unflatten")
    axis = axis_of(x, dim, "unflatten")
    parts = sizes_of((tuple(sizes),), "unflatten")
    known = -math.prod(parts) if -1 in parts else math.prod(parts)
    size = x.shape[axis]
    if parts.count(-1) > 1 or (size % known if known and -1 in parts else size != known):
        raise ShapeError(f"unflatten: {parts} must multiply to dim {dim} of {x.shape}, {size}")
    parts = tuple(size // known if part == -1 and known else part for part in parts)
    return reshape(x, (*x.shape[:axis], *parts, *x.shape[axis + 1 :]))


def squeeze(input: Operand, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without dims of size 1.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int or sequence of int, optional
        Only these, where they have size 1; by default all.

    Returns
    -------
    Tensor
        The same elements.
    """
    x = lift(input, what="squeeze")
    axes = axes_of(x, dim, "squeeze") if not isinstance(dim, tuple | list) or dim else ()
    return reshape(x, tuple(s for i, s in enumerate(x.shape) if i not in axes or s != 1))


def expand(input: Operand, shape: Size) -> Tensor:
    """Dims of size 1 repeated.

    Parameters
    ----------
    input : Tensor
        Any shape.
    shape : int or sequence of int
        The sizes, which may have more dims in front; -1 keeps a dim.

    Returns
    -------
    Tensor
        Of that shape.

    Raises
    ------
    ShapeError
        If the input does not broadcast to it.
    """
    x = lift(input, what="expand")
    sizes = sizes_of((shape,), "expand")
    offset = len(sizes) - x.ndim
    full = [
        x.shape[i - offset] if size == -1 and i >= offset else size for i, size in enumerate(sizes)
    ]
    if offset < 0 or any(
        size < 0 or (i >= offset and x.shape[i - offset] not in (1, size))
        for i, size in enumerate(full)
    ):
        raise ShapeError(f"expand: shape {x.shape} must broadcast to {sizes}")
    return x if tuple(full) == x.shape else add_node("expand", x, shape=full)


def broadcast_to(input: Operand, shape: Size) -> Tensor:
    """The same as :func:`expand`.

    Parameters
    ----------
    input : Tensor
        Any shape.
    shape : int or sequence of int
        As for :func:`expand`.

    Returns
    -------
    Tensor
        Of that shape.
    """
    return expand(input, shape)


def broadcast_shapes(*shapes: Sequence[int], what: str = "broadcast") -> tuple[int, ...]:
    """The common shape by NumPy's rule.

    Parameters
    ----------
    *shapes : sequence of int
        Shapes.
    what : str
        What an error's text begins with.

    Returns
    -------
    tuple of int
        The shape.

    Raises
    ------
    ShapeError
        When there is none.
    """
    result: list[int] = []
    for shape in shapes:
        have = [1] * (len(shape) - len(result)) + result
        want = [1] * (len(result) - len(shape)) + list(shape)
        if any(a != b and 1 not in (a, b) for a, b in zip(have, want)):
            text = " and ".join(str(tuple(s)) for s in shapes)
            raise ShapeError(f"{what}: shapes must broadcast, got {text}")
        result = [b if a == 1 else a for a, b in zip(have, want)]
    return tuple(result)


def broadcast_tensors(*tensors: Operand) -> tuple[Tensor, ...]:
    """Tensors in their common shape.

    Parameters
    ----------
    *tensors : Tensor
        Shapes that broadcast.

    Returns
    -------
    tuple of Tensor
        All of one shape.
    """
    lifted = [lift(x, what="broadcast_tensors") for x in tensors]
    shape = broadcast_shapes(*(x.shape for x in lifted), what="broadcast_tensors")
    return tuple(expand(x, shape) for x in lifted)


def repeat(input: Operand, sizes: Size) -> Tensor:
    """The whole tensor several times along each dim (``np.tile``, ``torch.Tensor.repeat``).

    Parameters
    ----------
    input : Tensor
        Any shape.
    sizes : int or sequence of int
        How many times along each dim; more of them than dims add dims in front.

    Returns
    -------
    Tensor
        Dim i is ``sizes[i]`` times as long.

    Raises
    ------
    ShapeError
        If there are fewer counts than dims, or a negative one.
    """
    x = lift(input, what="repeat")
    times = sizes_of((sizes,), "repeat")
    if len(times) < x.ndim or any(n < 0 for n in times):
        raise ShapeError(f"repeat: must have a count >= 0 for each dim of {x.shape}, got {times}")
    shape = (1,) * (len(times) - x.ndim) + x.shape
    x = reshape(x, shape)
    for axis, n in enumerate(times):
        if n != 1:  # everything from the axis on is a block that follows itself n times
            lead, block = math.prod(x.shape[:axis]), math.prod(x.shape[axis:])
            spread = expand(reshape(x, (lead, 1, block)), (lead, n, block))
            x = reshape(spread, (*x.shape[:axis], n * shape[axis], *x.shape[axis + 1 :]))
    return x


def tile(input: Operand, dims: Size) -> Tensor:
    """As :func:`repeat`; missing counts are 1.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dims : int or sequence of int
        How many times along the last dims.

    Returns
    -------
    Tensor
        As for :func:`repeat`.
    """
    x = lift(input, what="tile")
    times = sizes_of((dims,), "tile")
    return repeat(x, (1,) * (x.ndim - len(times)) + times)


def repeat_interleave(input: Operand, repeats: int, dim: int | None = None) -> Tensor:
    """Each element several times in a row.

    Parameters
    ----------
    input : Tensor
        Any shape.
    repeats : int
        How many times.
    dim : int, optional
        Along which; without one, of the flattened tensor.

    Returns
    -------
    Tensor
        The dim is ``repeats`` times as long.

    Raises
    ------
    ConfigError
        If repeats is a tensor: its values would decide the result's shape.
    """
    x = lift(input, what="repeat_interleave")
    if not is_int(repeats):
        raise ConfigError(
            "repeat_interleave: repeats must be an integer (a tensor's values would decide the "
            f"result's shape), got {type(repeats).__name__}"
        )
    if dim is None:
        x, dim = ravel(x), 0
    axis = axis_of(x, dim, "repeat_interleave")
    spread = expand(unsqueeze(x, axis + 1), (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :]))
    return reshape(spread, (*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :]))


def concat(tensors: Sequence[Operand], dim: int = 0) -> Tensor:
    """The same as :func:`cat`.

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
    """
    return cat(tensors, dim)


def hstack(tensors: Sequence[Operand]) -> Tensor:
    """Tensors joined along dim 1 (vectors: dim 0).

    Parameters
    ----------
    tensors : sequence of Tensor
        Their other dims agree.

    Returns
    -------
    Tensor
        As :func:`cat`.
    """
    parts = [lift(x, what="hstack") for x in tensors]
    return cat([reshape(x, (1,)) if not x.ndim else x for x in parts], int(parts[0].ndim > 1))


def vstack(tensors: Sequence[Operand]) -> Tensor:
    """Tensors joined along dim 0; vectors become rows.

    Parameters
    ----------
    tensors : sequence of Tensor
        Their other dims agree.

    Returns
    -------
    Tensor
        As :func:`cat`.
    """
    parts = [lift(x, what="vstack") for x in tensors]
    return cat([reshape(x, (1, -1)) if x.ndim < 2 else x for x in parts], 0)


def narrow(input: Operand, dim: int, start: int, length: int) -> Tensor:
    """A range along a dim.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The dim.
    start, length : int
        The first element and how many.

    Returns
    -------
    Tensor
        ``length`` along the dim.

    Raises
    ------
    ShapeError
        If the range is not within the dim.
    """
    x = lift(input, what="narrow")
    axis = axis_of(x, dim, "narrow")
    first = start + x.shape[axis] if start < 0 else start
    if not 0 <= first <= first + length <= x.shape[axis]:
        raise ShapeError(
            f"narrow: [{start}, {start} + {length}) must lie in dim {dim} of {x.shape}"
        )
    return cut(x, axis, first, first + length)


def cut(x: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    """Elements start, start + step, ... before stop along an axis; all in range."""
    if start == 0 and stop >= x.shape[axis] and step == 1:
        return x
    return add_node("slice", x, axis=axis, start=start, stop=stop, step=step)


def select(input: Operand, dim: int, index: int) -> Tensor:
    """One place along a dim.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The dim, which goes.
    index : int
        The place; negative counts from the end.

    Returns
    -------
    Tensor
        With a dim less.

    Raises
    ------
    ShapeError
        If the index is out of range.
    """
    x = lift(input, what="select")
    axis = axis_of(x, dim, "select")
    size = x.shape[axis] if x.ndim else 0
    if not -size <= index < size:
        raise ShapeError(f"select: index must be in [{-size}, {size - 1}], got {index}")
    at = index % size
    row = cut(x, axis, at, at + 1)
    return reshape(row, (*x.shape[:axis], *x.shape[axis + 1 :]))


def split(input: Operand, split_size_or_sections: Size, dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces along a dim.

    Parameters
    ----------
    input : Tensor
        Any shape.
    split_size_or_sections : int or sequence of int
        One size (the last piece may be smaller), or the size of each piece.
    dim : int
        The dim.

    Returns
    -------
    tuple of Tensor
        The pieces in order.

    Raises
    ------
    ShapeError
        If a size is not positive, or the sizes do not add up to the dim's.
    """
    x = lift(input, what="split")
    axis = axis_of(x, dim, "split")
    if is_int(split_size_or_sections):
        step = int(split_size_or_sections)  # type: ignore[arg-type]
        if step <= 0:
            raise ShapeError(f"split: the size must be positive, got {step}")
        return add_nodes("split", x, axis=axis, size=step)
    sections, size = list(split_size_or_sections), x.shape[axis]  # type: ignore[arg-type]
    if sum(sections) != size or min(sections, default=0) < 0:
        raise ShapeError(
            f"split: sections must sum to dim {dim} of {x.shape}, {size}, got {sections}"
        )
    if sections and sections[0] and all(n == sections[0] for n in sections):
        return add_nodes("split", x, axis=axis, size=int(sections[0]))
    ends = [sum(sections[: i + 1]) for i in range(len(sections))]
    return tuple(cut(x, axis, end - n, end) for end, n in zip(ends, sections))


def chunk(input: Operand, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of equal size along a dim, the last one possibly smaller.

    Parameters
    ----------
    input : Tensor
        Any shape.
    chunks : int
        At most so many.
    dim : int
        The dim.

    Returns
    -------
    tuple of Tensor
        The pieces in order.

    Raises
    ------
    ShapeError
        If chunks is below 1.
    """
    x = lift(input, what="chunk")
    if chunks < 1:
        raise ShapeError(f"chunk: chunks must be at least 1, got {chunks}")
    size = x.shape[axis_of(x, dim, "chunk")]
    return split(x, max(1, math.ceil(size / chunks)), dim)


def unbind(input: Operand, dim: int = 0) -> tuple[Tensor, ...]:
    """Every place along a dim as a tensor of its own.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim : int
        The dim, which goes.

    Returns
    -------
    tuple of Tensor
        As many as the dim is long.
    """
    x = lift(input, what="unbind")
    axis = axis_of(x, dim, "unbind")
    if not x.shape[axis]:
        return ()
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return tuple(reshape(row, shape) for row in add_nodes("split", x, axis=axis, size=1))


def flip(input: Operand, dims: Size) -> Tensor:
    """Reversed along dims.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dims : int or sequence of int
        The dims.

    Returns
    -------
    Tensor
        The same shape.
    """
    x = lift(input, what="flip")
    wanted = sizes_of((dims,), "flip")
    return add_node("flip", x, axes=axes_of(x, wanted, "flip")) if wanted and x.ndim else x


def roll(input: Operand, shifts: Size, dims: Size | None = None) -> Tensor:
    """Shifted along dims, what leaves at one end entering at the other.

    Parameters
    ----------
    input : Tensor
        Any shape.
    shifts : int or sequence of int
        By how much; positive shifts move to higher indices.
    dims : int or sequence of int, optional
        One for each shift; without them, the flattened tensor is shifted.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ShapeError
        If there is not one shift per dim.
    """
    x = lift(input, what="roll")
    if dims is None:
        return reshape(roll(ravel(x), shifts, 0), x.shape)
    by, axes = sizes_of((shifts,), "roll"), sizes_of((dims,), "roll")
    if len(by) != len(axes):
        raise ShapeError(f"roll: must have one shift per dim, got {by} and {axes}")
    for shift, dim in zip(by, axes):
        axis = axis_of(x, dim, "roll")
        size = x.shape[axis]
        at = -shift % size if size else 0
        if at:
            x = cat([cut(x, axis, at, size), cut(x, axis, 0, at)], axis)
    return x


make_eager(globals(), __all__)
