"""Rearrangements that are other words for those of views, or made of them: torch's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import views
from hotloop.graph.build import Operand, axis_of, is_int, lift
from hotloop.graph.eager import make_eager
from hotloop.graph.value import Tensor
from hotloop.graph.views import Size

__all__ = [
    "diagonal", "fliplr", "flipud", "meshgrid", "moveaxis", "rot90", "swapaxes", "swapdims",
]  # fmt: skip


def swapaxes(input: Operand, axis0: int, axis1: int) -> Tensor:
    """The same as :func:`transpose`.

    Parameters
    ----------
    input : Tensor
        Any shape.
    axis0, axis1 : int
        The dims.

    Returns
    -------
    Tensor
        With the two dims exchanged.
    """
    return views.transpose(input, axis0, axis1)


def swapdims(input: Operand, dim0: int, dim1: int) -> Tensor:
    """The same as :func:`transpose`.

    Parameters
    ----------
    input : Tensor
        Any shape.
    dim0, dim1 : int
        The dims.

    Returns
    -------
    Tensor
        With the two dims exchanged.
    """
    return views.transpose(input, dim0, dim1)


def moveaxis(input: Operand, source: Size, destination: Size) -> Tensor:
    """The same as :func:`movedim`.

    Parameters
    ----------
    input : Tensor
        Any shape.
    source, destination : int or sequence of int
        Where the dims are and where they go.

    Returns
    -------
    Tensor
        The same elements.
    """
    return views.movedim(input, source, destination)


def fliplr(input: Operand) -> Tensor:
    """Dim 1 from its end to its beginning.

    Parameters
    ----------
    input : Tensor
        At least 2 dims.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ShapeError
        If there is no dim 1.
    """
    return views.flip(input, 1)


def flipud(input: Operand) -> Tensor:
    """Dim 0 from its end to its beginning.

    Parameters
    ----------
    input : Tensor
        At least 1 dim.

    Returns
    -------
    Tensor
        The same shape.

    Raises
    ------
    ShapeError
        If it has no dims.
    """
    return views.flip(input, 0)


def rot90(input: Operand, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turned by 90 degrees, from the first of two dims towards the second.

    Parameters
    ----------
    input : Tensor
        At least 2 dims; images ``(N, C, H, W)`` turn in the dims ``(2, 3)``.
    k : int
        How many times; below 0 the other way.
    dims : sequence of two int
        The plane.

    Returns
    -------
    Tensor
        With the sizes of the two dims exchanged where k is odd.

    Raises
    ------
    ConfigError
        If k is no integer.
    ShapeError
        If dims are not two different dims of the input.
    """
    x = lift(input, what="rot90")
    if not is_int(k):
        raise ConfigError(f"rot90: k must be an integer, got {k!r}")
    axes = [axis_of(x, dim, "rot90") for dim in views.sizes_of((dims,), "rot90")]
    if len(axes) != 2 or axes[0] == axes[1]:
        raise ShapeError(f"rot90: dims must be two different ones, got {dims}")
    turns = int(k) % 4
    if turns == 2:
        return views.flip(x, axes)
    if turns == 1:
        return views.transpose(views.flip(x, axes[1]), *axes)
    return views.flip(views.transpose(x, *axes), axes[1]) if turns else x


def diagonal(input: Operand, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A diagonal of matrices.

    Parameters
    ----------
    input : Tensor
        At least 2 dims.
    offset : int
        Which one: 0 is the main diagonal, 1 the one above it, -1 the one below.
    dim1, dim2 : int
        The matrices' rows and columns.

    Returns
    -------
    Tensor
        The other dims, and last that of the diagonal.

    Raises
    ------
    ConfigError
        If offset is no integer.
    ShapeError
        If the dims are not two different dims of the input.
    """
    x = lift(input, what="diagonal")
    if not is_int(offset):
        raise ConfigError(f"diagonal: offset must be an integer, got {offset!r}")
    first, second = axis_of(x, dim1, "diagonal"), axis_of(x, dim2, "diagonal")
    if first == second:
        raise ShapeError(f"diagonal: dim1 and dim2 must differ, got {dim1} and {dim2}")
    x = views.movedim(x, (first, second), (-2, -1))
    rows, columns = x.shape[-2:]
    n = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    flat = views.reshape(x, (*x.shape[:-2], rows * columns))
    if n == 0:
        return views.narrow(flat, -1, 0, 0)
    begin = offset if offset >= 0 else -offset * columns
    step = columns + 1
    return views.cut(flat, flat.ndim - 1, begin, begin + (n - 1) * step + 1, step)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Grids of coordinates: each vector along a dim of its own, the same along all others.

    Parameters
    ----------
    *tensors : Tensor
        Vectors ``(n_i,)`` or numbers, or one list of them.
    indexing : {"ij", "xy"}
        "xy": the first two dims of the grids are exchanged, as images have them.

    Returns
    -------
    tuple of Tensor
        As many as there are vectors, each ``(n_0, n_1, ...)``.

    Raises
    ------
    ConfigError
        For another indexing.
    ShapeError
        If there are none, or one has more than one dim.
    """
    if indexing not in ("ij", "xy"):
        raise ConfigError(f"meshgrid: indexing must be 'ij' or 'xy', got {indexing!r}")
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    vectors = [lift(vector, what="meshgrid") for vector in given]
    if not vectors or any(vector.ndim > 1 for vector in vectors):
        shapes = [tuple(vector.shape) for vector in vectors]
        raise ShapeError(f"meshgrid: must be given vectors, got shapes {shapes}")
    shape = tuple(vector.numel() for vector in vectors)
    grids = []
    for i, vector in enumerate(vectors):
        alone = [1] * len(vectors)
        alone[i] = shape[i]
        grid = views.expand(views.reshape(vector, tuple(alone)), shape)
        is_turned = indexing == "xy" and len(vectors) > 1
        grids.append(views.transpose(grid, 0, 1) if is_turned else grid)
    return tuple(grids)


make_eager(globals(), __all__)
