"""Arguments of sliding windows: one number for all spatial dims, or one for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hotloop.base.scalars import plain
from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import views
from hotloop.graph.build import Operand, lift, lift_float
from hotloop.graph.value import Tensor

Sizes = int | Sequence[int]
Pads = int | Sequence[int]  # where 0 is one: the rules are by name, in arguments.py


def per_dim(what: str, name: str, value: Sizes, n: int, least: int) -> tuple[int, ...]:
    """``value`` for each of n spatial dims, at least ``least``.

    Raises
    ------
    ConfigError
        Names the function, the argument and its value.
    """
    given = plain(value)
    is_list = isinstance(given, list | tuple | np.ndarray)
    sizes = tuple(plain(size) for size in given) if is_list else (given,) * n
    if len(sizes) == 1:
        sizes *= n
    whole = all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
    if len(sizes) != n or not whole or min(sizes) < least:
        kind = "an integer" if n == 1 else f"an integer or {n} of them"
        raise ConfigError(f"{what}: {name} must be {kind}, at least {least}, got {value!r}")
    return sizes


def sizes_of(what: str, name: str, value: Sequence[int]) -> tuple[int, ...]:
    """``value`` as a tuple of integers.

    Raises
    ------
    ConfigError
        Names the function, the argument and its value.
    """
    given = plain(value)
    is_list = hasattr(given, "__iter__") and not isinstance(given, str)
    sizes = tuple(plain(size) for size in given) if is_list else (None,)
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        raise ConfigError(f"{what}: {name} must be a sequence of integers, got {value!r}")
    return sizes


def lift_images(
    input: Operand, what: str, n: int, n_without: int = 1, *, chooses: bool = False
) -> tuple[Tensor, bool]:
    """The input with its batch dim, and whether it came without one.

    ``n`` spatial dims stand behind the channels; ``n_without`` is the number of dims before them in
    an input without a batch dim. What ``chooses`` among values and makes no new ones has integers
    as they are, for float32 would round large ones; others have them as float32.
    """
    x = lift(input, what=what) if chooses else lift_float(input, what)
    if x.ndim == n + n_without:
        return views.unsqueeze(x, 0), True
    if x.ndim != n + 2:
        dims = ("L", "H, W", "D, H, W")[n - 1]
        raise ShapeError(
            f"{what}: the input must be (N, C, {dims}) or (C, {dims}), got shape {x.shape}"
        )
    return x, False


def give_images(y: Tensor, without_batch: bool) -> Tensor:
    """The result as the input came."""
    return views.squeeze(y, 0) if without_batch else y


def check_channels(
    what: str, x: Tensor, channels: int, name: str, without_batch: bool = False
) -> None:
    """``x`` (N, C, ...) must have so many channels; it may have come without N.

    Raises
    ------
    ShapeError
        With the permutation to write where channels stand last.
    """
    if x.shape[1] == channels:
        return
    first = 0 if not without_batch else 1  # the given input has no dim of rows
    shape, dim = x.shape[first:], 1 - first
    hint = ""
    if shape[-1] == channels:
        order = ", ".join(map(str, (*range(dim), len(shape) - 1, *range(dim, len(shape) - 1))))
        hint = f"; its channels seem to stand last: write x.permute({order})"
    elif channels == 1 and without_batch:
        hint = "; where dim 0 are rows, without a dim of channels, write x.unsqueeze(1)"
    raise ShapeError(
        f"{what}: the input must have {channels} channels ({name}), as its dim {dim}, got shape "
        f"{shape}{hint}"
    )
