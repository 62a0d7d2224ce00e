"""Parameter and Buffer: the values a module owns.

Both are tensors: used in ``forward`` they become leaves of the running trace. Outside of it they
hold an array on the host, which is what training reads from and writes back to, and what is
computed of them is an array. A parameter's initial value is a recipe until someone asks for it,
and is drawn again where its name in the whole model has become another; values that were set are
never drawn again.

Invariant: the array a variable holds is never written to, only replaced. So handing out read-only
views is safe, and keeping the initial value costs nothing until it changes.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from hotloop.base.scalars import plain
from hotloop.errors import BusyError, ConfigError, OutOfMemoryError, ShapeError, TraceError
from hotloop.graph import dtypes, seeds
from hotloop.graph import trace as tracing
from hotloop.graph.build import lift, to_array
from hotloop.graph.dtypes import DType
from hotloop.graph.outputs import OutputArray, as_outputs
from hotloop.graph.symbolic import OPERATORS, Tensor, is_device
from hotloop.nn.holders import Holders
from hotloop.nn.placement import reachable
from hotloop.nn.recipes import Array, Constant, Normal, Recipe, Uniform, Values

if TYPE_CHECKING:
    from hotloop.graph.trace import Trace
    from hotloop.nn.module import Module

__all__ = ["Buffer", "Parameter"]

_unowned = itertools.count()
_changes = itertools.count(1)
_latest_change = 0


def latest_change() -> int:
    """Another number than before whenever some parameter or buffer has another value."""
    return _latest_change


def _next_change() -> None:
    global _latest_change
    _latest_change = next(_changes)


class ReadOnlyArray(OutputArray):
    """The value of a parameter or buffer; writing to it says what to use instead.

    What is computed of it, and what ``copy()`` gives, may be written to.
    """

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigError(
            "array of a parameter or buffer: is read-only, for a write would not reach the model, "
            "got a write; use parameter.copy_(array), buffer.assign(array), nn.init or "
            "load_state_dict, or write to a copy: array.copy()"
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        if not self.flags.writeable:
            self._refuse()
        super().__setitem__(key, value)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any
    ) -> Any:
        if out is not None:
            for array in out:
                if isinstance(array, ReadOnlyArray) and not array.flags.writeable:
                    self._refuse()
            kwargs["out"] = tuple(_plain(array) for array in out)
        return getattr(ufunc, method)(*map(_plain, inputs), **kwargs)

    def numpy(self) -> Array:
        """Itself, which says how to set values where a plain array would only refuse."""
        return self

    def copy(self, order: Any = "C") -> Any:
        """A plain array that may be written to."""
        return _plain(self).copy(order)

    def __copy__(self) -> Any:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Any:
        return self.copy()

    def __reduce__(self) -> Any:
        return _plain(self).__reduce__()

    def _write(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if not self.flags.writeable:
            self._refuse()
        return getattr(super(), name)(*args, **kwargs)

    def fill(self, value: Any) -> None:
        """Refused while it is read-only."""
        self._write("fill", value)

    def sort(self, *args: Any, **kwargs: Any) -> None:
        """Refused while it is read-only."""
        self._write("sort", *args, **kwargs)

    def put(self, *args: Any, **kwargs: Any) -> None:
        """Refused while it is read-only."""
        self._write("put", *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_") and not name.startswith("_"):
            return self._refuse
        return super().__getattr__(name)


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, ReadOnlyArray) else value


def read_only(array: Array) -> Array:
    """The array as users get it: a view that refuses to be written to."""
    view = array.view(ReadOnlyArray)
    view.setflags(write=False)
    return view


def frozen(array: Array) -> Array:
    """The array, contiguous and no longer writeable; copied when it was not ours."""
    array.setflags(write=False)
    return array


def _in_place(symbol: str) -> Any:
    """An operator that would only change what a name stands for, where torch changes the value."""

    def change(self: Variable, other: Any) -> Any:
        if tracing.active() is not None:
            return NotImplemented  # in forward the name gets the new tensor, as for any tensor
        self._refuse_in_place(symbol, "")

    return change


def _on_host(value: Any) -> Any:
    """A structure of arguments with the arrays of its parameters and buffers."""
    if isinstance(value, Variable):
        return value.value()
    if isinstance(value, dict):
        return {key: _on_host(item) for key, item in value.items()}
    return type(value)(map(_on_host, value)) if type(value) in (tuple, list) else value


class Variable(Tensor):
    """What Parameter and Buffer share: an array, a name, and a leaf in each trace."""

    def __init__(self, shape: tuple[int, ...] | None, dtype: DType, recipe: Recipe) -> None:
        self._dims = shape
        self._kind = dtype
        self._recipe = recipe
        self._value: Array | None = None
        self._drawn_by: tuple[str, int] | None = None  # name and seed; None: the value was set
        self._holders = Holders(self)
        self._number = next(_unowned)
        self._version = 0
        self._is_initial = True
        self._is_held = False
        self._lender: tuple[int, Callable[[Variable], Array]] | None = None  # of which thread
        self._ahead: weakref.ref[Any] | None = None  # who has trained it, and not written it here

    # ---- as a tensor

    @property
    def trace(self) -> Trace:
        """The running trace; outside of forward an error."""
        return tracing.current(f"{self._title()} in a computation")

    @property
    def id(self) -> int:
        """Its leaf's number in the running trace."""
        return self.id_in(self.trace)

    def id_in(self, trace: Trace) -> int:
        """Its leaf's number in a trace."""
        return trace.leaf(self).id_in(trace)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dims."""
        if self._dims is None:
            raise ConfigError(
                f"{self._title()}: its shape is known after the first batch (lazy layer); "
                "run model(batch) or train first"
            )
        return self._dims

    @property
    def dtype(self) -> DType:
        """Element type of the values."""
        return self._kind

    @property
    def is_lazy(self) -> bool:
        """Whether the shape is still unknown."""
        return self._dims is None

    @property
    def data(self) -> Any:
        """Its value as a read-only view; in ``forward``, the tensor without gradient."""
        if tracing.active() is not None:
            return self.detach()
        return self.numpy()

    @data.setter
    def data(self, value: Any) -> None:
        raise ConfigError(
            f"{self._title()}.data: cannot be replaced, got {type(value).__name__}; use "
            "copy_(array), nn.init or load_state_dict"
        )

    def __hash__(self) -> int:
        return object.__hash__(self)

    # ---- its name

    def attach(self, owner: Module, name: str) -> None:
        """Notes a module that holds it; the first one that still does gives the name."""
        if self._dims is not None and math.prod(self._dims) >= 2**60:  # of 8 bytes
            raise ConfigError(
                f"{type(owner).__name__}: the size of {name} in bytes must fit 63 bits, got shape "
                f"{self._dims}"
            )
        self._holders.add(owner, name)

    @property
    def qualified_name(self) -> str:
        """Its path from the outermost module, ``"body.0.weight"``."""
        place = self._holders.first()
        if place is None:
            return f"{type(self).__name__.lower()}.{self._number}"
        owner, name = place
        path = owner.path
        return f"{path}.{name}" if path else name

    def _title(self) -> str:
        return f"{type(self).__name__} {self.qualified_name}"

    # ---- its value

    @property
    def version(self) -> int:
        """Grows whenever the value is another one."""
        self._follow_name()
        return self._version

    def _note_change(self) -> None:
        self._version += 1
        _next_change()

    @property
    def ahead(self) -> Any:
        """Who has trained it, in memory of its own, and not written its value here; or None."""
        return None if self._ahead is None else self._ahead()

    @ahead.setter
    def ahead(self, trainer: Any) -> None:
        self._ahead = None if trainer is None else weakref.ref(trainer)
        _next_change()

    def keep(self) -> None:
        """Makes a value that was only drawn one that was set, which nothing draws anew."""
        self._drawn_by = None

    def note_trained(self) -> None:
        """Notes that a training has left the value as it was."""
        self.keep()
        self._is_initial = False

    @property
    def is_drawn(self) -> bool:
        """Whether there is a value yet, and not only the recipe of one."""
        self._follow_name()
        return self._value is not None

    @property
    def is_initial(self) -> bool:
        """Whether its value is the one that ``reset`` comes back to: not trained, not loaded."""
        return self._is_initial

    def value(self, seed: int | None = None) -> Array:
        """The value, read-only, drawn if that was not done yet.

        A callback of a training gets the one of now.

        Parameters
        ----------
        seed : int, optional
            The configuration's; ``hl.manual_seed`` goes first, 42 is last.
        """
        if (lender := self._lender_here()) is not None:
            return lender(self)
        self._follow_name()
        if self._value is None:
            self._drawn_by = name, by = self.qualified_name, seeds.seed_or(seed)
            try:
                drawn = self._recipe.draw(self.shape, by, f"init.{name}")
                drawn = np.ascontiguousarray(drawn, str(self._kind)).reshape(self.shape)
            except MemoryError:
                raise OutOfMemoryError(
                    f"{self._title()}: there must be memory for its values, got shape {self.shape}"
                ) from None
            self._value = frozen(drawn)
        return self._value

    def follow_seed(self, seed: int | None) -> None:
        """Lets what was drawn by another seed be drawn anew; what was set stays.

        Parameters
        ----------
        seed : int, optional
            As for :meth:`value`.
        """
        if self._drawn_by is not None and self._drawn_by[1] != seeds.seed_or(seed):
            self._forget()

    def _follow_name(self) -> None:
        """Initial values are those of the name: looking at them earlier changes nothing."""
        if self._drawn_by is not None and self._drawn_by[0] != self.qualified_name:
            self._forget()

    def _forget(self) -> None:
        self._value = self._drawn_by = None
        self._note_change()

    def detach(self) -> Tensor:
        """In ``forward``, the value without gradient; outside of it, where none flows, itself."""
        return super().detach() if tracing.active() is not None else self

    def clone(self) -> Any:
        """In ``forward``, the tensor; outside of it, a copy of the value."""
        return super().clone() if tracing.active() is not None else as_outputs(self.value().copy())

    def numpy(self) -> Array:
        """The value, read-only: it stays as it is when the model trains on.

        Returns
        -------
        array
            Of the shape; ``numpy().copy()`` may be written to, and ``copy_(array)`` sets the value.

        Raises
        ------
        TraceError
            In ``forward``, where the value at run time is not known.
        """
        if tracing.active() is not None:
            self._refuse(f"{self._title()}.numpy()")
        return read_only(self.value())

    def __getitem__(self, key: Any) -> Any:
        if tracing.active() is not None:
            return super().__getitem__(key)
        return self.numpy()[_on_host(key)]

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__() if tracing.active() is not None else iter(self.numpy())

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """In ``forward`` and as an operator the tensor's; else NumPy's, of the value."""
        is_operator = ufunc.__name__ in OPERATORS and method == "__call__" and not kwargs
        if tracing.active() is not None or is_operator:
            return super().__array_ufunc__(ufunc, method, *inputs, **kwargs)
        return getattr(ufunc, method)(*_on_host(inputs), **_on_host(kwargs))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if tracing.active() is not None:
            return super().__array_function__(function, types, args, kwargs)
        return function(*_on_host(args), **_on_host(kwargs))

    def to(self, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        """In ``forward`` the tensor's; outside, itself, and without such a device an error."""
        if tracing.active() is None:
            devices = [arg for arg in args if is_device(arg) or type(plain(arg)) is int]
            args = tuple(arg for arg in args if not any(arg is other for other in devices))
            for where in (*devices, *([] if device is None else [device])):
                reachable(plain(where))
        return super().to(*args, **kwargs)

    def cuda(self, device: Any = None, **kwargs: Any) -> Any:
        """Itself; outside of ``forward`` an error without that GPU, as of ``Module.cuda``."""
        return self.to("cuda" if device is None else device)

    def item(self) -> Any:
        """The only element as a Python number; not in ``forward``."""
        return self.numpy().item()

    def tolist(self) -> Any:
        """The value as nested lists; not in ``forward``."""
        return self.numpy().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return super().__bool__() if tracing.active() is not None else bool(self.value())

    def __index__(self) -> int:
        return super().__index__() if tracing.active() is not None else operator.index(self.value())

    def __contains__(self, item: object) -> bool:
        return super().__contains__(item) if tracing.active() is not None else item in self.value()

    def __format__(self, spec: str) -> str:
        if not spec or tracing.active() is not None:
            return super().__format__(spec)
        return format(self.item(), spec)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        found = self.numpy()
        if copy:
            return np.array(found, dtype)
        return found if dtype is None or found.dtype == dtype else found.astype(dtype)

    def set_value(self, array: Any, *, initial: bool = False) -> None:
        """Replaces the value by a copy of ``array``.

        Parameters
        ----------
        array : array
            Of the same shape; converted to the variable's dtype.
        initial : bool
            Whether ``reset`` comes back to it.

        Raises
        ------
        ShapeError
            If the shapes differ.
        BusyError
            While its model is being trained.
        """
        self.check_free()
        value = np.array(to_host(array), str(self._kind), order="C")
        if self._dims is not None and value.shape != self._dims:
            raise ShapeError(
                f"{self._title()}: the value's shape must be {self._dims}, got {value.shape}"
            )
        self._dims = value.shape
        self._value, self._drawn_by = frozen(value), None
        if initial:
            self._recipe = Values(self._value)
        self._is_initial = initial
        self._note_change()

    def check_free(self) -> None:
        """Refuses what a training that is under way would overwrite when it ends.

        Raises
        ------
        BusyError
        """
        if self._is_held:
            raise BusyError(
                f"{self._title()}: its model is being trained, and the training will write its "
                "value when it ends; wait until train returns, or train copy.deepcopy(model)"
            )

    def check_current(self) -> None:
        """Refuses a value that a training has left behind: while it is held, but not lent.

        Raises
        ------
        BusyError
        """
        if self._lender_here() is None:
            self.check_free()

    def _lender_here(self) -> Callable[[Variable], Array] | None:
        """In a thread of its own, reading may outlast the block: it gets the values of before."""
        lender = self._lender
        return lender[1] if lender is not None and lender[0] == threading.get_ident() else None

    def set_recipe(self, recipe: Recipe) -> None:
        """Makes ``recipe`` the initial value; a value that was there is dropped."""
        trace = tracing.active()
        if trace is None:
            self.check_free()
        elif not trace.has_shaped(self):
            raise TraceError(f"{self._title()}: cannot be initialised inside forward")
        self._recipe = recipe
        self._forget()
        self._is_initial = True

    def reset(self) -> None:
        """Back to the initial value; BusyError while its model is being trained."""
        self.check_free()
        self._forget()
        self._is_initial = True

    def copy_(self, array: Any) -> Any:
        """Replaces the value (and what ``reset`` comes back to) by a copy of an array."""
        if tracing.active() is not None:
            self._refuse_in_place("copy_()", "")
        self.set_value(array, initial=True)
        return self

    def fill_(self, value: float) -> Any:
        """Sets every element to a number."""
        self.set_recipe(Constant(float(value)))
        return self

    def zero_(self) -> Any:
        """Sets every element to 0."""
        return self.fill_(0.0)

    def _refuse_in_place(self, what: str, instead: str) -> NoReturn:
        if tracing.active() is not None:
            raise TraceError(
                f"{self._title()}: cannot change inside forward, got {what}; use a buffer and "
                "buffer.assign(value)"
            )
        raise TraceError(
            f"{self._title()}: a value is replaced as a whole, got {what}; use copy_(array): "
            "p.copy_(p * 2), or a = p.numpy().copy(), a[0] = 1 and p.copy_(a)"
        )

    __iadd__ = _in_place("+=")
    __isub__ = _in_place("-=")
    __imul__ = _in_place("*=")
    __itruediv__ = _in_place("/=")
    __ifloordiv__ = _in_place("//=")
    __imod__ = _in_place("%=")
    __ipow__ = _in_place("**=")
    __imatmul__ = _in_place("@=")
    __iand__ = _in_place("&=")
    __ior__ = _in_place("|=")
    __ixor__ = _in_place("^=")

    def resolve(self, shape: tuple[int, ...], recipe: Recipe) -> None:
        """Gives a lazy value its shape and recipe.

        Parameters
        ----------
        shape : tuple of int
            The shape.
        recipe : Recipe
            How the value is drawn.
        """
        self._dims = shape
        self._recipe = recipe
        trace = tracing.active()
        if trace is not None:
            trace.note_shaped(self)

    # ---- copies and files

    def __getstate__(self) -> dict[str, Any]:
        own: dict[str, Any] = {"_is_held": False, "_lender": None, "_ahead": None}
        if self._lender_here() is not None:
            own |= {"_value": self.value(), "_drawn_by": None, "_is_initial": False}
        elif not self.is_lazy:
            self.value()  # a copy has the same numbers, whatever its name will be,
            self._drawn_by = None  # and so has the original
        kept = {**self.__dict__, **own}
        del kept["_holders"]
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _holders=Holders(self))
        self._number = next(_unowned)
        if self._value is not None:
            frozen(self._value)

    def __repr__(self) -> str:
        if self.is_lazy:
            return f"{type(self).__name__}(lazy, dtype={self.dtype})"
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"


def hold(variables: Iterable[Variable]) -> None:
    """Lets no one replace these values, for the time of a training that is going to write them."""
    for variable in variables:
        variable._is_held = True


@contextlib.contextmanager
def writing(variables: Iterable[Variable]) -> Iterator[None]:
    """In the block the training that holds these variables may set their values."""
    held = [variable for variable in variables if variable._is_held]
    release(held)
    try:
        yield
    finally:
        hold(held)


@contextlib.contextmanager
def lent(variables: Iterable[Variable], lender: Callable[[Variable], Array]) -> Iterator[None]:
    """In the block this thread reads of these variables what the lender has; no one sets them.

    Parameters
    ----------
    variables : iterable of Variable
        That are held.
    lender : callable
        Of a variable, its value of now, read-only.
    """
    lent_to = list(variables)
    for variable in lent_to:
        variable._lender = threading.get_ident(), lender
        variable._note_change()
    try:
        yield
    finally:
        for variable in lent_to:
            variable._lender = None
            variable._note_change()


def release(variables: Iterable[Variable]) -> None:
    """Ends :func:`hold`."""
    for variable in variables:
        variable._is_held = False


class Parameter(Variable):
    """A tensor that learns, float32; assigned to a module's attribute it is registered.

    Parameters
    ----------
    data : array, Tensor function's array, or shape-giving array
        The initial value; copied. ``nn.Parameter(hl.zeros(3))``, ``nn.Parameter(np.ones(3))``.
    requires_grad : bool
        False: frozen, it keeps its value.

    Raises
    ------
    ConfigError
        For integers, which cannot learn.
    """

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        array = to_host(data)
        if array.dtype.kind != "f" and requires_grad:
            raise ConfigError(
                f"Parameter: must be given floats, got {array.dtype}; use requires_grad=False or "
                "a buffer"
            )
        array = frozen(np.array(array, np.float32, order="C"))
        super().__init__(array.shape, dtypes.float32, Values(array))
        self.requires_grad = bool(requires_grad)

    @classmethod
    def of_recipe(cls, shape: tuple[int, ...] | None, recipe: Recipe) -> Parameter:
        """A parameter whose initial value is drawn when it is first needed.

        Parameters
        ----------
        shape : tuple of int or None
            None: lazy, known after the first batch.
        recipe : Recipe
            How the value is drawn, such as ``hotloop.nn.recipes.Normal(0.0, 1.0)``.

        Returns
        -------
        Parameter
        """
        self = cls.__new__(cls)
        Variable.__init__(self, shape, dtypes.float32, recipe)
        self.requires_grad = True
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Parameter:
        """Sets whether it learns.

        Parameters
        ----------
        requires_grad : bool
            False: it keeps its value in training.

        Returns
        -------
        Parameter
            Itself.
        """
        self.requires_grad = bool(requires_grad)
        return self

    def normal_(self, mean: float = 0.0, std: float = 1.0) -> Parameter:
        """Normal initial values; see :func:`hotloop.nn.init.normal_`.

        Parameters
        ----------
        mean, std : float
            Mean and standard deviation.

        Returns
        -------
        Parameter
            Itself.
        """
        self.set_recipe(Normal(mean, std))
        return self

    def uniform_(self, a: float = 0.0, b: float = 1.0) -> Parameter:
        """Uniform initial values; see :func:`hotloop.nn.init.uniform_`.

        Parameters
        ----------
        a, b : float
            From a to below b.

        Returns
        -------
        Parameter
            Itself.
        """
        self.set_recipe(Uniform(a, b))
        return self


def renewed(parameter: Parameter) -> Parameter:
    """Another parameter that begins as this one did: its initial value is drawn anew, by its own
    name; a value that was set is copied."""
    is_set = parameter._value is not None and parameter._drawn_by is None
    if is_set:
        return copy.deepcopy(parameter)
    made = type(parameter).of_recipe(parameter._dims, parameter._recipe)
    return made.requires_grad_(parameter.requires_grad)


class Buffer(Variable):
    """A value that a module keeps and does not learn: running statistics, masks, counters.

    Parameters
    ----------
    data : array
        The initial value; copied. float64 becomes float32, other dtypes stay.
    persistent : bool
        Whether ``state_dict`` has it.
    """

    def __init__(self, data: Any, persistent: bool = True) -> None:
        array = frozen(np.array(to_array(to_host(data), "buffer"), order="C"))
        super().__init__(array.shape, dtypes.parse(array.dtype), Values(array))
        self.persistent = bool(persistent)

    @classmethod
    def of_recipe(cls, shape: tuple[int, ...] | None, recipe: Recipe) -> Buffer:
        """A float32 buffer whose initial value is drawn when it is first needed.

        Parameters
        ----------
        shape : tuple of int or None
            None: lazy, known after the first batch.
        recipe : Recipe
            How the value is drawn.

        Returns
        -------
        Buffer
        """
        self = cls.__new__(cls)
        Variable.__init__(self, shape, dtypes.float32, recipe)
        self.persistent = True
        return self

    def assign(self, value: Any) -> None:
        """In ``forward``: makes a value what the buffer holds after this training step.

        What forward reads from it afterwards is that value. Evaluation and prediction change
        nothing. Outside of ``forward`` it is ``copy_``.

        Parameters
        ----------
        value : Tensor or array
            Of the buffer's shape; converted to its dtype.

        Raises
        ------
        ShapeError
            If the shapes differ.
        """
        trace = tracing.active()
        if trace is None:
            self.copy_(value)
            return
        trace.assign(self, lift(value, trace, f"{self._title()}.assign"))


def to_host(value: Any) -> Array:
    """A NumPy array from an array, a parameter or buffer, or a torch tensor (of any device)."""
    if isinstance(value, Variable):
        return value.value()
    if isinstance(value, Tensor):
        raise TraceError(
            f"value: must be an array, got a symbolic tensor of shape {value.shape}; values do "
            "not exist while forward is traced"
        )
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # torch
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise ConfigError(f"value: must be an array of numbers, got dtype {array.dtype}")
    return array
