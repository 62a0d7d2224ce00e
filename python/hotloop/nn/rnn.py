"""Recurrent layers: several recurrences over time, one above the other.

The idea: of each layer and direction, the products with the input are one product for all steps,
and what is left is one node over time (:mod:`hotloop.nn.functional.recurrences`). Rows of that are
sequences, batch first: inputs that have time first are transposed once, before the first layer.
Sequences of different lengths are padded, and the node stops each at its length.
"""

from __future__ import annotations

import math
from typing import Any

from hotloop.base.messages import warn
from hotloop.errors import ConfigError, ModelWarning, ShapeError, TraceError
from hotloop.graph.build import cat, stack
from hotloop.graph.symbolic import Tensor
from hotloop.graph.views import transpose
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Count, Probability, Size
from hotloop.nn.functional.recurrences import CELLS, LayerWeights, State, run_layer
from hotloop.nn.module import Module
from hotloop.nn.parameter import Parameter
from hotloop.nn.recipes import Uniform
from hotloop.nn.utils.rnn import PackedSequence, check_lengths

__all__ = ["GRU", "LSTM", "RNN", "RNNBase"]


class RNNBase(Module):
    """What recurrent layers have in common.

    Parameters
    ----------
    mode : str
        "RNN_TANH", "RNN_RELU", "LSTM" or "GRU".
    input_size, hidden_size : int
        Sizes of the last dim of the input, and of the state.
    num_layers : int
        Layers, each of which reads the states of the one before.
    bias : bool
        Whether there are two for each layer and direction.
    batch_first : bool
        Whether input and output are ``(N, L, features)`` in place of ``(L, N, features)``.
    dropout : float
        Probability of dropout of each layer's states but the last one's, in training.
    bidirectional : bool
        Whether a second recurrence goes from the end to the beginning; its states stand behind
        those of the first in the last dim.
    proj_size : int
        Of an LSTM: its states are products ``(proj_size, hidden_size)``; 0: none.
    device, dtype
        Taken for torch's sake.

    Raises
    ------
    ConfigError
        If the mode is another, or proj_size is not less than hidden_size or not of an LSTM.

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_hr_l0 : Parameter
        As in torch, uniform on ±1/√hidden_size, and ``weight_ih_l0_reverse``, ``weight_ih_l1`` and
        so on.
    """

    def __init__(
        self,
        mode: str,
        input_size: Count,
        hidden_size: Count,
        num_layers: Count = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: Probability = 0.0,
        bidirectional: bool = False,
        proj_size: Size = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if mode not in CELLS:
            raise ConfigError(f"{name}: mode must be one of {', '.join(CELLS)}, got {mode!r}")
        if proj_size and mode != "LSTM":
            raise ConfigError(f"{name}: only an LSTM has proj_size, got {proj_size}")
        if proj_size >= hidden_size:
            raise ConfigError(
                f"{name}: proj_size must be less than hidden_size={hidden_size}, got {proj_size}"
            )
        if dropout > 0 and num_layers == 1:
            warn(
                f"{name}: dropout={dropout} has no effect with num_layers=1: it stands between "
                "layers",
                ModelWarning,
            )
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        rows = CELLS[mode][1] * hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else self._state_size * self._directions
            for suffix in self._suffixes(layer):
                shapes: dict[str, tuple[int, ...]] = {
                    "weight_ih": (rows, width),
                    "weight_hh": (rows, self._state_size),
                }
                if bias:
                    shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
                if proj_size:
                    shapes["weight_hr"] = (proj_size, hidden_size)
                for kind, shape in shapes.items():
                    setattr(self, kind + suffix, Parameter.of_recipe(shape, self._recipe()))

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _state_size(self) -> int:
        return self.proj_size or self.hidden_size

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}{way}" for way in ("", "_reverse")[: self._directions]]

    def _recipe(self) -> Uniform:
        bound = 1 / math.sqrt(self.hidden_size)
        return Uniform(-bound, bound)

    def reset_parameters(self) -> None:
        """torch's initial values again."""
        for parameter in self.parameters():
            parameter.set_recipe(self._recipe())

    def flatten_parameters(self) -> None:
        """Nothing: the plan lays weights out as its kernels want them. There for torch's sake."""

    def extra_repr(self) -> str:
        shown = f"{self.input_size}, {self.hidden_size}"
        defaults = {
            "proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0,
            "bidirectional": False,
        }  # fmt: skip
        for name, default in defaults.items():
            if (value := getattr(self, name)) != default:
                shown += f", {name}={value}"
        return shown

    # ---- inputs

    def _rows(self, x: Any) -> Tensor:
        """``(N, L, I)`` of the input."""
        dims = "(N, L, input_size)" if self.batch_first else "(L, N, input_size)"
        if x.ndim not in (2, 3):
            raise ShapeError(
                f"the input must have dims {dims}, or (L, input_size) of one sequence, got shape "
                f"{tuple(x.shape)}"
            )
        if x.shape[-1] != self.input_size:
            fix = ""
            if x.ndim == 3 and self.input_size in x.shape:
                fix = "; input_size must stand last"
            raise ShapeError(
                f"the input's last dim must be input_size={self.input_size} of {dims}, got shape "
                f"{tuple(x.shape)}{fix}"
            )
        rows: Tensor = x
        if x.ndim == 2:
            rows = x.unsqueeze(0)
        elif not self.batch_first:
            rows = transpose(x, 0, 1)
        return rows

    def _swapped(self, got: int, rows: int, steps: int) -> str:
        """What may be wrong where a state has as many rows as the input has steps."""
        if got != steps or steps == rows:
            return ""
        return (
            f"; batch_first={self.batch_first} takes {rows} as the number of sequences and {steps} "
            f"as their steps: is it batch_first={not self.batch_first}?"
        )

    def _states(self, hx: Any, rows: int, steps: int, size: int, what: str, single: bool) -> Any:
        """A state's parts, one ``(N, size)`` for each layer and direction; None: all zeros."""
        if hx is None:
            return [None] * (self.num_layers * self._directions)
        lead = self.num_layers * self._directions
        want = (lead, size) if single else (lead, rows, size)
        if tuple(hx.shape) != want:
            fix = self._swapped(hx.shape[1], rows, steps) if hx.ndim == 3 else ""
            raise ShapeError(
                f"{what} must have shape (layers * directions, "
                f"{'' if single else 'N, '}size) = {want}, got {tuple(hx.shape)}{fix}"
            )
        parts = [hx[i] for i in range(lead)]
        return [part.unsqueeze(0) for part in parts] if single else parts

    def _split_state(self, hx: Any) -> tuple[Any, Any]:
        if self.mode != "LSTM":
            return hx, None
        if hx is None:
            return None, None
        if not isinstance(hx, (tuple, list)) or len(hx) != 2:
            raise ShapeError("hx must be a pair (h_0, c_0) of states and cells, got something else")
        return hx[0], hx[1]

    def _weights(self, suffix: str) -> LayerWeights:
        def find(kind: str) -> Any:
            return getattr(self, kind + suffix, None)

        return LayerWeights(
            find("weight_ih"), find("weight_hh"), find("bias_ih"), find("bias_hh"),
            find("weight_hr"),
        )  # fmt: skip

    # ---- the layers

    def forward(self, input: Any, hx: Any = None, lengths: Any = None) -> Any:
        packed = input if isinstance(input, PackedSequence) else None
        if packed is not None:
            if lengths is not None:
                raise TraceError("a packed input has lengths of its own, got lengths as well")
            single, lengths, x = False, packed.lengths, packed.data
            if x.ndim != 3 or x.shape[-1] != self.input_size:
                raise ShapeError(
                    f"the packed input's last dim must be input_size={self.input_size}, got data "
                    f"of shape {tuple(x.shape)}"
                )
        else:
            single, x = input.ndim == 2, self._rows(input)
            if single and lengths is not None:
                raise ShapeError("lengths are those of a batch, got one sequence (L, input_size)")
        rows, steps = x.shape[:2]
        if lengths is not None:
            lengths = check_lengths(lengths, rows, steps, "lengths")
        h0, c0 = self._split_state(hx)
        h = self._states(h0, rows, steps, self._state_size, "the state", single)
        c = self._states(c0, rows, steps, self.hidden_size, "the cell", single)
        last: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            outs = []
            for way, suffix in enumerate(self._suffixes(layer)):
                i = layer * self._directions + way
                out, state = run_layer(
                    self.mode,
                    x,
                    self._weights(suffix),
                    State(h[i], c[i]),
                    lengths,
                    packed is not None and packed.is_sorted,
                    reverse=way == 1,
                )
                outs.append(out)
                last.append(state)
            x = cat(outs, -1) if len(outs) > 1 else outs[0]
        return self._result(x, last, packed, single)

    def _result(
        self, x: Tensor, last: list[State], packed: PackedSequence | None, single: bool
    ) -> Any:
        def join(states: list[Any]) -> Tensor:
            return cat(states, 0) if single else stack(states, 0)

        h = join([state.h for state in last])
        state = (h, join([state.c for state in last])) if self.mode == "LSTM" else h
        if packed is not None:
            return PackedSequence(x, packed.lengths, packed.is_sorted), state
        if single:
            return x.squeeze(0), state
        return (x if self.batch_first else transpose(x, 0, 1)), state


class RNN(RNNBase):
    """Layers of ``h' = tanh(W_ih x + b_ih + W_hh h + b_hh)`` over the steps of sequences.

    Parameters
    ----------
    input_size, hidden_size : int
        Sizes of the last dim of the input, and of the state.
    num_layers : int
        Layers, each of which reads the states of the one before.
    nonlinearity : str
        "tanh" or "relu".
    bias : bool
        Whether there are two for each layer and direction.
    batch_first : bool
        Whether input and output are ``(N, L, features)`` in place of ``(L, N, features)``.
    dropout : float
        Probability of dropout of each layer's states but the last one's, in training.
    bidirectional : bool
        Whether a second recurrence goes from the end to the beginning; its states stand behind
        those of the first in the last dim.
    device, dtype
        Taken for torch's sake.

    Raises
    ------
    ConfigError
        If nonlinearity is neither.

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0 : Parameter
        ``(hidden_size, input_size)`` and ``(hidden_size, hidden_size)``, uniform on
        ±1/√hidden_size as torch's; those of other layers are ``weight_ih_l1`` and so on, and of
        the other direction ``weight_ih_l0_reverse``.
    bias_ih_l0, bias_hh_l0 : Parameter
        ``(hidden_size,)``, the same.

    Notes
    -----
    Called as ``layer(input, hx, lengths)``: input ``(L, N, input_size)``, or
    ``(L, input_size)`` of one sequence; the first state ``(layers * directions, N, hidden_size)``,
    by default 0; lengths ``(N,)`` integers, by default L: a sequence ends at its length, and states
    behind that are 0. A :class:`~hotloop.nn.utils.rnn.PackedSequence` has lengths. Gives the states
    of the last layer ``(L, N, directions * hidden_size)`` and the last state of each layer and
    direction ``(layers * directions, N, hidden_size)``. Elman 1990.
    """

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        num_layers: Count = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: Probability = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ConfigError(f"RNN: nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first,
            dropout, bidirectional,
        )  # fmt: skip
        self.nonlinearity = nonlinearity

    def extra_repr(self) -> str:
        other = f", nonlinearity={self.nonlinearity}" * (self.nonlinearity != "tanh")
        return super().extra_repr() + other


class LSTM(RNNBase):
    """Layers of long short-term memory over the steps of sequences.

    ``i, f, g, o`` being the four parts of ``W_ih x + b_ih + W_hh h + b_hh``, the cell is
    ``c' = sigmoid(f) c + sigmoid(i) tanh(g)`` and the state ``h' = sigmoid(o) tanh(c')``, with
    ``proj_size`` times ``W_hr``.

    Parameters
    ----------
    input_size, hidden_size : int
        Sizes of the last dim of the input, and of the cell.
    num_layers : int
        Layers, each of which reads the states of the one before.
    bias : bool
        Whether there are two for each layer and direction.
    batch_first : bool
        Whether input and output are ``(N, L, features)`` in place of ``(L, N, features)``.
    dropout : float
        Probability of dropout of each layer's states but the last one's, in training.
    bidirectional : bool
        Whether a second recurrence goes from the end to the beginning; its states stand behind
        those of the first in the last dim.
    proj_size : int
        Size of the state, less than hidden_size; 0: hidden_size, without a projection.
    device, dtype
        Taken for torch's sake.

    Raises
    ------
    ConfigError
        If proj_size is not less than hidden_size.

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0 : Parameter
        ``(4 * hidden_size, input_size)`` and ``(4 * hidden_size, state size)``, uniform on
        ±1/√hidden_size as torch's; those of other layers are ``weight_ih_l1`` and so on, and of
        the other direction ``weight_ih_l0_reverse``.
    bias_ih_l0, bias_hh_l0 : Parameter
        ``(4 * hidden_size,)``, the same.
    weight_hr_l0 : Parameter
        ``(proj_size, hidden_size)``, the same, with proj_size.

    Notes
    -----
    Called as ``layer(input, (h_0, c_0), lengths)``: input ``(L, N, input_size)``, or
    ``(L, input_size)`` of one sequence; the first states ``(layers * directions, N, state size)``
    and cells ``(layers * directions, N, hidden_size)``, by default 0; lengths ``(N,)`` integers, by
    default L: a sequence ends at its length, and states behind that are 0. A
    :class:`~hotloop.nn.utils.rnn.PackedSequence` has lengths. Gives the states of the last layer
    ``(L, N, directions * state size)`` and the pair of the last states and cells, in the shapes of
    the first. Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000 and the
    projection of Sak et al. 2014.
    """

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        num_layers: Count = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: Probability = 0.0,
        bidirectional: bool = False,
        proj_size: Size = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            proj_size,
        )  # fmt: skip


class GRU(RNNBase):
    """Layers of gated recurrent units over the steps of sequences.

    ``r``, ``z`` and ``n`` being the three parts of ``W_ih x + b_ih``, to which those of
    ``W_hh h + b_hh`` are added, to the last one times ``sigmoid(r)``: the state is
    ``h' = (1 - sigmoid(z)) tanh(n) + sigmoid(z) h``.

    Parameters
    ----------
    input_size, hidden_size : int
        Sizes of the last dim of the input, and of the state.
    num_layers : int
        Layers, each of which reads the states of the one before.
    bias : bool
        Whether there are two for each layer and direction.
    batch_first : bool
        Whether input and output are ``(N, L, features)`` in place of ``(L, N, features)``.
    dropout : float
        Probability of dropout of each layer's states but the last one's, in training.
    bidirectional : bool
        Whether a second recurrence goes from the end to the beginning; its states stand behind
        those of the first in the last dim.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    weight_ih_l0, weight_hh_l0 : Parameter
        ``(3 * hidden_size, input_size)`` and ``(3 * hidden_size, hidden_size)``, uniform on
        ±1/√hidden_size as torch's; those of other layers are ``weight_ih_l1`` and so on, and of
        the other direction ``weight_ih_l0_reverse``.
    bias_ih_l0, bias_hh_l0 : Parameter
        ``(3 * hidden_size,)``, the same.

    Notes
    -----
    Called as ``layer(input, hx, lengths)``: input ``(L, N, input_size)``, or
    ``(L, input_size)`` of one sequence; the first state ``(layers * directions, N, hidden_size)``,
    by default 0; lengths ``(N,)`` integers, by default L: a sequence ends at its length, and states
    behind that are 0. A :class:`~hotloop.nn.utils.rnn.PackedSequence` has lengths. Gives the states
    of the last layer ``(L, N, directions * hidden_size)`` and the last state of each layer and
    direction ``(layers * directions, N, hidden_size)``. Cho et al. 2014, with the reset gate where
    torch and cuDNN have it.
    """

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        num_layers: Count = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: Probability = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        )
