"""Layers that change shapes, do nothing, or measure distances between rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from hotloop.errors import ConfigError, ShapeError
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import NonNegative, Order, Real
from hotloop.nn.module import Module

__all__ = [
    "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d",
    "ConstantPad3d", "CosineSimilarity", "Flatten", "Identity", "PairwiseDistance",
    "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d",
    "ReplicationPad2d", "ReplicationPad3d", "Unflatten", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
]  # fmt: skip


class Identity(Module):
    """Its input, unchanged.

    Parameters
    ----------
    *args, **kwargs
        Taken and not used, so that it can stand in any layer's place.

    Notes
    -----
    Any shape in, the same out.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        return input


class Flatten(Module):
    """Dims ``start_dim`` .. ``end_dim`` as one; by default all but the batch.

    Parameters
    ----------
    start_dim, end_dim : int
        First and last of the dims that are joined.

    Notes
    -----
    ``(N, d1, ..., dn)`` in, by default ``(N, d1 · ... · dn)`` out.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input: Any) -> Any:
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """One dim as several.

    Parameters
    ----------
    dim : int
        The dim that is taken apart.
    unflattened_size : sequence of int
        Sizes in its place; one may be -1.

    Raises
    ------
    ConfigError
        If dim is no integer.

    Notes
    -----
    ``(..., n, ...)`` in, ``(..., *unflattened_size, ...)`` out.
    """

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        self.dim = dim
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, input: Any) -> Any:
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class CosineSimilarity(Module):
    """Cosine of the angle between two tensors along a dim.

    Parameters
    ----------
    dim : int
        The dim of the vectors.
    eps : float
        The least norm.

    Notes
    -----
    Two tensors whose shapes broadcast in, the common shape without the dim out.
    """

    def __init__(self, dim: int = 1, eps: NonNegative = 1e-8) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps

    def forward(self, x1: Any, x2: Any) -> Any:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """``‖x1 - x2 + eps‖_p`` over the last dim.

    Parameters
    ----------
    p : float
        Which norm; 2 is the Euclidean.
    eps : float
        Keeps the gradient finite where both are equal.
    keepdim : bool
        Leaves the last dim as 1.

    Notes
    -----
    ``(N, D)`` and ``(N, D)`` in, ``(N,)`` out.
    """

    def __init__(self, p: Order = 2.0, eps: NonNegative = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm = p
        self.eps = eps
        self.keepdim = keepdim

    def forward(self, x1: Any, x2: Any) -> Any:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)


# ---------------------------------------------------------------------------- pads


class _Pad(Module):
    """Padding of the last ``n_dims`` dims, the same at every end or given end by end."""

    n_dims: ClassVar[int]
    mode: ClassVar[str] = "constant"

    def __init__(self, padding: int | Sequence[int], value: Real = 0.0) -> None:
        super().__init__()
        n = 2 * self.n_dims
        self.padding = (padding,) * n if isinstance(padding, int) else tuple(padding)
        if len(self.padding) != n:
            raise ConfigError(
                f"{type(self).__name__}: padding must be one number or {n}, before and after for "
                f"each dim, the last dim first, got {padding}"
            )
        self.value = value

    def forward(self, input: Any) -> Any:
        if self.mode != "constant" and input.ndim not in (self.n_dims + 1, self.n_dims + 2):
            raise ShapeError(
                f"input must have {self.n_dims + 1} or {self.n_dims + 2} dims, got shape "
                f"{tuple(input.shape)}"
            )
        return F.pad(input, self.padding, self.mode, self.value or None)

    def extra_repr(self) -> str:
        return str(self.padding)


class _ConstantPad(_Pad):
    def __init__(self, padding: int | Sequence[int], value: Real) -> None:
        super().__init__(padding, value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class _PlainPad(_Pad):
    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__(padding)


class ConstantPad1d(_ConstantPad):
    """A number around the last dim.

    Parameters
    ----------
    padding : int or sequence of int
        The same at every end, or 2 counts: before and after, the last dim first.
    value : float
        The number.

    Notes
    -----
    Any shape of at least 1 dim in, each padded dim longer by its two counts out.
    """

    n_dims = 1


class ConstantPad2d(_ConstantPad):
    """A number around the last two dims.

    Parameters
    ----------
    padding : int or sequence of int
        The same at every end, or 4 counts: before and after, the last dim first.
    value : float
        The number.

    Notes
    -----
    Any shape of at least 2 dims in, each padded dim longer by its two counts out.
    """

    n_dims = 2


class ConstantPad3d(_ConstantPad):
    """A number around the last three dims.

    Parameters
    ----------
    padding : int or sequence of int
        The same at every end, or 6 counts: before and after, the last dim first.
    value : float
        The number.

    Notes
    -----
    Any shape of at least 3 dims in, each padded dim longer by its two counts out.
    """

    n_dims = 3


class ZeroPad1d(_PlainPad):
    """Zeros around the last dim.

    Parameters
    ----------
    padding : int or sequence of int
        The same at every end, or 2 counts: before and after, the last dim first.

    Notes
    -----
    Any shape of at least 1 dim in, each padded dim longer by its two counts out.
    """

    n_dims = 1


class ZeroPad2d(_PlainPad):
    """Zeros around the last two dims.

    Parameters
    ----------
    padding : int or sequence of int
        The same at every end, or 4 counts: before and after, the last dim first.

    Notes
    -----
    Any shape of at least 2 dims in, each padded dim longer by its two counts out.
    """

    n_dims = 2


class ZeroPad3d(_PlainPad):
    """Zeros around the last three dims.

    Parameters
    ----------
    padding : int or sequence of int
        The same at every end, or 6 counts: before and after, the last dim first.

    Notes
    -----
    Any shape of at least 3 dims in, each padded dim longer by its two counts out.
    """

    n_dims = 3


class ReflectionPad1d(_PlainPad):
    """The reflection of the last dim at its ends.

    Parameters
    ----------
    padding : int or sequence of int
        The same at every end, or 2 counts: before and after, the last dim first.

    Notes
    -----
    ``(N, C, L)`` or ``(C, L)`` in, each padded dim longer by its two counts out.
    """

    n_dims = 1
    mode = "reflect"


class ReflectionPad2d(_PlainPad):
    """The reflection of the last two dims at its ends.

    Parameters
    ----------
    padding : int or sequence of int
        The same at every end, or 4 counts: before and after, the last dim first.

    Notes
    -----
    ``(N, C, H, W)`` or ``(C, H, W)`` in, each padded dim longer by its two counts out.
    """

    n_dims = 2
    mode = "reflect"


class ReflectionPad3d(_PlainPad):
    """The reflection of the last three dims at its ends.

    Parameters
    ----------
    padding : int or sequence of int
        The same at every end, or 6 counts: before and after, the last dim first.

    Notes
    -----
    ``(N, C, D, H, W)`` or ``(C, D, H, W)`` in, each padded dim longer by its two counts out.
    """

    n_dims = 3
    mode = "reflect"


class ReplicationPad1d(_PlainPad):
    """Copies of the edge around the last dim.

    Parameters
    ----------
    padding : int or sequence of int
        The same at every end, or 2 counts: before and after, the last dim first.

    Notes
    -----
    ``(N, C, L)`` or ``(C, L)`` in, each padded dim longer by its two counts out.
    """

    n_dims = 1
    mode = "replicate"


class ReplicationPad2d(_PlainPad):
    """Copies of the edge around the last two dims.

    Parameters
    ----------
    padding : int or sequence of int
        The same at every end, or 4 counts: before and after, the last dim first.

    Notes
    -----
    ``(N, C, H, W)`` or ``(C, H, W)`` in, each padded dim longer by its two counts out.
    """

    n_dims = 2
    mode = "replicate"


class ReplicationPad3d(_PlainPad):
    """Copies of the edge around the last three dims.

    Parameters
    ----------
    padding : int or sequence of int
        The same at every end, or 6 counts: before and after, the last dim first.

    Notes
    -----
    ``(N, C, D, H, W)`` or ``(C, D, H, W)`` in, each padded dim longer by its two counts out.
    """

    n_dims = 3
    mode = "replicate"


class CircularPad1d(_PlainPad):
    """The other end's elements around the last dim.

    Parameters
    ----------
    padding : int or sequence of int
        The same at every end, or 2 counts: before and after, the last dim first.

    Notes
    -----
    ``(N, C, L)`` or ``(C, L)`` in, each padded dim longer by its two counts out.
    """

    n_dims = 1
    mode = "circular"


class CircularPad2d(_PlainPad):
    """The other end's elements around the last two dims.

    Parameters
    ----------
    padding : int or sequence of int
        The same at every end, or 4 counts: before and after, the last dim first.

    Notes
    -----
    ``(N, C, H, W)`` or ``(C, H, W)`` in, each padded dim longer by its two counts out.
    """

    n_dims = 2
    mode = "circular"


class CircularPad3d(_PlainPad):
    """The other end's elements around the last three dims.

    Parameters
    ----------
    padding : int or sequence of int
        The same at every end, or 6 counts: before and after, the last dim first.

    Notes
    -----
    ``(N, C, D, H, W)`` or ``(C, D, H, W)`` in, each padded dim longer by its two counts out.
    """

    n_dims = 3
    mode = "circular"
