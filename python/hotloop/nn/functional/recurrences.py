"""Recurrences over time: one layer in one direction, as one node of the graph."""

from __future__ import annotations

from typing import Any, NamedTuple

from hotloop.graph.build import Operand, add_nodes, cast, lift
from hotloop.graph.creation import full, zeros
from hotloop.graph.symbolic import Tensor

__all__ = ["CELLS", "LayerWeights", "State", "run_layer"]

# As hl_cell of the core has them, with their numbers of gates.
CELLS = {"RNN_TANH": (0, 1), "RNN_RELU": (1, 1), "LSTM": (2, 4), "GRU": (3, 3)}


class LayerWeights(NamedTuple):
    """The values of one direction; biases and ``hr`` may be None."""

    ih: Operand  # (G * H, I)
    hh: Operand  # (G * H, P)
    bias_ih: Operand | None  # (G * H,)
    bias_hh: Operand | None
    hr: Operand | None  # (P, H)


class State(NamedTuple):
    """``(N, P)`` and, of an LSTM, ``(N, H)``; None: zeros."""

    h: Tensor | None
    c: Tensor | None


def run_layer(
    cell: str,
    x: Tensor,
    w: LayerWeights,
    state: State,
    lengths: Tensor | None,
    is_sorted: bool = False,
    reverse: bool = False,
) -> tuple[Tensor, State]:
    """The states ``(N, T, P)`` over input ``(N, T, I)``, and the last one.

    Row n has steps 0 to ``lengths[n] - 1``, int32, or all; the states are 0 behind them.
    """
    number, gates = CELLS[cell]
    rows, steps = x.shape[:2]
    weight = lift(w.hh)
    units = weight.shape[0] // gates
    has_own_bias = cell == "GRU" and w.bias_hh is not None
    bias = w.bias_ih
    if bias is not None and w.bias_hh is not None and not has_own_bias:
        bias = lift(bias) + w.bias_hh
    w_ih = lift(w.ih)
    dtype = w_ih.dtype
    h0 = zeros(rows, weight.shape[1], dtype=dtype) if state.h is None else cast(state.h, dtype)
    if lengths is None:
        lengths = full((rows,), steps, dtype="int32")
    inputs: list[Tensor] = [cast(x, dtype), w_ih, cast(weight, dtype), h0, lengths]
    if cell == "LSTM":
        c = zeros(rows, units, dtype=dtype) if state.c is None else cast(state.c, dtype)
        inputs.append(c)
    if bias is not None:
        inputs.append(cast(lift(bias), dtype))
    if has_own_bias and w.bias_hh is not None:
        inputs.append(cast(lift(w.bias_hh), dtype))
    if w.hr is not None:
        inputs.append(cast(lift(w.hr), dtype))
    attrs: dict[str, Any] = {
        "cell": number, "reverse": int(reverse), "has_bias": int(bias is not None),
        "has_state_bias": int(has_own_bias), "has_projection": int(w.hr is not None),
        "is_sorted": int(is_sorted),
    }  # fmt: skip
    out, h, c_last, *_ = add_nodes("recurrent_layer", *inputs, **attrs)
    return out, State(h, c_last if cell == "LSTM" else None)
