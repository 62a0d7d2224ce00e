"""Value: what a symbolic tensor is, and what it is not.

Ops are functions of values, and :class:`hotloop.graph.symbolic.Tensor`, above them, has them as
methods. Below it, ``Tensor`` is Value when a program runs, which every tensor is, and the class
with the methods for type checkers and editors.

It has a shape and a dtype and no numbers: those exist when the plan runs. What needs numbers
(``if x > 0``, ``float(x)``, ``x.numpy()``) raises a TraceError that says what to use instead.
Methods whose name ends in ``_`` change values in place in torch; here a value never changes, and
they name their twin that returns a new one. Functions of that kind return it themselves, and give
up their argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from hotloop.base.suggest import did_you_mean, not_here
from hotloop.errors import ConfigError, ShapeError, TraceError
from hotloop.graph import dtypes
from hotloop.graph.dtypes import DType

if TYPE_CHECKING:
    from hotloop.graph.loss_parts import Parts
    from hotloop.graph.symbolic import Tensor
    from hotloop.graph.trace import Trace

__all__ = ["Tensor", "Value"]

_GRADIENTS = (
    "gradients are part of the training step, which keeps none; hl.train computes and applies "
    "them, hl.stepper in a loop of your own"
)
_LEARNS = "what learns is an nn.Parameter; detach() lets no gradient pass"
# What torch's tensors have besides, and what is here in its place.
_INSTEAD = {
    "grad": _GRADIENTS,
    "grad_fn": _GRADIENTS,
    "retain_grad": _GRADIENTS,
    "is_leaf": _GRADIENTS,
    "requires_grad": _LEARNS,
    "requires_grad_": _LEARNS,
}


class Value:
    """A value of a trace's graph: its number there, shape and dtype."""

    _parts: Parts | None = None
    _gone: str = ""  # why it cannot be used any more

    def __init__(self, trace: Trace, value: int) -> None:
        self._trace = trace
        self._id = value
        self._shape: tuple[int, ...] | None = None
        self._dtype: DType | None = None

    # ---- what it is

    @property
    def trace(self) -> Trace:
        """The trace that made it."""
        return self._trace

    @property
    def id(self) -> int:
        """Its value's number in the trace's graph."""
        return self._id

    def id_in(self, trace: Trace) -> int:
        """Its number in ``trace``'s graph.

        Raises
        ------
        TraceError
            If it belongs to another trace: a tensor that was kept from an earlier forward.
        """
        if self._trace is not trace:
            raise TraceError(
                f"tensor of shape {self.shape}: must come from this call of forward, got one of "
                "another call; a tensor has no value to keep: use a buffer (register_buffer) and "
                "self.buffer.assign(value)"
            )
        if self._gone:
            raise TraceError(self._gone)
        return self._id

    def give_up(self, what: str, instead: str) -> None:
        """Lets nobody use it any more: in torch it would now have another value.

        Parameters
        ----------
        what : str
            What would have changed it.
        instead : str
            What to write.
        """
        self._gone = (
            f"{what}: its argument cannot be used afterwards, got a tensor of shape {self.shape} "
            f"again; its value does not change, so write {instead}"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dims."""
        if self._shape is None:
            self._shape = tuple(self._trace.graph.shape(self._id))
        return self._shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        if self._dtype is None:
            self._dtype = dtypes.parse(self._trace.graph.dtype(self._id))
        return self._dtype

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def device(self) -> str:
        """``"auto"``: a graph has its device from the plan; functions take it and do nothing."""
        return "auto"

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dim."""
        if dim is None:
            return self.shape
        if not -self.ndim <= dim < self.ndim:
            raise ShapeError(f"size: dim must fit shape {self.shape}, got {dim}")
        return self.shape[dim]

    def dim(self) -> int:
        """Number of dims."""
        return self.ndim

    def numel(self) -> int:
        """Number of elements."""
        n = 1
        for size in self.shape:
            n *= size
        return n

    def nelement(self) -> int:
        """Number of elements."""
        return self.numel()

    def is_floating_point(self) -> bool:
        """Whether the dtype is one of floating-point numbers."""
        return self.dtype.is_floating_point

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, dtype={self.dtype})"

    def __len__(self) -> int:
        if not self.ndim:
            raise TraceError("len: must be given a tensor with dims, got a scalar")
        return self.shape[0]

    def __hash__(self) -> int:
        return object.__hash__(self)

    # ---- what it has not: numbers

    def _refuse(self, what: str) -> NoReturn:
        raise TraceError(
            f"{what}: a tensor in forward has no value yet, got one of shape {self.shape}; "
            "forward is recorded once and then run from C, so Python cannot look at values: use "
            "hl.where(condition, a, b) in place of if, and tensor functions in place of numbers"
        )

    def __bool__(self) -> bool:
        self._refuse("bool(tensor), as in `if` and `while`")

    def __float__(self) -> float:
        self._refuse("float(tensor)")

    def __int__(self) -> int:
        self._refuse("int(tensor)")

    def __index__(self) -> int:
        self._refuse("tensor as an index or count")

    def __contains__(self, item: object) -> bool:
        self._refuse("`in` tensor")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("NumPy function of a tensor")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's functions: what a tensor is without numbers, and refusals."""
        known = {"shape": self.shape, "ndim": self.ndim, "size": self.numel()}
        if function.__name__ in known and len(args) == 1 and not kwargs:
            return known[function.__name__]
        self._refuse_function(function.__name__)

    def _refuse_function(self, name: str) -> NoReturn:
        twin = name if hasattr(type(self), name) else "exp, hl.where, ..."
        self._refuse(f"np.{name}(tensor), instead of hl.{twin}")

    def __format__(self, spec: str) -> str:
        if spec:
            self._refuse("formatted tensor")
        return repr(self)

    def item(self) -> NoReturn:
        """Refused: a tensor has no value while tracing."""
        self._refuse("item()")

    def tolist(self) -> NoReturn:
        """Refused: a tensor has no value while tracing."""
        self._refuse("tolist()")

    def numpy(self) -> Any:
        """Refused: a tensor has no value while tracing."""
        self._refuse("numpy()")

    def backward(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: gradients are part of the training step."""
        raise TraceError(
            "backward(): gradients are part of the training step, got a call; leave it out with "
            "zero_grad() and optimizer.step(), and return the loss from training_step, or give it "
            "as hl.train(..., loss=function); a loop of your own is hl.stepper"
        )

    @property
    def grad(self) -> Any:
        """Refused: gradients exist only inside the training step."""
        return self.__getattr__("grad")

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:  # None clears what is not there
            self.__getattr__("grad")

    def _refuse_in_place(self, what: str, instead: str) -> NoReturn:
        raise TraceError(
            f"{what}: a tensor cannot be changed in place, got shape {self.shape}; use {instead}"
        )

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        self._refuse_in_place(
            "x[...] = value",
            "hl.where, hl.cat, x.index_copy(dim, index, rows) or x.scatter(dim, index, src)",
        )

    def register_hook(self, *args: Any) -> NoReturn:
        """Refused: gradients exist only inside the training step."""
        raise ConfigError(
            "register_hook: hooks are not run (forward is recorded once and then runs from C); "
            "use the configuration's clipping, or detach()"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        twin = name[:-1]
        if name.endswith("_") and not name.startswith("_") and hasattr(type(self), twin):

            def refuse(*args: Any, **kwargs: Any) -> NoReturn:
                self._refuse_in_place(f"{name}()", f"x = x.{twin}(...)")

            return refuse
        public = [n for n in dir(type(self)) if not n.startswith("_")]
        hint = f": {_INSTEAD[name]}" if name in _INSTEAD else not_here(name)
        hint = hint or did_you_mean(name, public)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint}")


if not TYPE_CHECKING:
    Tensor = Value
