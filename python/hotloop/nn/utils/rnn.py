"""Sequences of different lengths in one batch: torch.nn.utils.rnn's names.

A packed sequence is the padded tensor and its lengths: shapes do not change from batch to batch, so
nothing is moved, and the rows may lie in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.rules import show
from hotloop.errors import ConfigError, ShapeError, TraceError
from hotloop.graph import dtypes
from hotloop.graph.build import Operand, cast, is_int, is_tensor, lift, stack
from hotloop.graph.comparison import lt
from hotloop.graph.creation import arange
from hotloop.graph.pointwise import where
from hotloop.graph.symbolic import Tensor
from hotloop.graph.views import reshape, transpose
from hotloop.nn.functional.paddings import pad

__all__ = [
    "PackedSequence",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
]

_LISTS = (
    ": tensors of a length that data says do not exist in forward; take pad_packed_sequence, and "
    "where(arange(T) < lengths[:, None], ...) for what counts, or cut the array that the model gave"
)


def check_lengths(lengths: Any, rows: int, steps: int, what: str) -> Tensor:
    """Lengths as ``(rows,)`` of int32; those that are known are held to their range.

    Raises
    ------
    ShapeError
        If there is not one for each row.
    TraceError
        If they are no integers.
    ConfigError
        If one that is known now is negative or more than ``steps``.
    """
    known = None if is_tensor(lengths) else np.asarray(lengths)
    x = lift(lengths, what=what)
    if x.dtype.is_floating_point or x.dtype == dtypes.bool_:
        raise TraceError(f"{what}: lengths must be integers, got {x.dtype}")
    if x.shape != (rows,):
        raise ShapeError(
            f"{what}: lengths must have one number for each of {rows} rows, got shape {x.shape}"
        )
    if known is not None and known.size and not 0 <= known.min() <= known.max() <= steps:
        row = int(np.argmax((known < 0) | (known > steps)))
        raise ConfigError(
            f"{what}: lengths must lie in 0 ... {steps}, the steps of the input, got {known[row]} "
            f"for row {row}"
        )
    return cast(x, dtypes.int32)


class PackedSequence:
    """A batch of sequences with their lengths, as a recurrent layer takes and gives it.

    Parameters
    ----------
    data : Tensor
        ``(N, T, ...)``: the padded sequences.
    lengths : Tensor
        ``(N,)``, int32.
    is_sorted : bool
        Whether a length that is more than the one before it is an error.

    Notes
    -----
    :func:`pack_padded_sequence` makes one. Unlike torch's, ``data`` keeps the padded shape: to
    count or average over steps take :func:`pad_packed_sequence` and the lengths.
    """

    def __init__(self, data: Tensor, lengths: Tensor, is_sorted: bool = False) -> None:
        self.data = data
        self.lengths = lengths
        self.is_sorted = is_sorted


def pack_padded_sequence(
    input: Operand, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """A padded batch and the lengths of its sequences, for a recurrent layer.

    Parameters
    ----------
    input : Tensor
        ``(T, N, ...)``, or ``(N, T, ...)`` with ``batch_first``.
    lengths : Tensor or sequence of int
        ``(N,)`` integers, 0 to T.
    batch_first : bool
        The layout of the input.
    enforce_sorted : bool
        Whether sequences must be sorted by length, the longest first, as torch has it; nothing
        here needs that. Where they are not, known lengths raise now, and those of a batch at the
        step, with the row.

    Returns
    -------
    PackedSequence
        What layers take in the place of a tensor.

    Raises
    ------
    ShapeError
        If there is not one length for each sequence.
    TraceError
        If lengths are no integers.
    ConfigError
        If a known length is out of range, or out of order with ``enforce_sorted``.
    """
    what = "pack_padded_sequence"
    x = lift(input, what=what)
    if x.ndim < 2:
        raise ShapeError(f"{what}: input must have dims (T, N, ...), got shape {x.shape}")
    if not batch_first:
        x = transpose(x, 0, 1)
    made = check_lengths(lengths, x.shape[0], x.shape[1], what)
    if enforce_sorted and not is_tensor(lengths):
        later = np.flatnonzero(np.diff(np.asarray(lengths)) > 0)
        if later.size:
            row = int(later[0]) + 1
            raise ConfigError(
                f"{what}: lengths must be sorted in decreasing order with enforce_sorted=True, got "
                f"{np.asarray(lengths)[row]} for row {row} behind {np.asarray(lengths)[row - 1]}; "
                "pass enforce_sorted=False"
            )
    return PackedSequence(x, made, enforce_sorted)


def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The padded batch of a packed one, and its lengths.

    Parameters
    ----------
    sequence : PackedSequence
        Of a layer, or of :func:`pack_padded_sequence`.
    batch_first : bool
        The layout of the result.
    padding_value : float
        What stands behind the end of a sequence.
    total_length : int, optional
        Steps of the result, at least those of the packed batch.

    Returns
    -------
    (Tensor, Tensor)
        ``(T, N, ...)``, or ``(N, T, ...)`` with ``batch_first``, where T is that of the padded
        batch which was packed, also if no sequence is as long; the lengths ``(N,)``, int32.

    Raises
    ------
    TraceError
        If the sequence is not packed.
    ConfigError
        If total_length is less than there are steps.
    """
    what = "pad_packed_sequence"
    if not isinstance(sequence, PackedSequence):
        raise TraceError(
            f"{what}: sequence must be a PackedSequence, got {type(sequence).__name__}"
        )
    x, lengths = sequence.data, sequence.lengths
    rows, steps = x.shape[:2]
    if total_length is not None:
        if not is_int(total_length) or total_length < steps:
            raise ConfigError(
                f"{what}: total_length must be an integer, at least the {steps} steps of the "
                f"batch, got {show(total_length)}"
            )
        x = pad(x, (0, 0) * (x.ndim - 2) + (0, total_length - steps))
        steps = total_length
    ones = (1,) * (x.ndim - 2)
    valid = lt(
        reshape(arange(steps, dtype="int32"), (1, steps, *ones)), reshape(lengths, (rows, 1, *ones))
    )
    x = where(valid, x, padding_value)
    return x if batch_first else transpose(x, 0, 1), lengths


def pad_sequence(
    sequences: Sequence[Operand],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """One batch of sequences of several lengths, padded to the longest of them.

    Parameters
    ----------
    sequences : sequence of Tensor or array
        Each ``(T_i, ...)``, of the same dims behind the first.
    batch_first : bool
        The layout of the result.
    padding_value : float
        What stands where a sequence has no step.
    padding_side : {"right", "left"}
        Behind a sequence, or before it.

    Returns
    -------
    Tensor or array
        ``(T, N, ...)``, or ``(N, T, ...)`` with ``batch_first``; of arrays outside of ``forward``
        an array.

    Raises
    ------
    ShapeError
        If there are no sequences, one has no steps' dim, or their other dims differ.
    ConfigError
        If padding_side is neither.

    Examples
    --------
    >>> from hotloop.nn.utils.rnn import pad_sequence
    >>> pad_sequence([np.ones((5, 2)), np.ones((3, 2))], batch_first=True).shape
    (2, 5, 2)
    """
    rows = _sequences("pad_sequence", sequences)
    if padding_side not in ("right", "left"):
        raise ConfigError(
            f"pad_sequence: padding_side must be 'right' or 'left', got {show(padding_side)}"
        )
    steps = max(x.shape[0] for x in rows)
    padded = []
    for x in rows:
        missing = steps - x.shape[0]
        sides = (0, missing) if padding_side == "right" else (missing, 0)
        padded.append(pad(x, (0, 0) * (x.ndim - 1) + sides, value=padding_value))
    return stack(padded, 0 if batch_first else 1)


def pack_sequence(sequences: Sequence[Operand], enforce_sorted: bool = True) -> PackedSequence:
    """A packed batch of sequences of several lengths, for a recurrent layer.

    Parameters
    ----------
    sequences : sequence of Tensor or array
        Each ``(T_i, ...)``, of the same dims behind the first.
    enforce_sorted : bool
        As of :func:`pack_padded_sequence`.

    Returns
    -------
    PackedSequence
        What layers take in the place of a tensor.

    Raises
    ------
    ShapeError
        If there are no sequences, one has no steps' dim, or their other dims differ.
    ConfigError
        If they are out of order with ``enforce_sorted``.
    """
    lengths = [x.shape[0] for x in _sequences("pack_sequence", sequences)]
    padded = pad_sequence(sequences, batch_first=True)
    return pack_padded_sequence(padded, lengths, True, enforce_sorted)


def _sequences(what: str, sequences: Sequence[Operand]) -> list[Any]:
    """Tensors, or arrays outside of a trace, of shapes that go into one batch."""
    rows: list[Any] = [x if is_tensor(x) else np.asarray(x) for x in sequences]
    if not rows or any(x.ndim == 0 for x in rows):
        got = "none" if not rows else "a number"
        raise ShapeError(f"{what}: sequences must be one or more of (T, ...), got {got}")
    for i, x in enumerate(rows):
        if x.shape[1:] != rows[0].shape[1:]:
            raise ShapeError(
                f"{what}: sequences must have the same dims behind the first, got "
                f"{tuple(rows[0].shape)} and {tuple(x.shape)} for sequence {i}"
            )
    return rows


if not TYPE_CHECKING:  # else type checkers would take every misspelt name for Any

    def __getattr__(name: str) -> Any:
        hint = _LISTS if name in ("unpad_sequence", "unpack_sequence") else ""
        raise AttributeError(f"module 'hotloop.nn.utils.rnn' has no attribute {name!r}{hint}")
