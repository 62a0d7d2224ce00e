"""What all statistical nodes are: modules that are fitted by statistics of what they are given.

Before training, ``hl.train`` streams the training data once, or as often as there are nodes behind
others that are not affine, and gives each node the statistics of its input
(``training/plans/initialization.py``). What was fitted is frozen until ``unfreeze`` names it.
"""

from __future__ import annotations

import abc
import contextlib
import contextvars
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from hotloop.errors import ConfigError, HotloopError, ShapeError
from hotloop.graph.build import is_number
from hotloop.graph.loss_parts import with_parts
from hotloop.graph.pointwise import where
from hotloop.graph.symbolic import Tensor
from hotloop.graph.trace import current
from hotloop.nn.module import Module
from hotloop.nn.recipes import Constant
from hotloop.nn.uninitialized import UninitializedBuffer, UninitializedParameter
from hotloop.stats.statistics import Affine, Statistics

__all__ = [
    "PixelNode",
    "Seen",
    "StatisticalNode",
    "as_floats",
    "counted",
    "cube_or_input",
    "mask_of",
    "masked",
    "mean_over_pixels",
    "not_negative",
    "refuse_mask",
    "rows_that_count",
    "watching",
]


class Seen(NamedTuple):
    """A node that ran.

    Attributes
    ----------
    node : StatisticalNode
    input, output : Tensor
    """

    node: StatisticalNode
    input: Tensor
    output: Tensor


_watcher: contextvars.ContextVar[list[Seen] | None] = contextvars.ContextVar("seen", default=None)


@contextlib.contextmanager
def watching() -> Iterator[list[Seen]]:
    """In the block nodes run although they are not fitted, and are listed as they do."""
    seen: list[Seen] = []
    token = _watcher.set(seen)
    try:
        yield seen
    finally:
        _watcher.reset(token)


def not_negative(node: str, name: str, value: Any) -> float:
    """A finite number of at least 0.

    Raises
    ------
    ConfigError
    """
    if not is_number(value) or not 0 <= value < float("inf"):
        raise ConfigError(f"{node}: {name} must be finite and at least 0, got {value!r}")
    return float(value)


def _cube_of(input: Mapping[str, Any]) -> Any:
    if "cube" in input:
        return input["cube"]
    if "x" in input:
        return input["x"]
    raise ConfigError(
        f"the batch has the entries {', '.join(map(repr, input))} and none named 'cube', which a "
        "node of hotloop.stats takes; name it so where the data is made"
    )


def mask_of(input: Any) -> Tensor | None:
    """Which pixels of a batch count, ``batch["mask"]`` as bools; None: all of them.

    Raises
    ------
    ShapeError
        If it has not the cube's shape without channels.
    """
    if not isinstance(input, Mapping) or "mask" not in input:
        return None
    mask, shape = input["mask"], tuple(_cube_of(input).shape[:-1])
    if tuple(mask.shape) != shape:
        raise ShapeError(
            f"mask: must have the cube's shape without channels, {shape}, one bool for each pixel, "
            f"got {tuple(mask.shape)}; it says which pixels count"
        )
    made: Tensor = mask.cast("bool")
    return made


def as_floats(x: Any) -> Any:
    """Values of a cube; those of sensors are whole numbers."""
    is_whole = isinstance(x, Tensor) and not x.dtype.is_floating_point
    return x.cast("float32") if is_whole else x


def cube_or_input(input: Any) -> Any:
    """The cube of a batch that is a dict, ``batch["cube"]``, or what was given.

    Raises
    ------
    ConfigError
        If the dict has no cube.
    """
    return _cube_of(input) if isinstance(input, Mapping) else input


def masked(input: Mapping[str, Any]) -> dict[str, Any]:
    """A batch whose pixels beside the mask are 0, for training and validation.

    They may be NaN, which would spread to all gradients. Losses, metrics and nodes that take means
    over pixels leave them out, as the mask is noted in the trace.

    Raises
    ------
    ShapeError
        If the mask has another shape than the cube.
    """
    mask = mask_of(input)
    if mask is None:
        return dict(input)
    mask.trace.note("mask", mask)
    return {**input, "cube": where(mask.unsqueeze(-1), as_floats(input["cube"]), 0.0)}


def _is_of_pixels(shape: tuple[int, ...], mask: Tensor) -> bool:
    """Whether a shape is that of the mask's pixels: as the cube has them, in a row, or a row of
    each image.
    """
    of_each = mask.numel() // mask.shape[0]
    return shape in (mask.shape, (mask.numel(),), (mask.shape[0], of_each))


def rows_that_count(x: Tensor) -> Tensor | None:
    """Which rows of channels of a tensor ``(..., channels)`` count, as bools ``(...)``.

    None: all of them, as there is no mask, or they are vectors of whole images.

    Raises
    ------
    ConfigError
        If they are other pixels than the mask's.
    """
    mask = x.trace.noted("mask")
    if mask is None or not x.ndim:
        return None
    if _is_of_pixels(x.shape[:-1], mask):
        return mask.reshape(x.shape[:-1])
    if x.ndim <= 2 and x.shape[0] == mask.shape[0]:
        return None
    raise ConfigError(
        f"the batch has a mask of shape {mask.shape}, got values of shape {x.shape}, of which it "
        "is not known which count; leave the mask out, or compute them of the cube's pixels"
    )


def counted(x: Tensor) -> Tensor | None:
    """Which elements of a tensor count, as float32 of 0 and 1 that broadcasts over it.

    As :func:`rows_that_count`, also of pixels without channels.
    """
    mask = x.trace.noted("mask")
    if mask is not None and _is_of_pixels(x.shape, mask) and not _is_of_pixels(x.shape[:-1], mask):
        return mask.reshape(x.shape).cast("float32")
    rows = rows_that_count(x)
    return None if rows is None else rows.unsqueeze(-1).cast("float32")


def mean_over_pixels(x: Tensor) -> Tensor:
    """The mean over all that counts, with its parts, so that micro-batches divide once."""
    counts = counted(x)
    if counts is None:
        return x.mean()
    total = (x * counts).sum()
    n = (counts.sum() * (x.numel() / counts.numel())).clamp(min=1.0)
    return with_parts(total / n, total, n)


def refuse_mask(x: Any, node: str) -> None:
    """Refuses a batch with a mask where a node takes statistics of whole images.

    Raises
    ------
    ConfigError
    """
    if x.trace.noted("mask") is not None:
        raise ConfigError(
            f"{node}: its statistics are of all pixels of an image, got a batch with a mask, which "
            "leaves some out; use a node that is fitted, or leave the mask out"
        )


class PixelNode(Module, abc.ABC):
    """A module of channels-last pixels: ``(..., channels)``, or a dict with such a "cube"."""

    def forward(self, input: Any) -> Any:
        """The output of ``transform`` for a cube, or for the cube of a dict."""
        return self.transform(as_floats(cube_or_input(input)))

    @abc.abstractmethod
    def transform(self, x: Any) -> Any:
        """What the node makes of pixels ``(..., channels)``."""


_NEEDS = ("range", "mean", "variance", "covariance")


class StatisticalNode(PixelNode):
    """A node that statistics of its input are fitted to.

    Attributes
    ----------
    needs : {"range", "mean", "variance", "covariance"}
        The least and the largest value; the mean of each channel; its variance too; the mean and
        the covariance of the channels.
    is_affine : bool
        Whether ``affine`` says what ``transform`` does.
    is_per_channel : bool
        Whether each output is of one channel.
    statistics : dict of str to array of float64
        What was fitted, exactly; empty before, and after a file was loaded, which has what
        ``state_dict`` has.
    """

    needs: ClassVar[str] = "covariance"
    is_affine: bool = False
    is_per_channel: bool = False

    def __init__(self, num_channels: int | None = None) -> None:
        super().__init__()
        if num_channels is not None and (type(num_channels) is not int or num_channels < 1):
            raise ConfigError(
                f"{type(self).__name__}: num_channels must be an integer, at least 1, got "
                f"{num_channels!r}"
            )
        if self.needs not in _NEEDS:
            raise ConfigError(
                f"{type(self).__name__}.needs: must be {', '.join(map(repr, _NEEDS[:-1]))} or "
                f"{_NEEDS[-1]!r}, got {self.needs!r}"
            )
        self.title = type(self).__name__  # with its name in the model, once that is known
        self.num_channels = num_channels
        self.statistics: dict[str, npt.NDArray[np.float64]] = {}
        self.register_buffer("n_pixels_seen", np.zeros((), np.int64))

    # ---- what subclasses say

    @abc.abstractmethod
    def shapes(self, n_channels: int) -> Mapping[str, tuple[int, ...]]:
        """The shapes of what is fitted, for inputs with so many channels."""

    @abc.abstractmethod
    def fit(self, found: Statistics) -> Mapping[str, npt.ArrayLike]:
        """What is fitted, from the statistics of all inputs."""

    def fitted(self, name: str) -> npt.NDArray[np.float64]:
        """A fitted value in float64: exactly, where training has not moved it."""
        value, exact = getattr(self, name).value(), self.statistics.get(name)
        if exact is not None and np.array_equal(exact.astype(np.float32), value):
            return exact
        return np.asarray(value, np.float64)

    def affine(self) -> Affine | None:
        """What ``transform`` does, where that is affine: once fitted, in float64."""
        return None

    # ---- running

    def declare(self, *parameters: str, buffers: Sequence[str] = ()) -> None:
        """Registers what is fitted, whose shapes the first input tells: parameters, which
        ``unfreeze`` trains, and buffers.
        """
        for name in parameters:
            setattr(self, name, UninitializedParameter(requires_grad=False))
        for name in buffers:
            setattr(self, name, UninitializedBuffer())
        if self.num_channels is not None:
            self._resolve(self.num_channels)

    def _resolve(self, n_channels: int) -> None:
        self.num_channels = n_channels
        for name, shape in self.shapes(n_channels).items():
            variable = getattr(self, name)
            if variable.is_lazy:
                variable.resolve(shape, Constant(0.0))

    @property
    def is_fitted(self) -> bool:
        """Whether there were statistics."""
        return bool(self.n_pixels_seen.value() > 0)

    def forward(self, input: Any) -> Any:
        """The output for ``(..., channels)``, or for the "cube" of a dict.

        Raises
        ------
        ShapeError
            For another number of channels than the node has.
        HotloopError
            If it was not fitted.
        """
        x = as_floats(cube_or_input(input))
        self._check_channels(x)
        watcher = _watcher.get()
        if watcher is None and not self.is_fitted:
            path = current(self.title).path
            raise HotloopError(
                f"{path}{', ' if path else ''}{type(self).__name__} must be fitted before it is "
                "used; train its model, hl.train(model, data, max_epochs=0) fits alone"
            )
        made = self.transform(x)
        if watcher is not None:
            watcher.append(Seen(self, x, made))
        return made

    def _check_channels(self, x: Any) -> None:
        n = x.shape[-1] if x.shape else 0
        if not n:
            raise ShapeError(
                f"{type(self).__name__}: the input must be (..., channels), got shape {x.shape}"
            )
        if self.num_channels is None:
            self._resolve(n)
        elif n != self.num_channels:
            how = "was fitted to" if self.is_fitted else "has"
            raise ShapeError(
                f"{type(self).__name__} {how} {self.num_channels} channels, got a cube with {n} "
                f"(shape {x.shape})"
            )

    def after_load(self) -> None:
        """Takes the number of channels from loaded values."""
        for variable in (*self.parameters(recurse=False), *self.buffers(recurse=False)):
            if not variable.is_lazy and variable.shape:
                self.num_channels = self.num_channels or variable.shape[-1]

    def take(self, found: Statistics, name: str = "") -> None:
        """Fits the node, of that name in the model."""
        self.title = f"{name}, {type(self).__name__}" if name else type(self).__name__
        values = self.fit(found)
        self.statistics = {name: np.asarray(v, np.float64) for name, v in values.items()}
        for name, value in self.statistics.items():
            getattr(self, name).set_value(value.astype(np.float32))
        self.n_pixels_seen.set_value(np.asarray(found.count, np.int64))
