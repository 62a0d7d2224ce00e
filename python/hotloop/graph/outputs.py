"""What ``model(array)`` and functions on arrays give: NumPy arrays that know torch's habits.

``.detach().cpu().numpy()`` and ``.argmax(dim=1)`` mean the same for an array and work. What would
mean something else, or is not there, says what to write.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hotloop.base.structure import flatten, unflatten
from hotloop.errors import ConfigError

__all__ = ["OutputArray", "as_outputs"]

Array: TypeAlias = npt.NDArray[Any]

_GRADIENT = (
    "it has no gradient; hl.train and hl.stepper compute loss, gradients and optimizer steps, "
    "loss.backward() and optimizer.step() are left out"
)
_WRITE = {
    "softmax": "write hl.predict(model, X, proba=True) for probabilities",
    "sigmoid": "write hl.predict(model, X, proba=True) for probabilities",
    "log_softmax": "write np.log(hl.predict(model, X, proba=True))",
    "exp": "write np.exp(output)",
    "log": "write np.log(output)",
    "sqrt": "write np.sqrt(output)",
    "tanh": "write np.tanh(output)",
    "relu": "write np.maximum(output, 0)",
    "abs": "write np.abs(output)",
    "pow": "write output ** exponent",
    "square": "write output ** 2",
    "unsqueeze": "write np.expand_dims(output, dim)",
    "permute": "write output.transpose(dims)",
    "view_as": "write output.reshape(other.shape)",
    "topk": "write np.argsort(output, axis=-1)[..., ::-1][..., :k]",
    "numel": "write output.size",
    "dim": "write output.ndim",
    "eq": "write output == other",
    "norm": "write np.linalg.norm(output)",
    "float": "write output.astype(np.float32)",
    "double": "write output.astype(np.float64)",
    "int": "write output.astype(np.int32)",
    "long": "write output.astype(np.int64)",
    "bool": "write output.astype(bool)",
    "to": "leave it out, or write output.astype(dtype)",
    "type": "write output.astype(dtype)",
    "device": "it is on the host; model.cuda() lets the model run on a GPU",
    "cuda": "leave it out: model.cuda() lets the model run on a GPU",
    "backward": _GRADIENT,
    "grad": _GRADIENT,
    "grad_fn": _GRADIENT,
    "requires_grad": _GRADIENT,
    "requires_grad_": _GRADIENT,
    "retain_grad": _GRADIENT,
}
_DIFFERENT = {
    "max": "output.max(axis={dim}) and output.argmax(axis={dim})",
    "min": "output.min(axis={dim}) and output.argmin(axis={dim})",
    "std": "output.std(axis={dim}, ddof=1), which is torch's",
    "var": "output.var(axis={dim}, ddof=1), which is torch's",
    "sort": "np.sort(output, axis={dim}) and output.argsort(axis={dim})",
}


class OutputNumber(np.float32):
    """What a reduction of an :class:`OutputArray` gives: a float32, and no loss to be trained."""

    def __getattr__(self, name: str) -> Any:
        if _WRITE.get(name) == _GRADIENT:
            raise AttributeError(
                f"what hotloop gives is a NumPy number and has no {name!r}; {_GRADIENT}"
            )
        raise AttributeError(f"'numpy.float32' object has no attribute {name!r}")

    def __repr__(self) -> str:
        return repr(np.float32(self))

    def __reduce__(self) -> Any:
        return np.float32(self).__reduce__()  # files need nothing of hotloop


def _taking_dim(name: str) -> Any:
    """NumPy's method of that name, which takes torch's ``dim`` and ``keepdim`` as well."""
    method: Callable[..., Any] = getattr(np.ndarray, name)

    @functools.wraps(method)
    def call(self: Array, *args: Any, **kwargs: Any) -> Any:
        if "dim" in kwargs and name in _DIFFERENT:
            write = _DIFFERENT[name].format(dim=kwargs["dim"])
            raise ConfigError(
                f"{name}: what hotloop gives is a NumPy array, whose axis is torch's dim, "
                f"got dim={kwargs['dim']!r}; write {write}"
            )
        for torchs, numpys in (("dim", "axis"), ("keepdim", "keepdims")):
            if torchs in kwargs:
                kwargs[numpys] = kwargs.pop(torchs)
        made = method(self, *args, **kwargs)
        return OutputNumber(made) if type(made) is np.float32 else made

    return call


class OutputArray(np.ndarray[Any, np.dtype[Any]]):
    """A NumPy array that ``model(array)`` or a function on arrays gave.

    Reductions take torch's ``dim`` and ``keepdim`` where they then give what torch gives;
    ``detach``, ``cpu`` and ``numpy`` are there.
    """

    argmax = _taking_dim("argmax")
    argmin = _taking_dim("argmin")
    sum = _taking_dim("sum")
    mean = _taking_dim("mean")
    prod = _taking_dim("prod")
    all = _taking_dim("all")
    any = _taking_dim("any")
    cumsum = _taking_dim("cumsum")
    cumprod = _taking_dim("cumprod")
    squeeze = _taking_dim("squeeze")
    argsort = _taking_dim("argsort")
    max = _taking_dim("max")
    min = _taking_dim("min")
    std = _taking_dim("std")
    var = _taking_dim("var")
    sort = _taking_dim("sort")

    def detach(self) -> OutputArray:
        """Itself: it has no gradient."""
        return self

    def cpu(self) -> OutputArray:
        """Itself: it is on the host."""
        return self

    def numpy(self) -> Array:
        """The same values as a plain NumPy array, without a copy."""
        return np.ndarray.view(self, np.ndarray)

    def view(self, *args: Any, **kwargs: Any) -> Any:
        """NumPy's view as another dtype or class; of sizes torch's, which is ``reshape``."""
        sizes = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
        if sizes and not kwargs and all(isinstance(size, int | np.integer) for size in sizes):
            return self.reshape(sizes)
        return super().view(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _WRITE:
            raise AttributeError(
                f"what hotloop gives is a NumPy array and has no {name!r}; {_WRITE[name]}"
            )
        raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}")

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))

    def __array_wrap__(self, array: Array, context: Any = None, return_scalar: bool = False) -> Any:
        return array.view(OutputArray) if array.ndim else array[()]  # a number, as of any array

    def __reduce__(self) -> Any:
        return self.view(np.ndarray).__reduce__()  # files need nothing of hotloop


def as_outputs(result: Any) -> Any:
    """A structure of arrays as one of :class:`OutputArray`."""
    leaves, spec = flatten(result)
    return unflatten([np.asarray(leaf).view(OutputArray) for leaf in leaves], spec)
