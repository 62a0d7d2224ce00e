"""Tensor: a value of the running trace with torch's methods and operators.

A method that does what a function does is that function, so it is written, typed and documented
once. Ops know the class below, :class:`hotloop.graph.value.Value`, alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hotloop.errors import TraceError
from hotloop.graph import (
    comparison,
    contraction,
    creation,
    dtypes,
    elementary,
    indexing,
    loss_parts,
    ordering,
    pointwise,
    rearranging,
    reduction,
    views,
)
from hotloop.graph.build import Number, Operand, cast, is_number, lift
from hotloop.graph.dtypes import DType
from hotloop.graph.eager import eager
from hotloop.graph.foreign import instead_of
from hotloop.graph.trace import Trace
from hotloop.graph.value import Value

__all__ = ["OPERATORS", "Tensor", "is_device"]


# What NumPy calls for `array <op> tensor`, and the function of the same meaning.
OPERATORS: dict[str, Callable[..., Any]] = {
    "add": pointwise.add,
    "subtract": pointwise.sub,
    "multiply": pointwise.mul,
    "divide": pointwise.div,
    "power": pointwise.pow,
    "floor_divide": pointwise.floor_divide,
    "remainder": pointwise.remainder,
    "matmul": contraction.matmul,
    "equal": comparison.eq,
    "not_equal": comparison.ne,
    "less": comparison.lt,
    "less_equal": comparison.le,
    "greater": comparison.gt,
    "greater_equal": comparison.ge,
    "bitwise_and": comparison.logical_and,
    "bitwise_or": comparison.logical_or,
    "bitwise_xor": comparison.logical_xor,
}
# What torch calls for `torch tensor <op> tensor`, and NumPy's name.
_OF_TORCH = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "pow": "power",
    "__floordiv__": "floor_divide", "remainder": "remainder", "matmul": "matmul", "eq": "equal",
    "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor",
}  # fmt: skip


_cast = eager(cast)


@eager
def _of_bools(
    symbol: str, function: Callable[..., Tensor], input: Operand, other: Operand
) -> Tensor:
    a, b = lift(input), lift(other)
    for x in (a, b):
        if x.dtype != dtypes.bool_:
            raise TraceError(f"{symbol}: must be given bools, got {x.dtype}; compare first")
    return function(a, b)


class Tensor(Value):
    """A symbolic tensor: what ``forward`` gets, makes and returns.

    Made by functions, never by hand. ``shape`` is a tuple of ints, the batch included; ``dtype``
    compares equal to names such as ``"float32"``. The methods are the functions of the same names
    in :mod:`hotloop`: a function's first argument is the tensor. Parameters are tensors too, whose
    methods give arrays outside of ``forward``.
    """

    @property
    def T(self) -> Tensor:
        """Dims in reverse order."""
        return views.permute(self, tuple(reversed(range(self.ndim))))

    @property
    def mT(self) -> Tensor:
        """Last two dims swapped."""
        return views.transpose(self, -2, -1)

    def __iter__(self) -> Iterator[Tensor]:
        if not self.ndim:
            raise TraceError("iteration: must be over a tensor with dims, got a scalar")
        if self.trace.is_of_batch(self):
            raise TraceError(
                "iteration: must not be over a batch, whose rows are computed together (a loop, "
                f"or `a, b = x`), got one of shape {self.shape}; leave the loop out, write "
                "x.unbind(1) for columns, or give several inputs as a tuple X, which is "
                "forward(self, a, b)"
            )
        return iter(views.unbind(self, 0))

    def __getitem__(self, key: Any) -> Tensor:
        return indexing.get_item(self, key)

    # ---- operators

    def __neg__(self) -> Tensor:
        return loss_parts.scaled(pointwise.neg(self), self, -1.0)

    def __pos__(self) -> Tensor:
        return self

    __abs__ = pointwise.abs

    def __invert__(self) -> Tensor:
        if self.dtype != dtypes.bool_:
            raise TraceError(f"~: must be given bools, got {self.dtype}; use logical_not")
        return comparison.logical_not(self)

    def __add__(self, other: Operand) -> Tensor:
        if is_number(other) and other == 0 and self._parts:
            return self  # sum([loss, ...]) begins with 0
        result = pointwise.add(self, other)
        if self._parts or getattr(other, "_parts", None):
            loss_parts.added(result, self, lift(other, self.trace))
        return result

    __radd__ = __add__

    def __sub__(self, other: Operand) -> Tensor:
        result = pointwise.sub(self, other)
        if self._parts or getattr(other, "_parts", None):
            loss_parts.added(result, self, -lift(other, self.trace))
        return result

    def __rsub__(self, other: Operand) -> Tensor:
        return -self + other if self._parts else pointwise.sub(other, self)

    def __mul__(self, other: Operand) -> Tensor:
        result = pointwise.mul(self, other)
        if self._parts and is_number(other):
            loss_parts.scaled(result, self, float(other))  # type: ignore[arg-type]
        return result

    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> Tensor:
        result = pointwise.div(self, other)
        if self._parts and is_number(other) and other:
            loss_parts.scaled(result, self, 1.0 / float(other))  # type: ignore[arg-type]
        return result

    def __rtruediv__(self, other: Operand) -> Tensor:
        return pointwise.div(other, self)

    __floordiv__ = pointwise.floor_divide

    def __rfloordiv__(self, other: Operand) -> Tensor:
        return pointwise.floor_divide(other, self)

    __mod__ = pointwise.remainder

    def __rmod__(self, other: Operand) -> Tensor:
        return pointwise.remainder(other, self)

    __pow__ = pointwise.pow

    def __rpow__(self, other: Operand) -> Tensor:
        return pointwise.pow(other, self)

    __matmul__ = contraction.matmul

    def __rmatmul__(self, other: Operand) -> Tensor:
        return contraction.matmul(other, self)

    __eq__ = comparison.eq  # type: ignore[assignment]
    __ne__ = comparison.ne  # type: ignore[assignment]
    __lt__ = comparison.lt
    __le__ = comparison.le
    __gt__ = comparison.gt
    __ge__ = comparison.ge

    def __and__(self, other: Operand) -> Tensor:
        return _of_bools("&", comparison.logical_and, self, other)

    __rand__ = __and__

    def __or__(self, other: Operand) -> Tensor:
        return _of_bools("|", comparison.logical_or, self, other)

    __ror__ = __or__

    def __xor__(self, other: Operand) -> Tensor:
        return _of_bools("^", comparison.logical_xor, self, other)

    __rxor__ = __xor__

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """array <op> tensor: the operators are the tensor's, other NumPy functions are refused."""
        name = ufunc.__name__
        if name not in OPERATORS or method != "__call__" or kwargs:
            self._refuse_function(name)
        return OPERATORS[name](*inputs)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """torch tensor <op> tensor: as with an array. torch's functions know no others' tensors."""
        name = function.__name__
        if name in _OF_TORCH and not kwargs:
            return OPERATORS[_OF_TORCH[name]](*args)
        raise TraceError(
            f"torch.{name}: must get tensors of torch, got one of hotloop; write {instead_of(name)}"
        )

    # ---- gradient and storage

    @property
    def data(self) -> Any:
        """The same value; no gradient passes."""
        return pointwise.detach(self)

    def contiguous(self) -> Tensor:
        """Itself: every value is contiguous.

        Returns
        -------
        Tensor
            The same.
        """
        return self

    def clone(self) -> Tensor:
        """Itself: values never change.

        Returns
        -------
        Tensor
            The same.
        """
        return self

    detach = pointwise.detach
    # ---- methods with more than one way to be called

    def view(self, *shape: Any) -> Tensor:
        """The same elements in another shape, as :func:`hotloop.reshape`.

        Parameters
        ----------
        *shape : int
            The sizes, as a tuple or one by one; one may be -1.

        Returns
        -------
        Tensor
            Of that shape.
        """
        return views.reshape(self, views.sizes_of(shape, "view"))

    def view_as(self, other: Tensor) -> Tensor:
        """The same elements in another tensor's shape.

        Parameters
        ----------
        other : Tensor
            Gives the shape, of as many elements.

        Returns
        -------
        Tensor
            Of that shape.
        """
        return views.reshape(self, other.shape)

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; one size may be -1."""
        return views.reshape(self, views.sizes_of(shape, "reshape"))

    def reshape_as(self, other: Tensor) -> Tensor:
        """The same elements in another tensor's shape.

        Parameters
        ----------
        other : Tensor
            Gives the shape, of as many elements.

        Returns
        -------
        Tensor
            Of that shape.
        """
        return views.reshape(self, other.shape)

    def permute(self, *dims: Any) -> Tensor:
        """Dims in another order."""
        return views.permute(self, views.sizes_of(dims, "permute"))

    def expand(self, *sizes: Any) -> Tensor:
        """Dims of size 1 repeated; -1 keeps a dim."""
        return views.expand(self, views.sizes_of(sizes, "expand"))

    def expand_as(self, other: Tensor) -> Tensor:
        """Dims of size 1 repeated to another tensor's shape.

        Parameters
        ----------
        other : Tensor
            Gives the shape.

        Returns
        -------
        Tensor
            Of that shape.
        """
        return views.expand(self, other.shape)

    def repeat(self, *sizes: Any) -> Tensor:
        """The whole tensor several times along each dim."""
        return views.repeat(self, views.sizes_of(sizes, "repeat"))

    def tile(self, *dims: Any) -> Tensor:
        """The whole tensor several times along the last dims."""
        return views.tile(self, views.sizes_of(dims, "tile"))

    def flip(self, *dims: Any) -> Tensor:
        """Reversed along dims."""
        return views.flip(self, views.sizes_of(dims, "flip"))

    def where(self, condition: Operand, other: Operand) -> Tensor:
        """Itself where the condition holds, else ``other``."""
        return pointwise.where(condition, self, other)

    def new_zeros(self, *size: Any, dtype: Any = None, device: Any = None) -> Any:
        """Zeros of a shape in this dtype.

        Parameters
        ----------
        *size : int
            The shape, as ``(2, 3)`` or as two numbers.
        dtype : dtype, optional
            Another dtype than this tensor's.
        device
            Taken for torch's sake: the plan has the device.

        Returns
        -------
        Tensor
            Of that shape.
        """
        return creation.zeros(*size, dtype=dtype or self.dtype)

    def new_ones(self, *size: Any, dtype: Any = None, device: Any = None) -> Any:
        """Ones of a shape in this dtype.

        Parameters
        ----------
        *size : int
            The shape, as ``(2, 3)`` or as two numbers.
        dtype : dtype, optional
            Another dtype than this tensor's.
        device
            Taken for torch's sake: the plan has the device.

        Returns
        -------
        Tensor
            Of that shape.
        """
        return creation.ones(*size, dtype=dtype or self.dtype)

    def new_full(
        self, size: Any, fill_value: Number, *, dtype: Any = None, device: Any = None
    ) -> Any:
        """One number in a shape, in this dtype.

        Parameters
        ----------
        size : int or sequence of int
            The shape.
        fill_value : number
            The number.
        dtype : dtype, optional
            Another dtype than this tensor's.
        device
            Taken for torch's sake: the plan has the device.

        Returns
        -------
        Tensor
            Of that shape.
        """
        return creation.full(size, fill_value, dtype=dtype or self.dtype)

    # ---- pointwise

    add = pointwise.add
    abs = pointwise.abs
    neg = pointwise.neg
    sign = pointwise.sign
    exp = elementary.exp
    exp2 = elementary.exp2
    expm1 = elementary.expm1
    log = elementary.log
    log1p = elementary.log1p
    log2 = elementary.log2
    log10 = elementary.log10
    sqrt = pointwise.sqrt
    rsqrt = pointwise.rsqrt
    reciprocal = pointwise.reciprocal
    square = pointwise.square
    sin = elementary.sin
    cos = elementary.cos
    tan = elementary.tan
    sinh = elementary.sinh
    cosh = elementary.cosh
    tanh = elementary.tanh
    sigmoid = elementary.sigmoid
    erf = elementary.erf
    erfc = elementary.erfc
    relu = pointwise.relu
    floor = pointwise.floor
    ceil = pointwise.ceil
    round = pointwise.round
    trunc = pointwise.trunc
    frac = pointwise.frac
    isfinite = comparison.isfinite
    isnan = comparison.isnan
    isinf = comparison.isinf
    logical_not = comparison.logical_not
    logit = elementary.logit
    nan_to_num = pointwise.nan_to_num
    sub = pointwise.sub
    mul = pointwise.mul
    div = pointwise.div
    true_divide = pointwise.true_divide
    floor_divide = pointwise.floor_divide
    remainder = pointwise.remainder
    pow = pointwise.pow
    maximum = pointwise.maximum
    minimum = pointwise.minimum
    eq = comparison.eq
    ne = comparison.ne
    lt = comparison.lt
    le = comparison.le
    gt = comparison.gt
    ge = comparison.ge
    logical_and = comparison.logical_and
    logical_or = comparison.logical_or
    logical_xor = comparison.logical_xor
    isclose = comparison.isclose
    logaddexp = elementary.logaddexp
    xlogy = elementary.xlogy
    masked_fill = pointwise.masked_fill
    clamp = pointwise.clamp
    clamp_max = pointwise.clamp_max
    clamp_min = pointwise.clamp_min
    clip = pointwise.clip
    lerp = pointwise.lerp
    addcmul = pointwise.addcmul

    # ---- reduction

    sum = reduction.sum
    mean = reduction.mean
    prod = reduction.prod
    amax = reduction.amax
    amin = reduction.amin
    argmax = reduction.argmax
    argmin = reduction.argmin
    max = reduction.max
    min = reduction.min
    median = reduction.median
    any = reduction.any
    all = reduction.all
    count_nonzero = reduction.count_nonzero
    var_mean = reduction.var_mean
    var = reduction.var
    std = reduction.std
    std_mean = reduction.std_mean
    logsumexp = reduction.logsumexp
    softmax = reduction.softmax
    log_softmax = reduction.log_softmax
    cumsum = reduction.cumsum
    norm = reduction.norm

    # ---- order

    sort = ordering.sort
    argsort = ordering.argsort
    msort = ordering.msort
    topk = ordering.topk
    kthvalue = ordering.kthvalue
    quantile = ordering.quantile
    unique = ordering.unique

    # ---- views

    transpose = views.transpose
    t = views.t
    movedim = views.movedim
    moveaxis = rearranging.moveaxis
    swapaxes = rearranging.swapaxes
    swapdims = rearranging.swapdims
    fliplr = rearranging.fliplr
    flipud = rearranging.flipud
    rot90 = rearranging.rot90
    diagonal = rearranging.diagonal
    flatten = views.flatten
    ravel = views.ravel
    unflatten = views.unflatten
    squeeze = views.squeeze
    unsqueeze = views.unsqueeze
    broadcast_to = views.broadcast_to
    repeat_interleave = views.repeat_interleave
    narrow = views.narrow
    select = views.select
    split = views.split
    chunk = views.chunk
    unbind = views.unbind
    roll = views.roll

    # ---- indexing

    gather = indexing.gather
    take_along_dim = indexing.take_along_dim
    scatter = indexing.scatter
    scatter_add = indexing.scatter_add
    index_select = indexing.index_select
    index_add = indexing.index_add
    index_copy = indexing.index_copy
    index_fill = indexing.index_fill
    one_hot = indexing.one_hot
    tril = indexing.tril
    triu = indexing.triu

    # ---- contraction

    matmul = contraction.matmul
    mm = contraction.mm
    bmm = contraction.bmm
    mv = contraction.mv
    dot = contraction.dot
    outer = contraction.outer
    baddbmm = contraction.baddbmm

    # ---- dtype: last, as these names hide the builtins in annotations that follow

    def to(self, *args: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor:
        """In another dtype.

        Parameters
        ----------
        *args
            A dtype, a device, or a tensor to be like, as torch takes them.
        dtype : dtype, optional
            The new one.
        device, **kwargs
            Taken for torch's sake: the plan has the device.

        Returns
        -------
        Tensor
            The same shape; floats become integers by truncation.
        """
        for arg in args:
            if isinstance(arg, Tensor):
                dtype = arg.dtype
            elif isinstance(arg, bool) or arg is None or is_device(arg):
                continue
            else:
                dtype = arg
        return self if dtype is None else self.type(dtype)

    def cast(self, dtype: Any) -> Tensor:
        """In another dtype.

        Parameters
        ----------
        dtype : dtype
            The new one, such as ``hl.float32`` or "int64".

        Returns
        -------
        Tensor
            The same shape; floats become integers by truncation.
        """
        return self.type(dtype)

    def type(self, dtype: Any) -> Tensor:
        """In another dtype.

        Parameters
        ----------
        dtype : dtype
            The new one, such as ``hl.float32`` or "int64".

        Returns
        -------
        Tensor
            The same shape; floats become integers by truncation.
        """
        return self if self.dtype == dtypes.parse(dtype) else _cast(self, dtypes.parse(dtype))

    def type_as(self, other: Tensor) -> Tensor:
        """In the dtype of another tensor.

        Parameters
        ----------
        other : Tensor
            Gives the dtype.

        Returns
        -------
        Tensor
            The same shape; floats become integers by truncation.
        """
        return self.type(other.dtype)

    def float(self) -> Tensor:
        """As float32.

        Returns
        -------
        Tensor
            The same shape.
        """
        return self.type(dtypes.float32)

    def double(self) -> Tensor:
        """As float64.

        Returns
        -------
        Tensor
            The same shape.
        """
        return self.type(dtypes.float64)

    def half(self) -> Tensor:
        """As float16.

        Returns
        -------
        Tensor
            The same shape.
        """
        return self.type(dtypes.float16)

    def bfloat16(self) -> Tensor:
        """As bfloat16.

        Returns
        -------
        Tensor
            The same shape.
        """
        return self.type(dtypes.bfloat16)

    def long(self) -> Tensor:
        """As int64; floats are truncated.

        Returns
        -------
        Tensor
            The same shape.
        """
        return self.type(dtypes.int64)

    def int(self) -> Tensor:
        """As int32; floats are truncated.

        Returns
        -------
        Tensor
            The same shape.
        """
        return self.type(dtypes.int32)

    def bool(self) -> Tensor:
        """As bool: whether it differs from 0.

        Returns
        -------
        Tensor
            The same shape.
        """
        return self.type(dtypes.bool_)

    def cuda(self, *args: Any, **kwargs: Any) -> Tensor:
        """Itself: the plan has the device.

        Parameters
        ----------
        *args, **kwargs
            Taken for torch's sake.

        Returns
        -------
        Tensor
            The same.
        """
        return self

    def cpu(self) -> Tensor:
        """Itself: the plan has the device.

        Returns
        -------
        Tensor
            The same.
        """
        return self


Trace.tensor_type = Tensor


def is_device(value: Any) -> bool:
    """Whether a value is a device or the name of one, as torch spells them."""
    if isinstance(value, str) and not isinstance(value, DType):
        return value.partition(":")[0] in ("cpu", "cuda", "auto", "gpu", "mps", "meta")
    return type(value).__name__ == "device"
