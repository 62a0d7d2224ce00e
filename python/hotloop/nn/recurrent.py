"""Recurrent cells: one step of a recurrence."""

from __future__ import annotations

import math
from typing import Any

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import creation
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Count
from hotloop.nn.module import Module
from hotloop.nn.parameter import Parameter
from hotloop.nn.recipes import Uniform

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "RNNCellBase"]


class RNNCellBase(Module):
    """What recurrent cells have in common: their parameters.

    Parameters
    ----------
    input_size, hidden_size : int
        Sizes of the last dim of input and state.
    bias : bool
        Whether there are two.
    num_chunks : int
        Gates of the cell.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    weight_ih : Parameter
        ``(num_chunks * hidden_size, input_size)``, uniform on ±1/√hidden_size as torch's.
    weight_hh : Parameter
        ``(num_chunks * hidden_size, hidden_size)``, the same.
    bias_ih, bias_hh : Parameter or None
        ``(num_chunks * hidden_size,)``, the same.
    """

    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        bias: bool,
        num_chunks: Count,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        rows, recipe = num_chunks * hidden_size, self._recipe()
        self.weight_ih = Parameter.of_recipe((rows, input_size), recipe)
        self.weight_hh = Parameter.of_recipe((rows, hidden_size), recipe)
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter.of_recipe((rows,), recipe) if bias else None)

    def _recipe(self) -> Uniform:
        bound = 1 / math.sqrt(self.hidden_size)
        return Uniform(-bound, bound)

    def reset_parameters(self) -> None:
        """torch's initial values again."""
        for parameter in self.parameters():
            parameter.set_recipe(self._recipe())

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ", bias=False" * (not self.bias)

    def _rows(self, x: Any, size: int, what: str, name: str) -> Any:
        """``(N, size)`` of that, or of ``(size,)``."""
        if x.ndim not in (1, 2) or x.shape[-1] != size:
            raise ShapeError(
                f"{what} must have shape (N, {name}={size}) or ({size},), got {tuple(x.shape)}"
            )
        return x if x.ndim == 2 else x.unsqueeze(0)

    def _state(self, hx: Any, input: Any, what: str) -> Any:
        """A state's rows, zeros where none is given: as many as the input's."""
        x = self._rows(input, self.input_size, "the input", "input_size")
        if hx is None:
            return creation.zeros(x.shape[0], self.hidden_size, dtype=x.dtype)
        if hx.ndim != input.ndim:
            raise ShapeError(
                f"{what} must have as many dims as the input, got shapes {tuple(hx.shape)} and "
                f"{tuple(input.shape)}"
            )
        h = self._rows(hx, self.hidden_size, what, "hidden_size")
        if h.shape[0] != x.shape[0]:
            raise ShapeError(
                f"{what} must have a row for each of the input's, got {h.shape[0]} and {x.shape[0]}"
            )
        return h

    def _sums(self, input: Any, h: Any) -> tuple[Any, Any]:
        """What the gates get of the input, and of the state."""
        x = self._rows(input, self.input_size, "the input", "input_size")
        return (
            F.linear(x, self.weight_ih, self.bias_ih),
            F.linear(h, self.weight_hh, self.bias_hh),
        )


class RNNCell(RNNCellBase):
    """``h' = tanh(W_ih x + b_ih + W_hh h + b_hh)``, or with relu.

    Parameters
    ----------
    input_size, hidden_size : int
        Sizes of the last dim of input and state.
    bias : bool
        Whether there are two.
    nonlinearity : str
        "tanh" or "relu".
    device, dtype
        Taken for torch's sake.

    Raises
    ------
    ConfigError
        If nonlinearity is neither.

    Attributes
    ----------
    weight_ih, weight_hh : Parameter
        ``(hidden_size, input_size)`` and ``(hidden_size, hidden_size)``, uniform on
        ±1/√hidden_size as torch's.
    bias_ih, bias_hh : Parameter or None
        ``(hidden_size,)``, the same.

    Notes
    -----
    Called with input ``(N, input_size)`` or ``(input_size,)`` and, if it is not 0, the state
    ``(N, hidden_size)``; gives the next one. Elman 1990.
    """

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1)
        if nonlinearity not in ("tanh", "relu"):
            raise ConfigError(
                f"RNNCell: nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}"
            )
        self.nonlinearity = nonlinearity

    def forward(self, input: Any, hx: Any = None) -> Any:
        of_input, of_state = self._sums(input, self._state(hx, input, "the state"))
        h = (F.tanh if self.nonlinearity == "tanh" else F.relu)(of_input + of_state)
        return h if input.ndim == 2 else h.squeeze(0)

    def extra_repr(self) -> str:
        other = f", nonlinearity={self.nonlinearity}" * (self.nonlinearity != "tanh")
        return super().extra_repr() + other


class LSTMCell(RNNCellBase):
    """A step of a long short-term memory.

    ``i, f, g, o`` being the four parts of ``W_ih x + b_ih + W_hh h + b_hh``, the cell is
    ``c' = sigmoid(f) c + sigmoid(i) tanh(g)`` and the state ``h' = sigmoid(o) tanh(c')``.

    Parameters
    ----------
    input_size, hidden_size : int
        Sizes of the last dim of input and state.
    bias : bool
        Whether there are two.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    weight_ih, weight_hh : Parameter
        ``(4 * hidden_size, input_size)`` and ``(4 * hidden_size, hidden_size)``, uniform on
        ±1/√hidden_size as torch's.
    bias_ih, bias_hh : Parameter or None
        ``(4 * hidden_size,)``, the same.

    Notes
    -----
    Called with input ``(N, input_size)`` or ``(input_size,)`` and, if they are not 0, the pair
    ``(h, c)`` of state and cell, ``(N, hidden_size)`` each; gives the next pair. Hochreiter and
    Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    """

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4)

    def forward(self, input: Any, hx: Any = None) -> Any:
        if hx is not None and (not isinstance(hx, (tuple, list)) or len(hx) != 2):
            raise ShapeError("hx must be a pair (h, c) of state and cell, got something else")
        h, c = (None, None) if hx is None else hx
        of_input, of_state = self._sums(input, self._state(h, input, "the state"))
        c = self._state(c, input, "the cell")
        i, f, g, o = (of_input + of_state).chunk(4, 1)
        c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
        h = F.sigmoid(o) * F.tanh(c)
        return (h, c) if input.ndim == 2 else (h.squeeze(0), c.squeeze(0))


class GRUCell(RNNCellBase):
    """A step of a gated recurrent unit.

    ``r``, ``z`` and ``n`` being the three parts of ``W_ih x + b_ih``, to which those of
    ``W_hh h + b_hh`` are added, to the last one times ``sigmoid(r)``: the state is
    ``h' = (1 - sigmoid(z)) tanh(n) + sigmoid(z) h``.

    Parameters
    ----------
    input_size, hidden_size : int
        Sizes of the last dim of input and state.
    bias : bool
        Whether there are two.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    weight_ih, weight_hh : Parameter
        ``(3 * hidden_size, input_size)`` and ``(3 * hidden_size, hidden_size)``, uniform on
        ±1/√hidden_size as torch's.
    bias_ih, bias_hh : Parameter or None
        ``(3 * hidden_size,)``, the same.

    Notes
    -----
    Called with input ``(N, input_size)`` or ``(input_size,)`` and, if it is not 0, the state
    ``(N, hidden_size)``; gives the next one. Cho et al. 2014, with the reset gate where torch and
    cuDNN have it.
    """

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3)

    def forward(self, input: Any, hx: Any = None) -> Any:
        h = self._state(hx, input, "the state")
        of_input, of_state = self._sums(input, h)
        ri, zi, ni = of_input.chunk(3, 1)
        rh, zh, nh = of_state.chunk(3, 1)
        z = F.sigmoid(zi + zh)
        n = F.tanh(ni + F.sigmoid(ri + rh) * nh)
        h = (h - n) * z + n
        return h if input.ndim == 2 else h.squeeze(0)
