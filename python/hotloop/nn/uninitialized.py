"""Parameters and buffers of lazy layers, whose shapes the first batch tells."""

from __future__ import annotations

import operator
from typing import Any

from hotloop.base.scalars import plain
from hotloop.errors import ConfigError
from hotloop.graph import dtypes
from hotloop.nn.parameter import Buffer, Parameter, Variable
from hotloop.nn.recipes import Constant, Recipe

__all__ = ["UninitializedBuffer", "UninitializedParameter"]


class _Uninitialized(Variable):
    """A variable without a shape; with one it is of its other class."""

    _becomes: type[Variable]

    def resolve(self, shape: tuple[int, ...], recipe: Recipe) -> None:
        """See :meth:`Variable.resolve`."""
        super().resolve(shape, recipe)
        self._become()

    def set_value(self, array: Any, *, initial: bool = False) -> None:
        """See :meth:`Variable.set_value`."""
        super().set_value(array, initial=initial)
        self._become()

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Gives it a shape, in ``forward`` too; then it is a Parameter or Buffer like any other.

        Its initial value is 0 until an ``nn.init`` function gives it another, which may be called
        in that ``forward`` as well.

        Parameters
        ----------
        shape : tuple of int
            The shape.
        device
            Taken for torch's sake.
        dtype : dtype, optional
            Its own.

        Raises
        ------
        ConfigError
            For another dtype.
        """
        if dtype is not None and dtypes.parse(dtype) != self._kind:
            got = dtypes.parse(dtype)
            raise ConfigError(f"{self._title()}.materialize: dtype must be {self._kind}, got {got}")
        sizes = (shape,) if isinstance(plain(shape), int) else shape
        self.resolve(tuple(operator.index(n) for n in sizes), Constant(0.0))

    def _become(self) -> None:
        self.__class__ = self._becomes  # type: ignore[assignment]


class UninitializedParameter(_Uninitialized, Parameter):
    """A parameter whose shape is not known yet, of a lazy layer.

    Its layer finds the shape in the first ``forward`` and says it:

        if isinstance(self.weight, nn.UninitializedParameter):
            self.weight.materialize((self.out_features, x.shape[-1]))
            nn.init.xavier_uniform_(self.weight)

    Parameters
    ----------
    requires_grad : bool
        False: frozen, it keeps its value.
    device
        Taken for torch's sake.
    dtype : dtype, optional
        float32.

    Raises
    ------
    ConfigError
        For another dtype.
    """

    _becomes = Parameter

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> None:
        if dtype is not None and dtypes.parse(dtype) != dtypes.float32:
            raise ConfigError(
                f"UninitializedParameter: dtype must be float32, got {dtypes.parse(dtype)}"
            )
        Variable.__init__(self, None, dtypes.float32, Constant(0.0))
        self.requires_grad = bool(requires_grad)


class UninitializedBuffer(_Uninitialized, Buffer):
    """A buffer whose shape is not known yet, of a lazy layer; as :class:`UninitializedParameter`.

    Parameters
    ----------
    requires_grad : bool
        Must be False: a buffer does not learn.
    device
        Taken for torch's sake.
    dtype : dtype, optional
        Of the values; float32 by default.
    persistent : bool
        Whether ``state_dict`` has it.

    Raises
    ------
    ConfigError
        With ``requires_grad=True``.
    """

    _becomes = Buffer

    def __init__(
        self,
        requires_grad: bool = False,
        device: Any = None,
        dtype: Any = None,
        persistent: bool = True,
    ) -> None:
        if requires_grad:
            raise ConfigError("UninitializedBuffer: requires_grad must be False, got True")
        kind = dtypes.float32 if dtype is None else dtypes.parse(dtype)
        Variable.__init__(self, None, kind, Constant(0.0))
        self.persistent = bool(persistent)
