"""Tensor: a value of the running trace with torch's methods and operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hotloop.errors import TraceError
from hotloop.graph import contraction, dtypes, indexing, loss_parts, pointwise, reduction, views
from hotloop.graph.build import Number, Operand, cast, is_number, lift
from hotloop.graph.dtypes import DType
from hotloop.graph.value import Value

__all__ = ["Tensor", "is_device"]

Dim = int | Sequence[int] | None


class Tensor(Value):
    """A symbolic tensor: what ``forward`` gets, makes and returns.

    Made by functions, never by hand. ``shape`` is a tuple of ints, the batch included; ``dtype``
    compares equal to names such as ``"float32"``. The methods are the functions of the same names
    in :mod:`hotloop`, which document them.
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
        return iter(views.unbind(self, 0))

    def __getitem__(self, key: Any) -> Tensor:
        return indexing.get_item(lift(self), key)

    # ---- operators

    def __neg__(self) -> Tensor:
        return loss_parts.scaled(pointwise.neg(self), self, -1.0)

    def __pos__(self) -> Tensor:
        return self

    def __abs__(self) -> Tensor:
        return pointwise.abs(self)

    def __invert__(self) -> Tensor:
        if self.dtype != dtypes.bool_:
            raise TraceError(f"~: must be given bools, got {self.dtype}; use logical_not")
        return pointwise.logical_not(self)

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

    def __floordiv__(self, other: Operand) -> Tensor:
        return pointwise.floor_divide(self, other)

    def __rfloordiv__(self, other: Operand) -> Tensor:
        return pointwise.floor_divide(other, self)

    def __mod__(self, other: Operand) -> Tensor:
        return pointwise.remainder(self, other)

    def __rmod__(self, other: Operand) -> Tensor:
        return pointwise.remainder(other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return pointwise.pow(self, other)

    def __rpow__(self, other: Operand) -> Tensor:
        return pointwise.pow(other, self)

    def __matmul__(self, other: Operand) -> Tensor:
        return contraction.matmul(self, other)

    def __rmatmul__(self, other: Operand) -> Tensor:
        return contraction.matmul(other, self)

    def __eq__(self, other: Operand) -> Tensor:  # type: ignore[override]
        return pointwise.eq(self, other)

    def __ne__(self, other: Operand) -> Tensor:  # type: ignore[override]
        return pointwise.ne(self, other)

    def __lt__(self, other: Operand) -> Tensor:
        return pointwise.lt(self, other)

    def __le__(self, other: Operand) -> Tensor:
        return pointwise.le(self, other)

    def __gt__(self, other: Operand) -> Tensor:
        return pointwise.gt(self, other)

    def __ge__(self, other: Operand) -> Tensor:
        return pointwise.ge(self, other)

    def _logical(self, symbol: str, other: Operand) -> Tensor:
        b = lift(other, self.trace)
        for x in (self, b):
            if x.dtype != dtypes.bool_:
                raise TraceError(f"{symbol}: must be given bools, got {x.dtype}; compare first")
        return b

    def __and__(self, other: Operand) -> Tensor:
        return pointwise.logical_and(self, self._logical("&", other))

    __rand__ = __and__

    def __or__(self, other: Operand) -> Tensor:
        return pointwise.logical_or(self, self._logical("|", other))

    __ror__ = __or__

    def __xor__(self, other: Operand) -> Tensor:
        return pointwise.logical_xor(self, self._logical("^", other))

    __rxor__ = __xor__

    # ---- gradient and storage

    @property
    def data(self) -> Any:
        """The same value; no gradient passes."""
        return pointwise.detach(self)

    def contiguous(self) -> Tensor:
        """Itself: every value is contiguous."""
        return self

    def clone(self) -> Tensor:
        """Itself: values never change."""
        return self

    def detach(self) -> Tensor:
        """The same value; no gradient passes."""
        return pointwise.detach(self)

    # ---- methods with more than one way to be called

    def view(self, *shape: Any) -> Tensor:
        """The same elements in another shape; one size may be -1."""
        return views.reshape(self, views.sizes_of(shape, "view"))

    def view_as(self, other: Tensor) -> Tensor:
        """The same elements in another tensor's shape."""
        return views.reshape(self, other.shape)

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; one size may be -1."""
        return views.reshape(self, views.sizes_of(shape, "reshape"))

    def reshape_as(self, other: Tensor) -> Tensor:
        """The same elements in another tensor's shape."""
        return views.reshape(self, other.shape)

    def permute(self, *dims: Any) -> Tensor:
        """Dims in another order."""
        return views.permute(self, views.sizes_of(dims, "permute"))

    def expand(self, *sizes: Any) -> Tensor:
        """Dims of size 1 repeated; -1 keeps a dim."""
        return views.expand(self, views.sizes_of(sizes, "expand"))

    def expand_as(self, other: Tensor) -> Tensor:
        """Dims of size 1 repeated to another tensor's shape."""
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
        """Zeros of a shape in this dtype."""
        from hotloop.graph.creation import zeros

        return zeros(*size, dtype=dtype or self.dtype)

    def new_ones(self, *size: Any, dtype: Any = None, device: Any = None) -> Any:
        """Ones of a shape in this dtype."""
        from hotloop.graph.creation import ones

        return ones(*size, dtype=dtype or self.dtype)

    def new_full(
        self, size: Any, fill_value: Number, *, dtype: Any = None, device: Any = None
    ) -> Any:
        """One number in a shape, in this dtype."""
        from hotloop.graph.creation import full

        return full(size, fill_value, dtype=dtype or self.dtype)

    # ---- pointwise, see hotloop.graph.pointwise

    def add(self, other: Operand, *, alpha: Number = 1) -> Tensor:
        """``a + alpha * b``."""
        return pointwise.add(self, other, alpha=alpha)

    def abs(self) -> Tensor:
        """``|x|``; gradient 0 at 0."""
        return pointwise.abs(self)

    def neg(self) -> Tensor:
        """``-x``."""
        return pointwise.neg(self)

    def sign(self) -> Tensor:
        """-1, 0 or 1."""
        return pointwise.sign(self)

    def exp(self) -> Tensor:
        """``e**x``."""
        return pointwise.exp(self)

    def exp2(self) -> Tensor:
        """``2**x``."""
        return pointwise.exp2(self)

    def expm1(self) -> Tensor:
        """``e**x - 1``, exact near 0."""
        return pointwise.expm1(self)

    def log(self) -> Tensor:
        """Natural logarithm."""
        return pointwise.log(self)

    def log1p(self) -> Tensor:
        """``log(1 + x)``, exact near 0."""
        return pointwise.log1p(self)

    def log2(self) -> Tensor:
        """Logarithm to base 2."""
        return pointwise.log2(self)

    def log10(self) -> Tensor:
        """Logarithm to base 10."""
        return pointwise.log10(self)

    def sqrt(self) -> Tensor:
        """Square root."""
        return pointwise.sqrt(self)

    def rsqrt(self) -> Tensor:
        """``1 / sqrt(x)``."""
        return pointwise.rsqrt(self)

    def reciprocal(self) -> Tensor:
        """``1 / x``."""
        return pointwise.reciprocal(self)

    def square(self) -> Tensor:
        """``x * x``."""
        return pointwise.square(self)

    def sin(self) -> Tensor:
        """Sine of radians."""
        return pointwise.sin(self)

    def cos(self) -> Tensor:
        """Cosine of radians."""
        return pointwise.cos(self)

    def tan(self) -> Tensor:
        """Tangent of radians."""
        return pointwise.tan(self)

    def sinh(self) -> Tensor:
        """Hyperbolic sine, exact near 0."""
        return pointwise.sinh(self)

    def cosh(self) -> Tensor:
        """Hyperbolic cosine."""
        return pointwise.cosh(self)

    def tanh(self) -> Tensor:
        """Hyperbolic tangent."""
        return pointwise.tanh(self)

    def sigmoid(self) -> Tensor:
        """``1 / (1 + e**-x)``."""
        return pointwise.sigmoid(self)

    def erf(self) -> Tensor:
        """Error function."""
        return pointwise.erf(self)

    def erfc(self) -> Tensor:
        """``1 - erf(x)``; not accurate relative to tiny results, as the difference it is."""
        return pointwise.erfc(self)

    def relu(self) -> Tensor:
        """``max(x, 0)``; gradient 0 at 0."""
        return pointwise.relu(self)

    def floor(self) -> Tensor:
        """Largest integer not above x, in x's dtype; no gradient."""
        return pointwise.floor(self)

    def ceil(self) -> Tensor:
        """Smallest integer not below x, in x's dtype; no gradient."""
        return pointwise.ceil(self)

    def round(self, *, decimals: int = 0) -> Tensor:
        """To the nearest integer, halves to even, or to ``decimals`` places; no gradient."""
        return pointwise.round(self, decimals=decimals)

    def trunc(self) -> Tensor:
        """To the integer nearest towards 0; no gradient."""
        return pointwise.trunc(self)

    def frac(self) -> Tensor:
        """``x - trunc(x)``."""
        return pointwise.frac(self)

    def isfinite(self) -> Tensor:
        """Bool: neither NaN nor infinite."""
        return pointwise.isfinite(self)

    def isnan(self) -> Tensor:
        """Bool: NaN."""
        return pointwise.isnan(self)

    def isinf(self) -> Tensor:
        """Bool: positive or negative infinity."""
        return pointwise.isinf(self)

    def logical_not(self) -> Tensor:
        """Bool: ``x == 0``."""
        return pointwise.logical_not(self)

    def logit(self, eps: float | None = None) -> Tensor:
        """``log(x / (1 - x))``, x clamped to ``[eps, 1 - eps]`` where eps is given."""
        return pointwise.logit(self, eps)

    def nan_to_num(
        self, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
    ) -> Tensor:
        """NaN and infinities replaced; infinities by the largest finite float32 where not given."""
        return pointwise.nan_to_num(self, nan, posinf, neginf)

    def sub(self, other: Operand, *, alpha: Number = 1) -> Tensor:
        """``a - alpha * b``."""
        return pointwise.sub(self, other, alpha=alpha)

    def mul(self, other: Operand) -> Tensor:
        """``a * b``."""
        return pointwise.mul(self, other)

    def div(self, other: Operand, *, rounding_mode: str | None = None) -> Tensor:
        """``a / b`` in floating point; ``rounding_mode`` "floor" or "trunc" rounds the quotient."""
        return pointwise.div(self, other, rounding_mode=rounding_mode)

    def true_divide(self, other: Operand) -> Tensor:
        """``a / b`` in floating point."""
        return pointwise.true_divide(self, other)

    def floor_divide(self, other: Operand) -> Tensor:
        """``floor(a / b)`` in the operands' dtype; no gradient."""
        return pointwise.floor_divide(self, other)

    def remainder(self, other: Operand) -> Tensor:
        """``a - floor(a / b) * b``, with the sign of b."""
        return pointwise.remainder(self, other)

    def pow(self, exponent: Operand) -> Tensor:
        """``a ** b``. Squares and small powers of numbers are products."""
        return pointwise.pow(self, exponent)

    def maximum(self, other: Operand) -> Tensor:
        """The larger of two; NaN if either is; ties share the gradient."""
        return pointwise.maximum(self, other)

    def minimum(self, other: Operand) -> Tensor:
        """The smaller of two; NaN if either is; ties share the gradient."""
        return pointwise.minimum(self, other)

    def eq(self, other: Operand) -> Tensor:
        """Bool: ``a == b``."""
        return pointwise.eq(self, other)

    def ne(self, other: Operand) -> Tensor:
        """Bool: ``a != b``."""
        return pointwise.ne(self, other)

    def lt(self, other: Operand) -> Tensor:
        """Bool: ``a < b``."""
        return pointwise.lt(self, other)

    def le(self, other: Operand) -> Tensor:
        """Bool: ``a <= b``."""
        return pointwise.le(self, other)

    def gt(self, other: Operand) -> Tensor:
        """Bool: ``a > b``."""
        return pointwise.gt(self, other)

    def ge(self, other: Operand) -> Tensor:
        """Bool: ``a >= b``."""
        return pointwise.ge(self, other)

    def logical_and(self, other: Operand) -> Tensor:
        """Bool: both differ from 0."""
        return pointwise.logical_and(self, other)

    def logical_or(self, other: Operand) -> Tensor:
        """Bool: one differs from 0."""
        return pointwise.logical_or(self, other)

    def logical_xor(self, other: Operand) -> Tensor:
        """Bool: exactly one differs from 0."""
        return pointwise.logical_xor(self, other)

    def isclose(
        self, other: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
    ) -> Tensor:
        """Bool: ``|a - b| <= atol + rtol * |b|``; infinities are close to themselves."""
        return pointwise.isclose(self, other, rtol, atol, equal_nan)

    def logaddexp(self, other: Operand) -> Tensor:
        """``log(e**a + e**b)`` without overflow."""
        return pointwise.logaddexp(self, other)

    def xlogy(self, other: Operand) -> Tensor:
        """``a * log(b)``, 0 where a is 0 (and b is not NaN)."""
        return pointwise.xlogy(self, other)

    def masked_fill(self, mask: Operand, value: Operand) -> Tensor:
        """The tensor with ``value`` where ``mask`` holds, in the tensor's dtype."""
        return pointwise.masked_fill(self, mask, value)

    def clamp(self, min: Operand | None = None, max: Operand | None = None) -> Tensor:
        """x limited to ``[min, max]``; the gradient passes inside, ends included."""
        return pointwise.clamp(self, min, max)

    def clip(self, min: Operand | None = None, max: Operand | None = None) -> Tensor:
        """The same as :func:`clamp`."""
        return pointwise.clip(self, min, max)

    def lerp(self, end: Operand, weight: Operand) -> Tensor:
        """``input + weight * (end - input)``."""
        return pointwise.lerp(self, end, weight)

    def addcmul(self, tensor1: Operand, tensor2: Operand, *, value: Number = 1) -> Tensor:
        """``input + value * tensor1 * tensor2``."""
        return pointwise.addcmul(self, tensor1, tensor2, value=value)

    # ---- reduction, see hotloop.graph.reduction

    def sum(self, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        """Sum over one, several or all dims; integers and bools add up in int64."""
        return reduction.sum(self, dim, keepdim, dtype=dtype)

    def mean(self, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        """Mean over one, several or all dims of a floating-point tensor."""
        return reduction.mean(self, dim, keepdim, dtype=dtype)

    def prod(self, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        """Product over one or all dims; integers and bools multiply in int64."""
        return reduction.prod(self, dim, keepdim, dtype=dtype)

    def amax(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Largest over one, several or all dims; ties share the gradient."""
        return reduction.amax(self, dim, keepdim)

    def amin(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Smallest over one, several or all dims; ties share the gradient."""
        return reduction.amin(self, dim, keepdim)

    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """Index of the first largest, int64; over the flattened tensor when no dim is given."""
        return reduction.argmax(self, dim, keepdim)

    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """Index of the first smallest, int64; over the flattened tensor when no dim is given."""
        return reduction.argmin(self, dim, keepdim)

    def max(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Largest of all (a tensor), along a dim (values and indices), or of two tensors."""
        return reduction.max(self, dim, keepdim)

    def min(self, dim: Any = None, keepdim: bool = False) -> Any:
        """Smallest of all, along a dim, or of two tensors; as :func:`max`."""
        return reduction.min(self, dim, keepdim)

    def median(self, dim: int | None = None, keepdim: bool = False) -> Any:
        """Median of all (a tensor), or along a dim (values and indices)."""
        return reduction.median(self, dim, keepdim)

    def any(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Bool: one element at least differs from 0."""
        return reduction.any(self, dim, keepdim)

    def all(self, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Bool: every element differs from 0."""
        return reduction.all(self, dim, keepdim)

    def count_nonzero(self, dim: Dim = None) -> Tensor:
        """How many elements differ from 0, int64."""
        return reduction.count_nonzero(self, dim)

    def var_mean(
        self,
        dim: Any = None,
        unbiased: bool | None = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Variance and mean over dims, from one pass that merges (n, mean, M2)."""
        return reduction.var_mean(self, dim, unbiased, correction=correction, keepdim=keepdim)

    def var(
        self,
        dim: Any = None,
        unbiased: bool | None = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> Tensor:
        """Variance over dims; see :func:`var_mean`."""
        return reduction.var(self, dim, unbiased, correction=correction, keepdim=keepdim)

    def std(
        self,
        dim: Any = None,
        unbiased: bool | None = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> Tensor:
        """Standard deviation over dims; see :func:`var_mean`."""
        return reduction.std(self, dim, unbiased, correction=correction, keepdim=keepdim)

    def std_mean(
        self,
        dim: Any = None,
        unbiased: bool | None = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Standard deviation and mean over dims; see :func:`var_mean`."""
        return reduction.std_mean(self, dim, unbiased, correction=correction, keepdim=keepdim)

    def logsumexp(self, dim: Dim, keepdim: bool = False) -> Tensor:
        """``log(sum(e**x))`` over dims without overflow."""
        return reduction.logsumexp(self, dim, keepdim)

    def softmax(self, dim: int, *, dtype: Any = None) -> Tensor:
        """``e**x / sum(e**x)`` along a dim."""
        return reduction.softmax(self, dim, dtype=dtype)

    def log_softmax(self, dim: int, *, dtype: Any = None) -> Tensor:
        """``log(softmax(x))`` along a dim, without overflow."""
        return reduction.log_softmax(self, dim, dtype=dtype)

    def cumsum(self, dim: int, *, dtype: Any = None) -> Tensor:
        """Running sum along a dim; integers and bools add up in int64."""
        return reduction.cumsum(self, dim, dtype=dtype)

    def norm(self, p: float | str | None = "fro", dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Vector norm over dims: ``(sum |x|**p) ** (1/p)``; p may be inf, -inf or 0."""
        return reduction.norm(self, p, dim, keepdim)

    # ---- views, see hotloop.graph.views

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Two dims swapped."""
        return views.transpose(self, dim0, dim1)

    def t(self) -> Tensor:
        """Transpose of a matrix; a vector stays as it is."""
        return views.t(self)

    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
        """Dims ``source`` moved to ``destination``, the others keeping their order."""
        return views.movedim(self, source, destination)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """Dims ``start_dim`` .. ``end_dim`` as one."""
        return views.flatten(self, start_dim, end_dim)

    def ravel(self) -> Tensor:
        """All elements in one dim."""
        return views.ravel(self)

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Tensor:
        """One dim as several; one of the sizes may be -1."""
        return views.unflatten(self, dim, sizes)

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Tensor:
        """Without dims of size 1: all of them, or those among ``dim``."""
        return views.squeeze(self, dim)

    def unsqueeze(self, dim: int) -> Tensor:
        """With a new dim of size 1 at ``dim``."""
        return views.unsqueeze(self, dim)

    def broadcast_to(self, shape: int | Sequence[int]) -> Tensor:
        """The same as :func:`expand`."""
        return views.broadcast_to(self, shape)

    def repeat_interleave(self, repeats: int, dim: int | None = None) -> Tensor:
        """Each element along a dim ``repeats`` times in a row."""
        return views.repeat_interleave(self, repeats, dim)

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        """``length`` elements along a dim from ``start`` on."""
        return views.narrow(self, dim, start, length)

    def select(self, dim: int, index: int) -> Tensor:
        """One place along a dim, which goes."""
        return views.select(self, dim, index)

    def split(
        self, split_size_or_sections: int | Sequence[int], dim: int = 0
    ) -> tuple[Tensor, ...]:
        """Pieces along a dim: of one size (the last may be smaller), or of the sizes given."""
        return views.split(self, split_size_or_sections, dim)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """At most ``chunks`` pieces of equal size along a dim, the last one possibly smaller."""
        return views.chunk(self, chunks, dim)

    def unbind(self, dim: int = 0) -> tuple[Tensor, ...]:
        """Every place along a dim as a tensor of its own."""
        return views.unbind(self, dim)

    def roll(self, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
        """Shifted along dims, ends wrapping around."""
        return views.roll(self, shifts, dims)

    # ---- indexing, see hotloop.graph.indexing

    def gather(self, dim: int, index: Operand) -> Tensor:
        """``out[i][j] = input[i][index[i][j]]`` for dim 1, and so for each dim."""
        return indexing.gather(self, dim, index)

    def take_along_dim(self, indices: Operand, dim: int | None = None) -> Tensor:
        """As gather, with the other dims broadcast."""
        return indexing.take_along_dim(self, indices, dim)

    def scatter(
        self, dim: int, index: Operand, src: Operand, *, reduce: str | None = None
    ) -> Tensor:
        """The tensor with ``out[i][index[i][j]] = src[i][j]`` for dim 1, and so for each dim."""
        return indexing.scatter(self, dim, index, src, reduce=reduce)

    def scatter_add(self, dim: int, index: Operand, src: Operand) -> Tensor:
        """As :func:`scatter`, adding to what is there: :func:`hotloop.ops.scatter_add`."""
        return indexing.scatter_add(self, dim, index, src)

    def index_select(self, dim: int, index: Operand) -> Tensor:
        """Rows along a dim by a vector of indices."""
        return indexing.index_select(self, dim, index)

    def index_add(self, dim: int, index: Operand, source: Operand, *, alpha: float = 1) -> Tensor:
        """The tensor with rows of ``alpha * source`` added at a vector of indices along a dim."""
        return indexing.index_add(self, dim, index, source, alpha=alpha)

    def index_copy(self, dim: int, index: Operand, source: Operand) -> Tensor:
        """The tensor with rows of ``source`` at a vector of indices along a dim."""
        return indexing.index_copy(self, dim, index, source)

    def index_fill(self, dim: int, index: Operand, value: float) -> Tensor:
        """The tensor with a number in the rows at a vector of indices along a dim."""
        return indexing.index_fill(self, dim, index, value)

    def one_hot(self, num_classes: int = -1) -> Tensor:
        """1 at the class of each element, else 0; int64 of shape ``(*, num_classes)``."""
        return indexing.one_hot(self, num_classes)

    def tril(self, diagonal: int = 0) -> Tensor:
        """Matrices with zeros above a diagonal; the last two dims are rows and columns."""
        return indexing.tril(self, diagonal)

    def triu(self, diagonal: int = 0) -> Tensor:
        """Matrices with zeros below a diagonal; the last two dims are rows and columns."""
        return indexing.triu(self, diagonal)

    # ---- contraction, see hotloop.graph.contraction

    def matmul(self, other: Operand) -> Tensor:
        """Matrix product; leading dims broadcast."""
        return contraction.matmul(self, other)

    def mm(self, mat2: Operand) -> Tensor:
        """Product of two matrices."""
        return contraction.mm(self, mat2)

    def bmm(self, mat2: Operand) -> Tensor:
        """Products of two batches of matrices ``(B, M, K)`` and ``(B, K, N)``."""
        return contraction.bmm(self, mat2)

    def mv(self, vec: Operand) -> Tensor:
        """Product of a matrix and a vector."""
        return contraction.mv(self, vec)

    def dot(self, tensor: Operand) -> Tensor:
        """Inner product of two vectors."""
        return contraction.dot(self, tensor)

    def outer(self, vec2: Operand) -> Tensor:
        """Every product of an element of one vector with an element of the other."""
        return contraction.outer(self, vec2)

    def baddbmm(
        self, batch1: Operand, batch2: Operand, *, beta: float = 1, alpha: float = 1
    ) -> Tensor:
        """``beta * input + alpha * bmm(batch1, batch2)``."""
        return contraction.baddbmm(self, batch1, batch2, beta=beta, alpha=alpha)

    # ---- dtype: last, as these names hide the builtins in annotations that follow

    def to(self, *args: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor:
        """In another dtype; devices, and a tensor's to be like, are taken as torch takes them."""
        for arg in args:
            if isinstance(arg, Tensor):
                dtype = arg.dtype
            elif isinstance(arg, bool) or arg is None or is_device(arg):
                continue
            else:
                dtype = arg
        return self if dtype is None else cast(lift(self), dtypes.parse(dtype))

    def cast(self, dtype: Any) -> Tensor:
        """In another dtype."""
        return cast(lift(self), dtypes.parse(dtype))

    def type(self, dtype: Any) -> Tensor:
        """In another dtype."""
        return cast(lift(self), dtypes.parse(dtype))

    def type_as(self, other: Tensor) -> Tensor:
        """In the dtype of another tensor."""
        return cast(lift(self), other.dtype)

    def float(self) -> Tensor:
        """As float32."""
        return self.type(dtypes.float32)

    def double(self) -> Tensor:
        """As float64."""
        return self.type(dtypes.float64)

    def half(self) -> Tensor:
        """As float16."""
        return self.type(dtypes.float16)

    def bfloat16(self) -> Tensor:
        """As bfloat16."""
        return self.type(dtypes.bfloat16)

    def long(self) -> Tensor:
        """As int64; floats are truncated."""
        return self.type(dtypes.int64)

    def int(self) -> Tensor:
        """As int32; floats are truncated."""
        return self.type(dtypes.int32)

    def bool(self) -> Tensor:
        """As bool: whether it differs from 0."""
        return self.type(dtypes.bool_)

    def cuda(self, *args: Any, **kwargs: Any) -> Tensor:
        """Itself: the plan has the device."""
        return self

    def cpu(self) -> Tensor:
        """Itself: the plan has the device."""
        return self


def is_device(value: Any) -> bool:
    """Whether a value is a device or the name of one, as torch spells them."""
    if isinstance(value, str) and not isinstance(value, DType):
        return value.partition(":")[0] in ("cpu", "cuda", "auto", "gpu", "mps", "meta")
    return type(value).__name__ == "device"
